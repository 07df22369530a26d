// Cross-entropy on the host, forward and backward: one exponential a logit and two passes over a row, the
// second of which finds it in the caches. The first one goes tile by tile: it makes exponentials relative to
// the largest logit so far and rescales their sum when that grows (online softmax: Milakov and Gimelshein
// 2018); the second one brings all tiles to the same maximum. While a tile's exponentials are computed, the
// maximum of the next tile is taken, so that waiting for memory and arithmetic overlap. For 16-bit gradients
// the second pass over a row and the first one over the next row are one loop: the exponentials of the next
// row take the place of those that were just used.
#include "collectives/algorithm.h"
#include "strategies/transformer/kernels_host_tasks.h"

#include <float.h>
#include <math.h>

#include <omp.h>

enum {
    TILE_F32 = 1024, // least logits of a tile; two tiles stay in the first-level cache
    TILE_HALF = 2048,
    TILE_MOST = 4096, // of a tile whose gradients are streamed from a buffer
    TILES = 256,      // most tiles of a row; longer rows have longer tiles
    UNROLL = 4,       // vectors of a step
    SUMS = 4,         // independent partial results
    AHEAD = 6144,     // logits to ask for memory ahead of their exponentials, several tiles
    AGAIN = 512,      // exponentials to ask the second-level cache for ahead of their use
};

static float largest(const ptb_vec *tops)
{
    return ptb_vec_largest(ptb_vec_max(ptb_vec_max(tops[0], tops[1]), ptb_vec_max(tops[2], tops[3])));
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

// Part of a row whose exponentials are scaled while those of the next row take their place.
typedef struct {
    void *out;   // 16-bit gradients; NULL: there is no such row
    float share; // what to multiply with
} scaled_part;

// out = exp(logits - top), which may replace the logits; returns their sum. Powers err more the smaller they
// are, and count less. *next: the largest of the `count` logits behind the tile when `looks_ahead` (count: a
// multiple of UNROLL vectors). Where `scales`, what was in out is scaled and stored as `type` before.
PTB_INLINE float tile_exp(ptb_dtype type, bool scales, scaled_part before, float *out, const float *logits,
                          size_t count, float top, bool looks_ahead, float *next)
{
    ptb_vec sums[SUMS] = {{0}}, tops[SUMS];
    size_t i = 0;
    for (size_t s = 0; s < SUMS; s++)
        tops[s] = ptb_vec_set(-INFINITY);
    for (; i + UNROLL * PTB_LANES <= count; i += UNROLL * PTB_LANES)
        for (size_t s = 0; s < UNROLL; s++) {
            size_t at = i + s * PTB_LANES;
            ptb_host_prefetch(PTB_F32, logits, at + AHEAD);
            if (scales)
                ptb_vec_store(type, before.out, at, before.share * ptb_vec_load(PTB_F32, out, at));
            ptb_vec e = ptb_vec_exp_below(ptb_vec_load(PTB_F32, logits, at) - top);
            sums[s % SUMS] += e;
            ptb_vec_store(PTB_F32, out, at, e);
            if (looks_ahead)
                tops[s % SUMS] = ptb_vec_max(tops[s % SUMS], ptb_vec_load(PTB_F32, logits, at + count));
        }
    for (; i < count; i += PTB_LANES) {
        size_t n = ptb_host_least(PTB_LANES, count - i);
        if (scales)
            ptb_vec_store_some(type, before.out, i, n, before.share * ptb_vec_load_some(PTB_F32, out, i, n));
        ptb_vec e = ptb_vec_exp_below(ptb_vec_load_some(PTB_F32, logits, i, n) - top);
        e = ptb_host_first_lanes(e, n);
        sums[0] += e;
        ptb_vec_store_some(PTB_F32, out, i, n, e);
    }
    if (looks_ahead)
        *next = largest(tops);
    return ptb_vec_sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

// What the first pass over a row leaves.
typedef struct {
    size_t tile, tiles; // logits of a tile; number of tiles
    float sum, top;     // of exp(logits - top)
    float tops[TILES];  // of each tile's exponentials
} row_sums;

// A row whose gradients are not written yet.
typedef struct {
    row_sums sums;
    char *d_logits; /* [vocabulary] */
    double share;   // what the softmax is multiplied with
    double loss;
    size_t target;
} pending_row;

// What to multiply the exponentials of a tile with.
static float tile_share(const row_sums *row, size_t tile, double share)
{
    double grown = row->tops[tile] == row->top ? 1 : exp((double)row->tops[tile] - (double)row->top);
    return (float)(share / (double)row->sum * grown);
}

// The first pass over a row of n logits. Where `scales`, it is the second pass over *before, whose
// exponentials are replaced; `buffer` (TILE_MOST gradients) where they are then streamed past the caches,
// else NULL.
PTB_HOST_BODY sum_row(ptb_dtype type, bool scales, const pending_row *before, uint16_t *buffer,
                      float *exponentials, const float *logits, size_t n, row_sums *row)
{
    size_t tile = ptb_host_round_up((n + TILES - 1) / TILES, UNROLL * PTB_LANES);
    size_t tile_least = type == PTB_F32 ? TILE_F32 : TILE_HALF;
    row->tile = tile < tile_least ? tile_least : tile;
    row->tiles = 0;
    row->sum = 0;
    row->top = -FLT_MAX;
    float most = tile_max(logits, ptb_host_least(row->tile, n));
    for (size_t first = 0; first < n; first += row->tile) {
        size_t count = ptb_host_least(row->tile, n - first), rest = n - first - count;
        const float *tile_logits = logits + first;
        float top = row->top;
        scaled_part part = {NULL, 0};
        char *d_logits = scales ? before->d_logits + first * sizeof(uint16_t) : NULL;
        bool streams = buffer && count <= TILE_MOST;
        if (scales)
            part = (scaled_part){streams ? (char *)buffer : d_logits,
                                 tile_share(&before->sums, row->tiles, before->share)};
        row->top = most > top ? most : top;
        row->tops[row->tiles++] = row->top;
        if (row->top != top)
            row->sum *= expf(top - row->top);
        float *out = exponentials + first;
        if (rest >= count) {
            row->sum += tile_exp(type, scales, part, out, tile_logits, count, row->top, true, &most);
        } else {
            most = tile_max(tile_logits + count, rest);
            row->sum += tile_exp(type, scales, part, out, tile_logits, count, row->top, false, NULL);
        }
        if (scales && streams)
            ptb_copy_streaming(d_logits, buffer, count * sizeof *buffer);
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

// The row's loss, once its sums are known.
static void finish_loss(const ptb_cross_entropy *a, size_t r, pending_row *row)
{
    row->target = (size_t)a->targets[r];
    row->d_logits =
        (char *)a->d_logits + r * ptb_row_stride(a->stride, a->vocabulary) * ptb_dtype_size(a->type);
    row->share = a->scale * (a->factor ? (double)*a->factor : 1);
    a->losses[r] = (float)row->loss;
}

// softmax - 1 = exp(-loss) - 1, not from the rounded softmax.
static void store_target(ptb_dtype type, const pending_row *row, bool stream)
{
    ptb_host_fence(stream);
    ptb_dtype_store(type, row->d_logits + row->target * ptb_dtype_size(type), row->share * expm1(-row->loss));
}

// The second pass over a row.
PTB_HOST_BODY scale_row(ptb_dtype type, bool stream, const pending_row *row, const float *exponentials,
                        size_t n)
{
    for (size_t t = 0; t < row->sums.tiles; t++) {
        size_t first = t * row->sums.tile, end = ptb_host_least(n, first + row->sums.tile);
        scale_tile(type, stream, row->d_logits, exponentials, first, end,
                   tile_share(&row->sums, t, row->share));
    }
    store_target(type, row, stream);
}

// The rows of one thread. In f32 exponentials stand where the gradient will; for 16-bit types the logits of
// the thread's first row keep those of every row: they stay in the second-level cache, and the logits of the
// other rows are not written back to memory.
PTB_HOST_BODY loss_rows(ptb_dtype type, const ptb_cross_entropy *a, size_t first, size_t end, bool stream)
{
    size_t n = a->vocabulary, stride = ptb_row_stride(a->stride, n);
    uint16_t buffer[TILE_MOST];
    pending_row rows[2], *waits = NULL;
    for (size_t r = first; r < end; r++) {
        if (a->targets[r] < 0) {
            memset((char *)a->d_logits + r * stride * ptb_dtype_size(type), 0, n * ptb_dtype_size(type));
            a->losses[r] = 0;
            continue;
        }
        pending_row *row = waits == rows ? rows + 1 : rows;
        const float *logits = a->logits + r * stride;
        double wanted = (double)logits[a->targets[r]];
        float *exponentials =
            type == PTB_F32 ? (float *)a->d_logits + r * stride : a->logits + first * stride;
        if (type != PTB_F32 && waits) {
            sum_row(type, true, waits, stream ? buffer : NULL, exponentials, logits, n, &row->sums);
            store_target(type, waits, stream);
        } else {
            sum_row(type, false, NULL, NULL, exponentials, logits, n, &row->sums);
        }
        row->loss = log((double)row->sums.sum) + ((double)row->sums.top - wanted);
        finish_loss(a, r, row);
        if (type == PTB_F32)
            scale_row(type, false, row, exponentials, n);
        else
            waits = row;
    }
    if (waits)
        scale_row(type, stream, waits, a->logits + first * stride, n);
}

ptb_status ptb_host_run_cross_entropy(void *arg)
{
    const ptb_cross_entropy *a = arg;
    size_t bytes = a->rows * a->vocabulary * (sizeof(float) + ptb_dtype_size(a->type));
    bool stream = a->type != PTB_F32 && bytes >= PTB_HOST_STREAM;
#pragma omp parallel if (a->rows * a->vocabulary > PTB_HOST_SERIAL)
    {
        size_t threads = (size_t)omp_get_num_threads(), thread = (size_t)omp_get_thread_num();
        PTB_HOST_TYPED(loss_rows, a->type, a, a->rows * thread / threads, a->rows * (thread + 1) / threads,
                       stream);
    }
    double loss = a->accumulate ? *a->loss : 0;
    for (size_t r = 0; r < a->rows; r++)
        loss += a->scale * (double)a->losses[r];
    *a->loss = loss;
    return PTB_OK;
}
