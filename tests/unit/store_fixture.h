// What the tests of the store share: a folder of their own that is also the current one, and records to
// store.
#ifndef PTB_TESTS_UNIT_STORE_FIXTURE_H
#define PTB_TESTS_UNIT_STORE_FIXTURE_H

#include "core/bench.h"
#include "core/log.h"
#include "results/store.h"
#include "results/store_internal.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#define FIXTURE_UUID "01234567-89ab-cdef-0123-456789abcdef"
enum { FIXTURE_RANKS = 2 };

// cmocka set-up and tear-down: enters a fresh folder (*state), and removes it.
static inline int fixture_enter_in(const char *parent, void **state)
{
    char *folder = NULL;
    if (asprintf(&folder, "%s/ptbench-store-XXXXXX", parent) < 0 || !mkdtemp(folder) || chdir(folder) != 0)
        return -1;
    setenv("TMPDIR", folder, 1);
    ptb_log_set_level(PTB_LOG_ERROR);
    *state = folder;
    return 0;
}

static inline int fixture_enter(void **state)
{
    return fixture_enter_in("/tmp", state);
}

static inline int fixture_leave(void **state)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", (char *)*state);
    int rc = chdir("/");
    rc |= system(command);
    free(*state);
    return rc;
}

// Sends standard error to the file "errors" of the current folder; fixture_errors reads it back.
static inline int fixture_catch_errors(void)
{
    fflush(stderr);
    int saved = dup(2);
    assert_non_null(freopen("errors", "w", stderr));
    return saved;
}
static inline void fixture_release_errors(int saved, char *text, size_t size)
{
    fflush(stderr);
    dup2(saved, 2);
    close(saved);
    FILE *file = fopen("errors", "r");
    assert_non_null(file);
    text[fread(text, 1, size - 1, file)] = '\0';
    fclose(file);
}

static inline ptb_run_record fixture_run(const char *uuid)
{
    return (ptb_run_record){
        .uuid = uuid,
        .started_utc_s = 1764424095.5,
        .command = "ptbench run quick",
        .selection = "quick",
        .label = "before \"tuning\"",
        .version = "1.10",
        .build = "{\"compiler\": \"gcc\"}",
        .options = "{\"measurement\": {\"ci\": \"0.02\"}}",
        .environment = "{\"LANG\": \"C\"}",
        .hosts = "[{\"hostname\": \"h0\"}]",
        .fingerprint = "00ff",
        .processes = "elsewhere machine boot spaces 17 2",
        .clock_resolution_ns = 1,
        .clock_overhead_ns = 20.5,
        .loop_overhead_ns = 1.25,
    };
}

static inline int64_t fixture_begin(ptb_store *store, const char *uuid, int64_t *run)
{
    ptb_run_record record = fixture_run(uuid);
    assert_int_equal(ptb_store_begin_run(store, &record, run), PTB_OK);
    ptb_repetition_record repetition = {.index = 0,
                                        .started_utc_s = record.started_utc_s + 1,
                                        .ranks = FIXTURE_RANKS,
                                        .hosts = 1,
                                        .launcher = "mpirun (Open MPI 4.1.4)",
                                        .placement = "[{\"host\": 0, \"cpus\": \"0\"}]"};
    int64_t id;
    assert_int_equal(ptb_store_begin_repetition(store, *run, &repetition, &id), PTB_OK);
    return id;
}

// Sample i of rank r of case `number`.
static inline double fixture_sample(int number, int rank, size_t i)
{
    return 1000.0 * number + 100.25 * rank + (double)((i * 7919) % 101);
}

enum { FIXTURE_SAMPLES = 50, FIXTURE_SPANS = 3 };

// Stores case `number` with every kind of data.
static inline ptb_status fixture_add(ptb_store *store, int64_t repetition, int number,
                                     const char *status_word)
{
    static double samples[FIXTURE_RANKS][FIXTURE_SAMPLES], losses[4] = {4.5, 4.25, 0.1, 3};
    ptb_span spans[FIXTURE_SPANS];
    char key[64];
    snprintf(key, sizeof key, "all_reduce/bytes=%d", number);
    for (int r = 0; r < FIXTURE_RANKS; r++)
        for (size_t i = 0; i < FIXTURE_SAMPLES; i++)
            samples[r][i] = fixture_sample(number, r, i);
    for (int i = 0; i < FIXTURE_SPANS; i++)
        spans[i] = (ptb_span){.begin_ns = 5000 - 1000 * i,
                              .end_ns = 5000 - 1000 * i + 250,
                              .rank = 1,
                              .stream = (int16_t)(i - 1),
                              .kind = PTB_SPAN_COMM,
                              .phase = PTB_PHASE_BACKWARD,
                              .unit = -1,
                              .microbatch = i,
                              .axis = 1,
                              .bytes = UINT64_MAX - (uint64_t)i,
                              .correlation = 7,
                              .name = "all_reduce"};
    ptb_params params = {0}, facts = {0};
    ptb_params_set(&params, "op", "sum");
    ptb_params_set(&params, "note", "a \"quoted\", comma");
    ptb_params_set(&facts, "algorithm", "ring");
    ptb_metrics metrics = {0};
    ptb_metrics_add(&metrics, "busbw", 12.5, "GB/s", PTB_HIGHER_IS_BETTER, "2(n-1)/n * S / t, t = median");
    ptb_metrics_add(&metrics, "algbw", NAN, "GB/s", PTB_HIGHER_IS_BETTER, "S / t");
    ptb_rank_record ranks[FIXTURE_RANKS] = {
        {.samples_ns = samples[0], .count = FIXTURE_SAMPLES, .checked = 10},
        {.samples_ns = samples[1],
         .count = FIXTURE_SAMPLES,
         .checked = 10,
         .wrong = 1,
         .detail = "rank 1, element 17: wanted 3, got 0",
         .spans = spans,
         .span_count = FIXTURE_SPANS,
         .spans_dropped = 5},
    };
    ptb_series series = {.name = "loss", .unit = "nats", .values = losses, .count = 4};
    ptb_case_record record = {.bench = "all_reduce",
                              .key = key,
                              .params = &params,
                              .facts = &facts,
                              .bytes = (uint64_t)number,
                              .ranks = FIXTURE_RANKS,
                              .hosts = 1,
                              .state = status_word,
                              .reason = strcmp(status_word, "ok") == 0 ? NULL : "a reason",
                              .mode = "latency",
                              .combine = "max",
                              .stopped = "ci",
                              .batch = 1,
                              .warmup = 3,
                              .started_utc_s = 1764424100,
                              .elapsed_s = 0.5,
                              .time_ns = ptb_stats_summarise(samples[1], FIXTURE_SAMPLES),
                              .combined_ns = samples[1],
                              .combined_count = FIXTURE_SAMPLES,
                              .rank = ranks,
                              .metrics = &metrics,
                              .series = &series,
                              .series_count = 1};
    return ptb_store_add_case(store, repetition, &record);
}

// The first cell of a query as a number.
static inline double fixture_number(ptb_store *store, const char *sql)
{
    ptb_table *table;
    assert_int_equal(ptb_store_query(store, sql, NULL, 0, &table), PTB_OK);
    assert_int_equal(table->rows, 1);
    double number = ptb_table_number(table, 0, 0);
    ptb_table_free(table);
    return number;
}

// The same on a file.
static inline double fixture_number_in(const char *path, const char *sql)
{
    ptb_store *store;
    assert_int_equal(ptb_store_open(path, PTB_STORE_READ, &store), PTB_OK);
    double number = fixture_number(store, sql);
    ptb_store_close(store);
    return number;
}

#endif
