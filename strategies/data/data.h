// Data parallelism: who owns parameters, gradients and optimizer state, and what happens around a unit. A
// strategy's hooks are called while a step is enqueued; they enqueue too and never wait. Strategies: ddp
// (this folder; later zero1, zero2, fsdp, async). Add one by adding strategies/data/X.c.
//
// Order of calls in a step: begin_step; for each microbatch for units ascending before_forward,
// after_forward, then for units descending before_backward, gradient_ready (in the last microbatch; once or
// more, falling `first`, the last time 0), after_backward; optimize.
#ifndef PTB_STRATEGIES_DATA_DATA_H
#define PTB_STRATEGIES_DATA_DATA_H

#include "collectives/comm.h"
#include "core/trace.h"
#include "strategies/optimizer.h"
#include "strategies/transformer/model.h"

typedef struct {
    ptb_device *device;
    ptb_comm *comm; // over the data-parallel ranks
    ptb_stream *compute, *communication;
    const ptb_kernels *kernels;
    const ptb_layout *layout;
    ptb_trace *trace; // NULL: no spans
    const ptb_optimizer *optimizer;
    ptb_dtype type;        // of the parameters that units compute with
    ptb_dtype reduce_type; // of gradients while they are reduced
    ptb_update *update;    // device memory, as ptb_optimizer_start says
    double *sum_squares;   // device memory: of the reduced gradient of all parameters, after optimize
    uint64_t seed;         // of the initial weights
    int threads;           // processor threads that may make them
    uint64_t bucket_bytes; // gradients reduced in one call, at most
    bool overlap;          // reduce while backward still computes
} ptb_data_env;

typedef struct ptb_data ptb_data;

typedef struct {
    ptb_plugin plugin;
    // Allocates; parameters get their initial values. Collective.
    ptb_status (*open)(const ptb_data_env *env, ptb_data **data);
    void (*close)(ptb_data *data); // collective
    // Bytes that open will allocate on a rank of `ranks`, added to bytes[] by category. Of env only settings
    // are read: layout, optimizer, types, bucket_bytes.
    void (*memory)(const ptb_data_env *env, int ranks, uint64_t bytes[PTB_MEMORY_COUNT]);
    // Valid between before_ and after_ of the unit.
    void (*unit_memory)(ptb_data *data, size_t unit, ptb_unit_memory *memory);
    ptb_status (*begin_step)(ptb_data *data, uint64_t step);
    ptb_status (*before_forward)(ptb_data *data, size_t unit);
    ptb_status (*after_forward)(ptb_data *data, size_t unit);
    ptb_status (*before_backward)(ptb_data *data, size_t unit);
    // Gradients [first, count) of the unit are complete on the compute stream.
    ptb_status (*gradient_ready)(ptb_data *data, size_t unit, size_t first);
    ptb_status (*after_backward)(ptb_data *data, size_t unit);
    // Reduced gradients to new parameters; the next step's forward, enqueued after it, sees them.
    ptb_status (*optimize)(ptb_data *data);
    // Hash of the parameters that this rank holds whole; equal on all ranks when the strategy works. Streams
    // idle.
    ptb_status (*hash)(ptb_data *data, uint64_t *hash);
    // What really ran.
    void (*describe)(ptb_data *data, ptb_params *facts);
} ptb_data_parallel;

// First member of each implementation's struct.
struct ptb_data {
    const ptb_data_parallel *ops;
    ptb_data_env env;
    uint64_t step;
    uint64_t collective_bytes; // S of every collective enqueued so far (FACTS.md's S), summed
    double wire_bytes;         // S x bus factor, summed: what a bandwidth-optimal algorithm sends per rank
};

// Counts memory that came from the communicator in the device's ledger; a negative number of bytes takes it
// out.
void ptb_data_account(ptb_device *device, ptb_memory category, int64_t bytes);
// Device memory gets the initial values of the index space, made on the host in pieces that are copied while
// the next is made. Complete on return.
ptb_status ptb_data_fill(const ptb_data_env *env, float *parameters /* [layout.count], device */);
// Hash of device memory, by the bits of each float and its place, copied to the host in pieces. Streams idle.
ptb_status ptb_data_hash(const ptb_data_env *env, const float *values /* [count], device */, size_t count,
                         uint64_t *hash);

#endif
