// Trains a small model divided over ranks, which are threads of this process, on the device that
// PTB_TEST_DEVICE names (host unless it is set), and puts its parameters and gradients back together as the
// whole model's.
#ifndef PTB_TESTS_UNIT_STRATEGIES_FIXTURE_H
#define PTB_TESTS_UNIT_STRATEGIES_FIXTURE_H

#include "collectives/world.h"
#include "strategies/step_verify.h"
#include "strategies/strategy.h"
#include "tests/unit/trainer_fixture.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { STEPS = 5, UNITS = 4, RANKS_MAX = 8, TENSORS_MAX = UNITS * PTB_TENSORS_MAX };

// What a fault does to what one rank gets from the collectives of one lane.
// SHIFTED: rank 0 takes its part of the vocabulary to begin one token later.
typedef enum { NO_FAULT, SKIPPED, DOUBLED, SHIFTED } fault_kind;

typedef struct {
    const char *strategy, *mesh;
    int ranks;
    ptb_model_shape shape;
    int64_t batch, micro_batches;
    ptb_recompute recompute;
    ptb_optimizer_kind optimizer;
    double clip;
    bool pack, without_overlap, graph;
    ptb_dtype type; // 0: f32
    fault_kind fault;
    ptb_lane_use fault_lane;
    void (*adjust)(ptb_trainer_config *config); // the last word
} division_asked;

typedef struct {
    division_asked asked;
    ptb_status status[RANKS_MAX];
    char reason[RANKS_MAX][PTB_REASON_BYTES];
    double losses[RANKS_MAX][STEPS], norms[RANKS_MAX][STEPS];
    // Of the whole model, tensor behind tensor; how often each element was put there.
    size_t count, first[TENSORS_MAX];
    float *parameters, *gradients;
    unsigned char *seen[2];
    const char *names[TENSORS_MAX];
    pthread_mutex_t lock;
    ptb_lane_moved moved[RANKS_MAX][PTB_LANE_COUNT];
} division_run;

// Where the whole model's tensors stand in the arrays.
static void place_whole(division_run *run)
{
    ptb_layout l;
    assert_int_equal(ptb_layout_init(&l, &run->asked.shape, NULL), PTB_OK);
    assert_true(l.units <= UNITS);
    for (size_t u = 0; u < l.units; u++)
        for (size_t t = 0; t < l.unit[u].tensors; t++) {
            size_t at = u * PTB_TENSORS_MAX + l.unit[u].tensor[t].number;
            run->first[at] = run->count;
            run->names[at] = l.unit[u].tensor[t].name;
            run->count += ptb_tensor_whole_count(&l.unit[u].tensor[t]);
        }
    ptb_layout_release(&l);
    run->parameters = calloc(run->count, sizeof *run->parameters);
    run->gradients = calloc(run->count, sizeof *run->gradients);
    for (int i = 0; i < 2; i++)
        run->seen[i] = calloc(run->count, 1);
}

static void release_run(division_run *run)
{
    free(run->parameters);
    free(run->gradients);
    free(run->seen[0]);
    free(run->seen[1]);
}

// Elements [part.first, +count) of a rank's index space, values in host memory, to where they are in the
// whole.
static void put_part(division_run *run, const ptb_layout *l, ptb_data_what what, const ptb_data_part *part,
                     const float *values)
{
    float *to = what == PTB_DATA_PARAMETERS ? run->parameters : run->gradients;
    for (size_t u = 0; u < l->units; u++)
        for (size_t t = 0; t < l->unit[u].tensors; t++) {
            const ptb_tensor *tensor = &l->unit[u].tensor[t];
            size_t begin = l->unit[u].first + tensor->first, count = ptb_tensor_count(tensor);
            size_t base = run->first[u * PTB_TENSORS_MAX + tensor->number];
            for (size_t i = 0; i < count; i++) {
                size_t whole, at = begin + i;
                if (at < part->first || at >= part->first + part->count)
                    continue;
                ptb_tensor_run(tensor, i, &whole);
                to[base + whole] = values[at - part->first];
                run->seen[what][base + whole] = 1;
            }
        }
}

static ptb_status put_parts(division_run *run, ptb_trainer *t, ptb_data_what what)
{
    ptb_data_part part;
    for (size_t i = 0; t->data->ops->part(t->data, what, i, &part); i++) {
        void *values;
        PTB_TRY(ptb_device_alloc_host(t->device, (part.count + 1) * sizeof(float), &values));
        ptb_status status = ptb_stream_copy(t->compute, values, part.values, part.count * sizeof(float));
        if (status == PTB_OK)
            status = ptb_stream_sync(t->compute);
        pthread_mutex_lock(&run->lock);
        if (status == PTB_OK)
            put_part(run, t->config.layout, what, &part, values);
        pthread_mutex_unlock(&run->lock);
        ptb_device_free_host(t->device, values);
        PTB_TRY(status);
    }
    return PTB_OK;
}

// A communicator whose f32 collectives go wrong on this rank; one a thread.
static _Thread_local struct {
    ptb_comm_ops ops;
    const ptb_comm_ops *inner;
    fault_kind kind;
    void *saved;
} faulty;

static ptb_status faulty_collective(ptb_comm *comm, const ptb_coll *call, ptb_stream *stream)
{
    size_t bytes = call->count * ptb_dtype_size(call->dtype);
    bool spoil = call->dtype == PTB_F32 && call->send == call->recv;
    if (spoil && faulty.kind == SKIPPED)
        PTB_TRY(ptb_stream_copy(stream, faulty.saved, call->recv, bytes));
    PTB_TRY(faulty.inner->collective(comm, call, stream));
    if (spoil && faulty.kind == SKIPPED)
        return ptb_stream_copy(stream, call->recv, faulty.saved, bytes);
    if (spoil)
        return stream->ops->reduce(stream, PTB_F32, PTB_SUM, call->recv, call->recv, call->recv, call->count);
    return PTB_OK;
}

static ptb_status spoil(ptb_trainer *t, const division_asked *a)
{
    ptb_comm *comm = t->lanes.lane[a->fault_lane].comm;
    if (a->fault == NO_FAULT || a->fault == SHIFTED || t->config.world->rank != 0)
        return PTB_OK;
    faulty.kind = a->fault;
    faulty.inner = comm->ops;
    faulty.ops = *comm->ops;
    faulty.ops.collective = faulty_collective;
    comm->ops = &faulty.ops;
    return ptb_device_alloc(t->device, PTB_MEMORY_WORKSPACE, 1 << 20, &faulty.saved);
}

// What a user's run is checked by says that nothing is wrong.
static ptb_status check_verdict(ptb_trainer *t)
{
    ptb_step_hashes hashes;
    ptb_verdict verdict;
    PTB_TRY(ptb_step_verify(t, false, &hashes, &verdict));
    if (verdict.wrong)
        print_error("rank %d: %s\n", t->config.world->rank, verdict.detail);
    return verdict.wrong ? PTB_WRONG : PTB_OK;
}

// Whether everything that was recorded since the last clear says that it belongs to this step. Where updates
// go on beside later steps, recording does too.
static bool spans_are_of(const ptb_trainer *t, uint64_t step)
{
    size_t count, dropped;
    if (t->clocks)
        return true;
    const ptb_span *spans = ptb_trace_spans(t->config.trace, &count, &dropped);
    for (size_t i = 0; i < count; i++)
        if (spans[i].correlation != step) {
            print_error("rank %d: %s of step %llu says step %llu\n", t->config.world->rank, spans[i].name,
                        (unsigned long long)step, (unsigned long long)spans[i].correlation);
            return false;
        }
    return !dropped && count > 0;
}

static ptb_status train(ptb_world *world, division_run *run, ptb_trainer *t)
{
    if (!trainer_ledger_holds(t))
        return PTB_WRONG;
    PTB_TRY(spoil(t, &run->asked));
    for (int i = 0; i < STEPS; i++) {
        ptb_trace_clear(t->config.trace);
        PTB_TRY(ptb_trainer_step(t));
        if (!spans_are_of(t, (uint64_t)i))
            return PTB_WRONG;
    }
    PTB_TRY(ptb_trainer_drain(t));
    if (!run->asked.fault && !trainer_ledger_holds(t)) // nothing was allocated since
        return PTB_WRONG;
    memcpy(run->losses[world->rank], t->losses, sizeof run->losses[0]);
    memcpy(run->norms[world->rank], t->norms, sizeof run->norms[0]);
    ptb_lanes_moved(&t->lanes, run->moved[world->rank]);
    PTB_TRY(put_parts(run, t, PTB_DATA_PARAMETERS));
    PTB_TRY(put_parts(run, t, PTB_DATA_GRADIENTS));
    if (run->asked.fault && run->asked.fault != SHIFTED && world->rank == 0) {
        t->lanes.lane[run->asked.fault_lane].comm->ops = faulty.inner;
        ptb_device_free(t->device, faulty.saved);
    }
    return run->asked.fault ? PTB_OK : check_verdict(t);
}

static ptb_trainer_config configure(ptb_world *world, const division_asked *a, const ptb_layout *layout,
                                    const ptb_strategy *strategy, const ptb_mesh *mesh)
{
    ptb_dtype type = a->type ? a->type : PTB_F32;
    return (ptb_trainer_config){
        .world = world,
        .strategy = ptb_strategy_data(strategy),
        .mesh = *mesh,
        .sequence_parallel = strategy->sequence,
        .kernels = test_kernels(),
        .layout = layout,
        .device = test_device(),
        .comm = test_comm(),
        .comm_config = {.threads = true},
        .optimizer = {.kind = a->optimizer,
                      .rate = a->optimizer == PTB_OPTIMIZER_SGD ? 0.3 : 0.003,
                      .rate_warmup = 2,
                      .beta1 = 0.9,
                      .beta2 = 0.95,
                      .epsilon = 1e-8,
                      .momentum = 0.5,
                      .decay = 0.1,
                      .clip = a->clip,
                      .loss_scale = 1,
                      .growth_interval = 1000},
        .type = type,
        .reduce_type = PTB_F32,
        .batch = a->batch,
        .micro_batches = a->micro_batches ? a->micro_batches : 1,
        .recompute = a->recompute,
        .recompute_every = 1,
        .packed = a->pack,
        .seed = 1,
        .bucket_bytes = 4096,
        .overlap = !a->without_overlap,
        .deterministic = true,
        .graph = a->graph,
        .threads = 1,
        .max_steps = STEPS,
    };
}

static ptb_status division_rank(ptb_world *world, void *arg)
{
    division_run *run = arg;
    const division_asked *a = &run->asked;
    const ptb_strategy *strategy = ptb_strategy_find(a->strategy);
    char *reason = run->reason[world->rank];
    ptb_mesh_sizes sizes;
    ptb_mesh mesh;
    ptb_layout layout;
    ptb_tokens *tokens;
    ptb_trace *trace;
    if (!strategy)
        return PTB_USAGE;
    PTB_TRY(ptb_mesh_parse(a->mesh, &sizes));
    ptb_status status = ptb_strategy_mesh(strategy, &sizes, world, &a->shape, &mesh, reason);
    if (status != PTB_OK)
        return status;
    ptb_layout_cut cut = ptb_mesh_cut(&mesh);
    PTB_TRY(ptb_layout_init(&layout, &a->shape, &cut));
    if (a->fault == SHIFTED && world->rank == 0)
        layout.first_token++;
    ptb_tokens_config source = {
        .seed = 1, .length = a->shape.sequence, .vocabulary = a->shape.vocabulary, .pack = a->pack};
    PTB_TRY(ptb_tokens_open(&source, &tokens));
    PTB_TRY(ptb_trace_new(20000, world->rank, &trace));
    ptb_trainer_config config = configure(world, a, &layout, strategy, &mesh);
    config.trace = trace;
    config.tokens = tokens;
    if (a->adjust)
        a->adjust(&config);
    ptb_trainer *trainer = NULL;
    status = ptb_trainer_new(&config, reason, &trainer);
    if (status == PTB_OK)
        status = train(world, run, trainer);
    run->status[world->rank] = status;
    ptb_trainer_free(trainer);
    ptb_trace_free(trace);
    ptb_tokens_close(tokens);
    ptb_layout_release(&layout);
    return status;
}

// NULL when all went well, else what did not (not thread-safe).
static const char *divide_and_train(const division_asked *asked, division_run *run)
{
    static char problem[PTB_REASON_BYTES + 64];
    *run = (division_run){.asked = *asked, .lock = PTHREAD_MUTEX_INITIALIZER};
    place_whole(run);
    ptb_status status = ptb_world_run_local(asked->ranks, NULL, division_rank, run);
    if (status != PTB_OK) {
        snprintf(problem, sizeof problem, "status %s %s", ptb_status_name(status), run->reason[0]);
        return problem;
    }
    for (size_t i = 0; i < run->count; i++)
        if (!run->seen[0][i] || !run->seen[1][i]) {
            snprintf(problem, sizeof problem, "element %zu of the whole model has no %s", i,
                     run->seen[0][i] ? "gradient" : "parameter");
            return problem;
        }
    for (int r = 1; r < asked->ranks; r++)
        if (memcmp(run->losses[r], run->losses[0], sizeof run->losses[0])) {
            snprintf(problem, sizeof problem, "losses of rank %d are not those of rank 0", r);
            return problem;
        }
    return NULL;
}

// Largest of ||a - b|| / ||b|| over the tensors of two models that are divided differently; *worst is its
// name.
static double tensor_difference(const division_run *run, const float *a, const float *b, const char **worst)
{
    double most = 0;
    for (size_t t = 0; t < TENSORS_MAX; t++) {
        if (!run->names[t])
            continue;
        size_t end = run->count;
        for (size_t next = t + 1; next < TENSORS_MAX && end == run->count; next++)
            end = run->names[next] ? run->first[next] : end;
        double difference = 0, size = 0;
        for (size_t i = run->first[t]; i < end; i++) {
            difference += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
            size += (double)b[i] * (double)b[i];
        }
        double relative = difference > 0 ? sqrt(difference / size) : 0;
        if (!(relative <= most)) {
            most = relative;
            *worst = run->names[t];
        }
    }
    return most;
}

// One rank, without microbatches.
static inline void train_alone(division_asked asked, division_run *run)
{
    asked.strategy = "ddp";
    asked.mesh = "";
    asked.ranks = 1;
    asked.micro_batches = 1;
    asked.recompute = PTB_RECOMPUTE_NONE;
    asked.graph = false;
    asked.fault = NO_FAULT;
    const char *problem = divide_and_train(&asked, run);
    if (problem)
        print_error("one rank: %s\n", problem);
    assert_null(problem);
}

static inline double series_difference(const double *a, const double *b)
{
    double most = 0;
    for (int i = 0; i < STEPS; i++)
        most = fmax(most, isfinite(a[i]) ? fabs(a[i] / b[i] - 1) : INFINITY);
    return most;
}

// The largest relative difference of anything to one rank's; *what it was of.
static inline double compare_runs(const division_run *run, const division_run *alone, const char **what)
{
    const char *worst = "";
    static char name[64];
    double differences[] = {series_difference(run->losses[0], alone->losses[0]),
                            series_difference(run->norms[0], alone->norms[0]),
                            tensor_difference(run, run->gradients, alone->gradients, &worst),
                            tensor_difference(run, run->parameters, alone->parameters, &worst)};
    static const char *const names[] = {"loss", "norm", "gradient", "parameter"};
    double most = -1;
    for (int i = 0; i < 4; i++)
        if (!(differences[i] <= most)) {
            most = differences[i];
            snprintf(name, sizeof name, "%s %s", names[i], i < 2 ? "" : worst);
        }
    *what = name;
    return most;
}

#endif
