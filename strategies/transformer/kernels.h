// The math of a training step. A kernel is enqueued on a stream with one argument struct; pointers are device
// memory that must stay valid until the stream has passed it. Shapes are row-major; "rows" are tokens of this
// rank. Add a back-end by adding kernels_X.c.
//
// Types. `type` is the compute type of a call: f32, bf16 or f16. A `void *` has this type; a `float *` is f32
// whatever the type: gradients of parameters, statistics, master weights, optimizer state. Sums are always
// f32 or wider, and rounded once.
//
// Four properties strategies build on: the input gradient and the weight gradient of a linear layer are two
// kernels (zero-bubble schedules run the second later); attention takes position offsets and returns its
// log-sum-exp (context parallelism merges partial results); every gradient kernel can accumulate
// (microbatches); and nothing that a step decides from its data (routing, clipping, loss scale) comes back to
// the host, so a step can be enqueued whole.
#ifndef PTB_STRATEGIES_TRANSFORMER_KERNELS_H
#define PTB_STRATEGIES_TRANSFORMER_KERNELS_H

#include "core/device.h"
#include "core/registry.h"
#include "strategies/transformer/kernels_mixture.h"

// Elements between rows where 0 stands for as many as a row has.
static inline size_t ptb_row_stride(size_t stride, size_t width)
{
    return stride ? stride : width;
}

// ---- linear layers
//
// groups > 0 is one product a group (an expert): weight, bias and their gradients are [groups, ...], and
// group g has rows [offsets[g], offsets[g + 1]), offsets[0] = 0. Rows from offsets[groups] to `rows` are not
// touched. A group without rows has a zero weight gradient. On the host results do not depend on the number
// of threads, to the bit. GELU (see ptb_activation) is taken of a result before or after its rounding, as
// the back-end likes.

// out = in * weight^T + bias + residual
typedef struct {
    void *out;            /* [rows, columns]; f32 when wide */
    const void *in;       /* [rows, inner] */
    const void *weight;   /* [columns, inner] */
    const void *bias;     /* [columns], NULL: none */
    const void *residual; /* [rows, columns], out's type, NULL: none; may be out */
    void *activated;      /* [rows, columns]: GELU of out, NULL: none; not with wide or out_stride */
    size_t rows, columns, inner;
    size_t out_stride;      // elements between rows of out and residual; 0: columns
    size_t groups;          // 0: one plain product
    const int32_t *offsets; /* [groups + 1] */
    ptb_dtype type;
    bool wide; // out and residual are f32
} ptb_matmul;

// d_in = (d_out * weight (+ d_in)) times GELU's derivative at gelu_in
typedef struct {
    void *d_in;          /* [rows, inner] */
    const void *d_out;   /* [rows, columns] */
    const void *weight;  /* [columns, inner] */
    const void *gelu_in; /* [rows, inner], NULL: without GELU */
    size_t rows, columns, inner;
    size_t d_out_stride; // elements between rows of d_out; 0: columns
    size_t groups;
    const int32_t *offsets; /* [groups + 1] */
    ptb_dtype type;
    bool accumulate;
} ptb_matmul_input_gradient;

// d_weight = d_out^T * in (+ d_weight), d_bias = column sums of d_out (+ d_bias)
typedef struct {
    float *d_weight;   /* [columns, inner] */
    float *d_bias;     /* [columns], NULL: none */
    const void *d_out; /* [rows, columns] */
    const void *in;    /* [rows, inner] */
    size_t rows, columns, inner;
    size_t d_out_stride; // elements between rows of d_out; 0: columns
    size_t groups;
    const int32_t *offsets; /* [groups + 1] */
    ptb_dtype type;
    bool accumulate;
} ptb_matmul_weight_gradient;

// ---- normalisation

// LayerNorm (Ba et al. 2016): out = (in - mean) * rstd * gain + bias, rstd = 1 / sqrt(variance + epsilon).
// RMSNorm (Zhang and Sennrich 2019) when mean is NULL: out = in * rstd * gain, rstd = 1 / sqrt(mean(in^2) +
// epsilon).
typedef struct {
    void *out;          /* [rows, width] */
    float *mean, *rstd; /* [rows], kept for the backward pass; mean NULL: RMSNorm */
    const void *in;     /* [rows, width] */
    const void *gain;   /* [width] */
    const void *bias;   /* [width], NULL: none */
    size_t rows, width;
    float epsilon;
    ptb_dtype type;
} ptb_norm;

typedef struct {
    void *d_in;               /* [rows, width]; may be d_out */
    float *d_gain, *d_bias;   /* [width]; d_bias NULL: none */
    const void *d_out, *in;   /* [rows, width] */
    const float *mean, *rstd; /* [rows]; mean NULL: RMSNorm */
    const void *gain;         /* [width] */
    const void *residual;     /* [rows, width], added to d_in; NULL: none; may be d_in */
    size_t rows, width;
    ptb_dtype type;
    bool accumulate; // d_gain and d_bias
} ptb_norm_gradient;

// ---- attention

// Which rows of a packed sequence see each other. Row r of sequence b is at position offset + r; it sees
// position p when start[b * length + r] <= p, where start holds the position at which its document begins.
// start NULL: one document from position 0.

// Causal multi-head attention of query rows over key rows. Row r of sequence b starts at (b * length + r) *
// stride, head h at column h * head_width; query head h uses key and value head h / (heads / kv_heads)
// (grouped queries, Ainslie et al. 2023). Key row j is visible to query row i when query_start[i] <=
// key_offset + j and (not causal or key_offset + j <= query_offset + i). Scores are made a block at a time
// and never stored whole.
typedef struct {
    size_t batch, heads, kv_heads, head_width;
    size_t query_length, key_length;  // rows per sequence
    size_t query_stride, key_stride;  // elements between rows of query, and of key and value
    int64_t query_offset, key_offset; // position of row 0
    const int32_t *query_start;       /* [batch, query_length], see above; NULL: 0 */
    bool causal;
    float scale; // of the scores
    ptb_dtype type;
    // Dropout of the probabilities: see ptb_dropout; row is the query's, column (dropout_head + head) *
    // total_length + key position, modulo 2^32. rate 0: none.
    float dropout_rate;
    uint64_t dropout_seed, dropout_sequence; // key of this call; number of sequence 0 in the global batch
    size_t dropout_head;                     // number of head 0 in the whole layer
    size_t total_length;                     // of a whole sequence, for the numbering of dropout
    void *workspace;                         // attention_workspace() bytes
} ptb_attention_shape;

typedef struct {
    ptb_attention_shape shape;
    void *out;  /* [batch, query_length, heads * head_width] */
    float *lse; /* [batch, heads, query_length]: log of the sum of exp(score); -INFINITY where nothing is
                   visible */
    const void *query, *key, *value;
} ptb_attention;

// Gradients have the strides of query, key and value. Scores are computed again from lse (FlashAttention-2,
// Dao 2023, section 3.1).
typedef struct {
    ptb_attention_shape shape;
    void *d_query, *d_key, *d_value;
    const void *d_out, *out; /* [batch, query_length, heads * head_width] */
    const float *lse;        /* [batch, heads, query_length] */
    const void *query, *key, *value;
    bool accumulate; // all three gradients
} ptb_attention_gradient;

// Attention over some of the keys joins attention over others: with weights exp(lse) of the two, out is the
// mean and lse the log of the sum (Dao 2023, "FlashAttention-2", section 3.1.1; Liu et al. 2023, "Ring
// Attention"). Where neither saw a key, out is 0 and lse -INFINITY; values of one
// that saw none do not matter. The result so far is f32 whatever the
// type, so that many parts round once.
typedef struct {
    float *out;            /* [batch, length, heads * head_width]: result so far */
    float *lse;            /* [batch, heads, length] */
    void *rounded;         /* as out, type: the joined result; NULL: not wanted */
    const void *part;      /* as out, type */
    const float *part_lse; /* [batch, heads, length] */
    size_t batch, length, heads, head_width;
    ptb_dtype type;
    bool first; // there is no result so far: out and lse become the part's
} ptb_merge;

// Rotary positions (Su et al. 2021), in place: columns i and i + head_width / 2 of a head are turned by
// position * base^(-2 i / head_width) (the halves are paired, as in Hugging Face's Llama). inverse turns
// back, which is the gradient. head_width is even. Position of row r: offset + r mod length - start[r].
typedef struct {
    void *values; /* [rows, stride], heads from column 0 */
    size_t rows, stride, heads, head_width;
    size_t length;        // rows of a sequence
    int64_t offset;       // position of a sequence's row 0
    const int32_t *start; /* [rows], NULL: 0 */
    float base;
    bool inverse;
    ptb_dtype type;
} ptb_rotary;

// ---- elementwise

// GELU, tanh form: in / 2 * (1 + tanh(sqrt(2 / pi) * (in + 0.044715 in^3))) (Hendrycks and Gimpel 2016);
// in is [rows, width]. SwiGLU (Shazeer 2020): in is [rows, 2 width], gate then up; out = gate * sigmoid(gate)
// * up. With `used`, rows from *used on are of no interest: they are not computed.
typedef enum { PTB_GELU, PTB_SWIGLU } ptb_activation_kind;
typedef struct {
    void *out;      /* [rows, width] */
    const void *in; /* [rows, width or 2 width] */
    size_t rows, width;
    ptb_activation_kind kind;
    ptb_dtype type;
    const int32_t *used; /* [1], NULL: all rows */
} ptb_activation;

typedef struct {
    void *d_in;        /* as in; GELU: may be d_out */
    const void *d_out; /* [rows, width] */
    const void *in;    /* [rows, width or 2 width] */
    size_t rows, width;
    ptb_activation_kind kind;
    ptb_dtype type;
    const int32_t *used; /* [1], NULL: all rows */
} ptb_activation_gradient;

// out = a + b; out may be a or b
typedef struct {
    void *out;
    const void *a, *b; /* [count] */
    size_t count;
    ptb_dtype type;
} ptb_add;

// out = in / (1 - rate) where a counter-based draw of (seed, global row, column) is at least rate, else 0,
// plus residual; the draw is defined in strategies/transformer/dropout.h. Global row of row r: (sequence + r
// / length) * total_length + offset + r mod length, so that every sharding draws the same mask; its own
// gradient when applied to d_out.
typedef struct {
    void *out;            /* [rows, width]; may be in or residual */
    const void *in;       /* [rows, width] */
    const void *residual; /* [rows, width], NULL: none */
    size_t rows, width;
    size_t length, total_length; // rows of a sequence here, and of a whole one
    uint64_t sequence;           // number of sequence 0 in the global batch
    int64_t offset;              // position of a sequence's row 0
    uint64_t seed;               // of the step and the place in the model
    float rate;
    ptb_dtype type;
} ptb_dropout;

// out = (out's type) in
typedef struct {
    void *out;
    const void *in; /* [count] */
    size_t count;
    ptb_dtype out_type, in_type;
} ptb_convert;

// out[i, j, k, c] = (out's type) in[i, j, k, c] (+ out) for i, j, k < count, c < width. Element c of a block
// is at i stride[0] + j stride[1] + k stride[2] + c of either side, in elements; strides may be negative, of
// in also 0. Blocks of out do not overlap each other or in. Of one type on both sides and without accumulate
// bits are moved, which i32 may be, too; else types are compute types.
typedef struct {
    void *out;
    const void *in;
    int64_t out_stride[3], in_stride[3];
    size_t count[3], width;
    ptb_dtype out_type, in_type;
    bool accumulate;
} ptb_permute;

// ---- embedding and loss

// out = table[token - first_token] + positions[position], position = position_offset + row mod sequence -
// start[row]. The table may be a part of the vocabulary: tokens outside of it count as rows of zeros.
typedef struct {
    void *out;             /* [rows, width] */
    const int32_t *tokens; /* [rows] */
    const int32_t *start;  /* [rows], NULL: 0 */
    const void *table;     /* [vocabulary, width] */
    const void *positions; /* [.., width], NULL: none (rotary) */
    size_t rows, sequence, width, vocabulary;
    size_t first_token; // of the table
    size_t position_offset;
    ptb_dtype type;
} ptb_embedding;

// Tokens outside of the table add nothing to it.
typedef struct {
    float *d_table;        /* [vocabulary, width] */
    float *d_positions;    /* [positions, width], NULL: none */
    const void *d_out;     /* [rows, width] */
    const int32_t *tokens; /* [rows] */
    const int32_t *start;  /* [rows], NULL: 0 */
    size_t rows, sequence, width, vocabulary, positions;
    size_t first_token; // of the table
    size_t position_offset;
    ptb_dtype type;
    bool accumulate_table, accumulate_positions;
} ptb_embedding_gradient;

// Cross-entropy forward and backward in one pass over some rows of the batch: *loss = scale * sum of -log
// softmax(logits)[target] (+ *loss); d_logits = scale * factor * (softmax - one-hot). A row whose target is
// negative counts nothing and has gradient 0.
typedef struct {
    float *logits;          /* [rows, vocabulary]; destroyed */
    void *d_logits;         /* [rows, vocabulary]; may be logits when type is f32 */
    const int32_t *targets; /* [rows] */
    float *losses;          /* [rows]: -log softmax of each row */
    double *loss;           /* [1] */
    const float *factor;    /* [1]: loss scale of f16 training; NULL: 1 */
    size_t rows, vocabulary;
    size_t stride; // elements between rows of logits and of d_logits; 0: vocabulary
    double scale;
    ptb_dtype type;
    bool accumulate; // *loss
} ptb_cross_entropy;

// The same of logits whose columns are cut over ranks: tokens [first_token, first_token + vocabulary) are
// here. What a rank knows of a row are three numbers, from which all ranks, once they have those of each
// other (an all-gather), know the loss, and each its part of the gradient (Shoeybi et al. 2019, section 3:
// logits are never gathered; merging of sums that are relative to their own maximum: Milakov and Gimelshein
// 2018).
typedef struct {
    float *statistics;      /* [3, rows]: the largest of a row's logits here; the sum of exp(logit - largest);
                               the target's logit, -INFINITY where it is elsewhere or negative */
    const float *logits;    /* [rows, vocabulary] */
    const int32_t *targets; /* [rows], of the whole vocabulary */
    size_t rows, vocabulary;
    size_t stride; // elements between rows of logits; 0: vocabulary
    size_t first_token;
} ptb_loss_statistics;

// As ptb_cross_entropy, with the statistics of all `parts` of the vocabulary, in the same order everywhere.
typedef struct {
    float *logits;           /* [rows, vocabulary]; destroyed */
    void *d_logits;          /* [rows, vocabulary]; may be logits when type is f32 */
    const float *statistics; /* [parts, 3, rows] */
    const int32_t *targets;  /* [rows], of the whole vocabulary */
    float *losses;           /* [rows] */
    double *loss;            /* [1] */
    const float *factor;     /* [1], NULL: 1 */
    size_t rows, vocabulary, parts;
    size_t stride; // elements between rows of logits and of d_logits; 0: vocabulary
    size_t first_token;
    double scale;
    ptb_dtype type;
    bool accumulate; // *loss
} ptb_loss_gradient;

// ---- mixture of experts: kernels_mixture.h

// ---- optimizer

// What an update needs that changes from step to step; device memory, one a rank, so that a step which was
// recorded can be replayed. The host sets it up and writes the rate; update_begin keeps the rest.
typedef struct {
    float factor;                    // every gradient is multiplied by this: 1 / loss scale, and clipping
    float loss_scale;                // of the next loss; 1 but in f16
    float rate;                      // learning rate of this step
    uint32_t skip;                   // 1: some gradient is not finite; parameters and moments stay
    uint32_t good, skipped;          // steps since the scale last changed; steps skipped so far
    uint64_t applied;                // updates done, this one included
    double beta1_power, beta2_power; // beta^applied
    double norm;                     // global norm of the unscaled gradient, before clipping
} ptb_update;

// *sum = sum of squares of `count` values (+ *sum), in double, in one order for any number of threads
typedef struct {
    double *sum;
    const float *values; /* [count] */
    size_t count;
    bool accumulate;
} ptb_sum_squares;

// From the sum of squares of all gradients (over all ranks; NULL: not needed without clip and dynamic):
// factor, skip, norm, applied, powers. clip: largest global norm (Pascanu et al. 2013), 0: none. dynamic: the
// loss scale halves when a gradient is not finite and doubles after `growth_interval` good steps, within 1
// and 2^24 (Micikevicius et al. 2018); not dynamic: steps are never skipped. Powers are those of `applied`.
typedef struct {
    ptb_update *update;
    const double *sum_squares;
    double clip, beta1, beta2;
    uint32_t growth_interval;
    bool dynamic;
} ptb_update_begin;

// Decoupled weight decay (Loshchilov and Hutter 2019, algorithm 2): with g = factor * gradient, m and v are
// running means of g and its square; parameter -= update->rate * (m / correction1 / (sqrt(v / correction2) +
// epsilon)
// + decay * parameter); corrections are 1 - beta^applied. Nothing changes when update->skip.
typedef struct {
    float *parameter, *m, *v; /* [count] */
    const float *gradient;    /* [count] */
    void *rounded;            /* [count]: the new parameter in `type`; NULL: none */
    const ptb_update *update;
    size_t count;
    float beta1, beta2, epsilon, decay;
    ptb_dtype type;
} ptb_adamw;

// Momentum (Sutskever et al. 2013, PyTorch's form): m = momentum * m + g + decay * parameter; parameter -=
// update->rate * m. m NULL: momentum 0.
typedef struct {
    float *parameter, *m; /* [count] */
    const float *gradient;
    void *rounded;
    const ptb_update *update;
    size_t count;
    float momentum, decay;
    ptb_dtype type;
} ptb_sgd;

// method, its argument struct: ptb_status (*method)(ptb_stream *stream, const struct *arguments)
#define PTB_KERNEL_LIST(X)                                                                                   \
    X(matmul, ptb_matmul)                                                                                    \
    X(matmul_input_gradient, ptb_matmul_input_gradient)                                                      \
    X(matmul_weight_gradient, ptb_matmul_weight_gradient)                                                    \
    X(norm, ptb_norm)                                                                                        \
    X(norm_gradient, ptb_norm_gradient)                                                                      \
    X(attention, ptb_attention)                                                                              \
    X(attention_gradient, ptb_attention_gradient)                                                            \
    X(merge, ptb_merge)                                                                                      \
    X(rotary, ptb_rotary)                                                                                    \
    X(activation, ptb_activation)                                                                            \
    X(activation_gradient, ptb_activation_gradient)                                                          \
    X(add, ptb_add)                                                                                          \
    X(dropout, ptb_dropout)                                                                                  \
    X(convert, ptb_convert)                                                                                  \
    X(permute, ptb_permute)                                                                                  \
    X(embedding, ptb_embedding)                                                                              \
    X(embedding_gradient, ptb_embedding_gradient)                                                            \
    X(cross_entropy, ptb_cross_entropy)                                                                      \
    X(loss_statistics, ptb_loss_statistics)                                                                  \
    X(loss_gradient, ptb_loss_gradient)                                                                      \
    X(route, ptb_route)                                                                                      \
    X(route_gradient, ptb_route_gradient)                                                                    \
    X(balance_loss, ptb_balance_loss)                                                                        \
    X(dispatch, ptb_dispatch)                                                                                \
    X(dispatch_gradient, ptb_dispatch_gradient)                                                              \
    X(combine, ptb_combine)                                                                                  \
    X(combine_gradient, ptb_combine_gradient)                                                                \
    X(expert_order, ptb_expert_order)                                                                        \
    X(sum_squares, ptb_sum_squares)                                                                          \
    X(update_begin, ptb_update_begin)                                                                        \
    X(adamw, ptb_adamw)                                                                                      \
    X(sgd, ptb_sgd)

typedef struct {
    ptb_plugin plugin;
    const char *device; // registered name of the device whose streams and memory they take; NULL: host
#define X(method, arguments) ptb_status (*method)(ptb_stream * stream, const arguments *args);
    PTB_KERNEL_LIST(X)
#undef X
    // Compute types it has: bits 1u << type.
    unsigned types;
    // Rows whose logits are best made at once: what a model takes unless it is told; 0: at most 256, and half
    // of all, so that they stay in a processor's caches.
    size_t loss_rows;
    // Processor threads that kernels of this stream use from now on (host; ignored elsewhere).
    ptb_status (*set_threads)(ptb_stream *stream, int threads);
    // f32 products of linear layers of this stream, and their peak, through TF32 from now on: operands
    // rounded to 10 bits of mantissa, sums in f32. NULL: has none.
    ptb_status (*set_tf32)(ptb_stream *stream, bool on);
    // Whether this stream's linear layers take the fastest of several algorithms, timed when a product first
    // comes (on at first), or one that does not depend on time, so that runs repeat to the bit. NULL: nothing
    // depends on time.
    ptb_status (*set_search)(ptb_stream *stream, bool on);
    // Linear layers keep some memory with their stream, category workspace: stream_workspace(threads) bytes,
    // allocated by reserve (which waits for the stream) or else by the first linear layer, freed with the
    // stream. reserve comes after set_threads.
    ptb_status (*reserve)(ptb_stream *stream);
    size_t (*stream_workspace)(int threads);
    // Bytes that sum_squares keeps with a stream that has no linear layers, category workspace, allocated by
    // its first call.
    size_t sum_workspace;
    // The best rate of matrix products of this type measured now, with `threads` threads and nothing else to
    // do: what utilisation (MFU) refers to. Waits for the stream, then takes about 1 s at most. CUDA: the
    // best of several runs of cuBLASLt's product, squares of 8192 and of 4096 (small ones on a simulated
    // device, whose rate says nothing of GPUs), with random operands, which are in no category of the ledger.
    // Host: the best of a few runs of our own product, oneDNN's sgemm and oneDNN's product with packed
    // weights, rows x columns x depth 1024 x 3072 x 768 and 1024 x 1024 x 1024, operands in the caches'
    // reach; f16 has the rate of f32.
    ptb_status (*matmul_peak)(ptb_stream *stream, ptb_dtype type, int threads, double *flops_per_s);
    // Copies with the threads of the stream; streaming: past the caches, where the processor can; CUDA: by a
    // kernel, and not by cudaMemcpyAsync. The faster
    // of the two is the memory bandwidth that kernels are held to.
    ptb_status (*copy)(ptb_stream *stream, void *to, const void *from, size_t bytes, bool streaming);
    // Reads all of `from` (whole cache lines of it) with the threads of the stream and does no more: what
    // kernels that write next to nothing are held to.
    ptb_status (*read)(ptb_stream *stream, const void *from, size_t bytes);
    // Bytes of workspace that attention and its gradient need. They do not grow with key_length. On the host,
    // a thread needs blocks that depend on head_width alone (0.5 MiB at 64, 0.8 MiB at 256) and, for the
    // gradient in 16-bit types, 4 bytes an element of the queries of a group of heads, at most 16 MiB (longer
    // sequences do without, at 7 matrix products for 5). On CUDA, 8 bytes for each query and head. Results do
    // not depend on the number of threads, and are the same in every run, to the bit.
    size_t (*attention_workspace)(const ptb_attention_shape *shape, int threads);
    // Floating-point operations in the matrix products of attention (forward), exactly as computed, pairs
    // that a causal mask cuts out of a block included: 4 x head_width for each query and key. The gradient
    // has 2.5 times as many (by convention: kernels that compute the scores twice do 3.5). query_start is not
    // read: documents count as one.
    double (*attention_flops)(const ptb_attention_shape *shape);
    // Which kernels the last attention on this stream took, or its last gradient, for the record: "wgmma";
    // NULL where there was none. Member NULL: there is one kind of kernels.
    const char *(*attention_kernels)(ptb_stream *stream, bool gradient);
} ptb_kernels;

#endif
