// The schedule of one call and the engine that progresses it. See wire.h.
#include "collectives/wire.h"

#include "core/log.h"

#include <stdlib.h>
#include <string.h>

enum {
    SEGMENT_BYTES = 128 << 10, // a piece that stays in the second-level cache beside its result
    PARTS_MAX = 64,            // pieces of one block unless a segment size was asked for
    PARTS_LIMIT = 4096,        // then this many
    MPI_WINDOW = 4,            // messages of one lane that MPI holds at a time
};
#define MESSAGE_MAX ((size_t)1 << 30) // MPI counts in int

size_t ptb_wire_segment_bytes(const ptb_team *team, size_t bytes)
{
    bool asked = team->config.segment_bytes > 0;
    size_t segment = asked ? (size_t)team->config.segment_bytes : SEGMENT_BYTES;
    size_t parts = asked ? PARTS_LIMIT : PARTS_MAX;
    size_t least = (bytes + parts - 1) / parts;
    segment = segment < least ? least : segment;
    segment = (segment + 63) / 64 * 64;
    return segment > MESSAGE_MAX ? MESSAGE_MAX : segment;
}

ptb_cut ptb_wire_cut(const ptb_team *team, size_t count, size_t element_bytes)
{
    size_t elements = ptb_wire_segment_bytes(team, count * element_bytes) / element_bytes;
    return (ptb_cut){elements, (count + elements - 1) / elements};
}

ptb_status ptb_wire_open(ptb_team *team)
{
    ptb_wire *wire = calloc(1, sizeof *wire);
    if (wire) {
        wire->lanes = calloc(2 * (size_t)team->size, sizeof *wire->lanes);
        wire->active = calloc(2 * (size_t)team->size, sizeof *wire->active);
    }
    team->wire = wire;
    ptb_status status = wire && wire->lanes && wire->active ? PTB_OK : PTB_NO_MEMORY;
    if (status != PTB_OK)
        ptb_error("out of memory for the lanes of %d ranks", team->size);
    PTB_TRY(ptb_world_agree(team->world, status));
    if (team->size == 1 || team->threads || team->shared)
        return PTB_OK;
    return ptb_wire_mpi_open(team, &wire->mpi);
}

void ptb_wire_close(ptb_team *team)
{
    ptb_wire *wire = team->wire;
    if (!wire)
        return;
    if (wire->mpi)
        ptb_wire_mpi_close(wire->mpi, team->broken);
    free(wire->ops);
    free(wire->lanes);
    free(wire->active);
    free(wire);
    team->wire = NULL;
}

void ptb_wire_describe(const ptb_team *team, ptb_params *facts)
{
    if (team->wire->mpi)
        ptb_wire_mpi_describe(team->wire->mpi, team, facts);
}

void ptb_wire_begin(ptb_team *team, ptb_dtype dtype, ptb_redop op)
{
    ptb_wire *wire = team->wire;
    for (int i = 0; i < wire->active_count; i++)
        wire->lanes[wire->active[i]].listed = false;
    wire->active_count = 0;
    wire->count = wire->pending = 0;
    wire->dtype = dtype;
    wire->op = op;
    wire->reduce = ptb_reduce_function(dtype, op);
    wire->status = PTB_OK;
}

static int append(ptb_team *team, ptb_wire_op op, int after)
{
    ptb_wire *wire = team->wire;
    if (wire->count == wire->capacity) {
        int capacity = wire->capacity ? 2 * wire->capacity : 256;
        ptb_wire_op *ops = realloc(wire->ops, (size_t)capacity * sizeof *ops);
        if (!ops) {
            wire->status = PTB_NO_MEMORY;
            return PTB_WIRE_NONE;
        }
        wire->ops = ops;
        wire->capacity = capacity;
    }
    int i = wire->count++;
    op.after[0] = after;
    op.after[1] = op.after[2] = PTB_WIRE_NONE;
    op.next = PTB_WIRE_NONE;
    op.request = -1;
    wire->ops[i] = op;
    wire->pending++;
    int number = op.kind == PTB_WIRE_SEND ? op.peer : team->size + op.peer;
    ptb_lane *lane = &wire->lanes[number];
    if (!lane->listed) {
        lane->listed = true;
        lane->start = lane->finish = i;
        lane->under_way = 0;
        wire->active[wire->active_count++] = number;
    } else {
        wire->ops[lane->last].next = i;
    }
    lane->last = i;
    return i;
}

int ptb_wire_send(ptb_team *team, int peer, const void *from, size_t bytes, int after)
{
    team->sent->bytes += bytes;
    if (team->world->host_of[peer] != team->world->host)
        team->sent->far_bytes += bytes;
    return append(team, (ptb_wire_op){.kind = PTB_WIRE_SEND, .peer = peer, .from = from, .bytes = bytes},
                  after);
}

int ptb_wire_recv(ptb_team *team, int peer, void *to, size_t bytes, int after)
{
    return append(team, (ptb_wire_op){.kind = PTB_WIRE_RECV, .peer = peer, .to = to, .bytes = bytes}, after);
}

int ptb_wire_recv_reduce(ptb_team *team, int peer, void *to, const void *from, size_t bytes, int after,
                         bool finish)
{
    ptb_wire_op op = {.kind = PTB_WIRE_RECV_REDUCE, .peer = peer, .from = from, .to = to, .bytes = bytes};
    op.finish = finish;
    return append(team, op, after);
}

void ptb_wire_order(ptb_team *team, int i, int after)
{
    if (i < 0 || after < 0)
        return; // memory ran out while the schedule was built; run says so
    int *slots = team->wire->ops[i].after;
    for (int k = 0; k < PTB_WIRE_AFTER_MAX; k++)
        if (slots[k] == PTB_WIRE_NONE) {
            slots[k] = after;
            return;
        }
    ptb_error("an operation of a schedule comes after more than %d others", PTB_WIRE_AFTER_MAX);
    team->wire->status = PTB_INTERNAL;
}

static bool is_ready(const ptb_wire *wire, const ptb_wire_op *op)
{
    for (int k = 0; k < PTB_WIRE_AFTER_MAX; k++)
        if (op->after[k] != PTB_WIRE_NONE && !wire->ops[op->after[k]].done)
            return false;
    return true;
}

static void complete(ptb_wire *wire, ptb_wire_op *op)
{
    op->done = true;
    wire->pending--;
}

// Stores or folds `bytes` received bytes at `moved`.
static void take(ptb_team *team, ptb_wire_op *op, const void *data, size_t bytes)
{
    ptb_wire *wire = team->wire;
    unsigned char *to = (unsigned char *)op->to + op->moved;
    if (op->kind == PTB_WIRE_RECV) {
        if (bytes)
            memcpy(to, data, bytes);
    } else {
        size_t count = bytes / ptb_dtype_size(wire->dtype);
        wire->reduce(to, (const unsigned char *)op->from + op->moved, data, count);
        if (op->finish)
            ptb_reduce_finish(wire->dtype, wire->op, to, count, team->size);
    }
    op->moved += bytes;
}

// One message of a send, if the channel has room.
static bool shm_send(ptb_team *team, ptb_lane *lane, ptb_wire_op *op)
{
    ptb_channel *channel = ptb_team_channel(team, team->rank, op->peer);
    uint32_t taken = atomic_load_explicit(&channel->taken, memory_order_acquire);
    if (lane->messages - taken >= PTB_CHANNEL_ENTRIES)
        return false;
    const unsigned char *from = (const unsigned char *)op->from + op->moved;
    size_t left = op->bytes - op->moved;
    ptb_entry *entry = &channel->entries[lane->messages % PTB_CHANNEL_ENTRIES];
    ptb_place place = {PTB_PLACE_PRIVATE, 0};
    if (left > PTB_INLINE_BYTES)
        place = ptb_team_place(team, from, left);
    if (place.segment != PTB_PLACE_PRIVATE) {
        entry->bytes = left;
    } else {
        bool fits = left <= PTB_INLINE_BYTES;
        entry->bytes = left < team->slot_bytes ? left : team->slot_bytes;
        if (left)
            memcpy(fits ? entry->data : ptb_team_channel_data(team, channel, lane->messages), from,
                   entry->bytes);
    }
    entry->segment = place.segment;
    entry->offset = place.offset;
    op->moved += entry->bytes;
    lane->messages++;
    op->mark = place.segment == PTB_PLACE_PRIVATE ? taken : lane->messages;
    atomic_store_explicit(&entry->sequence, lane->messages, memory_order_release);
    return true;
}

// Takes one message into the receive, if there is one. `moved` beyond the size means that the sizes differ.
static bool shm_recv(ptb_team *team, ptb_lane *lane, ptb_wire_op *op, ptb_status *status)
{
    ptb_channel *channel = ptb_team_channel(team, op->peer, team->rank);
    ptb_entry *entry = &channel->entries[lane->messages % PTB_CHANNEL_ENTRIES];
    if (atomic_load_explicit(&entry->sequence, memory_order_acquire) != lane->messages + 1)
        return false;
    size_t bytes = entry->bytes;
    if (bytes > op->bytes - op->moved || (bytes == 0 && op->bytes)) {
        ptb_error("rank %d expects %zu bytes from rank %d and got %zu: ranks differ in what they call",
                  team->rank, op->bytes - op->moved, op->peer, bytes);
        *status = PTB_USAGE;
        return false;
    }
    const unsigned char *data;
    if (entry->segment != PTB_PLACE_PRIVATE)
        data = ptb_team_at(team, op->peer, (ptb_place){entry->segment, entry->offset});
    else
        data = bytes <= PTB_INLINE_BYTES ? entry->data : ptb_team_channel_data(team, channel, lane->messages);
    take(team, op, data, bytes);
    lane->messages++;
    atomic_store_explicit(&channel->taken, lane->messages, memory_order_release);
    return true;
}

static bool progress_shm(ptb_team *team, ptb_lane *lane, bool sends, ptb_status *status)
{
    ptb_wire *wire = team->wire;
    bool moved = false;
    while (lane->start != PTB_WIRE_NONE) {
        ptb_wire_op *op = &wire->ops[lane->start];
        if (!is_ready(wire, op) || !(sends ? shm_send(team, lane, op) : shm_recv(team, lane, op, status)))
            break;
        moved = true;
        if (op->moved < op->bytes)
            continue;
        lane->start = op->next;
        if (!sends) {
            complete(wire, op);
            break; // let what depends on it start before the next message is folded
        }
    }
    if (!sends || lane->finish == lane->start)
        return moved;
    // Sends complete in order, when the receiver has read the last message that lies in place.
    int peer = wire->ops[lane->finish].peer;
    uint32_t taken =
        atomic_load_explicit(&ptb_team_channel(team, team->rank, peer)->taken, memory_order_acquire);
    while (lane->finish != lane->start && (int32_t)(taken - wire->ops[lane->finish].mark) >= 0) {
        complete(wire, &wire->ops[lane->finish]);
        lane->finish = wire->ops[lane->finish].next;
        moved = true;
    }
    return moved;
}

static ptb_status mpi_start(ptb_wire *wire, ptb_wire_op *op)
{
    if (op->kind == PTB_WIRE_SEND)
        return ptb_wire_mpi_send(wire->mpi, op->peer, op->from, op->bytes, &op->request);
    return ptb_wire_mpi_recv(wire->mpi, op->peer, op->kind == PTB_WIRE_RECV ? op->to : NULL, op->bytes,
                             &op->request);
}

static bool progress_mpi(ptb_team *team, ptb_lane *lane, ptb_status *status)
{
    ptb_wire *wire = team->wire;
    bool moved = false;
    while (lane->start != PTB_WIRE_NONE && lane->under_way < MPI_WINDOW) {
        ptb_wire_op *op = &wire->ops[lane->start];
        if (!is_ready(wire, op))
            break;
        if ((*status = mpi_start(wire, op)) != PTB_OK)
            return false;
        lane->start = op->next;
        lane->under_way++;
        moved = true;
    }
    while (lane->finish != lane->start) {
        ptb_wire_op *op = &wire->ops[lane->finish];
        bool done = false;
        const void *data = NULL;
        if ((*status = ptb_wire_mpi_test(wire->mpi, op->request, &done, &data)) != PTB_OK)
            return false;
        if (!done)
            break;
        if (op->kind == PTB_WIRE_RECV_REDUCE)
            take(team, op, data, op->bytes);
        ptb_wire_mpi_release(wire->mpi, op->request);
        complete(wire, op);
        lane->finish = op->next;
        lane->under_way--;
        moved = true;
    }
    return moved;
}

ptb_status ptb_wire_run(ptb_team *team)
{
    ptb_wire *wire = team->wire;
    if (wire->status != PTB_OK) {
        if (wire->status == PTB_NO_MEMORY)
            ptb_error("out of memory for a schedule of %d operations; use a larger segment size",
                      wire->count);
        return wire->status;
    }
    ptb_idle idle = PTB_IDLE_INIT;
    ptb_status status = PTB_OK;
    while (wire->pending) {
        bool moved = false;
        for (int i = 0; i < wire->active_count; i++) {
            int number = wire->active[i];
            bool sends = number < team->size;
            ptb_lane *lane = &wire->lanes[number];
            if (lane->finish == PTB_WIRE_NONE && lane->start == PTB_WIRE_NONE)
                continue;
            int peer = sends ? number : number - team->size;
            bool here = team->peers[peer].control != NULL;
            moved |= here ? progress_shm(team, lane, sends, &status) : progress_mpi(team, lane, &status);
            if (status != PTB_OK) {
                ptb_team_abort(team, team->rank);
                return status;
            }
        }
        if (moved)
            idle = (ptb_idle)PTB_IDLE_INIT;
        else
            PTB_TRY(ptb_idle_step(team, &idle, wire->active_count == 1 ? wire->active[0] % team->size : -1));
    }
    return PTB_OK;
}
