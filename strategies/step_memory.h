// What training steps held in memory: the ledger's peak of each category on each rank beside the prediction,
// and, as a check on the ledger itself, what the process grew by.
#ifndef PTB_STRATEGIES_STEP_MEMORY_H
#define PTB_STRATEGIES_STEP_MEMORY_H

#include "core/bench.h"
#include "strategies/trainer.h"

// Series: one a category, and their sum.
enum { PTB_STEP_MEMORY_SERIES = PTB_MEMORY_COUNT + 1 };

typedef struct {
    uint64_t resident_before;                // before the case allocated anything; UINT64_MAX: unknown
    uint64_t predicted[PTB_MEMORY_COUNT];    // a rank
    double *by_rank[PTB_STEP_MEMORY_SERIES]; // [ranks] each; NULL until ptb_step_memory_metrics
    char names[PTB_STEP_MEMORY_SERIES][32];  // of the series
    size_t ranks;
    int fullest; // rank with the largest sum
} ptb_step_memory;

// USAGE, logged, for sizes that would overflow; what is merely larger than the machine is skipped later, with
// the figures.
ptb_status ptb_step_check_magnitude(const ptb_layout *layout, int64_t batch, int ranks);
// Before the trainer of a case is made.
void ptb_step_memory_begin(ptb_step_memory *memory);
// After the steps: gathers the peaks of all ranks and adds metrics (the category's largest over ranks,
// predicted, ratio). Collective.
ptb_status ptb_step_memory_metrics(ptb_step_memory *memory, const ptb_trainer *trainer, ptb_metrics *metrics);
// Series i < PTB_STEP_MEMORY_SERIES: bytes by rank.
ptb_series ptb_step_memory_series(const ptb_step_memory *memory, size_t i);
void ptb_step_memory_release(ptb_step_memory *memory);

#endif
