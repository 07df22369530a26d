// Calls and groups of the simulated NCCL: what is called between the outermost ncclGroupStart and
// ncclGroupEnd is enqueued together, collectives one after the other, all messages of a stream as one.
#include "tests/simcuda/nccl.hpp"

#include <stdio.h>
#include <string.h>

// Until the runtime has captures.
extern "C" __attribute__((weak)) cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus *);

namespace {
thread_local int depth;
thread_local ncclResult_t group_error;
thread_local std::vector<sim_nccl_operation> group;

// All operations of one communicator run in the order in which they were enqueued, on whatever streams.
cudaError_t order_streams(ncclComm *comm, cudaStream_t stream)
{
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    cudaError_t error = cudaSuccess;
    if (comm->last_stream && comm->last_stream != stream && cudaStreamIsCapturing &&
        cudaStreamIsCapturing(stream, &capture) == cudaSuccess && capture == cudaStreamCaptureStatusNone) {
        error = cudaEventRecord(comm->order, comm->last_stream);
        if (!error)
            error = cudaStreamWaitEvent(stream, comm->order, 0);
    }
    comm->last_stream = stream;
    return error;
}

sim_activity activity_of(const char *name, int channels, uint64_t bytes)
{
    sim_activity activity = {SIM_KERNEL, "", bytes, 0, {(uint32_t)channels, 1, 1}, {512, 1, 1}, 0};
    snprintf(activity.name, sizeof activity.name, "%s", name);
    return activity;
}

uint64_t elements(const sim_nccl_operation &o)
{
    const bool spread = o.call.function == SIM_NCCL_ALL_GATHER || o.call.function == SIM_NCCL_REDUCE_SCATTER;
    return o.call.count * (spread ? (uint64_t)o.comm->ranks : 1);
}

cudaError_t launch_collective(const sim_nccl_operation &o, sim_nccl_times *times)
{
    const uint64_t bytes = elements(o) * sim_nccl_type_size(o.call.type);
    const sim_nccl_collective work = {o.comm->side, o.call,          o.send,        o.recv,
                                      times,        o.run.algorithm, o.run.channels};
    const std::string name = sim_nccl_kernel_name(o);
    const sim_activity activity = activity_of(name.c_str(), o.run.channels, bytes);
    return sim_enqueue(o.stream, sim_nccl_work_collective, &work, sizeof work, &activity);
}

// of: any of them.
cudaError_t launch_messages(const sim_nccl_operation &of, const std::vector<sim_nccl_message> &list,
                            sim_nccl_times *times)
{
    sim_nccl_messages work = {};
    uint64_t bytes = 0;
    work.side = of.comm->side;
    work.times = times;
    work.count = (uint32_t)list.size();
    for (const sim_nccl_message &m : list)
        bytes += m.send ? m.count * sim_nccl_type_size(m.type) : 0;
    if (list.size() > SIM_NCCL_MESSAGES) {
        void *memory;
        const cudaError_t error = cudaMallocHost(&memory, list.size() * sizeof list[0]);
        if (error)
            return error;
        of.comm->lists.push_back(memory);
        memcpy(memory, list.data(), list.size() * sizeof list[0]);
        work.list = (const sim_nccl_message *)memory;
    } else {
        memcpy(work.own, list.data(), list.size() * sizeof list[0]);
    }
    const sim_activity activity = activity_of(sim_nccl_kernel_name(of).c_str(), 1, bytes);
    const size_t used = work.list ? offsetof(sim_nccl_messages, own)
                                  : offsetof(sim_nccl_messages, own) + list.size() * sizeof list[0];
    return sim_enqueue(of.stream, sim_nccl_work_messages, &work, used, &activity);
}

// One rank has nobody to talk to: its own data is copied, and no profiler hears of it.
ncclResult_t launch_alone(const sim_nccl_operation &o)
{
    const size_t bytes = o.call.count * sim_nccl_type_size(o.call.type);
    if (o.send == o.recv || bytes == 0)
        return ncclSuccess;
    return sim_nccl_check_cuda(o.comm,
                               cudaMemcpyAsync(o.recv, o.send, bytes, cudaMemcpyDeviceToDevice, o.stream));
}

bool is_message(const sim_nccl_operation &o)
{
    return o.call.function == SIM_NCCL_SEND || o.call.function == SIM_NCCL_RECV;
}

cudaError_t launch_all_messages(ncclComm *comm, const std::vector<sim_nccl_operation> &all,
                                sim_nccl_told *told)
{
    cudaError_t error = cudaSuccess;
    std::vector<bool> done(all.size());
    for (size_t i = 0; i < all.size() && !error; i++) {
        if (!is_message(all[i]) || done[i])
            continue;
        std::vector<sim_nccl_message> list;
        for (size_t k = i; k < all.size(); k++)
            if (is_message(all[k]) && all[k].stream == all[i].stream) {
                const bool send = all[k].call.function == SIM_NCCL_SEND;
                list.push_back({send ? (void *)all[k].send : all[k].recv, all[k].call.count,
                                (int16_t)all[k].call.type, (int16_t)all[k].call.root, send});
                done[k] = true;
            }
        error = order_streams(comm, all[i].stream);
        if (!error)
            error = launch_messages(all[i], list, sim_nccl_profiler_times(comm, all[i], told, i));
    }
    return error;
}

ncclResult_t launch(ncclComm *comm, std::vector<sim_nccl_operation> &all)
{
    sim_nccl_told told = {};
    cudaError_t error = cudaSuccess;
    if (comm->shared->error.load())
        return (ncclResult_t)comm->shared->error.load();
    sim_nccl_profiler_begin(comm, all, &told);
    for (size_t i = 0; i < all.size() && !error; i++) {
        if (is_message(all[i]))
            continue;
        error = order_streams(comm, all[i].stream);
        if (!error)
            error = launch_collective(all[i], sim_nccl_profiler_times(comm, all[i], &told, i));
    }
    if (!error)
        error = launch_all_messages(comm, all, &told);
    sim_nccl_profiler_end(comm, &told);
    return sim_nccl_check_cuda(comm, error);
}

// Decides what runs for all of them before any is launched.
ncclResult_t prepare(std::vector<sim_nccl_operation> &all)
{
    for (sim_nccl_operation &o : all) {
        if (is_message(o) || o.comm->ranks == 1) {
            o.run = {"", "", 1, false};
            continue;
        }
        if (sim_nccl_make_symmetric(&o, all.size())) // before NCCL_ALGO and NCCL_PROTO are looked at
            continue;
        const ncclResult_t result = sim_nccl_choose(o.comm, &o.call, &o.run);
        if (result != ncclSuccess)
            return result;
    }
    return ncclSuccess;
}

// A lone rank's messages to itself: the i-th send meets the i-th receive.
ncclResult_t launch_alone_all(const std::vector<sim_nccl_operation> &all)
{
    std::vector<sim_nccl_operation> sends, recvs;
    for (const sim_nccl_operation &o : all) {
        if (o.call.function == SIM_NCCL_SEND)
            sends.push_back(o);
        else if (o.call.function == SIM_NCCL_RECV)
            recvs.push_back(o);
        else if (launch_alone(o) != ncclSuccess)
            return ncclUnhandledCudaError;
    }
    if (sends.size() != recvs.size())
        return sim_nccl_refuse(all[0].comm, ncclInvalidUsage,
                               "Trying to send to self without a matching recv");
    for (size_t i = 0; i < sends.size(); i++) {
        sends[i].recv = recvs[i].recv;
        if (launch_alone(sends[i]) != ncclSuccess)
            return ncclUnhandledCudaError;
    }
    return ncclSuccess;
}

ncclResult_t run_group(std::vector<sim_nccl_operation> &all)
{
    ncclResult_t result = prepare(all);
    while (!all.empty() && result == ncclSuccess) {
        ncclComm *comm = all[0].comm;
        std::vector<sim_nccl_operation> mine, rest;
        for (const sim_nccl_operation &o : all)
            (o.comm == comm ? mine : rest).push_back(o);
        result = comm->ranks == 1 ? launch_alone_all(mine) : launch(comm, mine);
        all.swap(rest);
    }
    return result;
}

ncclResult_t add(const sim_nccl_operation &operation)
{
    if (!operation.comm)
        return sim_nccl_refuse(NULL, ncclInvalidArgument, "the communicator is NULL");
    if (!sim_nccl_type_size(operation.call.type))
        return sim_nccl_refuse(operation.comm, ncclInvalidArgument, "the type is not simulated");
    const bool rooted = operation.call.function != SIM_NCCL_ALL_REDUCE;
    if (rooted && (operation.call.root < 0 || operation.call.root >= operation.comm->ranks))
        return sim_nccl_refuse(operation.comm, ncclInvalidArgument, "invalid root or peer");
    group.push_back(operation);
    return ncclSuccess;
}

// A call outside of a group is a group of its own.
ncclResult_t call(ncclComm *comm, cudaStream_t stream, int function, const void *send, void *recv,
                  size_t count, int type, int op, int root)
{
    sim_nccl_operation o = {comm, stream, {function, type, op, root, count}, send, recv, function, {}};
    if (count == 0 && !is_message(o)) // as the real one
        return ncclSuccess;
    ncclGroupStart();
    const ncclResult_t result = add(o),
                       end = (result != ncclSuccess ? group_error = result : result, ncclGroupEnd());
    return result != ncclSuccess ? result : end;
}
} // namespace

extern "C" {

ncclResult_t ncclGroupStart(void)
{
    if (depth++ == 0) {
        group.clear();
        group_error = ncclSuccess;
    }
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    if (depth == 0)
        return sim_nccl_refuse(NULL, ncclInvalidUsage, "ncclGroupEnd: not in a group call.");
    if (--depth > 0)
        return ncclSuccess;
    std::vector<sim_nccl_operation> all;
    all.swap(group);
    return group_error != ncclSuccess ? group_error : run_group(all);
}

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 22, 0)
ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t *info)
{
    if (depth == 0)
        return sim_nccl_refuse(NULL, ncclInvalidUsage, "ncclGroupEnd: not in a group call.");
    if (--depth > 0)
        return ncclSuccess;
    std::vector<sim_nccl_operation> all;
    all.swap(group);
    if (info)
        info->estimatedTime = 1;
    return group_error != ncclSuccess ? group_error : prepare(all);
}
#endif

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream)
{
    return call(comm, stream, SIM_NCCL_ALL_REDUCE, send, recv, count, type, op, 0);
}
ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream)
{
    return call(comm, stream, SIM_NCCL_BROADCAST, send, recv, count, type, ncclSum, root);
}
ncclResult_t ncclReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                        int root, ncclComm_t comm, cudaStream_t stream)
{
    return call(comm, stream, SIM_NCCL_REDUCE, send, recv, count, type, op, root);
}
ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream)
{
    return call(comm, stream, SIM_NCCL_ALL_GATHER, send, recv, count, type, ncclSum, 0);
}
ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    return call(comm, stream, SIM_NCCL_REDUCE_SCATTER, send, recv, count, type, op, 0);
}
ncclResult_t ncclSend(const void *buffer, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return call(comm, stream, SIM_NCCL_SEND, buffer, NULL, count, type, ncclSum, peer);
}
ncclResult_t ncclRecv(void *buffer, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return call(comm, stream, SIM_NCCL_RECV, NULL, buffer, count, type, ncclSum, peer);
}

// These are messages, as in the real one.
ncclResult_t ncclAlltoAll(const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                          cudaStream_t stream)
{
    const size_t bytes = count * sim_nccl_type_size(type);
    if (count == 0)
        return ncclSuccess;
    ncclGroupStart();
    for (int r = 0; r < comm->ranks; r++) {
        add({comm,
             stream,
             {SIM_NCCL_SEND, type, 0, r, count},
             (const char *)send + (size_t)r * bytes,
             NULL,
             SIM_NCCL_ALL_TO_ALL,
             {}});
        add({comm,
             stream,
             {SIM_NCCL_RECV, type, 0, r, count},
             NULL,
             (char *)recv + (size_t)r * bytes,
             SIM_NCCL_ALL_TO_ALL,
             {}});
    }
    return ncclGroupEnd();
}
ncclResult_t ncclGather(const void *send, void *recv, size_t count, ncclDataType_t type, int root,
                        ncclComm_t comm, cudaStream_t stream)
{
    const size_t bytes = count * sim_nccl_type_size(type);
    if (count == 0)
        return ncclSuccess;
    ncclGroupStart();
    add({comm, stream, {SIM_NCCL_SEND, type, 0, root, count}, send, NULL, SIM_NCCL_GATHER, {}});
    for (int r = 0; r < comm->ranks && comm->rank == root; r++)
        add({comm,
             stream,
             {SIM_NCCL_RECV, type, 0, r, count},
             NULL,
             (char *)recv + (size_t)r * bytes,
             SIM_NCCL_GATHER,
             {}});
    return ncclGroupEnd();
}
ncclResult_t ncclScatter(const void *send, void *recv, size_t count, ncclDataType_t type, int root,
                         ncclComm_t comm, cudaStream_t stream)
{
    const size_t bytes = count * sim_nccl_type_size(type);
    if (count == 0)
        return ncclSuccess;
    ncclGroupStart();
    for (int r = 0; r < comm->ranks && comm->rank == root; r++)
        add({comm,
             stream,
             {SIM_NCCL_SEND, type, 0, r, count},
             (const char *)send + (size_t)r * bytes,
             NULL,
             SIM_NCCL_SCATTER,
             {}});
    add({comm, stream, {SIM_NCCL_RECV, type, 0, root, count}, NULL, recv, SIM_NCCL_SCATTER, {}});
    return ncclGroupEnd();
}
}
