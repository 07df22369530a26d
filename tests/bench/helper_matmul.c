// helper_matmul THREADS ROWS: rates of the matrix products of GPT-2 124M's linear layers (forward, input
// gradient, weight gradient) in the host kernels and in other libraries, in turn in one process, and their
// ratio to the best rate that any of them reached in this run in products of large matrices. Candidates: own;
// oneDNN's sgemm; oneDNN's matmul primitive with operands as they are (plain), with weights packed beforehand
// (packed) and in each call (repacked), from oneDNN 2 only; OpenBLAS and BLIS where HELPER_OPENBLAS and
// HELPER_BLIS name their shared libraries. HELPER_ROUNDS: rounds (5). HELPER_CLOCK=cpu: processor time in
// place of time, to be used with 1 thread on a busy machine.
#include "core/stats.h"
#include "strategies/transformer/kernels_host.h"

#include <dlfcn.h>
#include <dnnl.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { ROUNDS_MAX = 100, PRODUCTS = 3, CANDIDATES = 7, HEAD_ROWS = 256, VOCABULARY = 50257, WIDE = 3072 };

typedef struct {
    const char *name;
    size_t rows, columns, inner; // of the linear layer; rows 0: as asked
} layer;
// The last two are not layers: how fast each candidate is at its best.
static const layer layers[] = {
    {"qkv", 0, 2304, 768},    {"projection", 0, 768, 768},          {"up", 0, WIDE, 768},
    {"down", 0, 768, WIDE},   {"head", HEAD_ROWS, VOCABULARY, 768}, {"square", 2048, 2048, 2048},
    {"tall", 2048, WIDE, 768}};
enum { LAYERS = sizeof layers / sizeof *layers, PEAKS = 2 };
static const char *const product_names[] = {"forward", "input gradient", "weight gradient"};

typedef void cblas_sgemm_fn(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                            const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc);

typedef struct {
    ptb_stream *stream;
    const ptb_kernels *kernels;
    dnnl_engine_t engine;
    dnnl_stream_t library_stream;
    cblas_sgemm_fn *openblas, *blis;
    char *in, *d_in, *out, *weight, *d_weight, *packed; // large enough for every layer in f32
    size_t packed_bytes;
    clockid_t clock;
} bench;

// One product: out[m, n] = a[m, k] * b[k, n]; 'T': the operand lies in memory transposed.
typedef struct {
    const bench *b;
    ptb_dtype type;
    int which; // of product_names
    size_t rows, columns, inner;
    size_t m, n, k;
    char trans_a, trans_b;
    void *out;
    const void *a, *weight;
    // oneDNN's
    dnnl_primitive_t product, reorder;
    dnnl_memory_t memory_a, memory_b, memory_packed, memory_out;
} product;

static product product_of(const bench *b, const layer *l, size_t rows, ptb_dtype type, int which)
{
    product p = {.b = b, .type = type, .which = which, .columns = l->columns, .inner = l->inner};
    p.rows = l->rows ? l->rows : rows;
    p.trans_a = which == 2 ? 'T' : 'N';
    p.trans_b = which == 0 ? 'T' : 'N';
    p.m = which == 2 ? p.columns : p.rows;
    p.n = which == 0 ? p.columns : p.inner;
    p.k = which == 0 ? p.inner : which == 1 ? p.columns : p.rows;
    p.a = which == 0 ? b->in : b->out;
    p.weight = which == 2 ? b->in : b->weight;
    p.out = which == 0 ? b->out : which == 1 ? b->d_in : b->d_weight;
    return p;
}

// ---- candidates: false where they cannot

static bool run_own(product *p)
{
    const bench *b = p->b;
    ptb_status status;
    if (p->which == 0)
        status = b->kernels->matmul(b->stream, &(ptb_matmul){.out = b->out,
                                                             .in = b->in,
                                                             .weight = b->weight,
                                                             .rows = p->rows,
                                                             .columns = p->columns,
                                                             .inner = p->inner,
                                                             .type = p->type});
    else if (p->which == 1)
        status =
            b->kernels->matmul_input_gradient(b->stream, &(ptb_matmul_input_gradient){.d_in = b->d_in,
                                                                                      .d_out = b->out,
                                                                                      .weight = b->weight,
                                                                                      .rows = p->rows,
                                                                                      .columns = p->columns,
                                                                                      .inner = p->inner,
                                                                                      .type = p->type});
    else
        status = b->kernels->matmul_weight_gradient(
            b->stream, &(ptb_matmul_weight_gradient){.d_weight = (float *)b->d_weight,
                                                     .d_out = b->out,
                                                     .in = b->in,
                                                     .rows = p->rows,
                                                     .columns = p->columns,
                                                     .inner = p->inner,
                                                     .type = p->type});
    return status == PTB_OK;
}

static bool run_sgemm(product *p)
{
    return p->type == PTB_F32 &&
           ptb_host_sgemm(p->trans_a, p->trans_b, p->m, p->n, p->k, 1, p->a, p->trans_a == 'T' ? p->m : p->k,
                          p->weight, p->trans_b == 'T' ? p->k : p->n, 0, p->out, p->n) == PTB_OK;
}

static bool run_cblas(const product *p, cblas_sgemm_fn *sgemm)
{
    enum { ROW_MAJOR = 101, AS_IT_IS = 111, TRANSPOSED = 112 };
    if (!sgemm || p->type != PTB_F32)
        return false;
    sgemm(ROW_MAJOR, p->trans_a == 'T' ? TRANSPOSED : AS_IT_IS, p->trans_b == 'T' ? TRANSPOSED : AS_IT_IS,
          (int)p->m, (int)p->n, (int)p->k, 1, p->a, (int)(p->trans_a == 'T' ? p->m : p->k), p->weight,
          (int)(p->trans_b == 'T' ? p->k : p->n), 0, p->out, (int)p->n);
    return true;
}

static bool run_openblas(product *p)
{
    return run_cblas(p, p->b->openblas);
}

static bool run_blis(product *p)
{
    return run_cblas(p, p->b->blis);
}

static bool execute(product *p, dnnl_memory_t weight)
{
    const dnnl_exec_arg_t args[] = {
        {DNNL_ARG_SRC, p->memory_a}, {DNNL_ARG_WEIGHTS, weight}, {DNNL_ARG_DST, p->memory_out}};
    return dnnl_primitive_execute(p->product, p->b->library_stream, 3, args) == dnnl_success &&
           dnnl_stream_wait(p->b->library_stream) == dnnl_success;
}

static bool run_plain(product *p)
{
    return p->product && execute(p, p->memory_b);
}

static bool run_packed(product *p)
{
    return p->product && execute(p, p->memory_packed);
}

static bool repack(product *p)
{
    const dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, p->memory_b}, {DNNL_ARG_TO, p->memory_packed}};
    return dnnl_primitive_execute(p->reorder, p->b->library_stream, 2, args) == dnnl_success;
}

static bool run_repacked(product *p)
{
    return p->product && repack(p) && execute(p, p->memory_packed);
}

typedef struct {
    const char *name;
    bool (*run)(product *p);
    int primitive; // oneDNN's: 1 plain, 2 packed
} candidate;
static const candidate candidates[CANDIDATES] = {{"own", run_own, 0},           {"sgemm", run_sgemm, 0},
                                                 {"plain", run_plain, 1},       {"packed", run_packed, 2},
                                                 {"repacked", run_repacked, 2}, {"OpenBLAS", run_openblas, 0},
                                                 {"BLIS", run_blis, 0}};

#if DNNL_VERSION_MAJOR == 2
static bool primitive_init(product *p, bool packed)
{
    const bench *b = p->b;
    dnnl_data_type_t type = p->type == PTB_BF16 ? dnnl_bf16 : dnnl_f32;
    dnnl_data_type_t out_type = p->which == 2 ? dnnl_f32 : type;
    const dnnl_dims_t a_dims = {(dnnl_dim_t)p->m, (dnnl_dim_t)p->k},
                      b_dims = {(dnnl_dim_t)p->k, (dnnl_dim_t)p->n},
                      out_dims = {(dnnl_dim_t)p->m, (dnnl_dim_t)p->n};
    dnnl_memory_desc_t a, weight, any, out;
    dnnl_matmul_desc_t matmul;
    dnnl_primitive_desc_t description = NULL, reorder = NULL;
    bool fine =
        p->type != PTB_F16 &&
        !dnnl_memory_desc_init_by_tag(&a, 2, a_dims, type, p->trans_a == 'T' ? dnnl_ba : dnnl_ab) &&
        !dnnl_memory_desc_init_by_tag(&weight, 2, b_dims, type, p->trans_b == 'T' ? dnnl_ba : dnnl_ab) &&
        !dnnl_memory_desc_init_by_tag(&any, 2, b_dims, type, dnnl_format_tag_any) &&
        !dnnl_memory_desc_init_by_tag(&out, 2, out_dims, out_type, dnnl_ab) &&
        !dnnl_matmul_desc_init(&matmul, &a, packed ? &any : &weight, NULL, &out) &&
        !dnnl_primitive_desc_create(&description, &matmul, NULL, b->engine, NULL);
    if (fine) {
        const dnnl_memory_desc_t *wanted =
            dnnl_primitive_desc_query_md(description, dnnl_query_weights_md, 0);
        fine = dnnl_memory_desc_get_size(wanted) <= b->packed_bytes &&
               !dnnl_memory_create(&p->memory_a, &a, b->engine, (void *)p->a) &&
               !dnnl_memory_create(&p->memory_b, &weight, b->engine, (void *)p->weight) &&
               !dnnl_memory_create(&p->memory_packed, wanted, b->engine, b->packed) &&
               !dnnl_memory_create(&p->memory_out, &out, b->engine, p->out) &&
               !dnnl_reorder_primitive_desc_create(&reorder, &weight, b->engine, wanted, b->engine, NULL) &&
               !dnnl_primitive_create(&p->reorder, reorder) &&
               !dnnl_primitive_create(&p->product, description);
    }
    dnnl_primitive_desc_destroy(reorder);
    dnnl_primitive_desc_destroy(description);
    return fine && repack(p);
}

#else
// Other versions describe primitives otherwise; those candidates are left out.
static bool primitive_init(product *p, bool packed)
{
    (void)p, (void)packed;
    return false;
}
#endif

static void primitive_release(product *p)
{
    dnnl_primitive_destroy(p->product);
    dnnl_primitive_destroy(p->reorder);
    dnnl_memory_destroy(p->memory_a);
    dnnl_memory_destroy(p->memory_b);
    dnnl_memory_destroy(p->memory_packed);
    dnnl_memory_destroy(p->memory_out);
}

// ---- measuring

static double seconds(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// FLOP/s of one run; 0: this candidate cannot.
static double measure(const bench *b, const layer *l, size_t rows, ptb_dtype type, int which,
                      const candidate *c)
{
    product p = product_of(b, l, rows, type, which);
    double rate = 0;
    if (!c->primitive || primitive_init(&p, c->primitive == 2)) {
        double begin = seconds(b->clock);
        if (c->run(&p))
            rate = 2.0 * (double)p.m * (double)p.n * (double)p.k / (seconds(b->clock) - begin);
    }
    if (c->primitive)
        primitive_release(&p);
    return rate;
}

typedef struct {
    double rates[LAYERS][PRODUCTS][CANDIDATES][ROUNDS_MAX];
} results;

static void print_results(const results *r, size_t rows, ptb_dtype type, int threads, size_t rounds)
{
    double best = 0;
    int best_candidate = 0, best_layer = 0;
    for (int l = LAYERS - PEAKS; l < LAYERS; l++)
        for (int c = 0; c < CANDIDATES; c++)
            for (size_t i = 0; i < rounds; i++)
                if (r->rates[l][0][c][i] > best) {
                    best = r->rates[l][0][c][i];
                    best_candidate = c;
                    best_layer = l;
                }
    printf("== %s, %d thread%s, %zu rows (head: 256); best product: %.1f GFLOP/s (%s, %zu x %zu x %zu)\n",
           ptb_dtype_name(type), threads, threads == 1 ? "" : "s", rows, best * 1e-9,
           candidates[best_candidate].name, layers[best_layer].rows, layers[best_layer].columns,
           layers[best_layer].inner);
    printf("%-12s%-16s%-10s%10s   ratio to the best product: median (least, largest of %zu rounds)\n",
           "layer", "product", "candidate", "GFLOP/s", rounds);
    for (int l = 0; l < LAYERS - PEAKS; l++)
        for (int which = 0; which < PRODUCTS; which++)
            for (int c = 0; c < CANDIDATES; c++) {
                ptb_summary s = ptb_stats_summarise(r->rates[l][which][c], rounds);
                if (s.max > 0)
                    printf("%-12s%-16s%-10s%10.1f   %.3f (%.3f, %.3f)\n", layers[l].name,
                           product_names[which], candidates[c].name, s.median * 1e-9, s.median / best,
                           s.min / best, s.max / best);
            }
}

static void run_type(const bench *b, results *r, size_t rows, ptb_dtype type, int threads, size_t rounds)
{
    memset(r, 0, sizeof *r);
    for (size_t round = 0; round <= rounds; round++) // the first is not kept: first use of memory and code
        for (int l = 0; l < LAYERS; l++)
            for (int which = 0; which < (l < LAYERS - PEAKS ? PRODUCTS : 1); which++)
                for (int c = 0; c < CANDIDATES; c++) {
                    double rate = measure(b, &layers[l], rows, type, which, &candidates[c]);
                    r->rates[l][which][c][round ? round - 1 : 0] = rate;
                }
    print_results(r, rows, type, threads, rounds);
}

// The library is another copy of cblas_sgemm, so its symbols stay its own.
static cblas_sgemm_fn *library_of(const char *variable)
{
    const char *path = getenv(variable);
    void *library = path && *path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (path && *path && !library)
        fprintf(stderr, "%s is not compared: %s\n", path, dlerror());
    return library ? (cblas_sgemm_fn *)dlsym(library, "cblas_sgemm") : NULL;
}

static ptb_status open_bench(bench *b, ptb_device *device, size_t rows, int threads)
{
    size_t all_rows = rows > 2048 ? rows : 2048, wide = all_rows * WIDE * sizeof(float);
    size_t logits = HEAD_ROWS * (size_t)VOCABULARY * sizeof(float);
    size_t table = (size_t)VOCABULARY * 768 * sizeof(float);
    b->clock = CLOCK_MONOTONIC;
    if (getenv("HELPER_CLOCK") && strcmp(getenv("HELPER_CLOCK"), "cpu") == 0)
        b->clock = CLOCK_PROCESS_CPUTIME_ID;
    b->packed_bytes = table + table / 4;
    b->kernels = (const ptb_kernels *)ptb_registry_find(PTB_KIND_KERNELS, "host");
    omp_set_num_threads(threads);
    // A stream that is this thread: libraries then find the same threads as our own kernels.
    PTB_TRY(ptb_stream_new(device, PTB_STREAM_CALLER, 1, &b->stream));
    PTB_TRY(b->kernels->set_threads(b->stream, threads));
    PTB_TRY(b->kernels->reserve(b->stream));
    PTB_TRY(ptb_device_alloc(device, PTB_MEMORY_WORKSPACE, wide, (void **)&b->in));
    PTB_TRY(ptb_device_alloc(device, PTB_MEMORY_WORKSPACE, wide, (void **)&b->d_in));
    PTB_TRY(ptb_device_alloc(device, PTB_MEMORY_WORKSPACE, logits > wide ? logits : wide, (void **)&b->out));
    PTB_TRY(ptb_device_alloc(device, PTB_MEMORY_WORKSPACE, table, (void **)&b->weight));
    PTB_TRY(ptb_device_alloc(device, PTB_MEMORY_WORKSPACE, table, (void **)&b->d_weight));
    PTB_TRY(ptb_device_alloc(device, PTB_MEMORY_WORKSPACE, b->packed_bytes, (void **)&b->packed));
    // Ordinary numbers in every type.
    memset(b->in, 0x3c, wide);
    memset(b->out, 0x3c, logits > wide ? logits : wide);
    memset(b->weight, 0x3c, table);
    if (dnnl_engine_create(&b->engine, dnnl_cpu, 0) != dnnl_success ||
        dnnl_stream_create(&b->library_stream, b->engine, dnnl_stream_default_flags) != dnnl_success)
        return PTB_SYSTEM;
    b->openblas = library_of("HELPER_OPENBLAS");
    b->blis = library_of("HELPER_BLIS");
    return PTB_OK;
}

int main(int argc, char **argv)
{
    int threads = argc == 3 ? atoi(argv[1]) : 0, rows = argc == 3 ? atoi(argv[2]) : 0;
    const char *asked = getenv("HELPER_ROUNDS");
    size_t rounds = asked ? (size_t)atoi(asked) : 5;
    if (threads < 1 || rows < 1 || rounds < 1 || rounds > ROUNDS_MAX) {
        fprintf(stderr, "usage: %s THREADS ROWS, both at least 1; HELPER_ROUNDS 1 to %d\n", argv[0],
                ROUNDS_MAX);
        return 2;
    }
    bench b = {0};
    ptb_device *device;
    ptb_status status = ptb_device_open("host", 0, &device);
    results *r = calloc(1, sizeof *r);
    if (status == PTB_OK)
        status = r ? open_bench(&b, device, (size_t)rows, threads) : PTB_NO_MEMORY;
    static const ptb_dtype types[] = {PTB_F32, PTB_BF16, PTB_F16};
    for (size_t t = 0; t < 3 && status == PTB_OK; t++)
        run_type(&b, r, (size_t)rows, types[t], threads, rounds);
    free(r);
    return ptb_status_exit_code(status); // the process ends with all it has
}
