// How long a step may take, for --dry-run and the progress line: a guess before anything is measured.
#ifndef PTB_STRATEGIES_STEP_ESTIMATE_H
#define PTB_STRATEGIES_STEP_ESTIMATE_H

#include "core/bench.h"

// Sets c->estimate_s and c->guess of a step that computes so many FLOPs on all ranks together, by the data
// sheet of the device where there is one. device: the back-end's name, none is opened; precision: as in
// --precision.
void ptb_step_guess(const ptb_bench_env *env, const char *device, const char *precision, double flops,
                    ptb_case *c);

#endif
