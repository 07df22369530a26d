// What did not run, or failed, and why.
#include "reports/report.h"
#include "reports/sql.h"

static const char sql[] = PTB_SQL_CASES
    " SELECT c.run_name || ': ' || c.state || ': ' || coalesce(c.reason, 'no reason was stored') AS heading,"
    " c.state AS state, c.key || CASE WHEN c.ordinal > 0 THEN ' (repetition ' || (c.ordinal + 1) || ')' ELSE "
    "'' END"
    " AS key FROM c WHERE c.state IN ('skipped', 'failed', 'wrong')"
    " ORDER BY c.run_id, CASE c.state WHEN 'wrong' THEN 0 WHEN 'failed' THEN 1 ELSE 2 END, c.reason, c.id";

static const ptb_report_column columns[] = {
    {.name = "state", .title = "state", .cell = PTB_CELL_STATE},
    {.name = "key", .title = "case"},
};

static const ptb_report skipped = {
    .plugin = {"skipped", "Cases that were skipped, failed or gave wrong results, by reason"},
    .order = 100,
    .where = PTB_REPORT_HTML | PTB_REPORT_TERMINAL,
    .title = "Skipped, failed and wrong cases",
    .empty = "None: every case ran and gave the right result.",
    .table_sql = sql,
    .columns = columns,
    .column_count = sizeof columns / sizeof *columns,
};
PTB_REGISTER(PTB_KIND_REPORT, skipped);
