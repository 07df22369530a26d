// Scaling efficiency of training steps, where the chosen runs hold the same step with several rank counts.
#include "reports/report.h"
#include "reports/sql.h"

extern const char ptb_gp_scaling[];

// One curve: the same model, strategy, options, CPUs, program and way of timing; and for strong scaling the
// same global batch, for weak scaling the same batch a rank. With an equal batch a rank, throughput a rank
// goes as 1 / T. Repetitions and runs of one rank count: mean of their medians, widest interval. On one rank
// nothing is divided, so that a strategy which did not run there starts from ddp's step.
// clang-format off
#define CONDITIONS "kind, load, model, program, cpus, mode_text, combine_text, other, marks"
#define MEASURED   "ranks, hosts, median_ns, ci_low_ns, ci_high_ns, samples, run_id"
#define CURVES                                                                                               \
    PTB_SQL_CASES                                                                                            \
    ", s AS (SELECT c.*, CAST(json_extract(c.params, '$.batch') AS REAL) AS batch_size,"                     \
    " c.bench || ', ' || " PTB_SQL_MODEL " || c.sim AS model, coalesce(c.other_params, '') AS other,"        \
    " coalesce(c.other_tokens, '') AS marks,"        \
    " coalesce(" PTB_SQL_STEP_PARAM("strategy") ", '') AS strategy,"                                         \
    " coalesce(" PTB_SQL_STRATEGY ", '') || coalesce(' over ' || c.comm, '')"                                \
    " || coalesce(' ' || c.algo, '') AS how,"                                                                \
    " 'ptbench ' || c.version || coalesce(', revision ' || nullif(c.revision, ''), '') AS program"           \
    " FROM c WHERE c.state = 'ok' AND c.bench = 'step' AND c.median_ns > 0),"                                \
    " k AS (SELECT 'strong' AS kind, printf('global batch %g', batch_size) AS load, * FROM s"                \
    " UNION ALL SELECT 'weak', printf('batch a rank %g', batch_size / ranks), * FROM s),"                    \
    " h AS (SELECT " CONDITIONS ", how FROM k GROUP BY " CONDITIONS ", how HAVING min(ranks) > 1),"          \
    " b AS (SELECT " CONDITIONS ", how, " MEASURED " FROM k"                                                 \
    " UNION ALL SELECT " CONDITIONS ", h.how, " MEASURED " FROM h JOIN k USING (" CONDITIONS ")"             \
    " WHERE k.ranks = 1 AND k.strategy = 'ddp'),"                                                            \
    " a AS (SELECT " CONDITIONS ", how, ranks, max(hosts) AS hosts,"                                         \
    " avg(median_ns) AS t, min(ci_low_ns) AS low, max(ci_high_ns) AS high, sum(samples) AS samples,"         \
    " count(*) AS cases, group_concat(DISTINCT run_id) AS runs"                                              \
    " FROM b GROUP BY " CONDITIONS ", how, ranks),"                                                          \
    " e AS (SELECT *, first_value(ranks) OVER w AS n0, first_value(t) OVER w AS t0,"                         \
    " first_value(low) OVER w AS low0, first_value(high) OVER w AS high0,"                                   \
    " count(*) OVER (PARTITION BY " CONDITIONS ", how) AS counts"                                            \
    " FROM a WINDOW w AS (PARTITION BY " CONDITIONS ", how ORDER BY ranks)),"                                \
    " f AS (SELECT *, CASE kind WHEN 'strong' THEN 1.0 * n0 / ranks ELSE 1.0 END AS share FROM e"            \
    " WHERE counts > 1) "
// clang-format on

static const char figure_sql[] =
    CURVES " SELECT kind || ' scaling, ' || model AS figure, how || ', N0 = ' || n0 AS series,"
           " load || " PTB_SQL_SEP " || cpus || " PTB_SQL_SEP " || program || " PTB_SQL_SEP
           " || mode_text || " PTB_SQL_SEP " || combine_text || " PTB_SQL_SEP " || marks AS tokens,"
           " ranks AS x, share * t0 / t AS y,"
           " CASE WHEN ranks = n0 THEN NULL ELSE share * low0 / high END AS y_low,"
           " CASE WHEN ranks = n0 THEN NULL ELSE share * high0 / low END AS y_high, samples"
           " FROM f ORDER BY kind, model, how, load, ranks";

static const char table_sql[] = CURVES
    " SELECT kind || ' scaling, ' || model || ', ' || load AS heading,"
    " cpus || ', ' || program || ', ' || mode_text || ', ' || combine_text"
    " || CASE other WHEN '' THEN '' ELSE ', ' || other END AS note,"
    " how, n0, ranks, hosts, runs, cases, samples, t / 1e6 AS median, low / 1e6 AS low, high / 1e6 AS high,"
    " share * t0 / t AS efficiency,"
    " CASE WHEN ranks = n0 THEN NULL ELSE share * low0 / high END AS e_low,"
    " CASE WHEN ranks = n0 THEN NULL ELSE share * high0 / low END AS e_high"
    " FROM f ORDER BY kind, model, load, cpus, program, mode_text, combine_text, other, how, ranks";

static const ptb_report_column columns[] = {
    {.name = "how", .title = "strategy"},
    {.name = "n0", .title = "N0", .cell = PTB_CELL_INTEGER, .drop = 3},
    {.name = "ranks", .title = "ranks", .cell = PTB_CELL_INTEGER},
    {.name = "hosts", .title = "hosts", .cell = PTB_CELL_INTEGER},
    {.name = "runs", .title = "runs", .unit = "id", .drop = 2},
    {.name = "samples", .title = "steps", .unit = "timed", .cell = PTB_CELL_INTEGER},
    {.name = "median", .title = "median", .unit = "ms", .over = "step time", .cell = PTB_CELL_NUMBER},
    {.name = "low",
     .title = "from",
     .unit = "95 % ms",
     .over = "step time",
     .cell = PTB_CELL_NUMBER,
     .drop = 1},
    {.name = "high",
     .title = "to",
     .unit = "95 % ms",
     .over = "step time",
     .cell = PTB_CELL_NUMBER,
     .drop = 1},
    {.name = "efficiency", .title = "value", .unit = "%", .over = "efficiency", .cell = PTB_CELL_PERCENT},
    {.name = "e_low", .title = "from", .unit = "%", .over = "efficiency", .cell = PTB_CELL_PERCENT},
    {.name = "e_high", .title = "to", .unit = "%", .over = "efficiency", .cell = PTB_CELL_PERCENT},
};

static const ptb_report scaling = {
    .plugin = {"scaling", "Strong and weak scaling efficiency of training steps"},
    .order = 70,
    .where = PTB_REPORT_HTML | PTB_REPORT_TERMINAL,
    .title = "Scaling",
    .caption =
        "Efficiency against the smallest stored number of ranks, N0. Strong (same global batch): E = N0 "
        "T(N0) / (N T(N)). Weak (same batch a rank): E = (thr(N) / N) / (thr(N0) / N0). T is the median step "
        "time, of several cases with one number of ranks the mean of their medians; the interval follows "
        "from the ends of the 95 % intervals of both times, so it is on the wide side; "
        "at N0 the value is 100 % by definition. On one rank nothing is divided: a strategy that did not run "
        "there starts from ddp's step.",
    .table_sql = table_sql,
    .columns = columns,
    .column_count = sizeof columns / sizeof *columns,
    .figure_sql = figure_sql,
    .style = PTB_FIGURE_LINES,
    .gnuplot = ptb_gp_scaling,
};
PTB_REGISTER(PTB_KIND_REPORT, scaling);
