// The few functions of NVML, the driver's management library, that are used here. It is loaded at run time:
// it comes with the driver, and the toolkit may have no header for it. Declared by us after nvml.h of driver
// 580 (go-nvml's copy); all of it has been stable since driver 450, except where NULL is named.
#ifndef PTB_CORE_NVML_CUDA_H
#define PTB_CORE_NVML_CUDA_H

#include "core/status.h"
#include "core/text.h"

typedef struct nvmlDevice_st *ptb_nvml_device;

enum {
    PTB_NVML_SUCCESS = 0,
    PTB_NVML_NOT_SUPPORTED = 3,
    PTB_NVML_NO_PERMISSION = 4,
    PTB_NVML_DRIVER_NOT_LOADED = 9,
    PTB_NVML_GPU_IS_LOST = 15,
    PTB_NVML_VERSION_MISMATCH = 18,
    PTB_NVML_TEXT = 96,           // bytes of a name, of a UUID (NVML_DEVICE_NAME_V2_BUFFER_SIZE)
    PTB_NVML_INSTANCES_MAX = 16,  // of MIG, of one GPU; NVIDIA's have at most 8
    PTB_NVML_LINKS_MAX = 36,      // NVML_NVLINK_MAX_LINKS
    PTB_NVML_PEER_GPU = 0,        // nvmlIntNvLinkDeviceType_t
    PTB_NVML_PEER_SWITCH = 2,     //
    PTB_NVML_CLOCK_SM = 1,        // nvmlClockType_t
    PTB_NVML_CLOCK_MEMORY = 2,    //
    PTB_NVML_UNCORRECTED = 1,     // nvmlMemoryErrorType_t
    PTB_NVML_VOLATILE = 0,        // nvmlEccCounterType_t: since the driver was loaded
    PTB_NVML_FIELD_DATA_TX = 138, // of a link, KiB of payload
    PTB_NVML_FIELD_DATA_RX = 139,
    PTB_NVML_FIELD_SPEED = 164, // of a link, MB/s in one direction
};

typedef struct {
    unsigned long long total, free, used;
} ptb_nvml_memory;

typedef struct {
    char legacy_bus_id[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32]; // "00000000:1A:00.0"
} ptb_nvml_pci;

typedef struct {
    unsigned field, scope; // scope: the link
    long long timestamp_us, latency_us;
    int type;   // nvmlValueType_t: 1 unsigned int, 2 unsigned long, 3 unsigned long long
    int result; // of this field
    union {
        double real;
        int signed_int;
        unsigned unsigned_int;
        unsigned long unsigned_long;
        unsigned long long unsigned_long_long;
    } value;
} ptb_nvml_field;

// Functions return an NVML_ code: 0 is success.
typedef struct {
    void *library;
    int (*init)(void);
    int (*shutdown)(void);
    const char *(*error_string)(int result);
    int (*driver_version)(char *version, unsigned length);
    int (*cuda_version)(int *version);
    int (*device_count)(unsigned *count);
    int (*device)(unsigned index, ptb_nvml_device *device);
    int (*device_by_uuid)(const char *uuid, ptb_nvml_device *device);
    int (*name)(ptb_nvml_device device, char *name, unsigned length);
    int (*uuid)(ptb_nvml_device device, char *uuid, unsigned length);
    int (*memory)(ptb_nvml_device device, ptb_nvml_memory *memory);
    int (*pci)(ptb_nvml_device device, ptb_nvml_pci *pci);
    int (*pcie_generation)(ptb_nvml_device device, unsigned *generation);     // as it is now
    int (*pcie_generation_max)(ptb_nvml_device device, unsigned *generation); // of GPU and slot
    int (*pcie_width)(ptb_nvml_device device, unsigned *width);
    int (*pcie_width_max)(ptb_nvml_device device, unsigned *width);
    int (*link_state)(ptb_nvml_device device, unsigned link, int *is_active);
    int (*link_version)(ptb_nvml_device device, unsigned link, unsigned *version);
    int (*link_peer)(ptb_nvml_device device, unsigned link, ptb_nvml_pci *peer);
    int (*link_peer_type)(ptb_nvml_device device, unsigned link, int *type); // may be NULL
    int (*fields)(ptb_nvml_device device, int count, ptb_nvml_field *fields);
    int (*mig_mode)(ptb_nvml_device device, unsigned *current, unsigned *pending);
    // Instances have numbers below `most`, not all of which need to be taken; their handles are good for
    // name, UUID and memory.
    int (*instance_most)(ptb_nvml_device device, unsigned *most);
    int (*instance)(ptb_nvml_device device, unsigned index, ptb_nvml_device *instance);
    int (*ecc_mode)(ptb_nvml_device device, int *current, int *pending);
    int (*ecc_errors)(ptb_nvml_device device, int type, int counter, unsigned long long *count);
    int (*clock)(ptb_nvml_device device, int type, unsigned *mhz);
    int (*clock_max)(ptb_nvml_device device, int type, unsigned *mhz);
    int (*throttle_reasons)(ptb_nvml_device device, unsigned long long *reasons);
    int (*power)(ptb_nvml_device device, unsigned *milliwatts);
    int (*power_limit)(ptb_nvml_device device, unsigned *milliwatts);
    int (*persistence)(ptb_nvml_device device, int *is_on);
} ptb_nvml;

// UNSUPPORTED with the reason and what to do in `why`; nothing is logged.
ptb_status ptb_nvml_open(ptb_nvml *nvml, ptb_text *why);
void ptb_nvml_close(ptb_nvml *nvml);
// The value of a field of a link as a number; false when it cannot be had.
bool ptb_nvml_link_field(const ptb_nvml *nvml, ptb_nvml_device device, unsigned field, unsigned link,
                         unsigned long long *value);

// ---- instances of MIG (core/nvml_instances_cuda.c)

typedef struct {
    char name[PTB_NVML_TEXT], uuid[PTB_NVML_TEXT];
    ptb_nvml_memory memory;
} ptb_nvml_instance;
typedef struct {
    ptb_nvml_instance list[PTB_NVML_INSTANCES_MAX];
    unsigned count;
} ptb_nvml_instances;

// Those of a GPU on which MIG is on.
void ptb_nvml_read_instances(const ptb_nvml *nvml, ptb_nvml_device device, ptb_nvml_instances *instances);
// "1g.10gb"
const char *ptb_nvml_instance_size(const ptb_nvml_instance *instance);
// "instances": [...], with ", " at the end.
void ptb_nvml_describe_instances(const ptb_nvml_instances *instances, ptb_text *json);
// Those of CUDA_VISIBLE_DEVICES that NVML does not know: how many, and their names. Of names in short forms
// it cannot be told.
int ptb_nvml_missing_instances(const ptb_nvml *nvml, ptb_text *names);
// How the GPU is cut, and which kind of instance this process sees: to one and the same *has_seen of all
// GPUs, false at first.
void ptb_nvml_identify_instances(const ptb_nvml *nvml, const ptb_nvml_instances *instances, bool *has_seen,
                                 ptb_text *identity);

#endif
