// The communicator nccl over MPI processes on the simulated device: `helper_nccl SCENARIO`, started by
// test_nccl.sh, which sets the faults of PTB_SIM.
#include "tests/simcuda/nccl_fixture.h"

// An algorithm that NCCL refuses for a call makes a skip with NCCL's own words, and leaves the communicator
// usable. Before 2.22 it cannot be asked beforehand, and the call itself is refused.
static void scenario_refused(seat *s)
{
    ptb_comm_config config = {.algorithm = "nvls", .timeout_s = PATIENCE_S};
    ptb_comm *comm;
    char reason[PTB_REASON_BYTES] = "";
    if (open_comm(s, &config, &comm) != PTB_OK)
        return;
    ptb_coll call = all_reduce(s, COUNT);
    call.op = PTB_PROD;
    if (strstr(ptb_nccl_lacks(), "ncclGroupSimulateEnd")) {
        EXPECT(s, comm->ops->supports(comm, &call, false, reason), "%s", reason);
        EXPECT(s, ptb_comm_collective(comm, &call, s->stream) == PTB_UNSUPPORTED, "a product by the switch");
    } else {
        EXPECT(s, !comm->ops->supports(comm, &call, false, reason), "a product by the switch");
        EXPECT(s, strstr(reason, "no algorithm"), "%s", reason);
    }
    call.op = PTB_SUM;
    EXPECT(s, comm->ops->supports(comm, &call, false, reason), "%s", reason);
    EXPECT(s, run_all_reduce(s, comm, COUNT) == PTB_OK, "after a refusal");
    check_sum(s, s->world->size, COUNT);
    ptb_comm_close(comm);
}

// Algorithms that came later are refused by name.
static void scenario_too_old(seat *s)
{
    static const struct {
        const char *algorithm, *since;
        int version;
    } cases[] = {{"pat", "from 2.24 on", 22400}, {"collnet_direct", "from 2.20 on", 22000}, {"nvls", "", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ptb_comm_config config = {.algorithm = cases[i].algorithm, .timeout_s = PATIENCE_S};
        ptb_comm *comm;
        char reason[PTB_REASON_BYTES] = "";
        if (open_comm(s, &config, &comm) != PTB_OK)
            return;
        ptb_coll call = all_reduce(s, COUNT);
        call.kind = PTB_ALL_GATHER;
        bool can = comm->ops->supports(comm, &call, false, reason);
        int version = ((const ptb_comm_nccl *)comm)->version;
        EXPECT(s, can == (version >= cases[i].version), "%s: %s", cases[i].algorithm, reason);
        EXPECT(s, can || strstr(reason, cases[i].since), "%s", reason);
        ptb_comm_close(comm);
    }
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

// ---- buffers from the communicator

static long option(const char *name, long otherwise)
{
    const char *all = getenv("PTB_SIM"), *at = all ? strstr(all, name) : NULL;
    return at ? strtol(at + strlen(name) + 1, NULL, 0) : otherwise;
}

// Each rank asks for another size, and still gets as much as the others, which a window needs.
static ptb_status alloc_two(seat *s, ptb_comm *comm, char *memory[2])
{
    for (int b = 0; b < 2; b++) {
        ptb_status status =
            comm->ops->alloc(comm, 40000 + 9000 * (size_t)s->world->rank, (void **)&memory[b]);
        EXPECT(s, status == PTB_OK, "alloc");
        PTB_TRY(status);
    }
    return PTB_OK;
}

static void check_call(seat *s, ptb_comm *comm, const ptb_coll *call, const char *name, const char *wanted)
{
    ptb_params facts = {.count = 0};
    comm->ops->describe(comm, call, &facts);
    const char *is = ptb_params_get(&facts, name);
    EXPECT(s, wanted ? is && strcmp(is, wanted) == 0 : !is, "%s of %s: %s, not %s", name,
           ptb_coll_name(call->kind), is ? is : "none", wanted ? wanted : "none");
}

// What they are called, whether a window is asked for (not where an algorithm or channels are), and what NCCL
// made of it.
static void scenario_buffers(seat *s)
{
    const bool can_reach = option("nccl_symmetric", 1) != 0;
    const long version =
        strstr(ptb_nccl_lacks(), "ncclCommWindowRegister") ? 0 : option("nccl_version", NCCL_VERSION_CODE);
    const struct {
        ptb_comm_config config;
        bool is_forced;
    } cases[] = {{{.timeout_s = PATIENCE_S}, false},
                 {{.timeout_s = PATIENCE_S, .algorithm = "symmetric"}, false},
                 {{.timeout_s = PATIENCE_S, .algorithm = "ring"}, true},
                 {{.timeout_s = PATIENCE_S, .channels = 3}, true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *memory[2] = {NULL, NULL};
        ptb_comm *comm;
        if (open_comm(s, &cases[i].config, &comm) != PTB_OK || alloc_two(s, comm, memory) != PTB_OK)
            return;
        ptb_coll call = all_reduce(s, 1000);
        check_call(s, comm, &call, "buffers", "private");
        call.send = memory[0] + 4096;
        call.recv = memory[1] + 8192;
        const bool is_window = !cases[i].is_forced && version >= 22700 && (can_reach || version < 22900),
                   is_told = version >= 22900;
        check_call(s, comm, &call, "buffers",
                   !is_window ? "registered"
                   : is_told  ? "symmetric window"
                              : "symmetric window asked for");
        EXPECT(s, ptb_comm_collective(comm, &call, s->stream) == PTB_OK, "all-reduce");
        EXPECT(s, ptb_stream_sync(s->stream) == PTB_OK, "sync");
        const bool ran_symmetric = is_window && can_reach, is_concluded = ran_symmetric && version >= 22800;
        if (option("nccl_version", NCCL_VERSION_CODE) >= PTB_NCCL_TELLS)
            check_call(s, comm, &call, "algorithm",
                       is_concluded     ? "symmetric"
                       : !ran_symmetric ? "ring"
                       : i == 1 ? "symmetric (not confirmed: NCCL 2.27 tells nothing of kernels on windows)"
                                : "default (not confirmed: NCCL 2.27 tells nothing of kernels on windows)");
        if (option("nccl_version", NCCL_VERSION_CODE) >= PTB_NCCL_TELLS)
            check_call(s, comm, &call, "replaced",
                       i == 1 && !ran_symmetric ? "asked symmetric, ran ring/ll" : NULL);
        if (is_concluded)
            check_call(s, comm, &call, "buffers", "symmetric window");
        comm->ops->free(comm, memory[0]);
        comm->ops->free(comm, memory[1]);
        ptb_comm_close(comm);
    }
}

// The collectives that run as symmetric kernels, in place and out of place. offset: bytes by which each rank
// begins later than the one before it.
static ptb_status run_on_windows(seat *s, ptb_comm *comm, char *const memory[2], ptb_coll_kind kind,
                                 bool in_place, size_t offset)
{
    const size_t n = (size_t)s->world->size, each = 512, own = (size_t)s->world->rank * each * sizeof(float);
    char *send = memory[0] + 4096 + offset * (size_t)s->world->rank;
    char *recv = in_place ? send : memory[1] + 8192 + offset * (size_t)s->world->rank;
    if (in_place && kind == PTB_ALL_GATHER)
        send = recv + own;
    if (in_place && kind == PTB_REDUCE_SCATTER)
        recv = send + own;
    ptb_coll call = {
        .kind = kind, .send = send, .recv = recv, .count = n * each, .dtype = PTB_F32, .op = PTB_SUM};
    const size_t sent = kind == PTB_ALL_GATHER ? each : n * each;
    const size_t got = kind == PTB_REDUCE_SCATTER ? each : n * each;
    EXPECT(s, fill(s) == PTB_OK, "fill");
    PTB_TRY(ptb_stream_copy(s->stream, send, s->data[0], sent * sizeof(float)));
    PTB_TRY(ptb_comm_collective(comm, &call, s->stream));
    PTB_TRY(ptb_stream_sync(s->stream));
    check_call(s, comm, &call, "algorithm", "symmetric");
    PTB_TRY(ptb_stream_copy(s->stream, s->host, recv, got * sizeof(float)));
    PTB_TRY(ptb_stream_sync(s->stream));
    for (size_t k = 0; k < got; k++) {
        const float wanted = kind == PTB_ALL_GATHER ? (float)(k / each + 1) : (float)(n * (n + 1) / 2);
        if (s->host[k] != wanted) {
            EXPECT(s, s->host[k] == wanted, "%s, element %zu: %g, not %g", ptb_coll_name(kind), k, s->host[k],
                   wanted);
            return PTB_WRONG;
        }
    }
    return PTB_OK;
}

static void scenario_windows(seat *s)
{
    const ptb_coll_kind kinds[] = {PTB_ALL_REDUCE, PTB_ALL_GATHER, PTB_REDUCE_SCATTER};
    const ptb_comm_config config = {.timeout_s = PATIENCE_S, .algorithm = "symmetric"};
    char reason[PTB_REASON_BYTES] = "", *memory[2];
    ptb_comm *comm;
    if (open_comm(s, &config, &comm) != PTB_OK || alloc_two(s, comm, memory) != PTB_OK)
        return;
    for (int i = 0; i < 6; i++)
        EXPECT(s, run_on_windows(s, comm, memory, kinds[i / 2], i % 2, 0) == PTB_OK, "%s",
               ptb_coll_name(kinds[i / 2]));
    ptb_coll call = all_reduce(s, COUNT);
    call.op = PTB_MAX;
    EXPECT(s, !comm->ops->supports(comm, &call, false, reason) && strstr(reason, "sums of f32"), "%s",
           reason);
    call = (ptb_coll){.kind = PTB_ALL_GATHER, .count = (size_t)s->world->size + 1, .dtype = PTB_F32};
    EXPECT(s, !comm->ops->supports(comm, &call, false, reason) && strstr(reason, "do not divide"), "%s",
           reason);
    call.kind = PTB_BROADCAST;
    EXPECT(s, !comm->ops->supports(comm, &call, false, reason) && strstr(reason, "no symmetric for"), "%s",
           reason);
    ptb_comm_close(comm);
}

// Buffers at another place on each rank, which real NCCL would not notice.
static void misplace(seat *s, ptb_coll_kind kind)
{
    const ptb_comm_config config = {.timeout_s = PATIENCE_S};
    char *memory[2];
    ptb_comm *comm;
    if (open_comm(s, &config, &comm) != PTB_OK || alloc_two(s, comm, memory) != PTB_OK)
        return;
    ptb_status status = run_on_windows(s, comm, memory, kind, false, 4096);
    EXPECT(s, status == PTB_UNSUPPORTED, "%s", ptb_status_name(status));
    ptb_comm_close(comm);
}

static void scenario_misplaced_all_reduce(seat *s)
{
    misplace(s, PTB_ALL_REDUCE);
}

static void scenario_misplaced_all_gather(seat *s)
{
    misplace(s, PTB_ALL_GATHER);
}

static void scenario_misplaced_reduce_scatter(seat *s)
{
    misplace(s, PTB_REDUCE_SCATTER);
}

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
// Windows of which one is larger are none of NCCL's: the simulated one says so.
static void scenario_unequal_windows(seat *s)
{
    const ptb_comm_config config = {.timeout_s = PATIENCE_S};
    ncclWindow_t window = NULL;
    ptb_comm *comm;
    char *memory[2];
    if (open_comm(s, &config, &comm) != PTB_OK || alloc_two(s, comm, memory) != PTB_OK)
        return;
    const ptb_comm_nccl *c = (const ptb_comm_nccl *)comm;
    ncclResult_t result = c->api->CommWindowRegister(c->nccl, memory[0], s->world->rank ? 8192 : 4096,
                                                     &window, NCCL_WIN_COLL_SYMMETRIC);
    EXPECT(s, result == ncclInvalidUsage && !window, "%d", (int)result);
    ptb_comm_close(comm);
}
#endif

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

static void scenario_older(seat *s)
{
    scenario_refused(s);
    scenario_too_old(s);
    scenario_buffers(s);
}

int main(int argc, char **argv)
{
    static const scenario scenarios[] = {
        {"refused", scenario_refused},
        {"gpu_direct", scenario_gpu_direct},
        {"buffers", scenario_buffers},
        {"split", scenario_split},
        {"host_stream", scenario_host_stream},
        {"lost", scenario_lost},
        {"dead", scenario_dead},
        {"missing", scenario_missing},
        {"queued", scenario_queued},
        {"windows", scenario_windows},
        {"misplaced_all_reduce", scenario_misplaced_all_reduce},
        {"misplaced_all_gather", scenario_misplaced_all_gather},
        {"misplaced_reduce_scatter", scenario_misplaced_reduce_scatter},
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
        {"unequal_windows", scenario_unequal_windows},
#endif
        {"mismatch", scenario_mismatch},
        {"messages", scenario_messages},
        {"late", scenario_late},
        {"older", scenario_older},
    };
    return run_scenarios(argc, argv, scenarios, sizeof scenarios / sizeof *scenarios);
}
