// The load-balancing loss of rows that several routers have, under the counts of all of them: losses and
// gradients of the parts are those of one router that has all rows. The sums that it is made of do not
// depend on the number of threads.
#include "strategies/transformer/route.h"
#include "tests/unit/kernels_fixture.h"

#include <math.h>

typedef struct {
    size_t rows, parts, experts, top_k; // rows: of a part
} balance_case;

static const balance_case cases[] = {{40, 2, 8, 2},  {7, 3, 5, 1},   {300, 4, 19, 3}, {1, 2, 3, 2},
                                     {33, 2, 64, 6}, {5, 2, 300, 8}, {2000, 2, 6, 2}, {1, 1, 1, 1}};
enum { CASES = sizeof cases / sizeof *cases };
static const double balance = 0.7, share = 0.5; // share: of all rows in the mean

// What a router gives, in memory of the device.
typedef struct {
    float *probabilities; /* [rows, experts] */
    float *weight;        /* [rows, top_k] */
    float *d_logits;      /* [rows, experts] */
    int32_t *expert, *slot, *offsets, *counts;
    double *loss, *sums; /* [1], [experts] */
} routed;

static ptb_route route_args(const balance_case *c, const routed *r, const float *logits, size_t rows,
                            bool alone)
{
    return (ptb_route){.probabilities = r->probabilities,
                       .expert = r->expert,
                       .weight = r->weight,
                       .slot = r->slot,
                       .offsets = r->offsets,
                       .counts = r->counts,
                       .loss = alone ? r->loss : NULL,
                       .sums = r->sums,
                       .logits = logits,
                       .rows = rows,
                       .experts = c->experts,
                       .top_k = c->top_k,
                       .balance = balance,
                       .scale = share,
                       .normalise = true};
}

static routed route(fixture *f, const balance_case *c, const float *logits, size_t rows, bool alone)
{
    size_t choices = rows * c->top_k, n = rows * c->experts;
    routed r = {.probabilities = test_memory(n * sizeof(float)),
                .weight = test_memory(choices * sizeof(float)),
                .d_logits = test_memory(n * sizeof(float)),
                .expert = test_memory(choices * sizeof(int32_t)),
                .slot = test_memory(choices * sizeof(int32_t)),
                .offsets = test_memory((c->experts + 1) * sizeof(int32_t)),
                .counts = test_memory(c->experts * sizeof(int32_t)),
                .loss = test_memory(sizeof(double)),
                .sums = test_memory((c->experts + 1) * sizeof(double))};
    *r.loss = 3;
    r.sums[c->experts] = 4;
    ptb_route args = route_args(c, &r, logits, rows, alone);
    finish(f, f->kernels->route(f->stream, &args));
    assert_true(r.sums[c->experts] == 4);
    return r;
}

// The gradient of the balance loss alone, under these counts.
static void differentiate(fixture *f, const balance_case *c, routed *r, size_t rows, const int32_t *counts,
                          size_t counted, double scale)
{
    float *zero = test_memory(rows * c->top_k * sizeof *zero);
    memset(zero, 0, rows * c->top_k * sizeof *zero);
    ptb_route_gradient args = {.d_logits = r->d_logits,
                               .d_weight = zero,
                               .probabilities = r->probabilities,
                               .weight = r->weight,
                               .expert = r->expert,
                               .counts = counts,
                               .rows = rows,
                               .experts = c->experts,
                               .top_k = c->top_k,
                               .counted = counted,
                               .balance = balance,
                               .scale = scale,
                               .normalise = true,
                               .type = PTB_F32};
    finish(f, f->kernels->route_gradient(f->stream, &args));
    test_memory_free(zero);
}

static void release(routed *r)
{
    void *all[] = {r->probabilities, r->weight, r->d_logits, r->expert, r->slot,
                   r->offsets,       r->counts, r->loss,     r->sums};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        test_memory_free(all[i]);
}

// scale: of a part's rows in the mean. Adds to *loss.
static void check_part(fixture *f, const balance_case *c, const float *logits, const routed *whole,
                       size_t part, double *loss)
{
    size_t first = part * c->rows, n = c->rows * c->experts, all = c->rows * c->parts;
    double scale = share / (double)c->parts, *wanted = malloc((n + 1) * sizeof *wanted);
    float *mine = copy_of(logits + first * c->experts, n);
    routed r = route(f, c, mine, c->rows, false);
    assert_true(*r.loss == 3);
    for (size_t e = 0; e < c->experts; e++) {
        double sum = 0;
        for (size_t row = 0; row < c->rows; row++)
            sum += (double)r.probabilities[row * c->experts + e];
        assert_true(fabs(r.sums[e] - sum) <= 1e-6 * sum);
    }
    ptb_balance_loss args = {
        .loss = loss,
        .counts = whole->counts,
        .sums = r.sums,
        .count = c->experts,
        .factor = ptb_route_balance_factor(balance, scale, c->rows, all, c->experts, c->top_k)};
    finish(f, f->kernels->balance_loss(f->stream, &args));
    differentiate(f, c, &r, c->rows, whole->counts, all, scale);
    for (size_t i = 0; i < n; i++)
        wanted[i] = (double)whole->d_logits[first * c->experts + i];
    if (c->experts > 1) // of one expert the gradient is 0
        assert_near(r.d_logits, wanted, n, 1e-5);
    release(&r);
    test_memory_free(mine);
    free(wanted);
}

static void test_parts(void **state)
{
    fixture *f = *state;
    for (size_t i = 0; i < CASES; i++) {
        const balance_case *c = &cases[i];
        size_t all = c->rows * c->parts;
        float *logits = numbers(all * c->experts, i);
        double *loss = test_memory(sizeof *loss);
        for (size_t k = 0; k < all * c->experts; k += c->experts)
            logits[k] += 1; // expert 0 is popular
        routed whole = route(f, c, logits, all, true);
        differentiate(f, c, &whole, all, whole.counts, 0, share);
        *loss = 3;
        for (size_t part = 0; part < c->parts; part++)
            check_part(f, c, logits, &whole, part, loss);
        if (!(fabs(*loss - *whole.loss) < 1e-6 * (*whole.loss - 3)))
            fail_msg("case %zu: parts sum to %.9g, all rows give %.9g", i, *loss - 3, *whole.loss - 3);
        release(&whole);
        test_memory_free(loss), test_memory_free(logits);
    }
}

static void test_threads(void **state)
{
    fixture *f = *state;
    for (size_t i = 0; i < CASES; i++) {
        const balance_case *c = &cases[i];
        float *logits = numbers(c->rows * c->experts, i);
        routed one = route(f, c, logits, c->rows, false);
        for (int threads = 2; threads <= 5; threads++) {
            assert_int_equal(f->kernels->set_threads(f->stream, threads), PTB_OK);
            routed many = route(f, c, logits, c->rows, false);
            assert_memory_equal(one.sums, many.sums, c->experts * sizeof *one.sums);
            release(&many);
        }
        assert_int_equal(f->kernels->set_threads(f->stream, 1), PTB_OK);
        release(&one);
        test_memory_free(logits);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_parts, kernels_setup, kernels_teardown),
        cmocka_unit_test_setup_teardown(test_threads, kernels_setup, kernels_teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
