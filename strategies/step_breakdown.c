// See step_breakdown.h. A new part of a step is a line in PARTS and in `measure`.
//
// Medians of parts do not add up, and neither do parts of one rank to the time of another. So one set of
// steps is chosen for all parts and all ranks, by the time of the slowest rank, and the parts are means over
// it.
#include "strategies/step_breakdown.h"

#include "core/log.h"
#include "profiler/overlap.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// name, unit, which way is better, convention (AVERAGE is added to it)
#define PARTS(X)                                                                                             \
    X(forward, "ms", PTB_LOWER_IS_BETTER, "union of forward compute, loss included")                         \
    X(backward, "ms", PTB_LOWER_IS_BETTER, "union of backward compute")                                      \
    X(optimizer, "ms", PTB_LOWER_IS_BETTER, "optimizer spans that no other compute hides")                   \
    X(exposed_comm, "ms", PTB_LOWER_IS_BETTER, "|C| - |C and K|, waits inside calls too")                    \
    X(input, "ms", PTB_LOWER_IS_BETTER, "input spans outside C and K")                                       \
    X(other, "ms", PTB_LOWER_IS_BETTER, "step - |K or C or input|")                                          \
    X(comm, "ms", PTB_LOWER_IS_BETTER, "|C|")                                                                \
    X(exposed_dp, "ms", PTB_LOWER_IS_BETTER, "|C| - |C and K|, C of dp alone")                               \
    X(exposed_tp, "ms", PTB_LOWER_IS_BETTER, "|C| - |C and K|, C of tp alone")                               \
    X(exposed_pp, "ms", PTB_LOWER_IS_BETTER, "|C| - |C and K|, C of pp alone")                               \
    X(exposed_cp, "ms", PTB_LOWER_IS_BETTER, "|C| - |C and K|, C of cp alone")                               \
    X(exposed_ep, "ms", PTB_LOWER_IS_BETTER, "|C| - |C and K|, C of ep alone")                               \
    X(overlap, "%", PTB_HIGHER_IS_BETTER, "|C and K| / |C|")
#define AVERAGE "; mean of the middle half of steps by time, of ranks"

enum {
#define X(name, unit, better, convention) PART_##name,
    PARTS(X)
#undef X
        PART_COUNT,
    PART_FIRST_AXIS = PART_exposed_dp,
    PART_LAST_AXIS = PART_exposed_ep // in the order of ptb_span.axis, from 1 on
};

typedef struct {
    double value[PART_COUNT];  // ms; overlap unused
    double step_ms;            // this rank's whole step; NAN: spans were dropped
    bool axis[PTB_AXIS_COUNT]; // that something was communicated on
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
    int64_t rest_ns =
        o->compute_ns - o->phase_compute_ns[PTB_PHASE_FORWARD] - o->phase_compute_ns[PTB_PHASE_BACKWARD];
    int64_t optimizer_ns = o->optimizer_ns < rest_ns ? o->optimizer_ns : rest_ns;
    step_parts p = {.step_ms = (double)o->step_ns * 1e-6};
    p.value[PART_forward] = (double)o->phase_compute_ns[PTB_PHASE_FORWARD] * 1e-6;
    p.value[PART_backward] = (double)o->phase_compute_ns[PTB_PHASE_BACKWARD] * 1e-6;
    p.value[PART_optimizer] = (double)optimizer_ns * 1e-6;
    p.value[PART_exposed_comm] = (double)o->exposed_ns * 1e-6;
    p.value[PART_input] = (double)o->input_exposed_ns * 1e-6;
    p.value[PART_other] = (double)(o->step_ns - o->accounted_ns) * 1e-6;
    p.value[PART_comm] = (double)o->communication_ns * 1e-6;
    p.value[PART_overlap] = NAN; // of sums, not of steps
    for (int i = PART_FIRST_AXIS; i <= PART_LAST_AXIS; i++) {
        const ptb_overlap_part *axis = &o->axis[1 + i - PART_FIRST_AXIS];
        p.value[i] = (double)axis->exposed_ns * 1e-6;
        p.axis[1 + i - PART_FIRST_AXIS] = axis->communication_ns > 0;
    }
    return p;
}

// The part of one of `steps` that were analysed together.
static step_parts share_of(const ptb_overlap *o, double steps)
{
    step_parts p = measure(o);
    p.step_ms /= steps;
    for (int i = 0; i < PART_COUNT; i++)
        p.value[i] /= steps;
    return p;
}

static ptb_status add_together(ptb_step_breakdown *b, const ptb_span *spans, size_t count, size_t dropped,
                               uint64_t steps)
{
    ptb_overlap overlap;
    ptb_overlap_filter all = {.one_correlation = false};
    if (b->steps >= steps)
        return PTB_OK;
    PTB_TRY(ptb_overlap_measure(spans, count, &all, &overlap));
    step_parts share = share_of(&overlap, (double)(steps - b->steps));
    if (dropped)
        share.step_ms = NAN;
    for (; b->steps < steps && b->steps < b->max_steps; b->steps++)
        b->step[b->steps] = share;
    return PTB_OK;
}

ptb_status ptb_step_breakdown_add(ptb_step_breakdown *b, const ptb_span *spans, size_t count, size_t dropped,
                                  bool together, uint64_t steps)
{
    size_t first = 0;
    if (together)
        return add_together(b, spans, count, dropped, steps);
    for (; b->steps < steps && b->steps < b->max_steps; b->steps++) {
        ptb_overlap overlap;
        ptb_overlap_filter filter = {.one_correlation = true, .correlation = b->steps};
        if (dropped) {
            b->step[b->steps].step_ms = NAN;
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

// A timed step and how long its slowest rank took.
typedef struct {
    double slowest_ms;
    size_t step;
} timed_step;

static int by_time(const void *a, const void *b)
{
    const timed_step *x = a, *y = b;
    if (x->slowest_ms != y->slowest_ms)
        return x->slowest_ms < y->slowest_ms ? -1 : 1;
    return (x->step > y->step) - (x->step < y->step);
}

// The steps [from, from + count) in order of the slowest rank's time; the same on all ranks. *known is false
// when a rank does not know one of them. `slowest` and `order` have room for count + 1 and count.
static ptb_status order_steps(const ptb_step_breakdown *b, ptb_world *world, size_t from, size_t count,
                              double *slowest, timed_step *order, bool *known)
{
    double unknown = 0;
    for (size_t i = 0; i < count; i++) {
        double mine_ms = b->step[from + i].step_ms;
        unknown = isnan(mine_ms) ? 1 : unknown;
        slowest[i] = isnan(mine_ms) ? 0 : mine_ms;
    }
    slowest[count] = unknown;
    PTB_TRY(ptb_world_reduce_max(world, slowest, count + 1));
    for (size_t i = 0; i < count; i++)
        order[i] = (timed_step){slowest[i], from + i};
    qsort(order, count, sizeof *order, by_time);
    *known = count > 0 && slowest[count] == 0;
    return PTB_OK;
}

// This rank's means over the chosen steps; all NAN when they are not known.
static step_parts average(const ptb_step_breakdown *b, const timed_step *chosen, size_t count, bool known)
{
    step_parts mean = {.step_ms = known ? 0 : NAN};
    for (int i = 0; i < PART_COUNT; i++)
        mean.value[i] = known ? 0 : NAN;
    for (size_t k = 0; known && k < count; k++) {
        const step_parts *step = &b->step[chosen[k].step];
        for (int i = 0; i < PART_COUNT; i++)
            mean.value[i] += step->value[i] / (double)count;
        mean.step_ms += step->step_ms / (double)count;
        for (int a = 0; a < PTB_AXIS_COUNT; a++)
            mean.axis[a] = mean.axis[a] || step->axis[a];
    }
    double comm = mean.value[PART_comm];
    mean.value[PART_overlap] = comm > 0 ? 100 * (comm - mean.value[PART_exposed_comm]) / comm : NAN;
    return mean;
}

static void add_metrics(const step_parts *all, int ranks, double slowest_ms, ptb_metrics *metrics)
{
    static const struct {
        const char *name, *unit, *convention;
        ptb_better better;
    } parts[] = {
#define X(name, unit, better, convention) {#name, unit, convention AVERAGE, better},
        PARTS(X)
#undef X
    };
#define X(name, unit, better, text)                                                                          \
    _Static_assert(sizeof(text AVERAGE) <= sizeof(((ptb_metric *)0)->convention), "would be cut");
    PARTS(X)
#undef X
    double mean_ms = 0;
    for (int r = 0; r < ranks; r++)
        mean_ms += all[r].step_ms / ranks;
    for (int i = 0; i < PART_COUNT; i++) {
        double sum = 0;
        bool there = i < PART_FIRST_AXIS || i > PART_LAST_AXIS;
        for (int r = 0; r < ranks; r++) {
            sum += all[r].value[i];
            there = there || all[r].axis[1 + i - PART_FIRST_AXIS];
        }
        if (!there)
            continue;
        ptb_metrics_add(metrics, parts[i].name, sum / ranks, parts[i].unit, parts[i].better,
                        parts[i].convention);
    }
    ptb_metrics_add(metrics, "imbalance", slowest_ms - mean_ms, "ms", PTB_LOWER_IS_BETTER,
                    "slowest rank's step - mean of the ranks'; mean of the middle half of steps by time");
    ptb_metrics_add(metrics, "step", slowest_ms, "ms", PTB_LOWER_IS_BETTER,
                    "slowest rank's step, the sum of its parts; mean of the middle half of steps by time");
}

ptb_status ptb_step_breakdown_metrics(const ptb_step_breakdown *b, ptb_world *world, uint64_t steps,
                                      uint64_t timed, ptb_metrics *metrics)
{
    size_t to = (size_t)(steps < b->steps ? steps : b->steps), from = timed < to ? to - (size_t)timed : 0;
    size_t count = to - from, skipped = count / 4, chosen = count - 2 * skipped;
    double *slowest = malloc((count + 1) * sizeof *slowest), slowest_ms = 0;
    timed_step *order = malloc((count + 1) * sizeof *order);
    step_parts *all = malloc((size_t)world->size * sizeof *all);
    bool known = false;
    ptb_status status = slowest && order && all ? PTB_OK : PTB_NO_MEMORY;
    if (status != PTB_OK)
        ptb_error("no memory for the breakdown of %zu steps on %d ranks", count, world->size);
    status = ptb_world_agree(world, status);
    if (status == PTB_OK)
        status = order_steps(b, world, from, count, slowest, order, &known);
    if (status == PTB_OK) {
        step_parts mine = average(b, order + skipped, chosen, known);
        status = ptb_world_all_gather(world, &mine, sizeof mine, all);
    }
    for (size_t k = 0; status == PTB_OK && k < chosen; k++)
        slowest_ms += order[skipped + k].slowest_ms / (double)chosen;
    if (status == PTB_OK)
        add_metrics(all, world->size, known ? slowest_ms : NAN, metrics);
    free(slowest);
    free(order);
    free(all);
    return status;
}
