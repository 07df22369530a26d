// What the kernels of norms share (kernels_cuda_norm.cu, kernels_cuda_norm_small.cu): rows held in registers.
#ifndef PTB_STRATEGIES_TRANSFORMER_KERNELS_CUDA_NORM_CUH
#define PTB_STRATEGIES_TRANSFORMER_KERNELS_CUDA_NORM_CUH

#include "strategies/transformer/kernels_cuda.cuh"

extern "C" {

// Whether kernels_cuda_norm_small.cu takes this gradient; it needs as much scratch as kernels_cuda_norm.cu
// gives. A cudaError_t.
bool ptb_cuda_is_small_norm(const ptb_norm_gradient *a);
int ptb_cuda_launch_small_norm_gradient(struct CUstream_st *stream, const ptb_norm_gradient *a,
                                        void *scratch);
}

namespace {

constexpr unsigned WARP = 32;

// ---- rows in registers: blockDim.x threads hold a row, in V packs of N each; blockDim.y rows at a time

template <int N> __device__ __forceinline__ size_t column_of(int v)
{
    return ((size_t)v * blockDim.x + threadIdx.x) * N;
}

// A pack as it is in memory: numbers of 16 bits stay two in a register until they are used.
template <int V> struct raw_packs {
    uint4 at[V];
};

// Zeros beyond the last column and the last row.
template <int N, int V, typename T>
__device__ __forceinline__ void load_row(raw_packs<V> &out, const T *from /* [rows, width] */, size_t row,
                                         size_t rows, size_t width)
{
#pragma unroll
    for (int v = 0; v < V; v++) {
        size_t c = column_of<N>(v);
        out.at[v] = make_uint4(0, 0, 0, 0);
        if (row < rows && c < width)
            out.at[v] = *(const uint4 *)(from + row * width + c);
    }
}

// d_in of a row, from what is in registers of it: d_out, in, the gain and the residual (zeros: none).
struct row_statistics {
    float mean, rstd;
};
struct row_means { // over the row: of d_out * gain (0 for RMSNorm), and of d_out * gain * normalised in
    float d, dx;
};
template <typename T, int N, int V>
__device__ __forceinline__ void
store_row_gradient(const ptb_norm_gradient &a, size_t row, const raw_packs<V> &d, const raw_packs<V> &x,
                   const raw_packs<V> &gain, const raw_packs<V> &r, row_statistics of, row_means means)
{
#pragma unroll
    for (int v = 0; v < V; v++) {
        float d_v[N], x_v[N], gain_v[N], r_v[N];
        ptb_widen<T>(d_v, d.at[v]);
        ptb_widen<T>(x_v, x.at[v]);
        ptb_widen<T>(gain_v, gain.at[v]);
        ptb_widen<T>(r_v, r.at[v]);
#pragma unroll
        for (int e = 0; e < N; e++)
            d_v[e] =
                of.rstd * (d_v[e] * gain_v[e] - means.d - (x_v[e] - of.mean) * of.rstd * means.dx) + r_v[e];
        if (column_of<N>(v) < a.width)
            ptb_store_numbers((T *)a.d_in + row * a.width + column_of<N>(v), d_v);
    }
}

// Sums over the threads of a row, of M values at once. Calls alternate between the two halves of shared, so
// that one barrier a call is enough.
template <int M> struct row_sums {
    float shared[2][WARP][M];
};
template <int M>
__device__ __forceinline__ void sum_row(float (&values)[M], row_sums<M> &sums, unsigned &turn)
{
#pragma unroll
    for (int m = 0; m < M; m++)
        values[m] = ptb_warp_sum(values[m]);
    unsigned warps = blockDim.x / WARP, lane = threadIdx.x % WARP, first = threadIdx.y * warps;
    if (warps == 1)
        return;
    float(*shared)[M] = sums.shared[turn];
    turn ^= 1;
    if (lane == 0)
#pragma unroll
        for (int m = 0; m < M; m++)
            shared[first + threadIdx.x / WARP][m] = values[m];
    __syncthreads();
#pragma unroll
    for (int m = 0; m < M; m++)
        values[m] = ptb_warp_sum(lane < warps ? shared[first + lane][m] : 0);
}

// ---- the host's side

inline unsigned whole_warps(size_t threads)
{
    return (unsigned)ptb_blocks(threads, WARP) * WARP;
}

// Threads of a row, and packs that each holds: 0 when the row does not fit.
struct row_shape {
    unsigned lanes;
    int packs;
};

// Of 1 to `most` packs a thread the number that leaves the fewest idle; among equals the largest (fewer
// threads to sum over).
inline row_shape fit_row(size_t packs, int most, unsigned threads)
{
    row_shape best = {0, 0};
    for (int v = 1; v <= most; v++) {
        unsigned lanes = whole_warps(ptb_blocks(packs, v));
        if (lanes <= threads && (!best.packs || lanes * v <= best.lanes * best.packs))
            best = {lanes, v};
    }
    return best;
}

// f(v) with v, one of V, as a constant
template <int... V, typename F> int for_packs(int v, F f)
{
    int error = cudaErrorInvalidValue;
    ((v == V ? (void)(error = f(ptb_constant<V>())) : (void)0), ...);
    return error;
}

} // namespace

#endif
