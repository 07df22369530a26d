// What nccl_profiler.c and nccl_profiler_versions.c share: the plug-in behind the six interfaces that NCCL's
// versions call it through. Each interface translates what it is told to the newest one's event.
#ifndef PTB_PROFILER_NCCL_PROFILER_CORE_H
#define PTB_PROFILER_NCCL_PROFILER_CORE_H

#include "profiler/nccl_profiler_abi.h"

#include <stdbool.h>

// What NCCL gets as the handle of a group up to version 4, where it tells of no operation whose group has no
// handle. Stands for no record (nccl_events.h).
#define PTB_NCCL_GROUP_HANDLE ((void *)UINTPTR_MAX)

// comm_name: NULL where this interface, or this communicator, has none. channels_are_most: the channels that
// it tells are those that an operation may use at most. *context is NULL when there is no memory for one: up
// to NCCL 2.27 an error would have it read what it has freed when the communicator ends.
void ptb_nccl_core_init(void **context, int *activation_mask, const char *comm_name, bool channels_are_most);
// context: what init gave for the communicator of this operation; for proxies and the network it may be
// another process's (PXN), and is not looked at.
void ptb_nccl_core_start(void *context, void **handle, const ptb_nccl_event *event);
void ptb_nccl_core_finalize(void *context);

#endif
