// One training step, enqueued whole: for each microbatch forward, loss, backward; then the optimizer, over
// two streams. The host waits only for its batch and for the end; where updates go on beside later steps, for
// the end of compute, and takes down what has arrived by then. Whatever changes from step to step is in
// memory that the device reads (the batch, the learning rate, what ptb_update holds), so that a step can be
// recorded as a graph and replayed; dropout's seeds and packed batches' number of targets are not, and are
// refused with a graph (step_config.c).
#include "strategies/trainer.h"

#include "core/clock.h"
#include "core/log.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static ptb_span span(const ptb_trainer *t, ptb_span_kind kind, ptb_phase phase, int lane, int unit,
                     const char *name)
{
    ptb_span s = {.rank = t->config.world->rank,
                  .stream = (int16_t)lane,
                  .kind = (uint8_t)kind,
                  .phase = (uint8_t)phase,
                  .unit = unit,
                  .microbatch = t->config.micro_batches > 1 ? t->micro_batch : -1,
                  .correlation = t->steps};
    snprintf(s.name, sizeof s.name, "%s", name);
    return s;
}

static ptb_status open_span(ptb_trainer *t, ptb_phase phase, int unit)
{
    static const char *const names[][2] = {[PTB_UNIT_EMBEDDING] = {"embedding.forward", "embedding.backward"},
                                           [PTB_UNIT_BLOCK] = {"block.forward", "block.backward"},
                                           [PTB_UNIT_HEAD] = {"head.forward", "head.backward"}};
    const char *name = names[t->config.layout->unit[unit].kind][phase == PTB_PHASE_BACKWARD];
    ptb_span s = span(t, PTB_SPAN_COMPUTE, phase, PTB_LANE_COMPUTE, unit, name);
    t->phase = phase;
    t->unit = unit;
    return ptb_timeline_open(&t->timeline, &s);
}

static ptb_status close_span(ptb_trainer *t)
{
    return ptb_timeline_close(&t->timeline);
}

ptb_status ptb_trainer_phase(void *context, ptb_phase phase)
{
    ptb_trainer *t = context;
    if (phase == t->phase)
        return PTB_OK;
    PTB_TRY(close_span(t));
    return open_span(t, phase, t->unit);
}

// Hands the microbatch's tokens and place in the global batch to the model.
static ptb_status begin_microbatch(ptb_trainer *t)
{
    const ptb_trainer_config *c = &t->config;
    const ptb_prefetch_batch *batch = &t->batch;
    size_t at = (size_t)t->micro_batch * t->rows, bytes = t->rows * sizeof *batch->inputs;
    uint64_t sequences = (uint64_t)ptb_trainer_sequences(c);
    int64_t first = ptb_mesh_place(&c->mesh, PTB_MESH_DATA) * c->micro_batches;
    uint64_t microbatch = (uint64_t)(first + t->micro_batch);
    ptb_microbatch place = {.step = t->steps,
                            .sequence = microbatch * sequences,
                            .scale = 1 / (double)batch->counted,
                            .share = (double)sequences / (double)(c->batch * c->mesh.size[PTB_MESH_CP]),
                            .factor = c->optimizer.dynamic ? &t->update->loss_scale : NULL};
    ptb_span s = span(t, PTB_SPAN_COPY, PTB_PHASE_FORWARD, PTB_LANE_COMPUTE, -1, "batch");
    PTB_TRY(ptb_timeline_open(&t->timeline, &s));
    PTB_TRY(ptb_stream_copy(t->compute, ptb_model_inputs(t->model, 0), batch->inputs + at, bytes));
    PTB_TRY(ptb_stream_copy(t->compute, ptb_model_targets(t->model, 0), batch->targets + at, bytes));
    if (c->packed)
        PTB_TRY(ptb_stream_copy(t->compute, ptb_model_starts(t->model, 0), batch->start + at, bytes));
    PTB_TRY(ptb_timeline_close(&t->timeline));
    return ptb_model_begin(t->model, 0, &place);
}

static ptb_trainer_shared *shared_of(const ptb_trainer *t, uint64_t step)
{
    return &t->clock[step % (t->clocks + 1)];
}

static double *loss_of(const ptb_trainer *t)
{
    return t->loss + (t->clocks ? t->steps % t->clocks : 0);
}

static ptb_status forward(ptb_trainer *t)
{
    const ptb_data_parallel *ops = t->data->ops;
    size_t units = t->config.layout->units;
    for (size_t u = 0; u < units; u++) {
        ptb_unit_memory memory;
        PTB_TRY(ops->before_forward(t->data, u));
        ops->unit_memory(t->data, u, &memory);
        PTB_TRY(open_span(t, PTB_PHASE_FORWARD, (int)u));
        PTB_TRY(ptb_model_forward(t->model, 0, u, &memory));
        if (u + 1 == units)
            PTB_TRY(ptb_model_loss(t->model, 0, &memory, t->micro_batch > 0,
                                   t->micro_batch > 0 && !ops->every_microbatch, loss_of(t)));
        PTB_TRY(close_span(t));
        PTB_TRY(ops->after_forward(t->data, u));
    }
    return PTB_OK;
}

// The mean loss of the global batch; with overlap on its way while backward computes.
static ptb_status reduce_loss(ptb_trainer *t)
{
    ptb_lane *lane = &t->lanes.lane[PTB_LANE_LOSS];
    double *loss = loss_of(t);
    ptb_coll call = {
        .kind = PTB_ALL_REDUCE, .send = loss, .recv = loss, .count = 1, .dtype = PTB_F64, .op = PTB_SUM};
    PTB_TRY(ptb_lane_fork(lane));
    if (lane->size > 1)
        PTB_TRY(ptb_lane_collective(lane, &call, "all_reduce.loss"));
    return ptb_stream_copy(lane->stream, &shared_of(t, t->steps)->loss, loss, sizeof *loss);
}

static ptb_status tell_ready(void *context, size_t unit, size_t first)
{
    ptb_data *data = context;
    return data->ops->gradient_ready(data, unit, first);
}

// Gradients add up and are complete with the last microbatch, before which nobody is told; or a strategy
// takes each microbatch's.
static ptb_status backward(ptb_trainer *t)
{
    const ptb_data_parallel *ops = t->data->ops;
    bool is_last = t->micro_batch + 1 == t->config.micro_batches, each = ops->every_microbatch;
    ptb_gradient_ready ready = {tell_ready, t->data};
    for (size_t u = t->config.layout->units; u-- > 0;) {
        ptb_unit_memory memory;
        PTB_TRY(ops->before_backward(t->data, u));
        ops->unit_memory(t->data, u, &memory);
        PTB_TRY(open_span(t, PTB_PHASE_BACKWARD, (int)u));
        PTB_TRY(ptb_model_backward(t->model, 0, u, &memory, PTB_BACKWARD_BOTH, t->micro_batch > 0 && !each,
                                   is_last || each ? &ready : NULL));
        PTB_TRY(close_span(t));
        PTB_TRY(ops->after_backward(t->data, u));
    }
    return PTB_OK;
}

static ptb_status set_rate(ptb_trainer *t, ptb_stream *stream)
{
    float *rate = &shared_of(t, t->steps)->rate;
    return ptb_stream_copy(stream, &t->update->rate, rate, sizeof *rate);
}

// The optimizer, and what it decided for the host to see after the step.
static ptb_status optimize(ptb_trainer *t)
{
    ptb_trainer_shared *shared = shared_of(t, t->steps);
    ptb_stream *stream = ptb_data_stream(t->data);
    if (t->clocks) // updates of steps before are on their way
        PTB_TRY(set_rate(t, stream));
    PTB_TRY(t->data->ops->optimize(t->data));
    PTB_TRY(ptb_stream_copy(stream, &shared->update, t->update, sizeof shared->update));
    PTB_TRY(ptb_stream_copy(stream, &shared->sum_squares, t->sum_squares, sizeof shared->sum_squares));
    return t->clocks ? ptb_event_record(t->updated[t->steps % (t->clocks + 1)], stream) : PTB_OK;
}

static ptb_status take_batch(ptb_trainer *t)
{
    ptb_span input = span(t, PTB_SPAN_INPUT, PTB_PHASE_NONE, PTB_LANE_MAIN, -1, "wait for a batch");
    input.begin_ns = ptb_clock_ns();
    PTB_TRY(ptb_prefetch_take(t->prefetch, &t->batch));
    input.end_ns = ptb_clock_ns();
    ptb_trace_record(t->config.trace, &input);
    t->starved += t->batch.starved;
    t->waited_ns += t->batch.waited_ns;
    t->fill_ns += t->batch.fill_end_ns - t->batch.fill_begin_ns;
    return PTB_OK;
}

static ptb_status enqueue(ptb_trainer *t)
{
    bool overlap = t->config.overlap;
    if (!t->clocks)
        PTB_TRY(set_rate(t, t->compute));
    // What is communicated before the first span is opened is this step's too.
    t->timeline.span = span(t, PTB_SPAN_COMPUTE, PTB_PHASE_FORWARD, PTB_LANE_COMPUTE, -1, "");
    PTB_TRY(t->data->ops->begin_step(t->data, t->steps));
    for (t->micro_batch = 0; t->micro_batch < t->config.micro_batches; t->micro_batch++) {
        bool is_last = t->micro_batch + 1 == t->config.micro_batches;
        PTB_TRY(begin_microbatch(t));
        PTB_TRY(forward(t));
        if (overlap && is_last)
            PTB_TRY(reduce_loss(t));
        PTB_TRY(backward(t));
    }
    if (!overlap)
        PTB_TRY(reduce_loss(t));
    return optimize(t);
}

// What the compute stream does from here on comes after everything that is enqueued: a recording must come
// back to the stream that it began on.
static ptb_status join(ptb_trainer *t)
{
    for (int i = PTB_LANE_COMMUNICATION; i <= PTB_LANE_EP; i++) {
        PTB_TRY(ptb_event_record(t->joined, t->lanes.stream[i]));
        PTB_TRY(ptb_event_wait(t->compute, t->joined));
    }
    return PTB_OK;
}

// A launch moves what was recorded.
static void add_moved(ptb_trainer *t)
{
    for (int i = 0; i < PTB_LANE_COUNT; i++) {
        ptb_lane_moved *to = &t->lanes.lane[i].moved;
        const ptb_lane_moved *step = &t->graph_moved[i];
        to->calls += step->calls;
        to->message_bytes += step->message_bytes;
        to->volume_bytes += step->volume_bytes;
        for (int k = 0; k < PTB_COLL_COUNT; k++)
            to->bytes[k] += step->bytes[k];
    }
}

static ptb_status record_graph(ptb_trainer *t)
{
    // The launches count, not the recording: lanes count from 0 meanwhile.
    ptb_lane_moved before[PTB_LANE_COUNT];
    for (int i = 0; i < PTB_LANE_COUNT; i++) {
        before[i] = t->lanes.lane[i].moved;
        t->lanes.lane[i].moved = (ptb_lane_moved){.calls = 0};
    }
    PTB_TRY(ptb_graph_begin(t->compute));
    ptb_status status = enqueue(t);
    if (status == PTB_OK)
        status = join(t);
    ptb_status ended = ptb_graph_end(t->compute, &t->graph);
    PTB_TRY(status);
    PTB_TRY(ended);
    t->graph_counted = t->batch.counted;
    for (int i = 0; i < PTB_LANE_COUNT; i++) {
        t->graph_moved[i] = t->lanes.lane[i].moved;
        t->lanes.lane[i].moved = before[i];
    }
    return PTB_OK;
}

static ptb_status launch_graph(ptb_trainer *t)
{
    if (t->batch.counted != t->graph_counted) {
        ptb_error("the batch of step %" PRIu64 " has %" PRIu64 " targets and the recorded one %" PRIu64
                  "; leave --graph out for this data",
                  t->steps, t->batch.counted, t->graph_counted);
        return PTB_UNSUPPORTED;
    }
    add_moved(t);
    ptb_span s = span(t, PTB_SPAN_COMPUTE, PTB_PHASE_NONE, PTB_LANE_COMPUTE, -1, "graph");
    PTB_TRY(ptb_mark_open(&t->launch, t->config.trace, t->compute, &s));
    PTB_TRY(ptb_graph_launch(t->graph, t->compute));
    return ptb_mark_close(&t->launch, t->config.trace, t->compute);
}

ptb_status ptb_trainer_record_graph(ptb_trainer *t)
{
    if (!t->graph) // it is recorded with the next step
        return PTB_OK;
    ptb_graph_free(t->graph);
    t->graph = NULL;
    return record_graph(t);
}

// The first step is enqueued as it is: what libraries do once they do there.
static ptb_status run_step(ptb_trainer *t)
{
    if (!t->config.graph || t->steps == 0)
        return enqueue(t);
    if (!t->graph)
        PTB_TRY(record_graph(t));
    return launch_graph(t);
}

// The batch moves to the place that the graph reads.
static void place_batch(ptb_trainer *t)
{
    ptb_prefetch_batch *batch = &t->batch;
    size_t tokens = t->rows * (size_t)t->config.micro_batches, bytes = tokens * sizeof *t->input;
    memcpy(t->input, batch->inputs, bytes);
    memcpy(t->input + tokens, batch->targets, bytes);
    if (batch->start)
        memcpy(t->input + 2 * tokens, batch->start, bytes);
    batch->inputs = t->input;
    batch->targets = t->input + tokens;
    batch->start = batch->start ? t->input + 2 * tokens : NULL;
}

// The first step that is not recorded yet, whose update is done.
static void record_step(ptb_trainer *t)
{
    const ptb_optimizer *optimizer = &t->config.optimizer;
    uint64_t step = t->recorded++;
    t->shared = shared_of(t, step);
    t->losses[step] = t->shared->loss;
    t->norms[step] = ptb_optimizer_needs_norm(optimizer)
                         ? t->shared->update.norm
                         : sqrt(t->shared->sum_squares) / (double)t->shared->update.loss_scale;
    t->rates[step] = ptb_optimizer_rate(optimizer, step);
}

static ptb_status record_arrived(ptb_trainer *t)
{
    bool reached = true;
    while (t->recorded < t->steps) {
        if (t->clocks)
            PTB_TRY(ptb_event_query(t->updated[t->recorded % (t->clocks + 1)], &reached));
        if (!reached)
            return PTB_OK;
        record_step(t);
    }
    return PTB_OK;
}

// A place for what the step at hand copies to the host. The update that had it before has arrived with the
// version that the last step computed with, but for these copies behind it.
static ptb_status make_room(ptb_trainer *t)
{
    if (t->steps - t->recorded <= t->clocks)
        return PTB_OK;
    PTB_TRY(ptb_event_sync(t->updated[t->recorded % (t->clocks + 1)]));
    record_step(t);
    return PTB_OK;
}

// With clocks, what data-parallel ranks do goes on.
static ptb_status sync_lanes(ptb_trainer *t)
{
    ptb_status worst = PTB_OK;
    for (int i = PTB_LANE_COMMUNICATION; i <= PTB_LANE_EP; i++) {
        bool is_main = t->lanes.stream[i] == t->communication;
        if (is_main && (i > PTB_LANE_COMMUNICATION || t->clocks))
            continue; // a lane of one rank has no stream of its own
        ptb_status status = ptb_stream_sync(t->lanes.stream[i]);
        worst = worst == PTB_OK ? status : worst;
    }
    return worst;
}

ptb_status ptb_trainer_step(ptb_trainer *t)
{
    if (t->steps == t->config.max_steps) {
        ptb_error("more than %zu training steps in one case", t->config.max_steps);
        return PTB_UNSUPPORTED;
    }
    ptb_span frame = span(t, PTB_SPAN_STEP, PTB_PHASE_NONE, PTB_LANE_MAIN, -1, "step");
    frame.microbatch = -1;
    frame.begin_ns = ptb_clock_ns();
    t->scales[t->steps] = (double)t->shared->update.loss_scale;
    PTB_TRY(make_room(t));
    PTB_TRY(take_batch(t));
    shared_of(t, t->steps)->rate = (float)ptb_optimizer_rate(&t->config.optimizer, t->steps);
    if (t->config.graph)
        place_batch(t);
    PTB_TRY(run_step(t));
    ptb_status computed = ptb_stream_sync(t->compute), communicated = sync_lanes(t);
    frame.end_ns = ptb_clock_ns();
    ptb_trace_record(t->config.trace, &frame);
    t->steps++;
    ptb_status recorded = record_arrived(t);
    if (t->config.alive)
        t->config.alive(t->config.watcher);
    return computed != PTB_OK ? computed : communicated != PTB_OK ? communicated : recorded;
}

ptb_status ptb_trainer_drain(ptb_trainer *t)
{
    if (!t->clocks || t->recorded == t->steps)
        return t->clocks ? ptb_stream_sync(t->communication) : PTB_OK;
    ptb_span frame = span(t, PTB_SPAN_STEP, PTB_PHASE_NONE, PTB_LANE_MAIN, -1, "drain");
    frame.microbatch = -1;
    frame.correlation = t->steps - 1;
    frame.begin_ns = ptb_clock_ns();
    ptb_status status = ptb_stream_sync(t->communication);
    frame.end_ns = ptb_clock_ns();
    ptb_trace_record(t->config.trace, &frame);
    while (t->recorded < t->steps)
        record_step(t);
    return status;
}
