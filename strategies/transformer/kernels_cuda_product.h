// Matrix products of the back-end `cuda`, in two ways: cuBLASLt for plain linear layers
// (kernels_cuda_library.c), and ptbench's own kernel (kernels_cuda_product.cu) for groups, whose offsets only
// the device knows, and for what the library does not have. kernels_cuda_matmul.c describes layers in these
// terms. C and C++; needs none of CUDA's headers.
#ifndef PTB_STRATEGIES_TRANSFORMER_KERNELS_CUDA_PRODUCT_H
#define PTB_STRATEGIES_TRANSFORMER_KERNELS_CUDA_PRODUCT_H

#include "core/device_cuda.h"
#include "strategies/transformer/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

// ---- ptbench's own

// The three products of a linear layer, by what is contiguous in memory. out is [m, n], the depth is k.
typedef enum {
    PTB_PRODUCT_FORWARD, // a [m, k], b [n, k]; groups are ranges of m
    PTB_PRODUCT_INPUT,   // a [m, k], b [k, n]; groups are ranges of m
    PTB_PRODUCT_WEIGHT,  // a [k, m], b [k, n]; groups are ranges of k; out and sums are f32
} ptb_product_form;

// out = epilogue(a * b + partial + bias + addend). Sums in f32. With groups, b, bias (FORWARD, INPUT) or out,
// addend, sums (WEIGHT) are one matrix or vector a group, one behind the other; offsets is device memory, and
// what of it is out of order or beyond the rows is taken as empty.
typedef struct {
    void *out;            /* [m, n], out_type */
    const void *a, *b;    /* type */
    const void *addend;   /* [m, n], out_type; NULL: none; may be out */
    const float *partial; /* [m, n]: sums over another part of the depth; NULL: none */
    const void *bias;     /* [n], type; NULL: none */
    void *activated;      /* [m, n], type: GELU of the result; NULL: none */
    const void *gelu_in;  /* [m, n], type: the result is multiplied by GELU's derivative there; NULL: no */
    float *sums;          /* WEIGHT: [m], sums of a over its k rows; NULL: none */
    bool sums_accumulate; // sums += instead of sums =
    size_t m, n, k;
    size_t a_stride, b_stride; // elements between rows
    size_t out_stride;         // of out, addend, partial, activated and gelu_in
    size_t groups;             // 0: one product
    const int32_t *offsets;    /* [groups + 1] */
    ptb_dtype type, out_type;
} ptb_cuda_product;

// A cudaError_t.
int ptb_cuda_launch_product(struct CUstream_st *stream, ptb_product_form form, const ptb_cuda_product *p);

// sums [width] (+)= column sums of in, each of its rows times its factor, in a fixed order.
typedef struct {
    float *sums;        /* [width] */
    const void *in;     /* [rows, stride] */
    const void *factor; /* [rows, factor_stride], type: the first of each row; NULL: 1 */
    size_t rows, width, stride, factor_stride;
    ptb_dtype type;
    bool accumulate;
} ptb_cuda_sums;
size_t ptb_cuda_sums_scratch(const ptb_cuda_sums *s);                                        // bytes
int ptb_cuda_launch_sums(struct CUstream_st *stream, const ptb_cuda_sums *s, void *scratch); // a cudaError_t

// Copy and read by kernels (`spare`: 4 bytes that may be written); `count` numbers between -1 and 1. All give
// a cudaError_t.
int ptb_cuda_launch_copy(struct CUstream_st *stream, void *to, const void *from, size_t bytes);
int ptb_cuda_launch_read(struct CUstream_st *stream, const void *from, size_t bytes, void *spare);
int ptb_cuda_launch_noise(struct CUstream_st *stream, ptb_dtype type, void *out, size_t count);

// ---- cuBLASLt

// What happens to a result before it is stored, and to which vector or matrix beside it.
typedef enum {
    PTB_LIBRARY_PLAIN,
    PTB_LIBRARY_BIAS,          // + vector [m]
    PTB_LIBRARY_GELU,          // matrix = result, result = GELU of it
    PTB_LIBRARY_GELU_BIAS,     // bias first
    PTB_LIBRARY_GELU_GRADIENT, // result *= GELU's derivative at matrix
    PTB_LIBRARY_SUMS,          // vector [n] = sums of b over the depth
} ptb_library_epilogue;

// As the library sees it, column-major: d [m, n] = epilogue(op(a) [m, k] * op(b) [k, n] + c). Strides are
// between columns. Compared byte by byte: set all of it from {0}.
typedef struct {
    size_t m, n, k;
    size_t a_stride, b_stride, d_stride;
    bool transpose_a, transpose_b;
    ptb_dtype type, out_type;
    ptb_library_epilogue epilogue;
    bool tf32;       // f32 operands are rounded to 10 bits of mantissa for the tensor cores
    size_t reserved; // bytes at the beginning of the stream's scratch that are not the library's workspace
} ptb_library_product;

typedef struct {
    const void *a, *b;
    const void *c; /* d's shape and type; NULL: none; may be d */
    void *d;
    void *vector; // of the epilogue; d's type
    void *matrix; /* d's shape and type */
} ptb_library_operands;

// Enqueues. The first time that a product of these sizes, types and alignments comes on a stream, the
// algorithms that the library proposes are timed with the operands given and the fastest is kept with the
// stream, which the caller waits for; while a graph is captured the library's first proposal is used instead,
// and timing is left to a later call. PTBENCH_CUBLASLT_SEARCH=first in the environment turns timing off,
// =time on, also on a simulated device. SKIPPED, not logged: the library has no algorithm for it.
ptb_status ptb_library_run(ptb_stream *stream, const ptb_library_product *product,
                           const ptb_library_operands *operands);
// f32 products of the stream through TF32 from now on, or not.
ptb_status ptb_library_set_tf32(ptb_stream *stream, bool on);
ptb_status ptb_library_tf32(ptb_stream *stream, bool *on);
// Bytes of the stream's scratch that products have as workspace, but for what they reserve: a multiple of
// 256.
size_t ptb_library_scratch(void);
// Whether algorithms are timed (on at first), or the library's first proposal is taken always.
ptb_status ptb_library_set_search(ptb_stream *stream, bool on);

#ifdef __cplusplus
}
#endif

#endif
