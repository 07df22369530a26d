// The bound that communication keeps a step from: the same steps with nothing communicated, run in the same
// processes behind the timed ones.
#ifndef PTB_STRATEGIES_STEP_IDEAL_H
#define PTB_STRATEGIES_STEP_IDEAL_H

#include "core/bench.h"
#include "strategies/trainer.h"

// Collective; streams idle. Runs some steps whose lanes are silent: they compute with whatever is in the
// buffers that others would have filled, and what they train is worth nothing afterwards, so nothing else may
// be asked of the trainer's parameters then. Its series end where they did. Adds ideal_step (ms) and
// comm_efficiency (%); nothing with one rank, where steps are replayed from a graph, nor with ep, where what
// experts compute depends on the tokens that others send. step_ns: median of the timed steps.
ptb_status ptb_step_ideal(ptb_trainer *trainer, double step_ns, ptb_metrics *metrics);

#endif
