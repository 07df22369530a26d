// The closed form of a model's memory (strategies/transformer/model_memory.c), written down here a second
// time from the list of tensors, against what ptb_model_memory says; that what is allocated equals this is
// checked wherever a model runs (model_fixture.h, test_trainer.c).
#include "tests/unit/model_fixture.h"

typedef struct {
    double n, c, a, q, f, gf, heads, norm, e, layers, dense, mixtures; // N, C, A, Q, F, G F ...
    double experts, k, s, ef, shared, g;                               // E, K, S, f, s, G
    double ranks, r, t, p, w;                                          // n, R, T, P, W
    double kept; // of attention, by a context-parallel axis
    bool apart;
} letters;

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static double smaller(double a, double b)
{
    return a < b ? a : b;
}

// Experts on several ranks, as strategies/expert/*.c say it.
static void add_ranks(letters *x, const ptb_model_config *config, double capacity)
{
    double local = x->experts / x->ranks, block = x->experts * capacity;
    bool gathers = strcmp(config->experts->env.dispatch->plugin.name, "all_gather") == 0;
    x->r = x->ranks * x->n * smaller(x->k, local);
    if (capacity > 0)
        x->r = smaller(x->r, block);
    x->apart = !gathers;
    x->t = gathers ? x->r : capacity > 0 ? block : x->n * x->k;
    x->w = gathers ? x->ranks * x->n * x->k : 0;
    x->p = gathers ? x->w : capacity > 0 ? block : x->r;
}

// Where heads are exchanged, query, key and value and the output of attention are kept, for whole sequences
// but fewer heads; key and value heads once a rank that has them.
static double kept_of(const letters *x, const ptb_layout *l, const ptb_model_config *config)
{
    double kv_heads = (double)l->shape.kv_heads, u = config->context->degree;
    if (!config->context->ops->kept_bytes)
        return 0;
    return x->e * x->n * (2 * x->a + (x->q - x->a) * larger(1, u / kv_heads)) +
           (config->packed ? 4 * x->n * u : 0);
}

static letters letters_of(const ptb_layout *l, const ptb_model_config *config)
{
    const ptb_model_shape *s = &l->shape;
    double cp = config->context ? config->context->env.size : 1;
    letters x = {.n = (double)(config->batch * s->sequence) / cp,
                 .c = (double)s->hidden,
                 .a = (double)(s->heads * s->head_width),
                 .q = (double)((s->heads + 2 * s->kv_heads) * s->head_width),
                 .f = (double)s->feed_forward,
                 .heads = (double)s->heads,
                 .norm = s->norm == PTB_LAYER_NORM ? 8 : 4,
                 .e = config->type == PTB_F32 ? 4 : 2,
                 .layers = (double)s->layers,
                 .g = s->activation == PTB_SWIGLU ? 2 : 1};
    x.gf = x.g * x.f;
    x.kept = config->context ? kept_of(&x, l, config) : 0;
    x.mixtures = s->experts ? (double)(s->layers - s->dense_layers) : 0;
    x.dense = x.layers - x.mixtures;
    if (s->experts) {
        x.experts = (double)s->experts;
        x.k = (double)s->top_k;
        x.ef = (double)s->expert_hidden;
        x.shared = (double)s->shared_experts * x.ef;
        x.s = x.n * x.k;
        double capacity = smaller(ceil(s->capacity_factor * x.s / x.experts), x.n);
        if (s->capacity_factor > 0)
            x.s = smaller(x.s, capacity * x.experts);
        x.r = x.t = x.s;
        x.ranks = l->cut.ep;
        if (config->experts)
            add_ranks(&x, config, capacity);
    }
    return x;
}

// Parts of a block: attention's, and the rest but for its output.
static double attention_part(const letters *x)
{
    return x->e * x->n * x->a + 4 * x->n * x->heads + x->kept;
}

static double rest_part(const letters *x, bool mixture)
{
    double both = x->e * x->n * (3 * x->c + x->q) + 2 * x->n * x->norm;
    if (!mixture)
        return both + x->e * x->n * (x->gf + x->f);
    return both + x->e * (x->n * (x->g + 1) * x->shared + x->r * (x->c + (x->g + 1) * x->ef) + x->t * x->c) +
           4 * (x->n * (x->experts + 3 * x->k) + 2 * x->experts + 1) +
           (x->ranks > 1 ? 4 * (x->p + x->w + x->experts / x->ranks + 1) : 0);
}

static double deferred_part(const letters *x, bool mixture, bool drops, bool again)
{
    double both = x->e * x->n * (2 * x->c + x->q + (drops ? 2 * x->c : 0));
    if (!mixture)
        return both + x->e * x->n * x->gf;
    return both + x->e * (x->n * (x->experts + x->g * x->shared) + x->r * x->g * x->ef) +
           (again || x->apart ? x->e * x->r * x->c : 0);
}

static double activations(const ptb_layout *l, const ptb_model_config *config)
{
    letters x = letters_of(l, config);
    const ptb_model_shape *s = &l->shape;
    double slots = config->slots ? config->slots : 1,
           every = config->recompute_every ? (double)config->recompute_every : 1;
    double slot = x.n * (config->packed ? 12 : 8) + (s->experts && s->balance > 0 ? 8 : 0) +
                  3 * x.e * x.n * x.c + x.n * x.norm;
    double shared = 0;
    for (int64_t b = 0; b < s->layers; b++) {
        bool mixture = s->experts && b >= s->dense_layers,
             again = config->recompute && b % (int64_t)every == 0;
        bool full = again && config->recompute == PTB_RECOMPUTE_FULL;
        double part = (again ? attention_part(&x) : 0) + (full ? rest_part(&x, mixture) : 0);
        shared = larger(shared, part);
        slot += x.e * x.n * x.c + attention_part(&x) + rest_part(&x, mixture) - part;
        if (config->deferred)
            slot += deferred_part(&x, mixture, s->dropout > 0, full);
    }
    return shared + slots * slot;
}

static double workspace(const ptb_layout *l, const ptb_model_config *config)
{
    letters x = letters_of(l, config);
    const ptb_model_shape *s = &l->shape;
    double b = config->loss_rows ? (double)config->loss_rows : floor(x.n / 2),
           v = ceil((double)s->vocabulary / 64) * 64;
    b = b < 1 ? 1 : b > 256 && !config->loss_rows ? 256 : b;
    double inner = larger(x.n * x.a, x.g == 2 && x.dense > 0 ? x.n * x.f : 0);
    if (x.mixtures > 0)
        inner = larger(larger(inner, x.r * x.c), larger(x.r * x.ef, x.n * x.shared));
    double sum = 16 * x.layers * x.experts + b * v * (x.e == 4 ? 4 : 4 + x.e) + 4 * b +
                 x.e * (x.n * x.c + inner) + 4 * x.n * x.k;
    if (!config->deferred) {
        double wide = larger(x.n * x.q, larger(x.dense > 0 ? x.n * x.gf : 0, x.r * x.g * x.ef));
        sum += x.e * (wide + (s->dropout > 0 ? x.n * x.c : 0) + x.n * (x.experts + x.g * x.shared));
        sum += x.apart ? x.e * x.r * x.c : 0;
    }
    return sum;
}

static size_t no_workspace(const ptb_attention_shape *shape, int threads)
{
    (void)shape, (void)threads;
    return 0;
}

static void check_near(const char *what, size_t i, size_t k, uint64_t got, double wanted, double buffers)
{
    if (!((double)got >= wanted && (double)got < wanted + 64 * buffers))
        fail_msg("shape %zu, configuration %zu: %s %.0f bytes, the closed form says %.0f", i, k, what,
                 (double)got, wanted);
}

#define SMALL .layers = 5, .hidden = 40, .heads = 4, .sequence = 33, .vocabulary = 301
static const ptb_model_shape shapes[] = {
    {SMALL, .biases = true, .tied = true},
    {SMALL, .biases = true, .dropout = 0.1},
    {SMALL, .kv_heads = 2, .head_width = 12, .feed_forward = 90, .norm = PTB_RMS_NORM,
     .activation = PTB_SWIGLU},
    {SMALL, .norm = PTB_RMS_NORM, .activation = PTB_SWIGLU, .experts = 7, .top_k = 2, .expert_hidden = 30},
    {SMALL, .activation = PTB_SWIGLU, .experts = 7, .top_k = 3, .expert_hidden = 90, .shared_experts = 5,
     .dense_layers = 2, .capacity_factor = 0.8, .balance = 0.01, .dropout = 0.1},
    {SMALL, .experts = 3, .top_k = 1, .expert_hidden = 700, .capacity_factor = 5},
};
static const ptb_model_config configs[] = {
    {.type = PTB_F32},
    {.type = PTB_BF16, .packed = true, .loss_rows = 7},
    {.type = PTB_F32, .slots = 3, .deferred = true},
    {.type = PTB_F32, .recompute = PTB_RECOMPUTE_SELECTIVE},
    {.type = PTB_F32, .recompute = PTB_RECOMPUTE_FULL, .slots = 2},
    {.type = PTB_BF16, .recompute = PTB_RECOMPUTE_FULL, .recompute_every = 2, .deferred = true, .slots = 2},
    {.type = PTB_F16, .recompute = PTB_RECOMPUTE_SELECTIVE, .recompute_every = 3, .deferred = true},
};

static void check_closed_form(size_t i, size_t k, const ptb_layout *l, ptb_model_config config)
{
    uint64_t bytes[PTB_MEMORY_COUNT];
    ptb_model_memory(&config, bytes);
    double buffers = (config.slots ? config.slots : 1) * (8 + 30 * (double)l->shape.layers) + 30;
    check_near("activations", i, k, bytes[PTB_MEMORY_ACTIVATIONS], activations(l, &config), buffers);
    check_near("workspace", i, k, bytes[PTB_MEMORY_WORKSPACE], workspace(l, &config), 14);
    for (int c = 0; c < PTB_MEMORY_COUNT; c++)
        assert_true(c == PTB_MEMORY_ACTIVATIONS || c == PTB_MEMORY_WORKSPACE || bytes[c] == 0);
}

static void test_closed_form(void **state)
{
    (void)state;
    ptb_kernels kernels = {.attention_workspace = no_workspace};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (size_t k = 0; k < sizeof configs / sizeof *configs; k++) {
            ptb_layout l;
            ptb_model_config config = configs[k];
            assert_int_equal(ptb_layout_init(&l, &shapes[i], NULL), PTB_OK);
            config.kernels = &kernels;
            config.layout = &l;
            config.batch = 21;
            config.threads = 1;
            check_closed_form(i, k, &l, config);
            ptb_layout_release(&l);
        }
}

static void test_expert_ranks(void **state)
{
    (void)state;
    ptb_kernels kernels = {.attention_workspace = no_workspace};
    static const char *const names[] = {"all_to_all", "all_gather"};
    for (size_t i = 3; i < sizeof shapes / sizeof *shapes; i++) // those with experts
        for (size_t k = 0; k < sizeof configs / sizeof *configs; k++)
            for (size_t d = 0; d < 2; d++) {
                ptb_layout l;
                ptb_layout_cut cut = {.ep = (int)shapes[i].experts, .ep_rank = 1};
                ptb_model_config config = configs[k];
                assert_int_equal(ptb_layout_init(&l, &shapes[i], &cut), PTB_OK);
                ptb_expert_env env = {.dispatch = (const ptb_expert_dispatch *)ptb_registry_find(
                                          PTB_KIND_EXPERT_DISPATCH, names[d]),
                                      .layout = &l,
                                      .rows = 21 * (size_t)shapes[i].sequence,
                                      .type = config.type};
                ptb_expert_axis axis;
                ptb_expert_axis_describe(&env, &axis);
                config.kernels = &kernels;
                config.layout = &l;
                config.batch = 21;
                config.threads = 1;
                config.experts = &axis;
                check_closed_form(i, k, &l, config);
                ptb_layout_release(&l);
            }
}

// What an axis has besides: buffers that it communicates from, and scratch.
static void check_axis(const ptb_context_axis *axis, const letters *x, double kv)
{
    uint64_t bytes[PTB_MEMORY_COUNT] = {0};
    const char *way = axis->ops->plugin.name;
    double n = axis->env.size, wide = x->e == 4 ? 0 : 4 * x->n * x->a, shared, own; // wide: f32 sums
    double forward = x->n / 2 * (x->e * x->a + 4 * x->heads) + wide;
    double backward = x->n / 2 * x->e * (x->q + 2 * kv) + wide;
    if (strcmp(way, "ring") == 0) {
        shared = (2 * x->e + 8) * x->n * kv;
        own = larger(forward, backward);
    } else if (strcmp(way, "all_gather") == 0) {
        shared = (x->e + 4) * n * x->n * kv;
        own = 2 * x->e * n * x->n * kv;
    } else {
        double all = kv * larger(1, n / (double)axis->env.layout->shape.kv_heads);
        shared = 2 * x->e * x->n * (x->a + all) + (axis->env.packed ? 4 * x->n * (1 + n) : 0);
        own = x->e * x->n * (2 * x->a + all);
    }
    ptb_context_memory(axis, bytes);
    check_near(way, 0, 0, bytes[PTB_MEMORY_COMMUNICATION], shared, 5);
    check_near(way, 0, 0, bytes[PTB_MEMORY_WORKSPACE], own, 8);
}

static void test_context_ranks(void **state)
{
    (void)state;
    ptb_kernels kernels = {.attention_workspace = no_workspace};
    static const char *const names[] = {"ring", "all_gather", "all_to_all"};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (size_t k = 0; k < sizeof configs / sizeof *configs; k++)
            for (size_t w = 0; w < 3; w++) {
                ptb_layout l;
                char reason[PTB_REASON_BYTES];
                ptb_model_shape shape = shapes[i];
                ptb_model_config config = configs[k];
                shape.sequence = 48;
                assert_int_equal(ptb_layout_init(&l, &shape, NULL), PTB_OK);
                ptb_context_env env = {.rank = 1,
                                       .size = 4,
                                       .kernels = &kernels,
                                       .layout = &l,
                                       .batch = 21,
                                       .type = config.type,
                                       .packed = config.packed,
                                       .threads = 1};
                ptb_context_axis axis;
                const ptb_context *way = (const ptb_context *)ptb_registry_find(PTB_KIND_CONTEXT, names[w]);
                assert_int_equal(ptb_context_describe(&axis, way, &env, reason), PTB_OK);
                config.kernels = &kernels;
                config.layout = &l;
                config.batch = 21;
                config.threads = 1;
                config.context = &axis;
                check_closed_form(i, k, &l, config);
                letters x = letters_of(&l, &config);
                check_axis(&axis, &x, x.q - x.a);
                ptb_layout_release(&l);
            }
}

// The figures in the field's own terms: GPT-2's 34 bytes a row and element without the 2 of dropout masks.
static void test_gpt2(void **state)
{
    (void)state;
    ptb_layout l;
    ptb_kernels kernels = {.attention_workspace = no_workspace};
    ptb_model_shape shape = {
        .layers = 48, .hidden = 1024, .heads = 16, .sequence = 256, .vocabulary = 1000, .biases = true};
    assert_int_equal(ptb_layout_init(&l, &shape, NULL), PTB_OK);
    ptb_model_config config = {.kernels = &kernels, .layout = &l, .batch = 4, .threads = 1, .type = PTB_BF16};
    uint64_t bytes[PTB_MEMORY_COUNT], again[PTB_MEMORY_COUNT];
    ptb_model_memory(&config, bytes);
    config.recompute = PTB_RECOMPUTE_FULL;
    ptb_model_memory(&config, again);
    double rows = 1024, c = 1024, block = rows * (32 * c + 4 * 16 + 16), slot = rows * (8 + 6 * c + 8);
    assert_true(fabs((double)bytes[PTB_MEMORY_ACTIVATIONS] - 48 * block - slot) < 1);
    assert_true(fabs((double)again[PTB_MEMORY_ACTIVATIONS] - 47 * rows * 2 * c - block - slot) < 1);
    ptb_layout_release(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_closed_form),
                                       cmocka_unit_test(test_expert_ranks),
                                       cmocka_unit_test(test_context_ranks), cmocka_unit_test(test_gpt2)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
