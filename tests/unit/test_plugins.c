// The plug-ins that are registered are the files that register one: no file was left out of the build, and
// none registers under another file's name.
#include "core/registry.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <ftw.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILES_MAX = 512 };

typedef struct {
    char *path[FILES_MAX]; // relative to the source folder
    size_t count;
} file_set;

static file_set in_source, in_registry;

static void add(file_set *set, const char *path)
{
    for (size_t i = 0; i < set->count; i++)
        if (strcmp(set->path[i], path) == 0)
            return;
    assert_true(set->count < FILES_MAX);
    set->path[set->count++] = strdup(path);
}

static bool holds(const file_set *set, const char *path)
{
    for (size_t i = 0; i < set->count; i++)
        if (strcmp(set->path[i], path) == 0)
            return true;
    return false;
}

static void clear(file_set *set)
{
    while (set->count)
        free(set->path[--set->count]);
}

// Whether a line of the file starts with PTB_REGISTER( or with a macro made of it (comments and the macros'
// definitions do not).
static bool registers(const char *path)
{
    static const char *const macros[] = {"PTB_REGISTER(", "PTB_COLL_BENCH("};
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    char line[4096];
    bool found = false;
    while (!found && fgets(line, sizeof line, file))
        for (size_t i = 0; i < sizeof macros / sizeof *macros; i++)
            found |= strncmp(line, macros[i], strlen(macros[i])) == 0;
    fclose(file);
    return found;
}

// A back-end of GPUs, in a build without: the rule of CMakeLists.txt (PTB_GPU_SOURCES).
static bool is_left_out(const char *path)
{
    static const char *const parts[] = {"_cuda", "/comm_nccl", "/cupti", "/nccl_"};
    bool is_gpu = false;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        is_gpu |= strstr(path, parts[i]) != NULL;
    return is_gpu && strcmp(PTB_BUILT_FOR_GPU, "off") == 0;
}

static int visit(const char *path, const struct stat *info, int kind, struct FTW *place)
{
    (void)info;
    (void)place;
    size_t length = strlen(path);
    if (kind == FTW_F && length > 2 && strcmp(path + length - 2, ".c") == 0 && !is_left_out(path) &&
        registers(path))
        add(&in_source, path + strlen(PTB_SOURCE_DIR) + 1);
    return 0;
}

static int scan(void **state)
{
    (void)state;
    static const char *const folders[] = {"core",    "profiler", "collectives", "strategies",
                                          "results", "reports",  "bench"};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", PTB_SOURCE_DIR, folders[i]);
        nftw(path, visit, 16, FTW_PHYS); // a folder may not exist yet
    }
    for (int kind = 0; kind < PTB_KIND_COUNT; kind++)
        for (size_t i = 0; i < ptb_registry_count((ptb_kind)kind); i++)
            add(&in_registry, ptb_registry_file((ptb_kind)kind, i));
    return 0;
}

static int release(void **state)
{
    (void)state;
    clear(&in_source);
    clear(&in_registry);
    return 0;
}

static void test_files_are_registered(void **state)
{
    (void)state;
    assert_true(in_source.count >= 10);
    for (size_t i = 0; i < in_source.count; i++)
        if (!holds(&in_registry, in_source.path[i]))
            fail_msg("%s has PTB_REGISTER, but nothing is registered from it", in_source.path[i]);
}

static void test_registered_are_files(void **state)
{
    (void)state;
    for (size_t i = 0; i < in_registry.count; i++)
        if (!holds(&in_source, in_registry.path[i]))
            fail_msg("a plug-in is registered from %s, which has no PTB_REGISTER line", in_registry.path[i]);
}

// The kinds whose plug-ins all lie in one place.
static void test_kinds_have_their_folders(void **state)
{
    (void)state;
    static const struct {
        ptb_kind kind;
        const char *prefix;
    } places[] = {
        {PTB_KIND_DEVICE, "core/device_"},         {PTB_KIND_KERNELS, "strategies/transformer/kernels_"},
        {PTB_KIND_COMM, "collectives/comm_"},      {PTB_KIND_ALGORITHM, "collectives/algorithms/"},
        {PTB_KIND_COLLECTIVE, "collectives/"},     {PTB_KIND_DATA_PARALLEL, "strategies/data/"},
        {PTB_KIND_CONTEXT, "strategies/context/"}, {PTB_KIND_REPORT, "reports/"},
        {PTB_KIND_COMMAND, "bench/cmd_"},
    };
    for (size_t p = 0; p < sizeof places / sizeof *places; p++)
        for (size_t i = 0; i < ptb_registry_count(places[p].kind); i++) {
            const char *file = ptb_registry_file(places[p].kind, i);
            if (strncmp(file, places[p].prefix, strlen(places[p].prefix)) != 0)
                fail_msg("%s '%s' is registered from %s, not from %s*", ptb_kind_word(places[p].kind),
                         ptb_registry_at(places[p].kind, i)->name, file, places[p].prefix);
        }
}

// What a plug-in says of itself is fit for a listing.
static void test_descriptions(void **state)
{
    (void)state;
    for (int kind = 0; kind < PTB_KIND_COUNT; kind++)
        for (size_t i = 0; i < ptb_registry_count((ptb_kind)kind); i++) {
            const ptb_plugin *plugin = ptb_registry_at((ptb_kind)kind, i);
            size_t length = plugin->summary ? strlen(plugin->summary) : 0;
            if (length == 0 || plugin->summary[length - 1] == '.' || strchr(plugin->summary, '\n'))
                fail_msg("%s '%s': the summary must be one line without a full stop",
                         ptb_kind_word((ptb_kind)kind), plugin->name);
            if (strspn(plugin->name, "abcdefghijklmnopqrstuvwxyz0123456789_") != strlen(plugin->name))
                fail_msg("%s '%s': names are lower case, words joined by '_'", ptb_kind_word((ptb_kind)kind),
                         plugin->name);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_files_are_registered),
        cmocka_unit_test(test_registered_are_files),
        cmocka_unit_test(test_kinds_have_their_folders),
        cmocka_unit_test(test_descriptions),
    };
    return cmocka_run_group_tests(tests, scan, release);
}
