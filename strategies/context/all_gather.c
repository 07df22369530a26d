// K and V of all ranks gathered before attention, their gradients reduce-scattered after it (Llama 3, section
// 3.3.2): one exchange instead of n-1 steps, which is exposed, and no merging, for K and V of whole sequences
// on every rank. Pieces are zig-zag, so that all ranks compute the same. Backward gathers again. A block of
// the model sends 2 (n-1) e N W + 4 (n-1) N W bytes a rank: gradients are summed in f32.
#include "strategies/context/context_internal.h"

static int no_groups(const ptb_context_env *env, char *reason)
{
    (void)env, (void)reason;
    return 1;
}

static size_t tokens(const ptb_context_split *x)
{
    return (size_t)x->size * x->pieces * x->piece;
}

static void place(const ptb_context_axis *axis, ptb_context_buffers *b, ptb_context_arena *communication,
                  ptb_context_arena *workspace)
{
    ptb_context_split x = ptb_context_split_of(axis);
    size_t all = x.batch * tokens(&x) * x.kv;
    b->gathered = ptb_context_piece(communication, all, x.element);
    b->d_gathered = ptb_context_piece(communication, all, sizeof *b->d_gathered);
    b->whole = ptb_context_piece(workspace, all, x.element);
    b->d_whole = ptb_context_piece(workspace, all, x.element);
    b->attention_workspace =
        ptb_context_piece(workspace, ptb_context_attention_workspace(axis, x.piece, tokens(&x)), 1);
}

// Between [n, P, B, L, W] and [B, T, W]: piece p of rank r is piece r of the sequence, or 2n-1-r.
typedef struct {
    size_t gathered, whole; // first elements, of rank 0
    int64_t of_gathered[3], of_whole[3];
    size_t count[3];
} order;

static order order_of(const ptb_context_split *x, size_t piece)
{
    int64_t width = (int64_t)x->kv, part = (int64_t)x->piece * width, ranks = x->size;
    bool back = piece == 1;
    return (order){.gathered = piece * x->batch * x->piece * x->kv,
                   .whole = back ? (2 * (size_t)x->size - 1) * (size_t)part : 0,
                   .of_gathered = {(int64_t)x->rows * width, part, width},
                   .of_whole = {back ? -part : part, 2 * ranks * part, width},
                   .count = {(size_t)x->size, x->batch, x->piece}};
}

static ptb_status gather(ptb_context_axis *axis, const void *qkv)
{
    ptb_context_split x = ptb_context_split_of(axis);
    ptb_context_buffers *b = ptb_context_buffers_of(axis);
    size_t count = x.rows * x.kv;
    void *own = ptb_context_at(axis, b->gathered, (size_t)x.rank * count);
    PTB_TRY(ptb_context_move(axis, (ptb_permute){.out = own,
                                                 .in = ptb_context_at(axis, qkv, x.query),
                                                 .out_stride = {0, 0, (int64_t)x.kv},
                                                 .in_stride = {0, 0, (int64_t)x.qkv},
                                                 .count = {1, 1, x.rows},
                                                 .width = x.kv}));
    PTB_TRY(ptb_lane_now(axis->env.lane,
                         &(ptb_coll){.kind = PTB_ALL_GATHER,
                                     .send = own,
                                     .recv = b->gathered,
                                     .count = (size_t)x.size * count,
                                     .dtype = axis->env.type},
                         "all_gather.kv"));
    for (size_t piece = 0; piece < x.pieces; piece++) {
        order o = order_of(&x, piece);
        ptb_permute move = {.out = ptb_context_at(axis, b->whole, o.whole),
                            .in = ptb_context_at(axis, b->gathered, o.gathered),
                            .width = x.kv};
        for (int d = 0; d < 3; d++) {
            move.out_stride[d] = o.of_whole[d];
            move.in_stride[d] = o.of_gathered[d];
            move.count[d] = o.count[d];
        }
        PTB_TRY(ptb_context_move(axis, move));
    }
    return PTB_OK;
}

// The query rows of a piece over the whole sequence.
static ptb_attention_shape shape_of(const ptb_context_axis *axis, const ptb_attention_shape *model,
                                    size_t piece)
{
    ptb_context_split x = ptb_context_split_of(axis);
    ptb_attention_shape shape = *model;
    shape.heads = x.heads;
    shape.kv_heads = x.kv_heads;
    shape.query_length = x.piece;
    shape.key_length = tokens(&x);
    shape.query_stride = x.qkv;
    shape.key_stride = x.kv;
    shape.query_offset = axis->slices.offset[piece];
    if (shape.query_start)
        shape.query_start += piece * x.batch * x.piece;
    shape.workspace = axis->self ? ptb_context_buffers_of(axis)->attention_workspace : NULL;
    return shape;
}

static ptb_status forward(ptb_context_axis *axis, const ptb_context_forward *a)
{
    ptb_context_split x = ptb_context_split_of(axis);
    ptb_context_buffers *b = ptb_context_buffers_of(axis);
    PTB_TRY(gather(axis, a->qkv));
    for (size_t piece = 0; piece < x.pieces; piece++) {
        size_t rows = piece * x.batch * x.piece;
        ptb_attention args = {.shape = shape_of(axis, &a->shape, piece),
                              .out = ptb_context_at(axis, a->out, rows * x.query),
                              .lse = a->lse + rows * x.heads,
                              .query = ptb_context_at(axis, a->qkv, rows * x.qkv),
                              .key = b->whole,
                              .value = ptb_context_at(axis, b->whole, x.kv / 2)};
        PTB_TRY(axis->env.kernels->attention(ptb_context_compute(axis), &args));
    }
    return PTB_OK;
}

// Gradients of the whole sequence's K and V, to where they are summed: in order of ranks.
static ptb_status collect(ptb_context_axis *axis, bool add)
{
    ptb_context_split x = ptb_context_split_of(axis);
    ptb_context_buffers *b = ptb_context_buffers_of(axis);
    for (size_t piece = 0; piece < x.pieces; piece++) {
        order o = order_of(&x, piece);
        ptb_permute move = {.out = b->d_gathered + o.gathered,
                            .in = ptb_context_at(axis, b->d_whole, o.whole),
                            .width = x.kv,
                            .out_type = PTB_F32,
                            .in_type = axis->env.type,
                            .accumulate = add};
        for (int d = 0; d < 3; d++) {
            move.out_stride[d] = o.of_gathered[d];
            move.in_stride[d] = o.of_whole[d];
            move.count[d] = o.count[d];
        }
        PTB_TRY(axis->env.kernels->permute(ptb_context_compute(axis), &move));
    }
    return PTB_OK;
}

static ptb_status scatter(ptb_context_axis *axis, void *d_qkv)
{
    ptb_context_split x = ptb_context_split_of(axis);
    ptb_context_buffers *b = ptb_context_buffers_of(axis);
    size_t count = x.rows * x.kv;
    float *own = b->d_gathered + (size_t)x.rank * count;
    PTB_TRY(ptb_lane_now(axis->env.lane,
                         &(ptb_coll){.kind = PTB_REDUCE_SCATTER,
                                     .send = b->d_gathered,
                                     .recv = own,
                                     .count = (size_t)x.size * count,
                                     .dtype = PTB_F32,
                                     .op = PTB_SUM},
                         "reduce_scatter.d_kv"));
    ptb_permute home = {.out = ptb_context_at(axis, d_qkv, x.query),
                        .in = own,
                        .out_stride = {0, 0, (int64_t)x.qkv},
                        .in_stride = {0, 0, (int64_t)x.kv},
                        .count = {1, 1, x.rows},
                        .width = x.kv,
                        .out_type = axis->env.type,
                        .in_type = PTB_F32};
    return axis->env.kernels->permute(ptb_context_compute(axis), &home);
}

static ptb_status backward(ptb_context_axis *axis, const ptb_context_backward *a)
{
    ptb_context_split x = ptb_context_split_of(axis);
    ptb_context_buffers *b = ptb_context_buffers_of(axis);
    PTB_TRY(gather(axis, a->qkv));
    for (size_t piece = 0; piece < x.pieces; piece++) {
        size_t rows = piece * x.batch * x.piece;
        ptb_attention_gradient args = {.shape = shape_of(axis, &a->shape, piece),
                                       .d_query = ptb_context_at(axis, a->d_qkv, rows * x.qkv),
                                       .d_key = b->d_whole,
                                       .d_value = ptb_context_at(axis, b->d_whole, x.kv / 2),
                                       .d_out = ptb_context_at(axis, a->d_out, rows * x.query),
                                       .out = ptb_context_at(axis, a->out, rows * x.query),
                                       .lse = a->lse + rows * x.heads,
                                       .query = ptb_context_at(axis, a->qkv, rows * x.qkv),
                                       .key = b->whole,
                                       .value = ptb_context_at(axis, b->whole, x.kv / 2)};
        PTB_TRY(axis->env.kernels->attention_gradient(ptb_context_compute(axis), &args));
        PTB_TRY(collect(axis, piece > 0));
    }
    return scatter(axis, a->d_qkv);
}

static double flops(const ptb_context_axis *axis)
{
    const ptb_attention_shape model = {.batch = (size_t)axis->env.batch,
                                       .head_width = (size_t)axis->env.layout->local.head_width,
                                       .causal = true,
                                       .type = axis->env.type};
    double sum = 0;
    for (size_t piece = 0; piece < axis->slices.pieces; piece++) {
        ptb_attention_shape shape = shape_of(axis, &model, piece);
        sum += axis->env.kernels->attention_flops(&shape);
    }
    return sum;
}

static const ptb_context all_gather = {
    .plugin = {"all_gather", "K and V gathered, their gradients reduce-scattered; zig-zag pieces (Llama 3)"},
    .degree = no_groups,
    .zigzag = true,
    .volume_form = "(n-1) (2 e + 4) N W",
    .memory_form = "n N W (3 e + 4)",
    .place = place,
    .forward = forward,
    .backward = backward,
    .flops = flops,
};
PTB_REGISTER(PTB_KIND_CONTEXT, all_gather);
