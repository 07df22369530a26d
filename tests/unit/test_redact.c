// The environment of a run: what is kept, what is masked.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "results/redact.h"

static void keeps_what_matters_and_masks_secrets(void **state)
{
    (void)state;
    char *variables[] = {"PTBENCH_DB=\"q\"",
                         "OMPI_MCA_btl=vader,self",
                         "HOME=/root",
                         "MY_API_KEY=abc",
                         "OMPI_mca_auth=x1",
                         "SLURM_JWT_Token=x2",
                         "UCX_PROXY=http://me:hunter2@proxy:80/",
                         "NCCL_URL=http://proxy:80/a@b:c",
                         "PATHS=/no",
                         "PATH=/usr/bin",
                         "LANG=",
                         "PTBENCH_broken",
                         NULL};
    ptb_text json = PTB_TEXT_INIT;
    ptb_redact_environment(variables, &json);
    assert_string_equal(
        ptb_text_string(&json),
        "{\"LANG\": \"\", \"NCCL_URL\": \"http://proxy:80/a@b:c\", \"OMPI_MCA_btl\": \"vader,self\", "
        "\"OMPI_mca_auth\": \"***\", \"PATH\": \"/usr/bin\", \"PTBENCH_DB\": \"\\\"q\\\"\", "
        "\"SLURM_JWT_Token\": \"***\", \"UCX_PROXY\": \"***\"}");
    ptb_text_clear(&json);
    char *none[] = {NULL};
    ptb_redact_environment(none, &json);
    assert_string_equal(ptb_text_string(&json), "{}");
    ptb_text_release(&json);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(keeps_what_matters_and_masks_secrets)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
