// Peaks by the names that GPUs give themselves, and no peak for what is another GPU or only a part of one.
#include "strategies/datasheet.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void test_names(void **state)
{
    (void)state;
    static const struct {
        const char *device;
        double narrow, tf32, f32; // TFLOP/s
    } known[] = {
        {"NVIDIA A100-SXM4-80GB, 79.1 GiB, sm_80, GPU-1", 312, 156, 19.5},
        {"NVIDIA A100 80GB PCIe", 312, 156, 19.5},
        {"NVIDIA H100 80GB HBM3", 989.5, 494.5, 67},
        {"NVIDIA H100 PCIe", 756.5, 378, 51},
        {"NVIDIA H100 NVL", 835.5, 417.5, 60},
        {"NVIDIA H200", 989.5, 494.5, 67},
        {"NVIDIA H200, 139.8 GiB, sm_90, GPU-8a3f", 989.5, 494.5, 67},
        {"NVIDIA H200 NVL", 835.5, 417.5, 60},
        {"NVIDIA GH200 480GB", 989.5, 494.5, 67},
        {"NVIDIA B200", 2250, 1125, 75},
        {"NVIDIA L40S", 362, 183, 91.6},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        assert_true(ptb_datasheet_flops(known[i].device, PTB_BF16, false) == 1e12 * known[i].narrow);
        assert_true(ptb_datasheet_flops(known[i].device, PTB_F16, true) == 1e12 * known[i].narrow);
        assert_true(ptb_datasheet_flops(known[i].device, PTB_F32, true) == 1e12 * known[i].tf32);
        assert_true(ptb_datasheet_flops(known[i].device, PTB_F32, false) == 1e12 * known[i].f32);
        assert_true(isnan(ptb_datasheet_flops(known[i].device, PTB_I32, false)));
    }
}

static void test_others(void **state)
{
    (void)state;
    static const char *const unknown[] = {"AMD EPYC 9654, 2 cores",
                                          "NVIDIA A100X",
                                          "NVIDIA GeForce RTX 4090",
                                          "simulated GPU 0, 4.0 GiB",
                                          "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
                                          "NVIDIA H200, 17.5 GiB, sm_90, MIG instance, MIG-8a3f",
                                          "",
                                          "L4"};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++)
        assert_true(isnan(ptb_datasheet_flops(unknown[i], PTB_BF16, false)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_names), cmocka_unit_test(test_others)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
