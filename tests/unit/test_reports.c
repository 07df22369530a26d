// Reports: escaping, empty and tiny runs, missing gnuplot, what is never mixed, repetitions, numbers. The
// runs come from tests/golden/report_data.h.
#include "report_fixture.h"

#include "reports/figure.h"
#include "reports/format.h"
#include "reports/view.h"

static data_coll one_case(const char *algo, uint64_t bytes)
{
    return (data_coll){.bench = "all_reduce",
                       .comm = "host",
                       .algo = algo,
                       .place = "out",
                       .type = "f32",
                       .op = "sum",
                       .bytes = bytes,
                       .median_ns = 1000 + (double)bytes / 4,
                       .noise = 0.02,
                       .samples = 50,
                       .bus_factor = 1};
}

static char *read_text(const char *path)
{
    FILE *file = fopen(path, "r");
    if (!file)
        fail_msg("%s is missing", path);
    ptb_text text = PTB_TEXT_INIT;
    int c;
    while ((c = fgetc(file)) != EOF) {
        char byte = (char)c;
        ptb_text_append_bytes(&text, &byte, 1);
    }
    fclose(file);
    return text.data ? text.data : strdup("");
}

static char *page_of(ptb_store *store, const int64_t *runs, size_t count)
{
    char path[256] = "";
    assert_int_equal(ptb_report_html(store, runs, count, "page", path, sizeof path), PTB_OK);
    assert_string_equal(path, "page/index.html");
    return read_text(path);
}

static size_t count_of(const char *text, const char *what)
{
    size_t n = 0;
    for (const char *at = text; (at = strstr(at, what)); at += strlen(what))
        n++;
    return n;
}

static const ptb_report *report_named(const char *name)
{
    return (const ptb_report *)ptb_registry_find(PTB_KIND_REPORT, name);
}

static void numbers_are_written_with_four_digits(void **state)
{
    (void)state;
    static const struct {
        double value;
        const char *text;
    } cases[] = {{0, "0.000"},       {1234.56, "1235"},     {123.456, "123.5"},   {12.3456, "12.35"},
                 {9.99996, "10.00"}, {0.012345, "0.01235"}, {1e-6, "1.000e-06"},  {5e12, "5.000e+12"},
                 {NAN, "n/a"},       {INFINITY, "n/a"},     {-12.3456, "-12.35"}, {999.96, "1000"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char out[PTB_NUMBER_BYTES];
        ptb_format_number(cases[i].value, out);
        assert_string_equal(out, cases[i].text);
    }
}

static void html_is_escaped(void **state)
{
    (void)state;
    ptb_text out = PTB_TEXT_INIT;
    ptb_html_escape(&out, "<b a=\"1\">&'\x1b[31m\xff\xCE\xA9\xED\xA0\x80");
    assert_string_equal(ptb_text_string(&out),
                        "&lt;b a=&quot;1&quot;&gt;&amp;&#39;\xEF\xBF\xBD[31m\xEF\xBF\xBD\xCE\xA9"
                        "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
    ptb_text_clear(&out);
    ptb_ascii_append(&out, "a\x1b[2J\n\xCE\xA9z");
    assert_string_equal(ptb_text_string(&out), "a?[2J ?z");
    ptb_text_release(&out);
}

// A label may hold anything; it must neither become markup, nor a command of gnuplot, nor one of the
// terminal.
static void a_hostile_label_stays_text(void **state)
{
    (void)state;
    const data_run_spec spec = {.label = "<script>x</script>'`touch pwned`\".system('touch pwned').\"\x1b[2J",
                                .ranks = 2};
    ptb_store *store = new_store();
    data_run run = data_begin(store, 1, &spec);
    data_run other = data_begin(store, 2, &spec);
    data_coll c = one_case("ring", 4096);
    data_add_coll(&run, &c);
    data_add_coll(&other, &c);
    data_finish(&run, &spec);
    data_finish(&other, &spec);
    const int64_t runs[] = {run.run, other.run};
    char *page = page_of(store, runs, 2);
    assert_null(strstr(page, "<script"));
    assert_non_null(strstr(page, "&lt;script&gt;"));
    assert_null(strchr(page, 0x1b));
    assert_int_not_equal(access("pwned", F_OK), 0);
    assert_int_not_equal(access("page/pwned", F_OK), 0);
    char *text = text_of(store, run.run, 80);
    assert_null(strchr(text, 0x1b));
    free(text);
    free(page);
    ptb_store_close(store);
}

static void an_empty_run_is_reported(void **state)
{
    (void)state;
    const data_run_spec spec = {.ranks = 2, .state = "interrupted", .reason = "stopped by SIGINT"};
    ptb_store *store = new_store();
    data_run run = data_begin(store, 1, &spec);
    data_finish(&run, &spec);
    char *page = page_of(store, &run.run, 1);
    assert_non_null(strstr(page, "is not complete: state interrupted; stopped by SIGINT"));
    assert_int_equal(count_of(page, "<figure"), 0);
    char *text = text_of(store, run.run, 80);
    assert_non_null(strstr(text, "!! run 1 is not complete"));
    assert_non_null(strstr(text, "cases         none"));
    free(text);
    free(page);
    ptb_store_close(store);
}

static void one_point_is_drawn(void **state)
{
    (void)state;
    const data_run_spec spec = {.ranks = 2};
    ptb_store *store = new_store();
    data_run run = data_begin(store, 1, &spec);
    data_coll c = one_case("ring", 65536);
    data_add_coll(&run, &c);
    data_finish(&run, &spec);
    char *page = page_of(store, &run.run, 1);
    assert_int_equal(count_of(page, "<figure id="), 2);
    assert_int_equal(count_of(page, "<svg "), 2);
    assert_non_null(strstr(page, "50 samples"));
    assert_int_equal(access("page/bandwidth-1.png", R_OK), 0);
    assert_int_equal(access("page/latency-1.png", R_OK), 0);
    free(page);
    ptb_store_close(store);
}

// Every id once, every reference to one that exists.
static void ids_are_unique(void **state)
{
    (void)state;
    const data_run_spec spec = {.ranks = 2};
    ptb_store *store = new_store();
    data_run run = data_begin(store, 1, &spec);
    data_add_quick(&run);
    data_finish(&run, &spec);
    char *page = page_of(store, &run.run, 1);
    size_t ids = 0;
    for (char *at = page; (at = strstr(at, " id=")); at += 4) {
        char quoted[160];
        size_t length = strcspn(at + 5, "'\"") + 6;
        assert_true(length < sizeof quoted);
        snprintf(quoted, sizeof quoted, "%.*s", (int)length + 4, at);
        assert_int_equal(count_of(page, quoted), 1);
        ids++;
    }
    assert_true(ids > 50);
    assert_null(strstr(page, "'#gpPt"));
    assert_null(strstr(page, "<?xml"));
    assert_null(strstr(page, "<desc>"));
    free(page);
    ptb_store_close(store);
}

static void gnuplot_missing_is_said(void **state)
{
    (void)state;
    const data_run_spec spec = {.ranks = 2};
    ptb_store *store = new_store();
    data_run run = data_begin(store, 1, &spec);
    data_coll c = one_case("ring", 65536);
    data_add_coll(&run, &c);
    data_finish(&run, &spec);
    char *path = strdup(getenv("PATH")), html[64] = "unset", errors[1024];
    setenv("PATH", "/nonexistent", 1);
    int saved = fixture_catch_errors();
    ptb_status status = ptb_report_html(store, &run.run, 1, "page", html, sizeof html);
    fixture_release_errors(saved, errors, sizeof errors);
    setenv("PATH", path, 1);
    free(path);
    assert_int_equal(status, PTB_UNSUPPORTED);
    assert_string_equal(html, "unset");
    assert_non_null(strstr(errors, "gnuplot-nox"));
    assert_int_not_equal(access("page/index.html", F_OK), 0);
    ptb_store_close(store);
}

// A gnuplot that fails: its own words are passed on, and no page is left that lacks its figures.
static void gnuplot_errors_are_shown(void **state)
{
    (void)state;
    const data_run_spec spec = {.ranks = 2};
    ptb_store *store = new_store();
    data_run run = data_begin(store, 1, &spec);
    data_coll c = one_case("ring", 65536);
    data_add_coll(&run, &c);
    data_finish(&run, &spec);
    FILE *script = fopen("gnuplot", "w");
    assert_non_null(script);
    fputs("#!/bin/sh\necho no such terminal >&2\nexit 3\n", script);
    fclose(script);
    assert_int_equal(chmod("gnuplot", 0755), 0);
    char *path = strdup(getenv("PATH")), html[64] = "unset", errors[1024], here[256], with[512];
    snprintf(with, sizeof with, "%s:/bin:/usr/bin", getcwd(here, sizeof here));
    setenv("PATH", with, 1);
    int saved = fixture_catch_errors();
    ptb_status status = ptb_report_html(store, &run.run, 1, "page", html, sizeof html);
    fixture_release_errors(saved, errors, sizeof errors);
    setenv("PATH", path, 1);
    free(path);
    assert_int_equal(status, PTB_SYSTEM);
    assert_non_null(strstr(errors, "no such terminal"));
    assert_int_not_equal(access("page/index.html", F_OK), 0);
    ptb_store_close(store);
}

static void simulated_is_never_mixed(void **state)
{
    (void)state;
    ptb_store *store = new_store();
    const data_run_spec real = {.ranks = 2}, simulated = {.ranks = 2, .simulated = true};
    data_run a = data_begin(store, 1, &real), b = data_begin(store, 2, &simulated);
    data_coll c = one_case("ring", 65536);
    data_add_coll(&a, &c);
    data_add_coll(&b, &c);
    data_add_pair(&a, 65536, 4000);
    data_add_pair(&b, 65536, 2000);
    data_add_step(&a, "ddp", 8, 400, 0);
    data_add_step(&b, "ddp", 8, 200, 0);
    data_finish(&a, &real);
    data_finish(&b, &simulated);
    for (size_t i = 0; i < ptb_registry_count(PTB_KIND_REPORT); i++) {
        const ptb_report *report = (const ptb_report *)ptb_registry_at(PTB_KIND_REPORT, i);
        ptb_figure *figures = NULL;
        size_t count = 0;
        if (!report->figure_sql)
            continue;
        assert_int_equal(ptb_figures_query(store, report, "[1,2]", &figures, &count), PTB_OK);
        // Some have nothing to show of these runs.
        if (strcmp(report->plugin.name, "scaling") != 0 && strcmp(report->plugin.name, "strategies") != 0 &&
            strcmp(report->plugin.name, "staleness") != 0)
            assert_int_equal(count, 2);
        size_t labelled = 0;
        for (size_t f = 0; f < count; f++) {
            assert_int_equal(figures[f].curve_count, 1);
            labelled += strstr(figures[f].title, "SIMULATED") != NULL;
        }
        assert_int_equal(labelled, count / 2);
        ptb_figures_free(figures, count);
    }
    const int64_t runs[] = {1, 2};
    char *page = page_of(store, runs, 2);
    assert_non_null(strstr(page, "used a SIMULATED device"));
    char *text = text_of(store, 2, 100);
    assert_non_null(strstr(text, "[SIMULATED DEVICE]"));
    free(text);
    free(page);
    ptb_store_close(store);
}

// Two strategies of one run stand in one figure, those of a simulated device in another; the guide names the
// faster one, with the reason, and nobody where the intervals meet.
static void strategies_are_compared(void **state)
{
    (void)state;
    ptb_store *store = new_store();
    const data_run_spec real = {.ranks = 2}, simulated = {.ranks = 2, .simulated = true};
    data_run a = data_begin(store, 1, &real), b = data_begin(store, 2, &simulated);
    data_add_step(&a, "ddp", 8, 400, 100);
    data_add_step(&a, "fsdp", 8, 400, 20);
    data_add_step(&b, "ddp", 8, 400, 1);
    data_add_step(&b, "fsdp", 8, 400, 1.5);
    data_finish(&a, &real);
    data_finish(&b, &simulated);
    const ptb_report *report = (const ptb_report *)ptb_registry_find(PTB_KIND_REPORT, "strategies");
    ptb_figure *figures = NULL;
    size_t count = 0;
    assert_int_equal(ptb_figures_query(store, report, "[1,2]", &figures, &count), PTB_OK);
    assert_int_equal(count, 2);
    for (size_t f = 0; f < count; f++)
        assert_int_equal(figures[f].curve_count, 2);
    ptb_figures_free(figures, count);
    char *text = text_of(store, 1, 160);
    assert_non_null(strstr(text, "of ddp: 1.19 times as fast; 80 ms less of its communication is exposed"));
    assert_null(strstr(text, "with no communication it would"));
    free(text);
    text = text_of(store, 2, 160);
    assert_non_null(strstr(text, "ddp or fsdp"));
    assert_non_null(strstr(text, "no winner"));
    free(text);
    data_run c = data_begin(store, 3, &real); // the third's interval is wide and meets the first's
    data_add_step(&c, "ddp", 8, 400, 0);
    data_add_step(&c, "zero1", 8, 404, 0);
    data_add_steps(&c, "zero2", 8, 405.8, 0, 7);
    data_finish(&c, &real);
    text = text_of(store, 3, 160);
    assert_non_null(strstr(text, "ddp or zero2"));
    free(text);
    ptb_store_close(store);
}

static void repetitions_become_one_point(void **state)
{
    (void)state;
    const data_run_spec spec = {.ranks = 2};
    ptb_store *store = new_store();
    data_run run = data_begin(store, 1, &spec);
    static const double medians[] = {3000, 1000, 2000};
    for (int i = 0; i < 3; i++) {
        if (i)
            data_begin_repetition(&run, i);
        data_coll c = one_case("ring", 4096);
        c.median_ns = medians[i];
        c.noise = 0.01;
        data_add_coll(&run, &c);
    }
    data_finish(&run, &spec);
    ptb_figure *figures = NULL;
    size_t count = 0;
    assert_int_equal(ptb_figures_query(store, report_named("latency"), "[1]", &figures, &count), PTB_OK);
    assert_int_equal(count, 1);
    assert_int_equal(figures[0].curve_count, 1);
    assert_int_equal(figures[0].curves[0].point_count, 1);
    const ptb_point *p = &figures[0].curves[0].points[0];
    assert_int_equal(p->repetitions, 3);
    assert_true(p->y > 1970 && p->y < 2030);
    assert_true(p->low < 1010 && p->high > 2990);
    assert_non_null(strstr(figures[0].conditions, "3 repetitions"));
    ptb_figures_free(figures, count);
    ptb_store_close(store);
}

// What differs names the curves; what is shared stands in the conditions, and only there.
static void curves_are_named_by_what_differs(void **state)
{
    (void)state;
    ptb_store *store = new_store();
    const data_run_spec old = {.label = "old", .ranks = 2}, new = {.label = "new", .ranks = 2};
    data_run a = data_begin(store, 1, &old), b = data_begin(store, 2, &new);
    data_coll c = one_case("ring", 4096);
    data_add_coll(&a, &c);
    data_add_coll(&b, &c);
    data_finish(&a, &old);
    data_finish(&b, &new);
    ptb_figure *figures = NULL;
    size_t count = 0;
    assert_int_equal(ptb_figures_query(store, report_named("bandwidth"), "[1,2]", &figures, &count), PTB_OK);
    assert_int_equal(count, 1);
    assert_int_equal(figures[0].curve_count, 2);
    assert_string_equal(figures[0].curves[0].name, "host ring, old (run 1)");
    assert_string_equal(figures[0].curves[1].name, "host ring, new (run 2)");
    assert_non_null(strstr(figures[0].conditions, DATA_CPU));
    assert_non_null(strstr(figures[0].conditions, "latency mode"));
    assert_non_null(strstr(figures[0].conditions, "time = maximum over ranks"));
    assert_null(strstr(figures[0].conditions, "run 1"));
    ptb_figures_free(figures, count);
    ptb_store_close(store);
}

static void what_is_not_measured_is_na(void **state)
{
    (void)state;
    const data_run_spec spec = {.ranks = 1};
    ptb_store *store = new_store();
    data_run run = data_begin(store, 1, &spec);
    data_coll c = one_case("ring", 4096);
    c.bus_factor = 0; // one rank: the factor's n - 1 is 0
    data_add_coll(&run, &c);
    data_coll wrong = one_case("tree", 4096);
    wrong.state = "wrong";
    wrong.reason = "rank 0, element 3: wanted 1, got 2";
    data_add_coll(&run, &wrong);
    data_finish(&run, &spec);
    ptb_figure *figures = NULL;
    size_t count = 9;
    assert_int_equal(ptb_figures_query(store, report_named("bandwidth"), "[1]", &figures, &count), PTB_OK);
    assert_int_equal(count, 0); // neither n/a nor a wrong result is drawn
    ptb_figures_free(figures, count);
    char *text = text_of(store, run.run, 120);
    assert_non_null(strstr(text, "n/a"));
    assert_null(strstr(text, "inf"));
    assert_null(strstr(text, "nan"));
    assert_non_null(strstr(text, "WRONG"));
    assert_non_null(strstr(text, "element 3: wanted 1, got 2"));
    free(text);
    ptb_store_close(store);
}

static void scaling_follows_its_definition(void **state)
{
    (void)state;
    ptb_store *store = new_store();
    static const struct {
        int ranks, batch;
        double ms;
    } steps[] = {{1, 8, 400}, {2, 8, 250}, {2, 16, 500}};
    for (int i = 0; i < 3; i++) {
        const data_run_spec spec = {.ranks = steps[i].ranks};
        data_run run = data_begin(store, i + 1, &spec);
        data_add_step(&run, "ddp", steps[i].batch, steps[i].ms, 0);
        data_finish(&run, &spec);
    }
    ptb_figure *figures = NULL;
    size_t count = 0;
    assert_int_equal(ptb_figures_query(store, report_named("scaling"), "[1,2,3]", &figures, &count), PTB_OK);
    assert_int_equal(count, 2);
    for (size_t f = 0; f < count; f++) {
        const ptb_curve *curve = &figures[f].curves[0];
        assert_int_equal(figures[f].curve_count, 1);
        assert_int_equal(curve->point_count, 2);
        assert_true(curve->points[0].y == 1 && isnan(curve->points[0].low));
        double wanted = strncmp(figures[f].title, "strong", 6) == 0 ? 400.0 / (2 * 250) : 400.0 / 500;
        assert_true(fabs(curve->points[1].y - wanted) < 0.01);
        assert_true(curve->points[1].low < curve->points[1].y && curve->points[1].high > curve->points[1].y);
        assert_non_null(strstr(curve->name, "N0 = 1"));
    }
    ptb_figures_free(figures, count);
    ptb_store_close(store);
}

// On one rank strategies do not differ: one that ran on two alone starts from ddp's step there; one that ran
// on one rank too keeps its own.
static void strategies_scale_from_one_rank(void **state)
{
    (void)state;
    ptb_store *store = new_store();
    const data_run_spec one = {.ranks = 1}, two = {.ranks = 2};
    data_run a = data_begin(store, 1, &one), b = data_begin(store, 2, &two);
    data_add_step(&a, "ddp", 8, 400, 0);
    data_add_step(&a, "zero1", 8, 300, 0);
    data_add_step(&b, "fsdp", 8, 250, 0);
    data_add_step(&b, "zero1", 8, 250, 0);
    data_finish(&a, &one);
    data_finish(&b, &two);
    char *alone = text_of(store, 1, 160); // where nothing is divided nobody wins
    assert_null(strstr(alone, "fastest "));
    free(alone);
    ptb_figure *figures = NULL;
    size_t count = 0;
    assert_int_equal(ptb_figures_query(store, report_named("scaling"), "[1,2]", &figures, &count), PTB_OK);
    assert_int_equal(count, 1);
    assert_int_equal(figures[0].curve_count, 2); // ddp ran on one rank alone
    for (size_t i = 0; i < 2; i++) {
        const ptb_curve *curve = &figures[0].curves[i];
        bool is_fsdp = strncmp(curve->name, "fsdp", 4) == 0;
        assert_true(is_fsdp || strncmp(curve->name, "zero1", 5) == 0);
        assert_int_equal(curve->point_count, 2);
        assert_true(curve->points[0].y == 1);
        assert_true(fabs(curve->points[1].y - (is_fsdp ? 400.0 : 300.0) / (2 * 250)) < 0.01);
    }
    ptb_figures_free(figures, count);
    ptb_store_close(store);
}

// A run of nothing but a few steps, or of one, or of steps too short for the clock, has pictures like any
// other.
static void few_steps_are_drawn(void **state)
{
    (void)state;
    static const struct {
        size_t steps;
        double ms;
    } rows[] = {{3, 400}, {1, 400}, {2, 0}};
    ptb_store *store = new_store();
    for (int i = 0; i < 3; i++) {
        const data_run_spec spec = {.ranks = 1};
        data_run run = data_begin(store, i + 1, &spec);
        data_add_steps(&run, "ddp", 8, rows[i].ms, 0, rows[i].steps);
        data_finish(&run, &spec);
        const int64_t id = i + 1;
        char *page = page_of(store, &id, 1);
        assert_non_null(strstr(page, "step_breakdown-1.png"));
        assert_non_null(strstr(page, "loss-1.png"));
        free(page);
    }
    // The widest interval of 3 samples covers 75 %: it is not shown as one of 95 %.
    ptb_figure *figures = NULL;
    size_t count = 0;
    assert_int_equal(ptb_figures_query(store, report_named("step_breakdown"), "[1]", &figures, &count),
                     PTB_OK);
    assert_int_equal(count, 1);
    assert_true(isnan(figures[0].curves[0].points[0].low) && isnan(figures[0].curves[0].points[0].high));
    ptb_figures_free(figures, count);
    ptb_store_close(store);
}

// No line is longer than asked for but those that hold one unbreakable word.
static void terminal_keeps_to_its_width(void **state)
{
    (void)state;
    const data_run_spec spec = {.ranks = 2};
    ptb_store *store = new_store();
    data_run run = data_begin(store, 1, &spec);
    data_add_quick(&run);
    data_add_step(&run, "ddp", 8, 400, 20);
    data_finish(&run, &spec);
    static const size_t widths[] = {80, 100, 132, 200};
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
        char *text = text_of(store, run.run, (int)widths[w]);
        for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
            if (strlen(line) > widths[w])
                fail_msg("%zu characters at width %zu: %s", strlen(line), widths[w], line);
            for (char *c = line; *c; c++)
                assert_true(*c >= ' ' && *c <= '~');
        }
        free(text);
    }
    ptb_store_close(store);
}

static void every_report_answers_for_no_run(void **state)
{
    (void)state;
    ptb_store *store = new_store();
    for (size_t i = 0; i < ptb_registry_count(PTB_KIND_REPORT); i++) {
        const ptb_report *report = (const ptb_report *)ptb_registry_at(PTB_KIND_REPORT, i);
        ptb_table_view view;
        ptb_figure *figures = NULL;
        size_t count = 1;
        if (report->table_sql) {
            assert_int_equal(ptb_table_view_query(store, report, "[]", &view), PTB_OK);
            assert_int_equal(view.group_count, 0);
            ptb_table_view_release(&view);
        }
        if (report->figure_sql) {
            assert_int_equal(ptb_figures_query(store, report, "[]", &figures, &count), PTB_OK);
            assert_int_equal(count, 0);
            ptb_figures_free(figures, count);
        }
    }
    ptb_store_close(store);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_enter, fixture_leave)
int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(numbers_are_written_with_four_digits),
        TEST(html_is_escaped),
        TEST(a_hostile_label_stays_text),
        TEST(an_empty_run_is_reported),
        TEST(one_point_is_drawn),
        TEST(ids_are_unique),
        TEST(gnuplot_missing_is_said),
        TEST(gnuplot_errors_are_shown),
        TEST(simulated_is_never_mixed),
        TEST(strategies_are_compared),
        TEST(repetitions_become_one_point),
        TEST(curves_are_named_by_what_differs),
        TEST(what_is_not_measured_is_na),
        TEST(scaling_follows_its_definition),
        TEST(strategies_scale_from_one_rank),
        TEST(few_steps_are_drawn),
        TEST(terminal_keeps_to_its_width),
        TEST(every_report_answers_for_no_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
