// Starting ranks under mpirun and looking after them until they have ended.
#ifndef PTB_BENCH_LAUNCH_H
#define PTB_BENCH_LAUNCH_H

#include "bench/session.h"

// Runs this program again under mpirun, once for each repetition, and returns what rank 0 returned.
// UNSUPPORTED when there is no mpirun; INTERRUPTED after Ctrl-C; LOST when a rank died.
ptb_status ptb_launch(const ptb_plan *plan, const ptb_run_origin *origin);

// Ranks that `run` starts without --np, which is also up to which number it binds each to a core: cores of
// this host that the affinity mask and the control group's quota leave to this process.
int ptb_launch_cores(void);

// The first mpirun on PATH; false when there is none.
bool ptb_launch_find_mpirun(char *path, size_t size);
// "Open MPI 4.1.4" from `mpirun --version`; "" when it says nothing known.
void ptb_launch_mpirun_version(const char *mpirun, char *out, size_t size);

// mpirun's command line for this machine: heap array of heap strings, NULL-terminated. threads: of each rank;
// several of them are not bound to one core. `how` gets what is worth storing: "mpirun (Open MPI 4.1.4), 2
// ranks, bind-to core".
ptb_status ptb_launch_arguments(const ptb_run_options *run, const char *mpirun, int np, int threads, int cpus,
                                char ***out, char *how, size_t how_size);
void ptb_launch_free_arguments(char **arguments);

// The path by which this program can be started again: what a launcher of a bundle says in PTBENCH_PROGRAM
// (the program itself was then started by the bundle's own loader), else the file that runs. SYSTEM, logged.
ptb_status ptb_launch_program(char *out, size_t out_size);

#endif
