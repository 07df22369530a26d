// Makes databases for looking at reports, and renders them without the program's commands.
//   helper_report fill DB            the runs listed in fill()
//   helper_report many DB RUNS       RUNS runs of 60 cases each
//   helper_report html DB FOLDER RUN...
//   helper_report text DB RUN WIDTH
#include "report_data.h"

#include "reports/render.h"

#include <sqlite3.h>

static ptb_store *open_store(const char *path, ptb_store_mode mode)
{
    ptb_store *store = NULL;
    data_must(ptb_store_open(path, mode, &store), path);
    return store;
}

static void fill_quick(ptb_store *store, int number, const char *label, int ranks, bool simulated)
{
    const data_run_spec spec = {.label = label, .ranks = ranks, .simulated = simulated};
    data_run run = data_begin(store, number, &spec);
    data_add_quick(&run);
    data_finish(&run, &spec);
}

static void fill_step(ptb_store *store, int number, int ranks, int batch, double compute_ms,
                      double exposed_ms)
{
    const data_run_spec spec = {.ranks = ranks};
    data_run run = data_begin(store, number, &spec);
    data_add_step(&run, "ddp", batch, compute_ms, exposed_ms);
    data_finish(&run, &spec);
}

static void fill_twelve(ptb_store *store, int number)
{
    static const char *const algorithms[] = {"ring",
                                             "tree",
                                             "direct",
                                             "recursive_doubling",
                                             "halving_doubling",
                                             "hierarchical_ring_over_shared_memory_and_then_tree",
                                             "auto",
                                             "bruck",
                                             "linear",
                                             "pipeline",
                                             "rabenseifner",
                                             "knomial"};
    const data_run_spec spec = {.label = "twelve curves of a label that is rather long, as people write them",
                                .ranks = 4};
    data_run run = data_begin(store, number, &spec);
    for (size_t i = 0; i < 12; i++) {
        data_coll c = {.bench = "all_reduce",
                       .comm = "host",
                       .algo = algorithms[i],
                       .place = "out",
                       .type = "f32",
                       .op = "sum",
                       .noise = 0.1,
                       .bus_factor = 1.5};
        data_add_sweep(&run, c, 500 + 150.0 * (double)i, 3 + 1.1 * (double)i, 1 << 30);
    }
    data_finish(&run, &spec);
}

static void fill_extremes(ptb_store *store, int number)
{
    const data_run_spec spec = {.label =
                                    "<script>alert('x')</script> & `date` \"quoted\" \xCE\xA9 @name {a_b}^2",
                                .ranks = 2,
                                .state = "interrupted",
                                .reason = "stopped by SIGINT <b>after</b> 3 cases"};
    data_run run = data_begin(store, number, &spec);
    data_coll one = {.bench = "all_reduce",
                     .comm = "mpi",
                     .algo = "default",
                     .place = "out",
                     .type = "f32",
                     .op = "sum",
                     .bytes = 65536,
                     .median_ns = 12800,
                     .noise = 0.02,
                     .samples = 50,
                     .bus_factor = 1};
    data_add_coll(&run, &one);
    data_coll c = {.bench = "broadcast",
                   .comm = "mpi",
                   .algo = "default",
                   .place = "out",
                   .type = "f32",
                   .noise = 0.3,
                   .bus_factor = 1};
    c.bytes = 4, c.median_ns = 0.4, c.samples = 9;
    data_add_coll(&run, &c);
    c.bytes = (uint64_t)1 << 40, c.median_ns = 3e14;
    data_add_coll(&run, &c);
    data_finish(&run, &spec);
}

static void fill_empty(ptb_store *store, int number)
{
    const data_run_spec spec = {.ranks = 2, .state = "running"};
    data_run run = data_begin(store, number, &spec);
    data_finish(&run, &spec);
}

static void fill_repetitions(ptb_store *store, int number)
{
    const data_run_spec spec = {.label = "three repetitions", .ranks = 2};
    data_run run = data_begin(store, number, &spec);
    for (int i = 0; i < 3; i++) {
        if (i > 0)
            data_begin_repetition(&run, i);
        data_coll c = {.bench = "all_reduce",
                       .comm = "mpi",
                       .algo = "default",
                       .place = "out",
                       .type = "f32",
                       .op = "sum",
                       .noise = 0.1,
                       .bus_factor = 1};
        data_add_sweep(&run, c, 900 * (1 + 0.3 * i), 4.6 - i, 1 << 20);
    }
    data_finish(&run, &spec);
}

static void fill(const char *path)
{
    ptb_store *store = open_store(path, PTB_STORE_WRITE);
    fill_quick(store, 1, "before", 2, false);
    fill_quick(store, 2, "before", 2, false);
    fill_quick(store, 3, NULL, 2, true);
    fill_step(store, 4, 1, 8, 420, 0);
    fill_step(store, 5, 2, 8, 222, 9);
    fill_step(store, 6, 4, 8, 131, 31);
    fill_step(store, 7, 2, 16, 441, 12);
    fill_twelve(store, 8);
    fill_extremes(store, 9);
    fill_empty(store, 10);
    fill_repetitions(store, 11);
    ptb_store_close(store);
}

// Times are of no interest here, so the database forgoes safety for speed.
static void many(const char *path, int runs)
{
    ptb_store *store = open_store(path, PTB_STORE_WRITE);
    fill_quick(store, 0, "first", 2, false);
    ptb_store_close(store);
    sqlite3 *db = NULL;
    char *error = NULL;
    char sql[4096];
    // Copies of the first run, made by SQL: the store writes a transaction a case, which takes minutes for so
    // many.
    snprintf(
        sql, sizeof sql,
        "PRAGMA synchronous = OFF; BEGIN;"
        "CREATE TEMP TABLE n AS WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %d)"
        " SELECT i FROM n WHERE i < %d;"
        "CREATE TEMP TABLE first AS SELECT * FROM bench_case WHERE id <= 60;"
        "CREATE TEMP TABLE base AS SELECT (SELECT max(id) FROM run) AS run, (SELECT max(id) FROM bench_case) "
        "AS c;"
        "CREATE TEMP TABLE newrun AS SELECT * FROM run;"
        "INSERT INTO run SELECT base.run + n.i, printf('%%08x-1111-4000-8000-000000000000', n.i),"
        " started_utc_s + n.i * 60, finished_utc_s + n.i * 60, state, reason, command, selection, 'run "
        "number ' || n.i,"
        " version, git_revision, build, options, environment, hosts, fingerprint, simulated, "
        "clock_resolution_ns,"
        " clock_overhead_ns, loop_overhead_ns FROM n, base, newrun;"
        "INSERT INTO repetition SELECT base.run + n.i, base.run + n.i, ordinal, started_utc_s, ranks, hosts, "
        "launcher,"
        " placement FROM n, base, (SELECT * FROM repetition LIMIT 1);"
        "INSERT INTO bench_case SELECT base.c * n.i + first.id, base.run + n.i, key, bench, bytes, ranks, "
        "hosts, params,"
        " facts, state, reason, mode, combine, stopped, batch, warmup, started_utc_s, elapsed_s, samples, "
        "min_ns,"
        " median_ns, mean_ns, p95_ns, p99_ns, max_ns, cv, ci_low_ns, ci_high_ns, ci_confidence, combined"
        " FROM n, base, first;"
        "INSERT INTO case_rank SELECT base.c * n.i + case_id, rank, samples, min_ns, median_ns, mean_ns, "
        "p95_ns, p99_ns,"
        " max_ns, checked, wrong, detail, data, spans, spans_dropped FROM n, base,"
        " (SELECT * FROM case_rank WHERE case_id <= 60);"
        "INSERT INTO metric SELECT base.c * n.i + case_id, name, value, unit, convention, better FROM n, "
        "base,"
        " (SELECT * FROM metric WHERE case_id <= 60);"
        "COMMIT;",
        runs, runs);
    if (sqlite3_open(path, &db) != SQLITE_OK || sqlite3_exec(db, sql, NULL, NULL, &error) != SQLITE_OK) {
        fprintf(stderr, "helper_report: %s\n", error ? error : sqlite3_errmsg(db));
        exit(1);
    }
    sqlite3_close(db);
}

int main(int argc, char **argv)
{
    if (argc >= 3 && strcmp(argv[1], "fill") == 0) {
        fill(argv[2]);
    } else if (argc >= 4 && strcmp(argv[1], "many") == 0) {
        many(argv[2], atoi(argv[3]));
    } else if (argc >= 5 && strcmp(argv[1], "html") == 0) {
        ptb_store *store = open_store(argv[2], PTB_STORE_READ);
        int64_t runs[64];
        size_t count = 0;
        for (int i = 4; i < argc && count < 64; i++)
            runs[count++] = atoll(argv[i]);
        char path[4096];
        data_must(ptb_report_html(store, runs, count, argv[3], path, sizeof path), "html");
        puts(path);
        ptb_store_close(store);
    } else if (argc >= 5 && strcmp(argv[1], "text") == 0) {
        ptb_store *store = open_store(argv[2], PTB_STORE_READ);
        data_must(ptb_report_terminal(store, atoll(argv[3]), atoi(argv[4]), stdout), "text");
        ptb_store_close(store);
    } else {
        fputs("usage: helper_report fill DB | many DB RUNS | html DB FOLDER RUN... | text DB RUN WIDTH\n",
              stderr);
        return 2;
    }
    return 0;
}
