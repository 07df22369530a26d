// The timed loop. Between the two clock reads there is one call and nothing else: no allocation, no lock, no
// message, no branch on configuration.
#include "bench/sampling.h"

#include "core/clock.h"
#include "core/log.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { EXTRA = 4 }; // elapsed, faults, stop, status behind the samples of a round

ptb_status ptb_sampler_init(ptb_sampler *sampler, const ptb_runner_env *env, const ptb_bench *bench,
                            size_t capacity, bool average)
{
    size_t blocks = 1 + (average ? (size_t)env->world->size : 0);
    *sampler = (ptb_sampler){.env = env, .bench = bench, .capacity = capacity, .average = average};
    sampler->mine = malloc(capacity * sizeof(double));
    sampler->combined = malloc(capacity * sizeof(double));
    sampler->exchange = malloc(blocks * (PTB_ROUND_MAX + EXTRA) * sizeof(double));
    if (!sampler->mine || !sampler->combined || !sampler->exchange) {
        ptb_error("no memory for %zu samples; --max-iters lowers their number", capacity);
        ptb_sampler_release(sampler);
        return PTB_NO_MEMORY;
    }
    // Touched now, so that no page fault falls between samples.
    memset(sampler->mine, 0, capacity * sizeof(double));
    memset(sampler->combined, 0, capacity * sizeof(double));
    memset(sampler->exchange, 0, blocks * (PTB_ROUND_MAX + EXTRA) * sizeof(double));
    return PTB_OK;
}

void ptb_sampler_release(ptb_sampler *sampler)
{
    free(sampler->mine);
    free(sampler->combined);
    free(sampler->exchange);
    *sampler = (ptb_sampler){.env = NULL};
}

void ptb_sampler_begin(ptb_sampler *sampler, ptb_bench_run *run, uint64_t batch)
{
    sampler->run = run;
    sampler->batch = batch;
    sampler->count = 0;
    sampler->elapsed_s = 0;
    sampler->begin_ns = ptb_clock_ns();
}

static ptb_status no_reset(ptb_bench_run *run)
{
    (void)run;
    return PTB_OK;
}

// A rank whose call fails goes on, so that the others are not left waiting; the status is agreed on
// afterwards (but for a lost peer, after which nothing can be agreed). Returns this rank's page faults inside
// the loop.
static __attribute__((noinline)) double take(ptb_sampler *sampler, size_t samples, double *out)
{
    ptb_world *world = sampler->env->world;
    ptb_watch *watch = sampler->env->watch;
    ptb_bench_run *run = sampler->run;
    ptb_status (*const reset)(ptb_bench_run *) = sampler->bench->reset ? sampler->bench->reset : no_reset;
    ptb_status (*const iterate)(ptb_bench_run *, uint64_t) = sampler->bench->iterate;
    const uint64_t batch = sampler->batch;
    ptb_status worst = PTB_OK;
    struct rusage before, after;
    long faults = 0;
    for (size_t i = 0; i < samples; i++) {
        ptb_status ready = reset(run);
        getrusage(RUSAGE_SELF, &before);
        ptb_status started = ptb_world_start(world);
        if (started == PTB_LOST) {
            worst = PTB_LOST;
            break;
        }
        int64_t t0 = ptb_clock_ns();
        ptb_status done = iterate(run, batch);
        int64_t t1 = ptb_clock_ns();
        getrusage(RUSAGE_SELF, &after);
        faults += after.ru_minflt - before.ru_minflt;
        out[i] = (double)(t1 - t0);
        worst = ready > worst ? ready : worst;
        worst = started > worst ? started : worst;
        worst = done > worst ? done : worst;
        if (done == PTB_LOST) {
            worst = PTB_LOST;
            break;
        }
        ptb_watch_beat(watch);
    }
    sampler->status = worst;
    return (double)faults;
}

// exchange[0..n) becomes the mean over ranks and the EXTRA values behind them the maximum.
static ptb_status average_over_ranks(ptb_sampler *sampler, size_t n)
{
    ptb_world *world = sampler->env->world;
    size_t width = n + EXTRA;
    double *mine = sampler->exchange, *all = mine + PTB_ROUND_MAX + EXTRA;
    PTB_TRY(ptb_world_all_gather(world, mine, width * sizeof *mine, all));
    for (size_t i = 0; i < width; i++) {
        double sum = 0, max = all[i];
        for (size_t r = 0; r < (size_t)world->size; r++) {
            double value = all[r * width + i];
            sum += value;
            max = value > max ? value : max;
        }
        mine[i] = i < n ? sum / world->size : max;
    }
    return PTB_OK;
}

ptb_status ptb_sampler_round(ptb_sampler *sampler, size_t samples)
{
    double *mine = sampler->mine + sampler->count, *exchange = sampler->exchange;
    double faults = take(sampler, samples, mine);
    if (sampler->status == PTB_LOST)
        return PTB_LOST; // nobody is left to agree with
    for (size_t i = 0; i < samples; i++)
        exchange[i] = mine[i] /= (double)sampler->batch;
    const atomic_bool *stop = sampler->env->stop;
    exchange[samples] = (double)(ptb_clock_ns() - sampler->begin_ns) * 1e-9;
    exchange[samples + 1] = faults;
    exchange[samples + 2] = stop && atomic_load(stop) ? 1 : 0;
    exchange[samples + 3] = sampler->status;
    if (sampler->average)
        PTB_TRY(average_over_ranks(sampler, samples));
    else
        PTB_TRY(ptb_world_reduce_max(sampler->env->world, exchange, samples + EXTRA));
    memcpy(sampler->combined + sampler->count, exchange, samples * sizeof *exchange);
    sampler->count += samples;
    sampler->elapsed_s = exchange[samples];
    sampler->faults = exchange[samples + 1];
    sampler->stop = exchange[samples + 2] > 0;
    if (sampler->env->tick)
        sampler->env->tick(sampler->env->tick_arg);
    return (ptb_status)exchange[samples + 3];
}
