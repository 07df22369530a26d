// Data-parallel training with ranks as threads of this process: every number of ranks gives the same losses
// up to rounding and the same parameters on all ranks; overlap changes no bit; the ledger is what was
// predicted.
#include "collectives/world.h"
#include "profiler/overlap.h"
#include "strategies/trainer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { STEPS = 12, RANKS_MAX = 4, BATCH = 12, BUCKET = 4096 };

typedef struct {
    // Asked for.
    int ranks;
    bool overlap;
    int64_t sequence;
    // Found.
    ptb_status status[RANKS_MAX];
    char reason[RANKS_MAX][PTB_REASON_BYTES];
    double losses[RANKS_MAX][STEPS];
    uint64_t hash[RANKS_MAX];
    ptb_overlap overlapped[RANKS_MAX]; // of the last step
    uint64_t collective_bytes;
    double wire_bytes;
    size_t elements;
} training;

// cmocka's assertions are for its own thread; here problems become statuses.
static bool ledger_holds(const ptb_trainer *t)
{
    uint64_t bytes[PTB_MEMORY_COUNT];
    ptb_trainer_memory(&t->config, bytes);
    for (int i = 0; i < PTB_MEMORY_COUNT; i++)
        if (t->device->peak_bytes[i] != bytes[i]) {
            print_error("%s: %llu bytes at most, %llu predicted\n", ptb_memory_name((ptb_memory)i),
                        (unsigned long long)t->device->peak_bytes[i], (unsigned long long)bytes[i]);
            return false;
        }
    return true;
}

static ptb_status train(ptb_world *world, training *run, ptb_trainer *t)
{
    int rank = world->rank;
    if (!ledger_holds(t))
        return PTB_WRONG;
    for (int i = 0; i < STEPS; i++) {
        ptb_trace_clear(t->config.trace);
        PTB_TRY(ptb_trainer_step(t));
    }
    if (!ledger_holds(t)) // nothing was allocated since
        return PTB_WRONG;
    memcpy(run->losses[rank], t->losses, sizeof run->losses[rank]);
    run->hash[rank] = t->data->ops->hash(t->data);
    size_t count;
    const ptb_span *spans = ptb_trace_spans(t->config.trace, &count, NULL);
    PTB_TRY(ptb_overlap_measure(spans, count, NULL, &run->overlapped[rank]));
    if (rank == 0) {
        run->collective_bytes = t->data->collective_bytes;
        run->wire_bytes = t->data->wire_bytes;
        run->elements = t->config.layout->count;
    }
    return PTB_OK;
}

static ptb_status rank_main(ptb_world *world, void *arg)
{
    training *run = arg;
    ptb_model_shape shape = {.layers = 2,
                             .hidden = 24,
                             .heads = 3,
                             .sequence = run->sequence,
                             .vocabulary = 40,
                             .biases = true,
                             .tied = true};
    ptb_layout layout;
    ptb_tokens *tokens;
    ptb_trace *trace;
    PTB_TRY(ptb_layout_init(&layout, &shape));
    PTB_TRY(ptb_tokens_open(
        &(ptb_tokens_config){.seed = 1, .length = shape.sequence, .vocabulary = shape.vocabulary}, &tokens));
    PTB_TRY(ptb_trace_new(1000, world->rank, &trace));
    ptb_trainer_config config = {
        .world = world,
        .trace = trace,
        .strategy = (const ptb_data_parallel *)ptb_registry_find(PTB_KIND_DATA_PARALLEL, "ddp"),
        .kernels = (const ptb_kernels *)ptb_registry_find(PTB_KIND_KERNELS, "host"),
        .layout = &layout,
        .tokens = tokens,
        .device = "host",
        .comm = "local",
        .comm_config = {.threads = true},
        .optimizer = {.rate = 0.003,
                      .rate_warmup = 4,
                      .beta1 = 0.9,
                      .beta2 = 0.95,
                      .epsilon = 1e-8,
                      .decay = 0.1,
                      .loss_scale = 1},
        .type = PTB_F32,
        .reduce_type = PTB_F32,
        .batch = BATCH,
        .micro_batches = 1,
        .seed = 1,
        .bucket_bytes = BUCKET,
        .overlap = run->overlap,
        .threads = 1,
        .max_steps = STEPS,
    };
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

static void run_training(training *run, int ranks, bool overlap)
{
    *run = (training){.ranks = ranks, .overlap = overlap, .sequence = 9};
    assert_int_equal(ptb_world_run_local(ranks, NULL, rank_main, run), PTB_OK);
    for (int r = 0; r < ranks; r++) {
        assert_memory_equal(run->losses[r], run->losses[0], sizeof run->losses[0]);
        assert_true(run->hash[r] == run->hash[0]);
    }
}

static void test_ranks(void **state)
{
    (void)state;
    training one, many;
    run_training(&one, 1, true);
    assert_true(fabs(one.losses[0][0] - log(40)) < 0.1);
    assert_true(one.losses[0][STEPS - 1] < one.losses[0][0]);
    assert_true(isnan(one.overlapped[0].overlap)); // nothing to overlap
    assert_int_equal(one.collective_bytes, 0);
    for (int ranks = 2; ranks <= RANKS_MAX; ranks++) {
        run_training(&many, ranks, true);
        for (int i = 0; i < STEPS; i++)
            assert_true(fabs(many.losses[0][i] / one.losses[0][i] - 1) < 1e-5);
        // The closed form: every gradient once a step; a ring sends 2 (n - 1) / n of it.
        double bytes = 4.0 * (double)many.elements * STEPS;
        assert_true((double)many.collective_bytes == bytes);
        assert_true(fabs(many.wire_bytes - bytes * 2 * (ranks - 1) / ranks) < 1);
    }
}

static void test_overlap(void **state)
{
    (void)state;
    training with, without;
    run_training(&with, 2, true);
    run_training(&without, 2, false);
    assert_true(with.hash[0] == without.hash[0]);
    assert_memory_equal(with.losses[0], without.losses[0], sizeof with.losses[0]);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(without.overlapped[r].overlapped_ns, 0);
        assert_true(without.overlapped[r].exposed_ns > 0);
        assert_true(with.overlapped[r].communication_ns > 0);
        assert_int_equal(with.overlapped[r].axis[1].communication_ns, with.overlapped[r].communication_ns);
    }
}

// A model that cannot fit is skipped on all ranks, with the figure, before anything is allocated.
static void test_too_large(void **state)
{
    (void)state;
    training run = {.ranks = 2, .overlap = true, .sequence = (int64_t)1 << 40};
    assert_int_equal(ptb_world_run_local(2, NULL, rank_main, &run), PTB_SKIPPED);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(run.status[r], PTB_SKIPPED);
        assert_non_null(strstr(run.reason[r], "GB a rank (parameters"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_overlap),
        cmocka_unit_test(test_too_large),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
