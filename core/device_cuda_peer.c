// Memory of other GPUs of this host, reached over NVLink or PCIe: this process opens the other GPU itself, so
// no handle has to travel between processes. Its context there takes some hundred MB of that GPU until the
// process ends.
#include "core/device_cuda_internal.h"

#include <cuda_runtime_api.h>

#include <stdio.h>
#include <string.h>

// Lets the device reach the other one. The reason when it cannot.
static cudaError_t enable(int index, int other, char *reason)
{
    int can = 0;
    cudaError_t error = cudaDeviceCanAccessPeer(&can, index, other);
    if (error != cudaSuccess)
        return error;
    if (!can) {
        snprintf(reason, PTB_PEER_REASON,
                 "CUDA says there is no direct path (no NVLink, and PCIe peer access is off: see `nvidia-smi "
                 "topo -p2p "
                 "rw`, ACS and IOMMU settings)");
        return cudaErrorPeerAccessUnsupported;
    }
    error = cudaDeviceEnablePeerAccess(other, 0);
    if (error != cudaErrorPeerAccessAlreadyEnabled)
        return error;
    cudaGetLastError();
    return cudaSuccess;
}

ptb_status ptb_cuda_alloc_peer(ptb_device *device, int index, size_t bytes, char *reason, void **memory)
{
    ptb_cuda_device *d = (ptb_cuda_device *)device;
    int devices = 0;
    void *made = NULL;
    if (strncmp(device->identity, "MIG-", 4) == 0) {
        snprintf(reason, PTB_PEER_REASON, "an instance of MIG has no access to the memory of others");
        return PTB_UNSUPPORTED;
    }
    PTB_CUDA(cudaGetDeviceCount(&devices));
    if (index >= devices) {
        snprintf(reason, PTB_PEER_REASON,
                 "this process sees %d GPU%s; let every rank see all of its host's (CUDA_VISIBLE_DEVICES)",
                 devices, devices == 1 ? "" : "s");
        return PTB_UNSUPPORTED;
    }
    if (index == d->index) {
        snprintf(reason, PTB_PEER_REASON, "both ranks have the same GPU");
        return PTB_UNSUPPORTED;
    }
    PTB_CUDA(cudaSetDevice(d->index));
    cudaError_t error = enable(d->index, index, reason);
    if (error == cudaErrorPeerAccessUnsupported)
        return PTB_UNSUPPORTED;
    PTB_TRY(ptb_cuda_check((int)error, "cudaDeviceEnablePeerAccess", __FILE__, __LINE__));
    PTB_CUDA(cudaSetDevice(index));
    ptb_status status = ptb_cuda_check((int)cudaMalloc(&made, bytes), "cudaMalloc", __FILE__, __LINE__);
    cudaSetDevice(d->index); // after the message, which names the current device
    PTB_TRY(status);
    *memory = made;
    return PTB_OK;
}

void ptb_cuda_free_peer(ptb_device *device, int index, void *memory)
{
    ptb_cuda_device *d = (ptb_cuda_device *)device;
    if (atomic_load(&d->is_lost))
        return;
    cudaSetDevice(index);
    ptb_cuda_check(cudaFree(memory), "cudaFree", __FILE__, __LINE__);
    cudaSetDevice(d->index);
}

ptb_status ptb_cuda_copy_by_kernel(ptb_stream *stream, void *to, const void *from, size_t bytes)
{
    const ptb_cuda_device *d = (const ptb_cuda_device *)stream->device;
    PTB_TRY(ptb_cuda_stream_status(stream));
    PTB_CUDA_ON(stream, ptb_cuda_launch_peer_copy(to, from, bytes, d->processors, ptb_cuda_stream(stream)));
    return PTB_OK;
}
