// Spans: what ran when. A trace is a buffer of fixed size, allocated before the run; recording is lock-free
// and never allocates; what does not fit any more is dropped and counted. Begin/end are ptb_clock_ns().
#ifndef PTB_CORE_TRACE_H
#define PTB_CORE_TRACE_H

#include "core/status.h"

#include <stddef.h>
#include <stdint.h>

typedef enum {
    PTB_SPAN_COMPUTE, // matmul, norm, attention, loss
    PTB_SPAN_COMM,
    PTB_SPAN_OPTIMIZER, // compute too, for overlap
    PTB_SPAN_COPY,
    PTB_SPAN_INPUT,  // waiting for data
    PTB_SPAN_SYNC,   // a host waiting; never counted as compute
    PTB_SPAN_STEP,   // one whole iteration; the frame, not work
    PTB_SPAN_INSIDE, // what a library did inside of an operation that has its own span; in no sum
    PTB_SPAN_KIND_COUNT
} ptb_span_kind;

typedef enum {
    PTB_PHASE_NONE,
    PTB_PHASE_FORWARD,
    PTB_PHASE_BACKWARD,
    PTB_PHASE_OPTIMIZER,
    PTB_PHASE_COUNT
} ptb_phase;

// Lanes (ptb_span.stream) of what NCCL does inside of an operation; channels beyond the width share the last.
enum {
    PTB_NCCL_LANE_CALLS = 100,   // collectives and messages, from enqueuing to launch
    PTB_NCCL_LANE_KERNEL = 110,  // + channel
    PTB_NCCL_LANE_SEND = 150,    // proxy operations and steps that send, + channel
    PTB_NCCL_LANE_RECV = 190,    // the same that receive
    PTB_NCCL_LANE_NETWORK = 230, // requests of the network plug-in
    PTB_NCCL_LANE_WIDTH = 32,
};

typedef struct {
    int64_t begin_ns, end_ns;
    int32_t rank;
    int16_t stream;     // lane: 0 main thread, 1 compute, 2 communication, ...
    uint8_t kind;       // ptb_span_kind
    uint8_t phase;      // ptb_phase
    int32_t unit;       // model unit (embedding 0, block b = b+1, head last) or bucket; -1 none
    int32_t microbatch; // -1 none
    int32_t axis;       // mesh axis of a communication: 0 none, 1 dp, 2 tp, 3 pp, 4 cp, 5 ep
    uint64_t bytes;
    uint64_t correlation; // iteration number, so that spans of one step are found together
    char name[24];        // "all_reduce", "block.forward"
} ptb_span;

typedef struct ptb_trace ptb_trace;
typedef struct ptb_capture ptb_capture; // profiler/capture.h: a device's own record of its work

const char *ptb_span_kind_name(ptb_span_kind kind);
const char *ptb_phase_name(ptb_phase phase);
const char *ptb_span_axis_name(int axis); // "dp"; "none" for 0 and numbers that there are not

// Room for `capacity` spans, touched at once.
ptb_status ptb_trace_new(size_t capacity, int rank, ptb_trace **trace);
void ptb_trace_free(ptb_trace *trace);
// Thread-safe. `trace` may be NULL (recording is off).
void ptb_trace_record(ptb_trace *trace, const ptb_span *span);
// Recorded spans in order of recording; valid until clear. dropped may be NULL.
const ptb_span *ptb_trace_spans(const ptb_trace *trace, size_t *count, size_t *dropped);
void ptb_trace_clear(ptb_trace *trace);
int ptb_trace_rank(const ptb_trace *trace);
// Who adds spans of a device that records its work itself; NULL: nobody. The trace only remembers it.
void ptb_trace_set_capture(ptb_trace *trace, ptb_capture *capture);
ptb_capture *ptb_trace_capture(const ptb_trace *trace);

#endif
