// Training steps: one bar a case, made of what the step's time went into, and the table of its metrics.
#include "reports/report.h"
#include "reports/sql.h"

extern const char ptb_gp_step_breakdown[];

static const char figure_sql[] = PTB_SQL_CASES
    " SELECT c.bench || ', ' || " PTB_SQL_MODEL " || c.sim AS figure,"
    " " PTB_SQL_STEP_SERIES " AS series,"
    " " PTB_SQL_STEP_CONDITIONS " || " PTB_SQL_SEP " || 'repetition ' || (c.ordinal + 1) AS tokens,"
    " " PTB_SQL_METRIC("forward") " AS forward, " PTB_SQL_METRIC(
        "backward") " AS backward,"
                    " " PTB_SQL_METRIC("optimizer") " AS optimizer, " PTB_SQL_METRIC(
                        "exposed_comm") " AS exposed,"
                                        " " PTB_SQL_METRIC("input") " AS input, " PTB_SQL_METRIC(
                                            "other") " AS other,"
                                                     " c.median_ns / 1e6 AS y, c.ci_low_ns / 1e6 AS y_low, "
                                                     "c.ci_high_ns / 1e6 AS y_high, c.samples AS samples"
                                                     " FROM c WHERE c.state = 'ok' AND c.bench = 'step' "
                                                     "ORDER BY c.ranks, c.id";

static const ptb_report_part parts[] = {
    {"forward", "forward"},     {"backward", "backward"},
    {"optimizer", "optimizer"}, {"exposed", "exposed communication"},
    {"input", "input"},         {"other", "other"},
};

static const char table_sql[] = PTB_SQL_CASES
    " SELECT c.run_name || ', step, ' || " PTB_SQL_MODEL " || c.sim AS heading,"
    " c.cpus || ', ' || c.hosts_text || ', ' || c.mode_text || ', ' || c.combine_text"
    " || '; parts are medians of their own and need not add up to the median of the whole' AS note,"
    " json_extract(c.params, '$.strategy') AS strategy, c.comm AS comm, c.ranks AS ranks,"
    " CAST(json_extract(c.params, '$.batch') AS INTEGER) AS batch, c.other_params AS other_params,"
    " CASE WHEN c.ordinal > 0 OR EXISTS (SELECT 1 FROM repetition AS p WHERE p.run_id = c.run_id"
    " AND p.ordinal > 0) THEN c.ordinal + 1 END AS repetition,"
    " c.samples AS samples, c.median_ns / 1e6 AS median, c.ci_low_ns / 1e6 AS low,"
    " c.ci_high_ns / 1e6 AS high, c.cv AS cv, " PTB_SQL_METRIC(
        "tokens_per_s") " AS tokens,"
                        " " PTB_SQL_METRIC("flops_per_s") " / CASE " PTB_SQL_UNIT(
                            "flops_per_s") " WHEN 'FLOP/s' THEN 1e9"
                                           " WHEN 'MFLOP/s' THEN 1e3 WHEN 'TFLOP/s' THEN 1e-3 ELSE 1.0 END "
                                           "AS flops,"
                                           " " PTB_SQL_METRIC("forward") " AS forward, " PTB_SQL_METRIC(
                                               "backward") " AS backward,"
                                                           " " PTB_SQL_METRIC(
                                                               "optimizer") " AS "
                                                                            "optimizer,"
                                                                            " " PTB_SQL_METRIC(
                                                                                "exposed_comm") " AS exposed,"
                                                                                                " " PTB_SQL_METRIC("input") " AS input, " PTB_SQL_METRIC(
                                                                                                    "other") " AS other,"
                                                                                                             " " PTB_SQL_METRIC("overlap") " AS overlap, " PTB_SQL_METRIC(
                                                                                                                 "loss_first") " AS loss_first,"
                                                                                                                               " " PTB_SQL_METRIC(
                                                                                                                                   "loss_last") " AS loss_last, c.state AS state"
                                                                                                                                                " FROM c WHERE c.bench = 'step' AND c.state <> 'skipped' ORDER BY c.run_id, heading, c.ranks, c.id";

#define TIME "time of a step"
#define PART "of which"
static const ptb_report_column columns[] = {
    {.name = "strategy", .title = "strategy", .optional = true},
    {.name = "comm", .title = "comm", .optional = true, .drop = 3},
    {.name = "other_params", .title = "options", .optional = true, .drop = 9},
    {.name = "ranks", .title = "ranks", .cell = PTB_CELL_INTEGER},
    {.name = "batch", .title = "batch", .unit = "global", .cell = PTB_CELL_INTEGER, .drop = 5},
    {.name = "repetition", .title = "rep.", .cell = PTB_CELL_INTEGER, .optional = true},
    {.name = "samples", .title = "steps", .unit = "timed", .cell = PTB_CELL_INTEGER, .drop = 4},
    {.name = "median", .title = "median", .unit = "ms", .over = TIME, .cell = PTB_CELL_NUMBER},
    {.name = "low", .title = "from", .unit = "95 % ms", .over = TIME, .cell = PTB_CELL_NUMBER, .drop = 6},
    {.name = "high", .title = "to", .unit = "95 % ms", .over = TIME, .cell = PTB_CELL_NUMBER, .drop = 6},
    {.name = "cv", .title = "cv", .unit = "%", .over = TIME, .cell = PTB_CELL_PERCENT},
    {.name = "tokens", .title = "tokens", .unit = "1/s", .cell = PTB_CELL_NUMBER},
    {.name = "flops", .title = "compute", .unit = "GFLOP/s", .cell = PTB_CELL_NUMBER, .drop = 2},
    {.name = "forward", .title = "forward", .unit = "ms", .over = PART, .cell = PTB_CELL_NUMBER, .drop = 7},
    {.name = "backward", .title = "backward", .unit = "ms", .over = PART, .cell = PTB_CELL_NUMBER, .drop = 7},
    {.name = "optimizer",
     .title = "optimizer",
     .unit = "ms",
     .over = PART,
     .cell = PTB_CELL_NUMBER,
     .drop = 7},
    {.name = "exposed", .title = "exp. comm", .unit = "ms", .over = PART, .cell = PTB_CELL_NUMBER},
    {.name = "input", .title = "input", .unit = "ms", .over = PART, .cell = PTB_CELL_NUMBER, .drop = 8},
    {.name = "other", .title = "other", .unit = "ms", .over = PART, .cell = PTB_CELL_NUMBER, .drop = 8},
    {.name = "overlap", .title = "overlap", .unit = "%", .cell = PTB_CELL_NUMBER, .drop = 3},
    {.name = "loss_first", .title = "first", .over = "loss", .cell = PTB_CELL_NUMBER, .drop = 1},
    {.name = "loss_last", .title = "last", .over = "loss", .cell = PTB_CELL_NUMBER, .drop = 1},
    {.name = "state", .title = "state", .cell = PTB_CELL_STATE},
};

static const ptb_report step_breakdown = {
    .plugin = {"step_breakdown", "Where the time of a training step goes"},
    .order = 60,
    .where = PTB_REPORT_HTML | PTB_REPORT_TERMINAL,
    .title = "Training steps",
    .caption =
        "Where the time of one training step goes. Exposed communication is the part of communication during "
        "which nothing was computed; overlap is the part of communication that computing hid (n/a where "
        "there "
        "was none).",
    .table_sql = table_sql,
    .columns = columns,
    .column_count = sizeof columns / sizeof *columns,
    .figure_sql = figure_sql,
    .style = PTB_FIGURE_BARS,
    .gnuplot = ptb_gp_step_breakdown,
    .parts = parts,
    .part_count = sizeof parts / sizeof *parts,
};
PTB_REGISTER(PTB_KIND_REPORT, step_breakdown);
