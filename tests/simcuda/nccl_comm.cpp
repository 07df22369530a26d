// Communicators of the simulated NCCL: joining, errors, memory, ending.
#include "tests/simcuda/nccl.hpp"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

namespace {
std::mutex error_lock;
std::string process_error;  // the last one without a communicator, of whatever thread, as in the real one
std::atomic<bool> may_join; // though it is late
std::atomic<int> made;

void pause_ms(long ms)
{
    const struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

// "NAME=A-B" or "NAME=A:B" in PTB_SIM.
bool pair_option(const char *name, char between, int out[2])
{
    const std::string all = std::string(",") + (getenv("PTB_SIM") ? getenv("PTB_SIM") : "");
    const size_t at = all.find(std::string(",") + name + "=");
    if (at == std::string::npos)
        return false;
    char *end;
    const char *text = all.c_str() + at + strlen(name) + 2;
    out[0] = (int)strtol(text, &end, 10);
    if (end == text || *end != between)
        return false;
    out[1] = (int)strtol(end + 1, NULL, 10);
    return true;
}

// Runs work in the device process and waits for it.
cudaError_t run_now(sim_work_fn *work, const void *args, size_t bytes)
{
    cudaStream_t stream;
    const sim_activity quiet = {SIM_QUIET, "nccl", 0, 0, {0, 0, 0}, {0, 0, 0}, 0};
    cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (error)
        return error;
    error = sim_enqueue(stream, work, args, bytes, &quiet);
    if (!error)
        error = cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
    return error;
}

cudaError_t attach(ncclComm *comm)
{
    sim_nccl_attach set = {};
    int slow[2] = {-1, -1};
    snprintf(set.name, sizeof set.name, "%s", comm->id.c_str());
    set.rank = comm->rank;
    set.ranks = comm->ranks;
    set.error_at = sim_option("ncclerr");
    set.hang_at = sim_option("nccl_hang");
    set.dead[0] = set.dead[1] = -1;
    pair_option("dead_link", '-', set.dead);
    set.gpu = sim_visible_device(comm->device);
    set.rail_moved[0] = set.rail_moved[1] = -1;
    pair_option("wrong_rail", ':', set.rail_moved);
    set.slow_us = pair_option("slow_rank", ':', slow) && slow[0] == comm->rank ? slow[1] : -1;
    const cudaError_t error = run_now(sim_nccl_work_attach, &set, sizeof set);
    comm->side = comm->shared->rank[comm->rank].side.load();
    return error;
}

ncclResult_t check_config(const ncclConfig_t *config)
{
    if (config->magic != 0xcafebeef)
        return sim_nccl_refuse(NULL, ncclInvalidArgument,
                               "ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER");
    if (config->blocking == 0)
        return sim_nccl_refuse(NULL, ncclInvalidUsage, "non-blocking communicators are not simulated");
    if (config->minCTAs != NCCL_CONFIG_UNDEF_INT && config->minCTAs > config->maxCTAs)
        return sim_nccl_refuse(NULL, ncclInvalidArgument, "minCTAs is more than maxCTAs");
    return ncclSuccess;
}

// Two ranks at one place on the bus, instances of MIG or not: from 2.30 on that can be allowed.
ncclResult_t check_gpus(const ncclComm *comm)
{
    const sim_nccl_shared *s = comm->shared;
    const char *allowed = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    if (allowed && *allowed == '1' && sim_nccl_version() >= NCCL_VERSION(2, 30, 0))
        return ncclSuccess;
    for (int r = 0; r < comm->ranks; r++)
        if (r != comm->rank && s->rank[r].host.load() == s->rank[comm->rank].host.load() &&
            s->rank[r].gpu.load() == s->rank[comm->rank].gpu.load())
            return sim_nccl_refuse(NULL, ncclInvalidUsage,
                                   "ranks " + std::to_string(comm->rank) + " and " + std::to_string(r) +
                                       " have the same GPU");
    return ncclSuccess;
}

ncclResult_t join(ncclComm *comm)
{
    sim_nccl_shared *s = comm->shared;
    int none = 0;
    s->ranks.compare_exchange_strong(none, comm->ranks);
    if (s->ranks.load() != comm->ranks)
        return sim_nccl_refuse(NULL, ncclInvalidArgument, "ranks differ in the number of ranks");
    int fresh = 0;
    if (!s->rank[comm->rank].joined.compare_exchange_strong(fresh, 1))
        return sim_nccl_refuse(NULL, ncclInvalidArgument, "two ranks have the same number");
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    s->rank[comm->rank].host.store(std::hash<std::string>()(host));
    s->rank[comm->rank].gpu.store(sim_visible_device(comm->device));
    const ncclResult_t attached = sim_nccl_check_cuda(NULL, attach(comm));
    if (attached != ncclSuccess)
        return attached;
    s->joined.fetch_add(1);
    while (s->joined.load() < comm->ranks)
        pause_ms(1);
    if (comm->rank == 0)
        shm_unlink(comm->id.c_str());
    return check_gpus(comm);
}

ncclResult_t make(ncclComm *comm, const ncclConfig_t *config)
{
    std::string why;
    if (!sim_nccl_read_choice(&comm->choice, &why))
        return sim_nccl_refuse(NULL, ncclInvalidUsage, why);
    cudaGetDevice(&comm->device);
    comm->channels_min = config->minCTAs == NCCL_CONFIG_UNDEF_INT ? 1 : config->minCTAs;
    comm->channels_max = config->maxCTAs == NCCL_CONFIG_UNDEF_INT ? 32 : config->maxCTAs;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
    if (sim_nccl_version() >= NCCL_VERSION(2, 27, 0))
        comm->name = config->commName ? config->commName : "";
#endif
    while (sim_option("late_rank") == comm->rank && !may_join.load())
        pause_ms(1);
    comm->shared = sim_nccl_map(comm->id.c_str(), comm->ranks);
    if (!comm->shared)
        return sim_nccl_refuse(NULL, ncclSystemError, std::string("shared memory: ") + strerror(errno));
    const ncclResult_t result =
        sim_nccl_check_cuda(NULL, cudaEventCreateWithFlags(&comm->order, cudaEventDisableTiming));
    return result == ncclSuccess ? join(comm) : result;
}

bool somebody_left(const ncclComm *comm)
{
    for (int r = 0; r < comm->ranks; r++)
        if (comm->shared->rank[r].aborted.load())
            return true;
    return false;
}

void unmake(ncclComm *comm)
{
    const sim_nccl_detach detach = {comm->side};
    if (comm->side)
        run_now(sim_nccl_work_detach, &detach, sizeof detach);
    if (comm->profiler)
        sim_nccl_profiler_finalize(comm);
    for (void *list : comm->lists)
        cudaFreeHost(list);
    if (comm->order)
        cudaEventDestroy(comm->order);
    if (comm->shared)
        munmap(comm->shared, sim_nccl_shared_bytes(comm->ranks));
    delete comm;
}
} // namespace

size_t sim_nccl_shared_bytes(int ranks)
{
    const size_t n = (size_t)ranks;
    return sizeof(sim_nccl_shared) + 2 * n * SIM_NCCL_SLOT_BYTES + n * n * sizeof(sim_nccl_channel);
}

sim_nccl_shared *sim_nccl_map(const char *name, int ranks)
{
    const size_t bytes = sim_nccl_shared_bytes(ranks);
    const int file = shm_open(name, O_RDWR | O_CREAT, 0600);
    if (file < 0)
        return NULL;
    void *at = ftruncate(file, (off_t)bytes) ? MAP_FAILED
                                             : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return at == MAP_FAILED ? NULL : (sim_nccl_shared *)at;
}

void sim_nccl_fail(sim_nccl_shared *s, ncclResult_t error, const char *format, ...)
{
    int nobody = 0;
    if (!s->error_claimed.compare_exchange_strong(nobody, 1))
        return;
    va_list list;
    va_start(list, format);
    vsnprintf(s->message, sizeof s->message, format, list);
    va_end(list);
    s->error.store(error);
    fprintf(stderr, "NCCL WARN (simulated) %s\n", s->message);
}

ncclResult_t sim_nccl_refuse(ncclComm *comm, ncclResult_t error, const std::string &text)
{
    std::lock_guard<std::mutex> hold(error_lock);
    process_error = text;
    if (comm)
        comm->last_error = text;
    return error;
}

ncclResult_t sim_nccl_check_cuda(ncclComm *comm, cudaError_t error)
{
    if (!error)
        return ncclSuccess;
    cudaGetLastError(); // NCCL takes it away
    return sim_nccl_refuse(comm, ncclUnhandledCudaError,
                           std::string("Cuda failure ") + std::to_string(error) + " '" +
                               cudaGetErrorString(error) + "'");
}

void sim_nccl_let_join(void)
{
    may_join.store(true);
}

int sim_nccl_made(void)
{
    return made.load();
}

int sim_nccl_version(void)
{
    const long wanted = sim_option("nccl_version");
    return wanted > 0 ? (int)wanted : NCCL_VERSION_CODE;
}

bool sim_nccl_has_function(const char *symbol)
{
    static const struct {
        const char *symbol;
        int version;
    } later[] = {{"ncclGroupSimulateEnd", NCCL_VERSION(2, 22, 0)},
                 {"ncclCommWindowRegister", NCCL_VERSION(2, 27, 0)},
                 {"ncclCommWindowDeregister", NCCL_VERSION(2, 27, 0)},
                 {"ncclAlltoAll", NCCL_VERSION(2, 28, 0)},
                 {"ncclGather", NCCL_VERSION(2, 28, 0)},
                 {"ncclScatter", NCCL_VERSION(2, 28, 0)}};
    for (const auto &function : later)
        if (!strcmp(symbol, function.symbol))
            return sim_nccl_version() >= function.version;
    return true;
}

const char *sim_nccl_type_name(int type)
{
    static const char *const names[] = {"ncclInt8",    "ncclUint8",   "ncclInt32",   "ncclUint32",
                                        "ncclInt64",   "ncclUint64",  "ncclFloat16", "ncclFloat32",
                                        "ncclFloat64", "ncclBfloat16"};
    return type >= 0 && type < 10 ? names[type] : "a type that is not simulated";
}

size_t sim_nccl_type_size(int type)
{
    static const unsigned char sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    return type >= 0 && type < 10 ? sizes[type] : 0;
}

// ---- the interface of nccl.h

extern "C" {

ncclResult_t ncclGetVersion(int *version)
{
    *version = sim_nccl_version();
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    static std::atomic<unsigned> made;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    memset(id, 0, sizeof *id);
    snprintf(id->internal, 64, "/ptb-sim-nccl-%d-%u-%lx", (int)getpid(), made.fetch_add(1),
             (unsigned long)now.tv_sec * 1000000000ul + (unsigned long)now.tv_nsec);
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    switch (result) {
    case ncclSuccess:
        return "no error";
    case ncclUnhandledCudaError:
        return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError:
        return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError:
        return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidArgument:
        return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage:
        return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError:
        return "remote process exited or there was a network error";
    case ncclInProgress:
        return "NCCL operation in progress";
    default:
        return "unknown result code";
    }
}

const char *ncclGetLastError(ncclComm_t comm)
{
    if (comm && comm->shared->error.load())
        return comm->shared->message;
    static thread_local std::string copy;
    std::lock_guard<std::mutex> hold(error_lock);
    copy = comm ? comm->last_error : process_error;
    return copy.c_str();
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    ncclConfig_t own = NCCL_CONFIG_INITIALIZER;
    if (ranks < 1 || ranks > SIM_NCCL_RANKS || rank < 0 || rank >= ranks)
        return sim_nccl_refuse(NULL, ncclInvalidArgument, "Invalid rank requested");
    if (memchr(id.internal, 0, 64) == NULL || strncmp(id.internal, "/ptb-sim-nccl-", 14))
        return sim_nccl_refuse(NULL, ncclInvalidArgument, "the unique id is none of ncclGetUniqueId");
    ncclResult_t result = check_config(config ? config : &own);
    if (result != ncclSuccess)
        return result;
    ncclComm *comm = new ncclComm();
    comm->id = id.internal;
    comm->rank = rank;
    comm->ranks = ranks;
    result = make(comm, config ? config : &own);
    if (result != ncclSuccess) {
        unmake(comm);
        return result;
    }
    sim_nccl_profiler_init(comm);
    made.fetch_add(1);
    *out = comm;
    return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank)
{
    return ncclCommInitRankConfig(comm, ranks, id, rank, NULL);
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    const ncclResult_t result =
        sim_nccl_check_cuda(comm, comm->last_stream ? cudaStreamSynchronize(comm->last_stream) : cudaSuccess);
    if (result != ncclSuccess)
        return result;
    comm->shared->finalized.fetch_add(1);
    while (comm->shared->finalized.load() < comm->ranks && !comm->shared->error.load() &&
           !somebody_left(comm))
        pause_ms(1);
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    unmake(comm);
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    comm->shared->rank[comm->rank].aborted.store(1);
    unmake(comm);
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    *error = (ncclResult_t)comm->shared->error.load();
    return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *count)
{
    *count = comm->ranks;
    return ncclSuccess;
}
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
    *rank = comm->rank;
    return ncclSuccess;
}
ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device)
{
    *device = comm->device;
    return ncclSuccess;
}

ncclResult_t ncclMemAlloc(void **memory, size_t bytes)
{
    return sim_nccl_check_cuda(NULL, cudaMalloc(memory, (bytes + 4095) / 4096 * 4096));
}
ncclResult_t ncclMemFree(void *memory)
{
    return sim_nccl_check_cuda(NULL, cudaFree(memory));
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void *memory, size_t bytes, void **handle)
{
    if (!memory || !bytes)
        return sim_nccl_refuse(comm, ncclInvalidArgument, "an empty buffer cannot be registered");
    *handle = memory;
    return ncclSuccess;
}
ncclResult_t ncclCommDeregister(const ncclComm_t, void *)
{
    return ncclSuccess;
}
}
