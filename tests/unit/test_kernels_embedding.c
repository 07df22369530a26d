// Token and position embedding and its gradient against loops in double precision.
#include "tests/unit/kernels_rows.h"

enum { VOCABULARY = 7, POSITIONS = 9, SEQUENCE = 4, ROWS = 8, OFFSET = 3 };
static const int32_t some_tokens[ROWS] = {4, 0, 1, 4, 4, 2, 0, 0}; // 3, 5 and 6 never
static const int32_t some_starts[ROWS] = {0, 0, 2, 2, 1, 1, 4, 5}; // documents of a packed batch

typedef struct {
    array table, positions, out, d_out, d_table, d_positions;
    const int32_t *tokens; /* [ROWS] */
    const int32_t *start;  /* [ROWS], NULL: 0 */
    size_t width;
    bool has_positions;
} embedding_arrays;

static embedding_arrays make_arrays(bag *b, ptb_dtype type, size_t width)
{
    int32_t *tokens = bag_bytes(b, sizeof some_tokens), *starts = bag_bytes(b, sizeof some_starts);
    memcpy(tokens, some_tokens, sizeof some_tokens);
    memcpy(starts, some_starts, sizeof some_starts);
    return (embedding_arrays){
        .table = array_numbers(b, type, VOCABULARY * width, 1),
        .positions = array_numbers(b, type, POSITIONS * width, 2),
        .out = array_new(b, type, ROWS * width),
        .d_out = array_numbers(b, type, ROWS * width, 3),
        .d_table = array_numbers(b, PTB_F32, VOCABULARY * width, 4),
        .d_positions = array_numbers(b, PTB_F32, POSITIONS * width, 5),
        .tokens = tokens,
        .start = starts,
        .width = width,
        .has_positions = true,
    };
}

static size_t position_of(const embedding_arrays *a, size_t r)
{
    return OFFSET + r % SEQUENCE - (a->start ? (size_t)a->start[r] : 0);
}

static void run_forward(fixture *f, const embedding_arrays *a)
{
    ptb_embedding args = {.out = a->out.data,
                          .tokens = a->tokens,
                          .start = a->start,
                          .table = a->table.data,
                          .positions = a->has_positions ? a->positions.data : NULL,
                          .rows = ROWS,
                          .sequence = SEQUENCE,
                          .width = a->width,
                          .vocabulary = VOCABULARY,
                          .position_offset = OFFSET,
                          .type = a->table.type};
    finish(f, f->kernels->embedding(f->stream, &args));
}

static void run_backward(fixture *f, const embedding_arrays *a, bool accumulate_table,
                         bool accumulate_positions)
{
    ptb_embedding_gradient args = {.d_table = a->d_table.data,
                                   .d_positions = a->has_positions ? a->d_positions.data : NULL,
                                   .d_out = a->d_out.data,
                                   .tokens = a->tokens,
                                   .start = a->start,
                                   .rows = ROWS,
                                   .sequence = SEQUENCE,
                                   .width = a->width,
                                   .vocabulary = VOCABULARY,
                                   .positions = POSITIONS,
                                   .position_offset = OFFSET,
                                   .type = a->d_out.type,
                                   .accumulate_table = accumulate_table,
                                   .accumulate_positions = accumulate_positions};
    finish(f, f->kernels->embedding_gradient(f->stream, &args));
}

static void check_embedding(fixture *f, ptb_dtype type, size_t width, bool packed, bool positions)
{
    for (int accumulate = 0; accumulate < 4; accumulate++) {
        bool keep_table = accumulate & 1, keep_positions = accumulate & 2;
        bag b = {.f = f};
        embedding_arrays a = make_arrays(&b, type, width);
        a.start = packed ? a.start : NULL, a.has_positions = positions;
        double *out = bag_bytes(&b, ROWS * width * sizeof *out);
        double *d_table = array_doubles(&b, a.d_table), *d_positions = array_doubles(&b, a.d_positions);
        for (size_t i = 0; i < VOCABULARY * width; i++)
            d_table[i] *= keep_table;
        for (size_t i = 0; i < POSITIONS * width; i++)
            d_positions[i] *= keep_positions;
        array positions0 = array_copy(&b, a.d_positions);
        for (size_t r = 0; r < ROWS; r++)
            for (size_t c = 0; c < width; c++) {
                size_t p = position_of(&a, r) * width + c, v = (size_t)some_tokens[r] * width + c,
                       i = r * width + c;
                out[i] = array_at(a.table, v) + (positions ? array_at(a.positions, p) : 0);
                d_table[v] += array_at(a.d_out, i);
                d_positions[p] += array_at(a.d_out, i);
            }
        run_forward(f, &a);
        run_backward(f, &a, keep_table, keep_positions);
        assert_close("embedding", a.out, out, 1e-3);
        assert_close("d_table", a.d_table, d_table, 1e-1);
        if (positions)
            assert_close("d_positions", a.d_positions, d_positions, 1e-1);
        else
            assert_true(array_equal(positions0, a.d_positions)); // not touched
        bag_release(&b);
    }
}

static void test_embedding(void **state)
{
    static const size_t widths[] = {1, 3, 17, 768};
    for (size_t t = 0; t < LENGTH(compute_types); t++)
        for (size_t i = 0; i < LENGTH(widths); i++)
            for (int options = 0; options < 4; options++)
                check_embedding(*state, compute_types[t], widths[i], options & 1, options & 2);
}

typedef struct {
    const embedding_arrays *a;
    double *table, *positions;
} embedding_reference;

// Sum of d_out * out.
static double objective(void *context)
{
    const embedding_reference *e = context;
    size_t width = e->a->width;
    double sum = 0;
    for (size_t r = 0; r < ROWS; r++)
        for (size_t c = 0; c < width; c++)
            sum += array_at(e->a->d_out, r * width + c) * (e->table[(size_t)some_tokens[r] * width + c] +
                                                           e->positions[position_of(e->a, r) * width + c]);
    return sum;
}

static void test_differences(void **state)
{
    bag b = {.f = *state};
    embedding_arrays a = make_arrays(&b, PTB_F32, 5);
    embedding_reference e = {&a, array_doubles(&b, a.table), array_doubles(&b, a.positions)};
    double d_table[VOCABULARY * 5], d_positions[POSITIONS * 5];
    differences(objective, &e, e.table, LENGTH(d_table), d_table);
    differences(objective, &e, e.positions, LENGTH(d_positions), d_positions);
    run_backward(*state, &a, false, false);
    assert_close("d_table", a.d_table, d_table, 0);
    assert_close("d_positions", a.d_positions, d_positions, 0);
    bag_release(&b);
}

// More rows than one thing holds that a back-end does with them: some share a token or a position with
// hundreds of others, some with none, and the last sequence may be cut short.
enum { MANY_TOKENS = 700, MANY_POSITIONS = 12 };
static void check_many(fixture *f, ptb_dtype type, size_t rows, size_t sequence, size_t width, bool packed)
{
    bag b = {.f = f};
    int32_t *tokens = bag_bytes(&b, rows * sizeof *tokens), *start = bag_bytes(&b, rows * sizeof *start);
    array d_out = array_numbers(&b, type, rows * width, 2);
    array d_table = array_numbers(&b, PTB_F32, MANY_TOKENS * width, 4),
          d_positions = array_numbers(&b, PTB_F32, MANY_POSITIONS * width, 5);
    double *table = array_doubles(&b, d_table), *positions = array_doubles(&b, d_positions);
    for (size_t i = 0; i < MANY_POSITIONS * width; i++)
        positions[i] = 0;
    for (size_t r = 0; r < rows; r++) {
        uint64_t draw = ptb_random_u64(1, 2, r);
        tokens[r] = draw % 3 ? (int32_t)(draw / 3 % 2) * 699 : (int32_t)(draw / 3 % MANY_TOKENS);
        start[r] = packed ? (int32_t)(r % sequence / 5 * 5) : 0;
        for (size_t c = 0; c < width; c++) {
            table[(size_t)tokens[r] * width + c] += array_at(d_out, r * width + c);
            positions[(2 + r % sequence - (size_t)start[r]) * width + c] += array_at(d_out, r * width + c);
        }
    }
    ptb_embedding_gradient args = {.d_table = d_table.data,
                                   .d_positions = d_positions.data,
                                   .d_out = d_out.data,
                                   .tokens = tokens,
                                   .start = packed ? start : NULL,
                                   .rows = rows,
                                   .sequence = sequence,
                                   .width = width,
                                   .vocabulary = MANY_TOKENS,
                                   .positions = MANY_POSITIONS,
                                   .position_offset = 2,
                                   .type = type,
                                   .accumulate_table = true};
    for (int again = 0; again < 2; again++) { // a second call must find nothing that the first left behind
        finish(f, f->kernels->embedding_gradient(f->stream, &args));
        assert_close("d_table", d_table, table, 1);
        assert_close("d_positions", d_positions, positions, 1);
        args.accumulate_positions = true;
        memset(d_out.data, 0, d_out.count * ptb_dtype_size(type));
    }
    bag_release(&b);
}

static void test_many(void **state)
{
    static const size_t sizes[][3] = {{500, 9, 24}, {500, 10, 5}, {45, 9, 300}, {8300, 9, 8}};
    for (size_t i = 0; i < LENGTH(sizes); i++)
        for (size_t t = 0; t < LENGTH(compute_types); t++)
            for (int packed = 0; packed < 2; packed++)
                check_many(*state, compute_types[t], sizes[i][0], sizes[i][1], sizes[i][2], packed);
}

// Thousands of rows share few tokens: their order in a sum is the rows' own.
static size_t run_threads(bag *b, ptb_dtype type, array *results)
{
    enum { MANY = 400, WIDTH = 90 };
    int32_t *many = bag_bytes(b, MANY * sizeof *many);
    for (size_t r = 0; r < MANY; r++)
        many[r] = (int32_t)(ptb_random_u64(1, 2, r) % VOCABULARY);
    array table = array_numbers(b, type, VOCABULARY * WIDTH, 1),
          d_out = array_numbers(b, type, MANY * WIDTH, 2);
    array positions = array_numbers(b, type, POSITIONS * WIDTH, 3);
    array all[] = {array_new(b, type, MANY * WIDTH), array_new(b, PTB_F32, VOCABULARY * WIDTH),
                   array_new(b, PTB_F32, POSITIONS * WIDTH)};
    ptb_embedding forward = {.out = all[0].data,
                             .tokens = many,
                             .table = table.data,
                             .positions = positions.data,
                             .rows = MANY,
                             .sequence = POSITIONS,
                             .width = WIDTH,
                             .vocabulary = VOCABULARY,
                             .type = type};
    ptb_embedding_gradient backward = {.d_table = all[1].data,
                                       .d_positions = all[2].data,
                                       .d_out = d_out.data,
                                       .tokens = many,
                                       .rows = MANY,
                                       .sequence = POSITIONS,
                                       .width = WIDTH,
                                       .vocabulary = VOCABULARY,
                                       .positions = POSITIONS,
                                       .type = type};
    finish(b->f, b->f->kernels->embedding(b->f->stream, &forward));
    finish(b->f, b->f->kernels->embedding_gradient(b->f->stream, &backward));
    memcpy(results, all, sizeof all);
    return LENGTH(all);
}

static void test_threads(void **state)
{
    assert_same_for_threads(*state, run_threads);
}

// A vocabulary in three parts, of which the outer ones have the tokens that hundreds of rows share: each
// part's output is the whole one's where its tokens are and 0 elsewhere, and its gradient is that of its rows
// of the whole table.
static void check_parts(fixture *f, ptb_dtype type, size_t rows, bool positions, bool accumulate)
{
    enum { WIDTH = 12, SEQUENCE_OF_PARTS = 10, PARTS = 3 };
    static const size_t borders[PARTS + 1] = {0, 5, 690, MANY_TOKENS};
    const size_t size = ptb_dtype_size(type);
    bag b = {.f = f};
    int32_t *tokens = bag_bytes(&b, rows * sizeof *tokens);
    array table = array_numbers(&b, type, MANY_TOKENS * WIDTH, 1), out = array_new(&b, type, rows * WIDTH);
    array places = array_numbers(&b, type, MANY_POSITIONS * WIDTH, 2);
    array d_out = array_numbers(&b, type, rows * WIDTH, 3);
    array d_table = array_numbers(&b, PTB_F32, MANY_TOKENS * WIDTH, 4), before = array_copy(&b, d_table);
    array d_places = array_new(&b, PTB_F32, MANY_POSITIONS * WIDTH);
    for (size_t r = 0; r < rows; r++) {
        uint64_t draw = ptb_random_u64(1, 2, r);
        tokens[r] = draw % 3 ? (int32_t)(draw / 3 % 2) * 699 : (int32_t)(draw / 3 % MANY_TOKENS);
    }
    ptb_embedding forward = {.out = out.data,
                             .tokens = tokens,
                             .table = table.data,
                             .positions = positions ? places.data : NULL,
                             .rows = rows,
                             .sequence = SEQUENCE_OF_PARTS,
                             .width = WIDTH,
                             .vocabulary = MANY_TOKENS,
                             .type = type};
    ptb_embedding_gradient backward = {.d_table = d_table.data,
                                       .d_positions = positions ? d_places.data : NULL,
                                       .d_out = d_out.data,
                                       .tokens = tokens,
                                       .rows = rows,
                                       .sequence = SEQUENCE_OF_PARTS,
                                       .width = WIDTH,
                                       .vocabulary = MANY_TOKENS,
                                       .positions = MANY_POSITIONS,
                                       .type = type,
                                       .accumulate_table = accumulate};
    finish(f, f->kernels->embedding(f->stream, &forward));
    finish(f, f->kernels->embedding_gradient(f->stream, &backward));
    double *sums = array_doubles(&b, d_table);
    for (int part = 0; part < PARTS; part++) {
        size_t first = borders[part], count = borders[part + 1] - first;
        array part_out = array_new(&b, type, rows * WIDTH),
              part_table = array_new(&b, PTB_F32, count * WIDTH);
        array part_places = array_new(&b, PTB_F32, MANY_POSITIONS * WIDTH);
        memcpy(part_table.data, (float *)before.data + first * WIDTH, count * WIDTH * sizeof(float));
        forward.out = part_out.data, forward.table = (char *)table.data + first * WIDTH * size;
        backward.d_table = part_table.data, backward.d_positions = positions ? part_places.data : NULL;
        forward.vocabulary = backward.vocabulary = count;
        forward.first_token = backward.first_token = first;
        finish(f, f->kernels->embedding(f->stream, &forward));
        finish(f, f->kernels->embedding_gradient(f->stream, &backward));
        for (size_t r = 0; r < rows; r++)
            for (size_t c = 0; c < WIDTH; c++) {
                bool is_here = (size_t)tokens[r] >= first && (size_t)tokens[r] < first + count;
                double place = positions ? array_at(places, r % SEQUENCE_OF_PARTS * WIDTH + c) : 0;
                double got = array_at(part_out, r * WIDTH + c);
                assert_true(got == (is_here ? array_at(out, r * WIDTH + c) : place));
            }
        assert_close("d_table", part_table, sums + first * WIDTH, 1);
        if (positions)
            assert_true(array_equal(part_places, d_places));
    }
    bag_release(&b);
}

static void test_parts(void **state)
{
    for (size_t t = 0; t < LENGTH(compute_types); t++)
        for (int options = 0; options < 8; options++)
            check_parts(*state, compute_types[t], options & 1 ? 8300 : 500, options & 2, options & 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        KERNEL_TEST(test_embedding), KERNEL_TEST(test_differences), KERNEL_TEST(test_many),
        KERNEL_TEST(test_parts),     KERNEL_TEST(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
