// `ptbench import FILE...`: brings spilled results, or another database, into this one.
#include "bench/command.h"
#include "core/log.h"
#include "results/store.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct {
    char *db;
} import_config;

static const ptb_opt opts[] = {
    {.name = "db",
     .type = PTB_OPT_STRING,
     .offset = offsetof(import_config, db),
     .metavar = "FILE",
     .help = "Results database to import into. Default: PTBENCH_DB, else ptbench.db in the current folder"},
};

static ptb_status run(const ptb_command_env *env, const void *config, const char *const *words, size_t count)
{
    (void)env;
    const char *path = ptb_command_database(((const import_config *)config)->db);
    ptb_store *store;
    if (!count) {
        ptb_error("name the files to import: `ptbench import ptbench-spill-....db`");
        return PTB_USAGE;
    }
    PTB_TRY(ptb_store_open(path, PTB_STORE_WRITE, &store));
    ptb_status status = PTB_OK;
    // Importing into a spill file would only move the results from one to another.
    if (ptb_store_spill_path(store)) {
        ptb_error("%s cannot be written, so nothing was imported", path);
        remove(ptb_store_spill_path(store));
        status = PTB_STORE;
    }
    for (size_t i = 0; i < count && status == PTB_OK; i++) {
        size_t runs = 0, cases = 0;
        status = ptb_store_import(store, words[i], &runs, &cases);
        if (status == PTB_OK)
            printf("%s: %zu cases of %zu runs imported into %s\n", words[i], cases, runs, path);
    }
    ptb_store_close(store);
    return status;
}

static const ptb_command import_command = {
    .plugin = {"import", "bring spilled results or another database into this one"},
    .usage = "FILE...",
    .about = "Merges by the runs' UUIDs; importing a file twice changes nothing.",
    .opts = opts,
    .opt_count = sizeof opts / sizeof opts[0],
    .config_size = sizeof(import_config),
    .max_words = 64,
    .run = run,
};
PTB_REGISTER(PTB_KIND_COMMAND, import_command);
