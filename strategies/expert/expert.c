// What all ways to move rows to experts share; see dispatch.h.
#include "core/log.h"
#include "strategies/expert/dispatch.h"

#include <inttypes.h>
#include <math.h>

size_t ptb_expert_capacity(const ptb_model_shape *s, size_t rows)
{
    if (s->capacity_factor <= 0)
        return 0;
    double choices = (double)rows * (double)s->top_k;
    double capacity = ceil(s->capacity_factor * choices / (double)s->experts);
    return capacity < (double)rows ? (size_t)capacity : rows; // a row chooses an expert once
}

size_t ptb_expert_received(const ptb_expert_axis *axis)
{
    const ptb_layout *l = axis->env.layout;
    size_t ranks = (size_t)l->cut.ep, experts = (size_t)l->local.experts, top_k = (size_t)l->shape.top_k;
    size_t most = ranks * axis->env.rows * (top_k < experts ? top_k : experts);
    size_t taken = ranks * experts * axis->capacity;
    return axis->capacity && taken < most ? taken : most;
}

void ptb_expert_axis_describe(const ptb_expert_env *env, ptb_expert_axis *axis)
{
    *axis = (ptb_expert_axis){.env = *env, .capacity = ptb_expert_capacity(&env->layout->shape, env->rows)};
    env->dispatch->size(axis);
}

ptb_status ptb_expert_axis_check(const ptb_expert_axis *axis)
{
    const ptb_layout *l = axis->env.layout;
    double choices = (double)l->cut.ep * (double)axis->env.rows * (double)l->shape.top_k;
    if (choices <= INT32_MAX && axis->sizes.places <= INT32_MAX)
        return PTB_OK;
    ptb_error("%d ranks of the ep axis with %zu rows each, of which each chooses %" PRId64
              " experts: %.3g choices, and places of rows, are counted up to %d; use a smaller microbatch",
              l->cut.ep, axis->env.rows, l->shape.top_k, choices, INT32_MAX);
    return PTB_USAGE;
}

ptb_status ptb_expert_axis_open(const ptb_expert_env *env, ptb_expert_axis **axis)
{
    ptb_expert_axis described;
    ptb_expert_axis_describe(env, &described);
    PTB_TRY(ptb_expert_axis_check(&described));
    return env->dispatch->open(env, axis);
}

void ptb_expert_axis_close(ptb_expert_axis *axis)
{
    if (axis)
        axis->env.dispatch->close(axis);
}
