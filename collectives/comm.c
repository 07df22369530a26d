// Names of collectives, and opening a communicator by the name of its back-end. The back-ends are the
// comm_X.c files beside this one; nothing here knows them.
#include "collectives/comm.h"

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
