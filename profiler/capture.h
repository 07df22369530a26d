// Capture: a device's own record of what ran when, turned into spans of a trace. Devices whose streams take
// calls (the host) need none: their spans come from strategies/mark.h. Add one by adding a file that
// registers a ptb_capture_ops under the name of its device (PTB_KIND_CAPTURE).
//
// Work is told apart by who enqueued it: whatever a thread enqueues between open_work and close_work gets the
// attributes of that work's span. Recording costs time, so it is off while steps are timed, and on for the
// steps whose spans are wanted.
//
// Work of a graph (ptb_graph_begin) belongs to what was open when it was captured, where that was recorded;
// open a work around the launch, too: it tells the step.
#ifndef PTB_PROFILER_CAPTURE_H
#define PTB_PROFILER_CAPTURE_H

#include "core/registry.h"
#include "core/status.h"
#include "core/trace.h"

#include <stdbool.h>
#include <stdint.h>

// The span of the work that is open on the calling thread, NULL where none is; *number: not 0, tells works of
// one recording apart. For parts of a capture that are called on any thread.
typedef const ptb_span *ptb_open_work_fn(void *context, uint64_t *number);

// Sums since open.
typedef struct {
    uint64_t kernels, copies, sets, syncs; // records of each kind
    uint64_t graph_nodes;                  // of all but syncs, those that a graph launched
    uint64_t unattributed;                 // of all but syncs, those of no work
    uint64_t unattributed_nodes;           // of them, a graph's kernels and sets, which may be any phase's
    uint64_t dropped;                      // records or works that could not be kept
    uint64_t inside_dropped;               // events of a library's inside (PTB_SPAN_INSIDE) that did not fit
    uint64_t inside_late;                  // and those that had not ended when recording did: no spans
    uint64_t overhead_ns;                  // that the profiler says it cost
} ptb_capture_stats;

typedef struct {
    ptb_plugin plugin; // name: of the device
    // One capture a process is open at a time. Where the profiler cannot be had, capture->cannot says why,
    // and start fails; as it does, UNSUPPORTED and with the reason there, where it can only be found out
    // then.
    ptb_status (*open)(ptb_capture **capture);
    void (*close)(ptb_capture *capture);
    ptb_status (*start)(ptb_capture *capture);
    ptb_status (*stop)(ptb_capture *capture);
    uint64_t (*open_work)(ptb_capture *capture, const ptb_span *span);
    void (*close_work)(ptb_capture *capture, uint64_t work);
} ptb_capture_ops;

enum { PTB_CAPTURE_KERNELS = 256, PTB_KERNEL_NAME_BYTES = 96 };

// A kernel that communication ran as. Its span has the name of the operation, since a kernel of NCCL's may
// serve several; this is what the compiler calls it (cupti_names.h).
typedef struct {
    char work[sizeof((ptb_span *)0)->name]; // the operation: name, axis and bytes of its span
    int32_t axis;
    uint64_t bytes;
    char kernel[PTB_KERNEL_NAME_BYTES];
} ptb_capture_kernel;

// First member of each implementation's struct.
struct ptb_capture {
    const ptb_capture_ops *ops;
    ptb_trace *trace;
    ptb_capture_stats stats;
    ptb_capture_kernel kernels[PTB_CAPTURE_KERNELS]; // since open, each once
    size_t kernel_count;
    bool kernels_lost;       // some had no place
    char cannot[1024];       // why nothing can be recorded; empty: it can
    char nodes_cannot[1024]; // why it is not known whose a graph's work is; empty: it is
    // To be set before start: nothing of what libraries do inside of an operation is recorded. NCCL (2.26 and
    // later) puts host calls into a graph that is captured while it tells of its inside, and the graph that
    // is timed has none.
    bool without_inside;
    // An earlier capture of this process has recorded, and the profiler stays in the device's calls since:
    // steps that are timed now may take longer.
    bool was_attached;
    bool recording;
    bool annotating; // another tool that watches this process wants the names of works
};

// The capture of the device of that name, attached to the trace, whose rank the spans get. *capture is NULL
// where the device needs none.
ptb_status ptb_capture_open(const char *device, ptb_trace *trace, ptb_capture **capture);
// Detaches itself from the trace, which is freed later. NULL is allowed.
void ptb_capture_close(ptb_capture *capture);
// Begins and ends recording. Between them the trace must not be cleared. stop is called when the device has
// nothing to do; afterwards all spans are in the trace. start is UNSUPPORTED, not logged, when
// capture->cannot is not empty, which it may come to say then.
ptb_status ptb_capture_start(ptb_capture *capture);
ptb_status ptb_capture_stop(ptb_capture *capture);
// A number for close_work; 0 when nothing is recorded. Works of one thread may end in any order; the last
// that was opened and is still open gets what is enqueued.
uint64_t ptb_capture_open_work(ptb_capture *capture, const ptb_span *span);
void ptb_capture_close_work(ptb_capture *capture, uint64_t work);

// For implementations: communication of that span ran as this kernel.
void ptb_capture_note_kernel(ptb_capture *capture, const ptb_span *of, const char *kernel);
// Names of all kernels that operations of that name, axis and bytes ran as, each once, at most `most`; how
// many there are. 0: none was recorded, or not all are known. The names live as long as the capture.
size_t ptb_capture_kernels(const ptb_capture *capture, const char *work, int32_t axis, uint64_t bytes,
                           const char **names, size_t most);

#endif
