// Checks of every access of a kernel, as compute-sanitizer's memcheck and racecheck make them: for kernels
// that are compiled with the compiler's instrumentation of memory accesses (PTB_SIM_CHECK,
// tests/simcuda/test_check*).
#ifndef PTB_SIMCUDA_CHECK_HPP
#define PTB_SIMCUDA_CHECK_HPP

#include <cuda_runtime.h>

#include <stddef.h>
#include <stdint.h>

enum { SIM_SYNCS = 64 }; // of a warp that are remembered

// The running thread of a kernel, for the checks.
typedef struct {
    unsigned thread;
    uint64_t epoch;               // barriers of blocks so far, of the whole process
    uint64_t begun;               // the epoch in which its block began
    uintptr_t stack_end;          // of its stack, which grows down
    uint32_t sync;                // __syncwarp's of its warp so far
    const uint32_t *masks;        // of these, [SIM_SYNCS], number i at i % SIM_SYNCS
    uintptr_t shared, shared_end; // all dynamic shared memory that there could be
    uintptr_t dynamic;            // what the launch asked for, [dynamic, dynamic + dynamic_bytes)
    size_t dynamic_bytes;
    uint3 block_shape;
} sim_check_thread;

extern bool sim_checking; // some kernel of this program is instrumented

// fibers.cpp; false when the calling thread is not in a kernel.
bool sim_check_running(sim_check_thread *thread);
// check.cpp: an access of the running thread; does not come back when it is wrong.
void sim_check_access(const void *address, size_t bytes, bool writes, bool atomic);
// products.cpp: fences and products so far, of this thread of the system; and the number of the last
// fence.proxy.async of a thread of the block that a barrier has followed, at the time `epoch`.
extern __thread uint64_t sim_products_clock;
uint64_t sim_products_fenced(unsigned thread, uint64_t epoch);
// device_memory.cpp: whether an allocation holds all these bytes.
bool sim_memory_holds(uintptr_t address, size_t bytes);

#endif
