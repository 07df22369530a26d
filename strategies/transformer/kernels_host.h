// Shared by the files of the host kernels: the functions that run on a stream's worker thread. To add
// a kernel: its argument struct and a line in kernels.h, a run_ function in a file of its own.
#ifndef PTB_STRATEGIES_TRANSFORMER_KERNELS_HOST_H
#define PTB_STRATEGIES_TRANSFORMER_KERNELS_HOST_H

#include "strategies/transformer/kernels.h"

#include <string.h>

#define X(method, arguments) ptb_call_fn ptb_host_run_##method;
PTB_KERNEL_LIST(X)
#undef X

// The stream of a kernel's call: it lies behind the `bytes` of the arguments.
static inline ptb_stream *ptb_host_stream_of(void *arg, size_t bytes)
{
    ptb_stream *stream;
    memcpy(&stream, (char *)arg + bytes, sizeof stream);
    return stream;
}

// Memory of the stream for `threads` threads, `stride` bytes each, that lasts as long as the stream; a later
// call for more threads replaces it. For functions that run on the stream. NO_MEMORY, logged.
ptb_status ptb_host_stream_scratch(ptb_stream *stream, int threads, char **memory, size_t *stride);
size_t ptb_host_stream_workspace(int threads);
ptb_status ptb_host_read(ptb_stream *stream, const void *from, size_t bytes);
ptb_status ptb_host_copy(ptb_stream *stream, void *to, const void *from, size_t bytes, bool streaming);
ptb_status ptb_host_matmul_peak(ptb_stream *stream, ptb_dtype type, int threads, double *flops_per_s);

size_t ptb_host_attention_workspace(const ptb_attention_shape *shape, int threads);
double ptb_host_attention_flops(const ptb_attention_shape *shape);

// oneDNN's: row-major C = alpha * op(A) * op(B) + beta * C with op(A) [m, k] and op(B) [k, n]; 'T'
// transposes.
ptb_status ptb_host_sgemm(char trans_a, char trans_b, size_t m, size_t n, size_t k, float alpha,
                          const float *a, size_t lda, const float *b, size_t ldb, float beta, float *c,
                          size_t ldc);

#endif
