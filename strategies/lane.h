// A lane: the communicator of a mesh axis (or of a product of axes), the stream that its work goes to, and
// what it has moved. Whoever splits work over ranks (data, tensor, context, expert) talks to its peers
// through lanes alone, so that every communication has a span with its axis and is counted.
//
// Work is ordered by events: `fork` makes the lane wait for what compute has enqueued, `join` makes compute
// wait for the lane, its open span interrupted meanwhile. Between the two a lane works beside compute. Lanes
// of size 1 exist and move nothing: collectives over one rank return at once (in place) or copy.
//
// Volumes: S of a collective and its bus factor are FACTS.md's; volume is S x bus factor, what a
// bandwidth-optimal algorithm sends per rank. Of messages, and of all-to-all-v, it is the bytes that this
// rank sends to others.
#ifndef PTB_STRATEGIES_LANE_H
#define PTB_STRATEGIES_LANE_H

#include "collectives/comm.h"
#include "strategies/timeline.h"

// Numbers of ptb_span.axis.
typedef enum { PTB_AXIS_NONE, PTB_AXIS_DP, PTB_AXIS_TP, PTB_AXIS_PP, PTB_AXIS_CP, PTB_AXIS_EP } ptb_axis;
const char *ptb_axis_name(ptb_axis axis); // "dp"

// What a lane has moved.
typedef struct {
    uint64_t calls;
    uint64_t bytes[PTB_COLL_COUNT]; // S of the collectives by kind, summed
    uint64_t message_bytes;         // sent in messages
    double volume_bytes;            // of all
} ptb_lane_moved;

typedef struct {
    ptb_comm *comm; // outlives the lane
    ptb_axis axis;
    int rank, size; // of the communicator
    ptb_timeline *compute;
    ptb_stream *stream; // another one than compute's
    ptb_mark mark;
    ptb_event *forked, *joined;
    bool muted; // nothing is moved, recorded or counted: what a step takes without communication
    int number; // of what is communicated (a bucket), as the spans' unit; -1: they have compute's
    double factor[PTB_COLL_COUNT]; // of S, for the volume: ptb_collective.bus_factor
    // Since the lane was made.
    ptb_lane_moved moved;
} ptb_lane;

// Takes no ownership but of two events.
ptb_status ptb_lane_init(ptb_lane *lane, ptb_comm *comm, ptb_axis axis, ptb_timeline *compute,
                         ptb_stream *stream);
void ptb_lane_release(ptb_lane *lane); // a zeroed lane is allowed
// Memory from the lane's communicator, counted in the device's ledger. Collective: all ranks of the lane try,
// and all get the same status; *memory is NULL unless it is OK. free takes as many bytes; NULL is allowed.
ptb_status ptb_lane_alloc(ptb_lane *lane, ptb_memory category, size_t bytes, void **memory);
void ptb_lane_free(ptb_lane *lane, ptb_memory category, size_t bytes, void *memory);
// The lane's stream waits for everything that compute has enqueued so far.
ptb_status ptb_lane_fork(ptb_lane *lane);
// Compute waits for everything that the lane has enqueued so far.
ptb_status ptb_lane_join(ptb_lane *lane);
// As join, up to where the event was recorded on the lane's stream.
ptb_status ptb_lane_wait(ptb_lane *lane, ptb_event *done);
// Enqueues one collective on the lane's stream; its span has the phase, unit, microbatch and step of
// compute's latest span. name: of the span, "all_gather" if NULL and so on by kind.
ptb_status ptb_lane_collective(ptb_lane *lane, const ptb_coll *call, const char *name);
// fork, collective, join: what depends on it comes next on compute.
ptb_status ptb_lane_now(ptb_lane *lane, const ptb_coll *call, const char *name);
// One message to each `to` and one from each `from` at once; counts may be 0. Enqueued on the lane's stream.
typedef struct {
    const void *send;
    void *recv;
    size_t send_count, recv_count;
    int to, from; // ranks of the lane; itself is not allowed
    ptb_dtype dtype;
} ptb_lane_message;
ptb_status ptb_lane_exchange(ptb_lane *lane, const ptb_lane_message *messages, size_t count,
                             const char *name);
// Adds what really runs for this call (ptb_comm_ops.describe), by the names of its kernels too, where steps
// were recorded (profiler/capture.h) and its span has no name of its own.
void ptb_lane_describe(const ptb_lane *lane, const ptb_coll *call, ptb_params *facts);
// Open and close of a span of compute work on the lane's own stream (a conversion before a reduction).
ptb_status ptb_lane_work_begin(ptb_lane *lane, const char *name);
ptb_status ptb_lane_work_end(ptb_lane *lane);

#endif
