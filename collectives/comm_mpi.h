// What the files of the `mpi` communicator share: comm_mpi.c (the communicator), comm_mpi_calls.c (the
// collectives), comm_mpi_p2p.c (messages), comm_mpi_types.c, comm_mpi_tuning.c (choice of the library's
// algorithm), comm_mpi_transport.c (what carries the bytes) and comm_mpi_vars.c (the library's variables).
#ifndef PTB_COLLECTIVES_COMM_MPI_H
#define PTB_COLLECTIVES_COMM_MPI_H

#include "collectives/comm.h"

#include <mpi.h>
#include <pthread.h>

// MPI calls that a collective may become: name here, its word in Open MPI's coll_tuned_WORD_algorithm (NULL:
// not selectable there), its name in facts.
#define PTB_MPI_CALL_LIST(X)                                                                                 \
    X(ALL_REDUCE, "allreduce", "MPI_Allreduce")                                                              \
    X(ALL_GATHER, "allgather", "MPI_Allgather")                                                              \
    X(ALL_GATHER_V, "allgatherv", "MPI_Allgatherv")                                                          \
    X(REDUCE_SCATTER, "reduce_scatter", "MPI_Reduce_scatter")                                                \
    X(REDUCE_SCATTER_BLOCK, "reduce_scatter_block", "MPI_Reduce_scatter_block")                              \
    X(BROADCAST, "bcast", "MPI_Bcast")                                                                       \
    X(REDUCE, "reduce", "MPI_Reduce")                                                                        \
    X(ALL_TO_ALL, "alltoall", "MPI_Alltoall")                                                                \
    X(ALL_TO_ALL_V, "alltoallv", "MPI_Alltoallv")                                                            \
    X(GATHER, "gather", "MPI_Gather")                                                                        \
    X(GATHER_V, NULL, "MPI_Gatherv")                                                                         \
    X(SCATTER, "scatter", "MPI_Scatter")                                                                     \
    X(SCATTER_V, NULL, "MPI_Scatterv")                                                                       \
    X(BARRIER, "barrier", "MPI_Barrier")                                                                     \
    X(MESSAGES, NULL, "MPI_Isend+MPI_Irecv")                                                                 \
    X(REDUCES, NULL, "MPI_Reduce to each rank")

typedef enum {
#define X(upper, tuned, function) PTB_MPI_##upper,
    PTB_MPI_CALL_LIST(X)
#undef X
        PTB_MPI_CALL_COUNT
} ptb_mpi_call;
const char *ptb_mpi_call_name(ptb_mpi_call call);       // "MPI_Allreduce"
const char *ptb_mpi_call_tuned_word(ptb_mpi_call call); // "allreduce" or NULL

// How a collective is done: the MPI call, and in how many pieces because MPI counts in int.
typedef struct {
    ptb_mpi_call call;
    bool big_blocks; // a block is one element of a derived type, to keep counts small
    size_t chunks;   // >= 1
} ptb_mpi_plan;

typedef struct {
    char algorithm[40];                 // "default", or as asked
    bool forced[PTB_MPI_CALL_COUNT];    // this communicator's call runs `algorithm`
    char found[PTB_MPI_CALL_COUNT][40]; // what the environment forces on a call; "" nothing
    char component[40];                 // of Open MPI's coll framework, in charge: "tuned", "self", ...
    bool listens;                       // coll/tuned looks at its variables (coll_tuned_use_dynamic_rules)
    uint64_t segment_bytes;
} ptb_mpi_tuning;

typedef struct {
    void *buffer;
    size_t count;
    ptb_dtype dtype;
    int peer;
    bool send;
} ptb_mpi_message;

// Messages between group_begin and group_end, done as one.
typedef struct ptb_mpi_group {
    ptb_mpi_message *messages;
    size_t count, capacity;
    MPI_Request *requests;
    size_t request_capacity;
    struct ptb_mpi_group *next; // free list
} ptb_mpi_group;

typedef struct ptb_mpi_memory {
    void *memory;
    size_t bytes;
    struct ptb_mpi_memory *next;
} ptb_mpi_memory;

typedef struct {
    ptb_comm comm;
    MPI_Comm mpi;
    size_t limit; // most elements of one MPI call: INT_MAX; tests lower it
    MPI_Datatype type[PTB_DTYPE_COUNT];
    MPI_Op op[PTB_DTYPE_COUNT][PTB_REDOP_COUNT];
    bool threads; // calls from worker streams are allowed
    bool gpu;     // buffers are GPU memory, which the library (CUDA-aware) moves itself
    ptb_mpi_tuning tuning;
    char transport[104], devices[104];
    // Scratch of the one collective that runs, each [size].
    int *send_counts, *send_first, *recv_counts, *recv_first;
    ptb_mpi_message *parts; // [2 x size]
    // The last block type made: `block_elements` of block_dtype.
    MPI_Datatype block;
    size_t block_elements;
    ptb_dtype block_dtype;
    ptb_mpi_memory *memory;
    // Groups: the one being recorded, and those to be used again; a worker stream returns them.
    int depth;
    ptb_mpi_group *open, *spare;
    pthread_mutex_t spare_mutex;
} ptb_comm_mpi;

// NULL when the communicator is not an `mpi` one. For tests: lowers the number of elements at which calls are
// split, the same on all ranks.
ptb_comm_mpi *ptb_comm_mpi_of(ptb_comm *comm);
void ptb_comm_mpi_set_limit(ptb_comm *comm, size_t elements);

// comm_mpi_types.c. Fills type and op; f16 and bf16 get types and operations of our own (MPI has none).
ptb_status ptb_mpi_types_new(ptb_comm_mpi *c);
void ptb_mpi_types_free(ptb_comm_mpi *c);

// comm_mpi_calls.c
ptb_mpi_plan ptb_mpi_plan_for(const ptb_comm_mpi *c, const ptb_coll *call);
ptb_status ptb_mpi_run(ptb_comm_mpi *c, const ptb_coll *call); // blocking
bool ptb_mpi_in_place(const ptb_comm_mpi *c, const ptb_coll *call);

// comm_mpi_p2p.c
// Done when all messages of the group are; messages longer than the limit go in pieces.
ptb_status ptb_mpi_messages_run(ptb_comm_mpi *c, ptb_mpi_group *group);
ptb_status ptb_mpi_group_add(ptb_mpi_group *group, const ptb_mpi_message *message);
// An empty group, from the free list if there is one; NULL, logged, without memory.
ptb_mpi_group *ptb_mpi_group_take(ptb_comm_mpi *c);
void ptb_mpi_group_give(ptb_comm_mpi *c, ptb_mpi_group *group);
void ptb_mpi_groups_free(ptb_comm_mpi *c);
ptb_status ptb_mpi_send(ptb_comm *comm, const void *buffer, size_t count, ptb_dtype dtype, int peer,
                        ptb_stream *stream);
ptb_status ptb_mpi_recv(ptb_comm *comm, void *buffer, size_t count, ptb_dtype dtype, int peer,
                        ptb_stream *stream);
ptb_status ptb_mpi_group_begin(ptb_comm *comm);
ptb_status ptb_mpi_group_end(ptb_comm *comm, ptb_stream *stream);
// Enqueues on a worker stream; UNSUPPORTED, logged, when the library grants only one thread.
ptb_status ptb_mpi_enqueue(ptb_comm_mpi *c, ptb_stream *stream, ptb_call_fn *fn, const void *arg,
                           size_t bytes);

// Whether work of this stream is done at once, by the calling thread, after what is enqueued before it: on a
// caller stream, and with GPU memory, for which MPI knows no streams.
static inline ptb_status ptb_mpi_now(const ptb_comm_mpi *c, ptb_stream *stream, bool *now)
{
    *now = stream->kind == PTB_STREAM_CALLER || c->gpu;
    return __builtin_expect(c->gpu, 0) ? ptb_stream_sync(stream) : PTB_OK;
}

// comm_mpi_gpu.c
// Whether the library takes memory of that device (it does where it is CUDA-aware); else a reason.
bool ptb_mpi_moves(const char *device, char *reason);
// Whether this call needs nothing of us beside the library, since we cannot touch GPU memory; else a reason.
bool ptb_mpi_gpu_supports(const ptb_comm_mpi *c, const ptb_coll *call, bool in_place, char *reason);

// comm_mpi_tuning.c
// Duplicates `from` with the algorithm of the config forced where a call has it. USAGE when no call has it.
ptb_status ptb_mpi_tuned_dup(ptb_world *world, MPI_Comm from, const ptb_comm_config *config, MPI_Comm *comm,
                             ptb_mpi_tuning *tuning);
const char *const *ptb_mpi_algorithms(ptb_coll_kind kind);
// Whether the forced algorithm is what would run for this call; else a reason (PTB_REASON_BYTES).
bool ptb_mpi_tuning_supports(const ptb_comm_mpi *c, const ptb_coll *call, bool in_place, char *reason);

// comm_mpi_transport.c
// What carries messages between the ranks of this world: "self", "shm(vader,cma)", "tcp",
// "shm(vader,cma)+tcp", "ucx", "ofi", ...; and the devices or settings behind it ("" when nothing is known).
// Collective: the same on all ranks.
ptb_status ptb_mpi_transport_find(ptb_world *world, char transport[104], char devices[104]);
// UNSUPPORTED, logged, unless `found` is what was asked for.
ptb_status ptb_mpi_transport_check(const ptb_world *world, const char *asked, const char *found);

// comm_mpi_vars.c: the library's control variables through the MPI tool interface (MPI 3.1, chapter 14.3).
// Only after ptb_world_mpi_vars. Variables of components that the library has closed do not exist.
// Names of all variables, one after the other: i from 0 to the count; false for an invalid one.
int ptb_mpi_vars_count(void);
bool ptb_mpi_var_name(int i, char name[128]);
bool ptb_mpi_var_read_int(const char *name, int *value); // also truth values
bool ptb_mpi_var_read_text(const char *name, char *value, size_t size);
bool ptb_mpi_var_write_int(const char *name, int value);
// i-th item of the variable's enumerator with blanks turned to '_'; false past the end.
bool ptb_mpi_var_item(const char *name, int i, int *value, char text[40]);

#endif
