// Streams and events of the simulated device: queues in shared memory, each with a thread of the device
// process. An event is a place in a stream's queue.
#include "tests/simcuda/runtime.hpp"

#include <map>

#include <stdlib.h>
#include <string.h>

namespace {
std::mutex lock; // of what follows, which is never destroyed: threads may use streams until the very end
std::set<CUstream_st *> &streams = *new std::set<CUstream_st *>;
std::map<int, CUstream_st *> &legacy = *new std::map<int, CUstream_st *>; // by device
std::vector<uint32_t> &free_slots = *new std::vector<uint32_t>;
uint32_t slots;
std::vector<uint32_t> &free_times = *new std::vector<uint32_t>;
uint32_t times;

sim_queue *queue(uint32_t slot)
{
    return &sim_shared()->queue[slot];
}

// A stream with a worker. With the lock held.
cudaError_t make_stream(int device, unsigned flags, int priority, CUstream_st **made)
{
    uint32_t slot;
    if (!free_slots.empty()) {
        slot = free_slots.back();
        free_slots.pop_back();
    } else if (slots < SIM_STREAMS) {
        slot = slots++;
        const cudaError_t error = sim_ask(SIM_COMMAND_STREAM, slot, 0, 0, 0);
        if (error)
            return error;
    } else {
        return cudaErrorMemoryAllocation;
    }
    queue(slot)->device = (uint32_t)device;
    CUstream_st *stream = new CUstream_st();
    stream->slot = slot;
    stream->device = device;
    stream->flags = flags;
    stream->priority = priority < -5 ? -5 : priority > 0 ? 0 : priority; // as CUDA does
    *made = stream;
    return cudaSuccess;
}

bool is_legacy(const CUstream_st *stream) // which may be no stream at all
{
    for (const auto &of : legacy)
        if (of.second == stream)
            return true;
    return false;
}

cudaError_t push_wait(uint32_t slot, uint32_t other, uint64_t number)
{
    if (slot == other || sim_is_done(other, number))
        return cudaSuccess;
    sim_entry wait = {};
    wait.kind = SIM_ENTRY_WAIT;
    wait.wait.stream = other;
    wait.wait.number = number;
    return sim_push_raw(slot, &wait, NULL, 0, NULL);
}

// The legacy stream and the blocking ones wait for each other.
cudaError_t order_with_legacy(const CUstream_st *stream)
{
    std::lock_guard<std::mutex> hold(lock);
    if (!is_legacy(stream)) {
        auto found = legacy.find(stream->device);
        if ((stream->flags & cudaStreamNonBlocking) || found == legacy.end())
            return cudaSuccess;
        return push_wait(stream->slot, found->second->slot, queue(found->second->slot)->pushed.load());
    }
    for (const CUstream_st *other : streams)
        if (other->device == stream->device && !(other->flags & cudaStreamNonBlocking)) {
            const cudaError_t error = push_wait(stream->slot, other->slot, queue(other->slot)->pushed.load());
            if (error)
                return error;
        }
    return cudaSuccess;
}
} // namespace

sim_recorded::sim_recorded()
{
    std::lock_guard<std::mutex> hold(::lock);
    if (!free_times.empty()) {
        time_slot = free_times.back();
        free_times.pop_back();
    } else {
        time_slot = times < SIM_EVENTS ? times++ : (uint32_t)SIM_EVENTS;
    }
}

sim_recorded::~sim_recorded()
{
    std::lock_guard<std::mutex> hold(::lock);
    if (time_slot < SIM_EVENTS)
        free_times.push_back(time_slot);
}

CUstream_st *sim_stream(cudaStream_t stream)
{
    std::lock_guard<std::mutex> hold(lock);
    if (stream && stream != cudaStreamLegacy)
        return stream != cudaStreamPerThread && (streams.count(stream) || is_legacy(stream)) ? stream : NULL;
    CUstream_st **of = &legacy[sim_current_device()];
    if (!*of && make_stream(sim_current_device(), 0, 0, of))
        return NULL;
    return *of;
}

bool sim_is_done(uint32_t slot, uint64_t number)
{
    return queue(slot)->done.load() >= number;
}

cudaError_t sim_wait_done(uint32_t slot, uint64_t number)
{
    sim_queue *q = queue(slot);
    for (;;) {
        const uint32_t seen = q->progress.count.load();
        const int error = sim_shared()->error.load();
        if (error || q->done.load() >= number)
            return (cudaError_t)error;
        sim_look_after_device();
        sim_await(&q->progress, seen);
    }
}

cudaError_t sim_wait_all(int device)
{
    std::vector<std::pair<uint32_t, uint64_t>> until;
    {
        std::lock_guard<std::mutex> hold(lock);
        for (uint32_t slot = 0; slot < slots; slot++)
            if (device < 0 || queue(slot)->device == (uint32_t)device)
                until.push_back({slot, queue(slot)->pushed.load()});
    }
    for (const auto &of : until) {
        const cudaError_t error = sim_wait_done(of.first, of.second);
        if (error)
            return error;
    }
    return cudaSuccess;
}

cudaError_t sim_push_raw(uint32_t slot, sim_entry *entry, const void *arguments, size_t bytes,
                         uint64_t *number)
{
    // Whoever pushes for another stream (the legacy stream's order) does not hold that one's lock.
    static std::mutex locks[SIM_STREAMS];
    std::lock_guard<std::mutex> hold(locks[slot]);
    sim_queue *q = queue(slot);
    entry->bytes = (uint32_t)((sizeof *entry + bytes + 15) / 16 * 16);
    uint64_t head = q->head.load();
    const uint64_t rest = SIM_QUEUE_BYTES - head % SIM_QUEUE_BYTES;
    const uint64_t needed = entry->bytes + (rest < entry->bytes ? rest : 0);
    for (;;) { // as CUDA's launch queue, it may be full
        const uint32_t seen = q->progress.count.load();
        if (SIM_QUEUE_BYTES - (head - q->tail.load()) >= needed)
            break;
        if (sim_shared()->error.load())
            return (cudaError_t)sim_shared()->error.load();
        sim_look_after_device();
        sim_await(&q->progress, seen);
    }
    if (rest < entry->bytes) {
        sim_entry *skip = (sim_entry *)(q->data + head % SIM_QUEUE_BYTES);
        skip->bytes = (uint32_t)rest;
        skip->kind = SIM_ENTRY_SKIP;
        head += rest;
    }
    char *at = q->data + head % SIM_QUEUE_BYTES;
    memcpy((void *)at, (const void *)entry, sizeof *entry);
    if (bytes)
        memcpy(at + sizeof *entry, arguments, bytes);
    const uint64_t mine = q->pushed.fetch_add(1) + 1;
    q->head.store(head + entry->bytes);
    sim_ring(&q->work);
    if (number)
        *number = mine;
    return cudaSuccess;
}

cudaError_t sim_push(CUstream_st *stream, sim_entry *entry, const void *arguments, size_t bytes,
                     uint64_t *number)
{
    std::lock_guard<std::recursive_mutex> hold(stream->lock);
    if (number)
        *number = 0;
    if (stream->capture)
        return sim_capture_push(stream, entry, arguments, bytes, NULL);
    cudaError_t error = is_legacy(stream) ? sim_capture_forbids_legacy(stream->device) : cudaSuccess;
    if (!error)
        error = order_with_legacy(stream);
    return error ? error : sim_push_raw(stream->slot, entry, arguments, bytes, number);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
    SIM_BEGIN();
    if (!stream || flags & ~(unsigned)cudaStreamNonBlocking)
        return sim_give(cudaErrorInvalidValue);
    std::lock_guard<std::mutex> hold(lock);
    CUstream_st *made;
    const cudaError_t error = make_stream(sim_current_device(), flags, priority, &made);
    if (error)
        return sim_give(error);
    streams.insert(made);
    *stream = made;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    return cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0);
}

// What is enqueued is still done; the slot's next stream comes after it.
cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    std::unique_lock<std::mutex> hold(lock);
    if (!streams.count(stream))
        return sim_give(cudaErrorInvalidResourceHandle);
    streams.erase(stream);
    hold.unlock();
    sim_capture_leave(stream);
    hold.lock();
    free_slots.insert(free_slots.begin(), stream->slot);
    hold.unlock();
    delete stream;
    return sim_begin_call();
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    SIM_BEGIN();
    CUstream_st *on = sim_stream(stream);
    if (!on)
        return sim_give(cudaErrorInvalidResourceHandle);
    const cudaError_t error = sim_capture_forbids_waiting(on);
    if (error)
        return sim_give(error);
    uint32_t correlation = 0;
    const uint64_t begin_ns = sim_wait_begin("cudaStreamSynchronize", &correlation);
    const cudaError_t waited = sim_wait_done(on->slot, queue(on->slot)->pushed.load());
    sim_wait_end(begin_ns, correlation, on->slot);
    return sim_give(waited);
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    const cudaError_t ended = sim_begin_query();
    if (ended)
        return ended;
    CUstream_st *on = sim_stream(stream);
    if (!on)
        return sim_give(cudaErrorInvalidResourceHandle);
    const cudaError_t error = sim_capture_forbids_waiting(on);
    if (error)
        return sim_give(error);
    sim_look_after_device();
    return sim_give(sim_is_done(on->slot, queue(on->slot)->pushed.load()) ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaDeviceSynchronize(void)
{
    SIM_BEGIN();
    cudaError_t error = sim_capture_forbids_unsafe();
    if (!error)
        error = sim_wait_all(sim_current_device());
    return sim_give(error ? error : sim_ask(SIM_COMMAND_CHECK, 0, 0, 0, 0));
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    SIM_BEGIN();
    if (least)
        *least = 0;
    if (greatest)
        *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority)
{
    SIM_BEGIN();
    CUstream_st *on = sim_stream(stream);
    if (!on || !priority)
        return sim_give(cudaErrorInvalidResourceHandle);
    *priority = on->priority;
    return cudaSuccess;
}

cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned *flags)
{
    SIM_BEGIN();
    CUstream_st *on = sim_stream(stream);
    if (!on || !flags)
        return sim_give(cudaErrorInvalidResourceHandle);
    *flags = on->flags;
    return cudaSuccess;
}

cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long *id)
{
    SIM_BEGIN();
    CUstream_st *on = sim_stream(stream);
    if (!on || !id)
        return sim_give(cudaErrorInvalidResourceHandle);
    *id = on->slot;
    return cudaSuccess;
}

// ---- events

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    SIM_BEGIN();
    if (!event)
        return sim_give(cudaErrorInvalidValue);
    CUevent_st *made = new CUevent_st();
    made->flags = flags;
    made->recorded = std::make_shared<sim_recorded>();
    if (made->recorded->time_slot == SIM_EVENTS) {
        delete made;
        return sim_give(cudaErrorMemoryAllocation);
    }
    *event = made;
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    if (!event)
        return sim_give(cudaErrorInvalidResourceHandle);
    delete event;
    return sim_begin_call();
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags)
{
    SIM_BEGIN();
    CUstream_st *on = sim_stream(stream);
    if (!event || !on)
        return sim_give(cudaErrorInvalidResourceHandle);
    std::lock_guard<std::recursive_mutex> hold(on->lock);
    const bool external = flags & cudaEventRecordExternal;
    if (on->capture)
        return sim_give(sim_capture_record(on, event, external));
    if (external)
        return sim_give(cudaErrorInvalidValue);
    sim_entry entry = {};
    entry.kind = SIM_ENTRY_EVENT;
    entry.event.slot = event->recorded->time_slot;
    uint64_t number;
    const cudaError_t error = sim_push(on, &entry, NULL, 0, &number);
    if (error)
        return sim_give(error);
    event->capture = NULL;
    std::lock_guard<std::mutex> of(event->recorded->lock);
    event->recorded->stream = on->slot;
    event->recorded->number = number;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    SIM_BEGIN();
    CUstream_st *on = sim_stream(stream);
    if (!event || !on)
        return sim_give(cudaErrorInvalidResourceHandle);
    std::lock_guard<std::recursive_mutex> hold(on->lock);
    const bool external = flags & cudaEventWaitExternal;
    if (on->capture || (event->capture && !external))
        return sim_give(sim_capture_wait(on, event, external));
    if (external)
        return sim_give(cudaErrorInvalidValue);
    std::unique_lock<std::mutex> of(event->recorded->lock);
    const uint32_t other = event->recorded->stream;
    const uint64_t number = event->recorded->number;
    of.unlock();
    return sim_give(number ? push_wait(on->slot, other, number) : cudaSuccess);
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    const cudaError_t ended = sim_begin_query();
    if (ended)
        return ended;
    if (!event || event->capture)
        return sim_give(event ? cudaErrorCapturedEvent : cudaErrorInvalidResourceHandle);
    sim_look_after_device();
    std::lock_guard<std::mutex> of(event->recorded->lock);
    return sim_give(sim_is_done(event->recorded->stream, event->recorded->number) ? cudaSuccess
                                                                                  : cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    SIM_BEGIN();
    if (!event || event->capture)
        return sim_give(event ? cudaErrorCapturedEvent : cudaErrorInvalidResourceHandle);
    std::unique_lock<std::mutex> of(event->recorded->lock);
    const uint32_t stream = event->recorded->stream;
    const uint64_t number = event->recorded->number;
    of.unlock();
    return sim_give(number ? sim_wait_done(stream, number) : cudaSuccess);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    SIM_BEGIN();
    if (!ms || !from || !to || (from->flags | to->flags) & cudaEventDisableTiming ||
        !from->recorded->number || !to->recorded->number)
        return sim_give(cudaErrorInvalidResourceHandle);
    for (const CUevent_st *event : {from, to})
        if (!sim_is_done(event->recorded->stream, event->recorded->number))
            return sim_give(cudaErrorNotReady);
    const std::atomic<uint64_t> *ns = sim_shared()->event_ns;
    *ms = (float)((double)ns[to->recorded->time_slot].load() - (double)ns[from->recorded->time_slot].load()) *
          1e-6f;
    return cudaSuccess;
}
