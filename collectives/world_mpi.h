// What files that call the MPI library share (this header includes mpi.h; only *_mpi*.c files include it).
#ifndef PTB_COLLECTIVES_WORLD_MPI_H
#define PTB_COLLECTIVES_WORLD_MPI_H

#include "collectives/launcher.h"
#include "core/world.h"

#include <mpi.h>

// The communicator behind a world, for duplicating it; MPI_COMM_NULL when the world is not over MPI.
MPI_Comm ptb_world_mpi_comm(const ptb_world *world);
// Whether any thread may call the library (MPI_THREAD_MULTIPLE).
bool ptb_world_mpi_threads(const ptb_world *world);

// Starts the library's tool interface (MPI_T) unless it is, and keeps it until the library ends: Open MPI
// loads every component there is to learn its variables, which takes a tenth of a second. False: there is
// none.
bool ptb_world_mpi_vars(ptb_world *world);

// Variables that must be in the environment before the library reads its settings, which it does at MPI_Init
// or at the first look at its variables, whichever comes first.
void ptb_mpi_environment(void);

// Before MPI_Init: UNSUPPORTED, said by rank 0, where the library would end the process there because it
// cannot join what the launcher started (launcher_mpi.c).
ptb_status ptb_mpi_check_launcher(const ptb_launcher *launcher);

// Turns what an MPI call returned into a status: OK, LOST when a peer failed, NO_MEMORY, else SYSTEM, logged
// with the library's own text. `call` names it ("MPI_Allreduce").
ptb_status ptb_mpi_failed(int code, const char *call);
static inline ptb_status ptb_mpi_check(int code, const char *call)
{
    return __builtin_expect(code == MPI_SUCCESS, 1) ? PTB_OK : ptb_mpi_failed(code, call);
}

// A committed type of `count` elements of `element`, any number of them (MPI counts in int: blocks of blocks
// and a rest). The caller frees it.
ptb_status ptb_mpi_type_many(size_t count, MPI_Datatype element, MPI_Datatype *type);

#endif
