// Overlap analysis: how much communication compute hides, from the spans of one rank. Everything is measured
// on unions of intervals, by the definitions of Holistic Trace Analysis:
//   C = union of communication, K = union of compute (the optimizer is compute),
//   overlap = |C and K| / |C|, exposed = |C| - |C and K|,
//   span = last end - first begin of device work, idle = span - |union of device work|.
// Device work is compute, optimizer, communication and copies. Waiting for input, a host that waits and the
// frame of a step are neither compute nor device work.
#ifndef PTB_PROFILER_OVERLAP_H
#define PTB_PROFILER_OVERLAP_H

#include "core/trace.h"

#include <stdbool.h>

enum { PTB_AXIS_COUNT = 6 }; // ptb_span.axis: 0 none, 1 dp, 2 tp, 3 pp, 4 cp, 5 ep

// Which spans count. Zeroed: all.
typedef struct {
    bool one_rank;
    int32_t rank;
    bool one_correlation; // spans of one step only
    uint64_t correlation;
} ptb_overlap_filter;

// Communication of one phase or one axis. overlapped + exposed = communication.
typedef struct {
    int64_t communication_ns, overlapped_ns, exposed_ns;
} ptb_overlap_part;

typedef struct {
    size_t spans; // that counted
    int64_t communication_ns, compute_ns;
    int64_t overlapped_ns, exposed_ns; // of the communication
    double overlap;                    // fraction 0..1; NAN when there was no communication
    int64_t span_ns, busy_ns, idle_ns; // busy + idle = span
    int64_t optimizer_ns;              // union of optimizer spans alone
    int64_t input_ns;                  // waiting for data
    int64_t input_exposed_ns;          // of it, while neither compute nor communication ran
    int64_t accounted_ns;              // union of compute, communication and input
    int64_t step_ns;                   // union of the frames; 0 when none was recorded
    int64_t phase_compute_ns[PTB_PHASE_COUNT];
    ptb_overlap_part phase[PTB_PHASE_COUNT]; // by the phase that the communication was recorded under
    ptb_overlap_part axis[PTB_AXIS_COUNT];   // axes beyond the last known one count as 0
} ptb_overlap;

// Analyses spans[count], in any order; a span with end < begin is a defect and makes it return INTERNAL.
// NO_MEMORY when the scratch for sorting cannot be had (32 bytes a span).
ptb_status ptb_overlap_measure(const ptb_span *spans, size_t count, const ptb_overlap_filter *filter,
                               ptb_overlap *overlap);

#endif
