// Instances of MIG through NVML, which sees all of them.
#include "core/nvml_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void ptb_nvml_read_instances(const ptb_nvml *nvml, ptb_nvml_device device, ptb_nvml_instances *instances)
{
    unsigned most = 0;
    ptb_nvml_device handle;
    instances->count = 0;
    if (nvml->instance_most(device, &most) != PTB_NVML_SUCCESS)
        return;
    for (unsigned i = 0; i < most && instances->count < PTB_NVML_INSTANCES_MAX; i++) {
        if (nvml->instance(device, i, &handle) != PTB_NVML_SUCCESS)
            continue;
        ptb_nvml_instance *one = &instances->list[instances->count++];
        *one = (ptb_nvml_instance){.name = "unknown"};
        nvml->name(handle, one->name, sizeof one->name);
        nvml->uuid(handle, one->uuid, sizeof one->uuid);
        nvml->memory(handle, &one->memory);
    }
}

const char *ptb_nvml_instance_size(const ptb_nvml_instance *instance)
{
    static const char before[] = " MIG ";
    const char *found = strstr(instance->name, before);
    return found ? found + strlen(before) : instance->name;
}

void ptb_nvml_describe_instances(const ptb_nvml_instances *instances, ptb_text *json)
{
    ptb_text_append(json, "\"instances\": [");
    for (unsigned i = 0; i < instances->count; i++) {
        const ptb_nvml_instance *one = &instances->list[i];
        ptb_text_append(json, i ? ", {\"name\": " : "{\"name\": ");
        ptb_text_append_json(json, one->name);
        ptb_text_append(json, ", \"uuid\": ");
        ptb_text_append_json(json, one->uuid);
        ptb_text_printf(json, ", \"memory_bytes\": %llu}", one->memory.total);
    }
    ptb_text_append(json, "], ");
}

int ptb_nvml_missing_instances(const ptb_nvml *nvml, ptb_text *names)
{
    enum { LENGTH = sizeof "MIG-00000000-0000-0000-0000-000000000000" - 1 };
    const char *at = getenv("CUDA_VISIBLE_DEVICES");
    int missing = 0;
    while (at && strncmp(at, "MIG-", 4) == 0) {
        char uuid[LENGTH + 1];
        size_t length = strcspn(at, ",");
        ptb_nvml_device handle;
        snprintf(uuid, sizeof uuid, "%.*s", (int)(length < LENGTH ? length : LENGTH), at);
        if (length == LENGTH && nvml->device_by_uuid(uuid, &handle) != PTB_NVML_SUCCESS)
            ptb_text_printf(names, "%s%s", missing++ ? ", " : "", uuid);
        at += length;
        at += *at == ',';
    }
    return missing;
}

void ptb_nvml_identify_instances(const ptb_nvml *nvml, const ptb_nvml_instances *instances, bool *has_seen,
                                 ptb_text *identity)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    char uuid[PTB_NVML_TEXT], name[PTB_NVML_TEXT] = "";
    ptb_nvml_device handle;
    ptb_text_append(identity, " MIG");
    for (unsigned i = 0; i < instances->count; i++)
        ptb_text_printf(identity, " %s", ptb_nvml_instance_size(&instances->list[i]));
    if (*has_seen || !instances->count)
        return;
    *has_seen = true;
    snprintf(uuid, sizeof uuid, "%.*s", visible ? (int)strcspn(visible, ",") : 0, visible ? visible : "");
    if (!visible)
        ptb_text_printf(identity, "|sees %s", instances->list[0].name);
    else if (nvml->device_by_uuid(uuid, &handle) == PTB_NVML_SUCCESS &&
             nvml->name(handle, name, sizeof name) == PTB_NVML_SUCCESS)
        ptb_text_printf(identity, "|sees %s", name);
}
