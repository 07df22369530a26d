// ptbench as a profiler plug-in of NCCL, inside the program itself: what really ran for a collective
// (algorithm, protocol, channels), and what NCCL did inside of it (channels of its kernels, proxy operations
// and their steps, sends of the network plug-in) as spans in lanes of their own (core/trace.h). Never told of
// an operation on real hardware: on the one GPU that it has run on, NCCL has none.
//
// NCCL takes the plug-in out of the running program (NCCL_PROFILER_PLUGIN=STATIC_PLUGIN, symbols
// ncclProfiler_v1 to ncclProfiler_v6: nccl_profiler_versions.c) when the first communicator of the process is
// made, from NCCL 2.23 on; before, it has no such interface. Up to 2.26 NCCL does not say which communicator
// it speaks of: then that is the one that was being made when it first did. As NCCL gives a plug-in no place
// for its state, that state is the one object of the process here. Nothing is recorded while the activation
// mask is 0, which it is but between begin and end below; then NCCL asks nothing of the plug-in but to look
// at the mask.
//
// What NCCL tells of no operation: kernels on symmetric windows (2.27 and later), broadcasts unless
// NCCL_ALLGATHERV_ENABLE=0 (2.30), copy engines in 2.28. From 2.28 on it names the call nevertheless.
#ifndef PTB_PROFILER_NCCL_PROFILER_H
#define PTB_PROFILER_NCCL_PROFILER_H

#include "core/trace.h"
#include "profiler/capture.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// One communicator of NCCL, as the plug-in knows it.
typedef struct ptb_nccl_watched ptb_nccl_watched;

// What NCCL said of the operations between begin and end.
typedef struct {
    int collectives, messages; // how many operations of each kind
    int calls;                 // of collectives, from NCCL 2.28 on, also where no operation is told of
    char function[24];         // of the first: "AllReduce"
    char algorithm[24];        // of the first collective, lower case: "ring"; "" none
    char protocol[16];         // "ll128"
    int channels;              // of the first collective, else the most of the messages; 0: not told
    bool channels_are_most;    // it may have used fewer (up to NCCL 2.26)
    bool mixed;                // the collectives differ in algorithm or protocol
    bool is_captured;          // a call was captured into a graph: NCCL may tell of its operation later
} ptb_nccl_ran;

// Before the first communicator: asks NCCL to load the plug-in. False when the environment names another one
// (NCCL_PROFILER_PLUGIN), which is left alone.
bool ptb_nccl_profiler_request(void);
// Around the making of a communicator: NULL when NCCL has not told the plug-in of it, or when it is not known
// which of several it told of, since it says no names and threads of this process made some at once. made is
// called whatever became of it, with the number that making gave; name: ncclConfig_t.commName, NULL when
// there is no communicator. What made gives lives as long as NCCL's communicator.
uint64_t ptb_nccl_profiler_making(void);
ptb_nccl_watched *ptb_nccl_profiler_made(uint64_t making, const char *name);

// Records what the operations enqueued until end run as. One at a time a communicator.
void ptb_nccl_profiler_begin(ptb_nccl_watched *watched);
void ptb_nccl_profiler_end(ptb_nccl_watched *watched, ptb_nccl_ran *ran);

// Records the events of all communicators' operations that are enqueued until stop as spans, at most
// `capacity`. NCCL tells of their inside from threads of its own, which may be later than the stream has done
// them: until the spans are read. whose (may be NULL) is asked, on the thread that NCCL tells of an operation
// on, which work is open there: its phase, unit, microbatch, axis and step are those of the operation and of
// all that it has inside. NO_MEMORY, logged.
ptb_status ptb_nccl_profiler_start(size_t capacity, ptb_open_work_fn *whose, void *context);
void ptb_nccl_profiler_stop(void);
// After stop, when the streams are idle: waits until NCCL has ended all that it told of and tells no more, at
// most so long.
void ptb_nccl_profiler_settle(int64_t patience_ns);
// Adds what was recorded since start to the trace, as spans of kind PTB_SPAN_INSIDE; dropped: how many did
// not fit; late: how many NCCL had not ended, or told of only after an earlier reading (these are left out).
// Times of kernel channels come from the GPU's clock: they are put on the trace's clock by the smallest delay
// that any of them was told with, so they may be late by at most that delay; with NCCL 2.26 they are the
// times at which NCCL's thread saw the channel begin and end. Only after stop and when the streams are idle.
// step: that what belongs to no work is counted in. dropped and late may be NULL.
void ptb_nccl_profiler_spans(ptb_trace *trace, uint64_t step, size_t *dropped, size_t *late);
// Gives the memory of the spans back.
void ptb_nccl_profiler_release(void);

#endif
