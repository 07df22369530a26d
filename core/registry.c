// The table that PTB_REGISTER fills before main. Kept sorted by name so that listings are stable.
#include "core/registry.h"

#include "core/log.h"
#include "core/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PER_KIND = 64 };

typedef struct {
    const ptb_plugin *plugin;
    const char *file;
} entry;

static entry entries[PTB_KIND_COUNT][MAX_PER_KIND];
static size_t counts[PTB_KIND_COUNT];

const char *ptb_kind_word(ptb_kind kind)
{
    static const char *const words[] = {
#define X(name, word) [PTB_KIND_##name] = word,
        PTB_KIND_LIST(X)
#undef X
    };
    return words[kind];
}

void ptb_registry_add(ptb_kind kind, const ptb_plugin *plugin, const char *file)
{
    entry *list = entries[kind];
    size_t n = counts[kind];
    if (n == MAX_PER_KIND) {
        fprintf(stderr, "ptbench: more than %d plug-ins of kind %s\n", MAX_PER_KIND, ptb_kind_word(kind));
        abort();
    }
    size_t at = 0;
    while (at < n && strcmp(list[at].plugin->name, plugin->name) < 0)
        at++;
    if (at < n && strcmp(list[at].plugin->name, plugin->name) == 0) {
        fprintf(stderr, "ptbench: %s '%s' is registered twice, by %s and by %s\n", ptb_kind_word(kind),
                plugin->name, list[at].file, file);
        abort();
    }
    memmove(&list[at + 1], &list[at], (n - at) * sizeof *list);
    list[at] = (entry){plugin, file};
    counts[kind] = n + 1;
}

size_t ptb_registry_count(ptb_kind kind)
{
    return counts[kind];
}

const ptb_plugin *ptb_registry_at(ptb_kind kind, size_t i)
{
    return i < counts[kind] ? entries[kind][i].plugin : NULL;
}

const char *ptb_registry_file(ptb_kind kind, size_t i)
{
    return i < counts[kind] ? entries[kind][i].file : NULL;
}

const ptb_plugin *ptb_registry_find(ptb_kind kind, const char *name)
{
    for (size_t i = 0; i < counts[kind]; i++)
        if (strcmp(entries[kind][i].plugin->name, name) == 0)
            return entries[kind][i].plugin;
    return NULL;
}

const ptb_plugin *ptb_registry_need(ptb_kind kind, const char *name)
{
    const ptb_plugin *found = ptb_registry_find(kind, name);
    if (found)
        return found;
    const char *names[MAX_PER_KIND];
    for (size_t i = 0; i < counts[kind]; i++)
        names[i] = entries[kind][i].plugin->name;
    char near[256];
    ptb_text_nearest(name, names, counts[kind], near, sizeof near);
    ptb_error("there is no %s '%s'; did you mean %s?", ptb_kind_word(kind), name, near);
    return NULL;
}
