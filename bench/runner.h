// The runner: the only timed loop. It measures one case of a benchmark on all ranks of a world: warm up,
// sample, verify, derive metrics. sampling.c times, runner.c leads through a case, overhead.c measures the
// loop itself, record.c stores.
#ifndef PTB_BENCH_RUNNER_H
#define PTB_BENCH_RUNNER_H

#include "bench/measure.h"
#include "bench/watch.h"
#include "core/bench.h"

#include <stdatomic.h>

typedef struct {
    ptb_world *world;
    ptb_watch *watch;        // may be NULL
    ptb_trace *trace;        // may be NULL; cleared when sampling begins
    const atomic_bool *stop; // may be NULL; ranks agree on it between rounds of samples
    bool *links_told;        // whether it was said what of the links cannot be counted; NULL: not to be said
    void (*tick)(void *arg); // may be NULL; called now and then between rounds
    void *tick_arg;
} ptb_runner_env;

typedef struct ptb_runner ptb_runner;

typedef enum { PTB_CASE_OK, PTB_CASE_WRONG, PTB_CASE_SKIPPED, PTB_CASE_FAILED } ptb_case_state;

enum { PTB_SERIES_MAX = 16 };

// Of one case, on each rank. Pointers stay valid until the next case, series until the benchmark is closed.
typedef struct {
    ptb_case_state state;          // the same on all ranks
    ptb_status status;             // why a case failed
    char reason[PTB_REASON_BYTES]; // of a case that is not OK; complete on rank 0
    const char *mode, *combine, *stopped;
    uint64_t batch, warmup;
    double started_utc_s, elapsed_s;
    ptb_summary time_ns; // of the combined samples, ns per iteration
    const double *combined_ns, *mine_ns;
    size_t count;
    double faults;       // page faults per iteration, of the rank with most
    ptb_verdict verdict; // this rank's
    ptb_params facts;
    ptb_metrics metrics; // complete on rank 0
    ptb_series series[PTB_SERIES_MAX];
    size_t series_count;
} ptb_case_result;

// `measure` and env are kept by reference. Allocates room for the most samples that `bench` may take.
ptb_status ptb_runner_new(const ptb_runner_env *env, const ptb_measure *measure, const ptb_bench *bench,
                          ptb_runner **runner);
void ptb_runner_free(ptb_runner *runner);
// Collective: the first rank, in order, that has something to say gives the reason on rank 0, unless a later
// one says the same and more; `reason` (PTB_REASON_BYTES) names the status when nobody has. mine: at most as
// many bytes.
ptb_status ptb_reason_gather(ptb_world *world, ptb_status status, const char *mine, char *reason);
// Collective. OK also for cases that are wrong, skipped or failed (see state); INTERRUPTED when the ranks
// agreed to stop, after which the case is as if it had not begun; LOST when a rank is gone. The case's series
// stay valid until ptb_runner_end, which has to follow on all ranks unless one is lost.
ptb_status ptb_runner_case(ptb_runner *runner, ptb_bench_run *run, const ptb_case *c,
                           ptb_case_result *result);
void ptb_runner_end(ptb_runner *runner, ptb_bench_run *run, const ptb_case *c);
// Whether memory that is touched for the first time inside the timed call is a large part of its time.
bool ptb_runner_faults_spoil(const ptb_case *c, const ptb_case_result *result);
// Skips the case, with the reason, where --mode asks for what it cannot have: its key would say a mode in
// which it did not run.
void ptb_runner_check_mode(const ptb_measure *measure, const ptb_bench *bench, ptb_case *c);
// Seconds that the case will about take, from its estimate_s; for plans and progress, no promise.
double ptb_runner_estimate_s(const ptb_measure *measure, const ptb_bench *bench, const ptb_case *c);

// Median nanoseconds of an iteration that does nothing: two clock reads and a call. Measured with the same
// loop.
ptb_status ptb_runner_overhead(ptb_world *world, double *overhead_ns);

#endif
