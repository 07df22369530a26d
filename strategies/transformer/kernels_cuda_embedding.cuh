// What the two ways share in which the back-end `cuda` adds rows of a gradient to the rows of a table that
// their keys name: kernels_cuda_embedding.cu sorts the keys, kernels_cuda_embedding_few.cu compares each with
// all, which is one launch, and is for few rows.
#ifndef PTB_STRATEGIES_TRANSFORMER_KERNELS_CUDA_EMBEDDING_CUH
#define PTB_STRATEGIES_TRANSFORMER_KERNELS_CUDA_EMBEDDING_CUH

#include "strategies/transformer/kernels_cuda.cuh"

// A row's key: the row of the table that its token has, or its position where there are no tokens. Keys from
// `limit` on are of tokens that the table does not have.
struct ptb_row_keys {
    const int32_t *tokens, *start; /* [rows] */
    size_t rows, sequence, offset;
    unsigned first_token, limit;
    __device__ unsigned of(size_t row) const
    {
        if (tokens)
            return (unsigned)tokens[row] - first_token;
        return (unsigned)(offset + row % sequence - (start ? start[row] : 0));
    }
};

static inline ptb_row_keys ptb_keys_of(const ptb_embedding_gradient *a, bool tokens)
{
    return {tokens ? a->tokens : nullptr,
            a->start,
            a->rows,
            a->sequence,
            a->position_offset,
            (unsigned)a->first_token,
            (unsigned)(tokens ? a->vocabulary : a->positions)};
}

extern "C" {

// Whether the rows are few enough for kernels_cuda_embedding_few.cu; tokens: d_table, else d_positions.
bool ptb_cuda_is_few(const ptb_embedding_gradient *a, bool tokens);

// d_table, d_positions or both, the rows being few enough; what is not accumulated is set first. A
// cudaError_t.
size_t ptb_cuda_few_scratch(const ptb_embedding_gradient *a);
int ptb_cuda_launch_few(struct CUstream_st *stream, const ptb_embedding_gradient *a, bool table,
                        bool positions, void *scratch);
}

#endif
