// The kernel that all elementwise kernels of the back-end `cuda` are: what is done with N neighbouring
// elements is a functor, everything else is here. To add one: a struct with
//   template <int N> PACKS load(size_t i)                         reads what N elements from i on need
//   template <int N> void finish(size_t i, PACKS packs)           computes and writes them
// (const, __device__), and a launcher that calls ptb_each. Loads of several packs come before the first
// store, so that enough bytes are on their way; outputs may therefore be inputs of the same elements.
#ifndef PTB_STRATEGIES_TRANSFORMER_KERNELS_CUDA_EACH_CUH
#define PTB_STRATEGIES_TRANSFORMER_KERNELS_CUDA_EACH_CUH

#include "strategies/transformer/kernels_cuda.cuh"

constexpr int PTB_EACH_THREADS = 256;
constexpr int PTB_EACH_PACKS = 2; // of a thread

// Elements [0, count), N in a pack; those behind the last whole pack are taken one by one.
template <int N, typename F>
__global__ void __launch_bounds__(PTB_EACH_THREADS) ptb_each_kernel(F f, size_t count)
{
    constexpr size_t stride = (size_t)PTB_EACH_THREADS * N;
    size_t first = blockIdx.x * stride * PTB_EACH_PACKS + threadIdx.x * (size_t)N;
    decltype(f.template load<N>(0)) packs[PTB_EACH_PACKS];
#pragma unroll
    for (int p = 0; p < PTB_EACH_PACKS; p++)
        if (first + p * stride + N <= count)
            packs[p] = f.template load<N>(first + p * stride);
#pragma unroll
    for (int p = 0; p < PTB_EACH_PACKS; p++)
        if (first + p * stride + N <= count)
            f.template finish<N>(first + p * stride, packs[p]);
    size_t rest = count - count % N + threadIdx.x;
    if (N > 1 && blockIdx.x == gridDim.x - 1 && rest < count)
        f.template finish<1>(rest, f.template load<1>(rest));
}

template <int N, typename F> static int ptb_each(cudaStream_t stream, const F &f, size_t count)
{
    if (count == 0)
        return cudaSuccess;
    size_t blocks = ptb_blocks(count, (size_t)PTB_EACH_THREADS * N * PTB_EACH_PACKS);
    return PTB_LAUNCH((ptb_each_kernel<N, F>), (unsigned)blocks, PTB_EACH_THREADS, 0, stream, f, count);
}

// N where `vector` says that packs of N are aligned (and do not cross rows), else 1.
template <int N, typename F>
static int ptb_each_aligned(cudaStream_t stream, const F &f, size_t count, bool vector)
{
    return vector ? ptb_each<N>(stream, f, count) : ptb_each<1>(stream, f, count);
}

// ---- what several of them compute

// 2^x and 1 / x to about one unit in the last place of f32, subnormal results as 0: one instruction each.
static __device__ __forceinline__ float ptb_fast_exp2(float x)
{
#ifdef PTB_SIM
    return exp2f(x);
#else
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

static __device__ __forceinline__ float ptb_fast_inverse(float x)
{
#ifdef PTB_SIM
    return 1 / x;
#else
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

#endif
