// Point to point over each path: what one rank moves to another, or to its own host and back, while everybody
// else is idle. One case is one path between one pair, so that a slow link, slot or cable shows as one cell
// of a matrix.
//   send         messages through the communicator (NCCL's kernels, shared memory, the network)
//   h2d, d2h     between the rank's pinned host memory and its device
//   d2d          within the device
//   peer         from the device to another device of the host, by the copy engine
//   peer-kernel  the same by loads and stores of a kernel
// To add a path, add its row in `paths` and its case in move().
#include "collectives/comm.h"
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

enum { LIST_MAX = 16, CASES_MAX = 1 << 14, PEER_TIMEOUT_S = 60 };

typedef enum { PATH_SEND, PATH_H2D, PATH_D2H, PATH_D2D, PATH_PEER, PATH_PEER_KERNEL, PATHS } path_kind;
static const char *const path_names[] = {"send", "h2d", "d2h", "d2d", "peer", "peer-kernel", NULL};

static const char *const pair_choices[] = {"all", "across", "ring", NULL};

typedef struct {
    char *paths, *pairs, *comm, *transport, *device, *bytes;
} pairs_config;

#define FIELD(field) .offset = offsetof(pairs_config, field)
static const ptb_opt options[] = {
    {.name = "paths",
     .type = PTB_OPT_LIST,
     FIELD(paths),
     .def = "auto",
     .metavar = "LIST",
     .help =
         "send (through the communicator), h2d and d2h (pinned host memory), d2d (within a device), peer (to "
         "another device by the copy engine), peer-kernel (by a kernel); auto: send, on devices other than "
         "the "
         "host all of them"},
    {.name = "pairs",
     .type = PTB_OPT_CHOICE,
     FIELD(pairs),
     .def = "all",
     .choices = pair_choices,
     .help = "Which ranks send to which: all to all others; across: only to ranks of the same number on "
             "other hosts "
             "(network cards pair by pair); ring: each to the next"},
    {.name = "comm",
     .type = PTB_OPT_STRING,
     FIELD(comm),
     .def = "auto",
     .metavar = "NAME",
     .help = "Communicator of send; auto: host, or nccl where the device is cuda"},
    {.name = "transport",
     .type = PTB_OPT_STRING,
     FIELD(transport),
     .metavar = "NAME",
     .help = "Transport that send must use"},
    {.name = "device",
     .type = PTB_OPT_STRING,
     FIELD(device),
     .def = "host",
     .metavar = "NAME",
     .help = "Where the buffers are"},
    {.name = "bytes",
     .letter = 'b',
     .type = PTB_OPT_LIST,
     FIELD(bytes),
     .def = "64M",
     .metavar = "LIST",
     .help = "Bytes of one transfer"},
};

typedef struct {
    path_kind path;
    int from, to; // ranks; equal where a rank moves to its own memory
    size_t bytes;
} pairs_point;

struct ptb_bench_run {
    ptb_bench_env env;
    const ptb_comm_ops *comm_ops;
    char *comm_name, *transport, *device_name;
    pairs_point *points;
    size_t count, next, capacity;
    // Made by the first prepare.
    bool ready;
    ptb_device *device;
    ptb_stream *stream;
    ptb_comm *comm;
    char *memory[2]; // device: send, receive
    char *host;      // pinned
    char *acknowledgement;
    // The case in work.
    const pairs_point *point;
    char *peer; // memory of the other device
    ptb_pattern pattern;
};

// ---- options to cases

static ptb_status parse_paths(const char *text, bool is_host, bool wanted[PATHS])
{
    if (strcmp(text, "auto") == 0) {
        for (int p = 0; p < PATHS; p++)
            wanted[p] = p == PATH_SEND || !is_host;
        return PTB_OK;
    }
    char *storage;
    const char *items[LIST_MAX];
    size_t n = ptb_text_split(text, ',', &storage, items, LIST_MAX);
    ptb_status status = PTB_OK;
    for (size_t i = 0; i < n && status == PTB_OK; i++) {
        int p = 0;
        while (p < PATHS && strcmp(path_names[p], items[i]) != 0)
            p++;
        if (p < PATHS) {
            wanted[p] = true;
            continue;
        }
        char near[128];
        ptb_text_nearest(items[i], path_names, PATHS, near, sizeof near);
        ptb_error("--paths: there is no path '%s'; did you mean %s?", items[i], near);
        status = PTB_USAGE;
    }
    free(storage);
    return status;
}

static ptb_status parse_bytes(const char *text, size_t *bytes, size_t *count)
{
    char *storage;
    const char *items[LIST_MAX];
    size_t n = ptb_text_split(text, ',', &storage, items, LIST_MAX);
    ptb_status status = n ? PTB_OK : PTB_USAGE;
    for (size_t i = 0; i < n && status == PTB_OK; i++) {
        uint64_t value;
        if (!ptb_text_parse_size(items[i], &value) || value == 0 || value > 1ull << 40) {
            ptb_error("--bytes '%s': expected a size from 1 to 1T, such as 64M", items[i]);
            status = PTB_USAGE;
        } else {
            bytes[i] = (size_t)value;
        }
    }
    if (n == 0)
        ptb_error("--bytes: expected at least one size, such as 64M");
    *count = n;
    free(storage);
    return status;
}

// Whether `from` sends to `to` under --pairs.
static bool is_paired(const ptb_world *w, const char *pairs, int from, int to)
{
    if (from == to)
        return false;
    if (strcmp(pairs, "ring") == 0)
        return to == (from + 1) % w->size;
    if (strcmp(pairs, "all") == 0)
        return true;
    return w->host_of[from] != w->host_of[to] && ptb_world_local_rank(w, from) == ptb_world_local_rank(w, to);
}

static ptb_status add_point(ptb_bench_run *run, path_kind path, int from, int to, size_t bytes)
{
    if (run->count == CASES_MAX) {
        ptb_error("more than %d pairs; use --pairs across or --pairs ring, fewer --paths or fewer ranks",
                  CASES_MAX);
        return PTB_USAGE;
    }
    run->points[run->count++] = (pairs_point){path, from, to, bytes};
    run->capacity = bytes > run->capacity ? bytes : run->capacity;
    return PTB_OK;
}

static bool between_ranks(path_kind path)
{
    return path == PATH_SEND || path == PATH_PEER || path == PATH_PEER_KERNEL;
}

static ptb_status add_path(ptb_bench_run *run, path_kind path, const char *pairs, size_t bytes)
{
    const ptb_world *w = run->env.world;
    for (int from = 0; from < w->size; from++)
        for (int to = 0; to < w->size; to++)
            if (between_ranks(path) ? is_paired(w, pairs, from, to) : from == to)
                PTB_TRY(add_point(run, path, from, to, bytes));
    return PTB_OK;
}

// Only messages go through a communicator.
static ptb_status check_used(const pairs_config *c, const bool wanted[PATHS])
{
    static const char send[] = "send in --paths", other[] = "send, peer or peer-kernel in --paths";
    const ptb_opt_set set = {
        .opts = options, .count = sizeof options / sizeof *options, .config = (void *)c}; // read alone
    bool sends = wanted[PATH_SEND];
    const ptb_opt_use rows[] = {
        {"comm", send, sends},
        {"transport", send, sends},
        {"pairs", other, sends || wanted[PATH_PEER] || wanted[PATH_PEER_KERNEL]},
    };
    return ptb_opts_check_used(&set, rows, sizeof rows / sizeof *rows);
}

static ptb_status plan(ptb_bench_run *run, const pairs_config *c)
{
    bool wanted[PATHS] = {false};
    size_t bytes[LIST_MAX], sizes;
    bool is_host = strcmp(c->device, "host") == 0;
    run->device_name = strdup(c->device);
    run->comm_name = strdup(strcmp(c->comm, "auto") ? c->comm : is_host ? "host" : "nccl");
    run->transport = c->transport && *c->transport ? strdup(c->transport) : NULL;
    run->points = malloc(CASES_MAX * sizeof *run->points);
    if (!run->device_name || !run->comm_name || !run->points) {
        ptb_error("no memory for the list of pairs");
        return PTB_NO_MEMORY;
    }
    if (!ptb_registry_need(PTB_KIND_DEVICE, c->device))
        return PTB_USAGE;
    PTB_TRY(parse_paths(c->paths, is_host, wanted));
    PTB_TRY(check_used(c, wanted));
    PTB_TRY(parse_bytes(c->bytes, bytes, &sizes));
    if (wanted[PATH_SEND]) {
        run->comm_ops = (const ptb_comm_ops *)ptb_registry_need(PTB_KIND_COMM, run->comm_name);
        if (!run->comm_ops)
            return PTB_USAGE;
    }
    for (int p = 0; p < PATHS; p++)
        for (size_t b = 0; b < sizes && wanted[p]; b++)
            PTB_TRY(add_path(run, (path_kind)p, c->pairs, bytes[b]));
    if (run->count == 0) {
        ptb_error(
            "there are no pairs: %d rank%s on %d host%s; start more ranks (--np), or take other --paths or "
            "--pairs",
            run->env.world->size, run->env.world->size == 1 ? "" : "s", run->env.world->hosts,
            run->env.world->hosts == 1 ? "" : "s");
        return PTB_UNSUPPORTED;
    }
    return PTB_OK;
}

static void pairs_close(ptb_bench_run *run)
{
    if (!run)
        return;
    if (run->device) {
        for (int b = 0; b < 2; b++)
            ptb_device_free(run->device, run->memory[b]);
        ptb_device_free(run->device, run->acknowledgement);
        ptb_device_free_host(run->device, run->host);
    }
    ptb_comm_close(run->comm);
    ptb_stream_free(run->stream);
    ptb_device_close(run->device);
    free(run->points);
    free(run->comm_name);
    free(run->transport);
    free(run->device_name);
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
    ptb_status status = plan(run, config);
    if (status != PTB_OK) {
        pairs_close(run);
        return status;
    }
    *out = run;
    return PTB_OK;
}

static ptb_status pairs_next(ptb_bench_run *run, ptb_case *c, bool *more)
{
    *more = run->next < run->count;
    if (!*more)
        return PTB_OK;
    const pairs_point *p = &run->points[run->next];
    *c = (ptb_case){.index = run->next++, .bytes = p->bytes, .estimate_s = 1e-5 + (double)p->bytes / 20e9};
    ptb_params_set(&c->params, "path", "%s", path_names[p->path]);
    if (p->path == PATH_SEND)
        ptb_params_set(&c->params, "comm", "%s", run->comm_name);
    if (p->path == PATH_SEND && run->transport)
        ptb_params_set(&c->params, "transport", "%s", run->transport);
    ptb_params_set(&c->params, "device", "%s", run->device_name);
    ptb_params_set(&c->params, "from", "%d", p->from);
    ptb_params_set(&c->params, "to", "%d", p->to);
    ptb_params_set(&c->params, "bytes", "%zu", p->bytes);
    ptb_params_set(&c->params, "ranks", "%d", run->env.world->size);
    return PTB_OK;
}

// ---- a case

// Device, stream, buffers and communicator; every rank has all of them, whatever pairs it is in.
static ptb_status set_up(ptb_bench_run *run)
{
    ptb_world *world = run->env.world;
    void *made[4] = {NULL};
    if (run->ready)
        return PTB_OK;
    PTB_TRY(ptb_device_open_local(run->device_name, world, run->env.share_gpu, &run->device));
    PTB_TRY(ptb_stream_new(run->device, PTB_STREAM_CALLER, 0, &run->stream));
    for (int b = 0; b < 2; b++) {
        PTB_TRY(ptb_device_alloc(run->device, PTB_MEMORY_COMMUNICATION, run->capacity, &made[b]));
        run->memory[b] = made[b];
    }
    PTB_TRY(ptb_device_alloc(run->device, PTB_MEMORY_COMMUNICATION, 16, &made[2]));
    run->acknowledgement = made[2];
    PTB_TRY(ptb_device_alloc_host(run->device, run->capacity, &made[3]));
    run->host = made[3];
    run->ready = true;
    return PTB_OK;
}

static ptb_status use_comm(ptb_bench_run *run, char *reason)
{
    if (run->point->path != PATH_SEND || run->comm)
        return PTB_OK;
    ptb_comm_config config = {.transport = run->transport, .timeout_s = PEER_TIMEOUT_S};
    ptb_status status = ptb_comm_open(run->comm_name, run->env.world, &config, &run->comm);
    if (status != PTB_UNSUPPORTED)
        return status;
    snprintf(reason, PTB_REASON_BYTES, "communicator %s cannot be opened here", run->comm_name);
    return PTB_SKIPPED;
}

static bool is_mine(const ptb_bench_run *run)
{
    return run->env.world->rank == run->point->from;
}

// Memory of the other device, on the rank that moves.
static ptb_status use_peer(ptb_bench_run *run, char *reason)
{
    const pairs_point *p = run->point;
    const ptb_world *w = run->env.world;
    const ptb_device_ops *ops = run->device->ops;
    bool by_kernel = p->path == PATH_PEER_KERNEL;
    if (p->path != PATH_PEER && !by_kernel)
        return PTB_OK;
    if (w->host_of[p->from] != w->host_of[p->to]) {
        snprintf(reason, PTB_REASON_BYTES, "ranks %d and %d are on different hosts", p->from, p->to);
        return PTB_SKIPPED;
    }
    if (!ops->alloc_peer || (by_kernel && !ops->copy_by_kernel)) {
        snprintf(reason, PTB_REASON_BYTES, "the device '%s' has no memory of other devices",
                 run->device_name);
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
    return run->point->path == PATH_H2D ? run->host : run->memory[0];
}

static char *target_of(const ptb_bench_run *run)
{
    path_kind path = run->point->path;
    return path == PATH_D2H ? run->host : run->peer ? run->peer : run->memory[1];
}

static ptb_status pairs_prepare(ptb_bench_run *run, const ptb_case *c, char *reason)
{
    run->point = &run->points[c->index];
    PTB_TRY(ptb_world_agree(run->env.world, set_up(run)));
    PTB_TRY(use_comm(run, reason));
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
    const pairs_point *p = run->point;
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
    if (run->point->path == PATH_PEER_KERNEL)
        return run->device->ops->copy_by_kernel(run->stream, to, from, run->point->bytes);
    return ptb_stream_copy(run->stream, to, from, run->point->bytes);
}

static ptb_status pairs_iterate(ptb_bench_run *run, uint64_t n)
{
    if (run->point->path == PATH_SEND)
        PTB_TRY(send_batch(run, n));
    else
        for (uint64_t i = 0; i < n && is_mine(run); i++)
            PTB_TRY(move(run));
    return ptb_stream_sync(run->stream);
}

static ptb_status pairs_verify(ptb_bench_run *run, ptb_verdict *verdict)
{
    const pairs_point *p = run->point;
    int rank = run->env.world->rank;
    *verdict = (ptb_verdict){.done = true};
    if (rank != (p->path == PATH_SEND ? p->to : p->from))
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
    const char *convention = run->point->path == PATH_SEND
                                 ? "S / t, t = median, with a one-byte answer a batch"
                                 : "S / t, t = median; S counted once";
    ptb_metrics_add(metrics, "bandwidth", (double)run->point->bytes / timing->time_ns.median, "GB/s",
                    PTB_HIGHER_IS_BETTER, convention);
    return PTB_OK;
}

static void pairs_facts(ptb_bench_run *run, ptb_params *facts)
{
    ptb_params_set(facts, "device", "%s", run->device->description);
    ptb_params_set(
        facts, "same_host", "%s",
        run->env.world->host_of[run->point->from] == run->env.world->host_of[run->point->to] ? "yes" : "no");
    if (run->point->path == PATH_SEND)
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
    const pairs_point *p = run->point;
    double bytes = (double)p->bytes;
    bool is_host = strcmp(run->device->ops->plugin.name, "host") == 0;
    *t = (ptb_traffic){.bytes = bytes, .counted = bytes, .on_gpu = !is_host};
    if (!between_ranks(p->path)) {
        t->slot_most = bytes;
        snprintf(t->how, sizeof t->how, "one copy: S over the PCIe slot of the GPU");
        return !is_host && p->path != PATH_D2D;
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
    .opts = options,
    .opt_count = sizeof options / sizeof *options,
    .config_size = sizeof(pairs_config),
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
