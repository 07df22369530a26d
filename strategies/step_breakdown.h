// Where the time of training steps went: what profiler/overlap.c finds in the spans of each step, kept per
// step, and its medians as metrics.
#ifndef PTB_STRATEGIES_STEP_BREAKDOWN_H
#define PTB_STRATEGIES_STEP_BREAKDOWN_H

#include "core/bench.h"

typedef struct ptb_step_breakdown ptb_step_breakdown;

ptb_status ptb_step_breakdown_new(size_t max_steps, ptb_step_breakdown **breakdown);
void ptb_step_breakdown_free(ptb_step_breakdown *breakdown);
// Analyses the spans of the steps from the last call up to `steps` (their correlation is the step's number).
// With dropped spans those steps count as unknown.
ptb_status ptb_step_breakdown_add(ptb_step_breakdown *breakdown, const ptb_span *spans, size_t count,
                                  size_t dropped, uint64_t steps);
// forward, backward, optimizer, exposed_comm, input, other (they sum to the step), comm, overlap: the median
// over the last `timed` of `steps` steps, the mean over ranks of it. Collective.
ptb_status ptb_step_breakdown_metrics(const ptb_step_breakdown *breakdown, ptb_world *world, uint64_t steps,
                                      uint64_t timed, ptb_metrics *metrics);

#endif
