// What a rank has of each tensor; for layout.c. The ways to cut are rows of a table in layout_cut.c.
#ifndef PTB_STRATEGIES_TRANSFORMER_LAYOUT_CUT_H
#define PTB_STRATEGIES_TRANSFORMER_LAYOUT_CUT_H

#include "strategies/transformer/layout.h"

// From shape and cut: local, shared_width and the first_ fields. USAGE, logged with the arithmetic, when the
// shape cannot be cut so.
ptb_status ptb_layout_cut_shape(ptb_layout *layout);
// A tensor of the whole model, of which matrices, rows and columns are set, becomes the rank's part.
void ptb_layout_cut_tensor(ptb_tensor *tensor, const ptb_model_shape *whole, const ptb_layout_cut *cut);
// Puts a unit's tensors behind each other: dense, then experts'; where replicated_last, dense ones that are
// cut before those that are not.
void ptb_layout_place_tensors(ptb_unit *unit, bool replicated_last);

#endif
