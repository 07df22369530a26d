// Strategies side by side: where several divided the same model, batch and ranks, what each one's step
// consists of and what it keeps in memory. What follows from it is in strategy_guide.c.
#include "reports/report.h"
#include "reports/strategies.h"

extern const char ptb_gp_step_breakdown[];

// clang-format off
#define PARTS \
    " compute, exposed_dp, exposed_tp, exposed_pp, exposed_cp, exposed_ep, optimizer, input, other, imbalance,"

static const char figure_sql[] =
    PTB_SQL_STRATEGIES " SELECT model || ', ' || ranks_text || ', global batch ' || batch_size AS figure,"
    " strategy || iif(repetition IS NULL, '', ', repetition ' || repetition) AS series, conditions AS tokens,"
    " mode, " PARTS " median AS y, low AS y_low, high AS y_high, samples"
    " FROM s WHERE strategies > 1 ORDER BY ranks, id";

static const char table_sql[] =
    PTB_SQL_STRATEGIES " SELECT model || ', ' || ranks_text || ', global batch ' || batch_size AS heading,"
    " note, strategy, run, repetition, samples, median, max(high - median, median - low) / median AS spread, ideal,"
    " efficiency, " PARTS " tokens, memory, volume"
    " FROM s WHERE strategies > 1 ORDER BY ranks, heading, note, id";
// clang-format on

static const ptb_report_part parts[] = {
    {"compute", "forward and backward"},
    {"exposed_dp", "exposed communication, dp"},
    {"exposed_tp", "exposed communication, tp"},
    {"exposed_pp", "exposed communication, pp"},
    {"exposed_cp", "exposed communication, cp"},
    {"exposed_ep", "exposed communication, ep"},
    {"optimizer", "optimizer"},
    {"input", "input"},
    {"other", "other"},
    {"imbalance", "rank imbalance"},
};

#define PART "of which"
#define EXPOSED(column, axis)                                                                                \
    {                                                                                                        \
        .name = column, .title = axis, .unit = "ms", .over = "exposed", .cell = PTB_CELL_NUMBER,             \
        .optional = true                                                                                     \
    }
static const ptb_report_column columns[] = {
    {.name = "strategy", .title = "strategy"},
    {.name = "run", .title = "run", .optional = true},
    {.name = "repetition", .title = "rep.", .cell = PTB_CELL_INTEGER, .optional = true},
    {.name = "median", .title = "step", .unit = "ms", .cell = PTB_CELL_NUMBER},
    {.name = "spread", .title = "+-", .unit = "%", .cell = PTB_CELL_PERCENT},
    {.name = "ideal", .title = "bound", .unit = "ms", .cell = PTB_CELL_NUMBER, .optional = true},
    {.name = "efficiency", .title = "of bound", .unit = "%", .cell = PTB_CELL_NUMBER, .optional = true},
    {.name = "compute", .title = "compute", .unit = "ms", .cell = PTB_CELL_NUMBER},
    EXPOSED("exposed_dp", "dp"),
    EXPOSED("exposed_tp", "tp"),
    EXPOSED("exposed_pp", "pp"),
    EXPOSED("exposed_cp", "cp"),
    EXPOSED("exposed_ep", "ep"),
    {.name = "optimizer", .title = "optimizer", .unit = "ms", .cell = PTB_CELL_NUMBER, .drop = 1},
    {.name = "input", .title = "input", .unit = "ms", .cell = PTB_CELL_NUMBER, .drop = 4},
    {.name = "other", .title = "other", .unit = "ms", .cell = PTB_CELL_NUMBER, .drop = 3},
    {.name = "imbalance", .title = "imbal.", .unit = "ms", .cell = PTB_CELL_NUMBER, .drop = 3},
    {.name = "tokens", .title = "throughput", .unit = "tokens/s", .cell = PTB_CELL_NUMBER},
    {.name = "memory", .title = "memory", .unit = "MB a rank", .cell = PTB_CELL_NUMBER},
    {.name = "volume", .title = "sent", .unit = "MB a rank", .cell = PTB_CELL_NUMBER, .drop = 2},
};

static const ptb_report strategies = {
    .plugin = {"strategies", "Parallel strategies side by side"},
    .order = 59,
    .where = PTB_REPORT_HTML | PTB_REPORT_TERMINAL,
    .title = "Strategies side by side",
    .caption =
        "The same model, global batch and ranks, divided in several ways. The bound is the step with "
        "nothing communicated, timed in the same processes; 'of bound' is bound / step. Exposed "
        "communication is what no computing hid, by the axis of the mesh; where two axes communicate at "
        "once it counts for both. Parts are means over ranks and over the middle half of the timed steps. "
        "Memory is the largest sum of all categories on a rank, sent what a bandwidth-optimal algorithm "
        "sends a step; 1 MB = 1e6 bytes. Steps of async are timed eight at a time, from a common start until "
        "the last update is everywhere.",
    .table_sql = table_sql,
    .columns = columns,
    .column_count = sizeof columns / sizeof *columns,
    .figure_sql = figure_sql,
    .style = PTB_FIGURE_BARS,
    .gnuplot = ptb_gp_step_breakdown,
    .parts = parts,
    .part_count = sizeof parts / sizeof *parts,
};
PTB_REGISTER(PTB_KIND_REPORT, strategies);
