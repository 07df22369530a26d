// How threads wait for each other where a host has fewer processors than its ranks have threads. OpenMP's
// spin for milliseconds, each time, on the processors that the awaited ones need: a step takes up to a
// hundred times as long. Its library reads how to wait before main and never again, so that a rank which
// finds itself in a crowd starts itself again, before it has touched MPI. Where every thread has its
// processor nothing is changed.
#ifndef PTB_BENCH_WAITING_H
#define PTB_BENCH_WAITING_H

#include "collectives/launcher.h"

typedef struct {
    int threads;     // of each rank
    int local_ranks; // on this host, 0: unknown
    int own_cpus;    // that this rank may use
    int host_cpus;   // that the ranks of this host may use together, at most
    int quota;       // of the control group, 0: none
} ptb_waiting_place;

// Whether threads certainly have to share processors.
bool ptb_waiting_is_crowded(const ptb_waiting_place *place);

// Processors that the launcher of this process may use; 0 when that is not known. mark: of ptb_launcher.
int ptb_waiting_launcher_cpus(const char *mark);

// The environment as it is now, to start again with. NULL when memory has run out.
char **ptb_waiting_remember(void);

// In a crowd waiting yields: MPI's and, with threads > 1, OpenMP's, for which the program may be started
// again with `argv` and `remembered`; then this does not return. What the user has set stays, with a warning
// from the first rank where it makes threads spin. True in a crowd.
bool ptb_waiting_settle(const ptb_launcher *launcher, int threads, char **argv, char **remembered);

#endif
