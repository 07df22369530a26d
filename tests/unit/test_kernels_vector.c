// The vectors of the host kernels against libm and core/dtype.h: conversions of every 16-bit pattern, partial
// loads and stores, exponentials, logarithm, random draws.
#include "core/random.h"
#include "strategies/transformer/kernels_host_vector.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static uint16_t to_half(ptb_dtype type, float value)
{
    uint16_t halves[PTB_LANES];
    ptb_vec_store(type, halves, 0, ptb_vec_set(value));
    for (size_t i = 1; i < PTB_LANES; i++)
        assert_int_equal(halves[i], halves[0]);
    return halves[0];
}

// Every value of a 16-bit type comes back; numbers between two of them round as core/dtype.h does it.
static void check_half(ptb_dtype type, float (*widen)(uint16_t), uint16_t (*narrow)(float))
{
    for (uint32_t bits = 0; bits <= UINT16_MAX; bits++) {
        uint16_t half = (uint16_t)bits, halves[PTB_LANES];
        for (size_t i = 0; i < PTB_LANES; i++)
            halves[i] = half;
        float value = widen(half), got = ptb_vec_load(type, halves, 0)[PTB_LANES - 1];
        assert_true(isnan(value) ? isnan(got) : value == got);
        if (isnan(value)) {
            assert_true(isnan(widen(to_half(type, value))));
            continue;
        }
        if (type == PTB_BF16 && fabsf(value) < 0x1p-126f) // subnormal: kept, or 0 of the same sign
            continue;
        assert_int_equal(to_half(type, value), half);
        for (uint32_t step = 1; step < 1u << 16; step += 1021) {
            uint32_t pattern;
            memcpy(&pattern, &value, sizeof value);
            pattern += step;
            float between;
            memcpy(&between, &pattern, sizeof between);
            if (!isnan(between) && fabsf(between) >= 0x1p-126f)
                assert_int_equal(to_half(type, between), narrow(between));
        }
    }
}

static void test_halves(void **state)
{
    (void)state;
    check_half(PTB_BF16, ptb_bf16_to_f32, ptb_f32_to_bf16);
    check_half(PTB_F16, ptb_f16_to_f32, ptb_f32_to_f16);
}

static void test_some(void **state)
{
    (void)state;
    static const ptb_dtype types[] = {PTB_F32, PTB_BF16, PTB_F16};
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (size_t n = 1; n <= PTB_LANES; n++) {
            size_t bytes = ptb_dtype_size(types[t]);
            char in[(PTB_LANES + 2) * 4], out[(PTB_LANES + 2) * 4];
            memset(out, 0x55, sizeof out);
            for (size_t i = 0; i < PTB_LANES + 2; i++)
                ptb_dtype_store(types[t], in + i * bytes, (double)i + 1);
            ptb_vec v = ptb_vec_load_some(types[t], in, 1, n);
            for (size_t i = 0; i < PTB_LANES; i++)
                assert_true(v[i] == (i < n ? (float)i + 2 : 0));
            ptb_vec_store_some(types[t], out, 1, n, v);
            assert_memory_equal(out + bytes, in + bytes, n * bytes);
            for (size_t i = 0; i < bytes; i++)
                assert_true(out[i] == 0x55 && out[(n + 1) * bytes + i] == 0x55);
        }
}

static double relative(float got, double wanted)
{
    return fabs((double)got / wanted - 1);
}

static void test_functions(void **state)
{
    (void)state;
    for (int i = 0; i < 400000; i++) {
        float x = (float)(ptb_random_uniform(1, 1, (uint64_t)i) * 2 - 1);
        assert_true(relative(ptb_vec_exp(ptb_vec_set(x * 86))[0], exp((double)(x * 86))) < 2e-7);
        assert_true(relative(ptb_vec_exp2(ptb_vec_set(x * 126))[0], exp2((double)(x * 126))) < 2e-7);
        float y = (float)exp2((double)x * 120), near = 1 + x / 4;
        double log_y = log((double)y);
        assert_true(fabs((double)ptb_vec_log(ptb_vec_set(y))[0] - log_y) < 2e-7 * (1 + fabs(log_y)));
        assert_true(fabs((double)ptb_vec_log(ptb_vec_set(near))[0] - log((double)near)) < 2e-7);
    }
    assert_true(ptb_vec_exp(ptb_vec_set(0))[0] == 1 && ptb_vec_exp2(ptb_vec_set(0))[0] == 1);
    assert_true(ptb_vec_exp2(ptb_vec_set(-INFINITY))[0] < 2e-38f &&
                ptb_vec_exp(ptb_vec_set(-200))[0] < 2e-38f);
    assert_true(isnan(ptb_vec_exp(ptb_vec_set(NAN))[0]) && isnan(ptb_vec_exp2(ptb_vec_set(NAN))[0]));
    assert_true(ptb_vec_log(ptb_vec_set(1))[0] == 0);
    ptb_vec v = (ptb_vec) __builtin_convertvector(ptb_vec_iota(), ptb_vec);
    assert_true(ptb_vec_sum(v) == PTB_LANES * (PTB_LANES - 1) / 2);
    assert_true(ptb_vec_largest(-v) == 0 && ptb_vec_largest(v) == PTB_LANES - 1);
}

static void test_draws(void **state)
{
    (void)state;
    for (uint64_t row = 0; row < 1000; row++) {
        uint64_t key = ptb_dropout_key(5, row);
        ptb_vec_bits columns = (ptb_vec_bits)ptb_vec_iota() + (uint32_t)row * 77777u;
        ptb_vec_bits draws = ptb_vec_dropout_draw(ptb_vec_bits_set((uint32_t)key),
                                                  ptb_vec_bits_set((uint32_t)(key >> 32)), columns);
        for (size_t i = 0; i < PTB_LANES; i++)
            assert_int_equal(draws[i], ptb_dropout_draw(key, columns[i]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_halves),
        cmocka_unit_test(test_some),
        cmocka_unit_test(test_functions),
        cmocka_unit_test(test_draws),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
