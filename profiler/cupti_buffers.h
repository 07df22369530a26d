// The buffers that CUPTI fills with activity records. CUPTI's callbacks carry no context, so there is one set
// a process; its functions but the two callbacks are called by the thread that owns the capture.
#ifndef PTB_PROFILER_CUPTI_BUFFERS_H
#define PTB_PROFILER_CUPTI_BUFFERS_H

#include "core/status.h"

#include <stddef.h>
#include <stdint.h>

struct CUctx_st; // CUcontext points at one

// Allocates and touches a first stock, so that recording rarely has to. NO_MEMORY, logged.
ptb_status ptb_cupti_buffers_init(void);
void ptb_cupti_buffers_release(void);

// CUPTI's callbacks, on any thread.
void ptb_cupti_buffer_wanted(uint8_t **buffer, size_t *size, size_t *max_records);
void ptb_cupti_buffer_full(struct CUctx_st *context, uint32_t stream, uint8_t *buffer, size_t size,
                           size_t valid);

// Calls read for each record that came since the last recycling, in the order of the buffers; stops at the
// first status that is not OK. `record`: a CUpti_Activity.
typedef ptb_status ptb_cupti_read_fn(void *context, const void *record);
ptb_status ptb_cupti_buffers_read(ptb_cupti_read_fn *read, void *context);
// All buffers are free again. The number of records that CUPTI had to drop since the last time.
uint64_t ptb_cupti_buffers_recycle(void);

#endif
