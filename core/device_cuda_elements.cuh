// For the kernels that work on buffers of any element type: the bits of an element, and buffers as rows of 16
// bytes. A buffer may begin anywhere (aligned to its elements); its first and last pieces are then partial.
#ifndef PTB_CORE_DEVICE_CUDA_ELEMENTS_CUH
#define PTB_CORE_DEVICE_CUDA_ELEMENTS_CUH

#include "core/cuda_kernel.cuh"
#include "core/device_cuda_internal.h"

enum { PTB_PIECE_BYTES = 16, PTB_ELEMENT_THREADS = 256 };

// Type of an element's bits, by its size.
template <int SIZE> struct ptb_bits;
template <> struct ptb_bits<8> {
    typedef uint64_t type;
};
template <> struct ptb_bits<4> {
    typedef uint32_t type;
};
template <> struct ptb_bits<2> {
    typedef uint16_t type;
};
template <> struct ptb_bits<1> {
    typedef uint8_t type;
};

template <typename E> union ptb_piece {
    uint4 all;
    E element[PTB_PIECE_BYTES / sizeof(E)];
};

// Where a buffer of elements lies among pieces.
struct ptb_pieces {
    size_t skew;  // elements of the first piece before the buffer
    size_t count; // of pieces
};

template <typename E> static inline ptb_pieces ptb_pieces_of(const void *buffer, size_t count)
{
    const size_t each = PTB_PIECE_BYTES / sizeof(E);
    ptb_pieces p;
    p.skew = ((uintptr_t)buffer & (PTB_PIECE_BYTES - 1)) / sizeof(E);
    p.count = (count + p.skew + each - 1) / each;
    return p;
}

static inline unsigned ptb_blocks_for(size_t pieces, int most)
{
    size_t blocks = (pieces + PTB_ELEMENT_THREADS - 1) / PTB_ELEMENT_THREADS;
    return (unsigned)(blocks < (size_t)most ? blocks : (size_t)most);
}

#endif
