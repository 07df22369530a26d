// What the files of the store share, and what tests inject: the list of migrations, the time to wait for a
// lock and what counts as a network file system. Not for callers of the store.
#ifndef PTB_RESULTS_STORE_INTERNAL_H
#define PTB_RESULTS_STORE_INTERNAL_H

#include "results/store.h"

#include <sqlite3.h>
#include <sys/types.h>

// PRAGMA application_id of every file of ours: "PTBn".
enum { PTB_APPLICATION_ID = 0x5054426e };

// Step i turns schema version i into version i + 1; step 0 creates everything in an empty file.
typedef struct {
    const char *what; // for the message when it fails
    const char *sql;
} ptb_migration;

typedef struct {
    const ptb_migration *steps;
    size_t step_count; // = the schema version this program writes
    int busy_ms;       // how long to wait for another process's lock
    // Whether a path is on a file system where WAL's shared memory does not work; *name is the file system's.
    bool (*is_network)(const char *path, const char **name);
} ptb_store_settings;
ptb_store_settings ptb_store_default_settings(void);
// ptb_store_open with settings; the steps must outlive the store.
ptb_status ptb_store_open_with(const char *path, ptb_store_mode mode, const ptb_store_settings *settings,
                               ptb_store **store);

// Why something failed and what the user can do about it, each one clause.
typedef struct {
    ptb_status status; // USAGE or STORE
    char why[512];
    char advice[512];
} ptb_store_fault;
void ptb_store_fault_set(ptb_store_fault *fault, ptb_status status, const char *advice, const char *format,
                         ...) __attribute__((format(printf, 4, 5)));
// From SQLite's code `rc` on `db` (may be NULL).
void ptb_store_fault_sqlite(ptb_store_fault *fault, sqlite3 *db, int rc);

typedef enum {
    PTB_SQL_RUN_FIND,
    PTB_SQL_RUN_INSERT,
    PTB_SQL_RUN_REOPEN,
    PTB_SQL_RUN_SIMULATED,
    PTB_SQL_RUN_FINISH,
    PTB_SQL_REPETITION_FIND,
    PTB_SQL_REPETITION_INSERT,
    PTB_SQL_CASE_FIND,
    PTB_SQL_CASE_DELETE,
    PTB_SQL_CASE_INSERT,
    PTB_SQL_RANK_INSERT,
    PTB_SQL_METRIC_INSERT,
    PTB_SQL_SERIES_INSERT,
    PTB_SQL_COUNT
} ptb_sql;

enum { PTB_SPILL_FOLDERS = 4 };

// What a spill file must begin again with. The strings inside are owned.
typedef struct {
    int64_t id;
    ptb_run_record record;
} ptb_saved_run;
typedef struct {
    int64_t id, run;
    ptb_repetition_record record;
} ptb_saved_repetition;

struct ptb_store {
    char *path; // as the caller named the database
    char *file; // the file that is open now: path, or a spill
    ptb_store_mode mode;
    ptb_store_settings settings;
    sqlite3 *db;
    sqlite3_stmt *statements[PTB_SQL_COUNT]; // prepared on first use
    size_t cases_written;                    // into `file`
    char *spills[PTB_SPILL_FOLDERS];         // in order of use
    size_t spill_count;
    bool tried[PTB_SPILL_FOLDERS];
    ptb_saved_run *runs; // begun and not finished
    size_t run_count;
    ptb_saved_repetition *repetitions;
    size_t repetition_count;
};

// store.c: opens `file` into store->db. On failure store->db is NULL and *fault says why.
bool ptb_store_open_file(ptb_store *store, const char *file, ptb_store_fault *fault);
// Finalises the statements and takes the connection, which may be NULL, out of the store.
sqlite3 *ptb_store_detach(ptb_store *store);
// Finalises the statements and closes store->db, if any.
void ptb_store_close_file(ptb_store *store);

// inspect.c: looks at a path without SQLite, so that a file that is not ours is never touched. *is_new: there
// is no file, or an empty one.
bool ptb_store_inspect(const char *path, ptb_store_mode mode, bool *is_new, ptb_store_fault *fault);
// Whether the mode bits and the file system allow writing; root too is held to the mode bits. Sets errno.
bool ptb_store_is_writable(const char *path);
// Folder part of a path, "." when there is none; heap string.
char *ptb_store_folder_of(const char *path);
// ptb_store_settings.is_network by statfs.
bool ptb_store_is_network(const char *path, const char **name);

// migrate.c: SQLite code; *fault is set for what is not SQLite's fault (a newer schema).
bool ptb_store_migrate(sqlite3 *db, const ptb_store_settings *settings, bool is_new, ptb_store_fault *fault);
// -1 when it cannot be read.
int ptb_store_schema_version(sqlite3 *db, int *rc);

// liveness.c: the functions that store.h lists. SQLite code.
int ptb_store_add_functions(sqlite3 *db);

// spill.c: leaves the file that failed for the next writable folder, with the runs and repetitions begun so
// far; with `whole`, with all that the file holds, which must still be readable. Logs the cause. STORE when
// no folder is left.
ptb_status ptb_store_spill(ptb_store *store, const char *what, bool whole, const ptb_store_fault *fault);
ptb_status ptb_store_save_run(ptb_store *store, int64_t id, const ptb_run_record *record);
ptb_status ptb_store_save_repetition(ptb_store *store, int64_t id, int64_t run,
                                     const ptb_repetition_record *record);
// Forgets the run and its repetitions, or everything when run is -1.
void ptb_store_forget(ptb_store *store, int64_t run);

// write.c: inserts with a given id (0: a new one). SQLite codes.
int ptb_store_insert_run(ptb_store *store, int64_t id, const ptb_run_record *record);
int ptb_store_insert_repetition(ptb_store *store, int64_t id, int64_t run,
                                const ptb_repetition_record *record);

// statement.c: a kept statement, reset and ready for binding; NULL with *rc set.
sqlite3_stmt *ptb_store_statement(ptb_store *store, ptb_sql which, int *rc);

// Binds values to ?1, ?2, ... in order; the first error sticks.
typedef struct {
    sqlite3_stmt *statement;
    int at, rc;
} ptb_binder;
ptb_binder ptb_bind(ptb_store *store, ptb_sql which);
void ptb_bind_text(ptb_binder *b, const char *text); // NULL is NULL; must live until the step
void ptb_bind_int(ptb_binder *b, int64_t value);
void ptb_bind_count(ptb_binder *b, uint64_t value); // clamps to what SQLite can hold
void ptb_bind_real(ptb_binder *b, double value);    // NAN is NULL
void ptb_bind_null(ptb_binder *b);
void ptb_bind_blob(ptb_binder *b, const void *data, size_t bytes); // data NULL is NULL
// Runs a statement that yields no row.
int ptb_bind_run(ptb_binder *b);
// Runs a look-up: *id is the first column of the first row, 0 when there is none.
int ptb_bind_find(ptb_binder *b, int64_t *id);

#endif
