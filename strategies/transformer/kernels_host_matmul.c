// Linear layers of the host kernels: forward, input gradient and weight gradient as matrix products
// (kernels_host_gemm.h), one a group, over the threads of the stream. Bias, residual and the bias's gradient
// are part of the products.
#include "strategies/transformer/kernels_host.h"

#include "core/log.h"
#include "strategies/transformer/kernels_host_gemm.h"

#include <omp.h>
#include <stdlib.h>

// ---- what the kernels keep with a stream: packing memory for each of its threads

typedef struct {
    size_t bytes; // a thread
    int threads;
    char *memory;
} stream_scratch;

static size_t thread_bytes(void)
{
    return (ptb_host_gemm_scratch() + 4095) / 4096 * 4096;
}

size_t ptb_host_stream_workspace(int threads)
{
    return thread_bytes() * (size_t)threads;
}

static void free_scratch(ptb_stream *stream)
{
    stream_scratch *scratch = stream->attached;
    ptb_device_free(stream->device, scratch->memory);
    free(scratch);
}

ptb_status ptb_host_stream_scratch(ptb_stream *stream, int threads, char **memory, size_t *stride)
{
    stream_scratch *scratch = stream->attached;
    if (!scratch) {
        scratch = calloc(1, sizeof *scratch);
        if (!scratch) {
            ptb_error("no memory for what the host kernels keep with a stream");
            return PTB_NO_MEMORY;
        }
        scratch->bytes = thread_bytes();
        stream->attached = scratch;
        stream->attached_free = free_scratch;
    }
    if (scratch->threads < threads) {
        ptb_device_free(stream->device, scratch->memory);
        scratch->memory = NULL;
        scratch->threads = 0;
        PTB_TRY(ptb_device_alloc(stream->device, PTB_MEMORY_WORKSPACE, ptb_host_stream_workspace(threads),
                                 (void **)&scratch->memory));
        scratch->threads = threads;
    }
    *memory = scratch->memory;
    *stride = scratch->bytes;
    return PTB_OK;
}

// ---- products

// The product of group `group` from that of all rows: make(call, group, rows of the group) fills it.
typedef struct {
    size_t rows, groups;
    const int32_t *offsets;
    void (*make)(const void *call, size_t group, size_t first, size_t rows, ptb_gemm *g);
    const void *call;
} product;

// Offsets come from the device, where nobody looked at them before.
static ptb_status check_offsets(const product *p)
{
    int64_t before = 0;
    for (size_t i = 0; i <= p->groups && p->groups; i++) {
        if (p->offsets[i] < before || (i == 0 && p->offsets[0] != 0) || (size_t)p->offsets[i] > p->rows) {
            ptb_error("offset %zu of %zu groups is %d; expected 0 first, then rising, at most %zu rows", i,
                      p->groups, (int)p->offsets[i], p->rows);
            return PTB_INTERNAL;
        }
        before = p->offsets[i];
    }
    return PTB_OK;
}

static ptb_status run(const product *p, ptb_stream *stream)
{
    int threads = omp_get_max_threads();
    char *memory;
    size_t stride;
    PTB_TRY(check_offsets(p));
    PTB_TRY(ptb_host_stream_scratch(stream, threads, &memory, &stride));
#pragma omp parallel num_threads(threads)
    {
        int thread = omp_get_thread_num(), count = omp_get_num_threads();
        for (size_t i = 0; i < (p->groups ? p->groups : 1); i++) {
            size_t first = p->groups ? (size_t)p->offsets[i] : 0;
            size_t rows = p->groups ? (size_t)p->offsets[i + 1] - first : p->rows;
            ptb_gemm g;
            p->make(p->call, i, first, rows, &g);
            ptb_host_gemm_part(&g, thread, count, memory + (size_t)thread * stride);
        }
    }
    return PTB_OK;
}

// `elements` behind a pointer that may be NULL
static const void *behind(const void *pointer, size_t elements, ptb_dtype type)
{
    return pointer ? (const char *)pointer + elements * ptb_dtype_size(type) : NULL;
}

static void make_forward(const void *call, size_t group, size_t first, size_t rows, ptb_gemm *g)
{
    const ptb_matmul *m = call;
    ptb_dtype out_type = m->wide ? PTB_F32 : m->type;
    size_t n = m->columns, k = m->inner, stride = ptb_row_stride(m->out_stride, n);
    *g = (ptb_gemm){
        .rows = rows,
        .columns = n,
        .depth = k,
        .a = {behind(m->in, first * k, m->type), m->type, k, true},
        .b = {behind(m->weight, group * n * k, m->type), m->type, k, true},
        .out = (char *)m->out + first * stride * ptb_dtype_size(out_type),
        .addend = behind(m->residual, first * stride, out_type),
        .out_type = out_type,
        .out_stride = stride,
        .bias = behind(m->bias, group * n, m->type),
        .bias_type = m->type,
    };
}

static void make_input_gradient(const void *call, size_t group, size_t first, size_t rows, ptb_gemm *g)
{
    const ptb_matmul_input_gradient *m = call;
    size_t n = m->columns, k = m->inner, stride = ptb_row_stride(m->d_out_stride, n);
    void *d_in = (char *)m->d_in + first * k * ptb_dtype_size(m->type);
    *g = (ptb_gemm){
        .rows = rows,
        .columns = k,
        .depth = n,
        .a = {behind(m->d_out, first * stride, m->type), m->type, stride, true},
        .b = {behind(m->weight, group * n * k, m->type), m->type, k, false},
        .out = d_in,
        .addend = m->accumulate ? d_in : NULL,
        .out_type = m->type,
        .out_stride = k,
    };
}

static void make_weight_gradient(const void *call, size_t group, size_t first, size_t rows, ptb_gemm *g)
{
    const ptb_matmul_weight_gradient *m = call;
    size_t n = m->columns, k = m->inner, stride = ptb_row_stride(m->d_out_stride, n);
    float *d_weight = m->d_weight + group * n * k;
    *g = (ptb_gemm){
        .rows = n,
        .columns = k,
        .depth = rows,
        .a = {behind(m->d_out, first * stride, m->type), m->type, stride, false},
        .b = {behind(m->in, first * k, m->type), m->type, k, false},
        .out = d_weight,
        .addend = m->accumulate ? d_weight : NULL,
        .out_type = PTB_F32,
        .out_stride = k,
        .sums = m->d_bias ? m->d_bias + group * n : NULL,
        .sums_accumulate = m->accumulate,
    };
}

// Rows of a layer that are part of the product.
static size_t used_rows(const product *p)
{
    return p->groups ? (size_t)p->offsets[p->groups] : p->rows;
}

// GELU is a pass of its own: the results are in the caches of the threads that made them, or too large for
// any.
ptb_status ptb_host_run_matmul(void *arg)
{
    const ptb_matmul *m = arg;
    product p = {m->rows, m->groups, m->offsets, make_forward, m};
    if (m->activated && (m->wide || m->out_stride)) {
        ptb_error("a linear layer with wide or strided results has no activation");
        return PTB_INTERNAL;
    }
    PTB_TRY(run(&p, ptb_host_stream_of(arg, sizeof *m)));
    if (!m->activated)
        return PTB_OK;
    return ptb_host_run_activation(&(ptb_activation){.out = m->activated,
                                                     .in = m->out,
                                                     .rows = used_rows(&p),
                                                     .width = m->columns,
                                                     .kind = PTB_GELU,
                                                     .type = m->type});
}

ptb_status ptb_host_run_matmul_input_gradient(void *arg)
{
    const ptb_matmul_input_gradient *m = arg;
    product p = {m->rows, m->groups, m->offsets, make_input_gradient, m};
    PTB_TRY(run(&p, ptb_host_stream_of(arg, sizeof *m)));
    if (!m->gelu_in)
        return PTB_OK;
    return ptb_host_run_activation_gradient(&(ptb_activation_gradient){.d_in = m->d_in,
                                                                       .d_out = m->d_in,
                                                                       .in = m->gelu_in,
                                                                       .rows = used_rows(&p),
                                                                       .width = m->inner,
                                                                       .kind = PTB_GELU,
                                                                       .type = m->type});
}

ptb_status ptb_host_run_matmul_weight_gradient(void *arg)
{
    const ptb_matmul_weight_gradient *m = arg;
    product p = {m->rows, m->groups, m->offsets, make_weight_gradient, m};
    return run(&p, ptb_host_stream_of(arg, sizeof *m));
}
