// Copies and sets of the simulated device. Plain host memory passes through memory that the device sees: the
// caller waits until it has been read or written.
#include "tests/simcuda/runtime.hpp"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

extern "C" void sim_link_traffic(int machine_device, uint64_t sent_bytes, uint64_t received_bytes);

namespace {
struct copy_work {
    void *to;
    const void *from;
    size_t bytes;
    int from_gpu, to_gpu; // of the machine; the same unless it goes over links
};

struct set_work {
    void *to;
    int byte;
    size_t bytes;
};

struct staging {
    std::mutex lock;
    uint64_t until; // entry of the stream that uses it
};
staging stagings[SIM_STREAMS];

cudaError_t run_copy(void *args)
{
    const copy_work *of = (const copy_work *)args;
    memmove(of->to, of->from, of->bytes);
    if (of->from_gpu != of->to_gpu) {
        sim_link_traffic(of->from_gpu, of->bytes, 0);
        sim_link_traffic(of->to_gpu, 0, of->bytes);
    }
    return cudaSuccess;
}

int gpu_of(const void *memory)
{
    cudaPointerAttributes attributes;
    return cudaPointerGetAttributes(&attributes, memory) ? -1 : sim_visible_device(attributes.device);
}

cudaError_t run_set(void *args)
{
    const set_work *of = (const set_work *)args;
    memset(of->to, of->byte, of->bytes);
    return cudaSuccess;
}

cudaError_t push(CUstream_st *stream, sim_work_fn *run, const void *args, size_t bytes,
                 const sim_activity *activity, uint64_t *number)
{
    sim_entry entry = {};
    entry.kind = SIM_ENTRY_WORK;
    entry.work.run = run;
    entry.work.argument_bytes = (uint32_t)bytes;
    entry.work.has_activity = true;
    entry.work.activity = *activity;
    return sim_push(stream, &entry, args, bytes, number);
}

// The kind of a copy, from where its memory is; an error where the caller named another one, or where the
// device's memory is not that large.
cudaError_t classify(const void *to, const void *from, size_t bytes, cudaMemcpyKind kind, int *found)
{
    const sim_place there = sim_place_of(to), here = sim_place_of(from);
    const bool to_device = there == SIM_PLACE_DEVICE, from_device = here == SIM_PLACE_DEVICE;
    *found = to_device ? (int)(from_device ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice)
                       : (int)(from_device ? cudaMemcpyDeviceToHost : cudaMemcpyHostToHost);
    const bool fits = kind == cudaMemcpyDefault || (int)kind == *found ||
                      // host memory that the device sees may be called the device's
                      (kind == cudaMemcpyDeviceToDevice && there != SIM_PLACE_HOST && here != SIM_PLACE_HOST);
    if (!fits) {
        fprintf(stderr, "simulated device: a copy of kind %d from %p to %p is of kind %d\n", (int)kind, from,
                to, *found);
        return cudaErrorInvalidValue;
    }
    for (const void *at : {to, from})
        if (sim_place_of(at) != SIM_PLACE_HOST && !sim_is_allocated(at, bytes)) {
            fprintf(stderr, "simulated device: a copy of %zu bytes from %p to %p leaves what is allocated\n",
                    bytes, from, to);
            return cudaErrorInvalidValue;
        }
    return cudaSuccess;
}

cudaError_t copy_through(CUstream_st *stream, char *to, const char *from, size_t bytes,
                         const sim_activity *activity)
{
    staging *s = &stagings[stream->slot];
    char *between = sim_shared()->staging[stream->slot];
    const bool is_read = sim_place_of(from) == SIM_PLACE_HOST;
    std::lock_guard<std::mutex> hold(s->lock);
    for (size_t done = 0; done < bytes; done += SIM_STAGING_BYTES) {
        sim_activity part = *activity;
        part.bytes = bytes - done < SIM_STAGING_BYTES ? bytes - done : (size_t)SIM_STAGING_BYTES;
        cudaError_t error = sim_wait_done(stream->slot, s->until);
        if (error)
            return error;
        if (is_read)
            memcpy(between, from + done, part.bytes);
        const copy_work work = {is_read ? to + done : between, is_read ? between : from + done, part.bytes, 0,
                                0};
        error = push(stream, run_copy, &work, sizeof work, &part, &s->until);
        if (error)
            return error;
        if (is_read)
            continue;
        error = sim_wait_done(stream->slot, s->until);
        if (error)
            return error;
        memcpy(to + done, between, part.bytes);
    }
    return cudaSuccess;
}

cudaError_t copy(const char *call, void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                 CUstream_st *stream)
{
    sim_activity activity = {};
    activity.kind = SIM_COPY;
    activity.bytes = bytes;
    if (!bytes)
        return cudaSuccess;
    cudaError_t error = classify(to, from, bytes, kind, &activity.copy_kind);
    if (error)
        return error;
    activity.correlation = sim_next_correlation(call);
    const bool host_to = sim_place_of(to) == SIM_PLACE_HOST, host_from = sim_place_of(from) == SIM_PLACE_HOST;
    if (!host_to && !host_from) {
        const bool over_links = activity.copy_kind == cudaMemcpyDeviceToDevice && gpu_of(to) != gpu_of(from);
        const copy_work work = {to, from, bytes, over_links ? gpu_of(from) : 0, over_links ? gpu_of(to) : 0};
        activity.copy_kind = over_links ? (int)SIM_COPY_PEER : activity.copy_kind;
        return push(stream, run_copy, &work, sizeof work, &activity, NULL);
    }
    error = sim_capture_forbids_waiting(stream);
    if (error)
        return error;
    if (sim_place_of(to) != SIM_PLACE_DEVICE && sim_place_of(from) != SIM_PLACE_DEVICE) {
        error = cudaStreamSynchronize(stream);
        if (!error)
            memmove(to, from, bytes);
        return error;
    }
    return copy_through(stream, (char *)to, (const char *)from, bytes, &activity);
}
} // namespace

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    SIM_BEGIN();
    CUstream_st *on = sim_stream(stream);
    return sim_give(on ? copy("cudaMemcpyAsync", to, from, bytes, kind, on) : cudaErrorInvalidResourceHandle);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
    SIM_BEGIN();
    const cudaError_t error = copy("cudaMemcpy", to, from, bytes, kind, sim_stream(NULL));
    return error ? sim_give(error) : cudaStreamSynchronize(NULL);
}

cudaError_t cudaMemcpyPeerAsync(void *to, int, const void *from, int, size_t bytes, cudaStream_t stream)
{
    SIM_BEGIN();
    CUstream_st *on = sim_stream(stream);
    return sim_give(on ? copy("cudaMemcpyPeerAsync", to, from, bytes, cudaMemcpyDeviceToDevice, on)
                       : cudaErrorInvalidResourceHandle);
}

cudaError_t cudaMemsetAsync(void *to, int byte, size_t bytes, cudaStream_t stream)
{
    SIM_BEGIN();
    CUstream_st *on = sim_stream(stream);
    if (!on)
        return sim_give(cudaErrorInvalidResourceHandle);
    if (!bytes)
        return cudaSuccess;
    if (sim_place_of(to) == SIM_PLACE_HOST || !sim_is_allocated(to, bytes)) {
        fprintf(stderr, "simulated device: a set of %zu bytes at %p leaves what is allocated\n", bytes, to);
        return sim_give(cudaErrorInvalidValue);
    }
    const set_work work = {to, byte, bytes};
    sim_activity activity = {};
    activity.kind = SIM_SET;
    activity.bytes = bytes;
    activity.correlation = sim_next_correlation("cudaMemsetAsync");
    return sim_give(push(on, run_set, &work, sizeof work, &activity, NULL));
}

cudaError_t cudaMemset(void *to, int byte, size_t bytes)
{
    const cudaError_t error = cudaMemsetAsync(to, byte, bytes, NULL);
    return error ? error : cudaStreamSynchronize(NULL);
}
