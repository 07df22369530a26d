// What the .cu files share: how a kernel is launched and how dynamic shared memory is named, in words that
// nvcc and the simulated device (tests/simcuda/kernel.hpp, there the same file is compiled as C++) both
// understand. Only .cu files include this. They export `extern "C"` launchers that return a cudaError_t;
// descriptors stay in .c files.
#ifndef PTB_CORE_CUDA_KERNEL_CUH
#define PTB_CORE_CUDA_KERNEL_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <stddef.h>
#include <stdint.h>

#ifndef PTB_SIM
// Launches and gives the error of the launch, if any. A kernel template with commas in its name goes in
// parentheses.
#define PTB_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                           \
    (kernel<<<grid, block, shared_bytes, stream>>>(__VA_ARGS__), cudaGetLastError())
// In a kernel: `name` points at the dynamic shared memory of the launch, 16-byte aligned.
#define PTB_DYNAMIC_SHARED(type, name)                                                                       \
    extern __shared__ __align__(16) unsigned char ptb_dynamic_shared[];                                      \
    type *name = (type *)ptb_dynamic_shared
// More than 48 KiB of dynamic shared memory must be asked for before the first launch.
#define PTB_ALLOW_SHARED(kernel, bytes)                                                                      \
    cudaFuncSetAttribute((const void *)(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, (int)(bytes))
#endif

#endif
