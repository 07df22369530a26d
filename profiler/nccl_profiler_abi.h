// The interface that NCCL calls a profiler plug-in through, declared here since the toolkit has no header for
// it: version 1 (NCCL 2.23), 2 (2.24, 2.25), 3 (2.26), 4 (2.27), 5 (2.28) and 6 (2.29 and later). From NCCL's
// published sources: src/include/nccl_profiler.h up to 2.25, then src/include/plugin/nccl_profiler.h and
// src/include/plugin/profiler/profiler_v1.h to profiler_v6.h. nccl_profiler_versions.c asserts the offsets;
// tests/unit/test_nccl_profiler_abi.sh compares with those files where a copy is at hand. Version 6 adds
// events of copy engines to the union of version 5 and nothing else that we read: ptb_nccl_event is both, and
// what older versions are translated to.
#ifndef PTB_PROFILER_NCCL_PROFILER_ABI_H
#define PTB_PROFILER_NCCL_PROFILER_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Kinds of event: bits of the activation mask. What a version does not know yet it ignores in the mask.
enum {
    PTB_NCCL_GROUP = 1 << 0,
    PTB_NCCL_COLL = 1 << 1,
    PTB_NCCL_P2P = 1 << 2,
    PTB_NCCL_PROXY_OP = 1 << 3,
    PTB_NCCL_PROXY_STEP = 1 << 4,
    PTB_NCCL_PROXY_CTRL = 1 << 5,
    PTB_NCCL_KERNEL_CH = 1 << 6, // from version 3 on
    PTB_NCCL_NET_PLUGIN = 1 << 7,
    PTB_NCCL_GROUP_API = 1 << 8, // from version 5 on
    PTB_NCCL_COLL_API = 1 << 9,
    PTB_NCCL_P2P_API = 1 << 10,
    PTB_NCCL_KERNEL_LAUNCH = 1 << 11,
    PTB_NCCL_CE_COLL = 1 << 12, // version 6
    PTB_NCCL_CE_SYNC = 1 << 13,
    PTB_NCCL_CE_BATCH = 1 << 14,
};

// States of an event, of which these are read: recordEventState. Their numbers are those of all versions that
// have them.
enum {
    PTB_NCCL_STATE_OP_FIRST =
        0, // of a proxy operation, up to version 3; arguments: proxy_op, the bytes so far
    PTB_NCCL_STATE_OP_LAST = 7,
    PTB_NCCL_STATE_SEND_WAIT = 9,        // a step's bytes are on their way; from version 4 on: proxy_step
    PTB_NCCL_STATE_RECV_FLUSH_WAIT = 11, // a step's bytes have come; the same
    PTB_NCCL_STATE_KERNEL_CH_STOP = 22,  // from version 4 on: kernel_ch
};

// The same in all versions.
typedef struct {
    int pid; // of the process whose handle `parent` is: another one's with PXN
    uint8_t channel;
    int peer;
    int steps;
    int chunk_bytes;
    int is_send;
} ptb_nccl_proxy_op;
typedef struct {
    int step;
} ptb_nccl_proxy_step;
typedef struct {
    int64_t id;
    void *data;
} ptb_nccl_net_plugin;
typedef struct { // from version 4 on
    uint8_t channel;
    uint64_t gpu_ns; // globaltimer of the GPU at the start
} ptb_nccl_kernel_ch;

// ---- versions 5 and 6

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
            uint64_t sequence;    // of this function on this communicator
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
        ptb_nccl_proxy_op proxy_op;
        ptb_nccl_proxy_step proxy_step;
        ptb_nccl_kernel_ch kernel_ch;
        ptb_nccl_net_plugin net_plugin;
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

// From version 4 on.
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

// ---- version 4

typedef struct {
    uint8_t type;
    void *parent; // of an operation: the group
    int rank;
    union {
        struct {
            uint64_t sequence;
            const char *function;
            const void *send;
            void *recv;
            size_t count;
            int root;
            const char *datatype;
            uint8_t channels, warps;
            const char *algorithm;
            const char *protocol;
        } coll;
        struct {
            const char *function;
            void *buffer;
            const char *datatype;
            size_t count;
            int peer;
            uint8_t channels;
        } p2p;
        ptb_nccl_proxy_op proxy_op;
        ptb_nccl_proxy_step proxy_step;
        ptb_nccl_kernel_ch kernel_ch;
        ptb_nccl_net_plugin net_plugin;
    };
} ptb_nccl_event_v4;

typedef struct {
    const char *name;
    int (*init)(void **context, int *activation_mask, const char *comm_name, uint64_t comm_id, int nodes,
                int ranks, int rank, void (*log)(void));
    int (*start_event)(void *context, void **handle, ptb_nccl_event_v4 *event);
    int (*stop_event)(void *handle);
    int (*record_event_state)(void *handle, int state, ptb_nccl_state_args *args);
    int (*finalize)(void *context);
} ptb_nccl_profiler_plugin_v4;

// ---- versions 1 to 3
//
// init says nothing of the communicator; each operation carries its name, which NCCL 2.23 to 2.26 leave NULL.
// max_channels is what the operation may use at most.

typedef struct {
    uint8_t type;
    void *parent;
    int rank;
    union {
        struct {
            const char *comm_name;
            uint64_t comm_id, sequence;
            const char *function;
            const void *send;
            void *recv;
            size_t count;
            int root;
            const char *datatype;
            uint8_t max_channels, warps;
            const char *algorithm;
            const char *protocol;
        } coll;
        struct {
            const char *comm_name;
            uint64_t comm_id;
            const char *function;
            void *buffer;
            const char *datatype;
            size_t count;
            int peer;
        } p2p;
        ptb_nccl_proxy_op proxy_op;
        ptb_nccl_proxy_step proxy_step;
        struct {
            uint8_t channel;
        } kernel_ch;
        ptb_nccl_net_plugin net_plugin;
    };
} ptb_nccl_event_v3;

typedef struct {
    uint8_t type;
    void *parent;
    int rank;
    union {
        struct {
            const char *comm_name;
            uint64_t comm_id, sequence;
            const char *function;
            const void *send;
            void *recv;
            size_t count;
            int root;
            const char *datatype;
            size_t traffic_bytes;
            uint8_t max_channels, warps;
            const char *algorithm;
            const char *protocol;
        } coll;
        struct {
            const char *comm_name;
            uint64_t comm_id;
            const char *function;
            void *buffer;
            const char *datatype;
            size_t count;
            int peer;
        } p2p;
        ptb_nccl_proxy_op proxy_op;
        ptb_nccl_proxy_step proxy_step;
    };
} ptb_nccl_event_v2;

typedef struct {
    uint8_t type;
    void *parent;
    int rank;
    union {
        struct {
            const char *comm_name;
            uint64_t comm_id, sequence;
            uint8_t function; // these four are numbers of NCCL 2.23's enumerations
            const void *send;
            void *recv;
            size_t count;
            int root;
            uint8_t datatype;
            uint32_t op;
            size_t traffic_bytes;
            uint8_t max_channels, warps;
            uint8_t algorithm;
            uint8_t protocol;
            int is_collnet, is_nvls;
        } coll;
        struct {
            const char *comm_name;
            uint64_t comm_id;
            uint8_t function;
            void *buffer;
            uint8_t datatype;
            size_t count;
            int peer;
        } p2p;
        ptb_nccl_proxy_op proxy_op;
        ptb_nccl_proxy_step proxy_step;
    };
} ptb_nccl_event_v1;

// NULL with the states of steps.
typedef union {
    struct {
        size_t bytes; // of the operation so far
        int steps;
    } proxy_op;
    struct {
        int appended;
    } proxy_ctrl;
} ptb_nccl_state_args_v1;

#define PTB_NCCL_PLUGIN_TO_V3(version)                                                                       \
    typedef struct {                                                                                         \
        const char *name;                                                                                    \
        int (*init)(void **context, int *activation_mask);                                                   \
        int (*start_event)(void *context, void **handle, ptb_nccl_event_##version *event);                   \
        int (*stop_event)(void *handle);                                                                     \
        int (*record_event_state)(void *handle, int state, ptb_nccl_state_args_v1 *args);                    \
        int (*finalize)(void *context);                                                                      \
    } ptb_nccl_profiler_plugin_##version
PTB_NCCL_PLUGIN_TO_V3(v1);
PTB_NCCL_PLUGIN_TO_V3(v2);
PTB_NCCL_PLUGIN_TO_V3(v3);
#undef PTB_NCCL_PLUGIN_TO_V3

#endif
