// The life of a context-parallel axis, common to all its plug-ins; see context.h.
#include "strategies/context/context_internal.h"

#include "core/log.h"
#include "strategies/data/data.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

ptb_context_split ptb_context_split_of(const ptb_context_axis *axis)
{
    const ptb_context_env *e = &axis->env;
    const ptb_model_shape *s = &e->layout->local;
    ptb_context_split x = {.size = e->size,
                           .rank = e->rank,
                           .groups = (size_t)axis->degree,
                           .batch = (size_t)e->batch,
                           .pieces = axis->slices.pieces,
                           .piece = axis->slices.length,
                           .width = (size_t)s->head_width,
                           .heads = (size_t)s->heads,
                           .kv_heads = (size_t)s->kv_heads,
                           .element = ptb_dtype_size(e->type)};
    x.inner = (size_t)x.rank % x.groups;
    x.outer = (size_t)x.size / x.groups;
    x.place = (size_t)x.rank / x.groups;
    x.chunk = x.groups * x.piece;
    x.rows = x.pieces * x.batch * x.piece;
    x.all_rows = x.groups * x.rows;
    x.query = x.heads * x.width;
    x.kv = 2 * x.kv_heads * x.width;
    x.qkv = x.query + x.kv;
    x.own_heads = x.heads / x.groups;
    x.own_kv_heads = x.kv_heads > x.groups ? x.kv_heads / x.groups : 1;
    x.copies = x.groups > x.kv_heads ? x.groups / x.kv_heads : 1;
    x.own_query = x.own_heads * x.width;
    x.own_kv = 2 * x.own_kv_heads * x.width;
    return x;
}

ptb_status ptb_context_move(const ptb_context_axis *axis, ptb_permute args)
{
    args.out_type = args.in_type = axis->env.type;
    return axis->env.kernels->permute(ptb_context_compute(axis), &args);
}

size_t ptb_context_attention_workspace(const ptb_context_axis *axis, size_t queries, size_t keys)
{
    ptb_context_split x = ptb_context_split_of(axis);
    ptb_attention_shape shape = {.batch = x.batch,
                                 .heads = x.own_heads,
                                 .kv_heads = x.own_kv_heads,
                                 .head_width = x.width,
                                 .query_length = queries,
                                 .key_length = keys,
                                 .query_stride = x.own_query,
                                 .key_stride = x.own_kv,
                                 .causal = true,
                                 .scale = 1,
                                 .type = axis->env.type,
                                 .dropout_rate = (float)axis->env.layout->shape.dropout};
    return axis->env.kernels->attention_workspace(&shape, axis->env.threads);
}

// Chunks of the ring are zig-zag: place p of m has chunks p and 2m-1-p of 2m; within a chunk, an inner
// group's ranks have a piece each.
static ptb_slices slices_of(const ptb_context *ops, const ptb_context_env *e, int degree)
{
    int64_t sequence = e->layout->shape.sequence, pieces = ops->zigzag ? 2 : 1;
    int64_t length = sequence / (e->size * pieces), chunk = length * degree;
    int64_t place = e->rank / degree, inner = e->rank % degree, outer = e->size / degree;
    ptb_slices s = {.pieces = (size_t)pieces, .length = (size_t)length};
    s.offset[0] = place * chunk + inner * length;
    s.offset[1] = ops->zigzag ? (2 * outer - 1 - place) * chunk + inner * length : 0;
    return s;
}

ptb_status ptb_context_describe(ptb_context_axis *axis, const ptb_context *ops, const ptb_context_env *env,
                                char *reason)
{
    int64_t sequence = env->layout->shape.sequence, parts = (int64_t)env->size * (ops->zigzag ? 2 : 1);
    int degree = ops->degree(env, reason);
    if (!degree)
        return PTB_USAGE;
    if (sequence % parts) {
        snprintf(reason, PTB_REASON_BYTES,
                 "%s splits sequences into %" PRId64 " pieces of equal length (%s each of cp=%d ranks): "
                 "%" PRId64 " tokens / %" PRId64 " = %" PRId64 " remainder %" PRId64,
                 ops->plugin.name, parts, ops->zigzag ? "two" : "one", env->size, sequence, parts,
                 sequence / parts, sequence % parts);
        return PTB_USAGE;
    }
    *axis =
        (ptb_context_axis){.ops = ops, .env = *env, .slices = slices_of(ops, env, degree), .degree = degree};
    axis->kept_bytes = ops->kept_bytes ? ops->kept_bytes(axis) : 0;
    return PTB_OK;
}

// Both sizes in bytes; places where the buffers have memory.
static void place(const ptb_context_axis *axis, ptb_context_buffers *b, size_t *communication,
                  size_t *workspace)
{
    ptb_context_arena shared = {b->communication, 0}, own = {b->workspace, 0};
    axis->ops->place(axis, b, &shared, &own);
    *communication = shared.used;
    *workspace = own.used;
}

void ptb_context_memory(const ptb_context_axis *axis, uint64_t bytes[PTB_MEMORY_COUNT])
{
    ptb_context_buffers b = {0};
    size_t communication, workspace;
    place(axis, &b, &communication, &workspace);
    bytes[PTB_MEMORY_COMMUNICATION] += communication;
    bytes[PTB_MEMORY_WORKSPACE] += workspace;
}

static ptb_status make_local(ptb_context_axis *axis, ptb_context_buffers *b, size_t workspace)
{
    ptb_device *device = ptb_context_compute(axis)->device;
    PTB_TRY(ptb_event_new(device, &b->arrived));
    PTB_TRY(ptb_event_new(device, &b->gradient_arrived));
    return workspace ? ptb_device_alloc(device, PTB_MEMORY_WORKSPACE, workspace, &b->workspace) : PTB_OK;
}

static ptb_status make_shared(ptb_context_axis *axis, ptb_context_buffers *b, size_t bytes)
{
    b->communication_bytes = bytes;
    if (!bytes)
        return PTB_OK;
    return ptb_lane_alloc(axis->env.lane, PTB_MEMORY_COMMUNICATION, bytes, (void **)&b->communication);
}

ptb_status ptb_context_open(ptb_context_axis *axis)
{
    ptb_world *world = axis->env.lane->comm->world;
    ptb_context_buffers *b = calloc(1, sizeof *b);
    size_t communication = 0, workspace = 0;
    axis->self = b;
    if (b)
        place(axis, b, &communication, &workspace);
    else
        ptb_error("no memory to describe the buffers of a context-parallel axis");
    ptb_status status = ptb_world_agree(world, b ? make_local(axis, b, workspace) : PTB_NO_MEMORY);
    if (status == PTB_OK)
        status = make_shared(axis, b, communication);
    if (status != PTB_OK) {
        ptb_context_close(axis);
        return status;
    }
    place(axis, b, &communication, &workspace);
    return PTB_OK;
}

void ptb_context_close(ptb_context_axis *axis)
{
    ptb_context_buffers *b = axis->self;
    if (!b)
        return;
    ptb_device *device = ptb_context_compute(axis)->device;
    ptb_lane_free(axis->env.lane, PTB_MEMORY_COMMUNICATION, b->communication_bytes, b->communication);
    ptb_device_free(device, b->workspace);
    ptb_event_free(b->gradient_arrived);
    ptb_event_free(b->arrived);
    free(b);
    axis->self = NULL;
}

void ptb_context_facts(const ptb_context_axis *axis, ptb_params *facts)
{
    ptb_params_set(facts, "context", "%s", axis->ops->plugin.name);
    ptb_params_set(facts, "context_pieces", "%zu", axis->slices.pieces);
    if (axis->degree > 1)
        ptb_params_set(facts, "context_degree", "%d", axis->degree);
}
