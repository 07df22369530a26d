// How long storing and reading take: 1 million samples (100 cases x 2 ranks x 5000), then 1,000 runs and the
// queries a report makes of them. Prints; asserts nothing. Run by tests/bench/store.sh in a folder of its
// own.
#include "core/clock.h"
#include "results/blob.h"
#include "results/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

enum { CASES = 100, RANKS = 2, SAMPLES = 5000, RUNS = 1000, CASES_OF_RUN = 50, SAMPLES_OF_RUN = 30 };

static void need(ptb_status status)
{
    if (status != PTB_OK)
        exit(ptb_status_exit_code(status));
}

// Times as a run sees them: whole nanoseconds about a mode, with a tail.
static void make_samples(double *samples, size_t count, unsigned batch)
{
    static uint64_t seed = 1;
    for (size_t i = 0; i < count; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        uint64_t noise = seed >> 54, tail = (seed >> 30) % 97 == 0 ? 40000 : 0;
        samples[i] = (double)(12000 * batch + noise + tail) / batch;
    }
}

static int64_t begin(ptb_store *store, int number, int64_t *run)
{
    char uuid[40];
    snprintf(uuid, sizeof uuid, "%08d-0000-4000-8000-000000000000", number);
    ptb_run_record record = {.uuid = uuid,
                             .started_utc_s = 1764424095.0 + number,
                             .command = "ptbench run",
                             .selection = "quick",
                             .version = "bench",
                             .fingerprint = "00"};
    ptb_repetition_record repetition = {.ranks = RANKS, .hosts = 1, .launcher = "none"};
    int64_t id;
    need(ptb_store_begin_run(store, &record, run));
    need(ptb_store_begin_repetition(store, *run, &repetition, &id));
    return id;
}

static void add(ptb_store *store, int64_t repetition, int number, const double *samples, size_t count)
{
    char key[64];
    ptb_params params = {0}, facts = {0};
    ptb_params_set(&params, "count", "%d", 1 << (number % 24));
    ptb_params_set(&params, "algo", number % 2 ? "ring" : "tree");
    ptb_params_set(&facts, "algorithm", number % 2 ? "ring" : "tree");
    ptb_params_set(&facts, "transport", "shared memory");
    ptb_metrics metrics = {0};
    ptb_metrics_add(&metrics, "algbw", 10, "GB/s", PTB_HIGHER_IS_BETTER, "S / t");
    ptb_metrics_add(&metrics, "busbw", 10, "GB/s", PTB_HIGHER_IS_BETTER, "2(n-1)/n * S / t");
    snprintf(key, sizeof key, "all_reduce/number=%d", number);
    ptb_rank_record ranks[RANKS];
    for (int r = 0; r < RANKS; r++)
        ranks[r] = (ptb_rank_record){.samples_ns = samples + (size_t)r * count, .count = count, .checked = 1};
    ptb_case_record record = {.bench = "all_reduce",
                              .key = key,
                              .params = &params,
                              .facts = &facts,
                              .bytes = (uint64_t)1 << (number % 24),
                              .ranks = RANKS,
                              .hosts = 1,
                              .state = "ok",
                              .mode = "latency",
                              .combine = "max",
                              .stopped = "ci",
                              .batch = 1,
                              .time_ns = ptb_stats_summarise(samples, count),
                              .combined_ns = samples,
                              .combined_count = count,
                              .rank = ranks,
                              .metrics = &metrics};
    need(ptb_store_add_case(store, repetition, &record));
}

static double seconds_since(int64_t start_ns)
{
    return (double)(ptb_clock_ns() - start_ns) / 1e9;
}

static void store_a_million(unsigned batch)
{
    double *samples = malloc(sizeof *samples * RANKS * SAMPLES);
    ptb_store *store;
    struct stat st;
    int64_t run;
    if (!samples)
        exit(3);
    make_samples(samples, RANKS * SAMPLES, batch);
    int64_t start = ptb_clock_ns();
    need(ptb_store_open("million.db", PTB_STORE_WRITE, &store));
    int64_t repetition = begin(store, 0, &run);
    for (int i = 0; i < CASES; i++)
        add(store, repetition, i, samples, SAMPLES);
    need(ptb_store_finish_run(store, run, "complete", NULL));
    ptb_store_close(store);
    double taken = seconds_since(start);
    if (stat("million.db", &st) != 0)
        exit(3);
    // Combined samples are stored too: three arrays a case.
    printf("store 1,000,000 samples (batches of %u): %.3f s, %.1f MB, %.2f bytes a value\n", batch, taken,
           (double)st.st_size / 1e6, (double)st.st_size / (3.0 * CASES * SAMPLES));
    ptb_blob blob;
    start = ptb_clock_ns();
    for (int i = 0; i < CASES; i++) {
        need(ptb_blob_from_f64(samples, RANKS * SAMPLES, &blob));
        ptb_blob_release(&blob);
    }
    printf("  of which packing: %.3f s a million\n", seconds_since(start));
    free(samples);
    remove("million.db");
}

static void timed_query(ptb_store *store, const char *what, const char *sql)
{
    ptb_table *t;
    const char *args[] = {"500"};
    int64_t start = ptb_clock_ns();
    need(ptb_store_query(store, sql, args, 1, &t));
    printf("  %-44s %7zu rows %8.3f s\n", what, t->rows, seconds_since(start));
    ptb_table_free(t);
}

static void report_on_a_thousand(void)
{
    double samples[RANKS * SAMPLES_OF_RUN];
    ptb_store *store;
    int64_t run = 0;
    make_samples(samples, RANKS * SAMPLES_OF_RUN, 1);
    int64_t start = ptb_clock_ns();
    need(ptb_store_open("thousand.db", PTB_STORE_WRITE, &store));
    for (int r = 0; r < RUNS; r++) {
        int64_t repetition = begin(store, r, &run);
        for (int i = 0; i < CASES_OF_RUN; i++)
            add(store, repetition, i, samples, SAMPLES_OF_RUN);
        need(ptb_store_finish_run(store, run, "complete", NULL));
    }
    ptb_store_close(store);
    printf("store %d runs of %d cases: %.3f s\n", RUNS, CASES_OF_RUN, seconds_since(start));
    need(ptb_store_open("thousand.db", PTB_STORE_READ, &store));
    timed_query(
        store, "runs with their case counts",
        "SELECT r.id, r.uuid, r.label, count(c.id) FROM run r LEFT JOIN repetition p ON p.run_id = r.id LEFT "
        "JOIN bench_case c ON c.repetition_id = p.id WHERE ?1 = ?1 GROUP BY r.id ORDER BY r.started_utc_s");
    timed_query(
        store, "cases and metrics of one run",
        "SELECT c.*, m.value FROM repetition p JOIN bench_case c ON c.repetition_id = p.id JOIN metric m ON "
        "m.case_id = c.id AND m.name = 'busbw' WHERE p.run_id = ?1 ORDER BY c.bytes");
    timed_query(
        store, "one metric of all cases of all runs",
        "SELECT p.run_id, c.bytes, c.facts ->> 'algorithm', c.median_ns, m.value FROM repetition p JOIN "
        "bench_case c ON c.repetition_id = p.id JOIN metric m ON m.case_id = c.id WHERE m.name = 'busbw' AND "
        "c.bench = 'all_reduce' AND ?1 = ?1");
    start = ptb_clock_ns();
    need(ptb_store_find_run(store, "last~500", &run));
    printf("  %-44s %12s %8.3f s\n", "find a run", "", seconds_since(start));
    ptb_store_close(store);
}

int main(void)
{
    store_a_million(1);
    store_a_million(7);
    report_on_a_thousand();
    return 0;
}
