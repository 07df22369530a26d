// The results database (SQLite, WAL). One writer, rank 0; one transaction a case. run -> repetition -> case
// -> rank. When the database cannot be written, the store spills: it goes on into a fresh SQLite file of the
// same schema in the first writable folder of (beside the database, current folder, $TMPDIR, /tmp), which
// `ptbench import` merges by run UUID.
#ifndef PTB_RESULTS_STORE_H
#define PTB_RESULTS_STORE_H

#include "core/bench.h"
#include "core/clock.h"

#include <stdint.h>

typedef struct ptb_store ptb_store;
typedef enum { PTB_STORE_READ, PTB_STORE_WRITE } ptb_store_mode;

// READ: USAGE when the file does not exist, STORE when it cannot be read or is from a newer schema; logged
// with what to do. WRITE: creates and migrates; on failure opens a spill file instead and returns OK (see
// ptb_store_spill_path); STORE only when no spill file can be opened either.
ptb_status ptb_store_open(const char *path, ptb_store_mode mode, ptb_store **store);
void ptb_store_close(ptb_store *store);
// NULL while everything went into the database; else the spill file. The program then ends with exit code 6.
const char *ptb_store_spill_path(const ptb_store *store);

typedef struct {
    const char *uuid; // 36 characters
    double started_utc_s;
    const char *command;   // as typed
    const char *selection; // "quick" or "all_reduce"
    const char *label;     // --label or NULL
    const char *version;   // of ptbench
    const char
        *git_revision;   // of the thing under test: --revision, else that of the current folder, else NULL
    const char *build;   // JSON: compiler, flags, library versions (name -> version)
    const char *options; // JSON: effective options by owner
    const char *environment; // JSON: name -> value, secrets masked
    const char *hosts;       // JSON array of topologies (core/topology.h), one a host, in host order
    const char *fingerprint; // hex, of all hosts
    const char *processes;   // that keep the run going, a line each (core/process.h); NULL: not known
    bool simulated;
    double clock_resolution_ns, clock_overhead_ns, loop_overhead_ns;
} ptb_run_record;

// SQL functions of every query, for runs whose processes went without storing an end. state, processes:
// columns of the table run.
//   ptb_run_state(state, processes)  "died" for "running" when all of them have ended for certain; else state
//   ptb_run_host(state, processes)   the host of one whose end cannot be known here, while the run counts as
//                                    running and none is seen to live; else NULL

// Opens the run with this UUID (it is "running" again) or inserts it. *run is its id, also in a spill file.
ptb_status ptb_store_begin_run(ptb_store *store, const ptb_run_record *record, int64_t *run);
// state: "running", "complete", "interrupted", "failed".
ptb_status ptb_store_finish_run(ptb_store *store, int64_t run, const char *state, const char *reason);

typedef struct {
    int index; // 0, 1, ... : a fresh set of processes each
    double started_utc_s;
    int ranks, hosts;
    const char *launcher;  // "mpirun (Open MPI 4.1.4)", "srun", ...
    const char *placement; // JSON array: per rank {host, cpus, cuda_visible_devices where set}
} ptb_repetition_record;
ptb_status ptb_store_begin_repetition(ptb_store *store, int64_t run, const ptb_repetition_record *record,
                                      int64_t *repetition);

typedef struct {
    const double *samples_ns; // ns per iteration
    size_t count;
    uint64_t checked, wrong;
    const char *detail;    // first mismatch or NULL
    const ptb_span *spans; // may be NULL
    size_t span_count, spans_dropped;
} ptb_rank_record;

typedef struct {
    const char *bench;
    const char *key;
    const ptb_params *params, *facts; // facts may be NULL
    uint64_t bytes;
    int ranks, hosts;
    bool simulated;      // it ran on a simulated device: then the whole run counts as simulated
    const char *state;   // "ok", "wrong", "skipped", "failed"
    const char *reason;  // why skipped or failed, or the first mismatch
    const char *mode;    // "latency", "back-to-back"
    const char *combine; // "max", "avg": how ranks' times became one
    const char *stopped; // "ci", "max-time", "fixed", "max-iters"
    uint64_t batch, warmup;
    double started_utc_s, elapsed_s;
    ptb_summary time_ns;       // combined over ranks
    const double *combined_ns; // the combined samples themselves
    size_t combined_count;
    const ptb_rank_record *rank; // [ranks]
    const ptb_metrics *metrics;
    const ptb_series *series;
    size_t series_count;
} ptb_case_record;
// A case with the same key (one that failed before a --resume) is replaced. INTERNAL when the record breaks a
// rule of the schema.
ptb_status ptb_store_add_case(ptb_store *store, int64_t repetition, const ptb_case_record *record);

// Keys of the cases of a repetition that are done (ok, wrong or skipped), for --resume; heap strings in a
// heap array, freed by ptb_store_free_strings. None when the run is not there.
ptb_status ptb_store_done_keys(ptb_store *store, const char *uuid, int repetition_index, char ***keys,
                               size_t *count);
void ptb_store_free_strings(char **strings, size_t count);

// A query result, all in memory. cell text is "" for NULL.
typedef struct {
    size_t columns, rows;
    char **names;    // [columns]
    char **cells;    // [rows * columns]; NULL for SQL NULL and blobs
    double *numbers; // [rows * columns]; NAN where not numeric; text that is a number counts
} ptb_table;
// Runs one SELECT with text or integer arguments bound to ?1, ?2, ... (all given as text; use CAST in SQL
// where it matters).
ptb_status ptb_store_query(ptb_store *store, const char *sql, const char *const *args, size_t arg_count,
                           ptb_table **table);
void ptb_table_free(ptb_table *table);
static inline const char *ptb_table_cell(const ptb_table *t, size_t row, size_t column)
{
    const char *cell = t->cells[row * t->columns + column];
    return cell ? cell : "";
}
static inline double ptb_table_number(const ptb_table *t, size_t row, size_t column)
{
    return t->numbers[row * t->columns + column];
}

// Decompressed samples (ns) of a case: rank >= 0, or -1 for the combined ones. Heap array, NULL when count is
// 0. USAGE when there is no such case, rank or series.
ptb_status ptb_store_samples(ptb_store *store, int64_t case_id, int rank, double **samples, size_t *count);
ptb_status ptb_store_series(ptb_store *store, int64_t case_id, const char *name, double **values,
                            size_t *count);
ptb_status ptb_store_spans(ptb_store *store, int64_t case_id, int rank, ptb_span **spans, size_t *count);

// Resolves what a user typed for a run: an id, a UUID prefix, a label, "last", "last~2". USAGE with near
// matches otherwise.
ptb_status ptb_store_find_run(ptb_store *store, const char *text, int64_t *run);
// Merges every run of the file at `path` (results/import.h has the kinds) in one transaction. What is there
// stays (but a failed case gives way to a measured one); doing it again changes nothing. *runs: runs that
// gained something, *cases: cases that were added.
ptb_status ptb_store_import(ptb_store *store, const char *path, size_t *runs, size_t *cases);

#endif
