// Names of element types and operations, and conversions of single elements. Add a type by adding a line to
// PTB_DTYPE_LIST, its load and store here, its kernels in core/reduce.c and its row in core/pattern.c.
#include "core/dtype.h"

#include <string.h>
#ifdef __F16C__
#include <immintrin.h>
#endif

const char *const ptb_dtype_names[] = {
#define X(upper, lower, bytes, floating, bits) #lower,
    PTB_DTYPE_LIST(X)
#undef X
        NULL};

const char *const ptb_redop_names[] = {"sum", "prod", "min", "max", "avg", NULL};

static const struct {
    const char *name;
    ptb_dtype type;
} aliases[] = {
    {"double", PTB_F64},  {"float64", PTB_F64},   {"fp64", PTB_F64},    {"float", PTB_F32},
    {"float32", PTB_F32}, {"fp32", PTB_F32},      {"half", PTB_F16},    {"float16", PTB_F16},
    {"fp16", PTB_F16},    {"bfloat16", PTB_BF16}, {"bfloat", PTB_BF16}, {"int64", PTB_I64},
    {"int32", PTB_I32},   {"int", PTB_I32},       {"int8", PTB_I8},     {"char", PTB_I8},
    {"uint8", PTB_U8},
};

const char *ptb_dtype_name(ptb_dtype type)
{
    return ptb_dtype_names[type];
}

bool ptb_dtype_parse(const char *name, ptb_dtype *type)
{
    for (int i = 0; i < PTB_DTYPE_COUNT; i++)
        if (strcmp(name, ptb_dtype_names[i]) == 0) {
            *type = (ptb_dtype)i;
            return true;
        }
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++)
        if (strcmp(name, aliases[i].name) == 0) {
            *type = aliases[i].type;
            return true;
        }
    return false;
}

bool ptb_dtype_is_float(ptb_dtype type)
{
    static const bool floating_types[] = {
#define X(upper, lower, bytes, floating, bits) floating,
        PTB_DTYPE_LIST(X)
#undef X
    };
    return floating_types[type];
}

int ptb_dtype_significant_bits(ptb_dtype type)
{
    static const int significant[] = {
#define X(upper, lower, bytes, floating, bits) bits,
        PTB_DTYPE_LIST(X)
#undef X
    };
    return significant[type];
}

const char *ptb_redop_name(ptb_redop op)
{
    return ptb_redop_names[op];
}

bool ptb_redop_parse(const char *name, ptb_redop *op)
{
    for (int i = 0; i < PTB_REDOP_COUNT; i++)
        if (strcmp(name, ptb_redop_names[i]) == 0) {
            *op = (ptb_redop)i;
            return true;
        }
    return false;
}

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

uint16_t ptb_f32_to_bf16(float value)
{
    uint32_t bits = bits_of(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) // NaN: keep it one, and quiet
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float ptb_bf16_to_f32(uint16_t bits)
{
    return float_of((uint32_t)bits << 16);
}

uint16_t ptb_f32_to_f16(float value)
{
    uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) // NaN: keep the top of its payload, quiet
        return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x1ff));
    if (magnitude >= 0x477ff000u) // rounds to 2^16 or more: infinity
        return (uint16_t)(sign | 0x7c00);
    if (magnitude < 0x38800000u) {
        // Below 2^-14: adding 0.5 aligns the mantissa to multiples of 2^-24, and the adder rounds to even.
        float shifted = float_of(magnitude) + 0.5f;
        return (uint16_t)(sign | (bits_of(shifted) - 0x3f000000u));
    }
    uint32_t rebased = magnitude - (112u << 23); // exponent bias 127 -> 15
    return (uint16_t)(sign | (rebased + 0xfff + (rebased >> 13 & 1)) >> 13);
}

float ptb_f16_to_f32(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16, exponent = bits >> 10 & 0x1f, mantissa = bits & 0x3ff;
    if (exponent == 0) { // zero and subnormals: an exact product
        float magnitude = (float)mantissa * 0x1p-24f;
        return float_of(sign | bits_of(magnitude));
    }
    if (exponent == 31) // infinity, or NaN made quiet
        return float_of(sign | 0x7f800000u | mantissa << 13 | (mantissa ? 0x400000u : 0));
    return float_of(sign | (exponent + 112) << 23 | mantissa << 13);
}

void ptb_f32_to_f16_array(uint16_t *out, const float *in, size_t count)
{
    size_t i = 0;
#ifdef __AVX512F__
    for (; i + 16 <= count; i += 16)
        _mm256_storeu_si256((__m256i *)(out + i),
                            _mm512_cvtps_ph(_mm512_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
    for (; i + 8 <= count; i += 8)
        _mm_storeu_si128((__m128i *)(out + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT));
#endif
    for (; i < count; i++)
        out[i] = ptb_f32_to_f16(in[i]);
}

void ptb_f16_to_f32_array(float *out, const uint16_t *in, size_t count)
{
    size_t i = 0;
#ifdef __AVX512F__
    for (; i + 16 <= count; i += 16)
        _mm512_storeu_ps(out + i, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(in + i))));
#elif defined(__F16C__)
    for (; i + 8 <= count; i += 8)
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(in + i))));
#endif
    for (; i < count; i++)
        out[i] = ptb_f16_to_f32(in[i]);
}

// Rounds to odd, so that rounding the result again to 16 bits gives what rounding `value` once would
// (Boldo and Melquiond, IEEE Trans. Computers 57(4), 2008).
static float round_to_odd(double value)
{
    float near = (float)value;
    if ((double)near == value || value != value)
        return near;
    uint32_t bits = bits_of(near), magnitude = bits & 0x7fffffffu;
    double size = value < 0 ? -value : value;
    if ((double)float_of(magnitude) > size)
        bits--; // toward zero
    return float_of(bits | 1);
}

// Converts with truncation; what does not fit is clamped, NaN becomes 0 (the C conversion would be
// undefined).
static int64_t integer_of(double value, int64_t low, int64_t high)
{
    if (value != value)
        return 0;
    if (value <= (double)low)
        return low;
    if (value >= (double)high)
        return high;
    return (int64_t)value;
}

double ptb_dtype_load(ptb_dtype type, const void *element)
{
    union {
        double f64;
        float f32;
        uint16_t u16;
        int64_t i64;
        int32_t i32;
        int8_t i8;
        uint8_t u8;
    } u;
    memcpy(&u, element, ptb_dtype_size(type));
    switch (type) {
    case PTB_F64:
        return u.f64;
    case PTB_F32:
        return (double)u.f32;
    case PTB_F16:
        return (double)ptb_f16_to_f32(u.u16);
    case PTB_BF16:
        return (double)ptb_bf16_to_f32(u.u16);
    case PTB_I64:
        return (double)u.i64;
    case PTB_I32:
        return u.i32;
    case PTB_I8:
        return u.i8;
    case PTB_U8:
        return u.u8;
    case PTB_DTYPE_COUNT:
        break;
    }
    return 0;
}

void ptb_dtype_store(ptb_dtype type, void *element, double value)
{
    union {
        double f64;
        float f32;
        uint16_t u16;
        int64_t i64;
        int32_t i32;
        int8_t i8;
        uint8_t u8;
    } u = {.f64 = value};
    switch (type) {
    case PTB_F64:
        break;
    case PTB_F32:
        u.f32 = (float)value;
        break;
    case PTB_F16:
        u.u16 = ptb_f32_to_f16(round_to_odd(value));
        break;
    case PTB_BF16:
        u.u16 = ptb_f32_to_bf16(round_to_odd(value));
        break;
    case PTB_I64:
        u.i64 = integer_of(value, INT64_MIN, INT64_MAX);
        break;
    case PTB_I32:
        u.i32 = (int32_t)integer_of(value, INT32_MIN, INT32_MAX);
        break;
    case PTB_I8:
        u.i8 = (int8_t)integer_of(value, INT8_MIN, INT8_MAX);
        break;
    case PTB_U8:
        u.u8 = (uint8_t)integer_of(value, 0, UINT8_MAX);
        break;
    case PTB_DTYPE_COUNT:
        break;
    }
    memcpy(element, &u, ptb_dtype_size(type));
}
