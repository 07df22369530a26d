// Rows to the ranks of their experts by an all-to-all: a rank puts its rows in order of expert, so that those
// of each rank lie together; every rank puts what it got, which is in order of source, in order of its
// experts.
//
// With a capacity factor (GShard), blocks have as many rows as L experts can take, whatever they are filled
// with, and the host need not know. Drop-less, a rank sends as many rows as chose the other's experts
// (all-to-all-v, as Megatron-LM's dispatcher does): the ranks tell each other how many those are, and the
// host waits for that in every layer.
#include "strategies/expert/dispatch.h"

#include <stdlib.h>

enum { SEND, SEND_FIRST, RECEIVE, RECEIVE_FIRST }; // the lists of a flow

typedef struct {
    ptb_expert_axis base;
    void *memory;      // from the communicator; what follows is in it
    void *mine;        /* [slots, C]: of this rank's rows, in order of expert */
    void *arrived;     /* [places, C]: of this rank's experts, in order of source */
    int32_t *told;     /* [E]: choices of this rank, those of each rank's experts a block */
    int32_t *heard;    /* [n, L]: choices of each rank for this rank's experts */
    int32_t *host;     /* [2, E]: told, heard; host memory */
    bool is_under_way; // counts are, of which rows must follow
} all_to_all;

static size_t experts_of(const ptb_expert_axis *axis)
{
    return (size_t)axis->env.layout->shape.experts;
}

// Rows that a rank sends, padding included.
static size_t slots_of(const ptb_expert_axis *axis)
{
    return axis->capacity ? axis->capacity * experts_of(axis) : ptb_expert_choices(axis);
}

// Rows of a block, with capacity.
static size_t block_of(const ptb_expert_axis *axis)
{
    return axis->capacity * (size_t)axis->env.layout->local.experts;
}

static void size(ptb_expert_axis *axis)
{
    size_t received = ptb_expert_received(axis);
    axis->sizes =
        (ptb_expert_sizes){.received = received,
                           .results = slots_of(axis),
                           .places = axis->capacity ? ptb_expert_ranks(axis) * block_of(axis) : received,
                           .part = axis->capacity ? (size_t)axis->env.layout->local.experts : 0,
                           .apart = true,
                           .waits = !axis->capacity};
}

static size_t rows_bytes(const ptb_expert_axis *axis, size_t rows)
{
    return ptb_expert_lines(rows * ptb_expert_width(axis) * ptb_dtype_size(axis->env.type));
}

static size_t counts_bytes(const ptb_expert_axis *axis)
{
    return ptb_expert_lines(experts_of(axis) * sizeof(int32_t));
}

static size_t all_bytes(const ptb_expert_axis *axis)
{
    return rows_bytes(axis, slots_of(axis)) + rows_bytes(axis, axis->sizes.places) + 2 * counts_bytes(axis);
}

static void memory(const ptb_expert_axis *axis, uint64_t bytes[PTB_MEMORY_COUNT])
{
    bytes[PTB_MEMORY_COMMUNICATION] += all_bytes(axis);
}

static void close_all_to_all(ptb_expert_axis *axis)
{
    all_to_all *a = (all_to_all *)axis;
    ptb_lane_free(axis->env.lane, PTB_MEMORY_COMMUNICATION, all_bytes(axis), a->memory);
    ptb_device_free_host(axis->env.device, a->host);
    free(a);
}

static ptb_status allocate(all_to_all *a)
{
    const ptb_expert_env *e = &a->base.env;
    PTB_TRY(ptb_lane_alloc(a->base.env.lane, PTB_MEMORY_COMMUNICATION, all_bytes(&a->base), &a->memory));
    char *at = a->memory;
    a->mine = at;
    at += rows_bytes(&a->base, slots_of(&a->base));
    a->arrived = at;
    at += rows_bytes(&a->base, a->base.sizes.places);
    a->told = (int32_t *)at;
    a->heard = (int32_t *)(at + counts_bytes(&a->base));
    size_t bytes = 2 * experts_of(&a->base) * sizeof(int32_t);
    ptb_status status = ptb_device_alloc_host(e->device, bytes, (void **)&a->host);
    return ptb_world_agree(e->lane->comm->world, status);
}

static ptb_status open_all_to_all(const ptb_expert_env *env, ptb_expert_axis **axis)
{
    void *state;
    PTB_TRY(
        ptb_world_calloc(env->lane->comm->world, sizeof(all_to_all), "the all-to-all of experts", &state));
    all_to_all *a = state;
    ptb_expert_axis_describe(env, &a->base);
    ptb_status status = allocate(a);
    if (status != PTB_OK) {
        close_all_to_all(&a->base);
        return status;
    }
    *axis = &a->base;
    return PTB_OK;
}

// Rows from one side to the other.
static ptb_status exchange(all_to_all *a, const ptb_expert_flow *flow, const void *send, void *recv,
                           bool back)
{
    const ptb_expert_axis *axis = &a->base;
    size_t n = ptb_expert_ranks(axis), places = axis->sizes.places, slots = slots_of(axis);
    ptb_coll call = {.kind = axis->capacity ? PTB_ALL_TO_ALL : PTB_ALL_TO_ALL_V,
                     .send = send,
                     .recv = recv,
                     .count = (places > slots ? places : slots) * ptb_expert_width(axis),
                     .dtype = axis->env.type};
    if (!axis->capacity) {
        call.send_counts = flow->lists + n * (back ? RECEIVE : SEND);
        call.send_first = flow->lists + n * (back ? RECEIVE_FIRST : SEND_FIRST);
        call.recv_counts = flow->lists + n * (back ? SEND : RECEIVE);
        call.recv_first = flow->lists + n * (back ? SEND_FIRST : RECEIVE_FIRST);
    }
    return ptb_lane_collective(axis->env.lane, &call, back ? "all_to_all.back" : "all_to_all.there");
}

static ptb_status exchange_begin(all_to_all *a, const ptb_expert_flow *flow, const void *send, void *recv,
                                 bool back)
{
    PTB_TRY(ptb_lane_fork(a->base.env.lane));
    PTB_TRY(exchange(a, flow, send, recv, back));
    return ptb_expert_join(&a->base, false);
}

// Enqueued on the lane.
static ptb_status tell_counts(all_to_all *a)
{
    const ptb_expert_axis *axis = &a->base;
    ptb_lane *lane = axis->env.lane;
    size_t experts = experts_of(axis), bytes = experts * sizeof(int32_t);
    ptb_coll call = {
        .kind = PTB_ALL_TO_ALL, .send = a->told, .recv = a->heard, .count = experts, .dtype = PTB_I32};
    PTB_TRY(ptb_lane_collective(lane, &call, "all_to_all.counts"));
    if (axis->capacity)
        return PTB_OK;
    PTB_TRY(ptb_stream_copy(lane->stream, a->host, a->told, bytes));
    return ptb_stream_copy(lane->stream, a->host + experts, a->heard, bytes);
}

// A list of how much and where it begins, from the counts of each rank's block.
static size_t make_list(const ptb_expert_axis *axis, const int32_t *counts /* [n, L] */, size_t *count,
                        size_t *first)
{
    size_t local = (size_t)axis->env.layout->local.experts, width = ptb_expert_width(axis), sum = 0;
    for (size_t r = 0; r < ptb_expert_ranks(axis); r++) {
        size_t rows = 0;
        for (size_t e = 0; e < local; e++)
            rows += (size_t)counts[r * local + e];
        count[r] = rows * width;
        first[r] = sum * width;
        sum += rows;
    }
    return sum;
}

// Waits for the counts, which are the last that the lane has to do, and sends the rows. A rank that is lost
// ends the wait, as everywhere that the host waits for a stream. The lists may be written: what was enqueued
// with them before has passed.
static ptb_status send_counted(all_to_all *a, ptb_expert_flow *flow)
{
    const ptb_expert_axis *axis = &a->base;
    size_t n = ptb_expert_ranks(axis);
    a->is_under_way = false;
    PTB_TRY(ptb_stream_sync(axis->env.lane->stream));
    make_list(axis, a->host, flow->lists + n * SEND, flow->lists + n * SEND_FIRST);
    flow->rows = make_list(axis, a->host + experts_of(axis), flow->lists + n * RECEIVE,
                           flow->lists + n * RECEIVE_FIRST);
    return exchange(a, flow, a->mine, a->arrived, false);
}

static ptb_status there(ptb_expert_axis *axis, ptb_expert_flow *flow, const void *in)
{
    all_to_all *a = (all_to_all *)axis;
    const ptb_expert_env *e = &axis->env;
    ptb_stream *compute = ptb_expert_stream(axis);
    flow->rows = axis->sizes.received;
    PTB_TRY(ptb_stream_copy(compute, a->told, flow->counts, experts_of(axis) * sizeof(int32_t)));
    PTB_TRY(e->kernels->dispatch(compute, &(ptb_dispatch){.type = e->type,
                                                          .out = a->mine,
                                                          .in = in,
                                                          .slot = flow->slot,
                                                          .rows = e->rows,
                                                          .top_k = (size_t)e->layout->shape.top_k,
                                                          .width = ptb_expert_width(axis)}));
    PTB_TRY(ptb_lane_fork(e->lane));
    PTB_TRY(tell_counts(a));
    a->is_under_way = !axis->capacity;
    if (axis->capacity)
        PTB_TRY(exchange(a, flow, a->mine, a->arrived, false));
    else if (!e->overlap)
        PTB_TRY(send_counted(a, flow));
    return ptb_expert_join(axis, false);
}

// Elements of `arrived` and `place`.
static size_t places_now(const ptb_expert_axis *axis, const ptb_expert_flow *flow)
{
    return axis->capacity ? axis->sizes.places : flow->rows;
}

// What arrived in order of expert.
static ptb_status sort(const all_to_all *a, const ptb_expert_flow *flow, void *out)
{
    const ptb_expert_env *e = &a->base.env;
    return e->kernels->dispatch(ptb_expert_stream(&a->base),
                                &(ptb_dispatch){.type = e->type,
                                                .out = out,
                                                .in = a->arrived,
                                                .slot = flow->place,
                                                .rows = places_now(&a->base, flow),
                                                .top_k = 1,
                                                .width = ptb_expert_width(&a->base)});
}

// And into the order in which it arrived; padding becomes 0.
static ptb_status sort_back(const all_to_all *a, const ptb_expert_flow *flow, const void *in)
{
    const ptb_expert_env *e = &a->base.env;
    ptb_dispatch_gradient args = {.type = e->type,
                                  .d_in = a->arrived,
                                  .d_out = in,
                                  .slot = flow->place,
                                  .rows = places_now(&a->base, flow),
                                  .top_k = 1,
                                  .width = ptb_expert_width(&a->base)};
    return e->kernels->dispatch_gradient(ptb_expert_stream(&a->base), &args);
}

static ptb_status arrive(ptb_expert_axis *axis, ptb_expert_flow *flow, void *dispatched)
{
    all_to_all *a = (all_to_all *)axis;
    const ptb_expert_env *e = &axis->env;
    size_t local = (size_t)e->layout->local.experts;
    if (a->is_under_way)
        PTB_TRY(send_counted(a, flow));
    PTB_TRY(ptb_expert_join(axis, true));
    ptb_expert_order order = {.place = flow->place,
                              .offsets = flow->offsets,
                              .counts = a->heard,
                              .sources = ptb_expert_ranks(axis),
                              .elements = places_now(axis, flow),
                              .block = block_of(axis),
                              .stride = local,
                              .experts = local,
                              .local = local,
                              .capacity = axis->capacity};
    PTB_TRY(e->kernels->expert_order(ptb_expert_stream(axis), &order));
    return sort(a, flow, dispatched);
}

static ptb_status back(ptb_expert_axis *axis, ptb_expert_flow *flow, const void *computed)
{
    all_to_all *a = (all_to_all *)axis;
    PTB_TRY(sort_back(a, flow, computed));
    return exchange_begin(a, flow, a->arrived, flow->results, true);
}

static ptb_status combine(ptb_expert_axis *axis, ptb_expert_flow *flow, const void *residual, void *out)
{
    const ptb_expert_env *e = &axis->env;
    PTB_TRY(ptb_expert_join(axis, true));
    if (!out)
        return PTB_OK;
    return e->kernels->combine(ptb_expert_stream(axis),
                               &(ptb_combine){.type = e->type,
                                              .out = out,
                                              .in = flow->results,
                                              .weight = flow->weight,
                                              .slot = flow->slot,
                                              .residual = residual,
                                              .rows = e->rows,
                                              .top_k = (size_t)e->layout->shape.top_k,
                                              .width = ptb_expert_width(axis)});
}

static ptb_status gradient_there(ptb_expert_axis *axis, ptb_expert_flow *flow, const void *d_out,
                                 float *d_weight)
{
    all_to_all *a = (all_to_all *)axis;
    const ptb_expert_env *e = &axis->env;
    ptb_combine_gradient args = {.type = e->type,
                                 .d_in = a->mine,
                                 .d_weight = d_weight,
                                 .d_out = d_out,
                                 .in = flow->results,
                                 .weight = flow->weight,
                                 .slot = flow->slot,
                                 .rows = e->rows,
                                 .top_k = (size_t)e->layout->shape.top_k,
                                 .width = ptb_expert_width(axis)};
    PTB_TRY(e->kernels->combine_gradient(ptb_expert_stream(axis), &args));
    return exchange_begin(a, flow, a->mine, a->arrived, false);
}

static ptb_status gradient_arrive(ptb_expert_axis *axis, ptb_expert_flow *flow, float *d_weight,
                                  void *d_computed)
{
    (void)d_weight; // complete since gradient_there
    PTB_TRY(ptb_expert_join(axis, true));
    return sort((all_to_all *)axis, flow, d_computed);
}

static ptb_status gradient_back(ptb_expert_axis *axis, ptb_expert_flow *flow, const void *d_dispatched)
{
    all_to_all *a = (all_to_all *)axis;
    PTB_TRY(sort_back(a, flow, d_dispatched));
    return exchange_begin(a, flow, a->arrived, a->mine, true);
}

static ptb_status gradient_leave(ptb_expert_axis *axis, ptb_expert_flow *flow, void *d_in)
{
    const all_to_all *a = (const all_to_all *)axis;
    const ptb_expert_env *e = &axis->env;
    PTB_TRY(ptb_expert_join(axis, true));
    ptb_dispatch_gradient args = {.type = e->type,
                                  .d_in = d_in,
                                  .d_out = a->mine,
                                  .slot = flow->slot,
                                  .rows = e->rows,
                                  .top_k = (size_t)e->layout->shape.top_k,
                                  .width = ptb_expert_width(axis),
                                  .accumulate = true};
    return e->kernels->dispatch_gradient(ptb_expert_stream(axis), &args);
}

static void describe(const ptb_expert_axis *axis, ptb_params *facts)
{
    ptb_params_set(facts, "expert_dispatch", "%s", axis->capacity ? "all-to-all of blocks" : "all-to-all-v");
    if (axis->capacity)
        ptb_params_set(facts, "expert_block_rows", "%zu", block_of(axis));
}

static const ptb_expert_dispatch all_to_all_dispatch = {
    .plugin = {"all_to_all", "rows travel to the ranks of their experts and results back; with a capacity "
                             "factor in blocks of fixed size"},
    .memory_form = "e C (S + P) + 8 E; S = N K, P = n N min(K, L), with capacity both E c",
    .volume_form = "2 e C (rows sent + received) + 4 (n-1)/n E; with capacity 4 (n-1)/n (e C E c + E)",
    .open = open_all_to_all,
    .close = close_all_to_all,
    .size = size,
    .memory = memory,
    .there = there,
    .arrive = arrive,
    .back = back,
    .combine = combine,
    .gradient_there = gradient_there,
    .gradient_arrive = gradient_arrive,
    .gradient_back = gradient_back,
    .gradient_leave = gradient_leave,
    .describe = describe,
};
PTB_REGISTER(PTB_KIND_EXPERT_DISPATCH, all_to_all_dispatch);
