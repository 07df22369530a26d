// The capture interface: dispatch to the one of a device.
#include "profiler/capture.h"

#include <stdio.h>
#include <string.h>

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

static bool is_of(const ptb_capture_kernel *k, const char *work, int32_t axis, uint64_t bytes)
{
    return k->axis == axis && k->bytes == bytes && strcmp(k->work, work) == 0;
}

void ptb_capture_note_kernel(ptb_capture *capture, const ptb_span *of, const char *kernel)
{
    for (size_t i = 0; i < capture->kernel_count; i++)
        if (is_of(&capture->kernels[i], of->name, of->axis, of->bytes) &&
            strcmp(capture->kernels[i].kernel, kernel) == 0)
            return;
    if (capture->kernel_count == PTB_CAPTURE_KERNELS) {
        capture->kernels_lost = true;
        return;
    }
    ptb_capture_kernel *k = &capture->kernels[capture->kernel_count++];
    *k = (ptb_capture_kernel){.axis = of->axis, .bytes = of->bytes};
    snprintf(k->work, sizeof k->work, "%s", of->name);
    snprintf(k->kernel, sizeof k->kernel, "%s", kernel);
}

size_t ptb_capture_kernels(const ptb_capture *capture, const char *work, int32_t axis, uint64_t bytes,
                           const char **names, size_t most)
{
    size_t count = 0;
    if (capture->kernels_lost || capture->stats.dropped || capture->stats.unattributed_nodes)
        return 0;
    for (size_t i = 0; i < capture->kernel_count; i++)
        if (is_of(&capture->kernels[i], work, axis, bytes)) {
            if (count < most)
                names[count] = capture->kernels[i].kernel;
            count++;
        }
    return count;
}
