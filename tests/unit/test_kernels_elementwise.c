// Activations, sums, dropout and conversions against double precision, central differences and the scalar
// conversions of core/dtype.h.
#include "strategies/transformer/kernels_host_vector.h"
#include "tests/unit/kernels_rows.h"

// ---- exponential

static double vector_exp(double x)
{
    return (double)ptb_vec_exp(ptb_vec_set((float)x))[0];
}

static void test_exp(void **state)
{
    (void)state;
    double worst = 0;
    for (double x = -87; x <= 88; x += 0.00137)
        worst = fmax(worst, fabs(vector_exp(x) / exp((double)(float)x) - 1));
    assert_true(worst < 3e-7);
    assert_true(vector_exp(-1000) < 2e-38 && vector_exp(0) == 1 && isnan(vector_exp(NAN)));
}

// ---- activations

typedef struct {
    ptb_activation_kind kind;
    double x[2], weight; // x: GELU: its argument; SwiGLU: gate, up
} activation_reference;

static double activation(void *context)
{
    const activation_reference *a = context;
    double x = a->x[0];
    if (a->kind == PTB_GELU)
        return a->weight * x / 2 * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    return a->weight * x / (1 + exp(-x)) * a->x[1];
}

// Far into both tails, where the exponential is clamped.
static array activation_input(bag *b, ptb_dtype type, size_t count)
{
    array in = array_numbers(b, type, count, 1);
    static const double far[] = {-200, 200, 0, -30, 30, -9, 9};
    for (size_t i = 0; i < count; i++)
        array_set(in, i, i % 11 < LENGTH(far) && i > 11 ? far[i % 11] : 3 * array_at(in, i));
    return in;
}

static void check_activation(fixture *f, ptb_dtype type, ptb_activation_kind kind, size_t rows, size_t width)
{
    bag b = {.f = f};
    size_t parts = kind == PTB_SWIGLU ? 2 : 1, n = rows * width;
    array in = activation_input(&b, type, parts * n), d_out = array_numbers(&b, type, n, 2);
    array out = array_new(&b, type, n), d_in = array_new(&b, type, parts * n);
    double *wanted = bag_bytes(&b, n * sizeof *wanted),
           *d_wanted = bag_bytes(&b, parts * n * sizeof *d_wanted);
    for (size_t i = 0; i < n; i++) {
        size_t at = i / width * parts * width + i % width;
        activation_reference a = {.kind = kind, .x = {array_at(in, at)}, .weight = 1};
        if (parts == 2)
            a.x[1] = array_at(in, at + width);
        wanted[i] = activation(&a);
        double slopes[2];
        a.weight = array_at(d_out, i);
        differences(activation, &a, a.x, parts, slopes);
        for (size_t p = 0; p < parts; p++)
            d_wanted[at + p * width] = slopes[p];
    }
    ptb_activation forward = {out.data, in.data, rows, width, kind, type, NULL};
    ptb_activation_gradient backward = {d_in.data, d_out.data, in.data, rows, width, kind, type, NULL};
    finish(f, f->kernels->activation(f->stream, &forward));
    finish(f, f->kernels->activation_gradient(f->stream, &backward));
    assert_close("activation", out, wanted, 1e-2);
    assert_close("activation's gradient", d_in, d_wanted, 1e-1);
    if (kind == PTB_GELU) { // in place
        backward.d_in = d_out.data;
        finish(f, f->kernels->activation_gradient(f->stream, &backward));
        assert_true(array_equal(d_in, d_out));
    }
    bag_release(&b);
}

static void test_activations(void **state)
{
    static const size_t sizes[][2] = {{1, 1}, {5, 1}, {1, 3}, {5, 3}, {1, 17}, {5, 17}, {5, 768}, {2, 4099}};
    for (size_t t = 0; t < LENGTH(compute_types); t++)
        for (ptb_activation_kind kind = PTB_GELU; kind <= PTB_SWIGLU; kind++)
            for (size_t i = 0; i < LENGTH(sizes); i++)
                check_activation(*state, compute_types[t], kind, sizes[i][0], sizes[i][1]);
}

// The first rows as without `used`, whole or not; the others are as they were.
static void check_used(fixture *f, ptb_dtype type, ptb_activation_kind kind, size_t width, int32_t used)
{
    bag b = {.f = f};
    enum { ROWS = 5 };
    size_t parts = kind == PTB_SWIGLU ? 2 : 1, n = ROWS * width, bytes = ptb_dtype_size(type);
    size_t whole = (size_t)(used < ROWS ? used : ROWS) * width;
    array in = activation_input(&b, type, parts * n), d_out = array_numbers(&b, type, n, 2);
    array out[2] = {array_new(&b, type, n), array_new(&b, type, n)};
    array d_in[2] = {array_new(&b, type, parts * n), array_new(&b, type, parts * n)};
    int32_t *limit = test_memory_of(&used, sizeof used);
    for (size_t i = 0; i < 2; i++) {
        memset(out[i].data, 0x55, n * bytes);
        memset(d_in[i].data, 0x55, parts * n * bytes);
        const int32_t *given = i ? limit : NULL;
        ptb_activation forward = {out[i].data, in.data, ROWS, width, kind, type, given};
        ptb_activation_gradient back = {d_in[i].data, d_out.data, in.data, ROWS, width, kind, type, given};
        finish(f, f->kernels->activation(f->stream, &forward));
        finish(f, f->kernels->activation_gradient(f->stream, &back));
    }
    assert_memory_equal(out[1].data, out[0].data, whole * bytes);
    assert_memory_equal(d_in[1].data, d_in[0].data, parts * whole * bytes);
    for (size_t i = whole * bytes; i < n * bytes; i++)
        assert_int_equal(((unsigned char *)out[1].data)[i], 0x55);
    for (size_t i = parts * whole * bytes; i < parts * n * bytes; i++)
        assert_int_equal(((unsigned char *)d_in[1].data)[i], 0x55);
    test_memory_free(limit);
    bag_release(&b);
}

static void test_used_rows(void **state)
{
    static const size_t widths[] = {1, 3, 16, 17, 64, 770};
    for (size_t t = 0; t < LENGTH(compute_types); t++)
        for (ptb_activation_kind kind = PTB_GELU; kind <= PTB_SWIGLU; kind++)
            for (size_t i = 0; i < LENGTH(widths); i++)
                for (int32_t used = 0; used < 8; used += used < 4 ? 1 : 3)
                    check_used(*state, compute_types[t], kind, widths[i], used);
}

// Each element, not only the norm: GELU in f32 near 0 and in the tails.
static void test_gelu_elements(void **state)
{
    fixture *f = *state;
    enum { N = 5001 };
    bag b = {.f = f};
    array in = array_new(&b, PTB_F32, N), out = array_new(&b, PTB_F32, N);
    for (size_t i = 0; i < N; i++)
        array_set(in, i, ((double)i - 2500) / 250);
    finish(
        f,
        f->kernels->activation(
            f->stream,
            &(ptb_activation){
                .out = out.data, .in = in.data, .rows = 1, .width = N, .kind = PTB_GELU, .type = PTB_F32}));
    for (size_t i = 0; i < N; i++) {
        activation_reference a = {.kind = PTB_GELU, .x = {array_at(in, i)}, .weight = 1};
        double wanted = activation(&a);
        assert_true(fabs(array_at(out, i) - wanted) <= 1e-6 * fmax(fabs(wanted), 1e-2));
    }
    bag_release(&b);
}

// ---- sums

static void test_add(void **state)
{
    fixture *f = *state;
    static const size_t counts[] = {1, 3, 17, 768, 4099};
    for (size_t t = 0; t < LENGTH(compute_types); t++)
        for (size_t i = 0; i < LENGTH(counts); i++) {
            bag b = {.f = f};
            ptb_dtype type = compute_types[t];
            size_t n = counts[i];
            array x = array_numbers(&b, type, n, 1), y = array_numbers(&b, type, n, 2),
                  out = array_new(&b, type, n);
            double *wanted = bag_bytes(&b, n * sizeof *wanted);
            for (size_t e = 0; e < n; e++)
                wanted[e] = array_at(x, e) + array_at(y, e);
            finish(f, f->kernels->add(f->stream, &(ptb_add){out.data, x.data, y.data, n, type}));
            assert_close("sum", out, wanted, 0);
            array over_x = array_copy(&b, x), over_y = array_copy(&b, y);
            finish(f, f->kernels->add(f->stream, &(ptb_add){over_x.data, over_x.data, y.data, n, type}));
            finish(f, f->kernels->add(f->stream, &(ptb_add){over_y.data, x.data, over_y.data, n, type}));
            assert_true(array_equal(out, over_x) && array_equal(out, over_y));
            bag_release(&b);
        }
}

// ---- dropout

enum { LENGTH_WHOLE = 6, SEQUENCES = 3 };

static ptb_dropout dropout_of(array out, array in, const void *residual, size_t rows, size_t width,
                              size_t length)
{
    return (ptb_dropout){.out = out.data,
                         .in = in.data,
                         .residual = residual,
                         .rows = rows,
                         .width = width,
                         .length = length,
                         .total_length = LENGTH_WHOLE,
                         .seed = 42,
                         .rate = 0.3f,
                         .type = in.type};
}

static void check_dropout(fixture *f, ptb_dtype type, size_t width)
{
    enum { ROWS = SEQUENCES * LENGTH_WHOLE };
    bag b = {.f = f};
    size_t n = ROWS * width;
    array in = array_numbers(&b, type, n, 1), residual = array_numbers(&b, type, n, 2);
    array plain = array_new(&b, type, n), out = array_new(&b, type, n);
    double *wanted = bag_bytes(&b, n * sizeof *wanted);
    uint64_t first_sequence = 5;
    for (size_t r = 0; r < ROWS; r++)
        for (size_t c = 0; c < width; c++) {
            uint64_t row = first_sequence * LENGTH_WHOLE + r; // whole sequences
            bool kept = ptb_dropout_draw(ptb_dropout_key(42, row), (uint32_t)c) >= (uint32_t)(0.3f * 0x1p32);
            wanted[r * width + c] = kept ? array_at(in, r * width + c) / (1 - (double)0.3f) : 0;
        }
    ptb_dropout args = dropout_of(plain, in, NULL, ROWS, width, LENGTH_WHOLE);
    args.sequence = first_sequence;
    finish(f, f->kernels->dropout(f->stream, &args));
    assert_close("dropout", plain, wanted, 1e-3);
    for (size_t i = 0; i < n; i++)
        wanted[i] += array_at(residual, i);
    args.out = out.data, args.residual = residual.data;
    finish(f, f->kernels->dropout(f->stream, &args));
    assert_close("dropout and residual", out, wanted, 1e-3);
    array over_in = array_copy(&b, in), over_residual = array_copy(&b, residual);
    args.in = args.out = over_in.data;
    finish(f, f->kernels->dropout(f->stream, &args));
    args.in = in.data, args.residual = args.out = over_residual.data;
    finish(f, f->kernels->dropout(f->stream, &args));
    assert_true(array_equal(out, over_in) && array_equal(out, over_residual));
    bag_release(&b);
}

static void test_dropout(void **state)
{
    static const size_t widths[] = {1, 3, 17, 768, 4099};
    for (size_t t = 0; t < LENGTH(compute_types); t++)
        for (size_t i = 0; i < LENGTH(widths); i++)
            check_dropout(*state, compute_types[t], widths[i]);
}

// One call over the batch, and the batch cut by sequences and each sequence in two, draw the same.
static void test_dropout_shards(void **state)
{
    fixture *f = *state;
    enum { WIDTH = 37, ROWS = SEQUENCES * LENGTH_WHOLE, HALF = LENGTH_WHOLE / 2 };
    bag b = {.f = f};
    array in = array_numbers(&b, PTB_F32, ROWS * WIDTH, 1), whole = array_new(&b, PTB_F32, ROWS * WIDTH);
    array cut = array_new(&b, PTB_F32, ROWS * WIDTH);
    ptb_dropout all = dropout_of(whole, in, NULL, ROWS, WIDTH, LENGTH_WHOLE);
    finish(f, f->kernels->dropout(f->stream, &all));
    for (size_t first = 0; first < ROWS; first += HALF) {
        ptb_dropout part = dropout_of(cut, in, NULL, HALF, WIDTH, HALF);
        part.out = (float *)cut.data + first * WIDTH, part.in = (float *)in.data + first * WIDTH;
        part.sequence = first / LENGTH_WHOLE, part.offset = (int64_t)(first % LENGTH_WHOLE);
        finish(f, f->kernels->dropout(f->stream, &part));
    }
    assert_true(array_equal(whole, cut));
    // Halves of two sequences in one call, as a rank of context parallelism has them.
    ptb_dropout halves = dropout_of(cut, in, NULL, 2 * HALF, WIDTH, HALF);
    halves.sequence = 1, halves.offset = HALF;
    finish(f, f->kernels->dropout(f->stream, &halves));
    for (size_t r = 0; r < 2 * HALF; r++)
        for (size_t c = 0; c < WIDTH; c++) {
            uint64_t row = (1 + r / HALF) * LENGTH_WHOLE + HALF + r % HALF;
            bool kept = ptb_dropout_draw(ptb_dropout_key(42, row), (uint32_t)c) >= (uint32_t)(0.3f * 0x1p32);
            assert_true((array_at(cut, r * WIDTH + c) != 0) == kept);
        }
    bag_release(&b);
}

// The share that is kept, that rows, columns and seeds differ, and that rate 0 changes nothing.
static void test_dropout_statistics(void **state)
{
    fixture *f = *state;
    enum { WIDTH = 1000, ROWS = 60, N = ROWS * WIDTH };
    bag b = {.f = f};
    array in = array_new(&b, PTB_F32, N), out = array_new(&b, PTB_F32, N), other = array_new(&b, PTB_F32, N);
    for (size_t i = 0; i < N; i++)
        array_set(in, i, 1);
    ptb_dropout args = dropout_of(out, in, NULL, ROWS, WIDTH, LENGTH_WHOLE);
    finish(f, f->kernels->dropout(f->stream, &args));
    args.out = other.data, args.seed = 43;
    finish(f, f->kernels->dropout(f->stream, &args));
    double kept = 0, sum = 0, seeds = 0, rows = 0, columns = 0;
    for (size_t i = 0; i < N; i++) {
        bool here = array_at(out, i) != 0;
        kept += here, sum += array_at(out, i);
        seeds += here == (array_at(other, i) != 0);
        rows += here == (array_at(out, (i + WIDTH) % N) != 0);
        columns += here == (array_at(out, (i + 1) % N) != 0);
    }
    const double sigma = 1 / sqrt(N), same = 0.7 * 0.7 + 0.3 * 0.3; // standard errors are below sigma / 2
    assert_true(fabs(kept / N - 0.7) < 3 * sigma && fabs(sum / N - 1) < 4 * sigma);
    assert_true(fabs(seeds / N - same) < 3 * sigma && fabs(rows / N - same) < 3 * sigma &&
                fabs(columns / N - same) < 3 * sigma);
    args.rate = 0;
    finish(f, f->kernels->dropout(f->stream, &args));
    assert_true(array_equal(in, other));
    bag_release(&b);
}

// ---- conversions

static void convert(fixture *f, array out, array in)
{
    ptb_convert args = {out.data, in.data, in.count, out.type, in.type};
    finish(f, f->kernels->convert(f->stream, &args));
    assert_guarded(out);
}

// Every 16-bit value to f32 and back; NaN may only stay NaN.
static void test_convert_all_16_bits(void **state)
{
    enum { N = 1 << 16 };
    for (size_t t = 1; t < LENGTH(compute_types); t++) {
        bag b = {.f = *state};
        array in = array_new(&b, compute_types[t], N), wide = array_new(&b, PTB_F32, N);
        array back = array_new(&b, compute_types[t], N);
        uint16_t *bits = in.data, *returned = back.data;
        for (size_t i = 0; i < N; i++)
            bits[i] = (uint16_t)i;
        convert(*state, wide, in);
        convert(*state, back, wide);
        for (size_t i = 0; i < N; i++) {
            double value = array_at(in, i);
            if (isnan(value)) {
                assert_true(isnan(array_at(wide, i)) && isnan(array_at(back, i)));
                continue;
            }
            assert_true(array_at(wide, i) == value && signbit(array_at(wide, i)) == signbit(value));
            bool subnormal = compute_types[t] == PTB_BF16 && fabs(value) < 0x1p-126;
            if (returned[i] != bits[i] && !(subnormal && (returned[i] & 0x7fff) == 0))
                fail_msg("%s 0x%04x came back as 0x%04x", ptb_dtype_name(compute_types[t]), bits[i],
                         returned[i]);
        }
        bag_release(&b);
    }
}

// f32 to 16 bits: halves between neighbours go to the even one, what is too large to infinity.
static void test_convert_rounds(void **state)
{
    for (size_t t = 1; t < LENGTH(compute_types); t++) {
        enum { N = 40009 };
        bag b = {.f = *state};
        ptb_dtype type = compute_types[t];
        array in = array_new(&b, PTB_F32, N), out = array_new(&b, type, N);
        for (size_t i = 0; i < N; i++) { // every exponent, halves among the mantissas
            uint32_t draw = (uint32_t)ptb_random_u64(3, 1, i), half = type == PTB_BF16 ? 0x8000 : 0x1000;
            uint32_t bits = i % 3 ? draw : (draw & ~(2 * half - 1)) | half;
            memcpy((float *)in.data + i, &bits, sizeof bits);
        }
        static const float special[] = {INFINITY, -INFINITY, NAN,   0,       -0.0f,
                                        65504,    65519,     65520, 3.4e38f, -3.4e38f};
        memcpy(in.data, special, sizeof special);
        convert(*state, out, in);
        for (size_t i = 0; i < N; i++) {
            float x = ((const float *)in.data)[i];
            uint16_t got = ((const uint16_t *)out.data)[i];
            uint16_t wanted = type == PTB_BF16 ? ptb_f32_to_bf16(x) : ptb_f32_to_f16(x);
            bool flushed = type == PTB_BF16 && fabsf(x) < 0x1p-126f && (got & 0x7fff) == 0;
            if (isnan(x) ? !isnan(array_at(out, i)) : got != wanted && !flushed)
                fail_msg("%a became 0x%04x in %s, not 0x%04x", x, got, ptb_dtype_name(type), wanted);
        }
        bag_release(&b);
    }
}

// Every pair of types, in counts that end within a vector.
static void test_convert_pairs(void **state)
{
    static const size_t counts[] = {0, 1, 3, 17, 768, 4099};
    for (size_t from = 0; from < LENGTH(compute_types); from++)
        for (size_t to = 0; to < LENGTH(compute_types); to++)
            for (size_t i = 0; i < LENGTH(counts); i++) {
                bag b = {.f = *state};
                array in = array_numbers(&b, compute_types[from], counts[i], 1);
                array out = array_new(&b, compute_types[to], counts[i]);
                convert(*state, out, in);
                for (size_t e = 0; e < counts[i]; e++) {
                    unsigned char wanted[4];
                    ptb_dtype_store(out.type, wanted, array_at(in, e));
                    assert_true(ptb_dtype_load(out.type, wanted) == array_at(out, e));
                }
                bag_release(&b);
            }
}

// ---- outputs that are too large for the caches, which are stored past them

enum { STREAM_WIDTH = 1024, STREAM_KERNELS = 6 };

// Kernel number `kernel` on `rows` rows from `first` on.
static void run_kernel(fixture *f, int kernel, ptb_dtype type, char *out, char *in, char *other, size_t first,
                       size_t rows)
{
    enum { W = STREAM_WIDTH };
    size_t skip = first * W * ptb_dtype_size(type);
    void *to = out + skip, *a = in + skip, *b = other + skip;
    float *rstd = test_memory(rows * sizeof *rstd);
    ptb_norm norm = {to, NULL, rstd, a, other, NULL, rows, W, 1e-5f, type};
    ptb_dropout dropout = {.out = to, .in = a, .residual = b, .rows = rows, .width = W, .length = rows};
    dropout.total_length = 1 << 20, dropout.offset = (int64_t)first, dropout.rate = 0.5f, dropout.type = type;
    ptb_activation gelu = {to, a, rows, W, PTB_GELU, type, NULL};
    ptb_activation swiglu = {out + skip / 2, a, rows / 2, W, PTB_SWIGLU, type, NULL};
    const ptb_kernels *k = f->kernels;
    ptb_status status = kernel == 0   ? k->add(f->stream, &(ptb_add){to, a, b, rows * W, type})
                        : kernel == 1 ? k->norm(f->stream, &norm)
                        : kernel == 2 ? k->dropout(f->stream, &dropout)
                        : kernel == 3 ? k->activation(f->stream, &gelu)
                        : kernel == 4 ? k->activation(f->stream, &swiglu)
                                      : k->convert(f->stream, &(ptb_convert){to, a, rows * W, type, type});
    finish(f, status);
    test_memory_free(rstd);
}

// Zeroed; on the host in huge pages, for the sake of the test's duration.
static char *large_memory(size_t bytes)
{
    void *memory;
    if (!test_on_host())
        return memset(test_memory(bytes), 0, bytes);
    assert_int_equal(ptb_memory_map(bytes, &memory), PTB_OK);
    return memory;
}

static void large_memory_free(char *memory, size_t bytes)
{
    if (test_on_host())
        ptb_memory_unmap(memory, bytes);
    else
        test_memory_free(memory);
}

// A whole call gives the same values as small ones.
static void test_streamed(void **state)
{
    enum { PIECE = 1024, ARRAYS = 4 };
    fixture *f = *state;
    for (size_t t = 0; t < LENGTH(compute_types); t++) {
        ptb_dtype type = compute_types[t];
        size_t row_bytes = STREAM_WIDTH * ptb_dtype_size(type),
               rows = 2 * (((size_t)33 << 20) / row_bytes) + 2;
        size_t bytes = rows * row_bytes;
        char *memory[ARRAYS]; // two inputs, the output of a whole call and that of small ones
        for (size_t i = 0; i < ARRAYS; i++)
            memory[i] = large_memory(bytes);
        for (size_t i = 0; i < bytes / sizeof(uint16_t); i++) { // finite in all types
            ((uint16_t *)memory[0])[i] = (uint16_t)(0x3e00 + i % 257);
            ((uint16_t *)memory[1])[i] = (uint16_t)(0x3d00 + i % 1021);
        }
        for (int kernel = 0; kernel < STREAM_KERNELS; kernel++) {
            run_kernel(f, kernel, type, memory[2], memory[0], memory[1], 0, rows);
            for (size_t first = 0; first < rows; first += PIECE)
                run_kernel(f, kernel, type, memory[3], memory[0], memory[1], first,
                           first + PIECE < rows ? PIECE : rows - first);
            if (memcmp(memory[2], memory[3], bytes) != 0)
                fail_msg("kernel %d in %s: a large call differs from small ones", kernel,
                         ptb_dtype_name(type));
        }
        for (size_t i = 0; i < ARRAYS; i++)
            large_memory_free(memory[i], bytes);
    }
}

static size_t run_threads(bag *b, ptb_dtype type, array *results)
{
    enum { ROWS = 31, WIDTH = 1001, N = ROWS * WIDTH };
    fixture *f = b->f;
    array in = array_numbers(b, type, 2 * N, 1), d_out = array_numbers(b, type, N, 2);
    array all[] = {
        array_new(b, type, N),    array_new(b, type, N), array_new(b, type, N), array_new(b, type, 2 * N),
        array_new(b, PTB_F32, N), array_new(b, type, N), array_new(b, type, N),
    };
    ptb_dropout dropout = dropout_of(all[5], in, NULL, ROWS, WIDTH, LENGTH_WHOLE);
    ptb_activation gelu = {all[0].data, in.data, ROWS, WIDTH, PTB_GELU, type, NULL}, swiglu = gelu;
    ptb_activation_gradient d_gelu = {all[2].data, d_out.data, in.data, ROWS, WIDTH, PTB_GELU, type, NULL};
    ptb_activation_gradient d_swiglu = d_gelu;
    swiglu.out = all[1].data, swiglu.kind = PTB_SWIGLU;
    d_swiglu.d_in = all[3].data, d_swiglu.kind = PTB_SWIGLU;
    finish(f, f->kernels->activation(f->stream, &gelu));
    finish(f, f->kernels->activation(f->stream, &swiglu));
    finish(f, f->kernels->activation_gradient(f->stream, &d_gelu));
    finish(f, f->kernels->activation_gradient(f->stream, &d_swiglu));
    finish(f, f->kernels->convert(f->stream, &(ptb_convert){all[4].data, in.data, N, PTB_F32, type}));
    finish(f, f->kernels->dropout(f->stream, &dropout));
    finish(f, f->kernels->add(f->stream, &(ptb_add){all[6].data, in.data, d_out.data, N, type}));
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
        cmocka_unit_test(test_exp),
        KERNEL_TEST(test_activations),
        KERNEL_TEST(test_used_rows),
        KERNEL_TEST(test_gelu_elements),
        KERNEL_TEST(test_add),
        KERNEL_TEST(test_dropout),
        KERNEL_TEST(test_dropout_shards),
        KERNEL_TEST(test_dropout_statistics),
        KERNEL_TEST(test_convert_all_16_bits),
        KERNEL_TEST(test_convert_rounds),
        KERNEL_TEST(test_convert_pairs),
        KERNEL_TEST(test_streamed),
        KERNEL_TEST(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
