// What recursive doubling and halving-doubling share: the fold of any number of members to a power of two,
// runs of pieces, and the all-gather that doubles its blocks.
//
// n = p + rest with p the largest power of two: of the first 2 x rest members each even one hands its data to
// the odd one beside it, which acts for both; the p acting members have virtual numbers 0 .. p-1 (Thakur,
// Rabenseifner and Gropp, Int. J. High Perform. Comput. Appl. 19(1), 2005, section 4.5). A virtual member
// stands for one or two neighbouring members, so that ranges of virtual members are ranges of blocks.
#ifndef PTB_COLLECTIVES_DOUBLING_H
#define PTB_COLLECTIVES_DOUBLING_H

#include "collectives/algorithm.h"

typedef struct {
    ptb_team *team;
    const ptb_coll *call;
    size_t size; // bytes of an element
    int n, rank;
    int p, rest;  // acting members; members that others act for
    bool is_even; // another member acts for this one
    bool is_odd;  // this one acts for the member before it too
    int virtual;  // -1: does not act
} ptb_doubling;

ptb_doubling ptb_doubling_of(ptb_team *team, const ptb_coll *call);
// The acting member with virtual number v, and the first member it stands for (v == p: n).
int ptb_doubling_rank(const ptb_doubling *d, int v);
int ptb_doubling_first(const ptb_doubling *d, int v);
// Elements of the blocks of virtual members [from, to), by ptb_block over all members.
ptb_range ptb_doubling_range(const ptb_doubling *d, int from, int to);

// `count` elements in pieces that one message may have, all after `after`; returns the last operation, whose
// completion means that all are complete.
int ptb_doubling_send(const ptb_doubling *d, int peer, const void *from, size_t count, int after);
int ptb_doubling_recv(const ptb_doubling *d, int peer, void *to, size_t count, int after);
int ptb_doubling_fold(const ptb_doubling *d, int peer, void *to, const void *from, size_t count, int after,
                      bool finish);

// The most bytes of a piece, for ptb_algorithm.segment_bytes.
size_t ptb_doubling_segment_bytes(const ptb_team *team, const ptb_coll *call);

// All-gather in log2(p) rounds, each doubling what a member holds.
ptb_status ptb_doubling_all_gather(ptb_team *team, const ptb_coll *call);

#endif
