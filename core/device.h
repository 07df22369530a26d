// A device: memory by category, streams, events, and the few operations on buffers that benchmarks need.
// Strategies and communicators are written against this; host (core/device_host.c) and CUDA are its two
// implementations.
//
// A stream keeps order; events tie streams together; enqueuing does not wait for the work. On the host a
// stream is a queue with a worker thread, so that a program has the same races and deadlocks as on CUDA. The
// one exception is PTB_STREAM_CALLER: there the calling thread itself is the stream and work is done before
// enqueue returns. It exists for micro-benchmarks of operations that are shorter than a hand-over between
// threads (blocking MPI calls are of this kind). On CUDA, where enqueuing is all that the caller ever does,
// it is a stream as any other.
#ifndef PTB_CORE_DEVICE_H
#define PTB_CORE_DEVICE_H

#include "core/dtype.h"
#include "core/pattern.h"
#include "core/registry.h"
#include "core/status.h"
#include "core/world.h"

#include <stddef.h>
#include <stdint.h>

// category, its name in reports
#define PTB_MEMORY_LIST(X)                                                                                   \
    X(PARAMETERS, "parameters")                                                                              \
    X(GRADIENTS, "gradients")                                                                                \
    X(OPTIMIZER, "optimizer")                                                                                \
    X(ACTIVATIONS, "activations")                                                                            \
    X(COMMUNICATION, "communication")                                                                        \
    X(WORKSPACE, "workspace")

typedef enum {
#define X(name, word) PTB_MEMORY_##name,
    PTB_MEMORY_LIST(X)
#undef X
        PTB_MEMORY_COUNT
} ptb_memory;
const char *ptb_memory_name(ptb_memory category);

// URGENT: a worker whose work goes first where the device has priorities (communication beside compute).
typedef enum { PTB_STREAM_WORKER, PTB_STREAM_CALLER, PTB_STREAM_URGENT } ptb_stream_kind;

typedef struct ptb_device ptb_device;
typedef struct ptb_stream ptb_stream;
typedef struct ptb_event ptb_event;
// Asked while the host waits for a stream and once after: whoever enqueues work that can fail or hang without
// the device knowing of it (a communicator of GPUs) links one to the stream.
typedef struct ptb_stream_watch ptb_stream_watch;
struct ptb_stream_watch {
    // waited_ns: since the wait began. Not OK: the work has failed or was ended by this call; the wait ends
    // with that status when the stream is idle.
    ptb_status (*look)(ptb_stream_watch *watch, int64_t waited_ns);
    ptb_stream *stream; // NULL: not linked, or the stream is gone
    ptb_stream_watch *next;
};
typedef struct ptb_graph ptb_graph; // work of a stream, recorded to be enqueued again as one

enum { PTB_CALL_BYTES = 256 }; // most argument bytes of one enqueued call
// Work enqueued on a host stream. `arg` points at the stream's copy of the argument bytes (16-byte aligned).
// The first status that is not OK sticks to the stream, later work is dropped, and ptb_stream_sync returns
// it, as every later call that enqueues on the stream may. One thread at a time enqueues on a stream.
typedef ptb_status ptb_call_fn(void *arg);

typedef struct {
    ptb_plugin plugin;
    // In a process that is a rank, before anything else is done with the device: takes what is this rank's of
    // what the environment names for all ranks of the host. Once taken it stays. NULL: nothing is to be
    // chosen.
    void (*choose)(int local_rank);
    // Those that the ranks of this host can open, 0 where none can be used; nothing is logged. NULL: as many
    // as are asked for (the host).
    int (*count)(void);
    // index: which of this host's devices, normally the local rank. Where a launcher shows each process only
    // its own, the index is taken modulo their number.
    ptb_status (*open)(int index, ptb_device **device);
    void (*close)(ptb_device *device);
    // Describes, as ptb_device.description, what open() of that index would open, without opening or logging
    // anything. False: nothing can be opened. NULL: it cannot be told.
    bool (*describe)(int index, char description[128]);
    // Host: huge-page advised, touched before return and zeroed; elsewhere of undefined contents. 64-byte
    // aligned at least. NO_MEMORY logs the figure needed.
    ptb_status (*alloc)(ptb_device *device, ptb_memory category, size_t bytes, void **memory);
    void (*free)(ptb_device *device, void *memory); // no work that touches it may be in flight
    // Bytes that could still be allocated by all who share the device's memory, together; UINT64_MAX when
    // unknown.
    uint64_t (*available)(ptb_device *device);
    // Without opening the device: its identity (ptb_device.identity) and what `available` would say. False,
    // nothing logged, where that cannot be found out. NULL: it is the host's memory.
    bool (*foresee)(int index, char identity[64], uint64_t *bytes);
    // Host memory, zeroed, 64-byte aligned, that copies pass without staging and that kernels of the device
    // may read and write too (pinned; plain memory on the host). In no category of the ledger.
    ptb_status (*alloc_host)(ptb_device *device, size_t bytes, void **memory);
    void (*free_host)(ptb_device *device, void *memory);
    // `lane` names the stream in traces (ptb_span.stream).
    ptb_status (*stream_new)(ptb_device *device, ptb_stream_kind kind, int lane, ptb_stream **stream);
    void (*stream_free)(ptb_stream *stream);
    ptb_status (*stream_sync)(ptb_stream *stream);
    // Enqueue fn(arg) with a copy of the bytes (at most PTB_CALL_BYTES). NULL: streams take no calls (all but
    // the host's), and ptb_stream_call is UNSUPPORTED, logged.
    ptb_status (*stream_call)(ptb_stream *stream, ptb_call_fn *fn, const void *arg, size_t bytes);
    ptb_status (*event_new)(ptb_device *device, ptb_event **event);
    void (*event_free)(ptb_event *event);
    // Marks everything enqueued on the stream so far. Waits refer to the latest record at the time of the
    // call; an event that was never recorded holds nobody up.
    ptb_status (*event_record)(ptb_event *event, ptb_stream *stream);
    ptb_status (*event_wait)(ptb_stream *stream, ptb_event *event); // the stream waits, not the caller
    ptb_status (*event_sync)(ptb_event *event);                     // the caller waits
    ptb_status (*event_query)(ptb_event *event, bool *reached);     // nobody waits
    // Between any two of this device's memory and host memory. Host memory that is not from alloc_host may
    // make the caller wait until it has been read or written.
    ptb_status (*copy)(ptb_stream *stream, void *to, const void *from, size_t bytes);
    ptb_status (*set)(ptb_stream *stream, void *memory, int byte, size_t bytes);
    ptb_status (*fill)(ptb_stream *stream, const ptb_pattern *pattern, bool reduced, int rank, size_t first,
                       void *buffer, size_t count);
    // Adds to *check (host memory), complete after stream_sync.
    ptb_status (*check)(ptb_stream *stream, const ptb_pattern *pattern, const ptb_expect *expect,
                        const void *buffer, ptb_check *check);
    ptb_status (*reduce)(ptb_stream *stream, ptb_dtype type, ptb_redop op, void *out, const void *a,
                         const void *b, size_t count);
    // Between begin and end the stream's work, and that of streams that wait for its events, is recorded and
    // not run; nothing is allocated or synchronised meanwhile. Each launch waits for the latest record of an
    // event that was recorded outside, and records those that were recorded inside anew. A check cannot be
    // recorded. NULL: the device has no graphs.
    ptb_status (*graph_begin)(ptb_stream *stream);
    ptb_status (*graph_end)(ptb_stream *stream, ptb_graph **graph);
    ptb_status (*graph_launch)(ptb_graph *graph, ptb_stream *stream);
    void (*graph_free)(ptb_graph *graph);
    size_t (*graph_kernels)(const ptb_graph *graph, const char **names, size_t most); // NULL: never known
    // As copy, but by loads and stores of a kernel instead of the device's copy engine. NULL: there is no
    // such thing.
    ptb_status (*copy_by_kernel)(ptb_stream *stream, void *to, const void *from, size_t bytes);
    // Memory of device `index` of this host that copies and kernels of this device reach directly.
    // UNSUPPORTED, with why in `reason` (PTB_PEER_REASON bytes), when there is no such path. NULL: there
    // never is.
    ptb_status (*alloc_peer)(ptb_device *device, int index, size_t bytes, char *reason, void **memory);
    void (*free_peer)(ptb_device *device, int index, void *memory);
} ptb_device_ops;
enum { PTB_PEER_REASON = 256 };

// First members of each implementation's structs.
struct ptb_device {
    const ptb_device_ops *ops;
    char description[128]; // "AMD EPYC, 1 core"; a simulated device says so here
    char identity[64];     // what two ranks must not share unless told so: the UUID of a GPU; "" for the host
    bool simulated;
    int sharers; // ranks that draw from its memory (ptb_device_open_local), 1 at least
    uint64_t used_bytes[PTB_MEMORY_COUNT]; // now
    uint64_t peak_bytes[PTB_MEMORY_COUNT]; // since open or ptb_device_reset_peak
};
struct ptb_stream {
    const ptb_device_ops *ops;
    ptb_device *device;
    ptb_stream_kind kind;
    int lane;
    // What the work of a stream keeps from call to call (scratch of kernels). Only that work touches it;
    // attached_free is called when the stream has finished and is freed. NULL: nothing.
    void *attached;
    void (*attached_free)(ptb_stream *stream);
    ptb_stream_watch *watches; // only the thread that enqueues changes them
};
struct ptb_event {
    const ptb_device_ops *ops;
};
struct ptb_graph {
    const ptb_device_ops *ops;
};

// Calls `choose` of every device. local_rank: -1 where the launcher does not tell it before MPI has started.
void ptb_devices_choose(int local_rank);
// Devices of a registered name that the ranks of this host can open, without opening one: 0 where there are
// none (or there is no such name), -1 where there are as many as are asked for. The driver of GPUs is
// started.
int ptb_device_count(const char *name);
ptb_status ptb_device_open(const char *name, int index,
                           ptb_device **device); // by registered name; logs what is wrong
void ptb_device_close(ptb_device *device);       // NULL is allowed, as in all frees below
// Collective over the world: opens the device of this rank, by its local rank, and sees to it that no two
// ranks have the same GPU, which rank 0 refuses by name (UNSUPPORTED) unless `share` allows it. All ranks
// return the same status. core/device_local.c.
ptb_status ptb_device_open_local(const char *name, ptb_world *world, bool share, ptb_device **device);
// For plans: into *bytes what each rank that shares the device could count on if it were opened now, the
// least of all ranks; UINT64_MAX where that is unknown, which says nothing about whether it can be opened.
// *sharers: ranks that would share this rank's. Collective over the world but for the host. Nothing is
// logged. core/device_local.c.
ptb_status ptb_device_foresee(const char *name, ptb_world *world, uint64_t *bytes, int *sharers);
// Bytes that each of the ranks that share the device can count on when all take as much; UINT64_MAX when
// unknown.
uint64_t ptb_device_available(ptb_device *device);
ptb_status ptb_device_alloc(ptb_device *device, ptb_memory category, size_t bytes, void **memory);
void ptb_device_free(ptb_device *device, void *memory);
ptb_status ptb_device_alloc_host(ptb_device *device, size_t bytes, void **memory);
void ptb_device_free_host(ptb_device *device, void *memory);
void ptb_device_reset_peak(ptb_device *device); // while no other thread allocates
ptb_status ptb_stream_new(ptb_device *device, ptb_stream_kind kind, int lane, ptb_stream **stream);
void ptb_stream_free(ptb_stream *stream);
ptb_status ptb_stream_sync(ptb_stream *stream);
// Links a watch whose stream is NULL; unlinking is allowed when it is not linked.
void ptb_stream_watch_link(ptb_stream *stream, ptb_stream_watch *watch);
void ptb_stream_watch_unlink(ptb_stream_watch *watch);
// Asks all watches of the stream: the first status that is not OK.
ptb_status ptb_stream_look(ptb_stream *stream, int64_t waited_ns);
ptb_status ptb_stream_call(ptb_stream *stream, ptb_call_fn *fn, const void *arg, size_t bytes);
ptb_status ptb_stream_copy(ptb_stream *stream, void *to, const void *from, size_t bytes);
ptb_status ptb_stream_set(ptb_stream *stream, void *memory, int byte, size_t bytes);
ptb_status ptb_event_new(ptb_device *device, ptb_event **event);
void ptb_event_free(ptb_event *event);
ptb_status ptb_event_record(ptb_event *event, ptb_stream *stream);
ptb_status ptb_event_wait(ptb_stream *stream, ptb_event *event);
ptb_status ptb_event_sync(ptb_event *event);
// Whether a wait would return at once. What was done before the latest record is then seen by the caller and
// by what it enqueues.
ptb_status ptb_event_query(ptb_event *event, bool *reached);
// UNSUPPORTED, logged, where the device has no graphs.
ptb_status ptb_graph_begin(ptb_stream *stream);
ptb_status ptb_graph_end(ptb_stream *stream, ptb_graph **graph);
ptb_status ptb_graph_launch(ptb_graph *graph, ptb_stream *stream);
void ptb_graph_free(ptb_graph *graph);
// Names of all kernels that the graph launches, as the compiler has them (mangled), each once; how many there
// are, more than `most` where they did not all find a place. 0: none, or not all are known. They live as long
// as the graph.
size_t ptb_graph_kernels(const ptb_graph *graph, const char **names, size_t most);

// Host memory as every large host buffer must be: anonymous mapping, zeroed, advised to huge pages, touched;
// unmap takes the same number of bytes. NO_MEMORY, logged, with what is available. core/memory.c.
ptb_status ptb_memory_map(size_t bytes, void **memory);
void ptb_memory_unmap(void *memory, size_t bytes);
// Bytes that the system and the control group of this process could still give, to all processes together;
// UINT64_MAX when unknown.
uint64_t ptb_memory_available(void);
// Bytes of this process that are in memory (resident set), of all kinds: now, and at most since the start or
// the last ptb_memory_reset_resident_peak. UINT64_MAX when unknown.
uint64_t ptb_memory_resident(void);
uint64_t ptb_memory_resident_peak(void);
bool ptb_memory_reset_resident_peak(void); // false: the system does not let it be reset

#endif
