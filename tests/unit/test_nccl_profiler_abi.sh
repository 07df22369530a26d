#!/bin/bash
# profiler/nccl_profiler_abi.h against NCCL's own headers, where PTB_NCCL_SOURCE names a copy of its sources (2.28 or
# later): every field that we read must lie where NCCL writes it, and every number must be NCCL's.
set -u
source_of_nccl=${PTB_NCCL_SOURCE:-}
headers=$source_of_nccl/src/include/plugin
[ -n "$source_of_nccl" ] && [ -f "$headers/nccl_profiler.h" ] ||
    { echo "skipped: PTB_NCCL_SOURCE names no copy of NCCL's sources"; exit 77; }
compiler=${CXX:-c++}
command -v "$compiler" >/dev/null || { echo "skipped: no C++ compiler"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
version=5
[ -f "$headers/profiler/profiler_v6.h" ] && version=6

# What NCCL's headers need of the rest of it.
cat >"$folder/os.h" <<'END'
#include <sys/types.h>
typedef pid_t ncclPid_t;
END
cat >"$folder/check.cpp" <<'END'
#include <cstddef>
#include <cstdint>
#include <sys/types.h>
typedef int ncclResult_t;
typedef void (*ncclDebugLogger_t)(int level, unsigned long flags, const char *file, int line, const char *format, ...);
#include "nccl_profiler.h"
#include "profiler/nccl_profiler_abi.h"
#define PASTE2(a, b, c) a##b##c
#define PASTE(a, b, c) PASTE2(a, b, c)
#define EVENT PASTE(ncclProfilerEventDescr_v, VERSION, _t)
#define ARGS PASTE(ncclProfilerEventStateArgs_v, VERSION, _t)
#define PLUGIN PASTE(ncclProfiler_v, VERSION, _t)
#define SAME(ours, theirs)                                                                                             \
    static_assert(offsetof(ptb_nccl_event, ours) == offsetof(EVENT, theirs), #ours);                                   \
    static_assert(sizeof(((ptb_nccl_event *)0)->ours) == sizeof(((EVENT *)0)->theirs), #ours);
SAME(type, type)
SAME(parent, parentObj)
SAME(rank, rank)
SAME(group_api.graph_captured, groupApi.graphCaptured)
SAME(group_api.depth, groupApi.groupDepth)
SAME(coll_api.function, collApi.func)
SAME(coll_api.count, collApi.count)
SAME(coll_api.datatype, collApi.datatype)
SAME(coll_api.root, collApi.root)
SAME(coll_api.stream, collApi.stream)
SAME(coll_api.graph_captured, collApi.graphCaptured)
SAME(p2p_api.function, p2pApi.func)
SAME(p2p_api.count, p2pApi.count)
SAME(p2p_api.stream, p2pApi.stream)
SAME(kernel_launch.stream, kernelLaunch.stream)
SAME(coll.sequence, coll.seqNumber)
SAME(coll.function, coll.func)
SAME(coll.send, coll.sendBuff)
SAME(coll.recv, coll.recvBuff)
SAME(coll.count, coll.count)
SAME(coll.root, coll.root)
SAME(coll.datatype, coll.datatype)
SAME(coll.channels, coll.nChannels)
SAME(coll.warps, coll.nWarps)
SAME(coll.algorithm, coll.algo)
SAME(coll.protocol, coll.proto)
SAME(coll.group, coll.parentGroup)
SAME(p2p.function, p2p.func)
SAME(p2p.buffer, p2p.buff)
SAME(p2p.datatype, p2p.datatype)
SAME(p2p.count, p2p.count)
SAME(p2p.peer, p2p.peer)
SAME(p2p.channels, p2p.nChannels)
SAME(p2p.group, p2p.parentGroup)
SAME(proxy_op.pid, proxyOp.pid)
SAME(proxy_op.channel, proxyOp.channelId)
SAME(proxy_op.peer, proxyOp.peer)
SAME(proxy_op.steps, proxyOp.nSteps)
SAME(proxy_op.chunk_bytes, proxyOp.chunkSize)
SAME(proxy_op.is_send, proxyOp.isSend)
SAME(proxy_step.step, proxyStep.step)
SAME(kernel_ch.channel, kernelCh.channelId)
SAME(kernel_ch.gpu_ns, kernelCh.pTimer)
SAME(net_plugin.id, netPlugin.id)
SAME(net_plugin.data, netPlugin.data)
#if VERSION >= 6
SAME(ce_coll.sequence, ceColl.seqNumber)
SAME(ce_coll.function, ceColl.func)
SAME(ce_coll.count, ceColl.count)
SAME(ce_coll.sync_strategy, ceColl.syncStrategy)
SAME(ce_coll.stream, ceColl.stream)
static_assert(sizeof(ptb_nccl_event) == sizeof(EVENT), "event");
static_assert(PTB_NCCL_CE_COLL == ncclProfileCeColl && PTB_NCCL_CE_SYNC == ncclProfileCeSync &&
              PTB_NCCL_CE_BATCH == ncclProfileCeBatch, "copy engine bits");
#endif
#define STATE(ours, theirs)                                                                                            \
    static_assert(offsetof(ptb_nccl_state_args, ours) == offsetof(ARGS, theirs), #ours);
STATE(proxy_step.bytes, proxyStep.transSize)
STATE(proxy_ctrl.appended, proxyCtrl.appendedProxyOps)
STATE(net_plugin.data, netPlugin.data)
STATE(kernel_ch.gpu_ns, kernelCh.pTimer)
static_assert(sizeof(ptb_nccl_state_args) == sizeof(ARGS), "state arguments");
#define CALL(ours, theirs) static_assert(offsetof(ptb_nccl_profiler_plugin, ours) == offsetof(PLUGIN, theirs), #ours);
CALL(name, name)
CALL(init, init)
CALL(start_event, startEvent)
CALL(stop_event, stopEvent)
CALL(record_event_state, recordEventState)
CALL(finalize, finalize)
static_assert(sizeof(ptb_nccl_profiler_plugin) == sizeof(PLUGIN), "plug-in");
static_assert(PTB_NCCL_GROUP == ncclProfileGroup && PTB_NCCL_COLL == ncclProfileColl && PTB_NCCL_P2P == ncclProfileP2p &&
              PTB_NCCL_PROXY_OP == ncclProfileProxyOp && PTB_NCCL_PROXY_STEP == ncclProfileProxyStep &&
              PTB_NCCL_PROXY_CTRL == ncclProfileProxyCtrl && PTB_NCCL_KERNEL_CH == ncclProfileKernelCh &&
              PTB_NCCL_NET_PLUGIN == ncclProfileNetPlugin && PTB_NCCL_GROUP_API == ncclProfileGroupApi &&
              PTB_NCCL_COLL_API == ncclProfileCollApi && PTB_NCCL_P2P_API == ncclProfileP2pApi &&
              PTB_NCCL_KERNEL_LAUNCH == ncclProfileKernelLaunch, "bits");
static_assert(PTB_NCCL_STATE_SEND_WAIT == ncclProfilerProxyStepSendWait &&
              PTB_NCCL_STATE_RECV_WAIT == ncclProfilerProxyStepRecvWait &&
              PTB_NCCL_STATE_KERNEL_CH_STOP == ncclProfilerKernelChStop, "states");
END
"$compiler" -std=c++17 -Wno-invalid-offsetof -Wno-enum-compare -DVERSION=$version -I"$folder" -I"$headers" -I"$PTB_SOURCE" \
    -c "$folder/check.cpp" -o "$folder/check.o" || { echo "FAIL: NCCL's version $version differs"; exit 1; }
echo "version $version of NCCL's profiler interface agrees"
