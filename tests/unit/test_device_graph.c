// Graphs of the CUDA device: what is recorded does not run, and each launch runs it all, in the order of its
// streams and events, after what was recorded outside. Skipped where there is no device `cuda` or no GPU.
#include "core/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { SKIPPED = 77, BYTES = 1 << 20 };

typedef struct {
    ptb_device *device;
    ptb_stream *a, *b, *outside;
    ptb_event *to_b, *to_a, *begun;
    unsigned char *sum, *one; // [BYTES] on the device; one holds what is added
    unsigned char *copy;      // [BYTES] pinned, written within the graph
    unsigned char *seen;      // [BYTES] pinned
} fixture;

static void *new_memory(ptb_device *device)
{
    void *memory;
    assert_int_equal(ptb_device_alloc(device, PTB_MEMORY_WORKSPACE, BYTES, &memory), PTB_OK);
    return memory;
}

static void *new_pinned(ptb_device *device)
{
    void *memory;
    assert_int_equal(ptb_device_alloc_host(device, BYTES, &memory), PTB_OK);
    return memory;
}

static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    assert_int_equal(ptb_device_open("cuda", 0, &f->device), PTB_OK);
    assert_int_equal(ptb_stream_new(f->device, PTB_STREAM_WORKER, 0, &f->a), PTB_OK);
    assert_int_equal(ptb_stream_new(f->device, PTB_STREAM_URGENT, 1, &f->b), PTB_OK);
    assert_int_equal(ptb_stream_new(f->device, PTB_STREAM_WORKER, 2, &f->outside), PTB_OK);
    ptb_event **events[] = {&f->to_b, &f->to_a, &f->begun};
    for (int i = 0; i < 3; i++)
        assert_int_equal(ptb_event_new(f->device, events[i]), PTB_OK);
    f->sum = new_memory(f->device);
    f->one = new_memory(f->device);
    f->copy = new_pinned(f->device);
    f->seen = new_pinned(f->device);
    ptb_stream_set(f->a, f->sum, 0, BYTES);
    ptb_stream_set(f->a, f->one, 1, BYTES);
    assert_int_equal(ptb_stream_sync(f->a), PTB_OK);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    ptb_event_free(f->to_b);
    ptb_event_free(f->to_a);
    ptb_event_free(f->begun);
    ptb_device_free(f->device, f->sum);
    ptb_device_free(f->device, f->one);
    ptb_device_free_host(f->device, f->copy);
    ptb_device_free_host(f->device, f->seen);
    ptb_stream_free(f->a);
    ptb_stream_free(f->b);
    ptb_stream_free(f->outside);
    ptb_device_close(f->device);
    free(f);
    return 0;
}

static void add(fixture *f, ptb_stream *stream)
{
    assert_int_equal(f->device->ops->reduce(stream, PTB_U8, PTB_SUM, f->sum, f->sum, f->one, BYTES), PTB_OK);
}

static void assert_all(const unsigned char *bytes, int wanted)
{
    for (size_t i = 0; i < BYTES; i++)
        if (bytes[i] != wanted)
            fail_msg("byte %zu is %d, wanted %d", i, bytes[i], wanted);
}

static void assert_sum(fixture *f, int wanted)
{
    assert_int_equal(ptb_stream_copy(f->a, f->seen, f->sum, BYTES), PTB_OK);
    assert_int_equal(ptb_stream_sync(f->a), PTB_OK);
    assert_all(f->seen, wanted);
}

// Adds once on each of two streams, one after the other, and copies the sum out.
static ptb_graph *record(fixture *f)
{
    ptb_graph *graph;
    assert_int_equal(ptb_graph_begin(f->a), PTB_OK);
    assert_int_equal(ptb_event_wait(f->a, f->begun), PTB_OK);
    add(f, f->a);
    assert_int_equal(ptb_event_record(f->to_b, f->a), PTB_OK);
    assert_int_equal(ptb_event_wait(f->b, f->to_b), PTB_OK);
    add(f, f->b);
    assert_int_equal(ptb_event_record(f->to_a, f->b), PTB_OK);
    assert_int_equal(ptb_event_wait(f->a, f->to_a), PTB_OK);
    assert_int_equal(ptb_stream_copy(f->a, f->copy, f->sum, BYTES), PTB_OK);
    assert_int_equal(ptb_graph_end(f->a, &graph), PTB_OK);
    return graph;
}

static void test_replay(void **state)
{
    fixture *f = *state;
    ptb_graph *graph = record(f);
    assert_sum(f, 0); // recorded, not run
    for (int i = 1; i <= 3; i++)
        assert_int_equal(ptb_graph_launch(graph, f->a), PTB_OK);
    assert_int_equal(ptb_stream_sync(f->a), PTB_OK);
    assert_all(f->copy, 6);
    assert_int_equal(ptb_graph_launch(graph, f->outside), PTB_OK); // on any stream
    assert_int_equal(ptb_stream_sync(f->outside), PTB_OK);
    assert_sum(f, 8);
    ptb_graph_free(graph);
    ptb_graph_free(NULL);
    add(f, f->a); // streams are as before
    add(f, f->b);
    assert_int_equal(ptb_stream_sync(f->a), PTB_OK);
    assert_int_equal(ptb_stream_sync(f->b), PTB_OK);
}

// An event recorded within marks the end of each launch, for streams and for the caller.
static void test_events_within(void **state)
{
    fixture *f = *state;
    ptb_graph *graph = record(f);
    for (int i = 1; i <= 5; i++) {
        assert_int_equal(ptb_graph_launch(graph, f->a), PTB_OK);
        assert_int_equal(ptb_event_wait(f->outside, f->to_a), PTB_OK);
        assert_int_equal(ptb_stream_copy(f->outside, f->seen, f->sum, BYTES), PTB_OK);
        assert_int_equal(ptb_stream_sync(f->outside), PTB_OK);
        assert_all(f->seen, 2 * i);
    }
    assert_int_equal(ptb_graph_launch(graph, f->a), PTB_OK);
    assert_int_equal(ptb_event_sync(f->to_a), PTB_OK);
    assert_int_equal(ptb_stream_copy(f->outside, f->seen, f->sum, BYTES), PTB_OK);
    assert_int_equal(ptb_stream_sync(f->outside), PTB_OK);
    assert_all(f->seen, 12);
    ptb_stream_sync(f->a);
    ptb_graph_free(graph);
}

// Two additions by one kernel, a copy, and events: the one name is told.
static void test_kernels(void **state)
{
    fixture *f = *state;
    ptb_graph *graph = record(f), *empty;
    const char *names[2] = {NULL, NULL};
    assert_int_equal(ptb_graph_kernels(graph, names, 2), 1);
    assert_non_null(strstr(names[0], "reduce"));
    assert_int_equal(ptb_graph_kernels(graph, names, 0), 2); // none is kept to be known again
    ptb_graph_free(graph);
    assert_int_equal(ptb_graph_begin(f->a), PTB_OK);
    assert_int_equal(ptb_stream_copy(f->a, f->copy, f->sum, BYTES), PTB_OK);
    assert_int_equal(ptb_graph_end(f->a, &empty), PTB_OK);
    assert_int_equal(ptb_graph_kernels(empty, names, 2), 0);
    ptb_graph_free(empty);
}

// A launch waits for the latest record of an event from outside.
static void test_events_outside(void **state)
{
    fixture *f = *state;
    ptb_graph *graph = record(f);
    int wanted = 0;
    for (int i = 1; i <= 5; i++) {
        for (int k = 0; k < 100; k++) // so that it takes a while
            assert_int_equal(ptb_stream_set(f->outside, f->one, 100 + k, BYTES), PTB_OK);
        assert_int_equal(ptb_stream_set(f->outside, f->one, i, BYTES), PTB_OK);
        assert_int_equal(ptb_event_record(f->begun, f->outside), PTB_OK);
        assert_int_equal(ptb_graph_launch(graph, f->a), PTB_OK);
        assert_int_equal(ptb_stream_sync(f->a), PTB_OK);
        wanted += 2 * i;
        assert_all(f->copy, wanted);
    }
    ptb_graph_free(graph);
}

static void test_refusals(void **state)
{
    fixture *f = *state;
    ptb_pattern pattern;
    ptb_expect expect = {.count = 8};
    ptb_check check = {0};
    ptb_graph *graph;
    ptb_pattern_init(&pattern, 1, PTB_F32, PTB_SUM, 2);
    assert_int_equal(ptb_graph_begin(f->a), PTB_OK);
    assert_int_equal(ptb_graph_begin(f->b), PTB_INTERNAL); // one at a time
    assert_int_equal(f->device->ops->check(f->a, &pattern, &expect, f->sum, &check), PTB_INTERNAL);
    add(f, f->a);
    assert_int_equal(ptb_graph_end(f->a, &graph), PTB_OK);
    assert_int_equal(ptb_graph_launch(graph, f->a), PTB_OK);
    assert_sum(f, 1);
    ptb_graph_free(graph);
}

// A stream that was drawn in and not joined: refused, with a message.
static void test_unjoined(void **state)
{
    fixture *f = *state;
    ptb_graph *graph = NULL;
    assert_int_equal(ptb_graph_begin(f->a), PTB_OK);
    assert_int_equal(ptb_event_record(f->to_b, f->a), PTB_OK);
    assert_int_equal(ptb_event_wait(f->b, f->to_b), PTB_OK);
    add(f, f->b);
    assert_int_equal(ptb_graph_end(f->a, &graph), PTB_UNSUPPORTED);
    assert_null(graph);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {TEST(test_replay),   TEST(test_events_within),
                                       TEST(test_kernels),  TEST(test_events_outside),
                                       TEST(test_refusals), TEST(test_unjoined)};
    ptb_device *device;
    if (!ptb_registry_find(PTB_KIND_DEVICE, "cuda") || ptb_device_open("cuda", 0, &device) != PTB_OK) {
        printf("skipped: there is no device 'cuda' here\n");
        return SKIPPED;
    }
    ptb_device_close(device);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
