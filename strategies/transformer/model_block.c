// A block: attention, then a dense feed-forward or a mixture of experts (model_mixture.c), each added to the
// residual stream. Backward is one sequence of steps for both of its parts; a step is enqueued when the pass
// is for its part.
#include "strategies/transformer/model_internal.h"

#include <math.h>

ptb_attention_shape ptb_block_attention_shape(const ptb_model_config *config)
{
    const ptb_model_shape *s = &config->layout->local;
    size_t stride = (size_t)((s->heads + 2 * s->kv_heads) * s->head_width);
    return (ptb_attention_shape){
        .batch = (size_t)config->batch,
        .heads = (size_t)s->heads,
        .kv_heads = (size_t)s->kv_heads,
        .head_width = (size_t)s->head_width,
        .query_length = (size_t)s->sequence,
        .key_length = (size_t)s->sequence,
        .query_stride = stride,
        .key_stride = stride,
        .causal = true,
        .scale = 1 / sqrtf((float)s->head_width),
        .type = config->type,
        .dropout_rate = (float)s->dropout,
        .dropout_head = config->layout->first_head,
        .total_length = (size_t)s->sequence,
    };
}

static ptb_attention_shape attention_shape(const ptb_pass *p)
{
    ptb_attention_shape shape = ptb_block_attention_shape(&p->m->config);
    const ptb_microbatch *b = &p->slot->microbatch;
    shape.query_start = p->slot->starts;
    shape.dropout_seed = ptb_model_dropout_seed(p->m->config.seed, b->step, p->number, PTB_DROPOUT_ATTENTION);
    shape.dropout_sequence = b->sequence;
    shape.workspace = p->m->attention_workspace;
    return shape;
}

// Query and key heads of qkv, or their gradients back.
static ptb_status rotate(const ptb_pass *p, void *qkv, bool inverse)
{
    const ptb_model_shape *s = &p->m->config.layout->local;
    if (s->position != PTB_ROTARY_POSITIONS)
        return PTB_OK;
    return p->k->rotary(p->stream, &(ptb_rotary){.type = p->m->config.type,
                                                 .values = qkv,
                                                 .rows = p->m->w.rows,
                                                 .stride = p->m->w.qkv,
                                                 .heads = (size_t)(s->heads + s->kv_heads),
                                                 .head_width = (size_t)s->head_width,
                                                 .length = (size_t)s->sequence,
                                                 .start = p->slot->starts,
                                                 .base = (float)s->rotary_base,
                                                 .inverse = inverse});
}

static ptb_status attend(const ptb_pass *p)
{
    const ptb_model_shape *s = &p->m->config.layout->local;
    ptb_block_state *b = p->state;
    size_t key = p->m->w.attention, value = key + (size_t)(s->kv_heads * s->head_width);
    return p->k->attention(p->stream, &(ptb_attention){.shape = attention_shape(p),
                                                       .out = b->attention,
                                                       .lse = b->lse,
                                                       .query = b->qkv,
                                                       .key = ptb_pass_at(p, b->qkv, key),
                                                       .value = ptb_pass_at(p, b->qkv, value)});
}

static ptb_status attend_backward(const ptb_pass *p, const void *d_attention)
{
    const ptb_model_shape *s = &p->m->config.layout->local;
    ptb_block_state *b = p->state;
    void *d_qkv = p->g->d_qkv;
    size_t key = p->m->w.attention, value = key + (size_t)(s->kv_heads * s->head_width);
    return p->k->attention_gradient(p->stream,
                                    &(ptb_attention_gradient){.shape = attention_shape(p),
                                                              .d_query = d_qkv,
                                                              .d_key = ptb_pass_at(p, d_qkv, key),
                                                              .d_value = ptb_pass_at(p, d_qkv, value),
                                                              .d_out = d_attention,
                                                              .out = b->attention,
                                                              .lse = b->lse,
                                                              .query = b->qkv,
                                                              .key = ptb_pass_at(p, b->qkv, key),
                                                              .value = ptb_pass_at(p, b->qkv, value)});
}

// A plain linear layer over all rows.
static ptb_pass_layer layer(const ptb_pass *p, ptb_tensor_role weight)
{
    return (ptb_pass_layer){.weight = weight, .rows = p->m->w.rows};
}

// out = residual + dropout(layer(in))
static ptb_status add_to_stream(const ptb_pass *p, ptb_tensor_role weight, ptb_dropout_place place,
                                const void *in, const void *residual, void *out)
{
    if (p->m->config.layout->shape.dropout == 0)
        return ptb_pass_linear(p, layer(p, weight), in, residual, out);
    PTB_TRY(ptb_pass_linear(p, layer(p, weight), in, NULL, out));
    return ptb_pass_dropout(p, place, out, residual, out);
}

static ptb_status attention_forward(const ptb_pass *p)
{
    ptb_block_state *b = p->state;
    PTB_TRY(ptb_pass_norm(p, PTB_BLOCK_NORM1_GAIN, p->in, b->norm1, b->norm1_mean, b->norm1_rstd));
    PTB_TRY(ptb_pass_linear(p, layer(p, PTB_BLOCK_QKV_WEIGHT), b->norm1, NULL, b->qkv));
    PTB_TRY(rotate(p, b->qkv, false));
    PTB_TRY(attend(p));
    return add_to_stream(p, PTB_BLOCK_PROJECTION_WEIGHT, PTB_DROPOUT_PROJECTION, b->attention, p->in,
                         b->middle);
}

// again: without what backward does not need, the block's output.
static ptb_status feed_forward(const ptb_pass *p, bool again)
{
    ptb_block_state *b = p->state;
    PTB_TRY(ptb_pass_norm(p, PTB_BLOCK_NORM2_GAIN, b->middle, b->norm2, b->norm2_mean, b->norm2_rstd));
    if (p->unit->mixture)
        return ptb_mixture_forward(p, again);
    PTB_TRY(ptb_pass_up(p, layer(p, PTB_BLOCK_UP_WEIGHT), p->m->w.activated, b->norm2, b->up, b->activated));
    if (again)
        return PTB_OK;
    return add_to_stream(p, PTB_BLOCK_DOWN_WEIGHT, PTB_DROPOUT_FEED_FORWARD, b->activated, b->middle, b->out);
}

ptb_status ptb_block_forward(const ptb_pass *p)
{
    PTB_TRY(attention_forward(p));
    return feed_forward(p, false);
}

static ptb_status recompute(const ptb_pass *p)
{
    if (!ptb_model_recomputes(p->m, p->number - 1))
        return PTB_OK;
    if (p->m->config.recompute == PTB_RECOMPUTE_SELECTIVE)
        return attend(p);
    PTB_TRY(attention_forward(p));
    return feed_forward(p, true);
}

static ptb_status dense_backward(const ptb_pass *p)
{
    ptb_block_state *b = p->state;
    ptb_block_gradients *g = p->g;
    const ptb_pass_down_buffers down = {.d_out = g->d_feed,
                                        .activated = b->activated,
                                        .up = b->up,
                                        .d_activated = p->m->d_inner,
                                        .d_up = g->d_up};
    PTB_TRY(ptb_pass_down_backward(p, layer(p, PTB_BLOCK_DOWN_WEIGHT), p->m->w.activated, &down));
    return ptb_pass_linear_backward(p, layer(p, PTB_BLOCK_UP_WEIGHT), g->d_up, b->norm2, p->m->d_norm, false);
}

static ptb_status feed_forward_backward(const ptb_pass *p)
{
    ptb_block_state *b = p->state;
    ptb_block_gradients *g = p->g;
    bool input = p->parts & PTB_BACKWARD_INPUT;
    if (input && g->d_feed != g->d_out)
        PTB_TRY(ptb_pass_dropout(p, PTB_DROPOUT_FEED_FORWARD, g->d_out, NULL, g->d_feed));
    PTB_TRY(p->unit->mixture ? ptb_mixture_backward(p) : dense_backward(p));
    if (!input)
        return PTB_OK;
    ptb_pass_norm_buffers norm = {.d_in = g->d_middle,
                                  .d_out = p->m->d_norm,
                                  .in = b->middle,
                                  .residual = g->d_out,
                                  .mean = b->norm2_mean,
                                  .rstd = b->norm2_rstd};
    return ptb_pass_norm_backward(p, PTB_BLOCK_NORM2_GAIN, &norm);
}

static ptb_status attention_backward(const ptb_pass *p)
{
    ptb_block_state *b = p->state;
    ptb_block_gradients *g = p->g;
    bool input = p->parts & PTB_BACKWARD_INPUT;
    void *d_attention = p->m->d_inner;
    if (input && g->d_projection != g->d_middle)
        PTB_TRY(ptb_pass_dropout(p, PTB_DROPOUT_PROJECTION, g->d_middle, NULL, g->d_projection));
    PTB_TRY(ptb_pass_linear_backward(p, layer(p, PTB_BLOCK_PROJECTION_WEIGHT), g->d_projection, b->attention,
                                     d_attention, false));
    if (input) {
        PTB_TRY(attend_backward(p, d_attention));
        PTB_TRY(rotate(p, g->d_qkv, true));
    }
    PTB_TRY(
        ptb_pass_linear_backward(p, layer(p, PTB_BLOCK_QKV_WEIGHT), g->d_qkv, b->norm1, p->m->d_norm, false));
    if (!input)
        return PTB_OK;
    ptb_pass_norm_buffers norm = {.d_in = p->d_in,
                                  .d_out = p->m->d_norm,
                                  .in = p->in,
                                  .residual = g->d_middle,
                                  .mean = b->norm1_mean,
                                  .rstd = b->norm1_rstd};
    return ptb_pass_norm_backward(p, PTB_BLOCK_NORM1_GAIN, &norm);
}

ptb_status ptb_block_backward(const ptb_pass *p, const ptb_gradient_ready *ready)
{
    bool tell = ready && p->parts & PTB_BACKWARD_WEIGHT;
    PTB_TRY(recompute(p));
    PTB_TRY(feed_forward_backward(p));
    if (tell) {
        size_t first = ptb_unit_tensor(p->unit, PTB_BLOCK_NORM2_GAIN)->first;
        PTB_TRY(ready->call(ready->context, p->number, first));
    }
    PTB_TRY(attention_backward(p));
    return tell ? ready->call(ready->context, p->number, 0) : PTB_OK;
}
