// Which run a user means: an id, the first characters of a UUID, a label, "last", "last~2".
#include "results/store_internal.h"

#include "core/log.h"
#include "core/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NEAR_BYTES = 256, MIN_PREFIX = 3 };

// Newest first, as "last" counts.
static const char newest_first[] = "SELECT id, uuid, label FROM run ORDER BY started_utc_s DESC, id DESC";

static ptb_status not_found(const ptb_table *runs, const char *text)
{
    const char **names = calloc(2 * runs->rows + 1, sizeof *names);
    char(*prefixes)[9] = calloc(runs->rows + 1, sizeof *prefixes);
    char near[NEAR_BYTES] = "";
    size_t count = 0;
    for (size_t i = 0; names && prefixes && i < runs->rows; i++) {
        const char *label = ptb_table_cell(runs, i, 2);
        bool is_repeated = !*label;
        for (size_t j = 0; j < count && !is_repeated; j++)
            is_repeated = strcmp(names[j], label) == 0;
        if (!is_repeated)
            names[count++] = label;
        snprintf(prefixes[i], sizeof prefixes[i], "%s", ptb_table_cell(runs, i, 1));
        names[count++] = prefixes[i];
    }
    if (names && prefixes)
        ptb_text_nearest(text, names, count, near, sizeof near);
    ptb_error("there is no run '%s'; nearest: %s. A run is named by its number, the first characters of its "
              "UUID, its label, 'last' or 'last~N' (see `ptbench runs`)",
              text, near);
    free(names);
    free(prefixes);
    return PTB_USAGE;
}

static ptb_status ambiguous(const ptb_table *runs, const char *prefix)
{
    ptb_text list = PTB_TEXT_INIT;
    size_t shown = 0;
    for (size_t i = 0; i < runs->rows; i++)
        if (strncasecmp(ptb_table_cell(runs, i, 1), prefix, strlen(prefix)) == 0 && shown++ < 6)
            ptb_text_printf(&list, "%s'%s'", shown > 1 ? ", " : "", ptb_table_cell(runs, i, 1));
    ptb_error("'%s' begins the UUID of %zu runs: %s%s; type more of it", prefix, shown,
              ptb_text_string(&list), shown > 6 ? ", ..." : "");
    ptb_text_release(&list);
    return PTB_USAGE;
}

// "last" is 0, "last~N" is N; false for anything else.
static bool parse_last(const char *text, int64_t *back)
{
    if (strcmp(text, "last") == 0) {
        *back = 0;
        return true;
    }
    return strncmp(text, "last~", 5) == 0 && ptb_text_parse_int(text + 5, back) && *back >= 0;
}

// Row of the run, or rows when there is none. *matches counts UUIDs with this prefix.
static size_t look_up(const ptb_table *runs, const char *text, size_t *matches)
{
    size_t row = runs->rows, length = strlen(text);
    *matches = 0;
    int64_t id;
    if (ptb_text_parse_int(text, &id))
        for (size_t i = 0; i < runs->rows; i++)
            if ((int64_t)ptb_table_number(runs, i, 0) == id)
                return i;
    for (size_t i = 0; i < runs->rows; i++) // a label may be used again: the newest run has it
        if (runs->cells[i * runs->columns + 2] && strcmp(ptb_table_cell(runs, i, 2), text) == 0)
            return i;
    for (size_t i = 0; length >= MIN_PREFIX && i < runs->rows; i++)
        if (strncasecmp(ptb_table_cell(runs, i, 1), text, length) == 0) {
            row = i;
            ++*matches;
        }
    return row;
}

ptb_status ptb_store_find_run(ptb_store *store, const char *text, int64_t *run)
{
    ptb_table *runs;
    PTB_TRY(ptb_store_query(store, newest_first, NULL, 0, &runs));
    ptb_status status = PTB_OK;
    int64_t back;
    size_t matches = 0, row;
    if (runs->rows == 0) {
        ptb_error("the database '%s' holds no run yet; measure with `ptbench run`", store->file);
        status = PTB_USAGE;
    } else if (parse_last(text, &back)) {
        row = (uint64_t)back < runs->rows ? (size_t)back : runs->rows;
        if (row == runs->rows) {
            ptb_error("there is no run '%s': the database '%s' holds %zu, so the oldest is 'last~%zu'", text,
                      store->file, runs->rows, runs->rows - 1);
            status = PTB_USAGE;
        }
    } else {
        row = look_up(runs, text, &matches);
        if (matches > 1)
            status = ambiguous(runs, text);
        else if (row == runs->rows)
            status = not_found(runs, text);
    }
    if (status == PTB_OK)
        *run = (int64_t)ptb_table_number(runs, row, 0);
    ptb_table_free(runs);
    return status;
}
