// See shard.h.
#include "strategies/data/shard.h"

#include "core/log.h"

#include <stdlib.h>

static const ptb_data_env *env_of(const ptb_shard *s)
{
    return &s->data->env;
}

static ptb_lane *main_lane(const ptb_shard *s)
{
    return env_of(s)->shard[PTB_GROUP_DENSE];
}

// Bytes of each array.
typedef struct {
    size_t parameters, gradients; // of a version
    size_t versions;
    size_t staging, own; // own: f32, of own parts
} sizes;

enum { VERSION_ALIGN = 64 }; // bytes: versions begin at cache lines

static size_t whole_bytes(const ptb_shard_config *config, size_t bytes)
{
    return config->versions > 1 ? (bytes + VERSION_ALIGN - 1) / VERSION_ALIGN * VERSION_ALIGN : bytes;
}

static bool has_master(const ptb_data_env *env, const ptb_shard_config *config)
{
    return ptb_data_is_mixed(env) || config->versions > 0;
}

static sizes measure(const ptb_data_env *env, const ptb_shard_config *config)
{
    ptb_segments segments = ptb_segments_measure(env, config->kind);
    size_t parameters = config->whole_parameters ? env->layout->count : segments.own;
    size_t gradients = config->whole_gradients ? env->layout->count : segments.own;
    return (sizes){.parameters = whole_bytes(config, parameters * ptb_dtype_size(env->type)),
                   .gradients = whole_bytes(config, gradients * sizeof(float)),
                   .versions = config->versions ? (size_t)config->versions : 1,
                   .staging =
                       ptb_data_is_staged(env) ? segments.largest * ptb_dtype_size(env->reduce_type) : 0,
                   .own = segments.own * sizeof(float)};
}

void ptb_shard_memory(const ptb_data_env *env, const ptb_shard_config *config,
                      uint64_t bytes[PTB_MEMORY_COUNT])
{
    sizes size = measure(env, config);
    bytes[PTB_MEMORY_PARAMETERS] += size.versions * size.parameters;
    bytes[PTB_MEMORY_GRADIENTS] += size.versions * size.gradients;
    bytes[PTB_MEMORY_COMMUNICATION] += size.staging;
    bytes[PTB_MEMORY_OPTIMIZER] +=
        (ptb_optimizer_moments(env->optimizer) + has_master(env, config)) * size.own;
}

// Where element `element` of the index space, of a segment's own part, is in arrays of own parts.
static size_t own_index(const ptb_segment *segment, size_t element)
{
    return segment->at + (element - segment->own.first);
}

static char *parameters_at(const ptb_shard *s, const ptb_segment *segment, size_t element)
{
    size_t at = s->config.whole_parameters ? element : own_index(segment, element);
    return (char *)s->parameters + at * ptb_dtype_size(env_of(s)->type);
}

static float *master_at(const ptb_shard *s, const ptb_segment *segment, size_t element)
{
    return s->master ? s->master + own_index(segment, element)
                     : (float *)(void *)parameters_at(s, segment, element);
}

static float *own_gradients(const ptb_shard *s, const ptb_segment *segment)
{
    return s->gradients + (s->config.whole_gradients ? segment->own.first : segment->at);
}

void *ptb_shard_parameters(const ptb_shard *s, const ptb_segment *segment)
{
    return parameters_at(s, segment, segment->own.first);
}

void *ptb_shard_version(const ptb_shard *s, size_t version)
{
    return (char *)s->parameters0 + version * s->parameters_stride;
}

void ptb_shard_use(ptb_shard *s, size_t parameters, size_t gradients)
{
    s->parameters = ptb_shard_version(s, parameters);
    s->gradients = (float *)(void *)((char *)s->gradients0 + gradients * s->gradients_stride);
}

// ---- made and released

static ptb_status make_events(const ptb_shard *s, ptb_event ***events)
{
    *events = calloc(s->segments.count, sizeof **events);
    if (!*events) {
        ptb_error("no memory for the events of %zu segments; choose a larger --bucket", s->segments.count);
        return PTB_NO_MEMORY;
    }
    for (size_t i = 0; i < s->segments.count; i++)
        PTB_TRY(ptb_event_new(env_of(s)->device, &(*events)[i]));
    return PTB_OK;
}

static void free_events(const ptb_shard *s, ptb_event **events)
{
    for (size_t i = 0; events && i < s->segments.count; i++)
        ptb_event_free(events[i]);
    free(events);
}

// What needs no other rank.
static ptb_status make_own(ptb_shard *s)
{
    const ptb_data_env *e = env_of(s);
    size_t bytes = measure(e, &s->config).own;
    PTB_TRY(ptb_segments_init(&s->segments, e, s->config.kind));
    PTB_TRY(make_events(s, &s->reduced));
    PTB_TRY(make_events(s, &s->gathered));
    if (has_master(e, &s->config))
        PTB_TRY(ptb_device_alloc(e->device, PTB_MEMORY_OPTIMIZER, bytes, (void **)&s->master));
    for (size_t i = 0; i < ptb_optimizer_moments(e->optimizer); i++) {
        PTB_TRY(ptb_device_alloc(e->device, PTB_MEMORY_OPTIMIZER, bytes, (void **)&s->moment[i]));
        PTB_TRY(ptb_stream_set(e->compute, s->moment[i], 0, bytes));
    }
    return PTB_OK;
}

static ptb_status make_shared(ptb_shard *s)
{
    const ptb_data_env *e = env_of(s);
    sizes size = measure(e, &s->config);
    ptb_lane *lane = main_lane(s);
    PTB_TRY(ptb_lane_alloc(lane, PTB_MEMORY_PARAMETERS, size.versions * size.parameters, &s->parameters0));
    PTB_TRY(ptb_lane_alloc(lane, PTB_MEMORY_GRADIENTS, size.versions * size.gradients, &s->gradients0));
    s->parameters_stride = size.parameters;
    s->gradients_stride = size.gradients;
    ptb_shard_use(s, 0, 0);
    if (size.staging)
        PTB_TRY(ptb_lane_alloc(lane, PTB_MEMORY_COMMUNICATION, size.staging, &s->staging));
    return PTB_OK;
}

// All parameters, in f32 where gradients will be.
static ptb_status fill_whole(ptb_shard *s)
{
    const ptb_data_env *e = env_of(s);
    size_t count = e->layout->count;
    ptb_convert rounded = {
        .out = s->parameters, .in = s->gradients, .count = count, .out_type = e->type, .in_type = PTB_F32};
    PTB_TRY(ptb_data_fill(e, 0, count, s->gradients));
    for (size_t i = 0; i < s->segments.count; i++) {
        const ptb_segment *segment = &s->segments.item[i];
        if (segment->own.count)
            PTB_TRY(ptb_stream_copy(e->compute, s->master + segment->at, s->gradients + segment->own.first,
                                    segment->own.count * sizeof(float)));
    }
    if (ptb_data_is_mixed(e))
        return e->kernels->convert(e->compute, &rounded);
    return ptb_stream_copy(e->compute, s->parameters, s->gradients, count * sizeof(float));
}

static ptb_status clear_gradients(ptb_shard *s)
{
    sizes size = measure(env_of(s), &s->config);
    return ptb_stream_set(env_of(s)->compute, s->gradients0, 0, size.versions * size.gradients);
}

static ptb_status fill(ptb_shard *s)
{
    const ptb_data_env *e = env_of(s);
    if (s->config.versions)
        PTB_TRY(fill_whole(s));
    PTB_TRY(clear_gradients(s));
    if (s->config.versions)
        return PTB_OK;
    for (size_t i = 0; i < s->segments.count; i++) {
        const ptb_segment *segment = &s->segments.item[i];
        float *master = master_at(s, segment, segment->own.first);
        ptb_convert rounded = {.out = ptb_shard_parameters(s, segment),
                               .in = master,
                               .count = segment->own.count,
                               .out_type = e->type,
                               .in_type = PTB_F32};
        if (segment->own.count == 0)
            continue;
        PTB_TRY(ptb_data_fill(e, segment->own.first, segment->own.count, master));
        if (ptb_data_is_mixed(e))
            PTB_TRY(e->kernels->convert(e->compute, &rounded));
    }
    return PTB_OK;
}

ptb_status ptb_shard_init(ptb_shard *s, ptb_data *data, const ptb_shard_config *config)
{
    *s = (ptb_shard){.data = data, .config = *config};
    ptb_world *world = main_lane(s)->comm->world;
    PTB_TRY(ptb_world_agree(world, make_own(s)));
    PTB_TRY(make_shared(s));
    return ptb_world_agree(world, fill(s));
}

void ptb_shard_release(ptb_shard *s)
{
    if (!s->data)
        return;
    const ptb_data_env *e = env_of(s);
    sizes size = measure(e, &s->config);
    ptb_lane *lane = main_lane(s);
    ptb_lane_free(lane, PTB_MEMORY_PARAMETERS, size.versions * size.parameters, s->parameters0);
    ptb_lane_free(lane, PTB_MEMORY_GRADIENTS, size.versions * size.gradients, s->gradients0);
    ptb_lane_free(lane, PTB_MEMORY_COMMUNICATION, size.staging, s->staging);
    for (size_t i = 0; i < 2; i++)
        ptb_device_free(e->device, s->moment[i]);
    ptb_device_free(e->device, s->master);
    free_events(s, s->reduced);
    free_events(s, s->gathered);
    ptb_segments_release(&s->segments);
    *s = (ptb_shard){.data = NULL};
}

// ---- gradients

static ptb_status convert(const ptb_shard *s, ptb_lane *lane, void *out, ptb_dtype out_type, const void *in,
                          ptb_dtype in_type, size_t count)
{
    ptb_convert args = {.out = out, .in = in, .count = count, .out_type = out_type, .in_type = in_type};
    PTB_TRY(ptb_lane_work_begin(lane, "convert"));
    PTB_TRY(env_of(s)->kernels->convert(lane->stream, &args));
    return ptb_lane_work_end(lane);
}

static ptb_coll scattering(const ptb_shard *s, const ptb_segment *segment, float *gradients, float *own)
{
    const ptb_data_env *e = env_of(s);
    size_t part = (segment->own.first - segment->first) * ptb_dtype_size(e->reduce_type);
    return (ptb_coll){.kind = PTB_REDUCE_SCATTER,
                      .send = s->staging ? s->staging : gradients,
                      .recv = s->staging ? (char *)s->staging + part : (void *)own,
                      .count = segment->count,
                      .dtype = s->staging ? e->reduce_type : PTB_F32,
                      .op = PTB_SUM};
}

// The sum over the shard ranks of this rank's part of `gradients` into own.
static ptb_status scatter(const ptb_shard *s, const ptb_segment *segment, float *gradients, float *own)
{
    const ptb_data_env *e = env_of(s);
    ptb_lane *lane = e->shard[segment->group];
    ptb_coll call = scattering(s, segment, gradients, own);
    if (!s->staging)
        return ptb_lane_collective(lane, &call, NULL);
    PTB_TRY(convert(s, lane, s->staging, e->reduce_type, gradients, PTB_F32, segment->count));
    PTB_TRY(ptb_lane_collective(lane, &call, NULL));
    return convert(s, lane, own, PTB_F32, call.recv, e->reduce_type, segment->own.count);
}

// The sum over the copies of a part.
static ptb_status sum_copies(const ptb_shard *s, const ptb_segment *segment, float *own)
{
    const ptb_data_env *e = env_of(s);
    ptb_lane *lane = e->replicate[segment->group];
    ptb_coll call = {.kind = PTB_ALL_REDUCE,
                     .send = s->staging ? s->staging : own,
                     .recv = s->staging ? s->staging : own,
                     .count = segment->own.count,
                     .dtype = s->staging ? e->reduce_type : PTB_F32,
                     .op = PTB_SUM};
    if (lane->size == 1)
        return PTB_OK;
    lane->number = e->shard[segment->group]->number;
    if (!s->staging)
        return ptb_lane_collective(lane, &call, NULL);
    PTB_TRY(convert(s, lane, s->staging, e->reduce_type, own, PTB_F32, segment->own.count));
    PTB_TRY(ptb_lane_collective(lane, &call, NULL));
    return convert(s, lane, own, PTB_F32, s->staging, e->reduce_type, segment->own.count);
}

static ptb_status accumulate(ptb_lane *lane, float *sum, const float *part, size_t count)
{
    PTB_TRY(ptb_lane_work_begin(lane, "accumulate"));
    PTB_TRY(lane->stream->ops->reduce(lane->stream, PTB_F32, PTB_SUM, sum, sum, part, count));
    return ptb_lane_work_end(lane);
}

// Padding between tensors counts in the norm, so it has to be zero when it is summed. Whatever a slot held
// before, or a reduction in place left there (MPI's puts its result at the beginning of what it reads), may
// stand in it.
static ptb_status clear_padding(const ptb_shard *s, const ptb_segment *segment, float *gradients)
{
    const ptb_layout *layout = env_of(s)->layout;
    ptb_lane *lane = env_of(s)->shard[segment->group];
    size_t first = segment->first, end = first + segment->count;
    for (size_t u = ptb_layout_unit_at(layout, first); u < layout->units && layout->unit[u].first < end;
         u++) {
        const ptb_unit *unit = &layout->unit[u];
        for (size_t t = 0; t < unit->tensors; t++) {
            size_t from = unit->first + unit->tensor[t].first + ptb_tensor_count(&unit->tensor[t]);
            size_t to = unit->first + (t + 1 < unit->tensors ? unit->tensor[t + 1].first : unit->count);
            from = from < first ? first : from;
            to = to > end ? end : to;
            if (from < to)
                PTB_TRY(
                    ptb_stream_set(lane->stream, gradients + (from - first), 0, (to - from) * sizeof(float)));
        }
    }
    return PTB_OK;
}

ptb_status ptb_shard_reduce(ptb_shard *s, size_t index, float *gradients, bool add, bool last)
{
    const ptb_segment *segment = &s->segments.item[index];
    ptb_lane *lane = env_of(s)->shard[segment->group];
    float *own = own_gradients(s, segment);
    float *part = add ? gradients + (segment->own.first - segment->first) : own;
    PTB_TRY(ptb_lane_fork(lane));
    PTB_TRY(clear_padding(s, segment, gradients));
    PTB_TRY(scatter(s, segment, gradients, part));
    if (add && segment->own.count)
        PTB_TRY(accumulate(lane, own, part, segment->own.count));
    if (last)
        PTB_TRY(sum_copies(s, segment, own));
    return ptb_event_record(s->reduced[index], lane->stream);
}

// ---- update

static ptb_status add_squares(const ptb_shard *s, const ptb_segment *segment)
{
    return ptb_data_squares_add(s->data, segment->own.first, segment->own.count, own_gradients(s, segment));
}

// Elements [first, end) of the index space, of one unit and one segment's own part.
static ptb_status update_range(const ptb_shard *s, const ptb_segment *segment, const ptb_unit *unit,
                               size_t first, size_t end)
{
    const ptb_data_env *e = env_of(s);
    size_t at = own_index(segment, first);
    ptb_optimizer_memory memory = {.first = first - unit->first,
                                   .count = end - first,
                                   .parameters = master_at(s, segment, first),
                                   .gradients = own_gradients(s, segment) + (first - segment->own.first),
                                   .rounded = s->master ? parameters_at(s, segment, first) : NULL,
                                   .type = e->type};
    for (size_t i = 0; i < 2; i++)
        memory.moment[i] = s->moment[i] ? s->moment[i] + at : NULL;
    return ptb_optimizer_update(e->optimizer, e->kernels, ptb_data_stream(s->data), e->update, unit, &memory);
}

static ptb_status update_segment(const ptb_shard *s, const ptb_segment *segment, bool sums)
{
    const ptb_data_env *e = env_of(s);
    const ptb_layout *layout = e->layout;
    size_t first = segment->own.first, end = first + segment->own.count;
    size_t unit = ptb_layout_unit_at(layout, segment->first);
    if (segment->own.count == 0)
        return PTB_OK;
    PTB_TRY(ptb_data_span_open(s->data, (int)unit, ptb_optimizer_name(e->optimizer)));
    if (sums)
        PTB_TRY(add_squares(s, segment));
    for (; unit < layout->units && layout->unit[unit].first < end; unit++) {
        const ptb_unit *u = &layout->unit[unit];
        size_t from = u->first > first ? u->first : first, to = u->first + u->count;
        to = to < end ? to : end;
        if (from < to)
            PTB_TRY(update_range(s, segment, u, from, to));
    }
    return ptb_data_span_close(s->data);
}

// Updates on the lane's stream are behind the reduction anyway.
static ptb_status wait_reduced(const ptb_shard *s, size_t index)
{
    if (s->data->updates)
        return PTB_OK;
    return ptb_lane_wait(env_of(s)->shard[s->segments.item[index].group], s->reduced[index]);
}

// Clipping and loss scaling need the norm of the whole gradient before anything is updated.
static ptb_status begin_update(const ptb_shard *s, bool sums_first)
{
    const ptb_data_env *e = env_of(s);
    if (sums_first || !e->overlap) // the last one: they are reduced in order
        PTB_TRY(wait_reduced(s, s->segments.count - 1));
    PTB_TRY(ptb_data_span_open(s->data, -1, sums_first ? "gradient norm" : "update"));
    for (size_t i = 0; sums_first && i < s->segments.count; i++)
        PTB_TRY(add_squares(s, &s->segments.item[i]));
    if (sums_first)
        PTB_TRY(ptb_data_squares_end(s->data));
    PTB_TRY(ptb_optimizer_begin(e->optimizer, e->kernels, ptb_data_stream(s->data), e->update,
                                sums_first ? e->sum_squares : NULL));
    return ptb_data_span_close(s->data);
}

ptb_status ptb_shard_optimize(ptb_shard *s)
{
    const ptb_data_env *e = env_of(s);
    bool sums_first = ptb_optimizer_needs_norm(e->optimizer);
    ptb_data_squares_begin(s->data);
    PTB_TRY(begin_update(s, sums_first));
    for (size_t i = 0; i < s->segments.count; i++) {
        if (!sums_first && e->overlap)
            PTB_TRY(wait_reduced(s, i));
        PTB_TRY(update_segment(s, &s->segments.item[i], !sums_first));
    }
    return sums_first ? PTB_OK : ptb_data_squares_end(s->data);
}

// ---- whole parameters

static ptb_status gather(const ptb_shard *s, size_t index)
{
    const ptb_data_env *e = env_of(s);
    const ptb_segment *segment = &s->segments.item[index];
    ptb_lane *lane = e->shard[segment->group];
    ptb_coll call = {.kind = PTB_ALL_GATHER,
                     .send = ptb_shard_parameters(s, segment),
                     .recv = parameters_at(s, segment, segment->first),
                     .count = segment->count,
                     .dtype = e->type};
    lane->number = (int)index;
    PTB_TRY(ptb_lane_collective(lane, &call, NULL));
    return ptb_event_record(s->gathered[index], lane->stream);
}

ptb_status ptb_shard_gather(ptb_shard *s)
{
    for (size_t i = s->segments.count; i-- > 0;)
        if (env_of(s)->shard[s->segments.item[i].group]->size > 1)
            PTB_TRY(gather(s, i));
    return PTB_OK;
}

ptb_status ptb_shard_gather_begin(ptb_shard *s)
{
    const ptb_data_env *e = env_of(s);
    PTB_TRY(ptb_lane_fork(main_lane(s)));
    s->gathering = s->segments.count;
    PTB_TRY(ptb_shard_gather(s));
    return e->overlap ? PTB_OK : ptb_shard_gather_wait(s, e->layout->units - 1);
}

ptb_status ptb_shard_gather_wait(ptb_shard *s, size_t unit)
{
    const ptb_data_env *e = env_of(s);
    size_t end = e->layout->unit[unit].first + e->layout->unit[unit].count, last = s->gathering;
    while (s->gathering > 0 && s->segments.item[s->gathering - 1].first < end) {
        s->gathering--;
        if (e->shard[s->segments.item[s->gathering].group]->size > 1)
            last = s->gathering;
    }
    // One stream gathers them in this order: the last wait is for all.
    if (last == s->segments.count || e->shard[s->segments.item[last].group]->size == 1)
        return PTB_OK;
    return ptb_lane_wait(main_lane(s), s->gathered[last]);
}

// ---- told

bool ptb_shard_part(const ptb_shard *s, ptb_data_what what, size_t i, ptb_data_part *part)
{
    if (i >= s->segments.count)
        return false;
    const ptb_segment *segment = &s->segments.item[s->segments.count - 1 - i];
    *part = (ptb_data_part){.first = segment->own.first,
                            .count = segment->own.count,
                            .values = what == PTB_DATA_PARAMETERS ? master_at(s, segment, segment->own.first)
                                                                  : own_gradients(s, segment)};
    return true;
}

void ptb_shard_describe(const ptb_shard *s, ptb_params *facts)
{
    const ptb_data_env *e = env_of(s);
    const ptb_segment *segment = &s->segments.item[0];
    const char *name = s->config.kind == PTB_SEGMENT_BUCKETS ? "buckets" : "segments";
    ptb_params_set(facts, name, "%zu", s->segments.count);
    ptb_params_set(facts, "bucket_bytes", "%zu", s->segments.largest * ptb_dtype_size(e->reduce_type));
    ptb_coll call = scattering(s, segment, s->gradients, own_gradients(s, segment));
    ptb_lane_describe(e->shard[segment->group], &call, facts);
}
