// See slots.h.
#include "collectives/slots.h"

#include "core/log.h"

#include <string.h>

// ---- synchronisation points

ptb_slot *ptb_slots_of(const ptb_team *team, int rank, uint32_t step)
{
    return &team->peers[rank].control->slots[step & 1];
}

static ptb_status await_step(ptb_team *team, int rank, uint32_t step)
{
    if ((int32_t)(team->seen[rank] - step) >= 0)
        return PTB_OK;
    PTB_TRY(ptb_team_await(team, &ptb_slots_of(team, rank, step)->sequence, step, rank));
    team->seen[rank] = step;
    return PTB_OK;
}

// The slot of the next step. Its last content is two steps old; whoever has come to the last step has read
// it.
ptb_status ptb_slots_next(ptb_team *team, ptb_slot **slot)
{
    for (int r = 0; r < team->size; r++)
        if (r != team->rank)
            PTB_TRY(await_step(team, r, team->step));
    *slot = ptb_slots_of(team, team->rank, team->step + 1);
    return PTB_OK;
}

void ptb_slots_post(ptb_team *team, const ptb_coll *call, ptb_slot *slot)
{
    slot->kind = (uint32_t)call->kind;
    slot->type_op = (uint32_t)call->dtype << 8 | (uint32_t)call->op;
    slot->count = (uint32_t)call->count;
    team->step++;
    atomic_store_explicit(&slot->sequence, team->step, memory_order_release);
}

static ptb_status mismatch(ptb_team *team, const ptb_coll *call, int rank, const ptb_slot *theirs)
{
    ptb_error("rank %d calls %s of %zu elements while rank %d calls %s of %u elements%s; all ranks must make "
              "the same calls in the same order",
              team->rank, ptb_coll_name(call->kind), call->count, rank,
              theirs->kind < PTB_COLL_COUNT ? ptb_coll_name((ptb_coll_kind)theirs->kind) : "?", theirs->count,
              theirs->type_op == ((uint32_t)call->dtype << 8 | (uint32_t)call->op)
                  ? ""
                  : " of another type or operation");
    ptb_team_abort(team, rank);
    return PTB_USAGE;
}

// Until `rank` has come to this step, with the same call.
static ptb_status meet(ptb_team *team, const ptb_coll *call, int rank)
{
    PTB_TRY(await_step(team, rank, team->step));
    const ptb_slot *theirs = ptb_slots_of(team, rank, team->step);
    bool same = theirs->kind == (uint32_t)call->kind &&
                (call->kind == PTB_BARRIER || call->kind == PTB_ALL_TO_ALL_V ||
                 (theirs->count == (uint32_t)call->count &&
                  theirs->type_op == ((uint32_t)call->dtype << 8 | (uint32_t)call->op)));
    return same ? PTB_OK : mismatch(team, call, rank, theirs);
}

ptb_status ptb_slots_meet_all(ptb_team *team, const ptb_coll *call)
{
    for (int r = 0; r < team->size; r++)
        if (r != team->rank)
            PTB_TRY(meet(team, call, r));
    return PTB_OK;
}

ptb_status ptb_slots_round(ptb_team *team, const ptb_coll *call)
{
    ptb_slot *slot;
    PTB_TRY(ptb_slots_next(team, &slot));
    ptb_slots_post(team, call, slot);
    return ptb_slots_meet_all(team, call);
}

// ---- small vectors

// recv = op over all members of elements [first, first + count) of their slots, in order of rank so that all
// members get the same bits.
static ptb_status fold_slots(ptb_team *team, const ptb_coll *call, size_t first, size_t count)
{
    size_t size = ptb_dtype_size(call->dtype);
    ptb_reduce_fn *reduce = ptb_reduce_function(call->dtype, call->op);
    const void *a = NULL;
    for (int r = 0; r < team->size; r++) {
        if (r != team->rank)
            PTB_TRY(meet(team, call, r));
        const void *b = ptb_slots_of(team, r, team->step)->payload + first * size;
        if (a)
            reduce(call->recv, a, b, count);
        a = a ? call->recv : b;
    }
    if (call->op == PTB_AVG)
        ptb_reduce_finish(call->dtype, call->op, call->recv, count, team->size);
    return PTB_OK;
}

// Elements that go into this member's slot.
static size_t contribution(const ptb_team *team, const ptb_coll *call)
{
    switch (call->kind) {
    case PTB_ALL_GATHER:
        return ptb_block(call->count, team->size, team->rank).count;
    case PTB_GATHER:
        return team->rank == call->root ? 0 : ptb_block(call->count, team->size, team->rank).count;
    case PTB_BROADCAST:
    case PTB_SCATTER:
        return team->rank == call->root ? call->count : 0;
    case PTB_BARRIER:
        return 0;
    default:
        return call->count;
    }
}

// Each member's block from its slot to its place.
static ptb_status gather_slots(ptb_team *team, const ptb_coll *call, ptb_slot *mine)
{
    size_t size = ptb_dtype_size(call->dtype);
    for (int r = 0; r < team->size; r++) {
        ptb_range block = ptb_block(call->count, team->size, r);
        const void *from = ptb_slots_of(team, r, team->step)->payload;
        if (r != team->rank)
            PTB_TRY(meet(team, call, r));
        else
            from = call->kind == PTB_GATHER ? call->send : mine->payload;
        ptb_copy_local(ptb_at(call->recv, block.first, size), from, block.count * size);
    }
    return PTB_OK;
}

ptb_status ptb_slots_run(ptb_team *team, const ptb_coll *call)
{
    size_t size = ptb_dtype_size(call->dtype), count = call->count;
    ptb_range mine = ptb_block(count, team->size, team->rank);
    bool is_root = team->rank == call->root;
    size_t elements = contribution(team, call);
    ptb_slot *slot;
    PTB_TRY(ptb_slots_next(team, &slot));
    if (elements)
        memcpy(slot->payload, call->send, elements * size);
    ptb_slots_post(team, call, slot);
    const ptb_slot *root_slot = ptb_slots_of(team, call->root, team->step);
    switch (call->kind) {
    case PTB_ALL_REDUCE:
        return fold_slots(team, call, 0, count);
    case PTB_REDUCE:
        return is_root ? fold_slots(team, call, 0, count) : PTB_OK;
    case PTB_REDUCE_SCATTER:
        return fold_slots(team, call, mine.first, mine.count);
    case PTB_ALL_GATHER:
        return gather_slots(team, call, slot);
    case PTB_GATHER:
        return is_root ? gather_slots(team, call, slot) : PTB_OK;
    case PTB_BROADCAST:
        if (!is_root)
            PTB_TRY(meet(team, call, call->root));
        ptb_copy_local(call->recv, is_root ? call->send : (const void *)root_slot->payload, count * size);
        return PTB_OK;
    case PTB_SCATTER:
        if (!is_root)
            PTB_TRY(meet(team, call, call->root));
        ptb_copy_local(call->recv, root_slot->payload + mine.first * size, mine.count * size);
        return PTB_OK;
    case PTB_ALL_TO_ALL:
        for (int r = 0; r < team->size; r++) {
            if (r != team->rank)
                PTB_TRY(meet(team, call, r));
            const ptb_slot *theirs = ptb_slots_of(team, r, team->step);
            ptb_copy_local(ptb_at(call->recv, (size_t)r * mine.count, size),
                           theirs->payload + mine.first * size, mine.count * size);
        }
        return PTB_OK;
    default: // barrier
        return ptb_slots_meet_all(team, call);
    }
}
