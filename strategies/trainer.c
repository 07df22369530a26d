// One training step, enqueued: forward, loss, backward, optimizer over two streams, and the next batch
// meanwhile.
#include "strategies/trainer.h"

#include "core/clock.h"
#include "core/log.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ptb_model_config model_config(const ptb_trainer_config *c)
{
    return (ptb_model_config){.kernels = c->kernels,
                              .layout = c->layout,
                              .batch = c->batch / c->world->size,
                              .threads = c->threads,
                              .type = PTB_F32};
}

static ptb_data_env data_env(const ptb_trainer_config *c)
{
    return (ptb_data_env){.kernels = c->kernels,
                          .layout = c->layout,
                          .trace = c->trace,
                          .optimizer = &c->optimizer,
                          .seed = c->seed,
                          .bucket_bytes = c->bucket_bytes,
                          .overlap = c->overlap};
}

void ptb_trainer_memory(const ptb_trainer_config *c, uint64_t bytes[PTB_MEMORY_COUNT])
{
    ptb_model_config model = model_config(c);
    ptb_data_env env = data_env(c);
    ptb_model_memory(&model, bytes);
    c->strategy->memory(&env, c->world->size, bytes);
    bytes[PTB_MEMORY_OPTIMIZER] += sizeof(ptb_update) + sizeof(double);
    bytes[PTB_MEMORY_COMMUNICATION] += sizeof(double); // the loss
}

static void explain_memory(const ptb_trainer_config *c, char *reason)
{
    uint64_t bytes[PTB_MEMORY_COUNT], sum = 0, available = ptb_memory_available();
    ptb_trainer_memory(c, bytes);
    char has[64] = "";
    for (int i = 0; i < PTB_MEMORY_COUNT; i++)
        sum += bytes[i];
    if (available != UINT64_MAX)
        snprintf(has, sizeof has, ", which has %.3g GB available", (double)available * 1e-9);
    snprintf(reason, PTB_REASON_BYTES,
             "needs %.3g GB a rank (parameters %.3g, gradients %.3g, optimizer %.3g, activations %.3g, "
             "workspace %.3g), "
             "%.3g GB for the %d ranks of this host%s",
             (double)sum * 1e-9, (double)bytes[PTB_MEMORY_PARAMETERS] * 1e-9,
             (double)bytes[PTB_MEMORY_GRADIENTS] * 1e-9, (double)bytes[PTB_MEMORY_OPTIMIZER] * 1e-9,
             (double)bytes[PTB_MEMORY_ACTIVATIONS] * 1e-9, (double)bytes[PTB_MEMORY_WORKSPACE] * 1e-9,
             (double)sum * c->world->local_size * 1e-9, c->world->local_size, has);
}

// Linux hands out more memory than there is and kills later; so ask before.
static ptb_status check_memory(const ptb_trainer_config *c)
{
    uint64_t bytes[PTB_MEMORY_COUNT], sum = 0, available = ptb_memory_available();
    ptb_trainer_memory(c, bytes);
    for (int i = 0; i < PTB_MEMORY_COUNT; i++)
        sum += bytes[i];
    return sum > available / (uint64_t)c->world->local_size ? PTB_NO_MEMORY : PTB_OK;
}

static ptb_status fetch_batch(ptb_trainer *t, uint64_t step)
{
    const ptb_trainer_config *c = &t->config;
    size_t length = (size_t)c->layout->shape.sequence, mine = t->tokens / length;
    int32_t *inputs = t->batch[step & 1], *targets = inputs + t->tokens;
    uint64_t first = step * (uint64_t)c->batch + (uint64_t)c->world->rank * mine;
    for (size_t i = 0; i < mine; i++)
        PTB_TRY(ptb_tokens_sequence(c->tokens, first + i, inputs + i * length, targets + i * length, NULL));
    return PTB_OK;
}

static ptb_status make_records(ptb_trainer *t)
{
    const ptb_trainer_config *c = &t->config;
    double **records[] = {&t->losses, &t->norms, &t->rates, &t->scales};
    for (size_t i = 0; i < sizeof records / sizeof *records; i++) {
        *records[i] = calloc(c->max_steps, sizeof **records[i]); // pages come as steps are written
        if (!*records[i]) {
            ptb_error("no memory to record %zu steps", c->max_steps);
            return PTB_NO_MEMORY;
        }
    }
    for (int i = 0; i < 2; i++) {
        t->batch[i] = calloc(2 * t->tokens, sizeof(int32_t));
        if (!t->batch[i]) {
            ptb_error("no memory for two batches of %zu tokens", t->tokens);
            return PTB_NO_MEMORY;
        }
    }
    return PTB_OK;
}

static ptb_status make_update(ptb_trainer *t)
{
    ptb_device *device = t->device;
    t->seen.update = ptb_optimizer_start(&t->config.optimizer);
    PTB_TRY(ptb_device_alloc(device, PTB_MEMORY_OPTIMIZER, sizeof *t->update, (void **)&t->update));
    PTB_TRY(ptb_device_alloc(device, PTB_MEMORY_OPTIMIZER, sizeof *t->sum_squares, (void **)&t->sum_squares));
    return ptb_stream_copy(t->compute, t->update, &t->seen.update, sizeof *t->update);
}

// What needs no other rank.
static ptb_status make_local(ptb_trainer *t)
{
    const ptb_trainer_config *c = &t->config;
    PTB_TRY(ptb_device_open(c->device, c->world->local_rank, &t->device));
    PTB_TRY(ptb_stream_new(t->device, PTB_STREAM_WORKER, PTB_LANE_COMPUTE, &t->compute));
    PTB_TRY(ptb_stream_new(t->device, PTB_STREAM_WORKER, PTB_LANE_COMMUNICATION, &t->communication));
    PTB_TRY(ptb_event_new(t->device, &t->loss_ready));
    ptb_model_config model = model_config(c);
    model.device = t->device;
    model.stream = t->compute;
    t->tokens = (size_t)(model.batch * c->layout->shape.sequence);
    PTB_TRY(make_records(t));
    PTB_TRY(make_update(t));
    return ptb_model_new(&model, &t->model);
}

static ptb_status check_collective(ptb_trainer *t, char *reason)
{
    ptb_coll gradients = {
        .kind = PTB_ALL_REDUCE, .count = t->config.layout->count, .dtype = PTB_F32, .op = PTB_SUM};
    ptb_coll loss = {.kind = PTB_ALL_REDUCE, .count = 1, .dtype = PTB_F64, .op = PTB_SUM};
    if (t->comm->size == 1)
        return PTB_OK;
    bool can = t->comm->ops->supports(t->comm, &gradients, true, reason) &&
               t->comm->ops->supports(t->comm, &loss, true, reason);
    return can ? PTB_OK : PTB_SKIPPED;
}

static ptb_status make_shared(ptb_trainer *t, char *reason)
{
    const ptb_trainer_config *c = &t->config;
    PTB_TRY(ptb_world_agree(c->world, ptb_comm_open(c->comm, c->world, &c->comm_config, &t->comm)));
    PTB_TRY(ptb_world_agree(c->world, check_collective(t, reason)));
    void *loss = NULL;
    ptb_status status = t->comm->ops->alloc(t->comm, sizeof *t->loss, &loss);
    t->loss = status == PTB_OK ? loss : NULL;
    if (status == PTB_OK)
        ptb_data_account(t->device, PTB_MEMORY_COMMUNICATION, sizeof *t->loss);
    PTB_TRY(ptb_world_agree(c->world, status));
    ptb_data_env env = data_env(c);
    env.device = t->device;
    env.comm = t->comm;
    env.compute = t->compute;
    env.communication = t->communication;
    env.update = t->update;
    env.sum_squares = t->sum_squares;
    PTB_TRY(ptb_world_agree(c->world, c->strategy->open(&env, &t->data)));
    status = fetch_batch(t, 0);
    ptb_status synced = ptb_stream_sync(t->compute);
    return ptb_world_agree(c->world, status != PTB_OK ? status : synced);
}

ptb_status ptb_trainer_new(const ptb_trainer_config *config, char *reason, ptb_trainer **trainer)
{
    ptb_trainer *t = calloc(1, sizeof *t);
    ptb_status status = t ? check_memory(config) : PTB_NO_MEMORY;
    // Before any rank allocates: what one has taken is not available to the others.
    status = ptb_world_agree(config->world, status);
    if (status == PTB_OK) {
        t->config = *config;
        status = ptb_world_agree(config->world, make_local(t));
    }
    if (status == PTB_OK)
        status = make_shared(t, reason);
    if (status == PTB_NO_MEMORY) {
        explain_memory(config, reason);
        status = PTB_SKIPPED;
    }
    if (status != PTB_OK) {
        ptb_trainer_free(t);
        return status;
    }
    *trainer = t;
    return PTB_OK;
}

void ptb_trainer_free(ptb_trainer *t)
{
    if (!t)
        return;
    if (t->compute)
        (void)ptb_stream_sync(t->compute);
    if (t->communication)
        (void)ptb_stream_sync(t->communication);
    if (t->data)
        t->data->ops->close(t->data);
    if (t->loss)
        t->comm->ops->free(t->comm, t->loss);
    ptb_comm_close(t->comm);
    ptb_model_free(t->model);
    ptb_device_free(t->device, t->sum_squares);
    ptb_device_free(t->device, t->update);
    ptb_event_free(t->loss_ready);
    ptb_stream_free(t->communication);
    ptb_stream_free(t->compute);
    ptb_device_close(t->device);
    for (int i = 0; i < 2; i++)
        free(t->batch[i]);
    free(t->losses);
    free(t->norms);
    free(t->rates);
    free(t->scales);
    free(t);
}

static ptb_span span(const ptb_trainer *t, ptb_span_kind kind, ptb_phase phase, int lane, int unit,
                     const char *name)
{
    ptb_span s = {.rank = t->config.world->rank,
                  .stream = (int16_t)lane,
                  .kind = (uint8_t)kind,
                  .phase = (uint8_t)phase,
                  .unit = unit,
                  .microbatch = -1,
                  .correlation = t->steps};
    snprintf(s.name, sizeof s.name, "%s", name);
    return s;
}

static ptb_status close_span(ptb_trainer *t, ptb_span_kind kind, ptb_phase phase, int unit, const char *name)
{
    ptb_span s = span(t, kind, phase, PTB_LANE_COMPUTE, unit, name);
    return ptb_mark_close(&t->compute_mark, t->config.trace, t->compute, &s);
}

static const char *unit_name(const ptb_trainer *t, size_t unit, bool backward)
{
    static const char *const names[][2] = {[PTB_UNIT_EMBEDDING] = {"embedding.forward", "embedding.backward"},
                                           [PTB_UNIT_BLOCK] = {"block.forward", "block.backward"},
                                           [PTB_UNIT_HEAD] = {"head.forward", "head.backward"}};
    return names[t->config.layout->unit[unit].kind][backward];
}

static ptb_status copy_batch(ptb_trainer *t)
{
    const int32_t *batch = t->batch[t->steps & 1];
    size_t bytes = t->tokens * sizeof *batch;
    PTB_TRY(ptb_mark_open(&t->compute_mark, t->config.trace, t->compute));
    PTB_TRY(ptb_stream_copy(t->compute, ptb_model_inputs(t->model, 0), batch, bytes));
    PTB_TRY(ptb_stream_copy(t->compute, ptb_model_targets(t->model, 0), batch + t->tokens, bytes));
    return close_span(t, PTB_SPAN_COPY, PTB_PHASE_FORWARD, -1, "batch");
}

static ptb_status forward(ptb_trainer *t)
{
    const ptb_data_parallel *ops = t->data->ops;
    size_t units = t->config.layout->units;
    double share = 1.0 / t->config.world->size;
    ptb_microbatch microbatch = {.step = t->steps,
                                 .sequence = (uint64_t)t->config.world->rank *
                                             (uint64_t)(t->config.batch / t->config.world->size),
                                 .scale = share / (double)t->tokens,
                                 .share = share};
    PTB_TRY(ptb_model_begin(t->model, 0, &microbatch));
    for (size_t u = 0; u < units; u++) {
        ptb_unit_memory memory;
        PTB_TRY(ops->before_forward(t->data, u));
        ops->unit_memory(t->data, u, &memory);
        PTB_TRY(ptb_mark_open(&t->compute_mark, t->config.trace, t->compute));
        PTB_TRY(ptb_model_forward(t->model, 0, u, &memory));
        if (u + 1 == units)
            PTB_TRY(ptb_model_loss(t->model, 0, &memory, false, t->loss));
        PTB_TRY(close_span(t, PTB_SPAN_COMPUTE, PTB_PHASE_FORWARD, (int)u, unit_name(t, u, false)));
        PTB_TRY(ops->after_forward(t->data, u));
    }
    return PTB_OK;
}

// The mean loss of the global batch; with overlap on its way while backward computes.
static ptb_status reduce_loss(ptb_trainer *t)
{
    PTB_TRY(ptb_event_record(t->loss_ready, t->compute));
    PTB_TRY(ptb_event_wait(t->communication, t->loss_ready));
    if (t->comm->size > 1) {
        ptb_mark *mark = &t->loss_mark;
        PTB_TRY(ptb_mark_open(mark, t->config.trace, t->communication));
        ptb_coll call = {.kind = PTB_ALL_REDUCE,
                         .send = t->loss,
                         .recv = t->loss,
                         .count = 1,
                         .dtype = PTB_F64,
                         .op = PTB_SUM};
        PTB_TRY(ptb_comm_collective(t->comm, &call, t->communication));
        ptb_span s = span(t, PTB_SPAN_COMM, PTB_PHASE_FORWARD, PTB_LANE_COMMUNICATION, -1, "all_reduce.loss");
        s.axis = 1;
        s.bytes = sizeof *t->loss;
        PTB_TRY(ptb_mark_close(mark, t->config.trace, t->communication, &s));
    }
    return ptb_stream_copy(t->communication, &t->losses[t->steps], t->loss, sizeof *t->loss);
}

static ptb_status tell_ready(void *context, size_t unit, size_t first)
{
    ptb_data *data = context;
    return data->ops->gradient_ready(data, unit, first);
}

static ptb_status backward(ptb_trainer *t)
{
    const ptb_data_parallel *ops = t->data->ops;
    ptb_gradient_ready ready = {tell_ready, t->data};
    for (size_t u = t->config.layout->units; u-- > 0;) {
        ptb_unit_memory memory;
        PTB_TRY(ops->before_backward(t->data, u));
        ops->unit_memory(t->data, u, &memory);
        PTB_TRY(ptb_mark_open(&t->compute_mark, t->config.trace, t->compute));
        PTB_TRY(ptb_model_backward(t->model, 0, u, &memory, PTB_BACKWARD_BOTH, false, &ready));
        PTB_TRY(close_span(t, PTB_SPAN_COMPUTE, PTB_PHASE_BACKWARD, (int)u, unit_name(t, u, true)));
        PTB_TRY(ops->after_backward(t->data, u));
    }
    return PTB_OK;
}

// The optimizer, and what it decided for the host to see after the step.
static ptb_status optimize(ptb_trainer *t)
{
    PTB_TRY(t->data->ops->optimize(t->data));
    PTB_TRY(ptb_stream_copy(t->compute, &t->seen.update, t->update, sizeof t->seen.update));
    return ptb_stream_copy(t->compute, &t->seen.sum_squares, t->sum_squares, sizeof t->seen.sum_squares);
}

static void record_step(ptb_trainer *t)
{
    const ptb_optimizer *optimizer = &t->config.optimizer;
    t->norms[t->steps] =
        ptb_optimizer_needs_norm(optimizer) ? t->seen.update.norm : sqrt(t->seen.sum_squares);
    t->rates[t->steps] = ptb_optimizer_rate(optimizer, t->steps);
    t->steps++;
}

ptb_status ptb_trainer_step(ptb_trainer *t)
{
    if (t->steps == t->config.max_steps) {
        ptb_error("more than %zu training steps in one case", t->config.max_steps);
        return PTB_UNSUPPORTED;
    }
    ptb_span frame = span(t, PTB_SPAN_STEP, PTB_PHASE_NONE, PTB_LANE_MAIN, -1, "step");
    ptb_span input = span(t, PTB_SPAN_INPUT, PTB_PHASE_NONE, PTB_LANE_MAIN, -1, "next batch");
    frame.begin_ns = ptb_clock_ns();
    t->scales[t->steps] = (double)t->seen.update.loss_scale;
    PTB_TRY(t->data->ops->begin_step(t->data, t->steps));
    PTB_TRY(copy_batch(t));
    PTB_TRY(forward(t));
    if (t->config.overlap)
        PTB_TRY(reduce_loss(t));
    PTB_TRY(backward(t));
    if (!t->config.overlap)
        PTB_TRY(reduce_loss(t));
    PTB_TRY(optimize(t));
    input.begin_ns = ptb_clock_ns();
    ptb_status fetched = fetch_batch(t, t->steps + 1); // while the streams work
    input.end_ns = ptb_clock_ns();
    ptb_status computed = ptb_stream_sync(t->compute), communicated = ptb_stream_sync(t->communication);
    frame.end_ns = ptb_clock_ns();
    ptb_trace_record(t->config.trace, &input);
    ptb_trace_record(t->config.trace, &frame);
    record_step(t);
    if (fetched != PTB_OK)
        return fetched;
    return computed != PTB_OK ? computed : communicated;
}
