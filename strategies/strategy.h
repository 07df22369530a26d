// The names of --strategy: each is a data-parallel strategy (strategies/data) and the mesh axis that takes
// the ranks which --mesh does not give away. Add one by adding a row to the table in strategy.c.
#ifndef PTB_STRATEGIES_STRATEGY_H
#define PTB_STRATEGIES_STRATEGY_H

#include "core/bench.h"
#include "strategies/data/data.h"
#include "strategies/mesh.h"

typedef struct {
    const char *name;
    const char *summary; // what it does, in a line
    const char *shards;  // what is cut over ranks
    const char *memory;  // of state, bytes a parameter; of activations
    const char *volume;  // that a rank sends in a step
    const char *data;    // registered data-parallel strategy
    ptb_mesh_axis axis;
    bool sequence; // sequence parallelism
    bool hybrid;   // shards inside a host, copies over hosts
} ptb_strategy;

// Those whose data-parallel strategy there is; NULL behind the last, or when there is no such name.
const ptb_strategy *ptb_strategy_at(size_t i);
const ptb_strategy *ptb_strategy_find(const char *name);
// Logs the nearest names when there is none.
const ptb_strategy *ptb_strategy_need(const char *name);
const ptb_data_parallel *ptb_strategy_data(const ptb_strategy *strategy);
// This rank's place in the mesh that the strategy makes of the sizes that were asked for. USAGE, with the
// arithmetic in `reason` (PTB_REASON_BYTES), when they do not fit the ranks or the model, or leave a strategy
// that has an axis of its own nothing to cut on several ranks.
ptb_status ptb_strategy_mesh(const ptb_strategy *strategy, const ptb_mesh_sizes *sizes,
                             const ptb_world *world, const ptb_model_shape *shape, ptb_mesh *mesh,
                             char *reason);

#endif
