// What the links counted during each case beside what its algorithm implies, and the measured rate beside the
// one that the links allow at best (core/traffic.h, bench/counters.h).
#include "reports/report.h"
#include "reports/sql.h"

// clang-format off
#define FACT(name)  "json_extract(c.facts, '$." name "')"
#define PARAM(name) "json_extract(c.params, '$." name "')"
#define MB(name) "(" PTB_SQL_METRIC(name) ") / 1e6"
// Of a host alone there is nothing to say.
#define HAS_LINKS "(" FACT("nvlinks") " IS NOT NULL OR " FACT("rails") " IS NOT NULL OR " FACT("not_counted") " IS NOT NULL" \
    " OR " PTB_SQL_METRIC("expected") " IS NOT NULL)"

static const char sql[] =
    PTB_SQL_CASES ", l AS (SELECT c.*, coalesce(" PTB_SQL_METRIC("busbw") ", " PTB_SQL_METRIC("bandwidth") ") AS measured,"
    " " PTB_SQL_METRIC("expected") " AS expected FROM c WHERE c.samples > 0 AND " HAS_LINKS ")"
    " SELECT c.run_name || ', ' || c.bench || coalesce(', ' || " PARAM("path") ", '') || coalesce(', ' || c.comm, '')"
    " || coalesce(' ' || coalesce(" FACT("algorithm") ", c.algo), '') || ', ' || c.ranks_text || ' on ' || c.hosts_text"
    " || coalesce(', repetition ' || c.repetition, '') || c.sim AS heading,"
    " coalesce('Implied: ' || " FACT("implied") ", '') || coalesce('. Expected: ' || " FACT("expected_how") ", '')"
    " || coalesce('. Not counted: ' || " FACT("not_counted") ", '') AS note,"
    " CASE WHEN c.bench <> 'step' THEN c.bytes END AS bytes, " PARAM("from") " AS source, " PARAM("to") " AS target,"
    " CASE WHEN json_extract(c.params, '$.place') IS NOT NULL THEN c.place END AS place,"
    " c.measured AS measured, c.expected AS expected, c.measured / c.expected AS share,"
    " " MB("nvlink_bytes") " AS nvlink, " PTB_SQL_METRIC("nvlink_ratio") " AS nvlink_ratio,"
    " " MB("nvlink_least") " AS nvlink_least, " MB("nvlink_most") " AS nvlink_most, " FACT("nvlinks") " AS nvlinks,"
    " " MB("rail_bytes") " AS rail, " PTB_SQL_METRIC("rail_ratio") " AS rail_ratio,"
    " " MB("rail_least") " AS rail_least, " MB("rail_most") " AS rail_most, " FACT("rails") " AS rails"
    " FROM l AS c ORDER BY c.run_id, c.bench, heading, note, c.bytes, c.place DESC, c.id";
// clang-format on

#define PEAK   "rate"
#define NVLINK "NVLinks"
#define RAIL   "network ports"
static const ptb_report_column columns[] = {
    {.name = "bytes", .title = "size", .unit = "B", .cell = PTB_CELL_BYTES, .optional = true},
    {.name = "source", .title = "from", .unit = "rank", .cell = PTB_CELL_INTEGER, .optional = true},
    {.name = "target", .title = "to", .unit = "rank", .cell = PTB_CELL_INTEGER, .optional = true},
    {.name = "place", .title = "place", .optional = true, .shared = true, .drop = 5},
    {.name = "measured",
     .title = "measured",
     .unit = "GB/s",
     .over = PEAK,
     .cell = PTB_CELL_NUMBER,
     .optional = true},
    {.name = "expected",
     .title = "expected",
     .unit = "GB/s",
     .over = PEAK,
     .cell = PTB_CELL_NUMBER,
     .optional = true},
    {.name = "share",
     .title = "of it",
     .unit = "%",
     .over = PEAK,
     .cell = PTB_CELL_PERCENT,
     .optional = true},
    {.name = "nvlink", .title = "MB", .over = NVLINK, .cell = PTB_CELL_NUMBER, .optional = true, .drop = 2},
    {.name = "nvlink_ratio", .title = "/ implied", .over = NVLINK, .cell = PTB_CELL_NUMBER, .optional = true},
    {.name = "nvlink_least",
     .title = "least MB",
     .unit = "a link",
     .over = NVLINK,
     .cell = PTB_CELL_NUMBER,
     .optional = true,
     .drop = 6},
    {.name = "nvlink_most",
     .title = "most MB",
     .unit = "a link",
     .over = NVLINK,
     .cell = PTB_CELL_NUMBER,
     .optional = true,
     .drop = 6},
    {.name = "nvlinks", .title = "count", .over = NVLINK, .optional = true, .shared = true, .drop = 7},
    {.name = "rail", .title = "MB", .over = RAIL, .cell = PTB_CELL_NUMBER, .optional = true, .drop = 2},
    {.name = "rail_ratio", .title = "/ implied", .over = RAIL, .cell = PTB_CELL_NUMBER, .optional = true},
    {.name = "rail_least",
     .title = "least MB",
     .unit = "a port",
     .over = RAIL,
     .cell = PTB_CELL_NUMBER,
     .optional = true},
    {.name = "rail_most",
     .title = "most MB",
     .unit = "a port",
     .over = RAIL,
     .cell = PTB_CELL_NUMBER,
     .optional = true},
    {.name = "rails", .title = "count", .over = RAIL, .optional = true, .shared = true, .drop = 1},
};

static const ptb_report links = {
    .plugin = {"links",
               "Bytes on NVLinks and network ports against what the algorithm implies; expected peaks"},
    .order = 36,
    .where = PTB_REPORT_HTML | PTB_REPORT_TERMINAL,
    .title = "Links",
    .caption =
        "Bytes that all ranks together sent in one iteration, by the counters of the links, read before and "
        "after the whole case, warm-up "
        "included, and divided by all its iterations. / implied: against what the algorithm that ran sends. "
        "Between hosts it is above 1 by headers and by what else the ports carried; on NVLinks payload is "
        "counted. Expected: the rate at which the busiest link carries what the algorithm implies, at its "
        "full rate and without a pause; S is the size.",
    .table_sql = sql,
    .columns = columns,
    .column_count = sizeof columns / sizeof *columns,
};
PTB_REGISTER(PTB_KIND_REPORT, links);
