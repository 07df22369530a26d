#include "strategies/transformer/route.h"

#include "core/log.h"
#include "strategies/transformer/kernels.h"

ptb_status ptb_route_check(size_t rows, size_t experts, size_t top_k)
{
    if (experts && experts <= PTB_EXPERTS_MAX && top_k && top_k <= experts && rows <= INT32_MAX / top_k)
        return PTB_OK;
    ptb_error("a router of %zu experts with top-%zu of %zu rows: expected 1 to %d experts, from 1 to all of "
              "them chosen, and at most %d choices in all",
              experts, top_k, rows, PTB_EXPERTS_MAX, INT32_MAX);
    return PTB_USAGE;
}

ptb_status ptb_route_check_experts(size_t experts, size_t first, size_t local)
{
    if (local && experts <= PTB_EXPERTS_MAX && first < experts && local <= experts - first)
        return PTB_OK;
    ptb_error("experts %zu to %zu of %zu: expected 1 to %d experts, and a part of them", first, first + local,
              experts, PTB_EXPERTS_MAX);
    return PTB_USAGE;
}
