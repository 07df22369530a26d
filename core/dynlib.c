// See dynlib.h. To look in more folders, add a row to `places`.
#include "core/dynlib.h"

#include <dlfcn.h>
#include <glob.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>

// Folders that the system's loader does not know by itself. With a variable, the pattern goes behind its
// value and counts only where it is set.
static const struct {
    const char *variable, *pattern;
} places[] = {
    {"CUDA_HOME", "/lib64"},
    {"CUDA_HOME", "/extras/CUPTI/lib64"},
    {"CUDA_PATH", "/lib64"},
    {"CUDA_PATH", "/extras/CUPTI/lib64"},
    {"NCCL_HOME", "/lib"},
    {"VIRTUAL_ENV", "/lib/python3*/site-packages/nvidia/*/lib"},
    {"CONDA_PREFIX", "/lib"},
    {"CONDA_PREFIX", "/lib/python3*/site-packages/nvidia/*/lib"},
    {NULL, "/usr/local/cuda/lib64"},
    {NULL, "/usr/local/cuda/extras/CUPTI/lib64"},
    {NULL, "/usr/local/cuda-[0-9]*/lib64"},
    {NULL, "/usr/local/cuda-[0-9]*/extras/CUPTI/lib64"},
    {NULL, "/opt/cuda/lib64"},
    {NULL, "/opt/cuda/extras/CUPTI/lib64"},
    {NULL, "/opt/nvidia/hpc_sdk/*/*/cuda/lib64"},
    {NULL, "/opt/nvidia/hpc_sdk/*/*/cuda/extras/CUPTI/lib64"},
    {NULL, "/opt/nvidia/hpc_sdk/*/*/math_libs/lib64"},
    {NULL, "/opt/nvidia/hpc_sdk/*/*/comm_libs/nccl/lib"},
    {NULL, "/usr/local/nvidia/lib64"},
    {NULL, "/usr/lib64"},
    {NULL, "/usr/local/lib"},
    {"HOME", "/.local/lib/python3*/site-packages/nvidia/*/lib"},
    {NULL, "/usr/lib/python3*/site-packages/nvidia/*/lib"},
    {NULL, "/usr/local/lib/python3*/site-packages/nvidia/*/lib"},
    {NULL, "/usr/local/lib/python3*/dist-packages/nvidia/*/lib"},
};

// A search, and the first file that was there but could not be loaded.
typedef struct {
    void *handle;
    ptb_text refused; // what the loader said of it
} search;

// "FOLDER/libnccl.so.2: cannot open shared object file: No such file...": said of this file itself, not of
// one that it needs.
static bool is_absence(const char *error, const char *file)
{
    const char *slash = strrchr(file, '/'), *colon = strchr(error, ':');
    const char *name = slash ? slash + 1 : file;
    size_t length = strlen(name);
    return colon && strstr(colon, "No such file") && (size_t)(colon - error) >= length &&
           strncmp(colon - length, name, length) == 0;
}

static void try_file(search *s, const char *file)
{
    s->handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    const char *error = s->handle ? NULL : dlerror();
    if (error && !s->refused.length && !is_absence(error, file))
        ptb_text_append(&s->refused, error);
}

static void try_places(search *s, const char *soname)
{
    for (size_t i = 0; !s->handle && i < sizeof places / sizeof *places; i++) {
        const char *value = places[i].variable ? getenv(places[i].variable) : "";
        glob_t found;
        ptb_text pattern = PTB_TEXT_INIT;
        if (!value || (places[i].variable && !*value))
            continue;
        ptb_text_printf(&pattern, "%s%s/%s", value, places[i].pattern, soname);
        if (glob(ptb_text_string(&pattern), 0, NULL, &found) == 0) {
            for (size_t f = 0; !s->handle && f < found.gl_pathc; f++)
                try_file(s, found.gl_pathv[f]);
            globfree(&found);
        }
        ptb_text_release(&pattern);
    }
}

static void explain_absence(const ptb_dynlib *library, const search *s, ptb_text *why)
{
    const char *path = getenv("LD_LIBRARY_PATH");
    ptb_text_printf(why, "%s (%s", library->name, library->sonames[0]);
    for (const char *const *name = library->sonames + 1; *name; name++)
        ptb_text_printf(why, " or %s", *name);
    if (s->refused.length) {
        ptb_text_printf(
            why, ") cannot be loaded: %s; %s. %s, or name the folder of another one in LD_LIBRARY_PATH",
            ptb_text_string(&s->refused), library->needed_for, library->install);
        return;
    }
    ptb_text_printf(why,
                    ") is not on this machine; %s. Looked for in LD_LIBRARY_PATH (%s), the system's folders,",
                    library->needed_for, path && *path ? path : "not set");
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const char *variable = places[i].variable;
        const char *value = variable ? getenv(variable) : NULL;
        if (value && *value && strcmp(variable, "HOME") != 0 &&
            (i == 0 || !places[i - 1].variable || strcmp(places[i - 1].variable, variable) != 0))
            ptb_text_printf(why, " %s (%s),", variable, value);
    }
    ptb_text_printf(why,
                    " /usr/local/cuda*, /opt/cuda, /opt/nvidia and Python's packages nvidia/*. %s, load the "
                    "cluster's module for it (module avail), or name its folder in LD_LIBRARY_PATH",
                    library->install);
}

static void note_path(ptb_dynlib_state *state)
{
    struct link_map *map = NULL;
    bool is_known = dlinfo(state->handle, RTLD_DI_LINKMAP, &map) == 0 && map && map->l_name && *map->l_name;
    state->path = strdup(is_known ? map->l_name : "the program itself");
}

// False: a function that is needed is missing.
static bool find_functions(const ptb_dynlib *library, ptb_dynlib_state *state, void *table, ptb_text *why)
{
    ptb_text lacks = PTB_TEXT_INIT;
    const char *missing = NULL;
    for (size_t i = 0; !missing && i < library->function_count; i++) {
        const ptb_dynlib_function *f = &library->functions[i];
        void *found = dlsym(state->handle, f->symbol);
        if (!found && !f->is_optional)
            missing = f->symbol;
        if (!found && f->is_optional)
            ptb_text_printf(&lacks, "%s%s", lacks.length ? ", " : "", f->symbol);
        memcpy((char *)table + f->place, &found, sizeof found); // ISO C has no cast for it
    }
    if (missing)
        ptb_text_printf(why, "%s has no %s (%s): it is too old, %s or later is needed; %s. %s", library->name,
                        missing, state->path, library->oldest, library->needed_for, library->install);
    state->lacks = ptb_text_take(&lacks);
    return !missing;
}

static void load(const ptb_dynlib *library, ptb_dynlib_state *state, void *table)
{
    search s = {.handle = NULL};
    ptb_text why = PTB_TEXT_INIT;
    for (const char *const *soname = library->sonames; !s.handle && *soname; soname++)
        try_file(&s, *soname);
    for (const char *const *soname = library->sonames; !s.handle && *soname; soname++)
        try_places(&s, *soname);
    state->handle = s.handle;
    if (!s.handle) {
        explain_absence(library, &s, &why);
    } else {
        note_path(state);
        if (!find_functions(library, state, table, &why)) {
            dlclose(state->handle);
            state->handle = NULL;
        }
    }
    ptb_text_release(&s.refused);
    state->why = ptb_text_take(&why);
    state->is_tried = true;
}

ptb_status ptb_dynlib_load(const ptb_dynlib *library, ptb_dynlib_state *state, void *table, ptb_text *why)
{
    pthread_mutex_lock(&state->lock);
    if (!state->is_tried)
        load(library, state, table);
    pthread_mutex_unlock(&state->lock);
    if (state->handle)
        return PTB_OK;
    ptb_text_append(why, state->why);
    return PTB_UNSUPPORTED;
}
