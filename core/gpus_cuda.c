// The GPUs of this machine through NVML: for the topology that is stored with each run, for `ptbench doctor`,
// and the counters of their NVLinks. NVML sees all GPUs, whatever CUDA_VISIBLE_DEVICES says.
#include "core/device_cuda_internal.h"
#include "core/links.h"
#include "core/log.h"
#include "core/machine.h"
#include "core/nics.h"
#include "core/nvml_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GPUS_MAX = 64, TEXT_BYTES = PTB_NVML_TEXT };

// nvmlClocksEventReason*: those that make a measurement slower than the GPU could be.
static const struct {
    unsigned long long bit;
    const char *word;
    bool is_fault; // not merely its limits
} reasons[] = {
    {0x4, "power cap", false},
    {0x8, "hardware slowdown", true},
    {0x20, "thermal slowdown by software", true},
    {0x40, "thermal slowdown by hardware", true},
    {0x80, "power brake", true},
    {0x2, "clocks set by the user", false},
    {0x10, "clocks held to those of other GPUs", false},
};

// nvmlNvlinkVersion_t
static const char *const link_versions[] = {NULL, "1.0", "2.0", "2.2", "3.0", "3.1", "4.0", "5.0", "6.0"};

typedef struct {
    char name[TEXT_BYTES], uuid[TEXT_BYTES];
    ptb_nvml_memory memory;
    ptb_nvml_pci pci;
    ptb_nvml_instances instances;                          // of MIG
    unsigned generation, generation_max, width, width_max; // of PCIe; 0: unknown
    unsigned links, switch_links;                          // active; of these towards a switch
    const char *link_version;
    double link_bytes_s;                     // one direction, all links together
    unsigned lost_links;                     // of which is not told where they lead
    ptb_link_peer peers[PTB_LINK_PEERS_MAX]; // those that lead to GPUs
    unsigned peer_count;
    bool has_links; // up or not
    bool is_lost, is_mig, has_ecc, has_persistence;
    unsigned long long ecc_uncorrected, throttle;
    unsigned sm_mhz, sm_mhz_max, memory_mhz_max, power_mw, power_limit_mw;
    char path[PTB_PCI_PATH_BYTES];
    int numa_node;
} gpu;

// 0: it is none. NVML may give anything for what it cannot see.
static uint64_t parse_address(const char *bus_id)
{
    unsigned domain, bus, device, function = 0;
    if (sscanf(bus_id, "%8x:%4x:%4x.%4x", &domain, &bus, &device, &function) < 3)
        return 0;
    return (uint64_t)domain << 32 | bus << 16 | device << 8 | function;
}

// Where a link leads that leads to no switch.
static void note_peer(const ptb_nvml *nvml, ptb_nvml_device device, unsigned link, gpu *g)
{
    ptb_nvml_pci pci = {.bus_id = ""};
    uint64_t address = 0;
    unsigned i = 0;
    if (nvml->link_peer(device, link, &pci) == PTB_NVML_SUCCESS)
        address = parse_address(pci.bus_id);
    while (i < g->peer_count && g->peers[i].address != address)
        i++;
    if (!address || i == PTB_LINK_PEERS_MAX) {
        g->lost_links++;
        return;
    }
    g->peer_count = i == g->peer_count ? i + 1 : g->peer_count;
    g->peers[i].address = address;
    g->peers[i].links++;
}

static void read_links(const ptb_nvml *nvml, ptb_nvml_device device, gpu *g)
{
    for (unsigned link = 0; link < PTB_NVML_LINKS_MAX; link++) {
        int is_active = 0, peer;
        unsigned version = 0;
        unsigned long long mbytes_s = 0;
        if (nvml->link_state(device, link, &is_active) != PTB_NVML_SUCCESS)
            continue;
        g->has_links = true;
        if (!is_active)
            continue;
        g->links++;
        if (!nvml->link_peer_type || nvml->link_peer_type(device, link, &peer) != PTB_NVML_SUCCESS)
            g->lost_links++;
        else if (peer == PTB_NVML_PEER_SWITCH)
            g->switch_links++;
        else if (peer == PTB_NVML_PEER_GPU)
            note_peer(nvml, device, link, g);
        if (nvml->link_version(device, link, &version) == PTB_NVML_SUCCESS &&
            version < sizeof link_versions / sizeof *link_versions)
            g->link_version = link_versions[version];
        if (ptb_nvml_link_field(nvml, device, PTB_NVML_FIELD_SPEED, link, &mbytes_s))
            g->link_bytes_s += (double)mbytes_s * 1e6;
    }
}

// What a GPU does not support stays 0.
static void read_gpu(const ptb_nvml *nvml, ptb_nvml_device device, gpu *g)
{
    unsigned mig = 0, pending;
    int ecc = 0, pending_ecc, persistence = 0;
    *g = (gpu){.numa_node = -1};
    nvml->name(device, g->name, sizeof g->name);
    nvml->uuid(device, g->uuid, sizeof g->uuid);
    nvml->memory(device, &g->memory);
    nvml->pci(device, &g->pci);
    nvml->pcie_generation(device, &g->generation);
    nvml->pcie_generation_max(device, &g->generation_max);
    nvml->pcie_width(device, &g->width);
    nvml->pcie_width_max(device, &g->width_max);
    g->is_mig = nvml->mig_mode(device, &mig, &pending) == PTB_NVML_SUCCESS && mig;
    if (g->is_mig)
        ptb_nvml_read_instances(nvml, device, &g->instances);
    g->has_ecc = nvml->ecc_mode(device, &ecc, &pending_ecc) == PTB_NVML_SUCCESS && ecc;
    g->has_persistence = nvml->persistence(device, &persistence) == PTB_NVML_SUCCESS && persistence;
    if (nvml->ecc_errors(device, PTB_NVML_UNCORRECTED, PTB_NVML_VOLATILE, &g->ecc_uncorrected) !=
        PTB_NVML_SUCCESS)
        g->ecc_uncorrected = 0;
    nvml->clock(device, PTB_NVML_CLOCK_SM, &g->sm_mhz);
    nvml->clock_max(device, PTB_NVML_CLOCK_SM, &g->sm_mhz_max);
    nvml->clock_max(device, PTB_NVML_CLOCK_MEMORY, &g->memory_mhz_max);
    nvml->throttle_reasons(device, &g->throttle);
    nvml->power(device, &g->power_mw);
    nvml->power_limit(device, &g->power_limit_mw);
    read_links(nvml, device, g);
    if (ptb_pci_path(ptb_sysfs_root(), g->pci.bus_id, g->path))
        g->numa_node = ptb_pci_numa_node(ptb_sysfs_root(), g->path);
    else
        g->path[0] = '\0';
}

// All GPUs, a heap array; NULL where there are none or memory is short.
static gpu *read_gpus(const ptb_nvml *nvml, unsigned *count)
{
    *count = 0;
    if (nvml->device_count(count) != PTB_NVML_SUCCESS || *count == 0)
        return NULL;
    *count = *count < GPUS_MAX ? *count : GPUS_MAX;
    gpu *gpus = calloc(*count, sizeof *gpus);
    for (unsigned i = 0; gpus && i < *count; i++) {
        ptb_nvml_device device;
        if (nvml->device(i, &device) == PTB_NVML_SUCCESS)
            read_gpu(nvml, device, &gpus[i]);
        else // it has fallen off the bus
            gpus[i] = (gpu){.name = "lost", .is_lost = true, .numa_node = -1};
    }
    return gpus;
}

// ---- in the topology

static void json_text(ptb_text *json, const char *name, const char *value)
{
    ptb_text_printf(json, "\"%s\": ", name);
    ptb_text_append_json(json, value);
    ptb_text_append(json, ", ");
}

static void describe_gpu(const gpu *g, const ptb_nic *nics, size_t nic_count, ptb_text *json)
{
    ptb_text_append(json, "{");
    json_text(json, "name", g->name);
    json_text(json, "uuid", g->uuid);
    json_text(json, "bus_id", g->pci.bus_id);
    ptb_text_printf(json, "\"memory_bytes\": %llu, \"numa_node\": %d, ", g->memory.total, g->numa_node);
    ptb_text_printf(json, "\"pcie_generation\": %u, \"pcie_width\": %u, ", g->generation_max, g->width_max);
    ptb_text_printf(json, "\"nvlinks\": %u, \"nvlinks_to_switch\": %u, ", g->links, g->switch_links);
    if (g->links) {
        json_text(json, "nvlink_version", g->link_version ? g->link_version : "unknown");
        ptb_text_append(json, "\"nvlink_bytes_per_s\": ");
        ptb_text_append_number(json, g->link_bytes_s, -1);
        ptb_text_append(json, ", ");
    }
    ptb_text_printf(json, "\"mig\": %s, \"ecc\": %s, ", g->is_mig ? "true" : "false",
                    g->has_ecc ? "true" : "false");
    if (g->is_mig)
        ptb_nvml_describe_instances(&g->instances, json);
    ptb_text_printf(json, "\"ecc_uncorrected\": %llu, \"sm_mhz_max\": %u, \"memory_mhz_max\": %u, ",
                    g->ecc_uncorrected, g->sm_mhz_max, g->memory_mhz_max);
    ptb_text_printf(json, "\"power_limit_w\": %u, \"nics\": {", g->power_limit_mw / 1000);
    for (size_t i = 0; i < nic_count; i++) {
        char name[48];
        snprintf(name, sizeof name, nics[i].port ? "%s/%d" : "%s", nics[i].name, nics[i].port);
        ptb_text_append(json, i ? ", " : "");
        ptb_text_append_json(json, name);
        ptb_text_printf(json, ": \"%s\"",
                        ptb_pci_distance(g->path, g->numa_node, nics[i].pci_path, nics[i].numa_node));
    }
    ptb_text_append(json, "}}");
}

static void describe(ptb_text *json, ptb_text *identity)
{
    ptb_nvml nvml;
    ptb_text why = PTB_TEXT_INIT;
    ptb_status status = ptb_nvml_open(&nvml, &why);
    ptb_text_release(&why); // `ptbench doctor` tells it
    if (status != PTB_OK)
        return;
    unsigned count;
    bool has_seen = false;
    char driver[TEXT_BYTES] = "unknown";
    gpu *gpus = read_gpus(&nvml, &count);
    ptb_nic *nics = malloc(PTB_NICS_MAX * sizeof *nics);
    size_t nic_count = nics ? ptb_nics_read(ptb_sysfs_root(), nics) : 0;
    nvml.driver_version(driver, sizeof driver);
    if (gpus) {
        ptb_text_append(json, "{");
        json_text(json, "driver", driver);
#ifdef PTB_SIM
        ptb_text_append(json, "\"simulated\": true, ");
        ptb_text_append(identity, "|simulated");
#endif
        ptb_text_append(json, "\"list\": [");
        ptb_text_printf(identity, "|driver %s", driver);
    }
    for (unsigned i = 0; gpus && i < count; i++) {
        ptb_text_append(json, i ? ", " : "");
        describe_gpu(&gpus[i], nics, nic_count, json);
        ptb_text_printf(identity, "|%s %u", gpus[i].name, gpus[i].links);
        if (gpus[i].is_mig)
            ptb_nvml_identify_instances(&nvml, &gpus[i].instances, &has_seen, identity);
    }
    if (gpus)
        ptb_text_append(json, "]}");
    free(nics);
    free(gpus);
    ptb_nvml_close(&nvml);
}

// ---- for doctor

// What one GPU is and what is wrong with it.
static ptb_health check_gpu(const gpu *g, ptb_text *said)
{
    ptb_health health = PTB_HEALTH_FINE;
    ptb_text_printf(said, "%s", g->name);
    if (g->is_lost) {
        ptb_text_append(said, ": it does not answer; see dmesg | grep Xid, then reset or replace it");
        return PTB_HEALTH_WARNING;
    }
    if (g->memory.total) // in a container that was given an instance only, it is not told
        ptb_text_printf(said, ", %.0f GiB", (double)g->memory.total / (double)(1 << 30));
    if (g->generation_max && g->width_max)
        ptb_text_printf(said, ", PCIe %u x%u", g->generation_max, g->width_max);
    if (g->links)
        ptb_text_printf(said, ", %u NVLinks %s (%s), %.0f GB/s each way", g->links,
                        g->link_version ? g->link_version : "of an unknown version",
                        g->switch_links ? "NVSwitch" : "direct", g->link_bytes_s * 1e-9);
    if (g->ecc_uncorrected) {
        ptb_text_printf(
            said,
            ": %llu uncorrectable ECC errors since the driver was loaded: reset it, and replace it if "
            "they come again",
            g->ecc_uncorrected);
        health = PTB_HEALTH_WARNING;
    }
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        if (g->throttle & reasons[i].bit) {
            ptb_text_printf(said, ": slowed down, %s", reasons[i].word);
            health = reasons[i].is_fault ? PTB_HEALTH_WARNING : health;
        }
    // An idle GPU lowers the generation to save power, but not the width.
    if (g->width && g->width < g->width_max) {
        ptb_text_printf(said, ": PCIe runs at x%u instead of x%u: reseat it, or see the machine's manual",
                        g->width, g->width_max);
        health = PTB_HEALTH_WARNING;
    }
    if (g->is_mig && !g->instances.count) {
        ptb_text_append(said,
                        ": MIG is on, and no instance is seen, so nothing can run there: nvidia-smi mig "
                        "-cgi makes instances, nvidia-smi -mig 0 ends MIG");
        health = PTB_HEALTH_WARNING;
    }
    for (unsigned i = 0; i < g->instances.count; i++)
        ptb_text_printf(said, "%s%s", i ? ", " : ": MIG is on, with instances ",
                        ptb_nvml_instance_size(&g->instances.list[i]));
    return health;
}

// "GPU 0 to 7: ..." for those of which the same is to be said.
static void append_range(ptb_text *said, unsigned first, unsigned last, const char *what)
{
    if (first == last)
        ptb_text_printf(said, "; GPU %u: %s", first, what);
    else
        ptb_text_printf(said, "; GPUs %u to %u: %s", first, last, what);
}

static ptb_health check_gpus(const gpu *gpus, unsigned count, ptb_text *said)
{
    ptb_health worst = PTB_HEALTH_FINE;
    ptb_text now = PTB_TEXT_INIT, before = PTB_TEXT_INIT;
    unsigned first = 0, slow_start = 0;
    for (unsigned i = 0; i < count; i++) {
        ptb_text_clear(&now);
        ptb_health health = check_gpu(&gpus[i], &now);
        worst = health > worst ? health : worst;
        slow_start += !gpus[i].has_persistence && !gpus[i].is_lost;
        if (i && strcmp(ptb_text_string(&now), ptb_text_string(&before)) != 0) {
            append_range(said, first, i - 1, ptb_text_string(&before));
            first = i;
        }
        ptb_text_clear(&before);
        ptb_text_append(&before, ptb_text_string(&now));
    }
    append_range(said, first, count - 1, ptb_text_string(&before));
    // A link that is down shows only beside GPUs that have all of theirs.
    for (unsigned i = 1; i < count; i++)
        if (gpus[i].links != gpus[0].links && !gpus[i].is_lost && !gpus[0].is_lost) {
            ptb_text_append(said,
                            "; the GPUs do not have the same number of NVLinks up: see nvidia-smi nvlink -s");
            worst = PTB_HEALTH_WARNING;
            break;
        }
    if (slow_start)
        ptb_text_append(said, "; persistence mode is off, so the first use takes seconds: nvidia-smi -pm 1");
    ptb_text_release(&now);
    ptb_text_release(&before);
    return worst;
}

static ptb_health check_all(const ptb_nvml *nvml, ptb_text *said)
{
    unsigned count;
    char driver[TEXT_BYTES] = "unknown";
    int cuda = 0;
    gpu *gpus = read_gpus(nvml, &count);
    nvml->driver_version(driver, sizeof driver);
    nvml->cuda_version(&cuda);
    ptb_text_printf(said, ", driver %s, which supports CUDA %d.%d", driver, cuda / 1000, cuda % 1000 / 10);
    ptb_health health = gpus ? check_gpus(gpus, count, said) : PTB_HEALTH_FINE;
    free(gpus);
    return health;
}

static void say_usable(int usable, ptb_text *said)
{
    char first[128];
#ifdef PTB_SIM
    ptb_text_append(said, "SIMULATED, not real hardware: ");
#endif
    ptb_text_printf(said, "%d GPU%s can be used", usable, usable == 1 ? "" : "s");
    if (ptb_cuda_describe(0, first) && strstr(first, "MIG"))
        ptb_text_printf(said,
                        ", %s of MIG%s %s; each rank of a host has one of those that "
                        "CUDA_VISIBLE_DEVICES=MIG-...,MIG-... names (nvidia-smi -L lists them)",
                        usable == 1 ? "an instance" : "instances", usable == 1 ? "," : ", the first", first);
}

static ptb_health check_with(const ptb_nvml *nvml, int usable, ptb_text *said)
{
    ptb_text missing = PTB_TEXT_INIT;
    int lacks = ptb_nvml_missing_instances(nvml, &missing);
    say_usable(usable - lacks, said);
    ptb_health health = check_all(nvml, said);
    if (lacks) {
        ptb_text_printf(said, "; CUDA_VISIBLE_DEVICES names what is no instance here: %s",
                        ptb_text_string(&missing));
        health = PTB_HEALTH_WARNING;
    }
    ptb_text_release(&missing);
    return health;
}

static ptb_health check(ptb_text *said)
{
    ptb_nvml nvml;
    ptb_text why = PTB_TEXT_INIT;
    int usable = 0;
    ptb_health health = PTB_HEALTH_WARNING;
    if (!ptb_cuda_usable(&why, &usable)) {
        ptb_text_printf(said, "no GPU can be used: %s. Benchmarks of the host work", ptb_text_string(&why));
        ptb_text_release(&why);
        return health;
    }
    ptb_text_clear(&why);
    if (ptb_nvml_open(&nvml, &why) == PTB_OK) {
        health = check_with(&nvml, usable, said);
        ptb_nvml_close(&nvml);
    } else {
        say_usable(usable, said);
        ptb_text_printf(said, ", but nothing is known of links, clocks and errors: %s",
                        ptb_text_string(&why));
    }
    ptb_text_release(&why);
    return health;
}

static const ptb_machine_part gpus_part = {
    .plugin = {"gpus", "NVIDIA GPUs, their NVLinks and their way to network cards"},
    .describe = describe,
    .check = check,
};
PTB_REGISTER(PTB_KIND_MACHINE_PART, gpus_part);

// ---- as links

typedef struct {
    ptb_nvml nvml;
    ptb_nvml_device device;
    unsigned links[PTB_NVML_LINKS_MAX], count;
    double gbits_s[PTB_NVML_LINKS_MAX];
    gpu gpu;
} nvlinks;

// Payload of one link in one direction, GB/s, from NVIDIA's descriptions of P100, V100, A100, H100 and B200
// (160, 300, 600, 900, 1800 GB/s both ways over 4, 6, 12, 18, 18 links). The rate that NVML gives is that of
// the line, coding included: 26.562 for 25.
static double payload_gb_s(const char *version)
{
    static const struct {
        const char *version;
        double gb_s;
    } rates[] = {{"1.0", 20}, {"2.0", 25}, {"2.2", 25}, {"3.0", 25}, {"3.1", 25}, {"4.0", 25}, {"5.0", 50}};
    for (size_t i = 0; version && i < sizeof rates / sizeof *rates; i++)
        if (strcmp(version, rates[i].version) == 0)
            return rates[i].gb_s;
    return 0;
}

// One lane in one direction, GB/s: transfers a second by line coding (8b/10b, 128b/130b, from 6 on 242 of 256
// bytes of a flit).
static double pcie_lane_gb_s(unsigned generation)
{
    static const double lanes[] = {
        0, 0.25, 0.5, 8.0 / 8 * 128 / 130, 16.0 / 8 * 128 / 130, 32.0 / 8 * 128 / 130, 64.0 / 8 * 242 / 256};
    return generation < sizeof lanes / sizeof *lanes ? lanes[generation] : 0;
}

// The ports that are nearest to the GPU on PCIe.
static void find_near_rails(const gpu *g, ptb_link_capacity *capacity)
{
    static const char *const order[] = {"PIX", "PXB", "PHB", "NODE", "SYS"};
    enum { FAR = sizeof order / sizeof *order };
    ptb_nic *nics = malloc(2 * PTB_NICS_MAX * sizeof *nics);
    ptb_nic *rails = nics ? nics + PTB_NICS_MAX : NULL;
    size_t count = nics ? ptb_nics_rails(nics, ptb_nics_read(ptb_sysfs_root(), nics), rails) : 0, best = FAR;
    for (size_t i = 0; i < count; i++) {
        const char *distance = ptb_pci_distance(g->path, g->numa_node, rails[i].pci_path, rails[i].numa_node);
        size_t d = 0;
        while (d < FAR - 1 && strcmp(order[d], distance) != 0)
            d++;
        if (d < best) {
            capacity->near_rails = 0;
            capacity->near_gbits_s = 0;
        }
        if (d <= best) {
            capacity->near_rails++;
            capacity->near_gbits_s += rails[i].gbits_s;
            best = d;
        }
    }
    free(nics);
}

static void tell_capacity(const void *state, ptb_link_capacity *capacity)
{
    const nvlinks *n = state;
    const gpu *g = &n->gpu;
    unsigned width = g->width && g->width < g->width_max ? g->width : g->width_max;
    capacity->nvlinks = g->links;
    capacity->nvlink_gb_s = payload_gb_s(g->link_version);
    capacity->is_switched = g->links > 0 && g->switch_links == g->links;
    capacity->address = parse_address(g->pci.bus_id);
    memcpy(capacity->peers, g->peers, sizeof capacity->peers);
    capacity->peer_count = g->peer_count;
    capacity->switch_links = g->switch_links;
    capacity->lost_links = g->lost_links;
    snprintf(capacity->nvlink_version, sizeof capacity->nvlink_version, "%s",
             g->link_version ? g->link_version : "");
    // Grace and its GPUs are joined by NVLink-C2C; the slot that NVML names is not the way.
    if (!strstr(g->name, "GH200") && !strstr(g->name, "GB200") && !strstr(g->name, "GB300")) {
        capacity->pcie_generation = g->generation_max;
        capacity->pcie_width = width;
        capacity->pcie_gb_s = pcie_lane_gb_s(g->generation_max) * width;
    }
    find_near_rails(g, capacity);
}

static void find_links(nvlinks *n)
{
    for (unsigned link = 0; link < PTB_NVML_LINKS_MAX; link++) {
        int is_active = 0;
        unsigned long long bytes, mbytes_s = 0;
        if (n->nvml.link_state(n->device, link, &is_active) != PTB_NVML_SUCCESS || !is_active ||
            !ptb_nvml_link_field(&n->nvml, n->device, PTB_NVML_FIELD_DATA_TX, link, &bytes))
            continue;
        ptb_nvml_link_field(&n->nvml, n->device, PTB_NVML_FIELD_SPEED, link, &mbytes_s);
        n->gbits_s[n->count] = (double)mbytes_s * 8e-3;
        n->links[n->count++] = link;
    }
}

// Where no link leads to a GPU that is seen here, as in a virtual machine with addresses of its own, the
// addresses say nothing. Where some do, those of others are of GPUs that this container is not given.
static void check_peers(nvlinks *n)
{
    unsigned count = 0, links = 0;
    bool is_seen = false;
    n->nvml.device_count(&count);
    for (unsigned i = 0; i < count; i++) {
        ptb_nvml_device device;
        ptb_nvml_pci pci;
        if (n->nvml.device(i, &device) != PTB_NVML_SUCCESS || n->nvml.pci(device, &pci) != PTB_NVML_SUCCESS)
            continue;
        for (unsigned p = 0; p < n->gpu.peer_count; p++)
            is_seen |= n->gpu.peers[p].address == parse_address(pci.bus_id);
    }
    for (unsigned p = 0; p < n->gpu.peer_count; p++)
        links += n->gpu.peers[p].links;
    if (is_seen)
        return;
    n->gpu.lost_links += links;
    n->gpu.peer_count = 0;
}

static ptb_status open_links(const char *gpu, bool nics, ptb_text *why, void **state)
{
    (void)nics;
    if (strncmp(gpu, "MIG-", 4) == 0)
        ptb_text_append(why, "an instance of MIG has no NVLinks");
    if (strncmp(gpu, "GPU-", 4) != 0)
        return PTB_SKIPPED;
    nvlinks *n = calloc(1, sizeof *n);
    if (!n) {
        ptb_error("no memory for the counters of NVLinks");
        return PTB_NO_MEMORY;
    }
    if (ptb_nvml_open(&n->nvml, why) != PTB_OK) {
        free(n);
        return PTB_SKIPPED;
    }
    if (n->nvml.device_by_uuid(gpu, &n->device) == PTB_NVML_SUCCESS) {
        read_gpu(&n->nvml, n->device, &n->gpu);
        check_peers(n);
        find_links(n);
    }
    // A GPU that has none lacks nothing.
    if (n->gpu.links == 0 && n->gpu.has_links)
        ptb_text_printf(why, "%s has no NVLink that is up", *n->gpu.name ? n->gpu.name : gpu);
    else if (n->count < n->gpu.links)
        ptb_text_printf(why, "%u of %u NVLinks have no counters that NVML gives to this user",
                        n->gpu.links - n->count, n->gpu.links);
    *state = n;
    return PTB_OK;
}

static void read_counters(void *state, ptb_links *links)
{
    const nvlinks *n = state;
    enum { KIB = 1024 };
    for (unsigned i = 0; i < n->count && links->count < PTB_LINKS_MAX; i++) {
        unsigned long long sent, received;
        ptb_link *link = &links->items[links->count];
        if (!ptb_nvml_link_field(&n->nvml, n->device, PTB_NVML_FIELD_DATA_TX, n->links[i], &sent) ||
            !ptb_nvml_link_field(&n->nvml, n->device, PTB_NVML_FIELD_DATA_RX, n->links[i], &received))
            continue;
        *link = (ptb_link){.kind = "NVLink",
                           .gbits_s = n->gbits_s[i],
                           .sent_bytes = sent * KIB,
                           .received_bytes = received * KIB,
                           .unit_bytes = KIB};
        snprintf(link->name, sizeof link->name, "nvlink%u", n->links[i]);
        links->count++;
    }
}

static void close_links(void *state)
{
    nvlinks *n = state;
    ptb_nvml_close(&n->nvml);
    free(n);
}

static const ptb_link_source nvlink_source = {
    .plugin = {"nvlink", "NVLinks of a GPU, counted by the GPU"},
    .open = open_links,
    .read = read_counters,
    .close = close_links,
    .capacity = tell_capacity,
};
PTB_REGISTER(PTB_KIND_LINK_SOURCE, nvlink_source);
