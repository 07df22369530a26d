// Cross-entropy of the back-end `cuda` of logits whose columns are cut over ranks; see ptb_loss_statistics. A
// block takes a row after the other; both kernels read it once, in packs of 16 bytes where rows are aligned.
#include "strategies/transformer/kernels_cuda_loss.cuh"

namespace {

constexpr unsigned WARP = 32, ROWS_RESIDENT = 2; // blocks of a multiprocessor
constexpr int TOGETHER = 4;                      // packs of a thread on their way at once

// f(first element, its pack of N or 1) for the logits of this thread, of `count` in the row.
template <int N, typename F>
__device__ __forceinline__ void each_logit(const float *logits, unsigned count, F f)
{
    unsigned packs = count / N, p = threadIdx.x, step = blockDim.x;
    for (; p + (TOGETHER - 1) * step < packs; p += TOGETHER * step) {
        ptb_pack<float, N> some[TOGETHER];
#pragma unroll
        for (int t = 0; t < TOGETHER; t++)
            some[t] = ptb_load_pack<N>(logits + (p + t * step) * N);
#pragma unroll
        for (int t = 0; t < TOGETHER; t++)
            f((p + t * step) * N, some[t].at);
    }
    for (; p < packs; p += step)
        f(p * N, ptb_load_pack<N>(logits + p * N).at);
    unsigned rest = packs * N + threadIdx.x;
    if (N > 1 && rest < count) {
        const float one[1] = {logits[rest]};
        f(rest, one);
    }
}

// Column of a target here; the vocabulary's length or more: elsewhere. Negative targets are far beyond.
__device__ __forceinline__ size_t column_of(int target, size_t first_token)
{
    return target < 0 ? SIZE_MAX : (size_t)target - first_token;
}

template <int N> __global__ void __launch_bounds__(PTB_LOSS_THREADS) statistics_rows(ptb_loss_statistics a)
{
    __shared__ ptb_block_sums shared[2];
    unsigned turn = 0;
    for (size_t row = blockIdx.x; row < a.rows; row += gridDim.x, turn ^= 1) {
        const float *logits = a.logits + row * a.stride;
        ptb_online_sum mine = {-FLT_MAX, 0};
        float top;
        each_logit<N>(logits, (unsigned)a.vocabulary, [&](unsigned, const auto &x) { mine.add(x); });
        double sum = ptb_reduce_row(mine, shared[turn], top);
        if (threadIdx.x)
            continue;
        size_t column = column_of(a.targets[row], a.first_token);
        a.statistics[row] = top;
        a.statistics[a.rows + row] = (float)sum;
        a.statistics[2 * a.rows + row] = column < a.vocabulary ? logits[column] : -INFINITY;
    }
}

// Of a row's whole vocabulary, from the statistics of its parts.
struct merged_row {
    float top;
    double sum, target; // sum: of exp(logit - top)
    __device__ merged_row(const ptb_loss_gradient &a, size_t row) : top(-FLT_MAX), sum(0), target(-INFINITY)
    {
        const float *first = a.statistics + row;
        for (size_t part = 0; part < a.parts; part++) {
            top = fmaxf(top, first[part * 3 * a.rows]);
            target = fmax(target, (double)first[(part * 3 + 2) * a.rows]);
        }
        for (size_t part = 0; part < a.parts; part++)
            sum +=
                (double)first[(part * 3 + 1) * a.rows] * exp((double)first[part * 3 * a.rows] - (double)top);
    }
};

// d_logits may be the logits: each thread reads what it writes.
template <typename T, int N>
__global__ void __launch_bounds__(PTB_LOSS_THREADS) gradient_rows(ptb_loss_gradient a)
{
    double scale = a.scale * (a.factor ? (double)*a.factor : 1);
    for (size_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        const float *logits = a.logits + row * a.stride;
        T *d_logits = (T *)a.d_logits + row * a.stride;
        bool counts = a.targets[row] >= 0;
        merged_row all(a, row);
        double loss = log(all.sum) + ((double)all.top - all.target);
        size_t column = column_of(a.targets[row], a.first_token);
        ptb_row_gradient g = {all.top, (float)scale / (float)all.sum};
        each_logit<N>(logits, (unsigned)a.vocabulary, [&](unsigned first, const auto &x) {
            constexpr int COUNT = (int)(sizeof x / sizeof x[0]);
            float d[COUNT];
#pragma unroll
            for (int e = 0; e < COUNT; e++) {
                d[e] = g.of(x[e]);
                // softmax - 1 = exp(-loss) - 1, not from the rounded softmax.
                if (first + e == column)
                    d[e] = (float)(scale * expm1(-loss));
                d[e] = counts ? d[e] : 0;
            }
            ptb_store<COUNT, true>(d_logits + first, d);
        });
        if (threadIdx.x == 0)
            a.losses[row] = counts ? (float)loss : 0;
    }
}

// Threads of a block: whole warps, a round of loads each.
unsigned threads_of(size_t vocabulary)
{
    size_t wanted = vocabulary / (4 * TOGETHER) + 1;
    return wanted < PTB_LOSS_THREADS ? (unsigned)ptb_blocks(wanted, WARP) * WARP : PTB_LOSS_THREADS;
}

} // namespace

extern "C" int ptb_cuda_launch_loss_statistics(cudaStream_t stream, const ptb_loss_statistics *args)
{
    ptb_loss_statistics a = *args;
    constexpr int N = ptb_width<float>;
    a.stride = ptb_row_stride(args->stride, args->vocabulary);
    if (!a.rows)
        return cudaSuccess;
    unsigned grid = ptb_grid(a.rows, 1, ROWS_RESIDENT), threads = threads_of(a.vocabulary);
    if (a.stride % N == 0 && ptb_aligned(16, a.logits))
        return PTB_LAUNCH(statistics_rows<N>, grid, threads, 0, stream, a);
    return PTB_LAUNCH(statistics_rows<1>, grid, threads, 0, stream, a);
}

extern "C" int ptb_cuda_launch_loss_gradient(cudaStream_t stream, const ptb_loss_gradient *args)
{
    ptb_loss_gradient a = *args;
    a.stride = ptb_row_stride(args->stride, args->vocabulary);
    int error = cudaSuccess;
    if (a.rows)
        error = ptb_for_type(a.type, [&](auto type) -> int {
            using T = decltype(type);
            constexpr int N = ptb_width<float>;
            unsigned grid = ptb_grid(a.rows, 1, ROWS_RESIDENT), threads = threads_of(a.vocabulary);
            if (a.stride % N == 0 && ptb_aligned(16, a.logits) && ptb_aligned(N * sizeof(T), a.d_logits))
                return PTB_LAUNCH((gradient_rows<T, N>), grid, threads, 0, stream, a);
            return PTB_LAUNCH((gradient_rows<T, 1>), grid, threads, 0, stream, a);
        });
    if (error != cudaSuccess)
        return error;
    return PTB_LAUNCH(ptb_sum_losses, 1, PTB_LOSS_THREADS, 0, stream, a.loss, a.losses, a.rows, a.scale,
                      a.accumulate);
}
