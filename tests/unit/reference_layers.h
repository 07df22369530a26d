// Layers of the reference transformer (reference_model.h): double precision, plain loops, a full score
// matrix, every gradient by hand in reverse. Gradients always add; N = rows = batch * sequence.
#ifndef PTB_TESTS_UNIT_REFERENCE_LAYERS_H
#define PTB_TESTS_UNIT_REFERENCE_LAYERS_H

#include "strategies/transformer/dropout.h"
#include "strategies/transformer/model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// A microbatch.
typedef struct {
    const ptb_layout *layout;
    size_t batch;
    const int32_t *inputs, *targets; /* [batch, sequence] */
    const int32_t *starts;           /* [batch, sequence]: where the row's document begins; NULL: at 0 */
    uint64_t seed;                   // of dropout
    ptb_microbatch place;            // factor is not read: gradients are those of the loss
} reference_batch;

// What a block's forward pass leaves for its backward pass. H = heads, D = head width, R = width of a row of
// queries, keys and values, E = experts, K = top_k, U = outputs of the first feed-forward layer, F = inputs
// of the second (U = 2 F for SwiGLU, else F).
typedef struct {
    double *in;          /* [N, C] */
    double *norm1;       /* [N, C] */
    double *qkv;         /* [N, R], after rotary */
    double *probability; /* [batch, H, sequence, sequence], before dropout */
    double *attention;   /* [N, H D] */
    double *middle;      /* [N, C] */
    double *norm2;       /* [N, C] */
    double *up, *active; /* [N, U], [N, F]: dense, or the shared experts */
    // Mixture of experts, one expert's work a choice.
    double *routing;                                /* [N, E]: softmax */
    double *weight;                                 /* [N, K] */
    int32_t *expert;                                /* [N, K], -1: dropped */
    int32_t *chosen;                                /* [N, K], dropped ones too */
    int32_t *counts;                                /* [E], dropped ones too */
    double *expert_up, *expert_active, *expert_out; /* [N, K, U], [N, K, F], [N, K, C] */
    double *out;                                    /* [N, C] */
} reference_block;

typedef struct {
    const reference_batch *batch;
    const ptb_model_shape *shape;
    const double *parameters; /* [layout.count] */
    double *gradients;        /* [layout.count], NULL: forward only */
    size_t rows, hidden, row_width;
    reference_block *block; // [layers]
    double margin;          // smallest difference of logits between a chosen expert and the next
    double balance;         // loss of the routers so far
} reference;

static inline double *reference_numbers(size_t count)
{
    double *a = calloc(count ? count : 1, sizeof *a);
    if (!a)
        abort();
    return a;
}

static inline int32_t *reference_integers(size_t count)
{
    int32_t *a = calloc(count ? count : 1, sizeof *a);
    if (!a)
        abort();
    return a;
}

// The unit's tensor of a role in parameters or gradients; NULL when it has none.
static inline double *reference_tensor(const reference *m, double *array, size_t unit, ptb_tensor_role role)
{
    const ptb_unit *u = &m->batch->layout->unit[unit];
    const ptb_tensor *t = ptb_unit_tensor(u, role);
    return t && array ? array + u->first + t->first : NULL;
}

static inline const double *reference_parameter(const reference *m, size_t unit, ptb_tensor_role role)
{
    return reference_tensor(m, (double *)m->parameters, unit, role);
}

static inline double *reference_gradient(const reference *m, size_t unit, ptb_tensor_role role)
{
    return reference_tensor(m, m->gradients, unit, role);
}

// ---- layers

// out = in weight^T + bias; weight [columns, inner]
static inline void reference_linear(double *out, const double *in, const double *weight, const double *bias,
                                    size_t rows, size_t columns, size_t inner)
{
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < columns; c++) {
            double sum = bias ? bias[c] : 0;
            for (size_t i = 0; i < inner; i++)
                sum += in[r * inner + i] * weight[c * inner + i];
            out[r * columns + c] = sum;
        }
}

static inline void reference_linear_gradient(double *d_in, double *d_weight, double *d_bias,
                                             const double *d_out, const double *in, const double *weight,
                                             size_t rows, size_t columns, size_t inner)
{
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < columns; c++) {
            double d = d_out[r * columns + c];
            for (size_t i = 0; i < inner; i++) {
                d_in[r * inner + i] += d * weight[c * inner + i];
                d_weight[c * inner + i] += d * in[r * inner + i];
            }
            if (d_bias)
                d_bias[c] += d;
        }
}

// Mean (0 for RMSNorm) and reciprocal deviation of a row.
static inline void reference_moments(const ptb_model_shape *s, const double *in, double *mean, double *rstd)
{
    double width = (double)s->hidden, squares = 0;
    *mean = 0;
    for (int64_t c = 0; s->norm == PTB_LAYER_NORM && c < s->hidden; c++)
        *mean += in[c] / width;
    for (int64_t c = 0; c < s->hidden; c++)
        squares += (in[c] - *mean) * (in[c] - *mean) / width;
    *rstd = 1 / sqrt(squares + s->epsilon);
}

static inline void reference_norm(const reference *m, double *out, const double *in, const double *gain,
                                  const double *bias)
{
    for (size_t r = 0; r < m->rows; r++) {
        const double *x = in + r * m->hidden;
        double mean, rstd;
        reference_moments(m->shape, x, &mean, &rstd);
        for (size_t c = 0; c < m->hidden; c++)
            out[r * m->hidden + c] = (x[c] - mean) * rstd * gain[c] + (bias ? bias[c] : 0);
    }
}

static inline void reference_norm_gradient(const reference *m, double *d_in, double *d_gain, double *d_bias,
                                           const double *d_out, const double *in, const double *gain)
{
    for (size_t r = 0; r < m->rows; r++) {
        const double *x = in + r * m->hidden, *d = d_out + r * m->hidden;
        double mean, rstd, width = (double)m->hidden, along_mean = 0, along_x = 0;
        reference_moments(m->shape, x, &mean, &rstd);
        for (size_t c = 0; c < m->hidden; c++) {
            double normal = (x[c] - mean) * rstd;
            d_gain[c] += d[c] * normal;
            if (d_bias)
                d_bias[c] += d[c];
            along_mean += d[c] * gain[c] / width;
            along_x += d[c] * gain[c] * normal / width;
        }
        if (m->shape->norm == PTB_RMS_NORM)
            along_mean = 0;
        for (size_t c = 0; c < m->hidden; c++)
            d_in[r * m->hidden + c] += rstd * (d[c] * gain[c] - along_mean - (x[c] - mean) * rstd * along_x);
    }
}

// Multiplies by 0 or 1 / (1 - rate): forward and gradient alike.
static inline double reference_keep(const reference *m, size_t unit, ptb_dropout_place place, size_t row,
                                    size_t column)
{
    const reference_batch *b = m->batch;
    float rate = (float)m->shape->dropout;
    if (rate == 0)
        return 1;
    uint64_t seed = ptb_model_dropout_seed(b->seed, b->place.step, unit, place);
    uint64_t key = ptb_dropout_key(seed, b->place.sequence * (uint64_t)m->shape->sequence + row);
    return ptb_dropout_draw(key, (uint32_t)column) >= ptb_dropout_threshold(rate) ? 1 / (1 - (double)rate)
                                                                                  : 0;
}

static inline void reference_dropout(const reference *m, size_t unit, ptb_dropout_place place, double *x)
{
    for (size_t r = 0; r < m->rows; r++)
        for (size_t c = 0; c < m->hidden; c++)
            x[r * m->hidden + c] *= reference_keep(m, unit, place, r, c);
}

// ---- attention

static inline size_t reference_start(const reference *m, size_t row)
{
    return m->batch->starts ? (size_t)m->batch->starts[row] : 0;
}

// Turns query and key heads by their position in the document, or back.
static inline void reference_rotary(const reference *m, double *qkv, bool inverse)
{
    const ptb_model_shape *s = m->shape;
    size_t half = (size_t)s->head_width / 2, heads = (size_t)(s->heads + s->kv_heads);
    for (size_t r = 0; s->position == PTB_ROTARY_POSITIONS && r < m->rows; r++)
        for (size_t h = 0; h < heads; h++)
            for (size_t i = 0; i < half; i++) {
                size_t position = r % (size_t)s->sequence - reference_start(m, r);
                double angle = (double)position * pow(s->rotary_base, -(double)i / (double)half);
                double cosine = cos(angle), sine = inverse ? -sin(angle) : sin(angle);
                double *a = qkv + r * m->row_width + h * 2 * half + i, *b = a + half, x = *a, y = *b;
                *a = x * cosine - y * sine;
                *b = x * sine + y * cosine;
            }
}

// Where the parts of head h lie in a row of qkv.
typedef struct {
    size_t query, key, value;
} reference_head;

static inline reference_head reference_head_at(const ptb_model_shape *s, size_t h)
{
    size_t width = (size_t)s->head_width, group = h / (size_t)(s->heads / s->kv_heads);
    return (reference_head){h * width, ((size_t)s->heads + group) * width,
                            ((size_t)(s->heads + s->kv_heads) + group) * width};
}

// Row j is seen by row i of the same sequence when it is not later and not before i's document.
static inline void reference_attention(const reference *m, size_t unit, reference_block *k)
{
    const ptb_model_shape *s = m->shape;
    size_t length = (size_t)s->sequence, width = (size_t)s->head_width, heads = (size_t)s->heads;
    for (size_t r = 0; r < m->rows; r++)
        for (size_t h = 0; h < heads; h++) {
            size_t i = r % length, first = r - i; // row of the sequence's position 0
            reference_head at = reference_head_at(s, h);
            const double *query = k->qkv + r * m->row_width + at.query;
            double *p = k->probability + ((first / length * heads + h) * length + i) * length, sum = 0;
            double *out = k->attention + r * heads * width + h * width;
            for (size_t j = reference_start(m, r); j <= i; j++) {
                double dot = 0;
                for (size_t c = 0; c < width; c++)
                    dot += query[c] * k->qkv[(first + j) * m->row_width + at.key + c];
                sum += p[j] = exp(dot / sqrt((double)width));
            }
            for (size_t j = reference_start(m, r); j <= i; j++) {
                p[j] /= sum;
                double kept = p[j] * reference_keep(m, unit, PTB_DROPOUT_ATTENTION, r, h * length + j);
                for (size_t c = 0; c < width; c++)
                    out[c] += kept * k->qkv[(first + j) * m->row_width + at.value + c];
            }
        }
}

static inline void reference_attention_gradient(const reference *m, size_t unit, const reference_block *k,
                                                const double *d_out, double *d_qkv)
{
    const ptb_model_shape *s = m->shape;
    size_t length = (size_t)s->sequence, width = (size_t)s->head_width, heads = (size_t)s->heads;
    double *d_p = reference_numbers(length);
    for (size_t r = 0; r < m->rows; r++)
        for (size_t h = 0; h < heads; h++) {
            size_t i = r % length, first = r - i;
            reference_head at = reference_head_at(s, h);
            const double *d = d_out + r * heads * width + h * width;
            const double *p = k->probability + ((first / length * heads + h) * length + i) * length;
            double dot = 0;
            for (size_t j = reference_start(m, r); j <= i; j++) {
                double keep = reference_keep(m, unit, PTB_DROPOUT_ATTENTION, r, h * length + j);
                size_t row = (first + j) * m->row_width;
                d_p[j] = 0;
                for (size_t c = 0; c < width; c++) {
                    d_p[j] += keep * d[c] * k->qkv[row + at.value + c];
                    d_qkv[row + at.value + c] += keep * p[j] * d[c];
                }
                dot += p[j] * d_p[j];
            }
            for (size_t j = reference_start(m, r); j <= i; j++) {
                double d_score = p[j] * (d_p[j] - dot) / sqrt((double)width);
                size_t query = r * m->row_width + at.query, key = (first + j) * m->row_width + at.key;
                for (size_t c = 0; c < width; c++) {
                    d_qkv[query + c] += d_score * k->qkv[key + c];
                    d_qkv[key + c] += d_score * k->qkv[query + c];
                }
            }
        }
    free(d_p);
}

// ---- feed-forward: out = down(activation(up(in)))

// `width` numbers from `width` (GELU) or 2 `width` (SwiGLU: gate, then up).
static inline void reference_activation(const reference *m, double *out, const double *in, size_t rows,
                                        size_t width)
{
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < width; c++) {
            if (m->shape->activation == PTB_SWIGLU) {
                double gate = in[r * 2 * width + c], up = in[r * 2 * width + width + c];
                out[r * width + c] = gate / (1 + exp(-gate)) * up;
            } else {
                double x = in[r * width + c];
                out[r * width + c] = 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
            }
        }
}

static inline void reference_activation_gradient(const reference *m, double *d_in, const double *d_out,
                                                 const double *in, size_t rows, size_t width)
{
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < width; c++) {
            double d = d_out[r * width + c];
            if (m->shape->activation == PTB_SWIGLU) {
                size_t at = r * 2 * width + c;
                double gate = in[at], up = in[at + width], sigmoid = 1 / (1 + exp(-gate));
                d_in[at] += d * up * sigmoid * (1 + gate * (1 - sigmoid));
                d_in[at + width] += d * gate * sigmoid;
            } else {
                double x = in[r * width + c], a = sqrt(2 / M_PI);
                double t = tanh(a * (x + 0.044715 * x * x * x));
                double slope = a * (1 + 3 * 0.044715 * x * x);
                d_in[r * width + c] += d * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * slope);
            }
        }
}

// A feed-forward network's tensors, or their gradients; biases may be NULL.
typedef struct {
    double *up_weight, *up_bias, *down_weight, *down_bias;
    size_t width; // F
} reference_network;

static inline size_t reference_gates(const reference *m)
{
    return m->shape->activation == PTB_SWIGLU ? 2 : 1;
}

static inline void reference_feed(const reference *m, const reference_network *p, const double *in,
                                  size_t rows, double *up, double *active, double *out)
{
    reference_linear(up, in, p->up_weight, p->up_bias, rows, reference_gates(m) * p->width, m->hidden);
    reference_activation(m, active, up, rows, p->width);
    reference_linear(out, active, p->down_weight, p->down_bias, rows, m->hidden, p->width);
}

static inline void reference_feed_gradient(const reference *m, const reference_network *p,
                                           const reference_network *g, const double *d_out, const double *in,
                                           size_t rows, const double *up, const double *active, double *d_in)
{
    size_t wide = reference_gates(m) * p->width;
    double *d_active = reference_numbers(rows * p->width), *d_up = reference_numbers(rows * wide);
    reference_linear_gradient(d_active, g->down_weight, g->down_bias, d_out, active, p->down_weight, rows,
                              m->hidden, p->width);
    reference_activation_gradient(m, d_up, d_active, up, rows, p->width);
    reference_linear_gradient(d_in, g->up_weight, g->up_bias, d_up, in, p->up_weight, rows, wide, m->hidden);
    free(d_active), free(d_up);
}

// The dense network of a block, or that of its shared experts (width 0: none).
static inline reference_network reference_dense(const reference *m, double *array, size_t unit)
{
    const ptb_model_shape *s = m->shape;
    bool mixture = m->batch->layout->unit[unit].mixture;
    return (reference_network){
        reference_tensor(m, array, unit, mixture ? PTB_BLOCK_SHARED_UP_WEIGHT : PTB_BLOCK_UP_WEIGHT),
        mixture ? NULL : reference_tensor(m, array, unit, PTB_BLOCK_UP_BIAS),
        reference_tensor(m, array, unit, mixture ? PTB_BLOCK_SHARED_DOWN_WEIGHT : PTB_BLOCK_DOWN_WEIGHT),
        mixture ? NULL : reference_tensor(m, array, unit, PTB_BLOCK_DOWN_BIAS),
        (size_t)(mixture ? s->shared_experts * s->expert_hidden : s->feed_forward)};
}

static inline reference_network reference_expert(const reference *m, double *array, size_t unit, int32_t e)
{
    size_t width = (size_t)m->shape->expert_hidden, number = (size_t)e;
    return (reference_network){
        reference_tensor(m, array, unit, PTB_BLOCK_EXPERTS_UP_WEIGHT) +
            number * reference_gates(m) * width * m->hidden,
        NULL, reference_tensor(m, array, unit, PTB_BLOCK_EXPERTS_DOWN_WEIGHT) + number * m->hidden * width,
        NULL, width};
}

#endif
