// How old the parameters were that steps computed with, where a strategy lets them be old, and what that does
// to the loss.
#include "reports/report.h"
#include "reports/strategies.h"

extern const char ptb_gp_staleness[];

// clang-format off
static const char table_sql[] =
    PTB_SQL_STRATEGIES
    " SELECT model AS heading, note, strategy, ranks, batch_size AS batch, repetition, samples, staleness,"
    " most_stale, stale, median, tokens, early, synchronous, early - synchronous AS more"
    " FROM s WHERE staleness IS NOT NULL ORDER BY heading, note, ranks, id";

static const char figure_sql[] =
    PTB_SQL_CASES " SELECT " PTB_SQL_STEP_HEADING " AS figure, " PTB_SQL_STEP_SERIES " AS series,"
    " " PTB_SQL_STEP_CONDITIONS " AS tokens, c.mode AS mode, c.id AS case_id"
    " FROM c JOIN series ON series.case_id = c.id AND series.name = 'staleness'"
    " WHERE c.state = 'ok' AND series.count > 1 ORDER BY c.ranks, c.id";
// clang-format on

#define STALE "updates lacked"
#define LOSS  "loss, steps 8 to 15"
static const ptb_report_column columns[] = {
    {.name = "strategy", .title = "strategy"},
    {.name = "ranks", .title = "ranks", .cell = PTB_CELL_INTEGER},
    {.name = "batch", .title = "batch", .unit = "global", .cell = PTB_CELL_INTEGER, .drop = 2},
    {.name = "repetition", .title = "rep.", .cell = PTB_CELL_INTEGER, .optional = true},
    {.name = "staleness", .title = "mean", .unit = "steps", .over = STALE, .cell = PTB_CELL_NUMBER},
    {.name = "most_stale", .title = "most", .unit = "steps", .over = STALE, .cell = PTB_CELL_NUMBER},
    {.name = "stale", .title = "any", .unit = "% of grad.", .over = STALE, .cell = PTB_CELL_PERCENT},
    {.name = "median", .title = "step", .unit = "ms", .cell = PTB_CELL_NUMBER},
    {.name = "tokens", .title = "throughput", .unit = "tokens/s", .cell = PTB_CELL_NUMBER, .drop = 1},
    {.name = "early", .title = "here", .unit = "nats", .over = LOSS, .cell = PTB_CELL_NUMBER},
    {.name = "synchronous", .title = "synchronous", .unit = "nats", .over = LOSS, .cell = PTB_CELL_NUMBER},
    {.name = "more", .title = "difference", .unit = "nats", .over = LOSS, .cell = PTB_CELL_NUMBER},
};

static const ptb_report staleness = {
    .plugin = {"staleness", "How old parameters were in asynchronous steps, and the loss beside synchronous"},
    .order = 61,
    .where = PTB_REPORT_HTML | PTB_REPORT_TERMINAL,
    .title = "Stale parameters",
    .caption =
        "Updates that were missing from the parameters which a gradient was computed with, over all workers "
        "and steps; the figure is the histogram. The loss beside it is that of synchronous strategies on the "
        "same ranks, model, batch and data: the mean of steps 8 to 15, counted from 0, which all of them "
        "made.",
    .table_sql = table_sql,
    .columns = columns,
    .column_count = sizeof columns / sizeof *columns,
    .figure_sql = figure_sql,
    .style = PTB_FIGURE_LINES,
    .gnuplot = ptb_gp_staleness,
    .stored_series = "staleness",
};
PTB_REGISTER(PTB_KIND_REPORT, staleness);
