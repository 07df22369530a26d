// Host kernels that are bound by memory or by vectorised arithmetic: normalisation, GELU, embedding, loss,
// AdamW. `omp simd reduction` allows the compiler to reorder sums; sums over rows keep one order for any
// number of threads because threads split columns there.
#include "strategies/transformer/kernels_host.h"

#include <math.h>

enum { CHUNK = 4096, STRIP = 64 }; // elements of an elementwise task; columns of a column-sum task

ptb_status ptb_host_run_norm(void *arg)
{
    const ptb_norm *a = arg;
    size_t width = a->width;
#pragma omp parallel for schedule(static)
    for (size_t r = 0; r < a->rows; r++) {
        const float *in = (const float *)a->in + r * width, *gain = a->gain, *bias = a->bias;
        float *out = (float *)a->out + r * width;
        float sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
        for (size_t c = 0; c < width; c++)
            sum += in[c];
        float mean = sum / (float)width;
#pragma omp simd reduction(+ : squares)
        for (size_t c = 0; c < width; c++)
            squares += (in[c] - mean) * (in[c] - mean);
        float rstd = 1 / sqrtf(squares / (float)width + a->epsilon);
        for (size_t c = 0; c < width; c++)
            out[c] = (in[c] - mean) * rstd * gain[c] + bias[c];
        a->mean[r] = mean;
        a->rstd[r] = rstd;
    }
    return PTB_OK;
}

static void layernorm_columns(const ptb_norm_gradient *a)
{
    size_t width = a->width;
#pragma omp parallel for schedule(static)
    for (size_t first = 0; first < width; first += STRIP) {
        size_t n = width - first < STRIP ? width - first : STRIP;
        float gain[STRIP] = {0}, bias[STRIP] = {0};
        for (size_t r = 0; r < a->rows; r++) {
            const float *d_out = (const float *)a->d_out + r * width + first;
            const float *in = (const float *)a->in + r * width + first;
            float mean = a->mean[r], rstd = a->rstd[r];
            for (size_t c = 0; c < n; c++) {
                gain[c] += d_out[c] * (in[c] - mean) * rstd;
                bias[c] += d_out[c];
            }
        }
        for (size_t c = 0; c < n; c++) {
            a->d_gain[first + c] = gain[c] + (a->accumulate ? a->d_gain[first + c] : 0);
            a->d_bias[first + c] = bias[c] + (a->accumulate ? a->d_bias[first + c] : 0);
        }
    }
}

ptb_status ptb_host_run_norm_gradient(void *arg)
{
    const ptb_norm_gradient *a = arg;
    size_t width = a->width;
    layernorm_columns(a); // first: d_in may be the memory of d_out
#pragma omp parallel for schedule(static)
    for (size_t r = 0; r < a->rows; r++) {
        const float *d_out = (const float *)a->d_out + r * width, *in = (const float *)a->in + r * width;
        const float *gain = a->gain, *residual = a->residual ? (const float *)a->residual + r * width : NULL;
        float *d_in = (float *)a->d_in + r * width;
        float mean = a->mean[r], rstd = a->rstd[r], sum = 0, product = 0;
#pragma omp simd reduction(+ : sum, product)
        for (size_t c = 0; c < width; c++) {
            float d = d_out[c] * gain[c];
            sum += d;
            product += d * (in[c] - mean) * rstd;
        }
        sum /= (float)width;
        product /= (float)width;
        if (residual) {
            for (size_t c = 0; c < width; c++)
                d_in[c] = residual[c] + rstd * (d_out[c] * gain[c] - sum - (in[c] - mean) * rstd * product);
        } else {
            for (size_t c = 0; c < width; c++)
                d_in[c] = rstd * (d_out[c] * gain[c] - sum - (in[c] - mean) * rstd * product);
        }
    }
    return PTB_OK;
}

// (1 + tanh(u)) / 2 = 1 / (1 + exp(-2u)), u = sqrt(2 / pi) (x + 0.044715 x^3)
static inline float gelu_gate(float x)
{
    return 1 / (1 + ptb_host_exp(x * (-1.59576912f - 0.0713548162f * x * x)));
}

ptb_status ptb_host_run_activation(void *arg)
{
    const ptb_activation *a = arg;
    size_t count = a->rows * a->width;
#pragma omp parallel for schedule(static)
    for (size_t first = 0; first < count; first += CHUNK) {
        size_t n = count - first < CHUNK ? count - first : CHUNK;
        const float *in = (const float *)a->in + first;
        float *out = (float *)a->out + first;
#pragma omp simd
        for (size_t i = 0; i < n; i++)
            out[i] = in[i] * gelu_gate(in[i]);
    }
    return PTB_OK;
}

ptb_status ptb_host_run_activation_gradient(void *arg)
{
    const ptb_activation_gradient *a = arg;
    size_t count = a->rows * a->width;
#pragma omp parallel for schedule(static)
    for (size_t first = 0; first < count; first += CHUNK) {
        size_t n = count - first < CHUNK ? count - first : CHUNK;
        const float *in = (const float *)a->in + first, *d_out = (const float *)a->d_out + first;
        float *d_in = (float *)a->d_in + first;
#pragma omp simd
        for (size_t i = 0; i < n; i++) {
            float x = in[i], gate = gelu_gate(x);
            float slope = x * (1.59576912f + 0.2140644488f * x * x); // x * d(2u)/dx
            d_in[i] = d_out[i] * (gate + slope * gate * (1 - gate));
        }
    }
    return PTB_OK;
}

ptb_status ptb_host_run_add(void *arg)
{
    const ptb_add *a = arg;
    const float *x = a->a, *y = a->b;
    float *out = a->out;
#pragma omp parallel for schedule(static)
    for (size_t first = 0; first < a->count; first += CHUNK) {
        size_t end = a->count - first < CHUNK ? a->count : first + CHUNK;
#pragma omp simd
        for (size_t i = first; i < end; i++)
            out[i] = x[i] + y[i];
    }
    return PTB_OK;
}

ptb_status ptb_host_run_embedding(void *arg)
{
    const ptb_embedding *a = arg;
    size_t width = a->width;
#pragma omp parallel for schedule(static)
    for (size_t r = 0; r < a->rows; r++) {
        const float *token = (const float *)a->table + (size_t)a->tokens[r] * width;
        const float *position = (const float *)a->positions + (a->position_offset + r % a->sequence) * width;
        float *out = (float *)a->out + r * width;
        for (size_t c = 0; c < width; c++)
            out[c] = token[c] + position[c];
    }
    return PTB_OK;
}

// Threads split columns: two rows with the same token add in the same order whatever the number of threads.
ptb_status ptb_host_run_embedding_gradient(void *arg)
{
    const ptb_embedding_gradient *a = arg;
    size_t width = a->width;
#pragma omp parallel for schedule(static)
    for (size_t first = 0; first < width; first += STRIP) {
        size_t n = width - first < STRIP ? width - first : STRIP;
        if (!a->accumulate_table)
            for (size_t v = 0; v < a->vocabulary; v++)
                memset(a->d_table + v * width + first, 0, n * sizeof(float));
        if (!a->accumulate_positions)
            for (size_t p = 0; p < a->positions; p++)
                memset(a->d_positions + p * width + first, 0, n * sizeof(float));
        for (size_t r = 0; r < a->rows; r++) {
            const float *d_out = (const float *)a->d_out + r * width + first;
            float *token = a->d_table + (size_t)a->tokens[r] * width + first;
            float *position = a->d_positions + (a->position_offset + r % a->sequence) * width + first;
            for (size_t c = 0; c < n; c++) {
                token[c] += d_out[c];
                position[c] += d_out[c];
            }
        }
    }
    return PTB_OK;
}

ptb_status ptb_host_run_cross_entropy(void *arg)
{
    const ptb_cross_entropy *a = arg;
    size_t n = a->vocabulary;
#pragma omp parallel for schedule(static)
    for (size_t r = 0; r < a->rows; r++) {
        float *logits = a->logits + r * n;
        float top = logits[0], sum = 0, wanted = logits[a->targets[r]];
#pragma omp simd reduction(max : top)
        for (size_t v = 0; v < n; v++)
            top = logits[v] > top ? logits[v] : top;
#pragma omp simd reduction(+ : sum)
        for (size_t v = 0; v < n; v++) {
            logits[v] = ptb_host_exp(logits[v] - top);
            sum += logits[v];
        }
        a->losses[r] = logf(sum) + top - wanted;
        float scale = (float)a->scale / sum;
#pragma omp simd
        for (size_t v = 0; v < n; v++)
            logits[v] *= scale;
        logits[a->targets[r]] -= (float)a->scale;
    }
    double loss = a->accumulate ? *a->loss : 0;
    for (size_t r = 0; r < a->rows; r++)
        loss += a->scale * (double)a->losses[r];
    *a->loss = loss;
    return PTB_OK;
}

ptb_status ptb_host_run_sum_squares(void *arg)
{
    const ptb_sum_squares *a = arg;
    double sum = 0;
#pragma omp parallel for schedule(static) reduction(+ : sum)
    for (size_t i = 0; i < a->count; i++)
        sum += (double)a->values[i] * (double)a->values[i];
    *a->sum = a->accumulate ? *a->sum + sum : sum;
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
    if (a->clip > 0 && norm > a->clip)
        u->factor *= (float)(a->clip / norm);
    if (u->skip) {
        u->skipped++;
        u->good = 0;
        u->loss_scale /= 2;
        return PTB_OK;
    }
    u->applied++;
    u->beta1_power *= a->beta1;
    u->beta2_power *= a->beta2;
    if (a->dynamic && ++u->good == a->growth_interval) {
        u->good = 0;
        u->loss_scale *= 2;
    }
    return PTB_OK;
}

ptb_status ptb_host_run_adamw(void *arg)
{
    const ptb_adamw *a = arg;
    const ptb_update *u = a->update;
    if (u->skip)
        return PTB_OK;
    float keep = 1 - a->rate * a->decay, scale = a->rate / (float)(1 - u->beta1_power);
    float root = 1 / (float)(1 - u->beta2_power), factor = u->factor;
#pragma omp parallel for schedule(static)
    for (size_t first = 0; first < a->count; first += CHUNK) {
        size_t n = a->count - first < CHUNK ? a->count - first : CHUNK;
        float *parameter = a->parameter + first, *m = a->m + first, *v = a->v + first;
        const float *gradient = a->gradient + first;
#pragma omp simd
        for (size_t i = 0; i < n; i++) {
            float g = factor * gradient[i];
            m[i] = a->beta1 * m[i] + (1 - a->beta1) * g;
            v[i] = a->beta2 * v[i] + (1 - a->beta2) * g * g;
            parameter[i] = keep * parameter[i] - scale * m[i] / (sqrtf(v[i] * root) + a->epsilon);
        }
    }
    return PTB_OK;
}
