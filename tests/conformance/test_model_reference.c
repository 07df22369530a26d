// The engine, on the device under test (kernels_fixture.h), against the reference transformer
// (tests/unit/reference_model.h): loss, logits and every parameter tensor's gradient, for every option of the
// blocks alone and together, every compute type, and every way to run a pass (recomputation, microbatches,
// deferred weight gradients).
#include "tests/unit/kernels_fixture.h"
#include "tests/unit/model_cases.h"

#include <stdio.h>

// How the engine is run; zeros: the plain way.
typedef struct {
    const char *name;
    ptb_dtype type;
    ptb_recompute recompute;
    int64_t every, loss_rows;
    bool deferred;    // all weight gradients after all input gradients, in ascending order of units
    bool interleaved; // microbatches in slots of their own: all forwards, then all backwards
    int microbatches, threads;
} engine_way;

typedef struct {
    double loss;
    float *gradients; /* [layout.count] */
    float *logits;    /* [rows, vocabulary] */
} engine_result;

typedef struct {
    const model_data *data;
    const engine_way *way;
    fixture *fixture;
    ptb_stream *stream;
    ptb_model *model;
    // Memory that the device and the test see.
    void *parameters; /* [layout.count], compute type */
    float *factor;    // loss scale
    float *gradients, *logits;
    double *loss;
} engine;

enum { SEQUENCES = 2 };

static void ok(ptb_status status)
{
    assert_int_equal(status, PTB_OK);
}

static ptb_unit_memory memory_of(engine *e, size_t u)
{
    const ptb_layout *l = &e->data->layout;
    size_t bytes = ptb_dtype_size(e->way->type);
    ptb_unit_memory memory = {.parameters = (char *)e->parameters + l->unit[u].first * bytes,
                              .gradients = e->gradients + l->unit[u].first};
    if (l->shape.tied && l->unit[u].kind == PTB_UNIT_HEAD) {
        memory.tied_parameters = e->parameters;
        memory.tied_gradients = e->gradients;
    }
    return memory;
}

// The microbatch's part of the whole batch.
static ptb_microbatch place_of(const model_data *d, int microbatch, int microbatches)
{
    ptb_microbatch place = d->batch.place;
    place.sequence += (uint64_t)(microbatch * SEQUENCES / microbatches);
    place.share /= microbatches;
    return place;
}

static void forward(engine *e, int slot, int microbatch)
{
    const model_data *d = e->data;
    size_t rows = d->rows / (size_t)e->way->microbatches, first = rows * (size_t)microbatch;
    size_t units = d->layout.units, vocabulary = (size_t)d->layout.shape.vocabulary;
    ptb_microbatch place = place_of(d, microbatch, e->way->microbatches);
    place.factor = *e->factor == 1 ? NULL : e->factor;
    ok(ptb_model_begin(e->model, slot, &place));
    ok(ptb_stream_copy(e->stream, ptb_model_inputs(e->model, slot), d->inputs + first, rows * 4));
    ok(ptb_stream_copy(e->stream, ptb_model_targets(e->model, slot), d->targets + first, rows * 4));
    if (d->what->packed)
        ok(ptb_stream_copy(e->stream, ptb_model_starts(e->model, slot), d->starts + first, rows * 4));
    for (size_t u = 0; u < units; u++) {
        ptb_unit_memory memory = memory_of(e, u);
        ok(ptb_model_forward(e->model, slot, u, &memory));
    }
    ptb_unit_memory memory = memory_of(e, units - 1);
    ok(ptb_model_logits(e->model, slot, &memory, 0, rows, e->logits + first * vocabulary));
    ok(ptb_model_loss(e->model, slot, &memory, microbatch > 0, microbatch > 0, e->loss));
}

static void backward(engine *e, int slot, int microbatch)
{
    size_t units = e->data->layout.units;
    bool add = microbatch > 0;
    for (size_t u = units; u-- > 0;) {
        ptb_unit_memory memory = memory_of(e, u);
        ok(ptb_model_backward(e->model, slot, u, &memory,
                              e->way->deferred ? PTB_BACKWARD_INPUT : PTB_BACKWARD_BOTH, add, NULL));
    }
}

static void weight_gradients(engine *e, int slot, int microbatch)
{
    for (size_t u = 0; e->way->deferred && u < e->data->layout.units; u++) {
        ptb_unit_memory memory = memory_of(e, u);
        ok(ptb_model_backward(e->model, slot, u, &memory, PTB_BACKWARD_WEIGHT, microbatch > 0, NULL));
    }
}

static void pass(engine *e)
{
    int n = e->way->microbatches;
    if (!e->way->interleaved) {
        for (int i = 0; i < n; i++)
            forward(e, 0, i), backward(e, 0, i), weight_gradients(e, 0, i);
        return;
    }
    for (int i = 0; i < n; i++)
        forward(e, i, i);
    for (int i = 0; i < n; i++)
        backward(e, i, i);
    for (int i = 0; i < n; i++)
        weight_gradients(e, i, i);
}

static void open_engine(engine *e)
{
    const ptb_layout *l = &e->data->layout;
    ptb_dtype type = e->way->type;
    size_t element = ptb_dtype_size(type), logits = e->data->rows * (size_t)l->shape.vocabulary;
    assert_int_equal(kernels_setup_repeatable((void **)&e->fixture), 0);
    e->stream = e->fixture->stream;
    e->factor = test_memory_of(&(float){type == PTB_F16 ? 256 : 1}, sizeof *e->factor);
    e->loss = test_memory_of(&(double){1000}, sizeof *e->loss);
    e->logits = test_memory(logits * sizeof *e->logits);
    e->gradients = test_memory(l->count * sizeof *e->gradients);
    memset(e->gradients, 0x7f, l->count * sizeof *e->gradients); // nobody clears them before
    e->parameters = test_memory(l->count * element);
    for (size_t i = 0; i < l->count; i++)
        ptb_dtype_store(type, (char *)e->parameters + i * element, e->data->parameters[i]);
}

static engine_result close_engine(engine *e)
{
    size_t count = e->data->layout.count, logits = e->data->rows * (size_t)e->data->layout.shape.vocabulary;
    engine_result result = {*e->loss, malloc(count * sizeof(float)), malloc(logits * sizeof(float))};
    for (size_t i = 0; i < count; i++)
        result.gradients[i] = e->gradients[i] / *e->factor;
    memcpy(result.logits, e->logits, logits * sizeof(float));
    test_memory_free(e->parameters), test_memory_free(e->gradients), test_memory_free(e->logits);
    test_memory_free(e->loss), test_memory_free(e->factor);
    kernels_teardown((void **)&e->fixture);
    return result;
}

static engine_result run_engine(const model_data *d, const engine_way *way)
{
    engine e = {.data = d, .way = way};
    open_engine(&e);
    ptb_model_config config = {.device = e.fixture->device,
                               .stream = e.stream,
                               .kernels = e.fixture->kernels,
                               .layout = &d->layout,
                               .batch = SEQUENCES / way->microbatches,
                               .threads = way->threads ? way->threads : 1,
                               .type = way->type,
                               .slots = way->interleaved ? way->microbatches : 1,
                               .deferred = way->deferred,
                               .recompute = way->recompute,
                               .recompute_every = way->every,
                               .loss_rows = way->loss_rows,
                               .packed = d->what->packed,
                               .seed = d->batch.seed};
    ok(ptb_model_new(&config, &e.model));
    pass(&e);
    ok(ptb_stream_sync(e.stream));
    ptb_model_free(e.model);
    return close_engine(&e);
}

static void free_result(engine_result *r)
{
    free(r->gradients), free(r->logits);
}

// The reference of the whole batch, as so many microbatches.
typedef struct {
    double loss, *gradients, *logits;
} wanted_result;

static wanted_result run_reference(const model_data *d, int microbatches)
{
    size_t vocabulary = (size_t)d->layout.shape.vocabulary, rows = d->rows / (size_t)microbatches;
    wanted_result w = {0, reference_numbers(d->layout.count), reference_numbers(d->rows * vocabulary)};
    for (int i = 0; i < microbatches; i++) {
        reference_batch batch = d->batch;
        size_t first = rows * (size_t)i;
        batch.batch = (size_t)(SEQUENCES / microbatches);
        batch.inputs += first;
        batch.targets += first;
        batch.starts = batch.starts ? batch.starts + first : NULL;
        batch.place = place_of(d, i, microbatches);
        w.loss += reference_run(&batch, d->parameters, w.gradients, w.logits + first * vocabulary).loss;
    }
    return w;
}

static void free_wanted(wanted_result *w)
{
    free(w->gradients), free(w->logits);
}

// ||got - wanted|| / ||wanted||; where the true value is zero, and only rounding errors are left of what
// cancels, ||got - wanted|| beside 0.01, a small gradient here.
static double distance(const float *got, const double *wanted, size_t count)
{
    double difference = 0, norm = 0;
    for (size_t i = 0; i < count; i++) {
        difference += (got[i] - wanted[i]) * (got[i] - wanted[i]);
        norm += wanted[i] * wanted[i];
    }
    return sqrt(difference) / (norm > 1e-20 ? sqrt(norm) : 0.01);
}

static double limit_of(ptb_dtype type)
{
    return type == PTB_F32 ? 1e-5 : type == PTB_BF16 ? 2e-2 : 5e-3;
}

// Says what is wrong and goes on: which cases fail together tells where the fault is.
static __attribute__((format(printf, 2, 3))) void complain(int *wrong, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    ++*wrong;
}

// Returns how many comparisons failed.
static int compare(const model_data *d, const engine_way *way, const engine_result *got,
                   const wanted_result *wanted)
{
    const ptb_layout *l = &d->layout;
    int wrong = 0;
    double limit = limit_of(way->type);
    const char *type = ptb_dtype_name(way->type);
    if (!(fabs(got->loss - wanted->loss) <= limit * fabs(wanted->loss)))
        complain(&wrong, "%s, %s, %s: loss %.9g, wanted %.9g\n", d->what->name, type, way->name, got->loss,
                 wanted->loss);
    double away = distance(got->logits, wanted->logits, d->rows * (size_t)l->shape.vocabulary);
    if (!(away < limit))
        complain(&wrong, "%s, %s, %s: logits are %g away\n", d->what->name, type, way->name, away);
    for (size_t u = 0; u < l->units; u++)
        for (size_t t = 0; t < l->unit[u].tensors; t++) {
            const ptb_tensor *tensor = &l->unit[u].tensor[t];
            size_t first = l->unit[u].first + tensor->first;
            away = distance(got->gradients + first, wanted->gradients + first, ptb_tensor_count(tensor));
            if (getenv("SHOW"))
                fprintf(stderr, "AWAY %s %s %s %g\n", type, d->what->name, tensor->name, away);
            if (!(away < limit))
                complain(&wrong, "%s, %s, %s: unit %zu, gradient of %s is %g away\n", d->what->name, type,
                         way->name, u, tensor->name, away);
        }
    return wrong;
}

// No choice of an expert may hang on a rounding.
static double margin_of(ptb_dtype type)
{
    return type == PTB_F32 ? 1e-3 : type == PTB_BF16 ? 0.1 : 0.02;
}

// Runs a case in several ways of the same type; returns how many comparisons failed.
static int check_case(const model_case *c, model_size size, const engine_way *ways, size_t count)
{
    int wrong = 0;
    model_data d;
    model_data_init(&d, c, size, SEQUENCES, ways->type, size == MODEL_LONG ? 2e-4 : margin_of(ways->type));
    for (size_t w = 0; w < count; w++) {
        wanted_result wanted = run_reference(&d, ways[w].microbatches);
        engine_result got = run_engine(&d, &ways[w]);
        wrong += compare(&d, &ways[w], &got, &wanted);
        free_result(&got);
        free_wanted(&wanted);
    }
    model_data_release(&d);
    return wrong;
}

static void check_ways(const engine_way *ways, size_t count)
{
    int wrong = 0;
    for (size_t i = 0; i < MODEL_CASES; i++)
        wrong += check_case(&model_cases[i], MODEL_ODD, ways, count);
    assert_int_equal(wrong, 0);
}

static void test_f32(void **state)
{
    (void)state;
    static const engine_way ways[] = {
        {.name = "plain", .type = PTB_F32, .microbatches = 1},
        {.name = "2 microbatches", .type = PTB_F32, .microbatches = 2},
        {.name = "2 slots, deferred, recompute 0",
         .type = PTB_F32,
         .microbatches = 2,
         .interleaved = true,
         .deferred = true,
         .recompute = PTB_RECOMPUTE_FULL,
         .every = 2,
         .loss_rows = 5},
    };
    check_ways(ways, sizeof ways / sizeof *ways);
}

static void test_bf16(void **state)
{
    (void)state;
    static const engine_way ways[] = {
        {.name = "plain", .type = PTB_BF16, .microbatches = 1},
        {.name = "2 slots, deferred",
         .type = PTB_BF16,
         .microbatches = 2,
         .interleaved = true,
         .deferred = true},
    };
    check_ways(ways, sizeof ways / sizeof *ways);
}

static void test_f16(void **state)
{
    (void)state;
    static const engine_way ways[] = {
        {.name = "plain", .type = PTB_F16, .microbatches = 1},
        {.name = "2 slots, deferred",
         .type = PTB_F16,
         .microbatches = 2,
         .interleaved = true,
         .deferred = true},
    };
    check_ways(ways, sizeof ways / sizeof *ways);
}

static bool is_combined(const model_case *c)
{
    return c->packed && c->holes;
}

// All options at once in sizes at which every kernel has several tiles, and the loss several chunks of rows.
// 16-bit types without experts, whose choices would hang on roundings in so many rows.
static void test_long(void **state)
{
    (void)state;
    int wrong = 0, tried = 0;
    for (size_t i = 0; i < MODEL_CASES; i++) {
        const model_case *c = &model_cases[i];
        for (int t = 0; t < 3 && is_combined(c); t++) {
            engine_way way = {.name = "long",
                              .type = (ptb_dtype[]){PTB_F32, PTB_BF16, PTB_F16}[t],
                              .microbatches = 1,
                              .threads = 2};
            if (t > 0 && c->shape.experts)
                continue;
            wrong += check_case(c, MODEL_LONG, &way, 1);
            tried++;
        }
    }
    assert_int_equal(wrong, 0);
    assert_int_equal(tried, 7);
}

// Returns how many tensors' gradients differ in any bit, the loss counted with them.
static int compare_bits(const model_data *d, const engine_way *way, const engine_result *got,
                        const engine_result *wanted)
{
    int wrong = 0;
    const char *type = ptb_dtype_name(way->type), *name = d->what->name;
    for (size_t u = 0; u < d->layout.units; u++)
        for (size_t t = 0; t < d->layout.unit[u].tensors; t++) {
            const ptb_tensor *tensor = &d->layout.unit[u].tensor[t];
            size_t first = d->layout.unit[u].first + tensor->first;
            if (memcmp(got->gradients + first, wanted->gradients + first,
                       ptb_tensor_count(tensor) * sizeof(float)))
                complain(&wrong, "%s, %s: '%s' changes the gradient of %s, unit %zu\n", name, type, way->name,
                         tensor->name, u);
        }
    if (memcmp(&got->loss, &wanted->loss, sizeof got->loss))
        complain(&wrong, "%s, %s: '%s' changes the loss\n", name, type, way->name);
    return wrong;
}

// What is computed again, kept for later or done by more threads is the same, bit by bit.
static int check_bits(const model_case *c, ptb_dtype type)
{
    static const engine_way ways[] = {
        {.name = "selective", .recompute = PTB_RECOMPUTE_SELECTIVE},
        {.name = "full", .recompute = PTB_RECOMPUTE_FULL},
        {.name = "every second", .recompute = PTB_RECOMPUTE_FULL, .every = 2},
        {.name = "deferred", .deferred = true},
        {.name = "deferred, selective", .deferred = true, .recompute = PTB_RECOMPUTE_SELECTIVE},
        {.name = "deferred, full", .deferred = true, .recompute = PTB_RECOMPUTE_FULL},
        {.name = "deferred, every second", .deferred = true, .recompute = PTB_RECOMPUTE_FULL, .every = 2},
        {.name = "3 threads", .threads = 3},
    };
    int wrong = 0;
    model_data d;
    model_data_init(&d, c, MODEL_ODD, SEQUENCES, type, 0);
    engine_way plain = {.name = "plain", .type = type, .microbatches = 2};
    engine_result wanted = run_engine(&d, &plain);
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        engine_way way = ways[w];
        if (way.threads && !is_combined(c))
            continue; // more threads than cores are slow, and kernels have their own tests
        way.type = type;
        way.microbatches = 2;
        engine_result got = run_engine(&d, &way);
        wrong += compare_bits(&d, &way, &got, &wanted);
        free_result(&got);
    }
    free_result(&wanted);
    model_data_release(&d);
    return wrong;
}

static void test_bits(void **state)
{
    (void)state;
    int wrong = 0;
    for (size_t i = 0; i < MODEL_CASES; i++) {
        const model_case *c = &model_cases[i];
        wrong += check_bits(c, PTB_F32);
        if (is_combined(c)) // 16-bit types: all options at once only
            wrong += check_bits(c, PTB_BF16) + check_bits(c, PTB_F16);
    }
    assert_int_equal(wrong, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f32),  cmocka_unit_test(test_bf16), cmocka_unit_test(test_f16),
        cmocka_unit_test(test_long), cmocka_unit_test(test_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
