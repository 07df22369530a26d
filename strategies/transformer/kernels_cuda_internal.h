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

// Kernels of attention: plain arithmetic, tensor cores by single warps, or by groups of four (wgmma).
typedef enum {
    PTB_CUDA_ATTENTION_NONE,
    PTB_CUDA_ATTENTION_PLAIN,
    PTB_CUDA_ATTENTION_MMA,
    PTB_CUDA_ATTENTION_WGMMA
} ptb_cuda_attention_kind;

// What attention keeps with a stream (kernels_cuda_attention.c).
typedef struct {
    bool is_chosen;   // the next three are set: at the stream's first call, for all of them
    bool has_groups;  // wgmma: the GPU, this program and PTBENCH_CUDA_ATTENTION have nothing against it
    bool is_demanded; // PTBENCH_CUDA_ATTENTION=wgmma: what cannot take them is refused (UNSUPPORTED)
    int shared_bytes; // that a block may have
    ptb_cuda_attention_kind last, last_gradient; // what the last calls took
} ptb_cuda_attention_state;

// What the kernels of this back-end keep with a stream; freed with it (kernels_cuda_stream.c).
typedef struct {
    void *scratch; // see ptb_cuda_scratch
    size_t scratch_bytes;
    void *outgrown[32]; // earlier, smaller scratch: graphs that were captured with it may still use it
    size_t outgrown_count;
    void *linear; // of kernels_cuda_matmul.c, and what frees it (the stream has finished by then)
    void (*linear_free)(ptb_stream *stream, void *linear);
    ptb_cuda_attention_state attention;
} ptb_cuda_kept;
ptb_status ptb_cuda_keep(ptb_stream *stream, ptb_cuda_kept **kept);

// Device memory for the launches of one call: those of the stream's next call may overwrite it, since kernels
// of a stream follow one another. At least PTB_CUDA_SCRATCH_BYTES are allocated at first, category workspace.
// While a graph is captured nothing can be allocated: run what is captured once before.
//
// Before the scratch, and a part of it, are counters, PTB_CUDA_COUNTERS of them, 0 at first. A launch leaves
// them 0: what it counts are blocks that have finished something, and the last one sets them back. (One that
// only grows, and is used modulo a power of 2, may have any value.)
enum { PTB_CUDA_SCRATCH_BYTES = 32 << 20, PTB_CUDA_COUNTERS = 20480 };
ptb_status ptb_cuda_scratch(ptb_stream *stream, size_t bytes, void **memory);
static inline unsigned *ptb_cuda_counters(void *scratch)
{
    return (unsigned *)scratch - PTB_CUDA_COUNTERS;
}

// The launcher of a kernel that needs scratch, and the bytes of it that a call needs: a constant of the
// shape.
#define PTB_CUDA_SCRATCH_LIST(X)                                                                             \
    X(norm_gradient, ptb_norm_gradient)                                                                      \
    X(embedding_gradient, ptb_embedding_gradient)                                                            \
    X(route, ptb_route)                                                                                      \
    X(sum_squares, ptb_sum_squares)
#define X(method, arguments)                                                                                 \
    size_t ptb_cuda_##method##_scratch(const arguments *args);                                               \
    int ptb_cuda_enqueue_##method(struct CUstream_st *stream, const arguments *args, void *scratch);
PTB_CUDA_SCRATCH_LIST(X)
#undef X
#define PTB_CUDA_SCRATCH_KERNEL(method, arguments)                                                           \
    ptb_status ptb_cuda_##method(ptb_stream *stream, const arguments *args)                                  \
    {                                                                                                        \
        void *scratch;                                                                                       \
        PTB_TRY(ptb_cuda_scratch(stream, ptb_cuda_##method##_scratch(args), &scratch));                      \
        PTB_CUDA(ptb_cuda_enqueue_##method(ptb_cuda_stream(stream), args, scratch));                         \
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
const char *ptb_cuda_attention_kernels(ptb_stream *stream, bool gradient);

#ifdef __cplusplus
}
#endif

#endif
