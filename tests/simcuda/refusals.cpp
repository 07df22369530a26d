// What the simulated device does not do: CUPTI is refused as a device without it refuses. A part that takes
// such a call over removes it here.
#include <cupti.h>

extern "C" {
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
