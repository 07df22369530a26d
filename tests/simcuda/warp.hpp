// The operations of a warp: shuffles, votes, matches, reductions.
#ifndef PTB_SIMCUDA_WARP_HPP
#define PTB_SIMCUDA_WARP_HPP

#include "tests/simcuda/fibers.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <string.h>
#include <type_traits>

static inline void __syncwarp(unsigned mask = 0xffffffffu)
{
    sim_warp_sync(mask);
}
static inline unsigned __activemask(void)
{
    return sim_warp_live();
}

// all[i] becomes what lane i passed; a lane that takes no part gives bytes of 0xff.
template <class T> struct sim_gathering {
    T mine, *all;
    static void run(void *const lanes[SIM_WARP])
    {
        T all[SIM_WARP];
        memset((void *)all, 0xff, sizeof all);
        for (int i = 0; i < SIM_WARP; i++)
            if (lanes[i])
                all[i] = ((sim_gathering *)lanes[i])->mine;
        for (int i = 0; i < SIM_WARP; i++)
            if (lanes[i])
                memcpy((void *)((sim_gathering *)lanes[i])->all, (const void *)all, sizeof all);
    }
};
template <class T>
static inline void sim_warp_gather(const T &mine, T all[SIM_WARP], unsigned mask = 0xffffffffu)
{
    sim_gathering<T> gathering = {mine, all};
    sim_warp_run(mask, sim_gathering<T>::run, &gathering);
}

// A value from another lane. A lane that is not in the operation gives bytes of 0xff (undefined on a GPU).
template <class T> struct sim_shuffle {
    T value, result;
    unsigned source;
    static void run(void *const lanes[SIM_WARP])
    {
        for (int i = 0; i < SIM_WARP; i++) {
            sim_shuffle *to = (sim_shuffle *)lanes[i];
            if (!to)
                continue;
            const sim_shuffle *from = (const sim_shuffle *)lanes[to->source];
            if (from)
                to->result = from->value;
            else
                memset((void *)&to->result, 0xff, sizeof(T));
        }
    }
};
template <class T> static inline T sim_shuffle_from(unsigned mask, T value, unsigned source)
{
    static_assert(std::is_arithmetic<T>::value || std::is_same<T, __half>::value ||
                      std::is_same<T, __half2>::value || std::is_same<T, __nv_bfloat16>::value ||
                      std::is_same<T, __nv_bfloat162>::value,
                  "CUDA shuffles arithmetic types only");
    static_assert(sizeof(T) >= 2, "CUDA shuffles no bytes");
    sim_shuffle<T> shuffle = {value, value, source};
    sim_warp_run(mask, sim_shuffle<T>::run, &shuffle);
    return shuffle.result;
}
template <class T> static inline T __shfl_sync(unsigned mask, T value, int source, int width = SIM_WARP)
{
    const unsigned lane = sim_lane();
    return sim_shuffle_from(mask, value,
                            (lane & ~(unsigned)(width - 1)) + ((unsigned)source & (unsigned)(width - 1)));
}
template <class T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = SIM_WARP)
{
    const unsigned lane = sim_lane();
    return sim_shuffle_from(mask, value, (lane & (unsigned)(width - 1)) < delta ? lane : lane - delta);
}
template <class T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = SIM_WARP)
{
    const unsigned lane = sim_lane();
    return sim_shuffle_from(mask, value,
                            (lane & (unsigned)(width - 1)) + delta >= (unsigned)width ? lane : lane + delta);
}
template <class T> static inline T __shfl_xor_sync(unsigned mask, T value, int with, int width = SIM_WARP)
{
    const unsigned lane = sim_lane(), source = lane ^ (unsigned)with;
    return sim_shuffle_from(mask, value, source > (lane | (unsigned)(width - 1)) ? lane : source);
}

struct sim_vote {
    int predicate;
    unsigned ballot;
    static void run(void *const lanes[SIM_WARP])
    {
        unsigned ballot = 0;
        for (int i = 0; i < SIM_WARP; i++)
            if (lanes[i] && ((const sim_vote *)lanes[i])->predicate)
                ballot |= 1u << i;
        for (int i = 0; i < SIM_WARP; i++)
            if (lanes[i])
                ((sim_vote *)lanes[i])->ballot = ballot;
    }
};
static inline unsigned __ballot_sync(unsigned mask, int predicate)
{
    sim_vote vote = {predicate, 0};
    sim_warp_run(mask, sim_vote::run, &vote);
    return vote.ballot;
}
static inline int __any_sync(unsigned mask, int predicate)
{
    return __ballot_sync(mask, predicate) != 0;
}
static inline int __all_sync(unsigned mask, int predicate)
{
    return __ballot_sync(mask, !predicate) == 0;
}

template <class T> struct sim_match {
    T value;
    unsigned same, taking_part;
    static void run(void *const lanes[SIM_WARP])
    {
        for (int i = 0; i < SIM_WARP; i++) {
            sim_match *to = (sim_match *)lanes[i];
            for (int j = 0; to && j < SIM_WARP; j++) {
                const sim_match *from = (const sim_match *)lanes[j];
                to->taking_part |= from ? 1u << j : 0;
                to->same |= from && !memcmp(&from->value, &to->value, sizeof(T)) ? 1u << j : 0;
            }
        }
    }
};
template <class T> static inline unsigned __match_any_sync(unsigned mask, T value)
{
    sim_match<T> match = {value, 0, 0};
    sim_warp_run(mask, sim_match<T>::run, &match);
    return match.same;
}
template <class T> static inline unsigned __match_all_sync(unsigned mask, T value, int *all)
{
    sim_match<T> match = {value, 0, 0};
    sim_warp_run(mask, sim_match<T>::run, &match);
    *all = match.same == match.taking_part;
    return *all ? match.same : 0;
}

// Reductions of a warp in one instruction (sm_80): 32-bit integers.
#define SIM_WARP_REDUCTION(name, expression)                                                                 \
    template <class T> struct sim_reduce_##name {                                                            \
        T value;                                                                                             \
        static void run(void *const lanes[SIM_WARP])                                                         \
        {                                                                                                    \
            bool any = false;                                                                                \
            T a = 0;                                                                                         \
            for (int i = 0; i < SIM_WARP; i++)                                                               \
                if (lanes[i]) {                                                                              \
                    const T b = ((const sim_reduce_##name *)lanes[i])->value;                                \
                    a = any ? (expression) : b;                                                              \
                    any = true;                                                                              \
                }                                                                                            \
            for (int i = 0; i < SIM_WARP; i++)                                                               \
                if (lanes[i])                                                                                \
                    ((sim_reduce_##name *)lanes[i])->value = a;                                              \
        }                                                                                                    \
    };                                                                                                       \
    template <class T> static inline T __reduce_##name##_sync(unsigned mask, T value)                        \
    {                                                                                                        \
        static_assert(std::is_integral<T>::value && sizeof(T) == 4, "CUDA reduces int and unsigned");        \
        sim_reduce_##name<T> reduction = {value};                                                            \
        sim_warp_run(mask, sim_reduce_##name<T>::run, &reduction);                                           \
        return reduction.value;                                                                              \
    }
SIM_WARP_REDUCTION(add, a + b)
SIM_WARP_REDUCTION(min, a < b ? a : b)
SIM_WARP_REDUCTION(max, a > b ? a : b)
SIM_WARP_REDUCTION(and, a &b)
SIM_WARP_REDUCTION(or, a | b)
SIM_WARP_REDUCTION(xor, a ^ b)
#undef SIM_WARP_REDUCTION

#endif
