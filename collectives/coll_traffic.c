// What a case of a collective or of messages sends over links.
#include "collectives/coll_run.h"
#include "collectives/traffic.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const char *ptb_coll_bench_device(ptb_bench_run *run)
{
    return run->device->identity;
}

static bool is_on_gpu(const ptb_bench_run *run)
{
    return strcmp(run->device->ops->plugin.name, "host") != 0;
}

// Point to point: who sends to whom (sendrecv.c has the patterns).
static void messages(const ptb_bench_run *run, double bytes, ptb_traffic *t)
{
    const char *pattern = run->subject->collective.plugin.name;
    int n = run->group->size;
    if (strcmp(pattern, "ring") == 0)
        ptb_traffic_of_messages(run->group, n, n, bytes, t);
    else
        ptb_traffic_of_messages(run->group, strcmp(pattern, "one-way") == 0 ? 1 : 2, 2, bytes, t);
}

// Counts that differ from pair to pair are known to this rank for itself.
static void uneven(const ptb_bench_run *run, double element, ptb_traffic *t)
{
    const ptb_world *g = run->group;
    t->near_bytes = t->far_bytes = 0;
    for (int r = 0; r < g->size; r++) {
        double bytes = (double)run->call.send_counts[r] * element;
        bool is_far = g->host_of[r] != g->host;
        t->near_bytes += r == g->rank || is_far ? 0 : bytes;
        t->far_bytes += is_far ? bytes : 0;
    }
    snprintf(t->how, sizeof t->how, "messages: from each rank to each other, as the counts say");
    snprintf(t->no_peak, sizeof t->no_peak, "which rank sends most by these counts");
}

static void collective(ptb_bench_run *run, double bytes, double element, ptb_traffic *t)
{
    ptb_params facts = {.count = 0};
    if (run->call.kind == PTB_ALL_TO_ALL_V) {
        uneven(run, element, t);
        return;
    }
    run->comm->ops->describe(run->comm, &run->call, &facts);
    const char *algorithm = ptb_traffic_algorithm(&facts, run->group, run->call.kind, t);
    if (!algorithm)
        return;
    const ptb_traffic_call call = {.group = run->group,
                                   .algorithm = algorithm,
                                   .kind = run->call.kind,
                                   .root = run->call.root,
                                   .bytes = bytes,
                                   .in_rank_order = strcmp(run->comm->ops->plugin.name, "nccl") != 0};
    ptb_traffic_of_call(&call, t);
}

// A back-end that moves the data itself has counted what went to other hosts.
static void use_count(const ptb_bench_run *run, ptb_traffic *t)
{
    double far = (double)(run->comm->sent.far_bytes - run->sent_before.far_bytes);
    bool is_ring = strncmp(t->how, "ring:", 5) == 0 || strncmp(t->how, "messages:", 9) == 0;
    t->near_bytes = 0;
    t->far_bytes = far / (double)run->iterations / (double)run->aggregate;
    if (is_ring)
        return;
    snprintf(t->no_peak, sizeof t->no_peak, "which host sends most by this algorithm");
    snprintf(t->how, sizeof t->how, "counted: what the algorithm handed to ranks of other hosts");
}

bool ptb_coll_bench_moves(ptb_bench_run *run, ptb_traffic *t)
{
    const ptb_collective *coll = &run->subject->collective;
    int n = run->group->size;
    double element = (double)ptb_dtype_size(run->point->type);
    double bytes = (double)coll->size_bytes(run->point->count, ptb_dtype_size(run->point->type), n);
    if (!coll->has_data || n == 1 || bytes <= 0 || run->iterations == 0)
        return false;
    *t = (ptb_traffic){.bytes = bytes,
                       .counted = bytes * coll->bus_factor(n),
                       .on_gpu = is_on_gpu(run),
                       .group = run->plan.groups > 1 ? run->plan.colour : 0};
    if (ptb_coll_is_p2p(run->subject))
        messages(run, bytes, t);
    else
        collective(run, bytes, element, t);
    t->bytes = bytes;
    if (!t->on_gpu)
        t->near_rails_only = false;
    if (run->comm->counts_sent && run->group->hosts > 1)
        use_count(run, t);
    if (!t->on_gpu && run->group->hosts == 1) {
        snprintf(t->how, sizeof t->how, "no link: the ranks share the memory of one host");
        t->near_bytes = t->far_bytes = 0;
        t->gpu_most = bytes;
        t->host_most = t->slot_most = 0;
    }
    if (run->plan.groups > 1 && run->env->world->hosts > 1)
        snprintf(t->no_peak, sizeof t->no_peak, "how %d groups share the network", run->plan.groups);
    // An iteration holds several operations; both ways of a ping-pong are sent by a rank each.
    t->near_bytes *= (double)run->aggregate;
    t->far_bytes *= (double)run->aggregate;
    return true;
}
