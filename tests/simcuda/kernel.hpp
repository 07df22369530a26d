// What a .cu file needs to be C++ of the host (the build includes it first): CUDA's built-in variables and
// functions of a kernel, shared memory, and the launch. A kernel is compiled as it is; its threads are fibers
// (fibers.hpp). Inline PTX is not: #ifdef PTB_SIM beside it, with sim_warp_run where it is an operation of a
// warp (mma.sync, ldmatrix).
#ifndef PTB_SIMCUDA_KERNEL_HPP
#define PTB_SIMCUDA_KERNEL_HPP

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "tests/simcuda/fibers.hpp"
#include "tests/simcuda/intrinsics.hpp"
#include "tests/simcuda/products.hpp"
#include "tests/simcuda/warp.hpp"
#include "tests/simcuda/atomics.hpp"
#include "tests/simcuda/launch.hpp"

// A block runs on one thread of the system, streams on several.
#undef __shared__
#define __shared__ static __thread
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __grid_constant__
#define __grid_constant__

#define PTB_DYNAMIC_SHARED(type, name) type *name = (type *)sim_dynamic_shared()
#define PTB_ALLOW_SHARED(kernel, bytes)                                                                      \
    cudaFuncSetAttribute((const void *)(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, (int)(bytes))

#define __syncthreads() sim_block_sync()
static inline int __syncthreads_count(int predicate)
{
    return sim_block_barrier(predicate);
}
static inline int __syncthreads_or(int predicate)
{
    return sim_block_barrier(predicate) != 0;
}
static inline int __syncthreads_and(int predicate)
{
    return sim_block_barrier(!predicate) == 0;
}
static inline void __threadfence(void)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
static inline void __threadfence_block(void)
{
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
}
static inline void __threadfence_system(void)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
#define __trap() sim_abort_grid(cudaErrorLaunchFailure, "__trap()")
#undef assert
#define assert(condition)                                                                                    \
    ((condition) ? (void)0 : sim_abort_grid(cudaErrorAssert, "%s:%d: %s", __FILE__, __LINE__, #condition))

#endif
