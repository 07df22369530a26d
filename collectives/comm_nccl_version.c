// For `ptbench doctor`: the NCCL that is found, and the one that this program was built with.
#include "collectives/comm_nccl.h"
#include "core/machine.h"

// NCCL's code of a version: 22803 is 2.28.3.
static void append_version(ptb_text *said, int code)
{
    ptb_text_printf(said, "%d.%d.%d", code / 10000, code % 10000 / 100, code % 100);
}

static ptb_health check(ptb_text *said)
{
    int found = 0;
    if (ptb_nccl_load(said) != PTB_OK)
        return PTB_HEALTH_WARNING;
    if (ptb_nccl_functions()->GetVersion(&found) != ncclSuccess) {
        ptb_text_printf(said, "NCCL does not tell its version: reinstall it (%s)", ptb_nccl_path());
        return PTB_HEALTH_WARNING;
    }
    ptb_text_append(said, "NCCL ");
    append_version(said, found);
#ifdef PTB_SIM
    ptb_text_append(said, ", SIMULATED");
#endif
    ptb_text_printf(said, ", %s", ptb_nccl_path());
    if (found != NCCL_VERSION_CODE) {
        ptb_text_append(said, "; this program was built with ");
        append_version(said, NCCL_VERSION_CODE);
    }
    if (*ptb_nccl_lacks())
        ptb_text_printf(said, "; %s lacks what came with %s; what needs that is done another way or skipped",
                        found > NCCL_VERSION_CODE ? "so it" : "NCCL", ptb_nccl_lacks());
    if (found >= PTB_NCCL_OLDEST && found < PTB_NCCL_TELLS)
        ptb_text_append(said, "; it cannot tell which algorithm ran (2.23 and later can)");
    if (found < PTB_NCCL_OLDEST)
        ptb_text_append(said, "; from 2.19.0 on is needed: put a newer one first on LD_LIBRARY_PATH");
    return found < PTB_NCCL_OLDEST || *ptb_nccl_lacks() ? PTB_HEALTH_WARNING : PTB_HEALTH_FINE;
}

static const ptb_machine_part nccl_part = {
    .plugin = {"nccl", "the NCCL library: the version found and the one built with"},
    .check = check,
};
PTB_REGISTER(PTB_KIND_MACHINE_PART, nccl_part);
