// What a machine has beyond processors and memory: GPUs (core/gpus_cuda.c), network cards (core/nics.c). Each
// part says what it is, for the topology that is stored with a run, and what is wrong with it, for `ptbench
// doctor`. Add one by registering a ptb_machine_part; its name is its key in the topology.
#ifndef PTB_CORE_MACHINE_H
#define PTB_CORE_MACHINE_H

#include "core/registry.h"
#include "core/text.h"

// How bad: nothing, worth knowing, or nothing that needs the part will work.
typedef enum { PTB_HEALTH_FINE, PTB_HEALTH_WARNING, PTB_HEALTH_BROKEN } ptb_health;

typedef struct {
    ptb_plugin plugin;
    // Appends a JSON value that describes the part, and to `identity` what two runs must have in common to be
    // compared (models and drivers, not serial numbers). Appends nothing where there is none. NULL: never.
    void (*describe)(ptb_text *json, ptb_text *identity);
    // Appends one paragraph for a person: what was found and what to do. NULL: nothing to look at.
    ptb_health (*check)(ptb_text *said);
} ptb_machine_part;

#endif
