// Taking up a stored run again.
#ifndef PTB_BENCH_RESUME_H
#define PTB_BENCH_RESUME_H

#include "core/status.h"

// Finds the run that `word` names in `database` and makes the command line it was started with, followed by
// the number of its ranks and by the arguments of the present one: {argv[0], "run", ...}, heap array of heap
// strings. uuid: 37 bytes. USAGE, logged, when there is no such run, or a process of it is seen to live.
ptb_status ptb_resume_arguments(const char *database, const char *word, int argc, char **argv, int first,
                                char *uuid, int *out_argc, char ***out_argv);

#endif
