// helper_kernels_rows THREADS [KERNEL]: row, elementwise, loss and optimizer kernels of the host against what
// bounds them. Each round times a copy of the same footprint (bytes read + written) and then the kernel, in
// one process on the same threads. The limit is the longer of two times: the bytes at the copy's rate (vector
// loads, the faster of plain and streaming stores; of a kernel that only reads: at the rate of a read), and
// the kernel's arithmetic: exponentials, divisions, square roots, conversions of 16-bit types and other
// vector operations (additions, products, FMA, integer operations) at the rates that they have in the
// first-level cache. Prints a line for each case: least time, rate, the copy's best rate, which limit holds,
// least time / limit from the copy's best rate, and the same ratio of single rounds: median [quartiles].
#include "collectives/algorithm.h"
#include "core/clock.h"
#include "core/device.h"
#include "core/random.h"
#include "core/stats.h"
#include "core/text.h"
#include "strategies/transformer/kernels_host.h"
#include "tests/bench/element_rates.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <omp.h>

enum {
    ROUNDS = 31,
    BLOCK_NS = 300 * 1000, // least length of one timing
    WARM_UP = 3, // calls before those that are timed: which lines the last cache keeps settles slowly
    COPY_MOST = 512 << 20, // bytes of a footprint beyond which a larger copy is no slower
    PATTERN = 1 << 16,
    STAGGER = 64 + 4096, // between arrays: real ones do not share their place in the cache sets
};
static const size_t ARENA_BYTES = (size_t)2600 << 20;

typedef struct {
    char *arena, *copy; // of ARENA_BYTES, and of COPY_MOST
    size_t used;
    int threads;
    const char *only;
    float *pattern;                          /* [PATTERN], normal numbers */
    double exp_s, divide_s, root_s, other_s; // of one element, on one thread
    double from_s[2], to_s[2];               // of a conversion from and to bf16, f16
} bench;

typedef struct {
    const char *name;
    ptb_dtype type;
    size_t rows, width;
    ptb_call_fn *run;
    void *args;
    double bytes;                          // read + written
    bool only_reads;                       // held to a read, not to a copy
    double exps, divisions, roots, others; // elements
    double ratio[ROUNDS], time[ROUNDS];    // time / limit; seconds of one call
    double copy[ROUNDS];                   // bytes per second
} bench_case;

// ---- arrays

static void *take(bench *b, ptb_dtype type, size_t count)
{
    char *array = b->arena + b->used;
    size_t bytes = count * ptb_dtype_size(type);
    b->used += (bytes + 63) / 64 * 64 + STAGGER;
    if (b->used > ARENA_BYTES) {
        fprintf(stderr, "a case needs more than the %zu bytes that are set aside\n", ARENA_BYTES);
        exit(3);
    }
    for (size_t first = 0; first < count; first += PATTERN) {
        size_t n = count - first < PATTERN ? count - first : PATTERN;
        ptb_convert convert = {array + first * ptb_dtype_size(type), b->pattern, n, type, PTB_F32};
        ptb_host_run_convert(&convert);
    }
    return array;
}

// Values that may not be negative (variances, probabilities).
static float *take_positive(bench *b, size_t count)
{
    float *values = take(b, PTB_F32, count);
    for (size_t i = 0; i < count; i++)
        values[i] = fabsf(values[i]) + 1e-3f;
    return values;
}

static int32_t *take_tokens(bench *b, size_t count, size_t vocabulary)
{
    int32_t *tokens = take(b, PTB_F32, count);
    for (size_t i = 0; i < count; i++)
        tokens[i] = (int32_t)(ptb_random_u64(1, 3, i) % vocabulary);
    return tokens;
}

// ---- timing, on the stream's thread

static double seconds_since(int64_t begin)
{
    return (double)(ptb_clock_ns() - begin) * 1e-9;
}

// With loads and stores of vectors, as kernels that compute make them: not with the processor's instruction
// for copies of strings, which memcpy() takes and which does not read the lines that it writes.
static void copy_part(char *to, const char *from, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += sizeof(ptb_vec_bits)) {
        ptb_vec_bits bits;
        memcpy(&bits, from + at, sizeof bits);
        memcpy(to + at, &bits, sizeof bits);
        __asm__ volatile("" ::: "memory"); // or the compiler calls memcpy() for the loop
    }
}

static void copy_once(const bench *b, size_t bytes, bool streaming)
{
    size_t half = bytes / 2 / 64 * 64;
    char *from = b->copy, *to = b->copy + COPY_MOST / 2;
#pragma omp parallel
    {
        size_t threads = (size_t)omp_get_num_threads(), t = (size_t)omp_get_thread_num();
        size_t first = half / 64 * t / threads * 64, end = half / 64 * (t + 1) / threads * 64;
        if (streaming)
            ptb_copy_streaming(to + first, from + first, end - first);
        else
            copy_part(to + first, from + first, end - first);
    }
}

static void read_part(const char *from, size_t bytes)
{
    enum { SUMS = 4 };
    ptb_vec_bits all[SUMS] = {{0}};
    for (size_t at = 0; at + sizeof all <= bytes; at += sizeof all)
        for (size_t i = 0; i < SUMS; i++) {
            ptb_vec_bits bits;
            memcpy(&bits, from + at + i * sizeof bits, sizeof bits);
            all[i] ^= bits;
        }
    ptb_vec_bits any = (all[0] ^ all[1]) ^ (all[2] ^ all[3]);
    __asm__ volatile("" ::"r"(&any) : "memory");
}

static void read_once(const bench *b, size_t bytes)
{
#pragma omp parallel
    {
        size_t threads = (size_t)omp_get_num_threads(), t = (size_t)omp_get_thread_num();
        size_t first = bytes / 64 * t / threads * 64, end = bytes / 64 * (t + 1) / threads * 64;
        read_part(b->copy + first, end - first);
    }
}

static double read_rate(const bench *b, double footprint)
{
    size_t bytes = footprint < COPY_MOST ? (size_t)footprint : COPY_MOST;
    for (int i = 0; i < WARM_UP; i++)
        read_once(b, bytes);
    size_t calls = 0;
    int64_t begin = ptb_clock_ns();
    do
        read_once(b, bytes);
    while (++calls < 1 || ptb_clock_ns() - begin < BLOCK_NS);
    return (double)bytes * (double)calls / seconds_since(begin);
}

// Bytes per second, read + written; the faster of plain and streaming stores.
static double copy_rate(const bench *b, double footprint)
{
    size_t bytes = footprint < COPY_MOST ? (size_t)footprint : COPY_MOST;
    double best = 0;
    for (int streaming = 0; streaming < 2; streaming++) {
        for (int i = 0; i < WARM_UP; i++)
            copy_once(b, bytes, streaming);
        size_t calls = 0;
        int64_t begin = ptb_clock_ns();
        do
            copy_once(b, bytes, streaming);
        while (++calls < 1 || ptb_clock_ns() - begin < BLOCK_NS);
        double rate = (double)(bytes / 2 / 64 * 64) * 2 * (double)calls / seconds_since(begin);
        best = rate > best ? rate : best;
    }
    return best;
}

static double call_seconds(const bench_case *c)
{
    for (int i = 0; i < WARM_UP; i++)
        c->run(c->args);
    size_t calls = 0;
    int64_t begin = ptb_clock_ns();
    do
        c->run(c->args);
    while (++calls < 1 || ptb_clock_ns() - begin < BLOCK_NS);
    return seconds_since(begin) / (double)calls;
}

static double arithmetic_seconds(const bench *b, const bench_case *c)
{
    double one =
        c->exps * b->exp_s + c->divisions * b->divide_s + c->roots * b->root_s + c->others * b->other_s;
    return one / b->threads;
}

typedef struct {
    bench *b;
    bench_case *c;
} measure_args;

static ptb_status measure(void *arg)
{
    const measure_args *m = arg;
    const bench *b = m->b;
    bench_case *c = m->c;
    for (size_t i = 0; i < ROUNDS; i++) {
        c->copy[i] = c->only_reads ? read_rate(b, c->bytes) : copy_rate(b, c->bytes);
        c->time[i] = call_seconds(c);
        c->ratio[i] = c->time[i] / fmax(c->bytes / c->copy[i], arithmetic_seconds(b, c));
    }
    return PTB_OK;
}

static ptb_status measure_elements(void *arg)
{
    bench *b = *(bench **)arg;
    enum { COUNT = 1024 };
    float *values = take_positive(b, 2 * COUNT);
    b->exp_s = seconds_exp(values, COUNT);
    b->divide_s = seconds_divide(values, COUNT);
    b->root_s = seconds_root(values, COUNT);
    b->other_s = seconds_other(values, COUNT) / CHAIN;
    b->from_s[0] = conversion_seconds(PTB_BF16, true, values, COUNT);
    b->from_s[1] = conversion_seconds(PTB_F16, true, values, COUNT);
    b->to_s[0] = conversion_seconds(PTB_BF16, false, values, COUNT);
    b->to_s[1] = conversion_seconds(PTB_F16, false, values, COUNT);
    printf("one thread, first-level cache, ns an element: exp %.3f, division %.3f, square root %.3f, "
           "conversion from bf16 %.4f, to it %.4f, from f16 %.4f, to it %.4f, other operation %.4f\n",
           b->exp_s * 1e9, b->divide_s * 1e9, b->root_s * 1e9, b->from_s[0] * 1e9, b->to_s[0] * 1e9,
           b->from_s[1] * 1e9, b->to_s[1] * 1e9, b->other_s * 1e9);
    return PTB_OK;
}

// ---- cases

// What an element costs besides exponentials, divisions and roots, in operations: a kernel's own, and
// conversions of 16-bit loads and stores.
static double operations(const bench *b, ptb_dtype type, int own, int loads, int stores)
{
    if (type == PTB_F32)
        return own;
    return own + (loads * b->from_s[type == PTB_F16] + stores * b->to_s[type == PTB_F16]) / b->other_s;
}

static int bench_measure(bench *b, ptb_stream *stream, bench_case *c)
{
    measure_args args = {b, c};
    if (b->only && strcmp(b->only, c->name) != 0)
        return 0;
    if (ptb_stream_call(stream, measure, &args, sizeof args) != PTB_OK || ptb_stream_sync(stream) != PTB_OK)
        return 1;
    ptb_summary time = ptb_stats_summarise(c->time, ROUNDS), copy = ptb_stats_summarise(c->copy, ROUNDS);
    double arithmetic = arithmetic_seconds(b, c), memory = c->bytes / copy.max;
    double ratio = time.min / fmax(arithmetic, memory);
    ptb_stats_sort(c->ratio, ROUNDS);
    printf("%-20s %-5s %6zu x %-6zu %10.1f us %6.1f GB/s, %s %6.1f GB/s; limit %-10s %5.2f%s %5.2f [%.2f, "
           "%.2f]\n",
           c->name, ptb_dtype_name(c->type), c->rows, c->width, time.min * 1e6, c->bytes / time.min * 1e-9,
           c->only_reads ? "read" : "copy", copy.max * 1e-9, arithmetic > memory ? "arithmetic" : "memory",
           ratio, ratio > 1.5 ? "*" : " ", ptb_stats_quantile(c->ratio, ROUNDS, 0.5),
           ptb_stats_quantile(c->ratio, ROUNDS, 0.25), ptb_stats_quantile(c->ratio, ROUNDS, 0.75));
    fflush(stdout);
    return 0;
}

// Runs a case whose struct `args` is on the stack.
#define CASE(kernel, label, ...)                                                                             \
    do {                                                                                                     \
        bench_case c = {.name = label,                                                                       \
                        .type = type,                                                                        \
                        .rows = rows,                                                                        \
                        .width = width,                                                                      \
                        .run = ptb_host_run_##kernel,                                                        \
                        .args = &args,                                                                       \
                        __VA_ARGS__};                                                                        \
        failed |= bench_measure(b, stream, &c);                                                              \
    } while (0)

static int bench_norm(bench *b, ptb_stream *stream, ptb_dtype type, size_t rows, size_t width)
{
    int failed = 0;
    size_t n = rows * width;
    double count = (double)n, size = count * (double)ptb_dtype_size(type);
    {
        ptb_norm args = {.out = take(b, type, n),
                         .mean = take(b, PTB_F32, rows),
                         .rstd = take(b, PTB_F32, rows),
                         .in = take(b, type, n),
                         .gain = take(b, type, width),
                         .bias = take(b, type, width),
                         .rows = rows,
                         .width = width,
                         .epsilon = 1e-5f,
                         .type = type};
        CASE(norm, "norm", .bytes = 2 * size, .others = operations(b, type, 6, 3, 1) * count);
    }
    {
        ptb_norm_gradient args = {.d_in = take(b, type, n),
                                  .d_gain = take(b, PTB_F32, width),
                                  .d_bias = take(b, PTB_F32, width),
                                  .d_out = take(b, type, n),
                                  .in = take(b, type, n),
                                  .mean = take(b, PTB_F32, rows),
                                  .rstd = take_positive(b, rows),
                                  .gain = take(b, type, width),
                                  .residual = take(b, type, n),
                                  .rows = rows,
                                  .width = width,
                                  .type = type};
        CASE(norm_gradient, "norm gradient", .bytes = 4 * size,
             .others = operations(b, type, 12, 5, 1) * count);
    }
    b->used = 0;
    return failed;
}

static int bench_elementwise(bench *b, ptb_stream *stream, ptb_dtype type, size_t rows, size_t width)
{
    int failed = 0;
    size_t n = rows * width;
    double count = (double)n, size = count * (double)ptb_dtype_size(type);
    void *out = take(b, type, 2 * n), *in = take(b, type, 2 * n), *d_out = take(b, type, n);
    {
        ptb_activation args = {out, in, rows, width, PTB_GELU, type, NULL};
        CASE(activation, "gelu", .bytes = 2 * size, .exps = count, .divisions = count,
             .others = operations(b, type, 6, 1, 1) * count);
    }
    {
        ptb_activation_gradient args = {out, d_out, in, rows, width, PTB_GELU, type, NULL};
        CASE(activation_gradient, "gelu gradient", .bytes = 3 * size, .exps = count, .divisions = count,
             .others = operations(b, type, 11, 2, 1) * count);
    }
    {
        ptb_activation args = {out, in, rows, width, PTB_SWIGLU, type, NULL};
        CASE(activation, "swiglu", .bytes = 3 * size, .exps = count, .divisions = count,
             .others = operations(b, type, 5, 2, 1) * count);
    }
    {
        ptb_activation_gradient args = {out, d_out, in, rows, width, PTB_SWIGLU, type, NULL};
        CASE(activation_gradient, "swiglu gradient", .bytes = 5 * size, .exps = count, .divisions = count,
             .others = operations(b, type, 9, 3, 2) * count);
    }
    {
        ptb_add args = {out, in, d_out, n, type};
        CASE(add, "add", .bytes = 3 * size, .others = operations(b, type, 1, 2, 1) * count);
    }
    {
        ptb_dropout args = {.out = out,
                            .in = in,
                            .residual = d_out,
                            .rows = rows,
                            .width = width,
                            .length = rows,
                            .total_length = rows,
                            .rate = 0.1f,
                            .type = type};
        CASE(dropout, "dropout", .bytes = 3 * size, .others = operations(b, type, 15, 2, 1) * count);
    }
    b->used = 0;
    return failed;
}

static int bench_convert(bench *b, ptb_stream *stream, ptb_dtype type, size_t rows, size_t width)
{
    int failed = 0;
    size_t n = rows * width;
    double count = (double)n, bytes = (4 + (double)ptb_dtype_size(type)) * count;
    float *wide = take(b, PTB_F32, n);
    void *narrow = take(b, type, n);
    {
        ptb_convert args = {narrow, wide, n, type, PTB_F32};
        CASE(convert, "convert from f32", .bytes = bytes, .others = operations(b, type, 0, 0, 1) * count);
    }
    {
        ptb_convert args = {wide, narrow, n, PTB_F32, type};
        CASE(convert, "convert to f32", .bytes = bytes, .others = operations(b, type, 0, 1, 0) * count);
    }
    b->used = 0;
    return failed;
}

static int bench_embedding(bench *b, ptb_stream *stream, ptb_dtype type, size_t rows, size_t width,
                           size_t vocabulary)
{
    int failed = 0;
    size_t n = rows * width, sequence = rows / 4;
    double count = (double)n, size = count * (double)ptb_dtype_size(type);
    double table_bytes = (double)(vocabulary * width * sizeof(float));
    int32_t *tokens = take_tokens(b, rows, vocabulary);
    {
        ptb_embedding args = {.out = take(b, type, n),
                              .tokens = tokens,
                              .table = take(b, type, vocabulary * width),
                              .positions = take(b, type, sequence * width),
                              .rows = rows,
                              .sequence = sequence,
                              .width = width,
                              .vocabulary = vocabulary,
                              .type = type};
        CASE(embedding, "embedding", .bytes = 2.25 * size, .others = operations(b, type, 1, 2, 1) * count);
    }
    {
        ptb_embedding_gradient args = {.d_table = take(b, PTB_F32, vocabulary * width),
                                       .d_positions = take(b, PTB_F32, sequence * width),
                                       .d_out = take(b, type, n),
                                       .tokens = tokens,
                                       .rows = rows,
                                       .sequence = sequence,
                                       .width = width,
                                       .vocabulary = vocabulary,
                                       .positions = sequence,
                                       .type = type,
                                       .accumulate_table = true};
        // Each row: d_out, and its token's sums read and written; a position's sums once for all sequences.
        double bytes = size + 2.5 * (double)(n * sizeof(float));
        CASE(embedding_gradient, "embedding gradient", .bytes = bytes,
             .others = operations(b, type, 2, 1, 0) * count);
        args.accumulate_table = false;
        CASE(embedding_gradient, "embedding grad. zero", .bytes = bytes + table_bytes);
    }
    b->used = 0;
    return failed;
}

static int bench_loss(bench *b, ptb_stream *stream, ptb_dtype type, size_t rows, size_t width)
{
    int failed = 0;
    size_t n = rows * width;
    double count = (double)n, loss = 0;
    float *logits = take(b, PTB_F32, n);
    ptb_cross_entropy args = {.logits = logits,
                              .d_logits = type == PTB_F32 ? logits : take(b, type, n),
                              .targets = take_tokens(b, rows, width),
                              .losses = take(b, PTB_F32, rows),
                              .loss = &loss,
                              .rows = rows,
                              .vocabulary = width,
                              .scale = 1,
                              .type = type};
    CASE(cross_entropy, "cross entropy", .bytes = count * (4 + (double)ptb_dtype_size(type)), .exps = count,
         .others = operations(b, type, 4, 0, 1) * count);
    b->used = 0;
    return failed;
}

static int bench_optimizer(bench *b, ptb_stream *stream, ptb_dtype type, size_t rows, size_t width)
{
    int failed = 0;
    size_t n = rows * width;
    double count = (double)n, sum;
    bool rounds = type != PTB_F32;
    ptb_update update = {.factor = 1, .rate = 1e-4f, .beta1_power = 0.9, .beta2_power = 0.95};
    float *parameter = take(b, PTB_F32, n), *m = take(b, PTB_F32, n), *v = take_positive(b, n);
    float *gradient = take(b, PTB_F32, n);
    void *rounded = rounds ? take(b, type, n) : NULL;
    {
        ptb_adamw args = {parameter, m, v, gradient, rounded, &update, n, 0.9f, 0.95f, 1e-8f, 0.1f, type};
        CASE(adamw, "adamw", .bytes = count * (rounds ? 30 : 28), .divisions = count, .roots = count,
             .others = operations(b, type, 10, 0, 1) * count);
    }
    {
        ptb_sgd args = {parameter, m, gradient, rounded, &update, n, 0.9f, 0.1f, type};
        CASE(sgd, "sgd", .bytes = count * (rounds ? 22 : 20), .others = operations(b, type, 5, 0, 1) * count);
    }
    if (!rounds) {
        ptb_sum_squares args = {&sum, gradient, n, false};
        CASE(sum_squares, "sum of squares", .bytes = count * 4, .only_reads = true, .others = 4 * count);
    }
    b->used = 0;
    return failed;
}

static int bench_all(bench *b, ptb_stream *stream)
{
    static const ptb_dtype types[] = {PTB_F32, PTB_BF16, PTB_F16};
    static const size_t rows[] = {256, 1024};
    int failed = 0;
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
            failed |= bench_norm(b, stream, types[t], rows[r], 768);
            failed |= bench_elementwise(b, stream, types[t], rows[r], 768);
            failed |= bench_elementwise(b, stream, types[t], rows[r], 3072);
            failed |= bench_embedding(b, stream, types[t], rows[r], 768, 50257);
        }
        failed |= bench_norm(b, stream, types[t], 32768, 768);
        failed |= bench_norm(b, stream, types[t], 1024, 8192);
        failed |= bench_elementwise(b, stream, types[t], 8192, 3072);
        failed |= bench_loss(b, stream, types[t], 32, 50257);
        failed |= bench_loss(b, stream, types[t], 256, 50257);
        failed |= bench_optimizer(b, stream, types[t], 16, 768);
        failed |= bench_optimizer(b, stream, types[t], 768, 768);
        failed |= bench_optimizer(b, stream, types[t], 9216, 768);   // a block of GPT-2 124M
        failed |= bench_optimizer(b, stream, types[t], 162031, 768); // all of it
        if (types[t] != PTB_F32) {
            failed |= bench_convert(b, stream, types[t], 768, 768);
            failed |= bench_convert(b, stream, types[t], 50257, 768);
        }
    }
    return failed;
}

int main(int argc, char **argv)
{
    uint64_t threads;
    if (argc < 2 || argc > 3 || !ptb_text_parse_size(argv[1], &threads) || threads < 1 || threads > 1024) {
        fprintf(stderr, "usage: helper_kernels_rows THREADS [KERNEL]; THREADS is a number from 1 on\n");
        return 2;
    }
    bench b = {.threads = (int)threads, .only = argc > 2 ? argv[2] : NULL}, *self = &b;
    const ptb_kernels *kernels = (const ptb_kernels *)ptb_registry_find(PTB_KIND_KERNELS, "host");
    ptb_device *device;
    ptb_stream *stream;
    if (ptb_device_open("host", 0, &device) != PTB_OK)
        return 3;
    if (ptb_stream_new(device, PTB_STREAM_WORKER, 1, &stream) != PTB_OK ||
        kernels->set_threads(stream, b.threads) != PTB_OK ||
        ptb_memory_map(ARENA_BYTES, (void **)&b.arena) != PTB_OK ||
        ptb_memory_map(COPY_MOST, (void **)&b.copy) != PTB_OK)
        return 3;
    omp_set_num_threads(
        1); // this thread's own: idle threads of a second team would spin beside the measured ones
    memset(b.copy, 1, COPY_MOST); // pages that were never written may all be one page of zeros
    b.pattern = malloc(PATTERN * sizeof *b.pattern);
    if (!b.pattern)
        return 3;
    for (size_t i = 0; i < PATTERN; i++)
        b.pattern[i] = (float)ptb_random_normal(5, 1, i);
    printf("%d threads; bytes are read + written; last columns: least time / limit, and the median "
           "[quartiles] of %d "
           "rounds\n",
           b.threads, ROUNDS);
    int failed = ptb_stream_call(stream, measure_elements, &self, sizeof self) != PTB_OK ||
                 ptb_stream_sync(stream) != PTB_OK || bench_all(&b, stream);
    ptb_stream_free(stream);
    ptb_device_close(device);
    ptb_memory_unmap(b.arena, ARENA_BYTES);
    ptb_memory_unmap(b.copy, COPY_MOST);
    free(b.pattern);
    return failed;
}
