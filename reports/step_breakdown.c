// Where the time of a training step goes: one stacked bar a case, and the same as a table.
#include "reports/report.h"
#include "reports/sql.h"

extern const char ptb_gp_step_breakdown[];

// clang-format off
#define PARTS \
    " " PTB_SQL_METRIC("forward") " AS forward, " PTB_SQL_METRIC("backward") " AS backward," \
    " " PTB_SQL_METRIC("optimizer") " AS optimizer, " PTB_SQL_METRIC("exposed_comm") " AS exposed," \
    " " PTB_SQL_METRIC("input") " AS input, " PTB_SQL_METRIC("other") " AS other," \
    " " PTB_SQL_METRIC("imbalance") " AS imbalance,"

static const char figure_sql[] =
    PTB_SQL_CASES " SELECT " PTB_SQL_STEP_HEADING " AS figure, " PTB_SQL_STEP_SERIES " AS series,"
    " " PTB_SQL_STEP_CONDITIONS " AS tokens, c.mode AS mode," PARTS
    " c.median_ns / 1e6 AS y, c.ci_low_ns / 1e6 AS y_low, c.ci_high_ns / 1e6 AS y_high, c.samples AS samples"
    " FROM c WHERE c.state = 'ok' AND c.bench = 'step' ORDER BY c.ranks, c.id";

static const char table_sql[] =
    PTB_SQL_CASES " SELECT " PTB_SQL_STEP_HEADING " AS heading, " PTB_SQL_STEP_NOTE " AS note, c.run_name AS run,"
    " " PTB_SQL_STRATEGY " AS strategy, c.comm AS comm, c.ranks AS ranks,"
    " CAST(" PTB_SQL_STEP_PARAM("batch") " AS INTEGER) AS batch, c.repetition AS repetition, c.samples AS samples,"
    " c.median_ns / 1e6 AS median, max(ci_high_ns - median_ns, median_ns - ci_low_ns) / median_ns AS spread," PARTS
    " " PTB_SQL_METRIC("overlap") " AS overlap"
    " FROM c WHERE c.bench = 'step' AND c.state = 'ok' ORDER BY heading, note, c.ranks, c.id";
// clang-format on

static const ptb_report_part parts[] = {
    {"forward", "forward"},
    {"backward", "backward"},
    {"optimizer", "optimizer"},
    {"exposed", "exposed communication"},
    {"input", "input"},
    {"other", "other"},
    {"imbalance", "rank imbalance"},
};

#define PART "of which"
static const ptb_report_column columns[] = {
    {.name = "run", .title = "run", .drop = 9},
    {.name = "strategy", .title = "strategy", .optional = true},
    {.name = "comm", .title = "comm", .optional = true, .drop = 2},
    {.name = "ranks", .title = "ranks", .cell = PTB_CELL_INTEGER},
    {.name = "batch", .title = "batch", .unit = "global", .cell = PTB_CELL_INTEGER, .drop = 3},
    {.name = "repetition", .title = "rep.", .cell = PTB_CELL_INTEGER, .optional = true},
    {.name = "median", .title = "step", .unit = "ms", .cell = PTB_CELL_NUMBER},
    {.name = "spread", .title = "+-", .unit = "%", .cell = PTB_CELL_PERCENT},
    {.name = "forward", .title = "forward", .unit = "ms", .over = PART, .cell = PTB_CELL_NUMBER},
    {.name = "backward", .title = "backward", .unit = "ms", .over = PART, .cell = PTB_CELL_NUMBER},
    {.name = "optimizer", .title = "optimizer", .unit = "ms", .over = PART, .cell = PTB_CELL_NUMBER},
    {.name = "exposed", .title = "exp. comm", .unit = "ms", .over = PART, .cell = PTB_CELL_NUMBER},
    {.name = "input", .title = "input", .unit = "ms", .over = PART, .cell = PTB_CELL_NUMBER, .drop = 1},
    {.name = "other", .title = "other", .unit = "ms", .over = PART, .cell = PTB_CELL_NUMBER, .drop = 1},
    {.name = "imbalance",
     .title = "imbal.",
     .unit = "ms",
     .over = PART,
     .cell = PTB_CELL_NUMBER,
     .optional = true,
     .drop = 1},
    {.name = "overlap", .title = "overlap", .unit = "%", .cell = PTB_CELL_NUMBER},
};

static const ptb_report step_breakdown = {
    .plugin = {"step_breakdown", "Where the time of a training step goes"},
    .order = 62,
    .where = PTB_REPORT_HTML | PTB_REPORT_TERMINAL,
    .title = "Where a step's time goes",
    .caption = "Exposed communication is the part of communication during which nothing was computed, "
               "waiting for other "
               "ranks inside calls included; overlap is the part of communication that computing hid (n/a "
               "where there was "
               "none). The parts are means over ranks and over the middle half of the timed steps, in order "
               "of the slowest "
               "rank's time; rank imbalance is what that rank takes longer than the mean. So they add up to "
               "the mean of the "
               "slowest rank's step over these steps, which is near, but not, its median over all timed "
               "steps; +- is the 95 % "
               "interval of that median. A part that is n/a is missing from its bar.",
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
