// NCCL's profiler plug-in, called as NCCL's versions call it: whose operations it is told of where NCCL does
// not say, and what becomes of what it cannot know. How whole runs are told: tests/simcuda/test_nccl_told.sh.
#include "core/clock.h"
#include "profiler/nccl_profiler.h"
#include "profiler/nccl_profiler_core.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

extern const ptb_nccl_profiler_plugin_v1 ncclProfiler_v1;
extern const ptb_nccl_profiler_plugin_v2 ncclProfiler_v2;
extern const ptb_nccl_profiler_plugin_v3 ncclProfiler_v3;
extern const ptb_nccl_profiler_plugin_v4 ncclProfiler_v4;
extern const ptb_nccl_profiler_plugin ncclProfiler_v5, ncclProfiler_v6;

static int mask; // NCCL's

static void *init_v3(void)
{
    void *context = NULL;
    assert_int_equal(ncclProfiler_v3.init(&context, &mask), 0);
    assert_non_null(context);
    return context;
}

static void *init_v6(const char *name)
{
    void *context = NULL;
    assert_int_equal(ncclProfiler_v6.init(&context, 1, &mask, name, 1, 2, 0, NULL), 0);
    return context;
}

static void nameless_are_told_apart_by_when_they_come(void **state)
{
    (void)state;
    uint64_t first = ptb_nccl_profiler_making();
    void *a = init_v3();
    assert_ptr_equal(ptb_nccl_profiler_made(first, "a"), a);
    uint64_t second = ptb_nccl_profiler_making();
    void *b = init_v3();
    assert_ptr_equal(ptb_nccl_profiler_made(second, "b"), b);
    // One that NCCL has not told of.
    assert_null(ptb_nccl_profiler_made(ptb_nccl_profiler_making(), "c"));
    ncclProfiler_v3.finalize(a);
    ncclProfiler_v3.finalize(b);
}

// Threads that make some at once: which is whose is not known, so nobody gets any.
static void of_several_at_once_none_is_known(void **state)
{
    (void)state;
    uint64_t first = ptb_nccl_profiler_making(), second = ptb_nccl_profiler_making();
    void *a = init_v3();
    assert_null(ptb_nccl_profiler_made(second, "second"));
    void *b = init_v3();
    assert_null(ptb_nccl_profiler_made(first, "first"));
    uint64_t third = ptb_nccl_profiler_making(); // alone again
    void *c = init_v3();
    assert_ptr_equal(ptb_nccl_profiler_made(third, "third"), c);
    ncclProfiler_v3.finalize(a);
    ncclProfiler_v3.finalize(b);
    ncclProfiler_v3.finalize(c);
}

// One that was given up comes while the next is made.
static void a_late_one_is_not_taken_for_the_next(void **state)
{
    (void)state;
    assert_null(ptb_nccl_profiler_made(ptb_nccl_profiler_making(), NULL));
    uint64_t next = ptb_nccl_profiler_making();
    void *late = init_v3(), *own = init_v3();
    assert_null(ptb_nccl_profiler_made(next, "next"));
    ncclProfiler_v3.finalize(late);
    ncclProfiler_v3.finalize(own);
}

static void names_are_enough(void **state)
{
    (void)state;
    void *a = NULL;
    uint64_t first = ptb_nccl_profiler_making(), second = ptb_nccl_profiler_making();
    assert_int_equal(ncclProfiler_v4.init(&a, &mask, "first", 1, 1, 2, 0, NULL), 0);
    void *b = init_v6("second");
    assert_ptr_equal(ptb_nccl_profiler_made(second, "second"), b);
    assert_ptr_equal(ptb_nccl_profiler_made(first, "first"), a);
    ncclProfiler_v4.finalize(a);
    ncclProfiler_v6.finalize(b);
    // A program whose ncclConfig_t has no name yet, with a newer NCCL.
    uint64_t third = ptb_nccl_profiler_making();
    void *c = init_v6(NULL);
    assert_ptr_equal(ptb_nccl_profiler_made(third, "third"), c);
    ncclProfiler_v6.finalize(c);
}

static ptb_nccl_watched *watched_new(const char *name)
{
    uint64_t making = ptb_nccl_profiler_making();
    init_v6(name);
    ptb_nccl_watched *w = ptb_nccl_profiler_made(making, name);
    assert_non_null(w);
    return w;
}

static void tell(ptb_nccl_watched *w, const char *algorithm, const char *protocol, uint8_t channels)
{
    void *handle = &mask;
    ptb_nccl_event event = {.type = PTB_NCCL_COLL};
    event.coll.function = "AllReduce";
    event.coll.algorithm = algorithm;
    event.coll.protocol = protocol;
    event.coll.channels = channels;
    ncclProfiler_v6.start_event(w, &handle, &event);
    assert_null(handle); // no spans are recorded
    ncclProfiler_v6.stop_event(handle);
}

static void what_ran_is_told_by_its_text(void **state)
{
    (void)state;
    ptb_nccl_watched *w = watched_new("texts");
    ptb_nccl_ran ran;
    assert_int_equal(mask, 0);
    tell(w, "RING", "LL", 1); // not asked for
    ptb_nccl_profiler_begin(w);
    assert_int_equal(mask & (PTB_NCCL_COLL | PTB_NCCL_P2P | PTB_NCCL_CE_COLL),
                     PTB_NCCL_COLL | PTB_NCCL_P2P | PTB_NCCL_CE_COLL);
    tell(w, "SOMETHING_NEW", "LL256", 9);
    ptb_nccl_profiler_end(w, &ran);
    assert_int_equal(mask, 0);
    assert_string_equal(ran.algorithm, "something_new");
    assert_string_equal(ran.protocol, "ll256");
    assert_int_equal(ran.channels, 9);
    assert_false(ran.channels_are_most || ran.mixed);
    ptb_nccl_profiler_begin(w);
    tell(w, "RING", "LL", 2);
    tell(w, "RING", "SIMPLE", 2);
    tell(w, NULL, NULL, 0);
    ptb_nccl_profiler_end(w, &ran);
    assert_int_equal(ran.collectives, 3);
    assert_true(ran.mixed);
    ncclProfiler_v6.finalize(w);
}

static void a_call_that_is_all_that_is_told(void **state)
{
    (void)state;
    ptb_nccl_watched *w = watched_new("calls");
    ptb_nccl_ran ran;
    void *handle = &mask;
    ptb_nccl_event event = {.type = PTB_NCCL_COLL_API};
    event.coll_api.function = "Broadcast";
    ptb_nccl_profiler_begin(w);
    ncclProfiler_v6.start_event(w, &handle, &event);
    ptb_nccl_profiler_end(w, &ran);
    assert_null(handle);
    assert_int_equal(ran.calls, 1);
    assert_int_equal(ran.collectives + ran.messages, 0);
    assert_string_equal(ran.function, "Broadcast");
    ncclProfiler_v6.finalize(w);
}

// Numbers of version 1 beyond its enumerations, and no context.
static void numbers_that_nobody_knows(void **state)
{
    (void)state;
    void *context = NULL, *handle = NULL;
    ptb_nccl_ran ran;
    ptb_nccl_event_v1 event = {.type = PTB_NCCL_COLL};
    event.coll.function = 200;
    event.coll.algorithm = 7;
    event.coll.protocol = 3;
    event.coll.max_channels = 4;
    uint64_t making = ptb_nccl_profiler_making();
    ncclProfiler_v1.init(&context, &mask);
    ptb_nccl_watched *w = ptb_nccl_profiler_made(making, "numbers");
    ptb_nccl_profiler_begin(w);
    ncclProfiler_v1.start_event(context, &handle, &event);
    ncclProfiler_v1.start_event(NULL, &handle, &event); // NCCL went on where init had no memory
    ptb_nccl_profiler_end(w, &ran);
    assert_int_equal(ran.collectives, 1);
    assert_string_equal(ran.function, "function 200");
    assert_string_equal(ran.algorithm, "algorithm 7");
    assert_string_equal(ran.protocol, "protocol 3");
    assert_true(ran.channels_are_most);
    ncclProfiler_v1.finalize(context);
    ncclProfiler_v1.finalize(NULL);
}

// Up to version 4 NCCL tells of no operation of a group that has no handle.
static void groups_have_handles_where_they_must(void **state)
{
    (void)state;
    void *handles[4] = {NULL, NULL, NULL, NULL}, *newer = &mask;
    ptb_nccl_event_v1 v1 = {.type = PTB_NCCL_GROUP};
    ptb_nccl_event_v2 v2 = {.type = PTB_NCCL_GROUP};
    ptb_nccl_event_v3 v3 = {.type = PTB_NCCL_GROUP};
    ptb_nccl_event_v4 v4 = {.type = PTB_NCCL_GROUP};
    ptb_nccl_event v5 = {.type = PTB_NCCL_GROUP};
    ncclProfiler_v1.start_event(NULL, &handles[0], &v1);
    ncclProfiler_v2.start_event(NULL, &handles[1], &v2);
    ncclProfiler_v3.start_event(NULL, &handles[2], &v3);
    ncclProfiler_v4.start_event(NULL, &handles[3], &v4);
    ncclProfiler_v5.start_event(NULL, &newer, &v5);
    for (int i = 0; i < 4; i++) {
        assert_non_null(handles[i]);
        ncclProfiler_v1.stop_event(handles[i]);
    }
    assert_null(newer);
}

// The network ends a request by a handle that it has kept.
static void what_has_ended_stays_as_it_is(void **state)
{
    (void)state;
    ptb_trace *trace;
    size_t count, dropped, late;
    void *handle = NULL, *old;
    ptb_nccl_event event = {.type = PTB_NCCL_NET_PLUGIN};
    ptb_nccl_state_args args = {.proxy_step = {.bytes = 5}};
    assert_int_equal(ptb_trace_new(10, 0, &trace), PTB_OK);
    assert_int_equal(ptb_nccl_profiler_start(10, NULL, NULL), PTB_OK);
    ncclProfiler_v6.start_event(NULL, &handle, &event);
    ncclProfiler_v6.stop_event(handle);
    const int64_t ended = ptb_clock_ns();
    while (ptb_clock_ns() == ended)
        ;
    ncclProfiler_v6.stop_event(handle);
    ptb_nccl_profiler_stop();
    ptb_nccl_profiler_spans(trace, 0, &dropped, &late);
    const ptb_span *spans = ptb_trace_spans(trace, &count, NULL);
    assert_int_equal(count, 1);
    assert_int_equal(dropped + late, 0);
    assert_true(spans[0].end_ns <= ended);
    // One of an earlier recording, of a group, and none.
    old = handle;
    assert_int_equal(ptb_nccl_profiler_start(10, NULL, NULL), PTB_OK);
    ncclProfiler_v6.start_event(NULL, &handle, &event);
    void *const others[] = {old, PTB_NCCL_GROUP_HANDLE, NULL, (void *)16};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        ncclProfiler_v6.stop_event(others[i]);
        ncclProfiler_v6.record_event_state(others[i], PTB_NCCL_STATE_SEND_WAIT, &args);
    }
    ptb_nccl_profiler_stop();
    ptb_trace_clear(trace);
    ptb_nccl_profiler_spans(trace, 0, &dropped, &late);
    ptb_trace_spans(trace, &count, NULL);
    assert_int_equal(count, 0);
    assert_int_equal(late, 1);
    ptb_nccl_profiler_release();
    ptb_trace_free(trace);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nameless_are_told_apart_by_when_they_come),
        cmocka_unit_test(of_several_at_once_none_is_known),
        cmocka_unit_test(a_late_one_is_not_taken_for_the_next),
        cmocka_unit_test(names_are_enough),
        cmocka_unit_test(what_ran_is_told_by_its_text),
        cmocka_unit_test(a_call_that_is_all_that_is_told),
        cmocka_unit_test(numbers_that_nobody_knows),
        cmocka_unit_test(groups_have_handles_where_they_must),
        cmocka_unit_test(what_has_ended_stays_as_it_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
