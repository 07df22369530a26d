// Merging of databases: by UUID, ordinal and key; what is there stays; all or nothing.
#include "store_fixture.h"

static const char other_uuid[] = "11111111-89ab-cdef-0123-456789abcdef";

// Stores cases [first, first + count) of a run with this state word each.
static void make(const char *path, const char *uuid, int first, int count, const char *word)
{
    ptb_store *store;
    int64_t run;
    assert_int_equal(ptb_store_open(path, PTB_STORE_WRITE, &store), PTB_OK);
    int64_t repetition = fixture_begin(store, uuid, &run);
    for (int i = 0; i < count; i++)
        assert_int_equal(fixture_add(store, repetition, first + i, word), PTB_OK);
    ptb_store_close(store);
}

static ptb_status import(const char *into, const char *path, size_t *runs, size_t *cases, char *errors,
                         size_t size)
{
    ptb_store *store;
    assert_int_equal(ptb_store_open(into, PTB_STORE_WRITE, &store), PTB_OK);
    int saved = fixture_catch_errors();
    ptb_status status = ptb_store_import(store, path, runs, cases);
    fixture_release_errors(saved, errors, size);
    ptb_store_close(store);
    return status;
}

static void what_is_there_stays(void **state)
{
    (void)state;
    size_t runs, cases;
    char errors[2048];
    make("a.db", FIXTURE_UUID, 0, 4, "ok");
    make("b.db", FIXTURE_UUID, 2, 4, "wrong"); // 2 and 3 are in both
    make("b.db", other_uuid, 0, 2, "ok");
    assert_int_equal(import("a.db", "b.db", &runs, &cases, errors, sizeof errors), PTB_OK);
    assert_int_equal(runs, 2);
    assert_int_equal(cases, 4);
    assert_true(fixture_number_in("a.db", "SELECT count(*) FROM run") == 2);
    assert_true(fixture_number_in("a.db", "SELECT count(*) FROM bench_case") == 8);
    assert_true(fixture_number_in("a.db", "SELECT count(*) FROM bench_case WHERE state = 'wrong'") == 2);
    assert_true(fixture_number_in("a.db", "SELECT count(*) FROM case_rank") == 16);
    assert_int_equal(import("a.db", "b.db", &runs, &cases, errors, sizeof errors), PTB_OK);
    assert_int_equal(runs + cases, 0);
    assert_true(fixture_number_in("b.db", "SELECT count(*) FROM bench_case") == 6); // the source is as it was
}

static void a_failed_case_gives_way(void **state)
{
    (void)state;
    size_t runs, cases;
    char errors[2048];
    make("a.db", FIXTURE_UUID, 0, 2, "failed");
    make("b.db", FIXTURE_UUID, 0, 1, "ok");
    make("c.db", FIXTURE_UUID, 0, 2, "failed");
    assert_int_equal(import("a.db", "b.db", &runs, &cases, errors, sizeof errors), PTB_OK);
    assert_int_equal(cases, 1);
    assert_int_equal(import("a.db", "c.db", &runs, &cases, errors, sizeof errors), PTB_OK);
    assert_int_equal(cases, 0);
    assert_true(fixture_number_in("a.db", "SELECT count(*) FROM bench_case WHERE state = 'ok'") == 1);
    assert_true(fixture_number_in("a.db", "SELECT count(*) FROM bench_case") == 2);
}

static void the_later_end_of_a_run_counts(void **state)
{
    (void)state;
    size_t runs, cases;
    char errors[2048];
    ptb_store *store;
    int64_t run;
    make("a.db", FIXTURE_UUID, 0, 1, "ok"); // still running, as far as it knows
    make("b.db", FIXTURE_UUID, 0, 1, "ok");
    assert_int_equal(ptb_store_open("b.db", PTB_STORE_WRITE, &store), PTB_OK);
    fixture_begin(store, FIXTURE_UUID, &run);
    assert_int_equal(ptb_store_finish_run(store, run, "interrupted", "Ctrl-C"), PTB_OK);
    ptb_store_close(store);
    assert_int_equal(import("a.db", "b.db", &runs, &cases, errors, sizeof errors), PTB_OK);
    assert_int_equal(runs, 1);
    assert_int_equal(cases, 0);
    assert_true(fixture_number_in(
                    "a.db", "SELECT count(*) FROM run WHERE state = 'interrupted' AND reason = 'Ctrl-C' "
                            "AND finished_utc_s > 0") == 1);
    make("c.db", FIXTURE_UUID, 0, 1, "ok"); // a source that never saw the end does not undo it
    assert_int_equal(import("a.db", "c.db", &runs, &cases, errors, sizeof errors), PTB_OK);
    assert_true(fixture_number_in("a.db", "SELECT count(*) FROM run WHERE state = 'interrupted'") == 1);
}

static void an_older_source_is_migrated_in_a_copy(void **state)
{
    (void)state;
    size_t runs, cases;
    make("old.db", FIXTURE_UUID, 0, 3, "ok");
    ptb_store_settings settings = ptb_store_default_settings();
    const int version = (int)settings.step_count;
    ptb_migration steps[8];
    assert_true(settings.step_count < sizeof steps / sizeof *steps);
    memcpy(steps, settings.steps, settings.step_count * sizeof *steps);
    steps[settings.step_count++] = (ptb_migration){"rename", "UPDATE run SET label = 'migrated'"};
    settings.steps = steps;
    ptb_store *store;
    assert_int_equal(ptb_store_open_with("a.db", PTB_STORE_WRITE, &settings, &store), PTB_OK);
    assert_int_equal(ptb_store_import(store, "old.db", &runs, &cases), PTB_OK);
    assert_int_equal(cases, 3);
    assert_true(fixture_number(store, "SELECT count(*) FROM run WHERE label = 'migrated'") == 1);
    assert_true(fixture_number(store, "SELECT count(*) FROM run WHERE processes LIKE 'elsewhere %'") == 1);
    ptb_store_close(store);
    assert_true(fixture_number_in("old.db", "SELECT user_version FROM pragma_user_version") == version);
    assert_true(fixture_number_in("old.db", "SELECT count(*) FROM run WHERE label = 'migrated'") == 0);
}

static void other_files_are_refused(void **state)
{
    (void)state;
    size_t runs = 77, cases = 77;
    char errors[2048];
    make("a.db", FIXTURE_UUID, 0, 1, "ok");
    assert_int_equal(system("echo hello > text.txt; : > empty; mkdir folder"), 0);
    assert_int_equal(import("a.db", "text.txt", &runs, &cases, errors, sizeof errors), PTB_USAGE);
    assert_non_null(strstr(errors, "'text.txt'"));
    assert_non_null(strstr(errors, "expected a ptbench database or spill file"));
    assert_int_equal(import("a.db", "empty", &runs, &cases, errors, sizeof errors), PTB_USAGE);
    assert_int_equal(import("a.db", "folder", &runs, &cases, errors, sizeof errors), PTB_USAGE);
    assert_int_equal(import("a.db", "missing", &runs, &cases, errors, sizeof errors), PTB_USAGE);
    assert_non_null(strstr(errors, "No such file"));
    assert_int_equal(import("a.db", "./a.db", &runs, &cases, errors, sizeof errors), PTB_USAGE);
    assert_non_null(strstr(errors, "into itself"));
    assert_true(runs == 77 && cases == 77);
}

// The source breaks after its first rows were read: nothing of it may stay.
static void all_or_nothing(void **state)
{
    (void)state;
    size_t runs, cases;
    char errors[2048];
    make("a.db", other_uuid, 0, 1, "ok");
    make("b.db", FIXTURE_UUID, 0, 50, "ok");
    sqlite3 *db;
    assert_int_equal(sqlite3_open("b.db", &db), SQLITE_OK);
    assert_int_equal(
        sqlite3_exec(db,
                     "PRAGMA ignore_check_constraints = ON; UPDATE metric SET better = 'perhaps' WHERE "
                     "case_id = 40",
                     NULL, NULL, NULL),
        SQLITE_OK);
    sqlite3_close(db);
    assert_int_equal(import("a.db", "b.db", &runs, &cases, errors, sizeof errors), PTB_STORE);
    assert_non_null(strstr(errors, "Nothing was imported"));
    assert_true(fixture_number_in("a.db", "SELECT count(*) FROM run") == 1);
    assert_true(fixture_number_in("a.db", "SELECT count(*) FROM bench_case") == 1);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_enter, fixture_leave)
    const struct CMUnitTest tests[] = {
        TEST(what_is_there_stays),           TEST(a_failed_case_gives_way),
        TEST(the_later_end_of_a_run_counts), TEST(an_older_source_is_migrated_in_a_copy),
        TEST(other_files_are_refused),       TEST(all_or_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
