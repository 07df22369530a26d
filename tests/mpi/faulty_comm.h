// A communicator named `faulty`: `host`, but on one rank the gradients' all-reduce comes back undone (the
// other ranks see it take part). With rank -1 nothing is wrong, so a test can show that the fault alone turns
// it red.
#ifndef PTB_TESTS_MPI_FAULTY_COMM_H
#define PTB_TESTS_MPI_FAULTY_COMM_H

#include "collectives/comm.h"

#include <stdlib.h>
#include <string.h>

static int faulty_rank = -1;

static void faulty_comm_set_rank(int rank)
{
    faulty_rank = rank;
}

static ptb_comm_ops faulty_inner; // the real ones, filled by open

typedef struct {
    void *to, *from;
    size_t bytes;
} faulty_restore;

static ptb_status faulty_undo(void *arg)
{
    faulty_restore *r = arg;
    memcpy(r->to, r->from, r->bytes);
    free(r->from);
    return PTB_OK;
}

static ptb_status faulty_save(void *arg)
{
    faulty_restore *r = arg;
    memcpy(r->from, r->to, r->bytes);
    return PTB_OK;
}

static ptb_status faulty_collective(ptb_comm *comm, const ptb_coll *call, ptb_stream *stream)
{
    size_t bytes = call->count * ptb_dtype_size(call->dtype);
    if (comm->rank != faulty_rank || call->dtype != PTB_F32)
        return faulty_inner.collective(comm, call, stream);
    faulty_restore restore = {call->recv, malloc(bytes), bytes};
    PTB_TRY(ptb_stream_call(stream, faulty_save, &restore, sizeof restore));
    PTB_TRY(faulty_inner.collective(comm, call, stream));
    return ptb_stream_call(stream, faulty_undo, &restore, sizeof restore);
}

static ptb_status faulty_open(ptb_world *world, const ptb_comm_config *config, ptb_comm **comm)
{
    static ptb_comm_ops ops;
    PTB_TRY(ptb_comm_open("host", world, config, comm));
    faulty_inner = *(*comm)->ops;
    ops = faulty_inner;
    ops.collective = faulty_collective;
    (*comm)->ops = &ops;
    return PTB_OK;
}

static const char *const *faulty_algorithms(ptb_coll_kind kind)
{
    return ((const ptb_comm_ops *)ptb_registry_find(PTB_KIND_COMM, "host"))->algorithms(kind);
}

static const ptb_comm_ops faulty_comm = {.plugin = {"faulty", "host with a planted fault, for tests"},
                                         .open = faulty_open,
                                         .algorithms = faulty_algorithms};
PTB_REGISTER(PTB_KIND_COMM, faulty_comm);

#endif
