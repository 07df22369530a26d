// Figures: the loss of a training run against the step.
#include "reports/report.h"
#include "reports/sql.h"

extern const char ptb_gp_loss[];

static const char sql[] =
    PTB_SQL_CASES " SELECT " PTB_SQL_STEP_HEADING " AS figure,"
                  " " PTB_SQL_STEP_SERIES " AS series,"
                  " " PTB_SQL_STEP_CONDITIONS " AS tokens, c.mode AS mode,"
                  " c.id AS case_id FROM c JOIN series ON series.case_id = c.id AND series.name = 'loss'"
                  " WHERE c.state IN ('ok', 'failed') ORDER BY c.ranks, c.id";

static const ptb_report loss = {
    .plugin = {"loss", "Training loss against the step"},
    .order = 80,
    .where = PTB_REPORT_HTML,
    .title = "Loss",
    .caption =
        "Training loss of each step. Runs of one model, one global batch and the same data must lie on each "
        "other whatever the number of ranks, but for rounding; only local-sgd and async (with staleness) "
        "have "
        "curves of their own. Steps count from 0. One value a step, so there is no interval.",
    .figure_sql = sql,
    .style = PTB_FIGURE_LINES,
    .gnuplot = ptb_gp_loss,
    .stored_series = "loss",
};
PTB_REGISTER(PTB_KIND_REPORT, loss);
