// Moving rows to the slots of their experts and back, on the host; the router is in kernels_host_route.c. A
// thread owns rows, a row is computed alone and its choices are added in order of k, so results do not depend
// on the number of threads. Each type has its own copy of the loops: `type` is a constant where they are
// inlined.
#include "collectives/algorithm.h"
#include "collectives/team.h"
#include "strategies/transformer/kernels_host.h"
#include "strategies/transformer/kernels_host_vector.h"

enum {
    TILE = 4,               // vectors of a row that are in registers at once
    STREAM_BYTES = 16 << 20 // dispatched rows that are more than this are written past the caches
};

// The first `lanes` elements; whole vectors, a constant, without a mask.
PTB_INLINE ptb_vec load(ptb_dtype type, const void *base, size_t first, size_t lanes)
{
    return lanes == PTB_LANES ? ptb_vec_load(type, base, first) : ptb_vec_load_some(type, base, first, lanes);
}

PTB_INLINE void store(ptb_dtype type, void *base, size_t first, size_t lanes, ptb_vec x)
{
    if (lanes == PTB_LANES)
        ptb_vec_store(type, base, first, x);
    else
        ptb_vec_store_some(type, base, first, lanes, x);
}

ptb_status ptb_host_run_dispatch(void *arg)
{
    const ptb_dispatch *a = arg;
    size_t bytes = a->width * ptb_dtype_size(a->type);
    // What does not fit the caches must not be read into them before it is written.
    bool stream = a->rows * a->top_k * bytes > STREAM_BYTES;
#pragma omp parallel
    {
#pragma omp for schedule(static)
        for (size_t r = 0; r < a->rows; r++) {
            const char *in = (const char *)a->in + r * bytes;
            for (size_t k = 0; k < a->top_k; k++) {
                int32_t slot = a->slot[r * a->top_k + k];
                if (slot < 0)
                    continue;
                if (stream)
                    ptb_copy_streaming((char *)a->out + (size_t)slot * bytes, in, bytes);
                else
                    memcpy((char *)a->out + (size_t)slot * bytes, in, bytes);
            }
        }
        ptb_team_fence();
    }
    return PTB_OK;
}

// What a row of dispatch_gradient or combine is made from: element first + c of out is that of base, plus the
// sum over k of weight[k] * in[slot[k]][c].
typedef struct {
    void *out;
    const void *base;    // NULL: none; may be out
    size_t first;        // element of out and base
    const void *in;      /* [slots, width] */
    const float *weight; // of the choices; NULL: 1
    const int32_t *slot; /* [top_k] */
    size_t top_k, width;
} gather;

// `vectors` (a constant) vectors of the row from column c on; the last one has `lanes` elements.
PTB_INLINE void gather_tile(const gather *g, size_t c, ptb_dtype type, int vectors, size_t lanes)
{
    ptb_vec sum[TILE];
    for (int v = 0; v < vectors; v++) {
        sum[v] = (ptb_vec){0};
        if (g->base)
            sum[v] = load(type, g->base, g->first + c + (size_t)v * PTB_LANES, lanes);
    }
    for (size_t k = 0; k < g->top_k; k++) {
        if (g->slot[k] < 0)
            continue;
        size_t at = (size_t)g->slot[k] * g->width + c;
        float weight = g->weight ? g->weight[k] : 1;
        for (int v = 0; v < vectors; v++)
            sum[v] += load(type, g->in, at + (size_t)v * PTB_LANES, lanes) * weight;
    }
    for (int v = 0; v < vectors; v++)
        store(type, g->out, g->first + c + (size_t)v * PTB_LANES, lanes, sum[v]);
}

PTB_INLINE void gather_row(const gather *g, ptb_dtype type)
{
    size_t c = 0, width = g->width;
    for (; c + TILE * PTB_LANES <= width; c += TILE * PTB_LANES)
        gather_tile(g, c, type, TILE, PTB_LANES);
    for (; c + PTB_LANES <= width; c += PTB_LANES)
        gather_tile(g, c, type, 1, PTB_LANES);
    if (c < width)
        gather_tile(g, c, type, 1, width - c);
}

PTB_INLINE void combine_rows(const ptb_combine *a, ptb_dtype type)
{
#pragma omp parallel for schedule(static)
    for (size_t r = 0; r < a->rows; r++) {
        gather g = {.out = a->out,
                    .base = a->residual,
                    .first = r * a->width,
                    .in = a->in,
                    .weight = a->weight + r * a->top_k,
                    .slot = a->slot + r * a->top_k,
                    .top_k = a->top_k,
                    .width = a->width};
        gather_row(&g, type);
    }
}

PTB_INLINE void dispatch_gradient_rows(const ptb_dispatch_gradient *a, ptb_dtype type)
{
#pragma omp parallel for schedule(static)
    for (size_t r = 0; r < a->rows; r++) {
        gather g = {.out = a->d_in,
                    .base = a->accumulate ? a->d_in : NULL,
                    .first = r * a->width,
                    .in = a->d_out,
                    .slot = a->slot + r * a->top_k,
                    .top_k = a->top_k,
                    .width = a->width};
        gather_row(&g, type);
    }
}

// A choice's slot and row: d_in[slot][c] = weight * d_out[row][c]; dot += in[slot][c] * d_out[row][c], for
// `vectors` (a constant) vectors from column c on; the last one has `lanes` elements.
PTB_INLINE void scatter_tile(const ptb_combine_gradient *a, size_t choice, size_t c, ptb_dtype type,
                             int vectors, size_t lanes, ptb_vec *dot)
{
    size_t slot = (size_t)a->slot[choice] * a->width + c, row = choice / a->top_k * a->width + c;
    float weight = a->weight[choice];
    for (int v = 0; v < vectors; v++, slot += PTB_LANES, row += PTB_LANES) {
        ptb_vec x = load(type, a->in, slot, lanes);
        ptb_vec d = load(type, a->d_out, row, lanes);
        dot[v] += x * d;
        store(type, a->d_in, slot, lanes, d * weight);
    }
}

PTB_INLINE float scatter_row(const ptb_combine_gradient *a, size_t choice, ptb_dtype type)
{
    ptb_vec dot[TILE] = {{0}};
    size_t c = 0, width = a->width;
    for (; c + TILE * PTB_LANES <= width; c += TILE * PTB_LANES)
        scatter_tile(a, choice, c, type, TILE, PTB_LANES, dot);
    for (; c + PTB_LANES <= width; c += PTB_LANES)
        scatter_tile(a, choice, c, type, 1, PTB_LANES, dot);
    if (c < width)
        scatter_tile(a, choice, c, type, 1, width - c, dot);
    return ptb_vec_sum(dot[0] + dot[1] + (dot[2] + dot[3]));
}

PTB_INLINE void combine_gradient_rows(const ptb_combine_gradient *a, ptb_dtype type)
{
#pragma omp parallel for schedule(static)
    for (size_t choice = 0; choice < a->rows * a->top_k; choice++)
        a->d_weight[choice] = a->slot[choice] < 0 ? 0 : scatter_row(a, choice, type);
}

// The three types' copies of each kernel.
#define BY_TYPE(method, arguments, rows)                                                                     \
    ptb_status ptb_host_run_##method(void *arg)                                                              \
    {                                                                                                        \
        const arguments *a = arg;                                                                            \
        if (a->type == PTB_F32)                                                                              \
            rows(a, PTB_F32);                                                                                \
        else if (a->type == PTB_BF16)                                                                        \
            rows(a, PTB_BF16);                                                                               \
        else                                                                                                 \
            rows(a, PTB_F16);                                                                                \
        return PTB_OK;                                                                                       \
    }
BY_TYPE(dispatch_gradient, ptb_dispatch_gradient, dispatch_gradient_rows)
BY_TYPE(combine, ptb_combine, combine_rows)
BY_TYPE(combine_gradient, ptb_combine_gradient, combine_gradient_rows)
