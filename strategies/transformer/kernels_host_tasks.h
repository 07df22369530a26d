// How row and elementwise kernels of the host are cut into tasks, and how one body serves all types.
//
// Borders of tasks depend on shapes, never on the number of threads, wherever sums cross them: a result is
// the same, bit by bit, for any number of threads.
#ifndef PTB_STRATEGIES_TRANSFORMER_KERNELS_HOST_TASKS_H
#define PTB_STRATEGIES_TRANSFORMER_KERNELS_HOST_TASKS_H

#include "strategies/transformer/kernels_host.h"
#include "strategies/transformer/kernels_host_vector.h"

enum {
    PTB_HOST_CHUNK = 4096,   // elements of an elementwise task; a multiple of vectors and cache lines
    PTB_HOST_SERIAL = 16384, // elements up to which waking other threads costs more than it saves
};

// Calls fn(type, ...) with a constant type, so that an inlined fn is compiled once a type.
#define PTB_HOST_TYPED(fn, type, ...)                                                                        \
    do {                                                                                                     \
        switch (type) {                                                                                      \
        case PTB_BF16:                                                                                       \
            fn(PTB_BF16, __VA_ARGS__);                                                                       \
            break;                                                                                           \
        case PTB_F16:                                                                                        \
            fn(PTB_F16, __VA_ARGS__);                                                                        \
            break;                                                                                           \
        default:                                                                                             \
            fn(PTB_F32, __VA_ARGS__);                                                                        \
        }                                                                                                    \
    } while (0)

// A body that PTB_HOST_TYPED calls.
#define PTB_HOST_BODY PTB_INLINE void

// The first n lanes of a, 0 in the others.
PTB_INLINE ptb_vec ptb_host_first_lanes(ptb_vec a, size_t n)
{
    return ptb_vec_select(ptb_vec_iota() < ptb_vec_int_set((int32_t)n), a, ptb_vec_set(0));
}

static inline size_t ptb_host_least(size_t a, size_t b)
{
    return a < b ? a : b;
}

static inline size_t ptb_host_round_up(size_t a, size_t unit)
{
    return (a + unit - 1) / unit * unit;
}

#endif
