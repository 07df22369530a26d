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
                         "OMPI_ARGV=-x TOKEN=x3 -q",
                         "PATHS=/no",
                         "PATH=/usr/bin",
                         "LANG=",
                         "PTBENCH_broken",
                         NULL};
    ptb_text json = PTB_TEXT_INIT;
    ptb_redact_environment(variables, &json);
    assert_string_equal(ptb_text_string(&json),
                        "{\"LANG\": \"\", \"NCCL_URL\": \"http://proxy:80/a@b:c\", \"OMPI_ARGV\": \"-x "
                        "TOKEN=*** -q\", \"OMPI_MCA_btl\": \"vader,self\", "
                        "\"OMPI_mca_auth\": \"***\", \"PATH\": \"/usr/bin\", \"PTBENCH_DB\": \"\\\"q\\\"\", "
                        "\"SLURM_JWT_Token\": \"***\", \"UCX_PROXY\": \"***\"}");
    ptb_text_clear(&json);
    char *none[] = {NULL};
    ptb_redact_environment(none, &json);
    assert_string_equal(ptb_text_string(&json), "{}");
    ptb_text_release(&json);
}

static void masks_words_of_command_lines(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"all_reduce --np 2", "all_reduce --np 2"},
        {"-x MY_TOKEN=abc  -x OMP_NUM_THREADS=2", "-x MY_TOKEN=***  -x OMP_NUM_THREADS=2"},
        {"--mpirun-args=-x api_key='a b' --mca a b", "--mpirun-args=-x api_key=*** --mca a b"},
        {"-x P=http://me:pw@h/ --seed=3", "-x P=*** --seed=3"},
        {"-x PASSWORD=\"a b", "-x PASSWORD=***"},
        {"--label key", "--label key"},
        {"", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ptb_text text = PTB_TEXT_INIT;
        ptb_redact_words(cases[i][0], &text);
        assert_string_equal(ptb_text_string(&text), cases[i][1]);
        ptb_text_release(&text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(keeps_what_matters_and_masks_secrets),
                                       cmocka_unit_test(masks_words_of_command_lines)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
