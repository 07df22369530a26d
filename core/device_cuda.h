// For the CUDA back-ends of kernels and communicators: the CUDA objects behind a device and a stream, and the
// one way in which a CUDA call is checked. No type of CUDA's headers appears here.
#ifndef PTB_CORE_DEVICE_CUDA_H
#define PTB_CORE_DEVICE_CUDA_H

#include "core/device.h"

struct CUstream_st; // cudaStream_t points at one

struct CUstream_st *ptb_cuda_stream(const ptb_stream *stream);
// CUDA's number of the device, which is its current device on every thread that enqueues.
int ptb_cuda_index(const ptb_device *device);
// OK for cudaSuccess. Anything else is logged with the call, file:line, CUDA's name and text of the error and
// what to try, and becomes NO_MEMORY, LOST (the device is gone), UNSUPPORTED (no driver, no device) or
// SYSTEM. error: a cudaError_t.
ptb_status ptb_cuda_check(int error, const char *call, const char *file, int line);
#define PTB_CUDA(call) PTB_TRY(ptb_cuda_check((int)(call), #call, __FILE__, __LINE__))

#endif
