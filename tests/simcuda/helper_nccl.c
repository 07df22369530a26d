// The communicator nccl over MPI processes on the simulated device: `helper_nccl SCENARIO`, started by
// test_nccl.sh, which sets the faults of PTB_SIM. Prints what was wrong; exit 1 when anything was.
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

static int64_t patience_ends(void)
{
    return ptb_clock_ns() + PATIENCE_S * (int64_t)1000000000;
}

static ptb_status open_comm(seat *s, const ptb_comm_config *config, ptb_comm **comm)
{
    ptb_status status = ptb_comm_open("nccl", s->world, config, comm);
    EXPECT(s, status == PTB_OK, "%s", ptb_status_name(status));
    return status;
}

static ptb_coll all_reduce(seat *s, size_t count)
{
    return (ptb_coll){.kind = PTB_ALL_REDUCE,
                      .send = s->data[0],
                      .recv = s->data[1],
                      .count = count,
                      .dtype = PTB_F32,
                      .op = PTB_SUM};
}

// Every rank's k-th element is rank + 1: the sum is n (n + 1) / 2.
static ptb_status fill(seat *s)
{
    for (int k = 0; k < COUNT; k++)
        s->host[k] = (float)(s->world->rank + 1);
    PTB_TRY(ptb_stream_copy(s->stream, s->data[0], s->host, COUNT * sizeof(float)));
    return ptb_stream_sync(s->stream);
}

static ptb_status run_all_reduce(seat *s, ptb_comm *comm, size_t count)
{
    ptb_coll call = all_reduce(s, count);
    PTB_TRY(ptb_comm_collective(comm, &call, s->stream));
    return ptb_stream_sync(s->stream);
}

static void check_sum(seat *s, int n, size_t count)
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

// ---- what ran

static void check_fact(seat *s, ptb_comm *comm, const char *name, const char *wanted)
{
    ptb_params facts = {.count = 0};
    ptb_coll call = all_reduce(s, COUNT);
    comm->ops->describe(comm, &call, &facts);
    const char *is = ptb_params_get(&facts, name);
    EXPECT(s, wanted ? is && strcmp(is, wanted) == 0 : !is, "fact %s: %s, not %s", name, is ? is : "none",
           wanted ? wanted : "none");
}

static void run_choice(seat *s, const char *algorithm, int channels, const char *ran, const char *protocol,
                       const char *replaced)
{
    ptb_comm_config config = {.algorithm = algorithm, .channels = channels, .timeout_s = PATIENCE_S};
    ptb_comm *comm;
    if (open_comm(s, &config, &comm) != PTB_OK)
        return;
    EXPECT(s, run_all_reduce(s, comm, COUNT) == PTB_OK, "%s", algorithm);
    check_sum(s, s->world->size, COUNT);
    check_fact(s, comm, "algorithm", ran);
    check_fact(s, comm, "protocol", protocol);
    check_fact(s, comm, "replaced", replaced);
    check_fact(s, comm, "call", "ncclAllReduce");
    if (channels) {
        char text[16];
        snprintf(text, sizeof text, "%d", channels);
        check_fact(s, comm, "channels", text);
    }
    ptb_comm_close(comm);
    EXPECT(s, !getenv("NCCL_ALGO") && !getenv("NCCL_PROTO"), "the environment was not put back");
}

static void scenario_choices(seat *s)
{
    run_choice(s, "default", 0, s->world->size > 2 ? "tree" : "ring", "ll128", NULL);
    run_choice(s, "ring", 0, "ring", "ll128", NULL);
    run_choice(s, "ring/simple", 7, "ring/simple", "simple", NULL);
    run_choice(s, "tree/ll", 3, "tree/ll", "ll", NULL);
    run_choice(s, "nvls", 0, "nvls", "simple", NULL);
    run_choice(s, "nvls_tree", 0, "nvls", "simple", "asked nvls_tree, ran nvls/simple");
    run_choice(s, "collnet_chain", 0, "ring", "ll128", "asked collnet_chain, ran ring/ll128");
    ptb_comm *comm;
    ptb_comm_config config = {.algorithm = "rign"};
    EXPECT(s, ptb_comm_open("nccl", s->world, &config, &comm) == PTB_USAGE, "an unknown algorithm");
}

// An algorithm that NCCL refuses for a call makes a skip with NCCL's own words, and leaves the communicator
// usable.
static void scenario_refused(seat *s)
{
    ptb_comm_config config = {.algorithm = "nvls", .timeout_s = PATIENCE_S};
    ptb_comm *comm;
    char reason[PTB_REASON_BYTES] = "";
    if (open_comm(s, &config, &comm) != PTB_OK)
        return;
    ptb_coll call = all_reduce(s, COUNT);
    call.op = PTB_PROD;
    EXPECT(s, !comm->ops->supports(comm, &call, false, reason), "a product by the switch");
    EXPECT(s, strstr(reason, "no algorithm"), "%s", reason);
    call.op = PTB_SUM;
    EXPECT(s, comm->ops->supports(comm, &call, false, reason), "%s", reason);
    EXPECT(s, run_all_reduce(s, comm, COUNT) == PTB_OK, "after a refusal");
    check_sum(s, s->world->size, COUNT);
    ptb_comm_close(comm);
}

static void scenario_unconfirmed(seat *s)
{
    ptb_comm_config config = {.algorithm = "ring", .timeout_s = PATIENCE_S};
    ptb_comm *comm;
    if (open_comm(s, &config, &comm) != PTB_OK)
        return;
    EXPECT(s, run_all_reduce(s, comm, COUNT) == PTB_OK, "without a profiler");
    check_fact(s, comm, "algorithm", "ring (not confirmed: NCCL's profiler plug-in told nothing)");
    ptb_comm_close(comm);
}

static void scenario_gpu_direct(seat *s)
{
    ptb_comm_config config = {.timeout_s = PATIENCE_S, .gpu_direct = PTB_GPU_DIRECT_OFF};
    ptb_comm *comm;
    if (open_comm(s, &config, &comm) != PTB_OK)
        return;
    const char *level = getenv("NCCL_NET_GDR_LEVEL");
    EXPECT(s, level && strcmp(level, "LOC") == 0, "NCCL_NET_GDR_LEVEL=%s", level ? level : "");
    check_fact(s, comm, "gpu_direct", "off");
    ptb_comm_close(comm);
    config.gpu_direct = PTB_GPU_DIRECT_ON; // NCCL would not read it again
    EXPECT(s, ptb_comm_open("nccl", s->world, &config, &comm) == PTB_UNSUPPORTED, "another setting");
}

static void scenario_buffers(seat *s)
{
    const char *symmetric = getenv("PTB_SIM");
    bool none = symmetric && strstr(symmetric, "nccl_symmetric=0");
    ptb_comm_config config = {.timeout_s = PATIENCE_S};
    ptb_comm *comm;
    void *memory = NULL;
    ptb_params facts = {.count = 0};
    if (open_comm(s, &config, &comm) != PTB_OK)
        return;
    EXPECT(s, comm->ops->alloc(comm, 10000, &memory) == PTB_OK, "alloc");
    ptb_coll call = all_reduce(s, 1);
    call.send = (char *)memory + 4096;
    comm->ops->describe(comm, &call, &facts);
    const char *is = ptb_params_get(&facts, "buffers");
    EXPECT(s, is && strcmp(is, none ? "registered" : "symmetric window") == 0, "%s", is);
    check_fact(s, comm, "buffers", "private");
    comm->ops->free(comm, memory);
    ptb_comm_close(comm);
}

// ---- parts of the world, several communicators at once

static void scenario_split(seat *s)
{
    ptb_world *whole = s->world, *half = NULL;
    ptb_comm_config config = {.timeout_s = PATIENCE_S};
    ptb_comm *comm, *other;
    EXPECT(s, ptb_world_split(whole, whole->rank % 2, whole->rank, &half) == PTB_OK, "split");
    if (open_comm(s, &config, &other) != PTB_OK)
        return;
    s->world = half;
    if (open_comm(s, &config, &comm) == PTB_OK) {
        EXPECT(s, fill(s) == PTB_OK, "fill");
        EXPECT(s, run_all_reduce(s, comm, COUNT) == PTB_OK, "half");
        check_sum(s, half->size, COUNT);
        ptb_comm_close(comm);
    }
    s->world = whole;
    EXPECT(s, fill(s) == PTB_OK, "fill");
    EXPECT(s, run_all_reduce(s, other, COUNT) == PTB_OK, "whole");
    check_sum(s, whole->size, COUNT);
    ptb_comm_close(other);
    ptb_world_close(half);
}

static void scenario_host_stream(seat *s)
{
    ptb_comm_config config = {.timeout_s = PATIENCE_S};
    ptb_device *device;
    ptb_stream *stream;
    ptb_comm *comm;
    if (open_comm(s, &config, &comm) != PTB_OK)
        return;
    EXPECT(s, ptb_device_open("host", 0, &device) == PTB_OK, "host");
    EXPECT(s, ptb_stream_new(device, PTB_STREAM_CALLER, 0, &stream) == PTB_OK, "stream");
    ptb_coll call = all_reduce(s, 1);
    EXPECT(s, ptb_comm_collective(comm, &call, stream) == PTB_USAGE, "host memory");
    ptb_stream_free(stream);
    ptb_device_close(device);
    ptb_comm_close(comm);
}

// ---- faults

// From now on a call that does not end is given up after a second.
static void lose_patience(ptb_comm *comm)
{
    ((ptb_comm_nccl *)comm)->timeout_s = 1;
}

// The time begins when all ranks have come, so that they say the same of each other however far apart they
// run.
static ptb_status run_together(seat *s, ptb_comm *comm)
{
    ptb_coll call = all_reduce(s, COUNT);
    ptb_status status = ptb_comm_collective(comm, &call, s->stream);
    ptb_world_barrier(s->world);
    return status == PTB_OK ? ptb_stream_sync(s->stream) : status;
}

// The second all-reduce ends as `wanted`, soon; so does what comes after it.
static void expect_failure(seat *s, ptb_status wanted)
{
    ptb_comm_config config = {.timeout_s = PATIENCE_S};
    ptb_comm *comm;
    if (open_comm(s, &config, &comm) != PTB_OK)
        return;
    EXPECT(s, run_all_reduce(s, comm, COUNT) == PTB_OK, "the first");
    ptb_world_barrier(s->world); // the failure is everybody's as soon as one has come to it
    lose_patience(comm);
    int64_t begin = ptb_clock_ns();
    ptb_status status = run_together(s, comm);
    EXPECT(s, status == wanted, "%s", ptb_status_name(status));
    EXPECT(s, ptb_clock_ns() - begin < PATIENCE_S * (int64_t)1000000000, "the failure took long");
    ptb_coll call = all_reduce(s, COUNT);
    EXPECT(s, ptb_comm_collective(comm, &call, s->stream) == PTB_LOST, "a lost communicator works on");
    ptb_comm_close(comm);
}

static void scenario_lost(seat *s)
{
    expect_failure(s, PTB_LOST);
}

static void scenario_dead(seat *s) // from the first on
{
    ptb_comm_config config = {.timeout_s = PATIENCE_S};
    ptb_comm *comm;
    if (open_comm(s, &config, &comm) != PTB_OK)
        return;
    lose_patience(comm);
    EXPECT(s, run_together(s, comm) == PTB_LOST, "a dead link");
    ptb_comm_close(comm);
}

// Rank 2 waits for the others elsewhere instead of coming to the second call.
static void scenario_missing(seat *s)
{
    ptb_comm_config config = {.timeout_s = PATIENCE_S};
    ptb_comm *comm;
    if (open_comm(s, &config, &comm) != PTB_OK)
        return;
    EXPECT(s, run_all_reduce(s, comm, COUNT) == PTB_OK, "the first");
    lose_patience(comm);
    if (s->world->rank == 2)
        ptb_world_barrier(s->world);
    else
        EXPECT(s, run_together(s, comm) == PTB_LOST, "a rank that does not come");
    ptb_world_barrier(s->world);
    ptb_comm_close(comm);
}

// A communicator is aborted that more calls are enqueued on: they end too, and the device is as it was.
static void scenario_queued(seat *s)
{
    ptb_comm_config config = {.timeout_s = PATIENCE_S};
    ptb_comm *comm;
    ptb_coll call = all_reduce(s, COUNT);
    if (open_comm(s, &config, &comm) != PTB_OK)
        return;
    EXPECT(s, run_all_reduce(s, comm, COUNT) == PTB_OK, "the first");
    lose_patience(comm);
    for (int i = 0; i < 200; i++)
        EXPECT(s, ptb_comm_collective(comm, &call, s->stream) == PTB_OK, "call %d", i);
    ptb_world_barrier(s->world);
    EXPECT(s, ptb_stream_sync(s->stream) == PTB_LOST, "a call that does not end");
    ptb_comm_close(comm);
    cudaError_t error = cudaDeviceSynchronize();
    EXPECT(s, error == cudaSuccess, "%s", cudaGetErrorName(error));
}

static void scenario_mismatch(seat *s)
{
    ptb_comm_config config = {.timeout_s = PATIENCE_S};
    ptb_comm *comm;
    if (open_comm(s, &config, &comm) != PTB_OK)
        return;
    ptb_coll call = all_reduce(s, s->world->rank == 1 ? 17 : 16);
    ptb_status status = ptb_comm_collective(comm, &call, s->stream);
    if (status == PTB_OK)
        status = ptb_stream_sync(s->stream);
    EXPECT(s, status == PTB_UNSUPPORTED, "%s", ptb_status_name(status));
    ptb_comm_close(comm);
}

static void scenario_messages(seat *s)
{
    ptb_comm_config config = {.timeout_s = PATIENCE_S};
    ptb_comm *comm;
    int rank = s->world->rank;
    if (open_comm(s, &config, &comm) != PTB_OK)
        return;
    ptb_status status = PTB_OK;
    if (rank == 0)
        status = comm->ops->send(comm, s->data[0], 8, PTB_F32, 1, s->stream);
    if (rank == 1)
        status = comm->ops->recv(comm, s->data[1], 4, PTB_F32, 0, s->stream);
    if (status == PTB_OK)
        status = ptb_stream_sync(s->stream);
    EXPECT(s, rank != 1 || status == PTB_UNSUPPORTED, "%s", ptb_status_name(status));
    ptb_world_barrier(s->world);
    ptb_comm_close(comm);
}

static void scenario_late(seat *s)
{
    ptb_comm_config config = {.timeout_s = 0.3};
    ptb_comm *comm = NULL;
    EXPECT(s, ptb_comm_open("nccl", s->world, &config, &comm) == PTB_LOST, "a rank that does not come");
    fflush(stdout);
    ptb_world_barrier(s->world);
    sim_nccl_let_join(); // so that no shared memory is left
    for (int64_t end = patience_ends(); !sim_nccl_made() && ptb_clock_ns() < end;)
        usleep(1000);
    EXPECT(s, sim_nccl_made() == 1, "the late one has not come");
}

// ---- the inside

static void check_spans(seat *s, const ptb_span *spans, size_t count, int64_t begin, int64_t end)
{
    int calls = 0, kernels = 0, sends = 0, network = 0;
    for (size_t i = 0; i < count; i++) {
        const ptb_span *span = &spans[i];
        EXPECT(s, span->kind == PTB_SPAN_INSIDE && span->rank == s->world->rank, "kind %d", span->kind);
        EXPECT(s, span->begin_ns >= begin && span->begin_ns <= span->end_ns, "%s begins %lld us early",
               span->name, (long long)(begin - span->begin_ns) / 1000);
        EXPECT(s, span->end_ns <= end, "%s ends %lld us late", span->name,
               (long long)(span->end_ns - end) / 1000);
        calls += span->stream == PTB_NCCL_LANE_CALLS;
        kernels += span->stream == PTB_NCCL_LANE_KERNEL;
        network += span->stream == PTB_NCCL_LANE_NETWORK;
        bool step = span->stream == PTB_NCCL_LANE_SEND && strncmp(span->name, "step", 4) == 0;
        sends += span->stream == PTB_NCCL_LANE_SEND && !step;
        if (step)
            EXPECT(s, span->bytes == COUNT * sizeof(float), "%llu bytes", (unsigned long long)span->bytes);
        if (span->stream == PTB_NCCL_LANE_CALLS || span->stream == PTB_NCCL_LANE_KERNEL)
            EXPECT(s, strcmp(span->name, "AllReduce ring/ll128") == 0, "%s", span->name);
    }
    EXPECT(s, calls == 5 && kernels == 5 && sends == 5 && network == 5, "%d %d %d %d", calls, kernels, sends,
           network);
}

static void scenario_spans(seat *s)
{
    ptb_comm_config config = {.algorithm = "ring", .timeout_s = PATIENCE_S};
    ptb_comm *comm;
    ptb_trace *trace;
    size_t count, dropped, open;
    if (open_comm(s, &config, &comm) != PTB_OK || ptb_trace_new(1000, s->world->rank, &trace) != PTB_OK)
        return;
    EXPECT(s, run_all_reduce(s, comm, COUNT) == PTB_OK, "before"); // not recorded
    for (int turn = 0; turn < 2; turn++) {
        EXPECT(s, ptb_nccl_profiler_start(turn ? 3 : 1000) == PTB_OK, "start");
        int64_t begin = ptb_clock_ns();
        for (int i = 0; i < 5; i++)
            EXPECT(s, run_all_reduce(s, comm, COUNT) == PTB_OK, "recorded");
        ptb_nccl_profiler_stop();
        EXPECT(s, run_all_reduce(s, comm, COUNT) == PTB_OK, "after"); // not recorded
        for (int64_t limit = patience_ends(); sim_nccl_untold() && ptb_clock_ns() < limit;)
            usleep(1000); // the proxies end
        int64_t end = ptb_clock_ns();
        ptb_trace_clear(trace);
        ptb_nccl_profiler_spans(trace, &dropped, &open);
        const ptb_span *spans = ptb_trace_spans(trace, &count, NULL);
        EXPECT(s, open == 0, "%zu open", open);
        EXPECT(s, turn ? count == 3 && dropped > 0 : dropped == 0, "%zu spans, %zu dropped", count, dropped);
        if (turn == 0)
            check_spans(s, spans, count, begin, end);
    }
    ptb_comm_close(comm);
    ptb_nccl_profiler_release();
    ptb_trace_free(trace);
}

static const struct {
    const char *name;
    void (*run)(seat *s);
} scenarios[] = {
    {"choices", scenario_choices},
    {"refused", scenario_refused},
    {"unconfirmed", scenario_unconfirmed},
    {"gpu_direct", scenario_gpu_direct},
    {"buffers", scenario_buffers},
    {"split", scenario_split},
    {"host_stream", scenario_host_stream},
    {"lost", scenario_lost},
    {"dead", scenario_dead},
    {"missing", scenario_missing},
    {"queued", scenario_queued},
    {"mismatch", scenario_mismatch},
    {"messages", scenario_messages},
    {"late", scenario_late},
    {"spans", scenario_spans},
};

static ptb_status take_seat(seat *s)
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

int main(int argc, char **argv)
{
    seat s = {.wrong = 0};
    bool found = false;
    if (argc != 2 || take_seat(&s) != PTB_OK)
        return 3;
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++)
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
