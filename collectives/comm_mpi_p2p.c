// Messages of the `mpi` communicator: single blocking ones, and groups that are done as one. A group that is
// enqueued on a worker stream belongs to it until it has run, then goes to the free list, so that a timed
// loop allocates nothing after its first rounds.
#include "collectives/comm_mpi.h"
#include "collectives/world_mpi.h"
#include "core/log.h"

#include <stdlib.h>
#include <string.h>

enum { TAG = 1 };

// ---- groups

ptb_mpi_group *ptb_mpi_group_take(ptb_comm_mpi *c)
{
    pthread_mutex_lock(&c->spare_mutex);
    ptb_mpi_group *group = c->spare;
    if (group)
        c->spare = group->next;
    pthread_mutex_unlock(&c->spare_mutex);
    if (!group && !(group = calloc(1, sizeof *group)))
        ptb_error("no memory for a group of messages");
    if (group)
        group->count = 0;
    return group;
}

void ptb_mpi_group_give(ptb_comm_mpi *c, ptb_mpi_group *group)
{
    pthread_mutex_lock(&c->spare_mutex);
    group->next = c->spare;
    c->spare = group;
    pthread_mutex_unlock(&c->spare_mutex);
}

static void group_free(ptb_mpi_group *group)
{
    if (!group)
        return;
    free(group->messages);
    free(group->requests);
    free(group);
}

void ptb_mpi_groups_free(ptb_comm_mpi *c)
{
    group_free(c->open);
    while (c->spare) {
        ptb_mpi_group *next = c->spare->next;
        group_free(c->spare);
        c->spare = next;
    }
}

// Makes room for `wanted` items of `size` bytes.
static ptb_status reserve(void **items, size_t *capacity, size_t wanted, size_t size)
{
    if (wanted <= *capacity)
        return PTB_OK;
    size_t larger = 2 * wanted > 16 ? 2 * wanted : 16;
    void *moved = realloc(*items, larger * size);
    if (!moved) {
        ptb_error("no memory for %zu messages", larger);
        return PTB_NO_MEMORY;
    }
    *items = moved;
    *capacity = larger;
    return PTB_OK;
}

ptb_status ptb_mpi_group_add(ptb_mpi_group *group, const ptb_mpi_message *message)
{
    void *items = group->messages;
    PTB_TRY(reserve(&items, &group->capacity, group->count + 1, sizeof *message));
    group->messages = items;
    group->messages[group->count++] = *message;
    return PTB_OK;
}

static size_t pieces(const ptb_comm_mpi *c, size_t count)
{
    return count > c->limit ? (count + c->limit - 1) / c->limit : 1;
}

// Starts all pieces of one message; adds to *started.
static int start_message(ptb_comm_mpi *c, const ptb_mpi_message *m, MPI_Request *requests, size_t *started)
{
    MPI_Datatype type = c->type[m->dtype];
    char *at = m->buffer;
    size_t left = m->count;
    do {
        int part = (int)(left < c->limit ? left : c->limit);
        MPI_Request *request = &requests[*started];
        int code = m->send ? MPI_Isend(at, part, type, m->peer, TAG, c->mpi, request)
                           : MPI_Irecv(at, part, type, m->peer, TAG, c->mpi, request);
        if (code != MPI_SUCCESS)
            return code;
        ++*started;
        at += (size_t)part * ptb_dtype_size(m->dtype);
        left -= (size_t)part;
    } while (left > 0);
    return MPI_SUCCESS;
}

ptb_status ptb_mpi_messages_run(ptb_comm_mpi *c, ptb_mpi_group *group)
{
    size_t total = 0, started = 0;
    for (size_t i = 0; i < group->count; i++)
        total += pieces(c, group->messages[i].count);
    void *items = group->requests;
    PTB_TRY(reserve(&items, &group->request_capacity, total, sizeof *group->requests));
    group->requests = items;
    // Receives first, so that data finds its place when it comes.
    for (int send = 0; send <= 1; send++)
        for (size_t i = 0; i < group->count; i++)
            if (group->messages[i].send == (send == 1))
                PTB_TRY(ptb_mpi_check(start_message(c, &group->messages[i], group->requests, &started),
                                      send ? "MPI_Isend" : "MPI_Irecv"));
    return ptb_mpi_check(MPI_Waitall((int)started, group->requests, MPI_STATUSES_IGNORE), "MPI_Waitall");
}

// ---- streams

ptb_status ptb_mpi_enqueue(ptb_comm_mpi *c, ptb_stream *stream, ptb_call_fn *fn, const void *arg,
                           size_t bytes)
{
    if (!c->threads) {
        ptb_error("a worker stream calls the MPI library, but it was started for one thread: open the world "
                  "with threads");
        return PTB_UNSUPPORTED;
    }
    return ptb_stream_call(stream, fn, arg, bytes);
}

typedef struct {
    ptb_comm_mpi *comm;
    ptb_mpi_message message;
} message_call;

static ptb_status blocking(ptb_comm_mpi *c, const ptb_mpi_message *m)
{
    MPI_Datatype type = c->type[m->dtype];
    char *at = m->buffer;
    size_t left = m->count;
    do {
        int part = (int)(left < c->limit ? left : c->limit);
        int code = m->send ? MPI_Send(at, part, type, m->peer, TAG, c->mpi)
                           : MPI_Recv(at, part, type, m->peer, TAG, c->mpi, MPI_STATUS_IGNORE);
        PTB_TRY(ptb_mpi_check(code, m->send ? "MPI_Send" : "MPI_Recv"));
        at += (size_t)part * ptb_dtype_size(m->dtype);
        left -= (size_t)part;
    } while (__builtin_expect(left > 0, 0));
    return PTB_OK;
}

static ptb_status run_message(void *arg)
{
    message_call *call = arg;
    return blocking(call->comm, &call->message);
}

static ptb_status message(ptb_comm_mpi *c, const ptb_mpi_message *m, ptb_stream *stream)
{
    if (c->depth > 0)
        return ptb_mpi_group_add(c->open, m);
    bool now;
    PTB_TRY(ptb_mpi_now(c, stream, &now));
    if (now)
        return blocking(c, m);
    message_call call = {c, *m};
    return ptb_mpi_enqueue(c, stream, run_message, &call, sizeof call);
}

ptb_status ptb_mpi_send(ptb_comm *comm, const void *buffer, size_t count, ptb_dtype dtype, int peer,
                        ptb_stream *stream)
{
    return message((ptb_comm_mpi *)comm, &(ptb_mpi_message){(void *)buffer, count, dtype, peer, true},
                   stream);
}

ptb_status ptb_mpi_recv(ptb_comm *comm, void *buffer, size_t count, ptb_dtype dtype, int peer,
                        ptb_stream *stream)
{
    return message((ptb_comm_mpi *)comm, &(ptb_mpi_message){buffer, count, dtype, peer, false}, stream);
}

ptb_status ptb_mpi_group_begin(ptb_comm *comm)
{
    ptb_comm_mpi *c = (ptb_comm_mpi *)comm;
    if (c->depth == 0 && !(c->open = ptb_mpi_group_take(c)))
        return PTB_NO_MEMORY;
    c->depth++;
    return PTB_OK;
}

typedef struct {
    ptb_comm_mpi *comm;
    ptb_mpi_group *group;
} group_call;

static ptb_status run_group(void *arg)
{
    group_call *call = arg;
    ptb_status status = ptb_mpi_messages_run(call->comm, call->group);
    ptb_mpi_group_give(call->comm, call->group);
    return status;
}

ptb_status ptb_mpi_group_end(ptb_comm *comm, ptb_stream *stream)
{
    ptb_comm_mpi *c = (ptb_comm_mpi *)comm;
    if (c->depth == 0) {
        ptb_error("group_end without group_begin");
        return PTB_INTERNAL;
    }
    if (--c->depth > 0)
        return PTB_OK;
    group_call call = {c, c->open};
    c->open = NULL;
    bool now;
    ptb_status status = ptb_mpi_now(c, stream, &now);
    if (status == PTB_OK && now)
        return run_group(&call);
    if (status == PTB_OK)
        status = ptb_mpi_enqueue(c, stream, run_group, &call, sizeof call);
    if (status != PTB_OK)
        ptb_mpi_group_give(c, call.group);
    return status;
}
