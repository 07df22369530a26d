// What async must come to where every step takes the oldest parameters that it may, as a plain loop on one
// rank: every version of the parameters is kept; step t computes with version max(0, t - s), and version
// t + 1 is version t updated with that gradient. A strategy, so that the trainer runs it.
#ifndef PTB_TESTS_UNIT_DATA_DELAYED_H
#define PTB_TESTS_UNIT_DATA_DELAYED_H

#include "tests/unit/data_fixture.h"

typedef struct {
    ptb_data base;
    float *version[DATA_STEPS + 1], *gradients, *moment; /* [layout.count] each */
} delayed;

static const ptb_data_parallel delayed_ops;

static float *delayed_array(const ptb_data_env *e)
{
    void *memory = NULL;
    size_t bytes = e->layout->count * sizeof(float);
    if (ptb_device_alloc(e->device, PTB_MEMORY_PARAMETERS, bytes, &memory) == PTB_OK)
        (void)ptb_stream_set(e->compute, memory, 0, bytes);
    return memory;
}

static ptb_status delayed_open(const ptb_data_env *env, ptb_data **data)
{
    delayed *d = calloc(1, sizeof *d);
    if (!d)
        return PTB_NO_MEMORY;
    d->base = (ptb_data){.ops = &delayed_ops, .env = *env};
    for (int i = 0; i <= DATA_STEPS; i++)
        d->version[i] = delayed_array(env);
    d->gradients = delayed_array(env);
    d->moment = delayed_array(env);
    *data = &d->base;
    return ptb_data_fill(env, 0, env->layout->count, d->version[0]);
}

static void delayed_close(ptb_data *data)
{
    delayed *d = (delayed *)data;
    for (int i = 0; i <= DATA_STEPS; i++)
        ptb_device_free(data->env.device, d->version[i]);
    ptb_device_free(data->env.device, d->gradients);
    ptb_device_free(data->env.device, d->moment);
    free(d);
}

static void delayed_memory(const ptb_data_env *env, uint64_t bytes[PTB_MEMORY_COUNT])
{
    bytes[PTB_MEMORY_PARAMETERS] += (DATA_STEPS + 3) * env->layout->count * sizeof(float);
}

static void delayed_unit_memory(ptb_data *data, size_t unit, ptb_unit_memory *memory)
{
    delayed *d = (delayed *)data;
    uint64_t s = (uint64_t)data->env.options.staleness, version = data->step > s ? data->step - s : 0;
    ptb_data_unit_memory(&data->env, unit, d->version[version], d->gradients, memory);
}

static ptb_status delayed_begin_step(ptb_data *data, uint64_t step)
{
    data->step = step;
    return PTB_OK;
}

static ptb_status delayed_gradient_ready(ptb_data *data, size_t unit, size_t first)
{
    (void)data;
    (void)unit;
    (void)first;
    return PTB_OK;
}

static ptb_status delayed_optimize(ptb_data *data)
{
    delayed *d = (delayed *)data;
    const ptb_data_env *e = &data->env;
    size_t count = e->layout->count;
    float *next = d->version[data->step + 1];
    PTB_TRY(ptb_stream_copy(e->compute, next, d->version[data->step], count * sizeof(float)));
    ptb_data_squares_begin(data);
    PTB_TRY(ptb_data_squares_add(data, 0, count, d->gradients));
    PTB_TRY(ptb_data_squares_end(data));
    PTB_TRY(ptb_optimizer_begin(e->optimizer, e->kernels, e->compute, e->update, e->sum_squares));
    for (size_t u = 0; u < e->layout->units; u++) {
        const ptb_unit *unit = &e->layout->unit[u];
        ptb_optimizer_memory memory = {.count = unit->count,
                                       .parameters = next + unit->first,
                                       .gradients = d->gradients + unit->first,
                                       .type = PTB_F32};
        memory.moment[0] = ptb_optimizer_moments(e->optimizer) ? d->moment + unit->first : NULL;
        PTB_TRY(ptb_optimizer_update(e->optimizer, e->kernels, e->compute, e->update, unit, &memory));
    }
    return PTB_OK;
}

static bool delayed_part(ptb_data *data, ptb_data_what what, size_t i, ptb_data_part *part)
{
    delayed *d = (delayed *)data;
    *part =
        (ptb_data_part){.count = data->env.layout->count,
                        .values = what == PTB_DATA_PARAMETERS ? d->version[data->step + 1] : d->gradients};
    return i == 0;
}

static const ptb_data_parallel delayed_ops = {
    .plugin = {"delayed", "one rank, every version of the parameters"},
    .open = delayed_open,
    .close = delayed_close,
    .memory = delayed_memory,
    .unit_memory = delayed_unit_memory,
    .begin_step = delayed_begin_step,
    .before_forward = ptb_data_nothing,
    .after_forward = ptb_data_nothing,
    .before_backward = ptb_data_nothing,
    .gradient_ready = delayed_gradient_ready,
    .after_backward = ptb_data_nothing,
    .optimize = delayed_optimize,
    .part = delayed_part,
};
PTB_REGISTER(PTB_KIND_DATA_PARALLEL, delayed_ops);

#endif
