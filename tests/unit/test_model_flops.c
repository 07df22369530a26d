// ptb_model_flops against sums by hand: linear layers three times, attention's two products and the five of
// its gradient, and what each kind of recomputation adds.
#include "tests/unit/model_fixture.h"

static double half_square(const ptb_attention_shape *s)
{
    // Products of queries and keys, and of probabilities and values, over a causal half: rows and columns of
    // the mask, its diagonal included.
    double length = (double)s->query_length;
    return 2 * 2 * (double)(s->batch * s->heads * s->head_width) * length * (length + 1) / 2;
}

static size_t no_workspace(const ptb_attention_shape *shape, int threads)
{
    (void)shape, (void)threads;
    return 0;
}

static ptb_status no_threads(ptb_stream *stream, int threads)
{
    (void)stream, (void)threads;
    return PTB_OK;
}

static double flops(const ptb_model_shape *shape, ptb_recompute recompute, int64_t every)
{
    static const ptb_kernels kernels = {.attention_workspace = no_workspace,
                                        .attention_flops = half_square,
                                        .set_threads = no_threads,
                                        .types = 1u << PTB_F32};
    ptb_layout l;
    ptb_model *model;
    ptb_model_config config = {.kernels = &kernels,
                               .layout = &l,
                               .batch = 3,
                               .threads = 1,
                               .type = PTB_F32,
                               .recompute = recompute,
                               .recompute_every = every};
    assert_int_equal(ptb_layout_init(&l, shape, NULL), PTB_OK);
    assert_int_equal(ptb_device_open("host", 0, &config.device), PTB_OK);
    assert_int_equal(ptb_stream_new(config.device, PTB_STREAM_CALLER, 0, &config.stream), PTB_OK);
    assert_int_equal(ptb_model_new(&config, &model), PTB_OK);
    double sum = ptb_model_flops(model);
    ptb_model_free(model);
    ptb_stream_free(config.stream);
    ptb_device_close(config.device);
    ptb_layout_release(&l);
    return sum;
}

static void check(double got, double wanted)
{
    if (!(fabs(got - wanted) < 0.5))
        fail_msg("%.0f FLOPs instead of %.0f", got, wanted);
}

static void test_dense(void **state)
{
    (void)state;
    ptb_model_shape shape = {.layers = 4,
                             .hidden = 24,
                             .heads = 4,
                             .sequence = 10,
                             .vocabulary = 50,
                             .biases = true,
                             .tied = true};
    double rows = 30, c = 24, attention = 4 * 3 * 24 * 55.0;
    double block = 2 * rows * 12 * c * c, head = 2 * rows * 50 * c, down = 2 * rows * 4 * c * c;
    double plain = 3 * (4 * block + head) + 4 * 3.5 * attention;
    check(flops(&shape, PTB_RECOMPUTE_NONE, 0), plain);
    check(flops(&shape, PTB_RECOMPUTE_SELECTIVE, 0), plain + 4 * attention);
    check(flops(&shape, PTB_RECOMPUTE_SELECTIVE, 3), plain + 2 * attention); // blocks 0 and 3
    check(flops(&shape, PTB_RECOMPUTE_FULL, 1),
          plain + 4 * (attention + block - down)); // down is not needed again
    check(flops(&shape, PTB_RECOMPUTE_FULL, 2), plain + 2 * (attention + block - down));
}

static void test_mixture(void **state)
{
    (void)state;
    ptb_model_shape shape = {.layers = 3,
                             .hidden = 24,
                             .heads = 4,
                             .kv_heads = 2,
                             .head_width = 8,
                             .feed_forward = 70,
                             .sequence = 10,
                             .vocabulary = 50,
                             .activation = PTB_SWIGLU,
                             .experts = 6,
                             .top_k = 2,
                             .expert_hidden = 13,
                             .shared_experts = 3,
                             .dense_layers = 1};
    double rows = 30, c = 24, attention = 4 * 3 * 32 * 55.0;
    double heads = c * 64 + 32 * c, dense = 3 * c * 70, router = 6 * c, experts = 2 * 3 * c * 13,
           shared = 3 * c * 39;
    double linear = 3 * heads + dense + 2 * (router + experts + shared) + 50 * c;
    double plain = 6 * rows * linear + 3 * 3.5 * attention;
    check(flops(&shape, PTB_RECOMPUTE_NONE, 0), plain);
    double again = 3 * heads + dense * 2 / 3 + 2 * (router + experts + shared * 2 / 3);
    check(flops(&shape, PTB_RECOMPUTE_FULL, 0), plain + 3 * attention + 2 * rows * again);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_dense), cmocka_unit_test(test_mixture)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
