// Text: a growable buffer, sizes and lists as users write them, and "did you mean". Numbers are read and
// written with a decimal point whatever the locale (the program never calls setlocale; tests run it under a
// decimal-comma locale).
#ifndef PTB_CORE_TEXT_H
#define PTB_CORE_TEXT_H

#include "core/status.h"

#include <stddef.h>
#include <stdint.h>

// A growable, always NUL-terminated string. Zero-initialise with PTB_TEXT_INIT; release when done.
typedef struct {
    char *data; // never NULL after the first append; use ptb_text_string() to read safely
    size_t length, capacity;
} ptb_text;
#define PTB_TEXT_INIT                                                                                        \
    {                                                                                                        \
        NULL, 0, 0                                                                                           \
    }

// Appends; aborts the process when memory for text runs out.
void ptb_text_append(ptb_text *text, const char *string);
void ptb_text_append_bytes(ptb_text *text, const void *bytes, size_t count);
void ptb_text_printf(ptb_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
// "" when empty. Valid until the next append or release.
const char *ptb_text_string(const ptb_text *text);
void ptb_text_clear(ptb_text *text);
void ptb_text_release(ptb_text *text);
// The heap string itself, "" when empty; `text` is empty afterwards. Never NULL: aborts without memory.
char *ptb_text_take(ptb_text *text);

// Parses "8", "64K", "1.5M", "2GiB", "1g": binary suffixes K M G T (x1024), optional i/iB/B. Exact integers
// only: a fraction must come out whole. False (nothing logged, *bytes untouched) on anything else, including
// overflow.
bool ptb_text_parse_size(const char *string, uint64_t *bytes);
// Parses a whole number / a finite decimal number; the entire string must be consumed.
bool ptb_text_parse_int(const char *string, int64_t *value);
bool ptb_text_parse_double(const char *string, double *value);
// "8", "64K", "1M", "1000": the shortest exact form, with a suffix only where it divides evenly by 1024.
void ptb_text_format_size(uint64_t bytes, char *out, size_t out_size);
// "412 ns", "5.21 us", "14.2 ms", "3.2 s": three significant digits.
void ptb_text_format_ns(double ns, char *out, size_t out_size);

// Appends a number with a decimal point whatever the locale: `decimals` places, or with decimals < 0 the
// shortest form that reads back as the same double. Not finite: "n/a".
void ptb_text_append_number(ptb_text *text, double value, int decimals);

// Splits at `separator`, trimming blanks; *out points into *storage, a heap copy that the caller frees.
// Pieces beyond `max` are left out; who may get more compares with ptb_text_pieces first.
size_t ptb_text_split(const char *string, char separator, char **storage, const char **out, size_t max);
// Pieces that a split without a limit gives: separators + 1.
size_t ptb_text_pieces(const char *string, char separator);

// Writes up to three names closest to `word` by edit distance (a beginning counts as distance 1): "'ring',
// 'tree'"; all names when there are at most six.
void ptb_text_nearest(const char *word, const char *const *names, size_t count, char *out, size_t out_size);

// Appends a JSON string literal (quotes and escapes included).
void ptb_text_append_json(ptb_text *text, const char *string);

#endif
