// Events of NCCL as spans (nccl_events.h, ptb_nccl_profiler_spans).
#include "profiler/nccl_events.h"

#include "core/clock.h"
#include "core/log.h"
#include "profiler/nccl_profiler.h"

#include <ctype.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SETTLE_NS = 5000000 }; // without news it is over

// The work that an operation, and what is inside of it, belongs to.
typedef struct {
    bool is_known;
    uint8_t phase;
    int32_t unit, microbatch, axis;
    uint64_t step;
} event_work;

typedef struct {
    atomic_bool ended;
    bool on_gpu; // gpu_begin, gpu_end are the times
    int16_t lane;
    int64_t begin_ns, end_ns;
    int64_t gpu_begin_ns, gpu_end_ns;
    uint64_t bytes;
    event_work work;
    char name[24];
} event_record;

typedef struct event_buffer {
    size_t room;                // records that it has
    size_t capacity;            // of them, that the recording in work may take
    struct event_buffer *older; // kept until release: an event of it may still end
    event_record records[];
} event_buffer;

// See nccl_profiler.c on why there is state at all.
static struct {
    _Atomic(event_buffer *) buffer;
    atomic_size_t taken; // may run past the capacity
    atomic_uint generation;
    atomic_bool open;
    atomic_size_t missed; // came when the recording that they belong to had been read
    ptb_open_work_fn *whose;
    void *context;
    _Atomic int64_t lag_ns; // least (clock of the host - clock of the GPU) with which a time was told
} events = {.lag_ns = INT64_MAX};

// ---- handles

static void *handle_of(unsigned generation, size_t index)
{
    return (void *)(((uintptr_t)generation << 32) | (uintptr_t)(index + 1));
}

static event_record *record_of(const void *handle)
{
    uintptr_t number = (uintptr_t)handle;
    event_buffer *buffer = atomic_load(&events.buffer);
    size_t index = (number & 0xffffffff) - 1;
    if (!handle || !buffer || number >> 32 != atomic_load(&events.generation) || index >= buffer->capacity)
        return NULL;
    return &buffer->records[index];
}

// ---- what an event is called and where it lies

static int16_t lane_of(int base, int channel)
{
    return (int16_t)(base + (channel < PTB_NCCL_LANE_WIDTH ? channel : PTB_NCCL_LANE_WIDTH - 1));
}

static void lower_tail(char *text)
{
    for (; *text; text++)
        *text = (char)tolower((unsigned char)*text);
}

static const char *word(const char *text)
{
    return text ? text : "?";
}

static event_work open_work(void)
{
    uint64_t number;
    const ptb_span *span = events.whose ? events.whose(events.context, &number) : NULL;
    if (!span)
        return (event_work){.is_known = false};
    return (event_work){.is_known = true,
                        .phase = span->phase,
                        .unit = span->unit,
                        .microbatch = span->microbatch,
                        .axis = span->axis,
                        .step = span->correlation};
}

// NULL where it has no record, or where the handle is another process's (PXN).
static const event_record *parent_of(const ptb_nccl_event *event)
{
    if (event->type == PTB_NCCL_PROXY_OP && event->proxy_op.pid != getpid())
        return NULL;
    return record_of(event->parent);
}

// False: not an event that makes a span.
static bool describe(const ptb_nccl_event *event, event_record *r)
{
    const size_t size = sizeof r->name;
    const event_record *parent = parent_of(event);
    bool is_operation = event->type & (PTB_NCCL_COLL | PTB_NCCL_CE_COLL | PTB_NCCL_P2P);
    if (is_operation)
        r->work = open_work();
    else if (parent)
        r->work = parent->work;
    switch (event->type) {
    case PTB_NCCL_COLL: {
        int at = snprintf(r->name, size, "%s ", word(event->coll.function));
        if (at > 0 && (size_t)at < size) {
            snprintf(r->name + at, size - (size_t)at, "%s/%s", word(event->coll.algorithm),
                     word(event->coll.protocol));
            lower_tail(r->name + at);
        }
        r->lane = PTB_NCCL_LANE_CALLS;
        return true;
    }
    case PTB_NCCL_CE_COLL:
        snprintf(r->name, size, "%s copy_engine", word(event->ce_coll.function));
        r->lane = PTB_NCCL_LANE_CALLS;
        return true;
    case PTB_NCCL_P2P:
        snprintf(r->name, size, "%s peer %d", word(event->p2p.function), event->p2p.peer);
        r->lane = PTB_NCCL_LANE_CALLS;
        return true;
    case PTB_NCCL_PROXY_OP:
        snprintf(r->name, size, "%s %d, %d steps", event->proxy_op.is_send ? "send to" : "receive from",
                 event->proxy_op.peer, event->proxy_op.steps);
        r->lane = lane_of(event->proxy_op.is_send ? PTB_NCCL_LANE_SEND : PTB_NCCL_LANE_RECV,
                          event->proxy_op.channel);
        return true;
    case PTB_NCCL_PROXY_STEP: // in the lane of its operation, which is of this process as the step is
        snprintf(r->name, size, "step %d", event->proxy_step.step);
        r->lane = parent ? parent->lane : PTB_NCCL_LANE_SEND;
        return true;
    case PTB_NCCL_KERNEL_CH: // its parent is the collective, of this process
        snprintf(r->name, size, "%s", parent ? parent->name : "kernel");
        r->lane = lane_of(PTB_NCCL_LANE_KERNEL, event->kernel_ch.channel);
        r->on_gpu = event->kernel_ch.gpu_ns != 0;
        r->gpu_begin_ns = (int64_t)event->kernel_ch.gpu_ns;
        return true;
    case PTB_NCCL_NET_PLUGIN:
        snprintf(r->name, size, "network request");
        r->lane = PTB_NCCL_LANE_NETWORK;
        return true;
    default:
        return false;
    }
}

// ---- recording

static void note_lag(int64_t now_ns, int64_t gpu_ns)
{
    int64_t lag = now_ns - gpu_ns, least = atomic_load(&events.lag_ns);
    while (lag < least && !atomic_compare_exchange_weak(&events.lag_ns, &least, lag))
        ;
}

// Operations may be told of at any time; their inside only where it was asked for when they were enqueued.
static bool is_inside(const ptb_nccl_event *event)
{
    return event->type & (PTB_NCCL_PROXY_OP | PTB_NCCL_PROXY_STEP | PTB_NCCL_KERNEL_CH | PTB_NCCL_NET_PLUGIN);
}

void *ptb_nccl_events_open(const ptb_nccl_event *event)
{
    if (!atomic_load(&events.open)) {
        atomic_fetch_add(&events.missed, is_inside(event));
        return NULL;
    }
    event_record r = {.begin_ns = ptb_clock_ns()};
    if (!describe(event, &r))
        return NULL;
    if (r.on_gpu)
        note_lag(r.begin_ns, r.gpu_begin_ns);
    event_buffer *buffer = atomic_load(&events.buffer);
    size_t index = atomic_fetch_add(&events.taken, 1);
    if (index >= buffer->capacity)
        return NULL;
    event_record *at = &buffer->records[index];
    at->on_gpu = r.on_gpu;
    at->lane = r.lane;
    at->begin_ns = at->end_ns = r.begin_ns;
    at->gpu_begin_ns = at->gpu_end_ns = r.gpu_begin_ns;
    at->bytes = 0;
    at->work = r.work;
    memcpy(at->name, r.name, sizeof at->name);
    return handle_of(atomic_load(&events.generation), index);
}

void ptb_nccl_events_bytes(void *handle, uint64_t bytes)
{
    event_record *r = record_of(handle);
    if (r)
        r->bytes = bytes;
}

void ptb_nccl_events_gpu_end(void *handle, uint64_t gpu_ns)
{
    event_record *r = record_of(handle);
    if (!r)
        return;
    r->gpu_end_ns = (int64_t)gpu_ns;
    note_lag(ptb_clock_ns(), r->gpu_end_ns);
}

// The network may end a request again by the handle that it still has.
void ptb_nccl_events_close(void *handle)
{
    event_record *r = record_of(handle);
    if (!r || atomic_load_explicit(&r->ended, memory_order_relaxed))
        return;
    r->end_ns = ptb_clock_ns();
    atomic_store_explicit(&r->ended, true, memory_order_release);
}

ptb_status ptb_nccl_events_start(size_t capacity, ptb_open_work_fn *whose, void *context)
{
    event_buffer *buffer = atomic_load(&events.buffer);
    if (capacity > UINT32_MAX - 1)
        capacity = UINT32_MAX - 1;
    if (!buffer || buffer->room < capacity) {
        event_buffer *larger = malloc(sizeof *larger + capacity * sizeof(event_record));
        if (!larger) {
            ptb_error("no memory for %zu events of NCCL (%zu bytes); record fewer steps", capacity,
                      capacity * sizeof(event_record));
            return PTB_NO_MEMORY;
        }
        larger->room = capacity;
        larger->older = buffer;
        buffer = larger;
    }
    atomic_store(&events.open, false);
    atomic_fetch_add(&events.generation, 1);
    atomic_store(&events.taken, 0);
    buffer->capacity = capacity;
    memset(buffer->records, 0, capacity * sizeof(event_record)); // touched before the run
    atomic_store(&events.buffer, buffer);
    atomic_store(&events.lag_ns, INT64_MAX);
    events.whose = whose;
    events.context = context;
    atomic_store(&events.open, true);
    return PTB_OK;
}

// ---- reading

static size_t recorded(const event_buffer *buffer)
{
    size_t taken = atomic_load(&events.taken), capacity = buffer ? buffer->capacity : 0;
    return taken < capacity ? taken : capacity;
}

void ptb_nccl_profiler_settle(int64_t patience_ns)
{
    const event_buffer *buffer = atomic_load(&events.buffer);
    const struct timespec pause = {.tv_nsec = SETTLE_NS};
    int64_t end_ns = ptb_clock_ns() + patience_ns;
    size_t ended = 0, before;
    do { // until a while has brought nothing new
        before = recorded(buffer);
        while (ended < before && atomic_load_explicit(&buffer->records[ended].ended, memory_order_acquire))
            ended++;
        if (before > 0)
            nanosleep(&pause, NULL);
    } while ((ended < before || recorded(buffer) > before) && ptb_clock_ns() < end_ns);
}

void ptb_nccl_profiler_spans(ptb_trace *trace, uint64_t step, size_t *dropped, size_t *late)
{
    atomic_store(&events.open, false);
    event_buffer *buffer = atomic_load(&events.buffer);
    size_t count = recorded(buffer), taken = atomic_load(&events.taken), unended = 0;
    int64_t lag = atomic_load(&events.lag_ns);
    for (size_t i = 0; i < count; i++) {
        const event_record *r = &buffer->records[i];
        const event_work *w = &r->work;
        if (!atomic_load_explicit(&r->ended, memory_order_acquire)) {
            unended++;
            continue;
        }
        ptb_span span = {.begin_ns = r->on_gpu ? r->gpu_begin_ns + lag : r->begin_ns,
                         .end_ns = r->on_gpu ? r->gpu_end_ns + lag : r->end_ns,
                         .rank = ptb_trace_rank(trace),
                         .stream = r->lane,
                         .kind = PTB_SPAN_INSIDE,
                         .phase = w->phase,
                         .unit = w->is_known ? w->unit : -1,
                         .microbatch = w->is_known ? w->microbatch : -1,
                         .axis = w->axis,
                         .bytes = r->bytes,
                         .correlation = w->is_known ? w->step : step};
        memcpy(span.name, r->name, sizeof span.name);
        ptb_trace_record(trace, &span);
    }
    if (dropped)
        *dropped = taken - count;
    if (late)
        *late = unended + atomic_exchange(&events.missed, 0);
}

void ptb_nccl_profiler_release(void)
{
    atomic_store(&events.open, false);
    atomic_fetch_add(&events.generation, 1); // handles of what is freed are none any more
    event_buffer *buffer = atomic_exchange(&events.buffer, NULL);
    atomic_store(&events.taken, 0);
    while (buffer) {
        event_buffer *older = buffer->older;
        free(buffer);
        buffer = older;
    }
}
