// Kernels of a step, each against its limit, the farthest from it first.
#include "reports/report.h"
#include "reports/sql.h"

#define PARAM(name) "json_extract(c.params, '$." name "')"
// What was given besides the preset.
#define SHAPE                                                                                                \
    "(SELECT group_concat(p.key || ' ' || p.value, ', ') FROM json_each(c.params) AS p WHERE p.key NOT IN "  \
    "('kernel', 'layer', 'precision', 'rows', 'threads', 'device', 'kernels', 'model', 'seed', 'ranks'))"
#define FACT(name) "json_extract(c.facts, '$." name "')"

// clang-format off
static const char sql[] =
    PTB_SQL_CASES " SELECT c.run_name || ', kernels of ' || " PARAM("model") " || coalesce(' with ' || " SHAPE ", '') || ', ' || " PARAM("rows") " || ' rows, '"
    " || " PARAM("threads") " || CASE " PARAM("threads") " WHEN '1' THEN ' thread' ELSE ' threads' END"
    " || CASE c.ranks WHEN 1 THEN '' ELSE ' on each of ' || c.ranks_text END || ' of ' || c.hosts_text"
    " || coalesce(', repetition ' || c.repetition, '') || c.sim AS heading,"
    " c.cpus || '; ' || coalesce(c.combine_text, '') || ', +- is the 95 % interval of the median' AS note,"
    " " PARAM("kernel") " AS kernel, " PARAM("layer") " AS layer, " PARAM("precision") " AS type,"
    " " FACT("sizes") " AS sizes, c.median_ns / 1e3 AS median,"
    " max(ci_high_ns - median_ns, median_ns - ci_low_ns) / median_ns AS spread,"
    " coalesce(" PTB_SQL_METRIC("compute") ", " PTB_SQL_METRIC("bandwidth") ") AS rate,"
    " coalesce(" PTB_SQL_METRIC("peak") ", " PTB_SQL_METRIC("copy") ", " PTB_SQL_METRIC("read") ") AS top,"
    " coalesce(" PTB_SQL_UNIT("compute") ", " PTB_SQL_UNIT("bandwidth") ") AS unit,"
    " " PTB_SQL_METRIC("of_limit") " / 100 AS ratio, " PTB_SQL_METRIC("best_of_limit") " / 100 AS best,"
    " nullif(c.samples, 0) AS samples, c.state AS state"
    " FROM c WHERE c.bench = 'kernels' AND c.state <> 'skipped'"
    " ORDER BY c.run_id, heading, note, ratio IS NULL, ratio, c.id";
// clang-format on

static const ptb_report_column columns[] = {
    {.name = "kernel", .title = "kernel"},
    {.name = "layer", .title = "layer"},
    {.name = "type", .title = "type"},
    {.name = "sizes", .title = "sizes", .drop = 4},
    {.name = "median", .title = "time", .unit = "us", .cell = PTB_CELL_NUMBER},
    {.name = "spread", .title = "+-", .unit = "%", .cell = PTB_CELL_PERCENT, .drop = 3},
    {.name = "rate", .title = "rate", .cell = PTB_CELL_NUMBER, .drop = 1},
    {.name = "top", .title = "limit", .cell = PTB_CELL_NUMBER, .drop = 2},
    {.name = "unit", .title = "unit", .drop = 1},
    {.name = "ratio", .title = "median", .unit = "%", .over = "of limit", .cell = PTB_CELL_PERCENT},
    {.name = "best", .title = "best", .unit = "%", .over = "of limit", .cell = PTB_CELL_PERCENT, .drop = 3},
    {.name = "state", .title = "state", .cell = PTB_CELL_STATE},
};

static const ptb_report kernels = {
    .plugin = {"kernels", "Kernels of a step against their limits"},
    .order = 65,
    .where = PTB_REPORT_HTML | PTB_REPORT_TERMINAL,
    .title = "Kernels",
    .caption =
        "Each kernel alone, farthest from its limit first. The limit of products and attention is the "
        "best rate of matrix products of the type, that of the others a copy that reads and writes as "
        "many bytes, or a read of as many where they only read; each the fastest of some until then, in "
        "the same run with the same threads, and measured again where a kernel is faster. Best: of the "
        "fastest sample, where the median suffered from other programs. Arithmetic (exponentials, "
        "random draws) keeps some kernels from the speed of a copy in the caches.",
    .table_sql = sql,
    .columns = columns,
    .column_count = sizeof columns / sizeof *columns,
};
PTB_REGISTER(PTB_KIND_REPORT, kernels);
