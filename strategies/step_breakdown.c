// See step_breakdown.h. A new part of a step is a line in PARTS and in `measure`.
#include "strategies/step_breakdown.h"

#include "core/log.h"
#include "profiler/overlap.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// name, unit, which way is better, convention (the median over steps and mean over ranks is added to it)
#define PARTS(X)                                                                                             \
    X(forward, "ms", PTB_LOWER_IS_BETTER, "union of forward compute spans, loss included")                   \
    X(backward, "ms", PTB_LOWER_IS_BETTER, "union of backward compute spans")                                \
    X(optimizer, "ms", PTB_LOWER_IS_BETTER, "union of optimizer spans")                                      \
    X(exposed_comm, "ms", PTB_LOWER_IS_BETTER, "|C| - |C and K|")                                            \
    X(input, "ms", PTB_LOWER_IS_BETTER, "input spans outside C and K")                                       \
    X(other, "ms", PTB_LOWER_IS_BETTER, "step - |K or C or input|")                                          \
    X(comm, "ms", PTB_LOWER_IS_BETTER, "|C|")                                                                \
    X(overlap, "%", PTB_HIGHER_IS_BETTER, "|C and K| / |C|")

enum {
#define X(name, unit, better, convention) PART_##name,
    PARTS(X)
#undef X
        PART_COUNT
};

typedef struct {
    double value[PART_COUNT];
} step_parts;

struct ptb_step_breakdown {
    size_t max_steps;
    uint64_t steps;
    step_parts *step; // [max_steps]
};

ptb_status ptb_step_breakdown_new(size_t max_steps, ptb_step_breakdown **breakdown)
{
    ptb_step_breakdown *b = calloc(1, sizeof *b);
    step_parts *step = calloc(max_steps, sizeof *step); // pages come as steps are written
    if (!b || !step) {
        ptb_error("no memory to break down %zu steps", max_steps);
        free(b);
        free(step);
        return PTB_NO_MEMORY;
    }
    *b = (ptb_step_breakdown){.max_steps = max_steps, .step = step};
    *breakdown = b;
    return PTB_OK;
}

void ptb_step_breakdown_free(ptb_step_breakdown *b)
{
    if (!b)
        return;
    free(b->step);
    free(b);
}

static step_parts measure(const ptb_overlap *o)
{
    step_parts p;
    p.value[PART_forward] = (double)o->phase_compute_ns[PTB_PHASE_FORWARD] * 1e-6;
    p.value[PART_backward] = (double)o->phase_compute_ns[PTB_PHASE_BACKWARD] * 1e-6;
    p.value[PART_optimizer] = (double)o->optimizer_ns * 1e-6;
    p.value[PART_exposed_comm] = (double)o->exposed_ns * 1e-6;
    p.value[PART_input] = (double)o->input_exposed_ns * 1e-6;
    p.value[PART_other] = (double)(o->step_ns - o->accounted_ns) * 1e-6;
    p.value[PART_comm] = (double)o->communication_ns * 1e-6;
    p.value[PART_overlap] = o->overlap * 100;
    return p;
}

ptb_status ptb_step_breakdown_add(ptb_step_breakdown *b, const ptb_span *spans, size_t count, size_t dropped,
                                  uint64_t steps)
{
    size_t first = 0;
    for (; b->steps < steps && b->steps < b->max_steps; b->steps++) {
        ptb_overlap overlap;
        ptb_overlap_filter filter = {.one_correlation = true, .correlation = b->steps};
        if (dropped) {
            for (int i = 0; i < PART_COUNT; i++)
                b->step[b->steps].value[i] = NAN;
            continue;
        }
        // Steps follow each other in the trace; look only at the part that can hold this one.
        size_t end = first;
        while (end < count && spans[end].correlation <= b->steps)
            end++;
        PTB_TRY(ptb_overlap_measure(spans + first, end - first, &filter, &overlap));
        first = end;
        b->step[b->steps] = measure(&overlap);
    }
    return PTB_OK;
}

// Median of one part over steps [from, to); NAN when it is unknown in any of them.
static ptb_status median(const ptb_step_breakdown *b, int part, uint64_t from, uint64_t to, double *result)
{
    double *values = malloc((to - from + 1) * sizeof *values);
    if (!values) {
        ptb_error("no memory for the median of %zu steps", (size_t)(to - from));
        return PTB_NO_MEMORY;
    }
    size_t n = 0;
    bool known = to > from;
    for (uint64_t i = from; i < to; i++) {
        values[n++] = b->step[i].value[part];
        known = known && !isnan(b->step[i].value[part]);
    }
    if (known)
        ptb_stats_sort(values, n);
    *result = known ? ptb_stats_quantile(values, n, 0.5) : NAN;
    free(values);
    return PTB_OK;
}

ptb_status ptb_step_breakdown_metrics(const ptb_step_breakdown *b, ptb_world *world, uint64_t steps,
                                      uint64_t timed, ptb_metrics *metrics)
{
    static const struct {
        const char *name, *unit, *convention;
        ptb_better better;
    } parts[] = {
#define X(name, unit, better, convention)                                                                    \
    {#name, unit, convention "; median over steps, mean over ranks", better},
        PARTS(X)
#undef X
    };
    double mine[PART_COUNT];
    double *all = malloc((size_t)world->size * sizeof mine);
    ptb_status status = all ? PTB_OK : PTB_NO_MEMORY;
    if (!all)
        ptb_error("no memory for the breakdown of %d ranks", world->size);
    uint64_t to = steps < b->steps ? steps : b->steps, from = timed < to ? to - timed : 0;
    for (int i = 0; i < PART_COUNT && status == PTB_OK; i++)
        status = median(b, i, from, to, &mine[i]);
    status = ptb_world_agree(world, status);
    if (status == PTB_OK)
        status = world->ops->all_gather(world, mine, sizeof mine, all);
    for (int i = 0; i < PART_COUNT && status == PTB_OK; i++) {
        double sum = 0;
        for (int r = 0; r < world->size; r++)
            sum += all[r * PART_COUNT + i];
        ptb_metrics_add(metrics, parts[i].name, sum / world->size, parts[i].unit, parts[i].better,
                        parts[i].convention);
    }
    free(all);
    return status;
}
