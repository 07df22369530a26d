// Communicators: collectives and point-to-point on a stream. Back-ends: mpi (the MPI library's own
// collectives), host (ptbench's algorithms over shared memory and MPI point-to-point), local (the same
// algorithms between threads of one process, for tests), later nccl. Add one by adding collectives/comm_X.c.
//
// Counting convention, the same for every collective: `count` is the number of elements of the whole vector
// of length S = count x size (FACTS' S), also where ranks hold parts of it. Part r of n is the block
// ptb_block(count, n, r): the first count mod n parts are one element longer. So any count is legal for any
// number of ranks; where count divides n this is NCCL's and MPI's equal-count call. (Per-pair parts of
// all-to-all are blocks of each rank's vector in the same way.)
#ifndef PTB_COLLECTIVES_COMM_H
#define PTB_COLLECTIVES_COMM_H

#include "core/bench.h"
#include "core/device.h"
#include "core/dtype.h"
#include "core/registry.h"
#include "core/world.h"

// kind, name, elements of the send and receive buffers on rank r of n (block(r) = part r)
#define PTB_COLL_LIST(X)                                                                                     \
    X(ALL_REDUCE, all_reduce)         /* send count, recv count */                                           \
    X(ALL_GATHER, all_gather)         /* send block(r), recv count */                                        \
    X(REDUCE_SCATTER, reduce_scatter) /* send count, recv block(r) */                                        \
    X(BROADCAST, broadcast)           /* root: send count; all: recv count */                                \
    X(REDUCE, reduce)                 /* send count; root: recv count */                                     \
    X(ALL_TO_ALL, all_to_all)         /* send count (block(p) goes to p), recv n x block(r) */               \
    X(ALL_TO_ALL_V, all_to_all_v)     /* as the counts arrays say */                                         \
    X(GATHER, gather)                 /* send block(r); root: recv count */                                  \
    X(SCATTER, scatter)               /* root: send count; recv block(r) */                                  \
    X(BARRIER, barrier)               /* nothing */

typedef enum {
#define X(upper, lower) PTB_##upper,
    PTB_COLL_LIST(X)
#undef X
        PTB_COLL_COUNT
} ptb_coll_kind;
const char *ptb_coll_name(ptb_coll_kind kind);

typedef struct {
    size_t first, count;
} ptb_range;
// Part `r` of `count` elements in `n` blocks.
static inline ptb_range ptb_block(size_t count, int n, int r)
{
    size_t base = count / (size_t)n, extra = count % (size_t)n, at = (size_t)r;
    return (ptb_range){at * base + (at < extra ? at : extra), base + (at < extra)};
}

// One call. All ranks pass the same kind, count, type, op and root.
// In place: all_reduce, reduce, broadcast: recv == send. all_gather: send == recv + block(rank).first
// elements. reduce_scatter: recv == send + block(rank).first. gather (root): send == recv + block.first;
// scatter (root): recv == send
// + block.first. all_to_all: recv == send, only where count divides by n. all_to_all_v: recv == send, only
// when counts and displacements of send and receive are equal.
typedef struct {
    ptb_coll_kind kind;
    const void *send;
    void *recv;
    size_t count;
    ptb_dtype dtype;
    ptb_redop op;
    int root;
    // all_to_all_v only, each [n], in elements; they must stay until the call is complete. `count` is then at
    // least what any rank sends or receives. On a worker stream the arrays must stay valid until the call is
    // done.
    const size_t *send_counts, *send_first, *recv_counts, *recv_first;
} ptb_coll;

// GPUDirect RDMA: network cards that read and write GPU memory themselves.
typedef enum { PTB_GPU_DIRECT_DEFAULT, PTB_GPU_DIRECT_OFF, PTB_GPU_DIRECT_ON } ptb_gpu_direct;

typedef struct {
    const char *algorithm; // NULL or "auto" / "default": the back-end chooses
    const char
        *transport; // NULL: any. What `--transport` said; the back-end checks that it is what really runs
    uint64_t segment_bytes; // pipeline segment; 0: the algorithm's own choice
    bool threads;           // several threads of this rank will use the library (training steps)
    bool measure;     // where the back-end is to choose the algorithm, it may take some seconds, once on a
                      // machine, to measure which is the fastest
    bool untimed;     // nor does its choice depend on what was ever measured: the same on every machine
    double timeout_s; // a peer that does not answer for so long is lost; 0: never
    int channels;     // of nccl (thread blocks a call); 0: its own choice
    ptb_gpu_direct gpu_direct; // of nccl
    const char *device;        // whose memory will be moved; NULL: the communicator's own (ptb_comm_moves)
} ptb_comm_config;

typedef struct ptb_comm ptb_comm;

typedef struct {
    ptb_plugin plugin;
    // The device whose memory it moves; NULL: host.
    const char *device;
    // Whether it can move another device's memory too; else a reason (PTB_REASON_BYTES). NULL: never.
    bool (*moves)(const char *device, char *reason);
    // Collective over the world, which must outlive the communicator. A communicator of GPU memory takes the
    // device that the calling thread has opened last (CUDA's current device).
    ptb_status (*open)(ptb_world *world, const ptb_comm_config *config, ptb_comm **comm);
    void (*close)(ptb_comm *comm);
    // NULL-terminated names selectable as config.algorithm for this kind, without "auto"/"default".
    const char *const *(*algorithms)(ptb_coll_kind kind);
    // Whether this call can run as configured; else a reason (PTB_REASON_BYTES). Local, deterministic, same
    // on all ranks.
    bool (*supports)(ptb_comm *comm, const ptb_coll *call, bool in_place, char *reason);
    // Symmetric allocation, collective: memory that peers on this host can read directly where the back-end
    // has such a thing, else plain device memory. Huge-page advised where possible, touched. No call may be
    // under way on the communicator during alloc and free.
    ptb_status (*alloc)(ptb_comm *comm, size_t bytes, void **memory);
    void (*free)(ptb_comm *comm, void *memory); // collective
    ptb_status (*collective)(ptb_comm *comm, const ptb_coll *call, ptb_stream *stream);
    // Calls between begin and end run as one: needed when several sends and receives of a rank depend on each
    // other.
    ptb_status (*group_begin)(ptb_comm *comm);
    ptb_status (*group_end)(ptb_comm *comm, ptb_stream *stream);
    ptb_status (*send)(ptb_comm *comm, const void *buffer, size_t count, ptb_dtype dtype, int peer,
                       ptb_stream *stream);
    ptb_status (*recv)(ptb_comm *comm, void *buffer, size_t count, ptb_dtype dtype, int peer,
                       ptb_stream *stream);
    // Adds what really runs for this call: algorithm, transport, segment, call, chunks (when a count beyond
    // 2^31 is split), buffers ("registered" or "private"). `call` NULL: point to point.
    void (*describe)(ptb_comm *comm, const ptb_coll *call, ptb_params *facts);
    // Told, for describe to use, which kernels the device says that calls of this kind run as: the names of
    // all of them, each once, as the compiler has them, mangled or by their last part. from: where they were
    // recorded, a constant: "recorded steps". NULL: names of kernels say nothing of what this back-end runs.
    void (*recorded)(ptb_comm *comm, const ptb_coll *call, const char *const *kernels, size_t count,
                     const char *from);
} ptb_comm_ops;

// Payload that a rank handed to peers.
typedef struct {
    uint64_t bytes, far_bytes; // to all; of these, to ranks of other hosts
} ptb_sent;

// First member of each implementation's struct.
struct ptb_comm {
    const ptb_comm_ops *ops;
    ptb_world *world;
    int rank, size;
    ptb_sent sent; // counted by the back-ends that move data themselves (counts_sent)
    bool counts_sent;
};

ptb_status ptb_comm_open(const char *name, ptb_world *world, const ptb_comm_config *config, ptb_comm **comm);
void ptb_comm_close(ptb_comm *comm);
// Name of the device whose memory it moves of itself.
const char *ptb_comm_device(const ptb_comm_ops *ops);
// Whether it can move that device's memory; else a reason (PTB_REASON_BYTES). Local.
bool ptb_comm_moves(const ptb_comm_ops *ops, const char *device, char *reason);
static inline ptb_status ptb_comm_collective(ptb_comm *c, const ptb_coll *call, ptb_stream *stream)
{
    return c->ops->collective(c, call, stream);
}

#endif
