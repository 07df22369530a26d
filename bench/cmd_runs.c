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
    "SELECT run.id, substr(uuid, 1, 8), run.started_utc_s, ptb_run_state(state, processes) || "
    "coalesce(' on ' || ptb_run_host(state, processes), ''), selection, coalesce(label, ''), "
    " (SELECT group_concat(DISTINCT ranks) FROM repetition WHERE run_id = run.id), "
    " (SELECT count(*) FROM repetition WHERE run_id = run.id), "
    " (SELECT count(*) FROM bench_case JOIN repetition ON repetition.id = repetition_id WHERE run_id = "
    "run.id "
    "   AND bench_case.state IN ('ok', 'wrong')), "
    " (SELECT count(*) FROM bench_case JOIN repetition ON repetition.id = repetition_id WHERE run_id = "
    "run.id "
    "   AND bench_case.state = 'wrong') "
    "FROM run ORDER BY run.started_utc_s, run.id";

// Of what users typed, or another host's name: nothing in it may reach the terminal as a command.
static void append_cell(const ptb_table *t, size_t row, size_t column, ptb_text *out)
{
    ptb_ascii_append(out, ptb_table_cell(t, row, column));
}

static int state_width(const ptb_table *t)
{
    size_t width = 11; // "interrupted"
    for (size_t r = 0; r < t->rows; r++) {
        ptb_text state = PTB_TEXT_INIT;
        append_cell(t, r, 3, &state);
        width = state.length > width ? state.length : width;
        ptb_text_release(&state);
    }
    return (int)width;
}

static void print_row(const ptb_table *t, size_t r, int width)
{
    char started[24];
    ptb_text state = PTB_TEXT_INIT, last = PTB_TEXT_INIT;
    ptb_clock_format_utc(ptb_table_number(t, r, 2), started);
    append_cell(t, r, 3, &state);
    append_cell(t, r, 4, &last);
    if (*ptb_table_cell(t, r, 5)) {
        ptb_text_append(&last, " (");
        append_cell(t, r, 5, &last);
        ptb_text_append(&last, ")");
    }
    printf("%5s  %-8s  %-20s  %-*s  %5s  %11s  %6s  %5s  %s\n", ptb_table_cell(t, r, 0),
           ptb_table_cell(t, r, 1), started, width, ptb_text_string(&state), ptb_table_cell(t, r, 6),
           ptb_table_cell(t, r, 7), ptb_table_cell(t, r, 8), ptb_table_cell(t, r, 9), ptb_text_string(&last));
    ptb_text_release(&state);
    ptb_text_release(&last);
}

static ptb_status run(const ptb_command_env *env, const void *config, const char *const *words, size_t count)
{
    (void)env, (void)words, (void)count;
    ptb_store *store;
    ptb_table *t;
    PTB_TRY(ptb_store_open(ptb_command_database(((const runs_config *)config)->db), PTB_STORE_READ, &store));
    ptb_status status = ptb_store_query(store, query, NULL, 0, &t);
    if (status == PTB_OK) {
        int width = state_width(t);
        printf("%5s  %-8s  %-20s  %-*s  %5s  %11s  %6s  %5s  %s\n", "id", "uuid", "started (UTC)", width,
               "state", "ranks", "repetitions", "cases", "wrong", "selection");
        for (size_t r = 0; r < t->rows; r++)
            print_row(t, r, width);
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
