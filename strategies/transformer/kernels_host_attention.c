// Attention on the host: for each sequence and head, a panel of query rows at a time, its scores against all
// keys it may see stay in a scratch that fits the cache. Causal panels stop at the last visible key.
#include "strategies/transformer/kernels_host.h"

#include <math.h>
#include <omp.h>

enum { PANEL = 64 }; // query rows

static size_t padded(size_t columns)
{
    return (columns + 15) / 16 * 16;
}

// A thread's scratch: two panels of scores and a value per row.
static size_t scratch_floats(const ptb_attention_shape *s)
{
    return 2 * PANEL * padded(s->key_length) + PANEL;
}

size_t ptb_host_attention_workspace(const ptb_attention_shape *shape, int threads)
{
    return (size_t)threads * scratch_floats(shape) * sizeof(float);
}

// Keys that query row `row` may see.
static size_t visible(const ptb_attention_shape *s, size_t row)
{
    if (!s->causal)
        return s->key_length;
    int64_t last = s->query_offset + (int64_t)row - s->key_offset + 1;
    return last < 0 ? 0 : (uint64_t)last > s->key_length ? s->key_length : (size_t)last;
}

static size_t panel_rows(const ptb_attention_shape *s, size_t first)
{
    return s->query_length - first < PANEL ? s->query_length - first : PANEL;
}

double ptb_host_attention_flops(const ptb_attention_shape *shape)
{
    double scores = 0;
    for (size_t first = 0; first < shape->query_length; first += PANEL) {
        size_t rows = panel_rows(shape, first);
        scores += (double)rows * (double)visible(shape, first + rows - 1);
    }
    return 4.0 * scores * (double)(shape->batch * shape->heads * shape->head_width);
}

// Scores become exp(score - largest), and 0 beyond the mask; returns their log-sum-exp, and 1 / sum of them.
static float softmax_row(float *scores, size_t seen, size_t columns, float *inverse)
{
    float top = -INFINITY, sum = 0;
#pragma omp simd reduction(max : top)
    for (size_t j = 0; j < seen; j++)
        top = scores[j] > top ? scores[j] : top;
#pragma omp simd reduction(+ : sum)
    for (size_t j = 0; j < seen; j++) {
        scores[j] = ptb_host_exp(scores[j] - top);
        sum += scores[j];
    }
    memset(scores + seen, 0, (columns - seen) * sizeof *scores);
    *inverse = seen ? 1 / sum : 0;
    return seen ? top + logf(sum) : -INFINITY;
}

static ptb_status forward_panel(const ptb_attention *a, size_t b, size_t h, size_t first, float *scores)
{
    const ptb_attention_shape *s = &a->shape;
    size_t rows = panel_rows(s, first), width = s->head_width, out_stride = s->heads * width;
    size_t columns = visible(s, first + rows - 1), ld = padded(s->key_length);
    const float *query =
        (const float *)a->query + (b * s->query_length + first) * s->query_stride + h * width;
    const float *key = (const float *)a->key + b * s->key_length * s->key_stride + h * width;
    const float *value = (const float *)a->value + b * s->key_length * s->key_stride + h * width;
    float *out = (float *)a->out + (b * s->query_length + first) * out_stride + h * width;
    float *lse = a->lse + (b * s->heads + h) * s->query_length + first;
    float *inverse = scores + PANEL * ld;
    if (!columns) {
        for (size_t i = 0; i < rows; i++) {
            memset(out + i * out_stride, 0, width * sizeof *out);
            lse[i] = -INFINITY;
        }
        return PTB_OK;
    }
    PTB_TRY(ptb_host_sgemm('N', 'T', rows, columns, width, s->scale, query, s->query_stride, key,
                           s->key_stride, 0, scores, ld));
    for (size_t i = 0; i < rows; i++)
        lse[i] = softmax_row(scores + i * ld, visible(s, first + i), columns, &inverse[i]);
    PTB_TRY(ptb_host_sgemm('N', 'N', rows, width, columns, 1, scores, ld, value, s->key_stride, 0, out,
                           out_stride));
    for (size_t i = 0; i < rows; i++)
        for (size_t c = 0; c < width; c++)
            out[i * out_stride + c] *= inverse[i];
    return PTB_OK;
}

ptb_status ptb_host_run_attention(void *arg)
{
    const ptb_attention *a = arg;
    const ptb_attention_shape *s = &a->shape;
    int failed = PTB_OK;
#pragma omp parallel for schedule(static) collapse(2)
    for (size_t b = 0; b < s->batch; b++)
        for (size_t h = 0; h < s->heads; h++) {
            float *scratch = (float *)s->workspace + (size_t)omp_get_thread_num() * scratch_floats(s);
            ptb_status status = PTB_OK;
            for (size_t first = 0; first < s->query_length && status == PTB_OK; first += PANEL)
                status = forward_panel(a, b, h, first, scratch);
            if (status != PTB_OK) {
#pragma omp atomic write
                failed = (int)status;
            }
        }
    return (ptb_status)failed;
}

// scores becomes the probabilities, d_scores the gradient of the unscaled scores.
static void backward_rows(const ptb_attention_shape *s, size_t first, size_t rows, size_t columns,
                          const float *lse, const float *delta, float *scores, float *d_scores)
{
    size_t ld = padded(s->key_length);
    for (size_t i = 0; i < rows; i++) {
        float *p = scores + i * ld, *d = d_scores + i * ld;
        size_t seen = visible(s, first + i);
        float log_sum = lse[i], mean = delta[i], scale = s->scale;
#pragma omp simd
        for (size_t j = 0; j < seen; j++) {
            p[j] = ptb_host_exp(p[j] - log_sum);
            d[j] = p[j] * (d[j] - mean) * scale;
        }
        memset(p + seen, 0, (columns - seen) * sizeof *p);
        memset(d + seen, 0, (columns - seen) * sizeof *d);
    }
}

static void row_products(const float *x, const float *y, size_t rows, size_t width, size_t stride, float *out)
{
    for (size_t i = 0; i < rows; i++) {
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (size_t c = 0; c < width; c++)
            sum += x[i * stride + c] * y[i * stride + c];
        out[i] = sum;
    }
}

static ptb_status backward_panel(const ptb_attention_gradient *a, size_t b, size_t h, size_t first,
                                 float *scratch)
{
    const ptb_attention_shape *s = &a->shape;
    size_t rows = panel_rows(s, first), width = s->head_width, out_stride = s->heads * width;
    size_t columns = visible(s, first + rows - 1), ld = padded(s->key_length);
    size_t q = (b * s->query_length + first) * s->query_stride + h * width;
    size_t k = b * s->key_length * s->key_stride + h * width;
    size_t o = (b * s->query_length + first) * out_stride + h * width;
    size_t qs = s->query_stride, ks = s->key_stride;
    const float *lse = a->lse + (b * s->heads + h) * s->query_length + first;
    float *scores = scratch, *d_scores = scratch + PANEL * ld, *delta = scratch + 2 * PANEL * ld;
    const float *query = (const float *)a->query + q, *key = (const float *)a->key + k;
    const float *value = (const float *)a->value + k, *d_out = (const float *)a->d_out + o;
    if (!columns)
        return PTB_OK;
    row_products(d_out, (const float *)a->out + o, rows, width, out_stride, delta);
    PTB_TRY(ptb_host_sgemm('N', 'T', rows, columns, width, s->scale, query, qs, key, ks, 0, scores, ld));
    PTB_TRY(ptb_host_sgemm('N', 'T', rows, columns, width, 1, d_out, out_stride, value, ks, 0, d_scores, ld));
    backward_rows(s, first, rows, columns, lse, delta, scores, d_scores);
    PTB_TRY(ptb_host_sgemm('T', 'N', columns, width, rows, 1, scores, ld, d_out, out_stride, 1,
                           (float *)a->d_value + k, ks));
    PTB_TRY(ptb_host_sgemm('T', 'N', columns, width, rows, 1, d_scores, ld, query, qs, 1,
                           (float *)a->d_key + k, ks));
    return ptb_host_sgemm('N', 'N', rows, width, columns, 1, d_scores, ld, key, ks, 1,
                          (float *)a->d_query + q, qs);
}

static void clear_rows(float *first, size_t rows, size_t stride, size_t width)
{
    for (size_t r = 0; r < rows; r++)
        memset(first + r * stride, 0, width * sizeof *first);
}

ptb_status ptb_host_run_attention_gradient(void *arg)
{
    const ptb_attention_gradient *a = arg;
    const ptb_attention_shape *s = &a->shape;
    int failed = PTB_OK;
#pragma omp parallel for schedule(static) collapse(2)
    for (size_t b = 0; b < s->batch; b++)
        for (size_t h = 0; h < s->heads; h++) {
            float *scratch = (float *)s->workspace + (size_t)omp_get_thread_num() * scratch_floats(s);
            size_t q = b * s->query_length * s->query_stride + h * s->head_width;
            size_t k = b * s->key_length * s->key_stride + h * s->head_width;
            if (!a->accumulate) {
                clear_rows((float *)a->d_query + q, s->query_length, s->query_stride, s->head_width);
                clear_rows((float *)a->d_key + k, s->key_length, s->key_stride, s->head_width);
                clear_rows((float *)a->d_value + k, s->key_length, s->key_stride, s->head_width);
            }
            ptb_status status = PTB_OK;
            for (size_t first = 0; first < s->query_length && status == PTB_OK; first += PANEL)
                status = backward_panel(a, b, h, first, scratch);
            if (status != PTB_OK) {
#pragma omp atomic write
                failed = (int)status;
            }
        }
    return (ptb_status)failed;
}
