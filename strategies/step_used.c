// See step_used.h. An option that not every step looks at has a row here.
#include "strategies/step_used.h"

#include "core/log.h"
#include "strategies/strategy.h"

#include <string.h>

// What the strategies of a run have between them.
typedef struct {
    bool tp, cp, ep;
    bool fsdp, sharded, local_sgd, async;
} uses;

typedef struct {
    const char *option, *needs;
    bool given, used;
} row;

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
    }
    *out = u;
    return PTB_OK;
}

static ptb_status check_rows(const row *rows, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (!rows[i].given || rows[i].used)
            continue;
        ptb_error("--%s changes nothing here: it needs %s; leave it out", rows[i].option, rows[i].needs);
        return PTB_USAGE;
    }
    return PTB_OK;
}

static ptb_status check_division(const ptb_step_config *c, const uses *u)
{
    static const char tp[] = "layers that are cut (--strategy tp or tp+sp, or tp in --mesh)";
    static const char cp[] = "sequences that are split (--strategy cp, or cp in --mesh)";
    static const char ep[] = "experts on several ranks (--strategy ep, or ep in --mesh)";
    static const char fsdp[] = "--strategy fsdp or hsdp";
    const ptb_step_data *d = &c->data_parallel;
    bool degrees = u->cp && is_word(c->context, "ring_all_to_all");
    const row rows[] = {
        {"sequence-parallel", tp, c->sequence_parallel, u->tp},
        {"tensor-chunks", tp, c->tensor_chunks != 1, u->tp},
        {"context", cp, !is_word(c->context, "ring"), u->cp},
        {"context-degree", "--context ring_all_to_all, with cp", c->context_degree != 0, degrees},
        {"expert-dispatch", ep, !is_word(c->expert_dispatch, "all_to_all"), u->ep},
        {"expert-overlap no", ep, !c->expert_overlap, u->ep},
        {"prefetch", fsdp, d->prefetch != 1, u->fsdp},
        {"reshard no", fsdp, !d->reshard, u->fsdp},
        {"in-flight", "--strategy fsdp, hsdp or zero2", d->in_flight != 0, u->sharded},
        {"local-steps", "--strategy local-sgd", d->local_steps != 8, u->local_sgd},
        {"staleness", "--strategy async", d->staleness != 1, u->async},
    };
    return check_rows(rows, sizeof rows / sizeof *rows);
}

static ptb_status check_optimizer(const ptb_step_config *c, bool f16)
{
    static const char adamw[] = "--optimizer adamw", sgd[] = "--optimizer sgd";
    static const char cosine[] = "--lr-schedule cosine", scaled[] = "--precision f16";
    bool is_sgd = is_word(c->optimizer, "sgd"), is_cosine = is_word(c->schedule, "cosine");
    const row rows[] = {
        {"beta1", adamw, c->beta1 != 0.9, !is_sgd},
        {"beta2", adamw, c->beta2 != 0.95, !is_sgd},
        {"adam-epsilon", adamw, c->epsilon != 1e-8, !is_sgd},
        {"momentum", sgd, c->momentum != 0.9, is_sgd},
        {"lr-steps", cosine, c->rate_steps != 0, is_cosine},
        {"lr-min", cosine, c->rate_min != 0, is_cosine},
        {"loss-scale", scaled, c->loss_scale != 65536, f16},
        {"loss-scale-growth", scaled, c->growth_interval != 2000, f16},
        {"recompute-every", "--recompute selective or full", c->recompute_every != 1,
         !is_word(c->recompute, "none")},
    };
    return check_rows(rows, sizeof rows / sizeof *rows);
}

static ptb_status check_model(const ptb_step_config *c, const ptb_model_shape *s)
{
    static const char experts[] = "a mixture of experts (--experts, or a preset that has some)";
    const ptb_model_options *o = &c->model;
    bool mixture = s->experts > 0;
    const row rows[] = {
        {"top-k", experts, o->top_k != 0, mixture},
        {"expert-hidden", experts, o->expert_hidden != 0, mixture},
        {"shared-experts", experts, o->shared_experts > 0, mixture},
        {"dense-layers", experts, o->dense_layers > 0, mixture},
        {"capacity-factor", experts, o->capacity_factor > 0, mixture},
        {"normalise-top-k", experts, o->normalise && !is_word(o->normalise, "preset"), mixture},
        {"balance", experts, o->balance > 0, mixture},
        {"balance-statistics", "load-balancing losses (--balance, with --experts)",
         !is_word(c->balance_statistics, "local"), ptb_step_balances(s)},
        {"rotary-base", "--positions rotary", o->rotary_base != 0, s->position == PTB_ROTARY_POSITIONS},
    };
    return check_rows(rows, sizeof rows / sizeof *rows);
}

ptb_status ptb_step_check_used(const ptb_step_config *c, const ptb_model_shape *shape,
                               const ptb_step_names *names)
{
    uses u;
    PTB_TRY(find_uses(c, names, &u));
    PTB_TRY(check_division(c, &u));
    PTB_TRY(check_optimizer(c, has_word(names->precisions, names->precision_count, "f16")));
    return check_model(c, shape);
}
