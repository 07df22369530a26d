// Streams, events and graphs of the CUDA device. A stream waits in cudaStreamSynchronize, which does not come
// back from a device that hangs: the watch thread of the program (bench/watch.h) notices.
#include "core/device_cuda_internal.h"

#include "core/clock.h"
#include "core/log.h"

#include <cuda_runtime_api.h>

#include <sched.h>
#include <stdlib.h>

enum { LOOK_AFTER_NS = 1000000 }; // so that watches cost short work nothing

struct CUstream_st *ptb_cuda_stream(const ptb_stream *stream)
{
    return ((const ptb_cuda_stream_t *)stream)->stream;
}

ptb_status ptb_cuda_stream_new(ptb_device *device, ptb_stream_kind kind, int lane, ptb_stream **stream)
{
    ptb_cuda_device *d = (ptb_cuda_device *)device;
    ptb_cuda_stream_t *s = calloc(1, sizeof *s);
    if (!s) {
        ptb_error("no memory for a stream");
        return PTB_NO_MEMORY;
    }
    s->base = (ptb_stream){.ops = device->ops, .device = device, .kind = kind, .lane = lane};
    cudaError_t error = cudaSetDevice(d->index);
    if (error == cudaSuccess)
        error = cudaStreamCreateWithPriority(&s->stream, cudaStreamNonBlocking,
                                             kind == PTB_STREAM_URGENT ? d->urgent : d->ordinary);
    ptb_status status =
        ptb_cuda_device_check(d, (int)error, "cudaStreamCreateWithPriority", __FILE__, __LINE__);
    if (status != PTB_OK) {
        free(s);
        return status;
    }
    *stream = &s->base;
    return PTB_OK;
}

// Waits and has the watches look meanwhile. Once one has ended the work, there is only the end to wait for.
static ptb_status wait_watched(ptb_stream *stream)
{
    struct CUstream_st *s = ptb_cuda_stream(stream);
    const int64_t begin_ns = ptb_clock_ns();
    ptb_status status = PTB_OK;
    cudaError_t error = cudaErrorNotReady;
    while (status == PTB_OK && (error = cudaStreamQuery(s)) == cudaErrorNotReady) {
        sched_yield();
        int64_t waited_ns = ptb_clock_ns() - begin_ns;
        if (waited_ns >= LOOK_AFTER_NS)
            status = ptb_stream_look(stream, waited_ns);
    }
    if (status == PTB_OK) // work that was given up looks finished
        status = ptb_stream_look(stream, ptb_clock_ns() - begin_ns);
    else
        error = cudaStreamSynchronize(s);
    cudaGetLastError(); // "not ready" is remembered as an error too
    if (status != PTB_OK)
        ptb_cuda_stream_fail(stream, status);
    PTB_TRY(ptb_cuda_stream_check(stream, (int)error, "cudaStreamSynchronize", __FILE__, __LINE__));
    return status;
}

ptb_status ptb_cuda_stream_sync(ptb_stream *stream)
{
    ptb_cuda_stream_t *s = (ptb_cuda_stream_t *)stream;
    PTB_TRY(ptb_cuda_stream_status(stream));
    if (stream->watches)
        PTB_TRY(wait_watched(stream));
    else
        PTB_CUDA_ON(stream, cudaStreamSynchronize(s->stream));
    if (s->checks)
        ptb_cuda_checks_finish(s);
    return PTB_OK;
}

// Finishes what is enqueued.
void ptb_cuda_stream_free(ptb_stream *stream)
{
    ptb_cuda_stream_t *s = (ptb_cuda_stream_t *)stream;
    ptb_cuda_device *d = (ptb_cuda_device *)stream->device;
    if (!atomic_load(&d->is_lost))
        PTB_CUDA_CHECK(d, cudaStreamSynchronize(s->stream));
    if (stream->attached_free)
        stream->attached_free(stream);
    ptb_cuda_checks_free(s);
    cudaStreamDestroy(s->stream);
    cudaGetLastError();
    free(s);
}

ptb_status ptb_cuda_event_new(ptb_device *device, ptb_event **event)
{
    ptb_cuda_device *d = (ptb_cuda_device *)device;
    ptb_cuda_event *e = calloc(1, sizeof *e);
    if (!e) {
        ptb_error("no memory for an event");
        return PTB_NO_MEMORY;
    }
    e->base.ops = device->ops;
    e->device = d;
    cudaError_t error = cudaSetDevice(d->index);
    if (error == cudaSuccess)
        error = cudaEventCreateWithFlags(&e->event, cudaEventDisableTiming);
    if (error == cudaSuccess)
        error = cudaEventCreateWithFlags(&e->inner, cudaEventDisableTiming);
    ptb_status status = ptb_cuda_device_check(d, (int)error, "cudaEventCreateWithFlags", __FILE__, __LINE__);
    if (status != PTB_OK) {
        ptb_cuda_event_free(&e->base);
        return status;
    }
    *event = &e->base;
    return PTB_OK;
}

void ptb_cuda_event_free(ptb_event *event)
{
    ptb_cuda_event *e = (ptb_cuda_event *)event;
    if (e->event)
        cudaEventDestroy(e->event);
    if (e->inner)
        cudaEventDestroy(e->inner);
    cudaGetLastError();
    free(e);
}

static ptb_status is_recorded(ptb_stream *stream, bool *recorded)
{
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    if (((ptb_cuda_device *)stream->device)->is_capturing)
        PTB_CUDA_ON(stream, cudaStreamIsCapturing(ptb_cuda_stream(stream), &capture));
    *recorded = capture != cudaStreamCaptureStatusNone;
    return PTB_OK;
}

ptb_status ptb_cuda_event_record(ptb_event *event, ptb_stream *stream)
{
    ptb_cuda_event *e = (ptb_cuda_event *)event;
    struct CUstream_st *s = ptb_cuda_stream(stream);
    bool recorded;
    PTB_TRY(ptb_cuda_stream_status(stream));
    PTB_TRY(is_recorded(stream, &recorded));
    e->capture = recorded ? e->device->capture : 0;
    if (!recorded) {
        PTB_CUDA_ON(stream, cudaEventRecord(e->event, s));
        return PTB_OK;
    }
    // In this order: who waits for the inner one has joined the node that the other one is.
    PTB_CUDA_ON(stream, cudaEventRecordWithFlags(e->event, s, cudaEventRecordExternal));
    PTB_CUDA_ON(stream, cudaEventRecord(e->inner, s));
    return PTB_OK;
}

ptb_status ptb_cuda_event_wait(ptb_stream *stream, ptb_event *event)
{
    ptb_cuda_event *e = (ptb_cuda_event *)event;
    struct CUstream_st *s = ptb_cuda_stream(stream);
    bool recorded;
    PTB_TRY(ptb_cuda_stream_status(stream));
    // A wait for what is being recorded makes the stream part of the graph.
    if (e->device->is_capturing && e->capture == e->device->capture) {
        PTB_CUDA_ON(stream, cudaStreamWaitEvent(s, e->inner, cudaEventWaitDefault));
        return PTB_OK;
    }
    PTB_TRY(is_recorded(stream, &recorded));
    PTB_CUDA_ON(stream,
                cudaStreamWaitEvent(s, e->event, recorded ? cudaEventWaitExternal : cudaEventWaitDefault));
    return PTB_OK;
}

ptb_status ptb_cuda_event_sync(ptb_event *event)
{
    ptb_cuda_event *e = (ptb_cuda_event *)event;
    if (atomic_load(&e->device->is_lost))
        return PTB_LOST;
    return PTB_CUDA_CHECK(e->device, cudaEventSynchronize(e->event));
}

ptb_status ptb_cuda_event_query(ptb_event *event, bool *reached)
{
    ptb_cuda_event *e = (ptb_cuda_event *)event;
    if (atomic_load(&e->device->is_lost))
        return PTB_LOST;
    cudaError_t error = cudaEventQuery(e->event);
    *reached = error == cudaSuccess;
    if (error != cudaErrorNotReady)
        return PTB_CUDA_CHECK(e->device, error);
    cudaGetLastError(); // "not ready" is remembered as an error too
    return PTB_OK;
}

// Thread-local: what other threads do meanwhile (a library's own, the watch) does not spoil the recording.
ptb_status ptb_cuda_graph_begin(ptb_stream *stream)
{
    ptb_cuda_device *d = (ptb_cuda_device *)stream->device;
    PTB_TRY(ptb_cuda_stream_status(stream));
    if (d->is_capturing) {
        ptb_error("a graph is being recorded on GPU %d already", d->index);
        return PTB_INTERNAL;
    }
    PTB_CUDA_ON(stream, cudaStreamBeginCapture(ptb_cuda_stream(stream), cudaStreamCaptureModeThreadLocal));
    d->is_capturing = true;
    d->capture++;
    return PTB_OK;
}

ptb_status ptb_cuda_graph_end(ptb_stream *stream, ptb_graph **graph)
{
    ptb_cuda_device *d = (ptb_cuda_device *)stream->device;
    struct CUstream_st *s = ptb_cuda_stream(stream);
    cudaGraph_t recorded = NULL;
    cudaGraphExec_t exec = NULL;
    d->is_capturing = false;
    PTB_CUDA_ON(stream, cudaStreamEndCapture(s, &recorded)); // also after an error: it ends the recording
    PTB_TRY(ptb_cuda_stream_status(stream));
    ptb_cuda_graph *g = calloc(1, sizeof *g);
    cudaError_t error = g ? cudaGraphInstantiate(&exec, recorded, 0) : cudaSuccess;
    if (!g) {
        cudaGraphDestroy(recorded);
        ptb_error("no memory for a graph");
        return PTB_NO_MEMORY;
    }
    ptb_status status = ptb_cuda_stream_check(stream, (int)error, "cudaGraphInstantiate", __FILE__, __LINE__);
    if (status == PTB_OK) // or the first launch would pay for it
        status = ptb_cuda_stream_check(stream, (int)cudaGraphUpload(exec, s), "cudaGraphUpload", __FILE__,
                                       __LINE__);
    if (status != PTB_OK) {
        if (exec)
            cudaGraphExecDestroy(exec);
        cudaGraphDestroy(recorded);
        free(g);
        return status;
    }
    g->base.ops = stream->ops;
    g->recorded = recorded;
    g->exec = exec;
    *graph = &g->base;
    return PTB_OK;
}

ptb_status ptb_cuda_graph_launch(ptb_graph *graph, ptb_stream *stream)
{
    PTB_TRY(ptb_cuda_stream_status(stream));
    PTB_CUDA_ON(stream, cudaGraphLaunch(((ptb_cuda_graph *)graph)->exec, ptb_cuda_stream(stream)));
    return PTB_OK;
}

void ptb_cuda_graph_free(ptb_graph *graph)
{
    ptb_cuda_graph *g = (ptb_cuda_graph *)graph;
    cudaGraphExecDestroy(g->exec);
    cudaGraphDestroy(g->recorded);
    cudaGetLastError();
    free(g);
}
