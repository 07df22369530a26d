// SQL functions that tell whether runs whose end was never stored still run (store.h has what they give).
#include "results/store_internal.h"

#include "core/process.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    ptb_process_state state;
    char host[128]; // of the first process that cannot be judged here; "" when there is none
} judgement;

// "running" with processes: what is known of all of them together.
static judgement judge(const char *processes)
{
    judgement all = {.state = PTB_PROCESS_UNKNOWN};
    const char *lines[16];
    char *storage = NULL;
    size_t count = ptb_text_split(processes, '\n', &storage, lines, sizeof lines / sizeof *lines);
    size_t ended = 0;
    bool lives = false;
    for (size_t i = 0; i < count; i++) {
        ptb_process_state state = ptb_process_look(lines[i]);
        lives = lives || state == PTB_PROCESS_LIVES;
        ended += state == PTB_PROCESS_ENDED;
        if (state == PTB_PROCESS_UNKNOWN && !*all.host)
            snprintf(all.host, sizeof all.host, "%.*s", (int)strcspn(lines[i], " "), lines[i]);
    }
    if (lives)
        all.state = PTB_PROCESS_LIVES;
    else if (count > 0 && ended == count && count == ptb_text_pieces(processes, '\n'))
        all.state = PTB_PROCESS_ENDED;
    free(storage);
    return all;
}

static const char *text_of(sqlite3_value *value)
{
    const char *text = (const char *)sqlite3_value_text(value);
    return text ? text : "";
}

static void run_state(sqlite3_context *context, int count, sqlite3_value **values)
{
    (void)count;
    if (strcmp(text_of(values[0]), "running") == 0 && judge(text_of(values[1])).state == PTB_PROCESS_ENDED)
        sqlite3_result_text(context, "died", -1, SQLITE_STATIC);
    else
        sqlite3_result_value(context, values[0]);
}

static void run_host(sqlite3_context *context, int count, sqlite3_value **values)
{
    (void)count;
    if (strcmp(text_of(values[0]), "running") != 0)
        return; // NULL
    judgement all = judge(text_of(values[1]));
    if (all.state == PTB_PROCESS_UNKNOWN && *all.host)
        sqlite3_result_text(context, all.host, -1, SQLITE_TRANSIENT);
}

int ptb_store_add_functions(sqlite3 *db)
{
    const int flags = SQLITE_UTF8 | SQLITE_DIRECTONLY; // not from a schema
    int rc = sqlite3_create_function(db, "ptb_run_state", 2, flags, NULL, run_state, NULL, NULL);
    return rc == SQLITE_OK ? sqlite3_create_function(db, "ptb_run_host", 2, flags, NULL, run_host, NULL, NULL)
                           : rc;
}
