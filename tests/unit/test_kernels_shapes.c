// Row, elementwise, loss and optimizer kernels, and linear layers, at widths, counts and addresses where
// back-ends change their way: rows that fill a block's registers and rows that do not, rows larger than
// shared memory, addresses that are no multiples of 16 bytes, tokens that are frequent. Against closed forms
// in double precision.
#include "tests/unit/kernels_rows.h"

// The array without its first element: its address is that of no vector.
static array shifted(array a)
{
    return (array){a.type, a.count - 1, (char *)a.data + ptb_dtype_size(a.type)};
}

// Numbers of which the first is at an odd address when `odd`.
static array odd_numbers(bag *b, ptb_dtype type, size_t count, uint64_t which, bool odd)
{
    array a = array_numbers(b, type, count + odd, which);
    return odd ? shifted(a) : a;
}

static array odd_new(bag *b, ptb_dtype type, size_t count, bool odd)
{
    array a = array_new(b, type, count + odd);
    return odd ? shifted(a) : a;
}

// ---- flat arrays

static void check_flat(fixture *f, ptb_dtype type, size_t n, bool odd)
{
    bag b = {.f = f};
    const ptb_kernels *k = f->kernels;
    array x = odd_numbers(&b, type, n, 1, odd), y = odd_numbers(&b, type, n, 2, odd);
    array sum = odd_new(&b, type, n, odd), gelu = odd_new(&b, type, n, odd),
          wide = odd_new(&b, PTB_F32, n, odd);
    array slope = odd_new(&b, type, n, odd);
    double *wanted = bag_bytes(&b, n * sizeof *wanted), *wanted_gelu = bag_bytes(&b, n * sizeof *wanted);
    double *wanted_slope = bag_bytes(&b, n * sizeof *wanted);
    for (size_t i = 0; i < n; i++) {
        double v = array_at(x, i), u = sqrt(2 / M_PI) * (v + 0.044715 * v * v * v), t = tanh(u);
        wanted[i] = v + array_at(y, i);
        wanted_gelu[i] = v / 2 * (1 + t);
        wanted_slope[i] = array_at(y, i) *
                          ((1 + t) / 2 + v / 2 * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * v * v));
    }
    finish(f, k->add(f->stream, &(ptb_add){sum.data, x.data, y.data, n, type}));
    finish(f, k->activation(f->stream, &(ptb_activation){gelu.data, x.data, 1, n, PTB_GELU, type, NULL}));
    finish(f, k->activation_gradient(f->stream, &(ptb_activation_gradient){slope.data, y.data, x.data, 1, n,
                                                                           PTB_GELU, type, NULL}));
    finish(f, k->convert(f->stream, &(ptb_convert){wide.data, x.data, n, PTB_F32, type}));
    assert_close("sum", sum, wanted, 0);
    assert_close("gelu", gelu, wanted_gelu, 0);
    assert_close("gelu's gradient", slope, wanted_slope, 0);
    assert_guarded(wide);
    for (size_t i = 0; i < n; i++)
        assert_true(array_at(wide, i) == array_at(x, i));
    bag_release(&b);
}

static void test_flat(void **state)
{
    static const size_t counts[] = {2048, 4095, 4096, 4097, 8191, 20000};
    for (size_t t = 0; t < LENGTH(compute_types); t++)
        for (size_t i = 0; i < LENGTH(counts); i++)
            for (int odd = 0; odd < 2; odd++)
                check_flat(*state, compute_types[t], counts[i], odd);
}

static void check_update(fixture *f, ptb_dtype type, size_t n, bool odd)
{
    bag b = {.f = f};
    array p = odd_numbers(&b, PTB_F32, n, 1, odd), m = odd_numbers(&b, PTB_F32, n, 2, odd);
    array v = odd_numbers(&b, PTB_F32, n, 3, odd), g = odd_numbers(&b, PTB_F32, n, 4, odd);
    array rounded = odd_new(&b, type, n, odd);
    const ptb_update update = {.factor = 0.5f, .rate = 0.01f, .beta1_power = 0.9, .beta2_power = 0.95};
    ptb_update *shared = test_memory_of(&update, sizeof update);
    double *sum = test_memory(sizeof *sum), *wanted = bag_bytes(&b, n * sizeof *wanted), squares = 0;
    for (size_t i = 0; i < n; i++) {
        array_set(v, i, fabs(array_at(v, i)));
        double gradient = 0.5 * array_at(g, i);
        double mean = 0.9 * array_at(m, i) + 0.1 * gradient;
        double square = 0.95 * array_at(v, i) + 0.05 * gradient * gradient;
        wanted[i] =
            array_at(p, i) - 0.01 * (mean / 0.1 / (sqrt(square / 0.05) + 1e-8) + 0.3 * array_at(p, i));
        squares += array_at(g, i) * array_at(g, i);
    }
    ptb_adamw args = {
        .parameter = p.data, .m = m.data, .v = v.data, .gradient = g.data, .rounded = rounded.data};
    args.update = shared, args.count = n, args.beta1 = 0.9f, args.beta2 = 0.95f;
    args.epsilon = 1e-8f, args.decay = 0.3f, args.type = type;
    finish(f, f->kernels->adamw(f->stream, &args));
    finish(f, f->kernels->sum_squares(f->stream, &(ptb_sum_squares){sum, g.data, n, false}));
    assert_close("parameter", p, wanted, 0);
    assert_close("rounded parameter", rounded, wanted, 0);
    assert_true(fabs(*sum / squares - 1) < 1e-13);
    test_memory_free(shared), test_memory_free(sum);
    bag_release(&b);
}

static void test_update(void **state)
{
    static const size_t counts[] = {1023, 1024, 2051, 50000};
    for (size_t t = 0; t < LENGTH(compute_types); t++)
        for (size_t i = 0; i < LENGTH(counts); i++)
            for (int odd = 0; odd < 2; odd++)
                check_update(*state, compute_types[t], counts[i], odd);
}

// ---- rows

typedef struct {
    array in, gain, bias, out, mean, rstd, d_out, residual, d_in, d_gain, d_bias;
    double *wanted_out, *wanted_d_in, *wanted_gain, *wanted_bias;
    size_t rows, width;
} norm_arrays;

static norm_arrays norm_new(bag *b, ptb_dtype type, size_t rows, size_t width, bool odd)
{
    size_t n = rows * width;
    return (norm_arrays){
        .in = odd_numbers(b, type, n, 1, odd),
        .gain = array_numbers(b, type, width, 2),
        .bias = array_numbers(b, type, width, 3),
        .out = odd_new(b, type, n, odd),
        .mean = array_new(b, PTB_F32, rows),
        .rstd = array_new(b, PTB_F32, rows),
        .d_out = odd_numbers(b, type, n, 4, odd),
        .residual = array_numbers(b, type, n, 5),
        .d_in = array_new(b, type, n),
        .d_gain = array_new(b, PTB_F32, width),
        .d_bias = array_new(b, PTB_F32, width),
        .wanted_out = bag_bytes(b, n * sizeof(double)),
        .wanted_d_in = bag_bytes(b, n * sizeof(double)),
        .wanted_gain = memset(bag_bytes(b, width * sizeof(double)), 0, width * sizeof(double)),
        .wanted_bias = memset(bag_bytes(b, width * sizeof(double)), 0, width * sizeof(double)),
        .rows = rows,
        .width = width,
    };
}

// Row r of what is wanted; x is normalised, d its gradient.
static void norm_row(norm_arrays *a, size_t r, bool layer)
{
    size_t width = a->width, first = r * width;
    double mean = 0, squares = 0, mean_d = 0, mean_dx = 0;
    for (size_t c = 0; c < width; c++)
        mean += layer ? array_at(a->in, first + c) / (double)width : 0;
    for (size_t c = 0; c < width; c++)
        squares += pow(array_at(a->in, first + c) - mean, 2) / (double)width;
    double rstd = 1 / sqrt(squares + (double)1e-5f);
    for (size_t c = 0; c < width; c++) {
        double x = (array_at(a->in, first + c) - mean) * rstd, d = array_at(a->d_out, first + c);
        a->wanted_out[first + c] = x * array_at(a->gain, c) + array_at(a->bias, c);
        a->wanted_gain[c] += d * x;
        a->wanted_bias[c] += d;
        mean_d += layer ? d * array_at(a->gain, c) / (double)width : 0;
        mean_dx += d * array_at(a->gain, c) * x / (double)width;
    }
    for (size_t c = 0; c < width; c++) {
        double x = (array_at(a->in, first + c) - mean) * rstd, d = array_at(a->d_out, first + c);
        a->wanted_d_in[first + c] =
            rstd * (d * array_at(a->gain, c) - mean_d - x * mean_dx) + array_at(a->residual, first + c);
    }
}

static void check_norm(fixture *f, ptb_dtype type, size_t rows, size_t width, bool layer, bool odd)
{
    bag b = {.f = f};
    norm_arrays a = norm_new(&b, type, rows, width, odd);
    for (size_t r = 0; r < rows; r++)
        norm_row(&a, r, layer);
    float *mean = layer ? a.mean.data : NULL;
    ptb_norm forward = {a.out.data,  mean, a.rstd.data, a.in.data, a.gain.data,
                        a.bias.data, rows, width,       1e-5f,     type};
    ptb_norm_gradient backward = {.d_in = a.d_in.data,
                                  .d_gain = a.d_gain.data,
                                  .d_bias = a.d_bias.data,
                                  .d_out = a.d_out.data,
                                  .in = a.in.data,
                                  .mean = mean,
                                  .rstd = a.rstd.data,
                                  .gain = a.gain.data,
                                  .residual = a.residual.data,
                                  .rows = rows,
                                  .width = width,
                                  .type = type};
    finish(f, f->kernels->norm(f->stream, &forward));
    finish(f, f->kernels->norm_gradient(f->stream, &backward));
    assert_close("norm", a.out, a.wanted_out, 0);
    assert_close("d_in", a.d_in, a.wanted_d_in, 0);
    assert_close("d_gain", a.d_gain, a.wanted_gain, 0);
    assert_close("d_bias", a.d_bias, a.wanted_bias, 0);
    bag_release(&b);
}

static void test_norm(void **state)
{
    static const size_t sizes[][2] = {{300, 8},   {70, 264},  {40, 776},   {21, 2048}, {13, 4096},
                                      {13, 6160}, {9, 8192},  {5, 12288},  {3, 16400}, {2, 20001},
                                      {700, 40},  {5, 65536}, {150, 1600}, {1200, 24}};
    for (size_t t = 0; t < LENGTH(compute_types); t++)
        for (size_t i = 0; i < LENGTH(sizes); i++)
            for (int odd = 0; odd < 2; odd++)
                check_norm(*state, compute_types[t], sizes[i][0], sizes[i][1], (i + t) % 2, odd);
}

// ---- embedding: one token of three is the same one

static void check_embedding(fixture *f, ptb_dtype type, size_t rows, size_t width, bool same, bool accumulate)
{
    enum { VOCABULARY = 5000, POSITIONS = 300 };
    bag b = {.f = f};
    array d_out = array_numbers(&b, type, rows * width, 1);
    array d_table = array_numbers(&b, PTB_F32, VOCABULARY * width, 2);
    array d_positions = array_numbers(&b, PTB_F32, POSITIONS * width, 3);
    int32_t *tokens = bag_bytes(&b, rows * sizeof *tokens), *start = bag_bytes(&b, rows * sizeof *start);
    double *table = array_doubles(&b, d_table), *positions = array_doubles(&b, d_positions);
    for (size_t i = 0; !accumulate && i < VOCABULARY * width; i++)
        table[i] = 0;
    for (size_t i = 0; !accumulate && i < POSITIONS * width; i++)
        positions[i] = 0;
    for (size_t r = 0; r < rows; r++) {
        uint64_t draw = ptb_random_u64(1, 5, r);
        tokens[r] = same || draw % 3 == 0 ? 4001 : (int32_t)(draw / 3 % VOCABULARY);
        start[r] = draw % 2 ? 0 : (int32_t)(r % POSITIONS);
        size_t position = r % POSITIONS - (size_t)start[r];
        for (size_t c = 0; c < width; c++) {
            table[(size_t)tokens[r] * width + c] += array_at(d_out, r * width + c);
            positions[position * width + c] += array_at(d_out, r * width + c);
        }
    }
    ptb_embedding_gradient args = {.d_table = d_table.data,
                                   .d_positions = d_positions.data,
                                   .d_out = d_out.data,
                                   .tokens = tokens,
                                   .start = start,
                                   .rows = rows,
                                   .sequence = POSITIONS,
                                   .width = width,
                                   .vocabulary = VOCABULARY,
                                   .positions = POSITIONS,
                                   .type = type,
                                   .accumulate_table = accumulate,
                                   .accumulate_positions = accumulate};
    finish(f, f->kernels->embedding_gradient(f->stream, &args));
    assert_close("d_table", d_table, table, 0);
    assert_close("d_positions", d_positions, positions, 0);
    bag_release(&b);
}

static void test_embedding(void **state)
{
    static const size_t sizes[][2] = {{2000, 24}, {3001, 20}, {6000, 16}, {1500, 1032}, {1, 8}, {40, 2056}};
    for (size_t t = 0; t < LENGTH(compute_types); t++)
        for (size_t i = 0; i < LENGTH(sizes); i++)
            for (int options = 0; options < 4; options++) {
                bool same = options & 1 && sizes[i][0] < 5000; // a sum of more in f32 errs by too much
                bool small = sizes[i][1] < 1000 || options == (int)t;
                if (small)
                    check_embedding(*state, compute_types[t], sizes[i][0], sizes[i][1], same, options & 2);
            }
}

// ---- loss: rows that no block keeps whole

static void check_loss(fixture *f, ptb_dtype type, size_t rows, size_t vocabulary, bool odd)
{
    bag b = {.f = f};
    const double scale = 0.25, factor = 1024;
    array logits = odd_numbers(&b, PTB_F32, rows * vocabulary, 1, odd);
    array d_logits = odd_new(&b, type, rows * vocabulary, odd), losses = array_new(&b, PTB_F32, rows);
    double *wanted = bag_bytes(&b, rows * vocabulary * sizeof *wanted), *loss = bag_bytes(&b, sizeof *loss);
    float *shared_factor = bag_bytes(&b, sizeof *shared_factor);
    int32_t *targets = bag_bytes(&b, rows * sizeof *targets);
    double total = 0;
    *shared_factor = (float)factor;
    for (size_t r = 0; r < rows; r++) {
        size_t first = r * vocabulary;
        targets[r] = (int32_t)(r * 7919 % vocabulary);
        double sum = 0;
        for (size_t v = 0; v < vocabulary; v++)
            sum += exp(array_at(logits, first + v));
        for (size_t v = 0; v < vocabulary; v++)
            wanted[first + v] =
                scale * factor * (exp(array_at(logits, first + v)) / sum - (v == (size_t)targets[r]));
        total += scale * (log(sum) - array_at(logits, first + (size_t)targets[r]));
    }
    ptb_cross_entropy args = {.logits = logits.data,
                              .d_logits = type == PTB_F32 ? logits.data : d_logits.data,
                              .targets = targets,
                              .losses = losses.data,
                              .loss = loss,
                              .factor = shared_factor,
                              .rows = rows,
                              .vocabulary = vocabulary,
                              .scale = scale,
                              .type = type};
    finish(f, f->kernels->cross_entropy(f->stream, &args));
    assert_close("d_logits", type == PTB_F32 ? logits : d_logits, wanted, 0);
    assert_true(fabs(*loss / total - 1) < 1e-6);
    bag_release(&b);
}

static void test_loss(void **state)
{
    static const size_t sizes[][2] = {{3, 57000}, {2, 130001}, {5, 16384}, {40, 33}, {9, 2047}};
    for (size_t t = 0; t < LENGTH(compute_types); t++)
        for (size_t i = 0; i < LENGTH(sizes); i++)
            for (int odd = 0; odd < 2; odd++)
                check_loss(*state, compute_types[t], sizes[i][0], sizes[i][1], odd);
}

// ---- linear layers

static void small_numbers(uint16_t *out, size_t count)
{
    for (size_t i = 0; i < count; i++)
        ptb_dtype_store(PTB_BF16, out + i, (double)(((uint32_t)i * 2654435761u >> 16) % 7) - 3);
}

// More rows than a GPU makes at once where columns are made apart (kernels_cuda_matmul.c). Small whole
// numbers, all sums of which are exact in f32, and are rounded once.
static void test_many_rows(void **state)
{
    enum { ROWS = 2051, COLUMNS = 4099, INNER = 4096, STRIDE = 4104, STEP = 41 };
    fixture *f = *state;
    if (test_on_host())
        skip(); // which does not divide rows
    uint16_t *d_in = test_memory(sizeof *d_in * ROWS * INNER);
    uint16_t *d_out = test_memory(sizeof *d_out * ROWS * STRIDE);
    uint16_t *weight = test_memory(sizeof *weight * COLUMNS * INNER);
    small_numbers(d_out, (size_t)ROWS * STRIDE);
    small_numbers(weight, (size_t)COLUMNS * INNER);
    ptb_matmul_input_gradient args = {.d_in = d_in,
                                      .d_out = d_out,
                                      .weight = weight,
                                      .rows = ROWS,
                                      .columns = COLUMNS,
                                      .inner = INNER,
                                      .d_out_stride = STRIDE,
                                      .type = PTB_BF16};
    finish(f, f->kernels->matmul_input_gradient(f->stream, &args));
    for (size_t r = 0; r < ROWS; r++)
        for (size_t i = r % STEP; i < INNER; i += 40 * STEP) {
            uint16_t wanted;
            double sum = 0;
            for (size_t c = 0; c < COLUMNS; c++)
                sum += ptb_dtype_load(PTB_BF16, d_out + r * STRIDE + c) *
                       ptb_dtype_load(PTB_BF16, weight + c * INNER + i);
            ptb_dtype_store(PTB_BF16, &wanted, sum);
            assert_int_equal(d_in[r * INNER + i], wanted);
        }
    test_memory_free(d_in), test_memory_free(d_out), test_memory_free(weight);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        KERNEL_TEST(test_flat),      KERNEL_TEST(test_update), KERNEL_TEST(test_norm),
        KERNEL_TEST(test_embedding), KERNEL_TEST(test_loss),   KERNEL_TEST(test_many_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
