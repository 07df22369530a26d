// The products of linear layers in every type against loops in double precision: odd sizes, several passes
// over the depth and blocks of the result, groups, and numbers of threads, which must not change a bit.
#include "tests/unit/kernels_fixture.h"

#include <math.h>

// An array in a type, and what its elements are.
typedef struct {
    ptb_dtype type;
    size_t count, bytes;
    void *data;
    double *values; /* [count] */
} array;

static array array_new(ptb_dtype type, size_t count, uint64_t which)
{
    array a = {.type = type, .count = count, .bytes = count * ptb_dtype_size(type)};
    a.data = test_memory(a.bytes);
    a.values = malloc((count + 1) * sizeof *a.values);
    for (size_t i = 0; i < count; i++) {
        char *element = (char *)a.data + i * ptb_dtype_size(type);
        ptb_dtype_store(type, element, ptb_random_normal(7, which, i));
        a.values[i] = ptb_dtype_load(type, element);
    }
    return a;
}

static void array_free(array *a)
{
    test_memory_free(a->data);
    free(a->values);
}

// got is wanted rounded once to its type: to half a unit in the last place of each element, and
// what an f32 sum of `terms` products of normal numbers leaves: it wanders up to 4 sqrt(terms), and each of
// the additions rounds at that size, the roundings wandering as well. All of f32 together: 1e-6 of the norm,
// or for a long depth twice what one running sum leaves (its k-th addition rounds sqrt(k) to 2^-24 / sqrt(3),
// the squares of which add to terms^2 2^-48 / 6, beside sqrt(terms)).
static void assert_rounded_once(const array *got, const double *wanted, size_t terms)
{
    double half = ldexp(1, -ptb_dtype_significant_bits(got->type)), distance = 0, norm = 0;
    for (size_t i = 0; i < got->count; i++) {
        double value = ptb_dtype_load(got->type, (char *)got->data + i * ptb_dtype_size(got->type));
        double limit = 1.01 * half * fabs(wanted[i]) + ldexp(4, -24) * (double)(terms + 1);
        if (!(fabs(value - wanted[i]) <= limit))
            fail_msg("element %zu of %zu in %s is %.9g; expected %.9g to within %.3g", i, got->count,
                     ptb_dtype_name(got->type), value, wanted[i], limit);
        distance += (value - wanted[i]) * (value - wanted[i]);
        norm += wanted[i] * wanted[i];
    }
    double relative = fmax(1e-6, 2 * sqrt((double)terms / 6) * ldexp(1, -24));
    if (got->type == PTB_F32 && !(distance <= relative * relative * norm))
        fail_msg("relative distance %g over %zu elements", sqrt(distance / norm), got->count);
}

typedef struct {
    size_t rows, columns, inner;
    size_t groups;
    const int32_t *offsets; /* [groups + 1] */
    size_t stride;          // between rows of a layer's output; 0: columns
} shape;

// Row r belongs to the group; SIZE_MAX: to none.
static size_t group_of(const shape *s, size_t row)
{
    if (!s->groups)
        return 0;
    for (size_t g = 0; g < s->groups; g++)
        if (row >= (size_t)s->offsets[g] && row < (size_t)s->offsets[g + 1])
            return g;
    return SIZE_MAX;
}

static size_t weights(const shape *s)
{
    return s->groups ? s->groups : 1;
}

static const int thread_counts[] = {1, 2, 3};
enum { THREAD_COUNTS = 3 };

// Runs `enqueue` with each number of threads on the same start and leaves the result of the last, after
// comparing all.
static void run_threads(fixture *f, array *out, size_t outs, ptb_status (*enqueue)(fixture *, const void *),
                        const void *args)
{
    void *start[2], *first[2];
    for (size_t o = 0; o < outs; o++) {
        start[o] = malloc(out[o].bytes + 1);
        first[o] = malloc(out[o].bytes + 1);
        memcpy(start[o], out[o].data, out[o].bytes);
    }
    for (int i = 0; i < THREAD_COUNTS; i++) {
        for (size_t o = 0; o < outs; o++)
            memcpy(out[o].data, start[o], out[o].bytes);
        assert_int_equal(f->kernels->set_threads(f->stream, thread_counts[i]), PTB_OK);
        finish(f, enqueue(f, args));
        for (size_t o = 0; o < outs; o++) {
            if (i == 0)
                memcpy(first[o], out[o].data, out[o].bytes);
            assert_memory_equal(first[o], out[o].data, out[o].bytes);
        }
    }
    for (size_t o = 0; o < outs; o++)
        free(start[o]), free(first[o]);
}

static ptb_status enqueue_forward(fixture *f, const void *args)
{
    return f->kernels->matmul(f->stream, args);
}

static ptb_status enqueue_input(fixture *f, const void *args)
{
    return f->kernels->matmul_input_gradient(f->stream, args);
}

static ptb_status enqueue_weight(fixture *f, const void *args)
{
    return f->kernels->matmul_weight_gradient(f->stream, args);
}

static void check_forward(fixture *f, const shape *s, ptb_dtype type, bool wide, bool with_bias,
                          bool with_residual, bool in_place)
{
    size_t m = s->rows, n = s->columns, k = s->inner, stride = ptb_row_stride(s->stride, n);
    array in = array_new(type, m * k, 1), weight = array_new(type, weights(s) * n * k, 2);
    array bias = array_new(type, weights(s) * n, 3);
    array residual = array_new(wide ? PTB_F32 : type, m * stride, 4);
    array out = array_new(wide ? PTB_F32 : type, m * stride, 5);
    if (in_place) {
        memcpy(out.data, residual.data, out.bytes);
        memcpy(out.values, residual.values, out.count * sizeof *out.values);
    }
    double *wanted = malloc((m * stride + 1) * sizeof *wanted);
    for (size_t r = 0; r < m; r++)
        for (size_t c = 0; c < stride; c++) {
            size_t g = c < n ? group_of(s, r) : SIZE_MAX;
            double sum = 0;
            for (size_t i = 0; g != SIZE_MAX && i < k; i++)
                sum += in.values[r * k + i] * weight.values[(g * n + c) * k + i];
            if (g == SIZE_MAX)
                sum = out.values[r * stride + c];
            else
                sum += (with_bias ? bias.values[g * n + c] : 0) +
                       (with_residual ? residual.values[r * stride + c] : 0);
            wanted[r * stride + c] = sum;
        }
    ptb_matmul args = {.out = out.data,
                       .in = in.data,
                       .weight = weight.data,
                       .bias = with_bias ? bias.data : NULL,
                       .residual = in_place        ? out.data
                                   : with_residual ? residual.data
                                                   : NULL,
                       .rows = m,
                       .columns = n,
                       .inner = k,
                       .out_stride = s->stride,
                       .groups = s->groups,
                       .offsets = s->offsets,
                       .type = type,
                       .wide = wide};
    run_threads(f, &out, 1, enqueue_forward, &args);
    assert_rounded_once(&out, wanted, k);
    array_free(&in), array_free(&weight), array_free(&bias), array_free(&residual), array_free(&out);
    free(wanted);
}

static void check_input_gradient(fixture *f, const shape *s, ptb_dtype type, bool accumulate)
{
    size_t m = s->rows, n = s->columns, k = s->inner, stride = ptb_row_stride(s->stride, n);
    array d_in = array_new(type, m * k, 1), weight = array_new(type, weights(s) * n * k, 2);
    array d_out = array_new(type, m * stride, 3);
    double *wanted = malloc((m * k + 1) * sizeof *wanted);
    for (size_t r = 0; r < m; r++) {
        size_t g = group_of(s, r);
        for (size_t i = 0; i < k; i++)
            wanted[r * k + i] = accumulate || g == SIZE_MAX ? d_in.values[r * k + i] : 0;
        for (size_t c = 0; g != SIZE_MAX && c < n; c++)
            for (size_t i = 0; i < k; i++)
                wanted[r * k + i] += d_out.values[r * stride + c] * weight.values[(g * n + c) * k + i];
    }
    ptb_matmul_input_gradient args = {.d_in = d_in.data,
                                      .d_out = d_out.data,
                                      .weight = weight.data,
                                      .rows = m,
                                      .columns = n,
                                      .inner = k,
                                      .d_out_stride = s->stride,
                                      .groups = s->groups,
                                      .offsets = s->offsets,
                                      .type = type,
                                      .accumulate = accumulate};
    run_threads(f, &d_in, 1, enqueue_input, &args);
    assert_rounded_once(&d_in, wanted, n);
    array_free(&d_in), array_free(&weight), array_free(&d_out);
    free(wanted);
}

// GELU's tanh form and its derivative.
static double gelu(double x)
{
    return x / 2 * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
}

static double gelu_slope(double x)
{
    double c = sqrt(2 / 3.14159265358979323846), t = tanh(c * (x + 0.044715 * x * x * x));
    return (1 + t) / 2 + x / 2 * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x);
}

// got = wanted[i], of which each was made from `from[i]` times at most 1.13 (the slope of GELU), rounded
// before or not, and from sums of `terms` products.
static void assert_gelu(const array *got, const double *wanted, const double *from, size_t terms)
{
    double half = ldexp(1, -ptb_dtype_significant_bits(got->type));
    for (size_t i = 0; i < got->count; i++) {
        double value = ptb_dtype_load(got->type, (char *)got->data + i * ptb_dtype_size(got->type));
        double limit =
            1.01 * half * (fabs(wanted[i]) + 1.13 * fabs(from[i])) + ldexp(4, -24) * (double)(terms + 1);
        if (got->type == PTB_F32)
            limit += 1e-6 * (fabs(wanted[i]) + fabs(from[i])); // exp in f32
        if (!(fabs(value - wanted[i]) <= limit))
            fail_msg("element %zu of %zu in %s is %.9g; expected %.9g to within %.3g", i, got->count,
                     ptb_dtype_name(got->type), value, wanted[i], limit);
    }
}

// A layer followed by GELU: both its result and GELU of it.
static void check_activated(fixture *f, const shape *s, ptb_dtype type, bool with_bias, bool with_residual)
{
    size_t m = s->rows, n = s->columns, k = s->inner;
    array in = array_new(type, m * k, 1), weight = array_new(type, weights(s) * n * k, 2);
    array bias = array_new(type, weights(s) * n, 3), residual = array_new(type, m * n, 4);
    array out[2] = {array_new(type, m * n, 5), array_new(type, m * n, 6)};
    double *wanted = malloc((m * n + 1) * sizeof *wanted),
           *activated = malloc((m * n + 1) * sizeof *activated);
    for (size_t r = 0; r < m; r++)
        for (size_t c = 0, g = group_of(s, r); c < n; c++) {
            double sum = 0;
            for (size_t i = 0; g != SIZE_MAX && i < k; i++)
                sum += in.values[r * k + i] * weight.values[(g * n + c) * k + i];
            sum += (g != SIZE_MAX && with_bias ? bias.values[g * n + c] : 0) +
                   (with_residual ? residual.values[r * n + c] : 0);
            wanted[r * n + c] = g == SIZE_MAX ? out[0].values[r * n + c] : sum;
            activated[r * n + c] = g == SIZE_MAX ? out[1].values[r * n + c] : gelu(sum);
        }
    ptb_matmul args = {.out = out[0].data,
                       .activated = out[1].data,
                       .in = in.data,
                       .weight = weight.data,
                       .bias = with_bias ? bias.data : NULL,
                       .residual = with_residual ? residual.data : NULL,
                       .rows = m,
                       .columns = n,
                       .inner = k,
                       .groups = s->groups,
                       .offsets = s->offsets,
                       .type = type};
    run_threads(f, out, 2, enqueue_forward, &args);
    assert_rounded_once(&out[0], wanted, k);
    assert_gelu(&out[1], activated, wanted, k);
    array_free(&in), array_free(&weight), array_free(&bias), array_free(&residual);
    array_free(&out[0]), array_free(&out[1]);
    free(wanted), free(activated);
}

// The input gradient of a layer that GELU comes before.
static void check_gelu_gradient(fixture *f, const shape *s, ptb_dtype type, bool accumulate)
{
    size_t m = s->rows, n = s->columns, k = s->inner;
    array d_in = array_new(type, m * k, 1), weight = array_new(type, weights(s) * n * k, 2);
    array d_out = array_new(type, m * n, 3), gelu_in = array_new(type, m * k, 4);
    double *wanted = malloc((m * k + 1) * sizeof *wanted), *product = malloc((m * k + 1) * sizeof *product);
    for (size_t r = 0; r < m; r++)
        for (size_t i = 0, g = group_of(s, r); i < k; i++) {
            size_t at = r * k + i;
            product[at] = accumulate || g == SIZE_MAX ? d_in.values[at] : 0;
            for (size_t c = 0; g != SIZE_MAX && c < n; c++)
                product[at] += d_out.values[r * n + c] * weight.values[(g * n + c) * k + i];
            wanted[at] = product[at] * (g == SIZE_MAX ? 1 : gelu_slope(gelu_in.values[at]));
        }
    ptb_matmul_input_gradient args = {.d_in = d_in.data,
                                      .d_out = d_out.data,
                                      .weight = weight.data,
                                      .gelu_in = gelu_in.data,
                                      .rows = m,
                                      .columns = n,
                                      .inner = k,
                                      .groups = s->groups,
                                      .offsets = s->offsets,
                                      .type = type,
                                      .accumulate = accumulate};
    run_threads(f, &d_in, 1, enqueue_input, &args);
    assert_gelu(&d_in, wanted, product, n);
    array_free(&d_in), array_free(&weight), array_free(&d_out), array_free(&gelu_in);
    free(wanted), free(product);
}

static void check_weight_gradient(fixture *f, const shape *s, ptb_dtype type, bool with_bias, bool accumulate)
{
    size_t m = s->rows, n = s->columns, k = s->inner, all = weights(s) * n;
    size_t stride = ptb_row_stride(s->stride, n);
    array d_out = array_new(type, m * stride, 1), in = array_new(type, m * k, 2);
    array out[2] = {array_new(PTB_F32, all * k, 3), array_new(PTB_F32, with_bias ? all : 0, 4)};
    double *wanted = malloc((all * k + 1) * sizeof *wanted), *bias = malloc((all + 1) * sizeof *bias);
    for (size_t i = 0; i < all * k; i++)
        wanted[i] = accumulate ? out[0].values[i] : 0;
    for (size_t i = 0; with_bias && i < all; i++)
        bias[i] = accumulate ? out[1].values[i] : 0;
    for (size_t r = 0; r < m; r++)
        for (size_t c = 0, g = group_of(s, r); g != SIZE_MAX && c < n; c++) {
            double d = d_out.values[r * stride + c];
            if (with_bias)
                bias[g * n + c] += d;
            for (size_t i = 0; i < k; i++)
                wanted[(g * n + c) * k + i] += d * in.values[r * k + i];
        }
    ptb_matmul_weight_gradient args = {.d_weight = out[0].data,
                                       .d_bias = with_bias ? out[1].data : NULL,
                                       .d_out = d_out.data,
                                       .in = in.data,
                                       .rows = m,
                                       .columns = n,
                                       .inner = k,
                                       .d_out_stride = s->stride,
                                       .groups = s->groups,
                                       .offsets = s->offsets,
                                       .type = type,
                                       .accumulate = accumulate};
    run_threads(f, out, 2, enqueue_weight, &args);
    assert_rounded_once(&out[0], wanted, m);
    assert_rounded_once(&out[1], bias, m);
    array_free(&d_out), array_free(&in), array_free(&out[0]), array_free(&out[1]);
    free(wanted), free(bias);
}

static void check_all(fixture *f, const shape *given)
{
    shape copy = *given, *s = &copy;
    int32_t *offsets = NULL;
    if (given->groups)
        s->offsets = offsets = test_memory_of(given->offsets, (given->groups + 1) * sizeof *offsets);
    static const ptb_dtype types[] = {PTB_F32, PTB_BF16, PTB_F16};
    for (size_t t = 0; t < 3; t++)
        for (int on = 0; on < 2; on++) {
            ptb_dtype type = types[t];
            for (int bias = 0; bias < 2; bias++) {
                check_forward(f, s, type, on, bias, false, false);
                check_forward(f, s, type, on, bias, true, false);
                check_forward(f, s, type, on, bias, true, true);
                check_weight_gradient(f, s, type, bias, on);
            }
            check_input_gradient(f, s, type, on);
            for (int residual = 0; !s->stride && residual < 2; residual++)
                check_activated(f, s, type, on, residual);
            if (!s->stride)
                check_gelu_gradient(f, s, type, on);
        }
    test_memory_free(offsets);
}

static void test_small(void **state)
{
    static const shape shapes[] = {{1, 1, 1, 0, NULL, 0},     {3, 5, 7, 0, NULL, 0},
                                   {8, 48, 16, 0, NULL, 0},   {17, 33, 65, 0, NULL, 0},
                                   {9, 49, 2, 0, NULL, 0},    {64, 96, 48, 0, NULL, 0},
                                   {33, 130, 17, 0, NULL, 0}, {2, 257, 31, 0, NULL, 0},
                                   {50, 16, 1, 0, NULL, 0},   {129, 31, 100, 0, NULL, 0}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        check_all(*state, &shapes[i]);
}

// No rows: no output, a weight gradient of zeros (or what it was).
static void test_no_rows(void **state)
{
    static const shape s = {0, 37, 21, 0, NULL, 0};
    check_all(*state, &s);
}

// Sizes at which the product is cut along the depth, the rows and the columns, and 16-bit results are summed
// apart.
static void test_blocks(void **state)
{
    static const shape deep = {21, 1100, 801, 0, NULL, 0}, tall = {1100, 60, 53, 0, NULL, 0},
                       square = {1090, 1090, 40, 0, NULL, 0};
    check_forward(*state, &deep, PTB_F32, false, true, true, false);
    check_forward(*state, &deep, PTB_BF16, false, true, true, true);
    check_forward(*state, &deep, PTB_F16, false, true, true, false);
    check_forward(*state, &deep, PTB_BF16, true, true, true, true);
    check_input_gradient(*state, &deep, PTB_F32, true);
    check_input_gradient(*state, &deep, PTB_BF16, true);
    check_input_gradient(*state, &deep, PTB_F16, false);
    check_weight_gradient(*state, &deep, PTB_BF16, true, true);
    for (int type = PTB_F32; type <= PTB_BF16; type++) {
        check_forward(*state, &tall, (ptb_dtype)type, false, true, false, false);
        check_weight_gradient(*state, &tall, (ptb_dtype)type, true, true);
        check_forward(*state, &square, (ptb_dtype)type, false, false, true, false);
        check_input_gradient(*state, &square, (ptb_dtype)type, true);
        check_weight_gradient(*state, &square, (ptb_dtype)type, true, false);
        check_activated(*state, &tall, (ptb_dtype)type, true, false);
        check_gelu_gradient(*state, &deep, (ptb_dtype)type, false);
    }
}

// Rows of a layer's output further apart than they are long, as logits are: what is between stays as it was.
static void test_strides(void **state)
{
    static const int32_t mixed[] = {0, 0, 1, 14, 14, 20, 20};
    static const shape shapes[] = {{17, 33, 65, 0, NULL, 64},
                                   {9, 49, 16, 0, NULL, 51},
                                   {40, 100, 24, 0, NULL, 128},
                                   {23, 50, 19, 6, mixed, 56},
                                   {3, 4099, 8, 0, NULL, 4104}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        check_all(*state, &shapes[i]);
    static const shape many = {150, 4098, 24, 0, NULL, 4104}; // rows, for columns that are made apart
    for (int type = PTB_F32; type <= PTB_F16; type++)
        for (int accumulate = 0; accumulate < 2; accumulate++) {
            check_weight_gradient(*state, &many, (ptb_dtype)type, false, accumulate);
            check_input_gradient(*state, &many, (ptb_dtype)type, accumulate);
        }
}

// Groups without rows at either end and inside, of one row, and rows that belong to none.
static void test_groups(void **state)
{
    static const int32_t mixed[] = {0, 0, 1, 14, 14, 20, 20}, full[] = {0, 9, 23}, none[] = {0, 0, 0, 0};
    static const shape shapes[] = {
        {23, 50, 19, 6, mixed, 0}, {23, 21, 33, 2, full, 0}, {23, 5, 6, 3, none, 0}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        check_all(*state, &shapes[i]);
}

// Depth and columns enough for the widest tiles of a device: whole ones, parts of them, none.
static void test_deep_groups(void **state)
{
    static const int32_t places[] = {0, 130, 130, 147, 0, 530, 1090};
    int32_t *some = test_memory_of(places, sizeof places), *many = some + 4;
    shape forward = {150, 264, 520, 3, some, 0}, input = {150, 520, 264, 3, some, 528},
          weight = {1100, 136, 264, 2, many, 0};
    for (int half = 0; half < 2; half++) {
        ptb_dtype type = half ? PTB_F16 : PTB_BF16;
        check_forward(*state, &forward, type, false, false, false, false);
        check_forward(*state, &forward, type, true, true, true, true);
        check_activated(*state, &forward, type, true, true);
        check_input_gradient(*state, &input, type, false);
        check_input_gradient(*state, &input, type, true);
        check_weight_gradient(*state, &weight, type, false, false);
        check_weight_gradient(*state, &weight, type, true, true);
    }
    test_memory_free(some);
}

static void test_bad_offsets(void **state)
{
    fixture *f = *state;
    static const int32_t falling[] = {0, 3, 2};
    float in[4] = {0}, weight[2] = {0}, out[4] = {0};
    if (!test_on_host())
        skip(); // only the host back-end looks at offsets
    ptb_matmul args = {.out = out,
                       .in = in,
                       .weight = weight,
                       .rows = 4,
                       .columns = 1,
                       .inner = 1,
                       .groups = 2,
                       .offsets = falling,
                       .type = PTB_F32};
    assert_int_equal(f->kernels->matmul(f->stream, &args), PTB_OK);
    assert_int_equal(ptb_stream_sync(f->stream), PTB_INTERNAL);
}

// NaN and infinity in an operand reach exactly the results that they belong to.
static void test_not_finite(void **state)
{
    fixture *f = *state;
    enum { M = 9, N = 50, K = 20 };
    for (int type = PTB_F32; type <= PTB_BF16; type++) {
        array in = array_new((ptb_dtype)type, M * K, 1), weight = array_new((ptb_dtype)type, N * K, 2);
        array out = array_new((ptb_dtype)type, M * N, 3);
        size_t element = ptb_dtype_size((ptb_dtype)type);
        ptb_dtype_store((ptb_dtype)type, (char *)in.data + (4 * K + 19) * element, NAN);
        ptb_matmul args = {.out = out.data,
                           .in = in.data,
                           .weight = weight.data,
                           .rows = M,
                           .columns = N,
                           .inner = K,
                           .type = (ptb_dtype)type};
        finish(f, f->kernels->matmul(f->stream, &args));
        for (size_t i = 0; i < M * N; i++)
            assert_int_equal(isnan(ptb_dtype_load((ptb_dtype)type, (char *)out.data + i * element)) != 0,
                             i / N == 4);
        array_free(&in), array_free(&weight), array_free(&out);
    }
}

// What a stream says it will allocate is what it allocates, once, and frees.
static void test_workspace(void **state)
{
    fixture *f = *state;
    static const float values[6] = {1, 2, 3, 4, 5, 6}, ones[3] = {1, 1, 1};
    float *in = test_memory_of(values, sizeof values), *weight = test_memory_of(ones, sizeof ones);
    float *out = test_memory(2 * sizeof *out);
    ptb_matmul args = {
        .out = out, .in = in, .weight = weight, .rows = 2, .columns = 1, .inner = 3, .type = PTB_F32};
    finish(f, f->kernels->set_threads(f->stream, 2));
    assert_int_equal(f->device->used_bytes[PTB_MEMORY_WORKSPACE], 0);
    finish(f, f->kernels->reserve(f->stream));
    assert_int_equal(f->device->used_bytes[PTB_MEMORY_WORKSPACE], f->kernels->stream_workspace(2));
    finish(f, f->kernels->matmul(f->stream, &args));
    assert_int_equal(f->device->used_bytes[PTB_MEMORY_WORKSPACE], f->kernels->stream_workspace(2));
    assert_true(out[0] == 6 && out[1] == 15);
    ptb_stream_free(f->stream);
    assert_int_equal(f->device->used_bytes[PTB_MEMORY_WORKSPACE], 0);
    assert_int_equal(ptb_stream_new(f->device, PTB_STREAM_CALLER, 1, &f->stream), PTB_OK);
    assert_int_equal(f->kernels->set_threads(f->stream, 1), PTB_OK);
    assert_int_equal(f->kernels->matmul(f->stream, &args), PTB_OK); // reserves by itself
    assert_int_equal(f->device->used_bytes[PTB_MEMORY_WORKSPACE], f->kernels->stream_workspace(1));
    assert_int_equal(ptb_stream_sync(f->stream), PTB_OK);
    test_memory_free(in), test_memory_free(weight), test_memory_free(out);
}

// The simulated cuBLASLt is told to have no algorithms (tests/simcuda/cublaslt.cpp).
static bool library_refuses(void)
{
    const char *settings = getenv("PTB_SIM");
    return !test_on_host() && settings && strstr(settings, "lt_none=1");
}

// Through TF32, f32 products are off by about 2^-11 of their operands, and by no more; switched off, they are
// f32's again.
static void test_tf32(void **state)
{
    fixture *f = *state;
    enum { M = 64, N = 96, K = 128 };
    if (!f->kernels->set_tf32 || library_refuses())
        skip();
    array in = array_new(PTB_F32, M * K, 1), weight = array_new(PTB_F32, N * K, 2);
    array out = array_new(PTB_F32, M * N, 3);
    ptb_matmul args = {.out = out.data,
                       .in = in.data,
                       .weight = weight.data,
                       .rows = M,
                       .columns = N,
                       .inner = K,
                       .type = PTB_F32};
    for (int on = 1; on >= 0; on--) {
        double distance = 0, norm = 0;
        assert_int_equal(f->kernels->set_tf32(f->stream, on), PTB_OK);
        finish(f, f->kernels->matmul(f->stream, &args));
        for (size_t i = 0; i < M * N; i++) {
            double wanted = 0;
            for (size_t k = 0; k < K; k++)
                wanted += in.values[i / N * K + k] * weight.values[i % N * K + k];
            distance += pow(((float *)out.data)[i] - wanted, 2);
            norm += wanted * wanted;
        }
        double relative = sqrt(distance / norm);
        if (on ? relative < 1e-5 || relative > 1e-3 : relative > 1e-6)
            fail_msg("relative distance %g with TF32 %s", relative, on ? "on" : "off");
    }
    array_free(&in), array_free(&weight), array_free(&out);
}

static void test_peak(void **state)
{
    fixture *f = *state;
    double flops[2] = {0};
    if (library_refuses()) { // no other product stands in for the library's
        assert_int_equal(f->kernels->matmul_peak(f->stream, PTB_F32, 1, &flops[0]), PTB_UNSUPPORTED);
        return;
    }
    assert_int_equal(f->kernels->matmul_peak(f->stream, PTB_F32, 1, &flops[0]), PTB_OK);
    assert_int_equal(f->kernels->matmul_peak(f->stream, PTB_BF16, 1, &flops[1]), PTB_OK);
    assert_true(flops[0] > 1e6 && flops[1] > 1e6);
    assert_int_equal(f->kernels->matmul_peak(f->stream, PTB_I32, 1, &flops[0]), PTB_USAGE);
    if (test_on_host())
        assert_int_equal(f->kernels->matmul_peak(f->stream, PTB_F32, 0, &flops[0]), PTB_USAGE);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, kernels_setup, kernels_teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_small),     TEST(test_no_rows),     TEST(test_blocks),      TEST(test_strides),
        TEST(test_groups),    TEST(test_deep_groups), TEST(test_bad_offsets), TEST(test_not_finite),
        TEST(test_workspace), TEST(test_tf32),        TEST(test_peak),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
