// Whether a training run did what it should: losses that are finite and fall, and parameters that are the
// same on all ranks that hold the same.
#ifndef PTB_STRATEGIES_STEP_VERIFY_H
#define PTB_STRATEGIES_STEP_VERIFY_H

#include "core/bench.h"
#include "strategies/trainer.h"

typedef struct {
    ptb_data_hashes values;
    uint64_t steps; // after so many; 0: not known yet
} ptb_step_hashes;

// Collective; streams idle. learns: the loss must fall (data with structure to learn, a learning rate).
ptb_status ptb_step_verify(ptb_trainer *trainer, bool learns, ptb_step_hashes *hashes, ptb_verdict *verdict);
// One number for all parameters of this rank.
uint64_t ptb_step_hash(const ptb_step_hashes *hashes);

#endif
