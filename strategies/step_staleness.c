// See step_staleness.h.
#include "strategies/step_staleness.h"

#include "core/log.h"

#include <stdlib.h>

static ptb_status allocate(ptb_step_staleness *s, size_t count, size_t ranks, uint64_t **all)
{
    s->gradients = calloc(count, sizeof *s->gradients);
    s->count = count;
    *all = calloc(count * ranks, sizeof **all);
    if (s->gradients && *all)
        return PTB_OK;
    ptb_error("no memory for the staleness of %zu ranks", ranks);
    return PTB_NO_MEMORY;
}

// Ranks that compute the same sequences together are one worker, and have counted the same.
static double ranks_of_worker(const ptb_trainer *t)
{
    const unsigned workers = 1u << PTB_MESH_SHARD | 1u << PTB_MESH_REPLICATE;
    return t->config.world->size / (double)ptb_mesh_size(&t->config.mesh, workers);
}

static void add_metrics(const ptb_step_staleness *s, ptb_metrics *metrics)
{
    double all = 0, sum = 0;
    size_t most = 0;
    for (size_t k = 0; k < s->count; k++) {
        all += s->gradients[k];
        sum += (double)k * s->gradients[k];
        most = s->gradients[k] > 0 ? k : most;
    }
    ptb_metrics_add(metrics, "staleness_mean", sum / all, "steps", PTB_NEUTRAL,
                    "updates that a gradient's parameters lacked; mean over workers and steps, warm-up too");
    ptb_metrics_add(metrics, "staleness_max", (double)most, "steps", PTB_NEUTRAL,
                    "updates that a gradient's parameters lacked, at most");
    ptb_metrics_add(metrics, "stale_gradients", 100 * (1 - s->gradients[0] / all), "%", PTB_NEUTRAL,
                    "gradients whose parameters lacked an update / all of workers and steps");
}

ptb_status ptb_step_staleness_metrics(ptb_step_staleness *s, const ptb_trainer *t, ptb_metrics *metrics)
{
    ptb_world *world = t->config.world;
    size_t ranks = (size_t)world->size;
    uint64_t *all = NULL;
    if (!t->data->ops->staleness)
        return PTB_OK;
    ptb_data_staleness mine = t->data->ops->staleness(t->data);
    size_t count = (size_t)mine.bound + 1;
    ptb_step_staleness_release(s);
    ptb_status status = ptb_world_agree(world, allocate(s, count, ranks, &all));
    if (status == PTB_OK)
        status = ptb_world_all_gather(world, mine.steps, count * sizeof *all, all);
    for (size_t i = 0; status == PTB_OK && i < count * ranks; i++)
        s->gradients[i % count] += (double)all[i] / ranks_of_worker(t);
    if (status == PTB_OK)
        add_metrics(s, metrics);
    free(all);
    return status;
}

bool ptb_step_staleness_series(const ptb_step_staleness *s, ptb_series *series)
{
    if (!s->gradients)
        return false;
    *series =
        (ptb_series){.name = "staleness", .unit = "gradients", .values = s->gradients, .count = s->count};
    return true;
}

void ptb_step_staleness_release(ptb_step_staleness *s)
{
    free(s->gradients);
    *s = (ptb_step_staleness){.count = 0};
}
