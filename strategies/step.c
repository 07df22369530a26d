// The benchmark `step`: training steps of a transformer. The runner times iterate(); where the time went
// comes from spans, through profiler/overlap.c. Cases: every strategy x communicator x algorithm asked for.
#include "core/bench.h"
#include "core/log.h"
#include "strategies/backends.h"
#include "strategies/step_algorithms.h"
#include "strategies/step_breakdown.h"
#include "strategies/step_config.h"
#include "strategies/step_division.h"
#include "strategies/step_estimate.h"
#include "strategies/step_experts.h"
#include "strategies/step_ideal.h"
#include "strategies/step_memory.h"
#include "strategies/step_metrics.h"
#include "strategies/step_profile.h"
#include "strategies/step_staleness.h"
#include "strategies/step_used.h"
#include "strategies/step_verify.h"
#include "strategies/trainer.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LIST_MAX = 16, MAX_STEPS = 1 << 20, TRACE_SPANS = 1 << 16 };

static const char *const precisions[] = {"f32", "tf32", "bf16", "f16", NULL};
static const char *const reduce_types[] = {"f32", "bf16", NULL};
static const char *const recomputes[] = {"none", "selective", "full", NULL};
static const char *const balances[] = {"local", "global", NULL};
static const char *const contexts[] = {"ring", "all_gather", "all_to_all", "ring_all_to_all", NULL};
static const char *const optimizers[] = {"adamw", "sgd", NULL};
static const char *const schedules[] = {"constant", "cosine", NULL};

#define FIELD(field) offsetof(ptb_step_config, field)
static const ptb_opt step_opts[] = {
    {"strategy", 0, PTB_OPT_LIST, FIELD(strategy), "ddp", 0, 0, NULL, "LIST",
     "how the training is divided over ranks; `ptbench list strategies` has the names"},
    {"mesh", 0, PTB_OPT_STRING, FIELD(mesh), NULL, 0, 0, NULL, "SIZES",
     "ranks of each axis, innermost first tp, cp, ep, dp (of which replicate=N are copies of the shards), "
     "as in tp=2,dp=4; ranks that are not given away go to the strategy's own axis"},
    {"sequence-parallel", 0, PTB_OPT_BOOL, FIELD(sequence_parallel), "no", 0, 0, NULL, NULL,
     "with tp: norms, dropout and the residual stream are cut along the sequence (as strategy tp+sp)"},
    {"tensor-chunks", 0, PTB_OPT_INT, FIELD(tensor_chunks), "1", 1, 64, NULL, NULL,
     "with tp: parts of the tokens, of which one is communicated while the product of the next is computed"},
    {"expert-dispatch", 0, PTB_OPT_STRING, FIELD(expert_dispatch), "all_to_all", 0, 0, NULL, "NAME",
     "with ep: how tokens reach experts of other ranks; `ptbench list experts` has the names"},
    {"expert-overlap", 0, PTB_OPT_BOOL, FIELD(expert_overlap), "yes", 0, 0, NULL, NULL,
     "with ep: tokens travel while shared experts are computed, and their gradients while those of weights "
     "are"},
    {"balance-statistics", 0, PTB_OPT_CHOICE, FIELD(balance_statistics), "local", 0, 0, balances, NULL,
     "of mixtures: what the load-balancing loss is made of: each rank's own microbatch, or those that all "
     "ranks have at once (global: the counts of choices are summed over dp, cp and ep)"},
    {"context", 0, PTB_OPT_CHOICE, FIELD(context), "ring", 0, 0, contexts, NULL,
     "with cp: how attention reaches the keys and values of other ranks; `ptbench list context` explains"},
    {"context-degree", 0, PTB_OPT_INT, FIELD(context_degree), "0", 0, 64, NULL, NULL,
     "of ring_all_to_all: neighbours that exchange heads with each other; 0: the largest divisor of cp below "
     "it that the heads allow"},
    {"comm", 0, PTB_OPT_LIST, FIELD(comm), NULL, 0, 0, NULL, "LIST",
     "communicators that reduce the gradients; not given: the device's own (host: host, cuda: nccl)"},
    {"algo", 0, PTB_OPT_LIST, FIELD(algorithm), "auto", 0, 0, NULL, "LIST",
     "all-reduce algorithms of the communicator; auto: its choice"},
    {"transport", 0, PTB_OPT_STRING, FIELD(transport), NULL, 0, 0, NULL, "NAME",
     "transport that must be used: shm, tcp or ucx of the MPI library, shm, mpi or shm+mpi of host"},
    {"kernels", 0, PTB_OPT_STRING, FIELD(kernels), NULL, 0, 0, NULL, "NAME",
     "who computes; not given: the device's own"},
    {"device", 0, PTB_OPT_STRING, FIELD(device), "host", 0, 0, NULL, "NAME", "where memory and streams are"},
    PTB_MODEL_OPTS(ptb_step_config, model),
    {"precision", 0, PTB_OPT_LIST, FIELD(precision), "f32", 0, 0, precisions, "LIST",
     "types to compute in; in bf16 and f16 the optimizer keeps f32 master weights and gradients are f32; "
     "tf32 "
     "is f32 but for the operands of linear layers, which tensor cores round to 10 bits of mantissa"},
    {"reduce-type", 0, PTB_OPT_CHOICE, FIELD(reduce_type), "f32", 0, 0, reduce_types, NULL,
     "type of the gradients while they are reduced over ranks"},
    {"batch", 0, PTB_OPT_INT, FIELD(batch), "0", 0, 1 << 24, NULL, NULL,
     "sequences of the global batch, divided over ranks and microbatches; 0: 8, or the next number that "
     "divides"},
    {"micro-batches", 0, PTB_OPT_INT, FIELD(micro_batches), "1", 1, 1 << 20, NULL, NULL,
     "parts of a rank's batch that go through the model one after the other; their gradients add up and are "
     "reduced once (gradient accumulation)"},
    {"recompute", 0, PTB_OPT_CHOICE, FIELD(recompute), "none", 0, 0, recomputes, NULL,
     "activations that backward computes again instead of keeping them: none, selective (attention's "
     "output), full (all but the inputs of blocks)"},
    {"recompute-every", 0, PTB_OPT_INT, FIELD(recompute_every), "1", 1, 100000, NULL, NULL,
     "recompute in every n-th block only"},
    {"data", 0, PTB_OPT_STRING, FIELD(data), NULL, 0, 0, NULL, "PATH",
     "train on the bytes of this file, of all files of this folder, or of those that match this pattern; on "
     "llm.c's token files where they are *.bin; otherwise on generated text with structure to learn"},
    {"pack", 0, PTB_OPT_BOOL, FIELD(pack), "no", 0, 0, NULL, NULL,
     "sequences hold several documents: attention and targets end where a document ends"},
    {"optimizer", 0, PTB_OPT_CHOICE, FIELD(optimizer), "adamw", 0, 0, optimizers, NULL,
     "adamw: decoupled weight decay; sgd: with --momentum"},
    {"lr", 0, PTB_OPT_DOUBLE, FIELD(rate), "-1", -1, 10, NULL, NULL,
     "learning rate, at its largest; -1: 0.001, in models wider than 512 a tenth of that"},
    {"lr-warmup", 0, PTB_OPT_INT, FIELD(rate_warmup), "10", 0, 1 << 30, NULL, "STEPS",
     "steps in which the learning rate rises linearly to --lr"},
    {"lr-schedule", 0, PTB_OPT_CHOICE, FIELD(schedule), "constant", 0, 0, schedules, NULL,
     "the learning rate after the warm-up; cosine: falls to --lr-min at step --lr-steps"},
    {"lr-steps", 0, PTB_OPT_INT, FIELD(rate_steps), "0", 0, 1 << 30, NULL, "STEPS",
     "cosine: steps until --lr-min, warm-up included"},
    {"lr-min", 0, PTB_OPT_DOUBLE, FIELD(rate_min), "0", 0, 10, NULL, NULL,
     "cosine: learning rate at the end"},
    {"beta1", 0, PTB_OPT_DOUBLE, FIELD(beta1), "0.9", 0, 0.999999, NULL, NULL, "AdamW: decay of the mean"},
    {"beta2", 0, PTB_OPT_DOUBLE, FIELD(beta2), "0.95", 0, 0.999999, NULL, NULL,
     "AdamW: decay of the mean square"},
    {"adam-epsilon", 0, PTB_OPT_DOUBLE, FIELD(epsilon), "1e-08", 0, 1, NULL, NULL,
     "AdamW: added to the root of the mean square"},
    {"momentum", 0, PTB_OPT_DOUBLE, FIELD(momentum), "0.9", 0, 0.999999, NULL, NULL,
     "SGD: momentum; 0: none, and no memory for it"},
    {"weight-decay", 0, PTB_OPT_DOUBLE, FIELD(decay), "0.1", 0, 10, NULL, NULL,
     "decay of the matrices; gains and biases do not decay"},
    {"clip", 0, PTB_OPT_DOUBLE, FIELD(clip), "0", 0, 1e9, NULL, "NORM",
     "gradients are scaled down to this global norm; 0: not. All gradients must be reduced before the first "
     "update then"},
    {"loss-scale", 0, PTB_OPT_DOUBLE, FIELD(loss_scale), "65536", 1, 16777216, NULL, NULL,
     "f16: factor of the loss at the start; it halves when a gradient overflows (that step is skipped)"},
    {"loss-scale-growth", 0, PTB_OPT_INT, FIELD(growth_interval), "2000", 1, 1 << 30, NULL, "STEPS",
     "f16: steps without overflow after which the factor doubles"},
    {"bucket", 0, PTB_OPT_SIZE, FIELD(bucket_bytes), "4M", 64, 0x1p50, NULL, NULL,
     "gradient bytes reduced in one call, at most (PyTorch's default is 25M); fsdp and zero2 reduce units"},
    PTB_STEP_DATA_OPTS(ptb_step_config, data_parallel),
    {"overlap", 0, PTB_OPT_BOOL, FIELD(overlap), "yes", 0, 0, NULL, NULL,
     "communicate while compute goes on: gradients beside backward, parameters beside forward"},
    {"deterministic", 0, PTB_OPT_BOOL, FIELD(deterministic), "no", 0, 0, NULL, NULL,
     "choose no algorithm by its time nor, in async, parameters by when they arrive: runs repeat to the bit"},
    {"graph", 'G', PTB_OPT_BOOL, FIELD(graph), "no", 0, 0, NULL, NULL,
     "record the second step as a graph and replay it in every later one (GPUs)"},
    {"threads", 0, PTB_OPT_INT, FIELD(threads), "1", 1, 4096, NULL, NULL,
     "processor threads of a rank's kernels"},
    PTB_STEP_METRICS_OPTS(ptb_step_config, peak),
};

typedef struct {
    char *storage;
    const char *items[LIST_MAX];
    size_t count;
} list;

struct ptb_bench_run {
    ptb_bench_env env;
    ptb_step_config settings; // as given, what depends on the model filled in
    const ptb_step_config *config;
    int64_t batch;
    ptb_layout layout;
    ptb_tokens *tokens;
    char data[96];
    const ptb_kernels *kernels;
    list strategies, comms, algorithms, precisions;
    size_t next;
    uint64_t available; // in a dry run: bytes of the device for each rank that shares it
    int sharers;        // so many; 0: not asked yet
    // The case at hand.
    ptb_trace *trace; // of this benchmark; spans move on to env.trace between samples
    ptb_trainer *trainer;
    ptb_step_breakdown *breakdown;
    ptb_step_memory memory;
    ptb_step_experts experts;
    ptb_step_staleness staleness;
    ptb_step_hashes hashes; // of the parameters
    ptb_layout cut;         // this rank's part of the model
};

// USAGE when the list is longer than there is room for.
static ptb_status split(const char *option, const char *text, list *l)
{
    size_t pieces = ptb_text_pieces(text, ',');
    if (pieces > LIST_MAX) {
        ptb_error("--%s: the list has %zu entries; at most %d are taken, so make several runs", option,
                  pieces, LIST_MAX);
        return PTB_USAGE;
    }
    l->count = ptb_text_split(text, ',', &l->storage, l->items, LIST_MAX);
    return PTB_OK;
}

static ptb_status split_lists(ptb_bench_run *run)
{
    PTB_TRY(split("strategy", run->config->strategy, &run->strategies));
    PTB_TRY(split("comm", run->config->comm, &run->comms));
    PTB_TRY(split("algo", run->config->algorithm, &run->algorithms));
    return split("precision", run->config->precision, &run->precisions);
}

// What was not given follows from the device.
static ptb_status choose_backends(ptb_bench_run *run)
{
    ptb_step_config *c = &run->settings;
    PTB_TRY(ptb_backends_device(c->device));
    PTB_TRY(ptb_backends_kernels(c->device, c->kernels, &run->kernels));
    c->kernels = (char *)run->kernels->plugin.name; // never written to
    const char *comm = c->comm;
    if (!comm || !*comm)
        PTB_TRY(ptb_backends_comm(c->device, &comm));
    c->comm = (char *)comm;
    return c->graph ? ptb_backends_check_graphs(c->device) : PTB_OK;
}

static ptb_status check_names(ptb_bench_run *run)
{
    for (size_t i = 0; i < run->strategies.count; i++)
        if (!ptb_strategy_need(run->strategies.items[i]))
            return PTB_USAGE;
    if (!ptb_registry_need(PTB_KIND_EXPERT_DISPATCH, run->config->expert_dispatch))
        return PTB_USAGE;
    for (size_t i = 0; i < run->comms.count; i++) {
        if (!ptb_registry_need(PTB_KIND_COMM, run->comms.items[i]))
            return PTB_USAGE;
        PTB_TRY(ptb_backends_check_comm(run->config->device, run->comms.items[i]));
    }
    return PTB_OK;
}

static void step_close(ptb_bench_run *run)
{
    if (!run)
        return;
    free(run->strategies.storage);
    free(run->comms.storage);
    free(run->algorithms.storage);
    free(run->precisions.storage);
    ptb_tokens_close(run->tokens);
    ptb_layout_release(&run->layout);
    free(run);
}

static ptb_status divide(const ptb_bench_run *run, const char *strategy, ptb_step_division *division)
{
    return ptb_step_divide(run->config, &run->env, &run->layout.shape, strategy, division);
}

// The same batch for all strategies.
static ptb_status find_batch(ptb_bench_run *run)
{
    char reason[PTB_REASON_BYTES];
    if (!run->config->batch)
        return ptb_step_batch(run->config, run->env.world->size, &run->batch, reason);
    for (size_t i = 0; i < run->strategies.count; i++) {
        ptb_step_division d;
        PTB_TRY(divide(run, run->strategies.items[i], &d));
        PTB_TRY(ptb_step_divide_batch(run->config, &run->env, &run->layout.shape, run->config->batch, &d));
    }
    run->batch = run->config->batch;
    return PTB_OK;
}

// The model, its batch and its tokens.
static ptb_status open_model(ptb_bench_run *run)
{
    const ptb_step_config *c = run->config;
    ptb_model_shape shape;
    PTB_TRY(ptb_model_options_shape(&c->model, &shape));
    run->settings.rate = ptb_step_rate(c, shape.hidden);
    const ptb_opt_set options = {
        .opts = step_opts, .count = sizeof step_opts / sizeof *step_opts, .config = (void *)c}; // read alone
    ptb_step_names names = {&options, run->strategies.items, run->precisions.items, run->strategies.count,
                            run->precisions.count};
    PTB_TRY(ptb_step_check_used(c, &shape, &names));
    PTB_TRY(ptb_step_check(c, shape.dropout));
    PTB_TRY(ptb_layout_init(&run->layout, &shape, NULL));
    for (size_t i = 0; i < run->strategies.count; i++) {
        ptb_step_division d;
        PTB_TRY(divide(run, run->strategies.items[i], &d));
    }
    PTB_TRY(find_batch(run));
    PTB_TRY(ptb_step_check_magnitude(&run->layout, run->batch, run->env.world->size));
    ptb_tokens_config tokens = {.path = c->data && *c->data ? c->data : NULL,
                                .seed = run->env.seed,
                                .length = run->layout.shape.sequence,
                                .vocabulary = run->layout.shape.vocabulary,
                                .pack = c->pack,
                                .unread = run->env.dry_run};
    PTB_TRY(ptb_tokens_open(&tokens, &run->tokens));
    ptb_tokens_describe(run->tokens, run->data, sizeof run->data);
    return PTB_OK;
}

static ptb_status step_open(const ptb_bench_env *env, const void *config, ptb_bench_run **out)
{
    ptb_bench_run *run = calloc(1, sizeof *run);
    if (!run) {
        ptb_error("no memory for the state of the benchmark step");
        return PTB_NO_MEMORY;
    }
    run->env = *env;
    run->settings = *(const ptb_step_config *)config;
    run->config = &run->settings;
    ptb_status status = choose_backends(run);
    if (status == PTB_OK)
        status = split_lists(run);
    if (status == PTB_OK)
        status = check_names(run);
    if (status == PTB_OK)
        status = ptb_step_check_algorithms(run->comms.items, run->comms.count, run->algorithms.items,
                                           run->algorithms.count);
    if (status == PTB_OK)
        status = open_model(run);
    if (status != PTB_OK) {
        step_close(run);
        return status;
    }
    *out = run;
    return PTB_OK;
}

static size_t case_count(const ptb_bench_run *run)
{
    return run->strategies.count * run->comms.count * run->algorithms.count * run->precisions.count;
}

static ptb_step_point point_of(const ptb_bench_run *run, size_t index)
{
    ptb_step_point point = {
        .batch = run->batch, .data = run->data, .seed = run->env.seed, .ranks = run->env.world->size};
    point.precision = run->precisions.items[index % run->precisions.count];
    index /= run->precisions.count;
    point.algorithm = run->algorithms.items[index % run->algorithms.count];
    index /= run->algorithms.count;
    point.comm = run->comms.items[index % run->comms.count];
    point.strategy = run->strategies.items[index / run->comms.count];
    return point;
}

static ptb_trainer_config trainer_config(const ptb_bench_run *run, const ptb_step_point *point,
                                         const ptb_step_division *d)
{
    const ptb_step_config *c = run->config;
    ptb_dtype type = ptb_step_type(point->precision);
    ptb_recompute recompute = strcmp(c->recompute, "full") == 0        ? PTB_RECOMPUTE_FULL
                              : strcmp(c->recompute, "selective") == 0 ? PTB_RECOMPUTE_SELECTIVE
                                                                       : PTB_RECOMPUTE_NONE;
    return (ptb_trainer_config){
        .world = run->env.world,
        .strategy = ptb_strategy_data(d->strategy),
        .mesh = d->mesh,
        .sequence_parallel = c->sequence_parallel || d->strategy->sequence,
        .tensor_chunks = (int)c->tensor_chunks,
        .expert_dispatch =
            (const ptb_expert_dispatch *)ptb_registry_find(PTB_KIND_EXPERT_DISPATCH, c->expert_dispatch),
        .expert_overlap = c->expert_overlap,
        .balance_global = ptb_step_balances_globally(c, &run->layout.shape),
        .kernels = run->kernels,
        .layout = &run->cut,
        .context = (const ptb_context *)ptb_registry_find(PTB_KIND_CONTEXT, c->context),
        .context_degree = (int)c->context_degree,
        .tokens = run->tokens,
        .device = c->device,
        .share_gpu = run->env.share_gpu,
        .comm = point->comm,
        .comm_config = {.algorithm = strcmp(point->algorithm, "auto") ? point->algorithm : NULL,
                        .transport = c->transport && *c->transport ? c->transport : NULL,
                        .device = c->device,
                        .threads = true,
                        .untimed = c->deterministic},
        .optimizer = ptb_step_optimizer(c, type),
        .type = type,
        .tf32 = ptb_step_is_tf32(point->precision),
        .reduce_type = ptb_step_reduces(d->strategy->name) ? ptb_step_type(c->reduce_type) : PTB_F32,
        .batch = run->batch,
        .micro_batches = c->micro_batches,
        .recompute = recompute,
        .recompute_every = c->recompute_every,
        .packed = c->pack,
        .seed = run->env.seed,
        .bucket_bytes = c->bucket_bytes,
        .overlap = c->overlap,
        .data_options = ptb_step_data_options(&c->data_parallel),
        .deterministic = c->deterministic,
        .graph = c->graph,
        .threads = (int)c->threads,
        .max_steps = MAX_STEPS,
        .alive = run->env.alive,
        .watcher = run->env.watcher,
    };
}

// Before a device is open: what the case will be skipped for, if its memory is too little.
static ptb_status foresee_memory(ptb_bench_run *run, const ptb_step_point *point, const ptb_step_division *d,
                                 char *skip)
{
    ptb_layout_cut cut = ptb_mesh_cut(&d->mesh);
    if (!run->sharers)
        PTB_TRY(ptb_device_foresee(run->config->device, run->env.world, &run->available, &run->sharers));
    PTB_TRY(ptb_layout_init(&run->cut, &run->layout.shape, &cut));
    ptb_trainer_config config = trainer_config(run, point, d);
    if (ptb_trainer_fits(&config, run->available, run->sharers, skip))
        skip[0] = 0;
    ptb_layout_release(&run->cut);
    return PTB_OK;
}

static ptb_status step_next(ptb_bench_run *run, ptb_case *c, bool *more)
{
    if (run->next == case_count(run)) {
        *more = false;
        return PTB_OK;
    }
    *c = (ptb_case){.fixed_batch = true, .index = run->next};
    ptb_step_point point = point_of(run, run->next++);
    ptb_step_division d;
    PTB_TRY(divide(run, point.strategy, &d));
    ptb_step_setting setting = {.mesh = &d.mesh,
                                .type = ptb_step_type(point.precision),
                                .graph = run->config->graph,
                                .overlap = run->config->overlap};
    if (ptb_strategy_data(d.strategy)->clocks) {
        c->batch = PTB_STEP_TOGETHER;
        c->fixed_batch = false;
    }
    point.mesh = d.asked[0] ? d.asked : NULL;
    point.tensor = d.mesh.size[PTB_MESH_TP] > 1;
    point.experts = d.mesh.size[PTB_MESH_EP] > 1;
    point.context = d.mesh.size[PTB_MESH_CP] > 1;
    point.balance = ptb_step_balances(&run->layout.shape);
    ptb_step_params(run->config, &point, &c->params);
    PTB_TRY(ptb_step_divide_batch(run->config, &run->env, &run->layout.shape, run->batch, &d));
    memcpy(c->skip, d.skip, sizeof c->skip);
    if (!ptb_step_has_algorithm(point.comm, point.algorithm))
        snprintf(c->skip, sizeof c->skip, "the communicator %s has no all-reduce named '%s'", point.comm,
                 point.algorithm);
    if (!ptb_step_has_type(run->kernels, point.precision))
        snprintf(c->skip, sizeof c->skip, "the kernels %s do not compute in %s; take another --precision",
                 run->kernels->plugin.name, point.precision);
    if (!d.skip[0])
        (void)ptb_step_data_possible(&run->config->data_parallel, point.strategy, &setting, c->skip);
    if (!d.skip[0] && ptb_step_balances_globally(run->config, &run->layout.shape))
        (void)ptb_step_balance_possible(point.strategy, c->skip);
    if (run->env.dry_run && !c->skip[0])
        PTB_TRY(foresee_memory(run, &point, &d, c->skip));
    double tokens = (double)(run->batch * run->layout.shape.sequence) * fmax(1, (double)c->batch);
    ptb_step_guess(&run->env, run->config->device, point.precision,
                   ptb_layout_flops_palm(&run->layout) * tokens, c);
    *more = true;
    return PTB_OK;
}

static ptb_status step_prepare(ptb_bench_run *run, const ptb_case *c, char *reason)
{
    ptb_step_point point = point_of(run, c->index);
    ptb_step_division d;
    PTB_TRY(divide(run, point.strategy, &d));
    ptb_layout_cut cut = ptb_mesh_cut(&d.mesh);
    PTB_TRY(ptb_world_agree(run->env.world, ptb_layout_init(&run->cut, &run->layout.shape, &cut)));
    ptb_trainer_config config = trainer_config(run, &point, &d);
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
    // Timed steps of a device that records its work itself are not recorded: unknown.
    size_t unknown = dropped + ptb_step_is_captured(run->trainer);
    PTB_TRY(ptb_step_breakdown_add(run->breakdown, spans, count, unknown, run->trainer->clocks > 0,
                                   run->trainer->steps));
    for (size_t i = 0; i < count; i++)
        ptb_trace_record(run->env.trace, &spans[i]);
    ptb_trace_clear(run->trace);
    return ptb_step_experts_read(&run->experts, run->trainer);
}

static ptb_status step_iterate(ptb_bench_run *run, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        PTB_TRY(ptb_trainer_step(run->trainer));
    return ptb_trainer_drain(run->trainer);
}

static ptb_status step_verify(ptb_bench_run *run, ptb_verdict *verdict)
{
    bool learns = (!run->config->data || !*run->config->data) && run->config->rate != 0;
    return ptb_step_verify(run->trainer, learns, &run->hashes, verdict);
}

static ptb_status step_metrics(ptb_bench_run *run, const ptb_timing *timing, ptb_metrics *metrics)
{
    PTB_TRY(step_reset(run)); // the spans of the last sample
    uint64_t timed = (uint64_t)timing->mine_count * timing->batch, profiled;
    // Memory first: measuring the peak of matrix products takes some.
    ptb_metrics memory = {.count = 0};
    PTB_TRY(ptb_step_memory_metrics(&run->memory, run->trainer, &memory));
    PTB_TRY(ptb_step_metrics(run->trainer, timing->time_ns.median, run->config->peak, metrics));
    PTB_TRY(ptb_step_experts_metrics(&run->experts, run->trainer, metrics));
    PTB_TRY(ptb_step_staleness_metrics(&run->staleness, run->trainer, metrics));
    PTB_TRY(ptb_step_profile(run->trainer, run->env.trace, run->breakdown, timing->time_ns.median, &profiled,
                             metrics));
    PTB_TRY(ptb_step_breakdown_metrics(run->breakdown, run->env.world, run->trainer->steps,
                                       profiled ? profiled : timed, metrics));
    for (size_t i = 0; i < memory.count; i++)
        metrics->items[metrics->count++] = memory.items[i];
    return ptb_step_ideal(run->trainer, timing->time_ns.median, metrics); // last: it spoils the parameters
}

static void step_facts(ptb_bench_run *run, ptb_params *facts)
{
    const ptb_data *data = run->trainer->data;
    ptb_params_set(facts, "device", "%s", run->trainer->device->description);
    ptb_step_division_facts(run->config, run->env.world, &run->trainer->config.mesh, facts);
    if (run->trainer->context.ops)
        ptb_context_facts(&run->trainer->context, facts);
    ptb_params_set(facts, "steps", "%" PRIu64, run->trainer->steps);
    ptb_params_set(facts, "peak_memory_rank", "%d", run->memory.fullest);
    if (run->hashes.steps == run->trainer->steps) // verified: asking for them is collective
        ptb_params_set(facts, "parameters_hash", "%016" PRIx64, ptb_step_hash(&run->hashes));
    ptb_model_shape_facts(&run->layout.shape, facts);
    ptb_step_profile_facts(run->trainer, facts);
    if (run->trainer->experts)
        run->trainer->experts->env.dispatch->describe(run->trainer->experts, facts);
    data->ops->describe(run->trainer->data, facts);
}

static const char *step_device(ptb_bench_run *run)
{
    return run->trainer->device->identity;
}

static bool step_moves(ptb_bench_run *run, ptb_traffic *traffic)
{
    return ptb_step_moves(run->trainer, traffic);
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
    if (i == count + PTB_STEP_MEMORY_SERIES && ptb_step_staleness_series(&run->staleness, series))
        return true;
    if (i >= count + PTB_STEP_MEMORY_SERIES) {
        size_t before = count + PTB_STEP_MEMORY_SERIES + (run->staleness.count > 0);
        return ptb_step_experts_series(&run->experts, i - before, series);
    }
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
    ptb_step_experts_release(&run->experts);
    ptb_step_staleness_release(&run->staleness);
    ptb_layout_release(&run->cut);
    run->trainer = NULL;
    run->breakdown = NULL;
    run->trace = NULL;
    run->hashes.steps = 0;
}

// On one host `host` moves gradients through shared memory alone, and communicators made for other devices
// have their own ways: then the main thread has the library for itself.
static bool step_needs_threads(const void *config, bool one_host)
{
    const ptb_step_config *c = config;
    bool is_given = c->comm && *c->comm;
    bool on_host = strcmp(is_given ? ptb_backends_comm_device(c->comm) : c->device, "host") == 0;
    bool only_host = !is_given || strcmp(c->comm, "host") == 0;
    bool only_shared = !c->transport || !*c->transport || strcmp(c->transport, "shm") == 0;
    return on_host && !(one_host && only_host && only_shared);
}

static const ptb_bench step_bench = {
    .plugin = {"step", "training steps of a transformer: forward, backward, gradient reduction, optimizer"},
    .opts = step_opts,
    .opt_count = sizeof step_opts / sizeof *step_opts,
    .config_size = sizeof(ptb_step_config),
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
    .device = step_device,
    .moves = step_moves,
    .series = step_series,
    .finish = step_finish,
    .close = step_close,
};
PTB_REGISTER(PTB_KIND_BENCH, step_bench);
