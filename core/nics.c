// Network cards from /sys/class/infiniband and /sys/class/net
// (Documentation/ABI/stable/sysfs-class-infiniband and testing/sysfs-class-net of the kernel).
#include "core/nics.h"

#include "core/links.h"
#include "core/log.h"
#include "core/machine.h"

#include <ctype.h>
#include <dirent.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 512 };

const char *ptb_sysfs_root(void)
{
#ifdef PTB_SIM
    const char *root = getenv("PTB_SYSFS");
    if (root)
        return root;
#endif
    return "/sys";
}

// First line of a file without its end; false when it cannot be read.
static bool read_line(char *out, size_t out_size, const char *format, ...)
{
    char path[PATH_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(path, sizeof path, format, args);
    va_end(args);
    FILE *file = fopen(path, "re");
    bool is_read = file && fgets(out, (int)out_size, file);
    if (file)
        fclose(file);
    if (is_read)
        out[strcspn(out, "\n")] = '\0';
    return is_read;
}

// The path of a PCI device from its host bridge on, out of the path of its folder.
static bool pci_part(const char *folder, char path[PTB_PCI_PATH_BYTES])
{
    char real[PATH_MAX];
    if (!realpath(folder, real))
        return false;
    char *start = strstr(real, "/devices/pci");
    if (!start)
        return false;
    start += strlen("/devices/");
    // What is behind the PCI device (a virtio bus) does not count.
    for (char *slash = strchr(start, '/'); slash; slash = strchr(slash + 1, '/'))
        if (!isxdigit((unsigned char)slash[1]) || strcspn(slash + 1, ":") > 8 ||
            slash[1 + strcspn(slash + 1, ":/")] != ':') {
            *slash = '\0';
            break;
        }
    if (strlen(start) >= PTB_PCI_PATH_BYTES)
        return false;
    snprintf(path, PTB_PCI_PATH_BYTES, "%s", start);
    return true;
}

bool ptb_pci_path(const char *root, const char *address, char path[PTB_PCI_PATH_BYTES])
{
    char lower[32], folder[PATH_BYTES];
    const char *colon = strchr(address, ':');
    size_t length = strlen(address);
    if (!colon || length >= sizeof lower)
        return false;
    // NVML writes the domain with eight digits, the kernel with four where they suffice.
    const char *from = colon - address == 8 && strncmp(address, "0000", 4) == 0 ? address + 4 : address;
    for (size_t i = 0; i <= strlen(from); i++)
        lower[i] = (char)tolower((unsigned char)from[i]);
    snprintf(folder, sizeof folder, "%s/bus/pci/devices/%s", root, lower);
    return pci_part(folder, path);
}

int ptb_pci_numa_node(const char *root, const char *path)
{
    char line[32];
    return *path && read_line(line, sizeof line, "%s/devices/%s/numa_node", root, path) ? atoi(line) : -1;
}

// Steps of a path: one more than its slashes.
static size_t steps_of(const char *path)
{
    size_t steps = 1;
    for (; *path; path++)
        steps += *path == '/';
    return steps;
}

static size_t common_steps(const char *a, const char *b)
{
    size_t common = 0;
    for (;;) {
        size_t length = strcspn(a, "/");
        if (length == 0 || length != strcspn(b, "/") || strncmp(a, b, length) != 0)
            return common;
        common++;
        a += length + (a[length] == '/');
        b += length + (b[length] == '/');
    }
}

const char *ptb_pci_distance(const char *a, int numa_a, const char *b, int numa_b)
{
    size_t common = common_steps(a, b);
    if (common == 0)
        return numa_a >= 0 && numa_a == numa_b ? "NODE" : "SYS";
    if (common == 1) // the host bridge
        return "PHB";
    // Within a switch there is its port towards each device, and the device.
    return steps_of(a) <= common + 2 && steps_of(b) <= common + 2 ? "PIX" : "PXB";
}

static int by_name(const void *x, const void *y)
{
    const ptb_nic *a = x, *b = y;
    int order = strcmp(a->name, b->name);
    return order ? order : a->port - b->port;
}

static void read_rdma_port(const char *root, const char *device, int port, ptb_nic *nic)
{
    char line[64], folder[PATH_BYTES];
    *nic = (ptb_nic){.port = port, .unit_bytes = 4, .numa_node = -1};
    snprintf(nic->name, sizeof nic->name, "%.31s", device);
    snprintf(folder, sizeof folder, "%.200s/class/infiniband/%.60s", root, device);
    bool is_ethernet =
        read_line(line, sizeof line, "%s/ports/%d/link_layer", folder, port) && strcmp(line, "Ethernet") == 0;
    snprintf(nic->kind, sizeof nic->kind, "%s", is_ethernet ? "RoCE" : "InfiniBand");
    nic->is_up = read_line(line, sizeof line, "%s/ports/%d/state", folder, port) && strstr(line, "ACTIVE");
    if (read_line(line, sizeof line, "%s/ports/%d/rate", folder, port)) // "400 Gb/sec (4X NDR)"
        nic->gbits_s = atof(line);
    static const char *const names[] = {"port_xmit_data", "port_rcv_data"};
    for (int d = 0; d < 2; d++)
        snprintf(nic->counters[d], sizeof nic->counters[d], "%.300s/ports/%d/counters/%s", folder, port,
                 names[d]);
    strncat(folder, "/device", sizeof folder - strlen(folder) - 1);
    if (!pci_part(folder, nic->pci_path))
        nic->pci_path[0] = '\0';
    nic->numa_node = ptb_pci_numa_node(root, nic->pci_path);
}

static size_t read_rdma(const char *root, ptb_nic nics[PTB_NICS_MAX])
{
    char folder[PATH_BYTES], ports[PATH_BYTES + 300];
    size_t count = 0;
    snprintf(folder, sizeof folder, "%s/class/infiniband", root);
    DIR *devices = opendir(folder);
    for (struct dirent *entry; devices && (entry = readdir(devices));) {
        if (entry->d_name[0] == '.')
            continue;
        snprintf(ports, sizeof ports, "%s/%s/ports", folder, entry->d_name);
        DIR *list = opendir(ports);
        for (struct dirent *port; list && (port = readdir(list)) && count < PTB_NICS_MAX;)
            if (isdigit((unsigned char)port->d_name[0]))
                read_rdma_port(root, entry->d_name, atoi(port->d_name), &nics[count++]);
        if (list)
            closedir(list);
    }
    if (devices)
        closedir(devices);
    return count;
}

// Interfaces of RDMA devices are left out: their ports count the same bytes.
static bool is_known(const ptb_nic *nics, size_t count, const char *pci_path)
{
    for (size_t i = 0; i < count; i++)
        if (*pci_path && strcmp(nics[i].pci_path, pci_path) == 0)
            return true;
    return false;
}

// A virtual interface that ends in another namespace (veth, macvlan): the only card that a container sees.
static bool leads_outside(const char *root, const char *name)
{
    char index[32], link[32];
    return read_line(index, sizeof index, "%s/class/net/%s/ifindex", root, name) &&
           read_line(link, sizeof link, "%s/class/net/%s/iflink", root, name) && strcmp(index, link) != 0;
}

// False unless it is of the kind that is asked for: a real device, or one that leads out of a container.
// Other virtual ones (bridges, tunnels) send their bytes over another.
static bool read_interface(const char *root, const char *name, bool is_virtual, ptb_nic *nic)
{
    char line[64], folder[PATH_BYTES];
    *nic = (ptb_nic){.unit_bytes = 1, .numa_node = -1, .kind = "Ethernet"};
    snprintf(nic->name, sizeof nic->name, "%.31s", name);
    snprintf(folder, sizeof folder, "%.200s/class/net/%.60s", root, name);
    static const char *const names[] = {"tx_bytes", "rx_bytes"};
    for (int d = 0; d < 2; d++)
        snprintf(nic->counters[d], sizeof nic->counters[d], "%.300s/statistics/%s", folder, names[d]);
    nic->is_up = read_line(line, sizeof line, "%s/operstate", folder) && strcmp(line, "up") == 0;
    bool has_speed =
        read_line(line, sizeof line, "%s/speed", folder) && atof(line) > 0; // Mbit/s; -1: unknown
    if (has_speed && !is_virtual) // what a virtual one says is made up
        nic->gbits_s = atof(line) / 1000;
    strncat(folder, "/device", sizeof folder - strlen(folder) - 1);
    char real[PATH_MAX];
    if (is_virtual != !realpath(folder, real))
        return false;
    if (is_virtual) {
        snprintf(nic->kind, sizeof nic->kind, "virtual");
        return leads_outside(root, name);
    }
    if (!pci_part(folder, nic->pci_path))
        nic->pci_path[0] = '\0';
    nic->numa_node = ptb_pci_numa_node(root, nic->pci_path);
    return true;
}

// Appends interfaces to the `count` ports that are there; their number then.
static size_t read_interfaces(const char *root, bool is_virtual, ptb_nic nics[PTB_NICS_MAX], size_t count)
{
    char folder[PATH_BYTES];
    size_t rdma = count;
    snprintf(folder, sizeof folder, "%s/class/net", root);
    DIR *interfaces = opendir(folder);
    for (struct dirent *entry; interfaces && (entry = readdir(interfaces)) && count < PTB_NICS_MAX;)
        if (entry->d_name[0] != '.' && read_interface(root, entry->d_name, is_virtual, &nics[count]) &&
            !is_known(nics, rdma, nics[count].pci_path))
            count++;
    if (interfaces)
        closedir(interfaces);
    return count;
}

size_t ptb_nics_read(const char *root, ptb_nic nics[PTB_NICS_MAX])
{
    size_t count = read_interfaces(root, false, nics, read_rdma(root, nics));
    if (count == 0)
        count = read_interfaces(root, true, nics, 0);
    qsort(nics, count, sizeof *nics, by_name);
    return count;
}

size_t ptb_nics_rails(const ptb_nic *nics, size_t count, ptb_nic rails[PTB_NICS_MAX])
{
    bool has_rdma = false;
    size_t found = 0;
    for (size_t i = 0; i < count; i++)
        has_rdma |= nics[i].is_up && nics[i].port > 0;
    for (size_t i = 0; i < count; i++)
        if (nics[i].is_up && (nics[i].port > 0) == has_rdma)
            rails[found++] = nics[i];
    return found;
}

bool ptb_nic_counter(const ptb_nic *nic, int direction, uint64_t *bytes)
{
    char line[64];
    char *end;
    if (!read_line(line, sizeof line, "%s", nic->counters[direction]))
        return false;
    uint64_t value = strtoull(line, &end, 10);
    *bytes = value * nic->unit_bytes;
    return end != line;
}

// ---- in the topology

static void describe(ptb_text *json, ptb_text *identity)
{
    ptb_nic *nics = malloc(PTB_NICS_MAX * sizeof *nics);
    size_t count = nics ? ptb_nics_read(ptb_sysfs_root(), nics) : 0;
    (void)identity; // a faster network is a difference that one wants to compare
    for (size_t i = 0; i < count; i++) {
        const ptb_nic *n = &nics[i];
        ptb_text_printf(json, "%s{\"name\": ", i ? ", " : "[");
        ptb_text_append_json(json, n->name);
        if (n->port)
            ptb_text_printf(json, ", \"port\": %d", n->port);
        ptb_text_printf(json, ", \"kind\": \"%s\", \"up\": %s, \"gbits_per_s\": ", n->kind,
                        n->is_up ? "true" : "false");
        if (n->gbits_s > 0)
            ptb_text_append_number(json, n->gbits_s, -1);
        else
            ptb_text_append(json, "null");
        ptb_text_append(json, ", \"pci\": ");
        ptb_text_append_json(json, n->pci_path);
        ptb_text_printf(json, ", \"numa_node\": %d}", n->numa_node);
    }
    if (count)
        ptb_text_append(json, "]");
    free(nics);
}

static const ptb_machine_part nics_part = {
    .plugin = {"nics", "network cards: ports, rates and where they are on PCIe"},
    .describe = describe,
};
PTB_REGISTER(PTB_KIND_MACHINE_PART, nics_part);

// ---- as links

typedef struct {
    size_t count;
    ptb_nic nics[PTB_NICS_MAX];
} ports;

static bool is_counted(const ptb_nic *nic)
{
    uint64_t bytes;
    return nic->is_up && ptb_nic_counter(nic, 0, &bytes) && ptb_nic_counter(nic, 1, &bytes);
}

static void say_what_is_missing(const ports *p, ptb_text *why)
{
    size_t up = 0, counted = 0;
    for (size_t i = 0; i < p->count; i++) {
        up += p->nics[i].is_up;
        counted += is_counted(&p->nics[i]);
    }
    const char *between = *ptb_text_string(why) ? "; " : "";
    if (up == 0)
        ptb_text_printf(why, "%sno network card that is up in %s/class/infiniband and %s/class/net", between,
                        ptb_sysfs_root(), ptb_sysfs_root());
    else if (counted < up)
        ptb_text_printf(why, "%s%zu of %zu ports of network cards have no counters that this user may read",
                        between, up - counted, up);
}

static ptb_status open_ports(const char *gpu, bool nics, ptb_text *why, void **state)
{
    (void)gpu;
    if (!nics)
        return PTB_SKIPPED;
    ports *p = malloc(sizeof *p);
    if (!p) {
        ptb_error("no memory for the ports of network cards");
        return PTB_NO_MEMORY;
    }
    p->count = ptb_nics_read(ptb_sysfs_root(), p->nics);
    say_what_is_missing(p, why);
    *state = p;
    return PTB_OK;
}

static void read_ports(void *state, ptb_links *links)
{
    const ports *p = state;
    for (size_t i = 0; i < p->count && links->count < PTB_LINKS_MAX; i++) {
        const ptb_nic *n = &p->nics[i];
        ptb_link *link = &links->items[links->count];
        *link = (ptb_link){.gbits_s = n->gbits_s, .unit_bytes = n->unit_bytes};
        snprintf(link->name, sizeof link->name, n->port ? "%s/%d" : "%s", n->name, n->port);
        snprintf(link->kind, sizeof link->kind, "%s", n->kind);
        if (n->is_up && ptb_nic_counter(n, 0, &link->sent_bytes) &&
            ptb_nic_counter(n, 1, &link->received_bytes))
            links->count++;
    }
}

static void tell_capacity(const void *state, ptb_link_capacity *capacity)
{
    const ports *p = state;
    ptb_nic rails[PTB_NICS_MAX];
    bool is_known_rate = true;
    capacity->rails = (unsigned)ptb_nics_rails(p->nics, p->count, rails);
    capacity->has_equal_rails = capacity->rails > 0;
    for (size_t i = 0; i < capacity->rails; i++) {
        capacity->rail_gbits_s += rails[i].gbits_s;
        is_known_rate &= rails[i].gbits_s > 0;
        capacity->has_equal_rails &=
            rails[i].gbits_s >= rails[0].gbits_s && rails[i].gbits_s <= rails[0].gbits_s;
        snprintf(capacity->rail_kind, sizeof capacity->rail_kind, "%s", rails[i].kind);
    }
    if (!is_known_rate)
        capacity->rail_gbits_s = 0;
}

static const ptb_link_source nics_source = {
    .plugin = {"nics", "ports of network cards, counted by the cards"},
    .open = open_ports,
    .read = read_ports,
    .close = free,
    .capacity = tell_capacity,
};
PTB_REGISTER(PTB_KIND_LINK_SOURCE, nics_source);
