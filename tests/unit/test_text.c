// Text: sizes, numbers under a decimal-comma locale, splitting, JSON and "did you mean".
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/text.h"

#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void test_sizes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {
        {"0", 0},           {"8", 8},         {"1K", 1024},       {"64k", 65536}, {"1.5M", 1572864},
        {"2GiB", 1u << 31}, {"1g", 1u << 30}, {"16MB", 16 << 20}, {"0.5K", 512},  {"1T", (uint64_t)1 << 40},
        {"7919", 7919}};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        uint64_t bytes = 1;
        assert_true(ptb_text_parse_size(good[i].text, &bytes));
        assert_int_equal(bytes, good[i].bytes);
    }
    static const char *const bad[] = {"",    "K",  "-1", "1.3K",      "0.3", "1X",
                                      "1KK", " 1", "1 ", "99999999T", "1e3", "1,5K"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        uint64_t bytes = 77;
        assert_false(ptb_text_parse_size(bad[i], &bytes));
        assert_int_equal(bytes, 77);
    }
    char out[32];
    static const uint64_t sizes[] = {0, 8, 1000, 1024, 1536, 65536, 3u << 20, 1u << 30};
    static const char *const texts[] = {"0", "8", "1000", "1K", "1536", "64K", "3M", "1G"};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        ptb_text_format_size(sizes[i], out, sizeof out);
        assert_string_equal(out, texts[i]);
    }
}

static void test_numbers(void **state)
{
    (void)state;
    int64_t integer;
    double real;
    assert_true(ptb_text_parse_int("-9223372036854775808", &integer));
    assert_true(integer == INT64_MIN);
    assert_false(ptb_text_parse_int("9223372036854775808", &integer));
    assert_false(ptb_text_parse_int("", &integer));
    assert_false(ptb_text_parse_int("1.0", &integer));
    assert_true(ptb_text_parse_double("-1.25e-3", &real));
    assert_true(real == -1.25e-3);
    static const char *const bad[] = {"", ".", "1,5", "nan", "inf", "0x10", "1e", "1e999", "1.5 ", "--1"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(ptb_text_parse_double(bad[i], &real));
}

static void check_formats(void)
{
    static const struct {
        double ns;
        const char *text;
    } times[] = {{0, "0.00 ns"},       {412.2, "412 ns"},   {5214, "5.21 us"},
                 {14.23e6, "14.2 ms"}, {3.2e9, "3.20 s"},   {999.4, "999 ns"},
                 {999.6, "1.00 us"},   {99.96e3, "100 us"}, {9.996e3, "10.0 us"}};
    char out[32];
    for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
        ptb_text_format_ns(times[i].ns, out, sizeof out);
        assert_string_equal(out, times[i].text);
    }
    static const struct {
        double value;
        int decimals;
        const char *text;
    } numbers[] = {{0.1, -1, "0.1"}, {1.0 / 3, 3, "0.333"}, {1e300, -1, "1e+300"}, {2.5, -1, "2.5"},
                   {NAN, 2, "n/a"},  {INFINITY, 2, "n/a"},  {-0.125, -1, "-0.125"}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        ptb_text text = PTB_TEXT_INIT;
        ptb_text_append_number(&text, numbers[i].value, numbers[i].decimals);
        assert_string_equal(ptb_text_string(&text), numbers[i].text);
        ptb_text_release(&text);
    }
    double real;
    assert_true(ptb_text_parse_double("0.5", &real));
    assert_true(real == 0.5);
    assert_false(ptb_text_parse_double("0,5", &real));
}

static void test_locale(void **state)
{
    (void)state;
    check_formats();
    // A decimal-comma locale exists where one was generated; the program must not care.
    static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "de_DE"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (setlocale(LC_ALL, names[i]))
            check_formats();
    setlocale(LC_ALL, "C");
}

static void test_split(void **state)
{
    (void)state;
    char *storage;
    const char *pieces[4];
    assert_int_equal(ptb_text_split(" a, b c ,,d,e", ',', &storage, pieces, 4), 4);
    assert_string_equal(pieces[0], "a");
    assert_string_equal(pieces[1], "b c");
    assert_string_equal(pieces[2], "");
    assert_string_equal(pieces[3], "d");
    free(storage);
    assert_int_equal(ptb_text_pieces(" a, b c ,,d,e", ','), 5);
    assert_int_equal(ptb_text_pieces("", ','), 1);
}

static void test_json_and_nearest(void **state)
{
    (void)state;
    ptb_text text = PTB_TEXT_INIT;
    ptb_text_append_json(&text, "a\"b\\c\n\x01");
    assert_string_equal(ptb_text_string(&text), "\"a\\\"b\\\\c\\n\\u0001\"");
    ptb_text_release(&text);
    char *taken = ptb_text_take(&text);
    assert_string_equal(taken, "");
    free(taken);
    ptb_text_append(&text, "mine");
    taken = ptb_text_take(&text);
    assert_string_equal(taken, "mine");
    assert_null(text.data);
    free(taken);
    const char *const names[] = {"all_gather", "all_reduce", "all_to_all", "barrier",
                                 "broadcast",  "gather",     "reduce"};
    char near[128];
    ptb_text_nearest("allreduce", names, 7, near, sizeof near);
    assert_true(strncmp(near, "'all_reduce'", 12) == 0);
    const char *const options[] = {"db", "width", "cut", "case", "op", "samples", "output", "format"};
    ptb_text_nearest("out", options, 8, near, sizeof near); // not what merely is as short
    assert_true(strncmp(near, "'cut', 'output'", 15) == 0);
    ptb_text_nearest("x", names, 0, near, sizeof near);
    assert_string_equal(near, "(there are none)");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sizes), cmocka_unit_test(test_numbers),
                                       cmocka_unit_test(test_locale), cmocka_unit_test(test_split),
                                       cmocka_unit_test(test_json_and_nearest)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
