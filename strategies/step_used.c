// See step_used.h. An option that not every step looks at has a row here.
#include "strategies/step_used.h"

#include "strategies/strategy.h"

#include <string.h>

// What the strategies of a run have between them.
typedef struct {
    bool tp, cp, ep;
    bool fsdp, sharded, local_sgd, async;
    bool buckets, reduces; // ptb_step_has_buckets, ptb_step_reduces
} uses;

static bool is_word(const char *word, const char *wanted)
{
    return word && strcmp(word, wanted) == 0;
}

static bool has_word(const char *const *words, size_t count, const char *wanted)
{
    for (size_t i = 0; i < count; i++)
        if (is_word(words[i], wanted))
            return true;
    return false;
}

static ptb_status find_uses(const ptb_step_config *c, const ptb_step_names *names, uses *out)
{
    ptb_mesh_sizes mesh;
    PTB_TRY(ptb_mesh_parse(c->mesh, &mesh));
    uses u = {.tp = mesh.tp, .cp = mesh.cp, .ep = mesh.ep};
    for (size_t i = 0; i < names->strategy_count; i++) {
        const ptb_strategy *s = ptb_strategy_find(names->strategies[i]);
        bool fsdp = is_word(s->data, "fsdp"), zero2 = is_word(s->data, "zero2");
        u.tp = u.tp || s->axis == PTB_MESH_TP;
        u.cp = u.cp || s->axis == PTB_MESH_CP;
        u.ep = u.ep || s->axis == PTB_MESH_EP;
        u.fsdp = u.fsdp || fsdp;
        u.sharded = u.sharded || fsdp || zero2;
        u.local_sgd = u.local_sgd || is_word(s->data, "local_sgd");
        u.async = u.async || is_word(s->data, "async");
        u.buckets = u.buckets || ptb_step_has_buckets(s->name);
        u.reduces = u.reduces || ptb_step_reduces(s->name);
    }
    *out = u;
    return PTB_OK;
}

static ptb_status check_division(const ptb_opt_set *options, const ptb_step_config *c, const uses *u)
{
    static const char tp[] = "layers that are cut (--strategy tp or tp+sp, or tp in --mesh)";
    static const char cp[] = "sequences that are split (--strategy cp, or cp in --mesh)";
    static const char ep[] = "experts on several ranks (--strategy ep, or ep in --mesh)";
    static const char fsdp[] = "--strategy fsdp or hsdp";
    bool degrees = u->cp && is_word(c->context, "ring_all_to_all");
    const ptb_opt_use rows[] = {
        {"sequence-parallel", tp, u->tp},
        {"tensor-chunks", tp, u->tp},
        {"context", cp, u->cp},
        {"context-degree", "--context ring_all_to_all, with cp", degrees},
        {"expert-dispatch", ep, u->ep},
        {"expert-overlap no", ep, u->ep},
        {"prefetch", fsdp, u->fsdp},
        {"reshard no", fsdp, u->fsdp},
        {"prefetch", "--overlap yes, or --in-flight 0", c->overlap || !c->data_parallel.in_flight},
        {"in-flight", "--strategy fsdp, hsdp or zero2", u->sharded},
        {"bucket", "a --strategy that reduces buckets (fsdp, hsdp and zero2 reduce units)", u->buckets},
        {"reduce-type", "a --strategy that reduces gradients (local-sgd averages parameters, in f32)",
         u->reduces},
        {"local-steps", "--strategy local-sgd", u->local_sgd},
        {"staleness", "--strategy async", u->async},
    };
    return ptb_opts_check_used(options, rows, sizeof rows / sizeof *rows);
}

static ptb_status check_optimizer(const ptb_opt_set *options, const ptb_step_config *c, bool f16)
{
    static const char adamw[] = "--optimizer adamw", sgd[] = "--optimizer sgd";
    static const char cosine[] = "--lr-schedule cosine", scaled[] = "--precision f16";
    bool is_sgd = is_word(c->optimizer, "sgd"), is_cosine = is_word(c->schedule, "cosine");
    const ptb_opt_use rows[] = {
        {"beta1", adamw, !is_sgd},
        {"beta2", adamw, !is_sgd},
        {"adam-epsilon", adamw, !is_sgd},
        {"momentum", sgd, is_sgd},
        {"lr-steps", cosine, is_cosine},
        {"lr-min", cosine, is_cosine},
        {"loss-scale", scaled, f16},
        {"loss-scale-growth", scaled, f16},
        {"recompute-every", "--recompute selective or full", !is_word(c->recompute, "none")},
    };
    return ptb_opts_check_used(options, rows, sizeof rows / sizeof *rows);
}

// To ask for none of what experts alone have is no contradiction.
static ptb_status check_model(const ptb_opt_set *options, const ptb_model_options *o,
                              const ptb_model_shape *s)
{
    static const char experts[] = "a mixture of experts (--experts, or a preset that has some)";
    bool mixture = s->experts > 0;
    bool dense = !mixture || s->dense_layers > 0 || !s->expert_hidden; // which is as wide as they are then
    const ptb_opt_use rows[] = {
        {"top-k", experts, mixture},
        {"expert-hidden", experts, mixture},
        {"shared-experts", experts, mixture || o->shared_experts <= 0},
        {"dense-layers", experts, mixture || o->dense_layers <= 0},
        {"capacity-factor", experts, mixture || o->capacity_factor <= 0},
        {"normalise-top-k", experts, mixture},
        {"balance", experts, mixture || o->balance <= 0},
        {"balance-statistics", "load-balancing losses (--balance, with --experts)", ptb_step_balances(s)},
        {"feed-forward", "blocks that are dense (--dense-layers), or no --expert-hidden", dense},
        {"rotary-base", "--positions rotary", s->position == PTB_ROTARY_POSITIONS},
    };
    return ptb_opts_check_used(options, rows, sizeof rows / sizeof *rows);
}

ptb_status ptb_step_check_used(const ptb_step_config *c, const ptb_model_shape *shape,
                               const ptb_step_names *names)
{
    uses u;
    PTB_TRY(find_uses(c, names, &u));
    PTB_TRY(check_division(names->options, c, &u));
    PTB_TRY(check_optimizer(names->options, c, has_word(names->precisions, names->precision_count, "f16")));
    return check_model(names->options, &c->model, shape);
}
