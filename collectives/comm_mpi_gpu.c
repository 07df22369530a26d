// GPU memory in the MPI library: a CUDA-aware one moves and reduces it itself. MPI knows no streams, so the
// caller waits for the stream before each call. What the library lacks and we add for host memory (16-bit
// floats, averages, local copies) there is not for GPU memory. Never run on real hardware.
#include "collectives/comm_mpi.h"

#include <mpi.h>
#ifdef OPEN_MPI
#include <mpi-ext.h>
#endif

#include <stdio.h>
#include <string.h>

// Open MPI says at compile time whether it may be asked, and at run time whether it is.
static bool cuda_aware(void)
{
#if defined(MPIX_CUDA_AWARE_SUPPORT) && MPIX_CUDA_AWARE_SUPPORT
    return MPIX_Query_cuda_support();
#else
    return false;
#endif
}

bool ptb_mpi_moves(const char *device, char *reason)
{
    char library[MPI_MAX_LIBRARY_VERSION_STRING];
    int length;
    if (strcmp(device, "cuda") == 0 && cuda_aware())
        return true;
    MPI_Get_library_version(library, &length);
    snprintf(reason, PTB_REASON_BYTES,
             "communicator mpi: this MPI library (%.*s) is not CUDA-aware, so it cannot move memory of the "
             "device %s",
             (int)strcspn(library, ",\n"), library, device);
    return false;
}

bool ptb_mpi_gpu_supports(const ptb_comm_mpi *c, const ptb_coll *call, bool in_place, char *reason)
{
    bool reduces =
        call->kind == PTB_ALL_REDUCE || call->kind == PTB_REDUCE || call->kind == PTB_REDUCE_SCATTER;
    const char *lacking = NULL;
    if (reduces && (call->dtype == PTB_F16 || call->dtype == PTB_BF16))
        lacking = "MPI has no 16-bit floats to reduce";
    else if (reduces && call->op == PTB_AVG)
        lacking = "MPI has no average";
    else if (call->kind == PTB_REDUCE_SCATTER && in_place)
        lacking = "the result would have to be moved to its own block";
    else if (call->kind == PTB_BROADCAST && !in_place)
        lacking = "the root's copy from send to recv is not the library's";
    else if (ptb_mpi_plan_for(c, call).call == PTB_MPI_MESSAGES)
        lacking = "parts of this size go as messages, and the own part as a local copy";
    if (lacking)
        snprintf(reason, PTB_REASON_BYTES, "in GPU memory: %s", lacking);
    return !lacking;
}
