// Every option of a transformer's blocks, alone and in the combinations that people train, in sizes that are
// odd wherever they may be; with data and parameters for the reference (reference_model.h) and the engine.
#ifndef PTB_TESTS_UNIT_MODEL_CASES_H
#define PTB_TESTS_UNIT_MODEL_CASES_H

#include "core/random.h"
#include "tests/unit/reference_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

typedef struct {
    const char *name;
    ptb_model_shape shape; // sizes that are 0 are those of model_shape()
    bool packed;           // sequences of several documents
    bool holes;            // some targets are not counted
} model_case;

#define SWIGLU        .activation = PTB_SWIGLU
#define MIXTURE(E, K) .experts = E, .top_k = K, .expert_hidden = 11, .balance = 0.3
#define LLAMA         SWIGLU, .norm = PTB_RMS_NORM, .position = PTB_ROTARY_POSITIONS, .kv_heads = 1, .epsilon = 1e-6

static const model_case model_cases[] = {
    {"plain", {0}, false, false},
    {"tied", {.tied = true}, false, false},
    {"biases", {.biases = true}, false, false},
    {"RMSNorm", {.norm = PTB_RMS_NORM, .epsilon = 1e-3}, false, false},
    {"RMSNorm with biases", {.norm = PTB_RMS_NORM, .biases = true}, false, false},
    {"rotary", {.position = PTB_ROTARY_POSITIONS, .rotary_base = 100}, false, false},
    {"SwiGLU", {.activation = PTB_SWIGLU}, false, false},
    {"SwiGLU with biases", {.activation = PTB_SWIGLU, .biases = true}, false, false},
    {"grouped heads", {.kv_heads = 1}, false, false},
    {"head width", {.head_width = 6}, false, false},
    {"more positions", {.positions = 11}, false, false},
    {"dropout", {.dropout = 0.3, .biases = true}, false, false},
    {"packed", {.biases = true}, true, false},
    {"packed, rotary", {.position = PTB_ROTARY_POSITIONS}, true, false},
    {"uncounted targets", {.biases = true}, false, true},
    {"one row", {.sequence = 1, .layers = 1, .biases = true, .tied = true}, false, false},
    {"mixture", {SWIGLU, MIXTURE(5, 2), .normalise = true}, false, false},
    {"mixture, weights as they are", {SWIGLU, MIXTURE(5, 2)}, false, false},
    {"mixture, GELU", {MIXTURE(5, 2), .biases = true, .normalise = true}, false, false},
    {"mixture, top 1", {SWIGLU, MIXTURE(5, 1)}, false, false},
    {"mixture, all", {SWIGLU, MIXTURE(5, 5), .normalise = true}, false, false},
    {"mixture of one", {SWIGLU, MIXTURE(1, 1)}, false, false},
    {"mixture, capacity", {SWIGLU, MIXTURE(5, 2), .capacity_factor = 0.7, .normalise = true}, false, false},
    {"mixture, shared experts", {SWIGLU, MIXTURE(5, 2), .shared_experts = 2}, false, false},
    {"mixture, a dense layer", {SWIGLU, MIXTURE(5, 2), .dense_layers = 1}, false, false},
    {"mixture, dropout", {SWIGLU, MIXTURE(5, 2), .dropout = 0.2, .shared_experts = 1}, false, false},
    {"GPT-2", {.biases = true, .tied = true}, false, false},
    {"GPT-2, all at once", {.biases = true, .tied = true, .dropout = 0.1, .positions = 150}, true, true},
    {"Llama", {LLAMA, .rotary_base = 500000}, false, false},
    {"Llama, all at once", {LLAMA, .tied = true, .dropout = 0.1}, true, true},
    {"Mixtral", {LLAMA, MIXTURE(5, 2), .normalise = true}, false, false},
    {"DeepSeek", {LLAMA, MIXTURE(9, 3), .shared_experts = 2, .dense_layers = 1}, false, false},
    {"DeepSeek, all at once",
     {LLAMA, MIXTURE(9, 3), .shared_experts = 2, .dense_layers = 1, .capacity_factor = 0.9, .dropout = 0.1},
     true,
     true},
};
enum { MODEL_CASES = sizeof model_cases / sizeof *model_cases };

// SMALL: for finite differences. ODD: odd numbers of everything. LONG: more than a tile or a block of any
// kernel.
typedef enum { MODEL_SMALL, MODEL_ODD, MODEL_LONG } model_size;

static inline ptb_model_shape model_shape(const model_case *c, model_size size)
{
    static const ptb_model_shape sizes[] = {
        [MODEL_SMALL] = {.layers = 2, .hidden = 6, .sequence = 5, .vocabulary = 7, .feed_forward = 5},
        [MODEL_ODD] = {.layers = 2, .hidden = 24, .sequence = 7, .vocabulary = 13, .feed_forward = 20},
        [MODEL_LONG] = {.layers = 2, .hidden = 78, .sequence = 149, .vocabulary = 301, .feed_forward = 150},
    };
    ptb_model_shape s = c->shape;
    s.layers = s.layers ? s.layers : sizes[size].layers;
    s.hidden = sizes[size].hidden;
    s.heads = 3;
    s.sequence = s.sequence ? s.sequence : sizes[size].sequence;
    s.vocabulary = sizes[size].vocabulary;
    s.feed_forward = sizes[size].feed_forward;
    return s;
}

// A microbatch of `batch` sequences and the model's parameters.
typedef struct {
    const model_case *what;
    ptb_layout layout;
    reference_batch batch;
    size_t rows;
    int32_t *inputs, *targets, *starts;
    double *parameters; /* [layout.count], exact in the type they were made for */
} model_data;

static inline void model_data_fill(model_data *d, uint64_t seed)
{
    const ptb_model_shape *s = &d->layout.shape;
    for (size_t r = 0; r < d->rows; r++) {
        size_t position = r % (size_t)s->sequence;
        d->inputs[r] = (int32_t)(ptb_random_u64(seed, 1, r) % (uint64_t)s->vocabulary);
        d->targets[r] = (int32_t)(ptb_random_u64(seed, 2, r) % (uint64_t)s->vocabulary);
        if (d->what->holes && r % 4 == 1)
            d->targets[r] = -1;
        // Documents of 3 rows and one of what is left; the second sequence is cut elsewhere.
        size_t shift = r / (size_t)s->sequence;
        if (d->what->packed)
            d->starts[r] = position < shift ? 0 : (int32_t)((position - shift) / 3 * 3 + shift);
    }
}

// The wider the model, the smaller: products keep their size.
static inline double model_deviation(const ptb_model_shape *s, ptb_tensor_role role)
{
    double narrower = sqrt(24 / (double)s->hidden);
    switch (role) {
    case PTB_EMBED_TOKENS:
    case PTB_EMBED_POSITIONS:
        return 0.7;
    case PTB_BLOCK_ROUTER_WEIGHT:
        return 0.4 * narrower;
    default:
        return 0.15 * narrower;
    }
}

// Larger than training starts with, and no zeros: every path must show in the loss. Not so large that
// saturated gates or small residual streams multiply the rounding errors of 16-bit types.
static inline void model_parameters_fill(model_data *d, uint64_t seed, ptb_dtype type)
{
    for (size_t u = 0; u < d->layout.units; u++) {
        const ptb_unit *unit = &d->layout.unit[u];
        for (size_t t = 0; t < unit->tensors; t++) {
            const ptb_tensor *tensor = &unit->tensor[t];
            double deviation = model_deviation(&d->layout.shape, tensor->role);
            for (size_t i = 0; i < ptb_tensor_count(tensor); i++) {
                double value = tensor->mean + deviation * ptb_random_normal(seed, u * 100 + t, i);
                uint64_t rounded;
                ptb_dtype_store(type, &rounded, value);
                d->parameters[unit->first + tensor->first + i] = ptb_dtype_load(type, &rounded);
            }
        }
    }
}

// Parameters in a type, such that the logits of chosen experts and the others differ by more than `margin`:
// no rounding of the engine may change a choice.
static inline void model_data_init(model_data *d, const model_case *c, model_size size, size_t batch,
                                   ptb_dtype type, double margin)
{
    *d = (model_data){.what = c};
    ptb_model_shape shape = model_shape(c, size);
    assert_int_equal(ptb_layout_init(&d->layout, &shape, NULL), PTB_OK);
    d->rows = batch * (size_t)shape.sequence;
    d->inputs = reference_integers(d->rows);
    d->targets = reference_integers(d->rows);
    d->starts = reference_integers(d->rows);
    d->parameters = reference_numbers(d->layout.count);
    model_data_fill(d, 1);
    uint64_t seed = 0;
    do {
        model_parameters_fill(d, ++seed, type);
        d->batch = (reference_batch){
            .layout = &d->layout,
            .batch = batch,
            .inputs = d->inputs,
            .targets = d->targets,
            .starts = c->packed ? d->starts : NULL,
            .seed = 77,
            .place = {.step = 3, .sequence = 10, .scale = 1.0 / (double)d->rows, .share = 0.5}};
        if (seed > 2000)
            fail_msg("%s: no parameters whose routers decide by more than %g", c->name, margin);
    } while (reference_run(&d->batch, d->parameters, NULL, NULL).margin < margin);
}

static inline void model_data_release(model_data *d)
{
    ptb_layout_release(&d->layout);
    free(d->inputs), free(d->targets), free(d->starts), free(d->parameters);
}

#endif
