// The CUDA runtime of the simulated device: work is done at once, on the calling thread.
#include "tests/simcuda/launch.hpp"
#include "tests/simcuda/fibers.hpp"
#include "tests/simcuda/sim.hpp"

#include <map>
#include <mutex>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

struct CUstream_st {
    int priority;
};
struct CUevent_st {
    int64_t ns;
};

namespace {
__thread cudaError_t last_error;
std::mutex lock;
std::map<char *, size_t> memory;
std::map<const void *, int> allowed_shared;

cudaError_t give(cudaError_t error)
{
    if (error)
        last_error = error;
    return error;
}

cudaError_t allocate(void **to, size_t bytes)
{
    const size_t length = (bytes + 4095) / 4096 * 4096 + 4096;
    char *at = (char *)mmap(NULL, length + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return give(cudaErrorMemoryAllocation);
    memset(at, 0xff, length);
    std::lock_guard<std::mutex> hold(lock);
    memory[at] = length + 4096;
    *to = at;
    return cudaSuccess;
}

cudaError_t release(void *at)
{
    if (!at)
        return cudaSuccess;
    std::lock_guard<std::mutex> hold(lock);
    auto found = memory.find((char *)at);
    if (found == memory.end())
        return give(cudaErrorInvalidValue);
    munmap(at, found->second);
    memory.erase(found);
    return cudaSuccess;
}

int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}
} // namespace

cudaError_t sim_enqueue(cudaStream_t, sim_work_fn *work, const void *args, size_t bytes, const sim_activity *)
{
    alignas(16) char copy[SIM_ARGUMENT_BYTES];
    if (bytes > sizeof copy)
        return give(cudaErrorInvalidValue);
    memcpy(copy, args, bytes);
    return give(work(copy));
}

cudaError_t sim_launch(const char *name, const void *entry, dim3 grid, dim3 block, size_t shared_bytes,
                       cudaStream_t, void (*call)(const void *), const void *arguments, size_t)
{
    const uint64_t threads = (uint64_t)block.x * block.y * block.z;
    if (!threads || threads > 1024 || block.z > 64 || !grid.x || !grid.y || !grid.z || grid.x > 0x7fffffffu ||
        grid.y > 65535 || grid.z > 65535)
        return give(cudaErrorInvalidConfiguration);
    {
        std::lock_guard<std::mutex> hold(lock);
        auto found = allowed_shared.find(entry);
        const size_t limit =
            found == allowed_shared.end() || found->second < 49152 ? 49152 : (size_t)found->second;
        if (shared_bytes > limit)
            return give(cudaErrorInvalidValue);
    }
    const sim_grid of = {name,     {grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, shared_bytes, call,
                         arguments};
    return give(sim_run_grid(&of));
}

cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute attribute, int value)
{
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize)
        return cudaSuccess;
    if (value < 0 || value > 232448)
        return give(cudaErrorInvalidValue);
    std::lock_guard<std::mutex> hold(lock);
    allowed_shared[kernel] = value;
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}
cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

cudaError_t cudaMalloc(void **to, size_t bytes)
{
    return allocate(to, bytes);
}
cudaError_t cudaFree(void *at)
{
    return release(at);
}
cudaError_t cudaMallocAsync(void **to, size_t bytes, cudaStream_t)
{
    return allocate(to, bytes);
}
cudaError_t cudaFreeAsync(void *at, cudaStream_t)
{
    return release(at);
}
cudaError_t cudaMallocHost(void **to, size_t bytes)
{
    return allocate(to, bytes);
}
cudaError_t cudaHostAlloc(void **to, size_t bytes, unsigned)
{
    return allocate(to, bytes);
}
cudaError_t cudaFreeHost(void *at)
{
    return release(at);
}
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    *free_bytes = *total_bytes = (size_t)4 << 30;
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind)
{
    memmove(to, from, bytes);
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t)
{
    return cudaMemcpy(to, from, bytes, kind);
}
cudaError_t cudaMemset(void *to, int byte, size_t bytes)
{
    memset(to, byte, bytes);
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *to, int byte, size_t bytes, cudaStream_t)
{
    return cudaMemset(to, byte, bytes);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned, int priority)
{
    *stream = new CUstream_st{priority};
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    return cudaStreamCreateWithPriority(stream, 0, 0);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    delete stream;
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t)
{
    return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t)
{
    return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize(void)
{
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned)
{
    return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t function, void *data)
{
    function(data);
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned)
{
    *event = new CUevent_st{0};
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, 0);
}
cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    delete event;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t)
{
    event->ns = now_ns();
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t)
{
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t)
{
    return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    *ms = (float)(to->ns - from->ns) * 1e-6f;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = sim_option("devices") < 0 ? 1 : (int)sim_option("devices");
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int)
{
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int)
{
    switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
        *value = 2;
        return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = 232448;
        return cudaSuccess;
    case cudaDevAttrMemoryPoolsSupported:
        *value = 1;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
        *value = 9;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
        *value = 0;
        return cudaSuccess;
    default:
        return give(cudaErrorInvalidValue);
    }
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *of, int)
{
    memset(of, 0, sizeof *of);
    snprintf(of->name, sizeof of->name, "simulated GPU");
    of->totalGlobalMem = (size_t)4 << 30;
    of->major = 9;
    of->multiProcessorCount = 2;
    of->warpSize = SIM_WARP;
    of->maxThreadsPerBlock = SIM_BLOCK_THREADS;
    of->maxThreadsPerMultiProcessor = 2048;
    of->sharedMemPerBlock = 49152;
    of->sharedMemPerBlockOptin = 232448;
    of->l2CacheSize = 32 << 20;
    return cudaSuccess;
}
