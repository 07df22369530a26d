// A training run on this rank: device, streams, model, strategy, tokens, and the one function that enqueues a
// step. The benchmark `step` times it; tests drive it directly.
#ifndef PTB_STRATEGIES_TRAINER_H
#define PTB_STRATEGIES_TRAINER_H

#include "profiler/capture.h"
#include "strategies/data/data.h"
#include "strategies/prefetch.h"
#include "strategies/trainer_lanes.h"

typedef struct {
    ptb_world *world;
    ptb_trace *trace; // NULL: no spans
    const ptb_data_parallel *strategy;
    const ptb_kernels *kernels;
    ptb_mesh mesh;            // sizes of 0: all ranks are data-parallel
    bool sequence_parallel;   // with tp
    int tensor_chunks;        // with tp: of the rows, one's communication beside another's products; 0: 1
    const ptb_layout *layout; // cut as the mesh says
    const ptb_expert_dispatch *expert_dispatch; // with ep; NULL: all_to_all
    bool expert_overlap;                        // experts' communication beside what does not depend on it
    bool balance_global;        // load-balancing losses have the statistics of all ranks' microbatches
    const ptb_context *context; // how attention goes over sequences that cp splits; NULL: ring
    int context_degree;         // ptb_context_env.degree
    const ptb_tokens *tokens;
    const char *device; // registered name
    bool share_gpu;     // ranks may have the same GPU
    const char *comm;   // registered name
    ptb_comm_config comm_config;
    ptb_optimizer optimizer;
    ptb_dtype type;        // compute type: parameters in use and activations; master weights stay f32
    bool tf32;             // f32 products through TF32
    ptb_dtype reduce_type; // of the gradients while they are reduced
    int64_t batch;         // sequences of the global batch; a multiple of data-parallel ranks x micro_batches
    int64_t micro_batches; // of a rank's part of it, one after the other; their gradients add up
    ptb_recompute recompute;
    int64_t recompute_every;
    bool packed; // tokens were opened packed
    uint64_t seed, bucket_bytes;
    bool overlap;
    ptb_data_options data_options;
    bool deterministic; // nothing is chosen by time: runs repeat to the bit
    bool graph;         // the second step is recorded, and every later one replays it; the device has graphs
    int threads;
    size_t max_steps;             // of which losses and the like are kept
    void (*alive)(void *watcher); // told after each step; NULL: nobody watches
    void *watcher;
} ptb_trainer_config;

// Host memory that the device copies from and to, of a step.
typedef struct {
    float rate; // learning rate
    // What the device decided in it, once its update is done.
    ptb_update update;
    double sum_squares, loss;
} ptb_trainer_shared;

typedef struct {
    ptb_trainer_config config;
    ptb_device *device;
    ptb_capture *capture; // of the device's work; NULL: its streams record their spans themselves
    ptb_stream *compute, *communication;
    ptb_timeline timeline; // of compute
    ptb_lanes lanes;
    ptb_tensor_axis *tensor;   // NULL: layers are whole
    ptb_expert_axis *experts;  // NULL: every rank has all experts
    ptb_balance_axis *balance; // NULL: load-balancing losses have a rank's statistics, or there are none
    ptb_context_axis context;  // ops NULL: sequences are whole
    ptb_model *model;
    ptb_data *data;
    double *loss;        // [most steps on their way, 1 at least]: device memory, from the communicator
    ptb_update *update;  // device memory
    double *sum_squares; // device memory: of the gradient
    // Steps whose updates may be on their way at once (ptb_data_parallel.clocks); 0: a step ends with its
    // own.
    size_t clocks;
    ptb_trainer_shared *clock;  // [clocks + 1]: of step i at i % (clocks + 1)
    ptb_event **updated;        // [clocks + 1]: what is copied to it is there; NULL without clocks
    ptb_trainer_shared *shared; // of the last step that is recorded
    ptb_world *together;        // ptb_data_env
    ptb_prefetch *prefetch;
    ptb_prefetch_batch batch; // of the step that runs
    size_t rows;              // tokens of a microbatch
    // With a graph the batch is copied to a place of its own, from which every replay takes it.
    int32_t *input; /* [2, or 3 when packed, tokens of the batch], host memory */
    ptb_graph *graph;
    ptb_mark launch; // of it
    ptb_event *joined;
    uint64_t graph_counted; // of the recorded step
    ptb_lane_moved graph_moved[PTB_LANE_COUNT];
    // Of the span of compute that is open while a step is enqueued.
    ptb_phase phase;
    int unit, micro_batch;
    // What happened so far.
    uint64_t steps;             // done; with clocks: computed
    uint64_t recorded;          // of them, those whose update is done and whose loss and the like are known
    uint64_t starved;           // of them, those whose batch was not ready when it was asked for
    int64_t waited_ns, fill_ns; // for batches; what the prefetch thread took to fill them
    // One a step, [max_steps]: mean loss over the global batch; norm of its gradient before clipping;
    // learning rate; loss scale that the step was made with.
    double *losses, *norms, *rates, *scales;
} ptb_trainer;

// Collective. All ranks return the same status. SKIPPED with a reason (PTB_REASON_BYTES) where the
// communicator or the kernels cannot do what is asked, or where memory does not suffice (then with the bytes
// needed). USAGE, logged and with the reason, where ranks and microbatches do not divide the batch; other
// errors are logged.
ptb_status ptb_trainer_new(const ptb_trainer_config *config, char *reason, ptb_trainer **trainer);
void ptb_trainer_free(ptb_trainer *trainer); // collective
// Trains one step and waits for it; allocates nothing (but where it records a graph, in the second step).
// With clocks it waits for compute alone: updates, losses and the like of the last steps are on their way.
ptb_status ptb_trainer_step(ptb_trainer *trainer);
// Waits until all steps are recorded; streams are idle then. Before anything is read of a trainer with
// clocks.
ptb_status ptb_trainer_drain(ptb_trainer *trainer);
// Where steps are a graph: records it again, so that a capture that records now (profiler/capture.h) learns
// what its work belongs to. Nothing is trained. Collective, with nothing on its way.
ptb_status ptb_trainer_record_graph(ptb_trainer *trainer);
// Told by the model while a step is enqueued: the open span ends, one of `phase` begins. context: the
// trainer.
ptb_status ptb_trainer_phase(void *context, ptb_phase phase);
// Sequences of a microbatch on a rank.
int64_t ptb_trainer_sequences(const ptb_trainer_config *config);
// How experts are divided over ranks, without lane and device; false: each rank has all of them.
bool ptb_trainer_experts(const ptb_trainer_config *config, ptb_expert_env *env);
// Whether a rank's memory suffices, of which so much is available to it and as many share the device's;
// always says what it needs and for what, into reason (PTB_REASON_BYTES).
bool ptb_trainer_fits(const ptb_trainer_config *config, uint64_t available, int sharers, char *reason);
// Bytes a rank needs, by category.
void ptb_trainer_memory(const ptb_trainer_config *config, uint64_t bytes[PTB_MEMORY_COUNT]);

#endif
