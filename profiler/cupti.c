// Capture on NVIDIA GPUs through CUPTI's activity API: kernels, copies, memsets, synchronisation, and what
// CUPTI says it cost. External correlation carries the open work from the thread that enqueues to each
// record: CUPTI notes for every API call the number that was pushed last, and each kernel names the call that
// launched it. Kernels of a graph name its launch, and their node, which cupti_graphs.c knows the work of.
//
// CUPTI asks for buffers and hands them back full, on threads of its own. They are kept as they come and read
// when recording ends; nothing is parsed while steps run. Records of one kind do not come in order, and a
// kernel's may come before the one that attributes it, so all attributions are read first.
//
// Times are ptb_clock_ns: CUPTI takes them from a function of ours and fits the GPU's clock to it.
#include "profiler/capture.h"
#include "profiler/cupti_api.h"
#include "profiler/cupti_buffers.h"
#include "profiler/cupti_graphs.h"
#include "profiler/cupti_names.h"
#include "profiler/nccl_profiler.h"
#include "profiler/nvtx_cuda.h"

#include "core/clock.h"
#include "core/log.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    WORKS = 1 << 15,       // that can be opened while recording
    NCCL_EVENTS = 1 << 16, // of NCCL's inside
    NESTED = 16,           // that are open at once
};
enum { NCCL_PATIENCE_NS = 200000000 }; // that its proxies may end later than the streams

// What is recorded. API calls are wanted only for the attributions that come with them.
static const CUpti_ActivityKind kinds[] = {
    CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION,
    CUPTI_ACTIVITY_KIND_RUNTIME,
    CUPTI_ACTIVITY_KIND_DRIVER,
    CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
    CUPTI_ACTIVITY_KIND_MEMCPY,
    CUPTI_ACTIVITY_KIND_MEMCPY2,
    CUPTI_ACTIVITY_KIND_MEMSET,
    CUPTI_ACTIVITY_KIND_SYNCHRONIZATION,
    CUPTI_ACTIVITY_KIND_OVERHEAD,
};
enum { KINDS = sizeof kinds / sizeof *kinds };

typedef struct {
    ptb_span span;
    bool is_counted; // its bytes are on a span already
    uint64_t range;
} work;

typedef struct {
    uint32_t correlation;
    uint32_t work;
} attribution;

typedef struct {
    ptb_capture base;
    const ptb_cupti_api *cupti;
    ptb_cupti_graphs *graphs;
    pthread_t thread;      // that opened it, and opens works
    work *works;           // [WORKS]; numbers given out are one more than the place
    uint64_t count;        // works opened since start
    uint64_t open[NESTED]; // numbers, as CUPTI's stack of this thread has them
    int depth;
    int enabled; // kinds that are switched on
    bool is_registered;
    attribution *attributions;
    size_t attribution_count, attribution_room;
} capture;

static const ptb_capture_ops cupti_capture;

// What keeps CUPTI from being used is no error of the run: it goes on without spans of the GPU.
static void give_up(capture *c, CUptiResult result, const char *function)
{
    ptb_text why = PTB_TEXT_INIT;
    ptb_cupti_say(&why, result, function);
    snprintf(c->base.cannot, sizeof c->base.cannot, "%s", ptb_text_string(&why));
    ptb_text_release(&why);
}

static uint64_t now_ns(void)
{
    return (uint64_t)ptb_clock_ns();
}

static bool is_usable(capture *c)
{
    ptb_text why = PTB_TEXT_INIT;
    ptb_status status = ptb_cupti_load(&why);
    snprintf(c->base.cannot, sizeof c->base.cannot, "%s", ptb_text_string(&why));
    ptb_text_release(&why);
    if (status == PTB_OK)
        c->cupti = ptb_cupti_functions();
    return status == PTB_OK;
}

// Not before something is to be recorded: from the first of CUPTI's functions on it may take part in every
// call of CUDA's.
static bool is_registered(capture *c)
{
    const char *function = "cuptiActivityRegisterTimestampCallback";
    if (c->is_registered)
        return true;
    ptb_cupti_note_attached();
    CUptiResult result = c->cupti->ActivityRegisterTimestampCallback(now_ns);
    if (result == CUPTI_SUCCESS) {
        function = "cuptiActivityRegisterCallbacks";
        result = c->cupti->ActivityRegisterCallbacks(ptb_cupti_buffer_wanted, ptb_cupti_buffer_full);
    }
    if (result != CUPTI_SUCCESS)
        give_up(c, result, function);
    c->is_registered = result == CUPTI_SUCCESS;
    return c->is_registered;
}

// What is open on the thread that opens works: nodes of graphs, and operations of NCCL, may come from others.
static const ptb_span *open_now(void *context, uint64_t *number)
{
    const capture *c = context;
    if (!pthread_equal(c->thread, pthread_self()) || !c->depth)
        return NULL;
    *number = c->open[c->depth - 1];
    return &c->works[*number - 1].span;
}

static void cupti_close(ptb_capture *base)
{
    capture *c = (capture *)base;
    ptb_cupti_graphs_free(c->graphs);
    ptb_cupti_buffers_release();
    ptb_nccl_profiler_release();
    free(c->attributions);
    free(c->works);
    free(c);
}

static ptb_status cupti_open(ptb_capture **out)
{
    capture *c = calloc(1, sizeof *c);
    work *works = calloc(WORKS, sizeof *works);
    if (!c || !works) {
        ptb_error("no memory for %d works of a capture (%zu bytes)", WORKS, WORKS * sizeof *works);
        free(c);
        free(works);
        return PTB_NO_MEMORY;
    }
    memset(works, 0xff, WORKS * sizeof *works); // pages come now, not inside a step
    c->base.ops = &cupti_capture;
    c->base.annotating = ptb_nvtx_is_heard();
    c->base.was_attached = ptb_cupti_is_attached();
    c->works = works;
    c->thread = pthread_self();
    ptb_status status = is_usable(c) ? ptb_cupti_buffers_init() : PTB_OK;
    if (status == PTB_OK && c->cupti)
        status = ptb_cupti_graphs_new(open_now, c, &c->graphs);
    if (status != PTB_OK) {
        cupti_close(&c->base);
        return status;
    }
    *out = &c->base;
    return PTB_OK;
}

// ---- works

// What another tool shows of a work: "all_reduce backward dp unit 5".
static uint64_t begin_range(const ptb_span *span)
{
    ptb_text name = PTB_TEXT_INIT;
    ptb_text_append(&name, span->name);
    if (span->phase != PTB_PHASE_NONE)
        ptb_text_printf(&name, " %s", ptb_phase_name((ptb_phase)span->phase));
    if (span->axis)
        ptb_text_printf(&name, " %s", ptb_span_axis_name(span->axis));
    if (span->unit >= 0)
        ptb_text_printf(&name, " unit %d", span->unit);
    if (span->microbatch >= 0)
        ptb_text_printf(&name, " microbatch %d", span->microbatch);
    uint64_t range = ptb_nvtx_start(ptb_text_string(&name));
    ptb_text_release(&name);
    return range;
}

// Numbers are pushed on CUPTI's stack of the calling thread, which ours mirrors.
static uint64_t cupti_open_work(ptb_capture *base, const ptb_span *span)
{
    capture *c = (capture *)base;
    if (c->count == WORKS && !base->recording)
        c->count = 0; // only names for another tool: the oldest have ended long since
    if (c->count == WORKS || c->depth == NESTED) {
        base->stats.dropped++;
        return 0;
    }
    work *w = &c->works[c->count];
    *w = (work){.span = *span};
    if (base->annotating)
        w->range = begin_range(span);
    uint64_t number = ++c->count;
    c->open[c->depth++] = number;
    if (base->recording)
        c->cupti->ActivityPushExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, number);
    return number;
}

static void cupti_close_work(ptb_capture *base, uint64_t number)
{
    capture *c = (capture *)base;
    int place = c->depth - 1;
    while (place >= 0 && c->open[place] != number)
        place--;
    if (place < 0)
        return;
    if (base->annotating)
        ptb_nvtx_end(c->works[number - 1].range);
    // CUPTI can only pop the last: those above go and come back.
    for (int i = c->depth; base->recording && i > place; i--)
        c->cupti->ActivityPopExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, NULL);
    memmove(&c->open[place], &c->open[place + 1], (size_t)(c->depth - place - 1) * sizeof *c->open);
    c->depth--;
    for (int i = place; base->recording && i < c->depth; i++)
        c->cupti->ActivityPushExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, c->open[i]);
}

// ---- recording

static void switch_off(capture *c)
{
    while (c->enabled > 0) {
        CUptiResult off = c->cupti->ActivityDisable(kinds[--c->enabled]);
        if (off != CUPTI_SUCCESS)
            give_up(c, off, "cuptiActivityDisable"); // it may go on recording: not again
    }
    ptb_cupti_graphs_rest(c->graphs);
}

// Where nodes of graphs cannot be told apart, the rest still can.
static void watch_graphs(capture *c)
{
    ptb_text why = PTB_TEXT_INIT;
    ptb_cupti_graphs_watch(c->graphs, &why);
    snprintf(c->base.nodes_cannot, sizeof c->base.nodes_cannot, "%s", ptb_text_string(&why));
    ptb_text_release(&why);
}

static ptb_status cupti_start(ptb_capture *base)
{
    capture *c = (capture *)base;
    c->count = 0;
    c->depth = 0;
    c->attribution_count = 0;
    if (!is_registered(c))
        return PTB_UNSUPPORTED;
    for (c->enabled = 0; c->enabled < KINDS; c->enabled++) {
        CUptiResult on = c->cupti->ActivityEnable(kinds[c->enabled]);
        if (on == CUPTI_SUCCESS)
            continue;
        switch_off(c);
        give_up(c, on, "cuptiActivityEnable");
        return PTB_UNSUPPORTED;
    }
    watch_graphs(c);
    if (base->without_inside)
        return PTB_OK;
    ptb_status status = ptb_nccl_profiler_start(NCCL_EVENTS, open_now, c);
    if (status != PTB_OK)
        switch_off(c);
    return status;
}

static ptb_status attribute(capture *c, uint32_t correlation, uint64_t number)
{
    if (c->attribution_count == c->attribution_room) {
        size_t room = c->attribution_room ? 2 * c->attribution_room : 1 << 14;
        attribution *grown = realloc(c->attributions, room * sizeof *grown);
        if (!grown) {
            ptb_error("no memory for %zu attributions of kernels (%zu bytes)", room, room * sizeof *grown);
            return PTB_NO_MEMORY;
        }
        c->attributions = grown;
        c->attribution_room = room;
    }
    c->attributions[c->attribution_count++] = (attribution){correlation, (uint32_t)number};
    return PTB_OK;
}

static int by_correlation(const void *a, const void *b)
{
    const attribution *x = a, *y = b;
    return (x->correlation > y->correlation) - (x->correlation < y->correlation);
}

static work *work_of(capture *c, uint32_t correlation)
{
    if (!c->attribution_count)
        return NULL;
    attribution key = {.correlation = correlation};
    const attribution *a = bsearch(&key, c->attributions, c->attribution_count, sizeof key, by_correlation);
    return a && a->work >= 1 && a->work <= c->count ? &c->works[a->work - 1] : NULL;
}

// The step that what belongs to no work is counted in.
static uint64_t step_of(const capture *c)
{
    return c->count ? c->works[0].span.correlation : 0;
}

// A record of device work. node: of a graph, 0 of none.
typedef struct {
    uint32_t correlation;
    uint64_t node;
    uint64_t begin_ns, end_ns, bytes;
    const char *kernel; // its name as the compiler has it
    const char *name;   // of what is no kernel
    ptb_span_kind kind;
} record;

// The work that a record belongs to; NULL: none. *is_first: the first record of it.
static const ptb_span *whose(capture *c, const record *r, bool *is_first)
{
    if (r->node)
        return ptb_cupti_graphs_find(c->graphs, r->node, r->correlation, is_first);
    work *w = work_of(c, r->correlation);
    if (!w)
        return NULL;
    *is_first = !w->is_counted;
    w->is_counted = true;
    return &w->span;
}

static void note_kernel(capture *c, const ptb_span *of, const char *mangled)
{
    char kernel[PTB_KERNEL_NAME_BYTES];
    ptb_cupti_short_name(mangled, kernel, sizeof kernel);
    ptb_capture_note_kernel(&c->base, of, kernel);
}

// Communication keeps the name of its collective, since a kernel of NCCL's may serve several; everything else
// has the kernel's. What a graph ran belongs to the step that launched it, whenever it was captured.
static void add_span(capture *c, const record *r)
{
    ptb_capture_stats *stats = &c->base.stats;
    bool is_first = false;
    const ptb_span *of = whose(c, r, &is_first);
    const work *launch = r->node ? work_of(c, r->correlation) : NULL;
    ptb_span span = {.kind = (uint8_t)r->kind, .unit = -1, .microbatch = -1, .correlation = step_of(c)};
    if (of)
        span = *of;
    if (r->node)
        span.correlation = launch ? launch->span.correlation : step_of(c);
    stats->unattributed += !of;
    stats->graph_nodes += r->node != 0;
    stats->unattributed_nodes += !of && r->node && r->kind == PTB_SPAN_COMPUTE;
    bool is_communication = of && span.kind == PTB_SPAN_COMM;
    if (is_communication && r->kernel)
        note_kernel(c, of, r->kernel);
    if (r->kind == PTB_SPAN_COPY && !is_communication)
        span.kind = PTB_SPAN_COPY;
    if (is_communication)
        span.bytes = is_first ? span.bytes : 0;
    else
        span.bytes = r->bytes;
    if (!is_communication && r->name)
        snprintf(span.name, sizeof span.name, "%s", r->name);
    else if (!is_communication)
        ptb_cupti_short_name(r->kernel, span.name, sizeof span.name);
    span.rank = ptb_trace_rank(c->base.trace);
    span.begin_ns = (int64_t)r->begin_ns;
    span.end_ns = (int64_t)r->end_ns;
    ptb_trace_record(c->base.trace, &span);
}

static void add_sync(capture *c, const CUpti_ActivitySynchronization *r)
{
    c->base.stats.syncs++;
    work *w = work_of(c, r->correlationId);
    if (r->end <= r->start)
        return;
    ptb_span span = {.begin_ns = (int64_t)r->start,
                     .end_ns = (int64_t)r->end,
                     .rank = ptb_trace_rank(c->base.trace),
                     .kind = PTB_SPAN_SYNC,
                     .unit = -1,
                     .microbatch = -1,
                     .correlation = w ? w->span.correlation : step_of(c),
                     .name = "synchronise"};
    ptb_trace_record(c->base.trace, &span);
}

static ptb_status read_attribution(void *context, const void *any)
{
    const CUpti_Activity *kind = any;
    if (kind->kind != CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION)
        return PTB_OK;
    const CUpti_ActivityExternalCorrelation *r = any;
    if (r->externalKind != CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0)
        return PTB_OK;
    return attribute(context, r->correlationId, r->externalId);
}

#define RECORD(r, what, ...)                                                                                 \
    &(record)                                                                                                \
    {                                                                                                        \
        .correlation = (r)->correlationId, .node = (r)->graphNodeId, .begin_ns = (r)->start,                 \
        .end_ns = (r)->end, .kind = (what), __VA_ARGS__                                                      \
    }

// The fields used here have kept their places from CUDA 12.4 on; later versions of the structs only add to
// the end.
static ptb_status read_work(void *context, const void *any)
{
    const CUpti_Activity *kind = any;
    capture *c = context;
    ptb_capture_stats *stats = &c->base.stats;
    switch (kind->kind) {
    case CUPTI_ACTIVITY_KIND_KERNEL:
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
        const CUpti_ActivityKernel9 *r = any;
        stats->kernels++;
        add_span(c, RECORD(r, PTB_SPAN_COMPUTE, .kernel = r->name));
        break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
        const CUpti_ActivityMemcpy5 *r = any;
        stats->copies++;
        add_span(c, RECORD(r, PTB_SPAN_COPY, .name = "copy", .bytes = r->bytes));
        break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY2: {
        const CUpti_ActivityMemcpyPtoP4 *r = any;
        stats->copies++;
        add_span(c, RECORD(r, PTB_SPAN_COPY, .name = "copy between devices", .bytes = r->bytes));
        break;
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
        const CUpti_ActivityMemset4 *r = any;
        stats->sets++;
        add_span(c, RECORD(r, PTB_SPAN_COMPUTE, .name = "memset", .bytes = r->bytes));
        break;
    }
    case CUPTI_ACTIVITY_KIND_SYNCHRONIZATION:
        add_sync(c, any);
        break;
    case CUPTI_ACTIVITY_KIND_OVERHEAD: {
        const CUpti_ActivityOverhead2 *r = any;
        stats->overhead_ns += r->end > r->start ? r->end - r->start : 0;
        break;
    }
    default:
        break; // API calls: only their attributions matter
    }
    return PTB_OK;
}

static ptb_status read_records(capture *c)
{
    PTB_TRY(ptb_cupti_buffers_read(read_attribution, c));
    if (c->attribution_count)
        qsort(c->attributions, c->attribution_count, sizeof *c->attributions, by_correlation);
    return ptb_cupti_buffers_read(read_work, c);
}

// What NCCL did inside of the communication, in lanes of its own.
static void add_inside(capture *c)
{
    size_t dropped = 0, late = 0;
    ptb_nccl_profiler_settle(NCCL_PATIENCE_NS);
    ptb_nccl_profiler_spans(c->base.trace, step_of(c), &dropped, &late);
    c->base.stats.inside_dropped += dropped;
    c->base.stats.inside_late += late;
}

static ptb_status cupti_stop(ptb_capture *base)
{
    capture *c = (capture *)base;
    ptb_nccl_profiler_stop();
    CUptiResult flushed = c->cupti->ActivityFlushAll(0);
    switch_off(c);
    if (flushed != CUPTI_SUCCESS) { // what it holds is lost
        base->stats.dropped++;
        give_up(c, flushed, "cuptiActivityFlushAll");
    }
    ptb_status status = read_records(c);
    if (!base->without_inside)
        add_inside(c);
    base->stats.dropped += ptb_cupti_buffers_recycle();
    return status;
}

static const ptb_capture_ops cupti_capture = {
    .plugin = {"cuda", "CUPTI's activity records: kernels, copies, memsets, synchronisation"},
    .open = cupti_open,
    .close = cupti_close,
    .start = cupti_start,
    .stop = cupti_stop,
    .open_work = cupti_open_work,
    .close_work = cupti_close_work,
};
PTB_REGISTER(PTB_KIND_CAPTURE, cupti_capture);
