// Which keys of a block the queries of a tile see. Causal masks, offsets and document starts all come down to
// one range of keys a query; whole blocks, strips of queries and groups of keys outside them are not
// computed.
#include "strategies/transformer/kernels_host_attention.h"

static int32_t clamp(int64_t key, size_t key_length)
{
    return (int32_t)(key < 0 ? 0 : key > (int64_t)key_length ? (int64_t)key_length : key);
}

static void join_strips(ptb_attention_view *v)
{
    v->all_low = v->any_high = 0;
    v->all_high = v->any_low = INT32_MAX;
    for (size_t s = 0; s < v->strips; s++) {
        int32_t low = INT32_MAX, low_most = 0, high = 0, high_least = INT32_MAX;
        for (size_t i = s * PTB_STRIP; i < (s + 1) * PTB_STRIP; i++) {
            low = v->low[i] < low ? v->low[i] : low;
            low_most = v->low[i] > low_most ? v->low[i] : low_most;
            high = v->high[i] > high ? v->high[i] : high;
            high_least = v->high[i] < high_least ? v->high[i] : high_least;
        }
        v->strip_low[s] = low;
        v->strip_high[s] = high;
        v->all_low = low_most > v->all_low ? low_most : v->all_low;
        v->all_high = high_least < v->all_high ? high_least : v->all_high;
        v->any_low = low < v->any_low ? low : v->any_low;
        v->any_high = high > v->any_high ? high : v->any_high;
    }
    int32_t falls = 0;
    for (size_t i = 1; i < v->strips * PTB_STRIP; i++)
        falls |= (v->low[i] < v->low[i - 1]) | (v->high[i] < v->high[i - 1]);
    v->ordered = !falls;
}

void ptb_attention_look(const ptb_attention_shape *s, size_t b, size_t first, ptb_attention_view *v)
{
    size_t left = s->query_length - first;
    v->rows = left < PTB_TILE ? left : PTB_TILE;
    v->strips = (v->rows + PTB_STRIP - 1) / PTB_STRIP;
    const int32_t *start = s->query_start ? s->query_start + b * s->query_length + first : NULL;
    int64_t high = s->query_offset + (int64_t)first - s->key_offset + 1;
    for (size_t i = 0; i < v->rows; i++) {
        v->low[i] = clamp((start ? start[i] : 0) - s->key_offset, s->key_length);
        v->high[i] = s->causal ? clamp(high + (int64_t)i, s->key_length) : (int32_t)s->key_length;
    }
    for (size_t i = v->rows; i < v->strips * PTB_STRIP; i++) {
        v->low[i] = v->low[v->rows - 1];
        v->high[i] = v->high[v->rows - 1];
    }
    join_strips(v);
}

// Strip s is computed for the groups that its range touches. Where ranges do not decrease, the strips of a
// group are neighbours; otherwise every strip is computed for every group.
bool ptb_attention_plan_block(const ptb_attention_view *v, size_t first, size_t keys, ptb_attention_plan *p)
{
    int32_t from = (int32_t)first, padded = (int32_t)ptb_round_up(keys, PTB_GROUP);
    if (!ptb_attention_sees(v, first, keys))
        return false;
    p->keys = (size_t)padded;
    p->whole = v->all_low <= from && v->all_high >= from + padded;
    bool all = p->whole || !v->ordered;
    memset(p->strip_begin, 0, sizeof p->strip_begin);
    memset(p->strip_end, 0, sizeof p->strip_end);
    bool some = false;
    for (size_t s = 0; s < v->strips; s++) {
        int32_t begin = all ? 0 : v->strip_low[s] - from, end = all ? padded : v->strip_high[s] - from;
        begin = begin < 0 ? 0 : begin / PTB_GROUP * PTB_GROUP;
        end = end > padded ? padded : end <= 0 ? 0 : (end + PTB_GROUP - 1) / PTB_GROUP * PTB_GROUP;
        p->key_begin[s] = begin < end ? (size_t)begin : 0;
        p->key_end[s] = begin < end ? (size_t)end : 0;
        for (size_t g = p->key_begin[s] / PTB_GROUP; g < p->key_end[s] / PTB_GROUP; g++) {
            if (p->strip_end[g] == 0)
                p->strip_begin[g] = s;
            p->strip_end[g] = s + 1;
        }
        some = some || begin < end;
    }
    return some;
}

static double plan_pairs(const ptb_attention_plan *p, size_t strips)
{
    double keys = 0;
    for (size_t s = 0; s < strips; s++)
        keys += (double)(p->key_end[s] - p->key_begin[s]);
    return keys * PTB_STRIP;
}

double ptb_attention_count_pairs(const ptb_attention_shape *shape)
{
    ptb_attention_shape s = *shape;
    s.query_start = NULL;
    double pairs = 0;
    for (size_t row = 0; row < s.query_length; row += PTB_TILE) {
        ptb_attention_view v;
        ptb_attention_look(&s, 0, row, &v);
        for (size_t key = (size_t)v.any_low / PTB_TILE * PTB_TILE; key < (size_t)v.any_high;) {
            if ((int32_t)key >= v.all_low && (int32_t)key + PTB_TILE <= v.all_high) {
                size_t blocks = ((size_t)v.all_high - key) / PTB_TILE; // whole ones, counted at once
                pairs += (double)(v.strips * PTB_STRIP * blocks * PTB_TILE);
                key += blocks * PTB_TILE;
                continue;
            }
            size_t keys = s.key_length - key < PTB_TILE ? s.key_length - key : PTB_TILE;
            ptb_attention_plan p;
            if (ptb_attention_plan_block(&v, key, keys, &p))
                pairs += plan_pairs(&p, v.strips);
            key += PTB_TILE;
        }
    }
    return pairs;
}

void ptb_attention_draw_rows(const ptb_attention_shape *s, size_t b, size_t first, ptb_attention_draws *draws)
{
    uint64_t row = (s->dropout_sequence + b) * s->total_length + (uint64_t)s->query_offset + first;
    for (size_t i = 0; i < PTB_TILE; i++) {
        uint64_t key = ptb_dropout_key(s->dropout_seed, row + i);
        draws->low[i] = (uint32_t)key;
        draws->high[i] = (uint32_t)(key >> 32);
    }
}
