// A communicator named `faulty`: `local`, with a fault in every reduction of f32: undone on one rank (which
// takes part), or scaled on all. On the host.
#ifndef PTB_TESTS_UNIT_DATA_FAULTY_H
#define PTB_TESTS_UNIT_DATA_FAULTY_H

#include "collectives/comm.h"

#include <stdlib.h>
#include <string.h>

typedef enum { FAULT_NONE, FAULT_SKIPPED, FAULT_SCALED } data_fault;
static data_fault faulty_kind; // set between runs

static ptb_comm_ops faulty_ops, faulty_inner; // both filled before the first run

typedef struct {
    float *values, *saved;
    size_t count;
} faulty_call;

static inline ptb_status faulty_save(void *arg)
{
    faulty_call *c = arg;
    memcpy(c->saved, c->values, c->count * sizeof(float));
    return PTB_OK;
}

static inline ptb_status faulty_restore(void *arg)
{
    faulty_call *c = arg;
    memcpy(c->values, c->saved, c->count * sizeof(float));
    free(c->saved);
    return PTB_OK;
}

static inline ptb_status faulty_scale(void *arg)
{
    faulty_call *c = arg;
    for (size_t i = 0; i < c->count; i++)
        c->values[i] *= 0.5f;
    return PTB_OK;
}

static inline ptb_status faulty_collective(ptb_comm *comm, const ptb_coll *call, ptb_stream *stream)
{
    bool reduces = call->kind == PTB_ALL_REDUCE || call->kind == PTB_REDUCE_SCATTER;
    bool skips = faulty_kind == FAULT_SKIPPED && comm->rank == 1;
    if (!reduces || call->dtype != PTB_F32 || faulty_kind == FAULT_NONE ||
        (faulty_kind == FAULT_SKIPPED && !skips))
        return faulty_inner.collective(comm, call, stream);
    size_t count =
        call->kind == PTB_ALL_REDUCE ? call->count : ptb_block(call->count, comm->size, comm->rank).count;
    faulty_call fault = {call->recv, NULL, count};
    if (!skips) {
        PTB_TRY(faulty_inner.collective(comm, call, stream));
        return ptb_stream_call(stream, faulty_scale, &fault, sizeof fault);
    }
    fault.saved = malloc(count * sizeof(float) + 1);
    PTB_TRY(ptb_stream_call(stream, faulty_save, &fault, sizeof fault));
    PTB_TRY(faulty_inner.collective(comm, call, stream));
    return ptb_stream_call(stream, faulty_restore, &fault, sizeof fault);
}

static inline ptb_status faulty_open(ptb_world *world, const ptb_comm_config *config, ptb_comm **comm)
{
    PTB_TRY(ptb_comm_open("local", world, config, comm));
    (*comm)->ops = &faulty_ops;
    return PTB_OK;
}

static const char *const *faulty_algorithms(ptb_coll_kind kind)
{
    return ((const ptb_comm_ops *)ptb_registry_find(PTB_KIND_COMM, "local"))->algorithms(kind);
}

static const ptb_comm_ops faulty_comm = {.plugin = {"faulty", "local with a planted fault, for tests"},
                                         .open = faulty_open,
                                         .algorithms = faulty_algorithms};
PTB_REGISTER(PTB_KIND_COMM, faulty_comm);

static inline void faulty_plant(data_fault kind)
{
    faulty_inner = *(const ptb_comm_ops *)ptb_registry_find(PTB_KIND_COMM, "local");
    faulty_ops = faulty_inner;
    faulty_ops.collective = faulty_collective;
    faulty_kind = kind;
}

#endif
