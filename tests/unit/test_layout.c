// Where parameters lie: published counts of every preset, groups and padding, initial values, the conventions
// of FLOPs against figures worked out by hand, and shapes that make no model.
#include "core/random.h"
#include "strategies/transformer/presets.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void test_presets(void **state)
{
    (void)state;
    size_t published = 0;
    for (size_t i = 0; ptb_preset_at(i); i++) {
        const ptb_preset *preset = ptb_preset_at(i);
        ptb_layout l;
        assert_int_equal(ptb_layout_init(&l, &preset->shape, NULL), PTB_OK);
        if (preset->parameters && l.parameters != preset->parameters)
            fail_msg("%s has %zu parameters, published are %zu", preset->name, l.parameters,
                     (size_t)preset->parameters);
        published += preset->parameters > 0;
        assert_ptr_equal(ptb_preset_find(preset->name), preset);
        ptb_layout_release(&l);
    }
    assert_int_equal(published, 9);
    assert_null(ptb_preset_find("gpt-2"));
    assert_null(ptb_preset_need("gpt2"));
}

static void check_units(const ptb_layout *l)
{
    size_t end = 0;
    for (size_t u = 0; u < l->units; u++) {
        const ptb_unit *unit = &l->unit[u];
        assert_int_equal(unit->first, end);
        end += unit->count;
        assert_int_equal(unit->group[PTB_GROUP_DENSE].first, 0);
        assert_int_equal(unit->group[PTB_GROUP_EXPERT].first, unit->group[PTB_GROUP_DENSE].count);
        assert_int_equal(unit->group[PTB_GROUP_DENSE].count + unit->group[PTB_GROUP_EXPERT].count,
                         unit->count);
        size_t at = 0;
        for (size_t t = 0; t < unit->tensors; t++) {
            const ptb_tensor *tensor = &unit->tensor[t];
            assert_int_equal(tensor->first % 32, 0);
            assert_true(tensor->first >= at && tensor->first < at + 32);
            at = tensor->first + ptb_tensor_count(tensor);
            assert_ptr_equal(ptb_unit_tensor(unit, tensor->role), tensor);
            assert_true(tensor->first >= unit->group[tensor->group].first &&
                        at <= unit->group[tensor->group].first + unit->group[tensor->group].count);
            assert_int_equal(tensor->decay, tensor->rows > 1 || tensor->matrices > 1);
        }
        assert_true(unit->count >= at && unit->count < at + 32);
    }
    assert_int_equal(end, l->count);
}

static void check_tensor(const ptb_unit *unit, ptb_tensor_role role, const char *name, size_t matrices,
                         size_t rows, size_t columns)
{
    const ptb_tensor *t = ptb_unit_tensor(unit, role);
    assert_non_null(t);
    assert_string_equal(t->name, name);
    assert_int_equal(t->matrices, matrices);
    assert_int_equal(t->rows, rows);
    assert_int_equal(t->columns, columns);
}

static void test_units(void **state)
{
    (void)state;
    ptb_layout l;
    assert_int_equal(ptb_layout_init(&l, &ptb_preset_find("gpt2-124m")->shape, NULL), PTB_OK);
    assert_int_equal(l.units, 14);
    check_units(&l);
    check_tensor(&l.unit[1], PTB_BLOCK_QKV_WEIGHT, "qkv.weight", 1, 2304, 768);
    check_tensor(&l.unit[1], PTB_BLOCK_DOWN_BIAS, "down.bias", 1, 1, 768);
    assert_null(ptb_unit_tensor(&l.unit[13], PTB_HEAD_WEIGHT));
    assert_int_equal(l.unit[3].group[PTB_GROUP_EXPERT].count, 0);
    ptb_layout_release(&l);

    ptb_model_shape shape = {.layers = 3,
                             .hidden = 20,
                             .heads = 6,
                             .kv_heads = 2,
                             .head_width = 4,
                             .feed_forward = 30,
                             .sequence = 7,
                             .vocabulary = 11,
                             .norm = PTB_RMS_NORM,
                             .position = PTB_ROTARY_POSITIONS,
                             .activation = PTB_SWIGLU,
                             .experts = 5,
                             .top_k = 2,
                             .expert_hidden = 9,
                             .shared_experts = 3,
                             .dense_layers = 1};
    assert_int_equal(ptb_layout_init(&l, &shape, NULL), PTB_OK);
    check_units(&l);
    check_tensor(&l.unit[1], PTB_BLOCK_QKV_WEIGHT, "qkv.weight", 1, 40, 20);
    check_tensor(&l.unit[1], PTB_BLOCK_PROJECTION_WEIGHT, "projection.weight", 1, 20, 24);
    check_tensor(&l.unit[1], PTB_BLOCK_UP_WEIGHT, "gate_up.weight", 1, 60, 20);
    assert_null(ptb_unit_tensor(&l.unit[1], PTB_BLOCK_ROUTER_WEIGHT));
    check_tensor(&l.unit[2], PTB_BLOCK_ROUTER_WEIGHT, "router.weight", 1, 5, 20);
    check_tensor(&l.unit[2], PTB_BLOCK_SHARED_UP_WEIGHT, "shared.gate_up", 1, 54, 20);
    check_tensor(&l.unit[2], PTB_BLOCK_SHARED_DOWN_WEIGHT, "shared.down", 1, 20, 27);
    check_tensor(&l.unit[2], PTB_BLOCK_EXPERTS_UP_WEIGHT, "experts.gate_up", 5, 18, 20);
    check_tensor(&l.unit[2], PTB_BLOCK_EXPERTS_DOWN_WEIGHT, "experts.down", 5, 20, 9);
    assert_null(ptb_unit_tensor(&l.unit[2], PTB_BLOCK_UP_WEIGHT));
    assert_null(ptb_unit_tensor(&l.unit[2], PTB_BLOCK_NORM1_BIAS));
    assert_null(ptb_unit_tensor(&l.unit[2], PTB_BLOCK_QKV_BIAS));
    assert_null(ptb_unit_tensor(&l.unit[0], PTB_EMBED_POSITIONS));
    assert_int_equal(l.unit[2].group[PTB_GROUP_EXPERT].count, 5 * 18 * 20 + 24 + 5 * 20 * 9 + 28);
    assert_int_equal(l.embedding_parameters, 220);
    assert_int_equal(l.parameters - l.active_parameters, 2 * 3 * 27 * 20); // 3 of 5 experts in 2 blocks
    ptb_layout_release(&l);
}

static void test_fill(void **state)
{
    (void)state;
    ptb_layout l;
    ptb_model_shape shape = {
        .layers = 2, .hidden = 64, .heads = 2, .sequence = 8, .vocabulary = 50, .biases = true};
    assert_int_equal(ptb_layout_init(&l, &shape, NULL), PTB_OK);
    const ptb_unit *unit = &l.unit[2];
    float *values = malloc(unit->count * sizeof *values);
    ptb_layout_fill(&l, 9, 2, values);
    for (size_t t = 0; t < unit->tensors; t++) {
        const ptb_tensor *tensor = &unit->tensor[t];
        size_t count = ptb_tensor_count(tensor);
        double sum = 0, squares = 0;
        for (size_t i = 0; i < count; i++) {
            double x = (double)values[tensor->first + i];
            float wanted = tensor->mean + tensor->deviation * (float)ptb_random_normal(9, 2 << 8 | t, i);
            assert_true(values[tensor->first + i] == wanted);
            sum += x;
            squares += (x - (double)tensor->mean) * (x - (double)tensor->mean);
        }
        bool residual = tensor->role == PTB_BLOCK_PROJECTION_WEIGHT || tensor->role == PTB_BLOCK_DOWN_WEIGHT;
        double deviation = !tensor->decay ? 0 : residual ? 0.01 : 0.02; // 0.02 / sqrt(2 x 2 blocks)
        assert_true(fabs(sqrt(squares / (double)count) - deviation) <= 0.05 * deviation);
        bool gain = tensor->role == PTB_BLOCK_NORM1_GAIN || tensor->role == PTB_BLOCK_NORM2_GAIN;
        assert_true(fabs(sum / (double)count - gain) < 0.001);
    }
    for (size_t i = ptb_tensor_count(&unit->tensor[0]); i < unit->tensor[1].first; i++)
        assert_true(values[i] == 0);
    free(values);
    ptb_layout_release(&l);
}

// Any range of the index space by any number of threads: the units' values, with zeros between tensors.
static void test_fill_range(void **state)
{
    (void)state;
    ptb_layout l;
    ptb_model_shape shape = {.layers = 3, .hidden = 50, .heads = 2, .sequence = 7, .vocabulary = 801};
    assert_int_equal(ptb_layout_init(&l, &shape, NULL), PTB_OK);
    float *whole = malloc(l.count * sizeof *whole), *part = malloc((l.count + 1) * sizeof *part);
    for (size_t u = 0; u < l.units; u++)
        ptb_layout_fill(&l, 4, u, whole + l.unit[u].first);
    const struct {
        size_t first, count;
        int threads;
    } ranges[] = {{0, l.count, 1},
                  {0, l.count, 3},
                  {1, l.count - 1, 2},
                  {l.unit[1].first - 5, 10, 1},
                  {l.unit[2].first + 3, 40000, 2},
                  {l.count - 1, 1, 1},
                  {17, 0, 1}};
    assert_true(l.count > 100000); // several pieces, and more than one unit in the longer ranges
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        memset(part, 0xff, (l.count + 1) * sizeof *part);
        ptb_layout_fill_range(&l, 4, ranges[i].first, ranges[i].count, ranges[i].threads, part);
        assert_memory_equal(part, whole + ranges[i].first, ranges[i].count * sizeof *part);
        assert_true(isnan(part[ranges[i].count]));
    }
    free(whole);
    free(part);
    ptb_layout_release(&l);
}

static void test_flops(void **state)
{
    (void)state;
    ptb_layout l;
    assert_int_equal(ptb_layout_init(&l, &ptb_preset_find("gpt2-124m")->shape, NULL), PTB_OK);
    double n = 124439808 - (50257 + 1024) * 768.0, attention = 12.0 * 768 * 1024;
    double linear = 12.0 * 12 * 768 * 768 + 768.0 * 50257;
    assert_true(fabs(ptb_layout_flops_palm(&l) - (6 * n + 12 * attention)) < 1);
    assert_true(fabs(ptb_layout_flops_causal(&l) - (6 * n + 6 * attention)) < 1);
    assert_true(fabs(ptb_layout_flops_megatron(&l) - (6 * linear + 6 * attention)) < 1);
    assert_true(fabs(ptb_layout_flops_linear(&l) - 2 * linear) < 1);
    ptb_layout_release(&l);
    // Grouped heads and experts, by hand: h 2048, q = k = v = 2048, one dense block of f 10944, 27 of 6 + 2
    // experts of 1408.
    assert_int_equal(ptb_layout_init(&l, &ptb_preset_find("deepseek-moe-16b")->shape, NULL), PTB_OK);
    double blocks = 28 * 4 * 2048.0 * 2048 + 3 * 2048.0 * 10944 + 27 * 3 * 2048.0 * 8 * 1408;
    double head = 2048.0 * 102400;
    attention = 28.0 * 2048 * 4096;
    assert_true(fabs(ptb_layout_flops_megatron(&l) - 6 * (blocks + head) - 6 * attention) < 100);
    n = blocks + 27 * 64 * 2048.0 + 57 * 2048.0 + head;
    assert_true(fabs(ptb_layout_flops_palm(&l) - 6 * n - 12 * attention) < 100);
    assert_true(fabs(ptb_layout_flops_linear(&l) - 2 * (blocks + head + 27 * 64 * 2048.0)) < 100);
    ptb_layout_release(&l);
    assert_int_equal(ptb_layout_init(&l, &ptb_preset_find("llama3-8b")->shape, NULL), PTB_OK);
    blocks = 32 * (4096.0 * (4096 + 1024 + 1024) + 4096.0 * 4096 + 3 * 4096.0 * 14336);
    assert_true(
        fabs(ptb_layout_flops_megatron(&l) - 6 * (blocks + 4096.0 * 128256) - 6 * 32 * 8192.0 * 4096) < 100);
    ptb_layout_release(&l);
}

static void test_bad_shapes(void **state)
{
    (void)state;
#define BASE .layers = 2, .hidden = 12, .heads = 3, .sequence = 8, .vocabulary = 16
    static const ptb_model_shape bad[] = {
        {.layers = 2, .hidden = 10, .heads = 3, .sequence = 8, .vocabulary = 16},
        {.layers = 0, .hidden = 10, .heads = 2, .sequence = 8, .vocabulary = 16},
        {.layers = 2, .hidden = -4, .heads = 2, .sequence = 8, .vocabulary = 16},
        {.layers = 2, .hidden = 12, .heads = 3, .sequence = 0, .vocabulary = 16},
        {.layers = 2, .hidden = 12, .heads = 3, .sequence = 8, .vocabulary = 1},
        {BASE, .kv_heads = 2},
        {BASE, .kv_heads = -1},
        {BASE, .head_width = 3, .position = PTB_ROTARY_POSITIONS},
        {.layers = 1,
         .hidden = 9,
         .heads = 3,
         .sequence = 8,
         .vocabulary = 16,
         .position = PTB_ROTARY_POSITIONS},
        {BASE, .positions = 7},
        {BASE, .dropout = 1},
        {BASE, .dropout = -0.1},
        {BASE, .dropout = NAN},
        {BASE, .top_k = 2},
        {BASE, .shared_experts = 1},
        {BASE, .experts = 4},
        {BASE, .experts = 4, .top_k = 5},
        {BASE, .experts = PTB_EXPERTS_MAX + 1, .top_k = 1},
        {BASE, .experts = 4, .top_k = 1, .dense_layers = 2},
        {BASE, .experts = 4, .top_k = 1, .capacity_factor = -1},
        {BASE, .experts = 4, .top_k = 1, .balance = NAN},
        {.layers = 1 << 20, .hidden = 1 << 20, .heads = 1, .sequence = 8, .vocabulary = 16},
        {.layers = 1, .hidden = INT64_MAX / 2, .heads = 1, .sequence = 8, .vocabulary = 16},
    };
#undef BASE
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ptb_layout l = {0};
        if (ptb_layout_init(&l, &bad[i], NULL) != PTB_USAGE)
            fail_msg("bad shape %zu was not refused", i);
        assert_null(l.unit);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_presets),    cmocka_unit_test(test_units), cmocka_unit_test(test_fill),
        cmocka_unit_test(test_fill_range), cmocka_unit_test(test_flops), cmocka_unit_test(test_bad_shapes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
