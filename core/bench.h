// What a benchmark is. A benchmark enumerates cases; for each the runner (bench/runner.c, the only timed
// loop) calls prepare, then iterate many times, then verify and metrics. Everything runs on every rank of
// env->world, in step.
#ifndef PTB_CORE_BENCH_H
#define PTB_CORE_BENCH_H

#include "core/option.h"
#include "core/registry.h"
#include "core/stats.h"
#include "core/trace.h"
#include "core/traffic.h"
#include "core/world.h"

#include <stdint.h>

enum {
    PTB_PARAMS_MAX = 96,
    PTB_KEY_BYTES = 64 + PTB_PARAMS_MAX * 128, // the benchmark's name and every "/name=value" in full
    PTB_REASON_BYTES = 512,
    PTB_GUESS_BYTES = 112
};

// Ordered name/value pairs: the parameters that identify a case, or facts observed while it ran.
typedef struct {
    char name[24];
    char value[104];
} ptb_param;
typedef struct {
    ptb_param items[PTB_PARAMS_MAX];
    size_t count;
} ptb_params;

// Adds or replaces. Values are cut at 103 characters; more than PTB_PARAMS_MAX, or a name of more than 23
// characters, aborts (a defect).
void ptb_params_set(ptb_params *params, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
// NULL when absent.
const char *ptb_params_get(const ptb_params *params, const char *name);

// One case: a point of the sweep. Its canonical key is "BENCH/name=value/name=value..." in order of the
// params.
typedef struct {
    ptb_params params; // what was asked for
    size_t index;      // the benchmark's own number of the case, by which prepare knows it again
    uint64_t bytes;    // the size the case is ordered by in tables and plots (S in FACTS' formulas); 0: none
    double estimate_s; // expected seconds of one iteration, for --dry-run and the progress line; 0: unknown
    char guess[PTB_GUESS_BYTES]; // what the estimate is made from, where it is a guess; "" otherwise
    bool fixed_batch; // exactly one operation per sample (in-place data must be refilled between iterations)
    // Not 0: so many operations a sample, those of a pipeline, which iterate fills and drains; fewer where
    // they would take more than 20 s.
    uint64_t batch;
    // iterate only enqueues, and waits once at its end (a GPU): what a launch and the wait cost is not the
    // operation's own, so that operations of up to a millisecond are timed back to back.
    bool is_enqueued;
    char skip[PTB_REASON_BYTES]; // not empty: next() already knows the case cannot run, and why
} ptb_case;
void ptb_case_key(const char *bench, const ptb_case *c, char key[PTB_KEY_BYTES]);

// Result of the check of the timed buffers on this rank.
typedef struct {
    bool done; // false: this benchmark has nothing to check here
    uint64_t checked, wrong;
    char detail[256]; // first mismatch: "rank 1, element 17: wanted 3, got 0"
} ptb_verdict;

typedef enum { PTB_NEUTRAL, PTB_HIGHER_IS_BETTER, PTB_LOWER_IS_BETTER } ptb_better;
typedef struct {
    char name[32];       // "busbw"
    char unit[16];       // "GB/s"
    char convention[96]; // the formula's convention: "2(n-1)/n * S / t, t = median"; never empty for derived
                         // values
    double value;        // NAN: not applicable ("n/a"), stored as NULL
    ptb_better better;
} ptb_metric;
enum { PTB_METRICS_MAX = 96 };
typedef struct {
    ptb_metric items[PTB_METRICS_MAX];
    size_t count;
} ptb_metrics;
void ptb_metrics_add(ptb_metrics *metrics, const char *name, double value, const char *unit,
                     ptb_better better, const char *convention);

// A value per iteration besides its time (loss, gradient norm), or, under a name that ends in "_by_rank", a
// value per rank. values belong to the benchmark until close.
typedef struct {
    char name[32], unit[16];
    const double *values;
    size_t count;
} ptb_series;

// What the runner measured: the summary of iteration times after combining ranks (max or average, as asked).
typedef struct {
    ptb_summary time_ns;   // nanoseconds per iteration
    const double *mine_ns; // this rank's own samples, ns per iteration
    size_t mine_count;
    size_t warmup;  // iterations run before the first sample
    uint64_t batch; // iterations per sample
} ptb_timing;

typedef struct {
    ptb_world *world; // the ranks that take part
    ptb_trace *trace; // spans; NULL when tracing is off
    uint64_t seed;
    bool share_gpu; // ranks may have the same GPU
    bool sweeps;    // one of several numbers of ranks: a case that does not fit this one is skipped
    bool dry_run;   // only next() will be called: open must allocate nothing large and start no threads
    // To be called where something long goes on outside a sample: a case without a sign of life for --timeout
    // is ended as hung. NULL: nobody watches.
    void (*alive)(void *watcher);
    void *watcher;
    double timeout_s; // a rank that is silent for so long is lost to communicators; 0: never
} ptb_bench_env;

typedef struct {
    double min_iters, max_iters; // samples wanted at least / at most by default; 0: the runner's own defaults
    double warmup;               // iterations before timing; 0: until stable
    bool latency_only;           // one iteration per sample always (a training step)
} ptb_bench_defaults;

typedef struct ptb_bench_run ptb_bench_run; // defined by each benchmark

typedef struct {
    ptb_plugin plugin;
    const ptb_opt *opts;
    size_t opt_count;
    size_t config_size;
    ptb_bench_defaults defaults;

    // Whether the MPI library will be called from several threads of a rank, which makes all its calls
    // slower; asked before the library starts, so only the launcher's word for whether all ranks are on one
    // host is there. NULL: never.
    bool (*needs_threads)(const void *config, bool one_host);
    // Checks the configuration against the world and makes what all cases share. USAGE or UNSUPPORTED with a
    // logged message.
    ptb_status (*open)(const ptb_bench_env *env, const void *config, ptb_bench_run **run);
    // The next case, or *more = false. Deterministic and the same on all ranks; no communication.
    ptb_status (*next)(ptb_bench_run *run, ptb_case *c, bool *more);
    // Allocates, registers, fills, poisons. SKIPPED with a reason is agreed on by all ranks by the runner.
    // `reason` has PTB_REASON_BYTES. After any status the runner calls finish.
    ptb_status (*prepare)(ptb_bench_run *run, const ptb_case *c, char *reason);
    // Untimed, before each sample: refills in-place buffers. NULL or returning OK at once when nothing is to
    // be done.
    ptb_status (*reset)(ptb_bench_run *run);
    // The timed part: n iterations, complete on return (results usable by the host). Allocates, logs and
    // locks nothing.
    ptb_status (*iterate)(ptb_bench_run *run, uint64_t n);
    // Checks the very buffers that were timed. NULL: no check exists.
    ptb_status (*verify)(ptb_bench_run *run, ptb_verdict *verdict);
    // Derived values; collective over the world, results used on rank 0.
    ptb_status (*metrics)(ptb_bench_run *run, const ptb_timing *timing, ptb_metrics *metrics);
    // What really ran: algorithm, transport, segment size, call.
    void (*facts)(ptb_bench_run *run, ptb_params *facts);
    // For the counters of links, which are read before the first and after the last iteration. The identity
    // of the device (core/device.h) that the prepared case uses; "": none with links. NULL: the benchmark
    // moves nothing between ranks, and no counters are read.
    const char *(*device)(ptb_bench_run *run);
    // What the algorithm that ran implies for one iteration of this rank. Called after metrics, on all ranks.
    // False: nothing is to be expected of this case (one rank, no data). Not NULL where device is not.
    bool (*moves)(ptb_bench_run *run, ptb_traffic *traffic);
    // i-th series of the case on this rank; false past the end. NULL: none.
    bool (*series)(ptb_bench_run *run, size_t i, ptb_series *series);
    // Ends a case. Keeps buffers for the next one where that is sensible.
    void (*finish)(ptb_bench_run *run);
    void (*close)(ptb_bench_run *run);
} ptb_bench;

#endif
