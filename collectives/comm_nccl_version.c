// For `ptbench doctor`: the NCCL that was found when this program started, and the one that it was built
// with.
#include "core/machine.h"

#include <nccl.h>

enum { OLDEST = 21900 }; // what collectives/comm_nccl.c is written for

// NCCL's code of a version: 22803 is 2.28.3.
static void append_version(ptb_text *said, int code)
{
    ptb_text_printf(said, "%d.%d.%d", code / 10000, code % 10000 / 100, code % 100);
}

static ptb_health check(ptb_text *said)
{
    int found = 0;
    if (ncclGetVersion(&found) != ncclSuccess) {
        ptb_text_append(said, "NCCL does not tell its version: reinstall it");
        return PTB_HEALTH_WARNING;
    }
    ptb_text_append(said, "NCCL ");
    append_version(said, found);
#ifdef PTB_SIM
    ptb_text_append(said, ", SIMULATED");
#endif
    if (found == NCCL_VERSION_CODE)
        return PTB_HEALTH_FINE;
    ptb_text_append(said, " was found, and this program was built with ");
    append_version(said, NCCL_VERSION_CODE);
    if (found < NCCL_VERSION_CODE)
        ptb_text_append(
            said, "; an older library may lack functions: put the newer one first on LD_LIBRARY_PATH, or "
                  "build with its header");
    if (found < OLDEST)
        ptb_text_append(said, "; from 2.19.0 on is needed");
    return found < NCCL_VERSION_CODE ? PTB_HEALTH_WARNING : PTB_HEALTH_FINE;
}

static const ptb_machine_part nccl_part = {
    .plugin = {"nccl", "the NCCL library: the version found and the one built with"},
    .check = check,
};
PTB_REGISTER(PTB_KIND_MACHINE_PART, nccl_part);
