// The cache file of `auto`: JSON, one file for a machine (fingerprint), number of ranks and of hosts. Rank 0
// reads and writes it; a new file is renamed into place, so that a reader never sees half of one.
#include "collectives/auto.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/topology.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { VERSION = 1 };

// Where the cache is; with `make`, missing folders are made. False: there is no home folder, or they cannot
// be.
static bool cache_folder(bool make, ptb_text *path)
{
    const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (base && *base == '/') // the XDG specification: relative paths are to be ignored
        ptb_text_append(path, base);
    else if (home && *home)
        ptb_text_printf(path, "%s/.cache", home);
    else
        return false;
    ptb_text_append(path, "/ptbench");
    for (char *slash = path->data + 1; make && slash;) {
        slash = strchr(slash, '/');
        if (slash)
            *slash = '\0';
        int failed = mkdir(path->data, 0755) != 0 && errno != EEXIST && errno != EISDIR ? errno : 0;
        if (failed)
            ptb_warn("cannot make folder %s for the table of algorithms: %s", path->data, strerror(failed));
        if (slash)
            *slash++ = '/';
        if (failed)
            return false;
    }
    return true;
}

// "auto-FINGERPRINT-": how the names of this machine's tables begin.
static bool cache_prefix(ptb_text *name)
{
    ptb_topology topology;
    if (ptb_topology_read(&topology) != PTB_OK)
        return false;
    ptb_text_printf(name, "auto-%016" PRIx64 "-", topology.fingerprint);
    return true;
}

static bool cache_path(const ptb_world *world, bool make, ptb_text *path)
{
    if (!cache_folder(make, path))
        return false;
    ptb_text_append(path, "/");
    if (!cache_prefix(path))
        return false;
    ptb_text_printf(path, "%dx%d.json", world->size, world->hosts);
    return true;
}

void ptb_auto_forget(void)
{
    ptb_text folder = PTB_TEXT_INIT, prefix = PTB_TEXT_INIT;
    DIR *entries = NULL;
    if (cache_folder(false, &folder) && cache_prefix(&prefix))
        entries = opendir(ptb_text_string(&folder));
    for (struct dirent *entry; entries && (entry = readdir(entries));)
        if (strncmp(entry->d_name, ptb_text_string(&prefix), prefix.length) == 0 &&
            unlinkat(dirfd(entries), entry->d_name, 0) != 0)
            ptb_warn("cannot remove the table of algorithms %s/%s: %s; it is used as it is",
                     ptb_text_string(&folder), entry->d_name, strerror(errno));
    if (entries)
        closedir(entries);
    ptb_text_release(&folder);
    ptb_text_release(&prefix);
}

static int index_of(const char *name)
{
    for (size_t i = 0; name && i < ptb_registry_count(PTB_KIND_ALGORITHM); i++)
        if (strcmp(ptb_registry_at(PTB_KIND_ALGORITHM, i)->name, name) == 0)
            return (int)i;
    return -1;
}

// What rank 0 sends to the others: indexes into the registry, the same in all processes.
typedef struct {
    int found;
    int best[PTB_COLL_COUNT][PTB_AUTO_CLASSES]; // -1: none
    double us[PTB_COLL_COUNT][PTB_AUTO_CLASSES];
} packed;

// NULL, or what is wrong with the file.
static const char *unpack_json(const json_t *root, const ptb_world *world, packed *p)
{
    if (json_integer_value(json_object_get(root, "version")) != VERSION)
        return "another version";
    if (json_integer_value(json_object_get(root, "ranks")) != world->size ||
        json_integer_value(json_object_get(root, "hosts")) != world->hosts)
        return "measured for other ranks";
    const json_t *table = json_object_get(root, "table");
    for (int k = 0; k < PTB_COLL_COUNT; k++) {
        const json_t *row = json_object_get(table, ptb_coll_name((ptb_coll_kind)k));
        if (!json_is_array(row) || json_array_size(row) > PTB_AUTO_CLASSES)
            return "a collective is missing";
        for (size_t c = 0; c < json_array_size(row); c++) {
            const json_t *cell = json_array_get(row, c);
            const json_t *name = json_object_get(cell, "algorithm");
            if (json_is_null(name))
                continue;
            p->best[k][c] = index_of(json_string_value(name));
            p->us[k][c] = json_number_value(json_object_get(cell, "us"));
            if (p->best[k][c] < 0)
                return "an unknown algorithm";
        }
    }
    return NULL;
}

static void read_file(const ptb_world *world, packed *p)
{
    ptb_text path = PTB_TEXT_INIT;
    if (!cache_path(world, false, &path) || access(ptb_text_string(&path), F_OK) != 0) {
        ptb_text_release(&path);
        return;
    }
    json_error_t error;
    json_t *root = json_load_file(path.data, 0, &error);
    const char *wrong = root ? unpack_json(root, world, p) : error.text;
    if (wrong)
        ptb_warn("the table of algorithms %s cannot be used: %s; it is measured again when needed", path.data,
                 wrong);
    p->found = !wrong;
    json_decref(root);
    ptb_text_release(&path);
}

ptb_status ptb_auto_load(ptb_world *world, ptb_auto *table, bool *found)
{
    packed p = {.found = 0};
    memset(p.best, -1, sizeof p.best);
    if (world->rank == 0)
        read_file(world, &p);
    PTB_TRY(ptb_world_broadcast(world, 0, &p, sizeof p));
    *table = (ptb_auto){.measured = p.found};
    for (int k = 0; p.found && k < PTB_COLL_COUNT; k++)
        for (int c = 0; c < PTB_AUTO_CLASSES; c++) {
            const ptb_plugin *plugin =
                p.best[k][c] >= 0 ? ptb_registry_at(PTB_KIND_ALGORITHM, (size_t)p.best[k][c]) : NULL;
            table->best[k][c] = (const ptb_algorithm *)(const void *)plugin;
            table->best_us[k][c] = p.us[k][c];
        }
    *found = p.found;
    return PTB_OK;
}

static json_t *to_json(const ptb_world *world, const ptb_auto *table)
{
    json_t *root = json_object(), *rows = json_object();
    char when[24];
    ptb_clock_format_utc(ptb_clock_utc_s(), when);
    json_object_set_new(root, "version", json_integer(VERSION));
    json_object_set_new(root, "measured", json_string(when));
    json_object_set_new(root, "ranks", json_integer(world->size));
    json_object_set_new(root, "hosts", json_integer(world->hosts));
    for (int k = 0; k < PTB_COLL_COUNT; k++) {
        json_t *row = json_array();
        for (int c = 0; c < PTB_AUTO_CLASSES; c++) {
            const ptb_algorithm *best = table->best[k][c];
            json_t *cell = json_object();
            json_object_set_new(cell, "bytes", json_integer((json_int_t)ptb_auto_class_bytes(c)));
            json_object_set_new(cell, "algorithm", best ? json_string(best->plugin.name) : json_null());
            json_object_set_new(
                cell, "us", best && table->best_us[k][c] > 0 ? json_real(table->best_us[k][c]) : json_null());
            json_array_append_new(row, cell);
        }
        json_object_set_new(rows, ptb_coll_name((ptb_coll_kind)k), row);
    }
    json_object_set_new(root, "table", rows);
    return root;
}

void ptb_auto_store(const ptb_world *world, const ptb_auto *table)
{
    ptb_text path = PTB_TEXT_INIT, temporary = PTB_TEXT_INIT;
    if (!cache_path(world, true, &path)) {
        ptb_warn("the table of algorithms is not kept; set XDG_CACHE_HOME to a folder that can be written");
    } else {
        ptb_text_printf(&temporary, "%s.%d", path.data, (int)getpid());
        json_t *root = to_json(world, table);
        if (json_dump_file(root, temporary.data, JSON_INDENT(1) | JSON_REAL_PRECISION(4)) != 0 ||
            rename(temporary.data, path.data) != 0) {
            ptb_warn("cannot write the table of algorithms %s: %s", path.data, strerror(errno));
            unlink(temporary.data);
        }
        json_decref(root);
    }
    ptb_text_release(&path);
    ptb_text_release(&temporary);
}
