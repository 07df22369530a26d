// Groups the rows of a report's table; see view.h.
#include "reports/view.h"

#include "core/log.h"
#include "reports/format.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static ptb_status find_columns(const ptb_report *report, ptb_table_view *view)
{
    for (size_t i = 0; i < report->column_count; i++) {
        view->column[i] = ptb_table_find(view->table, report->columns[i].name);
        if (view->column[i] < 0) {
            ptb_error("report %s: its table_sql has no column '%s'", report->plugin.name,
                      report->columns[i].name);
            return PTB_INTERNAL;
        }
    }
    view->state = ptb_table_find(view->table, "state");
    return PTB_OK;
}

static const char *cell_or_empty(const ptb_table *table, size_t row, int column)
{
    return column < 0 ? "" : ptb_table_cell(table, row, (size_t)column);
}

static bool same_in_all_rows(const ptb_table_view *view, const ptb_table_group *group, size_t column)
{
    const char *first = cell_or_empty(view->table, group->first, view->column[column]);
    for (size_t r = group->first + 1; r < group->first + group->rows; r++)
        if (strcmp(cell_or_empty(view->table, r, view->column[column]), first) != 0)
            return false;
    return group->rows > 1 && *first;
}

// Moves columns whose rows all agree into the note.
static void say_shared_once(const ptb_report *report, const ptb_table_view *view, ptb_table_group *group,
                            ptb_text *note)
{
    for (size_t i = 0; i < report->column_count; i++) {
        const ptb_report_column *column = &report->columns[i];
        if (!column->shared || !group->shown[i] || !same_in_all_rows(view, group, i))
            continue;
        group->shown[i] = false;
        ptb_text_printf(note, "%s%s%s%s%s%s ", note->length ? "; " : "", column->over ? column->over : "",
                        column->over ? " " : "", column->title, column->unit ? " " : "",
                        column->unit ? column->unit : "");
        ptb_format_cell(view->table, group->first, (size_t)view->column[i], column->cell, true, note);
    }
}

static void describe_group(const ptb_report *report, const ptb_table_view *view, ptb_table_group *group)
{
    const ptb_table *table = view->table;
    for (size_t i = 0; i < report->column_count; i++) {
        group->shown[i] = !report->columns[i].optional;
        for (size_t r = group->first; r < group->first + group->rows && !group->shown[i]; r++)
            group->shown[i] = cell_or_empty(table, r, view->column[i])[0] != '\0';
    }
    ptb_text note = PTB_TEXT_INIT;
    ptb_text_append(&note, cell_or_empty(table, group->first, ptb_table_find(table, "note")));
    say_shared_once(report, view, group, &note);
    int samples = ptb_table_find(table, "samples");
    double low = NAN, high = NAN;
    for (size_t r = group->first; r < group->first + group->rows && samples >= 0; r++) {
        double n = ptb_table_number(table, r, (size_t)samples);
        if (n > 0) {
            low = fmin(low, n);
            high = fmax(high, n);
        }
    }
    if (isfinite(low)) {
        char range[64];
        ptb_format_range(low, high, range, sizeof range);
        ptb_text_printf(&note, "%s%s samples a case", note.length ? "; " : "", range);
    }
    group->note = ptb_text_take(&note);
}

ptb_status ptb_table_view_query(ptb_store *store, const ptb_report *report, const char *runs_json,
                                ptb_table_view *view)
{
    ptb_table_view made = {.state = -1};
    PTB_TRY(ptb_store_query(store, report->table_sql, &runs_json, 1, &made.table));
    ptb_status status = report->column_count > PTB_REPORT_COLUMNS_MAX ? PTB_INTERNAL : PTB_OK;
    if (status == PTB_OK)
        status = find_columns(report, &made);
    const ptb_table *table = made.table;
    int heading = ptb_table_find(table, "heading"), note = ptb_table_find(table, "note");
    made.groups = calloc(table->rows + 1, sizeof *made.groups);
    if (!made.groups)
        status = PTB_NO_MEMORY;
    for (size_t r = 0; r < table->rows && status == PTB_OK; r++) {
        const char *text = cell_or_empty(table, r, heading);
        bool same = r > 0 && strcmp(text, made.groups[made.group_count - 1].heading) == 0;
        same = same && strcmp(cell_or_empty(table, r, note), cell_or_empty(table, r - 1, note)) == 0;
        if (!same)
            made.groups[made.group_count++] = (ptb_table_group){.first = r, .heading = text};
        made.groups[made.group_count - 1].rows++;
    }
    for (size_t g = 0; g < made.group_count; g++)
        describe_group(report, &made, &made.groups[g]);
    if (status == PTB_OK)
        *view = made;
    else
        ptb_table_view_release(&made);
    return status;
}

void ptb_table_view_release(ptb_table_view *view)
{
    for (size_t g = 0; g < view->group_count; g++)
        free(view->groups[g].note);
    free(view->groups);
    ptb_table_free(view->table);
    *view = (ptb_table_view){.state = -1};
}

size_t ptb_reports_in_order(unsigned where, const ptb_report **out)
{
    size_t count = 0;
    for (size_t i = 0; i < ptb_registry_count(PTB_KIND_REPORT); i++) {
        const ptb_report *report = (const ptb_report *)ptb_registry_at(PTB_KIND_REPORT, i);
        if (!(report->where & where))
            continue;
        size_t at = count++;
        for (; at > 0 && out[at - 1]->order > report->order; at--)
            out[at] = out[at - 1];
        out[at] = report;
    }
    return count;
}
