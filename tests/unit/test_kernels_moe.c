// Router, dispatch and combine against loops in double precision; gradients through them against central
// finite differences of those loops.
#include "tests/unit/kernels_fixture.h"

#include "strategies/transformer/kernels_host.h"

typedef struct {
    size_t rows, experts, top_k, capacity;
    bool normalise;
    double balance;
    size_t part;
} moe_case;

enum { WIDTH = 6 }; // of a row, where a test does not try others

// What the router decides, and the balance loss, from logits in double precision.
typedef struct {
    double *probability; /* [rows, experts] */
    double *weight;      /* [rows, top_k] */
    int32_t *expert, *slot;
    int32_t *offsets, *counts;
    double loss;
} routing;

static routing routing_new(const moe_case *c)
{
    return (routing){.probability = calloc(c->rows * c->experts + 1, sizeof(double)),
                     .weight = calloc(c->rows * c->top_k + 1, sizeof(double)),
                     .expert = calloc(c->rows * c->top_k + 1, sizeof(int32_t)),
                     .slot = calloc(c->rows * c->top_k + 1, sizeof(int32_t)),
                     .offsets = calloc(c->experts + 1, sizeof(int32_t)),
                     .counts = calloc(c->experts, sizeof(int32_t))};
}

static void routing_free(routing *r)
{
    free(r->probability), free(r->weight), free(r->expert), free(r->slot), free(r->offsets), free(r->counts);
}

static void route_row(const moe_case *c, const double *logits, double *probability, int32_t *expert,
                      double *weight)
{
    double sum = 0;
    for (size_t e = 0; e < c->experts; e++)
        sum += probability[e] = exp(logits[e]);
    for (size_t e = 0; e < c->experts; e++)
        probability[e] /= sum;
    double chosen = 0;
    for (size_t k = 0; k < c->top_k; k++) {
        int32_t best = -1;
        for (size_t e = 0; e < c->experts; e++) {
            bool taken = false;
            for (size_t j = 0; j < k; j++)
                taken |= expert[j] == (int32_t)e;
            if (!taken && (best < 0 || probability[e] > probability[best]))
                best = (int32_t)e;
        }
        expert[k] = best;
        chosen += weight[k] = probability[best];
    }
    for (size_t k = 0; c->normalise && k < c->top_k; k++)
        weight[k] /= chosen;
}

// The definition in kernels.h, literally: choices in order of expert, then row.
static void route_plainly(const moe_case *c, const double *logits, double scale, routing *out)
{
    for (size_t r = 0; r < c->rows; r++)
        route_row(c, logits + r * c->experts, out->probability + r * c->experts, out->expert + r * c->top_k,
                  out->weight + r * c->top_k);
    int32_t next = 0;
    out->loss = 0;
    for (size_t e = 0; e < c->experts; e++) {
        int32_t count = 0;
        double mean = 0;
        if (c->part && e % c->part == 0)
            next = (int32_t)(e * c->capacity);
        out->offsets[e] = next;
        for (size_t r = 0; r < c->rows; r++) {
            mean += out->probability[r * c->experts + e] / (double)c->rows;
            for (size_t k = 0; k < c->top_k; k++)
                if (out->expert[r * c->top_k + k] == (int32_t)e) {
                    bool kept = !c->capacity || (size_t)count < c->capacity;
                    out->slot[r * c->top_k + k] = kept ? next++ : -1;
                    count++;
                }
        }
        out->counts[e] = count;
        if (c->rows)
            out->loss += scale * c->balance * (double)c->experts *
                         ((double)count / (double)(c->rows * c->top_k)) * mean;
    }
    out->offsets[c->experts] = next;
}

// What the kernel writes; memory around the results must stay as it is.
typedef struct {
    float *probabilities, *weight;
    int32_t *expert, *slot, *offsets, *counts;
    double *loss;   /* [1] */
    int64_t *tally; /* [2, experts] */
} routed;

static void *spotted(size_t count)
{
    uint32_t *a = test_memory((count + 1) * sizeof *a);
    for (size_t i = 0; i <= count; i++)
        a[i] = 0xabcdabcd;
    return a;
}

static routed run_route(fixture *f, const moe_case *c, const float *logits, double scale, bool in_place)
{
    size_t choices = c->rows * c->top_k, n = c->rows * c->experts;
    routed r = {spotted(n),
                spotted(choices),
                spotted(choices),
                spotted(choices),
                spotted(c->experts + 1),
                spotted(c->experts),
                test_memory(sizeof *r.loss),
                test_memory(2 * c->experts * sizeof *r.tally)};
    *r.loss = 10;
    for (size_t i = 0; i < 2 * c->experts; i++)
        r.tally[i] = (int64_t)i << 40;
    if (in_place)
        memcpy(r.probabilities, logits, n * sizeof *logits);
    ptb_route args = {.probabilities = r.probabilities,
                      .expert = r.expert,
                      .weight = r.weight,
                      .slot = r.slot,
                      .offsets = r.offsets,
                      .counts = r.counts,
                      .tally = r.tally,
                      .loss = r.loss,
                      .logits = in_place ? r.probabilities : logits,
                      .rows = c->rows,
                      .experts = c->experts,
                      .top_k = c->top_k,
                      .capacity = c->capacity,
                      .part = c->part,
                      .balance = c->balance,
                      .scale = scale,
                      .normalise = c->normalise};
    finish(f, f->kernels->route(f->stream, &args));
    const void *ends[] = {r.probabilities + n, r.weight + choices,           r.expert + choices,
                          r.slot + choices,    r.offsets + (c->experts + 1), r.counts + c->experts};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        assert_memory_equal(ends[i], &(uint32_t){0xabcdabcd}, 4);
    return r;
}

static void routed_free(routed *r)
{
    void *all[] = {r->probabilities, r->weight, r->expert, r->slot, r->offsets, r->counts, r->loss, r->tally};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        test_memory_free(all[i]);
}

// Logits whose order f32 cannot get wrong, as double and f32. Expert `unpopular` is chosen by no row.
static float *some_logits(const moe_case *c, int unpopular, double **exact)
{
    float *logits = numbers(c->rows * c->experts, 21);
    *exact = malloc((c->rows * c->experts + 1) * sizeof **exact);
    for (size_t i = 0; i < c->rows * c->experts; i++) {
        logits[i] = logits[i] * 2 + (i % c->experts == 0 ? 1.5f : 0) - 0.3f; // expert 0 is popular
        if (unpopular >= 0 && i % c->experts == (size_t)unpopular)
            logits[i] -= 40;
        (*exact)[i] = logits[i];
    }
    return logits;
}

static void check_route(fixture *f, const moe_case *c, int unpopular)
{
    double *exact, scale = 0.75;
    float *logits = some_logits(c, unpopular, &exact);
    routing wanted = routing_new(c);
    route_plainly(c, exact, scale, &wanted);
    for (int in_place = 0; in_place < 2; in_place++) {
        routed got = run_route(f, c, logits, scale, in_place);
        size_t choices = c->rows * c->top_k;
        assert_memory_equal(got.expert, wanted.expert, choices * sizeof *got.expert);
        assert_memory_equal(got.slot, wanted.slot, choices * sizeof *got.slot);
        assert_memory_equal(got.counts, wanted.counts, c->experts * sizeof *got.counts);
        assert_memory_equal(got.offsets, wanted.offsets, (c->experts + 1) * sizeof *got.offsets);
        for (size_t e = 0; e < c->experts; e++) {
            int64_t choices_of = wanted.counts[e], most = (int64_t)c->capacity;
            assert_true(got.tally[e] == ((int64_t)e << 40) + choices_of);
            assert_true(got.tally[c->experts + e] ==
                        ((int64_t)(c->experts + e) << 40) + (most && most < choices_of ? most : choices_of));
        }
        assert_near(got.probabilities, wanted.probability, c->rows * c->experts, 1e-6);
        assert_near(got.weight, wanted.weight, choices, 1e-6);
        assert_true(fabs(*got.loss - 10 - wanted.loss) <= 1e-6 * fabs(wanted.loss));
        routed_free(&got);
    }
    if (unpopular >= 0)
        assert_int_equal(wanted.counts[unpopular], 0);
    routing_free(&wanted);
    test_memory_free(logits), free(exact);
}

static const moe_case cases[] = {
    {90, 12, 2, 9, true, 0.1, 4},     {60, 6, 3, 7, false, 0.1, 1},   {0, 4, 1, 2, true, 0.1, 2},
    {1, 1, 1, 0, false, 0.1, 0},      {5, 1, 1, 0, true, 0.1, 0},     {7, 5, 2, 0, true, 0.01, 0},
    {64, 8, 2, 0, true, 0.01, 0},     {33, 16, 4, 0, false, 1, 0},    {50, 64, 6, 0, false, 0.001, 0},
    {9, 5, 5, 0, true, 0.3, 0},       {9, 5, 5, 0, false, 0.3, 0},    {200, 3, 1, 20, false, 0.2, 0},
    {300, 7, 3, 1, true, 0.2, 0},     {400, 19, 2, 30, true, 0, 0},   {1000, 4, 1, 0, false, 0.1, 0},
    {0, 4, 2, 0, false, 0.1, 0},      {513, 130, 8, 9, true, 0.1, 0}, {3, 1024, 8, 0, true, 0.1, 0},
    {700, 40, 36, 600, true, 0.1, 0}, {3000, 6, 2, 0, true, 0.1, 0},  {90, 300, 70, 0, false, 0.1, 0},
};
enum { CASES = sizeof cases / sizeof *cases };

static void test_route(void **state)
{
    for (size_t i = 0; i < CASES; i++) {
        check_route(*state, &cases[i], -1);
        if (cases[i].top_k < cases[i].experts)
            check_route(*state, &cases[i], (int)cases[i].experts / 2);
    }
}

static void test_route_ties(void **state)
{
    moe_case c = {40, 9, 3, 0, false, 0, 0};
    float *logits = numbers(c.rows * c.experts, 1);
    for (size_t i = 0; i < c.rows * c.experts; i++)
        logits[i] = i % c.experts == 4 ? 1 : 0.25f;
    routed got = run_route(*state, &c, logits, 1, false);
    for (size_t r = 0; r < c.rows; r++) {
        assert_int_equal(got.expert[r * 3], 4);
        assert_int_equal(got.expert[r * 3 + 1], 0);
        assert_int_equal(got.expert[r * 3 + 2], 1);
    }
    routed_free(&got);
    // Not a number: whatever is chosen, it can be dispatched.
    for (size_t i = 0; i < c.rows * c.experts; i++)
        logits[i] = i % 2 ? NAN : -NAN;
    got = run_route(*state, &c, logits, 1, false);
    bool used[120] = {false};
    for (size_t i = 0; i < c.rows * 3; i++) {
        assert_in_range(got.slot[i], 0, 119);
        assert_false(used[got.slot[i]]);
        used[got.slot[i]] = true;
        assert_true(isnan(got.weight[i]));
    }
    assert_true(isnan(*got.loss));
    routed_free(&got);
    test_memory_free(logits);
}

static void test_route_threads(void **state)
{
    fixture *f = *state;
    for (size_t i = 0; i < CASES; i++) {
        const moe_case *c = &cases[i];
        double *exact;
        float *logits = some_logits(c, -1, &exact);
        assert_int_equal(f->kernels->set_threads(f->stream, 1), PTB_OK);
        routed one = run_route(f, c, logits, 1, false);
        for (int threads = 2; threads <= 5; threads++) {
            assert_int_equal(f->kernels->set_threads(f->stream, threads), PTB_OK);
            routed many = run_route(f, c, logits, 1, false);
            size_t choices = c->rows * c->top_k;
            assert_memory_equal(one.probabilities, many.probabilities, c->rows * c->experts * sizeof(float));
            assert_memory_equal(one.weight, many.weight, choices * sizeof(float));
            assert_memory_equal(one.expert, many.expert, choices * sizeof(int32_t));
            assert_memory_equal(one.slot, many.slot, choices * sizeof(int32_t));
            assert_memory_equal(one.offsets, many.offsets, (c->experts + 1) * sizeof(int32_t));
            assert_memory_equal(one.counts, many.counts, c->experts * sizeof(int32_t));
            assert_memory_equal(one.loss, many.loss, sizeof(double));
            routed_free(&many);
        }
        routed_free(&one);
        test_memory_free(logits), free(exact);
    }
    assert_int_equal(f->kernels->set_threads(f->stream, 1), PTB_OK);
}

static void test_route_refuses(void **state)
{
    fixture *f = *state;
    static const moe_case bad[] = {{4, 3, 4, 0, false, 0, 0},
                                   {4, 3, 0, 0, false, 0, 0},
                                   {4, 0, 0, 0, false, 0, 0},
                                   {4, PTB_EXPERTS_MAX + 1, 1, 0, false, 0, 0},
                                   {(size_t)1 << 31, 3, 1, 0, false, 0, 0}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ptb_route route = {.rows = bad[i].rows, .experts = bad[i].experts, .top_k = bad[i].top_k};
        ptb_route_gradient gradient = {.rows = bad[i].rows, .experts = bad[i].experts, .top_k = bad[i].top_k};
        if (test_on_host()) { // on its stream, which an error would stop
            assert_int_equal(ptb_host_run_route(&route), PTB_USAGE);
            assert_int_equal(ptb_host_run_route_gradient(&gradient), PTB_USAGE);
        } else {
            assert_int_equal(f->kernels->route(f->stream, &route), PTB_USAGE);
            assert_int_equal(f->kernels->route_gradient(f->stream, &gradient), PTB_USAGE);
        }
    }
}

// in [slots, WIDTH] times weights, summed over a row's choices, dotted with d_out, plus the balance loss
static double mixture(const moe_case *c, const double *logits, const float *in, const float *d_out,
                      double scale)
{
    routing r = routing_new(c);
    route_plainly(c, logits, scale, &r);
    double sum = r.loss;
    for (size_t row = 0; row < c->rows; row++)
        for (size_t k = 0; k < c->top_k; k++) {
            int32_t slot = r.slot[row * c->top_k + k];
            for (size_t i = 0; slot >= 0 && i < WIDTH; i++)
                sum += (double)d_out[row * WIDTH + i] * r.weight[row * c->top_k + k] *
                       (double)in[(size_t)slot * WIDTH + i];
        }
    routing_free(&r);
    return sum;
}

static void check_gradient(fixture *f, const moe_case *c, ptb_dtype type)
{
    double *exact, scale = 0.5;
    const float factor = 8;
    float *logits = some_logits(c, -1, &exact), *factor_of_call = test_memory_of(&factor, sizeof factor);
    size_t choices = c->rows * c->top_k, n = c->rows * c->experts;
    float *in = numbers(choices * WIDTH, 2), *d_out = numbers(c->rows * WIDTH, 3);
    float *d_in = numbers(choices * WIDTH, 4), *d_weight = numbers(choices, 5), *got = numbers(n, 6);
    double *wanted = malloc(n * sizeof *wanted);
    // The gradient that comes in is multiplied by the loss scale too.
    for (size_t i = 0; i < n; i++) {
        double at = exact[i], step = 1e-5;
        exact[i] = at + step;
        double above = mixture(c, exact, in, d_out, scale);
        exact[i] = at - step;
        wanted[i] = (above - mixture(c, exact, in, d_out, scale)) / (2 * step) * (double)factor;
        exact[i] = at;
    }
    for (size_t i = 0; i < c->rows * WIDTH; i++)
        d_out[i] *= factor;
    routed r = run_route(f, c, logits, scale, false);
    ptb_combine_gradient combine = {.d_in = d_in,
                                    .d_weight = d_weight,
                                    .d_out = d_out,
                                    .in = in,
                                    .weight = r.weight,
                                    .slot = r.slot,
                                    .rows = c->rows,
                                    .top_k = c->top_k,
                                    .width = WIDTH,
                                    .type = PTB_F32};
    finish(f, f->kernels->combine_gradient(f->stream, &combine));
    uint16_t *narrow = test_memory(n * sizeof *narrow);
    ptb_route_gradient route = {.d_logits = type == PTB_F32 ? (void *)got : (void *)narrow,
                                .d_weight = d_weight,
                                .probabilities = r.probabilities,
                                .weight = r.weight,
                                .expert = r.expert,
                                .counts = r.counts,
                                .factor = factor_of_call,
                                .rows = c->rows,
                                .experts = c->experts,
                                .top_k = c->top_k,
                                .balance = c->balance,
                                .scale = scale,
                                .normalise = c->normalise,
                                .type = type};
    finish(f, f->kernels->route_gradient(f->stream, &route));
    for (size_t i = 0; type != PTB_F32 && i < n; i++)
        got[i] = (float)ptb_dtype_load(type, narrow + i);
    assert_near(got, wanted, n, type == PTB_F32 ? 3e-6 : type == PTB_BF16 ? 4e-3 : 5e-4);
    routed_free(&r);
    void *all[] = {logits, factor_of_call, in, d_out, d_in, d_weight, got, narrow};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        test_memory_free(all[i]);
    free(exact), free(wanted);
}

static void test_route_gradient(void **state)
{
    static const moe_case some[] = {{1, 2, 1, 0, false, 0.7, 0}, {5, 1, 1, 0, true, 0.1, 0},
                                    {7, 5, 2, 0, true, 0.9, 0},  {12, 8, 2, 2, false, 3, 0},
                                    {9, 5, 5, 0, true, 2, 0},    {11, 18, 4, 1, true, 0, 0},
                                    {6, 35, 6, 0, false, 5, 0}};
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        check_gradient(*state, &some[i], PTB_F32);
        check_gradient(*state, &some[i], PTB_BF16);
        check_gradient(*state, &some[i], PTB_F16);
    }
}

// `count` numbers rounded to a type, as that type and as double.
static void *typed(ptb_dtype type, size_t count, uint64_t which, double **exact)
{
    char *a = test_memory((count + 1) * ptb_dtype_size(type));
    *exact = malloc((count + 1) * sizeof **exact);
    for (size_t i = 0; i <= count; i++) {
        ptb_dtype_store(type, a + i * ptb_dtype_size(type), ptb_random_normal(9, which, i));
        (*exact)[i] = ptb_dtype_load(type, a + i * ptb_dtype_size(type));
    }
    return a;
}

// Each element within a rounding of the type, relative to the size of what was summed; the element after the
// last one as it was.
static void assert_rounded(ptb_dtype type, const void *got, const double *wanted, size_t count)
{
    double unit = type == PTB_F32 ? 1e-6 : type == PTB_BF16 ? 0x1.01p-8 : 0x1.01p-11;
    for (size_t i = 0; i < count; i++) {
        double x = ptb_dtype_load(type, (const char *)got + i * ptb_dtype_size(type));
        if (!(fabs(x - wanted[i]) <= unit * (fabs(wanted[i]) + 2e-4) + 2e-6))
            fail_msg("element %zu of %s: %.9g, wanted %.9g", i, ptb_dtype_name(type), x, wanted[i]);
    }
    double after = ptb_dtype_load(type, (const char *)got + count * ptb_dtype_size(type));
    assert_true(after == wanted[count]);
}

// Slots of `rows` x `top_k` choices in a scattered order; every fifth choice dropped when `drops`.
static int32_t *some_slots(size_t rows, size_t top_k, bool drops, size_t *slots)
{
    size_t choices = rows * top_k, used = 0;
    int32_t *slot = test_memory((choices + 1) * sizeof *slot);
    for (size_t i = 0; i < choices; i++)
        slot[i] = drops && i % 5 == 2 ? -1 : (int32_t)used++;
    for (size_t i = 0; i < choices; i++) {
        size_t j = ptb_random_u64(5, rows, i) % choices;
        int32_t swapped = slot[i];
        slot[i] = slot[j], slot[j] = swapped;
    }
    *slots = used;
    return slot;
}

typedef struct {
    size_t rows, top_k, width;
    bool drops;
    ptb_dtype type;
    int variant; // in place and accumulating, or with and without a residual
} move_case;

static void check_dispatch(fixture *f, const move_case *c)
{
    size_t slots, n = c->rows * c->width, bytes = ptb_dtype_size(c->type);
    int32_t *slot = some_slots(c->rows, c->top_k, c->drops, &slots);
    double *in, *out, *d_in, *wanted = malloc((n + 1) * sizeof *wanted);
    void *typed_in = typed(c->type, n, 1, &in), *typed_out = typed(c->type, slots * c->width, 2, &out);
    void *typed_d_in = typed(c->type, n, 3, &d_in);
    ptb_dispatch dispatch = {typed_out, typed_in, slot, c->rows, c->top_k, c->width, c->type};
    finish(f, f->kernels->dispatch(f->stream, &dispatch));
    ptb_dispatch_gradient gradient = {typed_d_in, typed_out, slot,    c->rows,
                                      c->top_k,   c->width,  c->type, c->variant > 0};
    memcpy(wanted, d_in, (n + 1) * sizeof *wanted);
    for (size_t r = 0; r < c->rows; r++)
        for (size_t i = 0; i < c->width; i++) {
            wanted[r * c->width + i] = c->variant > 0 ? d_in[r * c->width + i] : 0;
            for (size_t k = 0; k < c->top_k; k++) {
                int32_t s = slot[r * c->top_k + k];
                if (s < 0)
                    continue;
                // Moved, not computed.
                assert_memory_equal((char *)typed_out + ((size_t)s * c->width + i) * bytes,
                                    (char *)typed_in + (r * c->width + i) * bytes, bytes);
                wanted[r * c->width + i] += in[r * c->width + i];
            }
        }
    finish(f, f->kernels->dispatch_gradient(f->stream, &gradient));
    assert_rounded(c->type, typed_d_in, wanted, n);
    double after = ptb_dtype_load(c->type, (char *)typed_out + slots * c->width * bytes);
    assert_true(after == out[slots * c->width]);
    free(in), free(out), free(d_in), free(wanted);
    test_memory_free(slot), test_memory_free(typed_in), test_memory_free(typed_out);
    test_memory_free(typed_d_in);
}

static void check_combine(fixture *f, const move_case *c)
{
    size_t slots, n = c->rows * c->width;
    int32_t *slot = some_slots(c->rows, c->top_k, c->drops, &slots);
    float *weight = numbers(c->rows * c->top_k, 4);
    double *in, *out, *residual;
    void *typed_in = typed(c->type, slots * c->width, 1, &in), *typed_out = typed(c->type, n, 2, &out);
    void *typed_residual = typed(c->type, n, 3, &residual);
    const void *added = c->variant == 0 ? NULL : c->variant == 1 ? typed_residual : typed_out;
    const double *exact_added = c->variant == 1 ? residual : out;
    ptb_combine args = {typed_out, typed_in, weight, slot, added, c->rows, c->top_k, c->width, c->type};
    double *wanted = malloc((n + 1) * sizeof *wanted);
    wanted[n] = out[n];
    for (size_t r = 0; r < c->rows; r++)
        for (size_t i = 0; i < c->width; i++) {
            double sum = added ? exact_added[r * c->width + i] : 0;
            for (size_t k = 0; k < c->top_k; k++) {
                int32_t s = slot[r * c->top_k + k];
                sum += s < 0 ? 0 : (double)weight[r * c->top_k + k] * in[(size_t)s * c->width + i];
            }
            wanted[r * c->width + i] = sum;
        }
    finish(f, f->kernels->combine(f->stream, &args));
    assert_rounded(c->type, typed_out, wanted, n);
    free(in), free(out), free(residual), free(wanted);
    test_memory_free(slot), test_memory_free(weight), test_memory_free(typed_in), test_memory_free(typed_out);
    test_memory_free(typed_residual);
}

static void check_combine_gradient(fixture *f, const move_case *c)
{
    size_t slots, n = c->rows * c->width, choices = c->rows * c->top_k;
    int32_t *slot = some_slots(c->rows, c->top_k, c->drops, &slots);
    float *weight = numbers(choices, 4), *d_weight = numbers(choices, 5);
    double *in, *d_in, *d_out;
    void *typed_in = typed(c->type, slots * c->width, 1, &in),
         *typed_d_in = typed(c->type, slots * c->width, 2, &d_in);
    void *typed_d_out = typed(c->type, n, 3, &d_out);
    bool in_place = c->variant > 0;
    ptb_combine_gradient args = {in_place ? typed_in : typed_d_in,
                                 d_weight,
                                 typed_d_out,
                                 typed_in,
                                 weight,
                                 slot,
                                 c->rows,
                                 c->top_k,
                                 c->width,
                                 c->type};
    finish(f, f->kernels->combine_gradient(f->stream, &args));
    double *wanted = in_place ? in : d_in, *dots = calloc(choices + 1, sizeof *dots);
    for (size_t r = 0; r < c->rows; r++)
        for (size_t k = 0; k < c->top_k; k++) {
            int32_t s = slot[r * c->top_k + k];
            for (size_t i = 0; s >= 0 && i < c->width; i++) {
                dots[r * c->top_k + k] += in[(size_t)s * c->width + i] * d_out[r * c->width + i];
                wanted[(size_t)s * c->width + i] = (double)weight[r * c->top_k + k] * d_out[r * c->width + i];
            }
            assert_true(s >= 0 || d_weight[r * c->top_k + k] == 0);
        }
    assert_rounded(c->type, in_place ? typed_in : typed_d_in, wanted, slots * c->width);
    assert_near(d_weight, dots, choices, 1e-6);
    free(in), free(d_in), free(d_out), free(dots);
    test_memory_free(slot), test_memory_free(weight), test_memory_free(d_weight), test_memory_free(typed_in);
    test_memory_free(typed_d_in), test_memory_free(typed_d_out);
}

static void test_move(void **state)
{
    fixture *f = *state;
    static const size_t sizes[][3] = {{1, 1, 1},   {5, 2, 15},  {9, 3, 16},  {6, 1, 17},
                                      {11, 8, 63}, {4, 2, 129}, {3, 6, 770}, {0, 2, 8}};
    static const ptb_dtype types[] = {PTB_F32, PTB_BF16, PTB_F16};
    for (int threads = 1; threads <= 3; threads += 2) {
        assert_int_equal(f->kernels->set_threads(f->stream, threads), PTB_OK);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            for (int t = 0; t < 3; t++)
                for (int variant = 0; variant < 3; variant++) {
                    move_case c = {sizes[i][0],           sizes[i][1], sizes[i][2],
                                   variant != 1 && i > 0, types[t],    variant};
                    check_dispatch(f, &c);
                    check_combine(f, &c);
                    check_combine_gradient(f, &c);
                }
    }
}

// More than the caches hold goes another way.
static void test_dispatch_large(void **state)
{
    fixture *f = *state;
    const size_t rows = 1025, top_k = 8, width = 1031;
    size_t slots;
    int32_t *slot = some_slots(rows, top_k, true, &slots);
    float *in = test_memory(rows * width * sizeof *in), *out = test_memory((slots * width + 1) * sizeof *out);
    for (size_t i = 0; i < rows * width; i++)
        in[i] = (float)(i % 8191) - 0.5f;
    out[slots * width] = 77;
    assert_true(rows * top_k * width * sizeof *out > (size_t)32 << 20);
    ptb_dispatch dispatch = {out, in, slot, rows, top_k, width, PTB_F32};
    assert_int_equal(f->kernels->set_threads(f->stream, 2), PTB_OK);
    finish(f, f->kernels->dispatch(f->stream, &dispatch));
    for (size_t i = 0; i < rows * top_k; i++)
        if (slot[i] >= 0)
            assert_memory_equal(out + (size_t)slot[i] * width, in + i / top_k * width, width * sizeof *in);
    assert_true(out[slots * width] == 77);
    test_memory_free(slot), test_memory_free(in), test_memory_free(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_route, kernels_setup, kernels_teardown),
        cmocka_unit_test_setup_teardown(test_route_ties, kernels_setup, kernels_teardown),
        cmocka_unit_test_setup_teardown(test_route_threads, kernels_setup, kernels_teardown),
        cmocka_unit_test_setup_teardown(test_route_refuses, kernels_setup, kernels_teardown),
        cmocka_unit_test_setup_teardown(test_route_gradient, kernels_setup, kernels_teardown),
        cmocka_unit_test_setup_teardown(test_move, kernels_setup, kernels_teardown),
        cmocka_unit_test_setup_teardown(test_dispatch_large, kernels_setup, kernels_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
