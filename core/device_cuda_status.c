// CUDA's errors, told with what to try. To add advice, add a row.
#include "core/device_cuda_internal.h"

#include "core/log.h"

#include <cuda_runtime_api.h>

#include <stdio.h>
#include <string.h>

static const char NO_KERNEL[] =
    "this program was not built for this GPU: rebuild it with -DPTB_CUDA_ARCHS= and its compute capability";
static const char DEFECT[] =
    "a kernel went wrong; run the case again under compute-sanitizer, which names it, and report it";
static const char HARDWARE[] =
    "the GPU or its memory is failing: look for Xid messages (dmesg | grep Xid), at "
    "`nvidia-smi -q -d ECC`, and reset or replace it";

static const struct {
    cudaError_t error;
    ptb_status status;
    const char *advice;
} known[] = {
    {cudaErrorMemoryAllocation, PTB_NO_MEMORY,
     "use smaller sizes or fewer ranks on this GPU, or see with nvidia-smi who else uses its memory"},
    {cudaErrorInsufficientDriver, PTB_UNSUPPORTED,
     "the NVIDIA driver is missing or too old; `ptbench doctor` says which"},
    {cudaErrorStubLibrary, PTB_UNSUPPORTED,
     "the toolkit's stub of libcuda was loaded instead of the driver's library: take its folder stubs off "
     "LD_LIBRARY_PATH"},
    {cudaErrorInitializationError, PTB_UNSUPPORTED,
     "the driver does not start: see whether nvidia-smi works, and dmesg | grep -i nvrm; a process that has "
     "used a GPU and then forked cannot use it either"},
    {cudaErrorOperatingSystem, PTB_SYSTEM,
     "the operating system refused the driver something: see dmesg | grep -i nvrm, and whether /dev/nvidia* "
     "may be "
     "opened by this user"},
    {cudaErrorNoDevice, PTB_UNSUPPORTED,
     "no GPU can be seen: check nvidia-smi, CUDA_VISIBLE_DEVICES, the container's --gpus, and where MIG is "
     "on "
     "that there are instances"},
    {cudaErrorInvalidDevice, PTB_UNSUPPORTED,
     "there is no such GPU: check nvidia-smi and CUDA_VISIBLE_DEVICES"},
    {cudaErrorDevicesUnavailable, PTB_UNSUPPORTED,
     "the GPU is used exclusively by another process (compute mode), or forbidden: see nvidia-smi"},
    {cudaErrorSystemDriverMismatch, PTB_UNSUPPORTED,
     "the driver's library and its kernel module differ in version: reboot or reload the module"},
    {cudaErrorCompatNotSupportedOnDevice, PTB_UNSUPPORTED,
     "forward compatibility does not support this GPU: take the cuda-compat package off LD_LIBRARY_PATH, or "
     "update the driver"},
    {cudaErrorSystemNotReady, PTB_UNSUPPORTED,
     "the system is not ready: on machines with NVSwitch, see whether nvidia-fabricmanager runs"},
    {cudaErrorNoKernelImageForDevice, PTB_UNSUPPORTED, NO_KERNEL},
    {cudaErrorUnsupportedPtxVersion, PTB_UNSUPPORTED, NO_KERNEL},
    {cudaErrorInvalidDeviceFunction, PTB_UNSUPPORTED, NO_KERNEL},
    {cudaErrorNotSupported, PTB_UNSUPPORTED, "this GPU or driver cannot do it"},
    {cudaErrorIllegalAddress, PTB_LOST, DEFECT},
    {cudaErrorMisalignedAddress, PTB_LOST, DEFECT},
    {cudaErrorInvalidAddressSpace, PTB_LOST, DEFECT},
    {cudaErrorInvalidPc, PTB_LOST, DEFECT},
    {cudaErrorIllegalInstruction, PTB_LOST, DEFECT},
    {cudaErrorAssert, PTB_LOST, DEFECT},
    {cudaErrorLaunchFailure, PTB_LOST, DEFECT},
    {cudaErrorLaunchTimeout, PTB_LOST,
     "a kernel ran too long for a GPU that also drives a display: use another one"},
    {cudaErrorHardwareStackError, PTB_LOST, HARDWARE},
    {cudaErrorECCUncorrectable, PTB_LOST, HARDWARE},
    {cudaErrorNvlinkUncorrectable, PTB_LOST,
     "an NVLink failed: see `nvidia-smi nvlink -e` and dmesg | grep Xid; reset the GPUs or replace the link"},
    {cudaErrorUnknown, PTB_LOST, HARDWARE},
    {cudaErrorMpsConnectionFailed, PTB_UNSUPPORTED,
     "the MPS server does not answer: restart nvidia-cuda-mps-control or unset CUDA_MPS_PIPE_DIRECTORY"},
    {cudaErrorMpsServerNotReady, PTB_UNSUPPORTED, "the MPS server is not ready: wait, or restart it"},
    {cudaErrorMpsClientTerminated, PTB_LOST,
     "another client of the MPS server failed and took this one along"},
    {cudaErrorStreamCaptureUnsupported, PTB_UNSUPPORTED,
     "this operation cannot be recorded into a CUDA graph: run without -G"},
    {cudaErrorStreamCaptureInvalidated, PTB_UNSUPPORTED,
     "the recording of a CUDA graph failed: run without -G"},
    {cudaErrorStreamCaptureUnjoined, PTB_UNSUPPORTED,
     "a stream that takes part in a CUDA graph was not joined: run without -G"},
    {cudaErrorPeerAccessUnsupported, PTB_UNSUPPORTED, "these two GPUs cannot reach each other's memory"},
};

const char *ptb_cuda_advice(int error)
{
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].error == (cudaError_t)error)
            return known[i].advice;
    return NULL;
}

static ptb_status judge(cudaError_t error, const char **advice)
{
    const char *found = ptb_cuda_advice((int)error);
    *advice = found ? found : "see the text of the error";
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].error == error)
            return known[i].status;
    return PTB_SYSTEM;
}

ptb_status ptb_cuda_check(int error, const char *call, const char *file, int line)
{
    if (error == cudaSuccess)
        return PTB_OK;
    const char *advice;
    ptb_status status = judge((cudaError_t)error, &advice);
    // Only the call itself: its arguments are of no use to the reader.
    int length = (int)strcspn(call, "("), gpu;
    char where[32] = "";
    if (status != PTB_UNSUPPORTED && cudaGetDevice(&gpu) == cudaSuccess)
        snprintf(where, sizeof where, " on GPU %d", gpu);
    ptb_error("%.*s%s (%s:%d): %s, %s; %s", length, call, where, file, line,
              cudaGetErrorName((cudaError_t)error), cudaGetErrorString((cudaError_t)error), advice);
    cudaGetLastError(); // or the next launch would report it again
    return status;
}

// An error that ends the device comes back from every later call, whatever the library has done with it.
ptb_status ptb_cuda_cause(ptb_text *said)
{
    size_t free_bytes, total_bytes;
    int gpu = -1;
    cudaError_t left = cudaGetLastError(), error = cudaMemGetInfo(&free_bytes, &total_bytes);
    cudaGetLastError();
    if (error == cudaSuccess && left == cudaErrorNotReady) // an answer, not an error
        left = cudaSuccess;
    error = error == cudaSuccess ? left : error;
    if (error == cudaSuccess)
        return PTB_OK;
    const char *advice;
    ptb_status status = judge(error, &advice);
    cudaGetDevice(&gpu);
    cudaGetLastError();
    ptb_text_printf(said, "%s, %s, on GPU %d; %s", cudaGetErrorName(error), cudaGetErrorString(error), gpu,
                    advice);
    return status;
}

ptb_status ptb_cuda_stream_status(const ptb_stream *stream)
{
    const ptb_cuda_stream_t *s = (const ptb_cuda_stream_t *)stream;
    return (ptb_status)atomic_load_explicit(&s->status, memory_order_acquire);
}

void ptb_cuda_stream_fail(ptb_stream *stream, ptb_status status)
{
    ptb_cuda_stream_t *s = (ptb_cuda_stream_t *)stream;
    int fine = PTB_OK;
    atomic_compare_exchange_strong(&s->status, &fine, (int)status);
    if (status == PTB_LOST)
        atomic_store(&((ptb_cuda_device *)stream->device)->is_lost, true);
}

ptb_status ptb_cuda_device_check(ptb_cuda_device *device, int error, const char *call, const char *file,
                                 int line)
{
    if (__builtin_expect(error == cudaSuccess, 1))
        return PTB_OK;
    if (atomic_load(&device->is_lost)) {
        cudaGetLastError();
        return PTB_LOST;
    }
    ptb_status status = ptb_cuda_check(error, call, file, line);
    if (status == PTB_LOST)
        atomic_store(&device->is_lost, true);
    return status;
}

ptb_status ptb_cuda_stream_check(ptb_stream *stream, int error, const char *call, const char *file, int line)
{
    ptb_cuda_device *device = (ptb_cuda_device *)stream->device;
    ptb_status status = ptb_cuda_device_check(device, error, call, file, line);
    if (status != PTB_OK)
        ptb_cuda_stream_fail(stream, status);
    return status;
}
