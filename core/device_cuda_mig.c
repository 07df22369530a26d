// Instances of MIG, parts of a GPU. A process sees one of them, whatever else there is: the first that
// CUDA_VISIBLE_DEVICES names, or the first of the machine. So each rank leaves in the variable only the one
// that is its own, before CUDA reads it, and remembers the list in a variable beside it.
#include "core/device_cuda_internal.h"

#include <cuda_runtime_api.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char VISIBLE[] = "CUDA_VISIBLE_DEVICES", NAMED[] = "PTBENCH_MIG_INSTANCES";

// How many instances begin the list; CUDA shows nothing of what follows the first.
static int count_instances(const char *list)
{
    int count = 0;
    while (list && strncmp(list, "MIG-", 4) == 0) {
        count++;
        list += strcspn(list, ",");
        list += *list == ',';
    }
    return count;
}

int ptb_cuda_instances_named(void)
{
    const char *named = getenv(NAMED);
    return count_instances(named ? named : getenv(VISIBLE));
}

void ptb_cuda_choose(int local_rank)
{
    const char *list = getenv(VISIBLE);
    int count = count_instances(list);
    if (local_rank < 0 || count < 2)
        return;
    const char *at = list;
    for (int i = 0; i < local_rank % count; i++)
        at += strcspn(at, ",") + 1;
    char *mine = strndup(at, strcspn(at, ","));
    // Where this fails, ranks see the same instance, which is refused when they open it.
    if (mine && setenv(NAMED, list, 1) == 0)
        setenv(VISIBLE, mine, 1);
    free(mine);
}

// Before CUDA 13 the runtime gives an instance the UUID of its GPU. The driver has known better since 470.
static bool ask_driver(int index, unsigned char uuid[16])
{
    int (*get)(int *device, int ordinal) = NULL;
    int (*get_uuid)(void *uuid, int device) = NULL;
    int device;
    void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    void *found = library ? dlsym(library, "cuDeviceGet") : NULL;
    memcpy(&get, &found, sizeof get); // ISO C has no cast for it
    found = library ? dlsym(library, "cuDeviceGetUuid_v2") : NULL;
    memcpy(&get_uuid, &found, sizeof get_uuid);
    bool is_known = get && get_uuid && get(&device, index) == 0 && get_uuid(uuid, device) == 0;
    if (library)
        dlclose(library);
    return is_known;
}

static void write_uuid(const char *prefix, const unsigned char uuid[16], char identity[64])
{
    int length = snprintf(identity, 64, "%s", prefix);
    for (int i = 0; i < 16; i++)
        length += snprintf(identity + length, 64 - (size_t)length, "%s%02x",
                           i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
}

bool ptb_cuda_identify(const struct cudaDeviceProp *prop, int index, char identity[64])
{
    unsigned char uuid[16];
    const char *visible = getenv(VISIBLE);
    bool is_named = visible && strncmp(visible, "MIG-", 4) == 0;
    bool is_instance = is_named || strstr(prop->name, " MIG ");
    memcpy(uuid, prop->uuid.bytes, sizeof uuid);
    if (!is_instance)
        write_uuid("GPU-", uuid, identity);
    else if (ask_driver(index, uuid))
        write_uuid("MIG-", uuid, identity);
    else if (is_named)
        snprintf(identity, 64, "%.*s", (int)strcspn(visible, ","), visible);
    else // of which the instance is not known: two ranks on one GPU are taken to have the same
        write_uuid("MIG-GPU-", uuid, identity);
    return is_instance;
}
