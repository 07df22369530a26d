// A profiler plug-in as one version of NCCL calls it (nccl_plugin.cpp).
#ifndef PTB_SIMCUDA_NCCL_PLUGIN_HPP
#define PTB_SIMCUDA_NCCL_PLUGIN_HPP

#include "profiler/nccl_profiler_abi.h"
#include "tests/simcuda/nccl.hpp"

// Looks the plug-in up, once a process: what was found first stays, also nothing. Its interface is the newest
// that this NCCL knows.
bool sim_plugin_load(void);
int sim_plugin_version(void); // of the interface, 1 to 6
void sim_plugin_init(ncclComm *comm, int *mask);
void sim_plugin_finalize(ncclComm *comm);

// The event in the interface's form; kinds that it does not have are not told (NULL).
void *sim_plugin_start(ncclComm *comm, void *context, ptb_nccl_event *event);
void sim_plugin_stop(void *handle);
// States of a proxy operation and of its step, in the order of the real one, with the bytes that it knows by
// then: all is transmitted at the end.
void sim_plugin_proxy_states(void *op, void *step, bool is_send, size_t bytes);
void sim_plugin_kernel_stop(void *kernel, uint64_t gpu_ns);

#endif
