// Spans of work on a stream: open and close are enqueued around the work. On the host they read the clock
// when the stream gets there; time that a stream waits for an event must stay outside, or waiting would count
// as work. Where the stream's device records its work itself (profiler/capture.h), work that this thread
// enqueues between the two becomes spans with the attributes given, one for each kernel and copy.
#ifndef PTB_STRATEGIES_MARK_H
#define PTB_STRATEGIES_MARK_H

#include "core/device.h"
#include "core/trace.h"

// The open span; one a stream, spans of a stream do not nest, those of two streams may.
typedef struct {
    int64_t begin_ns; // written by the stream
    ptb_span span;
    uint64_t work; // number in the capture
} ptb_mark;

// Both record nothing when `trace` is NULL. `span` gives everything but the two times; it is copied.
ptb_status ptb_mark_open(ptb_mark *mark, ptb_trace *trace, ptb_stream *stream, const ptb_span *span);
ptb_status ptb_mark_close(ptb_mark *mark, ptb_trace *trace, ptb_stream *stream);

#endif
