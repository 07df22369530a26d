// Fill, check and reduce on the CUDA device: the host's side of the kernels in device_cuda_pattern.cu and
// device_cuda_reduce.cu. A check leaves its finding in pinned memory of the stream; once the stream has been
// waited for, findings are added to where they were asked for.
#include "core/device_cuda_internal.h"

#include "core/log.h"

#include <cuda_runtime_api.h>

#include <stdlib.h>

enum {
    CHECKS = 256, // in flight on a stream; one more waits for them
    BLOCKS = 8,   // of a grid, for each multiprocessor: all of its threads
};

typedef struct {
    ptb_pattern pattern;
    ptb_expect expect;
    ptb_check *check;
} pending;

struct ptb_cuda_checks {
    size_t count;
    pending pending[CHECKS];
    ptb_cuda_counter *counter;  // in device memory; checks of a stream follow one another
    ptb_cuda_finding *findings; // [CHECKS], pinned
};

static int most_blocks(const ptb_stream *stream)
{
    return BLOCKS * ptb_cuda_processors(stream->device);
}

ptb_status ptb_cuda_fill(ptb_stream *stream, const ptb_pattern *pattern, bool reduced, int rank, size_t first,
                         void *buffer, size_t count)
{
    PTB_TRY(ptb_cuda_stream_status(stream));
    if (!count)
        return PTB_OK;
    ptb_recipe recipe = ptb_recipe_fill(pattern, reduced, rank);
    PTB_TRY(ptb_cuda_use(stream->device));
    PTB_CUDA_ON(stream, ptb_cuda_launch_fill(&recipe, first, buffer, count, most_blocks(stream),
                                             ptb_cuda_stream(stream)));
    return PTB_OK;
}

ptb_status ptb_cuda_reduce(ptb_stream *stream, ptb_dtype type, ptb_redop op, void *out, const void *a,
                           const void *b, size_t count)
{
    PTB_TRY(ptb_cuda_stream_status(stream));
    if (!count)
        return PTB_OK;
    PTB_TRY(ptb_cuda_use(stream->device));
    PTB_CUDA_ON(stream, ptb_cuda_launch_reduce(type, op, out, a, b, count, most_blocks(stream),
                                               ptb_cuda_stream(stream)));
    return PTB_OK;
}

static ptb_status make_checks(ptb_cuda_stream_t *s)
{
    ptb_device *device = s->base.device;
    struct ptb_cuda_checks *c = calloc(1, sizeof *c);
    if (!c) {
        ptb_error("no memory for the checks of a stream");
        return PTB_NO_MEMORY;
    }
    s->checks = c;
    void *memory = NULL;
    ptb_status status = ptb_device_alloc(device, PTB_MEMORY_WORKSPACE, sizeof *c->counter, &memory);
    c->counter = memory;
    memory = NULL;
    if (status == PTB_OK)
        status = ptb_device_alloc_host(device, CHECKS * sizeof *c->findings, &memory);
    c->findings = memory;
    if (status == PTB_OK)
        status = ptb_stream_set(&s->base, c->counter, 0, sizeof *c->counter);
    if (status != PTB_OK)
        ptb_cuda_checks_free(s);
    return status;
}

void ptb_cuda_checks_free(ptb_cuda_stream_t *s)
{
    if (!s->checks)
        return;
    ptb_device_free(s->base.device, s->checks->counter);
    ptb_device_free_host(s->base.device, s->checks->findings);
    free(s->checks);
    s->checks = NULL;
}

ptb_status ptb_cuda_check_buffer(ptb_stream *stream, const ptb_pattern *pattern, const ptb_expect *expect,
                                 const void *buffer, ptb_check *check)
{
    ptb_cuda_stream_t *s = (ptb_cuda_stream_t *)stream;
    PTB_TRY(ptb_cuda_stream_status(stream));
    if (!expect->count)
        return PTB_OK;
    if (((ptb_cuda_device *)stream->device)->is_capturing) {
        ptb_error("a check cannot be recorded into a graph");
        return PTB_INTERNAL;
    }
    if (!s->checks)
        PTB_TRY(make_checks(s));
    struct ptb_cuda_checks *c = s->checks;
    if (c->count == CHECKS)
        PTB_TRY(ptb_cuda_stream_sync(stream));
    const bool poison = expect->kind == PTB_EXPECT_POISON;
    ptb_recipe recipe = ptb_recipe_expect(pattern, expect);
    const char *start = (const char *)buffer + expect->first * ptb_dtype_size(pattern->dtype);
    PTB_TRY(ptb_cuda_use(stream->device));
    PTB_CUDA_ON(stream,
                ptb_cuda_launch_check(poison ? NULL : &recipe, pattern->dtype, expect->source_index,
                                      expect->first, start, expect->count, c->counter, &c->findings[c->count],
                                      most_blocks(stream), ptb_cuda_stream(stream)));
    c->pending[c->count++] = (pending){*pattern, *expect, check};
    return PTB_OK;
}

void ptb_cuda_checks_finish(ptb_cuda_stream_t *s)
{
    struct ptb_cuda_checks *c = s->checks;
    for (size_t i = 0; i < c->count; i++) {
        const pending *p = &c->pending[i];
        const ptb_cuda_finding *found = &c->findings[i];
        if (found->wrong && p->check->wrong == 0) {
            p->check->first_wrong = found->first_wrong;
            p->check->got = ptb_dtype_load(p->pattern.dtype, found->got);
            p->check->wanted =
                ptb_pattern_wanted(&p->pattern, &p->expect, found->first_wrong - p->expect.first);
        }
        p->check->wrong += found->wrong;
        p->check->checked += p->expect.count;
    }
    c->count = 0;
}
