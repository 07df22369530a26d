// What the simulated NCCL tells a profiler plug-in, in the order and from the threads that the real one does
// (src/plugin/profiler.cc): groups and operations from the thread that calls, the inside of operations
// (kernel channels, proxies, the network) from a thread of its own, when they happen. In which form: as the
// version of nccl_plugin.cpp has it.
#include "tests/simcuda/nccl_plugin.hpp"

#include <condition_variable>
#include <deque>
#include <thread>
#include <unistd.h>

namespace {
enum {
    PROXIES = PTB_NCCL_PROXY_OP | PTB_NCCL_PROXY_STEP | PTB_NCCL_NET_PLUGIN,
    INSIDE = PROXIES | PTB_NCCL_KERNEL_CH,
    CALLS = PTB_NCCL_GROUP_API | PTB_NCCL_COLL_API | PTB_NCCL_P2P_API | PTB_NCCL_KERNEL_LAUNCH,
};

// An operation whose inside is asked for.
struct watched_work {
    ncclComm *comm;
    void *task, *kernel, *proxy[2]; // send, receive
    sim_nccl_times *times;
    sim_nccl_operation operation;
    int mask;
};

struct profiler_state {
    std::mutex mutex;
    int mask; // the plug-in writes it
    std::deque<watched_work> work;
    std::condition_variable come;
    bool has_thread;
};
// Never destroyed: the thread waits in it when the program ends.
profiler_state &state = *new profiler_state();
std::atomic<int> untold, begun; // operations

void *start(ncclComm *comm, ptb_nccl_event *event)
{
    return sim_plugin_start(comm, comm->profiler, event);
}

// ---- the inside

// A proxy may serve another process: then it has the context of that one.
void *start_of_proxy(ncclComm *comm, ptb_nccl_event *event)
{
    return sim_plugin_start(comm, sim_option("nccl_pxn") > 0 ? (void *)0x10 : comm->profiler, event);
}

size_t bytes_of(const watched_work *w)
{
    return w->operation.call.count * sim_nccl_type_size(w->operation.call.type);
}

void tell_begin(watched_work *w)
{
    ptb_nccl_event event = {};
    event.parent = w->task;
    if (w->mask & PTB_NCCL_KERNEL_CH) { // NCCL leaves its rank 0
        event.type = PTB_NCCL_KERNEL_CH;
        event.kernel_ch.channel = 0;
        event.kernel_ch.gpu_ns = w->times->begin_ns.load();
        w->kernel = start(w->comm, &event);
    }
    event.rank = w->comm->rank;
    for (int is_send = 0; is_send <= 1 && (w->mask & PROXIES); is_send++) {
        const int ranks = w->comm->ranks;
        event.type = PTB_NCCL_PROXY_OP;
        event.proxy_op.pid = getpid();
        event.proxy_op.channel = 0;
        event.proxy_op.peer = (w->comm->rank + (is_send ? 1 : ranks - 1)) % ranks;
        event.proxy_op.steps = 1;
        event.proxy_op.chunk_bytes = (int)bytes_of(w);
        event.proxy_op.is_send = is_send;
        w->proxy[is_send] = start_of_proxy(w->comm, &event);
    }
}

// The one step of the proxy and its request, told late: the bytes are known at the end. Ends the proxy.
void tell_step(watched_work *w, bool is_send)
{
    ptb_nccl_event event = {};
    event.parent = w->proxy[is_send];
    event.rank = w->comm->rank;
    event.type = PTB_NCCL_PROXY_STEP;
    const bool steps = w->mask & (PTB_NCCL_PROXY_STEP | PTB_NCCL_NET_PLUGIN);
    void *step = steps && w->proxy[is_send] ? start_of_proxy(w->comm, &event) : NULL;
    event.parent = step;
    event.type = PTB_NCCL_NET_PLUGIN;
    event.net_plugin.id = (1 << 16) | 1; // InfiniBand, version 1
    void *request = is_send && (w->mask & PTB_NCCL_NET_PLUGIN) ? start_of_proxy(w->comm, &event) : NULL;
    sim_plugin_proxy_states(w->proxy[is_send], step, is_send, bytes_of(w));
    if (request)
        sim_plugin_stop(request);
    if (step)
        sim_plugin_stop(step);
    if (w->proxy[is_send])
        sim_plugin_stop(w->proxy[is_send]);
}

void tell_end(watched_work *w)
{
    for (int is_send = 0; is_send <= 1; is_send++)
        tell_step(w, is_send);
    if (w->kernel)
        sim_plugin_kernel_stop(w->kernel, w->times->end_ns.load());
    cudaFreeHost(w->times);
    w->comm->watched.fetch_sub(1);
    untold.fetch_sub(1);
}

void proxy_thread(void)
{
    const long slow_ms = sim_option("nccl_slow_proxy");
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
            begun.fetch_add(1);
            while (!w.times->end_ns.load())
                usleep(20);
            if (slow_ms > 0)
                usleep((useconds_t)slow_ms * 1000);
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
        event->parent = group_handle;
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
    event->parent = group_handle;
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

int sim_nccl_begun(void)
{
    return begun.load();
}

void sim_nccl_profiler_init(ncclComm *comm)
{
    if (sim_plugin_load())
        sim_plugin_init(comm, &state.mask);
}

void sim_nccl_profiler_finalize(ncclComm *comm)
{
    while (comm->watched.load())
        usleep(200);
    sim_plugin_finalize(comm);
}

namespace {
bool is_captured(cudaStream_t stream)
{
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    return cudaStreamIsCapturing(stream, &status) || status != cudaStreamCaptureStatusNone;
}

// The function that the program called, from version 5 on.
void tell_call(const sim_nccl_operation &o, void *group)
{
    ptb_nccl_event event = {};
    const bool message = o.call.function >= SIM_NCCL_FUNCTIONS;
    event.parent = group;
    event.type = message ? PTB_NCCL_P2P_API : PTB_NCCL_COLL_API;
    if (message)
        event.p2p_api.function = sim_nccl_function_name(o.call.function);
    else
        event.coll_api.function = sim_nccl_function_name(o.call.function);
    if (!message)
        event.coll_api.graph_captured = is_captured(o.stream);
    start(o.comm, &event);
}

void tell_copy_engine(const sim_nccl_operation &o)
{
    ptb_nccl_event event = {};
    event.type = PTB_NCCL_CE_COLL;
    event.rank = o.comm->rank;
    event.ce_coll.function = sim_nccl_function_name(o.call.function);
    event.ce_coll.count = o.call.count;
    void *handle = start(o.comm, &event);
    if (handle)
        sim_plugin_stop(handle);
}

// Whether an operation is told of, as the version has it (ncclProfilerStartTaskEvents).
bool is_told(int mask, bool message, void *group)
{
    if (sim_plugin_version() <= 4 && !group)
        return false;
    if (sim_plugin_version() <= 2)
        return mask & (PTB_NCCL_PROXY_OP | PTB_NCCL_PROXY_STEP | PTB_NCCL_COLL);
    return mask & ((message ? PTB_NCCL_P2P : PTB_NCCL_COLL) | INSIDE);
}
} // namespace

void sim_nccl_profiler_begin(ncclComm *comm, const std::vector<sim_nccl_operation> &operations,
                             sim_nccl_told *told)
{
    enum { SYMMETRIC = 1, COPY_ENGINE = 2 };
    const int copies = PTB_NCCL_CE_COLL | PTB_NCCL_CE_SYNC | PTB_NCCL_CE_BATCH;
    const int mask = comm->profiler ? __atomic_load_n(&state.mask, __ATOMIC_RELAXED) : 0;
    const long kernel = sim_option("nccl_kernel");
    told->mask = mask;
    told->tasks.assign(operations.size(), NULL);
    if (!mask)
        return;
    ptb_nccl_event event = {};
    event.type = PTB_NCCL_GROUP_API;
    told->api = start(comm, &event);
    for (const sim_nccl_operation &o : operations)
        if (mask & (CALLS | PTB_NCCL_COLL | PTB_NCCL_P2P | INSIDE | copies))
            tell_call(o, told->api);
    if (kernel == COPY_ENGINE && (mask & copies))
        for (const sim_nccl_operation &o : operations)
            tell_copy_engine(o);
    if (kernel == COPY_ENGINE || kernel == SYMMETRIC)
        told->mask = 0; // of these nothing else is told
    event = {};
    event.type = PTB_NCCL_GROUP;
    if (told->mask & (PTB_NCCL_GROUP | PTB_NCCL_COLL | PTB_NCCL_P2P | INSIDE))
        told->group = start(comm, &event);
    for (size_t i = 0; i < operations.size(); i++) {
        if (operations[i].run.is_symmetric)
            continue;
        fill_task(operations[i], told->group, &event);
        if (is_told(told->mask, operations[i].call.function >= SIM_NCCL_FUNCTIONS, told->group))
            told->tasks[i] = start(comm, &event);
    }
}

sim_nccl_times *sim_nccl_profiler_times(ncclComm *comm, const sim_nccl_operation &operation,
                                        sim_nccl_told *told, size_t which)
{
    void *memory;
    // A capture does nothing yet, and allows no allocation: of what its launches do inside nothing is told.
    if (is_captured(operation.stream))
        return NULL;
    if (!(told->mask & INSIDE) || operation.run.is_symmetric ||
        cudaMallocHost(&memory, sizeof(sim_nccl_times)))
        return NULL;
    sim_nccl_times *times = (sim_nccl_times *)memory;
    times->begin_ns.store(0);
    times->end_ns.store(0);
    comm->watched.fetch_add(1);
    untold.fetch_add(1);
    std::lock_guard<std::mutex> hold(state.mutex);
    state.work.push_back({comm, told->tasks[which], NULL, {NULL, NULL}, times, operation, told->mask});
    if (!state.has_thread)
        std::thread(proxy_thread).detach();
    state.has_thread = true;
    state.come.notify_one();
    return times;
}

void sim_nccl_profiler_end(ncclComm *comm, sim_nccl_told *told)
{
    if (!comm->profiler)
        return;
    // Up to version 2 also of what has no handle.
    for (void *task : told->tasks)
        if (task || (sim_plugin_version() <= 2 && told->group))
            sim_plugin_stop(task);
    if (told->group)
        sim_plugin_stop(told->group);
    if (told->api)
        sim_plugin_stop(told->api);
}
