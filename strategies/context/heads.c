// Heads exchanged for tokens within inner groups of u ranks (Jacobs et al. 2023, "DeepSpeed Ulysses"): before
// attention each rank gives the other u-1 their heads of its rows and gets its own heads of theirs; after it
// the output goes back. Attention over the chunks that the group then has is the ring's of the outer ranks
// (Fang and Zhao 2024, "USP"), or whole sequences where the group is the axis.
//
// Where there are more ranks than key and value heads, each of these is sent to all u/K ranks whose query
// heads use it, and their gradients of it are added up on the way back, in the compute type. Query, key and
// value of a rank are one message; with documents the starts of rows are another. What a rank has got
// is kept for backward, as is its output: nothing is sent twice.
#include "strategies/context/context_internal.h"

#include <stdio.h>

bool ptb_context_heads_divide(const ptb_context_env *env, int degree, char reason[PTB_CONTEXT_REASON])
{
    int heads = (int)env->layout->local.heads, kv_heads = (int)env->layout->local.kv_heads;
    if (heads % degree) {
        snprintf(reason, PTB_CONTEXT_REASON, "%d heads over %d ranks: %d / %d = %d remainder %d", heads,
                 degree, heads, degree, heads / degree, heads % degree);
        return false;
    }
    if (kv_heads % degree && degree % kv_heads) {
        snprintf(reason, PTB_CONTEXT_REASON,
                 "%d key and value heads over %d ranks: neither divides the other (%d remainder %d)",
                 kv_heads, degree, kv_heads > degree ? kv_heads / degree : degree / kv_heads,
                 kv_heads > degree ? kv_heads % degree : degree % kv_heads);
        return false;
    }
    return true;
}

// ---- what is kept: query, key and value, output, starts

typedef struct {
    void *query, *kv, *out; /* [all_rows, own_query], [all_rows, own_kv], as query */
    int32_t *starts;        /* [all_rows] */
} kept;

static kept kept_at(const ptb_context_axis *axis, void *memory, size_t *bytes)
{
    ptb_context_split x = ptb_context_split_of(axis);
    ptb_context_arena a = {memory, 0};
    kept k = {.query = ptb_context_piece(&a, x.all_rows * x.own_query, x.element),
              .kv = ptb_context_piece(&a, x.all_rows * x.own_kv, x.element),
              .out = ptb_context_piece(&a, x.all_rows * x.own_query, x.element)};
    if (axis->env.packed)
        k.starts = ptb_context_piece(&a, x.all_rows, sizeof *k.starts);
    *bytes = a.used;
    return k;
}

size_t ptb_context_heads_kept(const ptb_context_axis *axis)
{
    size_t bytes;
    kept_at(axis, NULL, &bytes);
    return bytes;
}

void ptb_context_heads_place(const ptb_context_axis *axis, ptb_context_buffers *b,
                             ptb_context_arena *communication, ptb_context_arena *workspace)
{
    ptb_context_split x = ptb_context_split_of(axis);
    size_t message = x.all_rows * (x.own_query + x.own_kv);
    b->send = ptb_context_piece(communication, message, x.element);
    b->recv = ptb_context_piece(communication, message, x.element);
    if (axis->env.packed) {
        b->send_starts = ptb_context_piece(communication, x.rows, sizeof *b->send_starts);
        b->recv_starts = ptb_context_piece(communication, x.all_rows, sizeof *b->recv_starts);
    }
    b->d_out = ptb_context_piece(workspace, x.all_rows * x.own_query, x.element);
    b->d_query = ptb_context_piece(workspace, x.all_rows * x.own_query, x.element);
    if (ptb_context_is_whole(&x))
        b->d_kv = ptb_context_piece(workspace, x.all_rows * x.own_kv, x.element);
    ptb_context_ring_place(axis, x.own_query, b, communication, workspace);
}

// ---- messages

// Part j of send, `count` elements, to rank j of the inner group, what it sends here to part j of recv. One
// all-to-all where the group is the axis, else messages in its communicator.
static ptb_status exchange(ptb_context_axis *axis, size_t count, const char *name)
{
    ptb_context_split x = ptb_context_split_of(axis);
    ptb_context_buffers *b = ptb_context_buffers_of(axis);
    ptb_lane *lane = axis->env.lane;
    if (x.outer == 1)
        return ptb_lane_now(lane,
                            &(ptb_coll){.kind = PTB_ALL_TO_ALL,
                                        .send = b->send,
                                        .recv = b->recv,
                                        .count = x.groups * count,
                                        .dtype = axis->env.type},
                            name);
    ptb_lane_message messages[PTB_CONTEXT_DEGREE_MAX];
    size_t n = 0, first = x.place * x.groups;
    for (size_t j = 0; j < x.groups; j++)
        if (j != x.inner)
            messages[n++] = (ptb_lane_message){.send = ptb_context_at(axis, b->send, j * count),
                                               .recv = ptb_context_at(axis, b->recv, j * count),
                                               .send_count = count,
                                               .recv_count = count,
                                               .to = (int)(first + j),
                                               .from = (int)(first + j),
                                               .dtype = axis->env.type};
    PTB_TRY(ptb_stream_copy(ptb_context_compute(axis), ptb_context_at(axis, b->recv, x.inner * count),
                            ptb_context_at(axis, b->send, x.inner * count), count * x.element));
    PTB_TRY(ptb_lane_fork(lane));
    PTB_TRY(ptb_lane_exchange(lane, messages, n, name));
    return ptb_lane_join(lane);
}

// The starts of all rows of the chunks that this rank computes with.
static ptb_status exchange_starts(ptb_context_axis *axis, const int32_t *starts, int32_t *all)
{
    ptb_context_split x = ptb_context_split_of(axis);
    ptb_context_buffers *b = ptb_context_buffers_of(axis);
    ptb_lane *lane = axis->env.lane;
    ptb_lane_message messages[PTB_CONTEXT_DEGREE_MAX];
    size_t n = 0, first = x.place * x.groups, bytes = x.rows * sizeof *starts;
    for (size_t j = 0; j < x.groups; j++)
        if (j != x.inner)
            messages[n++] = (ptb_lane_message){.send = b->send_starts,
                                               .recv = b->recv_starts + j * x.rows,
                                               .send_count = x.rows,
                                               .recv_count = x.rows,
                                               .to = (int)(first + j),
                                               .from = (int)(first + j),
                                               .dtype = PTB_I32};
    ptb_stream *stream = ptb_context_compute(axis);
    PTB_TRY(ptb_stream_copy(stream, b->send_starts, starts, bytes));
    PTB_TRY(ptb_stream_copy(stream, b->recv_starts + x.inner * x.rows, starts, bytes));
    PTB_TRY(ptb_lane_fork(lane));
    PTB_TRY(ptb_lane_exchange(lane, messages, n, "starts"));
    PTB_TRY(ptb_lane_join(lane));
    ptb_permute order = {.out = all,
                         .in = b->recv_starts,
                         .out_stride = {0, (int64_t)x.piece, (int64_t)x.chunk},
                         .in_stride = {0, (int64_t)x.rows, (int64_t)x.piece},
                         .count = {1, x.groups, x.pieces * x.batch},
                         .width = x.piece,
                         .out_type = PTB_I32,
                         .in_type = PTB_I32};
    return axis->env.kernels->permute(stream, &order);
}

// A rank's columns in the parts of a message: [groups, N, width] from column `column` on.
typedef struct {
    size_t width; // of a row of the message
    size_t column;
} message;

// Rows of this rank, columns [groups, columns] of rows of `stride`, to the parts; and back.
static ptb_status give_columns(const ptb_context_axis *axis, const void *rows, size_t stride, size_t columns,
                               message m)
{
    ptb_context_split x = ptb_context_split_of(axis);
    return ptb_context_move(
        axis, (ptb_permute){.out = ptb_context_at(axis, ptb_context_buffers_of(axis)->send, m.column),
                            .in = rows,
                            .out_stride = {0, (int64_t)(x.rows * m.width), (int64_t)m.width},
                            .in_stride = {0, (int64_t)columns, (int64_t)stride},
                            .count = {1, x.groups, x.rows},
                            .width = columns});
}

static ptb_status take_columns(const ptb_context_axis *axis, void *rows, size_t stride, size_t columns,
                               message m)
{
    ptb_context_split x = ptb_context_split_of(axis);
    return ptb_context_move(
        axis, (ptb_permute){.out = rows,
                            .in = ptb_context_at(axis, ptb_context_buffers_of(axis)->recv, m.column),
                            .out_stride = {0, (int64_t)columns, (int64_t)stride},
                            .in_stride = {0, (int64_t)(x.rows * m.width), (int64_t)m.width},
                            .count = {1, x.groups, x.rows},
                            .width = columns});
}

// The same of key or value heads, each of which goes to `copies` ranks, and whose gradients come from as
// many.
static ptb_status give_copies(const ptb_context_axis *axis, const void *rows, size_t stride, message m)
{
    ptb_context_split x = ptb_context_split_of(axis);
    size_t columns = x.own_kv / 2, part = x.rows * m.width;
    return ptb_context_move(
        axis, (ptb_permute){.out = ptb_context_at(axis, ptb_context_buffers_of(axis)->send, m.column),
                            .in = rows,
                            .out_stride = {(int64_t)(x.copies * part), (int64_t)part, (int64_t)m.width},
                            .in_stride = {(int64_t)columns, 0, (int64_t)stride},
                            .count = {x.groups / x.copies, x.copies, x.rows},
                            .width = columns});
}

static ptb_status take_copies(const ptb_context_axis *axis, void *rows, size_t stride, message m)
{
    ptb_context_split x = ptb_context_split_of(axis);
    size_t columns = x.own_kv / 2, part = x.rows * m.width;
    for (size_t copy = 0; copy < x.copies; copy++)
        PTB_TRY(ptb_context_move(axis,
                                 (ptb_permute){.out = rows,
                                               .in = ptb_context_at(axis, ptb_context_buffers_of(axis)->recv,
                                                                    copy * part + m.column),
                                               .out_stride = {0, (int64_t)columns, (int64_t)stride},
                                               .in_stride = {0, (int64_t)(x.copies * part), (int64_t)m.width},
                                               .count = {1, x.groups / x.copies, x.rows},
                                               .width = columns,
                                               .accumulate = copy > 0}));
    return PTB_OK;
}

// Columns of the parts, whose rows are pieces of a chunk's, to rows of whole chunks; and back from rows of
// another type.
static ptb_status take_rows(const ptb_context_axis *axis, void *rows, size_t columns, message m)
{
    ptb_context_split x = ptb_context_split_of(axis);
    return ptb_context_move(
        axis,
        (ptb_permute){
            .out = rows,
            .in = ptb_context_at(axis, ptb_context_buffers_of(axis)->recv, m.column),
            .out_stride = {(int64_t)(x.piece * columns), (int64_t)(x.chunk * columns), (int64_t)columns},
            .in_stride = {(int64_t)(x.rows * m.width), (int64_t)(x.piece * m.width), (int64_t)m.width},
            .count = {x.groups, x.pieces * x.batch, x.piece},
            .width = columns});
}

static ptb_status give_rows(const ptb_context_axis *axis, const void *rows, ptb_dtype type, size_t columns,
                            message m)
{
    ptb_context_split x = ptb_context_split_of(axis);
    ptb_permute give = {
        .out = ptb_context_at(axis, ptb_context_buffers_of(axis)->send, m.column),
        .in = rows,
        .out_stride = {(int64_t)(x.rows * m.width), (int64_t)(x.piece * m.width), (int64_t)m.width},
        .in_stride = {(int64_t)(x.piece * columns), (int64_t)(x.chunk * columns), (int64_t)columns},
        .count = {x.groups, x.pieces * x.batch, x.piece},
        .width = columns,
        .out_type = axis->env.type,
        .in_type = type};
    return axis->env.kernels->permute(ptb_context_compute(axis), &give);
}

// ---- forward and backward

static ptb_context_ring ring_of(const ptb_context_axis *axis, const ptb_attention_shape *shape, const kept *k,
                                float *lse)
{
    ptb_context_split x = ptb_context_split_of(axis);
    ptb_context_ring ring = {.shape = *shape,
                             .query = k->query,
                             .kv = k->kv,
                             .query_stride = x.own_query,
                             .kv_stride = x.own_kv,
                             .out = k->out,
                             .lse = lse};
    ring.shape.query_start = k->starts;
    ring.shape.dropout_head += x.inner * x.own_heads;
    return ring;
}

ptb_status ptb_context_heads_forward(ptb_context_axis *axis, const ptb_context_forward *a)
{
    ptb_context_split x = ptb_context_split_of(axis);
    size_t bytes, width = x.own_query + x.own_kv, half = x.own_kv / 2;
    kept k = kept_at(axis, a->kept, &bytes);
    const void *key = ptb_context_at(axis, a->qkv, x.query), *value = ptb_context_at(axis, key, x.kv / 2);
    PTB_TRY(give_columns(axis, a->qkv, x.qkv, x.own_query, (message){width, 0}));
    PTB_TRY(give_copies(axis, key, x.qkv, (message){width, x.own_query}));
    PTB_TRY(give_copies(axis, value, x.qkv, (message){width, x.own_query + half}));
    PTB_TRY(exchange(axis, x.rows * width, "all_to_all.qkv"));
    PTB_TRY(take_rows(axis, k.query, x.own_query, (message){width, 0}));
    PTB_TRY(take_rows(axis, k.kv, x.own_kv, (message){width, x.own_query}));
    if (a->shape.query_start)
        PTB_TRY(exchange_starts(axis, a->shape.query_start, k.starts));
    ptb_context_ring ring = ring_of(axis, &a->shape, &k, a->lse);
    PTB_TRY(ptb_context_ring_run(axis, &ring));
    PTB_TRY(give_rows(axis, k.out, axis->env.type, x.own_query, (message){x.own_query, 0}));
    PTB_TRY(exchange(axis, x.rows * x.own_query, "all_to_all.out"));
    return take_columns(axis, a->out, x.query, x.own_query, (message){x.own_query, 0});
}

ptb_status ptb_context_heads_backward(ptb_context_axis *axis, const ptb_context_backward *a)
{
    ptb_context_split x = ptb_context_split_of(axis);
    ptb_context_buffers *b = ptb_context_buffers_of(axis);
    size_t bytes, width = x.own_query + x.own_kv, half = x.own_kv / 2;
    kept k = kept_at(axis, a->kept, &bytes);
    PTB_TRY(give_columns(axis, a->d_out, x.query, x.own_query, (message){x.own_query, 0}));
    PTB_TRY(exchange(axis, x.rows * x.own_query, "all_to_all.d_out"));
    PTB_TRY(take_rows(axis, b->d_out, x.own_query, (message){x.own_query, 0}));
    ptb_context_ring_backward ring = {.forward = ring_of(axis, &a->shape, &k, (float *)(uintptr_t)a->lse),
                                      .d_out = b->d_out,
                                      .d_query = b->d_query,
                                      .d_kv = b->d_kv};
    PTB_TRY(ptb_context_ring_run_backward(axis, &ring));
    bool whole = ptb_context_is_whole(&x);
    const void *d_kv = whole ? b->d_kv : (const void *)ptb_context_ring_gradient(axis);
    PTB_TRY(give_rows(axis, b->d_query, axis->env.type, x.own_query, (message){width, 0}));
    PTB_TRY(give_rows(axis, d_kv, whole ? axis->env.type : PTB_F32, x.own_kv, (message){width, x.own_query}));
    PTB_TRY(exchange(axis, x.rows * width, "all_to_all.d_qkv"));
    void *d_key = ptb_context_at(axis, a->d_qkv, x.query), *d_value = ptb_context_at(axis, d_key, x.kv / 2);
    PTB_TRY(take_columns(axis, a->d_qkv, x.qkv, x.own_query, (message){width, 0}));
    PTB_TRY(take_copies(axis, d_key, x.qkv, (message){width, x.own_query}));
    return take_copies(axis, d_value, x.qkv, (message){width, x.own_query + half});
}
