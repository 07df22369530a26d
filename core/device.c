// The device interface: dispatch to the back-end, and the names of the memory categories.
// Add a device by adding core/device_X.c.
#include "core/device.h"

#include "core/log.h"

const char *ptb_memory_name(ptb_memory category)
{
    static const char *const names[] = {
#define X(name, word) word,
        PTB_MEMORY_LIST(X)
#undef X
    };
    return names[category];
}

ptb_status ptb_device_open(const char *name, int index, ptb_device **device)
{
    const ptb_plugin *plugin = ptb_registry_need(PTB_KIND_DEVICE, name);
    if (!plugin)
        return PTB_USAGE;
    return ((const ptb_device_ops *)plugin)->open(index, device);
}

void ptb_devices_choose(int local_rank)
{
    for (size_t i = 0; i < ptb_registry_count(PTB_KIND_DEVICE); i++) {
        const ptb_plugin *plugin = ptb_registry_at(PTB_KIND_DEVICE, i);
        const ptb_device_ops *ops = (const ptb_device_ops *)(const void *)plugin;
        if (ops->choose)
            ops->choose(local_rank);
    }
}

int ptb_device_count(const char *name)
{
    const ptb_plugin *plugin = ptb_registry_find(PTB_KIND_DEVICE, name);
    const ptb_device_ops *ops = (const ptb_device_ops *)(const void *)plugin;
    return !ops ? 0 : ops->count ? ops->count() : -1;
}

void ptb_device_close(ptb_device *device)
{
    if (device)
        device->ops->close(device);
}

uint64_t ptb_device_available(ptb_device *device)
{
    uint64_t all = device->ops->available(device);
    return all == UINT64_MAX ? all : all / (uint64_t)device->sharers;
}

ptb_status ptb_device_alloc(ptb_device *device, ptb_memory category, size_t bytes, void **memory)
{
    return device->ops->alloc(device, category, bytes, memory);
}

void ptb_device_free(ptb_device *device, void *memory)
{
    if (memory)
        device->ops->free(device, memory);
}

ptb_status ptb_device_alloc_host(ptb_device *device, size_t bytes, void **memory)
{
    return device->ops->alloc_host(device, bytes, memory);
}

void ptb_device_free_host(ptb_device *device, void *memory)
{
    if (memory)
        device->ops->free_host(device, memory);
}

void ptb_device_reset_peak(ptb_device *device)
{
    for (int i = 0; i < PTB_MEMORY_COUNT; i++)
        device->peak_bytes[i] = device->used_bytes[i];
}

ptb_status ptb_stream_new(ptb_device *device, ptb_stream_kind kind, int lane, ptb_stream **stream)
{
    return device->ops->stream_new(device, kind, lane, stream);
}

void ptb_stream_free(ptb_stream *stream)
{
    if (!stream)
        return;
    while (stream->watches)
        ptb_stream_watch_unlink(stream->watches);
    stream->ops->stream_free(stream);
}

void ptb_stream_watch_link(ptb_stream *stream, ptb_stream_watch *watch)
{
    watch->stream = stream;
    watch->next = stream->watches;
    stream->watches = watch;
}

void ptb_stream_watch_unlink(ptb_stream_watch *watch)
{
    if (!watch->stream)
        return;
    ptb_stream_watch **at = &watch->stream->watches;
    while (*at && *at != watch)
        at = &(*at)->next;
    if (*at)
        *at = watch->next;
    watch->stream = NULL;
    watch->next = NULL;
}

ptb_status ptb_stream_look(ptb_stream *stream, int64_t waited_ns)
{
    ptb_status worst = PTB_OK;
    for (ptb_stream_watch *watch = stream->watches; watch; watch = watch->next) {
        ptb_status status = watch->look(watch, waited_ns);
        if (worst == PTB_OK)
            worst = status;
    }
    return worst;
}

ptb_status ptb_stream_sync(ptb_stream *stream)
{
    ptb_status status = stream->ops->stream_sync(stream);
    return status == PTB_OK && stream->watches ? ptb_stream_look(stream, 0) : status;
}

ptb_status ptb_stream_call(ptb_stream *stream, ptb_call_fn *fn, const void *arg, size_t bytes)
{
    if (stream->ops->stream_call)
        return stream->ops->stream_call(stream, fn, arg, bytes);
    ptb_error("host functions cannot be enqueued on a stream of the device '%s': this operation needs "
              "--device host",
              stream->ops->plugin.name);
    return PTB_UNSUPPORTED;
}

ptb_status ptb_stream_copy(ptb_stream *stream, void *to, const void *from, size_t bytes)
{
    return stream->ops->copy(stream, to, from, bytes);
}

ptb_status ptb_stream_set(ptb_stream *stream, void *memory, int byte, size_t bytes)
{
    return stream->ops->set(stream, memory, byte, bytes);
}

ptb_status ptb_event_new(ptb_device *device, ptb_event **event)
{
    return device->ops->event_new(device, event);
}

void ptb_event_free(ptb_event *event)
{
    if (event)
        event->ops->event_free(event);
}

ptb_status ptb_event_record(ptb_event *event, ptb_stream *stream)
{
    return event->ops->event_record(event, stream);
}

ptb_status ptb_event_wait(ptb_stream *stream, ptb_event *event)
{
    return stream->ops->event_wait(stream, event);
}

ptb_status ptb_event_sync(ptb_event *event)
{
    return event->ops->event_sync(event);
}

ptb_status ptb_event_query(ptb_event *event, bool *reached)
{
    return event->ops->event_query(event, reached);
}

ptb_status ptb_graph_begin(ptb_stream *stream)
{
    if (stream->ops->graph_begin)
        return stream->ops->graph_begin(stream);
    ptb_error("the device '%s' has no graphs; they need a GPU (--device cuda)", stream->ops->plugin.name);
    return PTB_UNSUPPORTED;
}

ptb_status ptb_graph_end(ptb_stream *stream, ptb_graph **graph)
{
    return stream->ops->graph_end(stream, graph);
}

ptb_status ptb_graph_launch(ptb_graph *graph, ptb_stream *stream)
{
    return stream->ops->graph_launch(graph, stream);
}

void ptb_graph_free(ptb_graph *graph)
{
    if (graph)
        graph->ops->graph_free(graph);
}

size_t ptb_graph_kernels(const ptb_graph *graph, const char **names, size_t most)
{
    return graph->ops->graph_kernels ? graph->ops->graph_kernels(graph, names, most) : 0;
}
