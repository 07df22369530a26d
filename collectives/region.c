// Memory shared by the members of a team on one host. Processes: an unnamed memory file (memfd_create) that
// peers open through /proc/PID/fd/N, so nothing stays behind whoever is killed; where that is denied, a named
// shared memory object that is unlinked as soon as all have it. Threads: an ordinary mapping with a count of
// users, so that nobody has to wait for anybody when closing.
#include "collectives/team.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/random.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct {
    atomic_int users;
    void *base;
    size_t bytes;
} owned;

// What a member tells the others about its memory.
typedef struct {
    uint64_t bytes, nonce;
    owned *owner; // threads
    int32_t pid, fd;
    int32_t status;
    char name[44]; // of the shared memory object; "": an unnamed file
} announcement;

static size_t round_to_page(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return bytes ? (bytes + page - 1) / page * page : page;
}

static void touch(unsigned char *base, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    madvise(base, bytes, MADV_HUGEPAGE); // where shared memory may use huge pages; refused elsewhere
    for (size_t at = 0; at < bytes; at += page)
        ((volatile unsigned char *)base)[at] = 0;
}

static ptb_status map_own(announcement *mine, bool named, unsigned char **base)
{
    int fd;
    if (named) {
        snprintf(mine->name, sizeof mine->name, "/ptbench-%d-%016llx", (int)getpid(),
                 (unsigned long long)mine->nonce);
        fd = shm_open(mine->name, O_RDWR | O_CREAT | O_EXCL, 0600);
    } else {
        fd = memfd_create("ptbench", MFD_CLOEXEC);
    }
    if (fd < 0) {
        ptb_error("cannot create shared memory (%s): %s", named ? "shm_open" : "memfd_create",
                  strerror(errno));
        mine->name[0] = '\0';
        return PTB_SYSTEM;
    }
    mine->fd = fd;
    // fallocate, not ftruncate: a full /dev/shm must be an error here and not a SIGBUS at the first touch.
    int error = posix_fallocate(fd, 0, (off_t)mine->bytes);
    void *map = error ? MAP_FAILED : mmap(NULL, mine->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        ptb_error("cannot get %llu bytes of shared memory: %s; free memory, enlarge /dev/shm, or use smaller "
                  "sizes",
                  (unsigned long long)mine->bytes, strerror(error ? error : errno));
        return PTB_NO_MEMORY;
    }
    *base = map;
    touch(*base, mine->bytes);
    memcpy(*base, &mine->nonce, sizeof mine->nonce);
    return PTB_OK;
}

static ptb_status map_peer(const announcement *theirs, unsigned char **base)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)theirs->pid, (int)theirs->fd);
    int fd = theirs->name[0] ? shm_open(theirs->name, O_RDWR, 0) : open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) {
        ptb_debug("cannot open the memory of process %d (%s): %s", (int)theirs->pid,
                  theirs->name[0] ? theirs->name : path, strerror(errno));
        return PTB_SYSTEM;
    }
    void *map = mmap(NULL, theirs->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    close(fd);
    if (map == MAP_FAILED) {
        ptb_debug("cannot map the memory of process %d: %s", (int)theirs->pid, strerror(errno));
        return PTB_SYSTEM;
    }
    // In another process namespace the same numbers name another file.
    if (memcmp(map, &theirs->nonce, sizeof theirs->nonce)) {
        munmap(map, theirs->bytes);
        ptb_debug("process %d is not the one that was meant: another process namespace", (int)theirs->pid);
        return PTB_SYSTEM;
    }
    *base = map;
    return PTB_OK;
}

static ptb_status region_new(int size, ptb_region *region)
{
    region->base = calloc((size_t)size, sizeof *region->base);
    region->bytes = calloc((size_t)size, sizeof *region->bytes);
    region->owner = calloc((size_t)size, sizeof *region->owner);
    if (region->base && region->bytes && region->owner)
        return PTB_OK;
    ptb_error("out of memory for a table of %d members", size);
    return PTB_NO_MEMORY;
}

void ptb_region_release(const ptb_team *team, ptb_region *region)
{
    for (int r = 0; region->base && region->bytes && region->owner && r < team->size; r++) {
        owned *owner = region->owner[r];
        if (owner) {
            if (atomic_fetch_sub(&owner->users, 1) == 1) {
                ptb_memory_unmap(owner->base, owner->bytes);
                free(owner);
            }
        } else if (region->base[r]) {
            munmap(region->base[r], region->bytes[r]);
        }
    }
    free(region->base);
    free(region->bytes);
    free(region->owner);
    *region = (ptb_region){.base = NULL};
}

static ptb_status share_threads(ptb_team *team, size_t bytes, ptb_region *region, announcement *all)
{
    announcement mine = {.bytes = bytes, .status = PTB_OK};
    mine.owner = calloc(1, sizeof *mine.owner);
    if (mine.owner) {
        mine.owner->bytes = bytes;
        atomic_init(&mine.owner->users, team->size);
        mine.status = ptb_memory_map(bytes, &mine.owner->base);
    } else {
        mine.status = PTB_NO_MEMORY;
    }
    PTB_TRY(ptb_world_all_gather(team->world, &mine, sizeof mine, all));
    ptb_status status = PTB_OK;
    for (int r = 0; r < team->size; r++)
        if (all[r].status != PTB_OK)
            status = (ptb_status)all[r].status;
    if (status != PTB_OK) {
        if (mine.owner && mine.status == PTB_OK)
            ptb_memory_unmap(mine.owner->base, bytes);
        free(mine.owner);
        return status;
    }
    for (int r = 0; r < team->size; r++) {
        region->owner[r] = all[r].owner;
        region->base[r] = all[r].owner->base;
        region->bytes[r] = all[r].bytes;
    }
    return PTB_OK;
}

static ptb_status share_processes(ptb_team *team, size_t bytes, bool named, ptb_region *region,
                                  announcement *all)
{
    announcement mine = {.bytes = bytes, .pid = (int32_t)getpid(), .fd = -1};
    mine.nonce = ptb_random_u64((uint64_t)ptb_clock_ns(), (uint64_t)getpid(), (uintptr_t)region) | 1;
    unsigned char *base = NULL;
    mine.status = (int32_t)map_own(&mine, named, &base);
    region->named = named;
    region->base[team->rank] = base;
    region->bytes[team->rank] = bytes;
    ptb_status status = ptb_world_all_gather(team->world, &mine, sizeof mine, all);
    for (int r = 0; status == PTB_OK && r < team->size; r++) {
        if (all[r].status != PTB_OK)
            status = (ptb_status)all[r].status;
        else if (r != team->rank && team->world->host_of[r] == team->world->host) {
            region->bytes[r] = all[r].bytes;
            status = map_peer(&all[r], &region->base[r]);
        }
    }
    status = ptb_world_agree(team->world, status);
    if (mine.fd >= 0)
        close(mine.fd);
    if (mine.name[0])
        shm_unlink(mine.name);
    if (status == PTB_OK)
        memset(base, 0, sizeof mine.nonce);
    return status;
}

ptb_status ptb_region_share(ptb_team *team, size_t bytes, ptb_region *region)
{
    bytes = round_to_page(bytes);
    announcement *all = calloc((size_t)team->size, sizeof *all);
    ptb_status status = region_new(team->size, region);
    if (!all)
        status = PTB_NO_MEMORY;
    status = ptb_world_agree(team->world, status);
    if (status == PTB_OK && team->threads) {
        status = share_threads(team, bytes, region, all);
    } else if (status == PTB_OK) {
        status = share_processes(team, bytes, false, region, all);
        if (status == PTB_SYSTEM) {
            ptb_region_release(team, region);
            status = ptb_world_agree(team->world, region_new(team->size, region));
            if (status == PTB_OK)
                status = share_processes(team, bytes, true, region, all);
        }
    }
    if (status != PTB_OK)
        ptb_region_release(team, region);
    free(all);
    return status;
}
