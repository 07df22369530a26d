// Comma-separated values (RFC 4180: CRLF, quotes doubled), a row a case. After the fixed columns come one
// column for each parameter (param.NAME), fact (fact.NAME) and metric (NAME [UNIT]) that any of the cases
// has. To add another format, write results/exporter_NAME.c in the shape of this file.
#include "results/export.h"

#include "core/log.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

// The first columns of the query are for us, the rest is written as it is.
enum { CASE_ID, CASE_PARAMS, CASE_FACTS, FIRST_FIXED };
static const char cases_sql[] =
    "SELECT c.id, c.params, c.facts, r.id AS run, r.uuid, r.label, r.started_utc_s AS run_started_utc_s, "
    "r.version, "
    "r.git_revision, r.fingerprint, r.simulated, p.ordinal AS repetition, p.launcher, c.key, c.bench, "
    "c.bytes, "
    "c.ranks, c.hosts, c.state, c.reason, c.mode, c.combine, c.stopped, c.batch, c.warmup, c.started_utc_s, "
    "c.elapsed_s, c.samples, c.min_ns, c.median_ns, c.mean_ns, c.p95_ns, c.p99_ns, c.max_ns, c.cv, "
    "c.ci_low_ns, "
    "c.ci_high_ns, c.ci_confidence FROM run r JOIN repetition p ON p.run_id = r.id JOIN bench_case c ON "
    "c.repetition_id = p.id WHERE r.id = ?1 AND (?2 = '0' OR c.id = CAST(?2 AS INTEGER)) ORDER BY p.ordinal, "
    "c.id";
static const char metrics_sql[] =
    "SELECT m.case_id, m.name || CASE m.unit WHEN '' THEN '' ELSE ' [' || m.unit || ']' END, m.value FROM "
    "repetition p JOIN bench_case c ON c.repetition_id = p.id JOIN metric m ON m.case_id = c.id WHERE "
    "p.run_id = "
    "?1 AND (?2 = '0' OR c.id = CAST(?2 AS INTEGER)) ORDER BY p.ordinal, c.id, m.name";

typedef struct {
    ptb_table **cases, **metrics; // [run_count]
    size_t run_count;
    json_t *params, *facts, *measured; // column name -> its number, in order of first appearance
} csv;

static void field(ptb_text *line, const char *text)
{
    if (!text[strcspn(text, "\",\r\n")]) {
        ptb_text_append(line, text);
        return;
    }
    ptb_text_append(line, "\"");
    for (; *text; text++) {
        if (*text == '"')
            ptb_text_append(line, "\"");
        ptb_text_append_bytes(line, text, 1);
    }
    ptb_text_append(line, "\"");
}

static void cell(ptb_text *line, const ptb_table *t, size_t row, size_t column)
{
    const char *text = ptb_table_cell(t, row, column);
    double number = ptb_table_number(t, row, column);
    // SQLite's text of a real has 15 digits, which is not always the same number.
    if (!isnan(number) && strpbrk(text, ".e") && ptb_export_is_number(t->names[column]))
        ptb_export_number(line, number, "");
    else
        field(line, text);
}

static void add_columns(json_t *columns, const char *object)
{
    json_t *parsed = json_loads(object, 0, NULL);
    const char *name;
    json_t *value;
    json_object_foreach(parsed, name, value)
    {
        if (!json_object_get(columns, name))
            json_object_set_new(columns, name, json_integer((json_int_t)json_object_size(columns)));
    }
    json_decref(parsed);
}

static ptb_status load(csv *c, ptb_store *store, const int64_t *runs, const ptb_export_options *options)
{
    char run[24], only[24];
    const char *args[] = {run, only};
    snprintf(only, sizeof only, "%lld", options ? (long long)options->case_id : 0);
    for (size_t i = 0; i < c->run_count; i++) {
        snprintf(run, sizeof run, "%lld", (long long)runs[i]);
        PTB_TRY(ptb_store_query(store, cases_sql, args, 2, &c->cases[i]));
        PTB_TRY(ptb_store_query(store, metrics_sql, args, 2, &c->metrics[i]));
        for (size_t row = 0; row < c->cases[i]->rows; row++) {
            add_columns(c->params, ptb_table_cell(c->cases[i], row, CASE_PARAMS));
            add_columns(c->facts, ptb_table_cell(c->cases[i], row, CASE_FACTS));
        }
        for (size_t row = 0; row < c->metrics[i]->rows; row++) {
            const char *name = ptb_table_cell(c->metrics[i], row, 1);
            if (!json_object_get(c->measured, name))
                json_object_set_new(c->measured, name,
                                    json_integer((json_int_t)json_object_size(c->measured)));
        }
    }
    return PTB_OK;
}

static void named_columns(ptb_text *line, json_t *columns, const char *prefix)
{
    const char *name;
    json_t *unused;
    json_object_foreach(columns, name, unused)
    {
        ptb_text full = PTB_TEXT_INIT;
        ptb_text_printf(&full, "%s%s", prefix, name);
        ptb_text_append(line, ",");
        field(line, full.data);
        ptb_text_release(&full);
    }
}

static void object_cells(ptb_text *line, json_t *columns, const char *object)
{
    json_t *parsed = json_loads(object, 0, NULL), *unused;
    const char *name;
    json_object_foreach(columns, name, unused)
    {
        const char *value = json_string_value(json_object_get(parsed, name));
        ptb_text_append(line, ",");
        field(line, value ? value : "");
    }
    json_decref(parsed);
}

// The metrics of one case; *at is the first row of the table not yet used.
static void metric_cells(ptb_text *line, const csv *c, const ptb_table *t, double id, double *values,
                         size_t *at)
{
    size_t columns = json_object_size(c->measured);
    for (size_t i = 0; i < columns; i++)
        values[i] = NAN;
    for (; *at < t->rows && ptb_table_number(t, *at, 0) == id; ++*at) {
        json_t *column = json_object_get(c->measured, ptb_table_cell(t, *at, 1));
        values[json_integer_value(column)] = ptb_table_number(t, *at, 2);
    }
    for (size_t i = 0; i < columns; i++) {
        ptb_text_append(line, ",");
        ptb_export_number(line, values[i], "");
    }
}

static ptb_status write_rows(const csv *c, FILE *out)
{
    ptb_text line = PTB_TEXT_INIT;
    double *values = malloc((json_object_size(c->measured) + 1) * sizeof *values);
    ptb_status status = PTB_OK;
    if (!values) {
        ptb_error("not enough memory for the export");
        return PTB_NO_MEMORY;
    }
    for (size_t column = FIRST_FIXED; column < c->cases[0]->columns; column++) {
        ptb_text_append(&line, column > FIRST_FIXED ? "," : "");
        field(&line, c->cases[0]->names[column]);
    }
    named_columns(&line, c->params, "param.");
    named_columns(&line, c->facts, "fact.");
    named_columns(&line, c->measured, "");
    ptb_text_append(&line, "\r\n");
    for (size_t i = 0; i < c->run_count && status == PTB_OK; i++) {
        const ptb_table *t = c->cases[i];
        size_t at = 0;
        for (size_t row = 0; row < t->rows; row++) {
            for (size_t column = FIRST_FIXED; column < t->columns; column++) {
                ptb_text_append(&line, column > FIRST_FIXED ? "," : "");
                cell(&line, t, row, column);
            }
            object_cells(&line, c->params, ptb_table_cell(t, row, CASE_PARAMS));
            object_cells(&line, c->facts, ptb_table_cell(t, row, CASE_FACTS));
            metric_cells(&line, c, c->metrics[i], ptb_table_number(t, row, CASE_ID), values, &at);
            ptb_text_append(&line, "\r\n");
        }
        status = ptb_export_flush(&line, out);
    }
    ptb_text_release(&line);
    free(values);
    return status;
}

static ptb_status write_csv(ptb_store *store, const int64_t *runs, size_t run_count,
                            const ptb_export_options *options, FILE *out)
{
    if (run_count == 0) {
        ptb_error("there is no run to export");
        return PTB_USAGE;
    }
    csv c = {.cases = calloc(run_count, sizeof *c.cases),
             .metrics = calloc(run_count, sizeof *c.metrics),
             .run_count = run_count,
             .params = json_object(),
             .facts = json_object(),
             .measured = json_object()};
    ptb_status status = PTB_NO_MEMORY;
    if (c.cases && c.metrics && c.params && c.facts && c.measured)
        status = load(&c, store, runs, options);
    else
        ptb_error("not enough memory for the export");
    if (status == PTB_OK)
        status = write_rows(&c, out);
    for (size_t i = 0; i < run_count; i++) {
        ptb_table_free(c.cases ? c.cases[i] : NULL);
        ptb_table_free(c.metrics ? c.metrics[i] : NULL);
    }
    free(c.cases);
    free(c.metrics);
    json_decref(c.params);
    json_decref(c.facts);
    json_decref(c.measured);
    return status;
}

static const ptb_exporter exporter_csv = {
    .plugin = {.name = "csv", .summary = "a row a case, for spreadsheets and data frames"},
    .extension = "csv",
    .write = write_csv,
};
PTB_REGISTER(PTB_KIND_EXPORTER, exporter_csv);
