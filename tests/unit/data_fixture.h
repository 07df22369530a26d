// Training runs of data-parallel strategies with ranks as threads: a run keeps losses, and the parameters and
// gradients that its ranks hold together, to compare with those of one rank.
#ifndef PTB_TESTS_UNIT_DATA_FIXTURE_H
#define PTB_TESTS_UNIT_DATA_FIXTURE_H

#include "collectives/world.h"
#include "tests/unit/trainer_fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { DATA_STEPS = 5, DATA_RANKS_MAX = 8 };

// Blocks of three kinds; widths that no number of ranks divides.
typedef enum { DATA_GPT2, DATA_LLAMA, DATA_MOE, DATA_MODELS } data_model;

static inline ptb_model_shape data_shape(data_model model)
{
    ptb_model_shape s = {.layers = 4, .hidden = 20, .heads = 2, .sequence = 7, .vocabulary = 37};
    if (model == DATA_GPT2) {
        s.biases = s.tied = true;
        return s;
    }
    s.norm = PTB_RMS_NORM;
    s.position = PTB_ROTARY_POSITIONS;
    s.activation = PTB_SWIGLU;
    s.kv_heads = 1;
    s.feed_forward = 27;
    if (model == DATA_MOE) {
        s.experts = 4;
        s.top_k = 2;
        s.expert_hidden = 11;
        s.dense_layers = 1;
        s.shared_experts = 1;
    }
    return s;
}

// What a run is asked for; zeros stand for the plain case.
typedef struct {
    const char *strategy, *comm;
    data_model model;
    int ranks, replicate, steps;
    bool without_overlap, graph, adamw;
    int64_t batch, micro_batches;
    ptb_recompute recompute;
    ptb_dtype type, reduce_type;
    double clip, loss_scale, momentum, rate;
    uint64_t bucket;
    ptb_data_options options;
} data_settings;

// Sequences of a step: 8 ranks divide them, and 4 with 3 microbatches; on GPUs, which take longer, 4 and 6 do
// unless more are asked for.
static inline int64_t data_batch(const data_settings *s)
{
    return s->batch ? s->batch : test_on_host() ? 24 : 12;
}

typedef struct {
    data_settings asked;
    ptb_layout layout;
    ptb_status status[DATA_RANKS_MAX];
    char reason[DATA_RANKS_MAX][PTB_REASON_BYTES];
    double losses[DATA_RANKS_MAX][DATA_STEPS], norms[DATA_STEPS];
    // Of each rank [layout.count], and which elements it holds.
    float *parameters[DATA_RANKS_MAX], *gradients[DATA_RANKS_MAX];
    bool *held[DATA_RANKS_MAX];
    ptb_data_hashes hashes[DATA_RANKS_MAX];
    ptb_lane_moved moved[PTB_LANE_COUNT]; // rank 0's
    uint64_t bytes[PTB_MEMORY_COUNT];     // predicted of rank 0
    ptb_update update;
} data_run;

static inline ptb_status data_take(ptb_trainer *t, ptb_data_what what, float *values, bool *held)
{
    ptb_data_part part;
    size_t end = 0;
    for (size_t i = 0; t->data->ops->part(t->data, what, i, &part); i++) {
        if (part.first < end || part.first + part.count > t->config.layout->count)
            return PTB_WRONG; // not ascending, or outside
        end = part.first + part.count;
        if (part.count)
            PTB_TRY(
                ptb_stream_copy(t->compute, values + part.first, part.values, part.count * sizeof(float)));
        for (size_t k = part.first; k < end; k++)
            held[k] = true;
    }
    return ptb_stream_sync(t->compute);
}

static inline ptb_status data_train(ptb_world *world, data_run *run, ptb_trainer *t)
{
    int rank = world->rank, steps = run->asked.steps ? run->asked.steps : DATA_STEPS;
    if (!trainer_ledger_holds(t))
        return PTB_WRONG;
    for (int i = 0; i < steps; i++)
        PTB_TRY(ptb_trainer_step(t));
    PTB_TRY(ptb_trainer_drain(t));
    if (!trainer_ledger_holds(t)) // nothing was allocated since
        return PTB_WRONG;
    memcpy(run->losses[rank], t->losses, sizeof run->losses[rank]);
    PTB_TRY(data_take(t, PTB_DATA_GRADIENTS, run->gradients[rank], run->held[rank]));
    PTB_TRY(data_take(t, PTB_DATA_PARAMETERS, run->parameters[rank], run->held[rank]));
    PTB_TRY(ptb_data_hash(t->data, &run->hashes[rank]));
    if (rank == 0) {
        memcpy(run->norms, t->norms, sizeof run->norms);
        ptb_lanes_moved(&t->lanes, run->moved);
        ptb_trainer_memory(&t->config, run->bytes);
        run->update = t->shared->update;
    }
    return PTB_OK;
}

static inline ptb_trainer_config data_configure(ptb_world *world, const data_run *run)
{
    const data_settings *s = &run->asked;
    return (ptb_trainer_config){
        .world = world,
        .strategy = (const ptb_data_parallel *)ptb_registry_find(PTB_KIND_DATA_PARALLEL, s->strategy),
        .kernels = test_kernels(),
        .layout = &run->layout,
        .device = test_device(),
        .comm = s->comm ? s->comm : test_comm(),
        .comm_config = {.threads = true},
        .optimizer = {.kind = s->adamw ? PTB_OPTIMIZER_ADAMW : PTB_OPTIMIZER_SGD,
                      .rate = s->rate > 0 ? s->rate
                              : s->adamw  ? 0.003
                                          : 0.3,
                      .beta1 = 0.9,
                      .beta2 = 0.95,
                      .epsilon = 1e-8,
                      .momentum = s->momentum,
                      .decay = 0.1,
                      .clip = s->clip,
                      .loss_scale = s->loss_scale > 0 ? s->loss_scale : 1,
                      .dynamic = s->type == PTB_F16,
                      .growth_interval = 1000},
        .type = test_type(s->type),
        .reduce_type = test_type(s->reduce_type),
        .batch = data_batch(s),
        .micro_batches = s->micro_batches ? s->micro_batches : 1,
        .recompute = s->recompute,
        .recompute_every = 1,
        .seed = 1,
        .bucket_bytes = s->bucket ? s->bucket : 4096,
        .overlap = !s->without_overlap,
        .data_options = s->options,
        .deterministic = true,
        .graph = s->graph,
        .threads = 1,
        .max_steps = DATA_STEPS,
    };
}

static inline ptb_status data_rank_main(ptb_world *world, void *arg)
{
    data_run *run = arg;
    ptb_tokens *tokens;
    ptb_tokens_config source = {
        .seed = 1, .length = run->layout.shape.sequence, .vocabulary = run->layout.shape.vocabulary};
    PTB_TRY(ptb_tokens_open(&source, &tokens));
    ptb_trainer_config config = data_configure(world, run);
    config.tokens = tokens;
    ptb_mesh_sizes sizes = {.dp = world->size, .replicate = run->asked.replicate};
    ptb_trainer *trainer = NULL;
    ptb_status status =
        ptb_mesh_init(&config.mesh, &sizes, world->size, world->rank, run->reason[world->rank]);
    if (status == PTB_OK)
        status = ptb_trainer_new(&config, run->reason[world->rank], &trainer);
    run->status[world->rank] = status;
    if (status == PTB_OK)
        status = data_train(world, run, trainer);
    ptb_trainer_free(trainer);
    ptb_tokens_close(tokens);
    return status;
}

static inline void data_free(data_run *run)
{
    for (int r = 0; r < DATA_RANKS_MAX; r++) {
        free(run->parameters[r]);
        free(run->gradients[r]);
        free(run->held[r]);
    }
    ptb_layout_release(&run->layout);
    free(run);
}

// The run, whatever came of it; to be freed.
static inline data_run *data_try(data_settings asked, ptb_status *status)
{
    data_run *run = calloc(1, sizeof *run);
    ptb_model_shape shape = data_shape(asked.model);
    assert_non_null(run);
    int64_t parts = asked.ranks * (asked.micro_batches ? asked.micro_batches : 1);
    assert_int_equal(data_batch(&asked) % parts, 0);
    run->asked = asked;
    assert_int_equal(ptb_layout_init(&run->layout, &shape, NULL), PTB_OK);
    for (int r = 0; r < asked.ranks; r++) {
        run->parameters[r] = calloc(run->layout.count, sizeof(float));
        run->gradients[r] = calloc(run->layout.count, sizeof(float));
        run->held[r] = calloc(run->layout.count, sizeof(bool));
        assert_true(run->parameters[r] && run->gradients[r] && run->held[r]);
    }
    *status = ptb_world_run_local(asked.ranks, NULL, data_rank_main, run);
    return run;
}

// Copies what a rank holds into rank 0's arrays, where rank 0 has none; what both have must be the same.
static inline void data_merge(data_run *run, int rank)
{
    for (size_t i = 0; i < run->layout.count; i++) {
        if (!run->held[rank][i])
            continue;
        if (run->held[0][i]) {
            assert_true(run->parameters[rank][i] == run->parameters[0][i]);
            // A rank that trains alone has its own.
            assert_true(run->gradients[rank][i] == run->gradients[0][i] || run->asked.options.local_steps);
        }
        run->parameters[0][i] = run->parameters[rank][i];
        run->gradients[0][i] = run->gradients[rank][i];
        run->held[0][i] = true;
    }
}

// A run that comes through, with everything that ranks hold in rank 0's arrays.
static inline data_run *data_train_all(data_settings asked)
{
    ptb_status status;
    data_run *run = data_try(asked, &status);
    assert_int_equal(status, PTB_OK);
    for (int r = 1; r < asked.ranks; r++) {
        assert_memory_equal(run->losses[r], run->losses[0], sizeof run->losses[0]);
        assert_memory_equal(&run->hashes[r], &run->hashes[0], sizeof run->hashes[0]);
        data_merge(run, r);
    }
    for (size_t i = 0; i < run->layout.count; i++)
        assert_true(run->held[0][i]);
    return run;
}

// ---- comparison with a run of the same steps

static inline double data_distance(const float *a, const float *b, size_t count)
{
    double difference = 0, norm = 0;
    for (size_t i = 0; i < count; i++) {
        difference += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        norm += (double)b[i] * (double)b[i];
    }
    return sqrt(difference / (norm > 0 ? norm : 1));
}

// Largest distance of a tensor, relative to its norm.
static inline double data_tensors(const data_run *a, const data_run *b, bool gradients)
{
    const float *x = gradients ? a->gradients[0] : a->parameters[0];
    const float *y = gradients ? b->gradients[0] : b->parameters[0];
    double most = 0;
    for (size_t u = 0; u < a->layout.units; u++) {
        const ptb_unit *unit = &a->layout.unit[u];
        for (size_t t = 0; t < unit->tensors; t++) {
            size_t at = unit->first + unit->tensor[t].first;
            double distance = data_distance(x + at, y + at, ptb_tensor_count(&unit->tensor[t]));
            most = distance > most ? distance : most;
        }
    }
    return most;
}

static inline double data_losses(const data_run *a, const data_run *b)
{
    double most = 0;
    for (int i = 0; i < DATA_STEPS; i++)
        most = fmax(most, fabs(a->losses[0][i] / b->losses[0][i] - 1));
    return most;
}

static inline bool data_equal(const data_run *a, const data_run *b, double tolerance)
{
    double losses = data_losses(a, b), gradients = data_tensors(a, b, true),
           parameters = data_tensors(a, b, false);
    if (losses < tolerance && gradients < tolerance && parameters < tolerance)
        return true;
    print_message("%s of %d ranks: losses differ by %g, a gradient by %g, a parameter by %g\n",
                  a->asked.strategy, a->asked.ranks, losses, gradients, parameters);
    return false;
}

// A run of `s` gives what `other` gave, which may have had other ranks, up to rounding.
static inline void data_check_equal(data_settings s, const data_run *other, double tolerance)
{
    data_run *run = data_train_all(s);
    assert_true(data_equal(run, other, tolerance));
    data_free(run);
}

// And the norms of its gradients.
static inline void data_check_norms(data_settings s, const data_run *other, double tolerance)
{
    data_run *run = data_train_all(s);
    assert_true(data_equal(run, other, tolerance));
    for (int step = 0; step < DATA_STEPS; step++)
        assert_true(fabs(run->norms[step] / other->norms[step] - 1) < tolerance);
    data_free(run);
}

// No bit of losses and parameters differs.
static inline void data_assert_same(const data_run *a, const data_run *b)
{
    assert_memory_equal(a->losses[0], b->losses[0], sizeof a->losses[0]);
    assert_memory_equal(&a->hashes[0], &b->hashes[0], sizeof a->hashes[0]);
}

#endif
