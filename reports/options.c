// The effective options and the environment of each run, as stored.
#include "reports/report.h"
#include "reports/sql.h"

static const char sql[] = "WITH r AS (SELECT *, " PTB_SQL_RUN_NAME
                          " AS name FROM run WHERE id IN (SELECT value FROM json_each(?1)))"
                          " SELECT heading, item, value FROM ("
                          "SELECT r.id AS id, 0 AS o, t.id AS place, r.name || ': options' AS heading,"
                          " ltrim(substr(t.path, 2) || '.' || t.key, '.') AS item, t.atom AS value FROM r, "
                          "json_tree(r.options) AS t"
                          " WHERE t.type NOT IN ('object', 'array')"
                          " UNION ALL SELECT r.id, 1, t.id, r.name || ': environment', t.key, t.atom FROM r, "
                          "json_tree(r.environment) AS t"
                          " WHERE t.type NOT IN ('object', 'array')"
                          ") ORDER BY id, o, place";

static const ptb_report_column columns[] = {
    {.name = "item", .title = "name"},
    {.name = "value", .title = "value"},
};

static const ptb_report options = {
    .plugin = {"options", "Effective options and environment of each run"},
    .order = 130,
    .where = PTB_REPORT_HTML | PTB_REPORT_FOLDED,
    .title = "Options and environment",
    .table_sql = sql,
    .columns = columns,
    .column_count = sizeof columns / sizeof *columns,
};
PTB_REGISTER(PTB_KIND_REPORT, options);
