// How a case of the benchmark `step` divides the training over ranks.
#ifndef PTB_STRATEGIES_STEP_DIVISION_H
#define PTB_STRATEGIES_STEP_DIVISION_H

#include "strategies/step_config.h"
#include "strategies/strategy.h"

typedef struct {
    const ptb_strategy *strategy;
    ptb_mesh mesh;
    char asked[PTB_MESH_TEXT];   // sizes of axes that were asked for; "" when none was
    char skip[PTB_REASON_BYTES]; // not empty: the strategy cannot divide this model over these ranks, and why
} ptb_step_division;

// strategy: a name that there is. Sizes that were asked for must fit (USAGE, logged) unless numbers of ranks
// are swept; where these are, or a strategy takes what ranks there are, and they do not fit the model, `skip`
// says why.
ptb_status ptb_step_divide(const ptb_step_config *config, const ptb_bench_env *env,
                           const ptb_model_shape *shape, const char *strategy, ptb_step_division *division);
// Whether the division takes a global batch of so many sequences: by data-parallel ranks and microbatches
// (USAGE, logged, unless numbers of ranks are swept), and by rows over tp; else `skip` says why.
ptb_status ptb_step_divide_batch(const ptb_step_config *config, const ptb_bench_env *env,
                                 const ptb_model_shape *shape, int64_t batch, ptb_step_division *division);

// The mesh, and a warning where steps on the host are crowded.
void ptb_step_division_facts(const ptb_step_config *config, const ptb_world *world, const ptb_mesh *mesh,
                             ptb_params *facts);

#endif
