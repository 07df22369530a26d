// Cross-entropy on the host, forward and backward: one exponential a logit and two passes over a row, the
// second of which finds it in the caches. The first one goes tile by tile: it replaces logits by exponentials
// relative to the largest logit so far and rescales their sum when that grows (online softmax: Milakov and
// Gimelshein 2018); the second one brings all tiles to the same maximum.
#include "strategies/transformer/kernels_host_tasks.h"

#include <float.h>
#include <math.h>

enum {
    TILE_LEAST = 1024, // logits of a tile, which stays in the first-level cache
    TILES = 256,       // most tiles of a row; longer rows have longer tiles
    SUMS = 4,          // independent partial results
};

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

// exp(x - top) for x <= top. As a power of 2 it errs by up to (top - x) / 2 units in the last place: a power
// that small counts for little.
PTB_INLINE ptb_vec exp_below(ptb_vec x, float top)
{
    return ptb_vec_exp2((x - top) * 1.44269504f);
}

// Replaces logits by exp(logits - top) and returns their sum; asks for the next tile's lines meanwhile.
static float tile_exp(float *logits, size_t count, float top)
{
    ptb_vec sums[SUMS] = {{0}};
    size_t i = 0;
    for (; i + SUMS * PTB_LANES <= count; i += SUMS * PTB_LANES)
        for (size_t s = 0; s < SUMS; s++) {
            size_t at = i + s * PTB_LANES;
            ptb_host_prefetch(PTB_F32, logits, at + count);
            ptb_vec e = exp_below(ptb_vec_load(PTB_F32, logits, at), top);
            sums[s] += e;
            ptb_vec_store(PTB_F32, logits, at, e);
        }
    for (; i < count; i += PTB_LANES) {
        size_t n = ptb_host_least(PTB_LANES, count - i);
        ptb_vec e = exp_below(ptb_vec_load_some(PTB_F32, logits, i, n), top);
        e = ptb_host_first_lanes(e, n);
        sums[0] += e;
        ptb_vec_store_some(PTB_F32, logits, i, n, e);
    }
    return ptb_vec_sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

// out = share * exponentials
PTB_HOST_BODY scale_tile(ptb_dtype type, void *out, const float *exponentials, size_t first, size_t end,
                         float share)
{
    size_t i = first;
    for (; i + PTB_LANES <= end; i += PTB_LANES)
        ptb_vec_store(type, out, i, share * ptb_vec_load(PTB_F32, exponentials, i));
    if (i < end)
        ptb_vec_store_some(type, out, i, end - i,
                           share * ptb_vec_load_some(PTB_F32, exponentials, i, end - i));
}

PTB_HOST_BODY loss_row(ptb_dtype type, const ptb_cross_entropy *a, size_t r)
{
    size_t n = a->vocabulary, size = ptb_dtype_size(type);
    float *logits = a->logits + r * n;
    char *d_logits = (char *)a->d_logits + r * n * size;
    if (a->targets[r] < 0) {
        memset(d_logits, 0, n * size);
        a->losses[r] = 0;
        return;
    }
    size_t target = (size_t)a->targets[r];
    float wanted = logits[target], top = -FLT_MAX, sum = 0, tops[TILES];
    size_t tile = ptb_host_round_up((n + TILES - 1) / TILES, PTB_LANES), tiles = 0;
    tile = tile < TILE_LEAST ? TILE_LEAST : tile;
    for (size_t first = 0; first < n; first += tile) {
        size_t count = ptb_host_least(tile, n - first);
        float before = top, most = tile_max(logits + first, count);
        top = most > top ? most : top;
        sum = sum * expf(before - top) + tile_exp(logits + first, count, top);
        tops[tiles++] = top;
    }
    double loss = log((double)sum) + ((double)top - (double)wanted);
    double share = a->scale * (a->factor ? (double)*a->factor : 1);
    for (size_t t = 0; t < tiles; t++) {
        float scale = (float)(share / (double)sum * exp((double)tops[t] - (double)top));
        scale_tile(type, d_logits, logits, t * tile, ptb_host_least(n, (t + 1) * tile), scale);
    }
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
