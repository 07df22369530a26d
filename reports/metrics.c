// By which formula each stored metric was computed.
#include "reports/report.h"
#include "reports/sql.h"

// What the conventions of a step's parts call C and K comes with them.
static const char sql[] = PTB_SQL_CASES
    " SELECT metric.name AS name, metric.unit AS unit, metric.convention AS convention,"
    " replace(group_concat(DISTINCT c.bench), ',', ', ') AS benches FROM c JOIN metric ON "
    "metric.case_id = c.id"
    " GROUP BY 1, 2, 3"
    " UNION ALL SELECT 'C, K, |X|', '', 'when a rank communicated; when it computed; how long X is in"
    " all', 'step' WHERE EXISTS (SELECT 1 FROM c JOIN metric ON metric.case_id = c.id"
    " WHERE metric.convention LIKE '%|C%') ORDER BY 1, 4, 2, 3";

static const ptb_report_column columns[] = {
    {.name = "name", .title = "metric"},
    {.name = "unit", .title = "unit"},
    {.name = "benches", .title = "of", .drop = 1},
    {.name = "convention", .title = "computed as"},
};

static const ptb_report metrics = {
    .plugin = {"metrics", "By which formula each metric was computed"},
    .order = 120,
    .where = PTB_REPORT_HTML | PTB_REPORT_TERMINAL,
    .title = "How metrics are computed",
    .table_sql = sql,
    .columns = columns,
    .column_count = sizeof columns / sizeof *columns,
};
PTB_REGISTER(PTB_KIND_REPORT, metrics);
