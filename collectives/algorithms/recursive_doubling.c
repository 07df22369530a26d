// Recursive doubling: log2(n) rounds in which members at distance 1, 2, 4, ... exchange all they have. Few
// messages, whole vectors: for short ones (Thakur, Rabenseifner and Gropp 2005, sections 4.1 and 4.4). The
// barrier is the dissemination barrier (Hensgen, Finkel and Manber, Int. J. Parallel Program. 17(1), 1988),
// which needs no power of two.
#include "collectives/doubling.h"

#include <string.h>

static ptb_status all_reduce(ptb_team *team, const ptb_coll *call)
{
    ptb_doubling d = ptb_doubling_of(team, call);
    size_t bytes = call->count * d.size,
           space = (bytes + PTB_LINE_BYTES - 1) / PTB_LINE_BYTES * PTB_LINE_BYTES;
    void *scratch = NULL;
    if (!d.is_even)
        PTB_TRY(ptb_team_scratch(team, 0, 2 * space, &scratch));
    ptb_wire_begin(team, call->dtype, call->op);
    if (d.is_even) {
        int sent = ptb_doubling_send(&d, d.rank + 1, call->send, call->count, PTB_WIRE_NONE);
        ptb_doubling_recv(&d, d.rank + 1, call->recv, call->count, sent);
        return ptb_wire_run(team);
    }
    const void *have = call->send; // partial result, there after operation `ready`
    int ready = PTB_WIRE_NONE;
    if (d.is_odd) {
        ready = ptb_doubling_fold(&d, d.rank - 1, scratch, call->send, call->count, PTB_WIRE_NONE, false);
        have = scratch;
    } else if (call->send == call->recv) {
        // Two members that write over what they still send would wait for each other.
        have = memcpy(scratch, call->send, bytes);
    }
    int round = 1, sent_before = PTB_WIRE_NONE;
    for (int step = 1; step < d.p; step *= 2, round++) {
        bool last = 2 * step == d.p;
        int peer = ptb_doubling_rank(&d, d.virtual ^ step);
        void *to = last ? call->recv : (unsigned char *)scratch + (round % 2 ? space : 0);
        int sent = ptb_doubling_send(&d, peer, have, call->count, ready);
        // `to` is what the round before sent from.
        int first = team->wire->count;
        ready = ptb_doubling_fold(&d, peer, to, have, call->count, ready, last);
        for (int i = first; i <= ready; i++)
            if (sent_before != PTB_WIRE_NONE)
                ptb_wire_order(team, i, sent_before);
        sent_before = sent;
        have = to;
    }
    if (d.is_odd)
        ptb_doubling_send(&d, d.rank - 1, call->recv, call->count, ready);
    return ptb_wire_run(team);
}

static ptb_status barrier(ptb_team *team)
{
    int n = team->size, rank = team->rank, heard = PTB_WIRE_NONE;
    ptb_wire_begin(team, PTB_U8, PTB_SUM);
    for (int step = 1; step < n; step *= 2) {
        ptb_wire_send(team, (rank + step) % n, NULL, 0, heard);
        heard = ptb_wire_recv(team, (rank + n - step) % n, NULL, 0, heard);
    }
    return ptb_wire_run(team);
}

static ptb_status run(ptb_team *team, const ptb_coll *call)
{
    switch (call->kind) {
    case PTB_ALL_REDUCE:
        return all_reduce(team, call);
    case PTB_ALL_GATHER:
        return ptb_doubling_all_gather(team, call);
    case PTB_BARRIER:
        return barrier(team);
    default:
        return PTB_INTERNAL;
    }
}

static const ptb_algorithm recursive_doubling_algorithm = {
    .plugin = {.name = "recursive_doubling", .summary = "whole vectors in log2(n) exchanges, for short ones"},
    .collectives = PTB_COLL_BIT(PTB_ALL_REDUCE) | PTB_COLL_BIT(PTB_ALL_GATHER) | PTB_COLL_BIT(PTB_BARRIER),
    .run = run,
    .segment_bytes = ptb_doubling_segment_bytes,
};
PTB_REGISTER(PTB_KIND_ALGORITHM, recursive_doubling_algorithm);
