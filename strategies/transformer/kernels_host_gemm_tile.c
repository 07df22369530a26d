// The innermost loops of the matrix product: a tile of sums that stays in registers while it runs along the
// depth. One function for each number of rows and vectors, so that all indices into the tile are constants.
#include "strategies/transformer/kernels_host_gemm.h"

#if PTB_GEMM_HAS_BF16
#include <immintrin.h>
#endif

enum { ROWS = PTB_GEMM_TILE_ROWS, VECTORS = PTB_GEMM_TILE_VECTORS, LANES = PTB_GEMM_LANES };

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")

typedef float vector __attribute__((vector_size(LANES * sizeof(float)), may_alias));
typedef float unaligned_vector
    __attribute__((vector_size(LANES * sizeof(float)), aligned(sizeof(float)), may_alias));
typedef float aliasing_float __attribute__((may_alias));

INLINE vector multiply_add(bool bf16, vector sum, const uint32_t *a, vector b)
{
#if PTB_GEMM_HAS_BF16
    if (bf16)
        return (vector)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32((int)*a), (__m512bh)b);
#else
    (void)bf16;
#endif
    return sum + *(const aliasing_float *)a * b;
}

// The tile's description comes by value: stores through `out` might change it otherwise.
INLINE void finish_tile(const ptb_gemm_tile t, vector sum[ROWS][VECTORS], int rows, int vectors)
{
    if (t.from)
        UNROLL for (int r = 0; r < rows; r++) UNROLL for (int v = 0; v < vectors; v++) sum[r][v] +=
            *(const unaligned_vector *)(t.from + r * t.from_stride + v * LANES);
    if (t.bias)
        UNROLL for (int r = 0; r < rows; r++) UNROLL for (int v = 0; v < vectors; v++) sum[r][v] +=
            *(const unaligned_vector *)(t.bias + v * LANES);
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int v = 0; v < vectors; v++) *
        (unaligned_vector *)(t.out + r * t.out_stride + v * LANES) = sum[r][v];
}

INLINE void add_unit(vector sum[ROWS][VECTORS], const uint32_t *a, const uint32_t *b, bool bf16, int rows,
                     int vectors)
{
    vector row[VECTORS];
    UNROLL for (int v = 0; v < vectors; v++) row[v] = *(const vector *)(b + v * LANES);
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int v = 0; v < vectors; v++) sum[r][v] =
        multiply_add(bf16, sum[r][v], a + r, row[v]);
}

INLINE void fetch_line(ptb_gemm_fetch *f)
{
    if (!f->rows)
        return;
    __builtin_prefetch(f->row + f->line * 64, 0, 2);
    if (++f->line < f->lines)
        return;
    f->line = 0;
    f->row += f->stride_bytes;
    f->rows--;
}

INLINE void run_tile(const ptb_gemm_tile *t, bool bf16, int rows, int vectors)
{
    vector sum[ROWS][VECTORS];
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int v = 0; v < vectors; v++) sum[r][v] = (vector){0};
    // The result's lines are on their way while the sums run.
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int v = 0; v <= vectors; v++)
        __builtin_prefetch(t->out + r * t->out_stride + v * LANES - (v == vectors), 1);
    const uint32_t *a = t->a, *b = t->b;
    ptb_gemm_fetch fetch = *t->fetch;
    size_t u = 0;
    for (; u + PTB_GEMM_FETCH_UNITS <= t->units; u += PTB_GEMM_FETCH_UNITS) {
        fetch_line(&fetch);
        for (int i = 0; i < PTB_GEMM_FETCH_UNITS; i++, a += ROWS, b += VECTORS * LANES)
            add_unit(sum, a, b, bf16, rows, vectors);
    }
    for (; u < t->units; u++, a += ROWS, b += VECTORS * LANES)
        add_unit(sum, a, b, bf16, rows, vectors);
    *t->fetch = fetch;
    finish_tile(*t, sum, rows, vectors);
}

#define TILE(kind, bf16, rows, vectors)                                                                      \
    static void tile_##kind##_##rows##_##vectors(const ptb_gemm_tile *t)                                     \
    {                                                                                                        \
        run_tile(t, bf16, rows, vectors);                                                                    \
    }
#define TILES_OF_ROWS(kind, bf16, rows)                                                                      \
    TILE(kind, bf16, rows, 1) TILE(kind, bf16, rows, 2) TILE(kind, bf16, rows, 3)
#define NAMES_OF_ROWS(kind, rows)                                                                            \
    {tile_##kind##_##rows##_1, tile_##kind##_##rows##_2, tile_##kind##_##rows##_3},

#define FEW(X) X(1) X(2) X(3) X(4)
#if defined(__AVX512F__) || defined(__aarch64__)
#define ALL(X) FEW(X) X(5) X(6) X(7) X(8)
#else
#define ALL(X) FEW(X)
#endif

#define X(rows) TILES_OF_ROWS(f32, false, rows)
ALL(X)
#undef X
#if PTB_GEMM_HAS_BF16
#define X(rows) TILES_OF_ROWS(bf16, true, rows)
ALL(X)
#undef X
#endif

ptb_gemm_tile_fn *ptb_host_gemm_tile(bool bf16_units, size_t rows, size_t vectors)
{
    static ptb_gemm_tile_fn *const f32[ROWS][VECTORS] = {
#define X(rows) NAMES_OF_ROWS(f32, rows)
        ALL(X)
#undef X
    };
#if PTB_GEMM_HAS_BF16
    static ptb_gemm_tile_fn *const bf16[ROWS][VECTORS] = {
#define X(rows) NAMES_OF_ROWS(bf16, rows)
        ALL(X)
#undef X
    };
    if (bf16_units)
        return bf16[rows - 1][vectors - 1];
#else
    (void)bf16_units;
#endif
    return f32[rows - 1][vectors - 1];
}
