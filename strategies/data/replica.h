// What strategies in which every rank has the whole model share: parameters, master weights in 16 bits, and
// moments, and their update a unit at a time.
#ifndef PTB_STRATEGIES_DATA_REPLICA_H
#define PTB_STRATEGIES_DATA_REPLICA_H

#include "strategies/data/data.h"

typedef struct {
    ptb_data *data;
    bool shared;               // `master` is from the communicator of the dense lane `reduce`
    float *master, *moment[2]; /* [layout.count] */
    void *parameters;          /* [layout.count], compute type; master itself in f32 */
} ptb_replica;

// Collective over the ranks of the dense lane `reduce`; all get the same status. shared: the master weights
// are communicated. Parameters get their initial values. What failed may be released.
ptb_status ptb_replica_init(ptb_replica *replica, ptb_data *data, bool shared);
void ptb_replica_release(ptb_replica *replica); // collective; zeroed ones are allowed
// Bytes a parameter: in f32 4 and the moments, in 16 bits 2, 4 (master) and the moments.
void ptb_replica_memory(const ptb_data_env *env, uint64_t bytes[PTB_MEMORY_COUNT]);
// Enqueues the update of a unit; sums: its gradients are added to the sum of squares.
ptb_status ptb_replica_update(ptb_replica *replica, size_t unit, const float *gradients /* [layout.count] */,
                              bool sums);
// The parameters that units compute with from master weights that changed; nothing to do in f32.
ptb_status ptb_replica_round(ptb_replica *replica);

#endif
