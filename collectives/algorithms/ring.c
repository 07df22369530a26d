// Ring: every member sends to its right neighbour and receives from its left one. All-reduce is a
// reduce-scatter followed by an all-gather, which is optimal in bandwidth (Patarasuk and Yuan, J. Parallel
// Distrib. Comput. 69, 2009); broadcast and reduce are chains pipelined in segments.
#include "collectives/algorithm.h"

#include "core/log.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    ptb_team *team;
    const ptb_coll *call;
    int n, rank, left, right;
    size_t element;       // bytes
    size_t segment_count; // elements of a segment
} ring;

static ring ring_of(ptb_team *team, const ptb_coll *call, size_t largest_block)
{
    int n = team->size, rank = team->rank;
    size_t element = ptb_dtype_size(call->dtype);
    return (ring){.team = team,
                  .call = call,
                  .n = n,
                  .rank = rank,
                  .left = (rank + n - 1) % n,
                  .right = (rank + 1) % n,
                  .element = element,
                  .segment_count = ptb_wire_cut(team, largest_block, element).elements};
}

static int wrap(const ring *r, int i)
{
    return ((i % r->n) + r->n) % r->n;
}

static size_t parts_of(const ring *r, size_t count)
{
    return (count + r->segment_count - 1) / r->segment_count;
}

// Segment k of a range, in elements.
static ptb_range segment_of(const ring *r, ptb_range range, size_t k)
{
    size_t first = k * r->segment_count, left = range.count - first;
    return (ptb_range){range.first + first, left < r->segment_count ? left : r->segment_count};
}

// The i-th operation of a run of operations that began at `base`.
static int op_at(int base, size_t i)
{
    return base == PTB_WIRE_NONE ? PTB_WIRE_NONE : base + (int)i;
}

// Sends all segments of a block from buffer + block.first, segment k after operation after + k. Returns the
// first operation.
static int send_block(const ring *r, const void *buffer, ptb_range block, int after)
{
    int base = PTB_WIRE_NONE;
    for (size_t k = 0; k < parts_of(r, block.count); k++) {
        ptb_range s = segment_of(r, block, k);
        int op = ptb_wire_send(r->team, r->right, ptb_at_const(buffer, s.first, r->element),
                               s.count * r->element, op_at(after, k));
        base = k ? base : op;
    }
    return base;
}

static int recv_block(const ring *r, void *buffer, ptb_range block, int after)
{
    int base = PTB_WIRE_NONE;
    for (size_t k = 0; k < parts_of(r, block.count); k++) {
        ptb_range s = segment_of(r, block, k);
        int op = ptb_wire_recv(r->team, r->left, ptb_at(buffer, s.first, r->element), s.count * r->element,
                               op_at(after, k));
        base = k ? base : op;
    }
    return base;
}

// to[i] = send[block][i] op received[i]; `to` is the place of the block's first element.
static int fold_block(const ring *r, void *to, ptb_range block, int after, bool finish)
{
    int base = PTB_WIRE_NONE;
    for (size_t k = 0; k < parts_of(r, block.count); k++) {
        ptb_range s = segment_of(r, block, k);
        int op = ptb_wire_recv_reduce(r->team, r->left, ptb_at(to, s.first - block.first, r->element),
                                      ptb_at_const(r->call->send, s.first, r->element), s.count * r->element,
                                      op_at(after, k), finish);
        base = k ? base : op;
    }
    return base;
}

static ptb_status all_reduce(ptb_team *team, const ptb_coll *call)
{
    int n = team->size;
    ring r = ring_of(team, call, ptb_block(call->count, n, 0).count);
    int sent[n]; // first send of each block in the first phase
    int ready = PTB_WIRE_NONE;
    ptb_wire_begin(team, call->dtype, call->op);
    for (int s = 0; s < n - 1; s++) {
        int out = wrap(&r, r.rank - s), in = wrap(&r, r.rank - s - 1);
        ptb_range block = ptb_block(call->count, n, in);
        sent[out] = send_block(&r, s ? call->recv : call->send, ptb_block(call->count, n, out), ready);
        ready = fold_block(&r, ptb_at(call->recv, block.first, r.element), block, PTB_WIRE_NONE, s == n - 2);
    }
    for (int s = 0; s < n - 1; s++) {
        int out = wrap(&r, r.rank + 1 - s), in = wrap(&r, r.rank - s);
        send_block(&r, call->recv, ptb_block(call->count, n, out), ready);
        ready = recv_block(&r, call->recv, ptb_block(call->count, n, in), sent[in]);
    }
    return ptb_wire_run(team);
}

static ptb_status reduce_scatter(ptb_team *team, const ptb_coll *call)
{
    int n = team->size;
    size_t largest = ptb_block(call->count, n, 0).count;
    ring r = ring_of(team, call, largest);
    size_t part_bytes = (largest * r.element + PTB_LINE_BYTES - 1) / PTB_LINE_BYTES * PTB_LINE_BYTES;
    void *scratch = NULL;
    if (n > 2)
        PTB_TRY(ptb_team_scratch(team, 0, 2 * part_bytes, &scratch));
    // Partial sums alternate between two blocks of scratch; a block is written again when it has been sent.
    int ready = PTB_WIRE_NONE, sent[2] = {PTB_WIRE_NONE, PTB_WIRE_NONE};
    size_t sent_parts[2] = {0, 0};
    ptb_wire_begin(team, call->dtype, call->op);
    for (int s = 0; s < n - 1; s++) {
        ptb_range out = ptb_block(call->count, n, wrap(&r, r.rank - s - 1));
        ptb_range in = ptb_block(call->count, n, wrap(&r, r.rank - s - 2));
        if (s == 0) {
            send_block(&r, call->send, out, PTB_WIRE_NONE);
        } else {
            int from = (s - 1) % 2;
            unsigned char *partial = (unsigned char *)scratch + (size_t)from * part_bytes;
            int first = send_block(&r, partial, (ptb_range){0, out.count}, ready);
            if (out.count) {
                sent[from] = first;
                sent_parts[from] = parts_of(&r, out.count);
            }
        }
        bool last = s == n - 2;
        void *to = last ? call->recv : (void *)((unsigned char *)scratch + (size_t)(s % 2) * part_bytes);
        ready = fold_block(&r, to, in, PTB_WIRE_NONE, last);
        for (size_t k = 0; !last && k < parts_of(&r, in.count) && sent_parts[s % 2]; k++) {
            size_t same = k < sent_parts[s % 2] ? k : sent_parts[s % 2] - 1;
            ptb_wire_order(team, op_at(ready, k), op_at(sent[s % 2], same));
        }
    }
    return ptb_wire_run(team);
}

static ptb_status all_gather(ptb_team *team, const ptb_coll *call)
{
    int n = team->size;
    ring r = ring_of(team, call, ptb_block(call->count, n, 0).count);
    ptb_range mine = ptb_block(call->count, n, r.rank);
    void *own = ptb_at(call->recv, mine.first, r.element);
    int ready = PTB_WIRE_NONE;
    // The own block leaves from where it is, not from the copy that was just made, unless only that is
    // mapped.
    bool maps_send = ptb_team_place(team, call->send, 1).segment != PTB_PLACE_PRIVATE;
    ptb_copy_local(own, call->send, mine.count * r.element);
    ptb_wire_begin(team, call->dtype, call->op);
    for (int s = 0; s < n - 1; s++) {
        ptb_range out = ptb_block(call->count, n, wrap(&r, r.rank - s));
        ptb_range in = ptb_block(call->count, n, wrap(&r, r.rank - s - 1));
        if (s == 0 && maps_send)
            send_block(&r, call->send, (ptb_range){0, out.count}, ready);
        else
            send_block(&r, call->recv, out, ready);
        ready = recv_block(&r, call->recv, in, PTB_WIRE_NONE);
    }
    return ptb_wire_run(team);
}

// A chain from the root around the ring.
static ptb_status broadcast(ptb_team *team, const ptb_coll *call)
{
    ring r = ring_of(team, call, call->count);
    ptb_range all = {0, call->count};
    int place = wrap(&r, r.rank - call->root), ready = PTB_WIRE_NONE;
    ptb_wire_begin(team, call->dtype, call->op);
    if (place > 0)
        ready = recv_block(&r, call->recv, all, PTB_WIRE_NONE);
    if (place < r.n - 1)
        send_block(&r, place ? call->recv : call->send, all, ready);
    PTB_TRY(ptb_wire_run(team));
    if (place == 0)
        ptb_copy_local(call->recv, call->send, call->count * r.element);
    return PTB_OK;
}

// The chain of broadcast the other way about: from the root's right neighbour around to the root. Partial
// sums pass through a window of scratch.
static ptb_status reduce(ptb_team *team, const ptb_coll *call)
{
    enum { WINDOW = 8 };
    ring r = ring_of(team, call, call->count);
    ptb_range all = {0, call->count};
    int place = wrap(&r, r.rank - call->root - 1); // 0 starts, n-1 is the root
    void *scratch = NULL;
    if (place > 0 && place < r.n - 1)
        PTB_TRY(ptb_team_scratch(team, 0, WINDOW * r.segment_count * r.element, &scratch));
    ptb_wire_begin(team, call->dtype, call->op);
    if (place == 0)
        send_block(&r, call->send, all, PTB_WIRE_NONE);
    else if (place == r.n - 1)
        fold_block(&r, call->recv, all, PTB_WIRE_NONE, true);
    int sent[WINDOW];
    for (size_t k = 0; scratch && k < parts_of(&r, call->count); k++) {
        ptb_range s = segment_of(&r, all, k);
        void *partial = ptb_at(scratch, k % WINDOW * r.segment_count, r.element);
        int in =
            ptb_wire_recv_reduce(team, r.left, partial, ptb_at_const(call->send, s.first, r.element),
                                 s.count * r.element, k < WINDOW ? PTB_WIRE_NONE : sent[k % WINDOW], false);
        sent[k % WINDOW] = ptb_wire_send(team, r.right, partial, s.count * r.element, in);
    }
    return ptb_wire_run(team);
}

static ptb_status run(ptb_team *team, const ptb_coll *call)
{
    switch (call->kind) {
    case PTB_ALL_REDUCE:
        return all_reduce(team, call);
    case PTB_REDUCE_SCATTER:
        return reduce_scatter(team, call);
    case PTB_ALL_GATHER:
        return all_gather(team, call);
    case PTB_BROADCAST:
        return broadcast(team, call);
    case PTB_REDUCE:
        return reduce(team, call);
    default:
        return PTB_INTERNAL;
    }
}

static size_t segment_bytes(const ptb_team *team, const ptb_coll *call)
{
    bool chain = call->kind == PTB_BROADCAST || call->kind == PTB_REDUCE;
    size_t count = chain ? call->count : ptb_block(call->count, team->size, 0).count;
    size_t element = ptb_dtype_size(call->dtype);
    return ptb_wire_cut(team, count, element).elements * element;
}

static const ptb_algorithm ring_algorithm = {
    .plugin = {.name = "ring", .summary = "neighbours in a ring, pipelined in segments"},
    .collectives = PTB_COLL_BIT(PTB_ALL_REDUCE) | PTB_COLL_BIT(PTB_REDUCE_SCATTER) |
                   PTB_COLL_BIT(PTB_ALL_GATHER) | PTB_COLL_BIT(PTB_BROADCAST) | PTB_COLL_BIT(PTB_REDUCE),
    .run = run,
    .segment_bytes = segment_bytes,
};
PTB_REGISTER(PTB_KIND_ALGORITHM, ring_algorithm);
