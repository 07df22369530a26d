// A copy by loads and stores: 16 bytes a thread and access, four in flight, whatever the ends are aligned to.
#include "core/cuda_kernel.cuh"
#include "core/device_cuda_internal.h"

enum { THREADS = 256, IN_FLIGHT = 4, BLOCKS_A_PROCESSOR = 8 };

// to[0, pieces), from[0, pieces): pieces of 16 bytes
__global__ void copy_pieces(uint4 *to, const uint4 *from, size_t pieces)
{
    const size_t stride = (size_t)gridDim.x * blockDim.x;
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + (IN_FLIGHT - 1) * stride < pieces; i += IN_FLIGHT * stride) {
        uint4 piece[IN_FLIGHT];
#pragma unroll
        for (int k = 0; k < IN_FLIGHT; k++)
            piece[k] = from[i + k * stride];
#pragma unroll
        for (int k = 0; k < IN_FLIGHT; k++)
            to[i + k * stride] = piece[k];
    }
    for (; i < pieces; i += stride)
        to[i] = from[i];
}

__global__ void copy_bytes(uint8_t *to, const uint8_t *from, size_t bytes)
{
    const size_t stride = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < bytes; i += stride)
        to[i] = from[i];
}

extern "C" int ptb_cuda_launch_peer_copy(void *to, const void *from, size_t bytes, int processors,
                                         struct CUstream_st *stream)
{
    const bool is_aligned = ((uintptr_t)to | (uintptr_t)from) % sizeof(uint4) == 0;
    const size_t pieces = is_aligned ? bytes / sizeof(uint4) : 0, done = pieces * sizeof(uint4);
    const size_t most = (size_t)processors * BLOCKS_A_PROCESSOR;
    cudaError_t error = cudaSuccess;
    if (pieces) {
        const size_t blocks = (pieces + THREADS - 1) / THREADS;
        error = PTB_LAUNCH(copy_pieces, (unsigned)(blocks < most ? blocks : most), THREADS, 0, stream,
                           (uint4 *)to, (const uint4 *)from, pieces);
    }
    if (error == cudaSuccess && done < bytes) {
        const size_t blocks = (bytes - done + THREADS - 1) / THREADS;
        error = PTB_LAUNCH(copy_bytes, (unsigned)(blocks < most ? blocks : most), THREADS, 0, stream,
                           (uint8_t *)to + done, (const uint8_t *)from + done, bytes - done);
    }
    return (int)error;
}
