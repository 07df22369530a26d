// Expert parallelism: loss and every gradient are those of one rank that computes the same rows (drop-less,
// and with capacity and balance loss on the same microbatches), for both ways to move rows; what is moved is
// the closed form; memory is what was predicted (expert_fixture.h); faults show.
#include "tests/unit/expert_fixture.h"

#define ROUTED(E, K) .experts = E, .top_k = K, .expert_hidden = 11
#define GPT_OF(n)                                                                                            \
    .layers = n, .hidden = 24, .heads = 3, .sequence = 7, .vocabulary = 13, .feed_forward = 20, .biases = true
#define GPT GPT_OF(2)
#define LLAMA                                                                                                \
    .layers = 2, .hidden = 24, .heads = 3, .sequence = 7, .vocabulary = 13, .feed_forward = 20,              \
    .activation = PTB_SWIGLU, .norm = PTB_RMS_NORM, .position = PTB_ROTARY_POSITIONS, .normalise = true

static const char *const dispatches[] = {"all_to_all", "all_gather"};

// Relative distances of loss and gradients from one rank's.
static void compare(const expert_case *c, double *loss, double *gradient, const char **where)
{
    expert_run many = expert_run_on(c, c->ranks), one = expert_run_on(c, 1);
    *loss = fabs(many.loss[0] / one.loss[0] - 1);
    *gradient = expert_distance(&many, &one, where);
    size_t count = (size_t)(one.whole.shape.layers * 2 * one.whole.shape.experts);
    for (size_t i = 0; i < count && !c->kernels && !c->wrong_expert && test_type(c->type) == PTB_F32; i++) {
        int64_t sum = 0;
        for (int r = 0; r < c->ranks; r++)
            sum += many.choices[r][i];
        assert_true(sum == one.choices[0][i]);
    }
    expert_release(&many), expert_release(&one);
}

static void check(expert_case c)
{
    const char *where = "";
    double loss, gradient, limit = test_type(c.type) == PTB_F32 ? 1e-5 : 1e-2;
    compare(&c, &loss, &gradient, &where);
    if (!(loss < limit / 3 && gradient < limit))
        fail_msg("%s, %d ranks, top %d of %d%s%s: loss differs by %g, the gradient of %s by %g", c.dispatch,
                 c.ranks, (int)c.shape.top_k, (int)c.shape.experts, c.apart ? ", parts apart" : "",
                 c.overlap ? ", overlapped" : "", loss, where, gradient);
}

static void check_both(expert_case c)
{
    for (size_t d = 0; d < 2; d++) {
        c.dispatch = dispatches[d];
        c.overlap = !c.overlap;
        check(c);
    }
}

static void test_ranks(void **state)
{
    (void)state;
    static const int ranks[] = {2, 3, 4, 8};
    for (size_t i = 0; i < 4; i++) {
        check_both((expert_case){.shape = {LLAMA, ROUTED(24, 2)}, .ranks = ranks[i], .overlap = i % 2});
        check_both((expert_case){.shape = {GPT, ROUTED(24, 1)}, .ranks = ranks[i], .overlap = i % 2 == 0});
    }
}

// One expert a rank, all of a rank's experts chosen by every row, and a dense layer.
static void test_shapes(void **state)
{
    (void)state;
    check_both((expert_case){.shape = {LLAMA, ROUTED(4, 2)}, .ranks = 4});
    check_both((expert_case){.shape = {LLAMA, ROUTED(6, 5)}, .ranks = 3});
    check_both((expert_case){.shape = {GPT, ROUTED(2, 2), .dense_layers = 1}, .ranks = 2});
}

static void test_shared_experts(void **state)
{
    (void)state;
    for (int overlap = 0; overlap < 2; overlap++) {
        check_both((expert_case){
            .shape = {LLAMA, ROUTED(6, 2), .shared_experts = 2}, .ranks = 3, .overlap = overlap});
        check_both((expert_case){.shape = {GPT, ROUTED(8, 2), .shared_experts = 1, .dropout = 0.2},
                                 .ranks = 2,
                                 .overlap = overlap});
    }
}

// Statistics are those of a rank's microbatch, which one rank repeats.
static void test_capacity_and_balance(void **state)
{
    (void)state;
    check_both((expert_case){.shape = {LLAMA, ROUTED(8, 2), .balance = 0.3}, .ranks = 4, .parts = 2});
    check_both((expert_case){
        .shape = {LLAMA, ROUTED(8, 2), .capacity_factor = 0.8, .balance = 0.3}, .ranks = 4, .parts = 2});
    check_both((expert_case){.shape = {GPT, ROUTED(6, 1), .capacity_factor = 1.25}, .ranks = 3});
    check_both((expert_case){.shape = {GPT, ROUTED(4, 2), .capacity_factor = 9}, .ranks = 2});
}

// All rows go to one rank, none to the others: the most that can arrive, and products without rows.
static void test_popular(void **state)
{
    (void)state;
    check_both((expert_case){.shape = {GPT, ROUTED(4, 1)}, .ranks = 4, .popular = true});
    check_both(
        (expert_case){.shape = {GPT, ROUTED(4, 1), .capacity_factor = 1}, .ranks = 2, .popular = true});
    check_both(
        (expert_case){.shape = {GPT, ROUTED(8, 2), .activation = PTB_SWIGLU}, .ranks = 2, .popular = true});
}

static void test_modes(void **state)
{
    (void)state;
    const ptb_model_shape shape = {LLAMA, ROUTED(6, 2), .shared_experts = 1, .balance = 0.1};
    ptb_model_shape capped = shape;
    capped.capacity_factor = 0.9;
    for (int i = 0; i < 2; i++) {
        expert_case c = {.shape = i ? capped : shape, .ranks = 3, .parts = 2, .overlap = i};
        c.recompute = PTB_RECOMPUTE_FULL;
        check_both(c);
        c.apart = true;
        check_both(c);
        c.recompute = PTB_RECOMPUTE_NONE;
        check_both(c);
    }
}

// Rounding of results before they are sent or summed: 8 bits.
static void test_bf16(void **state)
{
    (void)state;
    check_both((expert_case){.shape = {GPT_OF(1), ROUTED(4, 2)}, .ranks = 2, .type = PTB_BF16});
}

// Overlap changes the order of nothing that is summed.
static void test_overlap_changes_nothing(void **state)
{
    (void)state;
    for (size_t d = 0; d < 2; d++) {
        expert_case c = {
            .shape = {LLAMA, ROUTED(6, 2), .shared_experts = 1}, .ranks = 2, .dispatch = dispatches[d]};
        expert_run off = expert_run_on(&c, 2);
        c.overlap = true;
        expert_run on = expert_run_on(&c, 2);
        assert_memory_equal(on.gradients[0], off.gradients[0], on.whole.count * sizeof(float));
        assert_true(on.loss[0] == off.loss[0]);
        expert_release(&off), expert_release(&on);
    }
}

// Bytes that a rank sends in a step of one microbatch, by the definitions in strategies/expert/*.c.
static double volume(const expert_run *run, int rank)
{
    const expert_case *c = run->what;
    const ptb_model_shape *s = &run->whole.shape;
    double n = c->ranks, rows = BATCH * (double)s->sequence, row = 4 * (double)s->hidden;
    double choices = rows * (double)s->top_k, experts = (double)s->experts, sum = 0;
    for (int64_t layer = 0; layer < s->layers; layer++) {
        if (strcmp(c->dispatch, "all_gather") == 0) {
            sum += 4 * (n - 1) * rows * row + (n - 1) * 4 * (experts + 2 * choices) + (n - 1) * 4 * choices;
            continue;
        }
        sum += 4 * experts * (n - 1) / n;
        if (s->capacity_factor > 0) {
            double capacity = fmin(ceil(s->capacity_factor * choices / experts), rows);
            sum += 4 * experts * capacity * row * (n - 1) / n;
            continue;
        }
        for (int64_t e = 0; e < s->experts; e++) {
            bool mine = e / (s->experts / c->ranks) == rank;
            for (int r = 0; r < c->ranks; r++) {
                double chosen = (double)run->choices[r][layer * 2 * s->experts + e];
                // Rows of this rank go there and their gradients too; those of others come back twice.
                sum += mine != (r == rank) ? 2 * chosen * row : 0;
            }
        }
    }
    return sum;
}

static void check_volume(expert_case c)
{
    expert_run run = expert_run_on(&c, c.ranks);
    assert_int_equal(run.waits, strcmp(c.dispatch, "all_to_all") == 0 && c.shape.capacity_factor <= 0);
    for (int r = 0; r < c.ranks; r++)
        if (!(fabs(run.moved[r].volume_bytes - volume(&run, r)) < 0.5))
            fail_msg("%s, rank %d of %d sent %.0f bytes instead of %.0f", c.dispatch, r, c.ranks,
                     run.moved[r].volume_bytes, volume(&run, r));
    expert_release(&run);
}

static void test_volume(void **state)
{
    (void)state;
    for (size_t d = 0; d < 2; d++)
        for (int ranks = 2; ranks <= 3; ranks++) {
            check_volume(
                (expert_case){.shape = {LLAMA, ROUTED(6, 2)}, .ranks = ranks, .dispatch = dispatches[d]});
            check_volume((expert_case){.shape = {LLAMA, ROUTED(6, 2), .capacity_factor = 1.1},
                                       .ranks = ranks,
                                       .dispatch = dispatches[d]});
        }
}

// ---- faults

static ptb_status (*right_order)(ptb_stream *stream, const ptb_expert_order *args);

// Offsets of experts are those of the expert before.
static ptb_status wrong_order(ptb_stream *stream, const ptb_expert_order *args)
{
    ptb_expert_order a = *args;
    if (a.first)
        a.first--;
    return right_order(stream, &a);
}

static const ptb_kernels *wrong_kernels(const ptb_kernels *right)
{
    static ptb_kernels wrong;
    right_order = right->expert_order;
    ptb_kernels made = *right;
    made.expert_order = wrong_order;
    wrong = made;
    return &wrong;
}

static void assert_wrong(expert_case c)
{
    const char *where = "";
    double loss, gradient;
    compare(&c, &loss, &gradient, &where);
    assert_true(!(gradient < 1e-3));
}

static void test_faults(void **state)
{
    (void)state;
    expert_case c = {.shape = {LLAMA, ROUTED(6, 2)}, .ranks = 2, .dispatch = "all_to_all", .wrong_expert = 1};
    assert_wrong(c);
    c = (expert_case){
        .shape = {LLAMA, ROUTED(6, 2)}, .ranks = 2, .dispatch = "all_gather", .kernels = wrong_kernels};
    assert_wrong(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks),          cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_shared_experts), cmocka_unit_test(test_capacity_and_balance),
        cmocka_unit_test(test_popular),        cmocka_unit_test(test_modes),
        cmocka_unit_test(test_bf16),           cmocka_unit_test(test_overlap_changes_nothing),
        cmocka_unit_test(test_volume),         cmocka_unit_test(test_faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
