// The host device: ledger, streams, events, errors. Nothing here asserts times; hangs end by the test's
// timeout.
#include "core/device.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static ptb_device *device;

static int open_device(void **state)
{
    (void)state;
    return ptb_device_open("host", 0, &device) == PTB_OK ? 0 : -1;
}

static int close_device(void **state)
{
    (void)state;
    ptb_device_close(device);
    return 0;
}

static ptb_stream *new_stream(ptb_stream_kind kind)
{
    ptb_stream *stream;
    assert_int_equal(ptb_stream_new(device, kind, 1, &stream), PTB_OK);
    return stream;
}

static ptb_event *new_event(void)
{
    ptb_event *event;
    assert_int_equal(ptb_event_new(device, &event), PTB_OK);
    return event;
}

static void test_open(void **state)
{
    (void)state;
    ptb_device *other = (ptb_device *)&device;
    assert_int_equal(ptb_device_open("hots", 0, &other), PTB_USAGE);
    assert_int_equal(ptb_device_open("host", -1, &other), PTB_USAGE);
    assert_ptr_equal(other, &device);
    assert_int_equal(ptb_device_open("host", 3, &other), PTB_OK);
    assert_false(other->simulated);
    assert_non_null(strstr(other->description, "core"));
    ptb_device_close(other);
    ptb_device_close(NULL);
}

static void test_ledger(void **state)
{
    (void)state;
    ptb_device *d;
    assert_int_equal(ptb_device_open("host", 0, &d), PTB_OK);
    char *small, *large, *none;
    assert_int_equal(ptb_device_alloc(d, PTB_MEMORY_GRADIENTS, 1000, (void **)&small), PTB_OK);
    assert_int_equal(ptb_device_alloc(d, PTB_MEMORY_GRADIENTS, (5 << 20) + 1, (void **)&large), PTB_OK);
    assert_int_equal(ptb_device_alloc(d, PTB_MEMORY_WORKSPACE, 0, (void **)&none), PTB_OK);
    assert_int_equal((uintptr_t)small % 64, 0);
    assert_int_equal((uintptr_t)large % (2 << 20), 0);
    for (size_t i = 0; i < (5 << 20) + 1; i += 4096)
        assert_int_equal(large[i], 0);
    assert_int_equal(d->used_bytes[PTB_MEMORY_GRADIENTS], (5 << 20) + 1001);
    assert_int_equal(d->used_bytes[PTB_MEMORY_PARAMETERS], 0);
    ptb_device_free(d, large);
    ptb_device_free(d, NULL);
    assert_int_equal(d->used_bytes[PTB_MEMORY_GRADIENTS], 1000);
    assert_int_equal(d->peak_bytes[PTB_MEMORY_GRADIENTS], (5 << 20) + 1001);
    ptb_device_reset_peak(d);
    assert_int_equal(d->peak_bytes[PTB_MEMORY_GRADIENTS], 1000);
    ptb_device_free(d, small);
    ptb_device_free(d, none);
    assert_int_equal(d->used_bytes[PTB_MEMORY_GRADIENTS], 0);
    void *left; // given back by close
    assert_int_equal(ptb_device_alloc(d, PTB_MEMORY_OPTIMIZER, 100, &left), PTB_OK);
    ptb_device_close(d);
}

static void test_ledger_many(void **state)
{
    (void)state;
    enum { MANY = 300 };
    void *blocks[MANY];
    for (int i = 0; i < MANY; i++)
        assert_int_equal(ptb_device_alloc(device, PTB_MEMORY_ACTIVATIONS, (size_t)i + 1, &blocks[i]), PTB_OK);
    assert_int_equal(device->used_bytes[PTB_MEMORY_ACTIVATIONS], MANY * (MANY + 1) / 2);
    for (int i = 0; i < MANY; i++)
        ptb_device_free(device, blocks[(i * 7) % MANY]);
    assert_int_equal(device->used_bytes[PTB_MEMORY_ACTIVATIONS], 0);
}

static void test_no_memory(void **state)
{
    (void)state;
    void *memory = &memory;
    assert_int_equal(ptb_device_alloc(device, PTB_MEMORY_WORKSPACE, SIZE_MAX, &memory), PTB_NO_MEMORY);
    assert_int_equal(ptb_device_alloc(device, PTB_MEMORY_WORKSPACE, (size_t)1 << 46, &memory), PTB_NO_MEMORY);
    assert_ptr_equal(memory, &memory);
    assert_int_equal(device->used_bytes[PTB_MEMORY_WORKSPACE], 0);
}

static void test_category_names(void **state)
{
    (void)state;
    assert_string_equal(ptb_memory_name(PTB_MEMORY_PARAMETERS), "parameters");
    assert_string_equal(ptb_memory_name(PTB_MEMORY_WORKSPACE), "workspace");
}

typedef struct {
    int *log;
    atomic_int *count;
    int value;
} note_arg;

static ptb_status note(void *arg)
{
    note_arg *a = arg;
    a->log[atomic_fetch_add(a->count, 1)] = a->value;
    return PTB_OK;
}

// More calls than the ring holds, with the largest argument.
static void test_order(void **state)
{
    (void)state;
    enum { CALLS = 5000 };
    int *log = calloc(CALLS, sizeof *log);
    atomic_int count = 0;
    ptb_stream *stream = new_stream(PTB_STREAM_WORKER);
    for (int i = 0; i < CALLS; i++) {
        _Alignas(note_arg) unsigned char bytes[PTB_CALL_BYTES] = {0};
        note_arg arg = {log, &count, i};
        memcpy(bytes, &arg, sizeof arg);
        assert_int_equal(ptb_stream_call(stream, note, bytes, sizeof bytes), PTB_OK);
    }
    assert_int_equal(ptb_stream_sync(stream), PTB_OK);
    assert_int_equal(count, CALLS);
    for (int i = 0; i < CALLS; i++)
        assert_int_equal(log[i], i);
    unsigned char big[PTB_CALL_BYTES + 1] = {0};
    assert_int_equal(ptb_stream_call(stream, note, big, sizeof big), PTB_INTERNAL);
    ptb_stream_free(stream);
    free(log);
}

// Freeing a stream finishes what was enqueued.
static void test_free_finishes(void **state)
{
    (void)state;
    int log[100];
    atomic_int count = 0;
    ptb_stream *stream = new_stream(PTB_STREAM_WORKER);
    for (int i = 0; i < 100; i++)
        ptb_stream_call(stream, note, &(note_arg){log, &count, i}, sizeof(note_arg));
    ptb_stream_free(stream);
    assert_int_equal(count, 100);
    ptb_stream_free(NULL);
    ptb_event_free(NULL);
}

static ptb_status note_thread(void *arg)
{
    **(pthread_t **)arg = pthread_self();
    return PTB_OK;
}

static void test_kinds(void **state)
{
    (void)state;
    pthread_t ran, *where = &ran;
    ptb_stream *caller = new_stream(PTB_STREAM_CALLER), *worker = new_stream(PTB_STREAM_WORKER);
    ptb_stream_call(caller, note_thread, &where, sizeof where);
    assert_true(pthread_equal(ran, pthread_self())); // done on return, without sync
    ptb_stream_call(worker, note_thread, &where, sizeof where);
    ptb_stream_sync(worker);
    assert_false(pthread_equal(ran, pthread_self()));
    ptb_stream_free(caller);
    ptb_stream_free(worker);
}

static ptb_status give_status(void *arg)
{
    return *(ptb_status *)arg;
}

static void check_sticky(ptb_stream_kind kind)
{
    int log[4];
    atomic_int count = 0;
    ptb_stream *stream = new_stream(kind);
    ptb_stream_call(stream, note, &(note_arg){log, &count, 1}, sizeof(note_arg));
    ptb_stream_call(stream, give_status, &(ptb_status){PTB_LOST}, sizeof(ptb_status));
    ptb_stream_call(stream, give_status, &(ptb_status){PTB_WRONG}, sizeof(ptb_status));
    ptb_stream_call(stream, note, &(note_arg){log, &count, 2}, sizeof(note_arg));
    assert_int_equal(ptb_stream_sync(stream), PTB_LOST);
    assert_int_equal(ptb_stream_sync(stream), PTB_LOST);
    assert_int_equal(ptb_stream_call(stream, note, &(note_arg){log, &count, 3}, sizeof(note_arg)), PTB_LOST);
    assert_int_equal(count, 1);
    ptb_stream_free(stream);
}

static void test_sticky_status(void **state)
{
    (void)state;
    check_sticky(PTB_STREAM_WORKER);
    check_sticky(PTB_STREAM_CALLER);
}

// A call that runs until the test lets it go.
static ptb_status hold(void *arg)
{
    atomic_int *released = *(atomic_int **)arg;
    while (!atomic_load(released))
        usleep(100);
    return PTB_OK;
}

static void enqueue_hold(ptb_stream *stream, atomic_int *released)
{
    ptb_stream_call(stream, hold, &released, sizeof released);
}

typedef struct {
    ptb_stream_watch watch;
    ptb_status says;
    int looks;
} counting_watch;

static ptb_status count_look(ptb_stream_watch *watch, int64_t waited_ns)
{
    counting_watch *w = (counting_watch *)watch;
    assert_true(waited_ns >= 0);
    w->looks++;
    return w->says;
}

// Whoever watches a stream is asked when the host waits for it, and is let go with the stream.
static void test_watches(void **state)
{
    (void)state;
    ptb_device *device;
    ptb_stream *stream;
    assert_int_equal(ptb_device_open("host", 0, &device), PTB_OK);
    assert_int_equal(ptb_stream_new(device, PTB_STREAM_WORKER, 0, &stream), PTB_OK);
    counting_watch good = {.watch.look = count_look}, bad = {.watch.look = count_look, .says = PTB_LOST};
    ptb_stream_watch_unlink(&good.watch); // not linked
    ptb_stream_watch_link(stream, &good.watch);
    assert_int_equal(ptb_stream_sync(stream), PTB_OK);
    assert_true(good.looks > 0);
    ptb_stream_watch_link(stream, &bad.watch);
    assert_int_equal(ptb_stream_sync(stream), PTB_LOST);
    ptb_stream_watch_unlink(&bad.watch);
    assert_null(bad.watch.stream);
    int before = bad.looks;
    assert_int_equal(ptb_stream_sync(stream), PTB_OK);
    assert_int_equal(bad.looks, before);
    ptb_stream_free(stream);
    assert_null(good.watch.stream);
    ptb_stream_watch_unlink(&good.watch);
    ptb_device_close(device);
}

static void test_event_orders_streams(void **state)
{
    (void)state;
    int log[2];
    atomic_int count = 0, released = 0;
    ptb_stream *a = new_stream(PTB_STREAM_WORKER), *b = new_stream(PTB_STREAM_WORKER);
    ptb_event *event = new_event();
    enqueue_hold(a, &released);
    ptb_stream_call(a, note, &(note_arg){log, &count, 1}, sizeof(note_arg));
    assert_int_equal(ptb_event_record(event, a), PTB_OK);
    assert_int_equal(ptb_event_wait(b, event), PTB_OK);
    ptb_stream_call(b, note, &(note_arg){log, &count, 2}, sizeof(note_arg));
    usleep(20000);
    assert_int_equal(count, 0); // b waits for a
    atomic_store(&released, 1);
    ptb_stream_sync(b);
    assert_int_equal(count, 2);
    assert_int_equal(log[0], 1);
    assert_int_equal(log[1], 2);
    ptb_event_free(event);
    ptb_stream_free(a);
    ptb_stream_free(b);
}

static bool is_reached(ptb_event *event)
{
    bool reached;
    assert_int_equal(ptb_event_query(event, &reached), PTB_OK);
    return reached;
}

static void test_unrecorded_event(void **state)
{
    (void)state;
    ptb_stream *stream = new_stream(PTB_STREAM_WORKER);
    ptb_event *event = new_event();
    assert_int_equal(ptb_event_wait(stream, event), PTB_OK);
    assert_int_equal(ptb_event_sync(event), PTB_OK);
    assert_true(is_reached(event));
    assert_int_equal(ptb_stream_sync(stream), PTB_OK);
    ptb_event_free(event);
    ptb_stream_free(stream);
}

// A wait keeps the record that was the latest when it was enqueued: neither a later record that is reached
// sooner lets it through, nor a later one that is not reached holds it up.
static void test_event_recorded_again(void **state)
{
    (void)state;
    int log[4];
    atomic_int count = 0, first = 0, second = 0;
    ptb_stream *slow = new_stream(PTB_STREAM_WORKER), *quick = new_stream(PTB_STREAM_WORKER);
    ptb_stream *waiting = new_stream(PTB_STREAM_WORKER);
    ptb_event *event = new_event();
    enqueue_hold(slow, &first);
    ptb_event_record(event, slow);
    ptb_event_wait(waiting, event);
    ptb_stream_call(waiting, note, &(note_arg){log, &count, 1}, sizeof(note_arg));
    ptb_event_record(event, quick); // reached at once
    assert_int_equal(ptb_event_sync(event), PTB_OK);
    usleep(20000);
    assert_int_equal(count, 0);
    enqueue_hold(slow, &second);
    ptb_event_record(event, slow); // not reached until `second`
    assert_false(is_reached(event));
    atomic_store(&first, 1);
    ptb_stream_sync(waiting); // would hang if it waited for the later record
    assert_int_equal(count, 1);
    atomic_store(&second, 1);
    assert_int_equal(ptb_event_sync(event), PTB_OK);
    assert_true(is_reached(event));
    ptb_event_free(event);
    ptb_stream_free(slow);
    ptb_stream_free(quick);
    ptb_stream_free(waiting);
}

static void *release_soon(void *arg)
{
    usleep(20000);
    atomic_store((atomic_int *)arg, 1);
    return NULL;
}

static void test_caller_stream_waits(void **state)
{
    (void)state;
    int log[1];
    atomic_int count = 0, released = 0;
    ptb_stream *worker = new_stream(PTB_STREAM_WORKER), *caller = new_stream(PTB_STREAM_CALLER);
    ptb_event *event = new_event(), *done = new_event();
    pthread_t thread;
    enqueue_hold(worker, &released);
    ptb_stream_call(worker, note, &(note_arg){log, &count, 7}, sizeof(note_arg));
    ptb_event_record(event, worker);
    pthread_create(&thread, NULL, release_soon, &released);
    ptb_event_wait(caller, event);
    assert_int_equal(count, 1);
    ptb_event_record(done, caller); // reached: the work of a caller stream is done
    ptb_event_wait(worker, done);
    ptb_event_sync(done);
    ptb_stream_sync(worker);
    pthread_join(thread, NULL);
    ptb_event_free(event);
    ptb_event_free(done);
    ptb_stream_free(worker);
    ptb_stream_free(caller);
}

// An event may outlive its stream, and a wait that is still in a ring may outlive the event.
static void test_event_lifetimes(void **state)
{
    (void)state;
    atomic_int released = 0, other = 0;
    ptb_stream *a = new_stream(PTB_STREAM_WORKER), *b = new_stream(PTB_STREAM_WORKER);
    ptb_event *event = new_event();
    enqueue_hold(a, &released);
    enqueue_hold(b, &other);
    ptb_event_record(event, a);
    ptb_event_wait(b, event);
    ptb_event_free(event);
    event = new_event();
    ptb_event_record(event, a);
    atomic_store(&released, 1);
    ptb_stream_free(a);
    assert_int_equal(ptb_event_sync(event), PTB_OK);
    atomic_store(&other, 1);
    assert_int_equal(ptb_stream_sync(b), PTB_OK);
    ptb_event_free(event);
    ptb_stream_free(b);
}

// A wait in the ring of a failed stream is dropped without waiting, and gives its reference back (the address
// sanitizer would see it).
static void test_wait_on_failed_stream(void **state)
{
    (void)state;
    atomic_int released = 0, hold_failing = 0;
    ptb_stream *a = new_stream(PTB_STREAM_WORKER), *failing = new_stream(PTB_STREAM_WORKER);
    ptb_event *event = new_event();
    enqueue_hold(a, &released);
    ptb_event_record(event, a);
    enqueue_hold(failing, &hold_failing);
    ptb_stream_call(failing, give_status, &(ptb_status){PTB_SYSTEM}, sizeof(ptb_status));
    ptb_event_wait(failing, event);
    atomic_store(&hold_failing, 1);
    assert_int_equal(ptb_stream_sync(failing), PTB_SYSTEM);
    atomic_store(&released, 1);
    ptb_event_free(event);
    ptb_stream_free(failing);
    ptb_stream_free(a);
}

static ptb_status increment(void *arg)
{
    ++**(long **)arg; // plain: the events must order it
    return PTB_OK;
}

// Four streams in a cycle of events, recorded again each round, on however few processors there are: the
// counter is only right if every hand-over is, and the thread sanitizer watches.
static void test_relay(void **state)
{
    (void)state;
    enum { STREAMS = 4, ROUNDS = 3000 };
    ptb_stream *streams[STREAMS];
    ptb_event *events[STREAMS];
    long counter = 0, *where = &counter;
    for (int i = 0; i < STREAMS; i++) {
        streams[i] = new_stream(PTB_STREAM_WORKER);
        events[i] = new_event();
    }
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < STREAMS; i++) {
            ptb_event_wait(streams[i], events[(i + STREAMS - 1) % STREAMS]);
            ptb_stream_call(streams[i], increment, &where, sizeof where);
            ptb_event_record(events[i], streams[i]);
        }
    ptb_event_sync(events[STREAMS - 1]);
    assert_int_equal(counter, STREAMS * ROUNDS);
    for (int i = 0; i < STREAMS; i++) {
        ptb_stream_free(streams[i]);
        ptb_event_free(events[i]);
    }
}

// Hand-overs one at a time: both sides go to sleep and must be woken each time.
static void test_ping_pong(void **state)
{
    (void)state;
    long counter = 0, *where = &counter;
    ptb_stream *stream = new_stream(PTB_STREAM_WORKER);
    for (long i = 0; i < 2000; i++) {
        ptb_stream_call(stream, increment, &where, sizeof where);
        if (i % 200 == 0)
            usleep(1000); // long enough for the worker to sleep
        ptb_stream_sync(stream);
        assert_int_equal(counter, i + 1);
    }
    ptb_stream_free(stream);
}

static void test_buffer_operations(void **state)
{
    (void)state;
    enum { COUNT = 5001 };
    ptb_stream *stream = new_stream(PTB_STREAM_WORKER);
    float *a, *b;
    assert_int_equal(ptb_device_alloc(device, PTB_MEMORY_WORKSPACE, COUNT * sizeof *a, (void **)&a), PTB_OK);
    assert_int_equal(ptb_device_alloc(device, PTB_MEMORY_WORKSPACE, COUNT * sizeof *b, (void **)&b), PTB_OK);
    ptb_pattern pattern;
    ptb_pattern_init(&pattern, 5, PTB_F32, PTB_SUM, 2);
    const ptb_device_ops *ops = device->ops;
    assert_int_equal(ops->fill(stream, &pattern, true, 0, 0, a, COUNT), PTB_OK);
    assert_int_equal(ops->fill(stream, &pattern, true, 1, 0, b, COUNT), PTB_OK);
    assert_int_equal(ops->reduce(stream, PTB_F32, PTB_SUM, a, a, b, COUNT), PTB_OK);
    ptb_check check = {0};
    ptb_expect reduced = {.kind = PTB_EXPECT_REDUCED, .count = COUNT};
    assert_int_equal(ops->check(stream, &pattern, &reduced, a, &check), PTB_OK);
    assert_int_equal(ptb_stream_copy(stream, b, a, COUNT * sizeof *a), PTB_OK);
    assert_int_equal(ops->check(stream, &pattern, &reduced, b, &check), PTB_OK);
    assert_int_equal(ptb_stream_set(stream, b, 0xA5, COUNT * sizeof *b), PTB_OK);
    ptb_expect poison = {.kind = PTB_EXPECT_POISON, .count = COUNT};
    assert_int_equal(ops->check(stream, &pattern, &poison, b, &check), PTB_OK);
    assert_int_equal(ptb_stream_sync(stream), PTB_OK);
    assert_int_equal(check.checked, 3 * COUNT);
    assert_int_equal(check.wrong, 0);
    ops->check(stream, &pattern, &reduced, b, &check);
    ptb_stream_sync(stream);
    assert_int_equal(check.wrong, COUNT);
    ptb_device_free(device, a);
    ptb_device_free(device, b);
    ptb_stream_free(stream);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open),
        cmocka_unit_test(test_ledger),
        cmocka_unit_test(test_ledger_many),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_category_names),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_free_finishes),
        cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_sticky_status),
        cmocka_unit_test(test_watches),
        cmocka_unit_test(test_event_orders_streams),
        cmocka_unit_test(test_unrecorded_event),
        cmocka_unit_test(test_event_recorded_again),
        cmocka_unit_test(test_caller_stream_waits),
        cmocka_unit_test(test_event_lifetimes),
        cmocka_unit_test(test_wait_on_failed_stream),
        cmocka_unit_test(test_relay),
        cmocka_unit_test(test_ping_pong),
        cmocka_unit_test(test_buffer_operations),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
