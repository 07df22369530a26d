// `ptbench list`: everything that can be named on the command line.
#include "bench/command.h"
#include "bench/suite.h"
#include "core/log.h"

#include <stdio.h>
#include <string.h>

// kind, heading; suites are no plug-ins and stand apart
static const struct {
    ptb_kind kind;
    const char *heading;
} sections[] = {
    {PTB_KIND_BENCH, "benchmarks"},         {PTB_KIND_COLLECTIVE, "collectives"},
    {PTB_KIND_COMM, "communicators"},       {PTB_KIND_ALGORITHM, "algorithms"},
    {PTB_KIND_DATA_PARALLEL, "strategies"}, {PTB_KIND_DEVICE, "devices"},
    {PTB_KIND_KERNELS, "kernels"},          {PTB_KIND_REPORT, "reports"},
    {PTB_KIND_EXPORTER, "exporters"},       {PTB_KIND_IMPORTER, "importers"},
};
enum { SECTION_COUNT = sizeof sections / sizeof sections[0] };

static ptb_status list_suites(void)
{
    puts("suites:");
    for (size_t i = 0; ptb_suite_name(i); i++) {
        ptb_suite *suite;
        PTB_TRY(ptb_suite_load(ptb_suite_name(i), &suite));
        printf("  %-20s %s\n", suite->name, suite->summary);
        ptb_suite_free(suite);
    }
    return PTB_OK;
}

static void list_section(int at)
{
    if (!ptb_registry_count(sections[at].kind))
        return;
    printf("%s:\n", sections[at].heading);
    for (size_t i = 0; i < ptb_registry_count(sections[at].kind); i++) {
        const ptb_plugin *plugin = ptb_registry_at(sections[at].kind, i);
        printf("  %-20s %s\n", plugin->name, plugin->summary);
    }
}

static ptb_status run(const ptb_command_env *env, const void *config, const char *const *words, size_t count)
{
    (void)env, (void)config;
    const char *wanted = count ? words[0] : NULL;
    const char *names[SECTION_COUNT + 1] = {"suites"};
    bool found = false;
    for (int i = 0; i < SECTION_COUNT; i++)
        names[i + 1] = sections[i].heading;
    for (int i = 0; i <= SECTION_COUNT; i++) {
        if (wanted && strcmp(wanted, names[i]) != 0)
            continue;
        found = true;
        if (i == 0)
            PTB_TRY(list_suites());
        else
            list_section(i - 1);
    }
    if (found)
        return PTB_OK;
    char near[256];
    ptb_text_nearest(wanted, names, SECTION_COUNT + 1, near, sizeof near);
    ptb_error("nothing is listed under '%s'; did you mean %s?", wanted, near);
    return PTB_USAGE;
}

static const ptb_command list_command = {
    .plugin = {"list", "list suites, benchmarks, communicators, algorithms and the rest"},
    .usage = "[KIND]",
    .about =
        "KIND is suites, benchmarks, collectives, communicators, algorithms, strategies, devices, kernels, "
        "reports, exporters or importers; without it, all of them.",
    .max_words = 1,
    .run = run,
};
PTB_REGISTER(PTB_KIND_COMMAND, list_command);
