// The CUDA device against the host: the same pattern, the same findings, the same sums, and the order of
// streams. Skipped where there is no device `cuda` or no GPU; the simulated one will do.
#include "core/device.h"
#include "core/device_cuda.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <cuda_runtime_api.h>

enum { SKIPPED = 77, BIG = 70001, GUARD = 32 };

typedef struct {
    ptb_device *device;
    ptb_stream *stream;
    unsigned char *buffers[3], *copy, *wanted; // on the device; pinned; plain
    size_t bytes;
} fixture;

static void *new_memory(ptb_device *device, size_t bytes)
{
    void *memory;
    assert_int_equal(ptb_device_alloc(device, PTB_MEMORY_WORKSPACE, bytes, &memory), PTB_OK);
    return memory;
}

static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    f->bytes = BIG * 8 + 2 * GUARD;
    if (ptb_device_open("cuda", 0, &f->device) != PTB_OK)
        return -1;
    assert_int_equal(ptb_stream_new(f->device, PTB_STREAM_WORKER, 0, &f->stream), PTB_OK);
    for (int i = 0; i < 3; i++)
        f->buffers[i] = new_memory(f->device, f->bytes);
    void *pinned;
    assert_int_equal(ptb_device_alloc_host(f->device, f->bytes, &pinned), PTB_OK);
    f->copy = pinned;
    f->wanted = malloc(f->bytes);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    for (int i = 0; i < 3; i++)
        ptb_device_free(f->device, f->buffers[i]);
    ptb_device_free_host(f->device, f->copy);
    ptb_stream_free(f->stream);
    ptb_device_close(f->device);
    free(f->wanted);
    free(f);
    return 0;
}

static void sync(fixture *f)
{
    assert_int_equal(ptb_stream_sync(f->stream), PTB_OK);
}

// The whole of a device's buffer, in f->copy.
static void fetch(fixture *f, int buffer)
{
    assert_int_equal(ptb_stream_copy(f->stream, f->copy, f->buffers[buffer], f->bytes), PTB_OK);
    sync(f);
}

static void poison(fixture *f, int buffer)
{
    assert_int_equal(ptb_stream_set(f->stream, f->buffers[buffer], PTB_PATTERN_POISON, f->bytes), PTB_OK);
    memset(f->wanted, PTB_PATTERN_POISON, f->bytes);
}

static void assert_fetched(fixture *f, int buffer, const char *what)
{
    fetch(f, buffer);
    for (size_t i = 0; i < f->bytes; i++)
        if (f->copy[i] != f->wanted[i])
            fail_msg("%s: byte %zu is %#x, wanted %#x", what, i, f->copy[i], f->wanted[i]);
}

static void test_open(void **state)
{
    fixture *f = *state;
    ptb_device *again;
    assert_int_equal(ptb_device_open("cuda", -1, &again), PTB_USAGE);
    assert_int_equal(ptb_device_open("cuda", 1000000, &again), PTB_OK); // modulo the number of GPUs
    assert_true(strlen(f->device->identity) > 8);
    assert_non_null(strstr(f->device->description, f->device->identity));
    assert_non_null(strstr(f->device->description, "GiB"));
    // A simulated device says so in its description, and nothing else does.
    assert_int_equal(f->device->simulated, strstr(f->device->description, "simulated") != NULL);
    assert_true(ptb_device_available(f->device) > (1 << 20));
    assert_int_equal(ptb_stream_call(f->stream, NULL, NULL, 0), PTB_UNSUPPORTED);
    ptb_device_close(again);
}

static void test_ledger(void **state)
{
    fixture *f = *state;
    ptb_device *d = f->device;
    void *a, *b, *none;
    uint64_t before = d->used_bytes[PTB_MEMORY_COMMUNICATION];
    assert_int_equal(ptb_device_alloc(d, PTB_MEMORY_COMMUNICATION, 1000, &a), PTB_OK);
    assert_int_equal(ptb_device_alloc(d, PTB_MEMORY_GRADIENTS, 0, &b), PTB_OK);
    assert_non_null(b);
    assert_int_equal((uintptr_t)a % 64, 0);
    assert_int_equal(d->used_bytes[PTB_MEMORY_COMMUNICATION], before + 1000);
    assert_int_equal(ptb_device_alloc(d, PTB_MEMORY_OPTIMIZER, (size_t)1 << 50, &none), PTB_NO_MEMORY);
    assert_int_equal(ptb_device_alloc(d, PTB_MEMORY_COMMUNICATION, (size_t)1 << 50, &none), PTB_NO_MEMORY);
    assert_int_equal(d->used_bytes[PTB_MEMORY_OPTIMIZER], 0);
    ptb_device_free(d, a);
    ptb_device_free(d, b);
    assert_int_equal(d->used_bytes[PTB_MEMORY_COMMUNICATION], before);
    assert_int_equal(d->peak_bytes[PTB_MEMORY_COMMUNICATION], before + 1000);
    poison(f, 0); // an allocation that failed has spoilt nothing
    assert_fetched(f, 0, "after running out of memory");
}

// Every type, source and alignment, across the end of 2^32 indices too.
static void test_fill(void **state)
{
    fixture *f = *state;
    static const size_t firsts[] = {0, 12345, ((size_t)1 << 32) - 77};
    static const size_t counts[] = {1, 3, 64, 1000, BIG};
    for (int type = 0; type < PTB_DTYPE_COUNT; type++)
        for (int op = 0; op < PTB_REDOP_COUNT; op++)
            for (int k = 0; k < 15; k++) {
                ptb_pattern pattern;
                size_t size = ptb_dtype_size((ptb_dtype)type), skew = (size_t)k % (16 / size);
                size_t first = firsts[k % 3], count = counts[k % 5];
                bool reduced = (k + op) % 2 == 0 || op > 0;
                ptb_pattern_init(&pattern, 99, (ptb_dtype)type, (ptb_redop)op, 3);
                poison(f, 0);
                ptb_pattern_fill(&pattern, reduced, k % 3, first, f->wanted + GUARD + skew * size, count);
                assert_int_equal(f->device->ops->fill(f->stream, &pattern, reduced, k % 3, first,
                                                      f->buffers[0] + GUARD + skew * size, count),
                                 PTB_OK);
                assert_fetched(f, 0, ptb_dtype_name((ptb_dtype)type));
            }
}

static void assert_same_check(const ptb_check *host, const ptb_check *cuda, ptb_dtype type)
{
    if (host->checked != cuda->checked || host->wrong != cuda->wrong)
        fail_msg("%s: %llu of %llu wrong, wanted %llu of %llu", ptb_dtype_name(type),
                 (unsigned long long)cuda->wrong, (unsigned long long)cuda->checked,
                 (unsigned long long)host->wrong, (unsigned long long)host->checked);
    if (!host->wrong)
        return;
    assert_int_equal(host->first_wrong, cuda->first_wrong);
    assert_memory_equal(&host->wanted, &cuda->wanted, sizeof host->wanted);
    assert_memory_equal(&host->got, &cuda->got, sizeof host->got);
}

// What the host and the GPU say of the same buffer, element 0 at GUARD.
static void compare_checks(fixture *f, const ptb_pattern *pattern, const ptb_expect *expect)
{
    ptb_check host = {0}, cuda = {0};
    assert_int_equal(f->device->ops->check(f->stream, pattern, expect, f->buffers[0] + GUARD, &cuda), PTB_OK);
    fetch(f, 0);
    ptb_pattern_check(pattern, expect, f->copy + GUARD, &host);
    assert_same_check(&host, &cuda, pattern->dtype);
}

static void test_check(void **state)
{
    fixture *f = *state;
    static const ptb_expect_kind kinds[] = {PTB_EXPECT_COPY, PTB_EXPECT_REDUCED, PTB_EXPECT_INPUT,
                                            PTB_EXPECT_POISON};
    for (int type = 0; type < PTB_DTYPE_COUNT; type++)
        for (size_t k = 0; k < 4; k++)
            for (int wrong = 0; wrong < 4; wrong++) {
                ptb_pattern pattern;
                size_t size = ptb_dtype_size((ptb_dtype)type);
                ptb_pattern_init(&pattern, 7, (ptb_dtype)type, wrong % 2 ? PTB_MAX : PTB_SUM, 1);
                poison(f, 0);
                ptb_expect expect = {.kind = kinds[k],
                                     .first = (size_t)(1 + wrong),
                                     .count = 5000,
                                     .source_index = ((size_t)1 << 32) - 40};
                bool reduced = kinds[k] != PTB_EXPECT_COPY;
                if (kinds[k] != PTB_EXPECT_POISON) // of one rank: what it puts in is what comes out
                    f->device->ops->fill(f->stream, &pattern, reduced, 0, expect.source_index,
                                         f->buffers[0] + GUARD + expect.first * size, expect.count);
                compare_checks(f, &pattern, &expect);
                // The bits of single elements, then of many, then of all.
                unsigned char *at = f->buffers[0] + GUARD + expect.first * size;
                size_t damaged = wrong < 3 ? (size_t)wrong * size * 1500 : size * expect.count;
                ptb_stream_set(f->stream, at + (wrong < 3 ? 17 * size : 0), 0x5a, damaged);
                compare_checks(f, &pattern, &expect);
            }
}

// The two zeros are one number; -0 where 0 is wanted is not wrong in any float.
static void test_zeros(void **state)
{
    fixture *f = *state;
    static const ptb_dtype floats[] = {PTB_F64, PTB_F32, PTB_F16, PTB_BF16};
    for (int i = 0; i < 4; i++) {
        ptb_pattern pattern;
        size_t size = ptb_dtype_size(floats[i]);
        ptb_pattern_init(&pattern, 3, floats[i], PTB_SUM, 60000); // mostly neutral: zeros
        ptb_expect expect = {.kind = PTB_EXPECT_INPUT, .count = 900, .source_rank = 5};
        ptb_pattern_fill(&pattern, true, 5, 0, f->copy + GUARD, expect.count);
        for (size_t e = 0; e < expect.count; e++)
            if (ptb_dtype_load(floats[i], f->copy + GUARD + e * size) == 0)
                f->copy[GUARD + e * size + size - 1] ^= 0x80;
        ptb_stream_copy(f->stream, f->buffers[0], f->copy, f->bytes);
        ptb_check cuda = {0};
        f->device->ops->check(f->stream, &pattern, &expect, f->buffers[0] + GUARD, &cuda);
        sync(f);
        assert_int_equal(cuda.checked, expect.count);
        assert_int_equal(cuda.wrong, 0);
    }
}

// More checks than a stream keeps, in one sum, of which the first mismatch is told.
static void test_many_checks(void **state)
{
    fixture *f = *state;
    enum { MANY = 700 };
    ptb_pattern pattern;
    ptb_check check = {0};
    ptb_pattern_init(&pattern, 3, PTB_F32, PTB_SUM, 2);
    f->device->ops->fill(f->stream, &pattern, false, 1, 0, f->buffers[0], MANY * 8);
    ptb_stream_set(f->stream, f->buffers[0] + 4 * (300 * 8 + 5), 0, 4);
    ptb_stream_set(f->stream, f->buffers[0] + 4 * (600 * 8 + 2), 0, 8);
    for (size_t i = 0; i < MANY; i++) {
        ptb_expect expect = {.first = i * 8, .count = 8, .source_rank = 1, .source_index = i * 8};
        assert_int_equal(f->device->ops->check(f->stream, &pattern, &expect, f->buffers[0], &check), PTB_OK);
    }
    sync(f);
    assert_int_equal(check.checked, MANY * 8);
    assert_int_equal(check.wrong, 3);
    assert_int_equal(check.first_wrong, 300 * 8 + 5);
    assert_true(check.got == 0);
    assert_true(check.wanted == ptb_pattern_moved(&pattern, 1, 300 * 8 + 5));
}

// Numbers of every kind: small, negative, whose sums overflow integers and f16. No infinities: of these come
// NaNs, whose bits differ between processors.
static void make_numbers(ptb_dtype type, unsigned seed, void *out, size_t count)
{
    unsigned state = seed * 2654435761u + 12345;
    for (size_t i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        double value = (double)(int32_t)state / (double)(1 << (state % 31));
        if (ptb_dtype_is_float(type) && (i % 3 || type == PTB_F16))
            value /= 65536;
        if (!ptb_dtype_is_float(type))
            value = ptb_dtype_size(type) == 1 ? (double)(state >> 25) : trunc(value);
        ptb_dtype_store(type, (char *)out + i * ptb_dtype_size(type), value);
    }
}

static void check_reduce(fixture *f, ptb_dtype type, ptb_redop op, size_t count, const size_t skew[3])
{
    size_t size = ptb_dtype_size(type);
    unsigned char *out = f->wanted, *plain[2];
    for (int i = 0; i < 2; i++) {
        plain[i] = malloc(count * size + 1);
        make_numbers(type, (unsigned)(i + 1), plain[i], count);
        assert_int_equal(
            ptb_stream_copy(f->stream, f->buffers[i] + GUARD + skew[i] * size, plain[i], count * size),
            PTB_OK);
    }
    poison(f, 2);
    ptb_reduce_function(type, op)(out + GUARD + skew[2] * size, plain[0], plain[1], count);
    assert_int_equal(f->device->ops->reduce(f->stream, type, op, f->buffers[2] + GUARD + skew[2] * size,
                                            f->buffers[0] + GUARD + skew[0] * size,
                                            f->buffers[1] + GUARD + skew[1] * size, count),
                     PTB_OK);
    assert_fetched(f, 2, ptb_dtype_name(type));
    free(plain[0]);
    free(plain[1]);
}

static void test_reduce(void **state)
{
    fixture *f = *state;
    static const size_t skews[][3] = {{0, 0, 0}, {1, 1, 1}, {0, 1, 0}, {1, 1, 0}};
    static const size_t counts[] = {1, 100, 3001, BIG};
    for (int type = 0; type < PTB_DTYPE_COUNT; type++)
        for (int op = 0; op < PTB_REDOP_COUNT; op++)
            for (int k = 0; k < 4; k++)
                check_reduce(f, (ptb_dtype)type, (ptb_redop)op, counts[(k + type + op) % 4], skews[k]);
}

static void test_reduce_in_place(void **state)
{
    fixture *f = *state;
    ptb_pattern pattern;
    ptb_check check = {0};
    ptb_pattern_init(&pattern, 5, PTB_BF16, PTB_SUM, 2);
    for (int i = 0; i < 2; i++)
        f->device->ops->fill(f->stream, &pattern, true, i, 0, f->buffers[i], BIG);
    f->device->ops->reduce(f->stream, PTB_BF16, PTB_SUM, f->buffers[0], f->buffers[0], f->buffers[1], BIG);
    ptb_expect expect = {.kind = PTB_EXPECT_REDUCED, .count = BIG};
    f->device->ops->check(f->stream, &pattern, &expect, f->buffers[0], &check);
    sync(f);
    assert_int_equal(check.checked, BIG);
    assert_int_equal(check.wrong, 0);
}

// Kernels see pinned memory, and copies go between any two kinds.
static void test_copies(void **state)
{
    fixture *f = *state;
    ptb_pattern pattern;
    ptb_pattern_init(&pattern, 11, PTB_I64, PTB_SUM, 2);
    ptb_pattern_fill(&pattern, false, 1, 0, f->wanted, BIG);
    memset(f->copy, 0, f->bytes);
    assert_int_equal(f->device->ops->fill(f->stream, &pattern, false, 1, 0, f->copy, BIG), PTB_OK);
    sync(f);
    assert_memory_equal(f->copy, f->wanted, BIG * 8);
    unsigned char *plain = malloc(f->bytes);
    ptb_stream_copy(f->stream, f->buffers[0], f->copy, BIG * 8);
    ptb_stream_copy(f->stream, f->buffers[1], f->buffers[0], BIG * 8);
    ptb_stream_copy(f->stream, plain, f->buffers[1], BIG * 8);
    sync(f);
    assert_memory_equal(plain, f->wanted, BIG * 8);
    memset(plain, 0x3c, 4096);
    ptb_stream_copy(f->stream, f->buffers[2], plain, 4096);
    memset(plain, 0, 4096); // a plain buffer has been read by then
    ptb_stream_copy(f->stream, plain, f->buffers[2], 4096);
    sync(f);
    for (int i = 0; i < 4096; i++)
        assert_int_equal(plain[i], 0x3c);
    free(plain);
}

// Two streams pass a buffer to and fro; each step is wrong unless the other one's is done.
static void test_events(void **state)
{
    fixture *f = *state;
    enum { ROUNDS = 40 };
    ptb_stream *streams[2] = {f->stream, NULL};
    ptb_event *events[2], *idle;
    assert_int_equal(ptb_stream_new(f->device, PTB_STREAM_URGENT, 1, &streams[1]), PTB_OK);
    assert_int_equal(ptb_event_new(f->device, &idle), PTB_OK);
    assert_int_equal(ptb_event_wait(f->stream, idle), PTB_OK); // never recorded: holds nobody up
    assert_int_equal(ptb_event_sync(idle), PTB_OK);
    bool reached = false;
    assert_int_equal(ptb_event_query(idle, &reached), PTB_OK);
    assert_true(reached);
    for (int i = 0; i < 2; i++)
        assert_int_equal(ptb_event_new(f->device, &events[i]), PTB_OK);
    ptb_stream_set(streams[0], f->buffers[0], 1, f->bytes);
    ptb_stream_set(streams[0], f->buffers[1], 0, f->bytes);
    ptb_event_record(events[1], streams[0]);
    for (int round = 0; round < ROUNDS; round++) {
        int mine = round % 2;
        ptb_event_wait(streams[mine], events[!mine]);
        // buffer 1 += buffer 0, byte by byte
        f->device->ops->reduce(streams[mine], PTB_U8, PTB_SUM, f->buffers[1], f->buffers[1], f->buffers[0],
                               f->bytes);
        ptb_event_record(events[mine], streams[mine]);
        assert_int_equal(ptb_event_query(events[mine], &reached), PTB_OK); // spoils no later call
    }
    ptb_event_wait(f->stream, events[(ROUNDS - 1) % 2]);
    memset(f->wanted, ROUNDS, f->bytes);
    assert_fetched(f, 1, "forty rounds");
    assert_int_equal(ptb_event_sync(events[1]), PTB_OK);
    assert_int_equal(ptb_event_query(events[1], &reached), PTB_OK);
    assert_true(reached);
    for (int i = 0; i < 2; i++)
        ptb_event_free(events[i]);
    ptb_event_free(idle);
    ptb_stream_free(streams[1]);
}

// Communication goes first: of CUDA's priorities the lower number.
static void test_priorities(void **state)
{
    fixture *f = *state;
    static const ptb_stream_kind kinds[] = {PTB_STREAM_WORKER, PTB_STREAM_CALLER, PTB_STREAM_URGENT};
    int least, greatest, priority[3];
    assert_int_equal(cudaDeviceGetStreamPriorityRange(&least, &greatest), cudaSuccess);
    for (int i = 0; i < 3; i++) {
        ptb_stream *stream;
        assert_int_equal(ptb_stream_new(f->device, kinds[i], 1, &stream), PTB_OK);
        assert_int_equal(cudaStreamGetPriority(ptb_cuda_stream(stream), &priority[i]), cudaSuccess);
        ptb_stream_free(stream);
    }
    assert_int_equal(priority[0], least);
    assert_int_equal(priority[1], least);
    assert_int_equal(priority[2], greatest);
}

// The first error stays with its stream, and only with that one.
static void test_sticky_status(void **state)
{
    fixture *f = *state;
    ptb_stream *other;
    ptb_event *event;
    assert_int_equal(ptb_event_new(f->device, &event), PTB_OK);
    assert_int_equal(ptb_stream_new(f->device, PTB_STREAM_CALLER, 2, &other), PTB_OK);
    assert_int_equal(f->device->ops->reduce(other, PTB_DTYPE_COUNT, PTB_SUM, f->buffers[0], f->buffers[0],
                                            f->buffers[0], 8),
                     PTB_SYSTEM);
    assert_int_equal(ptb_stream_set(other, f->buffers[0], 0, 8), PTB_SYSTEM);
    assert_int_equal(ptb_event_record(event, other), PTB_SYSTEM);
    assert_int_equal(ptb_stream_sync(other), PTB_SYSTEM);
    assert_int_equal(ptb_stream_sync(other), PTB_SYSTEM);
    poison(f, 0);
    assert_fetched(f, 0, "the other stream");
    ptb_stream_free(other);
    ptb_event_free(event);
}

static ptb_status give_up(ptb_stream_watch *watch, int64_t waited_ns)
{
    (void)watch, (void)waited_ns;
    return PTB_LOST;
}

// A watch that gives the work up ends the wait, and its status stays.
static void test_watch(void **state)
{
    (void)state;
    ptb_stream *other;
    ptb_stream_watch watch = {.look = give_up};
    ptb_device *device; // of its own: a watch that speaks of loss takes it along
    assert_int_equal(ptb_device_open("cuda", 0, &device), PTB_OK);
    assert_int_equal(ptb_stream_new(device, PTB_STREAM_WORKER, 2, &other), PTB_OK);
    assert_int_equal(ptb_stream_sync(other), PTB_OK);
    ptb_stream_watch_link(other, &watch);
    assert_int_equal(ptb_stream_sync(other), PTB_LOST);
    ptb_stream_watch_unlink(&watch);
    assert_int_equal(ptb_stream_sync(other), PTB_LOST);
    ptb_stream_free(other);
    ptb_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open),          cmocka_unit_test(test_ledger),
        cmocka_unit_test(test_fill),          cmocka_unit_test(test_check),
        cmocka_unit_test(test_zeros),         cmocka_unit_test(test_many_checks),
        cmocka_unit_test(test_reduce),        cmocka_unit_test(test_reduce_in_place),
        cmocka_unit_test(test_copies),        cmocka_unit_test(test_events),
        cmocka_unit_test(test_sticky_status), cmocka_unit_test(test_watch),
        cmocka_unit_test(test_priorities),
    };
    ptb_device *device;
    if (!ptb_registry_find(PTB_KIND_DEVICE, "cuda") || ptb_device_open("cuda", 0, &device) != PTB_OK) {
        printf("skipped: there is no device 'cuda' here\n");
        return SKIPPED;
    }
    ptb_device_close(device);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
