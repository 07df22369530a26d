// The kernels of a mixture of experts for the benchmark `kernels`. Logits are multiples of 1/64, so that
// choices do not hang on rounding.
#include "strategies/kernels_bench.h"

#include "core/log.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const places[] = {"block", NULL};

static const char *absent(const ptb_model_shape *shape, const char *place)
{
    (void)place;
    return shape->experts ? NULL : "the model has no experts (--experts)";
}

enum {
    LOGITS,
    PROBABILITIES,
    EXPERT,
    WEIGHT,
    SLOT,
    OFFSETS,
    COUNTS,
    LOSS,
    D_WEIGHT,
    OUT,
    IN,
    RESIDUAL,
    SUMS = IN
};

static size_t experts(const ptb_kernel_call *c)
{
    return (size_t)c->shape->experts;
}

static size_t top_k(const ptb_kernel_call *c)
{
    return (size_t)c->shape->top_k;
}

static size_t width(const ptb_kernel_call *c)
{
    return (size_t)c->shape->hidden;
}

static size_t capacity(const ptb_kernel_call *c)
{
    double even = (double)(c->rows * top_k(c)) / (double)experts(c);
    return c->shape->capacity_factor > 0 ? (size_t)ceil(c->shape->capacity_factor * even) : 0;
}

// Where rows go, by plain loops.
typedef struct {
    float *logits;          /* [rows, experts] */
    float *probabilities;   /* [rows, experts] */
    float *weight;          /* [rows, top_k] */
    int32_t *expert, *slot; /* [rows, top_k] */
    int32_t *offsets;       /* [experts + 1] */
    int32_t *counts;        /* [experts] */
} routing;

static void routing_free(routing *r)
{
    free(r->logits);
    free(r->probabilities);
    free(r->weight);
    free(r->expert);
    free(r->slot);
    free(r->offsets);
    free(r->counts);
}

static void choose(const ptb_kernel_call *c, routing *r, size_t row)
{
    size_t n = experts(c), k_max = top_k(c);
    const float *logits = r->logits + row * n;
    float *p = r->probabilities + row * n, *weight = r->weight + row * k_max;
    int32_t *expert = r->expert + row * k_max;
    double sum = 0, chosen = 0;
    for (size_t e = 0; e < n; e++)
        sum += exp((double)logits[e]);
    for (size_t e = 0; e < n; e++)
        p[e] = (float)(exp((double)logits[e]) / sum);
    for (size_t k = 0; k < k_max; k++) {
        expert[k] = -1;
        for (size_t e = 0; e < n; e++) {
            bool is_taken = false;
            for (size_t before = 0; before < k; before++)
                is_taken = is_taken || expert[before] == (int32_t)e;
            if (!is_taken && (expert[k] < 0 || logits[e] > logits[expert[k]]))
                expert[k] = (int32_t)e;
        }
        weight[k] = p[expert[k]];
        chosen += (double)weight[k];
        r->counts[expert[k]]++;
    }
    for (size_t k = 0; k < k_max && c->shape->normalise; k++)
        weight[k] = (float)((double)weight[k] / chosen);
}

static void place_choices(const ptb_kernel_call *c, routing *r)
{
    int32_t next = 0;
    size_t most = capacity(c), choices = c->rows * top_k(c);
    for (size_t e = 0; e < experts(c); e++) {
        size_t taken = 0;
        r->offsets[e] = next;
        for (size_t i = 0; i < choices; i++) {
            if (r->expert[i] != (int32_t)e)
                continue;
            r->slot[i] = most && taken >= most ? -1 : next++;
            taken++;
        }
    }
    r->offsets[experts(c)] = next;
}

static bool route_rows(ptb_kernel_call *c, routing *r)
{
    size_t rows = c->rows, n = experts(c), choices = rows * top_k(c);
    *r = (routing){.logits = malloc(rows * n * sizeof(float)),
                   .probabilities = malloc(rows * n * sizeof(float)),
                   .weight = malloc(choices * sizeof(float)),
                   .expert = malloc(choices * sizeof(int32_t)),
                   .slot = malloc(choices * sizeof(int32_t)),
                   .offsets = calloc(n + 1, sizeof(int32_t)),
                   .counts = calloc(n, sizeof(int32_t))};
    if (!r->logits || !r->probabilities || !r->weight || !r->expert || !r->slot || !r->offsets ||
        !r->counts) {
        ptb_error("no memory to route %zu rows to %zu experts", rows, n);
        c->status = PTB_NO_MEMORY;
        return false;
    }
    for (size_t i = 0; i < rows * n; i++)
        r->logits[i] = floorf(c->noise[i % PTB_CALL_PERIOD] * 128) / 64;
    for (size_t row = 0; row < rows; row++)
        choose(c, r, row);
    place_choices(c, r);
    return true;
}

static void check_integer(const ptb_kernel_call *c, ptb_verdict *verdict, const char *name, int slot,
                          size_t i, int32_t wanted)
{
    double got = ptb_call_result(c, slot, i);
    verdict->checked++;
    if (got != (double)wanted && !verdict->wrong++)
        snprintf(verdict->detail, sizeof verdict->detail, "%s, element %zu: wanted %d, got %.10g", name, i,
                 (int)wanted, got);
}

static ptb_call_sum exactly(double value)
{
    return (ptb_call_sum){value, 0};
}

// ---- route

static double share(const ptb_kernel_call *c)
{
    return 1 / (double)(c->rows * top_k(c)) / (double)c->rows;
}

static void prepare_route(ptb_kernel_call *c)
{
    size_t rows = c->rows, n = experts(c), choices = rows * top_k(c);
    routing r;
    double zero = 0;
    if (route_rows(c, &r)) {
        ptb_route a = {.probabilities = ptb_call_output(c, PROBABILITIES, PTB_F32, rows * n),
                       .expert = ptb_call_output(c, EXPERT, PTB_I32, choices),
                       .weight = ptb_call_output(c, WEIGHT, PTB_F32, choices),
                       .slot = ptb_call_output(c, SLOT, PTB_I32, choices),
                       .offsets = ptb_call_output(c, OFFSETS, PTB_I32, n + 1),
                       .counts = ptb_call_output(c, COUNTS, PTB_I32, n),
                       .loss = ptb_call_exact(c, LOSS, PTB_F64, 1, &zero),
                       .sums = ptb_call_output(c, SUMS, PTB_F64, n),
                       .logits = ptb_call_exact(c, LOGITS, PTB_F32, rows * n, r.logits),
                       .rows = rows,
                       .experts = n,
                       .top_k = top_k(c),
                       .capacity = capacity(c),
                       .balance = 1,
                       .scale = 1,
                       .normalise = c->shape->normalise};
        memcpy(c->arguments, &a, sizeof a);
    }
    routing_free(&r);
    c->is_changed = true; // the loss adds
    c->bytes = (double)(2 * rows * n * sizeof(float) + choices * 3 * sizeof(float));
    ptb_call_sizes(c, "%zu rows, top %zu of %zu", rows, top_k(c), n);
}

static void verify_route(ptb_kernel_call *c, ptb_verdict *verdict)
{
    size_t n = experts(c), choices = c->rows * top_k(c);
    routing r;
    ptb_call_sum loss = {0};
    if (route_rows(c, &r)) {
        for (size_t i = 0; i < choices; i++) {
            check_integer(c, verdict, "expert", EXPERT, i, r.expert[i]);
            check_integer(c, verdict, "slot", SLOT, i, r.slot[i]);
            ptb_call_expect(c, verdict, "weight", WEIGHT, i, exactly((double)r.weight[i]));
        }
        for (size_t e = 0; e < n; e++) {
            check_integer(c, verdict, "offsets", OFFSETS, e, r.offsets[e]);
            check_integer(c, verdict, "counts", COUNTS, e, r.counts[e]);
        }
        check_integer(c, verdict, "offsets", OFFSETS, n, r.offsets[n]);
        for (size_t e = 0; e < n; e++) {
            ptb_call_sum sum = {0};
            for (size_t row = 0; row < c->rows; row++)
                ptb_call_add(&sum, (double)r.probabilities[row * n + e]);
            ptb_call_expect(c, verdict, "sums", SUMS, e, sum);
        }
        for (size_t k = 0; k < PTB_CALL_SAMPLES; k++) {
            size_t at = ptb_call_sample(k, c->rows * n);
            ptb_call_expect(c, verdict, "probabilities", PROBABILITIES, at,
                            exactly((double)r.probabilities[at]));
        }
        for (size_t i = 0; i < c->rows * n; i++)
            ptb_call_add(&loss, (double)n * share(c) * r.counts[i % n] * (double)r.probabilities[i]);
        ptb_call_expect(c, verdict, "loss", LOSS, 0, loss);
    }
    routing_free(&r);
}

const ptb_kernel_entry ptb_kernel_entry_route = {
    .places = places, .absent = absent, .prepare = prepare_route, .verify = verify_route};

// ---- route_gradient

static void prepare_route_gradient(ptb_kernel_call *c)
{
    size_t rows = c->rows, n = experts(c), choices = rows * top_k(c);
    routing r;
    if (route_rows(c, &r)) {
        ptb_route_gradient a = {.d_logits = ptb_call_output(c, OUT, c->type, rows * n),
                                .d_weight = ptb_call_filled(c, D_WEIGHT, PTB_F32, choices, 1, 0),
                                .probabilities =
                                    ptb_call_exact(c, PROBABILITIES, PTB_F32, rows * n, r.probabilities),
                                .weight = ptb_call_exact(c, WEIGHT, PTB_F32, choices, r.weight),
                                .expert = ptb_call_exact(c, EXPERT, PTB_I32, choices, r.expert),
                                .counts = ptb_call_exact(c, COUNTS, PTB_I32, n, r.counts),
                                .rows = rows,
                                .experts = n,
                                .top_k = top_k(c),
                                .balance = 1,
                                .scale = (double)rows, // so that its part shows
                                .normalise = c->shape->normalise,
                                .type = c->type};
        memcpy(c->arguments, &a, sizeof a);
    }
    routing_free(&r);
    c->bytes = (double)(rows * n * (sizeof(float) + ptb_dtype_size(c->type)) + choices * 3 * sizeof(float));
    ptb_call_sizes(c, "%zu rows, top %zu of %zu", rows, top_k(c), n);
}

static double exact_float(const ptb_kernel_call *c, int slot, size_t i)
{
    return (double)((const float *)c->buffer[slot].exact)[i];
}

// Gradient to the probability of expert e of a row: of the balance loss, and of the weights.
static double d_probability(const ptb_kernel_call *c, size_t row, size_t e)
{
    double d = (double)experts(c) * share(c) * (double)c->rows * ptb_call_integer(c, COUNTS, e);
    double chosen = 0, mean = 0;
    for (size_t k = 0; k < top_k(c); k++) {
        size_t i = row * top_k(c) + k;
        chosen += exact_float(c, PROBABILITIES, row * experts(c) + (size_t)ptb_call_integer(c, EXPERT, i));
        mean += ptb_call_value(c, D_WEIGHT, i) * exact_float(c, WEIGHT, i);
    }
    for (size_t k = 0; k < top_k(c); k++) {
        size_t i = row * top_k(c) + k;
        if (ptb_call_integer(c, EXPERT, i) != (int32_t)e)
            continue;
        double d_weight = ptb_call_value(c, D_WEIGHT, i);
        d += c->shape->normalise ? (d_weight - mean) / chosen : d_weight;
    }
    return d;
}

static void verify_route_gradient(ptb_kernel_call *c, ptb_verdict *verdict)
{
    size_t n = experts(c);
    for (size_t k = 0; k < PTB_CALL_SAMPLES; k++) {
        size_t at = ptb_call_sample(k, c->rows * n), row = at / n;
        double p = exact_float(c, PROBABILITIES, at);
        ptb_call_sum sum = {0};
        ptb_call_add(&sum, p * d_probability(c, row, at % n));
        for (size_t e = 0; e < n; e++)
            ptb_call_add(&sum, -p * exact_float(c, PROBABILITIES, row * n + e) * d_probability(c, row, e));
        ptb_call_expect(c, verdict, "d_logits", OUT, at, sum);
    }
}

const ptb_kernel_entry ptb_kernel_entry_route_gradient = {.places = places,
                                                          .is_typed = true,
                                                          .absent = absent,
                                                          .prepare = prepare_route_gradient,
                                                          .verify = verify_route_gradient};

// ---- balance_loss

enum { COUNT_PERIOD = 97 };

static void prepare_balance_loss(ptb_kernel_call *c)
{
    size_t count = (size_t)(c->shape->layers - c->shape->dense_layers) * experts(c);
    int32_t *counts = malloc(count * sizeof *counts);
    double *sums = malloc(count * sizeof *sums), zero = 0;
    if (counts && sums) {
        for (size_t i = 0; i < count; i++) {
            counts[i] = (int32_t)(i % COUNT_PERIOD);
            sums[i] = 1 + (double)c->noise[i % PTB_CALL_PERIOD];
        }
        ptb_balance_loss a = {.loss = ptb_call_exact(c, LOSS, PTB_F64, 1, &zero),
                              .counts = ptb_call_exact(c, COUNTS, PTB_I32, count, counts),
                              .sums = ptb_call_exact(c, SUMS, PTB_F64, count, sums),
                              .count = count,
                              .factor = 1 / (double)count};
        memcpy(c->arguments, &a, sizeof a);
    } else {
        ptb_error("no memory for the counts of %zu experts", count);
        c->status = PTB_NO_MEMORY;
    }
    free(counts), free(sums);
    c->is_changed = true; // the loss adds
    c->bytes = (double)(count * (sizeof *counts + sizeof *sums));
    ptb_call_sizes(c, "%zu routers, %zu experts", count / experts(c), experts(c));
}

static void verify_balance_loss(ptb_kernel_call *c, ptb_verdict *verdict)
{
    const double *sums = c->buffer[SUMS].exact;
    size_t count = c->buffer[SUMS].count;
    ptb_call_sum loss = {0};
    for (size_t i = 0; i < count; i++)
        ptb_call_add(&loss, (double)(i % COUNT_PERIOD) * sums[i] / (double)count);
    ptb_call_expect(c, verdict, "loss", LOSS, 0, loss);
}

const ptb_kernel_entry ptb_kernel_entry_balance_loss = {
    .places = places, .absent = absent, .prepare = prepare_balance_loss, .verify = verify_balance_loss};

// ---- rows to slots and back

typedef struct {
    void *rows_in, *rows_out, *residual, *slots_in, *slots_out;
    float *weight, *d_weight;
    int32_t *slot;
    size_t slots;
} moved;

enum { ROWS_IN = OUT, ROWS_OUT = IN, SLOTS_IN = LOGITS, SLOTS_OUT = PROBABILITIES };

// Makes the buffers that a kernel of `which` (their slots as bits) has.
static moved make_moved(ptb_kernel_call *c, unsigned which)
{
    moved m = {0};
    routing r;
    if (route_rows(c, &r)) {
        size_t choices = c->rows * top_k(c), size = ptb_dtype_size(c->type);
        m.slots = (size_t)r.offsets[experts(c)];
        size_t in_rows = c->rows * width(c), in_slots = m.slots * width(c);
        const struct {
            void **memory;
            int slot;
            size_t count;
            bool is_output;
        } wanted[] = {{&m.rows_in, ROWS_IN, in_rows, false},
                      {&m.rows_out, ROWS_OUT, in_rows, true},
                      {&m.residual, RESIDUAL, in_rows, false},
                      {&m.slots_in, SLOTS_IN, in_slots, false},
                      {&m.slots_out, SLOTS_OUT, in_slots, true}};
        for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
            if (!(which & 1u << wanted[i].slot))
                continue;
            *wanted[i].memory = wanted[i].is_output
                                    ? ptb_call_output(c, wanted[i].slot, c->type, wanted[i].count)
                                    : ptb_call_filled(c, wanted[i].slot, c->type, wanted[i].count, 1, 0);
            c->bytes += (double)(wanted[i].count * size);
        }
        m.slot = ptb_call_exact(c, SLOT, PTB_I32, choices, r.slot);
        if (which & 1u << WEIGHT)
            m.weight = ptb_call_exact(c, WEIGHT, PTB_F32, choices, r.weight);
        if (which & 1u << D_WEIGHT)
            m.d_weight = ptb_call_output(c, D_WEIGHT, PTB_F32, choices);
        ptb_call_sizes(c, "%zu rows, %zu slots, %zu wide", c->rows, m.slots, width(c));
    }
    routing_free(&r);
    return m;
}

static void prepare_dispatch(ptb_kernel_call *c)
{
    moved m = make_moved(c, 1u << ROWS_IN | 1u << SLOTS_OUT);
    ptb_dispatch a = {.out = m.slots_out,
                      .in = m.rows_in,
                      .slot = m.slot,
                      .rows = c->rows,
                      .top_k = top_k(c),
                      .width = width(c),
                      .type = c->type};
    memcpy(c->arguments, &a, sizeof a);
}

// The k-th sampled choice that was not dropped, and a column.
static bool choice_of(const ptb_kernel_call *c, size_t k, size_t *choice, size_t *column)
{
    size_t at = ptb_call_sample(k, c->rows * top_k(c) * width(c));
    *choice = at / width(c);
    *column = at % width(c);
    return ptb_call_integer(c, SLOT, *choice) >= 0;
}

static void verify_dispatch(ptb_kernel_call *c, ptb_verdict *verdict)
{
    for (size_t k = 0, choice, column; k < PTB_CALL_SAMPLES; k++) {
        if (!choice_of(c, k, &choice, &column))
            continue;
        size_t slot = (size_t)ptb_call_integer(c, SLOT, choice);
        double in = ptb_call_value(c, ROWS_IN, choice / top_k(c) * width(c) + column);
        ptb_call_expect(c, verdict, "out", SLOTS_OUT, slot * width(c) + column, exactly(in));
    }
}

const ptb_kernel_entry ptb_kernel_entry_dispatch = {.places = places,
                                                    .is_typed = true,
                                                    .absent = absent,
                                                    .prepare = prepare_dispatch,
                                                    .verify = verify_dispatch};

static void prepare_dispatch_gradient(ptb_kernel_call *c)
{
    moved m = make_moved(c, 1u << ROWS_OUT | 1u << SLOTS_IN);
    ptb_dispatch_gradient a = {.d_in = m.rows_out,
                               .d_out = m.slots_in,
                               .slot = m.slot,
                               .rows = c->rows,
                               .top_k = top_k(c),
                               .width = width(c),
                               .type = c->type};
    memcpy(c->arguments, &a, sizeof a);
}

// Sum over the choices of a row of SLOTS_IN, each times its weight where there are weights.
static ptb_call_sum gathered(const ptb_kernel_call *c, size_t at)
{
    ptb_call_sum sum = {0};
    for (size_t k = 0; k < top_k(c); k++) {
        size_t choice = at / width(c) * top_k(c) + k;
        int32_t slot = ptb_call_integer(c, SLOT, choice);
        double weight = c->buffer[WEIGHT].exact ? exact_float(c, WEIGHT, choice) : 1;
        if (slot >= 0)
            ptb_call_add(&sum, weight * ptb_call_value(c, SLOTS_IN, (size_t)slot * width(c) + at % width(c)));
    }
    return sum;
}

static void verify_dispatch_gradient(ptb_kernel_call *c, ptb_verdict *verdict)
{
    for (size_t k = 0; k < PTB_CALL_SAMPLES; k++) {
        size_t at = ptb_call_sample(k, c->rows * width(c));
        ptb_call_expect(c, verdict, "d_in", ROWS_OUT, at, gathered(c, at));
    }
}

const ptb_kernel_entry ptb_kernel_entry_dispatch_gradient = {.places = places,
                                                             .is_typed = true,
                                                             .absent = absent,
                                                             .prepare = prepare_dispatch_gradient,
                                                             .verify = verify_dispatch_gradient};

static void prepare_combine(ptb_kernel_call *c)
{
    moved m = make_moved(c, 1u << ROWS_OUT | 1u << RESIDUAL | 1u << SLOTS_IN | 1u << WEIGHT);
    ptb_combine a = {.out = m.rows_out,
                     .in = m.slots_in,
                     .weight = m.weight,
                     .slot = m.slot,
                     .residual = m.residual,
                     .rows = c->rows,
                     .top_k = top_k(c),
                     .width = width(c),
                     .type = c->type};
    memcpy(c->arguments, &a, sizeof a);
}

static void verify_combine(ptb_kernel_call *c, ptb_verdict *verdict)
{
    for (size_t k = 0; k < PTB_CALL_SAMPLES; k++) {
        size_t at = ptb_call_sample(k, c->rows * width(c));
        ptb_call_sum sum = gathered(c, at);
        ptb_call_add(&sum, ptb_call_value(c, RESIDUAL, at));
        ptb_call_expect(c, verdict, "out", ROWS_OUT, at, sum);
    }
}

const ptb_kernel_entry ptb_kernel_entry_combine = {.places = places,
                                                   .is_typed = true,
                                                   .absent = absent,
                                                   .prepare = prepare_combine,
                                                   .verify = verify_combine};

static void prepare_combine_gradient(ptb_kernel_call *c)
{
    moved m = make_moved(c, 1u << ROWS_IN | 1u << SLOTS_IN | 1u << SLOTS_OUT | 1u << WEIGHT | 1u << D_WEIGHT);
    ptb_combine_gradient a = {.d_in = m.slots_out,
                              .d_weight = m.d_weight,
                              .d_out = m.rows_in,
                              .in = m.slots_in,
                              .weight = m.weight,
                              .slot = m.slot,
                              .rows = c->rows,
                              .top_k = top_k(c),
                              .width = width(c),
                              .type = c->type};
    memcpy(c->arguments, &a, sizeof a);
}

static void verify_combine_gradient(ptb_kernel_call *c, ptb_verdict *verdict)
{
    for (size_t k = 0, choice, column; k < PTB_CALL_SAMPLES; k++) {
        if (!choice_of(c, k, &choice, &column)) {
            ptb_call_expect(c, verdict, "d_weight of a dropped choice", D_WEIGHT, choice, exactly(0));
            continue;
        }
        size_t slot = (size_t)ptb_call_integer(c, SLOT, choice) * width(c),
               row = choice / top_k(c) * width(c);
        double weight = exact_float(c, WEIGHT, choice);
        ptb_call_sum d_weight = {0};
        for (size_t i = 0; i < width(c); i++)
            ptb_call_add(&d_weight,
                         ptb_call_value(c, SLOTS_IN, slot + i) * ptb_call_value(c, ROWS_IN, row + i));
        ptb_call_expect(c, verdict, "d_weight", D_WEIGHT, choice, d_weight);
        ptb_call_expect(c, verdict, "d_in", SLOTS_OUT, slot + column,
                        exactly(weight * ptb_call_value(c, ROWS_IN, row + column)));
    }
}

const ptb_kernel_entry ptb_kernel_entry_combine_gradient = {.places = places,
                                                            .is_typed = true,
                                                            .absent = absent,
                                                            .prepare = prepare_combine_gradient,
                                                            .verify = verify_combine_gradient};
