// Capture through CUPTI on the simulated device: every kernel and copy becomes a span of the work that was
// open when it was enqueued, on the trace's clock, and what a graph runs of the one that was open when it was
// captured; works of two streams may overlap; what is enqueued outside any work is counted; records that find
// no place are counted as dropped; a CUPTI that cannot be used, or not all of it, says why and is left as it
// was.
#include "core/clock.h"
#include "core/device.h"
#include "profiler/capture.h"
#include "profiler/cupti_api.h"
#include "profiler/cupti_buffers.h"
#include "strategies/mark.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BYTES = 1 << 16 };
enum { NODES = 5 }; // of the graph below that are work

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

// Settings of the simulated device beside those that it began with; "": none.
static void set(const char *settings)
{
    char all[64];
    snprintf(all, sizeof all, "devices=8%s%s", settings[0] ? "," : "", settings);
    setenv("PTB_SIM", all, 1);
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

static ptb_status communicate(fixture *f, const ptb_span *span)
{
    ptb_mark mark;
    PTB_TRY(ptb_mark_open(&mark, f->trace, f->communication, span));
    kernel(f, f->communication);
    kernel(f, f->communication);
    return ptb_mark_close(&mark, f->trace, f->communication);
}

// Their spans have the operation's name, so the kernels' are kept beside them: each once, by operation.
static void kernels_of_communication_are_named(void **state)
{
    fixture *f = *state;
    ptb_span reduce = work(PTB_SPAN_COMM, PTB_PHASE_BACKWARD, 9, 1, "all_reduce"), larger = reduce;
    const char *names[2] = {NULL, NULL};
    larger.bytes = 2000;
    assert_int_equal(ptb_capture_start(f->capture), PTB_OK);
    for (int i = 0; i < 3; i++)
        assert_int_equal(communicate(f, &reduce), PTB_OK);
    assert_int_equal(communicate(f, &larger), PTB_OK);
    idle(f);
    assert_int_equal(ptb_capture_stop(f->capture), PTB_OK);
    assert_int_equal(f->capture->kernel_count, 2);
    assert_int_equal(ptb_capture_kernels(f->capture, "all_reduce", 1, 1000, names, 2), 1);
    assert_string_equal(names[0], "fill_kernel");
    assert_int_equal(ptb_capture_kernels(f->capture, "all_reduce", 1, 2000, names, 2), 1);
    assert_int_equal(ptb_capture_kernels(f->capture, "all_reduce", 2, 1000, names, 2), 0);
    assert_int_equal(ptb_capture_kernels(f->capture, "all_reduce", 1, 3000, names, 2), 0);
    assert_int_equal(ptb_capture_kernels(f->capture, "all_reduce.loss", 1, 1000, names, 2), 0);
    // Where records are missing, not all kernels are known.
    f->capture->stats.dropped = 1;
    assert_int_equal(ptb_capture_kernels(f->capture, "all_reduce", 1, 1000, names, 2), 0);
    f->capture->stats.dropped = 0;
    f->capture->stats.unattributed_nodes = 1;
    assert_int_equal(ptb_capture_kernels(f->capture, "all_reduce", 1, 1000, names, 2), 0);
    f->capture->stats.unattributed_nodes = 0;
    // Several kernels, more than are asked for; and then more operations than there is room for.
    ptb_capture_note_kernel(f->capture, &reduce, "another");
    ptb_capture_note_kernel(f->capture, &reduce, "another");
    assert_int_equal(ptb_capture_kernels(f->capture, "all_reduce", 1, 1000, names, 1), 2);
    for (uint64_t i = 0; i < PTB_CAPTURE_KERNELS; i++) {
        reduce.bytes = 5000 + i;
        ptb_capture_note_kernel(f->capture, &reduce, "one too many");
    }
    assert_int_equal(f->capture->kernel_count, PTB_CAPTURE_KERNELS);
    assert_int_equal(ptb_capture_kernels(f->capture, "all_reduce", 1, 1000, names, 2), 0);
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

// More records than all buffers in stock hold (cupti_buffers.c: 6 of 4 MiB).
static void many_records_find_place(void **state)
{
    enum { STOCK_BYTES = 6 * 4 << 20, KERNELS = 40 };
    const size_t each = sizeof(CUpti_ActivityExternalCorrelation) + sizeof(CUpti_ActivityAPI) +
                        sizeof(CUpti_ActivitySynchronization);
    const size_t syncs = STOCK_BYTES / each / KERNELS + 1;
    fixture *f = *state;
    ptb_mark mark;
    ptb_span forward = work(PTB_SPAN_COMPUTE, PTB_PHASE_FORWARD, 1, 0, "block.forward");
    assert_int_equal(ptb_capture_start(f->capture), PTB_OK);
    assert_int_equal(ptb_mark_open(&mark, f->trace, f->compute, &forward), PTB_OK);
    for (int i = 0; i < KERNELS; i++) {
        for (size_t k = 0; k < syncs; k++)
            assert_int_equal(ptb_stream_sync(f->communication), PTB_OK);
        kernel(f, f->compute);
    }
    assert_int_equal(ptb_mark_close(&mark, f->trace, f->compute), PTB_OK);
    idle(f);
    assert_int_equal(ptb_capture_stop(f->capture), PTB_OK);
    assert_int_equal(f->capture->stats.kernels, KERNELS);
    assert_int_equal(f->capture->stats.unattributed, 0);
    assert_true(f->capture->stats.syncs >= KERNELS * syncs);
    assert_int_equal(f->capture->stats.dropped, 0);
}

static void records_without_a_place_are_counted(void **state)
{
    fixture *f = *state;
    ptb_mark mark;
    ptb_span forward = work(PTB_SPAN_COMPUTE, PTB_PHASE_FORWARD, 1, 0, "block.forward");
    set("cupti_room=20");
    assert_int_equal(ptb_capture_start(f->capture), PTB_OK);
    assert_int_equal(ptb_mark_open(&mark, f->trace, f->compute, &forward), PTB_OK);
    for (int i = 0; i < 30; i++) // of three records each, one of them the kernel itself
        kernel(f, f->compute);
    assert_int_equal(ptb_mark_close(&mark, f->trace, f->compute), PTB_OK);
    idle(f);
    assert_int_equal(ptb_capture_stop(f->capture), PTB_OK);
    set("");
    assert_in_range(f->capture->stats.dropped, 70, 80); // the last ones wait for streams, or say what it cost
    uint64_t dropped = f->capture->stats.dropped;
    assert_int_equal(ptb_capture_start(f->capture), PTB_OK);
    kernel(f, f->compute);
    idle(f);
    assert_int_equal(ptb_capture_stop(f->capture), PTB_OK);
    assert_int_equal(f->capture->stats.dropped, dropped);
}

static void waiting_is_told(void **state)
{
    fixture *f = *state;
    ptb_mark mark;
    ptb_span forward = work(PTB_SPAN_COMPUTE, PTB_PHASE_FORWARD, 1, 0, "block.forward");
    int64_t begin_ns = ptb_clock_ns();
    assert_int_equal(ptb_capture_start(f->capture), PTB_OK);
    assert_int_equal(ptb_mark_open(&mark, f->trace, f->compute, &forward), PTB_OK);
    kernel(f, f->compute);
    assert_int_equal(ptb_stream_sync(f->compute), PTB_OK);
    assert_int_equal(ptb_mark_close(&mark, f->trace, f->compute), PTB_OK);
    int64_t end_ns = ptb_clock_ns();
    assert_int_equal(ptb_capture_stop(f->capture), PTB_OK);
    assert_int_equal(f->capture->stats.syncs, 1);
    assert_int_equal(spans_like(f, PTB_SPAN_SYNC, -1), 1);
    size_t count, dropped, work_ns = 0;
    const ptb_span *s = ptb_trace_spans(f->trace, &count, &dropped), *kernel = NULL, *wait = NULL;
    for (size_t i = 0; i < count; i++) {
        kernel = s[i].kind == PTB_SPAN_COMPUTE ? &s[i] : kernel;
        wait = s[i].kind == PTB_SPAN_SYNC ? &s[i] : wait;
        work_ns += s[i].kind == PTB_SPAN_COMPUTE;
    }
    assert_int_equal(work_ns, 1); // waiting is no compute
    assert_non_null(wait);
    assert_int_equal(wait->correlation, 17);
    assert_true(wait->begin_ns >= begin_ns && wait->end_ns <= end_ns);
    assert_true(wait->end_ns >= kernel->end_ns); // until it was done
    assert_string_equal(wait->name, "synchronise");
}

static void copies_between_devices_are_told(void **state)
{
    fixture *f = *state;
    char reason[PTB_PEER_REASON];
    void *peer;
    ptb_mark mark;
    ptb_span send = work(PTB_SPAN_COMM, PTB_PHASE_BACKWARD, 7, 3, "send");
    assert_int_equal(f->device->ops->alloc_peer(f->device, 1, BYTES, reason, &peer), PTB_OK);
    assert_int_equal(ptb_capture_start(f->capture), PTB_OK);
    assert_int_equal(ptb_stream_copy(f->compute, peer, f->memory, BYTES), PTB_OK);
    assert_int_equal(ptb_mark_open(&mark, f->trace, f->compute, &send), PTB_OK);
    assert_int_equal(ptb_stream_copy(f->compute, f->memory, peer, BYTES), PTB_OK);
    assert_int_equal(ptb_mark_close(&mark, f->trace, f->compute), PTB_OK);
    idle(f);
    assert_int_equal(ptb_capture_stop(f->capture), PTB_OK);
    f->device->ops->free_peer(f->device, 1, peer);
    assert_int_equal(f->capture->stats.copies, 2);
    assert_int_equal(spans_like(f, PTB_SPAN_COPY, -1), 1);
    assert_int_equal(spans_like(f, PTB_SPAN_COMM, 7), 1); // a copy may be communication
    size_t count, dropped;
    const ptb_span *s = ptb_trace_spans(f->trace, &count, &dropped);
    for (size_t i = 0; i < count; i++) {
        if (s[i].kind == PTB_SPAN_COPY) {
            assert_string_equal(s[i].name, "copy between devices");
            assert_int_equal(s[i].bytes, BYTES);
        }
        if (s[i].kind == PTB_SPAN_COMM) {
            assert_int_equal(s[i].axis, 3);
            assert_int_equal(s[i].bytes, 1000);
        }
    }
}

// A graph of two works of compute, a kernel in one and a kernel and a set in the other, and a communication
// of two kernels.
static ptb_graph *record(fixture *f)
{
    ptb_mark first, second, communication;
    ptb_span forward = work(PTB_SPAN_COMPUTE, PTB_PHASE_FORWARD, 5, 0, "block.forward");
    ptb_span backward = work(PTB_SPAN_COMPUTE, PTB_PHASE_BACKWARD, 6, 0, "block.backward");
    ptb_span reduce = work(PTB_SPAN_COMM, PTB_PHASE_BACKWARD, 9, 1, "all_reduce");
    ptb_event *forked, *joined;
    ptb_graph *graph;
    assert_int_equal(ptb_event_new(f->device, &forked), PTB_OK);
    assert_int_equal(ptb_event_new(f->device, &joined), PTB_OK);
    assert_int_equal(ptb_graph_begin(f->compute), PTB_OK);
    assert_int_equal(ptb_mark_open(&first, f->trace, f->compute, &forward), PTB_OK);
    kernel(f, f->compute);
    assert_int_equal(ptb_mark_close(&first, f->trace, f->compute), PTB_OK);
    assert_int_equal(ptb_event_record(forked, f->compute), PTB_OK);
    assert_int_equal(ptb_event_wait(f->communication, forked), PTB_OK);
    assert_int_equal(ptb_mark_open(&second, f->trace, f->compute, &backward), PTB_OK);
    assert_int_equal(ptb_mark_open(&communication, f->trace, f->communication, &reduce), PTB_OK);
    kernel(f, f->communication);
    kernel(f, f->communication);
    assert_int_equal(ptb_mark_close(&communication, f->trace, f->communication), PTB_OK);
    kernel(f, f->compute);
    assert_int_equal(ptb_stream_set(f->compute, f->memory, 0, BYTES), PTB_OK);
    assert_int_equal(ptb_mark_close(&second, f->trace, f->compute), PTB_OK);
    assert_int_equal(ptb_event_record(joined, f->communication), PTB_OK);
    assert_int_equal(ptb_event_wait(f->compute, joined), PTB_OK);
    assert_int_equal(ptb_graph_end(f->compute, &graph), PTB_OK);
    ptb_event_free(forked);
    ptb_event_free(joined);
    return graph;
}

// In steps first, first + 1 and so on, in one recording.
static void launch(fixture *f, ptb_graph *graph, uint64_t first, int times)
{
    assert_int_equal(ptb_capture_start(f->capture), PTB_OK);
    for (int i = 0; i < times; i++) {
        ptb_mark mark;
        ptb_span step = work(PTB_SPAN_COMPUTE, PTB_PHASE_NONE, -1, 0, "graph");
        step.correlation = first + (uint64_t)i;
        assert_int_equal(ptb_mark_open(&mark, f->trace, f->compute, &step), PTB_OK);
        assert_int_equal(ptb_graph_launch(graph, f->compute), PTB_OK);
        assert_int_equal(ptb_mark_close(&mark, f->trace, f->compute), PTB_OK);
    }
    idle(f);
    assert_int_equal(ptb_capture_stop(f->capture), PTB_OK);
}

static void a_graph_belongs_to_what_was_captured(void **state)
{
    enum { STEP = 40, TIMES = 3 };
    fixture *f = *state;
    assert_int_equal(ptb_capture_start(f->capture), PTB_OK);
    ptb_graph *graph = record(f);
    assert_int_equal(ptb_capture_stop(f->capture), PTB_OK);
    assert_int_equal(f->capture->stats.graph_nodes, 0); // nothing has run
    ptb_trace_clear(f->trace);
    launch(f, graph, STEP, 1);
    launch(f, graph, STEP + 1, TIMES - 1);
    ptb_graph_free(graph);
    assert_int_equal(f->capture->stats.graph_nodes, NODES * TIMES);
    assert_int_equal(f->capture->stats.unattributed, 0);
    assert_int_equal(f->capture->stats.unattributed_nodes, 0);
    assert_int_equal(spans_like(f, PTB_SPAN_COMPUTE, 5), TIMES);
    assert_int_equal(spans_like(f, PTB_SPAN_COMPUTE, 6), 2 * TIMES);
    assert_int_equal(spans_like(f, PTB_SPAN_COMM, 9), 2 * TIMES);
    size_t count, dropped;
    const ptb_span *s = ptb_trace_spans(f->trace, &count, &dropped);
    uint64_t bytes = 0, of_step[TIMES] = {0};
    for (size_t i = 0; i < count; i++) {
        if (s[i].kind == PTB_SPAN_SYNC)
            continue;
        assert_in_range(s[i].correlation, STEP, STEP + TIMES - 1); // the launch's, not the capture's
        of_step[s[i].correlation - STEP]++;
        assert_int_equal(s[i].phase, s[i].unit == 5 ? PTB_PHASE_FORWARD : PTB_PHASE_BACKWARD);
        if (s[i].kind != PTB_SPAN_COMM)
            continue;
        assert_string_equal(s[i].name, "all_reduce");
        assert_int_equal(s[i].axis, 1);
        assert_int_equal(s[i].stream, 2);
        bytes += s[i].bytes;
    }
    for (int i = 0; i < TIMES; i++)
        assert_int_equal(of_step[i], NODES);
    assert_int_equal(bytes, 1000 * TIMES); // once a launch, whatever the number of kernels
}

static void a_graph_that_nobody_saw_belongs_to_nobody(void **state)
{
    fixture *f = *state;
    ptb_graph *graph = record(f);
    launch(f, graph, 40, 1);
    assert_int_equal(f->capture->stats.graph_nodes, NODES);
    assert_int_equal(f->capture->stats.unattributed_nodes, NODES);
    assert_int_equal(spans_like(f, PTB_SPAN_COMM, 9), 0);
    assert_string_equal(f->capture->nodes_cannot, "");
    ptb_graph_free(graph);
    set("cupti_subscribed=1"); // and where another tool has the callbacks
    ptb_capture_close(f->capture);
    assert_int_equal(ptb_capture_open("cuda", f->trace, &f->capture), PTB_OK);
    assert_int_equal(ptb_capture_start(f->capture), PTB_OK);
    graph = record(f);
    assert_int_equal(ptb_capture_stop(f->capture), PTB_OK);
    launch(f, graph, 40, 1);
    set("");
    assert_int_equal(f->capture->stats.unattributed_nodes, NODES);
    assert_non_null(strstr(f->capture->nodes_cannot, "cuptiSubscribe"));
    assert_string_equal(f->capture->cannot, "");
    ptb_graph_free(graph);
}

static ptb_status count_record(void *context, const void *record)
{
    (void)record;
    ++*(int *)context;
    return PTB_OK;
}

// Each kind once: those before it are on when it is refused.
static void a_kind_that_is_refused_leaves_nothing_on(void **state)
{
    static const int kinds[] = {
        CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION,
        CUPTI_ACTIVITY_KIND_RUNTIME,
        CUPTI_ACTIVITY_KIND_DRIVER,
        CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
        CUPTI_ACTIVITY_KIND_MEMCPY,
        CUPTI_ACTIVITY_KIND_MEMCPY2,
        CUPTI_ACTIVITY_KIND_MEMSET,
        CUPTI_ACTIVITY_KIND_SYNCHRONIZATION,
        CUPTI_ACTIVITY_KIND_OVERHEAD,
    };
    static const struct {
        CUptiResult error;
        const char *remedy;
    } errors[] = {{CUPTI_ERROR_NOT_COMPATIBLE, "run without that"},
                  {CUPTI_ERROR_INSUFFICIENT_PRIVILEGES, "NVreg_RestrictProfilingToAdminUsers=0"},
                  {CUPTI_ERROR_INVALID_KIND, "CUDA 12.4 or later"}};
    fixture *f = *state;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const CUptiResult error = errors[i % 3].error;
        char settings[48], code[8];
        snprintf(settings, sizeof settings, "cupti_refuse=%d,cupti_error=%d", kinds[i], (int)error);
        snprintf(code, sizeof code, "(%d)", (int)error);
        set(settings);
        assert_int_equal(ptb_capture_start(f->capture), PTB_UNSUPPORTED);
        set("");
        assert_non_null(strstr(f->capture->cannot, "cuptiActivityEnable"));
        assert_non_null(strstr(f->capture->cannot, code));
        assert_non_null(strstr(f->capture->cannot, errors[i % 3].remedy));
        assert_int_equal(ptb_capture_start(f->capture), PTB_UNSUPPORTED); // and stays as it is
        int records = 0;
        kernel(f, f->compute);
        idle(f);
        assert_int_equal(ptb_cupti_functions()->ActivityFlushAll(0), CUPTI_SUCCESS);
        assert_int_equal(ptb_cupti_buffers_read(count_record, &records), PTB_OK);
        assert_int_equal(records, 0);
        ptb_capture_close(f->capture);
        assert_int_equal(ptb_capture_open("cuda", f->trace, &f->capture), PTB_OK);
    }
}

static void a_cupti_that_is_taken_says_so(void **state)
{
    fixture *f = *state;
    ptb_capture_close(f->capture);
    set("cupti_busy=1");
    assert_int_equal(ptb_capture_open("cuda", f->trace, &f->capture), PTB_OK);
    assert_string_equal(f->capture->cannot, ""); // CUPTI is left alone until something is to be recorded
    assert_int_equal(ptb_capture_start(f->capture), PTB_UNSUPPORTED);
    set("");
    assert_non_null(strstr(f->capture->cannot, "another profiler"));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_all, close_all)
    const struct CMUnitTest tests[] = {
        TEST(kernels_belong_to_their_work),
        TEST(kernels_of_communication_are_named),
        TEST(copies_and_sets_are_told),
        TEST(nothing_is_kept_between_recordings),
        TEST(many_records_find_place),
        TEST(records_without_a_place_are_counted),
        TEST(waiting_is_told),
        TEST(copies_between_devices_are_told),
        TEST(a_graph_belongs_to_what_was_captured),
        TEST(a_graph_that_nobody_saw_belongs_to_nobody),
        TEST(a_kind_that_is_refused_leaves_nothing_on),
        TEST(a_cupti_that_is_taken_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
