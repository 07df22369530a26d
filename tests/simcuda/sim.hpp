// The simulated device: what its parts (CUDA runtime, cuBLASLt, NCCL, CUPTI, NVML) share. The device is a
// process of its own, begun at the first use of the device: a second copy of the program file that never
// comes to main. Its memory is mapped where the program sees only addresses without access, so a host that
// touches device memory traps, as does a kernel that touches plain host memory. Each stream is a thread of
// the device process; work reaches it through shared memory. All GPUs that a program uses live in its one
// device process.
//
// PTB_SIM="name=value,...": settings and faults.
//   devices=N     GPUs of the machine (8)              memory=MIB    memory of each (16384), if not cut
//   delay=US      before each piece of work, a random time up to it: what is not ordered shows
//   slow=US       each kernel takes so much longer     seed=N        of the random times (1)
//   order=1       the threads of a block run from the last to the first
//   no_gpu=CODE   cudaGetDeviceCount fails with it       driver=N      CUDA of the driver (12040: 12.4)
//   no_library=PREFIX, no_function=PREFIX   what this machine lacks (loader.cpp)
//   nccl_version=21903   an NCCL of that version (nccl.hpp)
// Of the process of one rank only with rank=R (OMPI_COMM_WORLD_RANK, PMI_RANK, SLURM_PROCID):
//   oom=N         the N-th allocation fails            full=N        it and all later ones fail
//   launch=N      the N-th kernel fails, later, as it does
//   hang=N        the N-th piece of work never ends                  on hardware
//   ecc=N         the N-th piece of work meets an      lost=N        the device is gone from the N-th call
//   on;
//                 uncorrectable ECC error                            queries, as many as time has it, aside
#ifndef PTB_SIMCUDA_SIM_HPP
#define PTB_SIMCUDA_SIM_HPP

#include <cuda_runtime.h>

#include <stddef.h>
#include <stdint.h>

// Work of a stream: runs in the device process, on the stream's thread, with a copy of its arguments (16-byte
// aligned). It may touch device memory and memory from cudaMallocHost, functions and constants of the program
// file, and variables, which are the device process's own: nothing that the program has written into its.
// An error ends the device as on hardware: every later call gives it.
typedef cudaError_t sim_work_fn(void *args);

enum { SIM_ARGUMENT_BYTES = 4096 };

// What CUPTI is told of a piece of work; the times come from the device process.
typedef enum { SIM_KERNEL, SIM_COPY, SIM_SET, SIM_QUIET } sim_activity_kind;
enum { SIM_COPY_PEER = 16 }; // a copy_kind: from one GPU to another
typedef struct {
    sim_activity_kind kind;
    char name[96]; // of a kernel
    uint64_t bytes;
    int copy_kind; // cudaMemcpyKind, SIM_COPY_PEER
    uint32_t grid[3], block[3];
    uint32_t correlation; // of the runtime call that enqueued it; 0: sim_enqueue takes the next
} sim_activity;

// Enqueues on a stream (or records into the graph that it captures). activity: NULL is SIM_QUIET. An error is
// of the enqueuing (or of earlier work, as CUDA has it), not of the work.
cudaError_t sim_enqueue(cudaStream_t stream, sim_work_fn *work, const void *args, size_t bytes,
                        const sim_activity *activity);
// In a piece of work: ends it as the device would be ended, with a message. The error to return.
cudaError_t sim_work_failed(cudaError_t error, const char *format, ...) __attribute__((format(printf, 2, 3)));
// In the device process?
bool sim_in_device(void);

// Activity: what finished while it was on. CLOCK_MONOTONIC.
typedef struct {
    sim_activity activity;
    uint64_t begin_ns, end_ns;
    uint32_t device, stream; // the stream's id is what cudaStreamGetId gives
    uint64_t graph_node;     // of the executable graph, as the hook below was told; 0: not from a graph
} sim_record;
void sim_activity_on(bool on);
// Takes up to `most` finished records; gives how many. dropped, if not NULL: how many found no place since
// the last call.
size_t sim_activity_read(sim_record *records, size_t most, uint64_t *dropped);
// Called in the program, on the calling thread, for each runtime call that enqueues work, before it does.
// name: of the call, "cudaMemcpyAsync".
typedef void sim_call_hook(const char *name, uint32_t correlation);
// Called when a call has waited for a stream, or (stream 0) for all of the device.
typedef void sim_wait_hook(uint32_t correlation, uint32_t stream, uint64_t begin_ns);
void sim_activity_hook(sim_call_hook *hook, sim_wait_hook *waited); // NULL: none
// Called in the program, on the calling thread, for each node that becomes part of a graph: by a capture
// (original 0), or as the clone of one of another graph.
typedef void sim_node_hook(uint64_t node, uint64_t original);
void sim_graph_hook(sim_node_hook *hook); // NULL: none

// Settings and faults of PTB_SIM. -1 when it is not there.
long sim_option(const char *name);
// As text, at most `bytes` with the NUL; false when it is not there.
bool sim_option_text(const char *name, char *text, size_t bytes);
// GPUs of the machine, before CUDA_VISIBLE_DEVICES, and which of them is device `index` of CUDA, or has the
// instance of MIG that is (-1: none). A machine file cuts its GPUs with `mig = 1g.10gb 1g.10gb 3g.40gb`, one
// word an instance (`gpu1.mig`: one of them; 0: not cut; 1: MIG is on, without instances).
int sim_machine_devices(void);
int sim_visible_device(int index);
void sim_look_again(void); // for tests: CUDA_VISIBLE_DEVICES, which is read once, has changed
void sim_uuid(int machine_device, unsigned char uuid[16]);
void sim_pci_bus_id(int machine_device, char text[16]); // "00000000:1b:00.0"

#endif
