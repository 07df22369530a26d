// The mixture of experts of the reference transformer: a token's choices one by one, no slots, no order.
#ifndef PTB_TESTS_UNIT_REFERENCE_MIXTURE_H
#define PTB_TESTS_UNIT_REFERENCE_MIXTURE_H

#include "tests/unit/reference_layers.h"

// The expert with the largest probability that is not among the first k chosen ones; the smaller index among
// equals; -1 when all are chosen.
static inline int32_t reference_best(const double *probability, size_t experts, const int32_t *chosen,
                                     size_t k)
{
    int32_t best = -1;
    for (size_t e = 0; e < experts; e++) {
        bool taken = false;
        for (size_t j = 0; j < k; j++)
            taken = taken || chosen[j] == (int32_t)e;
        if (!taken && (best < 0 || probability[e] > probability[best]))
            best = (int32_t)e;
    }
    return best;
}

// Choices an expert takes; the first ones in order of row.
static inline int32_t reference_capacity(const reference *m)
{
    const ptb_model_shape *s = m->shape;
    if (s->capacity_factor == 0)
        return INT32_MAX;
    return (int32_t)ceil(s->capacity_factor * (double)m->rows * (double)s->top_k / (double)s->experts);
}

static inline void reference_route(reference *m, const double *router, reference_block *k)
{
    size_t experts = (size_t)m->shape->experts, top_k = (size_t)m->shape->top_k;
    reference_linear(k->routing, k->norm2, router, NULL, m->rows, experts, m->hidden);
    for (size_t r = 0; r < m->rows; r++) {
        double *p = k->routing + r * experts, sum = 0, chosen = 0, *weight = k->weight + r * top_k;
        int32_t *choice = k->chosen + r * top_k;
        for (size_t e = 0; e < experts; e++)
            sum += p[e] = exp(p[e]);
        for (size_t e = 0; e < experts; e++)
            p[e] /= sum;
        for (size_t i = 0; i < top_k; i++) {
            choice[i] = reference_best(p, experts, choice, i);
            k->expert[r * top_k + i] = k->counts[choice[i]]++ < reference_capacity(m) ? choice[i] : -1;
            chosen += weight[i] = p[choice[i]];
        }
        for (size_t i = 0; m->shape->normalise && i < top_k; i++)
            weight[i] /= chosen;
        int32_t next = reference_best(p, experts, choice, top_k);
        if (next >= 0)
            m->margin = fmin(m->margin, log(p[choice[top_k - 1]] / p[next]));
    }
    for (size_t r = 0; r < m->rows; r++)
        for (size_t e = 0; e < experts; e++)
            m->balance += m->shape->balance * (double)experts * k->counts[e] / (double)(m->rows * top_k) *
                          k->routing[r * experts + e] / (double)m->rows;
}

// k->out += the chosen experts' outputs by weight
static inline void reference_mixture(reference *m, size_t unit, reference_block *k)
{
    size_t top_k = (size_t)m->shape->top_k, width = (size_t)m->shape->expert_hidden;
    size_t wide = reference_gates(m) * width;
    reference_route(m, reference_parameter(m, unit, PTB_BLOCK_ROUTER_WEIGHT), k);
    for (size_t i = 0; i < m->rows * top_k; i++) {
        if (k->expert[i] < 0)
            continue;
        reference_network p = reference_expert(m, (double *)m->parameters, unit, k->expert[i]);
        double *out = k->expert_out + i * m->hidden;
        reference_feed(m, &p, k->norm2 + i / top_k * m->hidden, 1, k->expert_up + i * wide,
                       k->expert_active + i * width, out);
        for (size_t c = 0; c < m->hidden; c++)
            k->out[i / top_k * m->hidden + c] += k->weight[i] * out[c];
    }
}

// d_norm2 and the router's gradient from d_weight [N, K] and the balance loss.
static inline void reference_route_gradient(const reference *m, size_t unit, const reference_block *k,
                                            const double *d_weight, double *d_norm2)
{
    size_t experts = (size_t)m->shape->experts, top_k = (size_t)m->shape->top_k;
    double *d_p = reference_numbers(experts), *d_logits = reference_numbers(m->rows * experts);
    for (size_t r = 0; r < m->rows; r++) {
        const double *p = k->routing + r * experts, *weight = k->weight + r * top_k;
        const double *d = d_weight + r * top_k;
        double sum = 1, mean = 0, dot = 0;
        if (m->shape->normalise) {
            sum = 0;
            for (size_t i = 0; i < top_k; i++) {
                sum += p[k->chosen[r * top_k + i]];
                mean += d[i] * weight[i];
            }
        }
        for (size_t e = 0; e < experts; e++)
            d_p[e] = m->batch->place.share * m->shape->balance * (double)experts * k->counts[e] /
                     (double)(m->rows * top_k) / (double)m->rows;
        for (size_t i = 0; i < top_k; i++)
            d_p[k->chosen[r * top_k + i]] += (d[i] - mean) / sum;
        for (size_t e = 0; e < experts; e++)
            dot += p[e] * d_p[e];
        for (size_t e = 0; e < experts; e++)
            d_logits[r * experts + e] = p[e] * (d_p[e] - dot);
    }
    reference_linear_gradient(d_norm2, reference_gradient(m, unit, PTB_BLOCK_ROUTER_WEIGHT), NULL, d_logits,
                              k->norm2, reference_parameter(m, unit, PTB_BLOCK_ROUTER_WEIGHT), m->rows,
                              experts, m->hidden);
    free(d_p), free(d_logits);
}

static inline void reference_mixture_gradient(const reference *m, size_t unit, const reference_block *k,
                                              const double *d_out, double *d_norm2)
{
    size_t top_k = (size_t)m->shape->top_k, width = (size_t)m->shape->expert_hidden, hidden = m->hidden;
    size_t wide = reference_gates(m) * width;
    double *d_weight = reference_numbers(m->rows * top_k), *d_expert = reference_numbers(hidden);
    for (size_t i = 0; i < m->rows * top_k; i++) {
        if (k->expert[i] < 0)
            continue;
        reference_network p = reference_expert(m, (double *)m->parameters, unit, k->expert[i]);
        reference_network g = reference_expert(m, m->gradients, unit, k->expert[i]);
        const double *d = d_out + i / top_k * hidden;
        for (size_t c = 0; c < hidden; c++) {
            d_weight[i] += d[c] * k->expert_out[i * hidden + c];
            d_expert[c] = d[c] * k->weight[i];
        }
        reference_feed_gradient(m, &p, &g, d_expert, k->norm2 + i / top_k * hidden, 1,
                                k->expert_up + i * wide, k->expert_active + i * width,
                                d_norm2 + i / top_k * hidden);
    }
    reference_route_gradient(m, unit, k, d_weight, d_norm2);
    free(d_weight), free(d_expert);
}

#endif
