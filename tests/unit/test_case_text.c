// How cases and outcomes read on the progress line.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "bench/case_text.h"

#include <stdlib.h>
#include <string.h>

static void check_label(char *bench, char *option, const char *name, const char *value, const char *want)
{
    char *argv[] = {"ptbench", "run", bench, option};
    ptb_plan *plan;
    assert_int_equal(ptb_plan_make(4, argv, 2, &plan), PTB_OK);
    ptb_case c = {.bytes = 1048576};
    ptb_params_set(&c.params, "comm", "host");
    ptb_params_set(&c.params, "vocabulary", "256"); // no option has this name
    ptb_params_set(&c.params, "bytes", "1048576");
    ptb_params_set(&c.params, name, "%s", value);
    ptb_text text = PTB_TEXT_INIT;
    ptb_case_label(&plan->parts[0], &c, &text);
    assert_string_equal(ptb_text_string(&text), want);
    ptb_text_release(&text);
    ptb_plan_free(plan);
}

static void test_labels(void **state)
{
    (void)state;
    check_label("all_reduce", "--op=max", "op", "max", "all_reduce comm=host bytes=1M op=max");
    check_label("all_reduce", "--op=sum", "op", "sum", "all_reduce comm=host bytes=1M");
    check_label("all_reduce", "--op=sum", "count", "262144", "all_reduce comm=host bytes=1M");
    check_label("all_reduce", "--op=sum", "ranks", "2", "all_reduce comm=host bytes=1M ranks=2");
    check_label("step", "--layers=6", "data", "generator", "step comm=host bytes=1M");
    check_label("step", "--micro-batches=4", "micro_batches", "4", "step comm=host bytes=1M micro_batches=4");
    check_label("step", "--layers=6", "lr_warmup", "10", "step comm=host bytes=1M");
    check_label("step", "--layers=6", "lr", "0.001", "step comm=host bytes=1M");
    check_label("step", "--lr=0.002", "lr", "0.002", "step comm=host bytes=1M lr=0.002");
    check_label("step", "--strategy=fsdp", "in_flight", "2", "step comm=host bytes=1M");
    check_label("step", "--data=a.txt", "data", "a.txt", "step comm=host bytes=1M data=a.txt");
}

static void check_outcome(const char *name, double value, const char *unit, size_t count, const char *want)
{
    ptb_case_result *result = calloc(1, sizeof *result);
    char text[PTB_REASON_BYTES + 64];
    result->count = count;
    result->time_ns = (ptb_summary){.count = count, .median = 12340, .ci_low = 12000, .ci_high = 12500};
    ptb_metrics_add(&result->metrics, "algbw", 1, "GB/s", PTB_HIGHER_IS_BETTER, "");
    ptb_metrics_add(&result->metrics, name, value, unit, PTB_HIGHER_IS_BETTER, "");
    if (strcmp(name, "tokens_per_s") == 0)
        result->metrics.items[0].better = PTB_NEUTRAL;
    ptb_case_outcome(result, text, sizeof text);
    assert_string_equal(text, want);
    free(result);
}

static void test_outcomes(void **state)
{
    (void)state;
    check_outcome("busbw", 0.087661, "GB/s", 20, "12.3 us +-2.8%, busbw 0.0877 GB/s");
    check_outcome("busbw", 40.3, "GB/s", 20, "12.3 us +-2.8%, busbw 40.3 GB/s");
    check_outcome("busbw", 9.9999, "GB/s", 20, "12.3 us +-2.8%, busbw 10.0 GB/s");
    check_outcome("busbw", 1234.5, "GB/s", 20, "12.3 us +-2.8%, busbw 1234 GB/s");
    check_outcome("tokens_per_s", 588.9, "tokens/s", 1, "12.3 us (1 sample), 589 tokens/s");
    ptb_case_result *result = calloc(1, sizeof *result);
    char text[PTB_REASON_BYTES + 64];
    result->count = 20;
    result->time_ns = (ptb_summary){.count = 20, .median = 12340, .ci_low = 12000, .ci_high = 12500};
    ptb_params_set(&result->facts, "device", "simulated GPU, 2.0 GiB, sm_90");
    ptb_case_outcome(result, text, sizeof text);
    assert_string_equal(text, "12.3 us +-2.8% [SIMULATED DEVICE]");
    result->state = PTB_CASE_SKIPPED;
    strcpy(result->reason, "no such thing here");
    ptb_case_outcome(result, text, sizeof text);
    assert_string_equal(text, "skipped: no such thing here");
    free(result);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_labels), cmocka_unit_test(test_outcomes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
