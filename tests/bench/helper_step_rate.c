// helper_step_rate [--options of the benchmark step]: rate of a training step against the best rate of single
// matrix products, interleaved in one process, so that both see the same machine. Prints the median, least
// and largest ratio of HELPER_ROUNDS (9) rounds. Rates count the products of the step as computed
// (matmul_flops_per_s).
#include "collectives/world.h"
#include "core/bench.h"
#include "core/clock.h"
#include "core/device.h"
#include "strategies/transformer/kernels_host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS_MAX = 1000, PRODUCTS = 5 };

typedef struct {
    size_t m, n, k;
} shape;
// What the library reaches at its best, and the shape of the default model's widest layer.
static const shape shapes[] = {{1024, 3072, 768}, {1024, 1024, 1024}, {1024, 1536, 384}};

typedef struct {
    float *a, *b, *c;
    double best; // FLOP/s
} product_rate;

static ptb_status run_products(void *arg)
{
    product_rate *r = *(product_rate **)arg;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int i = 0; i < PRODUCTS; i++) {
            shape x = shapes[s];
            int64_t begin = ptb_clock_ns();
            PTB_TRY(ptb_host_sgemm('N', 'N', x.m, x.n, x.k, 1, r->a, x.k, r->b, x.n, 0, r->c, x.n));
            double rate = 2.0 * (double)(x.m * x.n * x.k) / (double)(ptb_clock_ns() - begin) * 1e9;
            r->best = rate > r->best ? rate : r->best;
        }
    return PTB_OK;
}

// Best rate of this round, on a stream with as many threads as the step's kernels have.
static ptb_status measure_products(ptb_stream *stream, product_rate *rate)
{
    rate->best = 0;
    PTB_TRY(ptb_stream_call(stream, run_products, &rate, sizeof rate));
    return ptb_stream_sync(stream);
}

static ptb_status measure(const ptb_bench *bench, ptb_bench_run *run, ptb_stream *stream, product_rate *rate,
                          size_t rounds)
{
    static double ratio[ROUNDS_MAX], step_ns[ROUNDS_MAX], peak[ROUNDS_MAX];
    PTB_TRY(bench->iterate(run, 3));
    for (size_t i = 0; i < rounds; i++) {
        PTB_TRY(measure_products(stream, rate));
        PTB_TRY(bench->reset(run));
        int64_t begin = ptb_clock_ns();
        PTB_TRY(bench->iterate(run, 1));
        step_ns[i] = (double)(ptb_clock_ns() - begin);
        peak[i] = rate->best;
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

static ptb_status run_case(ptb_world *world, const ptb_bench *bench, const void *config, int threads,
                           size_t rounds)
{
    ptb_bench_env env = {.world = world, .seed = 1};
    ptb_bench_run *run;
    ptb_case c;
    bool more;
    char reason[PTB_REASON_BYTES] = "";
    ptb_device *device;
    ptb_stream *stream;
    product_rate rate;
    const ptb_kernels *kernels = (const ptb_kernels *)ptb_registry_find(PTB_KIND_KERNELS, "host");
    PTB_TRY(ptb_device_open("host", 0, &device));
    PTB_TRY(ptb_stream_new(device, PTB_STREAM_WORKER, 3, &stream));
    PTB_TRY(kernels->set_threads(stream, threads));
    PTB_TRY(ptb_device_alloc(device, PTB_MEMORY_WORKSPACE, 4 << 20, (void **)&rate.a));
    PTB_TRY(ptb_device_alloc(device, PTB_MEMORY_WORKSPACE, 16 << 20, (void **)&rate.b));
    PTB_TRY(ptb_device_alloc(device, PTB_MEMORY_WORKSPACE, 16 << 20, (void **)&rate.c));
    PTB_TRY(bench->open(&env, config, &run));
    ptb_status status = bench->next(run, &c, &more);
    if (status == PTB_OK)
        status = bench->prepare(run, &c, reason);
    if (status == PTB_SKIPPED)
        printf("skipped: %s\n", reason);
    if (status == PTB_OK)
        status = measure(bench, run, stream, &rate, rounds);
    bench->finish(run);
    bench->close(run);
    ptb_stream_free(stream);
    ptb_device_free(device, rate.a);
    ptb_device_free(device, rate.b);
    ptb_device_free(device, rate.c);
    ptb_device_close(device);
    return status;
}

int main(int argc, char **argv)
{
    const ptb_bench *bench = (const ptb_bench *)ptb_registry_find(PTB_KIND_BENCH, "step");
    void *config = calloc(1, bench->config_size);
    ptb_opt_set set = {bench->opts, bench->opt_count, config, "step"};
    const char *words[1], *rounds = getenv("HELPER_ROUNDS");
    size_t word_count, count = rounds ? (size_t)atoll(rounds) : 9;
    int threads = 1;
    ptb_opts_defaults(&set);
    ptb_status status = ptb_opts_parse(&set, 1, argc, argv, 1, words, 1, &word_count);
    for (size_t i = 0; i < bench->opt_count; i++)
        if (strcmp(bench->opts[i].name, "threads") == 0)
            threads = (int)*(int64_t *)((char *)config + bench->opts[i].offset);
    ptb_world *world = NULL;
    if (status == PTB_OK)
        status = ptb_world_open_mpi(true, &world);
    if (status == PTB_OK)
        status = run_case(world, bench, config, threads, count < ROUNDS_MAX ? count : ROUNDS_MAX);
    ptb_world_close(world);
    ptb_opts_release(&set);
    free(config);
    return ptb_status_exit_code(status);
}
