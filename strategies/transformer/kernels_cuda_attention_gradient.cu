// The gradient of attention: what its kernels share, and their order. Probabilities are computed again from
// lse (FlashAttention-2, Dao 2023, section 3.1), by two kernels: one has keys and values of its own and goes
// over the queries that see them (kernels_cuda_attention_key.cu), the other has queries and goes over the
// keys that they see (kernels_cuda_attention_query.cu). Nothing is added across blocks, so results are the
// same in every run, no memory is needed but two numbers a row, and both kernels keep probabilities in
// registers as the forward pass does; the price is 7 products for 5.
#include "strategies/transformer/kernels_cuda_attention.cuh"

// A group of 8 lanes a row and head. rows: [batch, heads, query_length] of {lse, in units of log 2; sum of
// d_out * out}.
template <typename T>
__global__ void attention_rows(attention_call c, int64_t count, const T *d_out, const T *out,
                               const float *lse, float2 *rows)
{
    constexpr int N = ptb_width<T>;
    int64_t index = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 8; /* [batch, query_length, heads] */
    int lane = (int)threadIdx.x % 8;
    float sum = 0;
    const T *x = d_out + index * c.width, *y = out + index * c.width;
    if (index < count && c.aligned)
        for (int at = lane * N; at < c.width; at += 8 * N) {
            float a[N], b[N];
            ptb_load<N>(a, x + at);
            ptb_load<N>(b, y + at);
#pragma unroll
            for (int i = 0; i < N; i++)
                sum += a[i] * b[i];
        }
    else if (index < count)
        for (int at = lane; at < c.width; at += 8)
            sum += ptb_to_f32(x[at]) * ptb_to_f32(y[at]);
#pragma unroll
    for (int distance = 4; distance > 0; distance >>= 1)
        sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    if (index >= count || lane)
        return;
    int64_t h = index % c.heads, row = index / c.heads % c.query_length, b = index / c.heads / c.query_length;
    int64_t to = (b * c.heads + h) * c.query_length + row;
    // A row that saw nothing: 2^(score - INFINITY) = 0.
    rows[to] = {lse[to] > -INFINITY ? lse[to] * 1.44269504f : INFINITY, sum};
}

template <typename T> static int launch_rows(cudaStream_t stream, const ptb_attention_gradient *a)
{
    const ptb_attention_shape *s = &a->shape;
    attention_call c = attention_call_of(s, ptb_aligned(16, a->d_out, a->out));
    int64_t count = (int64_t)(s->batch * s->query_length * s->heads);
    return PTB_LAUNCH(attention_rows<T>, dim3((unsigned)ptb_blocks((size_t)count, 32)), dim3(256), 0, stream,
                      c, count, (const T *)a->d_out, (const T *)a->out, a->lse, (float2 *)s->workspace);
}

extern "C" int ptb_cuda_launch_attention_rows(cudaStream_t stream, const ptb_attention_gradient *args)
{
    return ptb_for_type(args->shape.type, [&](auto t) { return launch_rows<decltype(t)>(stream, args); });
}
