// Reading: SELECTs into tables, and the decoded arrays of a case.
#include "results/store_internal.h"

#include "core/log.h"
#include "core/text.h"
#include "results/blob.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Logs what went wrong while reading.
static ptb_status read_failed(const ptb_store *store, int rc, const char *what)
{
    ptb_store_fault fault;
    if (!store->db) {
        ptb_error("cannot read %s: the database is closed after a failure", what);
        return PTB_STORE;
    }
    ptb_store_fault_sqlite(&fault, store->db, rc);
    ptb_error("cannot read %s from the database '%s': %s; %s", what, store->file, fault.why, fault.advice);
    return PTB_STORE;
}

static ptb_status prepare(ptb_store *store, const char *sql, const char *what, sqlite3_stmt **statement)
{
    int rc = store->db ? sqlite3_prepare_v2(store->db, sql, -1, statement, NULL) : SQLITE_MISUSE;
    return rc == SQLITE_OK ? PTB_OK : read_failed(store, rc, what);
}

// The table that callers see, and the memory behind it.
typedef struct {
    ptb_table table; // first member: the public pointer is ours
    ptb_text arena;  // names and cells, NUL-terminated
} owned_table;
#define NULL_CELL SIZE_MAX

typedef struct {
    size_t *offsets; // into the arena, names first; NULL_CELL for NULL
    double *numbers;
    size_t used, capacity;
} cells;

static bool add_cell(owned_table *t, cells *c, const char *text, double number)
{
    if (c->used == c->capacity) {
        size_t capacity = c->capacity ? 2 * c->capacity : 256;
        size_t *offsets = realloc(c->offsets, capacity * sizeof *offsets);
        if (offsets)
            c->offsets = offsets;
        double *numbers = realloc(c->numbers, capacity * sizeof *numbers);
        if (numbers)
            c->numbers = numbers;
        if (!offsets || !numbers)
            return false;
        c->capacity = capacity;
    }
    c->offsets[c->used] = text ? t->arena.length : NULL_CELL;
    c->numbers[c->used++] = number;
    if (text)
        ptb_text_append_bytes(&t->arena, text, strlen(text) + 1);
    return true;
}

static bool add_value(owned_table *t, cells *c, sqlite3_stmt *statement, int column)
{
    int type = sqlite3_column_type(statement, column);
    if (type == SQLITE_NULL || type == SQLITE_BLOB)
        return add_cell(t, c, NULL, NAN);
    double number = NAN;
    if (type == SQLITE_INTEGER || type == SQLITE_FLOAT)
        number = sqlite3_column_double(statement, column);
    const char *text = (const char *)sqlite3_column_text(statement, column);
    if (type == SQLITE_TEXT && text)
        ptb_text_parse_double(text, &number);
    return text && add_cell(t, c, text, number);
}

// Offsets become pointers once the arena no longer moves.
static bool settle(owned_table *t, cells *c, size_t columns)
{
    char **pointers = malloc((c->used + 1) * sizeof *pointers);
    if (!pointers)
        return false;
    for (size_t i = 0; i < c->used; i++)
        pointers[i] = c->offsets[i] == NULL_CELL ? NULL : t->arena.data + c->offsets[i];
    t->table.columns = columns;
    t->table.rows = columns ? c->used / columns - 1 : 0;
    t->table.names = pointers;
    t->table.cells = pointers + columns;
    memmove(c->numbers, c->numbers + columns, (c->used - columns) * sizeof *c->numbers);
    t->table.numbers = c->numbers;
    c->numbers = NULL;
    return true;
}

static int collect(sqlite3_stmt *statement, owned_table *t, cells *c)
{
    int rc, columns = sqlite3_column_count(statement);
    for (int i = 0; i < columns; i++)
        if (!add_cell(t, c, sqlite3_column_name(statement, i), NAN))
            return SQLITE_NOMEM;
    while ((rc = sqlite3_step(statement)) == SQLITE_ROW)
        for (int i = 0; i < columns; i++)
            if (!add_value(t, c, statement, i))
                return SQLITE_NOMEM;
    if (rc == SQLITE_DONE)
        rc = settle(t, c, (size_t)columns) ? SQLITE_OK : SQLITE_NOMEM;
    return rc;
}

ptb_status ptb_store_query(ptb_store *store, const char *sql, const char *const *args, size_t arg_count,
                           ptb_table **table)
{
    sqlite3_stmt *statement = NULL;
    PTB_TRY(prepare(store, sql, "a table", &statement));
    owned_table *t = NULL;
    cells c = {0};
    ptb_status status = PTB_INTERNAL;
    if (!statement || !sqlite3_stmt_readonly(statement) || sqlite3_column_count(statement) == 0) {
        ptb_error("a query must be one SELECT (a defect): %s", sql);
        goto done;
    }
    int rc = SQLITE_OK;
    for (size_t i = 0; i < arg_count && rc == SQLITE_OK; i++)
        rc = sqlite3_bind_text(statement, (int)i + 1, args[i], -1, SQLITE_STATIC);
    t = calloc(1, sizeof *t);
    if (rc == SQLITE_OK)
        rc = t ? collect(statement, t, &c) : SQLITE_NOMEM;
    if (rc == SQLITE_NOMEM) {
        ptb_error("not enough memory for a table of the database '%s'", store->file);
        status = PTB_NO_MEMORY;
    } else if (rc != SQLITE_OK) {
        status = read_failed(store, rc, "a table");
    } else {
        *table = &t->table;
        t = NULL;
        status = PTB_OK;
    }
done:
    sqlite3_finalize(statement);
    free(c.offsets);
    free(c.numbers);
    if (t)
        ptb_table_free(&t->table);
    return status;
}

void ptb_table_free(ptb_table *table)
{
    if (!table)
        return;
    owned_table *t = (owned_table *)table;
    ptb_text_release(&t->arena);
    free(table->names);
    free(table->numbers);
    free(t);
}

void ptb_store_free_strings(char **strings, size_t count)
{
    for (size_t i = 0; strings && i < count; i++)
        free(strings[i]);
    free(strings);
}

ptb_status ptb_store_done_keys(ptb_store *store, const char *uuid, int repetition_index, char ***keys,
                               size_t *count)
{
    char index[16];
    snprintf(index, sizeof index, "%d", repetition_index);
    const char *args[] = {uuid, index};
    ptb_table *t;
    PTB_TRY(ptb_store_query(store,
                            "SELECT c.key FROM run r JOIN repetition p ON p.run_id = r.id "
                            "JOIN bench_case c ON c.repetition_id = p.id "
                            "WHERE r.uuid = ?1 AND p.ordinal = CAST(?2 AS INTEGER) AND c.state <> 'failed' "
                            "ORDER BY c.id",
                            args, 2, &t));
    char **list = calloc(t->rows + 1, sizeof *list);
    bool good = list != NULL;
    for (size_t i = 0; good && i < t->rows; i++)
        good = (list[i] = strdup(ptb_table_cell(t, i, 0))) != NULL;
    size_t rows = t->rows;
    ptb_table_free(t);
    if (!good) {
        ptb_store_free_strings(list, rows);
        ptb_error("not enough memory for %zu keys of cases", rows);
        return PTB_NO_MEMORY;
    }
    *keys = list;
    *count = rows;
    return PTB_OK;
}

// One blob of one row, decoded by `decode` into *array. USAGE when there is no such row.
typedef ptb_status (*decoder)(const void *data, size_t bytes, void *array, size_t *count);

static ptb_status decode_f64(const void *data, size_t bytes, void *array, size_t *count)
{
    return ptb_blob_to_f64(data, bytes, array, count);
}

static ptb_status decode_spans(const void *data, size_t bytes, void *array, size_t *count)
{
    return ptb_blob_to_spans(data, bytes, array, count);
}

static ptb_status read_blob(ptb_store *store, const char *sql, int64_t id, int rank, const char *name,
                            decoder decode, void *array, size_t *count)
{
    sqlite3_stmt *statement = NULL;
    PTB_TRY(prepare(store, sql, "samples", &statement));
    int rc = sqlite3_bind_int64(statement, 1, id);
    if (rc == SQLITE_OK && name)
        rc = sqlite3_bind_text(statement, 2, name, -1, SQLITE_STATIC);
    else if (rc == SQLITE_OK && rank >= 0)
        rc = sqlite3_bind_int(statement, 2, rank);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(statement);
    ptb_status status;
    if (rc == SQLITE_ROW) {
        const void *data = sqlite3_column_blob(statement, 0);
        status = decode(data, data ? (size_t)sqlite3_column_bytes(statement, 0) : 0, array, count);
    } else if (rc == SQLITE_DONE) {
        ptb_error("the database '%s' holds no such data (case %lld, %s%s%s)", store->file, (long long)id,
                  name        ? "series '"
                  : rank >= 0 ? "one rank"
                              : "all ranks combined",
                  name ? name : "", name ? "'" : "");
        status = PTB_USAGE;
    } else {
        status = read_failed(store, rc, "samples");
    }
    sqlite3_finalize(statement);
    return status;
}

ptb_status ptb_store_samples(ptb_store *store, int64_t case_id, int rank, double **samples, size_t *count)
{
    const char *sql = rank < 0 ? "SELECT combined FROM bench_case WHERE id = ?1"
                               : "SELECT data FROM case_rank WHERE case_id = ?1 AND rank = ?2";
    return read_blob(store, sql, case_id, rank, NULL, decode_f64, samples, count);
}

ptb_status ptb_store_series(ptb_store *store, int64_t case_id, const char *name, double **values,
                            size_t *count)
{
    return read_blob(store, "SELECT data FROM series WHERE case_id = ?1 AND name = ?2", case_id, -1, name,
                     decode_f64, values, count);
}

ptb_status ptb_store_spans(ptb_store *store, int64_t case_id, int rank, ptb_span **spans, size_t *count)
{
    return read_blob(store, "SELECT spans FROM case_rank WHERE case_id = ?1 AND rank = ?2", case_id, rank,
                     NULL, decode_spans, spans, count);
}
