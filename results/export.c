// What the exporters share. Exporters themselves are results/exporter_NAME.c.
#include "results/export.h"

#include "core/log.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void ptb_export_number(ptb_text *text, double value, const char *otherwise)
{
    if (!isfinite(value)) {
        ptb_text_append(text, otherwise);
        return;
    }
    ptb_text_append_number(text, value, -1);
}

bool ptb_export_is_number(const char *column)
{
    static const char *const texts[] = {"uuid",   "state",   "reason",       "command",     "selection",
                                        "label",  "version", "git_revision", "fingerprint", "launcher",
                                        "key",    "bench",   "mode",         "combine",     "stopped",
                                        "detail", "name",    "unit",         "convention",  "better"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (strcmp(column, texts[i]) == 0)
            return false;
    return true;
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
    return PTB_STORE;
}
