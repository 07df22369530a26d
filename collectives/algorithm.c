// What all algorithms share: finding one, the cases with nothing to exchange, and local copies.
#include "collectives/algorithm.h"

#include "core/log.h"

#include <stdio.h>
#include <string.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

const ptb_algorithm *ptb_algorithm_need(const char *name)
{
    return (const ptb_algorithm *)(const void *)ptb_registry_need(PTB_KIND_ALGORITHM, name);
}

bool ptb_algorithm_supports(const ptb_algorithm *algorithm, const ptb_team *team, const ptb_coll *call,
                            bool in_place, char *reason)
{
    char unused[PTB_REASON_BYTES];
    if (!reason)
        reason = unused;
    const char *name = algorithm->plugin.name;
    if (!(algorithm->collectives & PTB_COLL_BIT(call->kind))) {
        snprintf(reason, PTB_REASON_BYTES, "algorithm %s does not do %s", name, ptb_coll_name(call->kind));
        return false;
    }
    if (in_place && call->kind == PTB_ALL_TO_ALL && call->count % (size_t)team->size) {
        snprintf(reason, PTB_REASON_BYTES, "in-place all_to_all needs a count that %d ranks divide",
                 team->size);
        return false;
    }
    if (algorithm->needs_shared && team->size > 1 && !team->shared) {
        snprintf(reason, PTB_REASON_BYTES,
                 "algorithm %s needs all ranks on one host with shared memory (%d hosts, transport %s)", name,
                 team->world->hosts, team->config.transport ? team->config.transport : "any");
        return false;
    }
    return !algorithm->supports || algorithm->supports(team, call, in_place, reason);
}

static ptb_status run_alone(const ptb_coll *call)
{
    size_t size = ptb_dtype_size(call->dtype);
    switch (call->kind) {
    case PTB_BARRIER:
        break;
    case PTB_ALL_TO_ALL_V:
        if (call->send_counts[0])
            ptb_copy_local(ptb_at(call->recv, call->recv_first[0], size),
                           ptb_at_const(call->send, call->send_first[0], size), call->send_counts[0] * size);
        break;
    default: // a reduction over one rank is its contribution, an average too
        if (call->count)
            ptb_copy_local(call->recv, call->send, call->count * size);
    }
    return PTB_OK;
}

ptb_status ptb_algorithm_run(const ptb_algorithm *algorithm, ptb_team *team, const ptb_coll *call)
{
    if (team->size == 1)
        return run_alone(call);
    if (call->count == 0 && call->kind != PTB_ALL_TO_ALL_V && call->kind != PTB_BARRIER)
        return PTB_OK;
    if (team->broken) {
        ptb_error("this communicator lost a rank and cannot be used any more");
        return PTB_LOST;
    }
    ptb_status status = algorithm->run(team, call);
    if (status != PTB_OK && !team->broken)
        ptb_team_abort(team, team->rank); // the others must not wait for what will not come
    return status;
}

bool ptb_coll_is_in_place(const ptb_coll *call, int n, int rank)
{
    size_t size = ptb_dtype_size(call->dtype), first = ptb_block(call->count, n, rank).first;
    switch (call->kind) {
    case PTB_ALL_GATHER:
        return call->send == ptb_at_const(call->recv, first, size);
    case PTB_GATHER:
        return rank == call->root && call->send == ptb_at_const(call->recv, first, size);
    case PTB_REDUCE_SCATTER:
        return call->recv == ptb_at_const(call->send, first, size);
    case PTB_SCATTER:
        return rank == call->root && call->recv == ptb_at_const(call->send, first, size);
    case PTB_BARRIER:
        return false;
    default:
        return call->send == call->recv;
    }
}

void ptb_copy_local(void *to, const void *from, size_t bytes)
{
    if (to != from && bytes)
        memmove(to, from, bytes);
}

void ptb_copy_streaming(void *to, const void *from, size_t bytes)
{
    unsigned char *out = to;
    const unsigned char *in = from;
    if (out == in)
        return;
#ifdef __x86_64__
    size_t head = (64 - (uintptr_t)out % 64) % 64;
    head = head < bytes ? head : bytes;
    memcpy(out, in, head);
    out += head;
    in += head;
    bytes -= head;
    for (; bytes >= 64; bytes -= 64, in += 64, out += 64) {
#ifdef __AVX512F__
        _mm512_stream_si512((void *)out, _mm512_loadu_si512((const void *)in));
#elif defined(__AVX2__)
        __m256i low = _mm256_loadu_si256((const __m256i *)(const void *)in);
        __m256i high = _mm256_loadu_si256((const __m256i *)(const void *)(in + 32));
        _mm256_stream_si256((__m256i *)(void *)out, low);
        _mm256_stream_si256((__m256i *)(void *)(out + 32), high);
#else
        for (int i = 0; i < 64; i += 16)
            _mm_stream_si128((__m128i *)(void *)(out + i),
                             _mm_loadu_si128((const __m128i *)(const void *)(in + i)));
#endif
    }
#endif
    memcpy(out, in, bytes);
}
