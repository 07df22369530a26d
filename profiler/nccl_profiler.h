// ptbench as a profiler plug-in of NCCL, inside the program itself: what really ran for a collective
// (algorithm, protocol, channels), and what NCCL did inside of it (channels of its kernels, proxy operations
// and their steps, sends of the network plug-in) as spans in lanes of their own (core/trace.h). Never run on
// real hardware.
//
// NCCL takes the plug-in out of the running program (NCCL_PROFILER_PLUGIN=STATIC_PLUGIN, symbols
// ncclProfiler_v5 and ncclProfiler_v6) when the first communicator of the process is made; NCCL before 2.28
// asks for neither. As NCCL gives a plug-in no place for its state, that state is the one object of the
// process here. Nothing is recorded while the activation mask is 0, which it is but between begin and end
// below; then NCCL asks nothing of the plug-in but to look at the mask.
#ifndef PTB_PROFILER_NCCL_PROFILER_H
#define PTB_PROFILER_NCCL_PROFILER_H

#include "core/trace.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// One communicator of NCCL, as the plug-in knows it.
typedef struct ptb_nccl_watched ptb_nccl_watched;

// What NCCL said of the operations between begin and end.
typedef struct {
    int collectives, messages; // how many operations of each kind
    char function[24];         // of the first: "AllReduce"
    char algorithm[24];        // of the first collective, lower case: "ring"; "" none
    char protocol[16];         // "ll128"
    int channels;              // of the first collective, else the most of the messages
    bool mixed;                // the collectives differ in algorithm or protocol
} ptb_nccl_ran;

// Before the first communicator: asks NCCL to load the plug-in. False when the environment names another one
// (NCCL_PROFILER_PLUGIN), which is left alone.
bool ptb_nccl_profiler_request(void);
// The communicator of that name (ncclConfig_t.commName); NULL when NCCL has not told the plug-in of it. It
// lives as long as NCCL's communicator.
ptb_nccl_watched *ptb_nccl_profiler_find(const char *name);

// Records what the operations enqueued until end run as. One at a time a communicator.
void ptb_nccl_profiler_begin(ptb_nccl_watched *watched);
void ptb_nccl_profiler_end(ptb_nccl_watched *watched, ptb_nccl_ran *ran);

// Records the events of all communicators' operations that are enqueued until stop as spans, at most
// `capacity`. NCCL tells of their inside from threads of its own, which may be later than the stream has done
// them: until the spans are read. NO_MEMORY, logged.
ptb_status ptb_nccl_profiler_start(size_t capacity);
void ptb_nccl_profiler_stop(void);
// Adds what was recorded since start to the trace, as spans of kind PTB_SPAN_INSIDE; dropped: how many did
// not fit; open: how many NCCL never ended (these are left out). Times of kernel channels come from the GPU's
// clock: they are put on the trace's clock by the smallest delay that any of them was told with, so they may
// be late by at most that delay. Only after stop and when the streams are idle. dropped and open may be NULL.
void ptb_nccl_profiler_spans(ptb_trace *trace, size_t *dropped, size_t *open);
// Gives the memory of the spans back.
void ptb_nccl_profiler_release(void);

#endif
