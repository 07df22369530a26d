// What a training run consists of: made, freed, and predicted in bytes. The step itself is in trainer_step.c.
#include "strategies/trainer.h"

#include "core/log.h"
#include "core/topology.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { PREFETCH_DEPTH = 4 };

int64_t ptb_trainer_sequences(const ptb_trainer_config *c)
{
    return c->batch / ptb_mesh_size(&c->mesh, PTB_MESH_DATA) / c->micro_batches;
}

bool ptb_trainer_experts(const ptb_trainer_config *c, ptb_expert_env *env)
{
    const ptb_expert_dispatch *asked = c->expert_dispatch;
    if (!asked)
        asked = (const ptb_expert_dispatch *)ptb_registry_find(PTB_KIND_EXPERT_DISPATCH, "all_to_all");
    int64_t rows = ptb_trainer_sequences(c) * c->layout->shape.sequence / c->mesh.size[PTB_MESH_CP];
    *env = (ptb_expert_env){.dispatch = asked,
                            .kernels = c->kernels,
                            .layout = c->layout,
                            .rows = (size_t)rows,
                            .type = c->type,
                            .overlap = c->expert_overlap};
    return c->mesh.size[PTB_MESH_EP] > 1;
}

// What load-balancing losses with the statistics of all ranks need, without lane; false: there are none.
static bool describe_balance(const ptb_trainer_config *c, ptb_balance_env *env)
{
    const ptb_model_shape *s = &c->layout->shape;
    int ranks = ptb_mesh_size(&c->mesh, ptb_lanes_axes(PTB_LANE_BALANCE, &c->mesh, c->strategy->shards));
    int64_t rows = ptb_trainer_sequences(c) * s->sequence / c->mesh.size[PTB_MESH_CP];
    *env = (ptb_balance_env){
        .kernels = c->kernels, .layout = c->layout, .ranks = ranks, .slots = 1, .rows = (size_t)rows};
    return c->balance_global && s->experts && s->balance > 0 && ranks > 1;
}

// What ranks that share layers need, without a lane; false: layers are whole. model: with its other axes.
static bool describe_tensor(const ptb_trainer_config *c, const ptb_model_config *model, ptb_tensor_env *env)
{
    *env = ptb_model_tensor(model, c->sequence_parallel, c->tensor_chunks ? c->tensor_chunks : 1);
    return c->mesh.size[PTB_MESH_TP] > 1;
}

// *axis has no ops where sequences are whole.
static ptb_status describe_context(const ptb_trainer_config *c, ptb_context_axis *axis, char *reason)
{
    const ptb_context *ops = c->context;
    *axis = (ptb_context_axis){0};
    if (c->mesh.size[PTB_MESH_CP] == 1)
        return PTB_OK;
    if (!ops)
        ops = (const ptb_context *)ptb_registry_find(PTB_KIND_CONTEXT, "ring");
    ptb_context_env env = {.rank = c->mesh.place[PTB_MESH_CP],
                           .size = c->mesh.size[PTB_MESH_CP],
                           .degree = c->context_degree,
                           .kernels = c->kernels,
                           .layout = c->layout,
                           .batch = ptb_trainer_sequences(c),
                           .type = c->type,
                           .packed = c->packed,
                           .threads = c->threads};
    return ptb_context_describe(axis, ops, &env, reason);
}

static ptb_model_config model_config(const ptb_trainer_config *c)
{
    return (ptb_model_config){.kernels = c->kernels,
                              .layout = c->layout,
                              .batch = ptb_trainer_sequences(c),
                              .threads = c->threads,
                              .type = c->type,
                              .recompute = c->recompute,
                              .recompute_every = c->recompute_every,
                              .packed = c->packed,
                              .seed = c->seed};
}

// This rank's share of the processors, or what its kernels have if that is more.
static int host_threads(const ptb_trainer_config *c)
{
    int share = ptb_topology_allowed_cpus() / c->world->local_size;
    return share > c->threads ? share : c->threads;
}

static int lane_size(const ptb_trainer_config *c, ptb_lane_use use)
{
    return ptb_mesh_size(&c->mesh, ptb_lanes_axes(use, &c->mesh, c->strategy->shards));
}

static ptb_data_ranks group_ranks(const ptb_trainer_config *c, ptb_lane_use reduce, ptb_lane_use shard)
{
    return (ptb_data_ranks){
        .reduce = lane_size(c, reduce),
        .shard = lane_size(c, shard),
        .replicate = lane_size(c, PTB_LANE_REPLICATE),
        .place = ptb_mesh_place(&c->mesh, ptb_lanes_axes(shard, &c->mesh, c->strategy->shards))};
}

static size_t clocks_of(const ptb_trainer_config *c)
{
    return c->strategy->clocks ? (size_t)c->strategy->clocks(&c->data_options) : 0;
}

static size_t loss_bytes(const ptb_trainer_config *c)
{
    size_t clocks = clocks_of(c);
    return (clocks ? clocks : 1) * sizeof(double);
}

static ptb_data_env data_env(const ptb_trainer_config *c)
{
    bool shards = c->strategy->shards;
    return (ptb_data_env){
        .kernels = c->kernels,
        .layout = c->layout,
        .ranks = {[PTB_GROUP_DENSE] = group_ranks(c, PTB_LANE_DENSE, PTB_LANE_DENSE_SHARD),
                  [PTB_GROUP_EXPERT] = group_ranks(c, PTB_LANE_EXPERTS, PTB_LANE_EXPERTS_SHARD)},
        // The norm's lane has cp and shard only where there are shards.
        .counts = {[PTB_GROUP_DENSE] = shards || !c->mesh.place[PTB_MESH_EP], [PTB_GROUP_EXPERT] = true},
        .counts_replicated = !c->mesh.place[PTB_MESH_TP],
        .optimizer = &c->optimizer,
        .type = c->type,
        .reduce_type = c->reduce_type,
        .seed = c->seed,
        .threads = host_threads(c),
        .bucket_bytes = c->bucket_bytes,
        .overlap = c->overlap,
        .deterministic = c->deterministic,
        .micro_batches = c->micro_batches,
        .options = c->data_options};
}

void ptb_trainer_memory(const ptb_trainer_config *c, uint64_t bytes[PTB_MEMORY_COUNT])
{
    ptb_model_config model = model_config(c);
    ptb_data_env env = data_env(c);
    ptb_expert_env expert_env;
    ptb_expert_axis experts;
    if (ptb_trainer_experts(c, &expert_env)) {
        ptb_expert_axis_describe(&expert_env, &experts);
        model.experts = &experts;
    }
    ptb_balance_axis balance = {.counts = NULL};
    if (describe_balance(c, &balance.env))
        model.balance = &balance;
    ptb_context_axis context;
    char reason[PTB_REASON_BYTES];
    if (describe_context(c, &context, reason) == PTB_OK && context.ops)
        model.context = &context;
    ptb_tensor_axis tensor = {.partial = NULL};
    if (describe_tensor(c, &model, &tensor.env))
        model.tensor = &tensor;
    ptb_model_memory(&model, bytes);
    if (model.tensor)
        ptb_tensor_axis_memory(&model.tensor->env, bytes);
    if (model.experts)
        ptb_expert_axis_memory(model.experts, bytes);
    if (model.balance)
        ptb_balance_axis_memory(&model.balance->env, bytes);
    if (model.context)
        ptb_context_memory(model.context, bytes);
    c->strategy->memory(&env, bytes);
    bytes[PTB_MEMORY_OPTIMIZER] += sizeof(ptb_update) + sizeof(double);
    bytes[PTB_MEMORY_COMMUNICATION] += loss_bytes(c);
    bytes[PTB_MEMORY_WORKSPACE] += c->kernels->stream_workspace(c->threads);
}

enum { GIGABYTES_TEXT = 24 };
// "12.3", "2580", "under 0.001".
static const char *gigabytes(uint64_t bytes, char out[GIGABYTES_TEXT])
{
    double gb = (double)bytes * 1e-9;
    if (bytes && gb < 0.001)
        snprintf(out, GIGABYTES_TEXT, "under 0.001");
    else
        snprintf(out, GIGABYTES_TEXT, gb < 1000 ? "%.3g" : "%.0f", gb);
    return out;
}

bool ptb_trainer_fits(const ptb_trainer_config *c, uint64_t available, int sharers, char *reason)
{
    uint64_t bytes[PTB_MEMORY_COUNT], sum = 0;
    ptb_trainer_memory(c, bytes);
    char has[96] = "", text[PTB_MEMORY_COUNT][GIGABYTES_TEXT], all[GIGABYTES_TEXT], sharing[40];
    for (int i = 0; i < PTB_MEMORY_COUNT; i++)
        sum += bytes[i];
    for (int i = 0; i < PTB_MEMORY_COUNT; i++)
        gigabytes(bytes[i], text[i]);
    snprintf(sharing, sizeof sharing, " to each of the %d ranks that share it", sharers);
    if (available != UINT64_MAX)
        snprintf(has, sizeof has, "; %s GB are available%s", gigabytes(available, all),
                 sharers > 1 ? sharing : "");
    snprintf(reason, PTB_REASON_BYTES,
             "needs %s GB a rank (parameters %s, gradients %s, optimizer %s, activations %s, "
             "communication %s, workspace %s) on device %s%s",
             gigabytes(sum, all), text[PTB_MEMORY_PARAMETERS], text[PTB_MEMORY_GRADIENTS],
             text[PTB_MEMORY_OPTIMIZER], text[PTB_MEMORY_ACTIVATIONS], text[PTB_MEMORY_COMMUNICATION],
             text[PTB_MEMORY_WORKSPACE], c->device, has);
    return sum <= available;
}

static bool fits(const ptb_trainer *t, char *reason)
{
    return ptb_trainer_fits(&t->config, ptb_device_available(t->device), t->device->sharers, reason);
}

static void tell_unforeseen(const ptb_trainer *t, char *reason)
{
    uint64_t bytes[PTB_MEMORY_COUNT], sum = 0;
    ptb_trainer_memory(&t->config, bytes);
    for (int i = 0; i < PTB_MEMORY_COUNT; i++)
        sum += bytes[i];
    snprintf(reason, PTB_REASON_BYTES,
             "an allocation failed, though the step's %.3g GB a rank should fit on device "
             "%s: libraries need memory, too, and others may use the device; use a smaller model or batch, "
             "or fewer ranks on it",
             (double)sum * 1e-9, t->config.device);
}

// Linux hands out more memory than there is and kills later; so ask before.
static ptb_status check_memory(const ptb_trainer *t)
{
    char reason[PTB_REASON_BYTES];
    return fits(t, reason) ? PTB_OK : PTB_NO_MEMORY;
}

static ptb_status make_records(ptb_trainer *t)
{
    const ptb_trainer_config *c = &t->config;
    double **records[] = {&t->losses, &t->norms, &t->rates, &t->scales};
    for (size_t i = 0; i < sizeof records / sizeof *records; i++) {
        *records[i] = calloc(c->max_steps, sizeof **records[i]); // pages come as steps are written
        if (!*records[i]) {
            ptb_error("no memory to record %zu steps", c->max_steps);
            return PTB_NO_MEMORY;
        }
    }
    return PTB_OK;
}

static ptb_status start_prefetch(ptb_trainer *t)
{
    const ptb_trainer_config *c = &t->config;
    uint64_t mine = (uint64_t)(ptb_trainer_sequences(c) * c->micro_batches);
    ptb_prefetch_config config = {.tokens = c->tokens,
                                  .device = t->device,
                                  .length = (size_t)c->layout->shape.sequence,
                                  .pack = c->packed,
                                  .batch = (uint64_t)c->batch,
                                  .first = (uint64_t)ptb_mesh_place(&c->mesh, PTB_MESH_DATA) * mine,
                                  .mine = mine,
                                  .slices = t->context.slices,
                                  .group = (uint64_t)ptb_trainer_sequences(c),
                                  .depth = PREFETCH_DEPTH};
    return ptb_prefetch_start(&config, &t->prefetch);
}

static ptb_status make_input(ptb_trainer *t)
{
    size_t tokens = t->rows * (size_t)t->config.micro_batches;
    return ptb_device_alloc_host(t->device, (t->config.packed ? 3 : 2) * tokens * sizeof *t->input,
                                 (void **)&t->input);
}

static ptb_status make_updated(ptb_trainer *t)
{
    t->updated = calloc(t->clocks + 1, sizeof(ptb_event *));
    if (!t->updated) {
        ptb_error("no memory for the events of %zu steps", t->clocks + 1);
        return PTB_NO_MEMORY;
    }
    for (size_t i = 0; i <= t->clocks; i++)
        PTB_TRY(ptb_event_new(t->device, &t->updated[i]));
    return PTB_OK;
}

static ptb_status make_update(ptb_trainer *t)
{
    ptb_device *device = t->device;
    t->clocks = clocks_of(&t->config);
    PTB_TRY(ptb_device_alloc_host(device, (t->clocks + 1) * sizeof *t->clock, (void **)&t->clock));
    t->shared = t->clock;
    if (t->clocks)
        PTB_TRY(make_updated(t));
    t->shared->update = ptb_optimizer_start(&t->config.optimizer);
    PTB_TRY(ptb_device_alloc(device, PTB_MEMORY_OPTIMIZER, sizeof *t->update, (void **)&t->update));
    PTB_TRY(ptb_device_alloc(device, PTB_MEMORY_OPTIMIZER, sizeof *t->sum_squares, (void **)&t->sum_squares));
    return ptb_stream_copy(t->compute, t->update, &t->shared->update, sizeof *t->update);
}

// What needs no other rank.
static ptb_status make_local(ptb_trainer *t)
{
    const ptb_trainer_config *c = &t->config;
    if (c->trace)
        PTB_TRY(ptb_capture_open(c->device, c->trace, &t->capture));
    PTB_TRY(ptb_stream_new(t->device, PTB_STREAM_WORKER, PTB_LANE_COMPUTE, &t->compute));
    PTB_TRY(ptb_stream_new(t->device, PTB_STREAM_URGENT, PTB_LANE_COMMUNICATION, &t->communication));
    t->timeline = (ptb_timeline){.trace = c->trace, .stream = t->compute};
    PTB_TRY(ptb_event_new(t->device, &t->joined));
    t->rows = (size_t)(ptb_trainer_sequences(c) * c->layout->shape.sequence / c->mesh.size[PTB_MESH_CP]);
    PTB_TRY(c->kernels->set_threads(t->communication, 1)); // it works beside the compute stream
    PTB_TRY(make_records(t));
    if (c->graph)
        PTB_TRY(make_input(t));
    return make_update(t);
}

// The model comes after the axes that it is divided over.
static ptb_status make_model(ptb_trainer *t)
{
    const ptb_trainer_config *c = &t->config;
    ptb_model_config model = model_config(c);
    model.device = t->device;
    model.stream = t->compute;
    model.timeline = &t->timeline;
    model.on_phase.call = ptb_trainer_phase;
    model.on_phase.context = t;
    model.experts = t->experts;
    model.balance = t->balance;
    model.context = t->context.ops ? &t->context : NULL;
    model.tensor = t->tensor;
    PTB_TRY(ptb_model_new(&model, &t->model));
    if (c->deterministic && c->kernels->set_search)
        PTB_TRY(c->kernels->set_search(t->compute, false));
    if (c->tf32)
        PTB_TRY(c->kernels->set_tf32(t->compute, true));
    return c->kernels->reserve(t->compute);
}

static ptb_status check_call(const ptb_trainer *t, ptb_lane_use use, ptb_coll_kind kind, ptb_dtype type,
                             char *reason)
{
    ptb_comm *comm = t->lanes.lane[use].comm;
    bool few = use == PTB_LANE_LOSS || use == PTB_LANE_BALANCE;
    size_t count = few ? 1 : t->config.layout->count;
    ptb_coll call = {.kind = kind, .count = count, .dtype = type, .op = PTB_SUM};
    return comm->size == 1 || comm->ops->supports(comm, &call, true, reason) ? PTB_OK : PTB_SKIPPED;
}

static ptb_status check_collective(ptb_trainer *t, char *reason)
{
    const ptb_trainer_config *c = &t->config;
    PTB_TRY(check_call(t, PTB_LANE_LOSS, PTB_ALL_REDUCE, PTB_F64, reason));
    if (t->balance)
        PTB_TRY(check_call(t, PTB_LANE_BALANCE, PTB_ALL_REDUCE, PTB_I32, reason));
    if (!c->strategy->shards)
        return check_call(t, PTB_LANE_DENSE, PTB_ALL_REDUCE, c->reduce_type, reason);
    PTB_TRY(check_call(t, PTB_LANE_DENSE_SHARD, PTB_REDUCE_SCATTER, c->reduce_type, reason));
    PTB_TRY(check_call(t, PTB_LANE_DENSE_SHARD, PTB_ALL_GATHER, c->type, reason));
    return check_call(t, PTB_LANE_REPLICATE, PTB_ALL_REDUCE, c->reduce_type, reason);
}

static ptb_status make_lanes(ptb_trainer *t)
{
    const ptb_trainer_config *c = &t->config;
    ptb_lanes_config config = {.world = c->world,
                               .mesh = &c->mesh,
                               .shards = c->strategy->shards,
                               .device = t->device,
                               .timeline = &t->timeline,
                               .communication = t->communication,
                               .comm = c->comm,
                               .config = &c->comm_config};
    return ptb_lanes_init(&t->lanes, &config);
}

static ptb_status open_experts(ptb_trainer *t)
{
    ptb_expert_env env;
    if (!ptb_trainer_experts(&t->config, &env))
        return PTB_OK;
    env.lane = &t->lanes.lane[PTB_LANE_EXPERT];
    env.device = t->device;
    return ptb_expert_axis_open(&env, &t->experts);
}

static ptb_status open_balance(ptb_trainer *t)
{
    ptb_balance_env env;
    if (!describe_balance(&t->config, &env))
        return PTB_OK;
    env.lane = &t->lanes.lane[PTB_LANE_BALANCE];
    return ptb_balance_axis_open(&env, &t->balance);
}

static ptb_status open_data(ptb_trainer *t)
{
    ptb_data_env env = data_env(&t->config);
    ptb_lane *lane = t->lanes.lane;
    env.device = t->device;
    env.compute = t->compute;
    env.timeline = &t->timeline;
    env.reduce[PTB_GROUP_DENSE] = &lane[PTB_LANE_DENSE];
    env.reduce[PTB_GROUP_EXPERT] = &lane[PTB_LANE_EXPERTS];
    env.shard[PTB_GROUP_DENSE] = &lane[PTB_LANE_DENSE_SHARD];
    env.shard[PTB_GROUP_EXPERT] = &lane[PTB_LANE_EXPERTS_SHARD];
    env.replicate[PTB_GROUP_DENSE] = env.replicate[PTB_GROUP_EXPERT] = &lane[PTB_LANE_REPLICATE];
    env.norm = &lane[PTB_LANE_NORM];
    env.update = t->update;
    env.sum_squares = t->sum_squares;
    env.together = t->together;
    return t->config.strategy->open(&env, &t->data);
}

static ptb_status open_context(ptb_trainer *t)
{
    t->context.env.lane = &t->lanes.lane[PTB_LANE_CONTEXT];
    return t->context.ops ? ptb_context_open(&t->context) : PTB_OK;
}

static ptb_status open_tensor(ptb_trainer *t)
{
    ptb_model_config model = model_config(&t->config);
    ptb_tensor_env env;
    model.device = t->device;
    model.context = t->context.ops ? &t->context : NULL;
    if (!describe_tensor(&t->config, &model, &env))
        return PTB_OK;
    env.lane = &t->lanes.lane[PTB_LANE_TENSOR];
    return ptb_tensor_axis_open(&env, &t->tensor);
}

// Where ranks that compute together have to agree before a step.
static ptb_status make_together(ptb_trainer *t)
{
    const unsigned axes = PTB_MESH_ALL & ~(1u << PTB_MESH_SHARD | 1u << PTB_MESH_REPLICATE);
    const ptb_trainer_config *c = &t->config;
    if (!t->clocks || ptb_mesh_size(&c->mesh, axes) == 1)
        return PTB_OK;
    return ptb_mesh_split(&c->mesh, c->world, axes, &t->together);
}

static ptb_status make_shared(ptb_trainer *t, char *reason)
{
    const ptb_trainer_config *c = &t->config;
    PTB_TRY(make_lanes(t));
    PTB_TRY(ptb_world_agree(c->world, make_together(t)));
    PTB_TRY(ptb_world_agree(c->world, open_experts(t)));
    PTB_TRY(ptb_world_agree(c->world, open_balance(t)));
    PTB_TRY(ptb_world_agree(c->world, open_context(t)));
    PTB_TRY(ptb_world_agree(c->world, open_tensor(t)));
    PTB_TRY(ptb_world_agree(c->world, make_model(t)));
    PTB_TRY(ptb_world_agree(c->world, check_collective(t, reason)));
    ptb_status status = ptb_lane_alloc(&t->lanes.lane[PTB_LANE_LOSS], PTB_MEMORY_COMMUNICATION, loss_bytes(c),
                                       (void **)&t->loss);
    PTB_TRY(ptb_world_agree(c->world, status));
    PTB_TRY(ptb_world_agree(c->world, open_data(t)));
    PTB_TRY(ptb_world_agree(c->world, start_prefetch(t)));
    return ptb_world_agree(c->world, ptb_stream_sync(t->compute));
}

static ptb_status check_tensor(ptb_trainer *t)
{
    ptb_model_config model = model_config(&t->config);
    ptb_tensor_env env;
    model.context = t->context.ops ? &t->context : NULL;
    return describe_tensor(&t->config, &model, &env) ? ptb_tensor_axis_check(&env) : PTB_OK;
}

static ptb_status check_experts(const ptb_trainer_config *c, char *reason)
{
    ptb_expert_env env;
    ptb_expert_axis axis;
    if (!ptb_trainer_experts(c, &env))
        return PTB_OK;
    ptb_expert_axis_describe(&env, &axis);
    if (!axis.sizes.waits || !c->graph)
        return PTB_OK;
    snprintf(reason, PTB_REASON_BYTES,
             "the host waits in every layer until it knows how many rows go to which expert (%s without a "
             "capacity factor), so the step cannot be recorded; give a capacity factor, use all_gather, or "
             "leave the graph out",
             env.dispatch->plugin.name);
    return PTB_SKIPPED;
}

// Ranks with less than others, or none, would train on another batch than the one that was asked for.
static ptb_status check_batch(const ptb_trainer_config *c, char *reason)
{
    int ranks = ptb_mesh_size(&c->mesh, PTB_MESH_DATA);
    if (ptb_mesh_divides_batch(ranks, c->micro_batches, c->batch, "a batch of", reason))
        return PTB_OK;
    if (c->world->rank == 0) // so it is on every rank
        ptb_error("%s", reason);
    return PTB_USAGE;
}

ptb_status ptb_trainer_new(const ptb_trainer_config *config, char *reason, ptb_trainer **trainer)
{
    if (config->tf32 && !config->kernels->set_tf32) { // so it is on every rank
        snprintf(reason, PTB_REASON_BYTES, "the kernels %s have no TF32", config->kernels->plugin.name);
        return PTB_SKIPPED;
    }
    void *state;
    PTB_TRY(ptb_world_calloc(config->world, sizeof(ptb_trainer), "a trainer", &state));
    ptb_trainer *t = state;
    ptb_status status = PTB_OK;
    t->config = *config;
    if (!config->mesh.size[0])
        status = ptb_mesh_init(&t->config.mesh, &(ptb_mesh_sizes){.tp = 0}, config->world->size,
                               config->world->rank, reason);
    if (status == PTB_OK)
        status = check_batch(&t->config, reason);
    if (status == PTB_OK)
        status = check_experts(&t->config, reason);
    if (status == PTB_OK)
        status = ptb_device_open_local(config->device, config->world, config->share_gpu, &t->device);
    if (status == PTB_OK)
        status = describe_context(&t->config, &t->context, reason);
    if (status == PTB_OK)
        status = check_tensor(t);
    // Before any rank allocates: what one has taken is not available to the others.
    if (status == PTB_OK)
        status = ptb_world_agree(config->world, check_memory(t));
    if (status == PTB_OK)
        status = ptb_world_agree(config->world, make_local(t));
    if (status == PTB_OK)
        status = make_shared(t, reason);
    if (status == PTB_NO_MEMORY && t->device) {
        if (fits(t, reason)) // what the ledger does not know of was too much
            tell_unforeseen(t, reason);
        status = PTB_SKIPPED;
    }
    if (status == PTB_LOST) // the job is about to be ended, and closing could wait for those that are gone
        return status;
    if (status != PTB_OK) {
        ptb_trainer_free(t);
        return status;
    }
    *trainer = t;
    return PTB_OK;
}

void ptb_trainer_free(ptb_trainer *t)
{
    if (!t)
        return;
    if (t->compute)
        (void)ptb_stream_sync(t->compute);
    if (t->communication)
        (void)ptb_stream_sync(t->communication);
    for (int i = PTB_LANE_TP; i <= PTB_LANE_EP; i++)
        if (t->lanes.stream[i])
            (void)ptb_stream_sync(t->lanes.stream[i]);
    ptb_graph_free(t->graph);
    ptb_prefetch_stop(t->prefetch);
    if (t->data)
        t->data->ops->close(t->data);
    ptb_lane_free(&t->lanes.lane[PTB_LANE_LOSS], PTB_MEMORY_COMMUNICATION, loss_bytes(&t->config), t->loss);
    ptb_tensor_axis_close(t->tensor);
    ptb_balance_axis_close(t->balance);
    ptb_expert_axis_close(t->experts);
    ptb_context_close(&t->context);
    ptb_lanes_release(&t->lanes);
    ptb_world_close(t->together);
    ptb_model_free(t->model);
    ptb_device_free(t->device, t->sum_squares);
    ptb_device_free(t->device, t->update);
    ptb_device_free_host(t->device, t->clock);
    for (size_t i = 0; t->updated && i <= t->clocks; i++)
        ptb_event_free(t->updated[i]);
    free(t->updated);
    ptb_device_free_host(t->device, t->input);
    ptb_event_free(t->joined);
    ptb_stream_free(t->communication);
    ptb_stream_free(t->compute);
    ptb_capture_close(t->capture);
    ptb_device_close(t->device);
    free(t->losses);
    free(t->norms);
    free(t->rates);
    free(t->scales);
    free(t);
}
