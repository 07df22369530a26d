// What a case moves over links by the algorithm that ran, and how fast that can be at best. A benchmark says
// how many bytes its algorithm sends (ptb_bench.moves); the counters of the links (core/links.h) say what was
// on the wire; both are stored side by side (bench/counters.h).
//
// The expected peak is no model of a library: it is the rate at which the busiest link would carry what the
// algorithm implies, at its full rate and without a pause.
#ifndef PTB_CORE_TRAFFIC_H
#define PTB_CORE_TRAFFIC_H

#include "core/links.h"

enum { PTB_TRAFFIC_TEXT = 104 }; // that fits a fact

// Who sends to whom within a host, which matters where NVLinks join GPUs without a switch
// (core/direct_links.h).
typedef enum {
    PTB_NEAR_OTHER,  // not told here
    PTB_NEAR_RINGS,  // rings through all GPUs that the library lays as it likes, together near_part an edge
    PTB_NEAR_CHAINS, // the same, open: what goes one way and what goes the other way together
    PTB_NEAR_EACH,   // near_part from each rank to each other
    PTB_NEAR_NEXT, // near_part from each of the ranks below near_over to the next one, the last to the first
    PTB_NEAR_ONE,  // near_part from rank near_from to rank near_to
    PTB_NEAR_ROOT, // near_part from near_from to each other, near_to being -1; or from each to near_to
    PTB_NEAR_SWITCH, // all with the switch
} ptb_near;

// Bytes of one iteration. NAN: not known, `how` says why.
typedef struct {
    // Sent by this rank to GPUs of its own host, and to ranks of other hosts. Where an algorithm spreads its
    // bytes over the ranks in a way that it does not tell (the rings of NCCL leave a host at a GPU each),
    // this is an even share: the sums over ranks are right.
    double near_bytes, far_bytes;
    // In the direction that carries more: of the GPU that moves most within its host; of the host that moves
    // most to or from others; of the GPU that moves most over its PCIe slot, between hosts.
    double gpu_most, host_most, slot_most;
    ptb_near near;
    double near_part;
    int near_over, near_from, near_to; // ranks of the group
    int group;            // number of the rank's group, which does the same as others do at the time
    int gpus;             // ranks of the host with fewest, whose nearest ports are those that are used
    double bytes;         // S
    double counted;       // what the rate of a case counts: S x the bus factor
    double copy_gb_s;     // that a core copies within the host, measured by one of the ranks; 0: not measured
    bool on_gpu;          // else memory of the host: nothing goes over NVLinks
    bool near_rails_only; // one GPU at a time: of its host's ports, those nearest to it
    bool has_port_each;   // each GPU of a host goes over its own port; where these are fewer, fewer GPUs do
    bool is_bound;        // the bytes named above are what any algorithm moves at least
    char how[PTB_TRAFFIC_TEXT];     // "ring: 2(n-1)/n S over each of n edges"
    char no_peak[PTB_TRAFFIC_TEXT]; // why no peak is worked out though the bytes are known; "": one is
} ptb_traffic;

// Nothing is known, for that reason.
void ptb_traffic_unknown(ptb_traffic *traffic, const char *format, ...) __attribute__((format(printf, 2, 3)));

struct ptb_direct_links;
// GB/s that the case can reach at most over links of that capacity (the least of all ranks), and how it was
// worked out. direct [directs]: of each host and group where NVLinks join GPUs without a switch; none
// elsewhere. "a GPU moves 1.75 S over 18 NVLinks 4.0 x 25 GB/s", after "at most: " where the algorithm may be
// held up by more than what is counted. NAN when it is not known, with "unknown: " and the reason in `how`.
double ptb_traffic_peak(const ptb_traffic *traffic, const ptb_link_capacity *capacity,
                        const struct ptb_direct_links *direct, int directs, char how[PTB_TRAFFIC_TEXT]);
// least: the smaller of the two in everything.
void ptb_link_capacity_least(ptb_link_capacity *least, const ptb_link_capacity *other);

#endif
