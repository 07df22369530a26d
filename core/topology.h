// What this machine is: read once per host through hwloc, /proc and what the parts of core/machine.h know,
// stored with each run, and reduced to a fingerprint that tells whether two runs may be compared and which
// cached tables apply.
#ifndef PTB_CORE_TOPOLOGY_H
#define PTB_CORE_TOPOLOGY_H

#include "core/status.h"
#include "core/text.h"

#include <stdint.h>

typedef struct {
    char hostname[128];
    char cpu_model[128];
    char kernel[128];                         // uname -sr
    char os[128];                             // PRETTY_NAME
    int packages, numa_nodes, cores, threads; // of the machine
    int allowed_cpus;                         // that this process may use (affinity mask)
    char binding[128];                        // "0-1": the affinity mask as a list
    int cgroup_cpus;                          // whole CPUs granted by the cgroup quota, 0: no quota
    uint64_t memory_bytes;
    uint64_t l1d_bytes, l2_bytes, l3_bytes;
    char governor[32];           // CPU frequency governor or "unknown"
    char thp[16], shmem_thp[16]; // transparent huge pages: always / madvise / never; advise / never ...
    char isa[64];                // "avx512f avx512_bf16 amx" features that matter here
    bool virtual_machine;
    char parts[32768]; // JSON members of the other parts (core/machine.h): "gpus": [...], "nics": [...]
    uint64_t
        fingerprint; // hash of cpu model, cores, caches, kernel major.minor, memory, GPUs and their driver
} ptb_topology;

// A set of processors, CPU i in bit i % 8 of byte i / 8; more than any Linux build has.
typedef struct {
    unsigned char bytes[1024];
} ptb_cpu_mask;

ptb_status ptb_topology_read(ptb_topology *topology);
// Only the field cgroup_cpus, without looking at the rest of the machine.
int ptb_topology_cgroup_cpus(void);
// JSON object with the fields above; the fingerprint is 16 hexadecimal digits.
void ptb_topology_json(const ptb_topology *topology, ptb_text *out);
// The affinity mask of this thread; empty when the kernel does not tell.
void ptb_topology_mask(ptb_cpu_mask *mask);
// allowed_cpus and binding become those of `mask`, such as the union over all ranks of a host; an empty one
// changes nothing.
void ptb_topology_allow(ptb_topology *topology, const ptb_cpu_mask *mask);
// Two of the fields alone, without reading all the rest.
void ptb_topology_cpu_model(char *out, size_t out_size); // "unknown" when the kernel does not say
int ptb_topology_allowed_cpus(void);                     // at least 1
int ptb_topology_allowed_cpus_of(int pid);               // of another process, 0: the kernel does not tell
// Bytes of the last-level cache beside the processor that this thread runs on which each of `processes` on
// this host can count on when as many of them as it has processors share it. 2 MiB when the kernel does not
// tell.
size_t ptb_topology_cache_share(int processes);

#endif
