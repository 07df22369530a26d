// Steps that units have in common: a linear layer, a norm, an activation, dropout, each with its gradient.
#include "strategies/transformer/model_internal.h"

#include "core/random.h"

uint64_t ptb_model_dropout_seed(uint64_t seed, uint64_t step, size_t unit, ptb_dropout_place place)
{
    return ptb_random_u64(seed, step, (uint64_t)unit << 8 | place);
}

const void *ptb_pass_parameter(const ptb_pass *p, ptb_tensor_role role)
{
    const ptb_tensor *t = ptb_unit_tensor(p->unit, role);
    return t ? (const char *)p->memory->parameters + t->first * p->m->w.element : NULL;
}

float *ptb_pass_gradient(const ptb_pass *p, ptb_tensor_role role)
{
    const ptb_tensor *t = ptb_unit_tensor(p->unit, role);
    return t ? p->memory->gradients + t->first : NULL;
}

size_t ptb_pass_pieces(const ptb_pass *p)
{
    const ptb_context_axis *context = p->m->config.context;
    return context ? context->slices.pieces : 1;
}

ptb_pass_piece ptb_pass_piece_at(const ptb_pass *p, size_t i)
{
    const ptb_model_config *c = &p->m->config;
    if (!c->context)
        return (ptb_pass_piece){.rows = p->m->w.rows, .length = (size_t)c->layout->shape.sequence};
    const ptb_slices *slices = &c->context->slices;
    size_t rows = (size_t)c->batch * slices->length;
    return (ptb_pass_piece){
        .first = i * rows, .rows = rows, .length = slices->length, .offset = slices->offset[i]};
}

void *ptb_pass_at(const ptb_pass *p, void *base, size_t elements)
{
    return (char *)base + elements * p->m->w.element;
}

// PTB_ROLE_COUNT: a layer without.
static ptb_tensor_role bias_of(ptb_tensor_role weight)
{
    switch (weight) {
    case PTB_BLOCK_QKV_WEIGHT:
        return PTB_BLOCK_QKV_BIAS;
    case PTB_BLOCK_PROJECTION_WEIGHT:
        return PTB_BLOCK_PROJECTION_BIAS;
    case PTB_BLOCK_UP_WEIGHT:
        return PTB_BLOCK_UP_BIAS;
    case PTB_BLOCK_DOWN_WEIGHT:
        return PTB_BLOCK_DOWN_BIAS;
    default:
        return PTB_ROLE_COUNT;
    }
}

// Whether this rank must leave out what is the same on all tp ranks: their results are summed.
static bool is_left_out(const ptb_pass *p, ptb_tensor_role role)
{
    const ptb_tensor *t = ptb_unit_tensor(p->unit, role);
    return t && t->replicated && !ptb_pass_is_first(p);
}

// The bias that this rank adds to its term of a layer's output.
static const void *bias_here(const ptb_pass *p, ptb_tensor_role bias)
{
    return bias == PTB_ROLE_COUNT || is_left_out(p, bias) ? NULL : ptb_pass_parameter(p, bias);
}

// Of a gradient that has been computed from all rows and will be summed over ranks (sum_replicated).
static bool is_zero_here(const ptb_pass *p, ptb_tensor_role role)
{
    return role != PTB_ROLE_COUNT && ptb_pass_is_sliced(p) && is_left_out(p, role);
}

static ptb_status zero_gradient(const ptb_pass *p, ptb_tensor_role role)
{
    const ptb_tensor *t = ptb_unit_tensor(p->unit, role);
    if (p->accumulate)
        return PTB_OK;
    return ptb_stream_set(p->stream, ptb_pass_gradient(p, role), 0, ptb_tensor_count(t) * sizeof(float));
}

ptb_status ptb_pass_linear(const ptb_pass *p, ptb_pass_layer layer, const void *in, const void *residual,
                           void *out)
{
    const ptb_tensor *w = ptb_unit_tensor(p->unit, layer.weight);
    return p->k->matmul(p->stream, &(ptb_matmul){.type = p->m->config.type,
                                                 .out = out,
                                                 .in = in,
                                                 .weight = ptb_pass_parameter(p, layer.weight),
                                                 .bias = bias_here(p, bias_of(layer.weight)),
                                                 .residual = residual,
                                                 .activated = layer.activated,
                                                 .rows = layer.rows,
                                                 .columns = w->rows,
                                                 .inner = w->columns,
                                                 .groups = layer.offsets ? w->matrices : 0,
                                                 .offsets = layer.offsets,
                                                 .wide = layer.weight == PTB_BLOCK_ROUTER_WEIGHT});
}

ptb_status ptb_pass_linear_backward(const ptb_pass *p, ptb_pass_layer layer, const void *d_out,
                                    const void *in, void *d_in, bool add)
{
    const ptb_tensor *w = ptb_unit_tensor(p->unit, layer.weight);
    ptb_tensor_role bias = bias_of(layer.weight);
    ptb_matmul_input_gradient input = {.type = p->m->config.type,
                                       .d_in = d_in,
                                       .d_out = d_out,
                                       .weight = ptb_pass_parameter(p, layer.weight),
                                       .gelu_in = layer.gelu_in,
                                       .rows = layer.rows,
                                       .columns = w->rows,
                                       .inner = w->columns,
                                       .groups = layer.offsets ? w->matrices : 0,
                                       .offsets = layer.offsets,
                                       .accumulate = add};
    ptb_matmul_weight_gradient weight = {.type = p->m->config.type,
                                         .d_weight = ptb_pass_gradient(p, layer.weight),
                                         .d_bias = bias == PTB_ROLE_COUNT ? NULL : ptb_pass_gradient(p, bias),
                                         .d_out = d_out,
                                         .in = in,
                                         .rows = layer.rows,
                                         .columns = w->rows,
                                         .inner = w->columns,
                                         .groups = layer.offsets ? w->matrices : 0,
                                         .offsets = layer.offsets,
                                         .accumulate = p->accumulate};
    if (p->parts & PTB_BACKWARD_INPUT)
        PTB_TRY(p->k->matmul_input_gradient(p->stream, &input));
    if (!(p->parts & PTB_BACKWARD_WEIGHT))
        return PTB_OK;
    if (is_zero_here(p, bias) && weight.d_bias) {
        PTB_TRY(zero_gradient(p, bias));
        weight.d_bias = NULL;
    }
    if (is_zero_here(p, layer.weight)) // the router's
        return zero_gradient(p, layer.weight);
    return p->k->matmul_weight_gradient(p->stream, &weight);
}

ptb_status ptb_pass_norm(const ptb_pass *p, ptb_tensor_role gain, const void *in, void *out, float *mean,
                         float *rstd)
{
    return p->k->norm(p->stream, &(ptb_norm){.type = p->m->config.type,
                                             .out = out,
                                             .mean = mean,
                                             .rstd = rstd,
                                             .in = in,
                                             .gain = ptb_pass_parameter(p, gain),
                                             .bias = ptb_pass_parameter(p, (ptb_tensor_role)(gain + 1)),
                                             .rows = p->m->w.slice,
                                             .width = p->m->w.hidden,
                                             .epsilon = (float)p->m->config.layout->shape.epsilon});
}

ptb_status ptb_pass_norm_backward(const ptb_pass *p, ptb_tensor_role gain, const ptb_pass_norm_buffers *b)
{
    return p->k->norm_gradient(
        p->stream, &(ptb_norm_gradient){.type = p->m->config.type,
                                        .d_in = b->d_in,
                                        .d_gain = ptb_pass_gradient(p, gain),
                                        .d_bias = ptb_pass_gradient(p, (ptb_tensor_role)(gain + 1)),
                                        .d_out = b->d_out,
                                        .in = b->in,
                                        .mean = b->mean,
                                        .rstd = b->rstd,
                                        .gain = ptb_pass_parameter(p, gain),
                                        .residual = b->residual,
                                        .rows = p->m->w.slice,
                                        .width = p->m->w.hidden,
                                        .accumulate = p->accumulate});
}

// Rows of a grouped layer that are some group's; NULL: all are.
static const int32_t *used_rows(const ptb_pass *p, ptb_pass_layer layer)
{
    return layer.offsets ? layer.offsets + ptb_unit_tensor(p->unit, layer.weight)->matrices : NULL;
}

static ptb_status activate(const ptb_pass *p, ptb_pass_layer layer, size_t width, const void *in, void *out)
{
    return p->k->activation(p->stream, &(ptb_activation){.type = p->m->config.type,
                                                         .out = out,
                                                         .in = in,
                                                         .rows = layer.rows,
                                                         .width = width,
                                                         .kind = p->m->config.layout->shape.activation,
                                                         .used = used_rows(p, layer)});
}

static ptb_status activate_backward(const ptb_pass *p, ptb_pass_layer layer, size_t width,
                                    const ptb_pass_down_buffers *b)
{
    return p->k->activation_gradient(p->stream,
                                     &(ptb_activation_gradient){.type = p->m->config.type,
                                                                .d_in = b->d_up,
                                                                .d_out = b->d_activated,
                                                                .in = b->up,
                                                                .rows = layer.rows,
                                                                .width = width,
                                                                .kind = p->m->config.layout->shape.activation,
                                                                .used = used_rows(p, layer)});
}

static bool is_gelu(const ptb_pass *p)
{
    return p->m->config.layout->shape.activation == PTB_GELU;
}

ptb_status ptb_pass_up(const ptb_pass *p, ptb_pass_layer layer, size_t width, const void *in, void *up,
                       void *activated)
{
    if (is_gelu(p))
        layer.activated = activated;
    PTB_TRY(ptb_pass_linear(p, layer, in, NULL, up));
    return is_gelu(p) ? PTB_OK : activate(p, layer, width, up, activated);
}

ptb_status ptb_pass_down_backward(const ptb_pass *p, ptb_pass_layer layer, size_t width,
                                  const ptb_pass_down_buffers *b)
{
    if (is_gelu(p)) {
        layer.gelu_in = b->up;
        return ptb_pass_linear_backward(p, layer, b->d_out, b->activated, b->d_up, false);
    }
    PTB_TRY(ptb_pass_linear_backward(p, layer, b->d_out, b->activated, b->d_activated, false));
    return p->parts & PTB_BACKWARD_INPUT ? activate_backward(p, layer, width, b) : PTB_OK;
}

// The rows of a microbatch from `row` on whose numbers (dropout.h) one call gives: how many there are at
// most, and how they are numbered. A sequence begins where the one before ends, but for what another rank
// has.
static size_t number_rows(const ptb_pass *p, size_t row, ptb_dropout *args)
{
    ptb_pass_piece piece = ptb_pass_piece_at(p, 0);
    piece = ptb_pass_piece_at(p, row / piece.rows);
    size_t within = row - piece.first, position = within % piece.length;
    bool whole = piece.length == args->total_length;
    args->length = piece.length;
    args->offset = whole ? (int64_t)within : piece.offset + (int64_t)position;
    args->sequence = p->slot->microbatch.sequence + (whole ? 0 : within / piece.length);
    return whole || position == 0 ? piece.rows - within : piece.length - position;
}

// NULL stays NULL.
static void *from_row(const ptb_pass *p, const void *base, size_t row)
{
    return base ? ptb_pass_at(p, (void *)(uintptr_t)base, row * p->m->w.hidden) : NULL;
}

ptb_status ptb_pass_dropout(const ptb_pass *p, ptb_dropout_place place, const void *in, const void *residual,
                            void *out)
{
    const ptb_model_config *c = &p->m->config;
    uint64_t step = p->slot->microbatch.step;
    ptb_dropout args = {.type = c->type,
                        .width = p->m->w.hidden,
                        .total_length = (size_t)c->layout->shape.sequence,
                        .seed = ptb_model_dropout_seed(c->seed, step, p->number, place),
                        .rate = (float)c->layout->shape.dropout};
    for (size_t row = 0; row < p->m->w.slice; row += args.rows) {
        size_t whole, run = ptb_pass_run(p, row, &whole), numbered = number_rows(p, whole, &args);
        args.out = from_row(p, out, row);
        args.in = from_row(p, in, row);
        args.residual = from_row(p, residual, row);
        args.rows = run < numbered ? run : numbered;
        PTB_TRY(p->k->dropout(p->stream, &args));
    }
    return PTB_OK;
}
