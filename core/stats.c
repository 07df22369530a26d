// Summaries of samples; the definitions are in the header.
#include "core/stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { INTERVAL_LEAST = 6 }; // the widest interval of 5 samples covers only 93.75 %
static const double confidence_wanted = 0.95;

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void ptb_stats_sort(double *values, size_t count)
{
    qsort(values, count, sizeof *values, compare);
}

double ptb_stats_quantile(const double *sorted, size_t count, double q)
{
    double at = q * (double)(count - 1);
    size_t below = (size_t)at;
    if (below + 1 >= count)
        return sorted[count - 1];
    return sorted[below] + (at - (double)below) * (sorted[below + 1] - sorted[below]);
}

static double log_factorial(size_t n)
{
    int sign; // lgamma would write it to a global, which ranks that are threads would race for
    return lgamma_r((double)n + 1, &sign);
}

// P(k successes of n at 1/2), through logarithms so that large n does not underflow.
static double binomial_half(size_t n, size_t k)
{
    return exp(log_factorial(n) - log_factorial(k) - log_factorial(n - k) - (double)n * log(2.0));
}

// The same interval by the normal approximation with continuity correction; within one order statistic of the
// exact one from a few hundred samples on, and free of the sum over n/2 terms.
static double median_ranks_of_many(size_t count, double confidence, size_t *low, size_t *high)
{
    static const double z_95 = 1.959963984540054, z_99 = 2.5758293035489004;
    double z = confidence <= 0.95 ? z_95 : z_99, n = (double)count;
    double l = floor((n - 1 - z * sqrt(n)) / 2 - 0.5);
    *low = (size_t)fmax(l, 0);
    *high = count - 1 - *low;
    return erf((n / 2 - (double)*low - 0.5) / sqrt(n / 2));
}

double ptb_stats_median_ranks(size_t count, double confidence, size_t *low, size_t *high)
{
    enum { EXACT_UP_TO = 2000 };
    if (count > EXACT_UP_TO)
        return median_ranks_of_many(count, confidence, low, high);
    // The interval [x(l), x(n-1-l)] misses the median when at most l of n samples fall on one side of it, so
    // it covers 1 - 2 P(X <= l). Take the narrowest symmetric one that still covers enough, the widest if
    // none does.
    double tail = 0, covered = count ? 1 - 2 * binomial_half(count, 0) : 0;
    *low = 0;
    for (size_t l = 0; count && l < count / 2; l++) {
        tail += binomial_half(count, l);
        if (l > 0 && 1 - 2 * tail < confidence)
            break;
        *low = l;
        covered = 1 - 2 * tail;
    }
    *high = count ? count - 1 - *low : 0;
    return covered;
}

ptb_summary ptb_stats_summarise(const double *samples, size_t count)
{
    ptb_summary s = {.count = count};
    double *sorted = count ? malloc(count * sizeof *sorted) : NULL;
    if (!sorted)
        return (ptb_summary){0};
    memcpy(sorted, samples, count * sizeof *sorted);
    ptb_stats_sort(sorted, count);
    s.min = sorted[0];
    s.max = sorted[count - 1];
    s.median = ptb_stats_quantile(sorted, count, 0.5);
    s.p95 = ptb_stats_quantile(sorted, count, 0.95);
    s.p99 = ptb_stats_quantile(sorted, count, 0.99);
    // Welford's recurrence: exact enough when the spread is tiny beside the mean.
    double sum_of_squares = 0;
    for (size_t i = 0; i < count; i++) {
        double delta = sorted[i] - s.mean;
        s.mean += delta / (double)(i + 1);
        sum_of_squares += delta * (sorted[i] - s.mean);
    }
    s.stddev = count > 1 ? sqrt(sum_of_squares / (double)(count - 1)) : 0;
    s.cv = s.mean != 0 ? s.stddev / s.mean : 0;
    size_t low, high;
    s.ci_confidence = ptb_stats_median_ranks(count, confidence_wanted, &low, &high);
    s.ci_low = sorted[low];
    s.ci_high = sorted[high];
    free(sorted);
    return s;
}

double ptb_stats_relative_ci(const ptb_summary *summary)
{
    if (summary->count < INTERVAL_LEAST || summary->median <= 0)
        return INFINITY;
    return fmax(summary->ci_high - summary->median, summary->median - summary->ci_low) / summary->median;
}
