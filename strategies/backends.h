// Which kernels and which communicator go with a device: what stands in their place when only the device was
// named, and refusal of combinations that cannot work, before anything is allocated.
#ifndef PTB_STRATEGIES_BACKENDS_H
#define PTB_STRATEGIES_BACKENDS_H

#include "collectives/comm.h"
#include "strategies/transformer/kernels.h"

// USAGE, logged, when there is no such device.
ptb_status ptb_backends_device(const char *device);
// USAGE, logged, when the device (registered) has no graphs.
ptb_status ptb_backends_check_graphs(const char *device);
// Kernels by name; NULL or "": those of the device. USAGE, logged, when there are none, or when they compute
// on another device.
ptb_status ptb_backends_kernels(const char *device, const char *name, const ptb_kernels **kernels);
// Names a communicator that moves the device's memory: the one of the same name before others. USAGE, logged,
// when there is none.
ptb_status ptb_backends_comm(const char *device, const char **name);
// Name of the device whose memory the communicator moves; "host" for one that is not registered.
const char *ptb_backends_comm_device(const char *comm);
// USAGE, logged, when the communicator (registered) cannot move the device's memory.
ptb_status ptb_backends_check_comm(const char *device, const char *comm);

#endif
