// The products of linear layers against loops in double precision, at odd sizes.
#include "tests/unit/kernels_fixture.h"

static void check_matmul(fixture *f, size_t m, size_t n, size_t k, bool with_bias, bool with_residual)
{
    float *in = numbers(m * k, 1), *weight = numbers(n * k, 2), *bias = numbers(n, 3),
          *residual = numbers(m * n, 4);
    float *out = numbers(m * n, 5);
    double *wanted = calloc(m * n, sizeof *wanted);
    for (size_t r = 0; r < m; r++)
        for (size_t c = 0; c < n; c++) {
            double sum = (with_bias ? bias[c] : 0) + (with_residual ? residual[r * n + c] : 0);
            for (size_t i = 0; i < k; i++)
                sum += (double)in[r * k + i] * weight[c * k + i];
            wanted[r * n + c] = sum;
        }
    ptb_matmul args = {.type = PTB_F32,
                       .out = out,
                       .in = in,
                       .weight = weight,
                       .bias = with_bias ? bias : NULL,
                       .residual = with_residual ? residual : NULL,
                       .rows = m,
                       .columns = n,
                       .inner = k};
    finish(f, f->kernels->matmul(f->stream, &args));
    assert_near(out, wanted, m * n, 1e-6);
    if (with_residual) { // in place
        memcpy(out, residual, m * n * sizeof *out);
        args.residual = out;
        finish(f, f->kernels->matmul(f->stream, &args));
        assert_near(out, wanted, m * n, 1e-6);
    }
    free(in), free(weight), free(bias), free(residual), free(out), free(wanted);
}

static void test_matmul(void **state)
{
    static const size_t sizes[][3] = {{1, 1, 1}, {3, 5, 7}, {17, 33, 65}, {64, 96, 48}, {129, 31, 100}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int options = 0; options < 4; options++)
            check_matmul(*state, sizes[i][0], sizes[i][1], sizes[i][2], options & 1, options & 2);
}

static void check_matmul_gradients(fixture *f, size_t m, size_t n, size_t k, bool accumulate)
{
    float *in = numbers(m * k, 1), *weight = numbers(n * k, 2), *d_out = numbers(m * n, 3);
    float *d_in = numbers(m * k, 4), *d_weight = numbers(n * k, 5), *d_bias = numbers(n, 6);
    double *x = calloc(m * k, sizeof *x), *w = calloc(n * k, sizeof *w), *b = calloc(n, sizeof *b);
    for (size_t i = 0; accumulate && i < m * k; i++)
        x[i] = d_in[i];
    for (size_t i = 0; accumulate && i < n * k; i++)
        w[i] = d_weight[i];
    for (size_t i = 0; accumulate && i < n; i++)
        b[i] = d_bias[i];
    for (size_t r = 0; r < m; r++)
        for (size_t c = 0; c < n; c++) {
            double d = d_out[r * n + c];
            b[c] += d;
            for (size_t i = 0; i < k; i++) {
                x[r * k + i] += d * weight[c * k + i];
                w[c * k + i] += d * in[r * k + i];
            }
        }
    ptb_matmul_input_gradient input = {.d_in = d_in,
                                       .d_out = d_out,
                                       .weight = weight,
                                       .rows = m,
                                       .columns = n,
                                       .inner = k,
                                       .type = PTB_F32,
                                       .accumulate = accumulate};
    ptb_matmul_weight_gradient weights = {.d_weight = d_weight,
                                          .d_bias = d_bias,
                                          .d_out = d_out,
                                          .in = in,
                                          .rows = m,
                                          .columns = n,
                                          .inner = k,
                                          .type = PTB_F32,
                                          .accumulate = accumulate};
    finish(f, f->kernels->matmul_input_gradient(f->stream, &input));
    finish(f, f->kernels->matmul_weight_gradient(f->stream, &weights));
    assert_near(d_in, x, m * k, 1e-6);
    assert_near(d_weight, w, n * k, 1e-6);
    assert_near(d_bias, b, n, 1e-6);
    free(in), free(weight), free(d_out), free(d_in), free(d_weight), free(d_bias), free(x), free(w), free(b);
}

static void test_matmul_gradients(void **state)
{
    static const size_t sizes[][3] = {{1, 1, 1}, {3, 5, 7}, {33, 130, 17}, {64, 64, 64}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int accumulate = 0; accumulate < 2; accumulate++)
            check_matmul_gradients(*state, sizes[i][0], sizes[i][1], sizes[i][2], accumulate);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_matmul, kernels_setup, kernels_teardown),
        cmocka_unit_test_setup_teardown(test_matmul_gradients, kernels_setup, kernels_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
