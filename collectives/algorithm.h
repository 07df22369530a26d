// How `host` and `local` do a collective. One descriptor a file in collectives/algorithms/; to add an
// algorithm, add collectives/algorithms/X.c with PTB_REGISTER at its end.
//
// run gets calls of at least two members with at least one element (all_to_all_v and barrier: any). Uneven
// blocks (ptb_block), fewer elements than members and any number of members must be right. A call that an
// algorithm does not do is refused by `supports`, with the reason.
#ifndef PTB_COLLECTIVES_ALGORITHM_H
#define PTB_COLLECTIVES_ALGORITHM_H

#include "collectives/team.h"
#include "collectives/wire.h"

#define PTB_COLL_BIT(kind) (1u << (kind))

typedef struct {
    ptb_plugin plugin;
    unsigned collectives; // PTB_COLL_BIT of each that it does
    bool needs_shared;    // all members must share memory (one host)
    // Further conditions; NULL: none. The same answer on all members.
    bool (*supports)(const ptb_team *team, const ptb_coll *call, bool in_place, char *reason);
    ptb_status (*run)(ptb_team *team, const ptb_coll *call);
    // Pipeline segment of this call in bytes; NULL: the algorithm does not cut its messages.
    size_t (*segment_bytes)(const ptb_team *team, const ptb_coll *call);
} ptb_algorithm;

// The algorithm of that name, or NULL with a logged message.
const ptb_algorithm *ptb_algorithm_need(const char *name);
// Mask, members and the algorithm's own conditions; `reason` (PTB_REASON_BYTES) may be NULL.
bool ptb_algorithm_supports(const ptb_algorithm *algorithm, const ptb_team *team, const ptb_coll *call,
                            bool in_place, char *reason);
// Runs any call: one member and no elements are done here, the rest by the algorithm.
ptb_status ptb_algorithm_run(const ptb_algorithm *algorithm, ptb_team *team, const ptb_coll *call);

// Element addresses and local copies, used by all.
static inline const void *ptb_at_const(const void *buffer, size_t element, size_t element_bytes)
{
    return (const unsigned char *)buffer + element * element_bytes;
}
static inline void *ptb_at(void *buffer, size_t element, size_t element_bytes)
{
    return (unsigned char *)buffer + element * element_bytes;
}
// Nothing when both are the same place.
void ptb_copy_local(void *to, const void *from, size_t bytes);
// With streaming stores, for what is larger than the caches; the caller fences (ptb_team_fence).
void ptb_copy_streaming(void *to, const void *from, size_t bytes);
bool ptb_coll_is_in_place(const ptb_coll *call, int n, int rank);

// collectives/algorithms/pairwise.c, for others to build on.
ptb_status ptb_pairwise_run(ptb_team *team, const ptb_coll *call);

#endif
