// The GPT's units as sequences of kernels; see model.h. Each linear layer's input gradient and weight
// gradient are separate kernels, enqueued one after the other here.
#include "strategies/transformer/model.h"

#include "core/log.h"

#include <math.h>
#include <stdlib.h>

// What a block keeps for its backward pass. N = batch * sequence, C = hidden.
typedef struct {
    float *norm1;                   /* [N, C] */
    float *norm1_mean, *norm1_rstd; /* [N] */
    float *qkv;                     /* [N, 3C] */
    float *lse;                     /* [batch, heads, sequence] */
    float *attention;               /* [N, C] */
    float *middle;                  /* [N, C]: residual stream after attention */
    float *norm2;                   /* [N, C] */
    float *norm2_mean, *norm2_rstd; /* [N] */
    float *up, *gelu;               /* [N, 4C] */
    float *out;                     /* [N, C]: residual stream after the block */
} block_state;

struct ptb_model {
    ptb_model_config config;
    ptb_microbatch microbatch;
    size_t rows, hidden;          // N, C
    block_state *block;           // [layers]
    float *embedded;              /* [N, C] */
    float *norm;                  /* [N, C] */
    float *norm_mean, *norm_rstd; /* [N] */
    float *logits;                /* [N, vocabulary] */
    float *losses;                /* [N] */
    int32_t *inputs, *targets;    /* [N] */
    // Backward: gradient of the residual stream, and of what is between its ends.
    float *d_stream, *d_narrow; /* [N, C] */
    float *d_wide;              /* [N, 4C] */
    float *attention_workspace;
    void *activations, *workspace; // the two allocations that all of the above lie in
};

// Hands out 64-byte aligned pieces; without memory it only counts.
typedef struct {
    char *memory;
    size_t used;
} arena;

static void *piece(arena *a, size_t elements)
{
    void *p = a->memory ? a->memory + a->used : NULL;
    a->used += (elements * sizeof(float) + 63) / 64 * 64;
    return p;
}

static ptb_attention_shape attention_shape(const ptb_model *m)
{
    const ptb_model_shape *s = &m->config.layout->shape;
    size_t width = (size_t)(s->hidden / s->heads);
    return (ptb_attention_shape){
        .type = PTB_F32,
        .batch = (size_t)m->config.batch,
        .heads = (size_t)s->heads,
        .head_width = width,
        .query_length = (size_t)s->sequence,
        .key_length = (size_t)s->sequence,
        .query_stride = 3 * m->hidden,
        .key_stride = 3 * m->hidden,
        .kv_heads = (size_t)s->heads,
        .causal = true,
        .scale = 1 / sqrtf((float)width),
        .workspace = m->attention_workspace,
    };
}

static size_t first_of(const ptb_unit *u, int role)
{
    return ptb_unit_tensor(u, (ptb_tensor_role)role)->first;
}

static void place_activations(ptb_model *m, arena *a)
{
    const ptb_model_shape *s = &m->config.layout->shape;
    size_t n = m->rows, narrow = n * m->hidden;
    m->inputs = piece(a, n);
    m->targets = piece(a, n);
    m->embedded = piece(a, narrow);
    for (int64_t b = 0; b < s->layers; b++) {
        block_state k = {.norm1 = piece(a, narrow), .norm1_mean = piece(a, n), .norm1_rstd = piece(a, n)};
        k.qkv = piece(a, 3 * narrow);
        k.lse = piece(a, n * (size_t)s->heads);
        k.attention = piece(a, narrow);
        k.middle = piece(a, narrow);
        k.norm2 = piece(a, narrow);
        k.norm2_mean = piece(a, n);
        k.norm2_rstd = piece(a, n);
        k.up = piece(a, 4 * narrow);
        k.gelu = piece(a, 4 * narrow);
        k.out = piece(a, narrow);
        if (m->block)
            m->block[b] = k;
    }
    m->norm = piece(a, narrow);
    m->norm_mean = piece(a, n);
    m->norm_rstd = piece(a, n);
    m->logits = piece(a, n * (size_t)s->vocabulary);
    m->losses = piece(a, n);
}

static void place_workspace(ptb_model *m, arena *a)
{
    size_t narrow = m->rows * m->hidden;
    m->d_stream = piece(a, narrow);
    m->d_narrow = piece(a, narrow);
    m->d_wide = piece(a, 4 * narrow);
    ptb_attention_shape shape = attention_shape(m);
    size_t bytes = m->config.kernels->attention_workspace(&shape, m->config.threads);
    m->attention_workspace = piece(a, bytes / sizeof(float));
}

static ptb_model describe(const ptb_model_config *config)
{
    const ptb_model_shape *s = &config->layout->shape;
    return (ptb_model){
        .config = *config, .rows = (size_t)(config->batch * s->sequence), .hidden = (size_t)s->hidden};
}

void ptb_model_memory(const ptb_model_config *config, uint64_t bytes[PTB_MEMORY_COUNT])
{
    ptb_model m = describe(config);
    arena activations = {0}, workspace = {0};
    place_activations(&m, &activations);
    place_workspace(&m, &workspace);
    for (int i = 0; i < PTB_MEMORY_COUNT; i++)
        bytes[i] = 0;
    bytes[PTB_MEMORY_ACTIVATIONS] = activations.used;
    bytes[PTB_MEMORY_WORKSPACE] = workspace.used;
}

ptb_status ptb_model_new(const ptb_model_config *config, ptb_model **model)
{
    const ptb_model_shape *s = &config->layout->shape;
    if (config->type != PTB_F32 || config->slots > 1 || config->deferred || config->recompute ||
        config->packed || s->norm != PTB_LAYER_NORM || s->position != PTB_LEARNED_POSITIONS ||
        s->activation != PTB_GELU || !s->biases || s->dropout > 0 || s->experts || s->kv_heads != s->heads ||
        s->head_width * s->heads != s->hidden || s->feed_forward != 4 * s->hidden) {
        ptb_error("the model has only f32 GPT-2 blocks yet: LayerNorm, learned positions, GELU, biases, a "
                  "feed-forward of 4 x hidden, one microbatch at a time");
        return PTB_UNSUPPORTED;
    }
    uint64_t bytes[PTB_MEMORY_COUNT];
    ptb_model_memory(config, bytes);
    ptb_model *m = malloc(sizeof *m);
    if (!m) {
        ptb_error("no memory for a model's description");
        return PTB_NO_MEMORY;
    }
    *m = describe(config);
    ptb_status status = PTB_NO_MEMORY;
    m->block = calloc((size_t)config->layout->shape.layers, sizeof *m->block);
    if (!m->block) {
        ptb_error("no memory to describe %lld blocks", (long long)config->layout->shape.layers);
        goto free_model;
    }
    status = ptb_device_alloc(config->device, PTB_MEMORY_ACTIVATIONS, bytes[PTB_MEMORY_ACTIVATIONS],
                              &m->activations);
    if (status != PTB_OK)
        goto free_model;
    status =
        ptb_device_alloc(config->device, PTB_MEMORY_WORKSPACE, bytes[PTB_MEMORY_WORKSPACE], &m->workspace);
    if (status != PTB_OK)
        goto free_model;
    place_activations(m, &(arena){m->activations, 0});
    place_workspace(m, &(arena){m->workspace, 0});
    status = config->kernels->set_threads(config->stream, config->threads);
    if (status != PTB_OK)
        goto free_model;
    *model = m;
    return PTB_OK;

free_model:
    ptb_model_free(m);
    return status;
}

void ptb_model_free(ptb_model *m)
{
    if (!m)
        return;
    ptb_device_free(m->config.device, m->workspace);
    ptb_device_free(m->config.device, m->activations);
    free(m->block);
    free(m);
}

int32_t *ptb_model_inputs(ptb_model *m, int slot)
{
    (void)slot;
    return m->inputs;
}

int32_t *ptb_model_targets(ptb_model *m, int slot)
{
    (void)slot;
    return m->targets;
}

static float *output(ptb_model *m, size_t unit)
{
    if (unit == 0)
        return m->embedded;
    return unit + 1 == m->config.layout->units ? m->logits : m->block[unit - 1].out;
}

// out = in * weight^T + bias (+ residual) with the tensors `weight` and `bias` of the unit
static ptb_status linear(ptb_model *m, const ptb_unit *u, const float *p, int weight, int bias,
                         const float *in, const float *residual, float *out)
{
    const ptb_tensor *w = ptb_unit_tensor(u, weight);
    return m->config.kernels->matmul(m->config.stream, &(ptb_matmul){.type = PTB_F32,
                                                                     .out = out,
                                                                     .in = in,
                                                                     .weight = p + w->first,
                                                                     .bias = p + first_of(u, bias),
                                                                     .residual = residual,
                                                                     .rows = m->rows,
                                                                     .columns = w->rows,
                                                                     .inner = w->columns});
}

static ptb_status linear_input_gradient(ptb_model *m, const ptb_unit *u, const float *p, int weight,
                                        const float *d_out, float *d_in)
{
    const ptb_tensor *w = ptb_unit_tensor(u, weight);
    return m->config.kernels->matmul_input_gradient(m->config.stream,
                                                    &(ptb_matmul_input_gradient){.type = PTB_F32,
                                                                                 .d_in = d_in,
                                                                                 .d_out = d_out,
                                                                                 .weight = p + w->first,
                                                                                 .rows = m->rows,
                                                                                 .columns = w->rows,
                                                                                 .inner = w->columns});
}

static ptb_status linear_weight_gradient(ptb_model *m, const ptb_unit *u, float *g, int weight, int bias,
                                         const float *d_out, const float *in, bool accumulate)
{
    const ptb_tensor *w = ptb_unit_tensor(u, weight);
    return m->config.kernels->matmul_weight_gradient(
        m->config.stream, &(ptb_matmul_weight_gradient){.type = PTB_F32,
                                                        .d_weight = g + w->first,
                                                        .d_bias = g + first_of(u, bias),
                                                        .d_out = d_out,
                                                        .in = in,
                                                        .rows = m->rows,
                                                        .columns = w->rows,
                                                        .inner = w->columns,
                                                        .accumulate = accumulate});
}

static ptb_status norm(ptb_model *m, const ptb_unit *u, const float *p, int gain, const float *in, float *out,
                       float *mean, float *rstd)
{
    return m->config.kernels->norm(m->config.stream, &(ptb_norm){.type = PTB_F32,
                                                                 .out = out,
                                                                 .mean = mean,
                                                                 .rstd = rstd,
                                                                 .in = in,
                                                                 .gain = p + first_of(u, gain),
                                                                 .bias = p + first_of(u, gain + 1),
                                                                 .rows = m->rows,
                                                                 .width = m->hidden,
                                                                 .epsilon = 1e-5f});
}

// d_stream = gradient through the norm (+ d_stream when `add`)
static ptb_status norm_gradient(ptb_model *m, const ptb_unit *u, const ptb_unit_memory *x, int gain,
                                const float *in, const float *mean, const float *rstd, bool add,
                                bool accumulate)
{
    ptb_norm_gradient args = {.type = PTB_F32,
                              .d_in = m->d_stream,
                              .d_gain = x->gradients + first_of(u, gain),
                              .d_bias = x->gradients + first_of(u, gain + 1),
                              .d_out = m->d_narrow,
                              .in = in,
                              .mean = mean,
                              .rstd = rstd,
                              .gain = (const float *)x->parameters + first_of(u, gain),
                              .residual = add ? m->d_stream : NULL,
                              .rows = m->rows,
                              .width = m->hidden,
                              .accumulate = accumulate};
    return m->config.kernels->norm_gradient(m->config.stream, &args);
}

static ptb_status block_forward(ptb_model *m, size_t unit, const float *p)
{
    const ptb_kernels *k = m->config.kernels;
    const ptb_unit *u = &m->config.layout->unit[unit];
    block_state *b = &m->block[unit - 1];
    const float *in = output(m, unit - 1);
    size_t c = m->hidden;
    PTB_TRY(norm(m, u, p, PTB_BLOCK_NORM1_GAIN, in, b->norm1, b->norm1_mean, b->norm1_rstd));
    PTB_TRY(linear(m, u, p, PTB_BLOCK_QKV_WEIGHT, PTB_BLOCK_QKV_BIAS, b->norm1, NULL, b->qkv));
    ptb_attention attention = {.shape = attention_shape(m),
                               .out = b->attention,
                               .lse = b->lse,
                               .query = b->qkv,
                               .key = b->qkv + c,
                               .value = b->qkv + 2 * c};
    PTB_TRY(k->attention(m->config.stream, &attention));
    PTB_TRY(
        linear(m, u, p, PTB_BLOCK_PROJECTION_WEIGHT, PTB_BLOCK_PROJECTION_BIAS, b->attention, in, b->middle));
    PTB_TRY(norm(m, u, p, PTB_BLOCK_NORM2_GAIN, b->middle, b->norm2, b->norm2_mean, b->norm2_rstd));
    PTB_TRY(linear(m, u, p, PTB_BLOCK_UP_WEIGHT, PTB_BLOCK_UP_BIAS, b->norm2, NULL, b->up));
    PTB_TRY(k->activation(
        m->config.stream,
        &(ptb_activation){.type = PTB_F32, .out = b->gelu, .in = b->up, .rows = m->rows, .width = 4 * c}));
    return linear(m, u, p, PTB_BLOCK_DOWN_WEIGHT, PTB_BLOCK_DOWN_BIAS, b->gelu, b->middle, b->out);
}

static ptb_status feed_forward_backward(ptb_model *m, size_t unit, const ptb_unit_memory *x, bool accumulate)
{
    const ptb_unit *u = &m->config.layout->unit[unit];
    const block_state *b = &m->block[unit - 1];
    const float *p = x->parameters;
    float *g = x->gradients;
    PTB_TRY(linear_input_gradient(m, u, p, PTB_BLOCK_DOWN_WEIGHT, m->d_stream, m->d_wide));
    PTB_TRY(linear_weight_gradient(m, u, g, PTB_BLOCK_DOWN_WEIGHT, PTB_BLOCK_DOWN_BIAS, m->d_stream, b->gelu,
                                   accumulate));
    ptb_activation_gradient gelu = {.type = PTB_F32,
                                    .d_in = m->d_wide,
                                    .d_out = m->d_wide,
                                    .in = b->up,
                                    .rows = m->rows,
                                    .width = 4 * m->hidden};
    PTB_TRY(m->config.kernels->activation_gradient(m->config.stream, &gelu));
    PTB_TRY(linear_input_gradient(m, u, p, PTB_BLOCK_UP_WEIGHT, m->d_wide, m->d_narrow));
    PTB_TRY(linear_weight_gradient(m, u, g, PTB_BLOCK_UP_WEIGHT, PTB_BLOCK_UP_BIAS, m->d_wide, b->norm2,
                                   accumulate));
    return norm_gradient(m, u, x, PTB_BLOCK_NORM2_GAIN, b->middle, b->norm2_mean, b->norm2_rstd, true,
                         accumulate);
}

static ptb_status attention_backward(ptb_model *m, size_t unit, const ptb_unit_memory *x, bool accumulate)
{
    const ptb_unit *u = &m->config.layout->unit[unit];
    const block_state *b = &m->block[unit - 1];
    const float *p = x->parameters;
    float *g = x->gradients;
    size_t c = m->hidden;
    PTB_TRY(linear_input_gradient(m, u, p, PTB_BLOCK_PROJECTION_WEIGHT, m->d_stream, m->d_narrow));
    PTB_TRY(linear_weight_gradient(m, u, g, PTB_BLOCK_PROJECTION_WEIGHT, PTB_BLOCK_PROJECTION_BIAS,
                                   m->d_stream, b->attention, accumulate));
    ptb_attention_gradient attention = {.shape = attention_shape(m),
                                        .d_query = m->d_wide,
                                        .d_key = m->d_wide + c,
                                        .d_value = m->d_wide + 2 * c,
                                        .d_out = m->d_narrow,
                                        .out = b->attention,
                                        .lse = b->lse,
                                        .query = b->qkv,
                                        .key = b->qkv + c,
                                        .value = b->qkv + 2 * c};
    PTB_TRY(m->config.kernels->attention_gradient(m->config.stream, &attention));
    PTB_TRY(linear_input_gradient(m, u, p, PTB_BLOCK_QKV_WEIGHT, m->d_wide, m->d_narrow));
    PTB_TRY(linear_weight_gradient(m, u, g, PTB_BLOCK_QKV_WEIGHT, PTB_BLOCK_QKV_BIAS, m->d_wide, b->norm1,
                                   accumulate));
    return norm_gradient(m, u, x, PTB_BLOCK_NORM1_GAIN, output(m, unit - 1), b->norm1_mean, b->norm1_rstd,
                         true, accumulate);
}

static ptb_status block_backward(ptb_model *m, size_t unit, const ptb_unit_memory *x, bool accumulate,
                                 const ptb_gradient_ready *ready)
{
    const ptb_unit *u = &m->config.layout->unit[unit];
    PTB_TRY(feed_forward_backward(m, unit, x, accumulate));
    if (ready)
        PTB_TRY(ready->call(ready->context, unit, first_of(u, PTB_BLOCK_NORM2_GAIN)));
    PTB_TRY(attention_backward(m, unit, x, accumulate));
    return ready ? ready->call(ready->context, unit, 0) : PTB_OK;
}

static ptb_status embedding_forward(ptb_model *m, const float *p)
{
    const ptb_unit *u = &m->config.layout->unit[0];
    ptb_embedding args = {.type = PTB_F32,
                          .out = m->embedded,
                          .tokens = m->inputs,
                          .table = p + first_of(u, PTB_EMBED_TOKENS),
                          .positions = p + first_of(u, PTB_EMBED_POSITIONS),
                          .rows = m->rows,
                          .sequence = (size_t)m->config.layout->shape.sequence,
                          .width = m->hidden};
    return m->config.kernels->embedding(m->config.stream, &args);
}

static ptb_status embedding_backward(ptb_model *m, const ptb_unit_memory *x, bool accumulate,
                                     const ptb_gradient_ready *ready)
{
    const ptb_unit *u = &m->config.layout->unit[0];
    const ptb_model_shape *s = &m->config.layout->shape;
    ptb_embedding_gradient args = {.type = PTB_F32,
                                   .d_table = x->gradients + first_of(u, PTB_EMBED_TOKENS),
                                   .d_positions = x->gradients + first_of(u, PTB_EMBED_POSITIONS),
                                   .d_out = m->d_stream,
                                   .tokens = m->inputs,
                                   .rows = m->rows,
                                   .sequence = (size_t)s->sequence,
                                   .width = m->hidden,
                                   .vocabulary = (size_t)s->vocabulary,
                                   .positions = (size_t)s->sequence,
                                   .accumulate_table = accumulate || s->tied,
                                   .accumulate_positions = accumulate};
    PTB_TRY(m->config.kernels->embedding_gradient(m->config.stream, &args));
    return ready ? ready->call(ready->context, 0, 0) : PTB_OK;
}

static ptb_status head_forward(ptb_model *m, size_t unit, const ptb_unit_memory *x)
{
    const ptb_unit *u = &m->config.layout->unit[unit];
    PTB_TRY(norm(m, u, x->parameters, PTB_HEAD_NORM_GAIN, output(m, unit - 1), m->norm, m->norm_mean,
                 m->norm_rstd));
    bool tied = m->config.layout->shape.tied;
    ptb_matmul args = {.type = PTB_F32,
                       .out = m->logits,
                       .in = m->norm,
                       .weight = tied ? x->tied_parameters
                                      : (const float *)x->parameters + first_of(u, PTB_HEAD_WEIGHT),
                       .rows = m->rows,
                       .columns = (size_t)m->config.layout->shape.vocabulary,
                       .inner = m->hidden};
    return m->config.kernels->matmul(m->config.stream, &args);
}

static ptb_status head_backward(ptb_model *m, size_t unit, const ptb_unit_memory *x, bool accumulate,
                                const ptb_gradient_ready *ready)
{
    const ptb_unit *u = &m->config.layout->unit[unit];
    bool tied = m->config.layout->shape.tied;
    size_t vocabulary = (size_t)m->config.layout->shape.vocabulary;
    const float *weight =
        tied ? x->tied_parameters : (const float *)x->parameters + first_of(u, PTB_HEAD_WEIGHT);
    ptb_matmul_input_gradient input = {.type = PTB_F32,
                                       .d_in = m->d_narrow,
                                       .d_out = m->logits,
                                       .weight = weight,
                                       .rows = m->rows,
                                       .columns = vocabulary,
                                       .inner = m->hidden};
    ptb_matmul_weight_gradient weights = {.type = PTB_F32,
                                          .d_weight = tied ? x->tied_gradients
                                                           : x->gradients + first_of(u, PTB_HEAD_WEIGHT),
                                          .d_out = m->logits,
                                          .in = m->norm,
                                          .rows = m->rows,
                                          .columns = vocabulary,
                                          .inner = m->hidden,
                                          .accumulate = accumulate};
    PTB_TRY(m->config.kernels->matmul_input_gradient(m->config.stream, &input));
    PTB_TRY(m->config.kernels->matmul_weight_gradient(m->config.stream, &weights));
    PTB_TRY(norm_gradient(m, u, x, PTB_HEAD_NORM_GAIN, output(m, unit - 1), m->norm_mean, m->norm_rstd, false,
                          accumulate));
    return ready ? ready->call(ready->context, unit, 0) : PTB_OK;
}

void *ptb_model_output(ptb_model *m, int slot, size_t unit)
{
    (void)slot;
    return output(m, unit);
}

ptb_status ptb_model_begin(ptb_model *m, int slot, const ptb_microbatch *microbatch)
{
    (void)slot;
    m->microbatch = *microbatch;
    return PTB_OK;
}

ptb_status ptb_model_forward(ptb_model *m, int slot, size_t unit, const ptb_unit_memory *memory)
{
    (void)slot;
    switch (m->config.layout->unit[unit].kind) {
    case PTB_UNIT_EMBEDDING:
        return embedding_forward(m, memory->parameters);
    case PTB_UNIT_BLOCK:
        return block_forward(m, unit, memory->parameters);
    case PTB_UNIT_HEAD:
        return head_forward(m, unit, memory);
    }
    return PTB_INTERNAL;
}

ptb_status ptb_model_loss(ptb_model *m, int slot, const ptb_unit_memory *memory, bool accumulate,
                          double *loss)
{
    (void)slot;
    (void)memory;
    ptb_cross_entropy args = {.type = PTB_F32,
                              .logits = m->logits,
                              .d_logits = m->logits,
                              .targets = m->targets,
                              .losses = m->losses,
                              .loss = loss,
                              .rows = m->rows,
                              .vocabulary = (size_t)m->config.layout->shape.vocabulary,
                              .scale = m->microbatch.scale,
                              .accumulate = accumulate};
    return m->config.kernels->cross_entropy(m->config.stream, &args);
}

ptb_status ptb_model_backward(ptb_model *m, int slot, size_t unit, const ptb_unit_memory *memory, int parts,
                              bool accumulate, const ptb_gradient_ready *ready)
{
    (void)slot;
    (void)parts;
    switch (m->config.layout->unit[unit].kind) {
    case PTB_UNIT_EMBEDDING:
        return embedding_backward(m, memory, accumulate, ready);
    case PTB_UNIT_BLOCK:
        return block_backward(m, unit, memory, accumulate, ready);
    case PTB_UNIT_HEAD:
        return head_backward(m, unit, memory, accumulate, ready);
    }
    return PTB_INTERNAL;
}

double ptb_model_flops(const ptb_model *m)
{
    ptb_attention_shape shape = attention_shape(m);
    double attention = m->config.kernels->attention_flops(&shape); // two products; five more in backward
    return 3 * ptb_layout_flops_linear(m->config.layout) * (double)m->rows +
           (double)m->config.layout->shape.layers * attention * 3.5;
}
