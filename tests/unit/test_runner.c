// The runner over threads with a made-up benchmark: when it stops, what it agrees on, what it calls in which
// order.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "bench/runner.h"
#include "collectives/world.h"
#include "core/clock.h"
#include "core/log.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 3 };

// What the benchmark does on one rank, and what was asked of it.
struct ptb_bench_run {
    int rank;
    double spin_ns;
    ptb_status prepared, iterated; // what the calls return
    bool is_wrong;
    long stall_from, stall_to; // calls that something else interrupts for 20 ms
    atomic_bool *stop;         // raised by the call number stop_at
    long stop_at;
    long iterations, calls, resets, verified, finished;
    long iterations_at_verify;
};

static ptb_status fake_prepare(ptb_bench_run *run, const ptb_case *c, char *reason)
{
    (void)c;
    if (run->prepared == PTB_SKIPPED)
        snprintf(reason, PTB_REASON_BYTES, "rank %d does not want to", run->rank);
    return run->prepared;
}

static ptb_status fake_reset(ptb_bench_run *run)
{
    run->resets++;
    return PTB_OK;
}

static ptb_status fake_iterate(ptb_bench_run *run, uint64_t n)
{
    run->iterations += (long)n;
    run->calls++;
    if (run->iterated == PTB_SYSTEM && run->calls == 1)
        ptb_error("the first cause");
    if (run->iterated == PTB_SYSTEM)
        ptb_error("what came of it");
    if (run->stop && run->calls == run->stop_at)
        atomic_store(run->stop, true);
    if (run->calls >= run->stall_from && run->calls < run->stall_to)
        for (int64_t end = ptb_clock_ns() + 20000000; ptb_clock_ns() < end;)
            ;
    // Each call is longer than the one before, by far more than what the clock resolves: were there ever so
    // many calls of equal length that the interval of the median lies among them, it would have no width.
    double spin_ns = run->spin_ns * (1 + 0.01 * (double)run->calls);
    int64_t end_ns = ptb_clock_ns() + (int64_t)(spin_ns * (double)n);
    while (run->spin_ns > 0 && ptb_clock_ns() < end_ns)
        ;
    return run->iterated;
}

static ptb_status fake_verify(ptb_bench_run *run, ptb_verdict *verdict)
{
    run->verified++;
    run->iterations_at_verify = run->iterations;
    *verdict = (ptb_verdict){.done = true, .checked = 10, .wrong = run->is_wrong ? 4 : 0};
    if (run->is_wrong)
        snprintf(verdict->detail, sizeof verdict->detail, "rank %d, element 2: wanted 3, got 0", run->rank);
    return PTB_OK;
}

static ptb_status fake_metrics(ptb_bench_run *run, const ptb_timing *timing, ptb_metrics *metrics)
{
    (void)run;
    ptb_metrics_add(metrics, "samples", (double)timing->mine_count, "", PTB_NEUTRAL, "number of samples");
    return PTB_OK;
}

static void fake_finish(ptb_bench_run *run)
{
    run->finished++;
}

static const ptb_bench fake = {.plugin = {"fake", "a made-up benchmark"},
                               .prepare = fake_prepare,
                               .reset = fake_reset,
                               .iterate = fake_iterate,
                               .verify = fake_verify,
                               .metrics = fake_metrics,
                               .finish = fake_finish};

// A test: options, what each rank's benchmark does, and what came of it on each rank.
typedef struct {
    ptb_measure measure;
    ptb_case c;
    ptb_bench_run run[RANKS];
    atomic_bool stop;
    ptb_status status[RANKS];
    ptb_case_result result[RANKS];
    double *mine[RANKS], *combined[RANKS]; // copies of the samples
} scene;

static double *copy(const double *values, size_t count)
{
    double *out = malloc((count + 1) * sizeof *out);
    if (count)
        memcpy(out, values, count * sizeof *out);
    return out;
}

static ptb_status play_rank(ptb_world *world, void *arg)
{
    scene *s = arg;
    int r = world->rank;
    const ptb_runner_env env = {.world = world, .stop = &s->stop};
    ptb_runner *runner;
    PTB_TRY(ptb_runner_new(&env, &s->measure, &fake, &runner));
    s->run[r].rank = r;
    s->status[r] = ptb_runner_case(runner, &s->run[r], &s->c, &s->result[r]);
    s->mine[r] = copy(s->result[r].mine_ns, s->result[r].count);
    s->combined[r] = copy(s->result[r].combined_ns, s->result[r].count);
    ptb_runner_end(runner, &s->run[r], &s->c);
    ptb_runner_free(runner);
    return PTB_OK;
}

static scene *make_scene(void)
{
    scene *s = calloc(1, sizeof *s);
    assert_non_null(s);
    ptb_opt_set set = ptb_measure_set(&s->measure);
    ptb_opts_defaults(&set);
    return s;
}

static void play(scene *s)
{
    assert_int_equal(ptb_world_run_local(RANKS, NULL, play_rank, s), PTB_OK);
    for (int r = 1; r < RANKS; r++) {
        assert_int_equal(s->status[r], s->status[0]);
        assert_int_equal(s->result[r].state, s->result[0].state);
        assert_int_equal(s->result[r].count, s->result[0].count);
        assert_int_equal(s->run[r].iterations, s->run[0].iterations);
    }
    for (int r = 0; r < RANKS; r++)
        assert_int_equal(s->run[r].finished, 1);
}

static void end(scene *s)
{
    ptb_opt_set set = ptb_measure_set(&s->measure);
    for (int r = 0; r < RANKS; r++) {
        free(s->mine[r]);
        free(s->combined[r]);
    }
    ptb_opts_release(&set);
    free(s);
}

static void set_option(scene *s, const char *name, const char *value)
{
    ptb_opt_set set = ptb_measure_set(&s->measure);
    assert_int_equal(ptb_opts_assign(&set, name, value, "test"), PTB_OK);
}

static void test_fixed(void **state)
{
    (void)state;
    scene *s = make_scene();
    set_option(s, "iters", "7");
    set_option(s, "warmup", "2");
    set_option(s, "mode", "latency");
    play(s);
    assert_int_equal(s->status[0], PTB_OK);
    assert_int_equal(s->result[0].state, PTB_CASE_OK);
    assert_int_equal(s->result[0].count, 7);
    assert_int_equal(s->result[0].warmup, 2);
    assert_string_equal(s->result[0].stopped, "fixed");
    assert_string_equal(s->result[0].mode, "latency");
    assert_int_equal(s->run[0].iterations, 9);
    assert_int_equal(s->run[0].resets, 9);
    // The buffers that are checked are those of the last timed iteration.
    assert_int_equal(s->run[0].verified, 1);
    assert_int_equal(s->run[0].iterations_at_verify, 9);
    assert_int_equal(s->result[0].verdict.checked, 10);
    assert_int_equal(s->result[0].metrics.count, 1);
    assert_true(s->result[0].metrics.items[0].value == 7);
    end(s);
}

static void test_no_warmup_no_check(void **state)
{
    (void)state;
    scene *s = make_scene();
    set_option(s, "iters", "5");
    set_option(s, "warmup", "0");
    set_option(s, "mode", "latency");
    set_option(s, "check", "no");
    play(s);
    assert_int_equal(s->result[0].warmup, 0);
    assert_int_equal(s->run[0].iterations, 5);
    assert_int_equal(s->run[0].verified, 0);
    end(s);
}

static void test_stops_by_interval(void **state)
{
    (void)state;
    scene *s = make_scene();
    for (int r = 0; r < RANKS; r++)
        s->run[r].spin_ns = 20e3;
    // Any interval will do: it stops as soon as there are enough samples.
    set_option(s, "ci", "100%");
    set_option(s, "min-iters", "33");
    set_option(s, "mode", "latency");
    set_option(s, "max-time", "60s");
    play(s);
    assert_string_equal(s->result[0].stopped, "ci");
    assert_true(s->result[0].count >= 33 && s->result[0].count <= 10000);
    assert_true(ptb_stats_relative_ci(&s->result[0].time_ns) <= 1);
    end(s);
}

static void test_stops_by_number(void **state)
{
    (void)state;
    scene *s = make_scene();
    for (int r = 0; r < RANKS; r++)
        s->run[r].spin_ns = 20e3;
    set_option(s, "ci", "0.0001%");
    set_option(s, "max-iters", "61");
    set_option(s, "mode", "latency");
    set_option(s, "max-time", "600s");
    play(s);
    assert_string_equal(s->result[0].stopped, "max-iters");
    assert_int_equal(s->result[0].count, 61);
    end(s);
}

static void test_stops_by_time(void **state)
{
    (void)state;
    scene *s = make_scene();
    for (int r = 0; r < RANKS; r++)
        s->run[r].spin_ns = 20e3;
    set_option(s, "ci", "0.0001%");
    set_option(s, "max-iters", "10000000");
    set_option(s, "max-time", "50ms");
    play(s);
    assert_string_equal(s->result[0].stopped, "max-time");
    end(s);
}

static void test_stop_flag_of_one_rank(void **state)
{
    (void)state;
    scene *s = make_scene();
    for (int r = 0; r < RANKS; r++)
        s->run[r].spin_ns = 20e3;
    s->run[1].stop = &s->stop;
    s->run[1].stop_at = 40;
    set_option(s, "ci", "0.0001%");
    set_option(s, "max-time", "600s");
    play(s);
    for (int r = 0; r < RANKS; r++)
        assert_int_equal(s->status[r], PTB_INTERRUPTED);
    assert_int_equal(s->run[0].verified, 0);
    end(s);
}

static void test_wrong_on_one_rank(void **state)
{
    (void)state;
    scene *s = make_scene();
    s->run[2].is_wrong = true;
    set_option(s, "iters", "5");
    play(s);
    assert_int_equal(s->status[0], PTB_OK);
    for (int r = 0; r < RANKS; r++)
        assert_int_equal(s->result[r].state, PTB_CASE_WRONG);
    assert_non_null(strstr(s->result[0].reason, "rank 2, element 2: wanted 3, got 0"));
    assert_non_null(strstr(s->result[0].reason, "4 of 10"));
    assert_int_equal(s->result[2].verdict.wrong, 4);
    assert_int_equal(s->result[0].count, 5);
    end(s);
}

static void test_skip_is_agreed(void **state)
{
    (void)state;
    scene *s = make_scene();
    s->run[1].prepared = PTB_SKIPPED;
    play(s);
    assert_int_equal(s->status[0], PTB_OK);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(s->result[r].state, PTB_CASE_SKIPPED);
        assert_int_equal(s->run[r].iterations, 0);
    }
    assert_string_equal(s->result[0].reason, "rank 1 does not want to");
    end(s);
}

static void test_known_skip(void **state)
{
    (void)state;
    scene *s = make_scene();
    snprintf(s->c.skip, sizeof s->c.skip, "never");
    s->run[0].finished = s->run[1].finished = s->run[2].finished =
        1; // not prepared, so not finished by the runner
    play(s);
    assert_int_equal(s->result[0].state, PTB_CASE_SKIPPED);
    assert_string_equal(s->result[0].reason, "never");
    end(s);
}

static void test_failure_is_agreed(void **state)
{
    (void)state;
    scene *s = make_scene();
    s->run[0].iterated = PTB_SYSTEM;
    set_option(s, "iters", "6");
    set_option(s, "warmup", "0");
    set_option(s, "mode", "latency");
    ptb_log_set_level((ptb_log_level)-1); // what is logged here is meant to be, and is heard all the same
    play(s);
    ptb_log_set_level(PTB_LOG_INFO);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(s->status[r], PTB_OK);
        assert_int_equal(s->result[r].state, PTB_CASE_FAILED);
        assert_int_equal(s->result[r].status, PTB_SYSTEM);
        assert_int_equal(s->result[r].count, 0);
    }
    assert_string_equal(s->result[0].reason, "the first cause");
    end(s);
}

static void test_short_operations_in_batches(void **state)
{
    (void)state;
    scene *s = make_scene();
    set_option(s, "mode", "back-to-back");
    set_option(s, "iters", "10");
    play(s);
    assert_string_equal(s->result[0].mode, "back-to-back");
    assert_true(s->result[0].batch > 1);
    // Samples are per iteration, and each batch is one call.
    assert_int_equal(s->run[0].iterations,
                     (long)(s->result[0].warmup + s->result[0].count * s->result[0].batch));
    assert_true(s->run[0].calls < s->run[0].iterations);
    end(s);
}

// Whether the batch is sized by the one call of each pass that is left alone.
static bool withstands_interruptions(void)
{
    scene *s = make_scene();
    set_option(s, "warmup", "3");
    set_option(s, "iters", "10");
    for (int r = 0; r < RANKS; r++) {
        s->run[r].stall_from = 5; // 3 single ones, then passes of 3: calls 4 to 6 and 7 to 9
        s->run[r].stall_to = 9;
    }
    play(s);
    bool is_long = strcmp(s->result[0].mode, "back-to-back") == 0 &&
                   s->result[0].batch > 50; // 100 us of empty operations
    end(s);
    return is_long;
}

// What interrupts the calls by which the batch is sized must not make it short. The machine may interrupt the
// call that is left alone, too, but not in every trial.
static void test_batch_size_withstands_interruptions(void **state)
{
    (void)state;
    int trials = 1;
    while (trials < 50 && !withstands_interruptions())
        trials++;
    assert_true(trials < 50);
}

static void test_fixed_batch_is_never_batched(void **state)
{
    (void)state;
    scene *s = make_scene();
    s->c.fixed_batch = true;
    set_option(s, "mode", "back-to-back");
    set_option(s, "iters", "10");
    play(s);
    assert_string_equal(s->result[0].mode, "latency");
    assert_int_equal(s->result[0].batch, 1);
    assert_int_equal(s->run[0].calls, s->run[0].iterations);
    assert_int_equal(s->run[0].resets, s->run[0].calls);
    end(s);
}

// Skipped with the reason, so that no key says a mode in which its case did not run.
static void test_a_mode_that_cannot_be_had(void **state)
{
    (void)state;
    static const struct {
        const char *mode;
        bool fixed, latency_only;
        uint64_t batch;
        const char *skip;
    } of[] = {
        {"auto", true, true, 8, ""},
        {"latency", true, true, 0, ""},
        {"latency", false, true, 8, "8 of them are timed end to end"},
        {"back-to-back", false, false, 0, ""},
        {"back-to-back", false, true, 8, ""},
        {"back-to-back", true, false, 0, "overwrites its own input"},
        {"back-to-back", false, true, 0, "timed alone"},
    };
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        ptb_bench bench = {.defaults = {.latency_only = of[i].latency_only}};
        ptb_measure measure = {.mode = (char *)of[i].mode};
        ptb_case c = {.fixed_batch = of[i].fixed, .batch = of[i].batch};
        ptb_runner_check_mode(&measure, &bench, &c);
        assert_int_equal(*c.skip != 0, *of[i].skip != 0);
        assert_non_null(strstr(c.skip, of[i].skip));
        snprintf(c.skip, sizeof c.skip, "known before");
        ptb_runner_check_mode(&measure, &bench, &c);
        assert_string_equal(c.skip, "known before");
    }
}

// A pipeline has as many operations a sample as it says, whatever they take and whatever is asked for.
static void test_batch_of_the_case(void **state)
{
    (void)state;
    static const char *const modes[] = {"auto", "latency", "back-to-back"};
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        scene *s = make_scene();
        s->c.batch = 8;
        set_option(s, "mode", modes[i]);
        set_option(s, "iters", "10");
        set_option(s, "warmup", "3");
        play(s);
        assert_string_equal(s->result[0].mode, "back-to-back");
        assert_int_equal(s->result[0].batch, 8);
        assert_int_equal(s->result[0].count, 10);
        assert_int_equal(s->result[0].warmup, 3 + 8);
        assert_int_equal(s->run[0].iterations, 3 + 8 + 10 * 8);
        assert_int_equal(s->run[0].calls, 3 + 1 + 10);
        end(s);
    }
}

// Samples of all ranks at one place.
static void get_column(const scene *s, size_t i, double *sum, double *max)
{
    *sum = *max = 0;
    for (int r = 0; r < RANKS; r++) {
        *sum += s->mine[r][i];
        *max = s->mine[r][i] > *max ? s->mine[r][i] : *max;
    }
}

static void check_combination(const char *how)
{
    scene *s = make_scene();
    for (int r = 0; r < RANKS; r++)
        s->run[r].spin_ns = 20e3 + 10e3 * r;
    set_option(s, "iters", "25");
    set_option(s, "mode", "latency");
    set_option(s, "time", how);
    play(s);
    assert_string_equal(s->result[0].combine, how);
    for (int r = 0; r < RANKS; r++)
        for (size_t i = 0; i < 25; i++) {
            double sum, max;
            get_column(s, i, &sum, &max);
            double wanted = strcmp(how, "avg") == 0 ? sum / RANKS : max;
            assert_true(fabs(s->combined[r][i] - wanted) <= 1e-9 * wanted);
        }
    end(s);
}

static void test_maximum_over_ranks(void **state)
{
    (void)state;
    check_combination("max");
}

static void test_average_over_ranks(void **state)
{
    (void)state;
    check_combination("avg");
}

static ptb_status measure_overhead(ptb_world *world, void *arg)
{
    return ptb_runner_overhead(world, (double *)arg + world->rank);
}

static void test_overhead(void **state)
{
    (void)state;
    double overhead_ns[RANKS] = {-1, -1, -1};
    assert_int_equal(ptb_world_run_local(RANKS, NULL, measure_overhead, overhead_ns), PTB_OK);
    for (int r = 0; r < RANKS; r++)
        assert_true(overhead_ns[r] >= 0);
}

static void test_estimate(void **state)
{
    (void)state;
    scene *s = make_scene();
    s->c.estimate_s = 2;
    set_option(s, "iters", "10");
    set_option(s, "warmup", "1");
    double fixed_s = ptb_runner_estimate_s(&s->measure, &fake, &s->c);
    assert_true(fixed_s >= 22 && fixed_s < 30);
    snprintf(s->c.skip, sizeof s->c.skip, "never");
    assert_true(ptb_runner_estimate_s(&s->measure, &fake, &s->c) == 0);
    end(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fixed),
        cmocka_unit_test(test_no_warmup_no_check),
        cmocka_unit_test(test_stops_by_interval),
        cmocka_unit_test(test_stops_by_number),
        cmocka_unit_test(test_stops_by_time),
        cmocka_unit_test(test_stop_flag_of_one_rank),
        cmocka_unit_test(test_wrong_on_one_rank),
        cmocka_unit_test(test_skip_is_agreed),
        cmocka_unit_test(test_known_skip),
        cmocka_unit_test(test_failure_is_agreed),
        cmocka_unit_test(test_short_operations_in_batches),
        cmocka_unit_test(test_batch_size_withstands_interruptions),
        cmocka_unit_test(test_fixed_batch_is_never_batched),
        cmocka_unit_test(test_a_mode_that_cannot_be_had),
        cmocka_unit_test(test_batch_of_the_case),
        cmocka_unit_test(test_maximum_over_ranks),
        cmocka_unit_test(test_average_over_ranks),
        cmocka_unit_test(test_overhead),
        cmocka_unit_test(test_estimate),
    };
    ptb_log_set_level((ptb_log_level)-1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
