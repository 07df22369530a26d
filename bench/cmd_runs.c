// `ptbench runs`: the runs in a database, newest last.
#include "bench/command.h"
#include "reports/format.h"
#include "results/store.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct {
    char *db;
} runs_config;

static const ptb_opt opts[] = {
    {.name = "db",
     .type = PTB_OPT_STRING,
     .offset = offsetof(runs_config, db),
     .metavar = "FILE",
     .help = "Results database. Default: PTBENCH_DB, else ptbench.db in the current folder"},
};

static const char query[] =
    "SELECT run.id, substr(uuid, 1, 8), run.started_utc_s, state, selection, coalesce(label, ''), "
    " (SELECT group_concat(DISTINCT ranks) FROM repetition WHERE run_id = run.id), "
    " (SELECT count(*) FROM repetition WHERE run_id = run.id), "
    " (SELECT count(*) FROM bench_case JOIN repetition ON repetition.id = repetition_id WHERE run_id = "
    "run.id "
    "   AND bench_case.state IN ('ok', 'wrong')), "
    " (SELECT count(*) FROM bench_case JOIN repetition ON repetition.id = repetition_id WHERE run_id = "
    "run.id "
    "   AND bench_case.state = 'wrong') "
    "FROM run ORDER BY run.started_utc_s, run.id";

static ptb_status run(const ptb_command_env *env, const void *config, const char *const *words, size_t count)
{
    (void)env, (void)words, (void)count;
    ptb_store *store;
    ptb_table *t;
    PTB_TRY(ptb_store_open(ptb_command_database(((const runs_config *)config)->db), PTB_STORE_READ, &store));
    ptb_status status = ptb_store_query(store, query, NULL, 0, &t);
    if (status == PTB_OK) {
        printf("%5s  %-8s  %-20s  %-11s  %5s  %11s  %6s  %5s  %s\n", "id", "uuid", "started (UTC)", "state",
               "ranks", "repetitions", "cases", "wrong", "selection");
        for (size_t r = 0; r < t->rows; r++) {
            char started[24];
            const char *label = ptb_table_cell(t, r, 5);
            ptb_text last =
                PTB_TEXT_INIT; // of what users typed: nothing in it may reach the terminal as a command
            ptb_clock_format_utc(ptb_table_number(t, r, 2), started);
            ptb_ascii_append(&last, ptb_table_cell(t, r, 4));
            if (*label) {
                ptb_text_append(&last, " (");
                ptb_ascii_append(&last, label);
                ptb_text_append(&last, ")");
            }
            printf("%5s  %-8s  %-20s  %-11s  %5s  %11s  %6s  %5s  %s\n", ptb_table_cell(t, r, 0),
                   ptb_table_cell(t, r, 1), started, ptb_table_cell(t, r, 3), ptb_table_cell(t, r, 6),
                   ptb_table_cell(t, r, 7), ptb_table_cell(t, r, 8), ptb_table_cell(t, r, 9),
                   ptb_text_string(&last));
            ptb_text_release(&last);
        }
        ptb_table_free(t);
    }
    ptb_store_close(store);
    return status;
}

static const ptb_command runs_command = {
    .plugin = {"runs", "list the runs in a results database"},
    .opts = opts,
    .opt_count = sizeof opts / sizeof opts[0],
    .config_size = sizeof(runs_config),
    .run = run,
};
PTB_REGISTER(PTB_KIND_COMMAND, runs_command);
