// The span buffer: writers take a place with one atomic addition and write it; nobody waits for anybody.
#include "core/trace.h"

#include "core/log.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct ptb_trace {
    ptb_span *spans;
    size_t capacity;
    atomic_size_t taken; // may run past capacity: the excess is the number dropped
    int rank;
    ptb_capture *capture;
};

const char *ptb_span_kind_name(ptb_span_kind kind)
{
    static const char *const names[PTB_SPAN_KIND_COUNT] = {"compute", "communication", "optimizer", "copy",
                                                           "input",   "sync",          "step",      "inside"};
    return (unsigned)kind < PTB_SPAN_KIND_COUNT ? names[kind] : "unknown";
}

const char *ptb_phase_name(ptb_phase phase)
{
    static const char *const names[PTB_PHASE_COUNT] = {"none", "forward", "backward", "optimizer"};
    return (unsigned)phase < PTB_PHASE_COUNT ? names[phase] : "unknown";
}

const char *ptb_span_axis_name(int axis)
{
    static const char *const names[] = {"none", "dp", "tp", "pp", "cp", "ep"};
    const int count = sizeof names / sizeof *names;
    return names[axis > 0 && axis < count ? axis : 0];
}

ptb_status ptb_trace_new(size_t capacity, int rank, ptb_trace **trace)
{
    ptb_trace *t = malloc(sizeof *t);
    ptb_span *spans = malloc(capacity * sizeof *spans);
    if (!t || !spans) {
        ptb_error("no memory for a trace of %zu spans (%zu bytes); record fewer steps", capacity,
                  capacity * sizeof *spans);
        free(t);
        free(spans);
        return PTB_NO_MEMORY;
    }
    memset(spans, 0, capacity * sizeof *spans); // touches the pages now, not inside a step
    t->spans = spans;
    t->capacity = capacity;
    t->rank = rank;
    t->capture = NULL;
    atomic_init(&t->taken, 0);
    *trace = t;
    return PTB_OK;
}

void ptb_trace_free(ptb_trace *trace)
{
    if (!trace)
        return;
    free(trace->spans);
    free(trace);
}

void ptb_trace_record(ptb_trace *trace, const ptb_span *span)
{
    if (!trace)
        return;
    size_t place = atomic_fetch_add_explicit(&trace->taken, 1, memory_order_relaxed);
    if (place < trace->capacity)
        trace->spans[place] = *span;
}

const ptb_span *ptb_trace_spans(const ptb_trace *trace, size_t *count, size_t *dropped)
{
    size_t taken = atomic_load(&trace->taken);
    *count = taken < trace->capacity ? taken : trace->capacity;
    if (dropped)
        *dropped = taken - *count;
    return trace->spans;
}

void ptb_trace_clear(ptb_trace *trace)
{
    atomic_store(&trace->taken, 0);
}

int ptb_trace_rank(const ptb_trace *trace)
{
    return trace->rank;
}

void ptb_trace_set_capture(ptb_trace *trace, ptb_capture *capture)
{
    trace->capture = capture;
}

ptb_capture *ptb_trace_capture(const ptb_trace *trace)
{
    return trace->capture;
}
