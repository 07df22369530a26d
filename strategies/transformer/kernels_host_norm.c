// LayerNorm and RMSNorm on the host. A row is read from memory once; its further passes find it in the
// caches. The gradient makes d_in and the column sums of d_gain and d_bias in one pass: rows are cut into
// blocks, each block sums its rows into a partial row of its own, and the partial rows are added in order.
#include "strategies/transformer/kernels_host_tasks.h"

#include <math.h>

enum {
    TOGETHER = 4,    // rows taken together, so that the latencies of their sums overlap
    PAIR = 2,        // the same in the gradient, which has more arrays: more rows run out of registers
    SUMS = 2,        // partial sums of a row
    BLOCK_ROWS = 16, // rows of a task; least rows of a block
    BLOCKS = 64,     // most blocks
    PARTIAL_FLOATS = 1 << 17, // of all blocks, on the stack
    MERGE = 256,              // columns of a task that adds partial rows
};

// What `rows` rows sum to: in, or (in - mean)^2. Rows are taken together for the sake of speed only: the
// order of a row's sum is the same for any `rows`.
PTB_HOST_BODY row_sums(ptb_dtype type, const void *in, size_t rows, size_t width, const float *mean,
                       bool squares, float *out)
{
    ptb_vec sums[TOGETHER][SUMS] = {{{0}}};
    size_t c = 0;
    for (; c + SUMS * PTB_LANES <= width; c += SUMS * PTB_LANES)
        for (size_t r = 0; r < rows; r++)
            for (size_t s = 0; s < SUMS; s++) {
                size_t at = r * width + c + s * PTB_LANES;
                if (squares) // the row is in the first-level cache: time to fetch the next ones
                    ptb_host_prefetch(type, in, rows * width + at);
                ptb_vec x = ptb_vec_load(type, in, at);
                sums[r][s] += squares ? (x - mean[r]) * (x - mean[r]) : x;
            }
    for (; c < width; c += PTB_LANES) {
        size_t count = ptb_host_least(PTB_LANES, width - c);
        for (size_t r = 0; r < rows; r++) {
            ptb_vec x = ptb_vec_load_some(type, in, r * width + c, count);
            x = squares ? ptb_host_first_lanes(x - mean[r], count) : x;
            sums[r][0] += squares ? x * x : x;
        }
    }
    for (size_t r = 0; r < rows; r++)
        out[r] = ptb_vec_sum(sums[r][0] + sums[r][1]);
}

PTB_HOST_BODY norm_step(ptb_dtype type, const ptb_norm *a, bool stream, const float *mean, const float *rstd,
                        size_t first, size_t rows, size_t c, size_t count)
{
    ptb_vec gain = ptb_vec_load_some(type, a->gain, c, count), bias = {0};
    if (a->bias)
        bias = ptb_vec_load_some(type, a->bias, c, count);
    for (size_t r = 0; r < rows; r++) {
        size_t at = (first + r) * a->width + c;
        ptb_vec x = (ptb_vec_load_some(type, a->in, at, count) - mean[r]) * rstd[r] * gain + bias;
        ptb_host_store(stream, type, a->out, at, count, x);
    }
}

PTB_HOST_BODY norm_rows(ptb_dtype type, const ptb_norm *args, bool stream, size_t first, size_t rows)
{
    const ptb_norm a = *args; // a copy: stores can not be taken to change it
    const void *in = (const char *)a.in + first * a.width * ptb_dtype_size(type);
    float mean[TOGETHER] = {0}, rstd[TOGETHER];
    if (a.mean)
        row_sums(type, in, rows, a.width, mean, false, mean);
    for (size_t r = 0; r < rows; r++)
        mean[r] /= (float)a.width;
    row_sums(type, in, rows, a.width, mean, true, rstd);
    for (size_t r = 0; r < rows; r++) {
        rstd[r] = 1 / sqrtf(rstd[r] / (float)a.width + a.epsilon);
        a.rstd[first + r] = rstd[r];
        if (a.mean)
            a.mean[first + r] = mean[r];
    }
    size_t c = 0;
    for (; c + PTB_LANES <= a.width; c += PTB_LANES)
        norm_step(type, &a, stream, mean, rstd, first, rows, c, PTB_LANES);
    if (c < a.width)
        norm_step(type, &a, stream, mean, rstd, first, rows, c, a.width - c);
}

PTB_HOST_BODY norm_group(ptb_dtype type, const ptb_norm *a, bool stream, size_t first, size_t end)
{
    size_t r = first;
    for (; r + TOGETHER <= end; r += TOGETHER)
        norm_rows(type, a, stream, r, TOGETHER);
    for (; r < end; r++)
        norm_rows(type, a, stream, r, 1);
    ptb_host_fence(stream);
}

ptb_status ptb_host_run_norm(void *arg)
{
    const ptb_norm *a = arg;
    size_t row_bytes = a->width * ptb_dtype_size(a->type);
    bool stream = ptb_host_streams(a->out, a->rows * row_bytes, row_bytes, a->in, NULL);
#pragma omp parallel for schedule(static) if (a->rows * a->width > PTB_HOST_SERIAL)
    for (size_t first = 0; first < a->rows; first += BLOCK_ROWS)
        PTB_HOST_TYPED(norm_group, a->type, a, stream, first, ptb_host_least(a->rows, first + BLOCK_ROWS));
    return PTB_OK;
}

// What the gradient of some rows needs: with d = d_out * gain and x = (in - mean) * rstd,
// d_in = rstd * (d - mean of d - x * mean of (d * x)).
typedef struct {
    float mean, rstd, mean_d, mean_dx;
} row_numbers;

// Adds d and d * (in - mean) of one vector of `rows` rows.
PTB_HOST_BODY dots_step(ptb_dtype type, const ptb_norm_gradient *a, const float *mean, size_t first,
                        size_t rows, size_t c, size_t count, ptb_vec *sum, ptb_vec *product)
{
    ptb_vec gain = ptb_vec_load_some(type, a->gain, c, count);
    for (size_t r = 0; r < rows; r++) {
        size_t at = (first + r) * a->width + c;
        if (a->residual)
            ptb_host_prefetch(type, a->residual, at);
        ptb_vec d = ptb_vec_load_some(type, a->d_out, at, count) * gain; // 0 beyond count
        sum[r] += d;
        product[r] += d * (ptb_vec_load_some(type, a->in, at, count) - mean[r]);
    }
}

PTB_HOST_BODY row_dots(ptb_dtype type, const ptb_norm_gradient *a, size_t first, size_t rows, row_numbers *n)
{
    float mean[PAIR];
    ptb_vec sum[PAIR] = {{0}}, product[PAIR] = {{0}};
    for (size_t r = 0; r < rows; r++)
        mean[r] = a->mean ? a->mean[first + r] : 0;
    size_t c = 0;
    for (; c + PTB_LANES <= a->width; c += PTB_LANES)
        dots_step(type, a, mean, first, rows, c, PTB_LANES, sum, product);
    if (c < a->width)
        dots_step(type, a, mean, first, rows, c, a->width - c, sum, product);
    for (size_t r = 0; r < rows; r++) {
        float rstd = a->rstd[first + r];
        n[r] = (row_numbers){
            .mean = mean[r],
            .rstd = rstd,
            .mean_d = a->mean ? ptb_vec_sum(sum[r]) / (float)a->width : 0,
            .mean_dx = ptb_vec_sum(product[r]) * rstd / (float)a->width,
        };
    }
}

// One vector of `rows` rows: d_in, and the rows' share of the column sums.
PTB_HOST_BODY gradient_step(ptb_dtype type, const ptb_norm_gradient *a, bool stream, const row_numbers *n,
                            float *gain_sum, float *bias_sum, size_t first, size_t rows, size_t c,
                            size_t count)
{
    ptb_vec gain = ptb_vec_load_some(type, a->gain, c, count);
    ptb_vec d_gain = ptb_vec_load_some(PTB_F32, gain_sum, c, count);
    ptb_vec d_bias = {0};
    for (size_t i = 0; i < rows; i++) {
        size_t at = (first + i) * a->width + c;
        ptb_host_prefetch(type, a->d_out, at + rows * a->width);
        ptb_host_prefetch(type, a->in, at + rows * a->width);
        ptb_vec d_out = ptb_vec_load_some(type, a->d_out, at, count);
        ptb_vec x = (ptb_vec_load_some(type, a->in, at, count) - n[i].mean) * n[i].rstd;
        d_gain += d_out * x;
        d_bias += d_out;
        ptb_vec d_in = n[i].rstd * (d_out * gain - n[i].mean_d - x * n[i].mean_dx);
        if (a->residual)
            d_in += ptb_vec_load_some(type, a->residual, at, count);
        ptb_host_store(stream, type, a->d_in, at, count, d_in);
    }
    ptb_vec_store_some(PTB_F32, gain_sum, c, count, d_gain);
    if (bias_sum)
        ptb_vec_store_some(PTB_F32, bias_sum, c, count,
                           d_bias + ptb_vec_load_some(PTB_F32, bias_sum, c, count));
}

PTB_HOST_BODY gradient_rows(ptb_dtype type, const ptb_norm_gradient *a, bool stream, float *gain_sum,
                            float *bias_sum, size_t first, size_t rows)
{
    row_numbers n[PAIR];
    row_dots(type, a, first, rows, n);
    size_t c = 0;
    for (; c + PTB_LANES <= a->width; c += PTB_LANES)
        gradient_step(type, a, stream, n, gain_sum, bias_sum, first, rows, c, PTB_LANES);
    if (c < a->width)
        gradient_step(type, a, stream, n, gain_sum, bias_sum, first, rows, c, a->width - c);
}

// Adds rows [first, end) to the sums of d_gain and, where not NULL, of d_bias.
PTB_HOST_BODY gradient_block(ptb_dtype type, const ptb_norm_gradient *args, bool stream, float *gain_sum,
                             float *bias_sum, size_t first, size_t end)
{
    const ptb_norm_gradient a = *args;
    size_t r = first;
    for (; r + PAIR <= end; r += PAIR)
        gradient_rows(type, &a, stream, gain_sum, bias_sum, r, PAIR);
    for (; r < end; r++)
        gradient_rows(type, &a, stream, gain_sum, bias_sum, r, 1);
    ptb_host_fence(stream);
}

// out += sum of `blocks` rows of partial, 2 * width apart, in order
static void merge(float *out, const float *partial, size_t blocks, size_t width)
{
#pragma omp parallel for schedule(static) if (blocks * width > PTB_HOST_SERIAL)
    for (size_t first = 0; first < width; first += MERGE) {
        size_t end = ptb_host_least(width, first + MERGE);
        for (size_t b = 0; b < blocks; b++)
            for (size_t c = first; c < end; c++)
                out[c] += partial[2 * width * b + c];
    }
}

ptb_status ptb_host_run_norm_gradient(void *arg)
{
    const ptb_norm_gradient *a = arg;
    size_t width = a->width, rows = a->rows;
    size_t row_bytes = width * ptb_dtype_size(a->type);
    bool stream = ptb_host_streams(a->d_in, rows * row_bytes, row_bytes, a->d_out, a->residual);
    if (!a->accumulate)
        memset(a->d_gain, 0, width * sizeof *a->d_gain);
    if (!a->accumulate && a->d_bias)
        memset(a->d_bias, 0, width * sizeof *a->d_bias);
    size_t blocks = ptb_host_least(ptb_host_least(BLOCKS, rows / BLOCK_ROWS), PARTIAL_FLOATS / (2 * width));
    if (blocks < 2) {
        PTB_HOST_TYPED(gradient_block, a->type, a, stream, a->d_gain, a->d_bias, 0, rows);
        return PTB_OK;
    }
    _Alignas(PTB_LANES * sizeof(float)) float partial[PARTIAL_FLOATS]; /* [blocks, 2, width] */
#pragma omp parallel for schedule(static)
    for (size_t b = 0; b < blocks; b++) {
        float *gain_sum = partial + 2 * width * b, *bias_sum = gain_sum + width;
        memset(gain_sum, 0, 2 * width * sizeof *gain_sum);
        PTB_HOST_TYPED(gradient_block, a->type, a, stream, gain_sum, a->d_bias ? bias_sum : NULL,
                       rows * b / blocks, rows * (b + 1) / blocks);
    }
    merge(a->d_gain, partial, blocks, width);
    if (a->d_bias)
        merge(a->d_bias, partial + width, blocks, width);
    return PTB_OK;
}
