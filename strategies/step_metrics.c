// See step_metrics.h. FLOPs are counted by several conventions because papers use several; each metric names
// its own.
#include "strategies/step_metrics.h"

#include "collectives/traffic.h"
#include "core/log.h"
#include "strategies/datasheet.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// FLOP/s of all ranks' matrix products.
typedef struct {
    bool is_given;
    double products;  // measured now, with the step's type and threads, or given; NAN: cannot be
    double datasheet; // NAN: some rank's device is in no table
} peaks;

static ptb_status find_peaks(ptb_trainer *t, double asked, peaks *sum)
{
    const ptb_trainer_config *c = &t->config;
    peaks mine = {.products = asked,
                  .datasheet = t->device->simulated
                                   ? NAN
                                   : ptb_datasheet_flops(t->device->description, c->type, c->tf32)};
    void *memory;
    PTB_TRY(ptb_world_calloc(c->world, (size_t)c->world->size * sizeof mine, "peaks", &memory));
    peaks *all = memory;
    ptb_status status = PTB_OK;
    if (!(asked > 0)) {
        // All at once, as in a step: the ranks of a host share its memory, clock and power.
        status = ptb_world_start(c->world);
        if (status == PTB_OK)
            status = c->kernels->matmul_peak(t->compute, c->type, c->threads, &mine.products);
    }
    // No memory beside the model, or no such product: the steps are timed all the same.
    if (status == PTB_NO_MEMORY || status == PTB_UNSUPPORTED) {
        mine.products = NAN;
        status = PTB_OK;
    }
    status = ptb_world_agree(c->world, status);
    if (status == PTB_OK)
        status = ptb_world_all_gather(c->world, &mine, sizeof mine, all);
    *sum = (peaks){.is_given = asked > 0};
    for (int r = 0; status == PTB_OK && r < c->world->size; r++) {
        sum->products += all[r].products;
        sum->datasheet += all[r].datasheet;
    }
    free(all);
    return status;
}

static void add_utilisation(const char *name, const char *convention, double flops_per_s, double peak,
                            ptb_metrics *metrics)
{
    ptb_metrics_add(metrics, name, 100 * flops_per_s / peak, "%", PTB_HIGHER_IS_BETTER, convention);
}

// Against what the data sheet promises, on devices that have one.
static void add_datasheet(const peaks *peak, double palm, double megatron, ptb_metrics *metrics)
{
    if (isnan(peak->datasheet))
        return;
    ptb_metrics_add(metrics, "datasheet_peak", peak->datasheet, "FLOP/s", PTB_NEUTRAL,
                    "dense matrix products of the step's type by the GPU's data sheet; sum of ranks");
    add_utilisation("mfu_datasheet", "flops_per_s (PaLM) / datasheet_peak (dense)", palm, peak->datasheet,
                    metrics);
    add_utilisation("mfu_megatron_datasheet", "flops_per_s_megatron / datasheet_peak (dense)", megatron,
                    peak->datasheet, metrics);
}

// What the peak is, and what is divided by it.
typedef struct {
    const char *peak, *mfu, *mfu_megatron, *hfu;
} peak_words;
static const peak_words measured = {
    "best matrix product, measured after the steps, same type and threads; sum of ranks",
    "flops_per_s (PaLM) / matmul_peak (measured)",
    "flops_per_s_megatron / matmul_peak (measured)",
    "matmul_flops_per_s (as computed) / matmul_peak (measured)",
};
static const peak_words given = {
    "--peak, for each rank; sum of ranks",
    "flops_per_s (PaLM) / matmul_peak (given)",
    "flops_per_s_megatron / matmul_peak (given)",
    "matmul_flops_per_s (as computed) / matmul_peak (given)",
};

static void add_of_peak(const peaks *peak, double palm, double megatron, double exact, ptb_metrics *metrics)
{
    const peak_words *words = peak->is_given ? &given : &measured;
    ptb_metrics_add(metrics, "matmul_peak", peak->products, "FLOP/s", PTB_NEUTRAL, words->peak);
    add_utilisation("mfu", words->mfu, palm, peak->products, metrics);
    add_utilisation("mfu_megatron", words->mfu_megatron, megatron, peak->products, metrics);
    add_utilisation("hfu", words->hfu, exact, peak->products, metrics);
}

static void add_rates(const ptb_trainer *t, double step_ns, const peaks *peak, ptb_metrics *metrics)
{
    const ptb_trainer_config *c = &t->config;
    double rate = (double)c->batch * (double)c->layout->shape.sequence / (step_ns * 1e-9);
    double palm = ptb_layout_flops_palm(c->layout) * rate;
    double megatron = ptb_layout_flops_megatron(c->layout) * rate;
    double parts = (double)(ptb_mesh_size(&c->mesh, PTB_MESH_ALL) * c->micro_batches);
    double exact = ptb_model_flops(t->model) * parts / (step_ns * 1e-9);
    ptb_metrics_add(metrics, "tokens_per_s", rate, "tokens/s", PTB_HIGHER_IS_BETTER,
                    "tokens of the global batch / median step time");
    ptb_metrics_add(metrics, "flops_per_s", palm, "FLOP/s", PTB_HIGHER_IS_BETTER,
                    "PaLM: 6 N + 12 L h s per token, N without embeddings; all ranks");
    ptb_metrics_add(metrics, "flops_per_s_causal", ptb_layout_flops_causal(c->layout) * rate, "FLOP/s",
                    PTB_HIGHER_IS_BETTER, "6 N + 6 L h s per token (llm.c), N without embeddings; all ranks");
    ptb_metrics_add(metrics, "flops_per_s_megatron", megatron, "FLOP/s", PTB_HIGHER_IS_BETTER,
                    "Megatron: 6 [L (h (q+k+v) + q h + g h f) + h V] + 6 L q s per token; all ranks");
    ptb_metrics_add(metrics, "matmul_flops_per_s", exact, "FLOP/s", PTB_HIGHER_IS_BETTER,
                    "matrix products as computed: head, attention's blocks, recomputation; all ranks");
    if (!isnan(peak->products))
        add_of_peak(peak, palm, megatron, exact, metrics);
    add_datasheet(peak, palm, megatron, metrics);
}

// Starved and skipped steps, warm-up included.
static ptb_status add_events(const ptb_trainer *t, ptb_metrics *metrics)
{
    double worst[] = {(double)t->starved, (double)t->waited_ns * 1e-6,
                      t->steps ? (double)t->fill_ns * 1e-6 / (double)t->steps : NAN};
    PTB_TRY(ptb_world_reduce_max(t->config.world, worst, sizeof worst / sizeof *worst));
    ptb_metrics_add(metrics, "steps_starved", worst[0], "", PTB_LOWER_IS_BETTER,
                    "steps whose batch was not ready when asked for, of all steps; the rank with most");
    ptb_metrics_add(metrics, "input_wait", worst[1], "ms", PTB_LOWER_IS_BETTER,
                    "time waited for batches, over all steps; the rank with most");
    ptb_metrics_add(metrics, "input_fill", worst[2], "ms", PTB_LOWER_IS_BETTER,
                    "time the prefetch thread takes for a batch, mean of all steps; the slowest rank");
    ptb_metrics_add(metrics, "skipped_steps", (double)t->shared->update.skipped, "", PTB_LOWER_IS_BETTER,
                    "steps without an update because a gradient was not finite, of all steps");
    return PTB_OK;
}

// What one axis moves, the loss and the norm left out.
static double axis_volume(const ptb_trainer *t, ptb_axis axis)
{
    double bytes = 0;
    for (int i = PTB_LANE_DENSE; i < PTB_LANE_COUNT; i++)
        if (t->lanes.lane[i].axis == axis)
            bytes += t->lanes.lane[i].moved.volume_bytes;
    return t->steps ? bytes / (double)t->steps : NAN;
}

static void add_volumes(const ptb_trainer *t, ptb_metrics *metrics)
{
    static const ptb_axis axes[] = {PTB_AXIS_DP, PTB_AXIS_TP, PTB_AXIS_CP, PTB_AXIS_EP};
    enum { AXES = sizeof axes / sizeof *axes };
    double all = 0;
    for (size_t i = 0; i < AXES; i++)
        all += axis_volume(t, axes[i]);
    ptb_metrics_add(metrics, "comm_volume", all, "bytes", PTB_LOWER_IS_BETTER,
                    "per rank and step: sum over collectives of S x bus factor (ring-equivalent), and of "
                    "bytes sent in messages");
    for (size_t i = 0; i < AXES; i++) {
        char name[32];
        snprintf(name, sizeof name, "comm_volume_%s", ptb_axis_name(axes[i]));
        if (axis_volume(t, axes[i]) > 0)
            ptb_metrics_add(metrics, name, axis_volume(t, axes[i]), "bytes", PTB_LOWER_IS_BETTER,
                            "comm_volume of this axis of the mesh");
    }
}

// NAN where not all steps from first to last were made.
static double mean_loss(const ptb_trainer *t, size_t first, size_t last)
{
    double sum = 0;
    for (size_t i = first; i <= last && last < t->steps; i++)
        sum += t->losses[i] / (double)(last - first + 1);
    return last < t->steps ? sum : NAN;
}

static void add_training(const ptb_trainer *t, ptb_metrics *metrics)
{
    uint64_t last = t->steps - 1;
    bool any = t->steps > 0;
    ptb_metrics_add(metrics, "parameters", (double)t->config.layout->parameters, "", PTB_NEUTRAL,
                    "all weights, embeddings included, a tied head once");
    ptb_metrics_add(metrics, "active_parameters", (double)t->config.layout->active_parameters, "",
                    PTB_NEUTRAL,
                    "weights that one token goes through: of the experts only those it is routed to");
    add_volumes(t, metrics);
    ptb_metrics_add(metrics, "loss_first", any ? t->losses[0] : NAN, "nats", PTB_NEUTRAL,
                    "mean cross-entropy per token of step 0's global batch");
    ptb_metrics_add(metrics, "loss_last", any ? t->losses[last] : NAN, "nats", PTB_LOWER_IS_BETTER,
                    "mean cross-entropy per token of the last step's global batch");
    ptb_metrics_add(metrics, "loss_steps_8_15", mean_loss(t, 8, 15), "nats", PTB_LOWER_IS_BETTER,
                    "mean cross-entropy per token of steps 8 to 15: the same steps of every run");
    ptb_metrics_add(metrics, "grad_norm_last", any ? t->norms[last] : NAN, "", PTB_NEUTRAL,
                    "global norm of the last step's gradient, before clipping");
}

ptb_status ptb_step_metrics(ptb_trainer *t, double step_ns, double peak, ptb_metrics *metrics)
{
    peaks sum;
    PTB_TRY(find_peaks(t, peak, &sum));
    add_rates(t, step_ns, &sum, metrics);
    add_training(t, metrics);
    return add_events(t, metrics);
}

// The word by which an algorithm's traffic is known; NULL, with the reason in t->how, when it is not.
static const char *algorithm_of(ptb_trainer *trainer, const ptb_lane *lane, ptb_coll_kind kind,
                                ptb_traffic *t)
{
    ptb_params facts = {.count = 0};
    trainer->data->ops->describe(trainer->data, &facts);
    return ptb_traffic_algorithm(&facts, lane->comm->world, kind, t);
}

// Whether all-reduces of gradients are all that a step communicates, but for the loss and the norm.
static bool reduces_alone(const ptb_trainer *trainer)
{
    const ptb_lane_moved *moved = &trainer->lanes.lane[PTB_LANE_DENSE].moved;
    for (int i = PTB_LANE_DENSE + 1; i < PTB_LANE_COUNT; i++)
        if (trainer->lanes.lane[i].moved.calls)
            return false;
    return moved->calls && (double)moved->bytes[PTB_ALL_REDUCE] > 0;
}

bool ptb_step_moves(ptb_trainer *trainer, ptb_traffic *t)
{
    const ptb_lane *lane = &trainer->lanes.lane[PTB_LANE_DENSE];
    const ptb_comm *comm = lane->comm;
    double steps = (double)trainer->steps;
    if (comm->size < trainer->config.world->size || comm->size == 1 || steps <= 0 || !reduces_alone(trainer))
        return false;
    bool is_nccl = strcmp(comm->ops->plugin.name, "nccl") == 0;
    ptb_traffic_call call = {.group = comm->world,
                             .kind = PTB_ALL_REDUCE,
                             .bytes = (double)lane->moved.bytes[PTB_ALL_REDUCE] / steps,
                             .in_rank_order = !is_nccl};
    *t = (ptb_traffic){.bytes = call.bytes, .on_gpu = is_nccl};
    call.algorithm = algorithm_of(trainer, lane, PTB_ALL_REDUCE, t);
    if (comm->counts_sent) {
        t->near_bytes = 0;
        t->far_bytes = (double)comm->sent.far_bytes / steps;
        snprintf(t->how, sizeof t->how, "counted: what was handed to ranks of other hosts");
    } else if (call.algorithm) {
        ptb_traffic_of_call(&call, t);
    }
    return true;
}
