// `host`: ptbench's own algorithms between processes, over shared memory inside a host and MPI
// point-to-point between hosts.
#include "collectives/team_comm.h"

#include "core/log.h"

#include <string.h>

static const ptb_comm_ops host_ops;

static ptb_status host_open(ptb_world *world, const ptb_comm_config *config, ptb_comm **comm)
{
    const char *transport = config->transport;
    if (strcmp(world->ops->name, "local") == 0) {
        ptb_error("communicator host is between processes; between threads use communicator local");
        return PTB_UNSUPPORTED;
    }
    if (transport && strcmp(transport, "shm") && strcmp(transport, "mpi") && strcmp(transport, "shm+mpi")) {
        if (world->rank == 0)
            ptb_error("communicator host has no transport '%s'; it has 'shm', 'mpi' and 'shm+mpi'",
                      transport);
        return PTB_UNSUPPORTED; // the communicator mpi may have it
    }
    if (transport && strcmp(transport, "shm") == 0 && world->hosts > 1) {
        ptb_error("transport shm connects the ranks of one host, and these are on %d; use shm+mpi",
                  world->hosts);
        return PTB_UNSUPPORTED;
    }
    return ptb_team_comm_open(world, config, &host_ops, false, comm);
}

static const ptb_comm_ops host_ops = {
    .plugin = {.name = "host", .summary = "own algorithms over shared memory and MPI point-to-point"},
    .open = host_open,
    .close = ptb_team_comm_close,
    .algorithms = ptb_team_comm_algorithms,
    .supports = ptb_team_comm_supports,
    .alloc = ptb_team_comm_alloc,
    .free = ptb_team_comm_free,
    .collective = ptb_team_comm_collective,
    .group_begin = ptb_team_comm_group_begin,
    .group_end = ptb_team_comm_group_end,
    .send = ptb_team_comm_send,
    .recv = ptb_team_comm_recv,
    .describe = ptb_team_comm_describe,
};
PTB_REGISTER(PTB_KIND_COMM, host_ops);
