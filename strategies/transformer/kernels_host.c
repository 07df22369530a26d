// Host kernels: matrix products through oneDNN's sgemm, and the table of the back-end. Attention is in
// kernels_host_attention.c, elementwise and row kernels in kernels_host_rows.c. Threads are OpenMP's, which
// oneDNN uses too; their number is a property of the thread that runs the stream.
#include "strategies/transformer/kernels_host.h"

#include "core/log.h"

#include <dnnl.h>
#include <omp.h>

ptb_status ptb_host_sgemm(char trans_a, char trans_b, size_t m, size_t n, size_t k, float alpha,
                          const float *a, size_t lda, const float *b, size_t ldb, float beta, float *c,
                          size_t ldc)
{
    if (!m || !n)
        return PTB_OK;
    dnnl_status_t status = dnnl_sgemm(trans_a, trans_b, (dnnl_dim_t)m, (dnnl_dim_t)n, (dnnl_dim_t)k, alpha, a,
                                      (dnnl_dim_t)lda, b, (dnnl_dim_t)ldb, beta, c, (dnnl_dim_t)ldc);
    if (status == dnnl_success)
        return PTB_OK;
    ptb_error("oneDNN refused a matrix product of %zu x %zu x %zu (dnnl_status_t %d)", m, n, k, (int)status);
    return status == dnnl_out_of_memory ? PTB_NO_MEMORY : PTB_SYSTEM;
}

// Fills out with what the product is added to; false when that is nothing.
static bool fill_addend(const ptb_matmul *a)
{
    size_t columns = a->columns;
    const float *bias = a->bias, *addend = a->residual;
    float *sum = a->out;
    if (!bias && !addend)
        return false;
    if (!bias && addend == sum)
        return true;
#pragma omp parallel for schedule(static)
    for (size_t r = 0; r < a->rows; r++) {
        float *out = sum + r * columns;
        const float *residual = addend ? addend + r * columns : NULL;
        if (!residual) {
            memcpy(out, bias, columns * sizeof *out);
        } else if (!bias) {
            memcpy(out, residual, columns * sizeof *out);
        } else {
            for (size_t c = 0; c < columns; c++)
                out[c] = residual[c] + bias[c];
        }
    }
    return true;
}

ptb_status ptb_host_run_matmul(void *arg)
{
    const ptb_matmul *a = arg;
    float beta = fill_addend(a) ? 1 : 0;
    return ptb_host_sgemm('N', 'T', a->rows, a->columns, a->inner, 1, a->in, a->inner, a->weight, a->inner,
                          beta, a->out, a->columns);
}

ptb_status ptb_host_run_matmul_input_gradient(void *arg)
{
    const ptb_matmul_input_gradient *a = arg;
    return ptb_host_sgemm('N', 'N', a->rows, a->inner, a->columns, 1, a->d_out, a->columns, a->weight,
                          a->inner, a->accumulate ? 1 : 0, a->d_in, a->inner);
}

// Column sums, a strip of columns a task so that the result does not depend on the number of threads.
static void sum_columns(const ptb_matmul_weight_gradient *a)
{
    enum { STRIP = 64 };
    size_t columns = a->columns;
#pragma omp parallel for schedule(static)
    for (size_t first = 0; first < columns; first += STRIP) {
        size_t width = columns - first < STRIP ? columns - first : STRIP;
        float sums[STRIP] = {0};
        for (size_t r = 0; r < a->rows; r++) {
            const float *row = (const float *)a->d_out + r * columns + first;
            for (size_t c = 0; c < width; c++)
                sums[c] += row[c];
        }
        for (size_t c = 0; c < width; c++)
            a->d_bias[first + c] = sums[c] + (a->accumulate ? a->d_bias[first + c] : 0);
    }
}

ptb_status ptb_host_run_matmul_weight_gradient(void *arg)
{
    const ptb_matmul_weight_gradient *a = arg;
    if (a->d_bias)
        sum_columns(a);
    return ptb_host_sgemm('T', 'N', a->columns, a->inner, a->rows, 1, a->d_out, a->columns, a->in, a->inner,
                          a->accumulate ? 1 : 0, a->d_weight, a->inner);
}

static ptb_status run_set_threads(void *arg)
{
    omp_set_num_threads(*(const int *)arg);
    return PTB_OK;
}

static ptb_status set_threads(ptb_stream *stream, int threads)
{
    return ptb_stream_call(stream, run_set_threads, &threads, sizeof threads);
}

#define X(method, arguments)                                                                                 \
    _Static_assert(sizeof(arguments) <= PTB_CALL_BYTES,                                                      \
                   "arguments of a kernel must fit into a stream's call");                                   \
    static ptb_status method(ptb_stream *stream, const arguments *args)                                      \
    {                                                                                                        \
        return ptb_stream_call(stream, ptb_host_run_##method, args, sizeof *args);                           \
    }
PTB_KERNEL_LIST(X)
#undef X

static const ptb_kernels host_kernels = {
    .plugin = {"host", "f32 on the processor: oneDNN sgemm and vectorised loops"},
#define X(method, arguments) .method = method,
    PTB_KERNEL_LIST(X)
#undef X
        .types = 1u << PTB_F32,
    .set_threads = set_threads,
    .attention_workspace = ptb_host_attention_workspace,
    .attention_flops = ptb_host_attention_flops,
};
PTB_REGISTER(PTB_KIND_KERNELS, host_kernels);
