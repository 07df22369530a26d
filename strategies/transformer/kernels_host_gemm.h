// The matrix product under the linear layers of the host kernels: out = A * B (+ bias + addend), with A
// [rows, depth] and B [depth, columns] in any of the layouts that forward and backward need, f32 sums, and
// bf16 dot products where the processor has them.
//
// It is blocked as in Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (ACM TOMS
// 34(3), 2008) and Van Zee and van de Geijn, "BLIS" (ACM TOMS 41(3), 2015): panels of A and B are packed into
// the order in which a tile of the result reads them, and the tile stays in registers. Each thread works on
// a part of the result of its own, packs for itself, and waits for nobody. Every element is summed in one
// order, so results do not depend on the number of threads.
//
// Depth is counted in units of 32 bits: one f32 (f16 is converted when packed), or two bf16 where there is an
// instruction for their dot product.
#ifndef PTB_STRATEGIES_TRANSFORMER_KERNELS_HOST_GEMM_H
#define PTB_STRATEGIES_TRANSFORMER_KERNELS_HOST_GEMM_H

#include "core/dtype.h"
#include "core/status.h"

// A tile is TILE_ROWS x TILE_VECTORS vectors: as many sums as the registers hold beside one row of B and one
// value of A, and more than the latency of multiply-add needs.
#if defined(__AVX512F__)
enum { PTB_GEMM_LANES = 16, PTB_GEMM_TILE_ROWS = 8 };
#elif defined(__AVX__)
enum { PTB_GEMM_LANES = 8, PTB_GEMM_TILE_ROWS = 4 };
#elif defined(__aarch64__)
enum { PTB_GEMM_LANES = 4, PTB_GEMM_TILE_ROWS = 8 };
#else
enum { PTB_GEMM_LANES = 4, PTB_GEMM_TILE_ROWS = 4 };
#endif
enum { PTB_GEMM_TILE_VECTORS = 3, PTB_GEMM_TILE_COLUMNS = PTB_GEMM_TILE_VECTORS * PTB_GEMM_LANES };

// Whether two bf16 are one unit.
#if defined(__AVX512BF16__)
#define PTB_GEMM_HAS_BF16 1
#else
#define PTB_GEMM_HAS_BF16 0
#endif

typedef struct {
    const void *data; // row-major
    ptb_dtype type;   // f32, bf16 or f16; the same for A and B
    size_t stride;    // elements between rows of the array
    bool along_depth; // a row of the array runs along the depth: A as it is, B transposed
} ptb_gemm_operand;

typedef struct {
    size_t rows, columns, depth;
    ptb_gemm_operand a, b;
    void *out;          /* [rows, columns] */
    const void *addend; /* [rows, columns], as out; NULL: none; may be out */
    ptb_dtype out_type; // of out and addend
    size_t out_stride;  // of out and addend
    const void *bias;   /* [columns], NULL: none */
    ptb_dtype bias_type;
    float *sums;          /* [rows]: sums of A along the depth; NULL: none */
    bool sums_accumulate; // (+ *sums)
} ptb_gemm;

size_t ptb_host_gemm_scratch(void); // bytes that a thread needs; 64-byte aligned
// Computes part `part` of `parts`; the parts together are the whole product. No two parts write the same
// memory, so threads may run them at once, each with scratch of its own.
void ptb_host_gemm_part(const ptb_gemm *g, int part, int parts, void *scratch);

// ---- between the files of the product

typedef struct {
    size_t begin, end;
} ptb_gemm_range;

static inline size_t ptb_gemm_units(const ptb_gemm *g)
{
    return PTB_GEMM_HAS_BF16 && g->a.type == PTB_BF16 ? (g->depth + 1) / 2 : g->depth;
}

// Distance between packed panels: a cache line more than they need, so that panels do not all begin in the
// same cache set.
static inline size_t ptb_gemm_panel(size_t units, size_t width)
{
    return units * width + 16;
}

// Packs panels of TILE_ROWS rows of A or TILE_COLUMNS columns of B, [panel][unit][place], 32 bits a unit;
// places beyond `at` are zero, of B only in vectors that hold a place of `at`.
void ptb_host_gemm_pack_a(const ptb_gemm *g, ptb_gemm_range at, ptb_gemm_range units, uint32_t *out);
void ptb_host_gemm_pack_b(const ptb_gemm *g, ptb_gemm_range at, ptb_gemm_range units, uint32_t *out);

// A rectangle of memory that will be packed next. Tiles ask for its cache lines while they sum, one every
// FETCH_UNITS units, so that memory works beside the arithmetic and requests do not queue up before it.
typedef struct {
    const char *row;
    size_t rows, stride_bytes;
    size_t line, lines; // of a row: the next, and all
} ptb_gemm_fetch;
enum { PTB_GEMM_FETCH_UNITS = 8 };

// out = sums of a tile over `units` (+ from) (+ bias); out and from are f32.
typedef struct {
    size_t units;
    const uint32_t *a; /* [units, TILE_ROWS] */
    const uint32_t *b; /* [units, TILE_COLUMNS] */
    float *out;        /* [rows, out_stride] */
    const float *from; /* [rows, from_stride]; NULL: none; may be out */
    const float *bias; /* [vectors * LANES], NULL: none */
    size_t out_stride, from_stride;
    ptb_gemm_fetch *fetch;
} ptb_gemm_tile;
typedef void ptb_gemm_tile_fn(const ptb_gemm_tile *t);
// For 1 .. TILE_ROWS rows and 1 .. TILE_VECTORS vectors.
ptb_gemm_tile_fn *ptb_host_gemm_tile(bool bf16_units, size_t rows, size_t vectors);

#endif
