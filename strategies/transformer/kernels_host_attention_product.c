// Block products of attention: register tiles of ROWS broadcast words times VECTORS vectors, summed over k
// without leaving the registers. 4 x 4 vectors (16 sums) hide the latency of two fused multiply-adds a cycle
// with 8 loads for 16 of them; narrower remainders take 8 rows.
#include "strategies/transformer/kernels_host_attention.h"

// Vectors of a register tile: 32 registers hold 4 x 4 sums, 16 hold 4 x 2.
#if defined PTB_VECTOR_512 || defined __aarch64__
enum { VECTORS = 4 };
#else
enum { VECTORS = 2 };
#endif
enum { ROWS = 8 }; // at most

PTB_INLINE ptb_vec multiply_add(bool pairs, ptb_vec a, ptb_vec b, ptb_vec sum)
{
#if defined PTB_VECTOR_512 && defined __AVX512BF16__
    if (pairs)
        return (ptb_vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
#endif
    (void)pairs;
    return sum + a * b;
}

// Keeps the compiler from folding a load into each of its uses, which would take more load slots than there
// are.
#if defined PTB_VECTOR_512
#define KEEP_IN_REGISTER(v) __asm__("" : "+v"(v))
#elif defined __x86_64__
#define KEEP_IN_REGISTER(v) __asm__("" : "+x"(v))
#elif defined __aarch64__
#define KEEP_IN_REGISTER(v) __asm__("" : "+w"(v))
#else
#define KEEP_IN_REGISTER(v) (void)(v)
#endif

PTB_INLINE ptb_vec load(const void *from)
{
    ptb_vec v;
    memcpy(&v, from, sizeof v);
    return v;
}

// c [rows, vectors] = sum over k of a(row, k) * b[k, vectors] (+ c); row_step and k_step are those of a.
PTB_INLINE void multiply_tile(const ptb_attention_product *p, size_t m, size_t n, size_t row_step,
                              size_t k_step, int rows, int vectors)
{
    const ptb_word *a = p->a + m * row_step, *b = p->b + n;
    float *c = p->c + m * p->ldc + n;
    size_t ldb = p->ldb, ldc = p->ldc;
    bool pairs = p->pairs;
    ptb_vec sum[ROWS][VECTORS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            sum[r][v] = p->accumulate ? load(c + (size_t)r * ldc + (size_t)v * PTB_LANES) : ptb_vec_set(0);
    for (size_t k = 0; k < p->k; k++, a += k_step, b += ldb) {
        ptb_vec right[VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
            right[v] = load(b + (size_t)v * PTB_LANES);
            KEEP_IN_REGISTER(right[v]);
        }
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            ptb_vec left = (ptb_vec)ptb_vec_bits_set(a[(size_t)r * row_step]);
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++)
                sum[r][v] = multiply_add(pairs, left, right[v], sum[r][v]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            memcpy(c + (size_t)r * ldc + (size_t)v * PTB_LANES, &sum[r][v], sizeof sum[r][v]);
}

// All rows of a strip of `vectors` vectors.
PTB_INLINE void multiply_strip(const ptb_attention_product *p, size_t n, size_t row_step, size_t k_step,
                               int vectors)
{
    int rows = VECTORS == 4 && vectors <= 2 ? 8 : 4;
    for (size_t m = 0; m < p->m; m += (size_t)rows)
        multiply_tile(p, m, n, row_step, k_step, rows, vectors);
}

PTB_INLINE void multiply(const ptb_attention_product *given, bool pairs, bool accumulate, size_t row_step,
                         size_t k_step)
{
    ptb_attention_product constant = *given, *p = &constant;
    p->pairs = pairs;
    p->accumulate = accumulate;
    size_t n = 0;
    for (; n + VECTORS * PTB_LANES <= p->n; n += VECTORS * PTB_LANES)
        multiply_strip(p, n, row_step, k_step, VECTORS);
    switch ((p->n - n) / PTB_LANES) {
    case 3:
        multiply_strip(p, n, row_step, k_step, VECTORS > 3 ? 3 : 1);
        break;
    case 2:
        multiply_strip(p, n, row_step, k_step, VECTORS > 2 ? 2 : 1);
        break;
    case 1:
        multiply_strip(p, n, row_step, k_step, 1);
        break;
    default:
        break;
    }
}

// Instances: pairs or not, adding or not.
#define INSTANCES(row_step, k_step)                                                                          \
    if (p->pairs && p->accumulate)                                                                           \
        multiply(p, true, true, row_step, k_step);                                                           \
    else if (p->pairs)                                                                                       \
        multiply(p, true, false, row_step, k_step);                                                          \
    else if (p->accumulate)                                                                                  \
        multiply(p, false, true, row_step, k_step);                                                          \
    else                                                                                                     \
        multiply(p, false, false, row_step, k_step)

void ptb_attention_multiply_rows(const ptb_attention_product *p)
{
    INSTANCES(p->lda, 1);
}

void ptb_attention_multiply_columns(const ptb_attention_product *p)
{
    INSTANCES(1, p->lda);
}

// ---- products of a block, where the plan wants them

// Groups from g on that want the same strips.
static size_t equal_groups(const ptb_attention_plan *plan, size_t g)
{
    size_t groups = plan->keys / PTB_GROUP, end = g + 1;
    while (end < groups && plan->strip_begin[end] == plan->strip_begin[g] &&
           plan->strip_end[end] == plan->strip_end[g])
        end++;
    return end - g;
}

void ptb_attention_multiply_scores(const ptb_attention_plan *plan, bool pairs, size_t depth,
                                   const ptb_word *a, size_t lda, const ptb_word *b, float *c)
{
    for (size_t g = 0, groups; g < plan->keys / PTB_GROUP; g += groups) {
        groups = equal_groups(plan, g);
        size_t key = g * PTB_GROUP, query = plan->strip_begin[g] * PTB_STRIP;
        ptb_attention_product p = {.m = groups * PTB_GROUP,
                                   .n = plan->strip_end[g] * PTB_STRIP - query,
                                   .k = depth,
                                   .a = a + key * lda,
                                   .lda = lda,
                                   .b = b + query,
                                   .ldb = PTB_TILE,
                                   .c = c + key * PTB_TILE + query,
                                   .ldc = PTB_TILE,
                                   .pairs = pairs};
        ptb_attention_multiply_rows(&p);
    }
}

void ptb_attention_multiply_keys(const ptb_attention_plan *plan, size_t strips, bool pairs, size_t columns,
                                 const ptb_word *scores, const ptb_word *b, float *c)
{
    size_t words = pairs ? 2 : 1; // keys a word
    for (size_t s = 0, same; s < strips; s += same) {
        size_t begin = plan->key_begin[s], end = plan->key_end[s];
        for (same = 1;
             s + same < strips && plan->key_begin[s + same] == begin && plan->key_end[s + same] == end;)
            same++;
        if (begin == end)
            continue;
        ptb_attention_product p = {.m = same * PTB_STRIP,
                                   .n = columns,
                                   .k = (end - begin) / words,
                                   .a = scores + begin / words * PTB_TILE + s * PTB_STRIP,
                                   .lda = PTB_TILE,
                                   .b = b + begin / words * columns,
                                   .ldb = columns,
                                   .c = c + s * PTB_STRIP * columns,
                                   .ldc = columns,
                                   .pairs = pairs,
                                   .accumulate = true};
        ptb_attention_multiply_columns(&p);
    }
}

void ptb_attention_multiply_queries(const ptb_attention_plan *plan, bool pairs, size_t columns,
                                    const ptb_word *scores, const ptb_word *b, float *c)
{
    size_t words = pairs ? 2 : 1; // queries a word
    for (size_t g = 0, groups; g < plan->keys / PTB_GROUP; g += groups) {
        groups = equal_groups(plan, g);
        size_t key = g * PTB_GROUP, query = plan->strip_begin[g] * PTB_STRIP;
        ptb_attention_product p = {.m = groups * PTB_GROUP,
                                   .n = columns,
                                   .k = (plan->strip_end[g] * PTB_STRIP - query) / words,
                                   .a = scores + (key * PTB_TILE + query) / words,
                                   .lda = PTB_TILE / words,
                                   .b = b + query / words * columns,
                                   .ldb = columns,
                                   .c = c + key * columns,
                                   .ldc = columns,
                                   .pairs = pairs,
                                   .accumulate = true};
        ptb_attention_multiply_rows(&p);
    }
}
