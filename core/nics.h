// The network cards of this host as /sys shows them: InfiniBand and RoCE ports, and Ethernet interfaces of
// real devices; and how far two PCI devices are from each other.
#ifndef PTB_CORE_NICS_H
#define PTB_CORE_NICS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PTB_NICS_MAX = 32, PTB_PCI_PATH_BYTES = 256 };

typedef struct {
    char name[32]; // "mlx5_0", "eth0"
    int port;      // of an InfiniBand device; 0: an interface
    char kind[16]; // "InfiniBand", "RoCE", "Ethernet", "virtual"
    bool is_up;
    double gbits_s;                    // 0: unknown
    char pci_path[PTB_PCI_PATH_BYTES]; // ptb_pci_path; "" when it is not a PCI device
    int numa_node;                     // -1: unknown
    char counters[2][512];             // files: sent, received
    uint64_t unit_bytes;               // of the counters
} ptb_nic;

// "/sys"; for tests with the simulated device PTB_SYSFS may name a folder in its place.
const char *ptb_sysfs_root(void);
// In order of name and port. root: ptb_sysfs_root(). Where there is no real card, the virtual interfaces that
// lead out of this network namespace: in a container their counters are all that can be read.
size_t ptb_nics_read(const char *root, ptb_nic nics[PTB_NICS_MAX]);
// Those over which training goes: the RDMA ports that are up, or where there is none, the interfaces that
// are.
size_t ptb_nics_rails(const ptb_nic *nics, size_t count, ptb_nic rails[PTB_NICS_MAX]);
// False when the counter cannot be read.
bool ptb_nic_counter(const ptb_nic *nic, int direction, uint64_t *bytes);

// The way from the host bridge to a PCI device, "pci0000:17/0000:17:01.0/0000:18:00.0". address:
// "0000:18:00.0", the domain of four or eight digits, either case. False when there is no such device.
bool ptb_pci_path(const char *root, const char *address, char path[PTB_PCI_PATH_BYTES]);
int ptb_pci_numa_node(const char *root, const char *path); // -1: unknown
// How two devices are connected, in the words of `nvidia-smi topo -m`: "PIX" within one PCIe switch, "PXB"
// over several, "PHB" over the host bridge, "NODE" within a NUMA node, "SYS" between them.
const char *ptb_pci_distance(const char *a, int numa_a, const char *b, int numa_b);

#endif
