// `ptbench help [COMMAND|BENCH]` and the manual page.
#include "bench/help.h"
#include "core/log.h"

#include <stdio.h>

enum { HELP_WIDTH = 100 };

typedef struct {
    bool man;
} help_config;

static const ptb_opt opts[] = {
    {.name = "man",
     .type = PTB_OPT_BOOL,
     .offset = offsetof(help_config, man),
     .def = "no",
     .help = "Print the manual page, in man(7) form"},
};

static ptb_status help_topic(const char *topic, ptb_text *out)
{
    const ptb_plugin *found = ptb_registry_find(PTB_KIND_COMMAND, topic);
    if (found) {
        ptb_help_command((const ptb_command *)found, HELP_WIDTH, out);
        return PTB_OK;
    }
    found = ptb_registry_find(PTB_KIND_BENCH, topic);
    if (found) {
        ptb_help_bench((const ptb_bench *)found, HELP_WIDTH, out);
        return PTB_OK;
    }
    enum { MAX_NAMES = 128 };
    const char *names[MAX_NAMES];
    size_t count = 0;
    for (size_t i = 0; i < ptb_registry_count(PTB_KIND_COMMAND) && count < MAX_NAMES; i++)
        names[count++] = ptb_registry_at(PTB_KIND_COMMAND, i)->name;
    for (size_t i = 0; i < ptb_registry_count(PTB_KIND_BENCH) && count < MAX_NAMES; i++)
        names[count++] = ptb_registry_at(PTB_KIND_BENCH, i)->name;
    char near[256];
    ptb_text_nearest(topic, names, count, near, sizeof near);
    ptb_error("there is no command or benchmark '%s'; did you mean %s?", topic, near);
    return PTB_USAGE;
}

static ptb_status run(const ptb_command_env *env, const void *config, const char *const *words, size_t count)
{
    (void)env;
    const help_config *help = config;
    ptb_text text = PTB_TEXT_INIT;
    ptb_status status = PTB_OK;
    if (help->man)
        ptb_help_manual(&text);
    else if (count)
        status = help_topic(words[0], &text);
    else
        ptb_help_overview(&text);
    if (status == PTB_OK)
        fputs(ptb_text_string(&text), stdout);
    ptb_text_release(&text);
    return status;
}

static const ptb_command help_command = {
    .plugin = {"help", "explain a command or a benchmark"},
    .usage = "[COMMAND|BENCH]",
    .opts = opts,
    .opt_count = sizeof opts / sizeof opts[0],
    .config_size = sizeof(help_config),
    .max_words = 1,
    .run = run,
};
PTB_REGISTER(PTB_KIND_COMMAND, help_command);
