// A training run on this rank: device, streams, model, strategy, tokens, and the one function that enqueues a
// step. The benchmark `step` times it; tests drive it directly.
#ifndef PTB_STRATEGIES_TRAINER_H
#define PTB_STRATEGIES_TRAINER_H

#include "strategies/data/data.h"
#include "strategies/mark.h"
#include "strategies/tokens.h"

// Lanes of the spans.
enum { PTB_LANE_MAIN, PTB_LANE_COMPUTE, PTB_LANE_COMMUNICATION };

typedef struct {
    ptb_world *world;
    ptb_trace *trace; // NULL: no spans
    const ptb_data_parallel *strategy;
    const ptb_kernels *kernels;
    const ptb_layout *layout;
    const ptb_tokens *tokens;
    const char *device; // registered name
    const char *comm;   // registered name
    ptb_comm_config comm_config;
    ptb_optimizer optimizer;
    int64_t batch; // sequences of the global batch; divides by the ranks
    uint64_t seed, bucket_bytes;
    bool overlap;
    int threads;
    size_t max_steps; // of which losses and the like are kept
} ptb_trainer_config;

// What the device decided in a step, as the host sees it after the step.
typedef struct {
    ptb_update update;
    double sum_squares;
} ptb_trainer_seen;

typedef struct {
    ptb_trainer_config config;
    ptb_device *device;
    ptb_stream *compute, *communication;
    ptb_comm *comm;
    ptb_model *model;
    ptb_data *data;
    ptb_event *loss_ready;
    double *loss;        // device memory, from the communicator
    ptb_update *update;  // device memory
    double *sum_squares; // device memory: of the gradient
    ptb_trainer_seen seen;
    // Batch of the step that runs and of the one after it: inputs then targets, [2][2][tokens].
    int32_t *batch[2];
    size_t tokens;                    // of this rank's part of a batch
    ptb_mark compute_mark, loss_mark; // of the two streams
    uint64_t steps;                   // done
    // One a step, [max_steps]: mean loss over the global batch; norm of its gradient before clipping;
    // learning rate; loss scale that the step was made with.
    double *losses, *norms, *rates, *scales;
} ptb_trainer;

// Collective. All ranks return the same status. SKIPPED with a reason (PTB_REASON_BYTES) where the
// communicator cannot do what is asked, or where memory does not suffice (then with the bytes needed); other
// errors are logged.
ptb_status ptb_trainer_new(const ptb_trainer_config *config, char *reason, ptb_trainer **trainer);
void ptb_trainer_free(ptb_trainer *trainer); // collective
// Trains one step and waits for it; allocates nothing.
ptb_status ptb_trainer_step(ptb_trainer *trainer);
// Bytes a rank needs, by category.
void ptb_trainer_memory(const ptb_trainer_config *config, uint64_t bytes[PTB_MEMORY_COUNT]);

#endif
