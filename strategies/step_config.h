// The configuration of the benchmark `step`: what its options make of a training run, and what of them
// identifies a case.
#ifndef PTB_STRATEGIES_STEP_CONFIG_H
#define PTB_STRATEGIES_STEP_CONFIG_H

#include "core/bench.h"
#include "strategies/model_options.h"
#include "strategies/optimizer.h"
#include "strategies/step_data.h"

typedef struct {
    // Lists: a case for each combination.
    char *strategy, *comm, *algorithm, *precision;
    char *transport, *kernels, *device, *data, *reduce_type, *recompute, *mesh, *expert_dispatch, *context;
    char *balance_statistics;
    ptb_model_options model;
    int64_t batch, micro_batches, recompute_every, threads, context_degree, tensor_chunks;
    bool pack, overlap, deterministic, graph, sequence_parallel, expert_overlap;
    uint64_t bucket_bytes;
    ptb_step_data data_parallel;
    double peak; // FLOP/s of a rank's matrix products; 0: measured
    // Optimizer.
    char *optimizer, *schedule;
    double rate, rate_min, beta1, beta2, epsilon, momentum, decay, clip, loss_scale;
    int64_t rate_warmup, rate_steps, growth_interval;
} ptb_step_config;

// What one case adds to the configuration.
typedef struct {
    const char *strategy, *comm, *algorithm, *precision;
    const char *mesh; // sizes of axes that were asked for; NULL: none
    bool tensor;      // layers are cut over ranks
    bool experts;     // are on several ranks
    bool context;     // sequences are split over ranks
    bool balance;     // there are load-balancing losses
    int64_t batch;    // effective sequences of the global batch
    const char *data; // where the tokens come from, in words
    uint64_t seed;
    int ranks;
} ptb_step_point;

// Sequences of the global batch: as asked, or 8 or the next number that divides. USAGE, with the arithmetic
// in `reason` (PTB_REASON_BYTES), when the number that was asked for does not divide over (data-parallel)
// ranks and microbatches.
ptb_status ptb_step_batch(const ptb_step_config *config, int ranks, int64_t *batch, char *reason);
// The largest learning rate: as asked, or when negative one at which AdamW trains models of this width from
// the first steps on small batches: 0.001, above 512 wide 0.0001 (GPT-2 124M diverges at 0.001).
double ptb_step_rate(const ptb_step_config *config, int64_t hidden);
// USAGE, logged, when settings contradict each other; `rate` is what ptb_step_rate gives, `dropout` the
// model's.
ptb_status ptb_step_check(const ptb_step_config *config, double dropout);
// Whether there are load-balancing losses; whether they have the statistics of all ranks; and whether a
// strategy can be run so, else why not, into reason (PTB_REASON_BYTES).
bool ptb_step_balances(const ptb_model_shape *shape);
bool ptb_step_balances_globally(const ptb_step_config *config, const ptb_model_shape *shape);
bool ptb_step_balance_possible(const char *strategy, char *reason);
ptb_optimizer ptb_step_optimizer(const ptb_step_config *config, ptb_dtype type);
// Compute type by the option's word.
ptb_dtype ptb_step_type(const char *precision); // tf32: f32
bool ptb_step_is_tf32(const char *precision);
bool ptb_step_has_type(const ptb_kernels *kernels, const char *precision);
// The parameters of a case. What is off (clipping, dropout, recomputation) or has no meaning there (momentum
// of AdamW) is left out; everything else is in, so that no two settings share a key.
void ptb_step_params(const ptb_step_config *config, const ptb_step_point *point, ptb_params *params);

#endif
