// Damaged databases and spill files: whatever bytes are wrong, the store reports and goes on; it never
// crashes, hangs or writes to what it only reads. Mutations come from a fixed seed, so a failure repeats: the
// number of the mutation is printed. PTB_FUZZ_ROUNDS sets how many.
#include "tests/unit/store_fixture.h"

#include "results/blob.h"
#include "results/export.h"

#include <fcntl.h>
#include <sys/statvfs.h>

enum { ROUNDS = 400, MAX_FILE = 1 << 20 };

static uint64_t
next(uint64_t *seed) // splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators)
{
    uint64_t z = *seed += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

static void make(const char *path)
{
    ptb_store *store;
    int64_t run;
    assert_int_equal(ptb_store_open(path, PTB_STORE_WRITE, &store), PTB_OK);
    int64_t repetition = fixture_begin(store, FIXTURE_UUID, &run);
    for (int i = 0; i < 6; i++)
        assert_int_equal(fixture_add(store, repetition, i, "ok"), PTB_OK);
    assert_int_equal(ptb_store_finish_run(store, run, "complete", NULL), PTB_OK);
    // The store takes this time from the clock, and the bytes that are damaged are to be the same each time.
    assert_int_equal(
        sqlite3_exec(store->db, "UPDATE run SET finished_utc_s = started_utc_s + 60", NULL, NULL, NULL),
        SQLITE_OK);
    ptb_store_close(store);
}

static void write_file(const char *path, const unsigned char *bytes, size_t size)
{
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0644);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, size), size);
    close(fd);
}

// Changes a few bytes, cuts the file, or copies one part over another.
static size_t mutate(unsigned char *bytes, size_t size, uint64_t *seed)
{
    uint64_t how = next(seed) % 8;
    if (how == 0)
        return next(seed) % size;
    if (how == 1) {
        size_t length = 1 + next(seed) % 512, from = next(seed) % (size - length),
               to = next(seed) % (size - length);
        memmove(bytes + to, bytes + from, length);
        return size;
    }
    size_t count = 1 + next(seed) % 16;
    // Half of them near the head or in the pages of the schema, where most of the structure is.
    size_t span = next(seed) % 2 ? size : 8192;
    for (size_t i = 0; i < count; i++)
        bytes[next(seed) % (span < size ? span : size)] = (unsigned char)next(seed);
    return size;
}

// Everything that reads.
static void read_all(const char *path)
{
    ptb_store *store;
    if (ptb_store_open(path, PTB_STORE_READ, &store) != PTB_OK)
        return;
    int64_t run = 1;
    ptb_store_find_run(store, "last", &run);
    ptb_table *t;
    if (ptb_store_query(store,
                        "SELECT * FROM run r JOIN repetition p ON p.run_id = r.id JOIN bench_case c ON "
                        "c.repetition_id = p.id JOIN metric m ON m.case_id = c.id",
                        NULL, 0, &t) == PTB_OK)
        ptb_table_free(t);
    for (int64_t id = 1; id <= 6; id++)
        for (int rank = -1; rank < FIXTURE_RANKS; rank++) {
            double *values;
            ptb_span *spans;
            size_t count;
            if (ptb_store_samples(store, id, rank, &values, &count) == PTB_OK)
                free(values);
            if (rank >= 0 && ptb_store_spans(store, id, rank, &spans, &count) == PTB_OK)
                free(spans);
        }
    FILE *null = fopen("/dev/null", "w");
    assert_non_null(null);
    ptb_export_options options = {.samples = true};
    for (size_t i = 0; i < ptb_registry_count(PTB_KIND_EXPORTER); i++)
        ((const ptb_exporter *)ptb_registry_at(PTB_KIND_EXPORTER, i))->write(store, &run, 1, &options, null);
    fclose(null);
    ptb_store_close(store);
}

// Everything that writes: a further case, and an import into a good database.
static void write_all(const char *path)
{
    ptb_store *store;
    ptb_run_record record = fixture_run(FIXTURE_UUID);
    ptb_repetition_record repetition = {.index = 1, .ranks = FIXTURE_RANKS, .hosts = 1};
    int64_t run, id;
    size_t runs, cases;
    assert_int_equal(ptb_store_open("into.db", PTB_STORE_WRITE, &store), PTB_OK);
    assert_null(ptb_store_spill_path(store));
    ptb_status status = ptb_store_import(store, path, &runs, &cases);
    assert_true(status == PTB_OK || status == PTB_STORE || status == PTB_USAGE);
    ptb_store_close(store);
    assert_int_equal(ptb_store_open(path, PTB_STORE_WRITE, &store), PTB_OK);
    if (ptb_store_begin_run(store, &record, &run) == PTB_OK &&
        ptb_store_begin_repetition(store, run, &repetition, &id) == PTB_OK)
        fixture_add(store, id, 100, "ok");
    ptb_store_close(store);
}

static void damaged_files_are_reported(void **state)
{
    (void)state;
    static unsigned char good[MAX_FILE], bad[MAX_FILE];
    const char *rounds_text = getenv("PTB_FUZZ_ROUNDS");
    long rounds = rounds_text ? atol(rounds_text) : ROUNDS;
    make("good.db");
    FILE *file = fopen("good.db", "rb");
    assert_non_null(file);
    size_t size = fread(good, 1, sizeof good, file);
    fclose(file);
    assert_true(size > 8192 && size < sizeof good);
    // What is said is not of interest here, only that nothing breaks.
    int saved = dup(2), null = open("/dev/null", O_WRONLY);
    const char *progress = getenv("PTB_FUZZ_VERBOSE");
    for (long round = 0; round < rounds; round++) {
        uint64_t seed = (uint64_t)round;
        if (progress)
            printf("round %ld\n", round);
        memcpy(bad, good, size);
        size_t bad_size = mutate(bad, size, &seed);
        write_file("bad.db", bad, bad_size);
        if (!getenv("PTB_SANITIZE") || !*getenv("PTB_SANITIZE"))
            dup2(null, 2); // a sanitizer's report must be seen
        read_all("bad.db");
        file = fopen("bad.db", "rb");
        assert_non_null(file);
        static unsigned char after[MAX_FILE];
        size_t after_size = fread(after, 1, sizeof after, file);
        fclose(file);
        bool is_same = after_size == bad_size && memcmp(after, bad, bad_size) == 0;
        write_all("bad.db");
        dup2(saved, 2);
        if (!is_same)
            fail_msg("round %ld: reading changed the file", round);
        assert_int_equal(system("rm -f bad.db* bad-spill-* into.db*"), 0);
    }
    close(saved);
    close(null);
}

static void damaged_blobs_are_reported(void **state)
{
    (void)state;
    double values[300];
    ptb_span spans[20] = {{.name = "x"}};
    for (int i = 0; i < 300; i++)
        values[i] = fixture_sample(3, 1, (size_t)i);
    ptb_blob blobs[2];
    assert_int_equal(ptb_blob_from_f64(values, 300, &blobs[0]), PTB_OK);
    assert_int_equal(ptb_blob_from_spans(spans, 20, &blobs[1]), PTB_OK);
    int saved = dup(2), null = open("/dev/null", O_WRONLY);
    uint64_t seed = 7;
    size_t refused = 0;
    for (int round = 0; round < 20000; round++) {
        const ptb_blob *blob = &blobs[round % 2];
        // A heap copy of just the size, so that a sanitizer sees any read past it.
        size_t size = next(&seed) % 4 ? blob->bytes : 1 + next(&seed) % blob->bytes;
        unsigned char *copy = malloc(size);
        assert_non_null(copy);
        memcpy(copy, blob->data, size);
        for (size_t i = next(&seed) % 3; i > 0; i--)
            copy[next(&seed) % size] = (unsigned char)next(&seed);
        dup2(null, 2);
        void *out;
        size_t count;
        ptb_status status = next(&seed) % 2 ? ptb_blob_to_f64(copy, size, (double **)&out, &count)
                                            : ptb_blob_to_spans(copy, size, (ptb_span **)&out, &count);
        dup2(saved, 2);
        assert_true(status == PTB_OK || status == PTB_STORE || status == PTB_NO_MEMORY);
        refused += status != PTB_OK;
        if (status == PTB_OK)
            free(out);
        free(copy);
    }
    assert_true(refused > 5000);
    close(saved);
    close(null);
    ptb_blob_release(&blobs[0]);
    ptb_blob_release(&blobs[1]);
}

// In memory where that can be had, and is not what other tests need: what is tested is not the disk.
static int enter(void **state)
{
    struct statvfs memory;
    bool has_room = access("/dev/shm", W_OK) == 0 && statvfs("/dev/shm", &memory) == 0 &&
                    memory.f_bavail * memory.f_frsize >= 64u << 20;
    return fixture_enter_in(has_room ? "/dev/shm" : "/tmp", state);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, enter, fixture_leave)
    const struct CMUnitTest tests[] = {TEST(damaged_files_are_reported), TEST(damaged_blobs_are_reported)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
