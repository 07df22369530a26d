// How worlds (core/world.h) are opened: over MPI processes, or as threads of this process.
#ifndef PTB_COLLECTIVES_WORLD_H
#define PTB_COLLECTIVES_WORLD_H

#include "core/world.h"

// Starts the MPI library (once a process) and opens the world of all processes of the job; closing it ends
// the library. With `threads`, several threads may call the library (MPI_THREAD_MULTIPLE), else only the
// calling one. UNSUPPORTED, logged, when the library does not grant that, or when a launcher started several
// processes and each sees itself alone.
ptb_status ptb_world_open_mpi(bool threads, ptb_world **world);

// Runs body(world, arg) once for each of `ranks` (>= 1) threads and returns when all have returned: the worst
// status (as ptb_world_agree). host_of [ranks] puts ranks on pretended hosts by any numbers; NULL: all on
// one. body must not close its world; worlds that it splits off it must close. A rank that returns makes
// operations of those that still wait for it return LOST, so an error in one rank does not hang the others.
ptb_status ptb_world_run_local(int ranks, const int *host_of, ptb_status (*body)(ptb_world *, void *),
                               void *arg);

// For implementations: sets host, hosts, local_rank, local_size and host_of of a world whose rank and size
// are set. Ranks with the same key [size] share a host. host_of is heap memory, the implementation frees it.
ptb_status ptb_world_set_hosts(ptb_world *world, const int *key);

#endif
