// A team: the members of one `host` or `local` communicator, what they share, and how they wait for each
// other. Algorithms (collectives/algorithm.h) see their peers only through this and the wire
// (collectives/wire.h).
//
// Every member owns a control block in memory that all members on its host map: two slots for the `direct`
// algorithm, two stages for data of buffers that peers cannot map, and one channel to each peer. All flags
// are sequence numbers on lines of their own, written by one side only, so nothing ever has to be reset.
#ifndef PTB_COLLECTIVES_TEAM_H
#define PTB_COLLECTIVES_TEAM_H

#include "collectives/comm.h"

#include <stdatomic.h>

enum {
    PTB_LINE_BYTES = 128,        // two cache lines: the adjacent-line prefetcher pairs them
    PTB_SLOT_BYTES = 4096,       // largest vector that `direct` carries inside a slot
    PTB_STAGE_BYTES = 256 << 10, // one stage; two of them stay in the second-level cache
    PTB_CHANNEL_ENTRIES = 8,     // messages under way in one channel
    PTB_INLINE_BYTES = 104,      // carried in the line of the entry itself
    PTB_SEGMENTS_MAX = 256,      // symmetric allocations of one communicator
};

// Memory of every member, mapped here where the member is on this host. Shared by ptb_region_share.
typedef struct {
    unsigned char **base; // [size]; NULL: on another host
    size_t *bytes;        // [size]
    void **owner;         // [size]; threads only: counts the users of each member's memory
    bool named;           // shared by name, since process numbers of peers mean nothing here
} ptb_region;

// A place in a member's memory as its peers name it.
typedef struct {
    uint32_t segment; // index, or one of the two below
    uint64_t offset;  // bytes
} ptb_place;
enum { PTB_PLACE_PRIVATE = UINT32_MAX, PTB_PLACE_EMPTY = UINT32_MAX - 1 };

// Sequence number, what is called, and payload start on one line, so that a small vector arrives together
// with its flag and ranks that call different things notice.
typedef struct {
    _Alignas(128) atomic_uint sequence;
    uint32_t kind, type_op, count; // of the call; count modulo 2^32
    unsigned char payload[PTB_SLOT_BYTES];
} ptb_slot;

// One message of a channel: bytes in the entry, in the channel's data slot, or in place in a segment.
typedef struct {
    _Alignas(128) atomic_uint sequence; // number of the message, from 1
    uint32_t segment;                   // PTB_PLACE_PRIVATE: the bytes are in the channel
    uint64_t offset, bytes;
    unsigned char data[PTB_INLINE_BYTES];
} ptb_entry;

typedef struct {
    _Alignas(128) atomic_uint taken; // messages consumed; written by the receiver
    _Alignas(128) ptb_entry entries[PTB_CHANNEL_ENTRIES];
    // followed by PTB_CHANNEL_ENTRIES data slots of team->slot_bytes
} ptb_channel;

typedef struct {
    _Alignas(128) atomic_uint aborted; // 1 + rank that was found lost
    _Alignas(128) ptb_slot slots[2];
    _Alignas(128) unsigned char stage[2][PTB_STAGE_BYTES];
    // followed by one channel to each member on this host, in order of local rank
} ptb_control;

typedef struct {
    ptb_control *control; // NULL: reached through MPI
    int pid;              // 0: a thread of this process, or in a process namespace that is not this one's
    int local;            // rank among the members on this host
} ptb_peer;

struct ptb_wire;

typedef struct ptb_team {
    ptb_world *world;
    int rank, size;
    ptb_comm_config config;
    bool threads; // members are threads of one process
    bool shared;  // all members reach each other's control blocks
    bool broken;  // a member was lost: every later call fails at once
    int local_rank, local_size;
    unsigned spins;     // polls before the processor is given away
    size_t slot_bytes;  // data slot of a channel
    size_t cache_bytes; // this member's share of the last-level cache
    ptb_region control; // the control blocks
    ptb_peer *peers;    // [size]
    ptb_region segments[PTB_SEGMENTS_MAX];
    size_t segment_count; // entries in use or freed; a freed one has base == NULL
    uint32_t step;        // newest synchronisation point of `direct`
    uint32_t *seen;       // [size], newest step seen of each member
    struct ptb_wire *wire;
    void *scratch[2]; // grown by ptb_team_scratch
    size_t scratch_bytes[2];
    ptb_sent *sent; // the communicator's counters
} ptb_team;

// Collective over the world. threads: members are threads (world_local), else processes. `sent` is
// counted up by algorithms.
ptb_status ptb_team_open(ptb_world *world, const ptb_comm_config *config, bool threads, ptb_sent *sent,
                         ptb_team **team);
// Needs no peer: memory that others still use stays until they close.
void ptb_team_close(ptb_team *team);

// Symmetric memory, collective.
ptb_status ptb_team_alloc(ptb_team *team, size_t bytes, void **memory);
void ptb_team_free(ptb_team *team, void *memory);
uint64_t ptb_team_segment_bytes(const ptb_team *team); // of this member, in total

// Where [memory, memory + bytes) lies in this member's symmetric memory.
ptb_place ptb_team_place(const ptb_team *team, const void *memory, size_t bytes);
// The same place of member `rank`, mapped here. The place must not be PRIVATE.
static inline unsigned char *ptb_team_at(const ptb_team *team, int rank, ptb_place place)
{
    return place.segment == PTB_PLACE_EMPTY ? NULL : team->segments[place.segment].base[rank] + place.offset;
}

// Private memory that lasts until the next call with the same index (0 or 1); grows on first use only.
ptb_status ptb_team_scratch(ptb_team *team, int index, size_t bytes, void **memory);

// The channel from member `from` to member `to`, both on this host, and its i-th data slot.
ptb_channel *ptb_team_channel(const ptb_team *team, int from, int to);
static inline unsigned char *ptb_team_channel_data(const ptb_team *team, ptb_channel *channel, uint32_t i)
{
    return (unsigned char *)(channel + 1) + (size_t)(i % PTB_CHANNEL_ENTRIES) * team->slot_bytes;
}

// Makes streaming stores visible before a flag that is set afterwards.
void ptb_team_fence(void);

// All waiting goes through here: polls with pause, then gives the processor away, then (after 0.1 s) looks
// whether the peers still live and whether config.timeout_s is over. LOST is logged with rank and process.
typedef struct {
    unsigned polls;
    int64_t began_ns, checked_ns;
} ptb_idle;
#define PTB_IDLE_INIT                                                                                        \
    {                                                                                                        \
        0, 0, 0                                                                                              \
    }
// After one poll in vain. `peer` is named when time runs out; -1: any.
ptb_status ptb_idle_step(ptb_team *team, ptb_idle *idle, int peer);
ptb_status ptb_team_await_slow(ptb_team *team, atomic_uint *flag, uint32_t value, int peer);
// Until *flag has reached value (modulo 2^32), acquiring what was written before it.
static inline ptb_status ptb_team_await(ptb_team *team, atomic_uint *flag, uint32_t value, int peer)
{
    if ((int32_t)(atomic_load_explicit(flag, memory_order_acquire) - value) >= 0)
        return PTB_OK;
    return ptb_team_await_slow(team, flag, value, peer);
}
// Marks the team as broken for all members on this host.
void ptb_team_abort(ptb_team *team, int lost_rank);

// region.c: memory of `bytes` on each member (may differ), mapped by all members on the same host.
// Collective; all members return the same status. The parts of other hosts stay NULL.
ptb_status ptb_region_share(ptb_team *team, size_t bytes, ptb_region *region);
void ptb_region_release(const ptb_team *team, ptb_region *region);

#endif
