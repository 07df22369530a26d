// What vector operations cost: seconds of one element on one thread, from arrays of `count` elements (a
// multiple of 4 vectors; `values`: room for 2 * count) that the first-level cache holds.
#ifndef PTB_TESTS_BENCH_ELEMENT_RATES_H
#define PTB_TESTS_BENCH_ELEMENT_RATES_H

#include "core/clock.h"
#include "strategies/transformer/kernels_host_vector.h"

#include <math.h>

static inline ptb_vec element_exp(ptb_vec x)
{
    return ptb_vec_exp2(x);
}

static inline ptb_vec element_divide(ptb_vec x)
{
    return 1 / x;
}

static inline ptb_vec element_root(ptb_vec x)
{
    for (int lane = 0; lane < PTB_LANES; lane++)
        x[lane] = sqrtf(x[lane]);
    return x;
}

enum { CHAIN = 15 }; // operations of each element, a mix as kernels have it
static inline ptb_vec element_other(ptb_vec x)
{
    for (int i = 0; i < CHAIN; i += 3) {
        x = x * x + 0.25f;
        x = x + 0.5f;
        x = (ptb_vec)((ptb_vec_bits)x & 0xbfffffff);
    }
    return x;
}

// Seconds of one element of an array in the first-level cache; the least of many runs.
#define ELEMENT_SECONDS(name)                                                                                \
    static inline double seconds_##name(float *values, size_t count)                                         \
    {                                                                                                        \
        double least = 1;                                                                                    \
        for (int run = 0; run < 2000; run++) {                                                               \
            int64_t begin = ptb_clock_ns();                                                                  \
            for (int repeat = 0; repeat < 10; repeat++) {                                                    \
                for (size_t i = 0; i < count; i += 4 * PTB_LANES)                                            \
                    for (size_t part = 0; part < 4; part++) {                                                \
                        ptb_vec x = ptb_vec_load(PTB_F32, values, i + part * PTB_LANES);                     \
                        ptb_vec_store(PTB_F32, values + count, i + part * PTB_LANES, element_##name(x));     \
                    }                                                                                        \
                __asm__ volatile("" ::"r"(values) : "memory");                                               \
            }                                                                                                \
            least = fmin(least, (double)(ptb_clock_ns() - begin) * 1e-9 / (10 * (double)count));             \
        }                                                                                                    \
        return least;                                                                                        \
    }
ELEMENT_SECONDS(exp)
ELEMENT_SECONDS(divide)
ELEMENT_SECONDS(root)
ELEMENT_SECONDS(other)

// That a value is used costs nothing where it may stay in its register.
#if defined PTB_VECTOR_512
#define USE(x) __asm__ volatile("" ::"v"(x))
#elif defined __x86_64__
#define USE(x) __asm__ volatile("" ::"x"(x))
#else
#define USE(x) __asm__ volatile("" ::"r"(&(x)) : "memory")
#endif

// Seconds of the conversion of one element to f32, loaded from the first-level cache, or from f32; the least
// of many runs.
static inline double conversion_seconds(ptb_dtype type, bool widens, const void *values, size_t count)
{
    double least = 1;
    for (int run = 0; run < 2000; run++) {
        int64_t begin = ptb_clock_ns();
        for (int repeat = 0; repeat < 100; repeat++) {
            for (size_t i = 0; i < count; i += 4 * PTB_LANES)
                for (size_t part = 0; part < 4; part++) {
                    ptb_vec x = ptb_vec_load(widens ? type : PTB_F32, values, i + part * PTB_LANES);
                    if (widens) {
                        USE(x);
                        continue;
                    }
                    ptb_vec_half bits = type == PTB_BF16 ? ptb_vec_to_bf16(x) : ptb_vec_to_f16(x);
                    USE(bits);
                }
            __asm__ volatile("" ::"r"(values) : "memory");
        }
        least = fmin(least, (double)(ptb_clock_ns() - begin) * 1e-9 / (100 * (double)count));
    }
    return least;
}

#undef ELEMENT_SECONDS
#undef USE

#endif
