// The same tables as text: ASCII, aligned, within the terminal's width.
#include "reports/render.h"

#include "core/log.h"
#include "reports/format.h"
#include "reports/view.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { GAP = 2, WIDTH_MIN = 40, WIDTH_MAX = 400, TEXT_COLUMN_MAX = 32, LAST_MIN = 16, LAST_GOOD = 32 };

typedef struct {
    const ptb_report *report;
    const ptb_table_view *view;
    const ptb_table_group *group;
    size_t limit; // columns of the terminal
    bool shown[PTB_REPORT_COLUMNS_MAX];
    size_t width[PTB_REPORT_COLUMNS_MAX];
    size_t last;  // the last shown column
    char **cells; // [rows * column_count], heap strings
} grid;

static bool is_text(ptb_cell cell)
{
    return cell == PTB_CELL_TEXT || cell == PTB_CELL_STATE || cell == PTB_CELL_UTC;
}

static void pad(ptb_text *out, size_t count)
{
    while (count--)
        ptb_text_append(out, " ");
}

static void end_line(ptb_text *out)
{
    while (out->length && out->data[out->length - 1] == ' ')
        out->data[--out->length] = '\0';
    ptb_text_append(out, "\n");
}

// Length of the next piece of `text` that fits `limit`, broken at a blank, else after '/' or ',' or anywhere.
static size_t piece_length(const char *text, size_t limit)
{
    size_t length = strlen(text);
    if (length <= limit)
        return length;
    for (size_t i = limit; i > 0; i--)
        if (text[i] == ' ')
            return i;
    for (size_t i = limit; i > limit / 2; i--)
        if (text[i - 1] == '/' || text[i - 1] == ',')
            return i;
    return limit;
}

// Writes text wrapped: the first line starts where the cursor is, the others after `indent` blanks.
static void wrap(ptb_text *out, const char *text, size_t indent, size_t limit)
{
    size_t room = limit > indent + LAST_MIN ? limit - indent : LAST_MIN;
    for (;;) {
        size_t length = piece_length(text, room);
        ptb_text_append_bytes(out, text, length);
        text += length;
        while (*text == ' ')
            text++;
        end_line(out);
        if (!*text)
            return;
        pad(out, indent);
    }
}

static void wrap_unsafe(ptb_text *out, const char *text, size_t indent, size_t limit)
{
    ptb_text safe = PTB_TEXT_INIT;
    ptb_ascii_append(&safe, text);
    wrap(out, ptb_text_string(&safe), indent, limit);
    ptb_text_release(&safe);
}

static void fill_cells(grid *g)
{
    size_t columns = g->report->column_count;
    g->cells = calloc(g->group->rows * columns + 1, sizeof *g->cells);
    if (!g->cells)
        abort(); // as core/text does
    for (size_t i = 0; i < columns; i++) {
        const ptb_report_column *column = &g->report->columns[i];
        size_t width = strlen(column->title), unit = column->unit ? strlen(column->unit) : 0;
        width = unit > width ? unit : width;
        g->shown[i] = g->group->shown[i];
        for (size_t r = 0; r < g->group->rows; r++) {
            ptb_text raw = PTB_TEXT_INIT, safe = PTB_TEXT_INIT;
            ptb_format_cell(g->view->table, g->group->first + r, (size_t)g->view->column[i], column->cell,
                            false, &raw);
            ptb_ascii_append(&safe, ptb_text_string(&raw));
            width = safe.length > width ? safe.length : width;
            g->cells[r * columns + i] = ptb_text_take(&safe);
            ptb_text_release(&raw);
        }
        g->width[i] = width;
    }
}

static void free_cells(grid *g)
{
    for (size_t i = 0; i < g->group->rows * g->report->column_count; i++)
        free(g->cells[i]);
    free(g->cells);
}

static size_t find_last(const grid *g)
{
    size_t last = 0;
    for (size_t i = 0; i < g->report->column_count; i++)
        last = g->shown[i] ? i : last;
    return last;
}

static size_t total_width(const grid *g)
{
    size_t total = 0;
    for (size_t i = 0; i < g->report->column_count; i++) {
        if (!g->shown[i])
            continue;
        // The last text column wraps, so it needs little.
        bool wraps = i == g->last && g->report->columns[i].cell == PTB_CELL_TEXT && g->width[i] > LAST_MIN;
        total += (total ? GAP : 0) + (wraps ? LAST_MIN : g->width[i]);
    }
    return total;
}

// Gives columns of text that were narrowed what room there is; a last column that wraps keeps some.
static void widen(grid *g, const size_t *wanted)
{
    size_t used = total_width(g), kept = g->report->columns[g->last].cell == PTB_CELL_TEXT ? LAST_GOOD : 0;
    size_t room = g->limit > used + kept ? g->limit - used - kept : 0;
    for (size_t i = 0; i < g->report->column_count; i++) {
        size_t more = wanted[i] - g->width[i];
        more = more > room ? room : more;
        if (!g->shown[i] || i == g->last)
            continue;
        g->width[i] += more;
        room -= more;
    }
}

// Leaves out columns, the highest `drop` first, until the table fits.
static void drop_columns(grid *g)
{
    while (total_width(g) > g->limit) {
        int highest = 0;
        for (size_t i = 0; i < g->report->column_count; i++)
            if (g->shown[i] && g->report->columns[i].drop > highest)
                highest = g->report->columns[i].drop;
        if (highest == 0)
            return;
        for (size_t i = 0; i < g->report->column_count; i++)
            if (g->report->columns[i].drop == highest)
                g->shown[i] = false;
        g->last = find_last(g);
    }
}

static void fit(grid *g)
{
    size_t wanted[PTB_REPORT_COLUMNS_MAX];
    memcpy(wanted, g->width, sizeof wanted);
    g->last = find_last(g);
    for (size_t i = 0; i < g->report->column_count; i++)
        if (g->report->columns[i].cell == PTB_CELL_TEXT && g->width[i] > TEXT_COLUMN_MAX && i != g->last)
            g->width[i] = TEXT_COLUMN_MAX;
    drop_columns(g);
    widen(g, wanted);
}

static void append_cell(const grid *g, size_t column, const char *text, ptb_text *out, size_t *at)
{
    size_t width = g->width[column], length = strlen(text);
    length = length > width ? width : length;
    bool left = is_text(g->report->columns[column].cell);
    if (*at)
        pad(out, GAP);
    if (!left)
        pad(out, width - length);
    bool cut = text[length] && length > 2;
    ptb_text_append_bytes(out, text, cut ? length - 2 : length);
    ptb_text_append(out, cut ? ".." : "");
    if (left)
        pad(out, width - length);
    *at += (*at ? GAP : 0) + width;
}

// "|-- out-of-place --|" above the columns it belongs to.
static void append_over_line(const grid *g, ptb_text *out)
{
    size_t columns = g->report->column_count;
    bool any = false;
    for (size_t i = 0; i < columns; i++)
        any = any || (g->shown[i] && g->report->columns[i].over);
    if (!any)
        return;
    size_t at = 0;
    for (size_t i = 0; i < columns;) {
        const char *over = g->report->columns[i].over;
        size_t span = 0, next = i;
        for (; next < columns; next++) {
            const char *other = g->report->columns[next].over;
            if (next > i && !(over && other && strcmp(over, other) == 0))
                break;
            if (g->shown[next])
                span += (span ? GAP : 0) + g->width[next];
        }
        if (span) {
            pad(out, at ? GAP : 0);
            size_t title = over ? strlen(over) : 0;
            title = title > span ? span : title;
            size_t left = (span - title) / 2;
            for (size_t k = 0; k < span; k++) {
                bool dash = over && (k + 1 < left || k > left + title);
                ptb_text_append_bytes(out,
                                      k >= left && k < left + title ? &over[k - left]
                                      : dash                        ? "-"
                                                                    : " ",
                                      1);
            }
            at += (at ? GAP : 0) + span;
        }
        i = next;
    }
    end_line(out);
}

static void append_heads(const grid *g, ptb_text *out)
{
    append_over_line(g, out);
    bool units = false;
    size_t at = 0;
    for (size_t i = 0; i < g->report->column_count; i++)
        if (g->shown[i]) {
            units = units || g->report->columns[i].unit;
            append_cell(g, i, g->report->columns[i].title, out, &at);
        }
    end_line(out);
    at = 0;
    for (size_t i = 0; units && i < g->report->column_count; i++)
        if (g->shown[i])
            append_cell(g, i, g->report->columns[i].unit ? g->report->columns[i].unit : "", out, &at);
    if (units)
        end_line(out);
}

static void append_rows(const grid *g, ptb_text *out)
{
    for (size_t r = 0; r < g->group->rows; r++) {
        size_t at = 0;
        for (size_t i = 0; i < g->report->column_count; i++) {
            const char *text = g->cells[r * g->report->column_count + i];
            if (!g->shown[i])
                continue;
            if (i == g->last && g->report->columns[i].cell == PTB_CELL_TEXT) {
                pad(out, at ? GAP : 0);
                wrap(out, text, at + (at ? GAP : 0), g->limit);
                break;
            }
            bool bad = g->report->columns[i].cell == PTB_CELL_STATE &&
                       (strcmp(text, "wrong") == 0 || strcmp(text, "failed") == 0);
            append_cell(g, i, bad ? strcmp(text, "wrong") == 0 ? "WRONG" : "FAILED" : text, out, &at);
            if (i == g->last)
                end_line(out);
        }
    }
}

static void append_left_out(const grid *g, ptb_text *out)
{
    ptb_text names = PTB_TEXT_INIT;
    const char *before = "";
    for (size_t i = 0; i < g->report->column_count; i++) {
        if (!g->group->shown[i] || g->shown[i] || strcmp(before, g->report->columns[i].title) == 0)
            continue;
        before = g->report->columns[i].title;
        if (!strstr(ptb_text_string(&names), before))
            ptb_text_printf(&names, "%s%s", names.length ? ", " : "", before);
    }
    if (names.length) {
        ptb_text line = PTB_TEXT_INIT;
        ptb_text_printf(&line, "(left out at %zu columns: %s; all are in the HTML report)", g->limit,
                        ptb_text_string(&names));
        wrap(out, ptb_text_string(&line), 0, g->limit);
        ptb_text_release(&line);
    }
    ptb_text_release(&names);
}

static void append_group(const ptb_report *report, const ptb_table_view *view, const ptb_table_group *group,
                         size_t limit, ptb_text *out)
{
    ptb_text_append(out, "\n");
    if (*group->heading) {
        ptb_text_append(out, "# ");
        wrap_unsafe(out, group->heading, 2, limit);
    }
    if (*group->note) {
        ptb_text_append(out, "# ");
        wrap_unsafe(out, group->note, 2, limit);
    }
    grid g = {.report = report, .view = view, .group = group, .limit = limit};
    fill_cells(&g);
    fit(&g);
    // A table of one or two text columns explains itself.
    if (report->column_count > 2)
        append_heads(&g, out);
    append_rows(&g, out);
    append_left_out(&g, out);
    free_cells(&g);
}

static ptb_status append_report(ptb_store *store, const ptb_report *report, const char *runs_json,
                                size_t limit, ptb_text *out)
{
    ptb_table_view view;
    PTB_TRY(ptb_table_view_query(store, report, runs_json, &view));
    if (view.group_count || report->empty) {
        ptb_text_printf(out, "\n%s\n", report->title);
        for (size_t i = 0; report->title[i]; i++)
            ptb_text_append(out, "=");
        ptb_text_append(out, "\n");
        if (!view.group_count)
            wrap(out, report->empty, 0, limit);
        else if (report->caption)
            wrap(out, report->caption, 0, limit);
    }
    for (size_t i = 0; i < view.group_count; i++)
        append_group(report, &view, &view.groups[i], limit, out);
    ptb_table_view_release(&view);
    return PTB_OK;
}

static ptb_status append_notices(ptb_store *store, const char *runs_json, size_t limit, ptb_text *out)
{
    ptb_table *notices = NULL;
    PTB_TRY(ptb_notices_query(store, runs_json, &notices));
    for (size_t i = 0; i < notices->rows; i++) {
        bool bad = strcmp(ptb_table_cell(notices, i, 0), "bad") == 0;
        ptb_text_append(out, bad ? "!! " : "!  ");
        wrap_unsafe(out, ptb_table_cell(notices, i, 1), 3, limit);
    }
    ptb_table_free(notices);
    return PTB_OK;
}

ptb_status ptb_report_terminal(ptb_store *store, int64_t run, int width, FILE *out)
{
    size_t limit = width < WIDTH_MIN ? WIDTH_MIN : width > WIDTH_MAX ? WIDTH_MAX : (size_t)width;
    const ptb_report *reports[64];
    size_t count = ptb_reports_in_order(PTB_REPORT_TERMINAL, reports);
    ptb_text text = PTB_TEXT_INIT, runs_json = PTB_TEXT_INIT;
    ptb_format_runs(&run, 1, &runs_json);
    ptb_status status = append_notices(store, ptb_text_string(&runs_json), limit, &text);
    for (size_t i = 0; i < count && status == PTB_OK; i++)
        if (reports[i]->table_sql)
            status = append_report(store, reports[i], ptb_text_string(&runs_json), limit, &text);
    if (status == PTB_OK && (fputs(ptb_text_string(&text), out) < 0 || fflush(out) != 0) && errno != EPIPE) {
        ptb_error("cannot write the tables: %s", strerror(errno));
        status = PTB_SYSTEM;
    }
    ptb_text_release(&text);
    ptb_text_release(&runs_json);
    return status;
}
