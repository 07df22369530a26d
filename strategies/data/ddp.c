// Distributed data parallel (Li et al., "PyTorch Distributed", VLDB 2020, section 3.2): every rank holds
// everything; gradients live in one registered range that is cut, from its end, into buckets; a bucket is
// all-reduced on the communication stream as soon as backward has passed its first element, while backward
// goes on. Events order the two streams. Gradients are scaled by the loss (1 / tokens of the global batch),
// so the reduction is a sum.
//
// Mixed precision (Micikevicius et al. 2018): units compute with a 16-bit copy of f32 master weights, which
// the optimizer writes as it updates them. Gradients are f32; reduced in 16 bits they are converted, a bucket
// at a time, on the communication stream.
#include "strategies/data/data.h"

#include "core/log.h"
#include "strategies/mark.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct {
    size_t first, count; // of the index space
    ptb_event *ready, *reduced;
} bucket;

typedef struct {
    ptb_data base;
    float *master, *moment[2]; /* [layout.count] */
    void *parameters;          /* [layout.count], compute type; master itself in f32 */
    float *gradients;          /* [layout.count]; from the communicator when it reduces them as they are */
    void *staging;             /* [largest bucket], reduce type, from the communicator; NULL: f32 */
    bucket *buckets;           // in order of use: from the end of the index space
    size_t bucket_count;
    size_t launched; // buckets of this step that are enqueued
    size_t waited;   // of them, those the compute stream has waited for
    ptb_mark compute_mark, communication_mark;
} ddp;

enum { BUCKET_ALIGN = 32 }; // elements: buckets start at cache lines, also in 16 bits

static size_t bucket_elements(const ptb_data_env *env)
{
    size_t elements = (size_t)(env->bucket_bytes / ptb_dtype_size(env->reduce_type));
    elements = elements / BUCKET_ALIGN * BUCKET_ALIGN;
    elements = elements < BUCKET_ALIGN ? BUCKET_ALIGN : elements;
    return elements < env->layout->count ? elements : env->layout->count;
}

static bool is_mixed(const ptb_data_env *env)
{
    return env->type != PTB_F32;
}

// Whether gradients are converted for the reduction.
static bool is_staged(const ptb_data_env *env, int ranks)
{
    return ranks > 1 && env->reduce_type != PTB_F32;
}

static ptb_status make_buckets(ddp *d)
{
    size_t total = d->base.env.layout->count, most = bucket_elements(&d->base.env);
    size_t count = (total + most - 1) / most;
    d->buckets = calloc(count, sizeof *d->buckets);
    if (!d->buckets) {
        ptb_error("no memory to describe %zu buckets; choose a larger --bucket", count);
        return PTB_NO_MEMORY;
    }
    d->bucket_count = count;
    for (size_t i = 0, end = total; i < count; i++) {
        bucket *b = &d->buckets[i];
        b->count = end < most ? end : most;
        b->first = end - b->count;
        end = b->first;
        PTB_TRY(ptb_event_new(d->base.env.device, &b->ready));
        PTB_TRY(ptb_event_new(d->base.env.device, &b->reduced));
    }
    return PTB_OK;
}

static size_t staging_bytes(const ptb_data_env *env)
{
    return bucket_elements(env) * ptb_dtype_size(env->reduce_type);
}

// Memory from the communicator, which its collectives read and write; counted in the device's ledger.
static void release_shared(ddp *d, void *memory, ptb_memory category, size_t bytes)
{
    ptb_comm *comm = d->base.env.comm;
    if (!memory)
        return;
    comm->ops->free(comm, memory);
    ptb_data_account(d->base.env.device, category, -(int64_t)bytes);
}

static void ddp_close(ptb_data *data)
{
    ddp *d = (ddp *)data;
    if (!d)
        return;
    ptb_device *device = data->env.device;
    for (size_t i = 0; i < d->bucket_count; i++) {
        ptb_event_free(d->buckets[i].ready);
        ptb_event_free(d->buckets[i].reduced);
    }
    free(d->buckets);
    release_shared(d, d->gradients, PTB_MEMORY_GRADIENTS, data->env.layout->count * sizeof(float));
    release_shared(d, d->staging, PTB_MEMORY_COMMUNICATION, staging_bytes(&data->env));
    for (size_t i = 0; i < 2; i++)
        ptb_device_free(device, d->moment[i]);
    if (is_mixed(&data->env))
        ptb_device_free(device, d->parameters);
    ptb_device_free(device, d->master);
    free(d);
}

// Bytes a parameter: f32 4 + 4 + moments; 16 bits 2 + 4 + (4 master + moments).
static void ddp_memory(const ptb_data_env *env, int ranks, uint64_t bytes[PTB_MEMORY_COUNT])
{
    uint64_t count = env->layout->count, wide = count * sizeof(float);
    bytes[PTB_MEMORY_PARAMETERS] += count * ptb_dtype_size(env->type);
    bytes[PTB_MEMORY_GRADIENTS] += wide;
    bytes[PTB_MEMORY_OPTIMIZER] += (ptb_optimizer_moments(env->optimizer) + is_mixed(env)) * wide;
    bytes[PTB_MEMORY_COMMUNICATION] += is_staged(env, ranks) ? staging_bytes(env) : 0;
}

static ptb_status allocate_parameters(ddp *d)
{
    const ptb_data_env *e = &d->base.env;
    size_t count = e->layout->count;
    ptb_memory master = is_mixed(e) ? PTB_MEMORY_OPTIMIZER : PTB_MEMORY_PARAMETERS;
    PTB_TRY(ptb_device_alloc(e->device, master, count * sizeof(float), (void **)&d->master));
    d->parameters = d->master;
    if (!is_mixed(e))
        return PTB_OK;
    d->parameters = NULL;
    return ptb_device_alloc(e->device, PTB_MEMORY_PARAMETERS, count * ptb_dtype_size(e->type),
                            &d->parameters);
}

static ptb_status fill_parameters(ddp *d)
{
    const ptb_data_env *e = &d->base.env;
    PTB_TRY(ptb_data_fill(e, d->master));
    ptb_convert copy = {.out = d->parameters,
                        .in = d->master,
                        .count = e->layout->count,
                        .out_type = e->type,
                        .in_type = PTB_F32};
    return is_mixed(e) ? e->kernels->convert(e->compute, &copy) : PTB_OK;
}

static const ptb_data_parallel ddp_ops;

// Device memory comes zeroed or not.
static ptb_status allocate_moments(ddp *d)
{
    const ptb_data_env *e = &d->base.env;
    size_t bytes = e->layout->count * sizeof(float);
    for (size_t i = 0; i < ptb_optimizer_moments(e->optimizer); i++) {
        PTB_TRY(ptb_device_alloc(e->device, PTB_MEMORY_OPTIMIZER, bytes, (void **)&d->moment[i]));
        PTB_TRY(ptb_stream_set(e->compute, d->moment[i], 0, bytes));
    }
    return PTB_OK;
}

// What needs no other rank.
static ptb_status allocate(ddp *d)
{
    PTB_TRY(allocate_parameters(d));
    PTB_TRY(fill_parameters(d));
    return allocate_moments(d);
}

// The communicator's allocation is collective: all ranks try it, and all know whether the others came
// through.
static ptb_status allocate_shared(ddp *d, ptb_memory category, size_t bytes, void **memory)
{
    const ptb_data_env *e = &d->base.env;
    ptb_status mine = e->comm->ops->alloc(e->comm, bytes, memory);
    if (mine == PTB_OK)
        ptb_data_account(e->device, category, (int64_t)bytes);
    else
        *memory = NULL;
    return ptb_world_agree(e->comm->world, mine);
}

static ptb_status allocate_gradients(ddp *d)
{
    const ptb_data_env *e = &d->base.env;
    PTB_TRY(
        allocate_shared(d, PTB_MEMORY_GRADIENTS, e->layout->count * sizeof(float), (void **)&d->gradients));
    if (!is_staged(e, e->comm->size))
        return PTB_OK;
    return allocate_shared(d, PTB_MEMORY_COMMUNICATION, staging_bytes(e), &d->staging);
}

static ptb_status ddp_open(const ptb_data_env *env, ptb_data **data)
{
    ddp *d = calloc(1, sizeof *d);
    if (!d) {
        ptb_error("no memory for the state of ddp");
        return PTB_NO_MEMORY;
    }
    d->base = (ptb_data){.ops = &ddp_ops, .env = *env};
    ptb_status status = ptb_world_agree(env->comm->world, allocate(d));
    if (status == PTB_OK)
        status = allocate_gradients(d);
    if (status == PTB_OK)
        status = make_buckets(d);
    if (status == PTB_OK)
        status = ptb_stream_set(env->compute, d->gradients, 0, env->layout->count * sizeof(float));
    status = ptb_world_agree(env->comm->world, status); // closing is collective
    if (status != PTB_OK) {
        ddp_close(&d->base);
        return status;
    }
    *data = &d->base;
    return PTB_OK;
}

static void ddp_unit_memory(ptb_data *data, size_t unit, ptb_unit_memory *memory)
{
    ddp *d = (ddp *)data;
    const ptb_layout *layout = data->env.layout;
    const ptb_unit *u = &layout->unit[unit];
    size_t width = ptb_dtype_size(data->env.type);
    *memory = (ptb_unit_memory){.parameters = (char *)d->parameters + u->first * width,
                                .gradients = d->gradients + u->first};
    if (layout->shape.tied && u->kind == PTB_UNIT_HEAD) {
        size_t table = layout->unit[0].first + ptb_unit_tensor(&layout->unit[0], PTB_EMBED_TOKENS)->first;
        memory->tied_parameters = (char *)d->parameters + table * width;
        memory->tied_gradients = d->gradients + table;
    }
}

static ptb_status ddp_begin_step(ptb_data *data, uint64_t step)
{
    ((ddp *)data)->launched = 0;
    data->step = step;
    return PTB_OK;
}

static ptb_status nothing(ptb_data *data, size_t unit)
{
    (void)data;
    (void)unit;
    return PTB_OK;
}

static ptb_span communication_span(const ddp *d, size_t index, ptb_span_kind kind, const char *name)
{
    const ptb_data_env *e = &d->base.env;
    ptb_span span = {.rank = e->comm->world->rank,
                     .stream = (int16_t)e->communication->lane,
                     .kind = (uint8_t)kind,
                     .phase = PTB_PHASE_BACKWARD,
                     .unit = (int32_t)index,
                     .microbatch = -1,
                     .correlation = d->base.step};
    snprintf(span.name, sizeof span.name, "%s", name);
    return span;
}

// A bucket's gradients to the reduce type or back, on the communication stream.
static ptb_status stage(ddp *d, size_t index, bool back)
{
    const ptb_data_env *e = &d->base.env;
    const bucket *b = &d->buckets[index];
    float *gradients = d->gradients + b->first;
    ptb_convert convert = {.out = back ? (void *)gradients : d->staging,
                           .in = back ? d->staging : (void *)gradients,
                           .count = b->count,
                           .out_type = back ? PTB_F32 : e->reduce_type,
                           .in_type = back ? e->reduce_type : PTB_F32};
    ptb_span span = communication_span(d, index, PTB_SPAN_COMPUTE, "convert");
    PTB_TRY(ptb_mark_open(&d->communication_mark, e->trace, e->communication, &span));
    PTB_TRY(e->kernels->convert(e->communication, &convert));
    return ptb_mark_close(&d->communication_mark, e->trace, e->communication);
}

static ptb_status reduce(ddp *d, size_t index)
{
    const ptb_data_env *e = &d->base.env;
    const bucket *b = &d->buckets[index];
    void *memory = d->staging ? d->staging : d->gradients + b->first;
    ptb_coll call = {.kind = PTB_ALL_REDUCE,
                     .send = memory,
                     .recv = memory,
                     .count = b->count,
                     .dtype = e->reduce_type,
                     .op = PTB_SUM};
    uint64_t bytes = b->count * ptb_dtype_size(e->reduce_type);
    ptb_span span = communication_span(d, index, PTB_SPAN_COMM, "all_reduce");
    span.axis = 1;
    span.bytes = bytes;
    PTB_TRY(ptb_mark_open(&d->communication_mark, e->trace, e->communication, &span));
    PTB_TRY(ptb_comm_collective(e->comm, &call, e->communication));
    PTB_TRY(ptb_mark_close(&d->communication_mark, e->trace, e->communication));
    d->base.collective_bytes += bytes;
    d->base.wire_bytes += (double)bytes * 2 * (e->comm->size - 1) / e->comm->size;
    return PTB_OK;
}

static ptb_status launch(ddp *d, size_t index)
{
    const ptb_data_env *e = &d->base.env;
    bucket *b = &d->buckets[index];
    PTB_TRY(ptb_event_record(b->ready, e->compute));
    PTB_TRY(ptb_event_wait(e->communication, b->ready));
    if (d->staging)
        PTB_TRY(stage(d, index, false));
    PTB_TRY(reduce(d, index));
    if (d->staging)
        PTB_TRY(stage(d, index, true));
    return ptb_event_record(b->reduced, e->communication);
}

// One rank has nothing to reduce: no call, so that no empty communication shows in the trace.
static ptb_status launch_from(ddp *d, size_t first)
{
    while (d->launched < d->bucket_count && d->buckets[d->launched].first >= first) {
        if (d->base.env.comm->size > 1)
            PTB_TRY(launch(d, d->launched));
        d->launched++;
    }
    return PTB_OK;
}

// The token table of a tied model is complete only after the embedding's backward, which is the last unit
// anyway: everything at and above `first` of the index space is complete when units come in descending order.
static ptb_status ddp_gradient_ready(ptb_data *data, size_t unit, size_t first)
{
    ddp *d = (ddp *)data;
    return data->env.overlap ? launch_from(d, data->env.layout->unit[unit].first + first) : PTB_OK;
}

static ptb_status open_span(ddp *d, int unit, const char *name)
{
    const ptb_data_env *e = &d->base.env;
    ptb_span span = {.rank = e->comm->world->rank,
                     .stream = (int16_t)e->compute->lane,
                     .kind = PTB_SPAN_OPTIMIZER,
                     .phase = PTB_PHASE_OPTIMIZER,
                     .unit = unit,
                     .microbatch = -1,
                     .correlation = d->base.step};
    snprintf(span.name, sizeof span.name, "%s", name);
    return ptb_mark_open(&d->compute_mark, e->trace, e->compute, &span);
}

static ptb_status close_span(ddp *d)
{
    return ptb_mark_close(&d->compute_mark, d->base.env.trace, d->base.env.compute);
}

// Adds gradients [first, first + count) to the sum of squares; the first call of a step begins it anew.
static ptb_status add_squares(ddp *d, size_t first, size_t count, bool accumulate)
{
    const ptb_data_env *e = &d->base.env;
    ptb_sum_squares args = {
        .sum = e->sum_squares, .values = d->gradients + first, .count = count, .accumulate = accumulate};
    return e->kernels->sum_squares(e->compute, &args);
}

static ptb_status update_unit(ddp *d, size_t unit, bool sums)
{
    const ptb_data_env *e = &d->base.env;
    const ptb_unit *u = &e->layout->unit[unit];
    ptb_optimizer_memory memory = {
        .parameters = d->master + u->first, .gradients = d->gradients + u->first, .type = e->type};
    if (is_mixed(e))
        memory.rounded = (char *)d->parameters + u->first * ptb_dtype_size(e->type);
    for (size_t i = 0; i < 2; i++)
        memory.moment[i] = d->moment[i] ? d->moment[i] + u->first : NULL;
    PTB_TRY(open_span(d, (int)unit, ptb_optimizer_name(e->optimizer)));
    if (sums)
        PTB_TRY(add_squares(d, u->first, u->count, unit + 1 < e->layout->units));
    PTB_TRY(ptb_optimizer_update(e->optimizer, e->kernels, e->compute, e->update, u, &memory));
    return close_span(d);
}

// The compute stream waits for the buckets that end above `first`; they are in descending order.
static ptb_status wait_for_buckets(ddp *d, size_t first)
{
    while (d->base.env.comm->size > 1 && d->waited < d->bucket_count &&
           d->buckets[d->waited].first + d->buckets[d->waited].count > first)
        PTB_TRY(ptb_event_wait(d->base.env.compute, d->buckets[d->waited++].reduced));
    return PTB_OK;
}

// Clipping and loss scaling need the norm of the whole gradient before anything is updated. Every rank has
// all of it, so each sums the squares for itself.
static ptb_status begin_update(ddp *d, bool sums_first)
{
    const ptb_data_env *e = &d->base.env;
    if (sums_first || !e->overlap)
        PTB_TRY(wait_for_buckets(d, 0));
    PTB_TRY(open_span(d, -1, sums_first ? "gradient norm" : "update"));
    if (sums_first)
        PTB_TRY(add_squares(d, 0, e->layout->count, false));
    PTB_TRY(ptb_optimizer_begin(e->optimizer, e->kernels, e->compute, e->update,
                                sums_first ? e->sum_squares : NULL));
    return close_span(d);
}

// Units in the order in which their buckets come back. Without overlap nothing runs beside communication.
static ptb_status ddp_optimize(ptb_data *data)
{
    ddp *d = (ddp *)data;
    const ptb_data_env *e = &data->env;
    bool sums_first = ptb_optimizer_needs_norm(e->optimizer);
    PTB_TRY(launch_from(d, 0));
    d->waited = 0;
    PTB_TRY(begin_update(d, sums_first));
    for (size_t u = e->layout->units; u-- > 0;) {
        PTB_TRY(wait_for_buckets(d, e->layout->unit[u].first));
        PTB_TRY(update_unit(d, u, !sums_first));
    }
    return PTB_OK;
}

static ptb_status ddp_hash(ptb_data *data, uint64_t *hash)
{
    return ptb_data_hash(&data->env, ((ddp *)data)->master, data->env.layout->count, hash);
}

static void ddp_describe(ptb_data *data, ptb_params *facts)
{
    ddp *d = (ddp *)data;
    ptb_params_set(facts, "buckets", "%zu", d->bucket_count);
    ptb_params_set(facts, "bucket_bytes", "%zu", d->buckets[0].count * ptb_dtype_size(data->env.reduce_type));
    void *memory = d->staging ? d->staging : d->gradients;
    ptb_coll call = {.kind = PTB_ALL_REDUCE,
                     .send = memory,
                     .recv = memory,
                     .count = d->buckets[0].count,
                     .dtype = data->env.reduce_type,
                     .op = PTB_SUM};
    data->env.comm->ops->describe(data->env.comm, &call, facts);
}

static const ptb_data_parallel ddp_ops = {
    .plugin = {"ddp", "every rank holds the whole model; bucketed gradient all-reduce overlaps backward"},
    .open = ddp_open,
    .close = ddp_close,
    .memory = ddp_memory,
    .unit_memory = ddp_unit_memory,
    .begin_step = ddp_begin_step,
    .before_forward = nothing,
    .after_forward = nothing,
    .before_backward = nothing,
    .gradient_ready = ddp_gradient_ready,
    .after_backward = nothing,
    .optimize = ddp_optimize,
    .hash = ddp_hash,
    .describe = ddp_describe,
};
PTB_REGISTER(PTB_KIND_DATA_PARALLEL, ddp_ops);
