// See nccl_plugin.hpp. What each version writes is from NCCL's sources: src/misc/profiler.cc of 2.23 to 2.25,
// src/plugin/profiler.cc and src/transport/net.cc of 2.26 to 2.30. Memory that the real one leaves unwritten
// holds rubbish here.
#include "tests/simcuda/nccl_plugin.hpp"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

namespace {
// States by number.
enum {
    SEND_POSTED = 0,
    SEND_TRANSMITTED = 2,
    SEND_DONE = 3,
    RECV_POSTED = 4,
    RECV_RECEIVED = 5,
    RECV_DONE = 7,
    SEND_GPU_WAIT = 8,
    SEND_WAIT = 9,
    RECV_WAIT = 10,
    RECV_FLUSH_WAIT = 11,
    RECV_GPU_WAIT = 12,
    OP_IN_PROGRESS = 19,
    SEND_PEER_WAIT = 20,
    KERNEL_CH_STOP = 22,
};

std::mutex mutex;
bool tried;
int version; // of the interface; 0: none
const void *plugin;

int newest_version(void)
{
    int nccl;
    ncclGetVersion(&nccl);
    return nccl < 22300   ? 0
           : nccl < 22400 ? 1
           : nccl < 22600 ? 2
           : nccl < 22700 ? 3
           : nccl < 22800 ? 4
           : nccl < 22900 ? 5
                          : 6;
}

template <typename type> const type *as(void)
{
    return (const type *)plugin;
}

uint8_t number_of(const char *word, const char *const *words, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!strcmp(word, words[i]))
            return (uint8_t)i;
    return 255;
}

// The enumerations of NCCL 2.23.
uint8_t function_number(const char *word)
{
    static const char *const words[] = {"Broadcast", "Reduce",   "AllGather", "ReduceScatter",
                                        "AllReduce", "SendRecv", "Send",      "Recv"};
    return number_of(word, words, 8);
}
uint8_t algorithm_number(const char *word)
{
    static const char *const words[] = {"TREE",      "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS",
                                        "NVLS_TREE", "PAT"};
    return number_of(word, words, 7);
}
uint8_t protocol_number(const char *word)
{
    static const char *const words[] = {"LL", "LL128", "SIMPLE"};
    return number_of(word, words, 3);
}

// What all old versions have at the same places.
template <typename type> void fill(const ptb_nccl_event *event, type *old)
{
    memset((void *)old, 0xaa, sizeof *old);
    old->type = (uint8_t)event->type;
    old->parent = event->parent;
    old->rank = event->rank;
    if (event->type == PTB_NCCL_PROXY_OP)
        old->proxy_op = event->proxy_op;
    if (event->type == PTB_NCCL_PROXY_STEP)
        old->proxy_step = event->proxy_step;
}

// Names are NULL: nothing in NCCL 2.23 to 2.26 sets ncclComm::commName.
template <typename type> void fill_named(const ncclComm *comm, const ptb_nccl_event *event, type *old)
{
    fill(event, old);
    if (event->type == PTB_NCCL_COLL) {
        old->coll.comm_name = NULL;
        old->coll.comm_id = (uint64_t)(uintptr_t)comm;
        old->coll.sequence = event->coll.sequence;
        old->coll.send = event->coll.send;
        old->coll.recv = event->coll.recv;
        old->coll.count = event->coll.count;
        old->coll.root = event->coll.root;
        old->coll.max_channels = event->coll.channels;
        old->coll.warps = event->coll.warps;
    }
    if (event->type == PTB_NCCL_P2P) {
        old->p2p.comm_name = NULL;
        old->p2p.comm_id = (uint64_t)(uintptr_t)comm;
        old->p2p.buffer = event->p2p.buffer;
        old->p2p.count = event->p2p.count;
        old->p2p.peer = event->p2p.peer;
    }
}

void *start_v1(const ncclComm *comm, void *context, const ptb_nccl_event *event)
{
    void *handle = NULL;
    ptb_nccl_event_v1 old;
    fill_named(comm, event, &old);
    if (event->type == PTB_NCCL_COLL) {
        old.coll.function = function_number(event->coll.function);
        old.coll.datatype = 7;
        old.coll.op = 0;
        old.coll.algorithm = algorithm_number(event->coll.algorithm);
        old.coll.protocol = protocol_number(event->coll.protocol);
        old.coll.is_collnet = old.coll.is_nvls = 0;
        if (sim_option("nccl_number") >= 0) // one that the plug-in cannot know
            old.coll.algorithm = (uint8_t)sim_option("nccl_number");
    }
    if (event->type == PTB_NCCL_P2P)
        old.p2p.function = function_number(event->p2p.function);
    as<ptb_nccl_profiler_plugin_v1>()->start_event(context, &handle, &old);
    return handle;
}

template <typename type> void fill_words(const ptb_nccl_event *event, type *old)
{
    if (event->type == PTB_NCCL_COLL) {
        old->coll.function = event->coll.function;
        old->coll.datatype = event->coll.datatype;
        old->coll.algorithm = event->coll.algorithm;
        old->coll.protocol = event->coll.protocol;
    }
    if (event->type == PTB_NCCL_P2P) {
        old->p2p.function = event->p2p.function;
        old->p2p.datatype = event->p2p.datatype;
    }
}

void *start_v2(const ncclComm *comm, void *context, const ptb_nccl_event *event)
{
    void *handle = NULL;
    ptb_nccl_event_v2 old;
    fill_named(comm, event, &old);
    fill_words(event, &old);
    as<ptb_nccl_profiler_plugin_v2>()->start_event(context, &handle, &old);
    return handle;
}

void *start_v3(const ncclComm *comm, void *context, const ptb_nccl_event *event)
{
    void *handle = NULL;
    ptb_nccl_event_v3 old;
    fill_named(comm, event, &old);
    fill_words(event, &old);
    if (event->type == PTB_NCCL_KERNEL_CH)
        old.kernel_ch.channel = event->kernel_ch.channel;
    if (event->type == PTB_NCCL_NET_PLUGIN)
        old.net_plugin = event->net_plugin;
    as<ptb_nccl_profiler_plugin_v3>()->start_event(context, &handle, &old);
    return handle;
}

void *start_v4(void *context, const ptb_nccl_event *event)
{
    void *handle = NULL;
    ptb_nccl_event_v4 old;
    fill(event, &old);
    fill_words(event, &old);
    if (event->type == PTB_NCCL_COLL) {
        old.coll.sequence = event->coll.sequence;
        old.coll.send = event->coll.send;
        old.coll.recv = event->coll.recv;
        old.coll.count = event->coll.count;
        old.coll.root = event->coll.root;
        old.coll.channels = event->coll.channels;
        old.coll.warps = event->coll.warps;
    }
    if (event->type == PTB_NCCL_P2P) {
        old.p2p.buffer = event->p2p.buffer;
        old.p2p.count = event->p2p.count;
        old.p2p.peer = event->p2p.peer;
        old.p2p.channels = event->p2p.channels;
    }
    if (event->type == PTB_NCCL_KERNEL_CH)
        old.kernel_ch = event->kernel_ch;
    if (event->type == PTB_NCCL_NET_PLUGIN)
        old.net_plugin = event->net_plugin;
    as<ptb_nccl_profiler_plugin_v4>()->start_event(context, &handle, &old);
    return handle;
}

void op_state(void *op, int state, size_t bytes)
{
    ptb_nccl_state_args_v1 args = {};
    args.proxy_op.bytes = bytes;
    args.proxy_op.steps = 1;
    if (op)
        as<ptb_nccl_profiler_plugin_v3>()->record_event_state(op, state, &args);
}

void step_state(void *step, int state, size_t bytes)
{
    ptb_nccl_state_args args = {};
    args.proxy_step.bytes = bytes;
    if (!step)
        return;
    if (version < 4)
        as<ptb_nccl_profiler_plugin_v3>()->record_event_state(step, state, NULL);
    else
        as<ptb_nccl_profiler_plugin>()->record_event_state(step, state, &args);
}
} // namespace

bool sim_plugin_load(void)
{
    std::lock_guard<std::mutex> hold(mutex);
    const char *wanted = getenv("NCCL_PROFILER_PLUGIN");
    if (tried)
        return plugin;
    tried = true;
    void *program = dlopen(NULL, RTLD_NOW | RTLD_LOCAL);
    version = newest_version();
    char name[24];
    snprintf(name, sizeof name, "ncclProfiler_v%d", version);
    if (version && wanted && strcasecmp(wanted, "STATIC_PLUGIN") == 0 && program)
        plugin = dlsym(program, name);
    return plugin;
}

int sim_plugin_version(void)
{
    return version;
}

void sim_plugin_init(ncclComm *comm, int *mask)
{
    const char *name = comm->name.empty() ? NULL : comm->name.c_str();
    const uint64_t id = (uint64_t)(uintptr_t)comm;
    int error;
    if (version < 4)
        error = as<ptb_nccl_profiler_plugin_v3>()->init(&comm->profiler, mask);
    else if (version == 4)
        error = as<ptb_nccl_profiler_plugin_v4>()->init(&comm->profiler, mask, name, id, 1, comm->ranks,
                                                        comm->rank, NULL);
    else
        error = as<ptb_nccl_profiler_plugin>()->init(&comm->profiler, id, mask, name, 1, comm->ranks,
                                                     comm->rank, NULL);
    if (error)
        comm->profiler = NULL;
}

void sim_plugin_finalize(ncclComm *comm)
{
    as<ptb_nccl_profiler_plugin>()->finalize(comm->profiler);
    comm->profiler = NULL;
}

void *sim_plugin_start(ncclComm *comm, void *context, ptb_nccl_event *event)
{
    void *handle = NULL;
    const uint64_t from_3 = PTB_NCCL_KERNEL_CH | PTB_NCCL_NET_PLUGIN,
                   from_5 = PTB_NCCL_GROUP_API | PTB_NCCL_COLL_API | PTB_NCCL_P2P_API,
                   from_6 = PTB_NCCL_CE_COLL;
    const uint64_t lacks =
        (version < 3 ? from_3 : 0) | (version < 5 ? from_5 : 0) | (version < 6 ? from_6 : 0);
    if (event->type & lacks)
        return NULL;
    switch (version) {
    case 1:
        return start_v1(comm, context, event);
    case 2:
        return start_v2(comm, context, event);
    case 3:
        return start_v3(comm, context, event);
    case 4:
        return start_v4(context, event);
    default:
        as<ptb_nccl_profiler_plugin>()->start_event(context, &handle, event);
        return handle;
    }
}

void sim_plugin_stop(void *handle)
{
    as<ptb_nccl_profiler_plugin>()->stop_event(handle);
}

void sim_plugin_proxy_states(void *op, void *step, bool is_send, size_t bytes)
{
    const size_t of_the_last = 12345; // what a receive is told to have before its own bytes are known
    if (version < 4) {
        op_state(op, is_send ? SEND_POSTED : RECV_POSTED, 0);
        step_state(step, is_send ? SEND_GPU_WAIT : RECV_WAIT, 0);
        op_state(op, is_send ? SEND_TRANSMITTED : RECV_RECEIVED, is_send ? 0 : bytes);
        step_state(step, is_send ? SEND_WAIT : RECV_FLUSH_WAIT, 0);
        op_state(op, is_send ? SEND_DONE : RECV_DONE, bytes);
        return;
    }
    ptb_nccl_state_args args = {};
    if (op)
        as<ptb_nccl_profiler_plugin>()->record_event_state(op, OP_IN_PROGRESS, &args);
    if (is_send) {
        step_state(step, SEND_GPU_WAIT, of_the_last);
        step_state(step, SEND_PEER_WAIT, of_the_last);
        step_state(step, SEND_WAIT, bytes);
    } else {
        step_state(step, RECV_WAIT, of_the_last);
        step_state(step, RECV_FLUSH_WAIT, bytes);
        step_state(step, RECV_GPU_WAIT, bytes);
    }
}

void sim_plugin_kernel_stop(void *kernel, uint64_t gpu_ns)
{
    ptb_nccl_state_args args = {};
    args.kernel_ch.gpu_ns = gpu_ns;
    if (version >= 4)
        as<ptb_nccl_profiler_plugin>()->record_event_state(kernel, KERNEL_CH_STOP, &args);
    sim_plugin_stop(kernel);
}
