// See step_memory.h. Every number of the ledger is of allocations that were really made (core/device.h).
#include "strategies/step_memory.h"

#include "core/log.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { ALL = PTB_MEMORY_COUNT }; // index of the sum

typedef struct {
    double peak[PTB_STEP_MEMORY_SERIES];
    double resident; // growth of the process; NAN: unknown
} rank_memory;

ptb_status ptb_step_check_magnitude(const ptb_layout *layout, int64_t batch, int ranks)
{
    const ptb_model_shape *s = &layout->shape;
    double h = (double)s->hidden, l = (double)s->layers, f = (double)s->feed_forward;
    double routed = (double)(s->top_k + s->shared_experts) * (double)s->expert_hidden;
    double rows = (double)batch * (double)s->sequence / ranks;
    double parameters = (double)layout->count;
    double activations =
        rows * (l * (16 * h + 3 * (f > routed ? f : routed) + (double)(s->heads + s->experts)) + 8 * h +
                (double)s->vocabulary);
    if (4 * (4 * parameters + activations) < 0x1p60)
        return PTB_OK;
    ptb_error("a step of %.3g parameters and %.3g activations a rank needs %.3g bytes, more than can be "
              "counted; use a smaller --hidden, --layers, --vocab, --sequence or --batch",
              parameters, activations, 4 * (4 * parameters + activations));
    return PTB_USAGE;
}

void ptb_step_memory_begin(ptb_step_memory *memory)
{
    *memory = (ptb_step_memory){.resident_before = UINT64_MAX};
    if (ptb_memory_reset_resident_peak())
        memory->resident_before = ptb_memory_resident();
}

static const char *name_of(int i)
{
    return i == ALL ? "memory" : ptb_memory_name((ptb_memory)i);
}

static rank_memory measure(const ptb_step_memory *memory, const ptb_trainer *trainer)
{
    rank_memory mine = {.resident = NAN};
    uint64_t peak = ptb_memory_resident_peak();
    for (int i = 0; i < PTB_MEMORY_COUNT; i++) {
        mine.peak[i] = (double)trainer->device->peak_bytes[i];
        mine.peak[ALL] += mine.peak[i];
    }
    if (memory->resident_before != UINT64_MAX && peak != UINT64_MAX)
        mine.resident = (double)peak - (double)memory->resident_before;
    return mine;
}

static ptb_status allocate(ptb_step_memory *memory, size_t ranks)
{
    for (int i = 0; i < PTB_STEP_MEMORY_SERIES; i++) {
        free(memory->by_rank[i]);
        memory->by_rank[i] = calloc(ranks, sizeof(double));
        snprintf(memory->names[i], sizeof memory->names[i], "peak_%s_by_rank", name_of(i));
        if (!memory->by_rank[i]) {
            ptb_error("no memory for the memory ledgers of %zu ranks", ranks);
            return PTB_NO_MEMORY;
        }
    }
    memory->ranks = ranks;
    return PTB_OK;
}

// The largest of the ranks' values; NAN when one of them is.
static double largest(const double *values, size_t count)
{
    double most = values[0];
    for (size_t r = 1; r < count; r++)
        most = values[r] > most || isnan(values[r]) ? values[r] : most;
    return most;
}

static void add_metrics(const ptb_step_memory *memory, double resident, double parameters,
                        ptb_metrics *metrics)
{
    double predicted_all = 0, state = 0;
    char name[32];
    for (int i = 0; i <= ALL; i++) {
        double predicted = i == ALL ? predicted_all : (double)memory->predicted[i];
        predicted_all += predicted;
        bool is_state = i == PTB_MEMORY_PARAMETERS || i == PTB_MEMORY_GRADIENTS || i == PTB_MEMORY_OPTIMIZER;
        double peak = largest(memory->by_rank[i], memory->ranks);
        state += is_state ? peak : 0;
        snprintf(name, sizeof name, "peak_%s", name_of(i));
        ptb_metrics_add(metrics, name, peak, "bytes", PTB_LOWER_IS_BETTER,
                        i == ALL ? "sum of the categories' peaks; the rank with most"
                                 : "largest sum of the category's allocations; the rank with most");
        snprintf(name, sizeof name, "predicted_%s", name_of(i));
        ptb_metrics_add(metrics, name, predicted, "bytes", PTB_NEUTRAL,
                        "from shape and settings, before anything is allocated; a rank");
        if (i == ALL)
            ptb_metrics_add(metrics, "memory_ratio", peak / predicted, "", PTB_NEUTRAL,
                            "peak_memory / predicted_memory");
    }
    ptb_metrics_add(
        metrics, "peak_resident", resident, "bytes", PTB_LOWER_IS_BETTER,
        "growth of the resident set, libraries' scratch and records included; the rank with most");
    ptb_metrics_add(metrics, "state_per_parameter", state / parameters, "bytes", PTB_LOWER_IS_BETTER,
                    "(parameters + gradients + optimizer) / parameters of the model; the rank with most");
}

ptb_status ptb_step_memory_metrics(ptb_step_memory *memory, const ptb_trainer *trainer, ptb_metrics *metrics)
{
    ptb_world *world = trainer->config.world;
    size_t ranks = (size_t)world->size;
    rank_memory mine = measure(memory, trainer), *all = calloc(ranks, sizeof *all);
    double *resident = calloc(ranks, sizeof *resident);
    ptb_trainer_memory(&trainer->config, memory->predicted);
    ptb_status status = all && resident ? allocate(memory, ranks) : PTB_NO_MEMORY;
    if (!all || !resident)
        ptb_error("no memory for the memory ledgers of %zu ranks", ranks);
    status = ptb_world_agree(world, status);
    if (status == PTB_OK)
        status = ptb_world_all_gather(world, &mine, sizeof mine, all);
    if (status == PTB_OK) {
        memory->fullest = 0;
        for (size_t r = 0; r < ranks; r++) {
            resident[r] = all[r].resident;
            for (int i = 0; i < PTB_STEP_MEMORY_SERIES; i++)
                memory->by_rank[i][r] = all[r].peak[i];
            if (all[r].peak[ALL] > all[memory->fullest].peak[ALL])
                memory->fullest = (int)r;
        }
        add_metrics(memory, largest(resident, ranks), (double)trainer->config.layout->parameters, metrics);
    }
    free(resident);
    free(all);
    return status;
}

ptb_series ptb_step_memory_series(const ptb_step_memory *memory, size_t i)
{
    ptb_series series = {.unit = "bytes", .values = memory->by_rank[i], .count = memory->ranks};
    snprintf(series.name, sizeof series.name, "%s", memory->names[i]);
    return series;
}

void ptb_step_memory_release(ptb_step_memory *memory)
{
    for (int i = 0; i < PTB_STEP_MEMORY_SERIES; i++)
        free(memory->by_rank[i]);
    *memory = (ptb_step_memory){0};
}
