// What utilisation refers to, measured now: the best rate of cuBLASLt's products, and the two ways to copy.
#include "strategies/transformer/kernels_cuda_internal.h"
#include "strategies/transformer/kernels_cuda_product.h"

#include "core/log.h"

#include <cuda_runtime_api.h>

enum {
    RUNS = 4,    // between two events
    ROUNDS = 16, // of RUNS, at most
    ROUNDS_LEAST = 2,
    BUDGET_MS = 200, // no new round of a size after this much of it
};

// Squares of these sizes; a simulated device gets small ones, whose rate says nothing about GPUs.
static const size_t real_sizes[] = {8192, 4096}, simulated_sizes[] = {256, 128};

typedef struct {
    ptb_stream *stream;
    ptb_dtype type;
    char *a, *b, *d;
    cudaEvent_t begin, end;
} peak_run;

// The best rate of a size, if it is better than *best.
static ptb_status measure_size(peak_run *r, size_t size, double *best)
{
    ptb_library_product product = {.m = size,
                                   .n = size,
                                   .k = size,
                                   .a_stride = size,
                                   .b_stride = size,
                                   .d_stride = size,
                                   .transpose_a = true,
                                   .type = r->type,
                                   .out_type = r->type};
    const ptb_library_operands operands = {.a = r->a, .b = r->b, .d = r->d};
    struct CUstream_st *stream = ptb_cuda_stream(r->stream);
    double flops = 2.0 * (double)size * (double)size * (double)size * RUNS;
    float spent = 0;
    if (r->type == PTB_F32)
        PTB_TRY(ptb_library_tf32(r->stream, &product.tf32));
    ptb_status status = ptb_library_run(r->stream, &product, &operands); // chooses the algorithm
    if (status == PTB_SKIPPED) {
        ptb_error("cuBLASLt has no algorithm for products of %zu x %zu x %zu in %s on this GPU, so there is "
                  "no peak to "
                  "refer to",
                  size, size, size, ptb_dtype_name(r->type));
        return PTB_UNSUPPORTED;
    }
    PTB_TRY(status);
    for (int round = 0; round < ROUNDS && (round < ROUNDS_LEAST || spent < BUDGET_MS); round++) {
        float ms;
        PTB_CUDA(cudaEventRecord(r->begin, stream));
        for (int i = 0; i < RUNS; i++)
            PTB_TRY(ptb_library_run(r->stream, &product, &operands));
        PTB_CUDA(cudaEventRecord(r->end, stream));
        PTB_CUDA(cudaEventSynchronize(r->end));
        PTB_CUDA(cudaEventElapsedTime(&ms, r->begin, r->end));
        spent += ms;
        if (ms > 0 && flops / (ms * 1e-3) > *best)
            *best = flops / (ms * 1e-3);
    }
    return PTB_OK;
}

static ptb_status measure(peak_run *r, const size_t *sizes, double *best)
{
    size_t elements = sizes[0] * sizes[0];
    struct CUstream_st *stream = ptb_cuda_stream(r->stream);
    PTB_CUDA(cudaEventCreate(&r->begin));
    PTB_CUDA(cudaEventCreate(&r->end));
    PTB_CUDA(ptb_cuda_launch_noise(stream, r->type, r->a, elements));
    PTB_CUDA(ptb_cuda_launch_noise(stream, r->type, r->b, elements));
    for (int i = 0; i < 2; i++)
        PTB_TRY(measure_size(r, sizes[i], best));
    return PTB_OK;
}

ptb_status ptb_cuda_matmul_peak(ptb_stream *stream, ptb_dtype type, int threads, double *flops_per_s)
{
    const size_t *sizes = stream->device->simulated ? simulated_sizes : real_sizes;
    peak_run r = {.stream = stream, .type = type};
    double best = 0;
    (void)threads; // a property of hosts
    if (type != PTB_F32 && type != PTB_BF16 && type != PTB_F16) {
        ptb_error("the peak of matrix products is measured for f32, bf16 or f16, not %s",
                  ptb_dtype_name(type));
        return PTB_USAGE;
    }
    size_t bytes = sizes[0] * sizes[0] * ptb_dtype_size(type);
    PTB_TRY(ptb_stream_sync(stream));
    // Not from the device's ledger: a measurement's operands are no memory of the step.
    cudaError_t error = cudaMallocAsync((void **)&r.a, 3 * bytes, ptb_cuda_stream(stream));
    if (error == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        ptb_warn(
            "%zu bytes to measure the peak of matrix products are not free on GPU %d beside the model, so "
            "nothing is compared with it; use a smaller model or batch, or say --peak of a training step",
            3 * bytes, ptb_cuda_index(stream->device));
        return PTB_NO_MEMORY;
    }
    PTB_TRY(ptb_cuda_check((int)error, "cudaMallocAsync", __FILE__, __LINE__));
    r.b = r.a + bytes;
    r.d = r.b + bytes;
    ptb_status status = measure(&r, sizes, &best);
    if (r.end)
        cudaEventDestroy(r.end);
    if (r.begin)
        cudaEventDestroy(r.begin);
    error = cudaFreeAsync(r.a, ptb_cuda_stream(stream));
    PTB_TRY(status); // said already, and why freeing failed
    PTB_TRY(ptb_cuda_check((int)error, "cudaFreeAsync", __FILE__, __LINE__));
    PTB_TRY(ptb_stream_sync(stream));
    *flops_per_s = best;
    return PTB_OK;
}

ptb_status ptb_cuda_copy(ptb_stream *stream, void *to, const void *from, size_t bytes, bool streaming)
{
    if (!streaming)
        return ptb_stream_copy(stream, to, from, bytes);
    PTB_CUDA(ptb_cuda_launch_copy(ptb_cuda_stream(stream), to, from, bytes));
    return PTB_OK;
}

ptb_status ptb_cuda_read(ptb_stream *stream, const void *from, size_t bytes)
{
    void *spare;
    PTB_TRY(ptb_cuda_scratch(stream, sizeof(unsigned), &spare));
    PTB_CUDA(ptb_cuda_launch_read(ptb_cuda_stream(stream), from, bytes, spare));
    return PTB_OK;
}
