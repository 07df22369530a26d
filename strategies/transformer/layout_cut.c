// See layout_cut.h. Column-parallel layers (query, key and value; up) are cut by rows of their weights
// [outputs, inputs], each kind of output for itself; row-parallel ones (projection, down) by columns; the
// tables by rows of the vocabulary (Shoeybi et al. 2019, section 3). Experts are cut by ep into whole ones,
// each of which is cut by tp as a dense feed-forward is.
#include "strategies/transformer/layout_cut.h"

#include "collectives/comm.h"
#include "core/log.h"

#include <inttypes.h>
#include <string.h>

enum { ALIGN = 32 }; // elements

typedef enum { NOT_CUT, BY_LINES, BY_COLUMNS } direction;

// How a tensor is cut over tp: its direction, and the widths that follow each other in it, each cut for
// itself; 0: no more.
typedef struct {
    direction direction;
    size_t width[PTB_BANDS_MAX];
} cutting;

static cutting feed_forward(direction direction, size_t width, bool gated)
{
    return (cutting){direction, {width, gated ? width : 0}};
}

static cutting cutting_of(ptb_tensor_role role, const ptb_model_shape *s)
{
    size_t d = (size_t)s->head_width, heads = (size_t)s->heads * d, kv = (size_t)s->kv_heads * d;
    size_t shared = (size_t)(s->shared_experts * s->expert_hidden);
    bool gated = s->activation == PTB_SWIGLU;
    switch (role) {
    case PTB_EMBED_TOKENS:
    case PTB_HEAD_WEIGHT:
        return (cutting){BY_LINES, {(size_t)s->vocabulary}};
    case PTB_BLOCK_QKV_WEIGHT:
    case PTB_BLOCK_QKV_BIAS:
        return (cutting){BY_LINES, {heads, kv, kv}};
    case PTB_BLOCK_PROJECTION_WEIGHT:
        return (cutting){BY_COLUMNS, {heads}};
    case PTB_BLOCK_UP_WEIGHT:
    case PTB_BLOCK_UP_BIAS:
        return feed_forward(BY_LINES, (size_t)s->feed_forward, gated);
    case PTB_BLOCK_DOWN_WEIGHT:
        return feed_forward(BY_COLUMNS, (size_t)s->feed_forward, false);
    case PTB_BLOCK_SHARED_UP_WEIGHT:
        return feed_forward(BY_LINES, shared, gated);
    case PTB_BLOCK_SHARED_DOWN_WEIGHT:
        return feed_forward(BY_COLUMNS, shared, false);
    case PTB_BLOCK_EXPERTS_UP_WEIGHT:
        return feed_forward(BY_LINES, (size_t)s->expert_hidden, gated);
    case PTB_BLOCK_EXPERTS_DOWN_WEIGHT:
        return feed_forward(BY_COLUMNS, (size_t)s->expert_hidden, false);
    default:
        return (cutting){NOT_CUT, {0}};
    }
}

static ptb_status check_part(const char *what, int64_t count, int64_t parts, const char *axis)
{
    if (count == 0 || count >= parts)
        return PTB_OK;
    ptb_error("%s %" PRId64 " cannot be cut over %s=%" PRId64 ": every rank needs 1 at least", what, count,
              axis, parts);
    return PTB_USAGE;
}

static ptb_status check_whole(const char *what, int64_t count, int64_t parts, const char *axis)
{
    if (count % parts == 0)
        return PTB_OK;
    ptb_error("%s=%" PRId64 " does not divide %s %" PRId64 ": %" PRId64 " = %" PRId64 " x %" PRId64
              " + %" PRId64 "; every rank has as many",
              axis, parts, what, count, count, parts, count / parts, count % parts);
    return PTB_USAGE;
}

ptb_status ptb_layout_cut_shape(ptb_layout *l)
{
    const ptb_model_shape *s = &l->shape;
    const ptb_layout_cut *c = &l->cut;
    PTB_TRY(check_whole("--heads", s->heads, c->tp, "tp"));
    PTB_TRY(check_whole("--kv-heads", s->kv_heads, c->tp, "tp"));
    PTB_TRY(check_whole("--experts", s->experts, c->ep, "ep"));
    PTB_TRY(check_part("--feed-forward", s->feed_forward, c->tp, "tp"));
    PTB_TRY(check_part("--expert-hidden", s->expert_hidden, c->tp, "tp"));
    PTB_TRY(check_part("--vocab", s->vocabulary, c->tp, "tp"));
    if (c->ep > 1)
        PTB_TRY(check_part("--experts", s->experts ? s->experts : 1, c->ep, "ep"));
    ptb_range tokens = ptb_block((size_t)s->vocabulary, c->tp, c->tp_rank);
    l->local = *s;
    l->local.heads /= c->tp;
    l->local.kv_heads /= c->tp;
    l->local.experts /= c->ep;
    l->local.vocabulary = (int64_t)tokens.count;
    l->local.feed_forward = (int64_t)ptb_block((size_t)s->feed_forward, c->tp, c->tp_rank).count;
    l->local.expert_hidden = (int64_t)ptb_block((size_t)s->expert_hidden, c->tp, c->tp_rank).count;
    l->shared_width = ptb_block((size_t)(s->shared_experts * s->expert_hidden), c->tp, c->tp_rank).count;
    l->first_token = tokens.first;
    l->first_head = (size_t)(l->local.heads * c->tp_rank);
    l->first_expert = (size_t)(l->local.experts * c->ep_rank);
    return PTB_OK;
}

static bool is_vector(const ptb_tensor *t)
{
    switch (t->role) {
    case PTB_BLOCK_NORM1_GAIN:
    case PTB_BLOCK_NORM1_BIAS:
    case PTB_BLOCK_QKV_BIAS:
    case PTB_BLOCK_PROJECTION_BIAS:
    case PTB_BLOCK_NORM2_GAIN:
    case PTB_BLOCK_NORM2_BIAS:
    case PTB_BLOCK_UP_BIAS:
    case PTB_BLOCK_DOWN_BIAS:
    case PTB_HEAD_NORM_GAIN:
    case PTB_HEAD_NORM_BIAS:
        return true;
    default:
        return false;
    }
}

// Bands of lines; returns how many lines they are.
static size_t cut_lines(ptb_tensor *t, const cutting *how, const ptb_layout_cut *cut)
{
    size_t lines = 0, begin = 0;
    for (size_t b = 0; b < PTB_BANDS_MAX && how->width[b]; b++) {
        ptb_range part = ptb_block(how->width[b], cut->tp, cut->tp_rank);
        t->band[b].first = begin + part.first;
        t->band[b].count = part.count;
        begin += how->width[b];
        lines += part.count;
    }
    return lines;
}

void ptb_layout_cut_tensor(ptb_tensor *t, const ptb_model_shape *whole, const ptb_layout_cut *cut)
{
    bool vector = is_vector(t);
    cutting how = cutting_of(t->role, whole);
    size_t *lines = vector ? &t->columns : &t->rows;
    t->whole_lines = *lines;
    t->whole_line = vector ? 1 : t->columns;
    t->replicated = cut->tp > 1 && how.direction == NOT_CUT;
    if (t->group == PTB_GROUP_EXPERT) {
        t->matrices /= (size_t)cut->ep;
        t->first_matrix = t->matrices * (size_t)cut->ep_rank;
    }
    if (how.direction == BY_LINES) {
        *lines = cut_lines(t, &how, cut);
        return;
    }
    t->band[0].count = *lines;
    if (how.direction == BY_COLUMNS) {
        ptb_range part = ptb_block(t->columns, cut->tp, cut->tp_rank);
        t->first_column = part.first;
        t->columns = part.count;
    }
}

size_t ptb_tensor_run(const ptb_tensor *t, size_t at, size_t *whole)
{
    size_t lines = 0, width = t->whole_line == 1 ? 1 : t->columns, band = 0;
    for (size_t b = 0; b < PTB_BANDS_MAX; b++)
        lines += t->band[b].count;
    size_t matrix = at / (lines * width), line = at / width % lines, column = at % width;
    while (line >= t->band[band].count)
        line -= t->band[band++].count;
    size_t row = (t->first_matrix + matrix) * t->whole_lines + t->band[band].first + line;
    *whole = row * t->whole_line + t->first_column + column;
    size_t rest = width - column;
    return width == t->whole_line ? rest + (t->band[band].count - line - 1) * width : rest;
}

// Which come first: 0 dense and cut, 1 dense and replicated, 2 of experts.
static int rank_of(const ptb_tensor *t, bool replicated_last)
{
    return t->group == PTB_GROUP_EXPERT ? 2 : replicated_last && t->replicated;
}

void ptb_layout_place_tensors(ptb_unit *unit, bool replicated_last)
{
    ptb_tensor added[PTB_TENSORS_MAX];
    size_t end[3], placed = 0;
    memcpy(added, unit->tensor, sizeof added);
    for (int rank = 0; rank < 3; rank++) {
        for (size_t t = 0; t < unit->tensors; t++) {
            if (rank_of(&added[t], replicated_last) != rank)
                continue;
            ptb_tensor *to = &unit->tensor[placed++];
            *to = added[t];
            to->first = unit->count;
            unit->place[to->role] = (int8_t)placed;
            unit->count += (ptb_tensor_count(to) + ALIGN - 1) / ALIGN * ALIGN;
        }
        end[rank] = unit->count;
    }
    unit->replicated_first = replicated_last ? end[0] : end[1];
    unit->group[PTB_GROUP_DENSE].count = end[1];
    unit->group[PTB_GROUP_EXPERT].first = end[1];
    unit->group[PTB_GROUP_EXPERT].count = end[2] - end[1];
}
