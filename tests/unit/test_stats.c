// Statistics, against GSL and published values.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/random.h"
#include "core/stats.h"

#include <gsl/gsl_cdf.h>
#include <gsl/gsl_statistics_double.h>
#include <math.h>
#include <stdlib.h>

static void assert_near(double got, double wanted, double relative)
{
    if (!(fabs(got - wanted) <= relative * fmax(fabs(wanted), 1e-300)))
        fail_msg("got %.17g, wanted %.17g", got, wanted);
}

static void test_against_gsl(void **state)
{
    (void)state;
    static const size_t counts[] = {1, 2, 3, 6, 7, 100, 1001, 5000};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        size_t n = counts[c];
        double *x = malloc(n * sizeof *x), *sorted = malloc(n * sizeof *x);
        for (size_t i = 0; i < n; i++)
            sorted[i] = x[i] = 1e6 + ptb_random_normal(7, c, i);
        ptb_stats_sort(sorted, n);
        ptb_summary s = ptb_stats_summarise(x, n);
        assert_int_equal(s.count, n);
        assert_true(s.min == sorted[0] && s.max == sorted[n - 1]);
        assert_near(s.median, gsl_stats_median_from_sorted_data(sorted, 1, n), 1e-15);
        assert_near(s.p95, gsl_stats_quantile_from_sorted_data(sorted, 1, n, 0.95), 1e-15);
        assert_near(s.p99, gsl_stats_quantile_from_sorted_data(sorted, 1, n, 0.99), 1e-15);
        assert_near(s.mean, gsl_stats_mean(x, 1, n), 1e-14);
        if (n > 1) {
            assert_near(s.stddev, gsl_stats_sd(x, 1, n), 1e-9);
            assert_near(s.cv, gsl_stats_sd(x, 1, n) / gsl_stats_mean(x, 1, n), 1e-9);
        }
        assert_true(s.ci_low <= s.median && s.median <= s.ci_high);
        free(x);
        free(sorted);
    }
}

static void test_median_ranks(void **state)
{
    (void)state;
    // Conover's table A3-like values: n, first covering order statistic (1-based).
    static const struct {
        size_t count, low;
    } known[] = {{6, 1},  {8, 1},  {9, 2},   {10, 2},  {12, 3}, {15, 4},
                 {20, 6}, {25, 8}, {30, 10}, {40, 14}, {50, 18}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        size_t low, high;
        double covered = ptb_stats_median_ranks(known[i].count, 0.95, &low, &high);
        assert_int_equal(low + 1, known[i].low);
        assert_int_equal(low + high, known[i].count - 1);
        assert_true(covered >= 0.95);
    }
    for (size_t n = 6; n < 6000; n += n < 2100 ? 1 : 97) {
        size_t low, high;
        double covered = ptb_stats_median_ranks(n, 0.95, &low, &high);
        double exact = 1 - 2 * gsl_cdf_binomial_P((unsigned)low, 0.5, (unsigned)n);
        assert_near(covered, exact, n <= 2000 ? 1e-9 : 2e-4);
        assert_true(exact >= 0.95);
        double next = 1 - 2 * gsl_cdf_binomial_P((unsigned)low + 2, 0.5, (unsigned)n);
        assert_true(next < 0.95); // not wider than needed by more than one place
    }
    size_t low, high;
    assert_near(ptb_stats_median_ranks(5, 0.95, &low, &high), 0.9375, 1e-12);
    assert_true(low == 0 && high == 4);
}

static void test_degenerate(void **state)
{
    (void)state;
    ptb_summary empty = ptb_stats_summarise(NULL, 0);
    assert_int_equal(empty.count, 0);
    assert_true(isinf(ptb_stats_relative_ci(&empty)));
    double same[10] = {3, 3, 3, 3, 3, 3, 3, 3, 3, 3};
    ptb_summary s = ptb_stats_summarise(same, 10);
    assert_true(s.stddev == 0 && s.cv == 0 && s.ci_low == 3 && s.ci_high == 3);
    assert_true(ptb_stats_relative_ci(&s) == 0);
    s = ptb_stats_summarise(same, 5);
    assert_true(isinf(ptb_stats_relative_ci(&s)));
}

static void test_random(void **state)
{
    (void)state;
    enum { N = 200000 };
    double sum = 0, squares = 0, uniform = 0;
    for (uint64_t i = 0; i < N; i++) {
        double z = ptb_random_normal(1, 2, i);
        sum += z;
        squares += z * z;
        uniform += ptb_random_uniform(1, 3, i);
    }
    assert_true(fabs(sum / N) < 5 / sqrt(N));
    assert_true(fabs(squares / N - 1) < 5 * sqrt(2.0 / N));
    assert_true(fabs(uniform / N - 0.5) < 5 * sqrt(1.0 / 12 / N));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_against_gsl),
                                       cmocka_unit_test(test_median_ranks), cmocka_unit_test(test_degenerate),
                                       cmocka_unit_test(test_random)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
