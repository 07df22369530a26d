// Optimizer kernels of the back-end `cuda`: sum of squares for the global norm, what an update needs that
// depends on data (clipping, loss scale, bias corrections), AdamW and SGD. All but the second are bound by
// memory: each value is read and written once.
#include "strategies/transformer/kernels_cuda_each.cuh"

namespace {

// ---- sum of squares: each block sums its part of the values, one block then sums the blocks' results, all
// in an order that only depends on the count and the device

constexpr int SUM_THREADS = 256, SUM_WIDTH = 4, SUM_PACKS = 4;
constexpr unsigned SUM_BLOCKS = 4096, SUM_RESIDENT = 8; // most; of a multiprocessor

__device__ __forceinline__ double square(float x)
{
    return (double)x * (double)x;
}

template <int N> __device__ __forceinline__ double squares_of(const ptb_pack<float, N> &p)
{
    double sum = 0;
#pragma unroll
    for (int e = 0; e < N; e++)
        sum += square(p.at[e]);
    return sum;
}

template <int N>
__global__ void __launch_bounds__(SUM_THREADS)
    sum_squares_parts(double *parts, const float *values /* [count] */, size_t count)
{
    __shared__ double shared[32];
    size_t step = (size_t)gridDim.x * SUM_THREADS * N;
    size_t i = (blockIdx.x * (size_t)SUM_THREADS + threadIdx.x) * N;
    double sum = 0;
    for (; i + (SUM_PACKS - 1) * step + N <= count; i += SUM_PACKS * step) {
        ptb_pack<float, N> packs[SUM_PACKS];
#pragma unroll
        for (int p = 0; p < SUM_PACKS; p++)
            packs[p] = ptb_load_pack<N>(values + i + p * step);
#pragma unroll
        for (int p = 0; p < SUM_PACKS; p++)
            sum += squares_of(packs[p]);
    }
    for (; i + N <= count; i += step)
        sum += squares_of(ptb_load_pack<N>(values + i));
    for (; i < count; i++) // of the one thread whose pack is cut
        sum += square(values[i]);
    sum = ptb_block_sum(sum, shared);
    if (threadIdx.x == 0)
        parts[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(SUM_THREADS)
    sum_parts(double *out, const double *parts, unsigned count, bool accumulate)
{
    __shared__ double shared[32];
    double sum = 0;
    for (unsigned i = threadIdx.x; i < count; i += SUM_THREADS)
        sum += parts[i];
    sum = ptb_block_sum(sum, shared);
    if (threadIdx.x == 0)
        *out = sum + (accumulate ? *out : 0);
}

// ---- what an update needs

__global__ void update_begin(ptb_update_begin a)
{
    const float loss_scale_most = 0x1p24f;
    ptb_update *u = a.update;
    double norm = a.sum_squares ? sqrt(*a.sum_squares) / (double)u->loss_scale : (double)NAN;
    u->norm = norm;
    u->factor = 1 / u->loss_scale;
    u->skip = a.dynamic && !isfinite(norm);
    if (u->skip) {
        u->skipped++;
        u->good = 0;
        u->loss_scale = fmaxf(1, u->loss_scale / 2);
        return;
    }
    if (a.clip > 0 && norm > a.clip)
        u->factor *= (float)(a.clip / norm);
    u->applied++;
    u->beta1_power = pow(a.beta1, (double)u->applied);
    u->beta2_power = pow(a.beta2, (double)u->applied);
    if (a.dynamic && ++u->good == a.growth_interval) {
        u->good = 0;
        u->loss_scale = fminf(loss_scale_most, u->loss_scale * 2);
    }
}

// ---- updates; T: type of the rounded parameters

template <typename T> struct adamw {
    ptb_adamw a; // arrays [count]
    template <int N> struct packs {
        ptb_pack<float, N> p, g, m, v;
    };
    template <int N> __device__ packs<N> load(size_t i) const
    {
        packs<N> x;
        x.p = ptb_load_pack<N>(a.parameter + i);
        x.g = ptb_load_pack<N>(a.gradient + i);
        x.m = ptb_load_pack<N>(a.m + i);
        x.v = ptb_load_pack<N>(a.v + i);
        return x;
    }
    template <int N> __device__ void finish(size_t i, packs<N> x) const
    {
        if (a.update->skip)
            return;
        float factor = a.update->factor, rate = a.update->rate, keep = 1 - rate * a.decay, rounded[N];
        float scale = __fdividef(rate, (float)(1 - a.update->beta1_power));
        float root = __fdividef(1, (float)(1 - a.update->beta2_power));
#pragma unroll
        for (int e = 0; e < N; e++) {
            float g = factor * x.g.at[e];
            x.m.at[e] = a.beta1 * x.m.at[e] + (1 - a.beta1) * g;
            x.v.at[e] = a.beta2 * x.v.at[e] + (1 - a.beta2) * g * g;
            float change = __fdividef(scale * x.m.at[e], sqrtf(x.v.at[e] * root) + a.epsilon);
            x.p.at[e] = keep * x.p.at[e] - change;
            rounded[e] = x.p.at[e];
        }
        ptb_store_pack<N>(a.m + i, x.m);
        ptb_store_pack<N>(a.v + i, x.v);
        ptb_store_pack<N>(a.parameter + i, x.p);
        if (a.rounded)
            ptb_store((T *)a.rounded + i, rounded);
    }
};

template <typename T, bool momentum> struct sgd {
    ptb_sgd a; // arrays [count]
    template <int N> struct packs {
        ptb_pack<float, N> p, g, m;
    };
    template <int N> __device__ packs<N> load(size_t i) const
    {
        packs<N> x;
        x.p = ptb_load_pack<N>(a.parameter + i);
        x.g = ptb_load_pack<N>(a.gradient + i);
        if constexpr (momentum)
            x.m = ptb_load_pack<N>(a.m + i);
        return x;
    }
    template <int N> __device__ void finish(size_t i, packs<N> x) const
    {
        if (a.update->skip)
            return;
        float factor = a.update->factor, rounded[N];
#pragma unroll
        for (int e = 0; e < N; e++) {
            float g = factor * x.g.at[e] + a.decay * x.p.at[e];
            if constexpr (momentum)
                x.m.at[e] = g += a.momentum * x.m.at[e];
            rounded[e] = x.p.at[e] -= a.update->rate * g;
        }
        if constexpr (momentum)
            ptb_store_pack<N>(a.m + i, x.m);
        ptb_store_pack<N>(a.parameter + i, x.p);
        if (a.rounded)
            ptb_store((T *)a.rounded + i, rounded);
    }
};

} // namespace

size_t ptb_cuda_sum_squares_scratch(const ptb_sum_squares *a)
{
    (void)a;
    return SUM_BLOCKS * sizeof(double);
}

extern "C" int ptb_cuda_enqueue_sum_squares(cudaStream_t stream, const ptb_sum_squares *a, void *scratch)
{
    double *parts = (double *)scratch;
    unsigned blocks = ptb_grid(a->count, SUM_THREADS * SUM_WIDTH * SUM_PACKS, SUM_RESIDENT);
    blocks = blocks < SUM_BLOCKS ? blocks : SUM_BLOCKS;
    int error = ptb_aligned(16, a->values) ? PTB_LAUNCH((sum_squares_parts<SUM_WIDTH>), blocks, SUM_THREADS,
                                                        0, stream, parts, a->values, a->count)
                                           : PTB_LAUNCH((sum_squares_parts<1>), blocks, SUM_THREADS, 0,
                                                        stream, parts, a->values, a->count);
    if (error != cudaSuccess)
        return error;
    return PTB_LAUNCH(sum_parts, 1, SUM_THREADS, 0, stream, a->sum, parts, blocks, a->accumulate);
}

extern "C" int ptb_cuda_launch_update_begin(cudaStream_t stream, const ptb_update_begin *a)
{
    return PTB_LAUNCH(update_begin, 1, 1, 0, stream, *a);
}

extern "C" int ptb_cuda_launch_adamw(cudaStream_t stream, const ptb_adamw *a)
{
    return ptb_for_type(a->type, [&](auto type) -> int {
        using T = decltype(type);
        constexpr int N = ptb_width<float>;
        bool aligned =
            ptb_aligned(16, a->parameter, a->m, a->v, a->gradient) && ptb_aligned(N * sizeof(T), a->rounded);
        return ptb_each_aligned<N>(stream, adamw<T>{*a}, a->count, aligned);
    });
}

extern "C" int ptb_cuda_launch_sgd(cudaStream_t stream, const ptb_sgd *a)
{
    return ptb_for_type(a->type, [&](auto type) -> int {
        using T = decltype(type);
        constexpr int N = ptb_width<float>;
        bool aligned =
            ptb_aligned(16, a->parameter, a->m, a->gradient) && ptb_aligned(N * sizeof(T), a->rounded);
        if (a->m)
            return ptb_each_aligned<N>(stream, sgd<T, true>{*a}, a->count, aligned);
        return ptb_each_aligned<N>(stream, sgd<T, false>{*a}, a->count, aligned);
    });
}
