// Every algorithm x collective x 1..8 ranks x counts x f32/i32 x in/out of place between threads (`local`),
// in symmetric and in private memory; sends and receives; ranks that disagree.
#include "collectives/world.h"
#include "tests/unit/algorithm_checks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

// Where every access is checked, the longest vectors are left to conformance.local.
#ifdef PTB_SANITIZED
enum { LONGEST = 7919 };
#else
enum { LONGEST = LARGEST };
#endif

static ptb_status all_variants(ptb_world *world, void *name)
{
    algorithm_setup setup = {.comm = "local", .algorithm = name, .largest = LONGEST};
    PTB_TRY(check_algorithm(world, &setup));
    setup.private = setup.worker = true;
    setup.segment_bytes = 4096;
    return check_algorithm(world, &setup);
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
