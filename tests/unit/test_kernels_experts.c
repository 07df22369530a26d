// Where rows and choices of several ranks go (kernels.h, ptb_expert_order) against the definition in plain
// loops.
#include "tests/unit/kernels_fixture.h"

#include "strategies/transformer/kernels_host.h"

// Memory around the results must stay as it is.
static void *spotted(size_t count)
{
    uint32_t *a = test_memory((count + 1) * sizeof *a);
    for (size_t i = 0; i <= count; i++)
        a[i] = 0xabcdabcd;
    return a;
}

typedef struct {
    size_t sources, experts, first, local, capacity, block, stride; // block 0: rows without gaps
    bool slots;                                                     // all choices of each source
} order_case;

typedef struct {
    size_t elements;
    int32_t *counts, *slot, *place, *offsets; // the last two wanted
    float *weight;
} ordered;

static int32_t kept(const order_case *c, int32_t count)
{
    return c->capacity && (size_t)count > c->capacity ? (int32_t)c->capacity : count;
}

// Choices of the experts in a mixed order, with the slots that ptb_route gives them.
static void order_choices(const order_case *c, ordered *o, size_t source, const int32_t *counts)
{
    size_t i = source * c->stride, end = i + c->block;
    for (size_t turn = 0; i < end; turn++) {
        size_t e = turn * 7 % c->experts, round = turn / c->experts;
        int32_t begin = 0;
        for (size_t before = 0; before < e; before++)
            begin += kept(c, counts[before]);
        if (round < (size_t)counts[e])
            o->slot[i++] = c->capacity && round >= c->capacity ? -1 : begin + (int32_t)round;
    }
}

// What every source has; every fourth expert gets nothing.
static ordered order_new(const order_case *c)
{
    ordered o = {.counts = test_memory(c->sources * c->stride * sizeof(int32_t)),
                 .slot = test_memory(c->sources * c->stride * sizeof(int32_t)),
                 .weight = numbers(c->sources * c->stride, 3),
                 .offsets = calloc(c->local + 1, sizeof(int32_t))};
    for (size_t s = 0; s < c->sources; s++) {
        size_t left = c->block;
        for (size_t e = 0; e < c->experts; e++) {
            int32_t n = (int32_t)(ptb_random_u64(8, s, e) % 6) * (e % 4 != 3);
            if (c->slots && ((size_t)n > left || e + 1 == c->experts)) // every choice is of some expert
                n = (int32_t)left;
            left -= c->slots ? (size_t)n : 0;
            o.counts[s * c->stride + e] = n;
            o.elements += (size_t)kept(c, n);
        }
        if (c->slots)
            order_choices(c, &o, s, o.counts + s * c->stride);
    }
    o.elements = c->block ? c->sources * c->block : o.elements;
    o.place = malloc((o.elements + 1) * sizeof *o.place);
    for (size_t i = 0; i < o.elements; i++)
        o.place[i] = -1;
    return o;
}

// Places from `next` on for a source's rows of one expert, which are the begin-th to end-th there; its
// elements begin at `at`, `count` of them.
static void place_rows(const order_case *c, ordered *o, size_t source, size_t at, size_t count, int32_t begin,
                       int32_t end, int32_t next)
{
    for (int32_t j = begin; j < end; j++, next++)
        for (size_t i = 0; i < count; i++)
            if ((c->slots ? o->slot[source * c->stride + i] : (int32_t)i) == j)
                o->place[at + i] = next;
}

// The definition in kernels.h, literally.
static ordered order_plainly(const order_case *c)
{
    ordered o = order_new(c);
    int32_t next = 0;
    for (size_t e = c->first; e < c->first + c->local; e++) {
        size_t at = 0;
        o.offsets[e - c->first] = next;
        for (size_t s = 0; s < c->sources; s++) {
            const int32_t *counts = o.counts + s * c->stride;
            int32_t begin = 0, rows = 0, n = kept(c, counts[e]);
            for (size_t i = 0; i < c->experts; i++) {
                begin += i < e ? kept(c, counts[i]) : 0;
                rows += kept(c, counts[i]);
            }
            size_t count = c->block ? c->block : (size_t)rows;
            place_rows(c, &o, s, at, count, begin, begin + n, next);
            next += n;
            at += count;
        }
    }
    o.offsets[c->local] = next;
    return o;
}

static void check_order(fixture *f, const order_case *c)
{
    ordered o = order_plainly(c);
    int32_t *place = spotted(o.elements), *offsets = spotted(c->local + 1);
    float *weights = spotted(o.elements);
    ptb_expert_order args = {.place = place,
                             .offsets = offsets,
                             .weights = c->slots ? weights : NULL,
                             .slot = c->slots ? o.slot : NULL,
                             .weight = c->slots ? o.weight : NULL,
                             .counts = o.counts,
                             .sources = c->sources,
                             .elements = o.elements,
                             .block = c->block,
                             .stride = c->stride,
                             .experts = c->experts,
                             .first = c->first,
                             .local = c->local,
                             .capacity = c->capacity};
    finish(f, f->kernels->expert_order(f->stream, &args));
    assert_memory_equal(place, o.place, o.elements * sizeof *place);
    assert_memory_equal(offsets, o.offsets, (c->local + 1) * sizeof *offsets);
    for (size_t i = 0; c->slots && i < o.elements; i++)
        assert_true(weights[i] == o.weight[i / c->block * c->stride + i % c->block]);
    const void *ends[] = {place + o.elements, offsets + c->local + 1, weights + o.elements};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        assert_memory_equal(ends[i], &(uint32_t){0xabcdabcd}, 4);
    void *all[] = {place, offsets, weights, o.counts, o.slot, o.weight};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        test_memory_free(all[i]);
    free(o.place), free(o.offsets);
}

static void test_expert_order(void **state)
{
    fixture *f = *state;
    static const order_case some[] = {
        // rows without gaps, rows in blocks, choices
        {2, 3, 0, 3, 0, 0, 3, false},       {1, 1, 0, 1, 0, 0, 1, false},
        {7, 40, 0, 40, 0, 0, 41, false},    {3, 4, 0, 4, 2, 8, 4, false},
        {2, 5, 0, 5, 0, 25, 6, false},      {8, 1, 0, 1, 3, 3, 1, false},
        {2, 6, 3, 3, 0, 30, 40, true},      {3, 8, 0, 2, 4, 33, 33, true},
        {4, 64, 48, 16, 0, 700, 800, true}, {2, 300, 100, 50, 3, 333, 400, true},
        {1, 2, 1, 1, 0, 1, 2, true},        {2, 1024, 1000, 24, 0, 2000, 2048, true},
    };
    for (int threads = 1; threads <= 3; threads += 2) {
        assert_int_equal(f->kernels->set_threads(f->stream, threads), PTB_OK);
        for (size_t i = 0; i < sizeof some / sizeof *some; i++)
            check_order(f, &some[i]);
    }
    ptb_expert_order bad = {.experts = 4, .first = 2, .local = 3};
    if (test_on_host()) // on its stream, which an error would stop
        assert_int_equal(ptb_host_run_expert_order(&bad), PTB_USAGE);
    else
        assert_int_equal(f->kernels->expert_order(f->stream, &bad), PTB_USAGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_expert_order, kernels_setup, kernels_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
