// Reverse-mode differentiation of scalar programs in double precision, for references: every operation
// appends a node with its value and its derivatives to up to three earlier nodes. Slow, plain, and
// independent of any hand-derived backward pass.
#ifndef PTB_TESTS_UNIT_TAPE_H
#define PTB_TESTS_UNIT_TAPE_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct {
    double value, slope[3], gradient;
    uint32_t from[3];
} tape_node;

typedef struct {
    tape_node *nodes;
    size_t count, capacity;
} tape;

typedef uint32_t var; // index of a node

static inline void tape_release(tape *t)
{
    free(t->nodes);
    *t = (tape){0};
}

static inline var tape_push(tape *t, tape_node node)
{
    if (t->count == t->capacity) {
        t->capacity = t->capacity ? 2 * t->capacity : 4096;
        t->nodes = realloc(t->nodes, t->capacity * sizeof *t->nodes);
        if (!t->nodes)
            abort();
    }
    t->nodes[t->count] = node;
    return (var)t->count++;
}

static inline double tape_value(const tape *t, var a)
{
    return t->nodes[a].value;
}

static inline var tape_leaf(tape *t, double value)
{
    return tape_push(t, (tape_node){.value = value});
}

// a * b + c
static inline var tape_fma(tape *t, var a, var b, var c)
{
    double x = tape_value(t, a), y = tape_value(t, b);
    return tape_push(t, (tape_node){x * y + tape_value(t, c), {y, x, 1}, 0, {a, b, c}});
}

static inline var tape_mul(tape *t, var a, var b)
{
    double x = tape_value(t, a), y = tape_value(t, b);
    return tape_push(t, (tape_node){x * y, {y, x}, 0, {a, b}});
}

// s * a + b
static inline var tape_axpy(tape *t, double s, var a, var b)
{
    return tape_push(t, (tape_node){s * tape_value(t, a) + tape_value(t, b), {s, 1}, 0, {a, b}});
}

// s * a + d
static inline var tape_affine(tape *t, double s, var a, double d)
{
    return tape_push(t, (tape_node){s * tape_value(t, a) + d, {s}, 0, {a}});
}

static inline var tape_exp(tape *t, var a)
{
    double e = exp(tape_value(t, a));
    return tape_push(t, (tape_node){e, {e}, 0, {a}});
}

static inline var tape_log(tape *t, var a)
{
    double x = tape_value(t, a);
    return tape_push(t, (tape_node){log(x), {1 / x}, 0, {a}});
}

static inline var tape_tanh(tape *t, var a)
{
    double h = tanh(tape_value(t, a));
    return tape_push(t, (tape_node){h, {1 - h * h}, 0, {a}});
}

static inline var tape_power(tape *t, var a, double exponent)
{
    double x = tape_value(t, a);
    return tape_push(t, (tape_node){pow(x, exponent), {exponent * pow(x, exponent - 1)}, 0, {a}});
}

// Afterwards nodes[i].gradient = d root / d node i.
static inline void tape_backward(tape *t, var root)
{
    for (size_t i = 0; i < t->count; i++)
        t->nodes[i].gradient = 0;
    t->nodes[root].gradient = 1;
    for (size_t i = root + 1; i-- > 0;)
        for (int k = 0; k < 3; k++)
            if (t->nodes[i].slope[k] != 0)
                t->nodes[t->nodes[i].from[k]].gradient += t->nodes[i].slope[k] * t->nodes[i].gradient;
}

// --- a few functions on top ---

static inline var tape_gelu(tape *t, var x)
{
    var cube = tape_mul(t, tape_mul(t, x, x), x);
    var inner = tape_affine(t, sqrt(2 / M_PI), tape_axpy(t, 0.044715, cube, x), 0);
    var gate = tape_affine(t, 0.5, tape_tanh(t, inner), 0.5);
    return tape_mul(t, x, gate);
}

// out[width] = (in - mean) / sqrt(variance + 1e-5) * gain + bias
static inline void tape_layernorm(tape *t, const var *in, const var *gain, const var *bias, size_t width,
                                  var *out)
{
    var sum = tape_leaf(t, 0), squares = tape_leaf(t, 0);
    for (size_t c = 0; c < width; c++)
        sum = tape_axpy(t, 1, in[c], sum);
    var mean = tape_affine(t, 1.0 / (double)width, sum, 0);
    for (size_t c = 0; c < width; c++) {
        out[c] = tape_axpy(t, -1, mean, in[c]);
        squares = tape_fma(t, out[c], out[c], squares);
    }
    var rstd = tape_power(t, tape_affine(t, 1.0 / (double)width, squares, 1e-5), -0.5);
    for (size_t c = 0; c < width; c++)
        out[c] = tape_fma(t, tape_mul(t, out[c], rstd), gain[c], bias[c]);
}

// out[width] = softmax(scale * query . key_j) value_j over j < seen; rows of key and value are `stride`
// apart. Returns the log-sum-exp.
static inline var tape_attend(tape *t, const var *query, const var *key, const var *value, size_t seen,
                              size_t stride, size_t width, double scale, var *out)
{
    var sum = tape_leaf(t, 0);
    var *weight = malloc((seen + 1) * sizeof *weight);
    for (size_t j = 0; j < seen; j++) {
        var dot = tape_leaf(t, 0);
        for (size_t c = 0; c < width; c++)
            dot = tape_fma(t, query[c], key[j * stride + c], dot);
        weight[j] = tape_exp(t, tape_affine(t, scale, dot, 0));
        sum = tape_axpy(t, 1, weight[j], sum);
    }
    var inverse = tape_power(t, sum, -1);
    for (size_t c = 0; c < width; c++)
        out[c] = tape_leaf(t, 0);
    for (size_t j = 0; j < seen; j++) {
        var p = tape_mul(t, weight[j], inverse);
        for (size_t c = 0; c < width; c++)
            out[c] = tape_fma(t, p, value[j * stride + c], out[c]);
    }
    free(weight);
    return tape_log(t, sum);
}

// -log softmax(logits)[target]
static inline var tape_cross_entropy(tape *t, const var *logits, size_t count, size_t target)
{
    var sum = tape_leaf(t, 0);
    for (size_t v = 0; v < count; v++)
        sum = tape_axpy(t, 1, tape_exp(t, logits[v]), sum);
    return tape_axpy(t, -1, logits[target], tape_log(t, sum));
}

// ||got - wanted|| / ||wanted||; the norm of the difference where wanted is (nearly) zero, which is what a
// true gradient of zero looks like.
static inline double tape_distance(const float *got, const double *wanted, size_t count)
{
    double difference = 0, norm = 0;
    for (size_t i = 0; i < count; i++) {
        difference += (got[i] - wanted[i]) * (got[i] - wanted[i]);
        norm += wanted[i] * wanted[i];
    }
    return sqrt(difference) / (norm > 1e-16 ? sqrt(norm) : 1);
}

#endif
