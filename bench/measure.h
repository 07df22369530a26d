// How cases are measured: the options that every benchmark shares. One table drives the command line, suite
// files, help and what is stored.
#ifndef PTB_BENCH_MEASURE_H
#define PTB_BENCH_MEASURE_H

#include "core/option.h"

typedef struct {
    double ci;                    // wanted half width of the 95 % interval of the median, relative
    int64_t min_iters, max_iters; // samples; 0: the benchmark's own, else the runner's
    double max_time_s;            // sampling time a case
    int64_t iters;                // fixed number of samples; 0: adaptive
    int64_t warmup;               // iterations before timing; -1: until stable
    char *mode;                   // auto, latency, back-to-back
    char *time;                   // max, avg: how the ranks' times of one sample become one
    bool check;                   // verify results
    double timeout_s;             // no progress for so long is a hang; 0: wait for ever
    char *ranks;                  // "1,2,4": active ranks; NULL or "": all
    int64_t seed;
    bool trace;
} ptb_measure;

extern const ptb_opt ptb_measure_opts[];
extern const size_t ptb_measure_opt_count;

// The set that fills `measure`.
ptb_opt_set ptb_measure_set(ptb_measure *measure);
// Checks what no single option can (the list of ranks, min <= max). USAGE with a message naming `where`.
ptb_status ptb_measure_check(const ptb_measure *measure, const char *where);
// How long may pass without progress in what is not a case, such as opening; 0: for ever.
double ptb_measure_start_limit_s(const ptb_measure *measure);
// How long a communicator waits for a rank that is silent; 0: for ever. What waits is watched too, and ends
// earlier where --timeout is short.
double ptb_measure_peer_limit_s(const ptb_measure *measure);
// Active rank counts for a world of `size`: at most `max`; "" gives {size}. Returns their number.
size_t ptb_measure_ranks(const ptb_measure *measure, int size, int *counts, size_t max);

#endif
