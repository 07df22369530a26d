// Capture through CUPTI on the simulated device: every kernel and copy becomes a span of the work that was
// open when it was enqueued, on the trace's clock; works of two streams may overlap; what is enqueued outside
// any work is counted; records that find no place are counted as dropped.
#include "core/clock.h"
#include "core/device.h"
#include "profiler/capture.h"
#include "strategies/mark.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BYTES = 1 << 16 };

typedef struct {
    ptb_device *device;
    ptb_stream *compute, *communication;
    ptb_trace *trace;
    ptb_capture *capture;
    void *memory;
} fixture;

static int open_all(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    assert_int_equal(ptb_device_open("cuda", 0, &f->device), PTB_OK);
    assert_int_equal(ptb_stream_new(f->device, PTB_STREAM_WORKER, 1, &f->compute), PTB_OK);
    assert_int_equal(ptb_stream_new(f->device, PTB_STREAM_URGENT, 2, &f->communication), PTB_OK);
    assert_int_equal(ptb_device_alloc(f->device, PTB_MEMORY_WORKSPACE, BYTES, &f->memory), PTB_OK);
    assert_int_equal(ptb_trace_new(1000, 3, &f->trace), PTB_OK);
    assert_int_equal(ptb_capture_open("cuda", f->trace, &f->capture), PTB_OK);
    assert_non_null(f->capture);
    assert_string_equal(f->capture->cannot, "");
    *state = f;
    return 0;
}

static int close_all(void **state)
{
    fixture *f = *state;
    ptb_capture_close(f->capture);
    assert_null(ptb_trace_capture(f->trace));
    ptb_trace_free(f->trace);
    ptb_device_free(f->device, f->memory);
    ptb_stream_free(f->communication);
    ptb_stream_free(f->compute);
    ptb_device_close(f->device);
    free(f);
    return 0;
}

static ptb_span work(ptb_span_kind kind, ptb_phase phase, int unit, int axis, const char *name)
{
    ptb_span s = {
        .kind = (uint8_t)kind, .phase = (uint8_t)phase, .unit = unit, .microbatch = 4, .axis = axis};
    s.stream = (int16_t)(kind == PTB_SPAN_COMM ? 2 : 1);
    s.correlation = 17;
    s.bytes = kind == PTB_SPAN_COMM ? 1000 : 0;
    snprintf(s.name, sizeof s.name, "%s", name);
    return s;
}

// One kernel of the device on a stream.
static void kernel(fixture *f, ptb_stream *stream)
{
    ptb_pattern pattern;
    ptb_pattern_init(&pattern, 1, PTB_F32, PTB_SUM, 1);
    assert_int_equal(f->device->ops->fill(stream, &pattern, false, 0, 0, f->memory, 64), PTB_OK);
}

static void idle(fixture *f)
{
    assert_int_equal(ptb_stream_sync(f->compute), PTB_OK);
    assert_int_equal(ptb_stream_sync(f->communication), PTB_OK);
}

static size_t spans_like(const fixture *f, int kind, int unit)
{
    size_t count, dropped, found = 0;
    const ptb_span *s = ptb_trace_spans(f->trace, &count, &dropped);
    for (size_t i = 0; i < count; i++)
        found += s[i].kind == kind && s[i].unit == unit;
    return found;
}

static void kernels_belong_to_their_work(void **state)
{
    fixture *f = *state;
    ptb_mark compute, communication;
    ptb_span forward = work(PTB_SPAN_COMPUTE, PTB_PHASE_FORWARD, 5, 0, "block.forward");
    ptb_span reduce = work(PTB_SPAN_COMM, PTB_PHASE_BACKWARD, 9, 1, "all_reduce");
    int64_t begin_ns = ptb_clock_ns();
    assert_int_equal(ptb_capture_start(f->capture), PTB_OK);
    // Overlapping works: the one opened last gets what is enqueued, and they end in the order in which they
    // began.
    assert_int_equal(ptb_mark_open(&compute, f->trace, f->compute, &forward), PTB_OK);
    kernel(f, f->compute);
    assert_int_equal(ptb_mark_open(&communication, f->trace, f->communication, &reduce), PTB_OK);
    kernel(f, f->communication);
    kernel(f, f->communication);
    assert_int_equal(ptb_mark_close(&compute, f->trace, f->compute), PTB_OK);
    kernel(f, f->communication);
    assert_int_equal(ptb_mark_close(&communication, f->trace, f->communication), PTB_OK);
    kernel(f, f->compute); // in no work
    idle(f);
    int64_t end_ns = ptb_clock_ns();
    assert_int_equal(ptb_capture_stop(f->capture), PTB_OK);

    assert_int_equal(spans_like(f, PTB_SPAN_COMPUTE, 5), 1);
    assert_int_equal(spans_like(f, PTB_SPAN_COMM, 9), 3);
    assert_int_equal(spans_like(f, PTB_SPAN_COMPUTE, -1), 1);
    assert_int_equal(f->capture->stats.kernels, 5);
    assert_int_equal(f->capture->stats.unattributed, 1);
    assert_int_equal(f->capture->stats.dropped, 0);
    size_t count, dropped;
    const ptb_span *s = ptb_trace_spans(f->trace, &count, &dropped);
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        assert_true(s[i].begin_ns >= begin_ns && s[i].end_ns <= end_ns && s[i].begin_ns <= s[i].end_ns);
        assert_int_equal(s[i].rank, 3);
        assert_int_equal(s[i].correlation, 17);
        if (s[i].kind != PTB_SPAN_COMM)
            continue;
        assert_string_equal(s[i].name, "all_reduce");
        assert_int_equal(s[i].axis, 1);
        assert_int_equal(s[i].phase, PTB_PHASE_BACKWARD);
        assert_int_equal(s[i].microbatch, 4);
        assert_int_equal(s[i].stream, 2);
        bytes += s[i].bytes;
    }
    assert_int_equal(bytes, 1000); // once, whatever the number of kernels
}

static void copies_and_sets_are_told(void **state)
{
    fixture *f = *state;
    ptb_mark mark;
    ptb_span forward = work(PTB_SPAN_COMPUTE, PTB_PHASE_FORWARD, 2, 0, "batch");
    void *host;
    assert_int_equal(ptb_device_alloc_host(f->device, BYTES, &host), PTB_OK);
    assert_int_equal(ptb_capture_start(f->capture), PTB_OK);
    assert_int_equal(ptb_mark_open(&mark, f->trace, f->compute, &forward), PTB_OK);
    assert_int_equal(ptb_stream_copy(f->compute, f->memory, host, BYTES), PTB_OK);
    assert_int_equal(ptb_stream_set(f->compute, f->memory, 0, BYTES), PTB_OK);
    assert_int_equal(ptb_mark_close(&mark, f->trace, f->compute), PTB_OK);
    idle(f);
    assert_int_equal(ptb_capture_stop(f->capture), PTB_OK);
    assert_int_equal(spans_like(f, PTB_SPAN_COPY, 2), 1);
    assert_int_equal(spans_like(f, PTB_SPAN_COMPUTE, 2), 1);
    assert_int_equal(f->capture->stats.copies, 1);
    assert_int_equal(f->capture->stats.sets, 1);
    size_t count, dropped;
    const ptb_span *s = ptb_trace_spans(f->trace, &count, &dropped);
    for (size_t i = 0; i < count; i++)
        if (s[i].unit == 2)
            assert_int_equal(s[i].bytes, BYTES);
    ptb_device_free_host(f->device, host);
}

static void nothing_is_kept_between_recordings(void **state)
{
    fixture *f = *state;
    ptb_mark mark;
    ptb_span forward = work(PTB_SPAN_COMPUTE, PTB_PHASE_FORWARD, 1, 0, "block.forward");
    assert_int_equal(ptb_mark_open(&mark, f->trace, f->compute, &forward), PTB_OK);
    kernel(f, f->compute);
    assert_int_equal(ptb_mark_close(&mark, f->trace, f->compute), PTB_OK);
    idle(f);
    for (int i = 0; i < 3; i++) {
        ptb_trace_clear(f->trace);
        assert_int_equal(ptb_capture_start(f->capture), PTB_OK);
        assert_int_equal(ptb_mark_open(&mark, f->trace, f->compute, &forward), PTB_OK);
        kernel(f, f->compute);
        assert_int_equal(ptb_mark_close(&mark, f->trace, f->compute), PTB_OK);
        idle(f);
        assert_int_equal(ptb_capture_stop(f->capture), PTB_OK);
        assert_int_equal(spans_like(f, PTB_SPAN_COMPUTE, 1), 1);
    }
    assert_int_equal(f->capture->stats.kernels, 3);
}

// More records than a buffer holds, and than there are buffers in stock.
static void many_records_find_place(void **state)
{
    fixture *f = *state;
    ptb_mark mark;
    ptb_span forward = work(PTB_SPAN_COMPUTE, PTB_PHASE_FORWARD, 1, 0, "block.forward");
    assert_int_equal(ptb_capture_start(f->capture), PTB_OK);
    for (int i = 0; i < 500; i++) {
        assert_int_equal(ptb_mark_open(&mark, f->trace, f->compute, &forward), PTB_OK);
        kernel(f, f->compute);
        assert_int_equal(ptb_mark_close(&mark, f->trace, f->compute), PTB_OK);
    }
    idle(f);
    assert_int_equal(ptb_capture_stop(f->capture), PTB_OK);
    assert_int_equal(spans_like(f, PTB_SPAN_COMPUTE, 1), 500);
    assert_int_equal(f->capture->stats.dropped, 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_all, close_all)
    const struct CMUnitTest tests[] = {TEST(kernels_belong_to_their_work), TEST(copies_and_sets_are_told),
                                       TEST(nothing_is_kept_between_recordings),
                                       TEST(many_records_find_place)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
