// The statements that write, prepared once and kept, and the binding of values to them.
#include "results/store_internal.h"

#include <limits.h>

static const char *const sql[PTB_SQL_COUNT] = {
    [PTB_SQL_RUN_FIND] = "SELECT id FROM run WHERE uuid = ?1",
    [PTB_SQL_RUN_INSERT] =
        "INSERT INTO run (id, uuid, started_utc_s, state, command, selection, label, version, git_revision, "
        "build, options, environment, hosts, fingerprint, simulated, clock_resolution_ns, clock_overhead_ns, "
        "loop_overhead_ns, processes) VALUES (?1, ?2, ?3, 'running', ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, "
        "?13, ?14, ?15, ?16, ?17, ?18)",
    [PTB_SQL_RUN_REOPEN] = "UPDATE run SET state = 'running', reason = NULL, finished_utc_s = NULL, "
                           "processes = ?2 WHERE id = ?1",
    [PTB_SQL_RUN_SIMULATED] = "UPDATE run SET simulated = 1 WHERE simulated = 0 AND id = "
                              "(SELECT run_id FROM repetition WHERE id = ?1)",
    [PTB_SQL_RUN_FINISH] = "UPDATE run SET state = ?2, reason = ?3, finished_utc_s = ?4 WHERE id = ?1",
    [PTB_SQL_REPETITION_FIND] = "SELECT id FROM repetition WHERE run_id = ?1 AND ordinal = ?2",
    [PTB_SQL_REPETITION_INSERT] =
        "INSERT INTO repetition (id, run_id, ordinal, started_utc_s, ranks, hosts, launcher, placement) "
        "VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
    [PTB_SQL_CASE_FIND] = "SELECT id FROM bench_case WHERE repetition_id = ?1 AND key = ?2",
    [PTB_SQL_CASE_DELETE] = "DELETE FROM bench_case WHERE id = ?1",
    [PTB_SQL_CASE_INSERT] =
        "INSERT INTO bench_case (repetition_id, key, bench, bytes, ranks, hosts, params, facts, state, "
        "reason, mode, combine, stopped, batch, warmup, started_utc_s, elapsed_s, samples, min_ns, "
        "median_ns, mean_ns, p95_ns, p99_ns, max_ns, cv, ci_low_ns, ci_high_ns, ci_confidence, combined) "
        "VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, "
        "?20, ?21, ?22, ?23, ?24, ?25, ?26, ?27, ?28, ?29)",
    [PTB_SQL_RANK_INSERT] =
        "INSERT INTO case_rank (case_id, rank, samples, min_ns, median_ns, mean_ns, p95_ns, p99_ns, max_ns, "
        "checked, wrong, detail, data, spans, spans_dropped) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, "
        "?10, ?11, ?12, ?13, ?14, ?15)",
    [PTB_SQL_METRIC_INSERT] = "INSERT INTO metric (case_id, name, value, unit, convention, better) "
                              "VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
    [PTB_SQL_SERIES_INSERT] = "INSERT INTO series (case_id, name, unit, count, data) "
                              "VALUES (?1, ?2, ?3, ?4, ?5)",
};

sqlite3_stmt *ptb_store_statement(ptb_store *store, ptb_sql which, int *rc)
{
    sqlite3_stmt **kept = &store->statements[which];
    *rc = SQLITE_OK;
    if (!*kept)
        *rc = sqlite3_prepare_v3(store->db, sql[which], -1, SQLITE_PREPARE_PERSISTENT, kept, NULL);
    return *kept;
}

ptb_binder ptb_bind(ptb_store *store, ptb_sql which)
{
    ptb_binder b = {NULL, 0, SQLITE_OK};
    b.statement = ptb_store_statement(store, which, &b.rc);
    return b;
}

static void note(ptb_binder *b, int rc)
{
    if (b->rc == SQLITE_OK)
        b->rc = rc;
}

void ptb_bind_text(ptb_binder *b, const char *text)
{
    if (b->rc == SQLITE_OK)
        note(b, sqlite3_bind_text(b->statement, ++b->at, text, -1, SQLITE_STATIC));
}

void ptb_bind_int(ptb_binder *b, int64_t value)
{
    if (b->rc == SQLITE_OK)
        note(b, sqlite3_bind_int64(b->statement, ++b->at, value));
}

void ptb_bind_count(ptb_binder *b, uint64_t value)
{
    ptb_bind_int(b, value > INT64_MAX ? INT64_MAX : (int64_t)value);
}

void ptb_bind_real(ptb_binder *b, double value)
{
    if (b->rc == SQLITE_OK)
        note(b, sqlite3_bind_double(b->statement, ++b->at, value)); // SQLite stores NAN as NULL
}

void ptb_bind_null(ptb_binder *b)
{
    if (b->rc == SQLITE_OK)
        note(b, sqlite3_bind_null(b->statement, ++b->at));
}

void ptb_bind_blob(ptb_binder *b, const void *data, size_t bytes)
{
    if (b->rc == SQLITE_OK)
        note(b, sqlite3_bind_blob64(b->statement, ++b->at, data, bytes, SQLITE_STATIC));
}

static void finish(ptb_binder *b)
{
    if (!b->statement)
        return;
    sqlite3_reset(b->statement);
    sqlite3_clear_bindings(b->statement);
}

int ptb_bind_run(ptb_binder *b)
{
    if (b->rc == SQLITE_OK) {
        int rc = sqlite3_step(b->statement);
        b->rc = rc == SQLITE_DONE || rc == SQLITE_ROW ? SQLITE_OK : rc;
    }
    finish(b);
    return b->rc;
}

int ptb_bind_find(ptb_binder *b, int64_t *id)
{
    if (b->rc == SQLITE_OK) {
        int rc = sqlite3_step(b->statement);
        *id = rc == SQLITE_ROW ? sqlite3_column_int64(b->statement, 0) : 0;
        b->rc = rc == SQLITE_DONE || rc == SQLITE_ROW ? SQLITE_OK : rc;
    }
    finish(b);
    return b->rc;
}
