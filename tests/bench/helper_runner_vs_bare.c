// The runner against a bare loop: the same library call on the same buffers in the same processes, in turn.
// Started on two ranks by tests/bench/runner_vs_bare.sh; prints one line a case with the median of the
// rounds' ratios and their spread.
#include "bench/measure.h"
#include "bench/runner.h"
#include "collectives/coll_run.h"
#include "collectives/world.h"
#include "core/clock.h"
#include "core/log.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *bytes, *mode;
    int64_t samples;
} setting;

static const setting settings[] = {{"8", "back-to-back", 400},
                                   {"64K", "back-to-back", 400},
                                   {"64K", "latency", 2000},
                                   {"16M", "latency", 40}};

typedef struct {
    ptb_world *world;
    const ptb_bench *bench;
    ptb_measure measure;
    ptb_runner *runner;
    ptb_bench_run *run;
    ptb_case c;
} subject;

// What a person would write: barrier, clock, `batch` calls, clock; the time of a sample is the maximum over
// ranks.
static double bare_median_ns(const ptb_coll *call, size_t samples, uint64_t batch, bool start_as_runner,
                             ptb_world *world)
{
    double *times = malloc(samples * sizeof *times), *longest = malloc(samples * sizeof *longest);
    int count = (int)call->count;
    if (!times || !longest)
        abort();
    for (size_t i = 0; i < samples; i++) {
        if (start_as_runner)
            ptb_world_start(world);
        else
            MPI_Barrier(MPI_COMM_WORLD);
        int64_t begin = ptb_clock_ns();
        for (uint64_t b = 0; b < batch; b++)
            MPI_Allreduce(call->send, call->recv, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        times[i] = (double)(ptb_clock_ns() - begin) / (double)batch;
    }
    MPI_Allreduce(times, longest, (int)samples, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    double median = ptb_stats_summarise(longest, samples).median;
    free(times);
    free(longest);
    return median;
}

static ptb_status open_subject(subject *s, const setting *setting, ptb_world *world)
{
    *s = (subject){.world = world};
    s->bench = (const ptb_bench *)ptb_registry_need(PTB_KIND_BENCH, "all_reduce");
    void *config = calloc(1, s->bench->config_size);
    ptb_opt_set set = {s->bench->opts, s->bench->opt_count, config, "all_reduce"},
                measure = ptb_measure_set(&s->measure);
    ptb_opts_defaults(&set);
    ptb_opts_defaults(&measure);
    PTB_TRY(ptb_opts_assign(&set, "comm", "mpi", "test"));
    PTB_TRY(ptb_opts_assign(&set, "place", "out", "test"));
    PTB_TRY(ptb_opts_assign(&set, "bytes", setting->bytes, "test"));
    PTB_TRY(ptb_opts_assign(&measure, "mode", setting->mode, "test"));
    s->measure.iters = setting->samples;
    static ptb_bench_env env; // kept by reference by the benchmark
    env = (ptb_bench_env){.world = world, .seed = 1};
    static ptb_runner_env runner_env;
    runner_env = (ptb_runner_env){.world = world};
    PTB_TRY(s->bench->open(&env, config, &s->run));
    bool more;
    PTB_TRY(s->bench->next(s->run, &s->c, &more));
    return ptb_runner_new(&runner_env, &s->measure, s->bench, &s->runner);
}

// One round: the runner's median over the bare loop's. The order alternates with `round`.
static ptb_status one_round(subject *s, int round, double *ratio, double *same_start, double *runner_ns)
{
    ptb_case_result result;
    static size_t samples;
    static uint64_t batch = 1;
    double bare = 0, bare_started = 0;
    bool bare_first = round & 1;
    if (bare_first) {
        bare = bare_median_ns(&s->run->call, samples, batch, false, s->world);
        bare_started = bare_median_ns(&s->run->call, samples, batch, true, s->world);
    }
    PTB_TRY(ptb_runner_case(s->runner, s->run, &s->c, &result));
    samples = result.count;
    batch = result.batch;
    if (!bare_first) {
        bare_started = bare_median_ns(&s->run->call, samples, batch, true, s->world);
        bare = bare_median_ns(&s->run->call, samples, batch, false, s->world);
    }
    *runner_ns = result.time_ns.median;
    *ratio = result.time_ns.median / bare;
    *same_start = result.time_ns.median / bare_started;
    if (result.state != PTB_CASE_OK)
        ptb_error("the case is not ok: %s", result.reason);
    ptb_runner_end(s->runner, s->run, &s->c);
    return result.state == PTB_CASE_OK ? PTB_OK : PTB_WRONG;
}

static ptb_status measure_setting(const setting *setting, int rounds, ptb_world *world)
{
    subject s;
    PTB_TRY(open_subject(&s, setting, world));
    double *ratio = calloc((size_t)rounds, sizeof *ratio), *started = calloc((size_t)rounds, sizeof *started),
           last = 0;
    for (int round = 0; round < rounds; round++)
        PTB_TRY(one_round(&s, round, &ratio[round], &started[round], &last));
    ptb_summary r = ptb_stats_summarise(ratio, (size_t)rounds),
                q = ptb_stats_summarise(started, (size_t)rounds);
    if (world->rank == 0)
        printf("%6s %-13s %10.3f us  runner/bare %.3f (%.3f to %.3f)  with the runner's start %.3f (%.3f to "
               "%.3f)\n",
               setting->bytes, setting->mode, last / 1e3, r.median, r.min, r.max, q.median, q.min, q.max);
    free(ratio);
    free(started);
    ptb_runner_free(s.runner);
    s.bench->close(s.run);
    return PTB_OK;
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : 11;
    ptb_world *world;
    if (ptb_world_open_mpi(false, &world) != PTB_OK)
        return 3;
    ptb_status status = PTB_OK;
    for (size_t i = 0; i < sizeof settings / sizeof *settings && status == PTB_OK; i++)
        status = measure_setting(&settings[i], rounds, world);
    ptb_world_close(world);
    return ptb_status_exit_code(status);
}
