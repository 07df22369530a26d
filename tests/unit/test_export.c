// Exports: valid CSV, JSON and Chrome traces with the numbers that were stored, also where the decimal sign
// is a comma.
#include "store_fixture.h"

#include "results/export.h"

#include <jansson.h>
#include <locale.h>

// Stores a run with one measured and one skipped case; *run is its id.
static ptb_store *make(int64_t *run)
{
    ptb_store *store;
    assert_int_equal(ptb_store_open("r.db", PTB_STORE_WRITE, &store), PTB_OK);
    int64_t repetition = fixture_begin(store, FIXTURE_UUID, run);
    assert_int_equal(fixture_add(store, repetition, 1024, "ok"), PTB_OK);
    ptb_params params = {0}, facts = {0};
    ptb_params_set(&params, "root", "0");
    ptb_case_record skipped = {.bench = "broadcast",
                               .key = "broadcast/root=0",
                               .params = &params,
                               .facts = &facts,
                               .ranks = 2,
                               .hosts = 1,
                               .state = "skipped",
                               .reason = "line 1\nline \"2\""};
    assert_int_equal(ptb_store_add_case(store, repetition, &skipped), PTB_OK);
    return store;
}

static ptb_status export_as(ptb_store *store, const char *name, int64_t run,
                            const ptb_export_options *options, char **text)
{
    const ptb_exporter *exporter = (const ptb_exporter *)ptb_registry_find(PTB_KIND_EXPORTER, name);
    assert_non_null(exporter);
    size_t size = 0;
    *text = NULL;
    FILE *out = open_memstream(text, &size);
    assert_non_null(out);
    ptb_status status = exporter->write(store, &run, 1, options, out);
    fclose(out);
    return status;
}

// Splits one record of RFC 4180 in place; returns the number of fields and the rest of the text.
static size_t csv_record(char **text, char **fields, size_t max)
{
    char *at = *text, *to;
    size_t count = 0;
    for (;;) {
        assert_true(count < max);
        fields[count++] = to = at;
        if (*at == '"') {
            for (at++; *at != '"' || at[1] == '"'; at++) {
                assert_true(*at);
                at += *at == '"';
                *to++ = *at;
            }
            at++;
        } else {
            while (*at && !strchr(",\"\r\n", *at))
                *to++ = *at++;
        }
        char end = *at;
        *to = '\0';
        if (end == ',') {
            at++;
            continue;
        }
        assert_true(end == '\r' && at[1] == '\n');
        *text = at + 2;
        return count;
    }
}

static const char *named(char **names, char **fields, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0)
            return fields[i];
    fail_msg("no column %s", name);
    return NULL;
}

static void check_csv(void)
{
    int64_t run;
    ptb_store *store = make(&run);
    char *text, *rest, *names[80], *ok[80], *skipped[80];
    assert_int_equal(export_as(store, "csv", run, NULL, &text), PTB_OK);
    rest = text;
    size_t count = csv_record(&rest, names, 80);
    assert_int_equal(csv_record(&rest, ok, 80), count);
    assert_int_equal(csv_record(&rest, skipped, 80), count);
    assert_string_equal(rest, "");
    assert_string_equal(named(names, ok, count, "uuid"), FIXTURE_UUID);
    assert_string_equal(named(names, ok, count, "label"), "before \"tuning\"");
    assert_string_equal(named(names, ok, count, "version"), "1.10"); // text, though it reads as a number
    assert_string_equal(named(names, ok, count, "run_started_utc_s"), "1764424095.5");
    assert_string_equal(named(names, ok, count, "param.note"), "a \"quoted\", comma");
    assert_string_equal(named(names, ok, count, "fact.algorithm"), "ring");
    assert_string_equal(named(names, ok, count, "busbw [GB/s]"), "12.5");
    assert_string_equal(named(names, ok, count, "algbw [GB/s]"), "");
    assert_string_equal(named(names, ok, count, "elapsed_s"), "0.5");
    assert_string_equal(named(names, ok, count, "param.root"), "");
    assert_string_equal(named(names, skipped, count, "param.root"), "0");
    assert_string_equal(named(names, skipped, count, "busbw [GB/s]"), "");
    assert_string_equal(named(names, skipped, count, "median_ns"), "");
    assert_string_equal(named(names, skipped, count, "reason"), "line 1\nline \"2\"");
    free(text);
    ptb_store_close(store);
}

static void check_json(void)
{
    int64_t run;
    ptb_store *store = make(&run);
    char *text;
    ptb_export_options options = {.samples = true};
    assert_int_equal(export_as(store, "json", run, &options, &text), PTB_OK);
    json_t *root = json_loads(text, 0, NULL);
    assert_non_null(root);
    json_t *r = json_array_get(json_object_get(root, "runs"), 0);
    assert_string_equal(json_string_value(json_object_get(r, "uuid")), FIXTURE_UUID);
    assert_true(json_real_value(json_object_get(r, "clock_overhead_ns")) == 20.5);
    assert_true(json_is_false(json_object_get(r, "simulated")));
    assert_string_equal(json_string_value(json_object_get(json_object_get(r, "build"), "compiler")), "gcc");
    json_t *cases = json_object_get(json_array_get(json_object_get(r, "repetitions"), 0), "cases");
    assert_int_equal(json_array_size(cases), 2);
    json_t *c = json_array_get(cases, 0);
    assert_int_equal(json_integer_value(json_object_get(c, "bytes")), 1024);
    assert_string_equal(json_string_value(json_object_get(json_object_get(c, "facts"), "algorithm")), "ring");
    json_t *algbw = json_array_get(json_object_get(c, "metrics"), 0),
           *busbw = json_array_get(json_object_get(c, "metrics"), 1);
    assert_string_equal(json_string_value(json_object_get(algbw, "name")), "algbw");
    assert_true(json_is_null(json_object_get(algbw, "value")));
    assert_true(json_real_value(json_object_get(busbw, "value")) == 12.5);
    json_t *rank = json_array_get(json_object_get(c, "per_rank"), 1);
    json_t *samples = json_object_get(rank, "samples_ns");
    assert_int_equal(json_array_size(samples), FIXTURE_SAMPLES);
    for (size_t i = 0; i < FIXTURE_SAMPLES; i++)
        assert_true(json_number_value(json_array_get(samples, i)) == fixture_sample(1024, 1, i));
    json_t *loss = json_object_get(json_array_get(json_object_get(c, "series"), 0), "values");
    assert_true(json_real_value(json_array_get(loss, 2)) == 0.1);
    assert_true(json_is_null(json_object_get(json_array_get(cases, 1), "median_ns")));
    json_decref(root);
    free(text);
    ptb_store_close(store);
}

static void check_perfetto(void)
{
    int64_t run;
    ptb_store *store = make(&run);
    char *text;
    assert_int_equal(export_as(store, "perfetto", run, NULL, &text), PTB_OK);
    json_t *root = json_loads(text, JSON_DECODE_INT_AS_REAL, NULL);
    assert_non_null(root);
    json_t *events = json_object_get(root, "traceEvents"), *event;
    size_t i, spans = 0, names = 0;
    json_array_foreach(events, i, event)
    {
        bool is_span = strcmp(json_string_value(json_object_get(event, "ph")), "X") == 0;
        names += !is_span;
        assert_true(json_real_value(json_object_get(event, "pid")) == 1);
        if (!is_span)
            continue;
        assert_true(json_real_value(json_object_get(event, "ts")) == 2.0 - (double)spans);
        assert_true(json_real_value(json_object_get(event, "dur")) == 0.25);
        spans++;
    }
    assert_int_equal(spans, FIXTURE_SPANS);
    assert_int_equal(names, 1 + FIXTURE_SPANS); // the rank and its three lanes
    json_decref(root);
    free(text);
    ptb_export_options other = {.case_id = 2};
    int saved = fixture_catch_errors();
    char errors[512];
    ptb_status none = export_as(store, "perfetto", run, &other, &text);
    fixture_release_errors(saved, errors, sizeof errors);
    assert_int_equal(none, PTB_USAGE);
    assert_non_null(strstr(errors, "no spans"));
    assert_non_null(strstr(errors, "--trace"));
    free(text);
    ptb_store_close(store);
}

static void exports_are_valid(void **state)
{
    (void)state;
    static void (*const checks[])(void) = {check_csv, check_json, check_perfetto};
    for (size_t i = 0; i < 3; i++) {
        checks[i]();
        assert_int_equal(unlink("r.db"), 0);
    }
}

static int leave(void **state)
{
    setlocale(LC_ALL, "C");
    return fixture_leave(state);
}

static void exports_ignore_the_locale(void **state)
{
    if (system("localedef -i de_DE -f UTF-8 ./de_DE.UTF-8 >/dev/null 2>&1") != 0 ||
        setenv("LOCPATH", ".", 1) != 0 || !setlocale(LC_ALL, "de_DE.UTF-8")) {
        puts("skipped: no locale with a decimal comma can be made here (localedef de_DE)");
        skip();
    }
    char comma[8];
    snprintf(comma, sizeof comma, "%.1f", 0.5);
    assert_string_equal(comma, "0,5");
    exports_are_valid(state);
    ptb_text text = PTB_TEXT_INIT;
    ptb_export_number(&text, 1.0 / 3, "");
    assert_string_equal(text.data, "0.3333333333333333");
    ptb_text_release(&text);
}

static void a_full_disk_is_reported(void **state)
{
    (void)state;
    int64_t run;
    ptb_store *store = make(&run);
    char errors[512];
    FILE *full = fopen("/dev/full", "w");
    if (!full)
        skip();
    int saved = fixture_catch_errors();
    const ptb_exporter *json = (const ptb_exporter *)ptb_registry_find(PTB_KIND_EXPORTER, "json");
    ptb_status status = json->write(store, &run, 1, NULL, full);
    fixture_release_errors(saved, errors, sizeof errors);
    fclose(full);
    assert_int_equal(status, PTB_STORE);
    assert_non_null(strstr(errors, "No space left"));
    ptb_store_close(store);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_enter, leave)
    const struct CMUnitTest tests[] = {
        TEST(exports_are_valid),
        TEST(exports_ignore_the_locale),
        TEST(a_full_disk_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
