// Column sums of a matrix, the gradient of a bias. Memory-bound: a block reads stripes of 256 columns in
// accesses of 16 bytes and sums a part of the rows; a second kernel adds the parts, so that the order is
// always the same.
#include "strategies/transformer/kernels_cuda.cuh"
#include "strategies/transformer/kernels_cuda_product.h"

enum {
    LANES = 32,    // threads across the columns
    ROW_LANES = 8, // and down the rows
    WIDTH = 8,     // columns of a thread
    STRIPE = LANES * WIDTH,
    ROWS_AT_ONCE = 4, // on their way from memory, a thread
    PARTS_MOST = 256
};

// Enough blocks to fill the device, and no parts without rows.
static unsigned parts_of(const ptb_cuda_sums *s)
{
    size_t stripes = ptb_blocks(s->width, STRIPE), wanted = 8 * (size_t)ptb_multiprocessors() / stripes + 1;
    size_t most = ptb_blocks(s->rows, ROW_LANES * ROWS_AT_ONCE);
    size_t parts = wanted < most ? wanted : most;
    return (unsigned)(parts < PARTS_MOST ? parts ? parts : 1 : PARTS_MOST);
}

template <typename T, bool ALIGNED>
static __global__ void __launch_bounds__(LANES *ROW_LANES) sum_parts(const ptb_cuda_sums s, float *partial)
{
    __shared__ float shared[ROW_LANES][STRIPE];
    size_t column = (size_t)blockIdx.x * STRIPE + threadIdx.x % LANES * WIDTH;
    size_t row_lane = threadIdx.x / LANES, step = (size_t)gridDim.y * ROW_LANES;
    const T *in = (const T *)s.in;
    float sums[WIDTH] = {};
    for (size_t row = blockIdx.y * ROW_LANES + row_lane; row < s.rows; row += step * ROWS_AT_ONCE) {
        float values[ROWS_AT_ONCE][WIDTH] = {};
#pragma unroll
        for (int i = 0; i < ROWS_AT_ONCE; i++) {
            size_t r = row + i * step;
            if (r >= s.rows)
                continue;
            if (ALIGNED && column < s.width)
                ptb_load<WIDTH>(values[i], in + r * s.stride + column);
            for (int j = 0; !ALIGNED && j < WIDTH; j++)
                if (column + j < s.width)
                    values[i][j] = ptb_to_f32(in[r * s.stride + column + j]);
        }
#pragma unroll
        for (int i = 0; i < ROWS_AT_ONCE; i++)
#pragma unroll
            for (int j = 0; j < WIDTH; j++)
                sums[j] += values[i][j];
    }
    for (int j = 0; j < WIDTH; j++)
        shared[row_lane][threadIdx.x % LANES * WIDTH + j] = sums[j];
    __syncthreads();
    size_t mine = (size_t)blockIdx.x * STRIPE + threadIdx.x; // as many threads as columns of a stripe
    float sum = 0;
    for (int r = 0; r < ROW_LANES; r++)
        sum += shared[r][threadIdx.x];
    if (mine < s.width)
        partial[blockIdx.y * s.width + mine] = sum;
}
static_assert(STRIPE == LANES * ROW_LANES, "a thread finishes a column");

static __global__ void add_parts(const ptb_cuda_sums s, const float *partial, unsigned parts)
{
    size_t column = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= s.width)
        return;
    float sum = 0;
    for (unsigned i = 0; i < parts; i++)
        sum += partial[i * s.width + column];
    s.sums[column] = s.accumulate ? s.sums[column] + sum : sum;
}

extern "C" size_t ptb_cuda_sums_scratch(const ptb_cuda_sums *s)
{
    return parts_of(s) * s->width * sizeof(float);
}

extern "C" int ptb_cuda_launch_sums(struct CUstream_st *stream, const ptb_cuda_sums *s, void *scratch)
{
    unsigned parts = parts_of(s);
    dim3 grid((unsigned)ptb_blocks(s->width, STRIPE), parts);
    bool aligned =
        ptb_aligned(16, s->in) && s->stride * ptb_dtype_size(s->type) % 16 == 0 && s->width % WIDTH == 0;
    float *partial = (float *)scratch;
    int error = ptb_for_type(s->type, [&](auto zero) {
        using T = decltype(zero);
        return (
            int)(aligned
                     ? PTB_LAUNCH((sum_parts<T, true>), grid, LANES * ROW_LANES, 0, stream, *s, partial)
                     : PTB_LAUNCH((sum_parts<T, false>), grid, LANES * ROW_LANES, 0, stream, *s, partial));
    });
    if (error != cudaSuccess)
        return error;
    return PTB_LAUNCH(add_parts, (unsigned)ptb_blocks(s->width, 128), 128, 0, stream, *s, partial, parts);
}
