// The head: a norm, the product with [vocabulary, hidden], and the loss. Logits of all rows would be the
// largest tensor of most models; so product, cross-entropy and the product's gradients go through a few rows
// at a time, all in ptb_model_loss, and backward has only the norm left to do.
#include "strategies/transformer/model_internal.h"

ptb_status ptb_head_forward(const ptb_pass *p)
{
    return ptb_pass_norm(p, PTB_HEAD_NORM_GAIN, p->in, p->slot->norm, p->slot->norm_mean, p->slot->norm_rstd);
}

static bool is_tied(const ptb_pass *p)
{
    return p->m->config.layout->shape.tied;
}

// Of rows that have been gathered.
static ptb_status logits_of(const ptb_pass *p, size_t first, size_t rows, size_t stride, float *out)
{
    const void *norm = ptb_pass_whole(p, p->slot->norm);
    return p->k->matmul(p->stream,
                        &(ptb_matmul){.type = p->m->config.type,
                                      .out = out,
                                      .in = (const char *)norm + first * p->m->w.hidden * p->m->w.element,
                                      .weight = is_tied(p) ? p->memory->tied_parameters
                                                           : ptb_pass_parameter(p, PTB_HEAD_WEIGHT),
                                      .rows = rows,
                                      .columns = p->m->w.vocabulary,
                                      .inner = p->m->w.hidden,
                                      .out_stride = stride,
                                      .wide = true});
}

// Loss of the rows whose logits are there, and the gradient of those. The first rows write *loss unless it
// adds.
static ptb_status cross_entropy(const ptb_pass *p, size_t first, size_t rows, bool add, double *loss)
{
    const ptb_microbatch *b = &p->slot->microbatch;
    return p->k->cross_entropy(p->stream, &(ptb_cross_entropy){.type = p->m->config.type,
                                                               .logits = p->m->logits,
                                                               .d_logits = p->m->d_logits,
                                                               .targets = p->slot->targets + first,
                                                               .losses = p->m->losses,
                                                               .loss = loss,
                                                               .factor = b->factor,
                                                               .rows = rows,
                                                               .vocabulary = p->m->w.vocabulary,
                                                               .stride = p->m->w.logits_stride,
                                                               .scale = b->scale,
                                                               .accumulate = add});
}

// The same where this rank has a part of the vocabulary.
static ptb_status cross_entropy_of_part(const ptb_pass *p, size_t first, size_t rows, bool add, double *loss)
{
    const ptb_microbatch *b = &p->slot->microbatch;
    ptb_tensor_axis *axis = p->m->config.tensor;
    size_t parts = (size_t)axis->env.layout->cut.tp, first_token = p->m->config.layout->first_token;
    float *mine = axis->statistics + (size_t)axis->env.layout->cut.tp_rank * 3 * rows;
    PTB_TRY(p->k->loss_statistics(p->stream, &(ptb_loss_statistics){.statistics = mine,
                                                                    .logits = p->m->logits,
                                                                    .targets = p->slot->targets + first,
                                                                    .rows = rows,
                                                                    .vocabulary = p->m->w.vocabulary,
                                                                    .stride = p->m->w.logits_stride,
                                                                    .first_token = first_token}));
    PTB_TRY(ptb_tensor_axis_share(axis, rows));
    return p->k->loss_gradient(p->stream, &(ptb_loss_gradient){.type = p->m->config.type,
                                                               .logits = p->m->logits,
                                                               .d_logits = p->m->d_logits,
                                                               .statistics = axis->statistics,
                                                               .targets = p->slot->targets + first,
                                                               .losses = p->m->losses,
                                                               .loss = loss,
                                                               .factor = b->factor,
                                                               .rows = rows,
                                                               .vocabulary = p->m->w.vocabulary,
                                                               .parts = parts,
                                                               .stride = p->m->w.logits_stride,
                                                               .first_token = first_token,
                                                               .scale = b->scale,
                                                               .accumulate = add});
}

// The weight's gradient first: the input's may take the place of the norm's output.
static ptb_status product_backward(const ptb_pass *p, size_t first, size_t rows, bool add)
{
    size_t before = first * p->m->w.hidden;
    const void *norm = (const char *)ptb_pass_whole(p, p->slot->norm) + before * p->m->w.element;
    ptb_matmul_weight_gradient weight = {.type = p->m->config.type,
                                         .d_weight = is_tied(p) ? p->memory->tied_gradients
                                                                : ptb_pass_gradient(p, PTB_HEAD_WEIGHT),
                                         .d_out = p->m->d_logits,
                                         .in = norm,
                                         .rows = rows,
                                         .columns = p->m->w.vocabulary,
                                         .inner = p->m->w.hidden,
                                         .d_out_stride = p->m->w.logits_stride,
                                         .accumulate = add};
    ptb_matmul_input_gradient input = {.type = p->m->config.type,
                                       .d_in = ptb_pass_at(p, ptb_pass_term(p, p->slot->norm), before),
                                       .d_out = p->m->d_logits,
                                       .weight = is_tied(p) ? p->memory->tied_parameters
                                                            : ptb_pass_parameter(p, PTB_HEAD_WEIGHT),
                                       .rows = rows,
                                       .columns = p->m->w.vocabulary,
                                       .inner = p->m->w.hidden,
                                       .d_out_stride = p->m->w.logits_stride};
    PTB_TRY(p->k->matmul_weight_gradient(p->stream, &weight));
    return p->k->matmul_input_gradient(p->stream, &input);
}

// *loss = the blocks' load-balancing losses (+ *loss when `add`)
static ptb_status take_balance(const ptb_pass *p, bool add, double *loss)
{
    double *balance = p->slot->balance;
    if (!add)
        return ptb_stream_copy(p->stream, loss, balance, sizeof *loss);
    return p->stream->ops->reduce(p->stream, PTB_F64, PTB_SUM, loss, loss, balance, 1);
}

static ptb_status tell_phase(const ptb_pass *p, ptb_phase phase)
{
    const ptb_model_config *c = &p->m->config;
    return c->on_phase.call ? c->on_phase.call(c->on_phase.context, phase) : PTB_OK;
}

static size_t chunk_end(ptb_range rows)
{
    return rows.first + rows.count;
}

// Until rows [0, end) are there. *chunk: the next to be waited for.
static ptb_status wait_for_rows(const ptb_pass *p, size_t end, int *chunk)
{
    int last = *chunk;
    while (last < ptb_pass_gather_chunks(p) && ptb_pass_gather_chunk(p, last).first < end)
        last++;
    if (last == *chunk)
        return PTB_OK;
    *chunk = last;
    return ptb_pass_wait(p, last - 1);
}

// The sums of those chunks of the gradient whose last rows come before `end`. *chunk: the next to be summed.
static ptb_status sum_rows(const ptb_pass *p, size_t end, int *chunk)
{
    for (; *chunk < ptb_pass_sum_chunks(p) && chunk_end(ptb_pass_sum_chunk(p, *chunk)) <= end; ++*chunk)
        PTB_TRY(ptb_pass_sum(p, *chunk, p->slot->norm));
    return PTB_OK;
}

ptb_status ptb_head_loss(const ptb_pass *p, bool add, double *loss)
{
    bool has_balance = p->slot->balance;
    ptb_balance_axis *balance = p->m->config.balance;
    int slot = (int)(p->slot - p->m->slot);
    int arrived = 0, summed = 0;
    PTB_TRY(tell_phase(p, PTB_PHASE_FORWARD));
    PTB_TRY(ptb_pass_gather(p, p->slot->norm));
    if (balance)
        PTB_TRY(ptb_balance_axis_begin(balance, slot));
    if (has_balance)
        PTB_TRY(take_balance(p, add, loss));
    for (size_t first = 0, rows; first < p->m->w.rows; first += rows) {
        rows = p->m->w.rows - first < p->m->w.loss_rows ? p->m->w.rows - first : p->m->w.loss_rows;
        if (first > 0)
            PTB_TRY(tell_phase(p, PTB_PHASE_FORWARD));
        PTB_TRY(wait_for_rows(p, first + rows, &arrived));
        PTB_TRY(logits_of(p, first, rows, p->m->w.logits_stride, p->m->logits));
        bool add_loss = add || has_balance || first > 0;
        PTB_TRY(p->m->config.tensor ? cross_entropy_of_part(p, first, rows, add_loss, loss)
                                    : cross_entropy(p, first, rows, add_loss, loss));
        PTB_TRY(tell_phase(p, PTB_PHASE_BACKWARD));
        PTB_TRY(product_backward(p, first, rows, p->accumulate || first > 0));
        PTB_TRY(sum_rows(p, first + rows, &summed));
    }
    if (balance)
        PTB_TRY(ptb_balance_axis_take(balance, slot, p->slot->microbatch.share, loss));
    return ptb_pass_join(p);
}

ptb_status ptb_head_logits(const ptb_pass *p, size_t first, size_t rows, float *logits)
{
    PTB_TRY(ptb_pass_gather(p, p->slot->norm));
    PTB_TRY(ptb_pass_wait_all(p));
    return logits_of(p, first, rows, 0, logits);
}

ptb_status ptb_head_backward(const ptb_pass *p, const ptb_gradient_ready *ready)
{
    ptb_pass_norm_buffers norm = {.d_in = p->d_in,
                                  .d_out = p->slot->norm,
                                  .in = p->in,
                                  .mean = p->slot->norm_mean,
                                  .rstd = p->slot->norm_rstd};
    if (p->parts & PTB_BACKWARD_INPUT)
        PTB_TRY(ptb_pass_norm_backward(p, PTB_HEAD_NORM_GAIN, &norm));
    return ptb_pass_ready(p, ready, 0);
}
