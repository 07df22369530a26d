// Every host kernel against plain loops or differentiated scalar programs in double precision, at odd sizes.
#include "core/random.h"
#include "strategies/transformer/kernels_host.h"
#include "tests/unit/tape.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

typedef struct {
    ptb_device *device;
    ptb_stream *stream;
    const ptb_kernels *kernels;
} fixture;

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    assert_int_equal(ptb_device_open("host", 0, &f->device), PTB_OK);
    assert_int_equal(ptb_stream_new(f->device, PTB_STREAM_WORKER, 1, &f->stream), PTB_OK);
    f->kernels = (const ptb_kernels *)ptb_registry_find(PTB_KIND_KERNELS, "host");
    assert_non_null(f->kernels);
    assert_int_equal(f->kernels->set_threads(f->stream, 1), PTB_OK);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    ptb_stream_free(f->stream);
    ptb_device_close(f->device);
    free(f);
    return 0;
}

// Heap array of normal numbers; `which` makes arrays of a test differ.
static float *numbers(size_t count, uint64_t which)
{
    float *a = malloc((count + 1) * sizeof *a);
    for (size_t i = 0; i < count; i++)
        a[i] = (float)ptb_random_normal(7, which, i);
    return a;
}

static float *copy_of(const float *a, size_t count)
{
    float *b = malloc(count * sizeof *b);
    memcpy(b, a, count * sizeof *b);
    return b;
}

static void finish(fixture *f, ptb_status enqueued)
{
    assert_int_equal(enqueued, PTB_OK);
    assert_int_equal(ptb_stream_sync(f->stream), PTB_OK);
}

static void assert_near(const float *got, const double *wanted, size_t count, double limit)
{
    double distance = tape_distance(got, wanted, count);
    if (!(distance < limit))
        fail_msg("relative distance %g over %zu elements", distance, count);
}

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
    ptb_matmul args = {.out = out,
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
    ptb_matmul_input_gradient input = {d_in, d_out, weight, m, n, k, accumulate};
    ptb_matmul_weight_gradient weights = {d_weight, d_bias, d_out, in, m, n, k, accumulate};
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

static void leaves(tape *t, const float *values, size_t count, var *out)
{
    for (size_t i = 0; i < count; i++)
        out[i] = tape_leaf(t, values[i]);
}

// root = sum of weight . out, whose gradient to out is weight
static var weighted_sum(tape *t, const var *out, const float *weight, size_t count)
{
    var sum = tape_leaf(t, 0);
    for (size_t i = 0; i < count; i++)
        sum = tape_axpy(t, weight[i], out[i], sum);
    return sum;
}

// The gradients (plus `added` where given) of `count` variables against got.
static void assert_gradients(const tape *t, const var *vars, const float *added, const float *got,
                             size_t count)
{
    double *wanted = malloc(count * sizeof *wanted);
    for (size_t i = 0; i < count; i++)
        wanted[i] = t->nodes[vars[i]].gradient + (added ? added[i] : 0);
    assert_near(got, wanted, count, 2e-6);
    free(wanted);
}

static void assert_values(const tape *t, const var *vars, const float *got, size_t count)
{
    double *wanted = malloc(count * sizeof *wanted);
    for (size_t i = 0; i < count; i++)
        wanted[i] = t->nodes[vars[i]].value;
    assert_near(got, wanted, count, 1e-6);
    free(wanted);
}

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
    ptb_layernorm forward = {out, mean, rstd, in, gain, bias, rows, width};
    ptb_layernorm_gradient backward = {.d_in = d_in,
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
    finish(f, f->kernels->layernorm(f->stream, &forward));
    finish(f, f->kernels->layernorm_gradient(f->stream, &backward));
    assert_values(&t, y, out, n);
    assert_gradients(&t, x, residual, d_in, n);
    assert_gradients(&t, g, accumulate ? gain0 : NULL, d_gain, width);
    assert_gradients(&t, b, accumulate ? bias0 : NULL, d_bias, width);
    backward.residual = NULL;
    finish(f, f->kernels->layernorm_gradient(f->stream, &backward));
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
    ptb_gelu forward = {out, in, N};
    ptb_gelu_gradient backward = {d_in, d_in, in, N};
    finish(f, f->kernels->gelu(f->stream, &forward));
    finish(f, f->kernels->gelu_gradient(f->stream, &backward));
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
    finish(f, f->kernels->add(f->stream, &(ptb_add){out, a, b, N}));
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
    ptb_embedding forward = {out, tokens, table, positions, ROWS, SEQUENCE, WIDTH, OFFSET};
    ptb_embedding_gradient backward = {.d_table = d_table,
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
    ptb_cross_entropy args = {logits, targets, losses, &loss, ROWS, VOCABULARY, scale, true};
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
        ptb_adamw args = {parameter, m, v, g, N, 0.01f, 0.9f, 0.95f, 1e-8f, 0.3f, (float)c1, (float)c2};
        finish(f, f->kernels->adamw(f->stream, &args));
        free(g);
    }
    assert_near(parameter, p, N, 1e-6);
    assert_near(m, mean, N, 1e-6);
    assert_near(v, square, N, 1e-6);
    free(parameter), free(m), free(v), free(p), free(mean), free(square);
}

typedef struct {
    ptb_attention_shape shape;
    size_t queries, keys, outs; // elements
    float *query, *key, *value, *d_out, *out, *lse;
} attention_case;

static void attention_init(attention_case *a, ptb_attention_shape shape, size_t padding)
{
    size_t width = shape.heads * shape.head_width;
    shape.query_stride = width + padding;
    shape.key_stride = width + 2 * padding;
    shape.scale = 0.3f;
    *a = (attention_case){.shape = shape};
    a->queries = shape.batch * shape.query_length * shape.query_stride;
    a->keys = shape.batch * shape.key_length * shape.key_stride;
    a->outs = shape.batch * shape.query_length * width;
    a->query = numbers(a->queries, 1);
    a->key = numbers(a->keys, 2);
    a->value = numbers(a->keys, 3);
    a->d_out = numbers(a->outs, 4);
    a->out = numbers(a->outs, 5);
    a->lse = numbers(shape.batch * shape.heads * shape.query_length, 6);
}

static void attention_release(attention_case *a)
{
    free(a->query), free(a->key), free(a->value), free(a->d_out), free(a->out), free(a->lse);
}

static void run_attention(fixture *f, attention_case *a, float *out, float *lse)
{
    a->shape.workspace = malloc(f->kernels->attention_workspace(&a->shape, 1));
    ptb_attention args = {a->shape, out, lse, a->query, a->key, a->value};
    finish(f, f->kernels->attention(f->stream, &args));
    free(a->shape.workspace);
}

static size_t seen_by(const ptb_attention_shape *s, size_t row)
{
    int64_t seen = s->causal ? s->query_offset + (int64_t)row - s->key_offset + 1 : (int64_t)s->key_length;
    return seen < 0 ? 0 : seen > (int64_t)s->key_length ? s->key_length : (size_t)seen;
}

// Compares out and lse with a tape of the whole operation and leaves the tape differentiated.
static void attention_tape(const attention_case *a, tape *t, var *query, var *key, var *value)
{
    const ptb_attention_shape *s = &a->shape;
    size_t width = s->heads * s->head_width, at = 0;
    var *out = malloc(a->outs * sizeof *out);
    leaves(t, a->query, a->queries, query);
    leaves(t, a->key, a->keys, key);
    leaves(t, a->value, a->keys, value);
    for (size_t b = 0; b < s->batch; b++)
        for (size_t h = 0; h < s->heads; h++)
            for (size_t i = 0; i < s->query_length; i++, at++) {
                size_t k = b * s->key_length * s->key_stride + h * s->head_width, seen = seen_by(s, i);
                var lse =
                    tape_attend(t, query + (b * s->query_length + i) * s->query_stride + h * s->head_width,
                                key + k, value + k, seen, s->key_stride, s->head_width, s->scale,
                                out + (b * s->query_length + i) * width + h * s->head_width);
                if (seen)
                    assert_true(fabs(tape_value(t, lse) - a->lse[at]) < 1e-5);
                else
                    assert_true(a->lse[at] == -INFINITY);
                for (size_t c = 0; !seen && c < s->head_width; c++) // the tape divides 0 by 0 there
                    out[(b * s->query_length + i) * width + h * s->head_width + c] = tape_leaf(t, 0);
            }
    assert_values(t, out, a->out, a->outs);
    tape_backward(t, weighted_sum(t, out, a->d_out, a->outs));
    free(out);
}

static void check_attention(fixture *f, ptb_attention_shape shape, bool accumulate)
{
    attention_case a;
    attention_init(&a, shape, 5);
    run_attention(f, &a, a.out, a.lse);
    tape t = {0};
    var *query = malloc(a.queries * sizeof *query), *key = malloc(a.keys * sizeof *key);
    var *value = malloc(a.keys * sizeof *value);
    attention_tape(&a, &t, query, key, value);
    float *d_query = calloc(a.queries, sizeof *d_query), *d_key = calloc(a.keys, sizeof *d_key);
    float *d_value = calloc(a.keys, sizeof *d_value);
    float *before = NULL;
    if (accumulate) {
        before = numbers(a.queries, 8);
        memcpy(d_query, before, a.queries * sizeof *before);
    }
    a.shape.workspace = malloc(f->kernels->attention_workspace(&a.shape, 1));
    ptb_attention_gradient args = {a.shape, d_query, d_key, d_value, a.d_out,   a.out,
                                   a.lse,   a.query, a.key, a.value, accumulate};
    finish(f, f->kernels->attention_gradient(f->stream, &args));
    assert_gradients(&t, query, before, d_query, a.queries);
    assert_gradients(&t, key, NULL, d_key, a.keys);
    assert_gradients(&t, value, NULL, d_value, a.keys);
    free(a.shape.workspace), free(before), free(d_query), free(d_key), free(d_value), free(query), free(key);
    free(value);
    tape_release(&t);
    attention_release(&a);
}

static void test_attention(void **state)
{
    static const ptb_attention_shape shapes[] = {
        {.batch = 1, .heads = 1, .head_width = 1, .query_length = 1, .key_length = 1, .causal = true},
        {.batch = 2, .heads = 3, .head_width = 5, .query_length = 7, .key_length = 7, .causal = true},
        {.batch = 1, .heads = 2, .head_width = 4, .query_length = 131, .key_length = 131, .causal = true},
        {.batch = 1, .heads = 1, .head_width = 3, .query_length = 9, .key_length = 70},
        // a later part of the sequence over an earlier one, and over a part that begins inside it
        {.batch = 1,
         .heads = 1,
         .head_width = 3,
         .query_length = 66,
         .key_length = 20,
         .causal = true,
         .query_offset = 10,
         .key_offset = 0},
        {.batch = 1,
         .heads = 2,
         .head_width = 3,
         .query_length = 70,
         .key_length = 20,
         .causal = true,
         .query_offset = 0,
         .key_offset = 66},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int accumulate = 0; accumulate < 2; accumulate++)
            check_attention(*state, shapes[i], accumulate);
}

// Attention over two halves of the keys, merged by their log-sum-exp, is attention over all of them.
static void test_attention_parts(void **state)
{
    fixture *f = *state;
    enum { LENGTH = 90, FIRST = 41, WIDTH = 6 };
    ptb_attention_shape shape = {.batch = 1,
                                 .heads = 1,
                                 .head_width = WIDTH,
                                 .query_length = LENGTH,
                                 .key_length = LENGTH,
                                 .causal = true};
    attention_case a;
    attention_init(&a, shape, 0);
    run_attention(f, &a, a.out, a.lse);
    float *out[2], *lse[2];
    for (int part = 0; part < 2; part++) {
        attention_case p = a;
        out[part] = numbers(a.outs, 9);
        lse[part] = numbers(LENGTH, 9);
        p.shape.key_length = part ? LENGTH - FIRST : FIRST;
        p.shape.key_offset = part ? FIRST : 0;
        p.key += part ? FIRST * WIDTH : 0;
        p.value += part ? FIRST * WIDTH : 0;
        run_attention(f, &p, out[part], lse[part]);
    }
    for (size_t i = 0; i < LENGTH; i++)
        for (size_t c = 0; c < WIDTH; c++) {
            double w0 = exp(lse[0][i] - a.lse[i]), w1 = exp(lse[1][i] - a.lse[i]);
            double merged = w0 * out[0][i * WIDTH + c] + w1 * out[1][i * WIDTH + c];
            assert_true(fabs(merged - a.out[i * WIDTH + c]) < 1e-5);
        }
    for (int part = 0; part < 2; part++)
        free(out[part]), free(lse[part]);
    attention_release(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exp),
        cmocka_unit_test_setup_teardown(test_matmul, setup, teardown),
        cmocka_unit_test_setup_teardown(test_matmul_gradients, setup, teardown),
        cmocka_unit_test_setup_teardown(test_layernorm, setup, teardown),
        cmocka_unit_test_setup_teardown(test_gelu, setup, teardown),
        cmocka_unit_test_setup_teardown(test_add, setup, teardown),
        cmocka_unit_test_setup_teardown(test_embedding, setup, teardown),
        cmocka_unit_test_setup_teardown(test_cross_entropy, setup, teardown),
        cmocka_unit_test_setup_teardown(test_adamw, setup, teardown),
        cmocka_unit_test_setup_teardown(test_attention, setup, teardown),
        cmocka_unit_test_setup_teardown(test_attention_parts, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
