// Where rows and choices of several ranks go when each has whole experts (kernels.h, ptb_expert_order), on
// the back-end `cuda`. A block of threads has elements of one source; it makes the few tables that it needs
// from the counts of all sources anew, which are small beside a launch.
#include "strategies/transformer/kernels_cuda_each.cuh"
#include "strategies/transformer/route.h"

namespace {

constexpr unsigned WARP = 32, THREADS = 256;
constexpr size_t BLOCKS = 256; // of a source, at most: further elements come in turns

__device__ int taken(const ptb_expert_order &a, size_t source, size_t expert)
{
    return ptb_route_taken(a.counts[source * a.stride + expert], a.capacity);
}

// blockIdx.y is the source.
__global__ void __launch_bounds__(THREADS) expert_order(ptb_expert_order a)
{
    __shared__ int32_t start[PTB_EXPERTS_MAX + 1]; // of each expert in the source's order
    __shared__ int32_t place[PTB_EXPERTS_MAX + 1]; // of each of this rank's experts in its order, all sources
    __shared__ int32_t before[PTB_EXPERTS_MAX];    // of each of this rank's experts: rows of earlier sources
    __shared__ int earlier;                        // rows of all earlier sources
    size_t source = blockIdx.y;
    unsigned warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    for (size_t e = threadIdx.x; e < a.experts; e += THREADS)
        start[e] = taken(a, source, e);
    for (size_t e = threadIdx.x; e < a.local; e += THREADS) {
        int all = 0, some = 0;
        for (size_t s = 0; s < a.sources; s++) {
            int rows = taken(a, s, a.first + e);
            all += rows;
            some += s < source ? rows : 0;
        }
        place[e] = all;
        before[e] = some;
    }
    __syncthreads();
    if (warp == 0) {
        int total = ptb_warp_scan(start, a.experts);
        if (lane == 0)
            start[a.experts] = total;
    } else if (warp == 1) {
        int total = ptb_warp_scan(place, a.local);
        if (lane == 0)
            place[a.local] = total;
    } else if (warp == 2) {
        int sum = 0;
        for (size_t e = lane; e < a.local; e += WARP)
            sum += before[e];
        sum = ptb_warp_sum(sum);
        if (lane == 0)
            earlier = sum;
    }
    __syncthreads();
    for (size_t e = threadIdx.x; blockIdx.x == 0 && source == 0 && e <= a.local; e += THREADS)
        a.offsets[e] = place[e];
    size_t first = a.block ? source * a.block : (size_t)earlier;
    size_t count = a.block ? a.block : (size_t)start[a.experts];
    for (size_t i = blockIdx.x * (size_t)THREADS + threadIdx.x; i < count; i += gridDim.x * (size_t)THREADS) {
        int at = a.slot ? a.slot[source * a.stride + i] : (int)i, to = -1;
        if (a.weight)
            a.weights[first + i] = a.weight[source * a.stride + i];
        if (at >= 0 && at < start[a.experts]) {
            size_t low = 0, high = a.experts; // the last expert that begins at or before `at`
            while (high - low > 1) {
                size_t middle = low + (high - low) / 2;
                if (start[middle] <= at)
                    low = middle;
                else
                    high = middle;
            }
            if (low >= a.first && low < a.first + a.local)
                to = place[low - a.first] + before[low - a.first] + at - start[low];
        }
        a.place[first + i] = to;
    }
}

} // namespace

extern "C" int ptb_cuda_launch_expert_order(cudaStream_t stream, const ptb_expert_order *a)
{
    size_t most = a->block ? a->block : a->elements, blocks = ptb_blocks(most, (size_t)THREADS);
    blocks = blocks < 1 ? 1 : blocks > BLOCKS ? BLOCKS : blocks; // without elements there are offsets still
    dim3 grid((unsigned)blocks, (unsigned)a->sources);
    return PTB_LAUNCH(expert_order, grid, THREADS, 0, stream, *a);
}
