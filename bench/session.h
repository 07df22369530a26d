// What each rank of a launched job does: join the world, measure the cases of the plan, store them.
#ifndef PTB_BENCH_SESSION_H
#define PTB_BENCH_SESSION_H

#include "bench/plan.h"

// The command line that the plan was made from, and the run it belongs to.
typedef struct {
    int argc;
    char **argv;
    int first;
    const char *uuid;             // 36 characters
    bool resume;                  // the run exists already: measure only what is missing
    int repetition;               // 0, 1, ...: which fresh set of processes this is
    const char *launcher;         // what started the ranks, for the record
    const char *launcher_process; // ours, as core/process.h writes it; "": another started the ranks
    bool terminal;                // the launcher's standard error is a terminal
    int columns;                  // of it; 0: unknown
    const char *job_status;       // bench/job_status.h; empty on all ranks but 0
} ptb_run_origin;

// Starts and ends the MPI library. On all ranks the same status.
ptb_status ptb_session_run(const ptb_plan *plan, const ptb_run_origin *origin);

#endif
