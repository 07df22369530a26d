// What is benchmarked: one descriptor a collective gives the shapes of its buffers, its bus-bandwidth factor
// and what every element must be afterwards. Add one by adding collectives/X.c.
#ifndef PTB_COLLECTIVES_COLLECTIVE_H
#define PTB_COLLECTIVES_COLLECTIVE_H

#include "collectives/comm.h"
#include "core/pattern.h"

// Buffers of one rank, in elements.
typedef struct {
    size_t send_count, recv_count;
    // In place: one buffer of in_place_count elements; send and recv point at these element offsets in it.
    size_t in_place_count, in_place_send, in_place_recv;
} ptb_coll_shape;

typedef struct {
    ptb_plugin plugin;
    ptb_coll_kind kind;
    bool reduces;  // takes an operation
    bool rooted;   // takes a root
    bool has_data; // false: barrier
    bool in_place; // an in-place form exists
    // In place the call overwrites its own input, so that a repetition needs the buffer filled again.
    bool in_place_changes_input;
    // Buffer sizes on `rank` of n for a vector of `count` elements.
    void (*shape)(size_t count, int n, int rank, int root, ptb_coll_shape *shape);
    // busbw = algbw x factor, algbw = S / t (nccl-tests doc/PERFORMANCE.md).
    double (*bus_factor)(int n);
    // S in bytes as FACTS.md defines it.
    uint64_t (*size_bytes)(size_t count, size_t element_bytes, int n);
    // i-th run of expected elements of the receive buffer (element 0 = start of recv); false past the last.
    bool (*expect)(size_t count, int n, int rank, int root, size_t i, ptb_expect *expect);
    // Only where the counts of pairs differ (all_to_all_v): fills four arrays of n, in elements. NULL
    // elsewhere.
    void (*counts)(size_t count, int n, int rank, size_t *send_counts, size_t *send_first,
                   size_t *recv_counts, size_t *recv_first);
} ptb_collective;

// S = count x element size, for every collective under comm.h's counting convention.
static inline uint64_t ptb_coll_size_bytes(size_t count, size_t element_bytes, int n)
{
    (void)n;
    return (uint64_t)count * element_bytes;
}
// (n-1)/n and 1: the factors that several collectives share.
static inline double ptb_coll_factor_part(int n)
{
    return (double)(n - 1) / n;
}
static inline double ptb_coll_factor_one(int n)
{
    (void)n;
    return 1;
}

#endif
