// Norms, activations and elementwise kernels for the benchmark `kernels`.
#include "strategies/kernels_bench.h"

#include "strategies/transformer/dropout.h"

#include <math.h>
#include <string.h>

static const char *const places[] = {"block", NULL};

static const char *always(const ptb_model_shape *shape, const char *place)
{
    (void)shape, (void)place;
    return NULL;
}

static double size_of(const ptb_kernel_call *c)
{
    return (double)ptb_dtype_size(c->type);
}

static size_t hidden(const ptb_kernel_call *c)
{
    return (size_t)c->shape->hidden;
}

static void describe_rows(ptb_kernel_call *c, size_t rows, size_t width)
{
    ptb_call_sizes(c, "%zu x %zu", rows, width);
}

// ---- norm

enum { OUT, IN, GAIN, BIAS, MEAN, RSTD, D_OUT, RESIDUAL, D_IN, D_GAIN, D_BIAS };
enum { SAMPLED_COLUMNS = 4 };

static bool is_rms(const ptb_kernel_call *c)
{
    return c->shape->norm == PTB_RMS_NORM;
}

static bool has_bias(const ptb_kernel_call *c)
{
    return !is_rms(c) && c->shape->biases;
}

static ptb_norm norm_call(ptb_kernel_call *c)
{
    return (ptb_norm){.out = ptb_call_output(c, OUT, c->type, c->rows * hidden(c)),
                      .mean = is_rms(c) ? NULL : ptb_call_output(c, MEAN, PTB_F32, c->rows),
                      .rstd = ptb_call_output(c, RSTD, PTB_F32, c->rows),
                      .in = ptb_call_filled(c, IN, c->type, c->rows * hidden(c), 1, 0.3),
                      .gain = ptb_call_filled(c, GAIN, c->type, hidden(c), 0.5, 1),
                      .bias = has_bias(c) ? ptb_call_filled(c, BIAS, c->type, hidden(c), 0.5, 0) : NULL,
                      .rows = c->rows,
                      .width = hidden(c),
                      .epsilon = (float)c->shape->epsilon,
                      .type = c->type};
}

static void prepare_norm(ptb_kernel_call *c)
{
    ptb_norm a = norm_call(c);
    memcpy(c->arguments, &a, sizeof a);
    c->bytes = 2 * (double)(a.rows * a.width) * size_of(c);
    describe_rows(c, a.rows, a.width);
}

// Mean (0 of RMSNorm) and 1 / deviation of a row of IN.
static void row_statistics(const ptb_kernel_call *c, size_t row, double *mean, double *rstd)
{
    size_t width = hidden(c);
    double sum = 0, squares = 0;
    for (size_t i = 0; i < width && !is_rms(c); i++)
        sum += ptb_call_value(c, IN, row * width + i);
    *mean = sum / (double)width;
    for (size_t i = 0; i < width; i++) {
        double x = ptb_call_value(c, IN, row * width + i) - *mean;
        squares += x * x;
    }
    *rstd = 1 / sqrt(squares / (double)width + (double)(float)c->shape->epsilon);
}

static void verify_norm(ptb_kernel_call *c, ptb_verdict *verdict)
{
    for (size_t k = 0; k < PTB_CALL_SAMPLES; k++) {
        size_t at = ptb_call_sample(k, c->rows * hidden(c)), row = at / hidden(c), column = at % hidden(c);
        double mean, rstd;
        row_statistics(c, row, &mean, &rstd);
        ptb_call_sum out = {0}, of_mean = {mean, 1}, of_rstd = {rstd, 0};
        ptb_call_add(&out, (ptb_call_value(c, IN, at) - mean) * rstd * ptb_call_value(c, GAIN, column));
        if (has_bias(c))
            ptb_call_add(&out, ptb_call_value(c, BIAS, column));
        ptb_call_expect(c, verdict, "out", OUT, at, out);
        ptb_call_expect(c, verdict, "rstd", RSTD, row, of_rstd);
        if (!is_rms(c))
            ptb_call_expect(c, verdict, "mean", MEAN, row, of_mean);
    }
}

const ptb_kernel_entry ptb_kernel_entry_norm = {
    .places = places, .is_typed = true, .absent = always, .prepare = prepare_norm, .verify = verify_norm};

// ---- norm_gradient, with the gradient of the residual stream added, as in a block

static void prepare_norm_gradient(ptb_kernel_call *c)
{
    ptb_norm forward = norm_call(c);
    size_t count = c->rows * hidden(c);
    ptb_norm_gradient a = {.d_in = ptb_call_output(c, D_IN, c->type, count),
                           .d_gain = ptb_call_output(c, D_GAIN, PTB_F32, hidden(c)),
                           .d_bias = has_bias(c) ? ptb_call_output(c, D_BIAS, PTB_F32, hidden(c)) : NULL,
                           .d_out = ptb_call_filled(c, D_OUT, c->type, count, 1, 0),
                           .in = forward.in,
                           .mean = forward.mean,
                           .rstd = forward.rstd,
                           .gain = forward.gain,
                           .residual = ptb_call_filled(c, RESIDUAL, c->type, count, 1, 0),
                           .rows = c->rows,
                           .width = hidden(c),
                           .type = c->type};
    if (c->status == PTB_OK)
        c->status = c->kernels->norm(c->stream, &forward);
    if (c->status == PTB_OK)
        c->status = ptb_stream_sync(c->stream);
    memcpy(c->arguments, &a, sizeof a);
    c->bytes = 4 * (double)count * size_of(c);
    describe_rows(c, a.rows, a.width);
}

static void verify_d_in(ptb_kernel_call *c, ptb_verdict *verdict, size_t at)
{
    size_t width = hidden(c), row = at / width, column = at % width;
    double mean, rstd, mean_g = 0, mean_gx = 0;
    row_statistics(c, row, &mean, &rstd);
    for (size_t i = 0; i < width; i++) {
        double g = ptb_call_value(c, D_OUT, row * width + i) * ptb_call_value(c, GAIN, i);
        double x = (ptb_call_value(c, IN, row * width + i) - mean) * rstd;
        mean_g += is_rms(c) ? 0 : g / (double)width;
        mean_gx += g * x / (double)width;
    }
    double x = (ptb_call_value(c, IN, at) - mean) * rstd;
    ptb_call_sum sum = {0};
    ptb_call_add(&sum, rstd * ptb_call_value(c, D_OUT, at) * ptb_call_value(c, GAIN, column));
    ptb_call_add(&sum, -rstd * mean_g);
    ptb_call_add(&sum, -rstd * x * mean_gx);
    ptb_call_add(&sum, ptb_call_value(c, RESIDUAL, at));
    ptb_call_expect(c, verdict, "d_in", D_IN, at, sum);
}

static void verify_norm_gradient(ptb_kernel_call *c, ptb_verdict *verdict)
{
    size_t width = hidden(c), columns[SAMPLED_COLUMNS];
    ptb_call_sum d_gain[SAMPLED_COLUMNS] = {{0}}, d_bias[SAMPLED_COLUMNS] = {{0}};
    for (size_t k = 0; k < PTB_CALL_SAMPLES; k++)
        verify_d_in(c, verdict, ptb_call_sample(k, c->rows * width));
    for (size_t k = 0; k < SAMPLED_COLUMNS; k++)
        columns[k] = ptb_call_sample(k, width);
    for (size_t row = 0; row < c->rows; row++) {
        double mean, rstd;
        row_statistics(c, row, &mean, &rstd);
        for (size_t k = 0; k < SAMPLED_COLUMNS; k++) {
            size_t at = row * width + columns[k];
            double d_out = ptb_call_value(c, D_OUT, at);
            ptb_call_add(&d_gain[k], d_out * (ptb_call_value(c, IN, at) - mean) * rstd);
            ptb_call_add(&d_bias[k], d_out);
        }
    }
    for (size_t k = 0; k < SAMPLED_COLUMNS; k++) {
        ptb_call_expect(c, verdict, "d_gain", D_GAIN, columns[k], d_gain[k]);
        if (has_bias(c))
            ptb_call_expect(c, verdict, "d_bias", D_BIAS, columns[k], d_bias[k]);
    }
}

const ptb_kernel_entry ptb_kernel_entry_norm_gradient = {.places = places,
                                                         .is_typed = true,
                                                         .absent = always,
                                                         .prepare = prepare_norm_gradient,
                                                         .verify = verify_norm_gradient};

// ---- activation, of the feed-forward's width: an expert's rows in a mixture

static size_t inner_rows(const ptb_kernel_call *c)
{
    return c->shape->experts ? c->rows * (size_t)c->shape->top_k : c->rows;
}

static size_t inner_width(const ptb_kernel_call *c)
{
    return (size_t)(c->shape->experts ? c->shape->expert_hidden : c->shape->feed_forward);
}

static size_t gates(const ptb_kernel_call *c)
{
    return c->shape->activation == PTB_SWIGLU ? 2 : 1;
}

static void prepare_activation(ptb_kernel_call *c)
{
    size_t count = inner_rows(c) * inner_width(c);
    ptb_activation a = {.out = ptb_call_output(c, OUT, c->type, count),
                        .in = ptb_call_filled(c, IN, c->type, gates(c) * count, 4, 0),
                        .rows = inner_rows(c),
                        .width = inner_width(c),
                        .kind = c->shape->activation,
                        .type = c->type};
    memcpy(c->arguments, &a, sizeof a);
    c->bytes = (double)((gates(c) + 1) * count) * size_of(c);
    describe_rows(c, a.rows, a.width);
}

// Elements of IN that element `at` of OUT comes from.
static void inputs_of(const ptb_kernel_call *c, size_t at, size_t *gate, size_t *up)
{
    size_t width = inner_width(c), row = at / width, column = at % width;
    *gate = row * gates(c) * width + column;
    *up = *gate + width;
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double gelu_gate(double x)
{
    return 0.5 * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static void verify_activation(ptb_kernel_call *c, ptb_verdict *verdict)
{
    for (size_t k = 0; k < PTB_CALL_SAMPLES; k++) {
        size_t at = ptb_call_sample(k, inner_rows(c) * inner_width(c)), gate, up;
        inputs_of(c, at, &gate, &up);
        double x = ptb_call_value(c, IN, gate);
        bool is_gelu = c->shape->activation == PTB_GELU;
        double out = is_gelu ? x * gelu_gate(x) : x * sigmoid(x) * ptb_call_value(c, IN, up);
        // The gate is 1 + something between -1 and 1: that sum is what is rounded.
        ptb_call_sum sum = {out, is_gelu ? x * x * 0.01 : out * out};
        ptb_call_expect(c, verdict, "out", OUT, at, sum);
    }
}

const ptb_kernel_entry ptb_kernel_entry_activation = {.places = places,
                                                      .is_typed = true,
                                                      .absent = always,
                                                      .prepare = prepare_activation,
                                                      .verify = verify_activation};

static void prepare_activation_gradient(ptb_kernel_call *c)
{
    size_t count = inner_rows(c) * inner_width(c);
    ptb_activation_gradient a = {.d_in = ptb_call_output(c, D_IN, c->type, gates(c) * count),
                                 .d_out = ptb_call_filled(c, D_OUT, c->type, count, 1, 0),
                                 .in = ptb_call_filled(c, IN, c->type, gates(c) * count, 4, 0),
                                 .rows = inner_rows(c),
                                 .width = inner_width(c),
                                 .kind = c->shape->activation,
                                 .type = c->type};
    memcpy(c->arguments, &a, sizeof a);
    c->bytes = (double)((2 * gates(c) + 1) * count) * size_of(c);
    describe_rows(c, a.rows, a.width);
}

static double gelu_slope(double x)
{
    double gate = gelu_gate(x), inner = sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
    return gate + x * 2 * gate * (1 - gate) * inner;
}

static void verify_activation_gradient(ptb_kernel_call *c, ptb_verdict *verdict)
{
    for (size_t k = 0; k < PTB_CALL_SAMPLES; k++) {
        size_t at = ptb_call_sample(k, inner_rows(c) * inner_width(c)), gate, up;
        inputs_of(c, at, &gate, &up);
        double x = ptb_call_value(c, IN, gate), d = ptb_call_value(c, D_OUT, at);
        if (c->shape->activation == PTB_GELU) {
            ptb_call_expect(c, verdict, "d_in", D_IN, gate, (ptb_call_sum){d * gelu_slope(x), 0.01 * d * d});
            continue;
        }
        double s = sigmoid(x), u = ptb_call_value(c, IN, up);
        double slope = s * (1 + x * (1 - s));
        ptb_call_expect(c, verdict, "d_gate", D_IN, gate,
                        (ptb_call_sum){d * u * slope, 0.01 * d * d * u * u});
        ptb_call_expect(c, verdict, "d_up", D_IN, up, (ptb_call_sum){d * x * s, 0});
    }
}

const ptb_kernel_entry ptb_kernel_entry_activation_gradient = {.places = places,
                                                               .is_typed = true,
                                                               .absent = always,
                                                               .prepare = prepare_activation_gradient,
                                                               .verify = verify_activation_gradient};

// ---- add, dropout, convert: of the residual stream

static void prepare_add(ptb_kernel_call *c)
{
    size_t count = c->rows * hidden(c);
    ptb_add a = {.out = ptb_call_output(c, OUT, c->type, count),
                 .a = ptb_call_filled(c, IN, c->type, count, 1, 0),
                 .b = ptb_call_filled(c, RESIDUAL, c->type, count, 1, 0),
                 .count = count,
                 .type = c->type};
    memcpy(c->arguments, &a, sizeof a);
    c->bytes = 3 * (double)count * size_of(c);
    describe_rows(c, c->rows, hidden(c));
}

static void verify_add(ptb_kernel_call *c, ptb_verdict *verdict)
{
    for (size_t k = 0; k < PTB_CALL_SAMPLES; k++) {
        size_t at = ptb_call_sample(k, c->rows * hidden(c));
        ptb_call_sum sum = {0};
        ptb_call_add(&sum, ptb_call_value(c, IN, at));
        ptb_call_add(&sum, ptb_call_value(c, RESIDUAL, at));
        ptb_call_expect(c, verdict, "out", OUT, at, sum);
    }
}

const ptb_kernel_entry ptb_kernel_entry_add = {
    .places = places, .is_typed = true, .absent = always, .prepare = prepare_add, .verify = verify_add};

enum { DROPOUT_SEED = 11 };

static float dropout_rate(const ptb_kernel_call *c)
{
    return c->shape->dropout > 0 ? (float)c->shape->dropout : 0.1f;
}

static void prepare_dropout(ptb_kernel_call *c)
{
    size_t count = c->rows * hidden(c);
    ptb_dropout a = {.out = ptb_call_output(c, OUT, c->type, count),
                     .in = ptb_call_filled(c, IN, c->type, count, 1, 0),
                     .residual = ptb_call_filled(c, RESIDUAL, c->type, count, 1, 0),
                     .rows = c->rows,
                     .width = hidden(c),
                     .length = c->sequence,
                     .total_length = c->sequence,
                     .seed = DROPOUT_SEED,
                     .rate = dropout_rate(c),
                     .type = c->type};
    memcpy(c->arguments, &a, sizeof a);
    c->bytes = 3 * (double)count * size_of(c);
    describe_rows(c, c->rows, hidden(c));
}

static void verify_dropout(ptb_kernel_call *c, ptb_verdict *verdict)
{
    float rate = dropout_rate(c);
    for (size_t k = 0; k < PTB_CALL_SAMPLES; k++) {
        size_t at = ptb_call_sample(k, c->rows * hidden(c));
        uint64_t key = ptb_dropout_key(DROPOUT_SEED, at / hidden(c));
        bool is_kept = ptb_dropout_draw(key, (uint32_t)(at % hidden(c))) >= ptb_dropout_threshold(rate);
        ptb_call_sum sum = {0};
        ptb_call_add(&sum, ptb_call_value(c, RESIDUAL, at));
        ptb_call_add(&sum, is_kept ? ptb_call_value(c, IN, at) / (1 - (double)rate) : 0);
        ptb_call_expect(c, verdict, "out", OUT, at, sum);
    }
}

const ptb_kernel_entry ptb_kernel_entry_dropout = {.places = places,
                                                   .is_typed = true,
                                                   .absent = always,
                                                   .prepare = prepare_dropout,
                                                   .verify = verify_dropout};

// From f32 into the type; of f32 itself, from bf16.
static void prepare_convert(ptb_kernel_call *c)
{
    size_t count = c->rows * hidden(c);
    ptb_dtype from = c->type == PTB_F32 ? PTB_BF16 : PTB_F32;
    ptb_convert a = {.out = ptb_call_output(c, OUT, c->type, count),
                     .in = ptb_call_filled(c, IN, from, count, 1, 0),
                     .count = count,
                     .out_type = c->type,
                     .in_type = from};
    memcpy(c->arguments, &a, sizeof a);
    c->bytes = (double)count * (size_of(c) + (double)ptb_dtype_size(from));
    ptb_call_sizes(c, "%zu x %zu from %s", c->rows, hidden(c), ptb_dtype_name(from));
}

static void verify_convert(ptb_kernel_call *c, ptb_verdict *verdict)
{
    for (size_t k = 0; k < PTB_CALL_SAMPLES; k++) {
        size_t at = ptb_call_sample(k, c->rows * hidden(c));
        ptb_call_expect(c, verdict, "out", OUT, at, (ptb_call_sum){ptb_call_value(c, IN, at), 0});
    }
}

const ptb_kernel_entry ptb_kernel_entry_convert = {.places = places,
                                                   .is_typed = true,
                                                   .absent = always,
                                                   .prepare = prepare_convert,
                                                   .verify = verify_convert};
