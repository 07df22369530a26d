// The command line of mpirun: what root, oversubscription, binding and hosts need.
#include "bench/launch.h"

#include "bench/job_status.h"

#include "core/log.h"
#include "core/topology.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

bool ptb_launch_find_mpirun(char *path, size_t size)
{
    const char *folders = getenv("PATH");
    char *storage = NULL;
    const char *items[256];
    size_t count = folders ? ptb_text_split(folders, ':', &storage, items, 256) : 0;
    bool found = false;
    for (size_t i = 0; i < count && !found; i++) {
        int length = snprintf(path, size, "%s/mpirun", *items[i] ? items[i] : ".");
        found = length > 0 && (size_t)length < size && access(path, X_OK) == 0;
    }
    free(storage);
    return found;
}

void ptb_launch_mpirun_version(const char *mpirun, char *out, size_t size)
{
    char command[4200], line[256] = "";
    out[0] = '\0';
    // Single quotes keep any folder's name one word; one that holds a quote is not asked.
    if (strchr(mpirun, '\'') ||
        snprintf(command, sizeof command, "'%s' --version 2>/dev/null", mpirun) >= (int)sizeof command)
        return;
    FILE *pipe = popen(command, "re");
    if (!pipe)
        return;
    if (fgets(line, sizeof line, pipe)) {
        const char *version = strstr(line, "(Open MPI) ");
        line[strcspn(line, "\n")] = '\0';
        if (version)
            snprintf(out, size, "Open MPI %s", version + strlen("(Open MPI) "));
        else
            snprintf(out, size, "%s", line);
    }
    char rest[256];
    while (fgets(rest, sizeof rest, pipe))
        ; // read to the end, so that mpirun does not see a closed pipe
    pclose(pipe);
}

typedef struct {
    char **items;
    size_t count, room;
} words;

static void add(words *list, const char *word)
{
    if (list->count + 2 > list->room) {
        list->room = list->room ? 2 * list->room : 32;
        list->items = realloc(list->items, list->room * sizeof *list->items);
    }
    char *copy = strdup(word);
    if (!list->items || !copy) {
        fputs("ptbench: out of memory for a command line\n", stderr);
        abort();
    }
    list->items[list->count++] = copy;
    list->items[list->count] = NULL;
}

// Splits at blanks; a quoted piece stays together.
static ptb_status add_split(words *list, const char *text)
{
    ptb_text word = PTB_TEXT_INIT;
    char quote = '\0';
    bool open = false;
    for (const char *c = text; *c; c++) {
        if (quote ? *c == quote : *c == '\'' || *c == '"') {
            quote = quote ? '\0' : *c;
            open = true;
        } else if (!quote && (*c == ' ' || *c == '\t')) {
            if (open)
                add(list, ptb_text_string(&word));
            ptb_text_clear(&word);
            open = false;
        } else {
            ptb_text_append_bytes(&word, c, 1);
            open = true;
        }
    }
    if (open)
        add(list, ptb_text_string(&word));
    ptb_text_release(&word);
    if (!quote)
        return PTB_OK;
    ptb_error("--mpirun-args: a %c is not closed", quote);
    return PTB_USAGE;
}

static bool is_open_mpi(const char *version)
{
    return strncmp(version, "Open MPI", 8) == 0;
}

ptb_status ptb_launch_arguments(const ptb_run_options *run, const char *mpirun, int np, int threads, int cpus,
                                char ***out, char *how, size_t how_size)
{
    char version[128], number[16];
    bool several_hosts = (run->hosts && *run->hosts) || (run->hostfile && *run->hostfile);
    bool fits = (int64_t)np * threads <= cpus || several_hosts;
    bool binds = fits && !several_hosts && threads == 1;
    const char *bind = strcmp(run->bind, "auto") == 0 ? (binds ? "core" : "none") : run->bind;
    words list = {NULL, 0, 0};
    ptb_launch_mpirun_version(mpirun, version, sizeof version);
    if (!is_open_mpi(version)) {
        ptb_error("%s is not Open MPI's but '%s'; put Open MPI's first on PATH, or start the ranks yourself: "
                  "mpirun -n %d "
                  "ptbench run ...",
                  mpirun, *version ? version : "of an unknown kind", np);
        return PTB_UNSUPPORTED;
    }
    add(&list, mpirun);
    if (geteuid() == 0)
        add(&list, "--allow-run-as-root");
    if (np) { // else as many as the hosts have slots
        add(&list, "-n");
        snprintf(number, sizeof number, "%d", np);
        add(&list, number);
    }
    if (run->hosts && *run->hosts) {
        add(&list, "--host");
        add(&list, run->hosts);
    }
    if (run->hostfile && *run->hostfile) {
        add(&list, "--hostfile");
        add(&list, run->hostfile);
    }
    // Open MPI counts slots by cores of its own view; a control group or an affinity mask may say otherwise.
    if (!several_hosts)
        add(&list, "--oversubscribe");
    if (!fits) {
        add(&list, "--mca");
        add(&list, "mpi_yield_when_idle");
        add(&list, "1");
    }
    static const char *const exported[] = {PTB_ENV_UUID, PTB_ENV_REPETITION, PTB_ENV_LAUNCHER,
                                           PTB_ENV_PROCESS};
    for (size_t i = 0; i < sizeof exported / sizeof *exported; i++) {
        add(&list, "-x");
        add(&list, exported[i]);
    }
    if (strcmp(bind, "launcher") != 0) {
        add(&list, "--bind-to");
        add(&list, bind);
    }
    ptb_status status = run->mpirun_args ? add_split(&list, run->mpirun_args) : PTB_OK;
    if (status != PTB_OK) {
        ptb_launch_free_arguments(list.items);
        return status;
    }
    snprintf(how, how_size, "mpirun (%s), bind-to %s%s%s%s", version, bind, fits ? "" : ", oversubscribed",
             run->mpirun_args && *run->mpirun_args ? ", " : "", run->mpirun_args ? run->mpirun_args : "");
    *out = list.items;
    return PTB_OK;
}

void ptb_launch_free_arguments(char **arguments)
{
    for (size_t i = 0; arguments && arguments[i]; i++)
        free(arguments[i]);
    free(arguments);
}
