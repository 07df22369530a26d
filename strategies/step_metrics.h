// What the benchmark `step` reports of a training run besides its breakdown and memory: rates, utilisation,
// losses, starved and skipped steps.
#ifndef PTB_STRATEGIES_STEP_METRICS_H
#define PTB_STRATEGIES_STEP_METRICS_H

#include "core/bench.h"
#include "strategies/trainer.h"

// Streams idle, after the timed steps; step_ns: median time of one. Measures the peak of matrix products for
// the utilisations, on all ranks at once (some tenths of a second). Collective.
ptb_status ptb_step_metrics(ptb_trainer *trainer, double step_ns, ptb_metrics *metrics);

// What one step sends over links: its gradients, as if all were reduced by the algorithm of the first bucket.
// False: there is one rank, or a step communicates more than gradients of whole models, whose ways over links
// are not worked out.
bool ptb_step_moves(ptb_trainer *trainer, ptb_traffic *traffic);

#endif
