// Reductions of host memory: 8 types x 5 operations, each as a plain kernel, one with two outputs, and
// streaming forms. A kernel is a scalar loop that the compiler vectorises; f16 alone is written with
// intrinsics, because compilers do not vectorise its conversions without AVX512-FP16. Add a type by adding a
// row to the kernels and to the table at the end.
#include "core/dtype.h"

#include "core/reduce_lines.h"

#include <string.h>
#ifdef __F16C__
#include <immintrin.h>
#endif

#ifdef __clang__
#define NO_LOOP_DEPENDENCE _Pragma("clang loop vectorize(assume_safety)")
#else
#define NO_LOOP_DEPENDENCE _Pragma("GCC ivdep")
#endif

// Element types at any address (user buffers may be misaligned on purpose), in memory of any declared type.
#define ANYWHERE __attribute__((aligned(1), may_alias))
typedef double f64_any ANYWHERE;
typedef float f32_any ANYWHERE;
typedef int64_t i64_any ANYWHERE;
typedef uint64_t u64_any ANYWHERE;
typedef int32_t i32_any ANYWHERE;
typedef uint32_t u32_any ANYWHERE;
typedef uint16_t u16_any ANYWHERE;
typedef int8_t i8_any ANYWHERE;
typedef uint8_t u8_any ANYWHERE;

static inline uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float widen_bf16(uint16_t bits)
{
    return float_of((uint32_t)bits << 16);
}

// The bf16 nearest to `value`, a result of bf16 operands, in the high half; the low half is undefined. NaN
// needs no care here: it comes from an operand or is the processor's own, so its low half is 0 and rounding
// leaves it alone.
static inline uint32_t round_bf16(float value)
{
    uint32_t bits = bits_of(value);
    return bits + 0x7fff + (bits >> 16 & 1);
}

static inline uint16_t narrow_bf16(float value)
{
    return (uint16_t)(round_bf16(value) >> 16);
}

#define SAME(value) (value)
#define ADD(u, v)   ((u) + (v))
#define MUL(u, v)   ((u) * (v))
#define MIN(u, v)   ((u) < (v) ? (u) : (v))
#define MAX(u, v)   ((u) > (v) ? (u) : (v))

// Two kernels. The outputs may be the inputs: equal addresses are no dependence between iterations.
#define KERNEL(name, element, compute, LOAD, STORE, OP)                                                      \
    static void name(void *out, const void *a, const void *b, size_t count)                                  \
    {                                                                                                        \
        element *o = out;                                                                                    \
        const element *x = a, *y = b;                                                                        \
        NO_LOOP_DEPENDENCE                                                                                   \
        for (size_t i = 0; i < count; i++) {                                                                 \
            compute u = LOAD(x[i]), v = LOAD(y[i]);                                                          \
            o[i] = (element)STORE((compute)OP(u, v));                                                        \
        }                                                                                                    \
    }                                                                                                        \
    static void name##_two(void *out0, void *out1, const void *a, const void *b, size_t count)               \
    {                                                                                                        \
        element *o = out0, *p = out1;                                                                        \
        const element *x = a, *y = b;                                                                        \
        NO_LOOP_DEPENDENCE                                                                                   \
        for (size_t i = 0; i < count; i++) {                                                                 \
            compute u = LOAD(x[i]), v = LOAD(y[i]);                                                          \
            element result = (element)STORE((compute)OP(u, v));                                              \
            o[i] = result;                                                                                   \
            p[i] = result;                                                                                   \
        }                                                                                                    \
    }

// `element` is compared, `modular` is added and multiplied: unsigned for integers, so that they wrap.
#define KERNELS(type, element, compare, modular, arithmetic, LOAD, STORE)                                    \
    KERNEL(type##_sum, modular, arithmetic, LOAD, STORE, ADD)                                                \
    KERNEL(type##_prod, modular, arithmetic, LOAD, STORE, MUL)                                               \
    KERNEL(type##_min, element, compare, LOAD, STORE, MIN)                                                   \
    KERNEL(type##_max, element, compare, LOAD, STORE, MAX)

KERNELS(f64, f64_any, double, f64_any, double, SAME, SAME)
KERNELS(f32, f32_any, float, f32_any, float, SAME, SAME)
KERNELS(i64, i64_any, int64_t, u64_any, uint64_t, SAME, SAME)
KERNELS(i32, i32_any, int32_t, u32_any, uint32_t, SAME, SAME)
KERNELS(i8, i8_any, int8_t, u8_any, uint8_t, SAME, SAME)
KERNELS(u8, u8_any, uint8_t, u8_any, uint8_t, SAME, SAME)

// bf16: both halves of a 32-bit lane become floats in place, which needs no shuffles; ROUND leaves the result
// in the high half.
#define BF16_HIGH 0xffff0000u
#define BF16_PAIR(OP, ROUND, x, y)                                                                           \
    (ROUND(OP(float_of((x) << 16), float_of((y) << 16))) >> 16 |                                             \
     (ROUND(OP(float_of((x)&BF16_HIGH), float_of((y)&BF16_HIGH))) & BF16_HIGH))
#define BF16_KERNEL(name, OP, ROUND)                                                                         \
    static void name##_two(void *out0, void *out1, const void *a, const void *b, size_t count)               \
    {                                                                                                        \
        u32_any *o = out0, *p = out1;                                                                        \
        const u32_any *x = a, *y = b;                                                                        \
        NO_LOOP_DEPENDENCE                                                                                   \
        for (size_t i = 0; i < count / 2; i++) {                                                             \
            uint32_t u = x[i], v = y[i], result = BF16_PAIR(OP, ROUND, u, v);                                \
            o[i] = result;                                                                                   \
            p[i] = result;                                                                                   \
        }                                                                                                    \
        if (count % 2) {                                                                                     \
            float u = widen_bf16(((const u16_any *)a)[count - 1]);                                           \
            float v = widen_bf16(((const u16_any *)b)[count - 1]);                                           \
            ((u16_any *)out0)[count - 1] = ((u16_any *)out1)[count - 1] = narrow_bf16(OP(u, v));             \
        }                                                                                                    \
    }                                                                                                        \
    static void name(void *out, const void *a, const void *b, size_t count)                                  \
    {                                                                                                        \
        u32_any *o = out;                                                                                    \
        const u32_any *x = a, *y = b;                                                                        \
        NO_LOOP_DEPENDENCE                                                                                   \
        for (size_t i = 0; i < count / 2; i++) {                                                             \
            uint32_t u = x[i], v = y[i];                                                                     \
            o[i] = BF16_PAIR(OP, ROUND, u, v);                                                               \
        }                                                                                                    \
        if (count % 2) {                                                                                     \
            float u = widen_bf16(((const u16_any *)a)[count - 1]);                                           \
            float v = widen_bf16(((const u16_any *)b)[count - 1]);                                           \
            ((u16_any *)out)[count - 1] = narrow_bf16(OP(u, v));                                             \
        }                                                                                                    \
    }

BF16_KERNEL(bf16_sum, ADD, round_bf16)
BF16_KERNEL(bf16_prod, MUL, round_bf16)
BF16_KERNEL(bf16_min, MIN, bits_of)
BF16_KERNEL(bf16_max, MAX, bits_of)

// f16: LANES elements at a time; LOADS widens them to f32, STORES rounds them back to nearest even.
#if defined(__AVX512F__)
enum { F16_LANES = 16 };
#define F16_LOAD(p)     _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(p)))
#define F16_ROUND(v)    _mm512_cvtps_ph((v), _MM_FROUND_TO_NEAREST_INT)
#define F16_STORE(p, h) _mm256_storeu_si256((__m256i *)(p), (h))
#define F16_PACKED      __m256i
#define F16_OP(op)      _mm512_##op##_ps
#elif defined(__F16C__)
enum { F16_LANES = 8 };
#define F16_LOAD(p)     _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p)))
#define F16_ROUND(v)    _mm256_cvtps_ph((v), _MM_FROUND_TO_NEAREST_INT)
#define F16_STORE(p, h) _mm_storeu_si128((__m128i *)(p), (h))
#define F16_PACKED      __m128i
#define F16_OP(op)      _mm256_##op##_ps
#else
enum { F16_LANES = 1 };
#define F16_LOAD(p)     ptb_f16_to_f32(*(p))
#define F16_ROUND(v)    ptb_f32_to_f16(v)
#define F16_STORE(p, h) (*(p) = (h))
#define F16_PACKED      uint16_t
#define F16_OP(op)      scalar_##op
static inline float scalar_add(float u, float v)
{
    return ADD(u, v);
}
static inline float scalar_mul(float u, float v)
{
    return MUL(u, v);
}
static inline float scalar_min(float u, float v)
{
    return MIN(u, v);
}
static inline float scalar_max(float u, float v)
{
    return MAX(u, v);
}
#endif

#define F16_KERNEL(name, op, OP)                                                                             \
    static void name##_two(void *out0, void *out1, const void *a, const void *b, size_t count)               \
    {                                                                                                        \
        u16_any *o = out0, *p = out1;                                                                        \
        const u16_any *x = a, *y = b;                                                                        \
        size_t i = 0;                                                                                        \
        for (; i + F16_LANES <= count; i += F16_LANES) {                                                     \
            F16_PACKED result = F16_ROUND(F16_OP(op)(F16_LOAD(x + i), F16_LOAD(y + i)));                     \
            F16_STORE(o + i, result);                                                                        \
            F16_STORE(p + i, result);                                                                        \
        }                                                                                                    \
        for (; i < count; i++) {                                                                             \
            float u = ptb_f16_to_f32(x[i]), v = ptb_f16_to_f32(y[i]);                                        \
            o[i] = p[i] = ptb_f32_to_f16(OP(u, v));                                                          \
        }                                                                                                    \
    }                                                                                                        \
    static void name(void *out, const void *a, const void *b, size_t count)                                  \
    {                                                                                                        \
        u16_any *o = out;                                                                                    \
        const u16_any *x = a, *y = b;                                                                        \
        size_t i = 0;                                                                                        \
        for (; i + F16_LANES <= count; i += F16_LANES)                                                       \
            F16_STORE(o + i, F16_ROUND(F16_OP(op)(F16_LOAD(x + i), F16_LOAD(y + i))));                       \
        for (; i < count; i++) {                                                                             \
            float u = ptb_f16_to_f32(x[i]), v = ptb_f16_to_f32(y[i]);                                        \
            o[i] = ptb_f32_to_f16(OP(u, v));                                                                 \
        }                                                                                                    \
    }

F16_KERNEL(f16_sum, add, ADD)
F16_KERNEL(f16_prod, mul, MUL)
F16_KERNEL(f16_min, min, MIN)
F16_KERNEL(f16_max, max, MAX)

// Elements before the first line boundary of `out`; SIZE_MAX when no element starts at one.
static size_t elements_to_line(const void *out, size_t size)
{
    size_t bytes = -(uintptr_t)out & (PTB_LINE_BYTES - 1);
    return bytes % size ? SIZE_MAX : bytes / size;
}

// The head up to a line boundary and the tail after the last one by the plain kernel, the lines between them
// by their own loop.
static void streaming(ptb_dtype type, ptb_redop op, void *out, const void *a, const void *b, size_t count)
{
    ptb_reduce_fn *kernel = ptb_reduce_function(type, op);
    ptb_reduce_lines_fn *lines = ptb_reduce_lines(type, op);
    const size_t size = ptb_dtype_size(type), head = elements_to_line(out, size);
    if (!lines || head >= count) {
        kernel(out, a, b, count);
        return;
    }
    kernel(out, a, b, head);
    size_t first = head * size, bytes = (count - head) * size / PTB_LINE_BYTES * PTB_LINE_BYTES;
    lines(PTB_LINES_ONE, (char *)out + first, NULL, (const char *)a + first, (const char *)b + first, bytes);
    size_t rest = first + bytes;
    kernel((char *)out + rest, (const char *)a + rest, (const char *)b + rest, count - rest / size);
    ptb_reduce_fence();
}

// As `streaming`. When the outputs lie differently within a line, only the first one is streamed.
static void streaming2(ptb_dtype type, ptb_redop op, void *out0, void *out1, const void *a, const void *b,
                       size_t count)
{
    ptb_reduce2_fn *kernel = ptb_reduce2_function(type, op);
    ptb_reduce_lines_fn *lines = ptb_reduce_lines(type, op);
    const size_t size = ptb_dtype_size(type), head = elements_to_line(out0, size);
    if (!lines || head >= count) {
        kernel(out0, out1, a, b, count, false);
        return;
    }
    kernel(out0, out1, a, b, head, false);
    bool lie_alike = (((uintptr_t)out0 ^ (uintptr_t)out1) & (PTB_LINE_BYTES - 1)) == 0;
    size_t first = head * size, bytes = (count - head) * size / PTB_LINE_BYTES * PTB_LINE_BYTES;
    lines(lie_alike ? PTB_LINES_TWO : PTB_LINES_TWO_HALF, (char *)out0 + first, (char *)out1 + first,
          (const char *)a + first, (const char *)b + first, bytes);
    size_t rest = first + bytes;
    kernel((char *)out0 + rest, (char *)out1 + rest, (const char *)a + rest, (const char *)b + rest,
           count - rest / size, false);
    ptb_reduce_fence();
}

#define FORMS(TYPE, OP, type, op)                                                                            \
    static void type##_##op##_streaming(void *out, const void *a, const void *b, size_t count)               \
    {                                                                                                        \
        streaming(PTB_##TYPE, PTB_##OP, out, a, b, count);                                                   \
    }                                                                                                        \
    static void type##_##op##_either(void *out0, void *out1, const void *a, const void *b, size_t count,     \
                                     bool stream)                                                            \
    {                                                                                                        \
        if (stream)                                                                                          \
            streaming2(PTB_##TYPE, PTB_##OP, out0, out1, a, b, count);                                       \
        else                                                                                                 \
            type##_##op##_two(out0, out1, a, b, count);                                                      \
    }
#define X(upper, lower, bytes, floating, bits)                                                               \
    FORMS(upper, SUM, lower, sum)                                                                            \
    FORMS(upper, PROD, lower, prod) FORMS(upper, MIN, lower, min) FORMS(upper, MAX, lower, max)
PTB_DTYPE_LIST(X)
#undef X

static const struct {
    ptb_reduce_fn *plain, *streaming;
    ptb_reduce2_fn *two;
} kernels[PTB_DTYPE_COUNT][PTB_REDOP_COUNT] = {
#define ROW(type, op)                                                                                        \
    {                                                                                                        \
        type##_##op, type##_##op##_streaming, type##_##op##_either                                           \
    }
#define X(upper, lower, bytes, floating, bits)                                                               \
    [PTB_##upper] = {[PTB_SUM] = ROW(lower, sum),                                                            \
                     [PTB_PROD] = ROW(lower, prod),                                                          \
                     [PTB_MIN] = ROW(lower, min),                                                            \
                     [PTB_MAX] = ROW(lower, max),                                                            \
                     [PTB_AVG] = ROW(lower, sum)},
    PTB_DTYPE_LIST(X)
#undef X
};

ptb_reduce_fn *ptb_reduce_function(ptb_dtype type, ptb_redop op)
{
    return kernels[type][op].plain;
}

ptb_reduce_fn *ptb_reduce_function_streaming(ptb_dtype type, ptb_redop op)
{
    return kernels[type][op].streaming;
}

ptb_reduce2_fn *ptb_reduce2_function(ptb_dtype type, ptb_redop op)
{
    return kernels[type][op].two;
}

static void divide_f16(void *buffer, size_t count, float divisor)
{
    enum { AT_ONCE = 512 };
    float stage[AT_ONCE];
    uint16_t packed[AT_ONCE];
    for (size_t at = 0; at < count; at += AT_ONCE) {
        size_t n = count - at < AT_ONCE ? count - at : AT_ONCE;
        char *values = (char *)buffer + at * sizeof *packed;
        memcpy(packed, values, n * sizeof *packed);
        ptb_f16_to_f32_array(stage, packed, n);
        for (size_t i = 0; i < n; i++)
            stage[i] /= divisor;
        ptb_f32_to_f16_array(packed, stage, n);
        memcpy(values, packed, n * sizeof *packed);
    }
}

#define DIVIDE(element, compute, LOAD, STORE)                                                                \
    do {                                                                                                     \
        element *values = buffer;                                                                            \
        const compute divisor = (compute)ranks;                                                              \
        for (size_t i = 0; i < count; i++)                                                                   \
            values[i] = (element)STORE((compute)LOAD(values[i]) / divisor);                                  \
    } while (0)

void ptb_reduce_finish(ptb_dtype type, ptb_redop op, void *buffer, size_t count, int ranks)
{
    if (op != PTB_AVG || ranks == 1)
        return;
    switch (type) {
    case PTB_F64:
        DIVIDE(f64_any, double, SAME, SAME);
        break;
    case PTB_F32:
        DIVIDE(f32_any, float, SAME, SAME);
        break;
    case PTB_F16:
        divide_f16(buffer, count, (float)ranks);
        break;
    case PTB_BF16:
        DIVIDE(u16_any, float, widen_bf16, narrow_bf16);
        break;
    case PTB_I64:
        DIVIDE(i64_any, int64_t, SAME, SAME);
        break;
    case PTB_I32:
        DIVIDE(i32_any, int32_t, SAME, SAME);
        break;
    case PTB_I8:
        DIVIDE(i8_any, int32_t, SAME, SAME); // divided in int: ranks may exceed the type
        break;
    case PTB_U8:
        DIVIDE(u8_any, int32_t, SAME, SAME);
        break;
    case PTB_DTYPE_COUNT:
        break;
    }
}
