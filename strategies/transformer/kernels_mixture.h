// The part of kernels.h that is about mixtures of experts: arguments of the router, of what moves rows to
// experts and back, and of the balance loss. Conventions are those of kernels.h.
#ifndef PTB_STRATEGIES_TRANSFORMER_KERNELS_MIXTURE_H
#define PTB_STRATEGIES_TRANSFORMER_KERNELS_MIXTURE_H

#include "core/device.h"

// Top-k softmax gate (Shazeer et al. 2017; load-balancing loss of Fedus et al. 2022, equation 4, over top-k:
// balance * experts * sum_e f_e P_e with f_e the share of the rows x top_k choices, P_e the mean
// probability). Each row's top_k experts, largest probability first, the smaller index first among equals;
// weights are the probabilities, divided by their sum when normalise. Choices are put in order of expert,
// then row: slot [row, k] is the place of a choice in that order. capacity > 0: an expert takes its first
// `capacity` choices in order of row; the others have slot -1 and contribute nothing. With `part` too (the
// experts of a rank), slots are cut into blocks of part * capacity, and a part's choices begin at its block.
// At most PTB_EXPERTS_MAX experts and 2^31 - 1 choices.
enum { PTB_EXPERTS_MAX = 1024 };
typedef struct {
    float *probabilities; /* [rows, experts]; may be logits */
    int32_t *expert;      /* [rows, top_k] */
    float *weight;        /* [rows, top_k] */
    int32_t *slot;        /* [rows, top_k] */
    int32_t *offsets;     /* [experts + 1], of the slots; with gaps between parts */
    int32_t *counts;      /* [experts]: choices before capacity */
    int64_t *tally;       /* [2, experts]: += choices, += those that capacity left; NULL: none */
    double *loss;         /* [1]: += scale * balance loss; NULL: none */
    double *sums;         /* [experts]: of the rows' probabilities; NULL: none */
    const float *logits;  /* [rows, experts] */
    size_t rows, experts, top_k, capacity;
    size_t part;           // divides experts; 0: slots have no gaps
    double balance, scale; // coefficient; share of this call in the mean over the global batch
    bool normalise;
} ptb_route;

// d_logits from the gradients of the weights, 0 where a choice was dropped, and of the balance loss times
// factor (the counts are constants in it).
typedef struct {
    void *d_logits;             /* [rows, experts], type */
    const float *d_weight;      /* [rows, top_k] */
    const float *probabilities; /* [rows, experts] */
    const float *weight;        /* [rows, top_k] */
    const int32_t *expert;      /* [rows, top_k] */
    const int32_t *counts;      /* [experts] */
    const float *factor;        /* [1], NULL: 1 */
    size_t rows, experts, top_k;
    size_t counted; // rows that the counts are of, other ranks' included; 0: rows
    double balance, scale;
    bool normalise;
    ptb_dtype type;
} ptb_route_gradient;

// The balance losses of several routers under counts that are not their rows' alone: *loss += factor * sum of
// counts * sums, as ptb_route gives them (and ptb_route_balance_factor the factor).
typedef struct {
    double *loss;          /* [1] */
    const int32_t *counts; /* [count]: routers x experts */
    const double *sums;    /* [count] */
    size_t count;
    double factor;
} ptb_balance_loss;

// out[slot[row, k]] = in[row]; each slot is written by one choice.
typedef struct {
    void *out;           /* [slots, width] */
    const void *in;      /* [rows, width] */
    const int32_t *slot; /* [rows, top_k] */
    size_t rows, top_k, width;
    ptb_dtype type;
} ptb_dispatch;

// d_in[row] = sum over k of d_out[slot[row, k]] (+ d_in)
typedef struct {
    void *d_in;          /* [rows, width] */
    const void *d_out;   /* [slots, width] */
    const int32_t *slot; /* [rows, top_k] */
    size_t rows, top_k, width;
    ptb_dtype type;
    bool accumulate;
} ptb_dispatch_gradient;

// out[row] = sum over k of weight[row, k] * in[slot[row, k]] + residual
typedef struct {
    void *out;            /* [rows, width] */
    const void *in;       /* [slots, width] */
    const float *weight;  /* [rows, top_k] */
    const int32_t *slot;  /* [rows, top_k] */
    const void *residual; /* [rows, width], NULL: none; may be out */
    size_t rows, top_k, width;
    ptb_dtype type;
} ptb_combine;

// d_in[slot] = weight * d_out[row]; d_weight = dot of in[slot] and d_out[row], 0 for a dropped choice
typedef struct {
    void *d_in;          /* [slots, width]; may be in */
    float *d_weight;     /* [rows, top_k] */
    const void *d_out;   /* [rows, width] */
    const void *in;      /* [slots, width] */
    const float *weight; /* [rows, top_k] */
    const int32_t *slot; /* [rows, top_k] */
    size_t rows, top_k, width;
    ptb_dtype type;
} ptb_combine_gradient;

// Experts on several ranks: where elements that come from `sources` ranks go in order of this rank's experts
// [first, first + local), then of source, then as they come from there. Without `slot`, elements are rows of
// these experts alone (first = 0, local = experts), which each source gives in order of expert. With it, they
// are all choices of each source, slots as ptb_route gave them without `part`; weights come along. Source s
// has elements [s * block, (s + 1) * block), of which rows fill only as many as its counts say; block 0: rows
// follow each other without gaps, `elements` in all. What a source has of counts, slot and weight begins
// `stride` elements after what the source before has.
typedef struct {
    int32_t *place;        /* [elements]: -1 where there is no row, or an expert of another rank */
    int32_t *offsets;      /* [local + 1], of the places */
    float *weights;        /* [elements]: the weights, side by side; NULL: none */
    const int32_t *slot;   /* [sources, block]; NULL: rows */
    const float *weight;   /* [sources, block]; NULL: none */
    const int32_t *counts; /* [sources, experts], before capacity */
    size_t sources, elements, block, stride;
    size_t experts, first, local;
    size_t capacity; // of a source for each expert, as in ptb_route
} ptb_expert_order;

#endif
