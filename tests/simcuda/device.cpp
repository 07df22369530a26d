// What the simulated device says of itself.
#include "tests/simcuda/fibers.hpp"
#include "tests/simcuda/runtime.hpp"

#include <stdio.h>
#include <string.h>
#include <strings.h>

cudaError_t cudaGetDeviceCount(int *count)
{
    if (!count)
        return sim_give(cudaErrorInvalidValue);
    *count = 0;
    const long refused = sim_option("no_gpu");
    if (refused > 0)
        return sim_give((cudaError_t)refused);
    while (sim_visible_device(*count) >= 0)
        ++*count;
    return sim_give(*count ? cudaSuccess : cudaErrorNoDevice);
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    const long supported = sim_option("driver");
    *version = supported >= 0 ? (int)supported : CUDART_VERSION;
    return cudaSuccess;
}

static bool is_device(int device)
{
    return device >= 0 && sim_visible_device(device) >= 0;
}

// The numbers of an H200, as far as kernels choose their shapes by them; two multiprocessors, since what runs
// at the same time here are two cores.
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *of, int device)
{
    if (!of || !is_device(device))
        return sim_give(of ? cudaErrorInvalidDevice : cudaErrorInvalidValue);
    const sim_shown shown = sim_visible(device);
    char bus[16];
    unsigned domain = 0, number = 0, slot = 0;
    memset(of, 0, sizeof *of);
    snprintf(of->name, sizeof of->name, "simulated GPU");
    sim_uuid(shown.gpu, (unsigned char *)of->uuid.bytes);
    if (shown.instance >= 0) {
        snprintf(of->name, sizeof of->name, "%s", sim_instance_name(shown.gpu, shown.instance).c_str());
        of->uuid.bytes[14] = CUDART_VERSION >= 13000 ? (char)(shown.instance + 1) : 0;
    }
    sim_pci_bus_id(shown.gpu, bus);
    sscanf(bus, "%x:%x:%x", &domain, &number, &slot);
    of->pciDomainID = (int)domain;
    of->pciBusID = (int)number;
    of->pciDeviceID = (int)slot;
    of->totalGlobalMem = (size_t)sim_visible_bytes(device);
    of->major = 9;
    of->multiProcessorCount = shown.instance >= 0 ? 1 : 2;
    of->warpSize = SIM_WARP;
    of->maxThreadsPerBlock = SIM_BLOCK_THREADS;
    of->maxThreadsDim[0] = of->maxThreadsDim[1] = SIM_BLOCK_THREADS;
    of->maxThreadsDim[2] = 64;
    of->maxGridSize[0] = 0x7fffffff;
    of->maxGridSize[1] = of->maxGridSize[2] = 65535;
    of->maxThreadsPerMultiProcessor = 2048;
    of->maxBlocksPerMultiProcessor = 32;
    of->regsPerBlock = of->regsPerMultiprocessor = 65536;
    of->sharedMemPerBlock = 49152;
    of->sharedMemPerBlockOptin = 232448;
    of->sharedMemPerMultiprocessor = 233472;
    of->reservedSharedMemPerBlock = 1024;
    of->l2CacheSize = 50 << 20;
    of->memoryBusWidth = 5120;
    of->concurrentKernels = 1;
    of->asyncEngineCount = 3;
    of->unifiedAddressing = 1;
    of->canMapHostMemory = 1;
    of->memoryPoolsSupported = 1;
    of->streamPrioritiesSupported = 1;
    return cudaSuccess;
}

// Of the driver's own library, which tells instances of MIG apart whatever the runtime's version.
extern "C" int cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return is_device(ordinal) ? 0 : cudaErrorInvalidDevice;
}

extern "C" int cuDeviceGetUuid_v2(void *uuid, int device)
{
    if (!is_device(device))
        return cudaErrorInvalidDevice;
    const sim_shown shown = sim_visible(device);
    sim_uuid(shown.gpu, (unsigned char *)uuid);
    ((unsigned char *)uuid)[14] = (unsigned char)(shown.instance + 1);
    return 0;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device)
{
    cudaDeviceProp of;
    const cudaError_t error = cudaGetDeviceProperties(&of, device);
    if (error)
        return error;
    const struct {
        cudaDeviceAttr attribute;
        int value;
    } known[] = {
        {cudaDevAttrMaxThreadsPerBlock, of.maxThreadsPerBlock},
        {cudaDevAttrMaxGridDimX, of.maxGridSize[0]},
        {cudaDevAttrMaxGridDimY, of.maxGridSize[1]},
        {cudaDevAttrMaxGridDimZ, of.maxGridSize[2]},
        {cudaDevAttrMaxSharedMemoryPerBlock, (int)of.sharedMemPerBlock},
        {cudaDevAttrMaxSharedMemoryPerBlockOptin, (int)of.sharedMemPerBlockOptin},
        {cudaDevAttrMaxSharedMemoryPerMultiprocessor, (int)of.sharedMemPerMultiprocessor},
        {cudaDevAttrReservedSharedMemoryPerBlock, (int)of.reservedSharedMemPerBlock},
        {cudaDevAttrWarpSize, of.warpSize},
        {cudaDevAttrMaxRegistersPerBlock, of.regsPerBlock},
        {cudaDevAttrMultiProcessorCount, of.multiProcessorCount},
        {cudaDevAttrMaxThreadsPerMultiProcessor, of.maxThreadsPerMultiProcessor},
        {cudaDevAttrMaxBlocksPerMultiprocessor, of.maxBlocksPerMultiProcessor},
        {cudaDevAttrConcurrentKernels, of.concurrentKernels},
        {cudaDevAttrAsyncEngineCount, of.asyncEngineCount},
        {cudaDevAttrUnifiedAddressing, of.unifiedAddressing},
        {cudaDevAttrL2CacheSize, of.l2CacheSize},
        {cudaDevAttrGlobalMemoryBusWidth, of.memoryBusWidth},
        {cudaDevAttrMemoryClockRate, 3201000},
        {cudaDevAttrClockRate, 1980000},
        {cudaDevAttrPciDomainId, of.pciDomainID},
        {cudaDevAttrPciBusId, of.pciBusID},
        {cudaDevAttrPciDeviceId, of.pciDeviceID},
        {cudaDevAttrComputeCapabilityMajor, of.major},
        {cudaDevAttrComputeCapabilityMinor, of.minor},
        {cudaDevAttrStreamPrioritiesSupported, 1},
        {cudaDevAttrMemoryPoolsSupported, 1},
        {cudaDevAttrIntegrated, 0},
        {cudaDevAttrEccEnabled, 1},
        {cudaDevAttrManagedMemory, 0},
        {cudaDevAttrPageableMemoryAccess, 0},
        {cudaDevAttrCooperativeLaunch, 0},
        {cudaDevAttrGPUDirectRDMASupported, 0},
    };
    for (const auto &row : known)
        if (row.attribute == attribute) {
            *value = row.value;
            return cudaSuccess;
        }
    fprintf(stderr, "simulated device: attribute %d is not known to it\n", (int)attribute);
    return sim_give(cudaErrorInvalidValue);
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int bytes, int device)
{
    char bus[16];
    if (!text || !is_device(device))
        return sim_give(text ? cudaErrorInvalidDevice : cudaErrorInvalidValue);
    sim_pci_bus_id(sim_visible_device(device), bus);
    if (bytes <= (int)strlen(bus))
        return sim_give(cudaErrorInvalidValue);
    snprintf(text, (size_t)bytes, "%s", bus);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetByPCIBusId(int *device, const char *text)
{
    for (int i = 0; device && text && is_device(i); i++) {
        char bus[16];
        sim_pci_bus_id(sim_visible_device(i), bus);
        if (!strcasecmp(bus, text)) {
            *device = i;
            return cudaSuccess;
        }
    }
    return sim_give(cudaErrorInvalidValue);
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    if (!can || !is_device(device) || !is_device(peer))
        return sim_give(can ? cudaErrorInvalidDevice : cudaErrorInvalidValue);
    *can = device != peer; // nothing else is shown beside an instance of MIG
    return cudaSuccess;
}

static uint64_t peers[64]; // bit p of [d]: device d reaches device p

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    SIM_BEGIN();
    const int device = sim_current_device();
    if (!is_device(peer) || peer == device || flags)
        return sim_give(flags ? cudaErrorInvalidValue : cudaErrorInvalidDevice);
    if (__atomic_fetch_or(&peers[device], (uint64_t)1 << peer, __ATOMIC_RELAXED) >> peer & 1)
        return sim_give(cudaErrorPeerAccessAlreadyEnabled);
    return cudaSuccess;
}

cudaError_t cudaDeviceDisablePeerAccess(int peer)
{
    SIM_BEGIN();
    if (!is_device(peer))
        return sim_give(cudaErrorInvalidDevice);
    const uint64_t bit = (uint64_t)1 << peer;
    if (!(__atomic_fetch_and(&peers[sim_current_device()], ~bit, __ATOMIC_RELAXED) & bit))
        return sim_give(cudaErrorPeerAccessNotEnabled);
    return cudaSuccess;
}
