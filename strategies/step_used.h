// Settings that a run of the benchmark `step` would not look at: whoever gives one believes that it matters.
#ifndef PTB_STRATEGIES_STEP_USED_H
#define PTB_STRATEGIES_STEP_USED_H

#include "strategies/step_config.h"

// A run's options, and the names of its strategies (each there is) and precisions.
typedef struct {
    const ptb_opt_set *options; // with the configuration
    const char *const *strategies, *const *precisions;
    size_t strategy_count, precision_count;
} ptb_step_names;

// USAGE, logged, with what the option needs, when a setting that is not its default has no meaning for any
// strategy and precision of the run and for its model. A number of ranks that leaves an axis at 1 is no
// reason: sweeps begin there.
ptb_status ptb_step_check_used(const ptb_step_config *config, const ptb_model_shape *shape,
                               const ptb_step_names *names);

#endif
