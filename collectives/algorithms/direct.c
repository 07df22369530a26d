// Direct: every collective straight through the shared memory of one host.
//
// Short vectors: each member copies its contribution into its slot beside a sequence number, and whoever
// needs it reads it there: one line travels one way, and two slots in turn make one round enough. For longer
// ones the members publish where their buffers lie, and each does its share of the work straight from all
// send buffers to all receive buffers; a second round of flags ends the call. For an all-reduce of S bytes on
// two members that moves 4 S bytes in all, the least there is. Buffers that peers cannot map go through the
// slots while they fit, else they are staged in chunks that stay in the caches (sums and broadcast) or
// exchanged pairwise through the wire.
#include "collectives/algorithm.h"
#include "collectives/slots.h"

#include "core/log.h"

#include <stdio.h>
#include <string.h>

enum {
    SMALL_BYTES = 512,           // carried in slots; above, one copy less is worth a second round of flags
    TILE_BYTES = 16 << 10,       // partial result of several members, in the first-level cache
    CHUNK = PTB_STAGE_BYTES / 2, // of a staged vector: half a stage goes in, the other half comes out
    MEMBERS_MAX = 240,           // all_to_all_v: its table must fit into a slot
};

// What a member tells the others in its slot before the work of a large call.
typedef struct {
    ptb_place send, recv;
    uint32_t in_place, stream;
    struct {
        uint64_t first, count;
    } to[]; // all_to_all_v: what it sends to each member
} publication;

// ---- large vectors in place

typedef struct {
    ptb_team *team;
    const ptb_coll *call;
    size_t size; // bytes of an element
    bool stream;
} job;

static const publication *published(const ptb_team *team, int rank)
{
    return (const publication *)(const void *)ptb_slots_of(team, rank, team->step)->payload;
}

// Member r's share of [0, count): whole lines, so that no two members write one line.
static ptb_range share_of(size_t count, size_t size, int n, int r)
{
    size_t unit = PTB_LINE_BYTES / size;
    ptb_range lines = ptb_block((count + unit - 1) / unit, n, r);
    size_t first = lines.first * unit, end = (lines.first + lines.count) * unit;
    first = first < count ? first : count;
    end = end < count ? end : count;
    return (ptb_range){first, end - first};
}

static void copy(const job *j, void *to, const void *from, size_t count)
{
    if (j->stream)
        ptb_copy_streaming(to, from, count * j->size);
    else
        ptb_copy_local(to, from, count * j->size);
}

// out[0..outs) each = op over in[0..n) of `count` elements, in order of rank. An `out` may be one of `in`.
static void fold(const job *j, void **out, int outs, const void **in, int n, size_t count)
{
    ptb_dtype type = j->call->dtype;
    ptb_redop op = j->call->op;
    if (n == 2 && outs == 2 && op != PTB_AVG) {
        ptb_reduce2_function(type, op)(out[0], out[1], in[0], in[1], count, j->stream);
        return;
    }
    bool own = out[0] != in[0] && out[0] != in[n - 1];
    if (n == 2 && outs == 1 && op != PTB_AVG) {
        ptb_reduce_fn *once =
            j->stream && own ? ptb_reduce_function_streaming(type, op) : ptb_reduce_function(type, op);
        once(out[0], in[0], in[1], count);
        return;
    }
    _Alignas(64) unsigned char tile[TILE_BYTES];
    ptb_reduce_fn *reduce = ptb_reduce_function(type, op);
    size_t step = TILE_BYTES / j->size;
    for (size_t at = 0; at < count; at += step) {
        size_t some = count - at < step ? count - at : step;
        reduce(tile, ptb_at_const(in[0], at, j->size), ptb_at_const(in[1], at, j->size), some);
        for (int r = 2; r < n; r++)
            reduce(tile, tile, ptb_at_const(in[r], at, j->size), some);
        ptb_reduce_finish(type, op, tile, some, n);
        for (int i = 0; i < outs; i++)
            copy(j, ptb_at(out[i], at, j->size), tile, some);
    }
}

// Folds [first, first + count) of all send buffers into the same place of all receive buffers (root < 0), or
// of the root's, or into `mine`.
static void fold_range(const job *j, ptb_range range, int root, void *mine)
{
    int n = j->team->size, outs = 0;
    const void *in[n];
    void *out[n];
    if (!range.count)
        return;
    for (int r = 0; r < n; r++) {
        const publication *p = published(j->team, r);
        in[r] = ptb_at_const(ptb_team_at(j->team, r, p->send), range.first, j->size);
        if (!mine && (root < 0 || r == root))
            out[outs++] = ptb_at(ptb_team_at(j->team, r, p->recv), range.first, j->size);
    }
    if (mine)
        out[outs++] = mine;
    fold(j, out, outs, in, n, range.count);
}

// This member's block to everybody, tile by tile: what is sent is read once for all receivers (S in all,
// where pulling reads n S), from the caches of the core that made it. Starts with the right neighbour so that
// not all write into the same memory. Within the caches it takes 0.65 to 0.77 of the time of pulling.
static void push_all(const job *j)
{
    int n = j->team->size, rank = j->team->rank;
    ptb_range block = ptb_block(j->call->count, n, rank);
    size_t step = TILE_BYTES / j->size;
    for (size_t at = 0; at < block.count; at += step) {
        size_t some = block.count - at < step ? block.count - at : step;
        const void *from = ptb_at_const(j->call->send, at, j->size);
        for (int i = 1; i <= n; i++) {
            int r = (rank + i) % n;
            void *recv = r == rank ? j->call->recv : ptb_team_at(j->team, r, published(j->team, r)->recv);
            copy(j, ptb_at(recv, block.first + at, j->size), from, some);
        }
    }
}

// The root writes the first share to everybody, the others read the rest: all copy the same amount.
static void broadcast(const job *j)
{
    int n = j->team->size, root = j->call->root;
    size_t count = j->call->count;
    size_t pushed = share_of(count, j->size, n, 0).count;
    if (j->team->rank == root) {
        for (int r = 0; r < n && pushed; r++)
            if (r != root)
                copy(j, ptb_team_at(j->team, r, published(j->team, r)->recv), j->call->send, pushed);
        copy(j, j->call->recv, j->call->send, count);
    } else if (pushed < count) {
        const void *from = ptb_team_at(j->team, root, published(j->team, root)->send);
        copy(j, ptb_at(j->call->recv, pushed, j->size), ptb_at_const(from, pushed, j->size), count - pushed);
    }
}

static void swap(unsigned char *a, unsigned char *b, size_t bytes)
{
    unsigned char tile[TILE_BYTES];
    for (size_t at = 0; at < bytes; at += TILE_BYTES) {
        size_t some = bytes - at < TILE_BYTES ? bytes - at : TILE_BYTES;
        memcpy(tile, a + at, some);
        memcpy(a + at, b + at, some);
        memcpy(b + at, tile, some);
    }
}

// One pair's two blocks of equal size change places; the lower member does the first half.
static void swap_half(const job *j, int peer, void *mine, void *theirs, size_t count)
{
    size_t half = count / 2;
    if (j->team->rank < peer)
        swap(mine, theirs, half * j->size);
    else
        swap(ptb_at(mine, half, j->size), ptb_at(theirs, half, j->size), (count - half) * j->size);
}

static void all_to_all(const job *j)
{
    int n = j->team->size, rank = j->team->rank;
    bool in_place = j->call->send == j->call->recv;
    for (int i = in_place; i < n; i++) {
        int r = (rank + i) % n;
        ptb_range block = ptb_block(j->call->count, n, rank);
        unsigned char *from = ptb_team_at(j->team, r, published(j->team, r)->send);
        void *to = ptb_at(j->call->recv, (size_t)r * block.count, j->size);
        if (!block.count)
            continue;
        if (in_place)
            swap_half(j, r, to, ptb_at(from, block.first, j->size), block.count);
        else
            copy(j, to, ptb_at_const(from, block.first, j->size), block.count);
    }
}

static ptb_status all_to_all_v(const job *j)
{
    int n = j->team->size, rank = j->team->rank;
    for (int i = 0; i < n; i++) {
        int r = (rank + i) % n;
        const publication *theirs = published(j->team, r);
        size_t count = theirs->to[rank].count;
        if (count != j->call->recv_counts[r]) {
            ptb_error("all_to_all_v: rank %d sends %zu elements to rank %d, which expects %zu", r, count,
                      rank, j->call->recv_counts[r]);
            return PTB_USAGE;
        }
        bool in_place = theirs->in_place && j->call->send == j->call->recv;
        if (!count || (in_place && r == rank))
            continue;
        void *from = ptb_at(ptb_team_at(j->team, r, theirs->send), theirs->to[rank].first, j->size);
        void *to = ptb_at(j->call->recv, j->call->recv_first[r], j->size);
        if (in_place)
            swap_half(j, r, to, from, count);
        else
            copy(j, to, from, count);
    }
    return PTB_OK;
}

static ptb_status work(const job *j)
{
    const ptb_coll *call = j->call;
    ptb_team *team = j->team;
    int n = team->size, rank = team->rank;
    ptb_range mine = ptb_block(call->count, n, rank);
    switch (call->kind) {
    case PTB_ALL_REDUCE:
        fold_range(j, share_of(call->count, j->size, n, rank), -1, NULL);
        break;
    case PTB_REDUCE:
        fold_range(j, share_of(call->count, j->size, n, rank), call->root, NULL);
        break;
    case PTB_REDUCE_SCATTER:
        fold_range(j, mine, -1, call->recv);
        break;
    case PTB_ALL_GATHER:
        push_all(j);
        break;
    case PTB_BROADCAST:
        broadcast(j);
        break;
    case PTB_GATHER:
        if (mine.count)
            copy(j,
                 ptb_at(rank == call->root ? call->recv
                                           : ptb_team_at(team, call->root, published(team, call->root)->recv),
                        mine.first, j->size),
                 call->send, mine.count);
        break;
    case PTB_SCATTER:
        if (mine.count)
            copy(j, call->recv,
                 ptb_at_const(ptb_team_at(team, call->root, published(team, call->root)->send), mine.first,
                              j->size),
                 mine.count);
        break;
    case PTB_ALL_TO_ALL:
        all_to_all(j);
        break;
    case PTB_ALL_TO_ALL_V:
        return all_to_all_v(j);
    default:
        return PTB_INTERNAL;
    }
    return PTB_OK;
}

// ---- buffers that peers cannot map

// Sums and broadcast in chunks through the stages, one round of flags a chunk: while chunk c is folded, the
// result of chunk c-1 is taken out. Half of each stage holds what goes in, half what comes out.
typedef struct {
    ptb_team *team;
    const ptb_coll *call;
    size_t size, chunk; // bytes of an element; elements of a chunk
} staging;

static ptb_range chunk_of(const staging *s, size_t c)
{
    size_t first = c * s->chunk, left = s->call->count - first;
    return (ptb_range){first, left < s->chunk ? left : s->chunk};
}

static void stage_in(const staging *s, size_t c)
{
    ptb_range range = chunk_of(s, c);
    if (s->call->kind != PTB_BROADCAST || s->team->rank == s->call->root)
        memcpy(s->team->peers[s->team->rank].control->stage[c & 1],
               ptb_at_const(s->call->send, range.first, s->size), range.count * s->size);
}

// After the flags of chunk c: what every member's input half now holds is folded, or taken (broadcast). The
// next chunk but one may overwrite it after the next round.
static void stage_fold(const staging *s, size_t c)
{
    const ptb_coll *call = s->call;
    int n = s->team->size;
    ptb_range range = chunk_of(s, c), share = share_of(range.count, s->size, n, s->team->rank);
    if (call->kind == PTB_BROADCAST) {
        const void *from = s->team->rank == call->root
                               ? ptb_at_const(call->send, range.first, s->size)
                               : (const void *)s->team->peers[call->root].control->stage[c & 1];
        ptb_copy_local(ptb_at(call->recv, range.first, s->size), from, range.count * s->size);
        return;
    }
    if (!share.count)
        return;
    const void *in[n];
    for (int r = 0; r < n; r++)
        in[r] = s->team->peers[r].control->stage[c & 1] + share.first * s->size;
    void *out = s->team->peers[s->team->rank].control->stage[c & 1] + CHUNK + share.first * s->size;
    job j = {s->team, call, s->size, false};
    fold(&j, &out, 1, in, n, share.count);
}

// After the flags of chunk c+1: all shares of the result of chunk c are there.
static void stage_out(const staging *s, size_t c)
{
    const ptb_coll *call = s->call;
    int n = s->team->size;
    ptb_range range = chunk_of(s, c);
    if (call->kind == PTB_BROADCAST || (call->kind == PTB_REDUCE && s->team->rank != call->root))
        return;
    unsigned char *to = ptb_at(call->recv, range.first, s->size);
    for (int r = 0; r < n; r++) {
        ptb_range share = share_of(range.count, s->size, n, r);
        memcpy(to + share.first * s->size,
               s->team->peers[r].control->stage[c & 1] + CHUNK + share.first * s->size,
               share.count * s->size);
    }
}

static ptb_status run_staged(ptb_team *team, const ptb_coll *call)
{
    size_t size = ptb_dtype_size(call->dtype);
    staging s = {team, call, size, CHUNK / size};
    size_t chunks = (call->count + s.chunk - 1) / s.chunk;
    for (size_t c = 0; c <= chunks; c++) {
        if (c < chunks)
            stage_in(&s, c);
        PTB_TRY(ptb_slots_round(team, call));
        if (c > 0)
            stage_out(&s, c - 1);
        if (c < chunks)
            stage_fold(&s, c);
    }
    return PTB_OK;
}

// ---- any call

static size_t extent(const size_t *first, const size_t *counts, int n)
{
    size_t end = 0;
    for (int r = 0; r < n; r++)
        if (counts[r] && first[r] + counts[r] > end)
            end = first[r] + counts[r];
    return end;
}

// Where this member's buffers lie; EMPTY where it has none in this call.
static void publish(const ptb_team *team, const ptb_coll *call, publication *mine)
{
    size_t size = ptb_dtype_size(call->dtype), count = call->count;
    int n = team->size;
    bool is_root = team->rank == call->root;
    size_t block = ptb_block(count, n, team->rank).count, send = count, recv = count;
    if (call->kind == PTB_ALL_GATHER || call->kind == PTB_GATHER)
        send = block;
    if (call->kind == PTB_REDUCE_SCATTER || call->kind == PTB_SCATTER)
        recv = block;
    if (call->kind == PTB_ALL_TO_ALL)
        recv = block * (size_t)n;
    if ((call->kind == PTB_BROADCAST || call->kind == PTB_SCATTER) && !is_root)
        send = 0;
    if ((call->kind == PTB_REDUCE || call->kind == PTB_GATHER) && !is_root)
        recv = 0;
    mine->in_place = call->send == call->recv;
    // What a member writes will not be read from the caches when its two buffers do not stay there.
    mine->stream = call->kind != PTB_ALL_TO_ALL_V && 2 * count * size > team->cache_bytes;
    if (call->kind == PTB_ALL_TO_ALL_V) {
        send = extent(call->send_first, call->send_counts, n);
        recv = extent(call->recv_first, call->recv_counts, n);
        for (int r = 0; r < n; r++) {
            mine->to[r].first = call->send_first[r];
            mine->to[r].count = call->send_counts[r];
        }
    }
    mine->send = ptb_team_place(team, call->send, send * size);
    mine->recv = ptb_team_place(team, call->recv, recv * size);
}

static void count_sent(const ptb_team *team, const ptb_coll *call, bool small)
{
    size_t n = (size_t)team->size, others = n - 1, size = ptb_dtype_size(call->dtype), count = call->count;
    size_t block = ptb_block(count, team->size, team->rank).count;
    size_t share = share_of(count, size, team->size, team->rank).count;
    bool is_root = team->rank == call->root;
    size_t sent = 0;
    switch (call->kind) {
    case PTB_ALL_REDUCE:
        sent = small ? others * count : count - share + others * share;
        break;
    case PTB_REDUCE:
        sent = is_root ? (small ? 0 : count - share) : count;
        break;
    case PTB_REDUCE_SCATTER:
    case PTB_ALL_TO_ALL:
        sent = count - block;
        break;
    case PTB_ALL_GATHER:
        sent = others * block;
        break;
    case PTB_BROADCAST:
        sent = is_root ? others * count : 0;
        break;
    case PTB_GATHER:
        sent = is_root ? 0 : block;
        break;
    case PTB_SCATTER:
        sent = is_root ? count - block : 0;
        break;
    case PTB_ALL_TO_ALL_V:
        for (int r = 0; r < team->size; r++)
            sent += r == team->rank ? 0 : call->send_counts[r];
        break;
    default:
        break;
    }
    team->sent->bytes += sent * size;
}

static bool is_elementwise(const ptb_coll *call)
{
    return call->kind == PTB_ALL_REDUCE || call->kind == PTB_REDUCE || call->kind == PTB_BROADCAST;
}

static ptb_status run(ptb_team *team, const ptb_coll *call)
{
    size_t size = ptb_dtype_size(call->dtype);
    if (call->kind == PTB_BARRIER)
        return ptb_slots_run(team, call);
    bool is_v = call->kind == PTB_ALL_TO_ALL_V;
    if (!is_v && call->count <= SMALL_BYTES / size) {
        count_sent(team, call, true);
        return ptb_slots_run(team, call);
    }
    ptb_slot *slot;
    PTB_TRY(ptb_slots_next(team, &slot));
    publish(team, call, (publication *)(void *)slot->payload);
    ptb_slots_post(team, call, slot);
    PTB_TRY(ptb_slots_meet_all(team, call));
    bool mapped = true;
    for (int r = 0; r < team->size; r++)
        mapped &= published(team, r)->send.segment != PTB_PLACE_PRIVATE &&
                  published(team, r)->recv.segment != PTB_PLACE_PRIVATE;
    if (!mapped && !is_v && call->count <= PTB_SLOT_BYTES / size) {
        count_sent(team, call, true);
        return ptb_slots_run(team, call);
    }
    if (!mapped && !is_elementwise(call))
        return ptb_pairwise_run(team, call); // counts its bytes itself
    count_sent(team, call, false);
    if (!mapped)
        return run_staged(team, call);
    // All must do the same, so member 0's view of the caches counts.
    job j = {team, call, size, published(team, 0)->stream};
    PTB_TRY(work(&j));
    if (j.stream)
        ptb_team_fence();
    return ptb_slots_round(team, call);
}

static bool supports(const ptb_team *team, const ptb_coll *call, bool in_place, char *reason)
{
    (void)in_place;
    if (call->kind != PTB_ALL_TO_ALL_V || team->size <= MEMBERS_MAX)
        return true;
    snprintf(reason, PTB_REASON_BYTES, "direct all_to_all_v is limited to %d ranks", MEMBERS_MAX);
    return false;
}

// Whole vectors in place; chunks where this member's buffers have to be staged.
static size_t segment_bytes(const ptb_team *team, const ptb_coll *call)
{
    bool staged = call->count * ptb_dtype_size(call->dtype) > PTB_SLOT_BYTES && is_elementwise(call) &&
                  ptb_team_place(team, call->send, 1).segment == PTB_PLACE_PRIVATE;
    return staged ? CHUNK : 0;
}

static const ptb_algorithm direct_algorithm = {
    .plugin = {.name = "direct", .summary = "straight through shared memory, on one host"},
    .collectives = (1u << PTB_COLL_COUNT) - 1,
    .needs_shared = true,
    .supports = supports,
    .run = run,
    .segment_bytes = segment_bytes,
};
PTB_REGISTER(PTB_KIND_ALGORITHM, direct_algorithm);
