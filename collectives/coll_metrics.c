// What is derived from the time of a collective, and the facts that go with it.
#include "collectives/coll_run.h"
#include "core/log.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// One rank's view of its group, gathered from all.
typedef struct {
    double size, colour, median_ns;
} member;

// Slowest and fastest bus bandwidth of the groups; a group's time is that of its slowest rank's median.
static void add_group_metrics(const ptb_bench_run *run, const member *members, double trips, double bytes,
                              ptb_metrics *metrics)
{
    double low = INFINITY, high = -INFINITY, total = 0;
    int n = run->env->world->size;
    for (int r = 0; r < n; r++) {
        double slowest_ns = 0;
        bool first = true;
        for (int q = 0; q < n; q++)
            if (members[q].colour == members[r].colour) {
                first = first && q >= r;
                slowest_ns = fmax(slowest_ns, members[q].median_ns);
            }
        if (!first)
            continue;
        double busbw =
            bytes / (slowest_ns / trips) * run->subject->collective.bus_factor((int)members[r].size);
        low = fmin(low, busbw);
        high = fmax(high, busbw);
        total += busbw;
    }
    const char *of = "f(group) * S / t, t = slowest rank's median; of the groups that ran at the same time";
    ptb_metrics_add(metrics, "busbw_slowest_group", low, "GB/s", PTB_HIGHER_IS_BETTER, of);
    ptb_metrics_add(metrics, "busbw_fastest_group", high, "GB/s", PTB_HIGHER_IS_BETTER, of);
    ptb_metrics_add(metrics, "busbw_all_groups", total, "GB/s", PTB_HIGHER_IS_BETTER, of);
}

static ptb_status group_metrics(ptb_bench_run *run, const ptb_timing *timing, double trips, double bytes,
                                ptb_metrics *metrics)
{
    ptb_world *world = run->env->world;
    member mine = {.size = run->group->size, .colour = run->plan.colour};
    mine.median_ns = ptb_stats_summarise(timing->mine_ns, timing->mine_count).median;
    member *members = calloc((size_t)world->size, sizeof *members);
    if (!members) {
        ptb_error("no memory to compare the groups of %d ranks", world->size);
        return PTB_NO_MEMORY;
    }
    ptb_status status = ptb_world_gather(world, 0, &mine, sizeof mine, members);
    if (status == PTB_OK && world->rank == 0)
        add_group_metrics(run, members, trips, bytes, metrics);
    free(members);
    return status;
}

// The formula of busbw in words that fit the collective.
static const char *bus_convention(const ptb_collective *coll, int n)
{
    double factor = coll->bus_factor(n);
    if (n == 1 && factor == 0)
        return "not defined for one rank: the factor holds n-1";
    if (factor == 1)
        return "S / t, t = median over samples of the combined time; factor 1";
    return factor > 1 || coll->kind == PTB_ALL_REDUCE
               ? "2(n-1)/n * S / t, t = median over samples of the combined time"
               : "(n-1)/n * S / t, t = median over samples of the combined time";
}

ptb_status ptb_coll_bench_metrics(ptb_bench_run *run, const ptb_timing *timing, ptb_metrics *metrics)
{
    const ptb_coll_subject *subject = run->subject;
    const ptb_collective *coll = &subject->collective;
    int n = run->plan.group_size[0]; // the group of rank 0, whose values are used
    double bytes = (double)coll->size_bytes(run->point->count, ptb_dtype_size(run->point->type), n);
    double trips = subject->trips * (double)run->aggregate; // operations in one iteration
    double t_ns = timing->time_ns.median / trips;
    if (subject->latency)
        ptb_metrics_add(metrics, "latency", t_ns / 1e3, "us", PTB_LOWER_IS_BETTER,
                        subject->trips == 2 ? "half of a round trip, median"
                                            : "median time of one operation");
    else if (run->aggregate > 1)
        ptb_metrics_add(metrics, "time_per_operation", t_ns / 1e3, "us", PTB_LOWER_IS_BETTER,
                        "median time of an iteration / operations grouped in it");
    if (!coll->has_data)
        return PTB_OK;
    double factor = coll->bus_factor(n);
    bool defined = t_ns > 0;
    ptb_metrics_add(metrics, "algbw", defined ? bytes / t_ns : NAN, "GB/s", PTB_HIGHER_IS_BETTER,
                    subject->convention
                        ? subject->convention
                        : "S / t, t = median over samples of the combined time, 1 GB = 1e9 bytes");
    ptb_metrics_add(metrics, "busbw", defined && factor > 0 ? factor * bytes / t_ns : NAN, "GB/s",
                    PTB_HIGHER_IS_BETTER,
                    subject->convention ? subject->convention : bus_convention(coll, n));
    return run->plan.groups > 1 ? group_metrics(run, timing, trips, bytes, metrics) : PTB_OK;
}

void ptb_coll_bench_facts(ptb_bench_run *run, ptb_params *facts)
{
    run->comm->ops->describe(run->comm, ptb_coll_is_p2p(run->subject) ? NULL : &run->call, facts);
    if (strcmp(run->device->ops->plugin.name, "host") != 0)
        ptb_params_set(facts, "device", "%s", run->device->description);
    if (run->plan.groups > 1) {
        ptb_params_set(facts, "groups", "%d", run->plan.groups);
        ptb_params_set(facts, "group_ranks", "%d", run->group->size);
    }
    uint64_t sent = run->comm->sent.bytes - run->sent_before.bytes;
    if (sent && run->iterations)
        ptb_params_set(facts, "sent_bytes_per_iter", "%.0f", (double)sent / (double)run->iterations);
}
