// A command of the program: `ptbench NAME`. Add one by adding bench/cmd_NAME.c with a descriptor at its end.
#ifndef PTB_BENCH_COMMAND_H
#define PTB_BENCH_COMMAND_H

#include "core/option.h"
#include "core/registry.h"
#include "core/status.h"

// The whole command line, for commands whose options depend on their words.
typedef struct {
    int argc;
    char **argv;
    int first; // index in argv of the first argument after the command's name
} ptb_command_env;

typedef struct {
    ptb_plugin plugin;
    const char *usage; // what follows the command's name: "[SUITE|BENCH...]"; NULL: nothing
    const char *about; // paragraphs of help below the usage, separated by '\n'
    const ptb_opt *opts;
    size_t opt_count;
    size_t config_size;
    size_t max_words; // words accepted beside options
    // `run` parses env itself (its options depend on the benchmarks named); config is NULL then.
    bool parses_itself;
    ptb_status (*run)(const ptb_command_env *env, const void *config, const char *const *words, size_t count);
} ptb_command;

// Where results are kept: the option's value, else PTBENCH_DB, else "ptbench.db".
const char *ptb_command_database(const char *option);

#endif
