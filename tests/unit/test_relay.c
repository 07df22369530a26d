// What mpirun says is passed on but for what ptbench says itself and for its words about messages that it
// dropped; and who was lost is learnt from it.
#include "bench/relay.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

// What comes out of `said`, in one piece.
static void feed(const char *said, ptb_relay *relay, ptb_text *out)
{
    ptb_relay_init(relay);
    ptb_relay_feed(relay, said, strlen(said), out);
    ptb_relay_end(relay, out);
}

static void words_of_mpirun_are_dropped(void **state)
{
    (void)state;
    static const char said[] =
        "ptbench[1]: error: a GPU is gone\n"
        "[h:04753] 1 more process has sent help message help-mpi-api.txt / mpi-abort\n"
        "[h:04753] Set MCA parameter \"orte_base_help_aggregate\" to 0 to see all help / error messages\n"
        "[h:04753] [[32759,0],0] ORTE_ERROR_LOG: Out of resource in file "
        "../../../orte/util/show_help.c at line 507\n"
        "[h:04753] [[32759,0],0] ORTE_ERROR_LOG: Not found in file orted/pmix/pmix_server.c at line 1\n"
        "[1/4] all_reduce  1.5 us\n";
    ptb_relay relay;
    ptb_text out = PTB_TEXT_INIT;
    feed(said, &relay, &out);
    assert_string_equal(
        ptb_text_string(&out),
        "ptbench[1]: error: a GPU is gone\n"
        "[h:04753] [[32759,0],0] ORTE_ERROR_LOG: Not found in file orted/pmix/pmix_server.c at line 1\n"
        "[1/4] all_reduce  1.5 us\n");
    assert_int_equal(relay.lost_rank, -1);
    ptb_text_release(&out);
    ptb_relay_release(&relay);
}

static void who_was_lost_is_learnt(void **state)
{
    (void)state;
    static const char ruler[] =
        "--------------------------------------------------------------------------\n";
    ptb_relay relay;
    ptb_text said = PTB_TEXT_INIT, out = PTB_TEXT_INIT;
    ptb_text_printf(
        &said, "%smpirun noticed that process rank 3 with PID 0 on node h2 exited on signal 9 (Killed).\n%s",
        ruler, ruler);
    feed(ptb_text_string(&said), &relay, &out);
    assert_string_equal(ptb_text_string(&out), "");
    assert_int_equal(relay.lost_rank, 3);
    assert_int_equal(relay.lost_signal, 9);
    assert_string_equal(relay.lost_host, "h2");
    ptb_text_release(&said);
    ptb_text_release(&out);
    ptb_relay_release(&relay);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_of_mpirun_are_dropped),
        cmocka_unit_test(who_was_lost_is_learnt),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
