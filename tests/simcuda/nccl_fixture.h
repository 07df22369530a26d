// What the programs that try the communicator nccl share: the seat of a rank, and running one of several
// scenarios on MPI processes. Prints what was wrong; exit 1 when anything was.
#ifndef PTB_TESTS_SIMCUDA_NCCL_FIXTURE_H
#define PTB_TESTS_SIMCUDA_NCCL_FIXTURE_H

#include "collectives/comm_nccl.h"
#include "collectives/world.h"
#include "core/clock.h"
#include "profiler/nccl_profiler.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    ptb_world *world;
    ptb_device *device;
    ptb_stream *stream;
    float *data[2]; // device memory
    float *host;    // that the device can reach too
    int wrong;
} seat;
enum {
    COUNT = 4096,
    PATIENCE_S = 60, // for what is to come to its end, however slow the machine is
};

// The simulated NCCL's (nccl.hpp).
void sim_nccl_let_join(void);
int sim_nccl_made(void);
int sim_nccl_begun(void);
int sim_nccl_untold(void);

#define EXPECT(seat_, condition, ...)                                                                        \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            printf("rank %d, %s:%d: %s: ", (seat_)->world->rank, __FILE__, __LINE__, #condition);            \
            printf(__VA_ARGS__);                                                                             \
            printf("\n");                                                                                    \
            (seat_)->wrong++;                                                                                \
        }                                                                                                    \
    } while (0)

static inline int64_t patience_ends(void)
{
    return ptb_clock_ns() + PATIENCE_S * (int64_t)1000000000;
}

static inline ptb_status open_comm(seat *s, const ptb_comm_config *config, ptb_comm **comm)
{
    ptb_status status = ptb_comm_open("nccl", s->world, config, comm);
    EXPECT(s, status == PTB_OK, "%s", ptb_status_name(status));
    return status;
}

static inline ptb_coll all_reduce(seat *s, size_t count)
{
    return (ptb_coll){.kind = PTB_ALL_REDUCE,
                      .send = s->data[0],
                      .recv = s->data[1],
                      .count = count,
                      .dtype = PTB_F32,
                      .op = PTB_SUM};
}

// Every rank's k-th element is rank + 1: the sum is n (n + 1) / 2.
static inline ptb_status fill(seat *s)
{
    for (int k = 0; k < COUNT; k++)
        s->host[k] = (float)(s->world->rank + 1);
    PTB_TRY(ptb_stream_copy(s->stream, s->data[0], s->host, COUNT * sizeof(float)));
    return ptb_stream_sync(s->stream);
}

static inline ptb_status run_all_reduce(seat *s, ptb_comm *comm, size_t count)
{
    ptb_coll call = all_reduce(s, count);
    PTB_TRY(ptb_comm_collective(comm, &call, s->stream));
    return ptb_stream_sync(s->stream);
}

static inline void check_sum(seat *s, int n, size_t count)
{
    const float wanted = (float)(n * (n + 1) / 2);
    EXPECT(s, ptb_stream_copy(s->stream, s->host, s->data[1], count * sizeof(float)) == PTB_OK, "copy");
    EXPECT(s, ptb_stream_sync(s->stream) == PTB_OK, "sync");
    for (size_t k = 0; k < count; k++)
        if (s->host[k] != wanted) {
            EXPECT(s, s->host[k] == wanted, "element %zu: %g, not %g", k, s->host[k], wanted);
            return;
        }
}

static inline void check_fact(seat *s, ptb_comm *comm, const char *name, const char *wanted)
{
    ptb_params facts = {.count = 0};
    ptb_coll call = all_reduce(s, COUNT);
    comm->ops->describe(comm, &call, &facts);
    const char *is = ptb_params_get(&facts, name);
    EXPECT(s, wanted ? is && strcmp(is, wanted) == 0 : !is, "fact %s: %s, not %s", name, is ? is : "none",
           wanted ? wanted : "none");
}

// ---- running one

typedef struct {
    const char *name;
    void (*run)(seat *s);
} scenario;

static inline ptb_status take_seat(seat *s)
{
    PTB_TRY(ptb_world_open_mpi(false, &s->world));
    PTB_TRY(ptb_device_open_local("cuda", s->world, true, &s->device));
    PTB_TRY(ptb_stream_new(s->device, PTB_STREAM_CALLER, 0, &s->stream));
    for (int b = 0; b < 2; b++)
        PTB_TRY(ptb_device_alloc(s->device, PTB_MEMORY_COMMUNICATION, COUNT * sizeof(float),
                                 (void **)&s->data[b]));
    PTB_TRY(ptb_device_alloc_host(s->device, COUNT * sizeof(float), (void **)&s->host));
    return fill(s);
}

// Runs the scenario that the command line names, of scenarios[count].
static inline int run_scenarios(int argc, char **argv, const scenario *scenarios, size_t count)
{
    seat s = {.wrong = 0};
    bool found = false;
    if (argc != 2 || take_seat(&s) != PTB_OK)
        return 3;
    for (size_t i = 0; i < count; i++)
        if (strcmp(scenarios[i].name, argv[1]) == 0) {
            scenarios[i].run(&s);
            found = true;
        }
    fflush(stdout);
    ptb_status status = ptb_world_agree(s.world, s.wrong || !found ? PTB_WRONG : PTB_OK);
    if (s.world->rank == 0)
        printf("%s: %s\n", argv[1], !found ? "no such scenario" : status == PTB_OK ? "all right" : "WRONG");
    for (int b = 0; b < 2; b++)
        ptb_device_free(s.device, s.data[b]);
    ptb_device_free_host(s.device, s.host);
    ptb_stream_free(s.stream);
    ptb_device_close(s.device);
    ptb_world_close(s.world);
    return status == PTB_OK ? 0 : 1;
}

#endif
