// The inner loops of streaming reductions; internal to core/reduce.c.
#ifndef PTB_CORE_REDUCE_LINES_H
#define PTB_CORE_REDUCE_LINES_H

#include "core/dtype.h"

enum { PTB_LINE_BYTES = 64 };

typedef enum {
    PTB_LINES_ONE,      // out0, streamed
    PTB_LINES_TWO,      // out0 and out1, both streamed
    PTB_LINES_TWO_HALF, // out0 streamed, out1 (at any address) stored
} ptb_lines_mode;

// out0 = a op b with non-temporal stores, for `bytes`, a multiple of PTB_LINE_BYTES. out0, and out1 where it
// is streamed, start at a line. The caller fences.
typedef void ptb_reduce_lines_fn(ptb_lines_mode mode, void *out0, void *out1, const void *a, const void *b,
                                 size_t bytes);
// NULL where this processor or type has no such loop; the plain kernels do it then.
ptb_reduce_lines_fn *ptb_reduce_lines(ptb_dtype type, ptb_redop op);
// Orders streamed stores before later ones.
void ptb_reduce_fence(void);

#endif
