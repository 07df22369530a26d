// A model with experts on several ranks, threads of this process, against one rank that has all experts and
// computes the parts of all ranks one after the other, as microbatches. On the device that PTB_TEST_DEVICE
// names (host unless it is set).
#ifndef PTB_TESTS_UNIT_EXPERT_FIXTURE_H
#define PTB_TESTS_UNIT_EXPERT_FIXTURE_H

#include "collectives/world.h"
#include "core/random.h"
#include "strategies/data/data.h"
#include "strategies/transformer/model.h"
#include "tests/unit/device_fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS_MAX = 8, LANE_COMPUTE = 1, LANE_EXPERTS };

typedef struct {
    ptb_model_shape shape;
    const char *dispatch;
    int ranks;
    int parts;    // microbatches of a rank; 0: 1
    bool apart;   // all forward, then all input gradients, then all weight gradients
    bool popular; // every row chooses expert 0
    bool overlap;
    ptb_recompute recompute;
    ptb_dtype type;
    int wrong_expert; // a fault: parameters of the experts are those so many experts further on
    const ptb_kernels *(*kernels)(const ptb_kernels *right); // a fault in a kernel; NULL: none
} expert_case;

typedef struct {
    const expert_case *what;
    int ranks; // that it runs on: the case's, or 1
    ptb_layout whole;
    float *values; /* [whole.count]: parameters */
    double loss[RANKS_MAX];
    float *gradients[RANKS_MAX]; /* [whole.count]: what the rank has of each element */
    int64_t *choices[RANKS_MAX]; /* [layers, 2, experts] */
    ptb_lane_moved moved[RANKS_MAX];
    bool waits;
} expert_run;

enum { BATCH = 2 }; // sequences of a microbatch

static inline int expert_parts(const expert_case *c)
{
    return c->parts ? c->parts : 1;
}

// What one rank has while it runs.
typedef struct {
    expert_run *run;
    int rank, parts; // microbatches of this rank
    ptb_layout layout;
    ptb_device *device;
    ptb_stream *compute, *communication;
    ptb_comm *comm;
    ptb_timeline timeline;
    ptb_lane lane;
    ptb_expert_axis *axis;
    ptb_model *model;
    void *parameters;
    float *gradients;
    double *loss;
} expert_rank;

// Larger than training starts with, and no zeros: every path must show in the loss.
static inline void expert_values(expert_run *r)
{
    const ptb_layout *l = &r->whole;
    r->values = calloc(l->count, sizeof *r->values);
    for (size_t u = 0; u < l->units; u++) {
        const ptb_unit *unit = &l->unit[u];
        float *at = r->values + unit->first;
        ptb_layout_fill(l, 3, u, at);
        for (size_t t = 0; t < unit->tensors; t++)
            for (size_t i = 0; i < ptb_tensor_count(&unit->tensor[t]); i++)
                at[unit->tensor[t].first + i] += 0.2f * (float)ptb_random_normal(5, u * 100 + t, i);
        if (!r->what->popular || !unit->mixture)
            continue;
        // A part of the router's input is the same in all rows, and expert 0 has it.
        const ptb_tensor *bias = ptb_unit_tensor(unit, PTB_BLOCK_NORM2_BIAS);
        const ptb_tensor *router = ptb_unit_tensor(unit, PTB_BLOCK_ROUTER_WEIGHT);
        for (size_t i = 0; i < bias->columns; i++) {
            at[bias->first + i] += 1;
            at[router->first + i] += 1;
        }
    }
}

// f(whole, mine) for the elements of the whole index space that this rank has.
#define EXPERT_EACH(rank, whole_at, mine_at, statement)                                                      \
    for (size_t u = 0; u < (rank)->layout.units; u++)                                                        \
        for (size_t t = 0; t < (rank)->layout.unit[u].tensors; t++) {                                        \
            const ptb_tensor *tensor = &(rank)->layout.unit[u].tensor[t];                                    \
            const ptb_unit *unit = &(rank)->run->whole.unit[u];                                              \
            size_t first = unit->first + ptb_unit_tensor(unit, tensor->role)->first;                         \
            for (size_t i = 0; i < ptb_tensor_count(tensor); i++) {                                          \
                size_t whole_at, mine_at = (rank)->layout.unit[u].first + tensor->first + i;                 \
                (void)ptb_tensor_run(tensor, i, &whole_at);                                                  \
                whole_at += first;                                                                           \
                statement;                                                                                   \
            }                                                                                                \
        }

// The fault: an expert's parameters are those of another one.
static inline size_t expert_source(const expert_rank *r, const ptb_tensor *tensor, size_t first, size_t at)
{
    if (tensor->group != PTB_GROUP_EXPERT)
        return at;
    size_t count = tensor->whole_matrices * tensor->whole_lines * tensor->whole_line;
    size_t shift = (size_t)r->run->what->wrong_expert * tensor->whole_lines * tensor->whole_line;
    return first + (at - first + shift) % count;
}

static inline ptb_status expert_fill(expert_rank *r)
{
    ptb_dtype type = test_type(r->run->what->type);
    size_t element = ptb_dtype_size(type);
    char *values = calloc(r->layout.count, element);
    float *nan = malloc(r->layout.count * sizeof *nan);
    memset(nan, 0xff, r->layout.count * sizeof *nan); // what is not written shows
    EXPERT_EACH(r, whole, mine, {
        size_t from = r->run->ranks > 1 ? expert_source(r, tensor, first, whole) : whole;
        ptb_dtype_store(type, values + mine * element, (double)r->run->values[from]);
        nan[mine] = NAN;
    })
    ptb_status status = ptb_stream_copy(r->compute, r->parameters, values, r->layout.count * element);
    if (status == PTB_OK)
        status = ptb_stream_copy(r->compute, r->gradients, nan, r->layout.count * sizeof *nan);
    ptb_status synced = ptb_stream_sync(r->compute);
    free(values), free(nan);
    return status == PTB_OK ? synced : status;
}

static inline const ptb_kernels *expert_kernels(const expert_run *run)
{
    const ptb_kernels *kernels = NULL;
    (void)ptb_backends_kernels(test_device(), NULL, &kernels);
    return run->what->kernels && run->ranks > 1 ? run->what->kernels(kernels) : kernels;
}

static inline ptb_model_config expert_model(expert_rank *r)
{
    const expert_case *c = r->run->what;
    return (ptb_model_config){.device = r->device,
                              .stream = r->compute,
                              .kernels = expert_kernels(r->run),
                              .layout = &r->layout,
                              .batch = BATCH,
                              .threads = 1,
                              .type = test_type(c->type),
                              .slots = c->apart ? r->parts : 1,
                              .deferred = c->apart,
                              .recompute = c->recompute,
                              .timeline = &r->timeline,
                              .experts = r->axis};
}

// What was allocated is what was predicted, to the byte.
static inline ptb_status expert_open_model(expert_rank *r)
{
    const expert_case *c = r->run->what;
    uint64_t before[PTB_MEMORY_COUNT], predicted[PTB_MEMORY_COUNT] = {0};
    memcpy(before, r->device->used_bytes, sizeof before);
    ptb_expert_env env = {
        .dispatch = (const ptb_expert_dispatch *)ptb_registry_find(PTB_KIND_EXPERT_DISPATCH, c->dispatch),
        .lane = &r->lane,
        .device = r->device,
        .kernels = expert_kernels(r->run),
        .layout = &r->layout,
        .rows = BATCH * (size_t)c->shape.sequence,
        .type = test_type(c->type),
        .overlap = c->overlap};
    if (r->run->ranks > 1)
        PTB_TRY(ptb_expert_axis_open(&env, &r->axis));
    ptb_model_config config = expert_model(r), plan = config;
    PTB_TRY(ptb_model_new(&config, &r->model));
    ptb_expert_axis described;
    if (r->axis) {
        ptb_expert_axis_describe(&env, &described);
        plan.experts = &described;
        r->run->waits = described.sizes.waits;
    }
    ptb_model_memory(&plan, predicted);
    if (r->axis)
        ptb_expert_axis_memory(&described, predicted);
    bool holds = test_ledger_is(r->rank, r->device->used_bytes, before, predicted);
    return holds ? PTB_OK : PTB_WRONG;
}

static inline ptb_status expert_open(ptb_world *world, expert_rank *r)
{
    const expert_case *c = r->run->what;
    ptb_layout_cut cut = {.ep = world->size, .ep_rank = world->rank};
    ptb_comm_config config = {.threads = true};
    PTB_TRY(ptb_layout_init(&r->layout, &c->shape, &cut));
    PTB_TRY(ptb_device_open_local(test_device(), world, false, &r->device));
    PTB_TRY(ptb_stream_new(r->device, PTB_STREAM_WORKER, LANE_COMPUTE, &r->compute));
    PTB_TRY(ptb_stream_new(r->device, PTB_STREAM_URGENT, LANE_EXPERTS, &r->communication));
    r->timeline = (ptb_timeline){.stream = r->compute};
    PTB_TRY(ptb_comm_open(test_comm(), world, &config, &r->comm));
    PTB_TRY(ptb_lane_init(&r->lane, r->comm, PTB_AXIS_EP, &r->timeline, r->communication));
    const ptb_kernels *kernels = expert_kernels(r->run);
    if (kernels->set_search)
        PTB_TRY(kernels->set_search(r->compute, false));
    size_t element = ptb_dtype_size(test_type(c->type)), count = r->layout.count;
    PTB_TRY(ptb_device_alloc(r->device, PTB_MEMORY_PARAMETERS, count * element, &r->parameters));
    PTB_TRY(ptb_device_alloc(r->device, PTB_MEMORY_GRADIENTS, count * sizeof(float), (void **)&r->gradients));
    PTB_TRY(ptb_device_alloc(r->device, PTB_MEMORY_WORKSPACE, sizeof *r->loss, (void **)&r->loss));
    PTB_TRY(expert_open_model(r));
    return expert_fill(r);
}

static inline void expert_close(expert_rank *r)
{
    ptb_model_free(r->model);
    ptb_expert_axis_close(r->axis);
    ptb_lane_release(&r->lane);
    ptb_comm_close(r->comm);
    ptb_device_free(r->device, r->loss);
    ptb_device_free(r->device, r->gradients);
    ptb_device_free(r->device, r->parameters);
    ptb_stream_free(r->communication);
    ptb_stream_free(r->compute);
    ptb_device_close(r->device);
    ptb_layout_release(&r->layout);
}

static inline ptb_unit_memory expert_unit(const expert_rank *r, size_t u)
{
    const ptb_unit *unit = &r->layout.unit[u];
    size_t element = ptb_dtype_size(test_type(r->run->what->type));
    return (ptb_unit_memory){.parameters = (char *)r->parameters + unit->first * element,
                             .gradients = r->gradients + unit->first};
}

static inline ptb_status expert_forward(expert_rank *r, int slot, int part)
{
    const expert_case *c = r->run->what;
    uint64_t number = (uint64_t)(r->rank * r->parts + part), rows = BATCH * (uint64_t)c->shape.sequence;
    uint64_t parts = (uint64_t)(c->ranks * expert_parts(c));
    int32_t *tokens = malloc(2 * rows * sizeof *tokens);
    for (uint64_t i = 0; i < 2 * rows; i++)
        tokens[i] =
            (int32_t)(ptb_random_u64(1, i / rows, number * rows + i % rows) % (uint64_t)c->shape.vocabulary);
    ptb_microbatch place = {.step = 4,
                            .sequence = number * BATCH,
                            .scale = 1.0 / (double)(parts * rows),
                            .share = 1.0 / (double)parts};
    ptb_status status = ptb_model_begin(r->model, slot, &place);
    if (status == PTB_OK)
        status = ptb_stream_copy(r->compute, ptb_model_inputs(r->model, slot), tokens, rows * sizeof *tokens);
    if (status == PTB_OK)
        status = ptb_stream_copy(r->compute, ptb_model_targets(r->model, slot), tokens + rows,
                                 rows * sizeof *tokens);
    ptb_status synced = ptb_stream_sync(r->compute);
    free(tokens);
    PTB_TRY(status);
    PTB_TRY(synced);
    ptb_unit_memory memory;
    for (size_t u = 0; u < r->layout.units; u++) {
        memory = expert_unit(r, u);
        PTB_TRY(ptb_model_forward(r->model, slot, u, &memory));
    }
    return ptb_model_loss(r->model, slot, &memory, part > 0, part > 0, r->loss);
}

static inline ptb_status expert_backward(expert_rank *r, int slot, int part, int parts)
{
    for (size_t u = r->layout.units; u-- > 0;) {
        ptb_unit_memory memory = expert_unit(r, u);
        PTB_TRY(ptb_model_backward(r->model, slot, u, &memory, parts, part > 0, NULL));
    }
    return PTB_OK;
}

static inline ptb_status expert_train(expert_rank *r)
{
    bool apart = r->run->what->apart;
    for (int i = 0; i < r->parts; i++) {
        PTB_TRY(expert_forward(r, apart ? i : 0, i));
        if (!apart)
            PTB_TRY(expert_backward(r, 0, i, PTB_BACKWARD_BOTH));
    }
    for (int i = 0; apart && i < r->parts; i++)
        PTB_TRY(expert_backward(r, i, i, PTB_BACKWARD_INPUT));
    for (int i = 0; apart && i < r->parts; i++)
        PTB_TRY(expert_backward(r, i, i, PTB_BACKWARD_WEIGHT));
    return ptb_stream_sync(r->compute);
}

static inline ptb_status expert_collect(expert_rank *r)
{
    expert_run *run = r->run;
    const ptb_model_shape *s = &run->whole.shape;
    float *gradients = malloc(r->layout.count * sizeof *gradients);
    run->gradients[r->rank] = calloc(run->whole.count, sizeof(float));
    run->choices[r->rank] = calloc((size_t)(s->layers * 2 * s->experts), sizeof(int64_t));
    run->moved[r->rank] = r->lane.moved;
    ptb_status status =
        ptb_stream_copy(r->compute, gradients, r->gradients, r->layout.count * sizeof *gradients);
    if (status == PTB_OK)
        status = ptb_stream_copy(r->compute, &run->loss[r->rank], r->loss, sizeof *r->loss);
    if (status == PTB_OK)
        status = ptb_model_choices(r->model, run->choices[r->rank]);
    ptb_status synced = ptb_stream_sync(r->compute);
    EXPERT_EACH(r, whole, mine, run->gradients[r->rank][whole] = gradients[mine])
    free(gradients);
    return status == PTB_OK ? synced : status;
}

static inline ptb_status expert_rank_main(ptb_world *world, void *arg)
{
    expert_run *run = arg;
    expert_rank r = {.run = run, .rank = world->rank};
    r.parts = run->what->ranks * expert_parts(run->what) / world->size;
    ptb_status status = ptb_world_agree(world, expert_open(world, &r));
    if (status == PTB_OK)
        status = expert_train(&r);
    if (status == PTB_OK)
        status = expert_collect(&r);
    if (r.communication)
        (void)ptb_stream_sync(r.communication);
    status = ptb_world_agree(world, status);
    expert_close(&r);
    return status;
}

static inline expert_run expert_run_on(const expert_case *c, int ranks)
{
    expert_run run = {.what = c, .ranks = ranks};
    assert_int_equal(ptb_layout_init(&run.whole, &c->shape, NULL), PTB_OK);
    expert_values(&run);
    assert_int_equal(ptb_world_run_local(ranks, NULL, expert_rank_main, &run), PTB_OK);
    for (int r = 1; r < ranks; r++) {
        run.loss[0] += run.loss[r];
        for (size_t i = 0; i < run.whole.count; i++)
            run.gradients[0][i] += run.gradients[r][i];
    }
    return run;
}

static inline void expert_release(expert_run *run)
{
    for (int r = 0; r < run->ranks; r++)
        free(run->gradients[r]), free(run->choices[r]);
    free(run->values);
    ptb_layout_release(&run->whole);
}

// The largest ||a - b|| / ||b|| of a tensor's gradient, where b is no rounding of 0; *where: of which.
static inline double expert_distance(const expert_run *a, const expert_run *b, const char **where)
{
    double most = 0, all = 0;
    for (size_t i = 0; i < b->whole.count; i++)
        all += (double)b->gradients[0][i] * (double)b->gradients[0][i];
    for (size_t u = 0; u < b->whole.units; u++)
        for (size_t t = 0; t < b->whole.unit[u].tensors; t++) {
            const ptb_tensor *tensor = &b->whole.unit[u].tensor[t];
            size_t first = b->whole.unit[u].first + tensor->first;
            double difference = 0, norm = 0;
            for (size_t i = first; i < first + ptb_tensor_count(tensor); i++) {
                double x = (double)a->gradients[0][i], y = (double)b->gradients[0][i];
                difference += (x - y) * (x - y);
                norm += y * y;
            }
            double distance = sqrt(difference) / (sqrt(norm) + 1e-6 * sqrt(all));
            if (!(distance <= most)) { // NaN too
                most = distance;
                *where = tensor->name;
            }
        }
    return most;
}

#endif
