// Where the time of training steps went: what profiler/overlap.c finds in the spans of each step, kept per
// step, and its means as metrics.
#ifndef PTB_STRATEGIES_STEP_BREAKDOWN_H
#define PTB_STRATEGIES_STEP_BREAKDOWN_H

#include "core/bench.h"

typedef struct ptb_step_breakdown ptb_step_breakdown;

ptb_status ptb_step_breakdown_new(size_t max_steps, ptb_step_breakdown **breakdown);
void ptb_step_breakdown_free(ptb_step_breakdown *breakdown);
// Analyses the spans of the steps from the last call up to `steps` (their correlation is the step's number).
// With dropped spans those steps count as unknown. together: work of one step goes on in the next ones, so
// all are analysed as one, and each has its part of that.
ptb_status ptb_step_breakdown_add(ptb_step_breakdown *breakdown, const ptb_span *spans, size_t count,
                                  size_t dropped, bool together, uint64_t steps);
// Adds, in ms, forward, backward, optimizer, exposed_comm, input, other and imbalance, which sum to step;
// comm, exposed_dp and so on for the axes that were communicated on (communication of two axes at once counts
// for both), and overlap in %. Of the last `timed` of `steps` steps the middle half is taken, in order of the
// slowest rank's time (so `step` is the interquartile mean of that). The first six are means over these steps
// and over ranks; imbalance is what the slowest rank takes longer than the mean of the ranks. NAN when spans
// were dropped. Collective.
ptb_status ptb_step_breakdown_metrics(const ptb_step_breakdown *breakdown, ptb_world *world, uint64_t steps,
                                      uint64_t timed, ptb_metrics *metrics);

#endif
