// The page's full table: every case of a collective, point-to-point or other benchmark with everything that
// belongs to its number. Training steps and kernels have tables of their own (step_breakdown.c, kernels.c).
#include "reports/report.h"
#include "reports/sql.h"

// clang-format off
static const char sql[] =
    PTB_SQL_CASES " SELECT c.run_name || ', ' || c.bench || coalesce(', ' || c.comm, '')"
    " || coalesce(' ' || c.algo, '') || ', ' || c.ranks_text || ' on ' || c.hosts_text || c.sim AS heading,"
    " c.cpus || '; ' || coalesce(c.combine_text, '') AS note, c.comm AS comm,"
    " coalesce(json_extract(c.facts, '$.algorithm'), c.algo) AS ran,"
    " CASE WHEN c.algo <> json_extract(c.facts, '$.algorithm') THEN c.algo END AS algo,"
    " json_extract(c.facts, '$.transport') AS transport, nullif(json_extract(c.facts, '$.segment'), '0') AS segment,"
    " json_extract(c.facts, '$.call') AS call,"
    " nullif(CAST(json_extract(c.facts, '$.page_faults') AS REAL), 0) AS faults,"
    " json_extract(c.facts, '$.buffers') AS buffers, c.type AS type, nullif(c.op, 'none') AS op, c.root AS root,"
    " CASE WHEN json_extract(c.params, '$.place') IS NOT NULL THEN c.place END AS place, c.other_params AS other_params,"
    " c.repetition AS repetition, c.bytes AS bytes, c.count AS count, c.mode AS mode, nullif(c.samples, 0) AS samples,"
    " c.batch AS batch, c.median_ns / 1e3 AS median, c.ci_low_ns / 1e3 AS low, c.ci_high_ns / 1e3 AS high,"
    " c.p99_ns / 1e3 AS p99, c.min_ns / 1e3 AS min, c.cv AS cv,"
    " " PTB_SQL_METRIC("algbw") " AS algbw, " PTB_SQL_METRIC("busbw") " AS busbw,"
    " " PTB_SQL_METRIC("expected") " AS expected, json_extract(c.facts, '$.expected_how') AS expected_how,"
    " " PTB_SQL_CHECKED " AS checked, " PTB_SQL_WRONG " AS wrong, c.state AS state, c.reason AS reason"
    " FROM c WHERE c.bench NOT IN ('step', 'kernels', 'pairs') AND c.state <> 'skipped'"
    " ORDER BY c.run_id, c.bench, c.comm, c.algo, c.ranks, c.hosts, note, c.type, c.op, c.root, c.place DESC,"
    " c.other_params, c.bytes, c.ordinal, c.id";
// clang-format on

#define TIME "time of one operation"
static const ptb_report_column columns[] = {
    {.name = "comm", .title = "comm", .optional = true, .shared = true},
    {.name = "ran", .title = "algorithm", .optional = true, .shared = true},
    {.name = "algo", .title = "asked for", .unit = "if other", .optional = true, .shared = true},
    {.name = "transport", .title = "transport", .optional = true, .shared = true},
    {.name = "segment", .title = "segment", .optional = true, .shared = true},
    {.name = "call", .title = "call", .optional = true, .shared = true},
    {.name = "buffers", .title = "buffers", .optional = true, .shared = true},
    {.name = "type", .title = "type", .optional = true, .shared = true},
    {.name = "op", .title = "op", .optional = true, .shared = true},
    {.name = "root", .title = "root", .optional = true, .shared = true},
    {.name = "place", .title = "place", .optional = true},
    {.name = "other_params", .title = "options", .optional = true, .shared = true},
    {.name = "repetition", .title = "rep.", .cell = PTB_CELL_INTEGER, .optional = true},
    {.name = "bytes", .title = "size", .cell = PTB_CELL_BYTES},
    {.name = "count", .title = "count", .unit = "elements", .cell = PTB_CELL_INTEGER, .optional = true},
    {.name = "mode", .title = "mode", .optional = true, .shared = true},
    {.name = "samples", .title = "samples", .cell = PTB_CELL_INTEGER},
    {.name = "batch", .title = "operations", .unit = "a sample", .cell = PTB_CELL_INTEGER, .shared = true},
    {.name = "median", .title = "median", .unit = "us", .over = TIME, .cell = PTB_CELL_NUMBER},
    {.name = "low", .title = "from", .unit = "95 % us", .over = TIME, .cell = PTB_CELL_NUMBER},
    {.name = "high", .title = "to", .unit = "95 % us", .over = TIME, .cell = PTB_CELL_NUMBER},
    {.name = "p99", .title = "p99", .unit = "us", .over = TIME, .cell = PTB_CELL_NUMBER},
    {.name = "min", .title = "min", .unit = "us", .over = TIME, .cell = PTB_CELL_NUMBER},
    {.name = "cv", .title = "cv", .unit = "%", .over = TIME, .cell = PTB_CELL_PERCENT},
    {.name = "faults", .title = "page faults", .unit = "an op", .cell = PTB_CELL_NUMBER, .optional = true},
    {.name = "algbw", .title = "algbw", .unit = "GB/s", .cell = PTB_CELL_NUMBER},
    {.name = "busbw", .title = "busbw", .unit = "GB/s", .cell = PTB_CELL_NUMBER},
    {.name = "expected", .title = "expected", .unit = "GB/s", .cell = PTB_CELL_NUMBER, .optional = true},
    {.name = "expected_how", .title = "expected", .unit = "because", .optional = true, .shared = true},
    {.name = "checked", .title = "checked", .unit = "elements", .cell = PTB_CELL_INTEGER},
    {.name = "wrong", .title = "wrong", .unit = "elements", .cell = PTB_CELL_INTEGER},
    {.name = "state", .title = "state", .cell = PTB_CELL_STATE},
    {.name = "reason", .title = "reason", .optional = true},
};

static const ptb_report cases = {
    .plugin = {"cases", "Every case with its samples, spread and state"},
    .order = 90,
    .where = PTB_REPORT_HTML,
    .title = "All cases",
    .caption =
        "Every case that ran. Times are per operation; from and to are the 95 % confidence interval of the "
        "median, cv the coefficient of variation of the samples. n/a: not measured or not defined there.",
    .table_sql = sql,
    .columns = columns,
    .column_count = sizeof columns / sizeof *columns,
};
PTB_REGISTER(PTB_KIND_REPORT, cases);
