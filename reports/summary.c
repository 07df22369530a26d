// Section "Runs": what ran, when, where and with what.
#include "reports/report.h"
#include "reports/sql.h"

// clang-format off
#define LEAVES(json) \
    "(SELECT group_concat(coalesce(t.key || ' ', '') || t.atom, ', ') FROM json_tree(" json ") AS t" \
    " WHERE t.atom IS NOT NULL AND t.atom <> '')"
#define UTC(column)      "strftime('%Y-%m-%dT%H:%M:%SZ', " column ", 'unixepoch')"
#define HOST_FIELD(name) "json_extract(h.value, '$." name "')"
// Appended to the host's line where the field is there.
#define HOST_MORE(words, name) " || coalesce('" words "' || nullif(" HOST_FIELD(name) ", ''), '')"
// One SELECT an item: run, place, heading, item, value.
#define ITEM(place, item, value) " UNION ALL SELECT id, " place ", heading, '" item "', " value " FROM r"

static const char sql[] =
    "WITH r AS (SELECT *, " PTB_SQL_RUN_NAME " AS heading, " PTB_SQL_RUN_STATE " AS now FROM run"
    " WHERE id IN (SELECT value FROM json_each(?1))),"
    " rep AS (SELECT repetition.*, r.heading, r.id AS rid FROM repetition JOIN r ON run_id = r.id)"
    " SELECT heading, item, value FROM ("
    "SELECT id, 1 AS o, heading, 'state' AS item, now || coalesce(': ' || reason, '') AS value FROM r"
    ITEM("2", "device", "CASE WHEN simulated THEN 'SIMULATED: not real hardware' END")
    ITEM("3", "started", UTC("started_utc_s"))
    ITEM("4", "finished", UTC("finished_utc_s") " || printf(' (after %.1f s)', finished_utc_s - started_utc_s)")
    ITEM("5", "command", "command")
    ITEM("6", "selection", "selection")
    ITEM("7", "label", "nullif(label, '')")
    ITEM("8", "cases", "coalesce((SELECT group_concat(n || ' ' || state, ', ') FROM"
         " (SELECT c.state AS state, count(*) AS n FROM bench_case AS c"
         " JOIN repetition AS p ON c.repetition_id = p.id WHERE p.run_id = r.id"
         " GROUP BY c.state ORDER BY c.state)), 'none')")
    " UNION ALL SELECT r.id, 10, r.heading, 'host', coalesce(" HOST_FIELD("hostname") ", '?') || ': '"
    " || coalesce(" HOST_FIELD("cpu_model") ", 'unknown CPU')"
    HOST_MORE(", cores ", "cores")
    HOST_MORE(", hardware threads ", "threads")
    HOST_MORE(", NUMA nodes ", "numa_nodes")
    " || CASE WHEN " HOST_FIELD("virtual_machine") " THEN ', virtual machine' ELSE '' END"
    HOST_MORE("; may use CPUs ", "binding")
    " || CASE WHEN " HOST_FIELD("cgroup_cpus") " > 0"
    " THEN '; cgroup quota of ' || " HOST_FIELD("cgroup_cpus") " || ' CPUs' ELSE '' END"
    " || CASE WHEN " HOST_FIELD("memory_bytes") " > 0 THEN '; memory '"
    " || printf('%.3g GiB', " HOST_FIELD("memory_bytes") " / 1073741824.0) ELSE '' END"
    HOST_MORE("; ", "os")
    HOST_MORE("; ", "kernel")
    HOST_MORE("; frequency governor ", "governor")
    HOST_MORE("; transparent huge pages ", "thp")
    HOST_MORE("; ", "isa")
    " FROM r, json_each(r.hosts) AS h"
    " UNION ALL SELECT rid, 11 + ordinal / 1e6, heading,"
    " CASE (SELECT count(*) FROM rep AS other WHERE other.rid = rep.rid)"
    " WHEN 1 THEN 'processes' ELSE 'repetition ' || (ordinal + 1) END,"
    " ranks || CASE ranks WHEN 1 THEN ' rank on ' ELSE ' ranks on ' END"
    " || hosts || CASE hosts WHEN 1 THEN ' host' ELSE ' hosts' END || '; ' || launcher"
    " || coalesce('; ' || (SELECT group_concat('rank ' || p.key || ' on '"
    "     || coalesce(json_extract(p.value, '$.host'), '?') || ' CPUs '"
    "     || coalesce(json_extract(p.value, '$.cpus'), '?'), ', ')"
    "   FROM json_each(placement) AS p WHERE p.key < 16), '')"
    " || CASE WHEN ranks > 16 THEN ', ...' ELSE '' END FROM rep"
    ITEM("20", "clock", "'resolution ' || CASE WHEN clock_resolution_ns IS NULL THEN 'n/a' ELSE printf('%.3g ns', clock_resolution_ns) END"
         " || ', one read ' || CASE WHEN clock_overhead_ns IS NULL THEN 'n/a' ELSE printf('%.3g ns', clock_overhead_ns) END"
         " || ', the empty loop ' || CASE WHEN loop_overhead_ns IS NULL THEN 'n/a' ELSE printf('%.3g ns an iteration', loop_overhead_ns) END")
    ITEM("21", "ptbench", "'version ' || version")
    ITEM("22", "git revision", "coalesce(nullif(git_revision, ''), 'unknown')")
    ITEM("23", "build", LEAVES("build"))
    ITEM("24", "fingerprint", "fingerprint")
    ITEM("25", "UUID", "uuid")
    ") WHERE value IS NOT NULL ORDER BY id, o";
// clang-format on

static const ptb_report_column columns[] = {
    {.name = "item", .title = "item"},
    {.name = "value", .title = "value"},
};

static const ptb_report summary = {
    .plugin = {"summary", "What ran, when, where and with which versions"},
    .order = 10,
    .where = PTB_REPORT_HTML | PTB_REPORT_TERMINAL,
    .title = "Runs",
    .empty = "There is no such run.",
    .table_sql = sql,
    .columns = columns,
    .column_count = sizeof columns / sizeof *columns,
};
PTB_REGISTER(PTB_KIND_REPORT, summary);
