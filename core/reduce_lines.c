// Streaming reductions: whole cache lines, one vector register at a time, written with non-temporal stores.
// Vectors are the compiler's own (vector_size), so that one loop serves all types; only the stores and the
// conversions of f16 are intrinsics. Add a type by adding its vector, its row of LINES and its row of the
// table.
#include "core/reduce_lines.h"

#include <string.h>

#if defined(__AVX512F__)
#include <immintrin.h>
enum { VECTOR = 64 };
#define STREAM(address, value) _mm512_stream_si512((void *)(address), (__m512i)(value))
#elif defined(__AVX2__)
#include <immintrin.h>
enum { VECTOR = 32 };
#define STREAM(address, value) _mm256_stream_si256((__m256i *)(void *)(address), (__m256i)(value))
#elif defined(__SSE2__)
#include <immintrin.h>
enum { VECTOR = 16 };
#define STREAM(address, value) _mm_stream_si128((__m128i *)(void *)(address), (__m128i)(value))
#endif

#ifdef STREAM

typedef double f64_vec __attribute__((vector_size(VECTOR)));
typedef float f32_vec __attribute__((vector_size(VECTOR)));
typedef int64_t i64_vec __attribute__((vector_size(VECTOR)));
typedef uint64_t u64_vec __attribute__((vector_size(VECTOR)));
typedef int32_t i32_vec __attribute__((vector_size(VECTOR)));
typedef uint32_t u32_vec __attribute__((vector_size(VECTOR)));
typedef int8_t i8_vec __attribute__((vector_size(VECTOR)));
typedef uint8_t u8_vec __attribute__((vector_size(VECTOR)));

// A comparison of vectors is all ones where it holds; `mask` is the type of such a result.
#define PICK(vector, mask, condition, u, v) ((vector)(((condition) & (mask)(u)) | (~(condition) & (mask)(v))))
#define ADD(vector, mask, u, v)             ((u) + (v))
#define MUL(vector, mask, u, v)             ((u) * (v))
#define MIN(vector, mask, u, v)             PICK(vector, mask, (u) < (v), u, v)
#define MAX(vector, mask, u, v)             PICK(vector, mask, (u) > (v), u, v)

// One loop. `mode` is a constant where this is inlined.
#define LINES(name, vector, mask, OP)                                                                        \
    static inline __attribute__((always_inline)) void name##_loop(ptb_lines_mode mode, char *restrict out0,  \
                                                                  char *restrict out1, const char *a,        \
                                                                  const char *b, size_t bytes)               \
    {                                                                                                        \
        for (size_t at = 0; at < bytes; at += VECTOR) {                                                      \
            vector u, v;                                                                                     \
            memcpy(&u, a + at, VECTOR);                                                                      \
            memcpy(&v, b + at, VECTOR);                                                                      \
            vector result = OP(vector, mask, u, v);                                                          \
            STREAM(out0 + at, result);                                                                       \
            if (mode == PTB_LINES_TWO)                                                                       \
                STREAM(out1 + at, result);                                                                   \
            else if (mode == PTB_LINES_TWO_HALF)                                                             \
                memcpy(out1 + at, &result, VECTOR);                                                          \
        }                                                                                                    \
    }                                                                                                        \
    static void name(ptb_lines_mode mode, void *out0, void *out1, const void *a, const void *b,              \
                     size_t bytes)                                                                           \
    {                                                                                                        \
        if (mode == PTB_LINES_ONE)                                                                           \
            name##_loop(PTB_LINES_ONE, out0, NULL, a, b, bytes);                                             \
        else if (mode == PTB_LINES_TWO)                                                                      \
            name##_loop(PTB_LINES_TWO, out0, out1, a, b, bytes);                                             \
        else                                                                                                 \
            name##_loop(PTB_LINES_TWO_HALF, out0, out1, a, b, bytes);                                        \
    }

// `modular` is unsigned for integers, so that sums and products wrap.
#define LINES_OF(type, vector, mask, modular)                                                                \
    LINES(type##_sum, modular, mask, ADD)                                                                    \
    LINES(type##_prod, modular, mask, MUL)                                                                   \
    LINES(type##_min, vector, mask, MIN)                                                                     \
    LINES(type##_max, vector, mask, MAX)

LINES_OF(f64, f64_vec, i64_vec, f64_vec)
LINES_OF(f32, f32_vec, i32_vec, f32_vec)
LINES_OF(i64, i64_vec, i64_vec, u64_vec)
LINES_OF(i32, i32_vec, i32_vec, u32_vec)
LINES_OF(i8, i8_vec, i8_vec, u8_vec)
LINES_OF(u8, u8_vec, i8_vec, u8_vec)

// bf16: the two elements of each 32-bit lane become floats in place, without shuffles.
// Rounding as in core/reduce.c.
static inline u32_vec round_bf16(f32_vec value)
{
    u32_vec bits = (u32_vec)value;
    return bits + 0x7fff + (bits >> 16 & 1);
}

#define HIGH            0xffff0000u
#define LOW_HALF(u)     ((f32_vec)((u) << 16))
#define HIGH_HALF(u)    ((f32_vec)((u)&HIGH))
#define JOIN(low, high) ((u32_vec)(low) >> 16 | ((u32_vec)(high)&HIGH))
#define BF16_EXACT(OP, u, v)                                                                                 \
    JOIN(OP(f32_vec, i32_vec, LOW_HALF(u), LOW_HALF(v)), OP(f32_vec, i32_vec, HIGH_HALF(u), HIGH_HALF(v)))
#define BF16_ROUNDED(OP, u, v)                                                                               \
    JOIN(round_bf16(OP(f32_vec, i32_vec, LOW_HALF(u), LOW_HALF(v))),                                         \
         round_bf16(OP(f32_vec, i32_vec, HIGH_HALF(u), HIGH_HALF(v))))
#define BF16_ADD(vector, mask, u, v) BF16_ROUNDED(ADD, u, v)
#define BF16_MUL(vector, mask, u, v) BF16_ROUNDED(MUL, u, v)
#define BF16_MIN(vector, mask, u, v) BF16_EXACT(MIN, u, v)
#define BF16_MAX(vector, mask, u, v) BF16_EXACT(MAX, u, v)
LINES(bf16_sum, u32_vec, i32_vec, BF16_ADD)
LINES(bf16_prod, u32_vec, i32_vec, BF16_MUL)
LINES(bf16_min, u32_vec, i32_vec, BF16_MIN)
LINES(bf16_max, u32_vec, i32_vec, BF16_MAX)

// f16: each half of a vector widens to a full one.
#if defined(__AVX512F__)
#define HALF_OF(u, half) _mm512_cvtph_ps(_mm512_extracti64x4_epi64((__m512i)(u), half))
#define F16_OP(op, u, v, half)                                                                               \
    _mm512_cvtps_ph(_mm512_##op##_ps(HALF_OF(u, half), HALF_OF(v, half)), _MM_FROUND_TO_NEAREST_INT)
#define F16_LINE(op, u, v)                                                                                   \
    ((i32_vec)_mm512_inserti64x4(_mm512_castsi256_si512(F16_OP(op, u, v, 0)), F16_OP(op, u, v, 1), 1))
#elif defined(__AVX2__) && defined(__F16C__)
#define HALF_OF(u, half) _mm256_cvtph_ps(_mm256_extracti128_si256((__m256i)(u), half))
#define F16_OP(op, u, v, half)                                                                               \
    _mm256_cvtps_ph(_mm256_##op##_ps(HALF_OF(u, half), HALF_OF(v, half)), _MM_FROUND_TO_NEAREST_INT)
#define F16_LINE(op, u, v)                                                                                   \
    ((i32_vec)_mm256_inserti128_si256(_mm256_castsi128_si256(F16_OP(op, u, v, 0)), F16_OP(op, u, v, 1), 1))
#endif
#ifdef F16_LINE
#define F16_ADD(vector, mask, u, v) F16_LINE(add, u, v)
#define F16_MUL(vector, mask, u, v) F16_LINE(mul, u, v)
#define F16_MIN(vector, mask, u, v) F16_LINE(min, u, v)
#define F16_MAX(vector, mask, u, v) F16_LINE(max, u, v)
LINES(f16_sum, i32_vec, i32_vec, F16_ADD)
LINES(f16_prod, i32_vec, i32_vec, F16_MUL)
LINES(f16_min, i32_vec, i32_vec, F16_MIN)
LINES(f16_max, i32_vec, i32_vec, F16_MAX)
#endif

#define ROW(type)                                                                                            \
    {                                                                                                        \
        type##_sum, type##_prod, type##_min, type##_max, type##_sum                                          \
    } // in the order of ptb_redop

static ptb_reduce_lines_fn *const loops[PTB_DTYPE_COUNT][PTB_REDOP_COUNT] = {
    [PTB_F64] = ROW(f64), [PTB_F32] = ROW(f32), [PTB_BF16] = ROW(bf16), [PTB_I64] = ROW(i64),
    [PTB_I32] = ROW(i32), [PTB_I8] = ROW(i8),   [PTB_U8] = ROW(u8),
#ifdef F16_LINE
    [PTB_F16] = ROW(f16),
#endif
};

ptb_reduce_lines_fn *ptb_reduce_lines(ptb_dtype type, ptb_redop op)
{
    return loops[type][op];
}

void ptb_reduce_fence(void)
{
    _mm_sfence();
}

#else // no streaming stores here

ptb_reduce_lines_fn *ptb_reduce_lines(ptb_dtype type, ptb_redop op)
{
    (void)type;
    (void)op;
    return NULL;
}

void ptb_reduce_fence(void) {}

#endif
