// `ptbench report [RUN...]`: the HTML report with its plots.
#include "bench/command.h"
#include "bench/find_runs.h"
#include "reports/render.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_RUNS = 64 };

typedef struct {
    char *db, *folder;
} report_config;

static const ptb_opt opts[] = {
    {.name = "db",
     .type = PTB_OPT_STRING,
     .offset = offsetof(report_config, db),
     .metavar = "FILE",
     .help = "Results database. Default: PTBENCH_DB, else ptbench.db in the current folder"},
    {.name = "output",
     .letter = 'o',
     .type = PTB_OPT_STRING,
     .offset = offsetof(report_config, folder),
     .def = "ptbench-report",
     .metavar = "FOLDER",
     .help = "Where index.html and the pictures go; made when missing"},
};

static ptb_status run(const ptb_command_env *env, const void *config, const char *const *words, size_t count)
{
    (void)env;
    const report_config *report = config;
    ptb_store *store;
    int64_t ids[MAX_RUNS];
    size_t found;
    char path[PATH_MAX];
    PTB_TRY(ptb_store_open(ptb_command_database(report->db), PTB_STORE_READ, &store));
    ptb_status status = ptb_find_runs(store, words, count, MAX_RUNS, ids, &found);
    if (status == PTB_OK)
        status = ptb_report_html(store, ids, found, report->folder, path, sizeof path);
    if (status == PTB_OK)
        printf("%s\n", path);
    ptb_store_close(store);
    return status;
}

static const ptb_command report_command = {
    .plugin = {"report", "write an HTML report with plots"},
    .usage = "[RUN...]",
    .about =
        "RUN is an id, the beginning of a UUID, a label, `last` or `last~2`; without any, the last run. One "
        "self-contained page, and each figure as a PNG beside it. Prints the page's path.",
    .opts = opts,
    .opt_count = sizeof opts / sizeof opts[0],
    .config_size = sizeof(report_config),
    .max_words = MAX_RUNS,
    .run = run,
};
PTB_REGISTER(PTB_KIND_COMMAND, report_command);
