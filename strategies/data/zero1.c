// ZeRO stage 1 (Rajbhandari et al. 2020, "ZeRO", section 5.1): optimizer state, and in 16 bits the f32 master
// weights, are cut over ranks; rank r has block r of every bucket. Each bucket of gradients is
// reduce-scattered as soon as backward has passed its first element; the rank updates its own blocks; and the
// new parameters are all-gathered, bucket by bucket in order of use, at the begin of the next step, beside
// the forward pass of the units before (as Megatron-LM's distributed optimizer does). A step thus lies within
// its own begin and end and can be recorded; after the last one, blocks of other ranks are those of the step
// before.
#include "strategies/data/shard.h"

#include <stdlib.h>

typedef struct {
    ptb_data base;
    ptb_shard shard;
    size_t launched; // buckets of this step whose reduction is enqueued
} zero1;

static const ptb_shard_config config = {
    .kind = PTB_SEGMENT_BUCKETS, .whole_parameters = true, .whole_gradients = true};
static const ptb_data_parallel zero1_ops;

static void zero1_close(ptb_data *data)
{
    zero1 *z = (zero1 *)data;
    if (!z)
        return;
    ptb_shard_release(&z->shard);
    free(z);
}

static ptb_status zero1_open(const ptb_data_env *env, ptb_data **data)
{
    void *state;
    PTB_TRY(ptb_world_calloc(env->shard[PTB_GROUP_DENSE]->comm->world, sizeof(zero1), "zero1", &state));
    zero1 *z = state;
    z->base = (ptb_data){.ops = &zero1_ops, .env = *env};
    ptb_status status = ptb_shard_init(&z->shard, &z->base, &config);
    if (status != PTB_OK) {
        zero1_close(&z->base);
        return status;
    }
    *data = &z->base;
    return PTB_OK;
}

static void zero1_memory(const ptb_data_env *env, uint64_t bytes[PTB_MEMORY_COUNT])
{
    ptb_shard_memory(env, &config, bytes);
}

static void zero1_unit_memory(ptb_data *data, size_t unit, ptb_unit_memory *memory)
{
    zero1 *z = (zero1 *)data;
    ptb_data_unit_memory(&data->env, unit, z->shard.parameters, z->shard.gradients, memory);
}

static ptb_status zero1_begin_step(ptb_data *data, uint64_t step)
{
    zero1 *z = (zero1 *)data;
    data->step = step;
    z->launched = 0;
    return ptb_shard_gather_begin(&z->shard);
}

static ptb_status zero1_before_forward(ptb_data *data, size_t unit)
{
    return ptb_shard_gather_wait(&((zero1 *)data)->shard, unit);
}

static ptb_status launch_from(zero1 *z, size_t first)
{
    const ptb_segments *buckets = &z->shard.segments;
    const ptb_data_env *e = &z->base.env;
    for (; z->launched < buckets->count && buckets->item[z->launched].first >= first; z->launched++) {
        const ptb_segment *bucket = &buckets->item[z->launched];
        float *gradients = z->shard.gradients + bucket->first;
        e->shard[bucket->group]->number = (int)z->launched;
        PTB_TRY(ptb_shard_reduce(&z->shard, z->launched, gradients, false, true));
    }
    return PTB_OK;
}

// The token table of a tied model is complete with the embedding's backward, which is the last unit anyway.
static ptb_status zero1_gradient_ready(ptb_data *data, size_t unit, size_t first)
{
    return data->env.overlap ? launch_from((zero1 *)data, data->env.layout->unit[unit].first + first)
                             : PTB_OK;
}

static ptb_status zero1_optimize(ptb_data *data)
{
    zero1 *z = (zero1 *)data;
    PTB_TRY(launch_from(z, 0));
    return ptb_shard_optimize(&z->shard);
}

static bool zero1_part(ptb_data *data, ptb_data_what what, size_t i, ptb_data_part *part)
{
    return ptb_shard_part(&((zero1 *)data)->shard, what, i, part);
}

static void zero1_describe(ptb_data *data, ptb_params *facts)
{
    ptb_shard_describe(&((zero1 *)data)->shard, facts);
}

static const ptb_data_parallel zero1_ops = {
    .plugin = {"zero1", "optimizer state is cut over ranks (ZeRO-1)"},
    .shards = true,
    .open = zero1_open,
    .close = zero1_close,
    .memory = zero1_memory,
    .unit_memory = zero1_unit_memory,
    .begin_step = zero1_begin_step,
    .before_forward = zero1_before_forward,
    .after_forward = ptb_data_nothing,
    .before_backward = ptb_data_nothing,
    .gradient_ready = zero1_gradient_ready,
    .after_backward = ptb_data_nothing,
    .optimize = zero1_optimize,
    .part = zero1_part,
    .describe = zero1_describe,
};
PTB_REGISTER(PTB_KIND_DATA_PARALLEL, zero1_ops);
