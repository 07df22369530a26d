// Statistics of samples. Definitions are stated because tools differ: quantiles are Hyndman & Fan type 7 (the
// default of R and NumPy); variance has n-1; the interval of the median is distribution-free, from order
// statistics (binomial).
#ifndef PTB_CORE_STATS_H
#define PTB_CORE_STATS_H

#include "core/status.h"

#include <stddef.h>

typedef struct {
    size_t count;
    double min, median, mean, p95, p99, max;
    double stddev;          // 0 when count < 2
    double cv;              // stddev / mean; 0 when mean is 0
    double ci_low, ci_high; // 95 % confidence interval of the median; min and max when count < 6
    double ci_confidence;   // the confidence really covered (>= 0.95 unless count < 6)
} ptb_summary;

// Summarises samples[count]; sorts a private copy. count 0 gives an all-zero summary.
ptb_summary ptb_stats_summarise(const double *samples, size_t count);
// Quantile q in [0,1] (type 7) of ascending sorted[count], count >= 1.
double ptb_stats_quantile(const double *sorted, size_t count, double q);
// Ranks (0-based, inclusive) of the order statistics that bound the median with at least `confidence` (0.95
// or 0.99); true coverage is returned. Source: Conover, Practical Nonparametric Statistics, 3rd ed.,
// section 3.2 (binomial, p = 1/2).
double ptb_stats_median_ranks(size_t count, double confidence, size_t *low, size_t *high);
// Half width of the interval relative to the median: max(high - median, median - low) / median; INFINITY if
// count < 6.
double ptb_stats_relative_ci(const ptb_summary *summary);
// Sorts ascending in place.
void ptb_stats_sort(double *values, size_t count);

#endif
