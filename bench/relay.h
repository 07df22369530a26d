// Passing mpirun's standard error on, without the boxes in which it explains what we say ourselves, and
// learning from them which rank died.
#ifndef PTB_BENCH_RELAY_H
#define PTB_BENCH_RELAY_H

#include "core/text.h"

#include <stdbool.h>

typedef struct {
    ptb_text line; // not yet ended
    ptb_text box;  // lines since the ruler that opened it
    bool in_box;
    bool line_is_out; // the beginning of the line was passed on already
    bool ranks_spoke; // a message of ptbench itself went by: the ranks did start
    int lost_rank;    // -1: none known
    int lost_signal;
    char lost_host[128];
} ptb_relay;

void ptb_relay_init(ptb_relay *relay);
void ptb_relay_release(ptb_relay *relay);
// Takes bytes read from mpirun; what is to be passed on is appended to `out`.
void ptb_relay_feed(ptb_relay *relay, const char *bytes, size_t count, ptb_text *out);
// At the end of input: whatever is held back.
void ptb_relay_end(ptb_relay *relay, ptb_text *out);

#endif
