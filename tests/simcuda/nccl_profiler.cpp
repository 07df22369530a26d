// What the simulated NCCL tells a profiler plug-in, in the order and from the threads that the real one does
// (src/plugin/profiler.cc): groups and operations from the thread that calls, the inside of operations
// (kernel channels, proxies, the network) from a thread of its own, when they happen.
#include "tests/simcuda/nccl.hpp"

#include "profiler/nccl_profiler_abi.h"

#include <condition_variable>
#include <deque>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <thread>
#include <unistd.h>

namespace {
// An operation whose inside is asked for.
struct watched_work {
    ncclComm *comm;
    void *context, *task, *kernel, *proxy;
    sim_nccl_times *times;
    sim_nccl_operation operation;
    int mask;
    bool begun;
};

struct profiler_state {
    std::mutex mutex;
    bool tried;
    const ptb_nccl_profiler_plugin *plugin;
    int mask; // the plug-in writes it
    std::deque<watched_work> work;
    std::condition_variable come;
    bool has_thread;
};
// Never destroyed: the thread waits in it when the program ends.
profiler_state &state = *new profiler_state();
std::atomic<int> untold; // operations

const ptb_nccl_profiler_plugin *load(void)
{
    std::lock_guard<std::mutex> hold(state.mutex);
    const char *wanted = getenv("NCCL_PROFILER_PLUGIN");
    if (state.tried) // what was found first stays, also nothing
        return state.plugin;
    state.tried = true;
    void *program = dlopen(NULL, RTLD_NOW | RTLD_LOCAL);
    if (wanted && strcasecmp(wanted, "STATIC_PLUGIN") == 0 && program)
        state.plugin = (const ptb_nccl_profiler_plugin *)dlsym(
            program, sim_option("nccl_profiler") == 6 ? "ncclProfiler_v6" : "ncclProfiler_v5");
    return state.plugin;
}

void *start(void *context, ptb_nccl_event *event)
{
    void *handle = NULL;
    state.plugin->start_event(context, &handle, event);
    return handle;
}

// ---- the inside

void tell_begin(watched_work *w)
{
    const sim_nccl_operation &o = w->operation;
    const uint64_t gpu_ns = w->times->begin_ns.load();
    ptb_nccl_event event = {};
    event.parent = w->task;
    event.rank = w->comm->rank;
    if (w->mask & PTB_NCCL_KERNEL_CH) {
        event.type = PTB_NCCL_KERNEL_CH;
        event.kernel_ch.channel = 0;
        event.kernel_ch.gpu_ns = gpu_ns;
        w->kernel = start(w->context, &event);
    }
    if (w->mask & (PTB_NCCL_PROXY_OP | PTB_NCCL_PROXY_STEP | PTB_NCCL_NET_PLUGIN)) {
        event.type = PTB_NCCL_PROXY_OP;
        event.proxy_op.pid = getpid();
        event.proxy_op.channel = 0;
        event.proxy_op.peer = (w->comm->rank + 1) % w->comm->ranks;
        event.proxy_op.steps = 1;
        event.proxy_op.chunk_bytes = (int)(o.call.count * sim_nccl_type_size(o.call.type));
        event.proxy_op.is_send = 1;
        w->proxy = start(w->context, &event);
    }
    w->begun = true;
}

// The one step of the proxy and its request, told late: the bytes are known at the end.
void tell_step(watched_work *w)
{
    const sim_nccl_operation &o = w->operation;
    ptb_nccl_event event = {};
    ptb_nccl_state_args args = {};
    event.parent = w->proxy;
    event.rank = w->comm->rank;
    event.type = PTB_NCCL_PROXY_STEP;
    void *step = start(w->context, &event);
    event.parent = step;
    event.type = PTB_NCCL_NET_PLUGIN;
    event.net_plugin.id = (1 << 16) | 1; // InfiniBand, version 1
    void *request = w->mask & PTB_NCCL_NET_PLUGIN ? start(w->context, &event) : NULL;
    args.proxy_step.bytes = o.call.count * sim_nccl_type_size(o.call.type);
    if (step)
        state.plugin->record_event_state(step, PTB_NCCL_STATE_SEND_WAIT, &args);
    if (request)
        state.plugin->stop_event(request);
    if (step)
        state.plugin->stop_event(step);
}

void tell_end(watched_work *w)
{
    if (w->proxy) {
        if (w->mask & (PTB_NCCL_PROXY_STEP | PTB_NCCL_NET_PLUGIN))
            tell_step(w);
        state.plugin->stop_event(w->proxy);
    }
    if (w->kernel) {
        ptb_nccl_state_args args = {};
        args.kernel_ch.gpu_ns = w->times->end_ns.load();
        state.plugin->record_event_state(w->kernel, PTB_NCCL_STATE_KERNEL_CH_STOP, &args);
        state.plugin->stop_event(w->kernel);
    }
    cudaFreeHost(w->times);
    w->comm->watched.fetch_sub(1);
    untold.fetch_sub(1);
}

void proxy_thread(void)
{
    for (;;) {
        std::deque<watched_work> mine;
        {
            std::unique_lock<std::mutex> hold(state.mutex);
            while (state.work.empty())
                state.come.wait(hold);
            mine.swap(state.work);
        }
        for (watched_work &w : mine) {
            while (!w.times->begin_ns.load())
                usleep(20);
            tell_begin(&w);
            while (!w.times->end_ns.load())
                usleep(20);
            tell_end(&w);
        }
    }
}

void fill_task(const sim_nccl_operation &o, void *group_handle, ptb_nccl_event *event)
{
    const bool message = o.call.function == SIM_NCCL_SEND || o.call.function == SIM_NCCL_RECV;
    *event = {};
    event->rank = o.comm->rank;
    if (message) {
        event->type = PTB_NCCL_P2P;
        event->p2p.function = sim_nccl_function_name(o.call.function);
        event->p2p.buffer = o.send ? (void *)o.send : o.recv;
        event->p2p.datatype = sim_nccl_type_name(o.call.type);
        event->p2p.count = o.call.count;
        event->p2p.peer = o.call.root;
        event->p2p.channels = 1;
        event->p2p.group = group_handle;
        return;
    }
    event->type = PTB_NCCL_COLL;
    event->coll.sequence = o.comm->sequence[o.call.function]++;
    event->coll.function = sim_nccl_function_name(o.call.function);
    event->coll.send = o.send;
    event->coll.recv = o.recv;
    event->coll.count = o.call.count;
    event->coll.root = o.call.root;
    event->coll.datatype = sim_nccl_type_name(o.call.type);
    event->coll.channels = (uint8_t)o.run.channels;
    event->coll.warps = 16;
    event->coll.algorithm = o.run.algorithm;
    event->coll.protocol = o.run.protocol;
    event->coll.group = group_handle;
}
} // namespace

int sim_nccl_untold(void)
{
    return untold.load();
}

void sim_nccl_profiler_init(ncclComm *comm)
{
    const ptb_nccl_profiler_plugin *plugin = load();
    if (plugin &&
        plugin->init(&comm->profiler, (uint64_t)(uintptr_t)comm, &state.mask,
                     comm->name.empty() ? NULL : comm->name.c_str(), 1, comm->ranks, comm->rank, NULL))
        comm->profiler = NULL;
}

void sim_nccl_profiler_finalize(ncclComm *comm)
{
    while (comm->watched.load())
        usleep(200);
    state.plugin->finalize(comm->profiler);
    comm->profiler = NULL;
}

void sim_nccl_profiler_begin(ncclComm *comm, const std::vector<sim_nccl_operation> &operations,
                             sim_nccl_told *told)
{
    const int inside = PTB_NCCL_PROXY_OP | PTB_NCCL_PROXY_STEP | PTB_NCCL_KERNEL_CH | PTB_NCCL_NET_PLUGIN;
    const int mask = comm->profiler ? __atomic_load_n(&state.mask, __ATOMIC_RELAXED) : 0;
    told->mask = mask;
    told->tasks.assign(operations.size(), NULL);
    if (!mask)
        return;
    ptb_nccl_event event = {};
    event.type = PTB_NCCL_GROUP_API;
    told->api = start(comm->profiler, &event);
    event.type = PTB_NCCL_GROUP;
    if (mask & (PTB_NCCL_GROUP | PTB_NCCL_COLL | PTB_NCCL_P2P | inside))
        told->group = start(comm->profiler, &event);
    for (size_t i = 0; i < operations.size(); i++) {
        const bool message = operations[i].call.function >= SIM_NCCL_FUNCTIONS;
        fill_task(operations[i], told->group, &event);
        if (mask & ((message ? PTB_NCCL_P2P : PTB_NCCL_COLL) | inside))
            told->tasks[i] = start(comm->profiler, &event);
    }
}

sim_nccl_times *sim_nccl_profiler_times(ncclComm *comm, const sim_nccl_operation &operation,
                                        sim_nccl_told *told, size_t which)
{
    void *memory;
    if (!(told->mask &
          (PTB_NCCL_PROXY_OP | PTB_NCCL_PROXY_STEP | PTB_NCCL_KERNEL_CH | PTB_NCCL_NET_PLUGIN)) ||
        cudaMallocHost(&memory, sizeof(sim_nccl_times)))
        return NULL;
    sim_nccl_times *times = (sim_nccl_times *)memory;
    times->begin_ns.store(0);
    times->end_ns.store(0);
    comm->watched.fetch_add(1);
    untold.fetch_add(1);
    std::lock_guard<std::mutex> hold(state.mutex);
    state.work.push_back(
        {comm, comm->profiler, told->tasks[which], NULL, NULL, times, operation, told->mask, false});
    if (!state.has_thread)
        std::thread(proxy_thread).detach();
    state.has_thread = true;
    state.come.notify_one();
    return times;
}

void sim_nccl_profiler_end(ncclComm *comm, sim_nccl_told *told)
{
    if (!comm->profiler || !told->mask)
        return;
    for (void *task : told->tasks)
        if (task)
            state.plugin->stop_event(task);
    if (told->group)
        state.plugin->stop_event(told->group);
    if (told->api)
        state.plugin->stop_event(told->api);
}
