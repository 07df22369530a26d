// `ptbench show [RUN]`: a run's tables in the terminal.
#include "bench/command.h"
#include "core/log.h"
#include "reports/render.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

typedef struct {
    char *db;
    int64_t width;
} show_config;

static const ptb_opt opts[] = {
    {.name = "db",
     .type = PTB_OPT_STRING,
     .offset = offsetof(show_config, db),
     .metavar = "FILE",
     .help = "Results database. Default: PTBENCH_DB, else ptbench.db in the current folder"},
    {.name = "width",
     .type = PTB_OPT_INT,
     .offset = offsetof(show_config, width),
     .def = "0",
     .min = 0,
     .max = 1000,
     .metavar = "COLUMNS",
     .help = "Columns to use; 0 is the width of the terminal, or 120 where there is none"},
};

static int width_of(const show_config *show)
{
    struct winsize size;
    if (show->width)
        return (int)show->width;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        return size.ws_col;
    return 120;
}

static ptb_status run(const ptb_command_env *env, const void *config, const char *const *words, size_t count)
{
    (void)env;
    const show_config *show = config;
    ptb_store *store;
    int64_t id;
    PTB_TRY(ptb_store_open(ptb_command_database(show->db), PTB_STORE_READ, &store));
    ptb_status status = ptb_store_find_run(store, count ? words[0] : "last", &id);
    if (status == PTB_OK)
        status = ptb_report_terminal(store, id, width_of(show), stdout);
    ptb_store_close(store);
    return status;
}

static const ptb_command show_command = {
    .plugin = {"show", "print the tables of a run"},
    .usage = "[RUN]",
    .about = "RUN is an id, the beginning of a UUID, a label, `last` or `last~2`; without it, the last run.",
    .opts = opts,
    .opt_count = sizeof opts / sizeof opts[0],
    .config_size = sizeof(show_config),
    .max_words = 1,
    .run = run,
};
PTB_REGISTER(PTB_KIND_COMMAND, show_command);
