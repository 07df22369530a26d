// NVLinks that lead from GPU to GPU without a switch (four A100 of an HGX board, bridges of PCIe cards,
// DGX-1): how many join each two, and how long traffic takes over them at least. Where each link leads comes
// from NVML (ptb_link_capacity.peers).
//
//     ptb_direct_links_of(capacities, ranks, count, &links, why);
//     ptb_direct_links_time(&links, &traffic, &least, &time, why);
#ifndef PTB_CORE_DIRECT_LINKS_H
#define PTB_CORE_DIRECT_LINKS_H

#include "core/traffic.h"

enum { PTB_DIRECT_GPUS_MAX = 8 };

// The GPUs of a group of ranks on one host.
typedef struct ptb_direct_links {
    int count;
    int rank[PTB_DIRECT_GPUS_MAX]; // in the group
    // That are up, in each direction, as both ends say.
    unsigned links[PTB_DIRECT_GPUS_MAX][PTB_DIRECT_GPUS_MAX];
} ptb_direct_links;

typedef struct {
    double s;
    bool is_bound; // the links do not join the GPUs as the algorithm needs it, so that it takes longer
    char how[PTB_TRAFFIC_TEXT]; // "1.5 S over 12 rings of direct NVLinks 3.0, each 25 GB/s"
} ptb_direct_time;

// Whether any of its links leads to a GPU, or may do so.
bool ptb_has_direct_links(const ptb_link_capacity *capacity);
// capacities, ranks [count]: of the ranks of a group on one host. False, with the reason in `why`: there are
// too many, two share a GPU, or NVML does not tell where their links lead.
bool ptb_direct_links_of(const ptb_link_capacity *const *capacities, const int *ranks, int count,
                         ptb_direct_links *links, char why[PTB_TRAFFIC_TEXT]);
// The most rings through all GPUs (each one once) that the links carry at once, each as fast as one link, and
// the most chains from one end to another; both count directions. Rings may share a link in time, so the
// number need not be whole. 0: there is none. The linear program of packing rings, solved by columns (Gilmore
// and Gomory, "A linear programming approach to the cutting-stock problem", 1961): the next ring is the
// lightest one under the prices of links (Held and Karp, "A dynamic programming approach to sequencing
// problems", 1962).
double ptb_direct_links_rings(const ptb_direct_links *links);
double ptb_direct_links_chains(const ptb_direct_links *links);
// How long the traffic within the host takes at least, with the rate of a link and of the GPUs' slots in
// `least`. Where some GPUs are not joined as needed, what has to leave the worst part of them goes over all
// links and slots that lead out of it. False: not known, with the reason.
bool ptb_direct_links_time(const ptb_direct_links *links, const ptb_traffic *traffic,
                           const ptb_link_capacity *least, ptb_direct_time *time, char why[PTB_TRAFFIC_TEXT]);

#endif
