// What tests of reports share: a store, and a run's tables as text.
#ifndef PTB_TESTS_UNIT_REPORT_FIXTURE_H
#define PTB_TESTS_UNIT_REPORT_FIXTURE_H

#include "store_fixture.h"

#include "reports/render.h"
#include "tests/golden/report_data.h"

static inline ptb_store *new_store(void)
{
    ptb_store *store = NULL;
    assert_int_equal(ptb_store_open("ptbench.db", PTB_STORE_WRITE, &store), PTB_OK);
    return store;
}

// Not inlined: GCC 12 takes what the stream has allocated for the local variable that points at it.
static __attribute__((noinline)) char *text_of(ptb_store *store, int64_t run, int width)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    assert_int_equal(ptb_report_terminal(store, run, width, out), PTB_OK);
    fclose(out);
    return text;
}

#endif
