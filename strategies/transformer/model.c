// A model's life, and its units as forward, loss and backward; see model.h.
#include "strategies/transformer/model_internal.h"

#include "core/log.h"

#include <inttypes.h>
#include <stdlib.h>

// Without allocations: what counting needs.
static ptb_model describe(const ptb_model_config *config)
{
    ptb_model m = {.config = *config, .w = ptb_model_widths_of(config)};
    m.config.slots = config->slots ? config->slots : 1;
    m.config.recompute_every = config->recompute_every ? config->recompute_every : 1;
    return m;
}

static ptb_status check_numbers(const ptb_model_config *c)
{
    if (c->batch < 1 || c->threads < 1 || c->slots < 0 || c->recompute_every < 0 || c->loss_rows < 0) {
        ptb_error("a microbatch of %" PRId64
                  " sequences, %d threads, %d slots, recomputation of every %" PRId64 "-th block and %" PRId64
                  " rows of logits: the first two are at least 1, the others at least "
                  "0 (automatic)",
                  c->batch, c->threads, c->slots, c->recompute_every, c->loss_rows);
        return PTB_USAGE;
    }
    if (!(c->kernels->types & 1u << c->type)) {
        ptb_error("the kernels '%s' do not compute in %s", c->kernels->plugin.name, ptb_dtype_name(c->type));
        return PTB_UNSUPPORTED;
    }
    return PTB_OK;
}

// Rows, choices and bytes against what their types count.
static ptb_status check_magnitude(const ptb_model_config *c)
{
    const ptb_model_shape *s = &c->layout->shape;
    double rows = (double)c->batch * (double)s->sequence,
           choices = rows * (double)(s->experts ? s->top_k : 1);
    if (choices > INT32_MAX || s->vocabulary > INT32_MAX) {
        ptb_error("%" PRId64 " sequences of %" PRId64 " tokens%s and a vocabulary of %" PRId64
                  ": %.3g rows, tokens and choices of experts are counted up to %d",
                  c->batch, s->sequence, s->experts ? ", each to top_k experts," : "", s->vocabulary, choices,
                  INT32_MAX);
        return PTB_USAGE;
    }
    double widths = 16 * (double)s->hidden +
                    4 * (double)((s->heads + s->kv_heads) * s->head_width + s->feed_forward + s->experts);
    if (s->experts)
        widths += 8 * (double)(s->top_k + s->shared_experts) * (double)(s->expert_hidden + s->hidden);
    double bytes =
        8 * rows * (widths * (double)(s->layers + 8) * (c->slots ? c->slots : 1) + (double)s->vocabulary);
    if (bytes < 0x1p60)
        return PTB_OK;
    ptb_error("%" PRId64 " sequences of %" PRId64 " tokens through %" PRId64
              " blocks need about %.3g bytes of "
              "activations, more than can be counted; use a smaller batch, sequence or model",
              c->batch, s->sequence, s->layers, bytes);
    return PTB_USAGE;
}

// Whole experts are here, and more than here need somebody who moves rows to them.
static ptb_status check_experts(const ptb_model_config *c)
{
    if (c->experts)
        return ptb_expert_axis_check(c->experts);
    if (c->layout->local.experts == c->layout->shape.experts)
        return PTB_OK;
    ptb_error("the layout has %" PRId64 " of %" PRId64 " experts, but no expert axis was given",
              c->layout->local.experts, c->layout->shape.experts);
    return PTB_INTERNAL;
}

static ptb_status check_tensor(const ptb_model_config *c)
{
    int tp = c->layout->cut.tp;
    if ((tp > 1) == (c->tensor != NULL))
        return c->tensor ? ptb_tensor_axis_check(&c->tensor->env) : PTB_OK;
    ptb_error("a layout that is cut over tp=%d ranks needs a tensor-parallel axis, and one of 1 rank none",
              tp);
    return PTB_INTERNAL;
}

// A mistake of the caller: the axis is described from the same configuration.
static ptb_status check_context(const ptb_model_config *c)
{
    const ptb_context_axis *x = c->context;
    if (!x || (x->env.batch == c->batch && x->env.type == c->type && x->env.packed == c->packed))
        return PTB_OK;
    ptb_error("a context-parallel axis for %" PRId64 " sequences of %s, %s, and a model for %" PRId64
              " of %s, %s: describe the axis as the model",
              x->env.batch, ptb_dtype_name(x->env.type), x->env.packed ? "packed" : "not packed", c->batch,
              ptb_dtype_name(c->type), c->packed ? "packed" : "not packed");
    return PTB_INTERNAL;
}

ptb_status ptb_model_check(const ptb_model_config *config)
{
    PTB_TRY(check_numbers(config));
    PTB_TRY(check_context(config));
    PTB_TRY(check_experts(config));
    PTB_TRY(check_magnitude(config));
    return check_tensor(config);
}

ptb_tensor_env ptb_model_tensor(const ptb_model_config *config, bool sequence, int chunks)
{
    ptb_model_config alone = *config;
    alone.tensor = NULL;
    ptb_model_widths w = ptb_model_widths_of(&alone);
    return (ptb_tensor_env){.device = config->device,
                            .layout = config->layout,
                            .rows = w.rows,
                            .loss_rows = w.loss_rows,
                            .type = config->type,
                            .sequence = sequence,
                            .chunks = chunks};
}

void ptb_model_memory(const ptb_model_config *config, uint64_t bytes[PTB_MEMORY_COUNT])
{
    ptb_model m = describe(config);
    size_t activations, workspace;
    ptb_model_place(&m, &activations, &workspace);
    for (int i = 0; i < PTB_MEMORY_COUNT; i++)
        bytes[i] = 0;
    bytes[PTB_MEMORY_ACTIVATIONS] = activations;
    bytes[PTB_MEMORY_WORKSPACE] = workspace;
}

static ptb_status allocate_descriptions(ptb_model *m)
{
    size_t slots = (size_t)m->config.slots, layers = (size_t)m->config.layout->shape.layers;
    size_t lists = m->config.experts ? PTB_EXPERT_LISTS * (size_t)m->config.layout->cut.ep : 0;
    m->slot = calloc(slots, sizeof *m->slot);
    m->states = calloc(slots * layers, sizeof *m->states);
    m->all_gradients = calloc(slots * layers, sizeof *m->all_gradients);
    m->lists = lists ? calloc(slots * layers * lists, sizeof *m->lists) : NULL;
    if (!m->slot || !m->states || !m->all_gradients || (lists && !m->lists)) {
        ptb_error("no memory to describe %zu blocks of %zu microbatches", layers, slots);
        return PTB_NO_MEMORY;
    }
    for (size_t i = 0; i < slots; i++) {
        m->slot[i].block = m->states + i * layers;
        m->slot[i].gradients = m->all_gradients + i * layers;
    }
    return PTB_OK;
}

static size_t tally_bytes(const ptb_model *m)
{
    return (size_t)m->config.layout->shape.layers * 2 * m->w.experts * sizeof *m->tally;
}

static ptb_status allocate(ptb_model *m)
{
    ptb_device *device = m->config.device;
    size_t activations, workspace;
    PTB_TRY(allocate_descriptions(m));
    ptb_model_place(m, &activations, &workspace);
    PTB_TRY(ptb_device_alloc(device, PTB_MEMORY_ACTIVATIONS, activations, &m->activations));
    PTB_TRY(ptb_device_alloc(device, PTB_MEMORY_WORKSPACE, workspace, &m->workspace));
    ptb_model_place(m, &activations, &workspace);
    if (m->tally)
        PTB_TRY(ptb_stream_set(m->config.stream, m->tally, 0, tally_bytes(m)));
    return m->config.kernels->set_threads(m->config.stream, m->config.threads);
}

ptb_status ptb_model_new(const ptb_model_config *config, ptb_model **model)
{
    PTB_TRY(ptb_model_check(config));
    ptb_model *m = malloc(sizeof *m);
    if (!m) {
        ptb_error("no memory for a model's description");
        return PTB_NO_MEMORY;
    }
    *m = describe(config);
    ptb_status status = allocate(m);
    if (status != PTB_OK) {
        ptb_model_free(m);
        return status;
    }
    *model = m;
    return PTB_OK;
}

void ptb_model_free(ptb_model *m)
{
    if (!m)
        return;
    ptb_device_free(m->config.device, m->workspace);
    ptb_device_free(m->config.device, m->activations);
    free(m->lists);
    free(m->all_gradients);
    free(m->states);
    free(m->slot);
    free(m);
}

ptb_status ptb_model_choices(ptb_model *m, int64_t *choices)
{
    if (m->tally)
        PTB_TRY(ptb_stream_copy(m->config.stream, choices, m->tally, tally_bytes(m)));
    return ptb_stream_sync(m->config.stream);
}

int32_t *ptb_model_inputs(ptb_model *m, int slot)
{
    return m->slot[slot].inputs;
}

int32_t *ptb_model_targets(ptb_model *m, int slot)
{
    return m->slot[slot].targets;
}

int32_t *ptb_model_starts(ptb_model *m, int slot)
{
    return m->slot[slot].starts;
}

void *ptb_model_output(ptb_model *m, int slot, size_t unit)
{
    const ptb_slot *s = &m->slot[slot];
    if (unit == 0)
        return s->embedded;
    return unit + 1 == m->config.layout->units ? s->norm : s->block[unit - 1].out;
}

void *ptb_model_output_gradient(ptb_model *m, int slot, size_t unit)
{
    const ptb_slot *s = &m->slot[slot];
    if (unit == 0)
        return s->d_embedded;
    return unit + 1 == m->config.layout->units ? s->norm : s->gradients[unit - 1].d_out;
}

static ptb_pass pass_of(ptb_model *m, int slot, size_t unit, const ptb_unit_memory *memory)
{
    ptb_pass p = {.m = m,
                  .slot = &m->slot[slot],
                  .number = unit,
                  .unit = &m->config.layout->unit[unit],
                  .memory = memory,
                  .k = m->config.kernels,
                  .stream = m->config.stream};
    if (p.unit->kind == PTB_UNIT_BLOCK) {
        p.state = &p.slot->block[unit - 1];
        p.g = &p.slot->gradients[unit - 1];
    }
    if (unit > 0) {
        p.in = ptb_model_output(m, slot, unit - 1);
        p.d_in = ptb_model_output_gradient(m, slot, unit - 1);
    }
    return p;
}

// NULL where sequences are one document.
static const int32_t *starts_of(const ptb_pass *p, ptb_pass_piece piece)
{
    return p->slot->starts ? p->slot->starts + piece.first : NULL;
}

// Where the vocabulary is cut, ranks add up what they have of it; positions are the first one's.
static ptb_status embedding_forward(const ptb_pass *p)
{
    const ptb_model_config *c = &p->m->config;
    void *out = p->slot->embedded;
    const void *positions = ptb_pass_parameter(p, PTB_EMBED_POSITIONS);
    for (size_t i = 0; i < ptb_pass_pieces(p); i++) {
        ptb_pass_piece piece = ptb_pass_piece_at(p, i);
        ptb_embedding args = {.type = c->type,
                              .out = ptb_pass_at(p, ptb_pass_term(p, out), piece.first * p->m->w.hidden),
                              .tokens = p->slot->inputs + piece.first,
                              .start = starts_of(p, piece),
                              .table = ptb_pass_parameter(p, PTB_EMBED_TOKENS),
                              .positions = ptb_pass_is_first(p) ? positions : NULL,
                              .rows = piece.rows,
                              .sequence = piece.length,
                              .width = p->m->w.hidden,
                              .position_offset = (size_t)piece.offset,
                              .vocabulary = p->m->w.vocabulary,
                              .first_token = c->layout->first_token};
        PTB_TRY(p->k->embedding(p->stream, &args));
    }
    for (int i = 0; i < ptb_pass_sum_chunks(p); i++)
        PTB_TRY(ptb_pass_sum(p, i, out));
    PTB_TRY(ptb_pass_join(p));
    return c->layout->shape.dropout > 0 ? ptb_pass_dropout(p, PTB_DROPOUT_EMBEDDING, out, NULL, out) : PTB_OK;
}

// All of it belongs to the part WEIGHT. A tied table has the head's gradient already, and pieces add up.
static ptb_status embedding_backward(const ptb_pass *p, const ptb_gradient_ready *ready)
{
    const ptb_model_shape *s = &p->m->config.layout->shape;
    void *d_out = p->slot->d_embedded;
    if (!(p->parts & PTB_BACKWARD_WEIGHT))
        return PTB_OK;
    if (s->dropout > 0)
        PTB_TRY(ptb_pass_dropout(p, PTB_DROPOUT_EMBEDDING, d_out, NULL, d_out));
    PTB_TRY(ptb_pass_gather(p, d_out));
    PTB_TRY(ptb_pass_wait_all(p));
    const char *whole = ptb_pass_whole(p, d_out);
    for (size_t i = 0; i < ptb_pass_pieces(p); i++) {
        ptb_pass_piece piece = ptb_pass_piece_at(p, i);
        bool add = p->accumulate || i > 0;
        ptb_embedding_gradient args = {.type = p->m->config.type,
                                       .d_table = ptb_pass_gradient(p, PTB_EMBED_TOKENS),
                                       .d_positions = ptb_pass_gradient(p, PTB_EMBED_POSITIONS),
                                       .d_out = whole + piece.first * p->m->w.hidden * p->m->w.element,
                                       .tokens = p->slot->inputs + piece.first,
                                       .start = starts_of(p, piece),
                                       .rows = piece.rows,
                                       .sequence = piece.length,
                                       .width = p->m->w.hidden,
                                       .vocabulary = p->m->w.vocabulary,
                                       .first_token = p->m->config.layout->first_token,
                                       .positions = (size_t)s->positions,
                                       .position_offset = (size_t)piece.offset,
                                       .accumulate_table = add || s->tied,
                                       .accumulate_positions = add};
        PTB_TRY(p->k->embedding_gradient(p->stream, &args));
    }
    return ptb_pass_ready(p, ready, 0);
}

ptb_status ptb_model_begin(ptb_model *m, int slot, const ptb_microbatch *microbatch)
{
    ptb_slot *s = &m->slot[slot];
    s->microbatch = *microbatch;
    return s->balance ? ptb_stream_set(m->config.stream, s->balance, 0, sizeof *s->balance) : PTB_OK;
}

ptb_status ptb_model_forward(ptb_model *m, int slot, size_t unit, const ptb_unit_memory *memory)
{
    ptb_pass p = pass_of(m, slot, unit, memory);
    switch (p.unit->kind) {
    case PTB_UNIT_EMBEDDING:
        return embedding_forward(&p);
    case PTB_UNIT_BLOCK:
        return ptb_block_forward(&p);
    case PTB_UNIT_HEAD:
        return ptb_head_forward(&p);
    }
    return PTB_INTERNAL;
}

ptb_status ptb_model_loss(ptb_model *m, int slot, const ptb_unit_memory *memory, bool accumulate,
                          bool add_gradients, double *loss)
{
    ptb_pass p = pass_of(m, slot, m->config.layout->units - 1, memory);
    p.accumulate = add_gradients;
    return ptb_head_loss(&p, accumulate, loss);
}

ptb_status ptb_model_logits(ptb_model *m, int slot, const ptb_unit_memory *memory, size_t first, size_t rows,
                            float *logits)
{
    ptb_pass p = pass_of(m, slot, m->config.layout->units - 1, memory);
    return ptb_head_logits(&p, first, rows, logits);
}

ptb_status ptb_model_backward(ptb_model *m, int slot, size_t unit, const ptb_unit_memory *memory, int parts,
                              bool accumulate, const ptb_gradient_ready *ready)
{
    ptb_pass p = pass_of(m, slot, unit, memory);
    p.parts = parts;
    p.accumulate = accumulate;
    if (parts != PTB_BACKWARD_BOTH && !m->config.deferred) {
        ptb_error("the parts of a backward pass were asked for apart, but the model was made without "
                  "`deferred` and does not keep what they need");
        return PTB_INTERNAL;
    }
    switch (p.unit->kind) {
    case PTB_UNIT_EMBEDDING:
        return embedding_backward(&p, ready);
    case PTB_UNIT_BLOCK:
        return ptb_block_backward(&p, ready);
    case PTB_UNIT_HEAD:
        return ptb_head_backward(&p, ready);
    }
    return PTB_INTERNAL;
}
