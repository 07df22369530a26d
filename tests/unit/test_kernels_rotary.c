// Rotary positions against libm in double precision: types, odd halves, offsets, documents, and back again.
#include "tests/unit/kernels_fixture.h"

typedef struct {
    size_t rows, length, heads, width, padding;
    int64_t offset;
    bool documents;
} rotary_case;

static int32_t start_of(size_t row)
{
    return (int32_t)(row % 5 * 3); // any number will do
}

// The values turned, in double; padding as it was.
static void turn(const rotary_case *c, const ptb_rotary *a, const double *in, double *out)
{
    memcpy(out, in, a->rows * a->stride * sizeof *out);
    for (size_t r = 0; r < a->rows; r++)
        for (size_t h = 0; h < a->heads; h++)
            for (size_t i = 0; i < a->head_width / 2; i++) {
                size_t low = r * a->stride + h * a->head_width + i, high = low + a->head_width / 2;
                double position =
                    (double)(a->offset + (int64_t)(r % a->length) - (c->documents ? start_of(r) : 0));
                double angle = position * pow((double)a->base, -2.0 * (double)i / (double)a->head_width);
                angle = a->inverse ? -angle : angle;
                out[low] = in[low] * cos(angle) - in[high] * sin(angle);
                out[high] = in[high] * cos(angle) + in[low] * sin(angle);
            }
}

static void check(fixture *f, const rotary_case *c, ptb_dtype type, bool inverse)
{
    size_t stride = c->heads * c->width + c->padding, count = c->rows * stride;
    size_t bytes = ptb_dtype_size(type);
    char *values = test_memory(count * bytes);
    double *in = malloc(count * sizeof *in), *wanted = malloc(count * sizeof *wanted);
    int32_t *start = test_memory(c->rows * sizeof *start);
    for (size_t i = 0; i < count; i++) {
        ptb_dtype_store(type, values + i * bytes, ptb_random_normal(7, 1, i));
        in[i] = ptb_dtype_load(type, values + i * bytes);
    }
    for (size_t r = 0; r < c->rows; r++)
        start[r] = start_of(r);
    ptb_rotary args = {values,   c->rows,   stride,    c->heads,
                       c->width, c->length, c->offset, c->documents ? start : NULL,
                       500000,   inverse,   type};
    turn(c, &args, in, wanted);
    finish(f, f->kernels->rotary(f->stream, &args));
    double error = 0, size = 0;
    for (size_t i = 0; i < count; i++) {
        double x = ptb_dtype_load(type, values + i * bytes) - wanted[i];
        error += x * x;
        size += wanted[i] * wanted[i];
        if (i % stride >= c->heads * c->width)
            assert_true(x == 0);
    }
    double limit = type == PTB_F32 ? 2e-7 : type == PTB_BF16 ? 4e-3 : 5e-4;
    if (!(sqrt(error / size) < limit))
        fail_msg("%s, width %zu: relative distance %g", ptb_dtype_name(type), c->width, sqrt(error / size));
    test_memory_free(values), test_memory_free(start);
    free(in), free(wanted);
}

static void test_rotary(void **state)
{
    static const rotary_case cases[] = {
        {1, 1, 1, 2, 0, 0, false},    {6, 3, 2, 2, 3, 0, false},         {14, 7, 3, 6, 1, 0, true},
        {10, 5, 1, 64, 7, 0, false},  {10, 5, 2, 80, 0, 4, true},        {8, 8, 3, 128, 5, 131000, false},
        {4, 2, 1, 300, 1, 12, false}, {21, 7, 2, 50, 2, 1000000, false}, {30, 10, 2, 256, 0, 0, true},
    };
    static const ptb_dtype types[] = {PTB_F32, PTB_BF16, PTB_F16};
    fixture *f = *state;
    for (int threads = 1; threads <= 3; threads++) {
        assert_int_equal(f->kernels->set_threads(f->stream, threads), PTB_OK);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            for (size_t t = 0; t < sizeof types / sizeof *types; t++)
                for (int inverse = 0; inverse < 2; inverse++)
                    check(f, &cases[i], types[t], inverse);
    }
}

// Turning there and back gives what was there.
static void test_inverse(void **state)
{
    fixture *f = *state;
    enum { ROWS = 12, WIDTH = 40, COUNT = ROWS * WIDTH };
    float *values = numbers(COUNT, 1), *before = copy_of(values, COUNT);
    ptb_rotary args = {values, ROWS, WIDTH, 1, WIDTH, ROWS, 77, NULL, 10000, false, PTB_F32};
    finish(f, f->kernels->rotary(f->stream, &args));
    double moved = 0;
    for (size_t i = 0; i < COUNT; i++)
        moved += fabs((double)(values[i] - before[i]));
    assert_true(moved > 1);
    args.inverse = true;
    finish(f, f->kernels->rotary(f->stream, &args));
    for (size_t i = 0; i < COUNT; i++)
        assert_true(fabs((double)(values[i] - before[i])) < 1e-6);
    test_memory_free(values), test_memory_free(before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_rotary, kernels_setup, kernels_teardown),
        cmocka_unit_test_setup_teardown(test_inverse, kernels_setup, kernels_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
