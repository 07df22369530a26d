// Writing: runs, repetitions and cases, one transaction each. What fails for a reason of the file goes on in
// a spill file.
#include "results/store_internal.h"

#include "core/log.h"
#include "core/text.h"
#include "results/blob.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// Deleted, or replaced by another file of its name: what is written goes nowhere any more.
static bool has_moved(const ptb_store *store)
{
    int moved = 0;
    return sqlite3_file_control(store->db, "main", SQLITE_FCNTL_HAS_MOVED, &moved) == SQLITE_OK && moved;
}

// Runs body in a transaction, again in the next spill file when the file is to blame.
static ptb_status write_all(ptb_store *store, const char *what, int (*body)(ptb_store *, void *),
                            void *argument)
{
    if (store->mode != PTB_STORE_WRITE) {
        ptb_error("cannot %s the database '%s': it was opened for reading (a defect)", what, store->path);
        return PTB_INTERNAL;
    }
    for (;;) {
        ptb_store_fault fault = {0};
        if (!store->db)
            return PTB_STORE; // no spill file could be had; said once
        if (has_moved(store)) {
            ptb_store_fault_set(&fault, PTB_STORE, "everything that was in it is saved",
                                "the file was deleted or replaced while it was in use");
            PTB_TRY(ptb_store_spill(store, what, true, &fault));
            continue;
        }
        int rc = sqlite3_exec(store->db, "BEGIN IMMEDIATE", NULL, NULL, NULL);
        if (rc == SQLITE_OK)
            rc = body(store, argument);
        if (rc == SQLITE_OK)
            rc = sqlite3_exec(store->db, "COMMIT", NULL, NULL, NULL);
        if (rc == SQLITE_OK)
            return PTB_OK;
        int kind = rc & 0xff;
        bool is_defect = kind == SQLITE_CONSTRAINT || kind == SQLITE_MISUSE || kind == SQLITE_RANGE ||
                         kind == SQLITE_MISMATCH || kind == SQLITE_TOOBIG;
        if (is_defect)
            ptb_error("cannot %s the database: it refuses the record (%s), a defect in ptbench", what,
                      sqlite3_errmsg(store->db));
        else
            ptb_store_fault_sqlite(&fault, store->db, rc);
        if (!sqlite3_get_autocommit(store->db))
            sqlite3_exec(store->db, "ROLLBACK", NULL, NULL, NULL);
        if (is_defect)
            return PTB_INTERNAL;
        PTB_TRY(ptb_store_spill(store, what, false, &fault));
    }
}

static const char *or_else(const char *text, const char *otherwise)
{
    return text ? text : otherwise;
}

static void bind_id(ptb_binder *b, int64_t id)
{
    if (id)
        ptb_bind_int(b, id);
    else
        ptb_bind_null(b); // SQLite chooses
}

int ptb_store_insert_run(ptb_store *store, int64_t id, const ptb_run_record *r)
{
    ptb_binder b = ptb_bind(store, PTB_SQL_RUN_INSERT);
    bind_id(&b, id);
    ptb_bind_text(&b, r->uuid);
    ptb_bind_real(&b, r->started_utc_s);
    ptb_bind_text(&b, or_else(r->command, ""));
    ptb_bind_text(&b, or_else(r->selection, ""));
    ptb_bind_text(&b, r->label);
    ptb_bind_text(&b, or_else(r->version, ""));
    ptb_bind_text(&b, r->git_revision);
    ptb_bind_text(&b, or_else(r->build, "{}"));
    ptb_bind_text(&b, or_else(r->options, "{}"));
    ptb_bind_text(&b, or_else(r->environment, "{}"));
    ptb_bind_text(&b, or_else(r->hosts, "[]"));
    ptb_bind_text(&b, or_else(r->fingerprint, ""));
    ptb_bind_int(&b, r->simulated);
    ptb_bind_real(&b, r->clock_resolution_ns);
    ptb_bind_real(&b, r->clock_overhead_ns);
    ptb_bind_real(&b, r->loop_overhead_ns);
    ptb_bind_text(&b, or_else(r->processes, ""));
    return ptb_bind_run(&b);
}

int ptb_store_insert_repetition(ptb_store *store, int64_t id, int64_t run, const ptb_repetition_record *r)
{
    ptb_binder b = ptb_bind(store, PTB_SQL_REPETITION_INSERT);
    bind_id(&b, id);
    ptb_bind_int(&b, run);
    ptb_bind_int(&b, r->index);
    ptb_bind_real(&b, r->started_utc_s);
    ptb_bind_int(&b, r->ranks);
    ptb_bind_int(&b, r->hosts);
    ptb_bind_text(&b, or_else(r->launcher, ""));
    ptb_bind_text(&b, or_else(r->placement, "[]"));
    return ptb_bind_run(&b);
}

typedef struct {
    const ptb_run_record *record;
    int64_t id;
} run_job;

static int begin_run(ptb_store *store, void *argument)
{
    run_job *job = argument;
    ptb_binder find = ptb_bind(store, PTB_SQL_RUN_FIND);
    ptb_bind_text(&find, job->record->uuid);
    int rc = ptb_bind_find(&find, &job->id);
    if (rc != SQLITE_OK)
        return rc;
    if (job->id) {
        ptb_binder reopen = ptb_bind(store, PTB_SQL_RUN_REOPEN);
        ptb_bind_int(&reopen, job->id);
        ptb_bind_text(&reopen, or_else(job->record->processes, ""));
        return ptb_bind_run(&reopen);
    }
    rc = ptb_store_insert_run(store, 0, job->record);
    job->id = sqlite3_last_insert_rowid(store->db);
    return rc;
}

ptb_status ptb_store_begin_run(ptb_store *store, const ptb_run_record *record, int64_t *run)
{
    run_job job = {record, 0};
    PTB_TRY(write_all(store, "begin a run in", begin_run, &job));
    ptb_store_forget(store, job.id); // begun twice: one memory of it
    PTB_TRY(ptb_store_save_run(store, job.id, record));
    *run = job.id;
    return PTB_OK;
}

typedef struct {
    int64_t run;
    const char *state, *reason;
} finish_job;

static int finish_run(ptb_store *store, void *argument)
{
    finish_job *job = argument;
    ptb_binder b = ptb_bind(store, PTB_SQL_RUN_FINISH);
    ptb_bind_int(&b, job->run);
    ptb_bind_text(&b, job->state);
    ptb_bind_text(&b, job->reason);
    if (strcmp(job->state, "running") == 0)
        ptb_bind_null(&b);
    else
        ptb_bind_real(&b, ptb_clock_utc_s());
    return ptb_bind_run(&b);
}

ptb_status ptb_store_finish_run(ptb_store *store, int64_t run, const char *state, const char *reason)
{
    finish_job job = {run, state, reason};
    PTB_TRY(write_all(store, "finish the run in", finish_run, &job));
    if (strcmp(state, "running") != 0)
        ptb_store_forget(store, run);
    return PTB_OK;
}

typedef struct {
    int64_t run;
    const ptb_repetition_record *record;
    int64_t id;
} repetition_job;

static int begin_repetition(ptb_store *store, void *argument)
{
    repetition_job *job = argument;
    ptb_binder find = ptb_bind(store, PTB_SQL_REPETITION_FIND);
    ptb_bind_int(&find, job->run);
    ptb_bind_int(&find, job->record->index);
    int rc = ptb_bind_find(&find, &job->id);
    if (rc != SQLITE_OK || job->id)
        return rc;
    rc = ptb_store_insert_repetition(store, 0, job->run, job->record);
    job->id = sqlite3_last_insert_rowid(store->db);
    return rc;
}

ptb_status ptb_store_begin_repetition(ptb_store *store, int64_t run, const ptb_repetition_record *record,
                                      int64_t *repetition)
{
    repetition_job job = {run, record, 0};
    PTB_TRY(write_all(store, "begin a repetition in", begin_repetition, &job));
    bool is_known = false;
    for (size_t i = 0; i < store->repetition_count; i++)
        is_known = is_known || store->repetitions[i].id == job.id;
    if (!is_known)
        PTB_TRY(ptb_store_save_repetition(store, job.id, run, record));
    *repetition = job.id;
    return PTB_OK;
}

// What is computed before the transaction, so that the file is locked only for the writing itself.
typedef struct {
    ptb_summary time_ns;
    ptb_blob samples, spans;
} encoded_rank;
typedef struct {
    int64_t repetition;
    const ptb_case_record *record;
    ptb_text params, facts; // JSON
    ptb_blob combined;
    encoded_rank *rank; // [record->ranks]
    ptb_blob *series;   // [record->series_count]
} case_job;

static void params_json(const ptb_params *params, ptb_text *json)
{
    ptb_text_append(json, "{");
    for (size_t i = 0; params && i < params->count; i++) {
        ptb_text_append(json, i ? ", " : "");
        ptb_text_append_json(json, params->items[i].name);
        ptb_text_append(json, ": ");
        ptb_text_append_json(json, params->items[i].value);
    }
    ptb_text_append(json, "}");
}

static int rank_count(const ptb_case_record *r)
{
    return r->rank ? r->ranks : 0;
}

static ptb_status encode(case_job *job)
{
    const ptb_case_record *r = job->record;
    params_json(r->params, &job->params);
    params_json(r->facts, &job->facts);
    PTB_TRY(ptb_blob_from_f64(r->combined_ns, r->combined_count, &job->combined));
    job->rank = calloc((size_t)rank_count(r) + 1, sizeof *job->rank);
    job->series = calloc(r->series_count + 1, sizeof *job->series);
    if (!job->rank || !job->series) {
        ptb_error("not enough memory to store case %s", r->key);
        return PTB_NO_MEMORY;
    }
    for (int i = 0; i < rank_count(r); i++) {
        const ptb_rank_record *mine = &r->rank[i];
        job->rank[i].time_ns = ptb_stats_summarise(mine->samples_ns, mine->count);
        PTB_TRY(ptb_blob_from_f64(mine->samples_ns, mine->count, &job->rank[i].samples));
        PTB_TRY(ptb_blob_from_spans(mine->spans, mine->spans ? mine->span_count : 0, &job->rank[i].spans));
    }
    for (size_t i = 0; i < r->series_count; i++)
        PTB_TRY(ptb_blob_from_f64(r->series[i].values, r->series[i].count, &job->series[i]));
    return PTB_OK;
}

static void release(case_job *job)
{
    ptb_text_release(&job->params);
    ptb_text_release(&job->facts);
    ptb_blob_release(&job->combined);
    for (int i = 0; job->rank && i < rank_count(job->record); i++) {
        ptb_blob_release(&job->rank[i].samples);
        ptb_blob_release(&job->rank[i].spans);
    }
    for (size_t i = 0; job->series && i < job->record->series_count; i++)
        ptb_blob_release(&job->series[i]);
    free(job->rank);
    free(job->series);
}

// A value of a summary: NULL when nothing was measured.
static void bind_time(ptb_binder *b, const ptb_summary *s, double value)
{
    ptb_bind_real(b, s->count ? value : NAN);
}

static int insert_case(ptb_store *store, const case_job *job)
{
    const ptb_case_record *r = job->record;
    const ptb_summary *s = &r->time_ns;
    ptb_binder b = ptb_bind(store, PTB_SQL_CASE_INSERT);
    ptb_bind_int(&b, job->repetition);
    ptb_bind_text(&b, r->key);
    ptb_bind_text(&b, r->bench);
    ptb_bind_count(&b, r->bytes);
    ptb_bind_int(&b, r->ranks);
    ptb_bind_int(&b, r->hosts);
    ptb_bind_text(&b, ptb_text_string(&job->params));
    ptb_bind_text(&b, ptb_text_string(&job->facts));
    ptb_bind_text(&b, r->state);
    ptb_bind_text(&b, r->reason && *r->reason ? r->reason : NULL);
    ptb_bind_text(&b, r->mode);
    ptb_bind_text(&b, r->combine);
    ptb_bind_text(&b, r->stopped);
    ptb_bind_count(&b, r->batch);
    ptb_bind_count(&b, r->warmup);
    ptb_bind_real(&b, r->started_utc_s);
    ptb_bind_real(&b, r->elapsed_s);
    ptb_bind_count(&b, s->count);
    bind_time(&b, s, s->min);
    bind_time(&b, s, s->median);
    bind_time(&b, s, s->mean);
    bind_time(&b, s, s->p95);
    bind_time(&b, s, s->p99);
    bind_time(&b, s, s->max);
    bind_time(&b, s, s->cv);
    bind_time(&b, s, s->ci_low);
    bind_time(&b, s, s->ci_high);
    bind_time(&b, s, s->ci_confidence);
    ptb_bind_blob(&b, job->combined.data, job->combined.bytes);
    return ptb_bind_run(&b);
}

static int insert_rank(ptb_store *store, int64_t id, const case_job *job, int rank)
{
    const ptb_rank_record *r = &job->record->rank[rank];
    const encoded_rank *e = &job->rank[rank];
    const ptb_summary *s = &e->time_ns;
    ptb_binder b = ptb_bind(store, PTB_SQL_RANK_INSERT);
    ptb_bind_int(&b, id);
    ptb_bind_int(&b, rank);
    ptb_bind_count(&b, r->count);
    bind_time(&b, s, s->min);
    bind_time(&b, s, s->median);
    bind_time(&b, s, s->mean);
    bind_time(&b, s, s->p95);
    bind_time(&b, s, s->p99);
    bind_time(&b, s, s->max);
    ptb_bind_count(&b, r->checked);
    ptb_bind_count(&b, r->wrong);
    ptb_bind_text(&b, r->detail && *r->detail ? r->detail : NULL);
    ptb_bind_blob(&b, e->samples.data, e->samples.bytes);
    ptb_bind_blob(&b, e->spans.data, e->spans.bytes);
    ptb_bind_count(&b, r->spans_dropped);
    return ptb_bind_run(&b);
}

static const char *better_word(ptb_better better)
{
    return better == PTB_HIGHER_IS_BETTER ? "higher" : better == PTB_LOWER_IS_BETTER ? "lower" : "neutral";
}

static int insert_metric(ptb_store *store, int64_t id, const ptb_metric *m)
{
    ptb_binder b = ptb_bind(store, PTB_SQL_METRIC_INSERT);
    ptb_bind_int(&b, id);
    ptb_bind_text(&b, m->name);
    ptb_bind_real(&b, m->value);
    ptb_bind_text(&b, m->unit);
    ptb_bind_text(&b, m->convention);
    ptb_bind_text(&b, better_word(m->better));
    return ptb_bind_run(&b);
}

static int insert_series(ptb_store *store, int64_t id, const ptb_series *series, const ptb_blob *blob)
{
    ptb_binder b = ptb_bind(store, PTB_SQL_SERIES_INSERT);
    ptb_bind_int(&b, id);
    ptb_bind_text(&b, series->name);
    ptb_bind_text(&b, series->unit);
    ptb_bind_count(&b, series->count);
    ptb_bind_blob(&b, blob->data ? blob->data : "", blob->bytes);
    return ptb_bind_run(&b);
}

// A case that failed before, or a key that a sweep holds twice: the newer measurement stands.
static int remove_older(ptb_store *store, const case_job *job)
{
    int64_t id;
    ptb_binder find = ptb_bind(store, PTB_SQL_CASE_FIND);
    ptb_bind_int(&find, job->repetition);
    ptb_bind_text(&find, job->record->key);
    int rc = ptb_bind_find(&find, &id);
    if (rc != SQLITE_OK || !id)
        return rc;
    ptb_binder b = ptb_bind(store, PTB_SQL_CASE_DELETE);
    ptb_bind_int(&b, id);
    return ptb_bind_run(&b);
}

static int add_case(ptb_store *store, void *argument)
{
    const case_job *job = argument;
    const ptb_case_record *r = job->record;
    int rc = remove_older(store, job);
    if (rc == SQLITE_OK)
        rc = insert_case(store, job);
    int64_t id = sqlite3_last_insert_rowid(store->db);
    for (int i = 0; rc == SQLITE_OK && i < rank_count(r); i++)
        rc = insert_rank(store, id, job, i);
    for (size_t i = 0; rc == SQLITE_OK && r->metrics && i < r->metrics->count; i++)
        rc = insert_metric(store, id, &r->metrics->items[i]);
    for (size_t i = 0; rc == SQLITE_OK && i < r->series_count; i++)
        rc = insert_series(store, id, &r->series[i], &job->series[i]);
    if (rc == SQLITE_OK && r->simulated) {
        ptb_binder b = ptb_bind(store, PTB_SQL_RUN_SIMULATED);
        ptb_bind_int(&b, job->repetition);
        rc = ptb_bind_run(&b);
    }
    return rc;
}

ptb_status ptb_store_add_case(ptb_store *store, int64_t repetition, const ptb_case_record *record)
{
    case_job job = {.repetition = repetition, .record = record};
    ptb_status status = encode(&job);
    if (status == PTB_OK)
        status = write_all(store, "store a case in", add_case, &job);
    if (status == PTB_OK)
        store->cases_written++;
    release(&job);
    return status;
}
