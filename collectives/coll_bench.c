// The life of a run of a collective benchmark: communicators and buffers that are made once and kept for all
// cases that can use them, and the timed loops, which hold nothing but the calls.
#include "collectives/coll_run.h"
#include "core/log.h"
#include "core/random.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PEER_TIMEOUT_S = 60 };

// ---- the timed loops

static ptb_status loop_calls(ptb_bench_run *run, uint64_t n)
{
    ptb_comm *comm = run->comm;
    ptb_stream *stream = run->stream;
    const ptb_coll *call = &run->call;
    for (uint64_t i = 0; i < n; i++)
        PTB_TRY(ptb_comm_collective(comm, call, stream));
    return ptb_stream_sync(stream);
}

static ptb_status loop_groups(ptb_bench_run *run, uint64_t n)
{
    ptb_comm *comm = run->comm;
    ptb_stream *stream = run->stream;
    for (uint64_t i = 0; i < n; i++) {
        PTB_TRY(comm->ops->group_begin(comm));
        for (uint64_t m = 0; m < run->aggregate; m++)
            PTB_TRY(ptb_comm_collective(comm, &run->call, stream));
        PTB_TRY(comm->ops->group_end(comm, stream));
    }
    return ptb_stream_sync(stream);
}

ptb_status ptb_coll_bench_iterate(ptb_bench_run *run, uint64_t n)
{
    run->iterations += n;
    return run->loop(run, n);
}

ptb_status ptb_coll_bench_reset(ptb_bench_run *run)
{
    return run->refill ? ptb_coll_fill_input(run) : PTB_OK;
}

// ---- open

ptb_status ptb_coll_run_new(const ptb_coll_subject *subjects, const char *const *subject_names,
                            int subject_count, const ptb_bench_env *env, const ptb_coll_config *config,
                            ptb_bench_run **out)
{
    ptb_bench_run *run = calloc(1, sizeof *run);
    if (!run) {
        ptb_error("no memory for a benchmark of %s", subjects[0].collective.plugin.name);
        return PTB_NO_MEMORY;
    }
    run->env = env;
    ptb_status status = ptb_coll_plan_make(subjects, subject_names, subject_count, env, config, &run->plan);
    if (status != PTB_OK)
        goto release;
    size_t n = (size_t)(run->plan.comm_count * run->plan.algo_count);
    run->comms = calloc(n, sizeof *run->comms);
    run->opened = calloc(n, sizeof *run->opened);
    if (!run->comms || !run->opened) {
        ptb_error("no memory for %zu communicators", n);
        status = PTB_NO_MEMORY;
        goto release;
    }
    for (size_t i = 0; i < n; i++)
        run->opened[i] = PTB_SKIPPED;
    *out = run;
    return PTB_OK;
release:
    ptb_coll_bench_close(run);
    return status;
}

ptb_status ptb_coll_bench_open(const ptb_collective *collective, const ptb_bench_env *env,
                               const ptb_coll_config *config, ptb_bench_run **out)
{
    ptb_coll_subject *subject = calloc(1, sizeof *subject);
    if (!subject) {
        ptb_error("no memory for a benchmark of %s", collective->plugin.name);
        return PTB_NO_MEMORY;
    }
    *subject = (ptb_coll_subject){.collective = *collective, .trips = 1, .latency = !collective->has_data};
    ptb_bench_run *run;
    ptb_status status = ptb_coll_run_new(subject, NULL, 1, env, config, &run);
    if (status != PTB_OK) {
        free(subject);
        return status;
    }
    run->own_subject = subject;
    *out = run;
    return PTB_OK;
}

// ---- what the first prepare makes

// Bytes of the two buffers of a case, the most that any rank of this rank's group needs.
static void needs(const ptb_bench_run *run, const ptb_coll_point *point, size_t bytes[2])
{
    const ptb_collective *coll = &run->plan.subjects[point->subject].collective;
    int n = run->plan.group_size[run->env->world->rank];
    size_t element = ptb_dtype_size(point->type);
    size_t around = 2 * PTB_COLL_GUARD_BYTES + (size_t)run->plan.misalign * element;
    bytes[0] = bytes[1] = 0;
    for (int r = 0; r < n; r++) {
        ptb_coll_shape shape;
        coll->shape(point->count, n, r, run->plan.root, &shape);
        size_t send = point->in_place ? shape.in_place_count : shape.send_count;
        size_t recv = point->in_place ? 0 : shape.recv_count;
        bytes[0] = send > bytes[0] ? send : bytes[0];
        bytes[1] = recv > bytes[1] ? recv : bytes[1];
    }
    for (int b = 0; b < 2; b++)
        bytes[b] = bytes[b] * element + around;
}

// Places over which a buffer of this size is staggered (ptb_coll_buffer).
static size_t stagger_places(size_t bytes)
{
    return bytes >= PTB_COLL_STAGGERS * PTB_COLL_STAGGER_BYTES ? PTB_COLL_STAGGERS : 1;
}

static size_t staggered_bytes(size_t bytes)
{
    return bytes + (stagger_places(bytes) - 1) * PTB_COLL_STAGGER_BYTES;
}

// What this case needs: its buffers, and libraries copy up to S bytes into memory of their own.
static uint64_t total_need(const ptb_bench_run *run, const ptb_coll_point *point)
{
    size_t bytes[2];
    needs(run, point, bytes);
    return (uint64_t)staggered_bytes(bytes[0]) + staggered_bytes(bytes[1]) +
           (uint64_t)point->count * ptb_dtype_size(point->type);
}

static ptb_status find_budget(ptb_bench_run *run)
{
    ptb_world *world = run->env->world;
    double spare = (double)ptb_device_available(run->device) * 0.9;
    double most = -spare; // the maximum of negatives is the smallest
    PTB_TRY(ptb_world_reduce_max(world, &most, 1));
    run->budget_bytes = -most < 0x1p63 ? (uint64_t)-most : UINT64_MAX / 2;
    for (size_t i = 0; i < run->plan.point_count; i++) {
        size_t bytes[2];
        needs(run, &run->plan.points[i], bytes);
        if (total_need(run, &run->plan.points[i]) > run->budget_bytes)
            continue;
        for (int b = 0; b < 2; b++)
            run->capacity[b] = bytes[b] > run->capacity[b] ? bytes[b] : run->capacity[b];
    }
    return PTB_OK;
}

static ptb_status set_up(ptb_bench_run *run)
{
    ptb_world *world = run->env->world;
    if (run->ready)
        return PTB_OK;
    if (!run->device)
        PTB_TRY(ptb_device_open_local(run->plan.device, world, run->env->share_gpu, &run->device));
    if (!run->stream)
        PTB_TRY(ptb_stream_new(run->device, PTB_STREAM_CALLER, 0, &run->stream));
    if (!run->group && run->plan.groups > 1)
        PTB_TRY(ptb_world_split(world, run->plan.colour, world->rank, &run->group));
    if (!run->group)
        run->group = world;
    if (!run->pair_counts)
        run->pair_counts = calloc(4 * (size_t)run->group->size, sizeof *run->pair_counts);
    if (!run->pair_counts) {
        ptb_error("no memory for the counts of %d ranks", run->group->size);
        return PTB_NO_MEMORY;
    }
    PTB_TRY(find_budget(run));
    run->ready = true;
    return PTB_OK;
}

// ---- communicators and buffers

static ptb_status use_comm(ptb_bench_run *run, const ptb_coll_point *point, char *reason)
{
    int slot = point->comm * run->plan.algo_count + point->algo;
    const char *name = run->plan.comms[point->comm]->plugin.name;
    const char *algorithm = run->plan.algos[point->algo];
    if (run->opened[slot] == PTB_SKIPPED) {
        ptb_comm_config config = {.algorithm = strcmp(algorithm, "default") == 0 ? NULL : algorithm,
                                  .transport = run->plan.transport,
                                  .segment_bytes = run->plan.segment_bytes,
                                  .timeout_s = PEER_TIMEOUT_S,
                                  .measure = !ptb_coll_is_p2p(&run->plan.subjects[point->subject])};
        run->opened[slot] = ptb_comm_open(name, run->group, &config, &run->comms[slot]);
    }
    run->comm = run->opened[slot] == PTB_OK ? run->comms[slot] : NULL;
    if (run->opened[slot] == PTB_UNSUPPORTED) {
        snprintf(reason, PTB_REASON_BYTES,
                 "communicator %s cannot be opened here (algorithm %s, transport %s)", name, algorithm,
                 run->plan.transport ? run->plan.transport : "any");
        return PTB_SKIPPED;
    }
    return run->opened[slot];
}

static void free_buffers(ptb_bench_run *run)
{
    ptb_coll_buffers *buffers = &run->buffers;
    for (int b = 0; b < 2; b++) {
        if (buffers->memory[b] && buffers->owner)
            buffers->owner->ops->free(buffers->owner, buffers->memory[b]);
        else if (buffers->memory[b])
            ptb_device_free(run->device, buffers->memory[b]);
    }
    *buffers = (ptb_coll_buffers){0};
}

static ptb_status use_buffers(ptb_bench_run *run, char *reason)
{
    ptb_coll_buffers *buffers = &run->buffers;
    ptb_comm *owner = run->plan.registered ? run->comm : NULL;
    if (buffers->memory[1] && buffers->owner == owner)
        return PTB_OK;
    free_buffers(run);
    buffers->owner = owner;
    ptb_status status = PTB_OK;
    for (int b = 0; b < 2 && status == PTB_OK; b++) {
        size_t places = stagger_places(run->capacity[b]), bytes = staggered_bytes(run->capacity[b]);
        buffers->stagger[b] = (size_t)(2 * run->env->world->local_rank + b) % places * PTB_COLL_STAGGER_BYTES;
        status = owner ? owner->ops->alloc(owner, bytes, &buffers->memory[b])
                       : ptb_device_alloc(run->device, PTB_MEMORY_COMMUNICATION, bytes, &buffers->memory[b]);
    }
    if (status == PTB_NO_MEMORY) {
        snprintf(reason, PTB_REASON_BYTES, "buffers of %zu and %zu bytes for each rank cannot be allocated",
                 run->capacity[0], run->capacity[1]);
        return PTB_SKIPPED;
    }
    return status;
}

static ptb_status check_memory(const ptb_bench_run *run, const ptb_coll_point *point, char *reason)
{
    uint64_t need = total_need(run, point);
    if (need <= run->budget_bytes)
        return PTB_OK;
    int local = run->device->sharers;
    snprintf(reason, PTB_REASON_BYTES,
             "not enough memory: %d ranks on this %s need about %.2f GB (%.2f GB each for buffers and the "
             "library's copies), and %.2f GB can be used",
             local, run->device->identity[0] ? "GPU" : "host", (double)need * local / 1e9, (double)need / 1e9,
             (double)run->budget_bytes * local / 1e9);
    return PTB_SKIPPED;
}

// ---- a case

static void set_call(ptb_bench_run *run)
{
    const ptb_coll_point *point = run->point;
    const ptb_collective *coll = &run->subject->collective;
    size_t element = ptb_dtype_size(point->type), n = (size_t)run->group->size;
    size_t start = PTB_COLL_GUARD_BYTES + (size_t)run->plan.misalign * element;
    coll->shape(point->count, run->group->size, run->group->rank, run->plan.root, &run->shape);
    run->send = run->recv = NULL;
    if (coll->has_data) {
        run->send = ptb_coll_buffer(run, 0) + start;
        run->recv = ptb_coll_buffer(run, 1) + start;
    }
    if (point->in_place) {
        run->recv = run->send + run->shape.in_place_recv * element;
        run->send += run->shape.in_place_send * element;
    }
    size_t *counts = run->pair_counts;
    if (coll->counts)
        coll->counts(point->count, run->group->size, run->group->rank, counts, counts + n, counts + 2 * n,
                     counts + 3 * n);
    run->call = (ptb_coll){.kind = coll->kind,
                           .send = run->send,
                           .recv = run->recv,
                           .count = point->count,
                           .dtype = point->type,
                           .op = point->op,
                           .root = run->plan.root,
                           .send_counts = coll->counts ? counts : NULL,
                           .send_first = coll->counts ? counts + n : NULL,
                           .recv_counts = coll->counts ? counts + 2 * n : NULL,
                           .recv_first = coll->counts ? counts + 3 * n : NULL};
}

ptb_status ptb_coll_bench_prepare(ptb_bench_run *run, const ptb_case *c, char *reason)
{
    if (c->index >= run->plan.point_count) {
        ptb_error("case %zu does not exist; there are %zu", c->index, run->plan.point_count);
        return PTB_INTERNAL;
    }
    const ptb_coll_point *point = &run->plan.points[c->index];
    PTB_TRY(set_up(run));
    run->point = point;
    run->subject = &run->plan.subjects[point->subject];
    run->aggregate = (uint64_t)run->plan.aggregate;
    PTB_TRY(check_memory(run, point, reason));
    PTB_TRY(use_comm(run, point, reason));
    if (run->subject->collective.has_data)
        PTB_TRY(use_buffers(run, reason));
    set_call(run);
    if (!ptb_coll_is_p2p(run->subject) &&
        !run->comm->ops->supports(run->comm, &run->call, point->in_place, reason))
        return PTB_SKIPPED;
    // A seed for each group and case, so that data left from elsewhere cannot pass.
    uint64_t seed = ptb_random_u64(run->env->seed, (uint64_t)run->plan.colour, c->index);
    ptb_pattern_init(&run->pattern, seed, point->type, point->op, run->group->size);
    run->refill = c->fixed_batch;
    run->loop = run->subject->loop ? run->subject->loop : run->aggregate > 1 ? loop_groups : loop_calls;
    run->iterations = 0;
    run->sent_before = run->comm->sent_bytes;
    return run->subject->collective.has_data ? ptb_coll_fill(run) : PTB_OK;
}

void ptb_coll_bench_finish(ptb_bench_run *run)
{
    run->point = NULL; // buffers and communicators stay for the next case
}

void ptb_coll_bench_close(ptb_bench_run *run)
{
    if (!run)
        return;
    free_buffers(run);
    for (int i = run->comms ? run->plan.comm_count * run->plan.algo_count : 0; i-- > 0;)
        ptb_comm_close(run->comms[i]);
    if (run->group != run->env->world)
        ptb_world_close(run->group);
    ptb_stream_free(run->stream);
    ptb_device_close(run->device);
    ptb_coll_plan_release(&run->plan);
    free(run->comms);
    free(run->opened);
    free(run->pair_counts);
    free(run->own_subject);
    free(run);
}
