// The benchmark `kernels`: it has cases for every kernel, finds the host's right in every type, and finds a
// kernel that does nothing, or something a little else, wrong. A kernel that is added needs a line below.
#include "collectives/world.h"
#include "core/bench.h"
#include "strategies/transformer/kernels.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const ptb_kernels *host(void)
{
    return (const ptb_kernels *)ptb_registry_find(PTB_KIND_KERNELS, "host");
}

// ---- back-ends on top of the host's

#define OFF(method, change)                                                                                  \
    static ptb_status off_##method(ptb_stream *stream, const ptb_##method *args)                             \
    {                                                                                                        \
        ptb_##method a = *args;                                                                              \
        change;                                                                                              \
        return host()->method(stream, &a);                                                                   \
    }
OFF(matmul, *(a.groups ? &a.groups : &a.rows) -= 1)
OFF(matmul_input_gradient, a.columns--)
OFF(matmul_weight_gradient, *(a.groups ? &a.groups : &a.rows) -= 1)
OFF(norm, a.epsilon = 0.1f)
OFF(norm_gradient, a.residual = NULL)
OFF(attention, a.shape.scale *= 1.1f)
OFF(attention_gradient, a.shape.causal = false)
OFF(merge, a.part_lse = a.lse)
OFF(rotary, a.offset++)
OFF(activation, a.rows--)
OFF(activation_gradient, a.rows--)
OFF(add, a.b = a.a)
OFF(dropout, a.seed++)
OFF(convert, a.count--)
OFF(permute, a.in_stride[2]++)
OFF(embedding, a.tokens++; a.rows--)
OFF(embedding_gradient, a.rows--)
OFF(cross_entropy, a.scale *= 1.1)
OFF(loss_statistics, a.vocabulary--)
OFF(loss_gradient, a.scale *= 1.1)
OFF(route, a.normalise = !a.normalise)
OFF(route_gradient, a.balance = 0)
OFF(balance_loss, a.count--)
OFF(dispatch, a.rows--)
OFF(dispatch_gradient, a.rows--)
OFF(combine, a.residual = NULL)
OFF(combine_gradient, a.rows--)
OFF(expert_order, a.local--)
OFF(sum_squares, a.count /= 2)
OFF(update_begin, a.clip = 0)
OFF(adamw, a.decay = 0)
OFF(sgd, a.momentum = 0.8f)

#define X(method, arguments)                                                                                 \
    static ptb_status right_##method(ptb_stream *stream, const arguments *args)                              \
    {                                                                                                        \
        return host()->method(stream, args);                                                                 \
    }                                                                                                        \
    static ptb_status idle_##method(ptb_stream *stream, const arguments *args)                               \
    {                                                                                                        \
        (void)stream, (void)args;                                                                            \
        return PTB_OK;                                                                                       \
    }
PTB_KERNEL_LIST(X)
#undef X

static ptb_status set_threads(ptb_stream *stream, int threads)
{
    return host()->set_threads(stream, threads);
}

// Known, so that no time is spent and ratios can be checked.
static ptb_status matmul_peak(ptb_stream *stream, ptb_dtype type, int threads, double *flops_per_s)
{
    (void)stream, (void)type, (void)threads;
    *flops_per_s = 1e15;
    return PTB_OK;
}

static ptb_status copy(ptb_stream *stream, void *to, const void *from, size_t bytes, bool streaming)
{
    return host()->copy(stream, to, from, bytes, streaming);
}

static ptb_status read_memory(ptb_stream *stream, const void *from, size_t bytes)
{
    return host()->read(stream, from, bytes);
}

static size_t attention_workspace(const ptb_attention_shape *shape, int threads)
{
    return host()->attention_workspace(shape, threads);
}

static double attention_flops(const ptb_attention_shape *shape)
{
    return host()->attention_flops(shape);
}

#define COMMON                                                                                               \
    .set_threads = set_threads, .matmul_peak = matmul_peak, .copy = copy, .read = read_memory,               \
    .attention_workspace = attention_workspace, .attention_flops = attention_flops,                          \
    .types = 1u << PTB_F32 | 1u << PTB_BF16 | 1u << PTB_F16
#define X(method, arguments) .method = right_##method,
static const ptb_kernels right_kernels = {.plugin = {"right", "for this test: the host's"},
                                          PTB_KERNEL_LIST(X) COMMON};
#undef X
#define X(method, arguments) .method = idle_##method,
static const ptb_kernels idle_kernels = {.plugin = {"idle", "for this test: nothing is done"},
                                         PTB_KERNEL_LIST(X) COMMON};
#undef X
#define X(method, arguments) .method = off_##method,
static const ptb_kernels off_kernels = {.plugin = {"off", "for this test: something a little else"},
                                        PTB_KERNEL_LIST(X) COMMON};
#undef X
PTB_REGISTER(PTB_KIND_KERNELS, right_kernels);
PTB_REGISTER(PTB_KIND_KERNELS, idle_kernels);
PTB_REGISTER(PTB_KIND_KERNELS, off_kernels);

// ---- driving the benchmark

typedef struct {
    const char *const *options; // name, value, ..., NULL
    bool is_right;
    size_t ran, skipped;
    ptb_status opened;
    char kernels[2048]; // that ran, each in blanks
} drive;

static ptb_status measure_case(const ptb_bench *bench, ptb_bench_run *run, const ptb_case *c,
                               ptb_verdict *verdict, ptb_metrics *metrics)
{
    char reason[PTB_REASON_BYTES] = "";
    ptb_timing timing = {.time_ns = {.median = 1000, .min = 900}, .batch = 1};
    PTB_TRY(bench->prepare(run, c, reason));
    for (int i = 0; i < 2; i++) {
        PTB_TRY(bench->reset(run));
        PTB_TRY(bench->iterate(run, 1));
    }
    PTB_TRY(bench->verify(run, verdict));
    return bench->metrics(run, &timing, metrics);
}

static ptb_status drive_case(const ptb_bench *bench, ptb_bench_run *run, const ptb_case *c, drive *d)
{
    ptb_verdict verdict = {0};
    ptb_metrics metrics = {0};
    ptb_status status = measure_case(bench, run, c, &verdict, &metrics);
    bench->finish(run);
    PTB_TRY(status);
    const char *kernel = ptb_params_get(&c->params, "kernel"), *layer = ptb_params_get(&c->params, "layer");
    char word[64];
    snprintf(word, sizeof word, " %s ", kernel);
    if (!strstr(d->kernels, word))
        strncat(d->kernels, word, sizeof d->kernels - strlen(d->kernels) - 1);
    d->ran++;
    if (!verdict.done || !verdict.checked || (verdict.wrong == 0) != d->is_right) {
        print_error("%s, %s, %s: %llu of %llu wrong, %s\n", kernel, layer,
                    ptb_params_get(&c->params, "precision"), (unsigned long long)verdict.wrong,
                    (unsigned long long)verdict.checked, verdict.detail);
        return PTB_WRONG;
    }
    bool has_limit = strcmp(kernel, "update_begin") != 0;
    bool reads = strcmp(kernel, "sum_squares") == 0 || strcmp(kernel, "loss_statistics") == 0;
    bool is_read = strstr(metrics.items[0].convention, "/ read");
    if (reads != is_read) {
        print_error("%s is held to: %s\n", kernel, metrics.items[0].convention);
        return PTB_WRONG;
    }
    if (strcmp(metrics.items[0].name, "of_limit") != 0 || (metrics.items[0].value > 0) != has_limit) {
        print_error("%s: share of the limit is %g\n", kernel, metrics.items[0].value);
        return PTB_WRONG;
    }
    return PTB_OK;
}

static ptb_status drive_cases(const ptb_bench *bench, ptb_bench_run *run, drive *d)
{
    for (;;) {
        ptb_case c;
        bool more;
        PTB_TRY(bench->next(run, &c, &more));
        if (!more)
            return PTB_OK;
        d->skipped += *c.skip != 0;
        if (!*c.skip)
            PTB_TRY(drive_case(bench, run, &c, d));
    }
}

static ptb_status rank_main(ptb_world *world, void *arg)
{
    drive *d = (drive *)arg + world->rank;
    const ptb_bench *bench = (const ptb_bench *)ptb_registry_find(PTB_KIND_BENCH, "kernels");
    void *config = calloc(1, bench->config_size);
    ptb_opt_set set = {bench->opts, bench->opt_count, config, "kernels"};
    ptb_bench_env env = {.world = world, .seed = 1};
    ptb_bench_run *run = NULL;
    ptb_opts_defaults(&set);
    ptb_status status = PTB_OK;
    for (size_t i = 0; d->options[i] && status == PTB_OK; i += 2)
        status = ptb_opts_assign(&set, d->options[i], d->options[i + 1], "test");
    if (status == PTB_OK)
        status = d->opened = bench->open(&env, config, &run);
    if (status == PTB_OK)
        status = drive_cases(bench, run, d);
    bench->close(run);
    ptb_opts_release(&set);
    free(config);
    return status;
}

#define GPT                                                                                                  \
    "model", "tiny", "rows", "38", "sequence", "19", "hidden", "24", "heads", "3", "vocab", "29",            \
        "feed-forward", "20"
#define MIXTURE                                                                                              \
    "model", "mixtral-8x7b", "rows", "38", "sequence", "19", "hidden", "24", "heads", "4", "kv-heads", "2",  \
        "head-width", "6", "vocab", "29", "expert-hidden", "20", "experts", "5", "shared-experts", "1",      \
        "capacity-factor", "1.1"
#define TYPES "precision", "f32,bf16,f16"

static void check(const char *kernels, bool is_right)
{
    const char *const gpt[] = {GPT, TYPES, "kernels", kernels, NULL};
    const char *const mixture[] = {MIXTURE, TYPES, "kernels", kernels, NULL};
    drive dense = {.options = gpt, .is_right = is_right}, sparse = {.options = mixture, .is_right = is_right};
    assert_int_equal(ptb_world_run_local(1, NULL, rank_main, &dense), PTB_OK);
    assert_int_equal(ptb_world_run_local(1, NULL, rank_main, &sparse), PTB_OK);
    assert_int_equal(dense.skipped + sparse.skipped, 0);
    // Between the two models every kernel has run.
#define X(method, arguments)                                                                                 \
    if (!strstr(dense.kernels, " " #method " ") && !strstr(sparse.kernels, " " #method " "))                 \
        fail_msg("%s did not run", #method);
    PTB_KERNEL_LIST(X)
#undef X
}

static void right_kernels_are_right(void **state)
{
    (void)state;
    check("right", true);
}

static void idle_kernels_are_wrong(void **state)
{
    (void)state;
    check("idle", false);
}

static void slightly_wrong_kernels_are_wrong(void **state)
{
    (void)state;
    check("off", false);
}

static void ranks_and_threads(void **state)
{
    (void)state;
    const char *const options[] = {GPT, "kernels", "right", "threads", "2", "kernel", "norm,matmul", NULL};
    drive d[2] = {{.options = options, .is_right = true}, {.options = options, .is_right = true}};
    assert_int_equal(ptb_world_run_local(2, NULL, rank_main, d), PTB_OK);
    assert_int_equal(d[0].ran, 6); // qkv, projection, up, down, head; norm
    assert_int_equal(d[1].ran, 6);
}

static void what_is_not_there_is_skipped_or_refused(void **state)
{
    (void)state;
    const char *const absent[] = {GPT, "kernels", "right", "kernel", "route,rotary,add", NULL};
    drive d = {.options = absent, .is_right = true};
    assert_int_equal(ptb_world_run_local(1, NULL, rank_main, &d), PTB_OK);
    assert_int_equal(d.ran, 1);
    assert_int_equal(d.skipped, 2);
    const char *const layer[] = {GPT, "kernels", "right", "layer", "head", NULL};
    d = (drive){.options = layer, .is_right = true};
    assert_int_equal(ptb_world_run_local(1, NULL, rank_main, &d), PTB_OK);
    assert_int_equal(d.ran, 4);
    const char *const rows[] = {GPT, "rows", "39", NULL};
    const char *const kernels[] = {"kernels", "gpu", NULL}, *const heads[] = {"heads", "7", NULL};
    const char *const *bad[] = {rows, kernels, heads};
    for (size_t i = 0; i < 3; i++) {
        d = (drive){.options = bad[i]};
        assert_int_equal(ptb_world_run_local(1, NULL, rank_main, &d), PTB_USAGE);
        assert_int_equal(d.opened, PTB_USAGE);
    }
    const char *const kernel[] = {"kernel", "matmult", NULL};
    d = (drive){.options = kernel};
    assert_int_equal(ptb_world_run_local(1, NULL, rank_main, &d), PTB_USAGE);
    // A model that does not fit is skipped with the figure that was needed.
    const char *const huge[] = {"model",   "tiny",  "vocab",  "16777216",   "hidden",
                                "1048576", "heads", "1",      "head-width", "2",
                                "rows",    "2",     "kernel", "embedding",  NULL};
    d = (drive){.options = huge, .is_right = true};
    assert_int_equal(ptb_world_run_local(1, NULL, rank_main, &d), PTB_SKIPPED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_kernels_are_right),
        cmocka_unit_test(idle_kernels_are_wrong),
        cmocka_unit_test(slightly_wrong_kernels_are_wrong),
        cmocka_unit_test(ranks_and_threads),
        cmocka_unit_test(what_is_not_there_is_skipped_or_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
