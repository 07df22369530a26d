// See step_data.h.
#include "strategies/step_data.h"

#include "core/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

ptb_status ptb_step_data_check(const ptb_step_data *c)
{
    if (!c->in_flight || c->in_flight > c->prefetch)
        return PTB_OK;
    ptb_error("--in-flight %" PRId64 " leaves no room for the unit that computes beside --prefetch %" PRId64
              " ahead of it; use --in-flight %" PRId64 " or more, or a smaller --prefetch",
              c->in_flight, c->prefetch, c->prefetch + 1);
    return PTB_USAGE;
}

ptb_data_options ptb_step_data_options(const ptb_step_data *c)
{
    return (ptb_data_options){.depth = (int)c->prefetch,
                              .in_flight = (int)c->in_flight,
                              .keep = !c->reshard,
                              .local_steps = (int)c->local_steps,
                              .staleness = (int)c->staleness};
}

static bool is_one_of(const char *name, const char *a, const char *b, const char *c)
{
    return strcmp(name, a) == 0 || strcmp(name, b) == 0 || strcmp(name, c) == 0;
}

bool ptb_step_has_buckets(const char *strategy)
{
    return !is_one_of(strategy, "zero2", "fsdp", "hsdp"); // which reduce units
}

bool ptb_step_reduces(const char *strategy)
{
    return strcmp(strategy, "local-sgd") != 0; // which averages parameters
}

void ptb_step_data_params(const ptb_step_data *c, const char *strategy, ptb_params *p)
{
    if (!ptb_step_has_buckets(strategy))
        ptb_params_set(p, "in_flight", "%" PRId64, c->in_flight ? c->in_flight : c->prefetch + 1);
    if (strcmp(strategy, "fsdp") == 0 || strcmp(strategy, "hsdp") == 0) {
        ptb_params_set(p, "prefetch", "%" PRId64, c->prefetch);
        ptb_params_set(p, "reshard", "%s", c->reshard ? "yes" : "no");
    }
    if (strcmp(strategy, "local-sgd") == 0)
        ptb_params_set(p, "local_steps", "%" PRId64, c->local_steps);
    if (strcmp(strategy, "async") == 0)
        ptb_params_set(p, "staleness", "%" PRId64, c->staleness);
}

static const char *local_sgd_problem(const ptb_step_data *c, const ptb_step_setting *x)
{
    if (x->type == PTB_F16)
        return "local-sgd has no loss scale that all ranks agree on in every step, which f16 needs; use bf16";
    if (x->graph && c->local_steps > 1)
        return "some steps of local-sgd average and others do not, and a recorded step is always the same; "
               "leave --graph out, or use --local-steps 1";
    if (x->mesh->size[PTB_MESH_CP] > 1 || x->mesh->size[PTB_MESH_EP] > 1)
        return "ranks of cp and ep have parts of the same gradient in every step, and local-sgd lets ranks "
               "train alone; use a mesh of tp and dp";
    return NULL;
}

static const char *async_problem(const ptb_step_data *c, const ptb_step_setting *x)
{
    if (x->type == PTB_F16)
        return "f16 takes a step's loss scale from the update before it, which async does not wait for; use "
               "bf16";
    if (x->graph)
        return "which parameters a step of async computes with is decided when it begins, and a recorded "
               "step is always the same; leave --graph out";
    if (!x->overlap && c->staleness > 0)
        return "--overlap no lets nothing be communicated beside compute, and then no step of async lacks "
               "an update; use --staleness 0, or zero1";
    return NULL;
}

bool ptb_step_data_possible(const ptb_step_data *c, const char *strategy, const ptb_step_setting *setting,
                            char *reason)
{
    const char *why = NULL;
    if (strcmp(strategy, "local-sgd") == 0)
        why = local_sgd_problem(c, setting);
    if (strcmp(strategy, "async") == 0)
        why = async_problem(c, setting);
    if (why)
        snprintf(reason, PTB_REASON_BYTES, "%s", why);
    return !why;
}
