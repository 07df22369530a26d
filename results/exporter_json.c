// JSON: whole runs as nested objects, one member a column of the schema (results/schema.sql), in the order
// run, repetitions, cases, ranks, metrics, series. With options->samples the arrays of samples are there too.
// Values that are not finite are null.
#include "results/export.h"

#include "core/log.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    ptb_store *store;
    const ptb_export_options *options;
    ptb_text text;
    FILE *out;
} writer;

// Columns that hold JSON themselves are written as it, unless it is damaged.
static bool is_json_column(const char *name)
{
    static const char *const columns[] = {"build",     "options", "environment", "hosts",
                                          "placement", "params",  "facts"};
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++)
        if (strcmp(name, columns[i]) == 0)
            return true;
    return false;
}

static bool is_valid_json(const char *text)
{
    json_t *parsed = json_loads(text, JSON_DECODE_ANY, NULL);
    json_decref(parsed);
    return parsed != NULL;
}

// `"name": value` of one cell.
static void member(writer *w, const ptb_table *t, size_t row, size_t column)
{
    const char *name = t->names[column], *value = t->cells[row * t->columns + column];
    ptb_text_append_json(&w->text, name);
    ptb_text_append(&w->text, ": ");
    if (!value)
        ptb_text_append(&w->text, "null");
    else if (is_json_column(name) && is_valid_json(value))
        ptb_text_append(&w->text, value);
    else if (strcmp(name, "simulated") == 0)
        ptb_text_append(&w->text, strcmp(value, "0") == 0 ? "false" : "true");
    else if (ptb_export_is_number(name) && !strpbrk(value, ".eI"))
        ptb_text_append(&w->text, value); // an integer: its text is exact
    else if (ptb_export_is_number(name))
        ptb_export_number(&w->text, ptb_table_number(t, row, column), "null");
    else
        ptb_text_append_json(&w->text, value);
}

static void members(writer *w, const ptb_table *t, size_t row, size_t first)
{
    for (size_t column = first; column < t->columns; column++) {
        ptb_text_append(&w->text, column > first ? ", " : "");
        member(w, t, row, column);
    }
}

static void values(writer *w, const char *name, const double *numbers, size_t count)
{
    ptb_text_printf(&w->text, ", \"%s\": [", name);
    for (size_t i = 0; i < count; i++) {
        ptb_text_append(&w->text, i ? ", " : "");
        ptb_export_number(&w->text, numbers[i], "null");
    }
    ptb_text_append(&w->text, "]");
}

// `, "NAME": [` and one object for each row; `more` adds what is nested in it.
static ptb_status list(writer *w, const char *name, const char *sql, int64_t id, size_t first,
                       ptb_status (*more)(writer *, const ptb_table *, size_t, int64_t))
{
    ptb_table *t;
    PTB_TRY(ptb_export_query(w->store, sql, id, &t));
    ptb_status status = PTB_OK;
    ptb_text_printf(&w->text, ", \"%s\": [", name);
    for (size_t row = 0; row < t->rows && status == PTB_OK; row++) {
        ptb_text_append(&w->text, row ? ",\n{" : "\n{");
        members(w, t, row, first);
        if (more)
            status = more(w, t, row, id);
        ptb_text_append(&w->text, "}");
    }
    ptb_text_append(&w->text, "]");
    ptb_table_free(t);
    return status;
}

static ptb_status more_of_rank(writer *w, const ptb_table *t, size_t row, int64_t case_id)
{
    double *samples;
    size_t count;
    if (!w->options->samples)
        return PTB_OK;
    PTB_TRY(ptb_store_samples(w->store, case_id, (int)ptb_table_number(t, row, 0), &samples, &count));
    values(w, "samples_ns", samples, count);
    free(samples);
    return PTB_OK;
}

static ptb_status more_of_series(writer *w, const ptb_table *t, size_t row, int64_t case_id)
{
    double *numbers;
    size_t count;
    PTB_TRY(ptb_store_series(w->store, case_id, ptb_table_cell(t, row, 0), &numbers, &count));
    values(w, "values", numbers, count);
    free(numbers);
    return PTB_OK;
}

static ptb_status more_of_case(writer *w, const ptb_table *t, size_t row, int64_t unused)
{
    (void)unused;
    int64_t id = (int64_t)ptb_table_number(t, row, 0);
    if (w->options->samples) {
        double *samples;
        size_t count;
        PTB_TRY(ptb_store_samples(w->store, id, -1, &samples, &count));
        values(w, "combined_ns", samples, count);
        free(samples);
    }
    PTB_TRY(list(w, "metrics",
                 "SELECT name, value, unit, convention, better FROM metric WHERE case_id = ?1 ORDER BY name",
                 id, 0, NULL));
    PTB_TRY(list(
        w, "per_rank",
        "SELECT rank, samples, min_ns, median_ns, mean_ns, p95_ns, p99_ns, max_ns, checked, wrong, detail, "
        "spans_dropped FROM case_rank WHERE case_id = ?1 ORDER BY rank",
        id, 0, more_of_rank));
    PTB_TRY(list(w, "series", "SELECT name, unit, count FROM series WHERE case_id = ?1 ORDER BY name", id, 0,
                 more_of_series));
    return ptb_export_flush(&w->text, w->out);
}

static ptb_status more_of_repetition(writer *w, const ptb_table *t, size_t row, int64_t unused)
{
    (void)unused;
    char sql[640];
    snprintf(
        sql, sizeof sql,
        "SELECT id, key, bench, bytes, ranks, hosts, params, facts, state, reason, mode, combine, stopped, "
        "batch, warmup, started_utc_s, elapsed_s, samples, min_ns, median_ns, mean_ns, p95_ns, p99_ns, "
        "max_ns, "
        "cv, ci_low_ns, ci_high_ns, ci_confidence FROM bench_case WHERE repetition_id = ?1 AND "
        "(%lld = 0 OR id = %lld) ORDER BY id",
        (long long)w->options->case_id, (long long)w->options->case_id);
    return list(w, "cases", sql, (int64_t)ptb_table_number(t, row, 0), 1, more_of_case);
}

static ptb_status write_run(writer *w, int64_t run)
{
    ptb_table *t;
    PTB_TRY(
        ptb_export_query(w->store,
                         "SELECT id, uuid, started_utc_s, finished_utc_s, ptb_run_state(state, processes) AS "
                         "state, reason, command, selection, "
                         "label, version, git_revision, build, options, environment, hosts, fingerprint, "
                         "simulated, clock_resolution_ns, clock_overhead_ns, loop_overhead_ns FROM run WHERE "
                         "id = ?1",
                         run, &t));
    ptb_status status = PTB_USAGE;
    if (t->rows == 1) {
        ptb_text_append(&w->text, "{");
        members(w, t, 0, 0);
        status =
            list(w, "repetitions",
                 "SELECT id, ordinal, started_utc_s, ranks, hosts, launcher, placement FROM repetition WHERE "
                 "run_id = ?1 ORDER BY ordinal",
                 run, 1, more_of_repetition);
        ptb_text_append(&w->text, "}");
    } else {
        ptb_error("there is no run %lld to export", (long long)run);
    }
    ptb_table_free(t);
    return status;
}

static ptb_status write_json(ptb_store *store, const int64_t *runs, size_t run_count,
                             const ptb_export_options *options, FILE *out)
{
    static const ptb_export_options defaults = {0};
    writer w = {.store = store, .options = options ? options : &defaults, .text = PTB_TEXT_INIT, .out = out};
    ptb_status status = PTB_OK;
    ptb_text_append(&w.text, "{\"format\": \"ptbench\", \"format_version\": 1, \"runs\": [\n");
    for (size_t i = 0; i < run_count && status == PTB_OK; i++) {
        ptb_text_append(&w.text, i ? ",\n" : "");
        status = write_run(&w, runs[i]);
    }
    ptb_text_append(&w.text, "]}\n");
    if (status == PTB_OK)
        status = ptb_export_flush(&w.text, out);
    ptb_text_release(&w.text);
    return status;
}

static const ptb_exporter exporter_json = {
    .plugin = {.name = "json",
               .summary = "whole runs with metrics, per-rank figures, series and, if asked, samples"},
    .extension = "json",
    .write = write_json,
};
PTB_REGISTER(PTB_KIND_EXPORTER, exporter_json);
