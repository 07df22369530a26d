// The benchmark `step`: training steps of a GPT under a data-parallel strategy. The runner times iterate();
// where the time went comes from spans, through profiler/overlap.c. Cases: every strategy x communicator x
// algorithm asked for.
#include "core/bench.h"
#include "core/log.h"
#include "strategies/step_breakdown.h"
#include "strategies/step_memory.h"
#include "strategies/trainer.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LIST_MAX = 16, MAX_STEPS = 1 << 20, TRACE_SPANS = 1 << 14, DEFAULT_BATCH = 8 };

typedef struct {
    char *strategy, *comm, *algorithm, *transport, *kernels, *device, *data;
    int64_t layers, hidden, heads, sequence, vocabulary, batch, threads;
    bool tied, overlap;
    uint64_t bucket_bytes;
    double rate, beta1, beta2, decay;
    int64_t rate_warmup;
} step_config;

#define FIELD(field) offsetof(step_config, field)
static const ptb_opt step_opts[] = {
    {"strategy", 0, PTB_OPT_LIST, FIELD(strategy), "ddp", 0, 0, NULL, "LIST", "data-parallel strategies"},
    {"comm", 0, PTB_OPT_LIST, FIELD(comm), "host", 0, 0, NULL, "LIST",
     "communicators that reduce the gradients"},
    {"algo", 0, PTB_OPT_LIST, FIELD(algorithm), "auto", 0, 0, NULL, "LIST",
     "all-reduce algorithms of the communicator; auto: its choice"},
    {"transport", 0, PTB_OPT_STRING, FIELD(transport), NULL, 0, 0, NULL, "NAME",
     "transport that must be used: shm, tcp or ucx of the MPI library, shm, mpi or shm+mpi of host"},
    {"kernels", 0, PTB_OPT_STRING, FIELD(kernels), "host", 0, 0, NULL, "NAME", "who computes"},
    {"device", 0, PTB_OPT_STRING, FIELD(device), "host", 0, 0, NULL, "NAME", "where memory and streams are"},
    {"layers", 0, PTB_OPT_INT, FIELD(layers), "6", 1, 100000, NULL, NULL, "transformer blocks"},
    {"hidden", 0, PTB_OPT_INT, FIELD(hidden), "384", 1, 1 << 20, NULL, NULL, "width of the residual stream"},
    {"heads", 0, PTB_OPT_INT, FIELD(heads), "6", 1, 1 << 16, NULL, NULL, "attention heads; divides --hidden"},
    {"sequence", 0, PTB_OPT_INT, FIELD(sequence), "128", 1, 1 << 24, NULL, NULL, "tokens of a sequence"},
    {"vocab", 0, PTB_OPT_INT, FIELD(vocabulary), "256", 2, 1 << 24, NULL, NULL,
     "vocabulary; larger than every token of --data (bytes are under 256, GPT-2's tokens under 50257)"},
    {"tied", 0, PTB_OPT_BOOL, FIELD(tied), "yes", 0, 0, NULL, NULL, "the head multiplies by the token table"},
    {"batch", 0, PTB_OPT_INT, FIELD(batch), "0", 0, 1 << 24, NULL, NULL,
     "sequences of the global batch, divided over the ranks; 0: 8, or the next multiple of the ranks"},
    {"data", 0, PTB_OPT_STRING, FIELD(data), NULL, 0, 0, NULL, "PATH",
     "train on the bytes of this file, of all files of this folder, or of those that match this pattern; on "
     "llm.c's token files where they are *.bin; otherwise on generated text with structure to learn"},
    {"lr", 0, PTB_OPT_DOUBLE, FIELD(rate), "0.001", 0, 10, NULL, NULL, "learning rate of AdamW"},
    {"lr-warmup", 0, PTB_OPT_INT, FIELD(rate_warmup), "10", 0, 1 << 30, NULL, "STEPS",
     "steps in which the learning rate rises linearly to --lr"},
    {"beta1", 0, PTB_OPT_DOUBLE, FIELD(beta1), "0.9", 0, 0.999999, NULL, NULL, "AdamW: decay of the mean"},
    {"beta2", 0, PTB_OPT_DOUBLE, FIELD(beta2), "0.95", 0, 0.999999, NULL, NULL,
     "AdamW: decay of the mean square"},
    {"weight-decay", 0, PTB_OPT_DOUBLE, FIELD(decay), "0.1", 0, 10, NULL, NULL,
     "AdamW: decay of the matrices"},
    {"bucket", 0, PTB_OPT_SIZE, FIELD(bucket_bytes), "4M", 64, 0x1p50, NULL, NULL,
     "gradient bytes reduced in one call, at most (PyTorch's default is 25M)"},
    {"overlap", 0, PTB_OPT_BOOL, FIELD(overlap), "yes", 0, 0, NULL, NULL,
     "reduce gradients while backward still computes"},
    {"threads", 0, PTB_OPT_INT, FIELD(threads), "1", 1, 4096, NULL, NULL,
     "processor threads of a rank's kernels"},
};

typedef struct {
    char *storage;
    const char *items[LIST_MAX];
    size_t count;
} list;

struct ptb_bench_run {
    ptb_bench_env env;
    const step_config *config;
    int64_t batch;
    ptb_layout layout;
    ptb_tokens *tokens;
    char data[96];
    const ptb_kernels *kernels;
    list strategies, comms, algorithms;
    size_t next;
    // The case at hand.
    ptb_trace *trace; // of this benchmark; spans move on to env.trace between samples
    ptb_trainer *trainer;
    ptb_step_breakdown *breakdown;
    ptb_step_memory memory;
};

static void split(const char *text, list *l)
{
    l->count = ptb_text_split(text, ',', &l->storage, l->items, LIST_MAX);
}

static ptb_status check_names(ptb_bench_run *run)
{
    for (size_t i = 0; i < run->strategies.count; i++)
        if (!ptb_registry_need(PTB_KIND_DATA_PARALLEL, run->strategies.items[i]))
            return PTB_USAGE;
    for (size_t i = 0; i < run->comms.count; i++)
        if (!ptb_registry_need(PTB_KIND_COMM, run->comms.items[i]))
            return PTB_USAGE;
    if (!ptb_registry_need(PTB_KIND_DEVICE, run->config->device))
        return PTB_USAGE;
    run->kernels = (const ptb_kernels *)ptb_registry_need(PTB_KIND_KERNELS, run->config->kernels);
    return run->kernels ? PTB_OK : PTB_USAGE;
}

static bool has_algorithm(const char *comm, const char *algorithm)
{
    const ptb_comm_ops *ops = (const ptb_comm_ops *)ptb_registry_find(PTB_KIND_COMM, comm);
    if (strcmp(algorithm, "auto") == 0)
        return true;
    for (const char *const *name = ops->algorithms(PTB_ALL_REDUCE); *name; name++)
        if (strcmp(*name, algorithm) == 0)
            return true;
    return false;
}

static void refuse_algorithm(const ptb_bench_run *run, const char *algorithm)
{
    enum { NAMES_MAX = 64 };
    const char *names[NAMES_MAX] = {"auto"};
    size_t count = 1;
    for (size_t i = 0; i < run->comms.count; i++) {
        const ptb_comm_ops *ops = (const ptb_comm_ops *)ptb_registry_find(PTB_KIND_COMM, run->comms.items[i]);
        for (const char *const *name = ops->algorithms(PTB_ALL_REDUCE); *name && count < NAMES_MAX; name++) {
            size_t k = 0;
            while (k < count && strcmp(names[k], *name) != 0)
                k++;
            if (k == count)
                names[count++] = *name;
        }
    }
    char near[256];
    ptb_text_nearest(algorithm, names, count, near, sizeof near);
    ptb_error("--algo '%s': there is no all-reduce of that name; did you mean %s?", algorithm, near);
}

// An algorithm that none of the communicators has was mistyped; one that some have is skipped for the others.
static ptb_status check_algorithms(const ptb_bench_run *run)
{
    for (size_t a = 0; a < run->algorithms.count; a++) {
        bool known = false;
        for (size_t i = 0; i < run->comms.count; i++)
            known = known || has_algorithm(run->comms.items[i], run->algorithms.items[a]);
        if (!known) {
            refuse_algorithm(run, run->algorithms.items[a]);
            return PTB_USAGE;
        }
    }
    return PTB_OK;
}

static ptb_status divide_batch(ptb_bench_run *run)
{
    int64_t asked = run->config->batch, ranks = run->env.world->size;
    run->batch = asked ? asked : (DEFAULT_BATCH + ranks - 1) / ranks * ranks;
    if (run->batch % ranks == 0)
        return PTB_OK;
    ptb_error("--batch %" PRId64 " does not divide over %" PRId64 " ranks: %" PRId64 " = %" PRId64
              " x %" PRId64 " + %" PRId64 "; use %" PRId64 " or %" PRId64,
              asked, ranks, asked, ranks, asked / ranks, asked % ranks,
              asked / ranks ? asked / ranks * ranks : ranks, (asked / ranks + 1) * ranks);
    return PTB_USAGE;
}

// Sizes that would overflow; what is merely larger than the machine is skipped later, with the figures.
static ptb_status check_magnitude(const ptb_bench_run *run)
{
    const step_config *c = run->config;
    double h = (double)c->hidden, v = (double)c->vocabulary, s = (double)c->sequence, l = (double)c->layers;
    double rows = (double)(run->batch / run->env.world->size) * s;
    double parameters = 12 * l * h * h + (2 * v + s) * h;
    double activations = rows * (l * (16 * h + (double)c->heads + 4) + 8 * h + v);
    if (4 * (4 * parameters + activations) < 0x1p60)
        return PTB_OK;
    ptb_error("a step of %.3g parameters and %.3g activations a rank needs %.3g bytes, more than can be "
              "counted; use a "
              "smaller --hidden, --layers, --vocab, --sequence or --batch",
              parameters, activations, 4 * (4 * parameters + activations));
    return PTB_USAGE;
}

static void step_close(ptb_bench_run *run)
{
    if (!run)
        return;
    free(run->strategies.storage);
    free(run->comms.storage);
    free(run->algorithms.storage);
    ptb_tokens_close(run->tokens);
    ptb_layout_release(&run->layout);
    free(run);
}

static ptb_status step_open(const ptb_bench_env *env, const void *config, ptb_bench_run **out)
{
    ptb_bench_run *run = calloc(1, sizeof *run);
    if (!run) {
        ptb_error("no memory for the state of the benchmark step");
        return PTB_NO_MEMORY;
    }
    const step_config *c = config;
    run->env = *env;
    run->config = c;
    split(c->strategy, &run->strategies);
    split(c->comm, &run->comms);
    split(c->algorithm, &run->algorithms);
    ptb_model_shape shape = {.layers = c->layers,
                             .hidden = c->hidden,
                             .heads = c->heads,
                             .sequence = c->sequence,
                             .vocabulary = c->vocabulary,
                             .biases = true,
                             .tied = c->tied};
    ptb_status status = check_names(run);
    if (status == PTB_OK)
        status = check_algorithms(run);
    if (status == PTB_OK)
        status = divide_batch(run);
    if (status == PTB_OK)
        status = check_magnitude(run);
    if (status == PTB_OK)
        status = ptb_layout_init(&run->layout, &shape);
    if (status == PTB_OK)
        status = ptb_tokens_open(&(ptb_tokens_config){.path = c->data && *c->data ? c->data : NULL,
                                                      .seed = env->seed,
                                                      .length = c->sequence,
                                                      .vocabulary = c->vocabulary,
                                                      .unread = env->dry_run},
                                 &run->tokens);
    if (status != PTB_OK) {
        step_close(run);
        return status;
    }
    ptb_tokens_describe(run->tokens, run->data, sizeof run->data);
    *out = run;
    return PTB_OK;
}

// In full, so that no two settings share a key.
static void append_number(ptb_params *p, const char *name, double value)
{
    ptb_text text = PTB_TEXT_INIT;
    const char *before = ptb_params_get(p, name);
    if (before)
        ptb_text_printf(&text, "%s,", before);
    ptb_text_append_number(&text, value, -1);
    ptb_params_set(p, name, "%s", ptb_text_string(&text));
    ptb_text_release(&text);
}

static void name_case(const ptb_bench_run *run, size_t index, ptb_params *p)
{
    const step_config *c = run->config;
    size_t algorithm = index % run->algorithms.count, rest = index / run->algorithms.count;
    char size[32];
    ptb_params_set(p, "strategy", "%s", run->strategies.items[rest / run->comms.count]);
    ptb_params_set(p, "comm", "%s", run->comms.items[rest % run->comms.count]);
    ptb_params_set(p, "algo", "%s", run->algorithms.items[algorithm]);
    if (c->transport && *c->transport)
        ptb_params_set(p, "transport", "%s", c->transport);
    ptb_params_set(p, "device", "%s", c->device);
    ptb_params_set(p, "kernels", "%s", c->kernels);
    ptb_params_set(p, "threads", "%" PRId64, c->threads);
    ptb_params_set(p, "layers", "%" PRId64, c->layers);
    ptb_params_set(p, "hidden", "%" PRId64, c->hidden);
    ptb_params_set(p, "heads", "%" PRId64, c->heads);
    ptb_params_set(p, "sequence", "%" PRId64, c->sequence);
    ptb_params_set(p, "vocabulary", "%" PRId64, c->vocabulary);
    ptb_params_set(p, "tied", "%s", c->tied ? "yes" : "no");
    ptb_params_set(p, "batch", "%" PRId64, run->batch);
    ptb_params_set(p, "precision", "f32");
    ptb_params_set(p, "optimizer", "adamw");
    append_number(p, "lr", c->rate);
    ptb_params_set(p, "lr_warmup", "%" PRId64, c->rate_warmup);
    append_number(p, "betas", c->beta1);
    append_number(p, "betas", c->beta2);
    append_number(p, "decay", c->decay);
    ptb_params_set(p, "data", "%s", run->data);
    ptb_text_format_size(c->bucket_bytes, size, sizeof size);
    ptb_params_set(p, "bucket", "%s", size);
    ptb_params_set(p, "overlap", "%s", c->overlap ? "yes" : "no");
    ptb_params_set(p, "seed", "%" PRIu64, run->env.seed);
    ptb_params_set(p, "ranks", "%d", run->env.world->size);
}

static ptb_status step_next(ptb_bench_run *run, ptb_case *c, bool *more)
{
    if (run->next == run->strategies.count * run->comms.count * run->algorithms.count) {
        *more = false;
        return PTB_OK;
    }
    *c = (ptb_case){.fixed_batch = true};
    name_case(run, run->next++, &c->params);
    const char *comm = ptb_params_get(&c->params, "comm"), *algorithm = ptb_params_get(&c->params, "algo");
    if (!has_algorithm(comm, algorithm))
        snprintf(c->skip, sizeof c->skip, "the communicator %s has no all-reduce named '%s'", comm,
                 algorithm);
    // At 100 GFLOP/s a rank: only for the progress line.
    double tokens = (double)(run->batch / run->env.world->size * run->config->sequence);
    c->estimate_s = ptb_layout_flops_palm(&run->layout) * tokens / 100e9;
    *more = true;
    return PTB_OK;
}

static ptb_status step_prepare(ptb_bench_run *run, const ptb_case *c, char *reason)
{
    const step_config *f = run->config;
    const char *algorithm = ptb_params_get(&c->params, "algo");
    ptb_trainer_config config = {
        .world = run->env.world,
        .strategy = (const ptb_data_parallel *)ptb_registry_need(PTB_KIND_DATA_PARALLEL,
                                                                 ptb_params_get(&c->params, "strategy")),
        .kernels = run->kernels,
        .layout = &run->layout,
        .tokens = run->tokens,
        .device = f->device,
        .comm = ptb_params_get(&c->params, "comm"),
        .comm_config = {.algorithm = strcmp(algorithm, "auto") ? algorithm : NULL,
                        .transport = f->transport && *f->transport ? f->transport : NULL,
                        .threads = true},
        .optimizer = {.rate = f->rate,
                      .rate_warmup = (uint64_t)f->rate_warmup,
                      .beta1 = f->beta1,
                      .beta2 = f->beta2,
                      .epsilon = 1e-8,
                      .decay = f->decay,
                      .loss_scale = 1},
        .type = PTB_F32,
        .reduce_type = PTB_F32,
        .batch = run->batch,
        .micro_batches = 1,
        .seed = run->env.seed,
        .bucket_bytes = f->bucket_bytes,
        .overlap = f->overlap,
        .threads = (int)f->threads,
        .max_steps = MAX_STEPS,
    };
    ptb_status status = ptb_trace_new(TRACE_SPANS, run->env.world->rank, &run->trace);
    if (status == PTB_OK)
        status = ptb_step_breakdown_new(MAX_STEPS, &run->breakdown);
    PTB_TRY(ptb_world_agree(run->env.world, status));
    config.trace = run->trace;
    ptb_step_memory_begin(&run->memory);
    return ptb_trainer_new(&config, reason, &run->trainer);
}

// Between samples: what the spans say goes into the breakdown, the spans go to whoever wants them.
static ptb_status step_reset(ptb_bench_run *run)
{
    size_t count, dropped;
    const ptb_span *spans = ptb_trace_spans(run->trace, &count, &dropped);
    PTB_TRY(ptb_step_breakdown_add(run->breakdown, spans, count, dropped, run->trainer->steps));
    for (size_t i = 0; i < count; i++)
        ptb_trace_record(run->env.trace, &spans[i]);
    ptb_trace_clear(run->trace);
    return PTB_OK;
}

static ptb_status step_iterate(ptb_bench_run *run, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        PTB_TRY(ptb_trainer_step(run->trainer));
    return PTB_OK;
}

static double mean(const double *values, size_t count)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += values[i];
    return count ? sum / (double)count : NAN;
}

// Every loss finite. On the built-in text, which has structure to learn (a user's file may have none), with a
// learning rate and at least 8 steps, also the last quarter's mean below the first step's.
static void check_losses(const ptb_bench_run *run, ptb_verdict *verdict)
{
    const ptb_trainer *t = run->trainer;
    size_t steps = (size_t)t->steps;
    for (size_t i = 0; i < steps; i++) {
        verdict->checked++;
        if (isfinite(t->losses[i]))
            continue;
        if (!verdict->wrong++)
            snprintf(verdict->detail, sizeof verdict->detail, "step %zu: wanted a finite loss, got %g", i,
                     t->losses[i]);
    }
    bool is_generated = !run->config->data || !*run->config->data;
    if (verdict->wrong || steps < 8 || run->config->rate == 0 || !is_generated)
        return;
    double last = mean(t->losses + steps - steps / 4, steps / 4);
    verdict->checked++;
    if (last < t->losses[0])
        return;
    verdict->wrong++;
    snprintf(verdict->detail, sizeof verdict->detail,
             "loss did not fall: %g at step 0, %g on average over the last %zu of %zu steps", t->losses[0],
             last, steps / 4, steps);
}

static ptb_status step_verify(ptb_bench_run *run, ptb_verdict *verdict)
{
    ptb_world *world = run->env.world;
    *verdict = (ptb_verdict){.done = true};
    check_losses(run, verdict);
    uint64_t mine = run->trainer->data->ops->hash(run->trainer->data);
    uint64_t *all = calloc((size_t)world->size, sizeof *all);
    ptb_status status = all ? PTB_OK : PTB_NO_MEMORY;
    if (!all)
        ptb_error("no memory for %d hashes", world->size);
    status = ptb_world_agree(world, status);
    if (status == PTB_OK)
        status = world->ops->all_gather(world, &mine, sizeof mine, all);
    if (status == PTB_OK) {
        verdict->checked++;
        if (mine != all[0] && !verdict->wrong++)
            snprintf(verdict->detail, sizeof verdict->detail,
                     "rank %d's parameters differ from rank 0's after %" PRIu64 " steps (hash %016" PRIx64
                     ", wanted %016" PRIx64 ")",
                     world->rank, run->trainer->steps, mine, all[0]);
    }
    free(all);
    return status;
}

static void add_rates(const ptb_bench_run *run, double step_ns, ptb_metrics *metrics)
{
    double tokens = (double)(run->batch * run->config->sequence), seconds = step_ns * 1e-9;
    double per_token = ptb_layout_flops_palm(&run->layout);
    double exact = ptb_model_flops(run->trainer->model) * run->env.world->size;
    ptb_metrics_add(metrics, "tokens_per_s", tokens / seconds, "tokens/s", PTB_HIGHER_IS_BETTER,
                    "tokens of the global batch / median step time");
    ptb_metrics_add(metrics, "flops_per_s", per_token * tokens / seconds, "FLOP/s", PTB_HIGHER_IS_BETTER,
                    "PaLM: 6 N + 12 L h s per token, N without embeddings; all ranks");
    ptb_metrics_add(metrics, "matmul_flops_per_s", exact / seconds, "FLOP/s", PTB_HIGHER_IS_BETTER,
                    "matrix products as computed, head and attention's second scores included; all ranks");
}

// Starved and skipped steps, warm-up included.
static ptb_status add_events(const ptb_bench_run *run, ptb_metrics *metrics)
{
    const ptb_trainer *t = run->trainer;
    double worst[] = {(double)t->starved, (double)t->waited_ns * 1e-6,
                      t->steps ? (double)t->fill_ns * 1e-6 / (double)t->steps : NAN};
    PTB_TRY(ptb_world_reduce_max(run->env.world, worst, sizeof worst / sizeof *worst));
    ptb_metrics_add(metrics, "steps_starved", worst[0], "", PTB_LOWER_IS_BETTER,
                    "steps whose batch was not ready when asked for, of all steps; the rank with most");
    ptb_metrics_add(metrics, "input_wait", worst[1], "ms", PTB_LOWER_IS_BETTER,
                    "time waited for batches, over all steps; the rank with most");
    ptb_metrics_add(metrics, "input_fill", worst[2], "ms", PTB_LOWER_IS_BETTER,
                    "time the prefetch thread takes for a batch, mean of all steps; the slowest rank");
    ptb_metrics_add(metrics, "skipped_steps", (double)t->seen.update.skipped, "", PTB_LOWER_IS_BETTER,
                    "steps without an update because a gradient was not finite, of all steps");
    return PTB_OK;
}

static ptb_status step_metrics(ptb_bench_run *run, const ptb_timing *timing, ptb_metrics *metrics)
{
    PTB_TRY(step_reset(run)); // the spans of the last sample
    const ptb_trainer *t = run->trainer;
    uint64_t timed = (uint64_t)timing->mine_count * timing->batch;
    add_rates(run, timing->time_ns.median, metrics);
    PTB_TRY(ptb_step_breakdown_metrics(run->breakdown, run->env.world, t->steps, timed, metrics));
    ptb_metrics_add(metrics, "parameters", (double)run->layout.parameters, "", PTB_NEUTRAL,
                    "all weights, embeddings included, a tied head once");
    ptb_metrics_add(metrics, "comm_volume", t->steps ? t->data->wire_bytes / (double)t->steps : NAN, "bytes",
                    PTB_LOWER_IS_BETTER,
                    "per rank and step: sum over gradient collectives of S x bus factor (ring-equivalent)");
    ptb_metrics_add(metrics, "loss_first", t->steps ? t->losses[0] : NAN, "nats", PTB_NEUTRAL,
                    "mean cross-entropy per token of step 0's global batch");
    ptb_metrics_add(metrics, "loss_last", t->steps ? t->losses[t->steps - 1] : NAN, "nats",
                    PTB_LOWER_IS_BETTER, "mean cross-entropy per token of the last step's global batch");
    ptb_metrics_add(metrics, "grad_norm_last", t->steps ? t->norms[t->steps - 1] : NAN, "", PTB_NEUTRAL,
                    "global norm of the last step's gradient, before clipping");
    PTB_TRY(add_events(run, metrics));
    return ptb_step_memory_metrics(&run->memory, t, metrics);
}

static void step_facts(ptb_bench_run *run, ptb_params *facts)
{
    ptb_params_set(facts, "device", "%s", run->trainer->device->description);
    ptb_params_set(facts, "steps", "%" PRIu64, run->trainer->steps);
    ptb_params_set(facts, "peak_memory_rank", "%d", run->memory.fullest);
    ptb_params_set(facts, "parameters_hash", "%016" PRIx64,
                   run->trainer->data->ops->hash(run->trainer->data));
    run->trainer->data->ops->describe(run->trainer->data, facts);
}

static bool step_series(ptb_bench_run *run, size_t i, ptb_series *series)
{
    const ptb_trainer *t = run->trainer;
    const ptb_series steps[] = {{.name = "loss", .unit = "nats", .values = t->losses},
                                {.name = "grad_norm", .unit = "", .values = t->norms},
                                {.name = "learning_rate", .unit = "", .values = t->rates},
                                {.name = "loss_scale", .unit = "", .values = t->scales}};
    // The scale is a series only where it changes.
    size_t count = sizeof steps / sizeof *steps - !t->config.optimizer.dynamic;
    if (i >= count + PTB_STEP_MEMORY_SERIES)
        return false;
    *series = i < count ? steps[i] : ptb_step_memory_series(&run->memory, i - count);
    if (i < count)
        series->count = (size_t)t->steps;
    return true;
}

static void step_finish(ptb_bench_run *run)
{
    ptb_trainer_free(run->trainer);
    ptb_step_breakdown_free(run->breakdown);
    ptb_trace_free(run->trace);
    ptb_step_memory_release(&run->memory);
    run->trainer = NULL;
    run->breakdown = NULL;
    run->trace = NULL;
}

// On one host `host` moves gradients through shared memory alone, and the main thread has the library for
// itself.
static bool step_needs_threads(const void *config, bool one_host)
{
    const step_config *c = config;
    bool only_host = !c->comm || strcmp(c->comm, "host") == 0;
    bool only_shared = !c->transport || !*c->transport || strcmp(c->transport, "shm") == 0;
    return !(one_host && only_host && only_shared);
}

static const ptb_bench step_bench = {
    .plugin = {"step", "training steps of a GPT: forward, backward, gradient reduction, AdamW"},
    .opts = step_opts,
    .opt_count = sizeof step_opts / sizeof *step_opts,
    .config_size = sizeof(step_config),
    .needs_threads = step_needs_threads,
    .defaults = {.min_iters = 20, .max_iters = 30, .warmup = 3, .latency_only = true},
    .open = step_open,
    .next = step_next,
    .prepare = step_prepare,
    .reset = step_reset,
    .iterate = step_iterate,
    .verify = step_verify,
    .metrics = step_metrics,
    .facts = step_facts,
    .series = step_series,
    .finish = step_finish,
    .close = step_close,
};
PTB_REGISTER(PTB_KIND_BENCH, step_bench);
