// The GPT against the same model written as a differentiated scalar program in double precision: loss and
// every parameter tensor's gradient; the program itself against central finite differences.
#include "strategies/transformer/model.h"
#include "tests/unit/kernels_fixture.h"

typedef struct {
    ptb_layout layout;
    size_t batch, tokens;
    int32_t *inputs, *targets;
    float *parameters; /* [layout.count] */
} gpt_case;

static ptb_model_shape gpt2(int64_t layers, int64_t hidden, int64_t heads, int64_t sequence,
                            int64_t vocabulary, bool tied)
{
    return (ptb_model_shape){.layers = layers,
                             .hidden = hidden,
                             .heads = heads,
                             .sequence = sequence,
                             .vocabulary = vocabulary,
                             .biases = true,
                             .tied = tied};
}

static void case_init(gpt_case *c, ptb_model_shape shape, size_t batch)
{
    *c = (gpt_case){.batch = batch, .tokens = batch * (size_t)shape.sequence};
    assert_int_equal(ptb_layout_init(&c->layout, &shape, NULL), PTB_OK);
    c->inputs = calloc(c->tokens, sizeof *c->inputs);
    c->targets = calloc(c->tokens, sizeof *c->targets);
    c->parameters = calloc(c->layout.count, sizeof *c->parameters);
    for (size_t i = 0; i < c->tokens; i++) {
        c->inputs[i] = (int32_t)(ptb_random_u64(1, 1, i) % (uint64_t)shape.vocabulary);
        c->targets[i] = (int32_t)(ptb_random_u64(1, 2, i) % (uint64_t)shape.vocabulary);
    }
    for (size_t u = 0; u < c->layout.units; u++) {
        const ptb_unit *unit = &c->layout.unit[u];
        ptb_layout_fill(&c->layout, 3, u, c->parameters + unit->first);
        // Larger than training starts with, and no zeros: every path must show in the loss.
        for (size_t t = 0; t < unit->tensors; t++)
            for (size_t i = 0; i < ptb_tensor_count(&unit->tensor[t]); i++)
                c->parameters[unit->first + unit->tensor[t].first + i] +=
                    0.2f * (float)ptb_random_normal(5, u * 100 + t, i);
    }
}

static void case_release(gpt_case *c)
{
    ptb_layout_release(&c->layout);
    free(c->inputs), free(c->targets), free(c->parameters);
}

// out[outputs] = weight [outputs, inputs] in + bias
static void tape_linear(tape *t, const var *weight, const var *bias, const var *in, size_t outputs,
                        size_t inputs, var *out)
{
    for (size_t o = 0; o < outputs; o++) {
        out[o] = bias ? bias[o] : tape_leaf(t, 0);
        for (size_t i = 0; i < inputs; i++)
            out[o] = tape_fma(t, weight[o * inputs + i], in[i], out[o]);
    }
}

static void tape_block(tape *t, const ptb_model_shape *s, const ptb_unit *u, const var *p, size_t batch,
                       var *x)
{
    size_t c = (size_t)s->hidden, length = (size_t)s->sequence, width = c / (size_t)s->heads;
    const var *w[PTB_ROLE_COUNT];
    for (size_t i = 0; i < u->tensors; i++)
        w[u->tensor[i].role] = p + u->first + u->tensor[i].first;
    var *norm = malloc(c * sizeof *norm), *qkv = malloc(batch * length * 3 * c * sizeof *qkv);
    var *mixed = malloc(c * sizeof *mixed), *out = malloc(c * sizeof *out), *up = malloc(4 * c * sizeof *up);
    for (size_t r = 0; r < batch * length; r++) {
        tape_layernorm(t, x + r * c, w[PTB_BLOCK_NORM1_GAIN], w[PTB_BLOCK_NORM1_BIAS], c, norm);
        tape_linear(t, w[PTB_BLOCK_QKV_WEIGHT], w[PTB_BLOCK_QKV_BIAS], norm, 3 * c, c, qkv + r * 3 * c);
    }
    for (size_t r = 0; r < batch * length; r++) {
        size_t start = r / length * length;
        for (size_t h = 0; h < (size_t)s->heads; h++)
            tape_attend(t, qkv + r * 3 * c + h * width, qkv + start * 3 * c + c + h * width,
                        qkv + start * 3 * c + 2 * c + h * width, r - start + 1, 3 * c, width,
                        1 / sqrt((double)width), mixed + h * width);
        tape_linear(t, w[PTB_BLOCK_PROJECTION_WEIGHT], w[PTB_BLOCK_PROJECTION_BIAS], mixed, c, c, out);
        for (size_t i = 0; i < c; i++)
            x[r * c + i] = tape_axpy(t, 1, out[i], x[r * c + i]);
        tape_layernorm(t, x + r * c, w[PTB_BLOCK_NORM2_GAIN], w[PTB_BLOCK_NORM2_BIAS], c, norm);
        tape_linear(t, w[PTB_BLOCK_UP_WEIGHT], w[PTB_BLOCK_UP_BIAS], norm, 4 * c, c, up);
        for (size_t i = 0; i < 4 * c; i++)
            up[i] = tape_gelu(t, up[i]);
        tape_linear(t, w[PTB_BLOCK_DOWN_WEIGHT], w[PTB_BLOCK_DOWN_BIAS], up, c, 4 * c, out);
        for (size_t i = 0; i < c; i++)
            x[r * c + i] = tape_axpy(t, 1, out[i], x[r * c + i]);
    }
    free(norm), free(qkv), free(mixed), free(out), free(up);
}

// Mean loss of the batch; p [layout.count] are leaves.
static var tape_gpt(tape *t, const gpt_case *c, const var *p)
{
    const ptb_model_shape *s = &c->layout.shape;
    size_t width = (size_t)s->hidden, vocabulary = (size_t)s->vocabulary, last = c->layout.units - 1;
    const ptb_unit *embedding = &c->layout.unit[0], *head = &c->layout.unit[last];
    const var *table = p + embedding->first + ptb_unit_tensor(embedding, PTB_EMBED_TOKENS)->first;
    const var *positions = p + embedding->first + ptb_unit_tensor(embedding, PTB_EMBED_POSITIONS)->first;
    const var *weight = s->tied ? table : p + head->first + ptb_unit_tensor(head, PTB_HEAD_WEIGHT)->first;
    var *x = malloc(c->tokens * width * sizeof *x), *norm = malloc(width * sizeof *norm);
    var *logits = malloc(vocabulary * sizeof *logits), loss = tape_leaf(t, 0);
    for (size_t r = 0; r < c->tokens; r++)
        for (size_t i = 0; i < width; i++)
            x[r * width + i] = tape_axpy(t, 1, table[(size_t)c->inputs[r] * width + i],
                                         positions[r % (size_t)s->sequence * width + i]);
    for (size_t u = 1; u < last; u++)
        tape_block(t, s, &c->layout.unit[u], p, c->batch, x);
    for (size_t r = 0; r < c->tokens; r++) {
        tape_layernorm(t, x + r * width, p + head->first + ptb_unit_tensor(head, PTB_HEAD_NORM_GAIN)->first,
                       p + head->first + ptb_unit_tensor(head, PTB_HEAD_NORM_BIAS)->first, width, norm);
        tape_linear(t, weight, NULL, norm, vocabulary, width, logits);
        loss = tape_axpy(t, 1.0 / (double)c->tokens,
                         tape_cross_entropy(t, logits, vocabulary, (size_t)c->targets[r]), loss);
    }
    free(x), free(norm), free(logits);
    return loss;
}

// Loss at the case's parameters with parameter `index` moved by `delta`; gradients [layout.count] when not
// NULL.
static double reference(const gpt_case *c, size_t index, double delta, double *gradients)
{
    tape t = {0};
    var *p = malloc(c->layout.count * sizeof *p);
    for (size_t i = 0; i < c->layout.count; i++)
        p[i] = tape_leaf(&t, c->parameters[i] + (i == index ? delta : 0));
    var loss = tape_gpt(&t, c, p);
    double value = tape_value(&t, loss);
    if (gradients) {
        tape_backward(&t, loss);
        for (size_t i = 0; i < c->layout.count; i++)
            gradients[i] = t.nodes[p[i]].gradient;
    }
    free(p);
    tape_release(&t);
    return value;
}

static void test_reference(void **state)
{
    (void)state;
    gpt_case c;
    case_init(&c, gpt2(2, 6, 2, 5, 7, false), 2);
    double *gradients = calloc(c.layout.count, sizeof *gradients);
    reference(&c, 0, 0, gradients);
    for (size_t u = 0; u < c.layout.units; u++)
        for (size_t k = 0; k < c.layout.unit[u].tensors; k++) {
            const ptb_tensor *tensor = &c.layout.unit[u].tensor[k];
            size_t i = c.layout.unit[u].first + tensor->first + ptb_tensor_count(tensor) / 2;
            double slope = (reference(&c, i, 1e-5, NULL) - reference(&c, i, -1e-5, NULL)) / 2e-5;
            assert_true(fabs(slope - gradients[i]) < 1e-7);
        }
    free(gradients);
    case_release(&c);
}

static ptb_status note_ready(void *context, size_t unit, size_t first)
{
    size_t *last = context; // [units], what was announced last
    assert_true(last[unit] == SIZE_MAX || first < last[unit]);
    last[unit] = first;
    return PTB_OK;
}

static void unit_memory(const gpt_case *c, const float *parameters, float *gradients, size_t u,
                        ptb_unit_memory *memory)
{
    const ptb_unit *unit = &c->layout.unit[u];
    *memory = (ptb_unit_memory){.parameters = parameters + unit->first, .gradients = gradients + unit->first};
    if (c->layout.shape.tied && unit->kind == PTB_UNIT_HEAD) {
        memory->tied_parameters = parameters;
        memory->tied_gradients = gradients;
    }
}

// Runs the engine `passes` times with accumulation.
static double engine(const gpt_case *c, int threads, int passes, float *out)
{
    fixture *f;
    ptb_model *model;
    assert_int_equal(kernels_setup_repeatable((void **)&f), 0);
    float *parameters = copy_of(c->parameters, c->layout.count), *gradients = copy_of(out, c->layout.count);
    double *loss = test_memory(sizeof *loss);
    ptb_stream *stream = f->stream;
    ptb_model_config config = {.device = f->device,
                               .stream = stream,
                               .kernels = f->kernels,
                               .layout = &c->layout,
                               .batch = (int64_t)c->batch,
                               .threads = threads,
                               .type = PTB_F32};
    uint64_t bytes[PTB_MEMORY_COUNT], before[PTB_MEMORY_COUNT]; // before: what kernels keep with the stream
    memcpy(before, f->device->used_bytes, sizeof before);
    assert_int_equal(ptb_model_new(&config, &model), PTB_OK);
    ptb_model_memory(&config, bytes);
    for (int i = 0; i < PTB_MEMORY_COUNT; i++)
        assert_int_equal(bytes[i], f->device->used_bytes[i] - before[i]);
    size_t *last = malloc(c->layout.units * sizeof *last);
    for (int pass = 0; pass < passes; pass++) {
        memset(last, 0xff, c->layout.units * sizeof *last);
        ptb_gradient_ready ready = {note_ready, last};
        ptb_unit_memory memory;
        assert_int_equal(ptb_stream_copy(stream, ptb_model_inputs(model, 0), c->inputs, c->tokens * 4),
                         PTB_OK);
        assert_int_equal(ptb_stream_copy(stream, ptb_model_targets(model, 0), c->targets, c->tokens * 4),
                         PTB_OK);
        ptb_microbatch microbatch = {.scale = 1.0 / (double)c->tokens, .share = 1};
        assert_int_equal(ptb_model_begin(model, 0, &microbatch), PTB_OK);
        for (size_t u = 0; u < c->layout.units; u++) {
            unit_memory(c, parameters, gradients, u, &memory);
            assert_int_equal(ptb_model_forward(model, 0, u, &memory), PTB_OK);
        }
        assert_int_equal(ptb_model_loss(model, 0, &memory, pass > 0, pass > 0, loss), PTB_OK);
        for (size_t u = c->layout.units; u-- > 0;) {
            unit_memory(c, parameters, gradients, u, &memory);
            assert_int_equal(ptb_model_backward(model, 0, u, &memory, PTB_BACKWARD_BOTH, pass > 0, &ready),
                             PTB_OK);
        }
        assert_int_equal(ptb_stream_sync(stream), PTB_OK);
        for (size_t u = 0; u < c->layout.units; u++)
            assert_int_equal(last[u], 0);
    }
    double value = *loss;
    memcpy(out, gradients, c->layout.count * sizeof *out);
    free(last);
    ptb_model_free(model);
    test_memory_free(parameters), test_memory_free(gradients), test_memory_free(loss);
    kernels_teardown((void **)&f);
    return value;
}

static void check_model(ptb_model_shape shape, size_t batch, int threads)
{
    gpt_case c;
    case_init(&c, shape, batch);
    double *wanted = calloc(c.layout.count, sizeof *wanted);
    float *gradients = calloc(c.layout.count, sizeof *gradients);
    double loss = reference(&c, 0, 0, wanted);
    double got = engine(&c, threads, 1, gradients);
    if (!(fabs(got / loss - 1) < 1e-5))
        fail_msg("loss %.9g instead of %.9g", got, loss);
    for (int twice = 0; twice < 2; twice++) {
        for (size_t u = 0; u < c.layout.units; u++)
            for (size_t k = 0; k < c.layout.unit[u].tensors; k++) {
                const ptb_tensor *tensor = &c.layout.unit[u].tensor[k];
                size_t first = c.layout.unit[u].first + tensor->first;
                double distance = tape_distance(gradients + first, wanted + first, ptb_tensor_count(tensor));
                if (!(distance < 1e-5))
                    fail_msg("unit %zu, %s: relative distance %g", u, tensor->name, distance);
            }
        if (twice)
            break;
        engine(&c, threads, 2, gradients); // two passes add up
        for (size_t i = 0; i < c.layout.count; i++)
            wanted[i] *= 2;
    }
    free(wanted), free(gradients);
    case_release(&c);
}

static void test_model(void **state)
{
    (void)state;
    check_model(gpt2(1, 1, 1, 1, 2, false), 1, 1);
    check_model(gpt2(2, 12, 3, 7, 11, false), 3, 1);
    check_model(gpt2(2, 12, 3, 7, 11, true), 3, 2);
    check_model(gpt2(1, 10, 2, 67, 13, true), 1, 1);
    check_model(gpt2(3, 21, 7, 5, 17, true), 2, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference),
        cmocka_unit_test(test_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
