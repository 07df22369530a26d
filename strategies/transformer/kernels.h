// The math of a training step. A kernel is enqueued on a stream with one argument struct; pointers are device
// memory that must stay valid until the stream has passed it. Shapes are row-major; "rows" are tokens of this
// rank. Arithmetic is f32. Add a back-end by adding kernels_X.c.
//
// Three properties strategies build on: the input gradient and the weight gradient of a linear layer are two
// kernels (zero-bubble schedules run the second later), attention takes position offsets and returns its
// log-sum-exp (context parallelism merges partial results), and every gradient kernel can accumulate
// (microbatches).
#ifndef PTB_STRATEGIES_TRANSFORMER_KERNELS_H
#define PTB_STRATEGIES_TRANSFORMER_KERNELS_H

#include "core/device.h"
#include "core/registry.h"

// out = in * weight^T + bias + residual
typedef struct {
    float *out;            /* [rows, columns] */
    const float *in;       /* [rows, inner] */
    const float *weight;   /* [columns, inner] */
    const float *bias;     /* [columns], NULL: none */
    const float *residual; /* [rows, columns], NULL: none; may be out */
    size_t rows, columns, inner;
} ptb_matmul;

// d_in = d_out * weight (+ d_in)
typedef struct {
    float *d_in;         /* [rows, inner] */
    const float *d_out;  /* [rows, columns] */
    const float *weight; /* [columns, inner] */
    size_t rows, columns, inner;
    bool accumulate;
} ptb_matmul_input_gradient;

// d_weight = d_out^T * in (+ d_weight), d_bias = column sums of d_out (+ d_bias)
typedef struct {
    float *d_weight;    /* [columns, inner] */
    float *d_bias;      /* [columns], NULL: none */
    const float *d_out; /* [rows, columns] */
    const float *in;    /* [rows, inner] */
    size_t rows, columns, inner;
    bool accumulate;
} ptb_matmul_weight_gradient;

// out = (in - mean) * rstd * gain + bias, rstd = 1 / sqrt(variance + 1e-5) (Ba et al. 2016)
typedef struct {
    float *out;               /* [rows, width] */
    float *mean, *rstd;       /* [rows], kept for the backward pass */
    const float *in;          /* [rows, width] */
    const float *gain, *bias; /* [width] */
    size_t rows, width;
} ptb_layernorm;

typedef struct {
    float *d_in;              /* [rows, width] */
    float *d_gain, *d_bias;   /* [width] */
    const float *d_out, *in;  /* [rows, width] */
    const float *mean, *rstd; /* [rows] */
    const float *gain;        /* [width] */
    const float *residual;    /* [rows, width], added to d_in; NULL: none; may be d_in */
    size_t rows, width;
    bool accumulate; // d_gain and d_bias
} ptb_layernorm_gradient;

// Causal multi-head attention of query rows over key rows. Row r of sequence b starts at (b * length + r) *
// stride, head h at column h * head_width. Key row j is visible to query row i when not causal or key_offset
// + j <= query_offset + i. Scores are made a panel of rows at a time and never stored whole.
typedef struct {
    size_t batch, heads, head_width;
    size_t query_length, key_length;  // rows per sequence
    size_t query_stride, key_stride;  // floats between rows of query, and of key and value
    int64_t query_offset, key_offset; // position of row 0
    bool causal;
    float scale;      // of the scores
    float *workspace; // attention_workspace() bytes
} ptb_attention_shape;

typedef struct {
    ptb_attention_shape shape;
    float *out; /* [batch, query_length, heads * head_width] */
    float *lse; /* [batch, heads, query_length]: log of the sum of exp(score); -INFINITY where nothing is
                   visible */
    const float *query, *key, *value;
} ptb_attention;

// Gradients have the strides of query, key and value. Scores are computed again from lse (FlashAttention-2,
// Dao 2023, section 3.1).
typedef struct {
    ptb_attention_shape shape;
    float *d_query, *d_key, *d_value;
    const float *d_out, *out; /* [batch, query_length, heads * head_width] */
    const float *lse;         /* [batch, heads, query_length] */
    const float *query, *key, *value;
    bool accumulate; // all three gradients
} ptb_attention_gradient;

// tanh form: in / 2 * (1 + tanh(sqrt(2 / pi) * (in + 0.044715 in^3))) (Hendrycks and Gimpel 2016)
typedef struct {
    float *out;      /* [count] */
    const float *in; /* [count] */
    size_t count;
} ptb_gelu;

typedef struct {
    float *d_in;             /* [count]; may be d_out */
    const float *d_out, *in; /* [count] */
    size_t count;
} ptb_gelu_gradient;

// out = a + b; out may be a or b
typedef struct {
    float *out;
    const float *a, *b; /* [count] */
    size_t count;
} ptb_add;

// out = table[token] + positions[position_offset + row mod sequence]
typedef struct {
    float *out;             /* [rows, width] */
    const int32_t *tokens;  /* [rows] */
    const float *table;     /* [vocabulary, width] */
    const float *positions; /* [.., width] */
    size_t rows, sequence, width;
    size_t position_offset;
} ptb_embedding;

typedef struct {
    float *d_table, *d_positions; /* [vocabulary, width], [positions, width] */
    const float *d_out;           /* [rows, width] */
    const int32_t *tokens;        /* [rows] */
    size_t rows, sequence, width, vocabulary, positions;
    size_t position_offset;
    bool accumulate_table, accumulate_positions;
} ptb_embedding_gradient;

// Cross-entropy forward and backward in one pass: *loss = scale * sum of -log softmax(logits)[target] (+
// *loss); logits become their gradient, scale * (softmax - one-hot).
typedef struct {
    float *logits;          /* [rows, vocabulary] */
    const int32_t *targets; /* [rows] */
    float *losses;          /* [rows]: -log softmax of each row */
    double *loss;           /* [1] */
    size_t rows, vocabulary;
    double scale;
    bool accumulate; // *loss
} ptb_cross_entropy;

// Decoupled weight decay (Loshchilov and Hutter 2019, algorithm 2): m and v are running means of the gradient
// and its square; parameter -= rate * (m / correction1 / (sqrt(v / correction2) + epsilon) + decay *
// parameter).
typedef struct {
    float *parameter, *m, *v; /* [count] */
    const float *gradient;    /* [count] */
    size_t count;
    float rate, beta1, beta2, epsilon, decay;
    float correction1, correction2; // 1 - beta^step, step counted from 1
} ptb_adamw;

// method, its argument struct: ptb_status (*method)(ptb_stream *stream, const struct *arguments)
#define PTB_KERNEL_LIST(X)                                                                                   \
    X(matmul, ptb_matmul)                                                                                    \
    X(matmul_input_gradient, ptb_matmul_input_gradient)                                                      \
    X(matmul_weight_gradient, ptb_matmul_weight_gradient)                                                    \
    X(layernorm, ptb_layernorm)                                                                              \
    X(layernorm_gradient, ptb_layernorm_gradient)                                                            \
    X(attention, ptb_attention)                                                                              \
    X(attention_gradient, ptb_attention_gradient)                                                            \
    X(gelu, ptb_gelu)                                                                                        \
    X(gelu_gradient, ptb_gelu_gradient)                                                                      \
    X(add, ptb_add)                                                                                          \
    X(embedding, ptb_embedding)                                                                              \
    X(embedding_gradient, ptb_embedding_gradient)                                                            \
    X(cross_entropy, ptb_cross_entropy)                                                                      \
    X(adamw, ptb_adamw)

typedef struct {
    ptb_plugin plugin;
#define X(method, arguments) ptb_status (*method)(ptb_stream * stream, const arguments *args);
    PTB_KERNEL_LIST(X)
#undef X
    // Processor threads that kernels of this stream use from now on (host; ignored elsewhere).
    ptb_status (*set_threads)(ptb_stream *stream, int threads);
    // Bytes of workspace that attention and its gradient need.
    size_t (*attention_workspace)(const ptb_attention_shape *shape, int threads);
    // Floating-point operations in the matrix products of attention (forward), exactly as computed, blocks
    // that a causal mask cuts included.
    double (*attention_flops)(const ptb_attention_shape *shape);
} ptb_kernels;

#endif
