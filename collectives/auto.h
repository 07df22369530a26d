// `auto`: which algorithm a call gets. `host` looks it up in a table that ptb_auto_tune measured on this
// machine (ptb_comm_config.measure) and cached (`auto-FINGERPRINT-RANKSxHOSTS.json` under
// $XDG_CACHE_HOME/ptbench or ~/.cache/ptbench); without a table, and always in `local`, so that tests do not
// depend on the machine, a fixed rule holds: direct where all ranks share memory, else by size as Thakur,
// Rabenseifner and Gropp (2005) recommend.
#ifndef PTB_COLLECTIVES_AUTO_H
#define PTB_COLLECTIVES_AUTO_H

#include "collectives/algorithm.h"

// Size classes by the bytes of the whole vector: up to 8 B, 32 B, ... 32 MiB, and all above (measured at
// 64 MiB).
enum { PTB_AUTO_CLASSES = 13 };

typedef struct {
    bool measured;
    // The fastest; NULL: not measured, the fixed rule holds.
    const ptb_algorithm *best[PTB_COLL_COUNT][PTB_AUTO_CLASSES];
    double best_us[PTB_COLL_COUNT][PTB_AUTO_CLASSES]; // its time; 0: taken over from a smaller size
} ptb_auto;

int ptb_auto_class(uint64_t bytes);
// The size a class is measured at: its largest, or 64 MiB for the last one.
uint64_t ptb_auto_class_bytes(int size_class);

// The algorithm for a call; one that supports it where any does. NULL only when none does the collective.
const ptb_algorithm *ptb_auto_choose(const ptb_auto *table, const ptb_team *team, const ptb_coll *call);

// Whether that is the table's, or the fixed rule's: the table has none for this size, or one that cannot do
// the call.
bool ptb_auto_is_measured(const ptb_auto *table, const ptb_team *team, const ptb_coll *call);

// Collective over the world: the table cached for this machine, number of ranks and of hosts. A cache that
// cannot be read or is broken is a warning, and then as good as none.
ptb_status ptb_auto_load(ptb_world *world, ptb_auto *table, bool *found);
// Collective: measures all algorithms that support each collective at each size, in about `budget_s` seconds
// (at least three samples each, so more on a slow machine; sizes are left out where all ranks of a host
// together would need more than half a GiB, and once a collective has taken twice its share of the time), and
// stores the table. A cache that cannot be written is a warning.
ptb_status ptb_auto_tune(ptb_world *world, double budget_s, ptb_auto *table);
// Removes the tables of this machine (of this host, for any number of ranks), so that they are measured anew
// when they are needed. For rank 0, before communicators are opened; failures are warnings.
void ptb_auto_forget(void);
// For ptb_auto_tune: stores the table. Rank 0 only; failures are warnings.
void ptb_auto_store(const ptb_world *world, const ptb_auto *table);

#endif
