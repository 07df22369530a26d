// Pairwise: every member exchanges with every other one directly, in the order rank+1, rank+2, ..., so that
// in each round all pairs are different (Thakur, Rabenseifner and Gropp, Int. J. High Perform. Comput. Appl.
// 19(1), 2005, sections 4.2 and 5: pairwise exchange). Gather and scatter are linear. It works over any wire
// and does what no other algorithm does between hosts.
#include "collectives/algorithm.h"

#include <string.h>

typedef struct {
    ptb_team *team;
    const ptb_coll *call;
    int n, rank;
    size_t size; // bytes of an element
} job;

// All pieces of one message, so that none is larger than MPI counts and copies overlap.
static void send_to(const job *j, int peer, const void *from, size_t count)
{
    ptb_cut cut = ptb_wire_cut(j->team, count, j->size);
    for (size_t k = 0, first = 0; k < cut.parts; k++, first += cut.elements) {
        size_t some = count - first < cut.elements ? count - first : cut.elements;
        ptb_wire_send(j->team, peer, ptb_at_const(from, first, j->size), some * j->size, PTB_WIRE_NONE);
    }
}

static void recv_from(const job *j, int peer, void *to, size_t count)
{
    ptb_cut cut = ptb_wire_cut(j->team, count, j->size);
    for (size_t k = 0, first = 0; k < cut.parts; k++, first += cut.elements) {
        size_t some = count - first < cut.elements ? count - first : cut.elements;
        ptb_wire_recv(j->team, peer, ptb_at(to, first, j->size), some * j->size, PTB_WIRE_NONE);
    }
}

static ptb_status all_to_all(const job *j)
{
    const ptb_coll *call = j->call;
    ptb_range block = ptb_block(call->count, j->n, j->rank);
    const void *send = call->send;
    if (call->send == call->recv) {
        void *copy;
        PTB_TRY(ptb_team_scratch(j->team, 0, call->count * j->size, &copy));
        send = memcpy(copy, call->send, call->count * j->size);
    }
    for (int i = 1; i < j->n; i++) {
        int to = (j->rank + i) % j->n, from = (j->rank + j->n - i) % j->n;
        ptb_range out = ptb_block(call->count, j->n, to);
        send_to(j, to, ptb_at_const(send, out.first, j->size), out.count);
        recv_from(j, from, ptb_at(call->recv, (size_t)from * block.count, j->size), block.count);
    }
    ptb_copy_local(ptb_at(call->recv, (size_t)j->rank * block.count, j->size),
                   ptb_at_const(call->send, block.first, j->size), block.count * j->size);
    return ptb_wire_run(j->team);
}

static ptb_status all_to_all_v(const job *j)
{
    const ptb_coll *call = j->call;
    const void *send = call->send;
    size_t end = 0;
    for (int r = 0; r < j->n; r++)
        if (call->send_counts[r] && call->send_first[r] + call->send_counts[r] > end)
            end = call->send_first[r] + call->send_counts[r];
    bool in_place = call->send == call->recv;
    if (in_place && end) {
        void *copy;
        PTB_TRY(ptb_team_scratch(j->team, 0, end * j->size, &copy));
        send = memcpy(copy, call->send, end * j->size);
    }
    for (int i = 1; i < j->n; i++) {
        int to = (j->rank + i) % j->n, from = (j->rank + j->n - i) % j->n;
        send_to(j, to, ptb_at_const(send, call->send_first[to], j->size), call->send_counts[to]);
        recv_from(j, from, ptb_at(call->recv, call->recv_first[from], j->size), call->recv_counts[from]);
    }
    if (!in_place && call->send_counts[j->rank])
        ptb_copy_local(ptb_at(call->recv, call->recv_first[j->rank], j->size),
                       ptb_at_const(call->send, call->send_first[j->rank], j->size),
                       call->send_counts[j->rank] * j->size);
    return ptb_wire_run(j->team);
}

static ptb_status gather(const job *j)
{
    const ptb_coll *call = j->call;
    ptb_range mine = ptb_block(call->count, j->n, j->rank);
    if (j->rank != call->root) {
        send_to(j, call->root, call->send, mine.count);
        return ptb_wire_run(j->team);
    }
    for (int i = 1; i < j->n; i++) {
        int from = (j->rank + i) % j->n;
        ptb_range block = ptb_block(call->count, j->n, from);
        recv_from(j, from, ptb_at(call->recv, block.first, j->size), block.count);
    }
    ptb_copy_local(ptb_at(call->recv, mine.first, j->size), call->send, mine.count * j->size);
    return ptb_wire_run(j->team);
}

static ptb_status scatter(const job *j)
{
    const ptb_coll *call = j->call;
    ptb_range mine = ptb_block(call->count, j->n, j->rank);
    if (j->rank != call->root) {
        recv_from(j, call->root, call->recv, mine.count);
        return ptb_wire_run(j->team);
    }
    for (int i = 1; i < j->n; i++) {
        int to = (j->rank + i) % j->n;
        ptb_range block = ptb_block(call->count, j->n, to);
        send_to(j, to, ptb_at_const(call->send, block.first, j->size), block.count);
    }
    ptb_copy_local(call->recv, ptb_at_const(call->send, mine.first, j->size), mine.count * j->size);
    return ptb_wire_run(j->team);
}

static ptb_status all_gather(const job *j)
{
    const ptb_coll *call = j->call;
    ptb_range mine = ptb_block(call->count, j->n, j->rank);
    for (int i = 1; i < j->n; i++) {
        int to = (j->rank + i) % j->n, from = (j->rank + j->n - i) % j->n;
        ptb_range block = ptb_block(call->count, j->n, from);
        send_to(j, to, call->send, mine.count);
        recv_from(j, from, ptb_at(call->recv, block.first, j->size), block.count);
    }
    ptb_copy_local(ptb_at(call->recv, mine.first, j->size), call->send, mine.count * j->size);
    return ptb_wire_run(j->team);
}

// The members' contributions to this one's block are folded one after the other.
static ptb_status reduce_scatter(const job *j)
{
    const ptb_coll *call = j->call;
    ptb_range mine = ptb_block(call->count, j->n, j->rank);
    ptb_cut cut = ptb_wire_cut(j->team, mine.count, j->size);
    for (int i = 1; i < j->n; i++) {
        ptb_range out = ptb_block(call->count, j->n, (j->rank + i) % j->n);
        // The cut must be the receiver's: blocks may differ by an element, so it is the block that counts.
        send_to(j, (j->rank + i) % j->n, ptb_at_const(call->send, out.first, j->size), out.count);
    }
    const void *own = ptb_at_const(call->send, mine.first, j->size);
    int before = PTB_WIRE_NONE;
    for (int i = 1; i < j->n; i++) {
        int from = (j->rank + j->n - i) % j->n, first_op = PTB_WIRE_NONE;
        for (size_t k = 0, first = 0; k < cut.parts; k++, first += cut.elements) {
            size_t some = mine.count - first < cut.elements ? mine.count - first : cut.elements;
            void *to = ptb_at(call->recv, first, j->size);
            int op =
                ptb_wire_recv_reduce(j->team, from, to, i == 1 ? ptb_at_const(own, first, j->size) : to,
                                     some * j->size, i == 1 ? PTB_WIRE_NONE : before + (int)k, i == j->n - 1);
            first_op = k ? first_op : op;
        }
        before = first_op;
    }
    return ptb_wire_run(j->team);
}

ptb_status ptb_pairwise_run(ptb_team *team, const ptb_coll *call)
{
    job j = {team, call, team->size, team->rank, ptb_dtype_size(call->dtype)};
    ptb_wire_begin(team, call->dtype, call->op);
    switch (call->kind) {
    case PTB_ALL_TO_ALL:
        return all_to_all(&j);
    case PTB_ALL_TO_ALL_V:
        return all_to_all_v(&j);
    case PTB_GATHER:
        return gather(&j);
    case PTB_SCATTER:
        return scatter(&j);
    case PTB_ALL_GATHER:
        return all_gather(&j);
    case PTB_REDUCE_SCATTER:
        return reduce_scatter(&j);
    default:
        return PTB_INTERNAL;
    }
}

static size_t segment_bytes(const ptb_team *team, const ptb_coll *call)
{
    size_t size = ptb_dtype_size(call->dtype);
    size_t count = call->kind == PTB_ALL_TO_ALL_V ? 0 : ptb_block(call->count, team->size, 0).count;
    for (int r = 0; call->kind == PTB_ALL_TO_ALL_V && r < team->size; r++)
        count = call->send_counts[r] > count ? call->send_counts[r] : count;
    return ptb_wire_cut(team, count, size).elements * size;
}

static const ptb_algorithm pairwise_algorithm = {
    .plugin = {.name = "pairwise", .summary = "every pair exchanges directly"},
    .collectives = PTB_COLL_BIT(PTB_ALL_TO_ALL) | PTB_COLL_BIT(PTB_ALL_TO_ALL_V) | PTB_COLL_BIT(PTB_GATHER) |
                   PTB_COLL_BIT(PTB_SCATTER) | PTB_COLL_BIT(PTB_ALL_GATHER) |
                   PTB_COLL_BIT(PTB_REDUCE_SCATTER),
    .run = ptb_pairwise_run,
    .segment_bytes = segment_bytes,
};
PTB_REGISTER(PTB_KIND_ALGORITHM, pairwise_algorithm);
