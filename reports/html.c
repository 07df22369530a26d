// The HTML page: one self-contained file with inline styles (page.css) and figures, readable without
// JavaScript, on paper and in dark surroundings. Every text from the database passes ptb_html_escape.
#include "reports/render.h"

#include "core/log.h"
#include "reports/format.h"
#include "reports/gnuplot.h"
#include "reports/view.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

extern const char ptb_css_page[];

enum { REPORTS_MAX = 64, PATH_BYTES = 4096 };

typedef struct {
    const ptb_report *report;
    ptb_table_view view; // empty when the report has no table
    ptb_figure *figures;
    size_t figure_count;
    ptb_drawing *drawings; // [figure_count], inside page.drawings
} section;

typedef struct {
    section sections[REPORTS_MAX];
    size_t section_count;
    ptb_drawing *drawings;
    size_t drawing_count;
    ptb_table *runs; // name, simulated of each run, in the order asked for
    ptb_table *notices;
} page;

static const char runs_sql[] = "SELECT CASE WHEN label IS NULL OR label = '' THEN 'run ' || run.id ELSE "
                               "label || ' (run ' || run.id || ')' END"
                               " AS name FROM json_each(?1) AS j JOIN run ON run.id = j.value ORDER BY j.key";

static void page_release(page *p)
{
    for (size_t i = 0; i < p->section_count; i++) {
        ptb_table_view_release(&p->sections[i].view);
        ptb_figures_free(p->sections[i].figures, p->sections[i].figure_count);
    }
    for (size_t i = 0; i < p->drawing_count; i++)
        free(p->drawings[i].svg);
    free(p->drawings);
    ptb_table_free(p->runs);
    ptb_table_free(p->notices);
}

static ptb_status load_section(ptb_store *store, const ptb_report *report, const char *runs_json, page *p)
{
    section made = {.report = report, .view = {.state = -1}};
    if (report->table_sql)
        PTB_TRY(ptb_table_view_query(store, report, runs_json, &made.view));
    if (report->figure_sql) {
        ptb_status status = ptb_figures_query(store, report, runs_json, &made.figures, &made.figure_count);
        if (status != PTB_OK) {
            ptb_table_view_release(&made.view);
            return status;
        }
    }
    p->drawing_count += made.figure_count;
    p->sections[p->section_count++] = made;
    return PTB_OK;
}

static ptb_status plan_drawings(page *p)
{
    size_t count = p->drawing_count, at = 0;
    p->drawing_count = 0;
    p->drawings = calloc(count + 1, sizeof *p->drawings);
    if (!p->drawings)
        return PTB_NO_MEMORY;
    for (size_t s = 0; s < p->section_count; s++) {
        section *sec = &p->sections[s];
        sec->drawings = p->drawings + at;
        for (size_t f = 0; f < sec->figure_count; f++, at++) {
            p->drawings[at] = (ptb_drawing){.report = sec->report, .figure = &sec->figures[f]};
            snprintf(p->drawings[at].name, sizeof p->drawings[at].name, "%s-%zu", sec->report->plugin.name,
                     f + 1);
        }
    }
    p->drawing_count = at;
    return PTB_OK;
}

static ptb_status page_load(ptb_store *store, const char *runs_json, page *p)
{
    const ptb_report *reports[REPORTS_MAX];
    size_t count = ptb_reports_in_order(PTB_REPORT_HTML, reports);
    PTB_TRY(ptb_store_query(store, runs_sql, &runs_json, 1, &p->runs));
    PTB_TRY(ptb_notices_query(store, runs_json, &p->notices));
    for (size_t i = 0; i < count; i++)
        PTB_TRY(load_section(store, reports[i], runs_json, p));
    return plan_drawings(p);
}

static bool section_is_empty(const section *s)
{
    return s->figure_count == 0 && s->view.group_count == 0;
}

static bool section_is_shown(const section *s)
{
    return !section_is_empty(s) || s->report->empty;
}

// Heads are written in ASCII by the reports; a page can do better.
static void append_head(ptb_text *out, const char *text)
{
    if (strcmp(text, "+-") == 0)
        ptb_text_append(out, "&plusmn;");
    else if (strcmp(text, "us") == 0)
        ptb_text_append(out, "&micro;s");
    else if (strcmp(text, "95 % us") == 0)
        ptb_text_append(out, "95 % &micro;s");
    else
        ptb_html_escape(out, text);
}

// Sentences: the same, and no line break before a per cent sign.
static void append_prose(ptb_text *out, const char *text)
{
    ptb_text better = PTB_TEXT_INIT;
    for (const char *at = text; *at;) {
        bool percent = at[0] == ' ' && at[1] == '%', spread = at[0] == '+' && at[1] == '-';
        if (percent || spread)
            ptb_text_append(&better, percent ? "\xC2\xA0%" : "\xC2\xB1");
        else
            ptb_text_append_bytes(&better, at, 1);
        at += percent || spread ? 2 : 1;
    }
    ptb_html_escape(out, ptb_text_string(&better));
    ptb_text_release(&better);
}

static bool is_numeric(ptb_cell cell)
{
    return cell != PTB_CELL_TEXT && cell != PTB_CELL_STATE && cell != PTB_CELL_UTC;
}

// The row of heads that span neighbouring columns; written only where a column has one.
static void append_over_row(const ptb_report *report, const ptb_table_group *group, ptb_text *out)
{
    bool any = false;
    for (size_t i = 0; i < report->column_count; i++)
        any = any || (group->shown[i] && report->columns[i].over);
    if (!any)
        return;
    ptb_text_append(out, "<tr>");
    for (size_t i = 0; i < report->column_count;) {
        const char *over = report->columns[i].over;
        size_t span = 0, next = i;
        for (; next < report->column_count; next++) {
            const char *other = report->columns[next].over;
            if (next > i && !(over && other && strcmp(over, other) == 0))
                break;
            span += group->shown[next];
        }
        if (span && over) {
            ptb_text_printf(out, "<th colspan=\"%zu\" scope=\"colgroup\" class=\"over\">", span);
            ptb_html_escape(out, over);
            ptb_text_append(out, "</th>");
        } else if (span) {
            ptb_text_append(out, "<td></td>");
        }
        i = next;
    }
    ptb_text_append(out, "</tr>\n");
}

static void append_table_head(const ptb_report *report, const ptb_table_group *group, ptb_text *out)
{
    ptb_text_append(out, "<thead>\n");
    append_over_row(report, group, out);
    ptb_text_append(out, "<tr>");
    for (size_t i = 0; i < report->column_count; i++) {
        const ptb_report_column *column = &report->columns[i];
        if (!group->shown[i])
            continue;
        ptb_text_printf(out, "<th scope=\"col\"%s>", is_numeric(column->cell) ? " class=\"n\"" : "");
        append_head(out, column->title);
        if (column->unit && column->cell != PTB_CELL_BYTES) { // the cell says it
            ptb_text_append(out, "<br><small>");
            append_head(out, column->unit);
            ptb_text_append(out, "</small>");
        }
        ptb_text_append(out, "</th>");
    }
    ptb_text_append(out, "</tr>\n</thead>\n");
}

static void append_row(const section *s, const ptb_table_group *group, size_t row, ptb_text *out)
{
    const ptb_table *table = s->view.table;
    const char *state = s->view.state < 0 ? "ok" : ptb_table_cell(table, row, (size_t)s->view.state);
    bool bad = strcmp(state, "wrong") == 0 || strcmp(state, "failed") == 0;
    ptb_text_append(out, bad ? "<tr class=\"bad\">" : "<tr>");
    ptb_text cell = PTB_TEXT_INIT;
    for (size_t i = 0; i < s->report->column_count; i++) {
        if (!group->shown[i])
            continue;
        ptb_cell kind = s->report->columns[i].cell;
        ptb_text_clear(&cell);
        ptb_format_cell(table, row, (size_t)s->view.column[i], kind, true, &cell);
        bool missing = strcmp(ptb_text_string(&cell), "n/a") == 0;
        ptb_text_printf(out, "<td%s%s>", is_numeric(kind) ? missing ? " class=\"n na\"" : " class=\"n\"" : "",
                        kind == PTB_CELL_STATE ? " class=\"state\"" : "");
        ptb_html_escape(out, ptb_text_string(&cell));
        ptb_text_append(out, "</td>");
    }
    ptb_text_release(&cell);
    ptb_text_append(out, "</tr>\n");
}

static void append_group(const section *s, const ptb_table_group *group, ptb_text *out)
{
    if (*group->heading) {
        ptb_text_append(out, "<h3>");
        ptb_html_escape(out, group->heading);
        ptb_text_append(out, "</h3>\n");
    }
    if (*group->note) {
        ptb_text_append(out, "<p class=\"note\">");
        append_prose(out, group->note);
        ptb_text_append(out, "</p>\n");
    }
    // Focusable, so that a wide table can be scrolled with the keyboard.
    ptb_text_append(out, "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Table: ");
    ptb_html_escape(out, *group->heading ? group->heading : s->report->title);
    ptb_text_printf(out, "\">\n<table class=\"%s\">\n", s->report->plugin.name);
    append_table_head(s->report, group, out);
    ptb_text_append(out, "<tbody>\n");
    for (size_t r = group->first; r < group->first + group->rows; r++)
        append_row(s, group, r, out);
    ptb_text_append(out, "</tbody>\n</table>\n</div>\n");
}

static void append_figure(const ptb_drawing *d, ptb_text *out)
{
    ptb_text_printf(out, "<figure id=\"%s\">\n<figcaption><strong>", d->name);
    ptb_html_escape(out, d->figure->title);
    ptb_text_append(out, "</strong> <span>");
    append_prose(out, d->figure->conditions);
    ptb_text_printf(out, "</span> <a href=\"%s.png\">PNG</a></figcaption>\n", d->name);
    const char *inside = strchr(d->svg, '>'); // of the <svg> tag
    ptb_text_append(out, "<svg role=\"img\" aria-label=\"");
    ptb_html_escape(out, d->report->plugin.summary);
    ptb_text_append(out, ": ");
    ptb_html_escape(out, d->figure->title);
    ptb_text_append(out, "\"");
    ptb_text_append_bytes(out, d->svg + 4, (size_t)(inside - d->svg) - 4);
    ptb_text_append(out, inside);
    ptb_text_append(out, "</figure>\n");
}

static void append_section(const section *s, ptb_text *out)
{
    const char *name = s->report->plugin.name;
    bool folded = s->report->where & PTB_REPORT_FOLDED;
    ptb_text_printf(out, "<section id=\"%s\">\n<h2>", name);
    ptb_html_escape(out, s->report->title);
    ptb_text_append(out, "</h2>\n");
    if (section_is_empty(s)) {
        ptb_text_append(out, "<p>");
        ptb_html_escape(out, s->report->empty);
        ptb_text_append(out, "</p>\n</section>\n");
        return;
    }
    if (s->report->caption) {
        ptb_text_append(out, "<p class=\"caption\">");
        append_prose(out, s->report->caption);
        ptb_text_append(out, "</p>\n");
    }
    for (size_t f = 0; f < s->figure_count; f++)
        append_figure(&s->drawings[f], out);
    ptb_text_append(out, folded ? "<details>\n<summary>Show</summary>\n" : "");
    for (size_t g = 0; g < s->view.group_count; g++)
        append_group(s, &s->view.groups[g], out);
    ptb_text_append(out, folded ? "</details>\n</section>\n" : "</section>\n");
}

static void append_contents(const page *p, ptb_text *out)
{
    ptb_text_append(out, "<nav aria-label=\"Contents\">\n<h2>Contents</h2>\n<ol>\n");
    for (size_t i = 0; i < p->section_count; i++) {
        const section *s = &p->sections[i];
        if (!section_is_shown(s))
            continue;
        ptb_text_printf(out, "<li><a href=\"#%s\">", s->report->plugin.name);
        ptb_html_escape(out, s->report->title);
        ptb_text_append(out, "</a>");
        if (s->figure_count) {
            ptb_text_append(out, "\n<ul>\n");
            for (size_t f = 0; f < s->figure_count; f++) {
                ptb_text_printf(out, "<li><a href=\"#%s\">", s->drawings[f].name);
                ptb_html_escape(out, s->figures[f].title);
                ptb_text_append(out, "</a></li>\n");
            }
            ptb_text_append(out, "</ul>\n");
        }
        ptb_text_append(out, "</li>\n");
    }
    ptb_text_append(out, "</ol>\n</nav>\n");
}

static void append_run_names(const page *p, ptb_text *out)
{
    for (size_t i = 0; i < p->runs->rows; i++) {
        ptb_text_append(out, i ? ", " : "");
        ptb_html_escape(out, ptb_table_cell(p->runs, i, 0));
    }
}

static void append_page(const page *p, ptb_text *out)
{
    ptb_text_append(out, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                         "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
                         "<meta name=\"color-scheme\" content=\"light dark\">\n<title>ptbench report: ");
    append_run_names(p, out);
    // An icon of no bytes keeps browsers from asking for one.
    ptb_text_append(out, "</title>\n<link rel=\"icon\" href=\"data:,\">\n<style>\n");
    ptb_text_append(out, ptb_css_page);
    ptb_text_append(out, "</style>\n</head>\n<body>\n<header>\n<h1>ptbench report</h1>\n<p class=\"runs\">");
    append_run_names(p, out);
    ptb_text_append(out, "</p>\n");
    for (size_t i = 0; i < p->notices->rows; i++) {
        bool bad = strcmp(ptb_table_cell(p->notices, i, 0), "bad") == 0;
        ptb_text_append(out, bad ? "<p class=\"notice bad\">" : "<p class=\"notice\">");
        ptb_html_escape(out, ptb_table_cell(p->notices, i, 1));
        ptb_text_append(out, "</p>\n");
    }
    ptb_text_append(out, "</header>\n");
    append_contents(p, out);
    ptb_text_append(out, "<main>\n");
    for (size_t i = 0; i < p->section_count; i++)
        if (section_is_shown(&p->sections[i]))
            append_section(&p->sections[i], out);
    ptb_text_append(out,
                    "</main>\n<footer><p>Made by ptbench " PTB_VERSION ".</p></footer>\n</body>\n</html>\n");
}

// Written aside and renamed, so that a reader never sees half a page.
static ptb_status write_page(const char *path, const char *text)
{
    char aside[PATH_BYTES + 8];
    snprintf(aside, sizeof aside, "%s.part", path);
    FILE *file = fopen(aside, "we");
    bool written = file && fputs(text, file) >= 0;
    if (file && fclose(file) != 0)
        written = false;
    if (written && rename(aside, path) == 0)
        return PTB_OK;
    ptb_error("cannot write the report %s: %s", path, strerror(errno));
    unlink(aside);
    return PTB_STORE;
}

// mkdir -p.
static ptb_status make_folder(const char *folder)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s", folder);
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0777);
        *slash = '/';
    }
    struct stat info;
    if ((mkdir(path, 0777) == 0 || errno == EEXIST) && stat(path, &info) == 0 && S_ISDIR(info.st_mode))
        return PTB_OK;
    ptb_error("cannot make the folder %s for the report: %s", folder,
              strerror(errno == EEXIST ? ENOTDIR : errno));
    return PTB_STORE;
}

// Pictures of an earlier, larger report would pass for this one's.
static void remove_stale(const page *p, const char *folder)
{
    char path[PATH_BYTES];
    for (size_t s = 0; s < p->section_count; s++)
        for (size_t n = p->sections[s].figure_count + 1;; n++) {
            int length =
                snprintf(path, sizeof path, "%s/%s-%zu.png", folder, p->sections[s].report->plugin.name, n);
            if (length >= (int)sizeof path || unlink(path) != 0)
                break;
        }
}

ptb_status ptb_report_html(ptb_store *store, const int64_t *runs, size_t run_count, const char *folder,
                           char *html_path, size_t html_path_size)
{
    if (strlen(folder) > PATH_BYTES - 128) {
        ptb_error("the path of the report's folder is too long");
        return PTB_USAGE;
    }
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/index.html", folder);
    ptb_text runs_json = PTB_TEXT_INIT, out = PTB_TEXT_INIT;
    ptb_format_runs(runs, run_count, &runs_json);
    page p = {0};
    ptb_status status = page_load(store, ptb_text_string(&runs_json), &p);
    if (status == PTB_OK)
        status = make_folder(folder);
    if (status == PTB_OK)
        status = ptb_gnuplot_draw(p.drawings, p.drawing_count, folder);
    if (status == PTB_OK) {
        append_page(&p, &out);
        status = write_page(path, ptb_text_string(&out));
    }
    if (status == PTB_OK) {
        remove_stale(&p, folder);
        snprintf(html_path, html_path_size, "%s", path);
    }
    page_release(&p);
    ptb_text_release(&out);
    ptb_text_release(&runs_json);
    return status;
}
