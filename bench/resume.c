// The words of the command line are stored with the run, under "arguments" in its options.
#include "bench/resume.h"

#include "core/log.h"
#include "results/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ptb_status read_run(ptb_store *store, const char *word, ptb_table **run, ptb_table **arguments)
{
    int64_t id;
    char text[24];
    PTB_TRY(ptb_store_find_run(store, word, &id));
    snprintf(text, sizeof text, "%lld", (long long)id);
    const char *const args[] = {text};
    PTB_TRY(ptb_store_query(
        store,
        "SELECT uuid, (SELECT ranks FROM repetition WHERE run_id = run.id ORDER BY ordinal LIMIT 1), "
        "ptb_run_state(state, processes) = 'running' AND ptb_run_host(state, processes) IS NULL AND "
        "processes <> '' "
        "FROM run WHERE id = CAST(?1 AS INTEGER)",
        args, 1, run));
    return ptb_store_query(store,
                           "SELECT value FROM run, json_each(run.options, '$.arguments') "
                           "WHERE run.id = CAST(?1 AS INTEGER) ORDER BY CAST(key AS INTEGER)",
                           args, 1, arguments);
}

// A secret in the arguments of mpirun was masked when the run was stored.
static ptb_status check_secrets(const ptb_table *arguments, const char *word, int argc, char **argv,
                                int first)
{
    for (size_t i = 0; i < arguments->rows; i++) {
        bool is_given = !strstr(ptb_table_cell(arguments, i, 0), "***");
        for (int k = first; k < argc && !is_given; k++)
            is_given = strncmp(argv[k], "--mpirun-args", strlen("--mpirun-args")) == 0;
        if (!is_given) {
            ptb_error(
                "the stored command line of run %s holds a secret that was masked: '%s'; give it again, as "
                "--mpirun-args \"...\" behind --resume",
                word, ptb_table_cell(arguments, i, 0));
            return PTB_USAGE;
        }
    }
    return PTB_OK;
}

static ptb_status build(const ptb_table *run, const ptb_table *arguments, const char *word, int argc,
                        char **argv, int first, char *uuid, int *out_argc, char ***out_argv)
{
    if (run->rows != 1 || !arguments->rows) {
        ptb_error("run %s has no stored command line; it was not made by `ptbench run`", word);
        return PTB_USAGE;
    }
    if (ptb_table_number(run, 0, 2) == 1) { // two would store the same cases
        ptb_error(
            "run %s still runs on this host, and stores what it measures itself; stop it, or wait for its "
            "end (`ptbench runs` shows it)",
            word);
        return PTB_USAGE;
    }
    PTB_TRY(check_secrets(arguments, word, argc, argv, first));
    size_t room = arguments->rows + (size_t)argc + 8, count = 0;
    char **all = calloc(room, sizeof *all);
    if (!all) {
        ptb_error("no memory for the command line of run %s", word);
        return PTB_NO_MEMORY;
    }
    all[count++] = strdup(argv[0]);
    all[count++] = strdup("run");
    for (size_t i = 0; i < arguments->rows; i++)
        all[count++] = strdup(ptb_table_cell(arguments, i, 0));
    // A run from a job that never got as far as a repetition has no ranks yet.
    if (*ptb_table_cell(run, 0, 1)) {
        all[count++] = strdup("--np");
        all[count++] = strdup(ptb_table_cell(run, 0, 1));
    }
    for (int i = first; i < argc; i++)
        all[count++] = strdup(argv[i]);
    snprintf(uuid, 37, "%s", ptb_table_cell(run, 0, 0));
    *out_argc = (int)count;
    *out_argv = all;
    return PTB_OK;
}

ptb_status ptb_resume_arguments(const char *database, const char *word, int argc, char **argv, int first,
                                char *uuid, int *out_argc, char ***out_argv)
{
    ptb_store *store;
    ptb_table *run = NULL, *arguments = NULL;
    PTB_TRY(ptb_store_open(database, PTB_STORE_READ, &store));
    ptb_status status = read_run(store, word, &run, &arguments);
    if (status == PTB_OK)
        status = build(run, arguments, word, argc, argv, first, uuid, out_argc, out_argv);
    ptb_table_free(run);
    ptb_table_free(arguments);
    ptb_store_close(store);
    return status;
}
