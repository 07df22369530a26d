// The whole transformer a second time, for tests: double precision, plain loops, a full score matrix, every
// gradient by hand in reverse. It shares with the engine what defines a model and nothing that computes one:
// the layout of the parameters (layout.h) and dropout's draws (dropout.h, ptb_model_dropout_seed).
// test_reference.c holds it to finite differences. Layers: reference_layers.h, reference_mixture.h.
#ifndef PTB_TESTS_UNIT_REFERENCE_MODEL_H
#define PTB_TESTS_UNIT_REFERENCE_MODEL_H

#include "tests/unit/reference_mixture.h"

// A block's widths of "up" and "active"; 0 where a mixture has no shared experts.
static inline reference_block reference_block_new(const reference *m, size_t unit)
{
    const ptb_model_shape *s = m->shape;
    bool mixture = m->batch->layout->unit[unit].mixture;
    size_t n = m->rows, narrow = n * m->hidden, choices = mixture ? n * (size_t)s->top_k : 0;
    size_t width = reference_dense(m, NULL, unit).width, experts = mixture ? (size_t)s->experts : 0;
    size_t expert_width = (size_t)s->expert_hidden, gates = reference_gates(m);
    return (reference_block){
        .in = reference_numbers(narrow),
        .norm1 = reference_numbers(narrow),
        .qkv = reference_numbers(n * m->row_width),
        .probability = reference_numbers(n * (size_t)(s->heads * s->sequence)),
        .attention = reference_numbers(n * (size_t)(s->heads * s->head_width)),
        .middle = reference_numbers(narrow),
        .norm2 = reference_numbers(narrow),
        .up = reference_numbers(n * gates * width),
        .active = reference_numbers(n * width),
        .routing = reference_numbers(n * experts),
        .weight = reference_numbers(choices),
        .expert = reference_integers(choices),
        .chosen = reference_integers(choices),
        .counts = reference_integers(experts),
        .expert_up = reference_numbers(choices * gates * expert_width),
        .expert_active = reference_numbers(choices * expert_width),
        .expert_out = reference_numbers(choices * m->hidden),
        .out = reference_numbers(narrow),
    };
}

static inline void reference_block_free(reference_block *k)
{
    free(k->in), free(k->norm1), free(k->qkv), free(k->probability), free(k->attention), free(k->middle);
    free(k->norm2), free(k->up), free(k->active), free(k->routing), free(k->weight), free(k->expert);
    free(k->chosen), free(k->counts), free(k->expert_up), free(k->expert_active), free(k->expert_out);
    free(k->out);
}

// stream: [N, C], the residual stream before and after the block
static inline void reference_block_forward(reference *m, size_t unit, double *stream)
{
    reference_block *k = &m->block[unit - 1];
    size_t n = m->rows, narrow = n * m->hidden, mixed = (size_t)(m->shape->heads * m->shape->head_width);
    memcpy(k->in, stream, narrow * sizeof *stream);
    reference_norm(m, k->norm1, k->in, reference_parameter(m, unit, PTB_BLOCK_NORM1_GAIN),
                   reference_parameter(m, unit, PTB_BLOCK_NORM1_BIAS));
    reference_linear(k->qkv, k->norm1, reference_parameter(m, unit, PTB_BLOCK_QKV_WEIGHT),
                     reference_parameter(m, unit, PTB_BLOCK_QKV_BIAS), n, m->row_width, m->hidden);
    reference_rotary(m, k->qkv, false);
    reference_attention(m, unit, k);
    reference_linear(k->middle, k->attention, reference_parameter(m, unit, PTB_BLOCK_PROJECTION_WEIGHT),
                     reference_parameter(m, unit, PTB_BLOCK_PROJECTION_BIAS), n, m->hidden, mixed);
    reference_dropout(m, unit, PTB_DROPOUT_PROJECTION, k->middle);
    for (size_t i = 0; i < narrow; i++)
        k->middle[i] += k->in[i];
    reference_norm(m, k->norm2, k->middle, reference_parameter(m, unit, PTB_BLOCK_NORM2_GAIN),
                   reference_parameter(m, unit, PTB_BLOCK_NORM2_BIAS));
    reference_network dense = reference_dense(m, (double *)m->parameters, unit);
    if (dense.width)
        reference_feed(m, &dense, k->norm2, n, k->up, k->active, k->out);
    if (m->batch->layout->unit[unit].mixture)
        reference_mixture(m, unit, k);
    reference_dropout(m, unit, PTB_DROPOUT_FEED_FORWARD, k->out);
    for (size_t i = 0; i < narrow; i++)
        stream[i] = k->out[i] += k->middle[i];
}

static inline void reference_attention_backward(const reference *m, size_t unit, double *d_stream)
{
    const reference_block *k = &m->block[unit - 1];
    size_t n = m->rows, mixed = (size_t)(m->shape->heads * m->shape->head_width);
    double *d_out = reference_numbers(n * m->hidden), *d_attention = reference_numbers(n * mixed);
    double *d_qkv = reference_numbers(n * m->row_width), *d_norm1 = reference_numbers(n * m->hidden);
    memcpy(d_out, d_stream, n * m->hidden * sizeof *d_out);
    reference_dropout(m, unit, PTB_DROPOUT_PROJECTION, d_out);
    reference_linear_gradient(d_attention, reference_gradient(m, unit, PTB_BLOCK_PROJECTION_WEIGHT),
                              reference_gradient(m, unit, PTB_BLOCK_PROJECTION_BIAS), d_out, k->attention,
                              reference_parameter(m, unit, PTB_BLOCK_PROJECTION_WEIGHT), n, m->hidden, mixed);
    reference_attention_gradient(m, unit, k, d_attention, d_qkv);
    reference_rotary(m, d_qkv, true);
    reference_linear_gradient(d_norm1, reference_gradient(m, unit, PTB_BLOCK_QKV_WEIGHT),
                              reference_gradient(m, unit, PTB_BLOCK_QKV_BIAS), d_qkv, k->norm1,
                              reference_parameter(m, unit, PTB_BLOCK_QKV_WEIGHT), n, m->row_width, m->hidden);
    reference_norm_gradient(m, d_stream, reference_gradient(m, unit, PTB_BLOCK_NORM1_GAIN),
                            reference_gradient(m, unit, PTB_BLOCK_NORM1_BIAS), d_norm1, k->in,
                            reference_parameter(m, unit, PTB_BLOCK_NORM1_GAIN));
    free(d_out), free(d_attention), free(d_qkv), free(d_norm1);
}

static inline void reference_feed_backward(const reference *m, size_t unit, double *d_stream)
{
    const reference_block *k = &m->block[unit - 1];
    size_t n = m->rows;
    double *d_out = reference_numbers(n * m->hidden), *d_norm2 = reference_numbers(n * m->hidden);
    memcpy(d_out, d_stream, n * m->hidden * sizeof *d_out);
    reference_dropout(m, unit, PTB_DROPOUT_FEED_FORWARD, d_out);
    reference_network p = reference_dense(m, (double *)m->parameters, unit);
    reference_network g = reference_dense(m, m->gradients, unit);
    if (p.width)
        reference_feed_gradient(m, &p, &g, d_out, k->norm2, n, k->up, k->active, d_norm2);
    if (m->batch->layout->unit[unit].mixture)
        reference_mixture_gradient(m, unit, k, d_out, d_norm2);
    reference_norm_gradient(m, d_stream, reference_gradient(m, unit, PTB_BLOCK_NORM2_GAIN),
                            reference_gradient(m, unit, PTB_BLOCK_NORM2_BIAS), d_norm2, k->middle,
                            reference_parameter(m, unit, PTB_BLOCK_NORM2_GAIN));
    free(d_out), free(d_norm2);
}

// Adds the token's and the position's vector to each row of the stream, or each row of the stream to their
// gradients.
static inline void reference_embedding(const reference *m, double *stream, double *tokens, double *positions,
                                       bool gradient)
{
    for (size_t r = 0; r < m->rows; r++)
        for (size_t c = 0; c < m->hidden; c++) {
            size_t position = r % (size_t)m->shape->sequence - reference_start(m, r);
            double *x = stream + r * m->hidden + c,
                   *token = tokens + (size_t)m->batch->inputs[r] * m->hidden + c;
            double *place = positions ? positions + position * m->hidden + c : NULL;
            if (gradient) {
                *token += *x;
                if (place)
                    *place += *x;
            } else {
                *x = *token + (place ? *place : 0);
            }
        }
}

// The loss of the head and, with gradients, that of its input in d_stream. logits [N, vocabulary] when not
// NULL.
static inline double reference_head_pass(const reference *m, const double *stream, double *d_stream,
                                         double *logits_out)
{
    size_t unit = m->batch->layout->units - 1, n = m->rows, vocabulary = (size_t)m->shape->vocabulary;
    size_t weight_unit = m->shape->tied ? 0 : unit;
    ptb_tensor_role role = m->shape->tied ? PTB_EMBED_TOKENS : PTB_HEAD_WEIGHT;
    double *norm = reference_numbers(n * m->hidden), *logits = reference_numbers(n * vocabulary), loss = 0;
    double *d_norm = reference_numbers(n * m->hidden);
    reference_norm(m, norm, stream, reference_parameter(m, unit, PTB_HEAD_NORM_GAIN),
                   reference_parameter(m, unit, PTB_HEAD_NORM_BIAS));
    reference_linear(logits, norm, reference_parameter(m, weight_unit, role), NULL, n, vocabulary, m->hidden);
    if (logits_out)
        memcpy(logits_out, logits, n * vocabulary * sizeof *logits);
    for (size_t r = 0; r < n; r++) { // logits become their gradient
        double *x = logits + r * vocabulary, sum = 0, scale = m->batch->place.scale;
        int32_t target = m->batch->targets[r];
        for (size_t v = 0; v < vocabulary; v++)
            sum += exp(x[v]);
        if (target >= 0)
            loss += scale * (log(sum) - x[target]);
        for (size_t v = 0; v < vocabulary; v++)
            x[v] = target < 0 ? 0 : scale * (exp(x[v]) / sum - (v == (size_t)target));
    }
    if (m->gradients) {
        reference_linear_gradient(d_norm, reference_gradient(m, weight_unit, role), NULL, logits, norm,
                                  reference_parameter(m, weight_unit, role), n, vocabulary, m->hidden);
        reference_norm_gradient(m, d_stream, reference_gradient(m, unit, PTB_HEAD_NORM_GAIN),
                                reference_gradient(m, unit, PTB_HEAD_NORM_BIAS), d_norm, stream,
                                reference_parameter(m, unit, PTB_HEAD_NORM_GAIN));
    }
    free(norm), free(logits), free(d_norm);
    return loss;
}

// What a microbatch gives beside the gradients.
typedef struct {
    double loss;
    double margin; // smallest difference between the logits of a chosen expert and the best that was not
} reference_result;

// parameters [layout.count]; gradients [layout.count] are added to, NULL: forward only; logits [N,
// vocabulary], NULL: not wanted.
static inline reference_result reference_run(const reference_batch *batch, const double *parameters,
                                             double *gradients, double *logits)
{
    const ptb_model_shape *s = &batch->layout->shape;
    reference m = {.batch = batch,
                   .shape = s,
                   .parameters = parameters,
                   .gradients = gradients,
                   .rows = batch->batch * (size_t)s->sequence,
                   .hidden = (size_t)s->hidden,
                   .row_width = (size_t)((s->heads + 2 * s->kv_heads) * s->head_width),
                   .margin = INFINITY};
    size_t head = batch->layout->units - 1;
    m.block = calloc(head, sizeof *m.block);
    double *stream = reference_numbers(m.rows * m.hidden), *d_stream = reference_numbers(m.rows * m.hidden);
    reference_embedding(&m, stream, (double *)reference_parameter(&m, 0, PTB_EMBED_TOKENS),
                        (double *)reference_parameter(&m, 0, PTB_EMBED_POSITIONS), false);
    reference_dropout(&m, 0, PTB_DROPOUT_EMBEDDING, stream);
    for (size_t u = 1; u < head; u++) {
        m.block[u - 1] = reference_block_new(&m, u);
        reference_block_forward(&m, u, stream);
    }
    reference_result result = {.loss = reference_head_pass(&m, stream, d_stream, logits)};
    result.loss += batch->place.share * m.balance;
    result.margin = m.margin;
    for (size_t u = head - 1; gradients && u > 0; u--) {
        reference_feed_backward(&m, u, d_stream);
        reference_attention_backward(&m, u, d_stream);
    }
    if (gradients) {
        reference_dropout(&m, 0, PTB_DROPOUT_EMBEDDING, d_stream);
        reference_embedding(&m, d_stream, reference_gradient(&m, 0, PTB_EMBED_TOKENS),
                            reference_gradient(&m, 0, PTB_EMBED_POSITIONS), true);
    }
    for (size_t u = 1; u < head; u++)
        reference_block_free(&m.block[u - 1]);
    free(m.block), free(stream), free(d_stream);
    return result;
}

#endif
