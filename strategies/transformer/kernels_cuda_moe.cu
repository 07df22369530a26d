// Moving rows to the slots of their experts and back, on the back-end `cuda`; the router is in
// kernels_cuda_route.cu. Each element is computed alone and its choices are added in order of k.
#include "strategies/transformer/kernels_cuda_each.cuh"

namespace {

constexpr unsigned WARP = 32;

template <typename T> struct dispatch {
    ptb_dispatch a;
    template <int N> __device__ ptb_pack<T, N> load(size_t i) const
    {
        return ptb_load_pack<N>((const T *)a.in + i);
    }
    template <int N> __device__ void finish(size_t i, const ptb_pack<T, N> &p) const
    {
        size_t row = i / a.width, column = i - row * a.width;
        for (size_t k = 0; k < a.top_k; k++) {
            int slot = a.slot[row * a.top_k + k];
            if (slot >= 0)
                ptb_store_pack<N>((T *)a.out + (size_t)slot * a.width + column, p);
        }
    }
};

// What a row of dispatch_gradient or combine is made from: out[row] = base[row] + the sum over k of
// weight[row, k] * in[slot[row, k]].
template <typename T> struct gather {
    T *out;              /* [rows, width] */
    const T *base;       /* [rows, width], NULL: none; may be out */
    const T *in;         /* [slots, width] */
    const float *weight; /* [rows, top_k], NULL: 1 */
    const int32_t *slot; /* [rows, top_k] */
    size_t rows, top_k, width;
};

// blockDim.x threads take a row, N neighbours each at a time; blockDim.y rows. TOGETHER choices of a row are
// on their way at once: their slots are known before the first is asked for, and no load waits for a store. A
// choice that was dropped, or is none, is 0.
constexpr unsigned GATHER_THREADS = 256; // of a block

template <typename T, int N, int TOGETHER>
__global__ void __launch_bounds__(GATHER_THREADS, 3) gather_rows(gather<T> g)
{
    size_t row = (size_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= g.rows)
        return;
#pragma unroll 1
    for (size_t c = threadIdx.x * (size_t)N; c < g.width; c += (size_t)blockDim.x * N) {
        ptb_raw<T, N> before, choices[TOGETHER];
        float sum[N] = {0};
        before.zero();
        if (g.base)
            before.load(g.base + row * g.width + c);
#pragma unroll 1
        for (size_t first = 0; first < g.top_k; first += TOGETHER) {
            int slot[TOGETHER];
            float weight[TOGETHER];
#pragma unroll
            for (int k = 0; k < TOGETHER; k++) {
                bool any = first + k < g.top_k;
                slot[k] = any ? g.slot[row * g.top_k + first + k] : -1;
                weight[k] = any && g.weight ? g.weight[row * g.top_k + first + k] : 1;
            }
#pragma unroll
            for (int k = 0; k < TOGETHER; k++) {
                choices[k].zero();
                if (slot[k] >= 0)
                    choices[k].load(g.in + (size_t)slot[k] * g.width + c);
            }
            if (first == 0)
                before.add_to(sum, 1);
#pragma unroll
            for (int k = 0; k < TOGETHER; k++)
                choices[k].add_to(sum, slot[k] >= 0 ? weight[k] : 0);
        }
        ptb_store(g.out + row * g.width + c, sum);
    }
}

// A warp takes a row and up to CHOICES of its choices at a time: d_out is read once for all of them.
constexpr int CHOICES = 4;
constexpr unsigned GRADIENT_THREADS = 256, GRADIENT_RESIDENT = 3;

template <typename T, int N>
__global__ void __launch_bounds__(GRADIENT_THREADS, GRADIENT_RESIDENT)
    combine_gradient(ptb_combine_gradient a)
{
    unsigned lane = threadIdx.x % WARP;
    size_t warps = (size_t)gridDim.x * (blockDim.x / WARP);
    for (size_t row = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) / WARP; row < a.rows; row += warps)
        for (size_t first = 0; first < a.top_k; first += CHOICES) {
            int slot[CHOICES];
            float weight[CHOICES], dot[CHOICES] = {0};
#pragma unroll
            for (int k = 0; k < CHOICES; k++) {
                size_t choice = row * a.top_k + first + k;
                slot[k] = first + k < a.top_k ? a.slot[choice] : -1;
                weight[k] = slot[k] < 0 ? 0 : a.weight[choice];
            }
            for (size_t c = lane * (size_t)N; c < a.width; c += WARP * N) {
                ptb_pack<T, N> in[CHOICES], d_out = ptb_load_pack<N>((const T *)a.d_out + row * a.width + c);
#pragma unroll
                for (int k = 0; k < CHOICES; k++)
                    if (slot[k] >= 0)
                        in[k] = ptb_load_pack<N>((const T *)a.in + slot[k] * a.width + c);
#pragma unroll
                for (int k = 0; k < CHOICES; k++) {
                    if (slot[k] < 0)
                        continue;
                    float d_in[N];
#pragma unroll
                    for (int e = 0; e < N; e++) {
                        float d = ptb_to_f32(d_out.at[e]);
                        dot[k] += ptb_to_f32(in[k].at[e]) * d;
                        d_in[e] = weight[k] * d;
                    }
                    ptb_store((T *)a.d_in + slot[k] * a.width + c, d_in);
                }
            }
#pragma unroll
            for (int k = 0; k < CHOICES; k++) {
                if (first + k >= a.top_k) // the same for the whole warp
                    continue;
                float sum = ptb_warp_sum(dot[k]);
                if (lane == 0)
                    a.d_weight[row * a.top_k + first + k] = sum; // 0 for a dropped choice
            }
        }
}

template <typename T, int N, int TOGETHER> int launch_rows(cudaStream_t stream, const gather<T> &g)
{
    size_t packs = ptb_blocks(g.width, N), across = ptb_blocks(packs, WARP) * WARP;
    unsigned x = across < GATHER_THREADS ? (unsigned)across : GATHER_THREADS, y = GATHER_THREADS / x;
    return PTB_LAUNCH((gather_rows<T, N, TOGETHER>), (unsigned)ptb_blocks(g.rows, y), dim3(x, y), 0, stream,
                      g);
}

template <typename T, int N> int launch_choices(cudaStream_t stream, const gather<T> &g)
{
    if (g.top_k <= 2)
        return launch_rows<T, N, 2>(stream, g);
    if (g.top_k <= 4)
        return launch_rows<T, N, 4>(stream, g);
    return g.top_k <= 6 ? launch_rows<T, N, 6>(stream, g) : launch_rows<T, N, 8>(stream, g);
}

template <typename T> int launch_gather(cudaStream_t stream, const gather<T> &g)
{
    constexpr int N = ptb_width<T>;
    if (!g.rows || !g.width)
        return cudaSuccess;
    bool vector = g.width % N == 0 && ptb_aligned(16, g.out, g.base, g.in);
    return vector ? launch_choices<T, N>(stream, g) : launch_choices<T, 1>(stream, g);
}

template <typename T> int launch_combine_gradient(cudaStream_t stream, const ptb_combine_gradient *a)
{
    constexpr int N = ptb_width<T>;
    unsigned grid = ptb_grid(a->rows, GRADIENT_THREADS / WARP, GRADIENT_RESIDENT);
    if (a->width % N == 0 && ptb_aligned(16, a->d_in, a->d_out, a->in))
        return PTB_LAUNCH((combine_gradient<T, N>), grid, GRADIENT_THREADS, 0, stream, *a);
    return PTB_LAUNCH((combine_gradient<T, 1>), grid, GRADIENT_THREADS, 0, stream, *a);
}

} // namespace

extern "C" int ptb_cuda_launch_dispatch(cudaStream_t stream, const ptb_dispatch *a)
{
    return ptb_for_type(a->type, [&](auto type) -> int {
        using T = decltype(type);
        constexpr int N = ptb_width<T>;
        bool vector = a->width % N == 0 && ptb_aligned(16, a->out, a->in);
        return ptb_each_aligned<N>(stream, dispatch<T>{*a}, a->rows * a->width, vector);
    });
}

extern "C" int ptb_cuda_launch_dispatch_gradient(cudaStream_t stream, const ptb_dispatch_gradient *a)
{
    return ptb_for_type(a->type, [&](auto type) -> int {
        using T = decltype(type);
        T *d_in = (T *)a->d_in;
        return launch_gather(stream, gather<T>{d_in, a->accumulate ? d_in : nullptr, (const T *)a->d_out,
                                               nullptr, a->slot, a->rows, a->top_k, a->width});
    });
}

extern "C" int ptb_cuda_launch_combine(cudaStream_t stream, const ptb_combine *a)
{
    return ptb_for_type(a->type, [&](auto type) -> int {
        using T = decltype(type);
        return launch_gather(stream, gather<T>{(T *)a->out, (const T *)a->residual, (const T *)a->in,
                                               a->weight, a->slot, a->rows, a->top_k, a->width});
    });
}

extern "C" int ptb_cuda_launch_combine_gradient(cudaStream_t stream, const ptb_combine_gradient *a)
{
    if (!a->rows)
        return cudaSuccess;
    return ptb_for_type(a->type,
                        [&](auto type) { return launch_combine_gradient<decltype(type)>(stream, a); });
}
