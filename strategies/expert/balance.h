// Load-balancing losses with statistics of all ranks that have other rows (Qiu et al. 2025, "Demons in the
// Detail: On Implementing Load Balancing Loss for Training Specialized Mixture-of-Expert Models", section 3:
// global-batch instead of micro-batch statistics): the share f_e of the choices that an expert got is that of
// the microbatches that all these ranks have at once, and each rank's mean probabilities P_e count with its
// share. The losses of the ranks then sum to what one rank with all these rows has, and so do gradients (f_e
// is a constant in them).
//
// Only counts are exchanged: those of all layers of a microbatch in one all-reduce, which runs beside the
// head; nothing of it is needed before the loss. The model calls the axis at fixed places; NULL: each rank
// has the statistics of its own rows.
#ifndef PTB_STRATEGIES_EXPERT_BALANCE_H
#define PTB_STRATEGIES_EXPERT_BALANCE_H

#include "strategies/lane.h"
#include "strategies/transformer/kernels.h"
#include "strategies/transformer/layout.h"

typedef struct {
    ptb_lane *lane; // over the ranks that have other rows; outlives the axis
    const ptb_kernels *kernels;
    const ptb_layout *layout;
    int ranks;   // of the lane
    int slots;   // microbatches whose activations are held at once
    size_t rows; // N, of a microbatch of a rank
} ptb_balance_env;

typedef struct {
    ptb_balance_env env;
    // From the communicator; layers: those with experts.
    int32_t *counts; /* [slots, layers, experts]: of this rank's rows, from the sum on of all ranks' */
    double *sums;    /* [slots, layers, experts]: of this rank's probabilities */
} ptb_balance_axis;

// USAGE, logged with the arithmetic, when the ranks' choices are more than are counted. lane is not read.
ptb_status ptb_balance_axis_check(const ptb_balance_env *env);
// Collective over the lane; all ranks return the same status.
ptb_status ptb_balance_axis_open(const ptb_balance_env *env, ptb_balance_axis **axis);
void ptb_balance_axis_close(ptb_balance_axis *axis); // collective, streams idle; NULL is allowed
// Bytes that open will allocate, added by category: 12 a slot, layer and expert, all of communication. lane
// is not read.
void ptb_balance_axis_memory(const ptb_balance_env *env, uint64_t bytes[PTB_MEMORY_COUNT]);

// Where compute puts a layer's counts and sums, and where it finds the counts of all ranks when the loss has
// been taken. block: of the model, one with experts.
int32_t *ptb_balance_axis_counts(const ptb_balance_axis *axis, int slot, size_t block); /* [experts] */
double *ptb_balance_axis_sums(const ptb_balance_axis *axis, int slot, size_t block);    /* [experts] */
// Begins to sum the counts of a microbatch, which compute has written by now.
ptb_status ptb_balance_axis_begin(ptb_balance_axis *axis, int slot);
// *loss += share * the layers' balance losses; compute waits for the sums. share: of this rank's microbatch
// in the global batch.
ptb_status ptb_balance_axis_take(ptb_balance_axis *axis, int slot, double share, double *loss);

#endif
