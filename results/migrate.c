// Schema versions. PRAGMA user_version holds the number; a file is brought up to date in one transaction, so
// that it is either the old one or the new one. To change the schema, add a file schema_N.sql of ALTER
// statements, embed it in CMakeLists.txt, and add a step below.
#include "results/store_internal.h"

#include "core/log.h"

#include <stdio.h>

extern const char ptb_schema_1[], ptb_schema_2[];

static const ptb_migration steps[] = {
    {"create the tables", ptb_schema_1},
    {"say which processes keep a run going", ptb_schema_2},
};

ptb_store_settings ptb_store_default_settings(void)
{
    return (ptb_store_settings){
        .steps = steps,
        .step_count = sizeof steps / sizeof *steps,
        .busy_ms = 5000,
        .is_network = ptb_store_is_network,
    };
}

int ptb_store_schema_version(sqlite3 *db, int *rc)
{
    sqlite3_stmt *statement = NULL;
    int version = -1;
    *rc = sqlite3_prepare_v2(db, "PRAGMA user_version", -1, &statement, NULL);
    if (*rc == SQLITE_OK && (*rc = sqlite3_step(statement)) == SQLITE_ROW) {
        version = sqlite3_column_int(statement, 0);
        *rc = SQLITE_OK;
    }
    int finalised = sqlite3_finalize(statement);
    if (*rc == SQLITE_OK)
        *rc = finalised;
    return *rc == SQLITE_OK ? version : -1;
}

static int run_sql(sqlite3 *db, const char *format, int number)
{
    char sql[96];
    snprintf(sql, sizeof sql, format, number);
    return sqlite3_exec(db, sql, NULL, NULL, NULL);
}

// True when no row of any table points at a missing parent.
static int check_foreign_keys(sqlite3 *db, bool *good)
{
    sqlite3_stmt *statement = NULL;
    int rc = sqlite3_prepare_v2(db, "PRAGMA foreign_key_check", -1, &statement, NULL);
    if (rc == SQLITE_OK) {
        rc = sqlite3_step(statement);
        *good = rc == SQLITE_DONE;
        rc = rc == SQLITE_DONE || rc == SQLITE_ROW ? SQLITE_OK : rc;
    }
    sqlite3_finalize(statement);
    return rc;
}

// Inside the transaction: applies what is missing. Another process may have done it since we looked.
static bool apply(sqlite3 *db, const ptb_store_settings *settings, ptb_store_fault *fault)
{
    int rc, version = ptb_store_schema_version(db, &rc), target = (int)settings->step_count;
    bool linked = true;
    if (rc != SQLITE_OK)
        goto failed;
    if (version >= target)
        return true;
    for (int v = version; v < target; v++) {
        rc = sqlite3_exec(db, settings->steps[v].sql, NULL, NULL, NULL);
        if (rc != SQLITE_OK) {
            ptb_store_fault_sqlite(fault, db, rc);
            if ((rc & 0xff) == SQLITE_ERROR)
                ptb_store_fault_set(fault, PTB_STORE, "it is left as it was; name another file with --db",
                                    "migrating its schema from version %d to %d (%s) failed: %s", v, v + 1,
                                    settings->steps[v].what, sqlite3_errmsg(db));
            return false;
        }
    }
    rc = check_foreign_keys(db, &linked);
    if (rc == SQLITE_OK && linked)
        rc = run_sql(db, "PRAGMA user_version = %d", target);
    if (rc == SQLITE_OK && linked)
        rc = run_sql(db, "PRAGMA application_id = %d", PTB_APPLICATION_ID);
    if (rc == SQLITE_OK && linked)
        return true;
failed:
    if (rc != SQLITE_OK)
        ptb_store_fault_sqlite(fault, db, rc);
    else
        ptb_store_fault_set(fault, PTB_STORE, "it is left as it was; name another file with --db",
                            "rows without a parent are left after migrating its schema");
    return false;
}

bool ptb_store_migrate(sqlite3 *db, const ptb_store_settings *settings, bool is_new, ptb_store_fault *fault)
{
    int rc, version = ptb_store_schema_version(db, &rc), target = (int)settings->step_count;
    if (rc != SQLITE_OK) {
        ptb_store_fault_sqlite(fault, db, rc);
        return false;
    }
    if (version > target || version < 0) {
        ptb_store_fault_set(
            fault, PTB_STORE,
            "use a ptbench at least as new as the one that wrote it, or name another file with --db",
            "its schema is version %d and this ptbench (" PTB_VERSION ") knows versions up to %d", version,
            target);
        return false;
    }
    if (version == target)
        return true;
    // Rebuilding a table needs the keys off; the pragma has no effect inside a transaction.
    rc = sqlite3_exec(db, "PRAGMA foreign_keys = OFF; BEGIN IMMEDIATE", NULL, NULL, NULL);
    if (rc != SQLITE_OK) {
        ptb_store_fault_sqlite(fault, db, rc);
        return false;
    }
    bool good = apply(db, settings, fault);
    if (good && (rc = sqlite3_exec(db, "COMMIT", NULL, NULL, NULL)) != SQLITE_OK) {
        ptb_store_fault_sqlite(fault, db, rc);
        good = false;
    }
    if (!sqlite3_get_autocommit(db))
        sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL);
    sqlite3_exec(db, "PRAGMA foreign_keys = ON", NULL, NULL, NULL);
    if (good && !is_new)
        ptb_info("migrated the database from schema version %d to %d", version, target);
    return good;
}
