// The implementation that all collective benchmarks share. A collective file defines its ptb_collective and
// its option table and makes its ptb_bench with PTB_COLL_BENCH. Sources: coll_plan.c (options to a plan),
// coll_sweep.c (sizes and cases), coll_bench.c (life of a run, buffers, the loops), coll_verify.c,
// coll_metrics.c, coll_traffic.c (what goes over links).
#ifndef PTB_COLLECTIVES_COLL_BENCH_H
#define PTB_COLLECTIVES_COLL_BENCH_H

#include "collectives/coll_options.h"
#include "collectives/collective.h"
#include "core/bench.h"

// options: the benchmark's table with its ptb_coll_config.
ptb_status ptb_coll_bench_open(const ptb_collective *collective, const ptb_bench_env *env,
                               const ptb_opt_set *options, ptb_bench_run **run);
ptb_status ptb_coll_bench_next(ptb_bench_run *run, ptb_case *c, bool *more);
ptb_status ptb_coll_bench_prepare(ptb_bench_run *run, const ptb_case *c, char *reason);
ptb_status ptb_coll_bench_reset(ptb_bench_run *run);
ptb_status ptb_coll_bench_iterate(ptb_bench_run *run, uint64_t n);
ptb_status ptb_coll_bench_verify(ptb_bench_run *run, ptb_verdict *verdict);
ptb_status ptb_coll_bench_metrics(ptb_bench_run *run, const ptb_timing *timing, ptb_metrics *metrics);
void ptb_coll_bench_facts(ptb_bench_run *run, ptb_params *facts);
const char *ptb_coll_bench_device(ptb_bench_run *run);
bool ptb_coll_bench_moves(ptb_bench_run *run, ptb_traffic *traffic);
void ptb_coll_bench_finish(ptb_bench_run *run);
void ptb_coll_bench_close(ptb_bench_run *run);

// The descriptor's initialiser, for a benchmark with its own open function.
#define PTB_COLL_BENCH_INIT(name_, summary_, opts_, open_)                                                   \
    {                                                                                                        \
        .plugin = {name_, summary_}, .opts = (opts_), .opt_count = sizeof(opts_) / sizeof(opts_)[0],         \
        .config_size = sizeof(ptb_coll_config), .open = (open_), .next = ptb_coll_bench_next,                \
        .prepare = ptb_coll_bench_prepare, .reset = ptb_coll_bench_reset, .iterate = ptb_coll_bench_iterate, \
        .verify = ptb_coll_bench_verify, .metrics = ptb_coll_bench_metrics, .facts = ptb_coll_bench_facts,   \
        .device = ptb_coll_bench_device, .moves = ptb_coll_bench_moves, .finish = ptb_coll_bench_finish,     \
        .close = ptb_coll_bench_close                                                                        \
    }

// A table with its configuration, which is only read.
#define PTB_COLL_OPT_SET(opts_, config_)                                                                     \
    {                                                                                                        \
        .opts = (opts_), .count = sizeof(opts_) / sizeof(opts_)[0], .config = (void *)(config_)              \
    }

// Registers `collective` (a const ptb_collective in the same file) and a benchmark with the given name and
// option rows.
#define PTB_COLL_BENCH(name_, summary_, ...)                                                                 \
    static const ptb_opt options[] = {__VA_ARGS__};                                                          \
    static ptb_status open_bench(const ptb_bench_env *env, const void *config, ptb_bench_run **run)          \
    {                                                                                                        \
        const ptb_opt_set set = PTB_COLL_OPT_SET(options, config);                                           \
        return ptb_coll_bench_open(&collective, env, &set, run);                                             \
    }                                                                                                        \
    static const ptb_bench bench = PTB_COLL_BENCH_INIT(name_, summary_, options, open_bench);                \
    PTB_REGISTER(PTB_KIND_COLLECTIVE, collective);                                                           \
    PTB_REGISTER(PTB_KIND_BENCH, bench)

#endif
