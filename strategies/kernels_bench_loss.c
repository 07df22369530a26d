// Embedding, loss and optimizer kernels for the benchmark `kernels`.
#include "strategies/kernels_bench.h"
#include "strategies/transformer/model.h"

#include "core/log.h"
#include "core/random.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *always(const ptb_model_shape *shape, const char *place)
{
    (void)shape, (void)place;
    return NULL;
}

static size_t width(const ptb_kernel_call *c)
{
    return (size_t)c->shape->hidden;
}

static size_t vocabulary(const ptb_kernel_call *c)
{
    return (size_t)c->shape->vocabulary;
}

enum { OUT, TABLE, POSITIONS, TOKENS, D_OUT, LOGITS, LOSSES, LOSS, SUM };

// Device memory with `rows` symbols below the vocabulary, every `skip`th of them -1 (0: none).
static int32_t *make_symbols(ptb_kernel_call *c, size_t rows, size_t skip)
{
    int32_t *symbols = malloc((rows + 1) * sizeof *symbols);
    if (!symbols) {
        ptb_error("no memory for %zu tokens", rows);
        c->status = PTB_NO_MEMORY;
        return NULL;
    }
    for (size_t r = 0; r < rows; r++)
        symbols[r] =
            skip && r % skip == skip - 1 ? -1 : (int32_t)(ptb_random_u64(3, 2001, r) % vocabulary(c));
    int32_t *memory = ptb_call_exact(c, TOKENS, PTB_I32, rows, symbols);
    free(symbols);
    return memory;
}

// ---- embedding

static const char *const embedding_places[] = {"embedding", NULL};

static bool has_positions(const ptb_kernel_call *c)
{
    return c->shape->position == PTB_LEARNED_POSITIONS;
}

static void prepare_embedding(ptb_kernel_call *c)
{
    size_t count = c->rows * width(c), size = ptb_dtype_size(c->type);
    size_t positions = has_positions(c) ? c->sequence * width(c) : 0;
    ptb_embedding a = {.out = ptb_call_output(c, OUT, c->type, count),
                       .tokens = make_symbols(c, c->rows, 0),
                       .table = ptb_call_filled(c, TABLE, c->type, vocabulary(c) * width(c), 1, 0),
                       .positions =
                           positions ? ptb_call_filled(c, POSITIONS, c->type, positions, 1, 0) : NULL,
                       .rows = c->rows,
                       .sequence = c->sequence,
                       .width = width(c),
                       .vocabulary = vocabulary(c),
                       .type = c->type};
    memcpy(c->arguments, &a, sizeof a);
    c->bytes = (double)((2 * count + positions) * size);
    ptb_call_sizes(c, "%zu rows, %zu wide, of %zu", c->rows, width(c), vocabulary(c));
}

static void verify_embedding(ptb_kernel_call *c, ptb_verdict *verdict)
{
    for (size_t k = 0; k < PTB_CALL_SAMPLES; k++) {
        size_t at = ptb_call_sample(k, c->rows * width(c)), row = at / width(c), column = at % width(c);
        size_t token = (size_t)ptb_call_integer(c, TOKENS, row);
        ptb_call_sum sum = {0};
        ptb_call_add(&sum, ptb_call_value(c, TABLE, token * width(c) + column));
        if (has_positions(c))
            ptb_call_add(&sum, ptb_call_value(c, POSITIONS, row % c->sequence * width(c) + column));
        ptb_call_expect(c, verdict, "out", OUT, at, sum);
    }
}

const ptb_kernel_entry ptb_kernel_entry_embedding = {.places = embedding_places,
                                                     .is_typed = true,
                                                     .absent = always,
                                                     .prepare = prepare_embedding,
                                                     .verify = verify_embedding};

// ---- embedding_gradient; a tied table has the head's gradient already and is added to

static void prepare_embedding_gradient(ptb_kernel_call *c)
{
    size_t count = c->rows * width(c), table = vocabulary(c) * width(c);
    size_t positions = has_positions(c) ? (size_t)c->shape->positions * width(c) : 0;
    bool is_tied = c->shape->tied;
    ptb_embedding_gradient a = {.d_table = is_tied ? ptb_call_filled(c, TABLE, PTB_F32, table, 1, 0)
                                                   : ptb_call_output(c, TABLE, PTB_F32, table),
                                .d_positions =
                                    positions ? ptb_call_output(c, POSITIONS, PTB_F32, positions) : NULL,
                                .d_out = ptb_call_filled(c, D_OUT, c->type, count, 1, 0),
                                .tokens = make_symbols(c, c->rows, 0),
                                .rows = c->rows,
                                .sequence = c->sequence,
                                .width = width(c),
                                .vocabulary = vocabulary(c),
                                .positions = (size_t)c->shape->positions,
                                .type = c->type,
                                .accumulate_table = is_tied};
    memcpy(c->arguments, &a, sizeof a);
    c->is_changed = is_tied;
    c->bytes = (double)(count * ptb_dtype_size(c->type) + positions * sizeof(float)) +
               (double)((is_tied ? 2 * count : table) * sizeof(float));
    ptb_call_sizes(c, "%zu rows, %zu wide, %s %zu", c->rows, width(c), is_tied ? "added to" : "all of",
                   vocabulary(c));
}

static ptb_call_sum table_sum(const ptb_kernel_call *c, size_t token, size_t column)
{
    ptb_call_sum sum = {0};
    if (c->shape->tied)
        ptb_call_add(&sum, ptb_call_value(c, TABLE, token * width(c) + column));
    for (size_t row = 0; row < c->rows; row++)
        if ((size_t)ptb_call_integer(c, TOKENS, row) == token)
            ptb_call_add(&sum, ptb_call_value(c, D_OUT, row * width(c) + column));
    return sum;
}

static void verify_embedding_gradient(ptb_kernel_call *c, ptb_verdict *verdict)
{
    for (size_t k = 0; k < PTB_CALL_SAMPLES; k++) {
        size_t at = ptb_call_sample(k, c->rows * width(c)), column = at % width(c);
        size_t token = (size_t)ptb_call_integer(c, TOKENS, at / width(c));
        ptb_call_expect(c, verdict, "d_table", TABLE, token * width(c) + column, table_sum(c, token, column));
        token = ptb_call_sample(k, vocabulary(c)); // mostly of no row
        ptb_call_expect(c, verdict, "d_table", TABLE, token * width(c) + column, table_sum(c, token, column));
    }
    for (size_t k = 0; k < PTB_CALL_SAMPLES && has_positions(c); k++) {
        size_t at = ptb_call_sample(k, (size_t)c->shape->positions * width(c));
        ptb_call_sum sum = {0};
        for (size_t row = at / width(c); at / width(c) < c->sequence && row < c->rows; row += c->sequence)
            ptb_call_add(&sum, ptb_call_value(c, D_OUT, row * width(c) + at % width(c)));
        ptb_call_expect(c, verdict, "d_positions", POSITIONS, at, sum);
    }
}

const ptb_kernel_entry ptb_kernel_entry_embedding_gradient = {.places = embedding_places,
                                                              .is_typed = true,
                                                              .absent = always,
                                                              .prepare = prepare_embedding_gradient,
                                                              .verify = verify_embedding_gradient};

// ---- cross_entropy, of as many rows as the model makes logits of at once

static const char *const head_places[] = {"head", NULL};
enum { UNCOUNTED = 7, SAMPLED_ROWS = 5, SAMPLED_COLUMNS = 5 };

static size_t loss_rows(const ptb_kernel_call *c)
{
    return ptb_model_loss_rows(c->kernels, c->rows);
}

static size_t logits_stride(const ptb_kernel_call *c)
{
    return ptb_model_logits_stride(vocabulary(c));
}

// A row's share in the mean; in f16, what loss scaling makes of it: without, gradients vanish.
static double loss_scale(const ptb_kernel_call *c)
{
    return c->type == PTB_F16 ? 32768 : 1 / (double)loss_rows(c);
}

static void prepare_cross_entropy(ptb_kernel_call *c)
{
    size_t rows = loss_rows(c), count = rows * logits_stride(c);
    float *logits = ptb_call_filled(c, LOGITS, PTB_F32, count, 4, 0);
    ptb_cross_entropy a = {.logits = logits,
                           .d_logits = c->type == PTB_F32 ? logits : ptb_call_output(c, OUT, c->type, count),
                           .targets = make_symbols(c, rows, UNCOUNTED),
                           .losses = ptb_call_output(c, LOSSES, PTB_F32, rows),
                           .loss = ptb_call_output(c, LOSS, PTB_F64, 1),
                           .rows = rows,
                           .vocabulary = vocabulary(c),
                           .stride = logits_stride(c),
                           .scale = loss_scale(c),
                           .type = c->type};
    memcpy(c->arguments, &a, sizeof a);
    c->is_changed = true;
    // Logits of rows that do not count are not read.
    double read = (double)(rows - rows / UNCOUNTED) * sizeof(float),
           written = (double)rows * ptb_dtype_size(c->type);
    c->bytes = (double)vocabulary(c) * (read + written);
    ptb_call_sizes(c, "%zu x %zu", rows, vocabulary(c));
}

static double log_sum(const ptb_kernel_call *c, size_t row)
{
    double sum = 0; // of numbers between exp(-4) and exp(4)
    for (size_t i = 0; i < vocabulary(c); i++)
        sum += exp(ptb_call_value(c, LOGITS, row * logits_stride(c) + i));
    return log(sum);
}

static void verify_loss_row(ptb_kernel_call *c, ptb_verdict *verdict, size_t row)
{
    int32_t target = ptb_call_integer(c, TOKENS, row);
    double lse = log_sum(c, row), scale = loss_scale(c);
    size_t first = row * logits_stride(c);
    if (target >= 0) {
        double loss = lse - ptb_call_value(c, LOGITS, first + (size_t)target);
        ptb_call_expect(c, verdict, "losses", LOSSES, row, (ptb_call_sum){loss, 0});
    }
    for (size_t k = 0; k <= SAMPLED_COLUMNS; k++) {
        size_t column = k || target < 0 ? ptb_call_sample(k, vocabulary(c)) : (size_t)target;
        double d = scale * exp(ptb_call_value(c, LOGITS, first + column) - lse);
        d -= (size_t)target == column ? scale : 0;
        ptb_call_sum sum = {target < 0 ? 0 : d, 0};
        ptb_call_expect(c, verdict, "d_logits", c->type == PTB_F32 ? LOGITS : OUT, first + column, sum);
    }
}

static void verify_cross_entropy(ptb_kernel_call *c, ptb_verdict *verdict)
{
    for (size_t k = 0; k < SAMPLED_ROWS; k++)
        verify_loss_row(c, verdict, ptb_call_sample(k, loss_rows(c)));
    if (loss_rows(c) >= UNCOUNTED)
        verify_loss_row(c, verdict, UNCOUNTED - 1);
    ptb_call_sum sum = {0};
    for (size_t row = 0; row < loss_rows(c); row++)
        if (ptb_call_integer(c, TOKENS, row) >= 0)
            ptb_call_add(&sum, loss_scale(c) * ptb_call_result(c, LOSSES, row));
    ptb_call_expect(c, verdict, "loss", LOSS, 0, sum);
}

const ptb_kernel_entry ptb_kernel_entry_cross_entropy = {.places = head_places,
                                                         .is_used_up = true,
                                                         .is_typed = true,
                                                         .absent = always,
                                                         .prepare = prepare_cross_entropy,
                                                         .verify = verify_cross_entropy};

// ---- loss_statistics and loss_gradient: the second half of a vocabulary that is cut over two ranks. The
// first half's statistics are made up, and so are all that the gradient begins from.

static const char *const half_places[] = {"head-half", NULL};
enum { STATISTICS = SUM, PARTS = 2, TOP = 4 /* no logit is larger */ };

static size_t half_first(const ptb_kernel_call *c)
{
    return vocabulary(c) / 2;
}

static size_t half_columns(const ptb_kernel_call *c)
{
    return vocabulary(c) - half_first(c);
}

static size_t half_stride(const ptb_kernel_call *c)
{
    return ptb_model_logits_stride(half_columns(c));
}

static void prepare_loss_statistics(ptb_kernel_call *c)
{
    size_t rows = loss_rows(c);
    ptb_loss_statistics a = {.statistics = ptb_call_output(c, STATISTICS, PTB_F32, 3 * rows),
                             .logits = ptb_call_filled(c, LOGITS, PTB_F32, rows * half_stride(c), TOP, 0),
                             .targets = make_symbols(c, rows, UNCOUNTED),
                             .rows = rows,
                             .vocabulary = half_columns(c),
                             .stride = half_stride(c),
                             .first_token = half_first(c)};
    memcpy(c->arguments, &a, sizeof a);
    c->bytes = (double)rows * (double)half_columns(c) * sizeof(float);
    ptb_call_sizes(c, "%zu x %zu", rows, half_columns(c));
}

// Column of a row's target, and whether it is in this half.
static bool has_target(const ptb_kernel_call *c, size_t row, size_t *column)
{
    int32_t target = ptb_call_integer(c, TOKENS, row);
    *column = (size_t)(target < 0 ? 0 : target) - half_first(c);
    return target >= 0 && *column < half_columns(c);
}

static void verify_loss_statistics(ptb_kernel_call *c, ptb_verdict *verdict)
{
    size_t rows = loss_rows(c), column;
    for (size_t k = 0; k < SAMPLED_ROWS; k++) {
        size_t row = ptb_call_sample(k, rows), first = row * half_stride(c);
        double top = -INFINITY, sum = 0;
        for (size_t i = 0; i < half_columns(c); i++)
            top = fmax(top, (double)(float)ptb_call_value(c, LOGITS, first + i));
        for (size_t i = 0; i < half_columns(c); i++)
            sum += exp(ptb_call_value(c, LOGITS, first + i) - top);
        ptb_call_expect(c, verdict, "largest logit", STATISTICS, row, (ptb_call_sum){top, 0});
        ptb_call_expect(c, verdict, "sum", STATISTICS, rows + row, (ptb_call_sum){sum, 0});
        if (has_target(c, row, &column))
            ptb_call_expect(c, verdict, "target's logit", STATISTICS, 2 * rows + row,
                            (ptb_call_sum){ptb_call_value(c, LOGITS, first + column), 0});
    }
}

const ptb_kernel_entry ptb_kernel_entry_loss_statistics = {.places = half_places,
                                                           .only_reads = true,
                                                           .absent = always,
                                                           .prepare = prepare_loss_statistics,
                                                           .verify = verify_loss_statistics};

// Of both halves: exponentials relative to TOP that sum to as many as there are columns.
static float *make_statistics(ptb_kernel_call *c, size_t rows)
{
    float *statistics = malloc(PARTS * 3 * rows * sizeof *statistics);
    if (!statistics) {
        ptb_error("no memory for the statistics of %zu rows", rows);
        c->status = PTB_NO_MEMORY;
        return NULL;
    }
    for (size_t i = 0; i < PARTS * 3 * rows; i++) {
        size_t which = i / rows % 3;
        statistics[i] = which == 0 ? TOP : which == 1 ? (float)half_columns(c) / PARTS : 1;
    }
    float *memory = ptb_call_exact(c, STATISTICS, PTB_F32, PARTS * 3 * rows, statistics);
    free(statistics);
    return memory;
}

static void prepare_loss_gradient(ptb_kernel_call *c)
{
    size_t rows = loss_rows(c), count = rows * half_stride(c);
    float *logits = ptb_call_filled(c, LOGITS, PTB_F32, count, TOP, 0);
    ptb_loss_gradient a = {.logits = logits,
                           .d_logits = c->type == PTB_F32 ? logits : ptb_call_output(c, OUT, c->type, count),
                           .targets = make_symbols(c, rows, UNCOUNTED),
                           .losses = ptb_call_output(c, LOSSES, PTB_F32, rows),
                           .loss = ptb_call_output(c, LOSS, PTB_F64, 1),
                           .rows = rows,
                           .vocabulary = half_columns(c),
                           .parts = PARTS,
                           .stride = half_stride(c),
                           .first_token = half_first(c),
                           .scale = loss_scale(c),
                           .type = c->type};
    a.statistics = make_statistics(c, rows);
    memcpy(c->arguments, &a, sizeof a);
    c->is_changed = true;
    c->bytes = (double)count * (double)(sizeof(float) + ptb_dtype_size(c->type));
    ptb_call_sizes(c, "%zu x %zu", rows, half_columns(c));
}

static void verify_loss_gradient(ptb_kernel_call *c, ptb_verdict *verdict)
{
    double scale = loss_scale(c), lse = log((double)half_columns(c)) + TOP;
    for (size_t k = 0; k < SAMPLED_ROWS; k++) {
        size_t row = ptb_call_sample(k, loss_rows(c)), target = 0;
        bool counts = ptb_call_integer(c, TOKENS, row) >= 0, is_here = has_target(c, row, &target);
        ptb_call_expect(c, verdict, "losses", LOSSES, row, (ptb_call_sum){counts ? lse - 1 : 0, 0});
        for (size_t s = 0; s <= SAMPLED_COLUMNS; s++) {
            size_t column = s || !is_here ? ptb_call_sample(s, half_columns(c)) : target;
            size_t at = row * half_stride(c) + column;
            double d = scale * exp(ptb_call_value(c, LOGITS, at) - lse);
            if (is_here && column == target)
                d = scale * expm1(1 - lse); // from the loss, which the statistics say
            ptb_call_expect(c, verdict, "d_logits", c->type == PTB_F32 ? LOGITS : OUT, at,
                            (ptb_call_sum){counts ? d : 0, 0});
        }
    }
}

const ptb_kernel_entry ptb_kernel_entry_loss_gradient = {.places = half_places,
                                                         .is_used_up = true,
                                                         .is_typed = true,
                                                         .absent = always,
                                                         .prepare = prepare_loss_gradient,
                                                         .verify = verify_loss_gradient};

// ---- optimizer, over as many parameters as a block has, at most 2^24: far more than the caches hold

static const char *const optimizer_places[] = {"optimizer", NULL};
enum { PARAMETER, GRADIENT, M, V, ROUNDED, UPDATE, MOST_PARAMETERS = 1 << 24 };
static const float beta1 = 0.9f, beta2 = 0.95f, epsilon = 1e-8f, decay = 0.1f, momentum = 0.9f;
static const ptb_update before = {.factor = 0.5f,
                                  .loss_scale = 1,
                                  .rate = 1e-3f,
                                  .applied = 9,
                                  .beta1_power = 0.387420489,
                                  .beta2_power = 0.630249409712609375};

static size_t parameters(const ptb_kernel_call *c)
{
    const ptb_model_shape *s = c->shape;
    double h = (double)s->hidden, attention = (double)(s->heads * s->head_width);
    double matrices = s->activation == PTB_SWIGLU ? 3 : 2;
    double feed = s->experts ? (double)(s->experts + s->shared_experts) * (double)s->expert_hidden
                             : (double)s->feed_forward;
    double count = h * (2 * attention + 2 * (double)(s->kv_heads * s->head_width) + matrices * feed);
    return count < MOST_PARAMETERS ? (size_t)count : MOST_PARAMETERS;
}

static void prepare_sum_squares(ptb_kernel_call *c)
{
    size_t count = parameters(c);
    ptb_sum_squares a = {.sum = ptb_call_output(c, SUM, PTB_F64, 1),
                         .values = ptb_call_filled(c, GRADIENT, PTB_F32, count, 1, 0),
                         .count = count};
    memcpy(c->arguments, &a, sizeof a);
    c->bytes = (double)(count * sizeof(float));
    ptb_call_sizes(c, "%zu parameters", count);
}

static void verify_sum_squares(ptb_kernel_call *c, ptb_verdict *verdict)
{
    double sum = 0;
    for (size_t i = 0; i < parameters(c); i++)
        sum += ptb_call_value(c, GRADIENT, i) * ptb_call_value(c, GRADIENT, i);
    ptb_call_expect(c, verdict, "sum", SUM, 0, (ptb_call_sum){sum, 0});
}

const ptb_kernel_entry ptb_kernel_entry_sum_squares = {.places = optimizer_places,
                                                       .only_reads = true,
                                                       .absent = always,
                                                       .prepare = prepare_sum_squares,
                                                       .verify = verify_sum_squares};

static void prepare_update_begin(ptb_kernel_call *c)
{
    double squares = 16;
    ptb_update_begin a = {.update = ptb_call_exact(c, UPDATE, PTB_U8, sizeof before, &before),
                          .sum_squares = ptb_call_exact(c, SUM, PTB_F64, 1, &squares),
                          .clip = 1,
                          .beta1 = (double)beta1,
                          .beta2 = (double)beta2,
                          .growth_interval = 2000};
    memcpy(c->arguments, &a, sizeof a);
    c->is_changed = true;
    ptb_call_sizes(c, "1 state");
}

static void verify_update_begin(ptb_kernel_call *c, ptb_verdict *verdict)
{
    ptb_update after = {0};
    if (ptb_stream_copy(c->stream, &after, c->buffer[UPDATE].memory, sizeof after) != PTB_OK ||
        ptb_stream_sync(c->stream) != PTB_OK)
        return;
    verdict->checked++;
    double power1 = pow((double)beta1, 10), power2 = pow((double)beta2, 10);
    bool is_right = fabs(after.norm - 4) < 1e-9 && fabs((double)after.factor - 0.25) < 1e-6 && !after.skip &&
                    after.applied == 10 && fabs(after.beta1_power - power1) < 1e-9 &&
                    fabs(after.beta2_power - power2) < 1e-9;
    if (!is_right && !verdict->wrong++)
        snprintf(
            verdict->detail, sizeof verdict->detail,
            "update: wanted norm 4, factor 0.25, 10 applied, powers %.9g and %.9g, got %g, %g, %llu, %.9g "
            "and %.9g",
            power1, power2, after.norm, (double)after.factor, (unsigned long long)after.applied,
            after.beta1_power, after.beta2_power);
}

const ptb_kernel_entry ptb_kernel_entry_update_begin = {.places = optimizer_places,
                                                        .absent = always,
                                                        .prepare = prepare_update_begin,
                                                        .verify = verify_update_begin};

static void *make_rounded(ptb_kernel_call *c, size_t count)
{
    c->bytes += c->type == PTB_F32 ? 0 : (double)(count * ptb_dtype_size(c->type));
    return c->type == PTB_F32 ? NULL : ptb_call_output(c, ROUNDED, c->type, count);
}

static void prepare_adamw(ptb_kernel_call *c)
{
    size_t count = parameters(c);
    ptb_adamw a = {.parameter = ptb_call_filled(c, PARAMETER, PTB_F32, count, 1, 0),
                   .m = ptb_call_filled(c, M, PTB_F32, count, 1e-3, 0),
                   .v = ptb_call_filled(c, V, PTB_F32, count, 1e-4, 2e-4),
                   .gradient = ptb_call_filled(c, GRADIENT, PTB_F32, count, 1e-2, 0),
                   .rounded = make_rounded(c, count),
                   .update = ptb_call_exact(c, UPDATE, PTB_U8, sizeof before, &before),
                   .count = count,
                   .beta1 = beta1,
                   .beta2 = beta2,
                   .epsilon = epsilon,
                   .decay = decay,
                   .type = c->type};
    memcpy(c->arguments, &a, sizeof a);
    c->is_changed = true;
    c->bytes += (double)(7 * count * sizeof(float));
    ptb_call_sizes(c, "%zu parameters", count);
}

static void expect_parameter(ptb_kernel_call *c, ptb_verdict *verdict, size_t i, double wanted)
{
    ptb_call_sum sum = {wanted, 0};
    sum.squares += (double)(before.rate * before.rate); // the parameter may be nearly zero
    ptb_call_expect_in(c, verdict, PTB_F32, "parameter", PARAMETER, i, sum);
    if (c->type != PTB_F32)
        ptb_call_expect(c, verdict, "rounded", ROUNDED, i, sum);
}

static void verify_adamw(ptb_kernel_call *c, ptb_verdict *verdict)
{
    double b1 = (double)beta1, b2 = (double)beta2;
    for (size_t k = 0; k < PTB_CALL_SAMPLES; k++) {
        size_t i = ptb_call_sample(k, parameters(c));
        double g = (double)before.factor * ptb_call_value(c, GRADIENT, i),
               p = ptb_call_value(c, PARAMETER, i);
        double m0 = ptb_call_value(c, M, i), m = b1 * m0 + (1 - b1) * g;
        double v = b2 * ptb_call_value(c, V, i) + (1 - b2) * g * g;
        double step = m / (1 - before.beta1_power) / (sqrt(v / (1 - before.beta2_power)) + (double)epsilon);
        ptb_call_expect_in(c, verdict, PTB_F32, "m", M, i, (ptb_call_sum){m, m0 * m0});
        ptb_call_expect_in(c, verdict, PTB_F32, "v", V, i, (ptb_call_sum){v, 0});
        expect_parameter(c, verdict, i, p - (double)before.rate * (step + (double)decay * p));
    }
}

const ptb_kernel_entry ptb_kernel_entry_adamw = {.places = optimizer_places,
                                                 .is_typed = true,
                                                 .absent = always,
                                                 .prepare = prepare_adamw,
                                                 .verify = verify_adamw};

static void prepare_sgd(ptb_kernel_call *c)
{
    size_t count = parameters(c);
    ptb_sgd a = {.parameter = ptb_call_filled(c, PARAMETER, PTB_F32, count, 1, 0),
                 .m = ptb_call_filled(c, M, PTB_F32, count, 1e-2, 0),
                 .gradient = ptb_call_filled(c, GRADIENT, PTB_F32, count, 1e-2, 0),
                 .rounded = make_rounded(c, count),
                 .update = ptb_call_exact(c, UPDATE, PTB_U8, sizeof before, &before),
                 .count = count,
                 .momentum = momentum,
                 .decay = decay,
                 .type = c->type};
    memcpy(c->arguments, &a, sizeof a);
    c->is_changed = true;
    c->bytes += (double)(5 * count * sizeof(float));
    ptb_call_sizes(c, "%zu parameters", count);
}

static void verify_sgd(ptb_kernel_call *c, ptb_verdict *verdict)
{
    for (size_t k = 0; k < PTB_CALL_SAMPLES; k++) {
        size_t i = ptb_call_sample(k, parameters(c));
        double p = ptb_call_value(c, PARAMETER, i);
        ptb_call_sum m = {0};
        ptb_call_add(&m, (double)momentum * ptb_call_value(c, M, i));
        ptb_call_add(&m, (double)before.factor * ptb_call_value(c, GRADIENT, i));
        ptb_call_add(&m, (double)decay * p);
        ptb_call_expect_in(c, verdict, PTB_F32, "m", M, i, m);
        expect_parameter(c, verdict, i, p - (double)before.rate * m.value);
    }
}

const ptb_kernel_entry ptb_kernel_entry_sgd = {.places = optimizer_places,
                                               .is_typed = true,
                                               .absent = always,
                                               .prepare = prepare_sgd,
                                               .verify = verify_sgd};
