// The device of a rank: one process a GPU. Ranks tell one another what they have opened, since neither the
// launcher's options nor CUDA_VISIBLE_DEVICES can be trusted to have spread them.
#include "core/device.h"

#include "core/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    char identity[64];
    char host[64];
    char description[128];
} claim;

// Rank of the first one before `rank` that has the same device; -1: nobody.
static int earlier_owner(const ptb_world *world, const claim *claims, int rank)
{
    for (int r = 0; r < rank && claims[rank].identity[0]; r++)
        if (world->host_of[r] == world->host_of[rank] &&
            strcmp(claims[r].identity, claims[rank].identity) == 0)
            return r;
    return -1;
}

static ptb_status refuse_shared(const ptb_world *world, const claim *claims)
{
    for (int rank = 1; rank < world->size; rank++) {
        int owner = earlier_owner(world, claims, rank);
        if (owner < 0)
            continue;
        bool is_instance = strncmp(claims[rank].identity, "MIG-", 4) == 0;
        if (world->rank == 0)
            ptb_error("ranks %d and %d of host %s have the same device, %s. %s, or allow it with "
                      "--share-gpu",
                      owner, rank, claims[rank].host, claims[rank].description,
                      is_instance ? "A process sees one instance of MIG: name one for each rank of a host, "
                                    "CUDA_VISIBLE_DEVICES=MIG-...,MIG-... (nvidia-smi -L lists them)"
                                  : "Start as many ranks on a host as it has GPUs (--np, and "
                                    "CUDA_VISIBLE_DEVICES must not hide any)");
        return PTB_UNSUPPORTED;
    }
    return PTB_OK;
}

// Ranks that draw from the memory of this rank's device: on the host all local ones, on a GPU those that have
// the same.
static int count_sharers(const ptb_world *world, const claim *claims)
{
    const char *mine = claims[world->rank].identity;
    int sharers = 0;
    for (int r = 0; r < world->size && mine[0]; r++)
        sharers += world->host_of[r] == world->host && strcmp(claims[r].identity, mine) == 0;
    return mine[0] ? sharers : world->local_size;
}

typedef struct {
    char identity[64];
    uint64_t bytes; // UINT64_MAX: unknown
} prospect;

static void foresee_each(const ptb_world *world, const prospect *all, uint64_t *bytes, int *sharers)
{
    for (int r = 0; r < world->size; r++) {
        int count = 0;
        for (int q = 0; q < world->size; q++)
            count += world->host_of[q] == world->host_of[r] && strcmp(all[q].identity, all[r].identity) == 0;
        uint64_t each = all[r].bytes == UINT64_MAX ? UINT64_MAX : all[r].bytes / (uint64_t)count;
        *bytes = each < *bytes ? each : *bytes;
        if (r == world->rank)
            *sharers = count;
    }
}

ptb_status ptb_device_foresee(const char *name, ptb_world *world, uint64_t *bytes, int *sharers)
{
    const ptb_device_ops *ops = (const ptb_device_ops *)ptb_registry_find(PTB_KIND_DEVICE, name);
    *bytes = UINT64_MAX;
    *sharers = world->local_size;
    if (!ops)
        return PTB_OK;
    if (!ops->foresee) {
        uint64_t all = ptb_memory_available();
        *bytes = all == UINT64_MAX ? all : all / (uint64_t)world->local_size;
        return PTB_OK;
    }
    void *memory;
    PTB_TRY(ptb_world_calloc(world, (size_t)world->size * sizeof(prospect), "memory of devices", &memory));
    prospect mine = {.bytes = UINT64_MAX}, *all = memory;
    if (!ops->foresee(world->local_rank, mine.identity, &mine.bytes))
        mine.bytes = UINT64_MAX;
    ptb_status status = ptb_world_all_gather(world, &mine, sizeof mine, all);
    if (status == PTB_OK)
        foresee_each(world, all, bytes, sharers);
    free(all);
    return status;
}

ptb_status ptb_device_open_local(const char *name, ptb_world *world, bool share, ptb_device **device)
{
    ptb_device *opened = NULL;
    claim mine = {{0}, {0}, {0}};
    claim *claims = calloc((size_t)world->size, sizeof *claims);
    ptb_status status = claims ? ptb_device_open(name, world->local_rank, &opened) : PTB_NO_MEMORY;
    status = ptb_world_agree(world, status);
    if (status == PTB_OK) {
        snprintf(mine.identity, sizeof mine.identity, "%s", opened->identity);
        snprintf(mine.description, sizeof mine.description, "%s", opened->description);
        if (gethostname(mine.host, sizeof mine.host - 1) != 0)
            snprintf(mine.host, sizeof mine.host, "%d", world->host);
        status = ptb_world_all_gather(world, &mine, sizeof mine, claims);
    }
    if (status == PTB_OK && !share)
        status = refuse_shared(world, claims);
    if (status == PTB_OK) {
        opened->sharers = count_sharers(world, claims);
        *device = opened;
    } else {
        ptb_device_close(opened);
    }
    free(claims);
    return status;
}
