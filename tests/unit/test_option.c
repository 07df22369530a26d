// Options: parsing, ranges, several tables at once, rendering and help.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/log.h"
#include "core/option.h"

#include <string.h>

typedef struct {
    bool check;
    int64_t iters;
    uint64_t bytes;
    double ci, time, x;
    char *name, *mode, *types;
    int64_t experts;
} config;

static const char *const modes[] = {"latency", "back-to-back", NULL};
static const char *const types[] = {"f32", "f64", "i8", NULL};
static const ptb_opt table[] = {
    {"check", 'c', PTB_OPT_BOOL, offsetof(config, check), "yes", 0, 0, NULL, NULL, "Check results"},
    {"iters", 'n', PTB_OPT_INT, offsetof(config, iters), "20", 1, 1000, NULL, NULL, "Iterations"},
    {"min-bytes", 'b', PTB_OPT_SIZE, offsetof(config, bytes), "8", 0, 0, NULL, NULL, "Smallest size"},
    {"ci", 0, PTB_OPT_PERCENT, offsetof(config, ci), "2%", 1e-6, 1, NULL, NULL, "Wanted half-width"},
    {"max-time", 0, PTB_OPT_SECONDS, offsetof(config, time), "500ms", 0, 0, NULL, NULL, "Time limit"},
    {"x", 0, PTB_OPT_DOUBLE, offsetof(config, x), NULL, 0, 0, NULL, NULL, "A number"},
    {"label", 0, PTB_OPT_STRING, offsetof(config, name), NULL, 0, 0, NULL, NULL, "A label"},
    {"mode", 0, PTB_OPT_CHOICE, offsetof(config, mode), "latency", 0, 0, modes, NULL, "How to time"},
    {"type", 'd', PTB_OPT_LIST, offsetof(config, types), "f32", 0, 0, types, NULL, "Element types"},
    {"experts", 0, PTB_OPT_INT, offsetof(config, experts), "-1", -1, 64, NULL, NULL,
     "Experts; 0: none; -1: the preset's"},
};

static ptb_opt_set make_set(config *c)
{
    memset(c, 0, sizeof *c);
    ptb_opt_set set = {table, sizeof table / sizeof *table, c, "test"};
    ptb_opts_defaults(&set);
    return set;
}

static void check_render(const ptb_opt_set *set, const char *const *wanted)
{
    for (size_t i = 0; i < set->count; i++) {
        ptb_text text = PTB_TEXT_INIT;
        ptb_opts_render(set, i, &text);
        assert_string_equal(ptb_text_string(&text), wanted[i]);
        ptb_text_release(&text);
    }
}

static const char *const default_texts[] = {"yes", "20", "8", "0.02", "0.5", "0", "", "latency", "f32", "-1"};

static void test_defaults(void **state)
{
    (void)state;
    config c;
    ptb_opt_set set = make_set(&c);
    check_render(&set, default_texts);
    ptb_opts_release(&set);
    assert_null(c.mode);
}

static void test_parse(void **state)
{
    (void)state;
    config a, b;
    ptb_opt_set sets[] = {make_set(&a), make_set(&b)};
    sets[1].count = 3; // the second table has only the first three options
    char *argv[] = {"p",      "quick",   "-b64K",      "--iters=7", "-c",       "0",  "--ci", "5%",
                    "--type", "f32, i8", "--max-time", "2m",        "--x=-1.5", "--", "-word"};
    const char *words[4];
    size_t count;
    assert_int_equal(ptb_opts_parse(sets, 2, 15, argv, 1, words, 4, &count), PTB_OK);
    assert_int_equal(count, 2);
    assert_string_equal(words[0], "quick");
    assert_string_equal(words[1], "-word");
    const char *const wanted[] = {"no", "7", "64K", "0.05", "120", "-1.5", "", "latency", "f32, i8", "-1"};
    check_render(&sets[0], wanted);
    assert_int_equal(b.bytes, 65536);
    assert_false(b.check);
    config copy = {0};
    ptb_opts_copy(&sets[0], &copy);
    assert_string_equal(copy.types, "f32, i8");
    assert_ptr_not_equal(copy.types, a.types);
    ptb_opt_set copied = {table, sizeof table / sizeof *table, &copy, "copy"};
    ptb_opts_release(&copied);
    ptb_opts_release(&sets[0]);
    sets[1].count = sets[0].count;
    ptb_opts_release(&sets[1]);
}

static void test_refused(void **state)
{
    (void)state;
    config c;
    ptb_opt_set set = make_set(&c);
    static const char *const bad[] = {
        "--iters=0",    "--iters=1001", "--iters=7x",  "--iters",       "--min-bytes=1.3K",
        "--ci=200%",    "--type=f99",   "--type=f32,", "--mode=fast",   "--max-time=5 parsecs",
        "--x=1,5",      "--unknown",    "-Q",          "--check=maybe", "--no-iters",
        "--experts=-2", "--experts=65"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char *argv[] = {"p", (char *)bad[i], NULL};
        const char *words[1];
        size_t count;
        assert_int_equal(ptb_opts_parse(&set, 1, 2, argv, 1, words, 1, &count), PTB_USAGE);
    }
    check_render(&set, default_texts);
    ptb_opts_release(&set);
}

static void test_help(void **state)
{
    (void)state;
    config c;
    ptb_opt_set set = make_set(&c);
    ptb_text text = PTB_TEXT_INIT;
    ptb_opts_help(&set, 60, &text);
    for (const char *line = ptb_text_string(&text); *line;) {
        size_t length = strcspn(line, "\n");
        assert_true(length <= 60);
        line += length + (line[length] == '\n');
    }
    assert_non_null(strstr(ptb_text_string(&text), "-n, --iters N"));
    assert_non_null(strstr(ptb_text_string(&text), "From 1 to 1000."));
    ptb_text_release(&text);
    ptb_opt_describe(ptb_opts_find(&set, "experts"), &text);
    assert_string_equal(ptb_text_string(&text),
                        "Experts; 0: none. From 0 to 64. Default: -1 (the preset's).");
    ptb_text_release(&text);
    ptb_opt_describe(ptb_opts_find(&set, "ci"), &text);
    assert_non_null(strstr(ptb_text_string(&text), "From 0.0001% to 100%."));
    ptb_text_release(&text);
    ptb_opts_release(&set);
}

int main(void)
{
    ptb_log_set_level((ptb_log_level)-1);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_defaults), cmocka_unit_test(test_parse),
                                       cmocka_unit_test(test_refused), cmocka_unit_test(test_help)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
