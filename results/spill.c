// Going on after the database failed: a fresh file of the same schema in the first writable folder. Rows keep
// the ids that callers already hold.
#include "results/store_internal.h"

#include "core/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

// A folder with less is tried only when no other can be had: the disk that is full is often the first one.
enum { COMFORTABLE_BYTES = 16 << 20 };

// Heap string or NULL.
static char *candidate(const ptb_store *store, int i)
{
    const char *tmpdir = getenv("TMPDIR");
    struct stat st;
    switch (i) {
    case 0: // a path that is no file tells nothing about a good folder: not /dev for /dev/null
        return stat(store->path, &st) == 0 && !S_ISREG(st.st_mode) ? NULL : ptb_store_folder_of(store->path);
    case 1:
        return strdup(".");
    case 2:
        return tmpdir && *tmpdir ? strdup(tmpdir) : NULL;
    default:
        return strdup("/tmp");
    }
}

static bool has_room(const char *folder)
{
    struct statvfs fs;
    return statvfs(folder, &fs) == 0 && (unsigned long long)fs.f_bavail * fs.f_frsize >= COMFORTABLE_BYTES;
}

// Creates an empty file that nobody else had the name of; heap string or NULL.
static char *create_spill(const ptb_store *store, const char *folder)
{
    const char *base = strrchr(store->path, '/');
    base = base ? base + 1 : store->path;
    if (!*base)
        base = "ptbench";
    size_t length = strlen(base);
    if (length > 3 && strcmp(base + length - 3, ".db") == 0)
        length -= 3;
    time_t now = time(NULL);
    struct tm utc;
    char stamp[32] = "";
    if (gmtime_r(&now, &utc))
        strftime(stamp, sizeof stamp, "%Y%m%dT%H%M%SZ", &utc);
    for (int attempt = 0; attempt < 100; attempt++) {
        ptb_text name = PTB_TEXT_INIT;
        if (strcmp(folder, ".") != 0)
            ptb_text_printf(&name, "%s/", folder);
        ptb_text_printf(&name, "%.*s-spill-%s-%ld", (int)length, base, stamp, (long)getpid());
        if (attempt)
            ptb_text_printf(&name, "-%d", attempt);
        ptb_text_append(&name, ".db");
        int fd = open(name.data, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0644);
        if (fd >= 0) {
            close(fd);
            return name.data;
        }
        ptb_text_release(&name);
        if (errno != EEXIST)
            return NULL;
    }
    return NULL;
}

static void remove_file(const char *path)
{
    static const char *const suffixes[] = {"", "-wal", "-shm", "-journal"};
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        ptb_text name = PTB_TEXT_INIT;
        ptb_text_printf(&name, "%s%s", path, suffixes[i]);
        unlink(name.data);
        ptb_text_release(&name);
    }
}

// Begins the open runs and repetitions again in the fresh file.
static int replay(ptb_store *store)
{
    int rc = sqlite3_exec(store->db, "BEGIN IMMEDIATE", NULL, NULL, NULL);
    for (size_t i = 0; rc == SQLITE_OK && i < store->run_count; i++)
        rc = ptb_store_insert_run(store, store->runs[i].id, &store->runs[i].record);
    for (size_t i = 0; rc == SQLITE_OK && i < store->repetition_count; i++) {
        const ptb_saved_repetition *r = &store->repetitions[i];
        rc = ptb_store_insert_repetition(store, r->id, r->run, &r->record);
    }
    return rc == SQLITE_OK ? sqlite3_exec(store->db, "COMMIT", NULL, NULL, NULL) : rc;
}

static int copy_from(ptb_store *store, sqlite3 *old)
{
    sqlite3_backup *backup = sqlite3_backup_init(store->db, "main", old, "main");
    int rc = backup ? sqlite3_backup_step(backup, -1) : sqlite3_errcode(store->db);
    if (backup)
        sqlite3_backup_finish(backup);
    return rc == SQLITE_DONE ? SQLITE_OK : rc;
}

// `old`: what the file begins with; NULL: the open runs alone.
static bool try_folder(ptb_store *store, const char *folder, sqlite3 *old)
{
    char *file = create_spill(store, folder);
    ptb_store_fault fault = {0};
    if (!file)
        return false;
    if (!ptb_store_open_file(store, file, &fault) ||
        (old ? copy_from(store, old) : replay(store)) != SQLITE_OK) {
        ptb_store_close_file(store);
        remove_file(file);
        free(file);
        return false;
    }
    store->spills[store->spill_count++] = file;
    return true;
}

static bool open_next(ptb_store *store, sqlite3 *old)
{
    for (int needs_room = 1; needs_room >= 0; needs_room--)
        for (int i = 0; i < PTB_SPILL_FOLDERS; i++) {
            char *folder = store->tried[i] ? NULL : candidate(store, i);
            bool fits = folder && ptb_store_is_writable(folder) && (!needs_room || has_room(folder));
            bool good = fits && try_folder(store, folder, old);
            store->tried[i] = store->tried[i] || fits;
            free(folder);
            if (good)
                return true;
        }
    return false;
}

// An abandoned spill file with nothing in it would only confuse.
static void leave_file(ptb_store *store)
{
    bool is_spill = store->spill_count > 0;
    bool is_empty = store->cases_written == 0;
    ptb_store_close_file(store);
    if (is_spill && is_empty) {
        char *file = store->spills[--store->spill_count];
        remove_file(file);
        free(file);
    }
}

ptb_status ptb_store_spill(ptb_store *store, const char *what, bool whole, const ptb_store_fault *fault)
{
    const char *failed = store->spill_count ? store->spills[store->spill_count - 1] : store->path;
    ptb_error("cannot %s the database '%s': %s; %s", what, failed, fault->why, fault->advice);
    sqlite3 *old = whole ? ptb_store_detach(store) : NULL;
    leave_file(store);
    bool good = open_next(store, old);
    sqlite3_close(old);
    if (!good) {
        ptb_error("no folder for a spill file either (tried beside the database, the current folder, TMPDIR "
                  "and /tmp): results from here on are lost; make room in one of them");
        return PTB_STORE;
    }
    if (whole) // is all that there is
        store->cases_written = 1;
    ptb_warn("results from here on go to '%s'; when the database is well again, merge them with `ptbench "
             "import %s --db %s`",
             store->file, store->file, store->path);
    return PTB_OK;
}

// Replaces *string by a heap copy; NULL stays NULL.
static bool own(const char **string)
{
    if (!*string)
        return true;
    *string = strdup(*string);
    return *string != NULL;
}

static void each_run_string(ptb_run_record *r, const char ***strings)
{
    const char **all[] = {&r->uuid,        &r->command,      &r->selection,   &r->label,
                          &r->version,     &r->git_revision, &r->build,       &r->options,
                          &r->environment, &r->hosts,        &r->fingerprint, &r->processes};
    memcpy(strings, all, sizeof all);
}
enum { RUN_STRINGS = 12 };

static void free_run(ptb_saved_run *saved)
{
    const char **strings[RUN_STRINGS];
    each_run_string(&saved->record, strings);
    for (int i = 0; i < RUN_STRINGS; i++)
        free((char *)*strings[i]);
}

static void free_repetition(ptb_saved_repetition *saved)
{
    free((char *)saved->record.launcher);
    free((char *)saved->record.placement);
}

static ptb_status no_memory(void)
{
    ptb_error("not enough memory to remember the run");
    return PTB_NO_MEMORY;
}

ptb_status ptb_store_save_run(ptb_store *store, int64_t id, const ptb_run_record *record)
{
    ptb_saved_run *runs = realloc(store->runs, (store->run_count + 1) * sizeof *runs);
    if (!runs)
        return no_memory();
    store->runs = runs;
    ptb_saved_run *saved = &runs[store->run_count];
    *saved = (ptb_saved_run){id, *record};
    const char **strings[RUN_STRINGS];
    each_run_string(&saved->record, strings);
    bool good = true;
    for (int i = 0; i < RUN_STRINGS; i++)
        good = own(strings[i]) && good;
    if (!good) {
        free_run(saved);
        return no_memory();
    }
    store->run_count++;
    return PTB_OK;
}

ptb_status ptb_store_save_repetition(ptb_store *store, int64_t id, int64_t run,
                                     const ptb_repetition_record *record)
{
    ptb_saved_repetition *all = realloc(store->repetitions, (store->repetition_count + 1) * sizeof *all);
    if (!all)
        return no_memory();
    store->repetitions = all;
    ptb_saved_repetition *saved = &all[store->repetition_count];
    *saved = (ptb_saved_repetition){id, run, *record};
    bool launcher = own(&saved->record.launcher), placement = own(&saved->record.placement);
    if (!launcher || !placement) {
        free_repetition(saved);
        return no_memory();
    }
    store->repetition_count++;
    return PTB_OK;
}

void ptb_store_forget(ptb_store *store, int64_t run)
{
    size_t kept = 0;
    for (size_t i = 0; i < store->run_count; i++) {
        if (run == -1 || store->runs[i].id == run)
            free_run(&store->runs[i]);
        else
            store->runs[kept++] = store->runs[i];
    }
    store->run_count = kept;
    kept = 0;
    for (size_t i = 0; i < store->repetition_count; i++) {
        if (run == -1 || store->repetitions[i].run == run)
            free_repetition(&store->repetitions[i]);
        else
            store->repetitions[kept++] = store->repetitions[i];
    }
    store->repetition_count = kept;
    if (run == -1) {
        free(store->runs);
        free(store->repetitions);
        store->runs = NULL;
        store->repetitions = NULL;
    }
}
