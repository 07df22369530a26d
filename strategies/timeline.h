// What a stream of compute is doing, as spans that do not cover waiting: whoever makes the stream wait (for
// another stream's communication) pauses the open span and resumes it behind the wait. One span is open at a
// time. Spans are recorded as strategies/mark.h says.
#ifndef PTB_STRATEGIES_TIMELINE_H
#define PTB_STRATEGIES_TIMELINE_H

#include "strategies/mark.h"

typedef struct {
    ptb_trace *trace; // NULL: nothing is recorded
    ptb_stream *stream;
    ptb_mark mark;
    ptb_span span; // open, paused, or the last one
    bool open;     // a span was opened and not closed yet; it may be paused
    bool paused;
} ptb_timeline;

// Closes the span that is open, if any, and opens `span`, which gives everything but the two times.
ptb_status ptb_timeline_open(ptb_timeline *timeline, const ptb_span *span);
ptb_status ptb_timeline_close(ptb_timeline *timeline);
// Nothing happens where no span is open; the two do not nest.
ptb_status ptb_timeline_pause(ptb_timeline *timeline);
ptb_status ptb_timeline_resume(ptb_timeline *timeline);

#endif
