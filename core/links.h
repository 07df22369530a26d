// How many bytes went over each link of a GPU (NVLink) and each port of a network card, by the hardware's own
// counters: read before and after a case, the difference is what was on the wire, headers and other people's
// traffic included.
//
//     ptb_links_open(device->identity, world->local_rank == 0, &reader);
//     ptb_links_read(reader, &before); ... ptb_links_read(reader, &after);
//     ptb_links_difference(&before, &after, &moved);
//
// And what the links can carry, from their generation, number and rate (ptb_links_capacity).
#ifndef PTB_CORE_LINKS_H
#define PTB_CORE_LINKS_H

#include "core/registry.h"
#include "core/status.h"
#include "core/text.h"

#include <stddef.h>
#include <stdint.h>

enum { PTB_LINKS_MAX = 96, PTB_LINK_PEERS_MAX = 16 };

typedef struct {
    char name[40];  // "nvlink3", "mlx5_0/1", "eth0"
    char kind[16];  // "NVLink", "InfiniBand", "RoCE", "Ethernet"
    double gbits_s; // of one direction as it is now; 0: unknown
    uint64_t sent_bytes, received_bytes;
    uint64_t unit_bytes; // of the counters: NVLink counts KiB, InfiniBand 4 bytes
} ptb_link;

typedef struct {
    ptb_link items[PTB_LINKS_MAX];
    size_t count;
} ptb_links;

typedef struct ptb_link_reader ptb_link_reader;

// NVLinks that lead straight to another GPU.
typedef struct {
    uint64_t address; // of that GPU
    unsigned links;   // up
} ptb_link_peer;

// What the links of one rank can carry in one direction. 0: there is none, or it is not known.
typedef struct {
    unsigned nvlinks;       // up
    double nvlink_gb_s;     // of one, payload, GB/s
    char nvlink_version[8]; // "4.0"
    bool is_switched;       // all lead to an NVSwitch, so that each pair of GPUs has all of them
    uint64_t address;       // of this rank's GPU on PCIe: domain << 32 | bus << 16 | device << 8 | function
    ptb_link_peer peers[PTB_LINK_PEERS_MAX];
    unsigned peer_count;
    unsigned switch_links; // of the NVLinks, those that lead to a switch
    unsigned lost_links;   // and those of which is not told where they lead
    unsigned pcie_generation, pcie_width;
    double pcie_gb_s;     // of the GPU's slot, after line coding
    unsigned near_rails;  // ports nearest to the GPU on PCIe
    double near_gbits_s;  // of them together
    unsigned rails;       // ports of this host that are up: RDMA ports where there are any, else interfaces
    double rail_gbits_s;  // of all of them together; 0 when the rate of one is not known
    char rail_kind[16];   // as in ptb_link
    bool has_equal_rails; // all of the same rate
} ptb_link_capacity;

// gpu: the identity of a device (core/device.h) whose NVLinks are read; "" or NULL: of none. nics: the ports
// of this host's network cards too, which one rank of a host does. What cannot be counted here is left out; a
// reader without links is fine. NO_MEMORY logged.
ptb_status ptb_links_open(const char *gpu, bool nics, ptb_link_reader **reader);
// The counters now; a link whose counter cannot be read at this moment is left out. Takes microseconds for
// each link: not for timed code.
void ptb_links_read(ptb_link_reader *reader, ptb_links *links);
void ptb_links_close(ptb_link_reader *reader); // NULL is allowed
// Why something cannot be counted, in words for a person, with what to do; "" when all is.
const char *ptb_links_why(const ptb_link_reader *reader);
void ptb_links_capacity(const ptb_link_reader *reader, ptb_link_capacity *capacity);
// moved: the links that are in both, with the bytes between the two readings.
void ptb_links_difference(const ptb_links *before, const ptb_links *after, ptb_links *moved);

// One kind of link. Add one by registering a ptb_link_source.
typedef struct {
    ptb_plugin plugin;
    // SKIPPED, without a message: nothing to count here. Appends to `why` what is missing that was asked for,
    // also where the rest can be counted.
    ptb_status (*open)(const char *gpu, bool nics, ptb_text *why, void **state);
    void (*read)(void *state, ptb_links *links); // appends
    void (*close)(void *state);
    // Fills in what it knows. NULL: nothing.
    void (*capacity)(const void *state, ptb_link_capacity *capacity);
} ptb_link_source;

#endif
