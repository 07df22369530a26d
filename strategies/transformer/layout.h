// Where every parameter of a model lies. Parameters are cut into units (embedding, block 0..L-1, head), each
// a flat range; units follow each other in one index space, so that a data-parallel strategy can cut it into
// buckets or shards without knowing what is inside. Gradients and optimizer state use the same indices.
#ifndef PTB_STRATEGIES_TRANSFORMER_LAYOUT_H
#define PTB_STRATEGIES_TRANSFORMER_LAYOUT_H

#include "core/status.h"

#include <stddef.h>
#include <stdint.h>

typedef struct {
    int64_t layers, hidden, heads, sequence, vocabulary;
    bool tied; // the head multiplies by the token table of the embedding
} ptb_model_shape;

// Tensors by kind of unit; a linear layer's weight is [outputs, inputs].
enum { PTB_EMBED_TOKENS, PTB_EMBED_POSITIONS };
enum {
    PTB_BLOCK_NORM1_GAIN,
    PTB_BLOCK_NORM1_BIAS,
    PTB_BLOCK_QKV_WEIGHT, // [3 hidden, hidden]: query, key, value rows
    PTB_BLOCK_QKV_BIAS,
    PTB_BLOCK_PROJECTION_WEIGHT,
    PTB_BLOCK_PROJECTION_BIAS,
    PTB_BLOCK_NORM2_GAIN,
    PTB_BLOCK_NORM2_BIAS,
    PTB_BLOCK_UP_WEIGHT, // [4 hidden, hidden]
    PTB_BLOCK_UP_BIAS,
    PTB_BLOCK_DOWN_WEIGHT, // [hidden, 4 hidden]
    PTB_BLOCK_DOWN_BIAS,
    PTB_TENSORS_MAX
};
enum { PTB_HEAD_NORM_GAIN, PTB_HEAD_NORM_BIAS, PTB_HEAD_WEIGHT }; // the weight is absent when tied

typedef struct {
    const char *name;
    size_t first;          // element of the unit; a multiple of 16 (64 bytes)
    size_t rows, columns;  // a vector has rows = 1
    bool decay;            // weight decay applies
    float mean, deviation; // of the initial values (normal)
} ptb_tensor;

typedef enum { PTB_UNIT_EMBEDDING, PTB_UNIT_BLOCK, PTB_UNIT_HEAD } ptb_unit_kind;

typedef struct {
    ptb_unit_kind kind;
    size_t first, count; // range in the index space; count includes padding, which stays zero
    size_t tensors;
    ptb_tensor tensor[PTB_TENSORS_MAX];
} ptb_unit;

typedef struct {
    ptb_model_shape shape;
    size_t units; // layers + 2: embedding 0, block b = b + 1, head last
    ptb_unit *unit;
    size_t count;                // length of the index space, padding included
    size_t parameters;           // without padding
    size_t embedding_parameters; // of them, token and position tables
} ptb_layout;

// USAGE, with the arithmetic, when the shape makes no model.
ptb_status ptb_layout_init(ptb_layout *layout, const ptb_model_shape *shape);
void ptb_layout_release(ptb_layout *layout);
static inline size_t ptb_tensor_count(const ptb_tensor *tensor)
{
    return tensor->rows * tensor->columns;
}
// Initial values of a unit into host memory parameters[unit.count]; a function of (seed, position in the
// model) alone. Normal 0.02, the two projections into the residual stream 0.02 / sqrt(2 L) (Radford et al.
// 2019).
void ptb_layout_fill(const ptb_layout *layout, uint64_t seed, size_t unit, float *parameters);

// FLOPs of a training step per token (forward 1/3, backward 2/3), conventions of Chowdhery et al. 2022
// (PaLM), appendix B: 6 N + 12 L h s with N without embeddings (a tied head's matrix is not in N).
double ptb_layout_flops_palm(const ptb_layout *layout);
// What the matrix products of a step really compute per token, attention apart: 6 x every weight that a token
// is multiplied by, the head's included also when tied.
double ptb_layout_flops_linear(const ptb_layout *layout);

#endif
