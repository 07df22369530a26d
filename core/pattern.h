// The verification pattern: what every rank puts into its buffers and what must come out, computable for any
// element alone in O(1), for any number of ranks, and exactly representable in every element type and at
// every partial result, so that a check is for equality and no order of summation matters.
//
// Data that is only moved is a hash of (seed, rank, index), so a wrong rank or a wrong place shows: values of
// different ranks at one index always differ (as long as the type has as many values as there are ranks),
// values of neighbouring indices differ but for one chance in the number of values (256 for i8 and u8, 512
// for bf16). Data that is reduced is  s(index) * w((rank + h(index)) mod ranks): w is a fixed cycle of small
// numbers, h a hash that rotates it, s a sign (signed types, sum/min/max/avg). Over all ranks the cycle is
// complete, so its sum, product, minimum and maximum are constants of (type, op, ranks); a missing, doubled
// or misplaced contribution changes the result (of enough elements: where the number of ranks exceeds what a
// type can count, or for min and max, most ranks are neutral at a given index, and the hash moves the others
// around).
//
// The cycles, for position j of n = ranks:
//   sum, avg   centre - d for even j, centre + d for odd j, d = 1 + (j/2 & mask): each pair sums to 2 centre,
//   so
//              the sum is n * centre, which n divides. Where n exceeds the integers that a type counts
//              exactly: sum: 1 for the first `active` positions, else 0; avg: -1, +1, ... there, which sums
//              to 0 (u8: 0).
//   prod       4 (negative in signed types), then 2 while the product stays in the type, then 1.
//   min, max   1 once, 100 once, between them 2..65.
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
    // The cycle of sum and avg.
    int centre, pairs; // pairs: how many of them differ from the centre
    unsigned mask;
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

// ranks: 1 to 65535.
void ptb_pattern_init(ptb_pattern *pattern, uint64_t seed, ptb_dtype dtype, ptb_redop op, int ranks);
double ptb_pattern_moved(const ptb_pattern *pattern, int rank, size_t index);
double ptb_pattern_input(const ptb_pattern *pattern, int rank,
                         size_t index); // a rank's contribution to a reduction
double ptb_pattern_reduced(const ptb_pattern *pattern, size_t index);

// What element `at` of a run of elements must hold, as a number.
double ptb_pattern_wanted(const ptb_pattern *pattern, const ptb_expect *expect, size_t at);

// Host memory. Fill buffer[0, count) with pattern elements first, first+1, ...; `reduced` chooses input over
// moved.
void ptb_pattern_fill(const ptb_pattern *pattern, bool reduced, int rank, size_t first, void *buffer,
                      size_t count);
enum { PTB_PATTERN_POISON = 0xA5 }; // every byte of what a call must write, or must not touch
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
