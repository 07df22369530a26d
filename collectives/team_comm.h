// What the communicators over a team (`host`: processes, `local`: threads) have in common: everything but how
// they are opened.
#ifndef PTB_COLLECTIVES_TEAM_COMM_H
#define PTB_COLLECTIVES_TEAM_COMM_H

#include "collectives/algorithm.h"
#include "collectives/auto.h"

struct ptb_team_batch;

typedef struct {
    ptb_comm comm;
    ptb_team *team;
    const ptb_algorithm *algorithm; // NULL: chosen call by call (collectives/auto.h)
    ptb_auto *choice;
    struct ptb_team_batch *open_group, *batches;
    int group_depth;
} ptb_team_comm;

ptb_status ptb_team_comm_open(ptb_world *world, const ptb_comm_config *config, const ptb_comm_ops *ops,
                              bool threads, ptb_comm **comm);
void ptb_team_comm_close(ptb_comm *comm);
const char *const *ptb_team_comm_algorithms(ptb_coll_kind kind);
bool ptb_team_comm_supports(ptb_comm *comm, const ptb_coll *call, bool in_place, char *reason);
ptb_status ptb_team_comm_alloc(ptb_comm *comm, size_t bytes, void **memory);
void ptb_team_comm_free(ptb_comm *comm, void *memory);
ptb_status ptb_team_comm_collective(ptb_comm *comm, const ptb_coll *call, ptb_stream *stream);
ptb_status ptb_team_comm_group_begin(ptb_comm *comm);
ptb_status ptb_team_comm_group_end(ptb_comm *comm, ptb_stream *stream);
ptb_status ptb_team_comm_send(ptb_comm *comm, const void *buffer, size_t count, ptb_dtype dtype, int peer,
                              ptb_stream *stream);
ptb_status ptb_team_comm_recv(ptb_comm *comm, void *buffer, size_t count, ptb_dtype dtype, int peer,
                              ptb_stream *stream);
void ptb_team_comm_describe(ptb_comm *comm, const ptb_coll *call, ptb_params *facts);

#endif
