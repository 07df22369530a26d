// What the tests of row, elementwise, loss and optimizer kernels share: arrays of every type with a guard
// behind them, references in double precision, gradients by central differences, and comparison over numbers
// of threads.
#ifndef PTB_TESTS_UNIT_KERNELS_ROWS_H
#define PTB_TESTS_UNIT_KERNELS_ROWS_H

#include "tests/unit/kernels_fixture.h"

#define LENGTH(array) (sizeof(array) / sizeof *(array))

static const ptb_dtype compute_types[] = {PTB_F32, PTB_BF16, PTB_F16};
enum { GUARD = 64 }; // bytes behind an array that nobody may write

// A fixture and what a test has allocated with it, freed together.
typedef struct {
    fixture *f;
    void *blocks[128];
    size_t count;
} bag;

static inline void *bag_bytes(bag *b, size_t bytes)
{
    assert_true(b->count < LENGTH(b->blocks));
    char *block = test_memory(bytes + GUARD);
    memset(block, 0xee, bytes + GUARD); // NaN in every type: what is not written shows
    return b->blocks[b->count++] = block;
}

static inline void bag_release(bag *b)
{
    while (b->count)
        test_memory_free(b->blocks[--b->count]);
}

// count elements of a type, in bytes [count * size].
typedef struct {
    ptb_dtype type;
    size_t count;
    void *data;
} array;

static inline double array_at(array a, size_t i)
{
    return ptb_dtype_load(a.type, (const char *)a.data + i * ptb_dtype_size(a.type));
}

static inline void array_set(array a, size_t i, double value)
{
    ptb_dtype_store(a.type, (char *)a.data + i * ptb_dtype_size(a.type), value);
}

static inline array array_new(bag *b, ptb_dtype type, size_t count)
{
    return (array){type, count, bag_bytes(b, count * ptb_dtype_size(type))};
}

// Normal numbers, exact in the type; `which` makes arrays of a test differ.
static inline array array_numbers(bag *b, ptb_dtype type, size_t count, uint64_t which)
{
    array a = array_new(b, type, count);
    for (size_t i = 0; i < count; i++)
        array_set(a, i, ptb_random_normal(11, which, i));
    return a;
}

static inline array array_copy(bag *b, array from)
{
    array a = array_new(b, from.type, from.count);
    memcpy(a.data, from.data, from.count * ptb_dtype_size(from.type));
    return a;
}

static inline double *array_doubles(bag *b, array from)
{
    double *values = bag_bytes(b, from.count * sizeof *values);
    for (size_t i = 0; i < from.count; i++)
        values[i] = array_at(from, i);
    return values;
}

static inline void assert_guarded(array a)
{
    const unsigned char *behind = (const unsigned char *)a.data + a.count * ptb_dtype_size(a.type);
    for (size_t i = 0; i < GUARD; i++)
        if (behind[i] != 0xee)
            fail_msg("byte %zu behind %zu elements of %s was written", i, a.count, ptb_dtype_name(a.type));
}

static inline bool array_equal(array a, array b)
{
    assert_int_equal(a.count, b.count);
    return memcmp(a.data, b.data, a.count * ptb_dtype_size(a.type)) == 0;
}

// ||got - wanted|| / ||wanted|| within the rounding of the type, and nothing written behind. Values whose
// norm is far below `floor` per element, as where the true result is 0, are compared with that.
static inline void assert_close(const char *what, array got, const double *wanted, double floor)
{
    // f16, bf16: half a unit in the last place, for one rounding at the end. f32: the sums.
    double limit = got.type == PTB_F32 ? 2e-6 : got.type == PTB_F16 ? 0x1.01p-11 : 0x1.01p-8;
    double error = 0, norm = floor * floor * (double)got.count;
    for (size_t i = 0; i < got.count; i++) {
        double e = array_at(got, i) - wanted[i];
        error += e * e;
        norm += wanted[i] * wanted[i];
    }
    if (!(error <= limit * limit * norm))
        fail_msg("%s of %zu %s: relative error %g", what, got.count, ptb_dtype_name(got.type),
                 sqrt(error / norm));
    assert_guarded(got);
}

// gradient[i] = d objective / d x[i], by central differences in double.
typedef double objective_fn(void *context);
static inline void differences(objective_fn *objective, void *context, double *x, size_t count,
                               double *gradient)
{
    const double step = 1e-5;
    for (size_t i = 0; i < count; i++) {
        double x0 = x[i];
        x[i] = x0 + step;
        double above = objective(context);
        x[i] = x0 - step;
        gradient[i] = (above - objective(context)) / (2 * step);
        x[i] = x0;
    }
}

// run(b, context, results) computes with the fixture's kernels and names up to RESULTS_MOST arrays; they must
// be the same, bit by bit, on 1, 2 and 3 threads.
enum { RESULTS_MOST = 8, THREADS_MOST = 3 };
typedef size_t run_fn(bag *b, ptb_dtype type, array *results);
static inline void assert_same_for_threads(fixture *f, run_fn *run)
{
    for (size_t t = 0; t < LENGTH(compute_types); t++) {
        bag b = {.f = f};
        array results[THREADS_MOST][RESULTS_MOST];
        size_t count = 0;
        for (int threads = 1; threads <= THREADS_MOST; threads++) {
            assert_int_equal(f->kernels->set_threads(f->stream, threads), PTB_OK);
            count = run(&b, compute_types[t], results[threads - 1]);
            assert_true(count > 0 && count <= RESULTS_MOST);
        }
        for (int threads = 1; threads < THREADS_MOST; threads++)
            for (size_t i = 0; i < count; i++)
                if (!array_equal(results[0][i], results[threads][i]))
                    fail_msg("result %zu in %s differs between 1 and %d threads", i,
                             ptb_dtype_name(compute_types[t]), threads + 1);
        assert_int_equal(f->kernels->set_threads(f->stream, 1), PTB_OK);
        bag_release(&b);
    }
}

#define KERNEL_TEST(test) cmocka_unit_test_setup_teardown(test, kernels_setup, kernels_teardown)

#endif
