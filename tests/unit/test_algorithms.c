// Every algorithm x collective x 1..8 ranks x counts x f32/i32 x in/out of place between threads (`local`),
// in symmetric and in private memory; sends and receives; ranks that disagree.
#include "collectives/algorithm.h"
#include "collectives/collective.h"
#include "collectives/world.h"
#include "core/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LARGEST = 65536 + 3, GUARD = 64, ARENA = (LARGEST + 2 * GUARD) * 4, MAX_RANKS = 8 };

typedef struct {
    ptb_world *world;
    ptb_device *device;
    ptb_stream *stream;
    ptb_comm *comm;
    unsigned char *memory[2]; // send, receive
    bool private;
    size_t cases, wrong;
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
    const size_t counts[] = {0, 1, n - 1, n, n + 1, 7919, LARGEST};
    static const ptb_redop ops[] = {PTB_SUM, PTB_AVG, PTB_MAX, PTB_PROD};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        for (int variant = 0; variant < 4; variant++) {
            point p = {.what = what,
                       .count = counts[i],
                       .type = variant & 1 ? PTB_I32 : PTB_F32,
                       .op = ops[(i + (size_t)variant) % 4],
                       .root = what->rooted ? (int)((i + (size_t)variant) % n) : 0,
                       .in_place = variant & 2};
            if (p.in_place && !what->in_place)
                continue;
            PTB_TRY(run_point(b, &p));
        }
    return PTB_OK;
}

static ptb_status run_algorithm(ptb_world *world, const char *name, bool private, bool worker)
{
    bed b = {.world = world, .private = private};
    ptb_comm_config config = {.algorithm = name, .timeout_s = 60, .segment_bytes = worker ? 4096 : 0};
    PTB_TRY(ptb_device_open("host", 0, &b.device));
    PTB_TRY(ptb_stream_new(b.device, worker ? PTB_STREAM_WORKER : PTB_STREAM_CALLER, 0, &b.stream));
    PTB_TRY(ptb_comm_open("local", world, &config, &b.comm));
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
        ptb_error("algorithm %s, %d ranks: %zu of %zu cases wrong", name, world->size, b.wrong, b.cases);
    return status != PTB_OK ? status : b.wrong || !b.cases ? PTB_WRONG : PTB_OK;
}

static ptb_status all_variants(ptb_world *world, void *name)
{
    PTB_TRY(run_algorithm(world, name, false, false));
    return run_algorithm(world, name, true, true);
}

static void conformance(void **state)
{
    for (int ranks = 1; ranks <= MAX_RANKS; ranks++)
        assert_int_equal(ptb_world_run_local(ranks, NULL, all_variants, *state), PTB_OK);
}

// Every rank sends to every rank, itself included, in one group on a worker stream; twice, so that a batch is
// used again. Sizes from empty to many slots.
static ptb_status exchange(ptb_world *world, void *arg)
{
    (void)arg;
    enum { EACH = 70001 };
    int n = world->size;
    ptb_device *device;
    ptb_stream *stream;
    ptb_comm *comm;
    ptb_comm_config config = {.timeout_s = 60};
    PTB_TRY(ptb_device_open("host", 0, &device));
    PTB_TRY(ptb_stream_new(device, PTB_STREAM_WORKER, 0, &stream));
    PTB_TRY(ptb_comm_open("local", world, &config, &comm));
    int *send = calloc((size_t)n * EACH, sizeof *send), *recv = calloc((size_t)n * EACH, sizeof *recv);
    ptb_status status = PTB_OK;
    static const size_t sizes[] = {0, 1, 25, 27, EACH};
    for (size_t s = 0; status == PTB_OK && s < sizeof sizes / sizeof *sizes; s++) {
        for (int p = 0; p < n; p++)
            for (size_t i = 0; i < EACH; i++) {
                send[(size_t)p * EACH + i] = (int)i * 64 + world->rank * 8 + p;
                recv[(size_t)p * EACH + i] = -1;
            }
        status = comm->ops->group_begin(comm);
        for (int p = 0; status == PTB_OK && p < n; p++) {
            status = comm->ops->send(comm, send + (size_t)p * EACH, sizes[s], PTB_I32, p, stream);
            if (status == PTB_OK)
                status = comm->ops->recv(comm, recv + (size_t)p * EACH, sizes[s], PTB_I32, p, stream);
        }
        if (status == PTB_OK)
            status = comm->ops->group_end(comm, stream);
        if (status == PTB_OK)
            status = ptb_stream_sync(stream);
        for (int p = 0; status == PTB_OK && p < n; p++)
            for (size_t i = 0; i < EACH; i++) {
                int wanted = i < sizes[s] ? (int)i * 64 + p * 8 + world->rank : -1;
                if (recv[(size_t)p * EACH + i] != wanted)
                    status = PTB_WRONG;
            }
    }
    free(send);
    free(recv);
    ptb_comm_close(comm);
    ptb_stream_free(stream);
    ptb_device_close(device);
    return status;
}

static void point_to_point(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 5; ranks += 2)
        assert_int_equal(ptb_world_run_local(ranks, NULL, exchange, NULL), PTB_OK);
}

typedef struct {
    const char *algorithm;
    size_t count[2]; // of each rank
    double timeout_s;
    ptb_status wanted;
} quarrel;

// The last rank calls something else than the others, or nothing at all (count 0).
static ptb_status disagree(ptb_world *world, void *arg)
{
    const quarrel *q = arg;
    ptb_device *device;
    ptb_stream *stream;
    ptb_comm *comm;
    ptb_comm_config config = {.algorithm = q->algorithm, .timeout_s = q->timeout_s};
    size_t count = q->count[world->rank == world->size - 1];
    float *send = calloc(q->count[0] + q->count[1], 4), *recv = calloc(q->count[0] + q->count[1], 4);
    PTB_TRY(ptb_device_open("host", 0, &device));
    PTB_TRY(ptb_stream_new(device, PTB_STREAM_CALLER, 0, &stream));
    PTB_TRY(ptb_comm_open("local", world, &config, &comm));
    ptb_coll call = {.kind = PTB_ALL_REDUCE, .send = send, .recv = recv, .count = count, .dtype = PTB_F32};
    ptb_status status = ptb_comm_collective(comm, &call, stream);
    bool good = count == 0 ? status == PTB_OK : status == PTB_USAGE || status == q->wanted;
    // Broken for good, and it says so at once.
    if (count && ptb_comm_collective(comm, &call, stream) != PTB_LOST)
        good = false;
    ptb_world_barrier(world);
    ptb_comm_close(comm);
    ptb_stream_free(stream);
    ptb_device_close(device);
    free(send);
    free(recv);
    return good ? PTB_OK : PTB_WRONG;
}

static void disagreement(void **state)
{
    (void)state;
    quarrel quarrels[] = {{"direct", {100, 101}, 20, PTB_LOST},
                          {"direct", {100000, 100001}, 20, PTB_LOST},
                          {"ring", {50, 100}, 20, PTB_LOST},
                          {"direct", {100, 0}, 0.3, PTB_LOST},
                          {"ring", {100, 0}, 0.3, PTB_LOST}};
    ptb_log_set_level((ptb_log_level)-1); // what is logged here is meant to be
    for (size_t i = 0; i < sizeof quarrels / sizeof *quarrels; i++)
        assert_int_equal(ptb_world_run_local(3, NULL, disagree, &quarrels[i]), PTB_OK);
    ptb_log_set_level(PTB_LOG_INFO);
}

int main(void)
{
    struct CMUnitTest tests[40];
    size_t count = 0;
    memset(tests, 0, sizeof tests);
    for (size_t i = 0; i < ptb_registry_count(PTB_KIND_ALGORITHM); i++) {
        const char *name = ptb_registry_at(PTB_KIND_ALGORITHM, i)->name;
        tests[count++] = (struct CMUnitTest){name, conformance, NULL, NULL, (void *)(uintptr_t)name};
    }
    tests[count++] = (struct CMUnitTest){"auto", conformance, NULL, NULL, (void *)(uintptr_t) "auto"};
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(point_to_point);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(disagreement);
    return _cmocka_run_group_tests("algorithms", tests, count, NULL, NULL);
}
