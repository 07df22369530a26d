// The gradient of a norm whose arrays the second-level cache holds, in one launch. Sums over columns by the
// blocks that have the rows are many, each as wide as a row, and adding them up takes as long as all the
// rest. Here other blocks make them: they read the arrays once more, which costs little from that cache, a
// stripe of columns and a slice of the rows each, so that few numbers are left to add for the block that
// finishes a stripe's last slice. It adds them in order: results do not depend on who was last.
#include "strategies/transformer/kernels_cuda_norm.cuh"

namespace {

constexpr unsigned THREADS = 256;                       // of a block, at most
constexpr int MOST_PACKS = 3;                           // of a row that a thread holds
constexpr unsigned STRIPE = 4;                          // packs across
constexpr unsigned ROW_LANES = THREADS / STRIPE;        // down
constexpr int TOGETHER = 2;                             // rows of a thread on their way at once
constexpr size_t SLICE_ROWS = 4 * TOGETHER * ROW_LANES; // least rows of a slice
constexpr unsigned MOST_SLICES = 32;

struct column_work {
    float *partial;    /* [slices, 2, width] */
    unsigned *arrived; /* [stripes]: finished slices; zero between launches */
    unsigned stripes, slices;
};

// One row of a group of threads: d = d_out * gain and x = (in - mean) * rstd make d_in = rstd * (d - mean of
// d - x
// * mean of (d * x)) (+ residual).
template <typename T, int N, int V>
__device__ __forceinline__ void make_row(const ptb_norm_gradient &a, size_t row, row_sums<2> &shared)
{
    unsigned turn = 0;
    float sums[2] = {0, 0}, inverse = 1 / (float)a.width;
    raw_packs<V> gain, d, x, r;
    load_row<N>(d, (const T *)a.d_out, row, a.rows, a.width);
    load_row<N>(x, (const T *)a.in, row, a.rows, a.width);
    load_row<N>(r, (const T *)a.residual, row, a.residual ? a.rows : 0, a.width);
    load_row<N>(gain, (const T *)a.gain, 0, 1, a.width);
    float mean = a.mean && row < a.rows ? a.mean[row] : 0, rstd = row < a.rows ? a.rstd[row] : 0;
#pragma unroll
    for (int v = 0; v < V; v++) {
        float d_v[N], x_v[N], gain_v[N];
        ptb_widen<T>(d_v, d.at[v]);
        ptb_widen<T>(x_v, x.at[v]);
        ptb_widen<T>(gain_v, gain.at[v]);
#pragma unroll
        for (int e = 0; e < N; e++) {
            sums[0] += d_v[e] * gain_v[e];
            sums[1] += d_v[e] * gain_v[e] * ((x_v[e] - mean) * rstd);
        }
    }
    sum_row(sums, shared, turn);
    if (row >= a.rows)
        return;
    load_row<N>(gain, (const T *)a.gain, 0, 1, a.width); // again: registers are short, and it is near
    store_row_gradient<T, N>(a, row, d, x, gain, r, {mean, rstd},
                             {a.mean ? sums[0] * inverse : 0, sums[1] * inverse});
}

// One thread's sums for its pack of columns: over rows first, first + ROW_LANES, ... before end.
template <typename T, int N>
__device__ __forceinline__ void sum_pack(const ptb_norm_gradient &a, size_t first, size_t end, size_t column,
                                         float (&gain)[N], float (&bias)[N])
{
    for (; first < end; first += TOGETHER * ROW_LANES) {
        uint4 d[TOGETHER], x[TOGETHER];
        float mean[TOGETHER], rstd[TOGETHER];
#pragma unroll
        for (int t = 0; t < TOGETHER; t++) {
            size_t row = first + t * ROW_LANES;
            d[t] = x[t] = make_uint4(0, 0, 0, 0);
            mean[t] = rstd[t] = 0;
            if (row >= end || column >= a.width)
                continue;
            d[t] = *(const uint4 *)((const T *)a.d_out + row * a.width + column);
            x[t] = *(const uint4 *)((const T *)a.in + row * a.width + column);
            mean[t] = a.mean ? a.mean[row] : 0;
            rstd[t] = a.rstd[row];
        }
#pragma unroll
        for (int t = 0; t < TOGETHER; t++) {
            float d_t[N], x_t[N];
            ptb_widen<T>(d_t, d[t]);
            ptb_widen<T>(x_t, x[t]);
#pragma unroll
            for (int e = 0; e < N; e++) {
                gain[e] += d_t[e] * ((x_t[e] - mean[t]) * rstd[t]);
                bias[e] += d_t[e];
            }
        }
    }
}

// The sums of the lanes of a warp that have the same columns, in all of them.
template <int N> __device__ __forceinline__ void sum_lanes(float (&sums)[N])
{
#pragma unroll
    for (int e = 0; e < N; e++)
#pragma unroll
        for (unsigned distance = STRIPE; distance < WARP; distance *= 2)
            sums[e] += __shfl_xor_sync(0xffffffffu, sums[e], distance);
}

// A stripe of columns over a slice of rows; who finishes the stripe adds up.
template <typename T, int N>
__device__ void sum_columns(const ptb_norm_gradient &a, const column_work &work, unsigned stripe,
                            unsigned slice, float *shared /* [warps, 2, STRIPE * N] */)
{
    __shared__ bool is_last;
    constexpr unsigned COLUMNS = STRIPE * N, WARPS = THREADS / WARP;
    unsigned thread = threadIdx.y * blockDim.x + threadIdx.x, pack = thread % STRIPE;
    size_t each = (a.rows + work.slices - 1) / work.slices, first = slice * each;
    size_t end = first + each < a.rows ? first + each : a.rows, column = (stripe * STRIPE + pack) * (size_t)N;
    float gain[N] = {0}, bias[N] = {0};
    sum_pack<T, N>(a, first + thread / STRIPE, end, column, gain, bias);
    sum_lanes(gain);
    sum_lanes(bias);
    if (thread % WARP < STRIPE) {
        float *to = shared + thread / WARP * 2 * COLUMNS + pack * N;
#pragma unroll
        for (int e = 0; e < N; e++)
            to[e] = gain[e], to[COLUMNS + e] = bias[e];
    }
    __syncthreads();
    bool is_bias = thread >= COLUMNS;
    size_t mine = stripe * (size_t)COLUMNS + thread % COLUMNS; // the column that this thread finishes
    bool live = thread < 2 * COLUMNS && mine < a.width && (!is_bias || a.d_bias);
    float *out = is_bias ? a.d_bias : a.d_gain, sum = 0;
    float *partial = work.partial + is_bias * a.width + mine;
    if (live) {
        for (unsigned w = 0; w < WARPS; w++)
            sum += shared[w * 2 * COLUMNS + thread];
        partial[2 * slice * a.width] = sum;
    }
    if (work.slices > 1) {
        __threadfence(); // what this thread has stored, before the slice counts as finished
        __syncthreads();
        if (thread == 0) {
            is_last = atomicAdd(work.arrived + stripe, 1u) + 1 == work.slices;
            if (is_last)
                work.arrived[stripe] = 0;
            __threadfence();
        }
        __syncthreads();
        if (!is_last)
            return;
    }
    if (!live)
        return;
    if (work.slices > 1) {
        sum = 0;
#pragma unroll 8
        for (unsigned s = 0; s < work.slices; s++)
            sum += __ldcg(partial + 2 * s * a.width); // past the first-level cache
    }
    out[mine] = a.accumulate ? out[mine] + sum : sum;
}

// Blocks of columns first, since they take longest; then blockDim.y rows a block, of blockDim.x threads each.
template <typename T, int N, int V>
__global__ void __launch_bounds__(THREADS, V > 2 ? 3 : 4)
    norm_gradient_small(ptb_norm_gradient a, column_work work)
{
    __shared__ union {
        row_sums<2> rows;
        float columns[THREADS / WARP * 2 * STRIPE * N];
    } shared;
    unsigned blocks = work.stripes * work.slices;
    if (blockIdx.x < blocks)
        sum_columns<T, N>(a, work, blockIdx.x % work.stripes, blockIdx.x / work.stripes, shared.columns);
    else
        make_row<T, N, V>(a, (size_t)(blockIdx.x - blocks) * blockDim.y + threadIdx.y, shared.rows);
}

// ---- the host's side

// Threads and packs of a row such that a block has exactly THREADS threads; packs 0: there are none.
row_shape fit_small(size_t width, int per_pack)
{
    row_shape best = {0, 0};
    for (int v = 1; v <= MOST_PACKS; v++)
        for (unsigned lanes = WARP; lanes <= THREADS; lanes *= 2)
            if ((size_t)lanes * v * per_pack >= width &&
                (!best.packs || lanes * v <= best.lanes * best.packs))
                best = {lanes, v};
    return best;
}

int per_pack(ptb_dtype type)
{
    return 16 / (int)ptb_dtype_size(type);
}

template <typename T> int launch(cudaStream_t stream, const ptb_norm_gradient *a, void *scratch)
{
    constexpr int N = ptb_width<T>;
    row_shape shape = fit_small(a->width, N);
    column_work work = {.partial = (float *)scratch, .arrived = ptb_cuda_counters(scratch)};
    work.stripes = (unsigned)ptb_blocks(a->width, STRIPE * N);
    size_t slices = ptb_blocks(a->rows, SLICE_ROWS);
    work.slices = slices < MOST_SLICES ? (unsigned)slices : MOST_SLICES;
    unsigned rows = THREADS / shape.lanes;
    size_t blocks = work.stripes * work.slices + ptb_blocks(a->rows, rows);
    return for_packs<1, 2, 3>(shape.packs, [&](auto v) -> int {
        constexpr int V = decltype(v)::value;
        return PTB_LAUNCH((norm_gradient_small<T, N, V>), (unsigned)blocks, dim3(shape.lanes, rows), 0,
                          stream, *a, work);
    });
}

} // namespace

extern "C" bool ptb_cuda_is_small_norm(const ptb_norm_gradient *a)
{
    int device = 0, cache = 0, each = per_pack(a->type);
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, device) != cudaSuccess)
        return false;
    size_t arrays = a->residual && a->residual != a->d_in ? 4 : 3;
    return a->d_in != a->d_out && a->width % each == 0 && fit_small(a->width, each).packs &&
           ptb_aligned(16, a->d_in, a->d_out, a->in, a->gain, a->residual) &&
           arrays * a->rows * a->width * ptb_dtype_size(a->type) <= (size_t)cache / 4 * 3;
}

extern "C" int ptb_cuda_launch_small_norm_gradient(cudaStream_t stream, const ptb_norm_gradient *a,
                                                   void *scratch)
{
    return ptb_for_type(a->type, [&](auto type) { return launch<decltype(type)>(stream, a, scratch); });
}
