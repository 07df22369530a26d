// What the simulated device does not do: memory pools keep nothing, graphs and CUPTI are refused as a device
// without them refuses. A part that takes such a call over removes it here.
#include <cuda_runtime.h>
#include <cupti.h>

extern "C" {
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int)
{
    *pool = nullptr;
    return cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void *)
{
    return cudaSuccess;
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr, void *value)
{
    *(unsigned long long *)value = 0;
    return cudaSuccess;
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t)
{
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus *status)
{
    *status = cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t, cudaStream_t, unsigned)
{
    return cudaErrorNotSupported;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode)
{
    return cudaErrorNotSupported;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t *)
{
    return cudaErrorNotSupported;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *, cudaGraph_t, unsigned long long)
{
    return cudaErrorNotSupported;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t)
{
    return cudaErrorNotSupported;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t)
{
    return cudaErrorNotSupported;
}
cudaError_t cudaGraphDestroy(cudaGraph_t)
{
    return cudaErrorNotSupported;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t)
{
    return cudaErrorNotSupported;
}

CUptiResult cuptiActivityEnable(CUpti_ActivityKind)
{
    return CUPTI_ERROR_NOT_SUPPORTED;
}
CUptiResult cuptiActivityDisable(CUpti_ActivityKind)
{
    return CUPTI_ERROR_NOT_SUPPORTED;
}
CUptiResult cuptiActivityFlushAll(uint32_t)
{
    return CUPTI_ERROR_NOT_SUPPORTED;
}
CUptiResult cuptiActivityGetNextRecord(uint8_t *, size_t, CUpti_Activity **)
{
    return CUPTI_ERROR_NOT_SUPPORTED;
}
CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext, uint32_t, size_t *)
{
    return CUPTI_ERROR_NOT_SUPPORTED;
}
CUptiResult cuptiActivityPushExternalCorrelationId(CUpti_ExternalCorrelationKind, uint64_t)
{
    return CUPTI_ERROR_NOT_SUPPORTED;
}
CUptiResult cuptiActivityPopExternalCorrelationId(CUpti_ExternalCorrelationKind, uint64_t *)
{
    return CUPTI_ERROR_NOT_SUPPORTED;
}
CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc,
                                           CUpti_BuffersCallbackCompleteFunc)
{
    return CUPTI_ERROR_NOT_SUPPORTED;
}
CUptiResult cuptiActivityRegisterTimestampCallback(CUpti_TimestampCallbackFunc)
{
    return CUPTI_ERROR_NOT_SUPPORTED;
}
CUptiResult cuptiGetResultString(CUptiResult, const char **text)
{
    *text = "the simulated device has no CUPTI";
    return CUPTI_SUCCESS;
}
}
