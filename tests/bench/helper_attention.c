// helper_attention [THREADS]: rate of attention and of its gradient on the host, per type and shape, against
// the peak of the processor's fused multiply-adds (bf16: its dot products where it has them), measured in the
// same rounds on the same threads. Rates count the matrix products as computed, and the ratio to the peak is
// shown with its least and largest value over HELPER_ROUNDS (15) rounds; "useful" counts visible pairs only.
#include "core/clock.h"
#include "core/device.h"
#include "core/random.h"
#include "core/stats.h"
#include "strategies/transformer/kernels_host_attention.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS_MAX = 1000, SUMS = 16, PEAK_STEPS = 20000 };

typedef struct {
    const char *name;
    size_t batch, heads, kv_heads, width, length;
    bool whole; // not causal
    size_t documents;
    float dropout;
} setting;

static const setting settings[] = {
    {"GPT-2 124M, T = 64", 4, 12, 12, 64, 64, false, 0, 0},
    {"GPT-2 124M, T = 256", 4, 12, 12, 64, 256, false, 0, 0},
    {"GPT-2 124M, T = 1024", 1, 12, 12, 64, 1024, false, 0, 0},
    {"the same, not causal", 1, 12, 12, 64, 1024, true, 0, 0},
    {"the same, causal, 8 documents", 1, 12, 12, 64, 1024, false, 8, 0},
    {"the same, dropout 0.1", 1, 12, 12, 64, 1024, false, 0, 0.1f},
    {"one head, T = 1024", 1, 1, 1, 64, 1024, false, 0, 0},
    {"Llama-3 8B's groups, T = 1024", 1, 8, 2, 128, 1024, false, 0, 0},
    {"width 80, T = 1024", 1, 8, 8, 80, 1024, false, 0, 0},
    {"width 96, T = 1024", 1, 8, 8, 96, 1024, false, 0, 0},
    {"width 256, T = 1024", 1, 4, 1, 256, 1024, false, 0, 0},
    {"width 40, T = 333", 2, 8, 8, 40, 333, false, 0, 0},
};

typedef struct {
    const ptb_kernels *kernels;
    ptb_device *device;
    ptb_stream *stream;
    int threads;
    size_t rounds;
} bench;

typedef struct {
    ptb_attention forward;
    ptb_attention_gradient gradient;
    void *qkv, *d_qkv, *out, *d_out, *lse, *workspace;
    int32_t *start;
    double useful; // share of the computed pairs that are visible
} problem;

// ---- the peak

static float add_products(bool pairs)
{
    ptb_vec sums[SUMS], a = ptb_vec_set(1e-3f), b = ptb_vec_set(1e-3f);
    for (int i = 0; i < SUMS; i++)
        sums[i] = ptb_vec_set((float)i);
    for (int step = 0; step < PEAK_STEPS; step++) {
#pragma GCC unroll 16
        for (int i = 0; i < SUMS; i++) {
#if defined PTB_VECTOR_512 && defined __AVX512BF16__
            if (pairs)
                sums[i] = (ptb_vec)_mm512_dpbf16_ps((__m512)sums[i], (__m512bh)a, (__m512bh)b);
            else
#endif
                sums[i] += a * b;
        }
#if defined __x86_64__
        __asm__ volatile("" : "+x"(a), "+x"(b)); // else the product is made once
#elif defined __aarch64__
        __asm__ volatile("" : "+w"(a), "+w"(b));
#endif
    }
    float total = 0;
    for (int i = 0; i < SUMS; i++)
        total += ptb_vec_sum(sums[i]);
    (void)pairs;
    return total;
}

typedef struct {
    bool pairs;
    double *rate;
} peak_call;

static ptb_status run_peak(void *arg)
{
    const peak_call *p = arg;
    double best = 0;
    for (int i = 0; i < 8; i++) {
        float total = 0;
        int threads = 0;
        int64_t begin = ptb_clock_ns();
#pragma omp parallel reduction(+ : total, threads)
        {
            total += p->pairs ? add_products(true) : add_products(false);
            threads++;
        }
        double flops = 2.0 * SUMS * PTB_LANES * PEAK_STEPS * (p->pairs ? 2 : 1) * threads;
        double rate = flops / (double)(ptb_clock_ns() - begin) * 1e9;
        best = rate > best && total > 0 ? rate : best;
    }
    *p->rate = best;
    return PTB_OK;
}

static ptb_status measure_peak(const bench *b, bool pairs, double *rate)
{
    peak_call call = {pairs, rate};
    PTB_TRY(ptb_stream_call(b->stream, run_peak, &call, sizeof call));
    return ptb_stream_sync(b->stream);
}

// ---- problems

static ptb_status fill(const bench *b, ptb_dtype type, size_t count, void **memory)
{
    PTB_TRY(ptb_device_alloc(b->device, PTB_MEMORY_ACTIVATIONS, count * ptb_dtype_size(type), memory));
    for (size_t i = 0; i < count; i++)
        ptb_dtype_store(type, (char *)*memory + i * ptb_dtype_size(type),
                        ptb_random_uniform(1, 2, i) * 2 - 1);
    return PTB_OK;
}

static double visible_pairs(const setting *s, const int32_t *start)
{
    double pairs = 0;
    for (size_t i = 0; i < s->length; i++)
        pairs += (double)(s->whole ? s->length : i + 1 - (start ? (size_t)start[i] : 0));
    return pairs;
}

static ptb_status problem_init(const bench *b, const setting *s, ptb_dtype type, problem *p)
{
    size_t stride = (s->heads + 2 * s->kv_heads) * s->width, rows = s->batch * s->length;
    size_t bytes = ptb_dtype_size(type), outs = rows * s->heads * s->width;
    PTB_TRY(fill(b, type, rows * stride, &p->qkv));
    PTB_TRY(fill(b, type, rows * stride, &p->d_qkv));
    PTB_TRY(fill(b, type, outs, &p->out));
    PTB_TRY(fill(b, type, outs, &p->d_out));
    PTB_TRY(fill(b, PTB_F32, s->batch * s->heads * s->length, &p->lse));
    if (s->documents) {
        PTB_TRY(
            ptb_device_alloc(b->device, PTB_MEMORY_ACTIVATIONS, rows * sizeof *p->start, (void **)&p->start));
        size_t size = (s->length + s->documents - 1) / s->documents;
        for (size_t r = 0; r < rows; r++)
            p->start[r] = (int32_t)(r % s->length / size * size);
    }
    ptb_attention_shape shape = {.batch = s->batch,
                                 .heads = s->heads,
                                 .kv_heads = s->kv_heads,
                                 .head_width = s->width,
                                 .query_length = s->length,
                                 .key_length = s->length,
                                 .query_stride = stride,
                                 .key_stride = stride,
                                 .query_start = p->start,
                                 .causal = !s->whole,
                                 .scale = 1 / sqrtf((float)s->width),
                                 .type = type,
                                 .dropout_rate = s->dropout,
                                 .total_length = s->length};
    PTB_TRY(ptb_device_alloc(b->device, PTB_MEMORY_WORKSPACE,
                             b->kernels->attention_workspace(&shape, b->threads), &p->workspace));
    shape.workspace = p->workspace;
    const char *qkv = p->qkv;
    char *d_qkv = p->d_qkv;
    size_t key = s->heads * s->width * bytes, value = (s->heads + s->kv_heads) * s->width * bytes;
    p->forward = (ptb_attention){shape, p->out, p->lse, qkv, qkv + key, qkv + value};
    p->gradient = (ptb_attention_gradient){shape,  d_qkv, d_qkv + key, d_qkv + value, p->d_out, p->out,
                                           p->lse, qkv,   qkv + key,   qkv + value,   false};
    shape.query_start = NULL;
    p->useful = visible_pairs(s, p->start) / ptb_attention_count_pairs(&shape);
    return PTB_OK;
}

static void problem_release(const bench *b, problem *p)
{
    void *all[] = {p->qkv, p->d_qkv, p->out, p->d_out, p->lse, p->workspace, p->start};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        ptb_device_free(b->device, all[i]);
}

// ---- measuring

// Least time of a few calls, about 20 ms of them.
static ptb_status measure(const bench *b, const problem *p, bool gradient, double *best_ns)
{
    *best_ns = INFINITY;
    int64_t end = ptb_clock_ns() + 20000000;
    do {
        int64_t begin = ptb_clock_ns();
        PTB_TRY(gradient ? b->kernels->attention_gradient(b->stream, &p->gradient)
                         : b->kernels->attention(b->stream, &p->forward));
        PTB_TRY(ptb_stream_sync(b->stream));
        double ns = (double)(ptb_clock_ns() - begin);
        *best_ns = ns < *best_ns ? ns : *best_ns;
    } while (ptb_clock_ns() < end);
    return PTB_OK;
}

static ptb_status run(const bench *b, const setting *s, ptb_dtype type)
{
    static double ratio[2][ROUNDS_MAX], time_ns[2][ROUNDS_MAX];
    problem p = {0};
    PTB_TRY(problem_init(b, s, type, &p));
    double flops[2] = {b->kernels->attention_flops(&p.forward.shape)};
    if (s->documents) // attention_flops() does not look at documents
        flops[0] *= p.useful;
    flops[1] = 2.5 * flops[0];
    for (size_t r = 0; r < b->rounds; r++) {
        double peak, best;
        PTB_TRY(measure_peak(b, ptb_attention_pairs(type), &peak));
        for (int gradient = 0; gradient < 2; gradient++) {
            PTB_TRY(measure(b, &p, gradient, &best));
            time_ns[gradient][r] = best;
            ratio[gradient][r] = flops[gradient] / best * 1e9 / peak;
        }
    }
    printf("%-4s %-31s", ptb_dtype_name(type), s->name);
    for (int gradient = 0; gradient < 2; gradient++) {
        ptb_summary x = ptb_stats_summarise(ratio[gradient], b->rounds);
        ptb_summary t = ptb_stats_summarise(time_ns[gradient], b->rounds);
        printf(" | %8.3f ms %6.1f GFLOP/s  %.3f (%.3f..%.3f)", t.median * 1e-6, flops[gradient] / t.median,
               x.median, x.min, x.max);
    }
    printf(" | %.3f\n", s->documents ? 1 : p.useful);
    problem_release(b, &p);
    return PTB_OK;
}

int main(int argc, char **argv)
{
    const char *rounds = getenv("HELPER_ROUNDS"), *only = getenv("HELPER_SHAPE");
    bench b = {.threads = argc > 1 ? atoi(argv[1]) : 1, .rounds = rounds ? (size_t)atoll(rounds) : 15};
    if (b.threads < 1 || b.rounds < 1 || b.rounds > ROUNDS_MAX) {
        fprintf(stderr, "usage: helper_attention [THREADS]; HELPER_ROUNDS is 1 to %d\n", ROUNDS_MAX);
        return 2;
    }
    b.kernels = (const ptb_kernels *)ptb_registry_find(PTB_KIND_KERNELS, "host");
    ptb_status status = ptb_device_open("host", 0, &b.device);
    if (status == PTB_OK)
        status = ptb_stream_new(b.device, PTB_STREAM_WORKER, 1, &b.stream);
    if (status == PTB_OK)
        status = b.kernels->set_threads(b.stream, b.threads);
    printf("%d thread(s), %zu rounds; forward | gradient: time, rate, ratio to the peak (least..largest) | "
           "visible share of the pairs computed (documents: rates count visible pairs only)\n",
           b.threads, b.rounds);
    static const ptb_dtype types[] = {PTB_F32, PTB_BF16, PTB_F16};
    for (size_t t = 0; status == PTB_OK && t < sizeof types / sizeof *types; t++)
        for (size_t s = 0; status == PTB_OK && s < sizeof settings / sizeof *settings; s++)
            if (!only || strstr(settings[s].name, only))
                status = run(&b, &settings[s], types[t]);
    ptb_stream_free(b.stream);
    ptb_device_close(b.device);
    return ptb_status_exit_code(status);
}
