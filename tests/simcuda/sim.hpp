// The simulated device: what its parts (CUDA runtime, cuBLASLt, NCCL, CUPTI, NVML) share. The device is a
// process of its own, forked at the first use of the device: its memory is mapped where the program sees only
// addresses without access, so a host that touches device memory traps, as does a kernel that touches plain
// host memory. Each stream is a thread of the device process; work reaches it through shared memory.
#ifndef PTB_SIMCUDA_SIM_HPP
#define PTB_SIMCUDA_SIM_HPP

#include <cuda_runtime.h>

#include <stddef.h>
#include <stdint.h>

// Work of a stream: runs in the device process, on the stream's thread, with a copy of its arguments. It may
// touch device memory and memory from cudaMallocHost, and its own copy of the program's code and constants;
// nothing that the program wrote after the device process began.
typedef cudaError_t sim_work_fn(void *args);

enum { SIM_ARGUMENT_BYTES = 4096 };

// What CUPTI is told of a piece of work; the times come from the device process.
typedef enum { SIM_KERNEL, SIM_COPY, SIM_SET, SIM_QUIET } sim_activity_kind;
typedef struct {
    sim_activity_kind kind;
    char name[96]; // of a kernel
    uint64_t bytes;
    int copy_kind; // cudaMemcpyKind
    uint32_t grid[3], block[3];
    uint32_t correlation; // of the runtime call that enqueued it
} sim_activity;

// Enqueues on a stream (or records into the graph that it captures). An error is of the enqueuing, not of the
// work.
cudaError_t sim_enqueue(cudaStream_t stream, sim_work_fn *work, const void *args, size_t bytes,
                        const sim_activity *activity);

// Faults and other settings: the environment variable PTB_SIM, "name=value,name=value". -1 when it is not
// there.
long sim_option(const char *name);

#endif
