// Memory of training steps: what was allocated, by category, beside what was predicted.
#include "reports/report.h"
#include "reports/sql.h"

// clang-format off
#define PART_METRIC(kind) \
    "(SELECT value FROM metric WHERE metric.case_id = c.id AND metric.name = '" kind "_' || part.name)"

static const char sql[] =
    PTB_SQL_CASES ", part (place, name, title) AS (VALUES (1, 'parameters', 'parameters'), (2, 'gradients', 'gradients'),"
    " (3, 'optimizer', 'optimizer'), (4, 'activations', 'activations'), (5, 'communication', 'communication'),"
    " (6, 'workspace', 'workspace'), (7, 'memory', 'all'))"
    " SELECT " PTB_SQL_STEP_HEADING " AS heading, " PTB_SQL_STEP_NOTE " AS note, c.run_name AS run,"
    " " PTB_SQL_STRATEGY " AS strategy, c.comm AS comm, c.algo AS algo, c.ranks AS ranks,"
    " CAST(" PTB_SQL_STEP_PARAM("batch") " AS INTEGER) AS batch, c.repetition AS repetition, part.title AS part,"
    " round(" PART_METRIC("peak") " / 1e6, 3) AS peak, round(" PART_METRIC("predicted") " / 1e6, 3) AS predicted,"
    " " PART_METRIC("peak") " / nullif(" PART_METRIC("predicted") ", 0) AS ratio,"
    " round(" PART_METRIC("peak") " / " PTB_SQL_METRIC("parameters") ", 3) AS each,"
    " CASE part.name WHEN 'memory' THEN " PTB_SQL_METRIC("peak_resident") " / 1e6 END AS resident"
    " FROM c, part WHERE c.bench = 'step' AND c.state IN ('ok', 'wrong')"
    " AND " PTB_SQL_METRIC("predicted_memory") " IS NOT NULL AND coalesce(" PART_METRIC("peak") ", 0) > 0"
    " ORDER BY heading, note, c.ranks, c.id, part.place";
// clang-format on

#define BYTES "bytes of a rank"
static const ptb_report_column columns[] = {
    {.name = "run", .title = "run", .drop = 9},
    {.name = "strategy", .title = "strategy", .optional = true, .shared = true, .drop = 6},
    {.name = "comm", .title = "comm", .optional = true, .shared = true, .drop = 5},
    {.name = "algo", .title = "algorithm", .optional = true, .shared = true, .drop = 7},
    {.name = "ranks", .title = "ranks", .cell = PTB_CELL_INTEGER},
    {.name = "batch", .title = "batch", .unit = "global", .cell = PTB_CELL_INTEGER, .drop = 4},
    {.name = "repetition", .title = "rep.", .cell = PTB_CELL_INTEGER, .optional = true},
    {.name = "part", .title = "memory"},
    {.name = "peak", .title = "measured", .unit = "MB", .over = BYTES, .cell = PTB_CELL_NUMBER},
    {.name = "predicted", .title = "predicted", .unit = "MB", .over = BYTES, .cell = PTB_CELL_NUMBER},
    {.name = "ratio", .title = "measured", .unit = "% of it", .over = BYTES, .cell = PTB_CELL_PERCENT},
    {.name = "each", .title = "a parameter", .unit = "bytes", .cell = PTB_CELL_NUMBER, .drop = 2},
    {.name = "resident",
     .title = "resident",
     .unit = "MB",
     .cell = PTB_CELL_NUMBER,
     .optional = true,
     .drop = 3},
};

static const ptb_report step_memory = {
    .plugin = {"step_memory", "Memory of training steps: measured and predicted"},
    .order = 63,
    .where = PTB_REPORT_HTML | PTB_REPORT_TERMINAL,
    .title = "Memory of training steps",
    .caption =
        "Measured is the largest sum of allocations of a category on the rank that had most; predicted is "
        "made from the model's shape and the settings before anything is allocated. Resident is what the "
        "process grew by while it prepared and trained: it holds also what the libraries keep for "
        "themselves and the other ranks' buffers in shared memory that were read.",
    .table_sql = sql,
    .columns = columns,
    .column_count = sizeof columns / sizeof *columns,
};
PTB_REGISTER(PTB_KIND_REPORT, step_memory);
