// Finding and opening a GPU: one process a GPU. Which GPUs there are is CUDA's view, so CUDA_VISIBLE_DEVICES
// and MIG count (core/device_cuda_mig.c).
#include "core/device_cuda_internal.h"

#include "core/log.h"

#include <cuda_runtime_api.h>

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Whether there is anything of a driver: false, with what is missing, where not.
static bool has_driver(ptb_text *why)
{
#ifdef PTB_SIM
    (void)why; // the simulated machine has none to look at
    return true;
#else
    bool has_node = access("/dev/nvidiactl", F_OK) == 0;
    void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (!library) {
        const char *error = dlerror(); // tells a file that is missing from one that cannot be loaded
        ptb_text_printf(
            why,
            "the driver's library libcuda.so.1 cannot be loaded: install the NVIDIA driver, or start "
            "the container with --gpus all (%s; %s)",
            error ? error : "no reason given",
            has_node ? "/dev/nvidiactl exists" : "there is no /dev/nvidiactl either");
        return false;
    }
    dlclose(library);
    if (!has_node)
        ptb_text_append(why,
                        "there is no device node /dev/nvidiactl: no GPU, its kernel module is not loaded "
                        "(modprobe nvidia), or the container was started without --gpus");
    return has_node;
#endif
}

// What cudaGetDeviceCount said when it was not that there are GPUs.
static void explain(ptb_text *why, cudaError_t error)
{
    int driver = 0, runtime = 0;
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    const char *advice = ptb_cuda_advice((int)error);
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    if (error == cudaErrorNoDevice && driver && visible) {
        ptb_text_printf(why, "CUDA_VISIBLE_DEVICES=\"%s\" names no GPU of this machine: see nvidia-smi -L",
                        visible);
        return;
    }
#ifdef PTB_SIM
    if (error == cudaErrorNoDevice) {
        ptb_text_printf(why, "the simulated machine has none (%s)", cudaGetErrorName(error));
        return;
    }
#endif
    if (!has_driver(why))
        return;
    if (error == cudaErrorInsufficientDriver && driver)
        ptb_text_printf(why,
                        "the driver is too old: it supports CUDA %d.%d, and this program needs %d.%d. Update "
                        "the driver, or build with an older toolkit",
                        driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    else if (error == cudaErrorInsufficientDriver)
        ptb_text_append(
            why, "the driver's library libcuda.so.1 does not say which CUDA it supports: it is damaged "
                 "or not the driver's own (see ldconfig -p | grep libcuda and LD_LIBRARY_PATH); install the "
                 "NVIDIA driver again");
    else
        ptb_text_printf(why, "%s (%s): %s", cudaGetErrorString(error), cudaGetErrorName(error),
                        advice ? advice : "see whether nvidia-smi works");
}

bool ptb_cuda_usable(ptb_text *why, int *gpus)
{
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    cudaGetLastError();
    if (error == cudaSuccess && count == 0)
        error = cudaErrorNoDevice;
    if (error != cudaSuccess)
        explain(why, error);
    // Of the instances of MIG that are named, CUDA shows this process one.
    int named = ptb_cuda_instances_named();
    *gpus = error != cudaSuccess ? 0 : named > count ? named : count;
    return error == cudaSuccess;
}

static ptb_status choose(int index, int *chosen)
{
    ptb_text why = PTB_TEXT_INIT;
    int count;
    if (index < 0) {
        ptb_error("GPU %d does not exist; devices count from 0", index);
        return PTB_USAGE;
    }
    bool is_usable = ptb_cuda_usable(&why, &count);
    if (!is_usable)
        ptb_error("no GPU can be used: %s", ptb_text_string(&why));
    ptb_text_release(&why);
    if (!is_usable)
        return PTB_UNSUPPORTED;
    PTB_CUDA(cudaGetDeviceCount(&count)); // of this process alone
    *chosen = index % count;
    return PTB_OK;
}

// "GPU-8a3f..." or "MIG-8a3f..." at the end, as nvidia-smi -L writes it. CUDA's name of an instance ends in
// its size ("MIG 1g.10gb").
static void describe(const struct cudaDeviceProp *prop, int index, char identity[64], char description[128])
{
    bool is_instance = ptb_cuda_identify(prop, index, identity), says_so = strstr(prop->name, " MIG ");
    snprintf(description, 128, "%.*s, %.1f GiB, sm_%d%d%s, %.48s", says_so ? 58 : 44, prop->name,
             (double)prop->totalGlobalMem / (double)(1 << 30), prop->major, prop->minor,
             is_instance && !says_so ? ", MIG instance" : "", identity);
}

bool ptb_cuda_describe(int index, char description[128])
{
    struct cudaDeviceProp prop;
    char identity[64];
    int count = 0;
    bool is_known = index >= 0 && cudaGetDeviceCount(&count) == cudaSuccess && count > 0 &&
                    cudaGetDeviceProperties(&prop, index % count) == cudaSuccess;
    if (is_known)
        describe(&prop, index % count, identity, description);
    cudaGetLastError(); // or the next launch would report it again
    return is_known;
}

// The pool keeps what is freed until the device is closed: giving memory back and taking it again costs
// milliseconds.
static ptb_status prepare_pool(ptb_cuda_device *d)
{
    int has_pools = 0;
    PTB_CUDA(cudaDeviceGetAttribute(&has_pools, cudaDevAttrMemoryPoolsSupported, d->index));
    if (!has_pools)
        return PTB_OK;
    cudaMemPool_t pool;
    uint64_t everything = UINT64_MAX;
    PTB_CUDA(cudaDeviceGetDefaultMemPool(&pool, d->index));
    PTB_CUDA(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &everything));
    d->has_pool = true;
    return PTB_OK;
}

static ptb_status prepare(ptb_cuda_device *d)
{
    struct cudaDeviceProp prop;
    PTB_CUDA(cudaSetDevice(d->index));
    PTB_CUDA(cudaGetDeviceProperties(&prop, d->index));
    describe(&prop, d->index, d->base.identity, d->base.description);
#ifdef PTB_SIM
    d->base.simulated = true;
#endif
    d->processors = prop.multiProcessorCount;
    PTB_CUDA(cudaDeviceGetStreamPriorityRange(&d->ordinary, &d->urgent));
    PTB_TRY(prepare_pool(d));
    PTB_CUDA(cudaStreamCreateWithFlags(&d->order, cudaStreamNonBlocking));
    return PTB_OK;
}

ptb_status ptb_cuda_device_open(int index, ptb_device **device)
{
    int chosen;
    PTB_TRY(choose(index, &chosen));
    ptb_cuda_device *d = calloc(1, sizeof *d);
    if (!d) {
        ptb_error("no memory for a device");
        return PTB_NO_MEMORY;
    }
    d->index = chosen;
    d->base.sharers = 1;
    ptb_status status = prepare(d);
    if (status != PTB_OK) {
        free(d);
        return status;
    }
    ptb_ledger_init(&d->ledger, &d->base);
    *device = &d->base;
    return PTB_OK;
}

// The context that this makes is the one that opening the device would.
bool ptb_cuda_foresee(int index, char identity[64], uint64_t *bytes)
{
    struct cudaDeviceProp prop;
    size_t free_bytes = 0, total_bytes;
    int count = 0;
    bool is_known = index >= 0 && cudaGetDeviceCount(&count) == cudaSuccess && count > 0 &&
                    cudaSetDevice(index % count) == cudaSuccess &&
                    cudaGetDeviceProperties(&prop, index % count) == cudaSuccess &&
                    cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess;
    cudaGetLastError(); // whoever opens it says what is wrong
    if (!is_known)
        return false;
    ptb_cuda_identify(&prop, index % count, identity);
    *bytes = free_bytes;
    return true;
}

int ptb_cuda_index(const ptb_device *device)
{
    return ((const ptb_cuda_device *)device)->index;
}

int ptb_cuda_processors(const ptb_device *device)
{
    return ((const ptb_cuda_device *)device)->processors;
}

ptb_status ptb_cuda_use(const ptb_device *device)
{
    PTB_CUDA(cudaSetDevice(((const ptb_cuda_device *)device)->index));
    return PTB_OK;
}
