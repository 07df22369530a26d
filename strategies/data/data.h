// Data parallelism: who owns parameters, gradients and optimizer state, and what happens around a unit. A
// strategy's hooks are called while a step is enqueued; they enqueue too and never wait (but for begin_step
// of async where several ranks compute together). Add a strategy by adding strategies/data/X.c.
//
// Order of calls in a step: begin_step; for each microbatch for units ascending before_forward,
// after_forward, then for units descending before_backward, gradient_ready (where the strategy wants it: in
// every microbatch or in the last one; once or more, falling `first`, the last time 0), after_backward;
// optimize.
//
// Gradients of dense tensors are summed over the ranks of cp, ep, shard and replicate, those of experts,
// whole ones of which every ep rank has its own, over cp, shard and replicate (strategies/mesh.h). A group's
// shards are cut over the same axes without replicate.
#ifndef PTB_STRATEGIES_DATA_DATA_H
#define PTB_STRATEGIES_DATA_DATA_H

#include "core/trace.h"
#include "strategies/lane.h"
#include "strategies/optimizer.h"
#include "strategies/transformer/model.h"

// Of one reduction group.
typedef struct {
    int reduce;    // ranks that its gradients are summed over: shard x replicate
    int shard;     // of them, those that shards are cut over
    int replicate; // copies of each shard
    int place;     // of this rank among `shard`
} ptb_data_ranks;

// What some strategies alone have.
typedef struct {
    // fsdp; zero2 has in_flight too.
    int depth;       // units gathered ahead of the one that computes
    int in_flight;   // blocks whole at a time, at most; 0: depth + 1
    bool keep;       // blocks stay whole until parameters change (no resharding after forward)
    int local_steps; // local-sgd: steps between two averages; 0: 1
    int staleness;   // async: updates that a step's parameters may lack, at most
} ptb_data_options;

typedef struct {
    ptb_device *device;
    ptb_stream *compute;
    ptb_timeline *timeline; // of compute
    // By group; over as many ranks as `ranks` says. All have one stream, so what they do keeps its order.
    ptb_lane *reduce[PTB_GROUP_COUNT], *shard[PTB_GROUP_COUNT], *replicate[PTB_GROUP_COUNT];
    ptb_data_ranks ranks[PTB_GROUP_COUNT];
    // Over all ranks that hold different parts of the gradient once it is reduced; what of its own this rank
    // counts there, so that every parameter is counted once: by group, and tensors that are replicated over
    // tp.
    ptb_lane *norm;
    bool counts[PTB_GROUP_COUNT], counts_replicated;
    const ptb_kernels *kernels;
    const ptb_layout *layout;
    const ptb_optimizer *optimizer;
    ptb_dtype type;        // of the parameters that units compute with
    ptb_dtype reduce_type; // of gradients while they are reduced
    ptb_update *update;    // device memory, as ptb_optimizer_start says
    double *sum_squares;   // device memory: of the reduced gradient of all parameters, after optimize
    uint64_t seed;         // of the initial weights
    int threads;           // processor threads that may make them
    uint64_t bucket_bytes; // gradients reduced in one call, at most
    bool overlap;          // communicate while compute goes on
    bool deterministic;    // nothing is decided by time
    // Ranks that compute the same sequences together, each a part of the model or of the sequences; NULL:
    // this one alone, or a strategy that updates with every step.
    ptb_world *together;
    int64_t micro_batches; // of a step
    ptb_data_options options;
} ptb_data_env;

// Units compute with a rounded copy of f32 master weights.
static inline bool ptb_data_is_mixed(const ptb_data_env *env)
{
    return env->type != PTB_F32;
}
// Gradients are converted for their reduction.
static inline bool ptb_data_is_staged(const ptb_data_env *env)
{
    return env->ranks[PTB_GROUP_DENSE].reduce > 1 && env->reduce_type != PTB_F32;
}

typedef struct ptb_data ptb_data;

// A contiguous part of the index space that a rank holds: master parameters, or the gradient as the optimizer
// used it last (times the loss scale; before clipping).
typedef enum { PTB_DATA_PARAMETERS, PTB_DATA_GRADIENTS } ptb_data_what;
typedef struct {
    size_t first, count;
    const float *values; /* [count], device memory */
} ptb_data_part;

// How old the parameters were that steps computed with.
typedef struct {
    const uint64_t *steps; /* [bound + 1]: steps of this rank that lacked so many updates */
    int bound;
} ptb_data_staleness;

typedef struct {
    ptb_plugin plugin;
    bool shards;           // parts of parameters, gradients or optimizer state are cut over the ranks `shard`
    bool every_microbatch; // wants gradient_ready in every microbatch, whose gradients do not add up then
    // Steps whose gradients are on their way at once, at most, at these settings. Not NULL: such updates are
    // enqueued on the stream of the dense shard lane, which compute does not wait for at the end of a step;
    // whatever of a step (its loss, its learning rate) goes with its update has to be there too. NULL: a step
    // ends with its update.
    int (*clocks)(const ptb_data_options *options);
    // Allocates; parameters get their initial values. Collective.
    ptb_status (*open)(const ptb_data_env *env, ptb_data **data);
    void (*close)(ptb_data *data); // collective
    // Bytes that open will allocate on a rank, added to bytes[] by category. Of env only settings are read:
    // layout, optimizer, types, ranks, bucket_bytes, overlap, options.
    void (*memory)(const ptb_data_env *env, uint64_t bytes[PTB_MEMORY_COUNT]);
    // Valid between before_ and after_ of the unit.
    void (*unit_memory)(ptb_data *data, size_t unit, ptb_unit_memory *memory);
    ptb_status (*begin_step)(ptb_data *data, uint64_t step);
    ptb_status (*before_forward)(ptb_data *data, size_t unit);
    ptb_status (*after_forward)(ptb_data *data, size_t unit);
    ptb_status (*before_backward)(ptb_data *data, size_t unit);
    // Gradients [first, count) of the unit are complete on the compute stream.
    ptb_status (*gradient_ready)(ptb_data *data, size_t unit, size_t first);
    ptb_status (*after_backward)(ptb_data *data, size_t unit);
    // Reduced gradients to new parameters; the next step's forward, enqueued after it, sees them (with
    // clocks: or older ones).
    ptb_status (*optimize)(ptb_data *data);
    // Brings ranks whose parameters have drifted apart back to one state. Collective; streams idle, before
    // and after. NULL: ranks agree after every step.
    ptb_status (*settle)(ptb_data *data);
    // Part i of what this rank holds, in ascending order; false: there are no more. Streams idle.
    bool (*part)(ptb_data *data, ptb_data_what what, size_t i, ptb_data_part *part);
    // NULL: every step computes with all updates before it.
    ptb_data_staleness (*staleness)(const ptb_data *data);
    // What really ran.
    void (*describe)(ptb_data *data, ptb_params *facts);
} ptb_data_parallel;

// First member of each implementation's struct.
struct ptb_data {
    const ptb_data_parallel *ops;
    ptb_data_env env;
    uint64_t step;
    bool squares_begun;    // of this step's gradient
    ptb_timeline *updates; // of the stream that updates go to; NULL: compute's
};

// Device memory gets the initial values of [first, first + count) of the index space, made on the host in
// pieces that are copied while the next is made. Complete on return.
ptb_status ptb_data_fill(const ptb_data_env *env, size_t first, size_t count,
                         float *parameters /* [count], device */);

// Where a unit is in parameters (compute type) and gradients of the whole index space.
void ptb_data_unit_memory(const ptb_data_env *env, size_t unit, const void *parameters /* [layout.count] */,
                          float *gradients /* [layout.count] */, ptb_unit_memory *memory);
// A hook with nothing to do.
ptb_status ptb_data_nothing(ptb_data *data, size_t unit);

// The sum of squares of a step's gradient, over all ranks, into env.sum_squares: begin, add what this rank
// has of it, a range of the index space at a time, end. Enqueued where updates are.
void ptb_data_squares_begin(ptb_data *data);
ptb_status ptb_data_squares_add(ptb_data *data, size_t first, size_t count,
                                const float *gradients /* [count] */);
ptb_status ptb_data_squares_end(ptb_data *data);

// Hashes of the parameters, by the bits of each float and its place in the index space: equal on all ranks
// that hold the same. Collective over the shard lanes; streams idle.
typedef struct {
    uint64_t cut;        // dense ones; with tp = 1 all of them
    uint64_t replicated; // dense ones that all ranks of tp have
    uint64_t experts;
} ptb_data_hashes;
ptb_status ptb_data_hash(ptb_data *data, ptb_data_hashes *hashes);
// The stream that updates go to.
ptb_stream *ptb_data_stream(const ptb_data *data);
// Opens and closes a span of optimizer work on it.
ptb_status ptb_data_span_open(ptb_data *data, int unit, const char *name);
ptb_status ptb_data_span_close(ptb_data *data);

#endif
