// Memory that NCCL and its peers may reach without copies: from ncclMemAlloc, as a symmetric window where
// NCCL (2.27 and later) and the links have such a thing, else registered.
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
    if (c->api->MemFree(entry->memory) != ncclSuccess)
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
    size_t bytes = entry->bytes ? entry->bytes : 4096;
    if (!c->nccl)
        return PTB_LOST;
    if (c->api->MemAlloc(&entry->memory, bytes) == ncclSuccess)
        return PTB_OK;
    cudaGetLastError();
    ptb_cuda_trim(c->index); // the pool may hold what it misses
    return c->api->MemAlloc(&entry->memory, bytes) == ncclSuccess ? PTB_OK : tell_no_memory(c, bytes);
}

ptb_status ptb_nccl_alloc(ptb_comm *comm, size_t bytes, void **memory)
{
    ptb_comm_nccl *c = (ptb_comm_nccl *)comm;
    ptb_nccl_memory *entry = calloc(1, sizeof *entry);
    if (!entry) {
        ptb_error("no memory for a buffer of %zu bytes", bytes);
        return PTB_NO_MEMORY;
    }
    entry->bytes = (bytes + 4095) / 4096 * 4096; // windows are of whole pages
    ptb_status status = take(c, entry);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
    // All ranks must come to a window, so they agree on having the memory first.
    ncclWindow_t window = NULL;
    status = ptb_world_agree(comm->world, status);
    if (status == PTB_OK && c->api->CommWindowRegister &&
        c->api->CommWindowRegister(c->nccl, entry->memory, entry->bytes, &window, NCCL_WIN_COLL_SYMMETRIC) ==
            ncclSuccess)
        entry->window = window;
#endif
    if (status == PTB_OK && !entry->window &&
        c->api->CommRegister(c->nccl, entry->memory, entry->bytes, &entry->registration) != ncclSuccess)
        entry->registration = NULL; // then it is private, and described so
    cudaGetLastError();             // of a registration that failed
    if (status != PTB_OK) {
        if (entry->memory)
            (void)c->api->MemFree(entry->memory);
        free(entry);
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

const char *ptb_nccl_buffers(const ptb_comm_nccl *c, const ptb_coll *call)
{
    const char *at = call->send ? call->send : call->recv;
    for (const ptb_nccl_memory *entry = c->memory; entry && at; entry = entry->next)
        if (at >= (char *)entry->memory && at < (char *)entry->memory + entry->bytes)
            return entry->window ? "symmetric window" : entry->registration ? "registered" : "private";
    return "private";
}
