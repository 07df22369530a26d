// Atomic operations of kernels. Two streams may run kernels at the same time, so they are atomic for the host
// too.
#ifndef PTB_SIMCUDA_ATOMICS_HPP
#define PTB_SIMCUDA_ATOMICS_HPP

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <stdint.h>
#include <string.h>
#include <type_traits>

// The unsigned integer of a type's size, which is what is exchanged.
template <size_t> struct sim_word;
template <> struct sim_word<2> {
    typedef uint16_t type;
};
template <> struct sim_word<4> {
    typedef uint32_t type;
};
template <> struct sim_word<8> {
    typedef uint64_t type;
};

// *address = change(*address), whole; gives what was there.
template <class T, class Change> static inline T sim_atomic(T *address, Change change)
{
    typedef typename sim_word<sizeof(T)>::type word;
    word *at = (word *)address, before = __atomic_load_n(at, __ATOMIC_RELAXED), after;
    T old;
    do {
        memcpy((void *)&old, &before, sizeof old);
        const T changed = change(old);
        memcpy(&after, (const void *)&changed, sizeof after);
    } while (!__atomic_compare_exchange_n(at, &before, after, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return old;
}

// The value has a type that is not deduced, so that atomicAdd(unsigned *, 1) works.
template <class T> struct sim_same {
    typedef T type;
};
#define SIM_ATOMIC(name, expression)                                                                         \
    template <class T> static inline T name(T *address, typename sim_same<T>::type value)                    \
    {                                                                                                        \
        return sim_atomic(address, [=](T old) -> T { return (expression); });                                \
    }                                                                                                        \
    template <class T> static inline T name##_block(T *address, typename sim_same<T>::type value)            \
    {                                                                                                        \
        return name(address, value);                                                                         \
    }                                                                                                        \
    template <class T> static inline T name##_system(T *address, typename sim_same<T>::type value)           \
    {                                                                                                        \
        return name(address, value);                                                                         \
    }
SIM_ATOMIC(atomicAdd, old + value)
SIM_ATOMIC(atomicSub, old - value)
SIM_ATOMIC(atomicExch, ((void)old, value))
SIM_ATOMIC(atomicMin, value < old ? value : old)
SIM_ATOMIC(atomicMax, value > old ? value : old)
SIM_ATOMIC(atomicAnd, old &value)
SIM_ATOMIC(atomicOr, old | value)
SIM_ATOMIC(atomicXor, old ^ value)
SIM_ATOMIC(atomicInc, old >= value ? 0 : old + 1)
SIM_ATOMIC(atomicDec, old == 0 || old > value ? value : old - 1)
#undef SIM_ATOMIC

template <class T>
static inline T atomicCAS(T *address, typename sim_same<T>::type compare, typename sim_same<T>::type value)
{
    static_assert(std::is_integral<T>::value, "atomicCAS compares integers");
    return sim_atomic(address, [=](T old) -> T { return old == compare ? value : old; });
}

// Two 16-bit values, each atomic for itself.
static inline __half2 atomicAdd(__half2 *address, __half2 value)
{
    return sim_atomic(address, [=](__half2 old) { return __hadd2(old, value); });
}
static inline __nv_bfloat162 atomicAdd(__nv_bfloat162 *address, __nv_bfloat162 value)
{
    return sim_atomic(address, [=](__nv_bfloat162 old) { return __hadd2(old, value); });
}

#endif
