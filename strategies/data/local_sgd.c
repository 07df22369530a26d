// Local SGD (Stich 2019, "Local SGD Converges Fast and Communicates Little", algorithm 1; DiLoCo, Douillard
// et al. 2023, without an outer optimizer): every rank trains alone on its own sequences, and every k steps
// ranks average their parameters. Moments stay each rank's own. With k = 1 and plain SGD this is synchronous
// SGD: the average of the parameters takes the average of the gradients.
//
// A rank's gradient comes as its part of the global batch's mean, which is 1/d of the mean over its own
// sequences: as if the loss had a scale of 1/d, which the optimizer divides by. The norm, and clipping by it,
// are those of the rank's own gradient.
#include "strategies/data/replica.h"
#include "strategies/data/segment.h"

#include <stdlib.h>

typedef struct {
    ptb_data base;
    ptb_replica replica;
    float *gradients; /* [layout.count] */
    float scale;      // of the loss that gradients come with
    ptb_segments buckets;
    size_t launched; // buckets whose average is enqueued
    bool apart;      // ranks have different parameters
} local_sgd;

static const ptb_data_parallel local_sgd_ops;

static size_t gradient_bytes(const ptb_data_env *env)
{
    return env->layout->count * sizeof(float);
}

static void local_sgd_memory(const ptb_data_env *env, uint64_t bytes[PTB_MEMORY_COUNT])
{
    ptb_replica_memory(env, bytes);
    bytes[PTB_MEMORY_GRADIENTS] += gradient_bytes(env);
}

static void local_sgd_close(ptb_data *data)
{
    local_sgd *l = (local_sgd *)data;
    if (!l)
        return;
    ptb_segments_release(&l->buckets);
    ptb_device_free(data->env.device, l->gradients);
    ptb_replica_release(&l->replica);
    free(l);
}

static ptb_status make_own(local_sgd *l)
{
    const ptb_data_env *e = &l->base.env;
    PTB_TRY(ptb_segments_init(&l->buckets, e, PTB_SEGMENT_BUCKETS));
    PTB_TRY(ptb_device_alloc(e->device, PTB_MEMORY_GRADIENTS, gradient_bytes(e), (void **)&l->gradients));
    PTB_TRY(ptb_stream_set(e->compute, l->gradients, 0, gradient_bytes(e)));
    l->scale = 1 / (float)e->ranks[PTB_GROUP_DENSE].reduce;
    PTB_TRY(ptb_stream_copy(e->compute, &e->update->loss_scale, &l->scale, sizeof l->scale));
    return ptb_stream_sync(e->compute);
}

static ptb_status local_sgd_open(const ptb_data_env *env, ptb_data **data)
{
    ptb_world *world = env->reduce[PTB_GROUP_DENSE]->comm->world;
    void *state;
    PTB_TRY(ptb_world_calloc(world, sizeof(local_sgd), "local-sgd", &state));
    local_sgd *l = state;
    l->base = (ptb_data){.ops = &local_sgd_ops, .env = *env};
    ptb_status status = ptb_replica_init(&l->replica, &l->base, true);
    if (status == PTB_OK)
        status = ptb_world_agree(world, make_own(l));
    if (status != PTB_OK) {
        local_sgd_close(&l->base);
        return status;
    }
    *data = &l->base;
    return PTB_OK;
}

static void local_sgd_unit_memory(ptb_data *data, size_t unit, ptb_unit_memory *memory)
{
    local_sgd *l = (local_sgd *)data;
    ptb_data_unit_memory(&data->env, unit, l->replica.parameters, l->gradients, memory);
}

static ptb_status local_sgd_begin_step(ptb_data *data, uint64_t step)
{
    data->step = step;
    return PTB_OK;
}

static ptb_status local_sgd_gradient_ready(ptb_data *data, size_t unit, size_t first)
{
    (void)data;
    (void)unit;
    (void)first;
    return PTB_OK;
}

static ptb_coll averaging(const local_sgd *l, size_t index)
{
    float *parameters = l->replica.master + l->buckets.item[index].first;
    return (ptb_coll){.kind = PTB_ALL_REDUCE,
                      .send = parameters,
                      .recv = parameters,
                      .count = l->buckets.item[index].count,
                      .dtype = PTB_F32,
                      .op = PTB_AVG};
}

// Averages the buckets that lie at or above `first`, whose update compute has enqueued.
static ptb_status launch_from(local_sgd *l, size_t first)
{
    for (; l->launched < l->buckets.count && l->buckets.item[l->launched].first >= first; l->launched++) {
        ptb_lane *lane = l->base.env.reduce[l->buckets.item[l->launched].group];
        ptb_coll call = averaging(l, l->launched);
        lane->number = (int)l->launched;
        PTB_TRY(ptb_lane_fork(lane));
        PTB_TRY(ptb_lane_collective(lane, &call, NULL));
    }
    return PTB_OK;
}

static ptb_status finish_average(local_sgd *l)
{
    PTB_TRY(launch_from(l, 0));
    PTB_TRY(ptb_lane_join(l->base.env.reduce[PTB_GROUP_DENSE]));
    l->apart = false;
    return ptb_replica_round(&l->replica);
}

static ptb_status begin_update(local_sgd *l, bool sums_first)
{
    const ptb_data_env *e = &l->base.env;
    PTB_TRY(ptb_data_span_open(&l->base, -1, sums_first ? "gradient norm" : "update"));
    if (sums_first) {
        PTB_TRY(ptb_data_squares_add(&l->base, 0, e->layout->count, l->gradients));
        PTB_TRY(ptb_data_squares_end(&l->base));
    }
    PTB_TRY(ptb_optimizer_begin(e->optimizer, e->kernels, e->compute, e->update,
                                sums_first ? e->sum_squares : NULL));
    return ptb_data_span_close(&l->base);
}

// A unit is averaged while the next ones are updated.
static ptb_status local_sgd_optimize(ptb_data *data)
{
    local_sgd *l = (local_sgd *)data;
    const ptb_data_env *e = &data->env;
    uint64_t every = e->options.local_steps ? (uint64_t)e->options.local_steps : 1;
    bool sums_first = ptb_optimizer_needs_norm(e->optimizer), averages = (data->step + 1) % every == 0;
    l->launched = 0;
    l->apart = e->ranks[PTB_GROUP_DENSE].reduce > 1;
    ptb_data_squares_begin(data);
    PTB_TRY(begin_update(l, sums_first));
    for (size_t u = e->layout->units; u-- > 0;) {
        PTB_TRY(ptb_replica_update(&l->replica, u, l->gradients, !sums_first));
        if (averages && e->overlap)
            PTB_TRY(launch_from(l, e->layout->unit[u].first));
    }
    if (averages)
        PTB_TRY(finish_average(l));
    return sums_first ? PTB_OK : ptb_data_squares_end(data);
}

static ptb_status local_sgd_settle(ptb_data *data)
{
    local_sgd *l = (local_sgd *)data;
    if (!l->apart)
        return PTB_OK;
    l->launched = 0;
    PTB_TRY(finish_average(l));
    return ptb_stream_sync(data->env.compute);
}

static bool local_sgd_part(ptb_data *data, ptb_data_what what, size_t i, ptb_data_part *part)
{
    const local_sgd *l = (local_sgd *)data;
    *part = (ptb_data_part){.count = data->env.layout->count,
                            .values = what == PTB_DATA_PARAMETERS ? l->replica.master : l->gradients};
    return i == 0;
}

static void local_sgd_describe(ptb_data *data, ptb_params *facts)
{
    local_sgd *l = (local_sgd *)data;
    ptb_params_set(facts, "buckets", "%zu", l->buckets.count);
    ptb_params_set(facts, "bucket_bytes", "%zu", l->buckets.item[0].count * sizeof(float));
    ptb_coll call = averaging(l, 0);
    ptb_lane_describe(data->env.reduce[l->buckets.item[0].group], &call, facts);
}

static const ptb_data_parallel local_sgd_ops = {
    .plugin = {"local_sgd", "ranks train alone and average their parameters every k steps"},
    .open = local_sgd_open,
    .close = local_sgd_close,
    .memory = local_sgd_memory,
    .unit_memory = local_sgd_unit_memory,
    .begin_step = local_sgd_begin_step,
    .before_forward = ptb_data_nothing,
    .after_forward = ptb_data_nothing,
    .before_backward = ptb_data_nothing,
    .gradient_ready = local_sgd_gradient_ready,
    .after_backward = ptb_data_nothing,
    .optimize = local_sgd_optimize,
    .settle = local_sgd_settle,
    .part = local_sgd_part,
    .describe = local_sgd_describe,
};
PTB_REGISTER(PTB_KIND_DATA_PARALLEL, local_sgd_ops);
