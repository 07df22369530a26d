// A mixture of experts in place of a block's feed-forward: a router chooses top_k experts for each row, rows
// are put in order of expert (dispatch), every expert is a group of grouped products, and the results are
// added with the router's weights (combine). Shared experts are one dense feed-forward of their joint width
// that every row goes through. How many rows an expert gets is known to the device alone: buffers hold as
// many slots as choices can take.
#include "strategies/transformer/model_internal.h"

static ptb_pass_layer plain(const ptb_pass *p, ptb_tensor_role weight)
{
    return (ptb_pass_layer){.weight = weight, .rows = p->m->w.rows};
}

static ptb_pass_layer grouped(const ptb_pass *p, ptb_tensor_role weight)
{
    return (ptb_pass_layer){.weight = weight, .rows = p->m->w.slots, .offsets = p->state->offsets};
}

static bool has_balance(const ptb_pass *p)
{
    return p->m->config.layout->shape.balance > 0;
}

static ptb_status route(const ptb_pass *p, bool again)
{
    const ptb_model_widths *w = &p->m->w;
    const ptb_model_shape *s = &p->m->config.layout->shape;
    ptb_block_state *b = p->state;
    PTB_TRY(ptb_pass_linear(p, plain(p, PTB_BLOCK_ROUTER_WEIGHT), b->norm2, NULL, b->probabilities));
    return p->k->route(p->stream, &(ptb_route){.probabilities = b->probabilities,
                                               .expert = b->expert,
                                               .weight = b->weight,
                                               .slot = b->slot,
                                               .offsets = b->offsets,
                                               .counts = b->counts,
                                               .loss = has_balance(p) && !again ? p->slot->balance : NULL,
                                               .logits = b->probabilities,
                                               .rows = w->rows,
                                               .experts = w->experts,
                                               .top_k = w->top_k,
                                               .capacity = w->capacity,
                                               .balance = s->balance,
                                               .scale = p->slot->microbatch.share,
                                               .normalise = s->normalise});
}

static ptb_status experts_forward(const ptb_pass *p)
{
    const ptb_model_widths *w = &p->m->w;
    ptb_block_state *b = p->state;
    PTB_TRY(p->k->dispatch(p->stream, &(ptb_dispatch){.type = p->m->config.type,
                                                      .out = b->dispatched,
                                                      .in = b->norm2,
                                                      .slot = b->slot,
                                                      .rows = w->rows,
                                                      .top_k = w->top_k,
                                                      .width = w->hidden}));
    PTB_TRY(ptb_pass_up(p, grouped(p, PTB_BLOCK_EXPERTS_UP_WEIGHT), w->expert_activated, b->dispatched, b->up,
                        b->activated));
    return ptb_pass_linear(p, grouped(p, PTB_BLOCK_EXPERTS_DOWN_WEIGHT), b->activated, NULL, b->expert_out);
}

static ptb_status combine(const ptb_pass *p, const void *residual, void *out)
{
    return p->k->combine(p->stream, &(ptb_combine){.type = p->m->config.type,
                                                   .out = out,
                                                   .in = p->state->expert_out,
                                                   .weight = p->state->weight,
                                                   .slot = p->state->slot,
                                                   .residual = residual,
                                                   .rows = p->m->w.rows,
                                                   .top_k = p->m->w.top_k,
                                                   .width = p->m->w.hidden});
}

ptb_status ptb_mixture_forward(const ptb_pass *p, bool again)
{
    const ptb_model_widths *w = &p->m->w;
    ptb_block_state *b = p->state;
    bool shared = w->shared_activated, drops = p->m->config.layout->shape.dropout > 0;
    PTB_TRY(route(p, again));
    PTB_TRY(experts_forward(p));
    if (shared) {
        PTB_TRY(ptb_pass_up(p, plain(p, PTB_BLOCK_SHARED_UP_WEIGHT), w->shared_activated, b->norm2,
                            b->shared_up, b->shared_activated));
    }
    if (again)
        return PTB_OK;
    const void *residual = drops ? NULL : b->middle; // dropout comes before the residual is added
    if (shared) {
        PTB_TRY(ptb_pass_linear(p, plain(p, PTB_BLOCK_SHARED_DOWN_WEIGHT), b->shared_activated, residual,
                                b->out));
        residual = b->out;
    }
    PTB_TRY(combine(p, residual, b->out));
    return drops ? ptb_pass_dropout(p, PTB_DROPOUT_FEED_FORWARD, b->out, b->middle, b->out) : PTB_OK;
}

static ptb_status combine_backward(const ptb_pass *p)
{
    const ptb_block_state *b = p->state;
    return p->k->combine_gradient(p->stream, &(ptb_combine_gradient){.type = p->m->config.type,
                                                                     .d_in = p->g->d_expert_out,
                                                                     .d_weight = p->m->d_weight,
                                                                     .d_out = p->g->d_feed,
                                                                     .in = b->expert_out,
                                                                     .weight = b->weight,
                                                                     .slot = b->slot,
                                                                     .rows = p->m->w.rows,
                                                                     .top_k = p->m->w.top_k,
                                                                     .width = p->m->w.hidden});
}

// Writes d_norm.
static ptb_status experts_backward(const ptb_pass *p)
{
    const ptb_model_widths *w = &p->m->w;
    const ptb_block_state *b = p->state;
    void *d_up = p->g->d_up, *d_inner = p->m->d_inner; // d_inner: of activated, then of dispatched
    bool input = p->parts & PTB_BACKWARD_INPUT;
    if (input)
        PTB_TRY(combine_backward(p));
    const ptb_pass_down_buffers down = {.d_out = p->g->d_expert_out,
                                        .activated = b->activated,
                                        .up = b->up,
                                        .d_activated = d_inner,
                                        .d_up = d_up};
    PTB_TRY(ptb_pass_down_backward(p, grouped(p, PTB_BLOCK_EXPERTS_DOWN_WEIGHT), w->expert_activated, &down));
    PTB_TRY(ptb_pass_linear_backward(p, grouped(p, PTB_BLOCK_EXPERTS_UP_WEIGHT), d_up, b->dispatched, d_inner,
                                     false));
    if (!input)
        return PTB_OK;
    return p->k->dispatch_gradient(p->stream, &(ptb_dispatch_gradient){.type = p->m->config.type,
                                                                       .d_in = p->m->d_norm,
                                                                       .d_out = d_inner,
                                                                       .slot = b->slot,
                                                                       .rows = w->rows,
                                                                       .top_k = w->top_k,
                                                                       .width = w->hidden});
}

// Adds to d_norm.
static ptb_status router_backward(const ptb_pass *p)
{
    const ptb_model_widths *w = &p->m->w;
    const ptb_model_shape *s = &p->m->config.layout->shape;
    const ptb_block_state *b = p->state;
    ptb_route_gradient route = {.type = p->m->config.type,
                                .d_logits = p->g->d_router,
                                .d_weight = p->m->d_weight,
                                .probabilities = b->probabilities,
                                .weight = b->weight,
                                .expert = b->expert,
                                .counts = b->counts,
                                .factor = p->slot->microbatch.factor,
                                .rows = w->rows,
                                .experts = w->experts,
                                .top_k = w->top_k,
                                .balance = s->balance,
                                .scale = p->slot->microbatch.share,
                                .normalise = s->normalise};
    if (p->parts & PTB_BACKWARD_INPUT)
        PTB_TRY(p->k->route_gradient(p->stream, &route));
    return ptb_pass_linear_backward(p, plain(p, PTB_BLOCK_ROUTER_WEIGHT), p->g->d_router, b->norm2,
                                    p->m->d_norm, true);
}

// Adds to d_norm.
static ptb_status shared_backward(const ptb_pass *p)
{
    const ptb_model_widths *w = &p->m->w;
    const ptb_block_state *b = p->state;
    const ptb_pass_down_buffers down = {.d_out = p->g->d_feed,
                                        .activated = b->shared_activated,
                                        .up = b->shared_up,
                                        .d_activated = p->m->d_inner,
                                        .d_up = p->g->d_shared_up};
    PTB_TRY(ptb_pass_down_backward(p, plain(p, PTB_BLOCK_SHARED_DOWN_WEIGHT), w->shared_activated, &down));
    return ptb_pass_linear_backward(p, plain(p, PTB_BLOCK_SHARED_UP_WEIGHT), p->g->d_shared_up, b->norm2,
                                    p->m->d_norm, true);
}

ptb_status ptb_mixture_backward(const ptb_pass *p)
{
    PTB_TRY(experts_backward(p));
    PTB_TRY(router_backward(p));
    return p->m->w.shared_activated ? shared_backward(p) : PTB_OK;
}
