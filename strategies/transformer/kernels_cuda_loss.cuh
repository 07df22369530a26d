// What the kernels of cross-entropy on GPUs share (kernels_cuda_loss.cu: all of the vocabulary is here;
// kernels_cuda_loss_parts.cu: a part of it): sums of exponentials of a row, its gradient, and the sum of
// losses.
#ifndef PTB_STRATEGIES_TRANSFORMER_KERNELS_CUDA_LOSS_CUH
#define PTB_STRATEGIES_TRANSFORMER_KERNELS_CUDA_LOSS_CUH

#include "strategies/transformer/kernels_cuda_each.cuh"

constexpr unsigned PTB_LOSS_THREADS = 1024; // most of a block

// exp(x - top) for x <= top, 0 for very small ones; NaN where x is NaN or both are infinite.
static __device__ __forceinline__ float ptb_exp_below(float x, float top)
{
    constexpr float log2_e = 1.44269504f;
    return ptb_fast_exp2((x - top) * log2_e);
}

// The largest logit of a thread so far and the sum of exponentials relative to it. top begins finite, so that
// logits of minus infinity count as 0.
struct ptb_online_sum {
    float top, sum;
    template <int COUNT> __device__ __forceinline__ void add(const float (&x)[COUNT])
    {
        float before = top;
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            top = fmaxf(top, x[i]);
        if (top != before)
            sum *= ptb_exp_below(before, top);
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            sum += ptb_exp_below(x[i], top);
    }
};

// Over the block: every thread gets the largest logit and the sum relative to it. Calls alternate between two
// pieces of shared memory, so that one barrier a call is enough.
struct ptb_block_sums {
    float top[32];
    double sum[32];
};
static __device__ __forceinline__ double ptb_reduce_row(const ptb_online_sum &mine, ptb_block_sums &shared,
                                                        float &top)
{
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float of_warp = ptb_warp_max(mine.top);
    double sum = ptb_warp_sum((double)(mine.sum * ptb_exp_below(mine.top, of_warp)));
    if (lane == 0)
        shared.top[warp] = of_warp, shared.sum[warp] = sum;
    __syncthreads();
    bool any = lane < blockDim.x / 32;
    of_warp = any ? shared.top[lane] : -FLT_MAX;
    top = ptb_warp_max(of_warp);
    return ptb_warp_sum(any ? shared.sum[lane] * (double)ptb_exp_below(of_warp, top) : 0.0);
}

// What the gradient of a row is made from: share * exp(x - top).
struct ptb_row_gradient {
    float top, share;
    __device__ __forceinline__ float of(float x) const { return share * ptb_exp_below(x, top); }
    template <typename T, int N> __device__ __forceinline__ void store(T *to, const float (&x)[N]) const
    {
        float d[N];
#pragma unroll
        for (int e = 0; e < N; e++)
            d[e] = of(x[e]);
        ptb_store<N, true>(to, d);
    }
};

// *loss (+)= scale * the sum of losses, by one block in one order.
static __global__ void __launch_bounds__(PTB_LOSS_THREADS)
    ptb_sum_losses(double *loss, const float *losses /* [rows] */, size_t rows, double scale, bool accumulate)
{
    __shared__ double shared[32];
    double sum = 0;
#pragma unroll 4
    for (size_t row = threadIdx.x; row < rows; row += PTB_LOSS_THREADS)
        sum += scale * (double)losses[row];
    sum = ptb_block_sum(sum, shared);
    if (threadIdx.x == 0)
        *loss = sum + (accumulate ? *loss : 0);
}

#endif
