// Point to point. Patterns (S = bytes of one message):
//   one-way    rank 0 sends a stream of messages to rank 1; after each batch (the runner's iterations per
//   sample)
//              rank 1 acknowledges with one byte, so the time of a batch holds one acknowledgement
//   both-ways  ranks 0 and 1 send to each other at the same time, as one group
//   ring       every rank sends to the next and receives from the one before, as one group
//   ping-pong  rank 0 sends, rank 1 sends back; one operation is half of the round trip
// In the first, second and last the other ranks are idle; --split div:2 makes each pair of ranks work.
// To add a pattern, add a loop, its shape and expectation, and a row in `patterns`.
#include "collectives/coll_run.h"
#include "core/log.h"

#include <stdlib.h>
#include <string.h>

// ---- what each rank sends and receives

static void shape_one_way(size_t count, int n, int rank, int root, ptb_coll_shape *shape)
{
    (void)n, (void)root;
    *shape = (ptb_coll_shape){.send_count = rank == 0 ? count : 0, .recv_count = rank == 1 ? count : 0};
}

static bool expect_one_way(size_t count, int n, int rank, int root, size_t i, ptb_expect *expect)
{
    (void)n, (void)root;
    *expect = (ptb_expect){.kind = PTB_EXPECT_COPY, .count = count, .source_rank = 0};
    return i == 0 && rank == 1;
}

static void shape_pair(size_t count, int n, int rank, int root, ptb_coll_shape *shape)
{
    (void)n, (void)root;
    *shape = (ptb_coll_shape){.send_count = rank < 2 ? count : 0, .recv_count = rank < 2 ? count : 0};
}

static bool expect_pair(size_t count, int n, int rank, int root, size_t i, ptb_expect *expect)
{
    (void)n, (void)root;
    *expect = (ptb_expect){.kind = PTB_EXPECT_COPY, .count = count, .source_rank = 1 - rank};
    return i == 0 && rank < 2;
}

static void shape_ring(size_t count, int n, int rank, int root, ptb_coll_shape *shape)
{
    (void)n, (void)rank, (void)root;
    *shape = (ptb_coll_shape){.send_count = count, .recv_count = count};
}

static bool expect_ring(size_t count, int n, int rank, int root, size_t i, ptb_expect *expect)
{
    (void)root;
    *expect = (ptb_expect){.kind = PTB_EXPECT_COPY, .count = count, .source_rank = (rank + n - 1) % n};
    return i == 0;
}

// ---- the timed loops

static ptb_status send_all(ptb_bench_run *run, int peer)
{
    for (uint64_t m = 0; m < run->aggregate; m++)
        PTB_TRY(run->comm->ops->send(run->comm, run->send, run->point->count, run->point->type, peer,
                                     run->stream));
    return PTB_OK;
}

static ptb_status recv_all(ptb_bench_run *run, int peer)
{
    for (uint64_t m = 0; m < run->aggregate; m++)
        PTB_TRY(run->comm->ops->recv(run->comm, run->recv, run->point->count, run->point->type, peer,
                                     run->stream));
    return PTB_OK;
}

static ptb_status loop_one_way(ptb_bench_run *run, uint64_t n)
{
    ptb_comm *comm = run->comm;
    unsigned char *acknowledgement = run->place->mark;
    if (comm->rank == 0) {
        for (uint64_t i = 0; i < n; i++)
            PTB_TRY(send_all(run, 1));
        PTB_TRY(comm->ops->recv(comm, acknowledgement, 1, PTB_U8, 1, run->stream));
    } else if (comm->rank == 1) {
        for (uint64_t i = 0; i < n; i++)
            PTB_TRY(recv_all(run, 0));
        PTB_TRY(comm->ops->send(comm, acknowledgement, 1, PTB_U8, 0, run->stream));
    }
    return ptb_stream_sync(run->stream);
}

static ptb_status exchange(ptb_bench_run *run, uint64_t n, int to, int from)
{
    ptb_comm *comm = run->comm;
    for (uint64_t i = 0; i < n; i++) {
        PTB_TRY(comm->ops->group_begin(comm));
        PTB_TRY(send_all(run, to));
        PTB_TRY(recv_all(run, from));
        PTB_TRY(comm->ops->group_end(comm, run->stream));
    }
    return ptb_stream_sync(run->stream);
}

static ptb_status loop_both_ways(ptb_bench_run *run, uint64_t n)
{
    int rank = run->comm->rank;
    return rank < 2 ? exchange(run, n, 1 - rank, 1 - rank) : PTB_OK;
}

static ptb_status loop_ring(ptb_bench_run *run, uint64_t n)
{
    int rank = run->comm->rank, size = run->comm->size;
    return exchange(run, n, (rank + 1) % size, (rank + size - 1) % size);
}

static ptb_status loop_ping_pong(ptb_bench_run *run, uint64_t n)
{
    int rank = run->comm->rank;
    for (uint64_t i = 0; i < n && rank == 0; i++) {
        PTB_TRY(send_all(run, 1));
        PTB_TRY(recv_all(run, 1));
    }
    for (uint64_t i = 0; i < n && rank == 1; i++) {
        PTB_TRY(recv_all(run, 0));
        PTB_TRY(send_all(run, 0));
    }
    return ptb_stream_sync(run->stream);
}

// ---- the patterns

#define PATTERN(name_, shape_, expect_)                                                                      \
    {                                                                                                        \
        .plugin = {name_, "point to point"}, .kind = PTB_COLL_COUNT, .has_data = true, .shape = (shape_),    \
        .bus_factor = ptb_coll_factor_one, .size_bytes = ptb_coll_size_bytes, .expect = (expect_)            \
    }

static const ptb_coll_subject patterns[] = {
    {.collective = PATTERN("one-way", shape_one_way, expect_one_way),
     .loop = loop_one_way,
     .convention = "S / t; rank 0 to rank 1, one-byte acknowledgement a batch; t = median / messages",
     .trips = 1},
    {.collective = PATTERN("both-ways", shape_pair, expect_pair),
     .loop = loop_both_ways,
     .convention = "S / t of one direction; ranks 0 and 1 send and receive at once; t = median",
     .trips = 1},
    {.collective = PATTERN("ring", shape_ring, expect_ring),
     .loop = loop_ring,
     .convention = "S / t of one link; every rank sends to the next at once; t = median",
     .trips = 1},
    {.collective = PATTERN("ping-pong", shape_pair, expect_pair),
     .loop = loop_ping_pong,
     .convention = "S / t, t = half of the median round trip of ranks 0 and 1",
     .trips = 2,
     .latency = true},
};
enum { PATTERNS = sizeof patterns / sizeof patterns[0] };
static const char *const pattern_names[] = {"one-way", "both-ways", "ring", "ping-pong", NULL};

static const ptb_opt options[] = {
    {.name = "pattern",
     .type = PTB_OPT_LIST,
     PTB_COLL_ROW(pattern),
     .def = "one-way,both-ways,ring,ping-pong",
     .choices = pattern_names,
     .help = "Who sends to whom: one-way (rank 0 to 1), both-ways (0 and 1 at once), ring (each rank to the "
             "next), ping-pong (0 to 1 and back, halved)"},
    PTB_COLL_OPTS_DATA,
    PTB_COLL_OPTS_COMMON,
};

// The chosen patterns, in the order asked for.
static ptb_status choose(bool speaks, const char *text, ptb_coll_subject *chosen, const char **names,
                         int *count)
{
    char *storage = NULL;
    const char *items[PATTERNS];
    size_t n = ptb_text_split(text ? text : "", ',', &storage, items, PATTERNS);
    size_t pieces = ptb_text_pieces(text ? text : "", ',');
    ptb_status status = PTB_OK;
    *count = 0;
    if (pieces > PATTERNS) {
        if (speaks)
            ptb_error("--pattern: the list has %zu entries; there are %d patterns, each measured once",
                      pieces, (int)PATTERNS);
        status = PTB_USAGE;
    }
    for (size_t i = 0; i < n && status == PTB_OK; i++) {
        int p = 0;
        while (p < PATTERNS && strcmp(pattern_names[p], items[i]) != 0)
            p++;
        if (p == PATTERNS) {
            char near[128];
            ptb_text_nearest(items[i], pattern_names, PATTERNS, near, sizeof near);
            if (speaks)
                ptb_error("--pattern: there is no pattern '%s'; did you mean %s?", items[i], near);
            status = PTB_USAGE;
        } else {
            names[*count] = pattern_names[p];
            chosen[(*count)++] = patterns[p];
        }
    }
    free(storage);
    return status;
}

static ptb_status open_bench(const ptb_bench_env *env, const void *config, ptb_bench_run **out)
{
    const ptb_coll_config *c = config;
    const ptb_opt_set set = PTB_COLL_OPT_SET(options, config);
    const char *names[PATTERNS];
    int count;
    ptb_coll_subject *chosen = calloc(PATTERNS, sizeof *chosen);
    if (!chosen) {
        ptb_error("no memory for the patterns of sendrecv");
        return PTB_NO_MEMORY;
    }
    ptb_bench_run *run;
    ptb_status status = choose(env->world->rank == 0, c->pattern, chosen, names, &count);
    if (status == PTB_OK)
        status = ptb_coll_run_new(chosen, names, count, env, &set, &run);
    if (status != PTB_OK) {
        free(chosen);
        return status;
    }
    run->own_subject = chosen;
    *out = run;
    return PTB_OK;
}

static const ptb_bench bench = PTB_COLL_BENCH_INIT(
    "sendrecv", "point to point: one way, both ways, ring, ping-pong", options, open_bench);
PTB_REGISTER(PTB_KIND_BENCH, bench);
