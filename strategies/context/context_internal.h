// Shared by the files of this folder: the numbers of a split, the buffers, and the three ways that plug-ins
// are made of: the ring (ring_pass.c), the exchange of heads (heads.c), and K and V gathered (all_gather.c).
#ifndef PTB_STRATEGIES_CONTEXT_CONTEXT_INTERNAL_H
#define PTB_STRATEGIES_CONTEXT_CONTEXT_INTERNAL_H

#include "strategies/context/context.h"

// Ranks are outer x inner, the inner index fastest: an inner group exchanges heads, so that each of its ranks
// has some heads of all its rows; outer ranks are a ring. A chunk is a piece of all ranks of an inner group.
typedef struct {
    int size, rank;
    size_t groups, inner;  // ranks of an inner group (degree), this one's place in it
    size_t outer, place;   // ranks of the ring, this one's place in it
    size_t batch, pieces;  // B, P
    size_t piece, chunk;   // tokens: L, and groups x L
    size_t rows, all_rows; // N = P B L; of all chunks of an inner group, groups x N
    // Elements of a row: query, key and value and both, before the exchange of heads and after it.
    size_t width, heads, kv_heads, query, kv, qkv; // D, H, K, A, W, Q
    size_t own_heads, own_kv_heads, own_query, own_kv;
    size_t copies; // ranks that have the same key and value heads, where there are more ranks than those
    size_t element;
} ptb_context_split;
ptb_context_split ptb_context_split_of(const ptb_context_axis *axis);
// Whether an inner group has whole sequences: nothing travels around a ring, nothing is merged.
static inline bool ptb_context_is_whole(const ptb_context_split *x)
{
    return x->outer == 1 && x->pieces == 1;
}

// Hands out 64-byte aligned pieces; without memory it only counts.
typedef struct ptb_context_arena {
    char *memory;
    size_t used;
} ptb_context_arena;
static inline void *ptb_context_piece(ptb_context_arena *a, size_t elements, size_t element_bytes)
{
    void *p = a->memory ? a->memory + a->used : NULL;
    a->used += (elements * element_bytes + 63) / 64 * 64;
    return p;
}

// Those that a plug-in does not place are NULL. One block of the model uses them at a time.
typedef struct ptb_context_buffers {
    void *communication, *workspace; // the two allocations
    size_t communication_bytes;
    ptb_event *arrived, *gradient_arrived; // recorded on the lane
    void *attention_workspace;
    // Ring; all_rows after the exchange of heads.
    void *block[2];        /* [P, B, chunk, own_kv]: one is computed with while the next arrives */
    float *d_block[2];     /* as block */
    void *part;            /* [B, chunk, own_query]: attention over one piece of keys */
    float *part_lse;       /* [B, own_heads, chunk] */
    float *out_sum;        /* [P, B, chunk, own_query]; in f32 the result itself, and NULL */
    void *d_query_part;    /* [B, chunk, stride of query] */
    void *d_block_part[2]; /* [B, chunk, own_kv] */
    float *d_query_sum;    /* as out_sum */
    // Exchange of heads: a part a rank of the inner group.
    void *send, *recv;                  /* [groups, N, own_query + own_kv] */
    int32_t *send_starts, *recv_starts; /* [N], [groups, N] */
    void *d_out, *d_query;              /* [all_rows, own_query] */
    void *d_kv;                         /* [all_rows, own_kv]; without a ring */
    // K and V gathered.
    void *gathered;        /* [n, P, B, L, W] */
    float *d_gathered;     /* as gathered */
    void *whole, *d_whole; /* [B, T, W] */
} ptb_context_buffers;

static inline ptb_context_buffers *ptb_context_buffers_of(const ptb_context_axis *axis)
{
    return axis->self;
}
static inline ptb_stream *ptb_context_compute(const ptb_context_axis *axis)
{
    return axis->env.lane->compute->stream;
}
// base + elements of the compute type
static inline void *ptb_context_at(const ptb_context_axis *axis, const void *base, size_t elements)
{
    return (char *)(uintptr_t)base + elements * ptb_dtype_size(axis->env.type);
}
// Moves blocks of the compute type on compute.
ptb_status ptb_context_move(const ptb_context_axis *axis, ptb_permute args);
// Largest workspace of attention between `queries` and `keys` tokens.
size_t ptb_context_attention_workspace(const ptb_context_axis *axis, size_t queries, size_t keys);

// ---- ring_pass.c: attention over rows whose chunks are spread over a ring. heads and key and value heads
// are own_heads and own_kv_heads; strides in elements. shape: as ptb_context_forward's, with dropout_head of
// own head 0 and query_start [P, B, chunk].
typedef struct {
    ptb_attention_shape shape;
    const void *query; /* [P, B, chunk, query_stride] */
    const void *kv;    /* [P, B, chunk, kv_stride] */
    size_t query_stride, kv_stride;
    void *out;  /* [P, B, chunk, own_query] */
    float *lse; /* [P, B, own_heads, chunk] */
} ptb_context_ring;

typedef struct {
    ptb_context_ring forward;
    const void *d_out; /* as out */
    void *d_query;     /* as query */
    // Gradient of kv: of whole sequences it is written to d_kv; else it is, complete and in f32, in the
    // buffer that ring_gradient names, [P, B, chunk, own_kv].
    void *d_kv;
} ptb_context_ring_backward;

void ptb_context_ring_place(const ptb_context_axis *axis, size_t query_stride, ptb_context_buffers *b,
                            ptb_context_arena *communication, ptb_context_arena *workspace);
ptb_status ptb_context_ring_run(ptb_context_axis *axis, const ptb_context_ring *args);
ptb_status ptb_context_ring_run_backward(ptb_context_axis *axis, const ptb_context_ring_backward *args);
const float *ptb_context_ring_gradient(const ptb_context_axis *axis);
double ptb_context_ring_flops(const ptb_context_axis *axis);

// ---- heads.c: heads exchanged within inner groups, then the ring of the outer ranks; of ptb_context.
size_t ptb_context_heads_kept(const ptb_context_axis *axis);
void ptb_context_heads_place(const ptb_context_axis *axis, ptb_context_buffers *b,
                             ptb_context_arena *communication, ptb_context_arena *workspace);
ptb_status ptb_context_heads_forward(ptb_context_axis *axis, const ptb_context_forward *args);
ptb_status ptb_context_heads_backward(ptb_context_axis *axis, const ptb_context_backward *args);
// Whether `degree` ranks can have heads of their own; else why not.
enum { PTB_CONTEXT_REASON = 256, PTB_CONTEXT_DEGREE_MAX = 64 };
bool ptb_context_heads_divide(const ptb_context_env *env, int degree, char reason[PTB_CONTEXT_REASON]);

#endif
