// Figures as data: the rows of a report's figure_sql gathered into figures and curves, before gnuplot.
#ifndef PTB_REPORTS_FIGURE_H
#define PTB_REPORTS_FIGURE_H

#include "reports/report.h"
#include "results/store.h"

typedef struct {
    double x, y, low, high; // low and high NAN: no interval
    size_t repetitions;
} ptb_point;

typedef struct {
    char *series, *tokens; // as the SQL gave them: what makes the curve one curve
    char *modes;           // "latency", "back-to-back and latency": of its points
    char *name;            // for the legend: the series and the tokens that other curves do not share
    ptb_point *points;     // LINES: ascending x. BARS: one, y = total
    size_t point_count;
    double *parts; // BARS: [part_count of the report], NAN: not available
} ptb_curve;

typedef struct {
    char *title;
    char *conditions; // shared tokens, samples and spread, as one line of text
    ptb_curve *curves;
    size_t curve_count;
    double x_min, x_max, y_min, y_max; // over all points and intervals
    size_t most_points;                // of a curve
    double samples_min, samples_max;   // NAN when not stated
    double spread_max;                 // largest half width of an interval relative to its value; NAN: none
    size_t repetitions_max;
} ptb_figure;

// Runs the report's figure_sql. *figures is a heap array, in order of first appearance; 0 figures when no row
// came. `runs_json` is the JSON array of run ids.
ptb_status ptb_figures_query(ptb_store *store, const ptb_report *report, const char *runs_json,
                             ptb_figure **figures, size_t *count);
void ptb_figures_free(ptb_figure *figures, size_t count);

#endif
