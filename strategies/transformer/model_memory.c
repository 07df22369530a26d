// Where a model's buffers lie in its two allocations, and so how large those are. The same code counts and
// places, so the prediction cannot differ from what is allocated.
//
// Closed form, with the letters of model_internal.h, e bytes of the compute type, L blocks; every buffer is
// rounded up to 64 bytes (tests/unit/test_model_memory.c holds the code to it). Activations:
//
//   once      what recomputed blocks share: the largest of their recomputed parts
//   a slot    N (8, + 4 packed), + 8 with a balance loss of its own, + 3 e M C (embedded, the head's norm,
//   the gradient
//             of the residual stream) + M x norm (8 LayerNorm, 4 RMSNorm)
//   a block   e M C (its output), and what is not recomputed of
//     attention (recomputed by selective and full)   e N A + 4 N heads, + what a context-parallel axis keeps
//     the rest (recomputed by full)                  e (3 M C + N Q) + 2 M x norm
//       dense      + e N (G F + F)
//       mixture    + e (N (G s + s) + R (C + G f + f) + T C) + 4 (N (E + 3 K) + 2 E + 1), and with experts
//                    on n ranks + 4 (P + W + E / n + 1)
//   deferred  a block: e (2 M C + N Q, + 2 M C with dropout); dense: + e N G F; mixture: + e (N (E + G s) + R
//             G f), + e R C where it is recomputed in full, or results come apart (all-to-all)
//
// With experts on n ranks, L = E / n of them here, and capacity c: R = n N min(K, L), or n L c where that is
// less; all-to-all: T = N K or E c, P = R or E c (the latter with capacity), W = 0; all-gather: T = R, P = W
// = n N K.
//
// GPT-2 keeps e 16 N C + N (4 heads + 16) bytes a block: norm1, middle, norm2, out 4 C, query, key and value
// 3 C, attention C, up and activated 8 C. Korthikanti et al. 2022 (equation 2) count 34 C bytes a row in
// 16-bit types, 32 of which are these; the rest is dropout masks, which are drawn again here, and their
// scores 5 a s^2 do not exist in blockwise attention. Full recomputation leaves e N C a block, as theirs (2 s
// b h). Over t tensor-parallel ranks it is e (4 M C + N 12 C / t): theirs (their table 2: 10 + 24 / t, and
// 34 / t with sequence parallelism) but for the masks, 8 + 24 / t and 32 / t.
//
// Workspace: 4 B V' logits of B rows at once (+ e B V' in 16-bit types), V' = V rounded up to 64, 4 B losses,
// e M C (gradient of a norm's output; none under tensor parallelism without slices), e max(N A, N F for
// SwiGLU, R C, R f, N s), 4 N K, 16 L E with experts, attention's workspace (a context-parallel axis has its
// own); without `deferred` also e max(N Q, N G F, R G f), e M C with dropout, and e N (E + G s) for mixtures,
// + e R C where results come apart.
#include "strategies/transformer/model_internal.h"

// Hands out 64-byte aligned pieces; without memory it only counts.
typedef struct {
    char *memory;
    size_t used;
} arena;

static void *piece(arena *a, size_t elements, size_t element_bytes)
{
    void *p = a->memory ? a->memory + a->used : NULL;
    a->used += (elements * element_bytes + 63) / 64 * 64;
    return elements ? p : NULL;
}

static size_t largest(size_t a, size_t b)
{
    return a > b ? a : b;
}

static void add_mixture_widths(ptb_model_widths *w, const ptb_model_config *config, size_t gates)
{
    const ptb_layout *layout = config->layout;
    const ptb_model_shape *s = &layout->shape;
    w->experts = (size_t)s->experts;
    w->top_k = (size_t)s->top_k;
    w->expert_activated = (size_t)layout->local.expert_hidden;
    w->expert_up = gates * w->expert_activated;
    w->shared_activated = layout->shared_width;
    w->shared_up = gates * w->shared_activated;
    size_t choices = w->rows * w->top_k;
    w->slots = choices;
    w->capacity = ptb_expert_capacity(s, w->rows);
    if (w->capacity)
        w->slots = w->capacity * w->experts < choices ? w->capacity * w->experts : choices;
    w->flow = (ptb_expert_sizes){.received = w->slots, .results = w->slots};
    if (config->experts)
        w->flow = config->experts->sizes;
}

size_t ptb_model_loss_rows(const ptb_kernels *kernels, size_t rows)
{
    if (kernels->loss_rows)
        return kernels->loss_rows < rows ? kernels->loss_rows : rows;
    size_t half = rows / 2 < 256 ? rows / 2 : 256;
    return half ? half : 1;
}

size_t ptb_model_logits_stride(size_t vocabulary)
{
    return (vocabulary + 63) / 64 * 64;
}

static size_t rows_of(const ptb_model_config *config)
{
    const ptb_context_axis *context = config->context;
    size_t tokens =
        context ? context->slices.pieces * context->slices.length : (size_t)config->layout->shape.sequence;
    return (size_t)config->batch * tokens;
}

ptb_model_widths ptb_model_widths_of(const ptb_model_config *config)
{
    const ptb_model_shape *s = &config->layout->local;
    size_t gates = s->activation == PTB_SWIGLU ? 2 : 1, rows = rows_of(config);
    ptb_model_widths w = {.rows = rows,
                          .hidden = (size_t)s->hidden,
                          .attention = (size_t)(s->heads * s->head_width),
                          .qkv = (size_t)((s->heads + 2 * s->kv_heads) * s->head_width),
                          .up = gates * (size_t)s->feed_forward,
                          .activated = (size_t)s->feed_forward,
                          .heads = (size_t)s->heads,
                          .vocabulary = (size_t)s->vocabulary,
                          .logits_stride = ptb_model_logits_stride((size_t)s->vocabulary),
                          .element = ptb_dtype_size(config->type)};
    if (s->experts)
        add_mixture_widths(&w, config, gates);
    size_t asked = (size_t)config->loss_rows;
    w.slice = config->tensor ? ptb_tensor_axis_slice(&config->tensor->env) : rows;
    w.loss_rows = !asked ? ptb_model_loss_rows(config->kernels, rows) : asked < rows ? asked : rows;
    return w;
}

bool ptb_model_recomputes(const ptb_model *m, size_t block)
{
    const ptb_model_config *c = &m->config;
    return c->recompute != PTB_RECOMPUTE_NONE && block % (size_t)c->recompute_every == 0;
}

static bool recomputes_all(const ptb_model *m, size_t block)
{
    return m->config.recompute == PTB_RECOMPUTE_FULL && ptb_model_recomputes(m, block);
}

static bool is_mixture(const ptb_model *m, size_t block)
{
    return m->config.layout->unit[block + 1].mixture;
}

// What attention makes.
static void place_attention(const ptb_model *m, arena *a, ptb_block_state *b)
{
    b->attention = piece(a, m->w.rows * m->w.attention, m->w.element);
    b->lse = piece(a, m->w.rows * m->w.heads, sizeof *b->lse);
    b->context = piece(a, m->config.context ? m->config.context->kept_bytes : 0, 1);
}

static void place_norm(const ptb_model *m, arena *a, void **out, float **mean, float **rstd)
{
    bool has_mean = m->config.layout->shape.norm == PTB_LAYER_NORM;
    *out = piece(a, m->w.slice * m->w.hidden, m->w.element);
    *mean = piece(a, has_mean ? m->w.slice : 0, sizeof **mean);
    *rstd = piece(a, m->w.slice, sizeof **rstd);
}

static void place_flow(const ptb_model *m, arena *a, ptb_block_state *b)
{
    const ptb_expert_sizes *flow = &m->w.flow;
    size_t local = (size_t)m->config.layout->local.experts;
    b->flow = (ptb_expert_flow){.slot = b->slot,
                                .counts = b->counts,
                                .weight = b->weight,
                                .place = piece(a, flow->places, sizeof *b->flow.place),
                                .offsets = piece(a, local + 1, sizeof *b->flow.offsets),
                                .weights = piece(a, flow->weights, sizeof *b->flow.weights),
                                .results = b->expert_out};
}

static void place_mixture(const ptb_model *m, arena *a, ptb_block_state *b)
{
    const ptb_model_widths *w = &m->w;
    size_t e = w->element, choices = w->rows * w->top_k;
    b->probabilities = piece(a, w->rows * w->experts, sizeof *b->probabilities);
    b->expert = piece(a, choices, sizeof *b->expert);
    b->weight = piece(a, choices, sizeof *b->weight);
    b->slot = piece(a, choices, sizeof *b->slot);
    b->offsets = piece(a, w->experts + 1, sizeof *b->offsets);
    b->counts = piece(a, w->experts, sizeof *b->counts);
    b->dispatched = piece(a, w->flow.received * w->hidden, e);
    b->up = piece(a, w->flow.received * w->expert_up, e);
    b->activated = piece(a, w->flow.received * w->expert_activated, e);
    b->expert_out = piece(a, w->flow.results * w->hidden, e);
    if (m->config.experts)
        place_flow(m, a, b);
    b->shared_up = piece(a, w->rows * w->shared_up, e);
    b->shared_activated = piece(a, w->rows * w->shared_activated, e);
}

// The rest, but for the block's output.
static void place_inner(const ptb_model *m, arena *a, bool mixture, ptb_block_state *b)
{
    const ptb_model_widths *w = &m->w;
    size_t n = w->rows, e = w->element;
    place_norm(m, a, &b->norm1, &b->norm1_mean, &b->norm1_rstd);
    b->qkv = piece(a, n * w->qkv, e);
    b->middle = piece(a, w->slice * w->hidden, e);
    place_norm(m, a, &b->norm2, &b->norm2_mean, &b->norm2_rstd);
    if (mixture) {
        place_mixture(m, a, b);
        return;
    }
    b->up = piece(a, n * w->up, e);
    b->activated = piece(a, n * w->activated, e);
}

// What recomputed blocks share; one place for both kinds of block.
static void place_recomputed(const ptb_model *m, arena *a, ptb_block_state shared[2])
{
    bool needed[2] = {false, false};
    for (size_t b = 0; b < (size_t)m->config.layout->shape.layers; b++)
        needed[is_mixture(m, b)] |= ptb_model_recomputes(m, b);
    size_t start = a->used, end = start;
    for (int mixture = 0; mixture < 2; mixture++) {
        if (!needed[mixture])
            continue;
        a->used = start;
        place_attention(m, a, &shared[mixture]);
        if (m->config.recompute == PTB_RECOMPUTE_FULL)
            place_inner(m, a, mixture, &shared[mixture]);
        end = largest(end, a->used);
    }
    a->used = end;
}

static void place_state(const ptb_model *m, arena *a, size_t block, const ptb_block_state shared[2],
                        ptb_block_state *b)
{
    bool mixture = is_mixture(m, block);
    *b = (ptb_block_state){0};
    if (ptb_model_recomputes(m, block))
        *b = shared[mixture];
    else
        place_attention(m, a, b);
    if (!recomputes_all(m, block))
        place_inner(m, a, mixture, b);
    b->out = piece(a, m->w.slice * m->w.hidden, m->w.element);
}

// Gradients of one block that are kept for its weights.
static void place_deferred(const ptb_model *m, arena *a, size_t block, ptb_block_gradients *g)
{
    const ptb_model_widths *w = &m->w;
    size_t n = w->rows, e = w->element, narrow = w->slice * w->hidden;
    bool mixture = is_mixture(m, block), drops = m->config.layout->shape.dropout > 0;
    *g = (ptb_block_gradients){.d_out = piece(a, narrow, e), .d_middle = piece(a, narrow, e)};
    g->d_feed = drops ? piece(a, narrow, e) : g->d_out;
    g->d_projection = drops ? piece(a, narrow, e) : g->d_middle;
    g->d_qkv = piece(a, n * w->qkv, e);
    g->d_up = piece(a, mixture ? w->flow.received * w->expert_up : n * w->up, e);
    if (mixture) {
        g->d_router = piece(a, n * w->experts, e);
        g->d_shared_up = piece(a, n * w->shared_up, e);
        if (recomputes_all(m, block) || w->flow.apart)
            g->d_expert_out = piece(a, w->flow.received * w->hidden, e);
    }
}

// Gradients that all blocks share when nothing is deferred, but for those of the residual stream.
static void place_scratch(const ptb_model *m, arena *a, ptb_block_gradients *g)
{
    const ptb_model_widths *w = &m->w;
    const ptb_model_shape *s = &m->config.layout->shape;
    size_t n = w->rows, e = w->element;
    bool dense = !s->experts || s->dense_layers;
    size_t wide = largest(n * w->qkv, largest(dense ? n * w->up : 0, w->flow.received * w->expert_up));
    g->d_up = g->d_qkv = piece(a, wide, e);
    if (s->dropout > 0)
        g->d_feed = g->d_projection = piece(a, w->slice * w->hidden, e);
    if (s->experts) {
        g->d_router = piece(a, n * w->experts, e);
        g->d_shared_up = piece(a, n * w->shared_up, e);
        g->d_expert_out = piece(a, w->flow.apart ? w->flow.received * w->hidden : 0, e);
    }
}

static void place_workspace(ptb_model *m, arena *a, ptb_block_gradients *scratch)
{
    const ptb_model_widths *w = &m->w;
    const ptb_model_shape *s = &m->config.layout->shape;
    size_t n = w->rows, logits = w->loss_rows * w->logits_stride;
    m->logits = piece(a, logits, sizeof *m->logits);
    m->d_logits = m->config.type == PTB_F32 ? m->logits : piece(a, logits, w->element);
    m->losses = piece(a, w->loss_rows, sizeof *m->losses);
    const ptb_tensor_axis *axis = m->config.tensor;
    if (axis && !axis->env.sequence)
        m->d_norm = axis->partial; // sums are in place
    else
        m->d_norm = piece(a, w->slice * w->hidden, w->element);
    bool gated = s->activation == PTB_SWIGLU && (!s->experts || s->dense_layers);
    size_t inner = largest(n * w->attention, gated ? n * w->activated : 0);
    inner = largest(inner, w->flow.received * (s->experts ? largest(w->hidden, w->expert_activated) : 0));
    m->d_inner = piece(a, largest(inner, n * w->shared_activated), w->element);
    m->d_weight = piece(a, n * w->top_k, sizeof *m->d_weight);
    m->tally = piece(a, (size_t)s->layers * 2 * w->experts, sizeof *m->tally);
    if (!m->config.deferred)
        place_scratch(m, a, scratch);
    if (m->config.context) // has its own
        return;
    ptb_attention_shape shape = ptb_block_attention_shape(&m->config);
    m->attention_workspace = piece(a, m->config.kernels->attention_workspace(&shape, m->config.threads), 1);
}

// What a state has that does not lie in the slot's memory. number: of the block among those of all slots.
static void place_counts(const ptb_model *m, size_t block, size_t number, ptb_block_state *b)
{
    b->tally = m->tally + block * 2 * m->w.experts;
    if (m->lists)
        b->flow.lists = m->lists + number * PTB_EXPERT_LISTS * (size_t)m->config.layout->cut.ep;
}

static void place_slot(const ptb_model *m, arena *a, const ptb_block_state shared[2],
                       const ptb_block_gradients *scratch, ptb_slot *slot)
{
    const ptb_model_shape *s = &m->config.layout->shape;
    size_t n = m->w.rows, e = m->w.element, narrow = m->w.slice * m->w.hidden;
    slot->inputs = piece(a, n, sizeof *slot->inputs);
    slot->targets = piece(a, n, sizeof *slot->targets);
    slot->starts = piece(a, m->config.packed ? n : 0, sizeof *slot->starts);
    bool balances = s->experts && s->balance > 0 && !m->config.balance;
    slot->balance = piece(a, balances ? 1 : 0, sizeof *slot->balance);
    slot->embedded = piece(a, narrow, e);
    place_norm(m, a, &slot->norm, &slot->norm_mean, &slot->norm_rstd);
    slot->d_embedded = piece(a, narrow, e);
    for (size_t b = 0; b < (size_t)s->layers; b++) {
        ptb_block_state state;
        ptb_block_gradients g;
        place_state(m, a, b, shared, &state);
        if (m->config.deferred) {
            place_deferred(m, a, b, &g);
        } else {
            g = *scratch; // the residual stream's gradient is one buffer that every block changes
            g.d_out = g.d_middle = slot->d_embedded;
            g.d_feed = g.d_feed ? g.d_feed : g.d_out;
            g.d_projection = g.d_projection ? g.d_projection : g.d_middle;
        }
        if (!g.d_expert_out)
            g.d_expert_out = state.expert_out;
        if (!slot->block)
            continue;
        if (is_mixture(m, b))
            place_counts(m, b, (size_t)(&slot->block[b] - m->states), &state);
        slot->block[b] = state;
        slot->gradients[b] = g;
    }
}

void ptb_model_place(ptb_model *m, size_t *activation_bytes, size_t *workspace_bytes)
{
    arena activations = {m->activations, 0}, workspace = {m->workspace, 0};
    ptb_block_state shared[2] = {{0}, {0}};
    ptb_block_gradients scratch = {0};
    place_workspace(m, &workspace, &scratch);
    place_recomputed(m, &activations, shared);
    for (int i = 0; i < m->config.slots; i++) {
        ptb_slot count_only = {0};
        place_slot(m, &activations, shared, &scratch, m->slot ? &m->slot[i] : &count_only);
    }
    *activation_bytes = activations.used;
    *workspace_bytes = workspace.used;
}
