// The router of a mixture of experts on the host. Rows are cut at places that do not depend on the number of
// threads, and everything that threads exchange is a whole number or is added in order of these pieces, so
// the result is the same, bit by bit, for any number of threads.
#include "strategies/transformer/kernels_host.h"
#include "strategies/transformer/kernels_host_vector.h"
#include "strategies/transformer/route.h"

#include <omp.h>

enum {
    PIECES = 256, // of the rows; each is one thread's
    SUMMED = 16,  // pieces that are summed as one
    SUM_PIECES = PIECES / SUMMED,
};

// First row of a piece.
static size_t piece_row(size_t rows, size_t piece)
{
    return rows / PIECES * piece + rows % PIECES * piece / PIECES;
}

// v[i][j] and v[j][i] change places: first the quarters of the square off its diagonal, then those of each
// quarter, and so on.
static void transpose(ptb_vec *v)
{
#if defined PTB_VECTOR_512
    ptb_vec_int lane = ptb_vec_iota();
#pragma GCC unroll 4
    for (int s = PTB_LANES / 2; s; s /= 2) {
        ptb_vec_int right = (lane & s) != 0; // from PTB_LANES on, indices mean the second vector
        ptb_vec_int upper = (right & (lane - s + PTB_LANES)) | (~right & lane);
        ptb_vec_int lower = (right & (lane + PTB_LANES)) | (~right & (lane + s));
#pragma GCC unroll 16
        for (int i = 0; i < PTB_LANES; i++) {
            if (i & s)
                continue;
            __m512 x = (__m512)v[i], y = (__m512)v[i + s];
            v[i] = (ptb_vec)_mm512_permutex2var_ps(x, (__m512i)upper, y);
            v[i + s] = (ptb_vec)_mm512_permutex2var_ps(x, (__m512i)lower, y);
        }
    }
#else
    float(*x)[PTB_LANES] = (float(*)[PTB_LANES])v;
    for (int i = 0; i < PTB_LANES; i++)
        for (int j = 0; j < i; j++) {
            float kept = x[i][j];
            x[i][j] = x[j][i];
            x[j][i] = kept;
        }
#endif
}

// A block of rows is worked on transposed, a row a lane: nothing has to be summed across a vector, however
// few the experts are. tile[e] has expert e's numbers of the block's rows; behind the experts the tile is
// filled up to whole vectors of them, with zeros.
static void load_tile(ptb_vec *tile, const float *rows, size_t count, size_t experts)
{
    for (size_t e = 0; e < experts; e += PTB_LANES) {
        size_t some = experts - e < PTB_LANES ? experts - e : PTB_LANES;
        ptb_vec block[PTB_LANES];
        for (size_t r = 0; r < PTB_LANES; r++)
            block[r] = r < count ? ptb_vec_load_some(PTB_F32, rows, r * experts + e, some) : (ptb_vec){0};
        transpose(block);
        memcpy(tile + e, block, sizeof block);
    }
}

static void store_tile(float *rows, const ptb_vec *tile, size_t count, size_t experts)
{
    for (size_t e = 0; e < experts; e += PTB_LANES) {
        size_t some = experts - e < PTB_LANES ? experts - e : PTB_LANES;
        ptb_vec block[PTB_LANES];
        memcpy(block, tile + e, sizeof block);
        transpose(block);
        for (size_t r = 0; r < count; r++)
            ptb_vec_store_some(PTB_F32, rows, r * experts + e, some, block[r]);
    }
}

// Two chains of maxima and sums, so that one need not wait for the other.
static void softmax(ptb_vec *tile, size_t experts)
{
    ptb_vec top = tile[0], top2 = tile[experts - 1], sum = {0}, sum2 = {0};
    size_t even = experts / 2 * 2;
    for (size_t e = 0; e < even; e += 2) {
        top = ptb_vec_max(top, tile[e]);
        top2 = ptb_vec_max(top2, tile[e + 1]);
    }
    top = ptb_vec_max(top, top2);
    for (size_t e = 0; e < even; e += 2) {
        sum += tile[e] = ptb_vec_exp(tile[e] - top);
        sum2 += tile[e + 1] = ptb_vec_exp(tile[e + 1] - top);
    }
    if (even < experts)
        sum += tile[even] = ptb_vec_exp(tile[even] - top);
    ptb_vec scale = 1 / (sum + sum2);
    for (size_t e = 0; e < experts; e++)
        tile[e] *= scale;
}

typedef struct {
    ptb_vec_int bits, index;
} candidates;

// Expert e becomes the candidate of the rows in which it is better; a `chosen` expert leaves the tile.
PTB_INLINE void consider(candidates *best, ptb_vec_int *tile, size_t e, ptb_vec_int chosen)
{
    ptb_vec_int bits = tile[e] | (chosen == (int32_t)e); // -1 from now on
    ptb_vec_int better = bits > best->bits;
    tile[e] = bits;
    best->bits = (better & bits) | (~better & best->bits);
    best->index = (better & (int32_t)e) | (~better & best->index);
}

// Each row's largest probability in the tile, the smaller index first among equals, without `chosen`.
// Probabilities are compared by their bits, which order like the numbers because those are not negative, and
// have an order for NaN too: choices are distinct and valid whatever comes. Two chains, of even and odd
// experts.
static candidates next_choice(ptb_vec_int *tile, size_t experts, ptb_vec_int chosen)
{
    candidates best = {ptb_vec_int_set(-1), {0}}, odd = best;
    size_t e = 0;
    for (; e + 2 <= experts; e += 2) {
        consider(&best, tile, e, chosen);
        consider(&odd, tile, e + 1, chosen);
    }
    if (e < experts)
        consider(&best, tile, e, chosen);
    ptb_vec_int better = (odd.bits > best.bits) | ((odd.bits == best.bits) & (odd.index < best.index));
    best.bits = (better & odd.bits) | (~better & best.bits);
    best.index = (better & odd.index) | (~better & best.index);
    return best;
}

// The top_k choices of the `count` rows from `row` on, whose probabilities are in the tile and are used up;
// counts[e] += those of expert e.
static void choose(const ptb_route *a, ptb_vec *tile, size_t row, size_t count, int32_t *counts)
{
    ptb_vec_int *bits = (ptb_vec_int *)tile;
    candidates next = {.index = ptb_vec_int_set(-1)};
    for (size_t e = 0; e < a->experts; e++)
        bits[e] &= INT32_MAX; // a NaN's sign
    ptb_vec sum = {0};
    for (size_t k = 0; k < a->top_k; k++) {
        next = next_choice(bits, a->experts, next.index);
        sum += (ptb_vec)next.bits;
        for (size_t r = 0; r < count; r++) {
            size_t choice = (row + r) * a->top_k + k;
            a->expert[choice] = next.index[r];
            a->weight[choice] = ((ptb_vec)next.bits)[r];
            counts[next.index[r]]++;
        }
    }
    ptb_vec scale = 1 / sum;
    for (size_t r = 0; a->normalise && r < count; r++)
        for (size_t k = 0; k < a->top_k; k++)
            a->weight[(row + r) * a->top_k + k] *= scale[r];
}

// Probabilities, experts and weights of the rows [first, end); counts[e] += their choices.
static void route_rows(const ptb_route *a, size_t first, size_t end, int32_t *counts)
{
    ptb_vec tile[PTB_EXPERTS_MAX];
    size_t experts = a->experts;
    for (size_t row = first; row < end; row += PTB_LANES) {
        size_t count = end - row < PTB_LANES ? end - row : PTB_LANES;
        load_tile(tile, a->logits + row * experts, count, experts);
        softmax(tile, experts);
        store_tile(a->probabilities + row * experts, tile, count, experts);
        choose(a, tile, row, count, counts);
    }
}

// position[e] is where the first choice of these rows stands among all of expert e.
static void place_rows(const ptb_route *a, size_t first, size_t end, const int32_t *offsets,
                       int32_t *position)
{
    for (size_t i = first * a->top_k; i < end * a->top_k; i++) {
        int32_t e = a->expert[i], at = position[e]++;
        a->slot[i] = a->capacity && (size_t)at >= a->capacity ? -1 : offsets[e] + at;
    }
}

// The sum over the rows [first, end) of the dot product of counts and probabilities. A block of rows lies as
// `experts` vectors in a row, and so do the counts, repeated: counts [PTB_LANES, experts].
static double balance_rows(const ptb_route *a, size_t first, size_t end, const float *counts)
{
    double sum = 0;
    for (size_t row = first; row < end; row += PTB_LANES) {
        size_t n = (end - row < PTB_LANES ? end - row : PTB_LANES) * a->experts, i = 0;
        const float *p = a->probabilities + row * a->experts;
        ptb_vec dot = {0};
        for (; i + PTB_LANES <= n; i += PTB_LANES)
            dot += ptb_vec_load(PTB_F32, p, i) * ptb_vec_load(PTB_F32, counts, i);
        dot += ptb_vec_load_some(PTB_F32, p, i, n - i) * ptb_vec_load_some(PTB_F32, counts, i, n - i);
        sum += (double)ptb_vec_sum(dot);
    }
    return sum;
}

// out[e]: the sum over the rows [first, end) of expert e's probability. Blocks of rows as in balance_rows.
static void sum_rows(const ptb_route *a, size_t first, size_t end, double *out /* [experts] */)
{
    float sums[PTB_LANES * PTB_EXPERTS_MAX] __attribute__((aligned(64)));
    size_t vectors = a->experts; // of a block
    memset(sums, 0, vectors * PTB_LANES * sizeof *sums);
    for (size_t row = first; row < end; row += PTB_LANES) {
        size_t n = (end - row < PTB_LANES ? end - row : PTB_LANES) * a->experts, i = 0;
        const float *p = a->probabilities + row * a->experts;
        for (; i + PTB_LANES <= n; i += PTB_LANES)
            ptb_vec_store(PTB_F32, sums, i, ptb_vec_load(PTB_F32, sums, i) + ptb_vec_load(PTB_F32, p, i));
        for (; i < n; i++)
            sums[i] += p[i];
    }
    for (size_t e = 0; e < a->experts; e++) {
        out[e] = 0;
        for (size_t r = 0; r < PTB_LANES; r++)
            out[e] += (double)sums[r * a->experts + e];
    }
}

// One thread's share. `counted` [threads] shows the others where each thread's counts lie, `losses` [PIECES]
// takes the shares of the balance loss, `sums` [SUM_PIECES, experts] those of the probabilities' sums.
static void route_share(const ptb_route *a, const int32_t **counted, double *losses, double *sums)
{
    size_t threads = (size_t)omp_get_num_threads(), thread = (size_t)omp_get_thread_num();
    size_t first = PIECES * thread / threads, end = PIECES * (thread + 1) / threads;
    int32_t counts[PTB_EXPERTS_MAX], position[PTB_EXPERTS_MAX], offsets[PTB_EXPERTS_MAX];
    float totals[PTB_LANES * PTB_EXPERTS_MAX]; // repeated for a block of rows
    memset(counts, 0, a->experts * sizeof *counts);
    route_rows(a, piece_row(a->rows, first), piece_row(a->rows, end), counts);
    counted[thread] = counts;
#pragma omp barrier
    int32_t used = 0;
    for (size_t e = 0; e < a->experts; e++) {
        int32_t total = 0;
        for (size_t t = 0; t < threads; t++) {
            if (t == thread)
                position[e] = total;
            total += counted[t][e];
        }
        if (a->part && e % a->part == 0)
            used = (int32_t)(e * a->capacity);
        offsets[e] = used;
        for (size_t r = 0; r < PTB_LANES; r++)
            totals[r * a->experts + e] = (float)total;
        int32_t taken = ptb_route_taken(total, a->capacity);
        if (thread == 0) {
            a->offsets[e] = used;
            a->counts[e] = total;
            if (a->tally) {
                a->tally[e] += total;
                a->tally[a->experts + e] += taken;
            }
        }
        used += taken;
    }
    if (thread == 0)
        a->offsets[a->experts] = used;
#pragma omp barrier // counts are on the threads' stacks
    place_rows(a, piece_row(a->rows, first), piece_row(a->rows, end), offsets, position);
    if (a->loss)
        for (size_t p = first; p < end; p++)
            losses[p] = balance_rows(a, piece_row(a->rows, p), piece_row(a->rows, p + 1), totals);
    for (size_t p = SUM_PIECES * thread / threads; a->sums && p < SUM_PIECES * (thread + 1) / threads; p++)
        sum_rows(a, piece_row(a->rows, p * SUMMED), piece_row(a->rows, (p + 1) * SUMMED),
                 sums + p * a->experts);
}

ptb_status ptb_host_run_route(void *arg)
{
    const ptb_route *a = arg;
    PTB_TRY(ptb_route_check(a->rows, a->experts, a->top_k));
    const int32_t *counted[omp_get_max_threads()];
    double losses[PIECES], sum = 0, sums[SUM_PIECES * PTB_EXPERTS_MAX];
#pragma omp parallel
    route_share(a, counted, losses, sums);
    if (a->loss) {
        for (size_t p = 0; p < PIECES; p++)
            sum += losses[p];
        *a->loss += ptb_route_balance_factor(a->balance, a->scale, a->rows, 0, a->experts, a->top_k) * sum;
    }
    for (size_t e = 0; a->sums && e < a->experts; e++) {
        a->sums[e] = 0;
        for (size_t p = 0; p < SUM_PIECES; p++)
            a->sums[e] += sums[p * a->experts + e];
    }
    return PTB_OK;
}

ptb_status ptb_host_run_balance_loss(void *arg)
{
    const ptb_balance_loss *a = arg;
    double sum = 0;
    for (size_t i = 0; i < a->count; i++)
        sum += (double)a->counts[i] * a->sums[i];
    *a->loss += a->factor * sum;
    return PTB_OK;
}

// out[e] = p_e (d_e - sum_j p_j d_j), where d is the gradient to the probabilities: balance[e], and on the
// chosen experts that of their weights too. weight = p or p / (sum of the chosen p).
static void softmax_gradient(const ptb_route_gradient *a, size_t row, const float *balance, float *out)
{
    size_t experts = a->experts, top_k = a->top_k;
    const float *p = a->probabilities + row * experts, *weight = a->weight + row * top_k;
    const float *d_weight = a->d_weight + row * top_k;
    const int32_t *expert = a->expert + row * top_k;
    float scale = 1, mean = 0;
    if (a->normalise) {
        float sum = 0;
        for (size_t k = 0; k < top_k; k++) {
            sum += p[expert[k]];
            mean += d_weight[k] * weight[k];
        }
        scale = 1 / sum;
    }
    float dot = 0;
#pragma omp simd reduction(+ : dot)
    for (size_t e = 0; e < experts; e++)
        dot += p[e] * balance[e];
    for (size_t k = 0; k < top_k; k++)
        dot += p[expert[k]] * ((d_weight[k] - mean) * scale);
#pragma omp simd
    for (size_t e = 0; e < experts; e++)
        out[e] = p[e] * (balance[e] - dot);
    for (size_t k = 0; k < top_k; k++)
        out[expert[k]] += p[expert[k]] * ((d_weight[k] - mean) * scale);
}

// 16-bit types: a block of rows in f32, then rounded as one.
PTB_INLINE void gradient_block(const ptb_route_gradient *a, size_t row, const float *balance, ptb_dtype type)
{
    float block[PTB_LANES * PTB_EXPERTS_MAX];
    size_t count = a->rows - row < PTB_LANES ? a->rows - row : PTB_LANES, n = count * a->experts, i = 0;
    float *out = type == PTB_F32 ? (float *)a->d_logits + row * a->experts : block;
    for (size_t r = 0; r < count; r++)
        softmax_gradient(a, row + r, balance, out + r * a->experts);
    if (type == PTB_F32)
        return;
    for (; i + PTB_LANES <= n; i += PTB_LANES)
        ptb_vec_store(type, a->d_logits, row * a->experts + i, ptb_vec_load(PTB_F32, block, i));
    ptb_vec_store_some(type, a->d_logits, row * a->experts + i, n - i,
                       ptb_vec_load_some(PTB_F32, block, i, n - i));
}

ptb_status ptb_host_run_route_gradient(void *arg)
{
    const ptb_route_gradient *a = arg;
    size_t experts = a->experts;
    PTB_TRY(ptb_route_check(a->rows, experts, a->top_k));
    double factor = ptb_route_balance_factor(a->balance, a->scale, a->rows, a->counted, experts, a->top_k);
    float balance[PTB_EXPERTS_MAX]; // gradient of the balance loss to a probability of expert e
    for (size_t e = 0; e < experts; e++)
        balance[e] = (float)(factor * (double)(a->factor ? *a->factor : 1) * (double)a->counts[e]);
#pragma omp parallel for schedule(static)
    for (size_t row = 0; row < a->rows; row += PTB_LANES)
        switch (a->type) {
        case PTB_F32:
            gradient_block(a, row, balance, PTB_F32);
            break;
        case PTB_BF16:
            gradient_block(a, row, balance, PTB_BF16);
            break;
        default:
            gradient_block(a, row, balance, PTB_F16);
        }
    return PTB_OK;
}
