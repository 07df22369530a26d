// helper_step_rate [--options of the benchmark step]: rate of a training step against the best rate of matrix
// products in the same type (ptb_kernels.matmul_peak: the better of our own and oneDNN's), interleaved in one
// process, so that both see the same machine. Prints the median, least and largest ratio of HELPER_ROUNDS (9)
// rounds. Rates count the products of the step as computed (matmul_flops_per_s).
#include "collectives/world.h"
#include "core/bench.h"
#include "core/clock.h"
#include "core/device.h"
#include "core/option.h"
#include "strategies/transformer/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS_MAX = 1000 };

// The best rate of this round, on a stream with as many threads as the step's kernels have.
typedef struct {
    const ptb_kernels *kernels;
    ptb_stream *stream;
    ptb_dtype type;
    int threads;
} product_rate;

static ptb_status measure_products(const product_rate *r, double *best)
{
    return r->kernels->matmul_peak(r->stream, r->type, r->threads, best);
}

static ptb_status measure(const ptb_bench *bench, ptb_bench_run *run, const product_rate *rate, size_t rounds)
{
    static double ratio[ROUNDS_MAX], step_ns[ROUNDS_MAX], peak[ROUNDS_MAX];
    PTB_TRY(bench->iterate(run, 3));
    for (size_t i = 0; i < rounds; i++) {
        PTB_TRY(measure_products(rate, &peak[i]));
        PTB_TRY(bench->reset(run));
        int64_t begin = ptb_clock_ns();
        PTB_TRY(bench->iterate(run, 1));
        step_ns[i] = (double)(ptb_clock_ns() - begin);
    }
    ptb_timing timing = {.time_ns = ptb_stats_summarise(step_ns, rounds), .mine_count = rounds, .batch = 1};
    ptb_metrics metrics = {0};
    PTB_TRY(bench->metrics(run, &timing, &metrics));
    double flops = 0;
    for (size_t i = 0; i < metrics.count; i++)
        if (strcmp(metrics.items[i].name, "matmul_flops_per_s") == 0)
            flops = metrics.items[i].value * timing.time_ns.median * 1e-9;
    for (size_t i = 0; i < rounds; i++)
        ratio[i] = flops / (step_ns[i] * 1e-9) / peak[i];
    ptb_summary r = ptb_stats_summarise(ratio, rounds), p = ptb_stats_summarise(peak, rounds);
    printf("step: %.1f ms, %.1f GFLOP/s; best product: %.1f GFLOP/s; ratio %.3f (least %.3f, largest %.3f, "
           "%zu rounds)\n",
           timing.time_ns.median * 1e-6, flops / timing.time_ns.median, p.median * 1e-9, r.median, r.min,
           r.max, rounds);
    for (size_t i = 0; i < metrics.count; i++)
        if (strcmp(metrics.items[i].unit, "ms") == 0)
            printf("  %-12s %8.2f ms\n", metrics.items[i].name, metrics.items[i].value);
    return PTB_OK;
}

static ptb_status run_case(ptb_world *world, const ptb_bench *bench, const void *config, product_rate rate,
                           size_t rounds)
{
    ptb_bench_env env = {.world = world, .seed = 1};
    ptb_bench_run *run;
    ptb_case c;
    bool more;
    char reason[PTB_REASON_BYTES] = "";
    ptb_device *device;
    rate.kernels = (const ptb_kernels *)ptb_registry_find(PTB_KIND_KERNELS, "host");
    PTB_TRY(ptb_device_open("host", 0, &device));
    PTB_TRY(ptb_stream_new(device, PTB_STREAM_WORKER, 3, &rate.stream));
    PTB_TRY(bench->open(&env, config, &run));
    ptb_status status = bench->next(run, &c, &more);
    if (status == PTB_OK)
        status = bench->prepare(run, &c, reason);
    if (status == PTB_SKIPPED)
        printf("skipped: %s\n", reason);
    if (status == PTB_OK)
        status = measure(bench, run, &rate, rounds);
    bench->finish(run);
    bench->close(run);
    ptb_stream_free(rate.stream);
    ptb_device_close(device);
    return status;
}

static void *value_of(const ptb_opt_set *set, const char *name)
{
    return (char *)set->config + ptb_opts_find(set, name)->offset;
}

int main(int argc, char **argv)
{
    const ptb_bench *bench = (const ptb_bench *)ptb_registry_find(PTB_KIND_BENCH, "step");
    void *config = calloc(1, bench->config_size);
    ptb_opt_set set = {bench->opts, bench->opt_count, config, "step"};
    const char *words[1], *rounds = getenv("HELPER_ROUNDS");
    size_t word_count, count = rounds ? (size_t)atoll(rounds) : 9;
    product_rate rate = {.type = PTB_F32};
    ptb_opts_defaults(&set);
    ptb_status status = ptb_opts_parse(&set, 1, argc, argv, 1, words, 1, &word_count);
    rate.threads = (int)*(int64_t *)value_of(&set, "threads");
    if (status == PTB_OK && !ptb_dtype_parse(*(char **)value_of(&set, "precision"), &rate.type)) {
        fprintf(stderr, "one --precision at a time\n");
        status = PTB_USAGE;
    }
    ptb_world *world = NULL;
    if (status == PTB_OK)
        status = ptb_world_open_mpi(true, &world);
    if (status == PTB_OK)
        status = run_case(world, bench, config, rate, count < ROUNDS_MAX ? count : ROUNDS_MAX);
    ptb_world_close(world);
    ptb_opts_release(&set);
    free(config);
    return ptb_status_exit_code(status);
}
