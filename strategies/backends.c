// See backends.h. A back-end says in its descriptor which device it is made for, so nothing here knows any.
#include "strategies/backends.h"

#include "core/log.h"

#include <string.h>

ptb_status ptb_backends_device(const char *device)
{
    bool is_known = ptb_registry_find(PTB_KIND_DEVICE, device);
    if (!is_known && ptb_registry_count(PTB_KIND_DEVICE) == 1)
        ptb_error("--device %s: this ptbench was built with the device %s alone; configure it with "
                  "-DPTB_GPU=cuda for GPUs",
                  device, ptb_registry_at(PTB_KIND_DEVICE, 0)->name);
    else if (!is_known)
        (void)ptb_registry_need(PTB_KIND_DEVICE, device); // says which there are
    return is_known ? PTB_OK : PTB_USAGE;
}

ptb_status ptb_backends_check_graphs(const char *device)
{
    const ptb_device_ops *ops = (const ptb_device_ops *)ptb_registry_find(PTB_KIND_DEVICE, device);
    if (ops->graph_begin)
        return PTB_OK;
    ptb_error("--graph: --device %s has no graphs; they need a GPU", device);
    return PTB_USAGE;
}

static const char *device_of(const ptb_kernels *kernels)
{
    return kernels->device ? kernels->device : "host";
}

ptb_status ptb_backends_kernels(const char *device, const char *name, const ptb_kernels **kernels)
{
    const ptb_kernels *found = NULL;
    if (name && *name) {
        found = (const ptb_kernels *)ptb_registry_need(PTB_KIND_KERNELS, name);
        if (!found)
            return PTB_USAGE;
    }
    for (size_t i = 0; !found && i < ptb_registry_count(PTB_KIND_KERNELS); i++) {
        const ptb_kernels *one = (const ptb_kernels *)ptb_registry_at(PTB_KIND_KERNELS, i);
        found = strcmp(device_of(one), device) == 0 ? one : NULL;
    }
    if (!found) {
        ptb_error("--device %s: this ptbench has no kernels that compute there", device);
        return PTB_USAGE;
    }
    if (strcmp(device_of(found), device) != 0) {
        ptb_error("--kernels %s computes on --device %s, not on --device %s; leave --kernels out to get the "
                  "device's own",
                  name, device_of(found), device);
        return PTB_USAGE;
    }
    *kernels = found;
    return PTB_OK;
}

const char *ptb_backends_comm_device(const char *comm)
{
    const ptb_comm_ops *ops = (const ptb_comm_ops *)ptb_registry_find(PTB_KIND_COMM, comm);
    return ops ? ptb_comm_device(ops) : "host";
}

ptb_status ptb_backends_comm(const char *device, const char **name)
{
    const ptb_plugin *found = ptb_registry_find(PTB_KIND_COMM, device);
    for (size_t i = 0; !found && i < ptb_registry_count(PTB_KIND_COMM); i++) {
        const ptb_plugin *one = ptb_registry_at(PTB_KIND_COMM, i);
        found = strcmp(ptb_backends_comm_device(one->name), device) == 0 ? one : NULL;
    }
    if (!found) {
        ptb_error("--device %s: this ptbench has no communicator for its memory", device);
        return PTB_USAGE;
    }
    *name = found->name;
    return ptb_backends_check_comm(device, found->name);
}

ptb_status ptb_backends_check_comm(const char *device, const char *comm)
{
    const ptb_comm_ops *ops = (const ptb_comm_ops *)ptb_registry_find(PTB_KIND_COMM, comm);
    char reason[PTB_REASON_BYTES] = "";
    if (ptb_comm_moves(ops, device, reason))
        return PTB_OK;
    ptb_error("--comm %s with --device %s: %s; leave --comm out to get the device's own", comm, device,
              reason);
    return PTB_USAGE;
}
