// The index space cut into segments: ranges of one reduction group, each reduced or gathered in one call. A
// segment is cut over the `shard` ranks of its group into blocks (collectives/comm.h), one of which is this
// rank's own, as Megatron-LM's distributed optimizer cuts its buckets.
#ifndef PTB_STRATEGIES_DATA_SEGMENT_H
#define PTB_STRATEGIES_DATA_SEGMENT_H

#include "strategies/data/data.h"

// BUCKETS: of at most bucket_bytes, across units. UNITS: a segment for each unit, or for each group of it
// where groups are reduced over different ranks.
typedef enum { PTB_SEGMENT_BUCKETS, PTB_SEGMENT_UNITS } ptb_segment_kind;

typedef struct {
    size_t first, count; // of the index space
    ptb_reduction_group group;
    ptb_range own; // of this rank: a range of the index space
    size_t at;     // of its own part in arrays of own parts alone
} ptb_segment;

typedef struct {
    ptb_segment *item; // in order of use in backward: from the end of the index space
    size_t count;
    size_t own;     // elements of arrays of own parts: the same on all ranks, rounded up to cache lines
    size_t largest; // elements of the largest segment
} ptb_segments;

// NO_MEMORY, logged.
ptb_status ptb_segments_init(ptb_segments *segments, const ptb_data_env *env, ptb_segment_kind kind);
void ptb_segments_release(ptb_segments *segments); // zeroed ones are allowed
// The sums alone, without memory; items stay NULL.
ptb_segments ptb_segments_measure(const ptb_data_env *env, ptb_segment_kind kind);

#endif
