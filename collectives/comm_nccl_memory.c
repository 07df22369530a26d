// Memory that NCCL and its peers may reach without copies: from ncclMemAlloc, as a symmetric window where
// NCCL (2.27 and later) and the links have such a thing, else registered.
//
// Where both buffers of an all-reduce, all-gather or reduce-scatter lie in windows, NCCL on one host runs
// kernels of its own for them, and looks at no NCCL_ALGO, NCCL_PROTO or number of channels
// (ncclMakeSymmetricTaskList in src/scheduler/symmetric_sched.cc comes before ncclGetAlgoInfo; in 2.27
// ncclPrepareTasks in src/enqueue.cc). So an algorithm, a protocol or channels that are asked for get no
// window. These kernels take the offset of this rank's buffer within its window for those of all peers
// (ncclSymkMakeDevWork in src/sym_kernels.cc; ncclGetPeerPointer and ncclGetMultimemPointer in the kernels):
// of both buffers in an all-reduce, of the receive buffer in an all-gather, of the send buffer in a
// reduce-scatter. And windows must be as large on all ranks, since each rank counts for itself how far into
// the common address space the next one lies (bigOffset in src/dev_runtime.cc; symAllocHead in 2.27).
#include "collectives/comm_nccl.h"

#include "core/device_cuda.h"
#include "core/log.h"

#include <stdlib.h>

static void release(const ptb_comm_nccl *c, ptb_nccl_memory *entry)
{
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
    if (entry->window && c->nccl && c->api->CommWindowDeregister)
        (void)PTB_NCCL(c, c->nccl, CommWindowDeregister, c->nccl, (ncclWindow_t)entry->window);
#endif
    if (entry->registration && c->nccl)
        (void)PTB_NCCL(c, c->nccl, CommDeregister, c->nccl, entry->registration);
    if (entry->memory && c->api->MemFree(entry->memory) != ncclSuccess)
        cudaGetLastError(); // of a lost GPU, which whoever waits for its work tells
    free(entry);
}

static ptb_status tell_no_memory(const ptb_comm_nccl *c, size_t bytes)
{
    size_t free_bytes = 0, total_bytes = 0;
    ptb_text said = PTB_TEXT_INIT;
    ptb_status cause = ptb_cuda_cause(&said);
    if (cause == PTB_OK || cause == PTB_NO_MEMORY) {
        cause = PTB_NO_MEMORY;
        cudaMemGetInfo(&free_bytes, &total_bytes);
        ptb_error(
            "cannot allocate %zu bytes that NCCL can register on GPU %d: %zu of %zu bytes are free. Use "
            "smaller sizes, a smaller batch or fewer ranks on this GPU; nvidia-smi shows who else uses "
            "its memory",
            bytes, c->index, free_bytes, total_bytes);
    } else {
        ptb_error("ncclMemAlloc failed: %s", ptb_text_string(&said));
    }
    ptb_text_release(&said);
    return cause;
}

static ptb_status take(const ptb_comm_nccl *c, ptb_nccl_memory *entry)
{
    if (!c->nccl)
        return PTB_LOST;
    if (c->api->MemAlloc(&entry->memory, entry->bytes) == ncclSuccess)
        return PTB_OK;
    cudaGetLastError();
    ptb_cuda_trim(c->index); // the pool may hold what it misses
    if (c->api->MemAlloc(&entry->memory, entry->bytes) == ncclSuccess)
        return PTB_OK;
    entry->memory = NULL;
    return tell_no_memory(c, entry->bytes);
}

// What the ranks must have alike: `bytes` becomes the most that any asks for, in whole pages, as windows are;
// *windows is false where one of them forces what a window would undo.
static ptb_status agree_on_size(const ptb_comm_nccl *c, size_t *bytes, bool *windows)
{
    const char *algorithm = getenv("NCCL_ALGO"), *protocol = getenv("NCCL_PROTO");
    bool from_outside = (algorithm && *algorithm) || (protocol && *protocol);
    bool is_forced = !c->choice.is_symmetric && (ptb_nccl_is_forced(&c->choice) || from_outside);
    double values[2] = {(double)((*bytes + 4095) / 4096 + !*bytes), is_forced};
    PTB_TRY(ptb_world_reduce_max(c->comm.world, values, 2));
    *bytes = (size_t)values[0] * 4096;
    *windows = values[1] <= 0;
    return PTB_OK;
}

// A window on all ranks, or on none: collectives on one that some ranks lack run as two different kernels.
static ptb_status make_window(const ptb_comm_nccl *c, ptb_nccl_memory *entry)
{
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
    ncclWindow_t window = NULL;
    if (!c->api->CommWindowRegister || c->version < PTB_NCCL_WINDOWS)
        return PTB_OK;
    ncclResult_t result =
        c->api->CommWindowRegister(c->nccl, entry->memory, entry->bytes, &window, NCCL_WIN_COLL_SYMMETRIC);
    double lacks[2] = {result != ncclSuccess, !window};
    PTB_TRY(ptb_world_reduce_max(c->comm.world, lacks, 2));
    if (lacks[0] > 0 && c->comm.rank == 0)
        ptb_warn("NCCL refuses a symmetric window (%s), so buffers are only registered",
                 result == ncclSuccess ? "on another rank" : c->api->GetErrorString(result));
    entry->window = result == ncclSuccess ? window : NULL;
    if (lacks[1] > 0 && entry->window) {
        (void)PTB_NCCL(c, c->nccl, CommWindowDeregister, c->nccl, window);
        entry->window = NULL;
    }
#else
    (void)c, (void)entry;
#endif
    return PTB_OK;
}

ptb_status ptb_nccl_alloc(ptb_comm *comm, size_t bytes, void **memory)
{
    ptb_comm_nccl *c = (ptb_comm_nccl *)comm;
    bool windows;
    PTB_TRY(agree_on_size(c, &bytes, &windows));
    ptb_nccl_memory *entry = calloc(1, sizeof *entry);
    ptb_status status = PTB_NO_MEMORY;
    if (entry) {
        entry->bytes = bytes;
        status = take(c, entry);
    } else {
        ptb_error("no memory for a buffer of %zu bytes", bytes);
    }
    // All ranks must come to a window, so they agree on having the memory first.
    status = ptb_world_agree(comm->world, status);
    if (status == PTB_OK && windows)
        status = make_window(c, entry);
    if (status == PTB_OK && !entry->window &&
        c->api->CommRegister(c->nccl, entry->memory, entry->bytes, &entry->registration) != ncclSuccess)
        entry->registration = NULL; // then it is private, and described so
    cudaGetLastError();             // of a registration that failed
    if (status != PTB_OK) {
        if (entry)
            release(c, entry);
        return status;
    }
    entry->next = c->memory;
    c->memory = entry;
    *memory = entry->memory;
    return PTB_OK;
}

void ptb_nccl_free(ptb_comm *comm, void *memory)
{
    ptb_comm_nccl *c = (ptb_comm_nccl *)comm;
    for (ptb_nccl_memory **at = &c->memory; memory && *at; at = &(*at)->next)
        if ((*at)->memory == memory) {
            ptb_nccl_memory *entry = *at;
            *at = entry->next;
            release(c, entry);
            return;
        }
}

void ptb_nccl_memory_release(ptb_comm_nccl *c)
{
    while (c->memory) {
        ptb_nccl_memory *entry = c->memory;
        c->memory = entry->next;
        release(c, entry);
    }
}

static const ptb_nccl_memory *find(const ptb_comm_nccl *c, const char *at)
{
    const ptb_nccl_memory *entry = c->memory;
    while (entry && !(at >= (char *)entry->memory && at < (char *)entry->memory + entry->bytes))
        entry = entry->next;
    return entry;
}

bool ptb_nccl_on_windows(const ptb_comm_nccl *c, const ptb_coll *call)
{
    const ptb_nccl_memory *send = find(c, call->send), *recv = find(c, call->recv);
    bool has_send = send && send->window, has_recv = recv && recv->window;
    if (c->version >= PTB_NCCL_ONE_WINDOW && call->kind == PTB_ALL_GATHER)
        return has_recv;
    if (c->version >= PTB_NCCL_ONE_WINDOW && call->kind == PTB_REDUCE_SCATTER)
        return has_send;
    return has_send && has_recv;
}

const char *ptb_nccl_buffers(const ptb_comm_nccl *c, const ptb_coll *call, bool ran_symmetric)
{
    const ptb_nccl_memory *entry = find(c, call->send ? call->send : call->recv);
    if (!entry || (!entry->window && !entry->registration))
        return "private";
    if (!entry->window)
        return "registered";
    // 2.27 and 2.28 give one for a mere registration too: on several hosts, or where GPUs cannot reach each
    // other (comm->symmetricSupport; ncclDevrWindowRegisterInGroup in 2.28).
    return c->version >= PTB_NCCL_WINDOW_SAYS || ran_symmetric ? "symmetric window"
                                                               : "symmetric window asked for";
}
