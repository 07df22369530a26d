// Numbers that the reports must not hide, invent or leave without a word, from runs made by hand
// (tests/golden/report_data.h).
#include "report_fixture.h"

#include "reports/figure.h"
#include "reports/report.h"

static ptb_table *query(ptb_store *store, const char *name, const char *runs)
{
    const ptb_report *report = (const ptb_report *)ptb_registry_find(PTB_KIND_REPORT, name);
    ptb_table *table = NULL;
    assert_int_equal(ptb_store_query(store, report->table_sql, &runs, 1, &table), PTB_OK);
    return table;
}

static size_t column_of(const ptb_table *table, const char *name)
{
    size_t column = 0;
    while (column < table->columns && strcmp(table->names[column], name) != 0)
        column++;
    assert_true(column < table->columns);
    return column;
}

// A kernel that only reads has a read as its limit.
static void every_kernel_has_its_limit(void **state)
{
    (void)state;
    ptb_store *store = new_store();
    const data_run_spec spec = {.ranks = 1};
    data_run run = data_begin(store, 1, &spec);
    data_add_kernel(&run, "add", "copy");
    data_add_kernel(&run, "sum_squares", "read");
    data_finish(&run, &spec);
    ptb_table *table = query(store, "kernels", "[1]");
    assert_int_equal(table->rows, 2);
    for (size_t row = 0; row < 2; row++) {
        assert_true(ptb_table_number(table, row, column_of(table, "rate")) == 25);
        assert_true(ptb_table_number(table, row, column_of(table, "top")) == 100);
        assert_true(ptb_table_number(table, row, column_of(table, "ratio")) == 0.25);
    }
    ptb_table_free(table);
    ptb_store_close(store);
}

// More than the peak cannot be: the peak is wrong, and it is said, at the top and with the case.
static void more_than_the_peak_is_a_warning(void **state)
{
    (void)state;
    ptb_store *store = new_store();
    const data_run_spec spec = {.ranks = 2};
    for (int i = 0; i < 2; i++) {
        data_run run = data_begin(store, i + 1, &spec);
        run.hfu = i ? 178 : 99;
        data_add_step(&run, "ddp", 8, 400, 100);
        data_finish(&run, &spec);
        char *text = text_of(store, run.run, 160);
        assert_int_equal(strstr(text, "run 2: 1 case came with a warning") != NULL, i);
        assert_int_equal(strstr(text, "the steps computed faster than the peak") != NULL, i);
        assert_int_equal(strstr(text, "(HFU 178 %)") != NULL, i);
        free(text);
    }
    ptb_store_close(store);
}

// Beside a step that was starved, 0 is a number; a column of nothing but zeros is left out.
static void no_starved_steps_are_zero_steps(void **state)
{
    (void)state;
    ptb_store *store = new_store();
    const data_run_spec spec = {.ranks = 2};
    data_run run = data_begin(store, 1, &spec), none = data_begin(store, 2, &spec);
    data_add_step(&run, "ddp", 8, 400, 100);
    run.starved = 3;
    data_add_step(&run, "fsdp", 8, 400, 100);
    data_add_step(&none, "ddp", 8, 400, 100);
    data_finish(&run, &spec);
    data_finish(&none, &spec);
    ptb_table *table = query(store, "steps", "[1]");
    size_t starved = column_of(table, "starved");
    assert_int_equal(table->rows, 2);
    assert_true(ptb_table_number(table, 0, starved) == 0 && *ptb_table_cell(table, 0, starved));
    assert_true(ptb_table_number(table, 1, starved) == 3);
    ptb_table_free(table);
    table = query(store, "steps", "[2]");
    assert_true(table->rows == 1 && !*ptb_table_cell(table, 0, starved));
    ptb_table_free(table);
    ptb_store_close(store);
}

// Where several runs are looked at, a strategy is one of a run.
static void strategies_say_of_which_run(void **state)
{
    (void)state;
    ptb_store *store = new_store();
    const data_run_spec spec = {.ranks = 2};
    data_run a = data_begin(store, 1, &spec), b = data_begin(store, 2, &spec);
    data_add_step(&a, "ddp", 8, 400, 100);
    data_add_step(&a, "fsdp", 8, 400, 20);
    data_add_step(&b, "ddp", 8, 400, 60);
    data_finish(&a, &spec);
    data_finish(&b, &spec);
    static const struct {
        const char *runs, *fastest;
    } of[] = {{"[1]", "fsdp"}, {"[1,2]", "fsdp of run 1"}};
    for (size_t i = 0; i < 2; i++) {
        ptb_table *table = query(store, "strategy_guide", of[i].runs);
        assert_true(table->rows > 0);
        assert_string_equal(ptb_table_cell(table, 0, column_of(table, "answer")), of[i].fastest);
        ptb_table_free(table);
    }
    char *text = text_of(store, 1, 160);
    assert_null(strstr(text, "fsdp of run"));
    free(text);
    ptb_store_close(store);
}

// As the metrics name them: loss_first is that of step 0.
static void steps_count_from_zero(void **state)
{
    (void)state;
    ptb_store *store = new_store();
    const data_run_spec spec = {.ranks = 1};
    data_run run = data_begin(store, 1, &spec);
    data_add_steps(&run, "ddp", 8, 400, 0, 3);
    data_finish(&run, &spec);
    const ptb_report *report = (const ptb_report *)ptb_registry_find(PTB_KIND_REPORT, "loss");
    ptb_figure *figures = NULL;
    size_t count = 0;
    assert_int_equal(ptb_figures_query(store, report, "[1]", &figures, &count), PTB_OK);
    assert_true(count == 1 && figures[0].curves[0].point_count == 3);
    for (size_t i = 0; i < 3; i++)
        assert_true(figures[0].curves[0].points[i].x == (double)i);
    ptb_figures_free(figures, count);
    ptb_store_close(store);
}

// Sizes have their own unit: in the title of a matrix, and in the cells of the page, whose head then has
// none.
static void sizes_have_one_unit(void **state)
{
    (void)state;
    static const struct {
        uint64_t bytes;
        const char *text;
    } of[] = {{8, ", 8 B, "}, {65536, ", 64 KiB, "}, {1536 << 10, ", 1.5 MiB, "}};
    ptb_store *store = new_store();
    const data_run_spec spec = {.ranks = 2};
    int64_t runs[3];
    for (size_t i = 0; i < 3; i++) {
        data_run run = data_begin(store, (int)i + 1, &spec);
        data_add_pair(&run, of[i].bytes, 4000);
        data_finish(&run, &spec);
        runs[i] = run.run;
    }
    const ptb_report *report = (const ptb_report *)ptb_registry_find(PTB_KIND_REPORT, "pairs");
    ptb_figure *figures = NULL;
    size_t count = 0;
    assert_int_equal(ptb_figures_query(store, report, "[1,2,3]", &figures, &count), PTB_OK);
    assert_int_equal(count, 3);
    for (size_t i = 0; i < 3; i++)
        assert_non_null(strstr(figures[i].title, of[i].text));
    ptb_figures_free(figures, count);
    char path[256] = "", *page = NULL;
    size_t bytes = 0;
    assert_int_equal(ptb_report_html(store, runs, 3, "page", path, sizeof path), PTB_OK);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_true(getdelim(&page, &bytes, 0, file) > 0);
    fclose(file);
    assert_non_null(strstr(page, ">size</th>"));
    assert_non_null(strstr(page, ">64 KiB</td>"));
    assert_null(strstr(page, "<small>B</small>"));
    free(page);
    ptb_store_close(store);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_enter, fixture_leave)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(every_kernel_has_its_limit),      TEST(more_than_the_peak_is_a_warning),
        TEST(no_starved_steps_are_zero_steps), TEST(strategies_say_of_which_run),
        TEST(steps_count_from_zero),           TEST(sizes_have_one_unit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
