// What the routers of all back-ends share: the limits of a call and the coefficient of the balance loss.
#ifndef PTB_STRATEGIES_TRANSFORMER_ROUTE_H
#define PTB_STRATEGIES_TRANSFORMER_ROUTE_H

#include "core/status.h"

#include <stddef.h>

// USAGE, logged, for numbers that a router does not take (kernels.h, ptb_route).
ptb_status ptb_route_check(size_t rows, size_t experts, size_t top_k);

// balance * experts * sum_e f_e P_e = this * the sum over rows and experts of counts * probabilities.
static inline double ptb_route_balance_factor(double balance, double scale, size_t rows, size_t experts,
                                              size_t top_k)
{
    double n = rows ? (double)rows : 1;
    return scale * balance * (double)experts / (n * n * (double)top_k);
}

#endif
