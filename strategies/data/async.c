// A sharded parameter server with bounded staleness: the servers of Li et al. 2014 ("Scaling Distributed
// Machine Learning with the Parameter Server", OSDI), the rule of Ho et al. 2013 ("More Effective Distributed
// ML via a Stale Synchronous Parallel Parameter Server", NeurIPS). Every rank is a worker, and the server of
// block r of every bucket: it has the master parameters and the moments of that.
//
// Clock t is the update with the sum of all workers' gradients of step t; version v of the parameters is what
// v updates have made. A worker computes step t with the newest version that has arrived whole, and waits
// only where that lacks more than s updates, for version t - s. So a worker may be s + 1 steps ahead of the
// slowest one, and a gradient is up to s updates old. With s = 0 training is synchronous.
//
// On the lanes' stream, beside compute, clock by clock: push (reduce-scatter of each bucket as soon as
// backward has passed it), update, pull (all-gather of the new version). Version v is in slot v mod (s + 1),
// the gradient of step t in slot t mod (s + 1). Both are free in time: the pull of version t + 1 overwrites
// version t - s behind the push of step t, with which this rank's compute of step t is over, and later steps
// need newer versions; step t overwrites the gradient of step t - s - 1, whose update is in the oldest
// version that step t may take.
//
// Which version a step takes is decided by what has arrived when the host enqueues it, so runs differ. A
// deterministic one always takes the oldest that it may: gradients with a fixed delay (Li et al. 2018,
// "Pipe-SGD", NeurIPS). Ranks that compute the same sequences together (tp, cp, ep) are one worker and take
// the oldest of what has arrived on each of them, for which their hosts wait for each other at the begin of a
// step; no other hook waits.
#include "strategies/data/shard.h"

#include "core/log.h"

#include <stdlib.h>

typedef struct {
    ptb_data base;
    ptb_shard shard;
    ptb_timeline updates; // of the lanes' stream
    size_t launched;      // buckets of this step whose push is enqueued
    size_t slots;         // s + 1
    ptb_event **arrived;  // [slots]: version v, on this rank, at v % slots; never recorded: version 0
    uint64_t version;     // that the step at hand computes with
    uint64_t *stale;      // [slots]: steps by the updates that their version lacked
} async;

static const ptb_data_parallel async_ops;

static int async_clocks(const ptb_data_options *options)
{
    return options->staleness + 1;
}

static ptb_shard_config config_of(const ptb_data_env *env)
{
    return (ptb_shard_config){.kind = PTB_SEGMENT_BUCKETS,
                              .whole_parameters = true,
                              .whole_gradients = true,
                              .versions = async_clocks(&env->options)};
}

static void async_close(ptb_data *data)
{
    async *a = (async *)data;
    if (!a)
        return;
    for (size_t i = 0; a->arrived && i < a->slots; i++)
        ptb_event_free(a->arrived[i]);
    free(a->arrived);
    free(a->stale);
    ptb_shard_release(&a->shard);
    free(a);
}

static ptb_status make_versions(async *a)
{
    a->arrived = calloc(a->slots, sizeof *a->arrived);
    a->stale = calloc(a->slots, sizeof *a->stale);
    if (!a->arrived || !a->stale) {
        ptb_error("no memory for %zu versions of the parameters", a->slots);
        return PTB_NO_MEMORY;
    }
    for (size_t i = 0; i < a->slots; i++)
        PTB_TRY(ptb_event_new(a->base.env.device, &a->arrived[i]));
    return PTB_OK;
}

// Kernels allocate what they keep with a stream in their first call on it: now.
static ptb_status reserve(async *a)
{
    const ptb_data_env *e = &a->base.env;
    ptb_sum_squares first = {.sum = e->sum_squares, .values = a->shard.gradients, .count = 1};
    PTB_TRY(ptb_stream_sync(e->compute));
    PTB_TRY(e->kernels->sum_squares(a->updates.stream, &first));
    return ptb_stream_sync(a->updates.stream);
}

static ptb_status async_open(const ptb_data_env *env, ptb_data **data)
{
    ptb_lane *lane = env->shard[PTB_GROUP_DENSE];
    ptb_world *world = lane->comm->world;
    void *state;
    PTB_TRY(ptb_world_calloc(world, sizeof(async), "async", &state));
    async *a = state;
    ptb_shard_config config = config_of(env);
    a->slots = (size_t)config.versions;
    a->updates = (ptb_timeline){.trace = env->timeline->trace, .stream = lane->stream};
    a->base = (ptb_data){.ops = &async_ops, .env = *env, .updates = &a->updates};
    ptb_status status = ptb_shard_init(&a->shard, &a->base, &config);
    if (status == PTB_OK)
        status = ptb_world_agree(world, make_versions(a));
    if (status == PTB_OK)
        status = ptb_world_agree(world, reserve(a));
    if (status != PTB_OK) {
        async_close(&a->base);
        return status;
    }
    *data = &a->base;
    return PTB_OK;
}

static void async_memory(const ptb_data_env *env, uint64_t bytes[PTB_MEMORY_COUNT])
{
    ptb_shard_config config = config_of(env);
    ptb_shard_memory(env, &config, bytes);
    bytes[PTB_MEMORY_WORKSPACE] += env->kernels->sum_workspace;
}

static void async_unit_memory(ptb_data *data, size_t unit, ptb_unit_memory *memory)
{
    async *a = (async *)data;
    void *parameters = ptb_shard_version(&a->shard, a->version % a->slots);
    ptb_data_unit_memory(&data->env, unit, parameters, a->shard.gradients, memory);
}

// The newest version from `oldest` to `newest` that is here.
static ptb_status find_arrived(const async *a, uint64_t oldest, uint64_t newest, uint64_t *version)
{
    bool reached = false;
    for (*version = newest; *version > oldest; (*version)--) {
        PTB_TRY(ptb_event_query(a->arrived[*version % a->slots], &reached));
        if (reached)
            return PTB_OK;
    }
    return PTB_OK;
}

// What all ranks of this worker have.
static ptb_status agree(ptb_world *together, uint64_t *version)
{
    double least = -(double)*version;
    PTB_TRY(ptb_world_reduce_max(together, &least, 1));
    *version = (uint64_t)-least;
    return PTB_OK;
}

static ptb_status choose_version(async *a)
{
    const ptb_data_env *e = &a->base.env;
    uint64_t newest = a->base.step, bound = a->slots - 1, oldest = newest > bound ? newest - bound : 0;
    a->version = oldest;
    if (oldest == newest || e->deterministic)
        return PTB_OK;
    PTB_TRY(find_arrived(a, oldest, newest, &a->version));
    return e->together ? agree(e->together, &a->version) : PTB_OK;
}

static ptb_status async_begin_step(ptb_data *data, uint64_t step)
{
    async *a = (async *)data;
    data->step = step;
    a->launched = 0;
    PTB_TRY(choose_version(a));
    a->stale[step - a->version]++;
    ptb_shard_use(&a->shard, (step + 1) % a->slots, step % a->slots);
    return ptb_lane_wait(data->env.shard[PTB_GROUP_DENSE], a->arrived[a->version % a->slots]);
}

static ptb_status push_from(async *a, size_t first)
{
    const ptb_segments *buckets = &a->shard.segments;
    for (; a->launched < buckets->count && buckets->item[a->launched].first >= first; a->launched++) {
        const ptb_segment *bucket = &buckets->item[a->launched];
        a->base.env.shard[bucket->group]->number = (int)a->launched;
        PTB_TRY(ptb_shard_reduce(&a->shard, a->launched, a->shard.gradients + bucket->first, false, true));
    }
    return PTB_OK;
}

static ptb_status async_gradient_ready(ptb_data *data, size_t unit, size_t first)
{
    return data->env.overlap ? push_from((async *)data, data->env.layout->unit[unit].first + first) : PTB_OK;
}

static ptb_status async_optimize(ptb_data *data)
{
    async *a = (async *)data;
    PTB_TRY(push_from(a, 0));
    PTB_TRY(ptb_shard_optimize(&a->shard));
    PTB_TRY(ptb_shard_gather(&a->shard));
    return ptb_event_record(a->arrived[(data->step + 1) % a->slots], a->updates.stream);
}

static bool async_part(ptb_data *data, ptb_data_what what, size_t i, ptb_data_part *part)
{
    return ptb_shard_part(&((async *)data)->shard, what, i, part);
}

static ptb_data_staleness async_staleness(const ptb_data *data)
{
    const async *a = (const async *)data;
    return (ptb_data_staleness){.steps = a->stale, .bound = (int)a->slots - 1};
}

static void async_describe(ptb_data *data, ptb_params *facts)
{
    ptb_shard_describe(&((async *)data)->shard, facts);
    ptb_params_set(facts, "versions", "%s", data->env.deterministic ? "oldest allowed" : "newest arrived");
}

static const ptb_data_parallel async_ops = {
    .plugin = {"async", "ranks compute with parameters that lack some updates (parameter server)"},
    .shards = true,
    .clocks = async_clocks,
    .open = async_open,
    .close = async_close,
    .memory = async_memory,
    .unit_memory = async_unit_memory,
    .begin_step = async_begin_step,
    .before_forward = ptb_data_nothing,
    .after_forward = ptb_data_nothing,
    .before_backward = ptb_data_nothing,
    .gradient_ready = async_gradient_ready,
    .after_backward = ptb_data_nothing,
    .optimize = async_optimize,
    .part = async_part,
    .staleness = async_staleness,
    .describe = async_describe,
};
PTB_REGISTER(PTB_KIND_DATA_PARALLEL, async_ops);
