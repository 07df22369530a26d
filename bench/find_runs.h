// Runs as they are named on a command line.
#ifndef PTB_BENCH_FIND_RUNS_H
#define PTB_BENCH_FIND_RUNS_H

#include "results/store.h"

// ids of the runs named by words[count]; none named: the last one. At most `max`. USAGE, logged, for an
// unknown one.
ptb_status ptb_find_runs(ptb_store *store, const char *const *words, size_t count, size_t max, int64_t *ids,
                         size_t *found);

#endif
