// Runs a collective benchmark as the runner does (open, next, prepare, reset, iterate, verify, metrics),
// without timing.
#ifndef PTB_TESTS_CONFORMANCE_BENCH_PATH_H
#define PTB_TESTS_CONFORMANCE_BENCH_PATH_H

#include "collectives/coll_bench.h"
#include "collectives/comm.h"
#include "core/bench.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    long cases, skipped, wrong, no_check;
    uint64_t checked;
    char skip[PTB_REASON_BYTES]; // the last reason
    ptb_verdict first_wrong;
    char first_key[PTB_KEY_BYTES];
    ptb_metrics metrics; // of the last case
    ptb_params facts;
} bench_result;

static inline ptb_status bench_case(const ptb_bench *bench, ptb_bench_run *run, const ptb_case *c,
                                    bench_result *result)
{
    char reason[PTB_REASON_BYTES] = "";
    ptb_status status = c->skip[0] ? PTB_SKIPPED : bench->prepare(run, c, reason);
    if (status == PTB_SKIPPED) {
        result->skipped++;
        snprintf(result->skip, sizeof result->skip, "%s", c->skip[0] ? c->skip : reason);
        return PTB_OK;
    }
    PTB_TRY(status);
    for (int sample = 0; sample < 3; sample++) {
        PTB_TRY(bench->reset(run));
        PTB_TRY(bench->iterate(run, c->fixed_batch ? 1 : 2));
    }
    ptb_verdict verdict;
    PTB_TRY(bench->verify(run, &verdict));
    result->cases++;
    result->no_check += !verdict.done;
    result->checked += verdict.checked;
    if (verdict.wrong && result->wrong++ == 0) {
        result->first_wrong = verdict;
        ptb_case_key(bench->plugin.name, c, result->first_key);
    }
    double mine = 1000;
    ptb_timing timing = {.mine_ns = &mine, .mine_count = 1, .batch = 1};
    timing.time_ns = ptb_stats_summarise(&mine, 1);
    result->metrics = (ptb_metrics){0};
    result->facts = (ptb_params){0};
    PTB_TRY(bench->metrics(run, &timing, &result->metrics));
    bench->facts(run, &result->facts);
    bench->finish(run);
    return PTB_OK;
}

// `settings`: name, value, name, value, ..., NULL.
static inline ptb_status bench_run(ptb_world *world, const char *name, const char *const *settings,
                                   bench_result *result)
{
    *result = (bench_result){0};
    const ptb_bench *bench = (const ptb_bench *)(const void *)ptb_registry_need(PTB_KIND_BENCH, name);
    if (!bench)
        return PTB_USAGE;
    ptb_coll_config config = {0};
    ptb_opt_set set = {bench->opts, bench->opt_count, &config, name};
    ptb_opts_defaults(&set);
    ptb_status status = PTB_OK;
    for (; *settings && status == PTB_OK; settings += 2)
        status = ptb_opts_assign(&set, settings[0], settings[1], "test");
    ptb_bench_env env = {.world = world, .seed = 7, .share_gpu = true};
    ptb_bench_run *run = NULL;
    if (status == PTB_OK)
        status = bench->open(&env, &config, &run);
    ptb_case c;
    bool more = true;
    while (status == PTB_OK && more) {
        status = bench->next(run, &c, &more);
        if (status == PTB_OK && more)
            status = bench_case(bench, run, &c, result);
    }
    if (run)
        bench->close(run);
    ptb_opts_release(&set);
    return status;
}

static inline double bench_metric(const bench_result *result, const char *name)
{
    for (size_t i = 0; i < result->metrics.count; i++)
        if (strcmp(result->metrics.items[i].name, name) == 0)
            return result->metrics.items[i].value;
    return -1;
}

#endif
