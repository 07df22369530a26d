// What `ptbench run` is to do: suites and benchmarks named on the command line become parts, each with the
// options of its benchmark and of its measurement. The command line has the last word over a suite.
#ifndef PTB_BENCH_PLAN_H
#define PTB_BENCH_PLAN_H

#include "bench/measure.h"
#include "bench/suite.h"
#include "core/bench.h"
#include "core/topology.h"

// Options of the run as a whole.
typedef struct {
    int64_t np; // 0: as many as this process may use cores
    int64_t repeat;
    char *hosts, *hostfile, *mpirun_args, *bind;
    char *db, *label, *revision, *resume, *json;
    bool share_gpu, dry_run, quiet, renew_auto;
} ptb_run_options;

enum { PTB_RUN_OPT_COUNT = 15 };
extern const ptb_opt ptb_run_opts[PTB_RUN_OPT_COUNT];

typedef struct {
    char *name; // of the section or the benchmark
    const ptb_bench *bench;
    void *config; // of the benchmark, owned
    ptb_measure measure;
    char *requires;
} ptb_part;

typedef struct {
    ptb_run_options run;
    ptb_part *parts;
    size_t count;
    char *selection; // the words: "quick", "all_reduce sendrecv"
    char *transport; // that all parts which name one agree on; NULL: any
} ptb_plan;

// Reads argv[first..). Without a suite or benchmark: USAGE. Every value is checked here, before anything is
// started.
ptb_status ptb_plan_make(int argc, char **argv, int first, ptb_plan **plan);
void ptb_plan_free(ptb_plan *plan);
// The run's own options alone, from a command line that may name nothing else (`--resume`).
ptb_status ptb_run_options_parse(int argc, char **argv, int first, ptb_run_options *run);
void ptb_run_options_release(ptb_run_options *run);
// Value of --resume in argv, or NULL. Looks only.
const char *ptb_plan_resume_word(int argc, char **argv, int first);
// JSON of the effective options, owner -> option -> value, and "arguments": the words of argv[first..) by
// place.
void ptb_plan_options_json(const ptb_plan *plan, int argc, char **argv, int first, ptb_text *out);
// Whether a part calls the MPI library from several threads.
bool ptb_plan_needs_threads(const ptb_plan *plan, bool one_host);
// The largest number of processor threads (option `threads`) that a part gives each rank; at least 1.
int ptb_plan_most_threads(const ptb_plan *plan);
// How long starting up and storing the end may take without progress: as the most patient part has it; 0: for
// ever.
double ptb_plan_start_limit_s(const ptb_plan *plan);
// The device other than the host that a part is on, by its options `device` or `comm`, or NULL: one rank for
// each of its kind is what the plan is for.
const char *ptb_plan_device(const ptb_plan *plan);
// Collective over the world, the same on all ranks. GPUs are counted (which starts their driver) only where a
// part asks for them.
ptb_status ptb_plan_offer(const ptb_plan *plan, ptb_world *world, const ptb_topology *topology,
                          ptb_offer *offer);
// Says so where there are GPUs and nothing of the plan is on them, and what would be.
void ptb_plan_mention_gpus(const ptb_plan *plan, const ptb_topology *topology);
ptb_opt_set ptb_part_bench_set(const ptb_part *part);

#endif
