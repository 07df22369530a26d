// The options that say which model: a preset, and what differs from it. A benchmark that needs a model puts
// ptb_model_options into its configuration and PTB_MODEL_OPTS into its option table.
#ifndef PTB_STRATEGIES_MODEL_OPTIONS_H
#define PTB_STRATEGIES_MODEL_OPTIONS_H

#include "core/bench.h"
#include "core/option.h"
#include "strategies/transformer/layout.h"

#include <stddef.h>

// Numbers and words of the shape: field of the options and of ptb_model_shape, and the number that stands for
// "as the preset has it". To add one: a row here, a field, an option.
#define PTB_MODEL_INTS(X)                                                                                    \
    X(layers, 0)                                                                                             \
    X(hidden, 0)                                                                                             \
    X(heads, 0)                                                                                              \
    X(kv_heads, 0)                                                                                           \
    X(head_width, 0)                                                                                         \
    X(feed_forward, 0)                                                                                       \
    X(sequence, 0)                                                                                           \
    X(positions, 0)                                                                                          \
    X(vocabulary, 0)                                                                                         \
    X(experts, -1)                                                                                           \
    X(top_k, 0)                                                                                              \
    X(expert_hidden, 0)                                                                                      \
    X(shared_experts, -1)                                                                                    \
    X(dense_layers, -1)
#define PTB_MODEL_DOUBLES(X)                                                                                 \
    X(epsilon, 0)                                                                                            \
    X(rotary_base, 0)                                                                                        \
    X(dropout, -1)                                                                                           \
    X(capacity_factor, -1)                                                                                   \
    X(balance, -1)

typedef struct {
    char *model, *norm, *position, *activation, *biases, *tied, *normalise;
#define X(field, preset) int64_t field;
    PTB_MODEL_INTS(X)
#undef X
#define X(field, preset) double field;
    PTB_MODEL_DOUBLES(X)
#undef X
} ptb_model_options;

extern const char *const ptb_model_norms[], *const ptb_model_positions[], *const ptb_model_activations[],
                                                                              *const ptb_model_switches[];

#define PTB_MODEL_FIELD(type, member, field) offsetof(type, member) + offsetof(ptb_model_options, field)
// `preset`, the number that stands for the preset's value, is the default and the smallest that is taken.
#define PTB_MODEL_INT(type, member, name, field, preset, max, help)                                          \
    {                                                                                                        \
        name, 0, PTB_OPT_INT, PTB_MODEL_FIELD(type, member, field), #preset, preset, max, NULL, NULL, help   \
    }
#define PTB_MODEL_DOUBLE(type, member, name, field, preset, max, help)                                       \
    {                                                                                                        \
        name, 0, PTB_OPT_DOUBLE, PTB_MODEL_FIELD(type, member, field), #preset, preset, max, NULL, NULL,     \
            help                                                                                             \
    }
#define PTB_MODEL_WORD(type, member, name, field, choices, help)                                             \
    {                                                                                                        \
        name, 0, PTB_OPT_CHOICE, PTB_MODEL_FIELD(type, member, field), "preset", 0, 0, choices, NULL, help   \
    }

// Rows of an option table: `member` is the ptb_model_options in the configuration of type `type`.
#define PTB_MODEL_OPTS(type, member)                                                                         \
    {"model",                                                                                                \
     0,                                                                                                      \
     PTB_OPT_STRING,                                                                                         \
     PTB_MODEL_FIELD(type, member, model),                                                                   \
     "small",                                                                                                \
     0,                                                                                                      \
     0,                                                                                                      \
     NULL,                                                                                                   \
     "NAME",                                                                                                 \
     "preset that gives every value of the shape that is not given itself; `ptbench list models` has them"}, \
        PTB_MODEL_INT(type, member, "layers", layers, 0, 100000, "transformer blocks; 0: the preset's"),     \
        PTB_MODEL_INT(type, member, "hidden", hidden, 0, 1 << 20,                                            \
                      "width of the residual stream; 0: the preset's"),                                      \
        PTB_MODEL_INT(type, member, "heads", heads, 0, 1 << 16,                                              \
                      "attention heads; divides --hidden unless --head-width is given; 0: the preset's"),    \
        PTB_MODEL_INT(type, member, "kv-heads", kv_heads, 0, 1 << 16,                                        \
                      "heads of key and value (grouped queries); divides --heads; 0: the preset's"),         \
        PTB_MODEL_INT(type, member, "head-width", head_width, 0, 1 << 20,                                    \
                      "width of a head; 0: the preset's, or --hidden / --heads"),                            \
        PTB_MODEL_INT(type, member, "feed-forward", feed_forward, 0, 1 << 24,                                \
                      "inner width of a dense feed-forward; 0: the preset's, or 4 x --hidden"),              \
        PTB_MODEL_INT(type, member, "sequence", sequence, 0, 1 << 24,                                        \
                      "tokens of a sequence; 0: the preset's"),                                              \
        PTB_MODEL_INT(type, member, "max-sequence", positions, 0, 1 << 24,                                   \
                      "longest sequence of the model, rows of the table of learned positions; 0: the "       \
                      "preset's, or --sequence"),                                                            \
        PTB_MODEL_INT(type, member, "vocab", vocabulary, 0, 1 << 24,                                         \
                      "vocabulary; larger than every token of --data (bytes are under 256, GPT-2's tokens "  \
                      "under 50257); 0: the preset's"),                                                      \
        PTB_MODEL_WORD(type, member, "norm", norm, ptb_model_norms,                                          \
                       "normalisation before each half of a "                                                \
                       "block"),                                                                             \
        PTB_MODEL_DOUBLE(type, member, "epsilon", epsilon, 0, 1,                                             \
                         "added to the variance by the norms; 0: the preset's"),                             \
        PTB_MODEL_WORD(type, member, "positions", position, ptb_model_positions,                             \
                       "learned: a table added to the tokens; rotary: query and key are turned"),            \
        PTB_MODEL_DOUBLE(type, member, "rotary-base", rotary_base, 0, 1e12,                                  \
                         "base of the rotary angles; 0: the preset's"),                                      \
        PTB_MODEL_WORD(type, member, "activation", activation, ptb_model_activations,                        \
                       "of the feed-forward"),                                                               \
        PTB_MODEL_WORD(type, member, "biases", biases, ptb_model_switches,                                   \
                       "of linear layers and LayerNorm"),                                                    \
        PTB_MODEL_WORD(type, member, "tied", tied, ptb_model_switches,                                       \
                       "the head multiplies by the token table"),                                            \
        PTB_MODEL_DOUBLE(type, member, "dropout", dropout, -1, 0.999,                                        \
                         "dropout rate of embedding, attention and both halves of a block; -1: the "         \
                         "preset's, which is 0"),                                                            \
        PTB_MODEL_INT(type, member, "experts", experts, -1, 1 << 16,                                         \
                      "experts of a mixture; 0: dense; -1: the preset's"),                                   \
        PTB_MODEL_INT(type, member, "top-k", top_k, 0, 1 << 16,                                              \
                      "experts that a token goes through; 0: the preset's"),                                 \
        PTB_MODEL_INT(type, member, "expert-hidden", expert_hidden, 0, 1 << 24,                              \
                      "inner width of an expert; 0: the preset's, or --feed-forward"),                       \
        PTB_MODEL_INT(type, member, "shared-experts", shared_experts, -1, 1 << 16,                           \
                      "experts that every token goes through besides; -1: the preset's"),                    \
        PTB_MODEL_INT(type, member, "dense-layers", dense_layers, -1, 100000,                                \
                      "blocks from the first on that stay dense; -1: the preset's"),                         \
        PTB_MODEL_DOUBLE(type, member, "capacity-factor", capacity_factor, -1, 1e6,                          \
                         "an expert takes at most this many times its even share of tokens; 0: any number "  \
                         "(dropless); -1: the preset's"),                                                    \
        PTB_MODEL_DOUBLE(type, member, "balance", balance, -1, 1e6,                                          \
                         "coefficient of the load-balancing loss; -1: the preset's"),                        \
        PTB_MODEL_WORD(type, member, "normalise-top-k", normalise, ptb_model_switches,                       \
                       "the weights of a token's experts are divided by their sum")

// The shape that the options describe. USAGE, logged, when there is no such preset.
ptb_status ptb_model_options_shape(const ptb_model_options *options, ptb_model_shape *shape);
// What identifies the model in a case's key: the preset's name and what was given beside it.
void ptb_model_options_params(const ptb_model_options *options, ptb_params *params);
// Every value of a layout's shape, as facts of a case.
void ptb_model_shape_facts(const ptb_model_shape *shape, ptb_params *facts);

#endif
