// Kernels that fill and check the memory of a GPU: elements are made by core/pattern_element.h, exactly as on
// the host. A thread makes 16 bytes at a time. To add a type: a row in ptb_make, and one in each of the two
// switches at the end.
#include "core/device_cuda_elements.cuh"

// The bits of an element of a type, from its integer; all are exact.
template <int TYPE> struct ptb_make;
template <> struct ptb_make<PTB_F64> {
    typedef uint64_t bits;
    static __device__ bits of(int32_t value, int32_t spread)
    {
        return (uint64_t)__double_as_longlong((double)value * (double)spread);
    }
};
template <> struct ptb_make<PTB_F32> {
    typedef uint32_t bits;
    static __device__ bits of(int32_t value, int32_t) { return __float_as_uint((float)value); }
};
template <> struct ptb_make<PTB_F16> {
    typedef uint16_t bits;
    static __device__ bits of(int32_t value, int32_t)
    {
        return __half_as_ushort(__float2half_rn((float)value));
    }
};
template <> struct ptb_make<PTB_BF16> {
    typedef uint16_t bits;
    static __device__ bits of(int32_t value, int32_t)
    {
        return (uint16_t)(__float_as_uint((float)value) >> 16);
    }
};
template <> struct ptb_make<PTB_I64> {
    typedef uint64_t bits;
    static __device__ bits of(int32_t value, int32_t spread) { return (uint64_t)((int64_t)value * spread); }
};
template <> struct ptb_make<PTB_I32> {
    typedef uint32_t bits;
    static __device__ bits of(int32_t value, int32_t) { return (uint32_t)value; }
};
template <> struct ptb_make<PTB_I8> {
    typedef uint8_t bits;
    static __device__ bits of(int32_t value, int32_t) { return (uint8_t)(value & 0xff); }
};
template <> struct ptb_make<PTB_U8> : ptb_make<PTB_I8> {
};

// Elements of a recipe by index. The key changes only where the upper half of the index does.
template <int TYPE> struct ptb_maker {
    const ptb_recipe &recipe;
    uint64_t upper;
    uint32_t key;

    __device__ ptb_maker(const ptb_recipe &r) : recipe(r), upper(0), key(ptb_recipe_key(&r, 0)) {}
    __device__ typename ptb_make<TYPE>::bits at(uint64_t index)
    {
        if (index >> 32 != upper) {
            upper = index >> 32;
            key = ptb_recipe_key(&recipe, index);
        }
        int32_t value = ptb_recipe_value(&recipe, ptb_pattern_mix((uint32_t)index ^ key));
        return ptb_make<TYPE>::of(value, recipe.spread);
    }
};

// buffer: [count] elements, the first one is element `first` of the pattern. pieces: of the buffer.
template <int TYPE>
__global__ void __launch_bounds__(PTB_ELEMENT_THREADS)
    fill_kernel(const ptb_recipe recipe, size_t first, void *buffer, size_t count, ptb_pieces pieces)
{
    typedef typename ptb_make<TYPE>::bits E;
    const size_t each = PTB_PIECE_BYTES / sizeof(E);
    E *start = (E *)buffer - pieces.skew;
    ptb_maker<TYPE> maker(recipe);
    for (size_t p = blockIdx.x * (size_t)blockDim.x + threadIdx.x; p < pieces.count;
         p += gridDim.x * (size_t)blockDim.x) {
        // Below the buffer the index wraps around and is not used.
        size_t at = p * each - pieces.skew;
        if (at < count && count - at >= each) {
            ptb_piece<E> piece;
#pragma unroll
            for (size_t i = 0; i < each; i++)
                piece.element[i] = maker.at(first + at + i);
            *(uint4 *)(start + p * each) = piece.all;
            continue;
        }
        for (size_t i = 0; i < each; i++)
            if (at + i < count)
                start[p * each + i] = maker.at(first + at + i);
    }
}

// Elements differ when their bits do, except -0 and 0: value_bits leaves the sign of floats out, and two
// different patterns without any other bit are the two zeros.
template <typename E> static __device__ inline bool ptb_differ(E wanted, E got, E value_bits)
{
    return wanted != got && ((wanted | got) & value_bits) != 0;
}

struct ptb_check_arguments {
    ptb_recipe recipe;
    bool poison;
    bool signed_zeros;   // two bit patterns for 0
    size_t source_index; // of the pattern, of the buffer's first element
    size_t first_index;  // what the buffer's first element is called
    const void *buffer;  // [count]
    size_t count;
    ptb_pieces pieces;
    ptb_cuda_counter *counter;
};

template <int TYPE>
__global__ void __launch_bounds__(PTB_ELEMENT_THREADS) check_kernel(const ptb_check_arguments a)
{
    typedef typename ptb_make<TYPE>::bits E;
    const size_t each = PTB_PIECE_BYTES / sizeof(E);
    const E *start = (const E *)a.buffer - a.pieces.skew;
    const E ones = (E) ~(E)0, value_bits = a.signed_zeros ? (E)(ones >> 1) : ones;
    const E poison = (E)(0xA5A5A5A5A5A5A5A5ull & ones);
    ptb_maker<TYPE> maker(a.recipe);
    unsigned long long wrong = 0, before_end = 0;
    for (size_t p = blockIdx.x * (size_t)blockDim.x + threadIdx.x; p < a.pieces.count;
         p += gridDim.x * (size_t)blockDim.x) {
        size_t at = p * each - a.pieces.skew;
        ptb_piece<E> piece;
        if (at < a.count && a.count - at >= each)
            piece.all = *(const uint4 *)(start + p * each);
        else
            for (size_t i = 0; i < each; i++)
                piece.element[i] = at + i < a.count ? start[p * each + i] : (E)0;
#pragma unroll
        for (size_t i = 0; i < each; i++) {
            if (at + i >= a.count)
                continue;
            E wanted = a.poison ? poison : maker.at(a.source_index + at + i);
            if (!ptb_differ(wanted, piece.element[i], value_bits))
                continue;
            wrong++;
            unsigned long long from_end = ~0ull - (a.first_index + at + i);
            before_end = from_end > before_end ? from_end : before_end;
        }
    }
    // Nothing is wrong as a rule, and then nothing is written.
    if (wrong) {
        atomicAdd(&a.counter->wrong, wrong);
        atomicMax(&a.counter->before_end, before_end);
    }
}

// One thread: what a check found, and the counter for the next one. element: [size] bytes from `buffer` on,
// whose first element is called first_index.
__global__ void finish_check_kernel(ptb_cuda_counter *counter, const unsigned char *buffer,
                                    size_t first_index, int size, ptb_cuda_finding *finding)
{
    unsigned long long wrong = counter->wrong, first = ~0ull - counter->before_end;
    finding->wrong = wrong;
    finding->first_wrong = wrong ? first : 0;
    for (int i = 0; i < size && wrong; i++)
        finding->got[i] = buffer[(first - first_index) * size + i];
    counter->wrong = 0;
    counter->before_end = 0;
}

template <int TYPE>
static cudaError_t fill(const ptb_recipe &recipe, size_t first, void *buffer, size_t count, int blocks,
                        cudaStream_t stream)
{
    ptb_pieces pieces = ptb_pieces_of<typename ptb_make<TYPE>::bits>(buffer, count);
    return PTB_LAUNCH((fill_kernel<TYPE>), ptb_blocks_for(pieces.count, blocks), PTB_ELEMENT_THREADS, 0,
                      stream, recipe, first, buffer, count, pieces);
}

template <int TYPE> static cudaError_t check(ptb_check_arguments a, int blocks, cudaStream_t stream)
{
    typedef typename ptb_make<TYPE>::bits E;
    a.pieces = ptb_pieces_of<E>(a.buffer, a.count);
    return PTB_LAUNCH((check_kernel<TYPE>), ptb_blocks_for(a.pieces.count, blocks), PTB_ELEMENT_THREADS, 0,
                      stream, a);
}

#define PTB_OF_TYPE(type, CALL)                                                                              \
    switch (type) {                                                                                          \
    case PTB_F64:                                                                                            \
        return CALL(PTB_F64);                                                                                \
    case PTB_F32:                                                                                            \
        return CALL(PTB_F32);                                                                                \
    case PTB_F16:                                                                                            \
        return CALL(PTB_F16);                                                                                \
    case PTB_BF16:                                                                                           \
        return CALL(PTB_BF16);                                                                               \
    case PTB_I64:                                                                                            \
        return CALL(PTB_I64);                                                                                \
    case PTB_I32:                                                                                            \
        return CALL(PTB_I32);                                                                                \
    case PTB_I8:                                                                                             \
        return CALL(PTB_I8);                                                                                 \
    case PTB_U8:                                                                                             \
        return CALL(PTB_U8);                                                                                 \
    default:                                                                                                 \
        return cudaErrorInvalidValue;                                                                        \
    }

extern "C" int ptb_cuda_launch_fill(const ptb_recipe *recipe, size_t first, void *buffer, size_t count,
                                    int blocks, cudaStream_t stream)
{
#define CALL(type) fill<type>(*recipe, first, buffer, count, blocks, stream)
    PTB_OF_TYPE(recipe->dtype, CALL)
#undef CALL
}

static cudaError_t launch_check(ptb_dtype type, const ptb_check_arguments &a, int blocks, cudaStream_t stream)
{
#define CALL(type) check<type>(a, blocks, stream)
    PTB_OF_TYPE(type, CALL)
#undef CALL
}

extern "C" int ptb_cuda_launch_check(const ptb_recipe *recipe, ptb_dtype type, size_t source_index,
                                     size_t first_index, const void *buffer, size_t count,
                                     ptb_cuda_counter *counter, ptb_cuda_finding *finding, int blocks,
                                     cudaStream_t stream)
{
    ptb_check_arguments a = {};
    if (recipe)
        a.recipe = *recipe;
    a.poison = !recipe;
    a.signed_zeros = type == PTB_F64 || type == PTB_F32 || type == PTB_F16 || type == PTB_BF16;
    a.source_index = source_index;
    a.first_index = first_index;
    a.buffer = buffer;
    a.count = count;
    a.counter = counter;
    cudaError_t error = launch_check(type, a, blocks, stream);
    if (error != cudaSuccess)
        return error;
    return PTB_LAUNCH(finish_check_kernel, 1, 1, 0, stream, counter, (const unsigned char *)buffer,
                      first_index, (int)ptb_dtype_size(type), finding);
}
