// What the tests of the host kernels share: a stream, arrays of numbers, and comparison with differentiated
// scalar programs.
#ifndef PTB_TESTS_UNIT_KERNELS_FIXTURE_H
#define PTB_TESTS_UNIT_KERNELS_FIXTURE_H

#include "core/random.h"
#include "strategies/transformer/kernels_host.h"
#include "tests/unit/tape.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

typedef struct {
    ptb_device *device;
    ptb_stream *stream;
    const ptb_kernels *kernels;
} fixture;

static inline int kernels_setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    assert_int_equal(ptb_device_open("host", 0, &f->device), PTB_OK);
    assert_int_equal(ptb_stream_new(f->device, PTB_STREAM_WORKER, 1, &f->stream), PTB_OK);
    f->kernels = (const ptb_kernels *)ptb_registry_find(PTB_KIND_KERNELS, "host");
    assert_non_null(f->kernels);
    assert_int_equal(f->kernels->set_threads(f->stream, 1), PTB_OK);
    *state = f;
    return 0;
}

static inline int kernels_teardown(void **state)
{
    fixture *f = *state;
    ptb_stream_free(f->stream);
    ptb_device_close(f->device);
    free(f);
    return 0;
}

// Heap array of normal numbers; `which` makes arrays of a test differ.
static inline float *numbers(size_t count, uint64_t which)
{
    float *a = malloc((count + 1) * sizeof *a);
    for (size_t i = 0; i < count; i++)
        a[i] = (float)ptb_random_normal(7, which, i);
    return a;
}

static inline float *copy_of(const float *a, size_t count)
{
    float *b = malloc(count * sizeof *b);
    memcpy(b, a, count * sizeof *b);
    return b;
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
