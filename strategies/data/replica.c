// See replica.h.
#include "strategies/data/replica.h"

static const ptb_data_env *env_of(const ptb_replica *r)
{
    return &r->data->env;
}

static ptb_lane *lane_of(const ptb_replica *r)
{
    return env_of(r)->reduce[PTB_GROUP_DENSE];
}

static ptb_memory master_category(const ptb_data_env *env)
{
    return ptb_data_is_mixed(env) ? PTB_MEMORY_OPTIMIZER : PTB_MEMORY_PARAMETERS;
}

void ptb_replica_memory(const ptb_data_env *env, uint64_t bytes[PTB_MEMORY_COUNT])
{
    uint64_t count = env->layout->count, wide = count * sizeof(float);
    bytes[PTB_MEMORY_PARAMETERS] += count * ptb_dtype_size(env->type);
    bytes[PTB_MEMORY_OPTIMIZER] += (ptb_optimizer_moments(env->optimizer) + ptb_data_is_mixed(env)) * wide;
}

static ptb_status make_master(ptb_replica *r)
{
    const ptb_data_env *e = env_of(r);
    size_t bytes = e->layout->count * sizeof(float);
    void **master = (void **)&r->master;
    if (r->shared)
        return ptb_lane_alloc(lane_of(r), master_category(e), bytes, master);
    return ptb_world_agree(lane_of(r)->comm->world,
                           ptb_device_alloc(e->device, master_category(e), bytes, master));
}

// Device memory comes zeroed or not.
static ptb_status make_moments(ptb_replica *r)
{
    const ptb_data_env *e = env_of(r);
    size_t bytes = e->layout->count * sizeof(float);
    for (size_t i = 0; i < ptb_optimizer_moments(e->optimizer); i++) {
        PTB_TRY(ptb_device_alloc(e->device, PTB_MEMORY_OPTIMIZER, bytes, (void **)&r->moment[i]));
        PTB_TRY(ptb_stream_set(e->compute, r->moment[i], 0, bytes));
    }
    return PTB_OK;
}

// What needs no other rank, once there is the master.
static ptb_status make_rest(ptb_replica *r)
{
    const ptb_data_env *e = env_of(r);
    size_t count = e->layout->count;
    if (ptb_data_is_mixed(e))
        PTB_TRY(ptb_device_alloc(e->device, PTB_MEMORY_PARAMETERS, count * ptb_dtype_size(e->type),
                                 &r->parameters));
    else
        r->parameters = r->master;
    PTB_TRY(ptb_data_fill(e, 0, count, r->master));
    PTB_TRY(ptb_replica_round(r));
    return make_moments(r);
}

ptb_status ptb_replica_init(ptb_replica *r, ptb_data *data, bool shared)
{
    *r = (ptb_replica){.data = data, .shared = shared};
    PTB_TRY(make_master(r));
    return ptb_world_agree(lane_of(r)->comm->world, make_rest(r));
}

void ptb_replica_release(ptb_replica *r)
{
    if (!r->data)
        return;
    const ptb_data_env *e = env_of(r);
    for (size_t i = 0; i < 2; i++)
        ptb_device_free(e->device, r->moment[i]);
    if (ptb_data_is_mixed(e))
        ptb_device_free(e->device, r->parameters);
    if (r->shared)
        ptb_lane_free(lane_of(r), master_category(e), e->layout->count * sizeof(float), r->master);
    else
        ptb_device_free(e->device, r->master);
    *r = (ptb_replica){.data = NULL};
}

ptb_status ptb_replica_round(ptb_replica *r)
{
    const ptb_data_env *e = env_of(r);
    ptb_convert copy = {.out = r->parameters,
                        .in = r->master,
                        .count = e->layout->count,
                        .out_type = e->type,
                        .in_type = PTB_F32};
    return ptb_data_is_mixed(e) ? e->kernels->convert(e->compute, &copy) : PTB_OK;
}

ptb_status ptb_replica_update(ptb_replica *r, size_t unit, const float *gradients, bool sums)
{
    const ptb_data_env *e = env_of(r);
    const ptb_unit *u = &e->layout->unit[unit];
    ptb_optimizer_memory memory = {.count = u->count,
                                   .parameters = r->master + u->first,
                                   .gradients = gradients + u->first,
                                   .type = e->type};
    if (ptb_data_is_mixed(e))
        memory.rounded = (char *)r->parameters + u->first * ptb_dtype_size(e->type);
    for (size_t i = 0; i < 2; i++)
        memory.moment[i] = r->moment[i] ? r->moment[i] + u->first : NULL;
    PTB_TRY(ptb_data_span_open(r->data, (int)unit, ptb_optimizer_name(e->optimizer)));
    if (sums)
        PTB_TRY(ptb_data_squares_add(r->data, u->first, u->count, gradients + u->first));
    PTB_TRY(ptb_optimizer_update(e->optimizer, e->kernels, e->compute, e->update, u, &memory));
    return ptb_data_span_close(r->data);
}
