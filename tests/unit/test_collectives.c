// Sizes, cases, keys and skip reasons of the collective benchmarks, and the shapes that collectives declare.
// Opening and enumerating need no communication, so the world is a plain struct here.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "collectives/coll_bench.h"
#include "collectives/world.h"
#include "core/log.h"

static const char *const *algorithms(ptb_coll_kind kind)
{
    static const char *const all_reduce[] = {"ring", "tree", NULL}, *const none[] = {NULL};
    return kind == PTB_ALL_REDUCE ? all_reduce : none;
}
static const char *const *no_algorithms(ptb_coll_kind kind)
{
    (void)kind;
    return NULL;
}
static const ptb_comm_ops rich = {.plugin = {"rich", "has algorithms"}, .algorithms = algorithms};
static const ptb_comm_ops poor = {.plugin = {"poor", "has none"}, .algorithms = no_algorithms};
PTB_REGISTER(PTB_KIND_COMM, rich);
PTB_REGISTER(PTB_KIND_COMM, poor);

enum { KEYS_MAX = 64 };
typedef struct {
    ptb_status status;
    size_t count;
    char key[KEYS_MAX][PTB_KEY_BYTES];
    ptb_case c[KEYS_MAX];
} cases;

// All cases of a benchmark on `ranks` ranks, two on each host.
static cases *enumerate(const char *name, int ranks, const char *const *settings)
{
    static cases out;
    static const int host_of[] = {0, 0, 1, 1, 2, 2, 3, 3};
    ptb_world world = {.size = ranks, .host_of = host_of, .hosts = (ranks + 1) / 2, .local_size = 2};
    ptb_bench_env env = {.world = &world, .dry_run = true};
    const ptb_bench *bench = (const ptb_bench *)(const void *)ptb_registry_find(PTB_KIND_BENCH, name);
    assert_non_null(bench);
    ptb_coll_config config = {0};
    ptb_opt_set set = {bench->opts, bench->opt_count, &config, name};
    ptb_opts_defaults(&set);
    assert_int_equal(ptb_opts_assign(&set, "comm", "rich", "test"), PTB_OK);
    for (; *settings; settings += 2)
        assert_int_equal(ptb_opts_assign(&set, settings[0], settings[1], "test"), PTB_OK);
    ptb_bench_run *run = NULL;
    memset(&out, 0, sizeof out);
    out.status = bench->open(&env, &config, &run);
    bool more = out.status == PTB_OK;
    while (more) {
        ptb_case c;
        assert_int_equal(bench->next(run, &c, &more), PTB_OK);
        if (!more || out.count == KEYS_MAX)
            break;
        assert_int_equal(c.index, out.count);
        ptb_case_key(name, &c, out.key[out.count]);
        out.c[out.count++] = c;
    }
    bench->close(run);
    ptb_opts_release(&set);
    return &out;
}

static void assert_sizes(const cases *all, const uint64_t *want, size_t count)
{
    assert_int_equal(all->status, PTB_OK);
    assert_int_equal(all->count, count);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(all->c[i].bytes, want[i]);
}

static void a_sweep_takes_whole_elements_once(void **state)
{
    (void)state;
    const char *const f64[] = {"type",      "f64", "place",      "out", "min-bytes", "1",
                               "max-bytes", "20",  "step-bytes", "3",   NULL};
    assert_sizes(enumerate("all_gather", 2, f64), (const uint64_t[]){8, 16}, 2);
    const char *const factor[] = {"place", "out",         "min-bytes", "8", "max-bytes",
                                  "100",   "step-factor", "2.5",       NULL};
    assert_sizes(enumerate("all_gather", 2, factor), (const uint64_t[]){8, 20, 48}, 3); // 8, 20, 50
    const char *const zero[] = {"place", "out", "min-bytes", "0", "max-bytes", "8", NULL};
    assert_sizes(enumerate("all_gather", 2, zero), (const uint64_t[]){0, 4, 8}, 3);
    const char *const too_small[] = {"min-bytes", "1", "max-bytes", "3", NULL};
    assert_int_equal(enumerate("all_gather", 2, too_small)->status, PTB_USAGE);
}

static void exact_sizes_are_taken_as_they_are(void **state)
{
    (void)state;
    const char *const bytes[] = {"bytes", "12,4,1K", "place", "out", NULL};
    assert_sizes(enumerate("all_reduce", 8, bytes), (const uint64_t[]){12, 4, 1024}, 3);
    const char *const counts[] = {"count", "0,1,7,7919", "type", "bf16", "place", "out", NULL};
    assert_sizes(enumerate("all_reduce", 8, counts), (const uint64_t[]){0, 2, 14, 15838}, 4);
    const char *const broken[] = {"bytes", "8,10", NULL};
    assert_int_equal(enumerate("all_reduce", 2, broken)->status, PTB_USAGE);
    const char *const both[] = {"bytes", "8", "count", "8", NULL};
    assert_int_equal(enumerate("all_reduce", 2, both)->status, PTB_USAGE);
}

static void keys_name_what_was_asked_for(void **state)
{
    (void)state;
    const char *const plain[] = {"bytes", "8", NULL};
    const cases *all = enumerate("all_reduce", 4, plain);
    assert_int_equal(all->count, 2);
    assert_string_equal(
        all->key[0], "all_reduce/comm=rich/algo=default/type=f32/op=sum/place=out/count=2/bytes=8/ranks=4");
    assert_string_equal(all->key[1],
                        "all_reduce/comm=rich/algo=default/type=f32/op=sum/place=in/count=2/bytes=8/ranks=4");
    assert_false(all->c[0].fixed_batch);
    assert_true(all->c[1].fixed_batch);
    const char *const full[] = {"bytes",    "8",         "place",    "out",     "root", "1",         "split",
                                "mod:2",    "transport", "shm",      "segment", "64K",  "aggregate", "2",
                                "misalign", "3",         "register", "no",      NULL};
    all = enumerate("reduce", 4, full);
    assert_string_equal(
        all->key[0],
        "reduce/comm=rich/algo=default/type=f32/op=sum/root=1/place=out/split=mod:2/"
        "transport=shm/segment=65536/aggregate=2/misalign=3/register=no/count=2/bytes=8/ranks=4");
    const char *const none[] = {NULL};
    assert_string_equal(enumerate("barrier", 4, none)->key[0], "barrier/comm=rich/algo=default/ranks=4");
    const char *const pattern[] = {"bytes", "8", "pattern", "ring,one-way", NULL};
    all = enumerate("sendrecv", 4, pattern);
    assert_string_equal(all->key[0], "sendrecv/comm=rich/pattern=ring/type=f32/count=2/bytes=8/ranks=4");
    assert_string_equal(all->key[1], "sendrecv/comm=rich/pattern=one-way/type=f32/count=2/bytes=8/ranks=4");
}

static void lists_expand(void **state)
{
    (void)state;
    const char *const lists[] = {"bytes", "8", "place", "out", "type", "all", "op", "all", NULL};
    assert_int_equal(enumerate("all_reduce", 2, lists)->count, 8 * 5);
    const char *const algos[] = {"bytes",     "8",    "place",        "out", "comm",
                                 "rich,poor", "algo", "default,ring", NULL};
    const cases *all = enumerate("all_reduce", 2, algos);
    assert_int_equal(all->count, 4);
    assert_string_equal(all->c[1].skip, "");
    assert_string_equal(all->c[3].skip,
                        "poor has no algorithm 'ring' for all_reduce; it has none to choose from");
    const char *const unknown[] = {"algo", "rign", NULL};
    assert_int_equal(enumerate("all_reduce", 2, unknown)->status, PTB_USAGE);
    all = enumerate("all_gather", 2, algos); // ring is known, but not for it
    assert_string_equal(all->c[1].skip,
                        "rich has no algorithm 'ring' for all_gather; it has none to choose from");
}

// What does not fit is refused, not cut.
static void lists_that_are_too_long_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *bench, *option, *item;
        int most;
    } rows[] = {
        {"all_reduce", "type", "f32", 32},  {"all_reduce", "op", "sum", 32},
        {"all_reduce", "place", "out", 32}, {"all_reduce", "algo", "ring", 32},
        {"all_reduce", "comm", "rich", 32}, {"sendrecv", "pattern", "one-way", 4},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int more = 0; more < 2; more++) {
            char text[512] = "";
            for (int k = 0; k < rows[i].most + more; k++)
                snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", k ? "," : "", rows[i].item);
            const char *const settings[] = {"bytes", "8", rows[i].option, text, NULL};
            assert_int_equal(enumerate(rows[i].bench, 2, settings)->status, more ? PTB_USAGE : PTB_OK);
        }
}

static void cases_that_cannot_run_say_why(void **state)
{
    (void)state;
    const char *const odd[] = {"count", "7,8", "place", "in", NULL};
    const cases *all = enumerate("all_to_all", 4, odd);
    assert_string_equal(all->c[0].skip,
                        "in place, all_to_all needs equal parts, and 7 elements do not divide by 4 ranks");
    assert_string_equal(all->c[1].skip, "");
    const char *const alone[] = {"count", "8", "split", "node", "place", "out", NULL};
    assert_string_equal(enumerate("all_reduce", 5, alone)->c[0].skip,
                        "under --split node rank 4 would be alone in its group");
    assert_string_equal(enumerate("all_reduce", 4, alone)->c[0].skip, "");
    const char *const across[] = {"count", "8", "split", "across", "place", "out", NULL};
    assert_string_equal(enumerate("all_reduce", 4, across)->c[0].skip, "");
    const char *const grouped[] = {"count", "8", "aggregate", "2", "place", "in", NULL};
    assert_true(strstr(enumerate("all_reduce", 4, grouped)->c[0].skip, "would compound") != NULL);
    assert_string_equal(enumerate("all_gather", 4, grouped)->c[0].skip, "");
    const char *const root[] = {"root", "2", "split", "mod:2", NULL};
    assert_int_equal(enumerate("broadcast", 4, root)->status, PTB_USAGE);
}

// A setting that no case looks at would be believed to matter.
static void what_nothing_looks_at_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *bench, *settings[7];
        bool taken;
    } rows[] = {
        {"all_reduce", {"channels", "8"}, false},
        {"all_reduce", {"gpu-direct", "off"}, false},
        {"sendrecv", {"channels", "8", "comm", "host,mpi"}, false},
        {"all_reduce", {"segment", "64K", "comm", "mpi"}, false},
        {"all_reduce", {"segment", "64K", "comm", "mpi", "algo", "default,auto"}, false},
        {"all_reduce", {"segment", "64K", "comm", "mpi,host"}, true},
        {"all_reduce", {"segment", "64K", "comm", "rich", "algo", "ring"}, true},
        {"all_reduce", {"segment", "64K", "comm", "local"}, true},
        {"all_reduce", {"blocking", "yes"}, true},
        {"barrier", {"blocking", "yes"}, true},
        {"sendrecv", {"blocking", "yes"}, false},
        {"sendrecv", {"blocking", "no"}, true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ptb_log_set_level((ptb_log_level)-1);
        ptb_status status = enumerate(rows[i].bench, 4, rows[i].settings)->status;
        ptb_log_set_level(PTB_LOG_INFO);
        if (status != (rows[i].taken ? PTB_OK : PTB_USAGE))
            print_error("%s --%s %s\n", rows[i].bench, rows[i].settings[0], rows[i].settings[1]);
        assert_int_equal(status, rows[i].taken ? PTB_OK : PTB_USAGE);
    }
}

// Prepares the only case of an all_reduce and hands out why it is skipped.
static ptb_status prepare_too_large(ptb_world *world, void *reason)
{
    const ptb_bench *bench = (const ptb_bench *)(const void *)ptb_registry_find(PTB_KIND_BENCH, "all_reduce");
    const ptb_bench_env env = {.world = world};
    ptb_coll_config config = {0};
    ptb_opt_set set = {bench->opts, bench->opt_count, &config, "all_reduce"};
    ptb_bench_run *run = NULL;
    ptb_case c = {.index = 0};
    bool more;
    ptb_opts_defaults(&set);
    ptb_status status = ptb_opts_assign(&set, "comm", "local", "test");
    if (status == PTB_OK)
        status = ptb_opts_assign(&set, "place", "out", "test");
    if (status == PTB_OK)
        status = ptb_opts_assign(&set, "bytes", "1000000000000", "test");
    if (status == PTB_OK)
        status = bench->open(&env, &config, &run);
    if (status == PTB_OK)
        status = bench->next(run, &c, &more);
    char mine[PTB_REASON_BYTES] = "";
    if (status == PTB_OK)
        status = bench->prepare(run, &c, mine);
    if (world->rank == 0)
        memcpy(reason, mine, sizeof mine);
    bench->close(run);
    ptb_opts_release(&set);
    return status;
}

// Two buffers of S, the library's copy of S, and three places of 1 MiB that each buffer is staggered over:
// 3 x 1e12 + 2 x 3 x 2^20 bytes, not 3000.00 GB.
static void memory_counts_the_staggering(void **state)
{
    (void)state;
    char reason[PTB_REASON_BYTES];
    assert_int_equal(ptb_world_run_local(2, NULL, prepare_too_large, reason), PTB_SKIPPED);
    if (!strstr(reason, "need about 6000.01 GB (3000.01 GB each"))
        fail_msg("%s", reason);
}

// When cases are only counted, one that cannot fit into this host is skipped already, so that no time is
// planned for it; for other devices it is seen once they are open.
static void what_cannot_fit_is_foreseen(void **state)
{
    (void)state;
    const char *const sizes[] = {"bytes", "8,64T", "place", "out", "comm", "mpi", NULL};
    const cases *all = enumerate("all_reduce", 4, sizes);
    assert_int_equal(all->status, PTB_OK);
    assert_int_equal(all->count, 2);
    assert_string_equal(all->c[0].skip, "");
    assert_non_null(strstr(all->c[1].skip, "not enough memory: 2 ranks on this host need about"));
}

static const ptb_collective *collective(size_t i)
{
    return (const ptb_collective *)(const void *)ptb_registry_at(PTB_KIND_COLLECTIVE, i);
}

// The expectations of a rank cover its receive buffer exactly once, and shapes stay inside the in-place
// buffer.
static void expectations_cover_the_result(void **state)
{
    (void)state;
    for (size_t i = 0; i < ptb_registry_count(PTB_KIND_COLLECTIVE); i++)
        for (int n = 1; n <= 5; n++)
            for (size_t count = 0; count <= 23; count++)
                for (int rank = 0; rank < n; rank++) {
                    const ptb_collective *coll = collective(i);
                    ptb_coll_shape shape;
                    ptb_expect expect;
                    int root = n - 1;
                    coll->shape(count, n, rank, root, &shape);
                    size_t at = 0;
                    for (size_t e = 0; coll->expect(count, n, rank, root, e, &expect); e++) {
                        assert_int_equal(expect.first, at);
                        at += expect.count;
                        assert_in_range(expect.source_index + expect.count, 0, count);
                    }
                    assert_int_equal(at, shape.recv_count);
                    if (coll->kind == PTB_ALL_TO_ALL && count % (size_t)n)
                        continue;
                    assert_in_range(shape.in_place_send + shape.send_count, 0, shape.in_place_count);
                    assert_in_range(shape.in_place_recv + shape.recv_count, 0, shape.in_place_count);
                }
}

static void bus_factors_are_the_fields(void **state)
{
    (void)state;
    for (size_t i = 0; i < ptb_registry_count(PTB_KIND_COLLECTIVE); i++) {
        const ptb_collective *coll = collective(i);
        bool one = coll->kind == PTB_BROADCAST || coll->kind == PTB_REDUCE || coll->kind == PTB_BARRIER;
        double want = coll->kind == PTB_ALL_REDUCE ? 1.5 : one ? 1 : 0.75;
        assert_float_equal(coll->bus_factor(4), want, 0);
        assert_float_equal(coll->bus_factor(1), one ? 1 : 0, 0);
        assert_int_equal(coll->size_bytes(10, 4, 4), 40);
    }
}

static void uneven_counts_agree_between_ranks(void **state)
{
    (void)state;
    const ptb_collective *coll =
        (const ptb_collective *)(const void *)ptb_registry_find(PTB_KIND_COLLECTIVE, "all_to_all_v");
    size_t counts[5][4][5];
    for (int r = 0; r < 5; r++)
        coll->counts(151, 5, r, counts[r][0], counts[r][1], counts[r][2], counts[r][3]);
    for (int r = 0; r < 5; r++) {
        size_t sum = 0;
        for (int p = 0; p < 5; p++) {
            assert_int_equal(counts[r][0][p], counts[p][2][r]);
            assert_int_equal(counts[r][1][p], sum);
            sum += counts[r][0][p];
        }
        assert_int_equal(sum, 151);
    }
    assert_int_equal(counts[0][0][0], 10); // parts near 1 : 2 : 3 : 4 : 5
    assert_int_equal(counts[0][0][4], 51);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sweep_takes_whole_elements_once),
        cmocka_unit_test(exact_sizes_are_taken_as_they_are),
        cmocka_unit_test(keys_name_what_was_asked_for),
        cmocka_unit_test(lists_expand),
        cmocka_unit_test(lists_that_are_too_long_are_refused),
        cmocka_unit_test(cases_that_cannot_run_say_why),
        cmocka_unit_test(what_nothing_looks_at_is_refused),
        cmocka_unit_test(memory_counts_the_staggering),
        cmocka_unit_test(what_cannot_fit_is_foreseen),
        cmocka_unit_test(expectations_cover_the_result),
        cmocka_unit_test(bus_factors_are_the_fields),
        cmocka_unit_test(uneven_counts_agree_between_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
