// `ptbench version`: what was built, with what.
#include "bench/build_info.h"
#include "bench/command.h"

#include <stdio.h>

static ptb_status run(const ptb_command_env *env, const void *config, const char *const *words, size_t count)
{
    (void)env, (void)config, (void)words, (void)count;
    ptb_text text = PTB_TEXT_INIT;
    ptb_build_describe(&text);
    printf("ptbench %s\n%s", PTB_VERSION, ptb_text_string(&text));
    ptb_text_release(&text);
    return PTB_OK;
}

static const ptb_command version_command = {
    .plugin = {"version", "print the version, the compiler and the libraries"},
    .run = run,
};
PTB_REGISTER(PTB_KIND_COMMAND, version_command);
