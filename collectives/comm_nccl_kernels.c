// What the names of NCCL's kernels tell, where they are known: of a captured graph, from the driver; of
// recorded steps, from CUPTI. Not from CUPTI around one call before the timed ones: only cuptiFinalize
// detaches it from the process (cupti_activity.h), which is not safe beside NCCL's threads that call CUDA
// (pytorch/kineto#686), and until then launches cost more, also with all kinds of records switched off (10 to
// 20 % of training steps are told of in pytorch/pytorch#144455 and #146604). Nor from a graph that is
// captured for that alone: a communicator that was captured once adds events to all later calls (everCaptured
// in src/misc/strongstream.cc).
//
// Kernels on symmetric windows, one for each way, operation and type, and nothing else runs in them
// (ncclSymkGetKernelPtr and its kin; src/device/symmetric/generate.py): ncclSymDevKernel_ in 2.27,
// ncclSymkDevKernel_ from 2.28 on, then AllGather_STMC or AllReduce_RSxLDMC_AGxSTMC_sum_f32; in 2.32 also
// with _profile at the end. The ways: LL, ST, LD and their pairs, with MC through the switch; from 2.30 on
// Tma; between hosts GinHier_MCRing (2.29.2), then Rail*. So such a name tells that a symmetric kernel ran,
// and which.
//
// All others: ncclDevKernel_AllReduce_Sum_f32_RING_LL up to 2.30, ncclDevKernel_AllReduce_f32_RING in 2.32.
// There are few of them, and each runs whatever its arguments say (best_kernel in src/device/generate.py:
// NVLS with Simple runs in this one): such a name tells that no symmetric kernel ran, and nothing else.
//
// Names up to 2.30 are those of its sources, and of the libraries 2.27.7, 2.28.9 and 2.30.7; those of 2.32
// are of the library 2.32.3. Seen of the simulated NCCL alone so far.
#include "collectives/comm_nccl.h"

#include "profiler/cupti_names.h"

#include <string.h>

// NCCL's word for what it has symmetric kernels for; NULL: it has none.
static const char *function_of(ptb_coll_kind kind)
{
    switch (kind) {
    case PTB_ALL_REDUCE:
        return "AllReduce";
    case PTB_ALL_GATHER:
        return "AllGather";
    case PTB_REDUCE_SCATTER:
        return "ReduceScatter";
    default:
        return NULL;
    }
}

static const char *behind(const char *text, const char *start)
{
    size_t length = strlen(start);
    return strncmp(text, start, length) == 0 ? text + length : NULL;
}

ptb_nccl_kernel_kind ptb_nccl_kernel_tells(ptb_coll_kind kind, const char *name)
{
    const char *function = function_of(kind), *rest = behind(name, "ncclSymkDevKernel_");
    rest = rest ? rest : behind(name, "ncclSymDevKernel_");
    if (!function)
        return PTB_NCCL_KERNEL_UNKNOWN;
    if (!rest)
        return behind(name, "ncclDevKernel_") ? PTB_NCCL_KERNEL_OTHER : PTB_NCCL_KERNEL_UNKNOWN;
    rest = behind(rest, function);
    return rest && *rest == '_' ? PTB_NCCL_KERNEL_SYMMETRIC : PTB_NCCL_KERNEL_UNKNOWN;
}

void ptb_nccl_recorded(ptb_comm *comm, const ptb_coll *call, const char *const *kernels, size_t count,
                       const char *from)
{
    if (!function_of(call->kind))
        return;
    ptb_nccl_kernel kernel = {.from = from};
    for (size_t i = count; i-- > 0;) {
        ptb_cupti_short_name(kernels[i], kernel.name, sizeof kernel.name);
        ptb_nccl_kernel_kind tells = ptb_nccl_kernel_tells(call->kind, kernel.name);
        bool agrees = i == count - 1 || tells == kernel.kind;
        kernel.kind = agrees ? tells : PTB_NCCL_KERNEL_UNKNOWN;
        if (kernel.kind == PTB_NCCL_KERNEL_UNKNOWN)
            break;
    }
    ptb_nccl_see((ptb_comm_nccl *)comm, call)->kernel = kernel;
}
