// Sum of squares, what an update needs, AdamW and SGD against double precision over several steps.
#include "tests/unit/kernels_rows.h"

static const size_t counts[] = {1, 3, 17, 768, 5003};

// ---- sum of squares

static double sum_squares(fixture *f, array values, double before, bool accumulate)
{
    bag b = {.f = f};
    double *sum = bag_bytes(&b, sizeof *sum);
    *sum = before;
    ptb_sum_squares args = {sum, values.data, values.count, accumulate};
    finish(f, f->kernels->sum_squares(f->stream, &args));
    double result = *sum;
    bag_release(&b);
    return result;
}

static void test_sum_squares(void **state)
{
    fixture *f = *state;
    for (size_t i = 0; i < LENGTH(counts); i++) {
        bag b = {.f = f};
        array values = array_numbers(&b, PTB_F32, counts[i], i);
        double wanted = 0;
        array_set(values, 0, 1e25); // its square is beyond f32
        for (size_t e = 0; e < counts[i]; e++)
            wanted += array_at(values, e) * array_at(values, e);
        assert_true(fabs(sum_squares(f, values, 5, false) / wanted - 1) < 1e-14);
        array_set(values, 0, 1);
        wanted = 0;
        for (size_t e = 0; e < counts[i]; e++)
            wanted += array_at(values, e) * array_at(values, e);
        assert_true(fabs(sum_squares(f, values, 5, false) / wanted - 1) < 1e-13);
        assert_true(fabs(sum_squares(f, values, 5, true) / (wanted + 5) - 1) < 1e-13);
        array_set(values, counts[i] - 1, NAN);
        assert_true(isnan(sum_squares(f, values, 0, false)));
        array_set(values, counts[i] - 1, -INFINITY);
        assert_true(isinf(sum_squares(f, values, 0, false)));
        bag_release(&b);
    }
    assert_true(sum_squares(f, (array){PTB_F32, 0, NULL}, 5, false) == 0);
    assert_true(sum_squares(f, (array){PTB_F32, 0, NULL}, 5, true) == 5);
}

// ---- what an update needs

static void begin(fixture *f, ptb_update *update, const double *sum, double clip, bool dynamic)
{
    bag b = {.f = f};
    ptb_update *shared = bag_bytes(&b, sizeof *shared);
    double *shared_sum = bag_bytes(&b, sizeof *shared_sum);
    *shared = *update;
    *shared_sum = sum ? *sum : 0;
    ptb_update_begin args = {.update = shared,
                             .sum_squares = sum ? shared_sum : NULL,
                             .clip = clip,
                             .beta1 = 0.9,
                             .beta2 = 0.95,
                             .growth_interval = 3,
                             .dynamic = dynamic};
    finish(f, f->kernels->update_begin(f->stream, &args));
    *update = *shared;
    bag_release(&b);
}

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-6 * fabs(b);
}

static void test_update_clips(void **state)
{
    fixture *f = *state;
    ptb_update u = {.loss_scale = 1, .beta1_power = 1, .beta2_power = 1};
    double sum = 9;
    begin(f, &u, NULL, 0, false); // nothing asked of the gradients
    assert_true(u.factor == 1 && !u.skip && u.applied == 1 && isnan(u.norm));
    assert_true(near(u.beta1_power, 0.9) && near(u.beta2_power, 0.95));
    begin(f, &u, &sum, 0, false);
    assert_true(u.norm == 3 && u.factor == 1 && u.applied == 2);
    begin(f, &u, &sum, 4, false); // below the limit
    assert_true(u.norm == 3 && u.factor == 1);
    begin(f, &u, &sum, 0.75, false);
    assert_true(u.norm == 3 && near(u.factor, 0.25) && u.applied == 4 && u.loss_scale == 1);
    assert_true(near(u.beta1_power, pow(0.9, 4)) && near(u.beta2_power, pow(0.95, 4)));
    u.loss_scale = 16, sum = 9 * 256; // of scaled gradients
    begin(f, &u, &sum, 0.75, false);
    assert_true(near(u.norm, 3) && near(u.factor, 0.25 / 16));
}

// Halves on overflow, doubles after growth_interval good steps, and stays within 1 and 2^24.
static void test_update_scales(void **state)
{
    static const double overflows[] = {INFINITY, NAN};
    fixture *f = *state;
    ptb_update u = {.loss_scale = 0x1p16f, .beta1_power = 1, .beta2_power = 1};
    double good = 0x1p32; // norm 1
    for (int step = 1; step <= 2; step++) {
        begin(f, &u, &good, 0, true);
        assert_true(!u.skip && u.factor == 0x1p-16f && u.norm == 1 && u.loss_scale == 0x1p16f);
    }
    for (size_t i = 0; i < LENGTH(overflows); i++) {
        begin(f, &u, &overflows[i], 1, true);
        assert_true(u.skip == 1 && u.skipped == i + 1 && u.good == 0 && u.applied == 2);
        assert_true(near(u.beta1_power, 0.81)); // no update, no correction
        assert_true(u.loss_scale == ldexpf(1, 15 - (int)i));
    }
    for (int step = 1; step <= 3; step++) {
        begin(f, &u, &good, 0, true);
        assert_true(!u.skip && u.factor == 0x1p-14f); // the scale that made these gradients
        assert_true(u.loss_scale == (step < 3 ? 0x1p14f : 0x1p15f));
    }
    assert_true(u.applied == 5 && u.skipped == 2 && u.good == 0);
    u.loss_scale = 1;
    begin(f, &u, &overflows[0], 0, true);
    assert_true(u.loss_scale == 1);
    u.loss_scale = 0x1p24f, u.good = 2;
    begin(f, &u, &good, 0, true);
    assert_true(u.loss_scale == 0x1p24f && !u.skip);
}

// ---- updates

typedef struct {
    array parameter, m, v, rounded;
    double *p, *mean, *square; // the same in double
    size_t count;
} state_arrays;

static state_arrays make_state(bag *b, ptb_dtype type, size_t count)
{
    state_arrays s = {
        .parameter = array_numbers(b, PTB_F32, count, 1),
        .m = array_new(b, PTB_F32, count),
        .v = array_new(b, PTB_F32, count),
        .rounded = array_new(b, type, count),
        .count = count,
    };
    memset(s.m.data, 0, count * sizeof(float));
    memset(s.v.data, 0, count * sizeof(float));
    s.p = array_doubles(b, s.parameter), s.mean = array_doubles(b, s.m), s.square = array_doubles(b, s.v);
    return s;
}

static void assert_rounded(const state_arrays *s)
{
    assert_guarded(s->rounded);
    for (size_t i = 0; i < s->count; i++) {
        unsigned char wanted[4];
        ptb_dtype_store(s->rounded.type, wanted, array_at(s->parameter, i));
        assert_true(ptb_dtype_load(s->rounded.type, wanted) == array_at(s->rounded, i));
    }
}

enum { STEPS = 4 };
static const float factor = 0.25f;

static void step_adamw(fixture *f, state_arrays *s, array gradient, const ptb_update *update, bool rounded)
{
    ptb_update *shared = test_memory_of(update, sizeof *update);
    ptb_adamw args = {.parameter = s->parameter.data,
                      .m = s->m.data,
                      .v = s->v.data,
                      .gradient = gradient.data,
                      .rounded = rounded ? s->rounded.data : NULL,
                      .update = shared,
                      .count = s->count,
                      .beta1 = 0.9f,
                      .beta2 = 0.95f,
                      .epsilon = 1e-8f,
                      .decay = 0.3f,
                      .type = s->rounded.type};
    finish(f, f->kernels->adamw(f->stream, &args));
    test_memory_free(shared);
}

static void check_adamw(fixture *f, ptb_dtype type, size_t count, bool rounded)
{
    bag b = {.f = f};
    state_arrays s = make_state(&b, type, count);
    array poison = array_copy(&b, s.rounded);
    for (int step = 1; step <= STEPS; step++) {
        array gradient = array_numbers(&b, PTB_F32, count, 10 + (uint64_t)step);
        array_set(gradient, 0, 0); // a parameter without gradient only decays
        double c1 = 1 - pow(0.9, step), c2 = 1 - pow(0.95, step);
        for (size_t i = 0; i < count; i++) {
            double g = (double)factor * array_at(gradient, i);
            s.mean[i] = 0.9 * s.mean[i] + 0.1 * g;
            s.square[i] = 0.95 * s.square[i] + 0.05 * g * g;
            s.p[i] -= 0.01 * (s.mean[i] / c1 / (sqrt(s.square[i] / c2) + 1e-8) + 0.3 * s.p[i]);
        }
        ptb_update update = {.factor = factor, .rate = 0.01f, .beta1_power = 1 - c1, .beta2_power = 1 - c2};
        step_adamw(f, &s, gradient, &update, rounded);
    }
    assert_close("parameter", s.parameter, s.p, 0);
    assert_close("m", s.m, s.mean, 1e-3);
    assert_close("v", s.v, s.square, 1e-3);
    if (rounded)
        assert_rounded(&s);
    else
        assert_true(array_equal(poison, s.rounded));
    bag_release(&b);
}

static void test_adamw(void **state)
{
    for (size_t t = 0; t < LENGTH(compute_types); t++)
        for (size_t i = 0; i < LENGTH(counts); i++)
            for (int rounded = 0; rounded < 2; rounded++)
                check_adamw(*state, compute_types[t], counts[i], rounded);
}

static void step_sgd(fixture *f, state_arrays *s, array gradient, const ptb_update *update, bool momentum,
                     bool rounded)
{
    ptb_update *shared = test_memory_of(update, sizeof *update);
    ptb_sgd args = {.parameter = s->parameter.data,
                    .m = momentum ? s->m.data : NULL,
                    .gradient = gradient.data,
                    .rounded = rounded ? s->rounded.data : NULL,
                    .update = shared,
                    .count = s->count,
                    .momentum = 0.9f,
                    .decay = 0.3f,
                    .type = s->rounded.type};
    finish(f, f->kernels->sgd(f->stream, &args));
    test_memory_free(shared);
}

static void check_sgd(fixture *f, ptb_dtype type, size_t count, bool momentum, bool rounded)
{
    bag b = {.f = f};
    state_arrays s = make_state(&b, type, count);
    ptb_update update = {.factor = factor, .rate = 0.05f};
    for (int step = 1; step <= STEPS; step++) {
        array gradient = array_numbers(&b, PTB_F32, count, 10 + (uint64_t)step);
        for (size_t i = 0; i < count; i++) {
            double g = (double)factor * array_at(gradient, i) + 0.3 * s.p[i];
            s.mean[i] = momentum ? 0.9 * s.mean[i] + g : 0;
            s.p[i] -= 0.05 * (momentum ? s.mean[i] : g);
        }
        step_sgd(f, &s, gradient, &update, momentum, rounded);
    }
    assert_close("parameter", s.parameter, s.p, 0);
    assert_close("m", s.m, s.mean, 1e-3);
    if (rounded)
        assert_rounded(&s);
    bag_release(&b);
}

static void test_sgd(void **state)
{
    for (size_t t = 0; t < LENGTH(compute_types); t++)
        for (size_t i = 0; i < LENGTH(counts); i++)
            for (int options = 0; options < 4; options++)
                check_sgd(*state, compute_types[t], counts[i], options & 1, options & 2);
}

// A skipped step leaves every byte, whatever the gradient holds.
static void test_skip(void **state)
{
    fixture *f = *state;
    enum { N = 100 };
    bag b = {.f = f};
    state_arrays s = make_state(&b, PTB_F16, N);
    array gradient = array_numbers(&b, PTB_F32, N, 3), p0 = array_copy(&b, s.parameter),
          m0 = array_copy(&b, s.m);
    array v0 = array_copy(&b, s.v), rounded0 = array_copy(&b, s.rounded);
    ptb_update update = {.factor = 1, .rate = 0.05f, .skip = 1, .beta1_power = 0.9, .beta2_power = 0.95};
    array_set(gradient, 50, INFINITY);
    step_adamw(f, &s, gradient, &update, true);
    step_sgd(f, &s, gradient, &update, true, true);
    assert_true(array_equal(p0, s.parameter) && array_equal(m0, s.m) && array_equal(v0, s.v));
    assert_true(array_equal(rounded0, s.rounded));
    bag_release(&b);
}

static size_t run_threads(bag *b, ptb_dtype type, array *results)
{
    enum { N = 70001 };
    state_arrays s = make_state(b, type, N), t = make_state(b, type, N);
    array gradient = array_numbers(b, PTB_F32, N, 3), sum = array_new(b, PTB_F64, 1);
    ptb_update update = {.factor = factor, .rate = 0.01f, .beta1_power = 0.9, .beta2_power = 0.95};
    step_adamw(b->f, &s, gradient, &update, true);
    step_sgd(b->f, &t, gradient, &update, true, true);
    array_set(sum, 0, sum_squares(b->f, gradient, 0, false));
    array all[] = {s.parameter, s.m, s.v, s.rounded, t.parameter, t.m, t.rounded, sum};
    memcpy(results, all, sizeof all);
    return LENGTH(all);
}

static void test_threads(void **state)
{
    assert_same_for_threads(*state, run_threads);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        KERNEL_TEST(test_sum_squares), KERNEL_TEST(test_update_clips), KERNEL_TEST(test_update_scales),
        KERNEL_TEST(test_adamw),       KERNEL_TEST(test_sgd),          KERNEL_TEST(test_skip),
        KERNEL_TEST(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
