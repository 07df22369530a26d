// The time that is left: estimates, corrected by how long measured cases took, without those that were not
// measured; and the estimate of each case, as it was planned.
#include "bench/forecast.h"
#include "bench/progress.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static ptb_progress plan_of(size_t cases, double planned_s)
{
    ptb_progress p;
    ptb_progress_init(&p, true, false, 0);
    p.cases = cases;
    p.planned_s = planned_s;
    return p;
}

static void end(ptb_progress *p, double estimate_s, bool is_measured, double spent_s)
{
    ptb_progress_begin(p, "case", estimate_s);
    ptb_progress_end(p, "outcome", false, is_measured, spent_s);
}

static void estimates_are_corrected(void **state)
{
    (void)state;
    ptb_progress p = plan_of(4, 40);
    assert_float_equal(ptb_progress_remaining_s(&p), 40, 1e-9);
    end(&p, 10, true, 20);
    assert_float_equal(ptb_progress_remaining_s(&p), 60, 1e-9); // all take twice as long
    end(&p, 10, true, 20);
    end(&p, 10, true, 20);
    end(&p, 10, true, 20);
    assert_float_equal(ptb_progress_remaining_s(&p), 0, 1e-9);
}

// A case that is refused once its memory is known, or that fails, took no time that others could be judged
// by.
static void what_was_not_measured_leaves_the_plan(void **state)
{
    (void)state;
    ptb_progress p = plan_of(4, 1030);
    end(&p, 10, true, 20);
    end(&p, 1000, false, 0.01);
    assert_float_equal(ptb_progress_remaining_s(&p), 40, 1e-9);
    assert_int_equal(p.done, 2);
    end(&p, 10, true, 20);
    end(&p, 10, true, 20);
    assert_float_equal(ptb_progress_remaining_s(&p), 0, 1e-9);
    p = plan_of(2, 1000); // refused, and then what no time was planned for
    end(&p, 1000, false, 0.01);
    end(&p, 0, true, 3);
    assert_float_equal(ptb_progress_remaining_s(&p), 0, 1e-9);
}

// In order, with some left out: a part that could not be opened.
static void each_case_has_what_was_planned_for_it(void **state)
{
    (void)state;
    static const char *const keys[] = {"a", "b", "c", "d"};
    ptb_forecast f = {.cases = NULL};
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < 4; i++)
            assert_int_equal(ptb_forecast_add(&f, keys[i], (double)i), PTB_OK);
        assert_float_equal(ptb_forecast_s(&f, "b"), 1, 0);
        assert_float_equal(ptb_forecast_s(&f, "not planned"), 0, 0);
        assert_float_equal(ptb_forecast_s(&f, "d"), 3, 0);
        assert_float_equal(ptb_forecast_s(&f, "d"), 0, 0);
        ptb_forecast_clear(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(estimates_are_corrected),
        cmocka_unit_test(what_was_not_measured_leaves_the_plan),
        cmocka_unit_test(each_case_has_what_was_planned_for_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
