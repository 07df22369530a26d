// What the routers of all back-ends share: the limits of a call and the coefficient of the balance loss.
#ifndef PTB_STRATEGIES_TRANSFORMER_ROUTE_H
#define PTB_STRATEGIES_TRANSFORMER_ROUTE_H

#include "core/status.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#define PTB_ROUTE_FUNCTION __host__ __device__ static inline
#else
#define PTB_ROUTE_FUNCTION static inline
#endif

// USAGE, logged, for numbers that a router does not take (kernels.h, ptb_route).
ptb_status ptb_route_check(size_t rows, size_t experts, size_t top_k);

// USAGE, logged, for experts that ptb_expert_order does not take.
ptb_status ptb_route_check_experts(size_t experts, size_t first, size_t local);

// Of an expert's choices, those that capacity (0: no limit) leaves it.
PTB_ROUTE_FUNCTION int32_t ptb_route_taken(int32_t choices, size_t capacity)
{
    return capacity && (size_t)choices > capacity ? (int32_t)capacity : choices;
}

// scale * balance * experts * sum_e f_e P_e = this * the sum over rows and experts of counts * probabilities.
// counted: rows that the counts are of; 0: the same rows.
static inline double ptb_route_balance_factor(double balance, double scale, size_t rows, size_t counted,
                                              size_t experts, size_t top_k)
{
    double n = rows ? (double)rows : 1, all = counted ? (double)counted : n;
    return scale * balance * (double)experts / (n * all * (double)top_k);
}

#endif
