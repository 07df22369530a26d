// The capture interface: dispatch to the one of a device.
#include "profiler/capture.h"

ptb_status ptb_capture_open(const char *device, ptb_trace *trace, ptb_capture **capture)
{
    const ptb_capture_ops *ops = (const ptb_capture_ops *)ptb_registry_find(PTB_KIND_CAPTURE, device);
    ptb_capture *opened = NULL;
    if (ops)
        PTB_TRY(ops->open(&opened));
    if (opened)
        opened->trace = trace;
    ptb_trace_set_capture(trace, opened);
    *capture = opened;
    return PTB_OK;
}

void ptb_capture_close(ptb_capture *capture)
{
    if (!capture)
        return;
    ptb_trace_set_capture(capture->trace, NULL);
    capture->ops->close(capture);
}

ptb_status ptb_capture_start(ptb_capture *capture)
{
    if (capture->cannot[0])
        return PTB_UNSUPPORTED;
    PTB_TRY(capture->ops->start(capture));
    capture->recording = true;
    return PTB_OK;
}

ptb_status ptb_capture_stop(ptb_capture *capture)
{
    capture->recording = false;
    return capture->ops->stop(capture);
}

uint64_t ptb_capture_open_work(ptb_capture *capture, const ptb_span *span)
{
    return capture->recording || capture->annotating ? capture->ops->open_work(capture, span) : 0;
}

void ptb_capture_close_work(ptb_capture *capture, uint64_t work)
{
    if (work)
        capture->ops->close_work(capture, work);
}
