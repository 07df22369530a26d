// See pool.h.
#include "strategies/data/pool.h"

#include "core/log.h"

#include <stdlib.h>

static size_t slot_count(const ptb_pool_config *c)
{
    return c->blocks + (c->share_ends ? 1 : 2);
}

static size_t slot_bytes(const ptb_data_env *env, const ptb_pool_config *c, size_t slot)
{
    const ptb_layout *layout = env->layout;
    size_t embedding = layout->unit[0].count, head = layout->unit[layout->units - 1].count, most = 0;
    for (size_t u = 1; u + 1 < layout->units; u++)
        most = layout->unit[u].count > most ? layout->unit[u].count : most;
    if (slot == c->blocks)
        most = c->share_ends && head > embedding ? head : embedding;
    else if (slot > c->blocks)
        most = head;
    return most * c->width;
}

uint64_t ptb_pool_bytes(const ptb_data_env *env, const ptb_pool_config *c)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < slot_count(c); i++)
        sum += slot_bytes(env, c, i);
    return sum;
}

static ptb_lane *lane_of(const ptb_pool *s)
{
    return s->env->shard[PTB_GROUP_DENSE];
}

static ptb_status make_events(ptb_pool *s)
{
    s->slot = calloc(slot_count(&s->config), sizeof *s->slot);
    if (!s->slot) {
        ptb_error("no memory to describe %zu units in flight", slot_count(&s->config));
        return PTB_NO_MEMORY;
    }
    for (s->count = 0; s->count < slot_count(&s->config); s->count++) {
        PTB_TRY(ptb_event_new(s->env->device, &s->slot[s->count].filled));
        PTB_TRY(ptb_event_new(s->env->device, &s->slot[s->count].released));
    }
    return PTB_OK;
}

ptb_status ptb_pool_init(ptb_pool *s, const ptb_data_env *env, const ptb_pool_config *config)
{
    *s = (ptb_pool){.env = env, .config = *config};
    PTB_TRY(ptb_world_agree(lane_of(s)->comm->world, make_events(s)));
    for (size_t i = 0; i < s->count; i++) {
        size_t bytes = slot_bytes(env, config, i);
        PTB_TRY(ptb_lane_alloc(lane_of(s), PTB_MEMORY_COMMUNICATION, bytes, &s->slot[i].memory));
        PTB_TRY(ptb_world_agree(lane_of(s)->comm->world,
                                ptb_stream_set(env->compute, s->slot[i].memory, 0, bytes)));
    }
    ptb_pool_empty(s);
    return PTB_OK;
}

void ptb_pool_release(ptb_pool *s)
{
    if (!s->slot)
        return;
    for (size_t i = 0; i < slot_count(&s->config); i++) {
        ptb_lane_free(lane_of(s), PTB_MEMORY_COMMUNICATION, slot_bytes(s->env, &s->config, i),
                      s->slot[i].memory);
        ptb_event_free(s->slot[i].filled);
        ptb_event_free(s->slot[i].released);
    }
    free(s->slot);
    *s = (ptb_pool){.env = NULL};
}

ptb_pool_slot *ptb_pool_slot_of(const ptb_pool *s, size_t unit)
{
    size_t blocks = s->config.blocks, last = s->env->layout->units - 1;
    if (unit == 0)
        return &s->slot[blocks];
    if (unit == last)
        return &s->slot[blocks + !s->config.share_ends];
    return &s->slot[(unit - 1) % blocks];
}

void ptb_pool_empty(ptb_pool *s)
{
    for (size_t i = 0; i < s->count; i++) {
        ptb_pool_slot *slot = &s->slot[i];
        slot->unit = PTB_POOL_EMPTY;
        slot->waited = slot->used = slot->held = slot->reading = false;
    }
}
