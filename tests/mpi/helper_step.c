// helper_step [--options of the benchmark step]: what test_step_*.sh start under mpirun. Runs the first case
// for HELPER_STEPS (20) steps without the runner and prints, on rank 0, "loss STEP VALUE", "metric NAME
// VALUE" (of its own: middle_step, in ms), "fact NAME VALUE" and "verdict CHECKED WRONG DETAIL" (the worst of
// all ranks). HELPER_FAULT=RANK makes that rank hand back its collectives undone, to see that the checks
// notice.
#include "collectives/world.h"
#include "core/bench.h"
#include "core/clock.h"
#include "core/log.h"
#include "tests/mpi/faulty_comm.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static long long number(const char *name, long long otherwise)
{
    const char *text = getenv(name);
    return text ? atoll(text) : otherwise;
}

// Mean of the middle half of the steps by the slowest rank's time, as the parts of a step are means over.
static ptb_status find_middle(ptb_world *world, double *samples, size_t count, double *middle_ns)
{
    PTB_TRY(ptb_world_reduce_max(world, samples, count));
    ptb_stats_sort(samples, count);
    *middle_ns = 0;
    for (size_t i = count / 4; i < count - count / 4; i++)
        *middle_ns += samples[i] / (double)(count - 2 * (count / 4));
    return PTB_OK;
}

static ptb_status measure(const ptb_bench *bench, ptb_bench_run *run, ptb_world *world, uint64_t steps)
{
    double *samples = calloc(steps, sizeof *samples);
    for (uint64_t i = 0; i < steps; i++) {
        PTB_TRY(bench->reset(run));
        PTB_TRY(ptb_world_start(world));
        int64_t begin = ptb_clock_ns();
        PTB_TRY(bench->iterate(run, 1));
        samples[i] = (double)(ptb_clock_ns() - begin);
    }
    ptb_timing timing = {
        .time_ns = ptb_stats_summarise(samples, steps), .mine_ns = samples, .mine_count = steps, .batch = 1};
    ptb_verdict verdict = {0};
    PTB_TRY(bench->verify(run, &verdict));
    ptb_metrics metrics = {0};
    PTB_TRY(bench->metrics(run, &timing, &metrics));
    ptb_verdict *all = calloc((size_t)world->size, sizeof *all);
    PTB_TRY(ptb_world_gather(world, 0, &verdict, sizeof verdict, all));
    ptb_series series;
    ptb_params facts = {0};
    bench->facts(run, &facts);
    double middle_ns;
    PTB_TRY(find_middle(world, samples, steps, &middle_ns));
    if (world->rank == 0) {
        printf("metric middle_step %.9g ms\n", middle_ns * 1e-6);
        for (size_t i = 0; bench->series(run, i, &series); i++)
            for (size_t k = 0; k < series.count; k++)
                printf("%s %zu %.17g\n", series.name, k, series.values[k]);
        for (size_t i = 0; i < metrics.count; i++)
            printf("metric %s %.9g %s\n", metrics.items[i].name, metrics.items[i].value,
                   metrics.items[i].unit);
        for (size_t i = 0; i < facts.count; i++)
            printf("fact %s %s\n", facts.items[i].name, facts.items[i].value);
        for (int r = 1; r < world->size; r++)
            if (all[r].wrong > verdict.wrong)
                verdict = all[r];
        printf("verdict %" PRIu64 " %" PRIu64 " %s\n", verdict.checked, verdict.wrong, verdict.detail);
    }
    free(samples);
    free(all);
    return PTB_OK;
}

static ptb_status run_case(const ptb_bench *bench, ptb_world *world, const void *config)
{
    ptb_bench_env env = {.world = world, .seed = (uint64_t)number("HELPER_SEED", 1)};
    ptb_bench_run *run;
    PTB_TRY(bench->open(&env, config, &run));
    ptb_case c;
    bool more;
    char reason[PTB_REASON_BYTES] = "";
    ptb_status status = bench->next(run, &c, &more);
    if (status == PTB_OK)
        status = bench->prepare(run, &c, reason);
    if (status == PTB_SKIPPED && world->rank == 0)
        printf("skipped %s\n", reason);
    if (status == PTB_OK)
        status = measure(bench, run, world, (uint64_t)number("HELPER_STEPS", 20));
    bench->finish(run);
    bench->close(run);
    return status;
}

int main(int argc, char **argv)
{
    const ptb_bench *bench = (const ptb_bench *)ptb_registry_find(PTB_KIND_BENCH, "step");
    void *config = bench ? calloc(1, bench->config_size) : NULL;
    if (!config)
        return 99;
    ptb_opt_set set = {bench->opts, bench->opt_count, config, "step"};
    const char *words[1];
    size_t word_count;
    ptb_opts_defaults(&set);
    ptb_status status = ptb_opts_parse(&set, 1, argc, argv, 1, words, 1, &word_count);
    if (status != PTB_OK)
        return ptb_status_exit_code(status);
    ptb_world *world;
    status = ptb_world_open_mpi(true, &world);
    if (status != PTB_OK)
        return ptb_status_exit_code(status);
    faulty_comm_set_rank((int)number("HELPER_FAULT", -1));
    status = run_case(bench, world, config);
    ptb_world_close(world);
    ptb_opts_release(&set);
    free(config);
    return ptb_status_exit_code(status);
}
