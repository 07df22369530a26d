// Schema versions: older files are brought up to date in one transaction, newer ones and foreign ones are
// refused by name and left alone.
#include "store_fixture.h"

enum { NOW = 2 }; // the version that this program writes

// The real steps and two later ones that only this test knows: `more` of them.
static ptb_migration later[NOW + 2];
static ptb_store_settings versions(size_t more)
{
    ptb_store_settings settings = ptb_store_default_settings();
    assert_int_equal(settings.step_count, NOW);
    memcpy(later, settings.steps, NOW * sizeof *later);
    later[NOW] =
        (ptb_migration){"add a note to runs", "ALTER TABLE run ADD COLUMN note TEXT NOT NULL DEFAULT 'none';"
                                              "CREATE TABLE extra (a INTEGER) STRICT;"
                                              "INSERT INTO extra VALUES (42)"};
    later[NOW + 1] =
        (ptb_migration){"break in the middle", "DROP TABLE metric; ALTER TABLE nowhere ADD COLUMN x TEXT"};
    settings.steps = later;
    settings.step_count = NOW + more;
    settings.busy_ms = 100;
    return settings;
}

static void make_file(void)
{
    ptb_store *store;
    int64_t run;
    assert_int_equal(ptb_store_open("r.db", PTB_STORE_WRITE, &store), PTB_OK);
    assert_int_equal(fixture_add(store, fixture_begin(store, FIXTURE_UUID, &run), 1, "ok"), PTB_OK);
    ptb_store_close(store);
}

// Whole file as a heap array.
static char *contents(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    char *bytes = malloc(1 << 20);
    assert_non_null(bytes);
    *size = fread(bytes, 1, 1 << 20, file);
    fclose(file);
    return bytes;
}

static void an_older_file_is_migrated(void **state)
{
    (void)state;
    make_file();
    ptb_store_settings newer = versions(1);
    ptb_store *store;
    assert_int_equal(ptb_store_open_with("r.db", PTB_STORE_WRITE, &newer, &store), PTB_OK);
    assert_null(ptb_store_spill_path(store));
    assert_true(fixture_number(store, "SELECT user_version FROM pragma_user_version") == NOW + 1);
    assert_true(fixture_number(store, "SELECT count(*) FROM run WHERE note = 'none'") == 1);
    assert_true(fixture_number(store, "SELECT a FROM extra") == 42);
    assert_true(fixture_number(store, "SELECT count(*) FROM bench_case") == 1);
    int64_t run;
    assert_int_equal(fixture_add(store, fixture_begin(store, FIXTURE_UUID, &run), 2, "ok"), PTB_OK);
    ptb_store_close(store);
    assert_int_equal(ptb_store_open_with("r.db", PTB_STORE_WRITE, &newer, &store), PTB_OK); // once is enough
    assert_true(fixture_number(store, "SELECT count(*) FROM extra") == 1);
    ptb_store_close(store);
}

// What version 1 has not is empty afterwards, and nothing is lost.
static void a_file_of_version_1_is_migrated(void **state)
{
    (void)state;
    ptb_store_settings first = versions(0);
    ptb_store *store;
    sqlite3 *db;
    first.step_count = 1;
    assert_int_equal(ptb_store_open_with("r.db", PTB_STORE_WRITE, &first, &store), PTB_OK);
    ptb_store_close(store);
    assert_int_equal(sqlite3_open("r.db", &db), SQLITE_OK);
    static const char insert[] =
        "INSERT INTO run (uuid, started_utc_s, state, command, selection, version, build, options, "
        "environment, "
        "hosts, fingerprint, simulated) VALUES ('" FIXTURE_UUID
        "', 1.5, 'running', 'ptbench run', 'quick', '0.1', '{}', '{}', '{}', '[]', '', 0)";
    assert_int_equal(sqlite3_exec(db, insert, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    static const char is_kept[] = "SELECT processes = '' AND started_utc_s = 1.5 AND "
                                  "ptb_run_state(state, processes) = 'running' FROM run";
    assert_int_equal(ptb_store_open("r.db", PTB_STORE_READ, &store), PTB_OK); // through a copy
    assert_true(fixture_number(store, is_kept) == 1);
    ptb_store_close(store);
    int64_t run;
    assert_int_equal(ptb_store_open("r.db", PTB_STORE_WRITE, &store), PTB_OK);
    assert_true(fixture_number(store, is_kept) == 1);
    assert_int_equal(fixture_add(store, fixture_begin(store, FIXTURE_UUID, &run), 1, "ok"), PTB_OK);
    assert_true(fixture_number(store, "SELECT count(*) FROM run") == 1);
    ptb_store_close(store);
}

static void reading_an_older_file_changes_nothing(void **state)
{
    (void)state;
    make_file();
    size_t before_size, after_size;
    char *before = contents("r.db", &before_size);
    ptb_store_settings newer = versions(1);
    ptb_store *store;
    assert_int_equal(ptb_store_open_with("r.db", PTB_STORE_READ, &newer, &store), PTB_OK);
    assert_true(fixture_number(store, "SELECT count(*) FROM run WHERE note = 'none'") == 1);
    ptb_store_close(store);
    char *after = contents("r.db", &after_size);
    assert_int_equal(before_size, after_size);
    assert_memory_equal(before, after, before_size);
    free(before);
    free(after);
}

static void a_failing_step_leaves_the_old_file(void **state)
{
    (void)state;
    make_file();
    ptb_store_settings broken = versions(2);
    ptb_store *store;
    char errors[2048];
    int saved = fixture_catch_errors();
    ptb_status status = ptb_store_open_with("r.db", PTB_STORE_WRITE, &broken, &store);
    fixture_release_errors(saved, errors, sizeof errors);
    assert_int_equal(status, PTB_STORE); // the same step breaks in every spill file
    assert_non_null(strstr(errors, "from version 3 to 4 (break in the middle)"));
    assert_true(fixture_number_in("r.db", "SELECT user_version FROM pragma_user_version") == NOW);
    assert_true(fixture_number_in("r.db", "SELECT count(*) FROM metric") == 2);
    assert_true(fixture_number_in("r.db", "SELECT count(*) FROM sqlite_schema WHERE name = 'extra'") == 0);
}

static void a_newer_file_is_refused(void **state)
{
    (void)state;
    make_file();
    ptb_store_settings newer = versions(1);
    ptb_store *store;
    assert_int_equal(ptb_store_open_with("r.db", PTB_STORE_WRITE, &newer, &store), PTB_OK);
    ptb_store_close(store);
    char errors[2048];
    int saved = fixture_catch_errors();
    ptb_status reading = ptb_store_open("r.db", PTB_STORE_READ, &store);
    fixture_release_errors(saved, errors, sizeof errors);
    assert_int_equal(reading, PTB_STORE);
    assert_non_null(strstr(errors, "schema is version 3"));
    assert_non_null(strstr(errors, "up to 2"));
    assert_non_null(strstr(errors, "use a ptbench at least as new"));
    saved = fixture_catch_errors();
    ptb_status writing = ptb_store_open("r.db", PTB_STORE_WRITE, &store);
    fixture_release_errors(saved, errors, sizeof errors);
    assert_int_equal(writing, PTB_OK);
    assert_non_null(ptb_store_spill_path(store));
    assert_non_null(strstr(errors, "schema is version 3"));
    int64_t run;
    assert_int_equal(fixture_add(store, fixture_begin(store, FIXTURE_UUID, &run), 1, "ok"), PTB_OK);
    ptb_store_close(store);
    assert_int_equal(ptb_store_open_with("r.db", PTB_STORE_READ, &newer, &store), PTB_OK);
    assert_true(fixture_number(store, "SELECT count(*) FROM bench_case") == 1);
    ptb_store_close(store);
}

static void what_is_not_ours_is_never_touched(void **state)
{
    (void)state;
    static const struct {
        const char *make, *message;
    } foreign[] = {
        {"printf 'precious notes, long enough to be more than one hundred bytes: %0100d' 7 > x.db",
         "not a SQLite database"},
        {"printf 'short' > x.db", "not a SQLite database"},
        {"mkdir x.db", "it is a folder"},
        {"mkfifo x.db", "not a regular file"},
    };
    for (size_t i = 0; i <= sizeof foreign / sizeof *foreign; i++) {
        const char *message = "not one of ptbench";
        bool is_last = i == sizeof foreign / sizeof *foreign;
        if (is_last) { // a database of another program
            sqlite3 *db;
            assert_int_equal(sqlite3_open("x.db", &db), SQLITE_OK);
            assert_int_equal(sqlite3_exec(db, "CREATE TABLE run (id)", NULL, NULL, NULL), SQLITE_OK);
            sqlite3_close(db);
        } else {
            assert_int_equal(system(foreign[i].make), 0);
            message = foreign[i].message;
        }
        struct stat before, after;
        size_t size = 0, size_after = 0;
        assert_int_equal(stat("x.db", &before), 0);
        char *was = S_ISREG(before.st_mode) ? contents("x.db", &size) : NULL;
        ptb_store *store = NULL;
        char errors[2048];
        int saved = fixture_catch_errors();
        ptb_status reading = ptb_store_open("x.db", PTB_STORE_READ, &store);
        ptb_status writing = ptb_store_open("x.db", PTB_STORE_WRITE, &store);
        fixture_release_errors(saved, errors, sizeof errors);
        assert_int_equal(reading, PTB_STORE);
        assert_int_equal(writing, PTB_OK);
        assert_non_null(ptb_store_spill_path(store));
        ptb_store_close(store);
        assert_non_null(strstr(errors, "'x.db'"));
        assert_non_null(strstr(errors, message));
        assert_int_equal(stat("x.db", &after), 0);
        assert_int_equal(before.st_mtim.tv_sec, after.st_mtim.tv_sec);
        assert_int_equal(before.st_mtim.tv_nsec, after.st_mtim.tv_nsec);
        if (was) {
            char *is = contents("x.db", &size_after);
            assert_int_equal(size, size_after);
            assert_memory_equal(was, is, size);
            free(is);
        }
        free(was);
        assert_int_equal(system("rm -rf x.db x-spill-*"), 0);
    }
}

static void a_missing_file_is_a_usage_error(void **state)
{
    (void)state;
    ptb_store *store = NULL;
    char errors[1024];
    int saved = fixture_catch_errors();
    ptb_status missing = ptb_store_open("no.db", PTB_STORE_READ, &store);
    ptb_status empty = ptb_store_open("", PTB_STORE_WRITE, &store);
    fixture_release_errors(saved, errors, sizeof errors);
    assert_int_equal(missing, PTB_USAGE);
    assert_int_equal(empty, PTB_USAGE);
    assert_null(store);
    assert_non_null(strstr(errors, "'no.db'"));
    assert_int_not_equal(access("no.db", F_OK), 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_enter, fixture_leave)
    const struct CMUnitTest tests[] = {
        TEST(a_file_of_version_1_is_migrated),
        TEST(an_older_file_is_migrated),
        TEST(reading_an_older_file_changes_nothing),
        TEST(a_failing_step_leaves_the_old_file),
        TEST(a_newer_file_is_refused),
        TEST(what_is_not_ours_is_never_touched),
        TEST(a_missing_file_is_a_usage_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
