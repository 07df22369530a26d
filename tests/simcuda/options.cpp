// The settings of the simulated device (PTB_SIM), and which GPUs the machine has.
#include "tests/simcuda/shared.hpp"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *find(const char *name)
{
    const char *at = getenv("PTB_SIM");
    const size_t length = strlen(name);
    while (at && *at) {
        if (!strncmp(at, name, length) && at[length] == '=')
            return at + length + 1;
        at = strchr(at, ',');
        at = at ? at + 1 : NULL;
    }
    return NULL;
}

long sim_option(const char *name)
{
    const char *value = find(name);
    return value ? strtol(value, NULL, 0) : -1;
}

bool sim_option_text(const char *name, char *text, size_t bytes)
{
    const char *value = find(name);
    if (!value)
        return false;
    snprintf(text, bytes, "%.*s", (int)strcspn(value, ","), value);
    return true;
}

// Whether this process has the faults.
static bool is_chosen_rank(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"};
    const long wanted = sim_option("rank");
    if (wanted < 0)
        return true;
    for (const char *name : names) {
        const char *rank = getenv(name);
        if (rank)
            return strtol(rank, NULL, 10) == wanted;
    }
    return wanted == 0;
}

uint64_t sim_fault(const char *option)
{
    const long wanted = sim_option(option);
    return wanted > 0 && is_chosen_rank() ? (uint64_t)wanted : 0;
}

int sim_machine_devices(void)
{
    const long count = sim_option("devices");
    return count >= 0 && count <= 64 ? (int)count : 8;
}

void sim_uuid(int machine_device, unsigned char uuid[16])
{
    memset(uuid, 0, 16);
    memcpy(uuid, "simulated", 9);
    uuid[15] = (unsigned char)machine_device;
}

void sim_pci_bus_id(int machine_device, char text[16])
{
    snprintf(text, 16, "0000:%02x:00.0", (0x18 + machine_device * 0x11) & 0xff);
}

// "GPU-" and at least the first digits of a UUID.
static int find_uuid(const char *text, size_t length)
{
    for (int i = 0; i < sim_machine_devices(); i++) {
        unsigned char uuid[16];
        char name[48] = "GPU-";
        sim_uuid(i, uuid);
        for (int b = 0; b < 16; b++)
            snprintf(name + strlen(name), sizeof name - strlen(name), "%s%02x",
                     b == 4 || b == 6 || b == 8 || b == 10 ? "-" : "", uuid[b]);
        // The devices differ in their last digit only: a prefix is not enough to tell them apart.
        if (length == strlen(name) && !strncmp(text, name, length))
            return i;
    }
    return -1;
}

int sim_visible_device(int index)
{
    const char *at = getenv("CUDA_VISIBLE_DEVICES");
    if (!at)
        return index < sim_machine_devices() ? index : -1;
    // As CUDA: the list ends at its first entry that names no GPU.
    for (int i = 0; *at; i++) {
        const size_t length = strcspn(at, ",");
        char *end;
        int device = find_uuid(at, length);
        if (device < 0) {
            const long number = strtol(at, &end, 10);
            if (end != at + length || !length || number < 0 || number >= sim_machine_devices())
                return -1;
            device = (int)number;
        }
        if (i == index)
            return device;
        at += length;
        at += *at == ',';
    }
    return -1;
}
