// Memory that NCCL and its peers may reach without copies: from ncclMemAlloc, as a symmetric window where
// NCCL (2.27 and later) and the links have such a thing, else registered.
#include "collectives/comm_nccl.h"

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
    (void)PTB_NCCL(c, c->nccl, MemFree, entry->memory);
    free(entry);
}

ptb_status ptb_nccl_alloc(ptb_comm *comm, size_t bytes, void **memory)
{
    ptb_comm_nccl *c = (ptb_comm_nccl *)comm;
    ptb_nccl_memory *entry = calloc(1, sizeof *entry);
    ptb_status status = PTB_LOST;
    if (!entry) {
        ptb_error("no memory for a buffer of %zu bytes", bytes);
        return PTB_NO_MEMORY;
    }
    entry->bytes = (bytes + 4095) / 4096 * 4096; // windows are of whole pages
    if (c->nccl && c->api->MemAlloc(&entry->memory, entry->bytes ? entry->bytes : 4096) != ncclSuccess) {
        ptb_error("the GPU has no %zu bytes for a buffer that NCCL can register", bytes);
        cudaGetLastError(); // the error is said, and must not show at the next launch
        status = PTB_NO_MEMORY;
    } else if (c->nccl) {
        status = PTB_OK;
    }
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
