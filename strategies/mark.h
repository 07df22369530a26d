// Spans of work on a stream: open and close are enqueued around the work and read the clock when the stream
// gets there. Time that a stream waits for an event must stay outside, or waiting would count as work.
#ifndef PTB_STRATEGIES_MARK_H
#define PTB_STRATEGIES_MARK_H

#include "core/device.h"
#include "core/trace.h"

// Where a stream keeps the begin of its open span; one a stream, spans of a stream do not nest.
typedef struct {
    int64_t begin_ns;
} ptb_mark;

// Both record nothing when `trace` is NULL. `span` gives everything but the two times; it is copied.
ptb_status ptb_mark_open(ptb_mark *mark, ptb_trace *trace, ptb_stream *stream);
ptb_status ptb_mark_close(ptb_mark *mark, ptb_trace *trace, ptb_stream *stream, const ptb_span *span);

#endif
