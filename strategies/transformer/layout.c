// The flat index space of a model's parameters; see layout.h. A new kind of block adds its tensors here.
#include "strategies/transformer/layout.h"

#include "core/log.h"
#include "core/random.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 16 }; // floats

static void add_tensor(ptb_unit *unit, const char *name, int64_t rows, int64_t columns, float deviation)
{
    ptb_tensor *t = &unit->tensor[unit->tensors++];
    *t = (ptb_tensor){.name = name,
                      .first = unit->count,
                      .rows = (size_t)rows,
                      .columns = (size_t)columns,
                      .decay = rows > 1,
                      .deviation = deviation};
    unit->count += ((size_t)(rows * columns) + ALIGN - 1) / ALIGN * ALIGN;
}

static void add_norm(ptb_unit *unit, const char *gain, const char *bias, int64_t width)
{
    add_tensor(unit, gain, 1, width, 0);
    unit->tensor[unit->tensors - 1].mean = 1;
    add_tensor(unit, bias, 1, width, 0);
}

static void lay_out_block(ptb_unit *unit, const ptb_model_shape *s)
{
    int64_t h = s->hidden;
    float residual = 0.02f / sqrtf(2 * (float)s->layers);
    add_norm(unit, "norm1.gain", "norm1.bias", h);
    add_tensor(unit, "qkv.weight", 3 * h, h, 0.02f);
    add_tensor(unit, "qkv.bias", 1, 3 * h, 0);
    add_tensor(unit, "projection.weight", h, h, residual);
    add_tensor(unit, "projection.bias", 1, h, 0);
    add_norm(unit, "norm2.gain", "norm2.bias", h);
    add_tensor(unit, "up.weight", 4 * h, h, 0.02f);
    add_tensor(unit, "up.bias", 1, 4 * h, 0);
    add_tensor(unit, "down.weight", h, 4 * h, residual);
    add_tensor(unit, "down.bias", 1, h, 0);
}

static void lay_out_unit(ptb_unit *unit, const ptb_model_shape *s)
{
    switch (unit->kind) {
    case PTB_UNIT_EMBEDDING:
        add_tensor(unit, "tokens", s->vocabulary, s->hidden, 0.02f);
        add_tensor(unit, "positions", s->sequence, s->hidden, 0.02f);
        break;
    case PTB_UNIT_BLOCK:
        lay_out_block(unit, s);
        break;
    case PTB_UNIT_HEAD:
        add_norm(unit, "norm.gain", "norm.bias", s->hidden);
        if (!s->tied)
            add_tensor(unit, "head.weight", s->vocabulary, s->hidden, 0.02f);
        break;
    }
}

static ptb_status check_shape(const ptb_model_shape *s)
{
    if (s->layers < 1 || s->hidden < 1 || s->heads < 1 || s->sequence < 1 || s->vocabulary < 2) {
        ptb_error(
            "a model needs at least 1 layer, hidden size 1, 1 head, sequence 1 and vocabulary 2; got %" PRId64
            ", %" PRId64 ", %" PRId64 ", %" PRId64 " and %" PRId64,
            s->layers, s->hidden, s->heads, s->sequence, s->vocabulary);
        return PTB_USAGE;
    }
    if (s->hidden % s->heads) {
        ptb_error("--heads %" PRId64 " does not divide --hidden %" PRId64 ": %" PRId64 " / %" PRId64
                  " = %" PRId64 " remainder %" PRId64 "; every head needs the same width",
                  s->heads, s->hidden, s->hidden, s->heads, s->hidden / s->heads, s->hidden % s->heads);
        return PTB_USAGE;
    }
    return PTB_OK;
}

ptb_status ptb_layout_init(ptb_layout *layout, const ptb_model_shape *shape)
{
    PTB_TRY(check_shape(shape));
    ptb_layout l = {.shape = *shape, .units = (size_t)shape->layers + 2};
    l.unit = calloc(l.units, sizeof *l.unit);
    if (!l.unit) {
        ptb_error("no memory to describe %zu units", l.units);
        return PTB_NO_MEMORY;
    }
    for (size_t u = 0; u < l.units; u++) {
        ptb_unit *unit = &l.unit[u];
        unit->kind = u == 0 ? PTB_UNIT_EMBEDDING : u + 1 == l.units ? PTB_UNIT_HEAD : PTB_UNIT_BLOCK;
        unit->first = l.count;
        lay_out_unit(unit, shape);
        l.count += unit->count;
        for (size_t t = 0; t < unit->tensors; t++)
            l.parameters += ptb_tensor_count(&unit->tensor[t]);
    }
    l.embedding_parameters = (size_t)((shape->vocabulary + shape->sequence) * shape->hidden);
    *layout = l;
    return PTB_OK;
}

void ptb_layout_release(ptb_layout *layout)
{
    free(layout->unit);
    *layout = (ptb_layout){0};
}

void ptb_layout_fill(const ptb_layout *layout, uint64_t seed, size_t unit, float *parameters)
{
    const ptb_unit *u = &layout->unit[unit];
    memset(parameters, 0, u->count * sizeof *parameters);
    for (size_t t = 0; t < u->tensors; t++) {
        const ptb_tensor *tensor = &u->tensor[t];
        float *values = parameters + tensor->first;
        uint64_t stream = (uint64_t)unit << 8 | t;
        for (size_t i = 0; i < ptb_tensor_count(tensor); i++)
            values[i] = tensor->deviation == 0
                            ? tensor->mean
                            : tensor->mean + tensor->deviation * (float)ptb_random_normal(seed, stream, i);
    }
}

double ptb_layout_flops_palm(const ptb_layout *layout)
{
    const ptb_model_shape *s = &layout->shape;
    return 6.0 * (double)(layout->parameters - layout->embedding_parameters) +
           12.0 * (double)s->layers * (double)s->hidden * (double)s->sequence;
}

double ptb_layout_flops_linear(const ptb_layout *layout)
{
    const ptb_model_shape *s = &layout->shape;
    double h = (double)s->hidden;
    return 6.0 * (12.0 * (double)s->layers * h * h + h * (double)s->vocabulary);
}
