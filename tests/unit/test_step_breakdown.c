// The breakdown of steps from spans made by hand, on two ranks that are threads: the parts add up to the
// slowest rank's step, steps that are out of the ordinary do not count, dropped spans make everything
// unknown.
#include "collectives/world.h"
#include "strategies/step_breakdown.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { STEPS = 8, SPANS = 7, MS = 1000000 };

typedef struct {
    size_t dropped; // on rank 1
    ptb_metrics metrics;
} question;

// In ms from the step's begin: forward 0-2, backward 2-5, communication 4-7 (2 of it exposed), optimizer 7-8,
// input 8-9, then nothing until the end: 10 on rank 0, 12 on rank 1. Step 3 takes ten times as long.
static void make_step(int rank, uint64_t step, ptb_span *spans)
{
    static const struct {
        int begin, end;
        ptb_span_kind kind;
        ptb_phase phase;
    } parts[SPANS] = {
        {0, 2, PTB_SPAN_COMPUTE, PTB_PHASE_FORWARD},     {2, 5, PTB_SPAN_COMPUTE, PTB_PHASE_BACKWARD},
        {4, 6, PTB_SPAN_COMM, PTB_PHASE_BACKWARD},       {6, 7, PTB_SPAN_COMM, PTB_PHASE_BACKWARD},
        {7, 8, PTB_SPAN_OPTIMIZER, PTB_PHASE_OPTIMIZER}, {8, 9, PTB_SPAN_INPUT, PTB_PHASE_NONE},
        {0, 10, PTB_SPAN_STEP, PTB_PHASE_NONE}};
    int64_t scale = step == 3 ? 10 * MS : MS, origin = (int64_t)step * 1000 * MS;
    for (int i = 0; i < SPANS; i++) {
        spans[i] = (ptb_span){.begin_ns = origin + parts[i].begin * scale,
                              .end_ns = origin + parts[i].end * scale,
                              .kind = (uint8_t)parts[i].kind,
                              .phase = (uint8_t)parts[i].phase,
                              .rank = rank,
                              .correlation = step};
        if (parts[i].kind == PTB_SPAN_STEP && rank == 1)
            spans[i].end_ns += 2 * scale;
    }
}

static ptb_status body(ptb_world *world, void *arg)
{
    question *q = arg;
    ptb_step_breakdown *breakdown;
    ptb_metrics metrics = {0};
    PTB_TRY(ptb_step_breakdown_new(STEPS, &breakdown));
    for (uint64_t step = 0; step < STEPS; step++) {
        ptb_span spans[SPANS];
        make_step(world->rank, step, spans);
        PTB_TRY(ptb_step_breakdown_add(breakdown, spans, SPANS,
                                       step == 5 && world->rank == 1 ? q->dropped : 0, false, step + 1));
    }
    PTB_TRY(ptb_step_breakdown_metrics(breakdown, world, STEPS, STEPS - 1, &metrics));
    if (world->rank == 0)
        q->metrics = metrics;
    ptb_step_breakdown_free(breakdown);
    return PTB_OK;
}

static double value(const question *q, const char *name)
{
    for (size_t i = 0; i < q->metrics.count; i++)
        if (strcmp(q->metrics.items[i].name, name) == 0)
            return q->metrics.items[i].value;
    fail_msg("there is no metric %s", name);
    return NAN;
}

static void parts_add_up(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        double ms;
    } wanted[] = {{"forward", 2}, {"backward", 3},       {"optimizer", 1}, {"exposed_comm", 2},
                  {"input", 1},   {"other", 2},          {"imbalance", 1}, {"step", 12},
                  {"comm", 3},    {"overlap", 100 / 3.0}};
    question q = {0};
    assert_int_equal(ptb_world_run_local(2, NULL, body, &q), PTB_OK);
    double sum = 0;
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        if (fabs(value(&q, wanted[i].name) - wanted[i].ms) > 1e-9)
            fail_msg("%s is %g, not %g", wanted[i].name, value(&q, wanted[i].name), wanted[i].ms);
        sum += i < 7 ? value(&q, wanted[i].name) : 0;
    }
    assert_true(fabs(sum - value(&q, "step")) < 1e-9);
}

// In ms: two steps of 10, forward 0-4 and backward 4-10 in each. Their communication and update go on behind
// them: 8-13 and 13-14 of the first, 18-22 and 22-23 of the second, for which the host waits until 24.
static ptb_status together_body(ptb_world *world, void *arg)
{
    static const struct {
        int begin, end;
        ptb_span_kind kind;
        ptb_phase phase;
        uint64_t step;
    } parts[] = {{0, 4, PTB_SPAN_COMPUTE, PTB_PHASE_FORWARD, 0},
                 {4, 10, PTB_SPAN_COMPUTE, PTB_PHASE_BACKWARD, 0},
                 {0, 10, PTB_SPAN_STEP, PTB_PHASE_NONE, 0},
                 {10, 14, PTB_SPAN_COMPUTE, PTB_PHASE_FORWARD, 1},
                 {8, 13, PTB_SPAN_COMM, PTB_PHASE_BACKWARD, 0},
                 {13, 14, PTB_SPAN_OPTIMIZER, PTB_PHASE_OPTIMIZER, 0},
                 {14, 20, PTB_SPAN_COMPUTE, PTB_PHASE_BACKWARD, 1},
                 {10, 20, PTB_SPAN_STEP, PTB_PHASE_NONE, 1},
                 {18, 22, PTB_SPAN_COMM, PTB_PHASE_BACKWARD, 1},
                 {22, 23, PTB_SPAN_OPTIMIZER, PTB_PHASE_OPTIMIZER, 1},
                 {20, 24, PTB_SPAN_STEP, PTB_PHASE_NONE, 1}};
    enum { COUNT = sizeof parts / sizeof *parts };
    question *q = arg;
    ptb_span spans[COUNT];
    ptb_step_breakdown *breakdown;
    for (int i = 0; i < COUNT; i++)
        spans[i] = (ptb_span){.begin_ns = parts[i].begin * MS,
                              .end_ns = parts[i].end * MS,
                              .kind = (uint8_t)parts[i].kind,
                              .phase = (uint8_t)parts[i].phase,
                              .correlation = parts[i].step};
    PTB_TRY(ptb_step_breakdown_new(STEPS, &breakdown));
    PTB_TRY(ptb_step_breakdown_add(breakdown, spans, COUNT, q->dropped, true, 2));
    PTB_TRY(ptb_step_breakdown_metrics(breakdown, world, 2, 2, &q->metrics));
    ptb_step_breakdown_free(breakdown);
    return PTB_OK;
}

static void steps_together_share(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        double ms;
    } wanted[] = {{"forward", 4}, {"backward", 6}, {"optimizer", 0.5}, {"exposed_comm", 1},   {"input", 0},
                  {"other", 0.5}, {"step", 12},    {"comm", 4.5},      {"overlap", 700 / 9.0}};
    question q = {0};
    assert_int_equal(ptb_world_run_local(1, NULL, together_body, &q), PTB_OK);
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (fabs(value(&q, wanted[i].name) - wanted[i].ms) > 1e-9)
            fail_msg("%s is %g, not %g", wanted[i].name, value(&q, wanted[i].name), wanted[i].ms);
    q = (question){.dropped = 1};
    assert_int_equal(ptb_world_run_local(1, NULL, together_body, &q), PTB_OK);
    assert_true(isnan(value(&q, "forward")) && isnan(value(&q, "step")));
}

static void dropped_spans_are_unknown(void **state)
{
    (void)state;
    question q = {.dropped = 1};
    assert_int_equal(ptb_world_run_local(2, NULL, body, &q), PTB_OK);
    assert_true(q.metrics.count > 0);
    for (size_t i = 0; i < q.metrics.count; i++)
        assert_true(isnan(q.metrics.items[i].value));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(parts_add_up),
                                       cmocka_unit_test(dropped_spans_are_unknown),
                                       cmocka_unit_test(steps_together_share)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
