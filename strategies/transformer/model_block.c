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
    for (size_t i = 0; i < ptb_pass_pieces(p); i++) {
        ptb_pass_piece piece = ptb_pass_piece_at(p, i);
        ptb_rotary args = {.type = p->m->config.type,
                           .values = ptb_pass_at(p, qkv, piece.first * p->m->w.qkv),
                           .rows = piece.rows,
                           .stride = p->m->w.qkv,
                           .heads = (size_t)(s->heads + s->kv_heads),
                           .head_width = (size_t)s->head_width,
                           .length = piece.length,
                           .offset = piece.offset,
                           .start = p->slot->starts ? p->slot->starts + piece.first : NULL,
                           .base = (float)s->rotary_base,
                           .inverse = inverse};
        PTB_TRY(p->k->rotary(p->stream, &args));
    }
    return PTB_OK;
}

static ptb_status attend(const ptb_pass *p)
{
    const ptb_model_shape *s = &p->m->config.layout->local;
    ptb_block_state *b = p->state;
    ptb_context_axis *context = p->m->config.context;
    if (context)
        return context->ops->forward(context, &(ptb_context_forward){.shape = attention_shape(p),
                                                                     .qkv = b->qkv,
                                                                     .out = b->attention,
                                                                     .lse = b->lse,
                                                                     .kept = b->context});
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
    ptb_context_axis *context = p->m->config.context;
    if (context)
        return context->ops->backward(context, &(ptb_context_backward){.shape = attention_shape(p),
                                                                       .d_qkv = d_qkv,
                                                                       .qkv = b->qkv,
                                                                       .out = b->attention,
                                                                       .d_out = d_attention,
                                                                       .lse = b->lse,
                                                                       .kept = b->context});
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

static const void *at(const ptb_pass *p, const void *base, size_t elements)
{
    return (const char *)base + elements * p->m->w.element;
}

// Chunks of rows as they arrive.
static ptb_status project_qkv(const ptb_pass *p)
{
    const ptb_model_widths *w = &p->m->w;
    ptb_block_state *b = p->state;
    PTB_TRY(ptb_pass_gather(p, b->norm1));
    for (int i = 0; i < ptb_pass_gather_chunks(p); i++) {
        ptb_range rows = ptb_pass_gather_chunk(p, i);
        const void *in = at(p, ptb_pass_whole(p, b->norm1), rows.first * w->hidden);
        ptb_pass_layer qkv = {.weight = PTB_BLOCK_QKV_WEIGHT, .rows = rows.count};
        PTB_TRY(ptb_pass_wait(p, i));
        PTB_TRY(ptb_pass_linear(p, qkv, in, NULL, ptb_pass_at(p, b->qkv, rows.first * w->qkv)));
    }
    return PTB_OK;
}

static ptb_status attention_forward(const ptb_pass *p)
{
    ptb_block_state *b = p->state;
    PTB_TRY(ptb_pass_norm(p, PTB_BLOCK_NORM1_GAIN, p->in, b->norm1, b->norm1_mean, b->norm1_rstd));
    PTB_TRY(project_qkv(p));
    PTB_TRY(rotate(p, b->qkv, false));
    PTB_TRY(attend(p));
    return ptb_pass_row_parallel(p, PTB_BLOCK_PROJECTION_WEIGHT, PTB_DROPOUT_PROJECTION, b->attention, p->in,
                                 b->middle);
}

static ptb_status dense_up(const ptb_pass *p)
{
    const ptb_model_widths *w = &p->m->w;
    ptb_block_state *b = p->state;
    for (int i = 0; i < ptb_pass_gather_chunks(p); i++) {
        ptb_range rows = ptb_pass_gather_chunk(p, i);
        const void *in = at(p, ptb_pass_whole(p, b->norm2), rows.first * w->hidden);
        ptb_pass_layer up = {.weight = PTB_BLOCK_UP_WEIGHT, .rows = rows.count};
        PTB_TRY(ptb_pass_wait(p, i));
        PTB_TRY(ptb_pass_up(p, up, w->activated, in, ptb_pass_at(p, b->up, rows.first * w->up),
                            ptb_pass_at(p, b->activated, rows.first * w->activated)));
    }
    return PTB_OK;
}

// again: without what backward does not need, the block's output.
static ptb_status feed_forward(const ptb_pass *p, bool again)
{
    ptb_block_state *b = p->state;
    PTB_TRY(ptb_pass_norm(p, PTB_BLOCK_NORM2_GAIN, b->middle, b->norm2, b->norm2_mean, b->norm2_rstd));
    PTB_TRY(ptb_pass_gather(p, b->norm2));
    if (p->unit->mixture)
        return ptb_mixture_forward(p, again);
    PTB_TRY(dense_up(p));
    if (again)
        return PTB_OK;
    return ptb_pass_row_parallel(p, PTB_BLOCK_DOWN_WEIGHT, PTB_DROPOUT_FEED_FORWARD, b->activated, b->middle,
                                 b->out);
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

// Rows [first, first + count) of what the layer down and its activation have.
static ptb_pass_down_buffers down_rows(const ptb_pass *p, ptb_range rows)
{
    const ptb_model_widths *w = &p->m->w;
    const ptb_block_state *b = p->state;
    size_t inner = rows.first * w->activated, up = rows.first * w->up;
    return (ptb_pass_down_buffers){.d_out = at(p, ptb_pass_whole(p, p->g->d_feed), rows.first * w->hidden),
                                   .activated = at(p, b->activated, inner),
                                   .up = at(p, b->up, up),
                                   .d_activated = ptb_pass_at(p, p->m->d_inner, inner),
                                   .d_up = ptb_pass_at(p, p->g->d_up, up)};
}

static ptb_status dense_backward(const ptb_pass *p)
{
    ptb_block_gradients *g = p->g;
    ptb_pass input = ptb_pass_parts(p, PTB_BACKWARD_INPUT), later = ptb_pass_parts(p, PTB_BACKWARD_WEIGHT);
    ptb_pass_layer down = {.weight = PTB_BLOCK_DOWN_WEIGHT, .rows = p->m->w.rows};
    PTB_TRY(ptb_pass_gather(p, g->d_feed));
    for (int i = 0; i < ptb_pass_gather_chunks(p); i++) {
        ptb_range rows = ptb_pass_gather_chunk(p, i);
        ptb_pass_down_buffers buffers = down_rows(p, rows);
        ptb_pass_layer some = {.weight = PTB_BLOCK_DOWN_WEIGHT, .rows = rows.count};
        PTB_TRY(ptb_pass_wait(p, i));
        PTB_TRY(ptb_pass_down_backward(&input, some, p->m->w.activated, &buffers));
    }
    ptb_pass_down_buffers all = down_rows(p, (ptb_range){0, p->m->w.rows});
    PTB_TRY(ptb_pass_down_backward(&later, down, p->m->w.activated, &all));
    if (later.parts)
        PTB_TRY(ptb_pass_gather(p, p->state->norm2));
    return ptb_pass_column_backward(p, PTB_BLOCK_UP_WEIGHT, g->d_up, p->state->norm2);
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
    PTB_TRY(
        ptb_pass_row_backward(p, PTB_BLOCK_PROJECTION_WEIGHT, g->d_projection, b->attention, d_attention));
    if (p->parts & PTB_BACKWARD_WEIGHT)
        PTB_TRY(ptb_pass_gather(p, b->norm1)); // beside attention
    if (input) {
        PTB_TRY(attend_backward(p, d_attention));
        PTB_TRY(rotate(p, g->d_qkv, true));
    }
    PTB_TRY(ptb_pass_column_backward(p, PTB_BLOCK_QKV_WEIGHT, g->d_qkv, b->norm1));
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
    // Of a cut unit the tensors of both halves are mixed, but for experts.
    size_t first = p->m->config.tensor ? p->unit->group[PTB_GROUP_EXPERT].first
                                       : ptb_unit_tensor(p->unit, PTB_BLOCK_NORM2_GAIN)->first;
    PTB_TRY(recompute(p));
    PTB_TRY(feed_forward_backward(p));
    PTB_TRY(ptb_pass_ready(p, ready, first));
    PTB_TRY(attention_backward(p));
    return ptb_pass_ready(p, ready, 0);
}
