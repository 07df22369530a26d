// Opening and closing of a results database.
#include "results/store_internal.h"

#include "core/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

sqlite3 *ptb_store_detach(ptb_store *store)
{
    sqlite3 *db = store->db;
    for (int i = 0; i < PTB_SQL_COUNT; i++) {
        sqlite3_finalize(store->statements[i]);
        store->statements[i] = NULL;
    }
    if (db && !sqlite3_get_autocommit(db))
        sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL);
    store->db = NULL;
    return db;
}

void ptb_store_close_file(ptb_store *store)
{
    sqlite3_close(ptb_store_detach(store));
    free(store->file);
    store->file = NULL;
}

static bool open_connection(const char *name, int flags, int busy_ms, sqlite3 **db, ptb_store_fault *fault)
{
    sqlite3 *opened = NULL;
    int rc = sqlite3_open_v2(name, &opened, flags, NULL);
    if (rc == SQLITE_OK) {
        sqlite3_extended_result_codes(opened, 1);
        sqlite3_busy_timeout(opened, busy_ms);
        // A file from elsewhere must not be able to run anything through its schema.
        sqlite3_db_config(opened, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
        sqlite3_db_config(opened, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, NULL);
        rc = ptb_store_add_functions(opened);
    }
    if (rc == SQLITE_OK) {
        rc = sqlite3_exec(opened, "PRAGMA foreign_keys = ON; PRAGMA cell_size_check = ON", NULL, NULL, NULL);
    }
    if (rc != SQLITE_OK) {
        ptb_store_fault_sqlite(fault, opened, rc);
        sqlite3_close(opened);
        return false;
    }
    *db = opened;
    return true;
}

// WAL lets readers work beside the writer and survives a killed one. Where the file system cannot do it, the
// rollback journal does, more slowly.
static void choose_journal(const ptb_store *store, sqlite3 *db, const char *file)
{
    const char *network = NULL;
    bool is_network = store->settings.is_network(file, &network), got = false;
    sqlite3_stmt *statement = NULL;
    int rc = sqlite3_prepare_v2(db, is_network ? "PRAGMA journal_mode = DELETE" : "PRAGMA journal_mode = WAL",
                                -1, &statement, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(statement);
    if (rc == SQLITE_ROW) {
        const char *mode = (const char *)sqlite3_column_text(statement, 0);
        got = mode && strcmp(mode, "wal") == 0;
    }
    sqlite3_finalize(statement);
    bool is_busy = (rc & 0xff) == SQLITE_BUSY || (rc & 0xff) == SQLITE_LOCKED; // it stays as others have it
    if (is_network)
        ptb_warn("%s is on a network file system (%s): write-ahead logging does not work there, so a slower "
                 "journal is used; only one host may use the file at a time",
                 file, network);
    else if (!got && !is_busy) {
        ptb_warn("%s: this file system does not allow write-ahead logging, so a slower journal is used",
                 file);
        sqlite3_exec(db, "PRAGMA journal_mode = DELETE", NULL, NULL, NULL);
    }
    sqlite3_exec(db, got ? "PRAGMA synchronous = NORMAL" : "PRAGMA synchronous = FULL", NULL, NULL, NULL);
}

static bool open_for_writing(ptb_store *store, const char *name, bool is_new, sqlite3 **db,
                             ptb_store_fault *fault)
{
    sqlite3 *opened;
    if (!open_connection(name, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, store->settings.busy_ms, &opened,
                         fault))
        return false;
    if (!ptb_store_migrate(opened, &store->settings, is_new, fault)) {
        sqlite3_close(opened);
        return false;
    }
    choose_journal(store, opened, name);
    *db = opened;
    return true;
}

// "file:NAME?immutable=1" with NAME percent-encoded; heap string.
static char *immutable_uri(const char *name)
{
    ptb_text uri = PTB_TEXT_INIT;
    ptb_text_append(&uri, "file:");
    for (const unsigned char *c = (const unsigned char *)name; *c; c++) {
        if (*c == '%' || *c == '?' || *c == '#')
            ptb_text_printf(&uri, "%%%02x", *c);
        else
            ptb_text_append_bytes(&uri, c, 1);
    }
    ptb_text_append(&uri, "?immutable=1");
    return uri.data;
}

// A WAL database in a folder that we cannot write to cannot be opened the normal way. Nobody else here can
// write to it either, so when nothing waits in its log, it may be read as it is.
static bool open_immutable(const char *name, int busy_ms, sqlite3 **db, ptb_store_fault *fault)
{
    ptb_text wal = PTB_TEXT_INIT;
    ptb_text_printf(&wal, "%s-wal", name);
    struct stat st;
    bool is_waiting = stat(ptb_text_string(&wal), &st) == 0 && st.st_size > 0;
    ptb_text_release(&wal);
    if (is_waiting) {
        ptb_store_fault_set(fault, PTB_STORE, "copy both files into a writable folder and read them there",
                            "its folder is read-only and part of it is still in '%s-wal'", name);
        return false;
    }
    char *uri = immutable_uri(name);
    bool good = open_connection(uri, SQLITE_OPEN_READONLY | SQLITE_OPEN_URI, busy_ms, db, fault);
    free(uri);
    return good;
}

// Copies an older database into a private temporary one (SQLite keeps it in memory or an unlinked file) and
// migrates the copy, so that reading changes nothing.
static bool migrate_copy(ptb_store *store, const char *name, sqlite3 *old, sqlite3 **db,
                         ptb_store_fault *fault)
{
    sqlite3 *copy;
    if (!open_connection("", SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, store->settings.busy_ms, &copy,
                         fault))
        return false;
    sqlite3_backup *backup = sqlite3_backup_init(copy, "main", old, "main");
    int rc = backup ? sqlite3_backup_step(backup, -1) : sqlite3_errcode(copy);
    if (backup && sqlite3_backup_finish(backup) != SQLITE_OK)
        rc = sqlite3_errcode(copy);
    if (rc != SQLITE_DONE) {
        ptb_store_fault_sqlite(fault, old, rc);
        sqlite3_close(copy);
        return false;
    }
    if (!ptb_store_migrate(copy, &store->settings, true, fault)) {
        sqlite3_close(copy);
        return false;
    }
    ptb_info("%s has an older schema; it is read through a migrated temporary copy", name);
    *db = copy;
    return true;
}

static bool open_for_reading(ptb_store *store, const char *name, sqlite3 **db, ptb_store_fault *fault)
{
    sqlite3 *opened = NULL;
    char *folder = ptb_store_folder_of(name);
    // Closing the last connection clears the log away; a read-only connection would leave it behind.
    bool can_write = folder && ptb_store_is_writable(folder) && ptb_store_is_writable(name);
    free(folder);
    if (!open_connection(name, can_write ? SQLITE_OPEN_READWRITE : SQLITE_OPEN_READONLY,
                         store->settings.busy_ms, &opened, fault))
        return false;
    int rc, version = ptb_store_schema_version(opened, &rc);
    bool needs_log = (rc & 0xff) == SQLITE_CANTOPEN || (rc & 0xff) == SQLITE_READONLY;
    if (needs_log && !can_write) {
        sqlite3_close(opened);
        if (!open_immutable(name, store->settings.busy_ms, &opened, fault))
            return false;
        version = ptb_store_schema_version(opened, &rc);
    }
    if (rc == SQLITE_OK && version >= 0 && version < (int)store->settings.step_count) {
        sqlite3 *copy = NULL;
        bool good = migrate_copy(store, name, opened, &copy, fault);
        sqlite3_close(opened);
        if (!good)
            return false;
        opened = copy;
    } else if (!ptb_store_migrate(opened, &store->settings, false, fault)) {
        sqlite3_close(opened); // newer, or unreadable
        return false;
    }
    sqlite3_exec(opened, "PRAGMA query_only = ON", NULL, NULL, NULL);
    *db = opened;
    return true;
}

bool ptb_store_open_file(ptb_store *store, const char *file, ptb_store_fault *fault)
{
    bool is_new = false;
    if (!ptb_store_inspect(file, store->mode, &is_new, fault))
        return false;
    // ":memory:" and the like are names to SQLite, but files to our users.
    ptb_text name = PTB_TEXT_INIT;
    ptb_text_printf(&name, "%s%s", *file == ':' ? "./" : "", file);
    char *copy = strdup(file);
    sqlite3 *db = NULL;
    bool good = false;
    if (!copy)
        ptb_store_fault_set(fault, PTB_STORE, "free some memory", "there is not enough memory");
    else if (store->mode == PTB_STORE_WRITE)
        good = open_for_writing(store, ptb_text_string(&name), is_new, &db, fault);
    else
        good = open_for_reading(store, ptb_text_string(&name), &db, fault);
    ptb_text_release(&name);
    if (!good) {
        free(copy);
        return false;
    }
    store->db = db;
    store->file = copy;
    store->cases_written = 0;
    return true;
}

ptb_status ptb_store_open_with(const char *path, ptb_store_mode mode, const ptb_store_settings *settings,
                               ptb_store **store)
{
    ptb_store *opened = calloc(1, sizeof *opened);
    ptb_store_fault fault = {0};
    if (opened)
        opened->path = strdup(path);
    if (!opened || !opened->path) {
        free(opened);
        ptb_error("not enough memory to open %s", path);
        return PTB_NO_MEMORY;
    }
    opened->mode = mode;
    opened->settings = *settings;
    ptb_status status = PTB_OK;
    if (!ptb_store_open_file(opened, path, &fault)) {
        if (mode == PTB_STORE_WRITE && fault.status == PTB_STORE) {
            status = ptb_store_spill(opened, "open", false, &fault);
        } else {
            ptb_error("cannot open the database '%s': %s; %s", path, fault.why, fault.advice);
            status = fault.status;
        }
    }
    if (status != PTB_OK) {
        ptb_store_close(opened);
        return status;
    }
    *store = opened;
    return PTB_OK;
}

ptb_status ptb_store_open(const char *path, ptb_store_mode mode, ptb_store **store)
{
    ptb_store_settings settings = ptb_store_default_settings();
    return ptb_store_open_with(path, mode, &settings, store);
}

void ptb_store_close(ptb_store *store)
{
    if (!store)
        return;
    ptb_store_close_file(store);
    ptb_store_forget(store, -1);
    for (size_t i = 0; i < store->spill_count; i++)
        free(store->spills[i]);
    free(store->path);
    free(store);
}

const char *ptb_store_spill_path(const ptb_store *store)
{
    return store->spill_count ? store->spills[store->spill_count - 1] : NULL;
}
