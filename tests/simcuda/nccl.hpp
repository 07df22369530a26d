// The simulated NCCL, under the real nccl.h. Ranks are processes (or threads) of one machine that meet in a
// segment of POSIX shared memory named by the unique id; what a collective does runs on its stream, in the
// device process, and passes all data through that segment. Files: nccl_comm.cpp (communicators),
// nccl_calls.cpp (the calls and groups), nccl_choice.cpp (algorithm and protocol, as NCCL_ALGO and NCCL_PROTO
// say), nccl_window.cpp (symmetric windows, and which operations run as kernels on them), nccl_names.cpp
// (what its kernels are called), nccl_profiler.cpp and nccl_plugin.cpp (what NCCL tells a profiler plug-in),
// nccl_device.cpp and nccl_reduce.cpp (what runs in the device process), nccl_traffic.cpp (what goes over
// links).
//
// Which algorithm is chosen is only reported and counted on the links: data always goes the same way. The
// machine has NVSwitch and no CollNet; ranks with another host name are on another host. As with the real
// one, a forced algorithm that cannot be had is sometimes refused (ncclInvalidUsage) and sometimes replaced
// without a word: nvls_tree runs as nvls on one host, collnet and pat run as ring.
//
// PTB_SIM: ncclerr=N (the N-th operation of each rank ends with ncclRemoteError), nccl_hang=N (it never
// ends), slow_rank=R:US (rank R takes so much longer for each), late_rank=R (rank R joins no communicator
// before sim_nccl_let_join), dead_link=A-B (nothing passes between these ranks), nccl_replace=1 (every forced
// algorithm runs as ring), nccl_symmetric=0 (no windows; 2: windows, on which no kernels of their own run),
// wrong_rail=A:B (what should go over network card A of this host goes over B), nccl_version=N (22304: it
// is 2.23.4: lacks what that one lacks, and tells a profiler what that one tells), nccl_kernel=1 (collectives
// are symmetric kernels to a profiler; 2: copy engines), nccl_number=N (algorithm that 2.23 tells of),
// nccl_pxn=1 (proxies serve another process), nccl_slow_proxy=MS (they end so much later than the stream).
#ifndef PTB_SIMCUDA_NCCL_HPP
#define PTB_SIMCUDA_NCCL_HPP

#include "tests/simcuda/sim.hpp"

#include <nccl.h>

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

enum {
    SIM_NCCL_RANKS = 64,
    SIM_NCCL_SLOT_BYTES = 128 << 10,   // of a rank's part of a collective in flight
    SIM_NCCL_CHANNEL_BYTES = 32 << 10, // of messages in flight from one rank to another
    SIM_NCCL_MESSAGES = 150,           // that fit into the arguments of one piece of work
};

// Operations by name, in the order of NCCL's own list.
enum sim_nccl_function {
    SIM_NCCL_BROADCAST,
    SIM_NCCL_REDUCE,
    SIM_NCCL_ALL_GATHER,
    SIM_NCCL_REDUCE_SCATTER,
    SIM_NCCL_ALL_REDUCE,
    SIM_NCCL_FUNCTIONS, // that have algorithms
    SIM_NCCL_SEND = SIM_NCCL_FUNCTIONS,
    SIM_NCCL_RECV,
    SIM_NCCL_ALL_TO_ALL, // these are made of sends and receives
    SIM_NCCL_GATHER,
    SIM_NCCL_SCATTER,
};
const char *sim_nccl_function_name(int function); // "AllReduce"

// The version that this library is: the header's, or nccl_version. What the real one of that version lacks,
// this one lacks: functions, algorithms, NCCL_ALGO by collective, telling what it runs.
int sim_nccl_version(void);
// Whether that version has the function; true for what is none of NCCL's.
bool sim_nccl_has_function(const char *symbol);
const char *sim_nccl_type_name(int type); // "ncclFloat32"
size_t sim_nccl_type_size(int type);

struct sim_nccl_place {
    uint64_t window, offset; // number of the window, from 1 on
};
// One collective as a rank calls it; what all ranks must agree in. count: as in the call. place: of a
// symmetric kernel, where the send and the receive buffer lie that it takes to lie there on all ranks; 0: it
// does not.
struct sim_nccl_call {
    int function, type, op, root;
    uint64_t count;
    sim_nccl_place place[2] = {};
};

struct sim_nccl_channel {
    alignas(64) std::atomic<uint64_t> written;
    alignas(64) std::atomic<uint64_t> read;
    char data[SIM_NCCL_CHANNEL_BYTES];
};

struct sim_nccl_rank {
    std::atomic<int> joined;
    std::atomic<int> aborted;
    std::atomic<uint64_t> host; // hash of the host's name
    std::atomic<int> gpu;       // of the machine, whichever part of it
    std::atomic<uint64_t> side; // address of its sim_nccl_side in its device process
    sim_nccl_call call[2];
    std::atomic<uint64_t> windows; // registered so far
    std::atomic<uint64_t> window_bytes[2];
};

// The shared segment; zeroed when new. Behind it: slots [2][ranks], channels [from][to].
struct sim_nccl_shared {
    std::atomic<int> ranks; // 0: nobody has come
    std::atomic<int> joined, finalized;
    std::atomic<int> error; // ncclResult_t of all; set after the message
    std::atomic<int> error_claimed;
    char message[400];
    alignas(64) std::atomic<uint32_t> arrived;
    alignas(64) std::atomic<uint32_t> generation; // of the barrier
    sim_nccl_rank rank[SIM_NCCL_RANKS];
};
size_t sim_nccl_shared_bytes(int ranks);
static inline char *sim_nccl_slot(sim_nccl_shared *s, int parity, int rank)
{
    const size_t n = (size_t)s->ranks.load(std::memory_order_relaxed);
    return (char *)(s + 1) + ((size_t)parity * n + (size_t)rank) * SIM_NCCL_SLOT_BYTES;
}
static inline sim_nccl_channel *sim_nccl_channel_of(sim_nccl_shared *s, int from, int to)
{
    const size_t n = (size_t)s->ranks.load(std::memory_order_relaxed);
    sim_nccl_channel *first = (sim_nccl_channel *)((char *)(s + 1) + 2 * n * SIM_NCCL_SLOT_BYTES);
    return first + (size_t)from * n + (size_t)to;
}
// Maps the segment of that name, which is made if it is not there; NULL, errno set, if that fails.
sim_nccl_shared *sim_nccl_map(const char *name, int ranks);
// The first error stays.
__attribute__((format(printf, 3, 4))) void sim_nccl_fail(sim_nccl_shared *s, ncclResult_t error,
                                                         const char *format, ...);

// Times of a piece of work, for the profiler: memory that program and device share. GPU clock, 0: not yet.
struct sim_nccl_times {
    std::atomic<uint64_t> begin_ns, end_ns;
};

// ---- arguments of work in the device process (nccl_device.cpp)

struct sim_nccl_attach {
    char name[64];
    int rank, ranks;
    long error_at, hang_at, slow_us; // -1: never
    int dead[2];                     // -1: none
    int gpu;                         // of the machine
    int rail_moved[2];               // from, to; -1: none
};
cudaError_t sim_nccl_work_attach(void *args);
struct sim_nccl_detach {
    uint64_t side;
};
cudaError_t sim_nccl_work_detach(void *args);

struct sim_nccl_collective {
    uint64_t side;
    sim_nccl_call call;
    const void *send;
    void *recv;
    sim_nccl_times *times; // NULL: nobody asks
    const char *algorithm; // a constant of the program
    int channels;
};
cudaError_t sim_nccl_work_collective(void *args);

struct sim_nccl_message {
    void *buffer;
    uint64_t count;
    int16_t type, peer;
    int32_t send;
};
struct sim_nccl_messages {
    uint64_t side;
    sim_nccl_times *times;
    uint32_t count;
    const sim_nccl_message *list; // shared memory, when there are too many for the arguments; else NULL
    sim_nccl_message own[SIM_NCCL_MESSAGES];
};
cudaError_t sim_nccl_work_messages(void *args);

// nccl_traffic.cpp: puts on the links what an operation of this rank sends and receives.
struct sim_nccl_traffic_seat {
    const sim_nccl_shared *shared;
    int rank, ranks, gpu, rail_moved[2];
};
void sim_nccl_count_collective(const sim_nccl_traffic_seat *seat, const sim_nccl_collective *work);
void sim_nccl_count_messages(const sim_nccl_traffic_seat *seat, const sim_nccl_message *list, uint32_t count);

// out[i] = a[0][i] op a[1][i] op ... of n vectors, in that order; 16-bit floats in f32, rounded once.
// Average: floats are multiplied with 1/n rounded to the type first, integers divided at the end, as NCCL
// does.
void sim_nccl_reduce(int type, int op, void *out, const char *const *vectors, int n, size_t count);

// ---- the program's side

enum { SIM_NCCL_ALGORITHMS = 7, SIM_NCCL_PROTOCOLS = 3 };

struct sim_nccl_choice {
    bool algorithm[SIM_NCCL_FUNCTIONS][SIM_NCCL_ALGORITHMS];
    bool protocol[SIM_NCCL_FUNCTIONS][SIM_NCCL_PROTOCOLS];
    bool forced_algorithm[SIM_NCCL_FUNCTIONS], forced_protocol[SIM_NCCL_FUNCTIONS];
};
// From the environment, as it is now. False: it is not understood; the text says why.
bool sim_nccl_read_choice(sim_nccl_choice *choice, std::string *why);
struct sim_nccl_run {
    const char *algorithm, *protocol;
    int channels;
    bool is_symmetric; // a kernel on windows, which no profiler is told of
};
struct sim_nccl_window {
    uint64_t number; // how many this communicator had made, itself included
    const char *at;
    uint64_t bytes;
};

struct ncclComm {
    sim_nccl_shared *shared;
    std::string id, name, last_error;
    int rank, ranks, device;
    int channels_min, channels_max;
    uint64_t side;
    sim_nccl_choice choice;
    cudaStream_t last_stream;
    cudaEvent_t order; // of the streams that it is used on
    void *profiler;    // context of the plug-in
    uint64_t sequence[SIM_NCCL_FUNCTIONS];
    std::vector<sim_nccl_window> windows; // of those that are windows indeed
    std::vector<void *> lists;            // of messages, shared memory
    std::atomic<int> watched;             // pieces of work whose end the profiler waits for
};

// What would run; InvalidUsage, with the text in comm->last_error, where the environment leaves nothing.
ncclResult_t sim_nccl_choose(ncclComm *comm, const sim_nccl_call *call, sim_nccl_run *run);

// An operation of a group, as it was called.
struct sim_nccl_operation {
    ncclComm *comm;
    cudaStream_t stream;
    sim_nccl_call call; // root: the peer of a message
    const void *send;
    void *recv;
    int api; // function that the program called: AllToAll for its messages
    sim_nccl_run run;
};

// nccl_window.cpp: whether it runs as a symmetric kernel, of which the call then says where its buffers lie.
// group: operations that run with it.
bool sim_nccl_make_symmetric(sim_nccl_operation *operation, size_t group);

// nccl_names.cpp: of the kernel that it runs as.
std::string sim_nccl_kernel_name(const sim_nccl_operation &operation);

// nccl_profiler.cpp
void sim_nccl_profiler_init(ncclComm *comm);
void sim_nccl_profiler_finalize(ncclComm *comm); // waits until all that it watches has ended
// Around the launch of a group of operations on one communicator: tells of the group and of each operation,
// and gives times for the work to fill when its inside is asked for (NULL: it is not).
struct sim_nccl_told {
    void *api, *group;
    std::vector<void *> tasks;
    int mask;
};
void sim_nccl_profiler_begin(ncclComm *comm, const std::vector<sim_nccl_operation> &operations,
                             sim_nccl_told *told);
sim_nccl_times *sim_nccl_profiler_times(ncclComm *comm, const sim_nccl_operation &operation,
                                        sim_nccl_told *told, size_t which);
void sim_nccl_profiler_end(ncclComm *comm, sim_nccl_told *told);

// For tests: the rank of this process that late_rank names may join now; how many communicators this process
// has made so far; of how many operations the profiler's thread has told the begin, and of how many it has
// still to tell the end.
extern "C" void sim_nccl_let_join(void);
extern "C" int sim_nccl_made(void);
extern "C" int sim_nccl_begun(void);
extern "C" int sim_nccl_untold(void);

// Remembers an error of this thread, for ncclGetLastError, and gives it.
ncclResult_t sim_nccl_refuse(ncclComm *comm, ncclResult_t error, const std::string &text);
// The result of a call that made this one of CUDA; its text becomes the last error's.
ncclResult_t sim_nccl_check_cuda(ncclComm *comm, cudaError_t error);

#endif
