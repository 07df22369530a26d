// Tensor parallelism, with and without sequence parallelism, against one rank that has all of the model: the
// loss, every gradient tensor by its norm, what every rank keeps the same, memory, and what was communicated.
#include "tests/unit/tensor_fixture.h"

enum { LAYERS = 2, HIDDEN = 24, BATCH = 2, SEQUENCE = 18, ROWS = BATCH * SEQUENCE, LOSS_ROWS = 7 };

// Sizes that do not divide wherever they need not.
#define SIZES .layers = LAYERS, .hidden = HIDDEN, .heads = 12, .sequence = SEQUENCE, .vocabulary = 41
#define LLAMA                                                                                                \
    SIZES, .feed_forward = 31, .norm = PTB_RMS_NORM, .position = PTB_ROTARY_POSITIONS,                       \
           .activation = PTB_SWIGLU
#define MIXTURE                                                                                              \
    .experts = 5, .top_k = 2, .expert_hidden = 11, .balance = 0.3, .normalise = true, .shared_experts = 2

typedef enum { GPT, LLAMA_MODEL, MIXTURE_MODEL, DEEPSEEK_MODEL, KINDS } model_kind;

// Key and value heads are cut too: as few as there are ranks.
static ptb_model_shape shape_of(model_kind kind, int tp)
{
    const ptb_model_shape shapes[KINDS] = {
        [GPT] = {SIZES, .feed_forward = 31, .biases = true, .tied = true, .dropout = 0.2},
        [LLAMA_MODEL] = {LLAMA},
        [MIXTURE_MODEL] = {SIZES, MIXTURE, .biases = true, .dropout = 0.1},
        [DEEPSEEK_MODEL] = {LLAMA, MIXTURE, .dense_layers = 1, .capacity_factor = 0.9, .tied = true},
    };
    ptb_model_shape s = shapes[kind];
    s.kv_heads = kind == GPT ? 0 : tp;
    return s;
}

// Largest distance of a gradient tensor from the whole model's, relative to its norm.
static double largest_distance(const model_case *c, const float *got, const float *wanted, double limit)
{
    double most = 0;
    for (size_t u = 0; u < c->layout.units; u++)
        for (size_t t = 0; t < c->layout.unit[u].tensors; t++) {
            const ptb_tensor *tensor = &c->layout.unit[u].tensor[t];
            size_t at = c->layout.unit[u].first + tensor->first;
            double d = model_distance(got + at, wanted + at, ptb_tensor_count(tensor));
            if (!(d < limit))
                print_message("unit %zu, %s: distance %g\n", u, tensor->name, d);
            most = d > most || d != d ? d : most;
        }
    return most;
}

// What a step of two microbatches must have moved: S of each kind of collective.
static void expect_moved(const tensor_run *run, uint64_t bytes[PTB_COLL_COUNT])
{
    const ptb_model_shape *s = &run->c->layout.shape;
    uint64_t micro = MICROBATCHES, layers = (uint64_t)s->layers, tp = (uint64_t)run->tp, n = run->c->rows;
    uint64_t rows = n * (uint64_t)s->hidden * ptb_dtype_size(run->mode.type); // N C e
    uint64_t mixtures = s->experts ? layers - (uint64_t)s->dense_layers : 0;
    bool full = run->mode.recompute == PTB_RECOMPUTE_FULL, apart = run->order == WEIGHTS_AT_LAST;
    // Sums: embedding, two a block forward and two backward, head; again one a recomputed block, once for
    // each part of backward.
    uint64_t again = full ? layers * (apart ? 2 : 1) : 0, sums = 2 + 4 * layers + again;
    // Gathers: two a block forward, head, embedding's gradient; backward the gradients and the inputs of both
    // halves; where the parts are apart, the inputs with the second alone, and the gradients with both, but
    // those of routed experts.
    uint64_t gathers = 2 + 6 * layers + 2 * again;
    if (apart)
        gathers += 2 * layers - (s->shared_experts ? 0 : mixtures);
    for (int i = 0; i < PTB_COLL_COUNT; i++)
        bytes[i] = 0;
    bytes[PTB_ALL_GATHER] = micro * tp * 3 * n * sizeof(float); // statistics of the loss
    bytes[PTB_ALL_REDUCE] = micro * mixtures * n * (uint64_t)s->top_k * sizeof(float);
    if (!run->sequence) {
        bytes[PTB_ALL_REDUCE] += micro * sums * rows;
        return;
    }
    bytes[PTB_REDUCE_SCATTER] = micro * sums * rows;
    bytes[PTB_ALL_GATHER] += micro * gathers * rows;
    ptb_layout l; // replicated gradients, once a step
    ptb_layout_cut cut = {.tp = run->tp};
    assert_int_equal(ptb_layout_init(&l, s, &cut), PTB_OK);
    for (size_t u = 1; u < l.units; u++)
        bytes[PTB_ALL_REDUCE] +=
            (l.unit[u].group[PTB_GROUP_DENSE].count - l.unit[u].replicated_first) * sizeof(float);
    ptb_layout_release(&l);
}

static void check_moved(const tensor_run *run)
{
    uint64_t bytes[PTB_COLL_COUNT];
    expect_moved(run, bytes);
    double n = run->tp, volume = (double)bytes[PTB_ALL_REDUCE] * 2 * (n - 1) / n;
    volume += (double)(bytes[PTB_ALL_GATHER] + bytes[PTB_REDUCE_SCATTER]) * (n - 1) / n;
    for (int r = 0; r < run->tp; r++) {
        for (int kind = 0; kind < PTB_COLL_COUNT; kind++)
            if (run->moved[r].bytes[kind] != bytes[kind])
                fail_msg("%s: %llu bytes, the closed form says %llu", ptb_coll_name((ptb_coll_kind)kind),
                         (unsigned long long)run->moved[r].bytes[kind], (unsigned long long)bytes[kind]);
        assert_true(fabs(run->moved[r].volume_bytes - volume) < 1);
    }
}

// Runs, checks what is the same for all, and returns the largest distance of the loss or of a gradient.
static double run_tensor(tensor_run *run, const model_result *one, double limit)
{
    assert_int_equal(ptb_world_run_local(run->tp, NULL, tensor_rank_main, run), PTB_OK);
    for (int r = 0; r < run->tp; r++) {
        assert_true(run->loss[r] == run->loss[0]);
        assert_int_equal(run->told[r], run->c->layout.units);
    }
    check_moved(run);
    float *gradients = tensor_gather(run);
    double most = largest_distance(run->c, gradients, one->gradients, limit);
    double loss = fabs(run->loss[0] / one->loss - 1);
    if (!(loss < limit))
        print_message("loss %.9g, %.9g on one rank\n", run->loss[0], one->loss);
    free(gradients);
    tensor_run_release(run);
    return loss > most || loss != loss ? loss : most;
}

static model_case case_of(const ptb_model_shape *shape)
{
    model_case c;
    model_case_init(&c, shape, BATCH);
    for (size_t i = 0; i < MICROBATCHES * c.rows; i++) {
        c.starts[i] = (int32_t)(i % SEQUENCE / 5 * 5); // documents of a packed batch
        if (i % 11 == 3)
            c.targets[i] = -1;
    }
    return c;
}

static void check(const char *what, const ptb_model_shape *shape, tensor_run run, double limit)
{
    model_case c = case_of(shape);
    ptb_model_config alone = run.mode;
    model_result one = model_train(&c, alone, ONE_BY_ONE, NULL);
    run.c = &c;
    double distance = run_tensor(&run, &one, limit);
    if (!(distance < limit))
        fail_msg("%s, tp %d, %s, %d chunks: distance %g", what, run.tp, run.sequence ? "slices" : "no slices",
                 run.chunks, distance);
    model_result_release(&one);
    model_case_release(&c);
}

static void check_all(model_kind kind, const char *what)
{
    for (int tp = 2; tp <= 4; tp++)
        for (int options = 0; options < 4; options++) {
            if (!test_on_host() && (tp + options) % 3) // a simulated device takes long
                continue;
            ptb_model_shape shape = shape_of(kind, tp);
            tensor_run run = {.mode = {.type = PTB_F32, .loss_rows = options & 1 ? LOSS_ROWS : 0},
                              .tp = tp,
                              .chunks = options & 1 ? 3 : 1,
                              .sequence = options & 2};
            check(what, &shape, run, 1e-5);
        }
}

static void test_gpt(void **state)
{
    (void)state;
    check_all(GPT, "GPT-2");
}

static void test_llama(void **state)
{
    (void)state;
    check_all(LLAMA_MODEL, "Llama");
}

static void test_mixture(void **state)
{
    (void)state;
    check_all(MIXTURE_MODEL, "mixture");
    check_all(DEEPSEEK_MODEL, "mixture with a dense layer and capacity");
}

// Recomputation, weight gradients apart, packed documents.
static void test_modes(void **state)
{
    (void)state;
    static const tensor_run modes[] = {
        {.mode = {.recompute = PTB_RECOMPUTE_SELECTIVE}},
        {.mode = {.recompute = PTB_RECOMPUTE_FULL}},
        {.mode = {.recompute = PTB_RECOMPUTE_FULL}, .order = WEIGHTS_AT_LAST},
        {.order = ALL_FORWARD},
        {.order = WEIGHTS_AT_LAST},
        {.mode = {.packed = true}},
    };
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        for (int kind = 0; kind < KINDS; kind++)
            for (int sequence = 0; sequence < 2; sequence++) {
                if (!test_on_host() && ((int)i + kind + sequence) % 3)
                    continue;
                ptb_model_shape shape = shape_of((model_kind)kind, 2);
                tensor_run run = modes[i];
                run.mode.type = PTB_F32;
                run.tp = 2;
                run.chunks = 1 + kind % 2 * 2;
                run.sequence = sequence;
                check("modes", &shape, run, 1e-5);
            }
}

// A rank's term is rounded to 8 bits before the sum, a relative error of 2^-9 each; so are the sums, on the
// way through two blocks. Distances of 2 % are those of bf16 on one rank from f32 (test_model_modes.c).
static void test_bf16(void **state)
{
    (void)state;
    for (int kind = 0; kind <= LLAMA_MODEL; kind++)
        for (int sequence = 0; sequence < 2; sequence++) {
            ptb_model_shape shape = shape_of((model_kind)kind, 3);
            tensor_run run = {.mode = {.type = PTB_BF16}, .tp = 3, .chunks = 2, .sequence = sequence};
            check("bf16", &shape, run, 3e-2);
        }
}

// More ranks than there are columns of a head to spare: every rank has one head of eight.
static void test_eight(void **state)
{
    (void)state;
    for (int sequence = 0; sequence < 2; sequence++) {
        ptb_model_shape shape = shape_of(GPT, 8);
        shape.heads = 8;
        shape.sequence = 16;
        model_case c;
        model_case_init(&c, &shape, BATCH);
        tensor_run run = {.mode = {.type = PTB_F32}, .tp = 8, .chunks = 2, .sequence = sequence, .c = &c};
        model_result one = model_train(&c, run.mode, ONE_BY_ONE, NULL);
        assert_true(run_tensor(&run, &one, 1e-5) < 1e-5);
        model_result_release(&one);
        model_case_release(&c);
    }
}

// Chunks change when sums are made, not what is summed.
static void test_chunks(void **state)
{
    (void)state;
    for (int sequence = 0; sequence < 2; sequence++) {
        ptb_model_shape shape = shape_of(GPT, 2);
        model_case c = case_of(&shape);
        float *gradients[2];
        double loss[2];
        for (int i = 0; i < 2; i++) {
            tensor_run run = {.c = &c, .mode = {.type = PTB_F32}, .tp = 2, .chunks = i ? 3 : 1};
            run.sequence = sequence;
            assert_int_equal(ptb_world_run_local(2, NULL, tensor_rank_main, &run), PTB_OK);
            gradients[i] = tensor_gather(&run);
            loss[i] = run.loss[0];
            tensor_run_release(&run);
        }
        assert_true(fabs(loss[1] / loss[0] - 1) < 1e-6);
        assert_true(largest_distance(&c, gradients[1], gradients[0], 1e-5) < 1e-5);
        free(gradients[0]), free(gradients[1]);
        model_case_release(&c);
    }
}

// A rank with another one's parameters, with dropout of another head, or with the tokens of a part that
// begins elsewhere, is seen.
static void test_faults(void **state)
{
    (void)state;
    for (int fault = WRONG_PART; fault <= WRONG_TOKEN; fault++)
        for (int sequence = 0; sequence < 2; sequence++) {
            ptb_model_shape shape = shape_of(GPT, 2);
            model_case c = case_of(&shape);
            tensor_run run = {.c = &c, .mode = {.type = PTB_F32}, .tp = 2, .chunks = 1};
            run.sequence = sequence;
            run.fault = (tensor_fault)fault;
            model_result one = model_train(&c, run.mode, ONE_BY_ONE, NULL);
            assert_true(run_tensor(&run, &one, INFINITY) > 1e-3);
            model_result_release(&one);
            model_case_release(&c);
        }
}

// What cannot be cut is refused.
static void test_refused(void **state)
{
    (void)state;
    ptb_layout l;
    ptb_layout_cut cut = {.tp = 4};
    ptb_model_shape shape = shape_of(GPT, 4);
    assert_int_equal(ptb_layout_init(&l, &shape, &cut), PTB_OK);
    ptb_tensor_env env = {.layout = &l, .rows = ROWS, .loss_rows = 1, .type = PTB_F32, .chunks = 1};
    assert_int_equal(ptb_tensor_axis_check(&env), PTB_OK);
    env.chunks = ROWS;
    assert_int_equal(ptb_tensor_axis_check(&env), PTB_OK);
    env.chunks = ROWS + 1;
    assert_int_equal(ptb_tensor_axis_check(&env), PTB_USAGE);
    env.chunks = 0;
    assert_int_equal(ptb_tensor_axis_check(&env), PTB_USAGE);
    env.chunks = 2;
    env.sequence = true; // 36 = 4 x 2 x 4 + 4
    assert_int_equal(ptb_tensor_axis_check(&env), PTB_USAGE);
    env.chunks = 3;
    assert_int_equal(ptb_tensor_axis_check(&env), PTB_OK);
    const ptb_kernels *kernels = test_kernels();
    ptb_model_config config = {
        .kernels = kernels, .layout = &l, .batch = BATCH, .threads = 1, .type = PTB_F32};
    assert_int_equal(ptb_model_check(&config), PTB_INTERNAL); // cut, and nobody to talk to
    ptb_layout_release(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpt),    cmocka_unit_test(test_llama),  cmocka_unit_test(test_mixture),
        cmocka_unit_test(test_modes),  cmocka_unit_test(test_bf16),   cmocka_unit_test(test_eight),
        cmocka_unit_test(test_chunks), cmocka_unit_test(test_faults), cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
