// Cross-entropy of a vocabulary in parts against double precision: statistics of each part, then every part's
// gradient from those of all.
#include "tests/unit/kernels_rows.h"

enum { PARTS_MOST = 4 };

// A call on `parts` parts of a vocabulary; each part has arrays of its own, statistics lie together.
typedef struct {
    size_t rows, vocabulary, parts, first[PARTS_MOST + 1];
    size_t stride[PARTS_MOST]; // 0: packed
    array logits[PARTS_MOST], d_logits[PARTS_MOST], losses[PARTS_MOST], statistics;
    double *whole; /* [rows, vocabulary]: the logits */
    int32_t *targets;
    double *loss; /* [parts] */
    float *factor;
} cut_loss;

static const double scale = 0.125, loss_before = 100;

static size_t columns_of(const cut_loss *c, size_t part)
{
    return c->first[part + 1] - c->first[part];
}

static size_t stride_of(const cut_loss *c, size_t part)
{
    return ptb_row_stride(c->stride[part], columns_of(c, part));
}

// apart: rows of a part are further apart than they are long.
static cut_loss cut(bag *b, ptb_dtype type, size_t rows, size_t vocabulary, size_t parts, bool apart)
{
    cut_loss c = {.rows = rows, .vocabulary = vocabulary, .parts = parts};
    c.whole = bag_bytes(b, rows * vocabulary * sizeof *c.whole);
    c.targets = bag_bytes(b, rows * sizeof *c.targets);
    c.loss = bag_bytes(b, parts * sizeof *c.loss);
    c.factor = bag_bytes(b, sizeof *c.factor);
    *c.factor = 512; // keeps small gradients normal in f16
    for (size_t i = 0; i < rows * vocabulary; i++)
        c.whole[i] = (double)(float)(ptb_random_normal(11, 1, i) * 10 + 30 + (double)(i % vocabulary) * 0.01);
    for (size_t r = 0; r < rows; r++)
        c.targets[r] = r % 4 == 3 ? -1 - (int32_t)r : (int32_t)(r * 7919 % vocabulary);
    c.targets[0] = (int32_t)vocabulary - 1;
    c.statistics = array_new(b, PTB_F32, parts * 3 * rows);
    for (size_t p = 0; p < parts; p++) {
        c.first[p + 1] = p + 1 == parts ? vocabulary : (p + 1) * vocabulary / parts;
        c.stride[p] = apart ? (columns_of(&c, p) + 63) / 64 * 64 : 0;
        size_t count = rows * stride_of(&c, p);
        c.logits[p] = array_new(b, PTB_F32, count);
        c.d_logits[p] = array_new(b, type, count);
        c.losses[p] = array_new(b, PTB_F32, rows);
        c.loss[p] = loss_before;
        for (size_t i = 0; i < rows * columns_of(&c, p); i++) {
            size_t r = i / columns_of(&c, p), v = i % columns_of(&c, p);
            array_set(c.logits[p], r * stride_of(&c, p) + v, c.whole[r * vocabulary + c.first[p] + v]);
        }
    }
    return c;
}

static void run_statistics(fixture *f, const cut_loss *c, size_t part)
{
    ptb_loss_statistics args = {.statistics = (float *)c->statistics.data + part * 3 * c->rows,
                                .logits = c->logits[part].data,
                                .targets = c->targets,
                                .rows = c->rows,
                                .vocabulary = columns_of(c, part),
                                .stride = c->stride[part],
                                .first_token = c->first[part]};
    finish(f, f->kernels->loss_statistics(f->stream, &args));
}

static void run_gradient(fixture *f, const cut_loss *c, size_t part, bool scaled, bool accumulate)
{
    ptb_loss_gradient args = {.logits = c->logits[part].data,
                              .d_logits = c->d_logits[part].data,
                              .statistics = c->statistics.data,
                              .targets = c->targets,
                              .losses = c->losses[part].data,
                              .loss = c->loss + part,
                              .factor = scaled ? c->factor : NULL,
                              .rows = c->rows,
                              .vocabulary = columns_of(c, part),
                              .parts = c->parts,
                              .stride = c->stride[part],
                              .first_token = c->first[part],
                              .scale = scale,
                              .type = c->d_logits[part].type,
                              .accumulate = accumulate};
    finish(f, f->kernels->loss_gradient(f->stream, &args));
}

static void run_all(fixture *f, const cut_loss *c, bool scaled, bool accumulate)
{
    for (size_t p = 0; p < c->parts; p++)
        run_statistics(f, c, p);
    for (size_t p = 0; p < c->parts; p++)
        run_gradient(f, c, p, scaled, accumulate);
}

static double log_sum(const cut_loss *c, size_t row)
{
    const double *logits = c->whole + row * c->vocabulary;
    double top = logits[0], sum = 0;
    for (size_t v = 0; v < c->vocabulary; v++)
        top = fmax(top, logits[v]);
    for (size_t v = 0; v < c->vocabulary; v++)
        sum += exp(logits[v] - top);
    return log(sum) + top;
}

static void check_statistics(const cut_loss *c)
{
    for (size_t p = 0; p < c->parts; p++)
        for (size_t r = 0; r < c->rows; r++) {
            const double *logits = c->whole + r * c->vocabulary + c->first[p];
            double top = -INFINITY, sum = 0, target = -INFINITY;
            size_t at = p * 3 * c->rows + r;
            for (size_t v = 0; v < columns_of(c, p); v++) {
                top = fmax(top, logits[v]);
                if (c->targets[r] >= 0 && c->first[p] + v == (size_t)c->targets[r])
                    target = logits[v];
            }
            for (size_t v = 0; v < columns_of(c, p); v++)
                sum += exp(logits[v] - top);
            assert_true(array_at(c->statistics, at) == top);
            assert_true(fabs(array_at(c->statistics, at + c->rows) / sum - 1) < 2e-6);
            assert_true(array_at(c->statistics, at + 2 * c->rows) == target);
        }
    assert_guarded(c->statistics);
}

static void check_part(const cut_loss *c, bag *b, size_t p, double share, double sum)
{
    size_t columns = columns_of(c, p), stride = stride_of(c, p);
    double *losses = bag_bytes(b, c->rows * sizeof *losses),
           *wanted = bag_bytes(b, c->rows * stride * sizeof *wanted);
    for (size_t r = 0; r < c->rows; r++) {
        double lse = log_sum(c, r);
        bool counts = c->targets[r] >= 0;
        losses[r] = counts ? lse - c->whole[r * c->vocabulary + (size_t)c->targets[r]] : 0;
        sum += scale * losses[r];
        for (size_t v = 0; v < stride; v++) {
            size_t token = c->first[p] + v;
            wanted[r * stride + v] = 0;
            if (v >= columns) // between rows: as it was
                wanted[r * stride + v] = array_at(c->d_logits[p], r * stride + v);
            else if (counts)
                wanted[r * stride + v] = share * (exp(c->whole[r * c->vocabulary + token] - lse) -
                                                  (token == (size_t)c->targets[r]));
        }
    }
    assert_close("losses", c->losses[p], losses, 10);
    assert_close("d_logits", c->d_logits[p], wanted, c->d_logits[p].type == PTB_F16 ? 1e-3 : 1e-6);
    assert_guarded(c->logits[p]);
    assert_true(fabs(c->loss[p] - sum) <= 1e-5 * fmax(1, fabs(sum)));
}

static void check_cut(fixture *f, ptb_dtype type, size_t rows, size_t vocabulary, size_t parts, bool apart)
{
    for (int options = 0; options < 4; options++) {
        bool scaled = options & 1 || type == PTB_F16, accumulate = options & 2;
        bag b = {.f = f};
        cut_loss c = cut(&b, type, rows, vocabulary, parts, apart);
        for (size_t p = 0; p < parts; p++) {
            for (size_t i = 0; i < c.d_logits[p].count; i++)
                array_set(c.d_logits[p], i, 3);
            if (type == PTB_F32 && options & 1) { // in place
                for (size_t r = 0; r < rows; r++)
                    for (size_t v = columns_of(&c, p); v < stride_of(&c, p); v++)
                        array_set(c.logits[p], r * stride_of(&c, p) + v, 3);
                c.d_logits[p].data = c.logits[p].data;
            }
        }
        run_all(f, &c, scaled, accumulate);
        check_statistics(&c);
        for (size_t p = 0; p < parts; p++)
            check_part(&c, &b, p, scale * (scaled ? (double)*c.factor : 1), accumulate ? loss_before : 0);
        for (size_t p = 1; p < parts; p++) { // ranks agree to the bit
            assert_true(array_equal(c.losses[0], c.losses[p]));
            assert_true(c.loss[0] == c.loss[p]);
        }
        bag_release(&b);
    }
}

static void test_parts(void **state)
{
    static const size_t sizes[][2] = {{1, 4}, {5, 17}, {6, 51}, {5, 768}, {5, 5001}, {3, 20000}};
    for (size_t t = 0; t < LENGTH(compute_types); t++)
        for (size_t i = 0; i < LENGTH(sizes); i++)
            for (size_t parts = 1; parts <= PARTS_MOST; parts++)
                check_cut(*state, compute_types[t], sizes[i][0], sizes[i][1], parts, parts % 2);
}

// A part without any finite logit counts nothing, a sure prediction keeps the small gradient of its target,
// and powers stay finite whichever part has the largest logit.
static void test_extremes(void **state)
{
    enum { VOCABULARY = 300, PARTS = 3 };
    for (size_t at = 0; at < VOCABULARY; at += 99) {
        bag b = {.f = *state};
        cut_loss c = cut(&b, PTB_F32, 1, VOCABULARY, PARTS, false);
        for (size_t p = 0; p < PARTS; p++)
            for (size_t v = 0; v < 100; v++) {
                double value = p == (at / 100 + 1) % PARTS ? -INFINITY : p * 100 + v == at ? 320 : 300;
                array_set(c.logits[p], v, value);
            }
        c.targets[0] = (int32_t)at;
        run_all(*state, &c, false, false);
        double rest = 199 * exp(-20), loss = log1p(rest);
        for (size_t p = 0; p < PARTS; p++)
            assert_true(fabs(c.loss[p] / scale - loss) < 1e-7);
        double target = array_at(c.d_logits[at / 100], at % 100) / scale;
        assert_true(fabs(target + rest / (1 + rest)) < 1e-7);
        assert_true(array_at(c.d_logits[(at / 100 + 1) % PARTS], 0) < 1e-30);
        bag_release(&b);
    }
}

// What is not finite in one part shows in the loss of all.
static void test_not_finite(void **state)
{
    enum { VOCABULARY = 120 };
    static const double bad[] = {NAN, INFINITY};
    for (size_t i = 0; i < LENGTH(bad); i++)
        for (size_t at = 0; at < VOCABULARY; at += 17) {
            bag b = {.f = *state};
            cut_loss c = cut(&b, PTB_BF16, 1, VOCABULARY, 2, false);
            array_set(c.logits[at / 60], at % 60, bad[i]);
            c.targets[0] = 77;
            run_all(*state, &c, true, false);
            assert_true(!isfinite(c.loss[0]) && !isfinite(c.loss[1]) && !isfinite(array_at(c.losses[0], 0)));
            assert_true(!isfinite(array_at(c.d_logits[1], 17)));
            bag_release(&b);
        }
}

static size_t run_threads(bag *b, ptb_dtype type, array *results)
{
    cut_loss c = cut(b, type, 37, 1031, 2, false);
    run_all(b->f, &c, true, true);
    array all[] = {c.statistics, c.d_logits[0], c.d_logits[1], c.losses[0]};
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
        KERNEL_TEST(test_parts),
        KERNEL_TEST(test_extremes),
        KERNEL_TEST(test_not_finite),
        KERNEL_TEST(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
