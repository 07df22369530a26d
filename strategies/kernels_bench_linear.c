// The linear layers of a model for the benchmark `kernels`: the product, the gradient of its input and that
// of its weight, at every place.
#include "strategies/kernels_bench.h"
#include "strategies/transformer/model.h"

#include <stdlib.h>
#include <string.h>

static const char *const places[] = {"qkv",        "projection",   "up",        "down",
                                     "head",       "router",       "shared_up", "shared_down",
                                     "experts_up", "experts_down", NULL};

typedef struct {
    size_t rows, columns, inner, groups;
    size_t stride; // between rows of the layer's output
    bool has_bias, has_residual, is_wide;
} layer;

static bool is(const ptb_kernel_call *c, const char *place)
{
    return strcmp(c->place, place) == 0;
}

static const char *absent(const ptb_model_shape *s, const char *place)
{
    bool is_dense = strcmp(place, "up") == 0 || strcmp(place, "down") == 0;
    if (is_dense)
        return s->experts && !s->dense_layers ? "every block of the model is a mixture of experts" : NULL;
    if (strncmp(place, "shared", 6) == 0)
        return s->experts && s->shared_experts ? NULL : "the model has no shared experts (--shared-experts)";
    if (strncmp(place, "experts", 7) == 0 || strcmp(place, "router") == 0)
        return s->experts ? NULL : "the model has no experts (--experts)";
    return NULL;
}

static layer layer_of(const ptb_kernel_call *c)
{
    const ptb_model_shape *s = c->shape;
    size_t hidden = (size_t)s->hidden, gates = s->activation == PTB_SWIGLU ? 2 : 1;
    size_t attention = (size_t)(s->heads * s->head_width), expert = (size_t)s->expert_hidden;
    size_t key_value = 2 * (size_t)(s->kv_heads * s->head_width), dense = (size_t)s->feed_forward;
    layer l = {.rows = c->rows, .columns = hidden, .inner = hidden};
    if (is(c, "qkv"))
        l.columns = attention + key_value;
    else if (is(c, "projection"))
        l.inner = attention;
    else if (is(c, "up"))
        l.columns = gates * dense;
    else if (is(c, "down"))
        l.inner = dense;
    else if (is(c, "head"))
        l.rows = ptb_model_loss_rows(c->kernels, c->rows), l.columns = (size_t)s->vocabulary;
    else if (is(c, "router"))
        l.columns = (size_t)s->experts;
    else if (is(c, "shared_up"))
        l.columns = gates * (size_t)s->shared_experts * expert;
    else if (is(c, "shared_down"))
        l.inner = (size_t)s->shared_experts * expert;
    else if (is(c, "experts_up"))
        l.columns = gates * expert;
    else
        l.inner = expert;
    l.is_wide = is(c, "head") || is(c, "router");
    l.has_residual = is(c, "projection") || is(c, "down");
    l.has_bias = s->biases && (l.has_residual || is(c, "qkv") || is(c, "up"));
    if (is(c, "experts_up") || is(c, "experts_down")) {
        l.groups = (size_t)s->experts;
        l.rows = c->rows * (size_t)s->top_k;
    }
    l.stride = is(c, "head") ? ptb_model_logits_stride(l.columns) : l.columns;
    return l;
}

static size_t matrices(const layer *l)
{
    return l->groups ? l->groups : 1;
}

// Rows of the groups as even as they get: [rows g / groups, rows (g + 1) / groups).
static size_t group_row(const layer *l, size_t group)
{
    return l->rows * group / matrices(l);
}

static size_t group_of(const layer *l, size_t row)
{
    size_t group = 0;
    while (group_row(l, group + 1) <= row)
        group++;
    return group;
}

static int32_t *make_offsets(ptb_kernel_call *c, int slot, const layer *l)
{
    if (!l->groups)
        return NULL;
    int32_t *offsets = malloc((l->groups + 1) * sizeof *offsets);
    if (!offsets) {
        c->status = PTB_NO_MEMORY;
        return NULL;
    }
    for (size_t g = 0; g <= l->groups; g++)
        offsets[g] = (int32_t)group_row(l, g);
    int32_t *memory = ptb_call_exact(c, slot, PTB_I32, l->groups + 1, offsets);
    free(offsets);
    return memory;
}

// Sizes, products and the bytes of the three matrices.
static void describe(ptb_kernel_call *c, const layer *l, size_t in_size, size_t weight_size, size_t out_size)
{
    double rows = (double)l->rows, columns = (double)l->columns, inner = (double)l->inner;
    c->flops = 2 * rows * columns * inner;
    c->bytes = rows * inner * (double)in_size + (double)matrices(l) * columns * inner * (double)weight_size +
               rows * columns * (double)out_size;
    if (l->groups)
        ptb_call_sizes(c, "%zu x %zu x %zu, %zu groups", l->rows, l->columns, l->inner, l->groups);
    else
        ptb_call_sizes(c, "%zu x %zu x %zu", l->rows, l->columns, l->inner);
}

enum { OUT, IN, WEIGHT, BIAS, RESIDUAL, OFFSETS, D_BIAS };

// ---- out = in * weight^T + bias + residual

static void prepare_matmul(ptb_kernel_call *c)
{
    layer l = layer_of(c);
    ptb_dtype out_type = l.is_wide ? PTB_F32 : c->type;
    size_t size = ptb_dtype_size(c->type);
    ptb_matmul a = {
        .out = ptb_call_output(c, OUT, out_type, l.rows * l.stride),
        .in = ptb_call_filled(c, IN, c->type, l.rows * l.inner, 1, 0),
        .weight = ptb_call_filled(c, WEIGHT, c->type, matrices(&l) * l.columns * l.inner, 1, 0),
        .bias = l.has_bias ? ptb_call_filled(c, BIAS, c->type, l.columns, 1, 0) : NULL,
        .residual = l.has_residual ? ptb_call_filled(c, RESIDUAL, out_type, l.rows * l.stride, 1, 0) : NULL,
        .rows = l.rows,
        .columns = l.columns,
        .inner = l.inner,
        .out_stride = l.stride,
        .groups = l.groups,
        .offsets = make_offsets(c, OFFSETS, &l),
        .type = c->type,
        .wide = l.is_wide,
    };
    memcpy(c->arguments, &a, sizeof a);
    describe(c, &l, size, size, ptb_dtype_size(out_type) * (l.has_residual ? 2 : 1));
}

static void verify_matmul(ptb_kernel_call *c, ptb_verdict *verdict)
{
    layer l = layer_of(c);
    for (size_t k = 0; k < PTB_CALL_SAMPLES; k++) {
        size_t at = ptb_call_sample(k, l.rows * l.columns), row = at / l.columns, column = at % l.columns;
        size_t weight = (group_of(&l, row) * l.columns + column) * l.inner;
        ptb_call_sum sum = {0};
        for (size_t i = 0; i < l.inner; i++)
            ptb_call_add(&sum,
                         ptb_call_value(c, IN, row * l.inner + i) * ptb_call_value(c, WEIGHT, weight + i));
        if (l.has_bias)
            ptb_call_add(&sum, ptb_call_value(c, BIAS, column));
        if (l.has_residual)
            ptb_call_add(&sum, ptb_call_value(c, RESIDUAL, row * l.stride + column));
        ptb_call_expect(c, verdict, "out", OUT, row * l.stride + column, sum);
    }
}

const ptb_kernel_entry ptb_kernel_entry_matmul = {
    .places = places, .is_typed = true, .absent = absent, .prepare = prepare_matmul, .verify = verify_matmul};

// ---- d_in = d_out * weight; OUT is d_in, IN is d_out

static void prepare_input_gradient(ptb_kernel_call *c)
{
    layer l = layer_of(c);
    size_t size = ptb_dtype_size(c->type);
    ptb_matmul_input_gradient a = {
        .d_in = ptb_call_output(c, OUT, c->type, l.rows * l.inner),
        .d_out = ptb_call_filled(c, IN, c->type, l.rows * l.stride, 1, 0),
        .weight = ptb_call_filled(c, WEIGHT, c->type, matrices(&l) * l.columns * l.inner, 1, 0),
        .rows = l.rows,
        .columns = l.columns,
        .inner = l.inner,
        .d_out_stride = l.stride,
        .groups = l.groups,
        .offsets = make_offsets(c, OFFSETS, &l),
        .type = c->type,
    };
    memcpy(c->arguments, &a, sizeof a);
    describe(c, &l, size, size, size);
}

static void verify_input_gradient(ptb_kernel_call *c, ptb_verdict *verdict)
{
    layer l = layer_of(c);
    for (size_t k = 0; k < PTB_CALL_SAMPLES; k++) {
        size_t at = ptb_call_sample(k, l.rows * l.inner), row = at / l.inner, i = at % l.inner;
        size_t weight = group_of(&l, row) * l.columns * l.inner + i;
        ptb_call_sum sum = {0};
        for (size_t column = 0; column < l.columns; column++)
            ptb_call_add(&sum, ptb_call_value(c, IN, row * l.stride + column) *
                                   ptb_call_value(c, WEIGHT, weight + column * l.inner));
        ptb_call_expect(c, verdict, "d_in", OUT, at, sum);
    }
}

const ptb_kernel_entry ptb_kernel_entry_matmul_input_gradient = {.places = places,
                                                                 .is_typed = true,
                                                                 .absent = absent,
                                                                 .prepare = prepare_input_gradient,
                                                                 .verify = verify_input_gradient};

// ---- d_weight = d_out^T * in, d_bias = column sums of d_out; OUT is d_weight, WEIGHT is d_out

static void prepare_weight_gradient(ptb_kernel_call *c)
{
    layer l = layer_of(c);
    size_t size = ptb_dtype_size(c->type);
    ptb_matmul_weight_gradient a = {
        .d_weight = ptb_call_output(c, OUT, PTB_F32, matrices(&l) * l.columns * l.inner),
        .d_bias = l.has_bias ? ptb_call_output(c, D_BIAS, PTB_F32, l.columns) : NULL,
        .d_out = ptb_call_filled(c, WEIGHT, c->type, l.rows * l.stride, 1, 0),
        .in = ptb_call_filled(c, IN, c->type, l.rows * l.inner, 1, 0),
        .rows = l.rows,
        .columns = l.columns,
        .inner = l.inner,
        .d_out_stride = l.stride,
        .groups = l.groups,
        .offsets = make_offsets(c, OFFSETS, &l),
        .type = c->type,
    };
    memcpy(c->arguments, &a, sizeof a);
    describe(c, &l, size, sizeof(float), size);
}

static void verify_weight_gradient(ptb_kernel_call *c, ptb_verdict *verdict)
{
    layer l = layer_of(c);
    for (size_t k = 0; k < PTB_CALL_SAMPLES; k++) {
        size_t at = ptb_call_sample(k, matrices(&l) * l.columns * l.inner), i = at % l.inner;
        size_t column = at / l.inner % l.columns, group = at / l.inner / l.columns;
        ptb_call_sum sum = {0};
        for (size_t row = group_row(&l, group); row < group_row(&l, group + 1); row++)
            ptb_call_add(&sum, ptb_call_value(c, WEIGHT, row * l.stride + column) *
                                   ptb_call_value(c, IN, row * l.inner + i));
        ptb_call_expect(c, verdict, "d_weight", OUT, at, sum);
    }
    for (size_t k = 0; l.has_bias && k < PTB_CALL_SAMPLES; k++) {
        size_t column = ptb_call_sample(k, l.columns);
        ptb_call_sum sum = {0};
        for (size_t row = 0; row < l.rows; row++)
            ptb_call_add(&sum, ptb_call_value(c, WEIGHT, row * l.stride + column));
        ptb_call_expect(c, verdict, "d_bias", D_BIAS, column, sum);
    }
}

const ptb_kernel_entry ptb_kernel_entry_matmul_weight_gradient = {.places = places,
                                                                  .is_typed = true,
                                                                  .absent = absent,
                                                                  .prepare = prepare_weight_gradient,
                                                                  .verify = verify_weight_gradient};
