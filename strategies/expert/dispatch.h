// Expert parallelism (Lepikhin et al. 2021, "GShard", section 3; Shazeer et al. 2017, section 3.1): the ranks
// of the ep axis have different sequences, and each has whole experts of every mixture layer. A rank routes
// its own rows over all experts of the layer; rows travel to the ranks of their experts (there), and results
// back to their rows (back), where they are added with the router's weights. The two directions are each
// other's transpose: gradients of results go there, gradients of rows come back.
//
// A way to move rows is a descriptor: all_to_all, all_gather (this folder). Add one by adding
// strategies/expert/X.c. The model (model_mixture.c) calls its methods at fixed places; every direction is
// two calls, and what is enqueued between them runs beside the communication when `overlap` is on. Everything
// is enqueued; the one exception is said by `waits`.
//
// Capacity is per rank and expert: of each rank's rows an expert takes at most ceil(capacity_factor * rows *
// top_k / experts). So is the load-balancing loss, unless there is a balance axis (balance.h): it is made of
// the statistics of one rank's microbatch, and counts with that microbatch's share of the global batch. Both
// are what one rank computes that has the same rows as a microbatch. Drop-less results do not depend on the
// number of ranks, but for rounding.
#ifndef PTB_STRATEGIES_EXPERT_DISPATCH_H
#define PTB_STRATEGIES_EXPERT_DISPATCH_H

#include "core/bench.h"
#include "strategies/lane.h"
#include "strategies/transformer/kernels.h"
#include "strategies/transformer/layout.h"

typedef struct ptb_expert_dispatch ptb_expert_dispatch;

// Letters: n ranks (layout->cut.ep), N rows of a microbatch of this rank, K top_k, E experts of a layer, L =
// E / n of this rank, c capacity, C hidden.
typedef struct {
    const ptb_expert_dispatch *dispatch;
    ptb_lane *lane; // over the ep axis; its communicator moves the memory of `device`
    ptb_device *device;
    const ptb_kernels *kernels;
    const ptb_layout *layout;
    size_t rows; // N
    ptb_dtype type;
    bool overlap;
} ptb_expert_env;

// What a layer of one microbatch needs, in elements; by the model's buffers that it sizes.
typedef struct {
    size_t received; // rows that this rank's experts get at most
    size_t results;  // rows of `results`
    size_t places;   // elements of `place`
    size_t weights;  // elements of `weights`; 0: none
    size_t part;     // ptb_route's
    // Results come to the rank of the rows, apart from what its experts compute, so that gradients of the two
    // do not share memory. Else `results` is what this rank's experts compute.
    bool apart;
    bool waits; // the host waits for counts in every layer: such a step cannot be recorded
} ptb_expert_sizes;

// A layer's buffers from forward to backward, for one microbatch. The model places them.
typedef struct {
    // Of this rank's rows, as ptb_route wrote them.
    const int32_t *slot, *counts; /* [N, K], [E] */
    const float *weight;          /* [N, K] */
    // Of what this rank's experts get.
    int32_t *place;   /* [places]: of what arrives, in order of expert */
    int32_t *offsets; /* [L + 1]: rows of each of this rank's experts */
    float *weights;   /* [weights] */
    void *results;    /* [results, C] */
    // Host memory.
    size_t *lists; /* [4, n]: what is sent to and received from each rank */
    size_t rows;   // that this rank's experts got, or may have got: `received` where the host does not know
} ptb_expert_flow;
enum { PTB_EXPERT_LISTS = 4 }; // times n elements of `lists`

typedef struct {
    ptb_expert_env env;
    ptb_expert_sizes sizes;
    size_t capacity; // c; 0: drop-less
} ptb_expert_axis;

struct ptb_expert_dispatch {
    ptb_plugin plugin;
    // In the letters above, e bytes of the compute type, S rows that a rank sends at most and P that come to
    // it:
    const char *memory_form; // bytes of communication buffers
    const char *volume_form; // bytes that a rank sends for a block and step, without recomputation
    // Collective over the lane's ranks, all of which get the same status.
    ptb_status (*open)(const ptb_expert_env *env, ptb_expert_axis **axis);
    void (*close)(ptb_expert_axis *axis); // collective
    // The sizes; of axis, env and capacity are set.
    void (*size)(ptb_expert_axis *axis);
    // Bytes that open allocates (the pieces of memory_form in whole cache lines), added to bytes[] by
    // category. Of env, lane and device are not read.
    void (*memory)(const ptb_expert_axis *axis, uint64_t bytes[PTB_MEMORY_COUNT]);

    // Forward. Rows to experts: `there` begins, and `arrive` writes what this rank's experts get in order of
    // expert; sets place, offsets, weights and rows of the flow.
    ptb_status (*there)(ptb_expert_axis *axis, ptb_expert_flow *flow, const void *in /* [N, C] */);
    ptb_status (*arrive)(ptb_expert_axis *axis, ptb_expert_flow *flow, void *dispatched /* [received, C] */);
    // What they computed back to the rows: `back` begins; `combine` writes residual (NULL: 0) plus the
    // weighted sum. out NULL: only `results` is wanted.
    ptb_status (*back)(ptb_expert_axis *axis, ptb_expert_flow *flow,
                       const void *computed /* [received, C] */);
    ptb_status (*combine)(ptb_expert_axis *axis, ptb_expert_flow *flow, const void *residual /* [N, C] */,
                          void *out /* [N, C]; may be residual */);

    // Backward, the transposes. Gradients of the rows' sums to experts, d_weight complete after the second;
    // d_computed may be `results` unless they are apart.
    ptb_status (*gradient_there)(ptb_expert_axis *axis, ptb_expert_flow *flow, const void *d_out /* [N, C] */,
                                 float *d_weight /* [N, K] */);
    ptb_status (*gradient_arrive)(ptb_expert_axis *axis, ptb_expert_flow *flow, float *d_weight /* [N, K] */,
                                  void *d_computed /* [received, C] */);
    // Gradients of what they got back to the rows; the second adds to d_in.
    ptb_status (*gradient_back)(ptb_expert_axis *axis, ptb_expert_flow *flow,
                                const void *d_dispatched /* [received, C] */);
    ptb_status (*gradient_leave)(ptb_expert_axis *axis, ptb_expert_flow *flow, void *d_in /* [N, C] */);
    // What really runs.
    void (*describe)(const ptb_expert_axis *axis, ptb_params *facts);
};

// An axis that is not open: what sizes and memory need. Lane and device of env may be NULL.
void ptb_expert_axis_describe(const ptb_expert_env *env, ptb_expert_axis *axis);
static inline void ptb_expert_axis_memory(const ptb_expert_axis *axis, uint64_t bytes[PTB_MEMORY_COUNT])
{
    axis->env.dispatch->memory(axis, bytes);
}
// USAGE, logged with the arithmetic, when there are more rows or choices than are counted.
ptb_status ptb_expert_axis_check(const ptb_expert_axis *axis);
// Collective over the lane's ranks.
ptb_status ptb_expert_axis_open(const ptb_expert_env *env, ptb_expert_axis **axis);
void ptb_expert_axis_close(ptb_expert_axis *axis); // collective; NULL is allowed

// Rows of a rank that an expert takes at most; 0: drop-less.
size_t ptb_expert_capacity(const ptb_model_shape *shape, size_t rows);
// Rows that come to a rank's experts at most: a row chooses an expert once, so n N min(K, L), and n L c where
// capacity allows no more.
size_t ptb_expert_received(const ptb_expert_axis *axis);

// For the descriptors.
// Compute waits for the lane: at the end of a direction when `overlap` is on, else at once.
static inline ptb_status ptb_expert_join(const ptb_expert_axis *axis, bool end)
{
    return axis->env.overlap == end ? ptb_lane_join(axis->env.lane) : PTB_OK;
}
static inline ptb_stream *ptb_expert_stream(const ptb_expert_axis *axis) // compute's
{
    return axis->env.lane->compute->stream;
}
static inline size_t ptb_expert_ranks(const ptb_expert_axis *axis) // n
{
    return (size_t)axis->env.layout->cut.ep;
}
static inline size_t ptb_expert_width(const ptb_expert_axis *axis) // C
{
    return (size_t)axis->env.layout->shape.hidden;
}
static inline size_t ptb_expert_choices(const ptb_expert_axis *axis) // N K
{
    return axis->env.rows * (size_t)axis->env.layout->shape.top_k;
}
static inline size_t ptb_expert_lines(size_t bytes) // whole cache lines
{
    return (bytes + 63) / 64 * 64;
}

#endif
