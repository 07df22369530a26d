// Partial results of attention joined by their log-sum-exp, on the host.
#include "strategies/transformer/kernels_host_tasks.h"

#include <math.h>

// What the two sides of a row and head are multiplied by; the joined lse.
typedef struct {
    float so_far, part, lse;
} weights;

static weights weigh(float so_far, float part)
{
    float top = so_far > part ? so_far : part;
    if (top == -INFINITY)
        return (weights){0, 0, -INFINITY};
    float a = expf(so_far - top), b = expf(part - top), sum = a + b;
    return (weights){a / sum, b / sum, top + logf(sum)};
}

// What has no weight may be anything.
PTB_INLINE ptb_vec joined(ptb_dtype type, const ptb_merge *a, const weights *w, size_t at, size_t n)
{
    ptb_vec sum = ptb_vec_set(0);
    if (w->so_far > 0)
        sum += ptb_vec_load_some(PTB_F32, a->out, at, n) * w->so_far;
    if (w->part > 0)
        sum += ptb_vec_load_some(type, a->part, at, n) * w->part;
    return sum;
}

PTB_HOST_BODY merge_head(ptb_dtype type, const ptb_merge *args, const weights *weight, size_t at)
{
    const ptb_merge a = *args;
    const weights w = *weight;
    for (size_t c = 0; c < a.head_width; c += PTB_LANES) {
        size_t n = ptb_host_least(a.head_width - c, PTB_LANES);
        ptb_vec x = joined(type, &a, &w, at + c, n);
        ptb_vec_store_some(PTB_F32, a.out, at + c, n, x);
        if (a.rounded)
            ptb_vec_store_some(type, a.rounded, at + c, n, x);
    }
}

static void merge_row(const ptb_merge *a, size_t b, size_t row)
{
    for (size_t h = 0; h < a->heads; h++) {
        size_t at = (b * a->heads + h) * a->length + row;
        weights w = weigh(a->first ? -INFINITY : a->lse[at], a->part_lse[at]);
        a->lse[at] = w.lse;
        size_t first = ((b * a->length + row) * a->heads + h) * a->head_width;
        PTB_HOST_TYPED(merge_head, a->type, a, &w, first);
    }
}

ptb_status ptb_host_run_merge(void *arg)
{
    const ptb_merge *a = arg;
    size_t count = a->batch * a->length * a->heads * a->head_width;
#pragma omp parallel for collapse(2) schedule(static) if (count > PTB_HOST_SERIAL)
    for (size_t b = 0; b < a->batch; b++)
        for (size_t row = 0; row < a->length; row++)
            merge_row(a, b, row);
    return PTB_OK;
}
