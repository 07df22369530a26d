// Elementwise kernels of the host: activations and their gradients, sums, dropout, conversions. Each value is
// read and written once; outputs that are much larger than the caches are streamed past them.
#include "strategies/transformer/dropout.h"
#include "strategies/transformer/kernels_host_tasks.h"

// 1 / (1 + 2^x)
PTB_INLINE ptb_vec gate_of(ptb_vec x)
{
    return 1 / (1 + ptb_vec_exp2(ptb_vec_min(ptb_vec_set(127), x))); // NaN stays NaN
}

// 1 / (1 + exp(-x))
PTB_INLINE ptb_vec sigmoid(ptb_vec x)
{
    return gate_of(x * -1.44269504f);
}

// (1 + tanh(u)) / 2 = 1 / (1 + exp(-2u)) with u = sqrt(2 / pi) (x + 0.044715 x^3); constants times log2(e)
PTB_INLINE ptb_vec gelu_gate(ptb_vec x)
{
    return gate_of(x * (-2.30220819f - 0.102943240f * x * x));
}

PTB_HOST_BODY gelu_step(ptb_dtype type, bool stream, void *out, const void *in, size_t i, size_t count)
{
    ptb_host_prefetch(type, in, i + PTB_HOST_AHEAD);
    ptb_vec x = ptb_vec_load_some(type, in, i, count);
    ptb_host_store(stream, type, out, i, count, x * gelu_gate(x));
}

PTB_HOST_BODY gelu_chunk(ptb_dtype type, const ptb_activation *a, bool stream, size_t i, size_t end)
{
    void *out = a->out;
    const void *in = a->in;
    for (; i + PTB_LANES <= end; i += PTB_LANES)
        gelu_step(type, stream, out, in, i, PTB_LANES);
    if (i < end)
        gelu_step(type, stream, out, in, i, end - i);
}

// Asks for the gate and for the up that are needed after those at `at`, in column c of a row [2, width]: what
// follows the end of a gate is the next row's gate, not this row's up.
PTB_HOST_BODY swiglu_prefetch(ptb_dtype type, const void *in, size_t width, size_t c, size_t at)
{
    size_t next = at + PTB_HOST_AHEAD + (c + PTB_HOST_AHEAD < width ? 0 : width);
    ptb_host_prefetch(type, in, next);
    ptb_host_prefetch(type, in, next + width);
}

// Elements [c, c + count) of a row; gate and up lie one after the other in a row of in.
PTB_HOST_BODY swiglu_step(ptb_dtype type, bool stream, void *out, const void *in, size_t width, size_t row,
                          size_t c, size_t count)
{
    size_t at_out = row * width + c, at_in = 2 * row * width + c;
    swiglu_prefetch(type, in, width, c, at_in);
    ptb_vec gate = ptb_vec_load_some(type, in, at_in, count);
    ptb_vec up = ptb_vec_load_some(type, in, at_in + width, count);
    ptb_host_store(stream, type, out, at_out, count, gate * sigmoid(gate) * up);
}

PTB_HOST_BODY swiglu_piece(ptb_dtype type, const ptb_activation *a, bool stream, size_t row, size_t c,
                           size_t end)
{
    void *out = a->out;
    const void *in = a->in;
    size_t width = a->width;
    for (; c + PTB_LANES <= end; c += PTB_LANES)
        swiglu_step(type, stream, out, in, width, row, c, PTB_LANES);
    if (c < end)
        swiglu_step(type, stream, out, in, width, row, c, end - c);
}

static size_t used_rows(size_t rows, const int32_t *used)
{
    return used && (size_t)*used < rows ? (size_t)*used : rows;
}

ptb_status ptb_host_run_activation(void *arg)
{
    const ptb_activation *a = arg;
    size_t rows = used_rows(a->rows, a->used), count = rows * a->width;
    size_t row_bytes = a->width * ptb_dtype_size(a->type);
    size_t arrays = a->kind == PTB_SWIGLU ? 3 : 1; // gate and up push the output out of the caches too
    bool stream = ptb_host_streams(a->out, arrays * rows * row_bytes, row_bytes, a->in, NULL);
    if (a->kind == PTB_GELU) {
#pragma omp parallel if (count > PTB_HOST_SERIAL)
        {
#pragma omp for schedule(static) nowait
            for (size_t first = 0; first < count; first += PTB_HOST_CHUNK)
                PTB_HOST_TYPED(gelu_chunk, a->type, a, stream, first,
                               ptb_host_least(count, first + PTB_HOST_CHUNK));
            ptb_host_fence(stream);
        }
        return PTB_OK;
    }
#pragma omp parallel if (count > PTB_HOST_SERIAL)
    {
#pragma omp for collapse(2) schedule(static) nowait
        for (size_t r = 0; r < rows; r++)
            for (size_t first = 0; first < a->width; first += PTB_HOST_CHUNK)
                PTB_HOST_TYPED(swiglu_piece, a->type, a, stream, r, first,
                               ptb_host_least(a->width, first + PTB_HOST_CHUNK));
        ptb_host_fence(stream);
    }
    return PTB_OK;
}

PTB_HOST_BODY gelu_gradient_step(ptb_dtype type, bool stream, void *d_in, const void *d_out, const void *in,
                                 size_t i, size_t count)
{
    ptb_host_prefetch(type, in, i + PTB_HOST_AHEAD);
    ptb_host_prefetch(type, d_out, i + PTB_HOST_AHEAD);
    ptb_vec x = ptb_vec_load_some(type, in, i, count);
    ptb_vec gate = gelu_gate(x);
    ptb_vec slope = x * (1.59576912f + 0.2140644488f * x * x); // x * d(2u)/dx
    ptb_vec d = ptb_vec_load_some(type, d_out, i, count) * (gate + slope * gate * (1 - gate));
    ptb_host_store(stream, type, d_in, i, count, d);
}

PTB_HOST_BODY gelu_gradient_chunk(ptb_dtype type, const ptb_activation_gradient *a, bool stream, size_t i,
                                  size_t end)
{
    void *d_in = a->d_in;
    const void *d_out = a->d_out, *in = a->in;
    for (; i + PTB_LANES <= end; i += PTB_LANES)
        gelu_gradient_step(type, stream, d_in, d_out, in, i, PTB_LANES);
    if (i < end)
        gelu_gradient_step(type, stream, d_in, d_out, in, i, end - i);
}

PTB_HOST_BODY swiglu_gradient_step(ptb_dtype type, const ptb_activation_gradient *a, bool stream, size_t row,
                                   size_t c, size_t count)
{
    size_t at_out = row * a->width + c, at_in = 2 * row * a->width + c;
    swiglu_prefetch(type, a->in, a->width, c, at_in);
    ptb_host_prefetch(type, a->d_out, at_out + PTB_HOST_AHEAD);
    ptb_vec gate = ptb_vec_load_some(type, a->in, at_in, count);
    ptb_vec up = ptb_vec_load_some(type, a->in, at_in + a->width, count);
    ptb_vec d_out = ptb_vec_load_some(type, a->d_out, at_out, count);
    ptb_vec s = sigmoid(gate), silu = gate * s;
    ptb_host_store(stream, type, a->d_in, at_in, count, d_out * up * (s + silu * (1 - s)));
    ptb_host_store(stream, type, a->d_in, at_in + a->width, count, d_out * silu);
}

PTB_HOST_BODY swiglu_gradient_piece(ptb_dtype type, const ptb_activation_gradient *args, bool stream,
                                    size_t row, size_t c, size_t end)
{
    const ptb_activation_gradient a = *args; // a copy: stores can not be taken to change it
    for (; c + PTB_LANES <= end; c += PTB_LANES)
        swiglu_gradient_step(type, &a, stream, row, c, PTB_LANES);
    if (c < end)
        swiglu_gradient_step(type, &a, stream, row, c, end - c);
}

ptb_status ptb_host_run_activation_gradient(void *arg)
{
    const ptb_activation_gradient *a = arg;
    size_t rows = used_rows(a->rows, a->used), count = rows * a->width;
    size_t row_bytes = a->width * ptb_dtype_size(a->type);
    size_t arrays = a->kind == PTB_SWIGLU ? 5 : 1;
    bool stream = ptb_host_streams(a->d_in, arrays * rows * row_bytes, row_bytes, a->in, a->d_out);
    if (a->kind == PTB_GELU) {
#pragma omp parallel if (count > PTB_HOST_SERIAL)
        {
#pragma omp for schedule(static) nowait
            for (size_t first = 0; first < count; first += PTB_HOST_CHUNK)
                PTB_HOST_TYPED(gelu_gradient_chunk, a->type, a, stream, first,
                               ptb_host_least(count, first + PTB_HOST_CHUNK));
            ptb_host_fence(stream);
        }
        return PTB_OK;
    }
#pragma omp parallel if (count > PTB_HOST_SERIAL)
    {
#pragma omp for collapse(2) schedule(static) nowait
        for (size_t r = 0; r < rows; r++)
            for (size_t first = 0; first < a->width; first += PTB_HOST_CHUNK)
                PTB_HOST_TYPED(swiglu_gradient_piece, a->type, a, stream, r, first,
                               ptb_host_least(a->width, first + PTB_HOST_CHUNK));
        ptb_host_fence(stream);
    }
    return PTB_OK;
}

PTB_HOST_BODY add_chunk(ptb_dtype type, const ptb_add *args, bool stream, size_t i, size_t end)
{
    const ptb_add a = *args;
    for (; i + PTB_LANES <= end; i += PTB_LANES)
        ptb_host_store(stream, type, a.out, i, PTB_LANES,
                       ptb_vec_load(type, a.a, i) + ptb_vec_load(type, a.b, i));
    if (i < end) {
        ptb_vec sum = ptb_vec_load_some(type, a.a, i, end - i) + ptb_vec_load_some(type, a.b, i, end - i);
        ptb_vec_store_some(type, a.out, i, end - i, sum);
    }
}

ptb_status ptb_host_run_add(void *arg)
{
    const ptb_add *a = arg;
    bool stream = ptb_host_streams(a->out, a->count * ptb_dtype_size(a->type), PTB_HOST_LINE, a->a, a->b);
#pragma omp parallel if (a->count > PTB_HOST_SERIAL)
    {
#pragma omp for schedule(static) nowait
        for (size_t first = 0; first < a->count; first += PTB_HOST_CHUNK)
            PTB_HOST_TYPED(add_chunk, a->type, a, stream, first,
                           ptb_host_least(a->count, first + PTB_HOST_CHUNK));
        ptb_host_fence(stream);
    }
    return PTB_OK;
}

// What all elements of a row share.
typedef struct {
    uint64_t key;
    uint32_t threshold;
    float scale;
} dropout_row;

// Elements [at, at + count), whose first one is in `column` of its row.
PTB_HOST_BODY dropout_step(ptb_dtype type, const ptb_dropout *a, bool stream, const dropout_row *row,
                           size_t column, size_t at, size_t count)
{
    ptb_host_prefetch(type, a->in, at + PTB_HOST_AHEAD);
    if (a->residual)
        ptb_host_prefetch(type, a->residual, at + PTB_HOST_AHEAD);
    ptb_vec_bits draw = (ptb_vec_bits)ptb_vec_iota() + (uint32_t)column;
    PTB_DROPOUT_MIX(draw, row->key);
    ptb_vec x = ptb_vec_load_some(type, a->in, at, count) * row->scale;
    x = (ptb_vec)((ptb_vec_int)x & (ptb_vec_int)(draw >= ptb_vec_bits_set(row->threshold)));
    if (a->residual)
        x += ptb_vec_load_some(type, a->residual, at, count);
    ptb_host_store(stream, type, a->out, at, count, x);
}

PTB_HOST_BODY dropout_piece(ptb_dtype type, const ptb_dropout *args, bool stream, size_t r, size_t c,
                            size_t end)
{
    const ptb_dropout a = *args;
    uint64_t position = (uint64_t)a.offset + r % a.length;
    dropout_row row = {
        .key = ptb_dropout_key(a.seed, (a.sequence + r / a.length) * a.total_length + position),
        .threshold = ptb_dropout_threshold(a.rate),
        .scale = ptb_dropout_scale(a.rate),
    };
    size_t at = r * a.width;
    for (; c + PTB_LANES <= end; c += PTB_LANES)
        dropout_step(type, &a, stream, &row, c, at + c, PTB_LANES);
    if (c < end)
        dropout_step(type, &a, stream, &row, c, at + c, end - c);
}

ptb_status ptb_host_run_dropout(void *arg)
{
    const ptb_dropout *a = arg;
    size_t row_bytes = a->width * ptb_dtype_size(a->type);
    bool stream = ptb_host_streams(a->out, a->rows * row_bytes, row_bytes, a->in, a->residual);
#pragma omp parallel if (a->rows * a->width > PTB_HOST_SERIAL)
    {
#pragma omp for collapse(2) schedule(static) nowait
        for (size_t r = 0; r < a->rows; r++)
            for (size_t first = 0; first < a->width; first += PTB_HOST_CHUNK)
                PTB_HOST_TYPED(dropout_piece, a->type, a, stream, r, first,
                               ptb_host_least(a->width, first + PTB_HOST_CHUNK));
        ptb_host_fence(stream);
    }
    return PTB_OK;
}

PTB_INLINE void convert_typed(ptb_dtype out_type, ptb_dtype in_type, bool stream, void *out, const void *in,
                              size_t i, size_t end)
{
    for (; i + PTB_LANES <= end; i += PTB_LANES)
        ptb_host_store(stream, out_type, out, i, PTB_LANES, ptb_vec_load(in_type, in, i));
    if (i < end)
        ptb_vec_store_some(out_type, out, i, end - i, ptb_vec_load_some(in_type, in, i, end - i));
}

PTB_HOST_BODY convert_chunk(ptb_dtype out_type, ptb_dtype in_type, bool stream, void *out, const void *in,
                            size_t i, size_t end)
{
    if (in_type == PTB_F32)
        convert_typed(out_type, PTB_F32, stream, out, in, i, end);
    else if (in_type == PTB_BF16)
        convert_typed(out_type, PTB_BF16, stream, out, in, i, end);
    else
        convert_typed(out_type, PTB_F16, stream, out, in, i, end);
}

ptb_status ptb_host_run_convert(void *arg)
{
    const ptb_convert *a = arg;
    bool stream =
        ptb_host_streams(a->out, a->count * ptb_dtype_size(a->out_type), PTB_HOST_LINE, a->in, NULL);
#pragma omp parallel if (a->count > PTB_HOST_SERIAL)
    {
#pragma omp for schedule(static) nowait
        for (size_t first = 0; first < a->count; first += PTB_HOST_CHUNK)
            PTB_HOST_TYPED(convert_chunk, a->out_type, a->in_type, stream, a->out, a->in, first,
                           ptb_host_least(a->count, first + PTB_HOST_CHUNK));
        ptb_host_fence(stream);
    }
    return PTB_OK;
}
