// See doubling.h.
#include "collectives/doubling.h"

enum { PIECE_BYTES = 1 << 20 };

ptb_doubling ptb_doubling_of(ptb_team *team, const ptb_coll *call)
{
    ptb_doubling d = {.team = team, .call = call, .size = ptb_dtype_size(call->dtype)};
    d.n = team->size;
    d.rank = team->rank;
    d.p = 1;
    while (2 * d.p <= d.n)
        d.p *= 2;
    d.rest = d.n - d.p;
    bool is_paired = d.rank < 2 * d.rest;
    d.is_even = is_paired && d.rank % 2 == 0;
    d.is_odd = is_paired && d.rank % 2 == 1;
    d.virtual = d.is_even ? -1 : d.is_odd ? d.rank / 2 : d.rank - d.rest;
    return d;
}

int ptb_doubling_rank(const ptb_doubling *d, int v)
{
    return v < d->rest ? 2 * v + 1 : v + d->rest;
}

int ptb_doubling_first(const ptb_doubling *d, int v)
{
    return v < d->rest ? 2 * v : v + d->rest;
}

ptb_range ptb_doubling_range(const ptb_doubling *d, int from, int to)
{
    size_t first = ptb_block(d->call->count, d->n, ptb_doubling_first(d, from)).first;
    int end = ptb_doubling_first(d, to);
    size_t last = end == d->n ? d->call->count : ptb_block(d->call->count, d->n, end).first;
    return (ptb_range){first, last - first};
}

static size_t piece_of(const ptb_doubling *d)
{
    size_t asked = (size_t)d->team->config.segment_bytes;
    return (asked > PIECE_BYTES ? asked : PIECE_BYTES) / d->size;
}

size_t ptb_doubling_segment_bytes(const ptb_team *team, const ptb_coll *call)
{
    ptb_doubling d = {.team = (ptb_team *)team, .size = ptb_dtype_size(call->dtype)};
    return piece_of(&d) * d.size;
}

int ptb_doubling_send(const ptb_doubling *d, int peer, const void *from, size_t count, int after)
{
    int last = after;
    for (size_t at = 0, piece = piece_of(d); at < count; at += piece)
        last = ptb_wire_send(d->team, peer, ptb_at_const(from, at, d->size),
                             (count - at < piece ? count - at : piece) * d->size, after);
    return last;
}

int ptb_doubling_recv(const ptb_doubling *d, int peer, void *to, size_t count, int after)
{
    int last = after;
    for (size_t at = 0, piece = piece_of(d); at < count; at += piece)
        last = ptb_wire_recv(d->team, peer, ptb_at(to, at, d->size),
                             (count - at < piece ? count - at : piece) * d->size, after);
    return last;
}

int ptb_doubling_fold(const ptb_doubling *d, int peer, void *to, const void *from, size_t count, int after,
                      bool finish)
{
    int last = after;
    for (size_t at = 0, piece = piece_of(d); at < count; at += piece)
        last = ptb_wire_recv_reduce(d->team, peer, ptb_at(to, at, d->size), ptb_at_const(from, at, d->size),
                                    (count - at < piece ? count - at : piece) * d->size, after, finish);
    return last;
}

ptb_status ptb_doubling_all_gather(ptb_team *team, const ptb_coll *call)
{
    ptb_doubling d = ptb_doubling_of(team, call);
    ptb_range mine = ptb_block(call->count, d.n, d.rank);
    void *own = ptb_at(call->recv, mine.first, d.size);
    ptb_copy_local(own, call->send, mine.count * d.size);
    ptb_wire_begin(team, call->dtype, call->op);
    if (d.is_even) {
        int sent = ptb_doubling_send(&d, d.rank + 1, own, mine.count, PTB_WIRE_NONE);
        ptb_doubling_recv(&d, d.rank + 1, call->recv, call->count, sent);
        return ptb_wire_run(team);
    }
    int ready = PTB_WIRE_NONE;
    if (d.is_odd) {
        ptb_range theirs = ptb_block(call->count, d.n, d.rank - 1);
        ready = ptb_doubling_recv(&d, d.rank - 1, ptb_at(call->recv, theirs.first, d.size), theirs.count,
                                  PTB_WIRE_NONE);
    }
    for (int step = 1; step < d.p; step *= 2) {
        int other = d.virtual ^ step, low = d.virtual & ~(step - 1), other_low = other & ~(step - 1);
        ptb_range have = ptb_doubling_range(&d, low, low + step);
        ptb_range want = ptb_doubling_range(&d, other_low, other_low + step);
        int peer = ptb_doubling_rank(&d, other);
        ptb_doubling_send(&d, peer, ptb_at(call->recv, have.first, d.size), have.count, ready);
        // What is received later builds on all that came before: chain the receives.
        ready = ptb_doubling_recv(&d, peer, ptb_at(call->recv, want.first, d.size), want.count, ready);
    }
    if (d.is_odd)
        ptb_doubling_send(&d, d.rank - 1, call->recv, call->count, ready);
    return ptb_wire_run(team);
}
