// See lane.h.
#include "strategies/lane.h"

#include "collectives/collective.h"
#include "profiler/capture.h"

#include <stdio.h>

const char *ptb_axis_name(ptb_axis axis)
{
    return ptb_span_axis_name((int)axis);
}

ptb_status ptb_lane_init(ptb_lane *lane, ptb_comm *comm, ptb_axis axis, ptb_timeline *compute,
                         ptb_stream *stream)
{
    *lane = (ptb_lane){.comm = comm,
                       .axis = axis,
                       .rank = comm->rank,
                       .size = comm->size,
                       .compute = compute,
                       .stream = stream,
                       .number = -1};
    for (int kind = 0; kind < PTB_COLL_COUNT; kind++) {
        const char *name = ptb_coll_name((ptb_coll_kind)kind);
        const ptb_collective *c = (const ptb_collective *)ptb_registry_find(PTB_KIND_COLLECTIVE, name);
        lane->factor[kind] = comm->size > 1 && c && c->has_data ? c->bus_factor(comm->size) : 0;
    }
    PTB_TRY(ptb_event_new(stream->device, &lane->forked));
    return ptb_event_new(stream->device, &lane->joined);
}

void ptb_lane_release(ptb_lane *lane)
{
    ptb_event_free(lane->forked);
    ptb_event_free(lane->joined);
    *lane = (ptb_lane){0};
}

static void account(ptb_device *device, ptb_memory category, int64_t bytes)
{
    device->used_bytes[category] += (uint64_t)bytes;
    if (device->used_bytes[category] > device->peak_bytes[category])
        device->peak_bytes[category] = device->used_bytes[category];
}

ptb_status ptb_lane_alloc(ptb_lane *lane, ptb_memory category, size_t bytes, void **memory)
{
    ptb_comm *comm = lane->comm;
    void *got = NULL;
    ptb_status mine = comm->ops->alloc(comm, bytes, &got);
    *memory = mine == PTB_OK ? got : NULL;
    if (mine == PTB_OK)
        account(lane->stream->device, category, (int64_t)bytes);
    return ptb_world_agree(comm->world, mine);
}

void ptb_lane_free(ptb_lane *lane, ptb_memory category, size_t bytes, void *memory)
{
    if (!memory)
        return;
    lane->comm->ops->free(lane->comm, memory);
    account(lane->stream->device, category, -(int64_t)bytes);
}

ptb_status ptb_lane_fork(ptb_lane *lane)
{
    PTB_TRY(ptb_event_record(lane->forked, lane->compute->stream));
    return ptb_event_wait(lane->stream, lane->forked);
}

ptb_status ptb_lane_wait(ptb_lane *lane, ptb_event *done)
{
    PTB_TRY(ptb_timeline_pause(lane->compute));
    PTB_TRY(ptb_event_wait(lane->compute->stream, done));
    return ptb_timeline_resume(lane->compute);
}

ptb_status ptb_lane_join(ptb_lane *lane)
{
    PTB_TRY(ptb_event_record(lane->joined, lane->stream));
    return ptb_lane_wait(lane, lane->joined);
}

static ptb_span span_of(const ptb_lane *lane, ptb_span_kind kind, uint64_t bytes, const char *name)
{
    const ptb_span *compute = &lane->compute->span;
    ptb_span span = {.rank = lane->compute->trace ? ptb_trace_rank(lane->compute->trace) : 0,
                     .stream = (int16_t)lane->stream->lane,
                     .kind = (uint8_t)kind,
                     .phase = compute->phase,
                     .unit = lane->number < 0 ? compute->unit : lane->number,
                     .microbatch = compute->microbatch,
                     .axis = kind == PTB_SPAN_COMM ? (int32_t)lane->axis : PTB_AXIS_NONE,
                     .bytes = bytes,
                     .correlation = compute->correlation};
    snprintf(span.name, sizeof span.name, "%s", name);
    return span;
}

// Bytes that this rank sends: the sum over the others of an all-to-all-v's counts.
static double sent_elements(const ptb_lane *lane, const ptb_coll *call)
{
    double sum = 0;
    for (int r = 0; r < lane->size; r++)
        sum += r == lane->rank ? 0 : (double)call->send_counts[r];
    return sum;
}

static double volume_of(const ptb_lane *lane, const ptb_coll *call)
{
    double element = (double)ptb_dtype_size(call->dtype);
    if (call->kind == PTB_ALL_TO_ALL_V)
        return sent_elements(lane, call) * element;
    return (double)call->count * element * lane->factor[call->kind];
}

ptb_status ptb_lane_collective(ptb_lane *lane, const ptb_coll *call, const char *name)
{
    if (lane->muted)
        return PTB_OK;
    uint64_t bytes = call->count * ptb_dtype_size(call->dtype);
    ptb_span span = span_of(lane, PTB_SPAN_COMM, bytes, name ? name : ptb_coll_name(call->kind));
    bool moves = lane->size > 1; // one rank has nothing to say: no span, so that none shows in the trace
    if (moves)
        PTB_TRY(ptb_mark_open(&lane->mark, lane->compute->trace, lane->stream, &span));
    PTB_TRY(ptb_comm_collective(lane->comm, call, lane->stream));
    if (!moves)
        return PTB_OK;
    lane->moved.calls++;
    lane->moved.bytes[call->kind] += bytes;
    lane->moved.volume_bytes += volume_of(lane, call);
    return ptb_mark_close(&lane->mark, lane->compute->trace, lane->stream);
}

ptb_status ptb_lane_now(ptb_lane *lane, const ptb_coll *call, const char *name)
{
    PTB_TRY(ptb_lane_fork(lane));
    PTB_TRY(ptb_lane_collective(lane, call, name));
    return ptb_lane_join(lane);
}

static ptb_status send_and_receive(ptb_lane *lane, const ptb_lane_message *m)
{
    const ptb_comm_ops *ops = lane->comm->ops;
    if (m->send_count)
        PTB_TRY(ops->send(lane->comm, m->send, m->send_count, m->dtype, m->to, lane->stream));
    if (m->recv_count)
        PTB_TRY(ops->recv(lane->comm, m->recv, m->recv_count, m->dtype, m->from, lane->stream));
    return PTB_OK;
}

ptb_status ptb_lane_exchange(ptb_lane *lane, const ptb_lane_message *messages, size_t count, const char *name)
{
    if (lane->muted)
        return PTB_OK;
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++)
        bytes += messages[i].send_count * ptb_dtype_size(messages[i].dtype);
    ptb_span span = span_of(lane, PTB_SPAN_COMM, bytes, name);
    PTB_TRY(ptb_mark_open(&lane->mark, lane->compute->trace, lane->stream, &span));
    PTB_TRY(lane->comm->ops->group_begin(lane->comm));
    ptb_status status = PTB_OK;
    for (size_t i = 0; i < count && status == PTB_OK; i++)
        status = send_and_receive(lane, &messages[i]);
    ptb_status ended = lane->comm->ops->group_end(lane->comm, lane->stream);
    PTB_TRY(status);
    PTB_TRY(ended);
    lane->moved.calls++;
    lane->moved.message_bytes += bytes;
    lane->moved.volume_bytes += (double)bytes;
    return ptb_mark_close(&lane->mark, lane->compute->trace, lane->stream);
}

void ptb_lane_describe(const ptb_lane *lane, const ptb_coll *call, ptb_params *facts)
{
    enum { MOST = 8 };
    ptb_comm *comm = lane->comm;
    const ptb_capture *capture = lane->compute->trace ? ptb_trace_capture(lane->compute->trace) : NULL;
    const char *names[MOST];
    size_t count = 0;
    if (capture && comm->ops->recorded)
        count = ptb_capture_kernels(capture, ptb_coll_name(call->kind), (int32_t)lane->axis,
                                    call->count * ptb_dtype_size(call->dtype), names, MOST);
    if (count > 0 && count <= MOST)
        comm->ops->recorded(comm, call, names, count, "recorded steps");
    comm->ops->describe(comm, call, facts);
}

ptb_status ptb_lane_work_begin(ptb_lane *lane, const char *name)
{
    ptb_span span = span_of(lane, PTB_SPAN_COMPUTE, 0, name);
    return ptb_mark_open(&lane->mark, lane->compute->trace, lane->stream, &span);
}

ptb_status ptb_lane_work_end(ptb_lane *lane)
{
    return ptb_mark_close(&lane->mark, lane->compute->trace, lane->stream);
}
