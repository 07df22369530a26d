// The verification pattern: closed forms against reductions done one rank at a time in double and by the real
// kernels, in several orders; representability of every partial result; and that faults show.
#include "core/pattern.h"

#include "core/random.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEED = 11, INDICES = 24, RANKS_MAX = 4096 };

static bool is_exact(ptb_dtype type, double value)
{
    unsigned char element[8];
    ptb_dtype_store(type, element, value);
    return ptb_dtype_load(type, element) == value;
}

static double apply(ptb_redop op, double a, double b)
{
    if (op == PTB_PROD)
        return a * b;
    if (op == PTB_MIN)
        return a < b ? a : b;
    if (op == PTB_MAX)
        return a > b ? a : b;
    return a + b;
}

// Inputs of all ranks at one element, as doubles and as elements.
typedef struct {
    double value[RANKS_MAX];
    unsigned char element[RANKS_MAX][8];
} inputs;

typedef struct {
    double value;
    unsigned char element[8];
} partial;

static void combine(const ptb_pattern *p, partial *into, const partial *with)
{
    into->value = apply(p->op, into->value, with->value);
    ptb_reduce_function(p->dtype, p->op)(into->element, into->element, with->element, 1);
    if (!is_exact(p->dtype, into->value))
        fail_msg("%s %s, %d ranks: partial result %g is not exact", ptb_dtype_name(p->dtype),
                 ptb_redop_name(p->op), p->ranks, into->value);
}

static partial input_of(const inputs *in, int rank)
{
    partial one = {.value = in->value[rank]};
    memcpy(one.element, in->element[rank], 8);
    return one;
}

// A ring's order: `start`, start+1, ... all around.
static partial reduce_ring(const ptb_pattern *p, const inputs *in, int start)
{
    partial sum = input_of(in, start % p->ranks);
    for (int i = 1; i < p->ranks; i++) {
        partial next = input_of(in, (start + i) % p->ranks);
        combine(p, &sum, &next);
    }
    return sum;
}

static partial reduce_tree(const ptb_pattern *p, const inputs *in, int first, int count)
{
    if (count == 1)
        return input_of(in, first);
    partial left = reduce_tree(p, in, first, count / 2);
    partial right = reduce_tree(p, in, first + count / 2, count - count / 2);
    combine(p, &left, &right);
    return left;
}

// Positive contributions first, then negative: the largest partial results there can be.
static partial reduce_sorted(const ptb_pattern *p, const inputs *in)
{
    partial sum;
    bool is_started = false;
    for (int pass = 0; pass < 2; pass++)
        for (int rank = 0; rank < p->ranks; rank++) {
            if ((in->value[rank] < 0) != (pass == 1))
                continue;
            partial next = input_of(in, rank);
            if (is_started)
                combine(p, &sum, &next);
            else
                sum = next;
            is_started = true;
        }
    return sum;
}

static void assert_reduced(const ptb_pattern *p, partial got, size_t index, const char *order)
{
    double value = got.value;
    if (p->op == PTB_AVG)
        value /= p->ranks;
    ptb_reduce_finish(p->dtype, p->op, got.element, 1, p->ranks);
    double want = ptb_pattern_reduced(p, index), real = ptb_dtype_load(p->dtype, got.element);
    if (value != want || real != want)
        fail_msg("%s %s, %d ranks, element %zu, %s: wanted %g, in double %g, in the type %g",
                 ptb_dtype_name(p->dtype), ptb_redop_name(p->op), p->ranks, index, order, want, value, real);
}

static void check_closed_forms(ptb_dtype type, ptb_redop op, int ranks)
{
    static inputs in;
    ptb_pattern p;
    ptb_pattern_init(&p, SEED, type, op, ranks);
    for (size_t i = 0; i < INDICES; i++) {
        size_t index = i < INDICES - 4 ? i : ((size_t)1 << 32) - 2 + (i - (INDICES - 4));
        int active = 0;
        for (int rank = 0; rank < ranks; rank++) {
            in.value[rank] = ptb_pattern_input(&p, rank, index);
            assert_true(is_exact(type, in.value[rank]));
            ptb_dtype_store(type, in.element[rank], in.value[rank]);
            active += in.value[rank] != (op == PTB_PROD ? 1 : 0);
        }
        assert_true(active >= p.active - 2 && active <= p.active); // some sums have a 0 within the cycle
        assert_reduced(&p, reduce_ring(&p, &in, 0), index, "ring from 0");
        assert_reduced(&p, reduce_ring(&p, &in, (int)i * 7 + 1), index, "ring from another rank");
        assert_reduced(&p, reduce_tree(&p, &in, 0, ranks), index, "tree");
        assert_reduced(&p, reduce_sorted(&p, &in), index, "sorted by sign");
    }
}

static void test_closed_forms(void **state)
{
    (void)state;
    static const int more[] = {126, 127, 128, 255, 256, 257, 1000, 2047, 2048, 2049, 4096};
    for (int type = 0; type < PTB_DTYPE_COUNT; type++)
        for (int op = 0; op < PTB_REDOP_COUNT; op++) {
            for (int ranks = 1; ranks <= 70; ranks++)
                check_closed_forms(type, op, ranks);
            for (size_t i = 0; i < sizeof more / sizeof *more; i++)
                check_closed_forms(type, op, more[i]);
        }
}

// Whether the fault turns the result of the reduction wrong for at least one of the elements.
static bool is_noticed(const ptb_pattern *p, int missing, int doubled)
{
    for (size_t index = 0; index < 4000; index++) {
        double sum = 0;
        bool is_started = false;
        for (int rank = 0; rank < p->ranks; rank++)
            for (int times = (rank != missing) + (rank == doubled); times > 0; times--) {
                double value = ptb_pattern_input(p, rank, index);
                sum = is_started ? apply(p->op, sum, value) : value;
                is_started = true;
            }
        if (sum / (p->op == PTB_AVG ? p->ranks : 1) != ptb_pattern_reduced(p, index))
            return true;
    }
    return false;
}

// A missing, a doubled and an exchanged contribution show, for every type and operation that can show them.
static void test_faults_show(void **state)
{
    (void)state;
    static const int counts[] = {2, 3, 4, 8, 15, 100, 200, 300};
    for (int type = 0; type < PTB_DTYPE_COUNT; type++)
        for (int op = 0; op < PTB_REDOP_COUNT; op++)
            for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
                ptb_pattern p;
                ptb_pattern_init(&p, SEED, type, op, counts[i]);
                if (p.active == 0) // u8, avg over more ranks than 255: always 0
                    continue;
                assert_true(is_noticed(&p, 1, -1));
                assert_true(is_noticed(&p, counts[i] - 1, 0));
                if (op != PTB_MIN && op != PTB_MAX)
                    assert_true(is_noticed(&p, -1, 1));
            }
}

// The pattern must not be one that a buffer of zeros, of poison or of the rank's own input would pass.
static void test_no_op_shows(void **state)
{
    (void)state;
    for (int type = 0; type < PTB_DTYPE_COUNT; type++)
        for (int op = 0; op < PTB_REDOP_COUNT; op++) {
            ptb_pattern p;
            ptb_pattern_init(&p, SEED, type, op, 4);
            size_t same = 0;
            for (size_t i = 0; i < 1000; i++) {
                same += ptb_pattern_input(&p, 2, i) == ptb_pattern_reduced(&p, i);
                assert_true(ptb_pattern_reduced(&p, i) != 0);
            }
            assert_true(same < 500);
        }
}

static void test_moved(void **state)
{
    (void)state;
    for (int type = 0; type < PTB_DTYPE_COUNT; type++) {
        ptb_pattern p, other;
        ptb_pattern_init(&p, SEED, type, PTB_SUM, 200);
        ptb_pattern_init(&other, SEED + 1, type, PTB_SUM, 200);
        size_t same_next = 0, same_seed = 0, same_high = 0;
        for (size_t i = 0; i < 4096; i++) {
            double value = ptb_pattern_moved(&p, 3, i);
            assert_true(is_exact(type, value));
            for (int rank = 0; rank < 200; rank += 7)
                assert_true(rank == 3 || ptb_pattern_moved(&p, rank, i) != value);
            same_next += value == ptb_pattern_moved(&p, 3, i + 1);
            same_seed += value == ptb_pattern_moved(&other, 3, i);
            same_high += value == ptb_pattern_moved(&p, 3, i + ((size_t)1 << 32));
        }
        assert_true(same_next < 40 && same_seed < 40 && same_high < 40); // 16 expected of 256 values
    }
}

// The hash must use the type's whole width: all bytes of the elements vary.
static void test_moved_varies(void **state)
{
    (void)state;
    for (int type = 0; type < PTB_DTYPE_COUNT; type++) {
        ptb_pattern p;
        ptb_pattern_init(&p, SEED, type, PTB_SUM, 2);
        bool negative = false, is_high = false;
        double most = type == PTB_F64 || type == PTB_I64 ? 0x1p51
                      : type == PTB_I32                  ? 0x1p31
                      : type == PTB_F32                  ? 0x1p23
                      : type == PTB_F16                  ? 0x1p11
                      : type == PTB_I8                   ? 0x1p7
                                                         : 0x1p8;
        for (size_t i = 0; i < 1000; i++) {
            double value = ptb_pattern_moved(&p, 1, i);
            negative |= value < 0;
            is_high |= value > most * 0.9 || value < -most * 0.9;
            assert_true(value <= most * 1.001 && value >= -most * 1.001);
        }
        assert_true(is_high);
        assert_true(negative == (type != PTB_U8));
    }
}

static void check_fill(ptb_dtype type, ptb_redop op, bool reduced, size_t first, size_t count)
{
    size_t size = ptb_dtype_size(type);
    unsigned char *buffer = malloc((count + 2) * size), *at = buffer + size;
    ptb_pattern p;
    ptb_pattern_init(&p, SEED, type, op, 5);
    memset(buffer, 0x33, (count + 2) * size);
    ptb_pattern_fill(&p, reduced, 2, first, at, count);
    for (size_t i = 0; i < count; i++) {
        double want = reduced ? ptb_pattern_input(&p, 2, first + i) : ptb_pattern_moved(&p, 2, first + i);
        if (ptb_dtype_load(type, at + i * size) != want)
            fail_msg("%s: element %zu is %g, not %g", ptb_dtype_name(type), first + i,
                     ptb_dtype_load(type, at + i * size), want);
    }
    assert_int_equal(at[-1], 0x33);
    free(buffer);
}

// Blocks, their ends, and the place where the upper half of the index changes.
static void test_fill(void **state)
{
    (void)state;
    static const size_t counts[] = {0, 1, 5, 1023, 1024, 1025, 3000};
    static const size_t firsts[] = {0, 13, ((size_t)1 << 32) - 700};
    for (int type = 0; type < PTB_DTYPE_COUNT; type++)
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
            for (size_t f = 0; f < sizeof firsts / sizeof *firsts; f++) {
                check_fill(type, PTB_SUM, false, firsts[f], counts[c]);
                for (int op = 0; op < PTB_REDOP_COUNT; op++)
                    check_fill(type, op, true, firsts[f], counts[c]);
            }
}

// Flips one bit at a time and looks at what the check says.
static void check_one_wrong(const ptb_pattern *p, const ptb_expect *expect, unsigned char *buffer)
{
    size_t size = ptb_dtype_size(p->dtype);
    static const size_t places[] = {0, 1, 1023, 1024, 1999};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        size_t place = expect->first + places[i];
        ptb_check check = {0};
        buffer[place * size] ^= 1; // the lowest bit of the element
        ptb_pattern_check(p, expect, buffer, &check);
        assert_int_equal(check.checked, expect->count);
        assert_int_equal(check.wrong, 1);
        assert_int_equal(check.first_wrong, place);
        assert_true(check.got == ptb_dtype_load(p->dtype, buffer + place * size));
        buffer[place * size] ^= 1;
        assert_true(check.wanted == ptb_dtype_load(p->dtype, buffer + place * size));
    }
}

static void test_check(void **state)
{
    (void)state;
    enum { COUNT = 2000, FIRST = 37 };
    unsigned char *buffer = malloc((COUNT + FIRST + 10) * 8);
    for (int type = 0; type < PTB_DTYPE_COUNT; type++) {
        size_t size = ptb_dtype_size(type);
        ptb_pattern p;
        ptb_pattern_init(&p, SEED, type, PTB_SUM, 3);
        ptb_expect expects[] = {
            {PTB_EXPECT_COPY, FIRST, COUNT, 1, 500},
            {PTB_EXPECT_INPUT, FIRST, COUNT, 1, 500},
            {PTB_EXPECT_REDUCED, FIRST, COUNT, 0, 500},
            {PTB_EXPECT_POISON, FIRST, COUNT, 0, 0},
        };
        for (size_t i = 0; i < sizeof expects / sizeof *expects; i++) {
            unsigned char *at = buffer + FIRST * size;
            ptb_pattern_poison(buffer, (COUNT + FIRST + 10) * size);
            if (expects[i].kind == PTB_EXPECT_COPY || expects[i].kind == PTB_EXPECT_INPUT)
                ptb_pattern_fill(&p, expects[i].kind == PTB_EXPECT_INPUT, 1, 500, at, COUNT);
            for (size_t k = 0; k < COUNT && expects[i].kind == PTB_EXPECT_REDUCED; k++)
                ptb_dtype_store(type, at + k * size, ptb_pattern_reduced(&p, 500 + k));
            ptb_check check = {.checked = 5};
            ptb_pattern_check(&p, &expects[i], buffer, &check);
            assert_int_equal(check.checked, COUNT + 5);
            assert_int_equal(check.wrong, 0);
            check_one_wrong(&p, &expects[i], buffer);
        }
        // Everything wrong, and the first mismatch of an earlier run kept.
        ptb_pattern_poison(buffer, (COUNT + FIRST) * size);
        ptb_check check = {.wrong = 1, .first_wrong = 3};
        ptb_pattern_check(&p, &expects[2], buffer, &check);
        assert_true(check.wrong > COUNT * 9 / 10);
        assert_int_equal(check.first_wrong, 3);
    }
    free(buffer);
}

static void test_check_values(void **state)
{
    (void)state;
    ptb_pattern p;
    ptb_pattern_init(&p, SEED, PTB_BF16, PTB_AVG, 1000); // averages to 0
    uint16_t buffer[64] = {0};
    buffer[5] = 0x8000; // -0 is right
    buffer[9] = 0x7fc0; // NaN is not
    ptb_expect expect = {PTB_EXPECT_REDUCED, 0, 64, 0, 0};
    ptb_check check = {0};
    ptb_pattern_check(&p, &expect, buffer, &check);
    assert_int_equal(check.wrong, 1);
    assert_int_equal(check.first_wrong, 9);
    check = (ptb_check){0};
    ptb_pattern_poison(buffer, sizeof buffer);
    buffer[3] = 0x8000;
    expect.kind = PTB_EXPECT_POISON;
    ptb_pattern_check(&p, &expect, buffer, &check);
    assert_int_equal(check.wrong, 1);
    assert_int_equal(check.first_wrong, 3);
    // Zeros where a power of two is wanted: few bits differ.
    double zeros[3] = {0};
    ptb_pattern_init(&p, SEED, PTB_F64, PTB_SUM, 2);
    expect = (ptb_expect){PTB_EXPECT_REDUCED, 0, 3, 0, 0};
    check = (ptb_check){0};
    ptb_pattern_check(&p, &expect, zeros, &check);
    assert_int_equal(check.wrong, 3);
    int64_t wide[2];
    ptb_pattern_init(&p, SEED, PTB_I64, PTB_SUM, 2);
    ptb_pattern_fill(&p, false, 0, 0, wide, 2);
    wide[1] += (int64_t)1 << 62;
    expect = (ptb_expect){PTB_EXPECT_COPY, 0, 2, 0, 0};
    check = (ptb_check){0};
    ptb_pattern_check(&p, &expect, wide, &check);
    assert_int_equal(check.wrong, 1);
    assert_int_equal(check.first_wrong, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_closed_forms), cmocka_unit_test(test_faults_show),
        cmocka_unit_test(test_no_op_shows),  cmocka_unit_test(test_moved),
        cmocka_unit_test(test_moved_varies), cmocka_unit_test(test_fill),
        cmocka_unit_test(test_check),        cmocka_unit_test(test_check_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
