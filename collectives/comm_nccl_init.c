// Making and ending NCCL's communicator.
//
// A blocking communicator is made in a thread of its own while the caller waits with a time limit. NCCL's
// non-blocking communicators (ncclConfig_t.blocking = 0), which could be polled, stay so for their life, and
// then every later call is launched by a thread that NCCL starts for it (src/group.cc, ncclGroupEndInternal):
// tens of microseconds that no benchmark of latency can bear.
#include "collectives/comm_nccl.h"

#include "core/clock.h"
#include "core/device_cuda.h"
#include "core/log.h"
#include "profiler/nvtx_cuda.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

// ---- errors

static const char *advice(ncclResult_t result)
{
    switch (result) {
    case ncclUnhandledCudaError:
        return "a CUDA call inside NCCL failed; NCCL_DEBUG=WARN says which";
    case ncclSystemError:
        return "a system call or the network failed; NCCL_DEBUG=INFO shows the interfaces that NCCL chose, "
               "and "
               "NCCL_SOCKET_IFNAME and NCCL_IB_HCA choose others";
    case ncclInvalidUsage:
        return "NCCL refuses this use of it here; NCCL_DEBUG=WARN says why";
    case ncclRemoteError:
        return "another rank has failed or left; look for the first message of the other ranks";
    default:
        return "NCCL_DEBUG=WARN says more";
    }
}

// Whether the GPU is why NCCL failed; says so. NCCL takes CUDA's error away where it does not end the device,
// and leaves its text.
static ptb_status find_cause(ncclResult_t result, const char *last, ptb_text *said)
{
    if (result == ncclInvalidUsage || result == ncclInvalidArgument)
        return PTB_OK;
    ptb_status status = ptb_cuda_cause(said);
    if (status != PTB_OK || !strstr(last, "out of memory"))
        return status;
    ptb_text_append(said, "use smaller sizes or fewer ranks on this GPU, or see with nvidia-smi who else "
                          "uses its memory");
    return PTB_NO_MEMORY;
}

// A communicator that has failed cannot be used any more, and its other ranks wait in vain.
static ptb_status status_of(ncclResult_t result, ptb_status cause, bool is_made)
{
    switch (result) {
    case ncclRemoteError:
        return PTB_LOST;
    case ncclInvalidUsage:
        return PTB_UNSUPPORTED;
    case ncclInvalidArgument:
        return PTB_INTERNAL;
    default:
        return is_made ? PTB_LOST : cause != PTB_OK ? cause : PTB_SYSTEM;
    }
}

ptb_status ptb_nccl_check(ncclResult_t result, ncclComm_t nccl, const char *call, const char *file, int line)
{
    if (__builtin_expect(result == ncclSuccess, 1))
        return PTB_OK;
    const ptb_nccl_api *api = ptb_nccl_functions();
    const char *last = api->GetLastError(nccl);
    ptb_text said = PTB_TEXT_INIT;
    last = last ? last : "";
    ptb_status cause = find_cause(result, last, &said);
    ptb_error("%s failed (%s:%d): %s%s%s. %s", call, file, line, api->GetErrorString(result),
              *last ? ": " : "", last, cause != PTB_OK ? ptb_text_string(&said) : advice(result));
    ptb_text_release(&said);
    return status_of(result, cause, nccl != NULL);
}

// ---- making one

// Shared by the caller and the thread; the last of the two frees it.
typedef struct {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    atomic_int users;
    bool done;
    const ptb_nccl_api *api;
    int index, size, rank;
    ncclUniqueId id;
    ncclConfig_t config;
    char name[64];
    ncclComm_t nccl;
    ncclResult_t result;
} init_job;

static void job_leave(init_job *job)
{
    if (atomic_fetch_sub(&job->users, 1) > 1)
        return;
    pthread_cond_destroy(&job->changed);
    pthread_mutex_destroy(&job->mutex);
    free(job);
}

static void *init_thread(void *arg)
{
    init_job *job = arg;
    ncclComm_t nccl = NULL;
    ncclResult_t result = ncclUnhandledCudaError;
    if (cudaSetDevice(job->index) == cudaSuccess)
        result = job->api->CommInitRankConfig(&nccl, job->size, job->id, job->rank, &job->config);
    pthread_mutex_lock(&job->mutex);
    job->nccl = nccl;
    job->result = result;
    job->done = true;
    pthread_cond_signal(&job->changed);
    pthread_mutex_unlock(&job->mutex);
    job_leave(job);
    return NULL;
}

static init_job *job_new(const ptb_comm_nccl *c, const ncclUniqueId *id)
{
    init_job *job = calloc(1, sizeof *job);
    if (!job)
        return NULL;
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&job->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&job->mutex, NULL);
    atomic_init(&job->users, 2);
    job->api = c->api;
    job->index = c->index;
    job->size = c->comm.size;
    job->rank = c->comm.rank;
    job->id = *id;
    job->config = (ncclConfig_t)NCCL_CONFIG_INITIALIZER;
    job->config.blocking = 1;
    if (c->choice.channels)
        job->config.minCTAs = job->config.maxCTAs = c->choice.channels;
    memcpy(job->name, c->name, sizeof job->name);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
    job->config.commName = job->name;
#endif
    return job;
}

// False: the time is over.
static bool job_wait(init_job *job, double timeout_s)
{
    struct timespec end;
    int64_t end_ns = ptb_clock_ns() + (int64_t)(timeout_s * 1e9);
    end.tv_sec = end_ns / 1000000000;
    end.tv_nsec = end_ns % 1000000000;
    int code = 0;
    pthread_mutex_lock(&job->mutex);
    while (!job->done && code != ETIMEDOUT)
        code = timeout_s > 0 ? pthread_cond_timedwait(&job->changed, &job->mutex, &end)
                             : pthread_cond_wait(&job->changed, &job->mutex);
    bool done = job->done;
    pthread_mutex_unlock(&job->mutex);
    return done;
}

static ptb_status run_job(ptb_comm_nccl *c, init_job *job)
{
    pthread_t thread;
    int code = pthread_create(&thread, NULL, init_thread, job);
    if (code != 0) {
        ptb_error("a thread to make NCCL's communicator cannot be started: %s", strerror(code));
        job_leave(job);
        job_leave(job);
        return PTB_SYSTEM;
    }
    pthread_detach(thread);
    ptb_status status = PTB_OK;
    if (job_wait(job, c->timeout_s)) {
        status = ptb_nccl_check(job->result, NULL, "ncclCommInitRankConfig", __FILE__, __LINE__);
        c->nccl = status == PTB_OK ? job->nccl : NULL;
    } else { // nothing ends a blocking ncclCommInitRankConfig; the thread stays until the program ends
        ptb_text missing = PTB_TEXT_INIT;
        if (!ptb_account_explain(c->account, false, &missing))
            ptb_text_append(&missing, "a rank did not come, or the ranks cannot reach each other");
        ptb_error(
            "rank %d of %d: NCCL's communicator was not made within %g s: %s (NCCL_DEBUG=INFO shows the "
            "interfaces that NCCL chose)",
            c->comm.rank, c->comm.size, c->timeout_s, ptb_text_string(&missing));
        ptb_text_release(&missing);
        status = PTB_LOST;
    }
    job_leave(job);
    return status;
}

// ---- what is checked before

// A GPU that is lost already would leave the others to wait in ncclCommInitRankConfig.
static ptb_status check_own_gpu(void)
{
    ptb_text said = PTB_TEXT_INIT;
    ptb_status status = ptb_cuda_cause(&said);
    if (status == PTB_LOST)
        ptb_error("NCCL's communicator cannot be made: %s", ptb_text_string(&said));
    ptb_text_release(&said);
    return status == PTB_LOST ? status : PTB_OK;
}

// Which GPU each rank has. all: [size], heap, the caller's also when it fails.
static ptb_status find_gpus(ptb_comm_nccl *c, ptb_gpu_place **all)
{
    struct cudaDeviceProp prop;
    ptb_gpu_place mine = {.domain = 0};
    *all = calloc((size_t)c->comm.size, sizeof **all);
    ptb_status status = *all ? PTB_NCCL_CUDA(cudaGetDevice(&c->index)) : PTB_NO_MEMORY;
    if (status == PTB_OK)
        status = check_own_gpu();
    if (status == PTB_OK)
        status = PTB_NCCL_CUDA(cudaGetDeviceProperties(&prop, c->index));
    if (status == PTB_OK) {
        mine.domain = prop.pciDomainID;
        mine.bus = prop.pciBusID;
        mine.device = prop.pciDeviceID;
    }
    PTB_TRY(ptb_world_agree(c->comm.world, status));
    return ptb_world_all_gather(c->comm.world, &mine, sizeof mine, *all);
}

// Two ranks on one GPU, be it in two instances of MIG (NCCL takes a GPU for what is at one place on the bus):
// NCCL before 2.30 refuses them, and its message does not reach the user by itself.
static ptb_status check_gpus(const ptb_comm_nccl *c, const ptb_gpu_place *all)
{
    const ptb_world *world = c->comm.world;
    const char *allowed = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    const ptb_gpu_place unknown = {.domain = 0};
    if (c->version >= 23000 && allowed && strcmp(allowed, "1") == 0)
        return PTB_OK;
    for (int r = 0; r < world->size; r++)
        for (int q = r + 1; q < world->size; q++)
            if (world->host_of[r] == world->host_of[q] && memcmp(&all[r], &all[q], sizeof unknown) == 0 &&
                memcmp(&all[r], &unknown, sizeof unknown) != 0) {
                if (world->rank == 0)
                    ptb_error(
                        "ranks %d and %d are on one GPU (bus %04x:%02x:%02x), which NCCL does not take, nor "
                        "in two instances of MIG: start at most as many ranks on a host as it has GPUs "
                        "(NCCL from 2.30 on allows it with NCCL_MULTI_RANK_GPU_ENABLE=1, instances from "
                        "2.31 on; this is %d.%d.%d)",
                        r, q, (unsigned)all[r].domain, (unsigned)all[r].bus, (unsigned)all[r].device,
                        c->version / 10000, c->version / 100 % 100, c->version % 100);
                return PTB_UNSUPPORTED;
            }
    return PTB_OK;
}

// NCCL's id and the roll's key of the new communicator.
static ptb_status share_id(const ptb_comm_nccl *c, ncclUniqueId *id, uint64_t *key)
{
    struct {
        int result;
        uint64_t key;
        ncclUniqueId id;
    } shared = {.result = ncclSuccess};
    if (c->comm.rank == 0)
        shared.result = c->api->GetUniqueId(&shared.id);
    if (c->comm.rank == 0 && c->comm.world->roll)
        shared.key = ptb_roll_key(c->comm.world->roll);
    PTB_TRY(ptb_world_broadcast(c->comm.world, 0, &shared, sizeof shared));
    if (shared.result != ncclSuccess && c->comm.rank != 0)
        return PTB_SYSTEM; // rank 0 says why
    *id = shared.id;
    *key = shared.key;
    return ptb_nccl_check((ncclResult_t)shared.result, NULL, "ncclGetUniqueId", __FILE__, __LINE__);
}

// One process of a host says what the host lacks, for all of them.
static ptb_status load(ptb_comm_nccl *c)
{
    ptb_text why = PTB_TEXT_INIT;
    ptb_status status = ptb_nccl_load(&why);
    if (status == PTB_OK) {
        c->api = ptb_nccl_functions();
        status = PTB_NCCL(c, NULL, GetVersion, &c->version);
    } else if (c->comm.world->local_rank == 0) {
        ptb_error("%s", ptb_text_string(&why));
    }
    if (status == PTB_OK && c->version < PTB_NCCL_OLDEST) {
        if (c->comm.world->local_rank == 0)
            ptb_error("NCCL %d.%d.%d (%s) is too old: 2.19 or later is needed; put a newer one first on "
                      "LD_LIBRARY_PATH",
                      c->version / 10000, c->version / 100 % 100, c->version % 100, ptb_nccl_path());
        status = PTB_UNSUPPORTED;
    }
    ptb_text_release(&why);
    return status;
}

ptb_status ptb_nccl_start(ptb_comm_nccl *c)
{
    return ptb_world_agree(c->comm.world, load(c));
}

static ptb_status make(ptb_comm_nccl *c, const ncclUniqueId *id)
{
    init_job *job = job_new(c, id);
    PTB_TRY(ptb_world_agree(c->comm.world, job ? PTB_OK : PTB_NO_MEMORY));
    ptb_cuda_trim(c->index);
    ptb_nccl_environment_enter(&c->choice, c->version);
    ptb_status status = run_job(c, job);
    ptb_nccl_environment_leave(&c->choice);
    return status;
}

ptb_status ptb_nccl_init(ptb_comm_nccl *c, const ptb_comm_config *config)
{
    static atomic_uint made; // so that each communicator has a name of its own
    ncclUniqueId id;
    ptb_gpu_place *gpus = NULL;
    uint64_t key;
    ptb_status status = find_gpus(c, &gpus);
    if (status == PTB_OK)
        status = check_gpus(c, gpus);
    if (status == PTB_OK)
        status = ptb_world_agree(c->comm.world, ptb_nccl_gpu_direct(config->gpu_direct));
    c->profiler_is_ours = ptb_nccl_profiler_request();
    snprintf(c->name, sizeof c->name, "ptbench-%d-%u", (int)getpid(), atomic_fetch_add(&made, 1));
    if (status == PTB_OK)
        status = share_id(c, &id, &key);
    if (status == PTB_OK)
        status = ptb_world_agree(c->comm.world, ptb_nccl_join_roll(c, key, gpus));
    free(gpus);
    if (status != PTB_OK)
        return status;
    uint64_t making = ptb_nccl_profiler_making();
    status = make(c, &id);
    ptb_nccl_watched *watched = ptb_nccl_profiler_made(making, status == PTB_OK ? c->name : NULL);
    c->watched = c->profiler_is_ours ? watched : NULL;
    c->annotating = ptb_nvtx_is_heard();
    return status;
}

// ---- ending one

void ptb_nccl_abort(ptb_comm_nccl *c)
{
    pthread_mutex_lock(&c->lock);
    ncclComm_t nccl = atomic_exchange(&c->nccl, NULL);
    c->watched = NULL;
    if (nccl)
        c->api->CommAbort(nccl);
    pthread_mutex_unlock(&c->lock);
}

void ptb_nccl_finish(ptb_comm_nccl *c)
{
    ncclResult_t state = ncclSuccess;
    ptb_roll_leave(c->account); // from here on nobody else aborts it
    if (!c->nccl)
        return;
    if (c->api->CommGetAsyncError(c->nccl, &state) != ncclSuccess || state != ncclSuccess) {
        ptb_nccl_abort(c);
        return;
    }
    ncclComm_t nccl = c->nccl;
    c->nccl = NULL;
    c->watched = NULL;
    if (PTB_NCCL(c, nccl, CommFinalize, nccl) == PTB_OK)
        PTB_NCCL(c, NULL, CommDestroy, nccl);
    else // the other ranks wait for this one
        c->api->CommAbort(nccl);
}
