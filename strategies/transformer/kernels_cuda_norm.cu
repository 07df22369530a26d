// LayerNorm and RMSNorm of the back-end `cuda`. A row is held by a group of whole warps, in registers, so
// that memory is read once; the row that the group takes next is on its way meanwhile. The gradient sums
// d_gain and d_bias over the rows of a group in registers and over the groups of a block in shared memory; a
// second kernel adds the blocks' sums in order. Rows that are too wide, or not made of 16-byte packs, take
// kernels that read them from memory (the caches, mostly) again. A gradient whose arrays the second-level
// cache holds goes another way (kernels_cuda_norm_small.cu).
#include "strategies/transformer/kernels_cuda_norm.cuh"

namespace {

constexpr unsigned FORWARD_THREADS = 512;      // most of a block
constexpr unsigned forward_resident(int packs) // blocks of as many threads that fit a multiprocessor
{
    return packs > 2 ? 1 : 2;
}
constexpr unsigned gradient_threads(int packs) // most of a block, which has a multiprocessor for itself
{
    return packs > 1 ? 512 : 768;
}
constexpr unsigned WIDE_THREADS = 512;
constexpr size_t PARTIAL_BYTES = 16 << 20; // most scratch of the gradient
constexpr size_t BLOCK_ROWS = 8;           // least rows of a group or slice in the gradient
constexpr int MERGE_COLUMNS = 32, MERGE_PARTS = 16;

template <typename T, int N, int V>
__global__ void __launch_bounds__(FORWARD_THREADS, forward_resident(V)) norm_rows(ptb_norm a)
{
    __shared__ row_sums<1> shared;
    unsigned turn = 0;
    const T *in = (const T *)a.in, *gain = (const T *)a.gain, *bias = (const T *)a.bias;
    size_t step = (size_t)gridDim.x * blockDim.y, first = (size_t)blockIdx.x * blockDim.y;
    raw_packs<V> next, g, b;
    load_row<N>(next, in, first + threadIdx.y, a.rows, a.width);
    for (; first < a.rows; first += step) {
        size_t row = first + threadIdx.y;
        float x[V][N], mean = 0, sum[1] = {0};
#pragma unroll
        for (int v = 0; v < V; v++) {
            ptb_widen<T>(x[v], next.at[v]);
#pragma unroll
            for (int e = 0; e < N; e++)
                sum[0] += x[v][e];
        }
        load_row<N>(next, in, row + step, a.rows, a.width);
        if (a.mean) {
            sum_row(sum, shared, turn);
            mean = sum[0] / (float)a.width;
        }
        sum[0] = 0;
#pragma unroll
        for (int v = 0; v < V; v++)
#pragma unroll
            for (int e = 0; e < N; e++) {
                x[v][e] -= mean;
                sum[0] += column_of<N>(v) < a.width ? x[v][e] * x[v][e] : 0;
            }
        load_row<N>(g, gain, 0, 1, a.width); // from the first-level cache, while the sum is made
        load_row<N>(b, bias, 0, bias ? 1 : 0, a.width);
        sum_row(sum, shared, turn);
        float rstd = 1 / sqrtf(sum[0] / (float)a.width + a.epsilon);
        if (row >= a.rows)
            continue;
        if (threadIdx.x == 0) {
            a.rstd[row] = rstd;
            if (a.mean)
                a.mean[row] = mean;
        }
#pragma unroll
        for (int v = 0; v < V; v++) {
            float g_v[N], b_v[N];
            ptb_widen<T>(g_v, g.at[v]);
            ptb_widen<T>(b_v, b.at[v]);
#pragma unroll
            for (int e = 0; e < N; e++)
                x[v][e] = x[v][e] * rstd * g_v[e] + b_v[e];
            if (column_of<N>(v) < a.width)
                ptb_store_numbers((T *)a.out + row * a.width + column_of<N>(v), x[v]);
        }
    }
}

// What a block has summed for one pack of columns, [groups] in shared memory, goes to its row of partial.
template <int N, int V>
__device__ __forceinline__ void store_partial(float *partial /* [width] */, const float (&sums)[V][N],
                                              float *shared, size_t width)
{
    if (blockDim.y == 1) {
#pragma unroll
        for (int v = 0; v < V; v++)
            if (column_of<N>(v) < width)
                ptb_store(partial + column_of<N>(v), sums[v]);
        return;
    }
    __syncthreads(); // shared was used before
#pragma unroll
    for (int v = 0; v < V; v++)
        if (column_of<N>(v) < width)
            ptb_store(shared + threadIdx.y * width + column_of<N>(v), sums[v]);
    __syncthreads();
    for (size_t c = threadIdx.y * blockDim.x + threadIdx.x; c < width; c += blockDim.x * blockDim.y) {
        float sum = 0;
        for (unsigned g = 0; g < blockDim.y; g++)
            sum += shared[g * width + c];
        partial[c] = sum;
    }
}

// With d = d_out * gain and x = (in - mean) * rstd: d_in = rstd * (d - mean of d - x * mean of (d * x)).
template <typename T, int N, int V>
__global__ void __launch_bounds__(gradient_threads(V), 1)
    norm_gradient_rows(ptb_norm_gradient a, float *partial /* [blocks, 2, width] */)
{
    __shared__ row_sums<2> shared;
    PTB_DYNAMIC_SHARED(float, columns); /* [groups, width] */
    unsigned turn = 0;
    const T *in = (const T *)a.in, *d_out = (const T *)a.d_out, *residual = (const T *)a.residual;
    size_t step = (size_t)gridDim.x * blockDim.y, first = (size_t)blockIdx.x * blockDim.y;
    size_t row = first + threadIdx.y;
    raw_packs<V> gain, next_d, next_x;
    float gain_sum[V][N] = {{0}}, bias_sum[V][N] = {{0}}, inverse = 1 / (float)a.width;
    load_row<N>(gain, (const T *)a.gain, 0, 1, a.width);
    load_row<N>(next_d, d_out, row, a.rows, a.width);
    load_row<N>(next_x, in, row, a.rows, a.width);
    float next_mean = a.mean && row < a.rows ? a.mean[row] : 0, next_rstd = row < a.rows ? a.rstd[row] : 0;
    for (; first < a.rows; first += step, row += step) {
        raw_packs<V> d = next_d, x = next_x, r;
        float mean = next_mean, rstd = next_rstd, sums[2] = {0, 0};
        load_row<N>(r, residual, row, residual ? a.rows : 0, a.width);
        load_row<N>(next_d, d_out, row + step, a.rows, a.width);
        load_row<N>(next_x, in, row + step, a.rows, a.width);
        next_mean = a.mean && row + step < a.rows ? a.mean[row + step] : 0;
        next_rstd = row + step < a.rows ? a.rstd[row + step] : 0;
#pragma unroll
        for (int v = 0; v < V; v++) {
            float d_v[N], x_v[N], gain_v[N];
            ptb_widen<T>(d_v, d.at[v]);
            ptb_widen<T>(x_v, x.at[v]);
            ptb_widen<T>(gain_v, gain.at[v]);
#pragma unroll
            for (int e = 0; e < N; e++) {
                float x_e = (x_v[e] - mean) * rstd;
                gain_sum[v][e] += d_v[e] * x_e;
                bias_sum[v][e] += d_v[e];
                sums[0] += d_v[e] * gain_v[e];
                sums[1] += d_v[e] * gain_v[e] * x_e;
            }
        }
        sum_row(sums, shared, turn);
        if (row >= a.rows)
            continue;
        store_row_gradient<T, N>(a, row, d, x, gain, r, {mean, rstd},
                                 {a.mean ? sums[0] * inverse : 0, sums[1] * inverse});
    }
    float *to = partial + blockIdx.x * 2 * a.width;
    store_partial(to, gain_sum, columns, a.width);
    if (a.d_bias)
        store_partial(to + a.width, bias_sum, columns, a.width);
}

// out (+)= the sum of `parts` partial rows, in a fixed order. Blocks (x, 0) make d_gain, (x, 1) d_bias.
__global__ void __launch_bounds__(MERGE_COLUMNS *MERGE_PARTS)
    merge_partial(float *d_gain, float *d_bias, const float *partial /* [parts, 2, width] */, unsigned parts,
                  size_t width, bool accumulate)
{
    __shared__ float shared[MERGE_PARTS][MERGE_COLUMNS];
    float *out = blockIdx.y ? d_bias : d_gain; /* [width] */
    size_t c = (size_t)blockIdx.x * MERGE_COLUMNS + threadIdx.x;
    float sum = 0;
    for (unsigned p = threadIdx.y; c < width && p < parts; p += MERGE_PARTS)
        sum += partial[(2 * (size_t)p + blockIdx.y) * width + c];
    shared[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y || c >= width)
        return;
    sum = accumulate ? out[c] : 0;
    for (int p = 0; p < MERGE_PARTS; p++)
        sum += shared[p][threadIdx.x];
    out[c] = sum;
}

// ---- rows in memory: one block a row, element by element

template <typename T> __global__ void __launch_bounds__(WIDE_THREADS) norm_wide(ptb_norm a)
{
    __shared__ float shared[WARP];
    for (size_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        const T *in = (const T *)a.in + row * a.width; /* [width] */
        T *out = (T *)a.out + row * a.width;
        float sum = 0, mean = 0, squares = 0;
        if (a.mean) {
            for (size_t c = threadIdx.x; c < a.width; c += blockDim.x)
                sum += ptb_to_f32(in[c]);
            mean = ptb_block_sum(sum, shared) / (float)a.width;
        }
        for (size_t c = threadIdx.x; c < a.width; c += blockDim.x) {
            float x = ptb_to_f32(in[c]) - mean;
            squares += x * x;
        }
        float rstd = 1 / sqrtf(ptb_block_sum(squares, shared) / (float)a.width + a.epsilon);
        if (threadIdx.x == 0) {
            a.rstd[row] = rstd;
            if (a.mean)
                a.mean[row] = mean;
        }
        for (size_t c = threadIdx.x; c < a.width; c += blockDim.x) {
            float bias = a.bias ? ptb_to_f32(((const T *)a.bias)[c]) : 0;
            float x = (ptb_to_f32(in[c]) - mean) * rstd;
            out[c] = ptb_from_f32<T>(x * ptb_to_f32(((const T *)a.gain)[c]) + bias);
        }
    }
}

// Column sums over the slice blockIdx.y of the rows; before norm_gradient_wide, which may overwrite d_out.
template <typename T>
__global__ void __launch_bounds__(WIDE_THREADS)
    norm_gradient_columns(ptb_norm_gradient a, float *partial /* [slices, 2, width] */)
{
    size_t c = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= a.width)
        return;
    float gain_sum = 0, bias_sum = 0;
    for (size_t row = blockIdx.y; row < a.rows; row += gridDim.y) {
        float d = ptb_to_f32(((const T *)a.d_out)[row * a.width + c]), mean = a.mean ? a.mean[row] : 0;
        gain_sum += d * ((ptb_to_f32(((const T *)a.in)[row * a.width + c]) - mean) * a.rstd[row]);
        bias_sum += d;
    }
    partial[2 * (size_t)blockIdx.y * a.width + c] = gain_sum;
    partial[(2 * (size_t)blockIdx.y + 1) * a.width + c] = bias_sum;
}

template <typename T> __global__ void __launch_bounds__(WIDE_THREADS) norm_gradient_wide(ptb_norm_gradient a)
{
    __shared__ float shared[WARP];
    const T *gain = (const T *)a.gain; /* [width] */
    for (size_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        const T *in = (const T *)a.in + row * a.width, *d_out = (const T *)a.d_out + row * a.width;
        const T *residual = a.residual ? (const T *)a.residual + row * a.width : nullptr;
        T *d_in = (T *)a.d_in + row * a.width;
        float mean = a.mean ? a.mean[row] : 0, rstd = a.rstd[row], sum = 0, product = 0;
        for (size_t c = threadIdx.x; c < a.width; c += blockDim.x) {
            float d = ptb_to_f32(d_out[c]) * ptb_to_f32(gain[c]);
            sum += d;
            product += d * ((ptb_to_f32(in[c]) - mean) * rstd);
        }
        float mean_d = ptb_block_sum(sum, shared) / (float)a.width;
        float mean_dx = ptb_block_sum(product, shared) / (float)a.width;
        mean_d = a.mean ? mean_d : 0;
        for (size_t c = threadIdx.x; c < a.width; c += blockDim.x) {
            float x = (ptb_to_f32(in[c]) - mean) * rstd;
            float d = rstd * (ptb_to_f32(d_out[c]) * ptb_to_f32(gain[c]) - mean_d - x * mean_dx);
            d_in[c] = ptb_from_f32<T>(residual ? d + ptb_to_f32(residual[c]) : d);
        }
    }
}

// ---- the host's side

unsigned wide_threads(size_t width)
{
    return width < WIDE_THREADS ? whole_warps(width) : WIDE_THREADS;
}

template <typename T> int launch_norm(cudaStream_t stream, const ptb_norm *a)
{
    constexpr int N = ptb_width<T>;
    row_shape shape = {0, 0};
    if (a->width % N == 0 && ptb_aligned(16, a->out, a->in, a->gain, a->bias))
        shape = fit_row(a->width / N, 4, FORWARD_THREADS);
    if (!shape.packs) {
        unsigned threads = wide_threads(a->width);
        return PTB_LAUNCH((norm_wide<T>), ptb_grid(a->rows, 1, 2048 / threads), threads, 0, stream, *a);
    }
    return for_packs<1, 2, 3, 4>(shape.packs, [&](auto v) -> int {
        constexpr int V = decltype(v)::value;
        constexpr unsigned resident = FORWARD_THREADS * forward_resident(V);
        unsigned groups = 128 / shape.lanes ? 128 / shape.lanes : 1;
        unsigned blocks = ptb_grid(a->rows, groups, resident / (shape.lanes * groups));
        return PTB_LAUNCH((norm_rows<T, N, V>), blocks, dim3(shape.lanes, groups), 0, stream, *a);
    });
}

// Partial sums of at most this many blocks or slices fit into the scratch.
size_t most_parts(size_t width)
{
    size_t parts = PARTIAL_BYTES / (2 * width * sizeof(float));
    return parts ? parts : 1;
}

int merge(cudaStream_t stream, const ptb_norm_gradient *a, const float *partial, unsigned parts)
{
    dim3 grid((unsigned)ptb_blocks(a->width, MERGE_COLUMNS), a->d_bias ? 2 : 1);
    return PTB_LAUNCH(merge_partial, grid, dim3(MERGE_COLUMNS, MERGE_PARTS), 0, stream, a->d_gain, a->d_bias,
                      partial, parts, a->width, a->accumulate);
}

template <typename T>
int launch_gradient_wide(cudaStream_t stream, const ptb_norm_gradient *a, float *partial)
{
    unsigned threads = wide_threads(a->width), columns = (unsigned)ptb_blocks(a->width, threads);
    size_t slices = ptb_grid(a->rows, BLOCK_ROWS, ptb_blocks(2048 / threads, columns));
    slices = slices < most_parts(a->width) ? slices : most_parts(a->width);
    int error = PTB_LAUNCH((norm_gradient_columns<T>), dim3(columns, (unsigned)slices), threads, 0, stream,
                           *a, partial);
    if (error == cudaSuccess)
        error =
            PTB_LAUNCH((norm_gradient_wide<T>), ptb_grid(a->rows, 1, 2048 / threads), threads, 0, stream, *a);
    return error != cudaSuccess ? error : merge(stream, a, partial, (unsigned)slices);
}

template <typename T> int launch_gradient(cudaStream_t stream, const ptb_norm_gradient *a, float *partial)
{
    constexpr int N = ptb_width<T>;
    row_shape shape = {0, 0};
    if (a->width % N == 0 && ptb_aligned(16, a->d_in, a->d_out, a->in, a->gain, a->residual))
        for (int packs = 1; packs <= 16 / N && !shape.packs; packs *= 2) // sums fill the registers
            if (whole_warps(ptb_blocks(a->width / N, packs)) <= gradient_threads(packs))
                shape = {whole_warps(ptb_blocks(a->width / N, packs)), packs};
    if (!shape.packs)
        return launch_gradient_wide<T>(stream, a, partial);
    unsigned groups = gradient_threads(shape.packs) / shape.lanes;
    size_t blocks = ptb_grid(a->rows, groups * BLOCK_ROWS, 1);
    blocks = blocks < most_parts(a->width) ? blocks : most_parts(a->width);
    size_t shared = groups > 1 ? groups * a->width * sizeof(float) : 0; // under 48 KiB
    int error = for_packs<1, 2, 4>(shape.packs, [&](auto v) -> int {
        constexpr int V = decltype(v)::value * N > 16 ? 1 : decltype(v)::value;
        return PTB_LAUNCH((norm_gradient_rows<T, N, V>), (unsigned)blocks, dim3(shape.lanes, groups), shared,
                          stream, *a, partial);
    });
    return error != cudaSuccess ? error : merge(stream, a, partial, (unsigned)blocks);
}

} // namespace

extern "C" int ptb_cuda_launch_norm(cudaStream_t stream, const ptb_norm *a)
{
    if (!a->rows || !a->width)
        return cudaSuccess;
    return ptb_for_type(a->type, [&](auto type) { return launch_norm<decltype(type)>(stream, a); });
}

extern "C" size_t ptb_cuda_norm_gradient_scratch(const ptb_norm_gradient *a)
{
    size_t row = 2 * a->width * sizeof(float);
    return row > PARTIAL_BYTES ? row : PARTIAL_BYTES;
}

extern "C" int ptb_cuda_enqueue_norm_gradient(cudaStream_t stream, const ptb_norm_gradient *a, void *scratch)
{
    float *partial = (float *)scratch;
    if (!a->width)
        return cudaSuccess;
    if (!a->rows)
        return merge(stream, a, partial, 0);
    if (ptb_cuda_is_small_norm(a))
        return ptb_cuda_launch_small_norm_gradient(stream, a, scratch);
    return ptb_for_type(a->type,
                        [&](auto type) { return launch_gradient<decltype(type)>(stream, a, partial); });
}
