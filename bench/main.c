// The program. Commands are plug-ins (bench/command.h); this finds the one that was asked for, parses its
// options, runs it and turns its status into the exit code. Nothing else exits.
#include "bench/command.h"
#include "bench/help.h"
#include "core/log.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HELP_WIDTH = 100 };

static bool is_help(const char *word)
{
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

// Whether `--help` stands among the arguments; *topic becomes the first benchmark named beside it, if any.
static bool wants_help(const ptb_command_env *env, const ptb_plugin **topic)
{
    bool found = false;
    *topic = NULL;
    for (int i = env->first; i < env->argc && strcmp(env->argv[i], "--") != 0; i++) {
        found = found || is_help(env->argv[i]);
        if (!*topic)
            *topic = ptb_registry_find(PTB_KIND_BENCH, env->argv[i]);
    }
    return found;
}

static void print_help(const ptb_command *command, const ptb_plugin *topic)
{
    ptb_text text = PTB_TEXT_INIT;
    if (topic && command->parses_itself)
        ptb_help_bench((const ptb_bench *)topic, HELP_WIDTH, &text);
    else
        ptb_help_command(command, HELP_WIDTH, &text);
    fputs(ptb_text_string(&text), stdout);
    ptb_text_release(&text);
}

static ptb_status parse_and_run(const ptb_command *command, const ptb_command_env *env)
{
    enum { MAX_WORDS = 64 };
    const char *words[MAX_WORDS];
    size_t count = 0;
    ptb_opt_set set = {command->opts, command->opt_count, NULL, command->plugin.name};
    set.config = calloc(1, command->config_size ? command->config_size : 1);
    if (!set.config) {
        ptb_error("no memory for the options of '%s'", command->plugin.name);
        return PTB_NO_MEMORY;
    }
    ptb_opts_defaults(&set);
    ptb_status status = ptb_opts_parse(&set, 1, env->argc, env->argv, env->first, words, MAX_WORDS, &count);
    if (status == PTB_OK && count > command->max_words) {
        ptb_error("'%s': '%s' is one word too many; see `ptbench help %s`", command->plugin.name,
                  words[command->max_words], command->plugin.name);
        status = PTB_USAGE;
    }
    if (status == PTB_OK)
        status = command->run(env, set.config, words, count);
    ptb_opts_release(&set);
    free(set.config);
    return status;
}

static ptb_status run_command(int argc, char **argv)
{
    if (argc < 2) {
        ptb_text text = PTB_TEXT_INIT;
        ptb_help_overview(&text);
        fputs(ptb_text_string(&text), stdout);
        ptb_text_release(&text);
        return PTB_USAGE;
    }
    const char *name = argv[1];
    if (is_help(name))
        name = "help";
    else if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0)
        name = "version";
    const ptb_command *command = (const ptb_command *)ptb_registry_need(PTB_KIND_COMMAND, name);
    if (!command)
        return PTB_USAGE;
    ptb_command_env env = {argc, argv, 2};
    const ptb_plugin *topic;
    if (wants_help(&env, &topic)) {
        print_help(command, topic);
        return PTB_OK;
    }
    if (command->parses_itself)
        return command->run(&env, NULL, NULL, 0);
    return parse_and_run(command, &env);
}

// Output that nobody reads any more is no error (`ptbench list | head -1`); output that could not be written
// is one.
static ptb_status close_output(ptb_status status)
{
    errno = 0;
    bool failed = fflush(stdout) != 0;
    failed = ferror(stdout) || failed;
    if (!failed)
        return status;
    int cause = errno;
    struct pollfd out = {.fd = STDOUT_FILENO};
    if (cause == EPIPE || (poll(&out, 1, 0) == 1 && (out.revents & POLLERR)))
        return status;
    ptb_error("standard output could not be written: %s", cause ? strerror(cause) : "the device refused it");
    return status == PTB_OK ? PTB_SYSTEM : status;
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); // a limit on file sizes (ulimit -f) is an error of the write, as a full disk is
    ptb_status status = run_command(argc, argv);
    return ptb_status_exit_code(close_output(status));
}
