// Which NCCL this is and what it works with: its version, the plug-ins that were loaded into the process, and
// the environment that it reads. What NCCL uses of what is loaded it tells nobody but its own log
// (NCCL_DEBUG=INFO).
#include "collectives/comm_nccl.h"

#include "core/text.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    FACT_BYTES = 104, // of a fact's value
    ENVIRONMENT_FACTS = 16,
    VERSIONS = 20, // of a plug-in's interface, more than there are
};

// ---- plug-ins

// The files that may be plug-ins, by their names, each ending in a newline.
typedef struct {
    const char *variable; // of NCCL's that names a file of another name
    ptb_text paths;
} plugin_files;

static int note_file(struct dl_phdr_info *info, size_t size, void *context)
{
    (void)size;
    plugin_files *files = context;
    const char *path = info->dlpi_name, *named = getenv(files->variable);
    const char *slash = path ? strrchr(path, '/') : NULL, *file = slash ? slash + 1 : path;
    // NCCL takes a part of a name, a name or a path from the variable.
    if (file && *file && (strncmp(file, "libnccl-", 8) == 0 || (named && *named && strstr(path, named))))
        ptb_text_printf(&files->paths, "%s\n", path);
    return 0;
}

// "libnccl-net-ofi.so is loaded: ncclNetPlugin_v10, v9", where it exports such symbols at all.
static void note_offer(const char *path, const char *symbol, ptb_text *said)
{
    bool is_first = true;
    const char *slash = strrchr(path, '/');
    void *library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    for (int version = VERSIONS; library && version > 0; version--) {
        char name[64];
        snprintf(name, sizeof name, "%s_v%d", symbol, version);
        if (!dlsym(library, name))
            continue;
        if (is_first)
            ptb_text_printf(said, "%s%s is loaded: %s", said->length ? "; " : "", slash ? slash + 1 : path,
                            name);
        else
            ptb_text_printf(said, ", v%d", version);
        is_first = false;
    }
    if (library)
        dlclose(library);
}

// symbol: what plug-ins of the kind export (NCCL's ext-net, ext-tuner), before "_v" and the interface's
// version; of the versions NCCL takes the newest that it knows.
static void describe_plugin(const char *fact, const char *symbol, const char *variable, const char *none,
                            ptb_params *facts)
{
    plugin_files files = {variable, PTB_TEXT_INIT};
    ptb_text said = PTB_TEXT_INIT;
    char *rest = NULL;
    dl_iterate_phdr(note_file, &files); // which holds a lock that dlopen wants
    char *paths = ptb_text_take(&files.paths);
    for (char *path = paths ? strtok_r(paths, "\n", &rest) : NULL; path; path = strtok_r(NULL, "\n", &rest))
        note_offer(path, symbol, &said);
    const char *found = ptb_text_string(&said);
    ptb_params_set(facts, fact, "%.*s%s", FACT_BYTES - 5, *found ? found : none,
                   strlen(found) >= FACT_BYTES ? " ..." : "");
    free(paths);
    ptb_text_release(&said);
}

// ---- the environment

extern char **environ;

static void set_piece(ptb_params *facts, size_t piece, const char *text, size_t length)
{
    char name[24] = "nccl_environment";
    if (piece > 0)
        snprintf(name, sizeof name, "nccl_environment_%zu", piece + 1);
    ptb_params_set(facts, name, "%.*s", (int)length, text);
}

// A fact holds less than some environments: they go on in nccl_environment_2 and so on, cut between variables
// where these are short enough.
static void describe_environment(ptb_params *facts)
{
    ptb_text text = PTB_TEXT_INIT;
    for (char **entry = environ; *entry; entry++)
        if (strncmp(*entry, "NCCL_", 5) == 0 && strncmp(*entry, "NCCL_PROFILER_PLUGIN=", 21) != 0)
            ptb_text_printf(&text, "%s%s", text.length ? " " : "", *entry);
    const char *at = ptb_text_string(&text);
    for (size_t piece = 0; *at; piece++) {
        size_t length = strlen(at), cut = length;
        if (length >= FACT_BYTES)
            for (cut = FACT_BYTES - 1; cut > 0 && at[cut] != ' '; cut--)
                ;
        cut = cut ? cut : FACT_BYTES - 1;
        if (piece == ENVIRONMENT_FACTS - 1 && cut < length) {
            set_piece(facts, piece, "... the rest is with the run's environment", FACT_BYTES);
            break;
        }
        set_piece(facts, piece, at, cut);
        at += cut + (at[cut] == ' ');
    }
    ptb_text_release(&text);
}

void ptb_nccl_describe_library(const ptb_comm_nccl *c, ptb_params *facts)
{
    ptb_params_set(facts, "nccl", "%d.%d.%d", c->version / 10000, c->version / 100 % 100, c->version % 100);
    if (c->version != NCCL_VERSION_CODE)
        ptb_params_set(facts, "nccl_built_with", "%d.%d.%d", NCCL_VERSION_CODE / 10000,
                       NCCL_VERSION_CODE / 100 % 100, NCCL_VERSION_CODE % 100);
    if (*ptb_nccl_lacks())
        ptb_params_set(facts, "nccl_lacks", "%s", ptb_nccl_lacks());
    describe_plugin("nccl_net", "ncclNetPlugin", "NCCL_NET_PLUGIN", "NCCL's own, no plug-in is loaded",
                    facts);
    describe_plugin("nccl_tuner", "ncclTunerPlugin", "NCCL_TUNER_PLUGIN", "none is loaded", facts);
    describe_environment(facts);
}
