// Where rows and choices of several ranks go when each has whole experts (kernels.h, ptb_expert_order), on
// the host. Sources come one after the other, the elements of each are divided over the threads.
#include "strategies/transformer/kernels_host.h"
#include "strategies/transformer/route.h"

// What a source has: its experts' first places there, and this rank's for them.
typedef struct {
    int32_t start[PTB_EXPERTS_MAX + 1]; /* [experts + 1], in the source's order */
    int32_t place[PTB_EXPERTS_MAX + 1]; /* [local + 1], in this rank's order */
} order;

static int32_t taken(const ptb_expert_order *a, size_t source, size_t expert)
{
    return ptb_route_taken(a->counts[source * a->stride + expert], a->capacity);
}

static void begin_places(const ptb_expert_order *a, order *o)
{
    int32_t used = 0;
    for (size_t e = 0; e < a->local; e++) {
        a->offsets[e] = o->place[e] = used;
        for (size_t s = 0; s < a->sources; s++)
            used += taken(a, s, a->first + e);
    }
    a->offsets[a->local] = used;
}

static int32_t place_of(const ptb_expert_order *a, const order *o, int32_t at)
{
    if (at < 0 || at >= o->start[a->experts])
        return -1;
    size_t low = 0, high = a->experts; // the last expert that begins at or before `at`
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        *(o->start[middle] <= at ? &low : &high) = middle;
    }
    bool mine = low >= a->first && low < a->first + a->local;
    return mine ? o->place[low - a->first] + at - o->start[low] : -1;
}

static void order_source(const ptb_expert_order *a, const order *o, size_t source, size_t first, size_t count)
{
    const int32_t *slot = a->slot ? a->slot + source * a->stride : NULL;
    const float *weight = a->weight ? a->weight + source * a->stride : NULL;
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < count; i++) {
        a->place[first + i] = place_of(a, o, slot ? slot[i] : (int32_t)i);
        if (weight)
            a->weights[first + i] = weight[i];
    }
}

ptb_status ptb_host_run_expert_order(void *arg)
{
    const ptb_expert_order *a = arg;
    order o;
    PTB_TRY(ptb_route_check_experts(a->experts, a->first, a->local));
    begin_places(a, &o);
    size_t first = 0;
    for (size_t s = 0; s < a->sources; s++) {
        o.start[0] = 0;
        for (size_t e = 0; e < a->experts; e++)
            o.start[e + 1] = o.start[e] + taken(a, s, e);
        size_t count = a->block ? a->block : (size_t)o.start[a->experts];
        order_source(a, &o, s, first, count);
        for (size_t e = 0; e < a->local; e++)
            o.place[e] += taken(a, s, a->first + e);
        first += count;
    }
    return PTB_OK;
}
