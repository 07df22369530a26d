// Opening and closing a team, its symmetric memory, and how its members wait.
#include "collectives/team.h"
#include "collectives/wire.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/pause.h"
#include "core/process.h"
#include "core/topology.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

enum {
    SPINS = 500,               // polls before yielding with a core a rank: about 20 us
    SPINS_OVERSUBSCRIBED = 16, // another rank may need this core to make the flag change
    CHANNEL_BYTES = 8 << 20,   // data slots of one member, at most
    SLOT_MIN = 4 << 10,
    SLOT_MAX = 64 << 10,
};
static const int64_t patience_ns = 100000000, look_every_ns = 20000000;

static size_t channel_bytes(const ptb_team *team)
{
    return sizeof(ptb_channel) + PTB_CHANNEL_ENTRIES * team->slot_bytes;
}

ptb_channel *ptb_team_channel(const ptb_team *team, int from, int to)
{
    unsigned char *first = (unsigned char *)(team->peers[from].control + 1);
    return (ptb_channel *)(void *)(first + (size_t)team->peers[to].local * channel_bytes(team));
}

static size_t slot_bytes_for(int local_size)
{
    size_t bytes = CHANNEL_BYTES / PTB_CHANNEL_ENTRIES / (size_t)local_size / PTB_LINE_BYTES * PTB_LINE_BYTES;
    return bytes < SLOT_MIN ? SLOT_MIN : bytes > SLOT_MAX ? SLOT_MAX : bytes;
}

// Threads and members on this host are reached through shared memory unless config.transport says otherwise.
static ptb_status share_control(ptb_team *team)
{
    ptb_world *world = team->world;
    bool wants_mpi = team->config.transport && strcmp(team->config.transport, "mpi") == 0;
    if (team->size == 1 || wants_mpi)
        return PTB_OK;
    size_t bytes = sizeof(ptb_control) + (size_t)team->local_size * channel_bytes(team);
    ptb_status status = ptb_region_share(team, bytes, &team->control);
    if (status == PTB_SYSTEM && !team->config.transport) {
        if (team->rank == 0)
            ptb_warn("ranks on one host cannot map each other's memory (other containers or users?): "
                     "`host` goes through MPI instead");
        return PTB_OK;
    }
    PTB_TRY(status);
    team->shared = team->threads || world->hosts == 1;
    struct {
        int pid, local;
    } mine = {team->threads || team->control.named ? 0 : (int)getpid(), team->local_rank}, *all;
    all = calloc((size_t)team->size, sizeof *all);
    PTB_TRY(ptb_world_agree(world, all ? PTB_OK : PTB_NO_MEMORY));
    status = ptb_world_all_gather(world, &mine, sizeof mine, all);
    for (int r = 0; r < team->size; r++) {
        team->peers[r].control = (ptb_control *)(void *)team->control.base[r];
        team->peers[r].pid = all[r].pid;
        team->peers[r].local = all[r].local;
    }
    free(all);
    return status;
}

ptb_status ptb_team_open(ptb_world *world, const ptb_comm_config *config, bool threads, ptb_sent *sent,
                         ptb_team **out)
{
    ptb_team *team = calloc(1, sizeof *team);
    if (team) {
        team->peers = calloc((size_t)world->size, sizeof *team->peers);
        team->seen = calloc((size_t)world->size, sizeof *team->seen);
    }
    if (!team || !team->peers || !team->seen) {
        ptb_error("out of memory for a communicator of %d ranks", world->size);
        if (team) {
            free(team->peers);
            free(team->seen);
        }
        free(team);
        ptb_world_agree(world, PTB_NO_MEMORY);
        return PTB_NO_MEMORY;
    }
    team->world = world;
    team->rank = world->rank;
    team->size = world->size;
    team->config = *config;
    team->threads = threads;
    team->sent = sent;
    team->local_rank = threads ? world->rank : world->local_rank;
    team->local_size = threads ? world->size : world->local_size;
    team->spins = world->oversubscribed ? SPINS_OVERSUBSCRIBED : SPINS;
    team->slot_bytes = slot_bytes_for(team->local_size);
    team->cache_bytes = ptb_topology_cache_share(team->local_size);
    ptb_status status = ptb_world_agree(world, PTB_OK);
    if (status == PTB_OK)
        status = share_control(team);
    if (status == PTB_OK)
        status = ptb_wire_open(team);
    if (status != PTB_OK) {
        ptb_team_close(team);
        return status;
    }
    *out = team;
    return PTB_OK;
}

void ptb_team_close(ptb_team *team)
{
    if (!team)
        return;
    ptb_wire_close(team);
    for (size_t i = 0; i < team->segment_count; i++)
        ptb_region_release(team, &team->segments[i]);
    ptb_region_release(team, &team->control);
    for (int i = 0; i < 2; i++)
        if (team->scratch[i])
            ptb_memory_unmap(team->scratch[i], team->scratch_bytes[i]);
    free(team->peers);
    free(team->seen);
    free(team);
}

ptb_status ptb_team_alloc(ptb_team *team, size_t bytes, void **memory)
{
    size_t i = 0;
    while (i < team->segment_count && team->segments[i].base)
        i++;
    if (i == PTB_SEGMENTS_MAX) {
        ptb_error("more than %d symmetric allocations in one communicator", PTB_SEGMENTS_MAX);
        return PTB_NO_MEMORY;
    }
    PTB_TRY(ptb_region_share(team, bytes, &team->segments[i]));
    if (i == team->segment_count)
        team->segment_count++;
    *memory = team->segments[i].base[team->rank];
    return PTB_OK;
}

void ptb_team_free(ptb_team *team, void *memory)
{
    for (size_t i = 0; memory && i < team->segment_count; i++)
        if (team->segments[i].base && team->segments[i].base[team->rank] == memory) {
            ptb_region_release(team, &team->segments[i]);
            return;
        }
}

uint64_t ptb_team_segment_bytes(const ptb_team *team)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < team->segment_count; i++)
        if (team->segments[i].base)
            sum += team->segments[i].bytes[team->rank];
    return sum;
}

ptb_place ptb_team_place(const ptb_team *team, const void *memory, size_t bytes)
{
    if (bytes == 0)
        return (ptb_place){PTB_PLACE_EMPTY, 0};
    for (size_t i = 0; i < team->segment_count; i++) {
        const ptb_region *region = &team->segments[i];
        if (!region->base)
            continue;
        uintptr_t offset = (uintptr_t)memory - (uintptr_t)region->base[team->rank];
        size_t size = region->bytes[team->rank];
        if (offset < size && bytes <= size - offset)
            return (ptb_place){(uint32_t)i, offset};
    }
    return (ptb_place){PTB_PLACE_PRIVATE, 0};
}

ptb_status ptb_team_scratch(ptb_team *team, int index, size_t bytes, void **memory)
{
    if (bytes > team->scratch_bytes[index]) {
        if (team->scratch[index])
            ptb_memory_unmap(team->scratch[index], team->scratch_bytes[index]);
        team->scratch[index] = NULL;
        team->scratch_bytes[index] = 0;
        PTB_TRY(ptb_memory_map(bytes, &team->scratch[index]));
        team->scratch_bytes[index] = bytes;
    }
    *memory = team->scratch[index];
    return PTB_OK;
}

void ptb_team_fence(void)
{
#ifdef __x86_64__
    _mm_sfence();
#else
    atomic_thread_fence(memory_order_release);
#endif
}

void ptb_team_abort(ptb_team *team, int lost_rank)
{
    team->broken = true;
    for (int r = 0; r < team->size; r++)
        if (team->peers[r].control)
            atomic_store(&team->peers[r].control->aborted, (unsigned)lost_rank + 1);
}

static ptb_status look_around(ptb_team *team, const ptb_idle *idle, int peer)
{
    for (int r = 0; r < team->size; r++) {
        int pid = team->peers[r].pid;
        if (r != team->rank && pid > 0 && team->peers[r].control && !ptb_process_lives(pid)) {
            ptb_error("rank %d (process %d) has ended while rank %d waited for it", r, pid, team->rank);
            ptb_team_abort(team, r);
            return PTB_LOST;
        }
    }
    double waited_s = (double)(idle->checked_ns - idle->began_ns) * 1e-9;
    if (team->config.timeout_s > 0 && waited_s > team->config.timeout_s) {
        if (peer >= 0)
            ptb_error("rank %d (process %d) did not answer rank %d for %.3g s", peer, team->peers[peer].pid,
                      team->rank, waited_s);
        else
            ptb_error("no peer answered rank %d for %.3g s", team->rank, waited_s);
        ptb_team_abort(team, peer >= 0 ? peer : team->rank);
        return PTB_LOST;
    }
    return PTB_OK;
}

ptb_status ptb_idle_step(ptb_team *team, ptb_idle *idle, int peer)
{
    if (++idle->polls < team->spins) {
        ptb_pause();
        return PTB_OK;
    }
    ptb_control *mine = team->peers[team->rank].control;
    unsigned aborted = mine ? atomic_load_explicit(&mine->aborted, memory_order_relaxed) : 0;
    if (aborted) {
        team->broken = true;
        ptb_error("rank %d stops waiting: rank %u was lost or gave up", team->rank, aborted - 1);
        return PTB_LOST;
    }
    sched_yield();
    if (idle->polls % 64)
        return PTB_OK;
    int64_t now = ptb_clock_ns();
    if (!idle->began_ns)
        idle->began_ns = idle->checked_ns = now;
    if (now - idle->began_ns < patience_ns || now - idle->checked_ns < look_every_ns)
        return PTB_OK;
    idle->checked_ns = now;
    return look_around(team, idle, peer);
}

ptb_status ptb_team_await_slow(ptb_team *team, atomic_uint *flag, uint32_t value, int peer)
{
    ptb_idle idle = PTB_IDLE_INIT;
    while ((int32_t)(atomic_load_explicit(flag, memory_order_acquire) - value) < 0)
        PTB_TRY(ptb_idle_step(team, &idle, peer));
    return PTB_OK;
}
