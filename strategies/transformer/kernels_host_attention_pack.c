// Packing of attention's operands: rows of f32, bf16 or f16 in their place among the columns of a token
// become dense words, zero beyond the rows and columns that exist.
#include "strategies/transformer/kernels_host_attention.h"

PTB_INLINE const void *row_of(ptb_dtype type, const ptb_attention_rows *in, size_t r)
{
    return (const char *)in->values + r * in->stride * ptb_dtype_size(type);
}

// Words first .. first + PTB_LANES - 1 of a row.
PTB_INLINE ptb_vec load_words(ptb_dtype type, const void *row, size_t width, size_t first)
{
    if (!ptb_attention_pairs(type)) {
        if (first + PTB_LANES <= width)
            return ptb_vec_load(type, row, first);
        return first < width ? ptb_vec_load_some(type, row, first, width - first) : ptb_vec_set(0);
    }
    ptb_vec words = ptb_vec_set(0);
    if (2 * (first + PTB_LANES) <= width)
        memcpy(&words, (const ptb_word *)row + first, sizeof words);
    else if (2 * first < width)
        memcpy(&words, (const ptb_word *)row + first, (width - 2 * first) * sizeof(uint16_t));
    return words;
}

PTB_INLINE void pack_rows(ptb_dtype type, const ptb_attention_rows *in, size_t padded_rows, ptb_word *out)
{
    bool pairs = ptb_attention_pairs(type);
    size_t words = ptb_attention_columns(in->width) / (pairs ? 2 : 1), width = in->width;
    for (size_t r = 0; r < in->rows; r++) {
        const void *row = row_of(type, in, r);
        for (size_t w = 0; w < words; w += PTB_LANES) {
            ptb_vec v = load_words(type, row, width, w);
            size_t bytes = (words - w < PTB_LANES ? words - w : PTB_LANES) * sizeof *out;
            if (bytes == sizeof v)
                memcpy(out + r * words + w, &v, sizeof v);
            else
                memcpy(out + r * words + w, &v, bytes);
        }
    }
    memset(out + in->rows * words, 0, (padded_rows - in->rows) * words * sizeof *out);
}

// The bf16 of columns first .. first + PTB_LANES - 1, one a word.
PTB_INLINE ptb_vec_bits load_halves(const uint16_t *row, size_t width, size_t first)
{
    ptb_vec_half halves = {0};
    if (first + PTB_LANES <= width)
        memcpy(&halves, row + first, sizeof halves);
    else if (first < width)
        memcpy(&halves, row + first, (width - first) * sizeof *row);
    return __builtin_convertvector(halves, ptb_vec_bits);
}

PTB_INLINE void pack_column_pairs(const ptb_attention_rows *in, size_t padded_rows, ptb_word *out)
{
    size_t columns = ptb_attention_columns(in->width);
    for (size_t r = 0; r < padded_rows; r += 2) {
        const uint16_t *even = row_of(PTB_BF16, in, r), *odd = row_of(PTB_BF16, in, r + 1);
        size_t even_width = r < in->rows ? in->width : 0, odd_width = r + 1 < in->rows ? in->width : 0;
        for (size_t c = 0; c < columns; c += PTB_LANES) {
            ptb_vec_bits words = load_halves(even, even_width, c) | load_halves(odd, odd_width, c) << 16;
            memcpy(out + r / 2 * columns + c, &words, sizeof words);
        }
    }
}

// Transposes PTB_LANES rows of PTB_LANES words: step s exchanges the blocks of s x s words off the diagonal
// of each block of 2 s x 2 s.
PTB_INLINE void transpose(ptb_vec rows[PTB_LANES])
{
#if defined __GNUC__ && !defined __clang__
    ptb_vec_int iota = ptb_vec_iota();
#pragma GCC unroll 4
    for (int step = 1; step < PTB_LANES; step *= 2) {
        ptb_vec_int upper = (iota & step) != 0;
        ptb_vec_int low = iota + (upper & (PTB_LANES - step)),
                    high = iota + step + (upper & (PTB_LANES - step));
#pragma GCC unroll 16
        for (int r = 0; r < PTB_LANES; r++) {
            if (r & step)
                continue;
            ptb_vec a = rows[r], b = rows[r + step];
            rows[r] = __builtin_shuffle(a, b, low);
            rows[r + step] = __builtin_shuffle(a, b, high);
        }
    }
#else
    ptb_vec turned[PTB_LANES];
    for (int r = 0; r < PTB_LANES; r++)
        for (int c = 0; c < PTB_LANES; c++)
            turned[c][r] = rows[r][c];
    memcpy(rows, turned, sizeof turned);
#endif
}

PTB_INLINE void pack_transposed(ptb_dtype type, const ptb_attention_rows *in, bool negative, ptb_word *out)
{
    bool pairs = ptb_attention_pairs(type);
    size_t depth = ptb_attention_depth(pairs, in->width);
    ptb_vec_bits flip = ptb_vec_bits_set(!negative ? 0 : pairs ? 0x80008000u : 0x80000000u);
    for (size_t w = 0; w < depth; w += PTB_LANES)
        for (size_t r = 0; r < PTB_TILE; r += PTB_LANES) {
            ptb_vec rows[PTB_LANES];
#pragma GCC unroll 16
            for (size_t i = 0; i < PTB_LANES; i++)
                rows[i] = r + i < in->rows ? load_words(type, row_of(type, in, r + i), in->width, w)
                                           : ptb_vec_set(0);
            transpose(rows);
            size_t some = depth - w < PTB_LANES ? depth - w : PTB_LANES;
            for (size_t i = 0; i < some; i++) {
                ptb_vec_bits words = (ptb_vec_bits)rows[i] ^ flip;
                memcpy(out + (w + i) * PTB_TILE + r, &words, sizeof words);
            }
        }
}

PTB_INLINE void unpack(ptb_dtype type, const ptb_attention_output *out, const float *values,
                       const float *factor, size_t factors)
{
    size_t columns = ptb_attention_columns(out->width), width = out->width;
    bool accumulate = out->accumulate;
    for (size_t r = 0; r < out->rows; r++) {
        void *row = (char *)out->values + r * out->stride * ptb_dtype_size(type);
        ptb_vec times = ptb_vec_set(factor[factors == 1 ? 0 : r]);
        for (size_t c = 0; c < width; c += PTB_LANES) {
            ptb_vec v = ptb_vec_load(PTB_F32, values, r * columns + c) * times;
            if (c + PTB_LANES <= width) {
                ptb_vec_store(type, row, c, accumulate ? v + ptb_vec_load(type, row, c) : v);
                continue;
            }
            size_t some = width - c;
            ptb_vec_store_some(type, row, c, some,
                               accumulate ? v + ptb_vec_load_some(type, row, c, some) : v);
        }
    }
}

// One instance a type.
#define BY_TYPE(type, call)                                                                                  \
    switch (type) {                                                                                          \
    case PTB_BF16:                                                                                           \
        call(PTB_BF16);                                                                                      \
        break;                                                                                               \
    case PTB_F16:                                                                                            \
        call(PTB_F16);                                                                                       \
        break;                                                                                               \
    default:                                                                                                 \
        call(PTB_F32);                                                                                       \
    }

void ptb_attention_pack_rows(const ptb_attention_rows *in, size_t padded_rows, ptb_word *out)
{
#define CALL(type) pack_rows(type, in, padded_rows, out)
    BY_TYPE(in->type, CALL)
#undef CALL
}

void ptb_attention_pack_columns(const ptb_attention_rows *in, size_t padded_rows, ptb_word *out)
{
    if (ptb_attention_pairs(in->type))
        pack_column_pairs(in, padded_rows, out);
    else
        ptb_attention_pack_rows(in, padded_rows, out); // words are single values
}

void ptb_attention_pack_transposed(const ptb_attention_rows *in, bool negative, ptb_word *out)
{
#define CALL(type) pack_transposed(type, in, negative, out)
    BY_TYPE(in->type, CALL)
#undef CALL
}

void ptb_attention_unpack(const ptb_attention_output *out, const float *values, const float *factor,
                          size_t factors){
#define CALL(type) unpack(type, out, values, factor, factors)
    BY_TYPE(out->type, CALL)
#undef CALL
}

// The dot products of the rows of x and y, for delta = d_out . out (Dao 2023, algorithm 2).
PTB_INLINE void multiply_pairwise(ptb_dtype type, const ptb_attention_rows *x, const ptb_attention_rows *y,
                                  float *out)
{
    for (size_t r = 0; r < x->rows; r++) {
        const void *a = row_of(type, x, r), *b = row_of(type, y, r);
        ptb_vec sum = ptb_vec_set(0);
        size_t c = 0;
        for (; c + PTB_LANES <= x->width; c += PTB_LANES)
            sum += ptb_vec_load(type, a, c) * ptb_vec_load(type, b, c);
        if (c < x->width)
            sum += ptb_vec_load_some(type, a, c, x->width - c) * ptb_vec_load_some(type, b, c, x->width - c);
        out[r] = ptb_vec_sum(sum);
    }
}

void ptb_attention_dot_rows(const ptb_attention_rows *x, const ptb_attention_rows *y, float *out)
{
#define CALL(type) multiply_pairwise(type, x, y, out)
    BY_TYPE(x->type, CALL)
#undef CALL
}
