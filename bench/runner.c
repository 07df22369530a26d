// Leads one case through its life: prepare, warm up, sample until the interval is narrow, verify, derive.
// Every decision is taken from values that all ranks have agreed on, so all take the same one.
#include "bench/runner.h"

#include "bench/counters.h"
#include "bench/sampling.h"
#include "core/clock.h"
#include "core/log.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DEFAULT_MIN = 20, DEFAULT_MAX = 10000, BACK_TO_BACK_MIN = 20, SIZING_SAMPLES = 3 };
static const double short_operation_ns = 10e3; // below, a clock read and a start are no longer negligible
static const double batch_target_ns = 100e3;   // so long a sample lasts in batches
static const double enqueued_factor = 50;      // of both where operations are only enqueued
static const double pipeline_limit_ns = 20e9;  // well below --timeout: nothing says meanwhile that it goes on
static const double round_target_s = 0.05;     // between two agreements
static const double stable_change = 0.05;

struct ptb_runner {
    const ptb_runner_env *env;
    const ptb_measure *measure;
    const ptb_bench *bench;
    size_t min, max; // samples
    ptb_sampler sampler;
    ptb_counters *counters; // of links; NULL: the benchmark moves nothing over any
    double round_s;         // about how long one sample takes, with reset and start
};

ptb_status ptb_runner_new(const ptb_runner_env *env, const ptb_measure *measure, const ptb_bench *bench,
                          ptb_runner **out)
{
    const ptb_bench_defaults *own = &bench->defaults;
    ptb_runner *runner = calloc(1, sizeof *runner);
    ptb_status status = runner ? PTB_OK : PTB_NO_MEMORY;
    if (runner) {
        runner->env = env;
        runner->measure = measure;
        runner->bench = bench;
        runner->min = measure->min_iters ? (size_t)measure->min_iters
                      : own->min_iters   ? (size_t)own->min_iters
                                         : DEFAULT_MIN;
        runner->max = measure->max_iters ? (size_t)measure->max_iters
                      : own->max_iters   ? (size_t)own->max_iters
                                         : DEFAULT_MAX;
        if (measure->iters)
            runner->min = runner->max = (size_t)measure->iters;
        if (runner->max <
            runner->min) // only one of the two was asked for; the other is a default and gives way
            *(measure->max_iters ? &runner->min : &runner->max) =
                measure->max_iters ? runner->max : runner->min;
        size_t room = runner->max > PTB_ROUND_MAX ? runner->max : PTB_ROUND_MAX; // warming up uses it too
        status = ptb_sampler_init(&runner->sampler, env, bench, room, strcmp(measure->time, "avg") == 0);
        if (status == PTB_OK && bench->device)
            status = ptb_counters_new(env->world, &runner->counters);
    }
    status = ptb_world_agree(env->world, status);
    if (status != PTB_OK) {
        ptb_runner_free(runner);
        return status;
    }
    *out = runner;
    return PTB_OK;
}

void ptb_runner_free(ptb_runner *runner)
{
    if (runner) {
        ptb_sampler_release(&runner->sampler);
        ptb_counters_free(runner->counters);
    }
    free(runner);
}

double ptb_runner_estimate_s(const ptb_measure *measure, const ptb_bench *bench, const ptb_case *c)
{
    if (*c->skip)
        return 0;
    const ptb_bench_defaults *own = &bench->defaults;
    double fixed = measure->iters;
    double min = measure->min_iters ? (double)measure->min_iters
                 : own->min_iters   ? own->min_iters
                                    : DEFAULT_MIN;
    double max = measure->max_iters ? (double)measure->max_iters : own->max_iters;
    double warmup = measure->warmup >= 0 ? (double)measure->warmup : own->warmup;
    double iteration_s = c->estimate_s > 0 ? c->estimate_s : measure->max_time_s / min / 2;
    // Sampling to an interval ends somewhere between the fewest samples and the longest time.
    double sampling_s = fixed ? fixed * iteration_s : fmax(min * iteration_s, 0.3 * measure->max_time_s);
    if (!fixed && max)
        sampling_s = fmin(sampling_s, max * iteration_s);
    double warming_s = warmup > 0 ? warmup * iteration_s : fmax(4 * iteration_s, 0.05 * measure->max_time_s);
    return 0.01 + 1.1 * sampling_s + warming_s;
}

void ptb_runner_check_mode(const ptb_measure *measure, const ptb_bench *bench, ptb_case *c)
{
    bool alone = !c->batch && (c->fixed_batch || bench->defaults.latency_only);
    if (*c->skip)
        return;
    if (alone && strcmp(measure->mode, "back-to-back") == 0)
        snprintf(c->skip, sizeof c->skip, "--mode back-to-back: %s; leave --mode out for it",
                 bench->defaults.latency_only
                     ? "each of its iterations is timed alone"
                     : "it overwrites its own input, which has to be set anew before "
                       "the next operation");
    if (c->batch && strcmp(measure->mode, "latency") == 0)
        snprintf(
            c->skip, sizeof c->skip,
            "--mode latency: its iterations overlap, and %llu of them are timed end to end; leave --mode "
            "out for it",
            (unsigned long long)c->batch);
}

static bool is_fixed(const ptb_runner *runner)
{
    return runner->measure->iters > 0;
}

static double median_from(const ptb_sampler *sampler, size_t first)
{
    return ptb_stats_summarise(sampler->combined + first, sampler->count - first).median;
}

// ---- warming up

static ptb_status warm_up(ptb_runner *runner, size_t samples, ptb_case_result *result)
{
    ptb_sampler *s = &runner->sampler;
    for (size_t done = 0; done < samples;) {
        size_t n = samples - done < 64 ? samples - done : 64;
        if (s->count + n > s->capacity)
            s->count = 0;
        PTB_TRY(ptb_sampler_round(s, n));
        done += n;
        result->warmup += n * s->batch;
        if (s->stop)
            return PTB_INTERRUPTED;
    }
    return PTB_OK;
}

// Blocks of growing length until the median of one is no longer clearly below the best one before, or a
// quarter of the case's time is over.
static ptb_status warm_up_until_stable(ptb_runner *runner, ptb_case_result *result)
{
    ptb_sampler *s = &runner->sampler;
    double best_ns = INFINITY, limit_s = runner->measure->max_time_s / 4;
    for (size_t block = 2;; block = block < 32 ? block * 2 : 32) {
        size_t first = s->count + block > s->capacity ? 0 : s->count;
        s->count = first;
        PTB_TRY(warm_up(runner, block, result));
        double block_ns = median_from(s, first);
        bool improves = block_ns < (1 - stable_change) * best_ns;
        if ((!improves && block >= 8) || s->elapsed_s > limit_s)
            return PTB_OK;
        best_ns = fmin(best_ns, block_ns);
    }
}

static ptb_status warm_up_as_asked(ptb_runner *runner, ptb_case_result *result)
{
    double own = runner->bench->defaults.warmup;
    int64_t asked = runner->measure->warmup;
    if (asked >= 0)
        return warm_up(runner, (size_t)asked, result);
    if (own > 0)
        return warm_up(runner, (size_t)own, result);
    return warm_up_until_stable(runner, result);
}

static ptb_status fix_batch(ptb_runner *runner, ptb_bench_run *run, const ptb_case *c,
                            ptb_case_result *result)
{
    ptb_sampler *s = &runner->sampler;
    double most = s->count ? fmax(1, pipeline_limit_ns / median_from(s, 0)) : INFINITY;
    result->mode = "back-to-back";
    result->batch = (double)c->batch < most ? c->batch : (uint64_t)most;
    ptb_sampler_begin(s, run, result->batch);
    return warm_up(runner, 1, result); // tells how long a sample takes
}

// Decides latency or back-to-back and the batch, from the time of single operations just seen.
static ptb_status choose_batch(ptb_runner *runner, ptb_bench_run *run, const ptb_case *c,
                               ptb_case_result *result)
{
    ptb_sampler *s = &runner->sampler;
    const char *asked = runner->measure->mode;
    result->mode = "latency";
    result->batch = 1;
    if (c->batch)
        return fix_batch(runner, run, c, result);
    if (runner->bench->defaults.latency_only || c->fixed_batch || strcmp(asked, "latency") == 0)
        return PTB_OK;
    if (s->count == 0)
        PTB_TRY(warm_up(runner, 3, result));
    double single_ns = median_from(s, 0);
    bool is_forced = strcmp(asked, "back-to-back") == 0;
    double factor = c->is_enqueued ? enqueued_factor : 1;
    if (!is_forced && single_ns >= factor * short_operation_ns)
        return PTB_OK;
    result->mode = "back-to-back";
    // Twice, since the first estimate holds the clock and the start. The fastest of a few counts: one that
    // was interrupted would make the batch far too short.
    for (int i = 0; i < 2; i++) {
        double batch = ceil(factor * batch_target_ns / fmax(single_ns, 1));
        if (is_forced)
            batch = fmax(batch, BACK_TO_BACK_MIN);
        result->batch = batch < 1 ? 1 : batch > 1e6 ? (uint64_t)1e6 : (uint64_t)batch;
        ptb_sampler_begin(s, run, result->batch);
        PTB_TRY(warm_up(runner, SIZING_SAMPLES, result));
        single_ns = ptb_stats_summarise(s->combined, s->count).min;
    }
    return PTB_OK;
}

// ---- sampling

// How many samples to take before the ranks talk again.
static size_t next_round(const ptb_runner *runner)
{
    const ptb_sampler *s = &runner->sampler;
    size_t left = runner->max - s->count;
    size_t wanted = s->count < runner->min ? runner->min - s->count : s->count / 4 + 1;
    // Without any warm-up nothing is known yet: one sample tells.
    double by_time = runner->round_s > 0 ? round_target_s / runner->round_s : 1;
    if (is_fixed(runner))
        wanted = left;
    if ((double)wanted > by_time)
        wanted = by_time < 1 ? 1 : (size_t)by_time;
    wanted = wanted < left ? wanted : left;
    return wanted < PTB_ROUND_MAX ? wanted : PTB_ROUND_MAX;
}

// Why to stop now, or NULL.
static const char *finished(const ptb_runner *runner)
{
    const ptb_sampler *s = &runner->sampler;
    const ptb_measure *m = runner->measure;
    if (is_fixed(runner))
        return s->count >= runner->max ? "fixed" : NULL;
    if (s->count >= runner->max)
        return "max-iters";
    bool is_late = s->elapsed_s >= m->max_time_s;
    if (s->count < runner->min)
        return is_late && s->elapsed_s >= 10 * m->max_time_s && s->count >= 3 ? "max-time" : NULL;
    ptb_summary summary = ptb_stats_summarise(s->combined, s->count);
    if (ptb_stats_relative_ci(&summary) <= m->ci)
        return "ci";
    return is_late ? "max-time" : NULL;
}

static ptb_status sample(ptb_runner *runner, ptb_bench_run *run, ptb_case_result *result)
{
    ptb_sampler *s = &runner->sampler;
    double faults = 0;
    ptb_sampler_begin(s, run, result->batch);
    if (runner->env->trace)
        ptb_trace_clear(runner->env->trace);
    do {
        PTB_TRY(ptb_sampler_round(s, next_round(runner)));
        faults += s->faults;
        runner->round_s = s->elapsed_s / (double)s->count;
        if (s->stop)
            return PTB_INTERRUPTED;
        result->stopped = finished(runner);
    } while (!result->stopped);
    result->faults = faults / (double)(s->count * result->batch);
    result->combined_ns = s->combined;
    result->mine_ns = s->mine;
    result->count = s->count;
    result->time_ns = ptb_stats_summarise(s->combined, s->count);
    return PTB_OK;
}

static ptb_status measure(ptb_runner *runner, ptb_bench_run *run, const ptb_case *c, ptb_case_result *result)
{
    ptb_sampler *s = &runner->sampler;
    ptb_sampler_begin(s, run, 1);
    PTB_TRY(warm_up_as_asked(runner, result));
    double single_s = s->count ? s->elapsed_s / (double)result->warmup : 0;
    PTB_TRY(choose_batch(runner, run, c, result));
    runner->round_s = result->batch > 1 && s->count ? s->elapsed_s / (double)s->count : single_s;
    return sample(runner, run, result);
}

// ---- after timing

ptb_status ptb_reason_gather(ptb_world *world, ptb_status why, const char *mine, char *reason)
{
    char padded[PTB_REASON_BYTES] = "";
    snprintf(reason, PTB_REASON_BYTES, "%s, and no rank said why", ptb_status_meaning(why));
    snprintf(padded, sizeof padded, "%s", mine);
    char *all = world->rank == 0 ? malloc((size_t)world->size * PTB_REASON_BYTES) : NULL;
    ptb_status status = ptb_world_agree(world, world->rank == 0 && !all ? PTB_NO_MEMORY : PTB_OK);
    if (status == PTB_OK)
        status = ptb_world_gather(world, 0, padded, PTB_REASON_BYTES, all);
    const char *best = NULL;
    for (int r = 0; all && status == PTB_OK && r < world->size; r++) {
        const char *said = all + (size_t)r * PTB_REASON_BYTES;
        if (*said && (!best || (strlen(said) > strlen(best) && strncmp(said, best, strlen(best)) == 0)))
            best = said;
    }
    if (best)
        snprintf(reason, PTB_REASON_BYTES, "%.*s", PTB_REASON_BYTES - 1, best);
    free(all);
    return status;
}

static ptb_status verify(ptb_runner *runner, ptb_bench_run *run, ptb_case_result *result)
{
    ptb_world *world = runner->env->world;
    if (!runner->measure->check || !runner->bench->verify)
        return PTB_OK;
    PTB_TRY(ptb_world_agree(world, runner->bench->verify(run, &result->verdict)));
    char mine[PTB_REASON_BYTES] = "";
    double wrong = result->verdict.wrong > 0;
    if (result->verdict.wrong)
        snprintf(mine, sizeof mine, "%s (%llu of %llu elements of rank %d are wrong)", result->verdict.detail,
                 (unsigned long long)result->verdict.wrong, (unsigned long long)result->verdict.checked,
                 world->rank);
    PTB_TRY(ptb_world_reduce_max(world, &wrong, 1));
    if (!wrong)
        return PTB_OK;
    result->state = PTB_CASE_WRONG;
    return ptb_reason_gather(world, PTB_WRONG, mine, result->reason);
}

// What went over links beside what the algorithm that ran implies.
static ptb_status derive_traffic(ptb_runner *runner, ptb_bench_run *run, ptb_case_result *result)
{
    ptb_traffic traffic = {.bytes = 0};
    uint64_t iterations = result->warmup + result->count * result->batch;
    if (!runner->counters || !runner->bench->moves(run, &traffic))
        return PTB_OK;
    return ptb_counters_derive(runner->counters, &traffic, iterations, runner->env->links_told,
                               &result->metrics, &result->facts);
}

static ptb_status derive(ptb_runner *runner, ptb_bench_run *run, ptb_case_result *result)
{
    const ptb_bench *bench = runner->bench;
    ptb_status status = PTB_OK;
    if (bench->metrics) {
        const ptb_timing timing = {.time_ns = result->time_ns,
                                   .mine_ns = result->mine_ns,
                                   .mine_count = result->count,
                                   .warmup = result->warmup,
                                   .batch = result->batch};
        status = bench->metrics(run, &timing, &result->metrics);
    }
    if (bench->facts)
        bench->facts(run, &result->facts);
    status = ptb_world_agree(runner->env->world, status);
    if (status == PTB_OK)
        status = derive_traffic(runner, run, result);
    while (bench->series && result->series_count < PTB_SERIES_MAX &&
           bench->series(run, result->series_count, &result->series[result->series_count]))
        result->series_count++;
    return ptb_world_agree(runner->env->world, status);
}

// ---- a case

bool ptb_runner_faults_spoil(const ptb_case *c, const ptb_case_result *result)
{
    double fault_bytes = result->faults * (double)sysconf(_SC_PAGESIZE);
    return c->bytes > 0 && fault_bytes >= 65536 && fault_bytes >= (double)c->bytes / 8;
}

static void note_faults(const ptb_case *c, ptb_case_result *result)
{
    if (result->count && result->faults >= 1)
        ptb_params_set(&result->facts, "page_faults", "%.0f", result->faults);
    if (result->count && ptb_runner_faults_spoil(c, result))
        ptb_params_set(
            &result->facts, "warning", "%s",
            "memory is allocated and first touched inside the timed call; see README 'MPI allocations'");
}

static ptb_status set_ended(ptb_runner *runner, ptb_status status, const char *mine, ptb_case_result *result)
{
    result->state = status == PTB_SKIPPED || status == PTB_UNSUPPORTED ? PTB_CASE_SKIPPED : PTB_CASE_FAILED;
    result->status = status;
    result->count = 0;
    return ptb_reason_gather(runner->env->world, status, mine, result->reason);
}

static ptb_status run_prepared(ptb_runner *runner, ptb_bench_run *run, const ptb_case *c,
                               ptb_case_result *result)
{
    ptb_counters *counters = runner->counters;
    ptb_status status = counters ? ptb_counters_begin(counters, runner->bench->device(run)) : PTB_OK;
    status = counters ? ptb_world_agree(runner->env->world, status) : status;
    if (status == PTB_OK)
        status = measure(runner, run, c, result);
    if (status == PTB_OK && counters)
        ptb_counters_end(counters);
    if (status == PTB_OK)
        status = verify(runner, run, result);
    if (status == PTB_OK)
        status = derive(runner, run, result);
    return status;
}

// Prepares and runs it. Why it could not be, on the rank that knows, is in `mine` (PTB_REASON_BYTES): what
// the benchmark says, and the first error that was logged.
static ptb_status try_case(ptb_runner *runner, ptb_bench_run *run, const ptb_case *c, ptb_case_result *result,
                           char *mine)
{
    ptb_listener listener;
    ptb_listen_begin(&listener);
    ptb_status prepared = runner->bench->prepare ? runner->bench->prepare(run, c, mine) : PTB_OK;
    ptb_status status = ptb_world_agree(runner->env->world, prepared);
    if (status == PTB_OK)
        status = run_prepared(runner, run, c, result);
    ptb_listen_end(&listener);
    size_t said = strlen(mine);
    if (status != PTB_OK && listener.heard[0] && !strstr(mine, listener.heard))
        snprintf(mine + said, PTB_REASON_BYTES - said, "%s%s", said ? "; " : "", listener.heard);
    return status;
}

ptb_status ptb_runner_case(ptb_runner *runner, ptb_bench_run *run, const ptb_case *c, ptb_case_result *result)
{
    int64_t begin_ns = ptb_clock_ns();
    memset(result, 0, sizeof *result);
    result->started_utc_s = ptb_clock_utc_s();
    result->mode = "latency";
    result->combine = runner->sampler.average ? "avg" : "max";
    result->stopped = "";
    result->batch = 1;
    if (*c->skip) {
        result->state = PTB_CASE_SKIPPED;
        result->status = PTB_SKIPPED;
        snprintf(result->reason, sizeof result->reason, "%s", c->skip);
        return PTB_OK;
    }
    char reason[PTB_REASON_BYTES] = "";
    ptb_status status = try_case(runner, run, c, result, reason);
    if (status != PTB_OK && status != PTB_INTERRUPTED && status != PTB_LOST)
        status = set_ended(runner, status, reason, result);
    if (status == PTB_OK)
        note_faults(c, result);
    result->elapsed_s = (double)(ptb_clock_ns() - begin_ns) * 1e-9;
    return status;
}

void ptb_runner_end(ptb_runner *runner, ptb_bench_run *run, const ptb_case *c)
{
    bool was_prepared = !*c->skip;
    if (was_prepared && runner->bench->finish)
        runner->bench->finish(run);
}
