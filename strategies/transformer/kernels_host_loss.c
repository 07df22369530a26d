// Cross-entropy on the host, forward and backward: two passes over the logits of a row, the second of which
// finds them in the caches. The first one takes the maximum and the sum of exponentials a tile at a time and
// rescales the sum where the maximum grows (online softmax: Milakov and Gimelshein 2018).
#include "strategies/transformer/kernels_host_tasks.h"

#include <float.h>
#include <math.h>

enum { TILE = 64 * PTB_LANES, SUMS = 4 };

static float tile_max(const float *logits, size_t count)
{
    ptb_vec top[SUMS];
    size_t i = 0;
    for (size_t s = 0; s < SUMS; s++)
        top[s] = ptb_vec_set(-INFINITY);
    for (; i + SUMS * PTB_LANES <= count; i += SUMS * PTB_LANES)
        for (size_t s = 0; s < SUMS; s++)
            top[s] = ptb_vec_max(top[s], ptb_vec_load(PTB_F32, logits, i + s * PTB_LANES));
    float most = ptb_vec_largest(ptb_vec_max(ptb_vec_max(top[0], top[1]), ptb_vec_max(top[2], top[3])));
    for (; i < count; i++)
        most = logits[i] > most ? logits[i] : most;
    return most;
}

// Sum of exp(logits - top).
static float tile_sum(const float *logits, size_t count, float top)
{
    ptb_vec sums[SUMS] = {{0}};
    size_t i = 0;
    for (; i + SUMS * PTB_LANES <= count; i += SUMS * PTB_LANES)
        for (size_t s = 0; s < SUMS; s++)
            sums[s] += ptb_vec_exp(ptb_vec_load(PTB_F32, logits, i + s * PTB_LANES) - top);
    for (; i < count; i += PTB_LANES) {
        size_t n = ptb_host_least(PTB_LANES, count - i);
        sums[0] += ptb_host_first_lanes(ptb_vec_exp(ptb_vec_load_some(PTB_F32, logits, i, n) - top), n);
    }
    return ptb_vec_sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

// Largest logit, and sum of exp(logits - top).
static void row_sum(const float *logits, size_t count, float *top_out, float *sum_out)
{
    float top = -FLT_MAX, sum = 0;
    for (size_t first = 0; first < count; first += TILE) {
        size_t n = ptb_host_least(TILE, count - first);
        float most = tile_max(logits + first, n);
        if (most > top) {
            sum *= expf(top - most);
            top = most;
        }
        sum += tile_sum(logits + first, n, top);
    }
    *top_out = top;
    *sum_out = sum;
}

// d_logits = share * exp(logits - top)
PTB_HOST_BODY scale_row(ptb_dtype type, void *d_logits, const float *logits, size_t count, float top,
                        float share)
{
    size_t i = 0;
    for (; i + PTB_LANES <= count; i += PTB_LANES)
        ptb_vec_store(type, d_logits, i, share * ptb_vec_exp(ptb_vec_load(PTB_F32, logits, i) - top));
    if (i < count) {
        ptb_vec p = ptb_vec_exp(ptb_vec_load_some(PTB_F32, logits, i, count - i) - top);
        ptb_vec_store_some(type, d_logits, i, count - i, share * p);
    }
}

PTB_HOST_BODY loss_row(ptb_dtype type, const ptb_cross_entropy *a, size_t r)
{
    size_t n = a->vocabulary, size = ptb_dtype_size(type);
    const float *logits = a->logits + r * n;
    char *d_logits = (char *)a->d_logits + r * n * size;
    if (a->targets[r] < 0) {
        memset(d_logits, 0, n * size);
        a->losses[r] = 0;
        return;
    }
    size_t target = (size_t)a->targets[r];
    float wanted = logits[target], top, sum; // d_logits may overwrite the logits
    row_sum(logits, n, &top, &sum);
    double loss = log((double)sum) + ((double)top - (double)wanted);
    double share = a->scale * (a->factor ? (double)*a->factor : 1);
    scale_row(type, d_logits, logits, n, top, (float)(share / (double)sum));
    // softmax - 1 = exp(-loss) - 1, not from the rounded softmax.
    ptb_dtype_store(type, d_logits + target * size, share * expm1(-loss));
    a->losses[r] = (float)loss;
}

ptb_status ptb_host_run_cross_entropy(void *arg)
{
    const ptb_cross_entropy *a = arg;
#pragma omp parallel for schedule(static) if (a->rows * a->vocabulary > PTB_HOST_SERIAL)
    for (size_t r = 0; r < a->rows; r++)
        PTB_HOST_TYPED(loss_row, a->type, a, r);
    double loss = a->accumulate ? *a->loss : 0;
    for (size_t r = 0; r < a->rows; r++)
        loss += a->scale * (double)a->losses[r];
    *a->loss = loss;
    return PTB_OK;
}
