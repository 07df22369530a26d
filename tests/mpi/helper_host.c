// helper_host conform [LARGEST]|lost ALGORITHM|auto: what test_host.sh starts under mpirun.
//   conform  every algorithm over shared memory, over MPI, and over both on two pretended hosts
//   lost     rank 1 is killed in the middle; the others must get LOST within seconds
//   auto     measures the table, and shows what a call gets by it
#include "collectives/auto.h"
#include "collectives/world.h"
#include "core/clock.h"
#include "tests/unit/algorithm_checks.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static ptb_status conform_over(ptb_world *world, const char *transport, size_t largest)
{
    for (size_t i = 0; i < ptb_registry_count(PTB_KIND_ALGORITHM); i++) {
        const ptb_algorithm *a = (const ptb_algorithm *)(const void *)ptb_registry_at(PTB_KIND_ALGORITHM, i);
        if (a->needs_shared && strcmp(transport, "shm") && world->size > 1)
            continue;
        for (int private = 0; private < 2; private ++) {
            algorithm_setup setup = {.comm = "host",
                                     .algorithm = a->plugin.name,
                                     .transport = transport,
                                     .private = private,
                                     .segment_bytes = private ? 4096 : 0,
                                     .largest = largest};
            PTB_TRY(check_algorithm(world, &setup));
        }
    }
    return PTB_OK;
}

static ptb_status conform(ptb_world *world, size_t largest)
{
    PTB_TRY(conform_over(world, "shm", largest));
    PTB_TRY(conform_over(world, "mpi", largest));
    if (world->size < 3)
        return PTB_OK;
    // Even and odd ranks on two pretended hosts; the world's own view is put back before it is closed.
    ptb_world own = *world;
    int host_of[MAX_RANKS];
    for (int r = 0; r < world->size; r++)
        host_of[r] = r % 2;
    world->host_of = host_of;
    world->hosts = 2;
    world->host = world->rank % 2;
    world->local_rank = world->rank / 2;
    world->local_size = (world->size + 1 - world->host) / 2;
    ptb_status status = conform_over(world, "shm+mpi", largest);
    *world = own;
    return status;
}

// All-reduces without end, until rank 1 kills itself. It leaves its last call with a part of everybody's in
// its result; in that one the others may still wait for each other, and see that it is gone.
static ptb_status lose(ptb_world *world, const char *algorithm, size_t count)
{
    enum { CALLS = 200 };
    ptb_device *device;
    ptb_stream *stream;
    ptb_comm *comm;
    void *send, *recv;
    ptb_comm_config config = {.algorithm = algorithm};
    PTB_TRY(ptb_device_open("host", 0, &device));
    PTB_TRY(ptb_stream_new(device, PTB_STREAM_CALLER, 0, &stream));
    PTB_TRY(ptb_comm_open("host", world, &config, &comm));
    PTB_TRY(comm->ops->alloc(comm, count * 4, &send));
    PTB_TRY(comm->ops->alloc(comm, count * 4, &recv));
    ptb_coll call = {.kind = PTB_ALL_REDUCE, .send = send, .recv = recv, .count = count, .dtype = PTB_F32};
    for (int i = 0;; i++) {
        if (i == CALLS && world->rank == 1)
            raise(SIGKILL);
        int64_t begin = ptb_clock_ns();
        ptb_status status = ptb_comm_collective(comm, &call, stream);
        if (status == PTB_OK && i < 1000000)
            continue;
        fprintf(stderr, "rank %d: call %s returned %s within %s\n", world->rank,
                i < CALLS - 1 ? "early" : "late", ptb_status_name(status),
                ptb_clock_ns() - begin < (int64_t)10e9 ? "seconds" : "too long");
        return status;
    }
}

static ptb_status choose(ptb_world *world)
{
    ptb_comm *comm;
    ptb_comm_config config = {.algorithm = "auto", .measure = true};
    PTB_TRY(ptb_comm_open("host", world, &config, &comm));
    static char buffer[2][64];
    ptb_coll call = {
        .kind = PTB_ALL_REDUCE, .send = buffer[0], .recv = buffer[1], .count = 2, .dtype = PTB_F32};
    ptb_params facts = {.count = 0};
    comm->ops->describe(comm, &call, &facts);
    if (world->rank == world->size - 1)
        for (size_t i = 0; i < facts.count; i++)
            printf("fact %s=%s\n", facts.items[i].name, facts.items[i].value);
    ptb_comm_close(comm);
    return PTB_OK;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "conform";
    ptb_world *world = NULL;
    ptb_status status = ptb_world_open_mpi(false, &world);
    if (status != PTB_OK)
        return 10 + ptb_status_exit_code(status);
    if (strcmp(what, "lost") == 0) {
        status = lose(world, argv[2], (size_t)atoi(argv[3]));
        _exit(status == PTB_LOST ? 0 : 1); // the library cannot be ended any more
    }
    status = strcmp(what, "auto") == 0 ? choose(world)
                                       : conform(world, argc > 2 ? (size_t)atoi(argv[2]) : LARGEST);
    if (status != PTB_OK)
        ptb_world_abort(world, 20 + ptb_status_exit_code(status));
    if (world->rank == 0)
        printf("%s, %d ranks: good\n", what, world->size);
    ptb_world_close(world);
    return 0;
}
