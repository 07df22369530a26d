// How old the parameters were that training steps computed with, over all workers: what a strategy with
// bounded staleness measures about itself.
#ifndef PTB_STRATEGIES_STEP_STALENESS_H
#define PTB_STRATEGIES_STEP_STALENESS_H

#include "core/bench.h"
#include "strategies/trainer.h"

// Steps of a strategy with clocks that are timed in one sample (fewer if they are slow), from a common start
// until the last update is everywhere: in it a rank is held up by others only where the strategy says so. The
// first steps of a sample begin with fresh parameters and the last ones are waited for, so that a step seems
// to take a little longer, and gradients seem a little fresher, than in an endless run.
enum { PTB_STEP_TOGETHER = 8 };

typedef struct {
    double
        *gradients; /* [bound + 1]: of all workers and steps, by the updates that their parameters lacked */
    size_t count;
} ptb_step_staleness;

// After the timed steps. Adds staleness_mean, staleness_max and stale_gradients (% that lacked any update);
// nothing where every step computes with all updates before it. Collective.
ptb_status ptb_step_staleness_metrics(ptb_step_staleness *staleness, const ptb_trainer *trainer,
                                      ptb_metrics *metrics);
// The histogram; false: there is none.
bool ptb_step_staleness_series(const ptb_step_staleness *staleness, ptb_series *series);
void ptb_step_staleness_release(ptb_step_staleness *staleness);

#endif
