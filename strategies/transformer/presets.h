// Models that people train, by name: shapes for the option --model and for `ptbench list models`. To add one,
// add a row to the table in presets.c.
#ifndef PTB_STRATEGIES_TRANSFORMER_PRESETS_H
#define PTB_STRATEGIES_TRANSFORMER_PRESETS_H

#include "strategies/transformer/layout.h"

typedef struct {
    const char *name;
    const char *source; // where the shape is published
    ptb_model_shape shape;
    uint64_t parameters; // as published; 0: not published
} ptb_preset;

// The i-th in order of size within families; NULL past the end.
const ptb_preset *ptb_preset_at(size_t i);
// NULL if there is none; logs nothing.
const ptb_preset *ptb_preset_find(const char *name);
// Like find, but logs an error that names the nearest valid names when there is none.
const ptb_preset *ptb_preset_need(const char *name);

#endif
