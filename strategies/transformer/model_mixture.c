// A mixture of experts in place of a block's feed-forward: a router chooses top_k experts for each row, rows
// are put in order of expert (dispatch), every expert is a group of grouped products, and the results are
// added with the router's weights (combine). Shared experts are one dense feed-forward of their joint width
// that every row goes through. How many rows an expert gets is known to the device alone: buffers hold as
// many slots as choices can take.
//
// Experts on several ranks (strategies/expert/dispatch.h): rows go to the ranks of their experts and results
// come back. Beside that, shared experts are computed in forward, and the gradients of them and of the
// experts' weights in backward.
//
// Tensor parallelism cuts every expert by its inner width. All tp ranks route all rows, so what experts give
// is a term of a sum over ranks, and one sum follows when everything has been added up: [N, C], the gradient
// of the input [N, C], and of the router's weights [N, K].
#include "strategies/transformer/model_internal.h"

static ptb_pass_layer plain(const ptb_pass *p, ptb_tensor_role weight)
{
    return (ptb_pass_layer){.weight = weight, .rows = p->m->w.rows};
}

static ptb_pass_layer grouped(const ptb_pass *p, ptb_tensor_role weight)
{
    const ptb_block_state *b = p->state;
    bool moved = p->m->config.experts;
    return (ptb_pass_layer){.weight = weight,
                            .rows = moved ? b->flow.rows : p->m->w.slots,
                            .offsets = moved ? b->flow.offsets : b->offsets};
}

static size_t block_of(const ptb_pass *p)
{
    return p->number - 1;
}

static int slot_of(const ptb_pass *p)
{
    return (int)(p->slot - p->m->slot);
}

// again: balance losses have been taken.
static ptb_status route(const ptb_pass *p, bool again)
{
    const ptb_model_widths *w = &p->m->w;
    const ptb_model_shape *s = &p->m->config.layout->shape;
    const ptb_balance_axis *balance = again ? NULL : p->m->config.balance;
    ptb_block_state *b = p->state;
    PTB_TRY(ptb_pass_linear(p, plain(p, PTB_BLOCK_ROUTER_WEIGHT), ptb_pass_whole(p, b->norm2), NULL,
                            b->probabilities));
    ptb_route args = {.probabilities = b->probabilities,
                      .expert = b->expert,
                      .weight = b->weight,
                      .slot = b->slot,
                      .offsets = b->offsets,
                      .counts = b->counts,
                      .tally = again ? NULL : b->tally,
                      .loss = again ? NULL : p->slot->balance,
                      .sums = balance ? ptb_balance_axis_sums(balance, slot_of(p), block_of(p)) : NULL,
                      .logits = b->probabilities,
                      .rows = w->rows,
                      .experts = w->experts,
                      .top_k = w->top_k,
                      .capacity = w->capacity,
                      .part = w->flow.part,
                      .balance = s->balance,
                      .scale = p->slot->microbatch.share,
                      .normalise = s->normalise};
    PTB_TRY(p->k->route(p->stream, &args));
    if (!balance)
        return PTB_OK;
    return ptb_stream_copy(p->stream, ptb_balance_axis_counts(balance, slot_of(p), block_of(p)), b->counts,
                           w->experts * sizeof *b->counts);
}

static ptb_status dispatch(const ptb_pass *p)
{
    const ptb_block_state *b = p->state;
    return p->k->dispatch(p->stream, &(ptb_dispatch){.type = p->m->config.type,
                                                     .out = b->dispatched,
                                                     .in = ptb_pass_whole(p, b->norm2),
                                                     .slot = b->slot,
                                                     .rows = p->m->w.rows,
                                                     .top_k = p->m->w.top_k,
                                                     .width = p->m->w.hidden});
}

static ptb_status experts_forward(const ptb_pass *p, void *out)
{
    ptb_block_state *b = p->state;
    PTB_TRY(ptb_pass_up(p, grouped(p, PTB_BLOCK_EXPERTS_UP_WEIGHT), p->m->w.expert_activated, b->dispatched,
                        b->up, b->activated));
    return ptb_pass_linear(p, grouped(p, PTB_BLOCK_EXPERTS_DOWN_WEIGHT), b->activated, NULL, out);
}

static ptb_status shared_up(const ptb_pass *p)
{
    ptb_block_state *b = p->state;
    if (!p->m->w.shared_activated)
        return PTB_OK;
    return ptb_pass_up(p, plain(p, PTB_BLOCK_SHARED_UP_WEIGHT), p->m->w.shared_activated,
                       ptb_pass_whole(p, b->norm2), b->shared_up, b->shared_activated);
}

// Of some rows; residual may be NULL.
static ptb_status combine(const ptb_pass *p, ptb_range rows, const void *residual, void *out)
{
    const ptb_model_widths *w = &p->m->w;
    size_t before = rows.first * w->hidden * w->element, choice = rows.first * w->top_k;
    return p->k->combine(p->stream,
                         &(ptb_combine){.type = p->m->config.type,
                                        .out = (char *)out + before,
                                        .in = p->state->expert_out,
                                        .weight = p->state->weight + choice,
                                        .slot = p->state->slot + choice,
                                        .residual = residual ? (const char *)residual + before : NULL,
                                        .rows = rows.count,
                                        .top_k = w->top_k,
                                        .width = w->hidden});
}

// What the block adds to without the experts: the residual stream, where it is added now, and what shared
// experts compute.
static ptb_status shared_down(const ptb_pass *p, const void **sum)
{
    ptb_block_state *b = p->state;
    void *term = ptb_pass_term(p, b->out);
    *sum = ptb_pass_residual(p, b->middle);
    if (!p->m->w.shared_activated)
        return PTB_OK;
    PTB_TRY(ptb_pass_linear(p, plain(p, PTB_BLOCK_SHARED_DOWN_WEIGHT), b->shared_activated, *sum, term));
    *sum = term;
    return PTB_OK;
}

static ptb_status sum_terms(const ptb_pass *p, void *out)
{
    for (int i = 0; i < ptb_pass_sum_chunks(p); i++)
        PTB_TRY(ptb_pass_sum(p, i, out));
    return ptb_pass_join(p);
}

// Experts on several ranks. When everything is computed again for the weights' gradients alone, nothing needs
// to come back.
static ptb_status moved_forward(const ptb_pass *p, bool again)
{
    ptb_block_state *b = p->state;
    ptb_expert_axis *axis = p->m->config.experts;
    const ptb_expert_dispatch *move = axis->env.dispatch;
    void *computed = axis->sizes.apart ? p->m->d_inner : b->expert_out;
    const void *sum = NULL;
    PTB_TRY(move->there(axis, &b->flow, ptb_pass_whole(p, b->norm2)));
    PTB_TRY(shared_up(p));
    if (!again)
        PTB_TRY(shared_down(p, &sum));
    PTB_TRY(move->arrive(axis, &b->flow, b->dispatched));
    PTB_TRY(experts_forward(p, computed));
    if (again && (!axis->sizes.apart || !(p->parts & PTB_BACKWARD_INPUT)))
        return PTB_OK;
    PTB_TRY(move->back(axis, &b->flow, computed));
    PTB_TRY(move->combine(axis, &b->flow, sum, again ? NULL : ptb_pass_term(p, b->out)));
    return again ? PTB_OK : sum_terms(p, b->out);
}

static ptb_status own_forward(const ptb_pass *p, bool again)
{
    ptb_block_state *b = p->state;
    const void *sum;
    PTB_TRY(dispatch(p));
    PTB_TRY(experts_forward(p, b->expert_out));
    PTB_TRY(shared_up(p));
    if (again)
        return PTB_OK;
    PTB_TRY(shared_down(p, &sum));
    for (int i = 0; i < ptb_pass_sum_chunks(p); i++) {
        PTB_TRY(combine(p, ptb_pass_sum_chunk(p, i), sum, ptb_pass_term(p, b->out)));
        PTB_TRY(ptb_pass_sum(p, i, b->out));
    }
    return ptb_pass_join(p);
}

ptb_status ptb_mixture_forward(const ptb_pass *p, bool again)
{
    ptb_block_state *b = p->state;
    PTB_TRY(ptb_pass_wait_all(p));
    PTB_TRY(route(p, again));
    PTB_TRY(p->m->config.experts ? moved_forward(p, again) : own_forward(p, again));
    return again ? PTB_OK : ptb_pass_add_residual(p, PTB_DROPOUT_FEED_FORWARD, b->middle, b->out);
}

static ptb_status combine_backward(const ptb_pass *p)
{
    const ptb_block_state *b = p->state;
    return p->k->combine_gradient(p->stream, &(ptb_combine_gradient){.type = p->m->config.type,
                                                                     .d_in = p->g->d_expert_out,
                                                                     .d_weight = p->m->d_weight,
                                                                     .d_out = ptb_pass_whole(p, p->g->d_feed),
                                                                     .in = b->expert_out,
                                                                     .weight = b->weight,
                                                                     .slot = b->slot,
                                                                     .rows = p->m->w.rows,
                                                                     .top_k = p->m->w.top_k,
                                                                     .width = p->m->w.hidden});
}

// The gradients of the experts' products; d_inner becomes that of their input.
static ptb_status products_backward(const ptb_pass *p)
{
    const ptb_block_state *b = p->state;
    void *d_inner = p->m->d_inner; // of activated, then of dispatched
    const ptb_pass_down_buffers down = {.d_out = p->g->d_expert_out,
                                        .activated = b->activated,
                                        .up = b->up,
                                        .d_activated = d_inner,
                                        .d_up = p->g->d_up};
    PTB_TRY(ptb_pass_down_backward(p, grouped(p, PTB_BLOCK_EXPERTS_DOWN_WEIGHT), p->m->w.expert_activated,
                                   &down));
    return ptb_pass_linear_backward(p, grouped(p, PTB_BLOCK_EXPERTS_UP_WEIGHT), p->g->d_up, b->dispatched,
                                    d_inner, false);
}

// Writes d_norm; begins to sum the gradient of the router's weights.
static ptb_status experts_backward(const ptb_pass *p)
{
    bool input = p->parts & PTB_BACKWARD_INPUT;
    if (input) {
        PTB_TRY(combine_backward(p));
        PTB_TRY(ptb_pass_sum_values(p, p->m->d_weight, p->m->w.rows * p->m->w.top_k));
    }
    PTB_TRY(products_backward(p));
    if (!input)
        return PTB_OK;
    return p->k->dispatch_gradient(p->stream, &(ptb_dispatch_gradient){.type = p->m->config.type,
                                                                       .d_in = ptb_pass_term(p, p->m->d_norm),
                                                                       .d_out = p->m->d_inner,
                                                                       .slot = p->state->slot,
                                                                       .rows = p->m->w.rows,
                                                                       .top_k = p->m->w.top_k,
                                                                       .width = p->m->w.hidden});
}

// Adds to d_norm, or writes it; after d_weight.
static ptb_status router_backward(const ptb_pass *p, bool add)
{
    const ptb_model_widths *w = &p->m->w;
    const ptb_model_shape *s = &p->m->config.layout->shape;
    const ptb_block_state *b = p->state;
    const ptb_balance_axis *balance = p->m->config.balance;
    ptb_route_gradient route = {.type = p->m->config.type,
                                .d_logits = p->g->d_router,
                                .d_weight = p->m->d_weight,
                                .probabilities = b->probabilities,
                                .weight = b->weight,
                                .expert = b->expert,
                                .counts = balance ? ptb_balance_axis_counts(balance, slot_of(p), block_of(p))
                                                  : b->counts,
                                .counted = balance ? (size_t)balance->env.ranks * w->rows : 0,
                                .factor = p->slot->microbatch.factor,
                                .rows = w->rows,
                                .experts = w->experts,
                                .top_k = w->top_k,
                                .balance = s->balance,
                                .scale = p->slot->microbatch.share,
                                .normalise = s->normalise};
    void *term = ptb_pass_term(p, p->m->d_norm);
    bool input = p->parts & PTB_BACKWARD_INPUT;
    ptb_pass here = *p; // the first rank's term has what is the same on all
    if (!ptb_pass_is_first(p))
        here.parts &= ~PTB_BACKWARD_INPUT;
    if (input)
        PTB_TRY(p->k->route_gradient(p->stream, &route));
    if (input && !ptb_pass_is_first(p) && !add)
        PTB_TRY(ptb_stream_set(p->stream, term, 0, w->rows * w->hidden * w->element));
    return ptb_pass_linear_backward(&here, plain(p, PTB_BLOCK_ROUTER_WEIGHT), p->g->d_router,
                                    ptb_pass_whole(p, b->norm2), term, add);
}

static ptb_status shared_down_backward(const ptb_pass *p)
{
    const ptb_block_state *b = p->state;
    const ptb_pass_down_buffers down = {.d_out = ptb_pass_whole(p, p->g->d_feed),
                                        .activated = b->shared_activated,
                                        .up = b->shared_up,
                                        .d_activated = p->m->d_inner,
                                        .d_up = p->g->d_shared_up};
    if (!p->m->w.shared_activated)
        return PTB_OK;
    return ptb_pass_down_backward(p, plain(p, PTB_BLOCK_SHARED_DOWN_WEIGHT), p->m->w.shared_activated, &down);
}

// Adds to d_norm, or writes it.
static ptb_status shared_up_backward(const ptb_pass *p, bool add)
{
    if (!p->m->w.shared_activated)
        return PTB_OK;
    return ptb_pass_linear_backward(p, plain(p, PTB_BLOCK_SHARED_UP_WEIGHT), p->g->d_shared_up,
                                    ptb_pass_whole(p, p->state->norm2), ptb_pass_term(p, p->m->d_norm), add);
}

// With sequence parallelism the gradient of the output and the input are gathered into the same memory, one
// after the other.
static ptb_status gather_output_gradient(const ptb_pass *p)
{
    PTB_TRY(ptb_pass_gather(p, p->g->d_feed));
    return ptb_pass_wait_all(p);
}

static ptb_status gather_input(const ptb_pass *p)
{
    if (!(p->parts & PTB_BACKWARD_WEIGHT))
        return PTB_OK;
    PTB_TRY(ptb_pass_gather(p, p->state->norm2));
    return ptb_pass_wait_all(p);
}

// Gradients of results go there while those of the shared experts are computed, gradients of rows come back
// while those of the experts' weights are.
static ptb_status moved_input(const ptb_pass *p)
{
    const ptb_pass input = ptb_pass_parts(p, PTB_BACKWARD_INPUT),
                   weight = ptb_pass_parts(p, PTB_BACKWARD_WEIGHT);
    ptb_expert_axis *axis = p->m->config.experts;
    const ptb_expert_dispatch *move = axis->env.dispatch;
    ptb_expert_flow *flow = &p->state->flow;
    bool sliced = ptb_pass_is_sliced(p);
    PTB_TRY(gather_output_gradient(p));
    PTB_TRY(move->gradient_there(axis, flow, ptb_pass_whole(p, p->g->d_feed), p->m->d_weight));
    PTB_TRY(shared_down_backward(p));
    PTB_TRY(shared_up_backward(sliced ? &input : p, false));
    PTB_TRY(move->gradient_arrive(axis, flow, p->m->d_weight, p->g->d_expert_out));
    PTB_TRY(ptb_pass_sum_values(p, p->m->d_weight, p->m->w.rows * p->m->w.top_k));
    PTB_TRY(products_backward(&input));
    PTB_TRY(move->gradient_back(axis, flow, p->m->d_inner));
    PTB_TRY(products_backward(&weight));
    PTB_TRY(gather_input(p));
    PTB_TRY(ptb_pass_join(p)); // the gradient of the router's weights
    PTB_TRY(router_backward(p, p->m->w.shared_activated));
    if (sliced)
        PTB_TRY(shared_up_backward(&weight, true));
    PTB_TRY(move->gradient_leave(axis, flow, ptb_pass_term(p, p->m->d_norm)));
    return sum_terms(p, p->m->d_norm);
}

ptb_status ptb_mixture_backward(const ptb_pass *p)
{
    bool input = p->parts & PTB_BACKWARD_INPUT;
    if (p->m->config.experts && input)
        return moved_input(p);
    if (input || p->m->w.shared_activated)
        PTB_TRY(gather_output_gradient(p));
    PTB_TRY(experts_backward(p));
    PTB_TRY(shared_down_backward(p));
    PTB_TRY(gather_input(p));
    PTB_TRY(ptb_pass_join(p)); // the gradient of the router's weights
    PTB_TRY(router_backward(p, true));
    PTB_TRY(shared_up_backward(p, true));
    return input ? sum_terms(p, p->m->d_norm) : PTB_OK;
}
