// Growable strings, JSON literals, splitting and "did you mean".
#include "core/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void reserve(ptb_text *text, size_t more)
{
    size_t need = text->length + more + 1;
    if (need <= text->capacity)
        return;
    size_t capacity = text->capacity ? text->capacity : 128;
    while (capacity < need)
        capacity *= 2;
    char *data = realloc(text->data, capacity);
    if (!data) {
        fputs("ptbench: out of memory for text\n", stderr);
        abort();
    }
    text->data = data;
    text->capacity = capacity;
}

void ptb_text_append_bytes(ptb_text *text, const void *bytes, size_t count)
{
    reserve(text, count);
    if (count)
        memcpy(text->data + text->length, bytes, count);
    text->length += count;
    text->data[text->length] = '\0';
}

void ptb_text_append(ptb_text *text, const char *string)
{
    ptb_text_append_bytes(text, string, strlen(string));
}

void ptb_text_printf(ptb_text *text, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (length > 0) {
        reserve(text, (size_t)length);
        vsnprintf(text->data + text->length, (size_t)length + 1, format, again);
        text->length += (size_t)length;
    }
    va_end(again);
}

const char *ptb_text_string(const ptb_text *text)
{
    return text->data ? text->data : "";
}

void ptb_text_clear(ptb_text *text)
{
    text->length = 0;
    if (text->data)
        text->data[0] = '\0';
}

void ptb_text_release(ptb_text *text)
{
    free(text->data);
    *text = (ptb_text)PTB_TEXT_INIT;
}

char *ptb_text_take(ptb_text *text)
{
    reserve(text, 0); // so that an empty text is a string too
    text->data[text->length] = '\0';
    char *string = text->data;
    *text = (ptb_text)PTB_TEXT_INIT;
    return string;
}

void ptb_text_append_json(ptb_text *text, const char *string)
{
    ptb_text_append(text, "\"");
    for (const unsigned char *c = (const unsigned char *)string; *c; c++) {
        if (*c == '"' || *c == '\\')
            ptb_text_printf(text, "\\%c", *c);
        else if (*c == '\n')
            ptb_text_append(text, "\\n");
        else if (*c < 0x20)
            ptb_text_printf(text, "\\u%04x", *c);
        else
            ptb_text_append_bytes(text, c, 1);
    }
    ptb_text_append(text, "\"");
}

size_t ptb_text_split(const char *string, char separator, char **storage, const char **out, size_t max)
{
    size_t count = 0;
    char *copy = strdup(string);
    *storage = copy;
    for (char *at = copy; copy && at && count < max;) {
        char *end = strchr(at, separator);
        char *next = end ? end + 1 : NULL;
        if (!end)
            end = at + strlen(at);
        while (at < end && (*at == ' ' || *at == '\t'))
            at++;
        while (end > at && (end[-1] == ' ' || end[-1] == '\t'))
            end--;
        *end = '\0';
        out[count++] = at;
        at = next;
    }
    return count;
}

size_t ptb_text_pieces(const char *string, char separator)
{
    size_t count = 1;
    for (const char *c = string; *c; c++)
        count += *c == separator;
    return count;
}

// Levenshtein distance; words longer than 63 characters are compared by their first 63.
static int edit_distance(const char *a, const char *b)
{
    int row[64];
    int a_length = (int)strnlen(a, 63), b_length = (int)strnlen(b, 63);
    for (int j = 0; j <= b_length; j++)
        row[j] = j;
    for (int i = 1; i <= a_length; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= b_length; j++) {
            int best = diagonal + (a[i - 1] != b[j - 1]);
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[b_length];
}

// What was begun or continued is nearer than what merely has few other letters: "out" means "output".
static int distance(const char *word, const char *name)
{
    size_t w = strlen(word), n = strlen(name), shared = w < n ? w : n;
    if (shared >= 2 && w != n && strncmp(word, name, shared) == 0)
        return 1;
    return edit_distance(word, name);
}

void ptb_text_nearest(const char *word, const char *const *names, size_t count, char *out, size_t out_size)
{
    enum { SHOW_ALL = 6, SHOW = 3 };
    ptb_text text = PTB_TEXT_INIT;
    int last_distance = -1;
    size_t last_index = 0, shown = 0, wanted = count <= SHOW_ALL ? count : SHOW;
    // Selection by (distance, place), which needs no memory for the distances.
    while (shown < wanted) {
        int best = 1 << 20;
        size_t best_index = 0;
        for (size_t i = 0; i < count; i++) {
            int d = distance(word, names[i]);
            bool is_later = d > last_distance || (d == last_distance && i > last_index);
            if (is_later && d < best) {
                best = d;
                best_index = i;
            }
        }
        ptb_text_printf(&text, "%s'%s'", shown ? ", " : "", names[best_index]);
        last_distance = best;
        last_index = best_index;
        shown++;
    }
    snprintf(out, out_size, "%s", count ? ptb_text_string(&text) : "(there are none)");
    ptb_text_release(&text);
}
