// What the tests of kernels share: a device and a stream, arrays of numbers, and comparison with
// differentiated scalar programs. The kernels are those of the device that PTB_TEST_DEVICE names (host unless
// it is set). Every array that kernels touch comes from test_memory: memory that the device and the test both
// see.
#ifndef PTB_TESTS_UNIT_KERNELS_FIXTURE_H
#define PTB_TESTS_UNIT_KERNELS_FIXTURE_H

#include "core/random.h"
#include "strategies/transformer/kernels.h"
#include "tests/unit/device_fixture.h"
#include "tests/unit/tape.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct {
    ptb_device *device;
    ptb_stream *stream;
    const ptb_kernels *kernels;
} fixture;

// Where test_memory takes memory from: the device of the test that runs, NULL on the host.
static ptb_device *test_memory_device;

static inline int kernels_setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    assert_int_equal(ptb_device_open(test_device(), 0, &f->device), PTB_OK);
    assert_int_equal(ptb_stream_new(f->device, PTB_STREAM_WORKER, 1, &f->stream), PTB_OK);
    f->kernels = test_kernels();
    assert_non_null(f->kernels);
    assert_int_equal(f->kernels->set_threads(f->stream, 1), PTB_OK);
    test_memory_device = test_on_host() ? NULL : f->device;
    *state = f;
    return 0;
}

// For tests that compare bits: nothing is chosen by its time.
static inline int kernels_setup_repeatable(void **state)
{
    kernels_setup(state);
    fixture *f = *state;
    if (f->kernels->set_search)
        assert_int_equal(f->kernels->set_search(f->stream, false), PTB_OK);
    return 0;
}

static inline int kernels_teardown(void **state)
{
    fixture *f = *state;
    ptb_stream_free(f->stream);
    ptb_device_close(f->device);
    test_memory_device = NULL;
    free(f);
    return 0;
}

// Exactly `bytes` on the host, so that sanitizers see what is read beyond; not set to anything.
static inline void *test_memory(size_t bytes)
{
    if (test_memory_device) {
        void *shared[1];
        assert_int_equal(ptb_device_alloc_host(test_memory_device, bytes + !bytes, shared), PTB_OK);
        return *shared;
    }
    void *memory = malloc(bytes + !bytes);
    assert_non_null(memory);
    return memory;
}

// After stream_sync, and before the test ends.
static inline void test_memory_free(void *memory)
{
    if (test_memory_device)
        ptb_device_free_host(test_memory_device, memory);
    else
        free(memory);
}

// Bytes in test_memory with the contents of `from`.
static inline void *test_memory_of(const void *from, size_t bytes)
{
    return memcpy(test_memory(bytes), from, bytes);
}

// Array of normal numbers in test_memory; `which` makes arrays of a test differ.
static inline float *numbers(size_t count, uint64_t which)
{
    float *a = test_memory((count + 1) * sizeof *a);
    for (size_t i = 0; i < count; i++)
        a[i] = (float)ptb_random_normal(7, which, i);
    return a;
}

static inline float *copy_of(const float *a, size_t count)
{
    return test_memory_of(a, count * sizeof *a);
}

static inline void finish(fixture *f, ptb_status enqueued)
{
    assert_int_equal(enqueued, PTB_OK);
    assert_int_equal(ptb_stream_sync(f->stream), PTB_OK);
}

static inline void assert_near(const float *got, const double *wanted, size_t count, double limit)
{
    double distance = tape_distance(got, wanted, count);
    if (!(distance < limit))
        fail_msg("relative distance %g over %zu elements", distance, count);
}

static inline void leaves(tape *t, const float *values, size_t count, var *out)
{
    for (size_t i = 0; i < count; i++)
        out[i] = tape_leaf(t, values[i]);
}

// root = sum of weight . out, whose gradient to out is weight
static inline var weighted_sum(tape *t, const var *out, const float *weight, size_t count)
{
    var sum = tape_leaf(t, 0);
    for (size_t i = 0; i < count; i++)
        sum = tape_axpy(t, weight[i], out[i], sum);
    return sum;
}

// The gradients (plus `added` where given) of `count` variables against got.
static inline void assert_gradients(const tape *t, const var *vars, const float *added, const float *got,
                                    size_t count)
{
    double *wanted = malloc(count * sizeof *wanted);
    for (size_t i = 0; i < count; i++)
        wanted[i] = t->nodes[vars[i]].gradient + (added ? added[i] : 0);
    assert_near(got, wanted, count, 2e-6);
    free(wanted);
}

static inline void assert_values(const tape *t, const var *vars, const float *got, size_t count)
{
    double *wanted = malloc(count * sizeof *wanted);
    for (size_t i = 0; i < count; i++)
        wanted[i] = t->nodes[vars[i]].value;
    assert_near(got, wanted, count, 1e-6);
    free(wanted);
}

#endif
