// See step_data.h.
#include "strategies/step_data.h"

#include "core/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

ptb_status ptb_step_data_check(const ptb_step_data *c)
{
    if (!c->in_flight || c->in_flight > c->prefetch)
        return PTB_OK;
    ptb_error("--in-flight %" PRId64 " leaves no room for the unit that computes beside --prefetch %" PRId64
              " ahead of it; use --in-flight %" PRId64 " or more, or a smaller --prefetch",
              c->in_flight, c->prefetch, c->prefetch + 1);
    return PTB_USAGE;
}

ptb_data_options ptb_step_data_options(const ptb_step_data *c)
{
    return (ptb_data_options){.depth = (int)c->prefetch,
                              .in_flight = (int)c->in_flight,
                              .keep = !c->reshard,
                              .staleness = (int)c->staleness,
                              .local_steps = (int)c->local_steps};
}

static bool is_one_of(const char *name, const char *a, const char *b, const char *c)
{
    return strcmp(name, a) == 0 || strcmp(name, b) == 0 || strcmp(name, c) == 0;
}

void ptb_step_data_params(const ptb_step_data *c, const char *strategy, ptb_params *p)
{
    if (is_one_of(strategy, "zero2", "fsdp", "hsdp"))
        ptb_params_set(p, "in_flight", "%" PRId64, c->in_flight ? c->in_flight : c->prefetch + 1);
    if (is_one_of(strategy, "fsdp", "hsdp", "hsdp")) {
        ptb_params_set(p, "prefetch", "%" PRId64, c->prefetch);
        ptb_params_set(p, "reshard", "%s", c->reshard ? "yes" : "no");
    }
    if (strcmp(strategy, "async") == 0)
        ptb_params_set(p, "staleness", "%" PRId64, c->staleness);
    if (strcmp(strategy, "local-sgd") == 0)
        ptb_params_set(p, "local_steps", "%" PRId64, c->local_steps);
}

bool ptb_step_data_possible(const ptb_step_data *c, const char *strategy, ptb_dtype type, bool graph,
                            char *reason)
{
    bool local = strcmp(strategy, "local-sgd") == 0, late = strcmp(strategy, "async") == 0;
    if ((local || late) && type == PTB_F16) {
        snprintf(reason, PTB_REASON_BYTES,
                 "%s has no loss scale that all ranks agree on in every step, which f16 needs; use bf16",
                 strategy);
        return false;
    }
    if (graph && (late || (local && c->local_steps > 1))) {
        snprintf(reason, PTB_REASON_BYTES, "the steps of %s differ, and a recorded one is always the same",
                 strategy);
        return false;
    }
    return true;
}
