// The training runs that are compared with PyTorch: what helper_step_data writes out for make_step_golden.py,
// and what test_step_golden.c trains. Add a case here, run the script, and it is compared.
#ifndef PTB_TESTS_GOLDEN_STEP_CASES_H
#define PTB_TESTS_GOLDEN_STEP_CASES_H

#include "strategies/transformer/layout.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

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
    step_word(w, "layers", "%" PRId64, s->layers);
    step_word(w, "hidden", "%" PRId64, s->hidden);
    step_word(w, "heads", "%" PRId64, s->heads);
    step_word(w, "sequence", "%" PRId64, s->sequence);
    step_word(w, "vocab", "%" PRId64, s->vocabulary);
    step_word(w, "tied", "%s", s->tied ? "yes" : "no");
    step_word(w, "batch", "%" PRId64, c->batch);
    step_word(w, "data", "%s/" STEP_CASE_TEXT, source);
    step_word(w, "lr", "%.17g", c->rate);
    step_word(w, "lr-warmup", "%" PRId64, c->warmup);
    step_word(w, "beta1", "%.17g", c->beta1);
    step_word(w, "beta2", "%.17g", c->beta2);
    step_word(w, "weight-decay", "%.17g", c->decay);
    step_word(w, "comm", "local");
}

#endif
