// What collectives and messages send over links, by algorithm (core/traffic.h has the terms).
//
// Rings (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", 2009): n edges, each carries
// 2(n-1)/n S in an all-reduce, (n-1)/n S in an all-gather or reduce-scatter; a broadcast or reduction leaves
// one edge out and sends S over the others. NCCL's rings pass each host once, whatever the order of the
// ranks. Trees (NCCL's double binary trees over hosts, chains inside; Sanders, Speck and Traff, "Two-tree
// algorithms for full bandwidth broadcast, reduction and scan", 2009): n-1 edges, each carries S up and S
// down. NVLS (multicast and reduction in NVSwitch; Hot Chips 34, "The NVLink-network switch"): a GPU sends
// its vector to be reduced and its part of the result to all, n+1 parts of S/n instead of 2(n-1). Between
// hosts (connectNvls in NCCL's src/graph/connect.cc): each GPU of a host is the head of a part, reduces it
// within the host through the switch, and goes on with it to the GPUs of the same number on other hosts: in
// `nvls` by reduction in the network's switches (SHARP; Graham et al., "Scalable hierarchical aggregation
// and reduction protocol", 2016), S to the network and S from it for each host, in `nvls_tree` by the double
// binary tree. Where there are fewer network ports than GPUs, fewer of them are heads. Symmetric kernels
// (NCCL's src/device/symmetric, on one host; which of them ran only its name tells): loads from and stores to
// each GPU move 2(n-1)/n S in an all-reduce and (n-1)/n S otherwise (RSxLD_AGxST, ST, LD), the switch
// (RSxLDMC_AGxSTMC, STMC, LDMC) what NVLS moves, and those for small messages (LL) more than either.
#ifndef PTB_COLLECTIVES_TRAFFIC_H
#define PTB_COLLECTIVES_TRAFFIC_H

#include "collectives/comm.h"
#include "core/traffic.h"

typedef struct {
    const ptb_world *group;
    const char *algorithm; // ring, tree, nvls, nvls_tree, symmetric, direct (a message from each to each)
    ptb_coll_kind kind;
    int root;
    double bytes;       // S
    bool in_rank_order; // a ring goes from rank to rank instead of from host to host
} ptb_traffic_call;

// Of one call. Sets all but on_gpu and counted; what is not known for the algorithm is NAN, with the reason.
void ptb_traffic_of_call(const ptb_traffic_call *call, ptb_traffic *traffic);
// Of messages of so many bytes from ranks [0, senders) of the group at once: rank r to (r + 1) % over.
void ptb_traffic_of_messages(const ptb_world *group, int senders, int over, double bytes,
                             ptb_traffic *traffic);
// Of one message between two ranks.
void ptb_traffic_of_message(const ptb_world *world, int from, int to, double bytes, ptb_traffic *traffic);

// What a communicator's facts (ptb_comm_ops.describe) say that ran, as the word of ptb_traffic_call. NULL
// when they do not say, with the reason in traffic->how.
const char *ptb_traffic_algorithm(const ptb_params *facts, const ptb_world *group, ptb_coll_kind kind,
                                  ptb_traffic *traffic);

#endif
