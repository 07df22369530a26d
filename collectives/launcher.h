// What started this process, read from its environment before the MPI library is touched, and the choice of
// transport, which the library takes only before it starts.
#ifndef PTB_COLLECTIVES_LAUNCHER_H
#define PTB_COLLECTIVES_LAUNCHER_H

#include "core/status.h"

typedef struct {
    bool launched;    // a launcher started this process as one of a job: join, do not start mpirun
    const char *name; // "Open MPI", "PMI", "PMIx", "Slurm"; "" when not launched. Static storage
    int size;         // processes of the job, 0: the launcher does not say
    int rank;         // of this process, -1: unknown
    int local_rank;   // among those on this host, -1: unknown
    bool one_host;    // the launcher says that all processes of the job are on this host
    int local_size;   // processes of the job on this host, 0: the launcher does not say
    const char *mark; // a variable that every process of the job has and the launcher has not. Static storage
} ptb_launcher;

// Reads the environment of Open MPI's mpirun, PMI (MPICH and relatives), PMIx and Slurm, in this order: an
// inner launcher's variables stand beside those of the outer one. A shell of salloc or sbatch is not a
// launch, nor is an srun of one task without PMI. USAGE, logged, when a variable does not hold a number.
ptb_status ptb_launcher_detect(ptb_launcher *launcher);

// Makes the MPI library use only `transport` ("shm", "tcp" or "ucx"; NULL, "", or the communicator host's
// "mpi" and "shm+mpi": its own choice) by setting OMPI_MCA_ variables; call before ptb_world_open_mpi. A
// setting that the user made for the same variable is replaced with a warning. USAGE for another name.
// Whether it took effect is checked by the communicator (ptb_comm_config.transport).
ptb_status ptb_transport_apply(const char *transport);
// USAGE, and said, when there is none of that name; NULL and "" are right.
ptb_status ptb_transport_check(const char *transport);
// NULL-terminated, for option choices.
extern const char *const ptb_transport_names[];

#endif
