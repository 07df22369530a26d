// Halving-doubling: a reduce-scatter that halves the vector in every round, then an all-gather that doubles
// it: the traffic of a ring in 2 log2(n) rounds (Rabenseifner, "Optimization of collective reduction
// operations", ICCS 2004; Thakur, Rabenseifner and Gropp 2005, section 4.5). Its all-gather alone is that of
// recursive doubling; it stands here so that both halves can be asked for by one name.
#include "collectives/doubling.h"

enum { ROUNDS_MAX = 32 };

// Elements of blocks [from, to) of the vector cut into p.
static ptb_range blocks(const ptb_doubling *d, int from, int to)
{
    size_t first = ptb_block(d->call->count, d->p, from).first;
    size_t end = to == d->p ? d->call->count : ptb_block(d->call->count, d->p, to).first;
    return (ptb_range){first, end - first};
}

static ptb_status all_reduce(ptb_team *team, const ptb_coll *call)
{
    ptb_doubling d = ptb_doubling_of(team, call);
    ptb_wire_begin(team, call->dtype, call->op);
    if (d.is_even) {
        int sent = ptb_doubling_send(&d, d.rank + 1, call->send, call->count, PTB_WIRE_NONE);
        ptb_doubling_recv(&d, d.rank + 1, call->recv, call->count, sent);
        return ptb_wire_run(team);
    }
    const void *have = call->send;
    int ready = PTB_WIRE_NONE, sent[ROUNDS_MAX], round = 0;
    if (d.is_odd) {
        ready = ptb_doubling_fold(&d, d.rank - 1, call->recv, call->send, call->count, PTB_WIRE_NONE, false);
        have = call->recv;
    }
    for (int step = d.p / 2; step >= 1; step /= 2, round++) {
        int other = d.virtual ^ step, keep_low = d.virtual & ~(step - 1), give_low = other & ~(step - 1);
        ptb_range keep = blocks(&d, keep_low, keep_low + step), give = blocks(&d, give_low, give_low + step);
        int peer = ptb_doubling_rank(&d, other);
        sent[round] = ptb_doubling_send(&d, peer, ptb_at_const(have, give.first, d.size), give.count, ready);
        ready = ptb_doubling_fold(&d, peer, ptb_at(call->recv, keep.first, d.size),
                                  ptb_at_const(have, keep.first, d.size), keep.count, ready, step == 1);
        have = call->recv;
    }
    for (int step = 1; step < d.p; step *= 2) {
        int other = d.virtual ^ step, low = d.virtual & ~(step - 1), other_low = other & ~(step - 1);
        ptb_range held = blocks(&d, low, low + step), want = blocks(&d, other_low, other_low + step);
        int peer = ptb_doubling_rank(&d, other);
        ptb_doubling_send(&d, peer, ptb_at(call->recv, held.first, d.size), held.count, ready);
        // This range was sent in the round of the same distance and must have been read.
        round--;
        int first = team->wire->count;
        ready = ptb_doubling_recv(&d, peer, ptb_at(call->recv, want.first, d.size), want.count, ready);
        for (int i = first; i < team->wire->count && sent[round] != PTB_WIRE_NONE; i++)
            ptb_wire_order(team, i, sent[round]);
    }
    if (d.is_odd)
        ptb_doubling_send(&d, d.rank - 1, call->recv, call->count, ready);
    return ptb_wire_run(team);
}

static ptb_status reduce_scatter(ptb_team *team, const ptb_coll *call)
{
    ptb_doubling d = ptb_doubling_of(team, call);
    ptb_range mine = ptb_block(call->count, d.n, d.rank);
    void *scratch = NULL;
    if (!d.is_even)
        PTB_TRY(ptb_team_scratch(team, 0, call->count * d.size, &scratch));
    ptb_wire_begin(team, call->dtype, call->op);
    if (d.is_even) {
        int sent = ptb_doubling_send(&d, d.rank + 1, call->send, call->count, PTB_WIRE_NONE);
        ptb_doubling_recv(&d, d.rank + 1, call->recv, mine.count, sent);
        return ptb_wire_run(team);
    }
    const void *have = call->send;
    int ready = PTB_WIRE_NONE;
    if (d.is_odd) {
        ready = ptb_doubling_fold(&d, d.rank - 1, scratch, call->send, call->count, PTB_WIRE_NONE, false);
        have = scratch;
    }
    for (int step = d.p / 2; step >= 1; step /= 2) {
        int other = d.virtual ^ step, keep_low = d.virtual & ~(step - 1), give_low = other & ~(step - 1);
        ptb_range keep = ptb_doubling_range(&d, keep_low, keep_low + step);
        ptb_range give = ptb_doubling_range(&d, give_low, give_low + step);
        int peer = ptb_doubling_rank(&d, other);
        ptb_doubling_send(&d, peer, ptb_at_const(have, give.first, d.size), give.count, ready);
        ready = ptb_doubling_fold(&d, peer, ptb_at(scratch, keep.first, d.size),
                                  ptb_at_const(have, keep.first, d.size), keep.count, ready, step == 1);
        have = scratch;
    }
    if (d.is_odd) {
        ptb_range theirs = ptb_block(call->count, d.n, d.rank - 1);
        ptb_doubling_send(&d, d.rank - 1, ptb_at(scratch, theirs.first, d.size), theirs.count, ready);
    }
    PTB_TRY(ptb_wire_run(team));
    ptb_copy_local(call->recv, ptb_at(scratch, mine.first, d.size), mine.count * d.size);
    return PTB_OK;
}

static ptb_status run(ptb_team *team, const ptb_coll *call)
{
    switch (call->kind) {
    case PTB_ALL_REDUCE:
        return all_reduce(team, call);
    case PTB_REDUCE_SCATTER:
        return reduce_scatter(team, call);
    case PTB_ALL_GATHER:
        return ptb_doubling_all_gather(team, call);
    default:
        return PTB_INTERNAL;
    }
}

static const ptb_algorithm halving_doubling_algorithm = {
    .plugin = {.name = "halving_doubling",
               .summary = "halve the vector to reduce it, double it to gather it, in 2 log2(n) rounds"},
    .collectives =
        PTB_COLL_BIT(PTB_ALL_REDUCE) | PTB_COLL_BIT(PTB_REDUCE_SCATTER) | PTB_COLL_BIT(PTB_ALL_GATHER),
    .run = run,
    .segment_bytes = ptb_doubling_segment_bytes,
};
PTB_REGISTER(PTB_KIND_ALGORITHM, halving_doubling_algorithm);
