// What the kernels of the back-end `cuda` share: numbers of any compute type as f32, several at a time in
// accesses of 16 bytes; sums and maxima over warps and blocks; and, on the host's side, the choice of a
// template by type and the size of grids. Only .cu files include this. A launcher is declared in
// kernels_cuda_internal.h.
#ifndef PTB_STRATEGIES_TRANSFORMER_KERNELS_CUDA_CUH
#define PTB_STRATEGIES_TRANSFORMER_KERNELS_CUDA_CUH

#include "core/cuda_kernel.cuh"
#include "strategies/transformer/kernels_cuda_internal.h"

#include <float.h>
#include <math.h>
#include <string.h>

// ---- numbers

static __device__ __forceinline__ float ptb_to_f32(float value)
{
    return value;
}
static __device__ __forceinline__ float ptb_to_f32(__nv_bfloat16 value)
{
    return __bfloat162float(value);
}
static __device__ __forceinline__ float ptb_to_f32(__half value)
{
    return __half2float(value);
}

// Rounded to nearest, ties to even.
template <typename T> __device__ __forceinline__ T ptb_from_f32(float value);
template <> __device__ __forceinline__ float ptb_from_f32<float>(float value)
{
    return value;
}
template <> __device__ __forceinline__ __nv_bfloat16 ptb_from_f32<__nv_bfloat16>(float value)
{
    return __float2bfloat16_rn(value);
}
template <> __device__ __forceinline__ __half ptb_from_f32<__half>(float value)
{
    return __float2half_rn(value);
}

// ---- N neighbours at a time

// Elements of one access of 16 bytes.
template <typename T> constexpr int ptb_width = 16 / (int)sizeof(T);

// The unsigned number through which BYTES bytes are moved.
template <int BYTES> struct ptb_word;
template <> struct ptb_word<2> {
    using type = unsigned short;
};
template <> struct ptb_word<4> {
    using type = unsigned;
};
template <> struct ptb_word<8> {
    using type = uint2;
};
template <> struct ptb_word<16> {
    using type = uint4;
};

// Stores of whole words, to any memory. The compiler makes plain stores of a uint4 four of 4 bytes where it
// moves them out of a branch, so PTX has the word here.
template <typename W> __device__ __forceinline__ void ptb_store_word(W *to, W word)
{
    *to = word;
}
#ifndef PTB_SIM
static __device__ __forceinline__ void ptb_store_word(uint2 *to, uint2 w)
{
    asm volatile("st.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(w.x), "r"(w.y) : "memory");
}
static __device__ __forceinline__ void ptb_store_word(uint4 *to, uint4 w)
{
    asm volatile("st.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(w.x), "r"(w.y), "r"(w.z), "r"(w.w)
                 : "memory");
}
#endif

// N elements as they are in memory. BYTES of an access: all of them, at most 16.
template <typename T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) ptb_pack {
    static constexpr int bytes = (int)sizeof(T) * N, access = bytes < 16 ? bytes : 16;
    using word = typename ptb_word<access>::type;
    T at[N];
};

// once: the line is not used again, caches need not keep it. p is aligned to an access.
template <int N, bool once = false, typename T>
__device__ __forceinline__ ptb_pack<T, N> ptb_load_pack(const T *p)
{
    using pack = ptb_pack<T, N>;
    using word = typename pack::word;
    pack out;
#pragma unroll
    for (int i = 0; i < pack::bytes / pack::access; i++) {
        const word *from = reinterpret_cast<const word *>(p) + i;
        word w;
        if constexpr (once)
            w = __ldcs(from);
        else
            w = *from;
        memcpy(reinterpret_cast<char *>(out.at) + i * pack::access, &w, sizeof w);
    }
    return out;
}

template <int N, bool once = false, typename T>
__device__ __forceinline__ void ptb_store_pack(T *p, const ptb_pack<T, N> &in)
{
    using pack = ptb_pack<T, N>;
    using word = typename pack::word;
#pragma unroll
    for (int i = 0; i < pack::bytes / pack::access; i++) {
        word *to = reinterpret_cast<word *>(p) + i, w;
        memcpy(&w, reinterpret_cast<const char *>(in.at) + i * pack::access, sizeof w);
        if constexpr (once)
            __stcs(to, w);
        else
            ptb_store_word(to, w);
    }
}

// The same as f32: out[0..N) = p[0..N).
template <int N, bool once = false, typename T>
__device__ __forceinline__ void ptb_load(float (&out)[N], const T *p)
{
    const ptb_pack<T, N> pack = ptb_load_pack<N, once>(p);
#pragma unroll
    for (int i = 0; i < N; i++)
        out[i] = ptb_to_f32(pack.at[i]);
}

template <int N, bool once = false, typename T>
__device__ __forceinline__ void ptb_store(T *p, const float (&in)[N])
{
    ptb_pack<T, N> pack;
#pragma unroll
    for (int i = 0; i < N; i++)
        pack.at[i] = ptb_from_f32<T>(in[i]);
    ptb_store_pack<N, once>(p, pack);
}

// ---- packs of 16 bytes that stay as they are in memory, numbers of 16 bits two in a register, until they
// are used: kernels that hold many of them need half the registers

static __device__ __forceinline__ void ptb_widen_word(float (&out)[1], unsigned word, float)
{
    out[0] = __uint_as_float(word);
}
static __device__ __forceinline__ void ptb_widen_word(float (&out)[2], unsigned word, __nv_bfloat16)
{
    out[0] = __uint_as_float(word << 16);
    out[1] = __uint_as_float(word & 0xffff0000u);
}
static __device__ __forceinline__ void ptb_widen_word(float (&out)[2], unsigned word, __half)
{
    __half2 pair;
    memcpy(&pair, &word, sizeof pair);
    float2 wide = __half22float2(pair);
    out[0] = wide.x, out[1] = wide.y;
}

static __device__ __forceinline__ unsigned ptb_narrow_word(const float *in, float)
{
    return __float_as_uint(in[0]);
}
static __device__ __forceinline__ unsigned ptb_narrow_word(const float *in, __nv_bfloat16)
{
    __nv_bfloat162 pair = __floats2bfloat162_rn(in[0], in[1]);
    unsigned word;
    memcpy(&word, &pair, sizeof word);
    return word;
}
static __device__ __forceinline__ unsigned ptb_narrow_word(const float *in, __half)
{
    __half2 pair = __floats2half2_rn(in[0], in[1]);
    unsigned word;
    memcpy(&word, &pair, sizeof word);
    return word;
}

// The numbers of a pack of type T.
template <typename T, int N> __device__ __forceinline__ void ptb_widen(float (&out)[N], uint4 pack)
{
    constexpr int EACH = N / 4; // numbers of a word
    const unsigned words[4] = {pack.x, pack.y, pack.z, pack.w};
#pragma unroll
    for (int w = 0; w < 4; w++) {
        float some[EACH];
        ptb_widen_word(some, words[w], T());
#pragma unroll
        for (int e = 0; e < EACH; e++)
            out[w * EACH + e] = some[e];
    }
}

template <typename T, int N> __device__ __forceinline__ void ptb_store_numbers(T *to, const float (&in)[N])
{
    constexpr int EACH = N / 4;
    ptb_store_word((uint4 *)to,
                   make_uint4(ptb_narrow_word(in, T()), ptb_narrow_word(in + EACH, T()),
                              ptb_narrow_word(in + 2 * EACH, T()), ptb_narrow_word(in + 3 * EACH, T())));
}

// N neighbours as they are in memory: one number, or 16 bytes of them.
template <typename T, int N> struct ptb_raw {
    uint4 words;
    __device__ __forceinline__ void load(const T *from) { words = *(const uint4 *)from; }
    __device__ __forceinline__ void zero() { words = make_uint4(0, 0, 0, 0); }
    __device__ __forceinline__ void add_to(float (&sum)[N], float weight) const
    {
        float x[N];
        ptb_widen<T>(x, words);
#pragma unroll
        for (int e = 0; e < N; e++)
            sum[e] += weight * x[e];
    }
};
template <typename T> struct ptb_raw<T, 1> {
    T number;
    __device__ __forceinline__ void load(const T *from) { number = *from; }
    __device__ __forceinline__ void zero() { number = ptb_from_f32<T>(0); }
    __device__ __forceinline__ void add_to(float (&sum)[1], float weight) const
    {
        sum[0] += weight * ptb_to_f32(number);
    }
};

// ---- sums and maxima, in a fixed order

template <typename N> __device__ __forceinline__ N ptb_warp_sum(N value)
{
#pragma unroll
    for (int distance = 16; distance > 0; distance >>= 1)
        value += __shfl_xor_sync(0xffffffffu, value, distance);
    return value;
}

// values[i] becomes the sum of values[0..i); returns that of all, to all lanes. By one warp.
static __device__ __forceinline__ int ptb_warp_scan(int32_t *values /* [count] */, size_t count)
{
    unsigned lane = threadIdx.x % 32;
    int total = 0;
    for (size_t first = 0; first < count; first += 32) {
        int value = first + lane < count ? values[first + lane] : 0, inclusive = value;
        for (unsigned distance = 1; distance < 32; distance *= 2) {
            int other = __shfl_up_sync(0xffffffffu, inclusive, distance);
            inclusive += lane >= distance ? other : 0;
        }
        if (first + lane < count)
            values[first + lane] = total + inclusive - value;
        total += __shfl_sync(0xffffffffu, inclusive, 31);
    }
    return total;
}

static __device__ __forceinline__ float ptb_warp_max(float value)
{
#pragma unroll
    for (int distance = 16; distance > 0; distance >>= 1)
        value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, distance));
    return value;
}

// Over all threads of a block of one dimension, whole warps; every thread calls and gets the result.
// shared: 32 numbers, free again after the call.
template <typename N> __device__ __forceinline__ N ptb_block_sum(N value, N *shared)
{
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    value = ptb_warp_sum(value);
    if (warps == 1)
        return value;
    if (lane == 0)
        shared[warp] = value;
    __syncthreads();
    value = ptb_warp_sum(lane < warps ? shared[lane] : N(0));
    __syncthreads();
    return value;
}

static __device__ __forceinline__ float ptb_block_max(float value, float *shared)
{
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    value = ptb_warp_max(value);
    if (warps == 1)
        return value;
    if (lane == 0)
        shared[warp] = value;
    __syncthreads();
    value = ptb_warp_max(lane < warps ? shared[lane] : -INFINITY);
    __syncthreads();
    return value;
}

// ---- the host's side of a launch

// f(T()) with the C++ type of a compute type; an error for other types.
template <typename F> int ptb_for_type(ptb_dtype type, F f)
{
    switch (type) {
    case PTB_F32:
        return f(float());
    case PTB_BF16:
        return f(__nv_bfloat16());
    case PTB_F16:
        return f(__half());
    default:
        return cudaErrorInvalidValue;
    }
}

// A number that a function object gets as a type, to choose a template by it: decltype(v)::value.
template <int V> struct ptb_constant {
    static constexpr int value = V;
};

// All of the pointers (NULL: fine) can be accessed in units of `bytes`.
template <typename... P> bool ptb_aligned(size_t bytes, P... pointers)
{
    return (((uintptr_t)pointers % bytes == 0) && ...);
}

static inline size_t ptb_blocks(size_t items, size_t per_block)
{
    return (items + per_block - 1) / per_block;
}

static inline unsigned ptb_multiprocessors()
{
    int device = 0, count = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess)
        return 1;
    return count > 0 ? (unsigned)count : 1;
}

// Blocks for kernels whose threads loop over `items` with the grid's stride: all at once if they fit into
// `resident` blocks on each multiprocessor. At least 1: a launch without blocks is an error.
static inline unsigned ptb_grid(size_t items, size_t per_block, unsigned resident)
{
    size_t wanted = ptb_blocks(items, per_block), most = (size_t)ptb_multiprocessors() * resident;
    size_t blocks = wanted < most ? wanted : most;
    return blocks ? (unsigned)blocks : 1;
}

#endif
