// The `nccl` communicator: NVIDIA's collectives between GPUs, one GPU a rank. The device that the calling
// thread has opened last is the rank's. Calls return when they are enqueued on the stream.
//
// NCCL fails and hangs behind the device's back. So the communicator watches its streams (ptb_stream_watch):
// while the host waits for one, NCCL is asked for asynchronous errors, and after timeout_s the communicator
// is aborted, which ends the kernels that wait for a peer.
#include "collectives/comm_nccl.h"

#include "core/device_cuda.h"
#include "core/log.h"

#include <stdlib.h>
#include <string.h>

static const ptb_comm_ops comm_nccl_ops;

static void close_comm(ptb_comm *comm)
{
    ptb_comm_nccl *c = (ptb_comm_nccl *)comm;
    for (int i = 0; i < PTB_NCCL_STREAMS; i++)
        ptb_stream_watch_unlink(&c->streams[i].watch);
    ptb_nccl_memory_release(c);
    ptb_nccl_finish(c);
    if (c->flag)
        cudaFree(c->flag); // what fails here has failed before, and was said
    cudaGetLastError();
    pthread_mutex_destroy(&c->lock);
    free(c);
}

static ptb_status make_flag(ptb_comm_nccl *c)
{
    PTB_TRY(PTB_NCCL_CUDA(cudaMalloc((void **)&c->flag, sizeof *c->flag)));
    return PTB_NCCL_CUDA(cudaMemset(c->flag, 0, sizeof *c->flag));
}

static ptb_status open_comm(ptb_world *world, const ptb_comm_config *config, ptb_comm **comm)
{
    if (config->transport) {
        if (world->rank == 0)
            ptb_error("communicator nccl chooses among NVLink, PCIe, shared memory and the network itself: "
                      "leave --transport out (NCCL_P2P_DISABLE, NCCL_SHM_DISABLE and NCCL_NET in the "
                      "environment restrict it)");
        return PTB_UNSUPPORTED;
    }
    ptb_comm_nccl *c = calloc(1, sizeof *c);
    if (!c) {
        ptb_error("no memory for a communicator of %d ranks", world->size);
        return PTB_NO_MEMORY;
    }
    c->comm = (ptb_comm){.ops = &comm_nccl_ops, .world = world, .rank = world->rank, .size = world->size};
    pthread_mutex_init(&c->lock, NULL);
    c->timeout_s = config->timeout_s;
    c->gpu_direct = config->gpu_direct;
    ptb_status status = ptb_nccl_choose(world, config, &c->choice);
    if (status == PTB_OK)
        status = ptb_nccl_start(c);
    if (status == PTB_OK)
        status = ptb_nccl_init(c, config);
    if (status == PTB_OK)
        status = make_flag(c);
    // All ranks have a communicator, or none: to end one needs all of them.
    status = ptb_world_agree(world, status);
    if (status != PTB_OK) {
        ptb_nccl_abort(c);
        close_comm(&c->comm);
        return status;
    }
    *comm = &c->comm;
    return PTB_OK;
}

static void describe(ptb_comm *comm, const ptb_coll *call, ptb_params *facts)
{
    ptb_comm_nccl *c = (ptb_comm_nccl *)comm;
    static const char *const gpu_direct[] = {"NCCL's choice", "off", "on"};
    if (call) {
        const ptb_nccl_seen *seen = ptb_nccl_find_seen(c, call);
        ptb_nccl_describe_run(c, call, seen, facts);
        ptb_params_set(facts, "call", "%s", ptb_nccl_call_name(c, call));
        ptb_params_set(facts, "buffers", "%s",
                       ptb_nccl_buffers(c, call, ptb_nccl_ran_symmetric(c, call, seen)));
    } else {
        ptb_params_set(facts, "call", "ncclSend and ncclRecv");
        if (c->last_seen && c->last_seen->kind == PTB_COLL_COUNT && c->last_seen->ran.messages)
            ptb_nccl_describe_channels(&c->last_seen->ran, facts);
    }
    // For a part of the ranks (--split, an axis of a mesh) too: ncclCommSplit would want a communicator of
    // all ranks first, which nothing else uses.
    ptb_params_set(facts, "communicator", "ncclCommInitRankConfig, its own id");
    ptb_params_set(facts, "gpu_direct", "%s", gpu_direct[c->gpu_direct]);
    ptb_nccl_describe_library(c, facts);
}

static const ptb_comm_ops comm_nccl_ops = {
    .plugin = {.name = "nccl", .summary = "NVIDIA's collectives between GPUs; never run between real ones"},
    .device = "cuda",
    .open = open_comm,
    .close = close_comm,
    .algorithms = ptb_nccl_algorithms,
    .supports = ptb_nccl_supports,
    .alloc = ptb_nccl_alloc,
    .free = ptb_nccl_free,
    .collective = ptb_nccl_collective,
    .group_begin = ptb_nccl_group_begin,
    .group_end = ptb_nccl_group_end,
    .send = ptb_nccl_send,
    .recv = ptb_nccl_recv,
    .describe = describe,
    .recorded = ptb_nccl_recorded,
};
PTB_REGISTER(PTB_KIND_COMM, comm_nccl_ops);
