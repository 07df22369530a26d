// The input pipeline: a thread that fills the batches of the coming steps while one is trained, in a ring, so
// that a step finds its batch ready. Nothing is allocated after start.
#ifndef PTB_STRATEGIES_PREFETCH_H
#define PTB_STRATEGIES_PREFETCH_H

#include "core/device.h"
#include "strategies/slices.h"
#include "strategies/tokens.h"

typedef struct ptb_prefetch ptb_prefetch;

typedef struct {
    const ptb_tokens *tokens; // outlives the prefetch
    ptb_device *device;       // batches lie in its host memory (alloc_host), so that copies need not wait
    size_t length;            // tokens of a sequence, as tokens was opened with
    bool pack;                // as tokens was opened with
    uint64_t batch;           // sequences of the global batch
    uint64_t first, mine;     // of each global batch, this rank takes sequences [first, first + mine)
    // Of these sequences the rank has this; rows of each microbatch of `group` sequences are then in order of
    // piece, sequence and position. pieces 0: whole sequences.
    ptb_slices slices;
    uint64_t group;      // divides mine; only read with slices
    uint64_t first_step; // the number of the batch that the first take returns
    size_t depth;        // batches held, the one in use included: PTB_PREFETCH_MIN to _MAX
} ptb_prefetch_config;
enum { PTB_PREFETCH_MIN = 2, PTB_PREFETCH_MAX = 8 };

// This rank's part of the global batch of a step, in host memory; sequence `first` is at the beginning.
// length: of what the rank has of a sequence.
typedef struct {
    const int32_t *inputs;  /* [mine * length] */
    const int32_t *targets; /* [mine * length], -1: not counted */
    const int32_t *start;   /* [mine * length], see ptb_tokens_sequence; NULL without packing */
    uint64_t step;
    uint64_t counted;                   // targets of the whole global batch that count
    bool starved;                       // it was not ready when it was asked for
    int64_t waited_ns;                  // that the call waited for it; 0 unless starved
    int64_t fill_begin_ns, fill_end_ns; // when it was filled (ptb_clock_ns)
} ptb_prefetch_batch;

// Allocates, and starts the thread. NO_MEMORY or SYSTEM, logged. USAGE, logged, when depth is out of range.
ptb_status ptb_prefetch_start(const ptb_prefetch_config *config, ptb_prefetch **prefetch);
// The batch of the next step; waits until it is there. USAGE, logged, where none of its targets counts. Its
// memory is valid until the next take, which hands it to the thread to be filled again: what reads it, copies
// under way included, must be done by then. The status of a fill that failed (logged where it did) is
// returned by the take that wanted its batch and by every later one. One thread at a time may take.
ptb_status ptb_prefetch_take(ptb_prefetch *prefetch, ptb_prefetch_batch *batch);
// Ends the thread, after the batch it is filling, and frees; the device is still open and no copy under way.
// NULL is allowed.
void ptb_prefetch_stop(ptb_prefetch *prefetch);
// Bytes of host memory that start allocates for batches.
size_t ptb_prefetch_bytes(const ptb_prefetch_config *config);

#endif
