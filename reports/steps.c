// Training steps: the table of speed and loss.
#include "reports/report.h"
#include "reports/sql.h"

// Nobody is shown a column of zeros; beside other numbers, 0 is one.
#define IF_ANY(metric)                                                                                       \
    "CASE WHEN max(" PTB_SQL_METRIC(metric) ") OVER () > 0 THEN " PTB_SQL_METRIC(metric) " END"

// clang-format off
static const char sql[] =
    PTB_SQL_CASES " SELECT " PTB_SQL_STEP_HEADING " AS heading, " PTB_SQL_STEP_NOTE " AS note, c.run_name AS run,"
    " " PTB_SQL_STRATEGY " AS strategy, c.comm AS comm, c.algo AS algo, c.ranks AS ranks,"
    " CAST(" PTB_SQL_STEP_PARAM("batch") " AS INTEGER) AS batch, c.repetition AS repetition,"
    " nullif(c.samples, 0) AS samples, nullif(c.samples * c.batch, 0) AS steps, c.median_ns / 1e6 AS median, c.ci_low_ns / 1e6 AS low,"
    " c.ci_high_ns / 1e6 AS high, c.p99_ns / 1e6 AS p99, c.cv AS cv,"
    " " PTB_SQL_METRIC("tokens_per_s") " AS tokens,"
    " " PTB_SQL_METRIC("flops_per_s") " / CASE " PTB_SQL_UNIT("flops_per_s")
    " WHEN 'FLOP/s' THEN 1e9 WHEN 'MFLOP/s' THEN 1e3 WHEN 'TFLOP/s' THEN 1e-3 ELSE 1.0 END AS flops,"
    " " PTB_SQL_METRIC("mfu") " AS mfu, " IF_ANY("steps_starved") " AS starved,"
    " " IF_ANY("skipped_steps") " AS skipped,"
    " " PTB_SQL_METRIC("loss_first") " AS loss_first, " PTB_SQL_METRIC("loss_last") " AS loss_last,"
    " c.state AS state"
    " FROM c WHERE c.bench = 'step' AND c.state <> 'skipped' ORDER BY heading, note, c.ranks, c.id";
// clang-format on

#define TIME "step time"
static const ptb_report_column columns[] = {
    {.name = "run", .title = "run", .drop = 9},
    {.name = "strategy", .title = "strategy", .optional = true},
    {.name = "comm", .title = "comm", .optional = true},
    {.name = "algo", .title = "algorithm", .optional = true, .drop = 8},
    {.name = "ranks", .title = "ranks", .cell = PTB_CELL_INTEGER},
    {.name = "batch", .title = "batch", .unit = "global", .cell = PTB_CELL_INTEGER, .drop = 2},
    {.name = "repetition", .title = "rep.", .cell = PTB_CELL_INTEGER, .optional = true},
    {.name = "steps", .title = "steps", .unit = "timed", .cell = PTB_CELL_INTEGER, .drop = 4},
    {.name = "median", .title = "median", .unit = "ms", .over = TIME, .cell = PTB_CELL_NUMBER},
    {.name = "low", .title = "from", .unit = "95 % ms", .over = TIME, .cell = PTB_CELL_NUMBER, .drop = 3},
    {.name = "high", .title = "to", .unit = "95 % ms", .over = TIME, .cell = PTB_CELL_NUMBER, .drop = 3},
    {.name = "p99", .title = "p99", .unit = "ms", .over = TIME, .cell = PTB_CELL_NUMBER, .drop = 7},
    {.name = "cv", .title = "cv", .unit = "%", .over = TIME, .cell = PTB_CELL_PERCENT},
    {.name = "tokens", .title = "throughput", .unit = "tokens/s", .cell = PTB_CELL_NUMBER},
    {.name = "flops", .title = "compute", .unit = "GFLOP/s", .cell = PTB_CELL_NUMBER, .drop = 1},
    {.name = "mfu", .title = "MFU", .unit = "%", .cell = PTB_CELL_NUMBER, .optional = true, .drop = 1},
    {.name = "starved",
     .title = "starved",
     .unit = "steps",
     .cell = PTB_CELL_INTEGER,
     .optional = true,
     .drop = 5},
    {.name = "skipped",
     .title = "skipped",
     .unit = "steps",
     .cell = PTB_CELL_INTEGER,
     .optional = true,
     .drop = 5},
    {.name = "loss_first",
     .title = "first",
     .unit = "nats",
     .over = "loss",
     .cell = PTB_CELL_NUMBER,
     .drop = 1},
    {.name = "loss_last", .title = "last", .unit = "nats", .over = "loss", .cell = PTB_CELL_NUMBER},
    {.name = "state", .title = "state", .cell = PTB_CELL_STATE},
};

static const ptb_report steps = {
    .plugin = {"steps", "Training steps: time, throughput and loss"},
    .order = 60,
    .where = PTB_REPORT_HTML | PTB_REPORT_TERMINAL,
    .title = "Training steps",
    .caption =
        "Time, throughput and loss of real training steps. Which operations count as FLOPs, and "
        "which peak MFU refers to, stands under \"How metrics are computed\". Starved steps waited for "
        "their batch; skipped ones made no update because a gradient overflowed (f16). From and to are the "
        "95 % confidence interval of the median (n/a "
        "below 6 samples).",
    .table_sql = sql,
    .columns = columns,
    .column_count = sizeof columns / sizeof *columns,
};
PTB_REGISTER(PTB_KIND_REPORT, steps);
