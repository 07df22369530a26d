// CUPTI's activity API of the simulated device: what the program enables is recorded as the real one does,
// into buffers that the program's callbacks give and take. An API call of the program is a record of its own
// (and before it one for each kind of external correlation that its thread has pushed); kernels, copies and
// memsets come from the device process when it has finished them, so only a flush after a synchronisation
// delivers all of them.
//
// Calls that wait for a stream are records too. Whoever subscribes to the callbacks of resources is told of
// nodes of graphs, on the thread that makes them.
//
// PTB_SIM: cupti_busy=1 another tool has it already; cupti_subscribed=1 another one has the callbacks alone;
// cupti_room=N records find place only while fewer than N are under way, further ones are dropped and
// counted; cupti_refuse=K the kind of number K cannot be enabled, with cupti_error=E the error is E and not
// CUPTI_ERROR_NOT_COMPATIBLE.
#include "tests/simcuda/sim.hpp"

#include <cupti.h>

#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace {

#if CUPTI_API_VERSION >= 130000
typedef CUpti_ActivityKernel10 kernel_record;
typedef CUpti_ActivityMemcpy6 copy_record;
typedef CUpti_ActivitySynchronization2 sync_record;
#else
typedef CUpti_ActivityKernel9 kernel_record;
typedef CUpti_ActivityMemcpy5 copy_record;
typedef CUpti_ActivitySynchronization sync_record;
#endif

struct buffer {
    uint8_t *memory;
    size_t size, used;
};

// Names of kernels live as long as the process, as with the real one.
struct {
    std::recursive_mutex lock;
    CUpti_BuffersCallbackRequestFunc request;
    CUpti_BuffersCallbackCompleteFunc complete;
    CUpti_TimestampCallbackFunc timestamp;
    std::set<int> enabled;
    buffer filling;
    std::set<std::string> names;
    size_t dropped;
    uint64_t records;            // since the last flush
    CUpti_CallbackFunc callback; // NULL: nobody has subscribed
    void *userdata;
    std::set<CUpti_CallbackId> resources; // callbacks that are on
} cupti;

thread_local std::vector<uint64_t> external[CUPTI_EXTERNAL_CORRELATION_KIND_SIZE];

bool is_on(CUpti_ActivityKind kind)
{
    return cupti.enabled.count(kind);
}

uint64_t monotonic_ns()
{
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t now_ns()
{
    return cupti.timestamp ? cupti.timestamp() : monotonic_ns();
}

void deliver()
{
    if (!cupti.filling.memory)
        return;
    buffer full = cupti.filling;
    cupti.filling = {};
    cupti.complete(NULL, 0, full.memory, full.size, full.used);
}

// Room for one record, zeroed; NULL: dropped.
template <typename record_t> record_t *append(CUpti_ActivityKind kind)
{
    const size_t bytes = (sizeof(record_t) + 7) / 8 * 8;
    const long room = sim_option("cupti_room");
    if (room >= 0 && cupti.records >= (uint64_t)room) {
        cupti.dropped++;
        return NULL;
    }
    if (cupti.filling.memory && cupti.filling.used + bytes > cupti.filling.size)
        deliver();
    if (!cupti.filling.memory) {
        size_t most = 0;
        cupti.request(&cupti.filling.memory, &cupti.filling.size, &most);
        cupti.filling.used = 0;
    }
    if (!cupti.filling.memory || cupti.filling.used + bytes > cupti.filling.size) {
        cupti.dropped++;
        return NULL;
    }
    record_t *record = (record_t *)(cupti.filling.memory + cupti.filling.used);
    memset((void *)record, 0, bytes);
    record->kind = kind;
    cupti.filling.used += bytes;
    cupti.records++;
    return record;
}

void on_call(const char *, uint32_t correlation)
{
    std::lock_guard<std::recursive_mutex> hold(cupti.lock);
    if (!is_on(CUPTI_ACTIVITY_KIND_RUNTIME))
        return;
    for (int kind = 0; kind < CUPTI_EXTERNAL_CORRELATION_KIND_SIZE; kind++) {
        if (external[kind].empty() || !is_on(CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION))
            continue;
        auto *e = append<CUpti_ActivityExternalCorrelation>(CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION);
        if (!e)
            continue;
        e->externalKind = (CUpti_ExternalCorrelationKind)kind;
        e->externalId = external[kind].back();
        e->correlationId = correlation;
    }
    auto *call = append<CUpti_ActivityAPI>(CUPTI_ACTIVITY_KIND_RUNTIME);
    if (!call)
        return;
    call->start = now_ns();
    call->end = now_ns();
    call->processId = (uint32_t)getpid();
    call->threadId = (uint32_t)syscall(SYS_gettid);
    call->correlationId = correlation;
}

// What makes a time of the device, CLOCK_MONOTONIC, one of the program's clock: nothing where that is the
// same, however long this thread is held up between two readings.
int64_t clock_shift_ns()
{
    const uint64_t before_ns = monotonic_ns(), program_ns = now_ns(), after_ns = monotonic_ns();
    if (program_ns >= before_ns && program_ns <= after_ns)
        return 0;
    return (int64_t)program_ns - (int64_t)(before_ns + (after_ns - before_ns) / 2);
}

void on_wait(uint32_t correlation, uint32_t stream, uint64_t begin_ns)
{
    std::lock_guard<std::recursive_mutex> hold(cupti.lock);
    if (!is_on(CUPTI_ACTIVITY_KIND_SYNCHRONIZATION))
        return;
    auto *s = append<sync_record>(CUPTI_ACTIVITY_KIND_SYNCHRONIZATION);
    if (!s)
        return;
    const int64_t shift_ns = clock_shift_ns();
    s->type = CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE;
    s->start = begin_ns + (uint64_t)shift_ns;
    s->end = monotonic_ns() + (uint64_t)shift_ns;
    s->correlationId = correlation;
    s->contextId = 1;
    s->streamId = stream;
}

// A node's handle is its number (graph.cpp).
void on_node(uint64_t node, uint64_t original)
{
    const CUpti_CallbackId id =
        original ? CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED : CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED;
    std::unique_lock<std::recursive_mutex> hold(cupti.lock);
    CUpti_CallbackFunc callback = cupti.resources.count(id) ? cupti.callback : NULL;
    void *userdata = cupti.userdata;
    hold.unlock();
    if (!callback)
        return;
    CUpti_GraphData graph = {};
    graph.node = (CUgraphNode)node;
    graph.originalNode = (CUgraphNode)original;
    CUpti_ResourceData data = {};
    data.resourceDescriptor = &graph;
    callback(userdata, CUPTI_CB_DOMAIN_RESOURCE, id, &data);
}

void add_kernel(const sim_record &r, int64_t shift_ns)
{
    if (!is_on(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) && !is_on(CUPTI_ACTIVITY_KIND_KERNEL))
        return;
    auto *k = append<kernel_record>(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
    if (!k)
        return;
    k->start = r.begin_ns + (uint64_t)shift_ns;
    k->end = r.end_ns + (uint64_t)shift_ns;
    k->deviceId = r.device;
    k->contextId = 1;
    k->streamId = r.stream;
    k->gridX = (int32_t)r.activity.grid[0];
    k->gridY = (int32_t)r.activity.grid[1];
    k->gridZ = (int32_t)r.activity.grid[2];
    k->blockX = (int32_t)r.activity.block[0];
    k->blockY = (int32_t)r.activity.block[1];
    k->blockZ = (int32_t)r.activity.block[2];
    k->correlationId = r.activity.correlation;
    k->graphNodeId = r.graph_node;
    k->name = cupti.names.insert(r.activity.name).first->c_str();
}

void add_copy(const sim_record &r, int64_t shift_ns)
{
    if (!is_on(CUPTI_ACTIVITY_KIND_MEMCPY))
        return;
    auto *c = append<copy_record>(CUPTI_ACTIVITY_KIND_MEMCPY);
    if (!c)
        return;
    c->start = r.begin_ns + (uint64_t)shift_ns;
    c->end = r.end_ns + (uint64_t)shift_ns;
    c->copyKind = (uint8_t)(r.activity.copy_kind == cudaMemcpyHostToDevice   ? CUPTI_ACTIVITY_MEMCPY_KIND_HTOD
                            : r.activity.copy_kind == cudaMemcpyDeviceToHost ? CUPTI_ACTIVITY_MEMCPY_KIND_DTOH
                            : r.activity.copy_kind == cudaMemcpyHostToHost   ? CUPTI_ACTIVITY_MEMCPY_KIND_HTOH
                                                                           : CUPTI_ACTIVITY_MEMCPY_KIND_DTOD);
    c->bytes = r.activity.bytes;
    c->deviceId = r.device;
    c->contextId = 1;
    c->streamId = r.stream;
    c->correlationId = r.activity.correlation;
    c->graphNodeId = r.graph_node;
}

void add_peer_copy(const sim_record &r, int64_t shift_ns)
{
    if (!is_on(CUPTI_ACTIVITY_KIND_MEMCPY2))
        return;
    auto *c = append<CUpti_ActivityMemcpyPtoP4>(CUPTI_ACTIVITY_KIND_MEMCPY2);
    if (!c)
        return;
    c->start = r.begin_ns + (uint64_t)shift_ns;
    c->end = r.end_ns + (uint64_t)shift_ns;
    c->copyKind = CUPTI_ACTIVITY_MEMCPY_KIND_PTOP;
    c->bytes = r.activity.bytes;
    c->deviceId = r.device;
    c->contextId = 1;
    c->streamId = r.stream;
    c->correlationId = r.activity.correlation;
    c->graphNodeId = r.graph_node;
}

void add_set(const sim_record &r, int64_t shift_ns)
{
    if (!is_on(CUPTI_ACTIVITY_KIND_MEMSET))
        return;
    auto *s = append<CUpti_ActivityMemset4>(CUPTI_ACTIVITY_KIND_MEMSET);
    if (!s)
        return;
    s->start = r.begin_ns + (uint64_t)shift_ns;
    s->end = r.end_ns + (uint64_t)shift_ns;
    s->bytes = r.activity.bytes;
    s->deviceId = r.device;
    s->contextId = 1;
    s->streamId = r.stream;
    s->correlationId = r.activity.correlation;
    s->graphNodeId = r.graph_node;
}

// What the device process has finished.
void collect()
{
    static sim_record records[256];
    const int64_t shift_ns = clock_shift_ns();
    uint64_t dropped = 0;
    while (size_t n = sim_activity_read(records, 256, &dropped)) {
        cupti.dropped += dropped;
        for (size_t i = 0; i < n; i++)
            switch (records[i].activity.kind) {
            case SIM_KERNEL:
                add_kernel(records[i], shift_ns);
                break;
            case SIM_COPY:
                if (records[i].activity.copy_kind == SIM_COPY_PEER)
                    add_peer_copy(records[i], shift_ns);
                else
                    add_copy(records[i], shift_ns);
                break;
            case SIM_SET:
                add_set(records[i], shift_ns);
                break;
            case SIM_QUIET:
                break;
            }
    }
    cupti.dropped += dropped;
}

size_t record_bytes(const CUpti_Activity *record)
{
    switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION:
        return sizeof(CUpti_ActivityExternalCorrelation);
    case CUPTI_ACTIVITY_KIND_RUNTIME:
        return sizeof(CUpti_ActivityAPI);
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
        return sizeof(kernel_record);
    case CUPTI_ACTIVITY_KIND_MEMCPY:
        return sizeof(copy_record);
    case CUPTI_ACTIVITY_KIND_MEMCPY2:
        return sizeof(CUpti_ActivityMemcpyPtoP4);
    case CUPTI_ACTIVITY_KIND_MEMSET:
        return sizeof(CUpti_ActivityMemset4);
    case CUPTI_ACTIVITY_KIND_SYNCHRONIZATION:
        return sizeof(sync_record);
    case CUPTI_ACTIVITY_KIND_OVERHEAD:
        return sizeof(CUpti_ActivityOverhead2);
    default:
        return 0;
    }
}

} // namespace

extern "C" {

CUptiResult cuptiActivityRegisterTimestampCallback(CUpti_TimestampCallbackFunc timestamp)
{
    if (!timestamp)
        return CUPTI_ERROR_INVALID_PARAMETER;
    std::lock_guard<std::recursive_mutex> hold(cupti.lock);
    cupti.timestamp = timestamp;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc request,
                                           CUpti_BuffersCallbackCompleteFunc complete)
{
    if (!request || !complete)
        return CUPTI_ERROR_INVALID_PARAMETER;
    if (sim_option("cupti_busy") > 0)
        return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
    std::lock_guard<std::recursive_mutex> hold(cupti.lock);
    cupti.request = request;
    cupti.complete = complete;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind)
{
    std::lock_guard<std::recursive_mutex> hold(cupti.lock);
    if (!cupti.request)
        return CUPTI_ERROR_NOT_INITIALIZED;
    if (sim_option("cupti_refuse") == (long)kind)
        return sim_option("cupti_error") > 0 ? (CUptiResult)sim_option("cupti_error")
                                             : CUPTI_ERROR_NOT_COMPATIBLE;
    cupti.enabled.insert(kind);
    sim_activity_hook(on_call, on_wait);
    sim_activity_on(true);
    return CUPTI_SUCCESS;
}

// What is finished by now was recorded while it was enabled.
CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind)
{
    std::lock_guard<std::recursive_mutex> hold(cupti.lock);
    collect();
    cupti.enabled.erase(kind);
    if (cupti.enabled.empty()) {
        sim_activity_on(false);
        sim_activity_hook(NULL, NULL);
    }
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityFlushAll(uint32_t)
{
    std::lock_guard<std::recursive_mutex> hold(cupti.lock);
    if (!cupti.request)
        return CUPTI_ERROR_INVALID_OPERATION;
    const uint64_t begin_ns = now_ns();
    collect();
    if (is_on(CUPTI_ACTIVITY_KIND_OVERHEAD)) {
        auto *o = append<CUpti_ActivityOverhead2>(CUPTI_ACTIVITY_KIND_OVERHEAD);
        if (o) {
            o->overheadKind = CUPTI_ACTIVITY_OVERHEAD_CUPTI_BUFFER_FLUSH;
            o->start = begin_ns;
            o->end = now_ns();
        }
    }
    deliver();
    cupti.records = 0;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityGetNextRecord(uint8_t *memory, size_t valid, CUpti_Activity **record)
{
    if (!memory || !record)
        return CUPTI_ERROR_INVALID_PARAMETER;
    uint8_t *next = memory;
    if (*record)
        next = (uint8_t *)*record + (record_bytes(*record) + 7) / 8 * 8;
    if (next >= memory + valid)
        return CUPTI_ERROR_MAX_LIMIT_REACHED;
    *record = (CUpti_Activity *)next;
    return record_bytes(*record) ? CUPTI_SUCCESS : CUPTI_ERROR_INVALID_KIND;
}

CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext, uint32_t, size_t *dropped)
{
    std::lock_guard<std::recursive_mutex> hold(cupti.lock);
    *dropped = cupti.dropped;
    cupti.dropped = 0;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityPushExternalCorrelationId(CUpti_ExternalCorrelationKind kind, uint64_t id)
{
    if (kind <= CUPTI_EXTERNAL_CORRELATION_KIND_INVALID || kind >= CUPTI_EXTERNAL_CORRELATION_KIND_SIZE)
        return CUPTI_ERROR_INVALID_PARAMETER;
    external[kind].push_back(id);
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityPopExternalCorrelationId(CUpti_ExternalCorrelationKind kind, uint64_t *last)
{
    if (kind <= CUPTI_EXTERNAL_CORRELATION_KIND_INVALID || kind >= CUPTI_EXTERNAL_CORRELATION_KIND_SIZE)
        return CUPTI_ERROR_INVALID_PARAMETER;
    if (external[kind].empty())
        return CUPTI_ERROR_QUEUE_EMPTY;
    if (last)
        *last = external[kind].back();
    external[kind].pop_back();
    return CUPTI_SUCCESS;
}

// As the real one, of which a process has one subscriber.
CUptiResult cuptiSubscribe(CUpti_SubscriberHandle *subscriber, CUpti_CallbackFunc callback, void *userdata)
{
    if (!subscriber)
        return CUPTI_ERROR_INVALID_PARAMETER;
    std::lock_guard<std::recursive_mutex> hold(cupti.lock);
    if (cupti.callback || sim_option("cupti_busy") > 0 || sim_option("cupti_subscribed") > 0)
        return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
    cupti.callback = callback;
    cupti.userdata = userdata;
    *subscriber = (CUpti_SubscriberHandle)&cupti;
    sim_graph_hook(on_node);
    return CUPTI_SUCCESS;
}

CUptiResult cuptiUnsubscribe(CUpti_SubscriberHandle subscriber)
{
    std::lock_guard<std::recursive_mutex> hold(cupti.lock);
    if (subscriber != (CUpti_SubscriberHandle)&cupti || !cupti.callback)
        return CUPTI_ERROR_INVALID_PARAMETER;
    sim_graph_hook(NULL);
    cupti.callback = NULL;
    cupti.resources.clear();
    return CUPTI_SUCCESS;
}

CUptiResult cuptiEnableCallback(uint32_t enable, CUpti_SubscriberHandle subscriber,
                                CUpti_CallbackDomain domain, CUpti_CallbackId id)
{
    std::lock_guard<std::recursive_mutex> hold(cupti.lock);
    if (subscriber != (CUpti_SubscriberHandle)&cupti || !cupti.callback || domain != CUPTI_CB_DOMAIN_RESOURCE)
        return CUPTI_ERROR_INVALID_PARAMETER;
    if (enable)
        cupti.resources.insert(id);
    else
        cupti.resources.erase(id);
    return CUPTI_SUCCESS;
}

CUptiResult cuptiGetGraphNodeId(CUgraphNode node, uint64_t *id)
{
    if (!node || !id)
        return CUPTI_ERROR_INVALID_PARAMETER;
    *id = (uint64_t)node;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiGetVersion(uint32_t *version)
{
    *version = CUPTI_API_VERSION;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiGetResultString(CUptiResult result, const char **text)
{
    switch (result) {
    case CUPTI_SUCCESS:
        *text = "CUPTI_SUCCESS";
        break;
    case CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED:
        *text = "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED";
        break;
    case CUPTI_ERROR_NOT_COMPATIBLE:
        *text = "CUPTI_ERROR_NOT_COMPATIBLE";
        break;
    case CUPTI_ERROR_INVALID_KIND:
        *text = "CUPTI_ERROR_INVALID_KIND";
        break;
    case CUPTI_ERROR_INSUFFICIENT_PRIVILEGES:
        *text = "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES";
        break;
    case CUPTI_ERROR_NOT_INITIALIZED:
        *text = "CUPTI_ERROR_NOT_INITIALIZED";
        break;
    case CUPTI_ERROR_INVALID_OPERATION:
        *text = "CUPTI_ERROR_INVALID_OPERATION";
        break;
    default:
        *text = "an error of the simulated CUPTI";
        break;
    }
    return CUPTI_SUCCESS;
}
}
