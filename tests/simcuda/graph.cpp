// CUDA graphs of the simulated device: what a capture records are the entries that would have gone to the
// queues, each with those that it comes after. A launch puts them into the queue of one stream, in the order
// in which they were recorded, which respects all dependencies. An executable graph has clones of the nodes,
// with numbers of their own, as with the real one.
#include "tests/simcuda/runtime.hpp"

#include <cuda.h>

#include <algorithm>

#include <string.h>
#include <unistd.h>

struct CUgraph_st {
    std::vector<sim_node> nodes;
};
struct CUgraphExec_st {
    std::vector<sim_node> nodes;
};

namespace {
std::mutex lock; // of all captures
std::set<sim_capture *> &captures = *new std::set<sim_capture *>;
std::set<CUgraph_st *> &graphs = *new std::set<CUgraph_st *>;     // that are not destroyed
std::set<std::string> &kernel_names = *new std::set<std::string>; // a function's handle is its name in here
std::atomic<uint64_t> nodes_made;
std::atomic<sim_node_hook *> node_hook;

uint64_t number_node(uint64_t original)
{
    const uint64_t node = nodes_made.fetch_add(1) + 1;
    sim_node_hook *hook = node_hook.load();
    if (hook)
        hook(node, original);
    return node;
}

cudaError_t spoil(sim_capture *capture, cudaError_t error)
{
    capture->is_valid = false;
    return error;
}

// Everything must come before where the origin ends.
bool is_joined(const sim_capture *capture, const std::vector<int> &last)
{
    std::vector<bool> reached(capture->nodes.size());
    std::vector<int> open = last;
    while (!open.empty()) {
        const int node = open.back();
        open.pop_back();
        if (reached[(size_t)node])
            continue;
        reached[(size_t)node] = true;
        const std::vector<int> &after = capture->nodes[(size_t)node].after;
        open.insert(open.end(), after.begin(), after.end());
    }
    return std::find(reached.begin(), reached.end(), false) == reached.end();
}

sim_node make_node(const sim_entry *entry, const void *arguments, size_t bytes, const std::vector<int> &after)
{
    sim_node node;
    node.id = number_node(0);
    node.entry.resize(sizeof *entry + bytes);
    memcpy(node.entry.data(), (const void *)entry, sizeof *entry);
    if (bytes)
        memcpy(node.entry.data() + sizeof *entry, arguments, bytes);
    node.after = after;
    return node;
}

// One node, now: into the queue, or into the capture of the stream.
cudaError_t launch_node(CUstream_st *stream, const sim_node *node, uint32_t correlation)
{
    sim_entry entry;
    memcpy((void *)&entry, node->entry.data(), sizeof entry);
    const char *arguments = node->entry.data() + sizeof entry;
    const size_t bytes = node->entry.size() - sizeof entry;
    if (entry.kind == SIM_ENTRY_WORK) {
        entry.work.graph_node = node->id;
        entry.work.activity.correlation = correlation;
    }
    if (stream->capture)
        return sim_capture_push(stream, &entry, arguments, bytes, node->event);
    if (!node->event)
        return sim_push(stream, &entry, arguments, bytes, NULL);
    std::lock_guard<std::mutex> of(node->event->lock);
    if (entry.kind == SIM_ENTRY_WAIT) {
        entry.wait.stream = node->event->stream;
        entry.wait.number = node->event->number;
        return sim_push(stream, &entry, NULL, 0, NULL);
    }
    const cudaError_t error = sim_push(stream, &entry, NULL, 0, &node->event->number);
    node->event->stream = stream->slot;
    return error;
}
} // namespace

cudaError_t sim_capture_push(CUstream_st *stream, const sim_entry *entry, const void *arguments, size_t bytes,
                             const std::shared_ptr<sim_recorded> &event)
{
    std::lock_guard<std::mutex> hold(lock);
    sim_capture *capture = stream->capture.get();
    if (!capture->is_valid)
        return cudaErrorStreamCaptureInvalidated;
    capture->nodes.push_back(make_node(entry, arguments, bytes, stream->last));
    capture->nodes.back().event = event;
    stream->last = {(int)capture->nodes.size() - 1};
    return cudaSuccess;
}

cudaError_t sim_capture_record(CUstream_st *stream, CUevent_st *event, bool external)
{
    if (external) {
        sim_entry entry = {};
        entry.kind = SIM_ENTRY_EVENT;
        entry.event.slot = event->recorded->time_slot;
        return sim_capture_push(stream, &entry, NULL, 0, event->recorded);
    }
    std::lock_guard<std::mutex> hold(lock);
    if (!stream->capture->is_valid)
        return cudaErrorStreamCaptureInvalidated;
    event->capture = stream->capture;
    event->last = stream->last;
    return cudaSuccess;
}

cudaError_t sim_capture_wait(CUstream_st *stream, CUevent_st *event, bool external)
{
    if (external) {
        sim_entry entry = {};
        entry.kind = SIM_ENTRY_WAIT;
        return stream->capture ? sim_capture_push(stream, &entry, NULL, 0, event->recorded)
                               : cudaErrorInvalidValue;
    }
    std::lock_guard<std::mutex> hold(lock);
    if (!event->capture) // it was recorded outside
        return event->recorded->number ? spoil(stream->capture.get(), cudaErrorStreamCaptureIsolation)
                                       : cudaSuccess;
    if (!captures.count(event->capture.get())) // its capture has ended
        return stream->capture ? spoil(stream->capture.get(), cudaErrorStreamCaptureIsolation)
                               : cudaErrorCapturedEvent;
    if (!event->capture->is_valid)
        return cudaErrorStreamCaptureInvalidated;
    if (stream->capture && stream->capture != event->capture) {
        spoil(event->capture.get(), cudaSuccess);
        return spoil(stream->capture.get(), cudaErrorStreamCaptureMerge);
    }
    if (!stream->capture) {
        stream->capture = event->capture;
        stream->capture->streams.insert(stream);
        stream->is_origin = false;
        stream->last.clear();
    }
    for (int node : event->last)
        if (std::find(stream->last.begin(), stream->last.end(), node) == stream->last.end())
            stream->last.push_back(node);
    return cudaSuccess;
}

void sim_capture_leave(CUstream_st *stream)
{
    std::lock_guard<std::mutex> hold(lock);
    if (!stream->capture)
        return;
    stream->capture->is_valid = false;
    stream->capture->streams.erase(stream);
    if (stream->is_origin)
        captures.erase(stream->capture.get());
}

cudaError_t sim_capture_forbids_waiting(CUstream_st *stream)
{
    std::lock_guard<std::mutex> hold(lock);
    return stream->capture ? spoil(stream->capture.get(), cudaErrorStreamCaptureUnsupported) : cudaSuccess;
}

cudaError_t sim_capture_forbids_unsafe(void)
{
    std::lock_guard<std::mutex> hold(lock);
    for (sim_capture *capture : captures)
        if (capture->mode == cudaStreamCaptureModeGlobal ||
            (capture->mode == cudaStreamCaptureModeThreadLocal && capture->thread == gettid()))
            return spoil(capture, cudaErrorStreamCaptureUnsupported);
    return cudaSuccess;
}

cudaError_t sim_capture_forbids_legacy(int device)
{
    std::lock_guard<std::mutex> hold(lock);
    for (sim_capture *capture : captures)
        for (const CUstream_st *stream : capture->streams)
            if (stream->device == device && !(stream->flags & cudaStreamNonBlocking))
                return spoil(capture, cudaErrorStreamCaptureImplicit);
    return cudaSuccess;
}

void sim_graph_hook(sim_node_hook *hook)
{
    node_hook.store(hook);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode)
{
    SIM_BEGIN();
    CUstream_st *on = sim_stream(stream);
    if (!on)
        return sim_give(cudaErrorInvalidResourceHandle);
    if (!stream || stream == cudaStreamLegacy) // not of the legacy stream
        return sim_give(cudaErrorStreamCaptureUnsupported);
    std::lock_guard<std::recursive_mutex> of(on->lock);
    std::lock_guard<std::mutex> hold(lock);
    if (on->capture)
        return sim_give(cudaErrorIllegalState);
    on->capture = std::make_shared<sim_capture>();
    on->capture->mode = mode;
    on->capture->thread = gettid();
    on->capture->streams.insert(on);
    on->is_origin = true;
    on->last.clear();
    captures.insert(on->capture.get());
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    SIM_BEGIN();
    CUstream_st *on = sim_stream(stream);
    if (!on || !graph)
        return sim_give(cudaErrorInvalidResourceHandle);
    *graph = NULL;
    std::lock_guard<std::recursive_mutex> of(on->lock);
    std::lock_guard<std::mutex> hold(lock);
    std::shared_ptr<sim_capture> capture = on->capture;
    if (!capture)
        return sim_give(cudaErrorIllegalState);
    if (!on->is_origin)
        return sim_give(spoil(capture.get(), cudaErrorStreamCaptureUnmatched));
    if (capture->mode != cudaStreamCaptureModeRelaxed && capture->thread != gettid())
        return sim_give(cudaErrorStreamCaptureWrongThread);
    cudaError_t error = capture->is_valid ? cudaSuccess : cudaErrorStreamCaptureInvalidated;
    if (!error && !is_joined(capture.get(), on->last))
        error = cudaErrorStreamCaptureUnjoined;
    captures.erase(capture.get());
    for (CUstream_st *joined : capture->streams) {
        joined->capture = NULL;
        joined->last.clear();
    }
    if (!error) {
        *graph = new CUgraph_st{capture->nodes};
        graphs.insert(*graph);
    }
    return sim_give(error);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *status)
{
    SIM_BEGIN();
    CUstream_st *on = sim_stream(stream);
    if (!on || !status)
        return sim_give(cudaErrorInvalidResourceHandle);
    std::lock_guard<std::mutex> hold(lock);
    *status = !on->capture            ? cudaStreamCaptureStatusNone
              : on->capture->is_valid ? cudaStreamCaptureStatusActive
                                      : cudaStreamCaptureStatusInvalidated;
    return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *mode)
{
    SIM_BEGIN();
    static __thread cudaStreamCaptureMode current = cudaStreamCaptureModeGlobal;
    const cudaStreamCaptureMode before = current;
    current = *mode;
    *mode = before;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long)
{
    SIM_BEGIN();
    if (!exec || !graph)
        return sim_give(cudaErrorInvalidValue);
    *exec = new CUgraphExec_st{graph->nodes};
    for (sim_node &node : (*exec)->nodes)
        node.id = number_node(node.id);
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream)
{
    SIM_BEGIN();
    return sim_give(exec && sim_stream(stream) ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    SIM_BEGIN();
    CUstream_st *on = sim_stream(stream);
    if (!exec || !on)
        return sim_give(cudaErrorInvalidResourceHandle);
    std::lock_guard<std::recursive_mutex> hold(on->lock);
    const uint32_t correlation = sim_next_correlation("cudaGraphLaunch");
    for (const sim_node &node : exec->nodes) {
        const cudaError_t error = launch_node(on, &node, correlation);
        if (error)
            return sim_give(error);
    }
    return cudaSuccess;
}

// A node's handle is its number.
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count)
{
    SIM_BEGIN();
    if (!graph || !count)
        return sim_give(cudaErrorInvalidValue);
    for (size_t i = 0; nodes && i < *count; i++)
        nodes[i] = i < graph->nodes.size() ? (cudaGraphNode_t)graph->nodes[i].id : NULL;
    if (!nodes || *count > graph->nodes.size())
        *count = graph->nodes.size();
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    delete exec; // what was launched is in the queue
    return sim_begin_call();
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    std::unique_lock<std::mutex> hold(lock);
    graphs.erase(graph);
    hold.unlock();
    delete graph;
    return sim_begin_call();
}

// ---- what a node is

namespace {
bool find_node(cudaGraphNode_t node, sim_entry *entry)
{
    std::lock_guard<std::mutex> hold(lock);
    for (const CUgraph_st *graph : graphs)
        for (const sim_node &n : graph->nodes)
            if (n.id == (uint64_t)node) {
                memcpy((void *)entry, n.entry.data(), sizeof *entry);
                return true;
            }
    return false;
}

cudaGraphNodeType type_of(const sim_entry *entry)
{
    if (entry->kind != SIM_ENTRY_WORK)
        return entry->kind == SIM_ENTRY_WAIT ? cudaGraphNodeTypeWaitEvent : cudaGraphNodeTypeEventRecord;
    if (!entry->work.has_activity)
        return cudaGraphNodeTypeHost;
    switch (entry->work.activity.kind) {
    case SIM_KERNEL:
        return cudaGraphNodeTypeKernel;
    case SIM_COPY:
        return cudaGraphNodeTypeMemcpy;
    case SIM_SET:
        return cudaGraphNodeTypeMemset;
    default:
        return cudaGraphNodeTypeHost;
    }
}
} // namespace

cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType *type)
{
    SIM_BEGIN();
    sim_entry entry;
    if (!find_node(node, &entry))
        return sim_give(cudaErrorInvalidValue);
    *type = type_of(&entry);
    return cudaSuccess;
}

// Of the driver.
extern "C" {
CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *is)
{
    sim_entry entry;
    if (!find_node(node, &entry) || type_of(&entry) != cudaGraphNodeTypeKernel)
        return CUDA_ERROR_INVALID_VALUE;
    std::lock_guard<std::mutex> hold(lock);
    *is = {};
    is->func = (CUfunction)kernel_names.insert(entry.work.activity.name).first->c_str();
    return CUDA_SUCCESS;
}

CUresult cuFuncGetName(const char **name, CUfunction function)
{
    *name = (const char *)function;
    return function ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuKernelGetName(const char **name, CUkernel)
{
    *name = NULL;
    return CUDA_ERROR_INVALID_HANDLE;
}
}
