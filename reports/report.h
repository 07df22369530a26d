// What a report is: one section of the HTML page and of the terminal's output. A report is data: SQL over the
// results database (results/schema.sql), a description of its columns, and for figures a gnuplot template
// beside it. render.h's two renderers do the rest, so every section obeys the same rules: units in the head
// of each column, "n/a" for what was not measured, sample counts, spread and conditions with every table and
// figure, simulated results never in one curve with real ones.
//
// To add a report, add reports/X.c, and reports/X.gp where it draws (it becomes the symbol ptb_gp_X).
#ifndef PTB_REPORTS_REPORT_H
#define PTB_REPORTS_REPORT_H

#include "core/registry.h"

#include <stdbool.h>
#include <stddef.h>

// How a cell is written.
typedef enum {
    PTB_CELL_TEXT,    // as it is, left-aligned; "-" when NULL
    PTB_CELL_INTEGER, // digits; "n/a" when NULL, as all numbers
    PTB_CELL_BYTES,   // digits in the terminal, "64 KiB" in HTML
    PTB_CELL_NUMBER,  // four significant digits
    PTB_CELL_PERCENT, // a fraction, written as per cent with one decimal and without the sign
    PTB_CELL_UTC,     // seconds since 1970 as "2026-11-29T13:48:15Z"
    PTB_CELL_STATE,   // ok / wrong / skipped / failed; what is not ok stands out
} ptb_cell;

typedef struct {
    const char *name;  // of the SQL column
    const char *title; // head of the column
    const char *unit;  // second line of the head; NULL: none
    const char *over;  // shared head above neighbouring columns ("out-of-place"); NULL: none
    ptb_cell cell;
    int drop;      // terminal: 0 is always shown; of the others the highest goes first when the width lacks
    bool optional; // left out of tables in which no row has a value
    bool shared;   // said once, in the note, where all of several rows have the same value
} ptb_report_column;

// SQL gets the run ids as a JSON array in ?1 (see PTB_SQL_CASES). Columns are found by name.
//
// table_sql: one row a table row. Special columns:
//   heading  rows that follow each other with the same heading and note form one table under them
//   note     the conditions that all its rows share
//   state    "wrong" and "failed" rows stand out
//   samples  the heading's line states the smallest and the largest number of samples
//
// figure_sql: one row a point (LINES) or a bar (BARS). Columns:
//   figure   rows with the same text are drawn in one figure; it is the title. Must hold what may never be
//            mixed, `simulated` above all
//   series   the curve's or bar's own name, e.g. "host ring"
//   tokens   further conditions, separated by PTB_SQL_SEP. A token that all curves of a figure share goes to
//            the line of conditions below the title, any other to the name of the curve
//   mode     how it was measured; what all points of a curve were measured with becomes one more token
//   x        (LINES) rows of the same figure, series, tokens and x are repetitions: drawn as their median,
//            the interval from the lowest lower to the highest upper limit
//   y, y_low, y_high   value (BARS: total) and interval; NULL where there is none
//   samples  number of samples behind the point
//   (BARS)   one column a part, named in `parts`
//   case_id  (with `stored_series`) the case whose stored series holds the y values; x is then the position,
//   from 0
typedef enum { PTB_FIGURE_LINES, PTB_FIGURE_BARS } ptb_figure_style;

typedef struct {
    const char *name;  // SQL column
    const char *title; // in the legend
} ptb_report_part;

enum {
    PTB_REPORT_HTML = 1,
    PTB_REPORT_TERMINAL = 2,
    PTB_REPORT_FOLDED = 4, // HTML: closed until clicked, open in print
};

typedef struct {
    ptb_plugin plugin;
    int order;           // place on the page
    unsigned where;      // PTB_REPORT_*
    const char *title;   // of the section
    const char *caption; // what is shown and how it was computed; plain text
    const char *empty;   // shown when there is nothing; NULL: the section is left out then

    const char *table_sql; // NULL: no table
    const ptb_report_column *columns;
    size_t column_count;

    const char *figure_sql; // NULL: no figures
    ptb_figure_style style;
    const char *gnuplot; // template: see gnuplot.c for what it is given
    const ptb_report_part *parts;
    size_t part_count;
    const char *stored_series;
} ptb_report;

#endif
