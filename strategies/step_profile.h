// Where a device records its work itself (a GPU), the steps that are broken down are not the timed ones:
// recording costs time. Some more steps are trained with recording on, after the timed ones.
#ifndef PTB_STRATEGIES_STEP_PROFILE_H
#define PTB_STRATEGIES_STEP_PROFILE_H

#include "strategies/step_breakdown.h"
#include "strategies/trainer.h"

// Whether the trainer's streams leave their spans to a capture, so that steps without one cannot be broken
// down.
bool ptb_step_is_captured(const ptb_trainer *trainer);

// Trains a few steps with the capture on, breaks each down and passes its spans on to `to` (may be NULL);
// *steps is how many, 0 where the trainer has no capture or it cannot record (then logged). Adds
// capture_overhead, in %: how much longer they took than `timed_ns`, the median timed step. Collective: all
// ranks train or none.
ptb_status ptb_step_profile(ptb_trainer *trainer, ptb_trace *to, ptb_step_breakdown *breakdown,
                            double timed_ns, uint64_t *steps, ptb_metrics *metrics);
// Which kernels attention took, where there are several; what was captured, and why not: facts of the case.
void ptb_step_profile_facts(const ptb_trainer *trainer, ptb_params *facts);

#endif
