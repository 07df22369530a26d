// Runs whose end was never stored, in reports: they live, died, or cannot be seen from here.
#include "report_fixture.h"

#include "core/process.h"

// Whether a run whose end was not stored still runs is said where it can be known.
static void a_run_without_end_is_told(void **state)
{
    (void)state;
    ptb_text own = PTB_TEXT_INIT, gone = PTB_TEXT_INIT;
    ptb_process_append(&own);
    const char *line = ptb_text_string(&own);
    ptb_text_printf(&gone, "%.*s 1", (int)(strrchr(line, ' ') - line), line); // its number is ours now
    const struct {
        const char *processes, *notice, *item;
    } cases[] = {
        {NULL, "state running (it still runs, or it died without saying so)", "state         running"},
        {line, "state running (its processes live)", "state         running"},
        {ptb_text_string(&gone),
         "state died (its processes are gone and stored no end; `ptbench run --resume 00000003`",
         "state         died"},
        {"<node7> m b s 1 2",
         "state running on <node7>, since 2026-11-29T13:52:15Z (it still runs, or it died without saying so)",
         "state         running on <node7>, since 2026-11-29T13:52:15Z"},
    };
    ptb_store *store = new_store();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const data_run_spec spec = {.ranks = 2, .state = "running", .processes = cases[i].processes};
        data_run run = data_begin(store, (int)i + 1, &spec);
        data_finish(&run, &spec);
        char *text = text_of(store, run.run, 1000);
        if (!strstr(text, cases[i].notice) || !strstr(text, cases[i].item))
            fail_msg("no '%s' or '%s' in %s", cases[i].notice, cases[i].item, text);
        free(text);
    }
    ptb_store_close(store);
    ptb_text_release(&own);
    ptb_text_release(&gone);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_run_without_end_is_told, fixture_enter, fixture_leave),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
