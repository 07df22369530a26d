// `ptbench export [RUN...]`: stored runs for other programs; the formats are plug-ins of results/.
#include "bench/command.h"
#include "bench/export_file.h"
#include "bench/find_runs.h"
#include "core/log.h"

#include <stdlib.h>

enum { MAX_RUNS = 64 };

typedef struct {
    char *db, *format, *output;
    bool samples;
    int64_t case_id;
} export_config;

static const ptb_opt opts[] = {
    {.name = "db",
     .type = PTB_OPT_STRING,
     .offset = offsetof(export_config, db),
     .metavar = "FILE",
     .help = "Results database. Default: PTBENCH_DB, else ptbench.db in the current folder"},
    {.name = "format",
     .letter = 'f',
     .type = PTB_OPT_STRING,
     .offset = offsetof(export_config, format),
     .def = "json",
     .metavar = "NAME",
     .help = "One of those that `ptbench list exporters` shows"},
    {.name = "output",
     .letter = 'o',
     .type = PTB_OPT_STRING,
     .offset = offsetof(export_config, output),
     .def = "-",
     .metavar = "FILE",
     .help = "Where to write; - is standard output"},
    {.name = "samples",
     .type = PTB_OPT_BOOL,
     .offset = offsetof(export_config, samples),
     .def = "no",
     .help = "Every sample too, where the format has room for them"},
    {.name = "case",
     .type = PTB_OPT_INT,
     .offset = offsetof(export_config, case_id),
     .def = "0",
     .min = 0,
     .max = 9e15,
     .metavar = "ID",
     .help = "Only the case with this id; 0 is all"},
};

// An export without the case that was asked for would look like one that has no cases.
static ptb_status need_case(ptb_store *store, const int64_t *runs, size_t count, int64_t wanted)
{
    char text[24];
    ptb_table *t;
    bool found = false;
    snprintf(text, sizeof text, "%lld", (long long)wanted);
    const char *const args[] = {text};
    PTB_TRY(ptb_store_query(store,
                            "SELECT run_id FROM bench_case JOIN repetition ON repetition.id = repetition_id "
                            "WHERE bench_case.id = CAST(?1 AS INTEGER)",
                            args, 1, &t));
    for (size_t i = 0; i < count && t->rows; i++)
        found = found || (int64_t)ptb_table_number(t, 0, 0) == runs[i];
    ptb_table_free(t);
    if (found)
        return PTB_OK;
    ptb_error("--case %s: the runs to export have no case with this id", text);
    return PTB_USAGE;
}

static ptb_status run(const ptb_command_env *env, const void *config, const char *const *words, size_t count)
{
    (void)env;
    const export_config *wanted = config;
    const ptb_export_options options = {.samples = wanted->samples, .case_id = wanted->case_id};
    ptb_store *store;
    int64_t ids[MAX_RUNS];
    size_t found;
    PTB_TRY(ptb_store_open(ptb_command_database(wanted->db), PTB_STORE_READ, &store));
    ptb_status status = ptb_find_runs(store, words, count, MAX_RUNS, ids, &found);
    if (status == PTB_OK && wanted->case_id)
        status = need_case(store, ids, found, wanted->case_id);
    if (status == PTB_OK)
        status = ptb_export_file(store, ids, found, wanted->format, &options, wanted->output);
    ptb_store_close(store);
    return status;
}

static const ptb_command export_command = {
    .plugin = {"export", "write runs as JSON, CSV or a trace for other programs"},
    .usage = "[RUN...]",
    .about = "RUN is an id, the beginning of a UUID, a label, `last` or `last~2`; without any, the last run.",
    .opts = opts,
    .opt_count = sizeof opts / sizeof opts[0],
    .config_size = sizeof(export_config),
    .max_words = MAX_RUNS,
    .run = run,
};
PTB_REGISTER(PTB_KIND_COMMAND, export_command);
