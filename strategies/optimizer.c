// See optimizer.h.
#include "strategies/optimizer.h"

#include <math.h>

double ptb_optimizer_rate(const ptb_optimizer *o, uint64_t step)
{
    uint64_t done = step + 1;
    if (done < o->rate_warmup)
        return o->rate * (double)done / (double)o->rate_warmup;
    if (o->schedule == PTB_RATE_CONSTANT)
        return o->rate;
    if (step >= o->rate_steps)
        return o->rate_min;
    if (step < o->rate_warmup || o->rate_steps <= o->rate_warmup)
        return o->rate;
    double progress = (double)(step - o->rate_warmup) / (double)(o->rate_steps - o->rate_warmup);
    return o->rate_min + 0.5 * (o->rate - o->rate_min) * (1 + cos(M_PI * progress));
}

size_t ptb_optimizer_moments(const ptb_optimizer *o)
{
    if (o->kind == PTB_OPTIMIZER_ADAMW)
        return 2;
    return o->momentum > 0 ? 1 : 0;
}

bool ptb_optimizer_needs_norm(const ptb_optimizer *o)
{
    return o->clip > 0 || o->dynamic;
}

const char *ptb_optimizer_name(const ptb_optimizer *o)
{
    return o->kind == PTB_OPTIMIZER_ADAMW ? "adamw" : "sgd";
}

ptb_update ptb_optimizer_start(const ptb_optimizer *o)
{
    return (ptb_update){.factor = 1, .loss_scale = (float)o->loss_scale, .beta1_power = 1, .beta2_power = 1};
}

ptb_status ptb_optimizer_begin(const ptb_optimizer *o, const ptb_kernels *kernels, ptb_stream *stream,
                               ptb_update *update, const double *sum_squares)
{
    // As the update's kernel has them, in float: the powers must be of the same numbers.
    ptb_update_begin args = {.update = update,
                             .sum_squares = sum_squares,
                             .clip = o->clip,
                             .beta1 = (double)(float)o->beta1,
                             .beta2 = (double)(float)o->beta2,
                             .growth_interval = o->growth_interval,
                             .dynamic = o->dynamic};
    return kernels->update_begin(stream, &args);
}

static void *rounded_at(const ptb_optimizer_memory *memory, size_t first)
{
    return memory->rounded ? (char *)memory->rounded + first * ptb_dtype_size(memory->type) : NULL;
}

ptb_status ptb_optimizer_update(const ptb_optimizer *o, const ptb_kernels *kernels, ptb_stream *stream,
                                const ptb_update *update, const ptb_unit *unit, const ptb_optimizer_memory *x)
{
    size_t end = x->first + x->count;
    for (size_t t = 0; t < unit->tensors; t++) {
        size_t begin = unit->tensor[t].first, to = begin + ptb_tensor_count(&unit->tensor[t]);
        begin = begin > x->first ? begin : x->first;
        to = to < end ? to : end;
        if (begin >= to)
            continue;
        size_t at = begin - x->first, count = to - begin;
        float decay = unit->tensor[t].decay ? (float)o->decay : 0;
        ptb_status status = PTB_INTERNAL;
        switch (o->kind) {
        case PTB_OPTIMIZER_ADAMW:
            status = kernels->adamw(stream, &(ptb_adamw){.parameter = x->parameters + at,
                                                         .m = x->moment[0] + at,
                                                         .v = x->moment[1] + at,
                                                         .gradient = x->gradients + at,
                                                         .rounded = rounded_at(x, at),
                                                         .update = update,
                                                         .count = count,
                                                         .beta1 = (float)o->beta1,
                                                         .beta2 = (float)o->beta2,
                                                         .epsilon = (float)o->epsilon,
                                                         .decay = decay,
                                                         .type = x->type});
            break;
        case PTB_OPTIMIZER_SGD:
            status = kernels->sgd(stream, &(ptb_sgd){.parameter = x->parameters + at,
                                                     .m = x->moment[0] ? x->moment[0] + at : NULL,
                                                     .gradient = x->gradients + at,
                                                     .rounded = rounded_at(x, at),
                                                     .update = update,
                                                     .count = count,
                                                     .momentum = (float)o->momentum,
                                                     .decay = decay,
                                                     .type = x->type});
            break;
        }
        PTB_TRY(status);
    }
    return PTB_OK;
}
