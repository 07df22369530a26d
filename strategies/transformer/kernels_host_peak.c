// The best rate of matrix products on this machine, which utilisation is measured against: the better of the
// host kernels' own product and oneDNN's, an independent library, so that the yardstick is not shorter than
// what others reach.
#include "strategies/transformer/kernels_host.h"

#include "core/clock.h"
#include "core/log.h"
#include "strategies/transformer/kernels_host_gemm.h"

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

// ---- oneDNN's product with weights in the order it likes best, packed before it is timed

#if DNNL_VERSION_MAJOR == 2

typedef struct {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_desc_t description;
    dnnl_primitive_t product;
    dnnl_memory_t in, weight, out;
} library_product;

static void library_release(library_product *p)
{
    dnnl_memory_destroy(p->out);
    dnnl_memory_destroy(p->weight);
    dnnl_memory_destroy(p->in);
    dnnl_primitive_destroy(p->product);
    dnnl_primitive_desc_destroy(p->description);
    dnnl_stream_destroy(p->stream);
    dnnl_engine_destroy(p->engine);
}

// out [m, n] = in [m, k] * weight [k, n], all in one type. The weights' values do not matter to time, so they
// are what the memory held (zeros). False: the library cannot.
static bool library_init(library_product *p, ptb_dtype type, size_t m, size_t n, size_t k, void *in,
                         void *weight, size_t weight_bytes, void *out)
{
    *p = (library_product){0};
    dnnl_data_type_t t = type == PTB_BF16 ? dnnl_bf16 : dnnl_f32;
    const dnnl_dims_t in_dims = {(dnnl_dim_t)m, (dnnl_dim_t)k}, weight_dims = {(dnnl_dim_t)k, (dnnl_dim_t)n},
                      out_dims = {(dnnl_dim_t)m, (dnnl_dim_t)n};
    dnnl_memory_desc_t in_memory, weight_memory, out_memory;
    dnnl_matmul_desc_t matmul;
    bool fine =
        dnnl_engine_create(&p->engine, dnnl_cpu, 0) == dnnl_success &&
        dnnl_stream_create(&p->stream, p->engine, dnnl_stream_default_flags) == dnnl_success &&
        dnnl_memory_desc_init_by_tag(&in_memory, 2, in_dims, t, dnnl_ab) == dnnl_success &&
        dnnl_memory_desc_init_by_tag(&weight_memory, 2, weight_dims, t, dnnl_format_tag_any) ==
            dnnl_success &&
        dnnl_memory_desc_init_by_tag(&out_memory, 2, out_dims, t, dnnl_ab) == dnnl_success &&
        dnnl_matmul_desc_init(&matmul, &in_memory, &weight_memory, NULL, &out_memory) == dnnl_success &&
        dnnl_primitive_desc_create(&p->description, &matmul, NULL, p->engine, NULL) == dnnl_success;
    if (fine) {
        const dnnl_memory_desc_t *packed =
            dnnl_primitive_desc_query_md(p->description, dnnl_query_weights_md, 0);
        fine = dnnl_memory_desc_get_size(packed) <= weight_bytes &&
               dnnl_primitive_create(&p->product, p->description) == dnnl_success &&
               dnnl_memory_create(&p->in, &in_memory, p->engine, in) == dnnl_success &&
               dnnl_memory_create(&p->weight, packed, p->engine, weight) == dnnl_success &&
               dnnl_memory_create(&p->out, &out_memory, p->engine, out) == dnnl_success;
    }
    if (!fine)
        library_release(p);
    return fine;
}

static bool library_run(library_product *p)
{
    const dnnl_exec_arg_t arguments[] = {
        {DNNL_ARG_SRC, p->in}, {DNNL_ARG_WEIGHTS, p->weight}, {DNNL_ARG_DST, p->out}};
    return dnnl_primitive_execute(p->product, p->stream, 3, arguments) == dnnl_success &&
           dnnl_stream_wait(p->stream) == dnnl_success;
}

#else

// The primitives of other versions have another interface; oneDNN's sgemm and our own product remain.
typedef struct {
    char none;
} library_product;

static void library_release(library_product *p)
{
    (void)p;
}

static bool library_init(library_product *p, ptb_dtype type, size_t m, size_t n, size_t k, void *in,
                         void *weight, size_t weight_bytes, void *out)
{
    (void)p, (void)type, (void)m, (void)n, (void)k, (void)in, (void)weight, (void)weight_bytes, (void)out;
    return false;
}

static bool library_run(library_product *p)
{
    (void)p;
    return false;
}

#endif

// ---- measuring

// Rows x columns x depth. The wide one is a feed-forward layer of GPT-2 124M.
static const size_t shapes[][3] = {{1024, 3072, 768}, {1024, 1024, 1024}};
enum {
    ELEMENTS = 1024 * 3072,    // most of any of the three matrices
    ROUNDS = 8,                // of each candidate, in turn
    BUDGET_NS = 700 * 1000000, // no new round after this
};

typedef struct {
    ptb_stream *stream;
    ptb_dtype type;
    int threads;
    double *flops_per_s;
} peak_call;

typedef struct {
    const peak_call *call;
    char *in, *weight, *out; // ELEMENTS f32 each
    char *scratch;
    size_t stride, m, n, k;
    library_product library;
} peak_run;

static ptb_status run_own(peak_run *r)
{
    ptb_dtype type = r->call->type;
    ptb_gemm g = {.rows = r->m,
                  .columns = r->n,
                  .depth = r->k,
                  .a = {r->in, type, r->k, true},
                  .b = {r->weight, type, r->n, false},
                  .out = r->out,
                  .out_type = type,
                  .out_stride = r->n};
#pragma omp parallel num_threads(r->call->threads)
    ptb_host_gemm_part(&g, omp_get_thread_num(), omp_get_num_threads(),
                       r->scratch + (size_t)omp_get_thread_num() * r->stride);
    return PTB_OK;
}

static ptb_status run_sgemm(peak_run *r)
{
    if (r->call->type == PTB_BF16)
        return PTB_SKIPPED;
    return ptb_host_sgemm('N', 'N', r->m, r->n, r->k, 1, (float *)r->in, r->k, (float *)r->weight, r->n, 0,
                          (float *)r->out, r->n);
}

static ptb_status run_packed(peak_run *r)
{
    return library_run(&r->library) ? PTB_OK : PTB_SYSTEM;
}

// Best rate of a candidate in `best`, over rounds in which each runs once.
static ptb_status measure_shape(peak_run *r, int64_t deadline, double *best)
{
    ptb_status (*const candidates[])(peak_run *) = {run_own, run_sgemm, run_packed};
    bool has_library = library_init(&r->library, r->call->type, r->m, r->n, r->k, r->in, r->weight,
                                    ELEMENTS * sizeof(float), r->out);
    ptb_status status = PTB_OK;
    double flops = 2.0 * (double)r->m * (double)r->n * (double)r->k;
    for (int round = 0; status == PTB_OK && round < ROUNDS && (round < 2 || ptb_clock_ns() < deadline);
         round++)
        for (int i = 0; i < (has_library ? 3 : 2) && status == PTB_OK; i++) {
            int64_t begin = ptb_clock_ns();
            status = candidates[i](r);
            if (status == PTB_SKIPPED) {
                status = PTB_OK;
                continue;
            }
            double rate = flops / ((double)(ptb_clock_ns() - begin) * 1e-9);
            *best = rate > *best ? rate : *best;
        }
    if (has_library)
        library_release(&r->library);
    return status;
}

static ptb_status run_peak(void *arg)
{
    const peak_call *call = arg;
    peak_run r = {.call = call};
    size_t bytes = ELEMENTS * sizeof(float);
    void *memory;
    double best = 0;
    PTB_TRY(ptb_host_stream_scratch(call->stream, call->threads, &r.scratch, &r.stride));
    PTB_TRY(ptb_memory_map(3 * bytes, &memory));
    r.in = memory;
    r.weight = r.in + bytes;
    r.out = r.weight + bytes;
    int before = omp_get_max_threads();
    omp_set_num_threads(call->threads);
    int64_t begin = ptb_clock_ns();
    ptb_status status = PTB_OK;
    size_t count = sizeof shapes / sizeof *shapes;
    for (size_t i = 0; i < count && status == PTB_OK; i++) {
        r.m = shapes[i][0];
        r.n = shapes[i][1];
        r.k = shapes[i][2];
        status = measure_shape(&r, begin + (int64_t)BUDGET_NS * (int64_t)(i + 1) / (int64_t)count, &best);
    }
    omp_set_num_threads(before);
    ptb_memory_unmap(memory, 3 * bytes);
    if (status == PTB_OK)
        *call->flops_per_s = best;
    return status;
}

ptb_status ptb_host_matmul_peak(ptb_stream *stream, ptb_dtype type, int threads, double *flops_per_s)
{
    double best = 0;
    // f16 is converted and multiplied in f32 (no processor with AVX2 or AVX-512 as supported here has more).
    peak_call call = {stream, type == PTB_F16 ? PTB_F32 : type, threads, &best};
    if (threads < 1 || (type != PTB_F32 && type != PTB_BF16 && type != PTB_F16)) {
        ptb_error(
            "the peak of matrix products is measured for f32, bf16 or f16 and at least 1 thread, not %s "
            "and %d",
            ptb_dtype_name(type), threads);
        return PTB_USAGE;
    }
    PTB_TRY(ptb_stream_call(stream, run_peak, &call, sizeof call));
    PTB_TRY(ptb_stream_sync(stream));
    *flops_per_s = best;
    return PTB_OK;
}
