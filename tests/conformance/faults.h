// Communicators that are wrong on purpose, around a right one: the checks must find each of them.
//   fault_nothing  a collective that does nothing
//   fault_drop     the last part of the result is left as it was
//   fault_order    ranks are counted from the other end (but the root is right), so that parts land in the
//   wrong place
#ifndef PTB_TESTS_CONFORMANCE_FAULTS_H
#define PTB_TESTS_CONFORMANCE_FAULTS_H

#include "collectives/collective.h"
#include "collectives/comm.h"

#include <stdlib.h>
#include <string.h>

#ifndef FAULTS_WRAP
#define FAULTS_WRAP "local"
#endif

enum { DROP_MAX = 64 };

typedef struct {
    ptb_comm comm;
    ptb_comm *inner;
    ptb_world *reversed; // fault_order: the same ranks in reverse order
} faulty;

static ptb_status faulty_open(const ptb_comm_ops *ops, ptb_world *world, bool reverse,
                              const ptb_comm_config *config, ptb_comm **out)
{
    faulty *f = calloc(1, sizeof *f);
    f->comm = (ptb_comm){.ops = ops, .world = world, .rank = world->rank, .size = world->size};
    ptb_status status = PTB_OK;
    if (reverse)
        status = ptb_world_split(world, 0, -world->rank, &f->reversed);
    if (status == PTB_OK)
        status = ptb_comm_open(FAULTS_WRAP, reverse ? f->reversed : world, config, &f->inner);
    if (status == PTB_OK)
        *out = &f->comm;
    else
        free(f);
    return status;
}

static void faulty_close(ptb_comm *comm)
{
    faulty *f = (faulty *)comm;
    ptb_comm_close(f->inner);
    ptb_world_close(f->reversed);
    free(f);
}

static const char *const *faulty_algorithms(ptb_coll_kind kind)
{
    static const char *const none[] = {NULL};
    (void)kind;
    return none;
}

static bool faulty_supports(ptb_comm *comm, const ptb_coll *call, bool in_place, char *reason)
{
    ptb_comm *inner = ((faulty *)comm)->inner;
    return inner->ops->supports(inner, call, in_place, reason);
}

static ptb_status faulty_alloc(ptb_comm *comm, size_t bytes, void **memory)
{
    ptb_comm *inner = ((faulty *)comm)->inner;
    return inner->ops->alloc(inner, bytes, memory);
}

static void faulty_free(ptb_comm *comm, void *memory)
{
    ptb_comm *inner = ((faulty *)comm)->inner;
    inner->ops->free(inner, memory);
}

static ptb_status faulty_begin(ptb_comm *comm)
{
    ptb_comm *inner = ((faulty *)comm)->inner;
    return inner->ops->group_begin(inner);
}

static ptb_status faulty_end(ptb_comm *comm, ptb_stream *stream)
{
    ptb_comm *inner = ((faulty *)comm)->inner;
    return inner->ops->group_end(inner, stream);
}

static ptb_status faulty_send(ptb_comm *comm, const void *buffer, size_t count, ptb_dtype dtype, int peer,
                              ptb_stream *stream)
{
    ptb_comm *inner = ((faulty *)comm)->inner;
    return inner->ops->send(inner, buffer, count, dtype, peer, stream);
}

static void faulty_describe(ptb_comm *comm, const ptb_coll *call, ptb_params *facts)
{
    (void)comm, (void)call;
    ptb_params_set(facts, "algorithm", "planted fault");
}

static ptb_status nothing(ptb_comm *comm, const ptb_coll *call, ptb_stream *stream)
{
    (void)comm, (void)call, (void)stream;
    return PTB_OK;
}

static ptb_status nothing_recv(ptb_comm *comm, void *buffer, size_t count, ptb_dtype dtype, int peer,
                               ptb_stream *stream)
{
    (void)comm, (void)buffer, (void)count, (void)dtype, (void)peer, (void)stream;
    return PTB_OK;
}

static ptb_status nothing_send(ptb_comm *comm, const void *buffer, size_t count, ptb_dtype dtype, int peer,
                               ptb_stream *stream)
{
    (void)comm, (void)buffer, (void)count, (void)dtype, (void)peer, (void)stream;
    return PTB_OK;
}

// Lets the right communicator work, then puts back what the last elements of the result held.
static ptb_status drop(ptb_comm *comm, const ptb_coll *call, ptb_stream *stream)
{
    const ptb_collective *coll = (const ptb_collective *)(const void *)ptb_registry_find(
        PTB_KIND_COLLECTIVE, ptb_coll_name(call->kind));
    ptb_coll_shape shape;
    coll->shape(call->count, comm->size, comm->rank, call->root, &shape);
    size_t element = ptb_dtype_size(call->dtype),
           chunk = shape.recv_count < DROP_MAX / 8 ? shape.recv_count : DROP_MAX / 8;
    char kept[DROP_MAX], *tail = (char *)call->recv + (shape.recv_count - chunk) * element;
    if (chunk)
        memcpy(kept, tail, chunk * element);
    PTB_TRY(ptb_comm_collective(((faulty *)comm)->inner, call, stream));
    PTB_TRY(ptb_stream_sync(stream));
    if (chunk)
        memcpy(tail, kept, chunk * element);
    return PTB_OK;
}

static ptb_status pass(ptb_comm *comm, const ptb_coll *call, ptb_stream *stream)
{
    ptb_coll turned = *call;
    turned.root = comm->size - 1 - call->root;
    return ptb_comm_collective(((faulty *)comm)->inner, &turned, stream);
}

static ptb_status pass_recv(ptb_comm *comm, void *buffer, size_t count, ptb_dtype dtype, int peer,
                            ptb_stream *stream)
{
    ptb_comm *inner = ((faulty *)comm)->inner;
    return inner->ops->recv(inner, buffer, count, dtype, peer, stream);
}

// One descriptor a fault: its open function and the calls that differ.
#define FAULT(name_, summary_, reverse_, collective_, send_, recv_)                                          \
    static ptb_status open_##name_(ptb_world *world, const ptb_comm_config *config, ptb_comm **comm);        \
    static const ptb_comm_ops name_ = {.plugin = {#name_, summary_},                                         \
                                       .open = open_##name_,                                                 \
                                       .close = faulty_close,                                                \
                                       .algorithms = faulty_algorithms,                                      \
                                       .supports = faulty_supports,                                          \
                                       .alloc = faulty_alloc,                                                \
                                       .free = faulty_free,                                                  \
                                       .collective = collective_,                                            \
                                       .group_begin = faulty_begin,                                          \
                                       .group_end = faulty_end,                                              \
                                       .send = send_,                                                        \
                                       .recv = recv_,                                                        \
                                       .describe = faulty_describe};                                         \
    static ptb_status open_##name_(ptb_world *world, const ptb_comm_config *config, ptb_comm **comm)         \
    {                                                                                                        \
        return faulty_open(&name_, world, reverse_, config, comm);                                           \
    }                                                                                                        \
    PTB_REGISTER(PTB_KIND_COMM, name_)

FAULT(fault_nothing, "does nothing", false, nothing, nothing_send, nothing_recv);
FAULT(fault_drop, "loses the last part of each result", false, drop, faulty_send, pass_recv);
FAULT(fault_order, "counts ranks from the other end", true, pass, faulty_send, pass_recv);

#endif
