// Column sums of a matrix, the gradient of a bias, or of its rows times a number each, the gradient of one
// row of weights. Memory-bound: a block reads a stripe of columns in accesses of 16 bytes and sums a part of
// the rows; the block that finishes a stripe's last part adds the parts in order, so that results do not
// depend on who was last.
#include "strategies/transformer/kernels_cuda.cuh"
#include "strategies/transformer/kernels_cuda_product.h"

namespace {

enum {
    LANES = 32,    // threads across the columns
    ROW_LANES = 8, // and down the rows
    THREADS = LANES * ROW_LANES,
    ROWS_AT_ONCE = 8, // on their way from memory, a thread
    PARTS_MOST = 128
};

// Columns of a thread: as many as fit in 16 bytes where rows allow it.
int columns_of(const ptb_cuda_sums *s)
{
    size_t size = ptb_dtype_size(s->type);
    bool aligned = ptb_aligned(16, s->in) && s->stride * size % 16 == 0 && s->width * size % 16 == 0;
    return aligned ? (int)(16 / size) : 1;
}

size_t stripes_of(const ptb_cuda_sums *s)
{
    return ptb_blocks(s->width, (size_t)LANES * columns_of(s));
}

// Enough blocks to fill the device, and no parts of few rows.
unsigned parts_of(const ptb_cuda_sums *s)
{
    size_t stripes = stripes_of(s), wanted = 8 * (size_t)ptb_multiprocessors() / stripes + 1;
    size_t most = ptb_blocks(s->rows, ROW_LANES * ROWS_AT_ONCE);
    size_t parts = wanted < most ? wanted : most;
    parts = stripes <= PTB_CUDA_COUNTERS ? parts : 1;
    return (unsigned)(parts < PARTS_MOST ? parts ? parts : 1 : PARTS_MOST);
}

// One thread's sums for its columns: over rows `row`, row + step, ...
template <typename T, int N>
__device__ __forceinline__ void sum_rows(float (&sums)[N], const ptb_cuda_sums &s, size_t row, size_t step,
                                         size_t column)
{
    const T *in = (const T *)s.in + column, *factor = (const T *)s.factor;
    for (; row < s.rows && column < s.width; row += step * ROWS_AT_ONCE) {
        ptb_raw<T, N> values[ROWS_AT_ONCE];
        float factors[ROWS_AT_ONCE];
#pragma unroll
        for (int i = 0; i < ROWS_AT_ONCE; i++) {
            size_t r = row + i * step;
            values[i].zero();
            factors[i] = 1;
            if (r >= s.rows)
                continue;
            values[i].load(in + r * s.stride);
            if (factor)
                factors[i] = ptb_to_f32(factor[r * s.factor_stride]);
        }
#pragma unroll
        for (int i = 0; i < ROWS_AT_ONCE; i++)
            values[i].add_to(sums, factors[i]);
    }
}

template <typename T, int N>
__global__ void __launch_bounds__(THREADS)
    sum_columns(const ptb_cuda_sums s, float *partial /* [parts, width] */,
                unsigned *arrived /* [stripes], zero between launches */)
{
    constexpr unsigned STRIPE = LANES * N;
    static_assert(STRIPE <= THREADS, "a thread finishes a column");
    __shared__ float shared[ROW_LANES][STRIPE];
    __shared__ bool is_last;
    unsigned lane = threadIdx.x % LANES, row_lane = threadIdx.x / LANES, parts = gridDim.y;
    float sums[N] = {0}, sum = 0;
    sum_rows<T, N>(sums, s, (size_t)blockIdx.y * ROW_LANES + row_lane, (size_t)parts * ROW_LANES,
                   (size_t)blockIdx.x * STRIPE + lane * N);
#pragma unroll
    for (int e = 0; e < N; e++)
        shared[row_lane][lane * N + e] = sums[e];
    __syncthreads();
    size_t mine = (size_t)blockIdx.x * STRIPE + threadIdx.x;
    bool live = threadIdx.x < STRIPE && mine < s.width;
    for (int r = 0; live && r < ROW_LANES; r++)
        sum += shared[r][threadIdx.x];
    if (parts > 1) {
        if (live)
            partial[blockIdx.y * s.width + mine] = sum;
        __threadfence(); // what this thread has stored, before the part counts as finished
        __syncthreads();
        if (threadIdx.x == 0) {
            is_last = atomicAdd(arrived + blockIdx.x, 1u) + 1 == parts;
            if (is_last)
                arrived[blockIdx.x] = 0;
            __threadfence();
        }
        __syncthreads();
        if (!is_last)
            return;
        sum = 0;
#pragma unroll 16
        for (unsigned i = 0; i < parts; i++)
            sum += live ? __ldcg(partial + i * s.width + mine) : 0; // past the first-level cache
    }
    if (live)
        s.sums[mine] = s.accumulate ? s.sums[mine] + sum : sum;
}

} // namespace

extern "C" size_t ptb_cuda_sums_scratch(const ptb_cuda_sums *s)
{
    return parts_of(s) * s->width * sizeof(float);
}

extern "C" int ptb_cuda_launch_sums(struct CUstream_st *stream, const ptb_cuda_sums *s, void *scratch)
{
    dim3 grid((unsigned)stripes_of(s), parts_of(s));
    float *partial = (float *)scratch;
    unsigned *arrived = ptb_cuda_counters(scratch);
    return ptb_for_type(s->type, [&](auto zero) -> int {
        using T = decltype(zero);
        constexpr int N = ptb_width<T>;
        if (columns_of(s) == 1)
            return PTB_LAUNCH((sum_columns<T, 1>), grid, THREADS, 0, stream, *s, partial, arrived);
        return PTB_LAUNCH((sum_columns<T, N>), grid, THREADS, 0, stream, *s, partial, arrived);
    });
}
