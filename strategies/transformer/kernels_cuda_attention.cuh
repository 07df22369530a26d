// What the attention kernels share: the arguments in the form they need, which keys a row of queries sees,
// loads of tiles into shared memory, products of tiles, and stores of results.
//
// A warp owns TILES x 16 rows of a product and all of its columns. Scores and probabilities never leave its
// registers: the sums of one product, rounded and paired, are the left operand of the next (FlashAttention-2,
// Dao 2023, section 3). Numbers of rows are int; the launchers check that they fit.
#ifndef PTB_STRATEGIES_TRANSFORMER_KERNELS_CUDA_ATTENTION_CUH
#define PTB_STRATEGIES_TRANSFORMER_KERNELS_CUDA_ATTENTION_CUH

#include "strategies/transformer/dropout.h"
#include "strategies/transformer/kernels_cuda.cuh"
#include "strategies/transformer/kernels_cuda_attention.h"
#include "strategies/transformer/kernels_cuda_mma.cuh"

struct attention_call {
    int heads, group; // query heads; of them to a key head
    int width;        // of a head
    int query_length, key_length;
    int64_t query_stride, key_stride, out_stride; // elements between rows
    int64_t shift;                                // query row i is where key row i + shift is
    int64_t key_offset;
    const int32_t *start; /* [batch, query_length], NULL: 0 */
    bool causal;
    bool aligned;       // all rows of all tensors can be accessed in units of 16 bytes
    bool negative;      // the scale is
    float scale;        // of the scores
    float factor;       // |scale| in units of log 2, above 0
    uint32_t threshold; // dropout: 0, none
    float kept;         // what dropout multiplies the rest by; 1 without
    uint64_t seed;
    uint64_t draw_row;              // number of row 0 of sequence 0
    uint64_t draw_rows;             // from a sequence to the next, and from a head's columns to the next
    uint64_t draw_column;           // number of key row 0 for head 0
    unsigned tiles, lines, section; // the order of blocks, see attention_order
};

static inline attention_call attention_call_of(const ptb_attention_shape *s, bool aligned)
{
    attention_call c = {};
    c.heads = (int)s->heads, c.group = (int)(s->heads / s->kv_heads), c.width = (int)s->head_width;
    c.query_length = (int)s->query_length, c.key_length = (int)s->key_length;
    c.query_stride = (int64_t)s->query_stride, c.key_stride = (int64_t)s->key_stride;
    c.out_stride = (int64_t)(s->heads * s->head_width);
    c.shift = s->query_offset - s->key_offset;
    c.key_offset = s->key_offset;
    c.start = s->query_start;
    c.causal = s->causal;
    size_t piece = 16 / ptb_dtype_size(s->type);
    c.aligned =
        aligned && s->head_width % piece == 0 && s->query_stride % piece == 0 && s->key_stride % piece == 0;
    c.negative = s->scale < 0;
    c.scale = s->scale;
    c.factor = fmaxf(fabsf(s->scale) * 1.44269504f, 1e-30f);
    c.threshold = s->dropout_rate > 0 ? ptb_dropout_threshold(s->dropout_rate) : 0;
    c.kept = s->dropout_rate > 0 ? ptb_dropout_scale(s->dropout_rate) : 1;
    c.seed = s->dropout_seed;
    c.draw_rows = s->total_length;
    c.draw_row = s->dropout_sequence * s->total_length + (uint64_t)s->query_offset;
    c.draw_column = (uint64_t)s->dropout_head * s->total_length + (uint64_t)s->key_offset;
    return c;
}

// ---- the order of blocks
//
// A line is a head of a sequence. Under a causal mask tiles differ in work, and the longest must start first
// wherever their line is, or the last ones run alone. But going over all lines for each tile would read keys
// and values from memory as often as there are tiles, so lines go in sections whose rows stay in the cache.

enum { ATTENTION_SECTION_BYTES = 16 << 20 };

// Sets the order for `tiles` blocks a line; line_bytes: of what the blocks of a line read again and again,
// which `shared` neighbouring lines have in common. Gives the number of blocks.
static inline unsigned attention_order(attention_call *c, size_t tiles, size_t lines, size_t line_bytes,
                                       size_t shared)
{
    size_t section = (ATTENTION_SECTION_BYTES / (line_bytes + 1) + 1) * shared;
    c->tiles = (unsigned)tiles, c->lines = (unsigned)lines;
    c->section = (unsigned)(section < lines ? section : lines);
    return (unsigned)(tiles * lines);
}

struct attention_place {
    int tile, line;
};

static __device__ __forceinline__ attention_place attention_place_of(const attention_call &c)
{
    unsigned blocks = c.section * c.tiles, first = blockIdx.x / blocks * c.section,
             at = blockIdx.x - first * c.tiles;
    unsigned lines = min(c.section, c.lines - first);
    return {(int)(at / lines), (int)(first + at % lines)};
}

// ---- what a row sees: key rows [low, high)

static __device__ __forceinline__ int attention_clamp(int64_t key, int key_length)
{
    return key < 0 ? 0 : key > key_length ? key_length : (int)key;
}

static __device__ __forceinline__ int attention_low(const attention_call &c, int b, int row)
{
    int64_t start = c.start ? __ldg(c.start + (int64_t)b * c.query_length + row) : 0;
    return attention_clamp(start - c.key_offset, c.key_length);
}

static __device__ __forceinline__ int attention_high(const attention_call &c, int row)
{
    return c.causal ? attention_clamp(row + c.shift + 1, c.key_length) : c.key_length;
}

struct attention_view {
    int any_low, any_high; // some row may see a key in this range; none sees any other
    int all_low, all_high; // every row sees all keys in this range
};

// Warp. Of query rows [first, first + rows), those beyond the sequence left out.
static __device__ __forceinline__ attention_view attention_look(const attention_call &c, int b, int first,
                                                                int rows)
{
    rows = min(rows, c.query_length - first);
    if (rows <= 0)
        return {0, 0, 0, 0};
    attention_view v;
    v.any_high = attention_high(c, first + rows - 1); // highs do not fall
    v.all_high = attention_high(c, first);
    v.any_low = v.all_low = attention_low(c, b, first);
    if (!c.start)
        return v;
    for (int i = (int)threadIdx.x % 32; i < rows; i += 32) {
        int low = attention_low(c, b, first + i);
        v.any_low = min(v.any_low, low);
        v.all_low = max(v.all_low, low);
    }
    v.any_low = __reduce_min_sync(0xffffffffu, v.any_low);
    v.all_low = __reduce_max_sync(0xffffffffu, v.all_low);
    return v;
}

// ---- tiles

// All THREADS threads of the block: ROWS rows of a head into a tile of COLUMNS columns, in the background
// (ptb_copy_commit is the caller's). Rows from `rows` on and columns from c.width on become 0.
template <int ROWS, int COLUMNS, int THREADS, typename T>
__device__ __forceinline__ void attention_fetch(const attention_call &c, T *tile, const T *from,
                                                int64_t stride, int rows)
{
    constexpr int pieces = COLUMNS / 8;
    static_assert(ROWS * pieces % THREADS == 0, "every thread copies the same number of pieces");
    int piece = (int)threadIdx.x % pieces, row = (int)threadIdx.x / pieces;
#pragma unroll
    for (int i = 0; i < ROWS * pieces / THREADS; i++, row += THREADS / pieces) {
        T *to = tile + ptb_tile_at<COLUMNS>(row, piece);
        const T *source = from + row * stride + piece * 8;
        bool valid = row < rows && piece * 8 < c.width;
        if (c.aligned) {
            ptb_copy_async(to, valid ? source : from, valid);
            continue;
        }
        ptb_pack<T, 8> pack;
        for (int e = 0; e < 8; e++)
            pack.at[e] = row < rows && piece * 8 + e < c.width ? source[e] : ptb_from_f32<T>(0);
        ptb_store_pack<8>(to, pack);
    }
}

// Warp. s [TILES * 16, PAIRS * 16] = a b^T over all columns: `a` from row a_row on, b from b_row on.
template <int COLUMNS, int TILES, int PAIRS, typename T>
__device__ __forceinline__ void attention_scores(float (&s)[TILES][PAIRS * 2][4], const T *a, int a_row,
                                                 const T *b, int b_row)
{
    memset(s, 0, sizeof s);
#pragma unroll
    for (int k = 0; k < COLUMNS; k += 16) {
        uint32_t left[TILES][4];
#pragma unroll
        for (int m = 0; m < TILES; m++)
            ptb_tile_a<COLUMNS>(left[m], a, a_row + m * 16, k);
#pragma unroll
        for (int n = 0; n < PAIRS; n++) {
            uint32_t right[4];
            ptb_tile_b<COLUMNS>(right, b, b_row + n * 16, k);
#pragma unroll
            for (int m = 0; m < TILES; m++) {
                ptb_mma(s[m][n * 2], left[m], right[0], right[1], T());
                ptb_mma(s[m][n * 2 + 1], left[m], right[2], right[3], T());
            }
        }
    }
}

// Warp. The same with the left operand in registers.
template <int COLUMNS, int TILES, int PAIRS, typename T>
__device__ __forceinline__ void attention_scores(float (&s)[TILES][PAIRS * 2][4],
                                                 const uint32_t (&left)[TILES][COLUMNS / 16][4], const T *b,
                                                 int b_row)
{
    memset(s, 0, sizeof s);
#pragma unroll
    for (int k = 0; k < COLUMNS; k += 16)
#pragma unroll
        for (int n = 0; n < PAIRS; n++) {
            uint32_t right[4];
            ptb_tile_b<COLUMNS>(right, b, b_row + n * 16, k);
#pragma unroll
            for (int m = 0; m < TILES; m++) {
                ptb_mma(s[m][n * 2], left[m][k / 16], right[0], right[1], T());
                ptb_mma(s[m][n * 2 + 1], left[m][k / 16], right[2], right[3], T());
            }
        }
}

// Warp. o [TILES * 16, COLUMNS] += p b, p [TILES * 16, PAIRS * 16] rounded to T, b from row b_row on.
template <int COLUMNS, int TILES, int PAIRS, typename T>
__device__ __forceinline__ void attention_sums(float (&o)[TILES][COLUMNS / 8][4],
                                               const float (&p)[TILES][PAIRS * 2][4], const T *b, int b_row)
{
#pragma unroll
    for (int k = 0; k < PAIRS; k++) {
        uint32_t left[TILES][4];
#pragma unroll
        for (int m = 0; m < TILES; m++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                left[m][i] =
                    ptb_pair(p[m][k * 2 + i / 2][i % 2 * 2], p[m][k * 2 + i / 2][i % 2 * 2 + 1], T());
#pragma unroll
        for (int n = 0; n < COLUMNS; n += 16) {
            uint32_t right[4];
            ptb_tile_b_trans<COLUMNS>(right, b, b_row + k * 16, n);
#pragma unroll
            for (int m = 0; m < TILES; m++) {
                ptb_mma(o[m][n / 8], left[m], right[0], right[1], T());
                ptb_mma(o[m][n / 8 + 1], left[m], right[2], right[3], T());
            }
        }
    }
}

// Warp. Elements (query row, key column) that the row does not see become `hidden`.
template <int TILES, int PAIRS>
__device__ __forceinline__ void attention_hide(const attention_call &c, int b, int row, int key, float hidden,
                                               float (&s)[TILES][PAIRS * 2][4])
{
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int at = min(row + m * 16 + half * 8 + lane / 4, c.query_length - 1);
            int low = attention_low(c, b, at), high = attention_high(c, at);
#pragma unroll
            for (int n = 0; n < PAIRS * 2; n++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    int column = key + n * 8 + lane % 4 * 2 + i;
                    if (column < low || column >= high)
                        s[m][n][half * 2 + i] = hidden;
                }
        }
}

// ---- results

// Warp. out rows [row, row + TILES * 16) (those below `rows`) = scale * o (+ out).
template <int COLUMNS, int TILES, typename T>
__device__ __forceinline__ void
attention_store(const attention_call &c, const float (&o)[TILES][COLUMNS / 8][4],
                const float (&scale)[TILES][2], T *out, int64_t stride, int row, int rows, bool accumulate)
{
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int at = row + m * 16 + half * 8 + lane / 4;
            if (at >= rows)
                continue;
            T *to = out + at * stride + lane % 4 * 2;
#pragma unroll
            for (int n = 0; n < COLUMNS / 8; n++) {
                int column = n * 8 + lane % 4 * 2;
                float x = o[m][n][half * 2] * scale[m][half], y = o[m][n][half * 2 + 1] * scale[m][half];
                if (column >= c.width)
                    break;
                if (c.aligned) {
                    uint32_t *word = reinterpret_cast<uint32_t *>(to + n * 8);
                    float2 before = accumulate ? ptb_unpair(*word, T()) : float2{0, 0};
                    *word = ptb_pair(x + before.x, y + before.y, T());
                    continue;
                }
                to[n * 8] = ptb_from_f32<T>(x + (accumulate ? ptb_to_f32(to[n * 8]) : 0));
                if (column + 1 < c.width)
                    to[n * 8 + 1] = ptb_from_f32<T>(y + (accumulate ? ptb_to_f32(to[n * 8 + 1]) : 0));
            }
        }
}

#endif
