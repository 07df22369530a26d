// See step_verify.h.
#include "strategies/step_verify.h"

#include "core/log.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static double mean(const double *values, size_t count)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += values[i];
    return count ? sum / (double)count : NAN;
}

// Every loss finite; where there is something to learn, after at least 8 steps also the last quarter's mean
// below the first step's.
static void check_losses(const ptb_trainer *t, bool learns, ptb_verdict *verdict)
{
    size_t steps = (size_t)t->steps;
    for (size_t i = 0; i < steps; i++) {
        verdict->checked++;
        if (isfinite(t->losses[i]))
            continue;
        if (!verdict->wrong++)
            snprintf(verdict->detail, sizeof verdict->detail, "step %zu: wanted a finite loss, got %g", i,
                     t->losses[i]);
    }
    if (verdict->wrong || steps < 8 || !learns)
        return;
    double last = mean(t->losses + steps - steps / 4, steps / 4);
    verdict->checked++;
    if (last < t->losses[0])
        return;
    verdict->wrong++;
    snprintf(verdict->detail, sizeof verdict->detail,
             "loss did not fall: %g at step 0, %g on average over the last %zu of %zu steps (where --lr is "
             "not too large, a defect)",
             t->losses[0], last, steps / 4, steps);
}

// A rank's hashes, and the place that others share who must have the same of each.
typedef struct {
    ptb_data_hashes hashes;
    int cut, replicated, experts;
} placed_hashes;

static placed_hashes place_hashes(const ptb_trainer *t, const ptb_data_hashes *hashes)
{
    const ptb_mesh *mesh = &t->config.mesh;
    unsigned stage = 1u << PTB_MESH_PP, tensor = stage | 1u << PTB_MESH_TP;
    return (placed_hashes){.hashes = *hashes,
                           .cut = ptb_mesh_place(mesh, tensor),
                           .replicated = ptb_mesh_place(mesh, stage),
                           .experts = ptb_mesh_place(mesh, tensor | 1u << PTB_MESH_EP)};
}

typedef struct {
    const char *what; // of the parameters; NULL when they agree
    uint64_t got, wanted;
} difference;

static difference compare(const placed_hashes *got, const placed_hashes *wanted)
{
    const ptb_data_hashes *a = &got->hashes, *b = &wanted->hashes;
    if (got->cut == wanted->cut && a->cut != b->cut)
        return (difference){"", a->cut, b->cut};
    if (got->replicated == wanted->replicated && a->replicated != b->replicated)
        return (difference){" (those that all ranks of tp have)", a->replicated, b->replicated};
    if (got->experts == wanted->experts && a->experts != b->experts)
        return (difference){" (of experts)", a->experts, b->experts};
    return (difference){NULL, 0, 0};
}

static void check_hashes(const ptb_trainer *t, const placed_hashes *all, ptb_verdict *verdict)
{
    int mine = t->config.world->rank;
    verdict->checked++;
    for (int r = 0; r < mine && !verdict->wrong; r++) {
        difference d = compare(&all[mine], &all[r]);
        if (!d.what)
            continue;
        verdict->wrong++;
        snprintf(verdict->detail, sizeof verdict->detail,
                 "rank %d's parameters%s differ from rank %d's after %" PRIu64 " steps (hash %016" PRIx64
                 ", wanted %016" PRIx64 ")",
                 mine, d.what, r, t->steps, d.got, d.wanted);
    }
}

ptb_status ptb_step_verify(ptb_trainer *t, bool learns, ptb_step_hashes *hashes, ptb_verdict *verdict)
{
    ptb_world *world = t->config.world;
    *verdict = (ptb_verdict){.done = true};
    check_losses(t, learns, verdict);
    placed_hashes mine, *all = calloc((size_t)world->size, sizeof *all);
    if (!all)
        ptb_error("no memory for %d hashes", world->size);
    ptb_status status = ptb_world_agree(world, all ? PTB_OK : PTB_NO_MEMORY);
    if (status == PTB_OK && t->data->ops->settle)
        status = ptb_world_agree(world, t->data->ops->settle(t->data));
    if (status == PTB_OK)
        status = ptb_world_agree(world, ptb_data_hash(t->data, &hashes->values));
    if (status == PTB_OK) {
        hashes->steps = t->steps;
        mine = place_hashes(t, &hashes->values);
        status = world->ops->all_gather(world, &mine, sizeof mine, all);
    }
    if (status == PTB_OK)
        check_hashes(t, all, verdict);
    free(all);
    return status;
}

uint64_t ptb_step_hash(const ptb_step_hashes *hashes)
{
    return hashes->values.cut + hashes->values.replicated + hashes->values.experts;
}
