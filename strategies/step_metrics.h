// What the benchmark `step` reports of a training run besides its breakdown and memory: rates, utilisation,
// losses, starved and skipped steps.
#ifndef PTB_STRATEGIES_STEP_METRICS_H
#define PTB_STRATEGIES_STEP_METRICS_H

#include "core/bench.h"
#include "strategies/trainer.h"

// Options of the benchmark `step`; `field` of struct `type` is a double.
#define PTB_STEP_METRICS_OPTS(type, field)                                                                   \
    {                                                                                                        \
        "peak", 0, PTB_OPT_DOUBLE, offsetof(type, field), "0", 0, 1e18, NULL, "FLOP/S",                      \
            "matrix products of a rank, of the step's type, that utilisation is a share of; 0: measured "    \
            "after the steps"                                                                                \
    }

// Streams idle, after the timed steps; step_ns: median time of one; peak: FLOP/s of one rank's matrix
// products, for the utilisations. 0: it is measured, on all ranks at once (some tenths of a second).
// Collective.
ptb_status ptb_step_metrics(ptb_trainer *trainer, double step_ns, double peak, ptb_metrics *metrics);

// What one step sends over links: its gradients, as if all were reduced by the algorithm of the first bucket.
// False: there is one rank, or a step communicates more than gradients of whole models, whose ways over links
// are not worked out.
bool ptb_step_moves(ptb_trainer *trainer, ptb_traffic *traffic);

#endif
