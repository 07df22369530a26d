// Symmetric windows of the simulated NCCL. All ranks come to one, with as many bytes. A collective whose
// buffers lie in windows (from 2.29 on those that peers reach) runs as a kernel that takes this rank's offset
// in the window for those of all peers: a real one reads and writes wrong places where they differ, this one
// fails with ncclInvalidUsage.
//
// Where GPUs cannot reach each other (several hosts, instances of MIG, nccl_symmetric=0) nothing is
// symmetric: NCCL 2.27 and 2.28 give a window that is a mere registration, later ones none. With
// nccl_symmetric=2 there are windows, and yet all runs as it does without.
#include "tests/simcuda/nccl.hpp"
#include "tests/simcuda/shared.hpp"

#include <stdint.h>
#include <time.h>

namespace {
enum {
    WINDOWS = 22700,
    CALLS = 22800,
    NONE_IS_NULL = 22900,
    ONE_WINDOW = 22900,
    AVERAGES = 23000
}; // versions

bool is_symmetric(const ncclComm *comm)
{
    for (int r = 1; r < comm->ranks; r++)
        if (comm->shared->rank[r].host.load() != comm->shared->rank[0].host.load())
            return false;
    return sim_option("nccl_symmetric") != 0 && sim_visible(0).instance < 0;
}

// All ranks must come; false: the communicator failed meanwhile, or the sizes differ.
bool meet_at_window(ncclComm *comm, uint64_t number, uint64_t bytes)
{
    sim_nccl_shared *s = comm->shared;
    sim_nccl_rank *mine = &s->rank[comm->rank];
    mine->window_bytes[number & 1].store(bytes); // of the one before the last, which all have left
    mine->windows.store(number);
    for (int r = 0; r < comm->ranks; r++)
        while (s->rank[r].windows.load() < number) {
            const struct timespec time = {0, 200000};
            if (s->error.load() || s->rank[r].aborted.load())
                return false;
            nanosleep(&time, NULL);
        }
    for (int r = 1; r < comm->ranks; r++) {
        const uint64_t first = s->rank[0].window_bytes[number & 1].load(),
                       other = s->rank[r].window_bytes[number & 1].load();
        if (other == first)
            continue;
        sim_nccl_fail(s, ncclInvalidUsage,
                      "mismatched windows: of window %llu rank 0 registered %llu bytes, rank %d %llu",
                      (unsigned long long)number, (unsigned long long)first, r, (unsigned long long)other);
        return false;
    }
    return true;
}

const sim_nccl_window *find(const ncclComm *comm, const void *at)
{
    for (const sim_nccl_window &w : comm->windows)
        if ((const char *)at >= w.at && (const char *)at < w.at + w.bytes)
            return &w;
    return NULL;
}

// What the real one has symmetric kernels for (ncclSymkImplemented in src/sym_kernels.cc).
bool has_kernel(const sim_nccl_call *call)
{
    const bool can_add = call->type == ncclFloat32 || call->type == ncclFloat16 || call->type == ncclBfloat16;
    if (call->function == SIM_NCCL_ALL_GATHER)
        return true;
    if (call->function != SIM_NCCL_ALL_REDUCE && call->function != SIM_NCCL_REDUCE_SCATTER)
        return false;
    return can_add && (call->op == ncclSum || (call->op == ncclAvg && sim_nccl_version() >= AVERAGES));
}
} // namespace

bool sim_nccl_make_symmetric(sim_nccl_operation *o, size_t group)
{
    const sim_nccl_window *send = find(o->comm, o->send), *recv = find(o->comm, o->recv);
    const bool sends = o->call.function != SIM_NCCL_ALL_GATHER,
               receives = o->call.function != SIM_NCCL_REDUCE_SCATTER, // to or from peers
        all = sim_nccl_version() < ONE_WINDOW;
    if (((sends || all) && !send) || ((receives || all) && !recv) || !has_kernel(&o->call) ||
        (sim_nccl_version() < CALLS && group > 1) || sim_option("nccl_symmetric") == 2)
        return false;
    if (sends)
        o->call.place[0] = {send->number, (uint64_t)((const char *)o->send - send->at)};
    if (receives)
        o->call.place[1] = {recv->number, (uint64_t)((const char *)o->recv - recv->at)};
    o->run.algorithm = "SYMMETRIC";
    o->run.protocol = o->call.function == SIM_NCCL_ALL_REDUCE   ? "RSxLDMC_AGxSTMC"
                      : o->call.function == SIM_NCCL_ALL_GATHER ? "STMC"
                                                                : "LDMC";
    o->run.channels = 16;
    o->run.is_symmetric = true;
    return true;
}

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
extern "C" {

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *memory, size_t bytes, ncclWindow_t *window, int)
{
    if ((uintptr_t)memory % 4096 || !bytes)
        return sim_nccl_refuse(comm, ncclInvalidArgument, "a window begins at a whole page");
    *window = NULL;
    if (!is_symmetric(comm)) {
        *window = sim_nccl_version() < NONE_IS_NULL ? (ncclWindow_t)memory : NULL;
        return ncclSuccess;
    }
    const uint64_t number = comm->shared->rank[comm->rank].windows.load() + 1;
    if (!meet_at_window(comm, number, bytes))
        return sim_nccl_refuse(comm, ncclInvalidUsage, comm->shared->message);
    comm->windows.push_back({number, (const char *)memory, bytes});
    *window = (ncclWindow_t)memory;
    return ncclSuccess;
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window)
{
    for (size_t i = 0; i < comm->windows.size(); i++)
        if ((ncclWindow_t)(void *)comm->windows[i].at == window) {
            comm->windows.erase(comm->windows.begin() + (long)i);
            break;
        }
    return ncclSuccess;
}
}
#endif
