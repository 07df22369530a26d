// GPUs through CUDA: memory and copies, and the table of the back-end. Opening is in device_cuda_open.c and
// device_cuda_mig.c, streams, events and graphs in device_cuda_stream.c, fill, check and reduce in
// device_cuda_pattern.c, errors in device_cuda_status.c. Run on one H200, never between several GPUs.
#include "core/device_cuda_internal.h"

#include "core/log.h"

#include <cuda_runtime_api.h>

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { SMALLEST = 256 }; // bytes of an allocation; CUDA gives no less anyway, and no address for nothing

// Buffers of communication are not from the pool: CUDA-aware MPI libraries open them in other processes, and
// memory of a pool has no handle of the kind that they use (cudaIpcGetMemHandle).
static bool from_pool(const ptb_cuda_device *d, ptb_memory category)
{
    return d->has_pool && category != PTB_MEMORY_COMMUNICATION;
}

void ptb_cuda_trim(int index)
{
    cudaMemPool_t pool;
    if (cudaDeviceGetDefaultMemPool(&pool, index) == cudaSuccess)
        cudaMemPoolTrimTo(pool, 0);
    cudaGetLastError(); // a device without pools
}

static void trim_pool(const ptb_cuda_device *d)
{
    if (d->has_pool)
        ptb_cuda_trim(d->index);
}

// The allocation is ordered before everything that is enqueued from now on, on any stream.
static cudaError_t take(ptb_cuda_device *d, ptb_memory category, size_t bytes, void **memory)
{
    cudaError_t error = cudaSetDevice(d->index);
    if (error != cudaSuccess)
        return error;
    if (!from_pool(d, category))
        return cudaMalloc(memory, bytes);
    error = cudaMallocAsync(memory, bytes, d->order);
    return error == cudaSuccess ? cudaStreamSynchronize(d->order) : error;
}

static void give_back(ptb_cuda_device *d, const ptb_allocation *a)
{
    if (atomic_load(&d->is_lost)) // it went with the device
        return;
    cudaError_t error = from_pool(d, a->category) ? cudaFreeAsync(a->memory, d->order) : cudaFree(a->memory);
    ptb_cuda_device_check(d, (int)error, "cudaFree", __FILE__, __LINE__);
}

static ptb_status tell_no_memory(ptb_cuda_device *d, ptb_memory category, size_t bytes)
{
    size_t free_bytes = 0, total_bytes = 0;
    uint64_t used = 0;
    cudaGetLastError();
    cudaMemGetInfo(&free_bytes, &total_bytes);
    for (int i = 0; i < PTB_MEMORY_COUNT; i++)
        used += d->base.used_bytes[i];
    ptb_error("cannot allocate %zu bytes for %s on GPU %d: %zu of %zu bytes are free, and this process holds "
              "%" PRIu64
              ". Use smaller sizes, a smaller batch or fewer ranks on this GPU; nvidia-smi shows who "
              "else uses its memory",
              bytes, ptb_memory_name(category), d->index, free_bytes, total_bytes, used);
    return PTB_NO_MEMORY;
}

static ptb_status cuda_alloc(ptb_device *device, ptb_memory category, size_t bytes, void **memory)
{
    ptb_cuda_device *d = (ptb_cuda_device *)device;
    size_t taken = bytes > SMALLEST ? bytes : SMALLEST;
    void *made = NULL;
    cudaError_t error = take(d, category, taken, &made);
    if (error == cudaErrorMemoryAllocation) { // the pool may hold what cudaMalloc, or a library, misses
        cudaGetLastError();
        trim_pool(d);
        error = take(d, category, taken, &made);
    }
    if (error == cudaErrorMemoryAllocation)
        return tell_no_memory(d, category, bytes);
    PTB_TRY(ptb_cuda_device_check(d, (int)error, "cudaMalloc", __FILE__, __LINE__));
    ptb_allocation entry = {made, bytes, category};
    ptb_status status = ptb_ledger_add(&d->ledger, &entry);
    if (status != PTB_OK) {
        give_back(d, &entry);
        return status;
    }
    *memory = made;
    return PTB_OK;
}

static void cuda_free(ptb_device *device, void *memory)
{
    ptb_cuda_device *d = (ptb_cuda_device *)device;
    ptb_allocation found = ptb_ledger_take(&d->ledger, memory);
    give_back(d, &found);
}

// What CUDA calls free, and what the pool holds without use.
static uint64_t cuda_available(ptb_device *device)
{
    ptb_cuda_device *d = (ptb_cuda_device *)device;
    size_t free_bytes, total_bytes;
    uint64_t reserved = 0, used = 0;
    cudaMemPool_t pool;
    if (PTB_CUDA_CHECK(d, cudaSetDevice(d->index)) != PTB_OK ||
        PTB_CUDA_CHECK(d, cudaMemGetInfo(&free_bytes, &total_bytes)) != PTB_OK)
        return UINT64_MAX;
    if (d->has_pool && cudaDeviceGetDefaultMemPool(&pool, d->index) == cudaSuccess) {
        cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &reserved);
        cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used);
    }
    return free_bytes + (reserved > used ? reserved - used : 0);
}

static ptb_status cuda_alloc_host(ptb_device *device, size_t bytes, void **memory)
{
    ptb_cuda_device *d = (ptb_cuda_device *)device;
    size_t taken = bytes > SMALLEST ? bytes : SMALLEST;
    void *made = NULL;
    PTB_TRY(PTB_CUDA_CHECK(d, cudaSetDevice(d->index)));
    cudaError_t error = cudaMallocHost(&made, taken);
    if (error == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        ptb_error("cannot allocate %zu bytes of pinned host memory: %" PRIu64
                  " bytes of host memory are available; use smaller sizes, and see `ulimit -l`",
                  bytes, ptb_memory_available());
        return PTB_NO_MEMORY;
    }
    PTB_TRY(ptb_cuda_device_check(d, (int)error, "cudaMallocHost", __FILE__, __LINE__));
    memset(made, 0, taken);
    *memory = made;
    return PTB_OK;
}

static void cuda_free_host(ptb_device *device, void *memory)
{
    ptb_cuda_device *d = (ptb_cuda_device *)device;
    PTB_CUDA_CHECK(d, cudaFreeHost(memory));
}

static void cuda_close(ptb_device *device)
{
    ptb_cuda_device *d = (ptb_cuda_device *)device;
    if (d->ledger.count)
        ptb_debug("%zu allocations were left when GPU %d was closed", d->ledger.count, d->index);
    for (size_t i = 0; i < d->ledger.count; i++)
        give_back(d, &d->ledger.list[i]);
    if (!atomic_load(&d->is_lost) && PTB_CUDA_CHECK(d, cudaStreamSynchronize(d->order)) == PTB_OK) {
        cudaStreamDestroy(d->order);
        trim_pool(d); // for whoever comes next
    }
    cudaGetLastError();
    ptb_ledger_release(&d->ledger);
    free(d);
}

static ptb_status cuda_copy(ptb_stream *stream, void *to, const void *from, size_t bytes)
{
    PTB_TRY(ptb_cuda_stream_status(stream));
    if (bytes && to != from)
        PTB_CUDA_ON(stream, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, ptb_cuda_stream(stream)));
    return PTB_OK;
}

static ptb_status cuda_set(ptb_stream *stream, void *memory, int byte, size_t bytes)
{
    PTB_TRY(ptb_cuda_stream_status(stream));
    if (bytes)
        PTB_CUDA_ON(stream, cudaMemsetAsync(memory, byte, bytes, ptb_cuda_stream(stream)));
    return PTB_OK;
}

static const ptb_device_ops cuda_ops;

static int cuda_count(void)
{
    int gpus = 0;
    ptb_text why = PTB_TEXT_INIT;
    ptb_cuda_usable(&why, &gpus);
    ptb_text_release(&why);
    return gpus;
}

static ptb_status cuda_open(int index, ptb_device **device)
{
    PTB_TRY(ptb_cuda_device_open(index, device));
    (*device)->ops = &cuda_ops;
    return PTB_OK;
}

static const ptb_device_ops cuda_ops = {
#ifdef PTB_SIM
    .plugin = {"cuda", "a simulated GPU: this build has no real ones (PTB_GPU=sim)"},
#else
    .plugin = {"cuda", "NVIDIA GPUs, one process each"},
#endif
    .choose = ptb_cuda_choose,
    .count = cuda_count,
    .open = cuda_open,
    .close = cuda_close,
    .describe = ptb_cuda_describe,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .available = cuda_available,
    .foresee = ptb_cuda_foresee,
    .alloc_host = cuda_alloc_host,
    .free_host = cuda_free_host,
    .stream_new = ptb_cuda_stream_new,
    .stream_free = ptb_cuda_stream_free,
    .stream_sync = ptb_cuda_stream_sync,
    .event_new = ptb_cuda_event_new,
    .event_free = ptb_cuda_event_free,
    .event_record = ptb_cuda_event_record,
    .event_wait = ptb_cuda_event_wait,
    .event_sync = ptb_cuda_event_sync,
    .event_query = ptb_cuda_event_query,
    .copy = cuda_copy,
    .set = cuda_set,
    .fill = ptb_cuda_fill,
    .check = ptb_cuda_check_buffer,
    .reduce = ptb_cuda_reduce,
    .graph_begin = ptb_cuda_graph_begin,
    .graph_end = ptb_cuda_graph_end,
    .graph_launch = ptb_cuda_graph_launch,
    .graph_free = ptb_cuda_graph_free,
    .graph_kernels = ptb_cuda_graph_kernels,
    .copy_by_kernel = ptb_cuda_copy_by_kernel,
    .alloc_peer = ptb_cuda_alloc_peer,
    .free_peer = ptb_cuda_free_peer,
};
PTB_REGISTER(PTB_KIND_DEVICE, cuda_ops);
