// Distributed data parallel (Li et al., "PyTorch Distributed", VLDB 2020, section 3.2): every rank holds
// everything; gradients live in one registered range that is cut, from its end, into buckets; a bucket is
// all-reduced on the communication stream as soon as backward has passed its first element, while backward
// goes on. Events order the two streams. Gradients are scaled by the loss (1 / tokens of the global batch),
// so the reduction is a sum.
//
// Mixed precision (Micikevicius et al. 2018): units compute with a 16-bit copy of f32 master weights, which
// the optimizer writes as it updates them. Gradients are f32; reduced in 16 bits they are converted, a bucket
// at a time, on the communication stream.
#include "strategies/data/replica.h"
#include "strategies/data/segment.h"

#include "core/log.h"

#include <stdlib.h>

typedef struct {
    ptb_data base;
    ptb_replica replica;
    float *gradients; /* [layout.count]; from the communicator when it reduces them as they are */
    void *staging;    /* [largest bucket], reduce type, from the communicator; NULL: f32 */
    ptb_segments buckets;
    ptb_event **reduced; // [buckets.count]
    size_t launched;     // buckets of this step that are enqueued
    size_t waited;       // of them, those the compute stream has waited for
} ddp;

static ptb_status make_buckets(ddp *d)
{
    const ptb_data_env *e = &d->base.env;
    PTB_TRY(ptb_segments_init(&d->buckets, e, PTB_SEGMENT_BUCKETS));
    d->reduced = calloc(d->buckets.count, sizeof *d->reduced);
    if (!d->reduced) {
        ptb_error("no memory to describe %zu buckets; choose a larger --bucket", d->buckets.count);
        return PTB_NO_MEMORY;
    }
    for (size_t i = 0; i < d->buckets.count; i++)
        PTB_TRY(ptb_event_new(e->device, &d->reduced[i]));
    return PTB_OK;
}

static ptb_lane *lane_of(const ddp *d, size_t index)
{
    return d->base.env.reduce[d->buckets.item[index].group];
}

static size_t staging_bytes(const ptb_data_env *env)
{
    return ptb_segments_measure(env, PTB_SEGMENT_BUCKETS).largest * ptb_dtype_size(env->reduce_type);
}

static void ddp_close(ptb_data *data)
{
    ddp *d = (ddp *)data;
    if (!d)
        return;
    for (size_t i = 0; d->reduced && i < d->buckets.count; i++)
        ptb_event_free(d->reduced[i]);
    free(d->reduced);
    ptb_segments_release(&d->buckets);
    ptb_lane *lane = data->env.reduce[PTB_GROUP_DENSE];
    ptb_lane_free(lane, PTB_MEMORY_GRADIENTS, data->env.layout->count * sizeof(float), d->gradients);
    ptb_lane_free(lane, PTB_MEMORY_COMMUNICATION, staging_bytes(&data->env), d->staging);
    ptb_replica_release(&d->replica);
    free(d);
}

static void ddp_memory(const ptb_data_env *env, uint64_t bytes[PTB_MEMORY_COUNT])
{
    ptb_replica_memory(env, bytes);
    bytes[PTB_MEMORY_GRADIENTS] += env->layout->count * sizeof(float);
    bytes[PTB_MEMORY_COMMUNICATION] += ptb_data_is_staged(env) ? staging_bytes(env) : 0;
}

static const ptb_data_parallel ddp_ops;

static ptb_status allocate_gradients(ddp *d)
{
    const ptb_data_env *e = &d->base.env;
    ptb_lane *lane = e->reduce[PTB_GROUP_DENSE];
    PTB_TRY(
        ptb_lane_alloc(lane, PTB_MEMORY_GRADIENTS, e->layout->count * sizeof(float), (void **)&d->gradients));
    if (!ptb_data_is_staged(e))
        return PTB_OK;
    return ptb_lane_alloc(lane, PTB_MEMORY_COMMUNICATION, staging_bytes(e), &d->staging);
}

static ptb_status ddp_open(const ptb_data_env *env, ptb_data **data)
{
    ddp *d = calloc(1, sizeof *d);
    if (!d) {
        ptb_error("no memory for the state of ddp");
        return PTB_NO_MEMORY;
    }
    d->base = (ptb_data){.ops = &ddp_ops, .env = *env};
    ptb_world *world = env->reduce[PTB_GROUP_DENSE]->comm->world;
    ptb_status status = ptb_replica_init(&d->replica, &d->base, false);
    if (status == PTB_OK)
        status = allocate_gradients(d);
    if (status == PTB_OK)
        status = make_buckets(d);
    if (status == PTB_OK)
        status = ptb_stream_set(env->compute, d->gradients, 0, env->layout->count * sizeof(float));
    status = ptb_world_agree(world, status); // closing is collective
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
    ptb_data_unit_memory(&data->env, unit, d->replica.parameters, d->gradients, memory);
}

static ptb_status ddp_begin_step(ptb_data *data, uint64_t step)
{
    ((ddp *)data)->launched = 0;
    data->step = step;
    return PTB_OK;
}

// A bucket's gradients to the reduce type or back, on the lane's stream.
static ptb_status stage(ddp *d, size_t index, bool back)
{
    const ptb_data_env *e = &d->base.env;
    const ptb_segment *b = &d->buckets.item[index];
    ptb_lane *lane = lane_of(d, index);
    float *gradients = d->gradients + b->first;
    ptb_convert convert = {.out = back ? (void *)gradients : d->staging,
                           .in = back ? d->staging : (void *)gradients,
                           .count = b->count,
                           .out_type = back ? PTB_F32 : e->reduce_type,
                           .in_type = back ? e->reduce_type : PTB_F32};
    PTB_TRY(ptb_lane_work_begin(lane, "convert"));
    PTB_TRY(e->kernels->convert(lane->stream, &convert));
    return ptb_lane_work_end(lane);
}

static ptb_coll reduction(const ddp *d, size_t index)
{
    const ptb_segment *b = &d->buckets.item[index];
    void *memory = d->staging ? d->staging : d->gradients + b->first;
    return (ptb_coll){.kind = PTB_ALL_REDUCE,
                      .send = memory,
                      .recv = memory,
                      .count = b->count,
                      .dtype = d->base.env.reduce_type,
                      .op = PTB_SUM};
}

static ptb_status launch(ddp *d, size_t index)
{
    ptb_lane *lane = lane_of(d, index);
    ptb_coll call = reduction(d, index);
    lane->number = (int)index;
    PTB_TRY(ptb_lane_fork(lane));
    if (d->staging)
        PTB_TRY(stage(d, index, false));
    PTB_TRY(ptb_lane_collective(lane, &call, NULL));
    if (d->staging)
        PTB_TRY(stage(d, index, true));
    return ptb_event_record(d->reduced[index], lane->stream);
}

// One rank has nothing to reduce: no call, so that no empty communication shows in the trace.
static ptb_status launch_from(ddp *d, size_t first)
{
    while (d->launched < d->buckets.count && d->buckets.item[d->launched].first >= first) {
        if (lane_of(d, d->launched)->size > 1)
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

// The compute stream waits for the buckets that end above `first`; they are in descending order.
static ptb_status wait_for_buckets(ddp *d, size_t first)
{
    for (; d->waited < d->buckets.count; d->waited++) {
        const ptb_segment *b = &d->buckets.item[d->waited];
        ptb_lane *lane = lane_of(d, d->waited);
        if (b->first + b->count <= first)
            break;
        if (lane->size > 1)
            PTB_TRY(ptb_lane_wait(lane, d->reduced[d->waited]));
    }
    return PTB_OK;
}

// Clipping and loss scaling need the norm of the whole gradient before anything is updated.
static ptb_status begin_update(ddp *d, bool sums_first)
{
    const ptb_data_env *e = &d->base.env;
    if (sums_first || !e->overlap)
        PTB_TRY(wait_for_buckets(d, 0));
    PTB_TRY(ptb_data_span_open(&d->base, -1, sums_first ? "gradient norm" : "update"));
    if (sums_first) {
        PTB_TRY(ptb_data_squares_add(&d->base, 0, e->layout->count, d->gradients));
        PTB_TRY(ptb_data_squares_end(&d->base));
    }
    PTB_TRY(ptb_optimizer_begin(e->optimizer, e->kernels, e->compute, e->update,
                                sums_first ? e->sum_squares : NULL));
    return ptb_data_span_close(&d->base);
}

// Units in the order in which their buckets come back. Without overlap nothing runs beside communication.
static ptb_status ddp_optimize(ptb_data *data)
{
    ddp *d = (ddp *)data;
    const ptb_data_env *e = &data->env;
    bool sums_first = ptb_optimizer_needs_norm(e->optimizer);
    PTB_TRY(launch_from(d, 0));
    d->waited = 0;
    ptb_data_squares_begin(data);
    PTB_TRY(begin_update(d, sums_first));
    for (size_t u = e->layout->units; u-- > 0;) {
        PTB_TRY(wait_for_buckets(d, e->layout->unit[u].first));
        PTB_TRY(ptb_replica_update(&d->replica, u, d->gradients, !sums_first));
    }
    return sums_first ? PTB_OK : ptb_data_squares_end(data);
}

static bool ddp_part(ptb_data *data, ptb_data_what what, size_t i, ptb_data_part *part)
{
    const ddp *d = (ddp *)data;
    *part = (ptb_data_part){.count = data->env.layout->count,
                            .values = what == PTB_DATA_PARAMETERS ? d->replica.master : d->gradients};
    return i == 0;
}

static void ddp_describe(ptb_data *data, ptb_params *facts)
{
    ddp *d = (ddp *)data;
    ptb_params_set(facts, "buckets", "%zu", d->buckets.count);
    ptb_params_set(facts, "bucket_bytes", "%zu",
                   d->buckets.item[0].count * ptb_dtype_size(data->env.reduce_type));
    ptb_coll call = reduction(d, 0);
    ptb_lane_describe(lane_of(d, 0), &call, facts);
}

static const ptb_data_parallel ddp_ops = {
    .plugin = {"ddp", "every rank holds the whole model; bucketed gradient all-reduce overlaps backward"},
    .open = ddp_open,
    .close = ddp_close,
    .memory = ddp_memory,
    .unit_memory = ddp_unit_memory,
    .begin_step = ddp_begin_step,
    .before_forward = ptb_data_nothing,
    .after_forward = ptb_data_nothing,
    .before_backward = ptb_data_nothing,
    .gradient_ready = ddp_gradient_ready,
    .after_backward = ptb_data_nothing,
    .optimize = ddp_optimize,
    .part = ddp_part,
    .describe = ddp_describe,
};
PTB_REGISTER(PTB_KIND_DATA_PARALLEL, ddp_ops);
