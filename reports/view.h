// What both renderers make of a report's table before they write it: rows grouped by heading, columns that
// hold nothing left out, the sample counts stated.
#ifndef PTB_REPORTS_VIEW_H
#define PTB_REPORTS_VIEW_H

#include "reports/report.h"
#include "results/store.h"

enum { PTB_REPORT_COLUMNS_MAX = 40 };

typedef struct {
    size_t first, rows;                 // of the table
    const char *heading;                // "" when the report has none
    char *note;                         // conditions and sample counts; heap, "" when there is nothing to say
    bool shown[PTB_REPORT_COLUMNS_MAX]; // by column of the report
} ptb_table_group;

typedef struct {
    ptb_table *table;
    int column[PTB_REPORT_COLUMNS_MAX]; // of the table, by column of the report
    int state;                          // column of the table, -1: none
    ptb_table_group *groups;
    size_t group_count;
} ptb_table_view;

// Runs the report's table_sql. On OK the view is to be released.
ptb_status ptb_table_view_query(ptb_store *store, const ptb_report *report, const char *runs_json,
                                ptb_table_view *view);
void ptb_table_view_release(ptb_table_view *view);

// Reports that appear in a place (PTB_REPORT_HTML, PTB_REPORT_TERMINAL), in order; out has room for 64.
size_t ptb_reports_in_order(unsigned where, const ptb_report **out);

// What a reader must know first: one row a notice, columns severity ("bad", "warn") and text. Interrupted
// runs, wrong results, simulated devices. reports/notices.c.
ptb_status ptb_notices_query(ptb_store *store, const char *runs_json, ptb_table **table);

#endif
