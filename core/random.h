// Counter-based random numbers: the value at (seed, stream, index) needs no state, so any sharding draws the
// same numbers. The mixer is splitmix64's finaliser (Steele, Lea, Flood, OOPSLA 2014) applied twice.
#ifndef PTB_CORE_RANDOM_H
#define PTB_CORE_RANDOM_H

#include "core/host_device.h"

#include <stddef.h>
#include <stdint.h>

PTB_HOST_DEVICE static inline uint64_t ptb_random_mix(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

// 64 uniform bits for the triple.
PTB_HOST_DEVICE static inline uint64_t ptb_random_u64(uint64_t seed, uint64_t stream, uint64_t index)
{
    uint64_t key = ptb_random_mix(seed + 0x9e3779b97f4a7c15u * (stream + 1));
    return ptb_random_mix(key + 0x9e3779b97f4a7c15u * (index + 1));
}

// Uniform in [0, 1), 53 bits.
PTB_HOST_DEVICE static inline double ptb_random_uniform(uint64_t seed, uint64_t stream, uint64_t index)
{
    return (double)(ptb_random_u64(seed, stream, index) >> 11) * 0x1p-53;
}

// Standard normal (Box-Muller on two uniforms of the counter 2*index, 2*index+1).
double ptb_random_normal(uint64_t seed, uint64_t stream, uint64_t index);
// out[i] = (float)ptb_random_normal(seed, stream, first + i), to the bit, at some nanoseconds a number.
void ptb_random_normals(uint64_t seed, uint64_t stream, uint64_t first, size_t count, float *out);

#endif
