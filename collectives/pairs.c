// Point to point over each path: what one rank moves to another, or to its own host and back, while everybody
// else is idle. One case is one path between one pair, so that a slow link, slot or cable shows as one cell
// of a matrix.
//   send         messages through the communicator (NCCL's kernels, shared memory, the network)
//   h2d, d2h     between the rank's pinned host memory and its device
//   d2d          within the device
//   peer         from the device to another device of the host, by the copy engine
//   peer-kernel  the same by loads and stores of a kernel
// To add a path, add its name in pairs_plan.c and its case in move().
#include "collectives/comm.h"
#include "collectives/pairs.h"
#include "collectives/traffic.h"
#include "core/bench.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/pattern.h"
#include "core/random.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The device of a rank.
typedef struct {
    char model[128]; // its description without the identity
    char identity[64];
} end_device;

struct ptb_bench_run {
    ptb_bench_env env;
    ptb_pairs_plan plan;
    size_t next;
    uint64_t most_bytes; // the largest transfer that there is memory for, on all ranks
    // Made by the first prepare, unless that has failed.
    bool is_tried;
    ptb_status opened;
    size_t capacity; // bytes of each buffer; 0: no case has memory enough
    ptb_device *device;
    ptb_stream *stream;
    ptb_comm *comm;
    ptb_listener listener; // to the opening
    end_device *devices;   // [ranks]
    char *memory[2];       // device: send, receive
    char *host;            // pinned
    char *acknowledgement;
    // The case in work.
    const ptb_pairs_point *point;
    char *peer; // memory of the other device
    ptb_pattern pattern;
};

static void tear_down(ptb_bench_run *run)
{
    if (run->device) {
        for (int b = 0; b < 2; b++)
            ptb_device_free(run->device, run->memory[b]);
        ptb_device_free(run->device, run->acknowledgement);
        ptb_device_free_host(run->device, run->host);
    }
    ptb_comm_close(run->comm);
    ptb_stream_free(run->stream);
    ptb_device_close(run->device);
    free(run->devices);
    run->devices = NULL;
    run->memory[0] = run->memory[1] = run->acknowledgement = run->host = NULL;
    run->comm = NULL;
    run->stream = NULL;
    run->device = NULL;
}

static void pairs_close(ptb_bench_run *run)
{
    if (!run)
        return;
    tear_down(run);
    ptb_pairs_plan_release(&run->plan);
    free(run);
}

static ptb_status pairs_open(const ptb_bench_env *env, const void *config, ptb_bench_run **out)
{
    ptb_bench_run *run = calloc(1, sizeof *run);
    if (!run) {
        ptb_error("no memory for the state of the benchmark pairs");
        return PTB_NO_MEMORY;
    }
    run->env = *env;
    ptb_status status = ptb_pairs_plan_make(config, env->world, &run->plan);
    if (status != PTB_OK) {
        pairs_close(run);
        return status;
    }
    *out = run;
    return PTB_OK;
}

// ---- memory

static uint64_t spare_of(uint64_t bytes)
{
    return bytes == UINT64_MAX ? bytes : bytes / 10 * 9;
}

// The largest transfer that this rank has memory for: two buffers and another rank's peer copies on the
// device, one in host memory.
static void find_most(ptb_bench_run *run, uint64_t device_bytes)
{
    const ptb_world *world = run->env.world;
    bool is_host = strcmp(run->plan.device, "host") == 0;
    uint64_t host_bytes = ptb_memory_available();
    run->most_bytes = spare_of(device_bytes) / 3;
    if (is_host || host_bytes == UINT64_MAX)
        return;
    host_bytes = spare_of(host_bytes / (uint64_t)world->local_size);
    run->most_bytes = host_bytes < run->most_bytes ? host_bytes : run->most_bytes;
}

static bool fits(const ptb_bench_run *run, size_t bytes, char *reason)
{
    if (bytes <= run->most_bytes)
        return true;
    snprintf(
        reason, PTB_REASON_BYTES,
        "not enough memory: with three buffers on device %s%s, a rank has room for transfers of %.3g GB, "
        "not of %.3g; use smaller --bytes or fewer ranks",
        run->plan.device, strcmp(run->plan.device, "host") ? " and one in host memory" : "",
        (double)run->most_bytes / 1e9, (double)bytes / 1e9);
    return false;
}

// Before the device is open: what the case will be skipped for, if its memory is too little.
static ptb_status foresee(ptb_bench_run *run, const ptb_pairs_point *point, char *skip)
{
    if (!run->most_bytes) {
        uint64_t bytes;
        int sharers;
        PTB_TRY(ptb_device_foresee(run->plan.device, run->env.world, &bytes, &sharers));
        find_most(run, bytes);
    }
    (void)fits(run, point->bytes, skip);
    return PTB_OK;
}

static ptb_status pairs_next(ptb_bench_run *run, ptb_case *c, bool *more)
{
    *more = run->next < run->plan.count;
    if (!*more)
        return PTB_OK;
    const ptb_pairs_point *p = &run->plan.points[run->next];
    *c = (ptb_case){.index = run->next++, .bytes = p->bytes, .estimate_s = 1e-5 + (double)p->bytes / 20e9};
    ptb_params_set(&c->params, "path", "%s", ptb_path_names[p->path]);
    if (p->path == PTB_PATH_SEND)
        ptb_params_set(&c->params, "comm", "%s", run->plan.comm);
    if (p->path == PTB_PATH_SEND && run->plan.transport)
        ptb_params_set(&c->params, "transport", "%s", run->plan.transport);
    ptb_params_set(&c->params, "device", "%s", run->plan.device);
    ptb_params_set(&c->params, "from", "%d", p->from);
    ptb_params_set(&c->params, "to", "%d", p->to);
    ptb_params_set(&c->params, "bytes", "%zu", p->bytes);
    ptb_params_set(&c->params, "ranks", "%d", run->env.world->size);
    return run->env.dry_run ? foresee(run, p, c->skip) : PTB_OK;
}

// ---- a case

static ptb_status allocate(ptb_bench_run *run, size_t bytes, char **memory)
{
    void *made = NULL;
    PTB_TRY(ptb_device_alloc(run->device, PTB_MEMORY_COMMUNICATION, bytes, &made));
    *memory = made;
    return PTB_OK;
}

static ptb_status allocate_all(ptb_bench_run *run)
{
    void *made = NULL;
    PTB_TRY(ptb_stream_new(run->device, PTB_STREAM_CALLER, 0, &run->stream));
    for (int b = 0; b < 2; b++)
        PTB_TRY(allocate(run, run->capacity, &run->memory[b]));
    PTB_TRY(allocate(run, 16, &run->acknowledgement));
    PTB_TRY(ptb_device_alloc_host(run->device, run->capacity, &made));
    run->host = made;
    return PTB_OK;
}

static ptb_status agree_on_most(ptb_bench_run *run)
{
    double most = -(double)run->most_bytes;
    PTB_TRY(ptb_world_reduce_max(run->env.world, &most, 1));
    run->most_bytes = -most < 0x1p63 ? (uint64_t)-most : UINT64_MAX / 2;
    for (size_t i = 0; i < run->plan.count; i++) {
        size_t bytes = run->plan.points[i].bytes;
        if (bytes <= run->most_bytes && bytes > run->capacity)
            run->capacity = bytes;
    }
    return PTB_OK;
}

// What is at the ends of each pair. The model is all that ranks with equal GPUs have in common.
static ptb_status exchange_devices(ptb_bench_run *run)
{
    const ptb_device *device = run->device;
    end_device mine = {.model = ""};
    snprintf(mine.model, sizeof mine.model, "%s", device->description);
    snprintf(mine.identity, sizeof mine.identity, "%s", device->identity);
    char *identity = *mine.identity ? strstr(mine.model, mine.identity) : NULL;
    if (identity && identity - mine.model > 2)
        identity[-2] = '\0'; // of ", GPU-..."
    run->devices = calloc((size_t)run->env.world->size, sizeof *run->devices);
    if (!run->devices)
        ptb_error("no memory for the devices of %d ranks", run->env.world->size);
    PTB_TRY(ptb_world_agree(run->env.world, run->devices ? PTB_OK : PTB_NO_MEMORY));
    return ptb_world_all_gather(run->env.world, &mine, sizeof mine, run->devices);
}

// Device, stream and buffers; every rank has all of them, whatever pairs it is in, or none has.
static ptb_status open_all(ptb_bench_run *run)
{
    ptb_world *world = run->env.world;
    PTB_TRY(ptb_device_open_local(run->plan.device, world, run->env.share_gpu, &run->device));
    PTB_TRY(exchange_devices(run));
    find_most(run, ptb_device_available(run->device));
    PTB_TRY(agree_on_most(run));
    ptb_status status = ptb_world_agree(world, run->capacity ? allocate_all(run) : PTB_OK);
    if (status != PTB_OK)
        tear_down(run);
    return status;
}

// Once: what cannot be had for one case cannot be had for the next.
static ptb_status set_up(ptb_bench_run *run, char *reason)
{
    if (!run->is_tried) {
        ptb_listen_begin(&run->listener);
        run->opened = open_all(run);
        ptb_listen_end(&run->listener);
    }
    run->is_tried = true;
    if (run->opened == PTB_OK)
        return fits(run, run->point->bytes, reason) ? PTB_OK : PTB_SKIPPED;
    if (run->opened != PTB_NO_MEMORY && run->opened != PTB_UNSUPPORTED)
        return run->opened;
    if (run->opened == PTB_NO_MEMORY)
        snprintf(reason, PTB_REASON_BYTES,
                 "buffers of %zu bytes cannot be allocated, use smaller --bytes%s%s", run->capacity,
                 run->listener.heard[0] ? "; " : "", run->listener.heard);
    else if (run->listener.heard[0]) // else another rank knows
        snprintf(reason, PTB_REASON_BYTES, "device '%s': %s", run->plan.device, run->listener.heard);
    return PTB_SKIPPED;
}

static ptb_status use_comm(ptb_bench_run *run)
{
    if (run->point->path != PTB_PATH_SEND || run->comm)
        return PTB_OK;
    ptb_comm_config config = {.transport = run->plan.transport, .timeout_s = run->env.timeout_s};
    return ptb_comm_open(run->plan.comm, run->env.world, &config, &run->comm);
}

static bool is_mine(const ptb_bench_run *run)
{
    return run->env.world->rank == run->point->from;
}

// Memory of the other device, on the rank that moves.
static ptb_status use_peer(ptb_bench_run *run, char *reason)
{
    const ptb_pairs_point *p = run->point;
    const ptb_world *w = run->env.world;
    const ptb_device_ops *ops = run->device->ops;
    bool by_kernel = p->path == PTB_PATH_PEER_KERNEL;
    if (p->path != PTB_PATH_PEER && !by_kernel)
        return PTB_OK;
    if (w->host_of[p->from] != w->host_of[p->to]) {
        snprintf(reason, PTB_REASON_BYTES, "ranks %d and %d are on different hosts", p->from, p->to);
        return PTB_SKIPPED;
    }
    if (!ops->alloc_peer || (by_kernel && !ops->copy_by_kernel)) {
        snprintf(reason, PTB_REASON_BYTES, "the device '%s' has no memory of other devices",
                 run->plan.device);
        return PTB_SKIPPED;
    }
    if (!is_mine(run))
        return PTB_OK;
    void *memory = NULL;
    char why[PTB_PEER_REASON] = "";
    ptb_status status = ops->alloc_peer(run->device, ptb_world_local_rank(w, p->to), p->bytes, why, &memory);
    run->peer = memory;
    if (status != PTB_UNSUPPORTED)
        return status;
    snprintf(reason, PTB_REASON_BYTES, "device %d cannot reach device %d: %s",
             ptb_world_local_rank(w, p->from), ptb_world_local_rank(w, p->to), why);
    return PTB_SKIPPED;
}

// Where a transfer begins and ends on the rank that moves, or that sends and receives.
static char *source_of(const ptb_bench_run *run)
{
    return run->point->path == PTB_PATH_H2D ? run->host : run->memory[0];
}

static char *target_of(const ptb_bench_run *run)
{
    ptb_path path = run->point->path;
    return path == PTB_PATH_D2H ? run->host : run->peer ? run->peer : run->memory[1];
}

static ptb_status pairs_prepare(ptb_bench_run *run, const ptb_case *c, char *reason)
{
    run->point = &run->plan.points[c->index];
    PTB_TRY(set_up(run, reason));
    PTB_TRY(use_comm(run));
    PTB_TRY(use_peer(run, reason));
    const ptb_device_ops *ops = run->device->ops;
    ptb_pattern_init(&run->pattern, ptb_random_u64(run->env.seed, 0, c->index), PTB_U8, PTB_SUM,
                     run->env.world->size);
    if (run->env.world->rank == run->point->to || run->peer)
        PTB_TRY(ptb_stream_set(run->stream, target_of(run), PTB_PATTERN_POISON, run->point->bytes));
    if (is_mine(run))
        PTB_TRY(ops->fill(run->stream, &run->pattern, false, run->point->from, 0, source_of(run),
                          run->point->bytes));
    return ptb_stream_sync(run->stream);
}

// Messages one after the other, and a byte back at the end, without which sending would be over when the
// message has left.
static ptb_status send_batch(ptb_bench_run *run, uint64_t n)
{
    const ptb_comm_ops *ops = run->comm->ops;
    const ptb_pairs_point *p = run->point;
    if (is_mine(run)) {
        for (uint64_t i = 0; i < n; i++)
            PTB_TRY(ops->send(run->comm, run->memory[0], p->bytes, PTB_U8, p->to, run->stream));
        PTB_TRY(ops->recv(run->comm, run->acknowledgement, 1, PTB_U8, p->to, run->stream));
    } else if (run->env.world->rank == p->to) {
        for (uint64_t i = 0; i < n; i++)
            PTB_TRY(ops->recv(run->comm, run->memory[1], p->bytes, PTB_U8, p->from, run->stream));
        PTB_TRY(ops->send(run->comm, run->acknowledgement, 1, PTB_U8, p->from, run->stream));
    }
    return PTB_OK;
}

static ptb_status move(ptb_bench_run *run)
{
    char *to = target_of(run), *from = source_of(run);
    if (run->point->path == PTB_PATH_PEER_KERNEL)
        return run->device->ops->copy_by_kernel(run->stream, to, from, run->point->bytes);
    return ptb_stream_copy(run->stream, to, from, run->point->bytes);
}

static ptb_status pairs_iterate(ptb_bench_run *run, uint64_t n)
{
    if (run->point->path == PTB_PATH_SEND)
        PTB_TRY(send_batch(run, n));
    else
        for (uint64_t i = 0; i < n && is_mine(run); i++)
            PTB_TRY(move(run));
    return ptb_stream_sync(run->stream);
}

static ptb_status pairs_verify(ptb_bench_run *run, ptb_verdict *verdict)
{
    const ptb_pairs_point *p = run->point;
    int rank = run->env.world->rank;
    *verdict = (ptb_verdict){.done = true};
    if (rank != (p->path == PTB_PATH_SEND ? p->to : p->from))
        return PTB_OK;
    char *got = target_of(run);
    if (run->peer) { // brought home for the check
        got = run->memory[1];
        PTB_TRY(ptb_stream_set(run->stream, got, PTB_PATTERN_POISON, p->bytes));
        PTB_TRY(ptb_stream_copy(run->stream, got, run->peer, p->bytes));
    }
    ptb_check check = {0};
    ptb_expect expect = {.kind = PTB_EXPECT_COPY, .count = p->bytes, .source_rank = p->from};
    PTB_TRY(run->device->ops->check(run->stream, &run->pattern, &expect, got, &check));
    PTB_TRY(ptb_stream_sync(run->stream));
    verdict->checked = check.checked;
    verdict->wrong = check.wrong;
    if (check.wrong)
        snprintf(verdict->detail, sizeof verdict->detail, "rank %d, byte %" PRIu64 ": wanted %g, got %g",
                 rank, check.first_wrong, check.wanted, check.got);
    return PTB_OK;
}

static ptb_status pairs_metrics(ptb_bench_run *run, const ptb_timing *timing, ptb_metrics *metrics)
{
    const char *convention = run->point->path == PTB_PATH_SEND
                                 ? "S / t, t = median, with a one-byte answer a batch"
                                 : "S / t, t = median; S counted once";
    ptb_metrics_add(metrics, "bandwidth", (double)run->point->bytes / timing->time_ns.median, "GB/s",
                    PTB_HIGHER_IS_BETTER, convention);
    return PTB_OK;
}

static void pairs_facts(ptb_bench_run *run, ptb_params *facts)
{
    const ptb_pairs_point *p = run->point;
    const end_device *from = &run->devices[p->from], *to = &run->devices[p->to];
    if (strcmp(from->model, to->model) == 0)
        ptb_params_set(facts, "device", "%s", from->model);
    else
        ptb_params_set(facts, "device", "%.48s to %.48s", from->model, to->model);
    if (*from->identity) {
        ptb_params_set(facts, "from_device", "%s", from->identity);
        ptb_params_set(facts, "to_device", "%s", to->identity);
    }
    ptb_params_set(facts, "same_host", "%s",
                   run->env.world->host_of[p->from] == run->env.world->host_of[p->to] ? "yes" : "no");
    if (p->path == PTB_PATH_SEND)
        run->comm->ops->describe(run->comm, NULL, facts);
}

static const char *pairs_device(ptb_bench_run *run)
{
    return run->device->identity;
}

// The fastest of a few tries to copy this case's size by this core, between buffers like those of a message:
// about what a message through the host's memory can reach. A try copies again and again, far longer than the
// clock resolves.
static double copy_gb_s(ptb_bench_run *run)
{
    enum { TRIES = 5, TRY_BYTES = 1 << 20 };
    uint64_t bytes = run->point->bytes, copies = bytes < TRY_BYTES ? TRY_BYTES / bytes : 1;
    if (copies > 10000)
        copies = 10000; // of some bytes each takes as long as the call
    double best_ns = INFINITY;
    for (int i = 0; i < TRIES; i++) {
        int64_t begin_ns = ptb_clock_ns();
        ptb_status status = PTB_OK;
        for (uint64_t k = 0; k < copies && status == PTB_OK; k++)
            status = ptb_stream_copy(run->stream, run->host, run->memory[0], bytes);
        if (status != PTB_OK || ptb_stream_sync(run->stream) != PTB_OK)
            return 0;
        best_ns = fmin(best_ns, (double)(ptb_clock_ns() - begin_ns));
    }
    return (double)bytes * (double)copies / best_ns;
}

// Copies between host and device go over the GPU's slot, those within a device over no link.
static bool pairs_moves(ptb_bench_run *run, ptb_traffic *t)
{
    const ptb_pairs_point *p = run->point;
    double bytes = (double)p->bytes;
    bool is_host = strcmp(run->device->ops->plugin.name, "host") == 0;
    *t = (ptb_traffic){.bytes = bytes, .counted = bytes, .on_gpu = !is_host};
    if (!ptb_path_is_between_ranks(p->path)) {
        t->slot_most = bytes;
        snprintf(t->how, sizeof t->how, "one copy: S over the PCIe slot of the GPU");
        return !is_host && p->path != PTB_PATH_D2D;
    }
    ptb_traffic_of_message(run->env.world, p->from, p->to, bytes, t);
    t->near_rails_only = !is_host;
    if (is_host && t->gpu_most > 0 && is_mine(run))
        t->copy_gb_s = copy_gb_s(run);
    if (is_host)
        t->near_bytes = 0; // through memory
    return true;
}

static void pairs_finish(ptb_bench_run *run)
{
    if (run->peer)
        run->device->ops->free_peer(run->device, ptb_world_local_rank(run->env.world, run->point->to),
                                    run->peer);
    run->peer = NULL;
    run->point = NULL;
}

static const ptb_bench pairs = {
    .plugin = {"pairs",
               "every pair of ranks or devices over every path, one at a time: a matrix of bandwidths"},
    .opts = ptb_pairs_opts,
    .opt_count = PTB_PAIRS_OPT_COUNT,
    .config_size = sizeof(ptb_pairs_config),
    .open = pairs_open,
    .next = pairs_next,
    .prepare = pairs_prepare,
    .iterate = pairs_iterate,
    .verify = pairs_verify,
    .metrics = pairs_metrics,
    .facts = pairs_facts,
    .device = pairs_device,
    .moves = pairs_moves,
    .finish = pairs_finish,
    .close = pairs_close,
};
PTB_REGISTER(PTB_KIND_BENCH, pairs);
