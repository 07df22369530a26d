// Cross-entropy, forward and backward, against double precision and central differences.
#include "tests/unit/kernels_rows.h"

typedef struct {
    const double *logits; /* [vocabulary] */
    size_t vocabulary, target;
} loss_reference;

static double reference_loss(void *context)
{
    const loss_reference *l = context;
    double top = l->logits[0], sum = 0;
    for (size_t v = 0; v < l->vocabulary; v++)
        top = fmax(top, l->logits[v]);
    for (size_t v = 0; v < l->vocabulary; v++)
        sum += exp(l->logits[v] - top);
    return log(sum) + top - l->logits[l->target];
}

// softmax - one-hot, in closed form; test_differences holds it against differences.
static void reference_gradient(const loss_reference *l, double *gradient)
{
    double loss = reference_loss(&(loss_reference){l->logits, l->vocabulary, l->target});
    for (size_t v = 0; v < l->vocabulary; v++)
        gradient[v] = exp(l->logits[v] - l->logits[l->target] - loss) - (v == l->target);
}

static void test_differences(void **state)
{
    (void)state;
    enum { VOCABULARY = 51 };
    bag b = {0};
    double *logits = array_doubles(&b, array_numbers(&b, PTB_F32, VOCABULARY, 1));
    double closed[VOCABULARY], gradient[VOCABULARY];
    loss_reference l = {logits, VOCABULARY, 7};
    differences(reference_loss, &l, logits, VOCABULARY, gradient);
    reference_gradient(&l, closed);
    for (size_t v = 0; v < VOCABULARY; v++)
        assert_true(fabs(closed[v] - gradient[v]) < 1e-9);
    bag_release(&b);
}

// The arrays of a call; scale, factor and targets are chosen here.
typedef struct {
    array logits, d_logits, losses;
    int32_t *targets;
    size_t rows, vocabulary, stride;
    double *loss;        /* [1] */
    const float *factor; /* [1] */
} loss_arrays;

static const double scale = 0.125, loss_before = 100;
static const float factor = 512; // keeps small gradients normal in f16

// spread: logits far from zero and from each other, which grow along the row.
static loss_arrays make_arrays(bag *b, ptb_dtype type, size_t rows, size_t vocabulary, bool spread)
{
    double *loss = bag_bytes(b, sizeof *loss);
    float *factor_of_call = bag_bytes(b, sizeof *factor_of_call);
    *loss = loss_before, *factor_of_call = factor;
    loss_arrays a = {
        .logits = array_numbers(b, PTB_F32, rows * vocabulary, 1),
        .d_logits = array_new(b, type, rows * vocabulary),
        .losses = array_new(b, PTB_F32, rows),
        .targets = bag_bytes(b, rows * sizeof *a.targets),
        .rows = rows,
        .vocabulary = vocabulary,
        .loss = loss,
        .factor = factor_of_call,
    };
    for (size_t i = 0; spread && i < rows * vocabulary; i++)
        array_set(a.logits, i, array_at(a.logits, i) * 10 + 30 + (double)(i % vocabulary) * 0.01);
    for (size_t r = 0; r < rows; r++)
        a.targets[r] = r % 4 == 3 ? -1 - (int32_t)r : (int32_t)(r * 7919 % vocabulary);
    a.targets[0] = (int32_t)vocabulary - 1;
    return a;
}

static void run_loss(fixture *f, loss_arrays *a, bool scaled, bool accumulate)
{
    ptb_cross_entropy args = {.logits = a->logits.data,
                              .d_logits = a->d_logits.data,
                              .targets = a->targets,
                              .losses = a->losses.data,
                              .loss = a->loss,
                              .factor = scaled ? a->factor : NULL,
                              .rows = a->rows,
                              .vocabulary = a->vocabulary,
                              .stride = a->stride,
                              .scale = scale,
                              .type = a->d_logits.type,
                              .accumulate = accumulate};
    finish(f, f->kernels->cross_entropy(f->stream, &args));
}

static void check_loss(fixture *f, ptb_dtype type, size_t rows, size_t vocabulary, bool spread)
{
    for (int options = 0; options < 4; options++) {
        bool scaled = options & 1 || type == PTB_F16, accumulate = options & 2;
        bag b = {.f = f};
        loss_arrays a = make_arrays(&b, type, rows, vocabulary, spread);
        double *logits = array_doubles(&b, a.logits), *losses = bag_bytes(&b, rows * sizeof *losses);
        double *d_logits = bag_bytes(&b, rows * vocabulary * sizeof *d_logits),
               sum = accumulate ? loss_before : 0;
        for (size_t r = 0; r < rows; r++) {
            double *gradient = d_logits + r * vocabulary;
            loss_reference l = {logits + r * vocabulary, vocabulary, (size_t)a.targets[r]};
            bool counts = a.targets[r] >= 0;
            losses[r] = counts ? reference_loss(&l) : 0;
            if (counts)
                reference_gradient(&l, gradient);
            for (size_t v = 0; v < vocabulary; v++)
                gradient[v] = counts ? gradient[v] * scale * (scaled ? factor : 1) : 0;
            sum += scale * losses[r];
        }
        if (type == PTB_F32 && options & 1)
            a.d_logits.data = a.logits.data; // in place
        run_loss(f, &a, scaled, accumulate);
        assert_close("losses", a.losses, losses, spread ? 10 : 1);
        assert_close("d_logits", a.d_logits, d_logits, type == PTB_F16 ? 1e-3 : 1e-6);
        assert_guarded(a.logits);
        assert_true(fabs(*a.loss - sum) <= 1e-5 * fmax(1, fabs(sum)));
        bag_release(&b);
    }
}

static void test_cross_entropy(void **state)
{
    static const size_t sizes[][2] = {{1, 1},   {5, 1},   {1, 3},    {5, 3},     {5, 17},   {6, 51},
                                      {1, 768}, {5, 768}, {5, 5000}, {5, 20000}, {5, 60001}};
    for (size_t t = 0; t < LENGTH(compute_types); t++)
        for (size_t i = 0; i < LENGTH(sizes); i++)
            for (int spread = 0; spread < 2; spread++)
                check_loss(*state, compute_types[t], sizes[i][0], sizes[i][1], spread);
}

// Rows that are further apart than they are long give what packed ones give, and what is between stays.
static void test_stride(void **state)
{
    enum { ROWS = 5, VOCABULARY = 51, STRIDE = 64 };
    for (size_t t = 0; t < LENGTH(compute_types); t++) {
        ptb_dtype type = compute_types[t];
        bag b = {.f = *state};
        loss_arrays packed = make_arrays(&b, type, ROWS, VOCABULARY, true), apart = packed;
        apart.stride = STRIDE;
        apart.logits = array_new(&b, PTB_F32, ROWS * STRIDE);
        apart.d_logits = array_new(&b, type, ROWS * STRIDE);
        apart.losses = array_new(&b, PTB_F32, ROWS);
        for (size_t i = 0; i < ROWS * STRIDE; i++) {
            size_t r = i / STRIDE, v = i % STRIDE;
            array_set(apart.logits, i, v < VOCABULARY ? array_at(packed.logits, r * VOCABULARY + v) : NAN);
            array_set(apart.d_logits, i, 3);
        }
        run_loss(*state, &packed, true, false);
        double loss = *packed.loss, wanted[ROWS * STRIDE];
        run_loss(*state, &apart, true, false);
        for (size_t i = 0; i < ROWS * STRIDE; i++) {
            size_t r = i / STRIDE, v = i % STRIDE;
            wanted[i] = v < VOCABULARY ? array_at(packed.d_logits, r * VOCABULARY + v) : 3;
        }
        assert_true(fabs(*apart.loss / loss - 1) < 1e-6);
        assert_close("d_logits", apart.d_logits, wanted, 1e-6);
        assert_guarded(apart.logits);
        bag_release(&b);
    }
}

// A sure prediction keeps the small gradient of its target, and logits may be infinitely small.
static void test_extremes(void **state)
{
    enum { VOCABULARY = 2100 };
    bag b = {.f = *state};
    loss_arrays a = make_arrays(&b, PTB_F32, 1, VOCABULARY, false);
    for (size_t v = 0; v < VOCABULARY; v++)
        array_set(a.logits, v, v < 1500 ? -INFINITY : v == 1999 ? 20 : 0);
    a.targets[0] = 1999;
    run_loss(*state, &a, false, false);
    double rest = (VOCABULARY - 1500 - 1) * exp(-20), loss = log1p(rest);
    assert_true(fabs(*a.loss / scale - loss) < 1e-7);
    assert_true(fabs(array_at(a.d_logits, 1999) / scale + rest / (1 + rest)) < 1e-7);
    assert_true(array_at(a.d_logits, 3) < 1e-30);
    assert_true(fabs(array_at(a.d_logits, 2050) / (scale * exp(-20)) - 1) < 1e-5);
    bag_release(&b);
}

// What is not finite shows in the loss and in the gradient: dynamic loss scaling relies on it.
static void test_not_finite(void **state)
{
    enum { VOCABULARY = 1500 };
    static const float bad[] = {NAN, INFINITY};
    for (size_t t = 0; t < LENGTH(compute_types); t++)
        for (size_t i = 0; i < LENGTH(bad); i++)
            for (size_t at = 0; at < VOCABULARY; at += 1499) {
                bag b = {.f = *state};
                loss_arrays a = make_arrays(&b, compute_types[t], 1, VOCABULARY, false);
                array_set(a.logits, at, bad[i]);
                a.targets[0] = 77;
                run_loss(*state, &a, true, false);
                assert_true(!isfinite(*a.loss) && !isfinite(array_at(a.losses, 0)));
                assert_true(!isfinite(array_at(a.d_logits, 77)));
                bag_release(&b);
            }
}

// The largest logit counts wherever it stands, however large: powers relative to a smaller one would
// overflow.
static void test_top_anywhere(void **state)
{
    enum { VOCABULARY = 6000 };
    for (size_t t = 0; t < LENGTH(compute_types); t++)
        for (size_t at = 0; at < VOCABULARY; at += 857) {
            bag b = {.f = *state};
            loss_arrays a = make_arrays(&b, compute_types[t], 1, VOCABULARY, false);
            array_set(a.logits, at, 300);
            a.targets[0] = 77;
            double wanted = 300 - array_at(a.logits, 77);
            run_loss(*state, &a, true, false);
            assert_true(fabs(array_at(a.losses, 0) / wanted - 1) < 1e-6);
            assert_true(fabs(array_at(a.d_logits, at) / (scale * (double)factor) - 1) < 1e-2);
            bag_release(&b);
        }
}

// Rows are the same, bit by bit, in a call that is larger than the caches (which stores another way) and in
// small ones.
static void test_large_call(void **state)
{
    enum { ROWS = 128, PART = 8, VOCABULARY = 50021 };
    for (size_t t = 0; t < LENGTH(compute_types); t++) {
        bag b = {.f = *state};
        loss_arrays all = make_arrays(&b, compute_types[t], ROWS, VOCABULARY, false);
        size_t bytes = VOCABULARY * ptb_dtype_size(compute_types[t]);
        float *logits = bag_bytes(&b, ROWS * VOCABULARY * sizeof *logits);
        memcpy(logits, all.logits.data, ROWS * VOCABULARY * sizeof *logits);
        run_loss(*state, &all, true, false);
        for (size_t r = 0; r < ROWS; r += PART) {
            loss_arrays part = make_arrays(&b, compute_types[t], PART, VOCABULARY, false);
            memcpy(part.logits.data, logits + r * VOCABULARY, PART * VOCABULARY * sizeof *logits);
            memcpy(part.targets, all.targets + r, PART * sizeof *all.targets);
            run_loss(*state, &part, true, false);
            assert_memory_equal(part.d_logits.data, (char *)all.d_logits.data + r * bytes, PART * bytes);
            assert_memory_equal(part.losses.data, (float *)all.losses.data + r, PART * sizeof(float));
        }
        bag_release(&b);
    }
}

static size_t run_threads(bag *b, ptb_dtype type, array *results)
{
    loss_arrays a = make_arrays(b, type, 37, 1031, true);
    run_loss(b->f, &a, true, true);
    array loss = array_new(b, PTB_F64, 1);
    array_set(loss, 0, *a.loss);
    array all[] = {a.d_logits, a.losses, loss};
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
        cmocka_unit_test(test_differences), KERNEL_TEST(test_cross_entropy), KERNEL_TEST(test_stride),
        KERNEL_TEST(test_extremes),         KERNEL_TEST(test_not_finite),    KERNEL_TEST(test_threads),
        KERNEL_TEST(test_top_anywhere),     KERNEL_TEST(test_large_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
