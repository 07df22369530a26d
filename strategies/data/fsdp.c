// Gradients, and with fsdp parameters too, exist whole a unit at a time.
//
// zero2 (Rajbhandari et al. 2020, "ZeRO", section 5.2): parameters are whole on every rank and gathered as
// zero1's are; a unit's gradients are made in a slot, reduce-scattered as soon as backward has passed them,
// in every microbatch, and added to the rank's own part.
//
// fsdp (ZeRO-3, section 5.3; Zhao et al. 2023, "PyTorch FSDP", section 3): a rank keeps its own part of the
// parameters alone. A unit's parameters are all-gathered into a slot before its forward and its backward,
// while the unit before is computed: `depth` units ahead, at most `in_flight` blocks at a time. A block stays
// until its slot is needed by another one or parameters change (resharding), so that those which backward
// needs first, and those which the next microbatch needs first, are not gathered again: with L blocks and P
// slots a step of m microbatches gathers L + (2 m - 1) max(L - P, 0) blocks. With `keep` P = L. The
// embedding's backward needs no parameters. A tied token table stays between the embedding's forward and the
// head's loss; its gradient, which the head begins and the embedding's backward completes, has a slot of its
// own.
//
// Units come in ascending order in forward, then descending in backward, microbatch by microbatch.
#include "strategies/data/shard.h"
#include "strategies/data/pool.h"

#include "core/log.h"

#include <stdlib.h>

typedef struct {
    size_t first, count;  // segments, the one with experts first
    size_t launched;      // of them, in this microbatch
    int64_t microbatches; // done in this step
} unit_state;

typedef struct {
    ptb_data base;
    bool gathers; // fsdp
    ptb_shard shard;
    ptb_pool parameters, gradients; // parameters: fsdp alone
    unit_state *unit;               // [layout.units]
} fsdp;

static const ptb_data_parallel zero2_ops, fsdp_ops;

static ptb_shard_config shard_config(bool gathers)
{
    return (ptb_shard_config){.kind = PTB_SEGMENT_UNITS, .whole_parameters = !gathers};
}

static size_t blocks_of(const ptb_data_env *e)
{
    return e->layout->units - 2;
}

// Blocks that may be whole at a time.
static size_t in_flight(const ptb_data_env *e)
{
    size_t wanted = e->options.in_flight ? (size_t)e->options.in_flight : (size_t)e->options.depth + 1;
    return wanted < blocks_of(e) ? wanted : blocks_of(e);
}

static ptb_pool_config parameter_slots(const ptb_data_env *e)
{
    return (ptb_pool_config){.blocks = e->options.keep ? blocks_of(e) : in_flight(e),
                             .share_ends = !e->options.keep && !e->layout->shape.tied,
                             .width = ptb_dtype_size(e->type)};
}

static ptb_pool_config gradient_slots(const ptb_data_env *e)
{
    return (ptb_pool_config){
        .blocks = in_flight(e), .share_ends = !e->layout->shape.tied, .width = sizeof(float)};
}

static void memory_of(const ptb_data_env *e, bool gathers, uint64_t bytes[PTB_MEMORY_COUNT])
{
    ptb_shard_config config = shard_config(gathers);
    ptb_pool_config parameters = parameter_slots(e), gradients = gradient_slots(e);
    ptb_shard_memory(e, &config, bytes);
    bytes[PTB_MEMORY_COMMUNICATION] += ptb_pool_bytes(e, &gradients);
    bytes[PTB_MEMORY_COMMUNICATION] += gathers ? ptb_pool_bytes(e, &parameters) : 0;
}

static void zero2_memory(const ptb_data_env *e, uint64_t bytes[PTB_MEMORY_COUNT])
{
    memory_of(e, false, bytes);
}

static void fsdp_memory(const ptb_data_env *e, uint64_t bytes[PTB_MEMORY_COUNT])
{
    memory_of(e, true, bytes);
}

// ---- made and released

static void fsdp_close(ptb_data *data)
{
    fsdp *f = (fsdp *)data;
    if (!f)
        return;
    ptb_pool_release(&f->parameters);
    ptb_pool_release(&f->gradients);
    ptb_shard_release(&f->shard);
    free(f->unit);
    free(f);
}

// Which segments are a unit's.
static void find_segments(fsdp *f)
{
    const ptb_layout *layout = f->base.env.layout;
    for (size_t i = 0; i < f->shard.segments.count; i++) {
        unit_state *u = &f->unit[ptb_layout_unit_at(layout, f->shard.segments.item[i].first)];
        if (u->count++ == 0)
            u->first = i;
    }
}

static ptb_status make(fsdp *f)
{
    const ptb_data_env *e = &f->base.env;
    ptb_shard_config shard = shard_config(f->gathers);
    ptb_pool_config parameters = parameter_slots(e), gradients = gradient_slots(e);
    PTB_TRY(ptb_shard_init(&f->shard, &f->base, &shard));
    find_segments(f);
    PTB_TRY(ptb_pool_init(&f->gradients, e, &gradients));
    return f->gathers ? ptb_pool_init(&f->parameters, e, &parameters) : PTB_OK;
}

static ptb_status open_as(const ptb_data_env *env, const ptb_data_parallel *ops, bool gathers,
                          ptb_data **data)
{
    fsdp *f = calloc(1, sizeof *f);
    unit_state *unit = calloc(env->layout->units, sizeof *unit);
    ptb_world *world = env->shard[PTB_GROUP_DENSE]->comm->world;
    ptb_status status = ptb_world_agree(world, f && unit ? PTB_OK : PTB_NO_MEMORY);
    if (status != PTB_OK) {
        ptb_error("no memory for the state of %s", ops->plugin.name);
        free(unit);
        free(f);
        return status;
    }
    *f = (fsdp){.base = {.ops = ops, .env = *env}, .gathers = gathers, .unit = unit};
    status = make(f);
    if (status != PTB_OK) {
        fsdp_close(&f->base);
        return status;
    }
    *data = &f->base;
    return PTB_OK;
}

static ptb_status zero2_open(const ptb_data_env *env, ptb_data **data)
{
    return open_as(env, &zero2_ops, false, data);
}

static ptb_status fsdp_open(const ptb_data_env *env, ptb_data **data)
{
    return open_as(env, &fsdp_ops, true, data);
}

// ---- parameters

static ptb_lane *lane_of(const fsdp *f)
{
    return f->base.env.shard[PTB_GROUP_DENSE];
}

// Enqueues the all-gather of a unit into its slot, once compute has released that.
static ptb_status gather(fsdp *f, size_t unit)
{
    const ptb_data_env *e = &f->base.env;
    ptb_pool_slot *slot = ptb_pool_slot_of(&f->parameters, unit);
    const unit_state *u = &f->unit[unit];
    if (slot->used)
        PTB_TRY(ptb_event_wait(lane_of(f)->stream, slot->released));
    for (size_t i = u->first; i < u->first + u->count; i++) {
        const ptb_segment *s = &f->shard.segments.item[i];
        ptb_lane *lane = e->shard[s->group];
        size_t at = (s->first - e->layout->unit[unit].first) * ptb_dtype_size(e->type);
        ptb_coll call = {.kind = PTB_ALL_GATHER,
                         .send = ptb_shard_parameters(&f->shard, s),
                         .recv = (char *)slot->memory + at,
                         .count = s->count,
                         .dtype = e->type};
        lane->number = (int)unit;
        PTB_TRY(ptb_lane_collective(lane, &call, NULL));
    }
    slot->unit = unit;
    slot->used = slot->waited = false;
    return ptb_event_record(slot->filled, lane_of(f)->stream);
}

// Compute waits until the unit is whole.
static ptb_status need(fsdp *f, size_t unit)
{
    ptb_pool_slot *slot = ptb_pool_slot_of(&f->parameters, unit);
    if (slot->unit != unit)
        PTB_TRY(gather(f, unit));
    if (slot->waited)
        return PTB_OK;
    slot->waited = true;
    return ptb_lane_wait(lane_of(f), slot->filled);
}

// Whether what is in the slot of `ahead` is still needed on the way there from `unit`.
static bool is_taken(const fsdp *f, size_t unit, size_t ahead)
{
    size_t in = ptb_pool_slot_of(&f->parameters, ahead)->unit;
    if (in == PTB_POOL_EMPTY)
        return false;
    return unit < ahead ? in >= unit && in < ahead : in <= unit && in > ahead;
}

// step: 1 in forward, -1 in backward, where the embedding needs no parameters.
static ptb_status prefetch(fsdp *f, size_t unit, int step)
{
    const ptb_data_env *e = &f->base.env;
    int64_t last = (int64_t)e->layout->units - 1, ahead = (int64_t)unit;
    for (int i = 0; e->overlap && i < e->options.depth; i++) {
        ahead += step;
        if (ahead < 1 || ahead > last || is_taken(f, unit, (size_t)ahead))
            break;
        if (ptb_pool_slot_of(&f->parameters, (size_t)ahead)->unit != (size_t)ahead)
            PTB_TRY(gather(f, (size_t)ahead));
    }
    return PTB_OK;
}

// Compute has passed its last use for now.
static ptb_status release(fsdp *f, size_t unit)
{
    if (!f->gathers)
        return PTB_OK;
    ptb_pool_slot *slot = ptb_pool_slot_of(&f->parameters, unit);
    slot->used = true;
    return ptb_event_record(slot->released, f->base.env.compute);
}

// ---- gradients

// Compute may write the unit's gradients from here on: the reduction of what was in the slot has read it.
static ptb_status hold(fsdp *f, size_t unit)
{
    ptb_pool_slot *slot = ptb_pool_slot_of(&f->gradients, unit);
    if (slot->held && slot->unit == unit)
        return PTB_OK;
    if (slot->reading) {
        const unit_state *u = &f->unit[slot->unit];
        PTB_TRY(ptb_lane_wait(lane_of(f), f->shard.reduced[u->first + u->count - 1]));
    }
    slot->unit = unit;
    slot->held = true;
    slot->reading = false;
    return PTB_OK;
}

// Reduces those segments of the unit that lie at or above `first` of it.
static ptb_status launch_from(fsdp *f, size_t unit, size_t first)
{
    const ptb_data_env *e = &f->base.env;
    ptb_pool_slot *slot = ptb_pool_slot_of(&f->gradients, unit);
    unit_state *u = &f->unit[unit];
    bool add = u->microbatches > 0, last = u->microbatches + 1 == e->micro_batches;
    for (; u->launched < u->count; u->launched++) {
        const ptb_segment *s = &f->shard.segments.item[u->first + u->launched];
        size_t at = s->first - e->layout->unit[unit].first;
        if (at < first)
            return PTB_OK;
        e->shard[s->group]->number = (int)unit;
        PTB_TRY(ptb_shard_reduce(&f->shard, u->first + u->launched, (float *)slot->memory + at, add, last));
    }
    u->launched = 0;
    u->microbatches++;
    slot->held = false;
    slot->reading = true;
    return PTB_OK;
}

// ---- hooks

static ptb_status fsdp_begin_step(ptb_data *data, uint64_t step)
{
    fsdp *f = (fsdp *)data;
    data->step = step;
    for (size_t u = 0; u < data->env.layout->units; u++)
        f->unit[u].microbatches = 0;
    ptb_pool_empty(&f->gradients);
    if (!f->gathers)
        return ptb_shard_gather_begin(&f->shard);
    ptb_pool_empty(&f->parameters);
    return ptb_lane_fork(lane_of(f)); // parameters are updated, slots are free
}

static bool is_head(const fsdp *f, size_t unit)
{
    return unit + 1 == f->base.env.layout->units;
}

// The head's loss begins its gradients, and those of a tied table.
static ptb_status fsdp_before_forward(ptb_data *data, size_t unit)
{
    fsdp *f = (fsdp *)data;
    if (!f->gathers) {
        PTB_TRY(ptb_shard_gather_wait(&f->shard, unit));
    } else {
        PTB_TRY(need(f, unit));
        PTB_TRY(prefetch(f, unit, 1));
    }
    if (is_head(f, unit) && data->env.layout->shape.tied)
        PTB_TRY(hold(f, 0));
    return is_head(f, unit) ? hold(f, unit) : PTB_OK;
}

static ptb_status fsdp_after_forward(ptb_data *data, size_t unit)
{
    return release((fsdp *)data, unit);
}

static ptb_status fsdp_before_backward(ptb_data *data, size_t unit)
{
    fsdp *f = (fsdp *)data;
    if (f->gathers && unit > 0) {
        PTB_TRY(need(f, unit));
        PTB_TRY(prefetch(f, unit, -1));
    }
    return hold(f, unit);
}

static ptb_status fsdp_gradient_ready(ptb_data *data, size_t unit, size_t first)
{
    return data->env.overlap ? launch_from((fsdp *)data, unit, first) : PTB_OK;
}

static ptb_status fsdp_after_backward(ptb_data *data, size_t unit)
{
    fsdp *f = (fsdp *)data;
    PTB_TRY(release(f, unit));
    if (data->env.overlap)
        return PTB_OK;
    PTB_TRY(launch_from(f, unit, 0));
    return ptb_lane_join(lane_of(f));
}

static void fsdp_unit_memory(ptb_data *data, size_t unit, ptb_unit_memory *memory)
{
    fsdp *f = (fsdp *)data;
    const ptb_layout *layout = data->env.layout;
    const ptb_pool_slot *gradients = ptb_pool_slot_of(&f->gradients, unit);
    size_t width = ptb_dtype_size(data->env.type);
    const char *whole = f->shard.parameters, *mine, *table;
    mine = f->gathers ? ptb_pool_slot_of(&f->parameters, unit)->memory
                      : whole + layout->unit[unit].first * width;
    table = f->gathers ? ptb_pool_slot_of(&f->parameters, 0)->memory : whole;
    *memory = (ptb_unit_memory){.parameters = mine,
                                .gradients = gradients->unit == unit ? gradients->memory : NULL};
    if (layout->shape.tied && is_head(f, unit)) {
        size_t at = ptb_unit_tensor(&layout->unit[0], PTB_EMBED_TOKENS)->first;
        memory->tied_parameters = table + at * width;
        memory->tied_gradients = (float *)ptb_pool_slot_of(&f->gradients, 0)->memory + at;
    }
}

static ptb_status fsdp_optimize(ptb_data *data)
{
    return ptb_shard_optimize(&((fsdp *)data)->shard);
}

static bool fsdp_part(ptb_data *data, ptb_data_what what, size_t i, ptb_data_part *part)
{
    return ptb_shard_part(&((fsdp *)data)->shard, what, i, part);
}

static void fsdp_describe(ptb_data *data, ptb_params *facts)
{
    fsdp *f = (fsdp *)data;
    ptb_shard_describe(&f->shard, facts);
    ptb_params_set(facts, "blocks_of_gradients", "%zu", f->gradients.config.blocks);
    if (f->gathers)
        ptb_params_set(facts, "blocks_of_parameters", "%zu", f->parameters.config.blocks);
}

#define HOOKS                                                                                                \
    .shards = true, .every_microbatch = true, .close = fsdp_close, .unit_memory = fsdp_unit_memory,          \
    .begin_step = fsdp_begin_step, .before_forward = fsdp_before_forward,                                    \
    .after_forward = fsdp_after_forward, .before_backward = fsdp_before_backward,                            \
    .gradient_ready = fsdp_gradient_ready, .after_backward = fsdp_after_backward, .optimize = fsdp_optimize, \
    .part = fsdp_part, .describe = fsdp_describe

static const ptb_data_parallel zero2_ops = {
    .plugin = {"zero2", "optimizer state and gradients are cut over ranks (ZeRO-2)"},
    HOOKS,
    .open = zero2_open,
    .memory = zero2_memory,
};
PTB_REGISTER(PTB_KIND_DATA_PARALLEL, zero2_ops);

static const ptb_data_parallel fsdp_ops = {
    .plugin = {"fsdp", "parameters, gradients and optimizer state are cut over ranks (ZeRO-3)"},
    HOOKS,
    .open = fsdp_open,
    .memory = fsdp_memory,
};
PTB_REGISTER(PTB_KIND_DATA_PARALLEL, fsdp_ops);
