// The training runs that are compared with PyTorch: what helper_step_data writes out for make_step_golden.py,
// and what test_step_golden.c trains. Add a case here, run the script, and it is compared.
#ifndef PTB_TESTS_GOLDEN_STEP_CASES_H
#define PTB_TESTS_GOLDEN_STEP_CASES_H

#include "strategies/transformer/layout.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    const char *name;
    ptb_model_shape shape;
    const char *optimizer; // "adamw", "sgd"
    double rate, beta1, beta2, decay, momentum, clip;
    int64_t warmup;
    uint64_t seed; // of weights and of the order of the text's windows
    int64_t batch;
    int steps;
} step_case;

// Sizes are odd where they can be. The text is the licence in the source folder, as bytes.
#define STEP_CASE_TEXT "LICENSE"
#define GPT2_SHAPE                                                                                           \
    .layers = 3, .hidden = 60, .heads = 5, .sequence = 37, .vocabulary = 259, .biases = true, .tied = true
#define LLAMA_SHAPE                                                                                          \
    .layers = 2, .hidden = 60, .heads = 6, .kv_heads = 2, .feed_forward = 101, .sequence = 29,               \
    .vocabulary = 256, .norm = PTB_RMS_NORM, .epsilon = 1e-6, .position = PTB_ROTARY_POSITIONS,              \
    .rotary_base = 500000, .activation = PTB_SWIGLU
static const step_case step_cases[] = {
    {.name = "gpt2",
     .shape = {GPT2_SHAPE},
     .optimizer = "adamw",
     .rate = 0.003,
     .beta1 = 0.9,
     .beta2 = 0.95,
     .decay = 0.1,
     .warmup = 4,
     .seed = 1,
     .batch = 3,
     .steps = 10},
    {.name = "gpt2_curve",
     .shape = {GPT2_SHAPE},
     .optimizer = "adamw",
     .rate = 0.001,
     .beta1 = 0.9,
     .beta2 = 0.95,
     .decay = 0.1,
     .warmup = 10,
     .seed = 2,
     .batch = 8,
     .steps = 200},
    {.name = "gpt2_sgd",
     .shape = {GPT2_SHAPE},
     .optimizer = "sgd",
     .rate = 0.05,
     .momentum = 0.9,
     .decay = 0.01,
     .warmup = 3,
     .seed = 3,
     .batch = 3,
     .steps = 10},
    {.name = "llama",
     .shape = {LLAMA_SHAPE},
     .optimizer = "adamw",
     .rate = 0.003,
     .beta1 = 0.9,
     .beta2 = 0.95,
     .decay = 0.1,
     .clip = 1,
     .warmup = 4,
     .seed = 4,
     .batch = 3,
     .steps = 10},
    {.name = "llama_curve",
     .shape = {LLAMA_SHAPE},
     .optimizer = "adamw",
     .rate = 0.001,
     .beta1 = 0.9,
     .beta2 = 0.95,
     .decay = 0.1,
     .clip = 1,
     .warmup = 10,
     .seed = 5,
     .batch = 8,
     .steps = 200},
    // A dense block, then experts, one of them shared; the seed is one whose routers decide clearly.
    {.name = "moe",
     .shape = {.layers = 3,
               .hidden = 48,
               .heads = 4,
               .kv_heads = 2,
               .feed_forward = 88,
               .sequence = 17,
               .vocabulary = 256,
               .norm = PTB_RMS_NORM,
               .position = PTB_ROTARY_POSITIONS,
               .activation = PTB_SWIGLU,
               .experts = 5,
               .top_k = 2,
               .expert_hidden = 36,
               .shared_experts = 1,
               .dense_layers = 1,
               .balance = 0.01,
               .normalise = true},
     .optimizer = "adamw",
     .rate = 0.003,
     .beta1 = 0.9,
     .beta2 = 0.95,
     .decay = 0.1,
     .warmup = 4,
     .seed = 6,
     .batch = 2,
     .steps = 10},
};
enum { STEP_CASES = sizeof step_cases / sizeof *step_cases, STEP_WORDS_MAX = 80 };

typedef struct {
    char storage[STEP_WORDS_MAX][256];
    char *word[STEP_WORDS_MAX];
    int count;
} step_words;

__attribute__((format(printf, 3, 4))) static inline void step_word(step_words *w, const char *option,
                                                                   const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int at = w->count++, length = snprintf(w->storage[at], sizeof w->storage[at], "--%s=", option);
    vsnprintf(w->storage[at] + length, sizeof w->storage[at] - (size_t)length, format, args);
    w->word[at] = w->storage[at];
    va_end(args);
}

// The case as options of `ptbench run step`.
static inline void step_case_words(const step_case *c, const char *source, step_words *w)
{
    const ptb_model_shape *s = &c->shape;
    w->count = 0;
    step_word(w, "model", "tiny"); // every value is given below
    step_word(w, "layers", "%" PRId64, s->layers);
    step_word(w, "hidden", "%" PRId64, s->hidden);
    step_word(w, "heads", "%" PRId64, s->heads);
    step_word(w, "kv-heads", "%" PRId64, s->kv_heads ? s->kv_heads : s->heads);
    step_word(w, "head-width", "%" PRId64, s->hidden / s->heads);
    step_word(w, "feed-forward", "%" PRId64, s->feed_forward ? s->feed_forward : 4 * s->hidden);
    step_word(w, "sequence", "%" PRId64, s->sequence);
    step_word(w, "max-sequence", "%" PRId64, s->sequence);
    step_word(w, "vocab", "%" PRId64, s->vocabulary);
    step_word(w, "norm", "%s", s->norm == PTB_RMS_NORM ? "rmsnorm" : "layernorm");
    step_word(w, "epsilon", "%.17g", s->epsilon > 0 ? s->epsilon : 1e-5);
    step_word(w, "positions", "%s", s->position == PTB_ROTARY_POSITIONS ? "rotary" : "learned");
    if (s->position == PTB_ROTARY_POSITIONS)
        step_word(w, "rotary-base", "%.17g", s->rotary_base > 0 ? s->rotary_base : 10000);
    step_word(w, "activation", "%s", s->activation == PTB_SWIGLU ? "swiglu" : "gelu");
    step_word(w, "biases", "%s", s->biases ? "yes" : "no");
    step_word(w, "tied", "%s", s->tied ? "yes" : "no");
    step_word(w, "experts", "%" PRId64, s->experts);
    step_word(w, "top-k", "%" PRId64, s->top_k);
    step_word(w, "expert-hidden", "%" PRId64, s->expert_hidden);
    step_word(w, "shared-experts", "%" PRId64, s->shared_experts);
    step_word(w, "dense-layers", "%" PRId64, s->dense_layers);
    step_word(w, "capacity-factor", "0");
    step_word(w, "balance", "%.17g", s->balance);
    if (s->experts)
        step_word(w, "normalise-top-k", "%s", s->normalise ? "yes" : "no");
    step_word(w, "batch", "%" PRId64, c->batch);
    step_word(w, "data", "%s/" STEP_CASE_TEXT, source);
    step_word(w, "optimizer", "%s", c->optimizer);
    step_word(w, "lr", "%.17g", c->rate);
    step_word(w, "lr-warmup", "%" PRId64, c->warmup);
    if (strcmp(c->optimizer, "sgd") == 0) {
        step_word(w, "momentum", "%.17g", c->momentum);
    } else {
        step_word(w, "beta1", "%.17g", c->beta1);
        step_word(w, "beta2", "%.17g", c->beta2);
    }
    step_word(w, "weight-decay", "%.17g", c->decay);
    step_word(w, "clip", "%.17g", c->clip);
}

#endif
