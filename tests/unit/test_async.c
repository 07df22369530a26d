// The parameter server with bounded staleness: without staleness it is synchronous training; with the oldest
// parameters that are allowed it is a plain loop of delayed updates; with the newest that have arrived no
// rank is further ahead than the bound, and one gets as far as that. What it sends and allocates is what
// closed forms say. On the device that PTB_TEST_DEVICE names (host unless it is set).
#include "tests/unit/data_delayed.h"

#include <stdatomic.h>
#include <unistd.h>

static const double tolerance = 1e-5;

static data_run *train_alone(data_settings s, const char *strategy)
{
    s.strategy = strategy;
    s.ranks = 1;
    s.replicate = 0;
    s.micro_batches = 1;
    return data_train_all(s);
}

static void test_synchronous(void **state)
{
    (void)state;
    static const data_settings settings[] = {
        {.ranks = 1},
        {.ranks = 2, .model = DATA_LLAMA, .momentum = 0.5, .clip = 0.2},
        {.ranks = 3, .model = DATA_MOE, .micro_batches = 2},
        {.ranks = 4, .replicate = 2, .model = DATA_LLAMA},
        {.ranks = 4, .without_overlap = true, .clip = 0.2},
        {.ranks = 8, .model = DATA_MOE},
    };
    size_t count = sizeof settings / sizeof *settings;
    for (size_t i = test_on_host() ? 0 : 1; i < (test_on_host() ? count : 3); i++) {
        data_settings s = settings[i];
        data_run *one = train_alone(s, "ddp");
        s.strategy = "async";
        data_check_norms(s, one, tolerance);
        data_free(one);
    }
}

// AdamW, and 16 bits with their master weights, beside zero1 on as many ranks: the same operations.
static void test_types(void **state)
{
    (void)state;
    for (int bf16 = test_on_host() ? 0 : 1; bf16 < 2; bf16++) {
        data_settings s = {.ranks = 3, .adamw = true, .type = bf16 ? PTB_BF16 : PTB_F32};
        s.reduce_type = s.type;
        s.strategy = "zero1";
        data_run *zero1 = data_train_all(s);
        s.strategy = "async";
        data_run *many = data_train_all(s);
        data_assert_same(many, zero1);
        data_free(many);
        data_free(zero1);
    }
}

// Deterministic: every step takes the oldest parameters that it may. One update more or less would show.
static void test_delayed(void **state)
{
    (void)state;
    static const int ranks[] = {2, 3, 4, 1};
    size_t count = test_on_host() ? sizeof ranks / sizeof *ranks : 1;
    for (int staleness = 1; staleness <= (test_on_host() ? 3 : 2); staleness++) {
        data_settings s = {.model = (data_model)(staleness % DATA_MODELS),
                           .momentum = staleness == 2 ? 0.5 : 0,
                           .clip = staleness == 2 ? 0.3 : 0,
                           .options = {.staleness = staleness}};
        data_run *reference = train_alone(s, "delayed");
        s.strategy = "async";
        for (size_t i = 0; i < count; i++) {
            s.ranks = ranks[i];
            s.micro_batches = 1 + (int64_t)(i % 2);
            data_check_equal(s, reference, tolerance);
        }
        s.options.staleness = staleness == 1 ? 0 : staleness - 1;
        data_run *fresher = data_train_all(s);
        assert_true(data_losses(fresher, reference) > 100 * tolerance);
        assert_true(data_tensors(fresher, reference, false) > 100 * tolerance);
        data_free(fresher);
        data_free(reference);
    }
}

// N elements, d ranks, w bytes; gradients are reduced in f32.
static void test_volume(void **state)
{
    (void)state;
    for (int staleness = test_on_host() ? 0 : 1; staleness < (test_on_host() ? 3 : 2); staleness++) {
        data_settings s = {.strategy = "async",
                           .model = (data_model)(staleness % DATA_MODELS),
                           .ranks = 3,
                           .type = staleness == 1 ? PTB_BF16 : PTB_F32,
                           .micro_batches = 2,
                           .options = {.staleness = staleness}};
        data_run *run = data_train_all(s);
        double n = (double)run->layout.count, d = 3, w = staleness == 1 ? 2 : 4, steps = DATA_STEPS;
        const ptb_lane_moved *shard = &run->moved[PTB_LANE_DENSE_SHARD];
        assert_true((double)shard->bytes[PTB_REDUCE_SCATTER] == 4 * n * steps);
        assert_true((double)shard->bytes[PTB_ALL_GATHER] == w * n * steps);
        double sent = (d - 1) / d * (4 + w) * n * steps;
        assert_true(fabs(shard->volume_bytes / sent - 1) < 1e-9);
        assert_int_equal(run->moved[PTB_LANE_DENSE].calls, 0);
        data_free(run);
    }
}

// That the ledger is as predicted, to the byte, is seen to in every run.
static void test_state_bytes(void **state)
{
    (void)state;
    if (!test_on_host())
        skip(); // counts alone
    for (int staleness = 0; staleness < 4; staleness += 3)
        for (int ranks = 2; ranks <= 4; ranks += 2)
            for (int bf16 = 0; bf16 < 2; bf16++) {
                data_run *run = data_train_all((data_settings){.strategy = "async",
                                                               .type = bf16 ? PTB_BF16 : PTB_F32,
                                                               .ranks = ranks,
                                                               .adamw = true,
                                                               .bucket = 1 << 16,
                                                               .options = {.staleness = staleness}});
                double bytes = (double)(run->bytes[PTB_MEMORY_PARAMETERS] + run->bytes[PTB_MEMORY_GRADIENTS] +
                                        run->bytes[PTB_MEMORY_OPTIMIZER]) /
                               (double)run->layout.count;
                double wanted = (bf16 ? 6 : 8) * (staleness + 1) + 12.0 / ranks;
                assert_true(fabs(bytes / wanted - 1) < 0.05);
                data_free(run);
            }
}

// ---- with time

enum { RACE_STEPS = 24, RACE_RANKS = 3 };

// One rank after the other is held back before a step until all others have finished as many steps as the
// bound lets them.
typedef struct {
    data_run run;
    int staleness, slow;
    atomic_int finished[RACE_RANKS]; // steps
    double losses[RACE_RANKS][RACE_STEPS];
    uint64_t stale[RACE_RANKS][8];
    float *whole[RACE_RANKS]; /* [layout.count]: what each would compute the next step with */
    const char *problem;
} race;

static bool others_reach(race *r, int steps)
{
    for (int i = 0; i < RACE_RANKS; i++)
        if (i != r->slow && atomic_load(&r->finished[i]) < steps)
            return false;
    return true;
}

static bool others_exceed(race *r, int steps)
{
    for (int i = 0; i < RACE_RANKS; i++)
        if (i != r->slow && atomic_load(&r->finished[i]) > steps)
            return true;
    return false;
}

// Step t of the slow rank has not begun, so that others have at most version t.
static void hold_back(race *r, int t)
{
    int most = t + r->staleness + 1 < RACE_STEPS ? t + r->staleness + 1 : RACE_STEPS;
    while (!others_reach(r, most))
        usleep(200);
    usleep(2000);
    if (others_exceed(r, most))
        r->problem = "a rank is further ahead than the bound";
}

static ptb_status take_whole(ptb_trainer *t, float *whole)
{
    const ptb_layout *layout = t->config.layout;
    PTB_TRY(t->data->ops->begin_step(t->data, t->steps));
    for (size_t u = 0; u < layout->units; u++) {
        ptb_unit_memory memory;
        t->data->ops->unit_memory(t->data, u, &memory);
        PTB_TRY(ptb_stream_copy(t->compute, whole + layout->unit[u].first, memory.parameters,
                                layout->unit[u].count * sizeof(float)));
    }
    return ptb_stream_sync(t->compute);
}

static ptb_status run_race(race *r, ptb_trainer *t, int rank)
{
    for (int step = 0; step < RACE_STEPS; step++) {
        if (rank == r->slow)
            hold_back(r, step);
        PTB_TRY(ptb_trainer_step(t));
        atomic_store(&r->finished[rank], step + 1);
    }
    PTB_TRY(ptb_trainer_drain(t));
    ptb_data_staleness stale = t->data->ops->staleness(t->data);
    if (stale.bound != r->staleness || t->recorded != RACE_STEPS)
        return PTB_WRONG;
    memcpy(r->stale[rank], stale.steps, (size_t)(stale.bound + 1) * sizeof *stale.steps);
    memcpy(r->losses[rank], t->losses, sizeof r->losses[rank]);
    PTB_TRY(data_take(t, PTB_DATA_PARAMETERS, r->run.parameters[rank], r->run.held[rank]));
    return take_whole(t, r->whole[rank]);
}

static ptb_status race_main(ptb_world *world, void *arg)
{
    race *r = arg;
    ptb_tokens *tokens;
    ptb_tokens_config source = {
        .seed = 1, .length = r->run.layout.shape.sequence, .vocabulary = r->run.layout.shape.vocabulary};
    PTB_TRY(ptb_tokens_open(&source, &tokens));
    ptb_trainer_config config = data_configure(world, &r->run);
    config.tokens = tokens;
    config.deterministic = r->slow < 0;
    config.max_steps = RACE_STEPS;
    ptb_trainer *trainer = NULL;
    ptb_status status = ptb_trainer_new(&config, r->run.reason[world->rank], &trainer);
    if (status == PTB_OK)
        status = run_race(r, trainer, world->rank);
    ptb_trainer_free(trainer);
    ptb_tokens_close(tokens);
    return status;
}

// slow < 0: nobody is held back, and nothing is decided by time.
static race *race_new(int staleness, int slow)
{
    race *r = calloc(1, sizeof *r);
    ptb_model_shape shape = data_shape(DATA_LLAMA);
    assert_non_null(r);
    *r = (race){
        .staleness = staleness,
        .slow = slow,
        .run.asked = {
            .strategy = "async", .ranks = RACE_RANKS, .rate = 0.1, .options = {.staleness = staleness}}};
    assert_int_equal(ptb_layout_init(&r->run.layout, &shape, NULL), PTB_OK);
    for (int i = 0; i < RACE_RANKS; i++) {
        r->whole[i] = calloc(r->run.layout.count, sizeof(float));
        r->run.parameters[i] = calloc(r->run.layout.count, sizeof(float));
        r->run.held[i] = calloc(r->run.layout.count, sizeof(bool));
        assert_true(r->whole[i] && r->run.parameters[i] && r->run.held[i]);
    }
    assert_int_equal(ptb_world_run_local(RACE_RANKS, NULL, race_main, r), PTB_OK);
    return r;
}

static void race_free(race *r)
{
    for (int i = 0; i < RACE_RANKS; i++) {
        free(r->whole[i]);
        free(r->run.parameters[i]);
        free(r->run.held[i]);
    }
    ptb_layout_release(&r->run.layout);
    free(r);
}

// What ranks have of the newest version is what the servers have.
static void assert_one_state(const race *r)
{
    for (int i = 0; i < RACE_RANKS; i++) {
        assert_memory_equal(r->losses[i], r->losses[0], sizeof r->losses[0]);
        for (size_t k = 0; k < r->run.layout.count; k++) {
            assert_true(r->whole[i][k] == r->whole[0][k]);
            if (r->run.held[i][k])
                assert_true(r->run.parameters[i][k] == r->whole[0][k]);
        }
    }
}

static void test_bound(void **state)
{
    (void)state;
    for (int staleness = test_on_host() ? 0 : 2; staleness <= 2; staleness++) {
        race *r = race_new(staleness, staleness % RACE_RANKS);
        if (r->problem)
            print_error("staleness %d: %s\n", staleness, r->problem);
        assert_null(r->problem);
        for (int i = 0; i < RACE_RANKS; i++) {
            uint64_t sum = 0;
            for (int k = 0; k <= staleness; k++) {
                sum += r->stale[i][k];
                // Others begin step t when the slow rank has not begun step t - s.
                uint64_t wanted = k < staleness ? 1 : (uint64_t)(RACE_STEPS - staleness);
                if (i != r->slow)
                    assert_int_equal(r->stale[i][k], wanted);
            }
            assert_int_equal(sum, RACE_STEPS);
        }
        assert_one_state(r);
        race_free(r);
    }
}

static double last_losses(const race *r)
{
    double sum = 0;
    for (int i = RACE_STEPS - 6; i < RACE_STEPS; i++)
        sum += r->losses[0][i] / 6;
    return sum;
}

// Old gradients train too, nearly as well.
static void test_losses(void **state)
{
    (void)state;
    race *synchronous = race_new(0, -1);
    double fall = synchronous->losses[0][0] - last_losses(synchronous);
    assert_true(fall > 0.1);
    for (int staleness = 1; staleness <= (test_on_host() ? 2 : 1); staleness++) {
        race *r = race_new(staleness, 1);
        double difference = last_losses(r) - last_losses(synchronous);
        if (!(difference > 0 && difference < 0.3 * fall))
            print_error("staleness %d: loss falls by %g, that of synchronous steps by %g\n", staleness,
                        fall - difference, fall);
        assert_true(difference > 0 && difference < 0.3 * fall);
        race_free(r);
    }
    race_free(synchronous);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_synchronous), cmocka_unit_test(test_types),
        cmocka_unit_test(test_delayed),     cmocka_unit_test(test_volume),
        cmocka_unit_test(test_state_bytes), cmocka_unit_test(test_bound),
        cmocka_unit_test(test_losses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
