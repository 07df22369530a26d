// Cross-entropy on the host, forward and backward: one exponential a logit and two passes over a row, the
// second of which finds it in the caches. The first one goes tile by tile: it makes exponentials relative to
// the largest logit so far and rescales their sum when that grows (online softmax: Milakov and Gimelshein
// 2018); the second one brings all tiles to the same maximum. While a tile's exponentials are computed, the
// maximum of the next tile is taken, so that waiting for memory and arithmetic overlap.
#include "strategies/transformer/kernels_host_tasks.h"

#include <float.h>
#include <math.h>

#include <omp.h>

enum {
    TILE_F32 = 1024, // least logits of a tile; two tiles stay in the first-level cache
    TILE_HALF = 2048,
    TILES = 256,  // most tiles of a row; longer rows have longer tiles
    UNROLL = 4,   // vectors of a step
    SUMS = 2,     // independent partial results
    AHEAD = 6144, // logits to ask for memory ahead of their exponentials, several tiles
    AGAIN = 512,  // exponentials to ask the second-level cache for ahead of their use
};

static float largest(const ptb_vec *tops)
{
    return ptb_vec_largest(ptb_vec_max(tops[0], tops[1]));
}

static float tile_max(const float *logits, size_t count)
{
    ptb_vec tops[SUMS];
    size_t i = 0;
    for (size_t s = 0; s < SUMS; s++)
        tops[s] = ptb_vec_set(-INFINITY);
    for (; i + UNROLL * PTB_LANES <= count; i += UNROLL * PTB_LANES)
        for (size_t s = 0; s < UNROLL; s++)
            tops[s % SUMS] = ptb_vec_max(tops[s % SUMS], ptb_vec_load(PTB_F32, logits, i + s * PTB_LANES));
    float most = largest(tops);
    for (; i < count; i++)
        most = logits[i] > most ? logits[i] : most;
    return most;
}

// out = exp(logits - top), which may replace the logits; returns their sum. Powers err more the smaller they
// are, and count less. *next: the largest of the `count` logits behind the tile when `looks_ahead` (count: a
// multiple of UNROLL vectors).
PTB_INLINE float tile_exp(float *out, const float *logits, size_t count, float top, bool looks_ahead,
                          float *next)
{
    ptb_vec sums[SUMS] = {{0}}, tops[SUMS];
    size_t i = 0;
    for (size_t s = 0; s < SUMS; s++)
        tops[s] = ptb_vec_set(-INFINITY);
    for (; i + UNROLL * PTB_LANES <= count; i += UNROLL * PTB_LANES)
        for (size_t s = 0; s < UNROLL; s++) {
            size_t at = i + s * PTB_LANES;
            ptb_host_prefetch(PTB_F32, logits, at + AHEAD);
            ptb_vec e = ptb_vec_exp_below(ptb_vec_load(PTB_F32, logits, at) - top);
            sums[s % SUMS] += e;
            ptb_vec_store(PTB_F32, out, at, e);
            if (looks_ahead)
                tops[s % SUMS] = ptb_vec_max(tops[s % SUMS], ptb_vec_load(PTB_F32, logits, at + count));
        }
    for (; i < count; i += PTB_LANES) {
        size_t n = ptb_host_least(PTB_LANES, count - i);
        ptb_vec e = ptb_vec_exp_below(ptb_vec_load_some(PTB_F32, logits, i, n) - top);
        e = ptb_host_first_lanes(e, n);
        sums[0] += e;
        ptb_vec_store_some(PTB_F32, out, i, n, e);
    }
    if (looks_ahead)
        *next = largest(tops);
    return ptb_vec_sum(sums[0] + sums[1]);
}

// What the first pass over a row leaves.
typedef struct {
    size_t tile, tiles; // logits of a tile; number of tiles
    float sum, top;     // of exp(logits - top)
    float tops[TILES];  // of each tile's exponentials
} row_sums;

static void sum_row(float *exponentials, const float *logits, size_t n, size_t tile_least, row_sums *row)
{
    size_t tile = ptb_host_round_up((n + TILES - 1) / TILES, UNROLL * PTB_LANES);
    row->tile = tile < tile_least ? tile_least : tile;
    row->tiles = 0;
    row->sum = 0;
    row->top = -FLT_MAX;
    float most = tile_max(logits, ptb_host_least(row->tile, n));
    for (size_t first = 0; first < n; first += row->tile) {
        size_t count = ptb_host_least(row->tile, n - first), rest = n - first - count;
        const float *tile_logits = logits + first;
        float before = row->top;
        row->top = most > before ? most : before;
        row->tops[row->tiles++] = row->top;
        if (row->top != before)
            row->sum *= expf(before - row->top);
        if (rest >= count) {
            row->sum += tile_exp(exponentials + first, tile_logits, count, row->top, true, &most);
        } else {
            most = tile_max(tile_logits + count, rest);
            row->sum += tile_exp(exponentials + first, tile_logits, count, row->top, false, NULL);
        }
    }
}

PTB_HOST_BODY scale_some(ptb_dtype type, void *out, const float *exponentials, size_t first, size_t end,
                         float share)
{
    for (size_t i = first; i < end; i += PTB_LANES) {
        size_t n = ptb_host_least(PTB_LANES, end - i);
        ptb_vec_store_some(type, out, i, n, share * ptb_vec_load_some(PTB_F32, exponentials, i, n));
    }
}

// out = share * exponentials, elements [first, end)
PTB_HOST_BODY scale_tile(ptb_dtype type, bool stream, void *out, const float *exponentials, size_t first,
                         size_t end, float share)
{
    size_t i = first, size = ptb_dtype_size(type);
    if (stream) { // whole lines: rows may begin anywhere
        size_t misses = (size_t)(-((uintptr_t)out + first * size) % PTB_HOST_LINE) / size;
        i = ptb_host_least(end, first + misses);
        scale_some(type, out, exponentials, first, i, share);
    }
    for (; i + UNROLL * PTB_LANES <= end; i += UNROLL * PTB_LANES)
        for (size_t s = 0; s < UNROLL; s++) {
            size_t at = i + s * PTB_LANES;
            ptb_host_prefetch(PTB_F32, exponentials, at + AGAIN);
            ptb_host_store(stream, type, out, at, PTB_LANES, share * ptb_vec_load(PTB_F32, exponentials, at));
        }
    scale_some(type, out, exponentials, i, end, share);
}

// exponentials: n values for the time of this call, which may be the row's logits or its d_logits.
PTB_HOST_BODY loss_row(ptb_dtype type, const ptb_cross_entropy *a, size_t r, float *exponentials, bool stream)
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
    float wanted = logits[target];
    row_sums row;
    sum_row(exponentials, logits, n, type == PTB_F32 ? TILE_F32 : TILE_HALF, &row);
    double loss = log((double)row.sum) + ((double)row.top - (double)wanted);
    double share = a->scale * (a->factor ? (double)*a->factor : 1);
    for (size_t t = 0; t < row.tiles; t++) {
        size_t first = t * row.tile, end = ptb_host_least(n, first + row.tile);
        double grown = row.tops[t] == row.top ? 1 : exp((double)row.tops[t] - (double)row.top);
        scale_tile(type, stream, d_logits, exponentials, first, end,
                   (float)(share / (double)row.sum * grown));
    }
    ptb_host_fence(stream);
    // softmax - 1 = exp(-loss) - 1, not from the rounded softmax.
    ptb_dtype_store(type, d_logits + target * size, share * expm1(-loss));
    a->losses[r] = (float)loss;
}

// The rows of one thread. In f32 exponentials stand where the gradient will; for 16-bit types the logits of
// the thread's first row keep those of every row: they stay in the second-level cache, and the logits of the
// other rows are not written back to memory.
static void loss_rows(const ptb_cross_entropy *a, size_t first, size_t end, bool stream)
{
    size_t n = a->vocabulary;
    for (size_t r = first; r < end; r++)
        if (a->type == PTB_F32)
            loss_row(PTB_F32, a, r, (float *)a->d_logits + r * n, false);
        else if (a->type == PTB_BF16)
            loss_row(PTB_BF16, a, r, a->logits + first * n, stream);
        else
            loss_row(PTB_F16, a, r, a->logits + first * n, stream);
}

ptb_status ptb_host_run_cross_entropy(void *arg)
{
    const ptb_cross_entropy *a = arg;
    size_t bytes = a->rows * a->vocabulary * (sizeof(float) + ptb_dtype_size(a->type));
    bool stream = a->type != PTB_F32 && bytes >= PTB_HOST_STREAM;
#pragma omp parallel if (a->rows * a->vocabulary > PTB_HOST_SERIAL)
    {
        size_t threads = (size_t)omp_get_num_threads(), thread = (size_t)omp_get_thread_num();
        loss_rows(a, a->rows * thread / threads, a->rows * (thread + 1) / threads, stream);
    }
    double loss = a->accumulate ? *a->loss : 0;
    for (size_t r = 0; r < a->rows; r++)
        loss += a->scale * (double)a->losses[r];
    *a->loss = loss;
    return PTB_OK;
}
