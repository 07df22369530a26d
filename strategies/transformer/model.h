// A GPT on one rank: pre-LayerNorm blocks, learned positions, GELU, causal attention. Forward and backward
// run a unit at a time on a stream; parameters and gradients are passed in, so that whoever owns them (data
// parallelism) may move them between calls. The model owns activations and scratch.
#ifndef PTB_STRATEGIES_TRANSFORMER_MODEL_H
#define PTB_STRATEGIES_TRANSFORMER_MODEL_H

#include "strategies/transformer/kernels.h"
#include "strategies/transformer/layout.h"

typedef struct {
    ptb_device *device;
    ptb_stream *stream; // compute
    const ptb_kernels *kernels;
    const ptb_layout *layout; // outlives the model
    int64_t batch;            // sequences of this rank, >= 1
    int threads;              // processor threads of the kernels
} ptb_model_config;

typedef struct ptb_model ptb_model;

// Parameters and gradients of one unit, each [unit.count]. tied_*: the token table [vocabulary, hidden],
// given to the head of a tied model, else NULL. gradients may be NULL in forward.
typedef struct {
    const float *parameters, *tied_parameters;
    float *gradients, *tied_gradients;
} ptb_unit_memory;

// Told while backward enqueues: gradients [first, unit.count) of the unit are complete on the stream from
// here on.
typedef struct {
    ptb_status (*call)(void *context, size_t unit, size_t first);
    void *context;
} ptb_gradient_ready;

ptb_status ptb_model_new(const ptb_model_config *config, ptb_model **model);
void ptb_model_free(ptb_model *model);
// Bytes that ptb_model_new will allocate, by category.
void ptb_model_memory(const ptb_model_config *config, uint64_t bytes[PTB_MEMORY_COUNT]);

// Device memory [batch * sequence] that the next forward reads; fill it on the stream.
int32_t *ptb_model_inputs(ptb_model *model);
int32_t *ptb_model_targets(ptb_model *model);

// Enqueues the forward pass of one unit; units go in ascending order.
ptb_status ptb_model_forward(ptb_model *model, size_t unit, const ptb_unit_memory *memory);
// After the head's forward: *loss (device memory) = scale * sum over this rank's tokens of the cross-entropy,
// and the gradient that backward starts from. scale = 1 / tokens of the global batch makes the sum over ranks
// the mean.
ptb_status ptb_model_loss(ptb_model *model, double scale, double *loss);
// Enqueues the backward pass; units go in descending order. accumulate adds to the gradients (later
// microbatches). Of a tied model the head writes the token table's gradient first, the embedding adds to it.
ptb_status ptb_model_backward(ptb_model *model, size_t unit, const ptb_unit_memory *memory, bool accumulate,
                              const ptb_gradient_ready *ready);
// Output of a unit in device memory: [batch * sequence, hidden]; of the head the logits [.., vocabulary]
// (after ptb_model_loss their gradient). For tests and pipeline stages.
float *ptb_model_output(ptb_model *model, size_t unit);

// FLOPs per step of this rank's matrix products exactly as computed, forward and backward (attention computes
// its scores twice).
double ptb_model_flops(const ptb_model *model);

#endif
