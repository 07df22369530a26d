// LayerNorm and RMSNorm on the host. A row takes two passes: one that sums, one that makes the output. Rows
// are taken in groups: each row of a group is summed by itself, which reads memory in one long run, then the
// output of all of them is made column by column, so that gain, bias and column sums are fetched once for the
// group, while its rows are in the first two caches. The gradient makes d_in and the column sums of d_gain
// and d_bias: rows are cut into blocks, each block sums its rows into a partial row of its own, and the
// partial rows are added in order.
#define PTB_HOST_BODIES_ONCE
#include "strategies/transformer/kernels_host_tasks.h"

#include <math.h>

#include <omp.h>

enum {
    UNROLL = 4,          // vectors of a step of the first pass, each with sums of its own
    GROUP = 4,           // rows of a group
    NARROW_BYTES = 4096, // of f32 rows whose output is made one by one
    WIDE_BYTES = 16384,  // of rows of which a group shares enough to make up for its many streams
    // Look-ahead beyond the processor's own, which ends with a page, by the number of streams; all measured.
    FAR_BYTES = 8192,
    MIDDLE_BYTES = 6144,
    NEAR_BYTES = 2048,
    BLOCK_ROWS = 32,          // least rows of a block
    BLOCKS = 64,              // most blocks
    PARTIAL_FLOATS = 1 << 17, // of all blocks, on the stack
    MERGE = 128,              // columns of a task that adds partial rows
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

PTB_HOST_BODY add_moments(ptb_dtype type, const void *row, size_t c, size_t count, row_moments *m,
                          ptb_vec shift)
{
    ptb_vec x = ptb_vec_load_some(type, row, c, count) - shift;
    if (count < PTB_LANES)
        x = ptb_host_first_lanes(x, count);
    m->sum += x;
    m->squares += x * x;
}

// Sums of a row; memory is asked for `ahead` bytes before its use, unless 0.
PTB_INLINE row_moments moments_of(ptb_dtype type, const norm_call *call, size_t row, size_t ahead)
{
    size_t width = call->a.width, c = 0;
    const char *in = (const char *)call->a.in + row * width * ptb_dtype_size(type);
    row_moments m[UNROLL] = {{{0}, {0}, {0}}};
    ptb_vec shift = {0};
    if (call->a.mean)
        shift = ptb_vec_load_some(type, in, 0, ptb_host_least(width, PTB_LANES));
    for (; c + UNROLL * PTB_LANES <= width; c += UNROLL * PTB_LANES)
        for (size_t u = 0; u < UNROLL; u++) {
            size_t at = c + u * PTB_LANES;
            if (ahead && u * PTB_LANES % ptb_host_line(type) == 0)
                ptb_host_prefetch(type, in + ahead, at);
            add_moments(type, in, at, PTB_LANES, &m[u], shift);
        }
    for (; c + PTB_LANES <= width; c += PTB_LANES)
        add_moments(type, in, c, PTB_LANES, m, shift);
    if (c < width)
        add_moments(type, in, c, width - c, m, shift);
    return (row_moments){shift, (m[0].sum + m[1].sum) + (m[2].sum + m[3].sum),
                         (m[0].squares + m[1].squares) + (m[2].squares + m[3].squares)};
}

// Columns [c, c + count), a cache line, a vector or less, of `rows` rows from row r on.
PTB_HOST_BODY norm_columns(ptb_dtype type, const norm_call *call, bool stream, size_t rows, size_t r,
                           size_t c, size_t count, const row_scale *scale)
{
    const ptb_norm *a = &call->a;
    size_t vectors = count < PTB_LANES ? 1 : count / PTB_LANES, each = ptb_host_least(count, PTB_LANES);
    ptb_vec gain[PTB_HOST_LINE_VECTORS], bias[PTB_HOST_LINE_VECTORS], out[PTB_HOST_LINE_VECTORS];
    for (size_t v = 0; v < vectors; v++) {
        gain[v] = ptb_vec_load_some(type, a->gain, c + v * PTB_LANES, each);
        bias[v] = ptb_vec_load_some(type, call->bias, call->bias_step * (c + v * PTB_LANES), each);
    }
    for (size_t i = 0; i < rows; i++) {
        size_t at = (r + i) * a->width + c;
        for (size_t v = 0; v < vectors; v++) {
            ptb_vec x = ptb_vec_load_some(type, a->in, at + v * PTB_LANES, each);
            out[v] = (x - scale[i].mean) * scale[i].rstd * gain[v] + bias[v];
        }
        if (count == ptb_host_line(type))
            ptb_host_store_line(stream, type, a->out, at, out);
        else
            ptb_vec_store_some(type, a->out, at, each, out[0]);
    }
}

PTB_HOST_BODY norm_output(ptb_dtype type, const norm_call *call, bool stream, size_t rows, size_t r,
                          const row_scale *scale)
{
    size_t width = call->a.width, line = ptb_host_line(type), c = 0;
    for (; c + line <= width; c += line)
        norm_columns(type, call, stream, rows, r, c, line, scale);
    for (; c + PTB_LANES <= width; c += PTB_LANES)
        norm_columns(type, call, stream, rows, r, c, PTB_LANES, scale);
    if (c < width)
        norm_columns(type, call, stream, rows, r, c, width - c, scale);
}

// What follows from the sums of a row is a chain of dependent operations: those of a group overlap. Its
// output is made `together` rows at a time.
PTB_HOST_BODY norm_rows(ptb_dtype type, const norm_call *call, bool stream, size_t together, size_t r,
                        size_t end)
{
    row_moments m[GROUP];
    row_scale scale[GROUP];
    size_t ahead = stream ? FAR_BYTES : 0;
    for (; r + GROUP <= end; r += GROUP) {
        for (size_t i = 0; i < GROUP; i++)
            m[i] = moments_of(type, call, r + i, ahead);
        for (size_t i = 0; i < GROUP; i++)
            scale[i] = scale_of(call, r + i, m[i]);
        for (size_t i = 0; i < GROUP; i += together)
            norm_output(type, call, stream, together, r + i, scale + i);
    }
    for (; r < end; r++) {
        scale[0] = scale_of(call, r, moments_of(type, call, r, ahead));
        norm_output(type, call, stream, 1, r, scale);
    }
}

PTB_HOST_BODY norm_typed(ptb_dtype type, const norm_call *shared, bool stream, size_t first, size_t end)
{
    const norm_call call = *shared; // a copy: stores can not be taken to change it
    if (type == PTB_F32 && !stream && call.a.width * ptb_dtype_size(type) <= NARROW_BYTES)
        norm_rows(type, &call, stream, 1, first, end);
    else
        norm_rows(type, &call, stream, GROUP, first, end);
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
    // Input and output pass through the last cache: of an output half as large as it, the beginning is gone.
    bool stream = ptb_host_streams(a->out, 2 * a->rows * row_bytes, row_bytes, a->in, NULL);
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

// How rows are taken: constants where the bodies below are inlined.
typedef struct {
    bool stream, residual;
    size_t group;                      // rows
    size_t sums_ahead, residual_ahead; // bytes to ask for memory ahead of its use; 0: the processor's own way
} gradient_way;

// Vector `at` of a row: its d and its product.
PTB_HOST_BODY add_dots(ptb_dtype type, const ptb_norm_gradient *a, float mean, size_t row, size_t c,
                       size_t count, row_dots *sums)
{
    size_t at = row * a->width + c;
    ptb_vec d = ptb_vec_load_some(type, a->d_out, at, count) * ptb_vec_load_some(type, a->gain, c, count);
    sums->d += d; // 0 beyond count
    sums->product += d * (ptb_vec_load_some(type, a->in, at, count) - mean);
}

// The numbers of a row; memory is asked for `ahead` bytes before its use, unless 0.
PTB_INLINE row_numbers numbers_of_row(ptb_dtype type, const gradient_call *call, size_t row, size_t ahead)
{
    const ptb_norm_gradient *a = &call->a;
    float mean = a->mean ? a->mean[row] : 0;
    size_t width = a->width, c = 0, next = row * width + ahead / ptb_dtype_size(type);
    row_dots sums[UNROLL] = {{{0}, {0}}};
    for (; c + UNROLL * PTB_LANES <= width; c += UNROLL * PTB_LANES)
        for (size_t u = 0; u < UNROLL; u++) {
            size_t at = c + u * PTB_LANES;
            if (ahead && u * PTB_LANES % ptb_host_line(type) == 0) {
                ptb_host_prefetch(type, a->d_out, next + at);
                ptb_host_prefetch(type, a->in, next + at);
            }
            add_dots(type, a, mean, row, at, PTB_LANES, &sums[u]);
        }
    for (; c + PTB_LANES <= width; c += PTB_LANES)
        add_dots(type, a, mean, row, c, PTB_LANES, sums);
    if (c < width)
        add_dots(type, a, mean, row, c, width - c, sums);
    return numbers_of(call, row,
                      (row_dots){(sums[0].d + sums[1].d) + (sums[2].d + sums[3].d),
                                 (sums[0].product + sums[1].product) + (sums[2].product + sums[3].product)});
}

// Columns [c, c + count), a vector or less, of a row: d_in, and the row's share of the column sums.
PTB_INLINE ptb_vec gradient_vector(ptb_dtype type, const ptb_norm_gradient *a, gradient_way way,
                                   row_numbers n, size_t at, size_t count, ptb_vec gain, ptb_vec *d_gain,
                                   ptb_vec *d_bias)
{
    ptb_vec d_out = ptb_vec_load_some(type, a->d_out, at, count);
    ptb_vec x = (ptb_vec_load_some(type, a->in, at, count) - n.mean) * n.rstd;
    *d_gain += d_out * x;
    *d_bias += d_out;
    ptb_vec d_in = n.rstd * (d_out * gain - n.mean_d - x * n.mean_dx);
    return way.residual ? d_in + ptb_vec_load_some(type, a->residual, at, count) : d_in;
}

// Columns [c, c + count), a cache line, a vector or less, of `rows` rows from row r on.
PTB_HOST_BODY gradient_columns(ptb_dtype type, const gradient_call *call, gradient_way way, size_t rows,
                               size_t r, size_t c, size_t count, const row_numbers *n)
{
    const ptb_norm_gradient *a = &call->a;
    size_t vectors = count < PTB_LANES ? 1 : count / PTB_LANES, each = ptb_host_least(count, PTB_LANES);
    ptb_vec gain[PTB_HOST_LINE_VECTORS], d_gain[PTB_HOST_LINE_VECTORS], d_bias[PTB_HOST_LINE_VECTORS];
    for (size_t v = 0; v < vectors; v++) {
        gain[v] = ptb_vec_load_some(type, a->gain, c + v * PTB_LANES, each);
        d_gain[v] = ptb_vec_load_some(PTB_F32, call->gain_sum, c + v * PTB_LANES, each);
        d_bias[v] = (ptb_vec){0};
    }
    for (size_t i = 0; i < rows; i++) {
        size_t at = (r + i) * a->width + c;
        ptb_vec d_in[PTB_HOST_LINE_VECTORS];
        if (way.residual && way.residual_ahead)
            ptb_host_prefetch(type, a->residual, at + way.residual_ahead / ptb_dtype_size(type));
        for (size_t v = 0; v < vectors; v++)
            d_in[v] = gradient_vector(type, a, way, n[i], at + v * PTB_LANES, each, gain[v], &d_gain[v],
                                      &d_bias[v]);
        if (count == ptb_host_line(type))
            ptb_host_store_line(way.stream, type, a->d_in, at, d_in);
        else
            ptb_vec_store_some(type, a->d_in, at, each, d_in[0]);
    }
    for (size_t v = 0; v < vectors; v++) {
        size_t at = c + v * PTB_LANES;
        ptb_vec_store_some(PTB_F32, call->gain_sum, at, each, d_gain[v]);
        if (call->bias_sum)
            ptb_vec_store_some(PTB_F32, call->bias_sum, at, each,
                               d_bias[v] + ptb_vec_load_some(PTB_F32, call->bias_sum, at, each));
    }
}

// d_in and column sums of `rows` rows from row r on.
PTB_HOST_BODY gradient_group(ptb_dtype type, const gradient_call *call, gradient_way way, size_t rows,
                             size_t r)
{
    size_t width = call->a.width, line = ptb_host_line(type), c = 0;
    row_numbers n[GROUP];
    for (size_t i = 0; i < rows; i++)
        n[i] = numbers_of_row(type, call, r + i, way.sums_ahead);
    for (; c + line <= width; c += line)
        gradient_columns(type, call, way, rows, r, c, line, n);
    for (; c + PTB_LANES <= width; c += PTB_LANES)
        gradient_columns(type, call, way, rows, r, c, PTB_LANES, n);
    if (c < width)
        gradient_columns(type, call, way, rows, r, c, width - c, n);
}

PTB_HOST_BODY gradient_rows(ptb_dtype type, const gradient_call *shared, gradient_way way, size_t r,
                            size_t end)
{
    const gradient_call call = *shared; // a copy: stores can not be taken to change it
    for (; r + way.group <= end; r += way.group)
        gradient_group(type, &call, way, way.group, r);
    for (; r < end; r++)
        gradient_group(type, &call, way, 1, r);
}

PTB_HOST_BODY gradient_typed(ptb_dtype type, const gradient_call *call, bool stream, size_t first, size_t end)
{
    size_t row_bytes = call->a.width * ptb_dtype_size(type);
    bool residual = call->a.residual;
    gradient_way alone = {stream, residual, 1, 0, 0};
    gradient_way alone_ahead = {stream, residual, 1, MIDDLE_BYTES, MIDDLE_BYTES};
    gradient_way together = {stream, residual, GROUP, type == PTB_F32 ? NEAR_BYTES : FAR_BYTES, NEAR_BYTES};
    if (!stream)
        together.sums_ahead = together.residual_ahead = 0;
    if (type == PTB_F32 && row_bytes <= NARROW_BYTES) {
        gradient_rows(type, call, alone, first, end);
    } else if (stream && row_bytes < WIDE_BYTES) {
        gradient_rows(type, call, alone_ahead, first, end);
    } else if (type == PTB_F32) {
        gradient_rows(type, call, together, first, end);
    } else if (residual) { // 16-bit types compute more than they wait for memory: no test for each vector
        together.residual = true;
        gradient_rows(type, call, together, first, end);
    } else {
        together.residual = false;
        gradient_rows(type, call, together, first, end);
    }
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

static void gradient_block_of(const ptb_norm_gradient *a, bool stream, float *gain_sum, float *bias_sum,
                              size_t first, size_t end)
{
    PTB_HOST_TYPED(gradient_block, a->type, a, stream, gain_sum, bias_sum, first, end);
}

// Columns [first, end) of out += sum of `blocks` rows of partial, 2 * width apart, in order.
static void merge(float *out, const float *partial, size_t blocks, size_t width, size_t first, size_t end)
{
    for (size_t b = 0; b < blocks; b++)
        for (size_t c = first; c < end; c++)
            out[c] += partial[2 * width * b + c];
}

ptb_status ptb_host_run_norm_gradient(void *arg)
{
    const ptb_norm_gradient *a = arg;
    size_t width = a->width, rows = a->rows;
    size_t row_bytes = width * ptb_dtype_size(a->type);
    // Input and output, as in the forward pass.
    bool stream = ptb_host_streams(a->d_in, 2 * rows * row_bytes, row_bytes, a->d_out, a->residual);
    if (!a->accumulate)
        memset(a->d_gain, 0, width * sizeof *a->d_gain);
    if (!a->accumulate && a->d_bias)
        memset(a->d_bias, 0, width * sizeof *a->d_bias);
    size_t blocks = ptb_host_least(ptb_host_least(BLOCKS, rows / BLOCK_ROWS), PARTIAL_FLOATS / (2 * width));
    if (blocks < 2) {
        gradient_block_of(a, stream, a->d_gain, a->d_bias, 0, rows);
        return PTB_OK;
    }
    _Alignas(PTB_LANES * sizeof(float)) float partial[PARTIAL_FLOATS]; /* [blocks, 2, width] */
#pragma omp parallel
    {
#pragma omp for schedule(static)
        for (size_t b = 0; b < blocks; b++) {
            float *gain_sum = partial + 2 * width * b, *bias_sum = gain_sum + width;
            memset(gain_sum, 0, 2 * width * sizeof *gain_sum);
            gradient_block_of(a, stream, gain_sum, a->d_bias ? bias_sum : NULL, rows * b / blocks,
                              rows * (b + 1) / blocks);
        }
#pragma omp for schedule(static)
        for (size_t first = 0; first < width; first += MERGE) {
            size_t end = ptb_host_least(width, first + MERGE);
            merge(a->d_gain, partial, blocks, width, first, end);
            if (a->d_bias)
                merge(a->d_bias, partial + width, blocks, width, first, end);
        }
    }
    return PTB_OK;
}
