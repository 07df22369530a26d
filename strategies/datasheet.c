// See datasheet.h. To add a GPU: a row, before those whose name is a part of its own.
#include "strategies/datasheet.h"

#include <ctype.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

// TFLOP/s of NVIDIA's data sheets ("... Tensor Core GPU Datasheet" of A100, H100, H200 and L40S, "GH200 Grace
// Hopper Superchip", "HGX B200"), rows "Tensor Core" without sparsity. Where only figures "with sparsity" are
// printed, which count twice what is computed, half of them: H100 SXM 1,979 and 989, PCIe 1,513 and 756, NVL
// 1,671 and 835; H200 the same; eight B200 36,000 and 18,000 (and 600 of f32).
static const struct {
    const char *name, *variant; // words of the description; variant NULL: any
    double narrow, tf32, f32;
} sheets[] = {
    {"A100", NULL, 312, 156, 19.5},    {"H100", "PCIe", 756.5, 378, 51},  {"H100", "NVL", 835.5, 417.5, 60},
    {"H100", NULL, 989.5, 494.5, 67},  {"H200", "NVL", 835.5, 417.5, 60}, {"H200", NULL, 989.5, 494.5, 67},
    {"GH200", NULL, 989.5, 494.5, 67}, {"B200", NULL, 2250, 1125, 75},    {"L40S", NULL, 362, 183, 91.6},
};

// "A100" stands in "NVIDIA A100-SXM4-80GB", not in "A100X" nor "GA100".
static bool has_word(const char *text, const char *word)
{
    size_t length = strlen(word);
    for (const char *at = strstr(text, word); at; at = strstr(at + 1, word)) {
        bool begins = at == text || !isalnum((unsigned char)at[-1]);
        if (begins && !isalnum((unsigned char)at[length]))
            return true;
    }
    return false;
}

double ptb_datasheet_flops(const char *device, ptb_dtype type, bool tf32)
{
    if (has_word(device, "MIG"))
        return NAN;
    for (size_t i = 0; i < sizeof sheets / sizeof *sheets; i++) {
        if (!has_word(device, sheets[i].name) || (sheets[i].variant && !has_word(device, sheets[i].variant)))
            continue;
        switch (type) {
        case PTB_BF16:
        case PTB_F16:
            return 1e12 * sheets[i].narrow;
        case PTB_F32:
            return 1e12 * (tf32 ? sheets[i].tf32 : sheets[i].f32);
        default:
            return NAN;
        }
    }
    return NAN;
}
