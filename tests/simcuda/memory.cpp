// Memory of the simulated device, as the program sees it: addresses of the device and memory that both see.
#include "tests/simcuda/runtime.hpp"
#include "tests/simcuda/sanitize.hpp"

#include <map>

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

struct CUmemPoolHandle_st {
    int device;
    uint64_t release_threshold, used, used_high;
};

namespace {
enum { PAGE = 4096, ALIGNMENT = 256, DEVICES = 64 };

struct allocation {
    size_t bytes;
    int device;
    CUmemPoolHandle_st *pool; // NULL: cudaMalloc
};

std::mutex lock;
uintptr_t next_device = SIM_DEVICE_BASE, next_host = SIM_HOST_BASE;
std::map<uintptr_t, allocation> &allocated = *new std::map<uintptr_t, allocation>; // device; never destroyed
std::map<uintptr_t, size_t> &allocated_host = *new std::map<uintptr_t, size_t>;    // bytes
uint64_t used[DEVICES];
CUmemPoolHandle_st pools[DEVICES];
std::atomic<uint64_t> allocations;

bool is_out_of_memory(void)
{
    static const uint64_t oom_at = sim_fault("oom"), full_at = sim_fault("full");
    const uint64_t number = allocations.fetch_add(1) + 1;
    return number == oom_at || (full_at && number >= full_at);
}

uintptr_t round_up(uintptr_t value, uintptr_t to)
{
    return (value + to - 1) / to * to;
}

cudaError_t allocate(void **to, size_t bytes, CUmemPoolHandle_st *pool, int device)
{
    if (!to)
        return cudaErrorInvalidValue;
    if (!bytes) {
        *to = NULL;
        return cudaSuccess;
    }
    uintptr_t first, data, guard;
    const size_t rounded = round_up(bytes, ALIGNMENT);
    {
        std::lock_guard<std::mutex> hold(lock);
        if (is_out_of_memory() || rounded < bytes || rounded > sim_visible_bytes(device) - used[device])
            return cudaErrorMemoryAllocation;
        first = round_up(next_device, PAGE);
        guard = first + round_up(rounded, PAGE);
        data = guard - rounded;
        if (guard + PAGE > SIM_DEVICE_BASE + SIM_DEVICE_SPAN)
            return cudaErrorMemoryAllocation;
        next_device = guard + PAGE;
        used[device] += rounded;
    }
    const cudaError_t error = sim_ask(SIM_COMMAND_MAP, first, data, bytes, guard);
    std::lock_guard<std::mutex> hold(lock);
    if (error) {
        used[device] -= rounded;
        return error;
    }
    allocated[data] = {bytes, device, pool};
    if (pool) {
        pool->used += rounded;
        pool->used_high = pool->used > pool->used_high ? pool->used : pool->used_high;
    }
    *to = (void *)data;
    return cudaSuccess;
}

// Forgets an allocation; false when it is none.
bool take(void *memory, allocation *of)
{
    std::lock_guard<std::mutex> hold(lock);
    auto found = allocated.find((uintptr_t)memory);
    if (found == allocated.end())
        return false;
    *of = found->second;
    const size_t rounded = round_up(of->bytes, ALIGNMENT);
    used[of->device] -= rounded;
    if (of->pool)
        of->pool->used -= rounded;
    allocated.erase(found);
    return true;
}

CUmemPoolHandle_st *pool_of(int device)
{
    pools[device].device = device;
    return &pools[device];
}
} // namespace

sim_place sim_place_of(const void *memory)
{
    const uintptr_t at = (uintptr_t)memory;
    if (at - SIM_DEVICE_BASE < SIM_DEVICE_SPAN)
        return SIM_PLACE_DEVICE;
    return at - SIM_HOST_BASE < SIM_HOST_SPAN ? SIM_PLACE_PINNED : SIM_PLACE_HOST;
}

bool sim_is_allocated(const void *memory, size_t bytes)
{
    const uintptr_t at = (uintptr_t)memory;
    std::lock_guard<std::mutex> hold(lock);
    if (sim_place_of(memory) == SIM_PLACE_PINNED) {
        auto after = allocated_host.upper_bound(at);
        if (after == allocated_host.begin())
            return false;
        auto of = std::prev(after);
        return at - of->first <= of->second && bytes <= of->second - (at - of->first);
    }
    auto after = allocated.upper_bound(at);
    if (after == allocated.begin())
        return false;
    auto of = std::prev(after);
    return at - of->first <= of->second.bytes && bytes <= of->second.bytes - (at - of->first);
}

cudaError_t cudaMalloc(void **to, size_t bytes)
{
    SIM_BEGIN();
    const cudaError_t error = sim_capture_forbids_unsafe();
    return sim_give(error ? error : allocate(to, bytes, NULL, sim_current_device()));
}

cudaError_t cudaFree(void *memory)
{
    SIM_BEGIN();
    allocation of;
    if (!memory)
        return cudaSuccess;
    cudaError_t error = sim_capture_forbids_unsafe();
    if (error)
        return sim_give(error);
    if (!take(memory, &of))
        return sim_give(cudaErrorInvalidValue);
    error = sim_wait_all(of.device);
    return sim_give(error ? error : sim_ask(SIM_COMMAND_UNMAP, (uintptr_t)memory, 0, 0, 0));
}

cudaError_t cudaHostAlloc(void **to, size_t bytes, unsigned)
{
    SIM_BEGIN();
    const cudaError_t error = sim_capture_forbids_unsafe();
    if (error || !to)
        return sim_give(error ? error : cudaErrorInvalidValue);
    // It ends at a guard page, as far as its alignment lets it.
    const uintptr_t length = round_up(bytes ? bytes : 1, PAGE);
    uintptr_t first, data;
    {
        std::lock_guard<std::mutex> hold(lock);
        if (is_out_of_memory() || length > SIM_HOST_BASE + SIM_HOST_SPAN - next_host - PAGE)
            return sim_give(cudaErrorMemoryAllocation);
        first = next_host;
        data = first + length - round_up(bytes ? bytes : 1, ALIGNMENT);
        next_host += length + PAGE;
    }
    if (mprotect((void *)first, length, PROT_READ | PROT_WRITE))
        return sim_give(cudaErrorMemoryAllocation);
    memset((void *)first, SIM_CANARY, length);
    memset((void *)data, SIM_POISON, bytes);
    sim_forbid((void *)first, data - first);
    sim_forbid((void *)(data + bytes), first + length - data - bytes);
    const cudaError_t shown = sim_ask(SIM_COMMAND_MAP, first, data, bytes, first + length);
    if (shown)
        return sim_give(shown);
    std::lock_guard<std::mutex> hold(lock);
    allocated_host[data] = bytes;
    *to = (void *)data;
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **to, size_t bytes)
{
    return cudaHostAlloc(to, bytes, cudaHostAllocDefault);
}

cudaError_t cudaFreeHost(void *memory)
{
    SIM_BEGIN();
    if (!memory)
        return cudaSuccess;
    cudaError_t error = sim_capture_forbids_unsafe();
    if (!error)
        error = sim_wait_all(-1);
    if (error)
        return sim_give(error);
    std::lock_guard<std::mutex> hold(lock);
    auto found = allocated_host.find((uintptr_t)memory);
    if (found == allocated_host.end())
        return sim_give(cudaErrorInvalidValue);
    error = sim_ask(SIM_COMMAND_UNMAP, found->first, 0, 0, 0);
    const uintptr_t first = found->first / PAGE * PAGE, end = round_up(found->first + found->second, PAGE);
    madvise((void *)first, end - first, MADV_REMOVE);
    mprotect((void *)first, end - first, PROT_NONE);
    allocated_host.erase(found);
    return sim_give(error);
}

// Plain memory of the host cannot be shown to the device process.
cudaError_t cudaHostRegister(void *, size_t, unsigned)
{
    return sim_give(cudaErrorNotSupported);
}
cudaError_t cudaHostUnregister(void *)
{
    return sim_give(cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned)
{
    SIM_BEGIN();
    if (!sim_is_allocated(host, 0) || sim_place_of(host) != SIM_PLACE_PINNED)
        return sim_give(cudaErrorInvalidValue);
    *device = host;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    SIM_BEGIN();
    std::lock_guard<std::mutex> hold(lock);
    *total = sim_visible_bytes(sim_current_device());
    *free_bytes = *total - used[sim_current_device()];
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *of, const void *memory)
{
    SIM_BEGIN();
    if (!of)
        return sim_give(cudaErrorInvalidValue);
    memset(of, 0, sizeof *of);
    of->device = -2; // as CUDA's for memory that it does not know
    of->type = cudaMemoryTypeUnregistered;
    of->hostPointer = (void *)memory;
    if (!sim_is_allocated(memory, 1))
        return cudaSuccess;
    of->devicePointer = (void *)memory;
    if (sim_place_of(memory) == SIM_PLACE_PINNED) {
        of->type = cudaMemoryTypeHost;
        of->device = sim_current_device();
        return cudaSuccess;
    }
    std::lock_guard<std::mutex> hold(lock);
    of->type = cudaMemoryTypeDevice;
    of->device = std::prev(allocated.upper_bound((uintptr_t)memory))->second.device;
    of->hostPointer = NULL;
    return cudaSuccess;
}

// ---- pools: they keep nothing back, so what they reserve is what is used

cudaError_t cudaMallocFromPoolAsync(void **to, size_t bytes, cudaMemPool_t pool, cudaStream_t stream)
{
    SIM_BEGIN();
    CUstream_st *on = sim_stream(stream);
    if (!on || !pool)
        return sim_give(cudaErrorInvalidResourceHandle);
    if (on->capture) // a node that allocates
        return sim_give(cudaErrorNotSupported);
    return sim_give(allocate(to, bytes, pool, pool->device));
}

cudaError_t cudaMallocAsync(void **to, size_t bytes, cudaStream_t stream)
{
    return cudaMallocFromPoolAsync(to, bytes, pool_of(sim_current_device()), stream);
}

cudaError_t cudaFreeAsync(void *memory, cudaStream_t stream)
{
    SIM_BEGIN();
    CUstream_st *on = sim_stream(stream);
    allocation of;
    if (!on || on->capture)
        return sim_give(on ? cudaErrorNotSupported : cudaErrorInvalidResourceHandle);
    if (!take(memory, &of))
        return sim_give(cudaErrorInvalidValue);
    sim_entry entry = {};
    entry.kind = SIM_ENTRY_FREE;
    entry.free.memory = memory;
    return sim_give(sim_push(on, &entry, NULL, 0, NULL));
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device)
{
    SIM_BEGIN();
    if (!pool || device < 0 || sim_visible_device(device) < 0)
        return sim_give(cudaErrorInvalidDevice);
    *pool = pool_of(device);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetMemPool(cudaMemPool_t *pool, int device)
{
    return cudaDeviceGetDefaultMemPool(pool, device);
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t)
{
    SIM_BEGIN();
    return sim_give(pool ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void *value)
{
    SIM_BEGIN();
    if (!pool || !value)
        return sim_give(cudaErrorInvalidValue);
    std::lock_guard<std::mutex> hold(lock);
    if (attribute == cudaMemPoolAttrReleaseThreshold)
        pool->release_threshold = *(uint64_t *)value;
    else if (attribute == cudaMemPoolAttrUsedMemHigh || attribute == cudaMemPoolAttrReservedMemHigh)
        pool->used_high = pool->used;
    return cudaSuccess;
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void *value)
{
    SIM_BEGIN();
    if (!pool || !value)
        return sim_give(cudaErrorInvalidValue);
    std::lock_guard<std::mutex> hold(lock);
    switch (attribute) {
    case cudaMemPoolAttrReleaseThreshold:
        *(uint64_t *)value = pool->release_threshold;
        return cudaSuccess;
    case cudaMemPoolAttrReservedMemCurrent:
    case cudaMemPoolAttrUsedMemCurrent:
        *(uint64_t *)value = pool->used;
        return cudaSuccess;
    case cudaMemPoolAttrReservedMemHigh:
    case cudaMemPoolAttrUsedMemHigh:
        *(uint64_t *)value = pool->used_high;
        return cudaSuccess;
    default:
        return sim_give(cudaErrorNotSupported);
    }
}
