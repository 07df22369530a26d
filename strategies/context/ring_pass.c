// Attention over a ring (Liu et al. 2023, "Ring Attention with Blockwise Transformers"): a rank keeps its
// queries, and blocks of K and V travel around. In step s it computes with the block that began on the rank s
// places before it, while the next block is on its way; parts of the result are merged by their log-sum-exp.
//
// Zig-zag (Brandon et al. 2023, "Striped Attention", has the problem; Llama 3, section 3.3.2, these chunks):
// of 2m chunks, place p of m has p and 2m-1-p. Of a block that began at place q only pairs of chunks are
// computed whose keys are not behind all queries: q < p: both query chunks with the block's first one; q > p:
// the second query chunk with both of the block's; q = p: two chunks with themselves, which is half of two
// pairs, and the second with the first. So every rank computes two pairs of chunks in every step, and nothing
// that is masked whole.
//
// Backward sends K and V around again (they are not kept) and behind them the sums of their gradients, which
// each rank adds to and which come home in the last step. These sums are f32, as are those of the query's
// gradient and of the output: what many steps add up is rounded once, and sums of gradients take 4 bytes an
// element on the way.
#include "strategies/context/context_internal.h"

typedef struct {
    ptb_context_axis *axis;
    ptb_context_buffers *b;
    ptb_context_split x;
    const ptb_kernels *k;
    ptb_stream *stream;
    size_t query_part, kv_part; // elements of a chunk's rows: B chunk own_query, B chunk own_kv
    const ptb_context_ring *args;
} ring;

static ring ring_of(ptb_context_axis *axis, const ptb_context_ring *args)
{
    ring r = {.axis = axis,
              .b = ptb_context_buffers_of(axis),
              .x = ptb_context_split_of(axis),
              .k = axis->env.kernels,
              .args = args};
    r.query_part = r.x.batch * r.x.chunk * r.x.own_query;
    r.kv_part = r.x.batch * r.x.chunk * r.x.own_kv;
    return r;
}

// Number of a chunk in its sequence.
static size_t chunk_at(const ptb_context_split *x, size_t place, size_t piece)
{
    return piece == 0 ? place : 2 * x->outer - 1 - place;
}

// Pairs (query piece, key piece) of a step, with the place where its block began.
typedef struct {
    size_t origin, count;
    struct {
        size_t query, key;
    } pair[3];
} step;

static step step_at(const ptb_context_split *x, size_t number)
{
    step s = {.origin = (x->place + x->outer - number) % x->outer};
    for (size_t query = 0; query < x->pieces; query++)
        for (size_t key = 0; key < x->pieces; key++) {
            if (chunk_at(x, s.origin, key) > chunk_at(x, x->place, query))
                continue;
            s.pair[s.count].query = query;
            s.pair[s.count++].key = key;
        }
    return s;
}

// Parts that piece `query` is merged from: every chunk up to its own.
static size_t parts_of(const ptb_context_split *x, size_t query)
{
    return chunk_at(x, x->place, query) + 1;
}

static ptb_attention_shape shape_of(const ring *r, const step *s, size_t pair, size_t key_stride)
{
    const ptb_context_split *x = &r->x;
    size_t query = s->pair[pair].query;
    ptb_attention_shape shape = r->args->shape;
    shape.heads = x->own_heads;
    shape.kv_heads = x->own_kv_heads;
    shape.query_length = shape.key_length = x->chunk;
    shape.query_stride = r->args->query_stride;
    shape.key_stride = key_stride;
    shape.query_offset = (int64_t)(chunk_at(x, x->place, query) * x->chunk);
    shape.key_offset = (int64_t)(chunk_at(x, s->origin, s->pair[pair].key) * x->chunk);
    if (shape.query_start)
        shape.query_start += query * x->batch * x->chunk;
    shape.workspace = r->b->attention_workspace;
    return shape;
}

// The own block begins its way.
static ptb_status pack(const ring *r)
{
    const ptb_context_split *x = &r->x;
    return ptb_context_move(r->axis, (ptb_permute){.out = r->b->block[0],
                                                   .in = r->args->kv,
                                                   .out_stride = {0, 0, (int64_t)x->own_kv},
                                                   .in_stride = {0, 0, (int64_t)r->args->kv_stride},
                                                   .count = {1, 1, x->all_rows},
                                                   .width = x->own_kv});
}

// Sends to the next rank of the ring what the previous one sends here; enqueued once compute has come here.
static ptb_status pass_on(const ring *r, const void *send, void *recv, ptb_dtype type, ptb_event *arrived,
                          const char *name)
{
    const ptb_context_split *x = &r->x;
    ptb_lane *lane = r->axis->env.lane;
    size_t count = x->all_rows * x->own_kv, next = (x->place + 1) % x->outer,
           previous = (x->place + x->outer - 1) % x->outer;
    ptb_lane_message message = {.send = send,
                                .recv = recv,
                                .send_count = count,
                                .recv_count = count,
                                .to = (int)(next * x->groups + x->inner),
                                .from = (int)(previous * x->groups + x->inner),
                                .dtype = type};
    PTB_TRY(ptb_lane_fork(lane));
    PTB_TRY(ptb_lane_exchange(lane, &message, 1, name));
    return ptb_event_record(arrived, lane->stream);
}

static ptb_status pass_block(const ring *r, size_t number)
{
    return pass_on(r, r->b->block[number % 2], r->b->block[(number + 1) % 2], r->axis->env.type,
                   r->b->arrived, "ring.block");
}

// ---- forward

static ptb_status merge_part(const ring *r, size_t query, size_t done)
{
    const ptb_context_split *x = &r->x;
    size_t lse = query * x->batch * x->own_heads * x->chunk;
    bool narrow = r->axis->env.type != PTB_F32, last = done + 1 == parts_of(x, query);
    void *out = ptb_context_at(r->axis, r->args->out, query * r->query_part);
    ptb_merge merge = {.out = narrow ? r->b->out_sum + query * r->query_part : out,
                       .lse = r->args->lse + lse,
                       .rounded = narrow && last ? out : NULL,
                       .part = r->b->part,
                       .part_lse = r->b->part_lse,
                       .batch = x->batch,
                       .length = x->chunk,
                       .heads = x->own_heads,
                       .head_width = x->width,
                       .type = r->axis->env.type,
                       .first = done == 0};
    return r->k->merge(r->stream, &merge);
}

static ptb_status compute_step(const ring *r, size_t number, size_t done[PTB_PIECES_MAX])
{
    const ptb_context_split *x = &r->x;
    step s = step_at(x, number);
    for (size_t i = 0; i < s.count; i++) {
        size_t query = s.pair[i].query;
        const void *key = ptb_context_at(r->axis, r->b->block[number % 2], s.pair[i].key * r->kv_part);
        ptb_attention args = {.shape = shape_of(r, &s, i, x->own_kv),
                              .out = r->b->part,
                              .lse = r->b->part_lse,
                              .query = ptb_context_at(r->axis, r->args->query,
                                                      query * x->batch * x->chunk * r->args->query_stride),
                              .key = key,
                              .value = ptb_context_at(r->axis, key, x->own_kv / 2)};
        PTB_TRY(r->k->attention(r->stream, &args));
        PTB_TRY(merge_part(r, query, done[query]++));
    }
    return PTB_OK;
}

// One place: every rank of the inner group has whole sequences.
static ptb_status run_whole(const ring *r)
{
    const ptb_context_ring *a = r->args;
    step s = step_at(&r->x, 0);
    ptb_attention args = {.shape = shape_of(r, &s, 0, a->kv_stride),
                          .out = a->out,
                          .lse = a->lse,
                          .query = a->query,
                          .key = a->kv,
                          .value = ptb_context_at(r->axis, a->kv, r->x.own_kv / 2)};
    return r->k->attention(r->stream, &args);
}

ptb_status ptb_context_ring_run(ptb_context_axis *axis, const ptb_context_ring *args)
{
    ring r = ring_of(axis, args);
    r.stream = ptb_context_compute(axis);
    if (ptb_context_is_whole(&r.x))
        return run_whole(&r);
    size_t done[PTB_PIECES_MAX] = {0, 0};
    PTB_TRY(pack(&r));
    for (size_t number = 0; number < r.x.outer; number++) {
        bool more = number + 1 < r.x.outer;
        if (more)
            PTB_TRY(pass_block(&r, number));
        PTB_TRY(compute_step(&r, number, done));
        if (more)
            PTB_TRY(ptb_lane_wait(axis->env.lane, r.b->arrived));
    }
    return PTB_OK;
}

// ---- backward

static ptb_status compute_pair(const ring *r, const ptb_context_ring_backward *a, const step *s, size_t i,
                               const void *block, void *d_block)
{
    const ptb_context_split *x = &r->x;
    size_t query = s->pair[i].query, rows = query * x->batch * x->chunk;
    const void *key = ptb_context_at(r->axis, block, s->pair[i].key * r->kv_part);
    ptb_attention_gradient args = {
        .shape = shape_of(r, s, i, x->own_kv),
        .d_query = r->b->d_query_part,
        .d_key = d_block,
        .d_value = ptb_context_at(r->axis, d_block, x->own_kv / 2),
        .d_out = ptb_context_at(r->axis, a->d_out, query * r->query_part),
        .out = ptb_context_at(r->axis, r->args->out, query * r->query_part),
        .lse = r->args->lse + query * x->batch * x->own_heads * x->chunk,
        .query = ptb_context_at(r->axis, r->args->query, rows * r->args->query_stride),
        .key = key,
        .value = ptb_context_at(r->axis, key, x->own_kv / 2),
    };
    return r->k->attention_gradient(r->stream, &args);
}

// Adds the part to the sum of a piece's query gradient; the last one rounds it to where it belongs.
static ptb_status add_query(const ring *r, const ptb_context_ring_backward *a, size_t query, size_t done)
{
    const ptb_context_split *x = &r->x;
    bool narrow = r->axis->env.type != PTB_F32, last = done + 1 == parts_of(x, query);
    int64_t stride = (int64_t)r->args->query_stride, width = (int64_t)x->own_query;
    void *to = ptb_context_at(r->axis, a->d_query, query * x->batch * x->chunk * r->args->query_stride);
    float *sum = narrow ? r->b->d_query_sum + query * r->query_part : to;
    ptb_permute add = {.out = sum,
                       .in = r->b->d_query_part,
                       .out_stride = {0, 0, narrow ? width : stride},
                       .in_stride = {0, 0, stride},
                       .count = {1, 1, x->batch * x->chunk},
                       .width = x->own_query,
                       .out_type = PTB_F32,
                       .in_type = r->axis->env.type,
                       .accumulate = done > 0};
    PTB_TRY(r->k->permute(r->stream, &add));
    if (!narrow || !last)
        return PTB_OK;
    ptb_permute round = {.out = to,
                         .in = sum,
                         .out_stride = {0, 0, stride},
                         .in_stride = {0, 0, width},
                         .count = {1, 1, x->batch * x->chunk},
                         .width = x->own_query,
                         .out_type = r->axis->env.type,
                         .in_type = PTB_F32};
    return r->k->permute(r->stream, &round);
}

// Adds the gradient of one piece of a block to the sums that travel.
static ptb_status add_block(const ring *r, float *sums, size_t key, const void *part, bool first)
{
    return r->k->permute(r->stream, &(ptb_permute){.out = sums + key * r->kv_part,
                                                   .in = part,
                                                   .count = {1, 1, 1},
                                                   .width = r->kv_part,
                                                   .out_type = PTB_F32,
                                                   .in_type = r->axis->env.type,
                                                   .accumulate = !first});
}

// The own block: its sums begin here.
static ptb_status backward_first(const ring *r, const ptb_context_ring_backward *a,
                                 size_t done[PTB_PIECES_MAX])
{
    step s = step_at(&r->x, 0);
    bool begun[PTB_PIECES_MAX] = {false, false};
    for (size_t i = 0; i < s.count; i++) {
        size_t query = s.pair[i].query, key = s.pair[i].key;
        PTB_TRY(compute_pair(r, a, &s, i, r->b->block[0], r->b->d_block_part[0]));
        PTB_TRY(add_query(r, a, query, done[query]++));
        PTB_TRY(add_block(r, r->b->d_block[0], key, r->b->d_block_part[0], !begun[key]));
        begun[key] = true;
    }
    return PTB_OK;
}

// The sums of the block at hand arrive while its gradients are computed.
static ptb_status backward_step(const ring *r, const ptb_context_ring_backward *a, size_t number,
                                size_t done[PTB_PIECES_MAX])
{
    step s = step_at(&r->x, number);
    for (size_t i = 0; i < s.count; i++) {
        size_t query = s.pair[i].query;
        PTB_TRY(compute_pair(r, a, &s, i, r->b->block[number % 2], r->b->d_block_part[i]));
        PTB_TRY(add_query(r, a, query, done[query]++));
    }
    PTB_TRY(ptb_lane_wait(r->axis->env.lane, r->b->gradient_arrived));
    for (size_t i = 0; i < s.count; i++)
        PTB_TRY(add_block(r, r->b->d_block[number % 2], s.pair[i].key, r->b->d_block_part[i], false));
    return PTB_OK;
}

static ptb_status backward_whole(const ring *r, const ptb_context_ring_backward *a)
{
    const ptb_context_ring *f = r->args;
    step s = step_at(&r->x, 0);
    ptb_attention_gradient args = {.shape = shape_of(r, &s, 0, f->kv_stride),
                                   .d_query = a->d_query,
                                   .d_key = a->d_kv,
                                   .d_value = ptb_context_at(r->axis, a->d_kv, r->x.own_kv / 2),
                                   .d_out = a->d_out,
                                   .out = f->out,
                                   .lse = f->lse,
                                   .query = f->query,
                                   .key = f->kv,
                                   .value = ptb_context_at(r->axis, f->kv, r->x.own_kv / 2)};
    return r->k->attention_gradient(r->stream, &args);
}

ptb_status ptb_context_ring_run_backward(ptb_context_axis *axis, const ptb_context_ring_backward *a)
{
    ring r = ring_of(axis, &a->forward);
    r.stream = ptb_context_compute(axis);
    if (ptb_context_is_whole(&r.x))
        return backward_whole(&r, a);
    size_t done[PTB_PIECES_MAX] = {0, 0};
    PTB_TRY(pack(&r));
    for (size_t number = 0; number < r.x.outer; number++) {
        bool more = number + 1 < r.x.outer;
        if (more)
            PTB_TRY(pass_block(&r, number));
        PTB_TRY(number ? backward_step(&r, a, number, done) : backward_first(&r, a, done));
        if (r.x.outer > 1)
            PTB_TRY(pass_on(&r, r.b->d_block[number % 2], r.b->d_block[(number + 1) % 2], PTB_F32,
                            r.b->gradient_arrived, "ring.gradient"));
        if (more)
            PTB_TRY(ptb_lane_wait(axis->env.lane, r.b->arrived));
    }
    return r.x.outer > 1 ? ptb_lane_wait(axis->env.lane, r.b->gradient_arrived) : PTB_OK;
}

const float *ptb_context_ring_gradient(const ptb_context_axis *axis)
{
    ptb_context_split x = ptb_context_split_of(axis);
    return ptb_context_buffers_of(axis)->d_block[x.outer > 1 ? x.outer % 2 : 0];
}

// ---- what it needs

void ptb_context_ring_place(const ptb_context_axis *axis, size_t query_stride, ptb_context_buffers *b,
                            ptb_context_arena *communication, ptb_context_arena *workspace)
{
    ptb_context_split x = ptb_context_split_of(axis);
    size_t rows = x.batch * x.chunk, kv = x.all_rows * x.own_kv, e = x.element;
    bool narrow = axis->env.type != PTB_F32;
    b->attention_workspace =
        ptb_context_piece(workspace, ptb_context_attention_workspace(axis, x.chunk, x.chunk), 1);
    if (ptb_context_is_whole(&x))
        return;
    for (int i = 0; i < 2; i++)
        b->block[i] = ptb_context_piece(communication, kv, e);
    for (int i = 0; i < 2; i++)
        b->d_block[i] = ptb_context_piece(communication, kv, sizeof **b->d_block);
    // Forward's and backward's are the same memory.
    size_t start = workspace->used;
    b->part = ptb_context_piece(workspace, rows * x.own_query, e);
    b->part_lse = ptb_context_piece(workspace, rows * x.own_heads, sizeof *b->part_lse);
    b->out_sum = narrow ? ptb_context_piece(workspace, x.all_rows * x.own_query, sizeof *b->out_sum) : NULL;
    size_t forward = workspace->used;
    workspace->used = start;
    b->d_query_part = ptb_context_piece(workspace, rows * query_stride, e);
    for (int i = 0; i < 2; i++)
        b->d_block_part[i] = ptb_context_piece(workspace, rows * x.own_kv, e);
    b->d_query_sum =
        narrow ? ptb_context_piece(workspace, x.all_rows * x.own_query, sizeof *b->d_query_sum) : NULL;
    workspace->used = workspace->used > forward ? workspace->used : forward;
}

double ptb_context_ring_flops(const ptb_context_axis *axis)
{
    ptb_context_ring args = {.shape = {.batch = (size_t)axis->env.batch,
                                       .head_width = (size_t)axis->env.layout->local.head_width,
                                       .causal = true,
                                       .type = axis->env.type}};
    ring r = {.x = ptb_context_split_of(axis), .args = &args, .b = &(ptb_context_buffers){0}};
    double sum = 0;
    for (size_t number = 0; number < r.x.outer; number++) {
        step s = step_at(&r.x, number);
        for (size_t i = 0; i < s.count; i++) {
            ptb_attention_shape shape = shape_of(&r, &s, i, r.x.own_kv);
            sum += axis->env.kernels->attention_flops(&shape);
        }
    }
    return sum;
}
