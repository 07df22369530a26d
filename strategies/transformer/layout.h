// What a transformer is (its shape), and where every parameter of it lies. Parameters are cut into units
// (embedding, block 0..L-1, head), each a flat range; units follow each other in one index space, so that a
// data-parallel strategy can cut it into buckets or shards without knowing what is inside. Gradients and
// optimizer state use the same indices.
#ifndef PTB_STRATEGIES_TRANSFORMER_LAYOUT_H
#define PTB_STRATEGIES_TRANSFORMER_LAYOUT_H

#include "core/status.h"
#include "strategies/transformer/kernels.h"

#include <stddef.h>
#include <stdint.h>

typedef enum { PTB_LAYER_NORM, PTB_RMS_NORM } ptb_norm_kind;
typedef enum { PTB_LEARNED_POSITIONS, PTB_ROTARY_POSITIONS } ptb_position_kind;

// Blocks are x += projection(attention(norm(x))), x += feed_forward(norm(x)). A value of 0 stands for what
// its comment says; ptb_layout_init writes the value in its place.
typedef struct {
    int64_t layers, hidden, heads;
    int64_t kv_heads;     // heads of key and value; divides heads; 0: heads
    int64_t head_width;   // 0: hidden / heads
    int64_t feed_forward; // width between the two layers of a dense feed-forward; 0: 4 hidden
    int64_t sequence;     // tokens of a sequence
    int64_t positions;    // longest sequence of the model, rows of the learned table; 0: sequence
    int64_t vocabulary;
    ptb_norm_kind norm;
    double epsilon; // of the norms; 0: 1e-5
    ptb_position_kind position;
    double rotary_base; // 0: 10000
    ptb_activation_kind activation;
    bool biases; // of the linear layers and of LayerNorm; experts, router and head have none
    bool tied;   // the head multiplies by the token table of the embedding
    double
        dropout; // rate, of the embedding, the attention's probabilities, and what each half of a block adds
    // Mixture of experts in place of the dense feed-forward (kernels.h, ptb_route). experts 0: none.
    int64_t experts, top_k;
    int64_t expert_hidden;  // width between the two layers of an expert; 0: feed_forward
    int64_t shared_experts; // experts that every token goes through, computed as one of their joint width
    int64_t dense_layers;   // this many blocks from the first on stay dense
    double capacity_factor; // an expert takes at most ceil(factor * rows * top_k / experts); 0: dropless
    double balance;         // coefficient of the load-balancing loss, summed over the blocks
    bool normalise;         // the top_k weights of a token are divided by their sum
} ptb_model_shape;

// What tensors are for. A linear layer's weight is [outputs, inputs]. With D = head_width, F = feed_forward,
// E = experts, f = expert_hidden, G = 2 for SwiGLU (gate rows, then up rows), else 1:
typedef enum {
    // embedding
    PTB_EMBED_TOKENS,    // [vocabulary, hidden]
    PTB_EMBED_POSITIONS, // [positions, hidden]; learned positions
    // block
    PTB_BLOCK_NORM1_GAIN,
    PTB_BLOCK_NORM1_BIAS,        // LayerNorm with biases
    PTB_BLOCK_QKV_WEIGHT,        // [(heads + 2 kv_heads) D, hidden]: query, key, value rows
    PTB_BLOCK_QKV_BIAS,          // biases, as all below
    PTB_BLOCK_PROJECTION_WEIGHT, // [hidden, heads D]
    PTB_BLOCK_PROJECTION_BIAS,
    PTB_BLOCK_NORM2_GAIN,
    PTB_BLOCK_NORM2_BIAS,
    // dense feed-forward
    PTB_BLOCK_UP_WEIGHT, // [G F, hidden]
    PTB_BLOCK_UP_BIAS,
    PTB_BLOCK_DOWN_WEIGHT, // [hidden, F]
    PTB_BLOCK_DOWN_BIAS,
    // mixture of experts
    PTB_BLOCK_ROUTER_WEIGHT,       // [E, hidden]
    PTB_BLOCK_SHARED_UP_WEIGHT,    // [G shared_experts f, hidden]
    PTB_BLOCK_SHARED_DOWN_WEIGHT,  // [hidden, shared_experts f]
    PTB_BLOCK_EXPERTS_UP_WEIGHT,   // [E, G f, hidden]
    PTB_BLOCK_EXPERTS_DOWN_WEIGHT, // [E, hidden, f]
    // head
    PTB_HEAD_NORM_GAIN,
    PTB_HEAD_NORM_BIAS,
    PTB_HEAD_WEIGHT, // [vocabulary, hidden]; absent when tied
    PTB_ROLE_COUNT
} ptb_tensor_role;

enum { PTB_TENSORS_MAX = 14 }; // of a unit

// What a gradient is summed over: dense ones over all data-parallel ranks, an expert's over those that hold
// it.
typedef enum { PTB_GROUP_DENSE, PTB_GROUP_EXPERT, PTB_GROUP_COUNT } ptb_reduction_group;

// What of the model this rank has: tensor-parallel rank tp_rank of tp has some heads, columns of the
// feed-forwards and of the vocabulary (Shoeybi et al. 2019, "Megatron-LM", section 3); expert-parallel rank
// ep_rank of ep some experts. Sizes of 0 stand for 1.
typedef struct {
    int tp, tp_rank, ep, ep_rank;
} ptb_layout_cut;

enum { PTB_BANDS_MAX = 3 };
// Sizes are those of this rank's part.
typedef struct {
    const char *name;
    ptb_tensor_role role;
    ptb_reduction_group group;
    size_t first;          // element of the unit; a multiple of 32 (64 bytes in 16-bit types)
    size_t matrices;       // experts: [matrices, rows, columns]; else 1
    size_t rows, columns;  // a vector has rows = 1
    bool decay;            // weight decay applies
    float mean, deviation; // of the initial values (normal)
    // Where the part lies in the model's tensor [.., whole_lines, whole_line]. A line is a row, of a vector
    // an element. Lines of the part are bands that follow each other; columns of a row are one range.
    bool replicated; // the same on all ranks of the tp axis
    uint8_t number;  // of the tensor in the unit of the whole model
    size_t first_matrix, whole_matrices, whole_lines, whole_line, first_column;
    struct {
        size_t first, count; // lines
    } band[PTB_BANDS_MAX];
} ptb_tensor;

typedef enum { PTB_UNIT_EMBEDDING, PTB_UNIT_BLOCK, PTB_UNIT_HEAD } ptb_unit_kind;

typedef struct {
    ptb_unit_kind kind;
    bool mixture;        // a block with experts
    size_t first, count; // range in the index space; count includes padding, which stays zero
    // The part of each group, [first, first + count) of the unit: dense tensors, then experts'.
    struct {
        size_t first, count;
    } group[PTB_GROUP_COUNT];
    size_t replicated_first; // with tp > 1, dense tensors from here on are replicated over tp, others cut
    size_t tensors;
    // In order of `first`, which is the order of use, but for tp > 1, where replicated tensors are the last
    // dense ones.
    ptb_tensor tensor[PTB_TENSORS_MAX];
    int8_t place[PTB_ROLE_COUNT]; // 1 + index in tensor; 0: the unit has none of this role
} ptb_unit;

typedef struct {
    ptb_model_shape shape; // of the whole model; no value that stands for another
    ptb_layout_cut cut;    // sizes 1 at least
    // What this rank has of it: heads, kv_heads, feed_forward, expert_hidden, experts and vocabulary are its
    // part, everything else is as in `shape`.
    ptb_model_shape local;
    size_t shared_width;             // its part of the joint inner width of the shared experts
    size_t first_token;              // of its part of the vocabulary
    size_t first_head, first_expert; // query heads, routed experts
    size_t units;                    // layers + 2: embedding 0, block b = b + 1, head last
    ptb_unit *unit;
    size_t count;                // length of this rank's index space, padding included
    size_t parameters;           // of the whole model, without padding, a tied head once
    size_t active_parameters;    // of them, those that one token goes through: top_k of the experts
    size_t embedding_parameters; // of them, token and position tables
} ptb_layout;

// USAGE, with the arithmetic, when the shape makes no model, or none that can be cut so. cut NULL: all of it.
ptb_status ptb_layout_init(ptb_layout *layout, const ptb_model_shape *shape, const ptb_layout_cut *cut);
void ptb_layout_release(ptb_layout *layout);
// The unit that has this element of the index space.
size_t ptb_layout_unit_at(const ptb_layout *layout, size_t element);
static inline size_t ptb_tensor_count(const ptb_tensor *tensor)
{
    return tensor->matrices * tensor->rows * tensor->columns;
}
// The elements of the model's tensor that elements `at` and on of the part are: *whole is the number of the
// first; returns how many follow each other there, 1 at least. at < ptb_tensor_count.
size_t ptb_tensor_run(const ptb_tensor *tensor, size_t at, size_t *whole);
// Elements of the whole model's tensor.
static inline size_t ptb_tensor_whole_count(const ptb_tensor *tensor)
{
    return tensor->whole_matrices * tensor->whole_lines * tensor->whole_line;
}
// NULL when the unit has none.
static inline const ptb_tensor *ptb_unit_tensor(const ptb_unit *unit, ptb_tensor_role role)
{
    return unit->place[role] ? &unit->tensor[unit->place[role] - 1] : NULL;
}
// Initial values of a unit into host memory parameters[unit.count]; a function of (seed, unit, number of the
// tensor in the whole model's unit, element of the whole tensor) alone: ptb_random_normal(seed, unit << 8 |
// number, element), so that any cut of the model has the same values.
// Normal 0.02, the projections into the residual stream 0.02 / sqrt(2 L) (Radford et al. 2019).
void ptb_layout_fill(const ptb_layout *layout, uint64_t seed, size_t unit, float *parameters);
// The same of elements [first, first + count) of the index space, by `threads` threads; padding is zero.
void ptb_layout_fill_range(const ptb_layout *layout, uint64_t seed, size_t first, size_t count, int threads,
                           float *values /* [count] */);

// FLOPs of a training step per token (forward 1/3, backward 2/3) by the conventions in use. N, the parameters
// that a token goes through (top_k routed experts and the shared ones), is without embeddings; a tied head's
// matrix is not in it. L layers, h = heads * head_width, s sequence.
//
// Chowdhery et al. 2022 (PaLM), appendix B: 6 N + 12 L h s, attention as if every token saw the whole
// sequence.
double ptb_layout_flops_palm(const ptb_layout *layout);
// The same with the half of attention that a causal mask leaves (llm.c): 6 N + 6 L h s.
double ptb_layout_flops_causal(const ptb_layout *layout);
// Megatron-LM: matrix products alone, the head's included also when tied, causal half of attention:
// 6 [L (h (q + k + v) + q h + g h f) + h V] + 6 L q s, with h = hidden, q, k, v the widths of query, key and
// value, g = 3 for SwiGLU, else 2, and f of the top_k routed experts and the shared ones together; no router.
double ptb_layout_flops_megatron(const ptb_layout *layout);
// Multiplications and additions of the linear layers' products per token and forward pass: 2 x every weight
// that a token is multiplied by, the head's included also when tied. Attention apart.
double ptb_layout_flops_linear(const ptb_layout *layout);

#endif
