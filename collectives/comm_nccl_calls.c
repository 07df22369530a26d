// Collectives and messages as NCCL calls. Where ranks hold unequal parts (comm.h: count does not divide by
// the ranks), which NCCL's calls do not have, the parts go as one group: an all-gather as a broadcast of each
// part, a reduce-scatter as a reduction of each part, the others as sends and receives.
#include "collectives/comm_nccl.h"

#include "core/device_cuda.h"
#include "core/log.h"
#include "profiler/nvtx_cuda.h"

#include <stdio.h>
#include <string.h>

// ncclBfloat16 by number: headers before 2.24 name it only for files that include CUDA's own.
#define BFLOAT16 ((ncclDataType_t)9)
static const ncclDataType_t types[PTB_DTYPE_COUNT] = {
    [PTB_F64] = ncclFloat64, [PTB_F32] = ncclFloat32, [PTB_F16] = ncclFloat16, [PTB_BF16] = BFLOAT16,
    [PTB_I64] = ncclInt64,   [PTB_I32] = ncclInt32,   [PTB_I8] = ncclInt8,     [PTB_U8] = ncclUint8,
};
static const ncclRedOp_t ops[PTB_REDOP_COUNT] = {[PTB_SUM] = ncclSum,
                                                 [PTB_PROD] = ncclProd,
                                                 [PTB_MIN] = ncclMin,
                                                 [PTB_MAX] = ncclMax,
                                                 [PTB_AVG] = ncclAvg};

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 24, 0)
_Static_assert((int)ncclBfloat16 == (int)BFLOAT16, "NCCL's number of bfloat16");
#endif

// ---- streams

static ptb_status attach(ptb_comm_nccl *c, ptb_stream *stream)
{
    ptb_nccl_stream *place = NULL;
    for (int i = 0; i < PTB_NCCL_STREAMS; i++) {
        ptb_nccl_stream *s = &c->streams[i];
        if (s->watch.stream == stream) {
            c->last_stream = s;
            return PTB_OK;
        }
        if (!s->watch.stream && !place)
            place = s;
    }
    if (strcmp(stream->device->ops->plugin.name, "cuda") != 0) {
        ptb_error("communicator nccl moves memory of the device cuda, and this stream is of the device %s",
                  stream->device->ops->plugin.name);
        return PTB_USAGE;
    }
    if (!place) {
        ptb_error("one nccl communicator is used on more than %d streams", PTB_NCCL_STREAMS);
        return PTB_INTERNAL;
    }
    place->comm = c;
    place->watch.look = ptb_nccl_look;
    ptb_stream_watch_link(stream, &place->watch);
    c->last_stream = place;
    return PTB_OK;
}

// Before every operation; gives CUDA's stream.
static inline ptb_status enter(ptb_comm_nccl *c, ptb_stream *stream, cudaStream_t *cuda)
{
    if (__builtin_expect(!c->nccl, 0))
        return PTB_LOST; // was said when it was lost
    if (__builtin_expect(!c->last_stream || c->last_stream->watch.stream != stream, 0))
        PTB_TRY(attach(c, stream));
    *cuda = ptb_cuda_stream(stream);
    return PTB_OK;
}

// Before 2.24 NCCL calls an algorithm that does not exist for a call an internal error, and before 2.22 it
// cannot be asked beforehand (probe).
static bool has_refused(const ptb_comm_nccl *c, ncclResult_t result)
{
    if (result != ncclInternalError || !c->choice.algorithm[0] || c->version >= 22400 ||
        c->last_call.kind == PTB_COLL_COUNT)
        return false;
    ptb_error("NCCL %d.%d.%d cannot run %s for this %s here", c->version / 10000, c->version / 100 % 100,
              c->version % 100, c->choice.name, ptb_coll_name(c->last_call.kind));
    return true;
}

// A communicator that has failed is aborted, so that nobody waits for its end.
static ptb_status told(ptb_comm_nccl *c, ncclResult_t result, ptb_stream *stream, const char *call, int line)
{
    if (__builtin_expect(result == ncclSuccess, 1))
        return PTB_OK;
    if (has_refused(c, result))
        return PTB_UNSUPPORTED;
    ptb_status status = ptb_nccl_check(result, c->nccl, call, __FILE__, line);
    if (status == PTB_LOST) {
        ptb_cuda_stream_fail(stream, status);
        ptb_nccl_abort(c);
    }
    return status;
}

// ---- the calls

static bool equal_parts(const ptb_comm_nccl *c, const ptb_coll *call)
{
    return call->count % (size_t)c->comm.size == 0;
}

static char *part(const ptb_coll *call, const void *buffer, size_t element)
{
    return (char *)buffer + element * ptb_dtype_size(call->dtype);
}

static ncclResult_t gather_parts(const ptb_comm_nccl *c, const ptb_coll *call, cudaStream_t stream)
{
    int n = c->comm.size;
    ncclResult_t result = ncclSuccess;
    for (int r = 0; r < n && result == ncclSuccess; r++) {
        ptb_range block = ptb_block(call->count, n, r);
        char *to = part(call, call->recv, block.first);
        if (block.count)
            result = c->api->Broadcast(r == c->comm.rank ? call->send : to, to, block.count,
                                       types[call->dtype], r, c->nccl, stream);
    }
    return result;
}

static ncclResult_t reduce_parts(const ptb_comm_nccl *c, const ptb_coll *call, cudaStream_t stream)
{
    int n = c->comm.size;
    ncclResult_t result = ncclSuccess;
    for (int r = 0; r < n && result == ncclSuccess; r++) {
        ptb_range block = ptb_block(call->count, n, r);
        if (block.count)
            result =
                c->api->Reduce(part(call, call->send, block.first), r == c->comm.rank ? call->recv : NULL,
                               block.count, types[call->dtype], ops[call->op], r, c->nccl, stream);
    }
    return result;
}

static ncclResult_t exchange(const ptb_comm_nccl *c, const ptb_coll *call, cudaStream_t stream)
{
    int n = c->comm.size;
    ncclDataType_t type = types[call->dtype];
    bool lists = call->kind == PTB_ALL_TO_ALL_V;
    size_t mine = lists ? 0 : ptb_block(call->count, n, c->comm.rank).count;
    ncclResult_t result = ncclSuccess;
    for (int p = 0; p < n && result == ncclSuccess; p++) {
        ptb_range block = ptb_block(call->count, n, p);
        size_t send_first = lists ? call->send_first[p] : block.first;
        size_t send_count = lists ? call->send_counts[p] : block.count;
        size_t recv_first = lists ? call->recv_first[p] : (size_t)p * mine;
        size_t recv_count = lists ? call->recv_counts[p] : mine;
        if (send_count)
            result = c->api->Send(part(call, call->send, send_first), send_count, type, p, c->nccl, stream);
        if (recv_count && result == ncclSuccess)
            result = c->api->Recv(part(call, call->recv, recv_first), recv_count, type, p, c->nccl, stream);
    }
    return result;
}

// Gather and scatter: the root's own part is not moved where it lies in place.
static ncclResult_t rooted_parts(const ptb_comm_nccl *c, const ptb_coll *call, cudaStream_t stream)
{
    int n = c->comm.size, me = c->comm.rank;
    bool gather = call->kind == PTB_GATHER, root = me == call->root;
    ncclDataType_t type = types[call->dtype];
    const void *whole = gather ? call->recv : call->send, *own = gather ? call->send : call->recv;
    size_t mine = ptb_block(call->count, n, me).count;
    ncclResult_t result = ncclSuccess;
    for (int r = 0; r < n && root && result == ncclSuccess; r++) {
        ptb_range block = ptb_block(call->count, n, r);
        char *at = part(call, whole, block.first);
        if (!block.count || (r == me && at == own))
            continue;
        result = gather ? c->api->Recv(at, block.count, type, r, c->nccl, stream)
                        : c->api->Send(at, block.count, type, r, c->nccl, stream);
    }
    bool in_place = root && own == part(call, whole, ptb_block(call->count, n, me).first);
    if (mine && !in_place && result == ncclSuccess)
        result = gather ? c->api->Send(own, mine, type, call->root, c->nccl, stream)
                        : c->api->Recv((void *)own, mine, type, call->root, c->nccl, stream);
    return result;
}

typedef ncclResult_t parts_fn(const ptb_comm_nccl *c, const ptb_coll *call, cudaStream_t stream);

static ncclResult_t as_group(parts_fn *fn, const ptb_comm_nccl *c, const ptb_coll *call, cudaStream_t stream)
{
    ncclResult_t result = c->api->GroupStart();
    if (result != ncclSuccess)
        return result;
    result = fn(c, call, stream);
    ncclResult_t end = c->api->GroupEnd();
    return result == ncclSuccess ? end : result;
}

// All-to-all, gather and scatter of equal parts are calls of NCCL from 2.28 on.
static bool has_exchange_call(const ptb_comm_nccl *c, const ptb_coll *call)
{
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
    return equal_parts(c, call) && c->api->AlltoAll && c->api->Gather && c->api->Scatter;
#else
    (void)c, (void)call;
    return false;
#endif
}

static ncclResult_t exchange_call(const ptb_comm_nccl *c, const ptb_coll *call, cudaStream_t stream)
{
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
    size_t each = call->count / (size_t)c->comm.size;
    ncclDataType_t type = types[call->dtype];
    bool has_call = has_exchange_call(c, call);
    if (has_call && call->kind == PTB_ALL_TO_ALL)
        return c->api->AlltoAll(call->send, call->recv, each, type, c->nccl, stream);
    if (has_call && call->kind == PTB_GATHER)
        return c->api->Gather(call->send, call->recv, each, type, call->root, c->nccl, stream);
    if (has_call && call->kind == PTB_SCATTER)
        return c->api->Scatter(call->send, call->recv, each, type, call->root, c->nccl, stream);
#endif
    bool rooted = call->kind == PTB_GATHER || call->kind == PTB_SCATTER;
    return as_group(rooted ? rooted_parts : exchange, c, call, stream);
}

static ncclResult_t issue(const ptb_comm_nccl *c, const ptb_coll *call, cudaStream_t stream)
{
    ncclDataType_t type = types[call->dtype];
    size_t n = (size_t)c->comm.size;
    bool root = c->comm.rank == call->root;
    if (call->count == 0 && call->kind != PTB_BARRIER)
        return ncclSuccess;
    switch (call->kind) {
    case PTB_ALL_REDUCE:
        return c->api->AllReduce(call->send, call->recv, call->count, type, ops[call->op], c->nccl, stream);
    case PTB_ALL_GATHER:
        return equal_parts(c, call)
                   ? c->api->AllGather(call->send, call->recv, call->count / n, type, c->nccl, stream)
                   : as_group(gather_parts, c, call, stream);
    case PTB_REDUCE_SCATTER:
        return equal_parts(c, call) ? c->api->ReduceScatter(call->send, call->recv, call->count / n, type,
                                                            ops[call->op], c->nccl, stream)
                                    : as_group(reduce_parts, c, call, stream);
    case PTB_BROADCAST:
        return c->api->Broadcast(root ? call->send : call->recv, call->recv, call->count, type, call->root,
                                 c->nccl, stream);
    case PTB_REDUCE:
        return c->api->Reduce(call->send, root ? call->recv : NULL, call->count, type, ops[call->op],
                              call->root, c->nccl, stream);
    case PTB_BARRIER:
        return c->api->AllReduce(c->flag, c->flag, 1, ncclInt32, ncclSum, c->nccl, stream);
    default:
        return exchange_call(c, call, stream);
    }
}

// Under its name and bytes where another tool shows them: "all_gather 4096 bytes".
static ncclResult_t issue_named(ptb_comm_nccl *c, const ptb_coll *call, cudaStream_t stream)
{
    if (__builtin_expect(!c->annotating, 1))
        return issue(c, call, stream);
    char name[64];
    snprintf(name, sizeof name, "%s %zu bytes", ptb_coll_name(call->kind),
             call->count * ptb_dtype_size(call->dtype));
    ptb_nvtx_push(name);
    ncclResult_t result = issue(c, call, stream);
    ptb_nvtx_pop();
    return result;
}

const char *ptb_nccl_call_name(const ptb_comm_nccl *c, const ptb_coll *call)
{
    bool equal = equal_parts(c, call), native = has_exchange_call(c, call);
    switch (call->kind) {
    case PTB_ALL_REDUCE:
        return "ncclAllReduce";
    case PTB_ALL_GATHER:
        return equal ? "ncclAllGather" : "ncclBroadcast of each part";
    case PTB_REDUCE_SCATTER:
        return equal ? "ncclReduceScatter" : "ncclReduce of each part";
    case PTB_BROADCAST:
        return "ncclBroadcast";
    case PTB_REDUCE:
        return "ncclReduce";
    case PTB_BARRIER:
        return "ncclAllReduce of one element";
    case PTB_ALL_TO_ALL:
        return native ? "ncclAlltoAll" : "ncclSend and ncclRecv, grouped";
    case PTB_GATHER:
        return native ? "ncclGather" : "ncclSend and ncclRecv, grouped";
    case PTB_SCATTER:
        return native ? "ncclScatter" : "ncclSend and ncclRecv, grouped";
    default:
        return "ncclSend and ncclRecv, grouped";
    }
}

// ---- what ran

static bool same_call(const ptb_nccl_seen *seen, const ptb_coll *call)
{
    return seen->kind == call->kind && seen->count == call->count && seen->dtype == call->dtype &&
           seen->op == call->op && seen->in_place == (call->send == call->recv);
}

const ptb_nccl_seen *ptb_nccl_find_seen(const ptb_comm_nccl *c, const ptb_coll *call)
{
    size_t count = c->seen_count < PTB_NCCL_CALLS ? c->seen_count : PTB_NCCL_CALLS;
    for (size_t i = 0; i < count; i++)
        if (same_call(&c->seen[i], call))
            return &c->seen[i];
    return NULL;
}

static ptb_nccl_seen *remember(ptb_comm_nccl *c, const ptb_coll *call)
{
    ptb_nccl_seen *place = &c->seen[c->seen_count++ % PTB_NCCL_CALLS];
    *place = (ptb_nccl_seen){.kind = call->kind,
                             .count = call->count,
                             .dtype = call->dtype,
                             .op = call->op,
                             .in_place = call->send == call->recv};
    return place;
}

ptb_nccl_seen *ptb_nccl_see(ptb_comm_nccl *c, const ptb_coll *call)
{
    const ptb_nccl_seen *known = ptb_nccl_find_seen(c, call);
    return known ? &c->seen[known - c->seen] : remember(c, call);
}

// Whether this call is the first of its kind, so that what it runs as is to be recorded. The first call of a
// benchmark is warm-up; the later ones find the profiler off.
static inline bool is_new(ptb_comm_nccl *c, const ptb_coll *call)
{
    if (__builtin_expect(!c->watched || (c->last_seen && same_call(c->last_seen, call)), 1))
        return false;
    const ptb_nccl_seen *known = ptb_nccl_find_seen(c, call);
    if (known) {
        c->last_seen = &c->seen[known - c->seen];
        return false;
    }
    c->last_seen = remember(c, call);
    return true;
}

ptb_status ptb_nccl_collective(ptb_comm *comm, const ptb_coll *call, ptb_stream *stream)
{
    ptb_comm_nccl *c = (ptb_comm_nccl *)comm;
    cudaStream_t cuda;
    PTB_TRY(enter(c, stream, &cuda));
    bool record = !c->group_recorded && is_new(c, call);
    ptb_nccl_enter(c, call);
    if (__builtin_expect(!record, 1))
        return told(c, issue_named(c, call, cuda), stream, ptb_coll_name(call->kind), __LINE__);
    ptb_nccl_profiler_begin(c->watched);
    ncclResult_t result = issue_named(c, call, cuda);
    if (c->depth > 0 && result == ncclSuccess) { // it is launched with its group
        c->group_recorded = true;
        return PTB_OK;
    }
    ptb_nccl_profiler_end(c->watched, &c->last_seen->ran);
    return told(c, result, stream, ptb_coll_name(call->kind), __LINE__);
}

ptb_status ptb_nccl_group_begin(ptb_comm *comm)
{
    ptb_comm_nccl *c = (ptb_comm_nccl *)comm;
    if (!c->nccl)
        return PTB_LOST;
    PTB_TRY(PTB_NCCL(c, c->nccl, GroupStart));
    c->depth++;
    return PTB_OK;
}

ptb_status ptb_nccl_group_end(ptb_comm *comm, ptb_stream *stream)
{
    ptb_comm_nccl *c = (ptb_comm_nccl *)comm;
    c->depth--;
    ptb_status status = told(c, c->api->GroupEnd(), stream, "ncclGroupEnd", __LINE__);
    if (c->depth == 0 && c->group_recorded) {
        c->group_recorded = false;
        if (c->watched)
            ptb_nccl_profiler_end(c->watched, &c->last_seen->ran);
    }
    return status;
}

static ptb_status message(ptb_comm_nccl *c, const void *send, void *recv, size_t count, ptb_dtype dtype,
                          int peer, ptb_stream *stream)
{
    cudaStream_t cuda;
    PTB_TRY(enter(c, stream, &cuda));
    if (count == 0)
        return PTB_OK;
    ptb_coll call = {.kind = PTB_COLL_COUNT, .count = count, .dtype = dtype};
    bool record = !c->group_recorded && is_new(c, &call);
    ptb_nccl_enter(c, &call);
    if (record)
        ptb_nccl_profiler_begin(c->watched);
    ncclResult_t result = send ? c->api->Send(send, count, types[dtype], peer, c->nccl, cuda)
                               : c->api->Recv(recv, count, types[dtype], peer, c->nccl, cuda);
    if (record && c->depth > 0)
        c->group_recorded = true;
    else if (record)
        ptb_nccl_profiler_end(c->watched, &c->last_seen->ran);
    return told(c, result, stream, send ? "ncclSend" : "ncclRecv", __LINE__);
}

ptb_status ptb_nccl_send(ptb_comm *comm, const void *buffer, size_t count, ptb_dtype dtype, int peer,
                         ptb_stream *stream)
{
    return message((ptb_comm_nccl *)comm, buffer, NULL, count, dtype, peer, stream);
}

ptb_status ptb_nccl_recv(ptb_comm *comm, void *buffer, size_t count, ptb_dtype dtype, int peer,
                         ptb_stream *stream)
{
    return message((ptb_comm_nccl *)comm, NULL, buffer, count, dtype, peer, stream);
}

// ---- what it can do

static bool reduces(ptb_coll_kind kind)
{
    return kind == PTB_ALL_REDUCE || kind == PTB_REDUCE || kind == PTB_REDUCE_SCATTER;
}

// A forced algorithm may not exist for this call (its type, operation, size, or these links): NCCL says so
// when a group is only simulated.
static bool probe(ptb_comm_nccl *c, const ptb_coll *call, char *reason)
{
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 22, 0)
    ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
    if (!c->api->GroupSimulateEnd || c->comm.size == 1 || c->api->GroupStart() != ncclSuccess)
        return true;
    ncclResult_t result = issue(c, call, NULL);
    ncclResult_t end = c->api->GroupSimulateEnd(&info);
    if (result == ncclSuccess)
        result = end;
    if (result != ncclInvalidUsage && result != ncclInternalError) // the latter before 2.24
        return true;
    const char *last = c->api->GetLastError(c->nccl);
    snprintf(reason, PTB_REASON_BYTES, "NCCL cannot run %s for this %s here: %.200s", c->choice.name,
             ptb_coll_name(call->kind), last && *last ? last : c->api->GetErrorString(result));
    return false;
#else
    (void)c, (void)call, (void)reason;
    return true;
#endif
}

// Whether NCCL has a symmetric kernel for this call (ncclSymkImplemented in src/sym_kernels.cc; averages from
// 2.30 on); whether it runs it is its own choice.
static bool has_symmetric(const ptb_comm_nccl *c, const ptb_coll *call, char *reason)
{
    bool can_add = call->dtype == PTB_F32 || call->dtype == PTB_F16 || call->dtype == PTB_BF16;
    bool is_sum = call->op == PTB_SUM || (call->op == PTB_AVG && c->version >= 23000);
    if (strstr(ptb_nccl_lacks(), "ncclCommWindowRegister"))
        snprintf(
            reason, PTB_REASON_BYTES,
            "this program was built with the header of an NCCL before 2.27, which has no symmetric windows");
    else if (reduces(call->kind) && !(can_add && is_sum))
        snprintf(reason, PTB_REASON_BYTES,
                 "NCCL's symmetric kernels have sums of f32, f16 and bf16 (from 2.30 on averages too)");
    else if (call->kind != PTB_ALL_REDUCE && !equal_parts(c, call))
        snprintf(reason, PTB_REASON_BYTES,
                 "%zu elements do not divide by %d ranks: NCCL then moves each part by itself, which "
                 "symmetric kernels do not",
                 call->count, c->comm.size);
    else
        return true;
    return false;
}

bool ptb_nccl_supports(ptb_comm *comm, const ptb_coll *call, bool in_place, char *reason)
{
    ptb_comm_nccl *c = (ptb_comm_nccl *)comm;
    int n = comm->size;
    bool forced = c->choice.algorithm[0] != 0 || c->choice.is_symmetric;
    bool exchanges = call->kind == PTB_ALL_TO_ALL || call->kind == PTB_ALL_TO_ALL_V;
    if (!c->nccl) {
        snprintf(reason, PTB_REASON_BYTES, "NCCL's communicator was aborted");
        return false;
    }
    if (exchanges && in_place && n > 1) {
        snprintf(reason, PTB_REASON_BYTES,
                 "NCCL exchanges with sends and receives, which in place would overwrite what is still to be "
                 "sent");
        return false;
    }
    if (reduces(call->kind) && call->op == PTB_AVG && ptb_dtype_is_float(call->dtype) && (n & (n - 1)) != 0) {
        snprintf(reason, PTB_REASON_BYTES,
                 "NCCL averages by multiplying with 1/%d, which is rounded, so the result cannot be checked "
                 "for equality (op sum moves the same bytes)",
                 n);
        return false;
    }
    if (forced && !ptb_nccl_has_algorithm(call->kind, c->choice.name)) {
        snprintf(reason, PTB_REASON_BYTES, "NCCL has no %s for %s", c->choice.name,
                 ptb_coll_name(call->kind));
        return false;
    }
    int oldest = ptb_nccl_algorithm_version(call->kind, c->choice.name);
    if (forced && c->version < oldest) {
        snprintf(reason, PTB_REASON_BYTES,
                 "NCCL can be asked for %s for %s from %d.%d on, and this is %d.%d.%d", c->choice.name,
                 ptb_coll_name(call->kind), oldest / 10000, oldest / 100 % 100, c->version / 10000,
                 c->version / 100 % 100, c->version % 100);
        return false;
    }
    if (c->choice.is_symmetric)
        return call->count == 0 || has_symmetric(c, call, reason);
    bool parts = (call->kind == PTB_ALL_GATHER || call->kind == PTB_REDUCE_SCATTER) && !equal_parts(c, call);
    if (forced && parts && strcmp(c->choice.algorithm, "ring") != 0) {
        snprintf(
            reason, PTB_REASON_BYTES,
            "%zu elements do not divide by %d ranks: NCCL then moves each part by itself, which only ring "
            "does",
            call->count, n);
        return false;
    }
    return !forced || call->count == 0 || probe(c, call, reason);
}
