// How attention on CUDA is divided, for its kernels and for those who count what they do.
#ifndef PTB_STRATEGIES_TRANSFORMER_KERNELS_CUDA_ATTENTION_H
#define PTB_STRATEGIES_TRANSFORMER_KERNELS_CUDA_ATTENTION_H

#include "strategies/transformer/kernels_cuda_internal.h"

// Rows of queries that are computed or left out together (a warp's; a block's in f32), and keys.
typedef struct {
    int rows, keys;
} ptb_cuda_attention_tile;

enum {
    PTB_CUDA_ATTENTION_WIDTH = 256,                // widest head on tensor cores
    PTB_CUDA_ATTENTION_SHARED = 129 * 1024 + 1024, // bytes of shared memory that such heads need in a block
};

// Tensor cores compute 16-bit heads up to 256 wide, padded to 64, 128 or 256; the rest takes plain arithmetic
// in f32, at any width.
static inline bool ptb_cuda_attention_plain(ptb_dtype type, size_t head_width)
{
    return type == PTB_F32 || head_width > PTB_CUDA_ATTENTION_WIDTH;
}

static inline ptb_cuda_attention_tile ptb_cuda_attention_tile_of(const ptb_attention_shape *s)
{
    ptb_cuda_attention_tile tile = {64, 64};
    if (ptb_cuda_attention_plain(s->type, s->head_width))
        return tile;
    tile.rows = s->head_width <= 128 ? 32 : 16;
    tile.keys = s->head_width <= 64 && !(s->dropout_rate > 0) ? 64 : 32;
    return tile;
}

#ifdef __cplusplus
extern "C" {
#endif

// Whether attention of this shape, its tensors aligned to 16 bytes, is computed by warp groups (wgmma): heads
// of at most 128 in 16-bit types without dropout, on a GPU of compute capability 9.0, by a program that was
// built for it. They compute or leave out 64 queries and 64 keys together. PTBENCH_CUDA_ATTENTION=mma in the
// environment says no, so that the two can be compared.
bool ptb_cuda_attention_wgmma(const ptb_attention_shape *shape);

// Launchers for what ptb_cuda_attention_plain says, behind ptb_cuda_launch_attention and its gradient.
int ptb_cuda_launch_attention_plain(struct CUstream_st *stream, const ptb_attention *args);
int ptb_cuda_launch_attention_gradient_plain(struct CUstream_st *stream, const ptb_attention_gradient *args);
// [batch, heads, query_length] of {lse in units of log 2, sum of d_out * out} into the workspace: what the
// gradient's kernels read of a row. A row that saw nothing has lse +INFINITY here: probabilities 0.
int ptb_cuda_launch_attention_key_gradient(struct CUstream_st *stream, const ptb_attention_gradient *args);
int ptb_cuda_launch_attention_query_gradient(struct CUstream_st *stream, const ptb_attention_gradient *args);
int ptb_cuda_launch_attention_rows(struct CUstream_st *stream, const ptb_attention_gradient *args);

#ifdef __cplusplus
}
#endif

#endif
