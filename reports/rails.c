// How a case's traffic between hosts was spread over the network ports, by name: a port that does another's
// work, or none, stands out.
#include "reports/report.h"
#include "reports/sql.h"

// clang-format off
static const char sql[] =
    PTB_SQL_CASES ", m AS (SELECT c.*, substr(metric.name, 6) AS port, metric.value AS sent,"
    " metric.value / nullif(avg(metric.value) OVER (PARTITION BY c.id), 0) AS share"
    " FROM c JOIN metric ON metric.case_id = c.id AND metric.unit = 'bytes' AND metric.name LIKE 'rail\\_%' ESCAPE '\\'"
    " AND metric.name NOT IN ('rail_bytes', 'rail_implied', 'rail_least', 'rail_most'))"
    " SELECT c.run_name || ', ' || c.bench || coalesce(', ' || c.comm, '') || coalesce(' ' || c.algo, '') || ', ' || c.bytes || ' B, '"
    " || c.ranks_text || ' on ' || c.hosts_text || coalesce(', ' || nullif(c.other_params, ''), '') || c.sim AS heading,"
    " 'Ports: ' || json_extract(c.facts, '$.rails') AS note, c.port AS port, c.sent / 1e6 AS sent, c.share AS share"
    " FROM m AS c ORDER BY c.run_id, c.id, c.port";
// clang-format on

static const ptb_report_column columns[] = {
    {.name = "port", .title = "port"},
    {.name = "sent", .title = "sent", .unit = "MB", .cell = PTB_CELL_NUMBER},
    {.name = "share", .title = "of the mean", .unit = "%", .cell = PTB_CELL_PERCENT},
};

static const ptb_report rails = {
    .plugin = {"rails", "Bytes of each network port, by its name"},
    .order = 95,
    .where = PTB_REPORT_HTML | PTB_REPORT_FOLDED,
    .title = "Network ports",
    .caption = "Sent in one iteration by the ports of each name on all hosts together. Where every GPU has a "
               "rail of its "
               "own and the algorithm uses all, each has the same.",
    .table_sql = sql,
    .columns = columns,
    .column_count = sizeof columns / sizeof *columns,
};
PTB_REGISTER(PTB_KIND_REPORT, rails);
