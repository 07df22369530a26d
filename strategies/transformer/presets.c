// The table of models; see presets.h. Shapes are those of the published configurations. `sequence` is what
// the model was (first) trained with, `positions` its longest context.
#include "strategies/transformer/presets.h"

#include "core/log.h"
#include "core/text.h"

#include <string.h>

#define GPT2                                                                                                 \
    .sequence = 1024, .positions = 1024, .vocabulary = 50257, .norm = PTB_LAYER_NORM,                        \
    .position = PTB_LEARNED_POSITIONS, .activation = PTB_GELU, .biases = true, .tied = true
#define LLAMA3                                                                                               \
    .sequence = 8192, .vocabulary = 128256, .norm = PTB_RMS_NORM, .position = PTB_ROTARY_POSITIONS,          \
    .rotary_base = 500000, .activation = PTB_SWIGLU
#define SOURCE_GPT2   "Radford et al. 2019; the released checkpoints"
#define SOURCE_LLAMA3 "Grattafiori et al. 2024 (Llama 3), table 3"

static const ptb_preset presets[] = {
    {.name = "tiny",
     .source = "ptbench: bytes, for tests",
     .shape = {.layers = 4,
               .hidden = 128,
               .heads = 4,
               .sequence = 64,
               .vocabulary = 256,
               .biases = true,
               .tied = true}},
    {.name = "small",
     .source = "ptbench: bytes, for a laptop",
     .shape = {.layers = 6,
               .hidden = 384,
               .heads = 6,
               .sequence = 128,
               .vocabulary = 256,
               .biases = true,
               .tied = true}},
    {.name = "gpt2-124m",
     .source = SOURCE_GPT2,
     .shape = {.layers = 12, .hidden = 768, .heads = 12, GPT2},
     .parameters = 124439808},
    {.name = "gpt2-355m",
     .source = SOURCE_GPT2,
     .shape = {.layers = 24, .hidden = 1024, .heads = 16, GPT2},
     .parameters = 354823168},
    {.name = "gpt2-774m",
     .source = SOURCE_GPT2,
     .shape = {.layers = 36, .hidden = 1280, .heads = 20, GPT2},
     .parameters = 774030080},
    {.name = "gpt2-1.5b",
     .source = SOURCE_GPT2,
     .shape = {.layers = 48, .hidden = 1600, .heads = 25, GPT2},
     .parameters = 1557611200},
    {.name = "llama3-1b",
     .source = "Meta's Llama 3.2 1B, without its scaling of rotary positions",
     .shape = {.layers = 16,
               .hidden = 2048,
               .heads = 32,
               .kv_heads = 8,
               .feed_forward = 8192,
               .positions = 131072,
               .tied = true,
               LLAMA3},
     .parameters = 1235814400},
    {.name = "llama3-8b",
     .source = SOURCE_LLAMA3,
     .shape = {.layers = 32, .hidden = 4096, .heads = 32, .kv_heads = 8, .feed_forward = 14336, LLAMA3},
     .parameters = 8030261248},
    {.name = "llama3-70b",
     .source = SOURCE_LLAMA3,
     .shape = {.layers = 80, .hidden = 8192, .heads = 64, .kv_heads = 8, .feed_forward = 28672, LLAMA3},
     .parameters = 70553706496},
    {.name = "mixtral-8x7b",
     .source = "Jiang et al. 2024 (Mixtral of Experts), table 1",
     .shape = {.layers = 32,
               .hidden = 4096,
               .heads = 32,
               .kv_heads = 8,
               .feed_forward = 14336,
               .sequence = 32768,
               .vocabulary = 32000,
               .norm = PTB_RMS_NORM,
               .position = PTB_ROTARY_POSITIONS,
               .rotary_base = 1000000,
               .activation = PTB_SWIGLU,
               .experts = 8,
               .top_k = 2,
               .balance = 0.02,
               .normalise = true},
     .parameters = 46702792704},
    {.name = "deepseek-moe-16b",
     .source = "Dai et al. 2024 (DeepSeekMoE), section 5.1.2; the released checkpoint",
     .shape = {.layers = 28,
               .hidden = 2048,
               .heads = 16,
               .feed_forward = 10944,
               .sequence = 4096,
               .vocabulary = 102400,
               .norm = PTB_RMS_NORM,
               .epsilon = 1e-6,
               .position = PTB_ROTARY_POSITIONS,
               .rotary_base = 10000,
               .activation = PTB_SWIGLU,
               .experts = 64,
               .top_k = 6,
               .expert_hidden = 1408,
               .shared_experts = 2,
               .dense_layers = 1,
               .balance = 0.001},
     .parameters = 16375728128},
};
enum { PRESET_COUNT = sizeof presets / sizeof *presets };

const ptb_preset *ptb_preset_at(size_t i)
{
    return i < PRESET_COUNT ? &presets[i] : NULL;
}

const ptb_preset *ptb_preset_find(const char *name)
{
    for (size_t i = 0; i < PRESET_COUNT; i++)
        if (strcmp(presets[i].name, name) == 0)
            return &presets[i];
    return NULL;
}

const ptb_preset *ptb_preset_need(const char *name)
{
    const ptb_preset *found = ptb_preset_find(name);
    if (found)
        return found;
    const char *names[PRESET_COUNT];
    char near[256];
    for (size_t i = 0; i < PRESET_COUNT; i++)
        names[i] = presets[i].name;
    ptb_text_nearest(name, names, PRESET_COUNT, near, sizeof near);
    ptb_error("there is no model named '%s'; did you mean %s? `ptbench list models` shows all", name, near);
    return NULL;
}
