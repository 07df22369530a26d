// Every rank gathers the rows of all ranks, with where each choice went, takes the choices of its own
// experts, and adds what these computed for every row; the sums are reduced and scattered (the all-gather
// dispatcher of Megatron-LM; Rajbhandari et al. 2022, "DeepSpeed-MoE", section 5.2). n C bytes a row in each
// direction whatever is chosen: less than an all-to-all moves when top_k is more than n, and nothing depends
// on counts.
#include "strategies/expert/dispatch.h"

#include <stdlib.h>

typedef struct {
    ptb_expert_axis base;
    void *memory;    // from the communicator; what follows is in it
    void *rows;      /* [n, N, C]: rows of all ranks, or partial sums for them */
    int32_t *words;  /* [n, E + 2 N K]: counts, slots and weights of each rank */
    float *d_weight; /* [n, N, K] */
} all_gather;

static size_t words_of(const ptb_expert_axis *axis)
{
    return (size_t)axis->env.layout->shape.experts + 2 * ptb_expert_choices(axis);
}

static void size(ptb_expert_axis *axis)
{
    size_t received = ptb_expert_received(axis), choices = ptb_expert_ranks(axis) * ptb_expert_choices(axis);
    axis->sizes =
        (ptb_expert_sizes){.received = received, .results = received, .places = choices, .weights = choices};
}

static size_t rows_bytes(const ptb_expert_axis *axis)
{
    size_t elements = ptb_expert_ranks(axis) * axis->env.rows * ptb_expert_width(axis);
    return ptb_expert_lines(elements * ptb_dtype_size(axis->env.type));
}

static size_t words_bytes(const ptb_expert_axis *axis)
{
    return ptb_expert_lines(ptb_expert_ranks(axis) * words_of(axis) * sizeof(int32_t));
}

static size_t all_bytes(const ptb_expert_axis *axis)
{
    size_t weights = ptb_expert_lines(axis->sizes.weights * sizeof(float));
    return rows_bytes(axis) + words_bytes(axis) + weights;
}

static void memory(const ptb_expert_axis *axis, uint64_t bytes[PTB_MEMORY_COUNT])
{
    bytes[PTB_MEMORY_COMMUNICATION] += all_bytes(axis);
}

static void close_all_gather(ptb_expert_axis *axis)
{
    all_gather *a = (all_gather *)axis;
    ptb_lane_free(axis->env.lane, PTB_MEMORY_COMMUNICATION, all_bytes(axis), a->memory);
    free(a);
}

static ptb_status open_all_gather(const ptb_expert_env *env, ptb_expert_axis **axis)
{
    void *state;
    PTB_TRY(
        ptb_world_calloc(env->lane->comm->world, sizeof(all_gather), "the all-gather of experts", &state));
    all_gather *a = state;
    ptb_expert_axis_describe(env, &a->base);
    ptb_status status =
        ptb_lane_alloc(a->base.env.lane, PTB_MEMORY_COMMUNICATION, all_bytes(&a->base), &a->memory);
    if (status != PTB_OK) {
        close_all_gather(&a->base);
        return status;
    }
    a->rows = a->memory;
    a->words = (int32_t *)((char *)a->rows + rows_bytes(&a->base));
    a->d_weight = (float *)((char *)a->words + words_bytes(&a->base));
    *axis = &a->base;
    return PTB_OK;
}

// Bytes of this rank's rows, and where they are among all.
static size_t part_bytes(const all_gather *a)
{
    return a->base.env.rows * ptb_expert_width(&a->base) * ptb_dtype_size(a->base.env.type);
}

static void *part(const all_gather *a)
{
    return (char *)a->rows + (size_t)a->base.env.lane->rank * part_bytes(a);
}

// Enqueued on the lane; in place. all_gather: from each rank's part; reduce_scatter: to it.
static ptb_status call_parts(const all_gather *a, ptb_coll_kind kind, void *parts, size_t part_count,
                             ptb_dtype type, const char *name)
{
    char *mine = (char *)parts + (size_t)a->base.env.lane->rank * part_count * ptb_dtype_size(type);
    ptb_coll call = {.kind = kind,
                     .send = kind == PTB_ALL_GATHER ? mine : parts,
                     .recv = kind == PTB_ALL_GATHER ? parts : mine,
                     .count = ptb_expert_ranks(&a->base) * part_count,
                     .dtype = type,
                     .op = PTB_SUM};
    return ptb_lane_collective(a->base.env.lane, &call, name);
}

static ptb_status gather_rows(const all_gather *a)
{
    return call_parts(a, PTB_ALL_GATHER, a->rows, a->base.env.rows * ptb_expert_width(&a->base),
                      a->base.env.type, "all_gather.there");
}

static ptb_status reduce_rows(const all_gather *a)
{
    PTB_TRY(ptb_lane_fork(a->base.env.lane));
    PTB_TRY(call_parts(a, PTB_REDUCE_SCATTER, a->rows, a->base.env.rows * ptb_expert_width(&a->base),
                       a->base.env.type, "reduce_scatter.back"));
    return ptb_expert_join(&a->base, false);
}

// This rank's block of words: counts, slots, weights.
static ptb_status write_words(const all_gather *a, const ptb_expert_flow *flow)
{
    ptb_stream *compute = ptb_expert_stream(&a->base);
    size_t experts = (size_t)a->base.env.layout->shape.experts, choices = ptb_expert_choices(&a->base);
    int32_t *mine = a->words + (size_t)a->base.env.lane->rank * words_of(&a->base);
    PTB_TRY(ptb_stream_copy(compute, mine, flow->counts, experts * sizeof *mine));
    PTB_TRY(ptb_stream_copy(compute, mine + experts, flow->slot, choices * sizeof *mine));
    return ptb_stream_copy(compute, mine + experts + choices, flow->weight, choices * sizeof *flow->weight);
}

static ptb_status there(ptb_expert_axis *axis, ptb_expert_flow *flow, const void *in)
{
    const all_gather *a = (const all_gather *)axis;
    flow->rows = axis->sizes.received;
    PTB_TRY(write_words(a, flow));
    PTB_TRY(ptb_stream_copy(ptb_expert_stream(axis), part(a), in, part_bytes(a)));
    PTB_TRY(ptb_lane_fork(axis->env.lane));
    PTB_TRY(call_parts(a, PTB_ALL_GATHER, a->words, words_of(axis), PTB_I32, "all_gather.choices"));
    PTB_TRY(gather_rows(a));
    return ptb_expert_join(axis, false);
}

static ptb_status arrive(ptb_expert_axis *axis, ptb_expert_flow *flow, void *dispatched)
{
    const all_gather *a = (const all_gather *)axis;
    const ptb_expert_env *e = &axis->env;
    const ptb_layout *l = e->layout;
    size_t experts = (size_t)l->shape.experts, choices = ptb_expert_choices(axis), n = ptb_expert_ranks(axis);
    PTB_TRY(ptb_expert_join(axis, true));
    ptb_expert_order order = {.place = flow->place,
                              .offsets = flow->offsets,
                              .weights = flow->weights,
                              .slot = a->words + experts,
                              .weight = (const float *)(a->words + experts + choices),
                              .counts = a->words,
                              .sources = n,
                              .elements = n * choices,
                              .block = choices,
                              .stride = words_of(axis),
                              .experts = experts,
                              .first = l->first_expert,
                              .local = (size_t)l->local.experts,
                              .capacity = axis->capacity};
    PTB_TRY(e->kernels->expert_order(ptb_expert_stream(axis), &order));
    return e->kernels->dispatch(ptb_expert_stream(axis), &(ptb_dispatch){.type = e->type,
                                                                         .out = dispatched,
                                                                         .in = a->rows,
                                                                         .slot = flow->place,
                                                                         .rows = n * e->rows,
                                                                         .top_k = (size_t)l->shape.top_k,
                                                                         .width = ptb_expert_width(axis)});
}

static ptb_status back(ptb_expert_axis *axis, ptb_expert_flow *flow, const void *computed)
{
    const all_gather *a = (const all_gather *)axis;
    const ptb_expert_env *e = &axis->env;
    ptb_combine args = {.type = e->type,
                        .out = a->rows,
                        .in = computed,
                        .weight = flow->weights,
                        .slot = flow->place,
                        .rows = ptb_expert_ranks(axis) * e->rows,
                        .top_k = (size_t)e->layout->shape.top_k,
                        .width = ptb_expert_width(axis)};
    PTB_TRY(e->kernels->combine(ptb_expert_stream(axis), &args));
    return reduce_rows(a);
}

static ptb_status combine(ptb_expert_axis *axis, ptb_expert_flow *flow, const void *residual, void *out)
{
    (void)flow;
    const all_gather *a = (const all_gather *)axis;
    PTB_TRY(ptb_expert_join(axis, true));
    if (!out)
        return PTB_OK;
    if (!residual)
        return ptb_stream_copy(ptb_expert_stream(axis), out, part(a), part_bytes(a));
    return axis->env.kernels->add(ptb_expert_stream(axis),
                                  &(ptb_add){.type = axis->env.type,
                                             .out = out,
                                             .a = part(a),
                                             .b = residual,
                                             .count = axis->env.rows * ptb_expert_width(axis)});
}

static ptb_status gradient_there(ptb_expert_axis *axis, ptb_expert_flow *flow, const void *d_out,
                                 float *d_weight)
{
    (void)flow, (void)d_weight; // comes with gradient_arrive
    const all_gather *a = (const all_gather *)axis;
    PTB_TRY(ptb_stream_copy(ptb_expert_stream(axis), part(a), d_out, part_bytes(a)));
    PTB_TRY(ptb_lane_fork(axis->env.lane));
    PTB_TRY(gather_rows(a));
    return ptb_expert_join(axis, false);
}

// Every choice is some rank's: the sum over ranks is the rank's that has its expert.
static ptb_status gradient_arrive(ptb_expert_axis *axis, ptb_expert_flow *flow, float *d_weight,
                                  void *d_computed)
{
    const all_gather *a = (const all_gather *)axis;
    const ptb_expert_env *e = &axis->env;
    size_t choices = ptb_expert_choices(axis);
    PTB_TRY(ptb_expert_join(axis, true));
    ptb_combine_gradient args = {.type = e->type,
                                 .d_in = d_computed,
                                 .d_weight = a->d_weight,
                                 .d_out = a->rows,
                                 .in = flow->results,
                                 .weight = flow->weights,
                                 .slot = flow->place,
                                 .rows = ptb_expert_ranks(axis) * e->rows,
                                 .top_k = (size_t)e->layout->shape.top_k,
                                 .width = ptb_expert_width(axis)};
    PTB_TRY(e->kernels->combine_gradient(ptb_expert_stream(axis), &args));
    PTB_TRY(ptb_lane_fork(e->lane));
    PTB_TRY(call_parts(a, PTB_REDUCE_SCATTER, a->d_weight, choices, PTB_F32, "reduce_scatter.d_weight"));
    PTB_TRY(ptb_lane_join(e->lane));
    return ptb_stream_copy(ptb_expert_stream(axis), d_weight, a->d_weight + (size_t)e->lane->rank * choices,
                           choices * sizeof *d_weight);
}

static ptb_status gradient_back(ptb_expert_axis *axis, ptb_expert_flow *flow, const void *d_dispatched)
{
    const all_gather *a = (const all_gather *)axis;
    const ptb_expert_env *e = &axis->env;
    ptb_dispatch_gradient args = {.type = e->type,
                                  .d_in = a->rows,
                                  .d_out = d_dispatched,
                                  .slot = flow->place,
                                  .rows = ptb_expert_ranks(axis) * e->rows,
                                  .top_k = (size_t)e->layout->shape.top_k,
                                  .width = ptb_expert_width(axis)};
    PTB_TRY(e->kernels->dispatch_gradient(ptb_expert_stream(axis), &args));
    return reduce_rows(a);
}

static ptb_status gradient_leave(ptb_expert_axis *axis, ptb_expert_flow *flow, void *d_in)
{
    return combine(axis, flow, d_in, d_in);
}

static void describe(const ptb_expert_axis *axis, ptb_params *facts)
{
    (void)axis;
    ptb_params_set(facts, "expert_dispatch", "all-gather");
}

static const ptb_expert_dispatch all_gather_dispatch = {
    .plugin = {"all_gather",
               "every rank gathers all rows and takes those of its experts; results are reduce-scattered"},
    .memory_form = "n N (e C + 12 K) + 4 n E",
    .volume_form = "(n-1) (4 e N C + 12 N K + 4 E)",
    .open = open_all_gather,
    .close = close_all_gather,
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
PTB_REGISTER(PTB_KIND_EXPERT_DISPATCH, all_gather_dispatch);
