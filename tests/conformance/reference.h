// What collectives must give, computed by brute force: the inputs are the pattern's values element by
// element, results are sequential loops in double or 64-bit integers over all ranks, and partitions are
// counted out here again. Nothing of the closed forms that ptbench checks with is used.
#ifndef PTB_TESTS_CONFORMANCE_REFERENCE_H
#define PTB_TESTS_CONFORMANCE_REFERENCE_H

#include "collectives/comm.h"
#include "core/pattern.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { REFERENCE_RANKS = 8, REFERENCE_COUNT = 65536 + 3 };

// Inputs and results of a world of n ranks, for vectors of up to REFERENCE_COUNT elements. Built when first
// asked for and kept, since they serve all algorithms.
typedef struct {
    int n, me;
    uint64_t seed;
    // What rank r puts in where data is moved; what this rank puts in where it is reduced, and the result.
    char *moved[PTB_DTYPE_COUNT][REFERENCE_RANKS];
    char *input[PTB_DTYPE_COUNT][PTB_REDOP_COUNT];
    char *reduced[PTB_DTYPE_COUNT][PTB_REDOP_COUNT];
} reference;

static double naive_float(ptb_redop op, double a, double b)
{
    switch (op) {
    case PTB_PROD:
        return a * b;
    case PTB_MIN:
        return b < a ? b : a;
    case PTB_MAX:
        return b > a ? b : a;
    default:
        return a + b;
    }
}

static int64_t naive_int(ptb_redop op, int64_t a, int64_t b)
{
    switch (op) {
    case PTB_PROD:
        return (int64_t)((uint64_t)a * (uint64_t)b);
    case PTB_MIN:
        return b < a ? b : a;
    case PTB_MAX:
        return b > a ? b : a;
    default:
        return a + b;
    }
}

// Element k of the reduction over all ranks, one rank after the other.
static double naive_reduce(const ptb_pattern *pattern, size_t k)
{
    double value = ptb_pattern_input(pattern, 0, k);
    int64_t whole = (int64_t)value;
    for (int r = 1; r < pattern->ranks; r++) {
        double next = ptb_pattern_input(pattern, r, k);
        value = naive_float(pattern->op, value, next);
        whole = naive_int(pattern->op, whole, (int64_t)next);
    }
    if (pattern->op == PTB_AVG) {
        value /= pattern->ranks;
        whole /= pattern->ranks;
    }
    return ptb_dtype_is_float(pattern->dtype) ? value : (double)whole;
}

static inline void reference_init(reference *ref, uint64_t seed, int n, int me)
{
    *ref = (reference){.n = n, .me = me, .seed = seed};
}

static inline void reference_release(reference *ref)
{
    for (int type = 0; type < PTB_DTYPE_COUNT; type++) {
        for (int r = 0; r < REFERENCE_RANKS; r++)
            free(ref->moved[type][r]);
        for (int op = 0; op < PTB_REDOP_COUNT; op++) {
            free(ref->input[type][op]);
            free(ref->reduced[type][op]);
        }
    }
}

static inline void reference_build_moved(reference *ref, ptb_dtype type)
{
    if (ref->moved[type][0])
        return;
    ptb_pattern pattern;
    size_t element = ptb_dtype_size(type);
    ptb_pattern_init(&pattern, ref->seed, type, PTB_SUM, ref->n);
    for (int r = 0; r < ref->n; r++) {
        char *values = ref->moved[type][r] = malloc(REFERENCE_COUNT * element);
        for (size_t k = 0; k < REFERENCE_COUNT; k++)
            ptb_dtype_store(type, values + k * element, ptb_pattern_moved(&pattern, r, k));
    }
}

static inline void reference_build_reduced(reference *ref, ptb_dtype type, ptb_redop op)
{
    if (ref->reduced[type][op])
        return;
    ptb_pattern pattern;
    size_t element = ptb_dtype_size(type);
    ptb_pattern_init(&pattern, ref->seed, type, op, ref->n);
    char *input = ref->input[type][op] = malloc(REFERENCE_COUNT * element);
    char *reduced = ref->reduced[type][op] = malloc(REFERENCE_COUNT * element);
    for (size_t k = 0; k < REFERENCE_COUNT; k++) {
        ptb_dtype_store(type, input + k * element, ptb_pattern_input(&pattern, ref->me, k));
        ptb_dtype_store(type, reduced + k * element, naive_reduce(&pattern, k));
    }
}

// Part of rank r when `count` is dealt to n ranks, the first ones getting one more: where it starts and its
// length.
static inline size_t part_length(size_t count, int n, int r)
{
    return count / (size_t)n + ((size_t)r < count % (size_t)n ? 1 : 0);
}

static inline size_t part_start(size_t count, int n, int r)
{
    size_t at = 0;
    for (int q = 0; q < r; q++)
        at += part_length(count, n, q);
    return at;
}

// The test's own matrix for all-to-all-v: with empty parts; symmetric for in-place calls, else not.
static inline size_t pair_length(size_t count, int n, int from, int to, bool in_place)
{
    int weight = in_place ? (from + to) % 4 : (from * 5 + to * 3 + 1) % 4;
    return count * (size_t)weight / (4 * (size_t)n);
}

// Elements a rank puts in, and whether they are the reduction's input.
static inline size_t input_length(const ptb_coll *call, int n, int me, bool in_place)
{
    size_t sum = 0;
    switch (call->kind) {
    case PTB_ALL_GATHER:
    case PTB_GATHER:
        return part_length(call->count, n, me);
    case PTB_BROADCAST:
    case PTB_SCATTER:
        return me == call->root ? call->count : 0;
    case PTB_ALL_TO_ALL_V:
        for (int p = 0; p < n; p++)
            sum += pair_length(call->count, n, me, p, in_place);
        return sum;
    case PTB_BARRIER:
        return 0;
    default:
        return call->count;
    }
}

static inline bool is_reduction(ptb_coll_kind kind)
{
    return kind == PTB_ALL_REDUCE || kind == PTB_REDUCE_SCATTER || kind == PTB_REDUCE;
}

// What this rank puts into the call.
static inline const char *input_values(reference *ref, const ptb_coll *call)
{
    if (is_reduction(call->kind)) {
        reference_build_reduced(ref, call->dtype, call->op);
        return ref->input[call->dtype][call->op];
    }
    reference_build_moved(ref, call->dtype);
    return ref->moved[call->dtype][ref->me];
}

// Copies elements [first, first + count) of `from` behind the `at` elements that `want` holds; the new
// length.
static inline size_t put(const ptb_coll *call, char *want, size_t at, const char *from, size_t first,
                         size_t count)
{
    size_t element = ptb_dtype_size(call->dtype);
    memcpy(want + at * element, from + first * element, count * element);
    return at + count;
}

static inline size_t want_exchange(const reference *ref, const ptb_coll *call, bool in_place, char *want)
{
    size_t at = 0, count = call->count;
    int n = ref->n, me = ref->me;
    for (int from = 0; from < n; from++) {
        size_t first = 0, length = part_length(count, n, me);
        if (call->kind == PTB_ALL_TO_ALL) {
            first = part_start(count, n, me);
        } else {
            for (int p = 0; p < me; p++)
                first += pair_length(count, n, from, p, in_place);
            length = pair_length(count, n, from, me, in_place);
        }
        at = put(call, want, at, ref->moved[call->dtype][from], first, length);
    }
    return at;
}

// Writes what the receive buffer of this rank must hold and returns its elements. After input_values.
static inline size_t want_result(const reference *ref, const ptb_coll *call, bool in_place, char *want)
{
    size_t count = call->count, at = 0;
    int n = ref->n, me = ref->me;
    const char *reduced = ref->reduced[call->dtype][call->op];
    char *const *moved = ref->moved[call->dtype];
    switch (call->kind) {
    case PTB_ALL_REDUCE:
        return put(call, want, 0, reduced, 0, count);
    case PTB_REDUCE:
        return me == call->root ? put(call, want, 0, reduced, 0, count) : 0;
    case PTB_REDUCE_SCATTER:
        return put(call, want, 0, reduced, part_start(count, n, me), part_length(count, n, me));
    case PTB_BROADCAST:
        return put(call, want, 0, moved[call->root], 0, count);
    case PTB_SCATTER:
        return put(call, want, 0, moved[call->root], part_start(count, n, me), part_length(count, n, me));
    case PTB_ALL_GATHER:
    case PTB_GATHER:
        for (int r = 0; r < n && (call->kind == PTB_ALL_GATHER || me == call->root); r++)
            at = put(call, want, at, moved[r], 0, part_length(count, n, r));
        return at;
    case PTB_ALL_TO_ALL:
    case PTB_ALL_TO_ALL_V:
        return want_exchange(ref, call, in_place, want);
    default:
        return 0;
    }
}

#endif
