// For the CUDA back-ends of kernels and communicators: the CUDA objects behind a device and a stream, and the
// one way in which a CUDA call is checked. No type of CUDA's headers appears here.
#ifndef PTB_CORE_DEVICE_CUDA_H
#define PTB_CORE_DEVICE_CUDA_H

#include "core/device.h"
#include "core/text.h"

struct CUstream_st; // cudaStream_t points at one

struct CUstream_st *ptb_cuda_stream(const ptb_stream *stream);
// CUDA's number of the device, which is the current device of the thread that opened it.
int ptb_cuda_index(const ptb_device *device);
// Makes it the current device of another thread, which every thread that launches kernels needs.
ptb_status ptb_cuda_use(const ptb_device *device);
// Streaming multiprocessors of the device.
int ptb_cuda_processors(const ptb_device *device);
// OK for cudaSuccess. Anything else is logged with the call, file:line, CUDA's name and text of the error and
// what to try, and becomes NO_MEMORY, LOST (the device, or this process's use of it, is gone), UNSUPPORTED
// (no driver, no device, not in this device) or SYSTEM. error: a cudaError_t.
ptb_status ptb_cuda_check(int error, const char *call, const char *file, int line);
#define PTB_CUDA(call) PTB_TRY(ptb_cuda_check((int)(call), #call, __FILE__, __LINE__))

// The same for a call that enqueues on a stream: what is not OK sticks to the stream, as core/device.h says.
ptb_status ptb_cuda_stream_check(ptb_stream *stream, int error, const char *call, const char *file, int line);
#define PTB_CUDA_ON(stream, call)                                                                            \
    PTB_TRY(ptb_cuda_stream_check((stream), (int)(call), #call, __FILE__, __LINE__))
// The first status that was not OK; work is enqueued only while it is OK.
ptb_status ptb_cuda_stream_status(const ptb_stream *stream);
// Another library's failure (NCCL, cuBLASLt) becomes the stream's. Nothing is logged.
void ptb_cuda_stream_fail(ptb_stream *stream, ptb_status status);

// After another library has failed: whether that is because CUDA has. Not OK when the thread's device is
// lost, or when the error that the library left behind says why (which is taken away); what CUDA says and
// what to do are then appended. Nothing is logged.
ptb_status ptb_cuda_cause(ptb_text *said);
// Gives back what the memory pool of CUDA's device `index` keeps without use: other libraries do not allocate
// from it.
void ptb_cuda_trim(int index);

// Why no GPU can be used, in one sentence with what to do; appends nothing and returns true when there is
// one. Nothing is logged. `gpus` is their number.
bool ptb_cuda_usable(ptb_text *why, int *gpus);

#endif
