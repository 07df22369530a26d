// Inside the shared implementation of the collective benchmarks (coll_*.c and sendrecv.c): a run and its
// plan.
#ifndef PTB_COLLECTIVES_COLL_RUN_H
#define PTB_COLLECTIVES_COLL_RUN_H

#include "collectives/coll_bench.h"
#include "core/log.h"

enum {
    PTB_COLL_LIST_MAX = 32, // entries of one list option
    PTB_COLL_STAGGERS = 4,  // places that buffers are staggered over, see ptb_coll_buffer
    PTB_COLL_STAGGER_BYTES = 1 << 20,
    PTB_COLL_GUARD_BYTES = 4096, // poisoned before and after each buffer; a page, so that alignment is kept
};

typedef ptb_status ptb_coll_loop(ptb_bench_run *run, uint64_t n);

// What is timed: a collective, or a point-to-point pattern that is described in the same terms. Its
// collective.kind is then PTB_COLL_COUNT and it has its own loop.
typedef struct {
    ptb_collective collective;
    ptb_coll_loop *loop;    // NULL: calls of the collective
    const char *convention; // of algbw; NULL: "S / t, t = median"
    double trips;           // operations in one iteration (ping-pong: 2); bandwidth uses t / trips
    bool latency;           // report t / trips as the latency
} ptb_coll_subject;

// One case.
typedef struct {
    int subject, comm, algo;
    ptb_dtype type;
    ptb_redop op;
    bool in_place;
    size_t count;
} ptb_coll_point;

// What the options ask for, checked and expanded.
typedef struct {
    const ptb_coll_subject *subjects; // one, or the chosen point-to-point patterns
    const char *subject_names[8];     // NULL for a collective
    int subject_count;
    const ptb_comm_ops *comms[PTB_COLL_LIST_MAX];
    int comm_count;
    const char *algos[PTB_COLL_LIST_MAX]; // into algo_text
    char *algo_text;
    int algo_count;
    char *transport; // NULL: any
    char *device;    // as asked; NULL: each communicator's own
    int channels;
    ptb_gpu_direct gpu_direct;
    bool blocking, graph;
    uint64_t segment_bytes;
    int root, aggregate, misalign;
    bool registered;
    char split[32];  // "all": one group
    int colour;      // of this rank
    int *group_size; // [world size] ranks in the group of each rank
    int groups;
    ptb_coll_point *points;
    size_t point_count;
    bool speaks; // rank 0: mistakes in the options are the same on all ranks, and are told once
} ptb_coll_plan;
#define ptb_coll_refuse(plan, ...)                                                                           \
    do {                                                                                                     \
        if ((plan)->speaks)                                                                                  \
            ptb_error(__VA_ARGS__);                                                                          \
    } while (0)

// A device that holds the buffers of some of the communicators.
typedef struct {
    ptb_device *device;
    ptb_stream *stream;
    unsigned char *mark;   // 64 bytes of its memory, for messages without content
    uint64_t budget_bytes; // for the buffers of one rank, the same on all ranks
    size_t capacity[2];    // bytes of each buffer: the most that a case within the budget needs
} ptb_coll_place;
enum { PTB_COLL_PLACES = 4 };

// What a device that is not open yet could give.
typedef struct {
    const char *device;    // its name; NULL: not asked for yet
    uint64_t budget_bytes; // for the buffers of one rank
    int sharers;
} ptb_coll_prospect;

typedef struct {
    ptb_coll_place *place; // whose memory they are
    ptb_comm *owner;       // whose alloc they came from; NULL: the device's
    void *memory[2];       // send or in place; receive. NULL: not allocated
    size_t stagger[2];
} ptb_coll_buffers;

struct ptb_bench_run {
    const ptb_bench_env *env;
    ptb_coll_plan plan;
    ptb_coll_subject *own_subject;                // to free; NULL when the subjects are constants
    size_t next;                                  // point that next() gives
    ptb_coll_prospect prospects[PTB_COLL_PLACES]; // in a dry run
    // Made by the first prepare.
    bool ready;
    ptb_coll_place places[PTB_COLL_PLACES];
    int place_count;
    const char *refused[PTB_COLL_PLACES];               // devices that cannot be used here
    char refused_why[PTB_COLL_PLACES][PTB_HEARD_BYTES]; // "" on ranks that do not know
    int refused_count;
    ptb_world *group;                    // == env->world when there is one group
    ptb_comm **comms;                    // [comm_count * algo_count], opened on demand
    ptb_status *opened;                  // what opening each gave; SKIPPED: not tried
    char (*opened_why)[PTB_HEARD_BYTES]; // of those that could not be; "" on ranks that do not know
    ptb_coll_buffers buffers;
    // The case in work.
    ptb_coll_place *place;
    ptb_device *device; // place's
    ptb_stream *stream;
    ptb_graph *graph; // one iteration; NULL: not captured
    const ptb_coll_point *point;
    const ptb_coll_subject *subject;
    ptb_comm *comm;
    ptb_pattern pattern;
    ptb_coll_shape shape;
    ptb_coll call;
    size_t *pair_counts; // [4 * group size], all_to_all_v
    uint64_t aggregate;
    ptb_coll_loop *loop;
    bool refill;         // in place and the call overwrites its input
    char *send, *recv;   // start of the data
    uint64_t iterations; // of the whole case
    ptb_sent sent_before;
};

// coll_plan.c. `choose` lists the subjects; logs and returns USAGE or UNSUPPORTED.
ptb_status ptb_coll_plan_make(const ptb_coll_subject *subjects, const char *const *subject_names,
                              int subject_count, const ptb_bench_env *env, const ptb_coll_config *config,
                              ptb_coll_plan *plan);
void ptb_coll_plan_release(ptb_coll_plan *plan);
// coll_used.c: USAGE, logged, when an option has another value than its default and no case looks at it.
ptb_status ptb_coll_check_used(const ptb_coll_plan *plan, const ptb_opt_set *options);
// coll_sweep.c: fills plan->points from the sizes that the options ask for.
ptb_status ptb_coll_sweep(const ptb_coll_config *config, const ptb_dtype *types, int type_count,
                          const ptb_redop *ops, int op_count, const bool *in_place, int place_count,
                          ptb_coll_plan *plan);
// coll_bench.c: a run over the subjects, which must live as long as it.
ptb_status ptb_coll_run_new(const ptb_coll_subject *subjects, const char *const *subject_names,
                            int subject_count, const ptb_bench_env *env, const ptb_opt_set *options,
                            ptb_bench_run **run);
// coll_place.c: devices and buffers.
// Opens the devices of all communicators and finds how much memory their cases may take. Collective.
ptb_status ptb_coll_places_open(ptb_bench_run *run);
void ptb_coll_places_close(ptb_bench_run *run);
// Name of the device that holds the buffers of communicator `comm` of the plan.
const char *ptb_coll_place_name(const ptb_coll_plan *plan, int comm);
// Before a device is open: into `skip`, what the case will be skipped for, if its memory is too little.
// Collective but for the host.
ptb_status ptb_coll_place_foresee(ptb_bench_run *run, const ptb_coll_point *point, char *skip);
// Chooses the device of a case: place, device and stream. SKIPPED with a reason when it has too little
// memory.
ptb_status ptb_coll_place_use(ptb_bench_run *run, const ptb_coll_point *point, char *reason);
// Makes the buffers that the case in work needs, unless they are there. SKIPPED with a reason.
ptb_status ptb_coll_buffers_use(ptb_bench_run *run, char *reason);
void ptb_coll_buffers_free(ptb_bench_run *run);
// coll_traffic.c: what the case in work moves over links (ptb_bench.device and .moves).
// coll_verify.c: fills and poisons the buffers of the case in work / its input only.
ptb_status ptb_coll_fill(ptb_bench_run *run);
ptb_status ptb_coll_fill_input(ptb_bench_run *run);
// Whether this subject is point to point.
static inline bool ptb_coll_is_p2p(const ptb_coll_subject *subject)
{
    return subject->collective.kind == PTB_COLL_COUNT;
}

// Where the guard before buffer `which` (0 send or in place, 1 receive) begins. Large buffers of one size are
// laid out alike in physical memory, and the same element of all of them falls on the same cache sets: 1 MiB
// at the start of four 64 MiB buffers was summed at less than half the speed of four 1 MiB ones. So buffers
// of the host from 4 MiB on begin at different places, for every communicator alike. Those of GPUs begin at
// the same place on all ranks: within a symmetric window NCCL's kernels take one offset, this rank's, for all
// peers (comm_nccl_memory.c).
static inline char *ptb_coll_buffer(const ptb_bench_run *run, int which)
{
    return (char *)run->buffers.memory[which] + run->buffers.stagger[which];
}

#endif
