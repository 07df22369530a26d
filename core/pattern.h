// The verification pattern: what every rank puts into its buffers and what must come out, computable for any
// element alone in O(1), for any number of ranks, and exactly representable in every element type and at
// every partial result, so that a check is for equality and no order of summation matters.
//
// Data that is only moved is a hash of (seed, rank, index), so a wrong rank or a wrong place shows.
// Data that is reduced is  s(index) * w((rank + h(index)) mod ranks): w is a fixed cycle of small numbers, h
// a hash that rotates it, s a sign (signed types, sum/min/max/avg). Over all ranks the cycle is complete, so
// its sum, product, minimum and maximum are constants of (type, op, ranks); a missing, doubled or misplaced
// contribution changes the result.
#ifndef PTB_CORE_PATTERN_H
#define PTB_CORE_PATTERN_H

#include "core/dtype.h"

typedef struct {
    uint64_t seed;
    ptb_dtype dtype;
    ptb_redop op;
    int ranks;
    // Constants of (dtype, op, ranks), set by init.
    double reduced; // the op over the whole cycle w (AVG: the sum divided by ranks)
    double low;     // minimum of the cycle, for MIN and MAX under a negative sign
    double high;
    int active; // number of ranks whose w differs from the neutral element
} ptb_pattern;

// What a run of consecutive elements must hold.
typedef enum {
    PTB_EXPECT_COPY,    // element k holds pattern_moved(source_rank, source_index + k)
    PTB_EXPECT_REDUCED, // element k holds pattern_reduced(source_index + k)
    PTB_EXPECT_INPUT,   // element k holds pattern_input(source_rank, source_index + k)
    PTB_EXPECT_POISON,  // untouched since it was poisoned
} ptb_expect_kind;

typedef struct {
    ptb_expect_kind kind;
    size_t first, count; // place in the buffer, elements
    int source_rank;     // COPY, INPUT
    size_t source_index; // COPY, INPUT, REDUCED
} ptb_expect;

void ptb_pattern_init(ptb_pattern *pattern, uint64_t seed, ptb_dtype dtype, ptb_redop op, int ranks);
double ptb_pattern_moved(const ptb_pattern *pattern, int rank, size_t index);
double ptb_pattern_input(const ptb_pattern *pattern, int rank,
                         size_t index); // a rank's contribution to a reduction
double ptb_pattern_reduced(const ptb_pattern *pattern, size_t index);

// Host memory. Fill buffer[0, count) with pattern elements first, first+1, ...; `reduced` chooses input over
// moved.
void ptb_pattern_fill(const ptb_pattern *pattern, bool reduced, int rank, size_t first, void *buffer,
                      size_t count);
// Every byte 0xA5.
void ptb_pattern_poison(void *buffer, size_t bytes);

typedef struct {
    uint64_t checked, wrong;
    uint64_t first_wrong; // element index in the buffer, when wrong > 0
    double wanted, got;
} ptb_check;
// Checks buffer (element 0 = buffer start) against one expectation and adds to *check.
void ptb_pattern_check(const ptb_pattern *pattern, const ptb_expect *expect, const void *buffer,
                       ptb_check *check);

#endif
