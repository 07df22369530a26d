// Functions that CUDA gives every kernel and the C++ library does not: fast and exactly rounded arithmetic,
// bit operations, loads and stores with a cache hint. The approximations (__expf) are computed in full
// precision here: tests must not count on their last bits.
#ifndef PTB_SIMCUDA_INTRINSICS_HPP
#define PTB_SIMCUDA_INTRINSICS_HPP

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <type_traits>

// glibc declares functions of these names.
#define __expf(x)          expf(x)
#define __exp10f(x)        exp10f(x)
#define __logf(x)          logf(x)
#define __log2f(x)         log2f(x)
#define __log10f(x)        log10f(x)
#define __sinf(x)          sinf(x)
#define __cosf(x)          cosf(x)
#define __tanf(x)          tanf(x)
#define __powf(x, y)       powf(x, y)
#define __sincosf(x, s, c) sincosf(x, s, c)

static inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}
static inline double rsqrt(double x)
{
    return 1.0 / sqrt(x);
}
static inline float rcbrtf(float x)
{
    return 1.0f / cbrtf(x);
}
static inline float normcdff(float x)
{
    return 0.5f * erfcf(-x * 0.70710678118654752f);
}
static inline float __fdividef(float a, float b)
{
    return a / b;
}
static inline float __frcp_rn(float x)
{
    return 1.0f / x;
}
static inline float __frsqrt_rn(float x)
{
    return (float)(1.0 / sqrt((double)x));
}
static inline float __fsqrt_rn(float x)
{
    return sqrtf(x);
}
static inline float __fdiv_rn(float a, float b)
{
    return a / b;
}
static inline float __fadd_rn(float a, float b)
{
    return a + b;
}
static inline float __fsub_rn(float a, float b)
{
    return a - b;
}
// Never contracted into a fused multiply-add.
static inline float __fmul_rn(float a, float b)
{
    float product = a * b;
    asm("" : "+r"(product)); // hides the product from the optimizer
    return product;
}
static inline float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}
static inline double __dadd_rn(double a, double b)
{
    return a + b;
}
static inline double __dmul_rn(double a, double b)
{
    double product = a * b;
    asm("" : "+r"(product));
    return product;
}
static inline double __fma_rn(double a, double b, double c)
{
    return fma(a, b, c);
}
static inline double __ddiv_rn(double a, double b)
{
    return a / b;
}
static inline float __saturatef(float x)
{
    return x >= 0.0f ? (x <= 1.0f ? x : 1.0f) : 0.0f;
}
static inline float fdividef(float a, float b)
{
    return a / b;
}

// max and min as CUDA overloads them.
#define SIM_ORDER(type)                                                                                      \
    static inline type max(type a, type b)                                                                   \
    {                                                                                                        \
        return a > b ? a : b;                                                                                \
    }                                                                                                        \
    static inline type min(type a, type b)                                                                   \
    {                                                                                                        \
        return a < b ? a : b;                                                                                \
    }
SIM_ORDER(int)
SIM_ORDER(unsigned)
SIM_ORDER(long)
SIM_ORDER(unsigned long)
SIM_ORDER(long long)
SIM_ORDER(unsigned long long)
#undef SIM_ORDER
static inline unsigned max(int a, unsigned b)
{
    return max((unsigned)a, b);
}
static inline unsigned max(unsigned a, int b)
{
    return max(a, (unsigned)b);
}
static inline unsigned min(int a, unsigned b)
{
    return min((unsigned)a, b);
}
static inline unsigned min(unsigned a, int b)
{
    return min(a, (unsigned)b);
}
static inline float max(float a, float b)
{
    return fmaxf(a, b);
}
static inline float min(float a, float b)
{
    return fminf(a, b);
}
static inline double max(double a, double b)
{
    return fmax(a, b);
}
static inline double min(double a, double b)
{
    return fmin(a, b);
}
static inline double max(float a, double b)
{
    return fmax(a, b);
}
static inline double max(double a, float b)
{
    return fmax(a, b);
}
static inline double min(float a, double b)
{
    return fmin(a, b);
}
static inline double min(double a, float b)
{
    return fmin(a, b);
}

template <class To, class From> static inline To sim_bits(From from)
{
    static_assert(sizeof(To) == sizeof(From), "bits of another size");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
static inline int __float_as_int(float x)
{
    return sim_bits<int>(x);
}
static inline unsigned __float_as_uint(float x)
{
    return sim_bits<unsigned>(x);
}
static inline float __int_as_float(int x)
{
    return sim_bits<float>(x);
}
static inline float __uint_as_float(unsigned x)
{
    return sim_bits<float>(x);
}
static inline long long __double_as_longlong(double x)
{
    return sim_bits<long long>(x);
}
static inline double __longlong_as_double(long long x)
{
    return sim_bits<double>(x);
}

// Conversions. Out of range gives the nearest value there is, NaN gives 0, as on the device.
template <class To> static inline To sim_to_integer(double rounded)
{
    if (rounded != rounded)
        return 0;
    const double low = (double)((To)(std::is_signed<To>::value ? (To)1 << (sizeof(To) * 8 - 1) : 0));
    const double high = ldexp(1.0, (int)sizeof(To) * 8 - (std::is_signed<To>::value ? 1 : 0));
    if (rounded <= low)
        return std::is_signed<To>::value ? (To)((To)1 << (sizeof(To) * 8 - 1)) : (To)0;
    return rounded >= high ? (To) ~(std::is_signed<To>::value ? (To)1 << (sizeof(To) * 8 - 1) : (To)0)
                           : (To)rounded;
}
static inline int __float2int_rn(float x)
{
    return sim_to_integer<int>(nearbyintf(x));
}
static inline int __float2int_rz(float x)
{
    return sim_to_integer<int>(truncf(x));
}
static inline int __float2int_rd(float x)
{
    return sim_to_integer<int>(floorf(x));
}
static inline int __float2int_ru(float x)
{
    return sim_to_integer<int>(ceilf(x));
}
static inline unsigned __float2uint_rn(float x)
{
    return sim_to_integer<unsigned>(nearbyintf(x));
}
static inline unsigned __float2uint_rz(float x)
{
    return sim_to_integer<unsigned>(truncf(x));
}
static inline unsigned __float2uint_rd(float x)
{
    return sim_to_integer<unsigned>(floorf(x));
}
static inline long long __float2ll_rn(float x)
{
    return sim_to_integer<long long>(nearbyintf(x));
}
static inline long long __double2ll_rn(double x)
{
    return sim_to_integer<long long>(nearbyint(x));
}
static inline int __double2int_rn(double x)
{
    return sim_to_integer<int>(nearbyint(x));
}
static inline float __double2float_rn(double x)
{
    return (float)x;
}
static inline float __int2float_rn(int x)
{
    return (float)x;
}
static inline float __uint2float_rn(unsigned x)
{
    return (float)x;
}
static inline float __ll2float_rn(long long x)
{
    return (float)x;
}
static inline float __ull2float_rn(unsigned long long x)
{
    return (float)x;
}
static inline double __ull2double_rn(unsigned long long x)
{
    return (double)x;
}
static inline double __ll2double_rn(long long x)
{
    return (double)x;
}

static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
static inline int __popcll(unsigned long long x)
{
    return __builtin_popcountll(x);
}
static inline int __clz(int x)
{
    return x ? __builtin_clz((unsigned)x) : 32;
}
static inline int __clzll(long long x)
{
    return x ? __builtin_clzll((unsigned long long)x) : 64;
}
static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
static inline int __ffsll(long long x)
{
    return __builtin_ffsll(x);
}
static inline unsigned __brev(unsigned x)
{
    x = (x >> 1 & 0x55555555u) | (x & 0x55555555u) << 1;
    x = (x >> 2 & 0x33333333u) | (x & 0x33333333u) << 2;
    x = (x >> 4 & 0x0f0f0f0fu) | (x & 0x0f0f0f0fu) << 4;
    return __builtin_bswap32(x);
}
static inline int __mulhi(int a, int b)
{
    return (int)((int64_t)a * b >> 32);
}
static inline unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)((uint64_t)a * b >> 32);
}
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift)
{
    return (unsigned)(((uint64_t)high << 32 | low) << (shift & 31) >> 32);
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift)
{
    return (unsigned)(((uint64_t)high << 32 | low) >> (shift & 31));
}
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector)
{
    const uint64_t bytes = (uint64_t)b << 32 | a;
    unsigned result = 0;
    for (int i = 0; i < 4; i++)
        result |= (unsigned)(bytes >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
    return result;
}

// Loads and stores with hints, of any type. A vector of 8 or 16 bytes must be aligned, as on the device.
template <class T> static inline T sim_load(const T *from)
{
    return *from;
}
template <class T> static inline void sim_store(T *to, T value)
{
    *to = value;
}
#define __ldg(from)       sim_load(from)
#define __ldca(from)      sim_load(from)
#define __ldcg(from)      sim_load(from)
#define __ldcs(from)      sim_load(from)
#define __ldlu(from)      sim_load(from)
#define __ldcv(from)      sim_load(from)
#define __stwb(to, value) sim_store(to, value)
#define __stcg(to, value) sim_store(to, value)
#define __stcs(to, value) sim_store(to, value)
#define __stwt(to, value) sim_store(to, value)

static inline long long clock64(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}
static inline unsigned long long __globaltimer(void)
{
    return (unsigned long long)clock64();
}
static inline void __nanosleep(unsigned) {}

#endif
