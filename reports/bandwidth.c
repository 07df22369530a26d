// Figures: bus bandwidth of collectives against size, one curve an algorithm of a communicator.
#include "reports/report.h"
#include "reports/sql.h"

extern const char ptb_gp_bandwidth[];

// busbw goes as 1 / time, so its interval is the time's, turned over.
// clang-format off
static const char sql[] =
    PTB_SQL_CASES ", b AS (SELECT c.*, " PTB_SQL_METRIC("busbw") " AS busbw FROM c WHERE state = 'ok' AND bytes > 0)"
    " SELECT " PTB_SQL_COLLECTIVE " AS figure, " PTB_SQL_COLLECTIVE_SERIES " AS series,"
    " " PTB_SQL_CONDITIONS " AS tokens, c.mode AS mode, c.bytes AS x, c.busbw AS y,"
    " c.busbw * c.median_ns / c.ci_high_ns AS y_low, c.busbw * c.median_ns / c.ci_low_ns AS y_high,"
    " c.samples AS samples"
    " FROM b AS c WHERE c.busbw IS NOT NULL ORDER BY c.bench, c.place DESC, c.ranks, c.id";
// clang-format on

static const ptb_report bandwidth = {
    .plugin = {"bandwidth", "Bus bandwidth of collectives against size"},
    .order = 40,
    .where = PTB_REPORT_HTML,
    .title = "Bandwidth",
    .caption =
        "Bus bandwidth from the median time, against the size S of the operation (1 GB = 1e9 bytes; busbw = "
        "S / t x the operation's factor; how S is defined stands under \"How metrics are computed\"). "
        "Higher is better. Bars: 95 % confidence interval of the median. Cases of 0 bytes, with one rank, or "
        "with wrong results have no bus bandwidth and are in the tables only. "
        "Mode: latency, each operation starts together on all ranks; back-to-back, in batches; where a curve "
        "has "
        "points of both, the table of cases says which.",
    .figure_sql = sql,
    .style = PTB_FIGURE_LINES,
    .gnuplot = ptb_gp_bandwidth,
};
PTB_REGISTER(PTB_KIND_REPORT, bandwidth);
