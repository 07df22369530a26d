// The optimizer: the learning rate's schedule against its formula, updates against the same loops in double,
// clipping by the global norm, decay of matrices alone.
#include "strategies/optimizer.h"
#include "tests/unit/kernels_fixture.h"

#include <math.h>

static void test_constant(void **state)
{
    (void)state;
    ptb_optimizer o = {.rate = 1, .rate_warmup = 4};
    assert_true(ptb_optimizer_rate(&o, 0) == 0.25 && ptb_optimizer_rate(&o, 2) == 0.75);
    assert_true(ptb_optimizer_rate(&o, 3) == 1 && ptb_optimizer_rate(&o, 1000000) == 1);
    o.rate_warmup = 0;
    assert_true(ptb_optimizer_rate(&o, 0) == 1);
}

static void test_cosine(void **state)
{
    (void)state;
    ptb_optimizer o = {
        .schedule = PTB_RATE_COSINE, .rate = 3, .rate_min = 1, .rate_warmup = 10, .rate_steps = 110};
    assert_true(fabs(ptb_optimizer_rate(&o, 4) - 1.5) < 1e-12); // half of the warm-up
    assert_true(ptb_optimizer_rate(&o, 9) == 3 && ptb_optimizer_rate(&o, 10) == 3);
    for (uint64_t step = 10; step < 110; step++) {
        double wanted = 1 + (1 + cos(M_PI * (double)(step - 10) / 100));
        assert_true(fabs(ptb_optimizer_rate(&o, step) - wanted) < 1e-12);
    }
    assert_true(fabs(ptb_optimizer_rate(&o, 60) - 2) < 1e-12);
    assert_true(ptb_optimizer_rate(&o, 110) == 1 && ptb_optimizer_rate(&o, 100000) == 1);
    o.rate_steps = 5; // ends within the warm-up
    assert_true(ptb_optimizer_rate(&o, 3) < 3 && ptb_optimizer_rate(&o, 20) == 1);
    o.rate_warmup = 0;
    o.rate_steps = 2;
    assert_true(ptb_optimizer_rate(&o, 0) == 3 && fabs(ptb_optimizer_rate(&o, 1) - 2) < 1e-12);
}

// A unit of one matrix (decays) and one vector (does not).
enum { MATRIX = 32, VECTOR = 16, COUNT = MATRIX + VECTOR };
static const ptb_unit unit = {
    .count = COUNT,
    .tensors = 2,
    .tensor = {{.name = "matrix", .matrices = 1, .rows = 4, .columns = 8, .decay = true},
               {.name = "vector", .first = MATRIX, .matrices = 1, .rows = 1, .columns = VECTOR}}};

typedef struct {
    float parameters[COUNT], moment[2][COUNT], gradients[COUNT];
    ptb_update update;
    double sum_squares;
} numbers_of;

// Steps of an optimizer with the same gradient, on the stream, in memory that the device sees.
static void run(fixture *f, const ptb_optimizer *o, numbers_of *numbers, int steps)
{
    numbers_of *x = test_memory_of(numbers, sizeof *numbers);
    ptb_optimizer_memory memory = {
        .count = COUNT, .parameters = x->parameters, .gradients = x->gradients, .type = PTB_F32};
    for (size_t i = 0; i < ptb_optimizer_moments(o); i++)
        memory.moment[i] = x->moment[i];
    for (int s = 0; s < steps; s++) {
        x->update.rate = (float)ptb_optimizer_rate(o, (uint64_t)s);
        ptb_sum_squares squares = {.sum = &x->sum_squares, .values = x->gradients, .count = COUNT};
        assert_int_equal(f->kernels->sum_squares(f->stream, &squares), PTB_OK);
        assert_int_equal(ptb_optimizer_begin(o, f->kernels, f->stream, &x->update,
                                             ptb_optimizer_needs_norm(o) ? &x->sum_squares : NULL),
                         PTB_OK);
        finish(f, ptb_optimizer_update(o, f->kernels, f->stream, &x->update, &unit, &memory));
    }
    *numbers = *x;
    test_memory_free(x);
}

static numbers_of start(const ptb_optimizer *o)
{
    numbers_of x = {.update = ptb_optimizer_start(o)};
    for (int i = 0; i < COUNT; i++) {
        x.parameters[i] = (float)ptb_random_normal(1, 2, (uint64_t)i);
        x.gradients[i] = (float)ptb_random_normal(1, 3, (uint64_t)i);
    }
    return x;
}

static double norm_of(const numbers_of *x)
{
    double sum = 0;
    for (int i = 0; i < COUNT; i++)
        sum += (double)x->gradients[i] * (double)x->gradients[i];
    return sqrt(sum);
}

static void test_adamw(void **state)
{
    ptb_optimizer o = {
        .rate = 0.01, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .decay = 0.5, .loss_scale = 1};
    numbers_of x = start(&o), first = x;
    run(*state, &o, &x, 3);
    for (int i = 0; i < COUNT; i++) {
        double p = first.parameters[i], g = first.gradients[i], m = 0, v = 0, decay = i < MATRIX ? 0.5 : 0;
        for (int s = 1; s <= 3; s++) {
            m = 0.9 * m + 0.1 * g;
            v = 0.95 * v + 0.05 * g * g;
            p -= 0.01 * (m / (1 - pow(0.9, s)) / (sqrt(v / (1 - pow(0.95, s))) + 1e-8) + decay * p);
        }
        assert_true(fabs(x.parameters[i] - p) < 1e-5);
    }
}

static void test_sgd(void **state)
{
    for (int has_momentum = 0; has_momentum < 2; has_momentum++) {
        double momentum = has_momentum ? 0.8 : 0;
        ptb_optimizer o = {
            .kind = PTB_OPTIMIZER_SGD, .rate = 0.1, .momentum = momentum, .decay = 0.5, .loss_scale = 1};
        assert_int_equal(ptb_optimizer_moments(&o), has_momentum);
        numbers_of x = start(&o), first = x;
        run(*state, &o, &x, 3);
        for (int i = 0; i < COUNT; i++) {
            double p = first.parameters[i], m = 0;
            for (int s = 0; s < 3; s++) {
                m = momentum * m + first.gradients[i] + (i < MATRIX ? 0.5 * p : 0);
                p -= 0.1 * m;
            }
            assert_true(fabs(x.parameters[i] - p) < 1e-5);
        }
    }
}

// Without momentum and decay the step is rate * gradient * min(1, clip / norm).
static void test_clip(void **state)
{
    ptb_optimizer o = {.kind = PTB_OPTIMIZER_SGD, .rate = 1, .clip = 0.5, .loss_scale = 1};
    numbers_of x = start(&o), first = x;
    double norm = norm_of(&first);
    assert_true(norm > 2);
    run(*state, &o, &x, 1);
    assert_true(fabs(x.update.norm / norm - 1) < 1e-6);
    for (int i = 0; i < COUNT; i++)
        assert_true(fabs(first.parameters[i] - x.parameters[i] - first.gradients[i] * 0.5 / norm) < 1e-6);
    o.clip = 2 * norm; // above the norm: nothing is changed
    x = first;
    run(*state, &o, &x, 1);
    for (int i = 0; i < COUNT; i++)
        assert_true(fabs(first.parameters[i] - x.parameters[i] - first.gradients[i]) < 1e-6);
}

// A gradient that is not finite: nothing changes, the scale halves; good steps double it.
static void test_loss_scale(void **state)
{
    ptb_optimizer o = {.kind = PTB_OPTIMIZER_SGD,
                       .rate = 1,
                       .momentum = 0.5,
                       .loss_scale = 1024,
                       .dynamic = true,
                       .growth_interval = 3};
    numbers_of x = start(&o), first = x;
    x.gradients[17] = INFINITY;
    run(*state, &o, &x, 1);
    assert_int_equal(x.update.skipped, 1);
    assert_true(x.update.loss_scale == 512);
    assert_memory_equal(x.parameters, first.parameters, sizeof x.parameters);
    assert_memory_equal(x.moment, first.moment, sizeof x.moment);
    x.gradients[17] = 0;
    run(*state, &o, &x, 3);
    assert_int_equal(x.update.skipped, 1);
    assert_int_equal(x.update.applied, 3);
    assert_true(x.update.loss_scale == 1024);
    // Gradients were made with the scale; the first of the three steps takes it out again.
    x = first;
    o.momentum = 0;
    x.update.loss_scale = 512;
    run(*state, &o, &x, 1);
    for (int i = 0; i < COUNT; i++)
        assert_true(fabs(first.parameters[i] - x.parameters[i] - first.gradients[i] / 512) < 1e-6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_constant), cmocka_unit_test(test_cosine), cmocka_unit_test(test_adamw),
        cmocka_unit_test(test_sgd),      cmocka_unit_test(test_clip),   cmocka_unit_test(test_loss_scale),
    };
    return cmocka_run_group_tests(tests, kernels_setup, kernels_teardown);
}
