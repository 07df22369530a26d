// Every strategy, and every pair and a triple of mesh axes, trains as one rank does: the losses of five
// steps, the gradient's norm, every gradient tensor of the last step and every parameter after it (under SGD)
// are those of one rank up to rounding; memory is what was predicted, to the byte; the same run twice gives
// the same bits; a fault turns the comparison red.
#include "tests/unit/strategies_fixture.h"

#define GPT .layers = 2, .feed_forward = 40, .vocabulary = 37, .biases = true, .tied = true
#define LLAMA                                                                                                \
    .layers = 2, .feed_forward = 44, .vocabulary = 40, .norm = PTB_RMS_NORM,                                 \
    .position = PTB_ROTARY_POSITIONS, .activation = PTB_SWIGLU
#define MIXTURE                                                                                              \
    .layers = 2, .feed_forward = 40, .vocabulary = 40, .norm = PTB_RMS_NORM,                                 \
    .position = PTB_ROTARY_POSITIONS, .activation = PTB_SWIGLU, .top_k = 2, .expert_hidden = 16,             \
    .shared_experts = 1, .dense_layers = 1
// Powers of two, and threes.
#define EVEN .hidden = 32, .heads = 8, .sequence = 16
#define ODD  .hidden = 36, .heads = 6, .sequence = 12

typedef enum { MODEL_GPT, MODEL_LLAMA, MODEL_MIXTURE, MODEL_COUNT } model_kind;
static const ptb_model_shape shapes[2][MODEL_COUNT] = {
    {{GPT, EVEN}, {LLAMA, EVEN, .kv_heads = 8}, {MIXTURE, EVEN, .kv_heads = 8, .experts = 8}},
    {{GPT, ODD}, {LLAMA, ODD, .kv_heads = 3}, {MIXTURE, ODD, .kv_heads = 3, .experts = 6}}};
static const char *const model_names[] = {"gpt", "llama", "mixture"};

enum { GPT_ = 1 << MODEL_GPT, LLAMA_ = 1 << MODEL_LLAMA, MIXTURE_ = 1 << MODEL_MIXTURE, DENSE = 3, ALL = 7 };

typedef struct {
    const char *strategy, *mesh;
    int ranks;
    int models;
    int on_gpus; // of them, those that also run on the simulated device, whose threads of blocks are slow
    int64_t micro_batches;
    bool clips, packs, without_overlap;
    bool gathers_rows; // all-gather of rows for experts, and nothing beside it; else all-to-all, overlapped
    ptb_recompute recompute;
} division_case;

#define RUN(name, sizes, n, of, gpus, ...)                                                                   \
    {                                                                                                        \
        .strategy = (name), .mesh = (sizes), .ranks = (n), .models = (of), .on_gpus = (gpus), __VA_ARGS__    \
    }
static const division_case cases[] = {
    // Each axis alone.
    RUN("ddp", "", 2, ALL, GPT_, .micro_batches = 2),
    RUN("ddp", "", 3, DENSE, 0, ),
    RUN("ddp", "", 4, MIXTURE_, 0, .packs = true),
    RUN("ddp", "", 8, GPT_ | MIXTURE_, 0, .clips = true),
    RUN("zero1", "", 2, ALL, LLAMA_, .clips = true),
    RUN("zero1", "", 3, DENSE, 0, .packs = true),
    RUN("zero1", "", 4, LLAMA_ | MIXTURE_, 0, .micro_batches = 2),
    RUN("zero1", "", 8, GPT_, 0, .recompute = PTB_RECOMPUTE_FULL),
    RUN("zero2", "", 2, ALL, MIXTURE_, .micro_batches = 2, .clips = true),
    RUN("zero2", "", 3, DENSE, 0, ),
    RUN("zero2", "", 4, LLAMA_ | MIXTURE_, 0, .without_overlap = true),
    RUN("zero2", "", 8, GPT_, 0, .packs = true),
    RUN("fsdp", "", 2, ALL, GPT_ | MIXTURE_, .micro_batches = 2, .clips = true),
    RUN("fsdp", "", 3, DENSE, 0, .recompute = PTB_RECOMPUTE_FULL),
    RUN("fsdp", "", 4, LLAMA_ | MIXTURE_, 0, .without_overlap = true),
    RUN("fsdp", "", 8, GPT_, 0, .packs = true),
    RUN("hsdp", "", 4, ALL, LLAMA_, .clips = true),
    RUN("hsdp", "replicate=4", 8, GPT_ | MIXTURE_, 0, .micro_batches = 2),
    RUN("hsdp", "replicate=2", 6, DENSE, 0, ),
    RUN("async", "", 2, ALL, GPT_, .micro_batches = 2, .clips = true),
    RUN("async", "", 3, DENSE, 0, .packs = true),
    RUN("async", "", 8, GPT_ | MIXTURE_, 0, ),
    RUN("tp", "", 2, ALL, GPT_ | MIXTURE_, .micro_batches = 2, .clips = true),
    RUN("tp", "", 3, ALL, 0, .packs = true, .recompute = PTB_RECOMPUTE_FULL),
    RUN("tp", "", 4, DENSE, 0, ),
    RUN("tp", "", 8, DENSE, 0, .clips = true),
    RUN("tp+sp", "", 2, ALL, LLAMA_, .clips = true),
    RUN("tp+sp", "", 3, ALL, 0, .micro_batches = 2),
    RUN("tp+sp", "", 4, DENSE, 0, .packs = true),
    RUN("tp+sp", "", 8, DENSE, 0, ),
    RUN("cp", "", 2, ALL, GPT_ | LLAMA_, .packs = true),
    RUN("cp", "", 3, ALL, 0, .clips = true),
    RUN("cp", "", 4, DENSE, 0, .recompute = PTB_RECOMPUTE_SELECTIVE),
    RUN("cp", "", 8, DENSE, 0, ),
    RUN("ep", "", 2, MIXTURE_, MIXTURE_, .micro_batches = 2),
    RUN("ep", "", 3, MIXTURE_, 0, .clips = true, .packs = true),
    RUN("ep", "", 4, MIXTURE_, 0, .gathers_rows = true, .recompute = PTB_RECOMPUTE_FULL),
    RUN("ep", "", 8, MIXTURE_, 0, .packs = true),
    // Data-parallel ways times tp, cp and ep.
    RUN("tp", "tp=4,dp=2", 8, ALL, 0, ),
    RUN("tp+sp", "tp=4,dp=2", 8, ALL, 0, .packs = true),
    RUN("zero1", "tp=2", 4, DENSE, 0, .clips = true),
    RUN("zero2", "tp=2", 8, GPT_ | MIXTURE_, 0, .micro_batches = 2),
    RUN("fsdp", "tp=2", 4, ALL, GPT_, .packs = true, .clips = true),
    RUN("fsdp", "tp=3", 6, DENSE, 0, ),
    RUN("hsdp", "tp=2", 8, LLAMA_, 0, .clips = true),
    RUN("async", "tp=2", 4, ALL, LLAMA_, .clips = true),
    RUN("cp", "cp=4", 8, ALL, 0, .micro_batches = 2),
    RUN("zero1", "cp=2", 4, DENSE, 0, .recompute = PTB_RECOMPUTE_SELECTIVE),
    RUN("zero2", "cp=4", 8, GPT_ | MIXTURE_, 0, .micro_batches = 2),
    RUN("fsdp", "cp=2", 4, ALL, LLAMA_, .packs = true, .clips = true),
    RUN("async", "cp=2", 4, DENSE, 0, .packs = true),
    RUN("ddp", "ep=2", 4, MIXTURE_, MIXTURE_, .clips = true),
    RUN("ddp", "ep=3", 6, MIXTURE_, 0, .gathers_rows = true),
    RUN("ddp", "ep=4", 8, MIXTURE_, 0, .recompute = PTB_RECOMPUTE_FULL),
    RUN("zero1", "ep=2", 4, MIXTURE_, 0, .clips = true),
    RUN("zero2", "ep=2", 4, MIXTURE_, 0, .micro_batches = 2),
    RUN("fsdp", "ep=2", 4, MIXTURE_, MIXTURE_, .clips = true),
    RUN("hsdp", "ep=2", 8, MIXTURE_, 0, .clips = true),
    RUN("async", "ep=2", 4, MIXTURE_, MIXTURE_, .clips = true),
    // The other pairs.
    RUN("tp+sp", "tp=2,cp=2", 4, ALL, 0, .packs = true),
    RUN("tp", "tp=2,cp=2", 4, ALL, 0, .clips = true),
    RUN("tp+sp", "tp=2,ep=2", 4, MIXTURE_, MIXTURE_, .clips = true),
    RUN("tp", "tp=2,ep=2", 4, MIXTURE_, 0, .gathers_rows = true, .micro_batches = 2),
    RUN("ddp", "cp=2,ep=2", 4, MIXTURE_, 0, .packs = true, .clips = true),
    // Triples.
    RUN("tp+sp", "tp=2,cp=2,dp=2", 8, ALL, LLAMA_, .clips = true),
    RUN("fsdp", "tp=2,cp=2", 8, ALL, 0, .packs = true, .clips = true),
    RUN("tp", "tp=2,cp=2,ep=2", 8, MIXTURE_, 0, .micro_batches = 2),
    RUN("fsdp", "cp=2,ep=2", 8, MIXTURE_, 0, .clips = true),
    RUN("zero1", "tp=2,ep=2", 8, MIXTURE_, 0, .clips = true),
    RUN("ddp", "cp=2,ep=2", 8, MIXTURE_, 0, .micro_batches = 2),
};
enum { CASES = sizeof cases / sizeof *cases };

static void exchange_rows(ptb_trainer_config *config)
{
    config->expert_overlap = true;
}

static void gather_rows(ptb_trainer_config *config)
{
    config->expert_dispatch =
        (const ptb_expert_dispatch *)ptb_registry_find(PTB_KIND_EXPERT_DISPATCH, "all_gather");
}

static division_asked asked_of(const division_case *c, model_kind model)
{
    bool odd = c->ranks % 3 == 0;
    int64_t even = test_on_host() ? 16 : 8;
    return (division_asked){.strategy = c->strategy,
                            .mesh = c->mesh,
                            .ranks = c->ranks,
                            .shape = shapes[odd][model],
                            .batch = odd ? 6 : even,
                            .micro_batches = c->micro_batches,
                            .recompute = c->recompute,
                            .optimizer = PTB_OPTIMIZER_SGD,
                            .clip = c->clips ? 0.4 : 0,
                            .pack = c->packs,
                            .without_overlap = c->without_overlap,
                            .adjust = c->gathers_rows ? gather_rows : exchange_rows};
}

static int models_here(const division_case *c)
{
    return test_on_host() ? c->models : c->on_gpus;
}

// One rank's runs, each made once.
enum { ALONE_COUNT = 2 * MODEL_COUNT * 2 * 2 };
typedef struct {
    bool made[ALONE_COUNT];
    division_run run[ALONE_COUNT];
} alone_runs;

static const division_run *alone_for(alone_runs *all, const division_case *c, model_kind model)
{
    bool odd = c->ranks % 3 == 0;
    size_t at = (((size_t)odd * MODEL_COUNT + model) * 2 + c->packs) * 2 + c->clips;
    if (!all->made[at])
        train_alone(asked_of(c, model), &all->run[at]);
    all->made[at] = true;
    return &all->run[at];
}

static void release_alone(alone_runs *all)
{
    for (size_t i = 0; i < ALONE_COUNT; i++)
        if (all->made[i])
            release_run(&all->run[i]);
    free(all);
}

static void test_equal(void **state)
{
    (void)state;
    size_t wrong = 0, compared = 0;
    double most = 0;
    alone_runs *alone = calloc(1, sizeof *alone);
    for (size_t i = 0; i < CASES; i++)
        for (int m = 0; m < MODEL_COUNT; m++) {
            const division_case *c = &cases[i];
            if (!(models_here(c) & 1 << m))
                continue;
            division_asked asked = asked_of(c, (model_kind)m);
            division_run run;
            const char *what = "", *problem = divide_and_train(&asked, &run);
            double difference =
                problem ? INFINITY : compare_runs(&run, alone_for(alone, c, (model_kind)m), &what);
            if (!(difference < 1e-5)) {
                print_error("%s %s, %d ranks, %s: %s %s %g\n", c->strategy, c->mesh, c->ranks, model_names[m],
                            problem ? problem : "", what, difference);
                wrong++;
            }
            most = difference > most ? difference : most;
            compared++;
            release_run(&run);
        }
    release_alone(alone);
    print_message("%zu runs compared; the largest relative difference is %.2g\n", compared, most);
    assert_int_equal(wrong, 0);
}

static void test_repeats(void **state)
{
    (void)state;
    for (size_t i = 0; i < CASES; i++) {
        const division_case *c = &cases[i];
        int models = models_here(c);
        int model = models & GPT_ ? MODEL_GPT : models & LLAMA_ ? MODEL_LLAMA : MODEL_MIXTURE;
        bool few = c->ranks <= 2 || (c->ranks == 4 && model == MODEL_GPT);
        if (!models || !few)
            continue;
        division_asked asked = asked_of(c, (model_kind)model);
        division_run once, again;
        assert_null(divide_and_train(&asked, &once));
        assert_null(divide_and_train(&asked, &again));
        assert_memory_equal(once.losses[0], again.losses[0], sizeof once.losses[0]);
        assert_memory_equal(once.parameters, again.parameters, once.count * sizeof(float));
        release_run(&once);
        release_run(&again);
    }
}

// A fault in one rank's reductions is far outside of what rounding does.
static void test_faults(void **state)
{
    (void)state;
    static const struct {
        const char *strategy;
        ptb_lane_use lane;
        fault_kind kind;
    } faults[] = {{"ddp", PTB_LANE_DENSE, SKIPPED},
                  {"ddp", PTB_LANE_DENSE, DOUBLED},
                  {"tp", PTB_LANE_TENSOR, SKIPPED},
                  {"tp+sp", PTB_LANE_TENSOR, DOUBLED}};
    for (size_t i = 0; i < (test_on_host() ? sizeof faults / sizeof *faults : 1); i++) {
        division_asked asked =
            asked_of(&(division_case)RUN(faults[i].strategy, "", 2, GPT_, GPT_, ), MODEL_GPT);
        division_run run, alone;
        const char *what;
        train_alone(asked, &alone);
        asked.fault = faults[i].kind;
        asked.fault_lane = faults[i].lane;
        (void)divide_and_train(&asked, &run); // losses of the ranks may differ
        double difference = compare_runs(&run, &alone, &what);
        if (!(difference > 1e-3))
            print_error("%s with fault %d: %g\n", faults[i].strategy, faults[i].kind, difference);
        assert_true(difference > 1e-3);
        release_run(&run);
        release_run(&alone);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_equal), cmocka_unit_test(test_repeats),
                                       cmocka_unit_test(test_faults)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
