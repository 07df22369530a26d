// The program's side of the simulated CUDA runtime: what its files share.
#ifndef PTB_SIMCUDA_RUNTIME_HPP
#define PTB_SIMCUDA_RUNTIME_HPP

#include "tests/simcuda/shared.hpp"

#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

// ---- calls and errors (runtime.cpp)

// Every call that uses the device begins with it: starts the device process, counts the call, gives the error
// that the device has ended with.
cudaError_t sim_begin_call(void);
// The same for calls whose number depends on time: they are not counted.
cudaError_t sim_begin_query(void);
#define SIM_BEGIN()                                                                                          \
    do {                                                                                                     \
        const cudaError_t sim_error = sim_begin_call();                                                      \
        if (sim_error)                                                                                       \
            return sim_error;                                                                                \
    } while (0)
// What a call returns: errors are remembered for cudaGetLastError.
cudaError_t sim_give(cudaError_t error);
int sim_current_device(void);
// Asks the device process, and waits for the answer.
cudaError_t sim_ask(sim_command command, uint64_t a, uint64_t b, uint64_t c, uint64_t d);
// To be called while waiting for the device: notices that its process has died.
void sim_look_after_device(void);
uint32_t sim_next_correlation(const char *call); // and tells the hook
// Around the waiting of a call: begin gives what end takes, 0 where nobody wants to know.
uint64_t sim_wait_begin(const char *call, uint32_t *correlation);
void sim_wait_end(uint64_t begin_ns, uint32_t correlation, uint32_t stream);

// ---- memory (memory.cpp)

enum sim_place { SIM_PLACE_HOST, SIM_PLACE_PINNED, SIM_PLACE_DEVICE };
sim_place sim_place_of(const void *memory);
// Of an allocation of the device: whether it holds all these bytes.
bool sim_is_allocated(const void *memory, size_t bytes);

// ---- streams (stream.cpp), capture (graph.cpp)

// The latest record of an event; graphs keep it too.
struct sim_recorded {
    std::mutex lock;
    uint32_t time_slot, stream = 0;
    uint64_t number = 0; // of entries of the stream; 0: never recorded
    sim_recorded();      // time_slot is SIM_EVENTS where there is none left
    ~sim_recorded();
};

struct sim_node {
    uint64_t id;                         // of all nodes of the process; a clone has another one
    std::vector<char> entry;             // a sim_entry with its arguments
    std::vector<int> after;              // nodes
    std::shared_ptr<sim_recorded> event; // external: recorded, or waited for, at each launch
};

struct sim_capture {
    std::vector<sim_node> nodes;
    cudaStreamCaptureMode mode;
    pid_t thread;
    bool is_valid = true;
    std::set<struct CUstream_st *> streams;
};

struct CUstream_st {
    uint32_t slot;
    int priority, device;
    unsigned flags;
    std::recursive_mutex lock;
    std::shared_ptr<sim_capture> capture;
    bool is_origin;
    std::vector<int> last; // nodes of the capture that the next one comes after
};

struct CUevent_st {
    unsigned flags;
    std::shared_ptr<sim_recorded> recorded;
    std::shared_ptr<sim_capture> capture; // of the latest record
    std::vector<int> last;
};

// NULL, cudaStreamLegacy: the stream that orders itself against the blocking ones. NULL, with the error
// given, for cudaStreamPerThread and what is no stream.
CUstream_st *sim_stream(cudaStream_t stream);
// Appends an entry (header.bytes is set here) with its arguments, to the queue or to the capture. A stream's
// entries have numbers from 1 on. number: may be NULL; 0 when captured.
cudaError_t sim_push(CUstream_st *stream, sim_entry *entry, const void *arguments, size_t bytes,
                     uint64_t *number);
bool sim_is_done(uint32_t slot, uint64_t number);
cudaError_t sim_wait_done(uint32_t slot, uint64_t number);
cudaError_t sim_wait_all(int device); // all streams; -1: of all devices

// The same without a look at captures and the order of the legacy stream. With the stream's lock held.
cudaError_t sim_push_raw(uint32_t slot, sim_entry *entry, const void *arguments, size_t bytes,
                         uint64_t *number);
// With the stream's lock held and stream->capture set. event: of an external record or wait.
cudaError_t sim_capture_push(CUstream_st *stream, const sim_entry *entry, const void *arguments, size_t bytes,
                             const std::shared_ptr<sim_recorded> &event);
cudaError_t sim_capture_record(CUstream_st *stream, CUevent_st *event, bool external);
cudaError_t sim_capture_wait(CUstream_st *stream, CUevent_st *event, bool external);
void sim_capture_leave(CUstream_st *stream); // it is destroyed
// Errors of calls that a capture does not allow; they spoil it.
cudaError_t sim_capture_forbids_waiting(CUstream_st *stream);
// cudaMalloc and others that wait for the device, while a capture of mode global (or one of this thread)
// runs.
cudaError_t sim_capture_forbids_unsafe(void);
cudaError_t sim_capture_forbids_legacy(int device);

#endif
