// Attention over sequences that are split over ranks, which are threads here: every way to do it, on several
// numbers of ranks, against attention over whole sequences in double precision; what it sends and allocates
// against closed forms; and what is refused.
#include "tests/unit/context_fixture.h"

// Bytes that a rank sends in one forward and backward pass.
static double volume_of(const setting *s)
{
    double e = (double)ptb_dtype_size(s->type), n = s->ranks, u = s->degree,
           rows = (double)(s->batch * s->sequence) / n;
    double query = (double)(s->heads * s->head_width), kv = 2 * (double)(s->kv_heads * s->head_width);
    if (strcmp(s->way, "all_gather") == 0)
        return (n - 1) * rows * kv * (2 * e + 4);
    u = strcmp(s->way, "ring") == 0 ? 1 : strcmp(s->way, "all_to_all") == 0 ? n : u;
    double copies = u > (double)s->kv_heads ? u / (double)s->kv_heads : 1, ring = n / u;
    double heads = 2 * (u - 1) * e * rows * (2 * query + kv * copies) / u;
    double starts = s->packed ? 4 * (u - 1) * rows : 0;
    double around = ring > 1 ? ((ring - 1) * 2 * e + ring * 4) * u * rows * kv * copies / u : 0;
    return heads + starts + around;
}

static void check(setting s)
{
    trial t;
    trial_init(&t, s);
    assert_int_equal(ptb_world_run_local(s.ranks, NULL, rank_main, &t), PTB_OK);
    assert_int_equal(t.described, PTB_OK);
    double error = error_of(&t), limit = s.type == PTB_F32 ? 3e-6 : s.type == PTB_BF16 ? 8e-3 : 1e-3;
    if (!(error < limit))
        fail_msg("%s of %d ranks, degree %d: relative error %g", s.way, s.ranks, s.degree, error);
    for (int r = 0; r < s.ranks; r++)
        if (fabs(t.volume[r] - 2 * volume_of(&s)) > 1e-6)
            fail_msg("%s of %d ranks sent %g bytes twice, the closed form says %g", s.way, s.ranks,
                     t.volume[r] / 2, volume_of(&s));
    trial_release(&t);
}

static void check_all(setting s)
{
    check(s);
    s.dropout = 0.25f;
    s.packed = true;
    check(s);
    for (size_t i = 0; i < 2; i++) {
        s.type = i ? PTB_BF16 : PTB_F16;
        check(s);
    }
}

static void test_ring(void **state)
{
    (void)state;
    check_all((setting){CASE("ring", 2, 0, 44, 2, 4, 4)});
    check_all((setting){CASE("ring", 3, 0, 66, 2, 3, 1)});
    check((setting){CASE("ring", 4, 0, 160, 1, 4, 2)});
    check((setting){CASE("ring", 8, 0, 16, 2, 4, 4), .packed = true});
    check((setting){CASE("ring", 1, 0, 20, 2, 4, 4)});
}

static void test_all_gather(void **state)
{
    (void)state;
    check_all((setting){CASE("all_gather", 2, 0, 44, 2, 4, 4)});
    check_all((setting){CASE("all_gather", 3, 0, 66, 2, 3, 1)});
    check((setting){CASE("all_gather", 4, 0, 160, 1, 4, 2)});
    check((setting){CASE("all_gather", 8, 0, 16, 2, 4, 4), .packed = true});
}

static void test_all_to_all(void **state)
{
    (void)state;
    check_all((setting){CASE("all_to_all", 2, 0, 46, 2, 4, 4)});
    check_all((setting){CASE("all_to_all", 3, 0, 33, 2, 6, 3)});
    check_all((setting){CASE("all_to_all", 4, 0, 20, 2, 4, 2)}); // copies
    check((setting){CASE("all_to_all", 8, 0, 64, 2, 8, 1)});
}

static void test_ring_all_to_all(void **state)
{
    (void)state;
    check_all((setting){CASE("ring_all_to_all", 4, 2, 48, 2, 4, 4)});
    check((setting){CASE("ring_all_to_all", 8, 2, 64, 2, 4, 1)});
    check((setting){CASE("ring_all_to_all", 8, 4, 64, 2, 4, 2), .packed = true});
    check((setting){CASE("ring_all_to_all", 6, 2, 36, 2, 4, 4)});
    check((setting){CASE("ring_all_to_all", 2, 2, 36, 2, 4, 4)}); // one group
    check((setting){CASE("ring_all_to_all", 3, 1, 36, 2, 4, 4)}); // no groups
}

// ---- what cannot be divided, and faults

static ptb_status described(setting s)
{
    trial t;
    trial_init(&t, s);
    ptb_context_env env = {.size = s.ranks,
                           .degree = s.degree,
                           .kernels = test_kernels(),
                           .layout = &t.layout,
                           .batch = s.batch,
                           .threads = 1,
                           .type = s.type};
    ptb_context_axis axis;
    char reason[PTB_REASON_BYTES] = "";
    ptb_status status = ptb_context_describe(
        &axis, (const ptb_context *)ptb_registry_need(PTB_KIND_CONTEXT, s.way), &env, reason);
    assert_true(status == PTB_OK || strstr(reason, "divide") || strstr(reason, "remainder"));
    trial_release(&t);
    return status;
}

static void test_refused(void **state)
{
    (void)state;
    const setting bad[] = {
        {CASE("ring", 4, 0, 36, 2, 4, 4)},
        {CASE("all_gather", 3, 0, 33, 2, 4, 4)},
        {CASE("all_to_all", 4, 0, 38, 2, 4, 4)},
        {CASE("all_to_all", 3, 0, 36, 2, 4, 4)},  // heads
        {CASE("all_to_all", 4, 0, 36, 2, 12, 6)}, // of key and value
        {CASE("ring_all_to_all", 4, 3, 48, 2, 4, 4)},
        {CASE("ring_all_to_all", 3, 0, 36, 2, 4, 4)},
        {CASE("ring_all_to_all", 6, 3, 36, 2, 4, 4)},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(described(bad[i]), PTB_USAGE);
    assert_int_equal(described((setting){CASE("ring_all_to_all", 6, 0, 36, 2, 4, 4)}), PTB_OK);
}

// A piece that is taken to begin one token later than it does shows.
static void test_fault(void **state)
{
    (void)state;
    setting s = {CASE("all_gather", 2, 0, 44, 2, 4, 4), .fault = -1};
    trial t;
    trial_init(&t, s);
    assert_int_equal(ptb_world_run_local(s.ranks, NULL, rank_main, &t), PTB_OK);
    assert_true(error_of(&t) > 1e-3);
    trial_release(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ring),       cmocka_unit_test(test_all_gather),
        cmocka_unit_test(test_all_to_all), cmocka_unit_test(test_ring_all_to_all),
        cmocka_unit_test(test_refused),    cmocka_unit_test(test_fault),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
