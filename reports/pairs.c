// Pairs of ranks or devices over each path: a table and, for the paths between ranks, a matrix, in which a
// slow link, slot or cable is a pale cell.
#include "reports/report.h"
#include "reports/sql.h"

extern const char ptb_gp_pairs[];

#define PARAM(name) "json_extract(c.params, '$." name "')"
#define FACT(name)  "json_extract(c.facts, '$." name "')"

// clang-format off
#define SIZE \
    "CASE WHEN c.bytes < 1024 THEN c.bytes || ' B' WHEN c.bytes < 1048576 THEN printf('%g KiB', c.bytes / 1024.0)" \
    " ELSE printf('%g MiB', c.bytes / 1048576.0) END"
#define RANKS "CAST(" PARAM("from") " AS INTEGER) AS source, CAST(" PARAM("to") " AS INTEGER) AS target"
#define GROUP "c.run_id, c.path, c.comm, c.bytes, c.ordinal"
static const char table_sql[] =
    PTB_SQL_CASES ", p AS (SELECT c.*, " PARAM("path") " AS path, " PTB_SQL_METRIC("bandwidth") " AS bandwidth, " RANKS ","
    " " FACT("transport") " AS transport, " PTB_SQL_WRONG " AS wrong FROM c WHERE c.bench = 'pairs' AND c.state <> 'skipped')"
    " SELECT c.run_name || ', ' || c.path || coalesce(' by ' || c.comm, '') || ', device ' || " PARAM("device") " || c.sim"
    " || coalesce(', repetition ' || c.repetition, '') AS heading,"
    " coalesce(" FACT("device") ", '') || ', ' || c.ranks_text || ' on ' || c.hosts_text || ', +- is the 95 % interval of the median'"
    " AS note, c.source AS source, c.target AS target, c.bytes AS bytes, c.transport AS transport,"
    " c.median_ns / 1e3 AS median, max(ci_high_ns - median_ns, median_ns - ci_low_ns) / median_ns AS spread,"
    " c.bandwidth AS bandwidth, c.bandwidth / max(c.bandwidth) OVER (PARTITION BY " GROUP ") AS of_best,"
    " " PTB_SQL_METRIC("expected") " AS expected, c.bandwidth / " PTB_SQL_METRIC("expected") " AS of_expected,"
    " c.wrong AS wrong, nullif(c.samples, 0) AS samples, c.state AS state"
    " FROM p AS c ORDER BY c.run_id, c.ordinal, c.path, c.comm, c.bytes, c.source, c.target";
static const char figure_sql[] =
    PTB_SQL_CASES ", p AS (SELECT c.*, " PARAM("path") " AS path, " PTB_SQL_METRIC("bandwidth") " AS bandwidth, " RANKS
    " FROM c WHERE c.bench = 'pairs' AND c.state = 'ok')"
    " SELECT 'pairs, ' || c.path || coalesce(' by ' || c.comm, '') || ', ' || " SIZE " || ', ' || c.ranks_text"
    " || ', ' || c.run_name || c.sim AS figure, c.source || '' AS series,"
    " CASE " PARAM("device") " WHEN 'host' THEN '' ELSE " FACT("device") " END || " PTB_SQL_SEP " || c.cpus || " PTB_SQL_SEP " || c.hosts_text AS tokens, c.mode AS mode,"
    " c.target AS x, c.bandwidth AS y, c.bandwidth * c.median_ns / c.ci_high_ns AS y_low,"
    " c.bandwidth * c.median_ns / c.ci_low_ns AS y_high, c.samples AS samples"
    " FROM p AS c WHERE c.source <> c.target AND c.bandwidth IS NOT NULL ORDER BY c.run_id, c.path, c.bytes, c.source, c.target";
// clang-format on

static const ptb_report_column columns[] = {
    {.name = "source", .title = "from", .unit = "rank", .cell = PTB_CELL_INTEGER},
    {.name = "target", .title = "to", .unit = "rank", .cell = PTB_CELL_INTEGER},
    {.name = "bytes", .title = "size", .unit = "B", .cell = PTB_CELL_BYTES},
    {.name = "transport", .title = "transport", .optional = true, .drop = 3},
    {.name = "median", .title = "time", .unit = "us", .cell = PTB_CELL_NUMBER, .drop = 2},
    {.name = "spread", .title = "+-", .unit = "%", .cell = PTB_CELL_PERCENT},
    {.name = "bandwidth", .title = "bandwidth", .unit = "GB/s", .cell = PTB_CELL_NUMBER},
    {.name = "of_best", .title = "of the best", .unit = "%", .cell = PTB_CELL_PERCENT},
    {.name = "expected", .title = "expected", .unit = "GB/s", .cell = PTB_CELL_NUMBER, .optional = true},
    {.name = "of_expected", .title = "of it", .unit = "%", .cell = PTB_CELL_PERCENT, .optional = true},
    {.name = "wrong", .title = "#wrong", .cell = PTB_CELL_INTEGER, .drop = 1},
    {.name = "state", .title = "state", .cell = PTB_CELL_STATE},
};

static const ptb_report pairs = {
    .plugin = {"pairs", "Bandwidth of every pair of ranks or devices over each path"},
    .order = 35,
    .where = PTB_REPORT_HTML | PTB_REPORT_TERMINAL,
    .title = "Pairs",
    .caption = "One pair at a time, everybody else idle. Bandwidth = S / t, t = median; of the best: against "
               "the fastest "
               "pair of the same path and size; expected: what the links of the path allow, see Links. h2d, "
               "d2h, d2d: a rank's own host memory and device. In a "
               "figure a row "
               "is the rank that sends, a column the one that receives; darker is faster.",
    .table_sql = table_sql,
    .columns = columns,
    .column_count = sizeof columns / sizeof *columns,
    .figure_sql = figure_sql,
    .style = PTB_FIGURE_LINES,
    .gnuplot = ptb_gp_pairs,
};
PTB_REGISTER(PTB_KIND_REPORT, pairs);
