// The interface that NCCL calls a profiler plug-in through, versions 5 (NCCL 2.28) and 6 (2.29 and later),
// declared here since the toolkit has no header for it. From NCCL's published sources:
// src/include/plugin/nccl_profiler.h and src/include/plugin/profiler/profiler_v5.h, profiler_v6.h.
// nccl_profiler.c asserts the offsets; tests/unit/test_nccl_profiler_abi.sh compares with those files where a
// copy is at hand. Version 6 adds events of copy engines to the union and nothing else that we read, and
// everything of version 5 lies at the same place in it.
#ifndef PTB_PROFILER_NCCL_PROFILER_ABI_H
#define PTB_PROFILER_NCCL_PROFILER_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Kinds of event: bits of the activation mask.
enum {
    PTB_NCCL_GROUP = 1 << 0,
    PTB_NCCL_COLL = 1 << 1,
    PTB_NCCL_P2P = 1 << 2,
    PTB_NCCL_PROXY_OP = 1 << 3,
    PTB_NCCL_PROXY_STEP = 1 << 4,
    PTB_NCCL_PROXY_CTRL = 1 << 5,
    PTB_NCCL_KERNEL_CH = 1 << 6,
    PTB_NCCL_NET_PLUGIN = 1 << 7,
    PTB_NCCL_GROUP_API = 1 << 8,
    PTB_NCCL_COLL_API = 1 << 9,
    PTB_NCCL_P2P_API = 1 << 10,
    PTB_NCCL_KERNEL_LAUNCH = 1 << 11,
    PTB_NCCL_CE_COLL = 1 << 12, // version 6
    PTB_NCCL_CE_SYNC = 1 << 13,
    PTB_NCCL_CE_BATCH = 1 << 14,
};

// States of an event, of which these are read: recordEventState.
enum {
    PTB_NCCL_STATE_SEND_WAIT = 9, // a proxy step's bytes are on their way; arguments: proxyStep
    PTB_NCCL_STATE_RECV_WAIT = 10,
    PTB_NCCL_STATE_KERNEL_CH_STOP = 22, // arguments: kernelCh
};

typedef struct {
    uint64_t type; // one of the bits
    void *parent;  // handle that our startEvent gave for the event around this one
    int rank;
    union {
        struct {
            bool graph_captured;
            int depth;
        } group_api;
        struct {
            const char *function;
            size_t count;
            const char *datatype;
            int root;
            void *stream;
            bool graph_captured;
        } coll_api;
        struct {
            const char *function;
            size_t count;
            const char *datatype;
            void *stream;
            bool graph_captured;
        } p2p_api;
        struct {
            void *stream;
        } kernel_launch;
        struct {
            uint64_t sequence;
            const char *function; // "AllReduce"
            const void *send;
            void *recv;
            size_t count;
            int root;
            const char *datatype;
            uint8_t channels, warps;
            const char *algorithm; // "RING"
            const char *protocol;  // "LL128"
            void *group;
        } coll;
        struct {
            const char *function; // "Send", "Recv", or the collective that is made of them
            void *buffer;
            const char *datatype;
            size_t count;
            int peer;
            uint8_t channels;
            void *group;
        } p2p;
        struct {
            int pid; // of the process whose handle `parent` is: another one's with PXN
            uint8_t channel;
            int peer;
            int steps;
            int chunk_bytes;
            int is_send;
        } proxy_op;
        struct {
            int step;
        } proxy_step;
        struct {
            uint8_t channel;
            uint64_t gpu_ns; // globaltimer of the GPU at the start
        } kernel_ch;
        struct {
            int64_t id;
            void *data;
        } net_plugin;
        struct { // version 6
            uint64_t sequence;
            const char *function;
            const void *send;
            void *recv;
            size_t count;
            int root;
            const char *datatype;
            const char *sync_strategy;
            bool intra_batch_sync;
            uint32_t batch_size, batches, ce_sequence;
            void *stream;
        } ce_coll;
    };
} ptb_nccl_event;

typedef union {
    struct {
        size_t bytes;
    } proxy_step;
    struct {
        int appended;
    } proxy_ctrl;
    struct {
        void *data;
    } net_plugin;
    struct {
        uint64_t gpu_ns;
    } kernel_ch;
} ptb_nccl_state_args;

// Results are ncclResult_t (0: success); states are ncclProfilerEventState_t; log is ncclDebugLogger_t.
typedef struct {
    const char *name;
    int (*init)(void **context, uint64_t comm_id, int *activation_mask, const char *comm_name, int nodes,
                int ranks, int rank, void (*log)(void));
    int (*start_event)(void *context, void **handle, ptb_nccl_event *event);
    int (*stop_event)(void *handle);
    int (*record_event_state)(void *handle, int state, ptb_nccl_state_args *args);
    int (*finalize)(void *context);
} ptb_nccl_profiler_plugin;

#endif
