// What the exporters share. Exporters themselves are results/exporter_NAME.c.
#include "results/export.h"

#include "core/log.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void ptb_export_number(ptb_text *text, double value, const char *otherwise)
{
    if (!isfinite(value)) {
        ptb_text_append(text, otherwise);
        return;
    }
    char digits[40];
    for (int precision = 15; precision <= 17; precision++) {
        snprintf(digits, sizeof digits, "%.*g", precision, value);
        if (strtod(digits, NULL) == value) // both in the same locale
            break;
    }
    const char *point = localeconv()->decimal_point;
    char *at = *point && strcmp(point, ".") != 0 ? strstr(digits, point) : NULL;
    if (at) {
        *at = '.';
        memmove(at + 1, at + strlen(point), strlen(at + strlen(point)) + 1);
    }
    ptb_text_append(text, digits);
}

ptb_status ptb_export_query(ptb_store *store, const char *sql, int64_t id, ptb_table **table)
{
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)id);
    const char *args[] = {text};
    return ptb_store_query(store, sql, args, 1, table);
}

ptb_status ptb_export_flush(ptb_text *text, FILE *out)
{
    bool failed = text->length && fwrite(text->data, 1, text->length, out) != text->length;
    failed = fflush(out) != 0 || failed;
    ptb_text_clear(text);
    if (!failed || errno == EPIPE) // nobody reads any more (`| head`): no error
        return PTB_OK;
    ptb_error("cannot write the export: %s", strerror(errno));
    return PTB_SYSTEM;
}
