// The host as a device. A worker stream is a ring of calls between one producer and a worker thread. How far
// a stream has come is a 64-bit count of finished calls (`progress`); an event is a stream's progress and the
// count to reach, taken when the event is recorded. So recording costs nothing, recording again cannot
// disturb a wait that was enqueued before, and an event on a caller stream is always reached.
#include "core/device.h"

#include "core/ledger.h"
#include "core/log.h"
#include "core/pause.h"
#include "core/topology.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    RING = 1024, // calls in flight on a stream
    SPIN = 100,  // pauses before sleeping: a few microseconds
    CACHE_LINE = 64,
};

// A count that only grows, and the threads that sleep until it has grown enough. A waiter announces itself
// before it looks at the count for the last time; whoever raises the count looks for waiters afterwards (both
// in the single order of sequentially consistent operations), so no wake-up is lost.
typedef struct {
    _Atomic uint64_t count;
    _Atomic uint32_t sleepers;
    _Atomic uint32_t ticket; // what sleepers sleep on; changes with every wake-up
} gate;

static void gate_raise(gate *g, uint64_t count)
{
    atomic_store(&g->count, count);
    if (atomic_load(&g->sleepers) == 0)
        return;
    atomic_fetch_add(&g->ticket, 1);
    syscall(SYS_futex, &g->ticket, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static bool gate_reached(gate *g, uint64_t count)
{
    return atomic_load_explicit(&g->count, memory_order_acquire) >= count;
}

static void gate_wait(gate *g, uint64_t count, int spin)
{
    for (int i = 0; i < spin; i++) {
        if (gate_reached(g, count))
            return;
        ptb_pause();
    }
    atomic_fetch_add(&g->sleepers, 1);
    for (;;) {
        uint32_t ticket = atomic_load(&g->ticket);
        if (atomic_load(&g->count) >= count)
            break;
        syscall(SYS_futex, &g->ticket, FUTEX_WAIT_PRIVATE, ticket, NULL, NULL, 0);
    }
    atomic_fetch_sub(&g->sleepers, 1);
}

// Calls that a stream has finished. Events and waits in other streams' rings hold references, so it may
// outlive its stream.
typedef struct {
    gate finished;
    _Atomic uint32_t references;
} progress;

static progress *progress_share(progress *p)
{
    atomic_fetch_add_explicit(&p->references, 1, memory_order_relaxed);
    return p;
}

static void progress_release(progress *p)
{
    if (p && atomic_fetch_sub_explicit(&p->references, 1, memory_order_acq_rel) == 1)
        free(p);
}

typedef struct {
    ptb_call_fn *fn; // NULL: the worker ends
    _Alignas(16) unsigned char arg[PTB_CALL_BYTES];
} ring_entry;

typedef struct {
    ptb_stream base;
    _Atomic int status; // the first one that is not OK
    // The rest is of worker streams.
    int spin;
    pthread_t worker;
    ring_entry *ring;                 // [RING]
    progress *progress;               // shared with events
    _Alignas(CACHE_LINE) gate issued; // calls enqueued; written by the producer only
} host_stream;

typedef struct {
    ptb_event base;
    progress *progress; // NULL: nothing to wait for
    uint64_t count;
    int spin;
} host_event;

typedef struct {
    ptb_device base;
    int spin; // 0 where there is no second processor to wait for
    ptb_ledger ledger;
} host_device;

static ptb_status stream_status(host_stream *s)
{
    return (ptb_status)atomic_load_explicit(&s->status, memory_order_acquire);
}

// Only the thread that does the stream's work calls this.
static void stream_fail(host_stream *s, ptb_status status)
{
    if (stream_status(s) == PTB_OK)
        atomic_store_explicit(&s->status, (int)status, memory_order_release);
}

typedef struct {
    progress *progress;
    uint64_t count;
    host_stream *stream;
} wait_arg;

// Runs on failed streams too, to give its reference back.
static ptb_status call_wait(void *arg)
{
    wait_arg *a = arg;
    if (stream_status(a->stream) == PTB_OK)
        gate_wait(&a->progress->finished, a->count, a->stream->spin);
    progress_release(a->progress);
    return PTB_OK;
}

static void *worker_main(void *arg)
{
    host_stream *s = arg;
    for (uint64_t done = 0;; done++) {
        gate_wait(&s->issued, done + 1, s->spin);
        ring_entry *entry = &s->ring[done % RING];
        if (!entry->fn)
            return NULL;
        if (stream_status(s) == PTB_OK || entry->fn == call_wait) {
            ptb_status status = entry->fn(entry->arg);
            if (status != PTB_OK)
                stream_fail(s, status);
        }
        gate_raise(&s->progress->finished, done + 1);
    }
}

static void enqueue(host_stream *s, ptb_call_fn *fn, const void *arg, size_t bytes)
{
    uint64_t at = atomic_load_explicit(&s->issued.count, memory_order_relaxed);
    if (at >= RING)
        gate_wait(&s->progress->finished, at - RING + 1, s->spin);
    ring_entry *entry = &s->ring[at % RING];
    entry->fn = fn;
    if (bytes)
        memcpy(entry->arg, arg, bytes);
    gate_raise(&s->issued, at + 1);
}

static ptb_status host_stream_call(ptb_stream *stream, ptb_call_fn *fn, const void *arg, size_t bytes)
{
    host_stream *s = (host_stream *)stream;
    if (bytes > PTB_CALL_BYTES) {
        ptb_error("a call with %zu argument bytes does not fit a stream entry of %d", bytes, PTB_CALL_BYTES);
        return PTB_INTERNAL;
    }
    ptb_status status = stream_status(s);
    if (status != PTB_OK)
        return status;
    if (stream->kind != PTB_STREAM_CALLER) {
        enqueue(s, fn, arg, bytes);
        return PTB_OK;
    }
    _Alignas(16) unsigned char copy[PTB_CALL_BYTES];
    if (bytes)
        memcpy(copy, arg, bytes);
    status = fn(copy);
    if (status != PTB_OK)
        stream_fail(s, status);
    return status;
}

static ptb_status host_stream_sync(ptb_stream *stream)
{
    host_stream *s = (host_stream *)stream;
    if (stream->kind != PTB_STREAM_CALLER)
        gate_wait(&s->progress->finished, atomic_load_explicit(&s->issued.count, memory_order_relaxed),
                  s->spin);
    return stream_status(s);
}

// Signals are for the main thread; a name helps whoever looks at the process with top -H or a debugger.
static int start_worker(host_stream *s)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&s->worker, NULL, worker_main, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!failed) {
        char name[16];
        snprintf(name, sizeof name, "ptb-lane%d", s->base.lane % 10000);
        pthread_setname_np(s->worker, name);
    }
    return failed;
}

static void stream_release(host_stream *s)
{
    progress_release(s->progress);
    free(s->ring);
    free(s);
}

static ptb_status host_stream_new(ptb_device *device, ptb_stream_kind kind, int lane, ptb_stream **stream)
{
    host_stream *s = aligned_alloc(CACHE_LINE, sizeof *s);
    if (!s)
        goto no_memory;
    memset(s, 0, sizeof *s);
    s->base = (ptb_stream){.ops = device->ops, .device = device, .kind = kind, .lane = lane};
    s->spin = ((host_device *)device)->spin;
    if (kind != PTB_STREAM_CALLER) {
        s->ring = calloc(RING, sizeof *s->ring);
        s->progress = calloc(1, sizeof *s->progress);
        if (!s->ring || !s->progress)
            goto no_memory;
        progress_share(s->progress);
        int failed = start_worker(s);
        if (failed) {
            ptb_error("cannot start the thread of a stream: %s; check `ulimit -u` and the memory limit",
                      strerror(failed));
            stream_release(s);
            return PTB_SYSTEM;
        }
    }
    *stream = &s->base;
    return PTB_OK;
no_memory:
    ptb_error("cannot allocate a stream (%zu bytes)", sizeof *s + RING * sizeof(ring_entry));
    if (s)
        stream_release(s);
    return PTB_NO_MEMORY;
}

// Finishes what is enqueued.
static void host_stream_free(ptb_stream *stream)
{
    host_stream *s = (host_stream *)stream;
    if (stream->kind != PTB_STREAM_CALLER) {
        enqueue(s, NULL, NULL, 0);
        pthread_join(s->worker, NULL);
    }
    if (stream->attached_free)
        stream->attached_free(stream);
    stream_release(s);
}

static ptb_status host_event_new(ptb_device *device, ptb_event **event)
{
    host_event *e = calloc(1, sizeof *e);
    if (!e) {
        ptb_error("cannot allocate an event (%zu bytes)", sizeof *e);
        return PTB_NO_MEMORY;
    }
    e->base.ops = device->ops;
    e->spin = ((host_device *)device)->spin;
    *event = &e->base;
    return PTB_OK;
}

static void host_event_free(ptb_event *event)
{
    host_event *e = (host_event *)event;
    progress_release(e->progress);
    free(e);
}

static ptb_status host_event_record(ptb_event *event, ptb_stream *stream)
{
    host_event *e = (host_event *)event;
    host_stream *s = (host_stream *)stream;
    if (e->progress != s->progress) {
        progress_release(e->progress);
        e->progress = s->progress ? progress_share(s->progress) : NULL;
    }
    e->count = atomic_load_explicit(&s->issued.count, memory_order_relaxed);
    return stream_status(s);
}

static ptb_status host_event_wait(ptb_stream *stream, ptb_event *event)
{
    host_stream *s = (host_stream *)stream;
    host_event *e = (host_event *)event;
    ptb_status status = stream_status(s);
    if (status != PTB_OK || !e->progress || e->progress == s->progress ||
        gate_reached(&e->progress->finished, e->count))
        return status;
    if (stream->kind == PTB_STREAM_CALLER) {
        gate_wait(&e->progress->finished, e->count, s->spin);
        return PTB_OK;
    }
    wait_arg arg = {progress_share(e->progress), e->count, s};
    enqueue(s, call_wait, &arg, sizeof arg);
    return PTB_OK;
}

static ptb_status host_event_sync(ptb_event *event)
{
    host_event *e = (host_event *)event;
    if (e->progress)
        gate_wait(&e->progress->finished, e->count, e->spin);
    return PTB_OK;
}

static ptb_status host_event_query(ptb_event *event, bool *reached)
{
    host_event *e = (host_event *)event;
    *reached = !e->progress || gate_reached(&e->progress->finished, e->count);
    return PTB_OK;
}

typedef struct {
    void *to;
    const void *from;
    size_t bytes;
} copy_arg;

static ptb_status call_copy(void *arg)
{
    copy_arg *a = arg;
    if (a->bytes && a->to != a->from)
        memcpy(a->to, a->from, a->bytes);
    return PTB_OK;
}

static ptb_status host_copy(ptb_stream *stream, void *to, const void *from, size_t bytes)
{
    copy_arg arg = {to, from, bytes};
    return host_stream_call(stream, call_copy, &arg, sizeof arg);
}

typedef struct {
    void *memory;
    size_t bytes;
    int byte;
} set_arg;

static ptb_status call_set(void *arg)
{
    set_arg *a = arg;
    if (a->bytes)
        memset(a->memory, a->byte, a->bytes);
    return PTB_OK;
}

static ptb_status host_set(ptb_stream *stream, void *memory, int byte, size_t bytes)
{
    set_arg arg = {memory, bytes, byte};
    return host_stream_call(stream, call_set, &arg, sizeof arg);
}

typedef struct {
    ptb_pattern pattern;
    void *buffer;
    size_t first, count;
    int rank;
    bool reduced;
} fill_arg;

static ptb_status call_fill(void *arg)
{
    fill_arg *a = arg;
    ptb_pattern_fill(&a->pattern, a->reduced, a->rank, a->first, a->buffer, a->count);
    return PTB_OK;
}

static ptb_status host_fill(ptb_stream *stream, const ptb_pattern *pattern, bool reduced, int rank,
                            size_t first, void *buffer, size_t count)
{
    fill_arg arg = {*pattern, buffer, first, count, rank, reduced};
    _Static_assert(sizeof arg <= PTB_CALL_BYTES, "fits an entry");
    return host_stream_call(stream, call_fill, &arg, sizeof arg);
}

typedef struct {
    ptb_pattern pattern;
    ptb_expect expect;
    const void *buffer;
    ptb_check *check;
} check_arg;

static ptb_status call_check(void *arg)
{
    check_arg *a = arg;
    ptb_pattern_check(&a->pattern, &a->expect, a->buffer, a->check);
    return PTB_OK;
}

static ptb_status host_check(ptb_stream *stream, const ptb_pattern *pattern, const ptb_expect *expect,
                             const void *buffer, ptb_check *check)
{
    check_arg arg = {*pattern, *expect, buffer, check};
    _Static_assert(sizeof arg <= PTB_CALL_BYTES, "fits an entry");
    return host_stream_call(stream, call_check, &arg, sizeof arg);
}

typedef struct {
    ptb_reduce_fn *kernel;
    void *out;
    const void *a, *b;
    size_t count;
} reduce_arg;

static ptb_status call_reduce(void *arg)
{
    reduce_arg *r = arg;
    r->kernel(r->out, r->a, r->b, r->count);
    return PTB_OK;
}

static ptb_status host_reduce(ptb_stream *stream, ptb_dtype type, ptb_redop op, void *out, const void *a,
                              const void *b, size_t count)
{
    reduce_arg arg = {ptb_reduce_function(type, op), out, a, b, count};
    return host_stream_call(stream, call_reduce, &arg, sizeof arg);
}

static ptb_status host_alloc(ptb_device *device, ptb_memory category, size_t bytes, void **memory)
{
    host_device *d = (host_device *)device;
    void *mapped;
    PTB_TRY(ptb_memory_map(bytes, &mapped));
    ptb_status status = ptb_ledger_add(&d->ledger, &(ptb_allocation){mapped, bytes, category});
    if (status != PTB_OK) {
        ptb_memory_unmap(mapped, bytes);
        return status;
    }
    *memory = mapped;
    return PTB_OK;
}

static ptb_status host_alloc_host(ptb_device *device, size_t bytes, void **memory)
{
    (void)device;
    size_t rounded = bytes <= SIZE_MAX - CACHE_LINE ? (bytes + CACHE_LINE) / CACHE_LINE * CACHE_LINE : 0;
    void *made = rounded ? aligned_alloc(CACHE_LINE, rounded) : NULL;
    if (!made) {
        ptb_error("cannot allocate %zu bytes of host memory", bytes);
        return PTB_NO_MEMORY;
    }
    memset(made, 0, rounded);
    *memory = made;
    return PTB_OK;
}

static void host_free_host(ptb_device *device, void *memory)
{
    (void)device;
    free(memory);
}

static void host_free(ptb_device *device, void *memory)
{
    ptb_allocation found = ptb_ledger_take(&((host_device *)device)->ledger, memory);
    ptb_memory_unmap(found.memory, found.bytes);
}

static uint64_t host_available(ptb_device *device)
{
    (void)device;
    return ptb_memory_available();
}

static void host_close(ptb_device *device)
{
    host_device *d = (host_device *)device;
    if (d->ledger.count)
        ptb_debug("%zu allocations were left when the host device was closed", d->ledger.count);
    for (size_t i = 0; i < d->ledger.count; i++)
        ptb_memory_unmap(d->ledger.list[i].memory, d->ledger.list[i].bytes);
    ptb_ledger_release(&d->ledger);
    free(d);
}

static const ptb_device_ops host_ops;

// Any index is the same device: the processors that this process may use.
static ptb_status host_open(int index, ptb_device **device)
{
    if (index < 0) {
        ptb_error("host device %d does not exist; devices count from 0", index);
        return PTB_USAGE;
    }
    host_device *d = calloc(1, sizeof *d);
    if (!d) {
        ptb_error("cannot allocate the host device (%zu bytes)", sizeof *d);
        return PTB_NO_MEMORY;
    }
    char model[100];
    ptb_topology_cpu_model(model, sizeof model);
    int cpus = ptb_topology_allowed_cpus();
    d->base.ops = &host_ops;
    d->spin = cpus > 1 ? SPIN : 0;
    snprintf(d->base.description, sizeof d->base.description, "%s, %d core%s", model, cpus,
             cpus == 1 ? "" : "s");
    d->base.sharers = 1;
    ptb_ledger_init(&d->ledger, &d->base);
    *device = &d->base;
    return PTB_OK;
}

static const ptb_device_ops host_ops = {
    .plugin = {"host", "this process's processors and memory; streams are threads"},
    .open = host_open,
    .close = host_close,
    .alloc = host_alloc,
    .free = host_free,
    .available = host_available,
    .alloc_host = host_alloc_host,
    .free_host = host_free_host,
    .stream_new = host_stream_new,
    .stream_free = host_stream_free,
    .stream_sync = host_stream_sync,
    .stream_call = host_stream_call,
    .event_new = host_event_new,
    .event_free = host_event_free,
    .event_record = host_event_record,
    .event_wait = host_event_wait,
    .event_sync = host_event_sync,
    .event_query = host_event_query,
    .copy = host_copy,
    .set = host_set,
    .fill = host_fill,
    .check = host_check,
    .reduce = host_reduce,
};
PTB_REGISTER(PTB_KIND_DEVICE, host_ops);
