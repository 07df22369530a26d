// Models whose sequences are split over ranks train as on one rank: losses of five steps, the gradient's
// norm, every gradient tensor of the last step and every parameter after it, for each way of attention, with
// dropout, documents, microbatches and recomputation; memory is what was predicted, and volumes are what the
// blocks' closed forms say.
#include "strategies/context/context.h"
#include "tests/unit/strategies_fixture.h"

#define GPT                                                                                                  \
    .layers = 2, .hidden = 24, .heads = 4, .feed_forward = 40, .vocabulary = 37, .sequence = 16,             \
    .positions = 19, .biases = true, .tied = true, .dropout = 0.2
#define LLAMA                                                                                                \
    .layers = 2, .hidden = 24, .heads = 4, .kv_heads = 2, .feed_forward = 44, .vocabulary = 40,              \
    .sequence = 16, .norm = PTB_RMS_NORM, .position = PTB_ROTARY_POSITIONS, .activation = PTB_SWIGLU
#define ODD_GPT                                                                                              \
    .layers = 2, .hidden = 18, .heads = 3, .feed_forward = 30, .vocabulary = 37, .sequence = 18,             \
    .biases = true
// A tensor-parallel rank's slice of the rows ends within a sequence, and one goes over both pieces.
#define UNEVEN                                                                                               \
    .layers = 2, .hidden = 18, .heads = 3, .feed_forward = 30, .vocabulary = 37, .sequence = 12,             \
    .biases = true, .dropout = 0.2
#define MIXTURE .experts = 4, .top_k = 2, .expert_hidden = 16

typedef struct {
    const char *way, *mesh;
    int degree, ranks;
    int tensor; // ranks of tp, with sequence parallelism; 0: 1
    ptb_model_shape shape;
    int64_t micro_batches;
    bool packs;
    ptb_recompute recompute;
    bool graph;   // of the device that has graphs
    bool on_gpus; // also on the simulated device, where threads of blocks are slow
} split_case;

#define SPLIT(way_, u, n, sizes, ...)                                                                        \
    {                                                                                                        \
        .way = (way_), .degree = (u), .ranks = (n), .mesh = (sizes), __VA_ARGS__                             \
    }
static const split_case cases[] = {
    SPLIT("ring", 0, 2, "cp=2", .shape = {GPT}, .packs = true, .on_gpus = true),
    SPLIT("ring", 0, 2, "cp=2", .shape = {LLAMA}, .micro_batches = 2, .recompute = PTB_RECOMPUTE_FULL),
    SPLIT("ring", 0, 3, "cp=3", .shape = {ODD_GPT}, ),
    SPLIT("ring", 0, 4, "cp=4", .shape = {LLAMA}, .packs = true, .on_gpus = true),
    SPLIT("ring", 0, 8, "cp=8", .shape = {GPT}, ),
    SPLIT("ring", 0, 2, "cp=2", .shape = {LLAMA}, .graph = true, .on_gpus = true),
    SPLIT("ring_all_to_all", 2, 4, "cp=4", .shape = {LLAMA}, .graph = true, .on_gpus = true),
    SPLIT("ring", 0, 8, "cp=4,dp=2", .shape = {LLAMA}, .micro_batches = 2),
    SPLIT("ring", 0, 2, "cp=2", .shape = {LLAMA, MIXTURE}, ),
    SPLIT("ring", 0, 4, "tp=2,cp=2", .shape = {GPT}, .tensor = 2, .packs = true),
    SPLIT("all_to_all", 0, 4, "tp=2,cp=2", .shape = {LLAMA}, .tensor = 2, .packs = true, .micro_batches = 2),
    SPLIT("ring", 0, 8, "tp=4,cp=2", .shape = {GPT}, .tensor = 4, .micro_batches = 4),
    SPLIT("ring", 0, 6, "tp=3,cp=2", .shape = {UNEVEN}, .tensor = 3),
    SPLIT("all_gather", 0, 2, "cp=2", .shape = {GPT}, .packs = true, .micro_batches = 2, .on_gpus = true),
    SPLIT("all_gather", 0, 4, "cp=4", .shape = {LLAMA}, .recompute = PTB_RECOMPUTE_SELECTIVE),
    SPLIT("all_gather", 0, 8, "cp=8", .shape = {GPT}, ),
    SPLIT("all_to_all", 0, 2, "cp=2", .shape = {GPT}, .packs = true, .recompute = PTB_RECOMPUTE_SELECTIVE,
          .on_gpus = true),
    SPLIT("all_to_all", 0, 3, "cp=3", .shape = {ODD_GPT}, .micro_batches = 2),
    SPLIT("all_to_all", 0, 4, "cp=4", .shape = {LLAMA}, .packs = true, .recompute = PTB_RECOMPUTE_FULL),
    SPLIT("ring_all_to_all", 2, 4, "cp=4", .shape = {GPT}, .packs = true, .micro_batches = 2,
          .on_gpus = true),
    SPLIT("ring_all_to_all", 2, 4, "cp=4", .shape = {LLAMA}, .recompute = PTB_RECOMPUTE_FULL),
    SPLIT("ring_all_to_all", 4, 8, "cp=8", .shape = {LLAMA}, ),
};
enum { CASES = sizeof cases / sizeof *cases, BATCH = 4 };

// The fixture's last word has no argument of its own.
static _Thread_local const split_case *now;
static const split_case *asked_case;

static void choose(ptb_trainer_config *config)
{
    now = asked_case;
    config->context = (const ptb_context *)ptb_registry_need(PTB_KIND_CONTEXT, now->way);
    config->context_degree = now->degree;
}

static division_asked asked_of(const split_case *c)
{
    return (division_asked){.strategy = c->tensor ? "tp+sp" : "ddp",
                            .mesh = c->mesh,
                            .ranks = c->ranks,
                            .shape = c->shape,
                            .batch = BATCH,
                            .micro_batches = c->micro_batches,
                            .recompute = c->recompute,
                            .optimizer = PTB_OPTIMIZER_SGD,
                            .pack = c->packs,
                            .graph = c->graph,
                            .adjust = choose};
}

// Bytes that a rank sends over the cp lane in all steps: what context.h's plug-ins say of a block, forward
// once more where it is recomputed.
static double volume_of(const split_case *c)
{
    const ptb_model_shape *s = &c->shape;
    double tp = c->tensor ? c->tensor : 1, sequences = c->ranks / tp, n = sequences;
    double kv_heads = (double)(s->kv_heads ? s->kv_heads : s->heads) / tp;
    if (strstr(c->mesh, "dp=2"))
        n /= 2;
    double rows = (double)(BATCH * s->sequence) / sequences, width = (double)(s->hidden / s->heads);
    double query = (double)s->heads / tp * width, kv = 2 * kv_heads * width, u = 1, forward = 0, backward = 0;
    if (strcmp(c->way, "all_gather") == 0) {
        forward = (n - 1) * 4 * rows * kv;
        backward = 2 * forward;
    } else {
        u = strcmp(c->way, "ring") == 0 ? 1 : strcmp(c->way, "all_to_all") == 0 ? n : c->degree;
        double copies = u > kv_heads ? u / kv_heads : 1, ring = n / u;
        double heads = (u - 1) * 4 * rows * (2 * query + kv * copies) / u;
        double block = ring > 1 ? 4 * rows * kv * copies : 0;
        forward = heads + (ring - 1) * block + (c->packs ? 4 * (u - 1) * rows : 0);
        backward = heads + (2 * ring - 1) * block;
    }
    return STEPS * (double)s->layers * (forward * (c->recompute ? 2 : 1) + backward);
}

static bool compare_case(const split_case *c)
{
    asked_case = c;
    division_asked asked = asked_of(c);
    division_run run, alone;
    const char *what = "", *problem = divide_and_train(&asked, &run);
    train_alone(asked, &alone);
    double difference = problem ? INFINITY : compare_runs(&run, &alone, &what);
    double volume = run.moved[0][PTB_LANE_CONTEXT].volume_bytes, wanted = volume_of(c);
    bool right = difference < 1e-5 && fabs(volume - wanted) < 1;
    if (!right)
        print_error("%s, %s, hidden %d: %s %s %g; sent %.0f bytes, the closed form says %.0f\n", c->way,
                    c->mesh, (int)c->shape.hidden, problem ? problem : "", what, difference, volume, wanted);
    release_run(&run);
    release_run(&alone);
    return right;
}

static void test_equal(void **state)
{
    (void)state;
    size_t wrong = 0;
    for (size_t i = 0; i < CASES; i++)
        if (test_on_host() ? !cases[i].graph : cases[i].on_gpus)
            wrong += !compare_case(&cases[i]);
    assert_int_equal(wrong, 0);
}

// In 16 bits what many ranks add up is f32: losses stay near those of one rank, whose roundings are others.
static void test_narrow(void **state)
{
    (void)state;
    static const split_case narrow[] = {SPLIT("ring", 0, 4, "cp=4", .shape = {LLAMA}, ),
                                        SPLIT("ring_all_to_all", 2, 4, "cp=4", .shape = {LLAMA}, )};
    for (size_t i = 0; i < (test_on_host() ? 2 : 0); i++) {
        asked_case = &narrow[i];
        division_asked asked = asked_of(asked_case);
        asked.type = PTB_BF16;
        division_run run, alone;
        const char *problem = divide_and_train(&asked, &run);
        assert_null(problem);
        train_alone(asked, &alone);
        assert_true(series_difference(run.losses[0], alone.losses[0]) < 1e-3);
        assert_true(series_difference(run.norms[0], alone.norms[0]) < 2e-2);
        release_run(&run);
        release_run(&alone);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equal),
        cmocka_unit_test(test_narrow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
