// A pool of slots: memory that whole units take turns in, be it parameters gathered for computing or
// gradients on their way to a reduction. Blocks share a ring of slots; the embedding and the head, which are
// larger or smaller than blocks, have slots of their own, or share one where they are not needed at the same
// time.
#ifndef PTB_STRATEGIES_DATA_POOL_H
#define PTB_STRATEGIES_DATA_POOL_H

#include "strategies/data/data.h"

typedef struct {
    size_t blocks;   // slots in the ring, 1 at least
    bool share_ends; // embedding and head take turns
    size_t width;    // bytes of an element
} ptb_pool_config;

#define PTB_POOL_EMPTY SIZE_MAX
typedef struct {
    void *memory; // from the communicator of the dense shard lane
    size_t unit;  // that is in it, or PTB_POOL_EMPTY
    bool waited;  // compute has waited for what filled it
    bool used;    // by compute in this step: `released` says until when
    bool held;    // compute writes it
    bool reading; // communication reads it
    ptb_event *filled, *released;
} ptb_pool_slot;

typedef struct {
    const ptb_data_env *env;
    ptb_pool_config config;
    size_t count;
    ptb_pool_slot *slot;
} ptb_pool;

// Collective over the ranks of the dense shard lane; all get the same status. What failed may be released.
ptb_status ptb_pool_init(ptb_pool *pool, const ptb_data_env *env, const ptb_pool_config *config);
void ptb_pool_release(ptb_pool *pool); // collective; zeroed ones are allowed
uint64_t ptb_pool_bytes(const ptb_data_env *env, const ptb_pool_config *config);
// The unit's slot, whoever is in it.
ptb_pool_slot *ptb_pool_slot_of(const ptb_pool *pool, size_t unit);
void ptb_pool_empty(ptb_pool *pool);

#endif
