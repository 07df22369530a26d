// Attention on the host, forward: for each sequence and head, blocks of keys with a running maximum and sum
// (online softmax; Dao 2023, "FlashAttention-2", algorithm 1). A task is a few tiles of queries of one head,
// so that a packed block of keys serves several of them; tasks share nothing, and a tile meets its blocks in
// one order, so results do not depend on the number of threads.
#include "strategies/transformer/kernels_host_attention.h"

#include <omp.h>

enum { PANEL = 4 }; // tiles of a task, at most

// State of a tile. Maxima and sums are of scores times the scale, in units of log 2.
typedef struct {
    ptb_attention_view view;
    ptb_attention_draws draws;
    float largest[PTB_TILE]; // score so far, unscaled
    float base[PTB_TILE];    // largest, scaled; 0 while nothing was seen
    float sum[PTB_TILE];     // of 2^(scaled score - base)
    float keep[PTB_TILE];    // what the block at hand leaves of sums before it
    ptb_word *query;         /* [depth, PTB_TILE] */
    float *out;              /* [PTB_TILE, columns] */
} tile;

typedef struct {
    tile tiles[PANEL];
    ptb_word *key, *value; /* [PTB_TILE, columns] in f32, half of it in pairs */
    float *scores;         /* [PTB_TILE keys, PTB_TILE queries] */
} scratch;

// What a call's inner loops need.
typedef struct {
    const ptb_attention *args;
    ptb_dtype type;
    bool pairs;
    size_t width, columns, depth;
    float factor; // |scale| in units of log 2
    uint32_t threshold;
} job;

static size_t scratch_words(const ptb_attention_shape *s)
{
    size_t columns = ptb_attention_columns(s->head_width);
    size_t panel = PANEL * 2 * PTB_TILE * columns, block = 2 * PTB_TILE * columns;
    return sizeof(scratch) / sizeof(ptb_word) + panel + block + PTB_TILE * PTB_TILE + 16;
}

size_t ptb_host_attention_workspace(const ptb_attention_shape *shape, int threads)
{
    size_t forward = scratch_words(shape) * sizeof(ptb_word);
    size_t gradient = ptb_attention_gradient_scratch(shape);
    return (size_t)threads * ptb_round_up(forward > gradient ? forward : gradient, 64);
}

double ptb_host_attention_flops(const ptb_attention_shape *shape)
{
    return 4 * ptb_attention_count_pairs(shape) * (double)(shape->batch * shape->heads * shape->head_width);
}

static scratch *scratch_of(const job *j)
{
    const ptb_attention_shape *s = &j->args->shape;
    size_t bytes = ptb_round_up(scratch_words(s) * sizeof(ptb_word), 64);
    char *at = (char *)s->workspace + (size_t)omp_get_thread_num() * bytes;
    scratch *x = (scratch *)(void *)at;
    ptb_word *words = (ptb_word *)(void *)(at + ptb_round_up(sizeof *x, 64));
    size_t square = PTB_TILE * j->columns;
    for (size_t t = 0; t < PANEL; t++, words += 2 * square) {
        x->tiles[t].query = words;
        x->tiles[t].out = (float *)(void *)(words + square);
    }
    x->key = words;
    x->value = words + square;
    x->scores = (float *)(void *)(words + 2 * square);
    return x;
}

static void tile_begin(const job *j, tile *t, size_t b, size_t h, size_t first)
{
    const ptb_attention_shape *s = &j->args->shape;
    ptb_attention_look(s, b, first, &t->view);
    size_t row = b * s->query_length + first;
    ptb_attention_rows query = {
        .type = j->type,
        .values =
            (const char *)j->args->query + (row * s->query_stride + h * j->width) * ptb_dtype_size(j->type),
        .rows = t->view.rows,
        .width = j->width,
        .stride = s->query_stride,
    };
    ptb_attention_pack_transposed(&query, s->scale < 0, t->query);
    if (s->dropout_rate > 0)
        ptb_attention_draw_rows(s, b, first, &t->draws);
    for (size_t i = 0; i < PTB_TILE; i++) {
        t->largest[i] = -INFINITY;
        t->base[i] = t->sum[i] = 0;
    }
    memset(t->out, 0, PTB_TILE * j->columns * sizeof *t->out);
}

// The block of scores that a vector of queries is at: keys `begin` to `end` of the block at key row `first`.
typedef struct {
    size_t query, begin, end;
    int32_t first;
    uint32_t column, threshold; // dropout's; column of the block's first key
    float factor;
    ptb_vec_int low, high;
    float *scores;
} vector_block;

PTB_INLINE ptb_vec score(const vector_block *b, size_t key)
{
    return ptb_vec_load(PTB_F32, b->scores, key * PTB_TILE + b->query);
}

// Updates the running maximum; returns the block's base.
PTB_INLINE ptb_vec new_base(tile *t, const vector_block *b, bool masked)
{
    size_t q = b->query;
    ptb_vec before = ptb_vec_load(PTB_F32, t->largest, q), nothing = ptb_vec_set(-INFINITY);
    ptb_vec top = before;
    for (size_t key = b->begin; key < b->end; key++) {
        ptb_vec s = score(b, key);
        if (masked)
            s = ptb_vec_select(ptb_attention_visible(b->low, b->high, b->first + (int32_t)key), s, nothing);
        top = ptb_vec_max(top, s);
    }
    ptb_vec_int empty = top == nothing, new = before == nothing;
    ptb_vec base = ptb_vec_select(empty, ptb_vec_set(0), top * b->factor);
    ptb_vec kept = ptb_vec_exp2(ptb_vec_load(PTB_F32, t->base, q) - base);
    kept = ptb_vec_select(new, ptb_vec_set(1), kept); // there is nothing to scale
    ptb_vec_store(PTB_F32, t->largest, q, top);
    ptb_vec_store(PTB_F32, t->base, q, base);
    ptb_vec_store(PTB_F32, t->keep, q, kept);
    return base;
}

// The probability of a key before it is divided by the sum, added to the sum and then dropped or not.
PTB_INLINE ptb_vec probability(const tile *t, const vector_block *b, ptb_vec base, size_t key, bool masked,
                               bool drop, ptb_vec *sum)
{
    ptb_vec p = ptb_vec_exp2(score(b, key) * b->factor - base);
    if (masked)
        p = (ptb_vec)((ptb_vec_int)p & ptb_attention_visible(b->low, b->high, b->first + (int32_t)key));
    *sum += p;
    if (drop)
        p = (ptb_vec)((ptb_vec_int)p &
                      ptb_attention_kept(&t->draws, b->query, b->column + (uint32_t)key, b->threshold));
    return p;
}

// Scores become probabilities in place, as words along the key: pairs of keys take one row.
PTB_INLINE void softmax(tile *t, const vector_block *block, bool masked, bool drop, bool pairs)
{
    const vector_block copy = *block, *b = &copy; // in registers
    size_t q = b->query;
    ptb_vec base = new_base(t, b, masked), sum = ptb_vec_set(0);
    for (size_t key = b->begin; key < b->end; key += 2) {
        ptb_vec even = probability(t, b, base, key, masked, drop, &sum);
        ptb_vec odd = probability(t, b, base, key + 1, masked, drop, &sum);
        if (pairs) {
            ptb_vec_bits words = ptb_attention_pair(even, odd);
            memcpy(b->scores + key / 2 * PTB_TILE + q, &words, sizeof words);
        } else {
            ptb_vec_store(PTB_F32, b->scores, key * PTB_TILE + q, even);
            ptb_vec_store(PTB_F32, b->scores, (key + 1) * PTB_TILE + q, odd);
        }
    }
    sum += ptb_vec_load(PTB_F32, t->sum, q) * ptb_vec_load(PTB_F32, t->keep, q);
    ptb_vec_store(PTB_F32, t->sum, q, sum);
}

static void softmax_instance(const job *j, tile *t, const vector_block *b, bool masked)
{
    bool drop = j->threshold > 0;
    if (!masked && !drop && !j->pairs)
        softmax(t, b, false, false, false);
    else if (!masked && !drop)
        softmax(t, b, false, false, true);
    else if (!drop && !j->pairs)
        softmax(t, b, true, false, false);
    else if (!drop)
        softmax(t, b, true, false, true);
    else if (j->pairs)
        softmax(t, b, true, true, true);
    else
        softmax(t, b, true, true, false);
}

static void scale_rows(tile *t, size_t strip, size_t columns)
{
    for (size_t i = strip * PTB_STRIP; i < (strip + 1) * PTB_STRIP; i++) {
        float *row = t->out + i * columns;
        if (t->keep[i] == 1)
            continue;
        for (size_t c = 0; c < columns; c += PTB_LANES)
            ptb_vec_store(PTB_F32, row, c, ptb_vec_load(PTB_F32, row, c) * t->keep[i]);
    }
}

static void tile_block(const job *j, scratch *x, tile *t, size_t h, size_t first, size_t keys)
{
    const ptb_attention_shape *s = &j->args->shape;
    ptb_attention_plan plan;
    if (!ptb_attention_plan_block(&t->view, first, keys, &plan))
        return;
    ptb_attention_multiply_scores(&plan, j->pairs, j->depth, x->key, j->pairs ? j->columns / 2 : j->columns,
                                  t->query, x->scores);
    for (size_t strip = 0; strip < t->view.strips; strip++) {
        if (plan.key_begin[strip] == plan.key_end[strip])
            continue;
        for (size_t q = strip * PTB_STRIP; q < (strip + 1) * PTB_STRIP; q += PTB_LANES) {
            vector_block b = {
                .query = q,
                .begin = plan.key_begin[strip],
                .end = plan.key_end[strip],
                .first = (int32_t)first,
                .column = ptb_attention_draw_column(s, h, first),
                .threshold = j->threshold,
                .factor = j->factor,
                .scores = x->scores,
            };
            memcpy(&b.low, t->view.low + q, sizeof b.low);
            memcpy(&b.high, t->view.high + q, sizeof b.high);
            softmax_instance(j, t, &b, !plan.whole);
        }
        scale_rows(t, strip, j->columns);
    }
    ptb_attention_multiply_keys(&plan, t->view.strips, j->pairs, j->columns, (const ptb_word *)x->scores,
                                x->value, t->out);
}

static void tile_end(const job *j, tile *t, size_t b, size_t h, size_t first)
{
    const ptb_attention_shape *s = &j->args->shape;
    float scale = s->dropout_rate > 0 ? ptb_dropout_scale(s->dropout_rate) : 1;
    float *lse = j->args->lse + (b * s->heads + h) * s->query_length + first;
    for (size_t q = 0; q < t->view.rows; q += PTB_LANES) {
        ptb_vec sum = ptb_vec_load(PTB_F32, t->sum, q);
        ptb_vec_int empty = sum == 0;
        ptb_vec total = ptb_vec_load(PTB_F32, t->base, q) * PTB_VEC_LN_2 + ptb_vec_log(sum);
        total = ptb_vec_select(empty, ptb_vec_set(-INFINITY), total);
        size_t left = t->view.rows - q;
        ptb_vec_store_some(PTB_F32, lse, q, left < PTB_LANES ? left : PTB_LANES, total);
        ptb_vec_store(PTB_F32, t->keep, q, ptb_vec_select(empty, ptb_vec_set(0), scale / sum));
    }
    size_t stride = s->heads * j->width, at = (b * s->query_length + first) * stride + h * j->width;
    ptb_attention_output out = {
        .type = j->type,
        .values = (char *)j->args->out + at * ptb_dtype_size(j->type),
        .rows = t->view.rows,
        .width = j->width,
        .stride = stride,
    };
    ptb_attention_unpack(&out, t->out, t->keep, PTB_TILE);
}

static void pack_block(const job *j, scratch *x, size_t b, size_t h, size_t first, size_t keys)
{
    const ptb_attention_shape *s = &j->args->shape;
    size_t head = h / (s->heads / s->kv_heads);
    size_t at = ((b * s->key_length + first) * s->key_stride + head * j->width) * ptb_dtype_size(j->type);
    ptb_attention_rows rows = {
        .type = j->type,
        .values = (const char *)j->args->key + at,
        .rows = keys,
        .width = j->width,
        .stride = s->key_stride,
    };
    size_t padded = ptb_round_up(keys, PTB_GROUP);
    ptb_attention_pack_rows(&rows, padded, x->key);
    rows.values = (const char *)j->args->value + at;
    ptb_attention_pack_columns(&rows, padded, x->value);
}

// Tiles [first, first + tiles) of a head.
static void panel(const job *j, size_t b, size_t h, size_t first, size_t tiles)
{
    const ptb_attention_shape *s = &j->args->shape;
    scratch *x = scratch_of(j);
    int32_t low = INT32_MAX, high = 0;
    for (size_t t = 0; t < tiles; t++) {
        tile_begin(j, &x->tiles[t], b, h, (first + t) * PTB_TILE);
        const ptb_attention_view *v = &x->tiles[t].view;
        low = v->any_low < low ? v->any_low : low;
        high = v->any_high > high ? v->any_high : high;
    }
    for (size_t key = (size_t)low / PTB_TILE * PTB_TILE; key < (size_t)high; key += PTB_TILE) {
        size_t keys = s->key_length - key < PTB_TILE ? s->key_length - key : PTB_TILE;
        bool seen = false;
        for (size_t t = 0; t < tiles; t++)
            seen = seen || ptb_attention_sees(&x->tiles[t].view, key, keys);
        if (!seen)
            continue;
        pack_block(j, x, b, h, key, keys);
        for (size_t t = 0; t < tiles; t++)
            tile_block(j, x, &x->tiles[t], h, key, keys);
    }
    for (size_t t = 0; t < tiles; t++)
        tile_end(j, &x->tiles[t], b, h, (first + t) * PTB_TILE);
}

ptb_status ptb_host_run_attention(void *arg)
{
    const ptb_attention *a = arg;
    const ptb_attention_shape *s = &a->shape;
    bool pairs = ptb_attention_pairs(s->type);
    const job j = {
        .args = a,
        .type = s->type,
        .pairs = pairs,
        .width = s->head_width,
        .columns = ptb_attention_columns(s->head_width),
        .depth = ptb_attention_depth(pairs, s->head_width),
        .factor = fabsf(s->scale) * PTB_VEC_LOG2_E,
        .threshold = s->dropout_rate > 0 ? ptb_dropout_threshold(s->dropout_rate) : 0,
    };
    size_t tiles = (s->query_length + PTB_TILE - 1) / PTB_TILE, heads = s->batch * s->heads;
    // Few heads: smaller tasks, so that every thread has some.
    size_t size = heads * ((tiles + PANEL - 1) / PANEL) < 4 * (size_t)omp_get_max_threads() ? 1 : PANEL;
    size_t panels = (tiles + size - 1) / size;
    // Later panels see more under a causal mask: the largest tasks first.
#pragma omp parallel for schedule(dynamic)
    for (size_t task = 0; task < heads * panels; task++) {
        size_t head = task % heads, first = (panels - 1 - task / heads) * size;
        panel(&j, head / s->heads, head % s->heads, first, tiles - first < size ? tiles - first : size);
    }
    return PTB_OK;
}
