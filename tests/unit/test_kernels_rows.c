// Row and elementwise kernels against loops or differentiated scalar programs in double precision.
#include "tests/unit/kernels_fixture.h"

static void check_layernorm(fixture *f, size_t rows, size_t width, bool accumulate)
{
    size_t n = rows * width;
    float *in = numbers(n, 1), *gain = numbers(width, 2), *bias = numbers(width, 3), *d_out = numbers(n, 4);
    float *residual = numbers(n, 5), *gain0 = numbers(width, 6), *bias0 = numbers(width, 7);
    float *out = numbers(n, 8), *mean = numbers(rows, 9), *rstd = numbers(rows, 9);
    float *d_in = copy_of(residual, n), *d_gain = copy_of(gain0, width), *d_bias = copy_of(bias0, width);
    tape t = {0};
    var *x = malloc(n * sizeof *x), *y = malloc(n * sizeof *y), *g = malloc(width * sizeof *g);
    var *b = malloc(width * sizeof *b);
    leaves(&t, in, n, x);
    leaves(&t, gain, width, g);
    leaves(&t, bias, width, b);
    for (size_t r = 0; r < rows; r++)
        tape_layernorm(&t, x + r * width, g, b, width, y + r * width);
    tape_backward(&t, weighted_sum(&t, y, d_out, n));
    ptb_norm forward = {.out = out,
                        .mean = mean,
                        .rstd = rstd,
                        .in = in,
                        .gain = gain,
                        .bias = bias,
                        .rows = rows,
                        .width = width,
                        .epsilon = 1e-5f,
                        .type = PTB_F32};
    ptb_norm_gradient backward = {.type = PTB_F32,
                                  .d_in = d_in,
                                  .d_gain = d_gain,
                                  .d_bias = d_bias,
                                  .d_out = d_out,
                                  .in = in,
                                  .mean = mean,
                                  .rstd = rstd,
                                  .gain = gain,
                                  .residual = d_in,
                                  .rows = rows,
                                  .width = width,
                                  .accumulate = accumulate};
    finish(f, f->kernels->norm(f->stream, &forward));
    finish(f, f->kernels->norm_gradient(f->stream, &backward));
    assert_values(&t, y, out, n);
    assert_gradients(&t, x, residual, d_in, n);
    assert_gradients(&t, g, accumulate ? gain0 : NULL, d_gain, width);
    assert_gradients(&t, b, accumulate ? bias0 : NULL, d_bias, width);
    backward.residual = NULL;
    finish(f, f->kernels->norm_gradient(f->stream, &backward));
    assert_gradients(&t, x, NULL, d_in, n);
    free(in), free(gain), free(bias), free(d_out), free(residual), free(gain0), free(bias0), free(out),
        free(mean);
    free(rstd), free(d_in), free(d_gain), free(d_bias), free(x), free(y), free(g), free(b);
    tape_release(&t);
}

static void test_layernorm(void **state)
{
    static const size_t sizes[][2] = {{1, 3}, {3, 5}, {7, 33}, {4, 130}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int accumulate = 0; accumulate < 2; accumulate++)
            check_layernorm(*state, sizes[i][0], sizes[i][1], accumulate);
}

static void test_gelu(void **state)
{
    fixture *f = *state;
    enum { N = 5001 };
    float *in = numbers(N, 1), *d_out = numbers(N, 2), *out = numbers(N, 3), *d_in = copy_of(d_out, N);
    for (size_t i = 0; i < N; i++)
        in[i] *= 4; // far tails too
    in[0] = -30, in[1] = 30, in[2] = 0;
    tape t = {0};
    var x[N], y[N];
    leaves(&t, in, N, x);
    for (size_t i = 0; i < N; i++)
        y[i] = tape_gelu(&t, x[i]);
    tape_backward(&t, weighted_sum(&t, y, d_out, N));
    ptb_activation forward = {out, in, 1, N, PTB_GELU, PTB_F32};
    ptb_activation_gradient backward = {d_in, d_in, in, 1, N, PTB_GELU, PTB_F32};
    finish(f, f->kernels->activation(f->stream, &forward));
    finish(f, f->kernels->activation_gradient(f->stream, &backward));
    for (size_t i = 0; i < N; i++) // each, not only the norm
        assert_true(fabs(out[i] - tape_value(&t, y[i])) <= 1e-6 * fmax(1, fabs(tape_value(&t, y[i]))));
    assert_gradients(&t, x, NULL, d_in, N);
    free(in), free(d_out), free(out), free(d_in);
    tape_release(&t);
}

static void test_exp(void **state)
{
    (void)state;
    double worst = 0;
    for (double x = -87; x <= 88; x += 0.00137) {
        double wanted = exp((float)x);
        worst = fmax(worst, fabs(ptb_host_exp((float)x) / wanted - 1));
    }
    assert_true(worst < 3e-7);
    assert_true(ptb_host_exp(-1000) < 2e-38f && ptb_host_exp(0) == 1 && isnan(ptb_host_exp(NAN)));
}

static void test_add(void **state)
{
    fixture *f = *state;
    enum { N = 4099 };
    float *a = numbers(N, 1), *b = numbers(N, 2), *out = numbers(N, 3);
    finish(f, f->kernels->add(f->stream, &(ptb_add){out, a, b, N, PTB_F32}));
    for (size_t i = 0; i < N; i++)
        assert_true(out[i] == a[i] + b[i]);
    free(a), free(b), free(out);
}

static void test_embedding(void **state)
{
    fixture *f = *state;
    enum { VOCABULARY = 5, POSITIONS = 9, SEQUENCE = 4, ROWS = 8, WIDTH = 67, OFFSET = 3 };
    static const int32_t tokens[ROWS] = {4, 0, 1, 4, 4, 2, 0, 0}; // 3 never
    float *table = numbers(VOCABULARY * WIDTH, 1), *positions = numbers(POSITIONS * WIDTH, 2);
    float *out = numbers(ROWS * WIDTH, 3), *d_out = numbers(ROWS * WIDTH, 4);
    float *d_table = numbers(VOCABULARY * WIDTH, 5), *d_positions = numbers(POSITIONS * WIDTH, 6);
    double table_wanted[VOCABULARY * WIDTH] = {0}, positions_wanted[POSITIONS * WIDTH] = {0};
    for (size_t i = 0; i < VOCABULARY * WIDTH; i++)
        table_wanted[i] = d_table[i]; // accumulates
    ptb_embedding forward = {.out = out,
                             .tokens = tokens,
                             .table = table,
                             .positions = positions,
                             .rows = ROWS,
                             .sequence = SEQUENCE,
                             .width = WIDTH,
                             .position_offset = OFFSET,
                             .type = PTB_F32};
    ptb_embedding_gradient backward = {.type = PTB_F32,
                                       .d_table = d_table,
                                       .d_positions = d_positions,
                                       .d_out = d_out,
                                       .tokens = tokens,
                                       .rows = ROWS,
                                       .sequence = SEQUENCE,
                                       .width = WIDTH,
                                       .vocabulary = VOCABULARY,
                                       .positions = POSITIONS,
                                       .position_offset = OFFSET,
                                       .accumulate_table = true};
    finish(f, f->kernels->embedding(f->stream, &forward));
    finish(f, f->kernels->embedding_gradient(f->stream, &backward));
    for (size_t r = 0; r < ROWS; r++)
        for (size_t c = 0; c < WIDTH; c++) {
            size_t p = (OFFSET + r % SEQUENCE) * WIDTH + c, v = (size_t)tokens[r] * WIDTH + c;
            assert_true(out[r * WIDTH + c] == table[v] + positions[p]);
            table_wanted[v] += d_out[r * WIDTH + c];
            positions_wanted[p] += d_out[r * WIDTH + c];
        }
    assert_near(d_table, table_wanted, VOCABULARY * WIDTH, 1e-6);
    assert_near(d_positions, positions_wanted, POSITIONS * WIDTH, 1e-6);
    free(table), free(positions), free(out), free(d_out), free(d_table), free(d_positions);
}

static void test_cross_entropy(void **state)
{
    fixture *f = *state;
    enum { ROWS = 6, VOCABULARY = 51 };
    static const int32_t targets[ROWS] = {0, 50, 7, 7, 25, 49};
    float *logits = numbers(ROWS * VOCABULARY, 1), losses[ROWS];
    double loss = 100, scale = 0.125;
    for (size_t v = 0; v < VOCABULARY; v++)
        logits[v] = logits[v] * 10 + 30; // far from zero: the maximum must be taken out
    tape t = {0};
    var x[ROWS * VOCABULARY], rows[ROWS], sum = tape_leaf(&t, 0);
    leaves(&t, logits, ROWS * VOCABULARY, x);
    for (size_t r = 0; r < ROWS; r++) {
        rows[r] = tape_cross_entropy(&t, x + r * VOCABULARY, VOCABULARY, (size_t)targets[r]);
        sum = tape_axpy(&t, scale, rows[r], sum);
    }
    tape_backward(&t, sum);
    ptb_cross_entropy args = {.logits = logits,
                              .d_logits = logits,
                              .targets = targets,
                              .losses = losses,
                              .loss = &loss,
                              .rows = ROWS,
                              .vocabulary = VOCABULARY,
                              .scale = scale,
                              .type = PTB_F32,
                              .accumulate = true};
    finish(f, f->kernels->cross_entropy(f->stream, &args));
    assert_values(&t, rows, losses, ROWS);
    assert_true(fabs(loss - 100 - tape_value(&t, sum)) < 1e-5);
    assert_gradients(&t, x, NULL, logits, ROWS * VOCABULARY);
    free(logits);
    tape_release(&t);
}

static void test_adamw(void **state)
{
    fixture *f = *state;
    enum { N = 5003, STEPS = 4 };
    float *parameter = numbers(N, 1), *m = calloc(N, sizeof *m), *v = calloc(N, sizeof *v);
    double *p = malloc(N * sizeof *p), *mean = calloc(N, sizeof *mean), *square = calloc(N, sizeof *square);
    for (size_t i = 0; i < N; i++)
        p[i] = parameter[i];
    for (int step = 1; step <= STEPS; step++) {
        float *g = numbers(N, 10 + (uint64_t)step);
        g[3] = 0; // a parameter without gradient only decays
        double c1 = 1 - pow(0.9, step), c2 = 1 - pow(0.95, step);
        for (size_t i = 0; i < N; i++) {
            mean[i] = 0.9 * mean[i] + 0.1 * g[i];
            square[i] = 0.95 * square[i] + 0.05 * g[i] * g[i];
            p[i] -= 0.01 * (mean[i] / c1 / (sqrt(square[i] / c2) + 1e-8) + 0.3 * p[i]);
        }
        ptb_update update = {.factor = 1, .beta1_power = 1 - c1, .beta2_power = 1 - c2};
        ptb_adamw args = {.parameter = parameter,
                          .m = m,
                          .v = v,
                          .gradient = g,
                          .update = &update,
                          .count = N,
                          .rate = 0.01f,
                          .beta1 = 0.9f,
                          .beta2 = 0.95f,
                          .epsilon = 1e-8f,
                          .decay = 0.3f,
                          .type = PTB_F32};
        finish(f, f->kernels->adamw(f->stream, &args));
        free(g);
    }
    assert_near(parameter, p, N, 1e-6);
    assert_near(m, mean, N, 1e-6);
    assert_near(v, square, N, 1e-6);
    free(parameter), free(m), free(v), free(p), free(mean), free(square);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exp),
        cmocka_unit_test_setup_teardown(test_layernorm, kernels_setup, kernels_teardown),
        cmocka_unit_test_setup_teardown(test_gelu, kernels_setup, kernels_teardown),
        cmocka_unit_test_setup_teardown(test_add, kernels_setup, kernels_teardown),
        cmocka_unit_test_setup_teardown(test_embedding, kernels_setup, kernels_teardown),
        cmocka_unit_test_setup_teardown(test_cross_entropy, kernels_setup, kernels_teardown),
        cmocka_unit_test_setup_teardown(test_adamw, kernels_setup, kernels_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
