// Names for a tool that watches this process (Nsight Systems), through NVTX. Only builds for GPUs have it.
#ifndef PTB_PROFILER_NVTX_CUDA_H
#define PTB_PROFILER_NVTX_CUDA_H

#include <stdbool.h>
#include <stdint.h>

// Whether there is such a tool: where there is none, names need not be made.
bool ptb_nvtx_is_heard(void);
// A range that may end on any thread and in any order.
uint64_t ptb_nvtx_start(const char *name);
void ptb_nvtx_end(uint64_t range);
// Ranges of the calling thread that nest.
void ptb_nvtx_push(const char *name);
void ptb_nvtx_pop(void);

#endif
