// Collectives as MPI calls. MPI counts in int: a vector that one call cannot take (c->limit elements) goes in
// pieces where the pieces are again the same call (all-reduce, broadcast, reduce), as blocks of a derived
// type where blocks are equal, and else as messages, or reductions to one rank after the other. All ranks
// choose the same way from the count that all of them pass.
#include "collectives/comm_mpi.h"
#include "collectives/world_mpi.h"
#include "core/log.h"

#include <limits.h>
#include <string.h>

const char *ptb_mpi_call_name(ptb_mpi_call call)
{
    static const char *const names[] = {
#define X(upper, tuned, function) [PTB_MPI_##upper] = function,
        PTB_MPI_CALL_LIST(X)
#undef X
    };
    return names[call];
}

const char *ptb_mpi_call_tuned_word(ptb_mpi_call call)
{
    static const char *const words[] = {
#define X(upper, tuned, function) [PTB_MPI_##upper] = tuned,
        PTB_MPI_CALL_LIST(X)
#undef X
    };
    return words[call];
}

static size_t pieces(size_t count, size_t limit)
{
    return count > limit ? (count + limit - 1) / limit : 1;
}

// Blocks: equal ones keep the plain call; uneven ones need the v-variant, whose offsets are int as well.
static ptb_mpi_plan block_plan(const ptb_comm_mpi *c, size_t count, size_t reach, ptb_mpi_call equal,
                               ptb_mpi_call uneven)
{
    size_t n = (size_t)c->comm.size;
    if (count % n == 0)
        return (ptb_mpi_plan){equal, count > c->limit, 1};
    if (reach <= c->limit)
        return (ptb_mpi_plan){uneven, false, 1};
    return (ptb_mpi_plan){PTB_MPI_MESSAGES, false, pieces((count + n - 1) / n, c->limit)};
}

static ptb_mpi_plan reduce_scatter_plan(const ptb_comm_mpi *c, size_t count)
{
    size_t n = (size_t)c->comm.size;
    if (count > c->limit)
        return (ptb_mpi_plan){PTB_MPI_REDUCES, false, pieces((count + n - 1) / n, c->limit)};
    return (ptb_mpi_plan){count % n == 0 ? PTB_MPI_REDUCE_SCATTER_BLOCK : PTB_MPI_REDUCE_SCATTER, false, 1};
}

ptb_mpi_plan ptb_mpi_plan_for(const ptb_comm_mpi *c, const ptb_coll *call)
{
    size_t n = (size_t)c->comm.size, count = call->count;
    switch (call->kind) {
    case PTB_ALL_REDUCE:
        return (ptb_mpi_plan){PTB_MPI_ALL_REDUCE, false, pieces(count, c->limit)};
    case PTB_BROADCAST:
        return (ptb_mpi_plan){PTB_MPI_BROADCAST, false, pieces(count, c->limit)};
    case PTB_REDUCE:
        return (ptb_mpi_plan){PTB_MPI_REDUCE, false, pieces(count, c->limit)};
    case PTB_ALL_GATHER:
        return block_plan(c, count, count, PTB_MPI_ALL_GATHER, PTB_MPI_ALL_GATHER_V);
    case PTB_GATHER:
        return block_plan(c, count, count, PTB_MPI_GATHER, PTB_MPI_GATHER_V);
    case PTB_SCATTER:
        return block_plan(c, count, count, PTB_MPI_SCATTER, PTB_MPI_SCATTER_V);
    case PTB_ALL_TO_ALL: // a receive buffer of up to n larger blocks
        return block_plan(c, count, (count + n - 1) / n * n, PTB_MPI_ALL_TO_ALL, PTB_MPI_ALL_TO_ALL_V);
    case PTB_ALL_TO_ALL_V:
        if (count > c->limit)
            return (ptb_mpi_plan){PTB_MPI_MESSAGES, false, pieces(count, c->limit)};
        return (ptb_mpi_plan){PTB_MPI_ALL_TO_ALL_V, false, 1};
    case PTB_REDUCE_SCATTER:
        return reduce_scatter_plan(c, count);
    default:
        return (ptb_mpi_plan){PTB_MPI_BARRIER, false, 1};
    }
}

// ---- helpers

static void *element(const ptb_coll *call, const void *buffer, size_t i)
{
    return (char *)buffer + i * ptb_dtype_size(call->dtype);
}

bool ptb_mpi_in_place(const ptb_comm_mpi *c, const ptb_coll *call)
{
    int r = c->comm.rank;
    size_t mine = ptb_block(call->count, c->comm.size, r).first;
    switch (call->kind) {
    case PTB_ALL_GATHER:
        return call->send == element(call, call->recv, mine);
    case PTB_REDUCE_SCATTER:
        return call->recv == element(call, call->send, mine);
    case PTB_GATHER:
        return r == call->root && call->send == element(call, call->recv, mine);
    case PTB_SCATTER:
        return r == call->root && call->recv == element(call, call->send, mine);
    default:
        return call->send == call->recv;
    }
}

static ptb_status finish(const ptb_comm_mpi *c, const ptb_coll *call, size_t count)
{
    if (call->op == PTB_AVG)
        ptb_reduce_finish(call->dtype, PTB_AVG, call->recv, count, c->comm.size);
    return PTB_OK;
}

// The type and count that stand for `elements` elements of an equal block.
static ptb_status block_type(ptb_comm_mpi *c, const ptb_coll *call, bool big, size_t elements,
                             MPI_Datatype *type, int *count)
{
    if (!big) {
        *type = c->type[call->dtype];
        *count = (int)elements;
        return PTB_OK;
    }
    if (c->block == MPI_DATATYPE_NULL || c->block_elements != elements || c->block_dtype != call->dtype) {
        MPI_Datatype made;
        PTB_TRY(ptb_mpi_type_many(elements, c->type[call->dtype], &made));
        if (c->block != MPI_DATATYPE_NULL)
            MPI_Type_free(&c->block);
        c->block = made;
        c->block_elements = elements;
        c->block_dtype = call->dtype;
    }
    *type = c->block;
    *count = 1;
    return PTB_OK;
}

// Lengths and places of the blocks of a vector, for a v-variant.
static void block_lists(const ptb_comm_mpi *c, size_t count, int *counts, int *first)
{
    for (int r = 0; r < c->comm.size; r++) {
        ptb_range block = ptb_block(count, c->comm.size, r);
        counts[r] = (int)block.count;
        first[r] = (int)block.first;
    }
}

// ---- whole vectors

static ptb_status all_reduce(ptb_comm_mpi *c, const ptb_coll *call)
{
    MPI_Datatype type = c->type[call->dtype];
    MPI_Op op = c->op[call->dtype][call->op];
    bool in_place = call->send == call->recv;
    size_t done = 0;
    do {
        size_t part = call->count - done < c->limit ? call->count - done : c->limit;
        PTB_TRY(ptb_mpi_check(MPI_Allreduce(in_place ? MPI_IN_PLACE : element(call, call->send, done),
                                            element(call, call->recv, done), (int)part, type, op, c->mpi),
                              "MPI_Allreduce"));
        done += part;
    } while (__builtin_expect(done < call->count, 0));
    return finish(c, call, call->count);
}

static ptb_status broadcast(ptb_comm_mpi *c, const ptb_coll *call)
{
    bool root = c->comm.rank == call->root;
    const void *buffer = root ? call->send : call->recv; // MPI has one buffer
    size_t done = 0;
    do {
        size_t part = call->count - done < c->limit ? call->count - done : c->limit;
        PTB_TRY(ptb_mpi_check(
            MPI_Bcast(element(call, buffer, done), (int)part, c->type[call->dtype], call->root, c->mpi),
            "MPI_Bcast"));
        done += part;
    } while (__builtin_expect(done < call->count, 0));
    if (root && call->recv != call->send && call->count > 0)
        memcpy(call->recv, call->send, call->count * ptb_dtype_size(call->dtype));
    return PTB_OK;
}

static ptb_status reduce_to(ptb_comm_mpi *c, const ptb_coll *call, const void *send, void *recv, size_t count,
                            int root)
{
    MPI_Datatype type = c->type[call->dtype];
    MPI_Op op = c->op[call->dtype][call->op];
    bool mine = c->comm.rank == root;
    size_t done = 0;
    do {
        size_t part = count - done < c->limit ? count - done : c->limit;
        PTB_TRY(ptb_mpi_check(MPI_Reduce(mine && send == recv ? MPI_IN_PLACE : element(call, send, done),
                                         mine ? element(call, recv, done) : NULL, (int)part, type, op, root,
                                         c->mpi),
                              "MPI_Reduce"));
        done += part;
    } while (__builtin_expect(done < count, 0));
    return PTB_OK;
}

static ptb_status reduce(ptb_comm_mpi *c, const ptb_coll *call)
{
    PTB_TRY(reduce_to(c, call, call->send, call->recv, call->count, call->root));
    return c->comm.rank == call->root ? finish(c, call, call->count) : PTB_OK;
}

// ---- blocks

// MPI's in-place form puts the result at the start of the vector; ptbench's (as NCCL's) at the own block.
static ptb_status reduce_scatter(ptb_comm_mpi *c, const ptb_coll *call)
{
    int n = c->comm.size;
    ptb_range mine = ptb_block(call->count, n, c->comm.rank);
    ptb_mpi_plan plan = reduce_scatter_plan(c, call->count);
    bool in_place = ptb_mpi_in_place(c, call);
    MPI_Datatype type = c->type[call->dtype];
    MPI_Op op = c->op[call->dtype][call->op];
    const void *send = in_place ? MPI_IN_PLACE : call->send;
    void *recv = in_place ? (void *)call->send : call->recv;
    if (plan.call == PTB_MPI_REDUCES) {
        for (int r = 0; r < n; r++) {
            ptb_range block = ptb_block(call->count, n, r);
            PTB_TRY(reduce_to(c, call, element(call, call->send, block.first), call->recv, block.count, r));
        }
        return finish(c, call, mine.count);
    }
    if (plan.call == PTB_MPI_REDUCE_SCATTER_BLOCK) {
        PTB_TRY(ptb_mpi_check(MPI_Reduce_scatter_block(send, recv, (int)mine.count, type, op, c->mpi),
                              "MPI_Reduce_scatter_block"));
    } else {
        block_lists(c, call->count, c->recv_counts, c->recv_first);
        PTB_TRY(ptb_mpi_check(MPI_Reduce_scatter(send, recv, c->recv_counts, type, op, c->mpi),
                              "MPI_Reduce_scatter"));
    }
    if (in_place && mine.first > 0)
        memmove(call->recv, recv, mine.count * ptb_dtype_size(call->dtype));
    return finish(c, call, mine.count);
}

static void part(ptb_comm_mpi *c, const ptb_coll *call, int peer, bool send, const void *buffer, size_t first,
                 size_t count)
{
    c->parts[(send ? c->comm.size : 0) + peer] = (ptb_mpi_message){.buffer = element(call, buffer, first),
                                                                   .count = count,
                                                                   .dtype = call->dtype,
                                                                   .peer = peer,
                                                                   .send = send};
}

// The collectives that only move data, as messages between all pairs that have something for each other.
static ptb_status by_messages(ptb_comm_mpi *c, const ptb_coll *call)
{
    int n = c->comm.size, me = c->comm.rank;
    ptb_range mine = ptb_block(call->count, n, me);
    bool root = me == call->root;
    for (int p = 0; p < n; p++) {
        ptb_range theirs = ptb_block(call->count, n, p);
        part(c, call, p, true, NULL, 0, 0);
        part(c, call, p, false, NULL, 0, 0);
        if (call->kind == PTB_ALL_GATHER || (call->kind == PTB_GATHER && p == call->root))
            part(c, call, p, true, call->send, 0, mine.count);
        if (call->kind == PTB_ALL_GATHER || (call->kind == PTB_GATHER && root))
            part(c, call, p, false, call->recv, theirs.first, theirs.count);
        if (call->kind == PTB_ALL_TO_ALL || (call->kind == PTB_SCATTER && root))
            part(c, call, p, true, call->send, theirs.first, theirs.count);
        if (call->kind == PTB_ALL_TO_ALL)
            part(c, call, p, false, call->recv, (size_t)p * mine.count, mine.count);
        if (call->kind == PTB_SCATTER && p == call->root)
            part(c, call, p, false, call->recv, 0, mine.count);
        if (call->kind == PTB_ALL_TO_ALL_V) {
            part(c, call, p, true, call->send, call->send_first[p], call->send_counts[p]);
            part(c, call, p, false, call->recv, call->recv_first[p], call->recv_counts[p]);
        }
    }
    ptb_mpi_group *group = ptb_mpi_group_take(c);
    if (!group)
        return PTB_NO_MEMORY;
    const ptb_mpi_message *self_recv = &c->parts[me], *self_send = &c->parts[n + me];
    if (self_recv->count > 0 && self_recv->buffer != self_send->buffer)
        memcpy(self_recv->buffer, self_send->buffer, self_recv->count * ptb_dtype_size(call->dtype));
    ptb_status status = PTB_OK;
    for (int i = 0; i < 2 * n && status == PTB_OK; i++)
        if (c->parts[i].count > 0 && c->parts[i].peer != me)
            status = ptb_mpi_group_add(group, &c->parts[i]);
    if (status == PTB_OK)
        status = ptb_mpi_messages_run(c, group);
    ptb_mpi_group_give(c, group);
    return status;
}

static ptb_status all_gather(ptb_comm_mpi *c, const ptb_coll *call)
{
    ptb_mpi_plan plan = ptb_mpi_plan_for(c, call);
    ptb_range mine = ptb_block(call->count, c->comm.size, c->comm.rank);
    bool in_place = ptb_mpi_in_place(c, call);
    const void *send = in_place ? MPI_IN_PLACE : call->send;
    MPI_Datatype type;
    int count;
    if (plan.call == PTB_MPI_MESSAGES)
        return by_messages(c, call);
    PTB_TRY(block_type(c, call, plan.big_blocks, mine.count, &type, &count));
    if (plan.call == PTB_MPI_ALL_GATHER)
        return ptb_mpi_check(MPI_Allgather(send, count, type, call->recv, count, type, c->mpi),
                             "MPI_Allgather");
    block_lists(c, call->count, c->recv_counts, c->recv_first);
    return ptb_mpi_check(
        MPI_Allgatherv(send, count, type, call->recv, c->recv_counts, c->recv_first, type, c->mpi),
        "MPI_Allgatherv");
}

static ptb_status gather(ptb_comm_mpi *c, const ptb_coll *call)
{
    ptb_mpi_plan plan = ptb_mpi_plan_for(c, call);
    ptb_range mine = ptb_block(call->count, c->comm.size, c->comm.rank);
    const void *send = ptb_mpi_in_place(c, call) ? MPI_IN_PLACE : call->send;
    MPI_Datatype type;
    int count;
    if (plan.call == PTB_MPI_MESSAGES)
        return by_messages(c, call);
    PTB_TRY(block_type(c, call, plan.big_blocks, mine.count, &type, &count));
    if (plan.call == PTB_MPI_GATHER)
        return ptb_mpi_check(MPI_Gather(send, count, type, call->recv, count, type, call->root, c->mpi),
                             "MPI_Gather");
    block_lists(c, call->count, c->recv_counts, c->recv_first);
    return ptb_mpi_check(
        MPI_Gatherv(send, count, type, call->recv, c->recv_counts, c->recv_first, type, call->root, c->mpi),
        "MPI_Gatherv");
}

static ptb_status scatter(ptb_comm_mpi *c, const ptb_coll *call)
{
    ptb_mpi_plan plan = ptb_mpi_plan_for(c, call);
    ptb_range mine = ptb_block(call->count, c->comm.size, c->comm.rank);
    void *recv = ptb_mpi_in_place(c, call) ? MPI_IN_PLACE : call->recv;
    MPI_Datatype type;
    int count;
    if (plan.call == PTB_MPI_MESSAGES)
        return by_messages(c, call);
    PTB_TRY(block_type(c, call, plan.big_blocks, mine.count, &type, &count));
    if (plan.call == PTB_MPI_SCATTER)
        return ptb_mpi_check(MPI_Scatter(call->send, count, type, recv, count, type, call->root, c->mpi),
                             "MPI_Scatter");
    block_lists(c, call->count, c->send_counts, c->send_first);
    return ptb_mpi_check(
        MPI_Scatterv(call->send, c->send_counts, c->send_first, type, recv, count, type, call->root, c->mpi),
        "MPI_Scatterv");
}

static ptb_status all_to_all(ptb_comm_mpi *c, const ptb_coll *call)
{
    ptb_mpi_plan plan = ptb_mpi_plan_for(c, call);
    int n = c->comm.size;
    ptb_range mine = ptb_block(call->count, n, c->comm.rank);
    MPI_Datatype type;
    int count;
    if (plan.call == PTB_MPI_MESSAGES)
        return by_messages(c, call);
    PTB_TRY(block_type(c, call, plan.big_blocks, mine.count, &type, &count));
    const void *send = call->send == call->recv ? MPI_IN_PLACE : call->send;
    if (plan.call == PTB_MPI_ALL_TO_ALL)
        return ptb_mpi_check(MPI_Alltoall(send, count, type, call->recv, count, type, c->mpi),
                             "MPI_Alltoall");
    block_lists(c, call->count, c->send_counts, c->send_first);
    for (int p = 0; p < n; p++) {
        c->recv_counts[p] = count;
        c->recv_first[p] = p * count;
    }
    return ptb_mpi_check(MPI_Alltoallv(call->send, c->send_counts, c->send_first, type, call->recv,
                                       c->recv_counts, c->recv_first, type, c->mpi),
                         "MPI_Alltoallv");
}

static ptb_status all_to_all_v(ptb_comm_mpi *c, const ptb_coll *call)
{
    if (ptb_mpi_plan_for(c, call).call == PTB_MPI_MESSAGES)
        return by_messages(c, call);
    for (int p = 0; p < c->comm.size; p++) {
        if (call->send_first[p] > INT_MAX || call->recv_first[p] > INT_MAX ||
            call->send_counts[p] > INT_MAX || call->recv_counts[p] > INT_MAX) {
            ptb_error(
                "all_to_all_v: counts or offsets of rank %d's part for rank %d are above 2^31 - 1 although "
                "the call says at most %zu elements",
                c->comm.rank, p, call->count);
            return PTB_INTERNAL;
        }
        c->send_counts[p] = (int)call->send_counts[p];
        c->send_first[p] = (int)call->send_first[p];
        c->recv_counts[p] = (int)call->recv_counts[p];
        c->recv_first[p] = (int)call->recv_first[p];
    }
    MPI_Datatype type = c->type[call->dtype];
    const void *send = call->send == call->recv ? MPI_IN_PLACE : call->send;
    return ptb_mpi_check(MPI_Alltoallv(send, c->send_counts, c->send_first, type, call->recv, c->recv_counts,
                                       c->recv_first, type, c->mpi),
                         "MPI_Alltoallv");
}

ptb_status ptb_mpi_run(ptb_comm_mpi *c, const ptb_coll *call)
{
    switch (call->kind) {
    case PTB_ALL_REDUCE:
        return all_reduce(c, call);
    case PTB_ALL_GATHER:
        return all_gather(c, call);
    case PTB_REDUCE_SCATTER:
        return reduce_scatter(c, call);
    case PTB_BROADCAST:
        return broadcast(c, call);
    case PTB_REDUCE:
        return reduce(c, call);
    case PTB_ALL_TO_ALL:
        return all_to_all(c, call);
    case PTB_ALL_TO_ALL_V:
        return all_to_all_v(c, call);
    case PTB_GATHER:
        return gather(c, call);
    case PTB_SCATTER:
        return scatter(c, call);
    default:
        return ptb_mpi_check(MPI_Barrier(c->mpi), "MPI_Barrier");
    }
}
