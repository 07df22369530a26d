// Whatever way a step goes through the model, its numbers are the same: recomputation, microbatches held at
// once and deferred weight gradients change no bit; loss chunks and packing change rounding. Values
// themselves are held to a reference elsewhere (tests/unit/test_model.c, tests/conformance).
#include "tests/unit/model_fixture.h"

#define SMALL .layers = 3, .hidden = 24, .heads = 4, .sequence = 9, .vocabulary = 19

static const struct {
    const char *name;
    ptb_model_shape shape;
} shapes[] = {
    {"gpt-2", {SMALL, .biases = true, .tied = true}},
    {"gpt-2 with dropout", {SMALL, .biases = true, .dropout = 0.25}},
    {"rotary positions, grouped heads, RMSNorm, SwiGLU",
     {SMALL, .kv_heads = 2, .position = PTB_ROTARY_POSITIONS, .norm = PTB_RMS_NORM, .activation = PTB_SWIGLU,
      .feed_forward = 20, .tied = true}},
    {"narrow heads, no biases", {SMALL, .kv_heads = 1, .head_width = 10, .feed_forward = 7}},
    {"mixture",
     {SMALL, .kv_heads = 2, .position = PTB_ROTARY_POSITIONS, .norm = PTB_RMS_NORM, .activation = PTB_SWIGLU,
      .experts = 5, .top_k = 2, .expert_hidden = 10, .normalise = true}},
    {"mixture with shared experts, capacity, balance and dropout",
     {SMALL, .norm = PTB_RMS_NORM, .activation = PTB_SWIGLU, .experts = 4, .top_k = 2, .expert_hidden = 14,
      .shared_experts = 2, .dense_layers = 1, .capacity_factor = 0.8, .balance = 0.1, .dropout = 0.25}},
    {"mixture of GELU experts", {SMALL, .biases = true, .experts = 3, .top_k = 3, .expert_hidden = 11}},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

// Gradients of all tensors; padding is not written.
static void check_same(const char *name, const char *mode, const model_case *c, const model_result *a,
                       const model_result *b, double tolerance)
{
    if (tolerance == 0 ? a->loss != b->loss : !(fabs(a->loss / b->loss - 1) < tolerance))
        fail_msg("%s, %s: loss %.17g instead of %.17g", name, mode, a->loss, b->loss);
    for (size_t u = 0; u < c->layout.units; u++)
        for (size_t t = 0; t < c->layout.unit[u].tensors; t++) {
            const ptb_tensor *tensor = &c->layout.unit[u].tensor[t];
            size_t first = c->layout.unit[u].first + tensor->first, count = ptb_tensor_count(tensor);
            double distance = model_distance(a->gradients + first, b->gradients + first, count);
            bool same = memcmp(a->gradients + first, b->gradients + first, count * sizeof(float)) == 0;
            if (tolerance == 0 ? !same : !(distance < tolerance))
                fail_msg("%s, %s: gradient of unit %zu's %s differs, relative distance %g", name, mode, u,
                         tensor->name, distance);
        }
}

static void check_modes(const char *name, const model_case *c, ptb_dtype type)
{
    static const struct {
        const char *name;
        ptb_model_config config;
        model_order order;
    } modes[] = {
        {"selective recomputation", {.recompute = PTB_RECOMPUTE_SELECTIVE}, ONE_BY_ONE},
        {"full recomputation", {.recompute = PTB_RECOMPUTE_FULL}, ONE_BY_ONE},
        {"full recomputation of blocks 0 and 2",
         {.recompute = PTB_RECOMPUTE_FULL, .recompute_every = 2},
         ALL_FORWARD},
        {"kept gradients", {.deferred = true}, ONE_BY_ONE},
        {"deferred weight gradients", {0}, WEIGHTS_AT_LAST},
        {"deferred and selective", {.recompute = PTB_RECOMPUTE_SELECTIVE}, WEIGHTS_AT_LAST},
        {"deferred and full", {.recompute = PTB_RECOMPUTE_FULL}, WEIGHTS_AT_LAST},
        {"two threads", {.threads = 2}, ONE_BY_ONE},
    };
    model_result plain = model_train(c, (ptb_model_config){.type = type}, ONE_BY_ONE, NULL);
    model_result at_once = model_train(c, (ptb_model_config){.type = type}, ALL_FORWARD, NULL);
    // A tied table's gradient is a sum of four, which the two orders add in different order.
    check_same(name, "two microbatches at once", c, &at_once, &plain, c->layout.shape.tied ? 1e-6 : 0);
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        ptb_model_config config = modes[i].config;
        config.type = type;
        model_result result = model_train(c, config, modes[i].order, NULL);
        const model_result *like = modes[i].order == ONE_BY_ONE ? &plain : &at_once;
        check_same(name, modes[i].name, c, &result, like, modes[i].config.threads ? 1e-5 : 0);
        model_result_release(&result);
    }
    model_result_release(&plain);
    model_result_release(&at_once);
}

static void test_modes(void **state)
{
    (void)state;
    for (size_t i = 0; i < SHAPES; i++) {
        model_case c;
        model_case_init(&c, &shapes[i].shape, 2);
        check_modes(shapes[i].name, &c, PTB_F32);
        check_modes(shapes[i].name, &c, PTB_BF16);
        if (i % 4 == 1)
            check_modes(shapes[i].name, &c, PTB_F16);
        model_case_release(&c);
    }
}

static void test_loss_rows(void **state)
{
    (void)state;
    model_case c;
    model_case_init(&c, &shapes[0].shape, 2);
    model_result plain = model_train(&c, (ptb_model_config){.type = PTB_F32}, ONE_BY_ONE, NULL);
    static const int64_t rows[] = {1, 5, 17, 18, 1000};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ptb_model_config config = {.type = PTB_F32, .loss_rows = rows[i]};
        model_result result = model_train(&c, config, ONE_BY_ONE, NULL);
        check_same("gpt-2", "rows of logits", &c, &result, &plain, 1e-5);
        model_result_release(&result);
    }
    model_result_release(&plain);
    model_case_release(&c);
}

// A loss scale multiplies gradients, not the loss.
static void test_factor(void **state)
{
    (void)state;
    model_case c;
    model_case_init(&c, &shapes[2].shape, 2);
    float factor = 8;
    model_result plain = model_train(&c, (ptb_model_config){.type = PTB_F32}, ONE_BY_ONE, NULL);
    model_result scaled = model_train(&c, (ptb_model_config){.type = PTB_F32}, ONE_BY_ONE, &factor);
    for (size_t u = 0; u < c.layout.units; u++)
        for (size_t t = 0; t < c.layout.unit[u].tensors; t++)
            for (size_t i = 0; i < ptb_tensor_count(&c.layout.unit[u].tensor[t]); i++)
                plain.gradients[c.layout.unit[u].first + c.layout.unit[u].tensor[t].first + i] *= factor;
    check_same("loss scale", "8", &c, &scaled, &plain, 1e-5);
    model_result_release(&plain);
    model_result_release(&scaled);
    model_case_release(&c);
}

// Two documents in one sequence against each alone: the same outputs, and losses and gradients that add up.
static void check_packing(ptb_model_shape shape)
{
    enum { FIRST = 4 };
    size_t width = (size_t)shape.hidden;
    model_case whole, part;
    model_case_init(&whole, &shape, 1);
    for (size_t i = 0; i < MICROBATCHES * whole.rows; i++)
        whole.starts[i] = i % whole.rows < FIRST ? 0 : FIRST;
    whole.targets[FIRST - 1] = whole.targets[whole.rows + FIRST - 1] = -1; // the next document's token
    model_result packed =
        model_train(&whole, (ptb_model_config){.type = PTB_F32, .packed = true}, ONE_BY_ONE, NULL);
    float *sum = calloc(whole.layout.count, sizeof *sum);
    double loss = 0;
    shape.positions = shape.sequence; // so that the parts have the same parameters
    for (size_t begin = 0; begin < whole.rows; begin += FIRST) {
        begin = begin ? FIRST : 0;
        size_t end = begin ? whole.rows : FIRST;
        shape.sequence = (int64_t)(end - begin);
        model_case_init(&part, &shape, 1);
        for (size_t m = 0; m < MICROBATCHES; m++)
            for (size_t i = 0; i < end - begin; i++) {
                part.inputs[m * part.rows + i] = whole.inputs[m * whole.rows + begin + i];
                part.targets[m * part.rows + i] = whole.targets[m * whole.rows + begin + i];
            }
        model_result alone = model_train(&part, (ptb_model_config){.type = PTB_F32}, ONE_BY_ONE, NULL);
        double share = (double)part.rows / (double)whole.rows; // each scales by 1 / its own tokens
        for (size_t u = 0; u < whole.layout.units; u++)
            for (size_t t = 0; t < whole.layout.unit[u].tensors; t++)
                for (size_t i = 0; i < ptb_tensor_count(&whole.layout.unit[u].tensor[t]); i++) {
                    size_t at = whole.layout.unit[u].first + whole.layout.unit[u].tensor[t].first + i;
                    sum[at] += (float)share * alone.gradients[at];
                }
        loss += share * alone.loss;
        assert_true(model_distance(packed.output + begin * width, alone.output, part.rows * width) < 1e-6);
        model_result_release(&alone);
        model_case_release(&part);
        if (end == whole.rows)
            break;
    }
    model_result added = {.loss = loss, .gradients = sum};
    check_same("packed", "two documents", &whole, &packed, &added, 2e-5);
    free(sum);
    model_result_release(&packed);
    model_case_release(&whole);
}

static void test_packing(void **state)
{
    (void)state;
    check_packing(shapes[0].shape);
    check_packing(shapes[2].shape);
    check_packing(shapes[4].shape);
}

typedef struct {
    char text[64];
} phases;

static ptb_status note_phase(void *context, ptb_phase phase)
{
    strcat(((phases *)context)->text, phase == PTB_PHASE_FORWARD ? "f" : "b");
    return PTB_OK;
}

static void test_phases(void **state)
{
    (void)state;
    model_case c;
    phases seen = {""};
    model_case_init(&c, &shapes[0].shape, 1); // 9 rows
    ptb_model_config config = {.type = PTB_F32, .loss_rows = 4, .on_phase = {note_phase, &seen}};
    model_result result = model_train(&c, config, ONE_BY_ONE, NULL);
    assert_string_equal(seen.text, "fbfbfbfbfbfb");
    model_result_release(&result);
    model_case_release(&c);
}

// Dropout draws by place in the global batch: another step, seed or place draws anew.
static void test_dropout_seeds(void **state)
{
    (void)state;
    uint64_t seen[2 * 2 * 3 * 4];
    size_t count = 0;
    for (uint64_t seed = 1; seed <= 2; seed++)
        for (uint64_t step = 0; step < 2; step++)
            for (size_t unit = 0; unit < 3; unit++)
                for (int place = PTB_DROPOUT_EMBEDDING; place <= PTB_DROPOUT_FEED_FORWARD; place++) {
                    uint64_t drawn = ptb_model_dropout_seed(seed, step, unit, (ptb_dropout_place)place);
                    for (size_t i = 0; i < count; i++)
                        assert_true(seen[i] != drawn);
                    seen[count++] = drawn;
                }
    assert_int_equal(count, 48);
}

static void test_parts_need_deferred(void **state)
{
    (void)state;
    model_case c;
    ptb_model *model;
    model_case_init(&c, &shapes[0].shape, 1);
    ptb_model_config config = {
        .kernels = test_kernels(), .layout = &c.layout, .batch = 1, .threads = 1, .type = PTB_F32};
    assert_int_equal(ptb_device_open(test_device(), 0, &config.device), PTB_OK);
    assert_int_equal(ptb_stream_new(config.device, PTB_STREAM_WORKER, 1, &config.stream), PTB_OK);
    assert_int_equal(ptb_model_new(&config, &model), PTB_OK);
    ptb_unit_memory memory = {.parameters = c.parameters};
    assert_int_equal(ptb_model_backward(model, 0, 1, &memory, PTB_BACKWARD_INPUT, false, NULL), PTB_INTERNAL);
    ptb_model_free(model);
    ptb_stream_free(config.stream);
    ptb_device_close(config.device);
    model_case_release(&c);
}

static void test_refusals(void **state)
{
    (void)state;
    model_case c;
    model_case_init(&c, &shapes[0].shape, 1);
    const ptb_kernels *kernels = test_kernels();
    ptb_model_config good = {
        .kernels = kernels, .layout = &c.layout, .batch = 1, .threads = 1, .type = PTB_F32};
    assert_int_equal(ptb_model_check(&good), PTB_OK);
    ptb_model_config bad[] = {good, good, good, good, good};
    bad[0].batch = 0;
    bad[1].threads = 0;
    bad[2].slots = -1;
    bad[3].loss_rows = -1;
    bad[4].batch = INT32_MAX; // x 9 tokens
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(ptb_model_check(&bad[i]), PTB_USAGE);
    good.type = PTB_I32;
    assert_int_equal(ptb_model_check(&good), PTB_UNSUPPORTED);
    model_case_release(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_modes),
        cmocka_unit_test(test_loss_rows),
        cmocka_unit_test(test_factor),
        cmocka_unit_test(test_packing),
        cmocka_unit_test(test_phases),
        cmocka_unit_test(test_dropout_seeds),
        cmocka_unit_test(test_parts_need_deferred),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
