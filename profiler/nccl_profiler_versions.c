// The six interfaces of the plug-in (nccl_profiler.h): what NCCL calls, by version. NCCL looks the newest up
// that it knows, then older ones, by these names in the program (src/plugin/profiler.cc; up to NCCL 2.25
// src/misc/profiler.cc), so all are there.
//
// To add a version: its structs in nccl_profiler_abi.h, the offsets and functions here, a descriptor at the
// end, and its number in tests/simcuda/nccl_profiler.cpp and tests/unit/test_nccl_profiler_abi.sh.
#include "profiler/nccl_events.h"
#include "profiler/nccl_profiler_core.h"

#include <stdio.h>

// Offsets by the published headers, on a 64-bit system.
#define AT(struct_, field, offset) _Static_assert(offsetof(struct_, field) == (offset), #struct_ "." #field)
#define HEAD(struct_)                                                                                        \
    AT(struct_, type, 0);                                                                                    \
    AT(struct_, parent, 8);                                                                                  \
    AT(struct_, rank, 16);                                                                                   \
    AT(struct_, proxy_op.pid, 24);                                                                           \
    AT(struct_, proxy_op.channel, 28);                                                                       \
    AT(struct_, proxy_op.peer, 32);                                                                          \
    AT(struct_, proxy_op.steps, 36);                                                                         \
    AT(struct_, proxy_op.chunk_bytes, 40);                                                                   \
    AT(struct_, proxy_op.is_send, 44);                                                                       \
    AT(struct_, proxy_step.step, 24)
#define COLL(struct_, at, channels_)                                                                         \
    AT(struct_, coll.sequence, at);                                                                          \
    AT(struct_, coll.function, (at) + 8);                                                                    \
    AT(struct_, coll.send, (at) + 16);                                                                       \
    AT(struct_, coll.recv, (at) + 24);                                                                       \
    AT(struct_, coll.count, (at) + 32);                                                                      \
    AT(struct_, coll.root, (at) + 40);                                                                       \
    AT(struct_, coll.channels_, (at) + 56);                                                                  \
    AT(struct_, coll.warps, (at) + 57)
#define P2P(struct_, at)                                                                                     \
    AT(struct_, p2p.function, at);                                                                           \
    AT(struct_, p2p.buffer, (at) + 8);                                                                       \
    AT(struct_, p2p.datatype, (at) + 16);                                                                    \
    AT(struct_, p2p.count, (at) + 24);                                                                       \
    AT(struct_, p2p.peer, (at) + 32)
#define NETWORK(struct_)                                                                                     \
    AT(struct_, kernel_ch.channel, 24);                                                                      \
    AT(struct_, net_plugin.id, 24);                                                                          \
    AT(struct_, net_plugin.data, 32)

HEAD(ptb_nccl_event_v1);
AT(ptb_nccl_event_v1, coll.comm_name, 24);
AT(ptb_nccl_event_v1, coll.comm_id, 32);
AT(ptb_nccl_event_v1, coll.sequence, 40);
AT(ptb_nccl_event_v1, coll.function, 48);
AT(ptb_nccl_event_v1, coll.send, 56);
AT(ptb_nccl_event_v1, coll.recv, 64);
AT(ptb_nccl_event_v1, coll.count, 72);
AT(ptb_nccl_event_v1, coll.root, 80);
AT(ptb_nccl_event_v1, coll.datatype, 84);
AT(ptb_nccl_event_v1, coll.op, 88);
AT(ptb_nccl_event_v1, coll.traffic_bytes, 96);
AT(ptb_nccl_event_v1, coll.max_channels, 104);
AT(ptb_nccl_event_v1, coll.warps, 105);
AT(ptb_nccl_event_v1, coll.algorithm, 106);
AT(ptb_nccl_event_v1, coll.protocol, 107);
AT(ptb_nccl_event_v1, coll.is_nvls, 112);
AT(ptb_nccl_event_v1, p2p.comm_name, 24);
P2P(ptb_nccl_event_v1, 40);
_Static_assert(sizeof(ptb_nccl_event_v1) == 120, "version 1");

HEAD(ptb_nccl_event_v2);
AT(ptb_nccl_event_v2, coll.comm_name, 24);
AT(ptb_nccl_event_v2, coll.sequence, 40);
AT(ptb_nccl_event_v2, coll.function, 48);
AT(ptb_nccl_event_v2, coll.count, 72);
AT(ptb_nccl_event_v2, coll.root, 80);
AT(ptb_nccl_event_v2, coll.datatype, 88);
AT(ptb_nccl_event_v2, coll.traffic_bytes, 96);
AT(ptb_nccl_event_v2, coll.max_channels, 104);
AT(ptb_nccl_event_v2, coll.algorithm, 112);
AT(ptb_nccl_event_v2, coll.protocol, 120);
AT(ptb_nccl_event_v2, p2p.comm_name, 24);
P2P(ptb_nccl_event_v2, 40);
_Static_assert(sizeof(ptb_nccl_event_v2) == 128, "version 2");

HEAD(ptb_nccl_event_v3);
AT(ptb_nccl_event_v3, coll.comm_name, 24);
COLL(ptb_nccl_event_v3, 40, max_channels);
AT(ptb_nccl_event_v3, coll.datatype, 88);
AT(ptb_nccl_event_v3, coll.algorithm, 104);
AT(ptb_nccl_event_v3, coll.protocol, 112);
AT(ptb_nccl_event_v3, p2p.comm_name, 24);
P2P(ptb_nccl_event_v3, 40);
NETWORK(ptb_nccl_event_v3);
_Static_assert(sizeof(ptb_nccl_event_v3) == 120, "version 3");

HEAD(ptb_nccl_event_v4);
COLL(ptb_nccl_event_v4, 24, channels);
AT(ptb_nccl_event_v4, coll.datatype, 72);
AT(ptb_nccl_event_v4, coll.algorithm, 88);
AT(ptb_nccl_event_v4, coll.protocol, 96);
P2P(ptb_nccl_event_v4, 24);
AT(ptb_nccl_event_v4, p2p.channels, 60);
NETWORK(ptb_nccl_event_v4);
AT(ptb_nccl_event_v4, kernel_ch.gpu_ns, 32);
_Static_assert(sizeof(ptb_nccl_event_v4) == 104, "version 4");

HEAD(ptb_nccl_event);
AT(ptb_nccl_event, group_api.depth, 28);
AT(ptb_nccl_event, coll_api.function, 24);
AT(ptb_nccl_event, coll_api.count, 32);
AT(ptb_nccl_event, coll_api.stream, 56);
AT(ptb_nccl_event, p2p_api.stream, 48);
AT(ptb_nccl_event, kernel_launch.stream, 24);
COLL(ptb_nccl_event, 24, channels);
AT(ptb_nccl_event, coll.datatype, 72);
AT(ptb_nccl_event, coll.algorithm, 88);
AT(ptb_nccl_event, coll.protocol, 96);
AT(ptb_nccl_event, coll.group, 104);
P2P(ptb_nccl_event, 24);
AT(ptb_nccl_event, p2p.channels, 60);
AT(ptb_nccl_event, p2p.group, 64);
NETWORK(ptb_nccl_event);
AT(ptb_nccl_event, kernel_ch.gpu_ns, 32);
AT(ptb_nccl_event, ce_coll.function, 32);
AT(ptb_nccl_event, ce_coll.stream, 104);
_Static_assert(sizeof(ptb_nccl_event) == 112, "versions 5 and 6");

_Static_assert(sizeof(ptb_nccl_state_args) == 8 && sizeof(ptb_nccl_state_args_v1) == 16, "state arguments");
AT(ptb_nccl_state_args_v1, proxy_op.steps, 8);
_Static_assert(sizeof(ptb_nccl_profiler_plugin) == 48 && sizeof(ptb_nccl_profiler_plugin_v4) == 48 &&
                   sizeof(ptb_nccl_profiler_plugin_v1) == 48,
               "six pointers");
#undef NETWORK
#undef P2P
#undef COLL
#undef HEAD
#undef AT

// ---- what all have

// NCCL is never told of an error: it could only stop asking.
static int stop_event(void *handle)
{
    ptb_nccl_events_close(handle);
    return 0;
}

static int finalize(void *context)
{
    ptb_nccl_core_finalize(context);
    return 0;
}

// ---- versions 5 and 6

static int init(void **context, uint64_t comm_id, int *activation_mask, const char *comm_name, int nodes,
                int ranks, int rank, void (*log)(void))
{
    (void)comm_id, (void)nodes, (void)ranks, (void)rank, (void)log;
    ptb_nccl_core_init(context, activation_mask, comm_name, false);
    return 0;
}

static int start_event(void *context, void **handle, ptb_nccl_event *event)
{
    ptb_nccl_core_start(context, handle, event);
    return 0;
}

// A receive's bytes are known when they have come: with RecvWait, the state before, NCCL tells those of the
// receive before it.
static int record_state(void *handle, int state, ptb_nccl_state_args *args)
{
    if (args && state == PTB_NCCL_STATE_KERNEL_CH_STOP)
        ptb_nccl_events_gpu_end(handle, args->kernel_ch.gpu_ns);
    else if (args && (state == PTB_NCCL_STATE_SEND_WAIT || state == PTB_NCCL_STATE_RECV_FLUSH_WAIT))
        ptb_nccl_events_bytes(handle, args->proxy_step.bytes);
    return 0;
}

// ---- version 4

static int init_v4(void **context, int *activation_mask, const char *comm_name, uint64_t comm_id, int nodes,
                   int ranks, int rank, void (*log)(void))
{
    (void)comm_id, (void)nodes, (void)ranks, (void)rank, (void)log;
    ptb_nccl_core_init(context, activation_mask, comm_name, false);
    return 0;
}

static void set_coll(ptb_nccl_event *event, const char *function, const char *algorithm, const char *protocol,
                     uint8_t channels)
{
    event->coll.function = function;
    event->coll.algorithm = algorithm;
    event->coll.protocol = protocol;
    event->coll.channels = channels;
}

static void set_p2p(ptb_nccl_event *event, const char *function, int peer, uint8_t channels)
{
    event->p2p.function = function;
    event->p2p.peer = peer;
    event->p2p.channels = channels;
}

static int start_v4(void *context, void **handle, ptb_nccl_event_v4 *told)
{
    ptb_nccl_event event = {.type = told->type, .parent = told->parent, .rank = told->rank};
    switch (told->type) {
    case PTB_NCCL_GROUP:
        *handle = PTB_NCCL_GROUP_HANDLE;
        return 0;
    case PTB_NCCL_COLL:
        set_coll(&event, told->coll.function, told->coll.algorithm, told->coll.protocol, told->coll.channels);
        break;
    case PTB_NCCL_P2P:
        set_p2p(&event, told->p2p.function, told->p2p.peer, told->p2p.channels);
        break;
    case PTB_NCCL_PROXY_OP:
        event.proxy_op = told->proxy_op;
        break;
    case PTB_NCCL_PROXY_STEP:
        event.proxy_step = told->proxy_step;
        break;
    case PTB_NCCL_KERNEL_CH:
        event.kernel_ch = told->kernel_ch;
        break;
    default:
        break;
    }
    ptb_nccl_core_start(context, handle, &event);
    return 0;
}

// ---- versions 1 to 3

static int init_v1(void **context, int *activation_mask)
{
    ptb_nccl_core_init(context, activation_mask, NULL, true);
    return 0;
}

static int record_v1(void *handle, int state, ptb_nccl_state_args_v1 *args)
{
    if (args && state >= PTB_NCCL_STATE_OP_FIRST && state <= PTB_NCCL_STATE_OP_LAST)
        ptb_nccl_events_bytes(handle, args->proxy_op.bytes);
    return 0;
}

// The times of a kernel's channels are those at which a thread of NCCL's saw them.
static int start_v3(void *context, void **handle, ptb_nccl_event_v3 *told)
{
    ptb_nccl_event event = {.type = told->type, .parent = told->parent, .rank = told->rank};
    switch (told->type) {
    case PTB_NCCL_GROUP:
        *handle = PTB_NCCL_GROUP_HANDLE;
        return 0;
    case PTB_NCCL_COLL:
        set_coll(&event, told->coll.function, told->coll.algorithm, told->coll.protocol,
                 told->coll.max_channels);
        break;
    case PTB_NCCL_P2P:
        set_p2p(&event, told->p2p.function, told->p2p.peer, 0);
        break;
    case PTB_NCCL_PROXY_OP:
        event.proxy_op = told->proxy_op;
        break;
    case PTB_NCCL_PROXY_STEP:
        event.proxy_step = told->proxy_step;
        break;
    case PTB_NCCL_KERNEL_CH:
        event.kernel_ch.channel = told->kernel_ch.channel;
        break;
    default:
        break;
    }
    ptb_nccl_core_start(context, handle, &event);
    return 0;
}

static int start_v2(void *context, void **handle, ptb_nccl_event_v2 *told)
{
    ptb_nccl_event event = {.type = told->type, .parent = told->parent, .rank = told->rank};
    switch (told->type) {
    case PTB_NCCL_GROUP:
        *handle = PTB_NCCL_GROUP_HANDLE;
        return 0;
    case PTB_NCCL_COLL:
        set_coll(&event, told->coll.function, told->coll.algorithm, told->coll.protocol,
                 told->coll.max_channels);
        break;
    case PTB_NCCL_P2P:
        set_p2p(&event, told->p2p.function, told->p2p.peer, 0);
        break;
    case PTB_NCCL_PROXY_OP:
        event.proxy_op = told->proxy_op;
        break;
    case PTB_NCCL_PROXY_STEP:
        event.proxy_step = told->proxy_step;
        break;
    default:
        break;
    }
    ptb_nccl_core_start(context, handle, &event);
    return 0;
}

// Words for the numbers of version 1, which only NCCL 2.23 asks for: ncclFunc_t, NCCL_ALGO_*, NCCL_PROTO_* of
// its src/include/nccl_common.h. A number that it does not have is told as it is.
static const char *const functions_v1[] = {"Broadcast", "Reduce",   "AllGather", "ReduceScatter",
                                           "AllReduce", "SendRecv", "Send",      "Recv"};
static const char *const algorithms_v1[] = {"TREE",      "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS",
                                            "NVLS_TREE", "PAT"};
static const char *const protocols_v1[] = {"LL", "LL128", "SIMPLE"};

typedef struct {
    char text[24];
} number_text;

static const char *word_of(const char *const *words, size_t count, uint8_t number, const char *what,
                           number_text *own)
{
    if (number < count)
        return words[number];
    snprintf(own->text, sizeof own->text, "%s %u", what, number);
    return own->text;
}
#define WORD(words, number, what, own) word_of(words, sizeof words / sizeof *words, number, what, own)

static int start_v1(void *context, void **handle, ptb_nccl_event_v1 *told)
{
    ptb_nccl_event event = {.type = told->type, .parent = told->parent, .rank = told->rank};
    number_text function, algorithm, protocol;
    switch (told->type) {
    case PTB_NCCL_GROUP:
        *handle = PTB_NCCL_GROUP_HANDLE;
        return 0;
    case PTB_NCCL_COLL:
        set_coll(&event, WORD(functions_v1, told->coll.function, "function", &function),
                 WORD(algorithms_v1, told->coll.algorithm, "algorithm", &algorithm),
                 WORD(protocols_v1, told->coll.protocol, "protocol", &protocol), told->coll.max_channels);
        break;
    case PTB_NCCL_P2P:
        set_p2p(&event, WORD(functions_v1, told->p2p.function, "function", &function), told->p2p.peer, 0);
        break;
    case PTB_NCCL_PROXY_OP:
        event.proxy_op = told->proxy_op;
        break;
    case PTB_NCCL_PROXY_STEP:
        event.proxy_step = told->proxy_step;
        break;
    default:
        break;
    }
    ptb_nccl_core_start(context, handle, &event);
    return 0;
}

// ---- the names that NCCL looks up

#define PLUGIN(type, number, init_, start_, record_)                                                         \
    extern const type ncclProfiler_v##number;                                                                \
    __attribute__((used, visibility("default")))                                                             \
    const type ncclProfiler_v##number = {.name = "ptbench",                                                  \
                                         .init = init_,                                                      \
                                         .start_event = start_,                                              \
                                         .stop_event = stop_event,                                           \
                                         .record_event_state = record_,                                      \
                                         .finalize = finalize}
PLUGIN(ptb_nccl_profiler_plugin_v1, 1, init_v1, start_v1, record_v1);
PLUGIN(ptb_nccl_profiler_plugin_v2, 2, init_v1, start_v2, record_v1);
PLUGIN(ptb_nccl_profiler_plugin_v3, 3, init_v1, start_v3, record_v1);
PLUGIN(ptb_nccl_profiler_plugin_v4, 4, init_v4, start_v4, record_state);
PLUGIN(ptb_nccl_profiler_plugin, 5, init, start_event, record_state);
PLUGIN(ptb_nccl_profiler_plugin, 6, init, start_event, record_state);
