// Numbers and text as reports write them; one place, so that a value looks the same on the page and in the
// terminal.
#include "reports/format.h"

#include "core/clock.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

int ptb_table_find(const ptb_table *table, const char *name)
{
    for (size_t i = 0; i < table->columns; i++)
        if (strcmp(table->names[i], name) == 0)
            return (int)i;
    return -1;
}

void ptb_format_number(double value, char out[PTB_NUMBER_BYTES])
{
    double size = fabs(value);
    if (!isfinite(value))
        snprintf(out, PTB_NUMBER_BYTES, "n/a");
    else if (size != 0 && (size < 0.0009995 || size >= 1e9))
        snprintf(out, PTB_NUMBER_BYTES, "%.3e", value);
    else if (size >= 999.95)
        snprintf(out, PTB_NUMBER_BYTES, "%.0f", value);
    else if (size >= 99.995)
        snprintf(out, PTB_NUMBER_BYTES, "%.1f", value);
    else if (size >= 9.9995)
        snprintf(out, PTB_NUMBER_BYTES, "%.2f", value);
    else if (size >= 0.09995 || size == 0)
        snprintf(out, PTB_NUMBER_BYTES, "%.3f", value);
    else
        snprintf(out, PTB_NUMBER_BYTES, "%.5f", value);
}

void ptb_format_range(double low, double high, char *out, size_t out_size)
{
    if (low == high)
        snprintf(out, out_size, "%.0f", low);
    else
        snprintf(out, out_size, "%.0f to %.0f", low, high);
}

// "64 KiB", "1000 B": the largest binary unit that divides evenly.
static void append_bytes(double bytes, ptb_text *out)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    size_t unit = 0;
    while (unit < 4 && bytes >= 1024 && fmod(bytes, 1024) == 0) {
        bytes /= 1024;
        unit++;
    }
    ptb_text_printf(out, "%.0f %s", bytes, units[unit]);
}

void ptb_format_cell(const ptb_table *table, size_t row, size_t column, ptb_cell kind, bool html,
                     ptb_text *out)
{
    double value = ptb_table_number(table, row, column);
    const char *text = ptb_table_cell(table, row, column);
    char number[PTB_NUMBER_BYTES];
    switch (kind) {
    case PTB_CELL_TEXT:
    case PTB_CELL_STATE:
        ptb_text_append(out, *text ? text : "-");
        return;
    case PTB_CELL_INTEGER:
    case PTB_CELL_BYTES:
        if (!isfinite(value))
            ptb_text_append(out, "n/a");
        else if (kind == PTB_CELL_BYTES && html)
            append_bytes(value, out);
        else
            ptb_text_printf(out, "%.0f", value);
        return;
    case PTB_CELL_NUMBER:
        ptb_format_number(value, number);
        ptb_text_append(out, number);
        return;
    case PTB_CELL_PERCENT:
        if (isfinite(value))
            ptb_text_printf(out, "%.1f", value * 100);
        else
            ptb_text_append(out, "n/a");
        return;
    case PTB_CELL_UTC: {
        char utc[24];
        if (isfinite(value))
            ptb_clock_format_utc(value, utc);
        ptb_text_append(out, isfinite(value) ? utc : "n/a");
        return;
    }
    }
}

// Length of the well-formed UTF-8 sequence at s, 0 when it is not one.
static size_t utf8_length(const unsigned char *s)
{
    size_t n = s[0] < 0x80 ? 1 : s[0] >= 0xC2 && s[0] < 0xE0 ? 2 : s[0] >= 0xE0 && s[0] < 0xF0 ? 3 : 0;
    if (s[0] >= 0xF0 && s[0] < 0xF5)
        n = 4;
    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xC0) != 0x80)
            return 0;
    if (n == 3 && ((s[0] == 0xE0 && s[1] < 0xA0) || (s[0] == 0xED && s[1] >= 0xA0)))
        return 0;
    if (n == 4 && ((s[0] == 0xF0 && s[1] < 0x90) || (s[0] == 0xF4 && s[1] >= 0x90)))
        return 0;
    return n;
}

void ptb_html_escape(ptb_text *out, const char *text)
{
    const unsigned char *s = (const unsigned char *)text;
    while (*s) {
        size_t n = utf8_length(s);
        bool control = (*s < 0x20 && *s != '\n' && *s != '\t') || *s == 0x7F;
        if (n == 2 && s[0] == 0xC2 && s[1] < 0xA0)
            control = true; // U+0080..U+009F
        if (n == 0 || control)
            ptb_text_append(out, "\xEF\xBF\xBD");
        else if (*s == '&')
            ptb_text_append(out, "&amp;");
        else if (*s == '<')
            ptb_text_append(out, "&lt;");
        else if (*s == '>')
            ptb_text_append(out, "&gt;");
        else if (*s == '"')
            ptb_text_append(out, "&quot;");
        else if (*s == '\'')
            ptb_text_append(out, "&#39;");
        else
            ptb_text_append_bytes(out, s, n);
        s += n ? n : 1;
    }
}

void ptb_ascii_append(ptb_text *out, const char *text)
{
    for (const unsigned char *s = (const unsigned char *)text; *s; s++) {
        if ((*s & 0xC0) == 0x80)
            continue; // the tail of a UTF-8 character whose head became '?'
        char c = *s == '\n' || *s == '\t' ? ' ' : *s < 0x20 || *s >= 0x7F ? '?' : (char)*s;
        ptb_text_append_bytes(out, &c, 1);
    }
}

void ptb_format_runs(const int64_t *runs, size_t count, ptb_text *out)
{
    ptb_text_append(out, "[");
    for (size_t i = 0; i < count; i++)
        ptb_text_printf(out, "%s%" PRId64, i ? "," : "", runs[i]);
    ptb_text_append(out, "]");
}
