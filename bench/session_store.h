// The store as a session uses it: opening the run with everything that is known about its conditions.
#ifndef PTB_BENCH_SESSION_STORE_H
#define PTB_BENCH_SESSION_STORE_H

#include "bench/session.h"
#include "core/topology.h"
#include "results/store.h"

typedef struct {
    ptb_store *store; // on rank 0 only
    int64_t run, repetition;
    int repetition_index;
    char *database;
} ptb_session_store;

// Collective. Measures clock and loop, gathers topologies and opens run and repetition on rank 0.
ptb_status ptb_session_store_open(const ptb_plan *plan, const ptb_run_origin *origin, ptb_world *world,
                                  const ptb_topology *topology, ptb_session_store *out);
// Collective: the keys of the repetition that are done already, on all ranks; heap strings in a heap array.
// Where the store was not opened, the database is only read.
ptb_status ptb_session_done_keys(const ptb_session_store *store, const ptb_plan *plan,
                                 const ptb_run_origin *origin, ptb_world *world, char ***keys, size_t *count);
void ptb_session_store_close(ptb_session_store *store);

#endif
