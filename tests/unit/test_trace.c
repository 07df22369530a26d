// Trace: many threads record at once; what does not fit is counted, nothing is lost silently. Clock: sane and
// monotonic.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/clock.h"
#include "core/trace.h"

#include <pthread.h>
#include <string.h>

enum { THREADS = 4, SPANS = 1000 };

static void *record(void *arg)
{
    ptb_trace *trace = arg;
    static const ptb_span span = {.begin_ns = 1, .end_ns = 2, .unit = -1, .bytes = 8, .name = "all_reduce"};
    for (int i = 0; i < SPANS; i++)
        ptb_trace_record(trace, &span);
    return NULL;
}

static void record_from_threads(ptb_trace *trace)
{
    pthread_t threads[THREADS];
    for (int t = 0; t < THREADS; t++)
        assert_int_equal(pthread_create(&threads[t], NULL, record, trace), 0);
    for (int t = 0; t < THREADS; t++)
        pthread_join(threads[t], NULL);
}

static void test_threads_and_drops(void **state)
{
    (void)state;
    ptb_trace *trace;
    assert_int_equal(ptb_trace_new(THREADS * SPANS + 10, 3, &trace), PTB_OK);
    size_t count, dropped;
    for (int round = 0; round < 2; round++) {
        record_from_threads(trace);
        const ptb_span *spans = ptb_trace_spans(trace, &count, &dropped);
        assert_int_equal(count, round == 0 ? THREADS * SPANS : THREADS * SPANS + 10);
        assert_int_equal(dropped, round == 0 ? 0 : THREADS * SPANS - 10);
        for (size_t i = 0; i < count; i++)
            assert_true(spans[i].bytes == 8 && strcmp(spans[i].name, "all_reduce") == 0);
    }
    ptb_trace_clear(trace);
    ptb_trace_spans(trace, &count, &dropped);
    assert_true(count == 0 && dropped == 0 && ptb_trace_rank(trace) == 3);
    ptb_trace_free(trace);
    ptb_trace_record(NULL, &(ptb_span){0}); // recording is off
}

static void test_clock(void **state)
{
    (void)state;
    int64_t last = ptb_clock_ns();
    for (int i = 0; i < 1000; i++) {
        int64_t now = ptb_clock_ns();
        assert_true(now >= last);
        last = now;
    }
    ptb_clock_quality quality = ptb_clock_measure();
    assert_true(quality.resolution_ns > 0 && quality.overhead_ns > 0);
    char stamp[24];
    ptb_clock_format_utc(951782400.9, stamp);
    assert_string_equal(stamp, "2000-02-29T00:00:00Z");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_threads_and_drops),
                                       cmocka_unit_test(test_clock)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
