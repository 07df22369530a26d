// Loads NVML.
#include "core/nvml_cuda.h"

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

// As the driver lays them out; equal in nvml.h of CUDA 12.4 and of driver 580.
_Static_assert(sizeof(ptb_nvml_memory) == 24 && offsetof(ptb_nvml_memory, used) == 16, "nvmlMemory_t");
_Static_assert(sizeof(ptb_nvml_pci) == 68 && offsetof(ptb_nvml_pci, domain) == 16 &&
                   offsetof(ptb_nvml_pci, device_id) == 28 && offsetof(ptb_nvml_pci, bus_id) == 36,
               "nvmlPciInfo_t");
_Static_assert(sizeof(ptb_nvml_field) == 40 && offsetof(ptb_nvml_field, scope) == 4 &&
                   offsetof(ptb_nvml_field, timestamp_us) == 8 && offsetof(ptb_nvml_field, type) == 24 &&
                   offsetof(ptb_nvml_field, result) == 28 && offsetof(ptb_nvml_field, value) == 32,
               "nvmlFieldValue_t");

static const struct {
    size_t place; // in ptb_nvml
    const char *name;
    const char *older; // name of the same function in older drivers; NULL: none
    bool is_optional;
} functions[] = {
#define RENAMED(member, name, older)                                                                         \
    {                                                                                                        \
        offsetof(ptb_nvml, member), name, older, false                                                       \
    }
#define FUNCTION(member, name) RENAMED(member, name, NULL)
    FUNCTION(init, "nvmlInit_v2"),
    FUNCTION(shutdown, "nvmlShutdown"),
    FUNCTION(error_string, "nvmlErrorString"),
    FUNCTION(driver_version, "nvmlSystemGetDriverVersion"),
    RENAMED(cuda_version, "nvmlSystemGetCudaDriverVersion_v2", "nvmlSystemGetCudaDriverVersion"),
    FUNCTION(device_count, "nvmlDeviceGetCount_v2"),
    FUNCTION(device, "nvmlDeviceGetHandleByIndex_v2"),
    FUNCTION(device_by_uuid, "nvmlDeviceGetHandleByUUID"),
    FUNCTION(name, "nvmlDeviceGetName"),
    FUNCTION(uuid, "nvmlDeviceGetUUID"),
    FUNCTION(memory, "nvmlDeviceGetMemoryInfo"),
    FUNCTION(pci, "nvmlDeviceGetPciInfo_v3"),
    FUNCTION(pcie_generation, "nvmlDeviceGetCurrPcieLinkGeneration"),
    FUNCTION(pcie_generation_max, "nvmlDeviceGetMaxPcieLinkGeneration"),
    FUNCTION(pcie_width, "nvmlDeviceGetCurrPcieLinkWidth"),
    FUNCTION(pcie_width_max, "nvmlDeviceGetMaxPcieLinkWidth"),
    FUNCTION(link_state, "nvmlDeviceGetNvLinkState"),
    FUNCTION(link_version, "nvmlDeviceGetNvLinkVersion"),
    FUNCTION(link_peer, "nvmlDeviceGetNvLinkRemotePciInfo_v2"),
    {offsetof(ptb_nvml, link_peer_type), "nvmlDeviceGetNvLinkRemoteDeviceType", NULL, true},
    FUNCTION(fields, "nvmlDeviceGetFieldValues"),
    FUNCTION(mig_mode, "nvmlDeviceGetMigMode"),
    FUNCTION(instance_most, "nvmlDeviceGetMaxMigDeviceCount"),
    FUNCTION(instance, "nvmlDeviceGetMigDeviceHandleByIndex"),
    FUNCTION(ecc_mode, "nvmlDeviceGetEccMode"),
    FUNCTION(ecc_errors, "nvmlDeviceGetTotalEccErrors"),
    FUNCTION(clock, "nvmlDeviceGetClockInfo"),
    FUNCTION(clock_max, "nvmlDeviceGetMaxClockInfo"),
    RENAMED(throttle_reasons, "nvmlDeviceGetCurrentClocksEventReasons",
            "nvmlDeviceGetCurrentClocksThrottleReasons"),
    FUNCTION(power, "nvmlDeviceGetPowerUsage"),
    FUNCTION(power_limit, "nvmlDeviceGetEnforcedPowerLimit"),
    FUNCTION(persistence, "nvmlDeviceGetPersistenceMode"),
#undef FUNCTION
#undef RENAMED
};

// Name of a function that the library lacks; NULL: all are there.
static const char *find_functions(ptb_nvml *nvml)
{
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *found = dlsym(nvml->library, functions[i].name);
        if (!found && functions[i].older)
            found = dlsym(nvml->library, functions[i].older);
        if (!found && !functions[i].is_optional)
            return functions[i].name;
        memcpy((char *)nvml + functions[i].place, &found, sizeof found); // ISO C has no cast for it
    }
    return NULL;
}

static const char *advice_for(int result)
{
    switch (result) {
    case PTB_NVML_DRIVER_NOT_LOADED:
        return "load the driver's kernel module (modprobe nvidia), and see dmesg | grep -i nvidia when it "
               "fails";
    case PTB_NVML_VERSION_MISMATCH:
        return "the driver was updated without a restart: reboot, or reload the kernel module";
    case PTB_NVML_GPU_IS_LOST:
        return "a GPU has fallen off the bus: see dmesg | grep Xid, then reset or replace it";
    case PTB_NVML_NO_PERMISSION:
        return "see who may open /dev/nvidiactl";
    default:
        return "see what nvidia-smi says";
    }
}

ptb_status ptb_nvml_open(ptb_nvml *nvml, ptb_text *why)
{
    *nvml = (ptb_nvml){.library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)};
    if (!nvml->library) {
        ptb_text_append(why,
                        "the driver's library libnvidia-ml.so.1 is not there: install the NVIDIA driver, or "
                        "start the container with --gpus all");
        return PTB_UNSUPPORTED;
    }
    const char *missing = find_functions(nvml);
    if (missing) {
        ptb_text_printf(why, "the driver's library libnvidia-ml.so.1 has no %s: update the driver", missing);
        dlclose(nvml->library);
        return PTB_UNSUPPORTED;
    }
    int result = nvml->init();
    if (result != PTB_NVML_SUCCESS) {
        ptb_text_printf(why, "NVML does not start: %s; %s", nvml->error_string(result), advice_for(result));
        dlclose(nvml->library);
        return PTB_UNSUPPORTED;
    }
    return PTB_OK;
}

void ptb_nvml_close(ptb_nvml *nvml)
{
    nvml->shutdown();
    dlclose(nvml->library);
}

bool ptb_nvml_link_field(const ptb_nvml *nvml, ptb_nvml_device device, unsigned field, unsigned link,
                         unsigned long long *value)
{
    ptb_nvml_field f = {.field = field, .scope = link};
    if (nvml->fields(device, 1, &f) != PTB_NVML_SUCCESS || f.result != PTB_NVML_SUCCESS)
        return false;
    *value = f.type == 1 ? f.value.unsigned_int : f.value.unsigned_long_long;
    return true;
}
