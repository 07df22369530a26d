// The names and texts of CUDA's errors, of those that the simulated device gives and that programs ask for.
#include <cuda_runtime.h>

#include <stddef.h>

#define SIM_ERROR_LIST(X)                                                                                    \
    X(cudaSuccess, "no error")                                                                               \
    X(cudaErrorInvalidValue, "invalid argument")                                                             \
    X(cudaErrorMemoryAllocation, "out of memory")                                                            \
    X(cudaErrorInitializationError, "initialization error")                                                  \
    X(cudaErrorCudartUnloading, "driver shutting down")                                                      \
    X(cudaErrorInvalidConfiguration, "invalid configuration argument")                                       \
    X(cudaErrorInvalidPitchValue, "invalid pitch argument")                                                  \
    X(cudaErrorInvalidSymbol, "invalid device symbol")                                                       \
    X(cudaErrorInvalidDevicePointer, "invalid device pointer")                                               \
    X(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy")                                  \
    X(cudaErrorStubLibrary, "CUDA driver is a stub library")                                                 \
    X(cudaErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version")           \
    X(cudaErrorMissingConfiguration, "__global__ function call is not configured")                           \
    X(cudaErrorInvalidDeviceFunction, "invalid device function")                                             \
    X(cudaErrorNoDevice, "no CUDA-capable device is detected")                                               \
    X(cudaErrorInvalidDevice, "invalid device ordinal")                                                      \
    X(cudaErrorStartupFailure, "startup failure in cuda runtime")                                            \
    X(cudaErrorDeviceUninitialized, "invalid device context")                                                \
    X(cudaErrorNoKernelImageForDevice, "no kernel image is available for execution on the device")           \
    X(cudaErrorECCUncorrectable, "uncorrectable ECC error encountered")                                      \
    X(cudaErrorDevicesUnavailable, "CUDA-capable device(s) is/are busy or unavailable")                      \
    X(cudaErrorMpsConnectionFailed,                                                                          \
      "MPS client failed to connect to the MPS control daemon or the MPS server")                            \
    X(cudaErrorCompatNotSupportedOnDevice, "forward compatibility was attempted on non supported HW")        \
    X(cudaErrorPeerAccessUnsupported, "peer access is not supported between these two devices")              \
    X(cudaErrorInvalidPtx, "a PTX JIT compilation failed")                                                   \
    X(cudaErrorNvlinkUncorrectable, "uncorrectable NVLink error detected during the execution")              \
    X(cudaErrorOperatingSystem, "OS call failed or operation not supported on this OS")                      \
    X(cudaErrorInvalidResourceHandle, "invalid resource handle")                                             \
    X(cudaErrorIllegalState, "the operation cannot be performed in the present state")                       \
    X(cudaErrorSymbolNotFound, "named symbol not found")                                                     \
    X(cudaErrorNotReady, "device not ready")                                                                 \
    X(cudaErrorIllegalAddress, "an illegal memory access was encountered")                                   \
    X(cudaErrorLaunchOutOfResources, "too many resources requested for launch")                              \
    X(cudaErrorLaunchTimeout, "the launch timed out and was terminated")                                     \
    X(cudaErrorPeerAccessAlreadyEnabled, "peer access is already enabled")                                   \
    X(cudaErrorPeerAccessNotEnabled, "peer access has not been enabled")                                     \
    X(cudaErrorContextIsDestroyed, "context is destroyed")                                                   \
    X(cudaErrorAssert, "device-side assert triggered")                                                       \
    X(cudaErrorHostMemoryAlreadyRegistered, "part or all of the requested memory range is already mapped")   \
    X(cudaErrorHostMemoryNotRegistered, "pointer does not correspond to a registered memory region")         \
    X(cudaErrorHardwareStackError, "hardware stack error")                                                   \
    X(cudaErrorIllegalInstruction, "an illegal instruction was encountered")                                 \
    X(cudaErrorMisalignedAddress, "misaligned address")                                                      \
    X(cudaErrorInvalidAddressSpace, "operation not supported on global/shared address space")                \
    X(cudaErrorInvalidPc, "invalid program counter")                                                         \
    X(cudaErrorLaunchFailure, "unspecified launch failure")                                                  \
    X(cudaErrorNotPermitted, "operation not permitted")                                                      \
    X(cudaErrorNotSupported, "operation not supported")                                                      \
    X(cudaErrorSystemNotReady, "system not yet initialized")                                                 \
    X(cudaErrorSystemDriverMismatch, "system has unsupported display driver / cuda driver combination")      \
    X(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing")                 \
    X(cudaErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture")          \
    X(cudaErrorStreamCaptureMerge, "operation would result in a merge of separate capture sequences")        \
    X(cudaErrorStreamCaptureUnmatched, "capture was not ended in the same stream as it began")               \
    X(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work")                                  \
    X(cudaErrorStreamCaptureIsolation, "dependency created on uncaptured work in another stream")            \
    X(cudaErrorStreamCaptureImplicit, "operation would make the legacy stream depend on a capturing stream") \
    X(cudaErrorCapturedEvent, "operation not permitted on an event last recorded in a capturing stream")     \
    X(cudaErrorStreamCaptureWrongThread,                                                                     \
      "attempt to terminate a thread-local capture sequence from another thread")                            \
    X(cudaErrorTimeout, "wait operation timed out")                                                          \
    X(cudaErrorExternalDevice, "an asynchronous error has occurred in an external entity")                   \
    X(cudaErrorUnknown, "unknown error")

const char *cudaGetErrorName(cudaError_t error)
{
    switch (error) {
#define X(name, text)                                                                                        \
    case name:                                                                                               \
        return #name;
        SIM_ERROR_LIST(X)
#undef X
    default:
        return "unrecognized error code";
    }
}

const char *cudaGetErrorString(cudaError_t error)
{
    switch (error) {
#define X(name, text)                                                                                        \
    case name:                                                                                               \
        return text;
        SIM_ERROR_LIST(X)
#undef X
    default:
        return "unrecognized error code";
    }
}
