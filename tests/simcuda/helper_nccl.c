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
    none = none || strstr(ptb_nccl_lacks(), "2.27: ncclCommWindowRegister");
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

static void scenario_older(seat *s)
{
    scenario_refused(s);
    scenario_too_old(s);
    scenario_buffers(s);
}

int main(int argc, char **argv)
{
    static const scenario scenarios[] = {
        {"refused", scenario_refused},   {"gpu_direct", scenario_gpu_direct},   {"buffers", scenario_buffers},
        {"split", scenario_split},       {"host_stream", scenario_host_stream}, {"lost", scenario_lost},
        {"dead", scenario_dead},         {"missing", scenario_missing},         {"queued", scenario_queued},
        {"mismatch", scenario_mismatch}, {"messages", scenario_messages},       {"late", scenario_late},
        {"older", scenario_older},
    };
    return run_scenarios(argc, argv, scenarios, sizeof scenarios / sizeof *scenarios);
}
