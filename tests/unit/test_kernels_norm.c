// LayerNorm and RMSNorm, forward and backward, against loops in double precision and central differences.
#include "tests/unit/kernels_rows.h"

typedef enum { LAYERNORM, LAYERNORM_NO_BIAS, RMSNORM, RMSNORM_BIAS, KINDS } norm_kind;
static const float epsilon = 1e-5f;

typedef struct {
    norm_kind kind;
    size_t rows, width;
    size_t first, end; // rows that the objective sums
    double *in, *gain, *bias, *weight;
    size_t column;       // that objective_of_column sums
    double *mean, *rstd; /* [rows] of the rows as they are */
} norm_reference;

static bool has_mean(norm_kind kind)
{
    return kind == LAYERNORM || kind == LAYERNORM_NO_BIAS;
}

static bool has_bias(norm_kind kind)
{
    return kind == LAYERNORM || kind == RMSNORM_BIAS;
}

static void reference_row(const norm_reference *n, size_t r, double *mean, double *rstd, double *out)
{
    const double *in = n->in + r * n->width;
    double sum = 0, squares = 0, width = (double)n->width;
    for (size_t c = 0; c < n->width; c++)
        sum += in[c];
    *mean = has_mean(n->kind) ? sum / width : 0;
    for (size_t c = 0; c < n->width; c++)
        squares += (in[c] - *mean) * (in[c] - *mean);
    *rstd = 1 / sqrt(squares / width + epsilon);
    for (size_t c = 0; c < n->width; c++)
        out[c] = (in[c] - *mean) * *rstd * n->gain[c] + (has_bias(n->kind) ? n->bias[c] : 0);
}

// Sum of weight * out.
static double objective(void *context)
{
    const norm_reference *n = context;
    double sum = 0, mean, rstd, out[4100];
    assert_true(n->width <= LENGTH(out));
    for (size_t r = n->first; r < n->end; r++) {
        reference_row(n, r, &mean, &rstd, out);
        for (size_t c = 0; c < n->width; c++)
            sum += n->weight[r * n->width + c] * out[c];
    }
    return sum;
}

// The same of column n->column alone: no other depends on its gain and bias.
static double objective_of_column(void *context)
{
    const norm_reference *n = context;
    double sum = 0;
    for (size_t r = 0; r < n->rows; r++) {
        size_t at = r * n->width + n->column;
        double x = (n->in[at] - n->mean[r]) * n->rstd[r];
        sum += n->weight[at] * (x * n->gain[n->column] + (has_bias(n->kind) ? n->bias[n->column] : 0));
    }
    return sum;
}

// Everything that a call reads and writes.
typedef struct {
    array in, gain, bias, out, mean, rstd;
    array d_out, residual, d_in, d_gain, d_bias;
} norm_arrays;

static norm_arrays make_arrays(bag *b, ptb_dtype type, size_t rows, size_t width)
{
    size_t n = rows * width;
    return (norm_arrays){
        .in = array_numbers(b, type, n, 1),
        .gain = array_numbers(b, type, width, 2),
        .bias = array_numbers(b, type, width, 3),
        .out = array_new(b, type, n),
        .mean = array_new(b, PTB_F32, rows),
        .rstd = array_new(b, PTB_F32, rows),
        .d_out = array_numbers(b, type, n, 4),
        .residual = array_numbers(b, type, n, 5),
        .d_in = array_new(b, type, n),
        .d_gain = array_numbers(b, PTB_F32, width, 6),
        .d_bias = array_numbers(b, PTB_F32, width, 7),
    };
}

static void run_forward(fixture *f, norm_arrays *a, norm_kind kind, size_t rows, size_t width)
{
    ptb_norm forward = {.out = a->out.data,
                        .mean = has_mean(kind) ? a->mean.data : NULL,
                        .rstd = a->rstd.data,
                        .in = a->in.data,
                        .gain = a->gain.data,
                        .bias = has_bias(kind) ? a->bias.data : NULL,
                        .rows = rows,
                        .width = width,
                        .epsilon = epsilon,
                        .type = a->in.type};
    finish(f, f->kernels->norm(f->stream, &forward));
}

static void run_backward(fixture *f, norm_arrays *a, norm_kind kind, size_t rows, size_t width, bool residual,
                         bool accumulate)
{
    ptb_norm_gradient backward = {.d_in = a->d_in.data,
                                  .d_gain = a->d_gain.data,
                                  .d_bias = has_bias(kind) ? a->d_bias.data : NULL,
                                  .d_out = a->d_out.data,
                                  .in = a->in.data,
                                  .mean = has_mean(kind) ? a->mean.data : NULL,
                                  .rstd = a->rstd.data,
                                  .gain = a->gain.data,
                                  .residual = residual ? a->residual.data : NULL,
                                  .rows = rows,
                                  .width = width,
                                  .type = a->in.type,
                                  .accumulate = accumulate};
    finish(f, f->kernels->norm_gradient(f->stream, &backward));
}

// wanted += values
static void add_to(double *wanted, array values)
{
    for (size_t i = 0; i < values.count; i++)
        wanted[i] += array_at(values, i);
}

static void check_forward(bag *b, norm_reference *n, const norm_arrays *a)
{
    double *out = bag_bytes(b, n->rows * n->width * sizeof *out);
    double *mean = bag_bytes(b, n->rows * sizeof *mean), *rstd = bag_bytes(b, n->rows * sizeof *rstd);
    n->mean = mean, n->rstd = rstd;
    for (size_t r = 0; r < n->rows; r++)
        reference_row(n, r, &mean[r], &rstd[r], out + r * n->width);
    assert_close("norm", a->out, out, 1e-3);
    assert_close("rstd", a->rstd, rstd, 0);
    if (has_mean(n->kind))
        assert_close("mean", a->mean, mean, 1e-1);
}

// Root mean square of weight * gain * rstd: of the terms of d_in, which may cancel.
static double size_of_terms(const norm_reference *n, const norm_arrays *a)
{
    double sum = 0;
    for (size_t r = 0; r < n->rows; r++)
        for (size_t c = 0; c < n->width; c++) {
            double term = n->weight[r * n->width + c] * n->gain[c] * array_at(a->rstd, r);
            sum += term * term;
        }
    return sqrt(sum / (double)(n->rows * n->width));
}

static void check_backward(bag *b, norm_reference *n, const norm_arrays *a, array gain0, array bias0,
                           bool residual, bool accumulate)
{
    size_t width = n->width;
    double *d_in = bag_bytes(b, n->rows * width * sizeof *d_in);
    double *d_gain = bag_bytes(b, width * sizeof *d_gain), *d_bias = bag_bytes(b, width * sizeof *d_bias);
    for (size_t r = 0; r < n->rows; r++) {
        n->first = r, n->end = r + 1; // others do not depend on this row
        differences(objective, n, n->in + r * width, width, d_in + r * width);
    }
    for (n->column = 0; n->column < width; n->column++) {
        differences(objective_of_column, n, n->gain + n->column, 1, d_gain + n->column);
        differences(objective_of_column, n, n->bias + n->column, 1, d_bias + n->column);
    }
    if (residual)
        add_to(d_in, a->residual);
    if (accumulate)
        add_to(d_gain, gain0), add_to(d_bias, bias0);
    assert_close("d_in", a->d_in, d_in, size_of_terms(n, a));
    assert_close("d_gain", a->d_gain, d_gain, 1e-1);
    if (has_bias(n->kind))
        assert_close("d_bias", a->d_bias, d_bias, 1e-1);
    else
        assert_true(array_equal(a->d_bias, bias0)); // not touched
}

// in_place: d_in is d_out.
static void check_gradients(fixture *f, ptb_dtype type, norm_kind kind, size_t rows, size_t width,
                            bool in_place)
{
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        bool residual = accumulate;
        bag b = {.f = f};
        norm_arrays a = make_arrays(&b, type, rows, width);
        array gain0 = array_copy(&b, a.d_gain), bias0 = array_copy(&b, a.d_bias);
        norm_reference n = {.kind = kind,
                            .rows = rows,
                            .width = width,
                            .in = array_doubles(&b, a.in),
                            .gain = array_doubles(&b, a.gain),
                            .bias = array_doubles(&b, a.bias),
                            .weight = array_doubles(&b, a.d_out)};
        if (in_place)
            a.d_in = a.d_out;
        run_forward(f, &a, kind, rows, width);
        run_backward(f, &a, kind, rows, width, residual, accumulate);
        check_forward(&b, &n, &a);
        check_backward(&b, &n, &a, gain0, bias0, residual, accumulate);
        bag_release(&b);
    }
}

static void check_norm(fixture *f, ptb_dtype type, norm_kind kind, size_t rows, size_t width)
{
    check_gradients(f, type, kind, rows, width, false);
}

// Rows and columns enough for several groups of threads, whole ones and a rest, each way of summing over
// rows.
static void test_many_rows(void **state)
{
    static const size_t sizes[][2] = {{1100, 24}, {200, 136}, {9, 1032}};
    for (size_t t = 0; t < LENGTH(compute_types); t++)
        for (size_t i = 0; i < LENGTH(sizes); i++)
            for (int in_place = 0; in_place < 2; in_place++)
                check_gradients(*state, compute_types[t], i % 2 ? RMSNORM : LAYERNORM, sizes[i][0],
                                sizes[i][1], in_place);
}

static void test_against_differences(void **state)
{
    static const size_t sizes[][2] = {{1, 1}, {5, 1}, {1, 3}, {5, 3}, {5, 17}, {37, 33}, {1, 768}, {5, 768}};
    for (size_t t = 0; t < LENGTH(compute_types); t++)
        for (norm_kind kind = 0; kind < KINDS; kind++)
            for (size_t i = 0; i < LENGTH(sizes); i++)
                check_norm(*state, compute_types[t], kind, sizes[i][0], sizes[i][1]);
}

// Rows of which caches hold a few; the last ones do not fill a group.
static void test_wide(void **state)
{
    for (norm_kind kind = 0; kind < KINDS; kind++)
        check_norm(*state, PTB_F32, kind, 3, 2053);
    check_norm(*state, PTB_BF16, LAYERNORM, 3, 4099);
}

// d_in may be d_out, residual may be d_in, and both at once is the sum over d_out itself.
static void test_aliases(void **state)
{
    enum { ROWS = 6, WIDTH = 53 };
    fixture *f = *state;
    for (size_t t = 0; t < LENGTH(compute_types); t++) {
        bag b = {.f = f};
        norm_arrays a = make_arrays(&b, compute_types[t], ROWS, WIDTH);
        run_forward(f, &a, LAYERNORM, ROWS, WIDTH);
        run_backward(f, &a, LAYERNORM, ROWS, WIDTH, true, false);
        norm_arrays over_d_out = a, over_residual = a;
        over_d_out.d_in = over_d_out.d_out = array_copy(&b, a.d_out);
        over_residual.d_in = over_residual.residual = array_copy(&b, a.residual);
        over_d_out.d_gain = array_new(&b, PTB_F32, WIDTH), over_d_out.d_bias = array_new(&b, PTB_F32, WIDTH);
        run_backward(f, &over_d_out, LAYERNORM, ROWS, WIDTH, true, false);
        run_backward(f, &over_residual, LAYERNORM, ROWS, WIDTH, true, false);
        assert_true(array_equal(a.d_in, over_d_out.d_in) && array_equal(a.d_in, over_residual.d_in));
        assert_true(array_equal(a.d_gain, over_d_out.d_gain) && array_equal(a.d_bias, over_d_out.d_bias));
        bag_release(&b);
    }
}

// Rows without elements in common with a mean far from zero keep their variance.
static void test_large_mean(void **state)
{
    enum { WIDTH = 300 };
    fixture *f = *state;
    bag b = {.f = f};
    norm_arrays a = make_arrays(&b, PTB_F32, 1, WIDTH);
    for (size_t i = 0; i < WIDTH; i++)
        array_set(a.in, i, 1000 + 0.25 * (double)(i % 7)); // exact in f32
    norm_reference n = {.kind = LAYERNORM,
                        .rows = 1,
                        .width = WIDTH,
                        .in = array_doubles(&b, a.in),
                        .gain = array_doubles(&b, a.gain),
                        .bias = array_doubles(&b, a.bias)};
    run_forward(f, &a, LAYERNORM, 1, WIDTH);
    double out[WIDTH], mean, rstd;
    reference_row(&n, 0, &mean, &rstd, out);
    double error = fabs(array_at(a.rstd, 0) / rstd - 1);
    assert_true(error < 1e-5); // sums of squares minus a square would err by 1e-1
    bag_release(&b);
}

static size_t run_threads(bag *b, ptb_dtype type, array *results)
{
    enum { ROWS = 150, WIDTH = 257 };
    norm_arrays a = make_arrays(b, type, ROWS, WIDTH);
    run_forward(b->f, &a, LAYERNORM, ROWS, WIDTH);
    run_backward(b->f, &a, LAYERNORM, ROWS, WIDTH, true, true);
    array all[] = {a.out, a.mean, a.rstd, a.d_in, a.d_gain, a.d_bias};
    memcpy(results, all, sizeof all);
    return LENGTH(all);
}

static void test_threads(void **state)
{
    assert_same_for_threads(*state, run_threads);
}

// Rows [first, first + rows) of an array of rows of `width`.
static array some_rows(array all, size_t first, size_t rows, size_t width)
{
    array some = all;
    some.data = (char *)all.data + first * width * ptb_dtype_size(all.type);
    some.count = rows * width;
    return some;
}

// That begins with a cache line.
static array array_of_lines(bag *b, ptb_dtype type, size_t count)
{
    enum { LINE = 64 };
    array a = array_new(b, type, count + LINE);
    a.data = (char *)a.data + (-(uintptr_t)a.data & (LINE - 1));
    a.count = count;
    return a;
}

// Equal but for the rounding of few elements: products and sums may be fused in one call and not in the
// other.
static void assert_nearly(const char *what, array got, const double *wanted)
{
    double error = 0, norm = 0;
    for (size_t i = 0; i < got.count; i++) {
        error += pow(array_at(got, i) - wanted[i], 2);
        norm += pow(wanted[i], 2);
    }
    double limit = ldexp(1, -ptb_dtype_significant_bits(got.type));
    if (!(sqrt(error / norm) <= limit))
        fail_msg("%s in %s differs by %g of its norm", what, ptb_dtype_name(got.type), sqrt(error / norm));
}

static void assert_rows_alone(fixture *f, ptb_dtype type, size_t rows, size_t width)
{
    enum { ALONE = 5 };
    bag b = {.f = f};
    norm_arrays all = make_arrays(&b, type, rows, width), a = make_arrays(&b, type, ALONE, width);
    all.out = array_of_lines(&b, type, rows * width), all.d_in = array_of_lines(&b, type, rows * width);
    run_forward(f, &all, LAYERNORM, rows, width);
    run_backward(f, &all, LAYERNORM, rows, width, true, false);
    array out = a.out, mean = a.mean, rstd = a.rstd, d_in = a.d_in;
    for (size_t first = 0; first + ALONE <= rows; first += rows / 7) {
        a = all;
        a.in = some_rows(all.in, first, ALONE, width), a.d_out = some_rows(all.d_out, first, ALONE, width);
        a.residual = some_rows(all.residual, first, ALONE, width);
        a.out = out, a.mean = mean, a.rstd = rstd, a.d_in = d_in;
        run_forward(f, &a, LAYERNORM, ALONE, width);
        run_backward(f, &a, LAYERNORM, ALONE, width, true, false);
        assert_true(array_equal(out, some_rows(all.out, first, ALONE, width)));
        assert_true(array_equal(mean, some_rows(all.mean, first, ALONE, 1)));
        assert_nearly("d_in", some_rows(all.d_in, first, ALONE, width), array_doubles(&b, d_in));
    }
    bag_release(&b);
}

// Arrays so large that output goes past the caches: each row is what it is in a small call.
static void test_large(void **state)
{
    if (!test_on_host())
        skip(); // nothing of it on other devices
    for (size_t t = 0; t < LENGTH(compute_types); t++) {
        assert_rows_alone(*state, compute_types[t], 7950, 1056);
        assert_rows_alone(*state, compute_types[t], 1030, 8192);
    }
}

// No rows: the gradients of gain and bias are 0, or stay.
static void test_no_rows(void **state)
{
    enum { WIDTH = 20 };
    fixture *f = *state;
    bag b = {.f = f};
    norm_arrays a = make_arrays(&b, PTB_F32, 1, WIDTH);
    array gain0 = array_copy(&b, a.d_gain);
    static const double zeros[WIDTH];
    run_forward(f, &a, LAYERNORM, 0, WIDTH);
    run_backward(f, &a, LAYERNORM, 0, WIDTH, true, true);
    assert_true(array_equal(a.d_gain, gain0));
    run_backward(f, &a, LAYERNORM, 0, WIDTH, true, false);
    assert_close("d_gain", a.d_gain, zeros, 0);
    assert_close("d_bias", a.d_bias, zeros, 0);
    bag_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        KERNEL_TEST(test_against_differences),
        KERNEL_TEST(test_many_rows),
        KERNEL_TEST(test_wide),
        KERNEL_TEST(test_aliases),
        KERNEL_TEST(test_large_mean),
        KERNEL_TEST(test_threads),
        KERNEL_TEST(test_no_rows),
        KERNEL_TEST(test_large),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
