// Conformance over threads (communicator local): the sweep, the benchmarks' own verification, and planted
// faults that both must find.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "collectives/world.h"
#include "bench_path.h"
#include "conformance.h"
#include "faults.h"

enum { RANKS = 8 };

// What a rank's body is given, and what each rank found.
typedef struct {
    const char *backend;
    const char *bench;
    const char *const *settings;
    tally seen[RANKS];
    bench_result result[RANKS];
    call_case one;
} job;

static ptb_status sweep_body(ptb_world *world, void *arg)
{
    job *j = arg;
    ptb_device *device;
    bench_seat seat;
    PTB_TRY(ptb_device_open("host", 0, &device));
    ptb_status status = seat_init(&seat, world, device, &j->seen[world->rank]);
    if (status == PTB_OK)
        status = sweep_backend(&seat, j->backend, RANKS);
    seat_release(&seat);
    ptb_device_close(device);
    return status;
}

static void print_skips(const tally *seen)
{
    for (int i = 0; i < seen->skip_reasons; i++)
        print_message("    %ld skipped: %s\n", seen->skip_count[i], seen->skip_reason[i]);
}

static void sweep_ranks(int ranks, const int *host_of)
{
    job *j = calloc(1, sizeof *j);
    j->backend = "local";
    assert_int_equal(ptb_world_run_local(ranks, host_of, sweep_body, j), PTB_OK);
    long checked = 0;
    for (int r = 0; r < ranks; r++) {
        if (j->seen[r].wrong)
            fail_msg("%ld wrong; first: %s", j->seen[r].wrong, j->seen[r].first_wrong);
        checked += j->seen[r].checked;
    }
    print_message("%d ranks: %ld calls checked\n", ranks, checked);
    print_skips(&j->seen[0]);
    assert_true(checked > 0);
    free(j);
}

static void sweep(void **state)
{
    (void)state;
    for (int n = 1; n <= RANKS; n++)
        if (is_swept(n))
            sweep_ranks(n, NULL);
}

// Ranks on three pretended hosts, so that what happens between hosts is swept too.
static void sweep_hosts(void **state)
{
    (void)state;
    static const int host_of[] = {0, 0, 1, 1, 1, 2, 0, 2};
    sweep_ranks(5, host_of);
    sweep_ranks(8, host_of);
}

// ---- the benchmarks' path

static ptb_status bench_body(ptb_world *world, void *arg)
{
    job *j = arg;
    return bench_run(world, j->bench, j->settings, &j->result[world->rank]);
}

// Runs a benchmark with `settings` in a world of `ranks` threads; the caller frees the job.
static job *run_bench(int ranks, const char *bench, const char *const *settings, ptb_status want)
{
    job *j = calloc(1, sizeof *j);
    j->bench = bench;
    j->settings = settings;
    ptb_status status = ptb_world_run_local(ranks, NULL, bench_body, j);
    if (status != want)
        fail_msg("%s on %d ranks: %s, wanted %s", bench, ranks, ptb_status_name(status),
                 ptb_status_name(want));
    return j;
}

static void assert_right(const job *j, int ranks)
{
    for (int r = 0; r < ranks; r++)
        if (j->result[r].wrong)
            fail_msg("%s: %s", j->result[r].first_key, j->result[r].first_wrong.detail);
}

static void benchmarks_verify(void **state)
{
    (void)state;
    static const char *const settings[] = {"comm", "local",       "count", "0,1,7,8,9,7919",
                                           "type", "f32,bf16,i8", NULL};
    static const char *const plain[] = {"comm", "local", NULL};
    for (size_t i = 0; i < ptb_registry_count(PTB_KIND_COLLECTIVE); i++)
        for (int n = 1; n <= 5; n += 2) {
            const char *name = ptb_registry_at(PTB_KIND_COLLECTIVE, i)->name;
            bool barrier = strcmp(name, "barrier") == 0;
            job *j = run_bench(n, name, barrier ? plain : settings, PTB_OK);
            assert_right(j, n);
            assert_int_equal(j->result[0].cases + j->result[0].skipped, barrier ? 1 : 6 * 3 * 2);
            assert_true(barrier || j->result[0].checked > 0);
            free(j);
        }
}

static void point_to_point_verifies(void **state)
{
    (void)state;
    static const char *const settings[] = {"comm", "local", "count", "0,1,7919", "type", "f32,i8", NULL};
    for (int n = 1; n <= 4; n++) {
        job *j = run_bench(n, "sendrecv", settings, PTB_OK);
        assert_right(j, n);
        assert_int_equal(j->result[0].cases, n == 1 ? 0 : 4 * 3 * 2);
        assert_int_equal(j->result[0].skipped, n == 1 ? 4 * 3 * 2 : 0);
        free(j);
    }
}

static void groups_have_their_own_ranks(void **state)
{
    (void)state;
    static const char *const settings[] = {"comm",  "local", "count", "7919", "split",
                                           "mod:2", "place", "out",   NULL};
    job *j = run_bench(4, "all_gather", settings, PTB_OK);
    assert_right(j, 4);
    assert_int_equal(j->result[0].cases, 1);
    // 31,676 bytes in the 1,000 ns that the harness pretends, of groups of two.
    assert_float_equal(bench_metric(&j->result[0], "busbw"), 31.676 / 2, 1e-9);
    assert_float_equal(bench_metric(&j->result[0], "busbw_all_groups"), 31.676, 1e-9);
    assert_string_equal(ptb_params_get(&j->result[0].facts, "groups"), "2");
    free(j);
    static const char *const alone[] = {"comm",  "local", "count", "8", "split",
                                        "div:2", "place", "out",   NULL};
    j = run_bench(3, "all_gather", alone, PTB_OK);
    assert_int_equal(j->result[0].skipped, 1);
    assert_string_equal(j->result[0].skip, "under --split div:2 rank 2 would be alone in its group");
    free(j);
}

static void options_change_the_call(void **state)
{
    (void)state;
    static const char *const settings[] = {"comm",     "local",    "count", "7,1000", "op",
                                           "all",      "misalign", "3",     "root",   "2",
                                           "register", "no",       "type",  "all",    NULL};
    job *j = run_bench(3, "reduce", settings, PTB_OK);
    assert_right(j, 3);
    assert_int_equal(j->result[0].cases, 2 * 5 * 8 * 2);
    free(j);
    static const char *const grouped[] = {"comm", "local", "count", "1000", "aggregate", "4", NULL};
    j = run_bench(3, "all_reduce", grouped, PTB_OK);
    assert_right(j, 3);
    assert_int_equal(j->result[0].cases, 1); // in place would compound
    assert_int_equal(j->result[0].skipped, 1);
    assert_float_equal(bench_metric(&j->result[0], "algbw"), 4000.0 / 250, 1e-9);
    assert_float_equal(bench_metric(&j->result[0], "busbw"), 4000.0 / 250 * 4 / 3, 1e-9);
    free(j);
    static const char *const one[] = {"comm", "local", "count", "1000", NULL};
    j = run_bench(1, "all_reduce", one, PTB_OK);
    assert_true(isnan(bench_metric(&j->result[0], "busbw")));
    free(j);
}

static void bad_options_are_refused(void **state)
{
    (void)state;
    static const char *const bad[][5] = {
        {"comm", "local", "bytes", "10", NULL},     {"comm", "local", "type", "f23", NULL},
        {"comm", "local", "op", "summ", NULL},      {"comm", "local", "algo", "rnig", NULL},
        {"comm", "lokal", "bytes", "8", NULL},      {"comm", "local", "split", "mod:0", NULL},
        {"comm", "local", "min-bytes", "1G", NULL}, {"comm", "local", "count", "4611686018427387903", NULL}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        free(run_bench(2, "all_reduce", bad[i], PTB_USAGE));
    static const char *const root[] = {"comm", "local", "root", "2", NULL};
    free(run_bench(2, "reduce", root, PTB_USAGE));
    static const char *const graph[] = {"comm", "local", "graph", "yes", NULL};
    free(run_bench(2, "reduce", graph, PTB_UNSUPPORTED));
}

// ---- planted faults

static ptb_status fault_body(ptb_world *world, void *arg)
{
    job *j = arg;
    ptb_device *device;
    bench_seat seat;
    subject s;
    PTB_TRY(ptb_device_open("host", 0, &device));
    ptb_status status = seat_init(&seat, world, device, &j->seen[world->rank]);
    if (status == PTB_OK)
        status = subject_open(&s, j->backend, "default", world);
    if (status == PTB_OK) {
        status = run_case(&seat, &s, &j->one);
        subject_close(&s);
    }
    seat_release(&seat);
    ptb_device_close(device);
    return status;
}

// Both checks must report the first wrong element of some rank, with what was wanted and found there.
static void expect_fault(const char *fault, const char *bench, ptb_coll_kind kind, size_t first_index)
{
    enum { N = 4, COUNT = 4096 };
    const char *const settings[] = {"comm", fault, "count", "4096", "place", "out", NULL};
    job *j = run_bench(N, bench, settings, PTB_OK);
    j->backend = fault;
    j->one = (call_case){.kind = kind, .count = COUNT, .type = PTB_F32};
    assert_int_equal(ptb_world_run_local(N, NULL, fault_body, j), PTB_OK);
    int by_bench = 0, by_conformance = 0;
    for (int r = 0; r < N; r++) {
        int rank;
        unsigned long long element;
        double wanted, got;
        if (j->result[r].wrong) {
            const char *detail = j->result[r].first_wrong.detail;
            int read =
                sscanf(detail, "rank %d, element %llu: wanted %lf, got %lf", &rank, &element, &wanted, &got);
            if (read != 4 || rank != r || wanted == got || element < first_index)
                fail_msg("%s %s: the benchmark reports '%s'", fault, bench, detail);
            by_bench++;
        }
        if (j->seen[r].wrong) {
            const char *detail = strstr(j->seen[r].first_wrong, "rank ");
            int read =
                sscanf(detail, "rank %d, element %llu: wanted %lf, got %lf", &rank, &element, &wanted, &got);
            if (read != 4 || rank != r || wanted == got || element < first_index)
                fail_msg("%s %s: the sweep reports '%s'", fault, bench, j->seen[r].first_wrong);
            by_conformance++;
        }
    }
    if (by_bench == 0 || by_bench != by_conformance)
        fail_msg("%s %s: found by the benchmark on %d ranks, by the sweep on %d", fault, bench, by_bench,
                 by_conformance);
    free(j);
}

static void faults_are_found(void **state)
{
    (void)state;
    for (int kind = 0; kind < PTB_BARRIER; kind++) {
        const char *name = ptb_coll_name((ptb_coll_kind)kind);
        expect_fault("fault_nothing", name, (ptb_coll_kind)kind, 0);
        if (kind != PTB_ALL_TO_ALL_V) // the sweep's matrix has another length
            expect_fault("fault_drop", name, (ptb_coll_kind)kind, 4096 / 4 - 8);
    }
    static const ptb_coll_kind ordered[] = {PTB_ALL_GATHER, PTB_REDUCE_SCATTER, PTB_ALL_TO_ALL, PTB_GATHER,
                                            PTB_SCATTER};
    for (size_t i = 0; i < sizeof ordered / sizeof ordered[0]; i++)
        expect_fault("fault_order", ptb_coll_name(ordered[i]), ordered[i], 0);
}

static void lost_messages_are_found(void **state)
{
    (void)state;
    static const char *const settings[] = {"comm", "fault_nothing", "count", "16", NULL};
    job *j = run_bench(2, "sendrecv", settings, PTB_OK);
    assert_int_equal(j->result[1].wrong, 4); // rank 1 receives in all four patterns
    assert_int_equal(j->result[0].wrong, 3); // and rank 0 in all but one-way
    free(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(benchmarks_verify),
        cmocka_unit_test(point_to_point_verifies),
        cmocka_unit_test(groups_have_their_own_ranks),
        cmocka_unit_test(options_change_the_call),
        cmocka_unit_test(bad_options_are_refused),
        cmocka_unit_test(faults_are_found),
        cmocka_unit_test(lost_messages_are_found),
        cmocka_unit_test(sweep),
        cmocka_unit_test(sweep_hosts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
