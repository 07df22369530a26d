// The timed loop and what ranks agree on between its rounds.
#ifndef PTB_BENCH_SAMPLING_H
#define PTB_BENCH_SAMPLING_H

#include "bench/runner.h"

enum { PTB_ROUND_MAX = 1024 };

typedef struct {
    const ptb_runner_env *env;
    const ptb_bench *bench;
    ptb_bench_run *run;
    uint64_t batch;   // iterations per sample
    bool average;     // combine by the mean over ranks instead of the maximum
    double *mine;     // [capacity] ns per iteration
    double *combined; // [capacity]
    size_t count, capacity;
    double *exchange; // [ROUND_MAX + 4], for averages [ranks][ROUND_MAX + 4] more
    // Agreed on after each round:
    double elapsed_s; // since the first round, of the slowest rank
    double faults;    // page faults in iterations of the round, of the rank with most
    bool stop;
    // This rank's:
    int64_t begin_ns;
    ptb_status status; // of reset, start and iterate, in this round
} ptb_sampler;

ptb_status ptb_sampler_init(ptb_sampler *sampler, const ptb_runner_env *env, const ptb_bench *bench,
                            size_t capacity, bool average);
void ptb_sampler_release(ptb_sampler *sampler);
// Forgets samples and the elapsed time.
void ptb_sampler_begin(ptb_sampler *sampler, ptb_bench_run *run, uint64_t batch);
// Takes `samples` (1..ROUND_MAX) more and agrees: sampler->combined, elapsed_s, stop. Returns the worst
// status of all ranks.
ptb_status ptb_sampler_round(ptb_sampler *sampler, size_t samples);

#endif
