// What goes into the buffers before timing and what is checked in them afterwards: every element of the
// result, that the input of an out-of-place call is as it was, and that the poisoned bytes around the buffers
// are.
#include "collectives/coll_run.h"
#include "core/log.h"

#include <stdio.h>
#include <string.h>

// One of the two buffers as this case uses it.
typedef struct {
    char *base;          // of the allocation
    size_t before, data; // bytes from base to the data, bytes of data; a guard follows
} extent;

static extent extent_of(const ptb_bench_run *run, int which)
{
    size_t element = ptb_dtype_size(run->point->type);
    size_t count = which == 1             ? run->shape.recv_count
                   : run->point->in_place ? run->shape.in_place_count
                                          : run->shape.send_count;
    return (extent){.base = ptb_coll_buffer(run, which),
                    .before = PTB_COLL_GUARD_BYTES + (size_t)run->plan.misalign * element,
                    .data = count * element};
}

static int buffers_used(const ptb_bench_run *run)
{
    return run->point->in_place ? 1 : 2;
}

ptb_status ptb_coll_fill_input(ptb_bench_run *run)
{
    bool reduced = run->subject->collective.reduces;
    PTB_TRY(run->device->ops->fill(run->stream, &run->pattern, reduced, run->group->rank, 0, run->send,
                                   run->shape.send_count));
    return ptb_stream_sync(run->stream);
}

ptb_status ptb_coll_fill(ptb_bench_run *run)
{
    for (int b = 0; b < buffers_used(run); b++) {
        extent e = extent_of(run, b);
        PTB_TRY(ptb_stream_set(run->stream, e.base, PTB_PATTERN_POISON,
                               e.before + e.data + PTB_COLL_GUARD_BYTES));
    }
    return ptb_coll_fill_input(run);
}

// Adds what a check found to the verdict; `what` names the buffer.
static void judge(const ptb_bench_run *run, const ptb_check *check, const char *what, ptb_verdict *verdict)
{
    verdict->checked += check->checked;
    if (check->wrong && verdict->wrong == 0) {
        char where[64] = "";
        if (run->plan.groups > 1)
            snprintf(where, sizeof where, " (rank %d of its group)", run->group->rank);
        snprintf(verdict->detail, sizeof verdict->detail, "rank %d%s, %s %llu: wanted %.17g, got %.17g",
                 run->env->world->rank, where, what, (unsigned long long)check->first_wrong, check->wanted,
                 check->got);
    }
    verdict->wrong += check->wrong;
}

static ptb_status check_result(ptb_bench_run *run, ptb_verdict *verdict)
{
    const ptb_collective *coll = &run->subject->collective;
    ptb_check check = {0};
    ptb_expect expect;
    for (size_t i = 0;
         coll->expect(run->point->count, run->group->size, run->group->rank, run->plan.root, i, &expect); i++)
        PTB_TRY(run->device->ops->check(run->stream, &run->pattern, &expect, run->recv, &check));
    PTB_TRY(ptb_stream_sync(run->stream));
    judge(run, &check, "element", verdict);
    return PTB_OK;
}

// The input must be unchanged, unless the call is in place and its output lies over it.
static ptb_status check_input(ptb_bench_run *run, ptb_verdict *verdict)
{
    const ptb_collective *coll = &run->subject->collective;
    if (run->point->in_place && coll->in_place_changes_input && run->shape.recv_count > 0)
        return PTB_OK;
    ptb_check check = {0};
    ptb_expect expect = {.kind = coll->reduces ? PTB_EXPECT_INPUT : PTB_EXPECT_COPY,
                         .count = run->shape.send_count,
                         .source_rank = run->group->rank};
    PTB_TRY(run->device->ops->check(run->stream, &run->pattern, &expect, run->send, &check));
    PTB_TRY(ptb_stream_sync(run->stream));
    judge(run, &check, "input element", verdict);
    return PTB_OK;
}

static ptb_status check_guards(ptb_bench_run *run, ptb_verdict *verdict)
{
    ptb_pattern bytes;
    ptb_pattern_init(&bytes, 0, PTB_U8, PTB_SUM, 1);
    for (int b = 0; b < buffers_used(run); b++) {
        extent e = extent_of(run, b);
        ptb_expect before = {.kind = PTB_EXPECT_POISON, .count = e.before};
        ptb_expect after = {.kind = PTB_EXPECT_POISON, .count = PTB_COLL_GUARD_BYTES};
        ptb_check check[2] = {{0}, {0}};
        PTB_TRY(run->device->ops->check(run->stream, &bytes, &before, e.base, &check[0]));
        PTB_TRY(run->device->ops->check(run->stream, &bytes, &after, e.base + e.before + e.data, &check[1]));
        PTB_TRY(ptb_stream_sync(run->stream));
        judge(run, &check[0], b ? "byte in front of the receive buffer" : "byte in front of the send buffer",
              verdict);
        judge(run, &check[1], b ? "byte past the receive buffer" : "byte past the send buffer", verdict);
    }
    return PTB_OK;
}

ptb_status ptb_coll_bench_verify(ptb_bench_run *run, ptb_verdict *verdict)
{
    *verdict = (ptb_verdict){.done = run->subject->collective.has_data};
    if (!verdict->done)
        return PTB_OK;
    PTB_TRY(check_result(run, verdict));
    PTB_TRY(check_input(run, verdict));
    return check_guards(run, verdict);
}
