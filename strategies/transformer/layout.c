// The flat index space of a model's parameters; see layout.h. A new kind of block adds its tensors here.
#include "strategies/transformer/layout_cut.h"

#include "core/log.h"
#include "core/random.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { FILL_PIECE = 16384 /* elements */, FILL_THREADS_MAX = 63 };

static ptb_tensor *add_tensor(ptb_unit *unit, ptb_tensor_role role, const char *name, int64_t rows,
                              int64_t columns, float deviation)
{
    ptb_tensor *t = &unit->tensor[unit->tensors++];
    *t = (ptb_tensor){.name = name,
                      .role = role,
                      .matrices = 1,
                      .rows = (size_t)rows,
                      .columns = (size_t)columns,
                      .decay = rows > 1,
                      .deviation = deviation,
                      .number = (uint8_t)(unit->tensors - 1),
                      .whole_matrices = 1};
    return t;
}

static void add_experts(ptb_unit *unit, ptb_tensor_role role, const char *name, int64_t experts, int64_t rows,
                        int64_t columns, float deviation)
{
    ptb_tensor *t = add_tensor(unit, role, name, rows, columns, deviation);
    t->group = PTB_GROUP_EXPERT;
    t->decay = true;
    t->matrices = t->whole_matrices = (size_t)experts;
}

static void add_norm(ptb_unit *unit, const ptb_model_shape *s, ptb_tensor_role gain, const char *gain_name,
                     const char *bias_name)
{
    add_tensor(unit, gain, gain_name, 1, s->hidden, 0)->mean = 1;
    if (s->norm == PTB_LAYER_NORM && s->biases)
        add_tensor(unit, (ptb_tensor_role)(gain + 1), bias_name, 1, s->hidden, 0);
}

static void add_linear(ptb_unit *unit, const ptb_model_shape *s, ptb_tensor_role weight,
                       const char *weight_name, const char *bias_name, int64_t outputs, int64_t inputs,
                       float deviation)
{
    add_tensor(unit, weight, weight_name, outputs, inputs, deviation)->decay = true;
    if (s->biases)
        add_tensor(unit, (ptb_tensor_role)(weight + 1), bias_name, 1, outputs, 0);
}

static void lay_out_mixture(ptb_unit *unit, const ptb_model_shape *s, int64_t gates, float residual)
{
    int64_t h = s->hidden, f = s->expert_hidden, shared = s->shared_experts * f;
    add_tensor(unit, PTB_BLOCK_ROUTER_WEIGHT, "router.weight", s->experts, h, 0.02f)->decay = true;
    if (shared) {
        add_tensor(unit, PTB_BLOCK_SHARED_UP_WEIGHT, gates == 2 ? "shared.gate_up" : "shared.up",
                   gates * shared, h, 0.02f)
            ->decay = true;
        add_tensor(unit, PTB_BLOCK_SHARED_DOWN_WEIGHT, "shared.down", h, shared, residual)->decay = true;
    }
    add_experts(unit, PTB_BLOCK_EXPERTS_UP_WEIGHT, gates == 2 ? "experts.gate_up" : "experts.up", s->experts,
                gates * f, h, 0.02f);
    add_experts(unit, PTB_BLOCK_EXPERTS_DOWN_WEIGHT, "experts.down", s->experts, h, f, residual);
}

static void lay_out_block(ptb_unit *unit, const ptb_model_shape *s)
{
    int64_t h = s->hidden, gates = s->activation == PTB_SWIGLU ? 2 : 1;
    float residual = 0.02f / sqrtf(2 * (float)s->layers);
    add_norm(unit, s, PTB_BLOCK_NORM1_GAIN, "norm1.gain", "norm1.bias");
    add_linear(unit, s, PTB_BLOCK_QKV_WEIGHT, "qkv.weight", "qkv.bias",
               (s->heads + 2 * s->kv_heads) * s->head_width, h, 0.02f);
    add_linear(unit, s, PTB_BLOCK_PROJECTION_WEIGHT, "projection.weight", "projection.bias", h,
               s->heads * s->head_width, residual);
    add_norm(unit, s, PTB_BLOCK_NORM2_GAIN, "norm2.gain", "norm2.bias");
    if (unit->mixture) {
        lay_out_mixture(unit, s, gates, residual);
        return;
    }
    add_linear(unit, s, PTB_BLOCK_UP_WEIGHT, gates == 2 ? "gate_up.weight" : "up.weight",
               gates == 2 ? "gate_up.bias" : "up.bias", gates * s->feed_forward, h, 0.02f);
    add_linear(unit, s, PTB_BLOCK_DOWN_WEIGHT, "down.weight", "down.bias", h, s->feed_forward, residual);
}

static void add_tensors(ptb_unit *unit, const ptb_model_shape *s)
{
    switch (unit->kind) {
    case PTB_UNIT_EMBEDDING:
        add_tensor(unit, PTB_EMBED_TOKENS, "tokens", s->vocabulary, s->hidden, 0.02f)->decay = true;
        if (s->position == PTB_LEARNED_POSITIONS)
            add_tensor(unit, PTB_EMBED_POSITIONS, "positions", s->positions, s->hidden, 0.02f)->decay = true;
        break;
    case PTB_UNIT_BLOCK:
        lay_out_block(unit, s);
        break;
    case PTB_UNIT_HEAD:
        add_norm(unit, s, PTB_HEAD_NORM_GAIN, "norm.gain", "norm.bias");
        if (!s->tied)
            add_tensor(unit, PTB_HEAD_WEIGHT, "head.weight", s->vocabulary, s->hidden, 0.02f)->decay = true;
        break;
    }
}

static void lay_out_unit(ptb_unit *unit, const ptb_model_shape *s, const ptb_layout_cut *cut)
{
    add_tensors(unit, s);
    for (size_t t = 0; t < unit->tensors; t++)
        ptb_layout_cut_tensor(&unit->tensor[t], s, cut);
    ptb_layout_place_tensors(unit, cut->tp > 1);
}

// Writes what zeros stand for.
static ptb_model_shape resolved(const ptb_model_shape *asked)
{
    ptb_model_shape s = *asked;
    s.kv_heads = s.kv_heads ? s.kv_heads : s.heads;
    s.head_width = s.head_width ? s.head_width : s.hidden / s.heads;
    s.feed_forward = s.feed_forward ? s.feed_forward : 4 * s.hidden;
    s.positions = s.positions ? s.positions : s.sequence;
    s.epsilon = s.epsilon > 0 ? s.epsilon : 1e-5;
    s.rotary_base = s.rotary_base > 0 ? s.rotary_base : 10000;
    if (s.experts)
        s.expert_hidden = s.expert_hidden ? s.expert_hidden : s.feed_forward;
    return s;
}

static ptb_status check_sizes(const ptb_model_shape *s)
{
    const struct {
        const char *name;
        int64_t value, least;
    } sizes[] = {{"layers", s->layers, 1},
                 {"hidden", s->hidden, 1},
                 {"heads", s->heads, 1},
                 {"sequence", s->sequence, 1},
                 {"vocabulary", s->vocabulary, 2},
                 {"kv_heads", s->kv_heads, 0},
                 {"head_width", s->head_width, 0},
                 {"feed_forward", s->feed_forward, 0},
                 {"positions", s->positions, 0},
                 {"experts", s->experts, 0},
                 {"top_k", s->top_k, 0},
                 {"expert_hidden", s->expert_hidden, 0},
                 {"shared_experts", s->shared_experts, 0},
                 {"dense_layers", s->dense_layers, 0}};
    const int64_t most = (int64_t)1 << 40; // sums and products of two stay far from the end of an int64_t
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (sizes[i].value >= sizes[i].least && sizes[i].value <= most)
            continue;
        ptb_error("%s is %" PRId64 "; a model needs %" PRId64 " to %" PRId64, sizes[i].name, sizes[i].value,
                  sizes[i].least, most);
        return PTB_USAGE;
    }
    if (!(s->dropout >= 0 && s->dropout < 1)) {
        ptb_error("a dropout rate of %g is not within 0 (none) and 1 (excluded)", s->dropout);
        return PTB_USAGE;
    }
    return PTB_OK;
}

static ptb_status check_attention(const ptb_model_shape *s)
{
    if (!s->head_width && s->hidden % s->heads) {
        ptb_error("--heads %" PRId64 " does not divide --hidden %" PRId64 ": %" PRId64 " / %" PRId64
                  " = %" PRId64 " remainder %" PRId64 "; every head needs the same width",
                  s->heads, s->hidden, s->hidden, s->heads, s->hidden / s->heads, s->hidden % s->heads);
        return PTB_USAGE;
    }
    int64_t width = s->head_width ? s->head_width : s->hidden / s->heads;
    if (s->kv_heads && s->heads % s->kv_heads) {
        ptb_error("--kv-heads %" PRId64 " does not divide --heads %" PRId64 ": %" PRId64 " / %" PRId64
                  " = %" PRId64 " remainder %" PRId64 "; every key and value head serves as many query heads",
                  s->kv_heads, s->heads, s->heads, s->kv_heads, s->heads / s->kv_heads,
                  s->heads % s->kv_heads);
        return PTB_USAGE;
    }
    if (s->position == PTB_ROTARY_POSITIONS && width % 2) {
        ptb_error("rotary positions turn pairs of columns, and a head of width %" PRId64 "%s has an odd one; "
                  "choose --hidden and --heads for an even width, or learned positions",
                  width, s->head_width ? "" : " (hidden / heads)");
        return PTB_USAGE;
    }
    if (s->positions && s->sequence > s->positions) {
        ptb_error("--sequence %" PRId64 " is longer than the %" PRId64 " positions of the model by %" PRId64
                  "; use a sequence of at most %" PRId64 ", or a model with more positions",
                  s->sequence, s->positions, s->sequence - s->positions, s->positions);
        return PTB_USAGE;
    }
    return PTB_OK;
}

static ptb_status check_mixture(const ptb_model_shape *s)
{
    if (!s->experts) {
        if (!s->top_k && !s->expert_hidden && !s->shared_experts && !s->dense_layers)
            return PTB_OK;
        ptb_error("--top-k %" PRId64 ", --expert-hidden %" PRId64 ", --shared-experts %" PRId64
                  " or --dense-layers %" PRId64 " asks for a mixture of experts, but --experts is 0",
                  s->top_k, s->expert_hidden, s->shared_experts, s->dense_layers);
        return PTB_USAGE;
    }
    if (s->experts > PTB_EXPERTS_MAX) {
        ptb_error("--experts %" PRId64 " is more than the %d that a router chooses from", s->experts,
                  PTB_EXPERTS_MAX);
        return PTB_USAGE;
    }
    if (s->top_k < 1 || s->top_k > s->experts) {
        ptb_error("--top-k %" PRId64 " of --experts %" PRId64 ": a token goes to 1 to %" PRId64 " of them",
                  s->top_k, s->experts, s->experts);
        return PTB_USAGE;
    }
    if (s->dense_layers >= s->layers) {
        ptb_error("--dense-layers %" PRId64 " of --layers %" PRId64 " leaves no block for --experts %" PRId64,
                  s->dense_layers, s->layers, s->experts);
        return PTB_USAGE;
    }
    if (!(s->capacity_factor >= 0 && s->capacity_factor < 1e9) || !(s->balance >= 0 && s->balance < 1e9)) {
        ptb_error("a capacity factor of %g or a balance coefficient of %g is not a number from 0 on",
                  s->capacity_factor, s->balance);
        return PTB_USAGE;
    }
    return PTB_OK;
}

// Elements of the model, against what an index can count with room for bytes and for sums of them.
static ptb_status check_magnitude(const ptb_model_shape *s)
{
    double h = (double)s->hidden, width = (double)s->head_width, gates = s->activation == PTB_SWIGLU ? 3 : 2;
    double attention = 2 * h * width * (double)(s->heads + s->kv_heads);
    double dense = gates * h * (double)s->feed_forward;
    double mixture = h * (double)s->experts +
                     gates * h * (double)s->expert_hidden * (double)(s->experts + s->shared_experts);
    double blocks = (double)s->layers * (attention + (s->experts && mixture > dense ? mixture : dense));
    double tables = h * (2 * (double)s->vocabulary + (double)s->positions);
    if (blocks + tables < 0x1p56 && s->layers < (1 << 24))
        return PTB_OK;
    ptb_error("%" PRId64 " blocks of %.3g parameters and tables of %.3g make %.3g, more than can be counted; "
              "use smaller sizes",
              s->layers, blocks / (double)s->layers, tables, blocks + tables);
    return PTB_USAGE;
}

static void count_unit(ptb_layout *l, const ptb_unit *unit)
{
    size_t top_k = (size_t)l->shape.top_k;
    for (size_t t = 0; t < unit->tensors; t++) {
        const ptb_tensor *tensor = &unit->tensor[t];
        size_t count = ptb_tensor_whole_count(tensor);
        l->parameters += count;
        l->active_parameters +=
            tensor->group == PTB_GROUP_EXPERT ? count / tensor->whole_matrices * top_k : count;
        if (unit->kind == PTB_UNIT_EMBEDDING)
            l->embedding_parameters += count;
    }
}

ptb_status ptb_layout_init(ptb_layout *layout, const ptb_model_shape *shape, const ptb_layout_cut *cut)
{
    PTB_TRY(check_sizes(shape));
    PTB_TRY(check_attention(shape));
    PTB_TRY(check_mixture(shape));
    ptb_layout l = {.shape = resolved(shape), .cut = {1, 0, 1, 0}};
    PTB_TRY(check_magnitude(&l.shape));
    if (cut && cut->tp > 1)
        l.cut.tp = cut->tp, l.cut.tp_rank = cut->tp_rank;
    if (cut && cut->ep > 1)
        l.cut.ep = cut->ep, l.cut.ep_rank = cut->ep_rank;
    PTB_TRY(ptb_layout_cut_shape(&l));
    l.units = (size_t)shape->layers + 2;
    l.unit = calloc(l.units, sizeof *l.unit);
    if (!l.unit) {
        ptb_error("no memory to describe %zu units", l.units);
        return PTB_NO_MEMORY;
    }
    for (size_t u = 0; u < l.units; u++) {
        ptb_unit *unit = &l.unit[u];
        unit->kind = u == 0 ? PTB_UNIT_EMBEDDING : u + 1 == l.units ? PTB_UNIT_HEAD : PTB_UNIT_BLOCK;
        unit->mixture = unit->kind == PTB_UNIT_BLOCK && l.shape.experts && u > (size_t)l.shape.dense_layers;
        unit->first = l.count;
        lay_out_unit(unit, &l.shape, &l.cut);
        l.count += unit->count;
        count_unit(&l, unit);
    }
    *layout = l;
    return PTB_OK;
}

void ptb_layout_release(ptb_layout *layout)
{
    free(layout->unit);
    *layout = (ptb_layout){0};
}

// Values [first, first + count) of a tensor's part.
static void fill_tensor(const ptb_tensor *tensor, uint64_t seed, uint64_t stream, size_t first, size_t count,
                        float *values)
{
    float mean = tensor->mean, deviation = tensor->deviation;
    if (deviation == 0) {
        for (size_t i = 0; i < count; i++)
            values[i] = mean;
        return;
    }
    for (size_t at = 0, run; at < count; at += run) {
        size_t whole;
        run = ptb_tensor_run(tensor, first + at, &whole);
        run = run < count - at ? run : count - at;
        ptb_random_normals(seed, stream, whole, run, values + at);
    }
    for (size_t i = 0; i < count; i++)
        values[i] = mean + deviation * values[i];
}

// The part of [first, end) of the index space that lies in the unit; values are those from `first` on.
static void fill_unit(const ptb_layout *layout, uint64_t seed, size_t unit, size_t first, size_t end,
                      float *values)
{
    const ptb_unit *u = &layout->unit[unit];
    for (size_t t = 0; t < u->tensors; t++) {
        const ptb_tensor *tensor = &u->tensor[t];
        size_t begins = u->first + tensor->first, ends = begins + ptb_tensor_count(tensor);
        size_t from = begins > first ? begins : first, to = ends < end ? ends : end;
        if (from < to)
            fill_tensor(tensor, seed, (uint64_t)unit << 8 | tensor->number, from - begins, to - from,
                        values + (from - first));
    }
}

size_t ptb_layout_unit_at(const ptb_layout *layout, size_t element)
{
    size_t low = 0, high = layout->units - 1;
    while (low < high) {
        size_t middle = low + (high - low + 1) / 2;
        if (layout->unit[middle].first <= element)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

static void fill_piece(const ptb_layout *layout, uint64_t seed, size_t first, size_t count, float *values)
{
    memset(values, 0, count * sizeof *values); // padding
    for (size_t u = ptb_layout_unit_at(layout, first);
         u < layout->units && layout->unit[u].first < first + count; u++)
        fill_unit(layout, seed, u, first, first + count, values);
}

// A range that several threads fill, a piece at a time.
typedef struct {
    const ptb_layout *layout;
    uint64_t seed;
    size_t first, count;
    float *values;
    _Atomic size_t next; // element of the range that nobody has taken yet
} filling;

static void *fill_pieces(void *arg)
{
    filling *f = arg;
    for (size_t at; (at = atomic_fetch_add(&f->next, FILL_PIECE)) < f->count;) {
        size_t n = f->count - at < FILL_PIECE ? f->count - at : FILL_PIECE;
        fill_piece(f->layout, f->seed, f->first + at, n, f->values + at);
    }
    return NULL;
}

// Threads of its own, which end here: more threads of OpenMP than processors would make those of the kernels
// wait less eagerly for all the time that follows. Fewer, where no more can be started.
void ptb_layout_fill_range(const ptb_layout *layout, uint64_t seed, size_t first, size_t count, int threads,
                           float *values)
{
    filling f = {layout, seed, first, count, values, 0};
    pthread_t helper[FILL_THREADS_MAX];
    size_t wanted = count / FILL_PIECE < (size_t)threads ? count / FILL_PIECE : (size_t)threads, started = 0;
    sigset_t all, before; // signals are for the main thread
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (started + 1 < wanted && started < FILL_THREADS_MAX &&
           pthread_create(&helper[started], NULL, fill_pieces, &f) == 0)
        started++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    fill_pieces(&f);
    while (started > 0)
        pthread_join(helper[--started], NULL);
}

void ptb_layout_fill(const ptb_layout *layout, uint64_t seed, size_t unit, float *parameters)
{
    const ptb_unit *u = &layout->unit[unit];
    ptb_layout_fill_range(layout, seed, u->first, u->count, 1, parameters);
}

static double flops_attention(const ptb_layout *layout, double factor)
{
    const ptb_model_shape *s = &layout->shape;
    return factor * (double)s->layers * (double)(s->heads * s->head_width) * (double)s->sequence;
}

double ptb_layout_flops_palm(const ptb_layout *layout)
{
    return 6.0 * (double)(layout->active_parameters - layout->embedding_parameters) +
           flops_attention(layout, 12);
}

double ptb_layout_flops_causal(const ptb_layout *layout)
{
    return 6.0 * (double)(layout->active_parameters - layout->embedding_parameters) +
           flops_attention(layout, 6);
}

double ptb_layout_flops_megatron(const ptb_layout *layout)
{
    const ptb_model_shape *s = &layout->shape;
    double h = (double)s->hidden, width = (double)s->head_width, g = s->activation == PTB_SWIGLU ? 3 : 2;
    double mixtures = s->experts ? (double)(s->layers - s->dense_layers) : 0;
    double heads = 2 * h * width * (double)(s->heads + s->kv_heads);
    double dense = g * h * (double)s->feed_forward;
    double experts = g * h * (double)(s->top_k + s->shared_experts) * (double)s->expert_hidden;
    double blocks = (double)s->layers * heads + ((double)s->layers - mixtures) * dense + mixtures * experts;
    return 6 * (blocks + h * (double)s->vocabulary) + flops_attention(layout, 6);
}

double ptb_layout_flops_linear(const ptb_layout *layout)
{
    const ptb_model_shape *s = &layout->shape;
    double routers =
        s->experts ? (double)(s->layers - s->dense_layers) * (double)(s->experts * s->hidden) : 0;
    return (ptb_layout_flops_megatron(layout) - flops_attention(layout, 6)) / 3 + 2 * routers;
}
