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
    PTB_HOST_LINE = 64,      // bytes of a cache line
    PTB_HOST_AHEAD = 1024,   // elements to ask for memory ahead of their use
    // Bytes of an output, or of it and what is read beside it, from which on who reads the output next does
    // not find it in the caches.
    PTB_HOST_STREAM = 32 << 20,
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

// A body that PTB_HOST_TYPED calls. In a file with PTB_HOST_BODIES_ONCE sanitizers check it once for all
// types: checks at each access of many copies take minutes to compile and find the same.
#if defined PTB_SANITIZED && defined PTB_HOST_BODIES_ONCE
#define PTB_HOST_BODY static inline void
#else
#define PTB_HOST_BODY PTB_INLINE void
#endif

// The first n lanes of a, 0 in the others.
PTB_INLINE ptb_vec ptb_host_first_lanes(ptb_vec a, size_t n)
{
    return ptb_vec_select(ptb_vec_iota() < ptb_vec_int_set((int32_t)n), a, ptb_vec_set(0));
}

// Whether stores should go past the caches, which saves reading the lines first: the output is large, is not
// one of the inputs, and each of its rows begins with a cache line (row_bytes: PTB_HOST_LINE when there are
// no rows).
static inline bool ptb_host_streams(const void *out, size_t bytes, size_t row_bytes, const void *in0,
                                    const void *in1)
{
    return out && bytes >= PTB_HOST_STREAM && out != in0 && out != in1 &&
           ((uintptr_t)out | row_bytes) % PTB_HOST_LINE == 0;
}

// Stores the first `count` lanes; a whole vector past the caches when `stream` (first: a multiple of
// PTB_LANES in a row).
PTB_INLINE void ptb_host_store(bool stream, ptb_dtype type, void *base, size_t first, size_t count, ptb_vec a)
{
    if (count < PTB_LANES) {
        ptb_vec_store_some(type, base, first, count, a);
        return;
    }
#if defined PTB_VECTOR_512
    if (stream && type == PTB_F32) {
        _mm512_stream_ps((float *)base + first, (__m512)a);
        return;
    }
    if (stream) {
        ptb_vec_half bits = type == PTB_BF16 ? ptb_vec_to_bf16(a) : ptb_vec_to_f16(a);
        _mm256_stream_si256((__m256i *)((uint16_t *)base + first), (__m256i)bits);
        return;
    }
#endif
    (void)stream;
    ptb_vec_store(type, base, first, a);
}

// Elements of a cache line, and the vectors that it takes.
PTB_INLINE size_t ptb_host_line(ptb_dtype type)
{
    return PTB_HOST_LINE / ptb_dtype_size(type);
}
enum { PTB_HOST_LINE_VECTORS = PTB_HOST_LINE / (2 * PTB_LANES) }; // of a 16-bit type; f32 takes half as many

// Stores vectors a[], a cache line of elements from `first` on, in one piece where `stream` sends it past the
// caches: halves of a line that are not joined on their way out cost as much as two lines.
PTB_INLINE void ptb_host_store_line(bool stream, ptb_dtype type, void *base, size_t first, const ptb_vec *a)
{
#if defined PTB_VECTOR_512
    if (stream && type != PTB_F32) {
        ptb_vec_half low = type == PTB_BF16 ? ptb_vec_to_bf16(a[0]) : ptb_vec_to_f16(a[0]);
        ptb_vec_half high = type == PTB_BF16 ? ptb_vec_to_bf16(a[1]) : ptb_vec_to_f16(a[1]);
        __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512((__m256i)low), (__m256i)high, 1);
        _mm512_stream_si512((__m512i *)((uint16_t *)base + first), both);
        return;
    }
#endif
    for (size_t v = 0; v < ptb_host_line(type) / PTB_LANES; v++)
        ptb_host_store(stream, type, base, first + v * PTB_LANES, PTB_LANES, a[v]);
}

// Asks for the line of an element that is needed soon; it may lie beyond the end of its array. Where much is
// computed for each element, the processor looks too few elements ahead by itself to keep memory busy.
PTB_INLINE void ptb_host_prefetch(ptb_dtype type, const void *base, size_t element)
{
    __builtin_prefetch((const void *)((uintptr_t)base + element * ptb_dtype_size(type)));
}

// After streamed stores of a task, before others may read them.
static inline void ptb_host_fence(bool stream)
{
#if defined PTB_VECTOR_512
    if (stream)
        _mm_sfence();
#endif
    (void)stream;
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
