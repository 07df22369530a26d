// The wire: point-to-point between the members of a team. An algorithm writes down all its sends, receives
// and receive-and-reduces of one call as a schedule, each with the operations it must come after;
// ptb_wire_run then progresses all of them together. Pipelining follows from the dependencies: nothing waits
// in order but what goes between the same two members in the same direction.
//
// Between members on one host a message is read in place when its buffer lies in the team's symmetric memory,
// else it is copied through the slots of the channel; between hosts it is MPI point-to-point
// (collectives/wire_mpi.c).
#ifndef PTB_COLLECTIVES_WIRE_H
#define PTB_COLLECTIVES_WIRE_H

#include "collectives/team.h"

typedef enum { PTB_WIRE_SEND, PTB_WIRE_RECV, PTB_WIRE_RECV_REDUCE } ptb_wire_kind;

enum { PTB_WIRE_NONE = -1, PTB_WIRE_AFTER_MAX = 3 };

typedef struct {
    ptb_wire_kind kind;
    int peer;
    const void *from; // SEND: what is sent; RECV_REDUCE: the operand that is already here (may be `to`)
    void *to;         // RECV, RECV_REDUCE: to[i] = from[i] op received[i]
    size_t bytes;
    int after[PTB_WIRE_AFTER_MAX]; // operations that must be complete before this one starts, or
                                   // PTB_WIRE_NONE
    bool finish;                   // RECV_REDUCE: the last contribution (an average is divided here)
    // state while running
    bool done;
    int next;      // next operation of the same lane
    size_t moved;  // bytes handed over or taken so far
    uint32_t mark; // SEND: message number whose consumption completes it
    int request;   // MPI request
} ptb_wire_op;

// All operations with one peer in one direction, in order.
typedef struct {
    int start;  // next operation to start
    int finish; // oldest operation not complete (sends: also those started)
    int last;
    int under_way;     // MPI: started and not complete
    uint32_t messages; // handed over (send) or taken (receive) since the team was opened
    bool listed;       // has operations in the current schedule
} ptb_lane;

struct ptb_wire_mpi;
typedef struct ptb_wire {
    ptb_wire_op *ops;
    int count, capacity;
    ptb_lane *lanes; // [2 x size]: sends to, then receives from, each member
    int *active;     // [2 x size]: lanes of the current schedule
    int active_count;
    int pending;
    ptb_dtype dtype;
    ptb_redop op;
    ptb_reduce_fn *reduce;
    ptb_status status;        // of building the schedule
    struct ptb_wire_mpi *mpi; // NULL: everything is shared memory
} ptb_wire;

// Starts a schedule. dtype and op are those of its receive-and-reduces.
void ptb_wire_begin(ptb_team *team, ptb_dtype dtype, ptb_redop op);
// Each appends one operation and returns its index, to be used as `after` of later ones. Sizes of a send and
// its receive must be equal; messages of one pair arrive in order. A buffer that is sent must not be written
// before the send is complete: name the send in `after` of what writes there. Zero bytes are a message too.
int ptb_wire_send(ptb_team *team, int peer, const void *from, size_t bytes, int after);
int ptb_wire_recv(ptb_team *team, int peer, void *to, size_t bytes, int after);
int ptb_wire_recv_reduce(ptb_team *team, int peer, void *to, const void *from, size_t bytes, int after,
                         bool finish);
// One more thing that operation `i` must come after.
void ptb_wire_order(ptb_team *team, int i, int after);
// Completes all: sent buffers may be overwritten, received data is in place.
ptb_status ptb_wire_run(ptb_team *team);

ptb_status ptb_wire_open(ptb_team *team); // collective; makes the MPI part where a member needs it
void ptb_wire_close(ptb_team *team);
// What MPI uses between the members that it connects (facts mpi_transport and devices); nothing without MPI.
void ptb_wire_describe(const ptb_team *team, ptb_params *facts);

// collectives/wire_mpi.c: the part between hosts. Requests are small integers.
ptb_status ptb_wire_mpi_open(ptb_team *team, struct ptb_wire_mpi **mpi); // collective
void ptb_wire_mpi_close(struct ptb_wire_mpi *mpi, bool broken);          // collective unless broken
ptb_status ptb_wire_mpi_send(struct ptb_wire_mpi *mpi, int peer, const void *from, size_t bytes,
                             int *request);
// to == NULL: into memory of the request, given back by ptb_wire_mpi_test in *data until the next call.
ptb_status ptb_wire_mpi_recv(struct ptb_wire_mpi *mpi, int peer, void *to, size_t bytes, int *request);
ptb_status ptb_wire_mpi_test(struct ptb_wire_mpi *mpi, int request, bool *done, const void **data);
void ptb_wire_mpi_describe(const struct ptb_wire_mpi *mpi, const ptb_team *team, ptb_params *facts);
// After ptb_wire_mpi_test said done and the data was used.
void ptb_wire_mpi_release(struct ptb_wire_mpi *mpi, int request);

// How a pipelined algorithm cuts `count` elements: `parts` pieces of at most `elements`.
typedef struct {
    size_t elements, parts;
} ptb_cut;
ptb_cut ptb_wire_cut(const ptb_team *team, size_t count, size_t element_bytes);
// The segment size behind ptb_wire_cut for pieces of up to `bytes`.
size_t ptb_wire_segment_bytes(const ptb_team *team, size_t bytes);

#endif
