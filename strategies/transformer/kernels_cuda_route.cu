// The router of a mixture of experts on the back-end `cuda`. Rows are cut into chunks. A first kernel chooses
// each row's experts, a warp a row, and counts the choices of each expert in each chunk; a second one, of one
// block, makes of the counts where each chunk's first choice of an expert stands, the slots' offsets and the
// balance loss; a third one gives the choices of a chunk their slots in order of row. Everything that threads
// exchange is a whole number or is added in a fixed order.
#include "strategies/transformer/kernels_cuda_each.cuh"
#include "strategies/transformer/route.h"

namespace {

constexpr unsigned WARP = 32, ALL = 0xffffffffu;
constexpr unsigned ROW_THREADS = 256, ROW_WARPS = ROW_THREADS / WARP;
constexpr unsigned CHUNKS = 1024, CHUNK_ROWS = 64; // most chunks; least rows of one
constexpr float LOG2_E = 1.44269504f;

struct route_memory {
    int32_t *before;      /* [experts, chunks]: choices of the chunk, then of all chunks before it */
    float *sums;          /* [experts, chunks]: of the chunk's probabilities */
    size_t chunks, chunk; // rows of a chunk
};

// ---- a warp's row: lane l holds experts l, l + 32, ... in J registers

template <int J>
__device__ __forceinline__ void load_experts(float (&out)[J], const float *row, size_t experts, float none)
{
    unsigned lane = threadIdx.x % WARP;
#pragma unroll
    for (int j = 0; j < J; j++)
        out[j] = lane + j * WARP < experts ? row[lane + j * WARP] : none;
}

template <int J> __device__ __forceinline__ void softmax(float (&x)[J])
{
    float top = -INFINITY, sum = 0;
#pragma unroll
    for (int j = 0; j < J; j++)
        top = fmaxf(top, x[j]);
    top = ptb_warp_max(top);
#pragma unroll
    for (int j = 0; j < J; j++)
        sum += x[j] = ptb_fast_exp2((x[j] - top) * LOG2_E);
    float scale = 1 / ptb_warp_sum(sum);
#pragma unroll
    for (int j = 0; j < J; j++)
        x[j] *= scale;
}

// The largest of the warp's numbers, the smaller index first among equals; it becomes -1. Probabilities are
// compared by their bits, which order like the numbers because those are not negative, and have an order for
// NaN too: choices are distinct and valid whatever comes.
struct choice {
    int expert, bits;
};
template <int J> __device__ __forceinline__ choice take_largest(int (&bits)[J])
{
    int lane = (int)(threadIdx.x % WARP), best = bits[0], index = lane;
#pragma unroll
    for (int j = 1; j < J; j++)
        if (bits[j] > best)
            best = bits[j], index = lane + j * (int)WARP;
    int top = __reduce_max_sync(ALL, best);
    index = __reduce_min_sync(ALL, best == top ? index : INT32_MAX);
#pragma unroll
    for (int j = 0; j < J; j++)
        if (index == lane + j * (int)WARP)
            bits[j] = -1;
    return {index, top};
}

// The row's choices; counts[e] += those of expert e.
template <int J> __device__ void choose(const ptb_route &a, size_t row, const float (&p)[J], int *counts)
{
    unsigned lane = threadIdx.x % WARP;
    int bits[J];
#pragma unroll
    for (int j = 0; j < J; j++) // a NaN's sign goes; experts that there are not are never chosen
        bits[j] = lane + j * WARP < a.experts ? __float_as_int(p[j]) & INT32_MAX : -1;
    int32_t *expert = a.expert + row * a.top_k;
    float *weight = a.weight + row * a.top_k, sum = 0;
    choice mine = {0, 0}; // choice `first + lane`
    size_t first = 0;
    for (size_t k = 0; k < a.top_k; k++) {
        choice next = take_largest(bits);
        sum += __int_as_float(next.bits);
        if (lane == k - first)
            mine = next;
        if (k - first < WARP - 1 && k + 1 < a.top_k)
            continue;
        bool last = k + 1 == a.top_k;
        if (lane <= k - first) {
            float scale = last && a.normalise ? 1 / sum : 1;
            expert[first + lane] = mine.expert;
            weight[first + lane] = __int_as_float(mine.bits) * scale;
            atomicAdd(&counts[mine.expert], 1);
        }
        first += last ? 0 : WARP;
    }
    for (size_t k = lane; a.normalise && k < first; k += WARP) // whole groups of 32 before the last one
        weight[k] *= 1 / sum;
}

template <int J> __global__ void __launch_bounds__(ROW_THREADS) route_rows(ptb_route a, route_memory m)
{
    __shared__ int counts[WARP * J];
    __shared__ float sums[ROW_WARPS][WARP * J];
    unsigned warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    for (unsigned e = threadIdx.x; e < WARP * J; e += ROW_THREADS)
        counts[e] = 0;
    __syncthreads();
    float total[J] = {0};
    size_t first = blockIdx.x * m.chunk, end = first + m.chunk < a.rows ? first + m.chunk : a.rows;
    for (size_t row = first + warp; row < end; row += ROW_WARPS) {
        float p[J];
        load_experts(p, a.logits + row * a.experts, a.experts, -INFINITY);
        softmax(p);
#pragma unroll
        for (int j = 0; j < J; j++) {
            if (lane + j * WARP < a.experts)
                a.probabilities[row * a.experts + lane + j * WARP] = p[j];
            total[j] += p[j];
        }
        choose(a, row, p, counts);
    }
#pragma unroll
    for (int j = 0; j < J; j++)
        sums[warp][lane + j * WARP] = total[j];
    __syncthreads();
    for (unsigned e = threadIdx.x; e < a.experts; e += ROW_THREADS) {
        float sum = 0;
        for (unsigned w = 0; w < ROW_WARPS; w++)
            sum += sums[w][e];
        m.before[e * m.chunks + blockIdx.x] = counts[e];
        m.sums[e * m.chunks + blockIdx.x] = sum;
    }
}

// One block of PTB_EXPERTS_MAX threads.
__global__ void __launch_bounds__(PTB_EXPERTS_MAX) route_offsets(ptb_route a, route_memory m, double factor)
{
    __shared__ int totals[PTB_EXPERTS_MAX], warp_sums[WARP];
    __shared__ double shared[WARP], dots[PTB_EXPERTS_MAX];
    unsigned warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, expert = threadIdx.x;
    for (size_t e = warp; e < a.experts; e += WARP) {
        int total = ptb_warp_scan(m.before + e * m.chunks, m.chunks);
        double sum = 0;
        for (size_t c = lane; c < m.chunks; c += WARP)
            sum += (double)m.sums[e * m.chunks + c];
        sum = ptb_warp_sum(sum);
        if (lane == 0) {
            totals[e] = total, dots[e] = sum * (double)total;
            if (a.sums)
                a.sums[e] = sum;
        }
    }
    __syncthreads();
    int total = expert < a.experts ? totals[expert] : 0;
    int kept = ptb_route_taken(total, a.capacity), inclusive = kept;
    for (unsigned distance = 1; distance < WARP; distance *= 2) {
        int other = __shfl_up_sync(ALL, inclusive, distance);
        inclusive += lane >= distance ? other : 0;
    }
    if (lane == WARP - 1)
        warp_sums[warp] = inclusive;
    __syncthreads();
    for (unsigned w = 0; w < warp; w++)
        inclusive += warp_sums[w];
    int offset = inclusive - kept;
    if (a.part) { // behind the others of the part, which begins at its block
        totals[expert] = offset;
        __syncthreads();
        size_t begin = expert < a.experts ? expert / a.part * a.part : 0;
        offset += (int)(begin * a.capacity) - totals[begin];
    }
    if (expert < a.experts) {
        a.counts[expert] = total;
        a.offsets[expert] = offset;
        if (expert + 1 == a.experts)
            a.offsets[a.experts] = offset + kept;
        if (a.tally) {
            a.tally[expert] += total;
            a.tally[a.experts + expert] += kept;
        }
    }
    double dot = ptb_block_sum(expert < a.experts ? dots[expert] : 0, shared);
    if (a.loss && expert == 0)
        *a.loss += factor * dot;
}

// One warp a chunk.
__global__ void __launch_bounds__(WARP) route_slots(ptb_route a, route_memory m)
{
    __shared__ int position[PTB_EXPERTS_MAX]; // of an expert's next choice among all of its own
    unsigned lane = threadIdx.x;
    for (size_t e = lane; e < a.experts; e += WARP)
        position[e] = m.before[e * m.chunks + blockIdx.x];
    __syncwarp();
    size_t end = (blockIdx.x + 1) * m.chunk < a.rows ? (blockIdx.x + 1) * m.chunk : a.rows;
    for (size_t first = blockIdx.x * m.chunk * a.top_k; first < end * a.top_k; first += WARP) {
        bool live = first + lane < end * a.top_k;
        int expert = live ? a.expert[first + lane] : -1;
        unsigned same = __match_any_sync(ALL, expert); // earlier choices are in lower lanes
        int at = live ? position[expert] + __popc(same & ((1u << lane) - 1)) : 0;
        __syncwarp();
        if (live && same >> lane == 1) // the last one
            position[expert] = at + 1;
        __syncwarp();
        if (live)
            a.slot[first + lane] = a.capacity && (size_t)at >= a.capacity ? -1 : a.offsets[expert] + at;
    }
}

// ---- the balance loss of several routers

constexpr unsigned LOSS_THREADS = 1024;

// One block.
__global__ void __launch_bounds__(LOSS_THREADS) balance_loss(ptb_balance_loss a)
{
    __shared__ double shared[WARP];
    double sum = 0;
    for (size_t i = threadIdx.x; i < a.count; i += LOSS_THREADS)
        sum += (double)a.counts[i] * a.sums[i];
    sum = ptb_block_sum(sum, shared);
    if (threadIdx.x == 0)
        *a.loss += a.factor * sum;
}

// ---- the gradient

// d_logits[e] = p_e (d_e - sum_j p_j d_j), where d is the gradient to the probabilities: balance[e], and on
// the chosen experts that of their weights too. weight = p or p / (sum of the chosen p).
template <typename T, int J>
__global__ void __launch_bounds__(ROW_THREADS) route_gradient(ptb_route_gradient a, double factor)
{
    unsigned lane = threadIdx.x % WARP;
    float balance[J]; // gradient of the balance loss to a probability
    factor *= a.factor ? (double)*a.factor : 1;
#pragma unroll
    for (int j = 0; j < J; j++)
        balance[j] = lane + j * WARP < a.experts ? (float)(factor * (double)a.counts[lane + j * WARP]) : 0;
    for (size_t row = blockIdx.x * ROW_WARPS + threadIdx.x / WARP; row < a.rows;
         row += gridDim.x * ROW_WARPS) {
        const float *probability = a.probabilities + row * a.experts; /* [experts] */
        const float *weight = a.weight + row * a.top_k, *d_weight = a.d_weight + row * a.top_k;
        const int32_t *expert = a.expert + row * a.top_k;
        float p[J], mean = 0, sum = 0, dot = 0;
        load_experts(p, probability, a.experts, 0);
        for (size_t k = lane; a.normalise && k < a.top_k; k += WARP) {
            mean += d_weight[k] * weight[k];
            sum += probability[expert[k]];
        }
        float scale = 1;
        if (a.normalise) {
            mean = ptb_warp_sum(mean);
            scale = 1 / ptb_warp_sum(sum);
        }
        for (size_t k = lane; k < a.top_k; k += WARP)
            dot += probability[expert[k]] * ((d_weight[k] - mean) * scale);
#pragma unroll
        for (int j = 0; j < J; j++)
            dot += p[j] * balance[j];
        dot = ptb_warp_sum(dot);
        float d[J];
#pragma unroll
        for (int j = 0; j < J; j++)
            d[j] = balance[j] - dot;
        for (size_t k = 0; k < a.top_k; k++) {
            float more = (d_weight[k] - mean) * scale;
#pragma unroll
            for (int j = 0; j < J; j++)
                d[j] += expert[k] == (int)(lane + j * WARP) ? more : 0;
        }
        T *d_logits = (T *)a.d_logits + row * a.experts;
#pragma unroll
        for (int j = 0; j < J; j++)
            if (lane + j * WARP < a.experts)
                d_logits[lane + j * WARP] = ptb_from_f32<T>(p[j] * d[j]);
    }
}

// ---- the host's side

// f(J) as a constant, for the least J that holds the experts.
template <typename F> int for_experts(size_t experts, F f)
{
    if (experts <= WARP)
        return f(ptb_constant<1>());
    if (experts <= 2 * WARP)
        return f(ptb_constant<2>());
    if (experts <= 4 * WARP)
        return f(ptb_constant<4>());
    if (experts <= 8 * WARP)
        return f(ptb_constant<8>());
    return f(ptb_constant<32>());
}

size_t chunk_rows(size_t rows)
{
    size_t chunk = ptb_blocks(rows, CHUNKS);
    return chunk > CHUNK_ROWS ? chunk : CHUNK_ROWS;
}

} // namespace

extern "C" size_t ptb_cuda_route_scratch(const ptb_route *a)
{
    return ptb_blocks(a->rows, chunk_rows(a->rows)) * a->experts * (sizeof(int32_t) + sizeof(float));
}

extern "C" int ptb_cuda_enqueue_route(cudaStream_t stream, const ptb_route *a, void *scratch)
{
    route_memory m = {.before = (int32_t *)scratch};
    m.chunk = chunk_rows(a->rows);
    m.chunks = ptb_blocks(a->rows, m.chunk);
    m.sums = (float *)(m.before + a->experts * m.chunks);
    double factor = ptb_route_balance_factor(a->balance, a->scale, a->rows, 0, a->experts, a->top_k);
    int error = cudaSuccess;
    if (a->rows)
        error = for_experts(a->experts, [&](auto j) -> int {
            return PTB_LAUNCH(route_rows<decltype(j)::value>, (unsigned)m.chunks, ROW_THREADS, 0, stream, *a,
                              m);
        });
    if (error == cudaSuccess)
        error = PTB_LAUNCH(route_offsets, 1, PTB_EXPERTS_MAX, 0, stream, *a, m, factor);
    if (error == cudaSuccess && a->rows)
        error = PTB_LAUNCH(route_slots, (unsigned)m.chunks, WARP, 0, stream, *a, m);
    return error;
}

extern "C" int ptb_cuda_launch_balance_loss(cudaStream_t stream, const ptb_balance_loss *a)
{
    return PTB_LAUNCH(balance_loss, 1, LOSS_THREADS, 0, stream, *a);
}

extern "C" int ptb_cuda_launch_route_gradient(cudaStream_t stream, const ptb_route_gradient *a)
{
    double factor = ptb_route_balance_factor(a->balance, a->scale, a->rows, a->counted, a->experts, a->top_k);
    unsigned grid = ptb_grid(a->rows, ROW_WARPS, 4);
    if (!a->rows)
        return cudaSuccess;
    return ptb_for_type(a->type, [&](auto type) -> int {
        using T = decltype(type);
        return for_experts(a->experts, [&](auto j) -> int {
            return PTB_LAUNCH((route_gradient<T, decltype(j)::value>), grid, ROW_THREADS, 0, stream, *a,
                              factor);
        });
    });
}
