// NVML of the simulated device: describes the machine that PTB_SIM's `machine` names, a file of
// tests/simcuda/machines, or plain simulated GPUs without links. There are as many GPUs as the runtime has,
// with its UUIDs and bus addresses. What is not asked for by core/nvml_cuda.c is not here.
#include "tests/simcuda/shared.hpp"

#include <string>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern "C" {
#include "core/nvml_cuda.h"
}

namespace {
unsigned long number_of(unsigned index, const char *key, unsigned long otherwise)
{
    const std::string text = sim_machine_text(index, key, "");
    return text.empty() ? otherwise : strtoul(text.c_str(), NULL, 0);
}

// A handle is the index, so that none is a null pointer; above it, of an instance of MIG, its number.
ptb_nvml_device handle_of(unsigned index, int instance = -1)
{
    return (ptb_nvml_device)((uintptr_t)(instance + 1) << 16 | (uintptr_t)(index + 1));
}
unsigned index_of(ptb_nvml_device device)
{
    return (unsigned)((uintptr_t)device & 0xffff) - 1;
}
int instance_of(ptb_nvml_device device)
{
    return (int)((uintptr_t)device >> 16) - 1;
}

int give_text(const std::string &text, char *out, unsigned length)
{
    return snprintf(out, length, "%s", text.c_str()) < (int)length ? PTB_NVML_SUCCESS
                                                                   : 7; // insufficient size
}

int give_number(ptb_nvml_device device, const char *key, unsigned *out)
{
    const unsigned long none = ~0ul, value = number_of(index_of(device), key, none);
    if (value == none)
        return PTB_NVML_NOT_SUPPORTED;
    *out = (unsigned)value;
    return PTB_NVML_SUCCESS;
}

bool is_dead(unsigned gpu, unsigned link)
{
    return link == number_of(gpu, "dead_link", ~0ul);
}

// KiB of one link: the links that are up carry the same each.
unsigned long long link_kib(unsigned gpu, unsigned link, int direction)
{
    const unsigned long links = number_of(gpu, "nvlinks", 0);
    const bool has_dead = number_of(gpu, "dead_link", ~0ul) < links;
    if (!sim_is_up() || is_dead(gpu, link))
        return 0;
    return sim_shared()->link_bytes[direction][gpu].load() / (links - has_dead) / 1024;
}

// The GPU that a link leads to, by "gpuN.peers = 1 1 2 3", one number a link; -1: not given.
int peer_of(unsigned gpu, unsigned link)
{
    const std::string text = sim_machine_text(gpu, "peers", "");
    const char *next = text.c_str();
    char *end;
    for (;; next = end, link--) {
        const long peer = strtol(next, &end, 10);
        if (end == next)
            return -1;
        if (link == 0)
            return (int)peer;
    }
}

bool has_link(ptb_nvml_device device, unsigned link)
{
    return link < number_of(index_of(device), "nvlinks", 0);
}
void fill_pci(int gpu, ptb_nvml_pci *pci)
{
    char address[16];
    sim_pci_bus_id(gpu, address);
    memset(pci, 0, sizeof *pci);
    snprintf(pci->legacy_bus_id, sizeof pci->legacy_bus_id, "%s", address);
    snprintf(pci->bus_id, sizeof pci->bus_id, "0000%s", address); // eight digits, as the real one
    sscanf(address, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device);
}
} // namespace

// Work that moves these bytes between GPUs has been done. In the program and in its device process.
extern "C" void sim_link_traffic(int machine_device, uint64_t sent_bytes, uint64_t received_bytes)
{
    sim_shared()->link_bytes[0][machine_device].fetch_add(sent_bytes);
    sim_shared()->link_bytes[1][machine_device].fetch_add(received_bytes);
}

extern "C" {
int nvmlInit_v2()
{
    return (int)number_of(0, "nvml_error", PTB_NVML_SUCCESS);
}
int nvmlShutdown()
{
    return PTB_NVML_SUCCESS;
}
const char *nvmlErrorString(int result)
{
    switch (result) {
    case PTB_NVML_DRIVER_NOT_LOADED:
        return "Driver Not Loaded";
    case PTB_NVML_VERSION_MISMATCH:
        return "Driver/library version mismatch";
    case PTB_NVML_GPU_IS_LOST:
        return "GPU is lost";
    default:
        return "Unknown Error";
    }
}
int nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    return give_text(sim_machine_text(0, "driver", "simulated"), version, length);
}
int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    return (int)cudaDriverGetVersion(version);
}
int nvmlDeviceGetCount_v2(unsigned *count)
{
    *count = (unsigned)sim_machine_devices();
    return PTB_NVML_SUCCESS;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, ptb_nvml_device *device)
{
    *device = handle_of(index);
    return number_of(index, "lost", 0) ? (int)PTB_NVML_GPU_IS_LOST : (int)PTB_NVML_SUCCESS;
}
int nvmlDeviceGetUUID(ptb_nvml_device device, char *text, unsigned length)
{
    return give_text(sim_uuid_text((int)index_of(device), instance_of(device)), text, length);
}
int nvmlDeviceGetHandleByUUID(const char *uuid, ptb_nvml_device *device)
{
    for (unsigned i = 0; i < (unsigned)sim_machine_devices(); i++) {
        for (int n = -1; n < sim_instances((int)i); n++) {
            *device = handle_of(i, n);
            if (sim_uuid_text((int)i, n) == uuid)
                return PTB_NVML_SUCCESS;
        }
    }
    return 6; // not found
}
int nvmlDeviceGetName(ptb_nvml_device device, char *name, unsigned length)
{
    return give_text(sim_instance_name((int)index_of(device), instance_of(device)), name, length);
}
int nvmlDeviceGetMemoryInfo(ptb_nvml_device device, ptb_nvml_memory *memory)
{
    const unsigned long gib = number_of(index_of(device), "memory_gib", 0);
    memory->total = gib ? (unsigned long long)gib << 30 : sim_gpu_bytes();
    if (instance_of(device) >= 0)
        memory->total = sim_instance_bytes((int)index_of(device), instance_of(device));
    memory->free = memory->total;
    memory->used = 0;
    return PTB_NVML_SUCCESS;
}
int nvmlDeviceGetPciInfo_v3(ptb_nvml_device device, ptb_nvml_pci *pci)
{
    fill_pci((int)index_of(device), pci);
    return PTB_NVML_SUCCESS;
}
int nvmlDeviceGetCurrPcieLinkGeneration(ptb_nvml_device device, unsigned *generation)
{
    return give_number(device, "pcie_generation", generation);
}
int nvmlDeviceGetMaxPcieLinkGeneration(ptb_nvml_device device, unsigned *generation)
{
    return give_number(device, "pcie_generation", generation);
}
int nvmlDeviceGetCurrPcieLinkWidth(ptb_nvml_device device, unsigned *width)
{
    const int result = give_number(device, "pcie_width_now", width);
    return result == PTB_NVML_SUCCESS ? result : give_number(device, "pcie_width", width);
}
int nvmlDeviceGetMaxPcieLinkWidth(ptb_nvml_device device, unsigned *width)
{
    return give_number(device, "pcie_width", width);
}
int nvmlDeviceGetNvLinkState(ptb_nvml_device device, unsigned link, int *is_active)
{
    *is_active = has_link(device, link) && !is_dead(index_of(device), link);
    return has_link(device, link) ? (int)PTB_NVML_SUCCESS : (int)PTB_NVML_NOT_SUPPORTED;
}
int nvmlDeviceGetNvLinkVersion(ptb_nvml_device device, unsigned link, unsigned *version)
{
    return has_link(device, link) ? give_number(device, "nvlink_version", version)
                                  : (int)PTB_NVML_NOT_SUPPORTED;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(ptb_nvml_device device, unsigned link, ptb_nvml_pci *pci)
{
    const int peer = peer_of(index_of(device), link);
    if (!has_link(device, link))
        return PTB_NVML_NOT_SUPPORTED;
    memset(pci, 0, sizeof *pci); // of a switch nothing is said
    if (peer >= 0)
        fill_pci(peer, pci);
    return PTB_NVML_SUCCESS;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(ptb_nvml_device device, unsigned link, int *type)
{
    *type = sim_machine_text(index_of(device), "switch", "no") == "yes" ? PTB_NVML_PEER_SWITCH
                                                                        : PTB_NVML_PEER_GPU;
    return has_link(device, link) ? (int)PTB_NVML_SUCCESS : (int)PTB_NVML_NOT_SUPPORTED;
}
int nvmlDeviceGetFieldValues(ptb_nvml_device device, int count, ptb_nvml_field *fields)
{
    const bool counted = number_of(index_of(device), "no_counters", 0) == 0;
    for (int i = 0; i < count; i++) {
        ptb_nvml_field *f = &fields[i];
        f->result = has_link(device, f->scope) ? PTB_NVML_SUCCESS : PTB_NVML_NOT_SUPPORTED;
        f->type = 3;
        if (f->result != PTB_NVML_SUCCESS)
            continue;
        if (f->field == PTB_NVML_FIELD_DATA_TX && counted) {
            f->value.unsigned_long_long = link_kib(index_of(device), f->scope, 0);
        } else if (f->field == PTB_NVML_FIELD_DATA_RX && counted) {
            f->value.unsigned_long_long = link_kib(index_of(device), f->scope, 1);
        } else if (f->field == PTB_NVML_FIELD_SPEED) {
            f->type = 1; // as the real one: an unsigned int here
            f->value.unsigned_long_long = ~0ull;
            f->value.unsigned_int = (unsigned)number_of(index_of(device), "nvlink_mbps", 0);
        } else {
            f->result = PTB_NVML_NOT_SUPPORTED;
        }
    }
    return PTB_NVML_SUCCESS;
}
int nvmlDeviceGetMigMode(ptb_nvml_device device, unsigned *current, unsigned *pending)
{
    const std::string mig = sim_machine_text(index_of(device), "mig", "");
    *current = *pending = !mig.empty() && mig != "0";
    return mig.empty() ? (int)PTB_NVML_NOT_SUPPORTED : (int)PTB_NVML_SUCCESS;
}
int nvmlDeviceGetMaxMigDeviceCount(ptb_nvml_device, unsigned *most)
{
    *most = 7;
    return PTB_NVML_SUCCESS;
}
int nvmlDeviceGetMigDeviceHandleByIndex(ptb_nvml_device device, unsigned index, ptb_nvml_device *instance)
{
    *instance = handle_of(index_of(device), (int)index);
    return (int)index < sim_instances((int)index_of(device)) ? (int)PTB_NVML_SUCCESS : 6; // not found
}
int nvmlDeviceGetEccMode(ptb_nvml_device device, int *current, int *pending)
{
    *current = *pending = (int)number_of(index_of(device), "ecc", 1);
    return PTB_NVML_SUCCESS;
}
int nvmlDeviceGetTotalEccErrors(ptb_nvml_device device, int type, int, unsigned long long *count)
{
    *count = type == PTB_NVML_UNCORRECTED ? number_of(index_of(device), "ecc_uncorrected", 0) : 0;
    return PTB_NVML_SUCCESS;
}
int nvmlDeviceGetClockInfo(ptb_nvml_device device, int, unsigned *mhz)
{
    return give_number(device, "sm_mhz", mhz);
}
int nvmlDeviceGetMaxClockInfo(ptb_nvml_device device, int type, unsigned *mhz)
{
    return give_number(device, type == PTB_NVML_CLOCK_MEMORY ? "memory_mhz" : "sm_mhz", mhz);
}
int nvmlDeviceGetCurrentClocksEventReasons(ptb_nvml_device device, unsigned long long *reasons)
{
    *reasons = number_of(index_of(device), "throttle", 0);
    return PTB_NVML_SUCCESS;
}
int nvmlDeviceGetPowerUsage(ptb_nvml_device device, unsigned *milliwatts)
{
    return give_number(device, "power_mw", milliwatts);
}
int nvmlDeviceGetEnforcedPowerLimit(ptb_nvml_device device, unsigned *milliwatts)
{
    return give_number(device, "power_limit_mw", milliwatts);
}
int nvmlDeviceGetPersistenceMode(ptb_nvml_device device, int *is_on)
{
    *is_on = (int)number_of(index_of(device), "persistence", 1);
    return PTB_NVML_SUCCESS;
}
}
