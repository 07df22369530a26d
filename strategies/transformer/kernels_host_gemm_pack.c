// Packing for the matrix product: 16 x 16 transpositions with AVX-512, plain loops elsewhere.
#include "strategies/transformer/kernels_host_gemm.h"

#include <string.h>

#ifdef __AVX512F__
#include <immintrin.h>
#endif

enum { ROWS = PTB_GEMM_TILE_ROWS, COLUMNS = PTB_GEMM_TILE_COLUMNS };

#define INLINE static inline __attribute__((always_inline))

// Where an operand's element (place, depth) is, and how it becomes a unit.
typedef enum { F32, F16, BF16, BF16_PAIR } unit_kind;

static unit_kind kind_of(ptb_dtype type)
{
    switch (type) {
    case PTB_F32:
        return F32;
    case PTB_F16:
        return F16;
    default:
        return PTB_GEMM_HAS_BF16 ? BF16_PAIR : BF16;
    }
}

#if defined(__AVX512F__) && defined(__AVX512BW__)

enum { SIDE = 16 }; // rows and units of a block: a vector of units

// `count` (at most 16) consecutive units of a row that runs along the depth; the others are 0. `depth`:
// elements that there are from `row` on.
INLINE __m512i load_units(unit_kind kind, const char *row, size_t count, size_t depth)
{
    __mmask16 mask = (__mmask16)(count >= SIDE ? 0xffff : (1u << count) - 1);
    if (kind == F32)
        return _mm512_maskz_loadu_epi32(mask, row);
    if (kind == BF16_PAIR) {
        size_t elements = 2 * count < depth ? 2 * count : depth;
        return _mm512_maskz_loadu_epi16(elements >= 32 ? 0xffffffffu : (1u << elements) - 1, row);
    }
    __m256i half = _mm256_maskz_loadu_epi16(mask, row);
    if (kind == F16)
        return (__m512i)_mm512_cvtph_ps(half);
    return _mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16);
}

// 4 x 4 blocks of each 128-bit part of four rows are transposed.
INLINE void transpose_4(__m512i *a, __m512i *b, __m512i *c, __m512i *d)
{
    __m512i ab_low = _mm512_unpacklo_epi32(*a, *b), ab_high = _mm512_unpackhi_epi32(*a, *b);
    __m512i cd_low = _mm512_unpacklo_epi32(*c, *d), cd_high = _mm512_unpackhi_epi32(*c, *d);
    *a = _mm512_unpacklo_epi64(ab_low, cd_low);
    *b = _mm512_unpackhi_epi64(ab_low, cd_low);
    *c = _mm512_unpacklo_epi64(ab_high, cd_high);
    *d = _mm512_unpackhi_epi64(ab_high, cd_high);
}

// Transposes a block of 16 x 16 units: first within 128-bit parts, then the 4 x 4 grid of parts.
INLINE void transpose(__m512i v[SIDE])
{
    for (int i = 0; i < SIDE; i += 4)
        transpose_4(&v[i], &v[i + 1], &v[i + 2], &v[i + 3]);
    for (int i = 0; i < 4; i++) {
        __m512i even01 = _mm512_shuffle_i32x4(v[i], v[i + 4], 0x88);
        __m512i odd01 = _mm512_shuffle_i32x4(v[i], v[i + 4], 0xdd);
        __m512i even23 = _mm512_shuffle_i32x4(v[i + 8], v[i + 12], 0x88);
        __m512i odd23 = _mm512_shuffle_i32x4(v[i + 8], v[i + 12], 0xdd);
        v[i] = _mm512_shuffle_i32x4(even01, even23, 0x88);
        v[i + 4] = _mm512_shuffle_i32x4(odd01, odd23, 0x88);
        v[i + 8] = _mm512_shuffle_i32x4(even01, even23, 0xdd);
        v[i + 12] = _mm512_shuffle_i32x4(odd01, odd23, 0xdd);
    }
}

// A whole block of units that lie in memory as they are: each 128-bit part is loaded to its final place,
// which leaves a transposition within parts.
INLINE void load_transposed(const char *rows, size_t row_bytes, __m512i v[SIDE])
{
    for (int part = 0; part < 4; part++) {
        const char *from = rows + part * 16;
        __m512i *x = v + 4 * part;
        for (int i = 0; i < 4; i++, from += row_bytes) {
            x[i] = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)from));
            x[i] = _mm512_inserti32x4(x[i], _mm_loadu_si128((const __m128i *)(from + 4 * row_bytes)), 1);
            x[i] = _mm512_inserti32x4(x[i], _mm_loadu_si128((const __m128i *)(from + 8 * row_bytes)), 2);
            x[i] = _mm512_inserti32x4(x[i], _mm_loadu_si128((const __m128i *)(from + 12 * row_bytes)), 3);
        }
        transpose_4(&x[0], &x[1], &x[2], &x[3]);
    }
}

// Places 0-7 and 8-15 of a unit. They are next to each other in panels of B. In A they belong to two panels;
// when there is only the first, high is low, and places 0-7 stay.
INLINE void store_unit(__m512i v, uint32_t *low, uint32_t *high, bool adjacent)
{
    if (adjacent) {
        _mm512_storeu_si512(low, v);
    } else {
        _mm256_storeu_si256((__m256i *)high, _mm512_extracti64x4_epi64(v, 1));
        _mm256_storeu_si256((__m256i *)low, _mm512_castsi512_si256(v));
    }
}

// 16 places of an operand whose rows run along the depth. Unit u goes to low + u * step and high + u * step.
INLINE void pack_along(unit_kind kind, const ptb_gemm_operand *x, size_t depth, ptb_gemm_range at,
                       ptb_gemm_range units, uint32_t *low, uint32_t *high, size_t step, bool adjacent)
{
    size_t element = kind == F32 ? 4 : 2, per_unit = kind == BF16_PAIR ? 2 : 1;
    const char *rows = (const char *)x->data + at.begin * x->stride * element;
    size_t count = at.end - at.begin;
    for (size_t u = units.begin; u < units.end; u += SIDE) {
        size_t left = units.end - u < SIDE ? units.end - u : SIDE;
        __m512i v[SIDE];
        if ((kind == F32 || kind == BF16_PAIR) && count == SIDE && (u + SIDE) * per_unit <= depth) {
            load_transposed(rows + u * per_unit * element, x->stride * element, v);
        } else {
            for (size_t i = 0; i < SIDE; i++)
                v[i] = i < count ? load_units(kind, rows + (i * x->stride + u * per_unit) * element, left,
                                              depth - u * per_unit)
                                 : _mm512_setzero_si512();
            transpose(v);
        }
        if (left == SIDE)
            for (size_t i = 0; i < SIDE; i++, low += step, high = adjacent ? NULL : high + step)
                store_unit(v[i], low, high, adjacent);
        else
            for (size_t i = 0; i < left; i++, low += step, high = adjacent ? NULL : high + step)
                store_unit(v[i], low, high, adjacent);
    }
}

// Unit u of `count` (at most 16) places of an operand whose rows run across the depth.
INLINE __m512i load_across(unit_kind kind, const ptb_gemm_operand *x, size_t depth, size_t place,
                           size_t count, size_t u)
{
    size_t element = kind == F32 ? 4 : 2, per_unit = kind == BF16_PAIR ? 2 : 1;
    const char *row = (const char *)x->data + (u * per_unit * x->stride + place) * element;
    if (kind != BF16_PAIR)
        return load_units(kind, row, count, 0);
    // The two rows side by side, then their elements in turn.
    const __m512i in_turn = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23,
                                             7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    bool has_second = 2 * u + 1 < depth;
    const char *second = row + x->stride * element;
    __m512i both;
    if (count >= SIDE && has_second) {
        both = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)row));
        both = _mm512_inserti64x4(both, _mm256_loadu_si256((const __m256i *)second), 1);
    } else {
        __mmask16 mask = (__mmask16)(count >= SIDE ? 0xffff : (1u << count) - 1);
        both = _mm512_castsi256_si512(_mm256_maskz_loadu_epi16(mask, row));
        both = _mm512_inserti64x4(both, _mm256_maskz_loadu_epi16(has_second ? mask : 0, second), 1);
    }
    return _mm512_permutexvar_epi16(in_turn, both);
}

INLINE void pack_a(unit_kind kind, const ptb_gemm *g, ptb_gemm_range at, ptb_gemm_range units, uint32_t *out)
{
    enum { WIDE = 64 }; // places at a time where rows run across the depth: a few whole cache lines
    size_t panel = ptb_gemm_panel(units.end - units.begin, ROWS), step = g->a.along_depth ? SIDE : WIDE;
    for (; at.begin < at.end; at.begin += step, out += step / ROWS * panel) {
        size_t end = at.end - at.begin < step ? at.end : at.begin + step;
        if (g->a.along_depth) {
            ptb_gemm_range here = {at.begin, end};
            uint32_t *high = end - at.begin > ROWS ? out + panel : out;
            pack_along(kind, &g->a, g->depth, here, units, out, high, ROWS, false);
            continue;
        }
        uint32_t *to = out;
        for (size_t u = units.begin; u < units.end; u++, to += ROWS) {
            uint32_t *low = to;
            for (size_t i = at.begin; i < end; i += SIDE, low += 2 * panel)
                store_unit(load_across(kind, &g->a, g->depth, i, end - i, u), low,
                           end - i > ROWS ? low + panel : low, false);
        }
    }
}

INLINE void pack_b(unit_kind kind, const ptb_gemm *g, ptb_gemm_range at, ptb_gemm_range units, uint32_t *out)
{
    size_t panel = ptb_gemm_panel(units.end - units.begin, COLUMNS);
    for (; at.begin < at.end; at.begin += COLUMNS, out += panel) {
        size_t end = at.end - at.begin < COLUMNS ? at.end : at.begin + COLUMNS;
        if (g->b.along_depth) {
            for (size_t i = at.begin; i < end; i += SIDE) {
                ptb_gemm_range here = {i, end - i < SIDE ? end : i + SIDE};
                pack_along(kind, &g->b, g->depth, here, units, out + (i - at.begin), NULL, COLUMNS, true);
            }
            continue;
        }
        uint32_t *to = out;
        for (size_t u = units.begin; u < units.end; u++, to += COLUMNS)
            for (size_t i = at.begin; i < end; i += SIDE)
                store_unit(load_across(kind, &g->b, g->depth, i, end - i, u), to + (i - at.begin), NULL,
                           true);
    }
}

#else

// Element (place, depth) of an operand as f32.
INLINE float load(unit_kind kind, const ptb_gemm_operand *x, size_t place, size_t depth)
{
    size_t i = x->along_depth ? place * x->stride + depth : depth * x->stride + place;
    if (kind == F32)
        return ((const float *)x->data)[i];
    if (kind == F16)
        return ptb_f16_to_f32(((const uint16_t *)x->data)[i]);
    uint32_t bits = (uint32_t)((const uint16_t *)x->data)[i] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// Panels of `width` places of one operand.
INLINE void pack(unit_kind kind, const ptb_gemm_operand *x, size_t width, ptb_gemm_range at,
                 ptb_gemm_range units, uint32_t *out)
{
    size_t panel = ptb_gemm_panel(units.end - units.begin, width);
    for (; at.begin < at.end; at.begin += width, out += panel) {
        uint32_t *to = out;
        for (size_t u = units.begin; u < units.end; u++, to += width)
            for (size_t i = 0; i < width; i++) {
                float value = at.begin + i < at.end ? load(kind, x, at.begin + i, u) : 0;
                memcpy(to + i, &value, sizeof value);
            }
    }
}

INLINE void pack_a(unit_kind kind, const ptb_gemm *g, ptb_gemm_range at, ptb_gemm_range units, uint32_t *out)
{
    pack(kind, &g->a, ROWS, at, units, out);
}

INLINE void pack_b(unit_kind kind, const ptb_gemm *g, ptb_gemm_range at, ptb_gemm_range units, uint32_t *out)
{
    pack(kind, &g->b, COLUMNS, at, units, out);
}

#endif

// The kind becomes a constant in each branch.
#define PACK(function, type)                                                                                 \
    switch (kind_of(type)) {                                                                                 \
    case F32:                                                                                                \
        function(F32, g, at, units, out);                                                                    \
        break;                                                                                               \
    case F16:                                                                                                \
        function(F16, g, at, units, out);                                                                    \
        break;                                                                                               \
    case BF16:                                                                                               \
        function(BF16, g, at, units, out);                                                                   \
        break;                                                                                               \
    case BF16_PAIR:                                                                                          \
        function(BF16_PAIR, g, at, units, out);                                                              \
        break;                                                                                               \
    }

void ptb_host_gemm_pack_a(const ptb_gemm *g, ptb_gemm_range at, ptb_gemm_range units, uint32_t *out)
{
    PACK(pack_a, g->a.type)
}

void ptb_host_gemm_pack_b(const ptb_gemm *g, ptb_gemm_range at, ptb_gemm_range units, uint32_t *out)
{
    PACK(pack_b, g->b.type)
}
