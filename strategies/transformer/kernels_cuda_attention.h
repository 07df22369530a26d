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

// Launchers. Plain is what ptb_cuda_attention_plain says; of the others, groups are those of warp groups, for
// heads of at most 128 whose tensors are aligned to 16 bytes, without dropout.
int ptb_cuda_launch_attention_plain(struct CUstream_st *stream, const ptb_attention *args);
int ptb_cuda_launch_attention_gradient_plain(struct CUstream_st *stream, const ptb_attention_gradient *args);
int ptb_cuda_enqueue_attention(struct CUstream_st *stream, const ptb_attention *args, bool groups);
int ptb_cuda_enqueue_attention_key_gradient(struct CUstream_st *stream, const ptb_attention_gradient *args,
                                            bool groups);
int ptb_cuda_enqueue_attention_query_gradient(struct CUstream_st *stream, const ptb_attention_gradient *args,
                                              bool groups);
// [batch, heads, query_length] of {lse in units of log 2, sum of d_out * out} into the workspace: what the
// gradient's kernels read of a row. A row that saw nothing has lse +INFINITY here: probabilities 0.
int ptb_cuda_launch_attention_rows(struct CUstream_st *stream, const ptb_attention_gradient *args);

#ifdef __cplusplus
}
#endif

#endif
