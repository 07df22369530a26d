// What data-parallel strategies share.
#include "strategies/data/data.h"

#include "core/random.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Two pieces of host memory that copies pass without staging: one is copied while the host is busy with the
// other.
enum { PIECE = 1 << 20, PIECES = 2 }; // elements: 4 MiB a piece
typedef struct {
    ptb_device *device;
    float *memory[PIECES]; /* [PIECE] */
    ptb_event *copied[PIECES];
} staging;

static void staging_release(staging *s)
{
    for (int i = 0; i < PIECES; i++) {
        ptb_event_free(s->copied[i]);
        ptb_device_free_host(s->device, s->memory[i]);
    }
}

static ptb_status staging_init(staging *s, ptb_device *device, size_t count)
{
    size_t bytes = (count < PIECE ? count : PIECE) * sizeof(float);
    *s = (staging){.device = device};
    for (int i = 0; i < PIECES; i++) {
        void *memory;
        ptb_status status = ptb_device_alloc_host(device, bytes ? bytes : 1, &memory);
        if (status == PTB_OK) {
            s->memory[i] = memory;
            status = ptb_event_new(device, &s->copied[i]);
        }
        if (status != PTB_OK) {
            staging_release(s);
            return status;
        }
    }
    return PTB_OK;
}

static size_t piece_count(size_t count, size_t first)
{
    return count - first < PIECE ? count - first : PIECE;
}

static ptb_status fill_pieces(const ptb_data_env *e, staging *s, size_t begin, size_t count,
                              float *parameters)
{
    for (size_t first = 0, number = 0; first < count; first += PIECE, number++) {
        size_t n = piece_count(count, first), at = number % PIECES;
        PTB_TRY(ptb_event_sync(s->copied[at])); // its last copy has read it
        ptb_layout_fill_range(e->layout, e->seed, begin + first, n, e->threads, s->memory[at]);
        PTB_TRY(ptb_stream_copy(e->compute, parameters + first, s->memory[at], n * sizeof(float)));
        PTB_TRY(ptb_event_record(s->copied[at], e->compute));
    }
    return PTB_OK;
}

ptb_status ptb_data_fill(const ptb_data_env *e, size_t first, size_t count, float *parameters)
{
    staging s;
    PTB_TRY(staging_init(&s, e->device, count));
    ptb_status status = fill_pieces(e, &s, first, count, parameters), synced = ptb_stream_sync(e->compute);
    staging_release(&s);
    return status != PTB_OK ? status : synced;
}

// The three kinds of tensors that different ranks have the same of; a unit's follow each other in this order.
enum { CUT, REPLICATED, EXPERTS, KINDS };

typedef struct {
    size_t first, end; // of the index space
    int kind;
    size_t unit;
} stretch;

// The stretch of one kind that element `at` is in; past the end of a unit comes the next.
static stretch stretch_at(const ptb_layout *layout, size_t at)
{
    size_t unit = ptb_layout_unit_at(layout, at);
    const ptb_unit *u = &layout->unit[unit];
    size_t ends[KINDS] = {u->replicated_first, u->group[PTB_GROUP_EXPERT].first, u->count};
    size_t first = 0;
    for (int kind = 0; kind < KINDS; kind++) {
        if (at - u->first < ends[kind])
            return (stretch){u->first + first, u->first + ends[kind], kind, unit};
        first = ends[kind];
    }
    return (stretch){at, u->first + u->count, CUT, unit};
}

// A sum, so that pieces can be summed in any order.
static uint64_t hash_values(const float *values, uint64_t first, size_t count)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        sum += ptb_random_mix((first + i + 1) * 0x9e3779b97f4a7c15u + (bits + 1ull) * 0xd1b54a32d192ed03u);
    }
    return sum;
}

// The place of an element that all ranks who have it agree on. Before what is replicated over tp, ranks have
// more or less where parts differ in size (a vocabulary that tp does not divide), so it is counted from its
// own beginning, in each unit; a unit's padding, of zeros, may differ too, and is behind it.
static uint64_t place_of(const stretch *s, size_t at)
{
    return s->kind == REPLICATED ? (uint64_t)s->unit << 40 | (at - s->first) : at;
}

static void hash_piece(const ptb_layout *layout, const float *values, size_t first, size_t count,
                       uint64_t sums[KINDS])
{
    for (size_t at = first; at < first + count;) {
        stretch s = stretch_at(layout, at);
        size_t n = s.end < first + count ? s.end - at : first + count - at;
        sums[s.kind] += hash_values(values + (at - first), place_of(&s, at), n);
        at += n;
    }
}

static ptb_status copy_piece(const ptb_data_env *e, staging *s, const ptb_data_part *part, size_t number)
{
    size_t first = number * PIECE, at = number % PIECES;
    if (first >= part->count)
        return PTB_OK;
    PTB_TRY(ptb_stream_copy(e->compute, s->memory[at], part->values + first,
                            piece_count(part->count, first) * sizeof(float)));
    return ptb_event_record(s->copied[at], e->compute);
}

static ptb_status hash_part(const ptb_data_env *e, staging *s, const ptb_data_part *part,
                            uint64_t sums[KINDS])
{
    PTB_TRY(copy_piece(e, s, part, 0));
    for (size_t first = 0, number = 0; first < part->count; first += PIECE, number++) {
        PTB_TRY(copy_piece(e, s, part, number + 1));
        PTB_TRY(ptb_event_sync(s->copied[number % PIECES]));
        hash_piece(e->layout, s->memory[number % PIECES], part->first + first,
                   piece_count(part->count, first), sums);
    }
    return PTB_OK;
}

static ptb_status hash_parts(ptb_data *d, uint64_t sums[KINDS])
{
    staging s;
    ptb_data_part part;
    ptb_status status = staging_init(&s, d->env.device, d->env.layout->count);
    if (status != PTB_OK)
        return status;
    for (size_t i = 0; status == PTB_OK && d->ops->part(d, PTB_DATA_PARAMETERS, i, &part); i++)
        status = hash_part(&d->env, &s, &part, sums);
    ptb_status synced = ptb_stream_sync(d->env.compute);
    staging_release(&s);
    return status != PTB_OK ? status : synced;
}

// The sum over the ranks of a world of sums[0..count).
static ptb_status add_up(ptb_world *world, uint64_t *sums, size_t count, ptb_status mine)
{
    uint64_t *all = calloc((size_t)world->size * count, sizeof *all);
    ptb_status status = ptb_world_agree(world, mine != PTB_OK ? mine : all ? PTB_OK : PTB_NO_MEMORY);
    if (status == PTB_OK)
        status = ptb_world_all_gather(world, sums, count * sizeof *sums, all);
    for (size_t i = 0; status == PTB_OK && i < count; i++) {
        sums[i] = 0;
        for (size_t r = 0; r < (size_t)world->size; r++)
            sums[i] += all[r * count + i];
    }
    free(all);
    return status;
}

ptb_status ptb_data_hash(ptb_data *d, ptb_data_hashes *hashes)
{
    uint64_t sums[KINDS] = {0};
    ptb_status status = hash_parts(d, sums);
    if (d->ops->shards) {
        ptb_lane *const *shard = d->env.shard;
        PTB_TRY(add_up(shard[PTB_GROUP_DENSE]->comm->world, &sums[CUT], 2, status));
        status = add_up(shard[PTB_GROUP_EXPERT]->comm->world, &sums[EXPERTS], 1, PTB_OK);
    }
    PTB_TRY(status);
    *hashes = (ptb_data_hashes){.cut = ptb_random_mix(sums[CUT] + d->env.layout->count),
                                .replicated = ptb_random_mix(sums[REPLICATED]),
                                .experts = ptb_random_mix(sums[EXPERTS])};
    return PTB_OK;
}

void ptb_data_unit_memory(const ptb_data_env *e, size_t unit, const void *parameters, float *gradients,
                          ptb_unit_memory *memory)
{
    const ptb_layout *layout = e->layout;
    const ptb_unit *u = &layout->unit[unit];
    size_t width = ptb_dtype_size(e->type);
    *memory = (ptb_unit_memory){.parameters = (const char *)parameters + u->first * width,
                                .gradients = gradients + u->first};
    if (layout->shape.tied && u->kind == PTB_UNIT_HEAD) {
        size_t table = layout->unit[0].first + ptb_unit_tensor(&layout->unit[0], PTB_EMBED_TOKENS)->first;
        memory->tied_parameters = (const char *)parameters + table * width;
        memory->tied_gradients = gradients + table;
    }
}

ptb_status ptb_data_nothing(ptb_data *d, size_t unit)
{
    (void)d;
    (void)unit;
    return PTB_OK;
}

void ptb_data_squares_begin(ptb_data *d)
{
    d->squares_begun = false;
}

static bool counts(const ptb_data_env *e, int kind)
{
    if (kind == EXPERTS)
        return e->counts[PTB_GROUP_EXPERT];
    return e->counts[PTB_GROUP_DENSE] && (kind == CUT || e->counts_replicated);
}

static ptb_status add_range(ptb_data *d, const float *gradients, size_t count)
{
    const ptb_data_env *e = &d->env;
    ptb_sum_squares args = {
        .sum = e->sum_squares, .values = gradients, .count = count, .accumulate = d->squares_begun};
    d->squares_begun = true;
    return e->kernels->sum_squares(ptb_data_stream(d), &args);
}

// Stretches that follow each other and count are one call.
ptb_status ptb_data_squares_add(ptb_data *d, size_t first, size_t count, const float *gradients)
{
    size_t from = first, at = first, end = first + count;
    while (at < end) {
        stretch s = stretch_at(d->env.layout, at);
        size_t next = s.end < end ? s.end : end;
        if (!counts(&d->env, s.kind)) {
            if (at > from)
                PTB_TRY(add_range(d, gradients + (from - first), at - from));
            from = next;
        }
        at = next;
    }
    return at > from ? add_range(d, gradients + (from - first), at - from) : PTB_OK;
}

ptb_status ptb_data_squares_end(ptb_data *d)
{
    const ptb_data_env *e = &d->env;
    if (!d->squares_begun)
        PTB_TRY(ptb_stream_set(ptb_data_stream(d), e->sum_squares, 0, sizeof *e->sum_squares));
    if (e->norm->size == 1)
        return PTB_OK;
    ptb_coll call = {.kind = PTB_ALL_REDUCE,
                     .send = e->sum_squares,
                     .recv = e->sum_squares,
                     .count = 1,
                     .dtype = PTB_F64,
                     .op = PTB_SUM};
    if (!d->updates)
        return ptb_lane_now(e->norm, &call, "all_reduce.norm");
    PTB_TRY(ptb_timeline_pause(d->updates)); // the lane has the same stream
    PTB_TRY(ptb_lane_collective(e->norm, &call, "all_reduce.norm"));
    return ptb_timeline_resume(d->updates);
}

static ptb_timeline *timeline_of(const ptb_data *d)
{
    return d->updates ? d->updates : d->env.timeline;
}

ptb_stream *ptb_data_stream(const ptb_data *d)
{
    return timeline_of(d)->stream;
}

ptb_status ptb_data_span_open(ptb_data *d, int unit, const char *name)
{
    ptb_timeline *timeline = timeline_of(d);
    ptb_span span = d->env.timeline->span;
    span.stream = (int16_t)timeline->stream->lane;
    span.kind = PTB_SPAN_OPTIMIZER;
    span.phase = PTB_PHASE_OPTIMIZER;
    span.unit = unit;
    span.microbatch = -1;
    span.correlation = d->step;
    snprintf(span.name, sizeof span.name, "%s", name);
    return ptb_timeline_open(timeline, &span);
}

ptb_status ptb_data_span_close(ptb_data *d)
{
    return ptb_timeline_close(timeline_of(d));
}
