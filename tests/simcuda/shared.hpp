// What the program and its device process share: a page of state, one queue per stream, finished records, and
// the layout of addresses, which are the same in both. Both processes run the same program file, linked at a
// fixed address, so that a function's address means the same in both.
#ifndef PTB_SIMCUDA_SHARED_HPP
#define PTB_SIMCUDA_SHARED_HPP

#include "tests/simcuda/sim.hpp"

#include <atomic>
#include <string>

#include <stdint.h>

// Addresses. Device memory is anonymous memory of the device process and without access in the program; host
// memory for both (cudaMallocHost) and the shared state are files in memory. No address is given out twice.
static const uintptr_t SIM_DEVICE_BASE = 0x200000000000, SIM_DEVICE_SPAN = (uintptr_t)1 << 43;
static const uintptr_t SIM_SHARED_BASE = 0x2f0000000000;
static const uintptr_t SIM_HOST_BASE = 0x300000000000, SIM_HOST_SPAN = (uintptr_t)1 << 40;

enum {
    SIM_GPUS = 64, // of a machine, at most
    SIM_STREAMS = 256,
    SIM_QUEUE_BYTES = 256 << 10,
    SIM_RECORDS = 1 << 15,
    SIM_STAGING_BYTES = 1 << 20,
    SIM_EVENTS = 1 << 16,
    SIM_POISON = 0xff, // bytes of memory that nobody has written
    SIM_CANARY = 0xfb, // bytes around an allocation
};

// ---- what the machine is (options.cpp)

// Device `index` of CUDA: a GPU of the machine, or of that GPU an instance of MIG (-1: the whole).
struct sim_shown {
    int gpu, instance; // gpu -1: there is none of that index
};
sim_shown sim_visible(int index);
uint64_t sim_visible_bytes(int index); // of memory
uint64_t sim_gpu_bytes(void);          // of one that is not cut
// Of the file that PTB_SIM's `machine` names: the value of "gpuN.key" or else of "key".
std::string sim_machine_text(unsigned gpu, const char *key, const char *otherwise);
int sim_instances(int gpu);
uint64_t sim_instance_bytes(int gpu, int instance);
// As NVML writes them; instance -1: of the whole GPU.
std::string sim_instance_name(int gpu, int instance);
std::string sim_uuid_text(int gpu, int instance);

// Somebody waits until another changes something; works between processes.
struct sim_bell {
    std::atomic<uint32_t> count, waiting;
};
void sim_ring(sim_bell *bell); // after the change
// Waits for a ring after `seen` was read from count. Usage: read count, look whether there is something to
// wait for, then wait. sim_await comes back after some milliseconds too: whoever waits for work in flight
// looks whether there was an error and whether the other process lives.
void sim_await(sim_bell *bell, uint32_t seen);
void sim_await_idle(sim_bell *bell, uint32_t seen);

enum sim_entry_kind : uint32_t {
    SIM_ENTRY_SKIP, // the rest of the queue up to its end
    SIM_ENTRY_WORK,
    SIM_ENTRY_WAIT,  // for another stream
    SIM_ENTRY_EVENT, // take the time
    SIM_ENTRY_CALL,  // of a function of the program
    SIM_ENTRY_FREE,  // device memory
};

// An entry of a queue; `argument_bytes` follow, and bytes up to a multiple of 16.
struct alignas(16) sim_entry {
    uint32_t bytes; // of all
    sim_entry_kind kind;
    union {
        struct {
            sim_work_fn *run;
            uint32_t argument_bytes;
            uint32_t has_activity;
            uint64_t graph_node; // 0: not of a graph
            sim_activity activity;
        } work;
        struct {
            uint32_t stream;
            uint64_t number; // of entries of that stream that must be done
        } wait;
        struct {
            uint32_t slot;
        } event;
        struct {
            cudaHostFn_t function;
            void *data;
        } call;
        struct {
            void *memory;
        } free;
    };
};

struct sim_queue {
    alignas(64) std::atomic<uint64_t> head; // bytes ever put in
    alignas(64) std::atomic<uint64_t> tail; // bytes ever taken out
    std::atomic<uint64_t> pushed, done;     // entries, without skips
    std::atomic<uint32_t> begun;            // it has a worker
    uint32_t device;
    sim_bell work, progress;
    alignas(16) char data[SIM_QUEUE_BYTES];
};

enum sim_command : uint32_t {
    SIM_COMMAND_NONE,
    SIM_COMMAND_STREAM,
    SIM_COMMAND_MAP,
    SIM_COMMAND_UNMAP,
    SIM_COMMAND_CHECK
};

struct sim_shared_state {
    // The program asks, one thread at a time; the device process answers.
    sim_bell request, reply;
    std::atomic<uint32_t> asked, answered;
    sim_command command;
    uint64_t argument[4];
    cudaError_t answer;

    std::atomic<int> device_pid;          // 0: not up yet
    std::atomic<int> error;               // cudaError_t that every later call gives
    std::atomic<uint64_t> works, kernels; // begun so far

    // A call of a function of the program: one at a time.
    sim_bell call_request, call_reply;
    std::atomic<uint32_t> calls_asked, calls_answered;
    cudaHostFn_t call_function;
    void *call_data;

    // Sent and received over all NVLinks of each GPU of the machine, by this program.
    std::atomic<uint64_t> link_bytes[2][SIM_GPUS];

    std::atomic<uint32_t> records_on;
    std::atomic<uint64_t> records_written, records_read, records_dropped;
    struct {
        std::atomic<uint64_t> ready; // 1 + number of the record that it holds
        sim_record record;
    } record[SIM_RECORDS];

    std::atomic<uint64_t> event_ns[SIM_EVENTS]; // time of the latest record
    sim_queue queue[SIM_STREAMS];
    alignas(4096) char staging[SIM_STREAMS][SIM_STAGING_BYTES]; // plain host memory passes here
};

static inline sim_shared_state *sim_shared(void)
{
    return (sim_shared_state *)SIM_SHARED_BASE;
}
// In the program: whether its device process is up, without which there is no shared state.
bool sim_is_up(void);
uint64_t sim_now_ns(void);
// The process-wide error; the first one stays.
void sim_set_error(cudaError_t error);
void sim_record_put(const sim_record *record);

// The device process: never returns. Files: memory, state, the program as a pidfd (-1: none).
[[noreturn]] void sim_device_main(int host_file, int program);
// In the device process. An allocation lies in [first, guard), which nothing else uses; `guard` is a page
// without access.
void sim_worker_start(uint32_t stream);
cudaError_t sim_memory_map(uintptr_t first, uint64_t data, uint64_t bytes, uint64_t guard);
cudaError_t sim_memory_unmap(uintptr_t data);
cudaError_t sim_memory_check(void); // what lies around each allocation is as it was
// What is at an address, in words, for a message; takes no locks that a signal handler could not.
void sim_memory_describe(uintptr_t address, char *text, size_t bytes);
void sim_faults_install(void);
// The number at which a fault is due; 0: never, or not in this process. To be read once.
uint64_t sim_fault(const char *option);

#endif
