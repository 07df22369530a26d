// Gathers rows into figures and curves, merges repetitions of a point, and splits conditions into those that
// all curves share (said once) and those that tell the curves apart (said in the legend).
#include "reports/figure.h"

#include "core/log.h"
#include "reports/format.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// Columns of the result, by name; -1 where the report has none.
typedef struct {
    int figure, series, tokens, mode, x, y, low, high, samples, case_id;
    int parts[16];
} layout;

static void *grow(void *array, size_t count, size_t item_bytes)
{
    // Doubles at each power of two; `count` is the number of items already there.
    if (count & (count - 1))
        return array;
    void *bigger = realloc(array, (count ? count * 2 : 1) * item_bytes);
    if (!bigger)
        abort(); // as core/text does: a report's few numbers do not fit
    return bigger;
}

static char *copy_text(const char *text)
{
    char *copy = strdup(text);
    if (!copy)
        abort();
    return copy;
}

static ptb_status find_layout(const ptb_report *report, const ptb_table *t, layout *at)
{
    *at = (layout){.figure = ptb_table_find(t, "figure"),
                   .series = ptb_table_find(t, "series"),
                   .tokens = ptb_table_find(t, "tokens"),
                   .mode = ptb_table_find(t, "mode"),
                   .x = ptb_table_find(t, "x"),
                   .y = ptb_table_find(t, "y"),
                   .low = ptb_table_find(t, "y_low"),
                   .high = ptb_table_find(t, "y_high"),
                   .samples = ptb_table_find(t, "samples"),
                   .case_id = ptb_table_find(t, "case_id")};
    bool complete = at->figure >= 0 && at->series >= 0 && at->tokens >= 0;
    complete = complete && (report->stored_series ? at->case_id >= 0 : at->y >= 0);
    complete = complete && (report->stored_series || report->style == PTB_FIGURE_BARS || at->x >= 0);
    for (size_t i = 0; i < report->part_count && i < 16; i++) {
        at->parts[i] = ptb_table_find(t, report->parts[i].name);
        complete = complete && at->parts[i] >= 0;
    }
    if (complete)
        return PTB_OK;
    ptb_error("report %s: its figure_sql lacks a column that reports/report.h asks for", report->plugin.name);
    return PTB_INTERNAL;
}

static double number_at(const ptb_table *t, size_t row, int column)
{
    return column < 0 ? NAN : ptb_table_number(t, row, (size_t)column);
}

static ptb_figure *figure_for(ptb_figure **figures, size_t *count, const char *title)
{
    for (size_t i = 0; i < *count; i++)
        if (strcmp((*figures)[i].title, title) == 0)
            return &(*figures)[i];
    *figures = grow(*figures, *count, sizeof **figures);
    ptb_figure *figure = &(*figures)[(*count)++];
    *figure = (ptb_figure){.title = copy_text(title),
                           .x_min = NAN,
                           .x_max = NAN,
                           .y_min = NAN,
                           .y_max = NAN,
                           .samples_min = NAN,
                           .samples_max = NAN,
                           .spread_max = NAN};
    return figure;
}

static ptb_curve *curve_for(ptb_figure *figure, const char *series, const char *tokens)
{
    for (size_t i = 0; i < figure->curve_count; i++)
        if (strcmp(figure->curves[i].series, series) == 0 && strcmp(figure->curves[i].tokens, tokens) == 0)
            return &figure->curves[i];
    figure->curves = grow(figure->curves, figure->curve_count, sizeof *figure->curves);
    ptb_curve *curve = &figure->curves[figure->curve_count++];
    *curve = (ptb_curve){.series = copy_text(series), .tokens = copy_text(tokens)};
    return curve;
}

static void add_point(ptb_curve *curve, ptb_point point)
{
    curve->points = grow(curve->points, curve->point_count, sizeof *curve->points);
    curve->points[curve->point_count++] = point;
}

// The runner chooses the mode by case when not told to, so one curve may have points of both.
static void add_mode(ptb_curve *curve, const char *mode)
{
    if (!*mode || (curve->modes && strstr(curve->modes, mode)))
        return;
    ptb_text text = PTB_TEXT_INIT;
    // In one order, whichever came first: the text must be the same for curves with the same modes.
    bool first = curve->modes && strcmp(mode, curve->modes) < 0;
    ptb_text_append(&text, first ? mode : curve->modes ? curve->modes : "");
    ptb_text_append(&text, curve->modes ? " and " : "");
    ptb_text_append(&text, first ? curve->modes : mode);
    free(curve->modes);
    curve->modes = copy_text(ptb_text_string(&text));
    ptb_text_release(&text);
}

// Makes the modes a token like any other.
static void append_mode_token(ptb_curve *curve)
{
    ptb_text text = PTB_TEXT_INIT;
    ptb_text_printf(&text, "%s\x1f%s mode", curve->tokens, curve->modes);
    free(curve->tokens);
    curve->tokens = copy_text(ptb_text_string(&text));
    ptb_text_release(&text);
}

static ptb_status add_stored_series(ptb_store *store, const ptb_report *report, int64_t case_id,
                                    ptb_curve *curve)
{
    double *values = NULL;
    size_t count = 0;
    PTB_TRY(ptb_store_series(store, case_id, report->stored_series, &values, &count));
    for (size_t i = 0; i < count; i++)
        if (isfinite(values[i]))
            add_point(curve, (ptb_point){(double)i, values[i], NAN, NAN, 1});
    free(values);
    return PTB_OK;
}

static ptb_status add_row(ptb_store *store, const ptb_report *report, const ptb_table *t, const layout *at,
                          size_t row, ptb_figure *figure)
{
    ptb_curve *curve = curve_for(figure, ptb_table_cell(t, row, (size_t)at->series),
                                 ptb_table_cell(t, row, (size_t)at->tokens));
    if (at->mode >= 0)
        add_mode(curve, ptb_table_cell(t, row, (size_t)at->mode));
    double samples = number_at(t, row, at->samples);
    figure->samples_min = fmin(figure->samples_min, samples);
    figure->samples_max = fmax(figure->samples_max, samples);
    if (report->stored_series)
        return add_stored_series(store, report, (int64_t)number_at(t, row, at->case_id), curve);
    bool bars = report->style == PTB_FIGURE_BARS;
    ptb_point point = {bars ? 0 : number_at(t, row, at->x), number_at(t, row, at->y),
                       number_at(t, row, at->low), number_at(t, row, at->high), 1};
    if (isfinite(point.x) && isfinite(point.y))
        add_point(curve, point);
    if (!bars || curve->parts)
        return PTB_OK;
    curve->parts = malloc((report->part_count + 1) * sizeof *curve->parts);
    if (!curve->parts)
        return PTB_NO_MEMORY;
    for (size_t i = 0; i < report->part_count; i++)
        curve->parts[i] = number_at(t, row, at->parts[i]);
    return PTB_OK;
}

static int by_x_then_y(const void *a, const void *b)
{
    const ptb_point *p = a, *q = b;
    if (p->x != q->x)
        return p->x < q->x ? -1 : 1;
    return (p->y > q->y) - (p->y < q->y);
}

// Sorts by x and replaces points of one x by their median, with the widest interval.
static void merge_repetitions(ptb_curve *curve)
{
    if (curve->point_count == 0)
        return;
    qsort(curve->points, curve->point_count, sizeof *curve->points, by_x_then_y);
    size_t out = 0;
    for (size_t i = 0; i < curve->point_count;) {
        size_t end = i;
        double low = NAN, high = NAN;
        for (; end < curve->point_count && curve->points[end].x == curve->points[i].x; end++) {
            low = fmin(low, curve->points[end].low);
            high = fmax(high, curve->points[end].high);
        }
        size_t n = end - i;
        double y = (curve->points[i + (n - 1) / 2].y + curve->points[i + n / 2].y) / 2;
        if (n > 1 && isnan(low)) {
            low = curve->points[i].y;
            high = curve->points[end - 1].y;
        }
        curve->points[out++] = (ptb_point){curve->points[i].x, y, low, high, n};
        i = end;
    }
    curve->point_count = out;
}

static void measure_figure(ptb_figure *figure)
{
    for (size_t c = 0; c < figure->curve_count; c++) {
        const ptb_curve *curve = &figure->curves[c];
        if (curve->point_count > figure->most_points)
            figure->most_points = curve->point_count;
        for (size_t i = 0; i < curve->point_count; i++) {
            const ptb_point *p = &curve->points[i];
            figure->x_min = fmin(figure->x_min, p->x);
            figure->x_max = fmax(figure->x_max, p->x);
            figure->y_min = fmin(figure->y_min, fmin(p->y, p->low));
            figure->y_max = fmax(figure->y_max, fmax(p->y, p->high));
            double spread = fmax(p->high - p->y, p->y - p->low) / fabs(p->y);
            if (isfinite(spread))
                figure->spread_max = fmax(figure->spread_max, spread);
            if (p->repetitions > figure->repetitions_max)
                figure->repetitions_max = p->repetitions;
        }
    }
}

static bool has_token(const char *tokens, const char *token, size_t length)
{
    for (const char *at = tokens;;) {
        size_t span = strcspn(at, "\x1f");
        if (span == length && memcmp(at, token, length) == 0)
            return true;
        if (!at[span])
            return false;
        at += span + 1;
    }
}

static bool all_have_token(const ptb_figure *figure, const char *token, size_t length)
{
    for (size_t i = 0; i < figure->curve_count; i++)
        if (!has_token(figure->curves[i].tokens, token, length))
            return false;
    return true;
}

// Appends those tokens of `tokens` that all curves share (or do not), separated by ", ".
static void append_tokens(const ptb_figure *figure, const char *tokens, bool shared, ptb_text *out)
{
    for (const char *at = tokens; *at;) {
        size_t span = strcspn(at, "\x1f");
        if (span && all_have_token(figure, at, span) == shared) {
            ptb_text_append(out, out->length ? ", " : "");
            ptb_text_append_bytes(out, at, span);
        }
        at += span + (at[span] != '\0');
    }
}

static void name_curves(ptb_figure *figure)
{
    for (size_t i = 0; i < figure->curve_count; i++) {
        ptb_curve *curve = &figure->curves[i];
        ptb_text name = PTB_TEXT_INIT;
        ptb_text_append(&name, curve->series);
        append_tokens(figure, curve->tokens, false, &name);
        curve->name = copy_text(ptb_text_string(&name));
        ptb_text_release(&name);
    }
}

static void state_conditions(ptb_figure *figure)
{
    ptb_text text = PTB_TEXT_INIT;
    append_tokens(figure, figure->curves[0].tokens, true, &text);
    if (isfinite(figure->samples_min)) {
        char range[64];
        ptb_format_range(figure->samples_min, figure->samples_max, range, sizeof range);
        ptb_text_printf(&text, "; %s %s", range, figure->samples_max == 1 ? "sample" : "samples");
    }
    if (isfinite(figure->spread_max))
        ptb_text_printf(&text, "; widest interval \xC2\xB1%.*f %%", figure->spread_max < 0.1 ? 1 : 0,
                        figure->spread_max * 100);
    if (figure->repetitions_max > 1)
        ptb_text_printf(&text, "; up to %zu repetitions a point", figure->repetitions_max);
    figure->conditions = copy_text(ptb_text_string(&text));
    ptb_text_release(&text);
}

static void free_curve(ptb_curve *curve)
{
    free(curve->series);
    free(curve->tokens);
    free(curve->modes);
    free(curve->name);
    free(curve->points);
    free(curve->parts);
}

// Curves without a point and figures without a curve are not drawn.
static void drop_empty(ptb_figure *figures, size_t *count)
{
    size_t kept_figures = 0;
    for (size_t f = 0; f < *count; f++) {
        ptb_figure *figure = &figures[f];
        size_t kept = 0;
        for (size_t c = 0; c < figure->curve_count; c++) {
            if (figure->curves[c].point_count)
                figure->curves[kept++] = figure->curves[c];
            else
                free_curve(&figure->curves[c]);
        }
        figure->curve_count = kept;
        if (kept) {
            figures[kept_figures++] = *figure;
        } else {
            free(figure->title);
            free(figure->curves);
        }
    }
    *count = kept_figures;
}

ptb_status ptb_figures_query(ptb_store *store, const ptb_report *report, const char *runs_json,
                             ptb_figure **figures, size_t *count)
{
    ptb_table *table = NULL;
    layout at;
    ptb_figure *list = NULL;
    size_t n = 0;
    PTB_TRY(ptb_store_query(store, report->figure_sql, &runs_json, 1, &table));
    ptb_status status = find_layout(report, table, &at);
    for (size_t row = 0; row < table->rows && status == PTB_OK; row++) {
        ptb_figure *figure = figure_for(&list, &n, ptb_table_cell(table, row, (size_t)at.figure));
        status = add_row(store, report, table, &at, row, figure);
    }
    ptb_table_free(table);
    if (status == PTB_OK)
        drop_empty(list, &n);
    for (size_t f = 0; f < n && status == PTB_OK; f++) {
        for (size_t c = 0; c < list[f].curve_count; c++) {
            merge_repetitions(&list[f].curves[c]);
            if (list[f].curves[c].modes)
                append_mode_token(&list[f].curves[c]);
        }
        measure_figure(&list[f]);
        name_curves(&list[f]);
        state_conditions(&list[f]);
    }
    if (status != PTB_OK) {
        ptb_figures_free(list, n);
        return status;
    }
    *figures = list;
    *count = n;
    return PTB_OK;
}

void ptb_figures_free(ptb_figure *figures, size_t count)
{
    for (size_t f = 0; f < count; f++) {
        for (size_t c = 0; c < figures[f].curve_count; c++)
            free_curve(&figures[f].curves[c]);
        free(figures[f].curves);
        free(figures[f].title);
        free(figures[f].conditions);
    }
    free(figures);
}
