// See step_config.h. To add an option: a field there, a row of the table in step.c, a line in
// ptb_step_params, and a row in step_used.c if some steps do not look at it.
#include "strategies/step_config.h"

#include "core/log.h"
#include "strategies/mesh.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_BATCH = 8 };

static bool is_word(const char *word, const char *wanted)
{
    return word && strcmp(word, wanted) == 0;
}

bool ptb_step_is_tf32(const char *precision)
{
    return is_word(precision, "tf32");
}

ptb_dtype ptb_step_type(const char *precision)
{
    return is_word(precision, "bf16") ? PTB_BF16 : is_word(precision, "f16") ? PTB_F16 : PTB_F32;
}

bool ptb_step_has_type(const ptb_kernels *kernels, const char *precision)
{
    return (kernels->types & 1u << ptb_step_type(precision)) &&
           (kernels->set_tf32 || !ptb_step_is_tf32(precision));
}

ptb_status ptb_step_batch(const ptb_step_config *c, int ranks, int64_t *batch, char *reason)
{
    int64_t asked = c->batch, parts = ranks * c->micro_batches;
    int64_t effective = asked ? asked : (DEFAULT_BATCH + parts - 1) / parts * parts;
    if (!ptb_mesh_divides_batch(ranks, c->micro_batches, effective, "--batch", reason))
        return PTB_USAGE;
    *batch = effective;
    return PTB_OK;
}

double ptb_step_rate(const ptb_step_config *c, int64_t hidden)
{
    return c->rate >= 0 ? c->rate : hidden > 512 ? 1e-4 : 1e-3;
}

// What a recorded step holds fast.
static ptb_status check_graph(const ptb_step_config *c, double dropout)
{
    if (c->graph && dropout > 0) {
        ptb_error(
            "--graph with --dropout %g: a recorded step would drop the same in every step; leave one out",
            dropout);
        return PTB_USAGE;
    }
    if (c->graph && c->pack) {
        ptb_error("--graph with --pack: a recorded step divides by the number of targets of one batch, which "
                  "differs where sequences hold several documents; leave one out");
        return PTB_USAGE;
    }
    return PTB_OK;
}

ptb_status ptb_step_check(const ptb_step_config *c, double dropout)
{
    bool is_cosine = is_word(c->schedule, "cosine");
    if (is_cosine && c->rate_steps <= c->rate_warmup) {
        ptb_error(
            "--lr-schedule cosine ends at step --lr-steps, which must be after --lr-warmup; got --lr-steps "
            "%" PRId64 " and --lr-warmup %" PRId64 ". Give the number of steps of the whole training",
            c->rate_steps, c->rate_warmup);
        return PTB_USAGE;
    }
    if (is_cosine && c->rate_min > c->rate) {
        ptb_error("--lr-min %g is above --lr %g: the cosine falls from --lr to --lr-min", c->rate_min,
                  c->rate);
        return PTB_USAGE;
    }
    if (c->peak > 0 && strchr(c->precision, ',')) {
        ptb_error("--peak is the rate of one type, and --precision %s has several; run them apart",
                  c->precision);
        return PTB_USAGE;
    }
    PTB_TRY(ptb_step_data_check(&c->data_parallel));
    return check_graph(c, dropout);
}

bool ptb_step_balances(const ptb_model_shape *shape)
{
    return shape->experts && shape->balance > 0;
}

bool ptb_step_balances_globally(const ptb_step_config *c, const ptb_model_shape *shape)
{
    return is_word(c->balance_statistics, "global") && ptb_step_balances(shape);
}

bool ptb_step_balance_possible(const char *strategy, char *reason)
{
    if (!is_word(strategy, "local-sgd") && !is_word(strategy, "async"))
        return true;
    snprintf(reason, PTB_REASON_BYTES,
             "ranks of %s do not train in step, and --balance-statistics global sums counts over ranks in "
             "every microbatch; use local",
             strategy);
    return false;
}

ptb_optimizer ptb_step_optimizer(const ptb_step_config *c, ptb_dtype type)
{
    bool is_f16 = type == PTB_F16;
    return (ptb_optimizer){.kind = is_word(c->optimizer, "sgd") ? PTB_OPTIMIZER_SGD : PTB_OPTIMIZER_ADAMW,
                           .schedule = is_word(c->schedule, "cosine") ? PTB_RATE_COSINE : PTB_RATE_CONSTANT,
                           .rate = c->rate,
                           .rate_min = c->rate_min,
                           .rate_warmup = (uint64_t)c->rate_warmup,
                           .rate_steps = (uint64_t)c->rate_steps,
                           .beta1 = c->beta1,
                           .beta2 = c->beta2,
                           .epsilon = c->epsilon,
                           .momentum = c->momentum,
                           .decay = c->decay,
                           .clip = c->clip,
                           .loss_scale = is_f16 ? c->loss_scale : 1,
                           .dynamic = is_f16,
                           .growth_interval = (uint32_t)c->growth_interval};
}

static void set_integer(ptb_params *p, const char *name, int64_t value)
{
    ptb_params_set(p, name, "%" PRId64, value);
}

// In full, so that no two settings share a key.
static void set_number(ptb_params *p, const char *name, double value)
{
    ptb_text text = PTB_TEXT_INIT;
    ptb_text_append_number(&text, value, -1);
    ptb_params_set(p, name, "%s", ptb_text_string(&text));
    ptb_text_release(&text);
}

static void set_optimizer(const ptb_step_config *c, const char *precision, ptb_params *p)
{
    ptb_params_set(p, "optimizer", "%s", c->optimizer);
    set_number(p, "lr", c->rate);
    set_integer(p, "lr_warmup", c->rate_warmup);
    if (is_word(c->schedule, "cosine")) {
        ptb_params_set(p, "lr_schedule", "cosine");
        set_integer(p, "lr_steps", c->rate_steps);
        set_number(p, "lr_min", c->rate_min);
    }
    if (is_word(c->optimizer, "sgd")) {
        set_number(p, "momentum", c->momentum);
    } else {
        set_number(p, "beta1", c->beta1);
        set_number(p, "beta2", c->beta2);
        set_number(p, "adam_epsilon", c->epsilon);
    }
    set_number(p, "weight_decay", c->decay);
    if (c->clip > 0)
        set_number(p, "clip", c->clip);
    if (is_word(precision, "f16")) {
        set_number(p, "loss_scale", c->loss_scale);
        set_integer(p, "loss_scale_growth", c->growth_interval);
    }
}

void ptb_step_params(const ptb_step_config *c, const ptb_step_point *point, ptb_params *p)
{
    char size[32];
    ptb_params_set(p, "strategy", "%s", point->strategy);
    if (point->mesh)
        ptb_params_set(p, "mesh", "%s", point->mesh);
    if (c->sequence_parallel)
        ptb_params_set(p, "sequence_parallel", "yes");
    if (point->tensor && c->tensor_chunks > 1)
        set_integer(p, "tensor_chunks", c->tensor_chunks);
    if (point->experts) {
        ptb_params_set(p, "expert_dispatch", "%s", c->expert_dispatch);
        ptb_params_set(p, "expert_overlap", "%s", c->expert_overlap ? "yes" : "no");
    }
    if (point->balance && !is_word(c->balance_statistics, "local"))
        ptb_params_set(p, "balance_statistics", "%s", c->balance_statistics);
    if (point->context)
        ptb_params_set(p, "context", "%s", c->context);
    if (point->context && c->context_degree && is_word(c->context, "ring_all_to_all"))
        set_integer(p, "context_degree", c->context_degree);
    ptb_params_set(p, "comm", "%s", point->comm);
    ptb_params_set(p, "algo", "%s", point->algorithm);
    if (c->transport && *c->transport)
        ptb_params_set(p, "transport", "%s", c->transport);
    ptb_params_set(p, "device", "%s", c->device);
    ptb_params_set(p, "kernels", "%s", c->kernels);
    set_integer(p, "threads", c->threads);
    if (c->peak > 0)
        set_number(p, "peak", c->peak);
    ptb_model_options_params(&c->model, p);
    set_integer(p, "batch", point->batch);
    ptb_params_set(p, "precision", "%s", point->precision);
    if (!is_word(c->reduce_type, "f32"))
        ptb_params_set(p, "reduce_type", "%s", c->reduce_type);
    if (c->micro_batches > 1)
        set_integer(p, "micro_batches", c->micro_batches);
    if (!is_word(c->recompute, "none")) {
        ptb_params_set(p, "recompute", "%s", c->recompute);
        set_integer(p, "recompute_every", c->recompute_every);
    }
    set_optimizer(c, point->precision, p);
    ptb_params_set(p, "data", "%s", point->data);
    if (c->pack)
        ptb_params_set(p, "pack", "yes");
    ptb_text_format_size(c->bucket_bytes, size, sizeof size);
    ptb_params_set(p, "bucket", "%s", size);
    ptb_params_set(p, "overlap", "%s", c->overlap ? "yes" : "no");
    ptb_step_data_params(&c->data_parallel, point->strategy, p);
    if (c->deterministic)
        ptb_params_set(p, "deterministic", "yes");
    if (c->graph)
        ptb_params_set(p, "graph", "yes");
    ptb_params_set(p, "seed", "%" PRIu64, point->seed);
    set_integer(p, "ranks", point->ranks);
}
