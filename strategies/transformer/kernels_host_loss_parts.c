// Cross-entropy on the host of logits whose columns are cut over ranks; see ptb_loss_statistics. Each of the
// two kernels reads a row once and makes one exponential a logit.
#include "strategies/transformer/kernels_host_tasks.h"

#include <float.h>
#include <math.h>

enum {
    TILE = 1024, // logits whose maximum is taken before their exponentials; they stay in the nearest cache
    SUMS = 4,    // independent partial results
};

static float tile_top(const float *logits, size_t count)
{
    ptb_vec tops[SUMS];
    size_t i = 0;
    for (size_t s = 0; s < SUMS; s++)
        tops[s] = ptb_vec_set(-FLT_MAX);
    for (; i + SUMS * PTB_LANES <= count; i += SUMS * PTB_LANES)
        for (size_t s = 0; s < SUMS; s++)
            tops[s] = ptb_vec_max(tops[s], ptb_vec_load(PTB_F32, logits, i + s * PTB_LANES));
    float top = ptb_vec_largest(ptb_vec_max(ptb_vec_max(tops[0], tops[1]), ptb_vec_max(tops[2], tops[3])));
    for (; i < count; i++)
        top = logits[i] > top ? logits[i] : top;
    return top;
}

// Sum of exp(logits - top).
static float tile_sum(const float *logits, size_t count, float top)
{
    ptb_vec sums[SUMS] = {{0}};
    size_t i = 0;
    for (; i + SUMS * PTB_LANES <= count; i += SUMS * PTB_LANES)
        for (size_t s = 0; s < SUMS; s++)
            sums[s] += ptb_vec_exp_below(ptb_vec_load(PTB_F32, logits, i + s * PTB_LANES) - top);
    for (; i < count; i += PTB_LANES) {
        size_t n = ptb_host_least(PTB_LANES, count - i);
        ptb_vec e = ptb_vec_exp_below(ptb_vec_load_some(PTB_F32, logits, i, n) - top);
        sums[0] += ptb_host_first_lanes(e, n);
    }
    return ptb_vec_sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

// Column of the row's target here; `vocabulary` or more: it is elsewhere, or the row does not count.
static size_t column_of(int32_t target, size_t first_token)
{
    return target < 0 ? SIZE_MAX : (size_t)target - first_token;
}

static void row_statistics(const ptb_loss_statistics *a, size_t r)
{
    const float *logits = a->logits + r * ptb_row_stride(a->stride, a->vocabulary);
    size_t column = column_of(a->targets[r], a->first_token);
    float top = -FLT_MAX, sum = 0; // finite, so that logits of minus infinity count as 0
    for (size_t first = 0; first < a->vocabulary; first += TILE) {
        size_t count = ptb_host_least(TILE, a->vocabulary - first);
        float of_tile = tile_top(logits + first, count);
        if (of_tile > top) {
            sum *= expf(top - of_tile);
            top = of_tile;
        }
        sum += tile_sum(logits + first, count, top);
    }
    a->statistics[r] = top;
    a->statistics[a->rows + r] = sum;
    a->statistics[2 * a->rows + r] = column < a->vocabulary ? logits[column] : -INFINITY;
}

ptb_status ptb_host_run_loss_statistics(void *arg)
{
    const ptb_loss_statistics *a = arg;
#pragma omp parallel for schedule(static) if (a->rows * a->vocabulary > PTB_HOST_SERIAL)
    for (size_t r = 0; r < a->rows; r++)
        row_statistics(a, r);
    return PTB_OK;
}

// Of a row's whole vocabulary.
typedef struct {
    float top;
    double sum, target; // sum: of exp(logit - top)
} merged;

static merged merge(const ptb_loss_gradient *a, size_t r)
{
    merged m = {-FLT_MAX, 0, -INFINITY};
    for (size_t part = 0; part < a->parts; part++) {
        const float *top = a->statistics + part * 3 * a->rows + r;
        m.top = *top > m.top ? *top : m.top;
        m.target = fmax(m.target, (double)top[2 * a->rows]);
    }
    for (size_t part = 0; part < a->parts; part++) {
        const float *top = a->statistics + part * 3 * a->rows + r;
        m.sum += (double)top[a->rows] * exp((double)*top - (double)m.top);
    }
    return m;
}

PTB_HOST_BODY row_gradient(ptb_dtype type, const ptb_loss_gradient *a, size_t r)
{
    size_t n = a->vocabulary, at = r * ptb_row_stride(a->stride, n);
    const float *logits = a->logits + at;
    char *d_logits = (char *)a->d_logits + at * ptb_dtype_size(type);
    if (a->targets[r] < 0) {
        memset(d_logits, 0, n * ptb_dtype_size(type));
        a->losses[r] = 0;
        return;
    }
    merged m = merge(a, r);
    double loss = log(m.sum) + ((double)m.top - m.target);
    double whole = a->scale * (a->factor ? (double)*a->factor : 1);
    float share = (float)(whole / m.sum);
    size_t i = 0, column = column_of(a->targets[r], a->first_token);
    for (; i + PTB_LANES <= n; i += PTB_LANES) {
        ptb_vec e = ptb_vec_exp_below(ptb_vec_load(PTB_F32, logits, i) - m.top);
        ptb_vec_store(type, d_logits, i, share * e);
    }
    if (i < n) {
        ptb_vec e = ptb_vec_exp_below(ptb_vec_load_some(PTB_F32, logits, i, n - i) - m.top);
        ptb_vec_store_some(type, d_logits, i, n - i, share * e);
    }
    if (column < n) // softmax - 1 = exp(-loss) - 1, not from the rounded softmax
        ptb_dtype_store(type, d_logits + column * ptb_dtype_size(type), whole * expm1(-loss));
    a->losses[r] = (float)loss;
}

ptb_status ptb_host_run_loss_gradient(void *arg)
{
    const ptb_loss_gradient *a = arg;
#pragma omp parallel for schedule(static) if (a->rows * a->vocabulary > PTB_HOST_SERIAL)
    for (size_t r = 0; r < a->rows; r++)
        PTB_HOST_TYPED(row_gradient, a->type, a, r);
    double loss = a->accumulate ? *a->loss : 0;
    for (size_t r = 0; r < a->rows; r++)
        loss += a->scale * (double)a->losses[r];
    *a->loss = loss;
    return PTB_OK;
}
