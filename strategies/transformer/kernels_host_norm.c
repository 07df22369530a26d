// LayerNorm and RMSNorm on the host. A row takes two passes: one that sums, one that makes the output. Where
// the first-level cache holds several rows, the output of a row and the sums of the second row behind it are
// made in one loop: memory is kept busy while a row that the cache holds is computed, and what follows from
// the sums is there when it is needed. Wide rows are taken in pairs, piece by piece, so that gain and bias
// are fetched once for both. The gradient does the same with pairs of short rows. It makes d_in and the
// column sums of d_gain and d_bias: rows are cut into blocks, each block sums its rows into a partial row of
// its own, and the partial rows are added in order.
#include "strategies/transformer/kernels_host_tasks.h"

#include <math.h>

#include <omp.h>

enum {
    UNROLL = 2,               // vectors of a step, and independent partial sums
    WIDE_BYTES = 8192,        // of rows that are taken in pairs
    JOINT_BYTES = 2048,       // of rows of the gradient up to which the first-level cache holds two pairs
    PIECE = 512,              // columns of a wide row that are taken at once
    PAIR = 2,                 // rows that share loads of gain and bias, and of column sums
    BLOCK_ROWS = 16,          // least rows of a block
    BLOCKS = 64,              // most blocks
    PARTIAL_FLOATS = 1 << 17, // of all blocks, on the stack
    MERGE = 256,              // columns of a task that adds partial rows
};

// Sums of a row, lane by lane: of x - shift and of its square. The shift is the row's first vector (0 for
// RMSNorm): the lanes' sums of squares about their own means lose little to cancellation, whatever the mean,
// and one pass gives mean and variance (Chan, Golub and LeVeque 1983).
typedef struct {
    ptb_vec shift, sum, squares;
} row_moments;

typedef struct {
    float mean, rstd;
} row_scale;

// What is the same for all rows of a call.
typedef struct {
    ptb_norm a;
    ptb_vec count, share; // elements of each lane, and 1 / that
    float row_share;      // 1 / width
    const void *bias;     /* [width], or zeros where bias_step is 0 */
    size_t bias_step;
} norm_call;

static norm_call call_of(const ptb_norm *a)
{
    static const float zeros[PTB_LANES];
    ptb_vec_int shorter = ptb_vec_iota() >= ptb_vec_int_set((int32_t)(a->width % PTB_LANES));
    norm_call call = {.a = *a,
                      .bias = a->bias ? a->bias : zeros,
                      .bias_step = a->bias ? 1 : 0,
                      .row_share = 1 / (float)a->width};
    call.count = (float)(a->width / PTB_LANES + 1) + __builtin_convertvector(shorter, ptb_vec);
    call.share = 1 / ptb_vec_max(call.count, ptb_vec_set(1));
    return call;
}

// Mean and 1 / standard deviation of a row, also stored. The means of the lanes are taken relative to that of
// the first lane, so that the mean and the squares about it are summed side by side: this is a chain of
// dependent operations that nothing overlaps for long.
PTB_INLINE row_scale scale_of(const norm_call *call, size_t row, row_moments m)
{
    float mean = 0, squares;
    if (call->a.mean) {
        ptb_vec average = m.sum * call->share, lane_mean = m.shift + average;
        ptb_vec apart = lane_mean - lane_mean[0], weighted = call->count * apart;
        float offset = ptb_vec_sum(weighted) * call->row_share;
        squares =
            ptb_vec_sum(m.squares - m.sum * average + weighted * apart) * call->row_share - offset * offset;
        mean = lane_mean[0] + offset;
        call->a.mean[row] = mean;
    } else {
        squares = ptb_vec_sum(m.squares) * call->row_share;
    }
    float rstd = 1 / sqrtf((squares > 0 ? squares : 0) + call->a.epsilon);
    call->a.rstd[row] = rstd;
    return (row_scale){mean, rstd};
}

// One vector: of the output of a row that begins at element `out`, and of the sums of a row that begins at
// element `next`.
PTB_HOST_BODY norm_step(ptb_dtype type, const norm_call *call, bool stream, bool output, bool sums,
                        size_t out, size_t next, size_t c, size_t count, row_scale scale, row_moments *m)
{
    const ptb_norm *a = &call->a;
    if (sums) {
        ptb_vec x = ptb_vec_load_some(type, a->in, next + c, count) - m->shift;
        if (count < PTB_LANES)
            x = ptb_host_first_lanes(x, count);
        m->sum += x;
        m->squares += x * x;
    }
    if (output) {
        ptb_vec bias = ptb_vec_load_some(type, call->bias, call->bias_step * c, count);
        ptb_vec x = (ptb_vec_load_some(type, a->in, out + c, count) - scale.mean) * scale.rstd;
        x = x * ptb_vec_load_some(type, a->gain, c, count) + bias;
        ptb_host_store(stream, type, a->out, out + c, count, x);
    }
}

// Columns [c, end): makes the output of row `row` where `output`, and adds row `next` to *moments where
// `sums`. `ahead`: the element to ask memory for at column 0.
PTB_HOST_BODY norm_piece(ptb_dtype type, const norm_call *call, bool stream, bool output, bool sums,
                         size_t row, size_t next, size_t ahead, size_t c, size_t end, row_scale scale,
                         row_moments *moments)
{
    size_t width = call->a.width, out = row * width, in = next * width;
    row_moments m[UNROLL] = {*moments, {moments->shift, {0}, {0}}};
    for (; c + UNROLL * PTB_LANES <= end; c += UNROLL * PTB_LANES)
        for (size_t u = 0; u < UNROLL; u++) {
            size_t at = c + u * PTB_LANES;
            ptb_host_prefetch(type, call->a.in, ahead + at);
            norm_step(type, call, stream, output, sums, out, in, at, PTB_LANES, scale, &m[u]);
        }
    for (; c < end; c += PTB_LANES)
        norm_step(type, call, stream, output, sums, out, in, c, ptb_host_least(PTB_LANES, end - c), scale, m);
    moments->sum = m[0].sum + m[1].sum;
    moments->squares = m[0].squares + m[1].squares;
}

// Makes the output of row `row` where `output`, and returns the sums of row `next` where `sums`.
PTB_INLINE row_moments norm_pass(ptb_dtype type, const norm_call *call, bool stream, bool output, bool sums,
                                 size_t row, size_t next, row_scale scale)
{
    size_t width = call->a.width;
    row_moments m = {{0}, {0}, {0}};
    if (sums && call->a.mean)
        m.shift = ptb_vec_load_some(type, call->a.in, next * width, ptb_host_least(width, PTB_LANES));
    norm_piece(type, call, stream, output, sums, row, next, next * width + PTB_HOST_AHEAD, 0, width, scale,
               &m);
    return m;
}

PTB_HOST_BODY norm_rows(ptb_dtype type, const norm_call *call, bool stream, size_t first, size_t end)
{
    row_scale scale = {0, 0}, after;
    row_moments m = norm_pass(type, call, stream, false, true, 0, first, scale);
    scale = scale_of(call, first, m);
    if (first + 1 < end)
        m = norm_pass(type, call, stream, false, true, 0, first + 1, scale);
    for (size_t r = first; r < end; r++, scale = after) {
        after = r + 1 < end ? scale_of(call, r + 1, m) : scale;
        if (r + 2 < end)
            m = norm_pass(type, call, stream, true, true, r, r + 2, scale);
        else
            norm_pass(type, call, stream, true, false, r, r, scale);
    }
}

PTB_HOST_BODY norm_wide_rows(ptb_dtype type, const norm_call *call, bool stream, size_t first, size_t end)
{
    size_t width = call->a.width;
    for (size_t r = first; r < end; r += PAIR) {
        size_t rows = ptb_host_least(PAIR, end - r);
        row_scale scale[PAIR] = {{0, 0}};
        row_moments unused = {{0}, {0}, {0}};
        for (size_t i = 0; i < rows; i++)
            scale[i] = scale_of(call, r + i, norm_pass(type, call, stream, false, true, 0, r + i, scale[i]));
        for (size_t c = 0; c < width; c += PIECE)
            for (size_t i = 0; i < rows; i++) // the next rows are asked for meanwhile
                norm_piece(type, call, stream, true, false, r + i, 0, (r + i + PAIR) * width, c,
                           ptb_host_least(width, c + PIECE), scale[i], &unused);
    }
}

PTB_HOST_BODY norm_typed(ptb_dtype type, const norm_call *shared, bool stream, size_t first, size_t end)
{
    const norm_call call = *shared; // a copy: stores can not be taken to change it
    if (call.a.width * ptb_dtype_size(type) >= WIDE_BYTES)
        norm_wide_rows(type, &call, stream, first, end);
    else if (first < end)
        norm_rows(type, &call, stream, first, end);
    ptb_host_fence(stream);
}

PTB_HOST_BODY norm_some(ptb_dtype type, const norm_call *call, bool stream, size_t first, size_t end)
{
    if (stream)
        norm_typed(type, call, true, first, end);
    else
        norm_typed(type, call, false, first, end);
}

ptb_status ptb_host_run_norm(void *arg)
{
    const ptb_norm *a = arg;
    const norm_call call = call_of(a);
    size_t row_bytes = a->width * ptb_dtype_size(a->type);
    bool stream = ptb_host_streams(a->out, a->rows * row_bytes, row_bytes, a->in, NULL);
#pragma omp parallel if (a->rows * a->width > PTB_HOST_SERIAL)
    {
        size_t threads = (size_t)omp_get_num_threads(), thread = (size_t)omp_get_thread_num();
        PTB_HOST_TYPED(norm_some, a->type, &call, stream, a->rows * thread / threads,
                       a->rows * (thread + 1) / threads);
    }
    return PTB_OK;
}

// What the gradient of a row needs: with d = d_out * gain and x = (in - mean) * rstd,
// d_in = rstd * (d - mean of d - x * mean of (d * x)).
typedef struct {
    float mean, rstd, mean_d, mean_dx;
} row_numbers;

typedef struct {
    ptb_vec d, product; // sums of d and of d * (in - mean)
} row_dots;

typedef struct {
    ptb_norm_gradient a;
    float *gain_sum, *bias_sum; /* [width]; bias_sum may be NULL */
} gradient_call;

PTB_INLINE row_numbers numbers_of(const gradient_call *call, size_t row, row_dots sums)
{
    const ptb_norm_gradient *a = &call->a;
    float rstd = a->rstd[row], share = 1 / (float)a->width;
    return (row_numbers){
        .mean = a->mean ? a->mean[row] : 0,
        .rstd = rstd,
        .mean_d = a->mean ? ptb_vec_sum(sums.d) * share : 0,
        .mean_dx = ptb_vec_sum(sums.product) * (rstd * share),
    };
}

// One vector of a row whose vector begins at element `at`: its d and its product.
PTB_HOST_BODY dots_step(ptb_dtype type, const ptb_norm_gradient *a, float mean, ptb_vec gain, size_t at,
                        size_t count, row_dots *sums)
{
    ptb_vec d = ptb_vec_load_some(type, a->d_out, at, count) * gain; // 0 beyond count
    sums->d += d;
    sums->product += d * (ptb_vec_load_some(type, a->in, at, count) - mean);
}

// One vector of `rows` rows: d_in, and the rows' share of the column sums.
PTB_HOST_BODY gradient_step(ptb_dtype type, const gradient_call *call, bool stream, size_t rows,
                            const row_numbers *n, ptb_vec gain, size_t first, size_t c, size_t count)
{
    const ptb_norm_gradient *a = &call->a;
    ptb_vec d_gain = ptb_vec_load_some(PTB_F32, call->gain_sum, c, count), d_bias = {0};
    for (size_t i = 0; i < rows; i++) {
        size_t at = (first + i) * a->width + c;
        ptb_vec d_out = ptb_vec_load_some(type, a->d_out, at, count);
        ptb_vec x = (ptb_vec_load_some(type, a->in, at, count) - n[i].mean) * n[i].rstd;
        d_gain += d_out * x;
        d_bias += d_out;
        ptb_vec d_in = n[i].rstd * (d_out * gain - n[i].mean_d - x * n[i].mean_dx);
        if (a->residual)
            d_in += ptb_vec_load_some(type, a->residual, at, count);
        ptb_host_store(stream, type, a->d_in, at, count, d_in);
    }
    ptb_vec_store_some(PTB_F32, call->gain_sum, c, count, d_gain);
    if (call->bias_sum)
        ptb_vec_store_some(PTB_F32, call->bias_sum, c, count,
                           d_bias + ptb_vec_load_some(PTB_F32, call->bias_sum, c, count));
}

// Which rows a pass takes: it makes d_in and the column sums of rows [first, first + rows) where `output`,
// and sums the dots of rows [next, next + rows) where `dots`.
typedef struct {
    size_t rows, first, next;
    bool output, dots;
} gradient_rows_of;

// One vector of a pass.
PTB_HOST_BODY pass_step(ptb_dtype type, const gradient_call *call, bool stream, gradient_rows_of p, size_t c,
                        size_t count, const float *mean, const row_numbers *n, row_dots *sums)
{
    const ptb_norm_gradient *a = &call->a;
    ptb_vec gain = ptb_vec_load_some(type, a->gain, c, count);
    for (size_t i = 0; i < p.rows; i++) {
        size_t at = ((p.dots ? p.next : p.first) + i) * a->width + c, ahead = at + PAIR * a->width;
        if (p.output || !p.dots) {
            ptb_host_prefetch(type, a->d_out, ahead);
            ptb_host_prefetch(type, a->in, ahead);
        }
        if (p.dots && a->residual)
            ptb_host_prefetch(type, a->residual, at);
        if (p.dots)
            dots_step(type, a, mean[i], gain, at, count, &sums[i]);
    }
    if (p.output)
        gradient_step(type, call, stream, p.rows, n, gain, p.first, c, count);
}

// A pass; *n: the numbers of the rows of `output`, replaced by those of the rows of `dots`.
PTB_HOST_BODY gradient_pass(ptb_dtype type, const gradient_call *call, bool stream, gradient_rows_of p,
                            row_numbers *n)
{
    const ptb_norm_gradient *a = &call->a;
    float mean[PAIR] = {0};
    row_dots sums[PAIR];
    row_numbers now[PAIR];
    size_t c = 0;
    for (size_t i = 0; i < p.rows; i++) {
        mean[i] = p.dots && a->mean ? a->mean[p.next + i] : 0;
        sums[i] = (row_dots){{0}, {0}};
        now[i] = n[i];
    }
    for (; c + PTB_LANES <= a->width; c += PTB_LANES)
        pass_step(type, call, stream, p, c, PTB_LANES, mean, now, sums);
    if (c < a->width)
        pass_step(type, call, stream, p, c, a->width - c, mean, now, sums);
    for (size_t i = 0; p.dots && i < p.rows; i++)
        n[i] = numbers_of(call, p.next + i, sums[i]);
}

// Two passes over rows [r, r + rows).
PTB_HOST_BODY gradient_apart(ptb_dtype type, const gradient_call *call, bool stream, size_t rows, size_t r)
{
    row_numbers n[PAIR] = {{0, 0, 0, 0}};
    gradient_pass(type, call, stream, (gradient_rows_of){rows, r, r, false, true}, n);
    gradient_pass(type, call, stream, (gradient_rows_of){rows, r, r, true, false}, n);
}

PTB_HOST_BODY gradient_typed(ptb_dtype type, const gradient_call *shared, bool stream, size_t r, size_t end)
{
    const gradient_call call = *shared; // a copy: stores can not be taken to change it
    row_numbers n[PAIR] = {{0, 0, 0, 0}};
    bool joint = shared->a.width * ptb_dtype_size(type) <= JOINT_BYTES && r + 2 * PAIR <= end;
    if (joint)
        gradient_pass(type, &call, stream, (gradient_rows_of){PAIR, r, r, false, true}, n);
    for (; joint && r + 2 * PAIR <= end; r += PAIR)
        gradient_pass(type, &call, stream, (gradient_rows_of){PAIR, r, r + PAIR, true, true}, n);
    if (joint) {
        gradient_pass(type, &call, stream, (gradient_rows_of){PAIR, r, r, true, false}, n);
        r += PAIR;
    }
    for (; r + PAIR <= end; r += PAIR)
        gradient_apart(type, &call, stream, PAIR, r);
    for (; r < end; r++)
        gradient_apart(type, &call, stream, 1, r);
}

// Adds rows [first, end) to the sums of d_gain and, where not NULL, of d_bias.
PTB_HOST_BODY gradient_block(ptb_dtype type, const ptb_norm_gradient *a, bool stream, float *gain_sum,
                             float *bias_sum, size_t first, size_t end)
{
    const gradient_call call = {*a, gain_sum, bias_sum};
    if (stream)
        gradient_typed(type, &call, true, first, end);
    else
        gradient_typed(type, &call, false, first, end);
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
