#!/bin/bash
# profiler/nccl_profiler_abi.h against NCCL's own headers, where PTB_NCCL_SOURCE names a copy of its sources (2.23 or
# later): in every version of the interface that they declare, each field must lie where NCCL writes it, and every number
# must be NCCL's.
set -u
source_of_nccl=${PTB_NCCL_SOURCE:-}
headers=$source_of_nccl/src/include/plugin # from 2.26 on
[ -f "$headers/nccl_profiler.h" ] || headers=$source_of_nccl/src/include
[ -n "$source_of_nccl" ] && [ -f "$headers/nccl_profiler.h" ] ||
    { echo "skipped: PTB_NCCL_SOURCE names no copy of NCCL's sources"; exit 77; }
compiler=${CXX:-c++}
command -v "$compiler" >/dev/null || { echo "skipped: no C++ compiler"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
newest=$(cat "$headers/nccl_profiler.h" "$headers"/profiler/profiler_v*.h 2>/dev/null |
    sed -n 's/^} ncclProfiler_v\([0-9]*\)_t;.*/\1/p' | sort -n | tail -1)
[ "$newest" -ge 1 ] 2>/dev/null || { echo "FAIL: $headers/nccl_profiler.h declares no interface that this test knows"; exit 1; }

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
#if VERSION <= 4
#define OURS PASTE(ptb_nccl_event_v, VERSION, )
#define OUR_PLUGIN PASTE(ptb_nccl_profiler_plugin_v, VERSION, )
#else
#define OURS ptb_nccl_event
#define OUR_PLUGIN ptb_nccl_profiler_plugin
#endif
#define SAME(ours, theirs)                                                                                             \
    static_assert(offsetof(OURS, ours) == offsetof(EVENT, theirs), #ours);                                             \
    static_assert(sizeof(((OURS *)0)->ours) == sizeof(((EVENT *)0)->theirs), #ours);
SAME(type, type)
SAME(parent, parentObj)
SAME(rank, rank)
SAME(coll.sequence, coll.seqNumber)
SAME(coll.function, coll.func)
SAME(coll.send, coll.sendBuff)
SAME(coll.recv, coll.recvBuff)
SAME(coll.count, coll.count)
SAME(coll.root, coll.root)
SAME(coll.datatype, coll.datatype)
SAME(coll.warps, coll.nWarps)
SAME(coll.algorithm, coll.algo)
SAME(coll.protocol, coll.proto)
SAME(p2p.function, p2p.func)
SAME(p2p.buffer, p2p.buff)
SAME(p2p.datatype, p2p.datatype)
SAME(p2p.count, p2p.count)
SAME(p2p.peer, p2p.peer)
SAME(proxy_op.pid, proxyOp.pid)
SAME(proxy_op.channel, proxyOp.channelId)
SAME(proxy_op.peer, proxyOp.peer)
SAME(proxy_op.steps, proxyOp.nSteps)
SAME(proxy_op.chunk_bytes, proxyOp.chunkSize)
SAME(proxy_op.is_send, proxyOp.isSend)
SAME(proxy_step.step, proxyStep.step)
#if VERSION <= 3
SAME(coll.comm_name, coll.name)
SAME(coll.comm_id, coll.commHash)
SAME(coll.max_channels, coll.nMaxChannels)
SAME(p2p.comm_name, p2p.name)
SAME(p2p.comm_id, p2p.commHash)
#else
SAME(coll.channels, coll.nChannels)
SAME(p2p.channels, p2p.nChannels)
SAME(kernel_ch.gpu_ns, kernelCh.pTimer)
#endif
#if VERSION <= 2
SAME(coll.traffic_bytes, coll.trafficBytes)
#endif
#if VERSION == 1
SAME(coll.op, coll.op)
SAME(coll.is_collnet, coll.isCollnet)
SAME(coll.is_nvls, coll.isNvls)
#endif
#if VERSION >= 3
SAME(kernel_ch.channel, kernelCh.channelId)
SAME(net_plugin.id, netPlugin.id)
SAME(net_plugin.data, netPlugin.data)
static_assert(PTB_NCCL_KERNEL_CH == ncclProfileKernelCh && PTB_NCCL_NET_PLUGIN == ncclProfileNetPlugin, "bits from 3 on");
#endif
#if VERSION >= 5
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
SAME(coll.group, coll.parentGroup)
SAME(p2p.group, p2p.parentGroup)
static_assert(PTB_NCCL_GROUP_API == ncclProfileGroupApi && PTB_NCCL_COLL_API == ncclProfileCollApi &&
              PTB_NCCL_P2P_API == ncclProfileP2pApi && PTB_NCCL_KERNEL_LAUNCH == ncclProfileKernelLaunch, "bits from 5 on");
#endif
#if VERSION >= 6
SAME(ce_coll.sequence, ceColl.seqNumber)
SAME(ce_coll.function, ceColl.func)
SAME(ce_coll.count, ceColl.count)
SAME(ce_coll.sync_strategy, ceColl.syncStrategy)
SAME(ce_coll.stream, ceColl.stream)
static_assert(PTB_NCCL_CE_COLL == ncclProfileCeColl && PTB_NCCL_CE_SYNC == ncclProfileCeSync &&
              PTB_NCCL_CE_BATCH == ncclProfileCeBatch, "bits of copy engines");
#endif
static_assert(VERSION == 5 || sizeof(OURS) == sizeof(EVENT), "event"); // ours of 5 is that of 6, which is larger
#define STATE(ours, theirs) static_assert(offsetof(OUR_ARGS, ours) == offsetof(ARGS, theirs), #ours);
#if VERSION <= 3
#define OUR_ARGS ptb_nccl_state_args_v1
STATE(proxy_op.bytes, proxyOp.transSize)
STATE(proxy_op.steps, proxyOp.steps)
static_assert(PTB_NCCL_STATE_OP_FIRST == ncclProfilerProxyOpSendPosted &&
              PTB_NCCL_STATE_OP_LAST == ncclProfilerProxyOpRecvDone, "states of operations");
#else
#define OUR_ARGS ptb_nccl_state_args
STATE(proxy_step.bytes, proxyStep.transSize)
STATE(net_plugin.data, netPlugin.data)
STATE(kernel_ch.gpu_ns, kernelCh.pTimer)
static_assert(PTB_NCCL_STATE_KERNEL_CH_STOP == ncclProfilerKernelChStop, "state of kernels");
#endif
STATE(proxy_ctrl.appended, proxyCtrl.appendedProxyOps)
static_assert(sizeof(OUR_ARGS) == sizeof(ARGS), "state arguments");
static_assert(PTB_NCCL_STATE_SEND_WAIT == ncclProfilerProxyStepSendWait &&
              PTB_NCCL_STATE_RECV_FLUSH_WAIT == ncclProfilerProxyStepRecvFlushWait, "states of steps");
// Functions: in which place, and which arguments.
template <typename> struct arity;
template <typename result, typename... arguments> struct arity<result (*)(arguments...)> {
    enum { count = sizeof...(arguments), bytes = (0 + ... + sizeof(arguments)) };
};
#define CALL(ours, theirs)                                                                                             \
    static_assert(offsetof(OUR_PLUGIN, ours) == offsetof(PLUGIN, theirs), #ours);                                      \
    static_assert(arity<decltype(OUR_PLUGIN::ours)>::count == arity<decltype(PLUGIN::theirs)>::count, #ours);          \
    static_assert(arity<decltype(OUR_PLUGIN::ours)>::bytes == arity<decltype(PLUGIN::theirs)>::bytes, #ours);
static_assert(offsetof(OUR_PLUGIN, name) == offsetof(PLUGIN, name), "name");
CALL(init, init)
CALL(start_event, startEvent)
CALL(stop_event, stopEvent)
CALL(record_event_state, recordEventState)
CALL(finalize, finalize)
static_assert(sizeof(OUR_PLUGIN) == sizeof(PLUGIN), "plug-in");
static_assert(PTB_NCCL_GROUP == ncclProfileGroup && PTB_NCCL_COLL == ncclProfileColl && PTB_NCCL_P2P == ncclProfileP2p &&
              PTB_NCCL_PROXY_OP == ncclProfileProxyOp && PTB_NCCL_PROXY_STEP == ncclProfileProxyStep &&
              PTB_NCCL_PROXY_CTRL == ncclProfileProxyCtrl, "bits");
END
# The order of init's arguments, which sizes do not tell, as nccl_profiler_abi.h has it.
order_of_init() { # VERSION
    tr -s '\n ' ' ' <"$1" | sed -n "s/.*(\*init)(\([^;]*\));.*ncclProfiler_v$2_t;.*/\1/p" | sed 's/[^,]*[ *]\([A-Za-z]*\)\(,\|$\)/\1\2/g'
}
expected=("" "context,eActivationMask" "context,eActivationMask" "context,eActivationMask"
    "context,eActivationMask,commName,commHash,nNodes,nranks,rank,logfn"
    "context,commId,eActivationMask,commName,nNodes,nranks,rank,logfn"
    "context,commId,eActivationMask,commName,nNodes,nranks,rank,logfn")
for version in $(seq "$newest"); do
    # Other places where older sources have it. A version that this copy does not declare is none of its own.
    declared=$(grep -l "^} ncclProfiler_v${version}_t;" "$headers/nccl_profiler.h" "$headers"/profiler/profiler_v*.h 2>/dev/null | head -1)
    [ -n "$declared" ] || { echo "FAIL: version $version is not declared"; exit 1; }
    [ "$version" -le 6 ] || { echo "FAIL: version $version is new, and nccl_profiler_abi.h does not know it"; exit 1; }
    "$compiler" -std=c++17 -Wno-invalid-offsetof -Wno-enum-compare -DVERSION="$version" -I"$folder" -I"$headers" -I"$PTB_SOURCE" \
        -c "$folder/check.cpp" -o "$folder/check.o" || { echo "FAIL: NCCL's version $version differs"; exit 1; }
    order=$(order_of_init "$declared" "$version")
    [ "$order" = "${expected[version]}" ] ||
        { echo "FAIL: init of version $version takes '$order', not '${expected[version]}'"; exit 1; }
done
# The words for the numbers of version 1 are those of the one NCCL that has nothing newer.
words() { # TABLE: its words, one a line
    tr -s '\n ' ' ' <"$PTB_SOURCE/profiler/nccl_profiler_versions.c" | sed -n "s/.*\*const $1\[\] = {\([^}]*\)}.*/\1/p" | tr -d '" ' | tr ',' '\n'
}
if [ "$newest" = 1 ]; then
    {
        printf '#include <stdint.h>\n#include "nccl_common.h"\n'
        for table in functions_v1:ncclFunc algorithms_v1:NCCL_ALGO_ protocols_v1:NCCL_PROTO_; do
            words "${table%:*}" | awk -v p="${table#*:}" '{print "static_assert(" p $1 " == " NR - 1 ", \"" $1 "\");"}'
        done
        echo 'static_assert(ncclNumFuncs == 8 && NCCL_NUM_ALGORITHMS == 7 && NCCL_NUM_PROTOCOLS == 3, "numbers");'
    } >"$folder/words.cpp"
    [ "$(grep -c static_assert "$folder/words.cpp")" = 19 ] || { echo "FAIL: the tables of words are not found"; exit 1; }
    "$compiler" -std=c++17 -I"$folder" -I"$headers" -c "$folder/words.cpp" -o "$folder/words.o" ||
        { echo "FAIL: the words of version 1 differ"; exit 1; }
fi
echo "versions 1 to $newest of NCCL's profiler interface agree"
