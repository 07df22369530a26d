// What strategies ask of attention beyond its values: parts of keys merge into the whole, packed documents
// are separate sequences, dropout is the same however the work is divided, and so are all bits on any number
// of threads.
#include "tests/unit/attention_reference.h"

static ptb_attention_shape plain(size_t batch, size_t heads, size_t width, size_t length)
{
    return (ptb_attention_shape){.batch = batch,
                                 .heads = heads,
                                 .head_width = width,
                                 .query_length = length,
                                 .key_length = length,
                                 .causal = true,
                                 .type = PTB_F32};
}

// Runs a part of the whole case whose batch, heads, queries and keys begin at the given places; its results
// go to `part`, whose inputs are copied from the whole.
typedef struct {
    size_t sequence, head, query, key;
} place;

// Copies the columns of `heads` heads from row `row` and head `head` of the whole.
static void cut(const attention_case *whole, attention_case *part, array which, place from)
{
    const ptb_attention_shape *w = &whole->shape, *p = &part->shape;
    bool query = which == QUERY || which == OUT;
    size_t length = query ? p->query_length : p->key_length, heads = query ? p->heads : p->kv_heads;
    size_t head = query ? from.head : from.head / (w->heads / w->kv_heads);
    for (size_t b = 0; b < p->batch; b++)
        for (size_t i = 0; i < length; i++) {
            size_t row = query ? i + from.query : i + from.key;
            size_t to = which == OUT     ? at_out(p, b, i, 0)
                        : which == QUERY ? at_query(p, b, i, 0)
                                         : at_key(p, b, i, 0);
            size_t at = which == OUT     ? at_out(w, b + from.sequence, row, 0)
                        : which == QUERY ? at_query(w, b + from.sequence, row, 0)
                                         : at_key(w, b + from.sequence, row, 0);
            at += head * w->head_width;
            memcpy((float *)part->values[which] + to, (float *)whole->values[which] + at,
                   heads * w->head_width * sizeof(float));
            memcpy((float *)part->gradients[which] + to, (float *)whole->gradients[which] + at,
                   heads * w->head_width * sizeof(float));
        }
}

static void part_init(const attention_case *whole, attention_case *part, ptb_attention_shape shape,
                      place from)
{
    const ptb_attention_shape *w = &whole->shape;
    shape.scale = w->scale;
    shape.total_length = w->total_length;
    shape.dropout_rate = w->dropout_rate;
    shape.dropout_seed = w->dropout_seed;
    shape.dropout_sequence = w->dropout_sequence + from.sequence;
    shape.dropout_head = w->dropout_head + from.head;
    shape.query_offset = w->query_offset + (int64_t)from.query;
    shape.key_offset = w->key_offset + (int64_t)from.key;
    case_init(part, shape);
    for (array which = QUERY; which <= OUT; which++)
        cut(whole, part, which, from);
}

static double whole_lse(const attention_case *whole, place from, size_t b, size_t h, size_t i)
{
    const ptb_attention_shape *w = &whole->shape;
    return (double)
        whole->lse[((b + from.sequence) * w->heads + h + from.head) * w->query_length + i + from.query];
}

// Adds the part's outputs, weighted by its share of the sum, to out (as the whole's).
static void merge(const attention_case *whole, const attention_case *part, place from, double *out)
{
    const ptb_attention_shape *p = &part->shape;
    for (size_t b = 0; b < p->batch; b++)
        for (size_t h = 0; h < p->heads; h++)
            for (size_t i = 0; i < p->query_length; i++) {
                double lse = (double)part->lse[(b * p->heads + h) * p->query_length + i];
                double weight = exp(lse - whole_lse(whole, from, b, h, i));
                size_t to = at_out(&whole->shape, b + from.sequence, i + from.query, h + from.head);
                for (size_t c = 0; c < p->head_width; c++)
                    out[to + c] += weight * (double)((float *)part->values[OUT])[at_out(p, b, i, h) + c];
            }
}

// Adds the part's gradients to those of the whole.
static void add_gradients(const attention_case *whole, const attention_case *part, place from,
                          double *gradients[ARRAYS])
{
    const ptb_attention_shape *p = &part->shape, *w = &whole->shape;
    size_t kv_head = from.head / (w->heads / w->kv_heads);
    for (size_t b = 0; b < p->batch; b++)
        for (size_t c = 0; c < p->head_width; c++) {
            for (size_t i = 0; i < p->query_length; i++)
                for (size_t h = 0; h < p->heads; h++)
                    gradients[QUERY][at_query(w, b + from.sequence, i + from.query, h + from.head) + c] +=
                        (double)((float *)part->gradients[QUERY])[at_query(p, b, i, h) + c];
            for (size_t j = 0; j < p->key_length; j++)
                for (size_t h = 0; h < p->kv_heads; h++) {
                    size_t to = ((b + from.sequence) * w->key_length + j + from.key) * w->key_stride +
                                (h + kv_head) * w->head_width + c;
                    size_t at = (b * p->key_length + j) * p->key_stride + h * p->head_width + c;
                    gradients[KEY][to] += (double)((float *)part->gradients[KEY])[at];
                    gradients[VALUE][to] += (double)((float *)part->gradients[VALUE])[at];
                }
        }
}

typedef struct {
    attention_case whole;
    double *out, *gradients[ARRAYS]; // of the parts so far
} division;

static void division_init(fixture *f, division *d, ptb_attention_shape shape)
{
    case_init(&d->whole, shape);
    run_forward(f, &d->whole, 1);
    for (array which = QUERY; which <= OUT; which++)
        d->gradients[which] = calloc(d->whole.reference.count[which], sizeof(double));
    d->out = d->gradients[OUT];
}

// One part forward, and backward with the whole's output and log-sum-exp, as context parallelism does.
static void division_add(fixture *f, division *d, ptb_attention_shape shape, place from)
{
    attention_case part;
    part_init(&d->whole, &part, shape, from);
    run_forward(f, &part, 1);
    merge(&d->whole, &part, from, d->out);
    cut(&d->whole, &part, OUT, from);
    for (size_t b = 0, at = 0; b < part.shape.batch; b++)
        for (size_t h = 0; h < part.shape.heads; h++)
            for (size_t i = 0; i < part.shape.query_length; i++)
                part.lse[at++] = (float)whole_lse(&d->whole, from, b, h, i);
    run_gradient(f, &part, false, 1);
    add_gradients(&d->whole, &part, from, d->gradients);
    case_release(&part);
}

// The parts together are the whole.
static void division_check(fixture *f, division *d)
{
    attention_case *w = &d->whole;
    assert_true(distance_of(PTB_F32, w->values[OUT], d->out, w->reference.count[OUT]) < 2e-6);
    for (array which = QUERY; which <= VALUE; which++)
        memset(w->gradients[which], 0, w->reference.count[which] * sizeof(float));
    run_gradient(f, w, true, 1);
    for (array which = QUERY; which <= VALUE; which++)
        assert_true(
            distance_of(PTB_F32, w->gradients[which], d->gradients[which], w->reference.count[which]) < 3e-6);
    for (array which = QUERY; which <= OUT; which++)
        free(d->gradients[which]);
    case_release(w);
}

static ptb_attention_shape with_dropout(ptb_attention_shape s)
{
    s.dropout_rate = 0.25f;
    s.dropout_seed = 1234;
    s.dropout_sequence = 3;
    s.dropout_head = 2;
    s.total_length = 500;
    s.query_offset = s.key_offset = 30;
    return s;
}

static void test_key_parts(void **state)
{
    static const size_t cuts[] = {1, 41, 64, 100, 129};
    for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++)
        for (int drops = 0; drops < 2; drops++) {
            division d;
            ptb_attention_shape s = plain(1, 4, 6, 130);
            s.kv_heads = 2;
            division_init(*state, &d, drops ? with_dropout(s) : s);
            s.key_length = cuts[c];
            division_add(*state, &d, s, (place){0});
            s.key_length = 130 - cuts[c];
            division_add(*state, &d, s, (place){.key = cuts[c]});
            division_check(*state, &d);
        }
}

static void test_query_parts(void **state)
{
    division d;
    ptb_attention_shape s = plain(2, 3, 6, 150);
    division_init(*state, &d, with_dropout(s));
    s.query_length = 70;
    division_add(*state, &d, s, (place){0});
    s.query_length = 80;
    division_add(*state, &d, s, (place){.query = 70});
    division_check(*state, &d);
}

static void test_head_parts(void **state)
{
    division d;
    ptb_attention_shape s = plain(2, 6, 6, 70);
    s.kv_heads = 3;
    division_init(*state, &d, with_dropout(s));
    s.heads = 2;
    s.kv_heads = 1;
    for (size_t head = 0; head < 6; head += 2)
        division_add(*state, &d, s, (place){.head = head});
    division_check(*state, &d);
}

static void test_batch_parts(void **state)
{
    division d;
    ptb_attention_shape s = plain(3, 2, 6, 70);
    division_init(*state, &d, with_dropout(s));
    s.batch = 1;
    for (size_t b = 0; b < 3; b++)
        division_add(*state, &d, s, (place){.sequence = b});
    division_check(*state, &d);
}

// A packed sequence is its documents, one after the other.
static void test_packed(void **state)
{
    static const size_t lengths[] = {3, 70, 64, 1, 90};
    enum { LENGTH = 228 };
    int32_t start[LENGTH];
    size_t first = 0;
    for (size_t n = 0; n < sizeof lengths / sizeof *lengths; first += lengths[n++])
        for (size_t i = 0; i < lengths[n]; i++)
            start[first + i] = (int32_t)first;
    division d;
    ptb_attention_shape s = plain(1, 2, 8, LENGTH);
    s.query_start = start;
    division_init(*state, &d, s);
    first = 0;
    for (size_t n = 0; n < sizeof lengths / sizeof *lengths; first += lengths[n++]) {
        s.query_start = NULL;
        s.query_length = s.key_length = lengths[n];
        ptb_attention_shape alone = s;
        place at = {.query = first, .key = first};
        // A document begins at position 0 of its own.
        attention_case *w = &d.whole;
        int64_t offset = w->shape.query_offset;
        w->shape.query_offset = w->shape.key_offset = -(int64_t)first;
        division_add(*state, &d, alone, at);
        w->shape.query_offset = w->shape.key_offset = offset;
    }
    division_check(*state, &d);
}

// Values of 1 give the sum of the probabilities that stay, whose mean is 1.
static void test_dropout_mean(void **state)
{
    fixture *f = *state;
    attention_case a;
    ptb_attention_shape s = plain(2, 4, 1, 400);
    s.causal = false;
    s.scale = 1e-3f; // nearly equal probabilities
    s.dropout_rate = 0.4f;
    case_init(&a, s);
    for (size_t i = 0; i < a.reference.count[VALUE]; i++)
        ((float *)a.values[VALUE])[i] = 1;
    run_forward(f, &a, 1);
    double sum = 0, squares = 0, n = (double)a.reference.count[OUT];
    for (size_t i = 0; i < a.reference.count[OUT]; i++) {
        double x = (double)((float *)a.values[OUT])[i];
        sum += x;
        squares += (x - 1) * (x - 1);
    }
    // 400 keys of which each stays with 0.6: variance of a row (1 - 0.6) / 0.6 / 400
    double variance = 0.4 / 0.6 / 400;
    assert_true(fabs(sum / n - 1) < 5 * sqrt(variance / n));
    assert_true(fabs(squares / n / variance - 1) < 5 * sqrt(2 / n));
    case_release(&a);
}

// ---- threads

static void assert_same_bits(const attention_case *a, const attention_case *b)
{
    assert_memory_equal(a->lse, b->lse, a->lse_count * sizeof(float));
    for (array which = QUERY; which <= OUT; which++) {
        size_t bytes = a->reference.count[which] * ptb_dtype_size(a->shape.type);
        assert_memory_equal(a->values[which], b->values[which], bytes);
        assert_memory_equal(a->gradients[which], b->gradients[which], bytes);
    }
}

static void check_threads(fixture *f, ptb_attention_shape s, bool accumulate)
{
    attention_case one;
    case_init(&one, s);
    assert_int_equal(f->kernels->set_threads(f->stream, 1), PTB_OK);
    run_forward(f, &one, 1);
    run_gradient(f, &one, accumulate, 1);
    for (int threads = 2; threads <= 5; threads++) {
        attention_case many;
        case_init(&many, s);
        assert_int_equal(f->kernels->set_threads(f->stream, threads), PTB_OK);
        run_forward(f, &many, threads);
        run_gradient(f, &many, accumulate, threads);
        assert_same_bits(&one, &many);
        case_release(&many);
    }
    case_release(&one);
}

// One head on several threads takes the way by blocks of keys and tiles of queries.
static void test_threads(void **state)
{
    static const ptb_dtype types[] = {PTB_F32, PTB_BF16, PTB_F16};
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (size_t heads = 1; heads <= 6; heads += heads == 1 ? 2 : 3) {
            ptb_attention_shape s = plain(1, heads, 72, 333);
            s.type = types[t];
            s.kv_heads = heads == 6 ? 2 : heads;
            check_threads(*state, s, heads == 1);
            s.dropout_rate = heads == 3 ? 0.2f : 0;
            s.causal = false;
            check_threads(*state, s, heads != 1);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_key_parts, kernels_setup, kernels_teardown),
        cmocka_unit_test_setup_teardown(test_query_parts, kernels_setup, kernels_teardown),
        cmocka_unit_test_setup_teardown(test_head_parts, kernels_setup, kernels_teardown),
        cmocka_unit_test_setup_teardown(test_batch_parts, kernels_setup, kernels_teardown),
        cmocka_unit_test_setup_teardown(test_packed, kernels_setup, kernels_teardown),
        cmocka_unit_test_setup_teardown(test_dropout_mean, kernels_setup, kernels_teardown),
        cmocka_unit_test_setup_teardown(test_threads, kernels_setup, kernels_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
