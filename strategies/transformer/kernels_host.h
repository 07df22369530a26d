// Shared by the files of the host kernels: the functions that run on a stream's worker thread, and
// vectorisable elementary functions. To add a kernel: its argument struct and a line in kernels.h, a run_
// function here.
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
ptb_status ptb_host_copy(ptb_stream *stream, void *to, const void *from, size_t bytes, bool streaming);
ptb_status ptb_host_matmul_peak(ptb_stream *stream, ptb_dtype type, int threads, double *flops_per_s);

size_t ptb_host_attention_workspace(const ptb_attention_shape *shape, int threads);
double ptb_host_attention_flops(const ptb_attention_shape *shape);

// oneDNN's: row-major C = alpha * op(A) * op(B) + beta * C with op(A) [m, k] and op(B) [k, n]; 'T'
// transposes.
ptb_status ptb_host_sgemm(char trans_a, char trans_b, size_t m, size_t n, size_t k, float alpha,
                          const float *a, size_t lda, const float *b, size_t ldb, float beta, float *c,
                          size_t ldc);

// exp(x) within 2e-7 relative for -87 <= x <= 88, clamped beyond; NaN stays NaN. Written so that compilers
// vectorise loops over it. x = n ln 2 + r with |r| <= ln 2 / 2; the Taylor polynomial of degree 7 errs by
// 5e-9.
static inline float ptb_host_exp(float x)
{
    const float magic = 0x1.8p23f; // adding it rounds to a whole number, left in the low bits
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    float shifted = x * 1.44269504f + magic;
    float n = shifted - magic;
    float r = x - n * 0.693359375f; // ln 2 in two parts (Cody and Waite)
    r = r + n * 2.12194440e-4f;
    float p = 1.0f / 5040;
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    int32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (int32_t)((uint32_t)(bits + 127) << 23);
    float power;
    memcpy(&power, &bits, sizeof power);
    return p * power;
}

#endif
