// See model_options.h.
#include "strategies/model_options.h"

#include "core/log.h"
#include "strategies/transformer/presets.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

const char *const ptb_model_norms[] = {"preset", "layernorm", "rmsnorm", NULL};
const char *const ptb_model_positions[] = {"preset", "learned", "rotary", NULL};
const char *const ptb_model_activations[] = {"preset", "gelu", "swiglu", NULL};
const char *const ptb_model_switches[] = {"preset", "yes", "no", NULL};

static bool is_given(const char *word)
{
    return word && strcmp(word, "preset") != 0;
}

static bool is_word(const char *word, const char *wanted)
{
    return word && strcmp(word, wanted) == 0;
}

// In full, so that no two settings share a key.
static void set_number(ptb_params *params, const char *name, double value)
{
    ptb_text text = PTB_TEXT_INIT;
    ptb_text_append_number(&text, value, -1);
    ptb_params_set(params, name, "%s", ptb_text_string(&text));
    ptb_text_release(&text);
}

ptb_status ptb_model_options_shape(const ptb_model_options *o, ptb_model_shape *shape)
{
    const ptb_preset *preset = ptb_preset_need(o->model);
    if (!preset)
        return PTB_USAGE;
    ptb_model_shape s = preset->shape;
#define X(field, as_preset) s.field = o->field == as_preset ? s.field : o->field;
    PTB_MODEL_INTS(X)
    PTB_MODEL_DOUBLES(X)
#undef X
    if (is_given(o->norm))
        s.norm = is_word(o->norm, "rmsnorm") ? PTB_RMS_NORM : PTB_LAYER_NORM;
    if (is_given(o->position))
        s.position = is_word(o->position, "rotary") ? PTB_ROTARY_POSITIONS : PTB_LEARNED_POSITIONS;
    if (is_given(o->activation))
        s.activation = is_word(o->activation, "swiglu") ? PTB_SWIGLU : PTB_GELU;
    if (is_given(o->biases))
        s.biases = is_word(o->biases, "yes");
    if (is_given(o->tied))
        s.tied = is_word(o->tied, "yes");
    if (is_given(o->normalise))
        s.normalise = is_word(o->normalise, "yes");
    if (s.experts == 0) // the preset's mixture is gone with its experts
        s.top_k = s.expert_hidden = s.shared_experts = s.dense_layers = 0;
    *shape = s;
    return PTB_OK;
}

void ptb_model_options_params(const ptb_model_options *o, ptb_params *params)
{
    const struct {
        const char *name, *word;
    } words[] = {{"norm", o->norm},     {"positions", o->position}, {"activation", o->activation},
                 {"biases", o->biases}, {"tied", o->tied},          {"normalise_top_k", o->normalise}};
    ptb_params_set(params, "model", "%s", o->model);
#define X(field, as_preset)                                                                                  \
    if (o->field != as_preset)                                                                               \
        ptb_params_set(params, strcmp(#field, "positions") == 0 ? "max_sequence" : #field, "%" PRId64,       \
                       o->field);
    PTB_MODEL_INTS(X)
#undef X
#define X(field, as_preset)                                                                                  \
    if (o->field != as_preset)                                                                               \
        set_number(params, #field, o->field);
    PTB_MODEL_DOUBLES(X)
#undef X
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (is_given(words[i].word))
            ptb_params_set(params, words[i].name, "%s", words[i].word);
}

void ptb_model_shape_facts(const ptb_model_shape *s, ptb_params *facts)
{
#define X(field, as_preset)                                                                                  \
    ptb_params_set(facts, strcmp(#field, "positions") == 0 ? "max_sequence" : #field, "%" PRId64, s->field);
    PTB_MODEL_INTS(X)
#undef X
#define X(field, as_preset) set_number(facts, #field, s->field);
    PTB_MODEL_DOUBLES(X)
#undef X
    ptb_params_set(facts, "norm", "%s", s->norm == PTB_RMS_NORM ? "rmsnorm" : "layernorm");
    ptb_params_set(facts, "positions", "%s", s->position == PTB_ROTARY_POSITIONS ? "rotary" : "learned");
    ptb_params_set(facts, "activation", "%s", s->activation == PTB_SWIGLU ? "swiglu" : "gelu");
    ptb_params_set(facts, "biases", "%s", s->biases ? "yes" : "no");
    ptb_params_set(facts, "tied", "%s", s->tied ? "yes" : "no");
    ptb_params_set(facts, "normalise_top_k", "%s", s->normalise ? "yes" : "no");
}
