// The events that the plug-in is told of (nccl_profiler_core.h), kept for ptb_nccl_profiler_spans: a buffer
// of fixed size that NCCL's threads write without waiting for each other. Handles are numbers, not addresses,
// so that a handle of an earlier recording, of another process or of no record is recognised and ignored.
#ifndef PTB_PROFILER_NCCL_EVENTS_H
#define PTB_PROFILER_NCCL_EVENTS_H

#include "core/status.h"
#include "profiler/capture.h"
#include "profiler/nccl_profiler_abi.h"

// Begins a recording of at most `capacity` events; what was recorded before is forgotten. It ends when the
// spans are read: proxies tell of an operation after the stream has done it. whose, context:
// ptb_nccl_profiler_start. NO_MEMORY, logged.
ptb_status ptb_nccl_events_start(size_t capacity, ptb_open_work_fn *whose, void *context);
// NULL: not recorded. kernel_ch.gpu_ns 0: the GPU's clock is not told, and the time is that of the call.
void *ptb_nccl_events_open(const ptb_nccl_event *event);
void ptb_nccl_events_close(void *handle);
// What the event has moved by now, and when the GPU ended it.
void ptb_nccl_events_bytes(void *handle, uint64_t bytes);
void ptb_nccl_events_gpu_end(void *handle, uint64_t gpu_ns);

#endif
