// Cross-entropy of the back-end `cuda`, forward and backward: a block takes a row. While it reads the logits
// it keeps as many as fit in shared memory (all of a vocabulary of 50 thousand on an H100), each thread finds
// the largest of its own and the sum of exponentials relative to it (online softmax: Milakov and Gimelshein
// 2018); after one reduction over the block the gradient is written from what was kept. Only what did not fit
// is read again, from the second-level cache.
#include "strategies/transformer/kernels_cuda_each.cuh"

namespace {

constexpr unsigned WARP = 32, THREADS = 1024; // most of a block
constexpr int TOGETHER = 4;                   // packs of a thread on their way at once
constexpr float LOG2_E = 1.44269504f;
constexpr size_t STATIC_SHARED = 1024; // more than the kernel's own

// exp(x - top) for x <= top, 0 for very small ones; NaN where x is NaN or both are infinite.
__device__ __forceinline__ float exp_below(float x, float top)
{
    return ptb_fast_exp2((x - top) * LOG2_E);
}

// The largest logit of a thread so far and the sum of exponentials relative to it. top begins finite, so that
// logits of minus infinity count as 0.
struct online_sum {
    float top, sum;
    template <int COUNT> __device__ __forceinline__ void add(const float (&x)[COUNT])
    {
        float before = top;
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            top = fmaxf(top, x[i]);
        if (top != before)
            sum *= exp_below(before, top);
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            sum += exp_below(x[i], top);
    }
};

// How a row is divided: `head` logits before the first aligned pack, `packs` of N, the rest. Thread t takes
// packs t, t + blockDim.x, ..., and single(t) where that is not negative.
template <int N> struct row_parts {
    size_t head, packs, count;
    __device__ row_parts(const float *logits, size_t vocabulary) : count(vocabulary)
    {
        head = (size_t)(-(uintptr_t)logits % (N * sizeof(float)) / sizeof(float));
        head = head < count ? head : count;
        packs = (count - head) / N;
    }
    __device__ size_t pack(size_t p) const { return head + p * N; }
    // Element that is in no pack and this thread's; count: none.
    __device__ size_t single() const
    {
        size_t after = threadIdx.x < head ? threadIdx.x : threadIdx.x - head + head + packs * N;
        return after < count ? after : count;
    }
};

template <typename T, int N> __device__ void zero_row(T *out, const row_parts<N> &parts)
{
    const float zeros[N] = {0}, zero[1] = {0};
    for (size_t p = threadIdx.x; p < parts.packs; p += blockDim.x)
        ptb_store(out + parts.pack(p), zeros);
    if (parts.single() < parts.count)
        ptb_store(out + parts.single(), zero);
}

// First pass over a row: what `kept` holds afterwards are the first kept_packs packs.
template <int N>
__device__ online_sum read_row(const float *logits, const row_parts<N> &parts, float *kept, size_t kept_packs)
{
    online_sum sum = {-FLT_MAX, 0};
    size_t p = threadIdx.x, step = blockDim.x;
    for (; p + (TOGETHER - 1) * step < parts.packs; p += TOGETHER * step) {
        ptb_pack<float, N> packs[TOGETHER];
        float x[TOGETHER * N];
#pragma unroll
        for (int t = 0; t < TOGETHER; t++)
            packs[t] = ptb_load_pack<N>(logits + parts.pack(p + t * step));
#pragma unroll
        for (int t = 0; t < TOGETHER; t++) {
            if (p + t * step < kept_packs)
                ptb_store_pack<N>(kept + (p + t * step) * N, packs[t]);
#pragma unroll
            for (int e = 0; e < N; e++)
                x[t * N + e] = packs[t].at[e];
        }
        sum.add(x);
    }
    for (; p < parts.packs; p += step) {
        ptb_pack<float, N> pack = ptb_load_pack<N>(logits + parts.pack(p));
        if (p < kept_packs)
            ptb_store_pack<N>(kept + p * N, pack);
        sum.add(pack.at);
    }
    if (parts.single() < parts.count) {
        float x[1] = {logits[parts.single()]};
        sum.add(x);
    }
    return sum;
}

// What the gradient of a row is made from: share * exp(x - top), and what the target gets.
struct row_gradient {
    float top, share, of_target;
    size_t target;
    __device__ __forceinline__ float at(float x, size_t i) const
    {
        return i == target ? of_target : share * exp_below(x, top);
    }
};

// The second pass. d_logits may be the logits: each thread reads what it writes.
template <typename T, int N>
__device__ void write_row(T *d_logits, const float *logits, const row_parts<N> &parts, const float *kept,
                          size_t kept_packs, const row_gradient &g)
{
#pragma unroll 2
    for (size_t p = threadIdx.x; p < parts.packs; p += blockDim.x) {
        float x[N];
        size_t i = parts.pack(p);
        ptb_load(x, p < kept_packs ? kept + p * N : logits + i);
#pragma unroll
        for (int e = 0; e < N; e++)
            x[e] = g.at(x[e], i + e);
        ptb_store(d_logits + i, x);
    }
    size_t i = parts.single();
    if (i < parts.count)
        d_logits[i] = ptb_from_f32<T>(g.at(logits[i], i));
}

template <typename T, int N>
__global__ void __launch_bounds__(THREADS) loss_rows(ptb_cross_entropy a, size_t kept_packs)
{
    PTB_DYNAMIC_SHARED(float, kept); /* [kept_packs, N] */
    __shared__ float shared_tops[WARP];
    __shared__ double shared_sums[WARP];
    size_t row = blockIdx.x;
    const float *logits = a.logits + row * a.stride;
    T *d_logits = (T *)a.d_logits + row * a.stride;
    const row_parts<N> parts(logits, a.vocabulary);
    if (a.targets[row] < 0) {
        zero_row(d_logits, parts);
        if (threadIdx.x == 0)
            a.losses[row] = 0;
        return;
    }
    size_t target = (size_t)a.targets[row];
    float wanted = logits[target]; // before it is written
    online_sum mine = read_row(logits, parts, kept, kept_packs);
    float top = ptb_block_max(mine.top, shared_tops);
    double sum = ptb_block_sum((double)(mine.sum * exp_below(mine.top, top)), shared_sums);
    double loss = log(sum) + ((double)top - (double)wanted);
    double share = a.scale * (a.factor ? (double)*a.factor : 1);
    // softmax - 1 = exp(-loss) - 1, not from the rounded softmax.
    row_gradient g = {top, (float)(share / sum), 0, target};
    g.of_target = (float)(share * expm1(-loss));
    __syncthreads(); // everybody has read `wanted`
    write_row(d_logits, logits, parts, kept, kept_packs, g);
    if (threadIdx.x == 0)
        a.losses[row] = (float)loss;
}

// *loss (+)= scale * the sum of losses, by one block in one order.
__global__ void __launch_bounds__(THREADS)
    sum_losses(double *loss, const float *losses /* [rows] */, size_t rows, double scale, bool accumulate)
{
    __shared__ double shared[WARP];
    double sum = 0;
#pragma unroll 4
    for (size_t row = threadIdx.x; row < rows; row += THREADS)
        sum += scale * (double)losses[row];
    sum = ptb_block_sum(sum, shared);
    if (threadIdx.x == 0)
        *loss = sum + (accumulate ? *loss : 0);
}

// Most dynamic shared memory of a block on this device.
size_t most_shared()
{
    int device = 0, bytes = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess)
        bytes = 48 << 10;
    return (size_t)bytes - STATIC_SHARED;
}

template <typename T, int N> int launch_rows(cudaStream_t stream, const ptb_cross_entropy *a)
{
    size_t wanted = (a->vocabulary + 4 * TOGETHER - 1) / (4 * TOGETHER); // threads with one round of loads
    unsigned threads = wanted < THREADS ? (unsigned)ptb_blocks(wanted, WARP) * WARP : THREADS;
    size_t most = most_shared() / (N * sizeof(float)), packs = a->vocabulary / N;
    packs = packs < most ? packs : most;
    size_t bytes = packs * N * sizeof(float);
    if (bytes > 48 << 10) {
        cudaError_t error = PTB_ALLOW_SHARED((loss_rows<T, N>), bytes);
        if (error != cudaSuccess)
            return error;
    }
    return PTB_LAUNCH((loss_rows<T, N>), (unsigned)a->rows, threads, bytes, stream, *a, packs);
}

} // namespace

extern "C" int ptb_cuda_launch_cross_entropy(cudaStream_t stream, const ptb_cross_entropy *args)
{
    int error = cudaSuccess;
    ptb_cross_entropy strided = *args, *a = &strided;
    strided.stride = ptb_row_stride(args->stride, args->vocabulary);
    if (a->rows && a->vocabulary)
        error = ptb_for_type(a->type, [&](auto type) -> int {
            using T = decltype(type);
            constexpr int N = ptb_width<float>;
            // Then every row's packs are aligned in both arrays at the same elements.
            if (ptb_aligned(16, a->logits) && ptb_aligned(N * sizeof(T), a->d_logits))
                return launch_rows<T, N>(stream, a);
            return launch_rows<T, 1>(stream, a);
        });
    if (error != cudaSuccess)
        return error;
    return PTB_LAUNCH(sum_losses, 1, THREADS, 0, stream, a->loss, a->losses, a->rows, a->scale,
                      a->accumulate);
}
