// What the report says of asynchronous training steps, from runs made by hand (tests/golden/report_data.h).
#include "report_fixture.h"

#include "reports/figure.h"

// Asynchronous steps stand beside synchronous ones of the same run, with what that costs; those of a
// simulated device are compared with their own alone.
static void stale_parameters_are_shown(void **state)
{
    (void)state;
    ptb_store *store = new_store();
    const data_run_spec real = {.ranks = 2}, simulated = {.ranks = 2, .simulated = true};
    data_run a = data_begin(store, 1, &real), b = data_begin(store, 2, &simulated);
    data_add_step(&a, "ddp", 8, 400, 100);
    data_add_step(&a, "async", 8, 400, 20);
    data_add_step(&b, "async", 8, 400, 20);
    data_finish(&a, &real);
    data_finish(&b, &simulated);
    const ptb_report *report = (const ptb_report *)ptb_registry_find(PTB_KIND_REPORT, "staleness");
    ptb_figure *figures = NULL;
    size_t count = 0;
    assert_int_equal(ptb_figures_query(store, report, "[1,2]", &figures, &count), PTB_OK);
    assert_int_equal(count, 2);
    for (size_t f = 0; f < count; f++)
        assert_true(figures[f].curve_count == 1 && figures[f].curves[0].point_count == 3);
    ptb_figures_free(figures, count);
    char *text = text_of(store, 1, 160);
    assert_non_null(strstr(text, "of ddp: 1.19 times"));
    const char *row = strstr(text, "Stale parameters");
    assert_non_null(row);
    row = strstr(row, "\nasync staleness 2 ");
    assert_non_null(row);
    double mean, most, share, step, rate, here, synchronous, more;
    int ranks, batch;
    assert_int_equal(sscanf(row, " async staleness 2 %d %d %lf %lf %lf %lf %lf %lf %lf %lf", &ranks, &batch,
                            &mean, &most, &share, &step, &rate, &here, &synchronous, &more),
                     10);
    assert_true(ranks == 2 && batch == 8 && mean == 1.5 && most == 2 && share == 90 && more == 0.25);
    assert_non_null(strstr(text, "gradients lack 1.5 updates; the loss of steps 8 to 15 is"));
    free(text);
    text = text_of(store, 2, 160);
    assert_non_null(strstr(text, "Stale parameters"));
    assert_null(strstr(text, "gradients lack"));
    free(text);
    ptb_store_close(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(stale_parameters_are_shown, fixture_enter, fixture_leave)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
