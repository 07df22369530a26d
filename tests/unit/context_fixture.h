// What the tests of context parallelism share: attention over whole sequences in double precision, and over
// their parts on ranks, which are threads here.
#ifndef PTB_TESTS_UNIT_CONTEXT_FIXTURE_H
#define PTB_TESTS_UNIT_CONTEXT_FIXTURE_H

#include "collectives/world.h"
#include "strategies/context/context.h"
#include "tests/unit/attention_reference.h"

#include <math.h>
#include <stdio.h>

enum { RANKS_MAX = 8 };

// ---- a call over whole sequences, and each rank's part of it

struct rank;
typedef struct {
    const char *way;
    int ranks, degree;
    int64_t batch, heads, kv_heads, head_width, sequence;
    ptb_dtype type;
    float dropout;
    bool packed;
    void (*spy)(
        struct rank *r); // told when the rank's communicator is there; then one pass is computed, not two
    int fault;           // added to the offset of the second piece
} setting;

typedef struct {
    setting s;
    ptb_layout layout;
    int32_t *starts; /* [batch, sequence]; NULL: not packed */
    attention_case whole;
    double volume[RANKS_MAX];
    ptb_status described; // of rank 0
} trial;

// Way, ranks, degree, sequence, sequences, heads of query and of key and value.
#define CASE(name, n, u, tokens, sequences, h, k)                                                            \
    .way = name, .ranks = n, .degree = u, .sequence = tokens, .batch = sequences, .heads = h, .kv_heads = k, \
    .head_width = 6, .type = PTB_F32

// ---- a rank

typedef struct rank {
    const trial *t;
    ptb_world *world;
    ptb_device *device;
    ptb_stream *compute, *stream;
    ptb_timeline timeline;
    ptb_span span; // of compute, where spans are recorded
    ptb_comm *comm;
    ptb_lane lane;
    ptb_context_axis axis;
    ptb_slices slices; // without a fault
    ptb_kernels kernels;
    size_t rows, query, kv, qkv, element;
    void *d_qkv, *values, *out, *d_out, *kept; // device
    float *lse;
    int32_t *starts;
} rank;

static inline size_t position_of(const rank *r, size_t row, size_t *sequence)
{
    const ptb_slices *s = &r->slices;
    size_t piece = row / (r->rows / s->pieces), within = row % (r->rows / s->pieces);
    *sequence = within / s->length;
    return (size_t)s->offset[piece] + within % s->length;
}

// Copies rows of the whole into the rank's order; `width` columns of `from`, whose rows have `stride`, to
// column `column` of rows of `to_stride`; or back.
typedef struct {
    char *rank;
    size_t rank_stride, column;
    char *whole;
    size_t whole_stride, width, element;
} columns;

static inline void copy_rows(const rank *r, columns c, bool back)
{
    for (size_t row = 0; row < r->rows; row++) {
        size_t sequence, position = position_of(r, row, &sequence);
        char *mine = c.rank + (row * c.rank_stride + c.column) * c.element;
        char *theirs =
            c.whole + (sequence * (size_t)r->t->s.sequence + position) * c.whole_stride * c.element;
        if (back)
            memcpy(theirs, mine, c.width * c.element);
        else
            memcpy(mine, theirs, c.width * c.element);
    }
}

// Query, key and value, or their gradients, between a rank's fused rows and the arrays of the whole.
static inline void copy_qkv(const rank *r, void *fused, void *const arrays[ARRAYS], bool back)
{
    size_t column = 0;
    for (array which = QUERY; which <= VALUE; which++) {
        size_t width = which == QUERY ? r->query : r->kv / 2;
        columns c = {fused, r->qkv, column, arrays[which], width, width, r->element};
        copy_rows(r, c, back);
        column += width;
    }
}

static inline void copy_out(const rank *r, void *rows, void *whole, bool back)
{
    copy_rows(r, (columns){rows, r->query, 0, whole, r->query, r->query, r->element}, back);
}

static inline ptb_status upload(rank *r, ptb_memory category, size_t bytes, const void *from, void **to)
{
    PTB_TRY(ptb_device_alloc(r->device, category, bytes + 1, to));
    return from ? ptb_stream_copy(r->compute, *to, from, bytes)
                : ptb_stream_set(r->compute, *to, 0xff, bytes);
}

static inline ptb_status make_arrays(rank *r)
{
    const setting *s = &r->t->s;
    size_t bytes = r->rows * r->qkv * r->element, out_bytes = r->rows * r->query * r->element;
    char *fused = malloc(bytes), *d_out = malloc(out_bytes);
    int32_t *starts = malloc(r->rows * sizeof *starts);
    copy_qkv(r, fused, r->t->whole.values, false);
    copy_out(r, d_out, r->t->whole.gradients[OUT], false);
    if (r->t->starts)
        copy_rows(r, (columns){(char *)starts, 1, 0, (char *)r->t->starts, 1, 1, sizeof *starts}, false);
    ptb_status status = upload(r, PTB_MEMORY_ACTIVATIONS, bytes, fused, &r->values);
    void *lse = NULL, *start = NULL;
    if (status == PTB_OK)
        status = upload(r, PTB_MEMORY_ACTIVATIONS, out_bytes, d_out, &r->d_out);
    if (status == PTB_OK)
        status = upload(r, PTB_MEMORY_ACTIVATIONS, bytes, NULL, &r->d_qkv);
    if (status == PTB_OK)
        status = upload(r, PTB_MEMORY_ACTIVATIONS, out_bytes, NULL, &r->out);
    if (status == PTB_OK)
        status = upload(r, PTB_MEMORY_ACTIVATIONS, r->axis.kept_bytes, NULL, &r->kept);
    if (status == PTB_OK)
        status = upload(r, PTB_MEMORY_ACTIVATIONS, r->rows * (size_t)s->heads * sizeof(float), NULL, &lse);
    if (status == PTB_OK && s->packed)
        status = upload(r, PTB_MEMORY_ACTIVATIONS, r->rows * sizeof *starts, starts, &start);
    r->lse = lse, r->starts = start;
    if (status == PTB_OK)
        status = ptb_stream_sync(r->compute);
    free(fused), free(d_out), free(starts);
    return status;
}

static inline ptb_attention_shape shape_of(const rank *r)
{
    ptb_attention_shape shape = r->t->whole.shape;
    shape.query_stride = shape.key_stride = r->qkv;
    shape.query_start = r->starts;
    shape.workspace = NULL;
    return shape;
}

// Twice: the second time buffers hold what the first has left.
static inline ptb_status compute(rank *r)
{
    ptb_context_forward forward = {shape_of(r), r->values, r->out, r->lse, r->kept};
    ptb_context_backward backward = {shape_of(r), r->d_qkv, r->values, r->out, r->d_out, r->lse, r->kept};
    for (int i = 0; i < (r->t->s.spy ? 1 : 2); i++) {
        r->span.phase = PTB_PHASE_FORWARD;
        PTB_TRY(ptb_timeline_open(&r->timeline, &r->span));
        PTB_TRY(r->axis.ops->forward(&r->axis, &forward));
        r->span.phase = PTB_PHASE_BACKWARD;
        PTB_TRY(ptb_timeline_open(&r->timeline, &r->span));
        PTB_TRY(r->axis.ops->backward(&r->axis, &backward));
        PTB_TRY(ptb_timeline_close(&r->timeline));
    }
    PTB_TRY(ptb_stream_sync(r->compute));
    return ptb_stream_sync(r->stream);
}

static inline ptb_status download(rank *r, trial *t)
{
    size_t bytes = r->rows * r->qkv * r->element, out_bytes = r->rows * r->query * r->element;
    char *fused = malloc(bytes), *out = malloc(out_bytes);
    ptb_status status = ptb_stream_copy(r->compute, fused, r->d_qkv, bytes);
    if (status == PTB_OK)
        status = ptb_stream_copy(r->compute, out, r->out, out_bytes);
    if (status == PTB_OK)
        status = ptb_stream_sync(r->compute);
    copy_qkv(r, fused, t->whole.gradients, true);
    copy_out(r, out, t->whole.values[OUT], true);
    free(fused), free(out);
    return status;
}

static inline ptb_status open_axis(rank *r)
{
    uint64_t before[PTB_MEMORY_COUNT], bytes[PTB_MEMORY_COUNT] = {0};
    memcpy(before, r->device->used_bytes, sizeof before);
    PTB_TRY(ptb_context_open(&r->axis));
    ptb_context_memory(&r->axis, bytes);
    bool holds = test_ledger_is(r->world->rank, r->device->used_bytes, before, bytes);
    return holds ? PTB_OK : PTB_WRONG;
}

static inline ptb_status open_rank(rank *r)
{
    PTB_TRY(ptb_device_open_local(test_device(), r->world, false, &r->device));
    PTB_TRY(ptb_stream_new(r->device, PTB_STREAM_WORKER, 1, &r->compute));
    PTB_TRY(ptb_stream_new(r->device, PTB_STREAM_URGENT, 2, &r->stream));
    PTB_TRY(r->kernels.set_threads(r->compute, 1));
    r->timeline = (ptb_timeline){.stream = r->compute};
    ptb_comm_config config = {.threads = true};
    PTB_TRY(ptb_comm_open(test_comm(), r->world, &config, &r->comm));
    if (r->t->s.spy)
        r->t->s.spy(r);
    return ptb_lane_init(&r->lane, r->comm, PTB_AXIS_CP, &r->timeline, r->stream);
}

static inline void close_rank(rank *r)
{
    ptb_context_close(&r->axis);
    ptb_lane_release(&r->lane);
    ptb_comm_close(r->comm);
    void *memory[] = {r->values, r->d_out, r->d_qkv, r->out, r->kept, r->lse, r->starts};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        ptb_device_free(r->device, memory[i]);
    ptb_stream_free(r->stream);
    ptb_stream_free(r->compute);
    ptb_device_close(r->device);
}

static inline ptb_status run(rank *r, trial *t)
{
    const setting *s = &t->s;
    const ptb_context *way = (const ptb_context *)ptb_registry_need(PTB_KIND_CONTEXT, s->way);
    ptb_context_env env = {.rank = r->world->rank,
                           .size = s->ranks,
                           .degree = s->degree,
                           .kernels = &r->kernels,
                           .layout = &t->layout,
                           .batch = s->batch,
                           .type = s->type,
                           .packed = s->packed,
                           .threads = 1,
                           .lane = &r->lane};
    char reason[PTB_REASON_BYTES];
    ptb_status status = ptb_context_describe(&r->axis, way, &env, reason);
    if (r->world->rank == 0)
        t->described = status;
    if (status != PTB_OK)
        return PTB_OK;
    r->slices = r->axis.slices;
    r->axis.slices.offset[1] += s->fault;
    r->rows = (size_t)(s->batch * s->sequence / s->ranks);
    PTB_TRY(open_rank(r));
    PTB_TRY(open_axis(r));
    PTB_TRY(make_arrays(r));
    PTB_TRY(compute(r));
    t->volume[r->world->rank] = r->lane.moved.volume_bytes;
    return download(r, t);
}

static inline ptb_status rank_main(ptb_world *world, void *arg)
{
    trial *t = arg;
    const setting *s = &t->s;
    rank r = {.t = t, .world = world, .kernels = *test_kernels(), .element = ptb_dtype_size(s->type)};
    r.query = (size_t)(s->heads * s->head_width);
    r.kv = (size_t)(2 * s->kv_heads * s->head_width);
    r.qkv = r.query + r.kv;
    ptb_status status = ptb_world_agree(world, run(&r, t));
    close_rank(&r);
    return status;
}

// ---- trials

static inline void trial_init(trial *t, setting s)
{
    *t = (trial){.s = s};
    ptb_model_shape model = {.layers = 1,
                             .hidden = s.heads * s.head_width,
                             .heads = s.heads,
                             .kv_heads = s.kv_heads,
                             .sequence = s.sequence,
                             .vocabulary = 5,
                             .dropout = (double)s.dropout};
    assert_int_equal(ptb_layout_init(&t->layout, &model, NULL), PTB_OK);
    size_t rows = (size_t)(s.batch * s.sequence);
    t->starts = s.packed ? malloc(rows * sizeof *t->starts) : NULL;
    for (size_t i = 0; i < rows && s.packed;
         i++) { // documents of 7 tokens; the second sequence's are shifted
        size_t position = i % (size_t)s.sequence, shift = i / (size_t)s.sequence * 3;
        t->starts[i] = position < shift ? 0 : (int32_t)((position - shift) / 7 * 7 + shift);
    }
    ptb_attention_shape shape = {.batch = (size_t)s.batch,
                                 .heads = (size_t)s.heads,
                                 .kv_heads = (size_t)s.kv_heads,
                                 .head_width = (size_t)s.head_width,
                                 .query_length = (size_t)s.sequence,
                                 .key_length = (size_t)s.sequence,
                                 .query_stride = (size_t)(s.heads * s.head_width),
                                 .key_stride = (size_t)(s.kv_heads * s.head_width),
                                 .query_start = t->starts,
                                 .causal = true,
                                 .type = s.type,
                                 .total_length = (size_t)s.sequence,
                                 .dropout_rate = s.dropout,
                                 .dropout_seed = 77,
                                 .dropout_sequence = 3,
                                 .dropout_head = 4};
    test_memory_device = NULL;
    case_init(&t->whole, shape);
}

static inline void trial_release(trial *t)
{
    case_release(&t->whole);
    ptb_layout_release(&t->layout);
    free(t->starts);
}

// The largest distance of output and gradients from double precision.
static inline double error_of(trial *t)
{
    reference *r = &t->whole.reference;
    for (array which = QUERY; which <= VALUE; which++)
        memset(r->gradients[which], 0, r->count[which] * sizeof(double));
    reference_forward(r);
    reference_gradient(r);
    ptb_dtype type = t->s.type;
    double worst = distance_of(type, t->whole.values[OUT], r->values[OUT], r->count[OUT]);
    for (array which = QUERY; which <= VALUE; which++)
        worst =
            fmax(worst, distance_of(type, t->whole.gradients[which], r->gradients[which], r->count[which]));
    return worst;
}

#endif
