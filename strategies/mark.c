// See mark.h.
#include "strategies/mark.h"

#include "core/clock.h"
#include "profiler/capture.h"

typedef struct {
    ptb_mark *mark;
    ptb_trace *trace;
    ptb_span span;
} close_arguments;

static ptb_status run_open(void *arg)
{
    ptb_mark *mark = *(ptb_mark **)arg;
    mark->begin_ns = ptb_clock_ns();
    return PTB_OK;
}

static ptb_status run_close(void *arg)
{
    close_arguments *a = arg;
    a->span.begin_ns = a->mark->begin_ns;
    a->span.end_ns = ptb_clock_ns();
    ptb_trace_record(a->trace, &a->span);
    return PTB_OK;
}

// A stream that takes calls records its spans itself; any other one leaves it to the capture, if there is
// one.
static bool takes_calls(const ptb_stream *stream)
{
    return stream->ops->stream_call;
}

ptb_status ptb_mark_open(ptb_mark *mark, ptb_trace *trace, ptb_stream *stream, const ptb_span *span)
{
    if (!trace)
        return PTB_OK;
    mark->span = *span;
    if (takes_calls(stream))
        return ptb_stream_call(stream, run_open, &mark, sizeof mark);
    ptb_capture *capture = ptb_trace_capture(trace);
    mark->work = capture ? ptb_capture_open_work(capture, span) : 0;
    return PTB_OK;
}

ptb_status ptb_mark_close(ptb_mark *mark, ptb_trace *trace, ptb_stream *stream)
{
    if (!trace)
        return PTB_OK;
    if (!takes_calls(stream)) {
        ptb_capture *capture = ptb_trace_capture(trace);
        if (capture)
            ptb_capture_close_work(capture, mark->work);
        return PTB_OK;
    }
    close_arguments args = {mark, trace, mark->span};
    _Static_assert(sizeof args <= PTB_CALL_BYTES, "a span must fit into a stream's call");
    return ptb_stream_call(stream, run_close, &args, sizeof args);
}
