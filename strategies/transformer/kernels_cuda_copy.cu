// What memory bandwidth is measured with: a copy and a read by a kernel; and the operands that the rate of
// matrix products is measured with.
#include "strategies/transformer/kernels_cuda.cuh"
#include "strategies/transformer/kernels_cuda_product.h"

enum {
    COPY_THREADS = 256,
    AT_ONCE = 4, // accesses of 16 bytes under way, a thread
    RESIDENT = 8 // blocks on a multiprocessor
};

static __global__ void __launch_bounds__(COPY_THREADS) copy_words(uint4 *to, const uint4 *from, size_t count)
{
    size_t step = (size_t)gridDim.x * COPY_THREADS;
    for (size_t i = (size_t)blockIdx.x * COPY_THREADS + threadIdx.x; i < count; i += step * AT_ONCE) {
        uint4 words[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++)
            if (i + j * step < count)
                words[j] = __ldcs(from + i + j * step);
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++)
            if (i + j * step < count)
                __stcs(to + i + j * step, words[j]);
    }
}

static __global__ void copy_bytes(char *to, const char *from, size_t count)
{
    size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
        to[i] = from[i];
}

extern "C" int ptb_cuda_launch_copy(struct CUstream_st *stream, void *to, const void *from, size_t bytes)
{
    size_t words = ptb_aligned(16, to, from) ? bytes / 16 : 0, rest = bytes - words * 16;
    cudaError_t error = cudaSuccess;
    if (words)
        error = PTB_LAUNCH(copy_words, ptb_grid(words, COPY_THREADS * AT_ONCE, RESIDENT), COPY_THREADS, 0,
                           stream, (uint4 *)to, (const uint4 *)from, words);
    if (error == cudaSuccess && rest)
        error = PTB_LAUNCH(copy_bytes, ptb_grid(rest, COPY_THREADS, RESIDENT), COPY_THREADS, 0, stream,
                           (char *)to + words * 16, (const char *)from + words * 16, rest);
    return error;
}

// `from` is read for nothing; what it might be keeps the loads: then `spare` is written.
static __global__ void __launch_bounds__(COPY_THREADS)
    read_words(const uint4 *from, size_t count, unsigned *spare)
{
    size_t step = (size_t)gridDim.x * COPY_THREADS;
    unsigned seen = 0;
    for (size_t i = (size_t)blockIdx.x * COPY_THREADS + threadIdx.x; i < count; i += step * AT_ONCE) {
        uint4 words[AT_ONCE] = {};
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++)
            if (i + j * step < count)
                words[j] = __ldcs(from + i + j * step);
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++)
            seen ^= words[j].x ^ words[j].y ^ words[j].z ^ words[j].w;
    }
    if (seen == 0x5eed5eed)
        *spare = seen;
}

extern "C" int ptb_cuda_launch_read(struct CUstream_st *stream, const void *from, size_t bytes, void *spare)
{
    size_t words = bytes / 16;
    if (!words)
        return cudaSuccess;
    return PTB_LAUNCH(read_words, ptb_grid(words, COPY_THREADS * AT_ONCE, RESIDENT), COPY_THREADS, 0, stream,
                      (const uint4 *)from, words, (unsigned *)spare);
}

// ---- operands of products

// A number in [-1, 1): a bijective mix of the place (constants: Wellons, "Prospecting for hash functions",
// 2018).
static __device__ __forceinline__ float noise_at(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    x ^= x >> 16;
    return (float)(int32_t)x * 0x1p-31f;
}

template <typename T> static __global__ void fill_noise(T *out, size_t count)
{
    size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
        out[i] = ptb_from_f32<T>(noise_at((uint32_t)i));
}

extern "C" int ptb_cuda_launch_noise(struct CUstream_st *stream, ptb_dtype type, void *out, size_t count)
{
    return ptb_for_type(type, [&](auto zero) {
        using T = decltype(zero);
        return (int)PTB_LAUNCH(fill_noise<T>, ptb_grid(count, COPY_THREADS, RESIDENT), COPY_THREADS, 0,
                               stream, (T *)out, count);
    });
}
