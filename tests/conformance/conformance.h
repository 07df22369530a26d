// One collective call checked element by element against reference.h, and the sweep over collectives,
// algorithms, rank counts, element counts, types, operations, places and roots: full for f32 and i32, all
// pairs of factor levels for everything. Used by test_local.c (threads) and helper_conformance.c (MPI
// processes).
#ifndef PTB_TESTS_CONFORMANCE_CONFORMANCE_H
#define PTB_TESTS_CONFORMANCE_CONFORMANCE_H

#include "collectives/comm.h"
#include "core/random.h"
#include "reference.h"

#include <stdbool.h>
#include <stdio.h>

enum {
    GUARD = 512,
    BUFFER_BYTES = 2 * GUARD + 64 + (REFERENCE_COUNT + 64) * 8,
    ALGORITHMS_MAX = 48,
    REASONS_MAX = 24,
    POISON_BYTE = 0xA5,
    SEED = 20240229,
};
static const size_t fixed_counts[] = {7919, REFERENCE_COUNT};
enum { COUNT_LEVELS = 7 };

// What has been seen on this rank.
typedef struct {
    long checked, skipped, wrong;
    char first_wrong[512];
    char skip_reason[REASONS_MAX][PTB_REASON_BYTES]; // distinct reasons by start of text
    long skip_count[REASONS_MAX];
    int skip_reasons;
} tally;

// One rank's place in a world of n ranks, with the memory of its calls: that of the device, which the host
// does not touch, and host mirrors of it, in which inputs are laid out and results are looked at.
typedef struct {
    ptb_world *world;
    ptb_device *device;
    ptb_stream *stream;
    reference ref;
    void *private_memory[2];
    char *mirror[2];
    char *want;
    size_t pair_counts[4 * REFERENCE_RANKS];
    tally *seen;
} bench_seat;

// A communicator under test and its symmetric memory.
typedef struct {
    const char *name, *algorithm;
    ptb_comm *comm;
    void *memory[2];
} subject;

typedef struct {
    ptb_coll_kind kind;
    size_t count;
    ptb_dtype type;
    ptb_redop op;
    bool in_place;
    int root;
} call_case;

// What is swept. Where every access is checked: of worlds those that differ in kind, and of types f32 fully,
// the others by pairs.
#ifdef PTB_SANITIZED
enum { FULL_TYPES = 1 };
static inline bool is_swept(int ranks)
{
    return ranks <= 3 || ranks == 8;
}
#else
enum { FULL_TYPES = 2 };
static inline bool is_swept(int ranks)
{
    return ranks > 0;
}
#endif

static inline size_t count_level(int level, int n)
{
    const size_t small[] = {0, 1, (size_t)n - 1, (size_t)n, (size_t)n + 1};
    return level < 5 ? small[level] : fixed_counts[level - 5];
}

static inline void note_wrong_text(const bench_seat *seat, const subject *s, const call_case *c,
                                   const char *text)
{
    if (seat->seen->wrong++ == 0)
        snprintf(seat->seen->first_wrong, sizeof seat->seen->first_wrong,
                 "%s/%s %s count=%zu on %d ranks: %.300s", s->name, s->algorithm, ptb_coll_name(c->kind),
                 c->count, seat->world->size, text);
}

static inline void note_skip(tally *seen, const char *reason)
{
    seen->skipped++;
    int i = 0;
    while (i < seen->skip_reasons && strncmp(seen->skip_reason[i], reason, 24) != 0)
        i++;
    if (i == REASONS_MAX)
        return;
    if (i == seen->skip_reasons) {
        snprintf(seen->skip_reason[i], sizeof seen->skip_reason[i], "%s", reason);
        seen->skip_reasons++;
    }
    seen->skip_count[i]++;
}

static inline void note_wrong(const bench_seat *seat, const subject *s, const call_case *c, const char *what,
                              size_t index, double wanted, double got)
{
    tally *seen = seat->seen;
    if (seen->wrong++ == 0)
        snprintf(seen->first_wrong, sizeof seen->first_wrong,
                 "%s/%s %s %s %s count=%zu root=%d %s of %d: rank %d, %s %zu: wanted %.17g, got %.17g",
                 s->name, s->algorithm, ptb_coll_name(c->kind), ptb_dtype_name(c->type),
                 ptb_redop_name(c->op), c->count, c->root, c->in_place ? "in place" : "out of place",
                 seat->world->size, seat->world->rank, what, index, wanted, got);
}

// Compares got[0, count) elements; reports the first that differs.
static inline void compare(const bench_seat *seat, const subject *s, const call_case *c, const char *what,
                           const char *want, const char *got, size_t count)
{
    size_t element = ptb_dtype_size(c->type);
    if (count == 0 || memcmp(want, got, count * element) == 0)
        return;
    for (size_t k = 0; k < count; k++) {
        double wanted = ptb_dtype_load(c->type, want + k * element),
               is = ptb_dtype_load(c->type, got + k * element);
        if (!(wanted == is)) { // a zero of the other sign is equal
            note_wrong(seat, s, c, what, k, wanted, is);
            return;
        }
    }
}

static inline void compare_poison(const bench_seat *seat, const subject *s, const call_case *c,
                                  const char *what, const char *at, size_t bytes)
{
    if (bytes == 0 || ((unsigned char)at[0] == POISON_BYTE && memcmp(at, at + 1, bytes - 1) == 0))
        return; // every byte is as the first
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)at[i] != POISON_BYTE) {
            note_wrong(seat, s, c, what, i, POISON_BYTE, (unsigned char)at[i]);
            return;
        }
}

// Element offsets in place (comm.h): where send and receive lie in one buffer, and its length.
static inline size_t in_place_offsets(const call_case *c, int n, int me, size_t *send, size_t *recv)
{
    bool is_root = me == c->root;
    *send = *recv = 0;
    if (c->kind == PTB_ALL_GATHER || (c->kind == PTB_GATHER && is_root))
        *send = part_start(c->count, n, me);
    if (c->kind == PTB_REDUCE_SCATTER || (c->kind == PTB_SCATTER && is_root))
        *recv = part_start(c->count, n, me);
    if ((c->kind == PTB_GATHER || c->kind == PTB_SCATTER) && !is_root)
        return part_length(c->count, n, me);
    return c->count;
}

static inline void set_pairs(bench_seat *seat, const call_case *c, ptb_coll *call)
{
    size_t *counts = seat->pair_counts;
    int n = seat->world->size, me = seat->world->rank;
    size_t send_at = 0, recv_at = 0;
    for (int p = 0; p < n; p++) {
        counts[p] = pair_length(c->count, n, me, p, c->in_place);
        counts[n + p] = send_at;
        counts[2 * n + p] = pair_length(c->count, n, p, me, c->in_place);
        counts[3 * n + p] = recv_at;
        send_at += counts[p];
        recv_at += counts[2 * n + p];
    }
    call->send_counts = counts;
    call->send_first = counts + n;
    call->recv_counts = counts + 2 * n;
    call->recv_first = counts + 3 * n;
}

// Buffers of a call as it uses them, in the mirror: base, start and bytes of the data. device: where `base`
// lies in the device's memory.
typedef struct {
    char *base, *start, *device;
    size_t bytes;
} area;

static inline size_t area_bytes(const area *a)
{
    return (size_t)(a->start - a->base) + a->bytes + GUARD;
}

static inline void check_after(bench_seat *seat, const subject *s, const call_case *c, const ptb_coll *call,
                               const area *areas, const char *input, size_t input_count)
{
    size_t wanted = want_result(&seat->ref, call, c->in_place, seat->want);
    compare(seat, s, c, "element", seat->want, call->recv, wanted);
    bool overwritten =
        c->in_place && (is_reduction(c->kind) || c->kind == PTB_ALL_TO_ALL || c->kind == PTB_ALL_TO_ALL_V);
    if (!overwritten || wanted == 0)
        compare(seat, s, c, "input element", input, call->send, input_count);
    for (int b = 0; b < (c->in_place ? 1 : 2); b++) {
        compare_poison(seat, s, c, b ? "byte in front of receive" : "byte in front of send", areas[b].base,
                       (size_t)(areas[b].start - areas[b].base));
        compare_poison(seat, s, c, b ? "byte past receive" : "byte past send",
                       areas[b].start + areas[b].bytes, GUARD);
    }
    seat->seen->checked++;
}

// A back-end's own choice of algorithm must do every call but the one that comm.h excludes; a named algorithm
// may refuse more, with a reason.
static inline void check_skip(const bench_seat *seat, const subject *s, const call_case *c,
                              const char *reason)
{
    int n = seat->world->size;
    bool excluded = c->kind == PTB_ALL_TO_ALL && c->in_place && c->count % (size_t)n != 0;
    // What NCCL does not do, or not exactly (ptb_nccl_supports).
    bool exchange = c->kind == PTB_ALL_TO_ALL || c->kind == PTB_ALL_TO_ALL_V;
    bool average = is_reduction(c->kind) && c->op == PTB_AVG && ptb_dtype_is_float(c->type);
    if (strcmp(s->name, "nccl") == 0)
        excluded |= (exchange && c->in_place) || (average && (n & (n - 1)) != 0);
    if (!excluded && (strcmp(s->algorithm, "default") == 0 || !reason[0]))
        note_wrong_text(seat, s, c, reason[0] ? reason : "refused without a reason");
    note_skip(seat->seen, reason);
}

// NCCL before 2.22 cannot be asked beforehand, and refuses an algorithm that it was told to take in the call.
static inline bool refuses_in_call(const subject *s)
{
    ptb_params facts = {.count = 0};
    s->comm->ops->describe(s->comm, NULL, &facts);
    const char *lacks = ptb_params_get(&facts, "nccl_lacks");
    return lacks && strstr(lacks, "ncclGroupSimulateEnd");
}

// Runs one call on this rank and checks what it left. Collective over the seat's world.
static inline ptb_status run_case(bench_seat *seat, const subject *s, const call_case *c)
{
    int n = seat->world->size, me = seat->world->rank;
    size_t element = ptb_dtype_size(c->type), send_at = 0, recv_at = 0;
    // Deterministic and the same on all ranks: whose memory, and how far off alignment.
    uint64_t dice =
        ptb_random_u64(SEED, c->count * 16 + (size_t)c->kind, (uint64_t)c->type * 2 + c->in_place);
    size_t shift = (dice & 3) * element;
    bool registered = dice & 4;
    ptb_coll call = {.kind = c->kind, .count = c->count, .dtype = c->type, .op = c->op, .root = c->root};
    const char *input = input_values(&seat->ref, &call);
    size_t input_count = input_length(&call, n, me, c->in_place);
    size_t result_count = want_result(&seat->ref, &call, c->in_place, seat->want);
    area areas[2];
    for (int b = 0; b < 2; b++) {
        areas[b].base = seat->mirror[b];
        areas[b].device = registered ? s->memory[b] : seat->private_memory[b];
        areas[b].start = areas[b].base + GUARD + shift;
        areas[b].bytes = (b ? result_count : input_count) * element;
    }
    char *send = areas[0].start, *recv = areas[1].start;
    if (c->in_place) {
        areas[0].bytes = in_place_offsets(c, n, me, &send_at, &recv_at) * element;
        recv = send + recv_at * element;
        send += send_at * element;
    }
    for (int b = 0; b < (c->in_place ? 1 : 2); b++)
        memset(areas[b].base, POISON_BYTE, GUARD + shift + areas[b].bytes + GUARD);
    memcpy(send, input, input_count * element);
    ptb_coll mirrored = call;
    mirrored.send = send;
    mirrored.recv = recv;
    call.send = areas[0].device + (send - areas[0].base);
    call.recv = areas[c->in_place ? 0 : 1].device + (recv - areas[c->in_place ? 0 : 1].base);
    if (c->kind == PTB_ALL_TO_ALL_V)
        set_pairs(seat, c, &call);
    char reason[PTB_REASON_BYTES] = "";
    if (!s->comm->ops->supports(s->comm, &call, c->in_place, reason)) {
        check_skip(seat, s, c, reason);
        return PTB_OK;
    }
    for (int b = 0; b < (c->in_place ? 1 : 2); b++)
        PTB_TRY(ptb_stream_copy(seat->stream, areas[b].device, areas[b].base, area_bytes(&areas[b])));
    ptb_status status = ptb_comm_collective(s->comm, &call, seat->stream);
    if (status == PTB_UNSUPPORTED && refuses_in_call(s)) {
        check_skip(seat, s, c, "NCCL refused it in the call");
        return ptb_stream_sync(seat->stream);
    }
    PTB_TRY(status);
    for (int b = 0; b < (c->in_place ? 1 : 2); b++)
        PTB_TRY(ptb_stream_copy(seat->stream, areas[b].base, areas[b].device, area_bytes(&areas[b])));
    PTB_TRY(ptb_stream_sync(seat->stream));
    check_after(seat, s, c, &mirrored, areas, input, input_count);
    return PTB_OK;
}

// ---- seats and subjects

static inline ptb_status seat_init(bench_seat *seat, ptb_world *world, ptb_device *device, tally *seen)
{
    *seat = (bench_seat){.world = world, .device = device, .seen = seen};
    reference_init(&seat->ref, SEED, world->size, world->rank);
    seat->want = malloc(BUFFER_BYTES);
    for (int b = 0; b < 2; b++) {
        PTB_TRY(ptb_device_alloc(device, PTB_MEMORY_COMMUNICATION, BUFFER_BYTES, &seat->private_memory[b]));
        PTB_TRY(ptb_device_alloc_host(device, BUFFER_BYTES, (void **)&seat->mirror[b]));
    }
    return ptb_stream_new(device, PTB_STREAM_CALLER, 0, &seat->stream);
}

static inline void seat_release(bench_seat *seat)
{
    ptb_stream_free(seat->stream);
    reference_release(&seat->ref);
    for (int b = 0; b < 2; b++) {
        ptb_device_free(seat->device, seat->private_memory[b]);
        ptb_device_free_host(seat->device, seat->mirror[b]);
    }
    free(seat->want);
}

static inline ptb_status subject_open(subject *s, const char *name, const char *algorithm, ptb_world *world)
{
    *s = (subject){.name = name, .algorithm = algorithm};
    ptb_comm_config config = {.algorithm = algorithm, .timeout_s = 100};
    PTB_TRY(ptb_comm_open(name, world, &config, &s->comm));
    for (int b = 0; b < 2; b++)
        PTB_TRY(s->comm->ops->alloc(s->comm, BUFFER_BYTES, &s->memory[b]));
    return PTB_OK;
}

static inline void subject_close(subject *s)
{
    for (int b = 0; b < 2; b++)
        if (s->memory[b])
            s->comm->ops->free(s->comm, s->memory[b]);
    ptb_comm_close(s->comm);
}

static inline bool has_algorithm(const ptb_comm_ops *ops, ptb_coll_kind kind, const char *algorithm)
{
    if (strcmp(algorithm, "default") == 0)
        return true;
    for (const char *const *names = ops->algorithms(kind); names && *names; names++)
        if (strcmp(*names, algorithm) == 0)
            return true;
    return false;
}

// All algorithms of a back-end over all collectives, "default" first.
static inline int all_algorithms(const ptb_comm_ops *ops, const char **names)
{
    int count = 0;
    names[count++] = "default";
    for (int kind = 0; kind < PTB_COLL_COUNT; kind++)
        for (const char *const *of = ops->algorithms((ptb_coll_kind)kind); of && *of; of++) {
            int i = 0;
            while (i < count && strcmp(names[i], *of) != 0)
                i++;
            if (i == count && count == ALGORITHMS_MAX) {
                fprintf(stderr, "%s has more than %d algorithms: raise ALGORITHMS_MAX\n", ops->plugin.name,
                        count);
                abort();
            }
            if (i == count)
                names[count++] = *of;
        }
    return count;
}

// ---- the sweeps

static inline bool has_in_place(ptb_coll_kind kind)
{
    return kind != PTB_BARRIER;
}

static inline bool has_root(ptb_coll_kind kind)
{
    return kind == PTB_BROADCAST || kind == PTB_REDUCE || kind == PTB_GATHER || kind == PTB_SCATTER;
}

// Everything for f32 and i32 (operation: sum; roots: last rank for odd levels).
static inline ptb_status sweep_full(bench_seat *seat, const subject *s)
{
    static const ptb_dtype types[] = {PTB_F32, PTB_I32};
    int n = seat->world->size;
    for (int t = 0; t < FULL_TYPES; t++)
        for (int kind = 0; kind < PTB_COLL_COUNT; kind++) {
            if (!has_algorithm(s->comm->ops, (ptb_coll_kind)kind, s->algorithm))
                continue;
            for (int level = 0; level < COUNT_LEVELS; level++)
                for (int place = 0; place < (has_in_place((ptb_coll_kind)kind) ? 2 : 1); place++) {
                    call_case c = {
                        .kind = (ptb_coll_kind)kind, .count = count_level(level, n), .type = types[t]};
                    c.in_place = place == 1;
                    c.root = has_root(c.kind) && level % 2 ? n - 1 : 0;
                    PTB_TRY(run_case(seat, s, &c));
                }
        }
    return PTB_OK;
}

// Pairwise: a row chooses a level of each factor; rows are drawn until every pair of levels of two factors
// stands in one of them. Greedy: of some random candidates the one that covers most new pairs (after Cohen et
// al., "The AETG system", IEEE TSE 23(7), 1997, section 2).
enum {
    F_ALGORITHM,
    F_RANKS,
    F_COUNT,
    F_TYPE,
    F_OP,
    F_PLACE,
    F_ROOT,
    FACTORS,
    LEVELS_MAX = 16,
    ROWS_MAX = 400
};
typedef struct {
    unsigned char level[FACTORS];
} row;
typedef struct {
    row rows[ROWS_MAX];
    int count;
    int left; // pairs not covered; 0 when complete
} pairwise;
typedef bool pair_table[FACTORS][FACTORS][LEVELS_MAX][LEVELS_MAX];

static inline int new_pairs(pair_table covered, const row *r, bool mark)
{
    int gain = 0;
    for (int a = 0; a < FACTORS; a++)
        for (int b = a + 1; b < FACTORS; b++) {
            bool *seen = &covered[a][b][r->level[a]][r->level[b]];
            gain += !*seen;
            *seen |= mark;
        }
    return gain;
}

// Turns a random row into one that holds some pair that is still missing.
static inline void aim(pair_table covered, const int *levels, uint64_t dice, row *r)
{
    int skip = (int)(dice % 7);
    for (int a = 0; a < FACTORS; a++)
        for (int b = a + 1; b < FACTORS; b++)
            for (int i = 0; i < levels[a]; i++)
                for (int j = 0; j < levels[b]; j++)
                    if (!covered[a][b][i][j]) {
                        r->level[a] = (unsigned char)i;
                        r->level[b] = (unsigned char)j;
                        if (skip-- <= 0)
                            return;
                    }
}

static inline void pairwise_make(const int *levels, uint64_t seed, pairwise *out)
{
    static _Thread_local pair_table covered;
    memset(covered, 0, sizeof covered);
    out->count = out->left = 0;
    for (int a = 0; a < FACTORS; a++)
        for (int b = a + 1; b < FACTORS; b++)
            out->left += levels[a] * levels[b];
    for (uint64_t draw = 0; out->left > 0 && out->count < ROWS_MAX; out->count++) {
        row best = {{0}};
        int best_gain = -1;
        for (int candidate = 0; candidate < 12; candidate++, draw++) {
            row r;
            for (int f = 0; f < FACTORS; f++)
                r.level[f] = (unsigned char)(ptb_random_u64(seed, draw, (uint64_t)f) % (uint64_t)levels[f]);
            aim(covered, levels, ptb_random_u64(seed, draw, FACTORS), &r);
            int gain = new_pairs(covered, &r, false);
            if (gain > best_gain) {
                best_gain = gain;
                best = r;
            }
        }
        out->left -= new_pairs(covered, &best, true);
        out->rows[out->count] = best;
    }
}

// The rows of `kind` with this seat's number of ranks and this algorithm. `ranks_max`: levels of the ranks
// factor.
static inline ptb_status sweep_pairs_of(bench_seat *seat, const subject *s, ptb_coll_kind kind, int ranks_max)
{
    const char *names[ALGORITHMS_MAX];
    int all = all_algorithms(s->comm->ops, names), usable = 0, mine = -1;
    for (int a = 0; a < all; a++)
        if (has_algorithm(s->comm->ops, kind, names[a])) {
            if (strcmp(names[a], s->algorithm) == 0)
                mine = usable;
            usable++;
        }
    if (mine < 0)
        return PTB_OK;
    int levels[FACTORS] = {usable,
                           ranks_max,
                           COUNT_LEVELS,
                           PTB_DTYPE_COUNT,
                           is_reduction(kind) ? PTB_REDOP_COUNT : 1,
                           has_in_place(kind) ? 2 : 1,
                           has_root(kind) ? 2 : 1};
    static _Thread_local pairwise table;
    if (usable <= LEVELS_MAX)
        pairwise_make(levels, (uint64_t)kind + 1, &table);
    if (usable > LEVELS_MAX || table.left > 0) {
        fprintf(stderr, "pairwise: %d pairs are not covered\n", table.left);
        return PTB_INTERNAL;
    }
    int n = seat->world->size;
    for (int i = 0; i < table.count; i++) {
        const unsigned char *level = table.rows[i].level;
        if (level[F_ALGORITHM] != mine || level[F_RANKS] != n - 1)
            continue;
        call_case c = {.kind = kind, .type = (ptb_dtype)level[F_TYPE], .op = (ptb_redop)level[F_OP]};
        c.count = count_level(level[F_COUNT], n);
        c.in_place = level[F_PLACE] == 1;
        c.root = level[F_ROOT] ? n - 1 : 0;
        PTB_TRY(run_case(seat, s, &c));
    }
    return PTB_OK;
}

static inline ptb_status sweep_pairs(bench_seat *seat, const subject *s, int ranks_max)
{
    for (int kind = 0; kind < PTB_COLL_COUNT; kind++)
        PTB_TRY(sweep_pairs_of(seat, s, (ptb_coll_kind)kind, ranks_max));
    return PTB_OK;
}

// Every rank sends to the next and receives from the one before, in one group, with its own check.
static inline ptb_status sweep_ring_shift(bench_seat *seat, const subject *s)
{
    int n = seat->world->size, me = seat->world->rank, next = (me + 1) % n, before = (me + n - 1) % n;
    for (int level = 0; level < COUNT_LEVELS && n > 1; level++) {
        call_case c = {.kind = PTB_ALL_TO_ALL_V, .count = count_level(level, n), .type = PTB_I32};
        size_t bytes = c.count * 4;
        reference_build_moved(&seat->ref, c.type);
        char *send = (char *)s->memory[0] + GUARD, *recv = (char *)s->memory[1] + GUARD;
        char *got = seat->mirror[1] + GUARD;
        memcpy(seat->mirror[0], seat->ref.moved[c.type][me], bytes);
        memset(seat->mirror[1], POISON_BYTE, bytes + 2 * GUARD);
        PTB_TRY(ptb_stream_copy(seat->stream, send, seat->mirror[0], bytes));
        PTB_TRY(ptb_stream_copy(seat->stream, s->memory[1], seat->mirror[1], bytes + 2 * GUARD));
        PTB_TRY(s->comm->ops->group_begin(s->comm));
        PTB_TRY(s->comm->ops->send(s->comm, send, c.count, c.type, next, seat->stream));
        PTB_TRY(s->comm->ops->recv(s->comm, recv, c.count, c.type, before, seat->stream));
        PTB_TRY(s->comm->ops->group_end(s->comm, seat->stream));
        PTB_TRY(ptb_stream_copy(seat->stream, seat->mirror[1], s->memory[1], bytes + 2 * GUARD));
        PTB_TRY(ptb_stream_sync(seat->stream));
        compare(seat, s, &c, "ring shift element", seat->ref.moved[c.type][before], got, c.count);
        compare_poison(seat, s, &c, "ring shift byte past receive", got + bytes, GUARD);
        seat->seen->checked++;
    }
    return PTB_OK;
}

// Everything for one back-end in a world of n ranks.
static inline ptb_status sweep_backend(bench_seat *seat, const char *name, int ranks_max)
{
    const ptb_comm_ops *ops = (const ptb_comm_ops *)(const void *)ptb_registry_need(PTB_KIND_COMM, name);
    if (!ops)
        return PTB_USAGE;
    const char *algorithms[ALGORITHMS_MAX];
    int count = all_algorithms(ops, algorithms);
    ptb_status status = PTB_OK;
    for (int a = 0; a < count && status == PTB_OK; a++) {
        subject s;
        status = subject_open(&s, name, algorithms[a], seat->world);
        if (status == PTB_UNSUPPORTED) {
            note_skip(seat->seen, algorithms[a]);
            status = PTB_OK;
            continue;
        }
        if (status == PTB_OK)
            status = sweep_full(seat, &s);
        if (status == PTB_OK)
            status = sweep_pairs(seat, &s, ranks_max);
        if (status == PTB_OK && a == 0)
            status = sweep_ring_shift(seat, &s);
        if (s.comm)
            subject_close(&s);
    }
    return status;
}

#endif
