// Cross-entropy of the back-end `cuda`, forward and backward. A block takes a row after the other and keeps
// as many of its logits as fit in shared memory (all of a vocabulary of 50 thousand on an H100). Each thread
// finds the largest of its own logits and the sum of exponentials relative to it (online softmax: Milakov and
// Gimelshein 2018); after one reduction over the block the gradient is written from what was kept. While it
// is written, the logits of the block's next row come into the places that become free, so that memory is
// read and written at the same time: each thread reads what it copied itself, so no barrier is needed for
// that. Only what did not fit is read again, from the second-level cache.
#include "strategies/transformer/kernels_cuda_loss.cuh"
#include "strategies/transformer/kernels_cuda_mma.cuh"

namespace {

constexpr unsigned WARP = 32, THREADS = PTB_LOSS_THREADS; // most of a block
constexpr int TOGETHER = 4;                               // packs of a thread on their way at once
constexpr int GROUPS = 4;                                 // of TOGETHER packs that a thread keeps, at most
constexpr size_t STATIC_SHARED = 1024;                    // more than the kernel's own

// How a row is divided: `head` logits before the first aligned pack, `packs` of N, the rest. Thread t takes
// packs t, t + blockDim.x, ..., and single(t) where that is not negative.
template <int N> struct row_parts {
    unsigned head, packs, count;
    __device__ row_parts(const float *logits, size_t vocabulary) : count((unsigned)vocabulary)
    {
        head = (unsigned)(-(uintptr_t)logits % (N * sizeof(float)) / sizeof(float));
        head = head < count ? head : count;
        packs = (count - head) / N;
    }
    __device__ unsigned pack(unsigned p) const { return head + p * N; }
    // Element that is in no pack and this thread's; count: none.
    __device__ unsigned single() const
    {
        unsigned after = threadIdx.x < head ? threadIdx.x : threadIdx.x + packs * N;
        return after < count ? after : count;
    }
    // The element is one of this thread's.
    __device__ bool is_mine(unsigned i) const
    {
        bool in_pack = i >= head && i < head + packs * N;
        return in_pack ? (i - head) / N % blockDim.x == threadIdx.x : i == single();
    }
};

template <typename T, int N> __device__ void zero_row(T *out, const row_parts<N> &parts)
{
    const float zeros[N] = {0}, zero[1] = {0};
    for (unsigned p = threadIdx.x; p < parts.packs; p += blockDim.x)
        ptb_store<N, true>(out + parts.pack(p), zeros);
    if (parts.single() < parts.count)
        ptb_store(out + parts.single(), zero);
}

// Asks for the packs of a group of those that are kept, of a row of `packs` packs that begin at `from`. Packs
// of 16 bytes come in the background, and are a group for ptb_copy_wait.
template <int N>
__device__ __forceinline__ void start_group(float *kept, const float *from, unsigned packs, int group)
{
#pragma unroll
    for (int t = 0; t < TOGETHER; t++) {
        unsigned p = threadIdx.x + (group * TOGETHER + t) * blockDim.x;
        if (p >= packs)
            continue;
        if constexpr (N == 4)
            ptb_copy_async_once(kept + p * N, from + p * N);
        else
            kept[p] = from[p];
    }
    ptb_copy_commit();
}

static_assert(GROUPS == 4, "wait_for knows their number");
__device__ __forceinline__ void wait_for(int group)
{
    if (group == 0)
        ptb_copy_wait<3>();
    else if (group == 1)
        ptb_copy_wait<2>();
    else if (group == 2)
        ptb_copy_wait<1>();
    else
        ptb_copy_wait<0>();
}

// First pass over a row: the first kept_packs packs from where they are kept, the others from memory.
template <int N>
__device__ ptb_online_sum read_row(const float *logits, const row_parts<N> &parts, const float *kept,
                                   unsigned kept_packs)
{
    ptb_online_sum sum = {-FLT_MAX, 0};
    unsigned limit = kept_packs < parts.packs ? kept_packs : parts.packs, step = blockDim.x;
    unsigned p = threadIdx.x;
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        wait_for(g);
#pragma unroll
        for (int t = 0; t < TOGETHER; t++, p += step)
            if (p < limit)
                sum.add(ptb_load_pack<N>(kept + p * N).at);
    }
    for (p = kept_packs + threadIdx.x; p + (TOGETHER - 1) * step < parts.packs; p += TOGETHER * step) {
        ptb_pack<float, N> packs[TOGETHER];
#pragma unroll
        for (int t = 0; t < TOGETHER; t++)
            packs[t] = ptb_load_pack<N>(logits + parts.pack(p + t * step));
#pragma unroll
        for (int t = 0; t < TOGETHER; t++)
            sum.add(packs[t].at);
    }
    for (; p < parts.packs; p += step)
        sum.add(ptb_load_pack<N>(logits + parts.pack(p)).at);
    if (parts.single() < parts.count) {
        float x[1] = {logits[parts.single()]};
        sum.add(x);
    }
    return sum;
}

// The second pass. d_logits may be the logits: each thread reads what it writes. The kept packs are replaced
// by those of the next row: next_packs of them, from next_from on.
template <typename T, int N>
__device__ void write_row(T *d_logits, const float *logits, const row_parts<N> &parts, float *kept,
                          unsigned kept_packs, const ptb_row_gradient &g, const float *next_from,
                          unsigned next_packs)
{
    unsigned limit = kept_packs < parts.packs ? kept_packs : parts.packs;
#pragma unroll 4
    for (unsigned p = kept_packs + threadIdx.x; p < parts.packs; p += blockDim.x)
        g.store(d_logits + parts.pack(p), ptb_load_pack<N, true>(logits + parts.pack(p)).at);
    unsigned i = parts.single();
    if (i < parts.count) {
        float x[1] = {logits[i]};
        g.store(d_logits + i, x);
    }
#pragma unroll 1
    for (int group = 0; group < GROUPS; group++) {
        unsigned first = threadIdx.x + group * TOGETHER * blockDim.x;
#pragma unroll
        for (int t = 0; t < TOGETHER; t++) {
            unsigned p = first + t * blockDim.x;
            if (p < limit)
                g.store(d_logits + parts.pack(p), ptb_load_pack<N>(kept + p * N).at);
        }
        start_group<N>(kept, next_from, next_packs, group);
    }
}

// Rows of a block are gridDim.x apart.
template <typename T, int N>
__global__ void __launch_bounds__(THREADS, 1) loss_rows(ptb_cross_entropy a, unsigned kept_packs)
{
    PTB_DYNAMIC_SHARED(float, kept); /* [kept_packs, N] */
    __shared__ ptb_block_sums shared[2];
    unsigned turn = 0;
    double scale = a.scale * (a.factor ? (double)*a.factor : 1);
    size_t row = blockIdx.x;
    int target = a.targets[row];
    row_parts<N> parts(a.logits + row * a.stride, a.vocabulary);
    for (int g = 0; g < GROUPS; g++)
        start_group<N>(kept, a.logits + row * a.stride + parts.head,
                       target < 0 ? 0 : (kept_packs < parts.packs ? kept_packs : parts.packs), g);
    while (row < a.rows) {
        size_t next = row + gridDim.x;
        const float *logits = a.logits + row * a.stride, *next_logits = a.logits + next * a.stride;
        T *d_logits = (T *)a.d_logits + row * a.stride;
        int next_target = next < a.rows ? a.targets[next] : -1;
        row_parts<N> next_parts(next_logits, a.vocabulary);
        unsigned next_packs = kept_packs < next_parts.packs ? kept_packs : next_parts.packs;
        next_packs = next_target < 0 ? 0 : next_packs;
        if (target < 0) {
            zero_row(d_logits, parts);
            for (int g = 0; g < GROUPS; g++)
                start_group<N>(kept, next_logits + next_parts.head, next_packs, g);
            if (threadIdx.x == 0)
                a.losses[row] = 0;
        } else {
            bool is_mine = parts.is_mine((unsigned)target);
            float wanted = is_mine ? logits[target] : 0, top; // before it is written
            ptb_online_sum mine = read_row(logits, parts, kept, kept_packs);
            double sum = ptb_reduce_row(mine, shared[turn], top);
            turn ^= 1;
            ptb_row_gradient g = {top, (float)scale / (float)sum};
            write_row(d_logits, logits, parts, kept, kept_packs, g, next_logits + next_parts.head,
                      next_packs);
            if (is_mine) { // after the thread has written it like all others
                double loss = log(sum) + ((double)top - (double)wanted);
                // softmax - 1 = exp(-loss) - 1, not from the rounded softmax.
                d_logits[target] = ptb_from_f32<T>((float)(scale * expm1(-loss)));
                a.losses[row] = (float)loss;
            }
        }
        row = next;
        target = next_target;
        parts = next_parts;
    }
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
    size_t most = most_shared() / (N * sizeof(float)) / threads, packs = a->vocabulary / N;
    most = (most < GROUPS * TOGETHER ? most : GROUPS * TOGETHER) * threads; // whole rounds, if not all
    packs = packs < most ? packs : most;
    size_t bytes = packs * N * sizeof(float);
    if (bytes > 48 << 10) {
        cudaError_t error = PTB_ALLOW_SHARED((loss_rows<T, N>), bytes);
        if (error != cudaSuccess)
            return error;
    }
    size_t resident = most_shared() / (bytes + STATIC_SHARED), fit = THREADS / threads; // by registers
    resident = resident < fit ? resident ? resident : 1 : fit;
    return PTB_LAUNCH((loss_rows<T, N>), ptb_grid(a->rows, 1, (unsigned)resident), threads, bytes, stream, *a,
                      (unsigned)packs);
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
    return PTB_LAUNCH(ptb_sum_losses, 1, THREADS, 0, stream, a->loss, a->losses, a->rows, a->scale,
                      a->accumulate);
}
