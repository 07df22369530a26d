// Libraries that are found at run time: found, missing, broken, too old.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/dynlib.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct {
    double (*cosine)(double);
    void (*later)(void);
} table;

static const ptb_dynlib_function functions[] = {
    {"cos", offsetof(table, cosine), false},
    {"ptb_test_no_such_function", offsetof(table, later), true},
};

static ptb_dynlib describe(const char *const *sonames)
{
    return (ptb_dynlib){.name = "Tested",
                        .needed_for = "the test needs it",
                        .sonames = sonames,
                        .install = "Install it",
                        .oldest = "7.1",
                        .functions = functions,
                        .function_count = 2};
}

static void state_release(ptb_dynlib_state *state)
{
    free(state->why);
    free(state->path);
    free(state->lacks);
}

static void test_found(void **unused)
{
    (void)unused;
    const char *const sonames[] = {"libptb-none.so.1", "libm.so.6", NULL};
    ptb_dynlib library = describe(sonames);
    ptb_dynlib_state state = PTB_DYNLIB_STATE_INIT;
    ptb_text why = PTB_TEXT_INIT;
    table t = {NULL, (void (*)(void))test_found};
    assert_int_equal(ptb_dynlib_load(&library, &state, &t, &why), PTB_OK);
    assert_int_equal(why.length, 0);
    assert_true(t.cosine(0) == 1);
    assert_null(t.later);
    assert_string_equal(state.lacks, "ptb_test_no_such_function");
    assert_non_null(strstr(state.path, "/libm.so.6"));
    state_release(&state);
}

static void expect_refusal(const ptb_dynlib *library, const char *const *words)
{
    ptb_dynlib_state state = PTB_DYNLIB_STATE_INIT;
    table t = {NULL, NULL};
    for (int round = 0; round < 2; round++) { // the second time it is remembered
        ptb_text why = PTB_TEXT_INIT;
        assert_int_equal(ptb_dynlib_load(library, &state, &t, &why), PTB_UNSUPPORTED);
        for (const char *const *word = words; *word; word++)
            if (!strstr(ptb_text_string(&why), *word))
                fail_msg("'%s' is not said: %s", *word, ptb_text_string(&why));
        ptb_text_release(&why);
    }
    assert_null(state.handle);
    state_release(&state);
}

static void test_missing(void **unused)
{
    (void)unused;
    const char *const sonames[] = {"libptb-none.so.2", "libptb-none.so.1", NULL};
    const char *const words[] = {"Tested (libptb-none.so.2 or libptb-none.so.1) is not on this machine",
                                 "the test needs it",
                                 "LD_LIBRARY_PATH",
                                 "CUDA_HOME (/nowhere)",
                                 "/usr/local/cuda",
                                 "Install it",
                                 NULL};
    ptb_dynlib library = describe(sonames);
    setenv("CUDA_HOME", "/nowhere", 1);
    expect_refusal(&library, words);
    unsetenv("CUDA_HOME");
}

static void test_too_old(void **unused)
{
    (void)unused;
    const char *const sonames[] = {"libm.so.6", NULL};
    const ptb_dynlib_function newer[] = {{"ptb_test_no_such_function", offsetof(table, later), false}};
    const char *const words[] = {"Tested has no ptb_test_no_such_function", "libm.so.6",
                                 "too old, 7.1 or later is needed", "Install it", NULL};
    ptb_dynlib library = describe(sonames);
    library.functions = newer;
    library.function_count = 1;
    expect_refusal(&library, words);
}

// A folder of its own as the toolkit's.
static void enter_toolkit(char folder[64], const char *file, const char *content)
{
    char path[256];
    snprintf(folder, 64, "/tmp/ptb-dynlib-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/lib64", folder);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/lib64/%s", folder, file);
    if (*content == '/') {
        assert_int_equal(symlink(content, path), 0);
    } else {
        FILE *out = fopen(path, "w");
        assert_non_null(out);
        fputs(content, out);
        fclose(out);
    }
    setenv("CUDA_HOME", folder, 1);
}

static void leave_toolkit(const char *folder, const char *file)
{
    char path[256];
    unsetenv("CUDA_HOME");
    snprintf(path, sizeof path, "%s/lib64/%s", folder, file);
    assert_int_equal(unlink(path), 0);
    snprintf(path, sizeof path, "%s/lib64", folder);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(rmdir(folder), 0);
}

static void test_broken(void **unused)
{
    (void)unused;
    const char *const sonames[] = {"libptb-broken.so.1", NULL};
    const char *const words[] = {"Tested (libptb-broken.so.1) cannot be loaded", "/lib64/libptb-broken.so.1",
                                 "Install it", NULL};
    char folder[64];
    ptb_dynlib library = describe(sonames);
    enter_toolkit(folder, sonames[0], "no library at all");
    expect_refusal(&library, words);
    leave_toolkit(folder, sonames[0]);
}

static void test_toolkit(void **unused)
{
    (void)unused;
    const char *const math[] = {"libm.so.6", NULL}, *const sonames[] = {"libptb-there.so.1", NULL};
    char folder[64];
    ptb_dynlib first = describe(math), library = describe(sonames);
    ptb_dynlib_state where = PTB_DYNLIB_STATE_INIT, state = PTB_DYNLIB_STATE_INIT;
    ptb_text why = PTB_TEXT_INIT;
    table t = {NULL, NULL};
    assert_int_equal(ptb_dynlib_load(&first, &where, &t, &why), PTB_OK);
    enter_toolkit(folder, sonames[0], where.path);
    t.cosine = NULL;
    assert_int_equal(ptb_dynlib_load(&library, &state, &t, &why), PTB_OK);
    leave_toolkit(folder, sonames[0]);
    assert_true(t.cosine(0) == 1);
    assert_int_equal(why.length, 0);
    state_release(&where);
    state_release(&state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_found),  cmocka_unit_test(test_missing), cmocka_unit_test(test_too_old),
        cmocka_unit_test(test_broken), cmocka_unit_test(test_toolkit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
