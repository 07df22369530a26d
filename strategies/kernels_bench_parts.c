// Kernels of split sequences for the benchmark `kernels`: joining partial results of attention, and moving
// heads of rows together.
#include "strategies/kernels_bench.h"

#include <math.h>
#include <string.h>

static const char *const places[] = {"block", NULL};

static const char *always(const ptb_model_shape *shape, const char *place)
{
    (void)shape, (void)place;
    return NULL;
}

static double size_of(const ptb_kernel_call *c)
{
    return (double)ptb_dtype_size(c->type);
}

// ---- merge, of all heads

enum { OUT, LSE, PART, PART_LSE };

static void prepare_merge(ptb_kernel_call *c)
{
    size_t heads = (size_t)c->shape->heads, width = (size_t)c->shape->head_width;
    size_t count = c->rows * heads * width;
    ptb_merge a = {.out = ptb_call_filled(c, OUT, PTB_F32, count, 1, 0),
                   .lse = ptb_call_filled(c, LSE, PTB_F32, c->rows * heads, 2, 0),
                   .part = ptb_call_filled(c, PART, c->type, count, 1, 0),
                   .part_lse = ptb_call_filled(c, PART_LSE, PTB_F32, c->rows * heads, 2, 0.5),
                   .batch = c->rows / c->sequence,
                   .length = c->sequence,
                   .heads = heads,
                   .head_width = width,
                   .type = c->type};
    memcpy(c->arguments, &a, sizeof a);
    c->bytes = (double)count * (8 + size_of(c)) + 12 * (double)(c->rows * heads);
    c->is_changed = true;
    ptb_call_sizes(c, "%zu x %zu x %zu", c->rows, heads, width);
}

static void verify_merge(ptb_kernel_call *c, ptb_verdict *verdict)
{
    size_t heads = (size_t)c->shape->heads, width = (size_t)c->shape->head_width;
    for (size_t k = 0; k < PTB_CALL_SAMPLES; k++) {
        size_t at = ptb_call_sample(k, c->rows * heads * width), row = at / width / heads,
               head = at / width % heads;
        size_t lse_at = (row / c->sequence * heads + head) * c->sequence + row % c->sequence;
        double so_far = exp(ptb_call_value(c, LSE, lse_at)), part = exp(ptb_call_value(c, PART_LSE, lse_at)),
               sum = so_far + part;
        ptb_call_sum out = {0}, lse = {log(sum), 1};
        ptb_call_add(&out, so_far / sum * ptb_call_value(c, OUT, at));
        ptb_call_add(&out, part / sum * ptb_call_value(c, PART, at));
        ptb_call_expect(c, verdict, "out", OUT, at, out);
        ptb_call_expect_in(c, verdict, PTB_F32, "lse", LSE, lse_at, lse);
    }
}

const ptb_kernel_entry ptb_kernel_entry_merge = {
    .places = places, .is_typed = true, .absent = always, .prepare = prepare_merge, .verify = verify_merge};

// ---- permute: [rows, heads, head_width] to [heads, rows, head_width], as one rank a head would send them

static void prepare_permute(ptb_kernel_call *c)
{
    size_t heads = (size_t)c->shape->heads, width = (size_t)c->shape->head_width;
    size_t count = c->rows * heads * width;
    ptb_permute a = {.out = ptb_call_output(c, OUT, c->type, count),
                     .in = ptb_call_filled(c, PART, c->type, count, 1, 0),
                     .out_stride = {0, (int64_t)(c->rows * width), (int64_t)width},
                     .in_stride = {0, (int64_t)width, (int64_t)(heads * width)},
                     .count = {1, heads, c->rows},
                     .width = width,
                     .out_type = c->type,
                     .in_type = c->type};
    memcpy(c->arguments, &a, sizeof a);
    c->bytes = 2 * (double)count * size_of(c);
    ptb_call_sizes(c, "%zu x %zu x %zu", c->rows, heads, width);
}

static void verify_permute(ptb_kernel_call *c, ptb_verdict *verdict)
{
    size_t heads = (size_t)c->shape->heads, width = (size_t)c->shape->head_width;
    for (size_t k = 0; k < PTB_CALL_SAMPLES; k++) {
        size_t at = ptb_call_sample(k, c->rows * heads * width);
        size_t head = at / width / c->rows, row = at / width % c->rows;
        size_t from = (row * heads + head) * width + at % width;
        ptb_call_expect(c, verdict, "out", OUT, at, (ptb_call_sum){ptb_call_value(c, PART, from), 0});
    }
}

const ptb_kernel_entry ptb_kernel_entry_permute = {.places = places,
                                                   .is_typed = true,
                                                   .absent = always,
                                                   .prepare = prepare_permute,
                                                   .verify = verify_permute};
