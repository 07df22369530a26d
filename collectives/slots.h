// The slots of a team's control blocks: synchronisation points between all members, and short vectors that
// travel in the slots themselves. What the algorithm `direct` is built on.
//
// A synchronisation point (step) is the next sequence number; steps alternate between the two slots of a
// member. Whoever has come to a step has read what was in the slots two steps before, so that a slot may be
// written again then.
#ifndef PTB_COLLECTIVES_SLOTS_H
#define PTB_COLLECTIVES_SLOTS_H

#include "collectives/algorithm.h"

// The slot of a member for a step.
ptb_slot *ptb_slots_of(const ptb_team *team, int rank, uint32_t step);
// This member's slot for the next step, free to be written.
ptb_status ptb_slots_next(ptb_team *team, ptb_slot **slot);
// Comes to the next step: what was written into `slot` and before is visible to who meets this member.
void ptb_slots_post(ptb_team *team, const ptb_coll *call, ptb_slot *slot);
// Until all others have come to this step. USAGE, logged, when one of them makes another call.
ptb_status ptb_slots_meet_all(ptb_team *team, const ptb_coll *call);
// An empty step: next, post, meet_all.
ptb_status ptb_slots_round(ptb_team *team, const ptb_coll *call);

// A whole call in one step, of at most PTB_SLOT_BYTES; not all_to_all_v.
ptb_status ptb_slots_run(ptb_team *team, const ptb_coll *call);

#endif
