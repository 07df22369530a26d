// Attention, its gradient and rotary positions for the benchmark `kernels`: query, key and value side by side
// in one matrix, as a block of the model has them.
#include "strategies/kernels_bench.h"

#include "core/log.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const places[] = {"block", NULL};

enum { OUT, LSE, QKV, D_OUT, D_QKV, WORKSPACE };
enum { SAMPLED_ROWS = 12, SAMPLED_KEYS = 6, WHOLE_COLUMN_ROWS = 512 };

static const char *always(const ptb_model_shape *shape, const char *place)
{
    (void)shape, (void)place;
    return NULL;
}

static ptb_attention_shape shape_of(const ptb_kernel_call *c)
{
    const ptb_model_shape *s = c->shape;
    size_t stride = (size_t)((s->heads + 2 * s->kv_heads) * s->head_width);
    return (ptb_attention_shape){.batch = c->rows / c->sequence,
                                 .heads = (size_t)s->heads,
                                 .kv_heads = (size_t)s->kv_heads,
                                 .head_width = (size_t)s->head_width,
                                 .query_length = c->sequence,
                                 .key_length = c->sequence,
                                 .query_stride = stride,
                                 .key_stride = stride,
                                 .causal = true,
                                 .scale = 1 / sqrtf((float)s->head_width),
                                 .total_length = c->sequence,
                                 .type = c->type};
}

// Makes what both kernels read, and the output of the first.
static ptb_attention forward_call(ptb_kernel_call *c)
{
    ptb_attention a = {.shape = shape_of(c)};
    const ptb_attention_shape *s = &a.shape;
    size_t size = ptb_dtype_size(c->type), workspace = c->kernels->attention_workspace(s, c->threads);
    char *qkv = ptb_call_filled(c, QKV, c->type, c->rows * s->query_stride, 2, 0);
    size_t key = s->heads * s->head_width, value = key + s->kv_heads * s->head_width;
    a.out = ptb_call_output(c, OUT, c->type, c->rows * key);
    a.lse = ptb_call_output(c, LSE, PTB_F32, c->rows * s->heads);
    a.shape.workspace = ptb_call_output(c, WORKSPACE, PTB_U8, workspace);
    a.query = qkv;
    a.key = qkv ? qkv + key * size : NULL;
    a.value = qkv ? qkv + value * size : NULL;
    ptb_call_sizes(c, "%zu x %zu tokens, %zu/%zu heads of %zu", s->batch, s->query_length, s->heads,
                   s->kv_heads, s->head_width);
    return a;
}

static void prepare(ptb_kernel_call *c)
{
    ptb_attention a = forward_call(c);
    const ptb_attention_shape *s = &a.shape;
    memcpy(c->arguments, &a, sizeof a);
    c->flops = c->kernels->attention_flops(s);
    c->bytes = (double)(c->rows * (s->query_stride + s->heads * s->head_width) * ptb_dtype_size(c->type)) +
               (double)(c->rows * s->heads * sizeof(float));
}

// A row of attention again: probabilities of what query `row` of sequence b sees in query head h, and the log
// of the sum of the exponentials.
typedef struct {
    const ptb_kernel_call *c;
    ptb_attention_shape s;
    size_t b, row, h;
    double *p; /* [sequence] */
    double lse;
} attended;

static double query(const attended *a, size_t column)
{
    size_t row = a->b * a->s.query_length + a->row;
    return ptb_call_value(a->c, QKV, row * a->s.query_stride + a->h * a->s.head_width + column);
}

// Element of a key (of = 0) or value (1) that the query head sees.
static double key_value(const attended *a, size_t of, size_t key_row, size_t column)
{
    size_t row = a->b * a->s.query_length + key_row, head = a->h / (a->s.heads / a->s.kv_heads);
    size_t first = (a->s.heads + of * a->s.kv_heads + head) * a->s.head_width;
    return ptb_call_value(a->c, QKV, row * a->s.query_stride + first + column);
}

static double d_out(const attended *a, size_t column)
{
    size_t row = a->b * a->s.query_length + a->row;
    return ptb_call_value(a->c, D_OUT, (row * a->s.heads + a->h) * a->s.head_width + column);
}

static void attend(attended *a)
{
    double top = -INFINITY, sum = 0;
    for (size_t j = 0; j <= a->row; j++) {
        double score = 0;
        for (size_t i = 0; i < a->s.head_width; i++)
            score += query(a, i) * key_value(a, 0, j, i);
        a->p[j] = score * (double)a->s.scale;
        top = fmax(top, a->p[j]);
    }
    for (size_t j = 0; j <= a->row; j++)
        sum += a->p[j] = exp(a->p[j] - top);
    for (size_t j = 0; j <= a->row; j++)
        a->p[j] /= sum;
    a->lse = top + log(sum);
}

static bool make_attended(const ptb_kernel_call *c, attended *a)
{
    *a = (attended){.c = c, .s = shape_of(c), .p = malloc(2 * c->sequence * sizeof(double))};
    if (!a->p)
        ptb_error("no memory to check attention over %zu rows", c->sequence);
    return a->p;
}

static void choose_row(attended *a, size_t k)
{
    size_t at = ptb_call_sample(k, a->s.batch * a->s.heads * a->s.query_length);
    a->row = at % a->s.query_length;
    a->h = at / a->s.query_length % a->s.heads;
    a->b = at / a->s.query_length / a->s.heads;
    attend(a);
}

static void verify(ptb_kernel_call *c, ptb_verdict *verdict)
{
    attended a;
    if (!make_attended(c, &a)) {
        c->status = PTB_NO_MEMORY;
        return;
    }
    for (size_t k = 0; k < SAMPLED_ROWS; k++) {
        choose_row(&a, k);
        size_t column = ptb_call_sample(k + 2, a.s.head_width);
        ptb_call_sum out = {0}, lse = {a.lse, 1};
        for (size_t j = 0; j <= a.row; j++)
            ptb_call_add(&out, a.p[j] * key_value(&a, 1, j, column));
        size_t row = a.b * a.s.query_length + a.row;
        ptb_call_expect(c, verdict, "out", OUT, (row * a.s.heads + a.h) * a.s.head_width + column, out);
        ptb_call_expect(c, verdict, "lse", LSE, (a.b * a.s.heads + a.h) * a.s.query_length + a.row, lse);
    }
    free(a.p);
}

static const char *ran(const ptb_kernel_call *c)
{
    return c->kernels->attention_kernels ? c->kernels->attention_kernels(c->stream, false) : NULL;
}

const ptb_kernel_entry ptb_kernel_entry_attention = {
    .places = places, .is_typed = true, .absent = always, .prepare = prepare, .verify = verify, .ran = ran};

// ---- the gradient

static void prepare_gradient(ptb_kernel_call *c)
{
    ptb_attention forward = forward_call(c);
    const ptb_attention_shape *s = &forward.shape;
    size_t size = ptb_dtype_size(c->type), key = s->heads * s->head_width;
    const void *d_out_memory = ptb_call_filled(c, D_OUT, c->type, c->rows * key, 1, 0);
    char *d_qkv = ptb_call_output(c, D_QKV, c->type, c->rows * s->query_stride);
    if (c->status == PTB_OK)
        c->status = c->kernels->attention(c->stream, &forward);
    if (c->status == PTB_OK)
        c->status = ptb_stream_sync(c->stream);
    if (c->status != PTB_OK)
        return;
    ptb_attention_gradient a = {.shape = *s,
                                .d_query = d_qkv,
                                .d_key = d_qkv + key * size,
                                .d_value = d_qkv + (key + s->kv_heads * s->head_width) * size,
                                .d_out = d_out_memory,
                                .out = forward.out,
                                .lse = forward.lse,
                                .query = forward.query,
                                .key = forward.key,
                                .value = forward.value};
    memcpy(c->arguments, &a, sizeof a);
    c->flops = 2.5 * c->kernels->attention_flops(s);
    c->bytes =
        (double)(2 * c->rows * (s->query_stride + key) * size) + (double)(c->rows * s->heads * sizeof(float));
}

// After attend: ds[j] = p[j] (d_out . value[j] - sum over all of it), in the second half of p.
static double *score_gradients(attended *a)
{
    double *ds = a->p + a->s.query_length, mean = 0;
    for (size_t j = 0; j <= a->row; j++) {
        ds[j] = 0;
        for (size_t i = 0; i < a->s.head_width; i++)
            ds[j] += d_out(a, i) * key_value(a, 1, j, i);
        mean += a->p[j] * ds[j];
    }
    for (size_t j = 0; j <= a->row; j++)
        ds[j] = a->p[j] * (ds[j] - mean);
    return ds;
}

static void verify_query(ptb_kernel_call *c, ptb_verdict *verdict, attended *a, size_t k)
{
    choose_row(a, k);
    size_t column = ptb_call_sample(k + 2, a->s.head_width), row = a->b * a->s.query_length + a->row;
    const double *ds = score_gradients(a);
    ptb_call_sum sum = {0};
    for (size_t j = 0; j <= a->row; j++)
        ptb_call_add(&sum, ds[j] * (double)a->s.scale * key_value(a, 0, j, column));
    // The terms cancel in the first rows: rounding is that of the sizes that ds is a difference of.
    sum.squares += (double)(a->s.scale * a->s.scale);
    ptb_call_expect(c, verdict, "d_query", D_QKV, row * a->s.query_stride + a->h * a->s.head_width + column,
                    sum);
}

// Key row j of a key head: over all query rows from j on, of all query heads that see it.
static void verify_key(ptb_kernel_call *c, ptb_verdict *verdict, attended *a, size_t j, size_t k)
{
    size_t length = a->s.query_length, group = a->s.heads / a->s.kv_heads;
    size_t column = ptb_call_sample(k + 2, a->s.head_width), head = ptb_call_sample(k, a->s.kv_heads);
    ptb_call_sum d_key = {0}, d_value = {0};
    a->b = ptb_call_sample(k, a->s.batch);
    for (a->h = head * group; a->h < (head + 1) * group; a->h++)
        for (a->row = j; a->row < length; a->row++) {
            attend(a);
            const double *ds = score_gradients(a);
            ptb_call_add(&d_key, ds[j] * (double)a->s.scale * query(a, column));
            ptb_call_add(&d_value, a->p[j] * d_out(a, column));
        }
    d_key.squares += (double)(a->s.scale * a->s.scale);
    size_t first = (a->b * length + j) * a->s.query_stride + (a->s.heads + head) * a->s.head_width + column;
    ptb_call_expect(c, verdict, "d_key", D_QKV, first, d_key);
    ptb_call_expect(c, verdict, "d_value", D_QKV, first + a->s.kv_heads * a->s.head_width, d_value);
}

static void verify_gradient(ptb_kernel_call *c, ptb_verdict *verdict)
{
    attended a;
    if (!make_attended(c, &a)) {
        c->status = PTB_NO_MEMORY;
        return;
    }
    for (size_t k = 0; k < SAMPLED_ROWS; k++)
        verify_query(c, verdict, &a, k);
    // The last keys are seen by few rows; the first by all, which takes long to check in long sequences.
    for (size_t k = 0; k < SAMPLED_KEYS; k++)
        verify_key(c, verdict, &a, c->sequence - 1 - (k < c->sequence ? k : 0), k);
    verify_key(c, verdict, &a, c->sequence <= WHOLE_COLUMN_ROWS ? 0 : c->sequence - SAMPLED_KEYS, 1);
    free(a.p);
}

static const char *ran_gradient(const ptb_kernel_call *c)
{
    return c->kernels->attention_kernels ? c->kernels->attention_kernels(c->stream, true) : NULL;
}

const ptb_kernel_entry ptb_kernel_entry_attention_gradient = {.places = places,
                                                              .is_typed = true,
                                                              .absent = always,
                                                              .prepare = prepare_gradient,
                                                              .verify = verify_gradient,
                                                              .ran = ran_gradient};

// ---- rotary positions of query and key heads, in place

static const char *absent_rotary(const ptb_model_shape *shape, const char *place)
{
    (void)place;
    return shape->position == PTB_ROTARY_POSITIONS ? NULL
                                                   : "the model has learned positions (--positions rotary)";
}

static void prepare_rotary(ptb_kernel_call *c)
{
    const ptb_model_shape *s = c->shape;
    size_t stride = (size_t)((s->heads + 2 * s->kv_heads) * s->head_width);
    ptb_rotary a = {.values = ptb_call_filled(c, QKV, c->type, c->rows * stride, 2, 0),
                    .rows = c->rows,
                    .stride = stride,
                    .heads = (size_t)(s->heads + s->kv_heads),
                    .head_width = (size_t)s->head_width,
                    .length = c->sequence,
                    .base = (float)s->rotary_base,
                    .type = c->type};
    memcpy(c->arguments, &a, sizeof a);
    c->is_changed = true;
    c->bytes = (double)(2 * c->rows * a.heads * a.head_width * ptb_dtype_size(c->type));
    ptb_call_sizes(c, "%zu rows, %zu heads of %zu", a.rows, a.heads, a.head_width);
}

static void verify_rotary(ptb_kernel_call *c, ptb_verdict *verdict)
{
    const ptb_model_shape *s = c->shape;
    size_t width = (size_t)s->head_width, half = width / 2, heads = (size_t)(s->heads + s->kv_heads);
    size_t stride = (size_t)((s->heads + 2 * s->kv_heads) * s->head_width);
    for (size_t k = 0; k < PTB_CALL_SAMPLES; k++) {
        size_t at = ptb_call_sample(k, c->rows * heads * half), i = at % half, head = at / half % heads;
        size_t row = at / half / heads, first = row * stride + head * width + i;
        double angle = (double)(row % c->sequence) *
                       pow((double)(float)s->rotary_base, -2.0 * (double)i / (double)width);
        double x = ptb_call_value(c, QKV, first), y = ptb_call_value(c, QKV, first + half);
        ptb_call_sum turned = {0}, other = {0};
        ptb_call_add(&turned, x * cos(angle));
        ptb_call_add(&turned, -y * sin(angle));
        ptb_call_add(&other, y * cos(angle));
        ptb_call_add(&other, x * sin(angle));
        ptb_call_expect(c, verdict, "first half", QKV, first, turned);
        ptb_call_expect(c, verdict, "second half", QKV, first + half, other);
    }
}

const ptb_kernel_entry ptb_kernel_entry_rotary = {.places = places,
                                                  .is_typed = true,
                                                  .absent = absent_rotary,
                                                  .prepare = prepare_rotary,
                                                  .verify = verify_rotary};
