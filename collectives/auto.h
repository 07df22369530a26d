// `auto`: which algorithm a call gets. `host` looks it up in a table that ptb_auto_tune measured on this
// machine and cached (`auto-FINGERPRINT-RANKSxHOSTS.json` under $XDG_CACHE_HOME/ptbench or ~/.cache/ptbench);
// `local` follows a fixed rule, so that tests do not depend on the machine: direct.
#ifndef PTB_COLLECTIVES_AUTO_H
#define PTB_COLLECTIVES_AUTO_H

#include "collectives/algorithm.h"

// Size classes: powers of four of the vector's bytes, 8 B .. 128 MiB; the nearest one above applies.
enum { PTB_AUTO_CLASSES = 13 };

typedef struct {
    // Measured winners; NULL: not measured, the fixed rule applies.
    const ptb_algorithm *best[PTB_COLL_COUNT][PTB_AUTO_CLASSES];
    double best_us[PTB_COLL_COUNT][PTB_AUTO_CLASSES];
    bool measured;
} ptb_auto;

// Class of a vector of so many bytes, and the largest size of a class.
int ptb_auto_class(uint64_t bytes);
uint64_t ptb_auto_class_bytes(int size_class);

// The algorithm for a call; never NULL, and always one that supports it when any does.
const ptb_algorithm *ptb_auto_choose(const ptb_auto *table, const ptb_team *team, const ptb_coll *call);

// Collective over the world: reads the cached table for this machine and number of ranks into every
// communicator of this process that asks later. *found: there is one.
ptb_status ptb_auto_load(ptb_world *world, ptb_auto *table, bool *found);
// Collective: measures every supporting algorithm of `host` for all collectives and sizes up to 64 MiB in a
// few seconds (`budget_s`), and stores the table; a cache that cannot be written is a warning.
ptb_status ptb_auto_tune(ptb_world *world, double budget_s, ptb_auto *table);
// Collective: load, and where there is no table yet, tune and store it.
ptb_status ptb_auto_ensure(ptb_world *world, double budget_s);

#endif
