// Reduction of two buffers on a GPU: out[i] = a[i] op b[i], with the arithmetic of core/reduce.c (f16 and
// bf16 in f32, rounded once; integers wrap; AVG adds). Three streams of memory and hardly any arithmetic, so
// a thread reads and writes 16 bytes at a time where the three buffers allow it. To add a type: a row in
// ptb_number and one in the switch at the end.
#include "core/device_cuda_elements.cuh"

// element: as stored; compare: what MIN and MAX look at; modular: what SUM and PROD compute in.
template <int TYPE> struct ptb_number;
#define PTB_NUMBER(TYPE, E, COMPARE, MODULAR, LOAD, STORE)                                                   \
    template <> struct ptb_number<TYPE> {                                                                    \
        typedef E element;                                                                                   \
        typedef COMPARE compare;                                                                             \
        typedef MODULAR modular;                                                                             \
        static __device__ COMPARE load(E x) { return LOAD(x); }                                              \
        static __device__ E store(COMPARE x) { return STORE(x); }                                            \
    }
PTB_NUMBER(PTB_F64, double, double, double, , );
PTB_NUMBER(PTB_F32, float, float, float, , );
PTB_NUMBER(PTB_F16, __half, float, float, __half2float, __float2half_rn);
PTB_NUMBER(PTB_BF16, __nv_bfloat16, float, float, __bfloat162float, __float2bfloat16_rn);
PTB_NUMBER(PTB_I64, int64_t, int64_t, uint64_t, , );
PTB_NUMBER(PTB_I32, int32_t, int32_t, uint32_t, , );
PTB_NUMBER(PTB_I8, int8_t, int32_t, uint32_t, , (int8_t));
PTB_NUMBER(PTB_U8, uint8_t, int32_t, uint32_t, , (uint8_t));

template <int TYPE, int OP>
static __device__ inline typename ptb_number<TYPE>::element combine(typename ptb_number<TYPE>::element x,
                                                                    typename ptb_number<TYPE>::element y)
{
    typedef ptb_number<TYPE> N;
    typedef typename N::compare C;
    typedef typename N::modular M;
    C u = N::load(x), v = N::load(y);
    if (OP == PTB_PROD)
        return N::store((C)((M)u * (M)v));
    if (OP == PTB_MIN)
        return N::store(u < v ? u : v);
    if (OP == PTB_MAX)
        return N::store(u > v ? u : v);
    return N::store((C)((M)u + (M)v));
}

template <typename E> union ptb_numbers {
    uint4 all;
    unsigned char bytes[PTB_PIECE_BYTES];
    __device__ ptb_numbers() {}
    __device__ E &at(int i) { return ((E *)bytes)[i]; }
};

// out, a, b: [count], all with the same place within 16 bytes. out may be a or b.
template <int TYPE, int OP>
__global__ void __launch_bounds__(PTB_ELEMENT_THREADS)
    reduce_pieces_kernel(void *out, const void *a, const void *b, size_t count, ptb_pieces pieces)
{
    typedef typename ptb_number<TYPE>::element E;
    const size_t each = PTB_PIECE_BYTES / sizeof(E);
    E *o = (E *)out - pieces.skew;
    const E *x = (const E *)a - pieces.skew, *y = (const E *)b - pieces.skew;
    for (size_t p = blockIdx.x * (size_t)blockDim.x + threadIdx.x; p < pieces.count;
         p += gridDim.x * (size_t)blockDim.x) {
        size_t at = p * each - pieces.skew;
        if (at < count && count - at >= each) {
            ptb_numbers<E> u, v, w;
            u.all = *(const uint4 *)(x + p * each);
            v.all = *(const uint4 *)(y + p * each);
#pragma unroll
            for (int i = 0; i < (int)each; i++)
                w.at(i) = combine<TYPE, OP>(u.at(i), v.at(i));
            *(uint4 *)(o + p * each) = w.all;
            continue;
        }
        for (size_t i = 0; i < each; i++)
            if (at + i < count)
                o[p * each + i] = combine<TYPE, OP>(x[p * each + i], y[p * each + i]);
    }
}

// The same for buffers whose places within 16 bytes differ.
template <int TYPE, int OP>
__global__ void __launch_bounds__(PTB_ELEMENT_THREADS)
    reduce_elements_kernel(void *out, const void *a, const void *b, size_t count)
{
    typedef typename ptb_number<TYPE>::element E;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count;
         i += gridDim.x * (size_t)blockDim.x)
        ((E *)out)[i] = combine<TYPE, OP>(((const E *)a)[i], ((const E *)b)[i]);
}

template <int TYPE, int OP>
static cudaError_t reduce(void *out, const void *a, const void *b, size_t count, int blocks,
                          cudaStream_t stream)
{
    typedef typename ptb_number<TYPE>::element E;
    const uintptr_t mask = PTB_PIECE_BYTES - 1, place = (uintptr_t)out & mask;
    if (((uintptr_t)a & mask) != place || ((uintptr_t)b & mask) != place)
        return PTB_LAUNCH((reduce_elements_kernel<TYPE, OP>), ptb_blocks_for(count, blocks),
                          PTB_ELEMENT_THREADS, 0, stream, out, a, b, count);
    ptb_pieces pieces = ptb_pieces_of<E>(out, count);
    return PTB_LAUNCH((reduce_pieces_kernel<TYPE, OP>), ptb_blocks_for(pieces.count, blocks),
                      PTB_ELEMENT_THREADS, 0, stream, out, a, b, count, pieces);
}

template <int TYPE>
static cudaError_t reduce_by(ptb_redop op, void *out, const void *a, const void *b, size_t count, int blocks,
                             cudaStream_t stream)
{
    switch (op) {
    case PTB_PROD:
        return reduce<TYPE, PTB_PROD>(out, a, b, count, blocks, stream);
    case PTB_MIN:
        return reduce<TYPE, PTB_MIN>(out, a, b, count, blocks, stream);
    case PTB_MAX:
        return reduce<TYPE, PTB_MAX>(out, a, b, count, blocks, stream);
    default:
        return reduce<TYPE, PTB_SUM>(out, a, b, count, blocks, stream);
    }
}

extern "C" int ptb_cuda_launch_reduce(ptb_dtype type, ptb_redop op, void *out, const void *a, const void *b,
                                      size_t count, int blocks, cudaStream_t stream)
{
    switch (type) {
    case PTB_F64:
        return reduce_by<PTB_F64>(op, out, a, b, count, blocks, stream);
    case PTB_F32:
        return reduce_by<PTB_F32>(op, out, a, b, count, blocks, stream);
    case PTB_F16:
        return reduce_by<PTB_F16>(op, out, a, b, count, blocks, stream);
    case PTB_BF16:
        return reduce_by<PTB_BF16>(op, out, a, b, count, blocks, stream);
    case PTB_I64:
        return reduce_by<PTB_I64>(op, out, a, b, count, blocks, stream);
    case PTB_I32:
        return reduce_by<PTB_I32>(op, out, a, b, count, blocks, stream);
    case PTB_I8:
        return reduce_by<PTB_I8>(op, out, a, b, count, blocks, stream);
    case PTB_U8:
        return reduce_by<PTB_U8>(op, out, a, b, count, blocks, stream);
    default:
        return cudaErrorInvalidValue;
    }
}
