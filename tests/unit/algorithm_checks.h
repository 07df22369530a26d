// A small conformance check of the algorithms of `host` and `local`: every collective of an algorithm x
// counts x f32/i32 x in/out of place on one world. Used between threads (tests/unit/test_algorithms.c) and
// between processes (tests/mpi/helper_host.c).
#ifndef PTB_TESTS_ALGORITHM_CHECKS_H
#define PTB_TESTS_ALGORITHM_CHECKS_H

#include "collectives/algorithm.h"
#include "collectives/collective.h"
#include "core/log.h"

#include <stdlib.h>

enum { LARGEST = 65536 + 3, GUARD = 64, ARENA = (LARGEST + 2 * GUARD) * 4, MAX_RANKS = 8 };

typedef struct {
    ptb_world *world;
    ptb_device *device;
    ptb_stream *stream;
    ptb_comm *comm;
    unsigned char *memory[2]; // send, receive
    bool private;
    size_t largest, cases, wrong;
} bed;

static const ptb_collective *collective_of(ptb_coll_kind kind)
{
    for (size_t i = 0; i < ptb_registry_count(PTB_KIND_COLLECTIVE); i++) {
        const ptb_collective *c =
            (const ptb_collective *)(const void *)ptb_registry_at(PTB_KIND_COLLECTIVE, i);
        if (c->kind == kind)
            return c;
    }
    return NULL;
}

typedef struct {
    const ptb_collective *what;
    size_t count;
    ptb_dtype type;
    ptb_redop op;
    int root;
    bool in_place;
} point;

static void check_point(bed *b, const point *p, const ptb_coll_shape *shape, const ptb_pattern *pattern,
                        const unsigned char *recv)
{
    int n = b->world->size, rank = b->world->rank;
    size_t size = ptb_dtype_size(p->type);
    ptb_check check = {0};
    ptb_expect expect;
    for (size_t i = 0; p->what->expect(p->count, n, rank, p->root, i, &expect); i++)
        ptb_pattern_check(pattern, &expect, recv, &check);
    // Nothing beyond the buffers may be touched.
    ptb_pattern bytes;
    ptb_pattern_init(&bytes, 0, PTB_U8, PTB_SUM, 1);
    const ptb_expect guard = {.kind = PTB_EXPECT_POISON, .count = GUARD};
    size_t elements = p->in_place ? shape->in_place_count : shape->recv_count;
    const unsigned char *start = p->in_place ? b->memory[0] : b->memory[1];
    ptb_pattern_check(&bytes, &guard, start, &check);
    ptb_pattern_check(&bytes, &guard, start + GUARD + elements * size, &check);
    if (!p->in_place && shape->send_count) {
        ptb_expect input = {.kind = p->what->reduces ? PTB_EXPECT_INPUT : PTB_EXPECT_COPY,
                            .count = shape->send_count,
                            .source_rank = rank};
        ptb_pattern_check(pattern, &input, b->memory[0] + GUARD, &check);
    }
    b->cases++;
    if (check.wrong && b->wrong++ < 3)
        ptb_error("%s %s count %zu %s %s root %d %s %s: element %llu: wanted %g, got %g",
                  b->comm->ops->plugin.name, p->what->plugin.name, p->count, ptb_dtype_name(p->type),
                  ptb_redop_name(p->op), p->root, p->in_place ? "in place" : "out of place",
                  b->private ? "private" : "symmetric", (unsigned long long)check.first_wrong, check.wanted,
                  check.got);
}

static ptb_status run_point(bed *b, const point *p)
{
    int n = b->world->size, rank = b->world->rank;
    size_t size = ptb_dtype_size(p->type), counts[4][MAX_RANKS];
    ptb_coll_shape shape;
    p->what->shape(p->count, n, rank, p->root, &shape);
    ptb_coll call = {
        .kind = p->what->kind, .count = p->count, .dtype = p->type, .op = p->op, .root = p->root};
    unsigned char *send = b->memory[0] + GUARD, *recv = b->memory[1] + GUARD;
    if (p->in_place) {
        recv = send + shape.in_place_recv * size;
        send += shape.in_place_send * size;
    }
    call.send = send;
    call.recv = recv;
    if (p->what->counts) {
        p->what->counts(p->count, n, rank, counts[0], counts[1], counts[2], counts[3]);
        call.send_counts = counts[0];
        call.send_first = counts[1];
        call.recv_counts = counts[2];
        call.recv_first = counts[3];
    }
    char reason[PTB_REASON_BYTES];
    if (!b->comm->ops->supports(b->comm, &call, p->in_place, reason))
        return PTB_OK;
    ptb_pattern pattern;
    ptb_pattern_init(&pattern, p->count + (size_t)p->root, p->type, p->op, n);
    size_t poisoned = 2 * GUARD + (p->count + MAX_RANKS) * size;
    ptb_pattern_poison(b->memory[0], poisoned);
    ptb_pattern_poison(b->memory[1], poisoned);
    ptb_pattern_fill(&pattern, p->what->reduces, rank, 0, send, shape.send_count);
    PTB_TRY(ptb_comm_collective(b->comm, &call, b->stream));
    PTB_TRY(ptb_stream_sync(b->stream));
    check_point(b, p, &shape, &pattern, recv);
    return PTB_OK;
}

static ptb_status run_collective(bed *b, const ptb_collective *what)
{
    size_t n = (size_t)b->world->size;
    const size_t counts[] = {0, 1, n - 1, n, n + 1, 300, 7919, LARGEST};
    static const ptb_redop ops[] = {PTB_SUM, PTB_AVG, PTB_MAX, PTB_PROD};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        for (int variant = 0; variant < 4; variant++) {
            point p = {.what = what,
                       .count = counts[i],
                       .type = variant & 1 ? PTB_I32 : PTB_F32,
                       .op = ops[(i + (size_t)variant) % 4],
                       .root = what->rooted ? (int)((i + (size_t)variant) % n) : 0,
                       .in_place = variant & 2};
            if ((p.in_place && !what->in_place) || p.count > b->largest)
                continue;
            PTB_TRY(run_point(b, &p));
        }
    return PTB_OK;
}

typedef struct {
    const char *comm, *algorithm, *transport;
    bool private; // buffers that are not in symmetric memory
    bool worker;  // calls are enqueued on a worker stream
    uint64_t segment_bytes;
    size_t largest; // counts above this are left out
} algorithm_setup;

static ptb_status check_algorithm(ptb_world *world, const algorithm_setup *setup)
{
    bool private = setup->private;
    bed b = {.world = world, .private = private, .largest = setup->largest};
    ptb_comm_config config = {.algorithm = setup->algorithm,
                              .transport = setup->transport,
                              .timeout_s = 60,
                              .segment_bytes = setup->segment_bytes};
    PTB_TRY(ptb_device_open("host", 0, &b.device));
    PTB_TRY(ptb_stream_new(b.device, setup->worker ? PTB_STREAM_WORKER : PTB_STREAM_CALLER, 0, &b.stream));
    PTB_TRY(ptb_comm_open(setup->comm, world, &config, &b.comm));
    for (int i = 0; i < 2; i++)
        if (private)
            b.memory[i] = malloc(ARENA);
        else
            PTB_TRY(b.comm->ops->alloc(b.comm, ARENA, (void **)&b.memory[i]));
    ptb_status status = PTB_OK;
    for (int k = 0; status == PTB_OK && k < PTB_COLL_COUNT; k++)
        status = run_collective(&b, collective_of((ptb_coll_kind)k));
    for (int i = 0; i < 2; i++)
        if (private)
            free(b.memory[i]);
        else
            b.comm->ops->free(b.comm, b.memory[i]);
    ptb_comm_close(b.comm);
    ptb_stream_free(b.stream);
    ptb_device_close(b.device);
    if (status == PTB_OK && b.wrong)
        ptb_error("algorithm %s, %d ranks: %zu of %zu cases wrong", setup->algorithm, world->size, b.wrong,
                  b.cases);
    return status != PTB_OK ? status : b.wrong || !b.cases ? PTB_WRONG : PTB_OK;
}

#endif
