// Overlap analysis: cases worked out by hand, and random spans against a count of every nanosecond.
#include "core/random.h"
#include "profiler/overlap.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static ptb_span span(ptb_span_kind kind, ptb_phase phase, int axis, int64_t begin, int64_t end)
{
    return (ptb_span){
        .begin_ns = begin, .end_ns = end, .kind = (uint8_t)kind, .phase = (uint8_t)phase, .axis = axis};
}

// Two computes with a gap, an optimizer, two communications on two axes that overlap each other, a copy,
// waiting.
//   compute    10--------30   40-----50        optimizer 60---70
//   comm              20-------------45 (dp)                65-----80 (tp)     42-48 (dp)
//   copy   0-5          input 2-12     sync 0-100      step 0-90
static void test_by_hand(void **state)
{
    (void)state;
    ptb_span spans[] = {
        span(PTB_SPAN_COMPUTE, PTB_PHASE_FORWARD, 0, 10, 30),
        span(PTB_SPAN_COMPUTE, PTB_PHASE_BACKWARD, 0, 40, 50),
        span(PTB_SPAN_OPTIMIZER, PTB_PHASE_OPTIMIZER, 0, 60, 70),
        span(PTB_SPAN_COMM, PTB_PHASE_BACKWARD, 1, 20, 45),
        span(PTB_SPAN_COMM, PTB_PHASE_OPTIMIZER, 2, 65, 80),
        span(PTB_SPAN_COMM, PTB_PHASE_BACKWARD, 1, 42, 48),
        span(PTB_SPAN_COPY, PTB_PHASE_NONE, 0, 0, 5),
        span(PTB_SPAN_INPUT, PTB_PHASE_NONE, 0, 2, 12),
        span(PTB_SPAN_SYNC, PTB_PHASE_NONE, 0, 0, 100),
        span(PTB_SPAN_STEP, PTB_PHASE_NONE, 0, 0, 90),
    };
    ptb_overlap o;
    assert_int_equal(ptb_overlap_measure(spans, sizeof spans / sizeof *spans, NULL, &o), PTB_OK);
    assert_int_equal(o.spans, 10);
    assert_int_equal(o.compute_ns, 40);       // 20 + 10 + 10
    assert_int_equal(o.communication_ns, 43); // 20-48, 65-80
    assert_int_equal(o.overlapped_ns, 23);    // 20-30, 40-48, 65-70
    assert_int_equal(o.exposed_ns, 20);
    assert_true(fabs(o.overlap - 23.0 / 43) < 1e-12);
    assert_int_equal(o.span_ns, 80);
    assert_int_equal(o.busy_ns, 65); // 0-5, 10-50, 60-80
    assert_int_equal(o.idle_ns, 15);
    assert_int_equal(o.optimizer_ns, 10);
    assert_int_equal(o.input_ns, 10);
    assert_int_equal(o.input_exposed_ns, 8); // 2-10
    assert_int_equal(o.accounted_ns, 68);
    assert_int_equal(o.step_ns, 90);
    assert_int_equal(o.phase_compute_ns[PTB_PHASE_FORWARD], 20);
    assert_int_equal(o.phase_compute_ns[PTB_PHASE_BACKWARD], 10);
    assert_int_equal(o.phase_compute_ns[PTB_PHASE_OPTIMIZER], 10);
    assert_int_equal(o.phase[PTB_PHASE_BACKWARD].communication_ns, 28);
    assert_int_equal(o.phase[PTB_PHASE_BACKWARD].overlapped_ns, 18);
    assert_int_equal(o.phase[PTB_PHASE_BACKWARD].exposed_ns, 10);
    assert_int_equal(o.axis[1].communication_ns, 28);
    assert_int_equal(o.axis[2].communication_ns, 15);
    assert_int_equal(o.axis[2].exposed_ns, 10);
    assert_int_equal(o.axis[0].communication_ns, 0);
}

static void test_no_communication(void **state)
{
    (void)state;
    ptb_span one = span(PTB_SPAN_COMPUTE, PTB_PHASE_FORWARD, 0, 5, 9);
    ptb_overlap o;
    assert_int_equal(ptb_overlap_measure(&one, 1, NULL, &o), PTB_OK);
    assert_true(isnan(o.overlap)); // undefined, not 0 and not 100 %
    assert_int_equal(o.exposed_ns, 0);
    assert_int_equal(o.idle_ns, 0);
    assert_int_equal(ptb_overlap_measure(NULL, 0, NULL, &o), PTB_OK);
    assert_true(isnan(o.overlap));
    assert_int_equal(o.span_ns, 0);
}

static void test_filter(void **state)
{
    (void)state;
    ptb_span spans[4];
    for (int i = 0; i < 4; i++) {
        spans[i] = span(PTB_SPAN_COMM, PTB_PHASE_BACKWARD, 1, 10 * i, 10 * i + 1 + i);
        spans[i].rank = i & 1;
        spans[i].correlation = (uint64_t)i / 2;
    }
    ptb_overlap o;
    ptb_overlap_filter step = {.one_correlation = true, .correlation = 1};
    assert_int_equal(ptb_overlap_measure(spans, 4, &step, &o), PTB_OK);
    assert_int_equal(o.communication_ns, 3 + 4);
    assert_true(o.overlap == 0); // communication without compute: all exposed
    ptb_overlap_filter both = {true, 0, true, 1};
    assert_int_equal(ptb_overlap_measure(spans, 4, &both, &o), PTB_OK);
    assert_int_equal(o.communication_ns, 3);
    assert_int_equal(o.spans, 1);
}

static void test_backward_span(void **state)
{
    (void)state;
    ptb_span wrong = span(PTB_SPAN_COMM, PTB_PHASE_NONE, 0, 9, 5);
    ptb_overlap o = {.span_ns = 77};
    assert_int_equal(ptb_overlap_measure(&wrong, 1, NULL, &o), PTB_INTERNAL);
    assert_int_equal(o.span_ns, 77);
}

enum { HORIZON = 300 };

static void test_random(void **state)
{
    (void)state;
    for (uint64_t round = 0; round < 200; round++) {
        ptb_span spans[40];
        bool is[PTB_SPAN_KIND_COUNT][HORIZON] = {0};
        size_t count = ptb_random_u64(1, round, 1000) % 40 + 1;
        for (size_t i = 0; i < count; i++) {
            uint64_t bits = ptb_random_u64(1, round, i);
            int kind = (int)(bits % PTB_SPAN_KIND_COUNT);
            int64_t begin = (int64_t)(bits >> 8 & 0xff), length = (int64_t)(bits >> 16 & 0x1f);
            spans[i] = span((ptb_span_kind)kind, PTB_PHASE_NONE, 0, begin, begin + length);
            for (int64_t t = begin; t < begin + length; t++)
                is[kind][t] = true;
        }
        int64_t c = 0, k = 0, both = 0, busy = 0, first = -1, last = -1, waiting = 0;
        for (int t = 0; t < HORIZON; t++) {
            bool comm = is[PTB_SPAN_COMM][t], compute = is[PTB_SPAN_COMPUTE][t] || is[PTB_SPAN_OPTIMIZER][t];
            c += comm;
            k += compute;
            both += comm && compute;
            waiting += is[PTB_SPAN_INPUT][t] && !comm && !compute;
            if (!comm && !compute && !is[PTB_SPAN_COPY][t])
                continue;
            busy++;
            first = first < 0 ? t : first;
            last = t + 1;
        }
        ptb_overlap o;
        assert_int_equal(ptb_overlap_measure(spans, count, NULL, &o), PTB_OK);
        assert_int_equal(o.communication_ns, c);
        assert_int_equal(o.compute_ns, k);
        assert_int_equal(o.overlapped_ns, both);
        assert_int_equal(o.exposed_ns, c - both);
        assert_true(c ? fabs(o.overlap - (double)both / (double)c) < 1e-12 : isnan(o.overlap));
        assert_int_equal(o.busy_ns, busy);
        assert_int_equal(o.span_ns, last - first);
        assert_int_equal(o.idle_ns, last - first - busy);
        assert_int_equal(o.input_exposed_ns, waiting);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_hand), cmocka_unit_test(test_no_communication),
        cmocka_unit_test(test_filter),  cmocka_unit_test(test_backward_span),
        cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
