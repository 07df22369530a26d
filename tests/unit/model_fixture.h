// What the tests of the model's modes share: a shape with parameters and several microbatches of tokens, and
// a run over them, on the device that is tested (kernels_fixture.h), in a chosen order of forward, input
// gradients and weight gradients.
#ifndef PTB_TESTS_UNIT_MODEL_FIXTURE_H
#define PTB_TESTS_UNIT_MODEL_FIXTURE_H

#include "strategies/transformer/model.h"
#include "tests/unit/kernels_fixture.h"

#include <math.h>
#include <stdio.h>

enum { MICROBATCHES = 2 };

typedef struct {
    ptb_layout layout;
    size_t batch, rows;                 // of a microbatch
    int32_t *inputs, *targets, *starts; /* [MICROBATCHES * rows] */
    float *parameters;                  /* [layout.count] */
} model_case;

// In which order two microbatches go through the model.
typedef enum {
    ONE_BY_ONE,      // each forward and backward before the next begins
    ALL_FORWARD,     // both forward first (needs two slots)
    WEIGHTS_AT_LAST, // as that, and all weight gradients after all input gradients (needs `deferred`)
} model_order;

typedef struct {
    double loss;
    float *gradients; /* [layout.count] */
    float *output;    /* [MICROBATCHES * rows * hidden]: of the last block */
    uint64_t bytes[PTB_MEMORY_COUNT];
    double flops;
} model_result;

static inline void model_case_init(model_case *c, const ptb_model_shape *shape, size_t batch)
{
    *c = (model_case){.batch = batch, .rows = batch * (size_t)shape->sequence};
    assert_int_equal(ptb_layout_init(&c->layout, shape, NULL), PTB_OK);
    size_t count = MICROBATCHES * c->rows;
    c->inputs = calloc(count, sizeof *c->inputs);
    c->targets = calloc(count, sizeof *c->targets);
    c->starts = calloc(count, sizeof *c->starts);
    c->parameters = calloc(c->layout.count, sizeof *c->parameters);
    for (size_t i = 0; i < count; i++) {
        c->inputs[i] = (int32_t)(ptb_random_u64(1, 1, i) % (uint64_t)shape->vocabulary);
        c->targets[i] = (int32_t)(ptb_random_u64(1, 2, i) % (uint64_t)shape->vocabulary);
    }
    for (size_t u = 0; u < c->layout.units; u++) {
        const ptb_unit *unit = &c->layout.unit[u];
        ptb_layout_fill(&c->layout, 3, u, c->parameters + unit->first);
        // Larger than training starts with, and no zeros: every path must show in the loss.
        for (size_t t = 0; t < unit->tensors; t++)
            for (size_t i = 0; i < ptb_tensor_count(&unit->tensor[t]); i++)
                c->parameters[unit->first + unit->tensor[t].first + i] +=
                    0.2f * (float)ptb_random_normal(5, u * 100 + t, i);
    }
}

static inline void model_case_release(model_case *c)
{
    ptb_layout_release(&c->layout);
    free(c->inputs), free(c->targets), free(c->starts), free(c->parameters);
}

static inline void model_result_release(model_result *r)
{
    free(r->gradients), free(r->output);
    *r = (model_result){0};
}

typedef struct {
    const model_case *c;
    ptb_model *model;
    ptb_stream *stream;
    const void *parameters; // compute type
    size_t element;
    float *gradients;
    const float *factor;
} model_run;

static inline ptb_unit_memory model_unit_memory(const model_run *r, size_t u)
{
    const ptb_unit *unit = &r->c->layout.unit[u];
    ptb_unit_memory memory = {.parameters = (const char *)r->parameters + unit->first * r->element,
                              .gradients = r->gradients + unit->first};
    if (r->c->layout.shape.tied && unit->kind == PTB_UNIT_HEAD) {
        memory.tied_parameters = r->parameters;
        memory.tied_gradients = r->gradients;
    }
    return memory;
}

static inline void model_forward(const model_run *r, int slot, int microbatch, double *loss)
{
    const model_case *c = r->c;
    size_t at = (size_t)microbatch * c->rows, bytes = c->rows * sizeof(int32_t);
    ptb_microbatch place = {.step = 4,
                            .sequence = (uint64_t)microbatch * c->batch,
                            .scale = 1.0 / (double)(MICROBATCHES * c->rows),
                            .share = 1.0 / MICROBATCHES,
                            .factor = r->factor};
    assert_int_equal(ptb_model_begin(r->model, slot, &place), PTB_OK);
    assert_int_equal(ptb_stream_copy(r->stream, ptb_model_inputs(r->model, slot), c->inputs + at, bytes),
                     PTB_OK);
    assert_int_equal(ptb_stream_copy(r->stream, ptb_model_targets(r->model, slot), c->targets + at, bytes),
                     PTB_OK);
    if (ptb_model_starts(r->model, slot))
        assert_int_equal(ptb_stream_copy(r->stream, ptb_model_starts(r->model, slot), c->starts + at, bytes),
                         PTB_OK);
    ptb_unit_memory memory;
    for (size_t u = 0; u < c->layout.units; u++) {
        memory = model_unit_memory(r, u);
        assert_int_equal(ptb_model_forward(r->model, slot, u, &memory), PTB_OK);
    }
    assert_int_equal(ptb_model_loss(r->model, slot, &memory, microbatch > 0, microbatch > 0, loss), PTB_OK);
}

static inline void model_backward(const model_run *r, int slot, int microbatch, int parts)
{
    for (size_t u = r->c->layout.units; u-- > 0;) {
        ptb_unit_memory memory = model_unit_memory(r, u);
        assert_int_equal(ptb_model_backward(r->model, slot, u, &memory, parts, microbatch > 0, NULL), PTB_OK);
    }
}

static inline void model_schedule(const model_run *r, model_order order, double *loss)
{
    for (int i = 0; i < MICROBATCHES; i++) {
        model_forward(r, order == ONE_BY_ONE ? 0 : i, i, loss);
        if (order == ONE_BY_ONE)
            model_backward(r, 0, i, PTB_BACKWARD_BOTH);
    }
    for (int i = 0; i < MICROBATCHES && order != ONE_BY_ONE; i++)
        model_backward(r, i, i, order == ALL_FORWARD ? PTB_BACKWARD_BOTH : PTB_BACKWARD_INPUT);
    for (int i = 0; i < MICROBATCHES && order == WEIGHTS_AT_LAST; i++)
        model_backward(r, i, i, PTB_BACKWARD_WEIGHT);
}

static inline void model_values(const void *from, ptb_dtype type, float *out, size_t count)
{
    for (size_t i = 0; i < count; i++)
        out[i] = (float)ptb_dtype_load(type, (const char *)from + i * ptb_dtype_size(type));
}

// Device memory as f32 on the host.
static inline float *model_values_of(ptb_stream *stream, const void *from, ptb_dtype type, size_t count)
{
    void *copy = malloc(count * ptb_dtype_size(type));
    float *values = malloc(count * sizeof *values);
    assert_int_equal(ptb_stream_copy(stream, copy, from, count * ptb_dtype_size(type)), PTB_OK);
    assert_int_equal(ptb_stream_sync(stream), PTB_OK);
    model_values(copy, type, values, count);
    free(copy);
    return values;
}

// One step of two microbatches. mode: what of a configuration is not filled in here.
static inline model_result model_train(const model_case *c, ptb_model_config mode, model_order order,
                                       const float *factor)
{
    fixture *f;
    assert_int_equal(kernels_setup_repeatable((void **)&f), 0);
    model_result result = {0};
    size_t count = c->layout.count, element = ptb_dtype_size(mode.type);
    char *parameters = test_memory(count * element);
    float *gradients = test_memory(count * sizeof *gradients);
    double *loss = test_memory(sizeof *loss);
    float *scale = factor ? test_memory_of(factor, sizeof *factor) : NULL;
    for (size_t i = 0; i < count; i++)
        ptb_dtype_store(mode.type, parameters + i * element, (double)c->parameters[i]);
    mode.device = f->device;
    mode.stream = f->stream;
    mode.kernels = f->kernels;
    mode.layout = &c->layout;
    mode.batch = (int64_t)c->batch;
    mode.threads = mode.threads ? mode.threads : 1;
    mode.slots = order == ONE_BY_ONE ? 0 : MICROBATCHES;
    mode.deferred = mode.deferred || order == WEIGHTS_AT_LAST;
    ptb_model *model;
    uint64_t before[PTB_MEMORY_COUNT]; // what kernels keep with the stream
    memcpy(before, f->device->used_bytes, sizeof before);
    assert_int_equal(ptb_model_new(&mode, &model), PTB_OK);
    ptb_model_memory(&mode, result.bytes);
    for (int i = 0; i < PTB_MEMORY_COUNT; i++)
        assert_int_equal(result.bytes[i], f->device->used_bytes[i] - before[i]);
    result.flops = ptb_model_flops(model);
    memset(gradients, 0xff, count * sizeof *gradients); // NaN: what is not written shows
    model_run run = {c, model, f->stream, parameters, element, gradients, scale};
    model_schedule(&run, order, loss);
    int last = order == ONE_BY_ONE ? 0 : MICROBATCHES - 1;
    result.output = model_values_of(f->stream, ptb_model_output(model, last, c->layout.units - 2), mode.type,
                                    c->rows * (size_t)c->layout.shape.hidden);
    result.gradients = memcpy(malloc(count * sizeof *gradients), gradients, count * sizeof *gradients);
    result.loss = *loss;
    ptb_model_free(model);
    test_memory_free(parameters), test_memory_free(gradients), test_memory_free(loss);
    if (scale)
        test_memory_free(scale);
    kernels_teardown((void **)&f);
    return result;
}

// ||a - b|| / ||b||
static inline double model_distance(const float *a, const float *b, size_t count)
{
    double difference = 0, norm = 0;
    for (size_t i = 0; i < count; i++) {
        difference += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        norm += (double)b[i] * (double)b[i];
    }
    return sqrt(difference) / (sqrt(norm) + 1e-30);
}

#endif
