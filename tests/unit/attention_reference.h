// Attention in double precision with plain loops, and cases that hold the kernels to it.
#ifndef PTB_TESTS_UNIT_ATTENTION_REFERENCE_H
#define PTB_TESTS_UNIT_ATTENTION_REFERENCE_H

#include "strategies/transformer/dropout.h"
#include "tests/unit/kernels_fixture.h"

typedef enum { QUERY, KEY, VALUE, OUT, ARRAYS } array;

// A call in double: [batch, length, stride] arrays as the kernels have them.
typedef struct {
    ptb_attention_shape shape;
    size_t count[ARRAYS];      // elements
    double *values[ARRAYS];    // inputs and the result
    double *lse;               /* [batch, heads, query_length] */
    double *gradients[ARRAYS]; // OUT: given
} reference;

static inline bool sees(const ptb_attention_shape *s, size_t b, size_t i, size_t j)
{
    int64_t query = s->query_offset + (int64_t)i, key = s->key_offset + (int64_t)j;
    int32_t start = s->query_start ? s->query_start[b * s->query_length + i] : 0;
    return start <= key && (!s->causal || key <= query);
}

// What dropout multiplies the probability by.
static inline double drop(const ptb_attention_shape *s, size_t b, size_t h, size_t i, size_t j)
{
    if (!(s->dropout_rate > 0))
        return 1;
    uint64_t row = (s->dropout_sequence + b) * s->total_length + (uint64_t)s->query_offset + i;
    uint64_t column = (s->dropout_head + h) * s->total_length + (uint64_t)s->key_offset + j;
    uint32_t draw = ptb_dropout_draw(ptb_dropout_key(s->dropout_seed, row), (uint32_t)column);
    return draw >= (uint32_t)((double)s->dropout_rate * 0x1p32) ? 1 / (1 - (double)s->dropout_rate) : 0;
}

static inline size_t at_query(const ptb_attention_shape *s, size_t b, size_t i, size_t h)
{
    return (b * s->query_length + i) * s->query_stride + h * s->head_width;
}

static inline size_t at_key(const ptb_attention_shape *s, size_t b, size_t j, size_t h)
{
    return (b * s->key_length + j) * s->key_stride + h / (s->heads / s->kv_heads) * s->head_width;
}

static inline size_t at_out(const ptb_attention_shape *s, size_t b, size_t i, size_t h)
{
    return ((b * s->query_length + i) * s->heads + h) * s->head_width;
}

static inline double inner(const double *x, const double *y, size_t n)
{
    double sum = 0;
    for (size_t c = 0; c < n; c++)
        sum += x[c] * y[c];
    return sum;
}

// to += factor * x.
static inline void add_scaled(double *to, double factor, const double *x, size_t n)
{
    for (size_t c = 0; c < n; c++)
        to[c] += factor * x[c];
}

// Probabilities of one row into p [key_length]; returns the log-sum-exp.
static inline double probabilities(const reference *r, size_t b, size_t h, size_t i, double *p)
{
    const ptb_attention_shape *s = &r->shape;
    double top = -INFINITY, sum = 0;
    for (size_t j = 0; j < s->key_length; j++) {
        p[j] = !sees(s, b, i, j)
                   ? -INFINITY
                   : (double)s->scale * inner(r->values[QUERY] + at_query(s, b, i, h),
                                              r->values[KEY] + at_key(s, b, j, h), s->head_width);
        top = p[j] > top ? p[j] : top;
    }
    for (size_t j = 0; j < s->key_length; j++) {
        p[j] = p[j] > -INFINITY ? exp(p[j] - top) : 0;
        sum += p[j];
    }
    for (size_t j = 0; j < s->key_length && sum > 0; j++)
        p[j] /= sum;
    return sum > 0 ? top + log(sum) : -INFINITY;
}

static inline void reference_forward(reference *r)
{
    const ptb_attention_shape *s = &r->shape;
    double *p = calloc(s->key_length + 1, sizeof *p);
    memset(r->values[OUT], 0, r->count[OUT] * sizeof(double));
    for (size_t b = 0; b < s->batch; b++)
        for (size_t h = 0; h < s->heads; h++)
            for (size_t i = 0; i < s->query_length; i++) {
                double *out = r->values[OUT] + at_out(s, b, i, h);
                r->lse[(b * s->heads + h) * s->query_length + i] = probabilities(r, b, h, i, p);
                for (size_t j = 0; j < s->key_length; j++)
                    if (p[j] > 0)
                        add_scaled(out, p[j] * drop(s, b, h, i, j), r->values[VALUE] + at_key(s, b, j, h),
                                   s->head_width);
            }
    free(p);
}

// Adds to the gradients of query, key and value.
static inline void reference_gradient(reference *r)
{
    const ptb_attention_shape *s = &r->shape;
    double *p = calloc(s->key_length + 1, sizeof *p), *d = calloc(s->key_length + 1, sizeof *d);
    for (size_t b = 0; b < s->batch; b++)
        for (size_t h = 0; h < s->heads; h++)
            for (size_t i = 0; i < s->query_length; i++) {
                const double *d_out = r->gradients[OUT] + at_out(s, b, i, h);
                size_t q = at_query(s, b, i, h);
                double mean = 0;
                probabilities(r, b, h, i, p);
                for (size_t j = 0; j < s->key_length; j++) {
                    if (!(p[j] > 0))
                        continue;
                    d[j] = drop(s, b, h, i, j) *
                           inner(d_out, r->values[VALUE] + at_key(s, b, j, h), s->head_width);
                    mean += p[j] * d[j];
                }
                for (size_t j = 0; j < s->key_length; j++) {
                    if (!(p[j] > 0)) // what is not seen adds nothing
                        continue;
                    size_t k = at_key(s, b, j, h);
                    double score = p[j] * (d[j] - mean) * (double)s->scale;
                    double kept = p[j] * drop(s, b, h, i, j);
                    add_scaled(r->gradients[VALUE] + k, kept, d_out, s->head_width);
                    add_scaled(r->gradients[QUERY] + q, score, r->values[KEY] + k, s->head_width);
                    add_scaled(r->gradients[KEY] + k, score, r->values[QUERY] + q, s->head_width);
                }
            }
    free(p), free(d);
}

// ---- cases: the same numbers in the kernels' type and in double

typedef struct {
    ptb_attention_shape shape;
    size_t lse_count;
    void *values[ARRAYS], *gradients[ARRAYS];
    float *lse;
    reference reference;
} attention_case;

// Elements that belong to a head, not to the padding between rows.
static inline bool is_padding(const ptb_attention_shape *s, array which, size_t index)
{
    if (which == OUT)
        return false;
    size_t stride = which == QUERY ? s->query_stride : s->key_stride;
    return index % stride >= (which == QUERY ? s->heads : s->kv_heads) * s->head_width;
}

// Fills in what a test left out: heads, strides with some padding, scale. Gradients begin with numbers.
static inline void case_init(attention_case *a, ptb_attention_shape s)
{
    s.kv_heads = s.kv_heads ? s.kv_heads : s.heads;
    s.query_stride = s.query_stride ? s.query_stride : s.heads * s.head_width + 5;
    s.key_stride = s.key_stride ? s.key_stride : s.kv_heads * s.head_width + 3;
    s.scale = s.scale != 0 ? s.scale : (float)(1.5 / sqrt((double)s.head_width));
    s.total_length = s.total_length ? s.total_length : s.query_length + s.key_length;
    if (s.query_start)
        s.query_start = test_memory_of(s.query_start, s.batch * s.query_length * sizeof *s.query_start);
    *a = (attention_case){.shape = s, .lse_count = s.batch * s.heads * s.query_length};
    reference *r = &a->reference;
    size_t keys = s.batch * s.key_length * s.key_stride;
    *r = (reference){.shape = s,
                     .count = {s.batch * s.query_length * s.query_stride, keys, keys,
                               s.batch * s.query_length * s.heads * s.head_width}};
    for (array which = 0; which < ARRAYS; which++) {
        size_t n = r->count[which], bytes = ptb_dtype_size(s.type);
        a->values[which] = test_memory(n * bytes + 1);
        a->gradients[which] = test_memory(n * bytes + 1);
        r->values[which] = malloc((n + 1) * sizeof(double));
        r->gradients[which] = malloc((n + 1) * sizeof(double));
        for (size_t i = 0; i < n; i++) {
            char *value = (char *)a->values[which] + i * bytes;
            char *gradient = (char *)a->gradients[which] + i * bytes;
            ptb_dtype_store(s.type, value, ptb_random_normal(7, which, i));
            ptb_dtype_store(s.type, gradient, ptb_random_normal(8, which, i));
            r->values[which][i] = ptb_dtype_load(s.type, value);
            r->gradients[which][i] = ptb_dtype_load(s.type, gradient);
        }
    }
    a->lse = numbers(a->lse_count, 9);
    r->lse = calloc(a->lse_count + 1, sizeof *r->lse);
}

static inline void case_release(attention_case *a)
{
    for (array which = 0; which < ARRAYS; which++) {
        test_memory_free(a->values[which]), test_memory_free(a->gradients[which]);
        free(a->reference.values[which]), free(a->reference.gradients[which]);
    }
    test_memory_free(a->lse), free(a->reference.lse);
    if (a->shape.query_start)
        test_memory_free((void *)(uintptr_t)a->shape.query_start);
}

// Scratch full of NaN: what a kernel reads before it has written it shows.
static inline void workspace_new(fixture *f, attention_case *a, int threads)
{
    size_t bytes = f->kernels->attention_workspace(&a->shape, threads);
    a->shape.workspace = test_memory(bytes);
    memset(a->shape.workspace, 0xff, bytes);
}

static inline void run_forward(fixture *f, attention_case *a, int threads)
{
    workspace_new(f, a, threads);
    ptb_attention args = {a->shape,         a->values[OUT], a->lse,
                          a->values[QUERY], a->values[KEY], a->values[VALUE]};
    finish(f, f->kernels->attention(f->stream, &args));
    test_memory_free(a->shape.workspace);
}

static inline void run_gradient(fixture *f, attention_case *a, bool accumulate, int threads)
{
    workspace_new(f, a, threads);
    ptb_attention_gradient args = {a->shape,
                                   a->gradients[QUERY],
                                   a->gradients[KEY],
                                   a->gradients[VALUE],
                                   a->gradients[OUT],
                                   a->values[OUT],
                                   a->lse,
                                   a->values[QUERY],
                                   a->values[KEY],
                                   a->values[VALUE],
                                   accumulate};
    finish(f, f->kernels->attention_gradient(f->stream, &args));
    test_memory_free(a->shape.workspace);
}

// ||got - wanted|| / ||wanted|| of an array in the kernels' type.
static inline double distance_of(ptb_dtype type, const void *got, const double *wanted, size_t count)
{
    double error = 0, size = 0;
    for (size_t i = 0; i < count; i++) {
        double x = ptb_dtype_load(type, (const char *)got + i * ptb_dtype_size(type)) - wanted[i];
        error += x * x;
        size += wanted[i] * wanted[i];
    }
    return error == 0 ? 0 : sqrt(error / size);
}

#endif
