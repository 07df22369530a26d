// Which elements dropout keeps: one definition for all kernels and for references in tests. Counter-based:
// the draw at (seed, row, column) needs no state, so any sharding of rows, columns or heads draws the same
// mask. A key is made once a row; the draw of a column is 32-bit arithmetic only, which compilers vectorise.
#ifndef PTB_STRATEGIES_TRANSFORMER_DROPOUT_H
#define PTB_STRATEGIES_TRANSFORMER_DROPOUT_H

#include "core/random.h"

#include <stdint.h>

// Key of a row: `row` is its number in the global batch, (sequence * length of a sequence + position).
PTB_HOST_DEVICE static inline uint64_t ptb_dropout_key(uint64_t seed, uint64_t row)
{
    return ptb_random_u64(seed, 0x64726f70, row); // "drop": a stream of its own
}

// x: a column number, as uint32_t or as a vector of uint32_t; becomes its draw in the row with this key. The
// mixer is a bijection of 32 bits with two multiplications, in the manner of MurmurHash3's finaliser
// (constants: Wellons, "Prospecting for hash functions", 2018); the halves of the key enter before either of
// them.
#define PTB_DROPOUT_MIX(x, key)                                                                              \
    do {                                                                                                     \
        (x) += (uint32_t)(key);                                                                              \
        (x) ^= (x) >> 16;                                                                                    \
        (x) *= 0x7feb352du;                                                                                  \
        (x) ^= (x) >> 15;                                                                                    \
        (x) += (uint32_t)((key) >> 32);                                                                      \
        (x) *= 0x846ca68bu;                                                                                  \
        (x) ^= (x) >> 16;                                                                                    \
    } while (0)

// 32 uniform bits for a column of the row with this key.
PTB_HOST_DEVICE static inline uint32_t ptb_dropout_draw(uint64_t key, uint32_t column)
{
    PTB_DROPOUT_MIX(column, key);
    return column;
}

// An element is kept when its draw is at least this; rate in [0, 1).
PTB_HOST_DEVICE static inline uint32_t ptb_dropout_threshold(float rate)
{
    return (uint32_t)((double)rate * 0x1p32);
}

// What kept elements are multiplied by.
PTB_HOST_DEVICE static inline float ptb_dropout_scale(float rate)
{
    return 1 / (1 - rate);
}

#endif
