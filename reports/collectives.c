// The terminal's table of collectives, in nccl-tests' columns: size, count, type, op, root, then time, algbw,
// busbw and #wrong out of place and in place. Any other benchmark but the training step is listed here too.
#include "reports/report.h"
#include "reports/sql.h"

// clang-format off
#define OUT(expression, name) " max(CASE WHEN c.place = 'out-of-place' THEN " expression " END) AS out_" name ","
#define IN(expression, name)  " max(CASE WHEN c.place = 'in-place' THEN " expression " END) AS in_" name ","
#define BOTH(expression, name) OUT(expression, name) IN(expression, name)
#define GROUP \
    " c.run_id, c.bench, c.comm, c.algo, c.ranks, c.hosts, c.other_params, c.ordinal, c.combine, c.type, c.op, c.root," \
    " c.bytes, c.count"

static const char sql[] =
    PTB_SQL_CASES ", m AS (SELECT c.*, " PTB_SQL_METRIC("algbw") " AS algbw, " PTB_SQL_METRIC("busbw") " AS busbw,"
    " " PTB_SQL_METRIC("expected") " AS expected,"
    " " PTB_SQL_CHECKED " AS checked, " PTB_SQL_WRONG " AS wrong,"
    " max(ci_high_ns - median_ns, median_ns - ci_low_ns) / median_ns AS spread FROM c"
    " WHERE c.bench NOT IN ('step', 'kernels', 'pairs') AND c.state <> 'skipped')"
    " SELECT c.bench || coalesce(', comm ' || c.comm, '') || coalesce(', algorithm ' || c.algo, '') || ', '"
    " || c.ranks_text || ' on ' || c.hosts_text || coalesce(', ' || nullif(c.other_params, ''), '')"
    " || coalesce(', repetition ' || c.repetition, '') || c.sim AS heading,"
    " c.cpus || ', ' || c.combine_text || ', +- is the 95 % interval of the median' AS note,"
    " c.bytes AS bytes, c.count AS count, c.type AS type, nullif(c.op, 'none') AS op, c.root AS root,"
    " max(nullif(json_extract(c.facts, '$.algorithm'), c.algo)) AS ran,"
    BOTH("CASE c.mode WHEN 'back-to-back' THEN 'batch' ELSE c.mode END", "mode")
    BOTH("c.median_ns / 1e3", "time")
    BOTH("c.spread", "spread")
    BOTH("c.algbw", "algbw")
    BOTH("c.busbw", "busbw")
    BOTH("CASE WHEN c.checked > 0 THEN c.wrong END", "wrong")
    " max(c.expected) AS expected, max(c.busbw) / max(c.expected) AS of_expected,"
    " min(nullif(c.samples, 0)) AS samples,"
    " CASE max(CASE c.state WHEN 'failed' THEN 2 WHEN 'wrong' THEN 1 ELSE 0 END)"
    " WHEN 2 THEN 'failed' WHEN 1 THEN 'wrong' ELSE 'ok' END AS state"
    " FROM m AS c GROUP BY" GROUP " ORDER BY" GROUP;
// clang-format on

#define O "out-of-place"
#define I "in-place"
static const ptb_report_column columns[] = {
    {.name = "bytes", .title = "size", .unit = "B", .cell = PTB_CELL_BYTES},
    {.name = "count",
     .title = "count",
     .unit = "elements",
     .cell = PTB_CELL_INTEGER,
     .optional = true,
     .drop = 2},
    {.name = "type", .title = "type", .optional = true},
    {.name = "op", .title = "op", .optional = true},
    {.name = "root", .title = "root", .optional = true, .drop = 4},
    {.name = "ran", .title = "ran", .optional = true, .shared = true, .drop = 5},
    {.name = "out_mode", .title = "mode", .over = O, .optional = true, .shared = true, .drop = 1},
    {.name = "out_time", .title = "time", .unit = "us", .over = O, .cell = PTB_CELL_NUMBER},
    {.name = "out_spread", .title = "+-", .unit = "%", .over = O, .cell = PTB_CELL_PERCENT},
    {.name = "out_algbw", .title = "algbw", .unit = "GB/s", .over = O, .cell = PTB_CELL_NUMBER, .drop = 3},
    {.name = "out_busbw", .title = "busbw", .unit = "GB/s", .over = O, .cell = PTB_CELL_NUMBER},
    {.name = "out_wrong", .title = "#wrong", .over = O, .cell = PTB_CELL_INTEGER, .drop = 1},
    {.name = "in_mode", .title = "mode", .over = I, .optional = true, .shared = true, .drop = 1},
    {.name = "in_time", .title = "time", .unit = "us", .over = I, .cell = PTB_CELL_NUMBER, .optional = true},
    {.name = "in_spread", .title = "+-", .unit = "%", .over = I, .cell = PTB_CELL_PERCENT, .optional = true},
    {.name = "in_algbw",
     .title = "algbw",
     .unit = "GB/s",
     .over = I,
     .cell = PTB_CELL_NUMBER,
     .drop = 3,
     .optional = true},
    {.name = "in_busbw",
     .title = "busbw",
     .unit = "GB/s",
     .over = I,
     .cell = PTB_CELL_NUMBER,
     .optional = true},
    {.name = "in_wrong", .title = "#wrong", .over = I, .cell = PTB_CELL_INTEGER, .drop = 1, .optional = true},
    {.name = "expected", .title = "expected", .unit = "GB/s", .cell = PTB_CELL_NUMBER, .optional = true},
    {.name = "of_expected", .title = "of it", .unit = "%", .cell = PTB_CELL_PERCENT, .optional = true},
    {.name = "state", .title = "state", .cell = PTB_CELL_STATE},
};

static const ptb_report collectives = {
    .plugin = {"collectives", "Collectives in the columns of nccl-tests, for the terminal"},
    .order = 30,
    .where = PTB_REPORT_TERMINAL,
    .title = "Collectives",
    .caption = "Time of one operation. Mode latency: each starts together on all ranks; batch: back-to-back, "
               "a sample is "
               "the mean of a batch of them.",
    .table_sql = sql,
    .columns = columns,
    .column_count = sizeof columns / sizeof *columns,
};
PTB_REGISTER(PTB_KIND_REPORT, collectives);
