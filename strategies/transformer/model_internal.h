// Shared by the files of the model: what it holds, and the steps that its units have in common. A new kind of
// block is a file beside model_block.c and model_mixture.c, its buffers in model_memory.c.
//
// Widths, of this rank's part of the model (layout.h, `local`): N rows of a microbatch, M of them in this
// rank's slice of the residual stream (all, but with sequence parallelism), C hidden, A = heads * head_width,
// Q = (heads + 2 kv_heads) * head_width, F feed_forward, G = 2 for SwiGLU, else 1; mixture of experts: E
// experts, K top_k, S slots that choices take, f expert_hidden, s = shared_experts * f.
#ifndef PTB_STRATEGIES_TRANSFORMER_MODEL_INTERNAL_H
#define PTB_STRATEGIES_TRANSFORMER_MODEL_INTERNAL_H

#include "strategies/expert/dispatch.h"
#include "strategies/transformer/model.h"

// What a block keeps from forward to backward. Of a block that is recomputed all but `out` is shared with the
// others.
typedef struct {
    void *norm1;                    /* [M, C] */
    float *norm1_mean, *norm1_rstd; /* [M]; RMSNorm has no mean */
    void *qkv;                      /* [N, Q] */
    float *lse;                     /* [batch, heads, sequence] */
    void *attention;                /* [N, A] */
    void *context;                  // what a context-parallel axis keeps
    void *middle;                   /* [M, C]: residual stream after attention */
    void *norm2;                    /* [M, C] */
    float *norm2_mean, *norm2_rstd; /* [M] */
    void *up, *activated;           /* dense: [N, GF], [N, F]; mixture: [R, Gf], [R, f] */
    void *out;                      /* [M, C]: residual stream after the block */
    // Mixture.
    float *probabilities;      /* [N, E] */
    int32_t *expert, *slot;    /* [N, K] */
    float *weight;             /* [N, K] */
    int32_t *offsets, *counts; /* [E + 1], [E] */
    void *dispatched;          /* [R, C] */
    void *expert_out;          /* [T, C] */
    ptb_expert_flow flow;      // of experts on several ranks
    int64_t *tally;            /* [2, E]: choices, and those that capacity left, of all microbatches */
    void *shared_up, *shared_activated; /* [N, Gs], [N, s] */
} ptb_block_state;

// Gradients of the outputs of a block's linear layers, and of the residual stream. Shared by all blocks, and
// partly the same memory, unless weight gradients are deferred.
typedef struct {
    void *d_out;        /* [M, C]: of the block's output */
    void *d_middle;     /* [M, C]: of the stream between the halves */
    void *d_feed;       /* [M, C]: of what the feed-forward adds; d_out without dropout */
    void *d_projection; /* [M, C]: of what attention adds; d_middle without dropout */
    void *d_up;         /* as up */
    void *d_qkv;        /* [N, Q] */
    void *d_router;     /* [N, E] */
    void *d_expert_out; /* [R, C]; takes the place of expert_out where that is kept and the same rows */
    void *d_shared_up;  /* [N, Gs] */
} ptb_block_gradients;

// One microbatch.
typedef struct {
    ptb_microbatch microbatch;
    int32_t *inputs, *targets, *starts; /* [N]; starts NULL: not packed */
    double *balance;        /* [1]: its load-balancing losses; NULL: none, or those of a balance axis */
    void *embedded;         /* [M, C] */
    ptb_block_state *block; // [layers]
    ptb_block_gradients *gradients; // [layers]
    void *norm;                     /* [M, C]: input of the head's product, after the loss its gradient */
    float *norm_mean, *norm_rstd;   /* [M] */
    void *d_embedded;               /* [M, C] */
} ptb_slot;

typedef struct {
    size_t rows, slice;                                  // N, M
    size_t hidden, attention, qkv, up, activated, heads; // C, A, Q, GF, F
    size_t experts, top_k, capacity, slots;              // capacity 0: dropless
    ptb_expert_sizes flow; // of experts on several ranks; else received = results = slots
    size_t expert_up, expert_activated, shared_up, shared_activated;
    size_t vocabulary, loss_rows;
    size_t logits_stride; // V'
    size_t element;       // bytes of the compute type
} ptb_model_widths;

struct ptb_model {
    ptb_model_config config; // no value that stands for another
    ptb_model_widths w;
    ptb_slot *slot;                     // [slots]
    ptb_block_state *states;            // [slots * layers], behind the slots' pointers
    ptb_block_gradients *all_gradients; // [slots * layers]
    size_t *lists;                      // of flows, [slots * layers * PTB_EXPERT_LISTS * ep]; NULL: none
    int64_t *tally;                     /* [layers, 2, E], device memory; of mixtures */
    // Scratch.
    float *logits;   /* [loss_rows, V'] */
    void *d_logits;  /* [loss_rows, V']; logits in f32 */
    float *losses;   /* [loss_rows] */
    void *d_norm;    /* [M, C]; the tensor-parallel axis' `partial` where that has as many rows */
    void *d_inner;   /* [N, A], [N, F], [R, C], [R, f] or [N, s], one after the other */
    float *d_weight; /* [N, K] */
    void *attention_workspace;
    void *activations, *workspace; // the two allocations that everything lies in
};

// A unit's forward or backward for one microbatch.
typedef struct {
    ptb_model *m;
    ptb_slot *slot;
    size_t number; // of the unit
    const ptb_unit *unit;
    const ptb_unit_memory *memory;
    int parts; // of backward
    bool accumulate;
    const ptb_kernels *k;
    ptb_stream *stream;
    // Of a block.
    ptb_block_state *state;
    ptb_block_gradients *g;
    const void *in; /* [M, C]: output of the unit before */
    void *d_in;     /* [M, C] */
} ptb_pass;

// model_memory.c
ptb_model_widths ptb_model_widths_of(const ptb_model_config *config);
// Sets all pointers of the model into its two allocations; NULL memory: only counts. Both sizes in bytes.
void ptb_model_place(ptb_model *model, size_t *activation_bytes, size_t *workspace_bytes);
bool ptb_model_recomputes(const ptb_model *model, size_t block);

// model_tensor.c: what tensor parallelism does around a layer; without an axis there is one chunk of all
// rows, nothing waits and nothing is summed.
//
// Rows that a column-parallel layer reads, from slices: begin, rows, wait. Chunks are of N rows.
ptb_status ptb_pass_gather(const ptb_pass *p, const void *slice);
const void *ptb_pass_whole(const ptb_pass *p, const void *slice); /* [N, C] */
int ptb_pass_gather_chunks(const ptb_pass *p);
ptb_range ptb_pass_gather_chunk(const ptb_pass *p, int chunk);
ptb_status ptb_pass_wait(const ptb_pass *p, int chunk); // and for those before
ptb_status ptb_pass_wait_all(const ptb_pass *p);
// Sums of what ranks have computed of the same rows: where compute writes its term [N, C] of `out` [M, C],
// the sum of a chunk of it, and the wait for all.
void *ptb_pass_term(const ptb_pass *p, void *out);
int ptb_pass_sum_chunks(const ptb_pass *p);
ptb_range ptb_pass_sum_chunk(const ptb_pass *p, int chunk);
ptb_status ptb_pass_sum(const ptb_pass *p, int chunk, void *out);
ptb_status ptb_pass_sum_values(const ptb_pass *p, float *values /* [count], in place */, size_t count);
ptb_status ptb_pass_join(const ptb_pass *p);
// The rank that adds, in a sum over ranks, what is the same on all.
bool ptb_pass_is_first(const ptb_pass *p);
bool ptb_pass_is_sliced(const ptb_pass *p); // sequence parallelism
// As ptb_tensor_axis_run.
size_t ptb_pass_run(const ptb_pass *p, size_t row, size_t *whole);
// What the first rank's term has of the residual stream, if it is added before the sum; else it is added, by
// ptb_pass_add_residual, to the sum: after dropout, and where ranks have their slice of the stream alone.
const void *ptb_pass_residual(const ptb_pass *p, const void *residual);
ptb_status ptb_pass_add_residual(const ptb_pass *p, ptb_dropout_place place, const void *residual, void *out);
// A pass for some parts of this one.
ptb_pass ptb_pass_parts(const ptb_pass *p, int parts);
// out = residual + dropout(layer(in)) of a row-parallel layer.
ptb_status ptb_pass_row_parallel(const ptb_pass *p, ptb_tensor_role weight, ptb_dropout_place place,
                                 const void *in, const void *residual, void *out);
// Backward of a column-parallel layer whose gathered input is on its way: d_norm, and the weight's gradient.
ptb_status ptb_pass_column_backward(const ptb_pass *p, ptb_tensor_role weight, const void *d_out,
                                    const void *in);
// Backward of a row-parallel layer, from the slice of its output's gradient, which is gathered.
ptb_status ptb_pass_row_backward(const ptb_pass *p, ptb_tensor_role weight, const void *d_out, const void *in,
                                 void *d_in);
// Tells that gradients from `first` on are complete, if the pass is for weights; of all of them, with
// sequence parallelism, after summing those that are replicated.
ptb_status ptb_pass_ready(const ptb_pass *p, const ptb_gradient_ready *ready, size_t first);

// model_pass.c: NULL where the unit has no tensor of the role.
const void *ptb_pass_parameter(const ptb_pass *p, ptb_tensor_role role);
float *ptb_pass_gradient(const ptb_pass *p, ptb_tensor_role role);
// Rows of consecutive positions: those of a piece of all sequences. Without context parallelism there is one
// piece, whole sequences.
typedef struct {
    size_t first, rows, length; // length: of a sequence
    int64_t offset;             // position of a sequence's first row
} ptb_pass_piece;
size_t ptb_pass_pieces(const ptb_pass *p);
ptb_pass_piece ptb_pass_piece_at(const ptb_pass *p, size_t i);
// base + elements of the compute type
void *ptb_pass_at(const ptb_pass *p, void *base, size_t elements);
// A linear layer with its bias, if it has one; offsets of the experts' rows, NULL: a plain layer. Where GELU
// follows the layer, forward writes it to `activated`; where GELU comes before the layer, backward takes its
// derivative at gelu_in into d_in. NULL: no GELU.
typedef struct {
    ptb_tensor_role weight;
    size_t rows;
    const int32_t *offsets;
    void *activated;
    const void *gelu_in;
} ptb_pass_layer;
ptb_status ptb_pass_linear(const ptb_pass *p, ptb_pass_layer layer, const void *in, const void *residual,
                           void *out);
// Those parts of its gradients that the pass is for; add: to d_in.
ptb_status ptb_pass_linear_backward(const ptb_pass *p, ptb_pass_layer layer, const void *d_out,
                                    const void *in, void *d_in, bool add);
ptb_status ptb_pass_norm(const ptb_pass *p, ptb_tensor_role gain, const void *in, void *out, float *mean,
                         float *rstd);
// What a norm's gradient is made of; residual is added to d_in.
typedef struct {
    void *d_in;
    const void *d_out, *in, *residual;
    const float *mean, *rstd;
} ptb_pass_norm_buffers;
ptb_status ptb_pass_norm_backward(const ptb_pass *p, ptb_tensor_role gain, const ptb_pass_norm_buffers *b);
// A layer up and the activation: up = layer(in), activated [rows, width]; and back, from the gradient of the
// layer down's output to d_up. d_activated: scratch of activated's shape, for activations but GELU.
ptb_status ptb_pass_up(const ptb_pass *p, ptb_pass_layer layer, size_t width, const void *in, void *up,
                       void *activated);
typedef struct {
    const void *d_out, *activated, *up;
    void *d_activated, *d_up;
} ptb_pass_down_buffers;
ptb_status ptb_pass_down_backward(const ptb_pass *p, ptb_pass_layer layer, size_t width,
                                  const ptb_pass_down_buffers *b);
ptb_status ptb_pass_dropout(const ptb_pass *p, ptb_dropout_place place, const void *in, const void *residual,
                            void *out);

// model_block.c, model_mixture.c, model_head.c, model_flops.c
ptb_status ptb_block_forward(const ptb_pass *p);
ptb_status ptb_block_backward(const ptb_pass *p, const ptb_gradient_ready *ready);
ptb_attention_shape ptb_block_attention_shape(const ptb_model_config *config);
// The feed-forward half of a mixture, from norm2 on. again: only what backward needs is computed anew.
ptb_status ptb_mixture_forward(const ptb_pass *p, bool again);
ptb_status ptb_mixture_backward(const ptb_pass *p); // up to d_norm
ptb_status ptb_head_forward(const ptb_pass *p);
ptb_status ptb_head_logits(const ptb_pass *p, size_t first, size_t rows, float *logits);
ptb_status ptb_head_loss(const ptb_pass *p, bool add, double *loss); // add: to *loss
ptb_status ptb_head_backward(const ptb_pass *p, const ptb_gradient_ready *ready);

#endif
