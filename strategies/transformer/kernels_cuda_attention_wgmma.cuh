// What the attention kernels for warp groups (compute capability 9.0) share: tiles of any width as blocks of
// 64 columns, and their products. A group has 64 rows of a product, a warp of it 16: what one warp does with
// sums is what the kernels for single warps do, with TILES = 1. Left operands are in shared memory or, where
// they are computed, in registers; right ones in shared memory, so that a number copied there is read twice
// by a block of two groups and not eight times.
#ifndef PTB_STRATEGIES_TRANSFORMER_KERNELS_CUDA_ATTENTION_WGMMA_CUH
#define PTB_STRATEGIES_TRANSFORMER_KERNELS_CUDA_ATTENTION_WGMMA_CUH

#include "strategies/transformer/kernels_cuda_attention.cuh"
#include "strategies/transformer/kernels_cuda_wgmma.cuh"

// Rows of a group, and keys or queries of a step.
enum { ATTENTION_GROUP = 64 };

// Warp. The same in all lanes, known to the compiler as that: what depends on it needs no register a lane.
static __device__ __forceinline__ int group_uniform(int x)
{
    return __shfl_sync(0xffffffffu, x, 0);
}

// All THREADS threads of the block: ROWS rows of a head into a tile of WIDTH / 64 blocks [ROWS, 64], in the
// background. Rows from `rows` on and columns from c.width on become 0. c.aligned only.
template <int ROWS, int WIDTH, int THREADS, typename T>
__device__ __forceinline__ void group_fetch(const attention_call &c, T *tile, const T *from, int64_t stride,
                                            int rows)
{
    constexpr int pieces = WIDTH / 8, turn = THREADS / pieces;
    static_assert(THREADS % pieces == 0 && ROWS % turn == 0 && turn % 8 == 0, "whole rows, the same swizzle");
    int piece = (int)threadIdx.x % pieces, row = (int)threadIdx.x / pieces;
    T *to = tile + piece / 8 * ROWS * 64 + ptb_tile_at<64>(row, piece % 8);
    const T *source = from + row * stride + piece * 8;
    rows = piece * 8 < c.width ? rows - row : 0;
#pragma unroll
    for (int i = 0; i < ROWS; i += turn)
        ptb_copy_async(to + i * 64, i < rows ? source + i * stride : from, i < rows);
}

// Group. s [64, 64] = a b^T over all columns: `a` 64 rows of a tile of A_ROWS from a_row on, b of B_ROWS from
// b_row on. Not committed. The left operand stays in shared memory also where registers could keep it: ptxas
// 13.0 loses such registers in loops (it gives them to the next left operand).
template <int WIDTH, int A_ROWS, int B_ROWS, typename T>
__device__ __forceinline__ void group_scores(float (&s)[1][8][4], const T *a, int a_row, const T *b,
                                             int b_row)
{
    uint32_t left = ptb_wgmma_row<false>(a, a_row), right = ptb_wgmma_row<false>(b, b_row);
#pragma unroll
    for (int k = 0; k < WIDTH; k += 16)
        ptb_wgmma<false>(s[0], ptb_wgmma_at(left, k / 64 * A_ROWS * 128 + k % 64 * 2),
                         ptb_wgmma_at(right, k / 64 * B_ROWS * 128 + k % 64 * 2), k > 0, T());
}

// p [64, 64] rounded to T, as a left operand.
template <typename T>
__device__ __forceinline__ void group_round(uint32_t (&left)[4][4], const float (&p)[1][8][4], T)
{
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            left[k][i] = ptb_pair(p[0][k * 2 + i / 2][i % 2 * 2], p[0][k * 2 + i / 2][i % 2 * 2 + 1], T());
}

// Sums of 64 columns of what a warp keeps, as products have them.
template <int COLUMNS>
__device__ __forceinline__ float (&group_block(float (&o)[1][COLUMNS / 8][4], int block))[8][4]
{
    return *reinterpret_cast<float(*)[8][4]>(&o[0][block * 8]);
}

// Group. o [64, WIDTH] += p b, b 64 rows of a tile of B_ROWS from b_row on. Not committed.
template <int WIDTH, int B_ROWS, typename T>
__device__ __forceinline__ void group_sums(float (&o)[1][WIDTH / 8][4], const uint32_t (&p)[4][4], const T *b,
                                           int b_row)
{
    uint32_t right = ptb_wgmma_row<true>(b, b_row);
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int block = 0; block < WIDTH / 64; block++)
            ptb_wgmma<true>(group_block<WIDTH>(o, block), p[k],
                            ptb_wgmma_at(right, block * B_ROWS * 128 + k * 16 * 128), true, T());
}

template <int WIDTH> __device__ __forceinline__ void group_hold(float (&o)[1][WIDTH / 8][4])
{
#pragma unroll
    for (int block = 0; block < WIDTH / 64; block++)
        ptb_wgmma_hold(group_block<WIDTH>(o, block));
}

#endif
