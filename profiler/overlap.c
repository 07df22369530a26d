// Interval unions by sorting; see overlap.h for the definitions.
#include "profiler/overlap.h"

#include "core/log.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    int64_t begin, end;
} interval;

// Disjoint, ascending, not empty.
typedef struct {
    interval *items;
    size_t count;
} interval_set;

// Selects spans for a union: kinds as a bit mask; phase and axis -1 mean any.
typedef struct {
    unsigned kinds;
    int phase, axis;
} selection;

typedef struct {
    const ptb_span *spans;
    size_t count;
    const ptb_overlap_filter *filter;
} source;

enum {
    COMM = 1u << PTB_SPAN_COMM,
    COMPUTE = 1u << PTB_SPAN_COMPUTE | 1u << PTB_SPAN_OPTIMIZER,
    DEVICE = COMM | COMPUTE | 1u << PTB_SPAN_COPY,
    INPUT = 1u << PTB_SPAN_INPUT,
};

static int compare(const void *a, const void *b)
{
    const interval *x = a, *y = b;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

static bool counts(const source *from, const ptb_span *span)
{
    const ptb_overlap_filter *f = from->filter;
    return (!f->one_rank || span->rank == f->rank) &&
           (!f->one_correlation || span->correlation == f->correlation);
}

static int axis_of(const ptb_span *span)
{
    return span->axis > 0 && span->axis < PTB_AXIS_COUNT ? span->axis : 0;
}

// The union of the selected spans; `set->items` has room for all of them.
static void unite(const source *from, selection what, interval_set *set)
{
    size_t n = 0;
    for (size_t i = 0; i < from->count; i++) {
        const ptb_span *s = &from->spans[i];
        if (!(what.kinds >> s->kind & 1) || s->end_ns == s->begin_ns || !counts(from, s))
            continue;
        if ((what.phase >= 0 && s->phase != what.phase) || (what.axis >= 0 && axis_of(s) != what.axis))
            continue;
        set->items[n++] = (interval){s->begin_ns, s->end_ns};
    }
    qsort(set->items, n, sizeof *set->items, compare);
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        interval *last = kept ? &set->items[kept - 1] : NULL;
        if (last && set->items[i].begin <= last->end) {
            if (set->items[i].end > last->end)
                last->end = set->items[i].end;
        } else {
            set->items[kept++] = set->items[i];
        }
    }
    set->count = kept;
}

static int64_t length(const interval_set *set)
{
    int64_t sum = 0;
    for (size_t i = 0; i < set->count; i++)
        sum += set->items[i].end - set->items[i].begin;
    return sum;
}

static int64_t intersection(const interval_set *a, const interval_set *b)
{
    int64_t sum = 0;
    for (size_t i = 0, j = 0; i < a->count && j < b->count;) {
        int64_t begin = a->items[i].begin > b->items[j].begin ? a->items[i].begin : b->items[j].begin;
        int64_t end = a->items[i].end < b->items[j].end ? a->items[i].end : b->items[j].end;
        if (end > begin)
            sum += end - begin;
        if (a->items[i].end < b->items[j].end)
            i++;
        else
            j++;
    }
    return sum;
}

static int64_t united_length(const source *from, selection what, interval_set *scratch)
{
    unite(from, what, scratch);
    return length(scratch);
}

static ptb_overlap_part part(const source *from, selection what, const interval_set *compute,
                             interval_set *scratch)
{
    unite(from, what, scratch);
    ptb_overlap_part p = {.communication_ns = length(scratch),
                          .overlapped_ns = intersection(scratch, compute)};
    p.exposed_ns = p.communication_ns - p.overlapped_ns;
    return p;
}

static void measure(const source *from, interval_set *compute, interval_set *scratch, ptb_overlap *o)
{
    unite(from, (selection){COMPUTE, -1, -1}, compute);
    o->compute_ns = length(compute);
    ptb_overlap_part all = part(from, (selection){COMM, -1, -1}, compute, scratch);
    o->communication_ns = all.communication_ns;
    o->overlapped_ns = all.overlapped_ns;
    o->exposed_ns = all.exposed_ns;
    o->overlap = all.communication_ns ? (double)all.overlapped_ns / (double)all.communication_ns : NAN;
    o->busy_ns = united_length(from, (selection){DEVICE, -1, -1}, scratch);
    if (scratch->count)
        o->span_ns = scratch->items[scratch->count - 1].end - scratch->items[0].begin;
    o->idle_ns = o->span_ns - o->busy_ns;
    o->optimizer_ns = united_length(from, (selection){1u << PTB_SPAN_OPTIMIZER, -1, -1}, scratch);
    o->input_ns = united_length(from, (selection){INPUT, -1, -1}, scratch);
    o->step_ns = united_length(from, (selection){1u << PTB_SPAN_STEP, -1, -1}, scratch);
    o->accounted_ns = united_length(from, (selection){COMPUTE | COMM | INPUT, -1, -1}, scratch);
    o->input_exposed_ns = o->accounted_ns - united_length(from, (selection){COMPUTE | COMM, -1, -1}, scratch);
    for (int i = 0; i < PTB_PHASE_COUNT; i++) {
        o->phase_compute_ns[i] = united_length(from, (selection){COMPUTE, i, -1}, scratch);
        o->phase[i] = part(from, (selection){COMM, i, -1}, compute, scratch);
    }
    for (int i = 0; i < PTB_AXIS_COUNT; i++)
        o->axis[i] = part(from, (selection){COMM, -1, i}, compute, scratch);
}

ptb_status ptb_overlap_measure(const ptb_span *spans, size_t count, const ptb_overlap_filter *filter,
                               ptb_overlap *overlap)
{
    static const ptb_overlap_filter everything;
    source from = {spans, count, filter ? filter : &everything};
    ptb_overlap result = {.overlap = NAN};
    for (size_t i = 0; i < count; i++) {
        if (!counts(&from, &spans[i]))
            continue;
        result.spans++;
        if (spans[i].end_ns < spans[i].begin_ns) {
            ptb_error("span '%.24s' of rank %d ends %" PRId64 " ns before it begins", spans[i].name,
                      (int)spans[i].rank, spans[i].begin_ns - spans[i].end_ns);
            return PTB_INTERNAL;
        }
    }
    if (!result.spans) {
        *overlap = result;
        return PTB_OK;
    }
    interval *memory = malloc(2 * result.spans * sizeof *memory);
    if (!memory) {
        ptb_error("no memory to analyse %zu spans (%zu bytes)", result.spans,
                  2 * result.spans * sizeof *memory);
        return PTB_NO_MEMORY;
    }
    interval_set compute = {memory, 0}, scratch = {memory + result.spans, 0};
    measure(&from, &compute, &scratch, &result);
    free(memory);
    *overlap = result;
    return PTB_OK;
}
