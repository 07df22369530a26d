// Context parallelism: sequences are split over the ranks of the mesh's cp axis, and attention, which alone
// looks from one token at another, is computed together. Everything else of a model works on the rows that a
// rank has (strategies/slices.h). Add a way to do it by adding strategies/context/X.c.
//
// Shapes: B sequences of a microbatch, T tokens of a whole sequence, n ranks, N = B T / n rows of a rank;
// H query heads, K key and value heads (of this rank's tensor-parallel part), D head_width, A = H D,
// W = 2 K D (key and value), Q = A + W; e bytes of the compute type. Each plug-in's head comment says what a
// block of the model sends and keeps in these letters.
//
// Everything enqueues and returns. What a rank waits for from others it waits for on the compute stream.
#ifndef PTB_STRATEGIES_CONTEXT_CONTEXT_H
#define PTB_STRATEGIES_CONTEXT_CONTEXT_H

#include "core/bench.h"
#include "strategies/lane.h"
#include "strategies/slices.h"
#include "strategies/transformer/kernels.h"
#include "strategies/transformer/layout.h"

typedef struct {
    int rank, size; // of the cp axis
    // ring_all_to_all: ranks that exchange heads with each other, neighbours on the axis; divides size. 0:
    // the largest divisor of size below size that the heads allow. Others do not read it.
    int degree;
    const ptb_kernels *kernels;
    const ptb_layout *layout; // outlives the axis
    int64_t batch;            // sequences of a microbatch
    ptb_dtype type;           // compute type
    bool packed;              // attention has starts
    int threads;              // of the kernels
    // Of rank and size; its compute stream is the model's. Read from open on; outlives the axis.
    ptb_lane *lane;
} ptb_context_env;

typedef struct ptb_context ptb_context;

// The axis as a model sees it. Described, it says what rows there are and what memory is needed; opened, it
// computes.
typedef struct {
    const ptb_context *ops;
    ptb_context_env env;
    ptb_slices slices;
    int degree;        // ranks that exchange heads with each other; 1: none
    size_t kept_bytes; // that it keeps of a block's forward for its backward, beside the model's own
    void *self;        // its buffers; NULL until it is opened
} ptb_context_axis;

// Attention of one block. shape: batch, heads, kv_heads, head_width, query_stride and key_stride (both Q),
// causal, scale, type, dropout (dropout_head: number of this rank's head 0 in the layer) and total_length (T)
// are the model's; query_start is [N] in the order of rows; lengths, offsets and workspace are not read.
typedef struct {
    ptb_attention_shape shape;
    const void *qkv; /* [N, Q]: query, key, value columns */
    void *out;       /* [N, A] */
    float *lse;      /* [N H], for backward */
    void *kept;      /* [kept_bytes], for backward */
} ptb_context_forward;

typedef struct {
    ptb_attention_shape shape;
    void *d_qkv;             /* [N, Q] */
    const void *qkv;         /* [N, Q] */
    const void *out, *d_out; /* [N, A] */
    const float *lse;        /* [N H] */
    void *kept;              /* [kept_bytes] */
} ptb_context_backward;

struct ptb_context_arena;
struct ptb_context_buffers;

struct ptb_context {
    ptb_plugin plugin;
    // Ranks that exchange heads with each other; 0: heads cannot be divided so, with why in `reason`
    // (PTB_REASON_BYTES).
    int (*degree)(const ptb_context_env *env, char *reason);
    bool zigzag;             // rank r has pieces r and 2n-1-r of 2n; else piece r of n
    const char *volume_form; // bytes a rank sends a block and step, in the letters above
    const char *memory_form; // bytes beside the model's own
    size_t (*kept_bytes)(const ptb_context_axis *axis); // NULL: none
    // Hands out the buffers, from memory of the lane's communicator and of the device.
    void (*place)(const ptb_context_axis *axis, struct ptb_context_buffers *buffers,
                  struct ptb_context_arena *communication, struct ptb_context_arena *workspace);
    ptb_status (*forward)(ptb_context_axis *axis, const ptb_context_forward *args);
    ptb_status (*backward)(ptb_context_axis *axis, const ptb_context_backward *args);
    // Of attention's products in one block's forward on this rank, as kernels.h counts them.
    double (*flops)(const ptb_context_axis *axis);
};

// USAGE, with the arithmetic in `reason` (PTB_REASON_BYTES), when sequences or heads cannot be divided so.
// Allocates nothing.
ptb_status ptb_context_describe(ptb_context_axis *axis, const ptb_context *ops, const ptb_context_env *env,
                                char *reason);
// Adds what open will allocate, by category, of a described axis.
void ptb_context_memory(const ptb_context_axis *axis, uint64_t bytes[PTB_MEMORY_COUNT]);
// Collective over the lane; all ranks return the same status. NO_MEMORY, logged.
ptb_status ptb_context_open(ptb_context_axis *axis);
// Collective; streams idle. An axis that was never opened is allowed.
void ptb_context_close(ptb_context_axis *axis);
// How sequences are split, and what really runs.
void ptb_context_facts(const ptb_context_axis *axis, ptb_params *facts);

#endif
