// LayerNorm and RMSNorm on the host. A row is read from memory once; its further passes find it in the
// caches. The gradient makes d_in and the column sums of d_gain and d_bias in one pass: rows are cut into
// blocks, each block sums its rows into a partial row of its own, and the partial rows are added in order.
#include "strategies/transformer/kernels_host_tasks.h"

#include <math.h>

enum {
    SUMS = 4,                 // independent partial sums of a row
    TOGETHER = 4,             // rows whose column sums are added at a time
    BLOCK_ROWS = 16,          // least rows of a block
    BLOCKS = 64,              // most blocks
    PARTIAL_FLOATS = 1 << 17, // of all blocks, on the stack
    MERGE = 256,              // columns of a task that adds partial rows
};

// Sum of in, or of (in - mean)^2.
PTB_INLINE float row_sum(ptb_dtype type, const void *in, size_t width, float mean, bool squares)
{
    ptb_vec sums[SUMS] = {{0}};
    size_t c = 0;
    for (; c + SUMS * PTB_LANES <= width; c += SUMS * PTB_LANES)
        for (size_t s = 0; s < SUMS; s++) {
            ptb_vec x = ptb_vec_load(type, in, c + s * PTB_LANES) - mean;
            sums[s] += squares ? x * x : x;
        }
    for (; c + PTB_LANES <= width; c += PTB_LANES) {
        ptb_vec x = ptb_vec_load(type, in, c) - mean;
        sums[0] += squares ? x * x : x;
    }
    if (c < width) {
        ptb_vec x = ptb_host_first_lanes(ptb_vec_load_some(type, in, c, width - c) - mean, width - c);
        sums[1] += squares ? x * x : x;
    }
    return ptb_vec_sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

PTB_HOST_BODY norm_step(ptb_dtype type, const ptb_norm *a, void *out, const void *in, float mean, float rstd,
                        size_t c, size_t count)
{
    ptb_vec x = (ptb_vec_load_some(type, in, c, count) - mean) * rstd;
    x *= ptb_vec_load_some(type, a->gain, c, count);
    if (a->bias)
        x += ptb_vec_load_some(type, a->bias, c, count);
    ptb_vec_store_some(type, out, c, count, x);
}

PTB_HOST_BODY norm_row(ptb_dtype type, const ptb_norm *args, size_t r)
{
    const ptb_norm a = *args; // a copy: stores can not be taken to change it
    size_t width = a.width, bytes = width * ptb_dtype_size(type);
    const void *in = (const char *)a.in + r * bytes;
    void *out = (char *)a.out + r * bytes;
    float mean = a.mean ? row_sum(type, in, width, 0, false) / (float)width : 0;
    float rstd = 1 / sqrtf(row_sum(type, in, width, mean, true) / (float)width + a.epsilon);
    if (a.mean)
        a.mean[r] = mean;
    a.rstd[r] = rstd;
    size_t c = 0;
    for (; c + PTB_LANES <= width; c += PTB_LANES)
        norm_step(type, &a, out, in, mean, rstd, c, PTB_LANES);
    if (c < width)
        norm_step(type, &a, out, in, mean, rstd, c, width - c);
}

ptb_status ptb_host_run_norm(void *arg)
{
    const ptb_norm *a = arg;
#pragma omp parallel for schedule(static) if (a->rows * a->width > PTB_HOST_SERIAL)
    for (size_t r = 0; r < a->rows; r++)
        PTB_HOST_TYPED(norm_row, a->type, a, r);
    return PTB_OK;
}

// What the gradient of some rows needs: with d = d_out * gain and x = (in - mean) * rstd,
// d_in = rstd * (d - mean of d - x * mean of (d * x)).
typedef struct {
    float mean, rstd, mean_d, mean_dx;
} row_numbers;

// Adds d and d * x of one vector of the row.
PTB_HOST_BODY dot_step(ptb_dtype type, const void *gain, const void *d_out, const void *in, float mean,
                       size_t c, size_t count, ptb_vec *sum, ptb_vec *product)
{
    ptb_vec d = ptb_vec_load_some(type, d_out, c, count) * ptb_vec_load_some(type, gain, c, count);
    *sum += d;
    *product += d * (ptb_vec_load_some(type, in, c, count) - mean);
}

PTB_HOST_BODY row_dots(ptb_dtype type, const ptb_norm_gradient *a, size_t r, row_numbers *n)
{
    size_t width = a->width, bytes = width * ptb_dtype_size(type), c = 0;
    const void *d_out = (const char *)a->d_out + r * bytes, *in = (const char *)a->in + r * bytes;
    float mean = a->mean ? a->mean[r] : 0, rstd = a->rstd[r];
    ptb_vec sum[2] = {{0}}, product[2] = {{0}};
    for (; c + 2 * PTB_LANES <= width; c += 2 * PTB_LANES)
        for (size_t s = 0; s < 2; s++)
            dot_step(type, a->gain, d_out, in, mean, c + s * PTB_LANES, PTB_LANES, &sum[s], &product[s]);
    for (; c + PTB_LANES <= width; c += PTB_LANES)
        dot_step(type, a->gain, d_out, in, mean, c, PTB_LANES, &sum[0], &product[0]);
    if (c < width)
        dot_step(type, a->gain, d_out, in, mean, c, width - c, &sum[1], &product[1]);
    *n = (row_numbers){
        .mean = mean,
        .rstd = rstd,
        .mean_d = a->mean ? ptb_vec_sum(sum[0] + sum[1]) / (float)width : 0,
        .mean_dx = ptb_vec_sum(product[0] + product[1]) * rstd / (float)width,
    };
}

// One vector of `rows` rows: d_in, and the rows' share of the column sums.
PTB_HOST_BODY gradient_step(ptb_dtype type, const ptb_norm_gradient *a, const row_numbers *n, float *gain_sum,
                            float *bias_sum, size_t first, size_t rows, size_t c, size_t count)
{
    ptb_vec gain = ptb_vec_load_some(type, a->gain, c, count);
    ptb_vec d_gain = ptb_vec_load_some(PTB_F32, gain_sum, c, count);
    ptb_vec d_bias = {0};
    for (size_t i = 0; i < rows; i++) {
        size_t at = (first + i) * a->width + c;
        ptb_vec d_out = ptb_vec_load_some(type, a->d_out, at, count);
        ptb_vec x = (ptb_vec_load_some(type, a->in, at, count) - n[i].mean) * n[i].rstd;
        d_gain += d_out * x;
        d_bias += d_out;
        ptb_vec d_in = n[i].rstd * (d_out * gain - n[i].mean_d - x * n[i].mean_dx);
        if (a->residual)
            d_in += ptb_vec_load_some(type, a->residual, at, count);
        ptb_vec_store_some(type, a->d_in, at, count, d_in);
    }
    ptb_vec_store_some(PTB_F32, gain_sum, c, count, d_gain);
    if (bias_sum)
        ptb_vec_store_some(PTB_F32, bias_sum, c, count,
                           d_bias + ptb_vec_load_some(PTB_F32, bias_sum, c, count));
}

PTB_HOST_BODY gradient_rows(ptb_dtype type, const ptb_norm_gradient *a, float *gain_sum, float *bias_sum,
                            size_t first, size_t rows)
{
    row_numbers n[TOGETHER];
    for (size_t i = 0; i < rows; i++)
        row_dots(type, a, first + i, &n[i]);
    size_t c = 0;
    for (; c + PTB_LANES <= a->width; c += PTB_LANES)
        gradient_step(type, a, n, gain_sum, bias_sum, first, rows, c, PTB_LANES);
    if (c < a->width)
        gradient_step(type, a, n, gain_sum, bias_sum, first, rows, c, a->width - c);
}

// Adds rows [first, end) to the sums of d_gain and, where not NULL, of d_bias.
PTB_HOST_BODY gradient_block(ptb_dtype type, const ptb_norm_gradient *args, float *gain_sum, float *bias_sum,
                             size_t first, size_t end)
{
    const ptb_norm_gradient a = *args;
    size_t r = first;
    for (; r + TOGETHER <= end; r += TOGETHER)
        gradient_rows(type, &a, gain_sum, bias_sum, r, TOGETHER);
    for (; r < end; r++)
        gradient_rows(type, &a, gain_sum, bias_sum, r, 1);
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
    if (!a->accumulate)
        memset(a->d_gain, 0, width * sizeof *a->d_gain);
    if (!a->accumulate && a->d_bias)
        memset(a->d_bias, 0, width * sizeof *a->d_bias);
    size_t blocks = ptb_host_least(ptb_host_least(BLOCKS, rows / BLOCK_ROWS), PARTIAL_FLOATS / (2 * width));
    if (blocks < 2) {
        PTB_HOST_TYPED(gradient_block, a->type, a, a->d_gain, a->d_bias, 0, rows);
        return PTB_OK;
    }
    _Alignas(PTB_LANES * sizeof(float)) float partial[PARTIAL_FLOATS]; /* [blocks, 2, width] */
#pragma omp parallel for schedule(static)
    for (size_t b = 0; b < blocks; b++) {
        float *gain_sum = partial + 2 * width * b, *bias_sum = gain_sum + width;
        memset(gain_sum, 0, 2 * width * sizeof *gain_sum);
        PTB_HOST_TYPED(gradient_block, a->type, a, gain_sum, a->d_bias ? bias_sum : NULL, rows * b / blocks,
                       rows * (b + 1) / blocks);
    }
    merge(a->d_gain, partial, blocks, width);
    if (a->d_bias)
        merge(a->d_bias, partial + width, blocks, width);
    return PTB_OK;
}
