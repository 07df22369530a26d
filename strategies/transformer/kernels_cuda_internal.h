// Shared by the files of the back-end `cuda`. Each kernel of PTB_KERNEL_LIST is ptb_cuda_METHOD in a file
// kernels_cuda_X.c; what runs on the device is in kernels_cuda_X.cu, which exports launchers. A launcher
// enqueues on a CUDA stream and gives a cudaError_t as int. This header is C and C++ and needs none of
// CUDA's.
#ifndef PTB_STRATEGIES_TRANSFORMER_KERNELS_CUDA_INTERNAL_H
#define PTB_STRATEGIES_TRANSFORMER_KERNELS_CUDA_INTERNAL_H

#include "core/device_cuda.h"
#include "strategies/transformer/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define X(method, arguments) ptb_status ptb_cuda_##method(ptb_stream *stream, const arguments *args);
PTB_KERNEL_LIST(X)
#undef X

// The launcher of a kernel that is nothing but a launch: PTB_CUDA_KERNEL(norm, ptb_norm) in a .c file makes
// ptb_cuda_norm of it. Arguments are the method's; the launcher checks nothing that the types promise.
#define X(method, arguments) int ptb_cuda_launch_##method(struct CUstream_st *stream, const arguments *args);
PTB_KERNEL_LIST(X)
#undef X
#define PTB_CUDA_KERNEL(method, arguments)                                                                   \
    ptb_status ptb_cuda_##method(ptb_stream *stream, const arguments *args)                                  \
    {                                                                                                        \
        PTB_CUDA(ptb_cuda_launch_##method(ptb_cuda_stream(stream), args));                                   \
        return PTB_OK;                                                                                       \
    }

// What linear layers keep with a stream (kernels.h: reserve, stream_workspace), and the members of the table
// that are no kernels of a step.
ptb_status ptb_cuda_reserve(ptb_stream *stream);
size_t ptb_cuda_stream_workspace(int threads);
ptb_status ptb_cuda_matmul_peak(ptb_stream *stream, ptb_dtype type, int threads, double *flops_per_s);
ptb_status ptb_cuda_copy(ptb_stream *stream, void *to, const void *from, size_t bytes, bool streaming);
ptb_status ptb_cuda_read(ptb_stream *stream, const void *from, size_t bytes);
size_t ptb_cuda_attention_workspace(const ptb_attention_shape *shape, int threads);
double ptb_cuda_attention_flops(const ptb_attention_shape *shape);

#ifdef __cplusplus
}
#endif

#endif
