// Deterministic runs for the tests of reports and for looking at pictures: stored through the store's own
// interface, with times from a simple model (start-up cost plus bytes over bandwidth) and a fixed jitter.
#ifndef PTB_TESTS_GOLDEN_REPORT_DATA_H
#define PTB_TESTS_GOLDEN_REPORT_DATA_H

#include "core/bench.h"
#include "core/stats.h"
#include "results/store_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DATA_CPU "AMD EPYC 9R14 96-Core Processor"
#define DATA_HOST                                                                                            \
    "{\"hostname\": \"node1\", \"cpu_model\": \"" DATA_CPU                                                   \
    "\", \"kernel\": \"Linux 6.1.0\", \"os\": \"Debian GNU/Linux 12\", \"packages\": 1, \"numa_nodes\": 1, " \
    "\"cores\": 2, \"threads\": 2, \"allowed_cpus\": 2, \"binding\": \"0-1\", \"cgroup_cpus\": 0, "          \
    "\"memory_bytes\": 25769803776, \"l3_bytes\": 33554432, \"governor\": \"unknown\", \"thp\": "            \
    "\"madvise\", \"isa\": \"avx512f avx512_bf16\", \"virtual_machine\": true}"

typedef struct {
    const char *label; // NULL: none
    int ranks;
    bool simulated;
    const char *state, *reason; // of the run
    const char *processes;      // that keep it going
} data_run_spec;

typedef struct {
    ptb_store *store;
    int64_t run, repetition;
    int ranks;
    double hfu, starved; // of its steps; hfu 0: not known
} data_run;

static inline void data_must(ptb_status status, const char *what)
{
    if (status == PTB_OK)
        return;
    fprintf(stderr, "report_data: %s: %s\n", what, ptb_status_name(status));
    exit(1);
}

static inline void data_begin_repetition(data_run *run, int index)
{
    const ptb_repetition_record record = {
        .index = index,
        .started_utc_s = 1795960096 + 10 * index,
        .ranks = run->ranks,
        .hosts = 1,
        .launcher = "mpirun (Open MPI 4.1.4)",
        .placement = run->ranks == 2
                         ? "[{\"host\": \"node1\", \"cpus\": \"0\"}, {\"host\": \"node1\", \"cpus\": \"1\"}]"
                         : "[]",
    };
    data_must(ptb_store_begin_repetition(run->store, run->run, &record, &run->repetition),
              "begin repetition");
}

static inline data_run data_begin(ptb_store *store, int number, const data_run_spec *spec)
{
    char uuid[40];
    snprintf(uuid, sizeof uuid, "%08x-0000-4000-8000-000000000000", (unsigned)number);
    const ptb_run_record record = {
        .uuid = uuid,
        .started_utc_s = 1795960095 + 60.0 * number,
        .command = "ptbench run quick --np 2",
        .selection = "quick",
        .label = spec->label,
        .version = "0.1.0",
        .git_revision = "4c1d9e0",
        .build = "{\"compiler\": \"gcc 12.2.0\", \"flags\": \"-O3\", \"Open MPI\": \"4.1.4\"}",
        .options =
            "{\"measurement\": {\"ci\": \"2%\", \"time\": \"max\"}, \"all_reduce\": {\"begin\": \"8\"}}",
        .environment = "{\"LANG\": \"C.UTF-8\", \"API_KEY\": \"(masked)\"}",
        .hosts = "[" DATA_HOST "]",
        .fingerprint = "00f1e2d3c4b5a697",
        .processes = spec->processes,
        .simulated = spec->simulated,
        .clock_resolution_ns = 10,
        .clock_overhead_ns = 21.5,
        .loop_overhead_ns = 1.2,
    };
    data_run run = {.store = store, .ranks = spec->ranks};
    data_must(ptb_store_begin_run(store, &record, &run.run), "begin run");
    data_begin_repetition(&run, 0);
    return run;
}

// The store takes the end of a run from the clock; here it is 41.5 s after the begin.
static inline void data_finish(const data_run *run, const data_run_spec *spec)
{
    char sql[160];
    data_must(
        ptb_store_finish_run(run->store, run->run, spec->state ? spec->state : "complete", spec->reason),
        "finish run");
    snprintf(sql, sizeof sql,
             "UPDATE run SET finished_utc_s = started_utc_s + 41.5 WHERE id = %lld AND finished_utc_s > 0",
             (long long)run->run);
    if (sqlite3_exec(run->store->db, sql, NULL, NULL, NULL) != SQLITE_OK)
        data_must(PTB_STORE, sql);
}

// A number in [-1, 1] that depends on its arguments alone.
static inline double data_jitter(uint64_t a, uint64_t b)
{
    uint64_t x = (a + 1) * 0x9E3779B97F4A7C15u ^ (b + 1) * 0xC2B2AE3D27D4EB4Fu;
    x ^= x >> 29;
    x *= 0xBF58476D1CE4E5B9u;
    x ^= x >> 32;
    return (double)(x % 20001) / 10000 - 1;
}

typedef struct {
    const char *bench, *comm, *algo, *place, *type, *op, *pattern; // NULL: no such param
    uint64_t bytes;
    double median_ns, noise; // noise 0.05: samples within 5 %
    size_t samples;
    const char *state, *reason, *warning; // state NULL: ok
    double bus_factor;                    // NAN: no bandwidth
} data_coll;

static inline void data_add_coll(const data_run *run, const data_coll *c)
{
    ptb_params params = {0}, facts = {0};
    const char *const named[][2] = {{"comm", c->comm}, {"pattern", c->pattern}, {"algo", c->algo},
                                    {"type", c->type}, {"op", c->op},           {"place", c->place}};
    for (size_t i = 0; i < sizeof named / sizeof *named; i++)
        if (named[i][1])
            ptb_params_set(&params, named[i][0], "%s", named[i][1]);
    if (c->type) {
        ptb_params_set(&params, "count", "%llu", (unsigned long long)c->bytes / 4);
        ptb_params_set(&params, "bytes", "%llu", (unsigned long long)c->bytes);
    }
    ptb_params_set(&params, "ranks", "%d", run->ranks);
    ptb_params_set(&facts, "algorithm", "%s", c->algo ? c->algo : "point to point");
    ptb_params_set(&facts, "transport", "shared memory");
    if (c->warning) {
        ptb_params_set(&facts, "warning", "%s", c->warning);
        ptb_params_set(&facts, "page_faults", "%d", 4096);
    }

    double *samples = calloc(c->samples + 1, sizeof *samples);
    for (size_t i = 0; i < c->samples; i++)
        samples[i] = c->median_ns * (1 + c->noise * data_jitter(c->bytes + i * 31, (uint64_t)c->median_ns));
    bool wrong = c->state && strcmp(c->state, "wrong") == 0;
    ptb_rank_record ranks[8] = {{0}};
    for (int r = 0; r < run->ranks && r < 8; r++)
        ranks[r] = (ptb_rank_record){.samples_ns = samples,
                                     .count = c->samples,
                                     .checked = c->samples ? c->bytes / 4 : 0,
                                     .wrong = wrong && r == 1 ? 3 : 0,
                                     .detail = wrong && r == 1 ? c->reason : NULL};
    ptb_metrics metrics = {0};
    ptb_summary summary = ptb_stats_summarise(samples, c->samples);
    if (c->samples && !isnan(c->bus_factor)) {
        double algbw = (double)c->bytes / summary.median;
        ptb_metrics_add(&metrics, "algbw", algbw, "GB/s", PTB_HIGHER_IS_BETTER, "S / t, t = median");
        ptb_metrics_add(&metrics, "busbw", c->bus_factor > 0 ? algbw * c->bus_factor : NAN, "GB/s",
                        PTB_HIGHER_IS_BETTER, c->op ? "2(n-1)/n x S / t, t = median" : "S / t, t = median");
    }
    ptb_case named_case = {.params = params};
    char key[PTB_KEY_BYTES];
    ptb_case_key(c->bench, &named_case, key);
    const ptb_case_record record = {
        .bench = c->bench,
        .key = key,
        .params = &params,
        .facts = &facts,
        .bytes = c->bytes,
        .ranks = run->ranks,
        .hosts = 1,
        .state = c->state ? c->state : "ok",
        .reason = c->reason,
        .mode = "latency",
        .combine = "max",
        .stopped = "ci",
        .batch = 1,
        .warmup = 10,
        .started_utc_s = 1795960100,
        .elapsed_s = 0.1,
        .time_ns = summary,
        .combined_ns = samples,
        .combined_count = c->samples,
        .rank = ranks,
        .metrics = &metrics,
    };
    data_must(ptb_store_add_case(run->store, run->repetition, &record), "add case");
    free(samples);
}

// A sweep over sizes 8 B, 64 B, ... up to `largest`.
static inline void data_add_sweep(const data_run *run, data_coll c, double start_ns, double bytes_per_ns,
                                  uint64_t largest)
{
    for (c.bytes = 8; c.bytes <= largest; c.bytes *= 8) {
        c.median_ns = start_ns + (double)c.bytes / bytes_per_ns;
        c.samples = c.bytes < 1048576 ? 200 : 30;
        data_add_coll(run, &c);
    }
}

// One pair of the benchmark `pairs`, from rank 0 to rank 1.
static inline void data_add_pair(const data_run *run, uint64_t bytes, double median_ns)
{
    ptb_params params = {0}, facts = {0};
    const char *const named[][2] = {
        {"path", "send"}, {"comm", "host"}, {"device", "host"}, {"from", "0"}, {"to", "1"}};
    for (size_t i = 0; i < sizeof named / sizeof *named; i++)
        ptb_params_set(&params, named[i][0], "%s", named[i][1]);
    ptb_params_set(&params, "ranks", "%d", run->ranks);
    ptb_params_set(&facts, "transport", "shm");
    double samples[8];
    for (size_t i = 0; i < 8; i++)
        samples[i] = median_ns * (1 + 0.01 * data_jitter(bytes + i, 3));
    ptb_rank_record ranks[8] = {{0}};
    for (int r = 0; r < run->ranks && r < 8; r++)
        ranks[r] = (ptb_rank_record){.samples_ns = samples, .count = 8, .checked = r == 1 ? bytes : 0};
    ptb_metrics metrics = {0};
    ptb_metrics_add(&metrics, "bandwidth", (double)bytes / median_ns, "GB/s", PTB_HIGHER_IS_BETTER,
                    "S / t, t = median");
    ptb_case named_case = {.params = params};
    char key[PTB_KEY_BYTES];
    ptb_case_key("pairs", &named_case, key);
    const ptb_case_record record = {.bench = "pairs",
                                    .key = key,
                                    .params = &params,
                                    .facts = &facts,
                                    .bytes = bytes,
                                    .ranks = run->ranks,
                                    .hosts = 1,
                                    .state = "ok",
                                    .mode = "latency",
                                    .combine = "max",
                                    .stopped = "ci",
                                    .batch = 1,
                                    .started_utc_s = 1795960100,
                                    .elapsed_s = 0.1,
                                    .time_ns = ptb_stats_summarise(samples, 8),
                                    .combined_ns = samples,
                                    .combined_count = 8,
                                    .rank = ranks,
                                    .metrics = &metrics};
    data_must(ptb_store_add_case(run->store, run->repetition, &record), "add case");
}

enum { DATA_STEPS = 100, DATA_MS = 1000000 };

// A kernel against a limit that `limit` names: "copy" or "read", of 100 GB/s.
static inline void data_add_kernel(const data_run *run, const char *kernel, const char *limit)
{
    ptb_params params = {0}, facts = {0};
    const char *const named[][2] = {{"kernel", kernel}, {"layer", "block"},  {"precision", "f32"},
                                    {"rows", "64"},     {"threads", "1"},    {"device", "host"},
                                    {"model", "tiny"},  {"kernels", "host"}, {"seed", "1"}};
    for (size_t i = 0; i < sizeof named / sizeof *named; i++)
        ptb_params_set(&params, named[i][0], "%s", named[i][1]);
    ptb_params_set(&params, "ranks", "%d", run->ranks);
    const double samples[8] = {1000, 1001, 1002, 1003, 1004, 1005, 1006, 1007};
    const ptb_rank_record rank = {.samples_ns = samples, .count = 8};
    ptb_metrics m = {0};
    ptb_metrics_add(&m, "bandwidth", 25, "GB/s", PTB_HIGHER_IS_BETTER, "bytes / median time");
    ptb_metrics_add(&m, limit, 100, "GB/s", PTB_NEUTRAL, "fastest of as many bytes");
    ptb_metrics_add(&m, "of_limit", 25, "%", PTB_HIGHER_IS_BETTER, "bandwidth / limit");
    ptb_case named_case = {.params = params};
    char key[PTB_KEY_BYTES];
    ptb_case_key("kernels", &named_case, key);
    const ptb_case_record record = {.bench = "kernels",
                                    .key = key,
                                    .params = &params,
                                    .facts = &facts,
                                    .ranks = run->ranks,
                                    .hosts = 1,
                                    .state = "ok",
                                    .mode = "latency",
                                    .combine = "max",
                                    .stopped = "ci",
                                    .batch = 1,
                                    .started_utc_s = 1795960100,
                                    .elapsed_s = 0.1,
                                    .time_ns = ptb_stats_summarise(samples, 8),
                                    .combined_ns = samples,
                                    .combined_count = 8,
                                    .rank = &rank,
                                    .metrics = &m};
    data_must(ptb_store_add_case(run->store, run->repetition, &record), "add kernel");
}

static inline void data_add_memory(const data_run *run, ptb_metrics *m)
{
    const char *const parts[] = {"parameters",    "gradients", "optimizer", "activations",
                                 "communication", "workspace", "memory"};
    const double bytes[] = {42.8e6, 42.8e6, 85.6e6, 120e6, 0, 9e6, 300.2e6};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        char name[32];
        snprintf(name, sizeof name, "peak_%s", parts[i]);
        ptb_metrics_add(m, name, bytes[i] * (i == 5 ? 1.02 : 1), "bytes", PTB_LOWER_IS_BETTER, "ledger");
        snprintf(name, sizeof name, "predicted_%s", parts[i]);
        ptb_metrics_add(m, name, bytes[i], "bytes", PTB_NEUTRAL, "from the shape");
    }
    ptb_metrics_add(m, "parameters", 10.7e6, "", PTB_NEUTRAL, "all weights");
    ptb_metrics_add(m, "peak_resident", 321e6, "bytes", PTB_LOWER_IS_BETTER, "growth of the process");
    ptb_metrics_add(m, "mfu", 71.5, "%", PTB_HIGHER_IS_BETTER, "flops_per_s / matmul_peak");
    if (run->hfu > 0)
        ptb_metrics_add(m, "hfu", run->hfu, "%", PTB_HIGHER_IS_BETTER, "products / matmul_peak");
    ptb_metrics_add(m, "steps_starved", run->starved, "", PTB_LOWER_IS_BETTER, "steps that waited for input");
    ptb_metrics_add(m, "skipped_steps", 1, "", PTB_LOWER_IS_BETTER, "steps without an update");
}

// Updates lacked: none, one and two in 10, 30 and 60 of 100 gradients.
static inline ptb_series data_add_staleness(ptb_metrics *m)
{
    static const double gradients[] = {10, 30, 60};
    ptb_metrics_add(m, "staleness_mean", 1.5, "steps", PTB_NEUTRAL, "updates lacked, mean");
    ptb_metrics_add(m, "staleness_max", 2, "steps", PTB_NEUTRAL, "updates lacked, at most");
    ptb_metrics_add(m, "stale_gradients", 90, "%", PTB_NEUTRAL, "gradients that lacked any");
    return (ptb_series){.name = "staleness", .unit = "gradients", .values = gradients, .count = 3};
}

// "async" is two updates behind, and its loss higher by 0.25.
static inline void data_add_steps(const data_run *run, const char *strategy, int batch, double compute_ms,
                                  double exposed_ms, size_t steps)
{
    ptb_params params = {0};
    const char *const named[][2] = {{"strategy", strategy}, {"comm", "host"},    {"layers", "6"},
                                    {"hidden", "384"},      {"heads", "6"},      {"sequence", "256"},
                                    {"vocabulary", "256"},  {"precision", "f32"}};
    for (size_t i = 0; i < sizeof named / sizeof *named; i++)
        ptb_params_set(&params, named[i][0], "%s", named[i][1]);
    ptb_params_set(&params, "batch", "%d", batch);
    ptb_params_set(&params, "ranks", "%d", run->ranks);
    bool is_async = strcmp(strategy, "async") == 0;
    if (is_async)
        ptb_params_set(&params, "staleness", "2");
    double samples[DATA_STEPS], loss[DATA_STEPS]; // `steps` of them, at most all
    double ms = compute_ms + exposed_ms;
    for (int i = 0; i < (int)steps; i++) {
        samples[i] = ms * DATA_MS * (1 + 0.02 * data_jitter((uint64_t)i, (uint64_t)run->ranks));
        loss[i] = 1.9 + 3.65 * exp(-i / 22.0) + 0.03 * data_jitter((uint64_t)i, 7) + 0.25 * is_async;
    }
    ptb_summary summary = ptb_stats_summarise(samples, steps);
    ptb_rank_record ranks[8] = {{0}};
    for (int r = 0; r < run->ranks && r < 8; r++)
        ranks[r] = (ptb_rank_record){.samples_ns = samples, .count = steps};
    ptb_metrics m = {0};
    double tokens = batch * 256.0 / (summary.median / 1e9);
    ptb_metrics_add(&m, "tokens_per_s", tokens, "1/s", PTB_HIGHER_IS_BETTER,
                    "global batch x sequence / median step");
    ptb_metrics_add(&m, "flops_per_s", tokens * 6 * 10.7e6, "FLOP/s", PTB_HIGHER_IS_BETTER,
                    "6N + 12 L h s a token (PaLM)");
    ptb_metrics_add(&m, "step_time", summary.median / 1e6, "ms", PTB_LOWER_IS_BETTER,
                    "median, maximum over ranks");
    ptb_metrics_add(&m, "forward", compute_ms * 0.31, "ms", PTB_LOWER_IS_BETTER,
                    "union of spans, median a step");
    ptb_metrics_add(&m, "backward", compute_ms * 0.59, "ms", PTB_LOWER_IS_BETTER,
                    "union of spans, median a step");
    ptb_metrics_add(&m, "optimizer", compute_ms * 0.07, "ms", PTB_LOWER_IS_BETTER,
                    "union of spans, median a step");
    ptb_metrics_add(&m, "exposed_comm", run->ranks > 1 ? exposed_ms : NAN, "ms", PTB_LOWER_IS_BETTER,
                    "|C| - |C and K|");
    ptb_metrics_add(&m, "input", compute_ms * 0.01, "ms", PTB_LOWER_IS_BETTER,
                    "union of spans, median a step");
    ptb_metrics_add(&m, "other", compute_ms * 0.02, "ms", PTB_LOWER_IS_BETTER, "step - all of the above");
    ptb_metrics_add(&m, "imbalance", run->ranks > 1 ? 0.4 : 0, "ms", PTB_LOWER_IS_BETTER,
                    "slowest rank - mean of ranks");
    ptb_metrics_add(&m, "overlap", run->ranks > 1 ? 62.5 : NAN, "%", PTB_HIGHER_IS_BETTER, "|C and K| / |C|");
    ptb_metrics_add(&m, "loss_first", loss[0], "nats", PTB_NEUTRAL, "mean cross entropy a token");
    ptb_metrics_add(&m, "loss_last", loss[steps - 1], "nats", PTB_LOWER_IS_BETTER,
                    "mean cross entropy a token");
    ptb_metrics_add(&m, "loss_steps_8_15", loss[steps / 2], "nats", PTB_LOWER_IS_BETTER,
                    "mean cross entropy a token");
    data_add_memory(run, &m);
    ptb_series series[2] = {{.name = "loss", .unit = "nats", .values = loss, .count = steps}};
    if (is_async)
        series[1] = data_add_staleness(&m);
    ptb_case named_case = {.params = params};
    char key[PTB_KEY_BYTES];
    ptb_case_key("step", &named_case, key);
    const ptb_case_record record = {
        .bench = "step",
        .key = key,
        .params = &params,
        .ranks = run->ranks,
        .hosts = 1,
        .state = "ok",
        .mode = "latency",
        .combine = "max",
        .stopped = "fixed",
        .batch = 1,
        .warmup = 5,
        .started_utc_s = 1795960100,
        .elapsed_s = 20,
        .time_ns = summary,
        .combined_ns = samples,
        .combined_count = steps,
        .rank = ranks,
        .metrics = &m,
        .series = series,
        .series_count = is_async ? 2 : 1,
    };
    data_must(ptb_store_add_case(run->store, run->repetition, &record), "add step");
}

static inline void data_add_step(const data_run *run, const char *strategy, int batch, double compute_ms,
                                 double exposed_ms)
{
    data_add_steps(run, strategy, batch, compute_ms, exposed_ms, DATA_STEPS);
}

// The collectives of a `quick` run that went well: what a healthy machine shows.
static inline void data_add_quick_sweeps(const data_run *run)
{
    static const char *const places[] = {"out", "in"};
    double f = 2.0 * (run->ranks - 1) / run->ranks;
    for (size_t p = 0; p < 2; p++) {
        data_coll c = {.bench = "all_reduce",
                       .place = places[p],
                       .type = "f32",
                       .op = "sum",
                       .noise = 0.05,
                       .bus_factor = f};
        c.comm = "mpi", c.algo = "default";
        data_add_sweep(run, c, 900 + 40.0 * (double)p, 4.6, 64 << 20);
        c.comm = "host", c.algo = "ring";
        data_add_sweep(run, c, 1300, 7.1, 64 << 20);
        c.algo = "direct";
        data_add_sweep(run, c, 550, 17.5, 64 << 20);
    }
    data_coll b = {.bench = "broadcast",
                   .comm = "host",
                   .algo = "tree",
                   .place = "out",
                   .type = "f32",
                   .noise = 0.04,
                   .bus_factor = 1};
    data_add_sweep(run, b, 400, 9, 16 << 20);
    data_coll s = {.bench = "sendrecv",
                   .comm = "mpi",
                   .pattern = "one_way",
                   .type = "f32",
                   .noise = 0.06,
                   .bus_factor = 1};
    data_add_sweep(run, s, 450, 12, 16 << 20);
    s.pattern = "ring_shift";
    data_add_sweep(run, s, 800, 9, 16 << 20);
    data_coll barrier = {.bench = "barrier",
                         .comm = "mpi",
                         .algo = "default",
                         .median_ns = 480,
                         .noise = 0.1,
                         .samples = 200,
                         .bus_factor = NAN};
    data_add_coll(run, &barrier);
}

// Cases of a `quick` run that went wrong, failed, were skipped or carry a warning.
static inline void data_add_quick_troubles(const data_run *run)
{
    double f = 2.0 * (run->ranks - 1) / run->ranks;
    data_coll wrong = {.bench = "reduce_scatter",
                       .comm = "host",
                       .algo = "ring",
                       .place = "out",
                       .type = "f32",
                       .op = "sum",
                       .bytes = 65536,
                       .median_ns = 21000,
                       .noise = 0.05,
                       .samples = 60,
                       .bus_factor = f / 2,
                       .state = "wrong",
                       .reason = "rank 1, element 17: wanted 3, got 0"};
    data_add_coll(run, &wrong);
    data_coll skip = {.bench = "all_gather",
                      .comm = "mpi",
                      .algo = "bruck",
                      .place = "out",
                      .type = "f32",
                      .bus_factor = NAN,
                      .state = "skipped",
                      .reason = "this Open MPI does not let its algorithm be chosen at run time"};
    for (skip.bytes = 8; skip.bytes <= 4096; skip.bytes *= 8)
        data_add_coll(run, &skip);
    data_coll failed = {.bench = "all_to_all",
                        .comm = "mpi",
                        .algo = "default",
                        .place = "out",
                        .type = "f32",
                        .bytes = 67108864,
                        .bus_factor = NAN,
                        .state = "failed",
                        .reason = "not enough memory on rank 1"};
    data_add_coll(run, &failed);
    data_coll warned = {.bench = "all_gather",
                        .comm = "mpi",
                        .algo = "default",
                        .place = "out",
                        .type = "f32",
                        .bytes = 67108864,
                        .median_ns = 270e6,
                        .noise = 0.2,
                        .samples = 4,
                        .bus_factor = f / 2,
                        .warning = "the MPI library's own allocations page-fault in every call"};
    data_add_coll(run, &warned);
}

// The collectives of a `quick` run, with one wrong, one failed and some skipped cases.
static inline void data_add_quick(const data_run *run)
{
    data_add_quick_sweeps(run);
    data_add_quick_troubles(run);
}

#endif
