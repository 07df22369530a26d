// Attention over sequences that are split over ranks, which are threads here: every way to do it, on several
// numbers of ranks, against attention over whole sequences in double precision; what it sends and allocates
// against closed forms; and that blocks travel around the ring while others are computed.
#include "collectives/world.h"
#include "strategies/backends.h"
#include "strategies/context/context.h"
#include "tests/unit/attention_reference.h"

#include <math.h>
#include <stdio.h>
#include <unistd.h>

enum { RANKS_MAX = 8 };

// ---- a call over whole sequences, and each rank's part of it

typedef struct {
    const char *way;
    int ranks, degree;
    int64_t batch, heads, kv_heads, head_width, sequence;
    ptb_dtype type;
    float dropout;
    bool packed, spied;
    int fault; // added to the offset of the second piece
} setting;

typedef struct {
    setting s;
    ptb_layout layout;
    int32_t *starts; /* [batch, sequence]; NULL: not packed */
    attention_case whole;
    double volume[RANKS_MAX];
    ptb_status described; // of rank 0
} trial;

static const ptb_kernels *kernels_of_device(void)
{
    return (const ptb_kernels *)ptb_registry_find(PTB_KIND_KERNELS, test_device());
}

static const char *comm_name(void)
{
    const char *name = "local";
    if (!test_on_host())
        (void)ptb_backends_comm(test_device(), &name);
    return name;
}

// ---- a rank

typedef struct {
    const trial *t;
    ptb_world *world;
    ptb_device *device;
    ptb_stream *compute, *stream;
    ptb_timeline timeline;
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

static size_t position_of(const rank *r, size_t row, size_t *sequence)
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

static void copy_rows(const rank *r, columns c, bool back)
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
static void copy_qkv(const rank *r, void *fused, void *const arrays[ARRAYS], bool back)
{
    size_t column = 0;
    for (array which = QUERY; which <= VALUE; which++) {
        size_t width = which == QUERY ? r->query : r->kv / 2;
        columns c = {fused, r->qkv, column, arrays[which], width, width, r->element};
        copy_rows(r, c, back);
        column += width;
    }
}

static void copy_out(const rank *r, void *rows, void *whole, bool back)
{
    copy_rows(r, (columns){rows, r->query, 0, whole, r->query, r->query, r->element}, back);
}

static ptb_status upload(rank *r, ptb_memory category, size_t bytes, const void *from, void **to)
{
    PTB_TRY(ptb_device_alloc(r->device, category, bytes + 1, to));
    return from ? ptb_stream_copy(r->compute, *to, from, bytes)
                : ptb_stream_set(r->compute, *to, 0xff, bytes);
}

static ptb_status make_arrays(rank *r)
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

static ptb_attention_shape shape_of(const rank *r)
{
    ptb_attention_shape shape = r->t->whole.shape;
    shape.query_stride = shape.key_stride = r->qkv;
    shape.query_start = r->starts;
    shape.workspace = NULL;
    return shape;
}

// Twice: the second time buffers hold what the first has left.
static ptb_status compute(rank *r)
{
    ptb_context_forward forward = {shape_of(r), r->values, r->out, r->lse, r->kept};
    ptb_context_backward backward = {shape_of(r), r->d_qkv, r->values, r->out, r->d_out, r->lse, r->kept};
    for (int i = 0; i < (r->t->s.spied ? 1 : 2); i++) {
        PTB_TRY(r->axis.ops->forward(&r->axis, &forward));
        PTB_TRY(r->axis.ops->backward(&r->axis, &backward));
    }
    PTB_TRY(ptb_stream_sync(r->compute));
    return ptb_stream_sync(r->stream);
}

static ptb_status download(rank *r, trial *t)
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

// cmocka's assertions are for its own thread; here problems become statuses.
static ptb_status open_axis(rank *r)
{
    uint64_t before[PTB_MEMORY_COUNT], bytes[PTB_MEMORY_COUNT] = {0};
    memcpy(before, r->device->used_bytes, sizeof before);
    PTB_TRY(ptb_context_open(&r->axis));
    ptb_context_memory(&r->axis, bytes);
    for (int i = 0; i < PTB_MEMORY_COUNT; i++)
        if (bytes[i] != r->device->used_bytes[i] - before[i]) {
            print_error("%s: %llu bytes, %llu predicted\n", ptb_memory_name((ptb_memory)i),
                        (unsigned long long)(r->device->used_bytes[i] - before[i]),
                        (unsigned long long)bytes[i]);
            return PTB_WRONG;
        }
    return PTB_OK;
}

static void spy_on(rank *r);

static ptb_status open_rank(rank *r)
{
    PTB_TRY(ptb_device_open_local(test_device(), r->world, false, &r->device));
    PTB_TRY(ptb_stream_new(r->device, PTB_STREAM_WORKER, 1, &r->compute));
    PTB_TRY(ptb_stream_new(r->device, PTB_STREAM_URGENT, 2, &r->stream));
    PTB_TRY(r->kernels.set_threads(r->compute, 1));
    r->timeline = (ptb_timeline){.stream = r->compute};
    ptb_comm_config config = {.threads = true};
    PTB_TRY(ptb_comm_open(comm_name(), r->world, &config, &r->comm));
    if (r->t->s.spied)
        spy_on(r);
    return ptb_lane_init(&r->lane, r->comm, PTB_AXIS_CP, &r->timeline, r->stream);
}

static void close_rank(rank *r)
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

static ptb_status run(rank *r, trial *t)
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

static ptb_status rank_main(ptb_world *world, void *arg)
{
    trial *t = arg;
    const setting *s = &t->s;
    rank r = {.t = t, .world = world, .kernels = *kernels_of_device(), .element = ptb_dtype_size(s->type)};
    r.query = (size_t)(s->heads * s->head_width);
    r.kv = (size_t)(2 * s->kv_heads * s->head_width);
    r.qkv = r.query + r.kv;
    ptb_status status = ptb_world_agree(world, run(&r, t));
    close_rank(&r);
    return status;
}

// ---- trials

static void trial_init(trial *t, setting s)
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

static void trial_release(trial *t)
{
    case_release(&t->whole);
    ptb_layout_release(&t->layout);
    free(t->starts);
}

// The largest distance of output and gradients from double precision.
static double error_of(trial *t)
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

// Bytes that a rank sends in one forward and backward pass.
static double volume_of(const setting *s)
{
    double e = (double)ptb_dtype_size(s->type), n = s->ranks, u = s->degree,
           rows = (double)(s->batch * s->sequence) / n;
    double query = (double)(s->heads * s->head_width), kv = 2 * (double)(s->kv_heads * s->head_width);
    if (strcmp(s->way, "all_gather") == 0)
        return (n - 1) * rows * kv * (2 * e + 4);
    u = strcmp(s->way, "ring") == 0 ? 1 : strcmp(s->way, "all_to_all") == 0 ? n : u;
    double copies = u > (double)s->kv_heads ? u / (double)s->kv_heads : 1, ring = n / u;
    double heads = 2 * (u - 1) * e * rows * (2 * query + kv * copies) / u;
    double starts = s->packed ? 4 * (u - 1) * rows : 0;
    double around = ring > 1 ? ((ring - 1) * 2 * e + ring * 4) * u * rows * kv * copies / u : 0;
    return heads + starts + around;
}

static void check(setting s)
{
    trial t;
    trial_init(&t, s);
    assert_int_equal(ptb_world_run_local(s.ranks, NULL, rank_main, &t), PTB_OK);
    assert_int_equal(t.described, PTB_OK);
    double error = error_of(&t), limit = s.type == PTB_F32 ? 3e-6 : s.type == PTB_BF16 ? 8e-3 : 1e-3;
    if (!(error < limit))
        fail_msg("%s of %d ranks, degree %d: relative error %g", s.way, s.ranks, s.degree, error);
    for (int r = 0; r < s.ranks; r++)
        if (fabs(t.volume[r] - 2 * volume_of(&s)) > 1e-6)
            fail_msg("%s of %d ranks sent %g bytes twice, the closed form says %g", s.way, s.ranks,
                     t.volume[r] / 2, volume_of(&s));
    trial_release(&t);
}

// Way, ranks, degree, sequence, sequences, heads of query and of key and value.
#define CASE(name, n, u, tokens, sequences, h, k)                                                            \
    .way = name, .ranks = n, .degree = u, .sequence = tokens, .batch = sequences, .heads = h, .kv_heads = k, \
    .head_width = 6, .type = PTB_F32

static void check_all(setting s)
{
    check(s);
    s.dropout = 0.25f;
    s.packed = true;
    check(s);
    for (size_t i = 0; i < 2; i++) {
        s.type = i ? PTB_BF16 : PTB_F16;
        check(s);
    }
}

static void test_ring(void **state)
{
    (void)state;
    check_all((setting){CASE("ring", 2, 0, 44, 2, 4, 4)});
    check_all((setting){CASE("ring", 3, 0, 66, 2, 3, 1)});
    check((setting){CASE("ring", 4, 0, 160, 1, 4, 2)});
    check((setting){CASE("ring", 8, 0, 16, 2, 4, 4), .packed = true});
    check((setting){CASE("ring", 1, 0, 20, 2, 4, 4)});
}

static void test_all_gather(void **state)
{
    (void)state;
    check_all((setting){CASE("all_gather", 2, 0, 44, 2, 4, 4)});
    check_all((setting){CASE("all_gather", 3, 0, 66, 2, 3, 1)});
    check((setting){CASE("all_gather", 4, 0, 160, 1, 4, 2)});
    check((setting){CASE("all_gather", 8, 0, 16, 2, 4, 4), .packed = true});
}

static void test_all_to_all(void **state)
{
    (void)state;
    check_all((setting){CASE("all_to_all", 2, 0, 46, 2, 4, 4)});
    check_all((setting){CASE("all_to_all", 3, 0, 33, 2, 6, 3)});
    check_all((setting){CASE("all_to_all", 4, 0, 20, 2, 4, 2)}); // copies
    check((setting){CASE("all_to_all", 8, 0, 64, 2, 8, 1)});
}

static void test_ring_all_to_all(void **state)
{
    (void)state;
    check_all((setting){CASE("ring_all_to_all", 4, 2, 48, 2, 4, 4)});
    check((setting){CASE("ring_all_to_all", 8, 2, 64, 2, 4, 1)});
    check((setting){CASE("ring_all_to_all", 8, 4, 64, 2, 4, 2), .packed = true});
    check((setting){CASE("ring_all_to_all", 6, 2, 36, 2, 4, 4)});
    check((setting){CASE("ring_all_to_all", 2, 2, 36, 2, 4, 4)}); // one group
    check((setting){CASE("ring_all_to_all", 3, 1, 36, 2, 4, 4)}); // no groups
}

// ---- overlap, on the host, whose streams take calls: compute of every step waits until the transfer that
// belongs beside it is complete. Were the transfer enqueued behind compute, neither would ever go on.

static struct {
    _Atomic int transfers; // complete
    int calls;             // of attention and its gradient, enqueued
    int size;
} spy[RANKS_MAX];
static _Thread_local int spy_rank;
static ptb_comm_ops spied_ops; // the same for all ranks
static const ptb_comm_ops *real_ops;
static const ptb_kernels *real_kernels;

typedef struct {
    int rank, transfers;
} spy_call;

static ptb_status count_transfer(void *arg)
{
    spy[((spy_call *)arg)->rank].transfers++;
    return PTB_OK;
}

static ptb_status wait_for_transfers(void *arg)
{
    const spy_call *c = arg;
    for (int i = 0; i < 20000; i++) {
        if (spy[c->rank].transfers >= c->transfers)
            return PTB_OK;
        usleep(1000);
    }
    print_error("rank %d: compute waited in vain for transfer %d\n", c->rank, c->transfers);
    return PTB_LOST;
}

static ptb_status spied_group_end(ptb_comm *comm, ptb_stream *stream)
{
    PTB_TRY(real_ops->group_end(comm, stream));
    spy_call call = {.rank = comm->rank};
    return ptb_stream_call(stream, count_transfer, &call, sizeof call);
}

// Steps of two calls, but three in the first one.
static int step_of(int call)
{
    return call < 3 ? 0 : (call - 1) / 2;
}

// Forward: block s + 1 arrives beside step s. Backward: it and the gradients of block s.
static ptb_status spied_attention(ptb_stream *stream, const ptb_attention *args)
{
    int step = step_of(spy[spy_rank].calls++), last = spy[spy_rank].size - 1;
    spy_call call = {.rank = spy_rank, .transfers = step < last ? step + 1 : last};
    PTB_TRY(ptb_stream_call(stream, wait_for_transfers, &call, sizeof call));
    return real_kernels->attention(stream, args);
}

static ptb_status spied_gradient(ptb_stream *stream, const ptb_attention_gradient *args)
{
    int size = spy[spy_rank].size, forward_calls = 2 * size + 1, last = size - 1;
    int step = step_of(spy[spy_rank].calls++ - forward_calls);
    spy_call call = {.rank = spy_rank, .transfers = last + (step < last ? 2 * step + 1 : 2 * last)};
    PTB_TRY(ptb_stream_call(stream, wait_for_transfers, &call, sizeof call));
    return real_kernels->attention_gradient(stream, args);
}

static void spy_on(rank *r)
{
    spy_rank = r->world->rank;
    spy[spy_rank].size = r->world->size;
    r->kernels.attention = spied_attention;
    r->kernels.attention_gradient = spied_gradient;
    r->comm->ops = &spied_ops;
}

static void test_overlap(void **state)
{
    (void)state;
    if (!test_on_host())
        return;
    real_kernels = kernels_of_device();
    real_ops = (const ptb_comm_ops *)ptb_registry_find(PTB_KIND_COMM, "local");
    spied_ops = *real_ops;
    spied_ops.group_end = spied_group_end;
    setting s = {CASE("ring", 3, 0, 36, 2, 4, 4), .spied = true};
    trial t;
    memset(spy, 0, sizeof spy);
    trial_init(&t, s);
    assert_int_equal(ptb_world_run_local(s.ranks, NULL, rank_main, &t), PTB_OK);
    assert_true(error_of(&t) < 3e-6);
    for (int r = 0; r < s.ranks; r++) {
        assert_int_equal(spy[r].transfers, (s.ranks - 1) + (s.ranks - 1) + s.ranks);
        assert_int_equal(spy[r].calls, 2 * (2 * s.ranks + 1)); // every rank the same
    }
    trial_release(&t);
}

// ---- what cannot be divided, and faults

static ptb_status described(setting s)
{
    trial t;
    trial_init(&t, s);
    ptb_context_env env = {.size = s.ranks,
                           .degree = s.degree,
                           .kernels = kernels_of_device(),
                           .layout = &t.layout,
                           .batch = s.batch,
                           .threads = 1,
                           .type = s.type};
    ptb_context_axis axis;
    char reason[PTB_REASON_BYTES] = "";
    ptb_status status = ptb_context_describe(
        &axis, (const ptb_context *)ptb_registry_need(PTB_KIND_CONTEXT, s.way), &env, reason);
    assert_true(status == PTB_OK || strstr(reason, "divide") || strstr(reason, "remainder"));
    trial_release(&t);
    return status;
}

static void test_refused(void **state)
{
    (void)state;
    const setting bad[] = {
        {CASE("ring", 4, 0, 36, 2, 4, 4)},
        {CASE("all_gather", 3, 0, 33, 2, 4, 4)},
        {CASE("all_to_all", 4, 0, 38, 2, 4, 4)},
        {CASE("all_to_all", 3, 0, 36, 2, 4, 4)},  // heads
        {CASE("all_to_all", 4, 0, 36, 2, 12, 6)}, // of key and value
        {CASE("ring_all_to_all", 4, 3, 48, 2, 4, 4)},
        {CASE("ring_all_to_all", 3, 0, 36, 2, 4, 4)},
        {CASE("ring_all_to_all", 6, 3, 36, 2, 4, 4)},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(described(bad[i]), PTB_USAGE);
    assert_int_equal(described((setting){CASE("ring_all_to_all", 6, 0, 36, 2, 4, 4)}), PTB_OK);
}

// A piece that is taken to begin one token later than it does shows.
static void test_fault(void **state)
{
    (void)state;
    setting s = {CASE("all_gather", 2, 0, 44, 2, 4, 4), .fault = -1};
    trial t;
    trial_init(&t, s);
    assert_int_equal(ptb_world_run_local(s.ranks, NULL, rank_main, &t), PTB_OK);
    assert_true(error_of(&t) > 1e-3);
    trial_release(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ring),       cmocka_unit_test(test_all_gather),
        cmocka_unit_test(test_all_to_all), cmocka_unit_test(test_ring_all_to_all),
        cmocka_unit_test(test_overlap),    cmocka_unit_test(test_refused),
        cmocka_unit_test(test_fault),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
