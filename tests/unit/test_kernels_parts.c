// Joining partial results of attention, and moving blocks of rows, against double precision and plain loops.
#include "tests/unit/kernels_rows.h"

#include <math.h>

// ---- merge

typedef struct {
    double out, lse;
} merged;

static merged merge_of(double so_far, double so_far_lse, double part, double part_lse)
{
    double a = exp(so_far_lse), b = exp(part_lse), sum = a + b;
    return sum > 0 ? (merged){(a * so_far + b * part) / sum, log(sum)} : (merged){0, -INFINITY};
}

// Some rows of either side, and one of both, saw nothing.
static void blind(float *lse, size_t count, size_t every)
{
    for (size_t i = 0; i < count; i++)
        if (i % every == 0)
            lse[i] = -INFINITY;
}

static void check_merge(fixture *f, ptb_dtype type, size_t head_width, bool first, bool rounds)
{
    enum { BATCH = 2, LENGTH_OF = 5, HEADS = 3 };
    bag b = {.f = f};
    size_t rows = BATCH * LENGTH_OF * HEADS, n = rows * head_width;
    array out = array_numbers(&b, PTB_F32, n, 1), part = array_numbers(&b, type, n, 2);
    array lse = array_numbers(&b, PTB_F32, rows, 3), part_lse = array_numbers(&b, PTB_F32, rows, 4);
    array rounded = array_new(&b, type, n);
    blind(lse.data, rows, 3), blind(part_lse.data, rows, 4);
    double *wanted = bag_bytes(&b, n * sizeof *wanted),
           *wanted_lse = bag_bytes(&b, rows * sizeof *wanted_lse);
    for (size_t i = 0; i < n; i++) {
        size_t head = i / head_width % HEADS, row = i / head_width / HEADS;
        size_t at = (row / LENGTH_OF * HEADS + head) * LENGTH_OF + row % LENGTH_OF;
        double before = first ? -INFINITY : array_at(lse, at), lse_of_part = array_at(part_lse, at);
        merged m = merge_of(array_at(out, i), before, array_at(part, i), lse_of_part);
        if (before == -INFINITY)
            array_set(out, i, NAN); // values that must not matter
        if (lse_of_part == -INFINITY)
            array_set(part, i, NAN);
        wanted[i] = m.out;
        wanted_lse[at] = m.lse;
    }
    ptb_merge args = {.out = out.data,
                      .lse = lse.data,
                      .rounded = rounds ? rounded.data : NULL,
                      .part = part.data,
                      .part_lse = part_lse.data,
                      .batch = BATCH,
                      .length = LENGTH_OF,
                      .heads = HEADS,
                      .head_width = head_width,
                      .type = type,
                      .first = first};
    finish(f, f->kernels->merge(f->stream, &args));
    assert_close("merged", out, wanted, 0);
    if (rounds)
        assert_close("merged and rounded", rounded, wanted, 0);
    for (size_t i = 0; i < rows; i++) {
        double got = array_at(lse, i);
        assert_true(got == wanted_lse[i] || fabs(got - wanted_lse[i]) < 1e-6 * (1 + fabs(wanted_lse[i])));
    }
    bag_release(&b);
}

static void test_merge(void **state)
{
    static const size_t widths[] = {1, 3, 8, 17, 64};
    for (size_t t = 0; t < LENGTH(compute_types); t++)
        for (size_t w = 0; w < LENGTH(widths); w++)
            for (int mode = 0; mode < 4; mode++)
                check_merge(*state, compute_types[t], widths[w], mode & 1, mode & 2);
}

// Far from 0, where the exponentials themselves cannot be computed.
static void test_merge_large(void **state)
{
    fixture *f = *state;
    bag b = {.f = f};
    static const double lses[][2] = {{5000, 4999}, {-5000, -4999}, {5000, -5000}, {-5000, 5000}};
    for (size_t i = 0; i < LENGTH(lses); i++) {
        array out = array_numbers(&b, PTB_F32, 4, 1), part = array_numbers(&b, PTB_F32, 4, 2);
        array lse = array_new(&b, PTB_F32, 1), part_lse = array_new(&b, PTB_F32, 1);
        array_set(lse, 0, lses[i][0]), array_set(part_lse, 0, lses[i][1]);
        double top = fmax(lses[i][0], lses[i][1]), wanted[4], sum = 0;
        for (size_t c = 0; c < 4; c++) {
            merged m = merge_of(array_at(out, c), lses[i][0] - top, array_at(part, c), lses[i][1] - top);
            wanted[c] = m.out, sum = m.lse + top;
        }
        ptb_merge args = {.out = out.data,
                          .lse = lse.data,
                          .part = part.data,
                          .part_lse = part_lse.data,
                          .batch = 1,
                          .length = 1,
                          .heads = 1,
                          .head_width = 4,
                          .type = PTB_F32};
        finish(f, f->kernels->merge(f->stream, &args));
        assert_close("merged", out, wanted, 0);
        assert_true(fabs(array_at(lse, 0) - sum) < 1e-3);
    }
    bag_release(&b);
}

// ---- permute

static void check_permute(fixture *f, ptb_permute a, size_t elements)
{
    bag b = {.f = f};
    array in = array_numbers(&b, a.in_type, elements, 1), out = array_numbers(&b, a.out_type, elements, 2);
    double *wanted = array_doubles(&b, out);
    int64_t in_first = 0, out_first = 0; // where negative strides begin
    for (int d = 0; d < 3; d++) {
        in_first -= a.in_stride[d] < 0 ? a.in_stride[d] * (int64_t)(a.count[d] - 1) : 0;
        out_first -= a.out_stride[d] < 0 ? a.out_stride[d] * (int64_t)(a.count[d] - 1) : 0;
    }
    for (size_t i = 0; i < a.count[0]; i++)
        for (size_t j = 0; j < a.count[1]; j++)
            for (size_t k = 0; k < a.count[2]; k++)
                for (size_t c = 0; c < a.width; c++) {
                    int64_t place[3] = {(int64_t)i, (int64_t)j, (int64_t)k};
                    int64_t to = out_first + (int64_t)c, from = in_first + (int64_t)c;
                    for (int d = 0; d < 3; d++)
                        to += place[d] * a.out_stride[d], from += place[d] * a.in_stride[d];
                    assert_true((size_t)to < elements && (size_t)from < elements);
                    double value = array_at(in, (size_t)from);
                    wanted[to] = a.accumulate ? wanted[to] + value : value;
                }
    a.in = (char *)in.data + in_first * (int64_t)ptb_dtype_size(a.in_type);
    a.out = (char *)out.data + out_first * (int64_t)ptb_dtype_size(a.out_type);
    finish(f, f->kernels->permute(f->stream, &a));
    for (size_t i = 0; i < elements; i++) { // rounded once
        double got = array_at(out, i), unit = a.out_type == PTB_BF16  ? 0x1p-8
                                              : a.out_type == PTB_F16 ? 0x1p-11
                                                                      : 0x1p-23;
        assert_true(fabs(got - wanted[i]) <= unit * fmax(fabs(wanted[i]), 1e-4));
    }
    bag_release(&b);
}

// Rows of several widths transposed, reversed, repeated, in all pairs of types.
static void test_permute(void **state)
{
    static const size_t widths[] = {1, 3, 8, 16, 33, 5000};
    for (size_t w = 0; w < LENGTH(widths); w++)
        for (size_t t = 0; t < 9; t++)
            for (int add = 0; add < 2; add++) {
                int64_t n = (int64_t)widths[w];
                ptb_permute a = {.out_stride = {n, 2 * n, 6 * n},
                                 .in_stride = {12 * n, 4 * n, n},
                                 .count = {2, 3, 4},
                                 .width = widths[w],
                                 .out_type = compute_types[t / 3],
                                 .in_type = compute_types[t % 3],
                                 .accumulate = add};
                check_permute(*state, a, 24 * widths[w]);
                a.in_stride[1] = -4 * n; // reversed
                a.out_stride[0] = -n;
                check_permute(*state, a, 24 * widths[w]);
                a.in_stride[0] = 0; // repeated
                check_permute(*state, a, 24 * widths[w]);
            }
}

// Between rows that are wider than what is moved, and of numbers that are no compute type.
static void test_permute_parts(void **state)
{
    ptb_permute a = {.out_stride = {70, 5, 25},
                     .in_stride = {66, 33, 11},
                     .count = {2, 2, 3},
                     .width = 5,
                     .out_type = PTB_F32,
                     .in_type = PTB_F32};
    check_permute(*state, a, 160);
    a.out_type = a.in_type = PTB_I32;
    check_permute(*state, a, 160);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_merge, kernels_setup, kernels_teardown),
        cmocka_unit_test_setup_teardown(test_merge_large, kernels_setup, kernels_teardown),
        cmocka_unit_test_setup_teardown(test_permute, kernels_setup, kernels_teardown),
        cmocka_unit_test_setup_teardown(test_permute_parts, kernels_setup, kernels_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
