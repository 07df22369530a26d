// Element types and reductions: every conversion against a definition that is written differently, every
// kernel and form against one element at a time.
#include "core/dtype.h"
#include "core/random.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __F16C__
#include <immintrin.h>
#endif

static void test_names(void **state)
{
    (void)state;
    for (int i = 0; i < PTB_DTYPE_COUNT; i++) {
        ptb_dtype type = PTB_DTYPE_COUNT;
        assert_true(ptb_dtype_parse(ptb_dtype_name((ptb_dtype)i), &type));
        assert_int_equal(type, i);
        assert_string_equal(ptb_dtype_names[i], ptb_dtype_name((ptb_dtype)i));
    }
    assert_null(ptb_dtype_names[PTB_DTYPE_COUNT]);
    for (int i = 0; i < PTB_REDOP_COUNT; i++) {
        ptb_redop op = PTB_REDOP_COUNT;
        assert_true(ptb_redop_parse(ptb_redop_name((ptb_redop)i), &op));
        assert_int_equal(op, i);
    }
    assert_null(ptb_redop_names[PTB_REDOP_COUNT]);
    assert_string_equal(ptb_redop_name(PTB_AVG), "avg");
    ptb_dtype type;
    assert_true(ptb_dtype_parse("half", &type) && type == PTB_F16);
    assert_true(ptb_dtype_parse("bfloat16", &type) && type == PTB_BF16);
    assert_true(ptb_dtype_parse("int32", &type) && type == PTB_I32);
    assert_true(ptb_dtype_parse("float", &type) && type == PTB_F32);
    ptb_redop op = PTB_MAX;
    assert_false(ptb_dtype_parse("f33", &type));
    assert_false(ptb_dtype_parse("", &type));
    assert_false(ptb_redop_parse("mean", &op));
    assert_int_equal(type, PTB_F32); // untouched
    assert_int_equal(op, PTB_MAX);
    assert_true(ptb_dtype_is_float(PTB_BF16));
    assert_false(ptb_dtype_is_float(PTB_U8));
    assert_int_equal(ptb_dtype_significant_bits(PTB_BF16), 8);
}

// The value of 16-bit floating bits by definition.
static double define_half(uint16_t bits, int mantissa_bits, int bias)
{
    int mantissa = bits & ((1 << mantissa_bits) - 1), top = (1 << (15 - mantissa_bits)) - 1;
    int exponent = bits >> mantissa_bits & top;
    double value;
    if (exponent == top)
        value = mantissa ? NAN : INFINITY;
    else if (exponent == 0)
        value = ldexp(mantissa, 1 - bias - mantissa_bits);
    else
        value = ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
    return bits & 0x8000 ? -value : value;
}

static void test_half_values(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits <= 0xffff; bits++) {
        double f16 = define_half((uint16_t)bits, 10, 15), bf16 = define_half((uint16_t)bits, 7, 127);
        float got16 = ptb_f16_to_f32((uint16_t)bits), gotb = ptb_bf16_to_f32((uint16_t)bits);
        if (isnan(f16))
            assert_true(isnan(got16) && isnan(ptb_f16_to_f32(ptb_f32_to_f16(got16))));
        else
            assert_true(got16 == f16 && ptb_f32_to_f16(got16) == bits);
        if (isnan(bf16))
            assert_true(isnan(gotb) && isnan(ptb_bf16_to_f32(ptb_f32_to_bf16(gotb))));
        else
            assert_true(gotb == bf16 && ptb_f32_to_bf16(gotb) == bits);
    }
}

// Between each two neighbours: below, at and above the middle, as float and (closer to the middle) as double.
static void check_rounding(ptb_dtype type, uint16_t (*narrow)(float), int mantissa_bits, int bias)
{
    uint16_t infinity = (uint16_t)(((1 << (15 - mantissa_bits)) - 1) << mantissa_bits);
    for (uint16_t low = 0; low < infinity; low++) {
        uint16_t high = (uint16_t)(low + 1), even = low & 1 ? high : low, got;
        double from = define_half(low, mantissa_bits, bias), to = define_half(high, mantissa_bits, bias);
        if (high == infinity)
            to = ldexp(1, bias + 1); // where the next number would be
        double middle = from + (to - from) / 2;
        for (int negative = 0; negative <= 1; negative++) {
            double sign = negative ? -1 : 1;
            uint16_t flag = negative ? 0x8000 : 0;
            assert_int_equal(narrow((float)(sign * middle)), even | flag);
            if (isfinite((float)middle)) {
                assert_int_equal(narrow((float)sign * nextafterf((float)middle, 0)), low | flag);
                assert_int_equal(narrow((float)sign * nextafterf((float)middle, INFINITY)), high | flag);
            }
            ptb_dtype_store(type, &got, sign * middle);
            assert_int_equal(got, even | flag);
            ptb_dtype_store(type, &got, sign * nextafter(middle, 0));
            assert_int_equal(got, low | flag);
            ptb_dtype_store(type, &got, sign * nextafter(middle, INFINITY));
            assert_int_equal(got, high | flag);
        }
    }
}

static void test_half_rounding(void **state)
{
    (void)state;
    check_rounding(PTB_F16, ptb_f32_to_f16, 10, 15);
    check_rounding(PTB_BF16, ptb_f32_to_bf16, 7, 127);
    assert_int_equal(ptb_f32_to_f16(INFINITY), 0x7c00);
    assert_int_equal(ptb_f32_to_bf16(-INFINITY), 0xff80);
    uint16_t got;
    ptb_dtype_store(PTB_F16, &got, 1e300);
    assert_int_equal(got, 0x7c00);
}

#ifdef __F16C__
static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

// Against the processor, over all exponents, NaNs included.
static void test_f16_hardware(void **state)
{
    (void)state;
    for (uint64_t bits = 0; bits <= UINT32_MAX; bits += 1021) {
        float value = float_of((uint32_t)bits);
        assert_int_equal(ptb_f32_to_f16(value), _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT));
    }
    for (uint32_t bits = 0; bits <= 0xffff; bits++)
        assert_int_equal(bits_of(ptb_f16_to_f32((uint16_t)bits)), bits_of(_cvtsh_ss((uint16_t)bits)));
}
#endif

static void test_f16_arrays(void **state)
{
    (void)state;
    enum { MANY = 75 };
    float wide[MANY] = {0}, back[MANY];
    uint16_t narrow[MANY + 1];
    for (size_t count = 0; count <= MANY; count++) {
        for (size_t i = 0; i < count; i++)
            wide[i] = (float)(ptb_random_uniform(1, count, i) * 8 - 4);
        narrow[count] = 0xbeef;
        ptb_f32_to_f16_array(narrow, wide, count);
        assert_int_equal(narrow[count], 0xbeef);
        ptb_f16_to_f32_array(back, narrow, count);
        for (size_t i = 0; i < count; i++) {
            assert_int_equal(narrow[i], ptb_f32_to_f16(wide[i]));
            assert_true(back[i] == ptb_f16_to_f32(narrow[i]));
        }
    }
}

static void test_load_store(void **state)
{
    (void)state;
    static const struct {
        ptb_dtype type;
        double in, out;
    } cases[] = {
        {PTB_F64, 0.1, 0.1},
        {PTB_F32, 0.5, 0.5},
        {PTB_F32, 1.0 + 0x1p-24 + 0x1p-40, 1.0 + 0x1p-23},
        {PTB_I64, -9007199254740991.0, -9007199254740991.0},
        {PTB_I64, 1e30, 0x1p63},
        {PTB_I32, -2147483648.0, -2147483648.0},
        {PTB_I32, 3e9, 2147483647.0},
        {PTB_I32, -2.9, -2},
        {PTB_I8, -128, -128},
        {PTB_I8, 300, 127},
        {PTB_U8, 255, 255},
        {PTB_U8, -1, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        unsigned char bytes[9];
        memset(bytes, 0x5a, sizeof bytes);
        ptb_dtype_store(cases[i].type, bytes + 1, cases[i].in); // at any address
        assert_true(ptb_dtype_load(cases[i].type, bytes + 1) == cases[i].out);
        assert_int_equal(bytes[0], 0x5a);
    }
    int32_t from_nan = 7;
    ptb_dtype_store(PTB_I32, &from_nan, NAN);
    assert_int_equal(from_nan, 0);
}

static bool is_less(ptb_dtype type, const void *a, const void *b)
{
    if (type == PTB_I64) { // a double does not hold all of them
        int64_t x, y;
        memcpy(&x, a, 8);
        memcpy(&y, b, 8);
        return x < y;
    }
    return ptb_dtype_load(type, a) < ptb_dtype_load(type, b);
}

// One element by definition.
static void reduce_one(ptb_dtype type, ptb_redop op, void *out, const void *a, const void *b)
{
    size_t size = ptb_dtype_size(type);
    if (op == PTB_MIN || op == PTB_MAX) {
        bool take_a = op == PTB_MIN ? is_less(type, a, b) : is_less(type, b, a);
        memcpy(out, take_a ? a : b, size);
    } else if (type == PTB_F64) {
        double x = ptb_dtype_load(type, a), y = ptb_dtype_load(type, b);
        ptb_dtype_store(type, out, op == PTB_PROD ? x * y : x + y);
    } else if (ptb_dtype_is_float(type)) {
        float x = (float)ptb_dtype_load(type, a), y = (float)ptb_dtype_load(type, b);
        volatile float result = op == PTB_PROD ? x * y : x + y;
        ptb_dtype_store(type, out, result);
    } else { // the low bytes of a 64-bit result are the wrapped result (little-endian)
        uint64_t x = 0, y = 0;
        memcpy(&x, a, size);
        memcpy(&y, b, size);
        x = op == PTB_PROD ? x * y : x + y;
        memcpy(out, &x, size);
    }
}

enum { ROOM = 5000, GUARD = 64 };
typedef struct {
    _Alignas(64) unsigned char bytes[GUARD + ROOM * 8 + GUARD];
} arena;
static arena a_arena, b_arena, out_arena, out1_arena, wanted_arena;

// Random bits; floats finite and of moderate size, with both zeros among them.
static void draw(ptb_dtype type, unsigned char *at, size_t count, uint64_t stream)
{
    size_t size = ptb_dtype_size(type);
    for (size_t i = 0; i < count; i++) {
        uint64_t bits = ptb_random_u64(3, stream, i);
        if (ptb_dtype_is_float(type))
            ptb_dtype_store(type, at + i * size,
                            ((double)(bits >> 40) - 0x1p23) * (bits & 7 ? 0x1p-18 : 0.0));
        else
            memcpy(at + i * size, &bits, size);
    }
}

static void assert_result(ptb_dtype type, ptb_redop op, const char *form, size_t count, size_t offset,
                          arena *got, size_t got_offset)
{
    size_t bytes = count * ptb_dtype_size(type);
    const unsigned char *out = got->bytes + got_offset;
    if (memcmp(out, wanted_arena.bytes, bytes) != 0 || out[-1] != 0x77 || out[bytes] != 0x77)
        fail_msg("%s %s %s, %zu elements at byte %zu", ptb_dtype_name(type), ptb_redop_name(op), form, count,
                 offset);
}

static unsigned char *prepare(arena *buffer, size_t offset)
{
    memset(buffer->bytes, 0x77, sizeof buffer->bytes);
    return buffer->bytes + offset;
}

static void check_forms(ptb_dtype type, ptb_redop op, size_t count, size_t a_at, size_t b_at, size_t out_at)
{
    size_t size = ptb_dtype_size(type), bytes = count * size;
    unsigned char *a = prepare(&a_arena, a_at), *b = prepare(&b_arena, b_at);
    draw(type, a, count, 1);
    draw(type, b, count, 2);
    for (size_t i = 0; i < count; i++)
        reduce_one(type, op, wanted_arena.bytes + i * size, a + i * size, b + i * size);

    ptb_reduce_function(type, op)(prepare(&out_arena, out_at), a, b, count);
    assert_result(type, op, "plain", count, out_at, &out_arena, out_at);
    ptb_reduce_function_streaming(type, op)(prepare(&out_arena, out_at), a, b, count);
    assert_result(type, op, "streaming", count, out_at, &out_arena, out_at);
    for (int streaming = 0; streaming <= 1; streaming++) {
        size_t other_at = streaming && count % 2 ? out_at : b_at; // equal and different places in a line
        ptb_reduce2_function(type, op)(prepare(&out_arena, out_at), prepare(&out1_arena, other_at), a, b,
                                       count, streaming);
        assert_result(type, op, "first of two", count, out_at, &out_arena, out_at);
        assert_result(type, op, "second of two", count, out_at, &out1_arena, other_at);
    }
    unsigned char *in_place = prepare(&out_arena, a_at);
    memcpy(in_place, a, bytes);
    ptb_reduce_function(type, op)(in_place, in_place, b, count);
    assert_result(type, op, "in place of a", count, a_at, &out_arena, a_at);
    in_place = prepare(&out_arena, b_at);
    memcpy(in_place, b, bytes);
    ptb_reduce_function(type, op)(in_place, a, in_place, count);
    assert_result(type, op, "in place of b", count, b_at, &out_arena, b_at);
    ptb_reduce2_function(type, op)(a, b, a, b, count, false); // as in an in-place all-reduce of two
    assert_result(type, op, "in place of both, a", count, a_at, &a_arena, a_at);
    assert_result(type, op, "in place of both, b", count, b_at, &b_arena, b_at);
}

static void test_reduce(void **state)
{
    (void)state;
    static const size_t counts[] = {0, 1, 2, 7, 15, 16, 17, 31, 33, 63, 64, 65, 129, 300, 1023, 2049, 4999};
    for (int type = 0; type < PTB_DTYPE_COUNT; type++)
        for (int op = 0; op < PTB_REDOP_COUNT; op++)
            for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
                size_t size = ptb_dtype_size((ptb_dtype)type);
                check_forms(type, op, counts[i], GUARD, GUARD, GUARD);
                check_forms(type, op, counts[i], GUARD + 3 * size, GUARD, GUARD + 5 * size);
                check_forms(type, op, counts[i], GUARD + 1, GUARD + 3, GUARD + 7); // not even element-aligned
            }
}

static void test_reduce_overflow(void **state)
{
    (void)state;
    int32_t a = INT32_MAX, b = 1, out;
    ptb_reduce_function(PTB_I32, PTB_SUM)(&out, &a, &b, 1);
    assert_int_equal(out, INT32_MIN);
    int64_t c = INT64_MIN, d = -1, wide;
    ptb_reduce_function(PTB_I64, PTB_PROD)(&wide, &c, &d, 1);
    assert_true(wide == INT64_MIN);
    uint8_t e = 255, f = 2, narrow;
    ptb_reduce_function(PTB_U8, PTB_SUM)(&narrow, &e, &f, 1);
    assert_int_equal(narrow, 1);
}

static bool is_bf16_nan(uint16_t bits)
{
    return (bits & 0x7fff) > 0x7f80;
}

// Infinities, overflow, and NaNs of every payload that rounding could carry out of, in vectors and alone.
static void test_bf16_special(void **state)
{
    (void)state;
    static const uint16_t pairs[][2] = {
        {0x7f80, 0xff80}, {0x7f7f, 0x7f7f}, {0x7fff, 0x3f80},
        {0xffff, 0x3f80}, {0x3f80, 0x7fc1}, {0x7f81, 0x0000},
    };
    enum { MANY = 65, PAIRS = sizeof pairs / sizeof *pairs };
    _Alignas(64) uint16_t a[MANY], b[MANY], out[MANY];
    for (int i = 0; i < MANY; i++) {
        a[i] = pairs[i % PAIRS][0];
        b[i] = pairs[i % PAIRS][1];
    }
    for (int streaming = 0; streaming <= 1; streaming++)
        for (int op = PTB_SUM; op <= PTB_PROD; op++) {
            if (streaming)
                ptb_reduce_function_streaming(PTB_BF16, (ptb_redop)op)(out, a, b, MANY);
            else
                ptb_reduce_function(PTB_BF16, (ptb_redop)op)(out, a, b, MANY);
            for (int i = 0; i < MANY; i++) {
                int pair = i % PAIRS;
                if (pair == 1)
                    assert_int_equal(out[i], 0x7f80);
                else if (pair == 0 && op == PTB_PROD)
                    assert_int_equal(out[i], 0xff80);
                else
                    assert_true(is_bf16_nan(out[i]));
            }
        }
}

static void test_finish(void **state)
{
    (void)state;
    for (int type = 0; type < PTB_DTYPE_COUNT; type++) {
        size_t size = ptb_dtype_size((ptb_dtype)type);
        bool is_float = ptb_dtype_is_float((ptb_dtype)type), is_unsigned = type == PTB_U8;
        for (size_t count = 0; count < 1200; count += 37) {
            unsigned char *at = prepare(&a_arena, GUARD + 1);
            for (size_t i = 0; i < count; i++)
                ptb_dtype_store((ptb_dtype)type, at + i * size, (double)(i % 120) - (is_unsigned ? 0 : 60));
            int ranks = count % 2 ? 7 : 300;
            ptb_reduce_finish((ptb_dtype)type, PTB_SUM, at, count, ranks); // nothing
            ptb_reduce_finish((ptb_dtype)type, PTB_AVG, at, count, ranks);
            for (size_t i = 0; i < count; i++) {
                double value = (double)(i % 120) - (is_unsigned ? 0 : 60);
                unsigned char want[8];
                double quotient = type == PTB_F64 ? value / ranks : (double)((float)value / (float)ranks);
                ptb_dtype_store((ptb_dtype)type, want, is_float ? quotient : trunc(value / ranks));
                assert_memory_equal(at + i * size, want, size);
            }
            assert_int_equal(at[-1], 0x77);
            assert_int_equal(at[count * size], 0x77);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),         cmocka_unit_test(test_half_values),
        cmocka_unit_test(test_half_rounding),
#ifdef __F16C__
        cmocka_unit_test(test_f16_hardware),
#endif
        cmocka_unit_test(test_f16_arrays),    cmocka_unit_test(test_load_store),
        cmocka_unit_test(test_reduce),        cmocka_unit_test(test_reduce_overflow),
        cmocka_unit_test(test_bf16_special),  cmocka_unit_test(test_finish),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
