// Attention and its gradient against double precision with plain loops: masks, documents, offsets, groups,
// dropout, types, odd sizes; and the reference against finite differences.
#include "tests/unit/attention_reference.h"

// Most relative distance of outputs and gradients.
static double limit(ptb_dtype type, bool gradient)
{
    if (type == PTB_F32)
        return gradient ? 3e-6 : 1e-6;
    return type == PTB_BF16 ? 1e-2 : 1e-3;
}

static void assert_array(const attention_case *a, array which, bool gradient, const char *name)
{
    const reference *r = &a->reference;
    double distance = distance_of(a->shape.type, gradient ? a->gradients[which] : a->values[which],
                                  gradient ? r->gradients[which] : r->values[which], r->count[which]);
    if (!(distance < limit(a->shape.type, gradient)))
        fail_msg("%s of %s, width %zu, %zu x %zu: relative distance %g", name, ptb_dtype_name(a->shape.type),
                 a->shape.head_width, a->shape.query_length, a->shape.key_length, distance);
}

// Nothing was written between the heads' columns and the next row; without accumulate the rest starts at 0.
static void begin_gradients(attention_case *a, bool accumulate)
{
    for (array which = QUERY; which <= VALUE; which++)
        for (size_t i = 0; i < a->reference.count[which] && !accumulate; i++)
            if (!is_padding(&a->shape, which, i))
                a->reference.gradients[which][i] = 0;
}

static void assert_padding(const attention_case *a)
{
    for (array which = QUERY; which <= VALUE; which++)
        for (size_t i = 0; i < a->reference.count[which]; i++) {
            const char *got = (const char *)a->gradients[which] + i * ptb_dtype_size(a->shape.type);
            if (is_padding(&a->shape, which, i))
                assert_true(ptb_dtype_load(a->shape.type, got) == a->reference.gradients[which][i]);
        }
}

static void assert_lse(const attention_case *a)
{
    const ptb_attention_shape *s = &a->shape;
    for (size_t i = 0; i < a->lse_count; i++) {
        double wanted = a->reference.lse[i];
        if (wanted > -INFINITY) {
            assert_true(fabs(a->lse[i] - wanted) < 1e-5 + 2e-7 * fabs(wanted));
            continue;
        }
        assert_true(a->lse[i] == -INFINITY); // nothing seen: exactly nothing
        size_t row = i % s->query_length, h = i / s->query_length % s->heads;
        size_t at = at_out(s, i / s->query_length / s->heads, row, h);
        for (size_t c = 0; c < s->head_width; c++) {
            const char *out = (const char *)a->values[OUT] + (at + c) * ptb_dtype_size(s->type);
            assert_true(ptb_dtype_load(s->type, out) == 0);
        }
    }
}

static void check(fixture *f, ptb_attention_shape shape, bool accumulate)
{
    attention_case a;
    case_init(&a, shape);
    run_forward(f, &a, 1);
    reference_forward(&a.reference);
    assert_array(&a, OUT, false, "out");
    assert_lse(&a);
    begin_gradients(&a, accumulate);
    run_gradient(f, &a, accumulate, 1);
    reference_gradient(&a.reference);
    assert_array(&a, QUERY, true, "d_query");
    assert_array(&a, KEY, true, "d_key");
    assert_array(&a, VALUE, true, "d_value");
    assert_padding(&a);
    case_release(&a);
}

static const ptb_dtype types[] = {PTB_F32, PTB_BF16, PTB_F16};

// The same with rows of 16-byte pieces.
static ptb_attention_shape aligned(ptb_attention_shape shape)
{
    shape.head_width = (shape.head_width + 7) / 8 * 8;
    shape.query_stride = shape.heads * shape.head_width + 8;
    shape.key_stride = (shape.kv_heads ? shape.kv_heads : shape.heads) * shape.head_width + 16;
    return shape;
}

static void check_types(fixture *f, ptb_attention_shape shape)
{
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (int accumulate = 0; accumulate < 2; accumulate++) {
            shape.type = types[t];
            if (shape.type == PTB_F32 && getenv("PTBENCH_CUDA_ATTENTION"))
                continue; // the same kernels, whichever are asked for
            check(f, shape, accumulate);
            if (types[t] == (accumulate ? PTB_BF16 : PTB_F16)) // GPUs have kernels for these alone
                check(f, aligned(shape), accumulate);
        }
}

static ptb_attention_shape plain(size_t heads, size_t width, size_t length)
{
    return (ptb_attention_shape){.batch = 1,
                                 .heads = heads,
                                 .head_width = width,
                                 .query_length = length,
                                 .key_length = length,
                                 .causal = true,
                                 .type = PTB_F32};
}

static void test_widths(void **state)
{
    static const size_t widths[] = {1, 2, 3, 8, 15, 16, 17, 40, 64, 80, 96, 128, 256};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        check_types(*state, plain(2, widths[i], 75));
}

static void test_lengths(void **state)
{
    static const size_t lengths[] = {1, 2, 7, 8, 9, 15, 16, 17, 33, 63, 64, 65, 127, 128, 129, 200, 330};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        ptb_attention_shape s = plain(1, 20, lengths[i]);
        check_types(*state, s);
        s.causal = false;
        s.query_length = lengths[sizeof lengths / sizeof *lengths - 1 - i];
        s.key_length += s.key_length == 1; // the gradient of a lone key is 0, to which nothing is relative
        check_types(*state, s);
    }
}

static void test_groups(void **state)
{
    for (size_t kv_heads = 1; kv_heads <= 6; kv_heads++) {
        ptb_attention_shape s = plain(6, 12, 70);
        s.batch = 2;
        s.kv_heads = kv_heads;
        if (6 % kv_heads == 0)
            check_types(*state, s);
    }
}

// Parts of a longer sequence: earlier and later keys, rows that see nothing, and no causal mask.
static void test_offsets(void **state)
{
    static const int64_t offsets[][2] = {{10, 0}, {0, 66}, {0, 10}, {500, 0}, {0, 500}, {64, 64}, {3, 1}};
    for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++)
        for (int causal = 0; causal < 2; causal++) {
            ptb_attention_shape s = plain(2, 10, 140);
            s.key_length = 90;
            s.query_offset = offsets[i][0];
            s.key_offset = offsets[i][1];
            s.causal = causal;
            s.total_length = 700;
            check_types(*state, s);
        }
}

// Blocks of keys that no query sees, and of queries that see nothing.
static void test_nothing_seen(void **state)
{
    static const size_t widths[] = {24, 72};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        ptb_attention_shape s = plain(1, widths[i], 128);
        s.key_length = 200;
        check_types(*state, s);
        s.query_offset = 64;
        s.key_offset = 128;
        s.total_length = 400;
        check_types(*state, s);
    }
}

// Documents of random lengths from position `offset` on; `step` is their mean length.
static void documents(int32_t *start, size_t batch, size_t length, int32_t offset, size_t step)
{
    for (size_t b = 0; b < batch; b++)
        for (size_t i = 0; i < length; i++) {
            bool begins = i == 0 || ptb_random_u64(3, b, i) % step == 0;
            start[b * length + i] = begins ? offset + (int32_t)i : start[b * length + i - 1];
        }
}

static void test_documents(void **state)
{
    enum { LENGTH = 230 };
    static const size_t steps[] = {2, 10, 50, 120};
    int32_t start[2 * LENGTH];
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        ptb_attention_shape s = plain(2, 12, LENGTH);
        s.batch = 2;
        s.query_start = start;
        documents(start, 2, LENGTH, 0, steps[i]);
        check_types(*state, s);
        s.causal = false;
        check_types(*state, s);
        s.causal = true;
        s.query_offset = 100; // documents that began in an earlier part
        s.key_offset = 40;
        documents(start, 2, LENGTH, 60, steps[i]);
        check_types(*state, s);
    }
}

// The contract does not ask for starts that increase.
static void test_unordered_starts(void **state)
{
    enum { LENGTH = 150 };
    int32_t start[LENGTH];
    ptb_attention_shape s = plain(1, 12, LENGTH);
    s.query_start = start;
    for (size_t i = 0; i < LENGTH; i++)
        start[i] = (int32_t)(ptb_random_u64(4, 0, i) % (i + 3)); // sometimes behind the row: it sees nothing
    check_types(*state, s);
    s.causal = false;
    check_types(*state, s);
    for (size_t i = 0; i < LENGTH; i++)
        start[i] = i / 16 % 2 ? 140 : 0; // neighbours of a row of strips that see nothing of a block
    check_types(*state, s);
}

static void test_dropout(void **state)
{
    ptb_attention_shape s = plain(4, 24, 140);
    int32_t start[2 * 140];
    s.batch = 2;
    s.kv_heads = 2;
    s.dropout_rate = 0.3f;
    s.dropout_seed = 99;
    s.dropout_sequence = 5;
    s.dropout_head = 8;
    check_types(*state, s);
    s.causal = false;
    check_types(*state, s);
    s.causal = true;
    s.query_start = start;
    s.query_offset = s.key_offset = 17;
    documents(start, 2, 140, 17, 30);
    check_types(*state, s);
}

static void test_scales(void **state)
{
    static const float scales[] = {-0.4f, 1e-3f, 3.0f};
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++) {
        ptb_attention_shape s = plain(2, 9, 80);
        s.scale = scales[i];
        check(*state, s, false);
    }
}

// Rows that are read and written 16 bytes at a time, and some whose columns do not fill the last 16.
static void test_aligned_rows(void **state)
{
    static const size_t widths[] = {8, 40, 64, 72, 128, 136, 256};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        for (size_t more = 0; more < 16; more += 8) {
            ptb_attention_shape s = plain(2, widths[i], 140);
            s.kv_heads = 1;
            s.query_stride = 2 * widths[i] + more;
            s.key_stride = widths[i] + more;
            check_types(*state, s);
        }
}

// Heads of each size that kernels are made for, and beyond, with all that a mask can be.
static void test_wide_heads(void **state)
{
    static const size_t widths[] = {64, 100, 128, 200, 256, 300};
    int32_t start[2 * 100];
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        ptb_attention_shape s = plain(2, widths[i], 100);
        s.batch = 2;
        s.kv_heads = 1;
        s.query_start = start;
        s.query_offset = s.key_offset = 9;
        s.dropout_rate = 0.2f;
        s.dropout_head = 3;
        documents(start, 2, 100, 9, 40);
        check_types(*state, s);
        s.query_offset = 40;
        s.key_length = 130;
        s.dropout_rate = 0;
        check_types(*state, s);
        s.causal = false;
        check_types(*state, s);
    }
}

// Scores far beyond the range of exp(), and equal ones.
static void test_large_scores(void **state)
{
    fixture *f = *state;
    enum { LENGTH = 100, WIDTH = 4 };
    attention_case a;
    ptb_attention_shape s = plain(1, WIDTH, LENGTH);
    s.scale = 1;
    case_init(&a, s);
    for (size_t i = 0; i < a.reference.count[QUERY]; i++)
        ((float *)a.values[QUERY])[i] *= 100, a.reference.values[QUERY][i] *= 100;
    for (size_t i = 0; i < a.reference.count[KEY]; i++) {
        float key = (float)(i / a.shape.key_stride % 3) - 1;
        ((float *)a.values[KEY])[i] = key, a.reference.values[KEY][i] = (double)key;
    }
    for (size_t i = 0; i < a.reference.count[QUERY]; i++) // the product in float, as the kernel has it
        a.reference.values[QUERY][i] = (double)((float *)a.values[QUERY])[i];
    run_forward(f, &a, 1);
    reference_forward(&a.reference);
    double distance = distance_of(PTB_F32, a.values[OUT], a.reference.values[OUT], a.reference.count[OUT]);
    assert_true(distance < 1e-4); // scores of hundreds keep an absolute error of 1e-5
    case_release(&a);
}

// So many queries that their 16-bit gradients are not summed for a whole head at a time.
static void test_many_queries(void **state)
{
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        ptb_attention_shape s = plain(1, 250, 16600);
        s.key_length = 5;
        s.causal = false;
        s.type = types[t];
        check(*state, s, true);
    }
}

static double pairs(fixture *f, ptb_attention_shape s)
{
    return f->kernels->attention_flops(&s) / (4.0 * (double)(s.batch * s.heads * s.head_width));
}

// What is computed whole: strips of `rows` queries and of `keys` keys.
typedef struct {
    size_t rows, keys;
} granule;

static void check_flops(fixture *f, ptb_attention_shape s, granule g)
{
    s.query_offset = 256; // all of it earlier
    assert_true(pairs(f, s) == 256 * 256);
    s.query_offset = -256; // all of it later
    assert_true(pairs(f, s) == 0);
    s.query_offset = 0;
    s.causal = false;
    assert_true(pairs(f, s) == 256 * 256);
    s.key_length = 77;
    s.query_length = 65;
    size_t rows = (65 + g.rows - 1) / g.rows * g.rows, keys = (77 + g.keys - 1) / g.keys * g.keys;
    assert_true(pairs(f, s) == (double)(rows * keys));
    for (size_t length = 1; length < 500; length += 7) {
        ptb_attention_shape part = plain(1, s.head_width, length);
        part.type = s.type;
        double visible = (double)(length * (length + 1) / 2);
        size_t larger = g.rows > g.keys ? g.rows : g.keys;
        double more = (double)(g.rows * (length + larger) + g.keys * length); // a strip's corners, its ends
        assert_true(pairs(f, part) >= visible && pairs(f, part) <= visible + more);
    }
}

static void test_flops(void **state)
{
    fixture *f = *state;
    ptb_attention_shape s = plain(3, 40, 256);
    s.batch = 2;
    if (test_on_host()) {
        // The diagonal blocks compute strips of 16 queries up to their last key: 16 * (16 + 32 + 48 + 64)
        // pairs.
        assert_true(pairs(f, s) == 6 * 64 * 64 + 4 * 2560);
        check_flops(f, s, (granule){16, 8});
        return;
    }
    assert_true(pairs(f, s) == 10 * 64 * 64);
    check_flops(f, s, (granule){64, 64});
    s.type = PTB_BF16;
    const char *choice = "PTBENCH_CUDA_ATTENTION", *before = getenv(choice);
    setenv(choice, "mma", 1);
    const double warps = 2 * (1 + 2 + 3 + 4) * 32 * 64, groups = 10 * 64 * 64;
    assert_true(pairs(f, s) == warps);
    check_flops(f, s, (granule){32, 64});
    s.head_width = 128;
    check_flops(f, s, (granule){32, 32});
    s.head_width = 256;
    check_flops(f, s, (granule){16, 32});
    s.head_width = 128;
    setenv(choice, "wgmma", 1);
    bool has_groups = pairs(f, s) == groups;
    if (has_groups)
        check_flops(f, s, (granule){64, 64});
    else // not this GPU
        check_flops(f, s, (granule){32, 32});
    before ? setenv(choice, before, 1) : unsetenv(choice);
}

static void test_workspace(void **state)
{
    fixture *f = *state;
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        ptb_attention_shape s = plain(4, 128, 1 << 20);
        s.type = types[t];
        s.kv_heads = 1;
        assert_true(f->kernels->attention_workspace(&s, 2) < 2 * (18u << 20));
        size_t bytes = f->kernels->attention_workspace(&s, 1);
        s.key_length = 64;
        assert_true(f->kernels->attention_workspace(&s, 1) == bytes);
    }
}

// More blocks than a grid has are refused, not cut off.
static void test_grid(void **state)
{
    fixture *f = *state;
    if (test_on_host())
        skip(); // grids are CUDA's
    ptb_attention args = {.shape = plain(60000, 8, 1000)};
    args.shape.batch = 60000;
    args.shape.kv_heads = args.shape.heads;
    args.shape.query_stride = args.shape.key_stride = args.shape.heads * args.shape.head_width;
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        args.shape.type = types[t];
        assert_int_equal(f->kernels->attention(f->stream, &args), PTB_UNSUPPORTED);
    }
}

// ---- the reference itself

static double loss_of(reference *r)
{
    reference_forward(r);
    return inner(r->values[OUT], r->gradients[OUT], r->count[OUT]);
}

static void test_reference_differences(void **state)
{
    (void)state;
    enum { LENGTH = 9 };
    int32_t start[LENGTH] = {0, 0, 2, 2, 2, 5, 5, 7, 7};
    attention_case a;
    ptb_attention_shape s = plain(4, 3, LENGTH);
    s.kv_heads = 2;
    s.query_start = start;
    s.dropout_rate = 0.2f;
    case_init(&a, s);
    begin_gradients(&a, false);
    reference_gradient(&a.reference);
    for (array which = QUERY; which <= VALUE; which++)
        for (size_t i = 0; i < a.reference.count[which]; i++) {
            double *value = a.reference.values[which] + i, before = *value, step = 1e-5;
            if (is_padding(&a.shape, which, i))
                continue;
            *value = before + step;
            double above = loss_of(&a.reference);
            *value = before - step;
            double below = loss_of(&a.reference);
            *value = before;
            double slope = (above - below) / (2 * step), gradient = a.reference.gradients[which][i];
            assert_true(fabs(slope - gradient) < 1e-8 * (1 + fabs(gradient)));
        }
    case_release(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference_differences),
        cmocka_unit_test_setup_teardown(test_widths, kernels_setup, kernels_teardown),
        cmocka_unit_test_setup_teardown(test_lengths, kernels_setup, kernels_teardown),
        cmocka_unit_test_setup_teardown(test_groups, kernels_setup, kernels_teardown),
        cmocka_unit_test_setup_teardown(test_offsets, kernels_setup, kernels_teardown),
        cmocka_unit_test_setup_teardown(test_nothing_seen, kernels_setup, kernels_teardown),
        cmocka_unit_test_setup_teardown(test_documents, kernels_setup, kernels_teardown),
        cmocka_unit_test_setup_teardown(test_unordered_starts, kernels_setup, kernels_teardown),
        cmocka_unit_test_setup_teardown(test_dropout, kernels_setup, kernels_teardown),
        cmocka_unit_test_setup_teardown(test_scales, kernels_setup, kernels_teardown),
        cmocka_unit_test_setup_teardown(test_aligned_rows, kernels_setup, kernels_teardown),
        cmocka_unit_test_setup_teardown(test_wide_heads, kernels_setup, kernels_teardown),
        cmocka_unit_test_setup_teardown(test_large_scores, kernels_setup, kernels_teardown),
        cmocka_unit_test_setup_teardown(test_many_queries, kernels_setup, kernels_teardown),
        cmocka_unit_test_setup_teardown(test_flops, kernels_setup, kernels_teardown),
        cmocka_unit_test_setup_teardown(test_workspace, kernels_setup, kernels_teardown),
        cmocka_unit_test_setup_teardown(test_grid, kernels_setup, kernels_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
