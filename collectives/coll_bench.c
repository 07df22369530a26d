// The life of a run of a collective benchmark: communicators and buffers that are made once and kept for all
// cases that can use them, and the timed loops, which hold nothing but the calls.
#include "collectives/coll_run.h"
#include "core/log.h"
#include "core/random.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static ptb_status enqueue_group(ptb_bench_run *run)
{
    ptb_comm *comm = run->comm;
    ptb_stream *stream = run->stream;
    PTB_TRY(comm->ops->group_begin(comm));
    for (uint64_t m = 0; m < run->aggregate; m++)
        PTB_TRY(ptb_comm_collective(comm, &run->call, stream));
    return comm->ops->group_end(comm, stream);
}

static ptb_status loop_groups(ptb_bench_run *run, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        PTB_TRY(enqueue_group(run));
    return ptb_stream_sync(run->stream);
}

static ptb_status enqueue_one(ptb_bench_run *run)
{
    return run->aggregate > 1 ? enqueue_group(run) : ptb_comm_collective(run->comm, &run->call, run->stream);
}

static ptb_status loop_blocking(ptb_bench_run *run, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        PTB_TRY(enqueue_one(run));
        PTB_TRY(ptb_stream_sync(run->stream));
    }
    return PTB_OK;
}

static ptb_status loop_graph(ptb_bench_run *run, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        PTB_TRY(ptb_graph_launch(run->graph, run->stream));
        if (run->plan.blocking)
            PTB_TRY(ptb_stream_sync(run->stream));
    }
    return ptb_stream_sync(run->stream);
}

// What the graph is about to launch tells the communicator what it will run.
static void name_kernels(ptb_bench_run *run)
{
    enum { MOST = 8 };
    const char *names[MOST];
    size_t count = run->comm->ops->recorded ? ptb_graph_kernels(run->graph, names, MOST) : 0;
    if (count > 0 && count <= MOST)
        run->comm->ops->recorded(run->comm, &run->call, names, count, "captured graph");
}

// One iteration as a graph. It runs once as it is before, so that the library makes its connections, and says
// what it runs, outside of the capture.
static ptb_status capture(ptb_bench_run *run)
{
    PTB_TRY(enqueue_one(run));
    PTB_TRY(ptb_stream_sync(run->stream));
    PTB_TRY(ptb_graph_begin(run->stream));
    ptb_status status = enqueue_one(run);
    ptb_status ended = ptb_graph_end(run->stream, &run->graph);
    if (ended != PTB_OK)
        run->graph = NULL;
    else
        name_kernels(run);
    run->loop = loop_graph;
    return status != PTB_OK ? status : ended;
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
                            int subject_count, const ptb_bench_env *env, const ptb_opt_set *options,
                            ptb_bench_run **out)
{
    ptb_bench_run *run = calloc(1, sizeof *run);
    if (!run) {
        ptb_error("no memory for a benchmark of %s", subjects[0].collective.plugin.name);
        return PTB_NO_MEMORY;
    }
    run->env = env;
    const ptb_coll_config *config = options->config;
    ptb_status status = ptb_coll_plan_make(subjects, subject_names, subject_count, env, config, &run->plan);
    if (status == PTB_OK)
        status = ptb_coll_check_used(&run->plan, options);
    if (status != PTB_OK)
        goto release;
    size_t n = (size_t)(run->plan.comm_count * run->plan.algo_count);
    run->comms = calloc(n, sizeof *run->comms);
    run->opened = calloc(n, sizeof *run->opened);
    run->opened_why = calloc(n, sizeof *run->opened_why);
    if (!run->comms || !run->opened || !run->opened_why) {
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
                               const ptb_opt_set *options, ptb_bench_run **out)
{
    ptb_coll_subject *subject = calloc(1, sizeof *subject);
    if (!subject) {
        ptb_error("no memory for a benchmark of %s", collective->plugin.name);
        return PTB_NO_MEMORY;
    }
    *subject = (ptb_coll_subject){.collective = *collective, .trips = 1, .latency = !collective->has_data};
    ptb_bench_run *run;
    ptb_status status = ptb_coll_run_new(subject, NULL, 1, env, options, &run);
    if (status != PTB_OK) {
        free(subject);
        return status;
    }
    run->own_subject = subject;
    *out = run;
    return PTB_OK;
}

// ---- what the first prepare makes

static ptb_status set_up(ptb_bench_run *run)
{
    ptb_world *world = run->env->world;
    if (run->ready)
        return PTB_OK;
    if (run->place_count + run->refused_count == 0)
        PTB_TRY(ptb_coll_places_open(run));
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
    run->ready = true;
    return PTB_OK;
}

// ---- communicators

static ptb_status use_comm(ptb_bench_run *run, const ptb_coll_point *point, char *reason)
{
    int slot = point->comm * run->plan.algo_count + point->algo;
    const char *name = run->plan.comms[point->comm]->plugin.name;
    const char *algorithm = run->plan.algos[point->algo];
    bool is_first = run->opened[slot] == PTB_SKIPPED;
    if (is_first) {
        ptb_comm_config config = {.algorithm = strcmp(algorithm, "default") == 0 ? NULL : algorithm,
                                  .transport = run->plan.transport,
                                  .segment_bytes = run->plan.segment_bytes,
                                  .timeout_s = run->env->timeout_s,
                                  .channels = run->plan.channels,
                                  .gpu_direct = run->plan.gpu_direct,
                                  .device = ptb_coll_place_name(&run->plan, point->comm),
                                  .measure = !ptb_coll_is_p2p(&run->plan.subjects[point->subject])};
        ptb_listener listener;
        ptb_listen_begin(&listener);
        run->opened[slot] = ptb_comm_open(name, run->group, &config, &run->comms[slot]);
        ptb_listen_end(&listener);
        memcpy(run->opened_why[slot], listener.heard, PTB_HEARD_BYTES);
    }
    run->comm = run->opened[slot] == PTB_OK ? run->comms[slot] : NULL;
    if (run->opened[slot] == PTB_UNSUPPORTED) {
        if (run->opened_why[slot][0]) // else another rank knows
            snprintf(reason, PTB_REASON_BYTES, "communicator %s: %s", name, run->opened_why[slot]);
        return PTB_SKIPPED;
    }
    // Of this case, too, the cause has to be known.
    if (!is_first && run->opened[slot] != PTB_OK && run->opened_why[slot][0])
        ptb_error("communicator %s could not be opened: %s", name, run->opened_why[slot]);
    return run->opened[slot];
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

static ptb_status make_ready(ptb_bench_run *run, const ptb_case *c, char *reason)
{
    if (c->index >= run->plan.point_count) {
        ptb_error("case %zu does not exist; there are %zu", c->index, run->plan.point_count);
        return PTB_INTERNAL;
    }
    const ptb_coll_point *point = &run->plan.points[c->index];
    PTB_TRY(ptb_world_agree(run->env->world, set_up(run)));
    run->point = point;
    run->subject = &run->plan.subjects[point->subject];
    run->aggregate = (uint64_t)run->plan.aggregate;
    PTB_TRY(ptb_coll_place_use(run, point, reason));
    PTB_TRY(use_comm(run, point, reason));
    if (run->subject->collective.has_data)
        PTB_TRY(ptb_coll_buffers_use(run, reason));
    set_call(run);
    if (!ptb_coll_is_p2p(run->subject) &&
        !run->comm->ops->supports(run->comm, &run->call, point->in_place, reason))
        return PTB_SKIPPED;
    // A seed for each group and case, so that data left from elsewhere cannot pass.
    uint64_t seed = ptb_random_u64(run->env->seed, (uint64_t)run->plan.colour, c->index);
    ptb_pattern_init(&run->pattern, seed, point->type, point->op, run->group->size);
    run->refill = c->fixed_batch;
    run->loop = run->subject->loop ? run->subject->loop : run->aggregate > 1 ? loop_groups : loop_calls;
    if (run->plan.blocking && !run->subject->loop)
        run->loop = loop_blocking;
    return PTB_OK;
}

ptb_status ptb_coll_bench_prepare(ptb_bench_run *run, const ptb_case *c, char *reason)
{
    ptb_status status = make_ready(run, c, reason);
    if (run->plan.graph) { // which runs the call once: on all ranks or on none
        PTB_TRY(ptb_world_agree(run->env->world, status));
        PTB_TRY(capture(run));
    }
    PTB_TRY(status);
    run->iterations = 0;
    run->sent_before = run->comm->sent;
    return run->subject->collective.has_data ? ptb_coll_fill(run) : PTB_OK;
}

void ptb_coll_bench_finish(ptb_bench_run *run)
{
    run->point = NULL; // buffers and communicators stay for the next case
    ptb_graph_free(run->graph);
    run->graph = NULL;
}

void ptb_coll_bench_close(ptb_bench_run *run)
{
    if (!run)
        return;
    ptb_graph_free(run->graph);
    ptb_coll_buffers_free(run);
    for (int i = run->comms ? run->plan.comm_count * run->plan.algo_count : 0; i-- > 0;)
        ptb_comm_close(run->comms[i]);
    if (run->group != run->env->world)
        ptb_world_close(run->group);
    ptb_coll_places_close(run);
    ptb_coll_plan_release(&run->plan);
    free(run->comms);
    free(run->opened);
    free(run->opened_why);
    free(run->pair_counts);
    free(run->own_subject);
    free(run);
}
