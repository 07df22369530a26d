// Attention against differentiated scalar programs, at odd sizes.
#include "tests/unit/kernels_fixture.h"

typedef struct {
    ptb_attention_shape shape;
    size_t queries, keys, outs; // elements
    float *query, *key, *value, *d_out, *out, *lse;
} attention_case;

static void attention_init(attention_case *a, ptb_attention_shape shape, size_t padding)
{
    shape.kv_heads = shape.heads;
    shape.type = PTB_F32;
    size_t width = shape.heads * shape.head_width;
    shape.query_stride = width + padding;
    shape.key_stride = width + 2 * padding;
    shape.scale = 0.3f;
    *a = (attention_case){.shape = shape};
    a->queries = shape.batch * shape.query_length * shape.query_stride;
    a->keys = shape.batch * shape.key_length * shape.key_stride;
    a->outs = shape.batch * shape.query_length * width;
    a->query = numbers(a->queries, 1);
    a->key = numbers(a->keys, 2);
    a->value = numbers(a->keys, 3);
    a->d_out = numbers(a->outs, 4);
    a->out = numbers(a->outs, 5);
    a->lse = numbers(shape.batch * shape.heads * shape.query_length, 6);
}

static void attention_release(attention_case *a)
{
    free(a->query), free(a->key), free(a->value), free(a->d_out), free(a->out), free(a->lse);
}

static void run_attention(fixture *f, attention_case *a, float *out, float *lse)
{
    a->shape.workspace = malloc(f->kernels->attention_workspace(&a->shape, 1));
    ptb_attention args = {a->shape, out, lse, a->query, a->key, a->value};
    finish(f, f->kernels->attention(f->stream, &args));
    free(a->shape.workspace);
}

static size_t seen_by(const ptb_attention_shape *s, size_t row)
{
    int64_t seen = s->causal ? s->query_offset + (int64_t)row - s->key_offset + 1 : (int64_t)s->key_length;
    return seen < 0 ? 0 : seen > (int64_t)s->key_length ? s->key_length : (size_t)seen;
}

// Compares out and lse with a tape of the whole operation and leaves the tape differentiated.
static void attention_tape(const attention_case *a, tape *t, var *query, var *key, var *value)
{
    const ptb_attention_shape *s = &a->shape;
    size_t width = s->heads * s->head_width, at = 0;
    var *out = malloc(a->outs * sizeof *out);
    leaves(t, a->query, a->queries, query);
    leaves(t, a->key, a->keys, key);
    leaves(t, a->value, a->keys, value);
    for (size_t b = 0; b < s->batch; b++)
        for (size_t h = 0; h < s->heads; h++)
            for (size_t i = 0; i < s->query_length; i++, at++) {
                size_t k = b * s->key_length * s->key_stride + h * s->head_width, seen = seen_by(s, i);
                var lse =
                    tape_attend(t, query + (b * s->query_length + i) * s->query_stride + h * s->head_width,
                                key + k, value + k, seen, s->key_stride, s->head_width, s->scale,
                                out + (b * s->query_length + i) * width + h * s->head_width);
                if (seen)
                    assert_true(fabs(tape_value(t, lse) - a->lse[at]) < 1e-5);
                else
                    assert_true(a->lse[at] == -INFINITY);
                for (size_t c = 0; !seen && c < s->head_width; c++) // the tape divides 0 by 0 there
                    out[(b * s->query_length + i) * width + h * s->head_width + c] = tape_leaf(t, 0);
            }
    assert_values(t, out, a->out, a->outs);
    tape_backward(t, weighted_sum(t, out, a->d_out, a->outs));
    free(out);
}

static void check_attention(fixture *f, ptb_attention_shape shape, bool accumulate)
{
    attention_case a;
    attention_init(&a, shape, 5);
    run_attention(f, &a, a.out, a.lse);
    tape t = {0};
    var *query = malloc(a.queries * sizeof *query), *key = malloc(a.keys * sizeof *key);
    var *value = malloc(a.keys * sizeof *value);
    attention_tape(&a, &t, query, key, value);
    float *d_query = calloc(a.queries, sizeof *d_query), *d_key = calloc(a.keys, sizeof *d_key);
    float *d_value = calloc(a.keys, sizeof *d_value);
    float *before = NULL;
    if (accumulate) {
        before = numbers(a.queries, 8);
        memcpy(d_query, before, a.queries * sizeof *before);
    }
    a.shape.workspace = malloc(f->kernels->attention_workspace(&a.shape, 1));
    ptb_attention_gradient args = {a.shape, d_query, d_key, d_value, a.d_out,   a.out,
                                   a.lse,   a.query, a.key, a.value, accumulate};
    finish(f, f->kernels->attention_gradient(f->stream, &args));
    assert_gradients(&t, query, before, d_query, a.queries);
    assert_gradients(&t, key, NULL, d_key, a.keys);
    assert_gradients(&t, value, NULL, d_value, a.keys);
    free(a.shape.workspace), free(before), free(d_query), free(d_key), free(d_value), free(query), free(key);
    free(value);
    tape_release(&t);
    attention_release(&a);
}

static void test_attention(void **state)
{
    static const ptb_attention_shape shapes[] = {
        {.batch = 1, .heads = 1, .head_width = 1, .query_length = 1, .key_length = 1, .causal = true},
        {.batch = 2, .heads = 3, .head_width = 5, .query_length = 7, .key_length = 7, .causal = true},
        {.batch = 1, .heads = 2, .head_width = 4, .query_length = 131, .key_length = 131, .causal = true},
        {.batch = 1, .heads = 1, .head_width = 3, .query_length = 9, .key_length = 70},
        // a later part of the sequence over an earlier one, and over a part that begins inside it
        {.batch = 1,
         .heads = 1,
         .head_width = 3,
         .query_length = 66,
         .key_length = 20,
         .causal = true,
         .query_offset = 10,
         .key_offset = 0},
        {.batch = 1,
         .heads = 2,
         .head_width = 3,
         .query_length = 70,
         .key_length = 20,
         .causal = true,
         .query_offset = 0,
         .key_offset = 66},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int accumulate = 0; accumulate < 2; accumulate++)
            check_attention(*state, shapes[i], accumulate);
}

// Attention over two halves of the keys, merged by their log-sum-exp, is attention over all of them.
static void test_attention_parts(void **state)
{
    fixture *f = *state;
    enum { LENGTH = 90, FIRST = 41, WIDTH = 6 };
    ptb_attention_shape shape = {.batch = 1,
                                 .heads = 1,
                                 .head_width = WIDTH,
                                 .query_length = LENGTH,
                                 .key_length = LENGTH,
                                 .causal = true};
    attention_case a;
    attention_init(&a, shape, 0);
    run_attention(f, &a, a.out, a.lse);
    float *out[2], *lse[2];
    for (int part = 0; part < 2; part++) {
        attention_case p = a;
        out[part] = numbers(a.outs, 9);
        lse[part] = numbers(LENGTH, 9);
        p.shape.key_length = part ? LENGTH - FIRST : FIRST;
        p.shape.key_offset = part ? FIRST : 0;
        p.key += part ? FIRST * WIDTH : 0;
        p.value += part ? FIRST * WIDTH : 0;
        run_attention(f, &p, out[part], lse[part]);
    }
    for (size_t i = 0; i < LENGTH; i++)
        for (size_t c = 0; c < WIDTH; c++) {
            double w0 = exp(lse[0][i] - a.lse[i]), w1 = exp(lse[1][i] - a.lse[i]);
            double merged = w0 * out[0][i * WIDTH + c] + w1 * out[1][i * WIDTH + c];
            assert_true(fabs(merged - a.out[i * WIDTH + c]) < 1e-5);
        }
    for (int part = 0; part < 2; part++)
        free(out[part]), free(lse[part]);
    attention_release(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_attention, kernels_setup, kernels_teardown),
        cmocka_unit_test_setup_teardown(test_attention_parts, kernels_setup, kernels_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
