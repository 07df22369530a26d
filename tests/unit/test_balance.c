// Load-balancing losses with the statistics of all ranks (strategies/expert/balance.h): the losses of five
// steps, the gradient's norm, every gradient tensor and every parameter after them are those of one rank with
// the same global batch, up to rounding, however the batch is divided; with each rank's own statistics they
// are not. What is moved for it is the closed form.
#include "tests/unit/strategies_fixture.h"

#define MIXTURE                                                                                              \
    .layers = 2, .hidden = 32, .heads = 4, .sequence = 16, .feed_forward = 40, .vocabulary = 40,             \
    .norm = PTB_RMS_NORM, .position = PTB_ROTARY_POSITIONS, .activation = PTB_SWIGLU, .experts = 8,          \
    .top_k = 2, .expert_hidden = 16, .shared_experts = 1, .balance = 0.5
static const ptb_model_shape mixture = {MIXTURE}, after_dense = {MIXTURE, .dense_layers = 1};
enum { BATCH = 8 };

typedef struct {
    const char *strategy, *mesh;
    int ranks;
    bool on_gpus; // it also runs on the simulated device
    const ptb_model_shape *shape;
    int64_t micro_batches;
    ptb_recompute recompute;
    bool without_overlap;
} balance_case;

#define RUN(name, sizes, n, gpus, model, ...)                                                                \
    {                                                                                                        \
        .strategy = (name), .mesh = (sizes), .ranks = (n), .on_gpus = (gpus), .shape = (model), __VA_ARGS__  \
    }
static const balance_case cases[] = {
    RUN("ddp", "", 2, true, &mixture, ),
    RUN("ddp", "", 4, false, &after_dense, .recompute = PTB_RECOMPUTE_FULL),
    RUN("zero1", "", 4, false, &mixture, ),
    RUN("fsdp", "", 4, false, &mixture, .without_overlap = true),
    RUN("hsdp", "", 4, false, &after_dense, ),
    RUN("ep", "", 2, true, &after_dense, ),
    RUN("ep", "", 4, false, &mixture, .recompute = PTB_RECOMPUTE_FULL),
    RUN("cp", "", 2, true, &mixture, ),
    RUN("cp", "", 4, false, &after_dense, ),
    RUN("ddp", "tp=2", 4, false, &mixture, ),
    RUN("tp+sp", "tp=2", 4, false, &mixture, ),
    RUN("ddp", "cp=2,ep=2", 4, false, &mixture, ),
    RUN("fsdp", "tp=2,ep=2", 8, false, &mixture, ),
    RUN("tp", "tp=4", 4, false, &mixture, ), // all have the same rows
};
enum { CASES = sizeof cases / sizeof *cases };

static void all_ranks(ptb_trainer_config *config)
{
    config->balance_global = true;
}

static division_asked asked_of(const balance_case *c, bool global)
{
    return (division_asked){.strategy = c->strategy,
                            .mesh = c->mesh,
                            .ranks = c->ranks,
                            .shape = *c->shape,
                            .batch = BATCH,
                            .micro_batches = c->micro_batches,
                            .recompute = c->recompute,
                            .optimizer = PTB_OPTIMIZER_SGD,
                            .without_overlap = c->without_overlap,
                            .adjust = global ? all_ranks : NULL};
}

static double difference_of(const balance_case *c, bool global, char *what, size_t bytes)
{
    division_asked asked = asked_of(c, global);
    division_run run, alone;
    const char *worst = "", *problem = divide_and_train(&asked, &run);
    train_alone(asked, &alone);
    double difference = problem ? INFINITY : compare_runs(&run, &alone, &worst);
    snprintf(what, bytes, "%s %s", problem ? problem : "", worst);
    release_run(&run), release_run(&alone);
    return difference;
}

static void test_equal(void **state)
{
    (void)state;
    double most = 0;
    for (size_t i = 0; i < CASES; i++) {
        char what[256];
        if (!test_on_host() && !cases[i].on_gpus)
            continue;
        double difference = difference_of(&cases[i], true, what, sizeof what);
        if (!(difference < 1e-5))
            fail_msg("%s %s, %d ranks: %s %g", cases[i].strategy, cases[i].mesh, cases[i].ranks, what,
                     difference);
        most = fmax(most, difference);
    }
    print_message("the largest relative difference is %.2g\n", most);
}

// What makes test_equal worth something: each rank's own statistics give other gradients.
static void test_own_statistics_differ(void **state)
{
    (void)state;
    static const char *const strategies[] = {"ddp", "ep", "cp"};
    for (size_t i = 0; i < (test_on_host() ? 3 : 1); i++) {
        balance_case c = RUN(strategies[i], "", 2, true, &mixture, );
        char what[256];
        double difference = difference_of(&c, false, what, sizeof what);
        if (!(difference > 1e-3 && isfinite(difference)))
            fail_msg("%s: with each rank's own statistics %s differs by %g only", strategies[i], what,
                     difference);
    }
}

// An all-reduce of 4 bytes for each expert of each layer, a microbatch.
static void test_volume(void **state)
{
    (void)state;
    balance_case c = RUN("ddp", "", 2, true, &mixture, .micro_batches = 2);
    for (int global = 0; global < 2; global++) {
        division_asked asked = asked_of(&c, global);
        division_run run;
        assert_null(divide_and_train(&asked, &run));
        for (int r = 0; r < c.ranks; r++) {
            const ptb_lane_moved *moved = &run.moved[r][PTB_LANE_BALANCE];
            double bytes = global ? STEPS * 2 * 4 * (double)(mixture.layers * mixture.experts) : 0;
            assert_int_equal(moved->calls, global ? STEPS * 2 : 0);
            assert_true(moved->volume_bytes == 2 * (c.ranks - 1) / (double)c.ranks * bytes);
        }
        release_run(&run);
    }
}

// Twice the same bits.
static void test_repeats(void **state)
{
    (void)state;
    division_asked asked = asked_of(&cases[5], true);
    division_run once, again;
    assert_null(divide_and_train(&asked, &once));
    assert_null(divide_and_train(&asked, &again));
    assert_memory_equal(once.losses[0], again.losses[0], sizeof once.losses[0]);
    assert_memory_equal(once.parameters, again.parameters, once.count * sizeof(float));
    release_run(&once), release_run(&again);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_equal),
                                       cmocka_unit_test(test_own_statistics_differ),
                                       cmocka_unit_test(test_volume), cmocka_unit_test(test_repeats)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
