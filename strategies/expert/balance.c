// See balance.h.
#include "strategies/expert/balance.h"

#include "core/log.h"
#include "strategies/transformer/route.h"

#include <inttypes.h>
#include <stdlib.h>

static size_t first_layer(const ptb_balance_env *e)
{
    return (size_t)e->layout->shape.dense_layers;
}

// Numbers of a microbatch.
static size_t slot_count(const ptb_balance_env *e)
{
    const ptb_model_shape *s = &e->layout->shape;
    return (size_t)(s->layers - s->dense_layers) * (size_t)s->experts;
}

static size_t counts_bytes(const ptb_balance_env *e)
{
    return (size_t)e->slots * slot_count(e) * sizeof(int32_t);
}

static size_t sums_bytes(const ptb_balance_env *e)
{
    return (size_t)e->slots * slot_count(e) * sizeof(double);
}

// Rows of all ranks' microbatches.
static size_t all_rows(const ptb_balance_env *e)
{
    return (size_t)e->ranks * e->rows;
}

ptb_status ptb_balance_axis_check(const ptb_balance_env *e)
{
    double choices = (double)all_rows(e) * (double)e->layout->shape.top_k;
    if (choices <= INT32_MAX)
        return PTB_OK;
    ptb_error("%d ranks with %zu rows each, of which each chooses %" PRId64
              " experts: %.3g choices, and the balance of all ranks is counted up to %d; use a smaller "
              "microbatch, or the statistics of each rank",
              e->ranks, e->rows, e->layout->shape.top_k, choices, INT32_MAX);
    return PTB_USAGE;
}

void ptb_balance_axis_memory(const ptb_balance_env *e, uint64_t bytes[PTB_MEMORY_COUNT])
{
    bytes[PTB_MEMORY_COMMUNICATION] += counts_bytes(e) + sums_bytes(e);
}

ptb_status ptb_balance_axis_open(const ptb_balance_env *env, ptb_balance_axis **axis)
{
    PTB_TRY(ptb_balance_axis_check(env)); // all ranks have the same
    void *state, *counts = NULL, *sums = NULL;
    PTB_TRY(
        ptb_world_calloc(env->lane->comm->world, sizeof(ptb_balance_axis), "the experts' balance", &state));
    ptb_balance_axis *a = state;
    a->env = *env;
    ptb_status status = ptb_lane_alloc(env->lane, PTB_MEMORY_COMMUNICATION, counts_bytes(env), &counts);
    if (status == PTB_OK)
        status = ptb_lane_alloc(env->lane, PTB_MEMORY_COMMUNICATION, sums_bytes(env), &sums);
    a->counts = counts;
    a->sums = sums;
    if (status != PTB_OK) {
        ptb_balance_axis_close(a);
        return status;
    }
    *axis = a;
    return PTB_OK;
}

void ptb_balance_axis_close(ptb_balance_axis *a)
{
    if (!a)
        return;
    ptb_lane_free(a->env.lane, PTB_MEMORY_COMMUNICATION, sums_bytes(&a->env), a->sums);
    ptb_lane_free(a->env.lane, PTB_MEMORY_COMMUNICATION, counts_bytes(&a->env), a->counts);
    free(a);
}

static size_t place(const ptb_balance_axis *a, int slot, size_t block)
{
    const ptb_balance_env *e = &a->env;
    return (size_t)slot * slot_count(e) + (block - first_layer(e)) * (size_t)e->layout->shape.experts;
}

int32_t *ptb_balance_axis_counts(const ptb_balance_axis *a, int slot, size_t block)
{
    return a->counts + place(a, slot, block);
}

double *ptb_balance_axis_sums(const ptb_balance_axis *a, int slot, size_t block)
{
    return a->sums + place(a, slot, block);
}

ptb_status ptb_balance_axis_begin(ptb_balance_axis *a, int slot)
{
    int32_t *counts = ptb_balance_axis_counts(a, slot, first_layer(&a->env));
    ptb_coll call = {.kind = PTB_ALL_REDUCE,
                     .send = counts,
                     .recv = counts,
                     .count = slot_count(&a->env),
                     .dtype = PTB_I32,
                     .op = PTB_SUM};
    PTB_TRY(ptb_lane_fork(a->env.lane));
    return ptb_lane_collective(a->env.lane, &call, "all_reduce.balance");
}

ptb_status ptb_balance_axis_take(ptb_balance_axis *a, int slot, double share, double *loss)
{
    const ptb_balance_env *e = &a->env;
    const ptb_model_shape *s = &e->layout->shape;
    ptb_balance_loss args = {.loss = loss,
                             .counts = ptb_balance_axis_counts(a, slot, first_layer(e)),
                             .sums = ptb_balance_axis_sums(a, slot, first_layer(e)),
                             .count = slot_count(e),
                             .factor = ptb_route_balance_factor(s->balance, share, e->rows, all_rows(e),
                                                                (size_t)s->experts, (size_t)s->top_k)};
    PTB_TRY(ptb_lane_join(e->lane));
    return e->kernels->balance_loss(e->lane->compute->stream, &args);
}
