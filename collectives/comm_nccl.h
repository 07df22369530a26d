// What the files of the `nccl` communicator share: comm_nccl.c (the communicator), comm_nccl_api.c (NCCL's
// functions), comm_nccl_init.c (making and ending NCCL's communicator), comm_nccl_watch.c (calls that do not
// end), comm_nccl_calls.c (collectives and messages), comm_nccl_choice.c (algorithm, protocol and channels:
// asked and run), comm_nccl_kernels.c (what names of kernels tell), comm_nccl_library.c (which NCCL it is),
// comm_nccl_memory.c (registered buffers). NCCL 2.19 and later. Run on one H200, never between several GPUs.
#ifndef PTB_COLLECTIVES_COMM_NCCL_H
#define PTB_COLLECTIVES_COMM_NCCL_H

#include "collectives/comm.h"
#include "collectives/comm_nccl_api.h"
#include "core/roll.h"
#include "profiler/capture.h"
#include "profiler/nccl_profiler.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdatomic.h>

enum {
    PTB_NCCL_STREAMS = 8, // that one communicator is used on
    PTB_NCCL_CALLS = 32,  // kinds of call whose run is remembered; older ones are forgotten
    // Versions of NCCL.
    PTB_NCCL_OLDEST = 21900,
    PTB_NCCL_TELLS = 22300,       // the first that tells what it ran,
    PTB_NCCL_TELLS_CALLS = 22800, // and for which call, whatever ran
    PTB_NCCL_WINDOWS = 22700,     // that has symmetric windows,
    PTB_NCCL_WINDOW_SAYS = 22900, // gives none where there is none,
    PTB_NCCL_ONE_WINDOW = 22900,  // and needs them only for the buffers that peers reach (ncclSymkPickKernel)
};

// What was asked for: words of NCCL_ALGO and NCCL_PROTO; "" leaves the choice to NCCL.
typedef struct {
    char name[40]; // as asked: "ring/ll128", "default"
    char algorithm[24], protocol[16];
    int channels;      // 0: NCCL's choice
    bool is_symmetric; // "symmetric": the kernels that NCCL runs on windows; it is told nothing
} ptb_nccl_choice;

typedef struct ptb_nccl_memory {
    void *memory;
    size_t bytes;
    void *registration; // ncclCommRegister; NULL none
    void *window;       // ncclWindow_t (NCCL 2.27 and later), on all ranks; NULL none, on none
    struct ptb_nccl_memory *next;
} ptb_nccl_memory;

typedef struct ptb_comm_nccl ptb_comm_nccl;
typedef struct {
    ptb_stream_watch watch; // watch.stream NULL: free
    ptb_comm_nccl *comm;
} ptb_nccl_stream;

// What the recorded kernels of a kind of call tell.
typedef enum {
    PTB_NCCL_KERNEL_UNKNOWN,   // nothing
    PTB_NCCL_KERNEL_SYMMETRIC, // that one on symmetric windows ran: that of the name
    PTB_NCCL_KERNEL_OTHER,     // that none on symmetric windows ran
} ptb_nccl_kernel_kind;
typedef struct {
    ptb_nccl_kernel_kind kind;
    char name[PTB_KERNEL_NAME_BYTES]; // of the first
    const char *from;                 // where it was recorded
} ptb_nccl_kernel;

// A kind of call and what NCCL ran for it.
typedef struct {
    ptb_coll_kind kind; // PTB_COLL_COUNT: messages
    size_t count;
    ptb_dtype dtype;
    ptb_redop op;
    bool in_place;
    ptb_nccl_ran ran; // what it told
    ptb_nccl_kernel kernel;
} ptb_nccl_seen;

struct ptb_comm_nccl {
    ptb_comm comm;
    const ptb_nccl_api *api;
    _Atomic(ncclComm_t) nccl; // NULL: aborted or never made
    pthread_mutex_t lock;     // of asking NCCL for errors against aborting
    ptb_account *account;     // how far this rank has come; NULL: nobody asks
    int index;                // CUDA's number of the device
    int version;              // of the library that runs
    char name[64];            // by which the profiler plug-in knows it
    double timeout_s;
    ptb_nccl_choice choice;
    ptb_gpu_direct gpu_direct;
    ptb_nccl_watched *watched; // NULL: NCCL does not tell what it runs
    bool profiler_is_ours;     // not another one that the environment names
    ptb_nccl_memory *memory;
    int32_t *flag; // what a barrier reduces, device memory
    ptb_nccl_stream streams[PTB_NCCL_STREAMS];
    ptb_nccl_stream *last_stream; // the last of them that was used
    bool annotating;              // another tool that watches this process wants the names of calls (NVTX)
    ptb_coll last_call;           // for the message when it does not end
    uint64_t calls;               // so far, the last one included
    int depth;                    // of groups
    bool group_recorded;          // the open group is one whose run is recorded
    ptb_nccl_seen seen[PTB_NCCL_CALLS];
    size_t seen_count; // ever; the place of the next is seen_count mod PTB_NCCL_CALLS
    ptb_nccl_seen *last_seen;
};

// NCCL loaded on every rank, its version checked; c->api and c->version are set. UNSUPPORTED, logged once a
// host, where it cannot be had.
ptb_status ptb_nccl_start(ptb_comm_nccl *c);
// OK for ncclSuccess. Anything else is logged with the call, file:line, NCCL's text and what to try, which is
// CUDA's advice where the GPU is the cause. It becomes UNSUPPORTED (NCCL cannot do this here), else, of a
// communicator, LOST; without one (nccl NULL) LOST (a peer or the GPU is gone), NO_MEMORY or SYSTEM.
ptb_status ptb_nccl_check(ncclResult_t result, ncclComm_t nccl, const char *call, const char *file, int line);
#define PTB_NCCL(c, nccl, name, ...)                                                                         \
    ptb_nccl_check((c)->api->name(__VA_ARGS__), (nccl), "nccl" #name, __FILE__, __LINE__)
// The same for the CUDA runtime.
#define PTB_NCCL_CUDA(call) ptb_cuda_check((int)(call), #call, __FILE__, __LINE__)

// comm_nccl_init.c
// Collective: NCCL's communicator of the world, within timeout_s.
ptb_status ptb_nccl_init(ptb_comm_nccl *c, const ptb_comm_config *config);
// Waits until all ranks are done with it, then frees it; aborts it where it failed before.
void ptb_nccl_finish(ptb_comm_nccl *c);
// Ends at once what runs on the device; every later call gives LOST. Any thread may call it.
void ptb_nccl_abort(ptb_comm_nccl *c);

// comm_nccl_watch.c
// What tells GPUs apart, to NCCL: the place on the bus; all zero where the device does not say it. Instances
// of MIG are at the place of their GPU.
typedef struct {
    int domain, bus, device;
} ptb_gpu_place;
// Makes the account that other ranks ask, under the key that all ranks have. gpus [size]: of each rank.
ptb_status ptb_nccl_join_roll(ptb_comm_nccl *c, uint64_t key, const ptb_gpu_place *gpus);
// This rank calls it now.
void ptb_nccl_enter(ptb_comm_nccl *c, const ptb_coll *call);
// While the host waits for the stream: whether NCCL has failed behind the device's back, or hangs. Either is
// logged with the ranks that are missing, and the communicator aborted.
ptb_status ptb_nccl_look(ptb_stream_watch *watch, int64_t waited_ns);

// comm_nccl_choice.c
const char *const *ptb_nccl_algorithms(ptb_coll_kind kind);
bool ptb_nccl_has_algorithm(ptb_coll_kind kind, const char *name);
// The first NCCL that can be asked for it: 22400 is 2.24.
int ptb_nccl_algorithm_version(ptb_coll_kind kind, const char *name);
// USAGE, logged by rank 0, for a name that no collective of NCCL has.
ptb_status ptb_nccl_choose(const ptb_world *world, const ptb_comm_config *config, ptb_nccl_choice *choice);
// Whether an algorithm, a protocol or channels of the classic kernels are asked for.
bool ptb_nccl_is_forced(const ptb_nccl_choice *choice);
// The environment that NCCL reads when it makes a communicator says this choice from enter to leave.
void ptb_nccl_environment_enter(const ptb_nccl_choice *choice, int version);
void ptb_nccl_environment_leave(const ptb_nccl_choice *choice);
// GPUDirect RDMA on or off: NCCL reads it once a process. UNSUPPORTED, logged, when it is another already.
ptb_status ptb_nccl_gpu_direct(ptb_gpu_direct wanted);
// Whether what ran for this call was a kernel on symmetric windows: by the kernel's name, else because it can
// have been nothing else. seen: of the call; NULL: never seen.
bool ptb_nccl_ran_symmetric(const ptb_comm_nccl *c, const ptb_coll *call, const ptb_nccl_seen *seen);
// What ran, against what was asked for; why it is not known.
void ptb_nccl_describe_run(const ptb_comm_nccl *c, const ptb_coll *call, const ptb_nccl_seen *seen,
                           ptb_params *facts);
void ptb_nccl_describe_channels(const ptb_nccl_ran *ran, ptb_params *facts); // where they were told

// comm_nccl_kernels.c
// What the name of one kernel tells of a call of that kind.
ptb_nccl_kernel_kind ptb_nccl_kernel_tells(ptb_coll_kind kind, const char *name);
void ptb_nccl_recorded(ptb_comm *comm, const ptb_coll *call, const char *const *kernels, size_t count,
                       const char *from);

// comm_nccl_library.c: its version, plug-ins that are loaded, the environment that it reads.
void ptb_nccl_describe_library(const ptb_comm_nccl *c, ptb_params *facts);

// comm_nccl_calls.c
ptb_status ptb_nccl_collective(ptb_comm *comm, const ptb_coll *call, ptb_stream *stream);
ptb_status ptb_nccl_group_begin(ptb_comm *comm);
ptb_status ptb_nccl_group_end(ptb_comm *comm, ptb_stream *stream);
ptb_status ptb_nccl_send(ptb_comm *comm, const void *buffer, size_t count, ptb_dtype dtype, int peer,
                         ptb_stream *stream);
ptb_status ptb_nccl_recv(ptb_comm *comm, void *buffer, size_t count, ptb_dtype dtype, int peer,
                         ptb_stream *stream);
bool ptb_nccl_supports(ptb_comm *comm, const ptb_coll *call, bool in_place, char *reason);
// The name of what NCCL is called with for this call: "ncclAllReduce", "ncclBroadcast of each part".
const char *ptb_nccl_call_name(const ptb_comm_nccl *c, const ptb_coll *call);
const ptb_nccl_seen *ptb_nccl_find_seen(const ptb_comm_nccl *c, const ptb_coll *call);
// The place of this kind of call, made anew where it is not remembered.
ptb_nccl_seen *ptb_nccl_see(ptb_comm_nccl *c, const ptb_coll *call);

// comm_nccl_memory.c
// As large on all ranks as the one that asks for most. A window where nothing is forced.
ptb_status ptb_nccl_alloc(ptb_comm *comm, size_t bytes, void **memory);
void ptb_nccl_free(ptb_comm *comm, void *memory);
// Whether the buffers lie in windows so that NCCL may run a symmetric kernel.
bool ptb_nccl_on_windows(const ptb_comm_nccl *c, const ptb_coll *call);
// "symmetric window", "symmetric window asked for" (where NCCL does not tell whether it is one), "registered"
// or "private"
const char *ptb_nccl_buffers(const ptb_comm_nccl *c, const ptb_coll *call, bool ran_symmetric);
void ptb_nccl_memory_release(ptb_comm_nccl *c);

#endif
