// Data-parallel training with ranks as threads of this process, on the device that PTB_TEST_DEVICE names
// (host unless it is set): every number of ranks and microbatches gives the same losses up to rounding and
// the same parameters on all ranks; overlap and recomputation change no bit; mixed precision stays near f32;
// the ledger is what was predicted.
#include "collectives/world.h"
#include "core/log.h"
#include "profiler/overlap.h"
#include "tests/unit/trainer_fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { STEPS = 12, RANKS_MAX = 4, BATCH = 12, BUCKET = 4096 };

// What a run is asked for; zeros stand for the plain case.
typedef struct {
    int ranks, steps;                                        // 0: STEPS
    bool without_overlap, pack, frozen, graph;               // frozen: the learning rate is 0
    int64_t sequence, batch, micro_batches, recompute_every; // batch 0: BATCH
    ptb_recompute recompute;
    ptb_dtype type, reduce_type;
    ptb_optimizer_kind optimizer;
    uint32_t growth;
    double clip, loss_scale, momentum, dropout;
} settings;

typedef struct {
    settings asked;
    ptb_status status[RANKS_MAX];
    char reason[RANKS_MAX][PTB_REASON_BYTES];
    double losses[RANKS_MAX][STEPS], norms[STEPS], scales[STEPS], rates[STEPS]; // rank 0's from the second on
    uint64_t hash[RANKS_MAX];
    int told[RANKS_MAX];               // steps that a watcher heard of
    ptb_overlap overlapped[RANKS_MAX]; // of the last step
    ptb_update update;                 // after the last step
    uint64_t collective_bytes;
    double wire_bytes;
    size_t elements;
    uint64_t bytes[PTB_MEMORY_COUNT]; // predicted
} training;

static ptb_status train(ptb_world *world, training *run, ptb_trainer *t)
{
    int rank = world->rank;
    if (!trainer_ledger_holds(t))
        return PTB_WRONG;
    for (int i = 0; i < run->asked.steps; i++) {
        ptb_trace_clear(t->config.trace);
        PTB_TRY(ptb_trainer_step(t));
    }
    if (!trainer_ledger_holds(t)) // nothing was allocated since
        return PTB_WRONG;
    memcpy(run->losses[rank], t->losses, sizeof run->losses[rank]);
    ptb_data_hashes hashes;
    PTB_TRY(ptb_data_hash(t->data, &hashes));
    run->hash[rank] = hashes.cut;
    size_t count;
    const ptb_span *spans = ptb_trace_spans(t->config.trace, &count, NULL);
    PTB_TRY(ptb_overlap_measure(spans, count, NULL, &run->overlapped[rank]));
    if (rank == 0) {
        memcpy(run->norms, t->norms, sizeof run->norms);
        memcpy(run->scales, t->scales, sizeof run->scales);
        memcpy(run->rates, t->rates, sizeof run->rates);
        ptb_trainer_memory(&t->config, run->bytes);
        run->update = t->shared->update;
        run->collective_bytes = t->lanes.lane[PTB_LANE_DENSE].moved.bytes[PTB_ALL_REDUCE];
        run->wire_bytes = t->lanes.lane[PTB_LANE_DENSE].moved.volume_bytes;
        run->elements = t->config.layout->count;
    }
    return PTB_OK;
}

static ptb_trainer_config configure(ptb_world *world, const settings *s, const ptb_layout *layout)
{
    ptb_trainer_config config = {
        .world = world,
        .strategy = (const ptb_data_parallel *)ptb_registry_find(PTB_KIND_DATA_PARALLEL, "ddp"),
        .kernels = test_kernels(),
        .layout = layout,
        .device = test_device(),
        .comm = test_comm(),
        .comm_config = {.threads = true},
        .optimizer = {.kind = s->optimizer,
                      .rate = s->frozen                           ? 0
                              : s->optimizer == PTB_OPTIMIZER_SGD ? 0.3
                                                                  : 0.003,
                      .rate_warmup = 4,
                      .beta1 = 0.9,
                      .beta2 = 0.95,
                      .epsilon = 1e-8,
                      .momentum = s->momentum,
                      .decay = 0.1,
                      .clip = s->clip,
                      .loss_scale = s->loss_scale > 0 ? s->loss_scale : 1,
                      .dynamic = s->type == PTB_F16,
                      .growth_interval = s->growth ? s->growth : 1000},
        .type = test_type(s->type),
        .reduce_type = test_type(s->reduce_type),
        .batch = s->batch ? s->batch : BATCH,
        .micro_batches = s->micro_batches ? s->micro_batches : 1,
        .recompute = s->recompute,
        .recompute_every = s->recompute_every,
        .packed = s->pack,
        .seed = 1,
        .bucket_bytes = BUCKET,
        .overlap = !s->without_overlap,
        .deterministic = true,
        .graph = s->graph,
        .threads = 1,
        .max_steps = STEPS,
    };
    return config;
}

static void count_step(void *watcher)
{
    ++*(int *)watcher;
}

static ptb_status rank_main(ptb_world *world, void *arg)
{
    training *run = arg;
    const settings *s = &run->asked;
    ptb_model_shape shape = {.layers = 3,
                             .hidden = 24,
                             .heads = 3,
                             .sequence = s->sequence ? s->sequence : 9,
                             .vocabulary = 40,
                             .biases = true,
                             .tied = true,
                             .dropout = s->dropout};
    ptb_layout layout;
    ptb_tokens *tokens;
    ptb_trace *trace;
    PTB_TRY(ptb_layout_init(&layout, &shape, NULL));
    ptb_tokens_config source = {
        .seed = 1, .length = shape.sequence, .vocabulary = shape.vocabulary, .pack = s->pack};
    PTB_TRY(ptb_tokens_open(&source, &tokens));
    PTB_TRY(ptb_trace_new(1000, world->rank, &trace));
    ptb_trainer_config config = configure(world, s, &layout);
    config.trace = trace;
    config.tokens = tokens;
    config.alive = count_step;
    config.watcher = &run->told[world->rank];
    ptb_trainer *trainer = NULL;
    ptb_status status = ptb_trainer_new(&config, run->reason[world->rank], &trainer);
    run->status[world->rank] = status;
    if (status == PTB_OK)
        status = train(world, run, trainer);
    ptb_trainer_free(trainer);
    ptb_trace_free(trace);
    ptb_tokens_close(tokens);
    ptb_layout_release(&layout);
    return status;
}

static training run_training(settings asked)
{
    training run = {.asked = asked};
    if (!asked.steps)
        run.asked.steps = STEPS;
    assert_int_equal(ptb_world_run_local(asked.ranks, NULL, rank_main, &run), PTB_OK);
    for (int r = 0; r < asked.ranks; r++) {
        assert_memory_equal(run.losses[r], run.losses[0], sizeof run.losses[0]);
        assert_true(run.hash[r] == run.hash[0]);
        assert_int_equal(run.told[r], run.asked.steps); // a watchdog hears of every step
    }
    for (int i = 0; i < run.asked.steps; i++)
        assert_true(isfinite(run.losses[0][i]));
    return run;
}

// Largest relative difference of the losses.
static double difference(const training *a, const training *b)
{
    double most = 0;
    for (int i = 0; i < STEPS; i++)
        most = fmax(most, fabs(a->losses[0][i] / b->losses[0][i] - 1));
    return most;
}

static bool falls(const training *run)
{
    return run->losses[0][STEPS - 1] < run->losses[0][0] - 0.02;
}

static void test_ranks(void **state)
{
    (void)state;
    training one = run_training((settings){.ranks = 1});
    assert_true(fabs(one.losses[0][0] - log(40)) < 0.1);
    assert_true(falls(&one));
    assert_true(isnan(one.overlapped[0].overlap)); // nothing to overlap
    assert_int_equal(one.collective_bytes, 0);
    for (int ranks = 2; ranks <= RANKS_MAX; ranks++) {
        training many = run_training((settings){.ranks = ranks});
        assert_true(difference(&many, &one) < 1e-5);
        for (int i = 0; i < STEPS; i++)
            assert_true(fabs(many.norms[i] / one.norms[i] - 1) < 1e-4);
        // The closed form: every gradient once a step; a ring sends 2 (n - 1) / n of it.
        double bytes = 4.0 * (double)many.elements * STEPS;
        assert_true((double)many.collective_bytes == bytes);
        assert_true(fabs(many.wire_bytes - bytes * 2 * (ranks - 1) / ranks) < 1);
    }
    assert_true(one.rates[0] == 0.003 / 4 && one.rates[3] == 0.003 && one.rates[11] == 0.003);
}

static void test_overlap(void **state)
{
    (void)state;
    training with = run_training((settings){.ranks = 2});
    training without = run_training((settings){.ranks = 2, .without_overlap = true});
    assert_true(with.hash[0] == without.hash[0]);
    assert_memory_equal(with.losses[0], without.losses[0], sizeof with.losses[0]);
    // Spans of other devices come from a profiler, which this test does not open.
    for (int r = 0; r < 2 && test_on_host(); r++) {
        assert_int_equal(without.overlapped[r].overlapped_ns, 0);
        assert_true(without.overlapped[r].exposed_ns > 0);
        assert_true(with.overlapped[r].communication_ns > 0);
        assert_int_equal(with.overlapped[r].axis[1].communication_ns, with.overlapped[r].communication_ns);
    }
}

// Microbatches, and which rank takes them, change nothing but rounding; gradients are reduced once a step.
static void test_micro_batches(void **state)
{
    (void)state;
    training whole = run_training((settings){.ranks = 1});
    training parts = run_training((settings){.ranks = 1, .micro_batches = 4});
    training both = run_training((settings){.ranks = 2, .micro_batches = 3});
    assert_true(difference(&parts, &whole) < 1e-5);
    assert_true(difference(&both, &whole) < 1e-5);
    assert_true((double)both.collective_bytes == 4.0 * (double)both.elements * STEPS);
    assert_true(parts.bytes[PTB_MEMORY_ACTIVATIONS] < whole.bytes[PTB_MEMORY_ACTIVATIONS] / 3);
}

// Dropout draws the same masks, and documents end at the same places, however the batch is cut.
static void test_sharding(void **state)
{
    (void)state;
    training plain = run_training((settings){.ranks = 1});
    for (int pack = 0; pack < 2; pack++) {
        settings s = {.ranks = 1, .dropout = pack ? 0 : 0.2, .pack = pack};
        training one = run_training(s);
        s.ranks = 2;
        s.micro_batches = 3;
        training cut = run_training(s);
        assert_true(difference(&cut, &one) < 1e-5);
        assert_true(difference(&one, &plain) > 1e-3);
    }
}

// What is computed again is the same to the bit.
static void test_recompute(void **state)
{
    (void)state;
    training kept = run_training((settings){.ranks = 1, .micro_batches = 2});
    const settings other[] = {{.recompute = PTB_RECOMPUTE_SELECTIVE},
                              {.recompute = PTB_RECOMPUTE_FULL},
                              {.recompute = PTB_RECOMPUTE_FULL, .recompute_every = 2}};
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        settings s = other[i];
        s.ranks = 1;
        s.micro_batches = 2;
        training again = run_training(s);
        assert_memory_equal(again.losses[0], kept.losses[0], sizeof kept.losses[0]);
        assert_true(again.hash[0] == kept.hash[0]);
        assert_true(again.bytes[PTB_MEMORY_ACTIVATIONS] < kept.bytes[PTB_MEMORY_ACTIVATIONS]);
    }
}

// A recorded step, replayed with other batches and learning rates, is the step that is enqueued anew.
static void test_graph(void **state)
{
    (void)state;
    const ptb_device_ops *ops = (const ptb_device_ops *)ptb_registry_find(PTB_KIND_DEVICE, test_device());
    if (!ops->graph_begin)
        skip(); // the host
    for (int ranks = 1; ranks <= 2; ranks++)
        for (int i = 0; i < 4; i++) {
            settings s = {.ranks = ranks,
                          .steps = i == 3 ? STEPS : 4,
                          .without_overlap = i == 1,
                          .micro_batches = i == 2 ? 3 : 1,
                          .type = i == 3 ? PTB_F16 : PTB_F32,
                          .loss_scale = i == 3 ? 16777216 : 1};
            training enqueued = run_training(s);
            s.graph = true;
            training replayed = run_training(s);
            assert_memory_equal(replayed.losses[0], enqueued.losses[0], sizeof enqueued.losses[0]);
            assert_memory_equal(replayed.norms, enqueued.norms, sizeof enqueued.norms);
            assert_memory_equal(replayed.scales, enqueued.scales, sizeof enqueued.scales);
            assert_true(replayed.hash[0] == enqueued.hash[0]);
            assert_int_equal(replayed.collective_bytes, enqueued.collective_bytes);
            assert_true(fabs(replayed.wire_bytes - enqueued.wire_bytes) < 1);
        }
}

static void test_sgd(void **state)
{
    (void)state;
    training one = run_training((settings){.ranks = 1, .optimizer = PTB_OPTIMIZER_SGD, .momentum = 0.5});
    training two = run_training((settings){.ranks = 2, .optimizer = PTB_OPTIMIZER_SGD, .momentum = 0.5});
    assert_true(falls(&one));
    assert_true(difference(&two, &one) < 1e-5);
}

// The norm that is reported is the gradient's before clipping. A limit above all norms changes nothing, one
// below them does; the update waits for the whole gradient, but nothing else changes with ranks.
static void test_clip(void **state)
{
    (void)state;
    settings s = {.ranks = 1, .optimizer = PTB_OPTIMIZER_SGD};
    training free_ = run_training(s);
    s.clip = 1e6;
    training loose = run_training(s);
    assert_memory_equal(loose.losses[0], free_.losses[0], sizeof loose.losses[0]);
    for (int i = 0; i < STEPS; i++)
        assert_true(free_.norms[i] > 0.1 && fabs(loose.norms[i] / free_.norms[i] - 1) < 1e-6);
    s.clip = 0.1;
    training tight = run_training(s);
    assert_true(tight.norms[0] == loose.norms[0]); // before clipping
    assert_true(difference(&tight, &loose) > 1e-3);
    s.ranks = 3;
    training three = run_training(s);
    assert_true(difference(&three, &tight) < 1e-5);
}

static void test_mixed(void **state)
{
    (void)state;
    training wide = run_training((settings){.ranks = 1});
    training one = run_training((settings){.ranks = 1, .type = PTB_BF16});
    assert_true(difference(&one, &wide) < 1e-2 && difference(&one, &wide) > 0);
    assert_true(falls(&one));
    for (int ranks = 2; ranks <= (test_on_host() ? RANKS_MAX : 2); ranks += 2) {
        // A product's sums are f32, but each rank rounds what it keeps to 8 bits.
        training many = run_training((settings){.ranks = ranks, .type = PTB_BF16});
        assert_true(difference(&many, &one) < 2e-3);
    }
    training narrow = run_training((settings){.ranks = 2, .type = PTB_BF16, .reduce_type = PTB_BF16});
    assert_true(difference(&narrow, &one) < 5e-3);
    assert_true((double)narrow.collective_bytes == 2.0 * (double)narrow.elements * STEPS);
    training reduced = run_training((settings){.ranks = 2, .reduce_type = PTB_BF16});
    assert_true(difference(&reduced, &wide) < 5e-3 && difference(&reduced, &wide) > 0);
}

// 2^24 overflows f16: steps are skipped and the scale halves until it fits; then every growth_interval good
// steps it doubles. Parameters stay as they are in a skipped step, and the loss is that of the model.
static void test_loss_scale(void **state)
{
    (void)state;
    const double scale = 16777216;
    training fits = run_training((settings){.ranks = 1, .type = PTB_F16, .loss_scale = 1024, .growth = 5});
    assert_int_equal(fits.update.skipped, 0);
    assert_true(falls(&fits));
    assert_true(fits.scales[4] == 1024 && fits.scales[5] == 2048 && fits.scales[10] == 4096);
    training run = run_training((settings){.ranks = 1, .type = PTB_F16, .loss_scale = scale});
    uint32_t skipped = run.update.skipped;
    assert_true(skipped >= 2 && skipped <= 8);
    for (uint32_t i = 0; i <= skipped; i++)
        assert_true(run.scales[i] == scale / (double)(1u << i));
    assert_int_equal(run.update.applied, STEPS - skipped);
    // The first loss after the skipped steps is the untrained model's on that step's batch.
    training still =
        run_training((settings){.ranks = 1, .type = PTB_F16, .loss_scale = 1024, .frozen = true});
    for (uint32_t i = 0; i <= skipped; i++)
        assert_true(run.losses[0][i] == still.losses[0][i]);
    assert_true(run.losses[0][STEPS - 1] < run.losses[0][0]);
    training two = run_training((settings){.ranks = 2, .type = PTB_F16, .loss_scale = scale});
    assert_int_equal(two.update.skipped, skipped);
    assert_true(difference(&two, &run) < 2e-3);
}

// Bytes of state a parameter (padding of the index space included) in closed form.
static void test_state_bytes(void **state)
{
    (void)state;
    const struct {
        settings s;
        double parameters, gradients, optimizer;
    } forms[] = {
        {{.ranks = 1}, 4, 4, 8},                                                   // 16
        {{.ranks = 1, .type = PTB_BF16}, 2, 4, 12},                                // 18
        {{.ranks = 1, .type = PTB_F16, .loss_scale = 1024}, 2, 4, 12},             // 18
        {{.ranks = 1, .optimizer = PTB_OPTIMIZER_SGD, .momentum = 0.5}, 4, 4, 4},  // 12
        {{.ranks = 1, .optimizer = PTB_OPTIMIZER_SGD}, 4, 4, 0},                   // 8
        {{.ranks = 1, .type = PTB_BF16, .optimizer = PTB_OPTIMIZER_SGD}, 2, 4, 4}, // 10
        {{.ranks = 2, .reduce_type = PTB_BF16}, 4, 4, 8},
    };
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        settings s = forms[i].s;
        s.steps = 2;
        training run = run_training(s);
        double n = (double)run.elements, update = sizeof(ptb_update) + sizeof(double);
        assert_true((double)run.bytes[PTB_MEMORY_PARAMETERS] == forms[i].parameters * n);
        assert_true((double)run.bytes[PTB_MEMORY_GRADIENTS] == forms[i].gradients * n);
        assert_true((double)run.bytes[PTB_MEMORY_OPTIMIZER] == forms[i].optimizer * n + update);
        uint64_t staging = forms[i].s.reduce_type == PTB_BF16 ? BUCKET : 0;
        assert_int_equal(run.bytes[PTB_MEMORY_COMMUNICATION], staging + sizeof(double));
    }
}

// A model that cannot fit is skipped on all ranks, with the figure, before anything is allocated.
static void test_too_large(void **state)
{
    (void)state;
    training run = {.asked = {.ranks = 2, .sequence = (int64_t)1 << 40}};
    assert_int_equal(ptb_world_run_local(2, NULL, rank_main, &run), PTB_SKIPPED);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(run.status[r], PTB_SKIPPED);
        assert_non_null(strstr(run.reason[r], "GB a rank (parameters"));
        assert_non_null(strstr(run.reason[r], "communication under 0.001, "));
        assert_null(strstr(run.reason[r], "e+")); // thousands, as numbers that can be read
    }
}

// A batch of which some sequences would be left out is refused on all ranks, with what divides.
static void test_indivisible(void **state)
{
    (void)state;
    const struct {
        settings s;
        const char *reason;
    } cases[] = {
        {{.ranks = 2, .batch = 13},
         "a batch of 13 does not divide over 2 data-parallel ranks: 13 = 2 x 6 + 1; use 12 or 14"},
        {{.ranks = 2, .batch = 1}, "use 2"},
        {{.ranks = 3, .micro_batches = 3}, "x 3 microbatches = 9 parts: 12 = 9 x 1 + 3; use 9 or 18"},
        {{.ranks = 1, .micro_batches = 5}, "use 10 or 15"},
        {{.ranks = 2, .micro_batches = -1}, "both are 1 at least"},
        {{.ranks = 2, .batch = -12}, "both are 1 at least"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        training run = {.asked = cases[i].s};
        ptb_log_set_level((ptb_log_level)-1);
        ptb_status status = ptb_world_run_local(run.asked.ranks, NULL, rank_main, &run);
        ptb_log_set_level(PTB_LOG_INFO);
        assert_int_equal(status, PTB_USAGE);
        for (int r = 0; r < run.asked.ranks; r++) {
            assert_int_equal(run.status[r], PTB_USAGE);
            assert_non_null(strstr(run.reason[r], cases[i].reason));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks),         cmocka_unit_test(test_overlap),
        cmocka_unit_test(test_micro_batches), cmocka_unit_test(test_sharding),
        cmocka_unit_test(test_recompute),     cmocka_unit_test(test_graph),
        cmocka_unit_test(test_sgd),           cmocka_unit_test(test_clip),
        cmocka_unit_test(test_mixed),         cmocka_unit_test(test_loss_scale),
        cmocka_unit_test(test_state_bytes),   cmocka_unit_test(test_too_large),
        cmocka_unit_test(test_indivisible),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
