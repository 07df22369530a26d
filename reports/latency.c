// Figures: median time of collectives against size, one curve an algorithm of a communicator.
#include "reports/report.h"
#include "reports/sql.h"

extern const char ptb_gp_latency[];

// clang-format off
static const char sql[] =
    PTB_SQL_CASES " SELECT " PTB_SQL_COLLECTIVE " AS figure, " PTB_SQL_COLLECTIVE_SERIES " AS series,"
    " " PTB_SQL_CONDITIONS " AS tokens, c.mode AS mode, c.bytes AS x, c.median_ns AS y,"
    " c.ci_low_ns AS y_low, c.ci_high_ns AS y_high, c.samples AS samples"
    " FROM c WHERE c.state = 'ok' AND c.bytes > 0 AND c.median_ns > 0 AND c.bench NOT IN ('step', 'pairs')"
    " ORDER BY c.bench, c.place DESC, c.ranks, c.id";
// clang-format on

static const ptb_report latency = {
    .plugin = {"latency", "Time of collectives against size"},
    .order = 50,
    .where = PTB_REPORT_HTML,
    .title = "Latency",
    .caption =
        "Median time of one operation against its size; both axes are logarithmic. Lower is better. Bars: 95 "
        "% "
        "confidence interval of the median. Cases of 0 bytes or with wrong results are in the tables only. "
        "Mode: latency, each operation starts together on all ranks; back-to-back, in batches; where a curve "
        "has "
        "points of both, the table of cases says which.",
    .figure_sql = sql,
    .style = PTB_FIGURE_LINES,
    .gnuplot = ptb_gp_latency,
};
PTB_REGISTER(PTB_KIND_REPORT, latency);
