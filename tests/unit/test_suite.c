// Suites and plans: the built-in files, what a user's own file may say, and the messages for what it may not.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "bench/plan.h"
#include "core/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Runs fn(arg) with standard error in a file and returns what was written.
static char *said(ptb_status (*fn)(const void *), const void *arg, ptb_status *status)
{
    static char text[8192];
    FILE *file = tmpfile();
    int saved = dup(STDERR_FILENO);
    assert_non_null(file);
    dup2(fileno(file), STDERR_FILENO);
    *status = fn(arg);
    dup2(saved, STDERR_FILENO);
    close(saved);
    rewind(file);
    size_t length = fread(text, 1, sizeof text - 1, file);
    text[length] = '\0';
    fclose(file);
    return text;
}

static ptb_status parse(const void *text)
{
    ptb_suite *suite;
    PTB_TRY(ptb_suite_parse("my.ini", text, &suite));
    ptb_suite_free(suite);
    return PTB_OK;
}

static void check_refused(const char *text, const char *part)
{
    ptb_status status;
    const char *message = said(parse, text, &status);
    assert_int_equal(status, PTB_USAGE);
    if (!strstr(message, part))
        fail_msg("expected '%s' in: %s", part, message);
}

static void test_parse(void **state)
{
    (void)state;
    ptb_suite *suite;
    const char *text = "; a comment\n[suite]\nname = mine\nsummary = two parts\n\n[one]\nbench = all_reduce\n"
                       "bytes = 8,1K ; behind\nrequires = ranks>=2, hosts>=1\n[two]\nbench = step\n";
    assert_int_equal(ptb_suite_parse("my.ini", text, &suite), PTB_OK);
    assert_string_equal(suite->name, "mine");
    assert_string_equal(suite->summary, "two parts");
    assert_int_equal(suite->part_count, 2);
    assert_string_equal(suite->parts[0].name, "one");
    assert_string_equal(suite->parts[0].bench, "all_reduce");
    assert_int_equal(suite->parts[0].pair_count, 1);
    assert_string_equal(suite->parts[0].pairs[0].key, "bytes");
    assert_string_equal(suite->parts[0].pairs[0].value, "8,1K");
    assert_int_equal(suite->parts[0].pairs[0].line, 8);
    assert_string_equal(suite->parts[0].requires, "ranks>=2, hosts>=1");
    assert_string_equal(suite->parts[1].requires, "");
    ptb_suite_free(suite);
    // As an editor on Windows writes it.
    text = "\xef\xbb\xbf[suite]\r\nname = mine\r\n[one]\r\nbench = step\r\n";
    assert_int_equal(ptb_suite_parse("my.ini", text, &suite), PTB_OK);
    assert_string_equal(suite->parts[0].bench, "step");
    ptb_suite_free(suite);
}

// The short form: the file names the suite, the section the benchmark.
static void test_short_form(void **state)
{
    (void)state;
    ptb_suite *suite;
    assert_int_equal(ptb_suite_parse("some/where/my.ini", "[all_reduce]\niters = 3\n", &suite), PTB_OK);
    assert_string_equal(suite->name, "my");
    assert_string_equal(suite->summary, "");
    assert_string_equal(suite->parts[0].bench, "all_reduce");
    assert_string_equal(suite->parts[0].pairs[0].value, "3");
    ptb_suite_free(suite);
    // A section without keys is a part with all defaults.
    assert_int_equal(ptb_suite_parse("my.ini", "[barrier]\n[all_reduce]\n", &suite), PTB_OK);
    assert_int_equal(suite->part_count, 2);
    assert_string_equal(suite->parts[0].bench, "barrier");
    assert_int_equal(suite->parts[1].line, 2);
    ptb_suite_free(suite);
}

static void test_refusals(void **state)
{
    (void)state;
    check_refused("name = x\n", "my.ini, line 1: 'name' stands before the first section");
    check_refused("[suite]\nname = x\nsumary = y\n",
                  "line 3: [suite] has no key 'sumary'; did you mean 'summary'");
    check_refused("[suite]\nname = x\n", "there is no part");
    check_refused("; nothing\n", "there is no part");
    check_refused("[suite]\nname = x\n[a]\niters = 3\n",
                  "line 3: [a] is no benchmark and does not say bench");
    check_refused("[suite]\nname = x\n[step]\nlayers = 2\n[barrier]\n[step]\nlayers = 4\n",
                  "line 6: there is a section [step] already, on line 3; for a second part with the same "
                  "benchmark, give it another name and say bench = ...");
    check_refused("[suite]\nname = x\n[step]\n[suite]\nsummary = y\n",
                  "line 4: there is a section [suite] already, on line 1");
    check_refused("[suite]\nname = x\n[01234567890123456789012345678901234567890123456789]\nbench = step\n",
                  "line 3: the name of the section has 50 characters; at most 49 are allowed");
    check_refused("[suite]\nname = x\n[a]\nbench = step\niters = 3\niters = 4\n",
                  "line 6: [a]: 'iters' is given twice");
    check_refused("[suite]\nname = x\n[a]\nbench = step\nrequires = rank>=2\n", "requires = 'rank>=2'");
    check_refused("[suite]\nname = x\n[a]\nbench = step\nrequires = ranks\n", "requires = 'ranks'");
    check_refused("[a]\nbench = step\nrequires = gpu,gpu,gpu,gpu,gpu,gpu,gpu,gpu,gpu,gpu,gpu,gpu,gpu,gpu,gpu,"
                  "gpu,ranks>=9\n",
                  "requires has 17 conditions; at most 16 are taken");
    check_refused("[suite]\nname = x\n[a\nbench = step\n", "line 3: expected [section]");
    check_refused("[suite]\nname = x\nrubbish\n", "line 3: expected [section]");
    char text[600] = "[suite]\nname = ";
    memset(text + strlen(text), 'x', 300);
    check_refused(text, "line 2: the line is 307 characters long");
}

static void test_requires(void **state)
{
    (void)state;
    const ptb_offer offer = {.ranks = 4, .hosts = 2, .cores = 8, .gpus = 0};
    const ptb_offer gpus = {.ranks = 4, .hosts = 2, .cores = 8, .gpus = 2};
    static const struct {
        const char *text;
        bool holds;
    } rows[] = {{"", true},
                {"ranks>=4", true},
                {"ranks>4", false},
                {"ranks = 4", true},
                {"ranks==3", false},
                {"hosts<=2", true},
                {"cores < 8", false},
                {"gpu", false},
                {"gpu<1", true},
                {"hosts>=2, ranks>=5", false},
                {"hosts>=2,ranks>=2", true}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char reason[PTB_REASON_BYTES] = "";
        assert_int_equal(ptb_requires_check(rows[i].text, "test"), PTB_OK);
        assert_int_equal(ptb_requires_hold(rows[i].text, &offer, reason), rows[i].holds);
        assert_int_equal(*reason == '\0', rows[i].holds);
    }
    char reason[PTB_REASON_BYTES];
    ptb_requires_hold("hosts>=2, ranks>=5", &offer, reason);
    assert_string_equal(reason, "needs ranks>=5; this run has 4");
    assert_false(ptb_requires_hold("gpu", &offer, reason));
    assert_non_null(strstr(reason, "no GPU can be used here"));
    assert_true(ptb_requires_hold("gpu, ranks>=2", &gpus, reason));
    assert_false(ptb_requires_hold("gpu>=3", &gpus, reason));
    assert_string_equal(reason, "needs gpu>=3; this run has 2");
    assert_true(ptb_requires_asks("ranks>=2, gpu>1", "gpu"));
    assert_false(ptb_requires_asks("ranks>=2", "gpu"));
    assert_false(ptb_requires_asks("", "gpu"));
}

// ---- plans

typedef struct {
    int argc;
    char *argv[12];
} line;

static ptb_status plan_of(const void *arg)
{
    const line *l = arg;
    ptb_plan *plan;
    PTB_TRY(ptb_plan_make(l->argc, (char **)l->argv, 2, &plan));
    ptb_plan_free(plan);
    return PTB_OK;
}

static void check_plan_refused(line l, const char *part)
{
    ptb_status status;
    while (l.argv[l.argc])
        l.argc++;
    const char *message = said(plan_of, &l, &status);
    assert_int_equal(status, PTB_USAGE);
    if (!strstr(message, part))
        fail_msg("expected '%s' in: %s", part, message);
}

static ptb_plan *make_plan(line l)
{
    ptb_plan *plan;
    while (l.argv[l.argc])
        l.argc++;
    assert_int_equal(ptb_plan_make(l.argc, l.argv, 2, &plan), PTB_OK);
    return plan;
}

static void test_builtin_suites_make_plans(void **state)
{
    (void)state;
    size_t count = 0;
    for (; ptb_suite_name(count); count++) {
        ptb_plan *plan = make_plan((line){0, {"ptbench", "run", (char *)ptb_suite_name(count)}});
        assert_true(plan->count > 0);
        ptb_plan_free(plan);
    }
    assert_int_equal(count, 8);
}

static void test_command_line_wins(void **state)
{
    (void)state;
    ptb_plan *plan =
        make_plan((line){0, {"ptbench", "run", "--max-time", "3s", "quick", "-n", "7", "--np=3", "-c0"}});
    assert_string_equal(plan->selection, "quick");
    assert_int_equal(plan->run.np, 3);
    for (size_t i = 0; i < plan->count; i++) {
        assert_int_equal(plan->parts[i].measure.iters, 7);
        assert_true(plan->parts[i].measure.max_time_s == 3);
        assert_false(plan->parts[i].measure.check);
    }
    // What the command line does not say stays as the suite has it.
    assert_string_equal(plan->parts[plan->count - 1].measure.ranks, "1,2");
    // The step's gradients need no thread-safe MPI library on one host.
    assert_false(ptb_plan_needs_threads(plan, true));
    assert_true(ptb_plan_needs_threads(plan, false));
    ptb_plan_free(plan);
}

// Starting up is as patient as the most patient part.
static void test_start_limits(void **state)
{
    (void)state;
    static const struct {
        char *timeout;
        double limit_s;
    } rows[] = {{"60s", 300}, {"1s", 60}, {"10m", 3000}, {"0", 0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ptb_plan *plan = make_plan((line){0, {"ptbench", "run", "all_reduce", "-T", rows[i].timeout}});
        assert_true(ptb_plan_start_limit_s(plan) == rows[i].limit_s);
        ptb_plan_free(plan);
    }
    ptb_plan *plan = make_plan((line){0, {"ptbench", "run", "all_reduce", "broadcast"}});
    plan->parts[1].measure.timeout_s = 100;
    assert_true(ptb_plan_start_limit_s(plan) == 500);
    plan->parts[1].measure.timeout_s = 0;
    assert_true(ptb_plan_start_limit_s(plan) == 0);
    ptb_plan_free(plan);
}

static void test_plan_refusals(void **state)
{
    (void)state;
    check_plan_refused((line){0, {"ptbench", "run"}}, "name a suite or a benchmark");
    check_plan_refused((line){0, {"ptbench", "run", "quik"}}, "did you mean 'quick'");
    check_plan_refused((line){0, {"ptbench", "run", "all_reduc"}}, "did you mean 'all_reduce'");
    check_plan_refused((line){0, {"ptbench", "run", "no/such/file.ini"}},
                       "no suite, suite file or benchmark");
    check_plan_refused((line){0, {"ptbench", "run", "all_reduce", "--min-bites", "8"}},
                       "did you mean 'min-bytes'");
    check_plan_refused((line){0, {"ptbench", "run", "all_reduce", "-b", "8Q"}},
                       "'8Q' is not a value of min-bytes");
    check_plan_refused((line){0, {"ptbench", "run", "barrier", "-o", "sum"}},
                       "'-o' is an option of all_reduce");
    check_plan_refused((line){0, {"ptbench", "run", "step", "barrier", "--count=8"}},
                       ", not of step or barrier; leave it out (`ptbench help step`");
    check_plan_refused((line){0, {"ptbench", "run", "all_reduce", "--ranks", "0,2"}}, "ranks = '0,2'");
    check_plan_refused((line){0, {"ptbench", "run", "all_reduce", "--min-iters", "9", "--max-iters", "5"}},
                       "min-iters 9 is more than max-iters 5");
}

static void check_bytes_refused(const char *text, size_t bytes, const char *part)
{
    char path[] = "/tmp/ptbench-suite-XXXXXX.ini";
    int file = mkstemps(path, 4);
    assert_true(file >= 0);
    assert_int_equal(write(file, text, bytes), (ssize_t)bytes);
    close(file);
    check_plan_refused((line){0, {"ptbench", "run", path}}, part);
    unlink(path);
}

static void check_file_refused(const char *text, const char *part)
{
    check_bytes_refused(text, strlen(text), part);
}

static void test_file_refusals(void **state)
{
    (void)state;
    check_file_refused("[suite]\nname = x\n[a]\nbench = al_reduce\n", "line 4: [a]: bench = 'al_reduce'");
    check_file_refused("[suite]\nname = x\n[a]\nbench = all_reduce\n\nalgos = ring\n",
                       "line 6: [a]: algos: 'all_reduce' has no option 'algos'; did you mean 'algo'");
    check_file_refused("[suite]\nname = x\n[a]\nbench = all_reduce\nmin-bytes = much\n",
                       "line 5: [a]: min-bytes");
    // What comes after it would go unread.
    static const char cut[] = "[all_reduce]\nbytes = 8\0\ncomm = host\n";
    check_bytes_refused(cut, sizeof cut - 1, "it holds a byte 0");
}

static void test_options_json(void **state)
{
    (void)state;
    char *argv[] = {"ptbench", "run", "step", "--label", "a \"b\""};
    ptb_plan *plan;
    ptb_text json = PTB_TEXT_INIT;
    assert_int_equal(ptb_plan_make(5, argv, 2, &plan), PTB_OK);
    ptb_plan_options_json(plan, 5, argv, 2, &json);
    const char *text = ptb_text_string(&json);
    assert_non_null(
        strstr(text, "\"arguments\": {\"0\": \"step\", \"1\": \"--label\", \"2\": \"a \\\"b\\\"\"}"));
    assert_non_null(strstr(text, "\"part 1: step\": {"));
    assert_non_null(strstr(text, "\"max-time\": \""));
    assert_string_equal(ptb_plan_resume_word(5, argv, 2) ? "some" : "none", "none");
    ptb_text_release(&json);
    ptb_plan_free(plan);
    char *resume[] = {"ptbench", "run", "--resume=last~1"};
    assert_string_equal(ptb_plan_resume_word(3, resume, 2), "last~1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse),
        cmocka_unit_test(test_short_form),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_requires),
        cmocka_unit_test(test_builtin_suites_make_plans),
        cmocka_unit_test(test_command_line_wins),
        cmocka_unit_test(test_start_limits),
        cmocka_unit_test(test_plan_refusals),
        cmocka_unit_test(test_file_refusals),
        cmocka_unit_test(test_options_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
