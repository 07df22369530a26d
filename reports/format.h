// Numbers and text as reports write them.
#ifndef PTB_REPORTS_FORMAT_H
#define PTB_REPORTS_FORMAT_H

#include "core/text.h"
#include "reports/report.h"
#include "results/store.h"

// Column of this name, -1 when there is none.
int ptb_table_find(const ptb_table *table, const char *name);

enum { PTB_NUMBER_BYTES = 40 };
// Four significant digits without exponent between 0.001 and 1e9; "n/a" for what is not finite.
void ptb_format_number(double value, char out[PTB_NUMBER_BYTES]);
// "17" or "5 to 17".
void ptb_format_range(double low, double high, char *out, size_t out_size);
// A cell of a table as plain text (no escaping). `html` chooses the page's form of byte counts.
void ptb_format_cell(const ptb_table *table, size_t row, size_t column, ptb_cell kind, bool html,
                     ptb_text *out);

// Appends with & < > " ' escaped; control characters other than newline become U+FFFD, as do bytes that are
// not UTF-8.
void ptb_html_escape(ptb_text *out, const char *text);
// Appends for a terminal: control and non-ASCII characters become '?', newlines blanks.
void ptb_ascii_append(ptb_text *out, const char *text);
// "[1,2]"
void ptb_format_runs(const int64_t *runs, size_t count, ptb_text *out);

#endif
