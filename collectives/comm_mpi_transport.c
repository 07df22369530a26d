// What carries the bytes between ranks, found from which of Open MPI's components are still open after
// MPI_Init: it closes those it does not use, and a closed component's variables are gone. Which of the open
// transports serves a peer follows Open MPI's order (its "exclusivity"): shared memory inside a host, then
// RDMA networks, then TCP.
#include "collectives/comm_mpi.h"
#include "collectives/world_mpi.h"
#include "core/log.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Whether a component ("btl_tcp") is open: it has a variable of its own.
static bool is_open(const char *component)
{
    char name[128], prefix[64];
    int length = snprintf(prefix, sizeof prefix, "%s_", component);
    for (int i = 0, count = ptb_mpi_vars_count(); i < count; i++)
        if (ptb_mpi_var_name(i, name) && strncmp(name, prefix, (size_t)length) == 0)
            return true;
    return false;
}

// The first open one of a NULL-terminated list, or NULL.
static const char *first_open(const char *framework, const char *const *components)
{
    char name[64];
    for (; *components; components++) {
        snprintf(name, sizeof name, "%s_%s", framework, *components);
        if (is_open(name))
            return *components;
    }
    return NULL;
}

// How shared memory moves large messages: a single copy by cma, xpmem or knem, or two copies.
static void single_copy(const char *btl, char text[40])
{
    static const char *const modules[] = {"xpmem", "cma", "knem", NULL}; // Open MPI 5: framework smsc
    char name[64];
    int now, value;
    snprintf(name, sizeof name, "btl_%s_single_copy_mechanism", btl);
    const char *module = first_open("smsc", modules);
    snprintf(text, 40, "%s", module ? module : "copy");
    if (!ptb_mpi_var_read_int(name, &now))
        return;
    char item[40];
    for (int i = 0; ptb_mpi_var_item(name, i, &value, item); i++)
        if (value == now)
            snprintf(text, 40, "%s", strcmp(item, "none") == 0 ? "copy" : item);
}

// Ports of RDMA devices that are up: "mlx5_0 InfiniBand, mlx5_1 Ethernet" (Ethernet is RoCE).
static void rdma_devices(char devices[104])
{
    DIR *folder = opendir("/sys/class/infiniband");
    if (!folder)
        return;
    for (struct dirent *entry; (entry = readdir(folder));) {
        char path[400], layer[32];
        snprintf(path, sizeof path, "/sys/class/infiniband/%s/ports/1/link_layer", entry->d_name);
        FILE *file = entry->d_name[0] == '.' ? NULL : fopen(path, "re");
        size_t used = strlen(devices);
        if (file && fscanf(file, "%31s", layer) == 1)
            snprintf(devices + used, 104 - used, "%s%s %s", used ? ", " : "", entry->d_name, layer);
        if (file)
            fclose(file);
    }
    closedir(folder);
}

static void tcp_interfaces(char devices[104])
{
    char include[64] = "", exclude[64] = "";
    if (ptb_mpi_var_read_text("btl_tcp_if_include", include, sizeof include) && include[0])
        snprintf(devices, 104, "interfaces %s", include);
    else if (ptb_mpi_var_read_text("btl_tcp_if_exclude", exclude, sizeof exclude) && exclude[0])
        snprintf(devices, 104, "interfaces all but %s", exclude);
}

// Open MPI's own byte transfer layers, under the pml ob1.
static void find_btl(const ptb_world *world, char transport[104], char devices[104])
{
    static const char *const shared[] = {"vader", "sm", "smcuda", NULL};
    static const char *const network[] = {"openib", "uct", "usnic", "ofi", "portals4", "tcp", NULL};
    bool inside = false, between = world->hosts > 1;
    char mechanism[40];
    for (int r = 0; r < world->size; r++) // some host holds two ranks
        for (int q = 0; q < r; q++)
            inside |= world->host_of[r] == world->host_of[q];
    const char *local = first_open("btl", shared), *remote = first_open("btl", network);
    transport[0] = 0;
    if (inside && local) {
        single_copy(local, mechanism);
        snprintf(transport, 104, "shm(%s,%s)", local, mechanism);
    }
    if (between || (inside && !local)) {
        size_t used = strlen(transport);
        snprintf(transport + used, 104 - used, "%s%s", used ? "+" : "", remote ? remote : "unknown");
        if (remote && strcmp(remote, "tcp") == 0)
            tcp_interfaces(devices);
        else
            rdma_devices(devices);
    }
}

static void find_mine(ptb_world *world, char transport[104], char devices[104])
{
    static const char *const pmls[] = {"ucx", "cm", "ob1", NULL};
    static const char *const mtls[] = {"psm2", "psm", "portals4", "ofi", NULL};
    devices[0] = 0;
    if (world->size == 1) {
        snprintf(transport, 104, "self");
        return;
    }
    snprintf(transport, 104, "unknown");
    if (!ptb_world_mpi_vars(world))
        return;
    const char *pml = first_open("pml", pmls);
    if (pml && strcmp(pml, "ob1") == 0)
        find_btl(world, transport, devices);
    if (pml && strcmp(pml, "ucx") == 0) {
        const char *layers = getenv("UCX_TLS"), *nets = getenv("UCX_NET_DEVICES");
        snprintf(transport, 104, "ucx");
        rdma_devices(devices);
        size_t used = strlen(devices);
        if (layers || nets)
            snprintf(devices + used, 104 - used, "%sUCX_TLS=%s UCX_NET_DEVICES=%s", used ? "; " : "",
                     layers ? layers : "all", nets ? nets : "all");
    }
    if (pml && strcmp(pml, "cm") == 0) {
        const char *mtl = first_open("mtl", mtls);
        snprintf(transport, 104, "%s", mtl ? mtl : "unknown");
        rdma_devices(devices);
    }
}

// A rank that is alone on its host has closed shared memory: the first one with company there knows all.
static int knowing_rank(const ptb_world *world)
{
    for (int r = 0; r < world->size && world->hosts > 1; r++)
        for (int q = r + 1; q < world->size; q++)
            if (world->host_of[q] == world->host_of[r])
                return r;
    return 0;
}

ptb_status ptb_mpi_transport_find(ptb_world *world, char transport[104], char devices[104])
{
    char found[2][104] = {"", ""};
    find_mine(world, found[0], found[1]);
    PTB_TRY(ptb_world_broadcast(world, knowing_rank(world), found, sizeof found));
    memcpy(transport, found[0], sizeof found[0]);
    memcpy(devices, found[1], sizeof found[1]);
    return PTB_OK;
}

ptb_status ptb_mpi_transport_check(const ptb_world *world, const char *asked, const char *found)
{
    if (!asked || !*asked || strcmp(found, "self") == 0)
        return PTB_OK;
    bool shared = strncmp(found, "shm(", 4) == 0 && !strchr(found, '+');
    if (strcmp(asked, "shm") == 0 ? shared : strcmp(asked, found) == 0)
        return PTB_OK;
    if (world->rank == 0)
        ptb_error("the transport %s was asked for, but the MPI library uses %s between these %d ranks on %d "
                  "host%s%s",
                  asked, found, world->size, world->hosts, world->hosts > 1 ? "s" : "",
                  strcmp(asked, "shm") == 0 && world->hosts > 1 ? "; shared memory ends at the host" : "");
    return PTB_UNSUPPORTED;
}
