// How the router of a mixture of experts spreads tokens in training steps: choices of each expert, summed
// over ranks, and what capacity drops.
#ifndef PTB_STRATEGIES_STEP_EXPERTS_H
#define PTB_STRATEGIES_STEP_EXPERTS_H

#include "core/bench.h"
#include "strategies/trainer.h"

// Series: choices of each expert of each mixture layer; imbalance of each such layer.
enum { PTB_STEP_EXPERTS_SERIES = 2 };

typedef struct {
    int64_t
        *read[2];   /* [layers, 2, experts] each: ptb_model_choices at the last read, and at the one before */
    double *tokens; /* [layers, experts], of all ranks */
    double *imbalance; /* [layers] */
    size_t layers, dense, experts;
} ptb_step_experts;

// Between steps, untimed: from here on what the last read but one said is forgotten. Waits for the stream.
// Nothing happens in models without experts.
ptb_status ptb_step_experts_read(ptb_step_experts *experts, ptb_trainer *trainer);
// Of the steps between the last two reads. Adds expert_imbalance (mean over layers of the most popular
// expert's choices over the mean expert's, capacity or not), where experts are on several ranks
// expert_rank_imbalance (the same of ranks' experts together, choices that are dropped left out), and
// experts_dropped. Collective.
ptb_status ptb_step_experts_metrics(ptb_step_experts *experts, const ptb_trainer *trainer,
                                    ptb_metrics *metrics);
// Series i; false: the model has no experts, or there are not so many series.
bool ptb_step_experts_series(const ptb_step_experts *experts, size_t i, ptb_series *series);
void ptb_step_experts_release(ptb_step_experts *experts);

#endif
