// Optimizer kernels of the host: sum of squares for the global norm, what an update needs that depends on
// data (clipping, loss scale, bias corrections), AdamW and SGD. All are bound by memory; each value is read
// and written once. A sum has one order for any number of threads.
#include "strategies/transformer/kernels_host_tasks.h"

#include <math.h>

enum {
    SUMS = 256, // partial sums of a sum of squares: their borders do not depend on the number of threads
    UPDATE_CHUNK = 1024,  // elements of an update's task: an update of an element is long
    UPDATE_SERIAL = 8192, // elements up to which other threads are not worth waking
};
static const float LOSS_SCALE_MOST = 0x1p24f;

enum { WIDE = PTB_LANES / 2, LANES = 8 }; // doubles of a vector; independent partial sums
typedef double vec_wide __attribute__((vector_size(WIDE * sizeof(double))));

PTB_INLINE vec_wide load_wide(const float *values)
{
#if defined PTB_VECTOR_512
    return (vec_wide)_mm512_cvtps_pd(_mm256_loadu_ps(values)); // which compilers make of two halves
#else
    vec_wide wide;
    for (int lane = 0; lane < WIDE; lane++)
        wide[lane] = (double)values[lane];
    return wide;
#endif
}

static double sum_squares(const float *values, size_t count)
{
    vec_wide sums[LANES] = {{0}};
    size_t i = 0;
    for (; i + LANES * WIDE <= count; i += LANES * WIDE)
        for (size_t lane = 0; lane < LANES; lane++) {
            vec_wide x = load_wide(values + i + lane * WIDE);
            sums[lane] += x * x;
        }
    for (size_t half = LANES / 2; half; half /= 2)
        for (size_t lane = 0; lane < half; lane++)
            sums[lane] += sums[lane + half];
    double sum = 0;
    for (size_t lane = 0; lane < WIDE; lane++)
        sum += sums[0][lane];
    for (; i < count; i++)
        sum += (double)values[i] * (double)values[i];
    return sum;
}

ptb_status ptb_host_run_sum_squares(void *arg)
{
    const ptb_sum_squares *a = arg;
    double partial[SUMS];
    size_t part = ptb_host_round_up(a->count / SUMS + 1, PTB_HOST_CHUNK);
    size_t parts = (a->count + part - 1) / part;
#pragma omp parallel for schedule(static) if (a->count > PTB_HOST_SERIAL)
    for (size_t p = 0; p < parts; p++)
        partial[p] = sum_squares(a->values + p * part, ptb_host_least(part, a->count - p * part));
    double sum = a->accumulate ? *a->sum : 0;
    for (size_t p = 0; p < parts; p++)
        sum += partial[p];
    *a->sum = sum;
    return PTB_OK;
}

ptb_status ptb_host_run_update_begin(void *arg)
{
    const ptb_update_begin *a = arg;
    ptb_update *u = a->update;
    double norm = a->sum_squares ? sqrt(*a->sum_squares) / (double)u->loss_scale : NAN;
    u->norm = norm;
    u->factor = 1 / u->loss_scale;
    u->skip = a->dynamic && !isfinite(norm);
    if (u->skip) {
        u->skipped++;
        u->good = 0;
        u->loss_scale = fmaxf(1, u->loss_scale / 2);
        return PTB_OK;
    }
    if (a->clip > 0 && norm > a->clip)
        u->factor *= (float)(a->clip / norm);
    u->applied++;
    u->beta1_power = pow(a->beta1, (double)u->applied);
    u->beta2_power = pow(a->beta2, (double)u->applied);
    if (a->dynamic && ++u->good == a->growth_interval) {
        u->good = 0;
        u->loss_scale = fminf(LOSS_SCALE_MOST, u->loss_scale * 2);
    }
    return PTB_OK;
}

PTB_INLINE ptb_vec square_root(ptb_vec a)
{
#if defined PTB_VECTOR_512
    return (ptb_vec)_mm512_sqrt_ps((__m512)a);
#else
    for (int lane = 0; lane < PTB_LANES; lane++)
        a[lane] = sqrtf(a[lane]);
    return a;
#endif
}

// What all elements of an update share.
typedef struct {
    float factor, keep, scale, root, epsilon;
    float beta1, beta2, rest1, rest2;
} adamw_numbers;

PTB_INLINE ptb_vec adamw_step(const ptb_adamw *a, const adamw_numbers *n, size_t i, size_t count)
{
    ptb_vec g = n->factor * ptb_vec_load_some(PTB_F32, a->gradient, i, count);
    ptb_vec m = ptb_vec_load_some(PTB_F32, a->m, i, count);
    ptb_vec v = ptb_vec_load_some(PTB_F32, a->v, i, count);
    ptb_vec p = ptb_vec_load_some(PTB_F32, a->parameter, i, count);
    m = n->beta1 * m + n->rest1 * g;
    v = n->beta2 * v + n->rest2 * g * g;
    p = n->keep * p - n->scale * m / (square_root(v * n->root) + n->epsilon);
    ptb_vec_store_some(PTB_F32, a->m, i, count, m);
    ptb_vec_store_some(PTB_F32, a->v, i, count, v);
    ptb_vec_store_some(PTB_F32, a->parameter, i, count, p);
    return p;
}

PTB_HOST_BODY adamw_chunk(ptb_dtype type, const ptb_adamw *args, const adamw_numbers *n, bool stream,
                          size_t i, size_t end)
{
    const ptb_adamw a = *args; // a copy: stores can not be taken to change it
    for (; i + PTB_LANES <= end; i += PTB_LANES) {
        ptb_vec p = adamw_step(&a, n, i, PTB_LANES);
        if (a.rounded)
            ptb_host_store(stream, type, a.rounded, i, PTB_LANES, p);
    }
    if (i < end) {
        ptb_vec p = adamw_step(&a, n, i, end - i);
        if (a.rounded)
            ptb_vec_store_some(type, a.rounded, i, end - i, p);
    }
}

ptb_status ptb_host_run_adamw(void *arg)
{
    const ptb_adamw *a = arg;
    const ptb_update *u = a->update;
    if (u->skip)
        return PTB_OK;
    adamw_numbers n = {
        .factor = u->factor,
        .keep = 1 - u->rate * a->decay,
        .scale = u->rate / (float)(1 - u->beta1_power),
        .root = 1 / (float)(1 - u->beta2_power),
        .epsilon = a->epsilon,
        .beta1 = a->beta1,
        .beta2 = a->beta2,
        .rest1 = 1 - a->beta1,
        .rest2 = 1 - a->beta2,
    };
    bool stream = ptb_host_streams(a->rounded, a->count * ptb_dtype_size(a->type), PTB_HOST_LINE, NULL, NULL);
#pragma omp parallel if (a->count > UPDATE_SERIAL)
    {
#pragma omp for schedule(static) nowait
        for (size_t first = 0; first < a->count; first += UPDATE_CHUNK)
            PTB_HOST_TYPED(adamw_chunk, a->type, a, &n, stream, first,
                           ptb_host_least(a->count, first + UPDATE_CHUNK));
        ptb_host_fence(stream);
    }
    return PTB_OK;
}

PTB_INLINE ptb_vec sgd_step(const ptb_sgd *a, float factor, float rate, size_t i, size_t count)
{
    ptb_vec p = ptb_vec_load_some(PTB_F32, a->parameter, i, count);
    ptb_vec g = factor * ptb_vec_load_some(PTB_F32, a->gradient, i, count) + a->decay * p;
    if (a->m) {
        g += a->momentum * ptb_vec_load_some(PTB_F32, a->m, i, count);
        ptb_vec_store_some(PTB_F32, a->m, i, count, g);
    }
    p -= rate * g;
    ptb_vec_store_some(PTB_F32, a->parameter, i, count, p);
    return p;
}

PTB_HOST_BODY sgd_chunk(ptb_dtype type, const ptb_sgd *args, float factor, float rate, bool stream, size_t i,
                        size_t end)
{
    const ptb_sgd a = *args; // a copy: stores can not be taken to change it
    for (; i + PTB_LANES <= end; i += PTB_LANES) {
        ptb_vec p = sgd_step(&a, factor, rate, i, PTB_LANES);
        if (a.rounded)
            ptb_host_store(stream, type, a.rounded, i, PTB_LANES, p);
    }
    if (i < end) {
        ptb_vec p = sgd_step(&a, factor, rate, i, end - i);
        if (a.rounded)
            ptb_vec_store_some(type, a.rounded, i, end - i, p);
    }
}

ptb_status ptb_host_run_sgd(void *arg)
{
    const ptb_sgd *a = arg;
    const ptb_update *u = a->update;
    if (u->skip)
        return PTB_OK;
    float factor = u->factor, rate = u->rate;
    bool stream = ptb_host_streams(a->rounded, a->count * ptb_dtype_size(a->type), PTB_HOST_LINE, NULL, NULL);
#pragma omp parallel if (a->count > UPDATE_SERIAL)
    {
#pragma omp for schedule(static) nowait
        for (size_t first = 0; first < a->count; first += UPDATE_CHUNK)
            PTB_HOST_TYPED(sgd_chunk, a->type, a, factor, rate, stream, first,
                           ptb_host_least(a->count, first + UPDATE_CHUNK));
        ptb_host_fence(stream);
    }
    return PTB_OK;
}
