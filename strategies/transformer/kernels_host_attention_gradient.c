// The gradient of attention on the host (Dao 2023, "FlashAttention-2", algorithm 2): probabilities are
// computed again from the log-sum-exp, a tile of queries and a block of keys at a time. Keys come in panels
// of a few blocks whose gradients stay in a thread's scratch while all queries of all heads of the group pass
// in one order; the gradient of a query is summed over panels in their order. Every sum thus has one order,
// whatever the number of threads and whichever way the work is divided:
//
//   - a task per sequence and key head does all five products of a block;
//   - with too few of those for the threads, tasks per key panel (gradients of keys and values) and then
//   tasks
//     per query tile (gradients of queries) make the scores twice: seven products.
#include "strategies/transformer/kernels_host_attention.h"

#include <omp.h>

enum {
    PANEL_FLOATS = 16384,        // of K: a panel's four arrays take 256 KiB
    ACCUMULATOR_FLOATS = 1 << 22 // most of a thread's sums of query gradients in 16-bit types (16 MiB)
};

typedef struct {
    ptb_attention_view view;
    ptb_attention_draws draws;
    float lse[PTB_TILE];                         // in units of log 2
    float delta[PTB_TILE];                       // d_out . out
    ptb_word *query_transposed, *out_transposed; /* [depth, PTB_TILE]: query, d_out */
    ptb_word *query, *d_out;                     /* [PTB_TILE, columns], words along the column */
    float *d_query;                              /* [PTB_TILE, columns], of one panel */
} tile;

typedef struct {
    size_t first, keys;     // key rows
    ptb_word *key, *value;  /* [keys, columns], words along the row */
    ptb_word *key_columns;  /* [keys, columns], words along the column; key without pairs */
    float *d_key, *d_value; /* [keys, columns] */
} key_panel;

typedef struct {
    tile tile;
    key_panel panel;
    float *scores, *d_scores; /* [PTB_TILE keys, PTB_TILE queries] */
    ptb_word *probabilities,
        *d_products; /* the same, words along the query; scores, d_scores without pairs */
    float *tile_sum; /* [PTB_TILE, columns] */
    float *sums;     /* [heads of a group, query tiles, PTB_TILE, columns] */
} scratch;

typedef struct {
    const ptb_attention_gradient *args;
    ptb_dtype type;
    bool pairs;
    size_t width, columns, depth, group;
    size_t panel; // keys of a panel
    float factor, drop_scale;
    uint32_t threshold;
} job;

static size_t panel_keys(size_t columns)
{
    size_t keys = PANEL_FLOATS / columns / PTB_TILE * PTB_TILE;
    return keys < PTB_TILE ? PTB_TILE : keys;
}

// Sums of the query gradients of a task's whole group; 0: they do not fit, or are not needed.
static size_t sums_floats(const ptb_attention_shape *s)
{
    size_t rows = ptb_round_up(s->query_length, PTB_TILE) * (s->heads / s->kv_heads);
    size_t columns = ptb_attention_columns(s->head_width);
    return s->type == PTB_F32 || rows > ACCUMULATOR_FLOATS / columns ? 0 : rows * columns;
}

static size_t scratch_words(const ptb_attention_shape *s)
{
    size_t columns = ptb_attention_columns(s->head_width), keys = panel_keys(columns);
    size_t tiles = 6 * PTB_TILE * columns, scores = 4 * PTB_TILE * PTB_TILE;
    return ptb_round_up(sizeof(scratch), 64) / sizeof(ptb_word) + tiles + 5 * keys * columns + scores +
           sums_floats(s);
}

size_t ptb_attention_gradient_scratch(const ptb_attention_shape *s)
{
    return ptb_round_up(scratch_words(s) * sizeof(ptb_word), 64);
}

static ptb_word *carve(ptb_word **words, size_t count)
{
    ptb_word *at = *words;
    *words += count;
    return at;
}

static float *carve_floats(ptb_word **words, size_t count)
{
    return (float *)(void *)carve(words, count);
}

static scratch *scratch_of(const job *j)
{
    const ptb_attention_shape *s = &j->args->shape;
    char *at = (char *)s->workspace + (size_t)omp_get_thread_num() * ptb_attention_gradient_scratch(s);
    scratch *x = (scratch *)(void *)at;
    ptb_word *words = (ptb_word *)(void *)(at + ptb_round_up(sizeof *x, 64));
    size_t square = PTB_TILE * PTB_TILE, rows = PTB_TILE * j->columns, keys = j->panel * j->columns;
    x->tile.query_transposed = carve(&words, rows);
    x->tile.out_transposed = carve(&words, rows);
    x->tile.query = carve(&words, rows);
    x->tile.d_out = carve(&words, rows);
    x->tile.d_query = carve_floats(&words, rows);
    x->tile_sum = carve_floats(&words, rows);
    x->panel.key = carve(&words, keys);
    x->panel.value = carve(&words, keys);
    x->panel.key_columns = j->pairs ? carve(&words, keys) : x->panel.key;
    x->panel.d_key = carve_floats(&words, keys);
    x->panel.d_value = carve_floats(&words, keys);
    x->scores = carve_floats(&words, square);
    x->d_scores = carve_floats(&words, square);
    x->probabilities = j->pairs ? carve(&words, square / 2) : (ptb_word *)x->scores;
    x->d_products = j->pairs ? carve(&words, square / 2) : (ptb_word *)x->d_scores;
    x->sums = carve_floats(&words, sums_floats(s));
    return x;
}

// Rows [first, first + rows) of a head in an array with `length` rows a sequence.
static ptb_attention_rows rows_of(const job *j, const void *values, size_t b, size_t length, size_t first,
                                  size_t rows, size_t head, size_t stride)
{
    size_t at = (b * length + first) * stride + head * j->width;
    return (ptb_attention_rows){
        .type = j->type,
        .values = (const char *)values + at * ptb_dtype_size(j->type),
        .rows = rows,
        .width = j->width,
        .stride = stride,
    };
}

static void panel_begin(const job *j, key_panel *p, size_t b, size_t kv_head, size_t first)
{
    const ptb_attention_shape *s = &j->args->shape;
    p->first = first;
    p->keys = s->key_length - first < j->panel ? s->key_length - first : j->panel;
    size_t padded = ptb_round_up(p->keys, PTB_GROUP);
    ptb_attention_rows key =
        rows_of(j, j->args->key, b, s->key_length, first, p->keys, kv_head, s->key_stride);
    ptb_attention_rows value =
        rows_of(j, j->args->value, b, s->key_length, first, p->keys, kv_head, s->key_stride);
    ptb_attention_pack_rows(&key, padded, p->key);
    ptb_attention_pack_rows(&value, padded, p->value);
    if (j->pairs)
        ptb_attention_pack_columns(&key, padded, p->key_columns);
    memset(p->d_key, 0, padded * j->columns * sizeof *p->d_key);
    memset(p->d_value, 0, padded * j->columns * sizeof *p->d_value);
}

static void panel_end(const job *j, const key_panel *p, size_t b, size_t kv_head)
{
    const ptb_attention_shape *s = &j->args->shape;
    size_t at = (b * s->key_length + p->first) * s->key_stride + kv_head * j->width;
    ptb_attention_output out = {
        .type = j->type,
        .values = (char *)j->args->d_key + at * ptb_dtype_size(j->type),
        .rows = p->keys,
        .width = j->width,
        .stride = s->key_stride,
        .accumulate = j->args->accumulate,
    };
    ptb_attention_unpack(&out, p->d_key, &s->scale, 1);
    out.values = (char *)j->args->d_value + at * ptb_dtype_size(j->type);
    ptb_attention_unpack(&out, p->d_value, &j->drop_scale, 1);
}

static void tile_begin(const job *j, tile *t, size_t b, size_t h, size_t first)
{
    const ptb_attention_shape *s = &j->args->shape;
    size_t rows = t->view.rows, length = s->query_length, out_stride = s->heads * j->width;
    ptb_attention_rows query = rows_of(j, j->args->query, b, length, first, rows, h, s->query_stride);
    ptb_attention_rows out = rows_of(j, j->args->out, b, length, first, rows, h, out_stride);
    ptb_attention_rows d_out = rows_of(j, j->args->d_out, b, length, first, rows, h, out_stride);
    ptb_attention_pack_transposed(&query, s->scale < 0, t->query_transposed);
    ptb_attention_pack_transposed(&d_out, false, t->out_transposed);
    ptb_attention_pack_columns(&query, PTB_TILE, t->query);
    ptb_attention_pack_columns(&d_out, PTB_TILE, t->d_out);
    ptb_attention_dot_rows(&d_out, &out, t->delta);
    const float *lse = j->args->lse + (b * s->heads + h) * length + first;
    for (size_t i = 0; i < rows; i++)
        t->lse[i] = lse[i] > -INFINITY ? lse[i] * PTB_VEC_LOG2_E : 0; // a row that saw nothing: all masked
    for (size_t i = rows; i < PTB_TILE; i++)
        t->lse[i] = t->delta[i] = 0;
    if (j->threshold > 0)
        ptb_attention_draw_rows(s, b, first, &t->draws);
}

// The block of scores that a vector of queries is at, as in the forward pass.
typedef struct {
    size_t query, begin, end;
    int32_t first;
    uint32_t column, threshold;
    float factor, drop_scale;
    ptb_vec_int low, high;
} vector_block;

// p of a key, after dropout but for its factor; *d is the gradient of its score, but for the scale.
PTB_INLINE ptb_vec key_gradient(const scratch *x, const vector_block *b, ptb_vec lse, ptb_vec delta,
                                size_t key, bool masked, bool drop, ptb_vec *d)
{
    size_t at = key * PTB_TILE + b->query;
    ptb_vec p = ptb_vec_exp2(ptb_vec_load(PTB_F32, x->scores, at) * b->factor - lse);
    ptb_vec d_p = ptb_vec_load(PTB_F32, x->d_scores, at);
    if (masked)
        p = (ptb_vec)((ptb_vec_int)p & ptb_attention_visible(b->low, b->high, b->first + (int32_t)key));
    if (!drop) {
        *d = p * (d_p - delta);
        return p;
    }
    ptb_vec_int kept = ptb_attention_kept(&x->tile.draws, b->query, b->column + (uint32_t)key, b->threshold);
    d_p = (ptb_vec)((ptb_vec_int)d_p & kept) * b->drop_scale;
    *d = p * (d_p - delta);
    return (ptb_vec)((ptb_vec_int)p & kept);
}

PTB_INLINE void store_halves(ptb_word *words, size_t at, ptb_vec v)
{
    ptb_vec_half halves = ptb_vec_to_bf16(v);
    memcpy((uint16_t *)words + at, &halves, sizeof halves);
}

// Scores and gradients of probabilities become probabilities and gradients of scores.
PTB_INLINE void differentiate(scratch *x, const vector_block *block, bool masked, bool drop, bool pairs)
{
    const vector_block copy = *block, *b = &copy; // in registers
    size_t q = b->query;
    ptb_vec lse = ptb_vec_load(PTB_F32, x->tile.lse, q), delta = ptb_vec_load(PTB_F32, x->tile.delta, q);
    for (size_t key = b->begin; key < b->end; key += 2) {
        ptb_vec d_even, d_odd;
        ptb_vec even = key_gradient(x, b, lse, delta, key, masked, drop, &d_even);
        ptb_vec odd = key_gradient(x, b, lse, delta, key + 1, masked, drop, &d_odd);
        size_t at = key * PTB_TILE + q;
        if (pairs) {
            store_halves(x->probabilities, at, even);
            store_halves(x->probabilities, at + PTB_TILE, odd);
            store_halves(x->d_products, at, d_even);
            store_halves(x->d_products, at + PTB_TILE, d_odd);
            ptb_vec_bits words = ptb_attention_pair(d_even, d_odd);
            memcpy(x->d_scores + key / 2 * PTB_TILE + q, &words, sizeof words);
        } else {
            ptb_vec_store(PTB_F32, x->scores, at, even);
            ptb_vec_store(PTB_F32, x->scores, at + PTB_TILE, odd);
            ptb_vec_store(PTB_F32, x->d_scores, at, d_even);
            ptb_vec_store(PTB_F32, x->d_scores, at + PTB_TILE, d_odd);
        }
    }
}

static void differentiate_instance(scratch *x, const vector_block *b, bool masked, bool pairs)
{
    bool drop = b->threshold > 0;
    if (!masked && !drop && !pairs)
        differentiate(x, b, false, false, false);
    else if (!masked && !drop)
        differentiate(x, b, false, false, true);
    else if (!drop && !pairs)
        differentiate(x, b, true, false, false);
    else if (!drop)
        differentiate(x, b, true, false, true);
    else if (pairs)
        differentiate(x, b, true, true, true);
    else
        differentiate(x, b, true, true, false);
}

static void differentiate_block(const job *j, scratch *x, const ptb_attention_plan *plan, size_t h,
                                size_t first)
{
    const ptb_attention_shape *s = &j->args->shape;
    const ptb_attention_view *v = &x->tile.view;
    for (size_t strip = 0; strip < v->strips; strip++)
        for (size_t q = strip * PTB_STRIP; q < (strip + 1) * PTB_STRIP; q += PTB_LANES) {
            vector_block b = {
                .query = q,
                .begin = plan->key_begin[strip],
                .end = plan->key_end[strip],
                .first = (int32_t)first,
                .column = ptb_attention_draw_column(s, h, first),
                .threshold = j->threshold,
                .factor = j->factor,
                .drop_scale = j->drop_scale,
            };
            memcpy(&b.low, v->low + q, sizeof b.low);
            memcpy(&b.high, v->high + q, sizeof b.high);
            differentiate_instance(x, &b, !plan->whole, j->pairs);
        }
}

enum { KEYS = 1, QUERIES = 2 }; // whose gradients

// Adds the tile's part to the gradients of the panel's keys and values, and makes x->tile.d_query.
static void tile_panel(const job *j, scratch *x, size_t h, unsigned parts)
{
    key_panel *p = &x->panel;
    tile *t = &x->tile;
    size_t words = j->pairs ? 2 : 1, lda = j->columns / words;
    if (parts & QUERIES)
        memset(t->d_query, 0, PTB_TILE * j->columns * sizeof *t->d_query);
    for (size_t at = 0; at < p->keys; at += PTB_TILE) {
        size_t keys = p->keys - at < PTB_TILE ? p->keys - at : PTB_TILE;
        ptb_attention_plan plan;
        if (!ptb_attention_plan_block(&t->view, p->first + at, keys, &plan))
            continue;
        ptb_attention_multiply_scores(&plan, j->pairs, j->depth, p->key + at * lda, lda, t->query_transposed,
                                      x->scores);
        ptb_attention_multiply_scores(&plan, j->pairs, j->depth, p->value + at * lda, lda, t->out_transposed,
                                      x->d_scores);
        differentiate_block(j, x, &plan, h, p->first + at);
        if (parts & KEYS) {
            ptb_attention_multiply_queries(&plan, j->pairs, j->columns, x->probabilities, t->d_out,
                                           p->d_value + at * j->columns);
            ptb_attention_multiply_queries(&plan, j->pairs, j->columns, x->d_products, t->query,
                                           p->d_key + at * j->columns);
        }
        if (parts & QUERIES)
            ptb_attention_multiply_keys(&plan, t->view.strips, j->pairs, j->columns,
                                        (const ptb_word *)x->d_scores,
                                        p->key_columns + at / words * j->columns, t->d_query);
    }
}

// ---- gradients of queries

static ptb_attention_output query_output(const job *j, size_t b, size_t h, size_t first, size_t rows)
{
    const ptb_attention_shape *s = &j->args->shape;
    size_t at = (b * s->query_length + first) * s->query_stride + h * j->width;
    return (ptb_attention_output){
        .type = j->type,
        .values = (char *)j->args->d_query + at * ptb_dtype_size(j->type),
        .rows = rows,
        .width = j->width,
        .stride = s->query_stride,
        .accumulate = true,
    };
}

// f32 is summed in place, 16-bit types in `sums` [PTB_TILE, columns].
static void queries_begin(const job *j, size_t b, size_t h, size_t first, size_t rows, float *sums)
{
    if (j->type != PTB_F32) {
        memset(sums, 0, PTB_TILE * j->columns * sizeof *sums);
        return;
    }
    ptb_attention_output out = query_output(j, b, h, first, rows);
    for (size_t r = 0; r < rows && !j->args->accumulate; r++)
        memset((float *)out.values + r * out.stride, 0, j->width * sizeof(float));
}

static void queries_add(const job *j, const tile *t, size_t b, size_t h, size_t first, float *sums)
{
    const ptb_attention_shape *s = &j->args->shape;
    ptb_attention_output out = query_output(j, b, h, first, t->view.rows);
    if (j->type != PTB_F32)
        out = (ptb_attention_output){.type = PTB_F32,
                                     .values = sums,
                                     .rows = t->view.rows,
                                     .width = j->columns,
                                     .stride = j->columns,
                                     .accumulate = true};
    ptb_attention_unpack(&out, t->d_query, &s->scale, 1);
}

static void queries_end(const job *j, size_t b, size_t h, size_t first, size_t rows, const float *sums)
{
    const float one = 1;
    if (j->type == PTB_F32)
        return;
    ptb_attention_output out = query_output(j, b, h, first, rows);
    out.accumulate = j->args->accumulate;
    ptb_attention_unpack(&out, sums, &one, 1);
}

static size_t tile_rows(const ptb_attention_shape *s, size_t first)
{
    return s->query_length - first < PTB_TILE ? s->query_length - first : PTB_TILE;
}

// ---- tasks

// Calls queries_begin or queries_end for all tiles of a group.
static void group_queries(const job *j, scratch *x, size_t b, size_t kv_head, bool end)
{
    const ptb_attention_shape *s = &j->args->shape;
    float *sums = x->sums;
    for (size_t g = 0; g < j->group; g++)
        for (size_t first = 0; first < s->query_length; first += PTB_TILE) {
            size_t h = kv_head * j->group + g, rows = tile_rows(s, first);
            if (end)
                queries_end(j, b, h, first, rows, sums);
            else
                queries_begin(j, b, h, first, rows, sums);
            sums += j->type == PTB_F32 ? 0 : PTB_TILE * j->columns;
        }
}

// All queries of a group against one panel of keys.
static void panel_task(const job *j, scratch *x, size_t b, size_t kv_head, size_t first_key, unsigned parts)
{
    const ptb_attention_shape *s = &j->args->shape;
    panel_begin(j, &x->panel, b, kv_head, first_key);
    float *sums = x->sums;
    for (size_t g = 0; g < j->group; g++)
        for (size_t first = 0; first < s->query_length; first += PTB_TILE) {
            size_t h = kv_head * j->group + g;
            ptb_attention_look(s, b, first, &x->tile.view);
            if (ptb_attention_sees(&x->tile.view, first_key, x->panel.keys)) {
                tile_begin(j, &x->tile, b, h, first);
                tile_panel(j, x, h, parts);
                if (parts & QUERIES)
                    queries_add(j, &x->tile, b, h, first, sums);
            }
            sums += (parts & QUERIES) && j->type != PTB_F32 ? PTB_TILE * j->columns : 0;
        }
    panel_end(j, &x->panel, b, kv_head);
}

// One tile of queries against all keys.
static void tile_task(const job *j, scratch *x, size_t b, size_t h, size_t first)
{
    const ptb_attention_shape *s = &j->args->shape;
    ptb_attention_look(s, b, first, &x->tile.view);
    tile_begin(j, &x->tile, b, h, first);
    queries_begin(j, b, h, first, x->tile.view.rows, x->tile_sum);
    for (size_t key = 0; key < s->key_length; key += j->panel) {
        size_t keys = s->key_length - key < j->panel ? s->key_length - key : j->panel;
        if (!ptb_attention_sees(&x->tile.view, key, keys))
            continue;
        panel_begin(j, &x->panel, b, h / j->group, key);
        tile_panel(j, x, h, QUERIES);
        queries_add(j, &x->tile, b, h, first, x->tile_sum);
    }
    queries_end(j, b, h, first, x->tile.view.rows, x->tile_sum);
}

static void by_group(const job *j)
{
    const ptb_attention_shape *s = &j->args->shape;
#pragma omp parallel for schedule(dynamic)
    for (size_t task = 0; task < s->batch * s->kv_heads; task++) {
        scratch *x = scratch_of(j);
        size_t b = task / s->kv_heads, kv_head = task % s->kv_heads;
        group_queries(j, x, b, kv_head, false);
        for (size_t key = 0; key < s->key_length; key += j->panel)
            panel_task(j, x, b, kv_head, key, KEYS | QUERIES);
        group_queries(j, x, b, kv_head, true);
    }
}

static void by_block(const job *j)
{
    const ptb_attention_shape *s = &j->args->shape;
    size_t panels = (s->key_length + j->panel - 1) / j->panel, groups = s->batch * s->kv_heads;
    size_t tiles = (s->query_length + PTB_TILE - 1) / PTB_TILE, heads = s->batch * s->heads;
    // Under a causal mask early keys and late queries have most to do: the largest tasks first.
#pragma omp parallel for schedule(dynamic)
    for (size_t task = 0; task < groups * panels; task++) {
        size_t group = task % groups;
        panel_task(j, scratch_of(j), group / s->kv_heads, group % s->kv_heads, task / groups * j->panel,
                   KEYS);
    }
#pragma omp parallel for schedule(dynamic)
    for (size_t task = 0; task < heads * tiles; task++) {
        size_t head = task % heads, first = (tiles - 1 - task / heads) * PTB_TILE;
        tile_task(j, scratch_of(j), head / s->heads, head % s->heads, first);
    }
}

ptb_status ptb_host_run_attention_gradient(void *arg)
{
    const ptb_attention_gradient *a = arg;
    const ptb_attention_shape *s = &a->shape;
    bool pairs = ptb_attention_pairs(s->type);
    size_t columns = ptb_attention_columns(s->head_width);
    const job j = {
        .args = a,
        .type = s->type,
        .pairs = pairs,
        .width = s->head_width,
        .columns = columns,
        .depth = ptb_attention_depth(pairs, s->head_width),
        .group = s->heads / s->kv_heads,
        .panel = panel_keys(columns),
        .factor = fabsf(s->scale) * PTB_VEC_LOG2_E,
        .drop_scale = s->dropout_rate > 0 ? ptb_dropout_scale(s->dropout_rate) : 1,
        .threshold = s->dropout_rate > 0 ? ptb_dropout_threshold(s->dropout_rate) : 0,
    };
    size_t threads = (size_t)omp_get_max_threads(), tasks = s->batch * s->kv_heads;
    size_t turns = (tasks + threads - 1) / threads; // of a thread, when a task is a group
    bool fits = s->type == PTB_F32 || sums_floats(s) > 0;
    if (fits && 5 * turns * threads <= 7 * tasks)
        by_group(&j);
    else
        by_block(&j);
    return PTB_OK;
}
