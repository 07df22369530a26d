// Vectors of f32 for the host kernels: loads and stores of f32, bf16 and f16 as f32, exponentials, random
// draws. Everything is GCC and Clang vector extensions, so that it compiles for any processor; intrinsics
// stand only where compilers do not find the instruction. `type` arguments are meant to be constants: callers
// write one inlined body and instantiate it per type.
#ifndef PTB_STRATEGIES_TRANSFORMER_KERNELS_HOST_VECTOR_H
#define PTB_STRATEGIES_TRANSFORMER_KERNELS_HOST_VECTOR_H

#include "core/dtype.h"
#include "strategies/transformer/dropout.h"

#include <string.h>

#if defined __x86_64__
#include <immintrin.h>
#endif

#if defined __AVX512F__ && defined __AVX512BW__ && defined __AVX512VL__ && defined __AVX512DQ__
#define PTB_VECTOR_512
enum { PTB_LANES = 16 };
#elif defined __AVX2__
enum { PTB_LANES = 8 };
#else
enum { PTB_LANES = 4 };
#endif

#define PTB_INLINE static inline __attribute__((always_inline))

typedef float ptb_vec __attribute__((vector_size(PTB_LANES * 4)));
typedef int32_t ptb_vec_int __attribute__((vector_size(PTB_LANES * 4))); // comparisons give -1 or 0
typedef uint32_t ptb_vec_bits __attribute__((vector_size(PTB_LANES * 4)));
typedef uint16_t ptb_vec_half __attribute__((vector_size(PTB_LANES * 2))); // bf16 or f16

PTB_INLINE ptb_vec ptb_vec_set(float x)
{
    return x - (ptb_vec){0};
}

PTB_INLINE ptb_vec_int ptb_vec_int_set(int32_t x)
{
    return x - (ptb_vec_int){0};
}

PTB_INLINE ptb_vec_bits ptb_vec_bits_set(uint32_t x)
{
    return x - (ptb_vec_bits){0};
}

// 0, 1, 2, ...
PTB_INLINE ptb_vec_int ptb_vec_iota(void)
{
    ptb_vec_int v;
    for (int lane = 0; lane < PTB_LANES; lane++)
        v[lane] = lane;
    return v;
}

// mask ? a : b; mask is -1 or 0 per lane.
PTB_INLINE ptb_vec ptb_vec_select(ptb_vec_int mask, ptb_vec a, ptb_vec b)
{
    return (ptb_vec)(((ptb_vec_int)a & mask) | ((ptb_vec_int)b & ~mask));
}

// The larger; b where a or b is NaN.
PTB_INLINE ptb_vec ptb_vec_max(ptb_vec a, ptb_vec b)
{
#if defined PTB_VECTOR_512
    return (ptb_vec)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined __AVX2__
    return (ptb_vec)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined __SSE2__
    return (ptb_vec)_mm_max_ps((__m128)a, (__m128)b);
#else
    return ptb_vec_select(a > b, a, b);
#endif
}

// The smaller; b where a or b is NaN.
PTB_INLINE ptb_vec ptb_vec_min(ptb_vec a, ptb_vec b)
{
#if defined PTB_VECTOR_512
    return (ptb_vec)_mm512_min_ps((__m512)a, (__m512)b);
#else
    return -ptb_vec_max(-a, -b);
#endif
}

// The sum of the lanes, always in the same order.
PTB_INLINE float ptb_vec_sum(ptb_vec a)
{
#if defined PTB_VECTOR_512
    return _mm512_reduce_add_ps((__m512)a);
#else
    float lanes[PTB_LANES];
    memcpy(lanes, &a, sizeof a);
    for (int half = PTB_LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
            lanes[i] += lanes[i + half];
    return lanes[0];
#endif
}

// The largest lane.
PTB_INLINE float ptb_vec_largest(ptb_vec a)
{
#if defined PTB_VECTOR_512
    return _mm512_reduce_max_ps((__m512)a);
#else
    float top = a[0];
    for (int i = 1; i < PTB_LANES; i++)
        top = a[i] > top ? a[i] : top;
    return top;
#endif
}

// ---- 16-bit types

PTB_INLINE ptb_vec ptb_vec_from_bf16(ptb_vec_half bits)
{
#if defined PTB_VECTOR_512
    return (ptb_vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)bits), 16);
#else
    return (ptb_vec)(__builtin_convertvector(bits, ptb_vec_bits) << 16);
#endif
}

// Rounds to nearest even; NaN stays NaN. Subnormals become 0 where the processor's own instruction does so.
PTB_INLINE ptb_vec_half ptb_vec_to_bf16(ptb_vec a)
{
#if defined PTB_VECTOR_512 && defined __AVX512BF16__
    return (ptb_vec_half)_mm512_cvtneps_pbh((__m512)a);
#else
    ptb_vec_bits bits = (ptb_vec_bits)a;
    ptb_vec_bits rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    ptb_vec_bits nan = (ptb_vec_bits)(a != a);
    return __builtin_convertvector((rounded & ~nan) | (((bits >> 16) | 0x40) & nan), ptb_vec_half);
#endif
}

PTB_INLINE ptb_vec ptb_vec_from_f16(ptb_vec_half bits)
{
#if defined PTB_VECTOR_512
    return (ptb_vec)_mm512_cvtph_ps((__m256i)bits);
#elif defined __AVX2__ && defined __F16C__
    return (ptb_vec)_mm256_cvtph_ps((__m128i)bits);
#else
    ptb_vec a;
    for (int i = 0; i < PTB_LANES; i++)
        a[i] = ptb_f16_to_f32(bits[i]);
    return a;
#endif
}

// Rounds to nearest even; NaN stays NaN, what is too large becomes infinity.
PTB_INLINE ptb_vec_half ptb_vec_to_f16(ptb_vec a)
{
#if defined PTB_VECTOR_512
    ptb_vec_half bits = (ptb_vec_half)_mm512_cvtps_ph((__m512)a, _MM_FROUND_TO_NEAREST_INT);
    __asm__("" : "+v"(bits)); // converting straight into memory takes Zen processors three times as long
    return bits;
#elif defined __AVX2__ && defined __F16C__
    return (ptb_vec_half)_mm256_cvtps_ph((__m256)a, _MM_FROUND_TO_NEAREST_INT);
#else
    ptb_vec_half bits;
    for (int i = 0; i < PTB_LANES; i++)
        bits[i] = ptb_f32_to_f16(a[i]);
    return bits;
#endif
}

// ---- memory; `first` is the index of an element of `type`, no alignment is needed

PTB_INLINE ptb_vec ptb_vec_load(ptb_dtype type, const void *base, size_t first)
{
    if (type == PTB_F32) {
        ptb_vec a;
        memcpy(&a, (const float *)base + first, sizeof a);
        return a;
    }
    ptb_vec_half bits;
    memcpy(&bits, (const uint16_t *)base + first, sizeof bits);
    return type == PTB_BF16 ? ptb_vec_from_bf16(bits) : ptb_vec_from_f16(bits);
}

PTB_INLINE void ptb_vec_store(ptb_dtype type, void *base, size_t first, ptb_vec a)
{
    if (type == PTB_F32) {
        memcpy((float *)base + first, &a, sizeof a);
        return;
    }
    ptb_vec_half bits = type == PTB_BF16 ? ptb_vec_to_bf16(a) : ptb_vec_to_f16(a);
    memcpy((uint16_t *)base + first, &bits, sizeof bits);
}

// The first n <= PTB_LANES elements, 0 in the other lanes.
PTB_INLINE ptb_vec ptb_vec_load_some(ptb_dtype type, const void *base, size_t first, size_t n)
{
    if (__builtin_constant_p(n) && n == PTB_LANES)
        return ptb_vec_load(type, base, first); // compilers keep a mask of ones
#if defined PTB_VECTOR_512
    __mmask16 mask = (__mmask16)((1u << n) - 1);
    if (type == PTB_F32)
        return (ptb_vec)_mm512_maskz_loadu_ps(mask, (const float *)base + first);
    ptb_vec_half bits = (ptb_vec_half)_mm256_maskz_loadu_epi16(mask, (const uint16_t *)base + first);
    return type == PTB_BF16 ? ptb_vec_from_bf16(bits) : ptb_vec_from_f16(bits);
#else
    float whole[PTB_LANES] = {0}; // large enough for every type
    memcpy(whole, (const char *)base + first * ptb_dtype_size(type), n * ptb_dtype_size(type));
    return ptb_vec_load(type, whole, 0);
#endif
}

// The first n <= PTB_LANES elements; memory behind them is not touched.
PTB_INLINE void ptb_vec_store_some(ptb_dtype type, void *base, size_t first, size_t n, ptb_vec a)
{
    if (__builtin_constant_p(n) && n == PTB_LANES) {
        ptb_vec_store(type, base, first, a);
        return;
    }
#if defined PTB_VECTOR_512
    __mmask16 mask = (__mmask16)((1u << n) - 1);
    if (type == PTB_F32) {
        _mm512_mask_storeu_ps((float *)base + first, mask, (__m512)a);
        return;
    }
    ptb_vec_half bits = type == PTB_BF16 ? ptb_vec_to_bf16(a) : ptb_vec_to_f16(a);
    _mm256_mask_storeu_epi16((uint16_t *)base + first, mask, (__m256i)bits);
#else
    float whole[PTB_LANES];
    ptb_vec_store(type, whole, 0, a);
    memcpy((char *)base + first * ptb_dtype_size(type), whole, n * ptb_dtype_size(type));
#endif
}

// ---- exponentials and logarithms
//
// x = n + r with n whole and |r| <= 1/2 (in units of the base's logarithm); adding a large number leaves
// n + 127, the exponent of 2^n, in the low bits of the sum. The polynomials of degree 6 are minimax for the
// relative error (2e-9, Remez's algorithm); results err by at most 2e-7.

#define PTB_VEC_LN_2      0.693147181f
#define PTB_VEC_LOG2_E    1.44269504f
#define PTB_VEC_EXP_SHIFT (0x1.8p23f + 127)

PTB_INLINE ptb_vec ptb_vec_power(ptb_vec shifted)
{
    return (ptb_vec)((ptb_vec_bits)shifted << 23);
}

// 2^(n + r), shifted = n + PTB_VEC_EXP_SHIFT
PTB_INLINE ptb_vec ptb_vec_exp2_of(ptb_vec shifted, ptb_vec r)
{
    ptb_vec p = r * 1.5345812e-4f + 1.3399931e-3f;
    p = p * r + 9.618489e-3f;
    p = p * r + 5.5503288e-2f;
    p = p * r + 2.4022647e-1f;
    p = p * r + 6.9314721e-1f;
    p = p * r + 1.0f;
    return p * ptb_vec_power(shifted);
}

// 2^x for x <= 127; smaller than -126 counts as -126. NaN stays NaN.
PTB_INLINE ptb_vec ptb_vec_exp2(ptb_vec x)
{
    x = ptb_vec_max(ptb_vec_set(-126), x);
    ptb_vec shifted = x + PTB_VEC_EXP_SHIFT;
    return ptb_vec_exp2_of(shifted, x - (shifted - PTB_VEC_EXP_SHIFT));
}

// e^x for x <= 0, exactly 1 for 0; smaller than -87 counts as -87. NaN stays NaN. Errs by up to -x / 2 units
// in the last place more than ptb_vec_exp, for which it is faster.
PTB_INLINE ptb_vec ptb_vec_exp_below(ptb_vec x)
{
    x = ptb_vec_max(ptb_vec_set(-87), x);
    ptb_vec shifted = x * PTB_VEC_LOG2_E + PTB_VEC_EXP_SHIFT;
    return ptb_vec_exp2_of(shifted, x * PTB_VEC_LOG2_E - (shifted - PTB_VEC_EXP_SHIFT));
}

// e^x, x clamped to [-87, 88]. NaN stays NaN.
PTB_INLINE ptb_vec ptb_vec_exp(ptb_vec x)
{
    x = ptb_vec_max(ptb_vec_set(-87), x);
    x = ptb_vec_min(ptb_vec_set(88), x);
    ptb_vec shifted = x * PTB_VEC_LOG2_E + PTB_VEC_EXP_SHIFT;
    ptb_vec n = shifted - PTB_VEC_EXP_SHIFT;
    ptb_vec r = x - n * 0.693359375f; // ln 2 in two parts (Cody and Waite)
    r = r + n * 2.12194440e-4f;
    ptb_vec p = r * 1.3836836e-3f + 8.3748241e-3f;
    p = p * r + 4.1668226e-2f;
    p = p * r + 1.6666420e-1f;
    p = p * r + 4.9999992e-1f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return p * ptb_vec_power(shifted);
}

// Natural logarithm of positive normal numbers within 2e-7 (absolute near 1, relative beyond); anything for
// others. x = 2^e m with m in [sqrt(1/2), sqrt(2)); log m = 2 atanh((m - 1) / (m + 1)), of which the series'
// terms up to the 9th power stay.
PTB_INLINE ptb_vec ptb_vec_log(ptb_vec x)
{
    ptb_vec_int bits = (ptb_vec_int)x - 0x3f3504f3; // sqrt(1/2)
    ptb_vec e = __builtin_convertvector(bits >> 23, ptb_vec);
    ptb_vec m = (ptb_vec)((bits & 0x7fffff) + 0x3f3504f3);
    ptb_vec s = (m - 1.0f) / (m + 1.0f), square = s * s;
    ptb_vec p = square * (2.0f / 9) + 2.0f / 7;
    p = p * square + 2.0f / 5;
    p = p * square + 2.0f / 3;
    p = p * square + 2.0f;
    return e * PTB_VEC_LN_2 + p * s;
}

// ---- dropout: ptb_dropout_draw() of a vector of columns, and of keys (their low and high halves)

PTB_INLINE ptb_vec_bits ptb_vec_dropout_draw(ptb_vec_bits key_low, ptb_vec_bits key_high, ptb_vec_bits column)
{
    ptb_vec_bits x = column + key_low;
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x += key_high;
    x *= 0x846ca68bu;
    return x ^ x >> 16;
}

#endif
