// A transformer on one rank, or one rank's part of it where the layout is cut (layout.h). Forward and
// backward run a unit at a time on a stream; parameters and gradients are passed in, so that whoever owns
// them (data parallelism) may move them between calls. The model owns activations and scratch. Everything
// below enqueues and returns: nothing waits, and nothing is decided on the host from data.
//
// A microbatch lives in a slot from its begin to the end of its backward: begin, inputs and targets, forward
// of all units ascending, loss, backward of all units descending. Microbatches in different slots may be
// interleaved in any way.
#ifndef PTB_STRATEGIES_TRANSFORMER_MODEL_H
#define PTB_STRATEGIES_TRANSFORMER_MODEL_H

#include "core/trace.h"
#include "strategies/context/context.h"
#include "strategies/expert/balance.h"
#include "strategies/expert/dispatch.h"
#include "strategies/tensor/tensor.h"
#include "strategies/timeline.h"
#include "strategies/transformer/kernels.h"
#include "strategies/transformer/layout.h"

// What is computed again in backward instead of being kept. SELECTIVE: attention's output from query, key and
// value (Korthikanti et al. 2022, section 5). FULL: the whole block from its input (Chen et al. 2016).
typedef enum { PTB_RECOMPUTE_NONE, PTB_RECOMPUTE_SELECTIVE, PTB_RECOMPUTE_FULL } ptb_recompute;

typedef struct {
    ptb_device *device;
    ptb_stream *stream; // compute
    const ptb_kernels *kernels;
    const ptb_layout *layout; // outlives the model
    int64_t batch;            // sequences of a microbatch, >= 1
    int threads;              // processor threads of the kernels
    ptb_dtype type;           // compute type: of parameters and activations; one of kernels->types
    int slots;                // microbatches whose activations are held at once; 0: 1
    // The two parts of a block's backward may be enqueued apart: the gradients of every linear layer's output
    // are kept for its weights' gradient.
    bool deferred;
    ptb_recompute recompute;
    int64_t recompute_every; // of blocks 0, every, 2 every ...; 0: 1, all
    int64_t loss_rows;       // rows whose logits exist at once; 0: ptb_model_loss_rows
    bool packed;             // sequences hold several documents: starts are read
    uint64_t seed;           // of dropout
    ptb_timeline *timeline;  // of the stream; NULL: nothing is recorded
    // Sequences split over ranks, described for this layout, batch and type, and opened before the first
    // forward; rows of a microbatch are then batch x the tokens of its slices, in their order. NULL: whole
    // sequences.
    ptb_context_axis *context;
    // Experts on several ranks, whose rows are as many as this model's; NULL: all are here. For checks and
    // memory it need not be open.
    ptb_expert_axis *experts;
    // Load-balancing losses with the statistics of all ranks that have other rows; for as many slots, of a
    // model with such losses. NULL: of this rank's microbatch alone.
    ptb_balance_axis *balance;
    // Where the layout is cut over tp ranks, what they exchange; else NULL. Of it ptb_model_check and
    // ptb_model_memory read the settings alone (see ptb_model_tensor).
    ptb_tensor_axis *tensor;
    // Called while ptb_model_loss enqueues: what comes from here on belongs to `phase`. First FORWARD, last
    // BACKWARD. call NULL: not called.
    struct {
        ptb_status (*call)(void *context, ptb_phase phase);
        void *context;
    } on_phase;
} ptb_model_config;

// Rows whose logits a model makes at once unless it is told, of `rows` in all; and the elements between rows
// of logits: whole cache lines in every type, and what tensor cores need, whatever the vocabulary.
size_t ptb_model_loss_rows(const ptb_kernels *kernels, size_t rows);
size_t ptb_model_logits_stride(size_t vocabulary);

// Where dropout is applied; its seed there (dropout.h) is a function of the configuration's seed, the step,
// the unit and the place.
typedef enum {
    PTB_DROPOUT_EMBEDDING,   // output of the embedding
    PTB_DROPOUT_ATTENTION,   // probabilities
    PTB_DROPOUT_PROJECTION,  // what attention adds to the residual stream
    PTB_DROPOUT_FEED_FORWARD // what the feed-forward adds
} ptb_dropout_place;
uint64_t ptb_model_dropout_seed(uint64_t seed, uint64_t step, size_t unit, ptb_dropout_place place);

// What a tensor-parallel axis must know of a model that is configured so; config->tensor is not read.
ptb_tensor_env ptb_model_tensor(const ptb_model_config *config, bool sequence, int chunks);

typedef struct ptb_model ptb_model;

// Parameters [unit.count] in the compute type and gradients of one unit. tied_*: the token table
// [vocabulary, hidden], given to the head of a tied model, else NULL. gradients may be NULL in forward.
typedef struct {
    const void *parameters, *tied_parameters;
    float *gradients, *tied_gradients;
} ptb_unit_memory;

// Told while backward enqueues: gradients [first, unit.count) of the unit are complete on the stream from
// here on. Comes with the part that computes weight gradients. With sequence parallelism gradients of
// tensors that all tp ranks have are then summed over these ranks: give it once, with the last microbatch
// that is added to a gradient, and on all tp ranks alike.
typedef struct {
    ptb_status (*call)(void *context, size_t unit, size_t first);
    void *context;
} ptb_gradient_ready;

// A microbatch's place in the global batch. step and sequence (the number of its first sequence in the global
// batch) number dropout's draws, so that any sharding draws the same masks.
typedef struct {
    uint64_t step, sequence;
    double scale;        // of every token's cross-entropy: 1 / tokens of the global batch makes the sum over
                         // microbatches and ranks the mean
    double share;        // of the microbatch in the global batch: weight of its load-balancing loss
    const float *factor; /* [1], device memory: loss scale of f16 training, of gradients alone; NULL: 1 */
} ptb_microbatch;

// USAGE, logged with the arithmetic, when the configuration is not possible; UNSUPPORTED when the kernels
// lack the type. Allocates nothing; device and stream may be NULL.
ptb_status ptb_model_check(const ptb_model_config *config);
// What ptb_model_check says; NO_MEMORY. Allocates ptb_model_memory() bytes and nothing later.
ptb_status ptb_model_new(const ptb_model_config *config, ptb_model **model);
void ptb_model_free(ptb_model *model);
// Bytes that ptb_model_new will allocate, by category, of a configuration that ptb_model_check passes; see
// model_memory.c for the closed form. device and stream may be NULL.
void ptb_model_memory(const ptb_model_config *config, uint64_t bytes[PTB_MEMORY_COUNT]);

// Device memory, [rows] of a microbatch, that the slot's next forward reads; fill it on the stream. A
// negative target is not counted. starts, when packed: the position in its sequence at which the row's
// document begins.
int32_t *ptb_model_inputs(ptb_model *model, int slot);
int32_t *ptb_model_targets(ptb_model *model, int slot);
int32_t *ptb_model_starts(ptb_model *model, int slot);

// Gives the slot to a microbatch.
ptb_status ptb_model_begin(ptb_model *model, int slot, const ptb_microbatch *microbatch);
// Enqueues the forward pass of one unit; units go in ascending order. The head's is its norm alone: logits
// never exist for all rows, ptb_model_loss makes them a few rows at a time.
ptb_status ptb_model_forward(ptb_model *model, int slot, size_t unit, const ptb_unit_memory *memory);
// After the head's forward: *loss (device memory) = scale * sum of the cross-entropies + share * the
// load-balancing losses (+ *loss when accumulate), and the gradient that backward starts from. The head's
// product is differentiated here, logits chunk by chunk, its weight's gradient included (which adds when
// add_gradients); of a tied model it is the token table's, which the embedding's backward adds to. memory: of
// the head.
ptb_status ptb_model_loss(ptb_model *model, int slot, const ptb_unit_memory *memory, bool accumulate,
                          bool add_gradients, double *loss);

// The parts of backward. INPUT: the gradient of the unit's input (and those of norms' gains and biases, which
// come with it). WEIGHT: the gradients of linear layers and tables; at any time between the unit's INPUT and
// the slot's next begin when `deferred`. A block that is recomputed in full is so in each part that is
// enqueued apart.
enum { PTB_BACKWARD_INPUT = 1, PTB_BACKWARD_WEIGHT = 2, PTB_BACKWARD_BOTH = 3 };
// Enqueues parts of the backward pass; INPUT of units in descending order. accumulate adds to the gradients
// (later microbatches), but that of a tied table always adds. ready may be NULL.
ptb_status ptb_model_backward(ptb_model *model, int slot, size_t unit, const ptb_unit_memory *memory,
                              int parts, bool accumulate, const ptb_gradient_ready *ready);

// How the experts are chosen: of each block, and expert of the whole model, the choices that this rank's rows
// made in all microbatches since the model was made, and those of them that capacity left. Those of blocks
// without experts are 0. Waits for the stream.
ptb_status ptb_model_choices(ptb_model *model, int64_t *choices /* [layers, 2, experts], host memory */);

// Output of the embedding or of a block in device memory: [rows, hidden], compute type; of the
// head what its norm gives, until the loss. With sequence parallelism this rank's slice of the rows. For
// tests and pipeline stages.
void *ptb_model_output(ptb_model *model, int slot, size_t unit);
// Gradient of that output: complete after the INPUT part of the unit above (the loss for the head), valid
// until the unit's own INPUT, with `deferred` until the slot's next begin.
void *ptb_model_output_gradient(ptb_model *model, int slot, size_t unit);
// Between the head's forward and the loss: logits of rows [first, first + rows) into device memory.
ptb_status ptb_model_logits(ptb_model *model, int slot, const ptb_unit_memory *memory, size_t first,
                            size_t rows, float *logits /* [rows, this rank's vocabulary] */);

// FLOPs of this rank's matrix products exactly as computed for one microbatch, forward, backward and
// recomputation: the linear layers, attention's blocks as its kernel cuts them (packed documents count as if
// they were one), the router; capacity: as if no choice were dropped. The convention of hardware FLOPs (HFU).
double ptb_model_flops(const ptb_model *model);

#endif
