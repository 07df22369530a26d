// The benchmark `kernels`: every kernel of a back-end in the shapes that a model gives it, alone, against
// what limits it: products and attention against the best rate of matrix products, the others against a copy
// that reads and writes as many bytes, or a read of
// them where next to nothing is written. Cases: kernel x place in the model x type.
#include "strategies/kernels_bench.h"

#include "core/log.h"
#include "core/random.h"
#include "strategies/backends.h"
#include "strategies/crowd.h"
#include "strategies/model_options.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LIST_MAX = 64,
    LIMIT_TRIES = 2,
    KERNEL_COUNT = 0
#define X(method, arguments) +1
    PTB_KERNEL_LIST(X)
#undef X
};

static const char *const kernel_names[] = {"all",
#define X(method, arguments) #method,
                                           PTB_KERNEL_LIST(X)
#undef X
                                               NULL};
static const ptb_kernel_entry *const entries[] = {
#define X(method, arguments) &ptb_kernel_entry_##method,
    PTB_KERNEL_LIST(X)
#undef X
};

#define X(method, argument_type)                                                                             \
    static ptb_status run_##method(const ptb_kernel_call *c)                                                 \
    {                                                                                                        \
        return c->kernels->method(c->stream, (const argument_type *)c->arguments);                           \
    }
PTB_KERNEL_LIST(X)
#undef X
static ptb_status (*const run_kernel[])(const ptb_kernel_call *c) = {
#define X(method, arguments) run_##method,
    PTB_KERNEL_LIST(X)
#undef X
};

typedef struct {
    char *kernel, *layer, *precision, *kernels, *device;
    int64_t rows, threads;
    ptb_model_options model;
} kernels_config;

static const char *const layer_names[] = {
    "all",         "qkv",        "projection",   "up",    "down",      "head",      "router",    "shared_up",
    "shared_down", "experts_up", "experts_down", "block", "embedding", "head-half", "optimizer", NULL};
static const char *const precisions[] = {"f32", "bf16", "f16", NULL};

#define FIELD(field) offsetof(kernels_config, field)
static const ptb_opt kernels_opts[] = {
    {"kernel", 0, PTB_OPT_LIST, FIELD(kernel), "all", 0, 0, kernel_names, "LIST",
     "kernels to measure; all: those that the model calls. One that it does not call is skipped by name"},
    {"layer", 0, PTB_OPT_LIST, FIELD(layer), "all", 0, 0, layer_names, "LIST",
     "places in the model from which kernels are called"},
    {"precision", 0, PTB_OPT_LIST, FIELD(precision), "f32", 0, 0, precisions, "LIST",
     "compute types; kernels without one are measured once"},
    {"rows", 0, PTB_OPT_INT, FIELD(rows), "1024", 1, 1 << 24, NULL, NULL,
     "tokens of a microbatch: whole sequences, or one shorter than --sequence"},
    {"threads", 0, PTB_OPT_INT, FIELD(threads), "1", 1, 4096, NULL, NULL,
     "processor threads of a rank, of kernels and of the limits"},
    {"kernels", 0, PTB_OPT_STRING, FIELD(kernels), NULL, 0, 0, NULL, "NAME",
     "who computes; not given: the device's own"},
    {"device", 0, PTB_OPT_STRING, FIELD(device), "host", 0, 0, NULL, "NAME", "where memory and streams are"},
    PTB_MODEL_OPTS(kernels_config, model),
};

typedef struct {
    size_t kernel; // number in the list
    const char *place;
    ptb_dtype type;
    const char *absent; // why the model does not call it; NULL: it does
} kernel_case;

struct ptb_bench_run {
    ptb_bench_env env;
    const kernels_config *config;
    const ptb_kernels *kernels;
    ptb_layout layout;
    size_t sequence;
    ptb_device *device;
    ptb_stream *stream;
    float *noise;
    double peak[PTB_DTYPE_COUNT]; // FLOP/s of matrix products, 0: not measured yet
    kernel_case *cases;
    size_t count, next;
    // The case at hand.
    const kernel_case *now;
    ptb_kernel_call call;
    void *copied; // memory of the copy, or the read, that is the limit
    double copy_s;
};

// ---- opening

static bool is_listed(const char *list, const char *name)
{
    char *storage;
    const char *items[LIST_MAX];
    size_t count = ptb_text_split(list, ',', &storage, items, LIST_MAX);
    bool found = false;
    for (size_t i = 0; i < count; i++)
        found = found || strcmp(items[i], name) == 0;
    free(storage);
    return found;
}

static ptb_status check_rows(ptb_bench_run *run)
{
    int64_t rows = run->config->rows, sequence = run->layout.shape.sequence;
    run->sequence = (size_t)(rows < sequence ? rows : sequence);
    if (rows % (int64_t)run->sequence == 0)
        return PTB_OK;
    ptb_error("--rows %" PRId64 " are not whole sequences of %" PRId64 ": %" PRId64 " = %" PRId64
              " x %" PRId64 " + %" PRId64 "; use %" PRId64 " rows, or another --sequence",
              rows, sequence, rows, rows / sequence, sequence, rows % sequence, rows / sequence * sequence);
    return PTB_USAGE;
}

// Every case in order of the list of kernels; those that the model does not call only where they were named.
static size_t list_cases(const ptb_bench_run *run, kernel_case *cases)
{
    const kernels_config *c = run->config;
    bool all = is_listed(c->kernel, "all");
    size_t count = 0;
    for (size_t k = 0; k < KERNEL_COUNT; k++) {
        bool is_named = is_listed(c->kernel, kernel_names[k + 1]), is_done = false;
        for (const char *const *place = entries[k]->places; *place; place++) {
            const char *absent = entries[k]->absent(&run->layout.shape, *place);
            if (!is_listed(c->layer, "all") && !is_listed(c->layer, *place))
                continue;
            // A kernel that the model calls somewhere is not skipped for the other places.
            if ((!all && !is_named) || (absent && (!is_named || place[1] || is_done)))
                continue;
            is_done = true;
            for (const char *const *type = precisions; *type; type++) {
                kernel_case one = {k, *place, PTB_F32, absent};
                if (entries[k]->is_typed ? !is_listed(c->precision, *type) : type != precisions)
                    continue;
                if (entries[k]->is_typed)
                    ptb_dtype_parse(*type, &one.type);
                if (cases)
                    cases[count] = one;
                count++;
            }
        }
    }
    return count;
}

static ptb_status make_cases(ptb_bench_run *run)
{
    run->count = list_cases(run, NULL);
    run->cases = malloc((run->count + 1) * sizeof *run->cases);
    if (!run->cases) {
        ptb_error("no memory for a list of %zu kernels", run->count);
        return PTB_NO_MEMORY;
    }
    list_cases(run, run->cases);
    return PTB_OK;
}

static ptb_status open_device(ptb_bench_run *run)
{
    PTB_TRY(ptb_device_open_local(run->config->device, run->env.world, run->env.share_gpu, &run->device));
    run->noise = malloc(PTB_CALL_PERIOD * sizeof *run->noise);
    if (!run->noise) {
        ptb_error("no memory for %d numbers", PTB_CALL_PERIOD);
        return PTB_NO_MEMORY;
    }
    for (size_t i = 0; i < PTB_CALL_PERIOD; i++)
        run->noise[i] = (float)(2 * ptb_random_uniform(run->env.seed, 2002, i) - 1);
    // The caller's thread: a hand-over to a worker takes as long as a short kernel.
    PTB_TRY(ptb_stream_new(run->device, PTB_STREAM_CALLER, 1, &run->stream));
    return run->kernels->set_threads(run->stream, (int)run->config->threads);
}

static void kernels_close(ptb_bench_run *run)
{
    if (!run)
        return;
    ptb_stream_free(run->stream);
    ptb_device_close(run->device);
    ptb_layout_release(&run->layout);
    free(run->noise);
    free(run->cases);
    free(run);
}

static ptb_status open_model(ptb_bench_run *run)
{
    ptb_model_shape shape;
    PTB_TRY(ptb_backends_device(run->config->device));
    PTB_TRY(ptb_backends_kernels(run->config->device, run->config->kernels, &run->kernels));
    PTB_TRY(ptb_model_options_shape(&run->config->model, &shape));
    PTB_TRY(ptb_layout_init(&run->layout, &shape, NULL));
    PTB_TRY(check_rows(run));
    return make_cases(run);
}

static ptb_status kernels_open(const ptb_bench_env *env, const void *config, ptb_bench_run **out)
{
    ptb_bench_run *run = calloc(1, sizeof *run);
    if (!run) {
        ptb_error("no memory for the state of the benchmark kernels");
        return PTB_NO_MEMORY;
    }
    run->env = *env;
    run->config = config;
    ptb_status status = open_model(run);
    if (status == PTB_OK && !env->dry_run)
        status = open_device(run);
    if (status != PTB_OK) {
        kernels_close(run);
        return status;
    }
    *out = run;
    return PTB_OK;
}

// ---- cases

// Streams that take no calls of the host's belong to a device beside it.
static bool is_enqueued(const ptb_bench_run *run)
{
    const ptb_device_ops *ops =
        (const ptb_device_ops *)ptb_registry_find(PTB_KIND_DEVICE, run->config->device);
    return !ops->stream_call;
}

static ptb_status kernels_next(ptb_bench_run *run, ptb_case *c, bool *more)
{
    const kernels_config *f = run->config;
    *more = run->next < run->count;
    if (!*more)
        return PTB_OK;
    const kernel_case *one = &run->cases[run->next];
    const ptb_kernel_entry *entry = entries[one->kernel];
    bool enqueued = is_enqueued(run);
    *c = (ptb_case){
        .index = run->next++, .fixed_batch = entry->is_used_up && !enqueued, .is_enqueued = enqueued};
    ptb_params *p = &c->params;
    ptb_params_set(p, "kernel", "%s", kernel_names[one->kernel + 1]);
    ptb_params_set(p, "layer", "%s", one->place);
    ptb_params_set(p, "precision", "%s", ptb_dtype_name(one->type));
    ptb_params_set(p, "rows", "%" PRId64, f->rows);
    ptb_params_set(p, "threads", "%" PRId64, f->threads);
    ptb_params_set(p, "device", "%s", f->device);
    ptb_params_set(p, "kernels", "%s", run->kernels->plugin.name);
    ptb_model_options_params(&f->model, p);
    ptb_params_set(p, "seed", "%" PRIu64, run->env.seed);
    ptb_params_set(p, "ranks", "%d", run->env.world->size);
    if (one->absent)
        snprintf(c->skip, sizeof c->skip, "%s", one->absent);
    else if (entry->is_typed && !(run->kernels->types >> one->type & 1))
        snprintf(c->skip, sizeof c->skip, "the kernels '%s' have no %s", run->kernels->plugin.name,
                 ptb_dtype_name(one->type));
    return PTB_OK;
}

// The limits are measured by all ranks at once, as the kernels are.
static ptb_status measure_peak(ptb_bench_run *run, ptb_dtype type)
{
    double peak;
    PTB_TRY(ptb_world_barrier(run->env.world));
    PTB_TRY(run->kernels->matmul_peak(run->stream, type, (int)run->config->threads, &peak));
    run->peak[type] = fmax(peak, run->peak[type]);
    return PTB_OK;
}

static size_t copied_bytes(const ptb_bench_run *run)
{
    return run->call.flops > 0 ? 0 : (size_t)run->call.bytes;
}

static ptb_status measure_limit(ptb_bench_run *run)
{
    size_t bytes = copied_bytes(run);
    if (run->call.flops > 0)
        return measure_peak(run, run->now->type);
    if (!bytes)
        return PTB_OK;
    PTB_TRY(ptb_world_barrier(run->env.world));
    bool reads = entries[run->now->kernel]->only_reads;
    double seconds = reads ? ptb_call_read_s(&run->call, run->copied, bytes)
                           : ptb_call_copy_s(&run->call, run->copied, bytes);
    run->copy_s = fmin(run->copy_s, seconds);
    return PTB_OK;
}

static ptb_status make_call(ptb_bench_run *run)
{
    ptb_kernel_call *call = &run->call;
    *call = (ptb_kernel_call){.shape = &run->layout.shape,
                              .kernels = run->kernels,
                              .device = run->device,
                              .stream = run->stream,
                              .noise = run->noise,
                              .place = run->now->place,
                              .rows = (size_t)run->config->rows,
                              .sequence = run->sequence,
                              .type = run->now->type,
                              .threads = (int)run->config->threads,
                              .memory_limit = ptb_device_available(run->device)};
    entries[run->now->kernel]->prepare(call);
    PTB_TRY(call->status);
    call->buffer_bytes += copied_bytes(run);
    if (call->buffer_bytes > call->memory_limit)
        return PTB_NO_MEMORY;
    run->copy_s = INFINITY;
    if (!copied_bytes(run))
        return PTB_OK;
    PTB_TRY(ptb_device_alloc(run->device, PTB_MEMORY_WORKSPACE, copied_bytes(run), &run->copied));
    // Pages that were never written may all be one page of zeros.
    PTB_TRY(ptb_stream_set(run->stream, run->copied, 1, copied_bytes(run)));
    return ptb_stream_sync(run->stream);
}

static ptb_status kernels_prepare(ptb_bench_run *run, const ptb_case *c, char *reason)
{
    run->now = &run->cases[c->index];
    ptb_status status = ptb_world_agree(run->env.world, make_call(run));
    if (status == PTB_NO_MEMORY) {
        bool fits = run->call.buffer_bytes <= run->call.memory_limit;
        snprintf(reason, PTB_REASON_BYTES, "%sneeds %.3g GB a rank, %.3g GB are available to it",
                 fits ? "an allocation failed: " : "", (double)run->call.buffer_bytes * 1e-9,
                 (double)run->call.memory_limit * 1e-9);
        return PTB_SKIPPED;
    }
    bool is_known = run->call.flops > 0 && run->peak[run->now->type] > 0;
    return status == PTB_OK && !is_known ? measure_limit(run) : status;
}

static ptb_status kernels_reset(ptb_bench_run *run)
{
    return entries[run->now->kernel]->is_used_up ? ptb_call_refill(&run->call) : PTB_OK;
}

static ptb_status kernels_iterate(ptb_bench_run *run, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        PTB_TRY(run_kernel[run->now->kernel](&run->call));
    return ptb_stream_sync(run->stream);
}

// The timed buffers; a kernel that changed what it reads is run once more, from the start.
static ptb_status kernels_verify(ptb_bench_run *run, ptb_verdict *verdict)
{
    const ptb_kernel_entry *entry = entries[run->now->kernel];
    *verdict = (ptb_verdict){.done = true};
    if (run->call.is_changed || (entry->is_used_up && is_enqueued(run))) {
        PTB_TRY(ptb_call_refill(&run->call));
        PTB_TRY(kernels_iterate(run, 1));
    }
    entry->verify(&run->call, verdict);
    return run->call.status;
}

// The limit in 1e9 / s, the slowest rank's; NAN: none.
static ptb_status agree_limit(ptb_bench_run *run, double *limit)
{
    const ptb_kernel_call *call = &run->call;
    bool is_product = call->flops > 0;
    double slowest = is_product ? -run->peak[run->now->type] : run->copy_s;
    PTB_TRY(ptb_world_reduce_max(run->env.world, &slowest, 1));
    *limit = is_product ? -slowest * 1e-9 : call->bytes > 0 ? call->bytes / slowest * 1e-9 : NAN;
    return PTB_OK;
}

static ptb_status kernels_metrics(ptb_bench_run *run, const ptb_timing *timing, ptb_metrics *metrics)
{
    const ptb_kernel_call *call = &run->call;
    bool is_product = call->flops > 0, reads = entries[run->now->kernel]->only_reads;
    double work = is_product ? call->flops : call->bytes > 0 ? call->bytes : NAN, limit = NAN;
    // Per ns: in 1e9 / s. What interrupts some samples, such as other programs, is not the kernel's.
    double rate = work / timing->time_ns.median, best = work / timing->time_ns.min;
    // A limit that the kernel clearly exceeds was disturbed when it was measured.
    PTB_TRY(agree_limit(run, &limit));
    for (int tries = 0; tries < LIMIT_TRIES && (best > 1.02 * limit || (!is_product && !tries)); tries++) {
        PTB_TRY(measure_limit(run));
        PTB_TRY(agree_limit(run, &limit));
    }
    ptb_metrics_add(metrics, "of_limit", 100 * rate / limit, "%", PTB_HIGHER_IS_BETTER,
                    is_product ? "compute / peak"
                    : reads    ? "bandwidth / read"
                               : "bandwidth / copy");
    ptb_metrics_add(metrics, "best_of_limit", 100 * best / limit, "%", PTB_HIGHER_IS_BETTER,
                    "as of_limit, of the fastest sample");
    if (is_product) {
        ptb_metrics_add(
            metrics, "compute", rate, "GFLOP/s", PTB_HIGHER_IS_BETTER,
            "of one rank: multiplications and additions of the products as computed / median time");
        ptb_metrics_add(
            metrics, "peak", limit, "GFLOP/s", PTB_NEUTRAL,
            "best rate of matrix products of this type in this run until then, same threads, slowest rank");
        return PTB_OK;
    }
    ptb_metrics_add(metrics, "bandwidth", rate, "GB/s", PTB_HIGHER_IS_BETTER,
                    "of one rank: bytes read and written, each element once / median time");
    if (reads) {
        ptb_metrics_add(metrics, "read", limit, "GB/s", PTB_NEUTRAL,
                        "fastest read of as many bytes, in this run, same threads, slowest rank");
        return PTB_OK;
    }
    ptb_metrics_add(
        metrics, "copy", limit, "GB/s", PTB_NEUTRAL,
        "fastest copy that reads and writes as many bytes, in this run, same threads, slowest rank");
    return PTB_OK;
}

static void kernels_facts(ptb_bench_run *run, ptb_params *facts)
{
    ptb_params_set(facts, "device", "%s", run->device->description);
    ptb_params_set(facts, "sizes", "%s", run->call.sizes);
    ptb_params_set(facts, "flops", "%.0f", run->call.flops);
    ptb_params_set(facts, "bytes_moved", "%.0f", run->call.bytes);
    const ptb_kernel_entry *entry = entries[run->now->kernel];
    const char *ran = entry->ran ? entry->ran(&run->call) : NULL;
    if (ran)
        ptb_params_set(facts, "attention_kernels", "%s", ran);
    if (strcmp(run->config->device, "host") == 0)
        ptb_crowd_facts(run->env.world, (int)run->config->threads, "waiting for a turn counts as work",
                        facts);
}

static void kernels_finish(ptb_bench_run *run)
{
    ptb_call_release(&run->call);
    ptb_device_free(run->device, run->copied);
    run->copied = NULL;
}

static const ptb_bench kernels_bench = {
    .plugin = {"kernels", "each kernel of a model's step alone, against the matrix-product peak or a copy"},
    .opts = kernels_opts,
    .opt_count = sizeof kernels_opts / sizeof *kernels_opts,
    .config_size = sizeof(kernels_config),
    .open = kernels_open,
    .next = kernels_next,
    .prepare = kernels_prepare,
    .reset = kernels_reset,
    .iterate = kernels_iterate,
    .verify = kernels_verify,
    .metrics = kernels_metrics,
    .facts = kernels_facts,
    .finish = kernels_finish,
    .close = kernels_close,
};
PTB_REGISTER(PTB_KIND_BENCH, kernels_bench);
