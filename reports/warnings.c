// What the program noticed while it measured: a case's fact `warning`, spans that did not fit the trace,
// unchecked results.
#include "reports/report.h"
#include "reports/sql.h"

// It cannot be, so the peak is wrong, and with it every share of it.
#define FASTER_THAN_PEAK                                                                                     \
    "'the steps computed faster than the peak: other programs kept the processors busy while the peak was "  \
    "measured, or --peak is too low; MFU and HFU are too high'"

static const char sql[] = PTB_SQL_CASES
    " SELECT run_name || ': ' || warning AS heading, key FROM ("
    "SELECT c.run_id, c.run_name, json_extract(c.facts, '$.warning') AS warning, c.key AS key, c.id AS id "
    "FROM c"
    " WHERE json_extract(c.facts, '$.warning') <> ''"
    " UNION ALL SELECT c.run_id, c.run_name, 'spans were dropped because the trace was full', c.key || ' ('"
    " || sum(case_rank.spans_dropped) || ' spans)', c.id FROM c JOIN case_rank ON case_rank.case_id = c.id"
    " GROUP BY c.id HAVING sum(case_rank.spans_dropped) > 0"
    " UNION ALL SELECT c.run_id, c.run_name, 'fewer than 6 samples: the interval is just minimum and "
    "maximum',"
    " c.key || ' (' || c.samples || CASE c.samples WHEN 1 THEN ' sample)' ELSE ' samples)' END, c.id FROM c"
    " WHERE c.state = 'ok' AND c.samples BETWEEN 1 AND 5"
    " UNION ALL SELECT c.run_id, c.run_name, " FASTER_THAN_PEAK ", c.key || printf(' (HFU %.4g %%)',"
    " " PTB_SQL_METRIC("hfu") "), c.id FROM c WHERE " PTB_SQL_METRIC("hfu") " > 100"
                                                                            ") ORDER BY run_id, warning, id";

static const ptb_report_column columns[] = {{.name = "key", .title = "case"}};

static const ptb_report warnings = {
    .plugin = {"warnings", "What was noticed while measuring"},
    .order = 110,
    .where = PTB_REPORT_HTML | PTB_REPORT_TERMINAL,
    .title = "Warnings",
    .empty = "None.",
    .table_sql = sql,
    .columns = columns,
    .column_count = sizeof columns / sizeof *columns,
};
PTB_REGISTER(PTB_KIND_REPORT, warnings);
