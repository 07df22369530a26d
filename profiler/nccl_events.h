// The events that nccl_profiler.c is told of, kept for ptb_nccl_profiler_spans: a buffer of fixed size that
// NCCL's threads write without waiting for each other. Handles are numbers, not addresses, so that a handle
// of an earlier recording is recognised and ignored.
#ifndef PTB_PROFILER_NCCL_EVENTS_H
#define PTB_PROFILER_NCCL_EVENTS_H

#include "core/status.h"
#include "profiler/nccl_profiler_abi.h"

// Begins a recording of at most `capacity` events; what was recorded before is forgotten. It ends when the
// spans are read: proxies tell of an operation after the stream has done it. NO_MEMORY, logged.
ptb_status ptb_nccl_events_start(size_t capacity);
// NULL: not recorded. rank: of the communicator that the event belongs to.
void *ptb_nccl_events_open(const ptb_nccl_event *event, int rank);
void ptb_nccl_events_close(void *handle);
void ptb_nccl_events_state(void *handle, int state, const ptb_nccl_state_args *args);

#endif
