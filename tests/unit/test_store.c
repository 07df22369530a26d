// The store on a good disk: what goes in comes out, runs are found, cases are resumed, spans and series keep
// every bit, a killed writer loses at most the case in flight.
#include "store_fixture.h"

#include "core/process.h"

#include <locale.h>
#include <math.h>
#include <signal.h>
#include <sys/wait.h>

static void one_case_comes_back(void **state)
{
    (void)state;
    ptb_store *store;
    int64_t run;
    assert_int_equal(ptb_store_open("r.db", PTB_STORE_WRITE, &store), PTB_OK);
    int64_t repetition = fixture_begin(store, FIXTURE_UUID, &run);
    assert_int_equal(fixture_add(store, repetition, 1024, "ok"), PTB_OK);
    assert_int_equal(ptb_store_finish_run(store, run, "complete", NULL), PTB_OK);
    assert_null(ptb_store_spill_path(store));
    ptb_store_close(store);

    assert_int_equal(ptb_store_open("r.db", PTB_STORE_READ, &store), PTB_OK);
    ptb_table *t;
    const char *args[] = {"1"};
    assert_int_equal(
        ptb_store_query(store,
                        "SELECT r.uuid, r.state, r.label, c.bytes, c.params ->> 'op', c.facts ->> "
                        "'algorithm', c.samples, c.median_ns, c.reason, c.params ->> 'note', "
                        "r.finished_utc_s, '12.5' FROM run r JOIN repetition p ON p.run_id = r.id JOIN "
                        "bench_case c ON c.repetition_id = p.id WHERE r.id = ?1",
                        args, 1, &t),
        PTB_OK);
    assert_int_equal(t->rows, 1);
    assert_int_equal(t->columns, 12);
    assert_string_equal(t->names[3], "bytes");
    assert_string_equal(ptb_table_cell(t, 0, 0), FIXTURE_UUID);
    assert_string_equal(ptb_table_cell(t, 0, 1), "complete");
    assert_string_equal(ptb_table_cell(t, 0, 2), "before \"tuning\"");
    assert_string_equal(ptb_table_cell(t, 0, 3), "1024");
    assert_true(ptb_table_number(t, 0, 3) == 1024);
    assert_string_equal(ptb_table_cell(t, 0, 4), "sum");
    assert_true(isnan(ptb_table_number(t, 0, 4)));
    assert_string_equal(ptb_table_cell(t, 0, 5), "ring");
    assert_true(ptb_table_number(t, 0, 6) == FIXTURE_SAMPLES);
    double want[FIXTURE_SAMPLES];
    for (size_t i = 0; i < FIXTURE_SAMPLES; i++)
        want[i] = fixture_sample(1024, 1, i);
    assert_true(ptb_table_number(t, 0, 7) == ptb_stats_summarise(want, FIXTURE_SAMPLES).median);
    assert_null(t->cells[8]);
    assert_string_equal(ptb_table_cell(t, 0, 8), "");
    assert_string_equal(ptb_table_cell(t, 0, 9), "a \"quoted\", comma");
    assert_true(ptb_table_number(t, 0, 10) > 1.7e9);
    assert_true(ptb_table_number(t, 0, 11) == 12.5);
    ptb_table_free(t);
    ptb_store_close(store);
}

static void arrays_keep_every_bit(void **state)
{
    (void)state;
    ptb_store *store;
    int64_t run;
    assert_int_equal(ptb_store_open("r.db", PTB_STORE_WRITE, &store), PTB_OK);
    assert_int_equal(fixture_add(store, fixture_begin(store, FIXTURE_UUID, &run), 8, "ok"), PTB_OK);
    double *values;
    size_t count;
    for (int rank = -1; rank < FIXTURE_RANKS; rank++) {
        assert_int_equal(ptb_store_samples(store, 1, rank, &values, &count), PTB_OK);
        assert_int_equal(count, FIXTURE_SAMPLES);
        for (size_t i = 0; i < count; i++)
            assert_true(values[i] == fixture_sample(8, rank < 0 ? 1 : rank, i));
        free(values);
    }
    assert_int_equal(ptb_store_series(store, 1, "loss", &values, &count), PTB_OK);
    assert_int_equal(count, 4);
    assert_true(values[2] == 0.1);
    free(values);
    ptb_span *spans;
    assert_int_equal(ptb_store_spans(store, 1, 1, &spans, &count), PTB_OK);
    assert_int_equal(count, FIXTURE_SPANS);
    for (int i = 0; i < FIXTURE_SPANS; i++) {
        assert_true(spans[i].begin_ns == 5000 - 1000 * i && spans[i].end_ns == 5250 - 1000 * i);
        assert_true(spans[i].rank == 1 && spans[i].stream == i - 1 && spans[i].unit == -1);
        assert_true(spans[i].kind == PTB_SPAN_COMM && spans[i].phase == PTB_PHASE_BACKWARD);
        assert_true(spans[i].microbatch == i && spans[i].axis == 1 && spans[i].correlation == 7);
        assert_true(spans[i].bytes == UINT64_MAX - (uint64_t)i);
        assert_string_equal(spans[i].name, "all_reduce");
    }
    free(spans);
    assert_int_equal(ptb_store_spans(store, 1, 0, &spans, &count), PTB_OK);
    assert_int_equal(count, 0);
    assert_null(spans);
    int saved = fixture_catch_errors();
    char text[512];
    ptb_status missing = ptb_store_samples(store, 99, 0, &values, &count);
    ptb_status no_series = ptb_store_series(store, 1, "entropy", &values, &count);
    fixture_release_errors(saved, text, sizeof text);
    assert_int_equal(missing, PTB_USAGE);
    assert_int_equal(no_series, PTB_USAGE);
    assert_non_null(strstr(text, "entropy"));
    ptb_store_close(store);
}

static void what_is_not_a_number_is_null(void **state)
{
    (void)state;
    ptb_store *store;
    int64_t run;
    assert_int_equal(ptb_store_open("r.db", PTB_STORE_WRITE, &store), PTB_OK);
    int64_t repetition = fixture_begin(store, FIXTURE_UUID, &run);
    assert_int_equal(fixture_add(store, repetition, 8, "ok"), PTB_OK);
    ptb_params params = {0};
    ptb_case_record skipped = {.bench = "barrier",
                               .key = "barrier",
                               .params = &params,
                               .ranks = 2,
                               .hosts = 1,
                               .state = "skipped",
                               .reason = "needs 4 ranks"};
    assert_int_equal(ptb_store_add_case(store, repetition, &skipped), PTB_OK);
    assert_true(fixture_number(store, "SELECT count(*) FROM metric WHERE name = 'algbw' AND value IS NULL") ==
                1);
    assert_true(fixture_number(store, "SELECT count(*) FROM metric WHERE name = 'busbw' AND value = 12.5 AND "
                                      "unit = 'GB/s' AND better = 'higher'") == 1);
    assert_true(fixture_number(store,
                               "SELECT count(*) FROM bench_case WHERE key = 'barrier' AND samples = 0 AND "
                               "median_ns IS NULL AND ci_low_ns IS NULL AND combined IS NULL AND facts = "
                               "'{}' AND reason = 'needs 4 ranks'") == 1);
    ptb_store_close(store);
}

static void a_resumed_run_knows_what_is_done(void **state)
{
    (void)state;
    ptb_store *store;
    int64_t run, again;
    assert_int_equal(ptb_store_open("r.db", PTB_STORE_WRITE, &store), PTB_OK);
    int64_t repetition = fixture_begin(store, FIXTURE_UUID, &run);
    assert_int_equal(fixture_add(store, repetition, 1, "ok"), PTB_OK);
    assert_int_equal(fixture_add(store, repetition, 2, "failed"), PTB_OK);
    assert_int_equal(fixture_add(store, repetition, 3, "wrong"), PTB_OK);
    assert_int_equal(fixture_add(store, repetition, 4, "skipped"), PTB_OK);
    assert_int_equal(ptb_store_finish_run(store, run, "interrupted", "Ctrl-C"), PTB_OK);
    ptb_store_close(store);

    assert_int_equal(ptb_store_open("r.db", PTB_STORE_WRITE, &store), PTB_OK);
    char **keys;
    size_t count;
    assert_int_equal(ptb_store_done_keys(store, FIXTURE_UUID, 0, &keys, &count), PTB_OK);
    assert_int_equal(count, 3);
    assert_string_equal(keys[0], "all_reduce/bytes=1");
    assert_string_equal(keys[1], "all_reduce/bytes=3");
    ptb_store_free_strings(keys, count);
    assert_int_equal(ptb_store_done_keys(store, FIXTURE_UUID, 1, &keys, &count), PTB_OK);
    assert_int_equal(count, 0);
    ptb_store_free_strings(keys, count);

    assert_int_equal(fixture_begin(store, FIXTURE_UUID, &again), repetition);
    assert_int_equal(again, run);
    assert_true(fixture_number(store, "SELECT state = 'running' AND reason IS NULL FROM run") == 1);
    assert_int_equal(fixture_add(store, repetition, 2, "ok"), PTB_OK);
    assert_true(fixture_number(store, "SELECT count(*) FROM bench_case") == 4);
    assert_true(fixture_number(store, "SELECT count(*) FROM bench_case WHERE state = 'failed'") == 0);
    assert_true(fixture_number(store, "SELECT count(*) FROM case_rank") == 8);
    ptb_store_close(store);
}

static void bad_records_are_refused(void **state)
{
    (void)state;
    ptb_store *store;
    int64_t run;
    assert_int_equal(ptb_store_open("r.db", PTB_STORE_WRITE, &store), PTB_OK);
    int64_t repetition = fixture_begin(store, FIXTURE_UUID, &run);
    int saved = fixture_catch_errors();
    char text[4096];
    ptb_status bad_state = fixture_add(store, repetition, 1, "splendid");
    ptb_status no_parent = fixture_add(store, repetition + 77, 1, "ok");
    ptb_table *t = NULL;
    ptb_status writes = ptb_store_query(store, "DELETE FROM run", NULL, 0, &t);
    ptb_status nonsense = ptb_store_query(store, "SELECT id FROM nowhere", NULL, 0, &t);
    fixture_release_errors(saved, text, sizeof text);
    assert_int_equal(bad_state, PTB_INTERNAL);
    assert_int_equal(no_parent, PTB_INTERNAL);
    assert_int_equal(writes, PTB_INTERNAL);
    assert_int_equal(nonsense, PTB_STORE);
    assert_non_null(strstr(text, "nowhere"));
    assert_null(t);
    assert_null(ptb_store_spill_path(store));
    assert_int_equal(fixture_add(store, repetition, 1, "ok"), PTB_OK);
    assert_true(fixture_number(store, "SELECT count(*) FROM bench_case") == 1);
    ptb_store_close(store);
}

static ptb_status find(ptb_store *store, const char *text, int64_t *run, char *errors, size_t size)
{
    int saved = fixture_catch_errors();
    ptb_status status = ptb_store_find_run(store, text, run);
    fixture_release_errors(saved, errors, size);
    return status;
}

static void runs_are_found(void **state)
{
    (void)state;
    ptb_store *store;
    int64_t run;
    char errors[1024];
    assert_int_equal(ptb_store_open("r.db", PTB_STORE_WRITE, &store), PTB_OK);
    assert_int_equal(find(store, "last", &run, errors, sizeof errors), PTB_USAGE);
    assert_non_null(strstr(errors, "holds no run yet"));
    static const struct {
        const char *uuid, *label;
        double start;
    } made[] = {{"aaaa1111-0000-0000-0000-000000000000", "nightly", 100},
                {"aaaa2222-0000-0000-0000-000000000000", NULL, 300},
                {"bbbb1111-0000-0000-0000-000000000000", "nightly", 200}};
    for (int i = 0; i < 3; i++) {
        ptb_run_record record = fixture_run(made[i].uuid);
        record.label = made[i].label;
        record.started_utc_s = made[i].start;
        assert_int_equal(ptb_store_begin_run(store, &record, &run), PTB_OK);
        assert_int_equal(run, i + 1);
    }
    static const struct {
        const char *text;
        int64_t run;
    } good[] = {{"1", 1},      {"3", 3},     {"last", 2}, {"last~0", 2}, {"last~1", 3},
                {"last~2", 1}, {"aaaa1", 1}, {"BBBB", 3}, {"nightly", 3}};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_int_equal(find(store, good[i].text, &run, errors, sizeof errors), PTB_OK);
        assert_int_equal(run, good[i].run);
    }
    static const struct {
        const char *text, *message;
    } bad[] = {
        {"last~3", "the oldest is 'last~2'"}, {"aaaa", "begins the UUID of 2 runs"}, {"nihtly", "'nightly'"},
        {"4", "there is no run '4'"},         {"last~x", "there is no run"},         {"", "there is no run"},
        {"last~-1", "there is no run"}};
    run = -5;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(find(store, bad[i].text, &run, errors, sizeof errors), PTB_USAGE);
        assert_non_null(strstr(errors, bad[i].message));
    }
    assert_int_equal(run, -5);
    ptb_store_close(store);
}

// The child stores cases for ever and reports each; the parent kills it in the middle.
static void a_killed_writer_loses_one_case_at_most(void **state)
{
    (void)state;
    enum { ENOUGH = 25 };
    int reports[2];
    assert_int_equal(pipe(reports), 0);
    pid_t child = fork();
    if (child == 0) {
        ptb_store *store;
        int64_t run, repetition;
        if (ptb_store_open("r.db", PTB_STORE_WRITE, &store) != PTB_OK)
            _exit(1);
        repetition = fixture_begin(store, FIXTURE_UUID, &run);
        for (int i = 0;; i++)
            if (fixture_add(store, repetition, i, "ok") != PTB_OK || write(reports[1], "x", 1) != 1)
                _exit(1);
    }
    close(reports[1]);
    int reported = 0;
    char byte;
    while (reported < ENOUGH && read(reports[0], &byte, 1) == 1)
        reported++;
    assert_int_equal(reported, ENOUGH);
    kill(child, SIGKILL);
    while (read(reports[0], &byte, 1) == 1)
        reported++;
    close(reports[0]);
    int how;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFSIGNALED(how));

    ptb_store *store;
    assert_int_equal(ptb_store_open("r.db", PTB_STORE_WRITE, &store), PTB_OK);
    double cases = fixture_number(store, "SELECT count(*) FROM bench_case");
    assert_true(cases == reported || cases == reported + 1);
    assert_true(fixture_number(store, "SELECT count(*) FROM case_rank") == 2 * cases);
    assert_true(fixture_number(
                    store, "SELECT count(*) FROM pragma_integrity_check WHERE integrity_check = 'ok'") == 1);
    double *values;
    size_t count;
    assert_int_equal(ptb_store_samples(store, (int64_t)cases, 1, &values, &count), PTB_OK);
    assert_int_equal(count, FIXTURE_SAMPLES);
    free(values);
    ptb_store_close(store);
}

static void readers_work_beside_the_writer(void **state)
{
    (void)state;
    ptb_store *writer, *reader;
    int64_t run;
    assert_int_equal(ptb_store_open("r.db", PTB_STORE_WRITE, &writer), PTB_OK);
    int64_t repetition = fixture_begin(writer, FIXTURE_UUID, &run);
    assert_int_equal(ptb_store_open("r.db", PTB_STORE_READ, &reader), PTB_OK);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(fixture_add(writer, repetition, i, "ok"), PTB_OK);
        assert_true(fixture_number(reader, "SELECT count(*) FROM bench_case") == i + 1);
    }
    assert_true(
        fixture_number(writer, "SELECT count(*) FROM pragma_journal_mode WHERE journal_mode = 'wal'") == 1);
    ptb_store_close(writer);
    ptb_store_close(reader);
    assert_int_not_equal(access("r.db-wal", F_OK), 0); // the last one tidies up
}

static bool always_network(const char *path, const char **name)
{
    (void)path;
    *name = "NFS";
    return true;
}

static void a_network_file_system_gets_a_plain_journal(void **state)
{
    (void)state;
    static const char is_delete[] = "SELECT count(*) FROM pragma_journal_mode WHERE journal_mode = 'delete'";
    ptb_store_settings settings = ptb_store_default_settings();
    settings.is_network = always_network;
    ptb_store *store;
    int64_t run;
    char errors[1024];
    for (int opening = 0; opening < 2; opening++) { // a new file, then one that was in WAL mode
        int saved = fixture_catch_errors();
        ptb_log_set_level(PTB_LOG_WARN);
        ptb_status status = ptb_store_open_with("r.db", PTB_STORE_WRITE, &settings, &store);
        ptb_log_set_level(PTB_LOG_ERROR);
        fixture_release_errors(saved, errors, sizeof errors);
        assert_int_equal(status, PTB_OK);
        assert_non_null(strstr(errors, "network file system (NFS)"));
        assert_true(fixture_number(store, is_delete) == 1);
        assert_int_equal(fixture_add(store, fixture_begin(store, FIXTURE_UUID, &run), opening, "ok"), PTB_OK);
        assert_int_not_equal(access("r.db-wal", F_OK), 0);
        ptb_store_close(store);
        assert_int_equal(ptb_store_open("r.db", PTB_STORE_WRITE, &store), PTB_OK);
        assert_true(fixture_number(store, is_delete) == 0);
        ptb_store_close(store);
    }
    assert_true(fixture_number_in("r.db", "SELECT count(*) FROM bench_case") == 2);
}

// Begins the run anew with these processes, and says what it then counts as.
static void assert_counts_as(ptb_store *store, const char *processes, const char *state, const char *host)
{
    ptb_run_record record = fixture_run(FIXTURE_UUID);
    int64_t run;
    ptb_table *table;
    record.processes = processes;
    assert_int_equal(ptb_store_begin_run(store, &record, &run), PTB_OK);
    static const char sql[] =
        "SELECT ptb_run_state(state, processes), ptb_run_host(state, processes) FROM run";
    assert_int_equal(ptb_store_query(store, sql, NULL, 0, &table), PTB_OK);
    assert_int_equal(table->rows, 1);
    assert_string_equal(ptb_table_cell(table, 0, 0), state);
    assert_string_equal(ptb_table_cell(table, 0, 1), host);
    ptb_table_free(table);
}

// A run whose end was never stored has died when all its processes are gone for certain.
static void a_run_without_end_died_or_runs(void **state)
{
    (void)state;
    ptb_store *store;
    ptb_text own = PTB_TEXT_INIT, gone = PTB_TEXT_INIT, both = PTB_TEXT_INIT, mixed = PTB_TEXT_INIT;
    ptb_process_append(&own);
    const char *text = ptb_text_string(&own);
    ptb_text_printf(&gone, "%.*s 1", (int)(strrchr(text, ' ') - text), text); // its number is ours now
    ptb_text_printf(&both, "%s\n%s", ptb_text_string(&gone), text);
    ptb_text_printf(&mixed, "%s\nelsewhere machine boot spaces 17 2", ptb_text_string(&gone));
    assert_int_equal(ptb_store_open("r.db", PTB_STORE_WRITE, &store), PTB_OK);
    assert_counts_as(store, NULL, "running", "");
    assert_counts_as(store, text, "running", "");
    assert_counts_as(store, ptb_text_string(&gone), "died", "");
    assert_counts_as(store, ptb_text_string(&both), "running", "");
    assert_counts_as(store, ptb_text_string(&mixed), "running", "elsewhere");
    assert_counts_as(store, "elsewhere machine boot spaces 17 2", "running", "elsewhere");
    assert_counts_as(store, "no line of ours", "running", "no");
    assert_counts_as(store, ptb_text_string(&gone), "died", "");
    int64_t run = (int64_t)fixture_number(store, "SELECT id FROM run");
    assert_int_equal(ptb_store_finish_run(store, run, "complete", NULL), PTB_OK);
    assert_true(fixture_number(store, "SELECT ptb_run_state(state, processes) = 'complete' AND "
                                      "ptb_run_host(state, processes) IS NULL FROM run") == 1);
    ptb_store_close(store);
    ptb_text_release(&own);
    ptb_text_release(&gone);
    ptb_text_release(&both);
    ptb_text_release(&mixed);
}

int main(void)
{
    setlocale(LC_ALL, "");
#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_enter, fixture_leave)
    const struct CMUnitTest tests[] = {
        TEST(one_case_comes_back),
        TEST(arrays_keep_every_bit),
        TEST(what_is_not_a_number_is_null),
        TEST(a_resumed_run_knows_what_is_done),
        TEST(bad_records_are_refused),
        TEST(runs_are_found),
        TEST(a_killed_writer_loses_one_case_at_most),
        TEST(a_run_without_end_died_or_runs),
        TEST(readers_work_beside_the_writer),
        TEST(a_network_file_system_gets_a_plain_journal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
