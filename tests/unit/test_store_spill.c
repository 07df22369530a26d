// The database fails in every way it can: nothing measured is lost, the message says what and why, and the
// spill file merges back.
#include "store_fixture.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum { ERRORS = 16384 };

// Stores `count` cases from `first` on; all must be stored somewhere.
static void add_some(ptb_store *store, int64_t repetition, int first, int count)
{
    for (int i = 0; i < count; i++)
        assert_int_equal(fixture_add(store, repetition, first + i, "ok"), PTB_OK);
}

// Makes r.db with one run of `cases` cases, still open to more.
static void make(const char *path, int cases)
{
    ptb_store *store;
    int64_t run;
    assert_int_equal(ptb_store_open(path, PTB_STORE_WRITE, &store), PTB_OK);
    add_some(store, fixture_begin(store, FIXTURE_UUID, &run), 0, cases);
    ptb_store_close(store);
}

// Merges the spill file into the database, twice, and checks that all cases are there and the run is
// complete.
static void merge_back(const char *path, const char *spill, int spilled, int all)
{
    ptb_store *store;
    size_t runs = 99, cases = 99;
    assert_int_equal(ptb_store_open(path, PTB_STORE_WRITE, &store), PTB_OK);
    assert_null(ptb_store_spill_path(store));
    assert_int_equal(ptb_store_import(store, spill, &runs, &cases), PTB_OK);
    assert_int_equal(runs, 1);
    assert_int_equal(cases, spilled);
    assert_int_equal(ptb_store_import(store, spill, &runs, &cases), PTB_OK);
    assert_int_equal(runs, 0);
    assert_int_equal(cases, 0);
    assert_true(fixture_number(store, "SELECT count(*) FROM run WHERE state = 'complete'") == 1);
    assert_true(fixture_number(store, "SELECT count(*) FROM repetition") == 1);
    assert_true(fixture_number(store, "SELECT count(*) FROM bench_case") == all);
    assert_true(fixture_number(store, "SELECT count(*) FROM case_rank") == 2 * all);
    assert_true(fixture_number(store, "SELECT count(*) FROM metric") == 2 * all);
    assert_true(fixture_number(store, "SELECT count(*) FROM series") == all);
    double *values;
    size_t count;
    assert_int_equal(ptb_store_samples(store, all, 1, &values, &count), PTB_OK);
    assert_int_equal(count, FIXTURE_SAMPLES);
    free(values);
    ptb_store_close(store);
}

// Opens a database that cannot be written, stores three cases, and checks the message and the spill.
static void check_unwritable(const char *path, const char *message, char *spill)
{
    ptb_store *store = NULL;
    char errors[ERRORS];
    int64_t run;
    ptb_store_settings settings = ptb_store_default_settings();
    settings.busy_ms = 100;
    int saved = fixture_catch_errors();
    ptb_log_set_level(PTB_LOG_WARN);
    ptb_status status = ptb_store_open_with(path, PTB_STORE_WRITE, &settings, &store);
    ptb_log_set_level(PTB_LOG_ERROR);
    fixture_release_errors(saved, errors, sizeof errors);
    assert_int_equal(status, PTB_OK);
    assert_non_null(ptb_store_spill_path(store));
    snprintf(spill, 256, "%s", ptb_store_spill_path(store));
    assert_non_null(strstr(errors, path));
    assert_non_null(strstr(errors, message));
    assert_non_null(strstr(errors, "--db"));
    assert_non_null(strstr(errors, "ptbench import"));
    assert_non_null(strstr(errors, spill));
    add_some(store, fixture_begin(store, FIXTURE_UUID, &run), 2, 3);
    assert_int_equal(ptb_store_finish_run(store, run, "complete", NULL), PTB_OK);
    ptb_store_close(store);
}

static void a_read_only_file(void **state)
{
    (void)state;
    char spill[256];
    make("r.db", 2);
    assert_int_equal(chmod("r.db", 0444), 0);
    check_unwritable("r.db", "it is read-only", spill);
    assert_true(fixture_number_in("r.db", "SELECT count(*) FROM bench_case") == 2);
    assert_int_equal(chmod("r.db", 0644), 0);
    merge_back("r.db", spill, 3, 5);
}

static void a_read_only_folder(void **state)
{
    (void)state;
    char spill[256];
    assert_int_equal(mkdir("folder", 0755), 0);
    make("folder/r.db", 2);
    assert_int_equal(chmod("folder", 0555), 0);
    check_unwritable("folder/r.db", "'folder' is read-only", spill);
    check_unwritable("folder/new.db", "'folder' is read-only", spill);
    assert_null(strchr(spill, '/')); // it is in the current folder
    assert_int_equal(chmod("folder", 0755), 0);
    assert_int_not_equal(access("folder/new.db", F_OK), 0);
    merge_back("folder/r.db", spill, 3, 5);
}

// Somebody deletes, or replaces, the file in the middle of the run: what was stored before is saved too.
static void a_file_that_is_deleted(void **state)
{
    (void)state;
    for (int replace = 0; replace <= 1; replace++) {
        ptb_store *store;
        int64_t run;
        char spill[256];
        assert_int_equal(ptb_store_open("r.db", PTB_STORE_WRITE, &store), PTB_OK);
        int64_t repetition = fixture_begin(store, FIXTURE_UUID, &run);
        add_some(store, repetition, 0, 3);
        assert_int_equal(unlink("r.db"), 0);
        if (replace) {
            unlink("r.db-wal");
            unlink("r.db-shm");
            make("r.db", 0);
        }
        int saved = fixture_catch_errors();
        add_some(store, repetition, 3, 2);
        assert_int_equal(ptb_store_finish_run(store, run, "complete", NULL), PTB_OK);
        char errors[ERRORS];
        fixture_release_errors(saved, errors, sizeof errors);
        assert_non_null(strstr(errors, "deleted or replaced"));
        assert_non_null(ptb_store_spill_path(store));
        snprintf(spill, sizeof spill, "%s", ptb_store_spill_path(store));
        ptb_store_close(store);
        unlink("r.db");
        merge_back("r.db", spill, 5, 5);
        assert_int_equal(unlink("r.db"), 0);
        assert_int_equal(unlink(spill), 0);
    }
}

static void a_missing_folder(void **state)
{
    (void)state;
    char spill[256];
    check_unwritable("nowhere/r.db", "there is no folder 'nowhere'", spill);
    // What is no file says nothing about a good folder; the file's name is one that can be typed.
    check_unwritable("/dev/null", "it is not a regular file", spill);
    assert_int_equal(strncmp(spill, "null-spill", 10), 0);
    assert_int_equal(mkdir("folder", 0755), 0);
    check_unwritable("folder/", "it is a folder", spill);
    assert_int_equal(strncmp(spill, "ptbench-spill", 13), 0);
}

// A child that holds the write lock until it is killed.
static pid_t lock(const char *path, const char *mode)
{
    int ready[2];
    char byte;
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        sqlite3 *db;
        if (sqlite3_open(path, &db) != SQLITE_OK || sqlite3_exec(db, mode, NULL, NULL, NULL) != SQLITE_OK ||
            sqlite3_exec(db, "BEGIN IMMEDIATE; UPDATE run SET label = 'x'", NULL, NULL, NULL) != SQLITE_OK ||
            write(ready[1], "x", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    close(ready[1]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    return child;
}

static void unlock(pid_t child)
{
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
}

static void locked_from_the_start(void **state)
{
    (void)state;
    char spill[256];
    make("r.db", 2);
    pid_t child = lock("r.db", "PRAGMA locking_mode = EXCLUSIVE");
    check_unwritable("r.db", "another process holds it locked", spill);
    unlock(child);
    merge_back("r.db", spill, 3, 5);
}

static void locked_in_mid_run(void **state)
{
    (void)state;
    ptb_store *store;
    int64_t run;
    char errors[ERRORS], spill[256];
    ptb_store_settings settings = ptb_store_default_settings();
    settings.busy_ms = 100;
    assert_int_equal(ptb_store_open_with("r.db", PTB_STORE_WRITE, &settings, &store), PTB_OK);
    int64_t repetition = fixture_begin(store, FIXTURE_UUID, &run);
    add_some(store, repetition, 0, 2);
    pid_t child = lock("r.db", "PRAGMA locking_mode = NORMAL");
    int saved = fixture_catch_errors();
    ptb_status status = fixture_add(store, repetition, 2, "ok");
    fixture_release_errors(saved, errors, sizeof errors);
    assert_int_equal(status, PTB_OK);
    assert_non_null(ptb_store_spill_path(store));
    snprintf(spill, sizeof spill, "%s", ptb_store_spill_path(store));
    assert_non_null(
        strstr(errors, "cannot store a case in the database 'r.db': another process holds it locked"));
    unlock(child);
    add_some(store, repetition, 3, 2); // once spilled, all later ones go there too
    assert_int_equal(ptb_store_finish_run(store, run, "complete", NULL), PTB_OK);
    ptb_store_close(store);
    assert_true(fixture_number_in("r.db", "SELECT count(*) FROM bench_case") == 2);
    merge_back("r.db", spill, 3, 5);
}

static void full_in_mid_run(void **state)
{
    (void)state;
    ptb_store *store;
    int64_t run;
    char errors[ERRORS], spill[256];
    assert_int_equal(ptb_store_open("r.db", PTB_STORE_WRITE, &store), PTB_OK);
    int64_t repetition = fixture_begin(store, FIXTURE_UUID, &run);
    assert_int_equal(sqlite3_exec(store->db, "PRAGMA max_page_count = 30", NULL, NULL, NULL), SQLITE_OK);
    int saved = fixture_catch_errors();
    add_some(store, repetition, 0, 200);
    fixture_release_errors(saved, errors, sizeof errors);
    assert_non_null(strstr(errors, "the disk is full"));
    assert_null(strstr(strstr(errors, "the disk is full") + 1, "the disk is full")); // said once
    snprintf(spill, sizeof spill, "%s", ptb_store_spill_path(store));
    // Callers' ids still hold.
    assert_true(fixture_number(store, "SELECT id FROM run") == (double)run);
    assert_true(fixture_number(store, "SELECT id FROM repetition") == (double)repetition);
    assert_int_equal(ptb_store_finish_run(store, run, "complete", NULL), PTB_OK);
    ptb_store_close(store);
    int kept = (int)fixture_number_in("r.db", "SELECT count(*) FROM bench_case");
    assert_true(kept > 0 && kept < 200);
    merge_back("r.db", spill, 200 - kept, 200);
}

static void no_memory_of_a_finished_run(void **state)
{
    (void)state;
    ptb_store *store;
    int64_t first, second;
    char errors[ERRORS];
    assert_int_equal(ptb_store_open("r.db", PTB_STORE_WRITE, &store), PTB_OK);
    fixture_begin(store, FIXTURE_UUID, &first);
    assert_int_equal(ptb_store_finish_run(store, first, "complete", NULL), PTB_OK);
    int64_t repetition = fixture_begin(store, "11111111-89ab-cdef-0123-456789abcdef", &second);
    assert_int_equal(sqlite3_exec(store->db, "PRAGMA max_page_count = 1", NULL, NULL, NULL), SQLITE_OK);
    int saved = fixture_catch_errors();
    add_some(store, repetition, 0, 60);
    fixture_release_errors(saved, errors, sizeof errors);
    assert_non_null(ptb_store_spill_path(store));
    assert_true(fixture_number(store, "SELECT count(*) FROM run") == 1);
    ptb_store_close(store);
}

// Files may not grow past a limit: the database fails, and each spill file after it, until no folder is left.
static void every_file_fails(void **state)
{
    (void)state;
    enum { LIMIT = 400 << 10, MANY = 2000 };
    ptb_store *store;
    int64_t run;
    char errors[ERRORS], paths[PTB_SPILL_FOLDERS][256];
    struct rlimit was, limited;
    assert_int_equal(ptb_store_open("r.db", PTB_STORE_WRITE, &store), PTB_OK);
    int64_t repetition = fixture_begin(store, FIXTURE_UUID, &run);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    limited = was;
    limited.rlim_cur = LIMIT;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limited), 0);
    int saved = fixture_catch_errors();
    int stored = 0;
    ptb_status status = PTB_OK;
    while (stored < MANY && (status = fixture_add(store, repetition, stored, "ok")) == PTB_OK)
        stored++;
    ptb_status again = fixture_add(store, repetition, stored, "ok");
    ptb_table *t = NULL;
    ptb_status reading = ptb_store_query(store, "SELECT 1", NULL, 0, &t);
    fixture_release_errors(saved, errors, sizeof errors);
    setrlimit(RLIMIT_FSIZE, &was);
    signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(status, PTB_STORE);
    assert_int_equal(again, PTB_STORE);
    assert_int_equal(reading, PTB_STORE);
    assert_non_null(strstr(errors, "reading or writing it failed"));
    assert_non_null(strstr(errors, "no folder for a spill file"));
    assert_int_equal(store->spill_count, PTB_SPILL_FOLDERS);
    for (int i = 0; i < PTB_SPILL_FOLDERS; i++)
        snprintf(paths[i], sizeof paths[i], "%s", store->spills[i]);
    ptb_store_close(store);
    double found = fixture_number_in("r.db", "SELECT count(*) FROM bench_case");
    for (int i = 0; i < PTB_SPILL_FOLDERS; i++)
        found += fixture_number_in(paths[i], "SELECT count(*) FROM bench_case");
    unlink(paths[PTB_SPILL_FOLDERS - 1]); // the one in /tmp
    assert_true(found == stored);
    assert_true(stored > 20);
}

// Needs to mount; elsewhere it is skipped.
static bool mount_tmpfs(const char *options)
{
    char command[128];
    assert_int_equal(mkdir("disk", 0755), 0);
    snprintf(command, sizeof command, "mount -t tmpfs -o %s tmpfs disk 2>/dev/null", options);
    if (geteuid() == 0 && system(command) == 0)
        return true;
    puts("skipped: mounting a small file system needs root");
    return false;
}

static int leave(void **state)
{
    int rc = system("umount -l disk 2>/dev/null");
    (void)rc;
    return fixture_leave(state);
}

static void a_disk_that_is_really_full(void **state)
{
    (void)state;
    ptb_store *store;
    int64_t run;
    char errors[ERRORS], spill[256];
    if (!mount_tmpfs("size=512k"))
        skip();
    assert_int_equal(ptb_store_open("disk/r.db", PTB_STORE_WRITE, &store), PTB_OK);
    int64_t repetition = fixture_begin(store, FIXTURE_UUID, &run);
    int saved = fixture_catch_errors();
    add_some(store, repetition, 0, 200);
    fixture_release_errors(saved, errors, sizeof errors);
    assert_non_null(strstr(errors, "the disk is full"));
    assert_non_null(ptb_store_spill_path(store));
    snprintf(spill, sizeof spill, "%s", ptb_store_spill_path(store));
    assert_null(strstr(spill, "disk/")); // not onto the full disk
    assert_int_equal(ptb_store_finish_run(store, run, "complete", NULL), PTB_OK);
    ptb_store_close(store);
    double kept = fixture_number_in("disk/r.db", "SELECT count(*) FROM bench_case");
    double spilled = fixture_number_in(spill, "SELECT count(*) FROM bench_case");
    assert_true(kept > 0 && kept + spilled == 200);
    assert_int_equal(system("mount -o remount,size=64m disk"), 0);
    merge_back("disk/r.db", spill, (int)spilled, 200);
}

static void a_read_only_file_system(void **state)
{
    (void)state;
    char spill[256];
    if (!mount_tmpfs("size=8m"))
        skip();
    make("disk/r.db", 2);
    assert_int_equal(system("mount -o remount,ro disk"), 0);
    check_unwritable("disk/r.db", "it is read-only (Read-only file system)", spill);
    assert_true(fixture_number_in("disk/r.db", "SELECT count(*) FROM bench_case") == 2);
    assert_int_equal(system("mount -o remount,rw disk"), 0);
    merge_back("disk/r.db", spill, 3, 5);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_enter, leave)
    const struct CMUnitTest tests[] = {
        TEST(a_read_only_file),        TEST(a_read_only_folder),
        TEST(a_missing_folder),        TEST(a_file_that_is_deleted),
        TEST(locked_from_the_start),   TEST(locked_in_mid_run),
        TEST(full_in_mid_run),         TEST(no_memory_of_a_finished_run),
        TEST(every_file_fails),        TEST(a_disk_that_is_really_full),
        TEST(a_read_only_file_system),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
