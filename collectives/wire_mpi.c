// The wire between hosts: MPI point-to-point on a duplicate of the world's communicator, so that nothing else
// can match its messages. One tag: messages of a pair arrive in the order they were sent.
#include "collectives/comm_mpi.h"
#include "collectives/wire.h"
#include "collectives/world_mpi.h"
#include "core/log.h"

#include <stdlib.h>
#include <string.h>

enum { TAG = 1 };

typedef struct {
    MPI_Request request;
    void *data; // memory for a receive that is folded from here
    size_t capacity;
    bool folds; // the current receive goes to `data`
    bool used;
} slot;

struct ptb_wire_mpi {
    MPI_Comm comm;
    slot *slots;
    int count, capacity;
    char transport[104], devices[104]; // of the library
};

ptb_status ptb_wire_mpi_open(ptb_team *team, struct ptb_wire_mpi **out)
{
    MPI_Comm world = ptb_world_mpi_comm(team->world);
    if (world == MPI_COMM_NULL) {
        ptb_error("the ranks do not all share memory and the world is not over MPI: nothing connects them");
        return PTB_UNSUPPORTED;
    }
    if (team->config.threads && !ptb_world_mpi_threads(team->world)) {
        ptb_error("several threads will use the wire between hosts, but the MPI library was started without "
                  "MPI_THREAD_MULTIPLE; use an MPI library that provides it");
        return PTB_UNSUPPORTED;
    }
    struct ptb_wire_mpi *mpi = calloc(1, sizeof *mpi);
    PTB_TRY(ptb_world_agree(team->world, mpi ? PTB_OK : PTB_NO_MEMORY));
    ptb_status status = ptb_mpi_check(MPI_Comm_dup(world, &mpi->comm), "MPI_Comm_dup");
    if (status == PTB_OK)
        status =
            ptb_mpi_check(MPI_Comm_set_errhandler(mpi->comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    if (status == PTB_OK)
        status = ptb_mpi_transport_find(team->world, mpi->transport, mpi->devices);
    if (status != PTB_OK) {
        free(mpi);
        return status;
    }
    *out = mpi;
    return PTB_OK;
}

void ptb_wire_mpi_close(struct ptb_wire_mpi *mpi, bool broken)
{
    for (int i = 0; i < mpi->count; i++)
        free(mpi->slots[i].data);
    free(mpi->slots);
    if (!broken) // collective: it would wait for the lost rank
        MPI_Comm_free(&mpi->comm);
    free(mpi);
}

static slot *take_slot(struct ptb_wire_mpi *mpi, int *request)
{
    int i = 0;
    while (i < mpi->count && mpi->slots[i].used)
        i++;
    if (i == mpi->capacity) {
        int capacity = mpi->capacity ? 2 * mpi->capacity : 32;
        slot *slots = realloc(mpi->slots, (size_t)capacity * sizeof *slots);
        if (!slots) {
            ptb_error("out of memory for %d MPI requests", capacity);
            return NULL;
        }
        mpi->slots = slots;
        mpi->capacity = capacity;
    }
    if (i == mpi->count)
        mpi->slots[mpi->count++] = (slot){.request = MPI_REQUEST_NULL};
    mpi->slots[i].used = true;
    *request = i;
    return &mpi->slots[i];
}

ptb_status ptb_wire_mpi_send(struct ptb_wire_mpi *mpi, int peer, const void *from, size_t bytes, int *request)
{
    slot *s = take_slot(mpi, request);
    if (!s)
        return PTB_NO_MEMORY;
    s->folds = false;
    return ptb_mpi_check(MPI_Isend(from, (int)bytes, MPI_BYTE, peer, TAG, mpi->comm, &s->request),
                         "MPI_Isend");
}

ptb_status ptb_wire_mpi_recv(struct ptb_wire_mpi *mpi, int peer, void *to, size_t bytes, int *request)
{
    slot *s = take_slot(mpi, request);
    if (!s)
        return PTB_NO_MEMORY;
    s->folds = !to && bytes;
    if (s->folds && s->capacity < bytes) {
        free(s->data);
        s->data = aligned_alloc(64, (bytes + 63) / 64 * 64);
        s->capacity = s->data ? bytes : 0;
        if (!s->data) {
            ptb_error("out of memory for a segment of %zu bytes; use a smaller segment size", bytes);
            return PTB_NO_MEMORY;
        }
    }
    return ptb_mpi_check(
        MPI_Irecv(s->folds ? s->data : to, (int)bytes, MPI_BYTE, peer, TAG, mpi->comm, &s->request),
        "MPI_Irecv");
}

ptb_status ptb_wire_mpi_test(struct ptb_wire_mpi *mpi, int request, bool *done, const void **data)
{
    slot *s = &mpi->slots[request];
    int flag = 0;
    PTB_TRY(ptb_mpi_check(MPI_Test(&s->request, &flag, MPI_STATUS_IGNORE), "MPI_Test"));
    *done = flag != 0;
    *data = s->data;
    return PTB_OK;
}

void ptb_wire_mpi_release(struct ptb_wire_mpi *mpi, int request)
{
    mpi->slots[request].used = false;
}

void ptb_wire_mpi_describe(const struct ptb_wire_mpi *mpi, const ptb_team *team, ptb_params *facts)
{
    // "shm(...)+tcp": where members share memory, only messages between hosts are left to MPI.
    const char *between = team->peers[team->rank].control ? strchr(mpi->transport, '+') : NULL;
    ptb_params_set(facts, "mpi_transport", "%s", between ? between + 1 : mpi->transport);
    if (mpi->devices[0])
        ptb_params_set(facts, "devices", "%s", mpi->devices);
}
