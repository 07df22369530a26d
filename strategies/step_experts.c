// See step_experts.h.
#include "strategies/step_experts.h"

#include "core/log.h"

#include <stdlib.h>
#include <string.h>

enum { NOW, BEFORE };

static size_t tally_count(const ptb_step_experts *e)
{
    return e->layers * 2 * e->experts;
}

static ptb_status allocate(ptb_step_experts *e, const ptb_model_shape *s)
{
    e->layers = (size_t)s->layers;
    e->dense = (size_t)s->dense_layers;
    e->experts = (size_t)s->experts;
    for (int i = 0; i < 2; i++)
        e->read[i] = calloc(tally_count(e), sizeof *e->read[i]);
    e->tokens = calloc(e->layers * e->experts, sizeof *e->tokens);
    e->imbalance = calloc(e->layers, sizeof *e->imbalance);
    if (e->read[0] && e->read[1] && e->tokens && e->imbalance)
        return PTB_OK;
    ptb_error("no memory for the choices of %zu x %zu experts", e->layers, e->experts);
    return PTB_NO_MEMORY;
}

ptb_status ptb_step_experts_read(ptb_step_experts *e, ptb_trainer *t)
{
    const ptb_model_shape *s = &t->config.layout->shape;
    if (!s->experts)
        return PTB_OK;
    if (!e->read[NOW])
        PTB_TRY(allocate(e, s));
    int64_t *before = e->read[BEFORE];
    e->read[BEFORE] = e->read[NOW];
    e->read[NOW] = before;
    return ptb_model_choices(t->model, e->read[NOW]);
}

// sum[i]: of all ranks, between the reads. Ranks that have the same tokens (tp) count once.
static ptb_status add_ranks(const ptb_step_experts *e, const ptb_trainer *t, double *sum /* [tally] */)
{
    ptb_world *world = t->config.world;
    size_t count = tally_count(e), ranks = (size_t)world->size;
    int64_t *mine = calloc(count, sizeof *mine), *all = calloc(count * ranks, sizeof *all);
    if (!mine || !all)
        ptb_error("no memory for the choices of %zu experts on %zu ranks", e->experts, ranks);
    ptb_status status = ptb_world_agree(world, mine && all ? PTB_OK : PTB_NO_MEMORY);
    for (size_t i = 0; status == PTB_OK && i < count; i++)
        mine[i] = e->read[NOW][i] - e->read[BEFORE][i];
    if (status == PTB_OK)
        status = ptb_world_all_gather(world, mine, count * sizeof *mine, all);
    for (size_t i = 0; status == PTB_OK && i < count; i++) {
        sum[i] = 0;
        for (size_t r = 0; r < ranks; r++)
            sum[i] += (double)all[r * count + i] / t->config.mesh.size[PTB_MESH_TP];
    }
    free(mine), free(all);
    return status;
}

// The largest sum of `parts` equal parts over the mean one.
static double imbalance(const double *tokens /* [experts] */, size_t experts, size_t parts)
{
    double most = 0, all = 0;
    for (size_t p = 0; p < parts; p++) {
        double sum = 0;
        for (size_t i = 0; i < experts / parts; i++)
            sum += tokens[p * (experts / parts) + i];
        most = sum > most ? sum : most;
        all += sum;
    }
    return all > 0 ? most * (double)parts / all : 1;
}

static void add_metrics(ptb_step_experts *e, const ptb_trainer *t, const double *sum, ptb_metrics *metrics)
{
    size_t ranks = (size_t)t->config.mesh.size[PTB_MESH_EP];
    double mean = 0, of_ranks = 0, chosen = 0, taken = 0, mixtures = (double)(e->layers - e->dense);
    for (size_t l = e->dense; l < e->layers; l++) {
        const double *layer = sum + l * 2 * e->experts;
        memcpy(e->tokens + l * e->experts, layer, e->experts * sizeof *layer);
        e->imbalance[l] = imbalance(layer, e->experts, e->experts);
        mean += e->imbalance[l] / mixtures;
        of_ranks += imbalance(layer + e->experts, e->experts, ranks) / mixtures;
        for (size_t i = 0; i < e->experts; i++) {
            chosen += layer[i];
            taken += layer[e->experts + i];
        }
    }
    ptb_metrics_add(metrics, "expert_imbalance", mean, "", PTB_LOWER_IS_BETTER,
                    "last step: tokens of the most chosen expert / of the mean one; mean over layers");
    if (ranks > 1)
        ptb_metrics_add(
            metrics, "expert_rank_imbalance", of_ranks, "", PTB_LOWER_IS_BETTER,
            "last step: tokens that the fullest ep rank computes / the mean one; mean over layers");
    ptb_metrics_add(metrics, "experts_dropped", chosen > 0 ? 100 * (1 - taken / chosen) : 0, "%",
                    PTB_LOWER_IS_BETTER,
                    "last step: choices beyond capacity / choices, all layers and ranks");
}

ptb_status ptb_step_experts_metrics(ptb_step_experts *e, const ptb_trainer *t, ptb_metrics *metrics)
{
    if (!t->config.layout->shape.experts)
        return PTB_OK;
    double *sum = calloc(tally_count(e), sizeof *sum);
    if (!sum)
        ptb_error("no memory for the sums of %zu x %zu experts", e->layers, e->experts);
    ptb_status status = ptb_world_agree(t->config.world, sum ? PTB_OK : PTB_NO_MEMORY);
    if (status == PTB_OK)
        status = add_ranks(e, t, sum);
    if (status == PTB_OK)
        add_metrics(e, t, sum, metrics);
    free(sum);
    return status;
}

bool ptb_step_experts_series(const ptb_step_experts *e, size_t i, ptb_series *series)
{
    if (!e->tokens || i >= PTB_STEP_EXPERTS_SERIES)
        return false;
    size_t layers = e->layers - e->dense;
    *series =
        i == 0
            ? (ptb_series){.name = "expert_tokens",
                           .unit = "tokens",
                           .values = e->tokens + e->dense * e->experts,
                           .count = layers * e->experts}
            : (ptb_series){
                  .name = "expert_imbalance", .unit = "", .values = e->imbalance + e->dense, .count = layers};
    return true;
}

void ptb_step_experts_release(ptb_step_experts *e)
{
    free(e->read[0]), free(e->read[1]), free(e->tokens), free(e->imbalance);
    *e = (ptb_step_experts){0};
}
