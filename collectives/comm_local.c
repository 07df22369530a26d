// `local`: the algorithms of `host` between threads of one process (collectives/world_local.c), for tests
// without a launcher. Memory that ptb_comm_ops.alloc gave counts as mapped by all, other memory as private,
// so that both ways of moving data run here as they do between processes.
#include "collectives/team_comm.h"

#include "core/log.h"

#include <string.h>

static const ptb_comm_ops local_ops;

static ptb_status local_open(ptb_world *world, const ptb_comm_config *config, ptb_comm **comm)
{
    if (strcmp(world->ops->name, "local")) {
        ptb_error("communicator local is between threads of one process, and the world is '%s'; use host",
                  world->ops->name);
        return PTB_UNSUPPORTED;
    }
    if (config->transport && strcmp(config->transport, "threads")) {
        ptb_error("communicator local has no transport '%s'; it has 'threads'", config->transport);
        return PTB_USAGE;
    }
    return ptb_team_comm_open(world, config, &local_ops, true, comm);
}

static const ptb_comm_ops local_ops = {
    .plugin = {.name = "local", .summary = "the algorithms of host between threads, for tests"},
    .open = local_open,
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
PTB_REGISTER(PTB_KIND_COMM, local_ops);
