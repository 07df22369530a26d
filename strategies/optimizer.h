// The optimizer of a training run: its settings, the schedule of the learning rate, and one update of the
// parameters as kernels on a stream. Who owns parameters and moments is the data-parallel strategy's affair;
// it passes them in. Add an optimizer by adding a kind here, its kernel in kernels.h and a case in
// optimizer.c.
#ifndef PTB_STRATEGIES_OPTIMIZER_H
#define PTB_STRATEGIES_OPTIMIZER_H

#include "strategies/transformer/kernels.h"
#include "strategies/transformer/layout.h"

typedef enum { PTB_OPTIMIZER_ADAMW, PTB_OPTIMIZER_SGD } ptb_optimizer_kind;
typedef enum { PTB_RATE_CONSTANT, PTB_RATE_COSINE } ptb_rate_schedule;

typedef struct {
    ptb_optimizer_kind kind;
    ptb_rate_schedule schedule;
    double rate;                  // the largest learning rate
    double rate_min;              // cosine: from step rate_steps on
    uint64_t rate_warmup;         // steps in which the rate rises linearly to `rate`; 0 or 1: none
    uint64_t rate_steps;          // cosine: steps until rate_min, warm-up included
    double beta1, beta2, epsilon; // AdamW
    double momentum;              // SGD; 0: none, and then no moment is kept
    double decay;                 // weight decay of the tensors that decay (matrices)
    double clip;                  // largest global norm of the gradient; 0: none
    double loss_scale;            // of the first step; 1 but in f16 training
    bool dynamic;                 // the loss scale follows the gradients (f16)
    uint32_t growth_interval;     // dynamic: good steps before the scale doubles
} ptb_optimizer;

// The learning rate of a step, counted from 0: linear warm-up, then constant, or half a cosine from `rate` to
// rate_min (Loshchilov and Hutter 2017, "SGDR", equation 5, without restarts).
double ptb_optimizer_rate(const ptb_optimizer *optimizer, uint64_t step);
// Moments a parameter has: AdamW 2, SGD 1, SGD without momentum 0.
size_t ptb_optimizer_moments(const ptb_optimizer *optimizer);
// Whether the update needs the global norm before it changes any parameter: then all gradients must be
// reduced first.
bool ptb_optimizer_needs_norm(const ptb_optimizer *optimizer);
const char *ptb_optimizer_name(const ptb_optimizer *optimizer);
// What *update is before the first step; for host memory.
ptb_update ptb_optimizer_start(const ptb_optimizer *optimizer);

// Where elements [first, first + count) of a unit are: all pointers at `first`.
typedef struct {
    size_t first, count;
    float *parameters, *moment[2]; /* [count]; moments as ptb_optimizer_moments says, else NULL */
    const float *gradients;        /* [count] */
    void *rounded;                 /* [count] of `type`: copy of the parameters for computing; NULL: none */
    ptb_dtype type;
} ptb_optimizer_memory;

// Once a step, before any ptb_optimizer_update: decides on the device what the step does (factor, skipping).
// sum_squares: of all gradients, device memory; may be NULL unless ptb_optimizer_needs_norm.
ptb_status ptb_optimizer_begin(const ptb_optimizer *optimizer, const ptb_kernels *kernels, ptb_stream *stream,
                               ptb_update *update, const double *sum_squares);
// Enqueues the update of a part of a unit at the learning rate that update->rate holds when the stream gets
// there.
// Vectors (gains, biases) do not decay.
ptb_status ptb_optimizer_update(const ptb_optimizer *optimizer, const ptb_kernels *kernels,
                                ptb_stream *stream, const ptb_update *update, const ptb_unit *unit,
                                const ptb_optimizer_memory *memory);

#endif
