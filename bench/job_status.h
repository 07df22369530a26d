// How rank 0 tells the process that started mpirun what came of the job: a small file, since mpirun's exit
// code does not tell a rank's failure from its own.
#ifndef PTB_BENCH_JOB_STATUS_H
#define PTB_BENCH_JOB_STATUS_H

#include "core/status.h"

// What the launcher hands to the ranks.
#define PTB_ENV_UUID       "PTBENCH_RUN_UUID"
#define PTB_ENV_REPETITION "PTBENCH_REPETITION"
#define PTB_ENV_LAUNCHER   "PTBENCH_LAUNCHER"
#define PTB_ENV_RESUME     "PTBENCH_RESUMED"
#define PTB_ENV_PROCESS    "PTBENCH_LAUNCHER_PROCESS" // core/process.h
#define PTB_ENV_COLUMNS    "PTBENCH_COLUMNS"          // set only when standard error is a terminal
#define PTB_ENV_STATUS     "PTBENCH_STATUS_FILE"

typedef enum { PTB_JOB_NOT_STARTED, PTB_JOB_STARTED, PTB_JOB_ENDED, PTB_JOB_UNKNOWN } ptb_job_state;

typedef struct {
    int file;      // -1: none
    char path[96]; // what the ranks are given
} ptb_job_status;

// Launcher: makes the file; empties it for another job; reads it; lets it go.
ptb_status ptb_job_status_new(ptb_job_status *status);
void ptb_job_status_clear(const ptb_job_status *status);
ptb_job_state ptb_job_status_read(const ptb_job_status *status, int *exit_code);
void ptb_job_status_release(ptb_job_status *status);
// Rank 0, each once. Without the file (another host) nothing happens.
void ptb_job_status_started(const char *path);
void ptb_job_status_ended(const char *path, int exit_code);

#endif
