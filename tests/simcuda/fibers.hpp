// How a kernel runs on the simulated device: the threads of a block are fibers of one thread of the system,
// the blocks of a grid follow each other. A thread runs until it waits for others (a barrier, a warp
// operation) or ends; threads that never wait share one fiber, so that a kernel without barriers is a plain
// loop over its threads.
#ifndef PTB_SIMCUDA_FIBERS_HPP
#define PTB_SIMCUDA_FIBERS_HPP

#include <cuda_runtime.h>

#include <stddef.h>
#include <stdint.h>

enum { SIM_WARP = 32, SIM_BLOCK_THREADS = 1024 };

typedef struct {
    const char *name;
    uint3 grid, block;
    size_t shared_bytes;                 // dynamic shared memory
    void (*call)(const void *arguments); // one thread of the kernel
    const void *arguments;
} sim_grid;

// What CUDA's built-in variables are.
extern __thread uint3 threadIdx, blockIdx, blockDim, gridDim;
static const int warpSize = SIM_WARP;
extern __thread unsigned sim_thread; // of the block, that runs
extern __thread void *sim_shared_memory;

// Runs a grid on the calling thread. An error (deadlock, illegal access, trap) has been told on stderr.
cudaError_t sim_run_grid(const sim_grid *grid);

// In a kernel. Dynamic shared memory of the block.
static inline void *sim_dynamic_shared(void)
{
    return sim_shared_memory;
}
// Waits for all threads of the block that have not ended.
void sim_block_sync(void);
// The same; gives the number of them with a predicate that is not 0.
int sim_block_barrier(int predicate);
// Waits for the lanes of `mask` that have not ended. The last one to come calls `operation` once for all:
// lanes[i] is what lane i passed as `mine` (memory of its stack, of the operation's own type), NULL for a
// lane that takes no part. So a warp-wide operation is computed once and writes each lane's result in place.
typedef void sim_warp_operation(void *const lanes[SIM_WARP]);
void sim_warp_run(uint32_t mask, sim_warp_operation *operation, void *mine);
void sim_warp_sync(uint32_t mask); // __syncwarp
uint32_t sim_warp_live(void);      // lanes of this warp that have not ended
static inline unsigned sim_lane(void)
{
    return sim_thread % SIM_WARP;
}
// cp.async: the copies of a thread happen when it waits for them and not before, so that a missing wait
// shows; a thread that ends before it has waited for all of them is an error (a wait is for those committed).
// shared, global: aligned to `bytes` (4, 8 or 16); the bytes from `valid` on become 0.
void sim_async_copy(void *shared, const void *global, unsigned bytes, unsigned valid);
void sim_async_commit(void);
void sim_async_wait(unsigned groups); // until at most so many of the latest groups are open
// Ends the kernel with an error. Only in a kernel.
[[noreturn]] void sim_abort_grid(cudaError_t error, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
// Whether the calling thread is inside a kernel now, and its name.
const char *sim_kernel_name(void);
// Whether the stack of the running thread of a kernel ends at this address.
bool sim_is_stack_guard(uintptr_t address);

#endif
