// What the files of the host's attention share: visibility (kernels_host_attention_view.c), packed operands
// (.._pack.c) and block products (.._product.c), used by the forward pass (kernels_host_attention.c) and the
// gradient (.._gradient.c).
//
// Queries come in tiles of 64 rows, keys in blocks of 64. Scores of a tile and a block are kept transposed,
// [keys, queries]: a vector's lanes are queries, so that softmax needs no sums across lanes and every matrix
// product is a broadcast of one operand times rows of the other.
//
// Operands are packed into "words" of 32 bits: an f32 (f32 and f16 are computed in f32), or, for bf16 on
// processors with dot products of bf16, a pair of bf16 that are neighbours along the summed dimension.
#ifndef PTB_STRATEGIES_TRANSFORMER_KERNELS_HOST_ATTENTION_H
#define PTB_STRATEGIES_TRANSFORMER_KERNELS_HOST_ATTENTION_H

#include "strategies/transformer/kernels_host.h"
#include "strategies/transformer/kernels_host_vector.h"

#include <math.h>

enum {
    PTB_TILE = 64,                     // queries of a tile, keys of a block
    PTB_STRIP = 16,                    // queries that share a range of keys in a block
    PTB_STRIPS = PTB_TILE / PTB_STRIP, //
    PTB_GROUP = 8,                     // keys are computed in groups
    PTB_GROUPS = PTB_TILE / PTB_GROUP
};

typedef uint32_t ptb_word;

// Whether products of this type run on pairs of bf16.
PTB_INLINE bool ptb_attention_pairs(ptb_dtype type)
{
#if defined PTB_VECTOR_512 && defined __AVX512BF16__
    return type == PTB_BF16;
#else
    (void)type;
    return false;
#endif
}

PTB_INLINE size_t ptb_round_up(size_t n, size_t multiple)
{
    return (n + multiple - 1) / multiple * multiple;
}

// ---- visibility

// Which keys the queries of a tile see: query i the keys [low[i], high[i]). Rows behind the last one of the
// sequence see what the last one sees; nothing of theirs is stored.
typedef struct {
    int32_t low[PTB_TILE], high[PTB_TILE];
    int32_t strip_low[PTB_STRIPS], strip_high[PTB_STRIPS]; // unions
    int32_t all_low, all_high;                             // keys that every query sees, may be empty
    int32_t any_low, any_high;                             // keys that some query may see
    size_t rows, strips;                                   // with rows
    bool ordered;                                          // low and high do not decrease from row to row
} ptb_attention_view;

// Which keys of a block are computed for which strips: strip s has the keys [key_begin[s], key_end[s]) of the
// block, group g the strips [strip_begin[g], strip_end[g]). The two say the same.
typedef struct {
    size_t keys;                                       // of the block, rounded up to whole groups
    bool whole;                                        // no key is masked for any query
    size_t key_begin[PTB_STRIPS], key_end[PTB_STRIPS]; // multiples of PTB_GROUP
    size_t strip_begin[PTB_GROUPS], strip_end[PTB_GROUPS];
} ptb_attention_plan;

// first: row of the sequence b at which the tile begins.
void ptb_attention_look(const ptb_attention_shape *shape, size_t b, size_t first, ptb_attention_view *view);
// Whether some query may see one of `keys` keys from key row `first`.
PTB_INLINE bool ptb_attention_sees(const ptb_attention_view *view, size_t first, size_t keys)
{
    return view->any_low < (int32_t)(first + keys) && view->any_high > (int32_t)first;
}
// The block of `keys` keys from key row `first`; false when nothing of it is visible.
bool ptb_attention_plan_block(const ptb_attention_view *view, size_t first, size_t keys,
                              ptb_attention_plan *plan);
// Query-key pairs computed for a whole sequence and head.
double ptb_attention_count_pairs(const ptb_attention_shape *shape);

// ---- packed operands
//
// `in` is rows x width elements of `type`, `stride` elements between rows. Rows up to padded_rows and columns
// up to the padded width are zero in the result. pairs = ptb_attention_pairs(type).

// Padded width: a multiple of the strip.
PTB_INLINE size_t ptb_attention_columns(size_t width)
{
    return ptb_round_up(width, PTB_STRIP);
}
// Words of a packed row that are summed over.
PTB_INLINE size_t ptb_attention_depth(bool pairs, size_t width)
{
    return pairs ? (width + 1) / 2 : width;
}

typedef struct {
    ptb_dtype type;
    const void *values; /* [rows, width] */
    size_t rows, width, stride;
} ptb_attention_rows;

// out [padded_rows, columns / (pairs ? 2 : 1)]: words along the row.
void ptb_attention_pack_rows(const ptb_attention_rows *in, size_t padded_rows, ptb_word *out);
// out [padded_rows / (pairs ? 2 : 1), columns]: words along the column; padded_rows is even.
void ptb_attention_pack_columns(const ptb_attention_rows *in, size_t padded_rows, ptb_word *out);
// out [depth, PTB_TILE]: words along the row, transposed; `negative` changes all signs.
void ptb_attention_pack_transposed(const ptb_attention_rows *in, bool negative, ptb_word *out);

typedef struct {
    ptb_dtype type;
    void *values; /* [rows, width] */
    size_t rows, width, stride;
    bool accumulate;
} ptb_attention_output;

// out[r] = values[r] * factor[r] (+ out[r]), or factor[0] for every row when `factors` is 1; values is [rows,
// columns].
void ptb_attention_unpack(const ptb_attention_output *out, const float *values, const float *factor,
                          size_t factors);
// out [rows] = dot products of the rows of x and y, of one shape and type.
void ptb_attention_dot_rows(const ptb_attention_rows *x, const ptb_attention_rows *y, float *out);

// ---- products
//
// c [m, n] = sum over k of A(m, k) * b[k, n] (+ c); leading dimensions in words; m a multiple of PTB_GROUP, n
// of PTB_STRIP; k counts words.

typedef struct {
    size_t m, n, k;
    const ptb_word *a;
    size_t lda;
    const ptb_word *b;
    size_t ldb;
    float *c;
    size_t ldc;
    bool pairs, accumulate;
} ptb_attention_product;

void ptb_attention_multiply_rows(const ptb_attention_product *p);    // A(m, k) = a[m * lda + k]
void ptb_attention_multiply_columns(const ptb_attention_product *p); // A(m, k) = a[k * lda + m]

// c [keys, PTB_TILE] = a [keys, lda] . b [depth, PTB_TILE] where the plan wants it.
void ptb_attention_multiply_scores(const ptb_attention_plan *plan, bool pairs, size_t depth,
                                   const ptb_word *a, size_t lda, const ptb_word *b, float *c);
// c [PTB_TILE, columns] += transposed scores . b [keys, columns] where the plan wants it; scores are words
// along the key: [keys / (pairs ? 2 : 1), PTB_TILE].
void ptb_attention_multiply_keys(const ptb_attention_plan *plan, size_t strips, bool pairs, size_t columns,
                                 const ptb_word *scores, const ptb_word *b, float *c);
// c [keys, columns] += scores . b [queries, columns] where the plan wants it; scores are words along the
// query: [keys, PTB_TILE / (pairs ? 2 : 1)].
void ptb_attention_multiply_queries(const ptb_attention_plan *plan, bool pairs, size_t columns,
                                    const ptb_word *scores, const ptb_word *b, float *c);

// Words of two f32 rounded to bf16, `even` first (only where there are dot products of bf16).
PTB_INLINE ptb_vec_bits ptb_attention_pair(ptb_vec even, ptb_vec odd)
{
#if defined PTB_VECTOR_512 && defined __AVX512BF16__
    static const uint16_t order[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                       8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)odd, (__m512)even); // even in the low half
    return (ptb_vec_bits)_mm512_permutexvar_epi16(_mm512_loadu_si512(order), both);
#else
    return __builtin_convertvector(ptb_vec_to_bf16(even), ptb_vec_bits) |
           __builtin_convertvector(ptb_vec_to_bf16(odd), ptb_vec_bits) << 16;
#endif
}

// ---- dropout

// Keys of the rows of a tile, low and high halves.
typedef struct {
    uint32_t low[PTB_TILE], high[PTB_TILE];
} ptb_attention_draws;
void ptb_attention_draw_rows(const ptb_attention_shape *shape, size_t b, size_t first,
                             ptb_attention_draws *draws);

// Column of the draw of head h and key row `key`.
PTB_INLINE uint32_t ptb_attention_draw_column(const ptb_attention_shape *s, size_t h, size_t key)
{
    return (uint32_t)((s->dropout_head + h) * s->total_length + (uint64_t)s->key_offset + key);
}

// -1 in the lanes whose query sees the key.
PTB_INLINE ptb_vec_int ptb_attention_visible(ptb_vec_int low, ptb_vec_int high, int32_t key)
{
    ptb_vec_int at = ptb_vec_int_set(key);
    return (low <= at) & (at < high);
}

// -1 in the lanes that dropout keeps.
PTB_INLINE ptb_vec_int ptb_attention_kept(const ptb_attention_draws *draws, size_t query, uint32_t column,
                                          uint32_t threshold)
{
    ptb_vec_bits low, high;
    memcpy(&low, draws->low + query, sizeof low);
    memcpy(&high, draws->high + query, sizeof high);
    ptb_vec_bits draw = ptb_vec_dropout_draw(low, high, ptb_vec_bits_set(column));
    return (ptb_vec_int)(draw >= ptb_vec_bits_set(threshold));
}

// ---- gradient (kernels_host_attention_gradient.c)

// Bytes of workspace of a thread.
size_t ptb_attention_gradient_scratch(const ptb_attention_shape *shape);

#endif
