// See segment.h.
#include "strategies/data/segment.h"

#include "core/log.h"

#include <stdlib.h>

enum {
    BUCKET_ALIGN = 32, // elements: buckets start at cache lines, also in 16 bits
    OWN_ALIGN = 16     // elements: own parts too, in f32
};

static size_t bucket_elements(const ptb_data_env *env)
{
    size_t elements = (size_t)(env->bucket_bytes / ptb_dtype_size(env->reduce_type));
    elements = elements / BUCKET_ALIGN * BUCKET_ALIGN;
    elements = elements < BUCKET_ALIGN ? BUCKET_ALIGN : elements;
    return elements < env->layout->count ? elements : env->layout->count;
}

// Where ep ranks have experts of their own, dense and expert gradients are reduced over different ranks.
static bool groups_differ(const ptb_data_env *env)
{
    return env->ranks[PTB_GROUP_EXPERT].reduce != env->ranks[PTB_GROUP_DENSE].reduce;
}

// Where the range that ends at `end` and is reduced over the same ranks begins: within its unit, or (whole)
// beyond it.
static size_t range_begin(const ptb_data_env *env, size_t end, bool whole, ptb_reduction_group *group)
{
    const ptb_layout *layout = env->layout;
    const ptb_unit *u = &layout->unit[ptb_layout_unit_at(layout, end - 1)];
    *group = PTB_GROUP_DENSE;
    if (!groups_differ(env))
        return whole ? 0 : u->first;
    size_t experts = u->first + u->group[PTB_GROUP_EXPERT].first, begin = u->first;
    if (end > experts) {
        *group = PTB_GROUP_EXPERT;
        return experts;
    }
    for (; whole && u > layout->unit && u[-1].group[PTB_GROUP_EXPERT].count == 0; u--)
        begin = u[-1].first;
    return begin;
}

static ptb_segment segment_before(const ptb_data_env *env, ptb_segment_kind kind, size_t end)
{
    bool buckets = kind == PTB_SEGMENT_BUCKETS;
    ptb_segment s = {.group = PTB_GROUP_DENSE};
    s.first = range_begin(env, end, buckets, &s.group);
    s.count = end - s.first;
    size_t most = buckets ? bucket_elements(env) : s.count;
    if (s.count > most) {
        s.first = end - most;
        s.count = most;
    }
    const ptb_data_ranks *ranks = &env->ranks[s.group];
    s.own = ptb_block(s.count, ranks->shard, ranks->place);
    s.own.first += s.first;
    return s;
}

// The first block of a segment is its largest.
static size_t own_elements(const ptb_data_env *env, const ptb_segment *s)
{
    size_t most = ptb_block(s->count, env->ranks[s->group].shard, 0).count;
    return (most + OWN_ALIGN - 1) / OWN_ALIGN * OWN_ALIGN;
}

static ptb_segments walk(const ptb_data_env *env, ptb_segment_kind kind, ptb_segment *items)
{
    ptb_segments all = {.item = items};
    for (size_t end = env->layout->count; end > 0; all.count++) {
        ptb_segment s = segment_before(env, kind, end);
        s.at = all.own;
        all.own += own_elements(env, &s);
        all.largest = s.count > all.largest ? s.count : all.largest;
        if (items)
            items[all.count] = s;
        end = s.first;
    }
    return all;
}

ptb_segments ptb_segments_measure(const ptb_data_env *env, ptb_segment_kind kind)
{
    return walk(env, kind, NULL);
}

ptb_status ptb_segments_init(ptb_segments *segments, const ptb_data_env *env, ptb_segment_kind kind)
{
    size_t count = walk(env, kind, NULL).count;
    ptb_segment *items = calloc(count, sizeof *items);
    if (!items) {
        ptb_error("no memory to describe %zu buckets; choose a larger --bucket", count);
        return PTB_NO_MEMORY;
    }
    *segments = walk(env, kind, items);
    return PTB_OK;
}

void ptb_segments_release(ptb_segments *segments)
{
    free(segments->item);
    *segments = (ptb_segments){.count = 0};
}
