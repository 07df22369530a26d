// Merges another database of ptbench, which a spill file is too: runs by UUID, repetitions by ordinal, cases
// by key. A case that is there already stays, unless it failed and the other file has it measured. To add
// another kind of file, copy this file's shape: detect, import, and the descriptor at the end.
#include "results/import.h"

#include "core/log.h"
#include "results/store_internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define RUN_COLUMNS                                                                                          \
    "uuid, started_utc_s, finished_utc_s, state, reason, command, selection, label, version, "               \
    "git_revision, build, options, environment, hosts, fingerprint, simulated, clock_resolution_ns, "        \
    "clock_overhead_ns, loop_overhead_ns, processes"
#define REPETITION_COLUMNS "ordinal, started_utc_s, ranks, hosts, launcher, placement"
#define CASE_COLUMNS                                                                                         \
    "key, bench, bytes, ranks, hosts, params, facts, state, reason, mode, combine, stopped, batch, "         \
    "warmup, started_utc_s, elapsed_s, samples, min_ns, median_ns, mean_ns, p95_ns, p99_ns, max_ns, cv, "    \
    "ci_low_ns, ci_high_ns, ci_confidence, combined"
#define RANK_COLUMNS                                                                                         \
    "rank, samples, min_ns, median_ns, mean_ns, p95_ns, p99_ns, max_ns, checked, wrong, detail, data, "      \
    "spans, spans_dropped"
#define METRIC_COLUMNS "name, value, unit, convention, better"
#define SERIES_COLUMNS "name, unit, count, data"

// "INSERT INTO table (parent, columns) SELECT columns FROM table WHERE where = id", between two connections.
typedef struct {
    const char *table, *parent, *columns, *where;
} copied_table;

typedef enum {
    COPY_RUN,
    COPY_REPETITION,
    COPY_CASE,
    COPY_RANK,
    COPY_METRIC,
    COPY_SERIES,
    COPY_COUNT
} copy_kind;
static const copied_table tables[COPY_COUNT] = {
    [COPY_RUN] = {"run", NULL, RUN_COLUMNS, "id"},
    [COPY_REPETITION] = {"repetition", "run_id", REPETITION_COLUMNS, "id"},
    [COPY_CASE] = {"bench_case", "repetition_id", CASE_COLUMNS, "id"},
    [COPY_RANK] = {"case_rank", "case_id", RANK_COLUMNS, "case_id"},
    [COPY_METRIC] = {"metric", "case_id", METRIC_COLUMNS, "case_id"},
    [COPY_SERIES] = {"series", "case_id", SERIES_COLUMNS, "case_id"},
};

enum { LOOK_RUN, LOOK_REPETITION, LOOK_CASE, LOOK_COUNT };
static const char *const look_sql[LOOK_COUNT] = {
    [LOOK_RUN] = "SELECT id, state, finished_utc_s FROM run WHERE uuid = ?2",
    [LOOK_REPETITION] = "SELECT id FROM repetition WHERE run_id = ?1 AND ordinal = ?2",
    [LOOK_CASE] = "SELECT id, state FROM bench_case WHERE repetition_id = ?1 AND key = ?2",
};

typedef struct {
    sqlite3 *from, *to;
    sqlite3 *failed; // the side that the code is from
    sqlite3_stmt *select[COPY_COUNT], *insert[COPY_COUNT], *look[LOOK_COUNT];
    size_t runs, cases;
} merge;

static int from_failed(merge *m, int rc)
{
    m->failed = m->from;
    return rc;
}

static int to_failed(merge *m, int rc)
{
    m->failed = m->to;
    return rc;
}

static int prepare(sqlite3 *db, const ptb_text *sql, sqlite3_stmt **statement)
{
    return sqlite3_prepare_v2(db, ptb_text_string(sql), -1, statement, NULL);
}

static int prepare_copy(merge *m, copy_kind kind)
{
    const copied_table *t = &tables[kind];
    ptb_text sql = PTB_TEXT_INIT;
    ptb_text_printf(&sql, "SELECT %s FROM %s WHERE %s = ?1", t->columns, t->table, t->where);
    int rc = from_failed(m, prepare(m->from, &sql, &m->select[kind]));
    ptb_text_clear(&sql);
    ptb_text_printf(&sql, "INSERT INTO %s (%s%s%s) VALUES (?1", t->table, t->parent ? t->parent : "",
                    t->parent ? ", " : "", t->columns);
    int count = rc == SQLITE_OK ? sqlite3_column_count(m->select[kind]) + (t->parent ? 1 : 0) : 0;
    for (int i = 2; i <= count; i++)
        ptb_text_printf(&sql, ", ?%d", i);
    ptb_text_append(&sql, ")");
    if (rc == SQLITE_OK)
        rc = to_failed(m, prepare(m->to, &sql, &m->insert[kind]));
    ptb_text_release(&sql);
    return rc;
}

static int prepare_all(merge *m)
{
    int rc = SQLITE_OK;
    for (int i = 0; rc == SQLITE_OK && i < COPY_COUNT; i++)
        rc = prepare_copy(m, i);
    for (int i = 0; rc == SQLITE_OK && i < LOOK_COUNT; i++)
        rc = to_failed(m, sqlite3_prepare_v2(m->to, look_sql[i], -1, &m->look[i], NULL));
    return rc;
}

static void finalise_all(merge *m)
{
    for (int i = 0; i < COPY_COUNT; i++) {
        sqlite3_finalize(m->select[i]);
        sqlite3_finalize(m->insert[i]);
    }
    for (int i = 0; i < LOOK_COUNT; i++)
        sqlite3_finalize(m->look[i]);
}

// Copies the rows of `id` under `parent`; *new_id is the last one's row id.
static int copy_rows(merge *m, copy_kind kind, int64_t id, int64_t parent, int64_t *new_id)
{
    sqlite3_stmt *select = m->select[kind], *insert = m->insert[kind];
    int first = tables[kind].parent ? 1 : 0, rc;
    sqlite3_bind_int64(select, 1, id);
    while ((rc = sqlite3_step(select)) == SQLITE_ROW) {
        int bound = first ? sqlite3_bind_int64(insert, 1, parent) : SQLITE_OK;
        for (int i = 0; bound == SQLITE_OK && i < sqlite3_column_count(select); i++)
            bound = sqlite3_bind_value(insert, first + i + 1, sqlite3_column_value(select, i));
        if (bound == SQLITE_OK)
            bound = sqlite3_step(insert);
        if (bound != SQLITE_DONE) {
            to_failed(m, bound);
            sqlite3_reset(insert);
            sqlite3_reset(select);
            return bound;
        }
        sqlite3_reset(insert);
        *new_id = sqlite3_last_insert_rowid(m->to);
    }
    sqlite3_reset(select);
    return rc == SQLITE_DONE ? SQLITE_OK : from_failed(m, rc);
}

// Looks a row up in the destination; the caller resets the statement after reading it. *id is 0 when there is
// none.
static int look_up(merge *m, int which, int64_t parent, sqlite3_value *key, int64_t *id)
{
    sqlite3_stmt *look = m->look[which];
    sqlite3_reset(look);
    sqlite3_bind_int64(look, 1, parent);
    sqlite3_bind_value(look, 2, key);
    int rc = sqlite3_step(look);
    *id = rc == SQLITE_ROW ? sqlite3_column_int64(look, 0) : 0;
    return rc == SQLITE_ROW || rc == SQLITE_DONE ? SQLITE_OK : to_failed(m, rc);
}

// Walks `sql` over the source with ?1 = id, calling `visit` on each row.
static int walk(merge *m, const char *sql, int64_t id, int64_t parent, bool *gained,
                int (*visit)(merge *, sqlite3_stmt *, int64_t, bool *))
{
    sqlite3_stmt *rows = NULL;
    int rc = from_failed(m, sqlite3_prepare_v2(m->from, sql, -1, &rows, NULL));
    if (rc == SQLITE_OK && sqlite3_bind_parameter_count(rows) > 0)
        sqlite3_bind_int64(rows, 1, id);
    while (rc == SQLITE_OK) {
        int step = sqlite3_step(rows);
        if (step == SQLITE_DONE)
            break;
        rc = step == SQLITE_ROW ? visit(m, rows, parent, gained) : from_failed(m, step);
    }
    sqlite3_finalize(rows);
    return rc;
}

static int execute(merge *m, const char *sql, int64_t id)
{
    sqlite3_stmt *statement = NULL;
    int rc = sqlite3_prepare_v2(m->to, sql, -1, &statement, NULL);
    if (rc == SQLITE_OK) {
        sqlite3_bind_int64(statement, 1, id);
        rc = sqlite3_step(statement);
        rc = rc == SQLITE_DONE ? SQLITE_OK : rc;
    }
    sqlite3_finalize(statement);
    return rc == SQLITE_OK ? rc : to_failed(m, rc);
}

static bool is_text(sqlite3_stmt *row, int column, const char *word)
{
    const char *text = (const char *)sqlite3_column_text(row, column);
    return text && strcmp(text, word) == 0;
}

// Row: id, key, state.
static int merge_case(merge *m, sqlite3_stmt *row, int64_t repetition, bool *gained)
{
    int64_t id = sqlite3_column_int64(row, 0), have, added = 0;
    int rc = look_up(m, LOOK_CASE, repetition, sqlite3_column_value(row, 1), &have);
    if (rc != SQLITE_OK)
        return rc;
    bool is_better = have && is_text(m->look[LOOK_CASE], 1, "failed") && !is_text(row, 2, "failed");
    sqlite3_reset(m->look[LOOK_CASE]);
    if (have && !is_better)
        return SQLITE_OK;
    if (have)
        rc = execute(m, "DELETE FROM bench_case WHERE id = ?1", have);
    if (rc == SQLITE_OK)
        rc = copy_rows(m, COPY_CASE, id, repetition, &added);
    int64_t unused, parent = added;
    for (int kind = COPY_RANK; rc == SQLITE_OK && kind <= COPY_SERIES; kind++)
        rc = copy_rows(m, kind, id, parent, &unused);
    m->cases++;
    *gained = true;
    return rc;
}

// Row: id, ordinal.
static int merge_repetition(merge *m, sqlite3_stmt *row, int64_t run, bool *gained)
{
    int64_t id = sqlite3_column_int64(row, 0), have;
    int rc = look_up(m, LOOK_REPETITION, run, sqlite3_column_value(row, 1), &have);
    sqlite3_reset(m->look[LOOK_REPETITION]);
    if (rc == SQLITE_OK && !have) {
        rc = copy_rows(m, COPY_REPETITION, id, run, &have);
        *gained = true;
    }
    if (rc != SQLITE_OK)
        return rc;
    return walk(m, "SELECT id, key, state FROM bench_case WHERE repetition_id = ?1 ORDER BY id", id, have,
                gained, merge_case);
}

// How the run ended is known to the file that saw its end last. Row: id, uuid, state, finished, reason.
static int merge_end(merge *m, sqlite3_stmt *row, int64_t run, bool *gained)
{
    sqlite3_stmt *look = m->look[LOOK_RUN], *update = NULL;
    bool is_open = is_text(look, 1, "running");
    double finished = sqlite3_column_double(look, 2);
    sqlite3_reset(look);
    if (is_text(row, 2, "running") || (!is_open && sqlite3_column_double(row, 3) <= finished))
        return SQLITE_OK;
    int rc =
        sqlite3_prepare_v2(m->to, "UPDATE run SET state = ?2, finished_utc_s = ?3, reason = ?4 WHERE id = ?1",
                           -1, &update, NULL);
    if (rc == SQLITE_OK) {
        sqlite3_bind_int64(update, 1, run);
        for (int i = 2; i <= 4; i++)
            sqlite3_bind_value(update, i, sqlite3_column_value(row, i));
        rc = sqlite3_step(update);
        rc = rc == SQLITE_DONE ? SQLITE_OK : rc;
    }
    sqlite3_finalize(update);
    *gained = true;
    return rc == SQLITE_OK ? rc : to_failed(m, rc);
}

static int merge_run(merge *m, sqlite3_stmt *row, int64_t parent, bool *unused)
{
    (void)parent;
    (void)unused;
    int64_t id = sqlite3_column_int64(row, 0), have;
    bool gained = false;
    int rc = look_up(m, LOOK_RUN, 0, sqlite3_column_value(row, 1), &have);
    if (rc != SQLITE_OK)
        return rc;
    if (have) {
        rc = merge_end(m, row, have, &gained);
    } else {
        sqlite3_reset(m->look[LOOK_RUN]);
        rc = copy_rows(m, COPY_RUN, id, 0, &have);
        gained = true;
    }
    if (rc == SQLITE_OK)
        rc = walk(m, "SELECT id, ordinal FROM repetition WHERE run_id = ?1 ORDER BY ordinal", id, have,
                  &gained, merge_repetition);
    m->runs += gained;
    return rc;
}

static int merge_everything(merge *m)
{
    int rc = prepare_all(m);
    if (rc == SQLITE_OK)
        rc = to_failed(m, sqlite3_exec(m->to, "BEGIN IMMEDIATE", NULL, NULL, NULL));
    if (rc == SQLITE_OK)
        rc = walk(m, "SELECT id, uuid, state, finished_utc_s, reason FROM run ORDER BY id", 0, 0, NULL,
                  merge_run);
    if (rc == SQLITE_OK)
        rc = to_failed(m, sqlite3_exec(m->to, "COMMIT", NULL, NULL, NULL));
    return rc;
}

static bool is_same_file(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static ptb_status import_ptbench(ptb_store *store, const char *path, size_t *runs, size_t *cases)
{
    if (store->mode != PTB_STORE_WRITE || !store->db) {
        ptb_error("cannot import into '%s': it is not open for writing (a defect)", store->path);
        return PTB_INTERNAL;
    }
    if (is_same_file(path, store->file)) {
        ptb_error("cannot import '%s' into itself; name the destination with --db", path);
        return PTB_USAGE;
    }
    ptb_store *source;
    PTB_TRY(ptb_store_open_with(path, PTB_STORE_READ, &store->settings, &source));
    merge m = {.from = source->db, .to = store->db};
    int rc = merge_everything(&m);
    if (rc != SQLITE_OK) {
        ptb_store_fault fault;
        ptb_store_fault_sqlite(&fault, m.failed, rc);
        ptb_error("cannot import '%s' into '%s': %s: %s; %s. Nothing was imported", path, store->file,
                  m.failed == m.from ? path : store->file, fault.why, fault.advice);
    }
    finalise_all(&m);
    if (!sqlite3_get_autocommit(store->db))
        sqlite3_exec(store->db, "ROLLBACK", NULL, NULL, NULL);
    ptb_store_close(source);
    if (rc != SQLITE_OK)
        return PTB_STORE;
    *runs = m.runs;
    *cases = m.cases;
    return PTB_OK;
}

static bool detect_ptbench(const unsigned char *head, size_t bytes)
{
    return bytes >= 16 && memcmp(head, "SQLite format 3", 16) == 0;
}

static const ptb_importer importer_ptbench = {
    .plugin = {.name = "ptbench", .summary = "databases and spill files of ptbench"},
    .expects = "a ptbench database or spill file",
    .detect = detect_ptbench,
    .import = import_ptbench,
};
PTB_REGISTER(PTB_KIND_IMPORTER, importer_ptbench);
