// Names of collectives, and opening a communicator by the name of its back-end. The back-ends are the
// comm_X.c files beside this one; nothing here knows them.
#include "collectives/comm.h"

#include <stdio.h>
#include <string.h>

const char *ptb_coll_name(ptb_coll_kind kind)
{
    static const char *const names[] = {
#define X(upper, lower) [PTB_##upper] = #lower,
        PTB_COLL_LIST(X)
#undef X
    };
    return names[kind];
}

ptb_status ptb_comm_open(const char *name, ptb_world *world, const ptb_comm_config *config, ptb_comm **comm)
{
    const ptb_comm_ops *ops = (const ptb_comm_ops *)ptb_registry_need(PTB_KIND_COMM, name);
    if (!ops)
        return PTB_USAGE;
    return ops->open(world, config, comm);
}

void ptb_comm_close(ptb_comm *comm)
{
    if (comm)
        comm->ops->close(comm);
}

const char *ptb_comm_device(const ptb_comm_ops *ops)
{
    return ops->device ? ops->device : "host";
}

bool ptb_comm_moves(const ptb_comm_ops *ops, const char *device, char *reason)
{
    if (strcmp(ptb_comm_device(ops), device) == 0)
        return true;
    if (ops->moves)
        return ops->moves(device, reason);
    snprintf(reason, PTB_REASON_BYTES, "communicator %s moves memory of the device %s, not of %s",
             ops->plugin.name, ptb_comm_device(ops), device);
    return false;
}
