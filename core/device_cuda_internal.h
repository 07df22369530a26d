// Shared by the files of the CUDA device (device_cuda*.c, *.cu): its structs, and the launchers of its
// kernels. Types of CUDA's headers appear only as the structs behind them, so that it compiles everywhere.
#ifndef PTB_CORE_DEVICE_CUDA_INTERNAL_H
#define PTB_CORE_DEVICE_CUDA_INTERNAL_H

#ifdef __cplusplus
#include "core/pattern_element.h"

extern "C" {
#else
#include "core/device_cuda.h"
#include "core/ledger.h"
#include "core/pattern_element.h"

#include <stdatomic.h>

struct CUevent_st;     // cudaEvent_t
struct CUgraph_st;     // cudaGraph_t
struct CUgraphExec_st; // cudaGraphExec_t

typedef struct {
    ptb_device base;
    int index;                 // CUDA's number
    int processors;            // streaming multiprocessors
    int urgent, ordinary;      // priorities of streams
    bool has_pool;             // stream-ordered allocation
    atomic_bool is_lost;       // calls fail from now on; said once
    struct CUstream_st *order; // of allocations and frees
    ptb_ledger ledger;
    // Of graphs: a number for each capture, and whether one is under way.
    unsigned capture;
    bool is_capturing;
} ptb_cuda_device;

struct ptb_cuda_checks;
typedef struct {
    ptb_stream base;
    struct CUstream_st *stream;
    _Atomic int status;             // the first one that is not OK
    struct ptb_cuda_checks *checks; // NULL until the first check
} ptb_cuda_stream_t;

// `event` is what everybody waits for. Within a capture, streams are tied by `inner`, whose records are the
// graph's own edges; `event` is then recorded by a node of the graph.
typedef struct {
    ptb_event base;
    ptb_cuda_device *device;
    struct CUevent_st *event, *inner;
    unsigned capture; // in which it was recorded; 0: outside
} ptb_cuda_event;

typedef struct {
    ptb_graph base;
    struct CUgraph_st *recorded; // what exec was made from, for the names of its kernels
    struct CUgraphExec_st *exec;
} ptb_cuda_graph;

// device_cuda_status.c: what to try after this cudaError_t; NULL: nothing special is known.
const char *ptb_cuda_advice(int error);
// Like ptb_cuda_check, but of a device that is lost nothing more is said.
ptb_status ptb_cuda_device_check(ptb_cuda_device *device, int error, const char *call, const char *file,
                                 int line);
#define PTB_CUDA_CHECK(device, call) ptb_cuda_device_check((device), (int)(call), #call, __FILE__, __LINE__)
// device_cuda_open.c
ptb_status ptb_cuda_device_open(int index, ptb_device **device);
bool ptb_cuda_foresee(int index, char identity[64], uint64_t *bytes);
bool ptb_cuda_describe(int index, char description[128]);
// device_cuda_mig.c: see ptb_device_ops.choose; and how many instances there are for the ranks of this host
// to choose from.
void ptb_cuda_choose(int local_rank);
int ptb_cuda_instances_named(void);
struct cudaDeviceProp;
// ptb_device.identity of CUDA's device `index`; whether it is an instance of MIG.
bool ptb_cuda_identify(const struct cudaDeviceProp *prop, int index, char identity[64]);
// device_cuda_stream.c
ptb_status ptb_cuda_stream_new(ptb_device *device, ptb_stream_kind kind, int lane, ptb_stream **stream);
void ptb_cuda_stream_free(ptb_stream *stream);
ptb_status ptb_cuda_stream_sync(ptb_stream *stream);
ptb_status ptb_cuda_event_new(ptb_device *device, ptb_event **event);
void ptb_cuda_event_free(ptb_event *event);
ptb_status ptb_cuda_event_record(ptb_event *event, ptb_stream *stream);
ptb_status ptb_cuda_event_wait(ptb_stream *stream, ptb_event *event);
ptb_status ptb_cuda_event_sync(ptb_event *event);
ptb_status ptb_cuda_event_query(ptb_event *event, bool *reached);
ptb_status ptb_cuda_graph_begin(ptb_stream *stream);
ptb_status ptb_cuda_graph_end(ptb_stream *stream, ptb_graph **graph);
ptb_status ptb_cuda_graph_launch(ptb_graph *graph, ptb_stream *stream);
void ptb_cuda_graph_free(ptb_graph *graph);
// device_cuda_names.c
size_t ptb_cuda_graph_kernels(const ptb_graph *graph, const char **names, size_t most);
// device_cuda_pattern.c
ptb_status ptb_cuda_fill(ptb_stream *stream, const ptb_pattern *pattern, bool reduced, int rank, size_t first,
                         void *buffer, size_t count);
ptb_status ptb_cuda_check_buffer(ptb_stream *stream, const ptb_pattern *pattern, const ptb_expect *expect,
                                 const void *buffer, ptb_check *check);
ptb_status ptb_cuda_reduce(ptb_stream *stream, ptb_dtype type, ptb_redop op, void *out, const void *a,
                           const void *b, size_t count);
// device_cuda_peer.c
ptb_status ptb_cuda_alloc_peer(ptb_device *device, int index, size_t bytes, char *reason, void **memory);
void ptb_cuda_free_peer(ptb_device *device, int index, void *memory);
ptb_status ptb_cuda_copy_by_kernel(ptb_stream *stream, void *to, const void *from, size_t bytes);
// Adds the finished checks of a stream that has been waited for to where they were asked for.
void ptb_cuda_checks_finish(ptb_cuda_stream_t *stream);
void ptb_cuda_checks_free(ptb_cuda_stream_t *stream);
#endif

// What is under way in a check: in device memory, zero before it starts.
typedef struct {
    unsigned long long wrong;
    unsigned long long before_end; // SIZE_MAX - index of the first wrong element, the largest of all
} ptb_cuda_counter;

// What came of it, in pinned host memory.
typedef struct {
    unsigned long long wrong, first_wrong;
    unsigned char got[8]; // the element there
} ptb_cuda_finding;

// The launchers (core/device_cuda_pattern.cu, core/device_cuda_reduce.cu) return a cudaError_t. Buffers are
// aligned to their elements. blocks: the most that a grid should have.
int ptb_cuda_launch_fill(const ptb_recipe *recipe, size_t first, void *buffer, size_t count, int blocks,
                         struct CUstream_st *stream);
// recipe NULL: poison. buffer points at the first element to be checked, which is element first_index.
// Clears the counter afterwards.
int ptb_cuda_launch_check(const ptb_recipe *recipe, ptb_dtype type, size_t source_index, size_t first_index,
                          const void *buffer, size_t count, ptb_cuda_counter *counter,
                          ptb_cuda_finding *finding, int blocks, struct CUstream_st *stream);
int ptb_cuda_launch_reduce(ptb_dtype type, ptb_redop op, void *out, const void *a, const void *b,
                           size_t count, int blocks, struct CUstream_st *stream);
// core/device_cuda_peer.cu
int ptb_cuda_launch_peer_copy(void *to, const void *from, size_t bytes, int processors,
                              struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

#endif
